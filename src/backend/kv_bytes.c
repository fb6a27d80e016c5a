#include "backend/kv_bytes.h"

/* -------------------------------------------------------------------------------------------------------- held */

/* Whole granules that hold bytes [begin, end). */
static size_t granules(size_t begin, size_t end, size_t granule) {
    return end > begin ? ((end + granule - 1) / granule - begin / granule) * granule : 0;
}

/* Pages [first, end) of rows of one or two kinds (0: none). */
static size_t pages_bytes(size_t a, size_t b, int first, int end, size_t granule) {
    size_t from = (size_t)first * KV_PAGE_POSITIONS, to = (size_t)end * KV_PAGE_POSITIONS;
    if (granule) return granules(from * a, to * a, granule) + granules(from * b, to * b, granule);
    return (size_t)(end - first) * mem_rounded((a + b) * KV_PAGE_POSITIONS);
}

size_t kv_layer_bytes(const timeline *t, int layer, size_t granule) {
    const timeline_layer *l = &t->layer[layer];
    size_t row = l->row_bytes, copies = l->has_keys ? 2 : 1, bytes = 0;
    if (l->kind == STORE_NONE) return 0;
    if (l->bounded && t->options.sink > 0) bytes += copies * mem_rounded(row * (size_t)t->options.sink);
    if (l->kind == STORE_PAGES)
        return bytes + pages_bytes(row, l->has_keys ? row : 0, t->first_page, t->end_page, granule);
    bytes += copies * mem_rounded(row * (size_t)t->ring_capacity);
    if (t->reserved_capacity) bytes += copies * mem_rounded(row * (size_t)t->reserved_capacity);
    return bytes;
}

size_t kv_draft_layer_bytes(const timeline *t, int layer) {
    if (!t->options.keep_draft_context || layer >= t->models.drafter->layers) return 0;
    return 2 * mem_rounded(timeline_draft_row_bytes(t) * (size_t)t->draft[layer].capacity);
}

size_t kv_copied_bytes(const timeline *t) {
    backend_cache_bytes b = kv_bytes(t, 0);
    size_t pages = 0;
    if (t->latents == STORE_PAGES && t->end_page > 0)
        pages += pages_bytes(t->latent.bytes, (size_t)t->latent_heads * sizeof(float), 0, t->end_page - 1, 0);
    for (int i = 0; i < t->models.verifier->layers; i++) {
        const timeline_layer *l = &t->layer[i];
        if (l->kind == STORE_PAGES)
            pages += pages_bytes(l->row_bytes, l->has_keys ? l->row_bytes : 0, t->first_page, t->end_page, 0);
    }
    return b.total - pages;
}

backend_cache_bytes kv_bytes(const timeline *t, size_t granule) {
    backend_cache_bytes b = {0};
    for (int i = 0; i < t->models.verifier->layers; i++) {
        if (t->layer[i].kind == STORE_RING) b.sliding += kv_layer_bytes(t, i, granule);
        if (t->layer[i].kind == STORE_PAGES) b.full += kv_layer_bytes(t, i, granule);
    }
    if (t->latents != STORE_NONE) {
        size_t codes = t->latent.bytes;
        size_t scales = (size_t)t->latent_heads * sizeof(float), ring = (size_t)t->latent_capacity;
        if (t->latents == STORE_RING)
            b.latent = mem_rounded(codes * ring) + mem_rounded(scales * ring);
        else
            b.latent = pages_bytes(codes, scales, 0, t->end_page, granule);
    }
    for (int i = 0; t->options.keep_draft_context && i < t->models.drafter->layers; i++) {
        b.draft += kv_draft_layer_bytes(t, i);
    }
    if (t->keeps_state) b.draft += mem_rounded(timeline_state_bytes(t));
    b.total = b.full + b.sliding + b.latent + b.draft;
    return b;
}

size_t kv_bytes_per_token(const timeline *t) {
    size_t bytes = t->latents == STORE_PAGES ? t->latent.bytes + (size_t)t->latent_heads * sizeof(float) : 0;
    for (int i = 0; i < t->models.verifier->layers; i++) {
        const timeline_layer *l = &t->layer[i];
        if (l->kind == STORE_PAGES && !l->bounded) bytes += l->row_bytes * (l->has_keys ? 2 : 1);
    }
    return bytes;
}

size_t kv_reference_bytes(const model_config *config, kv_format format, int positions, bool hybrid) {
    size_t bytes = 0;
    for (int i = 0; i < config->layers; i++) {
        const layer_config *l = &config->layer[i];
        if (l->kv_source != i) continue;
        bool rings = hybrid && l->type == LAYER_SLIDING && positions > config->sliding_window;
        int held = rings ? config->sliding_window : positions;
        kv_format stored = l->type == LAYER_SLIDING ? kv_format_base(format) : format;
        bytes += 2 * kv_format_row_bytes(stored, (size_t)l->kv_heads, (size_t)l->head_dim) * (size_t)held;
    }
    return bytes;
}

/* -------------------------------------------------------------------------------------------------------- read */

static size_t positions_in(position_range r) { return range_is_empty(r) ? 0 : (size_t)(r.end - r.begin); }

size_t kv_read_bytes(const timeline *t, int layer) {
    if (t->length == 0) return 0;
    int source = t->models.verifier->layer[layer].kv_source;
    const timeline_layer *l = &t->layer[source];
    timeline_view view = timeline_sees(t, source, SEGMENT_DECODE, t->length - 1);
    size_t row = l->row_bytes * (l->has_keys ? 2 : 1);
    size_t bytes = (positions_in(view.sink) + positions_in(view.exact)) * row;
    if (!l->restored) return bytes;
    size_t scales = (size_t)t->models.verifier->layer[source].kv_heads * sizeof(float);
    return bytes + positions_in(view.evicted) * (t->latent.bytes + scales);
}

size_t kv_draft_read_bytes(const timeline *t) {
    size_t bytes = 0;
    for (int i = 0; t->options.keep_draft_context && i < t->models.drafter->layers; i++)
        bytes += 2 * positions_in(timeline_draft_context(t, i)) * timeline_draft_row_bytes(t);
    return bytes;
}

size_t kv_assistant_read_bytes(const timeline *t) {
    const assistant_config *c = t->models.assistant;
    size_t bytes = 0;
    for (int i = 0; c && i < c->stack.layers; i++) {
        int source = assistant_source(t->models.verifier, c->stack.layer[i].type);
        const timeline_layer *l = &t->layer[source];
        timeline_view view = timeline_assistant_sees(t, source);
        bytes += (positions_in(view.sink) + positions_in(view.exact)) * l->row_bytes * (l->has_keys ? 2 : 1);
    }
    return bytes;
}
