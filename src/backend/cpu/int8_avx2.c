/* int8 products with AVX2: eight outputs at a time. */
#include <immintrin.h>

#include "backend/cpu/int8_codes.h"

#define PROBE_SUMS 6
#define TILE_ROWS  4
enum { LANES = 8, LANES_SIGNED_WIDE = 1 };

typedef __m256 lanes_f32;
typedef __m256i lanes_i32;
typedef __m256i lanes_codes;
typedef __m256i lanes_part;

BLOCKS_INLINE lanes_i32 lanes_zero(void) { return _mm256_setzero_si256(); }
BLOCKS_INLINE lanes_f32 lanes_zero_f32(void) { return _mm256_setzero_ps(); }
BLOCKS_INLINE lanes_f32 lanes_set(const float *p) { return _mm256_broadcast_ss(p); }
BLOCKS_INLINE lanes_f32 lanes_load(const float *p) { return _mm256_loadu_ps(p); }
BLOCKS_INLINE void lanes_store(float *p, lanes_f32 x) { _mm256_storeu_ps(p, x); }
BLOCKS_INLINE lanes_f32 lanes_mul(lanes_f32 a, lanes_f32 b) { return _mm256_mul_ps(a, b); }
BLOCKS_INLINE lanes_f32 lanes_fma(lanes_f32 a, lanes_f32 b, lanes_f32 c) { return _mm256_fmadd_ps(a, b, c); }
BLOCKS_INLINE lanes_f32 lanes_negative(lanes_f32 x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }
BLOCKS_INLINE lanes_f32 lanes_to_f32(lanes_i32 x) { return _mm256_cvtepi32_ps(x); }
BLOCKS_INLINE lanes_i32 lanes_and(lanes_i32 x, int mask) { return _mm256_and_si256(x, _mm256_set1_epi32(mask)); }
BLOCKS_INLINE lanes_i32 lanes_right(lanes_i32 x, int n) { return _mm256_srli_epi32(x, n); }
BLOCKS_INLINE __m128i lanes_8_bytes(const unsigned char *p) {
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}
BLOCKS_INLINE lanes_i32 lanes_u8(const unsigned char *p) { return _mm256_cvtepu8_epi32(lanes_8_bytes(p)); }
BLOCKS_INLINE lanes_i32 lanes_s8(const unsigned char *p) { return _mm256_cvtepi8_epi32(lanes_8_bytes(p)); }
BLOCKS_INLINE lanes_f32 lanes_f16(const unsigned char *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
BLOCKS_INLINE lanes_f32 lanes_bf16(const unsigned char *p) {
    __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
/* e8m0_half and nvfp4_scale (int8_forms.h, blocks.h) of every lane. */
BLOCKS_INLINE lanes_f32 lanes_e8m0(const unsigned char *p) {
    __m256i e = lanes_u8(p), ordinary = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(ordinary, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}
BLOCKS_INLINE lanes_f32 lanes_e4m3(const unsigned char *p) {
    __m256i bits = lanes_u8(p), none = _mm256_cmpeq_epi32(bits, _mm256_set1_epi32(0x7f)), size = lanes_and(bits, 0x7f);
    __m256 ordinary = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(size, 20), _mm256_set1_epi32(119 << 23)));
    __m256 subnormal = _mm256_mul_ps(lanes_to_f32(size), _mm256_set1_ps(0x1p-10f));
    __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), size);
    __m256 value = _mm256_blendv_ps(ordinary, subnormal, _mm256_castsi256_ps(small));
    return _mm256_andnot_ps(_mm256_castsi256_ps(none), value);
}
/* No number where x is n. */
BLOCKS_INLINE lanes_f32 lanes_none_where(lanes_i32 x, int n, lanes_f32 value) {
    return _mm256_or_ps(value, _mm256_castsi256_ps(_mm256_cmpeq_epi32(x, _mm256_set1_epi32(n))));
}
/* The value is not negative; bit 7 of bits is its sign. */
BLOCKS_INLINE lanes_f32 lanes_with_sign(lanes_i32 bits, lanes_f32 value) {
    return _mm256_or_ps(value, _mm256_castsi256_ps(_mm256_slli_epi32(lanes_and(bits, 0x80), 24)));
}
/* a * half[0] + b * half[1] in every lane. */
BLOCKS_INLINE lanes_i32 lanes_pairs(int a, int b, const int16_t half[2]) {
    int32_t both;
    memcpy(&both, half, sizeof both);
    return _mm256_madd_epi16(_mm256_set1_epi32((a & 0xffff) | (int)((unsigned)b << 16)), _mm256_set1_epi32(both));
}
BLOCKS_INLINE void lanes_keep(lanes_i32 x) { __asm__ volatile("" : : "v"(x)); }

BLOCKS_INLINE lanes_codes codes_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
BLOCKS_INLINE void codes_store(uint8_t *p, lanes_codes c) { _mm256_storeu_si256((__m256i *)(void *)p, c); }
BLOCKS_INLINE lanes_codes codes_and(lanes_codes c, int mask) {
    return _mm256_and_si256(c, _mm256_set1_epi8((char)mask));
}
BLOCKS_INLINE lanes_codes codes_or(lanes_codes a, lanes_codes b) { return _mm256_or_si256(a, b); }
/* Shifts move bits from byte to byte: callers mask. */
BLOCKS_INLINE lanes_codes codes_left(lanes_codes c, int n) { return _mm256_slli_epi16(c, n); }
BLOCKS_INLINE lanes_codes codes_right(lanes_codes c, int n) { return _mm256_srli_epi16(c, n); }
BLOCKS_INLINE lanes_codes codes_flip(lanes_codes c) { return _mm256_xor_si256(c, _mm256_set1_epi8((char)0x80)); }
BLOCKS_INLINE lanes_codes codes_look_up(const int8_t *table, int offset, lanes_codes c) {
    __m128i values = _mm_add_epi8(_mm_loadu_si128((const __m128i *)(const void *)table), _mm_set1_epi8((char)offset));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), c);
}

/* The same codes, as far as the compiler knows others. */
BLOCKS_INLINE lanes_codes codes_others(lanes_codes c) {
    __asm__("" : "+v"(c));
    return c;
}

/* Sums of two products have 16 bits, into which so many pieces fit: 2 * 8 * 15 * 127, 2 * 4 * 31 * 127, ... */
#define PART_PIECES(largest) ((largest) <= 15 ? 8 : (largest) <= 31 ? 4 : (largest) <= 63 ? 2 : 1)
BLOCKS_INLINE lanes_part part_begin(lanes_i32 sum) {
    (void)sum;
    return _mm256_setzero_si256();
}
BLOCKS_INLINE lanes_i32 part_end(lanes_i32 sum, lanes_part part) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(part, _mm256_set1_epi16(1)));
}
/* The instruction wants unsigned codes by signed ones; of signed codes the activations take the sign: 2 * 128 * 127
 * fits. */
BLOCKS_INLINE lanes_part part_add(lanes_part part, lanes_codes c, const void *x, bool is_signed) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    __m256i values = _mm256_set1_epi32(four);
    __m256i products = is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(c), _mm256_sign_epi8(values, c))
                                 : _mm256_maddubs_epi16(c, values);
    return _mm256_add_epi16(part, products);
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

/* int8_pack_block of 32 values; see int8_lanes_avx512.h. */
BLOCKS_INLINE void lanes_pack(const float *x, int8_record *out) {
    const __m256i bits = _mm256_set1_epi32(0x7fffffff);
    __m256i codes[4], size = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++)
        size = _mm256_max_epu32(size, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + 8 * i)), bits));
    __m128i most = _mm_max_epu32(_mm256_castsi256_si128(size), _mm256_extracti128_si256(size, 1));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4e));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xb1));
    float r = int8_steps((uint32_t)_mm_cvtsi128_si32(most), &out->scale);
    for (int i = 0; i < 4; i++) {
        codes[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(r)));
        if (r == 0) codes[i] = _mm256_setzero_si256();
    }
    int total = 0;
    for (int h = 0; h < 2; h++) {
        __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(codes[2 * h], codes[2 * h + 1]), 0xd8);
        __m128i lower = _mm256_castsi256_si128(words), upper = _mm256_extracti128_si256(words, 1);
        _mm_storeu_si128((__m128i *)(void *)(out->codes + 16 * h), _mm_packs_epi16(lower, upper));
        __m128i sums = _mm_madd_epi16(_mm_add_epi16(lower, upper), _mm_set1_epi16(1));
        sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4e));
        int sum = _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0xb1)));
        out->half[h] = (int16_t)sum;
        total += sum;
    }
    out->total = (float)total;
    out->start = -128 * total;
}

#include "backend/cpu/int8_tiles.h"

const int8_kernels int8_avx2 = INT8_TABLE;
