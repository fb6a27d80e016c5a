/* A stream of bytes in memory, as snapshots are written to and read from. */
#ifndef KAKEYA_TESTS_MEMORY_STREAM_H
#define KAKEYA_TESTS_MEMORY_STREAM_H

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

typedef struct memory_stream {
    unsigned char *data;
    size_t bytes, at; /* read from `at` on */
} memory_stream;

static inline kakeya_status memory_write(void *user, const void *data, size_t bytes, kakeya_error *error) {
    memory_stream *s = user;
    unsigned char *grown = realloc(s->data, s->bytes + bytes + 1);
    if (!grown) return error_set(error, KAKEYA_OUT_OF_MEMORY, "a stream of %zu bytes", s->bytes + bytes);
    s->data = grown;
    if (bytes) memcpy(s->data + s->bytes, data, bytes);
    s->bytes += bytes;
    return KAKEYA_OK;
}

static inline kakeya_status memory_read(void *user, void *data, size_t bytes, kakeya_error *error) {
    memory_stream *s = user;
    if (bytes > s->bytes - s->at) return error_set(error, KAKEYA_FORMAT, "the stream ends after %zu bytes", s->bytes);
    if (bytes) memcpy(data, s->data + s->at, bytes);
    s->at += bytes;
    return KAKEYA_OK;
}

static inline void memory_free(memory_stream *s) {
    free(s->data);
    *s = (memory_stream){0};
}

#endif
