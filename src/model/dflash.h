/* DFlash block drafter: configuration and weight binding (the published config keys, a strict tensor set).
 * It has no embedding and no head of its own; both are the verifier's. */
#ifndef KAKEYA_MODEL_DFLASH_H
#define KAKEYA_MODEL_DFLASH_H

#include "model/gemma4.h"

enum { DFLASH_MAX_LAYERS = 16, DFLASH_MAX_TARGETS = 16 };

typedef struct dflash_config {
    int layers, hidden, heads, kv_heads, head_dim, intermediate, vocab;
    float rms_eps, rope_theta, logit_softcap; /* softcap 0: none */
    int block_size;                           /* bonus token + masks that the drafter was trained with */
    int mask_token;
    int targets;                           /* number of aux hidden states */
    int target_layer[DFLASH_MAX_TARGETS];  /* outputs of these verifier layers, counted from 0 */
    int target_layers_total;               /* num_target_layers: the verifier's layer count; 0: not stated */
    int sliding_window[DFLASH_MAX_LAYERS]; /* 0: full context */
} dflash_config;

typedef struct dflash_layer_weights {
    const float *input_norm, *post_attention_norm; /* [hidden] */
    const float *q_norm, *k_norm;                  /* [head_dim] */
    weight q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj;
} dflash_layer_weights;

typedef struct dflash_model {
    dflash_config config;
    weight fc;                /* [hidden][targets * verifier hidden] */
    const float *hidden_norm; /* [hidden] */
    const float *norm;        /* [hidden] */
    dflash_layer_weights layer[DFLASH_MAX_LAYERS];
    struct checkpoint *checkpoint; /* of a directory */
    struct gguf *file;             /* of a GGUF file */
    bool scaled_embedding;         /* the file says that embeddings are multiplied by sqrt(hidden) */
    void **owned;
    size_t n_owned;
    size_t mapped_bytes; /* bytes of mapped tensors that are bound */
} dflash_model;

kakeya_status dflash_config_parse(const char *name, const char *json, size_t json_bytes, dflash_config *out,
                                  kakeya_error *error);
/* Refuses a drafter that does not fit the verifier (hidden size, vocabulary, target layers), naming both numbers. */
kakeya_status dflash_config_fits(const char *name, const dflash_config *c, const gemma4_config *verifier,
                                 kakeya_error *error);
/* A directory or a GGUF file. */
kakeya_status dflash_model_open(const char *path, const gemma4_config *verifier, mem_account *account,
                                dflash_model **out, kakeya_error *error);
/* The published drafter's shape for a synthetic verifier; deterministic weights. */
kakeya_status dflash_model_synthesize(const gemma4_config *verifier, mem_account *account, dflash_model **out,
                                      kakeya_error *error);
/* The same without data in its matrices: for backends that make the values themselves (weight.synthetic). */
kakeya_status dflash_model_outline(const gemma4_config *verifier, mem_account *account, dflash_model **out,
                                   kakeya_error *error);
/* The shape of a drafter that is trained from nothing: the published one, or for smaller verifiers heads like theirs.
 * `targets`: hidden states that it reads, 0: as many as published ones. The drafter fits the verifier. */
void dflash_config_fit(const gemma4_config *verifier, int layers, int block, int targets, dflash_config *out);
/* No matrix is quantised. */
bool dflash_is_plain(const dflash_model *model);
void dflash_model_close(dflash_model *model);

#endif
