/* Private face of the CPU backend: the model with its workspace, and the cache of one timeline.
 *
 *   model.c      creation, RoPE tables, workspace          forward.c    the decoder layers over segments
 *   matrix.c     batches of matrix products on the pool    attention.c  flash attention over blocks of 16 keys
 *   experts.c    router and mixture of experts             cache.c      K/V stores, commit, truncate, fork
 *   draft.c      drafter context, latents, block drafting  snapshot.c   cache <-> bytes
 *   head.c       logits and greedy choices               screen.c     int8 bounds of logits
 *   measure.c    benchmarks and diagnostics                kernels*.c   the inner loops, one table per instruction set */
#ifndef KAKEYA_BACKEND_CPU_CPU_H
#define KAKEYA_BACKEND_CPU_CPU_H

#include <stdbool.h>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/screen.h"
#include "base/threads.h"

enum {
    CPU_MAX_ROWS = 512,          /* rows of one forward: compute-bound on wide models, bounded by the workspace they cost */
    CPU_ROPE_GROWTH = 1024,      /* positions by which RoPE tables grow */
    CPU_PARTITION_FULL = 256,    /* key positions of one independent flash state in full-attention layers */
    CPU_AUX_BACKLOG = 32,        /* committed rows whose aux hidden states wait for a batched drafter extension */
    CPU_TILE_QUERIES = 64,       /* query rows (tokens x grouped heads) of one prompt attention tile, about */
    CPU_SERIAL_VALUES = 8192,    /* per-row work on so few values costs less than a fork and join */
    CPU_SERIAL_WEIGHTS = 8192,   /* so does a matrix product with so few weights */
    CPU_SERIAL_PRODUCTS = 65536, /* and so few multiply-adds */
};

/* cos/sin of position * inverse frequency, [position][pairs], grown on demand. */
typedef struct rope_table {
    int pairs, half;
    float *inverse_frequency; /* [pairs] */
    float *cosine, *sine;
    int positions;
} rope_table;

/* Rows of activations packed for every weight format of the model that may meet them. */
typedef struct packed_rows {
    void *data[WEIGHT_FORMAT_COUNT]; /* NULL where no weight has that format */
    size_t row_bytes[WEIGHT_FORMAT_COUNT];
    int rows, k;
} packed_rows;

/* The forms in which matrices want their input, as a set. */
typedef unsigned input_set;

typedef struct thread_scratch {
    void *q_packed[2];        /* queries packed for stored keys, and for derived (float32) keys */
    float *key_block;         /* [16][max head_dim] derived or gathered keys */
    float *value_block;       /* [16][max head_dim] gathered or mixed values */
    float *latent_block;      /* [16][rank] */
    void *latent_packed;      /* 16 packed latents */
    int *lo, *hi;             /* [max query rows] */
    float *state[6];          /* flash states: partition exact, partition restored, totals (see attention.c) */
    float *row;               /* [max row length] */
} thread_scratch;

/* The head's int8 copy and what a greedy choice through it needs. */
typedef struct head_screen {
    screen_bounds bounds; /* NULL: not used */
    screen_matrix matrix;
    int8_t *codes;        /* [BACKEND_MAX_DECODE_ROWS][matrix.steps * SCREEN_DEPTH] */
    screen_row row[BACKEND_MAX_DECODE_ROWS];
    int limit;            /* logits that a row computes at most; where more could be the largest, all are computed */
    int32_t *candidate;   /* [BACKEND_MAX_DECODE_ROWS][limit] */
    float *logit;         /* of the candidates */
    int pause, backoff;   /* after rows with too many candidates: calls that do without, doubled each time */
} head_screen;

struct backend_model {
    backend_model_options options;
    const gemma4_config *config;
    const gemma4_weights *weights;
    const cpu_kernels *kernels;
    thread_pool *pool;
    mem_account *account;
    bool round; /* activations are rounded to bf16 before a product */
    char description[64];

    int max_rows;       /* rows of one forward */
    unsigned weight_formats, draft_formats; /* bit per format present */
    rope_table rope[2]; /* by gemma4_layer_type */
    rope_table draft_rope;
    float embed_scale;

    /* workspace, [max_rows][...] float32 unless noted */
    float *h;          /* residual stream */
    float *x;          /* normed input of a product */
    float *q;          /* queries, later attention output */
    float *k, *v;      /* raw projections, [max kv_dim] */
    float *branch;     /* [hidden] output of a block before its post-norm */
    float *gate_up;    /* [2 * max intermediate] */
    float *moe;        /* [hidden] */
    float *ple;        /* [layers * ple_width] */
    float *ple_gate;   /* [ple_width] */
    /* [BACKEND_MAX_DECODE_ROWS][head_stride]: logits, or bounds of them, of rows whose greedy choice is wanted, and of drafts */
    float *head_logits;
    int head_stride;     /* vocab, rounded up to SCREEN_OUTPUTS */
    head_screen screen;
    float *router_logits;   /* [experts] */
    int *expert_of;         /* [experts_per_token] */
    float *expert_weight;   /* [experts_per_token] */
    int *expert_rows;       /* [max_rows * experts_per_token] slot -> row, grouped by expert */
    int *expert_slot;       /* [max_rows * experts_per_token] (row, rank) -> slot */
    int *expert_begin;      /* [experts + 1] */
    float *expert_gate_up;  /* [slots][2 * expert_intermediate] */
    float *expert_out;      /* [slots][hidden] */
    packed_rows packed, packed_moe, packed_slots, packed_act, packed_act_slots;
    void *chunk_k, *chunk_v;     /* K/V of the current layer's new rows in the stored type (float32-sized), + a block */
    int shared_sliding;          /* sliding layer whose K/V later layers attend too, -1: none; layers in between ... */
    void *shared_k, *shared_v;   /* ... use chunk_k/v, so its new rows lie here until the forward ends */
    float *aux;             /* [max_rows][targets * hidden] */
    float *partial;         /* flash states of partitions when one step is split over threads */
    size_t partial_floats;
    thread_scratch *scratch; /* [threads] */
    int threads;
    struct matrix_job *jobs;
    int max_jobs;

    /* drafter workspace */
    float *d_state, *d_x, *d_q, *d_k, *d_v, *d_gate_up, *d_context; /* rows x ... */
    void *d_block_k, *d_block_v;
    packed_rows d_packed, d_packed_aux, d_packed_act;
    float *latent_in, *latent_out;
    packed_rows packed_latent_in;
};

typedef enum store_kind { STORE_NONE = 0, STORE_RING, STORE_PAGES } store_kind;

/* Exact K/V of one layer. Rows are [kv_heads][head_dim] in the cache's type; K=V layers hold V only. A ring keeps
 * position p in slot p % capacity; pages hold KV_PAGE positions each and may be freed from below. */
typedef struct layer_store {
    store_kind kind;
    int kv_dim;
    bool has_k;
    int capacity;            /* ring */
    unsigned char *k, *v;    /* ring */
    unsigned char *sink_k, *sink_v; /* bounded policies: positions < sink */
    unsigned char **pages;   /* [max_pages]: V rows, then K rows */
    int n_pages;             /* pages [first_page, n_pages) exist */
    int first_page;
} layer_store;

/* Rows of latents: e_k[rank], e_v[rank] in the cache's type, and per restored (layer, head) the v_norm scalar. */
typedef struct latent_store {
    bool ring;
    int capacity;
    unsigned char *codes; /* ring: [capacity][2 * rank] */
    float *scales;        /* ring: [capacity][heads] */
    unsigned char **pages; /* KV_PAGE positions: codes, then scales */
    int n_pages;
    int heads;            /* sum of kv_heads over restored layers */
    int head_offset[GEMMA4_MAX_LAYERS]; /* first head of a layer, or -1 */
} latent_store;

typedef struct draft_store {
    int capacity;
    unsigned char *k, *v; /* [capacity][kv_heads * head_dim], keys after k_norm and RoPE */
    int window;           /* positions attended */
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
    int high;               /* one past the highest position ever written since the last compaction */
    segment_kind pending_kind;
    int held_from;          /* rings hold nothing older (set when they change size) */
    bool decoding;          /* sliding stores are in their bounded (evicted) form */
    layer_store layer[GEMMA4_MAX_LAYERS];
    latent_store latent;
    draft_store draft[DFLASH_MAX_LAYERS];
    int draft_length;       /* positions whose context K/V (and latents) exist */
    int draft_from;         /* oldest position whose context K/V are valid */
    float *aux_backlog;     /* [CPU_AUX_BACKLOG][targets * hidden] of positions [draft_length, length) and pending rows */
    int32_t *tokens;        /* [context]: only where f_theta reads the drafter's pass over the tokens themselves */
    int latent_length;      /* with tokens: positions whose latents exist */
    decode_run *runs;
    int n_runs, max_runs;
    float **own_raw;        /* diagnostics: per layer [context][2][kv_dim] own raw K and V; NULL otherwise */
    float mix_alpha;        /* with own_raw: their share in what is restored */
};

/* --- matrix.c */
typedef struct matrix_job {
    const packed_rows *input;
    int first_row, rows;
    const weight *w;
    int o_begin, o_end; /* output range inside w */
    float *y;           /* [rows][ldy], column 0 = o_begin */
    size_t ldy;
    size_t first_piece;
    int piece;
    bool exact_input;   /* input was packed without rounding */
} matrix_job;
kakeya_status packed_rows_create(backend_model *m, packed_rows *p, int rows, int k, unsigned formats, kakeya_error *error);
void packed_rows_destroy(packed_rows *p);
/* What a product with w wants, at the model's precision, or with values that are not rounded (jobs with exact_input). */
input_set input_of(const backend_model *m, const weight *w);
input_set input_exact(const weight *w);
/* Bytes from one row to the next of what a product with w wants. */
size_t packed_row_bytes(const backend_model *m, const weight *w);
/* Packs rows [0, rows) of x (stride ldx) in all forms of `inputs`. Parallel where it pays. */
void pack(backend_model *m, packed_rows *p, const float *x, size_t ldx, int rows, int k, input_set inputs);
/* y [rows][w->out] = w * packed rows [first, first + rows), on the calling thread. */
void multiply_packed(const backend_model *m, const weight *w, const packed_rows *input, int first, int rows, float *y,
                     size_t ldy);
/* y [rows][w->out] = w * x with exact input, on the calling thread; `packed` has room for the rows. */
void multiply_alone(const backend_model *m, const weight *w, const float *x, size_t ldx, int rows, void *packed, float *y,
                    size_t ldy);
/* Values [begin, begin + n) of a row, as float32. */
void load_row(const backend_model *m, const weight *w, int row, int begin, int n, float *out);
void matrix_run(backend_model *m, matrix_job *jobs, int n_jobs);
matrix_job matrix_product(const packed_rows *input, int rows, const weight *w, float *y, size_t ldy);
/* Per-row work over [0, rows), each of which reads and writes about `values` floats: on the calling thread where it is little,
 * on the pool otherwise. */
void rows_run(backend_model *m, int rows, int values, range_task task, void *context);

/* --- model.c */
kakeya_status rope_table_reserve(backend_model *m, rope_table *table, int positions, kakeya_error *error);

/* --- experts.c */
void experts_route(backend_model *m, const gemma4_layer_weights *w, int rows);
void experts_forward(backend_model *m, const gemma4_layer_weights *w, const gemma4_layer_config *lc, int rows);

/* --- attention.c */
typedef struct attention_segment {
    backend_cache *cache;
    int first_row, rows;   /* rows of the forward */
    int position;          /* of first_row */
    segment_kind kind;
} attention_segment;
/* m->q [rows][heads * head_dim] (normed, rotated) -> attention output in place. */
void attention_run(backend_model *m, int layer, const attention_segment *segments, int n_segments);
size_t attention_partial_floats(const backend_model *m, int context);
size_t attention_state_floats(const backend_model *m);
int attention_max_queries(const backend_model *m);

/* --- cache.c */
kakeya_status cpu_cache_create(backend_model *m, const backend_cache_options *options, backend_cache **out, kakeya_error *error);
void cpu_cache_destroy(backend_cache *c);
/* Makes room for n rows of this kind: grows pages, switches sliding stores between their prompt and bounded forms. */
kakeya_status cache_prepare(backend_cache *c, segment_kind kind, int n, kakeya_error *error);
kakeya_status cache_reserve(backend_cache *c, int positions, kakeya_error *error);
kakeya_status cpu_cache_commit(backend_cache *c, int n, kakeya_error *error);
kakeya_status cpu_cache_truncate(backend_cache *c, int length, kakeya_error *error);
kakeya_status cpu_cache_fork(const backend_cache *c, mem_account *account, backend_cache **out, kakeya_error *error);
backend_cache_bytes cpu_cache_bytes(const backend_cache *c);
int cpu_cache_min_truncate(const backend_cache *c);
/* Positions in [sink, frontier) are evicted for prompt rows; decode rows at t use t - window + 1. 0 = none. */
int cache_frontier(const backend_cache *c);
/* Address of a stored row; position must be held. is_k is only valid for stores that have keys. */
unsigned char *store_row(const backend_cache *c, const layer_store *s, int position, bool is_k);
bool cache_restores_layer(const backend_cache *c, int layer);
bool cache_bounds_layer(const backend_cache *c, int layer);
/* The element type of a cache's stored rows. */
static inline dtype kv_type(const backend_cache *c) {
    return c->options.kv_format == KV_FORMAT_BF16 ? DTYPE_BF16 : DTYPE_F32;
}
size_t kv_element_bytes(const backend_cache *c);
/* Where K or V of the forward's new rows of a layer lie. */
unsigned char *chunk_rows(const backend_model *m, int layer, bool is_k);
unsigned char *latent_code(const backend_cache *c, int position);
float *latent_scales(const backend_cache *c, int position);

/* --- snapshot.c */
size_t cpu_cache_snapshot_bytes(const backend_cache *c);
kakeya_status cpu_cache_snapshot(const backend_cache *c, void *data, size_t bytes, kakeya_error *error);
kakeya_status cpu_cache_restore(backend_cache *c, const void *data, size_t bytes, kakeya_error *error);

/* --- draft.c */
/* Rows of the drafter in work: m->d_state [rows][hidden] is their residual stream, m->d_x their normed input. */
typedef struct draft_step {
    backend_cache *cache;
    backend_model *model;
    const dflash_config *config;
    int rows, position; /* of the first row */
    int layer;
} draft_step;
void draft_embed(draft_step *s, int row, int32_t token);
void draft_norm(draft_step *s, const float *norm);
/* m->d_q holds the attention output: o_proj, MLP and both residual additions. */
void draft_layer_rest(draft_step *s);
/* Latents of rows [first, rows) from raw K/V in m->d_context [rows][2 * layers * kv]. */
void draft_extend_latents(draft_step *s, int first);
/* Context K/V and latents of positions [position, position + rows) from aux rows [rows][targets * hidden]. */
void draft_extend(backend_cache *c, const float *aux, int rows, int position);
/* Extends by the committed rows that wait in the aux backlog. */
void draft_flush(backend_cache *c);
/* Hidden states after the drafter's final norm, [n + 1][drafter hidden], of the block [bonus, mask x n]. */
kakeya_status draft_block_hidden(backend_cache *c, int32_t bonus, int n, float *hidden, kakeya_error *error);
kakeya_status cpu_draft(backend_cache *c, int32_t bonus, int n, int32_t *drafts, kakeya_error *error);

/* --- token_latents.c: f_theta's other input form, for checkpoints of the reference implementation */
/* Latents of the prompt rows [latent_length, length): one non-causal drafter pass over their tokens. */
kakeya_status token_latents_prompt(backend_cache *c, kakeya_error *error);
/* Latents of n rows from `position` on, each token by itself. */
void token_latents_alone(backend_cache *c, int position, int n);

/* --- head.c */
/* Makes the int8 copy where it is of use and there is memory for it. The pool must be there. */
void head_create(backend_model *m);
void head_destroy(backend_model *m);
/* Bytes of the head that greedy choices read as long as few logits are close to the largest. */
size_t cpu_greedy_head_bytes(const backend_model *m);
/* x [rows][hidden] after the final norm; `packed` is overwritten */
/* Logits [rows][vocab], soft-capped. */
void head_logits(backend_model *m, packed_rows *packed, const float *x, int rows, float *logits);
/* The id of each row's largest logit, the lowest on ties, none of `excluded`; -1 where a logit is not finite. */
void head_choose(backend_model *m, packed_rows *packed, const float *x, int rows, const int *excluded, int n_excluded,
                 int32_t *choice);

/* --- forward.c */
kakeya_status cpu_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error);

#endif
