/* Gemma 4 and Gemma 3 text models: configuration and weight binding. No arithmetic lives here. A Gemma 3 is described
 * as the Gemma 4 that computes the same: dense layers, without a scalar and without a norm of values, all pairs of full
 * layers turned, and its scale of attention in the weights of q_norm.
 * Source of every rule: the published configuration keys and transformers 5.17 (modeling_gemma4.py,
 * modeling_gemma3.py). */
#ifndef KAKEYA_MODEL_LANGUAGE_MODEL_H
#define KAKEYA_MODEL_LANGUAGE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/alloc.h"
#include "base/error.h"
#include "model/weight.h"

/* Files name at most 16 stop tokens; the ends of turns come to them. */
enum {
    MODEL_MAX_LAYERS = 128,
    GEMMA4_NAMED_STOP_TOKENS = 16,
    MODEL_MAX_STOP_TOKENS = GEMMA4_NAMED_STOP_TOKENS + 4,
    MODEL_MAX_SUPPRESS_TOKENS = 256
};

typedef enum layer_type { LAYER_SLIDING = 0, LAYER_FULL } layer_type;

typedef struct layer_config {
    layer_type type;
    int head_dim;
    int kv_heads;
    bool k_eq_v;      /* no v_proj: V = rms(k_proj x), K = RoPE(k_norm * rms(k_proj x)) */
    int kv_source;    /* layer whose K/V this layer attends: itself, or an earlier one where K/V are shared */
    int intermediate; /* width of the dense MLP */
} layer_config;

typedef struct rope_config {
    float theta;
    int rotated_pairs; /* pairs (j, j + head_dim/2), j < rotated_pairs, turn; the others pass (proportional RoPE) */
    float factor;      /* divides all inverse frequencies */
} rope_config;

typedef enum gemma_generation { GEMMA_4 = 0, GEMMA_3 } gemma_generation;

typedef struct model_config {
    gemma_generation generation;
    int layers;
    int hidden;
    int heads; /* query heads, all layers */
    int vocab;
    int max_context;
    int sliding_window; /* a query sees itself and the sliding_window - 1 positions before it */
    float rms_eps;
    float logit_softcap; /* 0: none */
    bool raw_values;     /* V as it was projected; else it passes a norm without weight */
    float query_scale; /* what scores are multiplied by: q_norm's weights are, once, when they are bound. 0: nothing */
    bool tied_head;
    bool moe;
    int experts, experts_per_token, expert_intermediate;
    int ple_width; /* hidden_size_per_layer_input; 0: no per-layer embeddings */
    int ple_vocab;
    int shared_kv_layers; /* the last n layers attend an earlier layer's K/V */
    rope_config rope[2];  /* by layer_type */
    layer_config layer[MODEL_MAX_LAYERS];
    weight_format checkpoint_format; /* WEIGHT_FORMAT_COUNT after parsing where the file does not say; the embedding's
                                        once opened. Of a GGUF file: the one that holds the most bytes */
    int bos_token, pad_token;        /* -1: none */
    int stop_tokens[MODEL_MAX_STOP_TOKENS];
    int n_stop_tokens;
    int suppress_tokens[MODEL_MAX_SUPPRESS_TOKENS]; /* logits set to -inf before sampling */
    int n_suppress_tokens;
    char variant[32]; /* "26b-a4b", "gemma3-270m", ... where the shape is a known one, else "gemma4" or "gemma3" */
} model_config;

typedef struct layer_weights {
    weight q_proj, k_proj, v_proj, o_proj; /* k/v absent where shared; v absent where k_eq_v */
    const float *q_norm, *k_norm;          /* [head_dim]; all norms are converted to float32 on loading */
    weight gate_proj, up_proj, down_proj;
    const float *input_norm, *post_attention_norm, *pre_ffn_norm, *post_ffn_norm; /* [hidden] */
    const float *post_ffn_norm_1, *pre_ffn_norm_2, *post_ffn_norm_2;              /* [hidden], MoE only */
    weight router_proj;                                                           /* [experts][hidden] */
    const float *router_scale;                                                    /* [hidden] */
    const float *router_expert_scale;                                             /* [experts] */
    weight experts_gate_up; /* [experts * 2 * expert_intermediate][hidden]: per expert gate rows, then up rows */
    weight experts_gate, experts_up; /* where a file holds them apart: [experts * expert_intermediate][hidden] each, and
                                        no experts_gate_up */
    weight experts_down;             /* [experts * hidden][expert_intermediate] */
    weight ple_gate, ple_proj;       /* [ple_width][hidden], [hidden][ple_width] */
    const float *post_ple_norm;      /* [hidden] */
    float layer_scalar;              /* 1 in Gemma 3 */
} layer_weights;

typedef struct model_weights {
    weight embed; /* [vocab][hidden] */
    weight head;  /* the LM head; equals embed where tied */
    const float *final_norm;
    weight ple_embed;           /* [ple_vocab][layers * ple_width] */
    weight ple_model_proj;      /* [layers * ple_width][hidden] */
    const float *ple_proj_norm; /* [ple_width] */
    layer_weights layer[MODEL_MAX_LAYERS];
} model_weights;

typedef struct language_model {
    model_config config;
    model_weights weights;
    struct checkpoint *checkpoint; /* owns the mapping; NULL for synthetic weights and GGUF files */
    struct gguf *file;             /* the same of a GGUF file */
    void **owned;                  /* MEM_WEIGHTS blocks */
    size_t n_owned;
    size_t mapped_bytes;         /* bytes of mapped tensors that are bound */
    struct vision_model *vision; /* what reads pictures (gemma4_vision.h); NULL: none */
    struct audio_model *sound;   /* what reads sound (gemma4_audio.h); NULL: none */
    struct gguf *mmproj;         /* where they lie beside a GGUF file; NULL: nowhere else */
    char no_sound[160];          /* "" or why a GGUF file's model reads none */
    char note[256];              /* "" or one line worth telling the user, e.g. vision tensors skipped */
} language_model;

/* Parses config.json text (and generation_config.json text, may be NULL) of either published dialect. `name` is the
 * file name used in messages. */
kakeya_status model_config_parse(const char *name, const char *json, size_t json_bytes, const char *generation_json,
                                 size_t generation_bytes, model_config *out, kakeya_error *error);

/* Opens a checkpoint directory (config.json, model.safetensors or an index with shards) or a GGUF file, maps it, binds
 * and checks every tensor. Norm vectors and scalars are copied as float32 into `account` (MEM_WEIGHTS). */
kakeya_status language_model_open(const char *directory, mem_account *account, language_model **out,
                                  kakeya_error *error);

/* The same with the norms' weights as the file has them, for those who write other files: of a Gemma 3 they are less by
 * one in a directory, and q_norm's are without the scale of attention. Nothing is computed with such a model. */
kakeya_status language_model_open_stored(const char *directory, mem_account *account, language_model **out,
                                         kakeya_error *error);
/* What is read beside the text model. */
typedef struct gemma4_parts {
    const char *mmproj; /* of a GGUF file: what reads pictures and sound; NULL: in it, or beside it (gemma4_mmproj.h) */
    bool no_vision;     /* as if there were none, but for the token of pictures, which is no answer's either way */
} gemma4_parts;
kakeya_status language_model_open_parts(const char *directory, const gemma4_parts *parts, mem_account *account,
                                        language_model **out, kakeya_error *error);

/* Weights made in memory in the exact shapes of a published variant: "26b-a4b", "31b", "12b", "e2b", "e4b",
 * "gemma3-270m", "gemma3-1b", "gemma3-4b", "gemma3-12b", "gemma3-27b", optionally
 * ":layers=N" (a prefix of the layer pattern) and ":dtype=f32", or ":fp8" (a scale for each output), ":affine4",
 * ":affine8", ":int4" (groups of 64), ":mxfp4", ":nvfp4", or ":q4_0", ":q8_0" or ":q4_k_m", whose quantised matrices
 * have no data: the backend makes it. Values are deterministic, small and finite; every tensor is MEM_WEIGHTS memory in
 * huge pages where the system allows. */
kakeya_status language_model_synthesize(const char *description, mem_account *account, language_model **out,
                                        kakeya_error *error);

/* The same without data in its matrices: for backends that make the values themselves (weight.synthetic). */
kakeya_status language_model_outline(const char *description, mem_account *account, language_model **out,
                                     kakeya_error *error);

/* The configuration of a published variant without any weights (for `kakeya info` and synthetic weights). */
kakeya_status model_config_variant(const char *description, model_config *out, kakeya_error *error);

void language_model_close(language_model *model);

/* What lies beside a model under its name with another ending: of a GGUF file (of a split, the first part) FILE and the
 * ending, of a directory "model" and the ending in it. malloc'ed. NULL of synthetic weights, or when out of memory. */
char *language_model_beside(const language_model *model, const char *ending);

/* Bytes of a matrix that nobody reads soon: where they are mapped from a GGUF file, they leave the process's memory. */
void language_model_unneeded(const language_model *model, const void *data, size_t bytes);
/* The same of everything that is mapped, from whatever files. */
void language_model_release(const language_model *model);

/* Where mapped bytes lie: *path is the model's. False: no file holds them as they are. */
bool language_model_locate(const language_model *model, const void *data, size_t bytes, const char **path,
                           uint64_t *offset);

#endif
