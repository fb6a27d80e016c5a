/* The vector vocabulary of kernels_vector.h for 64-bit Arm: 8 lanes, each vector a pair of NEON's 32 registers. Lanes
 * and orders are those of simd_avx2.h, and so are the bits of every result. */
#ifndef KAKEYA_BACKEND_CPU_SIMD_NEON_H
#define KAKEYA_BACKEND_CPU_SIMD_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define SIMD_INLINE static inline __attribute__((always_inline))

enum { SIMD_LANES = 8, SIMD_REGISTERS = 16 };
/* Operands are registers, too: the sums of a tile leave room for its weights. */
#define SIMD_LOADS_OPERANDS
typedef struct simd_f32 {
    float32x4_t a, b; /* lanes 0 to 3, and 4 to 7 */
} simd_f32;

/* The same instruction on both registers. */
#define SIMD_BOTH(f, x)      ((simd_f32){f((x).a), f((x).b)})
#define SIMD_BOTH_2(f, x, y) ((simd_f32){f((x).a, (y).a), f((x).b, (y).b)})
#define SIMD_FROM_BITS(p, q) ((simd_f32){vreinterpretq_f32_u32(p), vreinterpretq_f32_u32(q)})
#define SIMD_BITS(x)         vreinterpretq_u32_f32(x)

SIMD_INLINE simd_f32 simd_zero(void) { return (simd_f32){vdupq_n_f32(0), vdupq_n_f32(0)}; }
SIMD_INLINE simd_f32 simd_set1(float x) { return (simd_f32){vdupq_n_f32(x), vdupq_n_f32(x)}; }
SIMD_INLINE simd_f32 simd_load(const void *p) {
    const float *values = p;
    return (simd_f32){vld1q_f32(values), vld1q_f32(values + 4)};
}
/* x, loaded once for all its uses: compilers like to read memory again as an operand of each. */
SIMD_INLINE simd_f32 simd_in_register(simd_f32 x) {
    __asm__("" : "+w"(x.a), "+w"(x.b));
    return x;
}
SIMD_INLINE void simd_store(void *p, simd_f32 x) {
    float *values = p;
    vst1q_f32(values, x.a);
    vst1q_f32(values + 4, x.b);
}
/* 4 or 8 values, from any address to any. */
SIMD_INLINE void simd_copy_4(float *to, const float *from) { vst1q_f32(to, vld1q_f32(from)); }
SIMD_INLINE void simd_copy_8(float *to, const float *from) { simd_store(to, simd_load(from)); }
SIMD_INLINE simd_f32 simd_add(simd_f32 a, simd_f32 b) { return SIMD_BOTH_2(vaddq_f32, a, b); }
SIMD_INLINE simd_f32 simd_sub(simd_f32 a, simd_f32 b) { return SIMD_BOTH_2(vsubq_f32, a, b); }
SIMD_INLINE simd_f32 simd_mul(simd_f32 a, simd_f32 b) { return SIMD_BOTH_2(vmulq_f32, a, b); }
SIMD_INLINE simd_f32 simd_div(simd_f32 a, simd_f32 b) { return SIMD_BOTH_2(vdivq_f32, a, b); }
SIMD_INLINE simd_f32 simd_fma(simd_f32 a, simd_f32 b, simd_f32 c) {
    return (simd_f32){vfmaq_f32(c.a, a.a, b.a), vfmaq_f32(c.b, a.b, b.b)};
}
/* The second operand where either is NaN: vmaxq_f32 would return the NaN. */
SIMD_INLINE float32x4_t larger_of(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
SIMD_INLINE float32x4_t smaller_of(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
SIMD_INLINE simd_f32 simd_max(simd_f32 a, simd_f32 b) { return SIMD_BOTH_2(larger_of, a, b); }
SIMD_INLINE simd_f32 simd_min(simd_f32 a, simd_f32 b) { return SIMD_BOTH_2(smaller_of, a, b); }
SIMD_INLINE simd_f32 simd_round(simd_f32 x) { return SIMD_BOTH(vrndnq_f32, x); }
SIMD_INLINE simd_f32 simd_abs(simd_f32 x) { return SIMD_BOTH(vabsq_f32, x); }
/* Magnitude of `magnitude` (not negative), sign of `sign`. */
SIMD_INLINE float32x4_t with_sign(float32x4_t magnitude, float32x4_t sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude);
}
SIMD_INLINE simd_f32 simd_with_sign(simd_f32 magnitude, simd_f32 sign) {
    return SIMD_BOTH_2(with_sign, magnitude, sign);
}
/* x * 2^n for whole n in [-152, 130]; subnormal results are rounded once. Two factors, since 2^n itself may not be a
 * float32: the first product is exact as long as |x| is near 1. */
SIMD_INLINE float32x4_t scale_by_power(float32x4_t x, float32x4_t n) {
    int32x4_t exponent = vcvtnq_s32_f32(n), first = vshrq_n_s32(exponent, 1), second = vsubq_s32(exponent, first);
    const int32x4_t bias = vdupq_n_s32(127);
    x = vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(first, bias), 23)));
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(second, bias), 23)));
}
SIMD_INLINE simd_f32 simd_scale2(simd_f32 x, simd_f32 n) { return SIMD_BOTH_2(scale_by_power, x, n); }

/* The first n lanes (0 <= n <= SIMD_LANES), the others zero; memory behind them is not touched. There are no masked
 * loads: the last few values go through a buffer. */
SIMD_INLINE simd_f32 simd_load_first(const void *p, int n) {
    if (n == SIMD_LANES) return simd_load(p);
    float values[SIMD_LANES] = {0};
    memcpy(values, p, (size_t)n * sizeof *values);
    return simd_load(values);
}
SIMD_INLINE void simd_store_first(void *p, int n, simd_f32 x) {
    if (n == SIMD_LANES) {
        simd_store(p, x);
        return;
    }
    float values[SIMD_LANES];
    simd_store(values, x);
    memcpy(p, values, (size_t)n * sizeof *values);
}
/* x where a > b, `other` elsewhere. */
SIMD_INLINE simd_f32 simd_select_above(simd_f32 a, simd_f32 b, simd_f32 x, simd_f32 other) {
    return (simd_f32){vbslq_f32(vcgtq_f32(a.a, b.a), x.a, other.a), vbslq_f32(vcgtq_f32(a.b, b.b), x.b, other.b)};
}
/* x in lanes [begin, end), `other` elsewhere. */
SIMD_INLINE float32x4_t select_range(float32x4_t x, float32x4_t other, int begin, int end) {
    const int32_t numbers[4] = {0, 1, 2, 3};
    int32x4_t lane = vld1q_s32(numbers);
    uint32x4_t inside = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(begin)), vcltq_s32(lane, vdupq_n_s32(end)));
    return vbslq_f32(inside, x, other);
}
SIMD_INLINE simd_f32 simd_select_range(simd_f32 x, simd_f32 other, int begin, int end) {
    return (simd_f32){select_range(x.a, other.a, begin, end), select_range(x.b, other.b, begin - 4, end - 4)};
}

/* --- codes of 8 bits -------------------------------------------------------------------------------------------- */

SIMD_INLINE simd_f32 simd_load_i8(const void *p) {
    int16x8_t wide = vmovl_s8(vld1_s8(p));
    return (simd_f32){vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))};
}
SIMD_INLINE simd_f32 simd_load_i8_first(const void *p, int n) {
    int8_t values[SIMD_LANES] = {0};
    memcpy(values, p, (size_t)n);
    return simd_load_i8(values);
}

/* --- whole numbers of 16 bits ----------------------------------------------------------------------------------- */

enum { SIMD_I16_LANES = 8 };
typedef int16_t simd_i16 __attribute__((vector_size(SIMD_I16_LANES * sizeof(int16_t))));

/* Lanes i and i ^ apart exchanged: never asked for, since a vector is no more than a row of groups. */
#define SIMD_I16_SWAP(x, apart) (x)

/* What a table says of codes of 4 bits from number `at` on, a multiple of the lanes. Of 32 codes the first are the
 * lower halves of 16 bytes, the others their upper halves. */
SIMD_INLINE simd_i16 simd_look_up_halves(const unsigned char *codes, int at, const int8_t *table) {
    uint8x8_t x = vld1_u8(codes + at / 32 * 16 + at % 16);
    x = at % 32 < 16 ? vand_u8(x, vdup_n_u8(15)) : vshr_n_u8(x, 4);
    return (simd_i16)vmovl_s8(vqtbl1_s8(vld1q_s8(table), x));
}
/* out = x * factors, in float32 */
SIMD_INLINE void simd_store_products(simd_i16 x, const float *factors, float *out) {
    int16x8_t sums = (int16x8_t)x;
    simd_f32 wide = {vcvtq_f32_s32(vmovl_s16(vget_low_s16(sums))), vcvtq_f32_s32(vmovl_high_s16(sums))};
    simd_store(out, simd_mul(wide, simd_load(factors)));
}

/* --- 16-bit types ----------------------------------------------------------------------------------------------- */

/* Addresses need no alignment: 16-bit values are loaded as bytes. */
SIMD_INLINE uint16x8_t load_u16(const void *p) { return vreinterpretq_u16_u8(vld1q_u8(p)); }

SIMD_INLINE simd_f32 simd_load_bf16(const void *p) {
    uint16x8_t x = load_u16(p);
    return SIMD_FROM_BITS(vshll_n_u16(vget_low_u16(x), 16), vshll_high_n_u16(x, 16));
}
SIMD_INLINE simd_f32 simd_load_f16(const void *p) {
    float16x8_t x = vreinterpretq_f16_u16(load_u16(p));
    return (simd_f32){vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x)};
}
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
SIMD_INLINE float32x4_t round_to_bf16(float32x4_t x) {
    uint32x4_t bits = SIMD_BITS(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    rounded = vbslq_u32(vceqq_f32(x, x), rounded, quiet);
    return vreinterpretq_f32_u32(vandq_u32(rounded, vdupq_n_u32(0xffff0000u)));
}
SIMD_INLINE simd_f32 simd_round_to_bf16(simd_f32 x) { return SIMD_BOTH(round_to_bf16, x); }
SIMD_INLINE void simd_store_bf16(void *p, simd_f32 x) {
    simd_f32 r = simd_round_to_bf16(x);
    uint16x8_t upper = vshrn_high_n_u32(vshrn_n_u32(SIMD_BITS(r.a), 16), SIMD_BITS(r.b), 16);
    vst1q_u8(p, vreinterpretq_u8_u16(upper));
}
SIMD_INLINE void simd_store_bf16_first(void *p, int n, simd_f32 x) {
    uint16_t values[SIMD_LANES];
    simd_store_bf16(values, x);
    memcpy(p, values, (size_t)n * sizeof *values);
}

/* --- 2 * SIMD_LANES bf16 values as they lie, seen as pairs ------------------------------------------------------ */

typedef struct simd_pairs {
    uint32x4_t a, b;
} simd_pairs;

SIMD_INLINE simd_pairs simd_pairs_load(const void *p) {
    const uint8_t *bytes = p;
    return (simd_pairs){vreinterpretq_u32_u8(vld1q_u8(bytes)), vreinterpretq_u32_u8(vld1q_u8(bytes + 16))};
}
SIMD_INLINE simd_pairs simd_pairs_load_first(const void *p, int n) {
    uint16_t values[2 * SIMD_LANES] = {0};
    memcpy(values, p, (size_t)n * sizeof *values);
    return simd_pairs_load(values);
}
SIMD_INLINE simd_pairs simd_pairs_zero(void) { return (simd_pairs){vdupq_n_u32(0), vdupq_n_u32(0)}; }
SIMD_INLINE void simd_pairs_store(void *p, simd_pairs x) {
    uint8_t *bytes = p;
    vst1q_u8(bytes, vreinterpretq_u8_u32(x.a));
    vst1q_u8(bytes + 16, vreinterpretq_u8_u32(x.b));
}
SIMD_INLINE simd_pairs simd_pairs_xor(simd_pairs x, simd_pairs y) {
    return (simd_pairs){veorq_u32(x.a, y.a), veorq_u32(x.b, y.b)};
}
SIMD_INLINE simd_f32 simd_pairs_even(simd_pairs x) {
    return SIMD_FROM_BITS(vshlq_n_u32(x.a, 16), vshlq_n_u32(x.b, 16));
}
SIMD_INLINE simd_f32 simd_pairs_odd(simd_pairs x) {
    const uint32x4_t upper = vdupq_n_u32(0xffff0000u);
    return SIMD_FROM_BITS(vandq_u32(x.a, upper), vandq_u32(x.b, upper));
}
/* Elements 0, 2, 4, ... and 1, 3, 5, ... of the 2 * SIMD_LANES values in x, y. */
SIMD_INLINE void simd_deinterleave(simd_f32 x, simd_f32 y, simd_f32 *even, simd_f32 *odd) {
    *even = (simd_f32){vuzp1q_f32(x.a, x.b), vuzp1q_f32(y.a, y.b)};
    *odd = (simd_f32){vuzp2q_f32(x.a, x.b), vuzp2q_f32(y.a, y.b)};
}

/* The same bits. */
SIMD_INLINE simd_f32 simd_pairs_to_f32(simd_pairs x) { return SIMD_FROM_BITS(x.a, x.b); }
SIMD_INLINE simd_pairs simd_pairs_from_f32(simd_f32 x) { return (simd_pairs){SIMD_BITS(x.a), SIMD_BITS(x.b)}; }

SIMD_INLINE void transpose_four(float32x4_t v[4]) {
    const float32x4x2_t low = vtrnq_f32(v[0], v[1]), high = vtrnq_f32(v[2], v[3]);
    for (int j = 0; j < 2; j++) {
        const float64x2_t a = vreinterpretq_f64_f32(low.val[j]), b = vreinterpretq_f64_f32(high.val[j]);
        v[j] = vreinterpretq_f32_f64(vzip1q_f64(a, b));
        v[j + 2] = vreinterpretq_f32_f64(vzip2q_f64(a, b));
    }
}
/* Vector j takes lane j of all. */
SIMD_INLINE void simd_transpose(simd_f32 v[SIMD_LANES]) {
    float32x4_t square[4][4]; /* upper left, upper right, lower left, lower right */
    for (int i = 0; i < 4; i++) {
        square[0][i] = v[i].a;
        square[1][i] = v[i].b;
        square[2][i] = v[i + 4].a;
        square[3][i] = v[i + 4].b;
    }
    for (int s = 0; s < 4; s++) transpose_four(square[s]);
    for (int i = 0; i < 4; i++) {
        v[i] = (simd_f32){square[0][i], square[2][i]};
        v[i + 4] = (simd_f32){square[1][i], square[3][i]};
    }
}

/* --- sums over lanes -------------------------------------------------------------------------------------------- */

/* Every sum over lanes halves the vector: lane j takes lane j + 4, then + 2, + 1. simd_sum does it for one vector, the
 * other two for eight or four at a time with the same additions, so all give the same bits. */
SIMD_INLINE float simd_sum(simd_f32 x) {
    float32x4_t four = vaddq_f32(x.a, x.b);
    return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}

/* Of lanes j and j + 4, then + 2: the two sums of v in the lower lanes, those of w in the upper. */
SIMD_INLINE float32x4_t simd_halve_two(simd_f32 v, simd_f32 w) {
    float64x2_t x = vreinterpretq_f64_f32(vaddq_f32(v.a, v.b)), y = vreinterpretq_f64_f32(vaddq_f32(w.a, w.b));
    return vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(x, y)), vreinterpretq_f32_f64(vzip2q_f64(x, y)));
}
SIMD_INLINE float32x4_t simd_sum_four(const simd_f32 *v) {
    return vpaddq_f32(simd_halve_two(v[0], v[1]), simd_halve_two(v[2], v[3]));
}
/* Lane i: sum over the lanes of v[i], for SIMD_LANES vectors. */
SIMD_INLINE simd_f32 simd_sum_full(const simd_f32 *v) { return (simd_f32){simd_sum_four(v), simd_sum_four(v + 4)}; }
/* The same for SIMD_LANES / 2 vectors; the upper lanes are of no meaning. */
SIMD_INLINE simd_f32 simd_sum_half(const simd_f32 *v) { return (simd_f32){simd_sum_four(v), vdupq_n_f32(0)}; }
SIMD_INLINE float simd_max_lane(simd_f32 x) {
    float32x4_t four = larger_of(x.a, x.b);
    four = larger_of(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(larger_of(four, vextq_f32(four, four, 1)), 0);
}

#endif
