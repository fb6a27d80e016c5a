/* Private face of the CUDA backend: the model with its workspace, and the cache of one timeline.
 *
 *   device.c     the device, counted memory, errors       forward.c    decode and prompt steps, graphs
 *   model.c      weights onto the device, workspace       draft.c      drafter context, latents, block drafting
 *   cache.c      K/V stores, commit, truncate, fork       snapshot.c   cache <-> bytes
 *   head.c       the head in int8                         profile.c    where a step's time goes
 *   measure.c    what the device allows
 *   kernels.h    the launchers of products.cu, head.cu, rows.cu, router.cu, attention.cu, restore.cu
 *
 * One stream per model; every verb that computes ends with the stream idle, so host state and device state agree whenever
 * the caller holds the backend's turn. */
#ifndef KAKEYA_BACKEND_CUDA_CUDA_H
#define KAKEYA_BACKEND_CUDA_CUDA_H

#include <stdbool.h>

#include "backend/cuda/device.h"
#include "backend/cuda/kernels.h"
#include "backend/measure.h"

enum {
    CUDA_PROMPT_ROWS_LARGE = 4096, /* rows of a prompt segment on devices with much memory ... */
    CUDA_PROMPT_ROWS_SMALL = 1024, /* ... and on others */
    CUDA_AUX_BACKLOG = 32,         /* committed rows whose aux hidden states wait for a batched drafter extension */
    CUDA_MAX_GRAPHS = 64,
};

static const size_t cuda_large_device_bytes = (size_t)60 << 30;

typedef struct cuda_layer {
    cuda_matrix q, k, v, o, gate, up, down, router, experts_gate_up, experts_down, ple_gate, ple_proj;
    const float *q_norm, *k_norm, *input_norm, *post_attention_norm, *pre_ffn_norm, *post_ffn_norm;
    const float *post_ffn_norm_1, *pre_ffn_norm_2, *post_ffn_norm_2;
    const float *router_scale, *router_expert_scale, *post_ple_norm;
    float layer_scalar;
} cuda_layer;

typedef struct cuda_draft_layer {
    cuda_matrix q, k, v, o, gate, up, down;
    const float *input_norm, *post_attention_norm, *q_norm, *k_norm;
} cuda_draft_layer;

/* What a captured step depends on. */
typedef struct graph_key {
    int rows;
    int partitions;  /* of full-attention layers */
    int restored;    /* positions of the restore buffers; 0: no restored policy */
    const void *latents; /* ring whose latents are decoded; NULL: none */
    int sink, window;    /* of a restored policy */
    bool aux;        /* aux hidden states are kept */
    bool leaders;    /* the head is followed by them */
    bool greedy;     /* only the choice of rows is wanted */
    bool restore_all;
    int draft_window; /* of a block of the drafter; 0: a decode step */
} graph_key;

typedef struct cuda_graph {
    graph_key key;
    cudaGraphExec_t exec;
} cuda_graph;

struct backend_model {
    backend_model_options options;
    const gemma4_config *config;
    mem_account *account;
    cuda_device device;
    cuda_launch launch;
    char description[128], note[128];
    int max_rows;
    float embed_scale;

    cuda_buffer weights; /* everything below points into it */
    cuda_matrix embed, head, ple_embed, ple_model_proj;
    const float *final_norm, *ple_proj_norm;
    cuda_layer layer[GEMMA4_MAX_LAYERS];
    const float *inverse_frequency[2]; /* by gemma4_layer_type */
    const float *key_turns; /* of full-attention layers: [CUDA_ATTENTION_TILE][pairs][2] */
    cuda_matrix fc;
    const float *hidden_norm, *draft_norm, *draft_inverse_frequency;
    cuda_draft_layer draft[DFLASH_MAX_LAYERS];
    cuda_matrix encoder_k, encoder_v, decoder_k[GEMMA4_MAX_LAYERS], decoder_v[GEMMA4_MAX_LAYERS];

    cuda_buffer head_copy;      /* in int8; empty where the matrix itself is read by greedy rows, too */
    cuda_head_codes head_codes; /* in it */

    cuda_buffer workspace; /* the buffers below, carved from one allocation */
    float *h, *q, *k, *v, *branch, *experts_out, *x_router, *normed, *ple, *ple_gate, *aux, *logits;
    cuda_bf16 *x, *x_experts, *x_head, *q_heads, *attended, *act, *act_experts, *chunk_k, *chunk_v;
    cuda_bf16 *derived_k; /* prompts: keys of one slab of a K = V layer */
    float *attend_top, *attend_sum; /* prompts: [max_rows][heads] */
    float2 *turns[2], *draft_turns; /* [max_rows][pairs] by gemma4_layer_type */
    cuda_route route;
    int32_t *tokens; /* [max_rows] */
    float *argmax_value;
    int *argmax_index;
    int32_t *argmax;
    cuda_screen screen; /* but for .upper, which lies in logits */
    cuda_leaders *leaders;
    cuda_leader_scratch *leader_scratch;
    cuda_step *step;      /* of the verifier */
    cuda_step *draft_step;
    float *d_state, *d_x, *d_q, *d_k, *d_v, *d_gate_up, *d_raw, *latents, *latent_values;
    cuda_bf16 *d_in, *d_aux, *d_heads, *d_attended, *d_act, *d_block_k, *d_block_v, *latent_in, *latent_half;

    cuda_buffer partial;             /* flash states of partitions, as large as the longest context so far needs */
    cuda_buffer raw_k, raw_v;           /* [latent ring][kv_dim]: decoded latents of one layer, where the product cannot finish them */
    cuda_buffer restore_turns[2];       /* [latent ring][pairs] by gemma4_layer_type, where it can */
    cuda_buffer restored_k, restored_v; /* of two layers, in turns; as many positions as needed so far */
    cudaStream_t restore_stream;
    cudaEvent_t restore_start, restored[2], projected;
    cuda_buffer cosine, sine;        /* prompts: [rope_positions][pairs] of the full-attention layers */
    int rope_positions;

    cuda_step *staged;    /* pinned: step, draft step */
    int32_t *staged_ids;  /* pinned: results */
    cuda_graph graphs[CUDA_MAX_GRAPHS];
    int n_graphs;
    int first_logit_row, logit_rows; /* of the last decode segment: what cuda_read_logits can still give */
};

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
    cuda_buffer aux_backlog; /* [CUDA_AUX_BACKLOG][targets * hidden] of positions [draft_length, length) and pending rows */
    cuda_buffer view;        /* the cuda_cache_view that kernels read */
    decode_run *runs;
    int n_runs, max_runs;
};

/* --- model.c */
/* Makes `buffer` hold at least `bytes`; captured graphs are dropped when it moves. */
kakeya_status model_grow(backend_model *m, cuda_buffer *buffer, size_t bytes, const char *what, kakeya_error *error);

/* --- cache.c */
kakeya_status cuda_cache_create(backend_model *m, const backend_cache_options *options, backend_cache **out, kakeya_error *error);
void cuda_cache_destroy(backend_cache *c);
/* Makes room for n rows of this kind: grows pages, switches sliding stores between their prompt and bounded forms. */
kakeya_status cuda_cache_prepare(backend_cache *c, segment_kind kind, int n, kakeya_error *error);
kakeya_status cuda_cache_reserve(backend_cache *c, int positions, kakeya_error *error);
kakeya_status cuda_cache_commit(backend_cache *c, int n, kakeya_error *error);
kakeya_status cuda_cache_truncate(backend_cache *c, int length, kakeya_error *error);
kakeya_status cuda_cache_fork(const backend_cache *c, mem_account *account, backend_cache **out, kakeya_error *error);
backend_cache_bytes cuda_cache_bytes(const backend_cache *c);
int cuda_cache_min_truncate(const backend_cache *c);
int cuda_cache_frontier(const backend_cache *c);
bool cuda_cache_bounds_layer(const backend_cache *c, int layer);
bool cuda_cache_restores_layer(const backend_cache *c, int layer);
/* Copies the addresses of the stores to the device. */
kakeya_status cuda_cache_update_view(backend_cache *c, kakeya_error *error);
kakeya_status cuda_cache_cover_pages(backend_cache *c, int layer, kakeya_error *error);

/* --- snapshot.c */
size_t cuda_cache_snapshot_bytes(const backend_cache *c);
kakeya_status cuda_cache_snapshot(const backend_cache *c, void *data, size_t bytes, kakeya_error *error);
kakeya_status cuda_cache_restore(backend_cache *c, const void *data, size_t bytes, kakeya_error *error);

/* --- draft.c */
/* Context K/V and latents of positions [position, position + rows) from aux rows [rows][targets * hidden]. */
void cuda_draft_extend(backend_cache *c, const float *aux, int rows, int position, bool prompt);
/* Extends by the committed rows that wait in the aux backlog. */
void cuda_draft_flush(backend_cache *c);
kakeya_status cuda_draft(backend_cache *c, int32_t bonus, int n, int32_t *drafts, kakeya_error *error);

/* --- head.c */
/* Makes the int8 copy of a head that is worth it, if it fits well. */
kakeya_status cuda_head_create(backend_model *m, kakeya_error *error);
bool cuda_head_screens(const backend_model *m);
/* The greedy choice of rows of x [rows][head.ld] into m->argmax, without logits; needs the copy. */
void cuda_head_choose(backend_model *m, const cuda_excluded *excluded, const cuda_bf16 *x, int rows, float cap);
size_t cuda_greedy_head_bytes(const backend_model *m);

/* --- profile.c */
kakeya_status cuda_profile(backend_cache *c, int32_t token, int repeats, backend_profile *out, kakeya_error *error);

/* --- forward.c */
kakeya_status cuda_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error);
kakeya_status cuda_read_logits(backend_model *m, int row, float *logits, kakeya_error *error);
/* Launches the graph of this key; where there is none yet, `enqueue` is captured on the model's stream. */
kakeya_status forward_run_graph(backend_model *m, const graph_key *key, void (*enqueue)(void *), void *context,
                                kakeya_error *error);
void forward_drop_graphs(backend_model *m);

#endif
