#include "cli/input.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "base/json.h"
#include "text/utf8.h"

const char *input_name(const char *path) { return strcmp(path, "-") == 0 ? "standard input" : path; }

kakeya_status input_read(const char *path, char **text, size_t *bytes, kakeya_error *error) {
    if (strcmp(path, "-") == 0)
        return file_read_descriptor(STDIN_FILENO, input_name(path), 0, INPUT_MAX_BYTES, text, bytes, error);
    return file_read(path, INPUT_MAX_BYTES, text, bytes, error);
}

kakeya_status input_check_utf8(const char *what, const char *text, size_t bytes, kakeya_error *error) {
    size_t valid = utf8_valid_bytes(text, bytes);
    if (valid == bytes) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: not valid UTF-8: byte 0x%02x at offset %zu", what,
                     (unsigned)(unsigned char)text[valid], valid);
}

kakeya_status input_read_text(const char *path, char **text, size_t *bytes, kakeya_error *error) {
    kakeya_status status = input_read(path, text, bytes, error);
    if (status) return status;
    status = input_check_utf8(input_name(path), *text, *bytes, error);
    if (status) {
        free(*text);
        *text = NULL;
    }
    return status;
}

kakeya_status input_read_ids(const char *path, int vocab_size, int32_t **ids, size_t *n, kakeya_error *error) {
    char *text;
    size_t bytes;
    kakeya_status status = input_read(path, &text, &bytes, error);
    if (status) return status;
    const char *name = input_name(path);
    cJSON *json = NULL;
    status = json_parse(name, text, bytes, &json, error);
    free(text);
    if (status) return status;

    int32_t *values = NULL;
    size_t count = 0;
    if (!cJSON_IsArray(json)) {
        status = error_set(error, KAKEYA_FORMAT, "%s: expected a JSON array of token ids", name);
        goto done;
    }
    values = malloc(((size_t)cJSON_GetArraySize(json) + 1) * sizeof *values);
    if (!values) {
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", name);
        goto done;
    }
    const cJSON *item;
    cJSON_ArrayForEach(item, json) {
        if (!json_is_integer(item, INT_MIN, INT_MAX)) {
            status = error_set(error, KAKEYA_FORMAT, "%s: item %zu is not an integer", name, count);
            goto done;
        }
        int id = (int)item->valuedouble;
        if (id < 0 || (vocab_size > 0 && id >= vocab_size)) {
            status =
                error_set(error, KAKEYA_INVALID_ARGUMENT,
                          "%s: token id %d at index %zu is outside the vocabulary of %d", name, id, count, vocab_size);
            goto done;
        }
        values[count++] = id;
    }
    *ids = values;
    *n = count;
    values = NULL;
done:
    free(values);
    cJSON_Delete(json);
    return status;
}
