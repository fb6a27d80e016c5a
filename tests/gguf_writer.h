/* GGUF files in memory, legal ones and damaged ones: what is put is written, nothing is checked. Tensors come with
 * their bytes; their offsets and the padding are the writer's. */
#ifndef KAKEYA_TESTS_GGUF_WRITER_H
#define KAKEYA_TESTS_GGUF_WRITER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf.h"

typedef struct gguf_bytes {
    unsigned char *data;
    size_t bytes, capacity;
} gguf_bytes;

typedef struct gguf_writer {
    gguf_bytes values, records, data;
    uint64_t n_values, n_tensors;
    size_t alignment;
    uint32_t version;
} gguf_writer;

static inline void gw_put(gguf_bytes *out, const void *data, size_t bytes) {
    if (out->bytes + bytes > out->capacity) {
        out->capacity = 2 * (out->bytes + bytes) + 64;
        out->data = realloc(out->data, out->capacity);
        if (!out->data) abort();
    }
    if (bytes) memcpy(out->data + out->bytes, data, bytes);
    out->bytes += bytes;
}

static inline void gw_u32(gguf_bytes *out, uint32_t value) { gw_put(out, &value, sizeof value); }
static inline void gw_u64(gguf_bytes *out, uint64_t value) { gw_put(out, &value, sizeof value); }
static inline void gw_text(gguf_bytes *out, const char *text) {
    gw_u64(out, strlen(text));
    gw_put(out, text, strlen(text));
}

static inline gguf_writer gw_begin(void) { return (gguf_writer){.alignment = 32, .version = 3}; }

/* A key with a value of any bytes. */
static inline void gw_value(gguf_writer *w, const char *key, gguf_value_type type, const void *value, size_t bytes) {
    gw_text(&w->values, key);
    gw_u32(&w->values, type);
    gw_put(&w->values, value, bytes);
    w->n_values++;
}

static inline void gw_key_u32(gguf_writer *w, const char *key, uint32_t value) {
    gw_value(w, key, GGUF_U32, &value, sizeof value);
}
static inline void gw_key_i32(gguf_writer *w, const char *key, int32_t value) {
    gw_value(w, key, GGUF_I32, &value, sizeof value);
}
static inline void gw_key_f32(gguf_writer *w, const char *key, float value) {
    gw_value(w, key, GGUF_F32, &value, sizeof value);
}
static inline void gw_key_bool(gguf_writer *w, const char *key, bool value) {
    unsigned char byte = value;
    gw_value(w, key, GGUF_BOOL, &byte, 1);
}
static inline void gw_key_text(gguf_writer *w, const char *key, const char *text) {
    gw_value(w, key, GGUF_STRING, NULL, 0);
    gw_text(&w->values, text);
}
static inline void gw_key_array(gguf_writer *w, const char *key, gguf_value_type type, const void *elements,
                                uint64_t count, size_t element_bytes) {
    gw_value(w, key, GGUF_ARRAY, NULL, 0);
    gw_u32(&w->values, type);
    gw_u64(&w->values, count);
    gw_put(&w->values, elements, (size_t)count * element_bytes);
}
static inline void gw_key_texts(gguf_writer *w, const char *key, const char *const *texts, uint64_t count) {
    gw_key_array(w, key, GGUF_STRING, NULL, 0, 0);
    w->values.bytes -= sizeof count;
    gw_u64(&w->values, count);
    for (uint64_t i = 0; i < count; i++) gw_text(&w->values, texts[i]);
}

static inline void gw_tensor(gguf_writer *w, const char *name, uint32_t type, int dims, const int64_t *ne,
                             const void *data, size_t bytes) {
    static const unsigned char zeros[65536];
    gw_text(&w->records, name);
    gw_u32(&w->records, (uint32_t)dims);
    for (int i = 0; i < dims; i++) gw_u64(&w->records, (uint64_t)ne[i]);
    gw_u32(&w->records, type);
    gw_u64(&w->records, w->data.bytes);
    gw_put(&w->data, data, bytes);
    gw_put(&w->data, zeros, (w->alignment - w->data.bytes % w->alignment) % w->alignment);
    w->n_tensors++;
}

/* The whole file, malloc'ed; the writer is empty again. */
static inline unsigned char *gw_finish(gguf_writer *w, size_t *bytes) {
    static const unsigned char zeros[65536];
    gguf_bytes out = {0};
    gw_put(&out, "GGUF", 4);
    gw_u32(&out, w->version);
    gw_u64(&out, w->n_tensors);
    gw_u64(&out, w->n_values);
    gw_put(&out, w->values.data, w->values.bytes);
    gw_put(&out, w->records.data, w->records.bytes);
    gw_put(&out, zeros, (w->alignment - out.bytes % w->alignment) % w->alignment);
    gw_put(&out, w->data.data, w->data.bytes);
    free(w->values.data);
    free(w->records.data);
    free(w->data.data);
    *w = gw_begin();
    *bytes = out.bytes;
    return out.data;
}

#endif
