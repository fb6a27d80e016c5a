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

/* How the scale of a sub-block is looked for: codes 0 to `most`; trials (first + step * i + most) / range. */
typedef struct offset_search {
    int most, steps;
    float first, step;
} offset_search;

extern const offset_search fine_16, fine_32; /* of formats with 16 or 32 levels, under importances */

enum { SEARCH_OFFSET_VALUES = 32, SEARCH_SCALE_MOST = 32 };

/* The scale and the minimum (as a size, >= 0) that fit 32 values best under `weights`, and their codes. */
float search_offset(const offset_search *s, const float *x, const float *weights, uint8_t *codes, float *minimum);

/* The scale that fits n <= 32 values best, weighted by their squares where `weights` is NULL, and codes of 0 to
 * 2 * half - 1 around `half`. */
float search_scale(size_t n, int half, const float *x, const float *weights, uint8_t *codes);

/* A block of 256 values; importance: of each, or NULL. */
void quantise_q4_k(const float *x, const float *importance, unsigned char *out);
void quantise_q5_k(const float *x, const float *importance, unsigned char *out);
void quantise_q6_k(const float *x, const float *importance, unsigned char *out);

#endif
