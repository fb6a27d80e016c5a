#include "train/passes.h"

#include <stdlib.h>

#include "base/hash.h"

uint64_t train_draw(uint64_t seed, uint64_t a, uint64_t b) {
    const uint64_t keys[3] = {seed, a, b};
    uint64_t hash = hash_fnv1a(HASH_FNV1A_START, keys, sizeof keys);
    hash = (hash ^ (hash >> 29)) * 0x9e3779b97f4a7c15u; /* FNV's low bits follow the last byte too closely */
    return hash >> 20;
}

bool train_passes_create(train_passes *p, size_t most, uint64_t seed) {
    *p = (train_passes){.usable = malloc((most + 1) * sizeof *p->usable),
                        .order = malloc((most + 1) * sizeof *p->order),
                        .seed = seed,
                        .at = UINT64_MAX};
    return p->usable && p->order;
}

void train_passes_free(train_passes *p) {
    free(p->usable);
    free(p->order);
}

void train_passes_add(train_passes *p, size_t sequence) { p->usable[p->n++] = (uint32_t)sequence; }

size_t train_passes_sequence(train_passes *p, uint64_t number) {
    uint64_t pass = number / p->n;
    if (pass != p->at) {
        for (size_t i = 0; i < p->n; i++) {
            size_t at = (size_t)(train_draw(p->seed, pass, i) % (i + 1));
            p->order[i] = p->order[at];
            p->order[at] = p->usable[i];
        }
        p->at = pass;
    }
    return p->order[number % p->n];
}
