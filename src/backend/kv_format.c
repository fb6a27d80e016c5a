#include "backend/kv_format.h"

/* A group of `values` takes `bytes`, its scale included. */
static const struct {
    const char *name;
    size_t values, bytes;
} formats[KV_FORMAT_COUNT] = {
    [KV_FORMAT_F32] = {"f32", 1, 4},
    [KV_FORMAT_BF16] = {"bf16", 1, 2},
};

const char *kv_format_name(kv_format format) {
    return (unsigned)format < KV_FORMAT_COUNT ? formats[format].name : "unknown";
}

size_t kv_format_row_bytes(kv_format format, size_t n) {
    return (n + formats[format].values - 1) / formats[format].values * formats[format].bytes;
}

size_t kv_format_group(kv_format format) { return formats[format].values; }
