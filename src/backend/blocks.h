/* What the block formats of GGUF files mean: values of a block from its bytes, in float32, by the products and in the
 * order that the formats' authors define, so that every table gives the same bits. Blocks are read byte by byte or by
 * memcpy: they lie at any address. */
#ifndef KAKEYA_BACKEND_BLOCKS_H
#define KAKEYA_BACKEND_BLOCKS_H

#include <stdint.h>
#include <string.h>

#include "base/float16.h"
#include "model/weight.h"

#define BLOCKS_INLINE static inline __attribute__((always_inline))

/* X(NAME, name, values of a block, bytes of a block) */
#define BLOCK_FORMATS(X)                                                                                               \
    X(Q4_0, q4_0, 32, 18)                                                                                              \
    X(Q4_1, q4_1, 32, 20)                                                                                              \
    X(Q5_0, q5_0, 32, 22)                                                                                              \
    X(Q5_1, q5_1, 32, 24)                                                                                              \
    X(Q8_0, q8_0, 32, 34)                                                                                              \
    X(Q2_K, q2_k, 256, 84)                                                                                             \
    X(Q3_K, q3_k, 256, 110)                                                                                            \
    X(Q4_K, q4_k, 256, 144)                                                                                            \
    X(Q5_K, q5_k, 256, 176)                                                                                            \
    X(Q6_K, q6_k, 256, 210)                                                                                            \
    X(IQ4_NL, iq4_nl, 32, 18)                                                                                          \
    X(IQ4_XS, iq4_xs, 256, 136)                                                                                        \
    X(MXFP4, mxfp4, 32, 17)                                                                                            \
    X(NVFP4, nvfp4, 64, 36)

enum { BLOCK_MOST_VALUES = 256 };

/* Values of a 4-bit code in the IQ4 formats. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/* Twice the values of a 4-bit float (e2m1). */
static const int8_t fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

BLOCKS_INLINE float block_f16(const unsigned char *p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return f16_to_f32(bits);
}

BLOCKS_INLINE uint32_t block_u32(const unsigned char *p) {
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    return bits;
}

BLOCKS_INLINE float block_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* { f16 d; u8 qs[16] }: low nibbles are values 0 to 15, high ones 16 to 31. */
BLOCKS_INLINE void decode_q4_0(const unsigned char *b, float *out) {
    float d = block_f16(b);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((b[2 + i] & 15) - 8);
        out[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

/* { f16 d; f16 m; u8 qs[16] } */
BLOCKS_INLINE void decode_q4_1(const unsigned char *b, float *out) {
    float d = block_f16(b), m = block_f16(b + 2);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(b[4 + i] & 15) + m;
        out[i + 16] = d * (float)(b[4 + i] >> 4) + m;
    }
}

/* { f16 d; u8 qh[4]; u8 qs[16] }: bit i of qh is the fifth bit of value i. */
BLOCKS_INLINE void decode_q5_0(const unsigned char *b, float *out) {
    float d = block_f16(b);
    uint32_t high = block_u32(b + 2);
    for (int i = 0; i < 16; i++) {
        int low = (b[6 + i] & 15) | (int)(high >> i & 1) << 4;
        int upper = b[6 + i] >> 4 | (int)(high >> (i + 16) & 1) << 4;
        out[i] = d * (float)(low - 16);
        out[i + 16] = d * (float)(upper - 16);
    }
}

/* { f16 d; f16 m; u8 qh[4]; u8 qs[16] } */
BLOCKS_INLINE void decode_q5_1(const unsigned char *b, float *out) {
    float d = block_f16(b), m = block_f16(b + 2);
    uint32_t high = block_u32(b + 4);
    for (int i = 0; i < 16; i++) {
        int low = (b[8 + i] & 15) | (int)(high >> i & 1) << 4;
        int upper = b[8 + i] >> 4 | (int)(high >> (i + 16) & 1) << 4;
        out[i] = d * (float)low + m;
        out[i + 16] = d * (float)upper + m;
    }
}

/* { f16 d; i8 qs[32] } */
BLOCKS_INLINE void decode_q8_0(const unsigned char *b, float *out) {
    float d = block_f16(b);
    for (int i = 0; i < 32; i++) out[i] = d * (float)(int8_t)b[2 + i];
}

/* { u8 s[16]; u8 qs[64]; f16 d; f16 dmin }: 16 groups of 16 with a scale and a minimum of 4 bits each. */
BLOCKS_INLINE void decode_q2_k(const unsigned char *b, float *out) {
    float d = block_f16(b + 80), min = block_f16(b + 82);
    for (int g = 0; g < 8; g++) {
        const unsigned char *codes = b + 16 + 32 * (g / 4);
        for (int half = 0; half < 2; half++) {
            int s = b[2 * g + half];
            float scale = d * (float)(s & 15), offset = min * (float)(s >> 4);
            for (int l = 0; l < 16; l++)
                out[32 * g + 16 * half + l] = scale * (float)(codes[16 * half + l] >> 2 * (g % 4) & 3) - offset;
        }
    }
}

/* { u8 hmask[32]; u8 qs[64]; u8 s[12]; f16 d }: 16 groups of 16 with a scale of 6 bits. */
BLOCKS_INLINE void decode_q3_k(const unsigned char *b, float *out) {
    const unsigned char *s = b + 96;
    float d = block_f16(b + 108);
    for (int g = 0; g < 8; g++) {
        const unsigned char *codes = b + 32 + 32 * (g / 4);
        for (int half = 0; half < 2; half++) {
            int j = 2 * g + half;
            int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4, upper = s[8 + j % 4] >> 2 * (j / 4) & 3;
            float scale = d * (float)((low | upper << 4) - 32);
            for (int i = 0; i < 16; i++) {
                int l = 16 * half + i;
                int code = (codes[l] >> 2 * (g % 4) & 3) - (b[l] >> g & 1 ? 0 : 4);
                out[32 * g + l] = scale * (float)code;
            }
        }
    }
}

/* Scale and minimum of sub-block j of Q4_K and Q5_K, six bits each in twelve bytes. */
BLOCKS_INLINE void k_scale(const unsigned char *s, int j, int *scale, int *min) {
    *scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

/* { f16 d; f16 dmin; u8 s[12]; u8 qs[128] }: sub-blocks of 32, two share 32 bytes of nibbles. */
BLOCKS_INLINE void decode_q4_k(const unsigned char *b, float *out) {
    float d = block_f16(b), dmin = block_f16(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        k_scale(b + 4, j, &scale, &min);
        float ds = d * (float)scale, dm = dmin * (float)min;
        const unsigned char *codes = b + 16 + 32 * (j / 2);
        for (int l = 0; l < 32; l++) out[32 * j + l] = ds * (float)(codes[l] >> 4 * (j % 2) & 15) - dm;
    }
}

/* { f16 d; f16 dmin; u8 s[12]; u8 qh[32]; u8 qs[128] }: bit j of qh[l] is the fifth bit of value l of sub-block j. */
BLOCKS_INLINE void decode_q5_k(const unsigned char *b, float *out) {
    float d = block_f16(b), dmin = block_f16(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        k_scale(b + 4, j, &scale, &min);
        float ds = d * (float)scale, dm = dmin * (float)min;
        const unsigned char *codes = b + 48 + 32 * (j / 2);
        for (int l = 0; l < 32; l++) {
            int code = (codes[l] >> 4 * (j % 2) & 15) + 16 * (b[16 + l] >> j & 1);
            out[32 * j + l] = ds * (float)code - dm;
        }
    }
}

/* { u8 ql[128]; u8 qh[64]; i8 sc[16]; f16 d }: 16 groups of 16. */
BLOCKS_INLINE void decode_q6_k(const unsigned char *b, float *out) {
    float d = block_f16(b + 208);
    for (int j = 0; j < 8; j++) { /* 32 values: half j / 4, of which the part j % 4 */
        int part = j % 4;
        const unsigned char *low = b + 64 * (j / 4) + 32 * (part % 2), *high = b + 128 + 32 * (j / 4);
        for (int half = 0; half < 2; half++) {
            float scale = d * (float)(int8_t)b[192 + 2 * j + half];
            for (int i = 0; i < 16; i++) {
                int l = 16 * half + i;
                int code = (low[l] >> 4 * (part / 2) & 15) | (high[l] >> 2 * part & 3) << 4;
                out[32 * j + l] = scale * (float)(code - 32);
            }
        }
    }
}

/* As Q4_0, with a table in the place of equal steps. */
BLOCKS_INLINE void decode_iq4_nl(const unsigned char *b, float *out) {
    float d = block_f16(b);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)iq4_values[b[2 + i] & 15];
        out[i + 16] = d * (float)iq4_values[b[2 + i] >> 4];
    }
}

/* { f16 d; u16 sh; u8 sl[4]; u8 qs[128] }: sub-blocks of 32 with a scale of 6 bits. */
BLOCKS_INLINE void decode_iq4_xs(const unsigned char *b, float *out) {
    float d = block_f16(b);
    int high = b[2] | b[3] << 8;
    for (int j = 0; j < 8; j++) {
        int scale = (b[4 + j / 2] >> 4 * (j % 2) & 15) | (high >> 2 * j & 3) << 4;
        float ds = d * (float)(scale - 32);
        const unsigned char *codes = b + 8 + 16 * j;
        for (int i = 0; i < 16; i++) {
            out[32 * j + i] = ds * (float)iq4_values[codes[i] & 15];
            out[32 * j + i + 16] = ds * (float)iq4_values[codes[i] >> 4];
        }
    }
}

/* 2^(e - 127), halved for the doubled values; subnormal for e < 2. */
BLOCKS_INLINE float mxfp4_scale(unsigned char e) {
    return block_float(e < 2 ? 0x00200000u << e : ((uint32_t)e - 1) << 23);
}

/* { u8 e; u8 qs[16] } */
BLOCKS_INLINE void decode_mxfp4(const unsigned char *b, float *out) {
    float d = mxfp4_scale(b[0]);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)fp4_values[b[1 + i] & 15];
        out[i + 16] = d * (float)fp4_values[b[1 + i] >> 4];
    }
}

/* An unsigned e4m3 scale, halved for the doubled values. */
BLOCKS_INLINE float nvfp4_scale(unsigned char bits) {
    if (bits == 0 || bits == 0x7f) return 0;
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if (!exponent) return (float)mantissa * 0x1p-10f;
    return (float)(8 + mantissa) * block_float((uint32_t)(exponent - 7 - 3 - 1 + 127) << 23);
}

/* { u8 d[4]; u8 qs[32] }: four groups of 16. */
BLOCKS_INLINE void decode_nvfp4(const unsigned char *b, float *out) {
    for (int s = 0; s < 4; s++) {
        float d = nvfp4_scale(b[s]);
        for (int i = 0; i < 8; i++) {
            out[16 * s + i] = d * (float)fp4_values[b[4 + 8 * s + i] & 15];
            out[16 * s + i + 8] = d * (float)fp4_values[b[4 + 8 * s + i] >> 4];
        }
    }
}

/* Values [first, first + n) of a row of blocks. */
BLOCKS_INLINE void decode_range(void (*decode)(const unsigned char *block, float *out), int values, int bytes,
                                const void *row, int first, int n, float *out) {
    const unsigned char *block = (const unsigned char *)row + (size_t)(first / values) * (size_t)bytes;
    int skipped = first % values;
    while (n > 0) {
        int taken = values - skipped < n ? values - skipped : n;
        if (taken == values) {
            decode(block, out);
        } else {
            float whole[BLOCK_MOST_VALUES];
            decode(block, whole);
            memcpy(out, whole + skipped, (size_t)taken * sizeof *out);
        }
        skipped = 0;
        block += bytes;
        out += taken;
        n -= taken;
    }
}

/* Values [first, first + n) of a row of a format: row_q4_0(...) and so on. row[s] is where the row begins in stream s.
 */
#define DEFINE_BLOCK_ROW(NAME, name, values, bytes)                                                                    \
    BLOCKS_INLINE void row_##name(const weight *w, const void *const *row, int first, int n, float *out) {             \
        decode_range(decode_##name, values, bytes, row[0], first, n, out);                                             \
        if (WEIGHT_##NAME == WEIGHT_NVFP4) {                                                                           \
            float factor;                                                                                              \
            memcpy(&factor, row[1], sizeof factor);                                                                    \
            for (int i = 0; i < n; i++) out[i] *= factor;                                                              \
        }                                                                                                              \
        (void)w;                                                                                                       \
    }
BLOCK_FORMATS(DEFINE_BLOCK_ROW)

#endif
