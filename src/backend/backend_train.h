/* What training asks of a backend beside inference: forwards whose inner values can be seen, sums of outer products,
 * a trainer of f_theta, whose student learns to decode from restored K/V, and a trainer of drafters. A third table
 * beside backend_ops and backend_measure_ops, whose objects it shares; nothing that serves a user calls it. */
#ifndef KAKEYA_BACKEND_BACKEND_TRAIN_H
#define KAKEYA_BACKEND_BACKEND_TRAIN_H

#include "backend/backend.h"

/* One layer of a forward, float32, valid during the call. Rows are those of the forward. */
typedef struct train_layer {
    int layer, rows, position;  /* of the first row */
    const float *raw_k, *raw_v; /* [rows][kv_heads * head_dim] k_proj and v_proj before any norm (one matrix where K =
                                   V); NULL in layers that attend an earlier layer's */
    const float *q;             /* [rows][heads * head_dim] queries after q_norm and RoPE */
    const float *o;             /* [rows][heads * head_dim] what attention gives each head */
    const float *out;           /* [rows][hidden] o_proj of that, before its norm */
    const float *h;             /* [rows][hidden] the layer's output */
    const float *cosine, *sine; /* [position][pairs] of the layer's RoPE, from position 0 on */
    int half, pairs;
} train_layer;

typedef void (*train_tap_fn)(void *user, const train_layer *layer);

/* --- distillation ---------------------------------------------------------------------------------------------------
 *
 * The teacher is the model's native forward of a sequence. The student decodes some of its rows again, with the K/V of
 * evicted positions restored by an f_theta in training (docs/design/restoration.md, "The rule"):
 *
 *     keys of a row at t:  [exact K/V of the teacher, constants | restored K/V | K/V of the student's own rows]
 *
 * Latents come from the teacher's states. Only f_theta's weights have gradients. */

typedef enum restoration_loss {
    RESTORATION_LOSS_DISTIL = 0,  /* of what the student's forward gives: see restoration_trainer_options.kl ... */
    RESTORATION_LOSS_MSE,         /* K and V as they are: squared error */
    RESTORATION_LOSS_COS_MAG,     /* directions and magnitudes of K and V */
    RESTORATION_LOSS_COMBINED,    /* both */
    RESTORATION_LOSS_ATTN_DISTIL, /* what attention gives each layer by itself, all its K/V restored: squared error */
    RESTORATION_LOSS_ATTN_DISTIL_HYBRID, /* the same, and directions and magnitudes of K and V */
    RESTORATION_LOSSES
} restoration_loss;

typedef struct restoration_trainer_options {
    const restoration_config *restoration; /* input aux_hidden, or drafter_context_kv of the model's drafter */
    int sequence;                          /* tokens of a sequence, at most */
    int rows;                              /* of a segment */
    int sequences,
        segments; /* that learn at once, and segments of one of them, at most: restoration_trainer_learn_many */
    int sink, window;
    int terms; /* bf16 numbers that rows become on their way through the model's matrices, which then are bf16: one is
                  what sessions compute with. 0: as exact as float32, which f_theta's own products always are */
    bool spares_memory; /* layers are computed again on the way back, not kept: of a backend that chooses by the room */
    restoration_loss loss;
    /* Of RESTORATION_LOSS_DISTIL, the weights of its parts: KL of the logits from the teacher's, mean over rows; the
     * squared error of layer outputs and of what attention adds, as shares of the teacher's squares, means over layers;
     * and the same of restored K and V after their norms and RoPE (full-attention layers count 0.3). */
    float kl, hidden, attention, kv;
    float lambda[4]; /* of RESTORATION_LOSS_ATTN_DISTIL_HYBRID: directions of K and of V, magnitudes of K and of V */
} restoration_trainer_options;

typedef struct restoration_trainer_segment {
    int first;       /* row: sink or more, first + rows <= the sequence's length */
    bool all_layers; /* full-attention layers are restored, too */
    bool prompt;     /* the rows are a later turn's prompt: what its first row finds evicted is evicted for all */
    float scale;     /* of the gradient */
} restoration_trainer_segment;

typedef struct restoration_trainer_result {
    double loss, kl, hidden, attention, kv; /* the parts without their weights; of other losses `loss` alone */
} restoration_trainer_result;

/* A sequence and its segments, whose scales are the same in all sequences of a call. */
typedef struct restoration_trainer_sequence {
    const int32_t *tokens;
    int n;
    const restoration_trainer_segment *segments;
    restoration_trainer_result *results; /* out: [n_segments] */
    int n_segments;
} restoration_trainer_sequence;

typedef struct backend_restoration_trainer backend_restoration_trainer;

/* What a step's time goes to. */
typedef enum restoration_trainer_part {
    RESTORATION_PART_TEACHER,  /* its forward of whole sequences */
    RESTORATION_PART_RESTORED, /* latents, and K and V from them */
    RESTORATION_PART_FORWARD,  /* the student's layers */
    RESTORATION_PART_HEAD,     /* logits of both, KL, and back to the last layer */
    RESTORATION_PART_BACK,     /* the student's layers again, and back through them */
    RESTORATION_PART_GRADIENT, /* from restored K and V to f_theta's weights */
    RESTORATION_PARTS
} restoration_trainer_part;

/* --- drafters -------------------------------------------------------------------------------------------------------
 *
 * A DFlash drafter (model/block_drafter.h) learns to draft what the verifier has said. A block begins with a token of
 * the sequence, whose position follows those that the drafter has hidden states of; its other rows are masks, and each
 * is to give the token that stood there. Embedding and head are the verifier's and stay as they are.
 *
 * An MTP assistant (model/assistant.h) learns in chains: a block begins with a token of the sequence and the state of
 * the position before it, each pass is to give the token that comes next, and the pass after it gets that token from
 * the sequence and the state from the pass. Gradients go back through the whole chain; the verifier has none. */

enum { DRAFTER_TRAINER_MAX_BLOCK = 32 /* rows */ };

typedef struct drafter_trainer_options {
    const block_drafter_config *drafter; /* fits the verifier */
    const assistant_config *assistant;   /* or NULL: what learns instead of the drafter; fits the verifier */
    const int32_t *token_of;             /* of an assistant with clusters: [vocab], the tokens cluster by cluster. The
                                            head's rows are in the order of tokens nevertheless. Centroids learn to find
                                            the clusters that hold the probability */
    int chain;                           /* of an assistant: tokens of a block, the first and its drafts; the maximum is
                                            DRAFTER_TRAINER_MAX_BLOCK */
    bool distribution;  /* of an assistant: drafts are to have the verifier's probabilities (KL from them is the loss),
                           not the sequence's tokens (cross entropy) */
    int sequence;       /* tokens, at most */
    int blocks;         /* of a sequence, at most */
    int sequences;      /* that learn at once where a backend can do so, at most; 0: one */
    double decay;       /* the i-th draft counts exp(-(i - 1) / decay); 0: all the same */
    bool inside_layers; /* weights of layers have a gradient, too: not fc and the norms outside alone */
    bool scaled_embedding, block_bidirectional; /* as in backend_model_options */
} drafter_trainer_options;

/* Sums over the blocks that were learned from. */
typedef struct drafter_trainer_result {
    double loss, counted; /* of the drafts: cross entropy times what each counts, and what they count together */
    int blocks;           /* whose drafts have all been said */
    double held;          /* of these blocks: drafts before the first that is wrong */
    int drafts[DRAFTER_TRAINER_MAX_BLOCK], right[DRAFTER_TRAINER_MAX_BLOCK]; /* by place, 0: the first draft */
} drafter_trainer_result;

/* A sequence of n tokens, and where its blocks begin: each first token has one behind it. */
typedef struct drafter_trainer_sequence {
    const int32_t *tokens;
    const float *aux; /* [n][targets * hidden]: the verifier's hidden states that the drafter reads; of an assistant
                         [n][width], as assistant_seen says */
    const int *first; /* [blocks], ascending; of an assistant 1 or more */
    int n, blocks;
    drafter_trainer_result *result; /* out */
} drafter_trainer_sequence;

typedef struct backend_drafter_trainer backend_drafter_trainer;

/* --- sums of the closed form on a device ----------------------------------------------------------------------------
 *
 * train/closed_form.h says what is summed. Sums and the matrix that is solved stay where they are made: for a large
 * model they are tens of gigabytes. */

enum { STATISTICS_MAX_OFFSETS = 32 };

/* The sums are float64 numbers in one array, in which each of them has a place. */
typedef struct statistics_options {
    const int *tap; /* [taps]: layers whose outputs, each divided by its rms, are x side by side; ascending */
    int taps;
    bool context;              /* x is what the drafter makes of them undivided: hidden_norm(fc(taps)) */
    int inputs, targets, keys; /* values of x, of y, of y's keys */
    const int *target;         /* [layers]: where a layer's keys begin in y; -1: it has none */
    size_t n, xx, yx, size;    /* of the array; where sums begin in it ... */
    size_t metric_k[MODEL_MAX_LAYERS], metric_v[MODEL_MAX_LAYERS], added[MODEL_MAX_LAYERS];
    float *const *gram; /* [layers]: [heads][head_dim][head_dim] */
    int sequence;       /* tokens, at most */
    int sink;
    int offset[STATISTICS_MAX_OFFSETS], offsets; /* how far behind a row the positions are that the metric looks at */
    float negligible;                            /* attention weights below count as 0 */
} statistics_options;

typedef struct backend_statistics backend_statistics;

typedef struct backend_train_ops {
    /* A forward of n prompt rows behind the cache's committed ones, which are committed. `tap` is called once for
     * each layer, in order. Failures as for backend_ops.forward. */
    kakeya_status (*forward)(backend_model *m, backend_cache *cache, const int32_t *tokens, int n, train_tap_fn tap,
                             void *user, kakeya_error *error);
    /* out [nb][na] = sum over rows of b[row * ldb + i] * a[row][j], float32, in an order that depends on `rows` alone
     * (mlx: on all sizes); rows is at most model_prompt_chunk. */
    kakeya_status (*outer)(backend_model *m, const float *a, int na, const float *b, size_t ldb, int nb, int rows,
                           float *out, kakeya_error *error);
    /* In place of `outer`, for backends that keep sums on a device. */
    kakeya_status (*statistics_create)(backend_model *m, const statistics_options *options, backend_statistics **out,
                                       kakeya_error *error);
    void (*statistics_destroy)(backend_statistics *s); /* NULL is fine */
    /* A forward of n prompt rows behind the cache's committed ones, which are committed, into the sums; into those of
     * the metric where it is asked for, which then has seen all rows of the cache. */
    kakeya_status (*statistics_add)(backend_statistics *s, backend_cache *cache, const int32_t *tokens, int n,
                                    bool metric, kakeya_error *error);
    /* Numbers [first, first + n) of the sums. */
    kakeya_status (*statistics_read)(backend_statistics *s, size_t first, size_t n, double *out, kakeya_error *error);
    kakeya_status (*statistics_write)(backend_statistics *s, size_t first, size_t n, const double *from,
                                      kakeya_error *error);
    /* The matrix: scale * sum over heads of y' M y, for values [first, first + count) of y and their blocks of the
     * metric. */
    kakeya_status (*statistics_seen)(backend_statistics *s, int first, int count, const double *metric, double scale,
                                     kakeya_error *error);
    /* c [inputs][inputs] becomes its lower factor L (zeros above), the matrix L^-1 matrix L^-T. */
    kakeya_status (*statistics_whiten)(backend_statistics *s, double *c, kakeya_error *error);
    /* out [rows][inputs] = x times the matrix. */
    kakeya_status (*statistics_apply)(backend_statistics *s, const double *x, int rows, double *out,
                                      kakeya_error *error);
    /* y [rows][count] = x [rows][inputs] times yx' of these values of y. */
    kakeya_status (*statistics_targets)(backend_statistics *s, int first, int count, const double *x, int rows,
                                        double *y, kakeya_error *error);
    bool chooses; /* forward fills backend_segment.hidden_states by chosen_layers */
    /* Memory of the host that a device copies from and to fast; NULL: any will do. */
    void *(*host_memory)(size_t bytes);
    void (*free_host_memory)(void *memory); /* NULL is fine */
    /* A row of a matrix of the model as float32. */
    void (*weight_row)(const backend_model *m, const weight *w, int row, float *out);

    /* Bytes that an f_theta trainer takes, and the trainer itself. */
    size_t (*restoration_trainer_bytes)(backend_model *m, const restoration_trainer_options *options);
    kakeya_status (*restoration_trainer_create)(backend_model *m, const restoration_trainer_options *options,
                                                backend_restoration_trainer **out, kakeya_error *error);
    void (*restoration_trainer_destroy)(backend_restoration_trainer *s); /* NULL is fine */
    /* The weights of f_theta from here on (backend/restoration_layout.h), which the caller keeps. */
    void (*restoration_trainer_weights)(backend_restoration_trainer *s, const float *weights);
    /* The teacher's forward of a sequence, over an empty native cache. */
    kakeya_status (*restoration_trainer_teach)(backend_restoration_trainer *s, backend_cache *cache,
                                               const int32_t *tokens, int n, kakeya_error *error);
    /* A segment of that sequence: what is lost in it, and, unless gradient is NULL, scale times the gradient of the
     * loss added to it, laid out as the weights. The same bits for any number of threads. */
    void (*restoration_trainer_learn)(backend_restoration_trainer *s, const restoration_trainer_segment *segment,
                                      float *gradient, restoration_trainer_result *out);
    /* The same two of many sequences at once, in place of them, for backends that compute only so; the gradient is set,
     * not added to. On failure what it holds is undefined. */
    kakeya_status (*restoration_trainer_learn_many)(backend_restoration_trainer *s,
                                                    const restoration_trainer_sequence *sequences, int n,
                                                    float *gradient, kakeya_error *error);
    /* Seconds of the device since the trainer was created; NULL in a backend that does not measure them. */
    void (*restoration_trainer_seconds)(const backend_restoration_trainer *s, double seconds[RESTORATION_PARTS]);

    bool trains_assistants; /* the trainer takes options with an assistant */
    /* Bytes that a trainer takes, and the trainer itself; NULL in a backend that has none. */
    size_t (*drafter_trainer_bytes)(backend_model *m, const drafter_trainer_options *options);
    kakeya_status (*drafter_trainer_create)(backend_model *m, const drafter_trainer_options *options,
                                            backend_drafter_trainer **out, kakeya_error *error);
    void (*drafter_trainer_destroy)(backend_drafter_trainer *l); /* NULL is fine */
    /* The drafter's weights from here on (model/block_drafter_values.h, assistant_values.h), which the caller keeps. */
    void (*drafter_trainer_weights)(backend_drafter_trainer *l, const float *weights);
    /* Learns from n sequences. Unless gradient is NULL, scale times the gradient of the results' loss is added to it,
     * laid out as the weights; undefined on failure. The same bits for any number of threads. */
    kakeya_status (*drafter_trainer_learn)(backend_drafter_trainer *l, const drafter_trainer_sequence *sequences, int n,
                                           float scale, float *gradient, kakeya_error *error);
} backend_train_ops;

/* NULL for a backend that cannot train. One may lack verbs: `forward` and `outer` together, or all of statistics; all
 * of an f_theta trainer, and of restoration_trainer_teach, restoration_trainer_learn and restoration_trainer_learn_many
 * it has the first two or the third. */
const backend_train_ops *backend_train_find(const backend_ops *ops);

#endif
