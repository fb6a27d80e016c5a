#include "formats/gguf_output.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 32, VERSION = 3 };

typedef struct byte_list {
    unsigned char *data;
    size_t bytes, capacity;
} byte_list;

struct gguf_output {
    byte_list values, records;
    uint64_t n_values, n_tensors;
    size_t *sizes; /* of tensors */
    uint64_t offset;
    bool failed;                             /* out of memory */
    const char *begin_asked, *begin_written; /* of keys; NULL: as they are given */
    file_writer *file;
    uint64_t at;    /* the tensor whose bytes come next */
    size_t written; /* of it */
};

static const unsigned char zeros[ALIGNMENT];

static size_t padding(uint64_t bytes) { return (size_t)((ALIGNMENT - bytes % ALIGNMENT) % ALIGNMENT); }

gguf_output *gguf_output_create(void) { return calloc(1, sizeof(gguf_output)); }

static void release(gguf_output *o) {
    free(o->values.data);
    free(o->records.data);
    free(o->sizes);
    free(o);
}

void gguf_output_abort(gguf_output *o) {
    if (!o) return;
    file_writer_abort(o->file);
    release(o);
}

static void put(gguf_output *o, byte_list *list, const void *data, size_t bytes) {
    if (o->failed) return;
    if (bytes > list->capacity - list->bytes) {
        size_t capacity = 2 * (list->capacity + bytes) + 256;
        unsigned char *grown = realloc(list->data, capacity);
        if (!grown) {
            o->failed = true;
            return;
        }
        list->data = grown;
        list->capacity = capacity;
    }
    if (bytes) memcpy(list->data + list->bytes, data, bytes);
    list->bytes += bytes;
}

static void put_u32(gguf_output *o, byte_list *list, uint32_t value) { put(o, list, &value, sizeof value); }
static void put_u64(gguf_output *o, byte_list *list, uint64_t value) { put(o, list, &value, sizeof value); }
static void put_text(gguf_output *o, byte_list *list, const char *text, size_t bytes) {
    put_u64(o, list, bytes);
    put(o, list, text, bytes);
}

/* ---------------------------------------------------------------------------------------------------------- keys */

void gguf_output_rename(gguf_output *o, const char *asked, const char *written) {
    o->begin_asked = asked;
    o->begin_written = written;
}

void gguf_output_value(gguf_output *o, const char *key, gguf_value_type type, const void *value, size_t bytes) {
    const size_t asked =
        o->begin_asked && strncmp(key, o->begin_asked, strlen(o->begin_asked)) == 0 ? strlen(o->begin_asked) : 0;
    const size_t begin = asked ? strlen(o->begin_written) : 0, rest = strlen(key) - asked;
    put_u64(o, &o->values, begin + rest);
    put(o, &o->values, o->begin_written, begin);
    put(o, &o->values, key + asked, rest);
    put_u32(o, &o->values, (uint32_t)type);
    put(o, &o->values, value, bytes);
    o->n_values++;
}

void gguf_output_u32(gguf_output *o, const char *key, uint32_t value) {
    gguf_output_value(o, key, GGUF_U32, &value, sizeof value);
}

void gguf_output_f32(gguf_output *o, const char *key, float value) {
    gguf_output_value(o, key, GGUF_F32, &value, sizeof value);
}

void gguf_output_bool(gguf_output *o, const char *key, bool value) {
    unsigned char byte = value;
    gguf_output_value(o, key, GGUF_BOOL, &byte, sizeof byte);
}

void gguf_output_text(gguf_output *o, const char *key, const char *text, size_t bytes) {
    gguf_output_value(o, key, GGUF_STRING, NULL, 0);
    put_text(o, &o->values, text, bytes);
}

void gguf_output_array(gguf_output *o, const char *key, gguf_value_type type, uint64_t count, const void *data,
                       size_t bytes) {
    gguf_output_value(o, key, GGUF_ARRAY, NULL, 0);
    put_u32(o, &o->values, (uint32_t)type);
    put_u64(o, &o->values, count);
    put(o, &o->values, data, bytes);
}

void gguf_output_strings(gguf_output *o, const char *key, uint64_t count) {
    gguf_output_array(o, key, GGUF_STRING, count, NULL, 0);
}

void gguf_output_string(gguf_output *o, const char *text, size_t bytes) { put_text(o, &o->values, text, bytes); }

void gguf_output_copy(gguf_output *o, const gguf_value *value) {
    if (value->array)
        gguf_output_array(o, value->key, value->type, value->count, value->data, value->bytes);
    else
        gguf_output_value(o, value->key, value->type, value->data, value->bytes);
}

/* ------------------------------------------------------------------------------------------------------- tensors */

void gguf_output_tensor(gguf_output *o, const char *name, uint32_t type, int dims, const int64_t *ne, size_t bytes) {
    if (o->failed) return;
    size_t *sizes = realloc(o->sizes, ((size_t)o->n_tensors + 1) * sizeof *sizes);
    if (!sizes) {
        o->failed = true;
        return;
    }
    o->sizes = sizes;
    sizes[o->n_tensors++] = bytes;
    put_text(o, &o->records, name, strlen(name));
    put_u32(o, &o->records, (uint32_t)dims);
    for (int i = 0; i < dims; i++) put_u64(o, &o->records, (uint64_t)ne[i]);
    put_u32(o, &o->records, type);
    put_u64(o, &o->records, o->offset);
    o->offset += bytes + padding(bytes);
}

kakeya_status gguf_output_open(gguf_output *o, const char *path, kakeya_error *error) {
    byte_list head = {0};
    put(o, &head, "GGUF", 4);
    put_u32(o, &head, VERSION);
    put_u64(o, &head, o->n_tensors);
    put_u64(o, &head, o->n_values);
    kakeya_status status = KAKEYA_OK;
    if (o->failed) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its keys", path);
    if (status == KAKEYA_OK) status = file_writer_open(path, &o->file, error);
    if (status == KAKEYA_OK) status = file_writer_write(o->file, head.data, head.bytes, error);
    if (status == KAKEYA_OK) status = file_writer_write(o->file, o->values.data, o->values.bytes, error);
    if (status == KAKEYA_OK) status = file_writer_write(o->file, o->records.data, o->records.bytes, error);
    size_t bytes = head.bytes + o->values.bytes + o->records.bytes;
    if (status == KAKEYA_OK) status = file_writer_write(o->file, zeros, padding(bytes), error);
    free(head.data);
    return status;
}

kakeya_status gguf_output_write(gguf_output *o, const void *data, size_t bytes, kakeya_error *error) {
    const unsigned char *from = data;
    while (bytes) {
        if (o->at == o->n_tensors) return error_set(error, KAKEYA_INVALID_ARGUMENT, "more bytes than tensors have");
        size_t size = o->sizes[o->at], left = size - o->written, n = bytes < left ? bytes : left;
        kakeya_status status = file_writer_write(o->file, from, n, error);
        if (status != KAKEYA_OK) return status;
        from += n;
        bytes -= n;
        o->written += n;
        if (o->written < size) continue;
        status = file_writer_write(o->file, zeros, padding(size), error);
        if (status != KAKEYA_OK) return status;
        o->at++;
        o->written = 0;
    }
    return KAKEYA_OK;
}

kakeya_status gguf_output_commit(gguf_output *o, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    if (o->at != o->n_tensors)
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "bytes of %llu of %llu tensors are missing",
                           (unsigned long long)(o->n_tensors - o->at), (unsigned long long)o->n_tensors);
    if (status == KAKEYA_OK)
        status = file_writer_commit(o->file, error);
    else
        file_writer_abort(o->file);
    release(o);
    return status;
}
