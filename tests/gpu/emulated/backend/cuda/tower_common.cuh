/* In place of the real tower_common.cuh where the tower runs without a device: a block's memory is an array, a place in
 * it counts from its beginning, copies are done at once, and what a warp's lanes give each other to load and multiply
 * matrices goes through an array of the warp's. */
#ifndef KAKEYA_TESTS_GPU_EMULATED_TOWER_COMMON_CUH
#define KAKEYA_TESTS_GPU_EMULATED_TOWER_COMMON_CUH

#include <string.h>

#include "backend/cuda/common.cuh"

#undef __grid_constant__
#define __grid_constant__  /* nothing */
#define TOWER_MEMORY(name) alignas(16) static unsigned char name[1 << 18]

template <typename Kernel> static cudaError_t tower_allow(Kernel, int) { return cudaSuccess; }

static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

static inline float tower_exp2(float x) { return exp2f(x); }

namespace prompt {

enum { EMULATED_THREADS = 1024, LANES = 32, MOST_WORDS = 6 };

static unsigned char *memory_of_block;

static inline uint32_t shared_address(const void *p) {
    memory_of_block = (unsigned char *)(uintptr_t)p;
    return 0;
}

static inline void copy_async(uint32_t to, const void *from, bool valid) {
    if (valid)
        memcpy(memory_of_block + to, from, 16);
    else
        memset(memory_of_block + to, 0, 16);
}
static inline void copy_commit() {}
template <int PENDING> static inline void copy_wait() {}

struct lane_words {
    uint32_t word[MOST_WORDS];
};

/* What all lanes of the warp bring to this call. */
static inline const lane_words *gather(const lane_words &mine) {
    static lane_words words[2][EMULATED_THREADS];
    static unsigned calls[EMULATED_THREADS];
    lane_words *all = words[calls[threadIdx.x]++ % 2];
    all[threadIdx.x] = mine;
    __syncwarp();
    return all + threadIdx.x / LANES * LANES;
}

static inline float low_or_high(uint32_t pair, int high) {
    return __uint_as_float(high ? pair & 0xffff0000u : pair << 16);
}

/* Element `column` of row `row` of matrix i. */
static inline uint16_t element(const lane_words *lanes, int i, int row, int column) {
    uint16_t bits;
    memcpy(&bits, memory_of_block + lanes[i * 8 + row].word[0] + 2 * column, sizeof bits);
    return bits;
}

static inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
    const lane_words *lanes = gather({{address}});
    const int row = (int)threadIdx.x % LANES / 4, column = (int)threadIdx.x % 4 * 2;
    for (int i = 0; i < 4; i++)
        r[i] = element(lanes, i, row, column) | (uint32_t)element(lanes, i, row, column + 1) << 16;
}

static inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
    const lane_words *lanes = gather({{address}});
    const int row = (int)threadIdx.x % LANES / 4, column = (int)threadIdx.x % 4 * 2;
    for (int i = 0; i < 4; i++)
        r[i] = element(lanes, i, column, row) | (uint32_t)element(lanes, i, column + 1, row) << 16;
}

static inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const lane_words *lanes = gather({{a[0], a[1], a[2], a[3], b0, b1}});
    const int lane = (int)threadIdx.x % LANES;
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; k++) {
            const int upper = k / 8, inside = k % 8;
            const uint32_t x = lanes[row % 8 * 4 + inside / 2].word[row / 8 + 2 * upper],
                           y = lanes[column * 4 + inside / 2].word[4 + upper];
            c[i] += low_or_high(x, k % 2) * low_or_high(y, k % 2);
        }
    }
}

static inline uint32_t pack_pair(float low, float high) {
    return __float2bfloat16_rn(low).bits | (uint32_t)__float2bfloat16_rn(high).bits << 16;
}

} // namespace prompt

#endif
