/* Weights that training has kept on a grid of 4 bits (quantisation-aware training): a block of 32 is d * k for whole k
 * of -8 to 7, rounded to bf16. The plain rule takes the extremum for -8 and misses the grid where it is another k. */
#include "convert/quantise.h"
#include "convert/quantise_numbers.h"

enum { BLOCK = 32, LOW = -8, HIGH = 7 };

/* Whether every value is met within the rounding of bf16. */
static bool meets(const float *x, const int *codes, float scale) {
    for (int i = 0; i < BLOCK; i++) {
        if (!(fabsf(x[i] - scale * (float)codes[i]) <= 0x1p-8f * fabsf(x[i]))) return false;
    }
    return true;
}

/* A scale near d under which every value is met, 0 where there is none: by least squares, else in the middle of what
 * the values ask for. */
static float fit(const float *x, float d, int *codes) {
    float sum_xq = 0, sum_qq = 0, least = INFINITY, most = -INFINITY;
    for (int i = 0; i < BLOCK; i++) {
        float place = x[i] / d;
        if (!(fabsf(place) < 9)) return 0;
        codes[i] = nearest(place);
        if (codes[i] < LOW || codes[i] > HIGH) return 0;
        sum_xq += x[i] * (float)codes[i];
        sum_qq += (float)(codes[i] * codes[i]);
        if (codes[i] == 0) continue;
        float asked = x[i] / (float)codes[i];
        least = asked < least ? asked : least;
        most = asked > most ? asked : most;
    }
    if (sum_qq == 0) return 0;
    const float scales[] = {sum_xq / sum_qq, least / 2 + most / 2};
    for (int i = 0; i < 2; i++) {
        float scale = f16_to_f32(f32_to_f16(scales[i]));
        if (meets(x, codes, scale)) return scale;
    }
    return 0;
}

/* The scale with the smallest error weighted by squares, of 19 around the plain one. */
static float search(const float *x, float extremum, int *codes) {
    float scale = 0, best = 0;
    for (int trial = -9; trial <= 9; trial++) {
        int tried[BLOCK];
        float inverse = ((float)LOW - 0.1f * (float)trial) / extremum, sum_xl = 0, sum_ll = 0;
        for (int i = 0; i < BLOCK; i++) {
            tried[i] = clamp_int(nearest(inverse * x[i]), LOW, HIGH);
            sum_xl += x[i] * x[i] * x[i] * (float)tried[i];
            sum_ll += x[i] * x[i] * (float)(tried[i] * tried[i]);
        }
        if (!(sum_ll > 0 && sum_xl * sum_xl > best * sum_ll)) continue;
        memcpy(codes, tried, sizeof tried);
        scale = sum_xl / sum_ll;
        best = scale * sum_xl;
    }
    return scale;
}

grid_place quantise_q4_0_grid(const float *x, unsigned char *out) {
    int codes[BLOCK] = {0};
    float extremum = 0, scale = 0;
    grid_place place = GRID_NONE;
    for (int i = 0; i < BLOCK; i++) {
        if (fabsf(x[i]) > fabsf(extremum)) extremum = x[i];
    }
    if (extremum == 0) place = GRID_PLAIN;
    for (int k = LOW; k <= HIGH && extremum != 0; k++) {
        int tried[BLOCK];
        float found = k ? fit(x, extremum / (float)k, tried) : 0;
        if (fabsf(found) <= fabsf(scale)) continue;
        scale = found;
        memcpy(codes, tried, sizeof tried);
        place = k == LOW ? GRID_PLAIN : GRID_OTHER;
    }
    if (place == GRID_NONE) scale = search(x, extremum, codes);
    (void)put_f16(out, scale);
    for (int i = 0; i < BLOCK / 2; i++)
        out[2 + i] = (unsigned char)((codes[i] - LOW) | (codes[i + BLOCK / 2] - LOW) << 4);
    return place;
}
