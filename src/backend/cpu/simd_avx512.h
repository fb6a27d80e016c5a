/* The vector vocabulary of kernels_vector.h for AVX-512 (F, BW, DQ, VL): 16 lanes, 32 registers. */
#ifndef KAKEYA_BACKEND_CPU_SIMD_AVX512_H
#define KAKEYA_BACKEND_CPU_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define SIMD_INLINE static inline __attribute__((always_inline))

enum { SIMD_LANES = 16, SIMD_REGISTERS = 32 };
typedef __m512 simd_f32;

SIMD_INLINE simd_f32 simd_zero(void) { return _mm512_setzero_ps(); }
SIMD_INLINE simd_f32 simd_set1(float x) { return _mm512_set1_ps(x); }
SIMD_INLINE simd_f32 simd_load(const void *p) { return _mm512_loadu_ps(p); }
/* x, loaded once for all its uses: compilers like to read memory again as an operand of each. */
SIMD_INLINE simd_f32 simd_in_register(simd_f32 x) {
    __asm__("" : "+v"(x));
    return x;
}
SIMD_INLINE void simd_store(void *p, simd_f32 x) { _mm512_storeu_ps(p, x); }
/* 4 or 8 values, from any address to any. */
SIMD_INLINE void simd_copy_4(float *to, const float *from) { _mm_storeu_ps(to, _mm_loadu_ps(from)); }
SIMD_INLINE void simd_copy_8(float *to, const float *from) { _mm256_storeu_ps(to, _mm256_loadu_ps(from)); }
SIMD_INLINE simd_f32 simd_add(simd_f32 a, simd_f32 b) { return _mm512_add_ps(a, b); }
SIMD_INLINE simd_f32 simd_sub(simd_f32 a, simd_f32 b) { return _mm512_sub_ps(a, b); }
SIMD_INLINE simd_f32 simd_mul(simd_f32 a, simd_f32 b) { return _mm512_mul_ps(a, b); }
SIMD_INLINE simd_f32 simd_div(simd_f32 a, simd_f32 b) { return _mm512_div_ps(a, b); }
SIMD_INLINE simd_f32 simd_fma(simd_f32 a, simd_f32 b, simd_f32 c) { return _mm512_fmadd_ps(a, b, c); }
/* The second operand where either is NaN. */
SIMD_INLINE simd_f32 simd_max(simd_f32 a, simd_f32 b) { return _mm512_max_ps(a, b); }
SIMD_INLINE simd_f32 simd_min(simd_f32 a, simd_f32 b) { return _mm512_min_ps(a, b); }
SIMD_INLINE simd_f32 simd_round(simd_f32 x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SIMD_INLINE simd_f32 simd_abs(simd_f32 x) { return _mm512_abs_ps(x); }
/* Magnitude of `magnitude` (not negative), sign of `sign`. */
SIMD_INLINE simd_f32 simd_with_sign(simd_f32 magnitude, simd_f32 sign) {
    return _mm512_or_ps(magnitude, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}
/* x * 2^n for whole n in [-152, 130]; subnormal results are rounded once. */
SIMD_INLINE simd_f32 simd_scale2(simd_f32 x, simd_f32 n) { return _mm512_scalef_ps(x, n); }

SIMD_INLINE __mmask16 simd_mask_first(int n) { return (__mmask16)((1u << n) - 1u); }

/* The first n lanes (0 <= n <= SIMD_LANES), the others zero; memory behind them is not touched. */
SIMD_INLINE simd_f32 simd_load_first(const void *p, int n) { return _mm512_maskz_loadu_ps(simd_mask_first(n), p); }
SIMD_INLINE void simd_store_first(void *p, int n, simd_f32 x) { _mm512_mask_storeu_ps(p, simd_mask_first(n), x); }
/* x where a > b, `other` elsewhere. */
SIMD_INLINE simd_f32 simd_select_above(simd_f32 a, simd_f32 b, simd_f32 x, simd_f32 other) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), other, x);
}
/* x in lanes [begin, end), `other` elsewhere. */
SIMD_INLINE simd_f32 simd_select_range(simd_f32 x, simd_f32 other, int begin, int end) {
    return _mm512_mask_blend_ps((__mmask16)(simd_mask_first(end) & ~simd_mask_first(begin)), other, x);
}

/* --- codes of 8 bits -------------------------------------------------------------------------------------------- */

SIMD_INLINE simd_f32 simd_load_i8(const void *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
SIMD_INLINE simd_f32 simd_load_i8_first(const void *p, int n) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(simd_mask_first(n), p)));
}

/* --- whole numbers of 16 bits ----------------------------------------------------------------------------------- */

enum { SIMD_I16_LANES = 32 };
typedef int16_t simd_i16 __attribute__((vector_size(SIMD_I16_LANES * sizeof(int16_t))));

/* Lanes i and i ^ apart exchanged, 8 or 16. */
#define SIMD_I16_SWAP(x, apart)                                                                                        \
    ((simd_i16)((apart) == 8 ? _mm512_shuffle_i64x2((__m512i)(x), (__m512i)(x), 0xb1)                                  \
                             : _mm512_shuffle_i64x2((__m512i)(x), (__m512i)(x), 0x4e)))
/* What a table says of codes of 4 bits from number `at` on, a multiple of the lanes. Of 32 codes the first are the
 * lower halves of 16 bytes, the others their upper halves. */
SIMD_INLINE simd_i16 simd_look_up_halves(const unsigned char *codes, int at, const int8_t *table) {
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(codes + at / 2));
    __m256i both = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(x, 4), x), _mm256_set1_epi8(15));
    __m256i steps = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
    return (simd_i16)_mm512_cvtepi8_epi16(_mm256_shuffle_epi8(steps, both));
}
/* out = x * factors, in float32 */
SIMD_INLINE void simd_store_products(simd_i16 x, const float *factors, float *out) {
    __m256i low = _mm512_castsi512_si256((__m512i)x), high = _mm512_extracti64x4_epi64((__m512i)x, 1);
    simd_store(out, simd_mul(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(low)), simd_load(factors)));
    simd_store(out + 16, simd_mul(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(high)), simd_load(factors + 16)));
}

/* --- 16-bit types ----------------------------------------------------------------------------------------------- */

SIMD_INLINE simd_f32 simd_widen_bf16(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
SIMD_INLINE simd_f32 simd_load_bf16(const void *p) { return simd_widen_bf16(_mm256_loadu_si256((const __m256i *)p)); }
SIMD_INLINE simd_f32 simd_load_bf16_first(const void *p, int n) {
    return simd_widen_bf16(_mm256_maskz_loadu_epi16(simd_mask_first(n), p));
}
SIMD_INLINE simd_f32 simd_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
SIMD_INLINE simd_f32 simd_load_f16_first(const void *p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(simd_mask_first(n), p));
}

/* x rounded to bf16 as in f32_to_bf16; the result stays a float32 (low half zero). */
SIMD_INLINE simd_f32 simd_round_to_bf16(simd_f32 x) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
    return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32((int)0xffff0000)));
}
SIMD_INLINE __m256i simd_narrow_bf16(simd_f32 x) {
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(simd_round_to_bf16(x)), 16));
}
SIMD_INLINE void simd_store_bf16(void *p, simd_f32 x) { _mm256_storeu_si256((__m256i *)p, simd_narrow_bf16(x)); }
SIMD_INLINE void simd_store_bf16_first(void *p, int n, simd_f32 x) {
    _mm256_mask_storeu_epi16(p, simd_mask_first(n), simd_narrow_bf16(x));
}

/* --- 2 * SIMD_LANES bf16 values as they lie, seen as pairs ------------------------------------------------------ */

typedef __m512i simd_pairs;

SIMD_INLINE simd_pairs simd_pairs_load(const void *p) { return _mm512_loadu_si512(p); }
SIMD_INLINE simd_pairs simd_pairs_in_register(simd_pairs x) {
    __asm__("" : "+v"(x));
    return x;
}
SIMD_INLINE simd_pairs simd_pairs_load_first(const void *p, int n) {
    return _mm512_maskz_loadu_epi16((__mmask32)((1ull << n) - 1u), p);
}
SIMD_INLINE simd_pairs simd_pairs_zero(void) { return _mm512_setzero_si512(); }
SIMD_INLINE void simd_pairs_store(void *p, simd_pairs x) { _mm512_storeu_si512(p, x); }
SIMD_INLINE simd_pairs simd_pairs_xor(simd_pairs a, simd_pairs b) { return _mm512_xor_si512(a, b); }
SIMD_INLINE simd_f32 simd_pairs_even(simd_pairs x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
SIMD_INLINE simd_f32 simd_pairs_odd(simd_pairs x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000)));
}
/* Elements 0, 2, 4, ... and 1, 3, 5, ... of the 2 * SIMD_LANES values in a, b. */
SIMD_INLINE void simd_deinterleave(simd_f32 a, simd_f32 b, simd_f32 *even, simd_f32 *odd) {
    const __m512i index = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(a, index, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(index, _mm512_set1_epi32(1)), b);
}

/* The same bits. */
SIMD_INLINE simd_f32 simd_pairs_to_f32(simd_pairs x) { return _mm512_castsi512_ps(x); }
SIMD_INLINE simd_pairs simd_pairs_from_f32(simd_f32 x) { return _mm512_castps_si512(x); }

/* Vector j takes lane j of all. */
SIMD_INLINE void simd_transpose(simd_f32 v[SIMD_LANES]) {
    __m512 pairs[SIMD_LANES], fours[SIMD_LANES];
    for (int i = 0; i < SIMD_LANES; i += 2) {
        pairs[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    /* fours[4 g + j]: of vectors 4 g to 4 g + 3 the lanes j, j + 4, j + 8, j + 12 */
    for (int i = 0; i < SIMD_LANES; i++) {
        const __m512d a = _mm512_castps_pd(pairs[i / 4 * 4 + i % 4 / 2]);
        const __m512d b = _mm512_castps_pd(pairs[i / 4 * 4 + i % 4 / 2 + 2]);
        fours[i] = _mm512_castpd_ps(i % 2 ? _mm512_unpackhi_pd(a, b) : _mm512_unpacklo_pd(a, b));
    }
    for (int j = 0; j < 4; j++) {
        const __m512 a = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0x88);
        const __m512 b = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0x88);
        const __m512 c = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0xdd);
        const __m512 d = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0xdd);
        v[j] = _mm512_shuffle_f32x4(a, b, 0x88);
        v[j + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
        v[j + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
        v[j + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}

/* --- sums over lanes -------------------------------------------------------------------------------------------- */

/* Every sum over lanes halves the vector: lane j takes lane j + 8, then + 4, + 2, + 1. simd_sum does it for one vector,
 * the other two for sixteen or eight at a time with the same additions, so all give the same bits. */
SIMD_INLINE float simd_sum(simd_f32 x) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* simd_halve_w turns two vectors into one: of each group of 2 w lanes of a its w sums take the lower half of the
 * group's place, those of b the upper half. One shuffle each; the blends run on any port. */
SIMD_INLINE simd_f32 simd_halve_8(simd_f32 a, simd_f32 b) {
    return _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4(a, b, 0x4e));
}
SIMD_INLINE simd_f32 simd_halve_4(simd_f32 a, simd_f32 b) {
    const __m512i crossed = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
    return _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, a, b), _mm512_permutex2var_ps(a, crossed, b));
}
SIMD_INLINE simd_f32 simd_halve_2(simd_f32 a, simd_f32 b) {
    return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps(a, b, 0x4e));
}
SIMD_INLINE simd_f32 simd_halve_1(simd_f32 a, simd_f32 b) {
    return _mm512_add_ps(_mm512_mask_blend_ps(0xaaaa, a, b),
                         _mm512_permute_ps(_mm512_mask_blend_ps(0xaaaa, b, a), 0xb1));
}

/* The tree below leaves sums in bit-reversed order, so it takes its leaves in that order too. */
SIMD_INLINE simd_f32 simd_halve_eight(simd_f32 v0, simd_f32 v1, simd_f32 v2, simd_f32 v3, simd_f32 v4, simd_f32 v5,
                                      simd_f32 v6, simd_f32 v7) {
    simd_f32 low = simd_halve_4(simd_halve_8(v0, v4), simd_halve_8(v2, v6));
    simd_f32 high = simd_halve_4(simd_halve_8(v1, v5), simd_halve_8(v3, v7));
    return simd_halve_2(low, high);
}
/* Lane i: sum over the lanes of v[i], for SIMD_LANES vectors. */
SIMD_INLINE simd_f32 simd_sum_full(const simd_f32 *v) {
    simd_f32 even = simd_halve_eight(v[0], v[2], v[4], v[6], v[8], v[10], v[12], v[14]);
    simd_f32 odd = simd_halve_eight(v[1], v[3], v[5], v[7], v[9], v[11], v[13], v[15]);
    return simd_halve_1(even, odd);
}
/* The same for SIMD_LANES / 2 vectors; the upper lanes are of no meaning. */
SIMD_INLINE simd_f32 simd_sum_half(const simd_f32 *v) {
    simd_f32 x = simd_halve_eight(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
    x = _mm512_add_ps(x, _mm512_permute_ps(x, 0xb1));
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_permutexvar_ps(even, x);
}
SIMD_INLINE float simd_max_lane(simd_f32 x) { return _mm512_reduce_max_ps(x); }

#endif
