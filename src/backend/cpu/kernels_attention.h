/* Attention over one block of keys for the vector tables, and the tables themselves.
 *
 * Scores are dot products as in kernels_matmul.h: lanes along k_dim, one accumulator per query and key from the first
 * step to the last, lanes summed by halving. The value product runs its lanes along v_dim and takes the keys in order.
 * So a row's result does not know of the other rows. Bounds: few rows, the bytes of K and V; many, R / (R + 1) of the
 * multiply-add rate with R = SCORE_ROWS. */
#ifndef KAKEYA_BACKEND_CPU_KERNELS_ATTENTION_H
#define KAKEYA_BACKEND_CPU_KERNELS_ATTENTION_H

#include "backend/cpu/kernels_attend_all.h"
#include "backend/cpu/kernels_dequantised.h"
#include "backend/cpu/kernels_gemm.h"
#include "backend/cpu/kernels_kv_q4.h"
#include "backend/cpu/kernels_vector.h"

enum {
    ATTEND_ROWS = SIMD_LANES / 2, /* rows that share one reading of V */
    ATTEND_VECTORS = 2,           /* accumulators per row: ATTEND_ROWS * ATTEND_VECTORS fill half the registers */
    SCORE_ROWS = 4,               /* rows that share one expansion of K */
    BLOCK_VECTORS = ATTENTION_BLOCK / SIMD_LANES,
};

/* --- scores ----------------------------------------------------------------------------------------------------- */

typedef struct score_call {
    const unsigned char *q; /* [R] packed rows */
    size_t q_row_bytes;
    const unsigned char *k; /* [ATTENTION_BLOCK] rows */
    size_t k_row_bytes;
    int k_dim;
    float *scores; /* [R][ATTENTION_BLOCK] */
} score_call;

typedef void (*score_function)(const score_call *call);

/* K keys at a time; K divides ATTENTION_BLOCK. */
SIMD_INLINE void score(product kind, const int R, const int K, const score_call *call) {
    const int whole_steps = call->k_dim / STEP, tail = call->k_dim % STEP;
    for (int key = 0; key < ATTENTION_BLOCK; key += K) {
        const unsigned char *q = call->q, *k = call->k + (size_t)key * call->k_row_bytes;
        simd_f32 sums[MAX_TILE_SUMS];
        UNROLL for (int i = 0; i < R * K; i++) sums[i] = simd_zero();
        for (int s = 0; s < whole_steps; s++, q += x_step_bytes(kind), k += w_step_bytes(kind)) {
            multiply_step(kind, R, K, q, call->q_row_bytes, k, call->k_row_bytes, STEP, sums);
        }
        if (tail) multiply_step(kind, R, K, q, call->q_row_bytes, k, call->k_row_bytes, tail, sums);
        float results[ROOM(MAX_TILE_SUMS)];
        add_lane_sums(sums, R * K, true, results);
        UNROLL for (int r = 0; r < R; r++) {
            memcpy(call->scores + r * ATTENTION_BLOCK + key, results + r * K, (size_t)K * sizeof *results);
        }
    }
}

#define DEFINE_SCORE(kind, R, K)                                                                                       \
    static void score_##kind##_##R(const score_call *call) { score(PRODUCT_##kind, R, K, call); }
#define SCORE_ENTRY(kind, R, K) [KV_FORMAT_##kind][R] = score_##kind##_##R,
#if defined(__AVX512F__)
#define SCORE_TILES(X, kind) X(kind, 1, 8) X(kind, 2, 8) X(kind, 3, 4) X(kind, 4, 4)
#elif defined(SIMD_LOADS_OPERANDS)
#define SCORE_TILES(X, kind) X(kind, 1, 8) X(kind, 2, 4) X(kind, 3, 2) X(kind, 4, 2)
#else
#define SCORE_TILES(X, kind) X(kind, 1, 8) X(kind, 2, 4) X(kind, 3, 4) X(kind, 4, 2)
#endif
SCORE_TILES(DEFINE_SCORE, F32)
SCORE_TILES(DEFINE_SCORE, BF16)
SCORE_TILES(DEFINE_SCORE, Q8)
static const score_function score_functions[KV_FORMAT_COUNT][SCORE_ROWS + 1] = {
    SCORE_TILES(SCORE_ENTRY, F32) SCORE_TILES(SCORE_ENTRY, BF16) SCORE_TILES(SCORE_ENTRY, Q8)};

/* --- values ----------------------------------------------------------------------------------------------------- */

typedef struct value_call {
    const unsigned char *v;
    size_t v_row_bytes;
    int v_dim;
    const float *kept;    /* [R] factor of the old output */
    const float *weights; /* [R][ATTENTION_BLOCK] */
    float *o;
    size_t ldo;
} value_call;

typedef void (*value_function)(const value_call *call);

SIMD_INLINE void add_values(kv_format format, const int R, const value_call *call) {
    const int width = ATTEND_VECTORS * SIMD_LANES;
    int c = 0;
    for (; c + width <= call->v_dim; c += width) {
        simd_f32 sums[ATTEND_ROWS][ATTEND_VECTORS];
        UNROLL for (int r = 0; r < R; r++) {
            UNROLL for (int i = 0; i < ATTEND_VECTORS; i++) {
                sums[r][i] =
                    simd_mul(simd_load(call->o + (size_t)r * call->ldo + c + i * SIMD_LANES), simd_set1(call->kept[r]));
            }
        }
        const unsigned char *v = call->v;
        for (int j = 0; j < ATTENTION_BLOCK; j++, v += call->v_row_bytes) {
            simd_f32 values[ATTEND_VECTORS];
            UNROLL for (int i = 0; i < ATTEND_VECTORS; i++) values[i] =
                load_kv(format, v + (size_t)(c + i * SIMD_LANES) * kv_value_bytes(format));
            UNROLL for (int r = 0; r < R; r++) {
                simd_f32 factor = simd_set1(call->weights[r * ATTENTION_BLOCK + j]);
                UNROLL for (int i = 0; i < ATTEND_VECTORS; i++) sums[r][i] = simd_fma(factor, values[i], sums[r][i]);
            }
        }
        UNROLL for (int r = 0; r < R; r++) {
            UNROLL for (int i = 0; i < ATTEND_VECTORS; i++) {
                simd_store(call->o + (size_t)r * call->ldo + c + i * SIMD_LANES, sums[r][i]);
            }
        }
    }
    for (; c < call->v_dim; c += SIMD_LANES) {
        int n = call->v_dim - c < SIMD_LANES ? call->v_dim - c : SIMD_LANES;
        for (int r = 0; r < R; r++) {
            float *out = call->o + (size_t)r * call->ldo + c;
            simd_f32 sum = simd_mul(simd_load_first(out, n), simd_set1(call->kept[r]));
            for (int j = 0; j < ATTENTION_BLOCK; j++) {
                simd_f32 values = load_kv_first(
                    format, call->v + (size_t)j * call->v_row_bytes + (size_t)c * kv_value_bytes(format), n);
                sum = simd_fma(simd_set1(call->weights[r * ATTENTION_BLOCK + j]), values, sum);
            }
            simd_store_first(out, n, sum);
        }
    }
}

#define DEFINE_ADD_VALUES(kind, R)                                                                                     \
    static void add_values_##kind##_##R(const value_call *call) { add_values(KV_FORMAT_##kind, R, call); }
#define ADD_VALUES_ENTRY(kind, R) [KV_FORMAT_##kind][R] = add_values_##kind##_##R,
#if defined(__AVX512F__)
#define VALUE_TILES(X, kind) X(kind, 1) X(kind, 2) X(kind, 3) X(kind, 4) X(kind, 5) X(kind, 6) X(kind, 7) X(kind, 8)
#else
#define VALUE_TILES(X, kind) X(kind, 1) X(kind, 2) X(kind, 3) X(kind, 4)
#endif
VALUE_TILES(DEFINE_ADD_VALUES, F32)
VALUE_TILES(DEFINE_ADD_VALUES, BF16)
VALUE_TILES(DEFINE_ADD_VALUES, Q8)
static const value_function value_functions[KV_FORMAT_COUNT][ATTEND_ROWS + 1] = {
    VALUE_TILES(ADD_VALUES_ENTRY, F32) VALUE_TILES(ADD_VALUES_ENTRY, BF16) VALUE_TILES(ADD_VALUES_ENTRY, Q8)};

/* --- the block -------------------------------------------------------------------------------------------------- */

/* Turns the scores of `rows` rows into value weights, updates m and l, and leaves the factors of the old outputs in
 * kept. */
static void soft_max_step(int rows, float (*scores)[ATTENTION_BLOCK], const int *lo, const int *hi,
                          const float *v_scale, float *m, float *l, float *kept) {
    simd_f32 sums[ATTEND_ROWS];
    for (int r = 0; r < ATTEND_ROWS; r++) sums[r] = simd_zero();
    for (int r = 0; r < rows; r++) {
        simd_f32 s[BLOCK_VECTORS], top = simd_set1(m[r]);
        UNROLL for (int i = 0; i < BLOCK_VECTORS; i++) {
            s[i] = simd_load(scores[r] + i * SIMD_LANES);
            if (lo[r] > 0 || hi[r] < ATTENTION_BLOCK) {
                int first = i * SIMD_LANES;
                int begin = lo[r] < first ? 0 : lo[r] - first < SIMD_LANES ? lo[r] - first : SIMD_LANES;
                int end = hi[r] < first ? 0 : hi[r] - first < SIMD_LANES ? hi[r] - first : SIMD_LANES;
                s[i] = simd_select_range(s[i], simd_set1(-INFINITY), begin, end);
            }
            top = simd_max(top, s[i]);
        }
        float new_m = simd_max_lane(top);
        top = simd_set1(new_m);
        UNROLL for (int i = 0; i < BLOCK_VECTORS; i++) {
            simd_f32 p = simd_exp(simd_sub(s[i], top));
            sums[r] = simd_add(sums[r], p);
            if (v_scale) p = simd_mul(p, simd_load(v_scale + i * SIMD_LANES));
            simd_store(scores[r] + i * SIMD_LANES, p);
        }
        kept[r] = m[r] - new_m;
        m[r] = new_m;
    }
    simd_f32 factor = simd_exp(simd_load_first(kept, rows));
    simd_store_first(kept, rows, factor);
    simd_store_first(l, rows, simd_fma(simd_load_first(l, rows), factor, simd_sum_half(sums)));
}

/* The scales of a block's stored rows, times `factors` where they are given. */
static void row_scales(const void *rows, size_t row_bytes, const float *factors, float *scales) {
    for (size_t j = 0; j < ATTENTION_BLOCK; j++) {
        memcpy(&scales[j], (const char *)rows + j * row_bytes, sizeof *scales);
        if (factors) scales[j] *= factors[j];
    }
}

static void scale_scores(int rows, float (*scores)[ATTENTION_BLOCK], const float *scales) {
    for (int r = 0; r < rows; r++) {
        UNROLL for (int i = 0; i < ATTENTION_BLOCK; i += SIMD_LANES) {
            simd_store(scores[r] + i, simd_mul(simd_load(scores[r] + i), simd_load(scales + i)));
        }
    }
}

/* Heads lie side by side, so a row is a short stretch of memory that the hardware does not see coming. */
#define PREFETCH_ROWS(prefetch, first, row_bytes, used_bytes)                                                          \
    for (size_t j_ = 0; j_ < ATTENTION_BLOCK; j_++) {                                                                  \
        for (size_t at_ = 0; at_ < (used_bytes); at_ += 64) {                                                          \
            prefetch((const char *)(first) + j_ * (row_bytes) + at_);                                                  \
        }                                                                                                              \
    }

static void attend_block(int rows, const int *lo, const int *hi, const void *q_packed, int k_dim, kv_format k_format,
                         const void *k, size_t k_row_bytes, int v_dim, kv_format v_format, const void *v,
                         size_t v_row_bytes, const float *v_scale, float *m, float *l, float *o, size_t ldo) {
    const size_t q_row_bytes = pack_row_bytes(PACK_F32, k_dim);
    const size_t k_at = kv_values_at(k_format), v_at = kv_values_at(v_format);
    /* The values are needed after the scores, the next block's keys (most often) after this call. */
    PREFETCH_ROWS(PREFETCH_L1, v, v_row_bytes, v_at + (size_t)v_dim * kv_value_bytes(v_format))
    PREFETCH_ROWS(PREFETCH_L2, (const char *)k + ATTENTION_BLOCK * k_row_bytes, k_row_bytes,
                  k_at + (size_t)k_dim * kv_value_bytes(k_format))
    float k_scales[ATTENTION_BLOCK], v_scales[ATTENTION_BLOCK];
    if (k_at) row_scales(k, k_row_bytes, NULL, k_scales);
    if (v_at) row_scales(v, v_row_bytes, v_scale, v_scales);
    for (int r = 0; r < rows;) {
        int n = 0; /* rows in a run without empty ranges */
        while (n < ATTEND_ROWS && r + n < rows && lo[r + n] < hi[r + n]) n++;
        if (n == 0) {
            r++;
            continue;
        }
        float weights[ATTEND_ROWS][ATTENTION_BLOCK], kept[ATTEND_ROWS];
        for (int i = 0; i < n; i += SCORE_ROWS) {
            score_call call = {
                .q = (const unsigned char *)q_packed + (size_t)(r + i) * q_row_bytes,
                .q_row_bytes = q_row_bytes,
                .k = (const unsigned char *)k + k_at,
                .k_row_bytes = k_row_bytes,
                .k_dim = k_dim,
                .scores = weights[i],
            };
            score_functions[k_format][n - i < SCORE_ROWS ? n - i : SCORE_ROWS](&call);
        }
        if (k_at) scale_scores(n, weights, k_scales);
        soft_max_step(n, weights, lo + r, hi + r, v_at ? v_scales : v_scale, m + r, l + r, kept);
        value_call call = {
            .v = (const unsigned char *)v + v_at,
            .v_row_bytes = v_row_bytes,
            .v_dim = v_dim,
            .kept = kept,
            .weights = weights[0],
            .o = o + (size_t)r * ldo,
            .ldo = ldo,
        };
        value_functions[v_format][n](&call);
        r += n;
    }
}

/* --- table ------------------------------------------------------------------------------------------------------ */

/* How a CPU multiplies bf16 weights with rounded activations is the one thing in which tables of equal vectors differ:
 * a file that has several tables defines these anew for each. */
#define ROUNDED_BF16                                                                                                   \
    { PACKING_SPLIT_ROUNDED, multiply_BF16 }
#define ROUNDED_BF16_PACKING [PACKING_SPLIT_ROUNDED] = PACKING_ENTRY(split_rounded)
#define ROUNDED_BF16_PROBE   probe_flops

#define VECTOR_TABLE(table_name)                                                                                       \
    {                                                                                                                  \
        .name = table_name,                                                                                            \
        .packing = {[PACKING_F32] = PACKING_ENTRY(f32),                                                                \
                    [PACKING_F32_ROUNDED] = PACKING_ENTRY(f32_rounded),                                                \
                    [PACKING_SPLIT] = PACKING_ENTRY(split),                                                            \
                    ROUNDED_BF16_PACKING,                                                                              \
                    INT8_PACKINGS},                                                                                    \
        .weight = {[WEIGHT_F32] = {.product = {[INPUT_EXACT] = {PACKING_F32, multiply_F32},                            \
                                               [INPUT_BF16] = {PACKING_F32_ROUNDED, multiply_F32},                     \
                                               EXACT_INSTEAD_OF_INT8(PACKING_F32, multiply_F32)},                      \
                                   .load = load_weights_f32},                                                          \
                   [WEIGHT_F16] = {.product = {[INPUT_EXACT] = {PACKING_F32, multiply_F16},                            \
                                               [INPUT_BF16] = {PACKING_F32_ROUNDED, multiply_F16},                     \
                                               EXACT_INSTEAD_OF_INT8(PACKING_F32, multiply_F16)},                      \
                                   .load = load_weights_f16},                                                          \
                   [WEIGHT_BF16] = {.product = {[INPUT_EXACT] = {PACKING_SPLIT, multiply_BF16},                        \
                                                [INPUT_BF16] = ROUNDED_BF16,                                           \
                                                EXACT_INSTEAD_OF_INT8(PACKING_SPLIT, multiply_BF16)},                  \
                                    .load = load_weights_bf16},                                                        \
                   BLOCK_FORMATS(BLOCK_FORMAT_ENTRY) GROUP_INT8_FORMATS(GROUP_INT8_ENTRY)                              \
                       GROUP_OTHER_FORMATS(GROUP_OTHER_ENTRY)},                                                        \
        .kv = {[KV_FORMAT_F32] = {.queries = PACKING_F32,                                                              \
                                  .store = store_f32,                                                                  \
                                  .load = load_f32,                                                                    \
                                  .derive_key = derive_key_f32},                                                       \
               [KV_FORMAT_BF16] = {.queries = PACKING_SPLIT,                                                           \
                                   .store = store_bf16,                                                                \
                                   .load = load_bf16,                                                                  \
                                   .derive_key = derive_key_bf16},                                                     \
               [KV_FORMAT_Q8] = {.queries = PACKING_F32,                                                               \
                                 .store = kv_q8_store,                                                                 \
                                 .load = kv_q8_load,                                                                   \
                                 .derive_key = derive_key_q8},                                                         \
               [KV_FORMAT_Q4] = {.queries = PACKING_F32,                                                               \
                                 .loaded = true,                                                                       \
                                 .store = store_q4,                                                                    \
                                 .load = load_q4,                                                                      \
                                 .derive_key = derive_key_q4}},                                                        \
        .attend_block = attend_block, .attend_all = attend_all, .gemm_rows = GEMM_TILE_ROWS, .gemm_pack = gemm_pack,   \
        .gemm = gemm, .rms_norm = rms_norm, .rms_scale = rms_scale, .gated = gated, .rope = rope, .axpy = axpy,        \
        .scale = scale, .multiply = multiply_by, .soft_cap = soft_cap, .maximum = maximum,                             \
        .first_at_least = first_at_least, .probe_read = probe_read, .probe_flops = ROUNDED_BF16_PROBE,                 \
    }

#endif
