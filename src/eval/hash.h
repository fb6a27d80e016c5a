/* FNV-1a, 64 bits: names prompts and model files in reports. Not for anything an adversary could choose. */
#ifndef KAKEYA_EVAL_HASH_H
#define KAKEYA_EVAL_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_INITIAL UINT64_C(0xcbf29ce484222325)

/* Continues `hash` (HASH_INITIAL at first) over more bytes. */
static inline uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    return hash;
}

#endif
