/* Quantised weights of one product in bf16, for prompts: their kernels (prompt_gemm.h) take bf16 alone. A value is code
 * times scale in float32, rounded once. And made-up weights. */
#include "backend/cuda/quant_values.cuh"

enum { EXPAND_THREADS = 256, EXPAND_WARPS = EXPAND_THREADS / 32 };

static __device__ __forceinline__ unsigned scaled_pair(unsigned pair, float scale) {
    float2 codes = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&pair));
    __nv_bfloat162 rounded = __floats2bfloat162_rn(codes.x * scale, codes.y * scale);
    return *reinterpret_cast<unsigned *>(&rounded);
}

/* One warp: the unit of a strip whose codes lie at `unit`, to eight rows of `out`. */
template <cuda_form FORM>
static __device__ __forceinline__ void expand_unit(const char *unit, cuda_bf16 *out, int ld, int k, int rows) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const char *codes = unit + quant_lane_offset(FORM, lane);
    unsigned scales = *reinterpret_cast<const unsigned *>(unit + quant_scale_offset(FORM, g, 0)), word[4];
    if (FORM == CUDA_FORM_Q4) {
        uint2 v = *reinterpret_cast<const uint2 *>(codes);
        word[0] = v.x, word[1] = v.y;
    } else {
        uint4 v = load_weights(codes);
        word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
    }
#pragma unroll
    for (int b = 0; b < QUANT_BLOCKS; b++) {
        if (k + b * QUANT_BLOCK >= ld || g >= rows) return;
        float scale = half_bits((unsigned short)(scales >> 16 * b));
        unsigned value[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unsigned pair =
                FORM == CUDA_FORM_Q4 ? q4_pair(word[b] >> 4 * i) : q8_pair(word[2 * b + i / 2] >> 8 * (i & 1));
            value[i] = scaled_pair(pair, scale);
        }
        *reinterpret_cast<uint4 *>(out + (size_t)g * ld + k + b * QUANT_BLOCK + 8 * t) =
            make_uint4(value[0], value[1], value[2], value[3]);
    }
}

/* One block a strip. */
template <cuda_form FORM>
static __global__ __launch_bounds__(EXPAND_THREADS) void expand_kernel(const char *data, int ld, int rows,
                                                                       int strips_of_expert, const int *begin,
                                                                       cuda_bf16 *out) {
    wait_for_predecessor();
    release_successor();
    int strip = blockIdx.x;
    if (begin) {
        int expert = strip / strips_of_expert;
        if (begin[expert] == begin[expert + 1]) return;
    }
    const char *from = data + (size_t)strip * quant_strip_bytes(FORM, ld);
    cuda_bf16 *to = out + (size_t)strip * QUANT_ROWS * ld;
    for (int unit = threadIdx.x >> 5; unit < quant_units(ld); unit += EXPAND_WARPS)
        expand_unit<FORM>(from + (size_t)unit * quant_unit_bytes(FORM), to, ld, unit * QUANT_VALUES,
                          rows - strip * QUANT_ROWS);
}

static void expand(const cuda_launch *l, const cuda_matrix *w, const char *data, int rows, int strips_of_expert,
                   const int *begin, cuda_bf16 *out) {
    cuda_launch whole = *l; /* its successor, a product, may read what this writes as soon as it begins */
    whole.programmatic = 0;
    dim3 blocks(ceil_div(rows, QUANT_ROWS)), threads(EXPAND_THREADS);
    if (w->form == CUDA_FORM_Q4)
        launch_kernel(&whole, expand_kernel<CUDA_FORM_Q4>, blocks, threads, 0, data, w->ld, rows, strips_of_expert,
                      begin, out);
    else
        launch_kernel(&whole, expand_kernel<CUDA_FORM_Q8>, blocks, threads, 0, data, w->ld, rows, strips_of_expert,
                      begin, out);
}

void quant_expand(const cuda_launch *l, const cuda_matrix *w, int rows, cuda_bf16 *out) {
    expand(l, w, reinterpret_cast<const char *>(w->data), rows, 1, nullptr, out);
}

void quant_expand_experts(const cuda_launch *l, const cuda_matrix *w, int rows, const cuda_route *route, int first,
                          int n, cuda_bf16 *out) {
    int strips = rows / QUANT_ROWS;
    const char *data =
        reinterpret_cast<const char *>(w->data) + (size_t)first * strips * quant_strip_bytes(w->form, w->ld);
    expand(l, w, data, n * rows, strips, route->begin + first, out);
}

/* --------------------------------------------------------------------------------------------------- made-up weights
 */

static __device__ __forceinline__ unsigned random_word(uint64_t seed, uint64_t i) {
    uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (unsigned)(z >> 32);
}

/* Words of codes are random, those of scales are two of the same but for their signs, so that values are about as often
 * above zero as below. Blocks behind the last of a row have scales of zero. */
static __global__ void fill_quant_kernel(unsigned *data, size_t words, int code_words, int unit_words, int units,
                                         bool odd, unsigned scales, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words; i += (size_t)gridDim.x * blockDim.x) {
        bool last = i / unit_words % units == (size_t)units - 1;
        unsigned random = random_word(seed, i), signed_scales = scales ^ (random & 0x80008000u);
        data[i] = (int)(i % unit_words) < code_words ? random : last && odd ? signed_scales & 0xffffu : signed_scales;
    }
}

void quant_fill_random(const cuda_launch *l, const cuda_matrix *w, float deviation, uint64_t seed) {
    cuda_launch plain = *l;
    plain.programmatic = 0;
    /* Of codes that are all as likely: -8 to 7, -128 to 127. */
    float of_codes = w->form == CUDA_FORM_Q4 ? 4.6368092f : 73.902639f;
    unsigned scale = __half_as_ushort(__float2half_rn(deviation / of_codes));
    size_t words = (size_t)ceil_div(w->out, QUANT_ROWS) * quant_strip_bytes(w->form, w->ld) / sizeof(unsigned);
    launch_kernel(&plain, fill_quant_kernel, dim3(1056), dim3(512), 0, reinterpret_cast<unsigned *>(w->data), words,
                  quant_code_bytes(w->form) / 4, quant_unit_bytes(w->form) / 4, quant_units(w->ld),
                  w->ld % QUANT_VALUES != 0, scale | scale << 16, seed);
}
