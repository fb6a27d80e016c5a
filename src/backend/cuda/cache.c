#include "backend/cuda/cache.h"

#include <stdlib.h>
#include <string.h>

#include "model/sizes.h"

static int native_capacity(const backend_cache *c) { return kv_ring_positions(c->model->config->sliding_window); }

static int bounded_capacity(const backend_cache *c) {
    int bounded = kv_ring_positions(c->options.window), native = native_capacity(c);
    return bounded < native ? bounded : native;
}

bool cuda_cache_bounds_layer(const backend_cache *c, int layer) {
    if (c->options.attention == KAKEYA_ATTENTION_NATIVE) return false;
    if (c->model->config->layer[layer].type == GEMMA4_SLIDING) return true;
    return c->options.attention == KAKEYA_ATTENTION_RESTORED && c->options.restore_layers == KAKEYA_RESTORE_ALL;
}

bool cuda_cache_restores_layer(const backend_cache *c, int layer) {
    return c->options.attention == KAKEYA_ATTENTION_RESTORED && cuda_cache_bounds_layer(c, layer);
}

int cuda_cache_frontier(const backend_cache *c) {
    if (c->options.attention == KAKEYA_ATTENTION_NATIVE || c->n_runs == 0) return 0;
    int frontier = c->runs[c->n_runs - 1].end - c->options.window;
    return frontier > 0 ? frontier : 0;
}

static size_t row_bytes(const layer_store *s) { return (size_t)s->kv_dim * sizeof(cuda_bf16); }

static mem_tag layer_tag(const backend_cache *c, int layer) {
    return c->model->config->layer[layer].type == GEMMA4_FULL ? MEM_KV_FULL : MEM_KV_SLIDING;
}

static size_t code_bytes(const backend_cache *c) {
    return 2 * (size_t)c->model->options.f_theta->config.rank * sizeof(cuda_bf16);
}

static kakeya_status allocate(backend_cache *c, cuda_buffer *buffer, mem_tag tag, size_t bytes, kakeya_error *error) {
    return cuda_buffer_create(buffer, &c->model->device, c->account, tag, bytes, mem_tag_name(tag), error);
}

/* ------------------------------------------------------------------------------------------------ creation */

static kakeya_status ring_allocate(backend_cache *c, layer_store *s, int capacity, kakeya_error *error) {
    size_t bytes = row_bytes(s) * (size_t)capacity;
    s->k = s->v = (cuda_buffer){0};
    kakeya_status status = allocate(c, &s->v, MEM_KV_SLIDING, bytes, error);
    if (!status && s->has_k) status = allocate(c, &s->k, MEM_KV_SLIDING, bytes, error);
    if (status)
        cuda_buffer_destroy(&s->v);
    else
        s->capacity = capacity;
    return status;
}

/* Positions that a store which grows may come to hold. */
static size_t largest_positions(const backend_cache *c) {
    size_t positions = (size_t)c->options.context_tokens + KV_PAGE_POSITIONS - 1;
    return positions / KV_PAGE_POSITIONS * KV_PAGE_POSITIONS;
}

static kakeya_status create_layer(backend_cache *c, int layer, kakeya_error *error) {
    const gemma4_layer_config *lc = &c->model->config->layer[layer];
    layer_store *s = &c->layer[layer];
    if (lc->kv_source != layer) return KAKEYA_OK;
    s->kv_dim = lc->kv_heads * lc->head_dim;
    s->has_k = !lc->k_eq_v;
    kakeya_status status = KAKEYA_OK;
    mem_tag tag = layer_tag(c, layer);
    if (cuda_cache_bounds_layer(c, layer) && c->options.sink > 0) {
        size_t bytes = row_bytes(s) * (size_t)c->options.sink;
        status = allocate(c, &s->sink_v, tag, bytes, error);
        if (!status && s->has_k) status = allocate(c, &s->sink_k, tag, bytes, error);
        if (status) return status;
    }
    if (lc->type == GEMMA4_SLIDING) {
        s->kind = STORE_RING;
        return ring_allocate(c, s, native_capacity(c), error);
    }
    s->kind = STORE_PAGES;
    size_t largest = largest_positions(c) * row_bytes(s);
    status = cuda_extent_create(&s->pages_v, &c->model->device, c->account, tag, largest, error);
    if (!status && s->has_k)
        status = cuda_extent_create(&s->pages_k, &c->model->device, c->account, tag, largest, error);
    return status;
}

static kakeya_status create_latents(backend_cache *c, kakeya_error *error) {
    const gemma4_config *config = c->model->config;
    latent_store *s = &c->latent;
    s->heads = 0;
    for (int i = 0; i < config->layers; i++) {
        bool own = config->layer[i].kv_source == i && cuda_cache_restores_layer(c, i);
        s->head_offset[i] = own ? s->heads : -1;
        if (own) s->heads += config->layer[i].kv_heads;
    }
    s->ring = c->options.restore_layers == KAKEYA_RESTORE_SLIDING;
    size_t scale_bytes = (size_t)s->heads * sizeof(float);
    kakeya_status status;
    if (s->ring) {
        s->capacity = native_capacity(c);
        status = allocate(c, &s->codes, MEM_KV_LATENT, (size_t)s->capacity * code_bytes(c), error);
        if (!status) status = allocate(c, &s->scales, MEM_KV_LATENT, (size_t)s->capacity * scale_bytes, error);
        return status;
    }
    const cuda_device *device = &c->model->device;
    size_t positions = largest_positions(c);
    status = cuda_extent_create(&s->pages_codes, device, c->account, MEM_KV_LATENT, positions * code_bytes(c), error);
    if (!status)
        status =
            cuda_extent_create(&s->pages_scales, device, c->account, MEM_KV_LATENT, positions * scale_bytes, error);
    return status;
}

static kakeya_status create_drafter(backend_cache *c, kakeya_error *error) {
    const dflash_config *d = &c->model->options.drafter->config;
    size_t row = (size_t)(d->kv_heads * d->head_dim) * sizeof(cuda_bf16);
    for (int i = 0; i < d->layers; i++) {
        draft_store *s = &c->draft[i];
        s->window = c->options.draft_window;
        if (d->sliding_window[i] && d->sliding_window[i] < s->window) s->window = d->sliding_window[i];
        s->capacity = kv_ring_positions(s->window);
        kakeya_status status = allocate(c, &s->k, MEM_KV_DRAFT, row * (size_t)s->capacity, error);
        if (!status) status = allocate(c, &s->v, MEM_KV_DRAFT, row * (size_t)s->capacity, error);
        if (status) return status;
    }
    size_t backlog = (size_t)CUDA_AUX_BACKLOG * (size_t)d->targets * (size_t)c->model->config->hidden * sizeof(float);
    return allocate(c, &c->aux_backlog, MEM_WORKSPACE, backlog, error);
}

static kakeya_status check_options(const backend_model *m, const backend_cache_options *o, kakeya_error *error) {
    if (o->context_tokens < 1 || o->context_tokens > m->config->max_context) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "context of %d tokens is outside 1 to %d, the model's maximum",
                         o->context_tokens, m->config->max_context);
    }
    bool bounded = o->attention != KAKEYA_ATTENTION_NATIVE;
    if (bounded && (o->sink < 0 || o->sink > o->context_tokens)) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "sink %d is outside 0 to %d", o->sink, o->context_tokens);
    }
    if (bounded && o->window < 1) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "window %d must be at least 1", o->window);
    }
    if (o->keep_draft_context && (o->draft_window < 1 || o->draft_window > m->config->max_context)) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "draft window %d is outside 1 to %d", o->draft_window,
                         m->config->max_context);
    }
    if (o->attention == KAKEYA_ATTENTION_RESTORED && (!m->options.drafter || !m->options.f_theta)) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "attention 'restored' needs a drafter and an f_theta (%s missing)",
                         m->options.drafter ? "f_theta" : "drafter");
    }
    if (o->kv_format != KV_FORMAT_BF16) {
        return error_set(error, KAKEYA_UNSUPPORTED, "K/V format %s is not supported by backend cuda, which keeps bf16",
                         kv_format_name(o->kv_format));
    }
    return KAKEYA_OK;
}

static void *address_of(const cuda_extent *e) { return (void *)(uintptr_t)e->address; }

kakeya_status cuda_cache_update_view(backend_cache *c, kakeya_error *error) {
    const gemma4_config *config = c->model->config;
    cuda_cache_view view;
    memset(&view, 0, sizeof view);
    for (int i = 0; i < config->layers; i++) {
        layer_store *s = &c->layer[i];
        if (s->kind == STORE_NONE) continue;
        bool pages = s->kind == STORE_PAGES;
        view.layer[i] = (cuda_layer_view){
            .k = pages ? address_of(&s->pages_k) : s->k.data,
            .v = pages ? address_of(&s->pages_v) : s->v.data,
            .sink_k = s->sink_k.data,
            .sink_v = s->sink_v.data,
            .capacity = pages ? 0 : s->capacity,
            .bounded = cuda_cache_bounds_layer(c, i),
            .restored = cuda_cache_restores_layer(c, i),
            .latent_head = c->latent.head_offset[i],
        };
    }
    const latent_store *latent = &c->latent;
    view.latent = (cuda_latent_view){
        .codes = latent->ring ? latent->codes.data : address_of(&latent->pages_codes),
        .scales = latent->ring ? latent->scales.data : address_of(&latent->pages_scales),
        .capacity = latent->ring ? latent->capacity : 0,
        .heads = latent->heads,
    };
    for (int i = 0; c->options.keep_draft_context && i < c->model->options.drafter->config.layers; i++) {
        const draft_store *s = &c->draft[i];
        view.draft[i] = (cuda_draft_view){s->k.data, s->v.data, s->capacity, s->window};
    }
    view.aux = c->aux_backlog.data;
    cudaError_t status =
        cudaMemcpyAsync(c->view.data, &view, sizeof view, cudaMemcpyHostToDevice, c->model->device.stream);
    if (status == cudaSuccess) status = cudaStreamSynchronize(c->model->device.stream);
    return cuda_check(status, "updating a cache's addresses", error);
}

kakeya_status cuda_cache_create(backend_model *m, const backend_cache_options *options, backend_cache **out,
                                kakeya_error *error) {
    *out = NULL;
    kakeya_status status = check_options(m, options, error);
    if (!status) status = cuda_device_use(&m->device, error);
    if (status) return status;
    backend_cache *c = calloc(1, sizeof *c);
    if (!c) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a cache");
    c->model = m;
    c->options = *options;
    c->account = options->account;
    if (c->options.attention == KAKEYA_ATTENTION_RESTORED) c->options.keep_draft_context = true;
    if (!m->options.drafter) c->options.keep_draft_context = false;
    for (int i = 0; !status && i < m->config->layers; i++) status = create_layer(c, i, error);
    if (!status && c->options.attention == KAKEYA_ATTENTION_RESTORED) status = create_latents(c, error);
    if (!status && c->options.keep_draft_context) status = create_drafter(c, error);
    if (!status) status = allocate(c, &c->view, MEM_WORKSPACE, sizeof(cuda_cache_view), error);
    if (!status) status = cuda_cache_update_view(c, error);
    if (status) {
        cuda_cache_destroy(c);
        return status;
    }
    *out = c;
    return KAKEYA_OK;
}

void cuda_cache_destroy(backend_cache *c) {
    if (!c) return;
    (void)cudaStreamSynchronize(c->model->device.stream);
    for (int i = 0; i < GEMMA4_MAX_LAYERS; i++) {
        layer_store *s = &c->layer[i];
        cuda_buffer_destroy(&s->k);
        cuda_buffer_destroy(&s->v);
        cuda_buffer_destroy(&s->sink_k);
        cuda_buffer_destroy(&s->sink_v);
        cuda_extent_destroy(&s->pages_k);
        cuda_extent_destroy(&s->pages_v);
    }
    cuda_buffer_destroy(&c->latent.codes);
    cuda_buffer_destroy(&c->latent.scales);
    cuda_extent_destroy(&c->latent.pages_codes);
    cuda_extent_destroy(&c->latent.pages_scales);
    for (int i = 0; i < DFLASH_MAX_LAYERS; i++) {
        cuda_buffer_destroy(&c->draft[i].k);
        cuda_buffer_destroy(&c->draft[i].v);
    }
    cuda_buffer_destroy(&c->aux_backlog);
    cuda_buffer_destroy(&c->view);
    free(c->runs);
    free(c);
}

/* ------------------------------------------------------------------------------------------------- growth */

/* Oldest position that a ring still holds. */
static int ring_oldest(const backend_cache *c, const layer_store *s) {
    int oldest = c->high - s->capacity;
    if (c->held_from > oldest) oldest = c->held_from;
    return oldest > 0 ? oldest : 0;
}

/* Positions [begin, end) from ring to ring, in runs that are contiguous in both. */
static cudaError_t copy_ring(const backend_cache *c, const cuda_buffer *to, int to_capacity, const cuda_buffer *from,
                             int from_capacity, size_t row, int begin, int end) {
    cudaError_t status = cudaSuccess;
    for (int p = begin; p < end && status == cudaSuccess;) {
        int at = p % to_capacity, source = p % from_capacity, n = end - p;
        if (n > to_capacity - at) n = to_capacity - at;
        if (n > from_capacity - source) n = from_capacity - source;
        status = cudaMemcpyAsync((char *)to->data + (size_t)at * row, (const char *)from->data + (size_t)source * row,
                                 (size_t)n * row, cudaMemcpyDeviceToDevice, c->model->device.stream);
        p += n;
    }
    return status;
}

/* Moves every bounded ring to another capacity. All new rings exist before an old one goes. */
static kakeya_status resize_rings(backend_cache *c, int capacity, kakeya_error *error) {
    const gemma4_config *config = c->model->config;
    layer_store *fresh = calloc((size_t)config->layers, sizeof *fresh);
    if (!fresh) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for %d layers", config->layers);
    kakeya_status status = KAKEYA_OK;
    int oldest = 0;
    for (int i = 0; i < config->layers && !status; i++) {
        layer_store *s = &c->layer[i];
        if (s->kind != STORE_RING) continue;
        fresh[i] = *s;
        status = ring_allocate(c, &fresh[i], capacity, error);
        if (status) fresh[i].k = fresh[i].v = (cuda_buffer){0};
        if (status) break;
        oldest = ring_oldest(c, s);
        if (c->length - capacity > oldest) oldest = c->length - capacity;
        size_t row = row_bytes(s);
        cudaError_t copied = copy_ring(c, &fresh[i].v, capacity, &s->v, s->capacity, row, oldest, c->length);
        if (copied == cudaSuccess && s->has_k)
            copied = copy_ring(c, &fresh[i].k, capacity, &s->k, s->capacity, row, oldest, c->length);
        status = cuda_check(copied, "moving the K/V of sliding layers", error);
    }
    if (!status) status = cuda_finish(&c->model->device, "moving the K/V of sliding layers", error);
    for (int i = 0; i < config->layers; i++) {
        if (fresh[i].kind != STORE_RING) continue;
        layer_store *gone = status ? &fresh[i] : &c->layer[i];
        cuda_buffer_destroy(&gone->k);
        cuda_buffer_destroy(&gone->v);
        if (!status) c->layer[i] = fresh[i];
    }
    free(fresh);
    if (status) return status;
    c->held_from = oldest;
    c->high = c->length;
    return cuda_cache_update_view(c, error);
}

kakeya_status cuda_cache_cover_pages(backend_cache *c, int layer, kakeya_error *error) {
    layer_store *s = &c->layer[layer];
    size_t page = row_bytes(s) * KV_PAGE_POSITIONS, begin = (size_t)s->first_page * page,
           end = (size_t)s->n_pages * page;
    kakeya_status status = cuda_extent_cover(&s->pages_v, begin, end, error);
    if (!status && s->has_k) status = cuda_extent_cover(&s->pages_k, begin, end, error);
    return status;
}

static int pages_for(int positions) { return (positions + KV_PAGE_POSITIONS - 1) / KV_PAGE_POSITIONS; }

kakeya_status cuda_cache_reserve(backend_cache *c, int positions, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    int pages = pages_for(positions);
    for (int i = 0; !status && i < c->model->config->layers; i++) {
        layer_store *s = &c->layer[i];
        if (s->kind != STORE_PAGES || s->n_pages >= pages) continue;
        int had = s->n_pages;
        s->n_pages = pages;
        status = cuda_cache_cover_pages(c, i, error);
        if (status) s->n_pages = had;
    }
    latent_store *latent = &c->latent;
    if (status || c->options.attention != KAKEYA_ATTENTION_RESTORED || latent->ring || latent->n_pages >= pages)
        return status;
    size_t rows = (size_t)pages * KV_PAGE_POSITIONS;
    status = cuda_extent_cover(&latent->pages_codes, 0, rows * code_bytes(c), error);
    if (!status)
        status = cuda_extent_cover(&latent->pages_scales, 0, rows * (size_t)latent->heads * sizeof(float), error);
    if (!status) latent->n_pages = pages;
    return status;
}

kakeya_status cuda_cache_release_pages(backend_cache *c, kakeya_error *error) {
    int keep_from = c->length - c->options.window - BACKEND_MAX_DRAFT;
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < c->model->config->layers && !status; i++) {
        layer_store *s = &c->layer[i];
        if (s->kind != STORE_PAGES || !cuda_cache_bounds_layer(c, i)) continue;
        int first = s->first_page;
        while ((s->first_page + 1) * KV_PAGE_POSITIONS <= keep_from) s->first_page++;
        if (s->first_page != first) status = cuda_cache_cover_pages(c, i, error);
    }
    return status;
}

kakeya_status cuda_cache_drop_pages(backend_cache *c, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < c->model->config->layers && !status; i++) {
        layer_store *s = &c->layer[i];
        if (s->kind != STORE_PAGES) continue;
        int had = s->n_pages;
        while (s->n_pages > s->first_page && (s->n_pages - 1) * KV_PAGE_POSITIONS >= c->length) s->n_pages--;
        if (s->n_pages != had) status = cuda_cache_cover_pages(c, i, error);
    }
    return status;
}

kakeya_status cuda_cache_reserve_run(backend_cache *c, kakeya_error *error) {
    if (c->n_runs < c->max_runs) return KAKEYA_OK;
    int grown = c->max_runs ? 2 * c->max_runs : 16;
    decode_run *runs = realloc(c->runs, (size_t)grown * sizeof *runs);
    if (!runs) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for %d runs", grown);
    c->runs = runs;
    c->max_runs = grown;
    return KAKEYA_OK;
}

kakeya_status cuda_cache_take_form(backend_cache *c, bool decoding, kakeya_error *error) {
    if (c->options.attention == KAKEYA_ATTENTION_NATIVE || c->decoding == decoding) return KAKEYA_OK;
    kakeya_status status = resize_rings(c, decoding ? bounded_capacity(c) : native_capacity(c), error);
    if (!status) c->decoding = decoding;
    return status;
}

/* ------------------------------------------------------------------------------------------- how far it can go back */

int cuda_cache_min_truncate(const backend_cache *c) {
    int least = 0;
    bool bounded = c->options.attention != KAKEYA_ATTENTION_NATIVE;
    int reach = bounded && c->decoding ? c->options.window : c->model->config->sliding_window;
    for (int i = 0; i < c->model->config->layers; i++) {
        const layer_store *s = &c->layer[i];
        int held = s->kind == STORE_RING    ? ring_oldest(c, s)
                   : s->kind == STORE_PAGES ? s->first_page * KV_PAGE_POSITIONS
                                            : 0;
        int needs = s->kind == STORE_RING ? reach : c->options.window;
        if (held > 0 && held + needs > least) least = held + needs;
    }
    if (c->options.attention == KAKEYA_ATTENTION_RESTORED && c->latent.ring) {
        int held = c->high - c->latent.capacity;
        if (held > 0 && held + c->model->config->sliding_window > least)
            least = held + c->model->config->sliding_window;
    }
    if (bounded && c->n_runs && cuda_cache_frontier(c) > c->options.sink) {
        /* Earlier turns evicted by their own rule; their state cannot be had back. */
        int last = c->runs[c->n_runs - 1].begin + 1;
        if (!c->decoding) last = c->runs[c->n_runs - 1].end;
        if (last > least) least = last;
    }
    return least < c->length ? least : c->length;
}

/* -------------------------------------------------------------------------------------------------------- fork */

static cudaError_t copy_buffer(const backend_cache *c, cuda_buffer *to, const cuda_buffer *from) {
    if (!from->data) return cudaSuccess;
    return cudaMemcpyAsync(to->data, from->data, from->bytes, cudaMemcpyDeviceToDevice, c->model->device.stream);
}

static cudaError_t copy_extent(const backend_cache *c, cuda_extent *to, const cuda_extent *from) {
    size_t granule = c->model->device.memory.granule_bytes, bytes = cuda_extent_bytes(from);
    if (!bytes) return cudaSuccess;
    return cudaMemcpyAsync((void *)(uintptr_t)(to->address + from->first * granule),
                           (const void *)(uintptr_t)(from->address + from->first * granule), bytes,
                           cudaMemcpyDeviceToDevice, c->model->device.stream);
}

/* The copy's stores take the form of the original's, then its contents, device to device. */
static kakeya_status copy_stores(backend_cache *copy, const backend_cache *c, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    cudaError_t copied = cudaSuccess;
    for (int i = 0; i < c->model->config->layers && !status; i++) {
        const layer_store *from = &c->layer[i];
        layer_store *to = &copy->layer[i];
        if (from->kind == STORE_RING && to->capacity != from->capacity) {
            cuda_buffer_destroy(&to->k);
            cuda_buffer_destroy(&to->v);
            status = ring_allocate(copy, to, from->capacity, error);
        } else if (from->kind == STORE_PAGES) {
            to->first_page = from->first_page;
            to->n_pages = from->n_pages;
            status = cuda_cache_cover_pages(copy, i, error);
        }
        if (status) return status;
        const cuda_buffer *sources[] = {&from->k, &from->v, &from->sink_k, &from->sink_v};
        cuda_buffer *targets[] = {&to->k, &to->v, &to->sink_k, &to->sink_v};
        for (int b = 0; b < 4 && copied == cudaSuccess; b++) copied = copy_buffer(c, targets[b], sources[b]);
        if (from->kind != STORE_PAGES) continue;
        if (copied == cudaSuccess) copied = copy_extent(c, &to->pages_v, &from->pages_v);
        if (copied == cudaSuccess && from->has_k) copied = copy_extent(c, &to->pages_k, &from->pages_k);
    }
    const latent_store *from = &c->latent;
    latent_store *to = &copy->latent;
    if (from->n_pages) {
        size_t rows = (size_t)from->n_pages * KV_PAGE_POSITIONS;
        status = cuda_extent_cover(&to->pages_codes, 0, rows * code_bytes(c), error);
        if (!status)
            status = cuda_extent_cover(&to->pages_scales, 0, rows * (size_t)from->heads * sizeof(float), error);
        if (status) return status;
        to->n_pages = from->n_pages;
        if (copied == cudaSuccess) copied = copy_extent(c, &to->pages_codes, &from->pages_codes);
        if (copied == cudaSuccess) copied = copy_extent(c, &to->pages_scales, &from->pages_scales);
    }
    if (copied == cudaSuccess) copied = copy_buffer(c, &to->codes, &from->codes);
    if (copied == cudaSuccess) copied = copy_buffer(c, &to->scales, &from->scales);
    for (int i = 0; i < DFLASH_MAX_LAYERS && copied == cudaSuccess; i++) {
        copied = copy_buffer(c, &copy->draft[i].k, &c->draft[i].k);
        if (copied == cudaSuccess) copied = copy_buffer(c, &copy->draft[i].v, &c->draft[i].v);
    }
    if (copied == cudaSuccess) copied = copy_buffer(c, &copy->aux_backlog, &c->aux_backlog);
    return cuda_check(copied, "forking a cache", error);
}

kakeya_status cuda_cache_fork(const backend_cache *c, mem_account *account, backend_cache **out, kakeya_error *error) {
    *out = NULL;
    if (c->pending) return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot fork with %d pending rows", c->pending);
    backend_cache_options options = c->options;
    options.account = account;
    backend_cache *copy = NULL;
    kakeya_status status = cuda_cache_create(c->model, &options, &copy, error);
    if (!status && c->n_runs) {
        copy->runs = malloc((size_t)c->n_runs * sizeof *copy->runs);
        if (!copy->runs)
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for %d runs", c->n_runs);
        else
            memcpy(copy->runs, c->runs, (size_t)c->n_runs * sizeof *copy->runs);
        copy->n_runs = copy->max_runs = status ? 0 : c->n_runs;
    }
    if (!status) status = copy_stores(copy, c, error);
    if (!status) {
        copy->length = c->length;
        copy->high = c->high;
        copy->held_from = c->held_from;
        copy->decoding = c->decoding;
        copy->draft_length = c->draft_length;
        copy->draft_from = c->draft_from;
        status = cuda_cache_update_view(copy, error);
    }
    if (status) {
        cuda_cache_destroy(copy);
        return status;
    }
    *out = copy;
    return KAKEYA_OK;
}

/* Whole granules that hold bytes [begin, end). */
static size_t granules_of(const backend_cache *c, size_t begin, size_t end) {
    size_t granule = c->model->device.memory.granule_bytes;
    return end > begin ? ((end + granule - 1) / granule - begin / granule) * granule : 0;
}

/* The layout's formula; tests hold it against the allocator's counters. */
backend_cache_bytes cuda_cache_bytes(const backend_cache *c) {
    backend_cache_bytes b = {0};
    for (int i = 0; i < c->model->config->layers; i++) {
        const layer_store *s = &c->layer[i];
        size_t copies = s->has_k ? 2 : 1, bytes = 0, page = row_bytes(s) * KV_PAGE_POSITIONS;
        if (s->kind == STORE_NONE) continue;
        if (s->sink_v.data) bytes += copies * mem_rounded(row_bytes(s) * (size_t)c->options.sink);
        if (s->kind == STORE_RING)
            bytes += copies * mem_rounded(row_bytes(s) * (size_t)s->capacity);
        else
            bytes += copies * granules_of(c, (size_t)s->first_page * page, (size_t)s->n_pages * page);
        if (layer_tag(c, i) == MEM_KV_FULL)
            b.full += bytes;
        else
            b.sliding += bytes;
    }
    if (c->options.attention == KAKEYA_ATTENTION_RESTORED) {
        size_t scale = (size_t)c->latent.heads * sizeof(float), rows = (size_t)c->latent.n_pages * KV_PAGE_POSITIONS;
        if (c->latent.ring) {
            b.latent += mem_rounded((size_t)c->latent.capacity * code_bytes(c)) +
                        mem_rounded((size_t)c->latent.capacity * scale);
        } else {
            b.latent += granules_of(c, 0, rows * code_bytes(c)) + granules_of(c, 0, rows * scale);
        }
    }
    if (c->options.keep_draft_context) {
        const dflash_config *d = &c->model->options.drafter->config;
        size_t row = (size_t)(d->kv_heads * d->head_dim) * sizeof(cuda_bf16);
        for (int i = 0; i < d->layers; i++) b.draft += 2 * mem_rounded(row * (size_t)c->draft[i].capacity);
    }
    return b;
}
