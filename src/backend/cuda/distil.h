/* The student of distillation (backend/backend_train.h) on a device, in float32; what is large goes through the tensor
 * cores in parts (split_products.h). It computes what the CPU's does (backend/cpu/distil.h, whose comments hold here),
 * for the rows of many sequences at once: a segment is short, and kernels over one at a time would wait for their
 * launches. The teacher goes the same way as the student, with whole sequences for segments. The rooms:
 *
 *   restoration_trainer.c    memory, verbs, the order of a step     distil_layer.c      a layer, there and back
 *   distil_columns.c    what rows see: tables for the device   distil_restore.c    restoration there and back, losses
 *   distil_weights.c    the model's matrices, and products with them        train_*.cu           kernels
 *   distil_times.c      what parts of a step take
 *
 * Shapes: B sequences of T tokens, S segments of N rows, H hidden, R restored positions. */
#ifndef KAKEYA_BACKEND_CUDA_DISTIL_H
#define KAKEYA_BACKEND_CUDA_DISTIL_H

#include "backend/backend_train.h"
#include "backend/cuda/model.h"
#include "backend/cuda/split_products.h"
#include "backend/cuda/train_kernels.h"
#include "backend/restoration_layout.h"

/* A matrix [out][in] of the device: the engine's, where that is exact, else a copy, in float32 or rounded to bf16. */
typedef struct distil_matrix {
    float *data; /* NULL: `bits` are read */
    int out, in;
    const cuda_bf16 *bits; /* [out][ld] */
    size_t ld;
    cuda_bf16 *copy;   /* `bits`, where they are the student's own */
    cuda_bf16 *turned; /* [in][out rounded up], of a copy that products go back through */
} distil_matrix;

static inline distil_matrix distil_copy_of(float *data, int out, int in) {
    return (distil_matrix){.data = data, .out = out, .in = in};
}

typedef struct distil_layer {
    distil_matrix q, k, v, o, gate, up, down, router, ple_gate, ple_proj;
    distil_matrix experts_gate_up, experts_down; /* [experts * 2 * width][H], [experts * H][width] */
    float *q_norm, *k_norm, *input_norm, *post_attention_norm, *pre_ffn_norm, *post_ffn_norm, *post_ffn_norm_1,
        *pre_ffn_norm_2, *post_ffn_norm_2, *post_ple_norm, *router_norm, *router_expert_scale;

    float *native[2], *native_raw[2];      /* [B * T][kv_dim] */
    float *native_h, *native_added;        /* [S * N][H]: of the segments' rows */
    float *native_q, *native_out;          /* [S * N][q_dim], [S * N][H]: where attention is compared by itself */
    float *raw[2], *seen[2], *d_seen[2];   /* [R of its kind][kv_dim] */
    float *own_raw[2], *own[2], *d_own[2]; /* [S * N][kv_dim] */
    float *input;                          /* [S * N][H] */
} distil_layer;

/* Values of the layer in work, for the rows of the teacher or of the student. */
typedef struct distil_tape {
    float *x, *q_raw, *q, *o, *out, *added, *h1, *x2, *gate_up, *act, *dense, *both, *h2, *raw[2];
    float *expert_x, *router_x, *router_z, *slot_x, *slot_gate_up, *slot_act, *slot_out, *mixed;
    float *ple_gate, *ple_act, *ple_out;
    float *keys, *values, *shares; /* [S][columns][kv_dim]; [S][heads][N][columns] */
    train_routing routing;
} distil_tape;

/* Positions that layers of one kind (layer_type) have restored, segment after segment. */
typedef struct distil_restored {
    int rows;
    int *index, *position, *native; /* [rows]: among all restored positions; in the text; the teacher's row */
    int *begin;                     /* [S + 1] */
    float *latent[2], *d_latent[2]; /* [rows][rank] */
} distil_restored;

/* Rows that go through the layers together. */
typedef struct distil_pass {
    bool teacher;
    int items, per, rows;         /* rows = items * per */
    const int *tokens, *position; /* [rows] */
    train_mask mask[2];           /* by kind of layer */
} distil_pass;

/* What the host makes of a chunk of sequences for the device, and where it lies there. */
typedef struct distil_tables {
    int *host, *device; /* all of it */
    size_t ints, most;
} distil_tables;

enum { DISTIL_MARKS = 512 };

/* Marks of a chunk, each with the part that begins there, and what parts have taken so far. */
typedef struct distil_times {
    cudaEvent_t mark[DISTIL_MARKS];
    int part[DISTIL_MARKS], n;
    double seconds[RESTORATION_PARTS + 1];
} distil_times;

struct backend_restoration_trainer {
    backend_model *m;
    restoration_trainer_options o;
    restoration_config f;
    restoration_layout layout;
    cuda_launch launch;
    cuda_buffer memory;
    int together; /* sequences of a chunk */
    bool lacks;   /* a matrix that is nowhere */
    split_room split;
    distil_layer layer[MODEL_MAX_LAYERS];
    distil_matrix embed, head, ple_embed, ple_model_proj;
    float *final_norm, *ple_proj_norm;
    distil_matrix fc, draft_k[BLOCK_DRAFTER_MAX_LAYERS], draft_v[BLOCK_DRAFTER_MAX_LAYERS];
    float *hidden_norm;
    float *cosine[2], *sine[2]; /* [T][pairs] by kind of layer */
    float *weights, *gradient;  /* [layout.n] */
    distil_tables tables;

    distil_pass teacher, student;
    const int *row_native; /* [S * N] the teacher's row of each */
    int n_restored;
    const int *restored_native; /* [R] */
    distil_restored restored[2];
    const float *factor[2]; /* [S] by kind of layer: of losses that look at each layer by itself */
    float scale;

    distil_tape tape; /* the layer's in work: a kept one, or the common one */
    distil_tape common, kept[MODEL_MAX_LAYERS];
    bool keeps;                                /* the student's forward is kept: the way back computes no layer again */
    float *teacher_h[2];                       /* [B * T][H] of one layer and the next */
    float *inputs[2], *aux, *context;          /* [B * T][...] as the CPU's */
    float *gathered, *latent[2], *d_latent[2]; /* [R][...] */
    float *d_shares, *d_key, *d_value;
    float *embedded, *last, *final_x, *ple, *spare;
    float *logits[2]; /* [at most DISTIL_HEAD_ROWS][vocab] */
    float *d_h, *d_both, *d_branch, *d_x, *d_act, *d_gate_up, *d_q, *d_o, *d_kv[2];
    float *d_slot, *d_slot_act, *d_slot_gate_up, *d_slot_x, *d_router_z;
    float *partial;
    size_t partial_floats;
    double *kl, *results, *share_parts; /* [S * N]; [S][DISTIL_RESULTS]; train_share.parts */
    const float *given;                 /* the weights, on the host */
    distil_times times;
};

enum { DISTIL_HEAD_ROWS = 2048 /* that the head sees at once */ };
enum { RESULT_LOSS, RESULT_KL, RESULT_HIDDEN, RESULT_ATTENTION, RESULT_KV, DISTIL_RESULTS };

/* Memory is laid out twice: with `base` NULL for its size, then for its addresses. */
typedef struct distil_arena {
    char *base;
    size_t bytes;
} distil_arena;

void *distil_take(distil_arena *a, size_t bytes);

static inline int distil_kv_dim(const backend_restoration_trainer *s, int layer) {
    const layer_config *l = &s->m->config->layer[layer];
    return l->kv_heads * l->head_dim;
}
static inline int distil_q_dim(const backend_restoration_trainer *s, int layer) {
    return s->m->config->heads * s->m->config->layer[layer].head_dim;
}
static inline int distil_rank(const backend_restoration_trainer *s, int half) {
    return half ? s->f.rank_v : s->f.rank_k;
}
static inline int distil_code(const backend_restoration_trainer *s, int half) { return s->f.shared_latent ? 0 : half; }
static inline distil_restored *distil_restored_of(backend_restoration_trainer *s, int layer) {
    return &s->restored[s->m->config->layer[layer].type];
}
static inline bool distil_compares_attention(restoration_loss loss) {
    return loss == RESTORATION_LOSS_ATTN_DISTIL || loss == RESTORATION_LOSS_ATTN_DISTIL_HYBRID;
}
static inline bool distil_compares_raw(restoration_loss loss) {
    return loss == RESTORATION_LOSS_MSE || loss == RESTORATION_LOSS_COS_MAG || loss == RESTORATION_LOSS_COMBINED ||
           loss == RESTORATION_LOSS_ATTN_DISTIL_HYBRID;
}
static inline void distil_copy(const backend_restoration_trainer *s, float *to, const float *from, size_t n) {
    (void)cudaMemcpyAsync(to, from, n * sizeof *to, cudaMemcpyDeviceToDevice, s->launch.stream);
}
static inline void distil_zero(const backend_restoration_trainer *s, float *x, size_t n) {
    (void)cudaMemsetAsync(x, 0, n * sizeof *x, s->launch.stream);
}

/* --- distil_weights.c ------------------------------------------------------------------------------------------- */

void train_weights_lay_out(backend_restoration_trainer *s, distil_arena *a);
/* Values of the largest of the engine's matrices, turned. */
size_t train_turned_values(const backend_restoration_trainer *s);
kakeya_status train_weights_fill(backend_restoration_trainer *s, kakeya_error *error);
/* y [rows][w.out] = w x; d_x [rows][w.in] = w' d_y, or added to it. */
void train_forward(backend_restoration_trainer *s, const float *x, size_t ldx, int rows, distil_matrix w, float *y,
                   size_t ldy);
void train_back(backend_restoration_trainer *s, const float *d_y, size_t ldy, int rows, distil_matrix w, float *d_x,
                bool add);
/* From here on products are as exact as float32, or as exact as the options say. */
void train_exactly(backend_restoration_trainer *s, bool exactly);
/* A product of float32 matrices. */
void train_multiply(backend_restoration_trainer *s, train_form form, const train_product *p);
/* sum [nb][na] += b' a over rows. */
void train_outer(backend_restoration_trainer *s, const float *b, int nb, const float *a, int na, int rows, float *sum);

/* --- distil_times.c --------------------------------------------------------------------------------------------- */

/* What is launched from here on belongs to a part (restoration_trainer_part), or to none. */
void train_begin_part(backend_restoration_trainer *s, int part);
void train_end_parts(backend_restoration_trainer *s);
void train_read_times(backend_restoration_trainer *s); /* once the device has finished */
void train_forget_times(backend_restoration_trainer *s);

/* --- distil_columns.c ------------------------------------------------------------------------------------------- */

size_t train_table_ints(const backend_restoration_trainer *s); /* at most */
int train_most_columns(const backend_restoration_trainer *s, int type);
int train_most_restored(const backend_restoration_trainer *s, int type); /* of a segment */
/* Passes, columns and restored positions of a chunk: on the device behind the call. */
kakeya_status train_lay_tables(backend_restoration_trainer *s, const restoration_trainer_sequence *sequences, int n,
                               kakeya_error *error);

/* --- distil_values.c ------------------------------------------------------------------------------------------- */

/* Raw V of a layer as attention sees it, and the way back: d_v is set, or added to. */
void train_values(backend_restoration_trainer *s, int layer, const float *raw, int rows, float *out);
void train_values_back(backend_restoration_trainer *s, int layer, const float *raw, const float *d_out, int rows,
                       bool add, float *d_v);

/* --- distil_layer.c --------------------------------------------------------------------------------------------- */

void train_embed(backend_restoration_trainer *s, const distil_pass *p, float *out);
/* out [rows][H] from in. */
void train_layer_forward(backend_restoration_trainer *s, const distil_pass *p, int layer, const float *in, float *out);
/* The student's: d_h of the output becomes that of the input, by way of the layer, which is computed again where it is
 * not kept. */
void train_layer_back(backend_restoration_trainer *s, int layer);
/* What a layer's attention gives by itself, with the teacher's queries and nothing but restored K/V. */
void train_compare_attention(backend_restoration_trainer *s, int layer, bool learns);

/* --- distil_restore.c ------------------------------------------------------------------------------------------- */

void train_encode(backend_restoration_trainer *s);
void train_encode_back(backend_restoration_trainer *s);
void train_decode(backend_restoration_trainer *s, int layer);
void train_decode_back(backend_restoration_trainer *s, int layer, bool learns);
void train_head(backend_restoration_trainer *s, const float *h, bool learns);
/* Squared error of x [S * N][H] as a share of the teacher's; result < 0: the gradient alone. */
void train_compare(backend_restoration_trainer *s, const float *x, const float *native, int result, double by,
                   float scale, float *d);
void train_share_kv(backend_restoration_trainer *s, int layer);
/* Directions of K and V, for the loss that has them. */
void train_directions(backend_restoration_trainer *s, int layer);

#endif
