/* Creation of an MLX model, and the table of verbs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/mlx/mlx.h"
#include "base/float16.h"

static void mlx_model_destroy(backend_model *m) {
    if (!m) return;
    mlx_ahead_drop(m);
    mlx_vision_destroy(m);
    mlx_weights_destroy(m);
    mem_account_remove(m->account, MEM_WORKSPACE, m->workspace_bytes);
    mem_free(m->chunk);
    mem_free(m->hidden);
    mem_free(m->aux);
    mlx_device_close(m->device);
    free(m);
}

static kakeya_status check_options(const backend_model_options *o, kakeya_error *error) {
    if (o->precision != KAKEYA_PRECISION_F32 && o->precision != KAKEYA_PRECISION_BF16)
        return error_set(error, KAKEYA_UNSUPPORTED, "backend mlx computes in precision f32 or bf16, not in int8");
    if (o->isa)
        return error_set(error, KAKEYA_UNSUPPORTED, "kernel set '%s' belongs to backend cpu, not to mlx", o->isa);
    if (o->verifier->config.layers > MLX_MAX_LAYERS)
        return error_set(error, KAKEYA_UNSUPPORTED, "backend mlx supports at most %d layers, not %d",
                         (int)MLX_MAX_LAYERS, o->verifier->config.layers);
    const char *loaded = mlx_version_loaded(), *built = mlx_version_built();
    if (strcmp(loaded, built) != 0)
        return error_set(error, KAKEYA_UNSUPPORTED, "libmlx is %s, kakeya was built for %s: build it again", loaded,
                         built);
    return KAKEYA_OK;
}

static void describe(backend_model *m) {
    int n = snprintf(m->description, sizeof m->description, "mlx/%s, libmlx %s, ",
                     mlx_device_is_gpu(m->device) ? "gpu" : "cpu", mlx_version_loaded());
    mlx_describe_ways(m, m->description + n, sizeof m->description - (size_t)n);
    if (m->widened != WEIGHT_F32)
        snprintf(m->note, sizeof m->note, "backend mlx holds weights of type %s as float32",
                 weight_format_name(m->widened));
}

static kakeya_status mlx_model_create(const backend_model_options *options, backend_model **out, kakeya_error *error) {
    *out = NULL;
    kakeya_status status = check_options(options, error);
    if (status) return status;
    backend_model *m = calloc(1, sizeof *m);
    if (!m) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for the model");
    m->options = *options;
    m->config = &options->verifier->config;
    m->weights = &options->verifier->weights;
    m->account = options->account;
    m->most_rows = options->verifier->vision ? MLX_MAX_PICTURE : MLX_MAX_ROWS;
    bool bf16 = options->precision == KAKEYA_PRECISION_BF16;
    /* sqrt(hidden), rounded to the weight type as the reference does when it computes in bf16 */
    m->embed_scale = sqrtf((float)m->config->hidden);
    if (bf16) m->embed_scale = bf16_to_f32(f32_to_bf16(m->embed_scale));
    mlx_failure failure;
    status = mlx_check(mlx_device_open(bf16, &m->device, &failure), &failure, error);
    if (!status) status = mlx_weights_create(m, error);
    if (!status) status = mlx_choose_ways(m, error);
    if (!status) status = mlx_rows_reserve(m, MLX_MAX_ROWS, error);
    if (status) {
        mlx_model_destroy(m);
        return status;
    }
    describe(m);
    *out = m;
    return KAKEYA_OK;
}

static const char *mlx_description(const backend_model *m) { return m->description; }
static const char *mlx_note(const backend_model *m) { return m->note; }
static int mlx_prompt_chunk(const backend_model *m) {
    (void)m;
    return MLX_MAX_ROWS;
}

static int mlx_most_rows(const backend_model *m) { return m->most_rows; }

static timeline_models models_of(const backend_model *m) {
    return (timeline_models){
        .verifier = m->config,
        .drafter = m->options.drafter ? &m->options.drafter->config : NULL,
        .restoration = m->options.restoration ? &m->options.restoration->config : NULL,
    };
}

/* What this backend does not do is refused here, in one line. */
static kakeya_status mlx_cache_check(const backend_model *m, const backend_cache_options *options,
                                     kakeya_error *error) {
    const restoration_model *f = m->options.restoration;
    const timeline_models models = models_of(m);
    if (options->attention == KAKEYA_ATTENTION_RESTORED && f && f->config.input == RESTORATION_DRAFTER_TOKEN_KV)
        return error_set(error, KAKEYA_UNSUPPORTED, "backend mlx does not restore from input %s",
                         restoration_input_name(f->config.input));
    return timeline_check(&models, options, error);
}

static kakeya_status mlx_cache_create(backend_model *m, const backend_cache_options *options, backend_cache **out,
                                      kakeya_error *error) {
    const timeline_models models = models_of(m);
    *out = NULL;
    kakeya_status status = mlx_cache_check(m, options, error);
    return status ? status : host_cache_create(m, &models, options, out, error);
}

/* What changes committed rows otherwise than by keeping the one row of a step ends the graph of the next one. */
static void drop_ahead_of(const backend_cache *c) {
    if (c) mlx_ahead_drop(c->model);
}

static void mlx_cache_destroy(backend_cache *c) {
    drop_ahead_of(c);
    host_cache_destroy(c);
}

static kakeya_status mlx_cache_commit(backend_cache *c, int n, kakeya_error *error) {
    if (n != 1) drop_ahead_of(c);
    return host_cache_commit(c, n, error);
}

static kakeya_status mlx_cache_truncate(backend_cache *c, int length, kakeya_error *error) {
    drop_ahead_of(c);
    return host_cache_truncate(c, length, error);
}

static kakeya_status mlx_cache_restore(backend_cache *c, backend_read_fn read, void *user, kakeya_error *error) {
    drop_ahead_of(c);
    return host_cache_restore(c, read, user, error);
}

const backend_ops *mlx_backend(void);

const backend_ops *mlx_backend(void) {
    static const backend_ops ops = {
        .name = "mlx",
        .stall_ms = 200,
        .batch = 64,
        .kinds_differ = true,
        .finds_argmax = true,
        .model_create = mlx_model_create,
        .model_destroy = mlx_model_destroy,
        .model_description = mlx_description,
        .model_note = mlx_note,
        .model_prompt_chunk = mlx_prompt_chunk,
        .model_most_rows = mlx_most_rows,
        .cache_check = mlx_cache_check,
        .cache_create = mlx_cache_create,
        .cache_destroy = mlx_cache_destroy,
        .cache_length = host_cache_length,
        .cache_pending = host_cache_pending,
        .cache_min_truncate = host_cache_min_truncate,
        .forward = mlx_forward,
        .cache_commit = mlx_cache_commit,
        .cache_truncate = mlx_cache_truncate,
        .cache_fork = host_cache_fork,
        .cache_bytes = host_cache_bytes,
        .cache_snapshot_bytes = host_cache_snapshot_bytes,
        .cache_snapshot = host_cache_snapshot,
        .cache_restore = mlx_cache_restore,
        .draft = mlx_draft,
        .load_vision = mlx_load_vision,
        .embed_image = mlx_embed_image,
        .image_begin = mlx_image_begin,
        .image_step = mlx_image_step,
        .image_end = mlx_image_end,
    };
    return &ops;
}
