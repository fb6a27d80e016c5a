/* Numbers that the quantisers of blocks share, and the larger blocks. */
#ifndef KAKEYA_CONVERT_QUANTISE_NUMBERS_H
#define KAKEYA_CONVERT_QUANTISE_NUMBERS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/float16.h"

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
