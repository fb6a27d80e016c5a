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

/* A checksum of a long stream that comes in pieces of any size: FNV-1a over words of 8 bytes (little-endian, the last
 * one filled up with zeros), then over their number, which is eight times as fast as byte by byte. */
typedef struct hash_stream {
    uint64_t hash, word;
    uint64_t bytes;
} hash_stream;

#define HASH_STREAM_START ((hash_stream){.hash = HASH_FNV1A_START})

static inline void hash_stream_word(hash_stream *s, uint64_t word) {
    s->hash = (s->hash ^ word) * UINT64_C(0x100000001b3);
}

static inline void hash_stream_add(hash_stream *s, const void *data, size_t bytes) {
    const unsigned char *p = data, *end = p + bytes;
    while (p < end) {
        if (s->bytes % 8 == 0 && end - p >= 8) {
            uint64_t word = 0;
            for (int i = 0; i < 8; i++) word |= (uint64_t)p[i] << (8 * i);
            hash_stream_word(s, word);
            s->bytes += 8;
            p += 8;
            continue;
        }
        s->word |= (uint64_t)*p++ << (8 * (s->bytes % 8));
        if (++s->bytes % 8 == 0) {
            hash_stream_word(s, s->word);
            s->word = 0;
        }
    }
}

/* The checksum of what has been added so far. */
static inline uint64_t hash_stream_value(const hash_stream *s) {
    hash_stream end = *s;
    if (s->bytes % 8) hash_stream_word(&end, s->word);
    hash_stream_word(&end, s->bytes);
    return end.hash;
}

#endif
