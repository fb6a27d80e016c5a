/* The vector vocabulary of kernels_vector.h for AVX2 with FMA and F16C: 8 lanes, 16 registers. */
#ifndef KAKEYA_BACKEND_CPU_SIMD_AVX2_H
#define KAKEYA_BACKEND_CPU_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define SIMD_INLINE static inline __attribute__((always_inline))

enum { SIMD_LANES = 8, SIMD_REGISTERS = 16 };
typedef __m256 simd_f32;

SIMD_INLINE simd_f32 simd_zero(void) { return _mm256_setzero_ps(); }
SIMD_INLINE simd_f32 simd_set1(float x) { return _mm256_set1_ps(x); }
SIMD_INLINE simd_f32 simd_load(const void *p) { return _mm256_loadu_ps(p); }
/* x, loaded once for all its uses: compilers like to read memory again as an operand of each. */
SIMD_INLINE simd_f32 simd_in_register(simd_f32 x) {
    __asm__("" : "+x"(x));
    return x;
}
SIMD_INLINE void simd_store(void *p, simd_f32 x) { _mm256_storeu_ps(p, x); }
/* 4 or 8 values, from any address to any. */
SIMD_INLINE void simd_copy_4(float *to, const float *from) { _mm_storeu_ps(to, _mm_loadu_ps(from)); }
SIMD_INLINE void simd_copy_8(float *to, const float *from) { _mm256_storeu_ps(to, _mm256_loadu_ps(from)); }
SIMD_INLINE simd_f32 simd_add(simd_f32 a, simd_f32 b) { return _mm256_add_ps(a, b); }
SIMD_INLINE simd_f32 simd_sub(simd_f32 a, simd_f32 b) { return _mm256_sub_ps(a, b); }
SIMD_INLINE simd_f32 simd_mul(simd_f32 a, simd_f32 b) { return _mm256_mul_ps(a, b); }
SIMD_INLINE simd_f32 simd_div(simd_f32 a, simd_f32 b) { return _mm256_div_ps(a, b); }
SIMD_INLINE simd_f32 simd_fma(simd_f32 a, simd_f32 b, simd_f32 c) { return _mm256_fmadd_ps(a, b, c); }
/* The second operand where either is NaN. */
SIMD_INLINE simd_f32 simd_max(simd_f32 a, simd_f32 b) { return _mm256_max_ps(a, b); }
SIMD_INLINE simd_f32 simd_min(simd_f32 a, simd_f32 b) { return _mm256_min_ps(a, b); }
SIMD_INLINE simd_f32 simd_round(simd_f32 x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SIMD_INLINE simd_f32 simd_abs(simd_f32 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
/* Magnitude of `magnitude` (not negative), sign of `sign`. */
SIMD_INLINE simd_f32 simd_with_sign(simd_f32 magnitude, simd_f32 sign) {
    return _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}
/* x * 2^n for whole n in [-152, 130]; subnormal results are rounded once. Two factors, since 2^n itself may not be a
 * float32: the first product is exact as long as |x| is near 1. */
SIMD_INLINE simd_f32 simd_scale2(simd_f32 x, simd_f32 n) {
    __m256i exponent = _mm256_cvtps_epi32(n);
    __m256i first = _mm256_srai_epi32(exponent, 1);
    __m256i second = _mm256_sub_epi32(exponent, first);
    const __m256i bias = _mm256_set1_epi32(127);
    x = _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23)));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23)));
}

SIMD_INLINE __m256i simd_mask_first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The first n lanes (0 <= n <= SIMD_LANES), the others zero; memory behind them is not touched. */
SIMD_INLINE simd_f32 simd_load_first(const void *p, int n) { return _mm256_maskload_ps(p, simd_mask_first(n)); }
SIMD_INLINE void simd_store_first(void *p, int n, simd_f32 x) { _mm256_maskstore_ps(p, simd_mask_first(n), x); }
/* x where a > b, `other` elsewhere. */
SIMD_INLINE simd_f32 simd_select_above(simd_f32 a, simd_f32 b, simd_f32 x, simd_f32 other) {
    return _mm256_blendv_ps(other, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
/* x in lanes [begin, end), `other` elsewhere. */
SIMD_INLINE simd_f32 simd_select_range(simd_f32 x, simd_f32 other, int begin, int end) {
    __m256i mask = _mm256_andnot_si256(simd_mask_first(begin), simd_mask_first(end));
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(mask));
}

/* --- codes of 8 bits -------------------------------------------------------------------------------------------- */

SIMD_INLINE simd_f32 simd_load_i8(const void *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
SIMD_INLINE simd_f32 simd_load_i8_first(const void *p, int n) {
    int8_t values[SIMD_LANES] = {0};
    memcpy(values, p, (size_t)n);
    return simd_load_i8(values);
}

/* --- whole numbers of 16 bits ----------------------------------------------------------------------------------- */

enum { SIMD_I16_LANES = 16 };
typedef int16_t simd_i16 __attribute__((vector_size(SIMD_I16_LANES * sizeof(int16_t))));

/* Lanes i and i ^ apart exchanged: 8, the one distance that is less than all lanes. */
#define SIMD_I16_SWAP(x, apart) ((simd_i16)_mm256_permute4x64_epi64((__m256i)(x), 0x4e))

/* What a table says of codes of 4 bits from number `at` on, a multiple of the lanes. Of 32 codes the first are the
 * lower halves of 16 bytes, the others their upper halves. */
SIMD_INLINE simd_i16 simd_look_up_halves(const unsigned char *codes, int at, const int8_t *table) {
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(codes + at / 32 * 16));
    if (at % 32) x = _mm_srli_epi16(x, 4);
    __m128i steps = _mm_loadu_si128((const __m128i *)(const void *)table);
    return (simd_i16)_mm256_cvtepi8_epi16(_mm_shuffle_epi8(steps, _mm_and_si128(x, _mm_set1_epi8(15))));
}
/* out = x * factors, in float32 */
SIMD_INLINE void simd_store_products(simd_i16 x, const float *factors, float *out) {
    __m128i low = _mm256_castsi256_si128((__m256i)x), high = _mm256_extracti128_si256((__m256i)x, 1);
    simd_store(out, simd_mul(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(low)), simd_load(factors)));
    simd_store(out + 8, simd_mul(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(high)), simd_load(factors + 8)));
}

/* --- 16-bit types ----------------------------------------------------------------------------------------------- */

SIMD_INLINE simd_f32 simd_load_bf16(const void *p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
SIMD_INLINE simd_f32 simd_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
/* There are no masked 16-bit loads here: the few values go through a buffer. */
SIMD_INLINE simd_f32 simd_load_bf16_first(const void *p, int n) {
    uint16_t values[SIMD_LANES] = {0};
    memcpy(values, p, (size_t)n * sizeof *values);
    return simd_load_bf16(values);
}
SIMD_INLINE simd_f32 simd_load_f16_first(const void *p, int n) {
    uint16_t values[SIMD_LANES] = {0};
    memcpy(values, p, (size_t)n * sizeof *values);
    return simd_load_f16(values);
}

/* x rounded to bf16 as in f32_to_bf16; the result stays a float32 (low half zero). */
SIMD_INLINE simd_f32 simd_round_to_bf16(simd_f32 x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    rounded = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    return _mm256_castsi256_ps(_mm256_and_si256(rounded, _mm256_set1_epi32((int)0xffff0000)));
}
SIMD_INLINE void simd_store_bf16(void *p, simd_f32 x) {
    __m256i bits = _mm256_srli_epi32(_mm256_castps_si256(simd_round_to_bf16(x)), 16);
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
}
SIMD_INLINE void simd_store_bf16_first(void *p, int n, simd_f32 x) {
    uint16_t values[SIMD_LANES];
    simd_store_bf16(values, x);
    memcpy(p, values, (size_t)n * sizeof *values);
}

/* --- 2 * SIMD_LANES bf16 values as they lie, seen as pairs ------------------------------------------------------ */

typedef __m256i simd_pairs;

SIMD_INLINE simd_pairs simd_pairs_load(const void *p) { return _mm256_loadu_si256(p); }
SIMD_INLINE simd_pairs simd_pairs_load_first(const void *p, int n) {
    uint16_t values[2 * SIMD_LANES] = {0};
    memcpy(values, p, (size_t)n * sizeof *values);
    return simd_pairs_load(values);
}
SIMD_INLINE simd_pairs simd_pairs_zero(void) { return _mm256_setzero_si256(); }
SIMD_INLINE void simd_pairs_store(void *p, simd_pairs x) { _mm256_storeu_si256(p, x); }
SIMD_INLINE simd_pairs simd_pairs_xor(simd_pairs a, simd_pairs b) { return _mm256_xor_si256(a, b); }
SIMD_INLINE simd_f32 simd_pairs_even(simd_pairs x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
SIMD_INLINE simd_f32 simd_pairs_odd(simd_pairs x) {
    return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000)));
}
/* Elements 0, 2, 4, ... and 1, 3, 5, ... of the 2 * SIMD_LANES values in a, b. */
SIMD_INLINE void simd_deinterleave(simd_f32 a, simd_f32 b, simd_f32 *even, simd_f32 *odd) {
    simd_f32 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    *even = _mm256_shuffle_ps(low, high, 0x88);
    *odd = _mm256_shuffle_ps(low, high, 0xdd);
}

/* The same bits. */
SIMD_INLINE simd_f32 simd_pairs_to_f32(simd_pairs x) { return _mm256_castsi256_ps(x); }
SIMD_INLINE simd_pairs simd_pairs_from_f32(simd_f32 x) { return _mm256_castps_si256(x); }

/* Vector j takes lane j of all. */
SIMD_INLINE void simd_transpose(simd_f32 v[SIMD_LANES]) {
    __m256 fours[SIMD_LANES];
    for (int i = 0; i < SIMD_LANES; i += 4) {
        const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(v[i], v[i + 1]));
        const __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(v[i], v[i + 1]));
        const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(v[i + 2], v[i + 3]));
        const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(v[i + 2], v[i + 3]));
        fours[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
        fours[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
        fours[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
        fours[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
    }
    for (int j = 0; j < 4; j++) {
        v[j] = _mm256_permute2f128_ps(fours[j], fours[4 + j], 0x20);
        v[j + 4] = _mm256_permute2f128_ps(fours[j], fours[4 + j], 0x31);
    }
}

/* --- sums over lanes -------------------------------------------------------------------------------------------- */

/* Every sum over lanes halves the vector: lane j takes lane j + 4, then + 2, + 1. simd_sum does it for one vector, the
 * other two for eight or four at a time with the same additions, so all give the same bits. */
SIMD_INLINE float simd_sum(simd_f32 x) {
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* simd_halve_w turns two vectors into one: of each group of 2 w lanes of a its w sums take the lower half of the
 * group's place, those of b the upper half. One shuffle each; the blends run on any port. */
SIMD_INLINE simd_f32 simd_halve_4(simd_f32 a, simd_f32 b) {
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
}
SIMD_INLINE simd_f32 simd_halve_2(simd_f32 a, simd_f32 b) {
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xcc), _mm256_shuffle_ps(a, b, 0x4e));
}
SIMD_INLINE simd_f32 simd_halve_1(simd_f32 a, simd_f32 b) {
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xaa), _mm256_permute_ps(_mm256_blend_ps(b, a, 0xaa), 0xb1));
}
/* The tree below leaves sums in bit-reversed order, so it takes its leaves in that order too. */
SIMD_INLINE simd_f32 simd_halve_four(simd_f32 v0, simd_f32 v1, simd_f32 v2, simd_f32 v3) {
    return simd_halve_2(simd_halve_4(v0, v2), simd_halve_4(v1, v3));
}
/* Lane i: sum over the lanes of v[i], for SIMD_LANES vectors. */
SIMD_INLINE simd_f32 simd_sum_full(const simd_f32 *v) {
    return simd_halve_1(simd_halve_four(v[0], v[2], v[4], v[6]), simd_halve_four(v[1], v[3], v[5], v[7]));
}
/* The same for SIMD_LANES / 2 vectors; the upper lanes are of no meaning. */
SIMD_INLINE simd_f32 simd_sum_half(const simd_f32 *v) {
    simd_f32 x = simd_halve_four(v[0], v[1], v[2], v[3]);
    x = _mm256_add_ps(x, _mm256_permute_ps(x, 0xb1));
    __m128 sums = _mm_shuffle_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1), 0x88);
    return _mm256_castps128_ps256(sums);
}
SIMD_INLINE float simd_max_lane(simd_f32 x) {
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

#endif
