/* Which blocks of tokens a server could continue, and in what memory each lies: what routers are told (kv_events.h).
 *
 * A path is a beginning from which a prompt can be resumed, in blocks of 16 tokens. Blocks are counted by the paths
 * that they lie on, one count for each medium; the sink hears of a block when its first path comes and when its last
 * one goes. In every medium the block before a known one is known. All functions may be called by several threads at a
 * time; none waits for anything but the sink. */
#ifndef KAKEYA_SERVE_KV_BLOCKS_H
#define KAKEYA_SERVE_KV_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "media/digest.h"

enum { KV_BLOCK_TOKENS = 16 };

typedef enum kv_medium {
    KV_MEDIUM_GPU = 0, /* idle sessions, which a request takes as they are */
    KV_MEDIUM_CPU,     /* checkpoints in memory, which it copies */
    KV_MEDIUM_DISK,    /* files, which it reads */
    KV_MEDIA,
} kv_medium;

typedef enum kv_block_event_type { KV_BLOCKS_STORED = 0, KV_BLOCKS_REMOVED, KV_BLOCKS_CLEARED } kv_block_event_type;

/* A picture or a sound in a text: which tokens stand for it, and what it is known by. */
typedef struct kv_picture {
    size_t begin, n;
    char digest[IMAGE_DIGEST_TEXT];
} kv_picture;

typedef struct kv_block_event {
    kv_block_event_type type;
    kv_medium medium;
    const uint64_t *hashes; /* [n], each over the block and all before it */
    size_t n;
    /* of KV_BLOCKS_STORED */
    const int32_t *ids;         /* [n * KV_BLOCK_TOKENS]; those of pictures are below 0 */
    int32_t media_token;        /* which is told for them */
    size_t first;               /* place in the text of the first id */
    const kv_picture *pictures; /* [n_pictures] of the text, ascending */
    size_t n_pictures;
    const uint64_t *parent; /* the block before the first one; NULL: they begin the text */
    const char *salt;       /* of the text; NULL: none */
} kv_block_event;

/* Called in the order of the events, one at a time, with the lock held. */
typedef void (*kv_block_sink)(void *user, const kv_block_event *event);

typedef struct kv_blocks kv_blocks;
typedef struct kv_path kv_path;

/* NULL when out of memory. */
kv_blocks *kv_blocks_open(kv_block_sink sink, void *user);
void kv_blocks_close(kv_blocks *blocks); /* whose paths have been removed; NULL is fine */

/* The token that is told for rows of pictures, and of sounds. Where it is below 0, as it is at first, nothing is told
 * of texts that have some. blocks may be NULL. */
void kv_blocks_set_media_token(kv_blocks *blocks, int32_t token);

/* The whole blocks of ids[0..n), keys where there are pictures or sounds (kakeya_prompt_keys), none of which is cut.
 * NULL where there is none, where blocks is NULL, or when out of memory: nothing is told then. salt may be NULL: texts
 * of different salts share nothing. */
kv_path *kv_blocks_add(kv_blocks *blocks, kv_medium medium, const char *salt, const int32_t *ids, size_t n);
void kv_blocks_remove(kv_blocks *blocks, kv_path *path); /* frees it; NULL is fine */
/* Says KV_BLOCKS_CLEARED; the sink hears nothing more where `last`. */
void kv_blocks_clear(kv_blocks *blocks, bool last);

typedef struct kv_block_counts {
    uint64_t events[KV_BLOCKS_CLEARED + 1];
    size_t blocks[KV_MEDIA];
    double seconds; /* of processor time that all calls took, the sink included */
} kv_block_counts;
void kv_blocks_count(kv_blocks *blocks, kv_block_counts *out);

#endif
