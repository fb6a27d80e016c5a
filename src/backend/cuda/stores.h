/* The stores of one cache on the device: memory for what its timeline (backend/timeline.h) says is kept, addressed by
 * absolute position. They follow the timeline and decide nothing. */
#ifndef KAKEYA_BACKEND_CUDA_STORES_H
#define KAKEYA_BACKEND_CUDA_STORES_H

#include "backend/cuda/assistant_kernels.h"
#include "backend/cuda/model.h"
#include "backend/timeline.h"

/* K and V of rows that stay where they are, [rows][values] each; k empty where keys are derived. */
typedef struct ring_store {
    cuda_buffer k, v;
} ring_store;

/* Where a layer's K and V lie in the memory of all rings. */
typedef struct ring_place {
    void *k, *v;
} ring_place;

/* Exact K/V of one layer. Rows are [kv_heads][head_dim]. Pages are one range of addresses, of which granules have
 * memory. */
typedef struct layer_store {
    ring_place ring; /* of timeline.ring_capacity */
    ring_store sink; /* bounded layers: [sink][values] */
    cuda_extent pages_k, pages_v;
    restore_form form; /* how its evicted positions are decoded */
} layer_store;

/* Rows of latents (backend/latent_row.h), and the v_norm scalar of every restored layer and head. */
typedef struct latent_store {
    cuda_buffer codes, scales; /* rings */
    cuda_extent pages_codes, pages_scales;
} latent_store;

/* How kernels are told of a format; bf16 of all that are not codes. */
static inline cuda_kv_codes cuda_kv_codes_of(kv_format format) {
    return format == KV_FORMAT_Q8 ? CUDA_KV_Q8 : format == KV_FORMAT_Q4 ? CUDA_KV_Q4 : CUDA_KV_BF16;
}

struct backend_cache {
    backend_model *model;
    struct backend_cache *other[CUDA_MAX_DEVICES]; /* of several devices, the first one's: those of devices 1, 2, ... */
    mem_account *account;
    timeline t;
    timeline_step step; /* of the forward that is under way */
    layer_store layer[MODEL_MAX_LAYERS];
    cuda_buffer rings;       /* of all sliding layers, of timeline.ring_capacity */
    cuda_buffer grown, kept; /* reserved: for the rows of a forward, and for a commit that keeps some of them */
    latent_store latent;
    ring_store draft[BLOCK_DRAFTER_MAX_LAYERS]; /* keys after k_norm and RoPE */
    cuda_buffer backlog; /* float [KV_BACKLOG][taps * hidden]: aux rows of [draft_length, length) and of pending rows */
    cuda_buffer aside;   /* ring rows set aside, layer by layer: V, K; empty until there is one */
    /* For an assistant: float [hidden] of the last committed position, [CUDA_DECODE_ROWS][hidden] of pending ones. */
    cuda_buffer state, pending_states;
    cuda_buffer view;     /* the cuda_state_view that kernels read */
    bool attends_latents; /* decode rows attend evicted positions without keys and values of them in memory */
};

/* Granules of pages may be shared with forks: those of which no row will be written any more, until a truncation. Rows
 * are written to granules that cuda_stores_reserve or cuda_stores_own has made the cache's own. */

/* Allocates what c->t says, all of it zero; with `from`, a cache with the same timeline, granules are shared where they
 * can be. On failure cuda_stores_destroy gives back what there is. */
kakeya_status cuda_stores_create(backend_cache *c, const backend_cache *from, kakeya_error *error);
void cuda_stores_destroy(backend_cache *c);

/* Copies those of the granules that are shared and may be written: by rows behind the committed ones, and by latents of
 * rows that wait. */
kakeya_status cuda_stores_own(backend_cache *c, kakeya_error *error);
/* Bytes of granules that are counted in another account than the cache's. */
size_t cuda_stores_shared_full(const backend_cache *c);
size_t cuda_stores_shared_latent(const backend_cache *c);

/* The memory that a step needs beyond what there is. On failure, or when the step is not taken, cuda_stores_trim gives
 * it back. */
kakeya_status cuda_stores_reserve(backend_cache *c, const timeline_step *step, kakeya_error *error);
/* Moves rows into larger rings and sets a row aside, before timeline_begin. Fails with the device alone. */
kakeya_status cuda_stores_begin(backend_cache *c, const timeline_step *step, kakeya_error *error);
/* Moves kept rows into smaller rings, or puts a row back, before timeline_commit. Fails with the device alone. */
kakeya_status cuda_stores_keep(backend_cache *c, const timeline_keep *keep, kakeya_error *error);
/* Gives back reserved rings and pages that the timeline does not have. */
void cuda_stores_trim(backend_cache *c);
/* Copies everything that the timeline of `from` says is held and that is not shared, device to device; `to` has been
 * created from it. Asynchronous. */
kakeya_status cuda_stores_copy(backend_cache *to, const backend_cache *from, kakeya_error *error);

size_t cuda_row_bytes(const backend_cache *c, int layer);
size_t cuda_draft_row_bytes(const backend_cache *c);
size_t cuda_code_bytes(const backend_cache *c);  /* of a row of latents, without its scalars */
size_t cuda_scale_bytes(const backend_cache *c); /* of its scalars */

/* Of the two forms of rows of aux hidden states (kernels.h), the cache's. */
static inline int cuda_aux_form(const backend_cache *c) { return c->t.options.keep_draft_context ? 0 : 1; }

/* Where pages begin: the address of position 0, whether or not it has memory. */
static inline char *extent_data(const cuda_extent *e) { return (char *)(void *)(uintptr_t)e->address; }

#endif
