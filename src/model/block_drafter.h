/* DFlash block drafter: configuration and weight binding (the published config keys, a strict tensor set).
 * Formulas: the DFlash authors' reference model. It has no embedding and no head of its own; both are the verifier's.
 */
#ifndef KAKEYA_MODEL_BLOCK_DRAFTER_H
#define KAKEYA_MODEL_BLOCK_DRAFTER_H

#include "model/language_model.h"

enum { BLOCK_DRAFTER_MAX_LAYERS = 16, BLOCK_DRAFTER_MAX_TARGETS = 16 };

typedef struct block_drafter_config {
    int layers, hidden, heads, kv_heads, head_dim, intermediate, vocab;
    float rms_eps, rope_theta, logit_softcap; /* softcap 0: none */
    int block_size;                           /* bonus token + masks that the drafter was trained with */
    int mask_token;
    int targets;                                  /* number of aux hidden states */
    int target_layer[BLOCK_DRAFTER_MAX_TARGETS];  /* outputs of these verifier layers, counted from 0 */
    int target_layers_total;                      /* num_target_layers: the verifier's layer count; 0: not stated */
    int sliding_window[BLOCK_DRAFTER_MAX_LAYERS]; /* 0: full context */
} block_drafter_config;

typedef struct block_drafter_layer_weights {
    const float *input_norm, *post_attention_norm; /* [hidden] */
    const float *q_norm, *k_norm;                  /* [head_dim] */
    weight q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj;
} block_drafter_layer_weights;

typedef struct block_drafter_model {
    block_drafter_config config;
    weight fc;                /* [hidden][targets * verifier hidden] */
    const float *hidden_norm; /* [hidden] */
    const float *norm;        /* [hidden] */
    block_drafter_layer_weights layer[BLOCK_DRAFTER_MAX_LAYERS];
    struct checkpoint *checkpoint; /* of a directory */
    struct gguf *file;             /* of a GGUF file */
    bool scaled_embedding;         /* the file says that embeddings are multiplied by sqrt(hidden) */
    void **owned;
    size_t n_owned;
    size_t mapped_bytes; /* bytes of mapped tensors that are bound */
} block_drafter_model;

kakeya_status block_drafter_config_parse(const char *name, const char *json, size_t json_bytes,
                                         block_drafter_config *out, kakeya_error *error);
/* Refuses a drafter that does not fit the verifier (hidden size, vocabulary, target layers), naming both numbers. */
kakeya_status block_drafter_config_fits(const char *name, const block_drafter_config *c, const model_config *verifier,
                                        kakeya_error *error);
/* A directory or a GGUF file. */
kakeya_status block_drafter_model_open(const char *path, const model_config *verifier, mem_account *account,
                                       block_drafter_model **out, kakeya_error *error);
/* The published drafter's shape for a synthetic verifier; deterministic weights. */
kakeya_status block_drafter_model_synthesize(const model_config *verifier, mem_account *account,
                                             block_drafter_model **out, kakeya_error *error);
/* The same without data in its matrices: for backends that make the values themselves (weight.synthetic). */
kakeya_status block_drafter_model_outline(const model_config *verifier, mem_account *account, block_drafter_model **out,
                                          kakeya_error *error);
/* The shape of a drafter that is trained from nothing: the published one, or for smaller verifiers heads like theirs.
 * `targets`: hidden states that it reads, 0: as many as published ones. The drafter fits the verifier. */
void block_drafter_config_fit(const model_config *verifier, int layers, int block, int targets,
                              block_drafter_config *out);
/* No matrix is quantised. */
bool block_drafter_is_plain(const block_drafter_model *model);
void block_drafter_model_close(block_drafter_model *model);

#endif
