#include "formats/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "formats/foreign.h"

/* The limit of the format's own reference reader. */
static const uint64_t max_header_bytes = 100u * 1000u * 1000u;
static const double max_exact_integer = 9007199254740992.0; /* 2^53: JSON numbers are doubles */

static const struct {
    const char *name;
    size_t bytes;
} types[TENSOR_TYPE_COUNT] = {
    [TENSOR_BOOL] = {"BOOL", 1},       [TENSOR_U8] = {"U8", 1},           [TENSOR_I8] = {"I8", 1},
    [TENSOR_F8_E5M2] = {"F8_E5M2", 1}, [TENSOR_F8_E4M3] = {"F8_E4M3", 1}, [TENSOR_F8_E8M0] = {"F8_E8M0", 1},
    [TENSOR_U16] = {"U16", 2},         [TENSOR_I16] = {"I16", 2},         [TENSOR_F16] = {"F16", 2},
    [TENSOR_BF16] = {"BF16", 2},       [TENSOR_U32] = {"U32", 4},         [TENSOR_I32] = {"I32", 4},
    [TENSOR_F32] = {"F32", 4},         [TENSOR_U64] = {"U64", 8},         [TENSOR_I64] = {"I64", 8},
    [TENSOR_F64] = {"F64", 8},
};

const char *tensor_type_name(tensor_type type) { return types[type].name; }

size_t tensor_type_bytes(tensor_type type) { return types[type].bytes; }

bool tensor_dtype(const tensor *t, dtype *out) {
    switch (t->type) {
    case TENSOR_F32:
        *out = DTYPE_F32;
        return true;
    case TENSOR_F16:
        *out = DTYPE_F16;
        return true;
    case TENSOR_BF16:
        *out = DTYPE_BF16;
        return true;
    default:
        return false;
    }
}

char *tensor_shape_text(int dims, const int64_t *shape, char *text, size_t text_bytes) {
    size_t used = (size_t)snprintf(text, text_bytes, "[");
    for (int i = 0; i < dims && used < text_bytes; i++)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < text_bytes) snprintf(text + used, text_bytes - used, "]");
    return text;
}

/* Bytes of a tensor of this shape; false where that does not fit size_t. */
static bool shape_bytes(tensor_type type, int dims, const int64_t *shape, size_t *bytes) {
    size_t product = types[type].bytes;
    for (int i = 0; i < dims; i++) {
        if (__builtin_mul_overflow(product, (size_t)shape[i], &product)) return false;
    }
    *bytes = product;
    return product <= SIZE_MAX / 2;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const tensor *)a)->name, ((const tensor *)b)->name);
}

/* By position in the file; empty tensors come before the one that starts at the same byte. */
static int compare_places(const void *a, const void *b) {
    const tensor *x = *(const tensor *const *)a, *y = *(const tensor *const *)b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* One header entry {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]} -> *out. */
static kakeya_status read_entry(const char *path, const cJSON *item, const unsigned char *data, size_t data_bytes,
                                tensor *out, kakeya_error *error) {
    const char *name = item->string;
    *out = (tensor){.name = name, .type = TENSOR_TYPE_COUNT};
    const cJSON *type = json_get(item, "dtype");
    const cJSON *shape = json_get(item, "shape");
    const cJSON *offsets = json_get(item, "data_offsets");
    if (!cJSON_IsString(type) || !cJSON_IsArray(shape) || !cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2)
        return error_set(error, KAKEYA_FORMAT, "%s: tensor %s: needs dtype, shape and two data_offsets", path, name);

    for (int i = 0; i < TENSOR_TYPE_COUNT; i++) {
        if (strcmp(types[i].name, type->valuestring) == 0) out->type = (tensor_type)i;
    }
    if (out->type == TENSOR_TYPE_COUNT)
        return error_set(error, KAKEYA_FORMAT, "%s: tensor %s: unknown dtype \"%s\"", path, name, type->valuestring);

    const cJSON *extent;
    cJSON_ArrayForEach(extent, shape) {
        if (out->dims == TENSOR_MAX_DIMS)
            return error_set(error, KAKEYA_FORMAT, "%s: tensor %s: %d dimensions, more than %d", path, name,
                             cJSON_GetArraySize(shape), TENSOR_MAX_DIMS);
        if (!json_is_integer(extent, 0, max_exact_integer))
            return error_set(error, KAKEYA_FORMAT, "%s: tensor %s: shape[%d] is not a whole number >= 0", path, name,
                             out->dims);
        out->shape[out->dims++] = (int64_t)extent->valuedouble;
    }
    char shape_text[128];
    tensor_shape_text(out->dims, out->shape, shape_text, sizeof shape_text);
    if (!shape_bytes(out->type, out->dims, out->shape, &out->bytes))
        return error_set(error, KAKEYA_FORMAT, "%s: tensor %s: shape %s is too large", path, name, shape_text);

    const cJSON *first = offsets->child, *last = offsets->child->next;
    if (!json_is_integer(first, 0, max_exact_integer) || !json_is_integer(last, 0, max_exact_integer))
        return error_set(error, KAKEYA_FORMAT, "%s: tensor %s: data_offsets are not whole numbers >= 0", path, name);
    uint64_t begin = (uint64_t)first->valuedouble, end = (uint64_t)last->valuedouble;
    if (begin > end)
        return error_set(error, KAKEYA_FORMAT, "%s: tensor %s: data_offsets [%llu, %llu] run backwards", path, name,
                         (unsigned long long)begin, (unsigned long long)end);
    if (end > data_bytes)
        return error_set(error, KAKEYA_FORMAT,
                         "%s: tensor %s: ends at byte %llu of the data, but the file holds only %zu (truncated?)", path,
                         name, (unsigned long long)end, data_bytes);
    if (end - begin != out->bytes)
        return error_set(error, KAKEYA_FORMAT,
                         "%s: tensor %s: %s of shape %s takes %zu bytes, but data_offsets span %llu", path, name,
                         types[out->type].name, shape_text, out->bytes, (unsigned long long)(end - begin));
    out->data = data + begin;
    return KAKEYA_OK;
}

/* The tensors must cover [0, data_bytes) exactly. */
static kakeya_status check_coverage(const safetensors *file, const unsigned char *data, size_t data_bytes,
                                    kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    const tensor **order = malloc((file->count + 1) * sizeof *order);
    if (!order) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its header", file->path);
    for (size_t i = 0; i < file->count; i++) order[i] = &file->tensors[i];
    qsort(order, file->count, sizeof *order, compare_places);
    const unsigned char *covered = data;
    for (size_t i = 0; i < file->count && status == KAKEYA_OK; i++) {
        const tensor *t = order[i];
        size_t begin = (size_t)(t->data - data), reached = (size_t)(covered - data);
        if (t->data < covered)
            status = error_set(error, KAKEYA_FORMAT,
                               "%s: tensor %s begins at byte %zu of the data, inside tensor %s, which ends at %zu",
                               file->path, t->name, begin, order[i - 1]->name, reached);
        else if (t->data > covered)
            status = error_set(error, KAKEYA_FORMAT,
                               "%s: bytes %zu to %zu of the data, before tensor %s, belong to no tensor", file->path,
                               reached, begin, t->name);
        covered = t->data + t->bytes;
    }
    if (status == KAKEYA_OK && (size_t)(covered - data) != data_bytes)
        status = error_set(error, KAKEYA_FORMAT, "%s: %zu bytes after the last tensor (data %zu, tensors %zu)",
                           file->path, data_bytes - (size_t)(covered - data), data_bytes, (size_t)(covered - data));
    free(order);
    return status;
}

static kakeya_status read_header(safetensors *file, const unsigned char *bytes, size_t size, kakeya_error *error) {
    const char *path = file->path;
    if (size < 8) return error_set(error, KAKEYA_FORMAT, "%s: %zu bytes, too short for a safetensors file", path, size);
    uint64_t header_bytes = 0;
    for (int i = 7; i >= 0; i--) header_bytes = header_bytes << 8 | bytes[i];
    if (header_bytes > max_header_bytes)
        return error_set(error, KAKEYA_FORMAT, "%s: header of %llu bytes, more than the format's maximum of %llu", path,
                         (unsigned long long)header_bytes, (unsigned long long)max_header_bytes);
    if (header_bytes > size - 8)
        return error_set(error, KAKEYA_FORMAT, "%s: header of %llu bytes in a file of %zu (truncated?)", path,
                         (unsigned long long)header_bytes, size);
    const unsigned char *data = bytes + 8 + header_bytes;
    size_t data_bytes = size - 8 - (size_t)header_bytes;

    cJSON *header = NULL;
    kakeya_status status = json_parse_object(path, (const char *)bytes + 8, (size_t)header_bytes, &header, error);
    if (status != KAKEYA_OK) return status;
    file->header = header;

    size_t entries = (size_t)cJSON_GetArraySize(header);
    file->tensors = malloc((entries + 1) * sizeof *file->tensors);
    if (!file->tensors) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its header", path);
    const cJSON *item;
    cJSON_ArrayForEach(item, header) {
        if (!cJSON_IsObject(item))
            return error_set(error, KAKEYA_FORMAT, "%s: header entry %s is not an object", path, item->string);
        if (strcmp(item->string, "__metadata__") == 0) continue;
        status = read_entry(path, item, data, data_bytes, &file->tensors[file->count], error);
        if (status != KAKEYA_OK) return status;
        file->count++;
    }
    qsort(file->tensors, file->count, sizeof *file->tensors, compare_names);
    for (size_t i = 1; i < file->count; i++) {
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0)
            return error_set(error, KAKEYA_FORMAT, "%s: tensor %s is listed twice", path, file->tensors[i].name);
    }
    return check_coverage(file, data, data_bytes, error);
}

kakeya_status safetensors_parse(const char *path, const unsigned char *data, size_t bytes, safetensors **out,
                                kakeya_error *error) {
    *out = NULL;
    kakeya_status status = foreign_refuse(path, data, bytes, error);
    if (status != KAKEYA_OK) return status;
    safetensors *file = calloc(1, sizeof *file);
    if (file) file->path = strdup(path);
    if (!file || !file->path) {
        free(file);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its header", path);
    }
    status = read_header(file, data, bytes, error);
    if (status != KAKEYA_OK) {
        safetensors_close(file);
        return status;
    }
    *out = file;
    return KAKEYA_OK;
}

kakeya_status safetensors_open(const char *path, safetensors **out, kakeya_error *error) {
    *out = NULL;
    file_map map;
    kakeya_status status = file_map_open(path, &map, error);
    if (status != KAKEYA_OK) return status;
    status = safetensors_parse(path, map.data, map.bytes, out, error);
    if (status == KAKEYA_OK)
        (*out)->map = map;
    else
        file_map_close(&map);
    return status;
}

void safetensors_close(safetensors *file) {
    if (!file) return;
    file_map_close(&file->map);
    cJSON_Delete(file->header);
    free(file->tensors);
    free(file->path);
    free(file);
}

const tensor *safetensors_find(const safetensors *file, const char *name) {
    tensor key = {.name = name};
    return bsearch(&key, file->tensors, file->count, sizeof *file->tensors, compare_names);
}

/* ---------------------------------------------------------------------------------------------- writing */

struct safetensors_writer {
    file_writer *file;
    char *path;
    size_t data_bytes, written;
};

/* The header text of the entries, padded with blanks so that the data starts at a multiple of 8. */
static kakeya_status make_header(const char *path, const safetensors_entry *entries, size_t count, char **text,
                                 size_t *text_bytes, size_t *data_bytes, kakeya_error *error) {
    cJSON *header = cJSON_CreateObject();
    bool ok = header != NULL;
    size_t end = 0;
    for (size_t i = 0; i < count && ok; i++) {
        const safetensors_entry *entry = &entries[i];
        size_t begin = end, bytes;
        if (cJSON_GetObjectItemCaseSensitive(header, entry->name)) {
            cJSON_Delete(header);
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: tensor %s is given twice", path, entry->name);
        }
        if (!shape_bytes(entry->type, entry->dims, entry->shape, &bytes) || __builtin_add_overflow(end, bytes, &end)) {
            cJSON_Delete(header);
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: tensor %s is too large", path, entry->name);
        }
        cJSON *item = cJSON_AddObjectToObject(header, entry->name);
        ok = item && cJSON_AddStringToObject(item, "dtype", types[entry->type].name);
        cJSON *shape = ok ? cJSON_AddArrayToObject(item, "shape") : NULL;
        for (int d = 0; shape && d < entry->dims; d++)
            ok = ok && cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)entry->shape[d]));
        cJSON *offsets = ok ? cJSON_AddArrayToObject(item, "data_offsets") : NULL;
        ok = ok && shape && offsets && cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)begin)) &&
             cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)end));
    }
    char *json = ok ? cJSON_PrintUnformatted(header) : NULL;
    cJSON_Delete(header);
    size_t length = json ? strlen(json) : 0;
    size_t padded = (length + 7) / 8 * 8;
    char *result = json ? malloc(padded + 1) : NULL;
    if (result) {
        memset(result, ' ', padded);
        memcpy(result, json, length);
    }
    cJSON_free(json);
    if (!result) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its header", path);
    *text = result;
    *text_bytes = padded;
    *data_bytes = end;
    return KAKEYA_OK;
}

kakeya_status safetensors_writer_open(const char *path, const safetensors_entry *entries, size_t count,
                                      safetensors_writer **out, kakeya_error *error) {
    *out = NULL;
    char *header = NULL;
    size_t header_bytes = 0, data_bytes = 0;
    kakeya_status status = make_header(path, entries, count, &header, &header_bytes, &data_bytes, error);
    if (status != KAKEYA_OK) return status;
    safetensors_writer *writer = calloc(1, sizeof *writer);
    if (writer) writer->path = strdup(path);
    if (!writer || !writer->path) {
        free(writer);
        free(header);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory to open it for writing", path);
    }
    writer->data_bytes = data_bytes;
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)header_bytes >> (8 * i));
    status = file_writer_open(path, &writer->file, error);
    if (status == KAKEYA_OK) status = file_writer_write(writer->file, length, sizeof length, error);
    if (status == KAKEYA_OK) status = file_writer_write(writer->file, header, header_bytes, error);
    free(header);
    if (status != KAKEYA_OK) {
        safetensors_writer_abort(writer);
        return status;
    }
    *out = writer;
    return KAKEYA_OK;
}

kakeya_status safetensors_writer_write(safetensors_writer *writer, const void *data, size_t bytes,
                                       kakeya_error *error) {
    if (bytes > writer->data_bytes - writer->written)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: %zu bytes written, but its tensors hold %zu",
                         writer->path, writer->written + bytes, writer->data_bytes);
    writer->written += bytes;
    return file_writer_write(writer->file, data, bytes, error);
}

kakeya_status safetensors_writer_commit(safetensors_writer *writer, kakeya_error *error) {
    if (writer->written != writer->data_bytes) {
        kakeya_status status =
            error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: %zu bytes written, but its tensors hold %zu", writer->path,
                      writer->written, writer->data_bytes);
        safetensors_writer_abort(writer);
        return status;
    }
    kakeya_status status = file_writer_commit(writer->file, error);
    writer->file = NULL;
    safetensors_writer_abort(writer);
    return status;
}

void safetensors_writer_abort(safetensors_writer *writer) {
    if (!writer) return;
    file_writer_abort(writer->file);
    free(writer->path);
    free(writer);
}
