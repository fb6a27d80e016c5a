/* The trainer of MTP assistants (backend/backend_train.h): chains of passes from many places of sequences, exact
 * float32, every value that the way back needs kept, and that way. A pass is that of backend/program/assistant.c.
 *
 *   chains.c            memory, weights, the order of a sequence    chains_head.c       what the drafts cost
 *   chains_layer.c      a pass, there and back                      chains_attention.c  its attention
 *
 * Shapes: N chains of all sequences that learn at once, D passes of each, R = D N rows, pass by pass; T positions of
 * the longest sequence, h hidden of the assistant, H of the verifier. Tokens come from the sequences, so all that a
 * pass needs of the one before is its state. */
#ifndef KAKEYA_BACKEND_CPU_CHAINS_H
#define KAKEYA_BACKEND_CPU_CHAINS_H

#include "backend/backend_train.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/train_rows.h"
#include "model/assistant_values.h"

typedef struct chain_layer {
    float *x, *x2;            /* [R][h] after the norms before attention and before the MLP */
    float *q_raw, *q;         /* [R][q] before and after norm and RoPE */
    float *shares;            /* [D][heads][N][T] attention weights */
    float *o;                 /* [R][q] */
    float *attended, *middle; /* [R][h] o_proj of that; the residual stream behind its norm */
    float *gate_up, *act;     /* [R][2 * intermediate], [R][intermediate] */
    float *fed, *sum;         /* [R][h] down_proj of that; the stream that layer_scalar multiplies */
    /* gradients of what products gave */
    float *d_q, *d_attended, *d_gate_up, *d_fed;
} chain_layer;

/* What all passes attend of one type of layers, of a sequence [kv_heads][T][d] and [kv_heads][d][T] with its own T. */
typedef struct chain_kv {
    float *keys, *keys_t, *values, *values_t;
} chain_kv;

typedef struct chain_trainer {
    backend_model *m;
    assistant_config c;
    drafter_trainer_options o;
    assistant_seen seen;
    assistant_values w, gradient; /* the latter bound during a call that wants one */
    /* transposed, [in][out] */
    struct {
        weight state, post, head, centroids; /* the state's half of pre_projection */
        struct {
            weight q, o, gate, up, down;
        } layer[ASSISTANT_MAX_LAYERS];
    } turned;
    weight verifiers_head; /* float32, of options.distribution */
    float *memory;
    train_products products;
    void *thread_packed[THREAD_POOL_MAX];

    /* the sequences */
    const drafter_trainer_sequence *sequences;
    int n_sequences;
    int chains, passes, positions; /* N, D, T */
    int *first, *sequence;         /* [N]: where a chain begins, and of which sequence */
    int *begin, *seen_positions;   /* [n + 1], [n]: a sequence's first chain, and its T */
    int *scored, n_scored;         /* rows that have a target */
    float scale;

    chain_kv kv[2];         /* by layer_type */
    float *pair;            /* [R][2H] */
    float *stream;          /* [layers + 1][R][h]: inputs of layers, and the output of the last one */
    float *normed;          /* [R][h] behind the final norm */
    float *logits, *picked; /* [CHAIN_HEAD_ROWS][vocab], [CHAIN_HEAD_ROWS][h] */
    float *taught, *states; /* the verifier's, [CHAIN_HEAD_ROWS][vocab] and [H]; of options.distribution */
    float *clusters;        /* [CHAIN_HEAD_ROWS][clusters], where there are any */
    double *loss;           /* [R] */
    bool *right;            /* [R] */
    float *d_normed, *d_h0; /* [R][h] */
    float *d_state;         /* [R][H] of what passes gave */
    float *d_stream, *d_x;  /* [N][h] */
    float *d_act, *d_o;     /* [N][intermediate], [N][q] */
    float *d_shares;        /* [heads][N][T] */
    chain_layer layer[ASSISTANT_MAX_LAYERS];
} chain_trainer;

enum { CHAIN_HEAD_ROWS = 128, CHAIN_CHUNK = 32 /* rows of a piece of attention */ };

static inline int chain_q(const chain_trainer *l, int layer) {
    return l->c.stack.heads * l->c.stack.layer[layer].head_dim;
}
/* The first row of a pass. */
static inline size_t chain_row(const chain_trainer *l, int pass) { return (size_t)pass * (size_t)l->chains; }

/* --- chains_attention.c: K and V of the sequences; from q to o; from d_o to d_q, which is set. */
void chain_gather(chain_trainer *l);
void chain_attend(chain_trainer *l, int pass, int layer);
void chain_attend_back(chain_trainer *l, int pass, int layer);

/* The position of the token that a row is to give. */
static inline int chain_position(const chain_trainer *l, int row) {
    return l->first[row % l->chains] + row / l->chains + 1;
}
static inline const drafter_trainer_sequence *chain_sequence(const chain_trainer *l, int row) {
    return &l->sequences[l->sequence[row % l->chains]];
}

/* --- chains_head.c: what the drafts cost; with `backward` d_normed, and the head's gradient. */
void chain_score(chain_trainer *l, bool backward);

/* --- chains_layer.c: a pass from its pair to its state; from d_normed (and d_state of its own, but in the last pass)
 * to d_state of the pass before. Gradients of norms and scalars are added, those of matrices wait for chain_sums. */
void chain_pass(chain_trainer *l, int pass);
void chain_pass_back(chain_trainer *l, int pass);
void chain_sums(chain_trainer *l);

size_t chain_trainer_bytes(backend_model *m, const drafter_trainer_options *options);
kakeya_status chain_trainer_create(backend_model *m, const drafter_trainer_options *options, chain_trainer **out,
                                   kakeya_error *error);
void chain_trainer_destroy(chain_trainer *l); /* NULL is fine */
void chain_trainer_weights(chain_trainer *l, const float *weights);
void chain_trainer_learn(chain_trainer *l, const drafter_trainer_sequence *sequences, int n, float scale,
                         float *gradient);

#endif
