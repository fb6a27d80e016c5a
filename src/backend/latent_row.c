#include "backend/latent_row.h"

#include <math.h>
#include <string.h>

#include "base/float16.h"

enum { Q4_GROUP = 32, Q8_LARGEST = 127, Q4_ZERO = 8, Q4_LARGEST = 15 };

static size_t groups_of(size_t n) { return (n + Q4_GROUP - 1) / Q4_GROUP; }

static size_t latent_bytes(latent_format format, size_t n) {
    switch (format) {
    case LATENT_F32:
        return n * sizeof(float);
    case LATENT_BF16:
        return n * sizeof(uint16_t);
    case LATENT_Q8:
        return sizeof(float) + n;
    case LATENT_Q4:
        return groups_of(n) * sizeof(uint16_t) + (n + 1) / 2;
    }
    return 0;
}

latent_row latent_row_of(const restoration_config *f, kv_format format) {
    if (!f) return (latent_row){0};
    latent_row row = {.rank_k = f->rank_k, .rank_v = f->rank_v, .shared = f->shared_latent};
    switch (f->latents) {
    case RESTORATION_LATENTS_BF16:
        row.format = LATENT_BF16;
        break;
    case RESTORATION_LATENTS_Q8:
        row.format = LATENT_Q8;
        break;
    case RESTORATION_LATENTS_Q4:
        row.format = LATENT_Q4;
        break;
    case RESTORATION_LATENTS_KV:
    case RESTORATION_LATENTS_COUNT:
        row.format = format == KV_FORMAT_F32 ? LATENT_F32 : LATENT_BF16;
        break;
    }
    row.bytes = latent_bytes(row.format, (size_t)row.rank_k);
    if (row.shared) return row;
    row.values_at = row.bytes;
    row.bytes += latent_bytes(row.format, (size_t)row.rank_v);
    return row;
}

/* ------------------------------------------------------------------------------------------------------- 8 bits */

static void encode_q8(const float *x, size_t n, unsigned char *out) {
    float largest = 0;
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        float magnitude = fabsf(x[i]);
        finite &= isfinite(x[i]) != 0;
        if (magnitude > largest) largest = magnitude;
    }
    float scale = finite ? largest / Q8_LARGEST : NAN;
    memcpy(out, &scale, sizeof scale);
    int8_t *codes = (int8_t *)(out + sizeof scale);
    memset(codes, 0, n);
    if (!finite || scale == 0) return;
    for (size_t i = 0; i < n; i++) {
        float code = rintf(x[i] / scale); /* a scale that is hardly a number may give more */
        codes[i] = (int8_t)(code > Q8_LARGEST ? Q8_LARGEST : code < -Q8_LARGEST ? -Q8_LARGEST : code);
    }
}

static void decode_q8(const unsigned char *from, size_t n, float *out) {
    float scale;
    memcpy(&scale, from, sizeof scale);
    const int8_t *codes = (const int8_t *)(from + sizeof scale);
    for (size_t i = 0; i < n; i++) out[i] = scale * (float)codes[i];
}

/* ------------------------------------------------------------------------------------------------------- 4 bits */

static void encode_q4(const float *x, size_t n, unsigned char *out) {
    unsigned char *codes = out + groups_of(n) * sizeof(uint16_t);
    memset(codes, 0, (n + 1) / 2);
    for (size_t begin = 0, group = 0; begin < n; begin += Q4_GROUP, group++) {
        size_t end = begin + Q4_GROUP < n ? begin + Q4_GROUP : n;
        float extreme = 0;
        bool finite = true;
        for (size_t i = begin; i < end; i++) {
            finite &= isfinite(x[i]) != 0;
            if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
        }
        uint16_t stored = f32_to_bf16(finite ? extreme / -Q4_ZERO : NAN);
        memcpy(out + group * sizeof stored, &stored, sizeof stored);
        float scale = bf16_to_f32(stored);
        for (size_t i = begin; i < end; i++) {
            float code = finite && scale != 0 ? rintf(x[i] / scale) + Q4_ZERO : Q4_ZERO;
            unsigned bits = (unsigned)(code < 0 ? 0 : code > Q4_LARGEST ? Q4_LARGEST : code);
            codes[i / 2] |= (unsigned char)(bits << (i % 2 ? 4 : 0));
        }
    }
}

static void decode_q4(const unsigned char *from, size_t n, float *out) {
    const unsigned char *codes = from + groups_of(n) * sizeof(uint16_t);
    for (size_t begin = 0, group = 0; begin < n; begin += Q4_GROUP, group++) {
        size_t end = begin + Q4_GROUP < n ? begin + Q4_GROUP : n;
        uint16_t stored;
        memcpy(&stored, from + group * sizeof stored, sizeof stored);
        float scale = bf16_to_f32(stored);
        size_t i = begin;
        for (; i + 1 < end; i += 2) {
            out[i] = scale * (float)((int)(codes[i / 2] & 15) - Q4_ZERO);
            out[i + 1] = scale * (float)((int)(codes[i / 2] >> 4) - Q4_ZERO);
        }
        if (i < end) out[i] = scale * (float)((int)(codes[i / 2] & 15) - Q4_ZERO);
    }
}

void latent_encode(latent_format format, const float *x, int n, unsigned char *out) {
    size_t values = (size_t)n;
    if (format == LATENT_Q8)
        encode_q8(x, values, out);
    else
        encode_q4(x, values, out);
}

void latent_decode(latent_format format, const unsigned char *from, int n, float *out) {
    size_t values = (size_t)n;
    if (format == LATENT_Q8)
        decode_q8(from, values, out);
    else
        decode_q4(from, values, out);
}
