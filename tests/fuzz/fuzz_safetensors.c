/* Any bytes as a safetensors file: accepted files must have every tensor inside the data, and be found by name. */
#include <stdlib.h>
#include <string.h>

#include "formats/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kakeya_error error = {0};
    safetensors *file = NULL;
    kakeya_status status = safetensors_parse("fuzz", data, size, &file, &error);
    if ((status == KAKEYA_OK) != (file != NULL)) abort();
    if (status != KAKEYA_OK) {
        if (error.status != status || !*error.message) abort();
        return 0;
    }
    volatile unsigned char last = 0; /* keeps the reads, which AddressSanitizer checks */
    size_t covered = 0;
    for (size_t i = 0; i < file->count; i++) {
        const tensor *t = &file->tensors[i];
        if (safetensors_find(file, t->name) != t) abort();
        if (t->bytes && (t->data < data || t->data + t->bytes > data + size)) abort();
        for (size_t b = 0; b < t->bytes; b++) last = t->data[b];
        covered += t->bytes;
    }
    (void)last;
    if (covered > size) abort();
    safetensors_close(file);
    return 0;
}
