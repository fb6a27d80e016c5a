#include "backend/kv_format.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "backend/kv_q4.h"

/* A vector of n values takes n * value + scale bytes, rounded up so that the next one's scale is aligned; or what
 * `bytes` says. */
static const struct {
    const char *name;
    size_t value, scale;
    kv_format base;
    size_t (*bytes)(int n);
} formats[KV_FORMAT_COUNT] = {
    [KV_FORMAT_F32] = {"f32", sizeof(float), 0, KV_FORMAT_F32, NULL},
    [KV_FORMAT_BF16] = {"bf16", sizeof(uint16_t), 0, KV_FORMAT_BF16, NULL},
    [KV_FORMAT_Q8] = {"q8", 1, KV_Q8_CODES_AT, KV_FORMAT_BF16, NULL},
    [KV_FORMAT_Q4] = {"q4", 0, 0, KV_FORMAT_BF16, kv_q4_bytes},
};

const char *kv_format_name(kv_format format) {
    return (unsigned)format < KV_FORMAT_COUNT ? formats[format].name : "unknown";
}

static size_t vector_bytes(kv_format format, size_t n) {
    if (formats[format].bytes) return formats[format].bytes((int)n);
    size_t bytes = n * formats[format].value, scale = formats[format].scale;
    return scale ? (bytes + 2 * scale - 1) / scale * scale : bytes;
}

size_t kv_format_row_bytes(kv_format format, size_t vectors, size_t n) { return vectors * vector_bytes(format, n); }

kv_format kv_format_base(kv_format format) { return formats[format].base; }

void kv_q8_store(const float *x, int n, void *out) {
    const float least = 0x1p-100f;
    float largest = 0;
    bool finite = true;
    for (int i = 0; i < n; i++) {
        float magnitude = fabsf(x[i]);
        finite &= magnitude <= FLT_MAX;
        largest = magnitude > largest ? magnitude : largest;
    }
    bool empty = !finite || largest < least;
    float scale = finite ? (empty ? 0.0f : largest / (float)KV_Q8_LARGEST) : NAN;
    if (scale * (float)KV_Q8_LARGEST > FLT_MAX) scale = nextafterf(scale, 0); /* what is finite stays finite */
    float inverse = empty ? 0.0f : (float)KV_Q8_LARGEST / largest;
    memcpy(out, &scale, sizeof scale);
    int8_t *codes = (int8_t *)out + KV_Q8_CODES_AT;
    if (empty)
        memset(codes, 0, (size_t)n);
    else
        for (int i = 0; i < n; i++) codes[i] = (int8_t)rintf(x[i] * inverse); /* at most 127.00002 before rounding */
    size_t padding = vector_bytes(KV_FORMAT_Q8, (size_t)n) - KV_Q8_CODES_AT - (size_t)n;
    memset(codes + n, 0, padding);
}

void kv_q8_load(const void *x, int n, float *out) {
    float scale;
    memcpy(&scale, x, sizeof scale);
    const int8_t *codes = (const int8_t *)x + KV_Q8_CODES_AT;
    for (int i = 0; i < n; i++) out[i] = scale * (float)codes[i];
}
