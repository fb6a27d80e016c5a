/* The CUDA backend as the table of verbs that backend.h asks for. */
#include "backend/cuda/devices.h"
#include "backend/cuda/devices_snapshot.h"
#include "backend/cuda/forward.h"
#include "backend/cuda/model.h"
#include "backend/cuda/tower.h"
#include "backend/cuda/weights_limit.h"

static const char *cuda_description(const backend_model *m) { return m->description; }
static const char *cuda_note(const backend_model *m) { return m->note; }
static int cuda_prompt_chunk(const backend_model *m) { return m->max_rows; }

const backend_ops *cuda_backend(void);

const backend_ops *cuda_backend(void) {
    static const backend_ops ops = {
        .name = "cuda",
        .stall_ms = 60,
        .batch = BACKEND_MAX_SEGMENTS,
        .most_devices = CUDA_MAX_DEVICES,
        .bf16_only = true,
        .fp8_prompts = true,
        .kinds_differ = true,
        .raw_values = true,
        .assistants = true,
        .bounds_weights = true,
        .finds_argmax = true,
        .masks_argmax = true,
        .finds_leaders = true,
        .model_create = cuda_devices_create,
        .model_destroy = cuda_devices_destroy,
        .model_description = cuda_description,
        .model_note = cuda_note,
        .model_weights = cuda_weights_limit_state,
        .model_prompt_chunk = cuda_prompt_chunk,
        .cache_check = cuda_cache_check,
        .cache_create = cuda_devices_cache_create,
        .cache_destroy = cuda_devices_cache_destroy,
        .cache_length = cuda_cache_length,
        .cache_pending = cuda_cache_pending,
        .cache_min_truncate = cuda_cache_min_truncate,
        .forward = cuda_devices_forward,
        .read_logits = cuda_read_logits,
        .cache_commit = cuda_devices_commit,
        .cache_truncate = cuda_devices_truncate,
        .cache_fork = cuda_devices_fork,
        .cache_bytes = cuda_devices_bytes,
        .cache_snapshot_bytes = cuda_devices_snapshot_bytes,
        .cache_snapshot = cuda_devices_snapshot,
        .cache_restore = cuda_devices_restore,
        .cache_has_state = cuda_cache_has_state,
        .draft = cuda_devices_draft,
        .load_vision = cuda_load_vision,
        .embed_image = cuda_embed_image,
        .image_begin = cuda_image_begin,
        .image_step = cuda_image_step,
        .image_end = cuda_image_end,
    };
    return &ops;
}
