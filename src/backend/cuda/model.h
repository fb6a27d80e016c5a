/* A model on a device: its weights, the workspace of the largest forward, and its captured steps. One stream serves all
 * sessions; every verb that computes ends with the stream idle, so host state and device state agree whenever the
 * caller holds the backend's turn. */
#ifndef KAKEYA_BACKEND_CUDA_MODEL_H
#define KAKEYA_BACKEND_CUDA_MODEL_H

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/exchange.h"
#include "backend/cuda/gaps.h"
#include "backend/cuda/graphs.h"
#include "backend/cuda/head.h"
#include "backend/cuda/matrix.h"
#include "backend/cuda/step.h"
#include "backend/cuda/weights.h"
#include "backend/cuda/workspace.h"

struct cuda_tp_group;
struct cuda_pass;
typedef struct cuda_tower cuda_tower;

struct backend_model {
    backend_model_options options;
    const model_config *config; /* of what this device computes: the verifier's, or shard_config */
    model_shard shard;
    model_config shard_config;
    struct cuda_tp_group *tp_group; /* of several devices (tp_group.h); NULL: alone */
    cuda_exchange exchange;         /* what all exchanges of several devices have in common */
    unsigned passes;                /* of several devices; wraps */
    float *logits_home;             /* of several devices: where captured steps put logits */
    mem_account *account;
    cuda_device device;
    cuda_launch launch;
    char description[128], note[128];
    int max_rows; /* of a segment */
    float embed_scale;
    cuda_weights weights;
    cuda_head_copy head_copy, assistant_copy;
    cuda_workspace space;
    matrix_rounding rounding; /* with precision fp8 */
    cuda_graphs graphs;
    cuda_gaps gaps;
    cuda_tower *tower; /* of models that read pictures, from the first one on; else NULL */
    /* Called behind every operation of a forward that is launched, with tap_user; NULL: none. */
    void (*tap)(void *user, const struct cuda_pass *pass, const step_op *op);
    void *tap_user;
    step_op *step_ops; /* [step_most_ops]: the list of the step that is being launched */
    /* What cuda_read_logits can still give: by segment of the last forward the logits of its rows, [rows][vocab]. */
    const float *logits_of[BACKEND_MAX_FORWARD];
    int logit_rows[BACKEND_MAX_FORWARD]; /* 0: none */
};

/* A shard of the model on one device; alone it is the whole. */
kakeya_status cuda_model_create(const backend_model_options *options, int device, model_shard shard,
                                backend_model **out, kakeya_error *error);
void cuda_model_destroy(backend_model *m);
/* cuda_read_logits has nothing to give any more. */
void cuda_forget_logits(backend_model *m);

/* Makes `buffer` hold at least `bytes` for all steps from now on; captured graphs are dropped when it moves. On failure
 * the buffer is empty, or as it was. */
kakeya_status model_grow(backend_model *m, cuda_buffer *buffer, size_t bytes, const char *what, kakeya_error *error);
/* Makes room for the logits of a pass of so many rows. On failure there is what there was. */
kakeya_status model_grow_logits(backend_model *m, int rows, kakeya_error *error);

#endif
