/* int8 products with AVX2: sixteen lanes are two vectors. */
#include <immintrin.h>

#include "backend/cpu/blocks.h"

enum { TILE_ROWS = 2 };

typedef struct lanes_f32 {
    __m256 v[2];
} lanes_f32;
typedef struct lanes_i32 {
    __m256i v[2];
} lanes_i32;
typedef lanes_i32 lanes_codes;

BLOCKS_INLINE lanes_i32 lanes_zero(void) { return (lanes_i32){{_mm256_setzero_si256(), _mm256_setzero_si256()}}; }
BLOCKS_INLINE lanes_i32 lanes_set(int32_t x) { return (lanes_i32){{_mm256_set1_epi32(x), _mm256_set1_epi32(x)}}; }
BLOCKS_INLINE lanes_f32 lanes_load(const float *p) { return (lanes_f32){{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
BLOCKS_INLINE void lanes_store(float *p, lanes_f32 x) {
    _mm256_storeu_ps(p, x.v[0]);
    _mm256_storeu_ps(p + 8, x.v[1]);
}
BLOCKS_INLINE lanes_i32 lanes_load_i32(const void *p) {
    const __m256i *at = p;
    return (lanes_i32){{_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)}};
}
BLOCKS_INLINE lanes_codes lanes_load_codes(const uint8_t *p) { return lanes_load_i32(p); }
BLOCKS_INLINE lanes_i32 lanes_add(lanes_i32 a, lanes_i32 b) {
    return (lanes_i32){{_mm256_add_epi32(a.v[0], b.v[0]), _mm256_add_epi32(a.v[1], b.v[1])}};
}
BLOCKS_INLINE lanes_i32 lanes_sub(lanes_i32 a, lanes_i32 b) {
    return (lanes_i32){{_mm256_sub_epi32(a.v[0], b.v[0]), _mm256_sub_epi32(a.v[1], b.v[1])}};
}
BLOCKS_INLINE lanes_i32 lanes_mul(lanes_i32 a, const int32_t *scales) {
    lanes_i32 b = lanes_load_i32(scales);
    return (lanes_i32){{_mm256_mullo_epi32(a.v[0], b.v[0]), _mm256_mullo_epi32(a.v[1], b.v[1])}};
}
BLOCKS_INLINE lanes_f32 lanes_to_f32(lanes_i32 x) {
    return (lanes_f32){{_mm256_cvtepi32_ps(x.v[0]), _mm256_cvtepi32_ps(x.v[1])}};
}
/* (scales * sx) * x + acc, the sum with one rounding. */
BLOCKS_INLINE lanes_f32 lanes_fma_scaled(const float *scales, float sx, lanes_f32 x, lanes_f32 acc) {
    __m256 factor = _mm256_set1_ps(sx);
    for (int i = 0; i < 2; i++)
        acc.v[i] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_loadu_ps(scales + 8 * i), factor), x.v[i], acc.v[i]);
    return acc;
}

/* sum += four unsigned codes of each lane by four of the activations. Pairs are added in 16 bits: codes above 127 would
 * overflow them, and are split into 128 and a signed rest. */
BLOCKS_INLINE lanes_i32 lanes_dot(lanes_i32 sum, lanes_codes w, const unsigned char *x, bool wide) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    const __m256i values = _mm256_set1_epi32(four), ones = _mm256_set1_epi16(1);
    for (int i = 0; i < 2; i++) {
        __m256i pairs;
        if (wide) {
            const __m256i rest = _mm256_xor_si256(w.v[i], _mm256_set1_epi8((char)0x80));
            pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(rest), _mm256_sign_epi8(values, rest));
            const __m256i whole = _mm256_maddubs_epi16(_mm256_set1_epi8(64), values); /* 2 * 64 * 127 fits */
            sum.v[i] = _mm256_add_epi32(sum.v[i], _mm256_slli_epi32(_mm256_madd_epi16(whole, ones), 1));
        } else {
            pairs = _mm256_maddubs_epi16(w.v[i], values);
        }
        sum.v[i] = _mm256_add_epi32(sum.v[i], _mm256_madd_epi16(pairs, ones));
    }
    return sum;
}

/* [16][8] dwords to [8][16]. */
BLOCKS_INLINE void transpose_codes(const uint8_t *in, uint8_t *out) {
    for (int half = 0; half < 2; half++) {
        __m256i r[8], t[8], q[8];
        for (int i = 0; i < 8; i++)
            r[i] = _mm256_loadu_si256((const __m256i *)(const void *)(in + 32 * (8 * half + i)));
        for (int i = 0; i < 8; i += 2) {
            t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
            t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
        }
        for (int i = 0; i < 8; i += 4) {
            q[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
            q[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
            q[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
            q[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
        }
        for (int i = 0; i < 4; i++) {
            uint8_t *to = out + 64 * i + 32 * half;
            _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute2x128_si256(q[i], q[i + 4], 0x20));
            _mm256_storeu_si256((__m256i *)(void *)(to + 64 * 4), _mm256_permute2x128_si256(q[i], q[i + 4], 0x31));
        }
    }
}

#include "backend/cpu/int8_tiles.h"

const int8_kernels int8_avx2 = INT8_TABLE;
