/* int8 products with AVX-512 and its instruction for sums of four products of bytes. */
#include <immintrin.h>

#include "backend/cpu/blocks.h"

enum { TILE_ROWS = 8 };

typedef __m512 lanes_f32;
typedef __m512i lanes_i32;
typedef __m512i lanes_codes;

BLOCKS_INLINE lanes_i32 lanes_zero(void) { return _mm512_setzero_si512(); }
BLOCKS_INLINE lanes_i32 lanes_set(int32_t x) { return _mm512_set1_epi32(x); }
BLOCKS_INLINE lanes_f32 lanes_load(const float *p) { return _mm512_loadu_ps(p); }
BLOCKS_INLINE void lanes_store(float *p, lanes_f32 x) { _mm512_storeu_ps(p, x); }
BLOCKS_INLINE lanes_codes lanes_load_codes(const uint8_t *p) { return _mm512_loadu_si512(p); }
BLOCKS_INLINE lanes_i32 lanes_add(lanes_i32 a, lanes_i32 b) { return _mm512_add_epi32(a, b); }
BLOCKS_INLINE lanes_i32 lanes_sub(lanes_i32 a, lanes_i32 b) { return _mm512_sub_epi32(a, b); }
BLOCKS_INLINE lanes_i32 lanes_mul(lanes_i32 a, const int32_t *scales) {
    return _mm512_mullo_epi32(a, _mm512_loadu_si512(scales));
}
BLOCKS_INLINE lanes_f32 lanes_to_f32(lanes_i32 x) { return _mm512_cvtepi32_ps(x); }
/* (scales * sx) * x + acc, the sum with one rounding. */
BLOCKS_INLINE lanes_f32 lanes_fma_scaled(const float *scales, float sx, lanes_f32 x, lanes_f32 acc) {
    return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_loadu_ps(scales), _mm512_set1_ps(sx)), x, acc);
}
/* sum += four unsigned codes of each lane by four of the activations. */
BLOCKS_INLINE lanes_i32 lanes_dot(lanes_i32 sum, lanes_codes w, const unsigned char *x, bool wide) {
    int32_t four;
    (void)wide;
    memcpy(&four, x, sizeof four);
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(four));
}

/* [16][8] dwords to [8][16]. Rows i and i + 8 share a vector. */
BLOCKS_INLINE void transpose_codes(const uint8_t *in, uint8_t *out) {
    __m512i r[8], t[8], q[8];
    for (int i = 0; i < 8; i++) {
        __m256i upper = _mm256_loadu_si256((const __m256i *)(const void *)(in + 32 * (i + 8)));
        r[i] = _mm512_inserti64x4(
            _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)(in + 32 * i))), upper, 1);
    }
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        q[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        q[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        q[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        q[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    /* Lanes of 128 bits: dword i of four rows, dword i + 4 of the same, and both of the rows eight further on. */
    const __m512i even = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13),
                  odd = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(out + 64 * i, _mm512_permutex2var_epi64(q[i], even, q[i + 4]));
        _mm512_storeu_si512(out + 64 * (i + 4), _mm512_permutex2var_epi64(q[i], odd, q[i + 4]));
    }
}

#include "backend/cpu/int8_tiles.h"

const int8_kernels int8_vnni = INT8_TABLE;
