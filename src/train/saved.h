/* States of training as files, whole or not at all: who wrote it and for what, numbers, arrays, a checksum. */
#ifndef KAKEYA_TRAIN_SAVED_H
#define KAKEYA_TRAIN_SAVED_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { SAVED_NUMBERS = 4, SAVED_PARTS = 4 };

typedef struct saved_kind {
    char magic[8];
    const char *what; /* "the state of a training", for messages */
} saved_kind;

typedef struct saved_part {
    void *data;
    size_t bytes;
} saved_part;

/* `purpose` names what must be the same on both ends. */
kakeya_status saved_write(const saved_kind *kind, const char *path, uint64_t purpose,
                          const uint64_t numbers[SAVED_NUMBERS], const saved_part *parts, int n, kakeya_error *error);
/* Fills `numbers`, and `parts` with malloc'ed memory, also where they are empty; nothing where it fails. KAKEYA_FORMAT
 * for a file that is damaged, of another kind, or has another purpose. */
kakeya_status saved_read(const saved_kind *kind, const char *path, uint64_t purpose, uint64_t numbers[SAVED_NUMBERS],
                         saved_part *parts, int n, kakeya_error *error);
void saved_free(saved_part *parts, int n);

#endif
