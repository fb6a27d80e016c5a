/* The closed form of f_theta: the best low-rank linear map from what is known of a position to the K and V of all
 * layers, in the metric of what attention sees.
 *
 *   x        [rms(aux_1) ... rms(aux_n)], or the drafter's context (hidden_norm of fc of them): n values
 *   y        rms(raw K) of every head of every layer, then rms(raw V): what attention uses of them (k_norm and v_norm
 *            divide by the rms, so that scale must not count; where values pass no norm, raw V)
 *   M        block diagonal, a block per layer and K/V head: for a small error e of y at an evicted position, e' M e is
 *            the mean change of what the layer's attention adds to the residual stream, squared, as a share of that
 *            (sums over positions t, evicted positions p and query heads a of the K/V head's group):
 *              values   P^2 / r(t) G_a, G_a = W_a' W_a, W_a = diag(post-attention norm) o_proj[:, a]
 *              keys     P^2 / r(t) (v(p) - o_a(t))' G_a (v(p) - o_a(t)) g g', g = k_norm * (R_p' q_a(t))
 *            P: attention weight; r(t): mean square of o_proj's output; o_a: what head a gets; R_p: rotation of p.
 *
 * With C = E[x x'], B = L^-1 E[x y'], L L' = C: the latents are e = P' L^-1 x, where P are the eigenvectors of B M B'
 * of the largest eigenvalues, and the decoders D = (P' B)'. B M B' is not made from B, which is larger: it is
 * L^-1 (sum over heads of E[x y'] M E[y x']) L^-T. Latents are ordered: those of a smaller rank are the first
 * ones of a larger, and so are the decoders' columns.
 *
 * Two matters are chosen (closed_form_form): what is added to C so that it has an inverse, and how much layers count
 * beside each other. On text that was not trained on, neither choice is the better one for all models.
 *
 * An encoder that does not read x but W x (the drafter's K or V of its context) has W C W' and E[W x y'] in their
 * places: sums over x do for both. */
#ifndef KAKEYA_TRAIN_CLOSED_FORM_H
#define KAKEYA_TRAIN_CLOSED_FORM_H

#include "backend/backend_train.h"
#include "base/error.h"
#include "base/threads.h"
#include "model/restoration.h"

/* Sums over text. All of them lie in one array, so that they can be saved and go on. */
typedef struct closed_form_sums {
    const model_config *verifier;
    int inputs;                   /* n */
    int keys, targets;            /* values of y: those of keys, all */
    int target[MODEL_MAX_LAYERS]; /* where a layer's keys begin in y, its values `keys` behind; -1: it has none */
    double *all;
    size_t n_all;
    double *tokens;                     /* [1] of the statistics */
    double *xx;                         /* [n][n] */
    double *yx;                         /* [targets][n] */
    double *size;                       /* [targets]: of a head's first value the sum of the rms of its raw rows; of
                                           the second that of their mean squares where y is raw, else 0 */
    double *metric_k[MODEL_MAX_LAYERS]; /* [kv_heads][head_dim][head_dim] of what this layer's queries see */
    double *metric_v[MODEL_MAX_LAYERS]; /* [heads]: the sums in front of G_a */
    double *added[MODEL_MAX_LAYERS];    /* [2]: sum of |what attention adds|^2, rows */
} closed_form_sums;

kakeya_status closed_form_sums_create(const model_config *verifier, int inputs, closed_form_sums *out,
                                      kakeya_error *error);
void closed_form_sums_destroy(closed_form_sums *s); /* also of a zeroed one */

/* Weights of an f_theta, float32, and the units in which they are best changed: root mean squares over the text of the
 * closed form, as if inputs and values had unit variance. NULL where nobody has measured them. */
typedef struct closed_form_weights {
    float *encoder[2]; /* [rank_k], [rank_v][restoration_encoder_in]; a shared latent has the first alone */
    float *decoder[2][MODEL_MAX_LAYERS]; /* [kv_heads * head_dim][rank_k], [..][rank_v] */
    float *input_size;                   /* [restoration_encoder_in] */
    float *value_size;                   /* [layers] of raw V; 1 where values pass a norm */
} closed_form_weights;

typedef enum closed_form_solver {
    CLOSED_FORM_AUTO,    /* dense, where it takes no more than minutes */
    CLOSED_FORM_DENSE,   /* all eigenvectors */
    CLOSED_FORM_SUBSPACE /* the largest ones alone, by iteration: ranks of one solution are prefixes of each other still
                          */
} closed_form_solver;

/* All zero: a share of the mean input is added to each, and layers count as the metric has them. */
typedef struct closed_form_form {
    bool by_input; /* a share of its own square is added to each input, as if all had unit variance: a few large ones do
                      not drown the rest */
    double temper; /* above 0: what a layer's keys, or values, count as a whole is raised to this power, so that none
                      of them takes the rank of all others */
} closed_form_form;

typedef struct closed_form_problem {
    const closed_form_sums *sums;
    const restoration_config *config;
    closed_form_form form;
    float *const *gram;  /* [layer]: [heads][head_dim][head_dim], the layer's G_a */
    const float *map[2]; /* W of keys and of values, [what an encoder reads][inputs]; NULL: encoders read x */
    thread_pool *pool;   /* changes no bit */
    closed_form_solver solver;
    /* Or NULL: xx and yx, and the matrix that is solved, are on a device (backend/backend_train.h). Of the sums here xx
     * has been read, yx has not. Encoders read x. */
    const backend_train_ops *ops;
    backend_statistics *statistics;
} closed_form_problem;

/* Weights of the shape of the configuration. KAKEYA_INVALID_ARGUMENT: too few tokens for so many inputs, or a rank
 * above them; KAKEYA_FORMAT: sums that are no numbers. */
kakeya_status closed_form_solve(const closed_form_problem *problem, closed_form_weights *out, kakeya_error *error);
/* Zeros of the shape of a configuration, without sizes. False when out of memory. */
bool closed_form_weights_create(const restoration_config *config, closed_form_weights *out);
/* Memory for its sizes, zeros. False when out of memory. */
bool closed_form_weights_create_sizes(const restoration_config *config, closed_form_weights *out);
void closed_form_weights_free(closed_form_weights *w);

#endif
