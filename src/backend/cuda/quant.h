/* How quantised weights lie on the device. Rows come in strips of eight, a strip in units of 64 values of each row; a
 * unit is its codes, then its scales. Lane 4 g + t of a warp finds its codes of row g, eight values of each of two
 * blocks of 32, side by side, so that a warp reads a unit in order. They are values 8 t to 8 t + 7 of a block; of G8 4
 * t to 4 t + 3 and 16 + 4 t to 16 + 4 t + 3, of G4 likewise. Pairs of neighbouring values lie 16 bits apart, as the
 * tensor cores take them:
 *
 *   codes of 4 bits   a word of each block: the lane's value 2 i in bits 4 i, value 2 i + 1 in bits 16 + 4 i
 *   codes of 8 bits   two words of each block, of four values: bytes 0, 2, 1, 3
 *
 *   form   code                     value                     scales of a row in a unit
 *   Q4     4 bits, the code + 8     scale code                2 float16, one for each block
 *   Q8     8 bits, signed           scale code                the same
 *   A4     4 bits, unsigned         scale code + offset       2 (float32 scale, offset)
 *   A8     8 bits, unsigned         scale code + offset       the same
 *   G8     8 bits, signed           scale code                4 float32, one for each 16 values
 *   F8     8 bits, e4m3             scale code                2 float32, one for each block
 *   S4     4 bits, the code + 8     scale code                the same
 *   G4     4 bits, twice an e2m1    scale code                4 float32, one for each 16 values
 *
 * Rows and values behind the last have codes, scales and offsets of zero (of Q4 and S4: nibbles of 8). Strips lie
 * behind each other, those of experts, too: a matrix of experts has whole strips of each. */
#ifndef KAKEYA_BACKEND_CUDA_QUANT_H
#define KAKEYA_BACKEND_CUDA_QUANT_H

#include "backend/cuda/kernels.h"

#ifdef __CUDACC__
#define QUANT_INLINE static __host__ __device__ __forceinline__
#else
#define QUANT_INLINE static inline
#endif

enum {
    QUANT_ROWS = 8,    /* of a strip */
    QUANT_VALUES = 64, /* of a row in a unit */
    QUANT_BLOCK = 32,  /* values that share a scale */
    QUANT_BLOCKS = QUANT_VALUES / QUANT_BLOCK,
};

/* Codes of four bits? */
QUANT_INLINE int quant_is_narrow(cuda_form form) {
    return form == CUDA_FORM_Q4 || form == CUDA_FORM_A4 || form == CUDA_FORM_S4 || form == CUDA_FORM_G4;
}
/* Scales of 16 values? */
QUANT_INLINE int quant_is_halved(cuda_form form) { return form == CUDA_FORM_G8 || form == CUDA_FORM_G4; }
/* Bytes of codes, and of scales, of a unit. */
QUANT_INLINE int quant_code_bytes(cuda_form form) {
    return QUANT_ROWS * QUANT_VALUES / (quant_is_narrow(form) ? 2 : 1);
}
QUANT_INLINE int quant_row_scales(cuda_form form) { /* bytes of one row */
    return form == CUDA_FORM_Q4 || form == CUDA_FORM_Q8 ? 4 : form == CUDA_FORM_F8 || form == CUDA_FORM_S4 ? 8 : 16;
}
QUANT_INLINE int quant_unit_bytes(cuda_form form) {
    return quant_code_bytes(form) + QUANT_ROWS * quant_row_scales(form);
}
QUANT_INLINE int quant_units(int in) { return (in + QUANT_VALUES - 1) / QUANT_VALUES; }
QUANT_INLINE size_t quant_strip_bytes(cuda_form form, int in) {
    return (size_t)quant_units(in) * (size_t)quant_unit_bytes(form);
}

/* Where a lane's codes of a unit begin: those of its block 0, then those of block 1. */
QUANT_INLINE int quant_lane_offset(cuda_form form, int lane) { return lane * (quant_code_bytes(form) / 32); }
/* Where the scales of row g of a strip lie in a unit: those of block 0, then those of block 1. */
QUANT_INLINE int quant_scale_offset(cuda_form form, int g, int block) {
    return quant_code_bytes(form) + quant_row_scales(form) / QUANT_BLOCKS * (g * QUANT_BLOCKS + block);
}
/* The lane's place among four that has value k of a block, and which of its eight it is. */
QUANT_INLINE int quant_lane(cuda_form form, int k) { return quant_is_halved(form) ? k % 16 / 4 : k / 8; }
QUANT_INLINE int quant_place(cuda_form form, int k) { return quant_is_halved(form) ? k / 16 * 4 + k % 4 : k % 8; }
/* Of a lane's value j the bits of a word, or the byte. */
QUANT_INLINE int quant_q4_shift(int j) { return j / 2 * 4 + (j & 1) * 16; }
QUANT_INLINE int quant_q8_byte(int j) { return j / 4 * 4 + (j & 1) * 2 + (j >> 1 & 1); }

#ifdef __cplusplus
extern "C" {
#endif

/* Products of few rows, as those with weights in bf16 (kernels.h): codes enter the tensor cores exactly, each block of
 * 32 is summed from zero, and its sum enters a float32 with the block's scale by one fma. `form` is that of all. */
void quant_products(const cuda_launch *l, cuda_form form, const cuda_product *products, int n, int in,
                    const cuda_bf16 *x, int ldx, int rows, float cap);
void quant_gate_up(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows);
void quant_down(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows);

/* Rows [0, rows) in bf16, rounded: out [rows][w->ld]. */
void quant_expand(const cuda_launch *l, const cuda_matrix *w, int rows, cuda_bf16 *out);
/* The same for experts [first, first + n), each of `rows` rows, but for experts that no row of the prompt has chosen,
 * whose places are left as they are. out [n * rows][w->ld]. */
void quant_expand_experts(const cuda_launch *l, const cuda_matrix *w, int rows, const cuda_route *route, int first,
                          int n, cuda_bf16 *out);

/* Random codes with one scale, so that values have this standard deviation; a pure function of (seed, index). */
void quant_fill_random(const cuda_launch *l, const cuda_matrix *w, float deviation, uint64_t seed);

#ifdef __cplusplus
}
#endif

#endif
