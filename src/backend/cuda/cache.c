#include "backend/cuda/cache.h"

#include <stdlib.h>

#include "backend/cuda/context.h"
#include "backend/cuda/restoration.h"
#include "backend/kv_bytes.h"

/* ---------------------------------------------------------------------------------------------------- creation */

timeline_models cuda_cache_models(const backend_model *m) {
    return (timeline_models){
        .verifier = m->config,
        .drafter = m->options.drafter ? &m->options.drafter->config : NULL,
        .restoration = m->options.restoration ? &m->options.restoration->config : NULL,
        .assistant = m->options.assistant ? &m->options.assistant->config : NULL,
    };
}

kakeya_status cuda_cache_create_with(backend_model *m, timeline *t, const backend_cache *from, backend_cache **out,
                                     kakeya_error *error) {
    *out = NULL;
    backend_cache *c = calloc(1, sizeof *c);
    if (!c) {
        timeline_destroy(t);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a cache");
    }
    c->model = m;
    c->t = *t;
    c->account = t->options.account;
    for (int i = 0; i < m->config->layers; i++) {
        if (t->layer[i].restored) c->layer[i].form = cuda_restoration_form(m, i, t->latents == STORE_RING);
    }
    c->attends_latents = cuda_restoration_attends_latents(c);
    kakeya_status status = cuda_stores_create(c, from, error);
    if (status)
        cuda_cache_destroy(c);
    else
        *out = c;
    return status;
}

kakeya_status cuda_cache_check(const backend_model *m, const backend_cache_options *options, kakeya_error *error) {
    if (options->kv_format != KV_FORMAT_BF16 && !cuda_kv_codes_of(options->kv_format))
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "K/V format %s is not supported by backend cuda, which keeps bf16, q8 or q4",
                         kv_format_name(options->kv_format));
    const timeline_models models = cuda_cache_models(m);
    return timeline_check(&models, options, error);
}

kakeya_status cuda_cache_create(backend_model *m, const backend_cache_options *options, backend_cache **out,
                                kakeya_error *error) {
    *out = NULL;
    kakeya_status status = cuda_cache_check(m, options, error);
    if (!status) status = cuda_device_use(&m->device, error);
    if (status) return status;
    timeline t;
    timeline_models models = cuda_cache_models(m);
    status = timeline_create(&t, &models, options, error);
    return status ? status : cuda_cache_create_with(m, &t, NULL, out, error);
}

void cuda_cache_destroy(backend_cache *c) {
    if (!c) return;
    cuda_stores_destroy(c);
    timeline_destroy(&c->t);
    free(c);
}

int cuda_cache_length(const backend_cache *c) { return c->t.length; }
int cuda_cache_pending(const backend_cache *c) { return c->t.pending; }
int cuda_cache_min_truncate(const backend_cache *c) { return timeline_min_truncate(&c->t); }
bool cuda_cache_has_state(const backend_cache *c) { return timeline_has_state(&c->t); }

backend_cache_bytes cuda_cache_bytes(const backend_cache *c) {
    backend_cache_bytes bytes = kv_bytes(&c->t, c->model->device.memory.granule_bytes);
    bytes.shared_full = cuda_stores_shared_full(c);
    bytes.shared_latent = cuda_stores_shared_latent(c);
    return bytes;
}

kakeya_status cuda_cache_fork(const backend_cache *c, mem_account *account, backend_cache **out, kakeya_error *error) {
    *out = NULL;
    if (c->t.pending)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot fork with %d pending rows", c->t.pending);
    kakeya_status status = cuda_device_use(&c->model->device, error);
    timeline t;
    if (!status) status = timeline_copy(&t, &c->t, error);
    if (status) return status;
    t.options.account = account;
    backend_cache *copy;
    status = cuda_cache_create_with(c->model, &t, c, &copy, error);
    if (!status) status = cuda_stores_copy(copy, c, error);
    if (!status) status = cuda_finish(&c->model->device, "copying a cache", error);
    if (status)
        cuda_cache_destroy(copy);
    else
        *out = copy;
    return status;
}

/* --------------------------------------------------------------------------------------------------- a forward */

kakeya_status cuda_cache_plan(backend_cache *c, segment_kind kind, int n, kakeya_error *error) {
    return timeline_plan(&c->t, kind, n, &c->step, error);
}

kakeya_status cuda_cache_reserve(backend_cache *c, kakeya_error *error) {
    kakeya_status status = cuda_stores_reserve(c, &c->step, error);
    return status ? status : timeline_reserve(&c->t, &c->step, error);
}

void cuda_cache_release(backend_cache *c) { cuda_stores_trim(c); }

kakeya_status cuda_caches_begin(backend_cache *const *caches, int n, kakeya_error *error) {
    position_range flushed[BACKEND_MAX_FORWARD] = {{0, 0}};
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < n; i++) {
        kakeya_status moved = cuda_stores_begin(caches[i], &caches[i]->step, status ? NULL : error);
        if (!status) status = moved;
        flushed[i] = caches[i]->step.flushed;
    }
    if (!status) status = cuda_context_extend(caches, flushed, n, error);
    for (int i = 0; i < n; i++) timeline_begin(&caches[i]->t, &caches[i]->step);
    return status;
}

void cuda_cache_mark(backend_cache *c) { timeline_computed(&c->t, &c->step); }

kakeya_status cuda_caches_flush(backend_cache *const *caches, int n, kakeya_error *error) {
    position_range rows[BACKEND_MAX_FORWARD] = {{0, 0}};
    for (int i = 0; i < n; i++) rows[i] = timeline_flush(&caches[i]->t);
    kakeya_status status = cuda_context_extend(caches, rows, n, error);
    for (int i = 0; i < n && !status; i++) timeline_flushed(&caches[i]->t);
    return status;
}

/* --------------------------------------------------------------------------------------------- commit, truncate */

kakeya_status cuda_cache_commit(backend_cache *c, int n, kakeya_error *error) {
    timeline_keep keep;
    kakeya_status status = timeline_plan_commit(&c->t, n, &keep, error);
    if (!status) status = cuda_device_use(&c->model->device, error);
    if (status) return status;
    status = cuda_stores_keep(c, &keep, error);
    timeline_commit(&c->t, &keep);
    cuda_stores_trim(c);
    return status;
}

kakeya_status cuda_cache_truncate(backend_cache *c, int length, kakeya_error *error) {
    kakeya_status status = cuda_device_use(&c->model->device, error);
    if (!status) status = timeline_truncate(&c->t, length, error);
    if (!status) cuda_stores_trim(c);
    return status;
}
