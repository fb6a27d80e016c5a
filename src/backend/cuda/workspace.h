/* Device memory of the largest forward, shared by all sessions of a model: one allocation that is carved once, and a
 * few buffers that grow with the longest context so far (model_grow). */
#ifndef KAKEYA_BACKEND_CUDA_WORKSPACE_H
#define KAKEYA_BACKEND_CUDA_WORKSPACE_H

#include "backend/backend.h"
#include "backend/cuda/assistant_kernels.h"
#include "backend/cuda/device.h"
#include "model/shard.h"

/* Streams on which the attention of prompts that share a pass goes side by side; as many as a device has queues. */
enum { CUDA_SIDE_STREAMS = 8 };

typedef struct cuda_workspace {
    cuda_buffer memory; /* the pointers up to `a_clusters` are carved from it */
    /* The verifier: [rows][width] of the largest segment unless stated otherwise. */
    float *h, *q, *k, *v, *branch, *experts_out, *x_router, *normed, *ple, *ple_gate, *aux;
    cuda_bf16 *last_x; /* [BACKEND_MAX_PROMPTS][width]: last rows of a forward's prompts, whose head comes later */
    cuda_bf16 *x, *x_experts, *x_head, *q_heads, *attended, *act, *act_experts, *chunk_k, *chunk_v;
    unsigned char *rounded;         /* prompts at precision fp8: rows or slots of one product, ... */
    float *rounded_scale;           /* ... their scales */
    cuda_bf16 *derived_k;           /* prompts: keys of one slab of a K = V layer */
    float *attend_top, *attend_sum; /* prompts: [rows][heads] */
    /* Several devices: [rows][hidden] sums of experts, and the route of rows that are their own expert. */
    float *mixed;
    cuda_route mixed_route;
    float2 *turns[2]; /* [rows][pairs] by layer_type */
    cuda_route route;
    int32_t *tokens; /* prompts: [rows] */
    int32_t *sight;  /* the same: attention_ahead.h */
    float *argmax_value;
    int *argmax_index;
    int32_t *argmax;    /* [CUDA_PASS_ROWS] */
    cuda_screen screen; /* but for .upper, which lies in logits */
    cuda_leaders *leaders;
    cuda_leader_scratch *leader_scratch;
    cuda_batch *batch; /* of the verifier */
    /* The drafter: blocks of up to CUDA_PASS_ROWS rows; d_x, d_raw, latent* also serve whole prompt segments. */
    cuda_batch *draft_batch;
    cuda_context_row *context_rows; /* [CUDA_CONTEXT_ROWS + rows]: of backlogs, of prompts */
    float2 *draft_turns;
    float *d_state, *d_x, *d_q, *d_k, *d_v, *d_raw, *latents, *latent_values;
    cuda_bf16 *d_in, *d_aux, *d_heads, *d_attended, *d_act, *d_block_k, *d_block_v, *latent_in, *latent_half;
    /* The assistant: [CUDA_MAX_SEGMENTS][width], a row of each session. */
    float *a_h, *a_q, *a_branch, *a_states, *a_centroids;
    cuda_bf16 *a_pair, *a_in, *a_heads, *a_attended, *a_act;
    int32_t *a_drafts; /* [BACKEND_MAX_DRAFT][rows] */
    cuda_clusters a_clusters;

    /* These grow. */
    cuda_buffer logit_memory;  /* [rows of a pass][vocab, in whole tiles of the head] ... */
    float *logits;             /* ... its data */
    cuda_buffer masks;         /* [CUDA_PASS_ROWS][words] and one word more; none before a row has a mask */
    cuda_buffer kept_logits;   /* [rows][vocab] of decode passes that others have followed in a forward */
    cuda_buffer partial;       /* flash states of partitions: values ... */
    cuda_buffer partial_state; /* ... maxima and sums */
    cuda_buffer cosine, sine;  /* prompts: [rope_positions][pairs] of the full-attention layers */
    int rope_positions;
    cuda_buffer expanded_k, expanded_v; /* prompts: K/V in 8 bits of one layer, in bf16 */
    /* Evicted positions of all segments of a pass (restoration.h), [rows][...]: */
    cuda_buffer gathered;               /* latents out of rings */
    cuda_buffer raw_k, raw_v;           /* decoded ones that no product finishes */
    cuda_buffer restored_k, restored_v; /* keys and values of one layer, or of two in turns */
    cuda_buffer key_scales, latent_scores, latent_sums, latent_state; /* of rows that attend latents */

    /* Where evicted positions are not decoded between the kernels of a step they are beside it, on this stream. */
    cudaStream_t restore_stream; /* NULL without restoration */
    cudaEvent_t restore_start, restored[2], projected;

    cudaStream_t side_stream[CUDA_SIDE_STREAMS];
    cudaEvent_t side_start, side_done[CUDA_SIDE_STREAMS];

    cuda_batch *staged;                 /* pinned: batch, draft batch */
    int32_t *staged_ids;                /* pinned: [2][rows] */
    cuda_context_row *staged_context;   /* pinned: [CUDA_CONTEXT_ROWS + rows]; with a drafter or restoration */
    cuda_leaders *staged_leaders;       /* pinned: [CUDA_PASS_ROWS] */
    uint32_t *staged_masks;             /* pinned: [CUDA_PASS_ROWS][words]; as masks */
    unsigned long long *staged_choices; /* pinned: [CUDA_DECODE_ROWS]; of several devices */
} cuda_workspace;

/* Sizes everything for segments of up to `rows` rows of the verifier `config`, which is that of the options or a shard
 * of it. On failure cuda_workspace_destroy is still needed. */
kakeya_status cuda_workspace_create(cuda_workspace *w, const cuda_device *device, const backend_model_options *options,
                                    const model_config *config, model_shard shard, int rows, kakeya_error *error);
void cuda_workspace_destroy(cuda_workspace *w);
/* Room for the masks of a pass, unless it is there. */
kakeya_status cuda_workspace_reserve_masks(cuda_workspace *w, const cuda_device *device, mem_account *account,
                                           int vocab, kakeya_error *error);
static inline size_t cuda_workspace_mask_words(int vocab) { return ((size_t)vocab + 31) / 32; }
size_t cuda_workspace_logit_bytes(const model_config *config, int rows);

#endif
