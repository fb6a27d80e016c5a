/* f_theta: a low-rank linear map from drafter K/V at a position to the verifier's raw K and V (before k_norm, v_norm
 * and RoPE) of every layer at that position. K and V have separate encoders (shared by all layers) and decoders. */
#ifndef KAKEYA_MODEL_F_THETA_H
#define KAKEYA_MODEL_F_THETA_H

#include "model/dflash.h"

typedef enum f_theta_input {
    F_THETA_DRAFTER_CONTEXT_KV = 0, /* raw k_proj/v_proj outputs of hidden_norm(fc(aux)): "drafter_context_kv" */
    F_THETA_DRAFTER_TOKEN_KV, /* the reference's unconditioned drafter pass over the token embeddings: "drafter_kv" */
} f_theta_input;

typedef struct f_theta_config {
    int drafter_layers, drafter_kv_heads, drafter_head_dim;
    int layers, rank;
    int kv_heads[GEMMA4_MAX_LAYERS], head_dim[GEMMA4_MAX_LAYERS];
    f_theta_input input;
} f_theta_config;

typedef struct f_theta_model {
    f_theta_config config;
    int encoder_in;              /* drafter layers * kv heads * head_dim, layer-major, head-major */
    weight encoder_k, encoder_v; /* [rank][encoder_in] */
    weight decoder_k[GEMMA4_MAX_LAYERS], decoder_v[GEMMA4_MAX_LAYERS]; /* [kv_heads * head_dim][rank] */
    struct checkpoint *checkpoint;                                     /* NULL for synthetic weights */
    void **owned;                                                      /* MEM_WEIGHTS blocks */
    size_t n_owned;
} f_theta_model;

kakeya_status f_theta_config_parse(const char *name, const char *json, size_t json_bytes, f_theta_config *out,
                                   kakeya_error *error);
/* Reads f_theta_config.json and f_theta_weights.safetensors (or model.safetensors). Refuses one that does not fit the
 * verifier and the drafter, naming both numbers; per-layer shapes are checked. */
kakeya_status f_theta_model_open(const char *directory, const gemma4_config *verifier, const dflash_config *drafter,
                                 mem_account *account, f_theta_model **out, kakeya_error *error);
/* The published shape for a verifier and its drafter; deterministic weights, or with `outline` none in its matrices:
 * for backends that make the values themselves (weight.synthetic). */
kakeya_status f_theta_model_synthesize(const gemma4_config *verifier, const dflash_config *drafter, bool outline,
                                       mem_account *account, f_theta_model **out, kakeya_error *error);
void f_theta_model_close(f_theta_model *model);

#endif
