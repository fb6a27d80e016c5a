/* The own kernels of the MLX backend, their texts compiled as C++ on fibers: each against the plain computation in
 * double precision, and on bits for 1 to 17 rows. Every array ends where a page begins that nobody may touch. What this
 * cannot show is Metal's compiler, the hardware's own order of a simdgroup's sum, and speed. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/kv_format.h"
#include "backend/kv_q4.h"
#include "base/float16.h"
#include "kernel_operands.h"
#include "mlx/host_kernels.h"

enum { ROWS = MLX_KERNEL_ROWS, MOST_ARRAYS = 256 };

/* ------------------------------------------------------------------------------------------------ guarded memory */

static struct {
    void *begin;
    size_t bytes;
} arrays[MOST_ARRAYS];
static int n_arrays;

/* Zeroed, and its end is the end of what may be touched. */
static void *take(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    char *memory = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED && n_arrays < MOST_ARRAYS);
    assert_int_equal(mprotect(memory + whole, page, PROT_NONE), 0);
    arrays[n_arrays].begin = memory;
    arrays[n_arrays++].bytes = whole + page;
    return memory + whole - (bytes + 3) / 4 * 4;
}

static float *take_floats(size_t n) { return take(n * sizeof(float)); }

static int drop_all(void **state) {
    (void)state;
    while (n_arrays) {
        n_arrays--;
        munmap(arrays[n_arrays].begin, arrays[n_arrays].bytes);
    }
    return 0;
}

static uint32_t seed = 1;
static uint32_t any(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}
static float any_float(void) { return (float)(any() % 20001) / 10000.0f - 1.0f; }
static float *take_random(size_t n) {
    float *x = take_floats(n);
    for (size_t i = 0; i < n; i++) x[i] = any_float();
    return x;
}

static int bits_of(float x) {
    int bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static int32_t *take_params(const int *values, size_t n) {
    int32_t *params = take(16 * sizeof *params);
    for (size_t i = 0; i < n; i++) params[i] = values[i];
    return params;
}
#define PARAMS(...) take_params((const int[]){__VA_ARGS__}, sizeof(int[]){__VA_ARGS__} / sizeof(int))

static void check_close(const char *what, int row, int at, double expected, float actual, double scale) {
    if (fabs(expected - (double)actual) > 2e-5 * scale)
        fail_msg("%s, row %d, output %d: %.9g, expected %.9g", what, row, at, (double)actual, expected);
}

static void check_bits(const char *what, int rows, const float *expected, const float *actual, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&expected[i], &actual[i], sizeof *expected) != 0)
            fail_msg("%s of %d rows, value %zu: %.9g, alone %.9g", what, rows, i, (double)actual[i],
                     (double)expected[i]);
    }
}

/* ------------------------------------------------------------------------------------------------------ products */

enum { BF16 = 16, F32 = 32, MXFP4 = 104, MXFP8 = 108, NVFP4 = 204 };
static const int formats[] = {2, 3, 4, 5, 6, 8, BF16, F32, MXFP4, MXFP8, NVFP4};

typedef struct matrix {
    int format, n, k, group;
    unsigned char *codes, *scales;
    float *biases;
    double *values;
} matrix;

static double fp4(unsigned code) {
    static const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8u ? -values[code & 7u] : values[code & 7u];
}

static double fp8(unsigned code) {
    int e = (int)(code >> 3) & 15, m = (int)code & 7;
    double value = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m, -9);
    return code & 128u ? -value : value;
}

static matrix make_matrix(int format, int n, int k, int group) {
    int bits = format % 100;
    size_t count = (size_t)n * (size_t)k, groups = count / (size_t)group;
    matrix m = {.format = format, .n = n, .k = k, .group = group, .codes = take(count * (size_t)bits / 8)};
    m.values = malloc(count * sizeof *m.values);
    assert_non_null(m.values);
    bool affine = format <= 8, scaled = affine || format > 100;
    float *scales = affine ? take_floats(groups) : NULL;
    m.scales = affine ? (unsigned char *)scales : scaled ? take(groups) : take(32);
    m.biases = affine ? take_floats(groups) : take_floats(8);
    for (size_t g = 0; scaled && g < groups; g++) {
        if (affine) {
            scales[g] = 0.01f + 0.01f * fabsf(any_float());
            m.biases[g] = any_float();
        } else {
            m.scales[g] = (unsigned char)(format == NVFP4 ? 32 + any() % 32 : 122 + any() % 6);
        }
    }
    for (size_t i = 0; i < count; i++) {
        double *value = &m.values[i];
        if (format == F32) {
            float x = any_float();
            memcpy(m.codes + 4 * i, &x, sizeof x);
            *value = x;
        } else if (format == BF16) {
            uint16_t x = f32_to_bf16(any_float());
            memcpy(m.codes + 2 * i, &x, sizeof x);
            *value = bf16_to_f32(x);
        } else {
            unsigned code = any() & ((1u << bits) - 1);
            if (format == MXFP8 && (code & 127u) == 127u) code = 0;
            for (int b = 0; b < bits; b++) {
                size_t at = i * (size_t)bits + (size_t)b;
                m.codes[at / 8] |= (unsigned char)((code >> b & 1u) << (at % 8));
            }
            size_t g = i / (size_t)group;
            *value = affine            ? (double)code * (double)scales[g] + (double)m.biases[g]
                     : format == NVFP4 ? fp4(code) * fp8(m.scales[g])
                                       : ldexp(format == MXFP4 ? fp4(code) : fp8(code), m.scales[g] - 127);
        }
    }
    return m;
}

static void run_product(const matrix *m, int matrices, const float *x, int rows, bool rounds, float cap, float *out) {
    const matrix *second = &m[matrices > 1 ? 1 : 0], *third = &m[matrices > 2 ? 2 : 0];
    int made = mlx_kernel_rows_made(rows), outputs = mlx_kernel_outputs(made), tiles = 0, n[3] = {0};
    for (int i = 0; i < matrices; i++) {
        n[i] = m[i].n;
        tiles += (n[i] + outputs - 1) / outputs;
    }
    const mlx_kernel_call call = {.kernel = MLX_KERNEL_PRODUCT,
                                  .constant = {m->format, made, outputs},
                                  .input = {x, m->codes, m->scales, m->biases, second->codes, second->scales,
                                            second->biases, third->codes, third->scales, third->biases,
                                            PARAMS(m->k, m->group, rows, rounds, bits_of(cap), n[0], n[1], n[2])},
                                  .output = {out},
                                  .groups = {(tiles + 1) / 2, 1, 1},
                                  .simdgroups = 2};
    host_kernels_run(&call);
}

static void products(void **state) {
    (void)state;
    enum { K = 704, N = 30 };
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        char name[32];
        snprintf(name, sizeof name, "format %d", formats[f]);
        matrix m = make_matrix(formats[f], N, K, formats[f] == NVFP4 ? 16 : 32);
        float *x = take_random((size_t)ROWS * K), *alone = take_floats((size_t)ROWS * N);
        for (int r = 0; r < ROWS; r++) {
            run_product(&m, 1, x + r * K, 1, false, 0, alone + r * N);
            for (int o = 0; o < N; o++) {
                double sum = 0, scale = 0;
                for (int k = 0; k < K; k++) {
                    sum += m.values[o * K + k] * (double)x[r * K + k];
                    scale += fabs(m.values[o * K + k] * (double)x[r * K + k]);
                }
                check_close(name, r, o, sum, alone[r * N + o], scale);
            }
        }
        for (int rows = 2; rows <= ROWS; rows++) { /* also rows that are not the first */
            int first = ROWS - rows;
            float *out = take_floats((size_t)rows * N);
            run_product(&m, 1, x + first * K, rows, false, 0, out);
            check_bits(name, rows, alone + first * N, out, (size_t)rows * N);
        }
        free(m.values);
        drop_all(NULL);
    }
}

/* Three matrices in one launch, inputs rounded to bf16, a cap: the same numbers as one by one. */
static void products_together(void **state) {
    (void)state;
    enum { K = 256, ALL = 13 + 6 + 9, R = 5 };
    matrix m[3] = {make_matrix(4, 13, K, 64), make_matrix(4, 6, K, 64), make_matrix(4, 9, K, 64)};
    float *x = take_random((size_t)R * K), *out = take_floats((size_t)R * ALL), *one = take_floats((size_t)R * 13);
    float *near = take_floats((size_t)R * K);
    for (int i = 0; i < R * K; i++) near[i] = bf16_to_f32(f32_to_bf16(x[i]));
    run_product(m, 3, x, R, true, 30, out);
    for (int i = 0, first = 0; i < 3; first += m[i++].n) {
        run_product(&m[i], 1, near, R, false, 30, one);
        for (int r = 0; r < R; r++)
            check_bits("a part of a launch", R, one + r * m[i].n, out + r * ALL + first, (size_t)m[i].n);
        free(m[i].values);
    }
}

static void experts(void **state) {
    (void)state;
    enum { K = 64, N = 10, M = 7, E = 6, CHOSEN = 3, PAIRS = ROWS * CHOSEN, ALL = N + M };
    matrix gate = make_matrix(4, E * N, K, 32), up = make_matrix(4, E * M, K, 32);
    float *x = take_random((size_t)ROWS * K), *alone = take_floats((size_t)PAIRS * ALL);
    int32_t *order = take(PAIRS * sizeof *order);
    for (int r = 0; r < ROWS; r++) {
        for (int j = 0; j < CHOSEN; j++) order[r * CHOSEN + j] = (int32_t)((r * 5 + j * (1 + r % 2)) % E);
    }
    for (int rows = 1; rows <= ROWS; rows++) {
        for (int first = 0; first < (rows > 1 ? 1 : ROWS); first++) {
            int made = mlx_kernel_rows_made(rows), outputs = mlx_kernel_outputs(made), pairs = rows * CHOSEN;
            float *out = rows > 1 ? take_floats((size_t)pairs * ALL) : alone + first * CHOSEN * ALL;
            int tiles = (N + outputs - 1) / outputs + (M + outputs - 1) / outputs;
            const mlx_kernel_call call = {.kernel = MLX_KERNEL_EXPERTS,
                                          .constant = {4, made, outputs},
                                          .input = {x + first * K, gate.codes, gate.scales, gate.biases, up.codes,
                                                    up.scales, up.biases, order + first * CHOSEN,
                                                    PARAMS(K, 32, pairs, 0, CHOSEN, N, M, 0)},
                                          .output = {out},
                                          .groups = {(tiles + 1) / 2, pairs, 1},
                                          .simdgroups = 2};
            host_kernels_run(&call);
            if (rows > 1) check_bits("experts", rows, alone, out, (size_t)pairs * ALL);
        }
    }
    for (int p = 0; p < PAIRS; p++) {
        for (int o = 0; o < ALL; o++) {
            const double *w = o < N ? gate.values + (order[p] * N + o) * K : up.values + (order[p] * M + o - N) * K;
            double sum = 0;
            for (int k = 0; k < K; k++) sum += w[k] * (double)x[p / CHOSEN * K + k];
            check_close("experts", p, o, sum, alone[p * ALL + o], K);
        }
    }
    free(gate.values);
    free(up.values);
}

/* ---------------------------------------------------------------------------------------------------------- rows */

static void norms(void **state) {
    (void)state;
    enum { N = 200, R = 3 };
    const float eps = 1e-6f, factor = 0.75f;
    float *x = take_random(R * N), *w = take_random(N), *residual = take_random(R * N), *out = take_floats(R * N);
    const mlx_kernel_call call = {.kernel = MLX_KERNEL_NORM,
                                  .input = {x, w, residual, PARAMS(N, bits_of(eps), bits_of(factor), 1, 1)},
                                  .output = {out},
                                  .groups = {R, 1, 1},
                                  .simdgroups = 8};
    host_kernels_run(&call);
    for (int r = 0; r < R; r++) {
        double squares = 0;
        for (int i = 0; i < N; i++) squares += (double)x[r * N + i] * (double)x[r * N + i];
        for (int i = 0; i < N; i++) {
            double value = (double)x[r * N + i] / sqrt(squares / N + (double)eps) * (double)w[i];
            check_close("norm", r, i, ((double)residual[r * N + i] + value) * (double)factor, out[r * N + i], 4);
        }
    }
}

static void heads(void **state) {
    (void)state;
    enum { H = 3, D = 80, PAIRS = 16, R = 2, STRIDE = H * D + 5, FIRST = 5, POSITIONS = 9 };
    float *x = take_random(R * STRIDE), *w = take_random(D), *c = take_random(POSITIONS * PAIRS),
          *s = take_random(POSITIONS * PAIRS), *out = take_floats(R * H * D);
    int32_t *position = take(8 * sizeof *position);
    position[0] = 8;
    position[1] = 3;
    const mlx_kernel_call call = {
        .kernel = MLX_KERNEL_HEADS,
        .input = {x, w, c, s, position, PARAMS(H, D, PAIRS, bits_of(1e-6f), 1, STRIDE, FIRST)},
        .output = {out},
        .groups = {H, R, 1},
        .simdgroups = 1};
    host_kernels_run(&call);
    for (int r = 0; r < R; r++) {
        for (int h = 0; h < H; h++) {
            const float *from = x + r * STRIDE + FIRST + h * D, *to = out + (r * H + h) * D;
            double squares = 0, n[D];
            for (int i = 0; i < D; i++) squares += (double)from[i] * (double)from[i];
            for (int i = 0; i < D; i++) n[i] = (double)from[i] / sqrt(squares / D + 1e-6) * (double)w[i];
            for (int i = 0; i < D / 2; i++) {
                double a = n[i], b = n[i + D / 2], cosine = 1, sine = 0;
                if (i < PAIRS) {
                    cosine = (double)c[position[r] * PAIRS + i];
                    sine = (double)s[position[r] * PAIRS + i];
                }
                check_close("head", r, i, a * cosine - b * sine, to[i], 4);
                check_close("head", r, i + D / 2, b * cosine + a * sine, to[i + D / 2], 4);
            }
        }
    }
}

static void gates_and_sums(void **state) {
    (void)state;
    enum { N = 70, R = 2, CHOSEN = 3 };
    float *x = take_random(R * 2 * N), *out = take_floats(R * N), *y = take_random(R * CHOSEN * N),
          *w = take_random(R * CHOSEN + 2);
    mlx_kernel_call call = {.kernel = MLX_KERNEL_GATED,
                            .input = {x, PARAMS(N, R)},
                            .output = {out},
                            .groups = {(N + 31) / 32, R, 1},
                            .simdgroups = 1};
    host_kernels_run(&call);
    for (int r = 0; r < R; r++) {
        for (int i = 0; i < N; i++) {
            double g = (double)x[r * 2 * N + i], u = (double)x[r * 2 * N + N + i];
            double expected = 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) * u;
            check_close("gate", r, i, expected, out[r * N + i], 1);
        }
    }
    call = (mlx_kernel_call){.kernel = MLX_KERNEL_EXPERTS_SUM,
                             .input = {y, w, PARAMS(N, CHOSEN)},
                             .output = {out},
                             .groups = {(N + 31) / 32, R, 1},
                             .simdgroups = 1};
    host_kernels_run(&call);
    for (int r = 0; r < R; r++) {
        for (int i = 0; i < N; i++) {
            double sum = 0;
            for (int j = 0; j < CHOSEN; j++) sum += (double)w[r * CHOSEN + j] * (double)y[(r * CHOSEN + j) * N + i];
            check_close("sum of experts", r, i, sum, out[r * N + i], 3);
        }
    }
}

static void choices(void **state) {
    (void)state;
    enum { E = 70, CHOSEN = 4, R = 3, V = 1000 };
    float *logits = take_random(R * E), *factor = take_random(E), *weights = take_floats(R * CHOSEN);
    int32_t *order = take(R * CHOSEN * sizeof *order), *token = take(8 * sizeof *token);
    logits[3] = logits[40] = logits[69] = 2; /* of equals the lowest */
    logits[E + 7] = NAN;                     /* never one of the largest */
    mlx_kernel_call call = {.kernel = MLX_KERNEL_ROUTER,
                            .input = {logits, factor, PARAMS(E, CHOSEN)},
                            .output = {order, weights},
                            .groups = {R, 1, 1},
                            .simdgroups = 1};
    host_kernels_run(&call);
    assert_int_equal(order[0], 3);
    assert_int_equal(order[1], 40);
    assert_int_equal(order[2], 69);
    for (int r = 0; r < R; r++) {
        double all = 0;
        bool taken[E] = {false};
        for (int j = 0; j < CHOSEN; j++) {
            int best = -1;
            for (int e = 0; e < E; e++) {
                if (!taken[e] && !isnan(logits[r * E + e]) && (best < 0 || logits[r * E + e] > logits[r * E + best]))
                    best = e;
            }
            taken[best] = true;
            assert_int_equal(order[r * CHOSEN + j], best);
            all += exp((double)logits[r * E + best]);
        }
        for (int j = 0; j < CHOSEN; j++) {
            int e = order[r * CHOSEN + j];
            check_close("router", r, j, exp((double)logits[r * E + e]) / all * (double)factor[e],
                        weights[r * CHOSEN + j], 1);
        }
    }
    float *z = take_random(R * V), *bias = take_floats(V);
    z[500] = z[900] = z[30] = 5;
    bias[30] = -INFINITY;
    z[2 * V + 999] = NAN;
    for (int v = 0; v < V; v++) z[V + v] = -INFINITY;
    call = (mlx_kernel_call){.kernel = MLX_KERNEL_CHOICE,
                             .input = {z, bias, PARAMS(V, 1)},
                             .output = {token},
                             .groups = {R, 1, 1},
                             .simdgroups = 8};
    host_kernels_run(&call);
    assert_int_equal(token[0], 500);
    assert_int_equal(token[1], 0);
    assert_int_equal(token[2], -1);
}

/* ----------------------------------------------------------------------------------------------------- attention */

typedef struct keys {
    int dim, heads, kv_heads, slots, format, pairs, head_bytes;
    bool of_v;
    unsigned char *k, *v;
    float *fresh_k, *fresh_v, *norm, *cosine, *sine, *q;
} keys;

static double stored_at(const keys *s, bool is_k, const int32_t *span, int slot, int head, int i) {
    int from = span[s->slots + slot];
    if (from >= s->slots) {
        const float *fresh = is_k ? s->fresh_k : s->fresh_v;
        return (double)fresh[((from - s->slots) * s->kv_heads + head) * s->dim + i];
    }
    const unsigned char *row = (is_k ? s->k : s->v) + (from * s->kv_heads + head) * s->head_bytes;
    if (s->format == 0) return (double)((const float *)(const void *)row)[i];
    if (s->format == 1) return (double)bf16_to_f32(((const uint16_t *)(const void *)row)[i]);
    if (s->format == 3) {
        float all[512];
        kv_q4_load(row, s->dim, all);
        return (double)all[i];
    }
    return (double)(*(const float *)(const void *)row * (float)(int8_t)row[KV_Q8_CODES_AT + i]);
}

static double key_at(const keys *s, const int32_t *span, int slot, int head, int i) {
    int half = s->dim / 2, pair = i % half, other = i < half ? i + half : i - half;
    if (!s->of_v) return stored_at(s, true, span, slot, head, i);
    double key = stored_at(s, false, span, slot, head, i) * (double)s->norm[i],
           partner = stored_at(s, false, span, slot, head, other) * (double)s->norm[other];
    if (pair >= s->pairs) return key;
    double c = (double)s->cosine[span[slot] * s->pairs + pair], n = (double)s->sine[span[slot] * s->pairs + pair];
    return i < half ? key * c - partner * n : key * c + partner * n;
}

/* Rows [first, first + rows) of queries, whose own keys are among the fresh ones. */
static void run_attention(const keys *s, const int32_t *bounds, const int32_t *slots, int first, int rows, float *out) {
    enum { PART = 256 };
    int parts = (s->slots + PART - 1) / PART, group = s->heads / s->kv_heads, queries = group < 4 ? group : 4;
    int per_lane = s->dim > 256 ? 16 : s->dim > 128 ? 8 : s->dim > 64 ? 4 : s->dim > 32 ? 2 : 1;
    int32_t *span = take((size_t)(2 * s->slots + 4 * rows) * sizeof *span);
    memcpy(span, slots, (size_t)s->slots * 2 * sizeof *span);
    memcpy(span + 2 * s->slots, bounds + 4 * first, (size_t)(4 * rows) * sizeof *span);
    float *sums = take_floats((size_t)(rows * s->heads * parts * (s->dim + 2)));
    const mlx_kernel_call call = {
        .kernel = MLX_KERNEL_ATTENTION,
        .constant = {s->format, per_lane, queries, s->of_v},
        .input = {s->q + first * s->heads * s->dim, s->k, s->v, s->fresh_k, s->fresh_v, s->norm, s->cosine, s->sine,
                  span,
                  PARAMS(s->heads, s->kv_heads, s->dim, s->slots, rows, parts, s->pairs, s->head_bytes, s->slots)},
        .output = {sums},
        .groups = {s->kv_heads * (group / queries), parts, 1},
        .simdgroups = rows};
    host_kernels_run(&call);
    const mlx_kernel_call merge = {.kernel = MLX_KERNEL_MERGE,
                                   .input = {sums, sums, PARAMS(s->heads, s->dim, parts, 0)},
                                   .output = {out},
                                   .groups = {s->heads, rows, 1},
                                   .simdgroups = 1};
    host_kernels_run(&merge);
}

static void check_attention(int format, int dim, int heads, int kv_heads, bool of_v, bool infinite) {
    enum { SLOTS = 300, PAIRS = 4 };
    keys s = {.dim = dim, .heads = heads, .kv_heads = kv_heads, .slots = SLOTS, .format = format, .pairs = PAIRS};
    s.of_v = of_v;
    s.head_bytes = (int)kv_format_row_bytes((kv_format)format, 1, (size_t)dim);
    size_t bytes = (size_t)(SLOTS * kv_heads * s.head_bytes), values = (size_t)(kv_heads * dim);
    s.k = take(bytes);
    s.v = take(bytes);
    for (int i = 0; i < SLOTS * kv_heads; i++) {
        for (int is_k = 0; is_k < 2; is_k++) {
            unsigned char *row = (is_k ? s.k : s.v) + i * s.head_bytes;
            float x[512];
            for (int j = 0; j < dim; j++) x[j] = any_float();
            if (format == 0) memcpy(row, x, (size_t)dim * sizeof *x);
            for (int j = 0; format == 1 && j < dim; j++) ((uint16_t *)(void *)row)[j] = f32_to_bf16(x[j]);
            if (format == 2) kv_q8_store(x, dim, row);
            if (format == 3) kv_q4_store(x, dim, row);
        }
    }
    s.fresh_k = take_random(ROWS * values);
    s.fresh_v = take_random(ROWS * values);
    s.norm = take_random((size_t)dim);
    s.cosine = take_random(1200 * PAIRS);
    s.sine = take_random(1200 * PAIRS);
    s.q = take_random((size_t)(ROWS * heads * dim));
    int32_t *slots = take(2 * SLOTS * sizeof *slots), *bounds = take(4 * ROWS * sizeof *bounds);
    enum { LENGTH = 1000 }; /* a ring of the last positions behind a sink of 4, some slots are empty */
    for (int i = 0; i < SLOTS; i++) {
        slots[i] = i < 4 ? i : i < 10 ? -1 : LENGTH - SLOTS + i;
        slots[SLOTS + i] = i >= SLOTS - ROWS ? SLOTS + i - (SLOTS - ROWS) : i;
    }
    for (int r = 0; r < ROWS; r++) {
        const int32_t row[4] = {0, 4, 720 + r, LENGTH - ROWS + r + 1};
        memcpy(bounds + 4 * r, row, sizeof row);
    }
    if (infinite) /* what the last row alone sees reaches no other */
        for (size_t i = 0; i < values; i++)
            s.fresh_k[(ROWS - 1) * values + i] = s.fresh_v[(ROWS - 1) * values + i] = INFINITY;
    size_t n = (size_t)(heads * dim);
    float *alone = take_floats(ROWS * n);
    char name[64];
    snprintf(name, sizeof name, "attention, format %d, %d values%s", format, dim, of_v ? ", K = V" : "");
    for (int r = 0; r < ROWS; r++) run_attention(&s, bounds, slots, r, 1, alone + (size_t)r * n);
    for (int rows = 2; rows <= ROWS; rows += rows < 5 ? 1 : 4) {
        float *out = take_floats((size_t)rows * n);
        int first = ROWS - rows;
        run_attention(&s, bounds, slots, first, rows, out);
        check_bits(name, rows, alone + (size_t)first * n, out, (size_t)rows * n - (infinite ? n : 0));
    }
    for (int r = 0; r < ROWS - infinite; r += 8) {
        for (int h = 0; h < heads; h++) {
            double all = 0, sum[512] = {0};
            int kv = h / (heads / kv_heads);
            for (int i = 0; i < SLOTS; i++) {
                int p = slots[i];
                const int32_t *b = bounds + 4 * r;
                if (p < 0 || !((p >= b[0] && p < b[1]) || (p >= b[2] && p < b[3]))) continue;
                double score = 0;
                for (int j = 0; j < dim; j++)
                    score += (double)s.q[(size_t)r * n + (size_t)(h * dim + j)] * key_at(&s, slots, i, kv, j);
                double e = exp(score);
                all += e;
                for (int j = 0; j < dim; j++) sum[j] += e * stored_at(&s, false, slots, i, kv, j);
            }
            for (int j = 0; j < dim; j++)
                check_close(name, r, h * dim + j, sum[j] / all, alone[(size_t)r * n + (size_t)(h * dim + j)], 2);
        }
    }
    drop_all(NULL);
}

static void attention(void **state) {
    (void)state;
    for (int format = 0; format < KV_FORMAT_COUNT; format++) {
        check_attention(format, 64, 4, 2, false, false);
        check_attention(format, 16, 4, 1, true, false);
    }
    check_attention(3, 512, 1, 1, true, false); /* a lane has a group of its own */
    check_attention(1, 256, 2, 1, false, false);
    check_attention(0, 32, 2, 2, false, true);
}

/* Vectors in 4 bits: the bytes of the format's own code, and the values that it reads from them. */
static void vectors_in_4_bits(void **state) {
    (void)state;
    enum { VECTORS = 40 };
    static const int sizes[] = {16, 48, 64, 96, 256, 512};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        int n = sizes[k], head_bytes = (int)kv_q4_bytes(n);
        float *x = take_floats((size_t)(VECTORS * n)), *out = take_floats((size_t)(VECTORS * n)), expected_values[512];
        unsigned char *bytes = take((size_t)(VECTORS * head_bytes)), expected[1024];
        memset(bytes, 0xaa, (size_t)(VECTORS * head_bytes));
        for (int v = 0; v < VECTORS; v++) {
            static const float widths[] = {1, 1e-3f, 1e20f, 1e-29f, 3e-31f, 0x1p-100f, 3e38f, 1};
            for (int i = 0; i < n; i++) {
                float *to = &x[v * n + i], r = any_float();
                *to = r * widths[v % 8];
                if (v % 5 == 1) *to *= r * r * r * r;    /* few large values */
                if (v % 5 == 2 && i % 3) *to = 0;        /* groups that are zero */
                if (v % 5 == 3) *to = (float)(int)(*to); /* equals, 0 and -0 */
            }
            if (v == 7) x[v * n + n - 1] = INFINITY;
            if (v == 15) x[v * n] = NAN;
            if (v == 23) memset(x + v * n, 0, (size_t)n * sizeof *x);
        }
        const mlx_kernel_call call = {.kernel = MLX_KERNEL_Q4,
                                      .input = {x, PARAMS(n, head_bytes)},
                                      .output = {bytes, out},
                                      .groups = {VECTORS, 1, 1},
                                      .simdgroups = 1};
        host_kernels_run(&call);
        for (int v = 0; v < VECTORS; v++) {
            kv_q4_store(x + v * n, n, expected);
            kv_q4_load(expected, n, expected_values);
            for (int i = 0; i < head_bytes; i++) {
                if (bytes[v * head_bytes + i] != expected[i])
                    fail_msg("vector %d of %d values, byte %d: %d, expected %d", v, n, i, bytes[v * head_bytes + i],
                             expected[i]);
            }
            if (v != 7 && v != 15) check_bits("values in 4 bits", v, expected_values, out + v * n, (size_t)n);
            if (v == 7 || v == 15) assert_true(isnan(out[v * n]) && isnan(out[v * n + n - 1]));
        }
        drop_all(NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(products, drop_all),
        cmocka_unit_test_teardown(products_together, drop_all),
        cmocka_unit_test_teardown(experts, drop_all),
        cmocka_unit_test_teardown(norms, drop_all),
        cmocka_unit_test_teardown(heads, drop_all),
        cmocka_unit_test_teardown(gates_and_sums, drop_all),
        cmocka_unit_test_teardown(choices, drop_all),
        cmocka_unit_test_teardown(attention, drop_all),
        cmocka_unit_test_teardown(vectors_in_4_bits, drop_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
