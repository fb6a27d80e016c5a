#include "backend/cuda/stores.h"

#include <string.h>

/* ------------------------------------------------------------------------------------------------------- sizes */

size_t cuda_row_bytes(const backend_cache *c, int layer) { return c->t.layer[layer].row_bytes; }

size_t cuda_draft_row_bytes(const backend_cache *c) { return timeline_draft_row_bytes(&c->t); }

size_t cuda_code_bytes(const backend_cache *c) { return c->t.latent.bytes; }

size_t cuda_scale_bytes(const backend_cache *c) { return (size_t)c->t.latent_heads * sizeof(float); }

static bool is_ring(const backend_cache *c, int layer) { return c->t.layer[layer].kind == STORE_RING; }
static bool is_paged(const backend_cache *c, int layer) { return c->t.layer[layer].kind == STORE_PAGES; }
static int layers_of(const backend_cache *c) { return c->t.models.verifier->layers; }

/* ------------------------------------------------------------------------------------------------- allocation */

static kakeya_status allocate(backend_cache *c, cuda_buffer *buffer, mem_tag tag, size_t bytes, kakeya_error *error) {
    return cuda_buffer_create(buffer, &c->model->device, c->account, tag, bytes, mem_tag_name(tag), error);
}

static void ring_free(ring_store *ring) {
    cuda_buffer_destroy(&ring->k);
    cuda_buffer_destroy(&ring->v);
}

static kakeya_status ring_allocate(backend_cache *c, ring_store *ring, mem_tag tag, bool has_keys, size_t bytes,
                                   kakeya_error *error) {
    if (bytes == 0) return KAKEYA_OK;
    kakeya_status status = allocate(c, &ring->v, tag, bytes, error);
    if (!status && has_keys) status = allocate(c, &ring->k, tag, bytes, error);
    return status;
}

/* Rings of `capacity` lie one behind the other. That of the layer, which begins at `*at`; `*at` moves behind it. */
static ring_place ring_at(const backend_cache *c, const cuda_buffer *rings, int layer, int capacity, size_t *at) {
    size_t bytes = mem_rounded(cuda_row_bytes(c, layer) * (size_t)capacity);
    ring_place place = {.v = (char *)rings->data + *at};
    *at += bytes;
    if (!c->t.layer[layer].has_keys) return place;
    place.k = (char *)rings->data + *at;
    *at += bytes;
    return place;
}

/* Rings of `capacity` for all sliding layers: one piece of memory, since a session has 50 of them. */
static kakeya_status rings_allocate(backend_cache *c, cuda_buffer *rings, int capacity, kakeya_error *error) {
    size_t bytes = 0;
    for (int i = 0; i < layers_of(c); i++) {
        if (is_ring(c, i))
            bytes += (c->t.layer[i].has_keys ? 2 : 1) * mem_rounded(cuda_row_bytes(c, i) * (size_t)capacity);
    }
    return bytes ? allocate(c, rings, MEM_KV_SLIDING, bytes, error) : KAKEYA_OK;
}

static void place_rings(backend_cache *c, int capacity) {
    size_t at = 0;
    for (int i = 0; i < layers_of(c); i++) {
        if (is_ring(c, i)) c->layer[i].ring = ring_at(c, &c->rings, i, capacity, &at);
    }
}

static mem_tag layer_tag(const backend_cache *c, int layer) {
    return is_paged(c, layer) ? MEM_KV_FULL : MEM_KV_SLIDING;
}

static size_t most_positions(const backend_cache *c) {
    return (size_t)kv_pages(c->t.options.context_tokens) * KV_PAGE_POSITIONS;
}

static kakeya_status create_layer(backend_cache *c, int layer, kakeya_error *error) {
    const timeline_layer *l = &c->t.layer[layer];
    layer_store *s = &c->layer[layer];
    if (l->kind == STORE_NONE) return KAKEYA_OK;
    size_t row = cuda_row_bytes(c, layer), sink = l->bounded ? row * (size_t)c->t.options.sink : 0;
    kakeya_status status = ring_allocate(c, &s->sink, layer_tag(c, layer), l->has_keys, sink, error);
    if (status || l->kind == STORE_RING) return status;
    size_t most = most_positions(c) * row;
    status = cuda_extent_create(&s->pages_v, &c->model->device, c->account, MEM_KV_FULL, most, error);
    if (!status && l->has_keys)
        status = cuda_extent_create(&s->pages_k, &c->model->device, c->account, MEM_KV_FULL, most, error);
    return status;
}

static kakeya_status create_latents(backend_cache *c, kakeya_error *error) {
    latent_store *s = &c->latent;
    size_t codes = cuda_code_bytes(c), scales = cuda_scale_bytes(c), capacity = (size_t)c->t.latent_capacity;
    if (c->t.latents == STORE_RING) {
        kakeya_status status = allocate(c, &s->codes, MEM_KV_LATENT, capacity * codes, error);
        return status ? status : allocate(c, &s->scales, MEM_KV_LATENT, capacity * scales, error);
    }
    const cuda_device *device = &c->model->device;
    size_t most = most_positions(c);
    kakeya_status status = cuda_extent_create(&s->pages_codes, device, c->account, MEM_KV_LATENT, most * codes, error);
    return status ? status
                  : cuda_extent_create(&s->pages_scales, device, c->account, MEM_KV_LATENT, most * scales, error);
}

static kakeya_status create_drafter(backend_cache *c, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; !status && i < c->t.models.drafter->layers; i++) {
        size_t bytes = cuda_draft_row_bytes(c) * (size_t)c->t.draft[i].capacity;
        status = ring_allocate(c, &c->draft[i], MEM_KV_DRAFT, true, bytes, error);
    }
    return status;
}

static kakeya_status create_state(backend_cache *c, kakeya_error *error) {
    size_t bytes = timeline_state_bytes(&c->t);
    kakeya_status status = allocate(c, &c->state, MEM_KV_DRAFT, bytes, error);
    return status ? status : allocate(c, &c->pending_states, MEM_WORKSPACE, CUDA_DECODE_ROWS * bytes, error);
}

/* ----------------------------------------------------------------------------------------------------- sharing */

/* Every store of pages, with the bytes of a row and the first position to which a row may still be written. */
typedef kakeya_status (*visit_pages)(cuda_extent *extent, size_t row, int open, void *context, kakeya_error *error);

static kakeya_status walk_pages(backend_cache *c, visit_pages visit, void *context, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < layers_of(c) && !status; i++) {
        if (!is_paged(c, i)) continue;
        layer_store *s = &c->layer[i];
        status = visit(&s->pages_v, cuda_row_bytes(c, i), c->t.length, context, error);
        if (!status && c->t.layer[i].has_keys)
            status = visit(&s->pages_k, cuda_row_bytes(c, i), c->t.length, context, error);
    }
    if (status || c->t.latents != STORE_PAGES) return status;
    latent_store *l = &c->latent;
    status = visit(&l->pages_codes, cuda_code_bytes(c), c->t.latent_length, context, error);
    return status ? status : visit(&l->pages_scales, cuda_scale_bytes(c), c->t.latent_length, context, error);
}

/* Both caches have the same extents at the same places in them. */
typedef struct sharing {
    const backend_cache *to, *from;
} sharing;

static kakeya_status share_extent(cuda_extent *extent, size_t row, int open, void *context, kakeya_error *error) {
    const sharing *s = context;
    ptrdiff_t place = (char *)extent - (const char *)s->to;
    const cuda_extent *from = (const cuda_extent *)(const void *)((const char *)s->from + place);
    return cuda_extent_share(extent, from, (size_t)open * row, error);
}

static kakeya_status own_extent(cuda_extent *extent, size_t row, int open, void *context, kakeya_error *error) {
    (void)context;
    return cuda_extent_own(extent, (size_t)open * row, error);
}

kakeya_status cuda_stores_own(backend_cache *c, kakeya_error *error) { return walk_pages(c, own_extent, NULL, error); }

size_t cuda_stores_shared_full(const backend_cache *c) {
    size_t bytes = 0;
    for (int i = 0; i < layers_of(c); i++) {
        if (is_paged(c, i))
            bytes += cuda_extent_shared_bytes(&c->layer[i].pages_v) + cuda_extent_shared_bytes(&c->layer[i].pages_k);
    }
    return bytes;
}

size_t cuda_stores_shared_latent(const backend_cache *c) {
    return cuda_extent_shared_bytes(&c->latent.pages_codes) + cuda_extent_shared_bytes(&c->latent.pages_scales);
}

/* ------------------------------------------------------------------------------------------------------- pages */

/* Pages [first, end) of every store that grows have memory, and no others. */
static kakeya_status cover_pages(backend_cache *c, int first, int end, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < layers_of(c) && !status; i++) {
        if (!is_paged(c, i)) continue;
        layer_store *s = &c->layer[i];
        size_t page = cuda_row_bytes(c, i) * KV_PAGE_POSITIONS;
        status = cuda_extent_cover(&s->pages_v, (size_t)first * page, (size_t)end * page, error);
        if (!status && c->t.layer[i].has_keys)
            status = cuda_extent_cover(&s->pages_k, (size_t)first * page, (size_t)end * page, error);
    }
    if (status || c->t.latents != STORE_PAGES) return status;
    size_t rows = (size_t)end * KV_PAGE_POSITIONS;
    status = cuda_extent_cover(&c->latent.pages_codes, 0, rows * cuda_code_bytes(c), error);
    return status ? status : cuda_extent_cover(&c->latent.pages_scales, 0, rows * cuda_scale_bytes(c), error);
}

/* Copies the addresses of the stores to the device; capacity: of the rings. */
static kakeya_status update_view(backend_cache *c, int capacity, kakeya_error *error) {
    cuda_state_view all;
    memset(&all, 0, sizeof all);
    all.state = c->state.data;
    all.pending = c->pending_states.data;
    cuda_cache_view *view = &all.cache;
    cuda_bf16 *aside = c->aside.data;
    for (int i = 0; i < layers_of(c); i++) {
        const timeline_layer *l = &c->t.layer[i];
        const layer_store *s = &c->layer[i];
        if (l->kind == STORE_NONE) continue;
        bool ring = l->kind == STORE_RING;
        view->layer[i] = (cuda_layer_view){
            .k = ring ? s->ring.k : (void *)extent_data(&s->pages_k),
            .v = ring ? s->ring.v : (void *)extent_data(&s->pages_v),
            .sink_k = s->sink.k.data,
            .sink_v = s->sink.v.data,
            .values = l->values,
            .row_bytes = (int)l->row_bytes,
            .capacity = ring ? capacity : 0,
            .bounded = l->bounded,
            .restored = l->restored,
            .latent_head = l->latent_head,
        };
        if (!ring || !aside) continue;
        view->layer[i].aside_v = aside;
        aside += l->values;
        if (!l->has_keys) continue;
        view->layer[i].aside_k = aside;
        aside += l->values;
    }
    bool ring = c->t.latents == STORE_RING;
    if (c->t.latents != STORE_NONE)
        view->latent = (cuda_latent_view){
            .codes = ring ? c->latent.codes.data : (void *)extent_data(&c->latent.pages_codes),
            .scales = ring ? c->latent.scales.data : (void *)extent_data(&c->latent.pages_scales),
            .capacity = c->t.latent_capacity,
            .heads = c->t.latent_heads,
        };
    for (int i = 0; c->t.options.keep_draft_context && i < c->t.models.drafter->layers; i++)
        view->draft[i] =
            (cuda_draft_view){c->draft[i].k.data, c->draft[i].v.data, c->t.draft[i].capacity, c->t.draft[i].window};
    cudaStream_t stream = c->model->device.stream;
    cudaError_t status = cudaMemcpyAsync(c->view.data, &all, sizeof all, cudaMemcpyHostToDevice, stream);
    if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
    return cuda_check(status, "updating a cache's addresses", error);
}

kakeya_status cuda_stores_create(backend_cache *c, const backend_cache *from, kakeya_error *error) {
    sharing s = {c, from};
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; !status && i < layers_of(c); i++) status = create_layer(c, i, error);
    if (!status) status = rings_allocate(c, &c->rings, c->t.ring_capacity, error);
    if (!status) place_rings(c, c->t.ring_capacity);
    if (!status && c->t.latents != STORE_NONE) status = create_latents(c, error);
    if (!status && c->t.options.keep_draft_context) status = create_drafter(c, error);
    if (!status && c->t.keeps_backlog)
        status = allocate(c, &c->backlog, MEM_WORKSPACE, KV_BACKLOG * timeline_aux_row_bytes(&c->t), error);
    if (!status && c->t.keeps_state) status = create_state(c, error);
    if (!status) status = allocate(c, &c->view, MEM_WORKSPACE, sizeof(cuda_state_view), error);
    if (!status && from) status = walk_pages(c, share_extent, &s, error);
    if (!status) status = cover_pages(c, c->t.first_page, c->t.end_page, error);
    return status ? status : update_view(c, c->t.ring_capacity, error);
}

void cuda_stores_destroy(backend_cache *c) {
    (void)cudaStreamSynchronize(c->model->device.stream);
    for (int i = 0; i < MODEL_MAX_LAYERS; i++) {
        layer_store *s = &c->layer[i];
        ring_free(&s->sink);
        cuda_extent_destroy(&s->pages_k);
        cuda_extent_destroy(&s->pages_v);
    }
    cuda_buffer_destroy(&c->rings);
    cuda_buffer_destroy(&c->grown);
    cuda_buffer_destroy(&c->kept);
    cuda_buffer_destroy(&c->latent.codes);
    cuda_buffer_destroy(&c->latent.scales);
    cuda_extent_destroy(&c->latent.pages_codes);
    cuda_extent_destroy(&c->latent.pages_scales);
    for (int i = 0; i < BLOCK_DRAFTER_MAX_LAYERS; i++) ring_free(&c->draft[i]);
    cuda_buffer_destroy(&c->backlog);
    cuda_buffer_destroy(&c->aside);
    cuda_buffer_destroy(&c->state);
    cuda_buffer_destroy(&c->pending_states);
    cuda_buffer_destroy(&c->view);
}

void cuda_stores_trim(backend_cache *c) {
    cuda_buffer_destroy(&c->grown);
    cuda_buffer_destroy(&c->kept);
    (void)cover_pages(c, c->t.first_page, c->t.end_page, NULL); /* which only gives back */
}

/* ------------------------------------------------------------------------------------------------------ a step */

static kakeya_status reserve_aside(backend_cache *c, kakeya_error *error) {
    size_t bytes = 0;
    for (int i = 0; i < layers_of(c); i++) {
        if (is_ring(c, i)) bytes += cuda_row_bytes(c, i) * (c->t.layer[i].has_keys ? 2 : 1);
    }
    kakeya_status status = allocate(c, &c->aside, MEM_WORKSPACE, bytes, error);
    return status ? status : update_view(c, c->t.ring_capacity, error);
}

kakeya_status cuda_stores_reserve(backend_cache *c, const timeline_step *step, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    if (step->end_page != c->t.end_page) status = cover_pages(c, c->t.first_page, step->end_page, error);
    if (!status) status = cuda_stores_own(c, error);
    if (!status && step->ring_capacity != c->t.ring_capacity)
        status = rings_allocate(c, &c->grown, step->ring_capacity, error);
    if (!status && step->kept_capacity != step->ring_capacity)
        status = rings_allocate(c, &c->kept, step->kept_capacity, error);
    if (!status && step->set_aside >= 0 && !c->aside.data) status = reserve_aside(c, error);
    return status;
}

/* Positions from ring to ring, in runs that are contiguous in both. */
static cudaError_t copy_positions(const backend_cache *c, void *to, int to_capacity, const void *from,
                                  int from_capacity, size_t row, position_range moved) {
    cudaError_t status = cudaSuccess;
    for (int p = moved.begin; p < moved.end && status == cudaSuccess;) {
        int at = p % to_capacity, source = p % from_capacity, n = moved.end - p;
        if (n > to_capacity - at) n = to_capacity - at;
        if (n > from_capacity - source) n = from_capacity - source;
        status = cudaMemcpyAsync((char *)to + (size_t)at * row, (const char *)from + (size_t)source * row,
                                 (size_t)n * row, cudaMemcpyDeviceToDevice, c->model->device.stream);
        p += n;
    }
    return status;
}

/* The `reserved` rings replace the present ones and take over the rows `moved`. */
static kakeya_status move_rings(backend_cache *c, cuda_buffer *reserved, int capacity, position_range moved,
                                kakeya_error *error) {
    cudaError_t copied = cudaSuccess;
    size_t at = 0;
    for (int i = 0; i < layers_of(c) && copied == cudaSuccess; i++) {
        if (!is_ring(c, i)) continue;
        ring_place from = c->layer[i].ring, to = ring_at(c, reserved, i, capacity, &at);
        size_t row = cuda_row_bytes(c, i);
        copied = copy_positions(c, to.v, capacity, from.v, c->t.ring_capacity, row, moved);
        if (copied == cudaSuccess && to.k)
            copied = copy_positions(c, to.k, capacity, from.k, c->t.ring_capacity, row, moved);
    }
    kakeya_status status = cuda_check(copied, "moving the K/V of sliding layers", error);
    if (!status) status = cuda_finish(&c->model->device, "moving the K/V of sliding layers", error);
    cuda_buffer_destroy(&c->rings); /* the timeline changes its mind too, whatever the device says */
    c->rings = *reserved;
    *reserved = (cuda_buffer){0};
    place_rings(c, capacity);
    return status ? status : update_view(c, capacity, error);
}

kakeya_status cuda_stores_begin(backend_cache *c, const timeline_step *step, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    if (step->ring_capacity != c->t.ring_capacity)
        status = move_rings(c, &c->grown, step->ring_capacity, step->moved, error);
    if (!status && step->set_aside >= 0)
        cuda_set_aside(&c->model->launch, c->view.data, layers_of(c), step->set_aside, 0);
    return status;
}

/* That of the last row which is kept. */
static kakeya_status keep_state(backend_cache *c, int n, kakeya_error *error) {
    size_t bytes = timeline_state_bytes(&c->t), row = (size_t)((c->t.length + n - 1) % CUDA_DECODE_ROWS);
    cudaError_t status = cudaMemcpyAsync(c->state.data, (const char *)c->pending_states.data + row * bytes, bytes,
                                         cudaMemcpyDeviceToDevice, c->model->device.stream);
    return cuda_check(status, "keeping an assistant's state", error);
}

kakeya_status cuda_stores_keep(backend_cache *c, const timeline_keep *keep, kakeya_error *error) {
    if (keep->put_back >= 0) cuda_set_aside(&c->model->launch, c->view.data, layers_of(c), keep->put_back, 1);
    kakeya_status status = c->t.keeps_state && keep->n ? keep_state(c, keep->n, error) : KAKEYA_OK;
    if (status || !keep->ring_capacity) return status;
    return move_rings(c, &c->kept, keep->ring_capacity, keep->moved, error);
}

/* -------------------------------------------------------------------------------------------------------- copy */

static cudaError_t copy_buffer(const backend_cache *c, cuda_buffer *to, const cuda_buffer *from) {
    if (!from->data) return cudaSuccess;
    return cudaMemcpyAsync(to->data, from->data, from->bytes, cudaMemcpyDeviceToDevice, c->model->device.stream);
}

static cudaError_t copy_ring(const backend_cache *c, ring_store *to, const ring_store *from) {
    cudaError_t status = copy_buffer(c, &to->v, &from->v);
    return status == cudaSuccess ? copy_buffer(c, &to->k, &from->k) : status;
}

kakeya_status cuda_stores_copy(backend_cache *to, const backend_cache *from, kakeya_error *error) {
    cudaError_t status = cudaSuccess;
    for (int i = 0; i < layers_of(from) && status == cudaSuccess; i++) {
        const layer_store *s = &from->layer[i];
        layer_store *copy = &to->layer[i];
        status = copy_ring(from, &copy->sink, &s->sink);
        if (status == cudaSuccess) status = cuda_extent_copy(&copy->pages_v, &s->pages_v);
        if (status == cudaSuccess) status = cuda_extent_copy(&copy->pages_k, &s->pages_k);
    }
    const latent_store *latent = &from->latent;
    if (status == cudaSuccess) status = copy_buffer(from, &to->rings, &from->rings);
    if (status == cudaSuccess) status = copy_buffer(from, &to->latent.codes, &latent->codes);
    if (status == cudaSuccess) status = copy_buffer(from, &to->latent.scales, &latent->scales);
    if (status == cudaSuccess) status = cuda_extent_copy(&to->latent.pages_codes, &latent->pages_codes);
    if (status == cudaSuccess) status = cuda_extent_copy(&to->latent.pages_scales, &latent->pages_scales);
    for (int i = 0; i < BLOCK_DRAFTER_MAX_LAYERS && status == cudaSuccess; i++)
        status = copy_ring(from, &to->draft[i], &from->draft[i]);
    if (status == cudaSuccess) status = copy_buffer(from, &to->backlog, &from->backlog);
    if (status == cudaSuccess) status = copy_buffer(from, &to->state, &from->state);
    return cuda_check(status, "copying a cache", error);
}
