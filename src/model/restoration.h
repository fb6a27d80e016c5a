/* f_theta: a low-rank linear map from what is known of a position (drafter K/V, or aux hidden states) to the verifier's
 * raw K and V (before k_norm, v_norm and RoPE) of every layer at that position. Encoders are shared by all layers; what
 * they give is the position's latents, of K and of V, or one for both. Each layer has decoders of its own. */
#ifndef KAKEYA_MODEL_RESTORATION_H
#define KAKEYA_MODEL_RESTORATION_H

#include "model/block_drafter.h"

typedef enum restoration_input {
    RESTORATION_DRAFTER_CONTEXT_KV = 0, /* raw k_proj/v_proj outputs of hidden_norm(fc(aux)): "drafter_context_kv" */
    RESTORATION_DRAFTER_TOKEN_KV, /* the reference's unconditioned drafter pass over the token embeddings: "drafter_kv"
                                   */
    RESTORATION_AUX_HIDDEN, /* outputs of some verifier layers, each divided by its rms: "aux_hidden"; needs no drafter
                             */
} restoration_input;

/* How a session keeps latents: "latent_format". */
typedef enum restoration_latents {
    RESTORATION_LATENTS_KV = 0, /* as its K/V: "kv" */
    RESTORATION_LATENTS_BF16,   /* "bf16" */
    RESTORATION_LATENTS_Q8,     /* 8 bits a value, one scale for each latent: "q8" */
    RESTORATION_LATENTS_Q4,     /* 4 bits a value, one scale for 32 values: "q4" */
    RESTORATION_LATENTS_COUNT
} restoration_latents;

typedef struct restoration_config {
    int drafter_layers, drafter_kv_heads, drafter_head_dim; /* 0 where a drafter is not read */
    int hidden, aux_layers;                                 /* of the verifier, and how many of its layers are read */
    int aux_layer[MODEL_MAX_LAYERS];                        /* outputs of these layers, counted from 0, ascending */
    int layers;
    int rank;           /* the larger of the two */
    int rank_k, rank_v; /* values of a position's latents */
    bool shared_latent; /* keys and values are decoded from one latent; rank_k and rank_v are equal */
    int kv_heads[MODEL_MAX_LAYERS], head_dim[MODEL_MAX_LAYERS];
    restoration_input input;
    restoration_latents latents;
} restoration_config;

/* Values that an encoder reads: drafter layers * kv heads * head_dim (layer-major, head-major), or tapped layers *
 * hidden. */
int restoration_encoder_in(const restoration_config *config);
bool restoration_needs_drafter(const restoration_config *config);
/* "drafter_context_kv", ...; "kv", "bf16", ... */
const char *restoration_input_name(restoration_input input);
const char *restoration_latents_name(restoration_latents latents);
/* The layers that an f_theta for this verifier reads unless told otherwise, evenly spaced as DFlash spaces its own. `n`
 * (1 or more) is cut to what the verifier has; how many there are is returned. */
int restoration_default_taps(const model_config *verifier, int n, int out[MODEL_MAX_LAYERS]);
/* Sets rank, rank_k, rank_v, and the layers' shapes from the verifier. */
void restoration_config_fit(restoration_config *config, const model_config *verifier, int rank_k, int rank_v,
                            bool shared);

typedef struct restoration_model {
    restoration_config config;
    int encoder_in;
    weight encoder_k, encoder_v; /* [rank_k], [rank_v][encoder_in]; a shared latent has encoder_k alone */
    weight decoder_k[MODEL_MAX_LAYERS], decoder_v[MODEL_MAX_LAYERS]; /* [kv_heads * head_dim][rank_k], [..][rank_v] */
    struct checkpoint *checkpoint;                                   /* NULL for synthetic weights */
    void **owned;                                                    /* MEM_WEIGHTS blocks */
    size_t n_owned;
    size_t mapped_bytes; /* bytes of mapped tensors that are bound */
    char note[512];      /* where its report.json says that dropping is better than restoring with it: that; else "" */
} restoration_model;

kakeya_status restoration_config_parse(const char *name, const char *json, size_t json_bytes, restoration_config *out,
                                       kakeya_error *error);
/* Reads f_theta_config.json of a directory. */
kakeya_status restoration_config_read(const char *directory, restoration_config *out, kakeya_error *error);
/* Reads f_theta_config.json and f_theta_weights.safetensors (or model.safetensors). Refuses one that does not fit the
 * verifier and the drafter, naming both numbers; per-layer shapes are checked. `drafter` may be NULL: then an f_theta
 * that reads one is refused. */
kakeya_status restoration_model_open(const char *directory, const model_config *verifier,
                                     const block_drafter_config *drafter, mem_account *account, restoration_model **out,
                                     kakeya_error *error);
/* The published shape for a verifier and its drafter, or for a verifier alone (drafter NULL: one shared latent, of
 * rank_k), with these ranks; deterministic weights, or with `outline` none in its matrices: for backends that make the
 * values themselves (weight.synthetic). */
enum { RESTORATION_PUBLISHED_RANK = 256 };
kakeya_status restoration_model_synthesize(const model_config *verifier, const block_drafter_config *drafter,
                                           int rank_k, int rank_v, bool outline, mem_account *account,
                                           restoration_model **out, kakeya_error *error);
/* The same of any configuration, with weights in a plain format. */
kakeya_status restoration_model_synthesize_as(const restoration_config *config, weight_format format, bool outline,
                                              mem_account *account, restoration_model **out, kakeya_error *error);
void restoration_model_close(restoration_model *model);

#endif
