#include "backend/cuda/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/machine.h"
#include "backend/cuda/products_wide.h"
#include "backend/cuda/prompt_gemm.h"
#include "base/float16.h"

_Static_assert((int)CUDA_MAX_LAYERS == (int)MODEL_MAX_LAYERS, "kernels.h repeats the model's limits");
_Static_assert((int)CUDA_MAX_EXCLUDED >= (int)MODEL_MAX_SUPPRESS_TOKENS, "kernels.h repeats the model's limits");
_Static_assert((int)CUDA_MAX_DRAFT_LAYERS == (int)BLOCK_DRAFTER_MAX_LAYERS, "kernels.h repeats the model's limits");
_Static_assert((int)CUDA_LEADERS == (int)BACKEND_LEADERS && sizeof(cuda_leaders) == sizeof(backend_leaders),
               "kernels.h repeats the backend's leaders");
_Static_assert((int)CUDA_DECODE_ROWS == (int)BACKEND_MAX_DECODE_ROWS, "kernels.h repeats the backend's limits");
_Static_assert((int)CUDA_MAX_SEGMENTS == (int)BACKEND_MAX_SEGMENTS, "kernels.h repeats the backend's limits");

enum {
    PROMPT_ROWS_SMALL = 1024, /* of a forward, on devices with less memory than this, ... */
    PICTURE_ROWS = 1152,      /* ... but of models that read pictures, which are never cut */
};
static const size_t large_device_bytes = (size_t)60 << 30;

kakeya_status model_grow(backend_model *m, cuda_buffer *buffer, size_t bytes, const char *what, kakeya_error *error) {
    if (buffer->bytes >= bytes) return KAKEYA_OK;
    kakeya_status status = cuda_finish(&m->device, what, error);
    if (status) return status;
    cuda_graphs_drop(&m->graphs);
    cuda_buffer_destroy(buffer);
    return cuda_buffer_create(buffer, &m->device, m->account, MEM_WORKSPACE, bytes, what, error);
}

void cuda_forget_logits(backend_model *m) { memset(m->logit_rows, 0, sizeof m->logit_rows); }

kakeya_status model_grow_logits(backend_model *m, int rows, kakeya_error *error) {
    size_t bytes = cuda_workspace_logit_bytes(m->config, rows);
    if (m->space.logit_memory.bytes >= bytes) return KAKEYA_OK;
    cuda_buffer larger = {0};
    kakeya_status status = cuda_buffer_create(&larger, &m->device, m->account, MEM_WORKSPACE, bytes, "logits", error);
    if (!status) status = cuda_finish(&m->device, "growing the room for logits", error);
    if (status) {
        cuda_buffer_destroy(&larger);
        return status;
    }
    cuda_graphs_drop(&m->graphs);
    cuda_buffer_destroy(&m->space.logit_memory);
    m->space.logit_memory = larger;
    m->space.logits = larger.data;
    cuda_forget_logits(m);
    return KAKEYA_OK;
}

static kakeya_status check_model(const backend_model *m, kakeya_error *error) {
    const model_config *c = m->config;
    if (m->options.precision != KAKEYA_PRECISION_BF16 && m->options.precision != KAKEYA_PRECISION_FP8)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "precision %s is not supported by backend cuda, which computes in bf16",
                         m->options.precision == KAKEYA_PRECISION_F32 ? "f32" : "int8");
    if (c->moe && (c->experts > CUDA_ROUTE_MAX_EXPERTS || c->experts_per_token > CUDA_ROUTE_MAX_RANK))
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "%d experts, of which a token uses %d; backend cuda supports at most %d and %d", c->experts,
                         c->experts_per_token, (int)CUDA_ROUTE_MAX_EXPERTS, (int)CUDA_ROUTE_MAX_RANK);
    enum { LARGEST_HIDDEN = 8192 }; /* what two steps of the row kernels cover */
    if (c->hidden > LARGEST_HIDDEN)
        return error_set(error, KAKEYA_UNSUPPORTED, "hidden size %d is above %d, the maximum of backend cuda",
                         c->hidden, (int)LARGEST_HIDDEN);
    if (c->hidden % PROMPT_GEMM_UNIT)
        return error_set(error, KAKEYA_UNSUPPORTED, "hidden size %d is not a multiple of %d, as backend cuda needs",
                         c->hidden, (int)PROMPT_GEMM_UNIT);
    /* The dense feed-forward block may have any width: matrix.c pads it. */
    if (c->expert_intermediate % PROMPT_GEMM_UNIT)
        return error_set(error, KAKEYA_UNSUPPORTED, "expert width %d is not a multiple of %d, as backend cuda needs",
                         c->expert_intermediate, (int)PROMPT_GEMM_UNIT);
    if (c->ple_width % PROMPT_GEMM_UNIT)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "width %d of per-layer embeddings is not a multiple of %d, as backend cuda needs",
                         c->ple_width, (int)PROMPT_GEMM_UNIT);
    const restoration_model *f = m->options.restoration;
    if (f && f->config.input == RESTORATION_DRAFTER_TOKEN_KV)
        return error_set(
            error, KAKEYA_UNSUPPORTED,
            "restoration weights with input \"%s\" are not supported by backend cuda: take --backend cpu, or weights "
            "with input \"drafter_context_kv\" or \"aux_hidden\"",
            restoration_input_name(f->config.input));
    if (f && (f->config.rank_k % 8 || f->config.rank_v % 8))
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "rank %d of the restoration weights is not a multiple of 8, as backend cuda needs",
                         f->config.rank_k % 8 ? f->config.rank_k : f->config.rank_v);
    if (m->options.drafter && m->options.drafter->config.hidden != c->hidden)
        return error_set(error, KAKEYA_UNSUPPORTED, "drafter hidden size %d differs from the verifier's %d",
                         m->options.drafter->config.hidden, c->hidden);
    if (m->options.drafter && !block_drafter_is_plain(m->options.drafter))
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "drafters with quantised weights are not supported by backend cuda: take one in BF16, F16 or "
                         "F32, or --drafter none");
    return KAKEYA_OK;
}

static kakeya_status check_assistant(const backend_model *m, kakeya_error *error) {
    const assistant_config *a = &m->options.assistant->config;
    enum { MOST_HIDDEN = 8192, MOST_CLUSTERS = 4096 };
    if (!model_shard_is_whole(m->shard))
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "an MTP assistant drafts on one device, not on %d: take one device, or --drafter none",
                         m->shard.count);
    if (a->stack.hidden % 8 || a->stack.hidden > MOST_HIDDEN)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "assistant hidden size %d is not a multiple of 8 up to %d, as backend cuda needs",
                         a->stack.hidden, (int)MOST_HIDDEN);
    if (a->clusters > MOST_CLUSTERS)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "an assistant's head of %d clusters; backend cuda supports up to %d", a->clusters,
                         (int)MOST_CLUSTERS);
    if (m->config->sliding_window < 2)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "a sliding window of %d; backend cuda supports MTP assistants from 2 on",
                         m->config->sliding_window);
    return KAKEYA_OK;
}

static kakeya_status prepare_kernels(const backend_model *m, kakeya_error *error) {
    const model_config *c = m->config;
    int largest = 0;
    for (int i = 0; i <= c->layers; i++) {
        int d = i < c->layers ? c->layer[i].head_dim : m->options.drafter ? m->options.drafter->config.head_dim : 0;
        cudaError_t prepared = d ? cuda_attention_prepare(d) : cudaSuccess;
        if (prepared == cudaErrorInvalidValue) {
            (void)cudaGetLastError();
            return error_set(error, KAKEYA_UNSUPPORTED, "head dimension %d is not supported by backend cuda on %s", d,
                             m->device.name);
        }
        kakeya_status status = cuda_check(prepared, "preparing the attention kernels", error);
        if (status) return status;
        if (i < c->layers && d > largest) largest = d;
    }
    kakeya_status status = cuda_check(cuda_products_wide_prepare(), "preparing the products", error);
    if (status || !m->options.restoration) return status;
    return cuda_check(cuda_restore_prepare(largest), "preparing the restoration kernels", error);
}

void cuda_model_destroy(backend_model *m) {
    if (!m) return;
    if (m->device.stream) {
        (void)cudaSetDevice(m->device.index);
        (void)cudaStreamSynchronize(m->device.stream);
    }
    cuda_graphs_drop(&m->graphs);
    cuda_gaps_watch(&m->gaps, false);
    cuda_workspace_destroy(&m->space);
    cuda_head_copy_destroy(&m->head_copy);
    cuda_head_copy_destroy(&m->assistant_copy);
    cuda_weights_destroy(&m->weights);
    free(m->step_ops);
    cuda_device_close(&m->device);
    free(m);
}

kakeya_status cuda_model_create(const backend_model_options *options, int device, model_shard shard,
                                backend_model **out, kakeya_error *error) {
    *out = NULL;
    backend_model *m = calloc(1, sizeof *m);
    if (!m) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for the model");
    m->options = *options;
    m->config = model_shard_is_whole(shard) ? &options->verifier->config : &m->shard_config;
    m->shard = shard;
    m->account = options->account;
    kakeya_status status = model_shard_config(&options->verifier->config, shard, &m->shard_config, error);
    if (!status) status = check_model(m, error);
    if (!status && options->assistant) status = check_assistant(m, error);
    if (!status) status = cuda_device_open(&m->device, device, error);
    if (!status) {
        m->launch = (cuda_launch){.stream = m->device.stream,
                                  .multiprocessors = m->device.multiprocessors,
                                  .block_bytes = m->device.block_bytes,
                                  .programmatic = m->device.capability >= 90,
                                  .codes = prompt_gemm_bulk_runs()};
        if (options->precision == KAKEYA_PRECISION_FP8 && !m->launch.codes)
            status =
                error_set(error, KAKEYA_UNSUPPORTED,
                          "precision fp8 needs a GPU of compute capability 9.0 and kernels for it (sm_90a), this is %s",
                          m->device.name);
        m->max_rows = m->device.total_bytes >= large_device_bytes ? CUDA_PROMPT_ROWS : PROMPT_ROWS_SMALL;
        if (options->verifier->vision && m->max_rows < PICTURE_ROWS) m->max_rows = PICTURE_ROWS;
        snprintf(m->description, sizeof m->description, "cuda/sm_%d, %s", m->device.capability, m->device.name);
        m->embed_scale = bf16_to_f32(f32_to_bf16(sqrtf((float)m->config->hidden)));
        if (!status) status = prepare_kernels(m, error);
    }
    if (!status)
        status =
            cuda_weights_create(&m->weights, &m->device, &m->launch, options, shard, m->note, sizeof m->note, error);
    m->launch.expanded = m->weights.expanded.data;
    m->launch.expanded_bytes = m->weights.expanded.bytes;
    if (!status) status = cuda_workspace_create(&m->space, &m->device, options, m->config, shard, m->max_rows, error);
    m->rounding = (matrix_rounding){m->space.rounded, m->space.rounded_scale};
    /* The copy of the whole begins with that of the first device's shard. */
    const cuda_matrix *copied = options->drafter && shard.index == 0 ? &m->weights.draft_head : &m->weights.head;
    const bool copies = !options->weights_limit; /* which are no weights that tokens need */
    if (!status && copies)
        status = cuda_head_copy_create(&m->head_copy, &m->device, &m->launch, copied, m->account, error);
    const assistant_config *a = options->assistant ? &options->assistant->config : NULL;
    m->space.a_clusters.token_of = m->weights.assistant.token_of;
    if (!status && copies && a && !a->clusters && a->stack.hidden <= m->config->hidden) /* what a screen has room for */
        status = cuda_head_copy_create(&m->assistant_copy, &m->device, &m->launch, &m->weights.assistant.head,
                                       m->account, error);
    if (!status) {
        m->step_ops = malloc((size_t)step_most_ops(m->config) * sizeof *m->step_ops);
        if (!m->step_ops) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for the list of a step");
    }
    if (!status) status = cuda_finish(&m->device, "preparing the model", error);
    if (status) {
        cuda_model_destroy(m);
        return status;
    }
    *out = m;
    return KAKEYA_OK;
}
