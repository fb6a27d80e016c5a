/* The model of the MLX backend. The rooms that work on it:
 *
 *   model.c     creation, and the table of verbs          weights.c   arrays on the device, RoPE tables
 *   layout.c    which position lies in which slot         forward.c   segments in tiles of rows
 *   follow.c    drafter context and latents of rows       draft.c     drafting blocks
 *   tower.c     rows of pictures
 *   measure.c   benchmarks                                train.c     what training looks at
 *   account.c   failures and workspace of graphs          workspace.c how large it will be
 *   check.c     which way each operation is computed
 *   mlx_device.h   the C face of the C++ part
 *
 * K/V, latents and snapshots are those of host memory (backend/host_stores.h), which MLX's devices compute in. A graph
 * reads what its tile attends from there, in slots that positions alone decide, and gives new rows back, which are
 * stored when every tile of the forward has been computed. So nothing that fails in a graph has changed a cache, and
 * whatever libmlx chooses by the shape of an operation is the same for a row however it is computed. */
#ifndef KAKEYA_BACKEND_MLX_MLX_H
#define KAKEYA_BACKEND_MLX_MLX_H

#include "backend/host_cache.h"
#include "backend/mlx/mlx_device.h"

enum {
    /* Rows that are computed together, at positions from a multiple of their number on: */
    MLX_PROMPT_ROWS = 32,    /* of a prompt */
    MLX_DECODE_ROWS = 16,    /* of an answer, where stock operations take part */
    MLX_MOST_ROWS = 17,      /* of an answer, where own kernels compute everything: a block with its drafts */
    MLX_HEAD_ROWS = 16,      /* of logits */
    MLX_FOLLOW_ROWS = 16,    /* of context and latents */
    MLX_AHEAD_STEPS = 16,    /* steps of one row whose tiles may follow each other in one chain */
    MLX_MAX_ROWS = 512,      /* of one forward */
    MLX_MAX_PICTURE = 1152,  /* the same with pictures: at most 1,120 rows, and never cut */
    MLX_TILES_UNDER_WAY = 2, /* tiles of a forward that are computed, or wait for the one before */
    MLX_KEY_STEP = 1024,     /* by which the slots of layers that see everything grow */
    MLX_ROPE_GROWTH = 1024   /* positions by which RoPE tables grow */
};

typedef struct rope_source {
    float theta, factor;
    int head_dim;
    int positions; /* that the table has */
    mlx_rope *table;
    mlx_array *cosine, *sine;
} rope_source;

/* The rows of one layer in model.chunk. */
typedef struct chunk_layer {
    size_t k, v; /* bytes before them for every row that there is room for */
} chunk_layer;

/* A tap on the inner values of a tile's n rows, which are the rows of a forward from in_forward on. */
typedef void mlx_tap_fn(const backend_model *m, size_t in_tile, size_t in_forward, size_t n,
                        const mlx_tile_result *result);
typedef struct mlx_tapped mlx_tapped;
typedef struct mlx_ahead mlx_ahead;
typedef struct mlx_vision mlx_vision;

struct backend_model {
    backend_model_options options;
    const model_config *config;
    const model_weights *weights;
    mem_account *account;
    mlx_device *device;
    char description[256];
    char note[320];

    mlx_form form;
    mlx_drafter drafter;
    mlx_encoders encoders;
    mlx_array **arrays; /* all but those of RoPE tables */
    int n_arrays;
    size_t weight_bytes;
    char *made_row;             /* of a matrix without data, of which single rows are read */
    weight_format widened;      /* of some matrix that is held as float32; F32: there is none */
    rope_source rope[3];        /* sliding, full, the drafter's; theta 0: none */
    const mlx_array *suppress;  /* [vocab]: -inf for tokens that are never chosen; NULL: all may be */
    const mlx_array *excluding; /* the same and `excluded`; NULL: no row has excluded a token yet */
    int32_t excluded;
    const mlx_array *never_drafted; /* the same for the drafter's mask */
    float embed_scale;

    /* Rows of a tile, whichever is asked for: 1 where an operation cannot keep bits in any other way; 0: as many as
     * come, which is what own kernels allow (check.c). */
    int decode_rows, prompt_rows, head_rows, follow_rows;

    mlx_vision *vision; /* what reads pictures; NULL: there was none yet */

    mlx_ahead *ahead; /* the graph of the next step, should it be one row; NULL: there is none */
    long steps_ahead; /* steps whose graph had been made before they were asked for */

    size_t workspace_bytes;              /* that graphs need, counted in the account before they are made */
    size_t foreseen_bytes, needed_bytes; /* the most that graphs were said to need, and that they were seen to need */
    chunk_layer chunk_at[MODEL_MAX_LAYERS];
    int max_rows, most_rows; /* that there is room for, and to which it can grow */
    unsigned char *chunk; /* new K/V rows of a forward, as they will be stored: [max_rows] for K and V of each layer */
    float *hidden;        /* [max_rows][hidden] behind the final norm */
    float *aux;           /* [max_rows][taps * hidden] of prompt rows; NULL: nobody wants any */
    int max_taps;
    mlx_tap_fn *tap;          /* of the running forward; NULL: none */
    const mlx_tapped *tapped; /* the tap's own values (train.c) */
};

/* --- weights.c */
kakeya_status mlx_weights_create(backend_model *m, kakeya_error *error);
void mlx_weights_destroy(backend_model *m);
/* What is added to logits where one token more (NULL: none) is never chosen: [vocab], or NULL. Models have one such
 * token, the one that begins a call: another one is kept beside it. */
kakeya_status mlx_excluding(backend_model *m, const int32_t *token, const mlx_array **out, kakeya_error *error);
kakeya_status mlx_rope_reserve(backend_model *m, int positions, kakeya_error *error);
/* Cosines or sines of a position's angles in layers of a type: [pairs]. */
void mlx_rope_row(const backend_model *m, layer_type type, int position, bool sine, float *to);
/* A row of the embedding, times `scale`. */
void mlx_embed(const backend_model *m, int32_t token, float scale, float *to);
/* A row of the table of per-layer embeddings, of all layers. */
void mlx_ple_row(const backend_model *m, int32_t token, float *to);

/* What reads pictures, by slot (backend/program/tower.h), and the table of RoPE of half a head. On failure nothing is
 * there. */
kakeya_status mlx_tower_load(backend_model *m, const struct vision_model *vision, mlx_tower_weight *slots,
                             mlx_rope *rope, kakeya_error *error);

/* --- check.c */
/* How each operation is computed from now on: the fastest way in which a row keeps its bits beside any others. */
kakeya_status mlx_choose_ways(backend_model *m, kakeya_error *error);
void mlx_describe_ways(const backend_model *m, char *to, size_t bytes);

/* --- account.c */
/* What a graph has said; of status MLX_DEVICE_OK: KAKEYA_OK. */
kakeya_status mlx_check(int status, const mlx_failure *failure, kakeya_error *error);
/* Counts the workspace of graphs that are about to be made, if it is more than ever before. */
kakeya_status mlx_reserve_workspace(backend_model *m, size_t bytes, kakeya_error *error);
/* Counts what graphs have needed, should it be more than that. */
kakeya_status mlx_count_workspace(backend_model *m, kakeya_error *error);

/* --- workspace.c */
/* Bytes that the graphs of a forward, or of a draft, need at most. guarded: some number is not finite. */
size_t mlx_forward_bytes(const backend_model *m, const backend_segment *segments, int n, bool guarded);
size_t mlx_draft_bytes(const backend_model *m, const backend_draft_request *requests, int n);
/* Room for a forward of so many rows. What there was stays where there is no memory for more. */
kakeya_status mlx_rows_reserve(backend_model *m, int rows, kakeya_error *error);

/* --- forward.c */
kakeya_status mlx_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error);
/* The next step's graph is of no use any more: what was committed is not what it was made for. Nothing else changes. */
void mlx_ahead_drop(backend_model *m);

/* --- follow.c */
/* Rows of a cache that are followed up: aux hidden states of positions from `position` on. */
typedef struct follow_rows {
    backend_cache *cache;
    const float *aux;
    int rows, position;
} follow_rows;
kakeya_status mlx_follow(backend_model *m, const follow_rows *rows, kakeya_error *error);
/* The same for rows that wait in the cache's backlog. */
kakeya_status mlx_flush(backend_cache *c, position_range rows, kakeya_error *error);
/* One latent of a row that is held, as float32. */
void mlx_latent_load(const backend_cache *c, int position, bool is_k, float *out);
/* Values as they are kept: float32, or rounded to bf16. */
void mlx_store_values(kv_format format, const float *x, size_t n, void *to);

/* --- tower.c: backend_ops' verbs of the same names, and backend_measure_ops.image_bytes */
kakeya_status mlx_load_vision(backend_model *m, const struct vision_model *vision, kakeya_error *error);
void mlx_vision_destroy(backend_model *m);
kakeya_status mlx_embed_image(backend_model *m, const backend_image *image, float *rows, kakeya_error *error);
kakeya_status mlx_image_begin(backend_model *m, const backend_image *image, float *rows, backend_reading **out,
                              kakeya_error *error);
kakeya_status mlx_image_step(backend_reading *reading, double seconds, bool *made, kakeya_error *error);
void mlx_image_end(backend_reading *reading);
size_t mlx_image_bytes(const struct vision_model *vision, weight_format format, int patches, int side, int threads);

/* --- draft.c */
kakeya_status mlx_draft(backend_model *m, backend_draft_request *requests, int n, kakeya_error *error);

#endif
