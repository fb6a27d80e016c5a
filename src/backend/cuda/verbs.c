/* The CUDA backend as the table of verbs that backend.h asks for. */
#include "backend/cuda/cache.h"
#include "backend/cuda/draft.h"
#include "backend/cuda/forward.h"
#include "backend/cuda/model.h"
#include "backend/cuda/snapshot.h"

static const char *cuda_description(const backend_model *m) { return m->description; }
static const char *cuda_note(const backend_model *m) { return m->note; }
static int cuda_prompt_chunk(const backend_model *m) { return m->max_rows; }

const backend_ops *cuda_backend(void);

const backend_ops *cuda_backend(void) {
    static const backend_ops ops = {
        .name = "cuda",
        .stall_ms = 60,
        .bf16_only = true,
        .finds_argmax = true,
        .finds_leaders = true,
        .model_create = cuda_model_create,
        .model_destroy = cuda_model_destroy,
        .model_description = cuda_description,
        .model_note = cuda_note,
        .model_prompt_chunk = cuda_prompt_chunk,
        .cache_create = cuda_cache_create,
        .cache_destroy = cuda_cache_destroy,
        .cache_length = cuda_cache_length,
        .cache_pending = cuda_cache_pending,
        .cache_min_truncate = cuda_cache_min_truncate,
        .forward = cuda_forward,
        .read_logits = cuda_read_logits,
        .cache_commit = cuda_cache_commit,
        .cache_truncate = cuda_cache_truncate,
        .cache_fork = cuda_cache_fork,
        .cache_bytes = cuda_cache_bytes,
        .cache_snapshot_bytes = cuda_cache_snapshot_bytes,
        .cache_snapshot = cuda_cache_snapshot,
        .cache_restore = cuda_cache_restore,
        .draft = cuda_draft,
    };
    return &ops;
}
