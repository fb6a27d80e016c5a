/* Numbers that the quantisers of blocks share, and the larger blocks. */
#ifndef KAKEYA_CONVERT_QUANTISE_NUMBERS_H
#define KAKEYA_CONVERT_QUANTISE_NUMBERS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/float16.h"

/* A half with the value nearest to x, ties to even; what is too large becomes infinite. */
static inline uint16_t f32_to_f16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) return (uint16_t)(sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or more */
    if (magnitude < 0x38800000u) {                                   /* a multiple of 2^-24 */
        float small;
        memcpy(&small, &magnitude, sizeof small);
        return (uint16_t)(sign | (uint32_t)rintf(small * 0x1p24f));
    }
    uint32_t rounded = magnitude - 0x38000000u;
    rounded += 0xfffu + (rounded >> 13 & 1);
    return (uint16_t)(sign | rounded >> 13);
}

static inline void put_u16(unsigned char *to, uint16_t bits) { memcpy(to, &bits, sizeof bits); }

/* Stores x as a half and gives back what was stored. */
static inline float put_f16(unsigned char *to, float x) {
    uint16_t bits = f32_to_f16(x);
    put_u16(to, bits);
    return f16_to_f32(bits);
}

static inline int clamp_int(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

/* Nearest integer, ties to even. */
static inline int nearest(float x) { return (int)rintf(x); }

void quantise_q4_k(const float *x, unsigned char *out);
void quantise_q5_k(const float *x, unsigned char *out);
void quantise_q6_k(const float *x, unsigned char *out);

#endif
