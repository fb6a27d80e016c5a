/* The weights on the device: one allocation that every matrix and vector points into. The order is that of the model's
 * own list; matrices keep the form that the decode and prompt kernels read. */
#ifndef KAKEYA_BACKEND_CUDA_WEIGHTS_H
#define KAKEYA_BACKEND_CUDA_WEIGHTS_H

#include "backend/backend.h"
#include "backend/cuda/bounded.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernels.h"
#include "model/shard.h"

typedef struct cuda_layer {
    cuda_matrix q, k, v, o, gate, up, down, router, experts_gate_up, experts_down, ple_gate, ple_proj;
    const float *q_norm, *k_norm, *input_norm, *post_attention_norm, *pre_ffn_norm, *post_ffn_norm;
    const float *post_ffn_norm_1, *pre_ffn_norm_2, *post_ffn_norm_2;
    const float *router_scale, *router_expert_scale, *post_ple_norm;
    float layer_scalar;
} cuda_layer;

typedef struct cuda_draft_layer {
    cuda_matrix q, k, v, o, gate, up, down;
    const float *input_norm, *post_attention_norm, *q_norm, *k_norm;
} cuda_draft_layer;

/* Of an MTP assistant. Its layers have no keys and values. */
typedef struct cuda_assistant {
    cuda_matrix pre_projection, post_projection, centroids, head;
    const float *final_norm;
    const int32_t *token_of; /* with clusters */
    cuda_layer layer[ASSISTANT_MAX_LAYERS];
} cuda_assistant;

typedef struct cuda_weights {
    cuda_buffer memory;    /* everything below points into it, but for experts under a limit on weights */
    cuda_bounded *bounded; /* of these; NULL: there is no limit */
    cuda_buffer expanded;  /* of quantised weights: what a prompt's products have in bf16 at a time */
    /* The verifier. A tied head is the embedding's matrix. Of several devices each has some of its rows, and the first
     * one the whole for the drafter. */
    cuda_matrix embed, head, draft_head, ple_embed, ple_model_proj;
    int head_first; /* token that is the first row of `head` */
    const float *final_norm, *ple_proj_norm;
    cuda_layer layer[MODEL_MAX_LAYERS];
    const float *inverse_frequency[2]; /* by layer_type */
    const float *key_turns;            /* of full-attention layers: [CUDA_ATTENTION_TILE][pairs][2] */
    /* The drafter. */
    cuda_matrix fc;
    const float *hidden_norm, *draft_norm, *draft_inverse_frequency;
    cuda_draft_layer draft[BLOCK_DRAFTER_MAX_LAYERS];
    cuda_assistant assistant;
    /* Restoration. */
    cuda_matrix encoder_k, encoder_v, decoder_k[MODEL_MAX_LAYERS], decoder_v[MODEL_MAX_LAYERS];
} cuda_weights;

/* Uploads the weights of `options`, or a device's shard of them, through two pinned buffers, or makes them on the
 * device where they have no data. Waits until all are there. `note` becomes "" or one line about weights that were
 * rounded. KAKEYA_UNSUPPORTED names a matrix whose shape or format no kernel computes. On failure cuda_weights_destroy
 * is still needed. */
kakeya_status cuda_weights_create(cuda_weights *w, const cuda_device *device, const cuda_launch *launch,
                                  const backend_model_options *options, model_shard shard, char *note,
                                  size_t note_bytes, kakeya_error *error);
void cuda_weights_destroy(cuda_weights *w);

/* Fills the shapes alone: what the list of a step depends on. Needs no device. KAKEYA_OUT_OF_MEMORY is possible. */
kakeya_status cuda_weights_describe(cuda_weights *w, const backend_model_options *options, model_shard shard,
                                    kakeya_error *error);

/* The same of a model alone, and bytes of its weights but routed experts. */
kakeya_status cuda_weights_describe_shared(cuda_weights *w, const backend_model_options *options, size_t *bytes,
                                           kakeya_error *error);

#endif
