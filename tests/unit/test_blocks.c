/* Protects: blocks of every format mean, bit for bit and in every kernel table, what their authors' own code makes of
 * them; a product with a block format has the bits of the product with the dequantised matrix, for any number of rows,
 * outputs and pieces. */
#include "block_operands.h"
#include "formats/safetensors.h"
#include "packed.h"
#include "scratch.h"

static const struct {
    weight_format format;
    const char *key;
} formats[] = {
    {WEIGHT_Q4_0, "q4_0"},   {WEIGHT_Q4_1, "q4_1"},   {WEIGHT_Q5_0, "q5_0"},     {WEIGHT_Q5_1, "q5_1"},
    {WEIGHT_Q8_0, "q8_0"},   {WEIGHT_Q2_K, "q2_k"},   {WEIGHT_Q3_K, "q3_k"},     {WEIGHT_Q4_K, "q4_k"},
    {WEIGHT_Q5_K, "q5_k"},   {WEIGHT_Q6_K, "q6_k"},   {WEIGHT_IQ4_NL, "iq4_nl"}, {WEIGHT_IQ4_XS, "iq4_xs"},
    {WEIGHT_MXFP4, "mxfp4"}, {WEIGHT_NVFP4, "nvfp4"},
};

/* Every tensor KIND.raw of the file against KIND.f32: whole rows, and pieces of them. */
static void check_vectors(const safetensors *file, const char *raw_name, const char *f32_name, weight_format format) {
    const tensor *raw = safetensors_find(file, raw_name), *f32 = safetensors_find(file, f32_name);
    if (!raw || !f32) fail_msg("no %s or no %s", raw_name, f32_name);
    int rows = (int)f32->shape[0], k = (int)f32->shape[1];
    assert_int_equal(raw->bytes, weight_stream_bytes(&weight_format_find(format)->stream[0], rows, k, 0));
    float *ones = malloc((size_t)rows * sizeof *ones), *found = malloc((size_t)k * sizeof *found);
    for (int r = 0; r < rows; r++) ones[r] = 1;
    weight w = weight_matrix(format, raw->data, rows, k);
    w.stream[1] = ones;
    FOR_TABLES(kernels) {
        for (int r = 0; r < rows; r++) {
            const char *expected = (const char *)f32->data + (size_t)r * (size_t)k * sizeof(float);
            for (int n = 1; n <= k; n += n < k && n + 37 > k ? k - n : 37) {
                int begin = k - n;
                kernels->weight[format].load(&w, r, begin, n, found);
                for (int i = 0; i < n; i++) {
                    float value;
                    memcpy(&value, expected + (size_t)(begin + i) * sizeof value, sizeof value);
                    check_same_bits(raw_name, kernels->name, r * k + begin + i, found[i], value);
                }
            }
        }
    }
    free(found);
    free(ones);
}

static void test_vectors(void **state) {
    (void)state;
    kakeya_error error;
    safetensors *file;
    size_t bytes;
    char *packed = packed_read(KAKEYA_TEST_DATA "/golden/quant/blocks.safetensors.gz", &bytes);
    if (safetensors_open(scratch_write("blocks.safetensors", packed, bytes), &file, &error))
        fail_msg("%s", error.message);
    free(packed);
    int checked = 0;
    for (size_t f = 0; f < COUNT(formats); f++) {
        static const char *const kinds[] = {"random", "edge"};
        for (size_t i = 0; i < COUNT(kinds); i++) {
            char raw[64], f32[64];
            snprintf(raw, sizeof raw, "%s.%s.raw", formats[f].key, kinds[i]);
            snprintf(f32, sizeof f32, "%s.%s.f32", formats[f].key, kinds[i]);
            check_vectors(file, raw, f32, formats[f].format);
            checked++;
        }
    }
    assert_int_equal(checked, 2 * (WEIGHT_AFFINE_2 - WEIGHT_Q4_0));
    safetensors_close(file);
}

/* KAKEYA_QUANT_VECTORS names a folder of ggml-*.safetensors, whole ones. */
static void test_more_vectors(void **state) {
    (void)state;
    const char *folder = getenv("KAKEYA_QUANT_VECTORS");
    if (!folder) skip();
    for (size_t f = 0; f < COUNT(formats); f++) {
        static const char *const kinds[] = {"normal", "imatrix", "random", "edge"};
        char path[512];
        kakeya_error error;
        safetensors *file;
        snprintf(path, sizeof path, "%s/ggml-%s.safetensors", folder, formats[f].key);
        if (safetensors_open(path, &file, &error)) fail_msg("%s", error.message);
        for (size_t i = 0; i < COUNT(kinds); i++) {
            char raw[64], f32[64];
            snprintf(raw, sizeof raw, "%s.raw", kinds[i]);
            snprintf(f32, sizeof f32, "%s.f32", kinds[i]);
            if (safetensors_find(file, raw)) check_vectors(file, raw, f32, formats[f].format);
        }
        safetensors_close(file);
    }
}

/* Loading begins and ends anywhere. */
static void test_ranges(void **state) {
    (void)state;
    enum { K = 1024, OUT = 3 };
    for (size_t f = 0; f < COUNT(formats); f++) {
        block_matrix m = random_blocks(formats[f].format, OUT, K, f + 1);
        float *whole = dequantised(&m.w), piece[K];
        for (int i = 0; i < OUT * K; i++) assert_true(isfinite(whole[i]));
        uint64_t seed = f;
        FOR_TABLES(kernels) {
            for (int trial = 0; trial < 60; trial++) {
                int row = trial % OUT, begin = (int)((seed = seed * 6364136223846793005u + 1) >> 33) % K;
                int n = (int)((seed = seed * 6364136223846793005u + 1) >> 33) % (K - begin + 1);
                kernels->weight[formats[f].format].load(&m.w, row, begin, n, piece);
                for (int i = 0; i < n; i++)
                    check_same_bits(formats[f].key, kernels->name, begin + i, piece[i], whole[row * K + begin + i]);
            }
        }
        free(whole);
        block_matrix_free(&m);
    }
}

/* Products in one call, and in pieces of outputs and rows, against those with the dequantised matrix. */
static void check_product(const cpu_kernels *kernels, const weight *w, const weight *plain, int input, int rows) {
    const cpu_product *product = &kernels->weight[w->format].product[input];
    const cpu_product *oracle = &kernels->weight[WEIGHT_F32].product[input];
    assert_int_equal(product->packing, oracle->packing);
    float *x = random_floats((size_t)rows * (size_t)w->in, 11, 1);
    size_t n = (size_t)rows * (size_t)w->out, row_bytes = kernels->packing[product->packing].row_bytes(w->in);
    char *packed = packed_as(kernels, product->packing, x, (size_t)w->in, rows, w->in);
    float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    oracle->multiply(packed, rows, plain, want, (size_t)w->out);
    product->multiply(packed, rows, w, got, (size_t)w->out);
    for (size_t i = 0; i < n; i++)
        check_same_bits(weight_format_name(w->format), kernels->name, (long)i, got[i], want[i]);
    memset(got, 0xff, n * sizeof *got);
    int half = w->out / 3, last = rows / 2;
    weight parts[2] = {weight_rows(w, 0, half), weight_rows(w, half, w->out - half)};
    for (int p = 0; p < 2; p++) {
        if (parts[p].out == 0) continue;
        float *y = got + (p ? half : 0);
        if (last) product->multiply(packed, last, &parts[p], y, (size_t)w->out);
        product->multiply(packed + (size_t)last * row_bytes, rows - last, &parts[p], y + (size_t)last * (size_t)w->out,
                          (size_t)w->out);
    }
    for (size_t i = 0; i < n; i++) check_same_bits("pieces", kernels->name, (long)i, got[i], want[i]);
    free(got);
    free(want);
    free(packed);
    free(x);
}

static void test_products(void **state) {
    (void)state;
    static const int rows[] = {1, 2, 3, 5, 8, 9, 17, 40}, outs[] = {1, 15, 17, 49}, blocks_of_k[] = {1, 3, 11};
    for (size_t f = 0; f < COUNT(formats); f++) {
        int block = weight_format_find(formats[f].format)->stream[0].values;
        for (size_t shape = 0; shape < COUNT(outs) * COUNT(blocks_of_k); shape++) {
            int out = outs[shape % COUNT(outs)], k = block * blocks_of_k[shape / COUNT(outs)];
            block_matrix m = random_blocks(formats[f].format, out, k, shape + 100 * f);
            float *values = dequantised(&m.w);
            weight plain = weight_matrix(WEIGHT_F32, values, out, k);
            FOR_TABLES(kernels) {
                for (int input = 0; input <= INPUT_BF16; input++)
                    check_product(kernels, &m.w, &plain, input, rows[(shape + f) % COUNT(rows)]);
            }
            free(values);
            block_matrix_free(&m);
        }
    }
}

/* All numbers of rows, at widths of the models that are no multiple of 256. */
static void test_rows(void **state) {
    (void)state;
    static const int widths[] = {704, 2112};
    for (int i = 0; i < 2; i++) {
        block_matrix m = random_blocks(i ? WEIGHT_Q8_0 : WEIGHT_Q5_0, 30, widths[i], 5);
        float *values = dequantised(&m.w);
        weight plain = weight_matrix(WEIGHT_F32, values, 30, widths[i]);
        FOR_TABLES(kernels) {
            for (int rows = 1; rows <= 17; rows++) check_product(kernels, &m.w, &plain, INPUT_EXACT, rows);
        }
        free(values);
        block_matrix_free(&m);
    }
}

/* Every code of an 8-bit float, from every place of a row, times scales whose products are subnormal too. */
static void test_e4m3(void **state) {
    (void)state;
    enum { CODES = 256, IN = CODES + 19 };
    static const float scales[] = {1, 0.3f, -7e-20f, 1e-36f, 0x1p-140f, 0x1p119f};
    unsigned char codes[IN];
    float got[IN];
    for (int i = 0; i < IN; i++) codes[i] = (unsigned char)i;
    for (size_t s = 0; s < COUNT(scales); s++) {
        weight w = weight_matrix(WEIGHT_FP8, codes, 1, IN);
        w.group = IN;
        w.stream[1] = &scales[s];
        FOR_TABLES(kernels)
        for (int first = 0; first < IN; first += first < 3 ? 1 : 37) {
            kernels->weight[WEIGHT_FP8].load(&w, 0, first, IN - first, got);
            for (int i = first; i < IN; i++) {
                int e = codes[i] >> 3 & 15, m = codes[i] & 7;
                float size = e == 15 && m == 7 ? NAN : (float)ldexp(e ? 8 + m : m, (e ? e : 1) - 10);
                float want = (codes[i] & 0x80 ? -size : size) * scales[s];
                if (!isnan(want) || !isnan(got[i - first]))
                    check_same_bits("e4m3", kernels->name, i, got[i - first], want);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),  cmocka_unit_test(test_more_vectors), cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_products), cmocka_unit_test(test_rows),         cmocka_unit_test(test_e4m3),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
