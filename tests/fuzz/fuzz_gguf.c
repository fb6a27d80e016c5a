/* Any bytes as a GGUF file: of an accepted one every value and every tensor must lie inside it and be found by name. */
#include <stdlib.h>
#include <string.h>

#include "formats/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_inside(const uint8_t *data, size_t size, const unsigned char *begin, size_t bytes) {
    volatile unsigned char last = 0; /* keeps the reads, which AddressSanitizer checks */
    if (bytes && (begin < data || begin + bytes > data + size)) abort();
    for (size_t i = 0; i < bytes; i++) last = begin[i];
    (void)last;
}

static void check_value(const gguf *file, const gguf_value *value, const uint8_t *data, size_t size) {
    if (gguf_find(file, value->key) != value) abort();
    check_inside(data, size, value->data, value->bytes);
    if (value->type != GGUF_STRING) return;
    size_t at = 0;
    for (uint64_t i = 0; i < value->count; i++) {
        gguf_text text = gguf_next_string(value, &at);
        check_inside(data, size, (const unsigned char *)text.data, text.bytes);
    }
    if (at != value->bytes) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kakeya_error error = {0};
    gguf *file = NULL;
    kakeya_status status = gguf_parse("fuzz", data, size, &file, &error);
    if ((status == KAKEYA_OK) != (file != NULL)) abort();
    if (status != KAKEYA_OK) {
        if (error.status != status || !*error.message) abort();
        return 0;
    }
    size_t covered = 0;
    for (size_t i = 0; i < file->n_tensors; i++) {
        const gguf_tensor *t = file->tensors[i];
        if (gguf_find_tensor(file, t->name) != (ptrdiff_t)i) abort();
        check_inside(data, size, t->data, t->bytes);
        covered += t->bytes;
    }
    if (covered > size) abort();
    for (size_t i = 0; i < file->parts[0].n_values; i++) check_value(file, &file->parts[0].values[i], data, size);
    gguf_close(file);
    return 0;
}
