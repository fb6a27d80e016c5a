/* What the formats of quantised safetensors directories mean: codes, with scales of groups beside them. Values are made
 * in float32 by the products that the formats' authors define, in their order, so that every table gives the same bits.
 * Streams lie at any address: such files are not aligned. */
#ifndef KAKEYA_BACKEND_GROUPS_H
#define KAKEYA_BACKEND_GROUPS_H

#include "backend/blocks.h"

/* X(NAME, name, bits of a code, kind): as BLOCK_FORMATS, but values and bytes of a block are the format table's. First
 * those that a CPU multiplies with activations of 8 bits. */
#define GROUP_INT8_FORMATS(X)                                                                                          \
    X(AFFINE_2, affine_2, 2, affine)                                                                                   \
    X(AFFINE_3, affine_3, 3, affine)                                                                                   \
    X(AFFINE_4, affine_4, 4, affine)                                                                                   \
    X(AFFINE_5, affine_5, 5, affine)                                                                                   \
    X(AFFINE_6, affine_6, 6, affine)                                                                                   \
    X(AFFINE_8, affine_8, 8, affine)                                                                                   \
    X(INT4, int4, 4, packed)                                                                                           \
    X(INT8, int8, 8, packed)                                                                                           \
    X(INT4_ZERO, int4_zero, 4, zero)                                                                                   \
    X(INT8_ZERO, int8_zero, 8, zero)                                                                                   \
    X(INT8_SIGNED, int8_signed, 8, signed_bytes)                                                                       \
    X(FP4_E8M0, fp4_e8m0, 4, fp4_e8m0)                                                                                 \
    X(FP4_E4M3, fp4_e4m3, 4, fp4_e4m3)                                                                                 \
    X(FP4_E4M3_DIV, fp4_e4m3_div, 4, fp4_e4m3_div)
#define GROUP_OTHER_FORMATS(X)                                                                                         \
    X(FP8, fp8, 8, fp8)                                                                                                \
    X(FP8_E8M0, fp8_e8m0, 8, fp8_e8m0)
#define GROUP_FORMATS(X) GROUP_INT8_FORMATS(X) GROUP_OTHER_FORMATS(X)

enum { GROUP_SPAN = 32 /* values that are made together */ };

/* Code i of a string of codes of `bits` bits, the lowest bits first. */
BLOCKS_INLINE int group_code(const int bits, const unsigned char *codes, size_t i) {
    size_t at = i * (size_t)bits;
    int shift = (int)(at % 8), code = codes[at / 8] >> shift;
    if (shift + bits > 8) code |= codes[at / 8 + 1] << (8 - shift);
    return code & ((1 << bits) - 1);
}

BLOCKS_INLINE float group_scale(const weight *w, const void *scales, size_t i) {
    uint16_t bits;
    memcpy(&bits, (const unsigned char *)scales + i * sizeof bits, sizeof bits);
    return w->scale_type == DTYPE_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

BLOCKS_INLINE float group_float(const void *scales, size_t i) {
    float value;
    memcpy(&value, (const unsigned char *)scales + i * sizeof value, sizeof value);
    return value;
}

/* A float of 4 bits of exponent and 3 of mantissa. It has no infinity; 0x7f and 0xff are no numbers. */
BLOCKS_INLINE float e4m3_to_f32(unsigned char code) {
    uint32_t magnitude = code & 0x7fu;
    float value = magnitude == 0x7f ? block_float(0x7fc00000u) : block_float(magnitude << 20) * 0x1p120f;
    return code & 0x80 ? -value : value;
}

/* As many of them as a vector of the instruction set has room for, times a scale, with the same bits. No step meets a
 * subnormal float32, which processors are slow with: of codes below 8 the number is converted. */
#if defined(__AVX512F__)
enum { E4M3_TOGETHER = 16 };
#else
enum { E4M3_TOGETHER = 8 };
#endif
typedef uint8_t e4m3_codes __attribute__((vector_size(E4M3_TOGETHER)));
typedef uint16_t e4m3_halves __attribute__((vector_size(2 * E4M3_TOGETHER)));
typedef uint32_t e4m3_words __attribute__((vector_size(4 * E4M3_TOGETHER)));
typedef int32_t e4m3_numbers __attribute__((vector_size(4 * E4M3_TOGETHER)));
typedef float e4m3_floats __attribute__((vector_size(4 * E4M3_TOGETHER)));
BLOCKS_INLINE void e4m3_together(const unsigned char *codes, float scale, float *out) {
    e4m3_codes bytes;
    memcpy(&bytes, codes, sizeof bytes);
    /* In two steps, for each of which there is an instruction. */
    const e4m3_words bits = __builtin_convertvector(__builtin_convertvector(bytes, e4m3_halves), e4m3_words);
    const e4m3_words size = bits & 0x7f;
    const e4m3_words small = (e4m3_words)(__builtin_convertvector((e4m3_numbers)size, e4m3_floats) * 0x1p-9f);
    const e4m3_words is_small = (e4m3_words)((e4m3_numbers)size < 8);
    const e4m3_words is_none = (e4m3_words)((e4m3_numbers)size == 0x7f);
    e4m3_words value = (small & is_small) | (((size << 20) + (120u << 23)) & ~is_small);
    value = (0x7fc00000u & is_none) | (value & ~is_none);
    const e4m3_floats made = (e4m3_floats)(value | (bits & 0x80) << 24) * scale;
    memcpy(out, &made, sizeof made);
}

BLOCKS_INLINE void e4m3_values(const unsigned char *codes, int n, float scale, float *out) {
    int i = 0;
    for (; i + E4M3_TOGETHER <= n; i += E4M3_TOGETHER) e4m3_together(codes + i, scale, out + i);
    for (; i < n; i++) out[i] = e4m3_to_f32(codes[i]) * scale;
}

/* A power of two; 255 is no number. */
BLOCKS_INLINE float e8m0_to_f32(unsigned char code) {
    return block_float(code == 255 ? 0x7fc00000u : code ? (uint32_t)code << 23 : 0x00400000u);
}

/* Values [first, first + n) of a row, all of one group; n is GROUP_SPAN where it can be. */

BLOCKS_INLINE void span_affine(const int bits, const weight *w, const void *const *row, size_t first, int n,
                               float *out) {
    float scale = group_scale(w, row[1], first / (size_t)w->group),
          bias = group_scale(w, row[2], first / (size_t)w->group);
    for (int i = 0; i < n; i++) out[i] = scale * (float)group_code(bits, row[0], first + (size_t)i) + bias;
}

BLOCKS_INLINE void span_packed(const int bits, const weight *w, const void *const *row, size_t first, int n,
                               float *out) {
    float scale = group_scale(w, row[1], first / (size_t)w->group);
    for (int i = 0; i < n; i++)
        out[i] = (float)(group_code(bits, row[0], first + (size_t)i) - (1 << (bits - 1))) * scale;
}

BLOCKS_INLINE void span_zero(const int bits, const weight *w, const void *const *row, size_t first, int n, float *out) {
    size_t group = first / (size_t)w->group;
    float scale = group_scale(w, row[1], group);
    int zero = ((const unsigned char *)row[2])[group];
    for (int i = 0; i < n; i++) out[i] = (float)(group_code(bits, row[0], first + (size_t)i) - zero) * scale;
}

BLOCKS_INLINE void span_signed_bytes(const int bits, const weight *w, const void *const *row, size_t first, int n,
                                     float *out) {
    const int8_t *codes = (const int8_t *)row[0] + first;
    float scale = group_float(row[1], first / (size_t)w->group);
    for (int i = 0; i < n; i++) out[i] = (float)codes[i] * scale;
    (void)bits;
}

BLOCKS_INLINE void span_fp8(const int bits, const weight *w, const void *const *row, size_t first, int n, float *out) {
    const unsigned char *codes = (const unsigned char *)row[0] + first;
    float scale = group_float(row[1], first / (size_t)w->group);
    e4m3_values(codes, n, scale, out);
    (void)bits;
}

BLOCKS_INLINE void span_fp8_e8m0(const int bits, const weight *w, const void *const *row, size_t first, int n,
                                 float *out) {
    const unsigned char *codes = (const unsigned char *)row[0] + first;
    float scale = e8m0_to_f32(((const unsigned char *)row[1])[first / 32]);
    e4m3_values(codes, n, scale, out);
    (void)bits;
    (void)w;
}

/* fp4_values are doubled, and have no negative zero. */
BLOCKS_INLINE void span_fp4(const unsigned char *codes, size_t first, int n, float scale, float *out) {
    for (int i = 0; i < n; i++) {
        int code = group_code(4, codes, first + (size_t)i);
        float value = (float)fp4_values[code & 7] * 0.5f;
        out[i] = (code & 8 ? -value : value) * scale;
    }
}

BLOCKS_INLINE void span_fp4_e8m0(const int bits, const weight *w, const void *const *row, size_t first, int n,
                                 float *out) {
    span_fp4(row[0], first, n, e8m0_to_f32(((const unsigned char *)row[1])[first / 32]), out);
    (void)bits;
    (void)w;
}

/* Of the 32 values two groups of 16. */
BLOCKS_INLINE void span_fp4_nv(const bool divide, const void *const *row, size_t first, int n, float *out) {
    float factor = group_float(row[2], 0);
    for (int done = 0; done < n;) {
        size_t at = first + (size_t)done, group = at / 16;
        int left = 16 - (int)(at % 16), taken = left < n - done ? left : n - done;
        float scale = e4m3_to_f32(((const unsigned char *)row[1])[group]);
        span_fp4(row[0], at, taken, divide ? scale / factor : scale * factor, out + done);
        done += taken;
    }
}

BLOCKS_INLINE void span_fp4_e4m3(const int bits, const weight *w, const void *const *row, size_t first, int n,
                                 float *out) {
    span_fp4_nv(false, row, first, n, out);
    (void)bits;
    (void)w;
}

BLOCKS_INLINE void span_fp4_e4m3_div(const int bits, const weight *w, const void *const *row, size_t first, int n,
                                     float *out) {
    span_fp4_nv(true, row, first, n, out);
    (void)bits;
    (void)w;
}

/* Values [first, first + n) of a row: row_affine_4(...) and so on, as the rows of block formats. Groups are multiples
 * of a span, or whole rows. */
#define DEFINE_GROUP_ROW(NAME, name, bits, kind)                                                                       \
    BLOCKS_INLINE void row_##name(const weight *w, const void *const *row, int first, int n, float *out) {             \
        for (int done = 0; done < n;) {                                                                                \
            int at = first + done, left = GROUP_SPAN - at % GROUP_SPAN;                                                \
            if (left == GROUP_SPAN && n - done >= GROUP_SPAN) {                                                        \
                span_##kind(bits, w, row, (size_t)at, GROUP_SPAN, out + done);                                         \
                done += GROUP_SPAN;                                                                                    \
            } else {                                                                                                   \
                int taken = left < n - done ? left : n - done;                                                         \
                span_##kind(bits, w, row, (size_t)at, taken, out + done);                                              \
                done += taken;                                                                                         \
            }                                                                                                          \
        }                                                                                                              \
    }
GROUP_FORMATS(DEFINE_GROUP_ROW)

#endif
