/* The oracle: plain loops, no intrinsics, libm functions. Dot products run in LANES partial sums so that a compiler may
 * use whatever vectors the base instruction set has without changing a bit of the result. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/int8.h"
#include "backend/cpu/kernels_private.h"
#include "backend/groups.h"
#include "backend/kv_q4.h"
#include "base/float16.h"

enum {
    LANES = 16,        /* partial sums of a dot product; packed rows are padded to it */
    SEGMENT = 256,     /* weights that are widened together: a multiple of LANES and of all blocks */
    ROWS_TOGETHER = 8, /* rows that share one expansion of the weights */
    PROBE_CHAINS = 64, /* independent accumulators of the arithmetic probe */
};

static size_t padded(int k) { return ((size_t)k + LANES - 1) / LANES * LANES; }

/* --- stored values ---------------------------------------------------------------------------------------------- */

/* n values of an array that begins at `bytes`, from the first-th on. */
#define VALUES_INLINE static inline __attribute__((always_inline))

VALUES_INLINE void widen_f32(const void *bytes, int first, int n, float *out) {
    memmove(out, (const char *)bytes + (size_t)first * sizeof *out, (size_t)n * sizeof *out);
}

VALUES_INLINE void widen_f16(const void *bytes, int first, int n, float *out) {
    for (int i = 0; i < n; i++) {
        uint16_t value;
        memcpy(&value, (const char *)bytes + (size_t)(first + i) * sizeof value, sizeof value);
        out[i] = f16_to_f32(value);
    }
}

VALUES_INLINE void widen_bf16(const void *bytes, int first, int n, float *out) {
    for (int i = 0; i < n; i++) {
        uint16_t value;
        memcpy(&value, (const char *)bytes + (size_t)(first + i) * sizeof value, sizeof value);
        out[i] = bf16_to_f32(value);
    }
}

static void store_f32(const float *x, int n, void *out) { memmove(out, x, (size_t)n * sizeof *x); }

static void store_bf16(const float *x, int n, void *out) {
    for (int i = 0; i < n; i++) {
        uint16_t value = f32_to_bf16(x[i]);
        memcpy((char *)out + (size_t)i * sizeof value, &value, sizeof value);
    }
}

/* --- packing ---------------------------------------------------------------------------------------------------- */

static size_t packed_row_bytes(int k) { return padded(k) * sizeof(float); }

VALUES_INLINE void pack_values(bool round, const float *x, size_t ldx, int rows, int k, void *packed) {
    size_t stride = padded(k);
    for (int r = 0; r < rows; r++) {
        float *out = (float *)packed + (size_t)r * stride;
        const float *row = x + (size_t)r * ldx;
        for (int i = 0; i < k; i++) out[i] = round ? bf16_to_f32(f32_to_bf16(row[i])) : row[i];
        memset(out + k, 0, (stride - (size_t)k) * sizeof(float));
    }
}

static void pack_exact(const float *x, size_t ldx, int rows, int k, void *packed) {
    pack_values(false, x, ldx, rows, k, packed);
}

static void pack_rounded(const float *x, size_t ldx, int rows, int k, void *packed) {
    pack_values(true, x, ldx, rows, k, packed);
}

/* --- products --------------------------------------------------------------------------------------------------- */

static float sum_of_lanes(const float lanes[LANES]) {
    float sums[LANES];
    memcpy(sums, lanes, sizeof sums);
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    }
    return sums[0];
}

/* What a weight format needs: values [first, first + n) of a row. row[s] is where the row begins in stream s; w tells
 * the rest (NULL: keys). */
typedef void (*widen_row)(const weight *w, const void *const *row, int first, int n, float *out);

#define DEFINE_ROW_OF_VALUES(format)                                                                                   \
    VALUES_INLINE void row_##format(const weight *w, const void *const *row, int first, int n, float *out) {           \
        (void)w;                                                                                                       \
        widen_##format(row[0], first, n, out);                                                                         \
    }
DEFINE_ROW_OF_VALUES(f32)
DEFINE_ROW_OF_VALUES(f16)
DEFINE_ROW_OF_VALUES(bf16)

/* Dot products of up to ROWS_TOGETHER packed rows with one row of weights or one key. */
VALUES_INLINE void dot_rows(widen_row widen, const weight *w, const void *const *row, const float *packed,
                            size_t stride, int rows, int k, float *result) {
    float lanes[ROWS_TOGETHER][LANES] = {{0}};
    float weights[SEGMENT];
    for (int i = 0; i < k; i += SEGMENT) {
        int n = k - i < SEGMENT ? k - i : SEGMENT, whole = (int)padded(n);
        widen(w, row, i, n, weights);
        memset(weights + n, 0, (size_t)(whole - n) * sizeof *weights);
        for (int r = 0; r < rows; r++) {
            const float *x = packed + (size_t)r * stride + i;
            for (int c = 0; c < whole; c += LANES) {
                for (int j = 0; j < LANES; j++) lanes[r][j] += x[c + j] * weights[c + j];
            }
        }
    }
    for (int r = 0; r < rows; r++) result[r] = sum_of_lanes(lanes[r]);
}

VALUES_INLINE void multiply_rows(widen_row widen, const void *packed, int rows, const weight *w, float *y, size_t ldy) {
    size_t stride = padded(w->in);
    for (int first = 0; first < rows; first += ROWS_TOGETHER) {
        int n = rows - first < ROWS_TOGETHER ? rows - first : ROWS_TOGETHER;
        for (int o = 0; o < w->out; o++) {
            const void *row[WEIGHT_STREAMS];
            float result[ROWS_TOGETHER];
            weight_row_streams(w, o, row);
            dot_rows(widen, w, row, (const float *)packed + (size_t)first * stride, stride, n, w->in, result);
            for (int r = 0; r < n; r++) y[(size_t)(first + r) * ldy + (size_t)o] = result[r];
        }
    }
}

/* A weight format is its row_...; the rest follows. */
#define DEFINE_WEIGHT(format)                                                                                          \
    static void multiply_##format(const void *packed, int rows, const weight *w, float *y, size_t ldy) {               \
        multiply_rows(row_##format, packed, rows, w, y, ldy);                                                          \
    }                                                                                                                  \
    static void load_##format(const weight *w, int index, int begin, int n, float *out) {                              \
        const void *row[WEIGHT_STREAMS];                                                                               \
        weight_row_streams(w, index, row);                                                                             \
        row_##format(w, row, begin, n, out);                                                                           \
    }
DEFINE_WEIGHT(f32)
DEFINE_WEIGHT(f16)
DEFINE_WEIGHT(bf16)
#define DEFINE_BLOCK_FORMAT(NAME, name, values, bytes) DEFINE_WEIGHT(name)
BLOCK_FORMATS(DEFINE_BLOCK_FORMAT)
GROUP_FORMATS(DEFINE_BLOCK_FORMAT)
#define INT8_KERNELS &int8_scalar
DEFINE_INT8
#define PRODUCTS(format, ...)                                                                                          \
    {                                                                                                                  \
        .product = {[INPUT_EXACT] = {PACKING_F32, multiply_##format},                                                  \
                    [INPUT_BF16] = {PACKING_F32_ROUNDED, multiply_##format},                                           \
                    __VA_ARGS__},                                                                                      \
        .load = load_##format                                                                                          \
    }
#define EXACT_PRODUCTS(format)                        EXACT_INSTEAD_OF_INT8(PACKING_F32, multiply_##format)
#define WEIGHT_ENTRY(format)                          PRODUCTS(format, EXACT_PRODUCTS(format))
#define BLOCK_FORMAT_ENTRY(NAME, name, values, bytes) [WEIGHT_##NAME] = PRODUCTS(name, INT8_PRODUCTS(name)),
#define GROUP_INT8_ENTRY(NAME, name, bits, kind)      [WEIGHT_##NAME] = PRODUCTS(name, INT8_PRODUCTS(name)),
#define GROUP_OTHER_ENTRY(NAME, name, bits, kind)     [WEIGHT_##NAME] = WEIGHT_ENTRY(name),

static void gemm_pack(const float *x, size_t ldx, int rows, int k, float *packed) {
    pack_exact(x, ldx, rows, k, packed);
}

static void gemm(const float *packed, int rows, const weight *w, cpu_row_loader load, float *y, size_t ldy) {
    const size_t stride = padded(w->in);
    for (int o = 0; o < w->out; o++) {
        float weights[SEGMENT];
        for (int r = 0; r < rows; r++) y[(size_t)r * ldy + (size_t)o] = 0;
        for (int i = 0; i < w->in; i += SEGMENT) {
            const int n = w->in - i < SEGMENT ? w->in - i : SEGMENT, whole = (int)padded(n);
            load(w, o, i, n, weights);
            memset(weights + n, 0, (size_t)(whole - n) * sizeof *weights);
            for (int r = 0; r < rows; r++) {
                const float *x = packed + (size_t)r * stride + i;
                float lanes[LANES] = {0};
                for (int c = 0; c < whole; c += LANES)
                    for (int j = 0; j < LANES; j++) lanes[j] += x[c + j] * weights[c + j];
                y[(size_t)r * ldy + (size_t)o] += sum_of_lanes(lanes);
            }
        }
    }
}

/* --- attention -------------------------------------------------------------------------------------------------- */

VALUES_INLINE void widen_codes(const void *bytes, int first, int n, float *out) {
    const int8_t *codes = (const int8_t *)bytes + first;
    for (int i = 0; i < n; i++) out[i] = codes[i];
}
DEFINE_ROW_OF_VALUES(codes)

static float stored_scale(const void *row) {
    float scale;
    memcpy(&scale, row, sizeof scale);
    return scale;
}

static void dot_key(kv_format format, const float *q, size_t stride, int k_dim, const void *key, float *score) {
    const void *codes = (const char *)key + KV_Q8_CODES_AT;
    if (format == KV_FORMAT_F32) {
        dot_rows(row_f32, NULL, &key, q, stride, 1, k_dim, score);
    } else if (format == KV_FORMAT_Q8) {
        dot_rows(row_codes, NULL, &codes, q, stride, 1, k_dim, score);
        *score *= stored_scale(key);
    } else {
        dot_rows(row_bf16, NULL, &key, q, stride, 1, k_dim, score);
    }
}

static void widen_kv(kv_format format, const void *row, int first, int n, float *out) {
    if (format == KV_FORMAT_F32)
        widen_f32(row, first, n, out);
    else if (format == KV_FORMAT_Q8)
        widen_codes((const char *)row + KV_Q8_CODES_AT, first, n, out);
    else
        widen_bf16(row, first, n, out);
}

static void attend_block(int rows, const int *lo, const int *hi, const void *q_packed, int k_dim, kv_format k_format,
                         const void *k, size_t k_row_bytes, int v_dim, kv_format v_format, const void *v,
                         size_t v_row_bytes, const float *v_scale, float *m, float *l, float *o, size_t ldo) {
    size_t q_stride = padded(k_dim);
    for (int r = 0; r < rows; r++) {
        if (lo[r] >= hi[r]) continue;
        float scores[ATTENTION_BLOCK];
        float top = m[r];
        for (int j = lo[r]; j < hi[r]; j++) {
            dot_key(k_format, (const float *)q_packed + (size_t)r * q_stride, q_stride, k_dim,
                    (const char *)k + (size_t)j * k_row_bytes, &scores[j]);
            if (scores[j] > top) top = scores[j];
        }
        float kept = expf(m[r] - top);
        float *out = o + (size_t)r * ldo;
        float sum = l[r] * kept;
        for (int i = 0; i < v_dim; i++) out[i] *= kept;
        for (int j = lo[r]; j < hi[r]; j++) {
            float p = expf(scores[j] - top);
            sum += p;
            float factor = v_scale ? p * v_scale[j] : p;
            const char *row = (const char *)v + (size_t)j * v_row_bytes;
            if (v_format == KV_FORMAT_Q8) factor *= stored_scale(row);
            float values[LANES];
            for (int i = 0; i < v_dim; i += LANES) {
                int n = v_dim - i < LANES ? v_dim - i : LANES;
                widen_kv(v_format, row, i, n, values);
                for (int c = 0; c < n; c++) out[i + c] += factor * values[c];
            }
        }
        l[r] = sum;
        m[r] = top;
    }
}

static void attend_all(float *q, size_t ld, int rows, const float *k, const float *v, int keys, int d, float *scratch) {
    for (int r = 0; r < rows; r++, q += ld) {
        float top = -INFINITY, sum = 0;
        memset(scratch, 0, (size_t)d * sizeof *scratch);
        for (int j = 0; j < keys; j++) {
            const float *key = k + (size_t)j * (size_t)d, *value = v + (size_t)j * (size_t)d;
            float score = 0;
            for (int c = 0; c < d; c++) score += q[c] * key[c];
            const float before = top;
            if (score > top) top = score;
            const float kept = expf(before - top), p = expf(score - top);
            sum = sum * kept + p;
            for (int c = 0; c < d; c++) scratch[c] = scratch[c] * kept + p * value[c];
        }
        for (int c = 0; c < d; c++) q[c] = scratch[c] / sum;
    }
}

/* --- vectors ---------------------------------------------------------------------------------------------------- */

static float rms_scale(const float *x, int n, float eps) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return (float)(1.0 / sqrt(sum / n + (double)eps));
}

static void rms_norm(const float *x, const float *w, int n, float eps, float *out) {
    float scale = rms_scale(x, n, eps);
    for (int i = 0; i < n; i++) out[i] = w ? x[i] * scale * w[i] : x[i] * scale;
}

static float gelu_tanh(float z) {
    const float sqrt_2_over_pi = 0.797884560802865356f;
    return 0.5f * z * (1.0f + tanhf(sqrt_2_over_pi * (z + 0.044715f * z * z * z)));
}

static float silu(float z) { return z / (1.0f + expf(-z)); }

static void gated(int activation, const float *gate, const float *up, int n, float *out) {
    for (int i = 0; i < n; i++) out[i] = (activation == 0 ? gelu_tanh(gate[i]) : silu(gate[i])) * up[i];
}

static void rope(float *x, int half, int pairs, const float *cosine, const float *sine) {
    for (int j = 0; j < pairs; j++) {
        float a = x[j], b = x[j + half];
        x[j] = a * cosine[j] - b * sine[j];
        x[j + half] = b * cosine[j] + a * sine[j];
    }
}

static void axpy(float a, const float *x, int n, float *y) {
    for (int i = 0; i < n; i++) y[i] += a * x[i];
}

static void multiply(const float *w, int n, float *y) {
    for (int i = 0; i < n; i++) y[i] *= w[i];
}

static void scale(float a, int n, float *y) {
    for (int i = 0; i < n; i++) y[i] *= a;
}

static void store_q8(const float *x, int n, void *out) { kv_q8_store(x, n, out); }
static void store_q4(const float *x, int n, void *out) { kv_q4_store(x, n, out); }
static void load_kv_f32(const void *x, int n, float *out) { widen_f32(x, 0, n, out); }
static void load_kv_bf16(const void *x, int n, float *out) { widen_bf16(x, 0, n, out); }
static void load_kv_q8(const void *x, int n, float *out) { kv_q8_load(x, n, out); }
static void load_kv_q4(const void *x, int n, float *out) { kv_q4_load(x, n, out); }

/* A K/V format is its load and its store. */
#define DEFINE_KV(format)                                                                                              \
    static void derive_key_##format(const void *v, const float *norm, int half, int pairs, const float *cosine,        \
                                    const float *sine, float *out) {                                                   \
        load_kv_##format(v, 2 * half, out);                                                                            \
        multiply(norm, 2 * half, out);                                                                                 \
        rope(out, half, pairs, cosine, sine);                                                                          \
    }
DEFINE_KV(f32)
DEFINE_KV(bf16)
DEFINE_KV(q8)
DEFINE_KV(q4)
#define KV_ENTRY(format, attended)                                                                                     \
    {                                                                                                                  \
        .queries = PACKING_F32, .loaded = !(attended), .store = store_##format, .load = load_kv_##format,              \
        .derive_key = derive_key_##format                                                                              \
    }

static void soft_cap(float cap, int n, float *y) {
    for (int i = 0; i < n; i++) y[i] = cap * tanhf(y[i] / cap);
}

static float maximum(const float *x, int n) {
    float top = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (!isfinite(x[i])) return NAN;
        if (x[i] > top) top = x[i];
    }
    return top;
}

static int first_at_least(const float *x, int n, float bound) {
    for (int i = 0; i < n; i++) {
        if (x[i] >= bound) return i;
    }
    return n;
}

/* --- probes ----------------------------------------------------------------------------------------------------- */

static float probe_read(const void *data, size_t bytes) {
    const uint64_t *words = data;
    uint64_t sums[8] = {0};
    for (size_t i = 0; i < bytes / sizeof *words; i += 8) {
        for (int j = 0; j < 8; j++) sums[j] += words[i + (size_t)j];
    }
    for (int j = 1; j < 8; j++) sums[0] += sums[j];
    return (float)sums[0];
}

static double probe_flops(bool round_to_bf16, size_t iterations) {
    (void)round_to_bf16;
    float sums[PROBE_CHAINS] = {0};
    volatile float source = 0.5f;
    float x = source, w = source;
    for (size_t i = 0; i < iterations; i++) {
        for (int j = 0; j < PROBE_CHAINS; j++) sums[j] += x * w;
        x = -x; /* keeps the product inside the loop */
    }
    for (int j = 0; j < PROBE_CHAINS; j++) source = sums[j];
    return (double)iterations * PROBE_CHAINS * 2;
}

const cpu_kernels cpu_kernels_scalar = {
    .name = "scalar",
    .packing = {[PACKING_F32] = {packed_row_bytes, pack_exact},
                [PACKING_F32_ROUNDED] = {packed_row_bytes, pack_rounded},
                INT8_PACKINGS},
    .weight = {[WEIGHT_F32] = WEIGHT_ENTRY(f32),
               [WEIGHT_F16] = WEIGHT_ENTRY(f16),
               [WEIGHT_BF16] = WEIGHT_ENTRY(bf16),
               BLOCK_FORMATS(BLOCK_FORMAT_ENTRY) GROUP_INT8_FORMATS(GROUP_INT8_ENTRY)
                   GROUP_OTHER_FORMATS(GROUP_OTHER_ENTRY)},
    .kv = {[KV_FORMAT_F32] = KV_ENTRY(f32, true),
           [KV_FORMAT_BF16] = KV_ENTRY(bf16, true),
           [KV_FORMAT_Q8] = KV_ENTRY(q8, true),
           [KV_FORMAT_Q4] = KV_ENTRY(q4, false)},
    .attend_block = attend_block,
    .attend_all = attend_all,
    .gemm_rows = 1,
    .gemm_pack = gemm_pack,
    .gemm = gemm,
    .rms_norm = rms_norm,
    .rms_scale = rms_scale,
    .gated = gated,
    .rope = rope,
    .axpy = axpy,
    .scale = scale,
    .multiply = multiply,
    .soft_cap = soft_cap,
    .maximum = maximum,
    .first_at_least = first_at_least,
    .probe_read = probe_read,
    .probe_flops = probe_flops,
};
