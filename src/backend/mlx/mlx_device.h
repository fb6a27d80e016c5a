/* The C face of the part that speaks to libmlx, which is C++: arrays on MLX's device, one function per graph. What a
 * graph is made for (positions, stores, policies) is known to the folder's C files alone; C++ sees numbers and
 * pointers.
 *
 * Every function that can fail returns MLX_DEVICE_OK or writes one line into *failure. None throws, and none leaves
 * anything changed when it fails: graphs read their inputs, and what they give is copied by the caller. */
#ifndef KAKEYA_BACKEND_MLX_MLX_DEVICE_H
#define KAKEYA_BACKEND_MLX_MLX_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MLX_DEVICE_OK = 0, MLX_DEVICE_OUT_OF_MEMORY, MLX_DEVICE_FAILED };
enum { MLX_MAX_LAYERS = 128, MLX_MAX_DRAFT_LAYERS = 16 };
enum { MLX_ATTENTION_ROWS = 64 }; /* of which stock operations compute scores together */

typedef struct mlx_failure {
    char text[256];
} mlx_failure;

/* ------------------------------------------------------------------------------------------------------- device */

typedef struct mlx_device mlx_device;

/* The version of libmlx that is loaded, and the one whose headers were compiled in: C++ promises nothing between two.
 */
const char *mlx_version_loaded(void);
const char *mlx_version_built(void);

/* Whether this is a Mac whose GPU libmlx can use. */
bool mlx_metal_present(void);

/* round_inputs: what enters a product is rounded to bf16 (precision bf16); sums are float32. */
int mlx_device_open(bool round_inputs, mlx_device **out, mlx_failure *failure);
void mlx_device_close(mlx_device *device);
bool mlx_device_is_gpu(const mlx_device *device);

/* What the system says of the device: "" and 0 where it does not. */
typedef struct mlx_device_info {
    char name[96];
    size_t memory_bytes, working_set_bytes;
} mlx_device_info;
void mlx_device_describe(const mlx_device *device, mlx_device_info *out);

/* Bytes that arrays hold now, and the most since the last mlx_device_reset_peak. */
size_t mlx_device_active_bytes(void);
size_t mlx_device_peak_bytes(void);
void mlx_device_reset_peak(void);
/* Above these bytes libmlx gives up what it keeps for later, and lets what is under way end before it begins more. */
void mlx_device_limit(size_t bytes);

/* What the device allows: reading of one large array, and operations of one large product, the fastest of some runs. */
int mlx_probe_run(mlx_device *device, double *read_bytes_per_second, double *flops_per_second, mlx_failure *failure);

/* ------------------------------------------------------------------------------------------------- operations */

/* Operations whose rows must have the same bits beside any others. */
typedef enum mlx_op {
    MLX_OP_PRODUCT = 0,
    MLX_OP_EXPERTS, /* with the router */
    MLX_OP_NORM,
    MLX_OP_HEADS, /* norm and RoPE of heads */
    MLX_OP_ATTENTION,
    MLX_OP_HEAD, /* logits, cap, choice */
    MLX_OPS
} mlx_op;

/* How an operation is computed: by an own kernel for as many rows as there are, by stock operations in tiles of fixed
 * shape, or by stock operations one row at a time. */
typedef enum mlx_way { MLX_WAY_OWN = 0, MLX_WAY_FIXED, MLX_WAY_SERIAL } mlx_way;

typedef struct mlx_ways {
    mlx_way few[MLX_OPS];    /* of rows of an answer */
    mlx_way prompt[MLX_OPS]; /* of rows of a prompt */
} mlx_ways;
const mlx_ways *mlx_device_ways(const mlx_device *device);
bool mlx_device_has_kernels(const mlx_device *device); /* something computes own kernels */
const char *mlx_op_name(mlx_op op);
const char *mlx_way_name(mlx_way way);

/* One kind of operation over one step, each operation computed alone. */
typedef struct mlx_profile_row {
    char kernel[40], part[40];
    int launches;
    double seconds, bytes, operations; /* medians of all launches; what they must read and do */
} mlx_profile_row;
enum { MLX_PROFILE_ROWS = 64 };
/* From now on every operation of a graph is computed alone, `repeats` times, and told; 0: no longer. */
void mlx_device_profile(mlx_device *device, int repeats);
int mlx_device_profiled(const mlx_device *device, mlx_profile_row rows[MLX_PROFILE_ROWS]);
/* Seconds of a graph of one operation on one number, the fastest of `repeats`. */
int mlx_empty_run(mlx_device *device, int repeats, double *seconds, mlx_failure *failure);

/* For tests: results of `op` computed in one of these ways depend on the rows beside them. */
typedef struct mlx_fault {
    mlx_op op;
    bool in[3]; /* by mlx_way; SERIAL is not asked for: there is nothing beside a row */
} mlx_fault;
void mlx_device_inject(const mlx_fault *fault); /* into devices that are opened from now on; NULL: none */

/* How often inference has waited for the device until it had nothing left to do, since the program began. */
long mlx_device_waits(void);

/* For tests: the call after the next `calls` ones that can fail does; negative: none. */
void mlx_device_fail_after(int calls);

/* ------------------------------------------------------------------------------------------------------- arrays */

typedef struct mlx_array mlx_array;

/* Writes row `row` of a matrix as float32. */
typedef void (*mlx_row_fn)(const void *user, int row, float *to);

/* [count][rows][columns] of float32, count 1: [rows][columns]; rows 0: a vector of columns. The row function sees
 * count * rows rows. */
int mlx_array_create(mlx_device *device, int count, int rows, int columns, mlx_row_fn row, const void *user,
                     mlx_array **out, mlx_failure *failure);
/* A matrix of codes as libmlx's own quantised products read it: [count][rows] of `columns` codes of `bits` bits, the
 * lowest bits first, with a scale for `group` of them. */
typedef enum mlx_code_form { MLX_AFFINE = 0, MLX_MXFP4, MLX_MXFP8, MLX_NVFP4 } mlx_code_form;
typedef struct mlx_codes {
    mlx_code_form form;
    int bits, group;
} mlx_codes;
/* Writes row `row`: stream 0, codes; 1, scales (affine: float32; else bytes); 2, biases (affine alone: float32). */
typedef void (*mlx_code_row_fn)(const void *user, int row, int stream, void *to);
int mlx_array_create_codes(mlx_device *device, int count, int rows, int columns, mlx_codes codes, mlx_code_row_fn row,
                           const void *user, mlx_array **out, mlx_failure *failure);
/* Matrices of bf16, whose rows are written as they are (stream 0). Stock operations widen one while they multiply it.
 */
int mlx_array_create_bf16(mlx_device *device, int count, int rows, int columns, mlx_code_row_fn row, const void *user,
                          mlx_array **out, mlx_failure *failure);
void mlx_array_free(mlx_array *array);
size_t mlx_array_bytes(const mlx_array *array);
size_t mlx_array_widened_bytes(const mlx_array *array); /* of the copy that stock operations make of bf16; else 0 */

/* ----------------------------------------------------------------------------------------------------- verifier */

typedef struct mlx_layer {
    bool full, k_eq_v;
    int head_dim, kv_heads, source; /* source: the layer whose K/V this one attends */
    const mlx_array *q_proj, *k_proj, *v_proj, *o_proj, *q_norm, *k_norm;
    const mlx_array *gate_proj, *up_proj, *down_proj;
    const mlx_array *input_norm, *post_attention_norm, *pre_ffn_norm, *post_ffn_norm;
    const mlx_array *post_ffn_norm_1, *pre_ffn_norm_2, *post_ffn_norm_2;
    const mlx_array *router_proj, *router_scale, *router_expert_scale;
    const mlx_array *experts_gate_up, *experts_gate, *experts_up, *experts_down; /* [experts][out][in] */
    const mlx_array *ple_gate, *ple_proj, *post_ple_norm;
    const mlx_array *decoder_k, *decoder_v; /* restoration: [kv_heads * head_dim][rank], or NULL */
    float scalar;
} mlx_layer;

/* cos and sin of position * inverse frequency, [positions][pairs]. */
typedef struct mlx_rope {
    const mlx_array *cosine, *sine;
    int pairs;
} mlx_rope;

typedef struct mlx_form {
    int layers, hidden, heads, vocab;
    int experts_per_token; /* 0: dense */
    int ple_width;         /* 0: no per-layer embeddings */
    float eps, softcap;
    bool inner; /* results hold what layers compute inside, and every layer's output: training looks at it */
    const mlx_array *final_norm, *head, *ple_model_proj, *ple_proj_norm;
    mlx_rope rope[2]; /* sliding, full */
    mlx_layer layer[MLX_MAX_LAYERS];
} mlx_form;

/* How K/V are kept (backend/kv_format.h): what new rows are rounded to. Stored ones in 8 or 4 bits are filled in as
 * float32. */
typedef enum mlx_stored { MLX_STORED_F32 = 0, MLX_STORED_BF16, MLX_STORED_Q8, MLX_STORED_Q4 } mlx_stored;

/* The keys that the rows of a tile attend in layers of one type. A slot holds one position, or none (-1): which one is
 * decided by positions alone, so that a row finds the same numbers in the same places whoever computes it, and whatever
 * stands beside it. */
typedef struct mlx_span {
    mlx_stored stored;
    size_t row_bytes;        /* of a stored row, as it lies in memory */
    int slots;               /* exact K/V */
    const int32_t *position; /* [slots] */
    const int32_t *from;     /* [slots]: row of the chain's stored ones; behind them, of the rows of its tiles */
    const int32_t *sink_begin, *sink_end, *begin, *end; /* [rows]: a row sees [sink_begin, sink_end) and [begin, end) */
    int restored;                                       /* slots of latents; 0: none */
    const int32_t *restored_position;
    const int32_t *restored_begin, *restored_end; /* [rows] */
    int rank_k, rank_v;
    const float *codes_k, *codes_v; /* [restored][rank], zero in empty slots */
} mlx_span;

/* Stored rows of the layers of one type. */
typedef struct mlx_stored_rows {
    mlx_stored stored;
    size_t row_bytes;
    int rows; /* with the first one, which is zero; 0: there is no such layer */
} mlx_stored_rows;

/* What the tiles of one segment attend: stored rows, which are copied once for all of them, and the rows of the tiles
 * before, which stay on the device. */
typedef struct mlx_chain mlx_chain;
typedef struct mlx_chain_source {
    int tile_rows;           /* of a tile, at most, but for those of pictures */
    bool pictures;           /* there are such tiles */
    mlx_stored_rows kept[2]; /* sliding, full */
    /* Stored K or V of a layer into `to` [rows][kv_heads * head_dim], and the same as it lies in memory,
     * [rows][row_bytes].
     */
    void (*fill)(void *user, int layer, bool is_k, void *to);
    void (*fill_raw)(void *user, int layer, bool is_k, void *to);
    void *user;
} mlx_chain_source;

typedef struct mlx_tile {
    int rows;
    int first, n;            /* rows that are computed for somebody; the others are padding, and pass by the experts */
    bool picture;            /* stock operations attend, whatever other tiles of the chain do */
    const float *embedded;   /* [rows][hidden], scaled; NULL: mlx_tile_begin is told */
    const float *ple;        /* [rows][layers * ple_width], rows of the table, scaled; or NULL */
    const int32_t *position; /* [rows] */
    mlx_span span[2];        /* sliding, full */
    /* Some number may not be finite: what such positions hold reaches the rows that see them, and no others. Costs
     * another look at every key; rows that see finite numbers alone get the same bits. */
    bool guarded;
    /* v_norm scalars of restored positions of a layer into `to` [restored][kv_heads]. */
    void (*fill_scales)(void *user, int layer, float *to);
    void *user;
    const bool *wanted; /* [layers]: outputs of which layers are wanted */
    /* Rows [head_first, head_first + head_n) want logits, or a choice among them after `bias` was added, in the same
     * graph; head_n 0: none do. head_alone: they are computed without the tile's other rows. */
    int head_first, head_n;
    bool head_alone, logits, choice;
    const mlx_array *bias;
} mlx_tile;

/* Of one layer: products of the normed rows with q_proj, k_proj and v_proj, as far as it has them, side by side;
 * queries behind norm and RoPE; what attention gives the heads; o_proj of that. */
typedef struct mlx_inner {
    const float *raw, *q, *attended, *added;
} mlx_inner;

/* float32 [rows][...], or bytes [rows][row_bytes]; NULL where there are none. */
typedef struct mlx_tile_result {
    void *owner;
    const float *k[MLX_MAX_LAYERS], *v[MLX_MAX_LAYERS];               /* new K/V of layers with a store, to be stored */
    const unsigned char *q4_k[MLX_MAX_LAYERS], *q4_v[MLX_MAX_LAYERS]; /* of MLX_STORED_Q4 instead: as they are stored */
    const float *output[MLX_MAX_LAYERS];
    mlx_inner inner[MLX_MAX_LAYERS];
    const float *hidden; /* behind the final norm */
    const float *logits; /* [head_n][vocab], as those of mlx_head_run */
    const int32_t *choice;
} mlx_tile_result;

/* Tries every operation of the form with random rows and sets the device's ways. RoPE tables hold some positions. */
int mlx_device_choose(mlx_device *device, const mlx_form *form, mlx_failure *failure);

int mlx_chain_begin(mlx_device *device, const mlx_form *form, const mlx_chain_source *source, mlx_chain **out,
                    mlx_failure *failure);
/* Forgets all tiles but the first `tiles`. */
void mlx_chain_cut(mlx_chain *chain, int tiles);
void mlx_chain_free(mlx_chain *chain);

/* Makes the graph of a tile, as the next of its chain; begins to compute it; waits for it: then it can be read. Tiles
 * are finished in the order in which they were begun. Rows of the embedding that were not known are told at the
 * beginning, else NULL. */
int mlx_tile_prepare(mlx_device *device, const mlx_form *form, mlx_chain *chain, const mlx_tile *tile,
                     mlx_tile_result *result, mlx_failure *failure);
int mlx_tile_begin(mlx_device *device, mlx_tile_result *result, const float *embedded, const float *ple,
                   mlx_failure *failure);
int mlx_tile_finish(mlx_device *device, const mlx_form *form, const mlx_tile *tile, mlx_tile_result *result,
                    mlx_failure *failure);
/* Also of one that has not been finished, or not been begun. */
void mlx_tile_result_free(mlx_device *device, mlx_tile_result *result);

/* Capped logits of `rows` normed hidden states; `bias` [vocab] is added before the choice. logits [rows][vocab] and
 * choice [rows] may be NULL; a choice is the largest logit's, the lowest on ties, -1 where one is not a number. */
int mlx_head_run(mlx_device *device, const mlx_form *form, const float *hidden, int rows, const mlx_array *bias,
                 float *logits, int32_t *choice, mlx_failure *failure);

/* ------------------------------------------------------------------------------------------- drafter and restoration
 */

typedef struct mlx_draft_layer {
    const mlx_array *input_norm, *post_attention_norm, *q_norm, *k_norm;
    const mlx_array *q_proj, *k_proj, *v_proj, *o_proj, *gate_proj, *up_proj, *down_proj;
} mlx_draft_layer;

typedef struct mlx_drafter {
    int layers, hidden, heads, kv_heads, head_dim;
    float eps;
    const mlx_array *fc, *hidden_norm, *norm;
    mlx_rope rope;
    mlx_draft_layer layer[MLX_MAX_DRAFT_LAYERS];
} mlx_drafter;

typedef struct mlx_encoders {
    const mlx_array *k, *v; /* v NULL: one latent for both */
    int rank_k, rank_v;
} mlx_encoders;

/* Context K/V of `rows` aux hidden states [rows][aux_width] into k and v [layers][rows][kv_heads * head_dim], and, with
 * encoders, latents into codes [rows][rank_k + rank_v] (a shared latent: [rows][rank_k]). */
int mlx_context_run(mlx_device *device, const mlx_drafter *drafter, const mlx_encoders *encoders, int rows,
                    const float *aux, int aux_width, const int32_t *position, float *k, float *v, float *codes,
                    mlx_failure *failure);
/* Latents of `rows` rows of `parts` hidden states of `width` values, each of which is divided by its rms. */
int mlx_encode_run(mlx_device *device, const mlx_encoders *encoders, int rows, int parts, int width, float eps,
                   const float *aux, float *codes, mlx_failure *failure);
/* 1 / rms of each head of the values of the chosen layers, decoded from latents [rows][rank_v], into scales
 * [rows][their heads], layer by layer. */
int mlx_scales_run(mlx_device *device, const mlx_form *form, const bool *layers, int rows, int rank_v,
                   const float *codes, float *scales, mlx_failure *failure);

/* A block of the drafter: rows [rows][hidden] at positions [rows] behind `context` positions of context K/V. */
typedef struct mlx_block {
    int rows;
    const float *embedded;
    const int32_t *position;           /* [rows] */
    int context[MLX_MAX_DRAFT_LAYERS]; /* keys of the context, of positions before the block's */
    int first[MLX_MAX_DRAFT_LAYERS];   /* position of the first of them */
    int before[MLX_MAX_DRAFT_LAYERS],
        behind[MLX_MAX_DRAFT_LAYERS];           /* rows of the block that a row sees beside itself */
    const int32_t *begin[MLX_MAX_DRAFT_LAYERS]; /* [rows]: context from this position on is seen */
    bool stored_bf16;
    void (*fill)(void *user, int layer, bool is_k, void *to); /* [context][kv_heads * head_dim] */
    void *user;
} mlx_block;

/* Drafts [rows - 1]: the form's choice for each row but the first, which is the bonus token's, after `bias` [vocab] was
 * added to its logits. */
int mlx_block_run(mlx_device *device, const mlx_form *form, const mlx_drafter *drafter, const mlx_block *block,
                  const mlx_array *bias, int32_t *drafts, mlx_failure *failure);

/* ----------------------------------------------------------------------------------------------------- pictures */

enum {
    MLX_PICTURE_ROWS = 1024,             /* of products that are computed together */
    MLX_PICTURE_SCORES = 4 * 1024 * 1024 /* numbers that attention may store, where it is not fused */
};

/* A matrix, a vector or the table of places, and the bounds of a clipped product. */
typedef struct mlx_tower_weight {
    const mlx_array *value; /* NULL: there is none */
    float input_min, input_max, output_min, output_max;
} mlx_tower_weight;

/* What makes rows of pictures: a list of operations (backend/program/tower.h). */
typedef struct mlx_tower {
    const struct program_op *op;
    int ops;
    const mlx_tower_weight *weight; /* by slot */
    int positions;                  /* of the table of places, in each direction */
    bool places_alternate; /* the table has the rows of column and line 0, then of 1, ...; else those of all columns,
                              then of all lines */
    float eps;
    mlx_rope rope; /* of half a head */
} mlx_tower;

/* A picture under way: it holds memory of the device until it is freed, which may be at any time. The tower outlives
 * it. */
typedef struct mlx_picture mlx_picture;
/* patches [down * across][patch_values], copied. */
int mlx_picture_begin(mlx_device *device, const mlx_tower *tower, int across, int down, int patch_values,
                      const float *patches, mlx_picture **out, mlx_failure *failure);
/* The next piece. made: that was the last one, and the rows are written. */
int mlx_picture_step(mlx_picture *picture, float *rows, bool *made, mlx_failure *failure);
void mlx_picture_free(mlx_picture *picture); /* NULL is fine */

/* ----------------------------------------------------------------------------------------------------- training */

/* out [nb][na] = sum over rows of b[row * ldb + i] * a[row][j]. */
int mlx_outer_run(mlx_device *device, const float *a, int na, const float *b, size_t ldb, int nb, int rows, float *out,
                  mlx_failure *failure);

#ifdef __cplusplus
}
#endif

#endif
