/* The product of many rows in every kernel table: within rounding of double precision, a result's bits whatever else a
 * call computes, the same bits in all vector tables, and no access outside of the operands. */
#include "kernel_operands.h"

#include "backend/cpu/matrix.h"
#include "copies.h"
#include "model/tensors.h"

typedef struct operands {
    int rows, k, outputs;
    size_t ldx, ldy;
    float *x, *packed, *y;
    void *values; /* of the weights; ends at the end of its allocation, as x does */
    weight w;
} operands;

static const float untouched = -77.0f;

static operands operands_new(const cpu_kernels *kernels, weight_format format, int rows, int k, int outputs) {
    operands c = {.rows = rows, .k = k, .outputs = outputs, .ldx = (size_t)k + 5, .ldy = (size_t)outputs + 2};
    const size_t n = (size_t)outputs * (size_t)k, n_y = (size_t)rows * c.ldy;
    void *allocation, *values = random_weights(format, n, 31 + (uint64_t)k, &allocation);
    c.x = random_floats((size_t)rows * c.ldx - 5, 32 + (uint64_t)k, 1.0f);
    c.packed = malloc(gemm_floats(rows, k) * sizeof *c.packed);
    c.values = malloc(n * value_bytes(format));
    c.y = malloc(n_y * sizeof *c.y);
    assert_true(c.packed && c.values && c.y);
    memset(c.packed, 0xff, gemm_floats(rows, k) * sizeof *c.packed); /* NaN: what is not packed must not be read */
    memcpy(c.values, values, n * value_bytes(format));
    for (size_t i = 0; i < n_y; i++) c.y[i] = untouched;
    c.w = weight_matrix(format, c.values, outputs, k);
    kernels->gemm_pack(c.x, c.ldx, rows, k, c.packed);
    free(allocation);
    return c;
}

static void operands_free(operands *c) { free(c->x), free(c->packed), free(c->values), free(c->y); }

static void multiply_all(const cpu_kernels *kernels, operands *c) {
    kernels->gemm(c->packed, c->rows, &c->w, kernels->weight[c->w.format].load, c->y, c->ldy);
}

static void check_case(const cpu_kernels *kernels, weight_format format, int rows, int k, int outputs) {
    operands c = operands_new(kernels, format, rows, k, outputs);
    float *piece = malloc((size_t)rows * sizeof *piece), *packed = malloc(gemm_floats(1, k) * sizeof *packed);
    float *alone = malloc((size_t)outputs * sizeof *alone);
    char what[96];
    assert_true(piece && packed && alone);
    multiply_all(kernels, &c);
    snprintf(what, sizeof what, "gemm %s rows %d k %d outputs %d", weight_format_name(format), rows, k, outputs);
    const int chosen = outputs / 2; /* an output alone */
    const weight one = weight_rows(&c.w, chosen, 1);
    kernels->gemm(c.packed, rows, &one, kernels->weight[format].load, piece, 1);
    for (int r = 0; r < rows; r++) {
        const float *x = c.x + (size_t)r * c.ldx, *y = c.y + (size_t)r * c.ldy;
        for (int o = 0; o < outputs; o++) {
            double sum = 0, magnitude = 0;
            for (int i = 0; i < k; i++) {
                const size_t at = (size_t)o * (size_t)k + (size_t)i;
                const double term = (double)x[i] * (double)element(format, c.values, at);
                sum += term;
                magnitude += fabs(term);
            }
            /* roundings of a chunk's chain, and of the chunks' */
            check_near(what, kernels->name, (long)r * outputs + o, (double)y[o], sum,
                       0x1p-24 * ((k < 256 ? k : 256) + k / 192 + 2) * magnitude);
        }
        for (size_t i = (size_t)outputs; i < c.ldy; i++) check_same_bits(what, kernels->name, (long)i, y[i], untouched);
        check_same_bits(what, kernels->name, chosen, piece[r], y[chosen]);
        if (r % 5) continue;
        kernels->gemm_pack(x, c.ldx, 1, k, packed);
        kernels->gemm(packed, 1, &c.w, kernels->weight[format].load, alone, (size_t)outputs);
        for (int o = 0; o < outputs; o++) check_same_bits(what, kernels->name, o, alone[o], y[o]);
    }
    free(piece), free(packed), free(alone);
    operands_free(&c);
}

static void agrees_with_double(void **state) {
    (void)state;
    static const int sizes[] = {1, 7, 16, 31, 33, 72, 192, 193, 215, 400}, counts[] = {1, 2, 5, 6, 7, 12, 13, 25};
    static const int widths[] = {1, 8, 15, 16, 17, 32, 33, 97};
    FOR_FLOAT_TABLES(kernels)
    for (weight_format format = 0; weight_format_is_plain(format); format++)
        for (size_t s = 0; s < COUNT(sizes); s++)
            for (size_t n = 0; n < COUNT(counts); n++)
                check_case(kernels, format, counts[n], sizes[s], widths[(n + 3 * s) % COUNT(widths)]);
}

/* More rows, outputs and values of k than any block holds. */
static void many_blocks(void **state) {
    (void)state;
    FOR_FLOAT_TABLES(kernels) check_case(kernels, WEIGHT_BF16, 509, 390, 107);
}

/* The order of additions knows no vectors, and a weight is its value, whatever its format. */
static void bits_of_tables_and_formats(void **state) {
    (void)state;
    enum { ROWS = 14, K = 421, OUTPUTS = 35 };
    float *first = NULL;
    FOR_FLOAT_TABLES(kernels) {
        if (strcmp(kernels->name, "scalar") == 0) continue;
        operands c = operands_new(kernels, WEIGHT_BF16, ROWS, K, OUTPUTS);
        float *as_f32 = malloc((size_t)OUTPUTS * K * sizeof *as_f32);
        float *y = malloc((size_t)ROWS * c.ldy * sizeof *y);
        assert_true(as_f32 && y);
        for (size_t i = 0; i < (size_t)OUTPUTS * K; i++) as_f32[i] = element(WEIGHT_BF16, c.values, i);
        const weight w = weight_matrix(WEIGHT_F32, as_f32, OUTPUTS, K);
        multiply_all(kernels, &c);
        memcpy(y, c.y, (size_t)ROWS * c.ldy * sizeof *y);
        kernels->gemm(c.packed, ROWS, &w, kernels->weight[WEIGHT_F32].load, y, c.ldy);
        for (size_t i = 0; i < (size_t)ROWS * c.ldy; i++)
            check_same_bits("bf16 weights as f32", kernels->name, (long)i, y[i], c.y[i]);
        for (size_t i = 0; first && i < (size_t)ROWS * c.ldy; i++)
            check_same_bits("another table's", kernels->name, (long)i, y[i], first[i]);
        if (first)
            free(y);
        else
            first = y;
        free(as_f32);
        operands_free(&c);
    }
    free(first);
}

/* Pieces of outputs and groups of rows on several threads. */
static void on_the_pool(void **state) {
    (void)state;
    enum { ROWS = 131, K = 200, OUTPUTS = 283 };
    kakeya_error error;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    FOR_FLOAT_TABLES(kernels) {
        operands c = operands_new(kernels, WEIGHT_BF16, ROWS, K, OUTPUTS);
        multiply_all(kernels, &c);
        for (int threads = 1; threads <= 3; threads++) {
            backend_model model = {.kernels = kernels, .account = &account};
            assert_ok(thread_pool_create(threads, &model.pool, &error));
            model.threads = thread_pool_size(model.pool);
            float *packed = malloc(gemm_floats(ROWS, K) * sizeof *packed);
            float *y = malloc((size_t)ROWS * c.ldy * sizeof *y);
            assert_true(packed && y);
            for (size_t i = 0; i < (size_t)ROWS * c.ldy; i++) y[i] = untouched;
            pack_gemm(&model, c.x, c.ldx, ROWS, K, packed);
            matrix_job job = gemm_product(packed, ROWS, &c.w, y, c.ldy);
            matrix_run(&model, &job, 1);
            for (size_t i = 0; i < (size_t)ROWS * c.ldy; i++)
                check_same_bits("gemm on the pool", kernels->name, (long)i, y[i], c.y[i]);
            free(packed), free(y);
            thread_pool_destroy(model.pool);
        }
        operands_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_double),
        cmocka_unit_test(many_blocks),
        cmocka_unit_test(bits_of_tables_and_formats),
        cmocka_unit_test(on_the_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
