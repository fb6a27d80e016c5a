/* Codes are random bytes. Scales are the same in all blocks, so that codes of equal likelihood have the deviation. */
#include "backend/cpu/synthetic_blocks.h"

#include <math.h>
#include <string.h>

enum { K_SCALE = 32 /* of 63: every sub-block's factor in formats that have such */ };

/* Deviation of codes that are equally likely among n. */
static float deviation_of(int n) { return sqrtf(((float)n * (float)n - 1) / 12); }

typedef struct recipe {
    int d, min;            /* where the float16 scales are; -1: none */
    int scales, n;         /* bytes of sub-blocks' scales */
    unsigned char byte[2]; /* what they are: the first 8 of them, and the others */
    int codes, factor;     /* distinct codes; what the bytes multiply d with */
} recipe;

static const recipe recipes[WEIGHT_FORMAT_COUNT] = {
    [WEIGHT_Q4_0] = {0, -1, 0, 0, {0, 0}, 16, 1},
    [WEIGHT_Q5_0] = {0, -1, 0, 0, {0, 0}, 32, 1},
    [WEIGHT_Q8_0] = {0, -1, 0, 0, {0, 0}, 256, 1},
    /* 32 in the six bits of each of the twelve bytes' fields */
    [WEIGHT_Q4_K] = {0, 2, 4, 12, {K_SCALE | 2 << 6, 0}, 16, K_SCALE},
    [WEIGHT_Q6_K] = {208, -1, 192, 16, {K_SCALE, K_SCALE}, 64, K_SCALE},
};

bool synthetic_blocks_can(weight_format format) { return recipes[format].codes > 0; }

/* A positive number below 1 as float16, rounded. */
static uint16_t f16_of(float value) {
    int exponent;
    float fraction = frexpf(value, &exponent); /* [0.5, 1) */
    if (exponent < -13) return (uint16_t)lrintf(ldexpf(value, 24));
    return (uint16_t)(((exponent + 14) << 10) + lrintf(ldexpf(fraction - 0.5f, 11)));
}

void synthetic_blocks(weight_format format, float deviation, uint64_t seed, size_t bytes, unsigned char *out) {
    const recipe *r = &recipes[format];
    const size_t block = (size_t)weight_format_find(format)->stream[0].bytes;
    for (size_t i = 0; i < bytes; i += sizeof seed) { /* splitmix64 */
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        memcpy(out + i, &z, bytes - i < sizeof z ? bytes - i : sizeof z);
    }
    float step = deviation / (deviation_of(r->codes) * (float)r->factor);
    uint16_t d = f16_of(step), min = f16_of(step * (float)(r->codes - 1) / 2);
    for (size_t b = 0; b < bytes; b += block) {
        memcpy(out + b + r->d, &d, sizeof d);
        if (r->min >= 0) memcpy(out + b + r->min, &min, sizeof min);
        for (int i = 0; i < r->n; i++) out[b + (size_t)(r->scales + i)] = r->byte[i / 8];
    }
}
