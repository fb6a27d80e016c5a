/* The stores of one cache in the host's memory: what its timeline (backend/timeline.h) says is kept, addressed by
 * absolute position. They follow the timeline and decide nothing. Shared by the backends whose device computes in this
 * memory. */
#ifndef KAKEYA_BACKEND_HOST_STORES_H
#define KAKEYA_BACKEND_HOST_STORES_H

#include "backend/timeline.h"

/* K and V of a ring, [capacity][values] each; k NULL where keys are derived. */
typedef struct ring_store {
    unsigned char *k, *v;
} ring_store;

/* Exact K/V of one layer. Rows are [kv_heads][head_dim] in the cache's format. */
typedef struct layer_store {
    ring_store ring;        /* of timeline.ring_capacity */
    ring_store grown, kept; /* reserved: for the rows of a forward, and for a commit that keeps some of them */
    ring_store sink;        /* bounded layers: [sink][values] */
    unsigned char **pages;  /* KV_PAGE_POSITIONS positions each: V rows, then K rows */
} layer_store;

/* Rows of latents (timeline.latent), and the v_norm scalar of every restored layer and head. */
typedef struct latent_store {
    unsigned char *codes;  /* ring: [capacity] rows */
    float *scales;         /* ring: [capacity][heads] */
    unsigned char **pages; /* KV_PAGE_POSITIONS positions each: codes, then scales */
} latent_store;

struct backend_cache {
    backend_model *model;
    uint64_t id; /* no other cache of the process has had it; a restored snapshot is another cache */
    mem_account *account;
    timeline t;
    layer_store layer[MODEL_MAX_LAYERS];
    int first_page, end_page; /* pages that exist; latent pages are [0, end_page) */
    latent_store latent;
    ring_store draft[BLOCK_DRAFTER_MAX_LAYERS]; /* [capacity][kv_heads * head_dim], keys after k_norm and RoPE */
    float *backlog;       /* [KV_BACKLOG] aux rows: of positions [draft_length, length) and pending ones */
    float *state;         /* [hidden]: the last committed row's, behind the final norm; timelines that keep one */
    float *pending_state; /* [BACKEND_MAX_DECODE_ROWS] such rows of a block; of a prompt the last one, in front */
    int32_t *tokens;      /* [context]; only where f_theta reads the drafter's pass over the tokens themselves */
    float *pass;          /* reserved for that pass (token_latents.h) */
    unsigned char *aside; /* ring rows set aside, layer by layer: V, K */
    float **own_raw;      /* diagnostics: per layer [context][2][values] own raw K and V; NULL otherwise */
    float mix_alpha;      /* with own_raw: their share in what is restored */
};

/* Pages may be shared with forks: those of which no row will be written any more, until a truncation. Rows are written
 * to pages that stores_reserve or stores_own_pages has made the cache's own. */

/* Allocates what c->t says, all of it zero; with `from`, a cache with the same timeline, pages are shared where they
 * can be. On failure stores_destroy gives back what there is. */
kakeya_status stores_create(backend_cache *c, const backend_cache *from, kakeya_error *error);
void stores_destroy(backend_cache *c);
/* Copies those of the present pages that are shared and behind the last row that stays: rows may then be written behind
 * the committed ones, and latents of rows that wait. */
kakeya_status stores_own_pages(backend_cache *c, kakeya_error *error);
/* Bytes of pages that are counted in another account than the cache's (base/alloc.h: mem_share). */
size_t stores_shared_full(const backend_cache *c);
size_t stores_shared_latent(const backend_cache *c);

/* The memory that a step needs beyond what there is. On failure, or when the step is not taken, stores_trim gives it
 * back. */
kakeya_status stores_reserve(backend_cache *c, const timeline_step *step, kakeya_error *error);
/* Moves rows into larger rings and sets a row aside, before timeline_begin. */
void stores_begin(backend_cache *c, const timeline_step *step);
/* Moves kept rows into smaller rings, or puts a row back, before timeline_commit. */
void stores_keep(backend_cache *c, const timeline_keep *keep);
/* Gives back reserved rings and pages that the timeline does not have. */
void stores_trim(backend_cache *c);
/* Copies everything that the timeline of `from` says is held and that is not shared; `to` has been created from it. */
void stores_copy(backend_cache *to, const backend_cache *from);

size_t kv_row_bytes(const backend_cache *c, int layer);
size_t kv_draft_row_bytes(const backend_cache *c);
size_t kv_aux_row_bytes(const backend_cache *c);

/* Addresses of rows that are held. is_k: of stores that have keys. */
unsigned char *kv_row(const backend_cache *c, int layer, int position, bool is_k);
unsigned char *kv_sink_row(const backend_cache *c, int layer, int position, bool is_k);
unsigned char *kv_draft_row(const backend_cache *c, int draft_layer, int position, bool is_k);
unsigned char *latent_code(const backend_cache *c, int position);
float *latent_scales(const backend_cache *c, int position);

#endif
