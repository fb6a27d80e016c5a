/* The trainer of drafters (backend/backend_train.h): a drafter's forward over many blocks of one sequence, exact
 * float32, every value that the way back needs kept, and that way. The rooms:
 *
 *   drafter_trainer.c            memory, weights, the order of a sequence
 *   drafter_trainer_layer.c      context, layers, there and back
 *   drafter_trainer_attention.c  blocks over the context and themselves
 *   drafter_trainer_head.c       what the drafts cost
 *   train_rows.h                 norms, heads and gates of rows
 *   train_products.h             products
 *
 * Shapes: N rows of all blocks, B of one, T positions of context, H hidden, C = T + B columns that rows attend. */
#ifndef KAKEYA_BACKEND_CPU_DRAFTER_TRAINER_H
#define KAKEYA_BACKEND_CPU_DRAFTER_TRAINER_H

#include "backend/backend_train.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/train_rows.h"
#include "model/block_drafter_values.h"

typedef struct drafter_trainer_layer {
    float *context[2], *context_raw_k; /* [T][kv]: K and V of the context; K before its norm and RoPE */
    float *input;                      /* [N][H] */
    float *x, *x2;                     /* [N][H] after the norms before attention and before the MLP */
    float *q_raw, *q;                  /* [N][q] before and after norm, RoPE and scale */
    float *own[2], *own_raw_k;         /* [N][kv] of the blocks' rows */
    float *shares;                     /* [heads][N][C] attention weights */
    float *o;                          /* [N][q] */
    float *middle;                     /* [N][H] the residual stream behind attention */
    float *gate_up, *act;              /* [N][2 * intermediate], [N][intermediate] */
} drafter_trainer_layer;

struct backend_drafter_trainer {
    struct chain_trainer *chains; /* of an assistant, which then is all that there is; else NULL */
    backend_model *m;
    drafter_trainer_options o;
    block_drafter_config c;
    block_drafter_model w, turned; /* the weights; its matrices transposed, [in][out] */
    block_drafter_model gradient;  /* bound during a call that wants one */
    bool backward;
    weight head, head_t; /* float32: [vocab][H] and [H][vocab] */
    rope_table rope;
    float *memory;
    drafter_trainer_layer layer[BLOCK_DRAFTER_MAX_LAYERS];

    /* the sequence */
    const int32_t *tokens;
    const float *aux;
    const int *first;
    int length, blocks, rows, context_rows; /* tokens, blocks, N, T */
    int *position, *scored;                 /* [N]; rows that have a target, n_scored */
    int n_scored;
    float scale;
    float *fused, *context, *d_context; /* [T][H]: fc's output, that behind its norm */

    /* rows */
    float *last, *final_x, *picked,
        *logits; /* [N][H]; [N][H]; [N][H] scored rows; [DRAFTER_TRAINER_HEAD_ROWS][vocab] */
    float *branch, *d_h, *d_x, *d_q, *d_o, *d_act, *d_gate_up; /* [N] */
    float *d_own[2];                                           /* [N][kv] */
    float *d_columns[2];                                       /* [T][kv] gradients of the context's K and V */
    /* attention, a K/V head's [kv_heads]: [T][d] and [d][T]; a head's [heads]: [N][C], [T][d], [d][N] */
    float *keys, *keys_t, *values, *values_t;
    float *d_shares, *d_key, *d_value, *q_t, *d_o_t;
    float *sink; /* [N or T][H] a gradient that is not wanted */
    train_products products;
    float *thread[THREAD_POOL_MAX]; /* turned columns */
    void *thread_packed[THREAD_POOL_MAX];
};

enum { DRAFTER_TRAINER_HEAD_ROWS = 128, DRAFTER_TRAINER_CHUNK = 32 /* rows or columns of a piece of attention */ };

static inline size_t drafter_trainer_kv(const block_drafter_config *c) { return (size_t)(c->kv_heads * c->head_dim); }
static inline size_t drafter_trainer_q(const block_drafter_config *c) { return (size_t)(c->heads * c->head_dim); }

/* --- drafter_trainer_attention.c: from q, own and context to o; from d_o to d_q, d_own and d_columns, which are set.
 */
void drafter_trainer_attend(backend_drafter_trainer *l, int layer);
void drafter_trainer_attend_back(backend_drafter_trainer *l, int layer);
size_t drafter_trainer_attention_packed(const backend_drafter_trainer *l); /* floats of a thread's packed input */

/* --- drafter_trainer_layer.c */
void drafter_trainer_embed(backend_drafter_trainer *l);
void drafter_trainer_context(backend_drafter_trainer *l);
void drafter_trainer_context_back(backend_drafter_trainer *l);
void drafter_trainer_forward(backend_drafter_trainer *l, int layer, float *out);
void drafter_trainer_back(backend_drafter_trainer *l, int layer); /* d_h: of the layer's output, then of its input */
/* Norms of rows of H values. */
static inline train_norms drafter_trainer_norms(const backend_drafter_trainer *l, int rows) {
    return (train_norms){l->m, rows, l->c.hidden, l->c.rms_eps};
}

/* --- drafter_trainer_head.c: what the drafts cost; with `backward` d_h of the last layer's output. */
void drafter_trainer_score(backend_drafter_trainer *l, drafter_trainer_result *out);

/* --- the verbs */
size_t cpu_drafter_trainer_bytes(backend_model *m, const drafter_trainer_options *options);
kakeya_status cpu_drafter_trainer_create(backend_model *m, const drafter_trainer_options *options,
                                         backend_drafter_trainer **out, kakeya_error *error);
void cpu_drafter_trainer_destroy(backend_drafter_trainer *l);
void cpu_drafter_trainer_weights(backend_drafter_trainer *l, const float *weights);
kakeya_status cpu_drafter_trainer_learn(backend_drafter_trainer *l, const drafter_trainer_sequence *sequences, int n,
                                        float scale, float *gradient, kakeya_error *error);

#endif
