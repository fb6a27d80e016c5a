/* The oracle: plain loops, no intrinsics, libm functions. Dot products run in LANES partial sums so that a compiler may
 * use whatever vectors the base instruction set has without changing a bit of the result. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/kernels_private.h"

enum {
    LANES = 16,        /* partial sums of a dot product; packed rows are padded to it */
    ROWS_TOGETHER = 8, /* rows that share one expansion of the weights */
    PROBE_CHAINS = 64, /* independent accumulators of the arithmetic probe */
};

static size_t padded(int k) { return ((size_t)k + LANES - 1) / LANES * LANES; }

/* Round to nearest, ties to even; overflow gives infinity, NaN stays a quiet NaN. */
static uint16_t f32_to_f16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or more */
    if (magnitude < 0x38800000u) {
        /* Subnormal: adding 0.5 aligns the unit of the last place to 2^-24, and the adder rounds. */
        float shifted;
        memcpy(&shifted, &magnitude, sizeof shifted);
        shifted += 0.5f;
        memcpy(&magnitude, &shifted, sizeof magnitude);
        return (uint16_t)(sign | (magnitude - 0x3f000000u));
    }
    magnitude += 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((magnitude - 0x38000000u) >> 13));
}

static void load(dtype type, const void *x, int n, float *out) {
    const unsigned char *bytes = x;
    if (type == DTYPE_F32) {
        memmove(out, x, (size_t)n * sizeof *out);
        return;
    }
    for (int i = 0; i < n; i++) {
        uint16_t value;
        memcpy(&value, bytes + (size_t)i * 2, 2);
        out[i] = type == DTYPE_BF16 ? bf16_to_f32(value) : f16_to_f32(value);
    }
}

static void store(dtype type, const float *x, int n, void *out) {
    unsigned char *bytes = out;
    if (type == DTYPE_F32) {
        memmove(out, x, (size_t)n * sizeof *x);
        return;
    }
    for (int i = 0; i < n; i++) {
        uint16_t value = type == DTYPE_BF16 ? f32_to_bf16(x[i]) : f32_to_f16(x[i]);
        memcpy(bytes + (size_t)i * 2, &value, 2);
    }
}

/* --- matrix product --------------------------------------------------------------------------------------------- */

static size_t pack_row_bytes(dtype w, bool round_to_bf16, int k) {
    (void)w;
    (void)round_to_bf16;
    return padded(k) * sizeof(float);
}

static void pack_rows(dtype w, bool round_to_bf16, const float *x, size_t ldx, int rows, int k, void *packed) {
    size_t stride = pack_row_bytes(w, round_to_bf16, k) / sizeof(float);
    for (int r = 0; r < rows; r++) {
        float *out = (float *)packed + (size_t)r * stride;
        const float *row = x + (size_t)r * ldx;
        for (int i = 0; i < k; i++) out[i] = round_to_bf16 ? bf16_to_f32(f32_to_bf16(row[i])) : row[i];
        memset(out + k, 0, (stride - (size_t)k) * sizeof(float));
    }
}

static float sum_of_lanes(const float lanes[LANES]) {
    float sums[LANES];
    memcpy(sums, lanes, sizeof sums);
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    }
    return sums[0];
}

/* Dot products of up to ROWS_TOGETHER packed rows with one weight row. */
static void dot_rows(dtype w_type, const float *packed, size_t stride, int rows, int k, const void *w, float *result) {
    float lanes[ROWS_TOGETHER][LANES] = {{0}};
    float weights[LANES];
    for (int i = 0; i < k; i += LANES) {
        int n = k - i < LANES ? k - i : LANES;
        if (n < LANES) memset(weights, 0, sizeof weights);
        load(w_type, (const unsigned char *)w + (size_t)i * dtype_bytes(w_type), n, weights);
        for (int r = 0; r < rows; r++) {
            const float *x = packed + (size_t)r * stride + i;
            for (int j = 0; j < LANES; j++) lanes[r][j] += x[j] * weights[j];
        }
    }
    for (int r = 0; r < rows; r++) result[r] = sum_of_lanes(lanes[r]);
}

static void matmul(dtype w_type, bool round_to_bf16, const void *packed, int rows, int k, const void *w, size_t ldw,
                   int o_begin, int o_end, float *y, size_t ldy) {
    size_t stride = pack_row_bytes(w_type, round_to_bf16, k) / sizeof(float);
    for (int first = 0; first < rows; first += ROWS_TOGETHER) {
        int n = rows - first < ROWS_TOGETHER ? rows - first : ROWS_TOGETHER;
        for (int o = o_begin; o < o_end; o++) {
            float result[ROWS_TOGETHER];
            const void *row = (const unsigned char *)w + (size_t)o * ldw * dtype_bytes(w_type);
            dot_rows(w_type, (const float *)packed + (size_t)first * stride, stride, n, k, row, result);
            for (int r = 0; r < n; r++) y[(size_t)(first + r) * ldy + (size_t)(o - o_begin)] = result[r];
        }
    }
}

/* --- attention -------------------------------------------------------------------------------------------------- */

static void attend_block(int rows, const int *lo, const int *hi, const void *q_packed, int k_dim, dtype k_type,
                         const void *k, size_t k_stride, int v_dim, dtype v_type, const void *v, size_t v_stride,
                         const float *v_scale, float *m, float *l, float *o, size_t ldo) {
    size_t q_stride = pack_row_bytes(k_type, false, k_dim) / sizeof(float);
    size_t k_row_bytes = k_stride * dtype_bytes(k_type), v_row_bytes = v_stride * dtype_bytes(v_type);
    for (int r = 0; r < rows; r++) {
        if (lo[r] >= hi[r]) continue;
        float scores[ATTENTION_BLOCK];
        float top = m[r];
        for (int j = lo[r]; j < hi[r]; j++) {
            dot_rows(k_type, (const float *)q_packed + (size_t)r * q_stride, q_stride, 1, k_dim,
                     (const unsigned char *)k + (size_t)j * k_row_bytes, &scores[j]);
            if (scores[j] > top) top = scores[j];
        }
        float kept = expf(m[r] - top);
        float *out = o + (size_t)r * ldo;
        float sum = l[r] * kept;
        for (int i = 0; i < v_dim; i++) out[i] *= kept;
        for (int j = lo[r]; j < hi[r]; j++) {
            float p = expf(scores[j] - top);
            sum += p;
            float weight = v_scale ? p * v_scale[j] : p;
            const unsigned char *row = (const unsigned char *)v + (size_t)j * v_row_bytes;
            float values[LANES];
            for (int i = 0; i < v_dim; i += LANES) {
                int n = v_dim - i < LANES ? v_dim - i : LANES;
                load(v_type, row + (size_t)i * dtype_bytes(v_type), n, values);
                for (int c = 0; c < n; c++) out[i + c] += weight * values[c];
            }
        }
        l[r] = sum;
        m[r] = top;
    }
}

/* --- vectors ---------------------------------------------------------------------------------------------------- */

static float rms_scale(const float *x, int n, float eps) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return (float)(1.0 / sqrt(sum / n + (double)eps));
}

static void rms_norm(const float *x, const float *weight, int n, float eps, float *out) {
    float scale = rms_scale(x, n, eps);
    for (int i = 0; i < n; i++) out[i] = weight ? x[i] * scale * weight[i] : x[i] * scale;
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

static void derive_key(dtype type, const void *v, const float *norm, int half, int pairs, const float *cosine,
                       const float *sine, float *out) {
    load(type, v, 2 * half, out);
    multiply(norm, 2 * half, out);
    rope(out, half, pairs, cosine, sine);
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
    .pack_row_bytes = pack_row_bytes,
    .pack_rows = pack_rows,
    .matmul = matmul,
    .attend_block = attend_block,
    .rms_norm = rms_norm,
    .rms_scale = rms_scale,
    .gated = gated,
    .rope = rope,
    .derive_key = derive_key,
    .axpy = axpy,
    .scale = scale,
    .multiply = multiply,
    .soft_cap = soft_cap,
    .maximum = maximum,
    .first_at_least = first_at_least,
    .store = store,
    .load = load,
    .probe_read = probe_read,
    .probe_flops = probe_flops,
};
