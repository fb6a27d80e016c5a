/* Keys that were decoded from latents, kept for one cache. A key depends on its position's latent alone, so an answer
 * that goes on row by row finds those of the rows before; only a position that has just been evicted is decoded anew.
 * They are workspace of the model, not of a session: the cache that was computed last has them, and another one that
 * wants them takes them over. Sliding layers alone, since the others have no bound.
 *
 * Bytes: sum over sliding layers with stores of their own of kv_heads * head_dim * blocks * 16 * 4, where
 * blocks = (sliding_window + BACKEND_MAX_DECODE_ROWS) / 16 + 2. */
#ifndef KAKEYA_BACKEND_CPU_RESTORED_KEYS_H
#define KAKEYA_BACKEND_CPU_RESTORED_KEYS_H

#include "backend/cpu/stores.h"

typedef struct restored_keys restored_keys;

/* Keys of one K/V head at positions [base, base + ATTENTION_BLOCK), after k_norm and RoPE. */
typedef struct restored_key_block {
    float *keys;    /* [ATTENTION_BLOCK][head_dim] */
    int base;       /* -1: nothing was kept here yet */
    unsigned valid; /* bit i: row i is the key of position base + i */
} restored_key_block;

/* What they take. */
size_t restored_keys_bytes(const model_config *config);
/* m->restored_keys, if there are none yet and the model has sliding layers. Any thread; called for each cache that
 * restores, so that others pay nothing. */
kakeya_status restored_keys_create(backend_model *m, kakeya_error *error);
void restored_keys_destroy(backend_model *m);

/* Before the layers of a forward: the caches that restore, and of which it computes few rows. Where none of them has
 * the keys, the first one takes them over. */
void restored_keys_take(backend_model *m, backend_cache *const *caches, int n);
/* The block that begins at `base`, for reading and for writing; NULL where the cache or the layer has none. One thread
 * at a time may ask for a layer's head. */
restored_key_block *restored_keys_at(const backend_cache *c, int layer, int head, int base);
/* New latents stand at [position, position + rows). */
void restored_keys_forget(const backend_cache *c, int position, int rows);

#endif
