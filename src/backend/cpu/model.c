/* Creation of a CPU model: thread pool, kernel table, RoPE tables; and the table of verbs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/cpu/assistant.h"
#include "backend/cpu/attention.h"
#include "backend/cpu/block.h"
#include "backend/cpu/bounded.h"
#include "backend/cpu/cache.h"
#include "backend/cpu/conformer.h"
#include "backend/cpu/fine_layers.h"
#include "backend/cpu/forward.h"
#include "backend/cpu/head.h"
#include "backend/cpu/repack.h"
#include "backend/cpu/rope.h"
#include "backend/cpu/tower.h"
#include "backend/cpu/workspace.h"
#include "base/float16.h"

static void cpu_model_destroy(backend_model *m) {
    if (!m) return;
    workspace_destroy(m);
    assistant_destroy(m);
    head_destroy(m);
    rope_table_destroy(&m->rope[LAYER_SLIDING]);
    rope_table_destroy(&m->rope[LAYER_FULL]);
    rope_table_destroy(&m->draft_rope);
    bounded_destroy(m);
    repack_destroy(m);
    free(m->own_weights);
    thread_pool_destroy(m->pool);
    free(m);
}

static kakeya_status create_rope_tables(backend_model *m, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    if (m->options.drafter) {
        const block_drafter_config *d = &m->options.drafter->config;
        status = rope_table_create(m, &m->draft_rope, d->rope_theta, 1.0f, d->head_dim, d->head_dim / 2, error);
    }
    for (int type = 0; !status && type < 2; type++) {
        int head_dim = 0;
        for (int i = 0; i < m->config->layers; i++) {
            if ((int)m->config->layer[i].type == type) head_dim = m->config->layer[i].head_dim;
        }
        if (!head_dim) continue;
        const rope_config *r = &m->config->rope[type];
        status = rope_table_create(m, &m->rope[type], r->theta, r->factor, head_dim, r->rotated_pairs, error);
    }
    return status;
}

/* Exact products have the bits of those with the dequantised file, where what is not quantised is float32. */
static kakeya_status widen_routers(backend_model *m, kakeya_error *error) {
    bool any = false;
    for (int i = 0; i < m->config->layers; i++) any |= m->weights->layer[i].router_proj.wide != NULL;
    if (!any) return KAKEYA_OK;
    m->own_weights = malloc(sizeof *m->own_weights);
    if (!m->own_weights) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a list of weights");
    *m->own_weights = *m->weights;
    m->weights = m->own_weights;
    for (int i = 0; i < m->config->layers; i++) {
        weight *w = &m->own_weights->layer[i].router_proj;
        if (w->wide) *w = weight_matrix(WEIGHT_F32, w->wide, w->out, w->in);
    }
    return KAKEYA_OK;
}

static kakeya_status cpu_model_create(const backend_model_options *options, backend_model **out, kakeya_error *error) {
    *out = NULL;
    backend_model *m = calloc(1, sizeof *m);
    if (!m) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for the model");
    m->options = *options;
    m->config = &options->verifier->config;
    m->weights = &options->verifier->weights;
    m->account = options->account;
    m->input = cpu_input_of(options->precision);
    kakeya_status status = cpu_kernels_choose(options->isa, &m->kernels, error);
    if (!status) status = thread_pool_create(options->threads, &m->pool, error);
    if (!status) {
        m->threads = thread_pool_size(m->pool);
        snprintf(m->description, sizeof m->description, "cpu/%s, %d thread%s", m->kernels->name, m->threads,
                 m->threads == 1 ? "" : "s");
        m->max_rows = m->prompt_rows = CPU_PROMPT_ROWS;
        m->most_rows = options->verifier->vision || options->verifier->sound ? CPU_MEDIA_ROWS : CPU_PROMPT_ROWS;
        /* sqrt(hidden), rounded to the weight type as the reference does when it computes in bf16 */
        m->embed_scale = sqrtf((float)m->config->hidden);
        if (m->input == INPUT_BF16) m->embed_scale = bf16_to_f32(f32_to_bf16(m->embed_scale));

        status = m->input == INPUT_EXACT ? widen_routers(m, error) : fine_layers_mark(m, error);
        if (!status) status = workspace_create(m, error);
        if (!status && m->options.assistant) status = assistant_create(m, error);
        if (!status) status = create_rope_tables(m, error);
        if (!status) status = repack_weights(m, error);
        if (!status && options->weights_limit) status = bounded_create(m, error);
        if (!status && !m->bounded) head_create(m); /* its copy is no weight that tokens need */
        if (!status && !m->bounded) assistant_screen(m);
    }
    if (status) {
        cpu_model_destroy(m);
        return status;
    }
    *out = m;
    return KAKEYA_OK;
}

static const char *cpu_description(const backend_model *m) { return m->description; }
static const char *cpu_note(const backend_model *m) { return m->note; }
static int cpu_prompt_chunk(const backend_model *m) { return m->prompt_rows; }
static int cpu_most_rows(const backend_model *m) { return m->most_rows; }

const backend_ops *cpu_backend(void) {
    static const backend_ops ops = {
        .name = "cpu",
        .raw_values = true,
        .int8_products = true,
        .assistants = true,
        .bounds_weights = true,
        .stall_ms = 200,
        .batch = 64,
        .model_create = cpu_model_create,
        .model_destroy = cpu_model_destroy,
        .model_description = cpu_description,
        .model_note = cpu_note,
        .model_weights = bounded_state,
        .model_prompt_chunk = cpu_prompt_chunk,
        .model_most_rows = cpu_most_rows,
        .cache_check = cpu_cache_check,
        .cache_create = cpu_cache_create,
        .cache_destroy = host_cache_destroy,
        .cache_length = host_cache_length,
        .cache_pending = host_cache_pending,
        .cache_min_truncate = host_cache_min_truncate,
        .forward = cpu_forward,
        .cache_commit = host_cache_commit,
        .cache_truncate = host_cache_truncate,
        .cache_fork = host_cache_fork,
        .cache_bytes = host_cache_bytes,
        .cache_snapshot_bytes = host_cache_snapshot_bytes,
        .cache_snapshot = host_cache_snapshot,
        .cache_restore = host_cache_restore,
        .cache_has_state = host_cache_has_state,
        .draft = cpu_draft,
        .finds_argmax = true,
        .masks_argmax = true,
        .embed_image = cpu_embed_image,
        .image_begin = cpu_image_begin,
        .image_step = cpu_image_step,
        .image_end = cpu_image_end,
        .sound_begin = cpu_sound_begin,
        .sound_step = cpu_sound_step,
        .sound_end = cpu_sound_end,
        .weights_arrange = repack_to_file,
    };
    return &ops;
}
