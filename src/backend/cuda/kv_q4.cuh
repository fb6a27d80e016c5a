/* K/V in 4 bits (backend/kv_q4.h) of heads of 16 to 512 values, a power of two: a lane has a group, so a warp has 32 of
 * them, which are all of 512 / head_dim vectors (KV_Q4_AT_ONCE). Stored bytes are the host's; what is read becomes
 * bf16 of the host's values. Arithmetic is written out, for the compiler would fuse it. */
#ifndef KAKEYA_BACKEND_CUDA_KV_Q4_CUH
#define KAKEYA_BACKEND_CUDA_KV_Q4_CUH

#include <float.h>

#include "backend/cuda/common.cuh"

enum { KV_Q4_VALUES = 16 /* of a group */, KV_Q4_LEVELS = 16, KV_Q4_LARGEST_FACTOR = 127 };

template <int D> struct kv_q4_form {
    static const int GROUPS = D / KV_Q4_VALUES, AT_ONCE = 32 / GROUPS, HALF = D / 2, CODES_AT = 4 + GROUPS,
                     BYTES = (CODES_AT + HALF + 3) / 4 * 4;
};

static __host__ __device__ __forceinline__ int kv_q4_vector_bytes(int d) {
    return (4 + d / KV_Q4_VALUES + d / 2 + 3) / 4 * 4;
}

/* ---------------------------------------------------------------------------------------------------------- steps */

/* The code of the step that is nearest to t, and the step (kv_q4.c). */
struct kv_q4_nearest {
    unsigned code;
    float step;
};

static __device__ __forceinline__ kv_q4_nearest kv_q4_near(float t) {
    const float middles[] = {-116.5f, -94, -73, -56, -41, -27.5f, -15, -3, 8.5f, 20, 32, 44.5f, 58.5f, 75.5f, 98},
                steps[] = {-106, -82, -64, -48, -34, -21, -9, 3, 14, 26, 38, 51, 66, 85, 111};
    kv_q4_nearest found = {0, -127};
#pragma unroll
    for (int c = 0; c < KV_Q4_LEVELS - 1; c++) {
        found.code = t > middles[c] ? c + 1 : found.code;
        found.step = t > middles[c] ? steps[c] : found.step;
    }
    return found;
}

/* Sylvester's order, as kv_q4.c adds. */
static __device__ __forceinline__ void kv_q4_transform(float (&x)[KV_Q4_VALUES]) {
#pragma unroll
    for (int half = 1; half < KV_Q4_VALUES; half *= 2) {
#pragma unroll
        for (int i = 0; i < KV_Q4_VALUES; i++) {
            if (i & half) continue;
            float a = x[i], b = x[i + half];
            x[i] = __fadd_rn(a, b);
            x[i + half] = __fsub_rn(a, b);
        }
    }
}

/* --------------------------------------------------------------------------------------------------------- storing */

/* The scale that leaves the least error among the ways to place the group's extreme value. */
static __device__ __forceinline__ float kv_q4_scale(const float (&y)[KV_Q4_VALUES]) {
    float extreme = 0, best = -1, scale = 0;
#pragma unroll
    for (int a = 0; a < KV_Q4_VALUES; a++) extreme = fabsf(y[a]) > fabsf(extreme) ? y[a] : extreme;
#pragma unroll 1
    for (int e = 0; e < 6; e++) {
        float place = e == 0 ? -134 : e == 1 ? -124 : e == 2 ? -114 : e == 3 ? 116 : e == 4 ? 105 : 94;
        float inverse = fabsf(extreme) > FLT_MIN ? __fdiv_rn(place, extreme) : 0, products = 0, squares = 0;
#pragma unroll
        for (int a = 0; a < KV_Q4_VALUES; a++) {
            float value = kv_q4_near(__fmul_rn(y[a], inverse)).step;
            products = __fadd_rn(products, __fmul_rn(y[a], value));
            squares = __fadd_rn(squares, __fmul_rn(value, value));
        }
        float gain = __fdiv_rn(__fmul_rn(products, products), squares);
        if (gain > best) {
            best = gain;
            scale = __fdiv_rn(products, squares);
        }
    }
    return scale;
}

/* kv_q4_store of the d values x, to the byte, by a warp, to two places, the second one or NULL. x is in shared memory,
 * at least 128 bytes of it, and is overwritten. */
static __device__ __forceinline__ void kv_q4_store_warp(float *x, int d, int lane, unsigned char *out,
                                                        unsigned char *sink) {
    int groups = d / KV_Q4_VALUES, bytes = kv_q4_vector_bytes(d), block = d < 32 ? d : 32, half = block / 2;
    float y[KV_Q4_VALUES];
    int largest = 0; /* bits of the largest magnitude: what is not finite comes last */
#pragma unroll
    for (int a = 0; a < KV_Q4_VALUES; a++) {
        y[a] = lane < groups ? x[a * groups + lane] : 0;
        largest = max(largest, (int)(__float_as_uint(y[a]) & 0x7fffffffu));
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, o));
    bool finite = largest < 0x7f800000, empty = !finite || __uint_as_float((unsigned)largest) < 0x1p-100f;
    int exponent = empty ? 0 : (largest >> 23) - 126;
    float power = ldexpf(1.0f, -exponent);
#pragma unroll
    for (int a = 0; a < KV_Q4_VALUES; a++) y[a] = __fmul_rn(__fmul_rn(y[a], power), 1.0f / KV_Q4_VALUES);
    kv_q4_transform(y);
    float scale = kv_q4_scale(y), widest = fabsf(scale); /* of lanes without a group 0 */
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) widest = fmaxf(widest, __shfl_xor_sync(0xffffffffu, widest, o));
    const float most = FLT_MAX / (KV_Q4_LARGEST_FACTOR * KV_Q4_LARGEST_FACTOR * KV_Q4_VALUES);
    float near = __fdiv_rn(widest, (float)KV_Q4_LARGEST_FACTOR), s = fminf(ldexpf(near, exponent), most);
    float factor = near > 0 ? rintf(__fdiv_rn(scale, near)) : 0;
    factor = fmaxf(-(float)KV_Q4_LARGEST_FACTOR, fminf((float)KV_Q4_LARGEST_FACTOR, factor));
    float inverse = fabsf(factor) > 0 ? __fdiv_rn(1.0f, __fmul_rn(near, factor)) : 0;
    if (empty) s = finite ? 0.0f : __uint_as_float(0x7fc00000u);
    /* The codes, one in a byte, then the vector. */
    unsigned char *codes = reinterpret_cast<unsigned char *>(x), *stored = codes + d;
    __syncwarp();
    if (lane < groups) {
#pragma unroll
        for (int a = 0; a < KV_Q4_VALUES; a++)
            codes[a * groups + lane] = (unsigned char)(empty ? 0 : kv_q4_near(__fmul_rn(y[a], inverse)).code);
        stored[4 + lane] = (unsigned char)(empty ? 0 : (int)factor);
    }
    if (lane == 0) *reinterpret_cast<uint32_t *>(stored) = __float_as_uint(s);
    __syncwarp();
    for (int i = lane; i < d / 2; i += 32) {
        const unsigned char *low = codes + i / half * block + i % half;
        stored[4 + groups + i] = (unsigned char)(low[0] | low[half] << 4);
    }
    for (int i = 4 + groups + d / 2 + lane; i < bytes; i += 32) stored[i] = 0;
    __syncwarp();
    for (int i = lane; i < bytes / 4; i += 32) {
        uint32_t word = reinterpret_cast<const uint32_t *>(stored)[i];
        reinterpret_cast<uint32_t *>(out)[i] = word;
        if (sink) reinterpret_cast<uint32_t *>(sink)[i] = word;
    }
    __syncwarp();
}

/* --------------------------------------------------------------------------------------------------------- reading */

/* What a lane requests of a vector that its group is in: from heads of 64 values on two words of codes, as they lie;
 * of smaller ones its codes 0 to 7 and 8 to 15. */
struct kv_q4_request {
    uint32_t codes[2];
    float scale;
    int factor;
};

/* Which of AT_ONCE vectors the lane's group is in, and which of its groups it is. */
template <int D> static __device__ __forceinline__ int kv_q4_vector_of(int lane) {
    return lane / kv_q4_form<D>::GROUPS;
}
template <int D> static __device__ __forceinline__ int kv_q4_group_of(int lane) { return lane % kv_q4_form<D>::GROUPS; }

/* vector: of this lane; NULL: zeros. */
template <int D>
static __device__ __forceinline__ kv_q4_request kv_q4_request_group(const unsigned char *vector, int lane) {
    const int GROUPS = kv_q4_form<D>::GROUPS;
    int group = kv_q4_group_of<D>(lane);
    kv_q4_request r = {{0, 0}, 0, 0};
    if (!vector) return r;
    const unsigned char *codes = vector + kv_q4_form<D>::CODES_AT;
    r.scale = __ldcg(reinterpret_cast<const float *>(vector));
    r.factor = (int)(signed char)__ldcg(vector + 4 + group);
    if constexpr (D >= 64) {
        r.codes[0] = __ldcg(reinterpret_cast<const uint32_t *>(codes) + group);
        r.codes[1] = __ldcg(reinterpret_cast<const uint32_t *>(codes) + GROUPS + group);
    } else {
#pragma unroll
        for (int a = 0; a < 8; a++) {
            unsigned two = __ldcg(codes + a * GROUPS + group);
            r.codes[0] |= (two & 15) << (4 * a);
            r.codes[1] |= (two >> 4) << (4 * a);
        }
    }
    return r;
}

/* Four steps of four codes of a word's lower half: 128 + step each. */
static __device__ __forceinline__ uint32_t kv_q4_four_steps(uint32_t codes) {
    const uint32_t STEPS[4] = {0x402e1601u, 0x776b5e50u, 0xa69a8e83u, 0xefd5c2b3u};
    uint32_t in_half = codes & 0x7777u, low = __byte_perm(STEPS[0], STEPS[1], in_half),
             high = __byte_perm(STEPS[2], STEPS[3], in_half);
    return __byte_perm(low, high, 0x3210u | (codes >> 1 & 0x4444u));
}

template <int I> static __device__ __forceinline__ float kv_q4_step_of(uint32_t four) { /* 2^23 + 128 + step */
    return __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7540 + I)) - 8388736.0f;
}

/* The values of the lane's group: value a is element a * GROUPS + kv_q4_group_of of its vector. All of a warp. */
template <int D>
static __device__ __forceinline__ void kv_q4_values_of(const kv_q4_request &r, int lane, float (&x)[KV_Q4_VALUES]) {
    const int GROUPS = kv_q4_form<D>::GROUPS;
    uint32_t codes[2] = {r.codes[0], r.codes[1]};
    if constexpr (D >= 64) {
        codes[0] = codes[1] = 0;
#pragma unroll
        for (int a = 0; a < KV_Q4_VALUES; a++) {
            int at = a % 8 * GROUPS + kv_q4_group_of<D>(lane), from = at / 32 * 4 + at % 16 / 4;
            uint32_t word = __shfl_sync(0xffffffffu, r.codes[a / 8], lane / GROUPS * GROUPS + from);
            uint32_t right = (uint32_t)(at % 4 * 8 + at % 32 / 16 * 4);
            codes[a / 8] |= __funnelshift_l(word, word, (uint32_t)(a % 8 * 4) - right) & 15u << (a % 8 * 4);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t four = kv_q4_four_steps(codes[i / 2] >> (i % 2 * 16));
        x[i * 4] = kv_q4_step_of<0>(four);
        x[i * 4 + 1] = kv_q4_step_of<1>(four);
        x[i * 4 + 2] = kv_q4_step_of<2>(four);
        x[i * 4 + 3] = kv_q4_step_of<3>(four);
    }
    kv_q4_transform(x); /* whole numbers, exactly */
    float factor = __fmul_rn(r.scale, (float)r.factor);
#pragma unroll
    for (int a = 0; a < KV_Q4_VALUES; a++) x[a] = __fmul_rn(x[a], factor);
}

/* The lane's values of `row` as bf16. */
template <int D>
static __device__ __forceinline__ void kv_q4_write(const kv_q4_request &r, int lane, bool wanted, bf16 *row) {
    float x[KV_Q4_VALUES];
    kv_q4_values_of<D>(r, lane, x);
    if (!wanted) return;
#pragma unroll
    for (int a = 0; a < KV_Q4_VALUES; a++)
        row[a * kv_q4_form<D>::GROUPS + kv_q4_group_of<D>(lane)] = __float2bfloat16_rn(x[a]);
}

/* Keys or values of a run of positions of one head. */
struct kv_q4_rows {
    const unsigned char *rows, *sinks; /* vectors of the head; of positions before in_sink in sinks */
    int stride;                        /* bytes of a row */
    int base;                          /* the first position */
    int from, to;                      /* positions that are asked for now */
    int begin, end, sink, evicted;     /* what is seen of them (attention.cuh); the rest becomes zero */
    int in_sink;
};

/* ROWS of them to `to`, PITCH values apart, by WARPS warps, each of which has as many vectors at a time as have 32
 * groups, and requests four times as many. A call, which takes no registers from where it is not made. */
template <int D, int PITCH, int ROWS, int WARPS>
static __device__ __noinline__ void kv_q4_load_rows(bf16 *to, const kv_q4_rows r, int warp) {
    const int AT_ONCE = kv_q4_form<D>::AT_ONCE, EACH = (ROWS / AT_ONCE + WARPS - 1) / WARPS, MOST = EACH < 4 ? EACH : 4;
    int lane = threadIdx.x & 31;
#pragma unroll 1
    for (int part = 0; part < EACH; part += MOST) {
        kv_q4_request request[MOST];
        auto place = [&](int n) { return ((part + n) * WARPS + warp) * AT_ONCE + kv_q4_vector_of<D>(lane); };
        auto wanted = [&](int i) { return i < ROWS && r.base + i >= r.from && r.base + i < r.to; };
#pragma unroll
        for (int n = 0; n < MOST; n++) {
            int i = place(n), p = r.base + i;
            bool seen = wanted(i) && p >= r.begin && p < r.end && (p >= r.evicted || p < r.sink);
            const unsigned char *rows = p < r.in_sink ? r.sinks : r.rows;
            request[n] = kv_q4_request_group<D>(seen ? rows + (size_t)p * (size_t)r.stride : nullptr, lane);
        }
#pragma unroll
        for (int n = 0; n < MOST; n++) {
            int i = place(n);
            kv_q4_write<D>(request[n], lane, wanted(i), to + (wanted(i) ? i * PITCH : 0));
        }
    }
}

#endif
