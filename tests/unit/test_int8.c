/* Protects: int8 products have one definition. Their bits are the scalar table's on every instruction set, for any
 * number of rows, outputs and pieces, of weights in rows and in tiles, whatever their codes and scales; they are as
 * near to the exact product as rounding activations to 8 bits allows; what is not a number stays none. Tiles hold what
 * the rows hold. */
#include "backend/cpu/int8.h"
#include "backend/cpu/synthetic_blocks.h"
#include "backend/cpu/tiles.h"
#include "block_operands.h"
#include "formats/safetensors.h"

static const weight_format formats[] = {WEIGHT_Q4_0,   WEIGHT_Q4_1,   WEIGHT_Q5_0,  WEIGHT_Q5_1, WEIGHT_Q8_0,
                                        WEIGHT_Q2_K,   WEIGHT_Q3_K,   WEIGHT_Q4_K,  WEIGHT_Q5_K, WEIGHT_Q6_K,
                                        WEIGHT_IQ4_NL, WEIGHT_IQ4_XS, WEIGHT_MXFP4, WEIGHT_NVFP4};

/* Scales beside the codes. */
static const weight_format group_formats[] = {WEIGHT_AFFINE_2,  WEIGHT_AFFINE_3,    WEIGHT_AFFINE_4,    WEIGHT_AFFINE_5,
                                              WEIGHT_AFFINE_6,  WEIGHT_AFFINE_8,    WEIGHT_INT4,        WEIGHT_INT8,
                                              WEIGHT_INT4_ZERO, WEIGHT_INT8_ZERO,   WEIGHT_INT8_SIGNED, WEIGHT_FP4_E8M0,
                                              WEIGHT_FP4_E4M3,  WEIGHT_FP4_E4M3_DIV};

enum { MAX_SETS = 4 };
/* The sets of kernels that run here, each with the name of a table that uses it; the scalar one is the first. */
typedef struct int8_sets {
    size_t n;
    const int8_kernels *set[MAX_SETS];
    const char *table[MAX_SETS];
} int8_sets;

static int8_sets sets_of_kernels(void) {
    int8_sets s = {.n = 1, .set = {&int8_scalar}, .table = {"scalar"}};
    FOR_TABLES(kernels) {
        const int8_kernels *set = int8_of(kernels);
        bool known = false;
        for (size_t i = 0; i < s.n; i++) known |= s.set[i] == set;
        if (known) continue;
        assert_true(s.n < MAX_SETS);
        s.set[s.n] = set;
        s.table[s.n++] = kernels->name;
    }
    return s;
}

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
            for (size_t i = 0; i < COUNT(group_formats); i++) listed |= group_formats[i] == f;
            assert_int_equal(product_of(kernels, f)->packing == PACKING_INT8, listed);
            assert_int_equal(kernels->weight[f].product[INPUT_INT8_FINE].packing == PACKING_INT8_FINE, listed);
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
            for (size_t b = 0; b < blocks; b++) {
                int8_record record;
                float a = 0;
                int found[2] = {0};
                memcpy(&record, want + (size_t)r * bytes + b * sizeof record, sizeof record);
                for (int j = 0; j < INT8_BLOCK; j++) {
                    size_t at = b * INT8_BLOCK + (size_t)j;
                    float value = at < (size_t)k ? x[(size_t)r * (size_t)k + at] : 0;
                    a = fabsf(value) > a ? fabsf(value) : a;
                    found[j / 16] += record.codes[j];
                    double error = fabs((double)value - (double)record.scale * record.codes[j]);
                    assert_true(a < 0x1p-100f || error <= 0.5001 * (double)record.scale);
                    assert_true(record.codes[j] >= -127 && record.codes[j] <= 127);
                }
                assert_true(record.scale == (a < 0x1p-100f ? 0 : a / 127));
                assert_int_equal(record.half[0], found[0]);
                assert_int_equal(record.half[1], found[1]);
                assert_true(record.total == (float)(found[0] + found[1]));
                assert_int_equal(record.start, -128 * (found[0] + found[1]));
            }
        }
        x[5] = NAN;
        x[2 * (size_t)k - 1] = -INFINITY;
        free(want);
        want = packed_as(cpu_kernels_find("scalar"), PACKING_INT8, x, (size_t)k, ROWS, k);
        int8_record strange;
        memcpy(&strange, want, sizeof strange);
        assert_true(isnan(strange.scale) && strange.total == 0 && strange.codes[5] == 0 && strange.codes[6] == 0);
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

/* The same matrix in tiles; the tiles are malloc'ed. */
static weight tiled_by(const int8_kernels *kernels, const weight *w) {
    weight tiled = *w;
    size_t bytes = tiles_bytes(w), row = tiles_row_bytes(w);
    unsigned char *tiles = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(tiles);
    memset(tiles, 0xa5, (bytes + 63) / 64 * 64);
    for (int o = 0; o < w->out; o += 16)
        kernels->tile[w->format](w, o, w->out - o < 16 ? w->out - o : 16, tiles_shape(w), 0, tiles_in_row(w),
                                 tiles + (size_t)(o / 16) * row);
    tiled.stream[0] = tiles;
    tiled.tiled = true;
    return tiled;
}

/* NaN has many bit patterns, and which one comes out is not said. */
static void check_same(const char *what, const char *set, size_t place, float got, float want) {
    if (isnan(want) && isnan(got)) return;
    check_same_bits(what, set, (long)place, got, want);
}

/* All of the output at once, and in pieces of outputs and rows. */
static void check_set(const int8_kernels *set, const char *set_name, const weight *w, const char *packed, int rows,
                      const float *want) {
    const char *name = weight_format_name(w->format);
    size_t out = (size_t)w->out, n = (size_t)rows * out, row_bytes = int8_row_bytes(w->in);
    float *got = malloc(n * sizeof *got);
    memset(got, 0xff, n * sizeof *got);
    set->multiply[w->format](packed, rows, w, got, out);
    for (size_t i = 0; i < n; i++) check_same(name, set_name, i, got[i], want[i]);
    memset(got, 0xff, n * sizeof *got);
    int split = w->out / 3, first = rows / 2;
    weight parts[2] = {weight_rows(w, 0, split), weight_rows(w, split, w->out - split)};
    for (int p = 0; p < 2; p++) {
        float *y = got + (p ? split : 0);
        if (parts[p].out == 0) continue;
        if (first) set->multiply[w->format](packed, first, &parts[p], y, out);
        set->multiply[w->format](packed + (size_t)first * row_bytes, rows - first, &parts[p], y + (size_t)first * out,
                                 out);
    }
    for (size_t i = 0; i < n; i++) check_same("pieces", set_name, i, got[i], want[i]);
    free(got);
}

/* Every set of kernels on rows and on tiles against the scalar one on rows, whose result is returned. */
static float *check_sets(const weight *w, const char *packed, int rows) {
    const int8_sets sets = sets_of_kernels();
    size_t n = (size_t)rows * (size_t)w->out;
    float *want = malloc(n * sizeof *want);
    int8_scalar.multiply[w->format](packed, rows, w, want, (size_t)w->out);
    weight tiled = tiled_by(&int8_scalar, w);
    for (size_t s = 0; s < sets.n; s++) {
        check_set(sets.set[s], sets.table[s], w, packed, rows, want);
        check_set(sets.set[s], sets.table[s], &tiled, packed, rows, want);
    }
    free((void *)(uintptr_t)tiled.stream[0]);
    return want;
}

static void check_product(weight_format format, int out, int k, int rows) {
    block_matrix m = random_blocks(format, out, k, (uint64_t)(out * 31 + k + rows));
    float *x = test_rows(rows, k);
    char *packed = packed_as(cpu_kernels_find("scalar"), PACKING_INT8, x, (size_t)k, rows, k);
    float *want = check_sets(&m.w, packed, rows), *got = malloc((size_t)(rows * out) * sizeof *got);
    check_bound(&m.w, x, rows, want);
    FOR_TABLES(kernels) {
        product_of(kernels, format)->multiply(packed, rows, &m.w, got, (size_t)out);
        for (int i = 0; i < rows * out; i++)
            check_same_bits(weight_format_name(format), kernels->name, i, got[i], want[i]);
    }
    free(got);
    free(want);
    free(packed);
    free(x);
    block_matrix_free(&m);
}

/* Fine input: the product with codes and the product with what they leave, added; 64 times nearer to the exact one. */
static void check_fine(weight_format format, int out, int k, int rows) {
    block_matrix m = random_blocks(format, out, k, (uint64_t)(out + k * 31 + rows));
    float *x = test_rows(rows, k), *values = dequantised(&m.w);
    char *packed = packed_as(cpu_kernels_find("scalar"), PACKING_INT8_FINE, x, (size_t)k, rows, k);
    size_t n = (size_t)rows * (size_t)out;
    float *parts = malloc(2 * n * sizeof *parts), *got = malloc(n * sizeof *got);
    int8_scalar.multiply[format](packed, 2 * rows, &m.w, parts, (size_t)out);
    FOR_TABLES(kernels) {
        const cpu_product *product = &kernels->weight[format].product[INPUT_INT8_FINE];
        char *own = packed_as(kernels, product->packing, x, (size_t)k, rows, k);
        assert_memory_equal(own, packed, (size_t)rows * int8_fine_row_bytes(k));
        int half = out / 3;
        weight cut[2] = {weight_rows(&m.w, 0, half), weight_rows(&m.w, half, out - half)};
        for (int p = half ? 0 : 1; p < 2; p++) product->multiply(own, rows, &cut[p], got + (p ? half : 0), (size_t)out);
        for (int r = 0; r < rows; r++)
            for (int o = 0; o < out; o++) {
                float want = parts[2 * r * out + o] + parts[(2 * r + 1) * out + o];
                check_same_bits(weight_format_name(format), kernels->name, r * out + o, got[r * out + o], want);
            }
        free(own);
    }
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < out; o++) {
            double exact = 0, bound = 0;
            for (int b = 0; b < k; b += INT8_BLOCK) {
                double a = 0, weights = 0, size = 0;
                for (int i = b; i < b + INT8_BLOCK; i++) {
                    double value = (double)x[r * k + i], weight_value = (double)values[o * k + i];
                    a = fmax(a, fabs(value));
                    weights += fabs(weight_value);
                    size += fabs(value * weight_value);
                    exact += value * weight_value;
                }
                /* half a step of the second part, and float32's own rounding */
                bound += weights * (a < 0x1p-90 ? a : a / 254 / 254 * 1.01) + size * 2e-6 + weights * a * 2e-6;
            }
            check_near(weight_format_name(format), "fine product", r, (double)got[r * out + o], exact, bound);
        }
    free(got);
    free(parts);
    free(packed);
    free(values);
    free(x);
    block_matrix_free(&m);
}

static void test_fine_products(void **state) {
    (void)state;
    static const int rows[] = {1, 4, 5, 8, 17, 50};
    for (size_t f = 0; f < COUNT(formats); f++)
        check_fine(formats[f], f % 2 ? 33 : 16, 256 * (1 + (int)f % 3), rows[f % COUNT(rows)]);
    check_fine(WEIGHT_Q4_0, 400, 64, 97); /* several rounds of outputs and of rows */
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
    /* Enough rows and values that vectors take them in several rounds, the values in several panels. */
    for (size_t f = 0; f < COUNT(formats); f++)
        check_product(formats[f], 50, weight_format_find(formats[f])->stream[0].values == 256 ? 1024 : 832, 29);
    check_product(WEIGHT_Q4_0, 47, 64, 397);
}

/* Scales beside the codes, of groups of every size and of whole rows, in bf16 and in float16; codes of all kinds, the
 * largest among them. Tiles hold what the loader gives. */
static void test_groups(void **state) {
    (void)state;
    static const int widths[] = {704, 384, 64}, rows[] = {1, 3, 8, 19}, groups[] = {32, 64, 128, 0};
    for (size_t f = 0; f < COUNT(group_formats); f++)
        for (size_t g = 0; g < 2 * COUNT(groups); g++) {
            const int k = g % 4 == 2 ? 384 : widths[(f + g) % COUNT(widths)], n = rows[(f + g) % COUNT(rows)];
            const int out = 1 + (int)(f * 7 + g * 11) % 50, group = groups[g % 4] ? groups[g % 4] : k;
            group_matrix m = random_groups_of(group_formats[f], out, k, group, g < 4 ? DTYPE_BF16 : DTYPE_F16, f + g);
            assert_true(int8_takes(&m.w));
            for (size_t i = 1; i < 32; i++) m.streams[0][i] = i < 16 ? 0xff : 0x80;
            float *x = test_rows(n, k), *values = dequantised(&m.w), got[704];
            char *packed = packed_as(cpu_kernels_find("scalar"), PACKING_INT8, x, (size_t)k, n, k);
            float *want = check_sets(&m.w, packed, n);
            check_bound(&m.w, x, n, want);
            const int8_sets sets = sets_of_kernels();
            weight tiled = tiled_by(&int8_scalar, &m.w);
            for (size_t s = 1; s < sets.n; s++) {
                weight other = tiled_by(sets.set[s], &m.w);
                assert_memory_equal(other.stream[0], tiled.stream[0], tiles_bytes(&m.w));
                free((void *)(uintptr_t)other.stream[0]);
            }
            for (int o = 0; o < out; o++) {
                tiles_load(&tiled, o, 0, 45, got);
                tiles_load(&tiled, o, 45, k - 45, got + 45);
                for (int j = 0; j < k; j++)
                    check_same_bits(weight_format_name(m.w.format), "tiles", j, got[j], values[o * k + j]);
            }
            free((void *)(uintptr_t)tiled.stream[0]);
            free(want);
            free(packed);
            free(values);
            free(x);
            group_matrix_free(&m);
        }
}

/* The same with bytes of every kind for scales: signs, subnormals, infinities, what is no number. */
static void test_hostile_groups(void **state) {
    (void)state;
    enum { K = 192, OUT = 17, ROWS = 18 };
    for (size_t f = 0; f < COUNT(group_formats); f++) {
        group_matrix m = random_groups_of(group_formats[f], OUT, K, 64, DTYPE_F16, f);
        const weight_format_info *info = weight_format_find(group_formats[f]);
        size_t bytes = weight_stream_bytes(&info->stream[1], OUT, K, 64);
        uint64_t seed = f;
        for (size_t i = 0; i < bytes; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            ((unsigned char *)(uintptr_t)m.w.stream[1])[i] =
                i < 16 ? (unsigned char[]){0, 0x7f, 0x80, 0xff}[i % 4] : (unsigned char)(seed >> 56);
        }
        float *x = test_rows(ROWS, K), *values = dequantised(&m.w), got[K];
        char *packed = packed_as(cpu_kernels_find("scalar"), PACKING_INT8, x, K, ROWS, K);
        free(check_sets(&m.w, packed, ROWS));
        weight tiled = tiled_by(&int8_scalar, &m.w);
        for (int o = 0; o < OUT; o++) {
            tiles_load(&tiled, o, 0, K, got);
            for (int j = 0; j < K; j++) check_same(info->name, "tiles", (size_t)j, got[j], values[o * K + j]);
        }
        free((void *)(uintptr_t)tiled.stream[0]);
        free(packed);
        free(values);
        free(x);
        group_matrix_free(&m);
    }
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
            float factors[OUT];
            for (int i = 0; i < OUT; i++) factors[i] = 1;
            weight w = weight_matrix(formats[f], codes, OUT, K);
            w.stream[1] = factors;
            float x[2 * K];
            for (int i = 0; i < K; i++) {
                x[i] = 1;
                x[K + i] = i % 2 ? -1 : 1;
            }
            char *packed = packed_as(cpu_kernels_find("scalar"), PACKING_INT8, x, K, 2, K);
            float *want = check_sets(&w, packed, 2);
            check_bound(&w, x, 2, want);
            free(want);
            free(packed);
        }
        free(codes);
    }
}

/* Bytes of every kind, scales that are subnormal, infinite or no numbers among them. */
static void test_hostile_bytes(void **state) {
    (void)state;
    enum { K = 512, OUT = 37, ROWS = 17 };
    for (size_t f = 0; f < COUNT(formats); f++) {
        const weight_stream *stream = &weight_format_find(formats[f])->stream[0];
        size_t bytes = weight_stream_bytes(stream, OUT, K, 0), block = (size_t)stream->bytes;
        unsigned char *codes = malloc(bytes);
        float factors[OUT];
        uint64_t seed = 11 + f;
        int places[2];
        block_scale_places(formats[f], places);
        for (int pass = 0; pass < 4; pass++) {
            for (size_t i = 0; i < bytes; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                codes[i] = (unsigned char)(seed >> 56);
            }
            for (size_t b = 0; b < bytes / block && pass < 3; b++) { /* 0: subnormal; 1: also infinite, NaN; 2: zero */
                unsigned char high = pass == 1 && b % 61 == 7 ? 0x7c : 0x00;
                for (int i = 0; i < 2; i++) {
                    if (places[i] >= 0)
                        codes[b * block + (size_t)places[i] + 1] &= (unsigned char)(pass == 2 ? 0 : 0x83);
                    if (places[i] >= 0 && pass == 2) codes[b * block + (size_t)places[i]] = 0;
                    if (places[i] >= 0) codes[b * block + (size_t)places[i] + 1] |= high;
                }
            }
            for (int i = 0; i < OUT; i++) factors[i] = random_value(&seed, 2);
            weight w = weight_matrix(formats[f], codes, OUT, K);
            w.stream[1] = factors;
            float *x = test_rows(ROWS, K);
            char *packed = packed_as(cpu_kernels_find("scalar"), PACKING_INT8, x, K, ROWS, K);
            free(check_sets(&w, packed, ROWS));
            free(packed);
            free(x);
        }
        free(codes);
    }
}

/* ------------------------------------------------------------------------------------------------------- tiles */

/* Every set makes the same tiles, and a tiled row has the values that the format's own loader gives. */
static void test_tiles(void **state) {
    (void)state;
    static const int outs[] = {1, 15, 16, 17, 40};
    for (size_t f = 0; f < COUNT(formats); f++) {
        int k = 3 * weight_format_find(formats[f])->stream[0].values;
        for (size_t i = 0; i < COUNT(outs); i++) {
            block_matrix m = random_blocks(formats[f], outs[i], k, f + i);
            const int8_sets sets = sets_of_kernels();
            weight tiled = tiled_by(&int8_scalar, &m.w);
            for (size_t s = 1; s < sets.n; s++) {
                weight other = tiled_by(sets.set[s], &m.w);
                assert_memory_equal(other.stream[0], tiled.stream[0], tiles_bytes(&m.w));
                free((void *)(uintptr_t)other.stream[0]);
            }
            float *values = dequantised(&m.w), *got = malloc((size_t)k * sizeof *got);
            for (int o = 0; o < outs[i]; o++) {
                weight slice = weight_rows(&tiled, o / 2, outs[i] - o / 2);
                for (int begin = 0; begin < k; begin += 77) {
                    int n = k - begin < 77 ? k - begin : 77;
                    tiles_load(&slice, o - o / 2, begin, n, got + begin);
                }
                for (int j = 0; j < k; j++)
                    check_same_bits(weight_format_name(formats[f]), "tiles", j, got[j], values[o * k + j]);
            }
            free(values);
            free(got);
            free((void *)(uintptr_t)tiled.stream[0]);
            block_matrix_free(&m);
        }
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

/* Made-up blocks have the deviation that is asked for, mean zero, and are the same for the same seed. */
static void test_synthetic_blocks(void **state) {
    (void)state;
    enum { OUT = 64, K = 2816 };
    static const float deviations[] = {0.02f, 0.0047f};
    for (size_t f = 0; f < COUNT(formats); f++) {
        if (!synthetic_blocks_can(formats[f])) continue;
        const weight_stream *stream = &weight_format_find(formats[f])->stream[0];
        size_t bytes = weight_stream_bytes(stream, OUT, K, 0);
        unsigned char *blocks = malloc(bytes), *again = malloc(bytes);
        for (size_t d = 0; d < COUNT(deviations); d++) {
            synthetic_blocks(formats[f], deviations[d], 7, bytes, blocks);
            synthetic_blocks(formats[f], deviations[d], 7, bytes, again);
            assert_memory_equal(blocks, again, bytes);
            weight w = weight_matrix(formats[f], blocks, OUT, K);
            float *values = dequantised(&w);
            double sum = 0, squares = 0, n = OUT * K, want = (double)deviations[d];
            for (int i = 0; i < OUT * K; i++) {
                sum += (double)values[i];
                squares += (double)values[i] * (double)values[i];
            }
            check_near(weight_format_name(formats[f]), "deviation", 0, sqrt(squares / n), want, 0.05 * want);
            check_near(weight_format_name(formats[f]), "mean", 0, sum / n, 0, 0.2 * want);
            free(values);
        }
        free(blocks);
        free(again);
    }
    assert_true(synthetic_blocks_can(WEIGHT_Q4_0) && synthetic_blocks_can(WEIGHT_Q5_0) &&
                synthetic_blocks_can(WEIGHT_Q8_0) && synthetic_blocks_can(WEIGHT_Q4_K) &&
                synthetic_blocks_can(WEIGHT_Q6_K));
}

static void test_probes(void **state) {
    (void)state;
    const int8_sets sets = sets_of_kernels();
    for (size_t i = 0; i < sets.n; i++) {
        double few = sets.set[i]->probe(1000);
        assert_true(few > 0 && sets.set[i]->probe(3000) == 3 * few);
    }
}

/* KAKEYA_QUANT_VECTORS names a folder of ggml-*.safetensors: products of ordinary weights. */
static void test_vectors(void **state) {
    (void)state;
    static const char *const keys[] = {"q4_0", "q4_1", "q5_0", "q5_1",   "q8_0",   "q2_k",  "q3_k",
                                       "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4"};
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
        float *factors = malloc((size_t)out * sizeof *factors);
        for (int i = 0; i < out; i++) factors[i] = 1;
        w.stream[1] = factors;
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
        free(factors);
        safetensors_close(file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),        cmocka_unit_test(test_packing),          cmocka_unit_test(test_products),
        cmocka_unit_test(test_extremes),       cmocka_unit_test(test_hostile_bytes),    cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_not_numbers),    cmocka_unit_test(test_synthetic_blocks), cmocka_unit_test(test_probes),
        cmocka_unit_test(test_vectors),        cmocka_unit_test(test_fine_products),    cmocka_unit_test(test_groups),
        cmocka_unit_test(test_hostile_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
