/* Blocks of 256 values with scales of sub-blocks, which are quantised themselves. Both searches try a handful of scales
 * and keep the one with the smallest weighted error; sums are taken in the order of the elements, because that decides
 * the bytes. */
#include "convert/quantise_numbers.h"

enum { BLOCK = 256, SMALL = 32 };

/* --------------------------------------------------------------------------------------------- scale and minimum */

/* How the scale of a sub-block is looked for: codes 0 to `most`; trials (first + step * i + most) / range. */
typedef struct offset_search {
    int most, steps;
    float first, step;
} offset_search;

/* The scale and the minimum (as a size, >= 0) that fit SMALL values best under `weights`, and their codes. */
static float search_offset(const offset_search *s, const float *x, const float *weights, uint8_t *codes,
                           float *minimum) {
    float low = x[0], high = x[0], sum_w = weights[0], sum_wx = sum_w * x[0];
    for (int i = 1; i < SMALL; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        sum_w += weights[i];
        sum_wx += weights[i] * x[i];
    }
    if (low > 0) low = 0;
    *minimum = -low;
    memset(codes, 0, SMALL);
    if (high == low) return 0;
    float inverse = (float)s->most / (high - low), scale = 1 / inverse, best = 0;
    for (int i = 0; i < SMALL; i++) {
        codes[i] = (uint8_t)clamp_int(nearest(inverse * (x[i] - low)), 0, s->most);
        float miss = scale * (float)codes[i] + low - x[i];
        best += weights[i] * (miss * miss);
    }
    for (int trial = 0; trial <= s->steps; trial++) {
        uint8_t tried[SMALL];
        float sum_l = 0, sum_ll = 0, sum_xl = 0;
        /* `low` is that of the best trial so far, as in the reference. */
        inverse = (s->first + s->step * (float)trial + (float)s->most) / (high - low);
        for (int i = 0; i < SMALL; i++) {
            int l = clamp_int(nearest(inverse * (x[i] - low)), 0, s->most);
            tried[i] = (uint8_t)l;
            float wl = weights[i] * (float)l;
            sum_l += wl;
            sum_ll += wl * (float)l;
            sum_xl += wl * x[i];
        }
        float determinant = sum_w * sum_ll - sum_l * sum_l;
        if (!(determinant > 0)) continue;
        float new_scale = (sum_w * sum_xl - sum_wx * sum_l) / determinant;
        float new_low = (sum_ll * sum_wx - sum_l * sum_xl) / determinant;
        if (new_low > 0) {
            new_low = 0;
            new_scale = sum_xl / sum_ll;
        }
        float error = 0;
        for (int i = 0; i < SMALL; i++) {
            float miss = new_scale * (float)tried[i] + new_low - x[i];
            error += weights[i] * (miss * miss);
        }
        if (error < best) {
            memcpy(codes, tried, sizeof tried);
            best = error;
            scale = new_scale;
            low = new_low;
        }
    }
    *minimum = -low;
    return scale;
}

/* { f16 d; f16 dmin; u8 s[12] } of a block, and the codes of its values. */
static void quantise_offsets(const offset_search *s, const float *x, unsigned char *out, uint8_t codes[BLOCK]) {
    float scales[8], minima[8], largest_scale = 0, largest_minimum = 0;
    for (int j = 0; j < 8; j++) {
        const float *v = x + SMALL * j;
        float weights[SMALL], squares = 0;
        for (int i = 0; i < SMALL; i++) squares += v[i] * v[i];
        float size = sqrtf(squares / SMALL);
        for (int i = 0; i < SMALL; i++) weights[i] = size + fabsf(v[i]);
        scales[j] = search_offset(s, v, weights, codes + SMALL * j, &minima[j]);
        if (scales[j] > largest_scale) largest_scale = scales[j];
        if (minima[j] > largest_minimum) largest_minimum = minima[j];
    }
    float by_scale = largest_scale > 0 ? 63 / largest_scale : 0;
    float by_minimum = largest_minimum > 0 ? 63 / largest_minimum : 0;
    float d = put_f16(out, largest_scale / 63), dmin = put_f16(out + 2, largest_minimum / 63);
    unsigned char *packed = out + 4;
    memset(packed, 0, 12);
    for (int j = 0; j < 8; j++) {
        int scale = clamp_int(nearest(by_scale * scales[j]), 0, 63);
        int minimum = clamp_int(nearest(by_minimum * minima[j]), 0, 63);
        if (j < 4) {
            packed[j] = (unsigned char)(packed[j] | scale);
            packed[j + 4] = (unsigned char)(packed[j + 4] | minimum);
        } else {
            packed[j + 4] = (unsigned char)((scale & 15) | (minimum & 15) << 4);
            packed[j - 4] = (unsigned char)(packed[j - 4] | scale >> 4 << 6);
            packed[j] = (unsigned char)(packed[j] | minimum >> 4 << 6);
        }
        float step = d * (float)scale, offset = dmin * (float)minimum;
        if (step == 0) continue;
        for (int i = 0; i < SMALL; i++)
            codes[SMALL * j + i] = (uint8_t)clamp_int(nearest((x[SMALL * j + i] + offset) / step), 0, s->most);
    }
}

void quantise_q4_k(const float *x, unsigned char *out) {
    static const offset_search search = {.most = 15, .steps = 20, .first = -1, .step = 0.1f};
    uint8_t codes[BLOCK];
    quantise_offsets(&search, x, out, codes);
    for (int j = 0; j < 4; j++) {
        for (int l = 0; l < SMALL; l++)
            out[16 + SMALL * j + l] = (unsigned char)(codes[64 * j + l] | codes[64 * j + SMALL + l] << 4);
    }
}

void quantise_q5_k(const float *x, unsigned char *out) {
    static const offset_search search = {.most = 31, .steps = 15, .first = -0.5f, .step = 0.1f};
    uint8_t codes[BLOCK];
    quantise_offsets(&search, x, out, codes);
    memset(out + 16, 0, SMALL);
    for (int j = 0; j < 8; j++) {
        for (int l = 0; l < SMALL; l++) out[16 + l] = (unsigned char)(out[16 + l] | codes[SMALL * j + l] >> 4 << j);
    }
    for (int j = 0; j < 4; j++) {
        for (int l = 0; l < SMALL; l++)
            out[48 + SMALL * j + l] = (unsigned char)((codes[64 * j + l] & 15) | (codes[64 * j + SMALL + l] & 15) << 4);
    }
}

/* --------------------------------------------------------------------------------------------------- scale alone */

enum { GROUP = 16, HALF = 32 };

/* The scale that fits GROUP values best, weighted by their squares, and codes of 0 to 63 around 32. */
static float search_scale(const float *x, uint8_t *codes) {
    float extremum = 0, scale = 0, best = 0;
    for (int i = 0; i < GROUP; i++) {
        if (fabsf(x[i]) > fabsf(extremum)) extremum = x[i];
    }
    memset(codes, 0, GROUP);
    if (fabsf(extremum) < 1e-15f) return 0;
    for (int trial = 0; trial < 19; trial++) { /* 0, then -9 to 9 without 0 */
        int shift = trial == 0 ? 0 : trial <= 9 ? trial - 10 : trial - 9;
        float inverse = shift == 0 ? (float)-HALF / extremum : -((float)HALF + 0.1f * (float)shift) / extremum;
        float sum_xl = 0, sum_ll = 0;
        uint8_t tried[GROUP];
        for (int i = 0; i < GROUP; i++) {
            int l = clamp_int(nearest(inverse * x[i]), -HALF, HALF - 1);
            float w = x[i] * x[i];
            tried[i] = (uint8_t)(l + HALF);
            sum_xl += w * x[i] * (float)l;
            sum_ll += w * (float)l * (float)l;
        }
        if (trial && !(sum_ll > 0 && sum_xl * sum_xl > best * sum_ll)) continue;
        memcpy(codes, tried, sizeof tried);
        scale = sum_ll != 0 ? sum_xl / sum_ll : 0;
        best = scale * sum_xl;
    }
    return scale;
}

void quantise_q6_k(const float *x, unsigned char *out) {
    uint8_t codes[BLOCK];
    float scales[GROUP], extremum = 0;
    memset(out, 0, 210);
    for (int g = 0; g < BLOCK / GROUP; g++) {
        scales[g] = search_scale(x + GROUP * g, codes + GROUP * g);
        if (fabsf(scales[g]) > fabsf(extremum)) extremum = scales[g];
    }
    if (fabsf(extremum) < 1e-15f) return;
    float by_scale = -128 / extremum, d = put_f16(out + 208, 1 / by_scale);
    for (int g = 0; g < BLOCK / GROUP; g++) {
        int scale = nearest(by_scale * scales[g]);
        if (scale > 127) scale = 127;
        out[192 + g] = (unsigned char)(int8_t)scale;
        float step = d * (float)(int8_t)scale;
        if (step == 0) continue;
        for (int i = 0; i < GROUP; i++)
            codes[GROUP * g + i] = (uint8_t)(clamp_int(nearest(x[GROUP * g + i] / step), -HALF, HALF - 1) + HALF);
    }
    for (int half = 0; half < 2; half++) {
        const uint8_t *c = codes + 128 * half;
        for (int l = 0; l < 32; l++) {
            out[64 * half + l] = (unsigned char)((c[l] & 15) | (c[l + 64] & 15) << 4);
            out[64 * half + 32 + l] = (unsigned char)((c[l + 32] & 15) | (c[l + 96] & 15) << 4);
            out[128 + 32 * half + l] =
                (unsigned char)(c[l] >> 4 | (c[l + 32] >> 4) << 2 | (c[l + 64] >> 4) << 4 | (c[l + 96] >> 4) << 6);
        }
    }
}
