#include "convert/quantise.h"

#include "convert/quantise_numbers.h"

/* ------------------------------------------------------------------------------------------------------- numbers */

int quantise_first_bad(const float *x, int n) {
    for (int i = 0; i < n; i++) {
        if (!isfinite(x[i])) return i;
    }
    return n;
}

/* The value of the largest size with its sign, the first of equals. */
static float signed_extremum(const float *x, int n) {
    float extremum = 0;
    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) > fabsf(extremum)) extremum = x[i];
    }
    return extremum;
}

/* ------------------------------------------------------------------------------------------------ blocks of 32 */

enum { BLOCK = 32 };

static void put_nibbles(const int *codes, unsigned char *to) {
    for (int i = 0; i < BLOCK / 2; i++) to[i] = (unsigned char)((codes[i] & 15) | (codes[i + BLOCK / 2] & 15) << 4);
}

static void put_fifth_bits(const int *codes, unsigned char *to) {
    uint32_t high = 0;
    for (int i = 0; i < BLOCK; i++) high |= (uint32_t)(codes[i] >> 4 & 1) << i;
    memcpy(to, &high, sizeof high);
}

/* Signed codes around `half`: the extremum becomes code 0. */
static void symmetric_codes(const float *x, int half, unsigned char *scale, int *codes) {
    float d = signed_extremum(x, BLOCK) / (float)-half, inverse = d != 0 ? 1 / d : 0;
    (void)put_f16(scale, d);
    for (int i = 0; i < BLOCK; i++) {
        float place = x[i] * inverse;
        codes[i] = clamp_int((int)(place + ((float)half + 0.5f)), 0, 2 * half - 1);
    }
}

static void quantise_q4_0(const float *x, unsigned char *out) {
    int codes[BLOCK];
    symmetric_codes(x, 8, out, codes);
    put_nibbles(codes, out + 2);
}

static void quantise_q5_0(const float *x, unsigned char *out) {
    int codes[BLOCK];
    symmetric_codes(x, 16, out, codes);
    put_fifth_bits(codes, out + 2);
    put_nibbles(codes, out + 6);
}

/* Codes 0 to `most` from the minimum; both numbers are stored. */
static void offset_codes(const float *x, int most, unsigned char *numbers, int *codes) {
    float low = x[0], high = x[0];
    for (int i = 1; i < BLOCK; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    float d = (high - low) / (float)most, inverse = d != 0 ? 1 / d : 0;
    (void)put_f16(numbers, d);
    (void)put_f16(numbers + 2, low);
    for (int i = 0; i < BLOCK; i++) {
        float place = (x[i] - low) * inverse;
        codes[i] = clamp_int((int)(place + 0.5f), 0, most);
    }
}

static void quantise_q4_1(const float *x, unsigned char *out) {
    int codes[BLOCK];
    offset_codes(x, 15, out, codes);
    put_nibbles(codes, out + 4);
}

static void quantise_q5_1(const float *x, unsigned char *out) {
    int codes[BLOCK];
    offset_codes(x, 31, out, codes);
    put_fifth_bits(codes, out + 4);
    put_nibbles(codes, out + 8);
}

static void quantise_q8_0(const float *x, unsigned char *out) {
    float d = fabsf(signed_extremum(x, BLOCK)) / 127, inverse = d != 0 ? 1 / d : 0;
    (void)put_f16(out, d);
    for (int i = 0; i < BLOCK; i++) out[2 + i] = (unsigned char)(int8_t)roundf(x[i] * inverse);
}

/* ---------------------------------------------------------------------------------- blocks of 32 under importances */

/* The scale by search instead of by the extremum alone. */
static void fitted_codes(const float *x, const float *weights, int half, unsigned char *scale, int *codes) {
    uint8_t found[BLOCK];
    (void)put_f16(scale, search_scale(BLOCK, half, x, weights, found));
    for (int i = 0; i < BLOCK; i++) codes[i] = found[i];
}

static void fitted_offset_codes(const offset_search *search, const float *x, const float *weights,
                                unsigned char *numbers, int *codes) {
    uint8_t found[BLOCK];
    float minimum;
    (void)put_f16(numbers, search_offset(search, x, weights, found, &minimum));
    (void)put_f16(numbers + 2, -minimum);
    for (int i = 0; i < BLOCK; i++) codes[i] = found[i];
}

static void fit_q4_0(const float *x, const float *weights, unsigned char *out) {
    int codes[BLOCK];
    fitted_codes(x, weights, 8, out, codes);
    put_nibbles(codes, out + 2);
}

static void fit_q5_0(const float *x, const float *weights, unsigned char *out) {
    int codes[BLOCK];
    fitted_codes(x, weights, 16, out, codes);
    put_fifth_bits(codes, out + 2);
    put_nibbles(codes, out + 6);
}

static void fit_q4_1(const float *x, const float *weights, unsigned char *out) {
    int codes[BLOCK];
    fitted_offset_codes(&fine_16, x, weights, out, codes);
    put_nibbles(codes, out + 4);
}

static void fit_q5_1(const float *x, const float *weights, unsigned char *out) {
    int codes[BLOCK];
    fitted_offset_codes(&fine_32, x, weights, out, codes);
    put_fifth_bits(codes, out + 4);
    put_nibbles(codes, out + 8);
}

/* -------------------------------------------------------------------------------------------------- single values */

static void quantise_f32(const float *x, unsigned char *out) { memcpy(out, x, sizeof *x); }
static void quantise_f16(const float *x, unsigned char *out) { put_u16(out, f32_to_f16(*x)); }
static void quantise_bf16(const float *x, unsigned char *out) { put_u16(out, f32_to_bf16(*x)); }

static void plain_q4_k(const float *x, unsigned char *out) { quantise_q4_k(x, NULL, out); }
static void plain_q5_k(const float *x, unsigned char *out) { quantise_q5_k(x, NULL, out); }
static void plain_q6_k(const float *x, unsigned char *out) { quantise_q6_k(x, NULL, out); }

static void (*const blocks[WEIGHT_FORMAT_COUNT])(const float *x, unsigned char *out) = {
    [WEIGHT_F32] = quantise_f32,   [WEIGHT_F16] = quantise_f16,   [WEIGHT_BF16] = quantise_bf16,
    [WEIGHT_Q4_0] = quantise_q4_0, [WEIGHT_Q4_1] = quantise_q4_1, [WEIGHT_Q5_0] = quantise_q5_0,
    [WEIGHT_Q5_1] = quantise_q5_1, [WEIGHT_Q8_0] = quantise_q8_0, [WEIGHT_Q4_K] = plain_q4_k,
    [WEIGHT_Q5_K] = plain_q5_k,    [WEIGHT_Q6_K] = plain_q6_k,
};

/* Formats that importances change. */
static const struct {
    void (*make)(const float *x, const float *weights, unsigned char *out);
    bool own_weights; /* takes the importances as they are */
} fitted[WEIGHT_FORMAT_COUNT] = {
    [WEIGHT_Q4_0] = {fit_q4_0, false},     [WEIGHT_Q4_1] = {fit_q4_1, false},     [WEIGHT_Q5_0] = {fit_q5_0, false},
    [WEIGHT_Q5_1] = {fit_q5_1, false},     [WEIGHT_Q4_K] = {quantise_q4_k, true}, [WEIGHT_Q5_K] = {quantise_q5_k, true},
    [WEIGHT_Q6_K] = {quantise_q6_k, true},
};

bool quantise_has(weight_format format) { return blocks[format] != NULL; }

void quantise_row(weight_format format, const float *x, const float *importance, int n, unsigned char *out) {
    const weight_stream *stream = &weight_format_find(format)->stream[0];
    if (!importance || !fitted[format].make) {
        for (int i = 0; i < n; i += stream->values, out += stream->bytes) blocks[format](x + i, out);
        return;
    }
    float squares = 0;
    for (int i = 0; i < n; i++) squares += x[i] * x[i];
    for (int i = 0; i < n; i += stream->values, out += stream->bytes) {
        float weights[BLOCK];
        for (int j = 0; !fitted[format].own_weights && j < BLOCK; j++)
            weights[j] = importance[i + j] * sqrtf(squares / (float)n + x[i + j] * x[i + j]);
        fitted[format].make(x + i, fitted[format].own_weights ? importance + i : weights, out);
    }
}

/* --------------------------------------------------------------------------------------------------------- affine */

/* The extremum of the larger size is met exactly, and zero nearly so; hence scales of either sign. */
void quantise_affine(int bits, int group, dtype scales, const float *x, int n, unsigned char *codes,
                     unsigned char *scale, unsigned char *bias) {
    const float most = (float)((1 << bits) - 1);
    memset(codes, 0, (size_t)n * (size_t)bits / 8);
    for (int g = 0; g < n / group; g++) {
        const float *v = x + g * group;
        float low = v[0], high = v[0];
        for (int i = 1; i < group; i++) {
            low = v[i] < low ? v[i] : low;
            high = v[i] > high ? v[i] : high;
        }
        bool from_low = fabsf(low) > fabsf(high);
        float step = (high - low) / most, edge = from_low ? low : high, offset = 0;
        if (step < 1e-7f) step = 1e-7f;
        if (!from_low) step = -step;
        float edge_code = rintf(edge / step);
        if (edge_code != 0) {
            step = edge / edge_code;
            offset = edge;
        }
        for (int i = 0; i < group; i++) {
            float code = rintf((v[i] - offset) / step);
            code = code < 0 ? 0 : code > most ? most : code;
            size_t at = (size_t)(g * group + i) * (size_t)bits;
            unsigned shifted = (unsigned)code << at % 8;
            codes[at / 8] = (unsigned char)(codes[at / 8] | (shifted & 0xff));
            if (shifted >> 8) codes[at / 8 + 1] = (unsigned char)(codes[at / 8 + 1] | shifted >> 8);
        }
        put_u16(scale + 2 * g, scales == DTYPE_F16 ? f32_to_f16(step) : f32_to_bf16(step));
        put_u16(bias + 2 * g, scales == DTYPE_F16 ? f32_to_f16(offset) : f32_to_bf16(offset));
    }
}
