/* 64-bit FNV-1a: checksums of our own files and fingerprints of models. Guards against accidents, not against
 * attackers. */
#ifndef KAKEYA_BASE_HASH_H
#define KAKEYA_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_FNV1A_START UINT64_C(0xcbf29ce484222325)

/* Continues `hash` (HASH_FNV1A_START at first) over bytes. */
static inline uint64_t hash_fnv1a(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    return hash;
}

#endif
