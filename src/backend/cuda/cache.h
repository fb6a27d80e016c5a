/* The K/V memory of one timeline on the device. The rules are those of the CPU backend's cache: rings with slack, so
 * that a rejected block never overwrites a position that the accepted length still needs; pages that are given back
 * below the window under restore-all; a drafter context and latents that follow the committed rows. */
#ifndef KAKEYA_BACKEND_CUDA_CACHE_H
#define KAKEYA_BACKEND_CUDA_CACHE_H

#include "backend/cuda/model.h"

enum { CUDA_AUX_BACKLOG = 32 }; /* committed rows whose aux hidden states wait for a batched drafter extension */

typedef enum store_kind { STORE_NONE = 0, STORE_RING, STORE_PAGES } store_kind;

/* Exact K/V of one layer, [position][kv_heads][head_dim]; K = V layers hold V only. A ring keeps position p in slot
 * p % capacity. Pages are one address range that holds memory from page first_page to n_pages. */
typedef struct layer_store {
    store_kind kind;
    int kv_dim;
    bool has_k;
    int capacity;
    cuda_buffer k, v, sink_k, sink_v;
    cuda_extent pages_k, pages_v;
    int n_pages, first_page;
} layer_store;

typedef struct latent_store {
    bool ring;
    int capacity;
    cuda_buffer codes, scales;
    cuda_extent pages_codes, pages_scales;
    int n_pages;
    int heads;
    int head_offset[GEMMA4_MAX_LAYERS]; /* first head of a layer, or -1 */
} latent_store;

typedef struct draft_store {
    int capacity, window;
    cuda_buffer k, v;
} draft_store;

/* A run of committed decode rows, for the eviction frontier after truncation. */
typedef struct decode_run {
    int begin, end;
} decode_run;

struct backend_cache {
    backend_model *model;
    backend_cache_options options;
    mem_account *account;
    int length, pending;
    int high; /* one past the highest position ever written since the last compaction */
    segment_kind pending_kind;
    int held_from; /* rings hold nothing older */
    bool decoding; /* sliding stores are in their bounded (evicted) form */
    layer_store layer[GEMMA4_MAX_LAYERS];
    latent_store latent;
    draft_store draft[DFLASH_MAX_LAYERS];
    int draft_length; /* positions whose context K/V (and latents) exist */
    int draft_from;   /* oldest position whose context K/V are valid */
    cuda_buffer
        aux_backlog;  /* [CUDA_AUX_BACKLOG][targets * hidden] of positions [draft_length, length) and pending rows */
    cuda_buffer view; /* the cuda_cache_view that kernels read */
    decode_run *runs;
    int n_runs, max_runs;
};

kakeya_status cuda_cache_create(backend_model *m, const backend_cache_options *options, backend_cache **out,
                                kakeya_error *error);
void cuda_cache_destroy(backend_cache *c);
kakeya_status cuda_cache_fork(const backend_cache *c, mem_account *account, backend_cache **out, kakeya_error *error);
/* What the formula of the layout says. */
backend_cache_bytes cuda_cache_bytes(const backend_cache *c);

int cuda_cache_min_truncate(const backend_cache *c);
/* First position that a prompt's rows do not find evicted. */
int cuda_cache_frontier(const backend_cache *c);
bool cuda_cache_bounds_layer(const backend_cache *c, int layer);
bool cuda_cache_restores_layer(const backend_cache *c, int layer);

/* Pages (and paged latents) for positions [0, positions). */
kakeya_status cuda_cache_reserve(backend_cache *c, int positions, kakeya_error *error);
/* Room for another run of decode rows. */
kakeya_status cuda_cache_reserve_run(backend_cache *c, kakeya_error *error);
/* Sliding stores in their bounded form (decoding) or in that of prompts. */
kakeya_status cuda_cache_take_form(backend_cache *c, bool decoding, kakeya_error *error);
/* Full-attention layers under restore-all: gives pages below the window back. */
kakeya_status cuda_cache_release_pages(backend_cache *c, kakeya_error *error);
/* Gives pages behind the cache's length back. */
kakeya_status cuda_cache_drop_pages(backend_cache *c, kakeya_error *error);
/* Makes the extents of a layer hold pages [first_page, n_pages). */
kakeya_status cuda_cache_cover_pages(backend_cache *c, int layer, kakeya_error *error);
/* Copies the addresses of the stores to the device. */
kakeya_status cuda_cache_update_view(backend_cache *c, kakeya_error *error);

#endif
