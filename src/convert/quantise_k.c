/* Blocks of 256 values with scales of sub-blocks, which are quantised themselves. Both searches try a handful of scales
 * and keep the one with the smallest weighted error; sums are taken in the order of the elements, because that decides
 * the bytes. */
#include "convert/quantise_numbers.h"

enum { BLOCK = 256, SMALL = SEARCH_OFFSET_VALUES };

/* --------------------------------------------------------------------------------------------- scale and minimum */

float search_offset(const offset_search *s, const float *x, const float *weights, uint8_t *codes, float *minimum) {
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

enum { SUBS = BLOCK / SMALL, MOST_SCALE = 63 };

/* Integers 0 to MOST_SCALE for the scales (or minima) of the sub-blocks, by the largest; returns their unit. */
static float round_scales(const float *scales, int *codes) {
    float largest = 0;
    for (int j = 0; j < SUBS; j++) largest = scales[j] > largest ? scales[j] : largest;
    float inverse = largest > 0 ? MOST_SCALE / largest : 0;
    for (int j = 0; j < SUBS; j++) codes[j] = clamp_int(nearest(inverse * scales[j]), 0, MOST_SCALE);
    return largest / MOST_SCALE;
}

/* The same under weights: the unit is looked for around the largest, and then single integers are moved as long as the
 * weighted error falls. */
static float fit_scales(const float *scales, const float *weights, int *codes) {
    float largest = 0, best = 0, chosen = 0, sum_xl = 0, sum_ll = 0;
    for (int j = 0; j < SUBS; j++) largest = scales[j] > largest ? scales[j] : largest;
    memset(codes, 0, SUBS * sizeof *codes);
    if (largest < 1e-15f) return 0;
    for (int trial = 0; trial < 9; trial++) { /* 0, then -4 to 4 without 0 */
        int shift = trial == 0 ? 0 : trial <= 4 ? trial - 5 : trial - 4;
        float inverse = (0.1f * (float)shift + MOST_SCALE) / largest, unit = 1 / inverse, error = 0;
        for (int j = 0; j < SUBS; j++) {
            int l = clamp_int(nearest(inverse * scales[j]), 0, MOST_SCALE);
            float miss = scales[j] - unit * (float)l;
            error += weights[j] * miss * miss;
        }
        if (trial && !(error < best)) continue;
        best = error;
        chosen = inverse;
    }
    for (int j = 0; j < SUBS; j++) {
        codes[j] = clamp_int(nearest(chosen * scales[j]), 0, MOST_SCALE);
        sum_xl += weights[j] * scales[j] * (float)codes[j];
        sum_ll += weights[j] * (float)codes[j] * (float)codes[j];
    }
    for (int round = 0, moved = 1; round < 5 && moved; round++) {
        moved = 0;
        for (int j = 0; j < SUBS; j++) {
            const float w = weights[j], x = scales[j];
            float xl = sum_xl - w * x * (float)codes[j], ll = sum_ll - w * (float)codes[j] * (float)codes[j];
            if (!(xl > 0 && ll > 0)) continue;
            int l = clamp_int(nearest(x * ll / xl), 0, MOST_SCALE);
            if (l == codes[j]) continue;
            xl += w * x * (float)l;
            ll += w * (float)l * (float)l;
            if (!(xl * xl * sum_ll > sum_xl * sum_xl * ll)) continue;
            codes[j] = l;
            sum_xl = xl;
            sum_ll = ll;
            moved = 1;
        }
    }
    return sum_ll > 0 ? sum_xl / sum_ll : 0;
}

/* How much each of SMALL values counts. Without importances the large ones count more. With them the part of a value's
 * own size is `floor`, the mean square of the block twice. */
static void weigh(const float *x, const float *importance, float floor, float *weights) {
    float squares = 0;
    for (int i = 0; i < SMALL; i++) squares += x[i] * x[i];
    const float size = sqrtf(squares / SMALL);
    for (int i = 0; i < SMALL; i++)
        weights[i] = importance ? importance[i] * sqrtf(floor + x[i] * x[i]) : size + fabsf(x[i]);
}

/* { f16 d; f16 dmin; u8 s[12] } of a block, and the codes of its values. */
static void quantise_offsets(const offset_search *s, const float *x, const float *importance, unsigned char *out,
                             uint8_t codes[BLOCK]) {
    float scales[SUBS], minima[SUBS], sums[SUBS] = {0}, squares = 0;
    int scale_codes[SUBS], minimum_codes[SUBS];
    for (int i = 0; importance && i < BLOCK; i++) squares += x[i] * x[i];
    for (int j = 0; j < SUBS; j++) {
        float weights[SMALL];
        weigh(x + SMALL * j, importance ? importance + SMALL * j : NULL, 2 * squares / BLOCK, weights);
        for (int i = 0; i < SMALL; i++) sums[j] += weights[i];
        scales[j] = search_offset(s, x + SMALL * j, weights, codes + SMALL * j, &minima[j]);
    }
    float unit = importance ? fit_scales(scales, sums, scale_codes) : round_scales(scales, scale_codes);
    float minimum_unit = importance ? fit_scales(minima, sums, minimum_codes) : round_scales(minima, minimum_codes);
    float d = put_f16(out, unit), dmin = put_f16(out + 2, minimum_unit);
    unsigned char *packed = out + 4;
    memset(packed, 0, 12);
    for (int j = 0; j < SUBS; j++) {
        int scale = scale_codes[j], minimum = minimum_codes[j];
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

/* Under importances the search is finer. */
static const offset_search plain_16 = {.most = 15, .steps = 20, .first = -1, .step = 0.1f};
static const offset_search plain_32 = {.most = 31, .steps = 15, .first = -0.5f, .step = 0.1f};
const offset_search fine_16 = {.most = 15, .steps = 36, .first = -0.9f, .step = 0.05f};
const offset_search fine_32 = {.most = 31, .steps = 36, .first = -0.9f, .step = 0.05f};

void quantise_q4_k(const float *x, const float *importance, unsigned char *out) {
    uint8_t codes[BLOCK];
    quantise_offsets(importance ? &fine_16 : &plain_16, x, importance, out, codes);
    for (int j = 0; j < 4; j++) {
        for (int l = 0; l < SMALL; l++)
            out[16 + SMALL * j + l] = (unsigned char)(codes[64 * j + l] | codes[64 * j + SMALL + l] << 4);
    }
}

void quantise_q5_k(const float *x, const float *importance, unsigned char *out) {
    uint8_t codes[BLOCK];
    quantise_offsets(importance ? &fine_32 : &plain_32, x, importance, out, codes);
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

float search_scale(size_t n, int half, const float *x, const float *weights, uint8_t *codes) {
    float extremum = 0, scale = 0, best = 0;
    for (size_t i = 0; i < n; i++) {
        if (fabsf(x[i]) > fabsf(extremum)) extremum = x[i];
    }
    memset(codes, 0, n);
    if (fabsf(extremum) < 1e-15f) return 0;
    for (int trial = 0; trial < 19; trial++) { /* 0, then -9 to 9 without 0 */
        int shift = trial == 0 ? 0 : trial <= 9 ? trial - 10 : trial - 9;
        float inverse = shift == 0 ? (float)-half / extremum : -((float)half + 0.1f * (float)shift) / extremum;
        float sum_xl = 0, sum_ll = 0;
        uint8_t tried[SEARCH_SCALE_MOST];
        for (size_t i = 0; i < n; i++) {
            int l = clamp_int(nearest(inverse * x[i]), -half, half - 1);
            float w = weights ? weights[i] : x[i] * x[i];
            tried[i] = (uint8_t)(l + half);
            sum_xl += w * x[i] * (float)l;
            sum_ll += w * (float)l * (float)l;
        }
        if (trial && !(sum_ll > 0 && sum_xl * sum_xl > best * sum_ll)) continue;
        memcpy(codes, tried, n);
        scale = sum_ll != 0 ? sum_xl / sum_ll : 0;
        best = scale * sum_xl;
    }
    return scale;
}

void quantise_q6_k(const float *x, const float *importance, unsigned char *out) {
    uint8_t codes[BLOCK];
    float scales[GROUP], extremum = 0;
    memset(out, 0, 210);
    for (int g = 0; g < BLOCK / GROUP; g++) {
        scales[g] =
            search_scale(GROUP, HALF, x + GROUP * g, importance ? importance + GROUP * g : NULL, codes + GROUP * g);
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
