/* The vocabulary of int8_tiles.h for 64-bit Arm: 8 outputs at a time, in two registers of 4. Codes are signed. What the
 * file that includes this is compiled for decides how they are multiplied: SDOT takes four products of a lane at once,
 * SMMLA eight products of two outputs by two rows; without them products have 16 bits and are added up later. */
#ifndef KAKEYA_BACKEND_CPU_INT8_LANES_NEON_H
#define KAKEYA_BACKEND_CPU_INT8_LANES_NEON_H

#include <arm_neon.h>

#include "backend/cpu/int8_codes.h"

#define TILE_ROWS 4
enum { LANES = 8, LANES_SIGNED_WIDE = 1 };

typedef struct lanes_f32 {
    float32x4_t a, b; /* outputs 0 to 3, and 4 to 7 */
} lanes_f32;
typedef struct lanes_i32 {
    int32x4_t a, b;
} lanes_i32;
typedef struct lanes_codes {
    uint8x16_t a, b;
} lanes_codes;

BLOCKS_INLINE lanes_i32 lanes_zero(void) { return (lanes_i32){vdupq_n_s32(0), vdupq_n_s32(0)}; }
BLOCKS_INLINE lanes_f32 lanes_zero_f32(void) { return (lanes_f32){vdupq_n_f32(0), vdupq_n_f32(0)}; }
BLOCKS_INLINE lanes_f32 lanes_set(const float *p) { return (lanes_f32){vdupq_n_f32(*p), vdupq_n_f32(*p)}; }
BLOCKS_INLINE lanes_f32 lanes_load(const float *p) { return (lanes_f32){vld1q_f32(p), vld1q_f32(p + 4)}; }
BLOCKS_INLINE void lanes_store(float *p, lanes_f32 x) {
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
}
BLOCKS_INLINE lanes_f32 lanes_mul(lanes_f32 x, lanes_f32 y) {
    return (lanes_f32){vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)};
}
BLOCKS_INLINE lanes_f32 lanes_fma(lanes_f32 x, lanes_f32 y, lanes_f32 z) {
    return (lanes_f32){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)};
}
BLOCKS_INLINE lanes_f32 lanes_negative(lanes_f32 x) { return (lanes_f32){vnegq_f32(x.a), vnegq_f32(x.b)}; }
BLOCKS_INLINE lanes_f32 lanes_to_f32(lanes_i32 x) { return (lanes_f32){vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b)}; }
BLOCKS_INLINE lanes_i32 lanes_and(lanes_i32 x, int mask) {
    return (lanes_i32){vandq_s32(x.a, vdupq_n_s32(mask)), vandq_s32(x.b, vdupq_n_s32(mask))};
}
/* Of numbers that are not negative. */
BLOCKS_INLINE lanes_i32 lanes_right(lanes_i32 x, int n) { return (lanes_i32){x.a >> n, x.b >> n}; }
BLOCKS_INLINE lanes_i32 lanes_s16(int16x8_t x) { return (lanes_i32){vmovl_s16(vget_low_s16(x)), vmovl_high_s16(x)}; }
BLOCKS_INLINE lanes_i32 lanes_u8(const unsigned char *p) {
    return lanes_s16(vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p))));
}
BLOCKS_INLINE lanes_i32 lanes_s8(const unsigned char *p) { return lanes_s16(vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)))); }
BLOCKS_INLINE lanes_f32 lanes_f16(const unsigned char *p) {
    float16x8_t x = vreinterpretq_f16_u8(vld1q_u8(p));
    return (lanes_f32){vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x)};
}
BLOCKS_INLINE lanes_f32 lanes_bf16(const unsigned char *p) {
    uint16x8_t bits = vreinterpretq_u16_u8(vld1q_u8(p));
    return (lanes_f32){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
                       vreinterpretq_f32_u32(vshll_high_n_u16(bits, 16))};
}
/* e8m0_half and nvfp4_scale (int8_forms.h, blocks.h) of every lane. */
BLOCKS_INLINE float32x4_t four_e8m0(int32x4_t e) {
    int32x4_t ordinary = vshlq_n_s32(vsubq_s32(e, vdupq_n_s32(1)), 23), small = vshlq_s32(vdupq_n_s32(0x00200000), e);
    return vreinterpretq_f32_s32(vbslq_s32(vcltq_s32(e, vdupq_n_s32(2)), small, ordinary));
}
BLOCKS_INLINE lanes_f32 lanes_e8m0(const unsigned char *p) {
    lanes_i32 e = lanes_u8(p);
    return (lanes_f32){four_e8m0(e.a), four_e8m0(e.b)};
}
BLOCKS_INLINE float32x4_t four_e4m3(int32x4_t bits) {
    int32x4_t size = vandq_s32(bits, vdupq_n_s32(0x7f));
    int32x4_t ordinary = vaddq_s32(vshlq_n_s32(size, 20), vdupq_n_s32(119 << 23));
    int32x4_t subnormal = vreinterpretq_s32_f32(vmulq_f32(vcvtq_f32_s32(size), vdupq_n_f32(0x1p-10f)));
    int32x4_t value = vbslq_s32(vcltq_s32(size, vdupq_n_s32(8)), subnormal, ordinary);
    uint32x4_t none = vceqq_s32(bits, vdupq_n_s32(0x7f));
    return vreinterpretq_f32_s32(vbicq_s32(value, vreinterpretq_s32_u32(none)));
}
BLOCKS_INLINE lanes_f32 lanes_e4m3(const unsigned char *p) {
    lanes_i32 bits = lanes_u8(p);
    return (lanes_f32){four_e4m3(bits.a), four_e4m3(bits.b)};
}
/* No number where x is n. */
BLOCKS_INLINE float32x4_t four_none_where(int32x4_t x, int n, float32x4_t value) {
    return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(value), vceqq_s32(x, vdupq_n_s32(n))));
}
BLOCKS_INLINE lanes_f32 lanes_none_where(lanes_i32 x, int n, lanes_f32 value) {
    return (lanes_f32){four_none_where(x.a, n, value.a), four_none_where(x.b, n, value.b)};
}
/* The value is not negative; bit 7 of bits is its sign. */
BLOCKS_INLINE float32x4_t four_with_sign(int32x4_t bits, float32x4_t value) {
    int32x4_t sign = vshlq_n_s32(vandq_s32(bits, vdupq_n_s32(0x80)), 24);
    return vreinterpretq_f32_s32(vorrq_s32(vreinterpretq_s32_f32(value), sign));
}
BLOCKS_INLINE lanes_f32 lanes_with_sign(lanes_i32 bits, lanes_f32 value) {
    return (lanes_f32){four_with_sign(bits.a, value.a), four_with_sign(bits.b, value.b)};
}
/* a * half[0] + b * half[1] in every lane. */
BLOCKS_INLINE lanes_i32 lanes_pairs(int a, int b, const int16_t half[2]) {
    int32x4_t sum = vdupq_n_s32(a * half[0] + b * half[1]);
    return (lanes_i32){sum, sum};
}
BLOCKS_INLINE void lanes_keep(lanes_i32 x) { __asm__ volatile("" : : "w"(x.a), "w"(x.b)); }

BLOCKS_INLINE lanes_codes codes_load(const uint8_t *p) { return (lanes_codes){vld1q_u8(p), vld1q_u8(p + 16)}; }
BLOCKS_INLINE void codes_store(uint8_t *p, lanes_codes c) {
    vst1q_u8(p, c.a);
    vst1q_u8(p + 16, c.b);
}
BLOCKS_INLINE lanes_codes codes_and(lanes_codes c, int mask) {
    const uint8x16_t bits = vdupq_n_u8((uint8_t)mask);
    return (lanes_codes){vandq_u8(c.a, bits), vandq_u8(c.b, bits)};
}
BLOCKS_INLINE lanes_codes codes_or(lanes_codes c, lanes_codes d) {
    return (lanes_codes){vorrq_u8(c.a, d.a), vorrq_u8(c.b, d.b)};
}
BLOCKS_INLINE lanes_codes codes_left(lanes_codes c, int n) {
    return (lanes_codes){c.a << (uint8_t)n, c.b << (uint8_t)n};
}
BLOCKS_INLINE lanes_codes codes_right(lanes_codes c, int n) {
    return (lanes_codes){c.a >> (uint8_t)n, c.b >> (uint8_t)n};
}
BLOCKS_INLINE lanes_codes codes_flip(lanes_codes c) {
    const uint8x16_t sign = vdupq_n_u8(0x80);
    return (lanes_codes){veorq_u8(c.a, sign), veorq_u8(c.b, sign)};
}
BLOCKS_INLINE lanes_codes codes_look_up(const int8_t *table, int offset, lanes_codes c) {
    uint8x16_t values = vreinterpretq_u8_s8(vaddq_s8(vld1q_s8(table), vdupq_n_s8((int8_t)offset)));
    return (lanes_codes){vqtbl1q_u8(values, c.a), vqtbl1q_u8(values, c.b)};
}
/* The same codes, as far as the compiler knows others. */
BLOCKS_INLINE lanes_codes codes_others(lanes_codes c) {
    __asm__("" : "+w"(c.a), "+w"(c.b));
    return c;
}

/* Four values to all lanes. */
BLOCKS_INLINE int32x4_t four_values(const void *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return vdupq_n_s32(four);
}
BLOCKS_INLINE int8x16_t as_signed(uint8x16_t codes) { return vreinterpretq_s8_u8(codes); }

#if defined(__ARM_FEATURE_DOTPROD)
#define PROBE_SUMS           10
#define PART_PIECES(largest) 8
typedef lanes_i32 lanes_part;
BLOCKS_INLINE lanes_part part_begin(lanes_i32 sum) { return sum; }
BLOCKS_INLINE lanes_i32 part_end(lanes_i32 sum, lanes_part part) {
    (void)sum;
    return part;
}
BLOCKS_INLINE lanes_part part_add(lanes_part part, lanes_codes c, const void *x, bool is_signed) {
    (void)is_signed; /* those that are not are below 128 */
    int8x16_t values = vreinterpretq_s8_s32(four_values(x));
    return (lanes_part){vdotq_s32(part.a, as_signed(c.a), values), vdotq_s32(part.b, as_signed(c.b), values)};
}
#else
#define PROBE_SUMS           4
/* So many products of one value and one code, of sizes up to 128 * 127, have 16 bits. */
#define PART_PIECES(largest) ((largest) <= 31 ? 8 : (largest) <= 63 ? 4 : 2)
typedef struct lanes_part {
    int16x8_t two[4]; /* of outputs 2 i and 2 i + 1 four products each */
} lanes_part;
BLOCKS_INLINE lanes_part part_begin(lanes_i32 sum) {
    (void)sum;
    const int16x8_t zero = vdupq_n_s16(0);
    return (lanes_part){{zero, zero, zero, zero}};
}
BLOCKS_INLINE int32x4_t four_sums(int16x8_t lower, int16x8_t upper) {
    return vpaddq_s32(vpaddlq_s16(lower), vpaddlq_s16(upper));
}
BLOCKS_INLINE lanes_i32 part_end(lanes_i32 sum, lanes_part part) {
    return (lanes_i32){vaddq_s32(sum.a, four_sums(part.two[0], part.two[1])),
                       vaddq_s32(sum.b, four_sums(part.two[2], part.two[3]))};
}
BLOCKS_INLINE lanes_part part_add(lanes_part part, lanes_codes c, const void *x, bool is_signed) {
    (void)is_signed;
    int8x16_t values = vreinterpretq_s8_s32(four_values(x)), a = as_signed(c.a), b = as_signed(c.b);
    return (lanes_part){
        {vmlal_s8(part.two[0], vget_low_s8(a), vget_low_s8(values)), vmlal_high_s8(part.two[1], a, values),
         vmlal_s8(part.two[2], vget_low_s8(b), vget_low_s8(values)), vmlal_high_s8(part.two[3], b, values)}};
}
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define LANES_ROW_PAIRS
/* Two pieces that follow each other, as pairs of outputs with eight values each. */
typedef struct lanes_pairs_of_codes {
    int8x16_t two[4];
} lanes_pairs_of_codes;
/* Of outputs 2 i and 2 i + 1 the sums of two rows. */
typedef struct lanes_row_pair {
    int32x4_t two[4];
} lanes_row_pair;

BLOCKS_INLINE int8x16_t eight_values(uint8x16_t c, uint8x16_t d, const bool upper) {
    uint32x4_t first = vreinterpretq_u32_u8(c), second = vreinterpretq_u32_u8(d);
    return vreinterpretq_s8_u32(upper ? vzip2q_u32(first, second) : vzip1q_u32(first, second));
}
BLOCKS_INLINE lanes_pairs_of_codes codes_in_pairs(lanes_codes c, lanes_codes next) {
    return (lanes_pairs_of_codes){{eight_values(c.a, next.a, false), eight_values(c.a, next.a, true),
                                   eight_values(c.b, next.b, false), eight_values(c.b, next.b, true)}};
}
BLOCKS_INLINE lanes_row_pair row_pair_zero(void) {
    const int32x4_t zero = vdupq_n_s32(0);
    return (lanes_row_pair){{zero, zero, zero, zero}};
}
/* x: eight values of one row, the other row's x_bytes on. */
BLOCKS_INLINE lanes_row_pair row_pair_add(lanes_row_pair s, lanes_pairs_of_codes c, const int8_t *x, size_t x_bytes) {
    int8x16_t rows = vcombine_s8(vld1_s8(x), vld1_s8(x + x_bytes));
    return (lanes_row_pair){{vmmlaq_s32(s.two[0], c.two[0], rows), vmmlaq_s32(s.two[1], c.two[1], rows),
                             vmmlaq_s32(s.two[2], c.two[2], rows), vmmlaq_s32(s.two[3], c.two[3], rows)}};
}
/* What a pair's rows bring to their sums. */
BLOCKS_INLINE lanes_i32 row_pair_end(lanes_i32 sum, lanes_row_pair s, const bool second) {
    if (second)
        return (lanes_i32){vaddq_s32(sum.a, vuzp2q_s32(s.two[0], s.two[1])),
                           vaddq_s32(sum.b, vuzp2q_s32(s.two[2], s.two[3]))};
    return (lanes_i32){vaddq_s32(sum.a, vuzp1q_s32(s.two[0], s.two[1])),
                       vaddq_s32(sum.b, vuzp1q_s32(s.two[2], s.two[3]))};
}
#endif

/* [16][8] dwords to [8][16]: squares of four rows and four dwords. */
BLOCKS_INLINE void transpose_codes(const uint8_t *in, uint8_t *out) {
    for (int row = 0; row < TILE_OUTPUTS; row += 4) {
        for (int piece = 0; piece < TILE_PIECES; piece += 4) {
            uint32x4_t r[4];
            for (int i = 0; i < 4; i++) r[i] = vreinterpretq_u32_u8(vld1q_u8(in + 32 * (row + i) + 4 * piece));
            uint64x2_t t[4] = {
                vreinterpretq_u64_u32(vtrn1q_u32(r[0], r[1])), vreinterpretq_u64_u32(vtrn2q_u32(r[0], r[1])),
                vreinterpretq_u64_u32(vtrn1q_u32(r[2], r[3])), vreinterpretq_u64_u32(vtrn2q_u32(r[2], r[3]))};
            for (int i = 0; i < 4; i++) {
                uint64x2_t dwords = i < 2 ? vzip1q_u64(t[i], t[i + 2]) : vzip2q_u64(t[i - 2], t[i]);
                vst1q_u8(out + TILE_PIECE_BYTES * (piece + i) + 4 * row, vreinterpretq_u8_u64(dwords));
            }
        }
    }
}

/* int8_pack_block of 32 values; see int8_lanes_avx512.h. */
BLOCKS_INLINE void lanes_pack(const float *x, int8_record *out) {
    uint32x4_t most = vdupq_n_u32(0);
    for (int i = 0; i < 8; i++) most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + 4 * i))));
    float r = int8_steps(vmaxvq_u32(most), &out->scale);
    int total = 0;
    for (int h = 0; h < 2; h++) {
        int16x8_t words[2];
        for (int i = 0; i < 2; i++) {
            const float *from = x + 16 * h + 8 * i;
            int32x4_t lower = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(from), r));
            int32x4_t upper = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(from + 4), r));
            words[i] = r == 0 ? vdupq_n_s16(0) : vmovn_high_s32(vmovn_s32(lower), upper);
        }
        vst1q_s8(out->codes + 16 * h, vmovn_high_s16(vmovn_s16(words[0]), words[1]));
        int sum = vaddvq_s16(vaddq_s16(words[0], words[1]));
        out->half[h] = (int16_t)sum;
        total += sum;
    }
    out->total = (float)total;
    out->start = -128 * total;
}

#endif
