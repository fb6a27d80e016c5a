/* The student of distillation (backend/backend_train.h). Its forward is written out beside the one that serves: rows of
 * one segment, exact float32, every value that the way back needs kept. Between layers it keeps their inputs alone; the
 * way back computes a layer again before it goes through it. The rooms:
 *
 *   restoration_trainer.c    memory, the teacher, the order of a segment       distil_layer.c      a layer, there and
 * back distil_attention.c  masked attention over columns                     distil_experts.c    router and experts
 *   distil_restore.c    latents, decoders: restoration there and back         distil_loss.c       what is compared
 *   distil_weights.c    transposed weights, products                      backward.h           gradients of rows
 *
 * Shapes: N rows of a segment, T tokens of the sequence, R restored positions, H hidden. */
#ifndef KAKEYA_BACKEND_CPU_DISTIL_H
#define KAKEYA_BACKEND_CPU_DISTIL_H

#include "backend/backend_train.h"
#include "backend/cpu/backward.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/train_products.h"
#include "backend/restoration_layout.h"

enum { DISTIL_MAX_ROWS = 512, DISTIL_MAX_CHOSEN = 64 /* experts of a row */ };

typedef enum column_kind { COLUMN_EXACT, COLUMN_RESTORED, COLUMN_OWN } column_kind;

/* A key that rows of a segment may see. */
typedef struct distil_column {
    int position;
    column_kind kind;
} distil_column;

typedef struct distil_layer {
    /* Transposed matrices, float32: a gradient dy of y = W x is a product of them, dx = W' dy. */
    weight q_t, k_t, v_t, o_t, gate_t, up_t, down_t, router_t, ple_gate_t, ple_proj_t;
    float *expert_gate_up_t; /* [experts][H][2 * expert_intermediate] */
    float *expert_down_t;    /* [experts][expert_intermediate][H] */
    float *router_norm;      /* [H] router_scale / sqrt(H) */

    /* The teacher's. K and V as attention sees them: [T][kv_dim], NULL in layers that attend an earlier layer's. */
    float *native[2];
    float *native_h;      /* [T][H] the layer's output */
    float *native_added;  /* [T][H] what attention adds: the post-attention norm of o_proj's output */
    float *native_raw[2]; /* [T][kv_dim] before norms; kept for losses that want them, as are the two below */
    float *native_q;      /* [T][q_dim] */
    float *native_out;    /* [T][H] o_proj's output */

    /* The segment's. */
    bool restored;
    int first, rows; /* of the positions that this layer has restored: index of the first, how many */
    float *raw[2], *seen[2], *d_seen[2];   /* [rows][kv_dim]: K, V as restored before and after norms and RoPE */
    float *own_raw[2], *own[2], *d_own[2]; /* [N][kv_dim]: the same of the segment's own rows */
    float *input;                          /* [N][H] */
} distil_layer;

/* Values of the layer in work, [N][...], from its input to its output. */
typedef struct distil_tape {
    float *x, *q_raw, *q, *o, *out, *added, *h1, *x2, *gate_up, *act, *dense;
    float *expert_x, *router_x, *router_z, *slot_x, *slot_gate_up, *slot_act, *slot_out, *mixed, *both;
    int *chosen, *slot_of, *row_of, *begin; /* [N][k]; [N][k]; [N * k]; [experts + 1] */
    float *share;                           /* [N][k] */
    float *h2, *ple_gate, *ple_act, *ple_out;
} distil_tape;

struct backend_restoration_trainer {
    backend_model *m;
    restoration_trainer_options o;
    restoration_config f;
    restoration_layout layout;
    const float *weights;
    float *decoders_t; /* laid out as the weights: [rank][kv_dim] */
    distil_layer layer[MODEL_MAX_LAYERS];
    weight head_t;
    float *memory;
    size_t floats;

    /* the teacher's sequence */
    int length;
    int32_t *tokens;
    float *inputs[2]; /* [T][restoration_encoder_in]: what the encoders read; one where they read the same */
    float *aux;       /* [T][drafter's targets * H] where a drafter is read */
    float *context;   /* [T][drafter's hidden] */

    /* the segment */
    restoration_trainer_segment segment;
    int *position; /* [R], ascending */
    int n_positions;
    float *gathered;                /* [R][restoration_encoder_in] */
    float *latent[2], *d_latent[2]; /* [R][rank] as a session would keep them; one where it is shared */
    unsigned char *code;            /* of a latent in 8 or 4 bits */
    distil_tape tape;
    distil_column *column; /* of the layer in work */
    int columns, most_columns;
    float *keys, *values, *keys_t, *values_t; /* [kv_heads][columns][d] and [kv_heads][d][columns] */
    float *shares, *d_shares;                 /* [heads][N][columns] attention weights */
    float *d_key, *d_value;                   /* [heads][columns][d] of one query head */
    float *ple;                               /* [N][layers * ple_width] */
    float *embedded;                          /* [N][H], the first layer's input */
    float *last;                              /* [N][H], the last layer's output */
    float *final_x;                           /* [N][H] */
    float *logits[2];                         /* [N][vocab] of the teacher, of the student */
    /* Gradients. Of the residual stream [N][H], which goes from layer to layer; of both branches' sum and of a branch
     * before its norm; of a norm's output; of inner values of the MLP and of the experts. */
    float *d_h, *d_both, *d_branch, *d_x, *d_act, *d_gate_up, *d_q, *d_o, *d_kv;
    float *d_slot, *d_slot_act, *d_slot_gate_up, *d_slot_x, *d_router_z;
    float *sink;                    /* gradients that nobody wants */
    float *turned, *product;        /* of outer products */
    void *packed;                   /* the input of a product */
    float *thread[THREAD_POOL_MAX]; /* turned blocks of attention */
    void *thread_packed[THREAD_POOL_MAX];
};

/* --- distil_weights.c ------------------------------------------------------------------------------------------- */

void distil_weights_lay_out(backend_restoration_trainer *s, train_arena *a);
void distil_weights_fill(backend_restoration_trainer *s);
weight distil_matrix(const float *values, int out, int in);
/* y [rows][w->out] = w x, exact float32, on the pool. */
void distil_product(backend_restoration_trainer *s, const float *x, size_t ldx, int rows, const weight *w, float *y,
                    size_t ldy);
/* The same, added to y; `scratch` [rows][w->out]. */
void distil_product_add(backend_restoration_trainer *s, const float *x, size_t ldx, int rows, const weight *w, float *y,
                        float *scratch);
/* sum [nb][na] += b' a over rows. */
void distil_outer(backend_restoration_trainer *s, const float *b, int nb, const float *a, int na, int rows, float *sum);
/* x [rows][n] to [n][rows] on the calling thread. */
void distil_turn(const float *x, size_t ldx, int rows, int n, float *out);
/* task(context, row) for each of n rows on the pool. */
typedef void (*distil_row_task)(backend_restoration_trainer *s, void *context, int row);
void distil_rows(backend_restoration_trainer *s, int n, distil_row_task task, void *context);

static inline size_t distil_kv_dim(const backend_restoration_trainer *s, int layer) {
    const layer_config *l = &s->m->config->layer[layer];
    return (size_t)(l->kv_heads * l->head_dim);
}
static inline size_t distil_q_dim(const backend_restoration_trainer *s, int layer) {
    return (size_t)(s->m->config->heads * s->m->config->layer[layer].head_dim);
}
static inline int distil_rank(const backend_restoration_trainer *s, int half) {
    return half ? s->f.rank_v : s->f.rank_k;
}
/* Which latent decoders of K (0) or V (1) read. */
static inline int distil_code(const backend_restoration_trainer *s, int half) { return s->f.shared_latent ? 0 : half; }

/* --- distil_attention.c ----------------------------------------------------------------------------------------- */

/* The columns of a layer's rows. `forced`: every position is restored, whatever the rule says. */
void distil_columns(backend_restoration_trainer *s, int layer, bool forced);
/* tape.q -> tape.o */
void distil_attend(backend_restoration_trainer *s, int layer, bool forced);
/* d_o -> d_q, and added to d_own and d_seen of the layer whose K/V are attended. */
void distil_attend_back(backend_restoration_trainer *s, int layer);

/* --- distil_restore.c ------------------------------------------------------------------------------------------- */

void distil_encode(backend_restoration_trainer *s);
void distil_encode_back(backend_restoration_trainer *s, float *gradient);
/* raw and seen of a layer from the latents. */
void distil_decode(backend_restoration_trainer *s, int layer);
/* d_seen, and what losses of raw K and V add, to the decoders' gradients and d_latent (gradient NULL: to nothing).
 * Returns what is lost in raw K and V. */
double distil_decode_back(backend_restoration_trainer *s, int layer, float *gradient);

/* --- distil_experts.c ------------------------------------------------------------------------------------------- */

/* tape.h1 -> tape.mixed, the experts' weighted sum. */
void distil_experts(backend_restoration_trainer *s, int layer);
/* d_mixed [N][H]; the gradient of tape.h1 is added to d_h1. */
void distil_experts_back(backend_restoration_trainer *s, int layer, const float *d_mixed, float *d_h1);

/* --- distil_layer.c --------------------------------------------------------------------------------------------- */

void distil_embed(backend_restoration_trainer *s);
/* `out` [N][H] from the layer's input. */
void distil_layer_forward(backend_restoration_trainer *s, int layer, float *out);
/* d_h of the output becomes that of the input, by way of the layer computed again. d_own and d_seen of the layer whose
 * K/V are attended are added to. */
void distil_layer_back(backend_restoration_trainer *s, int layer);

/* --- distil_loss.c ---------------------------------------------------------------------------------------------- */

/* KL of the segment's logits, mean over its rows, from the last layer's output. With `scale`, d_h is set to the
 * gradient times it. */
double distil_head(backend_restoration_trainer *s, const float *h, float scale);
/* Squared error of x [N][H] as a share of the teacher's squares; scale times its gradient is added to d. */
double distil_share(const backend_restoration_trainer *s, const float *x, const float *native, float scale, float *d);
/* The same of a layer's restored K and V: added to d_seen. */
double distil_share_kv(backend_restoration_trainer *s, int layer, float scale);
/* Directions of K and V as attention sees them, for the loss that has them: added to d_seen. */
double distil_directions(backend_restoration_trainer *s, int layer, float scale);
/* Raw K or V [rows][kv_dim], for losses that look at them: added to d_raw. */
double distil_raw(backend_restoration_trainer *s, int layer, int half, float scale, float *d_raw);
/* Layers whose losses the mean is taken over. */
int distil_counted(const backend_restoration_trainer *s);

/* The gradient of norm_values, added to d_v. */
static inline void norm_values_back(const backend_model *m, const float *v, const float *d_out, int head_dim,
                                    float *d_v) {
    if (!m->config->raw_values)
        backward_rms_norm(v, NULL, d_out, head_dim, m->config->rms_eps, d_v);
    else
        for (int i = 0; i < head_dim; i++) d_v[i] += d_out[i];
}

#endif
