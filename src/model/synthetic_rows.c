#include "model/synthetic_rows.h"

#include <math.h>
#include <string.h>

#include "base/float16.h"

/* Deviations of codes that are all as likely: 0 to 15, 0 to 255, floats of 8 bits below 1, those of 4 bits. */
static const float of_nibbles = 4.6097722f, of_bytes = 73.900383f, of_fp8 = 0.38f, of_fp4 = 2.9261750f;
static const uint64_t below_one = 0xb7b7b7b7b7b7b7b7u; /* in eight codes of FP8 the bit that larger ones have */

bool synthetic_rows_can(weight_format format) {
    return format == WEIGHT_F32 || format == WEIGHT_BF16 || format == WEIGHT_AFFINE_4 || format == WEIGHT_AFFINE_8 ||
           format == WEIGHT_FP8 || format == WEIGHT_INT4 || format == WEIGHT_FP4_E8M0 || format == WEIGHT_FP4_E4M3;
}

int synthetic_group(weight_format format, int in) {
    if (!weight_format_is_grouped(format)) return 0;
    int of_format = weight_format_find(format)->stream[1].values;
    return format == WEIGHT_FP8 ? in : of_format != WEIGHT_GROUP ? of_format : SYNTHETIC_GROUP;
}

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void make_codes(uint64_t *state, uint64_t mask, size_t bytes, unsigned char *to) {
    for (size_t i = 0; i < bytes; i += sizeof mask) {
        uint64_t random = next_random(state) & mask;
        memcpy(to + i, &random, bytes - i < sizeof random ? bytes - i : sizeof random);
    }
}

/* Four values of each random number, uniform on [-h, h], which has the deviation h / sqrt(3). */
static void make_plain(const weight *w, uint64_t *state, unsigned char *to) {
    const float step = w->synthetic * 1.7320508f / 32768.0f;
    uint64_t random = 0;
    for (int i = 0; i < w->in; i++, random >>= 16) {
        if (i % 4 == 0) random = next_random(state);
        float value = ((float)(random & 0xffff) - 32767.5f) * step;
        uint16_t narrow = f32_to_bf16(value);
        if (w->format == WEIGHT_F32)
            memcpy(to + (size_t)i * sizeof value, &value, sizeof value);
        else
            memcpy(to + (size_t)i * sizeof narrow, &narrow, sizeof narrow);
    }
}

/* A scale of each group, or the bias that puts the mean of the codes at 0. */
static void make_affine_scales(const weight *w, bool bias, size_t bytes, unsigned char *to) {
    bool nibbles = w->format == WEIGHT_AFFINE_4;
    float scale = bf16_to_f32(f32_to_bf16(w->synthetic / (nibbles ? of_nibbles : of_bytes)));
    uint16_t bits = f32_to_bf16(bias ? -scale * (nibbles ? 7.5f : 127.5f) : scale);
    for (size_t i = 0; i < bytes; i += sizeof bits) memcpy(to + i, &bits, sizeof bits);
}

/* Every other one is negative, as there is one code more below 0 than above. */
static void make_int4_scales(const weight *w, size_t bytes, unsigned char *to) {
    uint16_t bits = f32_to_bf16(w->synthetic / of_nibbles);
    for (size_t i = 0; i < bytes; i += sizeof bits, bits ^= 0x8000) memcpy(to + i, &bits, sizeof bits);
}

/* Powers of two; or 1 in e4m3, and then the row's factor. */
static void make_fp4_scales(const weight *w, int stream, size_t bytes, unsigned char *to) {
    const float scale = w->synthetic / of_fp4;
    if (stream == 2)
        memcpy(to, &scale, sizeof scale);
    else
        memset(to, w->format == WEIGHT_FP4_E8M0 ? 127 + (int)lrintf(log2f(scale)) : 0x38, bytes);
}

void synthetic_row(const weight *w, uint64_t seed, int row, int stream, void *to) {
    uint64_t state = (seed << 32) + (uint64_t)row;
    size_t bytes = weight_row_bytes(w, stream);
    state = next_random(&state); /* rows are not the same numbers one place on */
    if (weight_format_is_plain(w->format)) {
        make_plain(w, &state, to);
    } else if (stream == 0) {
        make_codes(&state, w->format == WEIGHT_FP8 ? below_one : UINT64_MAX, bytes, to);
    } else if (w->format == WEIGHT_FP8) {
        const float scale = w->synthetic / of_fp8;
        for (size_t i = 0; i < bytes; i += sizeof scale) memcpy((char *)to + i, &scale, sizeof scale);
    } else if (w->format == WEIGHT_INT4) {
        make_int4_scales(w, bytes, to);
    } else if (w->format == WEIGHT_FP4_E8M0 || w->format == WEIGHT_FP4_E4M3) {
        make_fp4_scales(w, stream, bytes, to);
    } else {
        make_affine_scales(w, stream == 2, bytes, to);
    }
}
