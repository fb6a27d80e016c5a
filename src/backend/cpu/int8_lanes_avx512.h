/* The vocabulary of int8_tiles.h for AVX-512 with VNNI: a vector is the 16 outputs of a tile. */
#ifndef KAKEYA_BACKEND_CPU_INT8_LANES_AVX512_H
#define KAKEYA_BACKEND_CPU_INT8_LANES_AVX512_H

#include <immintrin.h>

#include "backend/cpu/int8_codes.h"

#define PROBE_SUMS 12
#define TILE_ROWS  8
#define LANES_PANELS
enum { LANES = 16, LANES_SIGNED_WIDE = 0 };

typedef __m512 lanes_f32;
typedef __m512i lanes_i32;
typedef __m512i lanes_codes;
typedef __m512i lanes_part;

BLOCKS_INLINE lanes_i32 lanes_zero(void) { return _mm512_setzero_si512(); }
BLOCKS_INLINE lanes_f32 lanes_zero_f32(void) { return _mm512_setzero_ps(); }
BLOCKS_INLINE lanes_f32 lanes_set(const float *p) { return _mm512_set1_ps(*p); }
BLOCKS_INLINE lanes_i32 lanes_set_i32(const int32_t *p) { return _mm512_set1_epi32(*p); }
BLOCKS_INLINE lanes_f32 lanes_load(const float *p) { return _mm512_loadu_ps(p); }
BLOCKS_INLINE void lanes_store(float *p, lanes_f32 x) { _mm512_storeu_ps(p, x); }
BLOCKS_INLINE lanes_f32 lanes_mul(lanes_f32 a, lanes_f32 b) { return _mm512_mul_ps(a, b); }
BLOCKS_INLINE lanes_f32 lanes_fma(lanes_f32 a, lanes_f32 b, lanes_f32 c) { return _mm512_fmadd_ps(a, b, c); }
BLOCKS_INLINE lanes_f32 lanes_negative(lanes_f32 x) { return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f)); }
BLOCKS_INLINE lanes_f32 lanes_to_f32(lanes_i32 x) { return _mm512_cvtepi32_ps(x); }
BLOCKS_INLINE lanes_i32 lanes_and(lanes_i32 x, int mask) { return _mm512_and_si512(x, _mm512_set1_epi32(mask)); }
BLOCKS_INLINE lanes_i32 lanes_right(lanes_i32 x, int n) { return _mm512_srli_epi32(x, (unsigned)n); }
BLOCKS_INLINE __m128i lanes_16_bytes(const unsigned char *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
BLOCKS_INLINE lanes_i32 lanes_u8(const unsigned char *p) { return _mm512_cvtepu8_epi32(lanes_16_bytes(p)); }
BLOCKS_INLINE lanes_i32 lanes_s8(const unsigned char *p) { return _mm512_cvtepi8_epi32(lanes_16_bytes(p)); }
BLOCKS_INLINE lanes_f32 lanes_f16(const unsigned char *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
BLOCKS_INLINE lanes_f32 lanes_bf16(const unsigned char *p) {
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
/* e8m0_half and nvfp4_scale (int8_forms.h, blocks.h) of every lane. */
BLOCKS_INLINE lanes_f32 lanes_e8m0(const unsigned char *p) {
    __m512i e = lanes_u8(p), ordinary = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __mmask16 small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(ordinary, small, _mm512_set1_epi32(0x00200000), e));
}
BLOCKS_INLINE lanes_f32 lanes_e4m3(const unsigned char *p) {
    __m512i bits = lanes_u8(p), size = lanes_and(bits, 0x7f);
    __mmask16 number = _mm512_cmpneq_epi32_mask(bits, _mm512_set1_epi32(0x7f));
    __mmask16 subnormal = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(8));
    __m512 value = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(size, 20), _mm512_set1_epi32(119 << 23)));
    value = _mm512_mask_mul_ps(value, subnormal, lanes_to_f32(size), _mm512_set1_ps(0x1p-10f));
    return _mm512_maskz_mov_ps(number, value);
}
/* No number where x is n. */
BLOCKS_INLINE lanes_f32 lanes_none_where(lanes_i32 x, int n, lanes_f32 value) {
    return _mm512_mask_mov_ps(value, _mm512_cmpeq_epi32_mask(x, _mm512_set1_epi32(n)), _mm512_set1_ps(NAN));
}
/* The value is not negative; bit 7 of bits is its sign. */
BLOCKS_INLINE lanes_f32 lanes_with_sign(lanes_i32 bits, lanes_f32 value) {
    return _mm512_castsi512_ps(
        _mm512_or_si512(_mm512_castps_si512(value), _mm512_slli_epi32(lanes_and(bits, 0x80), 24)));
}
/* a * half[0] + b * half[1] in every lane. */
BLOCKS_INLINE lanes_i32 lanes_pairs(int a, int b, const int16_t half[2]) {
    int32_t both;
    memcpy(&both, half, sizeof both);
    return _mm512_madd_epi16(_mm512_set1_epi32((a & 0xffff) | (int)((unsigned)b << 16)), _mm512_set1_epi32(both));
}
BLOCKS_INLINE void lanes_keep(lanes_i32 x) { __asm__ volatile("" : : "v"(x)); }

BLOCKS_INLINE lanes_codes codes_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
BLOCKS_INLINE void codes_store(uint8_t *p, lanes_codes c) { _mm512_storeu_si512(p, c); }
BLOCKS_INLINE lanes_codes codes_and(lanes_codes c, int mask) {
    return _mm512_and_si512(c, _mm512_set1_epi8((char)mask));
}
BLOCKS_INLINE lanes_codes codes_add(lanes_codes c, int n) { return _mm512_add_epi8(c, _mm512_set1_epi8((char)n)); }
BLOCKS_INLINE lanes_codes codes_or(lanes_codes a, lanes_codes b) { return _mm512_or_si512(a, b); }
/* Shifts move bits from byte to byte: callers mask. */
typedef uint16_t lanes_words __attribute__((vector_size(64)));
BLOCKS_INLINE lanes_codes codes_left(lanes_codes c, int n) { return (__m512i)((lanes_words)c << (uint16_t)n); }
BLOCKS_INLINE lanes_codes codes_right(lanes_codes c, int n) { return (__m512i)((lanes_words)c >> (uint16_t)n); }
BLOCKS_INLINE lanes_codes codes_flip(lanes_codes c) { return _mm512_xor_si512(c, _mm512_set1_epi8((char)0x80)); }
BLOCKS_INLINE lanes_codes codes_look_up(const int8_t *table, int offset, lanes_codes c) {
    __m128i values = _mm_add_epi8(_mm_loadu_si128((const __m128i *)(const void *)table), _mm_set1_epi8((char)offset));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), c);
}

/* The same codes, as far as the compiler knows others. */
BLOCKS_INLINE lanes_codes codes_others(lanes_codes c) {
    __asm__("" : "+v"(c));
    return c;
}

/* Sums of four products have 32 bits at once. */
#define PART_PIECES(largest) 8
BLOCKS_INLINE lanes_part part_begin(lanes_i32 sum) { return sum; }
BLOCKS_INLINE lanes_i32 part_end(lanes_i32 sum, lanes_part part) {
    (void)sum;
    return part;
}
BLOCKS_INLINE lanes_part part_add(lanes_part part, lanes_codes c, const void *x, bool is_signed) {
    int32_t four;
    (void)is_signed;
    memcpy(&four, x, sizeof four);
    return _mm512_dpbusd_epi32(part, c, _mm512_set1_epi32(four));
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

/* int8_pack_block of 32 values. A largest size of zero or none leaves r zero; codes are then cleared, for NaN times
 * zero is none. */
BLOCKS_INLINE void lanes_pack(const float *x, int8_record *out) {
    __m512 values[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
    __m512i size =
        _mm512_max_epu32(_mm512_castps_si512(_mm512_abs_ps(values[0])), _mm512_castps_si512(_mm512_abs_ps(values[1])));
    float r = int8_steps(_mm512_reduce_max_epu32(size), &out->scale);
    int total = 0;
    for (int h = 0; h < 2; h++) {
        __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps(values[h], _mm512_set1_ps(r)));
        if (r == 0) codes = _mm512_setzero_si512();
        _mm_storeu_si128((__m128i *)(void *)(out->codes + 16 * h), _mm512_cvtepi32_epi8(codes));
        int sum = _mm512_reduce_add_epi32(codes);
        out->half[h] = (int16_t)sum;
        total += sum;
    }
    out->total = (float)total;
    out->start = -128 * total;
}

#endif
