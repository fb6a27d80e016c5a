/* Quantised weights of one product in bf16, for prompts: their kernels (prompt_gemm.h) take bf16 alone. A value is code
 * times scale in float32, rounded once. And made-up weights. */
#include "backend/cuda/quant_values.cuh"

enum { EXPAND_THREADS = 256, EXPAND_WARPS = EXPAND_THREADS / 32 };

/* One warp: the unit of a strip whose codes lie at `unit`, to eight rows of `out`. */
template <cuda_form FORM>
static __device__ __forceinline__ void expand_unit(const char *unit, cuda_bf16 *out, int ld, int k, int rows) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    lane_codes<FORM> codes;
    row_scales<FORM> scales;
    load_run(codes.word, unit + quant_lane_offset(FORM, lane));
    load_run(scales.word, unit + quant_scale_offset(FORM, g, 0));
#pragma unroll
    for (int b = 0; b < QUANT_BLOCKS; b++) {
        if (k + b * QUANT_BLOCK >= ld || g >= rows) return;
        unsigned value[4];
        codes.pairs(b, value);
#pragma unroll
        for (int i = 0; i < 4; i++)
            value[i] = scaled_pair(value[i], scales.scale(b, i / 2), scales.offset(b), row_scales<FORM>::AFFINE);
        cuda_bf16 *to = out + (size_t)g * ld + k + b * QUANT_BLOCK;
        if (halved<FORM>) {
            *reinterpret_cast<uint2 *>(to + 4 * t) = make_uint2(value[0], value[1]);
            *reinterpret_cast<uint2 *>(to + 4 * t + 16) = make_uint2(value[2], value[3]);
        } else {
            *reinterpret_cast<uint4 *>(to + 8 * t) = make_uint4(value[0], value[1], value[2], value[3]);
        }
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
    static void (*const kernels[CUDA_FORMS])(const char *, int, int, int, const int *,
                                             cuda_bf16 *) = {nullptr,
                                                             expand_kernel<CUDA_FORM_Q4>,
                                                             expand_kernel<CUDA_FORM_Q8>,
                                                             expand_kernel<CUDA_FORM_A4>,
                                                             expand_kernel<CUDA_FORM_A8>,
                                                             expand_kernel<CUDA_FORM_G8>,
                                                             expand_kernel<CUDA_FORM_F8>,
                                                             expand_kernel<CUDA_FORM_S4>,
                                                             expand_kernel<CUDA_FORM_G4>};
    launch_kernel(&whole, kernels[w->form], blocks, threads, 0, data, w->ld, rows, strips_of_expert, begin, out);
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

/* Words of codes are random, those of scales the same but for their signs, so that values are about as often above zero
 * as below (codes of F8 have signs, and one scale a row); offsets take off the mean. Blocks behind the last of a row
 * have scales and offsets of zero. */
static __global__ void fill_quant_kernel(unsigned *data, size_t words, cuda_form form, int units, bool odd, float scale,
                                         float offset, uint64_t seed) {
    int code_words = quant_code_bytes(form) / 4, unit_words = quant_unit_bytes(form) / 4,
        row_words = quant_row_scales(form) / 4;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words; i += (size_t)gridDim.x * blockDim.x) {
        int at = (int)(i % unit_words) - code_words;
        bool last = odd && i / unit_words % units == (size_t)units - 1;
        unsigned random = random_word(seed, i);
        if (at < 0) {
            data[i] = form == CUDA_FORM_F8 ? random & 0xb7b7b7b7u : random; /* below 1 */
        } else if (row_words == 1) {
            unsigned bits = __half_as_ushort(__float2half_rn(scale)), both = bits | bits << 16;
            data[i] = (both ^ (random & 0x80008000u)) & (last ? 0xffffu : ~0u);
        } else {
            bool second = at % row_words >= row_words / 2, affine = form == CUDA_FORM_A4 || form == CUDA_FORM_A8;
            unsigned sign = form == CUDA_FORM_F8 ? 0 : random_word(seed, affine ? i / 2 : i) & 0x80000000u;
            float value = affine && at % 2 ? offset : scale;
            data[i] = last && second ? 0 : __float_as_uint(value) ^ sign;
        }
    }
}

void quant_fill_random(const cuda_launch *l, const cuda_matrix *w, float deviation, uint64_t seed) {
    cuda_launch plain = *l;
    plain.programmatic = 0;
    /* Of codes that are all as likely: floats of 4 bits, 16 in a row, 256 in a row, and floats below 1. */
    float of_codes = w->form == CUDA_FORM_G4    ? 5.8523500f
                     : quant_is_narrow(w->form) ? 4.6368092f
                     : w->form == CUDA_FORM_F8  ? 0.38f
                                                : 73.902639f;
    float scale = deviation / of_codes, mean = w->form == CUDA_FORM_A4 ? 7.5f : 127.5f;
    size_t words = (size_t)ceil_div(w->out, QUANT_ROWS) * quant_strip_bytes(w->form, w->ld) / sizeof(unsigned);
    launch_kernel(&plain, fill_quant_kernel, dim3(1056), dim3(512), 0, reinterpret_cast<unsigned *>(w->data), words,
                  w->form, quant_units(w->ld), w->ld % QUANT_VALUES != 0, scale, -mean * scale, seed);
}
