#include "backend/cuda/devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/draft.h"
#include "backend/cuda/forward.h"
#include "backend/cuda/tower.h"
#include "backend/cuda/tp_group.h"

static int devices_of(const backend_model *m) { return m->tp_group ? cuda_tp_group_size(m->tp_group) : 1; }

/* ------------------------------------------------------------------------------------------------------- models */

static kakeya_status check_devices(const backend_model_options *options, kakeya_error *error) {
    if (options->n_devices < 0 || options->n_devices > CUDA_MAX_DEVICES)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "--devices names %d devices; 1 to %d are possible",
                         options->n_devices, (int)CUDA_MAX_DEVICES);
    if (options->weights_limit && options->n_devices > 1)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "weights limit: experts come to one device, not to %d: choose one, or no limit",
                         options->n_devices);
    for (int i = 0; i < options->n_devices; i++) {
        for (int k = 0; k < i; k++) {
            if (options->devices[i] == options->devices[k])
                return error_set(error, KAKEYA_INVALID_ARGUMENT, "--devices names device %d twice",
                                 options->devices[i]);
        }
    }
    return KAKEYA_OK;
}

/* Where devices differ, all do what each of them can. */
static void level(backend_model *const *models, int n) {
    bool screens = true;
    int rows = models[0]->max_rows;
    for (int i = 0; i < n; i++) {
        screens &= cuda_head_screens(&models[i]->head_copy);
        if (models[i]->max_rows < rows) rows = models[i]->max_rows;
    }
    for (int i = 0; i < n; i++) {
        models[i]->max_rows = rows;
        if (!screens) cuda_head_copy_destroy(&models[i]->head_copy);
    }
}

static kakeya_status create_group(const backend_model_options *options, backend_model **out, kakeya_error *error) {
    backend_model *models[CUDA_MAX_DEVICES] = {NULL};
    int n = options->n_devices;
    cuda_tp_group *group = NULL;
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < n && !status; i++)
        status = cuda_model_create(options, options->devices[i], (model_shard){i, n}, &models[i], error);
    if (!status) {
        level(models, n);
        status = cuda_tp_group_create(models, n, &group, error);
    }
    if (status) {
        for (int i = 0; i < n; i++) cuda_model_destroy(models[i]);
        return status;
    }
    char alone[sizeof models[0]->description];
    memcpy(alone, models[0]->description, sizeof alone);
    snprintf(models[0]->description, sizeof models[0]->description, "%.100s x %d", alone, n);
    *out = models[0];
    return KAKEYA_OK;
}

kakeya_status cuda_devices_create(const backend_model_options *options, backend_model **out, kakeya_error *error) {
    *out = NULL;
    kakeya_status status = check_devices(options, error);
    if (status) return status;
    if (options->n_devices > 1) return create_group(options, out, error);
    int device = options->n_devices == 1 ? options->devices[0] : 0;
    return cuda_model_create(options, device, (model_shard){0, 1}, out, error);
}

void cuda_devices_destroy(backend_model *m) {
    backend_model *models[CUDA_MAX_DEVICES] = {m};
    int n = m ? devices_of(m) : 0;
    for (int i = 1; i < n; i++) models[i] = cuda_tp_group_model(m->tp_group, i);
    if (m) cuda_tp_group_destroy(m->tp_group);
    if (m) cuda_tower_destroy(m->tower);
    for (int i = 0; i < n; i++) cuda_model_destroy(models[i]);
}

/* ------------------------------------------------------------------------------------------------------- caches */

static backend_cache *cache_of(const backend_cache *c, int index) {
    return index ? c->other[index] : (backend_cache *)(uintptr_t)c;
}

kakeya_status cuda_devices_cache_create(backend_model *m, const backend_cache_options *options, backend_cache **out,
                                        kakeya_error *error) {
    kakeya_status status = cuda_cache_create(m, options, out, error);
    for (int i = 1; i < devices_of(m) && !status; i++)
        status = cuda_cache_create(cuda_tp_group_model(m->tp_group, i), options, &(*out)->other[i], error);
    if (status) {
        cuda_devices_cache_destroy(*out);
        *out = NULL;
    }
    return status;
}

void cuda_devices_cache_destroy(backend_cache *c) {
    if (!c) return;
    for (int i = CUDA_MAX_DEVICES - 1; i >= 0; i--) {
        backend_cache *one = cache_of(c, i);
        if (!one) continue;
        (void)cuda_device_use(&one->model->device, NULL);
        cuda_cache_destroy(one);
    }
}

kakeya_status cuda_devices_fork(const backend_cache *c, mem_account *account, backend_cache **out,
                                kakeya_error *error) {
    kakeya_status status = cuda_cache_fork(c, account, out, error);
    for (int i = 1; i < devices_of(c->model) && !status; i++)
        status = cuda_cache_fork(c->other[i], account, &(*out)->other[i], error);
    if (status) {
        cuda_devices_cache_destroy(*out);
        *out = NULL;
    }
    return status;
}

/* What one timeline refuses all refuse, so nothing has changed then. A lost device is left behind. */
kakeya_status cuda_devices_commit(backend_cache *c, int n, kakeya_error *error) {
    kakeya_status status = cuda_cache_commit(c, n, error);
    if (status == KAKEYA_INVALID_ARGUMENT) return status;
    for (int i = 1; i < devices_of(c->model); i++) {
        kakeya_status other = cuda_cache_commit(c->other[i], n, status ? NULL : error);
        if (!status) status = other;
    }
    return status;
}

kakeya_status cuda_devices_truncate(backend_cache *c, int length, kakeya_error *error) {
    kakeya_status status = cuda_cache_truncate(c, length, error);
    if (status == KAKEYA_INVALID_ARGUMENT) return status;
    for (int i = 1; i < devices_of(c->model); i++) {
        kakeya_status other = cuda_cache_truncate(c->other[i], length, status ? NULL : error);
        if (!status) status = other;
    }
    return status;
}

backend_cache_bytes cuda_devices_bytes(const backend_cache *c) {
    backend_cache_bytes sum = cuda_cache_bytes(c);
    for (int i = 1; i < devices_of(c->model); i++) {
        backend_cache_bytes more = cuda_cache_bytes(c->other[i]);
        sum.full += more.full;
        sum.sliding += more.sliding;
        sum.latent += more.latent;
        sum.draft += more.draft;
        sum.total += more.total;
        sum.shared_full += more.shared_full;
        sum.shared_latent += more.shared_latent;
    }
    return sum;
}

/* -------------------------------------------------------------------------------------------------- computation */

typedef struct group_forward {
    backend_model *model;
    backend_segment *segments;
    int n;
    kakeya_status status[CUDA_MAX_DEVICES];
    kakeya_error error[CUDA_MAX_DEVICES];
    kakeya_status of_segment[CUDA_MAX_DEVICES][BACKEND_MAX_FORWARD];
} group_forward;

static void forward_one(void *context, int index) {
    group_forward *f = context;
    backend_segment copy[BACKEND_MAX_FORWARD]; /* with the device's caches */
    memcpy(copy, f->segments, (size_t)f->n * sizeof *copy);
    for (int s = 0; s < f->n; s++) copy[s].cache = cache_of(copy[s].cache, index);
    f->status[index] = cuda_forward(cuda_tp_group_model(f->model->tp_group, index), copy, f->n, &f->error[index]);
    for (int s = 0; s < f->n; s++) f->of_segment[index][s] = copy[s].status;
}

/* The caches are the model's, which the first device would say too late: the others need theirs. */
static kakeya_status check_caches(const backend_model *m, const backend_segment *segments, int n, kakeya_error *error) {
    if (n < 1 || n > BACKEND_MAX_FORWARD)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%d segments in one forward; 1 to %d are possible", n,
                         (int)BACKEND_MAX_FORWARD);
    for (int s = 0; s < n; s++) {
        if (segments[s].cache->model != m)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d: cache of another model", s);
    }
    return KAKEYA_OK;
}

kakeya_status cuda_devices_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error) {
    if (!m->tp_group) return cuda_forward(m, segments, n_segments, error);
    kakeya_status status = check_caches(m, segments, n_segments, error);
    if (status) return status;
    group_forward f = {.model = m, .segments = segments, .n = n_segments};
    cuda_tp_group_run(m->tp_group, forward_one, &f);
    for (int s = 0; s < n_segments; s++) {
        segments[s].status = KAKEYA_OK;
        for (int i = devices_of(m) - 1; i >= 0; i--) {
            if (f.of_segment[i][s]) segments[s].status = f.of_segment[i][s];
        }
    }
    if (f.status[0] && error) *error = f.error[0];
    return f.status[0];
}

typedef struct group_draft {
    backend_model *model;
    const backend_draft_request *requests;
    int n;
    kakeya_status status[CUDA_MAX_DEVICES];
    kakeya_error error[CUDA_MAX_DEVICES];
    kakeya_status of_request[CUDA_MAX_DEVICES][BACKEND_MAX_SEGMENTS];
} group_draft;

/* The first device drafts. The others keep their context beside it, which restoration reads. */
static void draft_one(void *context, int index) {
    group_draft *d = context;
    backend_model *m = cuda_tp_group_model(d->model->tp_group, index);
    backend_draft_request copy[BACKEND_MAX_SEGMENTS]; /* with the device's caches */
    kakeya_status status;
    memcpy(copy, d->requests, (size_t)d->n * sizeof *copy);
    for (int s = 0; s < d->n; s++) copy[s].cache = cache_of(copy[s].cache, index);
    if (index == 0) {
        status = cuda_draft(m, copy, d->n, &d->error[0]);
    } else {
        status = cuda_draft_begin(m, copy, d->n, &d->error[index]);
        kakeya_status finished = cuda_finish(&m->device, "drafting a block", status ? NULL : &d->error[index]);
        if (!status) status = finished;
    }
    for (int s = 0; s < d->n; s++) d->of_request[index][s] = copy[s].status;
    d->status[index] = status;
}

kakeya_status cuda_devices_draft(backend_model *m, backend_draft_request *requests, int n_requests,
                                 kakeya_error *error) {
    if (!m->tp_group || n_requests < 1 || n_requests > BACKEND_MAX_SEGMENTS)
        return cuda_draft(m, requests, n_requests, error);
    for (int s = 0; s < n_requests; s++) {
        if (requests[s].cache->model != m)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "draft request %d: cache of another model", s);
    }
    group_draft d = {.model = m, .requests = requests, .n = n_requests};
    int devices = devices_of(m);
    cuda_tp_group_run(m->tp_group, draft_one, &d);
    kakeya_status status = KAKEYA_OK;
    for (int i = devices - 1; i >= 0; i--) {
        for (int s = 0; s < n_requests; s++) {
            if (i == devices - 1) requests[s].status = KAKEYA_OK;
            if (d.of_request[i][s]) requests[s].status = d.of_request[i][s];
        }
        if (!d.status[i]) continue;
        status = d.status[i];
        if (error) *error = d.error[i];
    }
    return status;
}
