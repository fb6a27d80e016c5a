/* Protects: int8 products have one definition. Their bits are the scalar table's on every instruction set, for any
 * number of rows, outputs and pieces; they are as near to the exact product as rounding activations to 8 bits allows;
 * what is not a number stays none. */
#include "backend/cpu/int8.h"
#include "block_operands.h"
#include "formats/safetensors.h"

static const weight_format formats[] = {WEIGHT_Q4_0, WEIGHT_Q4_1,   WEIGHT_Q5_0,   WEIGHT_Q5_1,
                                        WEIGHT_Q8_0, WEIGHT_Q3_K,   WEIGHT_Q4_K,   WEIGHT_Q5_K,
                                        WEIGHT_Q6_K, WEIGHT_IQ4_NL, WEIGHT_IQ4_XS, WEIGHT_MXFP4};

static const cpu_product *product_of(const cpu_kernels *kernels, weight_format format) {
    return &kernels->weight[format].product[INPUT_INT8];
}

/* Which formats have such a product: the others take activations as they are. */
static void test_formats(void **state) {
    (void)state;
    FOR_TABLES(kernels) {
        for (weight_format f = 0; f < WEIGHT_FORMAT_COUNT; f++) {
            bool listed = false;
            for (size_t i = 0; i < COUNT(formats); i++) listed |= formats[i] == f;
            assert_int_equal(product_of(kernels, f)->packing == PACKING_INT8, listed);
            if (!listed)
                assert_ptr_equal(product_of(kernels, f)->multiply, kernels->weight[f].product[INPUT_EXACT].multiply);
        }
    }
}

/* ------------------------------------------------------------------------------------------------- activations */

/* Rows of every kind: ordinary, with an outlier, tiny, subnormal, zero, huge. */
static float *test_rows(int rows, int k) {
    float *x = random_floats((size_t)rows * (size_t)k, 77, 1);
    for (int r = 0; r < rows; r++) {
        float *row = x + (size_t)r * (size_t)k;
        float factor = r % 6 == 2 ? 1e-20f : r % 6 == 3 ? 0x1p-140f : r % 6 == 4 ? 0 : r % 6 == 5 ? 1e25f : 1;
        for (int i = 0; i < k; i++) row[i] *= factor;
        if (r % 6 == 1) row[k / 2] = 40;
    }
    return x;
}

static void test_packing(void **state) {
    (void)state;
    static const int widths[] = {32, 64, 704, 2112, 45};
    for (size_t i = 0; i < COUNT(widths); i++) {
        enum { ROWS = 12 };
        int k = widths[i];
        size_t blocks = int8_blocks(k), bytes = int8_row_bytes(k);
        float *x = test_rows(ROWS, k);
        char *want = packed_as(cpu_kernels_find("scalar"), PACKING_INT8, x, (size_t)k, ROWS, k);
        for (int r = 0; r < ROWS; r++) {
            const int8_t *codes = (const int8_t *)want + (size_t)r * bytes;
            for (size_t b = 0; b < blocks; b++) {
                float scale, a = 0;
                int16_t sums[2];
                int found[2] = {0};
                memcpy(&scale, codes + int8_scales_at(blocks) + b * sizeof scale, sizeof scale);
                memcpy(sums, codes + int8_sums_at(blocks) + b * sizeof sums, sizeof sums);
                for (int j = 0; j < INT8_BLOCK; j++) {
                    size_t at = b * INT8_BLOCK + (size_t)j;
                    float value = at < (size_t)k ? x[(size_t)r * (size_t)k + at] : 0;
                    a = fabsf(value) > a ? fabsf(value) : a;
                    found[j / 16] += codes[at];
                    double error = fabs((double)value - (double)scale * codes[at]);
                    assert_true(a < 0x1p-100f || error <= 0.5001 * (double)scale);
                    assert_true(codes[at] >= -127 && codes[at] <= 127);
                }
                assert_true(scale == (a < 0x1p-100f ? 0 : a / 127));
                assert_int_equal(sums[0], found[0]);
                assert_int_equal(sums[1], found[1]);
            }
        }
        FOR_TABLES(kernels) {
            char *got = packed_as(kernels, PACKING_INT8, x, (size_t)k, ROWS, k);
            assert_memory_equal(got, want, ROWS * bytes);
            free(got);
        }
        free(want);
        free(x);
    }
}

/* --------------------------------------------------------------------------------------------------- products */

/* The definition once more, from dequantised weights: a block's part is off by half a step of its activations' codes
 * times its weights at most. */
static void check_bound(const weight *w, const float *x, int rows, const float *y) {
    float *values = dequantised(w);
    for (int r = 0; r < rows; r++) {
        for (int o = 0; o < w->out; o++) {
            double exact = 0, bound = 0, size = 0;
            for (int b = 0; b < w->in; b += INT8_BLOCK) {
                double a = 0, weights = 0;
                for (int i = b; i < b + INT8_BLOCK; i++) {
                    double value = (double)x[(size_t)r * (size_t)w->in + (size_t)i];
                    double weight_value = (double)values[(size_t)o * (size_t)w->in + (size_t)i];
                    exact += value * weight_value;
                    size += fabs(value * weight_value);
                    a = fabs(value) > a ? fabs(value) : a;
                    weights += fabs(weight_value);
                }
                bound += (a < 0x1p-100 ? a : a / 254) * weights;
            }
            bound = 1.0001 * bound + 1e-4 * size;
            check_near(weight_format_name(w->format), "int8", o, (double)y[(size_t)r * (size_t)w->out + (size_t)o],
                       exact, bound);
        }
    }
    free(values);
}

static void check_product(weight_format format, int out, int k, int rows) {
    block_matrix m = random_blocks(format, out, k, (uint64_t)(out * 31 + k + rows));
    float *x = test_rows(rows, k);
    size_t n = (size_t)rows * (size_t)out, row_bytes = int8_row_bytes(k);
    char *packed = packed_as(cpu_kernels_find("scalar"), PACKING_INT8, x, (size_t)k, rows, k);
    float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    product_of(cpu_kernels_find("scalar"), format)->multiply(packed, rows, &m.w, want, (size_t)out);
    check_bound(&m.w, x, rows, want);
    const char *name = weight_format_name(format);
    FOR_TABLES(kernels) {
        const cpu_product *product = product_of(kernels, format);
        memset(got, 0xff, n * sizeof *got);
        product->multiply(packed, rows, &m.w, got, (size_t)out);
        for (size_t i = 0; i < n; i++) check_same_bits(name, kernels->name, (long)i, got[i], want[i]);
        memset(got, 0xff, n * sizeof *got);
        int split = out / 3, first = rows / 2; /* in pieces of outputs and rows */
        weight parts[2] = {weight_rows(&m.w, 0, split), weight_rows(&m.w, split, out - split)};
        for (int p = 0; p < 2; p++) {
            float *y = got + (p ? split : 0);
            if (parts[p].out == 0) continue;
            if (first) product->multiply(packed, first, &parts[p], y, (size_t)out);
            product->multiply(packed + (size_t)first * row_bytes, rows - first, &parts[p],
                              y + (size_t)first * (size_t)out, (size_t)out);
        }
        for (size_t i = 0; i < n; i++) check_same_bits("pieces", kernels->name, (long)i, got[i], want[i]);
    }
#if defined(__x86_64__)
    int8_avx2.multiply[format](packed, rows, &m.w, got, (size_t)out); /* which tables of AVX-512 may not use */
    for (size_t i = 0; i < n; i++) check_same_bits(name, "int8_avx2", (long)i, got[i], want[i]);
#endif
    free(got);
    free(want);
    free(packed);
    free(x);
    block_matrix_free(&m);
}

static void test_products(void **state) {
    (void)state;
    static const int rows[] = {1, 2, 3, 4, 7, 8, 9, 17}, outs[] = {1, 15, 16, 17, 49};
    for (size_t f = 0; f < COUNT(formats); f++) {
        int block = weight_format_find(formats[f])->stream[0].values;
        for (size_t i = 0; i < COUNT(outs); i++)
            check_product(formats[f], outs[i], 3 * block, rows[(i + f) % COUNT(rows)]);
        check_product(formats[f], 33, block == 32 ? 704 : 2816, 8);
    }
    for (int r = 1; r <= 17; r++) check_product(WEIGHT_Q4_0, 20, 2112, r);
}

/* Largest codes everywhere: no sum of integers overflows or is rounded. */
static void test_extremes(void **state) {
    (void)state;
    enum { K = 512, OUT = 16 };
    for (size_t f = 0; f < COUNT(formats); f++) {
        const weight_stream *stream = &weight_format_find(formats[f])->stream[0];
        size_t bytes = weight_stream_bytes(stream, OUT, K, 0);
        unsigned char *codes = malloc(bytes);
        for (int pattern = 0; pattern < 4; pattern++) {
            static const unsigned char fills[] = {0x00, 0x80, 0x7f, 0xff};
            memset(codes, fills[pattern], bytes);
            int places[2];
            block_scale_places(formats[f], places);
            for (size_t b = 0; b < bytes / (size_t)stream->bytes; b++) {
                for (int i = 0; i < 2; i++) {
                    if (places[i] >= 0) memcpy(codes + b * (size_t)stream->bytes + places[i], "\x00\x3c", 2);
                }
                if (formats[f] == WEIGHT_MXFP4) codes[b * (size_t)stream->bytes] = 127;
            }
            weight w = weight_matrix(formats[f], codes, OUT, K);
            float x[2 * K], want[2 * OUT], got[2 * OUT];
            for (int i = 0; i < K; i++) {
                x[i] = 1;
                x[K + i] = i % 2 ? -1 : 1;
            }
            char *packed = packed_as(cpu_kernels_find("scalar"), PACKING_INT8, x, K, 2, K);
            product_of(cpu_kernels_find("scalar"), formats[f])->multiply(packed, 2, &w, want, OUT);
            check_bound(&w, x, 2, want);
            FOR_TABLES(kernels) {
                product_of(kernels, formats[f])->multiply(packed, 2, &w, got, OUT);
                for (int i = 0; i < 2 * OUT; i++)
                    check_same_bits(weight_format_name(formats[f]), kernels->name, i, got[i], want[i]);
            }
#if defined(__x86_64__)
            int8_avx2.multiply[formats[f]](packed, 2, &w, got, OUT);
            for (int i = 0; i < 2 * OUT; i++) check_same_bits("int8_avx2", "int8_avx2", i, got[i], want[i]);
#endif
            free(packed);
        }
        free(codes);
    }
}

/* A row with an infinity or a NaN gives NaN, and only that row. */
static void test_not_numbers(void **state) {
    (void)state;
    enum { K = 256, OUT = 17, ROWS = 5 };
    for (size_t f = 0; f < COUNT(formats); f++) {
        block_matrix m = random_blocks(formats[f], OUT, K, f);
        float *x = random_floats(ROWS * K, 3, 1), y[ROWS * OUT];
        x[1 * K + 200] = NAN;
        x[3 * K] = -INFINITY;
        FOR_TABLES(kernels) {
            char *packed = packed_as(kernels, PACKING_INT8, x, K, ROWS, K);
            product_of(kernels, formats[f])->multiply(packed, ROWS, &m.w, y, OUT);
            for (int i = 0; i < ROWS * OUT; i++) assert_int_equal(isnan(y[i]) != 0, i / OUT == 1 || i / OUT == 3);
            free(packed);
        }
        free(x);
        block_matrix_free(&m);
    }
}

/* KAKEYA_QUANT_VECTORS names a folder of ggml-*.safetensors: products of ordinary weights. */
static void test_vectors(void **state) {
    (void)state;
    static const char *const keys[] = {"q4_0", "q4_1", "q5_0", "q5_1",   "q8_0",   "q3_k",
                                       "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"};
    const char *folder = getenv("KAKEYA_QUANT_VECTORS");
    if (!folder) skip();
    for (size_t f = 0; f < COUNT(formats); f++) {
        char path[512];
        kakeya_error error;
        safetensors *file;
        snprintf(path, sizeof path, "%s/ggml-%s.safetensors", folder, keys[f]);
        if (safetensors_open(path, &file, &error)) fail_msg("%s", error.message);
        const tensor *raw = safetensors_find(file, "normal.raw"), *xs = safetensors_find(file, "dot.x");
        int out = (int)raw->shape[0], rows = (int)xs->shape[0], k = (int)xs->shape[1];
        weight w = weight_matrix(formats[f], raw->data, out, k);
        float *x = malloc(xs->bytes), *y = malloc((size_t)rows * (size_t)out * sizeof *y);
        memcpy(x, xs->data, xs->bytes);
        FOR_TABLES(kernels) {
            char *packed = packed_as(kernels, PACKING_INT8, x, (size_t)k, rows, k);
            product_of(kernels, formats[f])->multiply(packed, rows, &w, y, (size_t)out);
            check_bound(&w, x, rows, y);
            free(packed);
        }
        free(x);
        free(y);
        safetensors_close(file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),  cmocka_unit_test(test_packing),     cmocka_unit_test(test_products),
        cmocka_unit_test(test_extremes), cmocka_unit_test(test_not_numbers), cmocka_unit_test(test_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
