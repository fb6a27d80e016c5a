/* In which order a corpus is learned from: pass after pass, each in an order of its own that seed and pass decide. */
#ifndef KAKEYA_TRAIN_PASSES_H
#define KAKEYA_TRAIN_PASSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct train_passes {
    uint32_t *usable, *order; /* sequences that are learned from; the same in the order of the pass at hand */
    size_t n;
    uint64_t seed, at; /* at: the pass at hand, UINT64_MAX before the first */
} train_passes;

/* A number that follows from these three alone, of 44 bits. */
uint64_t train_draw(uint64_t seed, uint64_t a, uint64_t b);

/* Room for `most` sequences; false when out of memory. What zeros are is freed, too. */
bool train_passes_create(train_passes *p, size_t most, uint64_t seed);
void train_passes_free(train_passes *p);
/* Before the first pass. */
void train_passes_add(train_passes *p, size_t sequence);
/* Sequence `number` of all that are ever looked at. There is one at least. */
size_t train_passes_sequence(train_passes *p, uint64_t number);

#endif
