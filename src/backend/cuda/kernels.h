/* The face of the CUDA kernels towards the host code: structures that both sides read, and one launcher per kernel. All
 * pointers are device memory, all launches are asynchronous on launch->stream and can be captured in a graph: whatever
 * changes from step to step (positions, tokens, addresses of caches) is read from a cuda_batch in device memory.
 *
 * Numbers: weights and what enters a matrix product are bf16, everything else is float32. Every result element of the
 * decode kernels is reduced in an order that does not depend on the number of rows. */
#ifndef KAKEYA_BACKEND_CUDA_KERNELS_H
#define KAKEYA_BACKEND_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <vector_types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint16_t cuda_bf16; /* the bits */

enum {
    CUDA_MAX_LAYERS = 128,      /* MODEL_MAX_LAYERS */
    CUDA_MAX_DRAFT_LAYERS = 16, /* BLOCK_DRAFTER_MAX_LAYERS */
    CUDA_K_STEP = 32,           /* weights and activations are padded to whole steps of the reduction */
    CUDA_MAX_PRODUCTS = 32,     /* matrices that share one input and one launch */
    CUDA_DECODE_ROWS = 17,      /* BACKEND_MAX_DECODE_ROWS */
    CUDA_MAX_SEGMENTS = 256,    /* BACKEND_MAX_SEGMENTS */
    CUDA_LISTED_SEGMENTS = 64,  /* that one launch of attention of K = V layers deals to its blocks */
    CUDA_PASS_ROWS = 256,       /* rows of all segments that are computed together */
    CUDA_CONTEXT_ROWS = 2048,   /* that enter the context of caches together */
    CUDA_ROW_BLOCK = 16,        /* rows of a prompt whose logits are made together */
    CUDA_EXPERT_ROWS = 16,      /* rows of one expert in one unit of work, in passes of more than CUDA_DECODE_ROWS */
    CUDA_ATTENTION_TILE = 64,   /* key positions loaded together, aligned to absolute positions */
    CUDA_ROUTE_MAX_RANK = 16,   /* experts per token */
    CUDA_ROUTE_MAX_EXPERTS = 512,
};

typedef struct cuda_profiler cuda_profiler; /* recorder.h */

typedef struct cuda_launch {
    cudaStream_t stream;
    int multiprocessors;
    int programmatic;        /* programmatic dependent launch: a kernel may start before its predecessor has ended */
    cuda_profiler *profiler; /* NULL but while a step is profiled */
    int block_bytes;         /* of shared memory that a block may have */
    cuda_bf16 *expanded;     /* prompts: room for quantised weights of one product in bf16 (matrix.h); or NULL */
    size_t expanded_bytes;
    bool codes; /* prompts can multiply quantised weights as they lie (prompt_gemm.h) */
} cuda_launch;

/* How weights lie on the device; matrix.h has the kernels of each form. */
typedef enum cuda_form {
    CUDA_FORM_BF16 = 0,
    CUDA_FORM_Q4, /* codes of 4 or 8 bits with scales of blocks (quant.h) */
    CUDA_FORM_Q8,
    CUDA_FORM_A4,
    CUDA_FORM_A8,
    CUDA_FORM_G8,
    CUDA_FORM_F8,
    CUDA_FORM_S4,
    CUDA_FORM_G4,
    CUDA_FORMS
} cuda_form;

/* A weight matrix. CUDA_FORM_BF16: [out][ld], ld = in rounded up to CUDA_K_STEP, padding zero. Of other forms `data` is
 * where their bytes begin, and ld alone the width of rows of activations. */
typedef struct cuda_matrix {
    cuda_bf16 *data;
    cuda_form form;
    int out, in, ld;
    bool one_scale; /* form F8: all scales of a row are equal, so that products read the first alone */
} cuda_matrix;

static inline int cuda_padded(int in) { return (in + CUDA_K_STEP - 1) / CUDA_K_STEP * CUDA_K_STEP; }

/* What K/V of a layer are kept in. */
typedef enum cuda_kv_codes { CUDA_KV_BF16 = 0, CUDA_KV_Q8, CUDA_KV_Q4 } cuda_kv_codes;

/* Where one layer's exact K/V lie. capacity 0: position p is row p; else row p % capacity. k NULL: K = V. Rows of
 * layers in codes are [kv_heads] vectors of backend/kv_format.h; launches that read or write them are told so. */
typedef struct cuda_layer_view {
    cuda_bf16 *k, *v, *sink_k, *sink_v;
    cuda_bf16 *aside_k, *aside_v; /* rings: where a row is set aside */
    int values, row_bytes;        /* of a row */
    int capacity;
    int bounded, restored;
    int latent_head; /* first column of this layer in the latents' scales */
} cuda_layer_view;

/* A row of latents as a session keeps it (backend/latent_row.h): e_k, then e_v, or one latent for both. The same for
 * all caches of a model. */
typedef enum cuda_latent_form { CUDA_LATENT_BF16 = 0, CUDA_LATENT_Q8, CUDA_LATENT_Q4 } cuda_latent_form;
typedef struct cuda_latent_row {
    cuda_latent_form form;
    int rank_k, rank_v;
    int width, first_v; /* values of both latents, and where e_v begins among them: 0 where one is shared */
    int bytes, v_at;    /* of the row, and where e_v begins in it */
} cuda_latent_row;

typedef struct cuda_latent_view {
    unsigned char *codes; /* [row][cuda_latent_row.bytes] */
    float *scales;        /* [row][heads] */
    int capacity, heads;
} cuda_latent_view;

typedef struct cuda_draft_view {
    cuda_bf16 *k, *v;
    int capacity, window;
} cuda_draft_view;

typedef struct cuda_cache_view {
    cuda_layer_view layer[CUDA_MAX_LAYERS];
    cuda_latent_view latent;
    cuda_draft_view draft[CUDA_MAX_DRAFT_LAYERS];
} cuda_cache_view;

/* One segment of a forward, or the block of one cache's drafts. */
typedef struct cuda_step {
    const cuda_cache_view *cache;
    int position;  /* of row 0 */
    int rows;      /* 0: a pass is filled up with it */
    int first_row; /* of the pass that is row 0; segments of a prompt pass are found by it */
    int last_row;  /* prompts: the place among those whose head comes later that the segment's last row takes; -1: none
                    */
    int prompt;    /* prompt rows: eviction by frontier, ring rows in the chunk buffers */
    int frontier;  /* prompt rows: positions in [sink, frontier) are evicted */
    int sink, window;
    int draft_from;                           /* oldest valid position of the drafter's context */
    int restored_begin[2], restored_first[2]; /* evicted positions from restored_begin on lie in the restore buffers
                                                 from row restored_first on: in sliding, in full layers */
    int partitions, first_partition; /* decode rows in full-attention layers: partitions of each row, and of all
                                        rows before row 0; of restored keys as many again */
} cuda_step;

/* One decode row, or row of a block of drafts. */
typedef struct cuda_row {
    const cuda_cache_view *cache; /* NULL: a pass is filled up with it */
    float *aux;                   /* where its aux hidden states go; NULL: nobody keeps them */
    int aux_form;                 /* which of cuda_aux_place's columns is its own */
    int position, sink;
    int partitions, first_partition; /* as in cuda_step */
    float temperature;               /* of sampling from leaders; 0: nobody does */
    int32_t excluded;                /* a token that this row never chooses, plus 1; 0: none */
    const uint32_t *allowed;         /* bits by token of what it may choose, readable for a word more; NULL: all */
} cuda_row;

/* What one pass is about; written by the host before it. Prompts are steps without rows, one behind the other. */
typedef struct cuda_batch {
    int rows, segments;             /* without those that it is filled up with */
    int restored_rows[2];           /* of the restore buffers: in sliding, in full layers */
    uint32_t exchanges;             /* several devices: of them all, before this pass */
    int32_t tokens[CUDA_PASS_ROWS]; /* decode rows */
    cuda_row row[CUDA_PASS_ROWS];   /* the same; of last rows of prompts the temperature alone */
    cuda_step step[CUDA_MAX_SEGMENTS];
} cuda_batch;

/* Of a batch with so many segments: what the kernels of its pass read. */
static inline size_t cuda_batch_bytes(int segments) {
    return offsetof(cuda_batch, step) + (size_t)segments * sizeof(cuda_step);
}

/* ------------------------------------------------------------------------------------------------ matrix products */

typedef struct cuda_product {
    const cuda_bf16 *w;
    float *y;
    int out, ldy;
    bool one_scale; /* as of the matrix */
} cuda_product;

/* y[r][o] = sum_k x[r][k] w[o][k] for matrices that share x ([rows][ldx] bf16). cap > 0: y = cap tanh(y / cap). */
void cuda_products(const cuda_launch *l, const cuda_product *products, int n, int in, const cuda_bf16 *x, int ldx,
                   int rows, float cap);

/* Rows grouped by expert: the slots of one expert are neighbours, experts ascending, rows ascending inside. */
typedef struct cuda_route {
    float *logits; /* [rows][experts] */
    float *weight; /* [rows][rank] */
    int *expert;   /* [rows][rank] */
    int *slot_row; /* [slots] */
    int *slot_of;  /* [rows][rank] */
    int *begin;    /* [experts + 1]: first slots; of prompts, and of passes of more than CUDA_DECODE_ROWS rows */
    /* Decode only. Units of work: experts with rows, their first slot and count. In passes of more than
     * CUDA_DECODE_ROWS rows a unit has CUDA_EXPERT_ROWS of them at most, so that an expert may have several. */
    int *active, *active_begin, *active_rows; /* [cuda_route_units] */
    int *active_count;
    unsigned *finished;   /* decode: blocks that are done; zero between launches */
    const int *row_count; /* decode: rows that are routed, in passes of more than CUDA_DECODE_ROWS */
    int experts, rank;
} cuda_route;

/* The most units of a pass. */
static inline int cuda_route_units(int experts, int rank) { return experts + CUDA_PASS_ROWS * rank / CUDA_EXPERT_ROWS; }

/* The router of one layer: logits x w^T in float32; of each row the `rank` largest, softmax over them, times the
 * expert's scale; then the grouping. Prompt rows take cuda_router, decode rows are routed by cuda_after_attention_rows.
 */
typedef struct cuda_router_weights {
    const cuda_bf16 *w; /* [experts][ld]; NULL: no router */
    const float *expert_scale;
    int ld;
} cuda_router_weights;
void cuda_router(const cuda_launch *l, const cuda_route *route, const cuda_router_weights *w, const float *x,
                 int hidden, int rows);
/* The same of decode rows, more than CUDA_DECODE_ROWS of them, with the bits of fewer. */
void cuda_route_many(const cuda_launch *l, const cuda_route *route, const cuda_router_weights *w, const float *x,
                     int hidden, int rows);

typedef struct cuda_feed_forward {
    cuda_matrix gate, up, down;                /* dense; data NULL: experts alone, in this launch */
    cuda_matrix experts_gate_up, experts_down; /* data NULL: dense model, or dense part alone */
    int expert_intermediate;
    const cuda_bf16 *x_dense, *x_experts; /* [rows][ldx] */
    int ldx;
    cuda_bf16 *act, *act_experts; /* [rows][down.ld], [slots][experts_down.ld] */
    float *y, *y_experts;         /* [rows][hidden], [slots][hidden] */
    int silu;                     /* else gelu (tanh form) */
} cuda_feed_forward;

void cuda_gate_up(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows);
void cuda_down(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows);

/* --------------------------------------------------------------------------------------------------- rows of norms */

/* h = table[token] * scale; x = bf16(norm(h) * norm_w) */
void cuda_embed(const cuda_launch *l, const cuda_matrix *table, const int32_t *tokens, float scale, float *h,
                const float *norm, float eps, cuda_bf16 *x, int ldx, int hidden, int rows);

typedef struct cuda_after_attention {
    const float *branch;
    const float *post_attention_norm, *pre_ffn_norm, *pre_ffn_norm_2, *router_scale; /* the last two: MoE only */
    const float *h;
    float *h_out; /* with a router not h */
    cuda_bf16 *x_dense, *x_experts;
    float *x_router;            /* MoE models, of prompts and of more than CUDA_DECODE_ROWS rows: not h_out */
    cuda_router_weights router; /* decode rows of MoE models */
    float eps;
    int hidden, ldx;
} cuda_after_attention;
/* h_out = h + norm(branch); inputs of the feed-forward block from it, and its route. */
void cuda_after_attention_rows(const cuda_launch *l, const cuda_after_attention *a, const cuda_route *route, int rows);

/* Where a layer's output goes in rows of aux hidden states. Sessions with a drafter's context keep it in one column,
 * those without in another. */
enum { CUDA_AUX_FORMS = 2 };
typedef struct cuda_aux_place {
    float *aux;                 /* of prompts: [row][width] */
    int width;                  /* 0: nobody keeps this layer's output */
    int column[CUDA_AUX_FORMS]; /* -1: not kept */
    int form;                   /* of prompts */
} cuda_aux_place;

typedef struct cuda_after_ffn {
    const float *dense, *experts; /* [rows][hidden], [slots][hidden] */
    const float *post_ffn_norm_1, *post_ffn_norm_2, *post_ffn_norm;
    const float *next_norm; /* NULL: x is bf16(h) itself */
    float layer_scalar;
    const float *h_in;
    float *h;
    cuda_bf16 *x;
    float *normed; /* NULL, or norm(h) * next_norm in float32 (hidden states after the final norm) */
    float eps;
    int hidden, ldx;
    const cuda_row *row; /* of decode rows, which say where aux hidden states go */
    cuda_aux_place aux;
} cuda_after_ffn;
/* h = (h_in + norm(...)) * layer_scalar; x = bf16(norm(h) * next_norm); aux rows get h, as by cuda_copy_aux. */
void cuda_after_ffn_rows(const cuda_launch *l, const cuda_after_ffn *a, const cuda_route *route, int rows);

/* h = (h + norm(branch) * w) * scalar; x = bf16(norm(h) * next): the tail of per-layer embeddings. w NULL: h += branch.
 */
void cuda_add_norm(const cuda_launch *l, const float *branch, const float *w, float scalar, float *h, const float *next,
                   float eps, cuda_bf16 *x, int ldx, float *normed, int hidden, int rows);
/* x = bf16(norm(y) * w) */
void cuda_norm_rows(const cuda_launch *l, const float *y, int ldy, const float *w, float eps, cuda_bf16 *x, int ldx,
                    int n, int rows);
void cuda_round_rows(const cuda_launch *l, const float *y, int ldy, cuda_bf16 *x, int ldx, int n, int rows);
/* ple[row][layer][j] = (norm(ple / sqrt(hidden)) + sqrt(width) table[token]) / sqrt(2) in place */
void cuda_ple_inputs(const cuda_launch *l, float *ple, const cuda_matrix *table, const int32_t *tokens,
                     const float *norm, float eps, int layers, int width, int hidden, int rows);
/* x[row] = bf16(gelu(gate[row]) * ple[row][layer]) */
void cuda_ple_gate(const cuda_launch *l, const float *gate, const float *ple, int layer, int layers, int width,
                   cuda_bf16 *x, int ldx, int rows);
/* Copies h rows to their place in the aux rows of each decode row, or (row NULL) of a prompt. */
void cuda_copy_aux(const cuda_launch *l, const cuda_row *row, const float *h, const cuda_aux_place *place, int hidden,
                   int rows);
enum { CUDA_MAX_EXCLUDED = 256 }; /* as many as a model may suppress; a launch parameter of 1 KB */
typedef struct cuda_excluded {
    const cuda_row *row; /* the rows of a decode pass, each of which may have limits of its own; NULL: none does */
    int first;           /* the token that is the first row of the head here */
    int n;
    int32_t id[CUDA_MAX_EXCLUDED];
} cuda_excluded;
/* Largest value of each row, lowest index first, never an excluded one; NaN and infinity give -1. */
void cuda_argmax(const cuda_launch *l, const float *logits, int vocab, const cuda_excluded *excluded, int rows,
                 float *partial_value, int *partial_index, int32_t *out);
enum { CUDA_ARGMAX_PARTS = 32 };

/* ------------------------------------------------------------------------------------------- the greedy choice */

enum {
    CUDA_HEAD_TILE = 16,   /* outputs that lie together in the int8 copy of the head */
    CUDA_HEAD_STEP = 64,   /* its steps of k */
    CUDA_SCREEN_ROWS = 20, /* CUDA_DECODE_ROWS rounded up to what a screen takes at a time */
};

/* w = scale * code + what |.| <= residual measures; norm >= |w|. Infinite where a weight is. */
typedef struct cuda_head_output {
    float scale, residual, norm;
} cuda_head_output;

typedef struct cuda_head_codes {
    int8_t *codes;             /* [tiles][steps][2][8][4][16]: outputs g and g + 8, k in fours of sixteen */
    cuda_head_output *outputs; /* [tiles * CUDA_HEAD_TILE] */
    int out, steps;
} cuda_head_codes;

int cuda_head_steps(int in); /* whole fours, padded with zeros */
int cuda_head_tiles(int out);
/* Fills codes->codes and codes->outputs from the matrix. */
void cuda_encode_head(const cuda_launch *l, const cuda_matrix *head, const cuda_head_codes *codes);

/* What is known of a row of x: its low part's scale, and the factors of an output's residual and norm in the bound. */
typedef struct cuda_screen_row {
    float scale, per_residual, per_norm;
} cuda_screen_row;

typedef struct cuda_screen {
    int8_t *x;                /* [steps][CUDA_SCREEN_ROWS / 4][4 rows][2 parts][4][16] */
    cuda_screen_row *row;     /* [CUDA_DECODE_ROWS] */
    float *upper;             /* [tiles][rows][CUDA_HEAD_TILE]: upper bounds; -infinity where excluded */
    float *lower;             /* [rows][blocks]: the largest lower bound that a block has met; blocks <= tiles */
    unsigned long long *best; /* [CUDA_DECODE_ROWS]: the choice so far */
    unsigned *finished;       /* blocks that have made theirs */
} cuda_screen;

/* What cuda_products and cuda_argmax would choose for up to CUDA_DECODE_ROWS rows of x [rows][head->ld]. */
void cuda_greedy_choice(const cuda_launch *l, const cuda_matrix *head, const cuda_head_codes *codes,
                        const cuda_screen *screen, const cuda_excluded *excluded, const cuda_bf16 *x, int rows,
                        float cap, int32_t *choice);
/* Its last part: the largest of the logits that the screen of `blocks` blocks leaves. */
void cuda_choose(const cuda_launch *l, const cuda_matrix *head, const cuda_screen *screen, int blocks,
                 const cuda_bf16 *x, int rows, float cap, int32_t *choice);
/* False where the device is too small for cuda_choose. */
int cuda_can_choose(int multiprocessors, int out);
/* cuda_products' results lie within this, times |w| |x|, of the exact ones (before the cap). */
float cuda_product_error(int in);

enum {
    CUDA_LEADERS = 256, /* BACKEND_LEADERS */
    CUDA_LEADER_BINS = 2048,
    CUDA_LEADER_SLOTS = 1024,
};
typedef struct cuda_leaders { /* backend_leaders */
    int32_t n, reserved;
    uint64_t total, plain_total;
    int32_t token[CUDA_LEADERS];
    float logit[CUDA_LEADERS];
} cuda_leaders;
typedef struct cuda_leader_scratch {
    unsigned long long total, plain_total;
    int found, bins[CUDA_LEADER_BINS];
    unsigned long long keys[CUDA_LEADER_SLOTS];
} cuda_leader_scratch;
/* Knows no `allowed`. The leading logits of each row with a temperature behind cuda_argmax, and the sums of all weights
 * at that temperature and at 1. The scratch of each row is zero between launches. */
void cuda_find_leaders(const cuda_launch *l, const cuda_row *row, const float *logits, int vocab, const int32_t *argmax,
                       const cuda_excluded *excluded, cuda_leader_scratch *scratch, cuda_leaders *out, int rows);

/* ------------------------------------------------------------------------------------------------------ attention */

typedef struct cuda_heads {
    const float *q, *k, *v;       /* raw projections [rows][...]; k NULL: K/V are shared, v NULL: K = V */
    const float *q_norm, *k_norm; /* [head_dim] */
    const float2 *turns;          /* cosine and sine [rows][pairs] of the rows' positions */
    int pairs;
    int heads, kv_heads, head_dim;
    int norm_v; /* values pass a norm without weight: in a verifier as its list says, never in a drafter */
    float q_scale;
    float eps;
    cuda_bf16 *q_out;             /* [rows][heads * head_dim] */
    cuda_bf16 *chunk_k, *chunk_v; /* prompt rows of ring layers, and blocks of the drafter; else NULL */
    cuda_kv_codes codes;          /* of the layer */
    int layer;
} cuda_heads;
/* cosine and sine of the rows' positions. */
void cuda_turns(const cuda_launch *l, const cuda_batch *batch, int prompt, const float *inverse_frequency, int pairs,
                float2 *turns, int rows);
/* Head norms, RoPE, and the new K/V into the caches (or the chunk buffers). */
void cuda_head_rows(const cuda_launch *l, const cuda_batch *batch, int prompt, const cuda_heads *h, int rows);

typedef struct cuda_attention {
    const cuda_bf16 *q; /* [rows][heads * head_dim] */
    cuda_bf16 *out;     /* the same shape, ldo apart */
    int ldo;
    const cuda_bf16 *chunk_k, *chunk_v;       /* rows from the step's position on, where they are not in the cache */
    const cuda_bf16 *restored_k, *restored_v; /* [restored_rows][kv_heads * head_dim] */
    const float *k_norm, *inverse_frequency;  /* K = V layers */
    const float2 *key_turns; /* K = V layers: cosine and sine [CUDA_ATTENTION_TILE][pairs] of positions inside a tile */
    int pairs;
    int heads, kv_heads, head_dim;
    int sliding_window;      /* 0: full attention */
    int layer;               /* whose K/V */
    cuda_kv_codes codes;     /* what they are kept in */
    int drafter;             /* layer counts drafter layers; keys: context, then the block itself */
    int causal;              /* drafter: rows of the block see only earlier ones */
    float *partial;          /* [cell][head_dim]; a cell is a partition of a head of a row, see cuda_step */
    float2 *state;           /* [cell]: maximum, sum */
    int partitions;          /* at most so many; 1 with final = 1: whole rows in one pass */
    int restored_partitions; /* sliding layers: so many of them, the first, are of restored keys, the others of exact
                                ones */
    int final;
    int first_segment;          /* of the pass: 0, but in a launch that has some of its segments */
    int segments, segment_rows; /* of the pass, with those that it is filled up with; the most rows of one of them */
} cuda_attention;
void cuda_attend(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, int rows);
/* Does one kernel do what cuda_head_rows and cuda_attend do for a row alone, with the same bits? */
bool cuda_attend_makes_heads(const cuda_attention *a, const cuda_heads *h);
void cuda_attend_new(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, const cuda_heads *h);
/* Once per device and head dimension, before the first launch; an error where the dimension is not supported. */
cudaError_t cuda_attention_prepare(int head_dim);
/* Partitions that a decode step ending at position `end` (exclusive) can touch. */
int cuda_attention_partitions(int sliding_window, int rows, int end);
/* The same of a sliding layer where [sink, t - window] is evicted before position t. */
int cuda_attention_restored_partitions(int sliding_window, int window, int rows);
int cuda_attention_exact_partitions(int sliding_window, int sink, int window, int rows);

/* The rows of the restore buffers are the evicted positions that a pass's segments see, one segment behind the other.
 * Latents that lie in rings are gathered in that order first, once for all sliding layers. */
enum { CUDA_LATENT_GROUP = 16 }; /* neighbouring positions, aligned, that are attended as latents together */
typedef struct cuda_latent_group {
    int first_row, rows; /* of its segment, in the pass */
    int index;           /* of its first row among the segment's */
    int segment;
} cuda_latent_group;
typedef struct cuda_gathered {
    cuda_bf16 *codes; /* [row][latent.width] */
    float *scales;    /* [row][heads] */
    float2 *turns;  /* [row][pairs]: cosine and sine; in each 32 pairs those that a thread of prompt_gemm_restore holds
                       are apart; pairs 0: none */
    int *positions; /* [row] */
    cuda_latent_row latent;
    int heads, pairs;
    /* For decode rows that attend latents (latent_attention.h), else NULL. */
    cuda_latent_group *groups; /* [row / CUDA_LATENT_GROUP] */
    float2 *bases;             /* [row / CUDA_LATENT_GROUP][pairs]: turns of a group's first position */
    float2 *inside; /* [pairs / 2][CUDA_LATENT_GROUP][2]: turns of positions inside a group, in the order of the
                       kernel's threads */
} cuda_gathered;
/* Up to `rows` rows. */
void cuda_gather_latents(const cuda_launch *l, const cuda_batch *batch, const cuda_gathered *to,
                         const float *inverse_frequency, int rows);

typedef struct cuda_restore {
    const cuda_matrix *decoder_k, *decoder_v; /* [kv_heads * head_dim][rank_k], [..][rank_v] */
    const float *k_norm, *inverse_frequency;
    int pairs, kv_heads, head_dim, rank_k, rank_v;
    int latent_head; /* first column of the layer in the latents' scales */
    int full;        /* a full-attention layer */
    float eps;
    cuda_latent_row latent;
    cuda_gathered gathered; /* of latents in rings */
    cuda_bf16 *k, *v;       /* [rows][kv_heads * head_dim] */
} cuda_restore;
/* K and V of the restore buffers' rows, up to `rows` of them, from the caches' latents. */
void cuda_restore_rows(const cuda_launch *l, const cuda_batch *batch, const cuda_restore *r, int rows);
/* The same from raw keys and values [rows][kv_heads * head_dim] of gathered latents. */
void cuda_finish_restored(const cuda_launch *l, const cuda_batch *batch, const cuda_restore *r, const float *raw_k,
                          const float *raw_v, int rows);
cudaError_t cuda_restore_prepare(int largest_head_dim);

/* [rows][kv_heads] vectors in 8 or 4 bits as bf16. */
void cuda_expand_codes(const cuda_launch *l, cuda_kv_codes codes, const cuda_bf16 *from, int kv_heads, int head_dim,
                       int rows, cuda_bf16 *to);
void cuda_expand_q4(const cuda_launch *l, const cuda_bf16 *from, int head_dim, size_t vectors, cuda_bf16 *to);
/* Copies the row of `position` of every ring among `layers` layers to where rows are set aside, or back. */
void cuda_set_aside(const cuda_launch *l, const cuda_cache_view *cache, int layers, int position, int back);
/* Copies the chunk's rows into the rings of the segments that they are of (the last `capacity` of each) and into their
 * sinks. */
void cuda_store_chunk(const cuda_launch *l, const cuda_batch *batch, const cuda_bf16 *chunk_k, const cuda_bf16 *chunk_v,
                      int kv_dim, int layer, int rows);
/* Copies the last row of each of a prompt pass's `segments` to its place among those whose head comes later. */
void cuda_keep_last_rows(const cuda_launch *l, const cuda_batch *batch, const cuda_bf16 *x, int ldx, cuda_bf16 *to,
                         int segments);
/* -------------------------------------------------------------------------------------------------------- drafter */

/* A committed row that enters a cache's context. */
typedef struct cuda_context_row {
    const cuda_cache_view *cache;
    const float *aux; /* its aux hidden states */
    int position;
    int aux_form; /* as in cuda_row */
    int behind;   /* rows of the same cache that follow it in the same launch */
} cuda_context_row;

/* Rows of any caches that a launch works on. */
typedef struct cuda_context_source {
    const cuda_context_row *row;
    int rows;
} cuda_context_source;

/* Where the layers that the restoration reads lie in rows of aux hidden states. */
typedef struct cuda_taps {
    int n;
    uint8_t at[CUDA_AUX_FORMS][CUDA_MAX_LAYERS];
} cuda_taps;

/* x = bf16 of the first `width` of the rows' aux hidden states, [rows][ldx]. */
void cuda_round_aux(const cuda_launch *l, const cuda_context_source *source, int width, cuda_bf16 *x, int ldx);

/* x = bf16 of the tapped layers' outputs, each divided by its rms, side by side; padded with zeros to [rows][ldx]. */
void cuda_norm_aux(const cuda_launch *l, const cuda_context_source *source, const cuda_taps *taps, int hidden,
                   float eps, cuda_bf16 *x, int ldx);

/* Context K/V from raw projections [rows][2 * layers * kv_dim] (K of all layers, then V): k_norm and RoPE on K, both
 * into the rings. */
typedef struct cuda_context_rows {
    float *raw;
    const float *k_norm[CUDA_MAX_DRAFT_LAYERS]; /* [head_dim] */
    const float *inverse_frequency;
    int layers, kv_heads, head_dim;
    float eps;
    cuda_context_source source;
} cuda_context_rows;
void cuda_store_context(const cuda_launch *l, const cuda_context_rows *c);
/* Latents [rows][row->width] float32 into the caches' rows, and e_v as attention will read it, in bf16. */
void cuda_store_latents(const cuda_launch *l, const cuda_context_source *source, const float *latents,
                        const cuda_latent_row *row, cuda_bf16 *v_half, int ldv);
/* scales[position][head + h] = rms_scale(values[row][h]); values NULL: 1, where values pass no norm */
void cuda_store_scales(const cuda_launch *l, const cuda_context_source *source, const float *values, int kv_heads,
                       int head_dim, int head, float eps);

/* ------------------------------------------------------------------------------------------------------- utilities */

/* cosine and sine [position][pairs] of positions [begin, end) */
void cuda_rope_tables(const cuda_launch *l, const float *inverse_frequency, int pairs, int begin, int end,
                      float *cosine, float *sine);
/* Uniform values of this standard deviation; a pure function of (seed, index). */
void cuda_fill_random(const cuda_launch *l, cuda_bf16 *data, size_t n, float deviation, uint64_t seed);
/* Reads `bytes` (a multiple of 16) once. */
void cuda_probe_read(const cuda_launch *l, const void *data, size_t bytes, float *sink);
/* Multiplies registers on the tensor cores; returns the operations it will do. */
double cuda_probe_flops(const cuda_launch *l, int multiprocessors, int iterations, float *sink);

#ifdef __cplusplus
}
#endif

#endif
