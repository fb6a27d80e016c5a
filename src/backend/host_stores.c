#include "backend/host_stores.h"

#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------------------------- addresses */

size_t kv_row_bytes(const backend_cache *c, int layer) { return c->t.layer[layer].row_bytes; }

size_t kv_draft_row_bytes(const backend_cache *c) { return timeline_draft_row_bytes(&c->t); }

size_t kv_aux_row_bytes(const backend_cache *c) { return timeline_aux_row_bytes(&c->t); }

static size_t scale_bytes(const backend_cache *c) { return (size_t)c->t.latent_heads * sizeof(float); }

static size_t page_bytes(const backend_cache *c, int layer) {
    return kv_row_bytes(c, layer) * KV_PAGE_POSITIONS * (c->t.layer[layer].has_keys ? 2 : 1);
}

static size_t latent_page_bytes(const backend_cache *c) {
    return KV_PAGE_POSITIONS * (c->t.latent.bytes + scale_bytes(c));
}

static unsigned char *slot(const ring_store *ring, int capacity, int position, size_t row, bool is_k) {
    return (is_k ? ring->k : ring->v) + (size_t)(position % capacity) * row;
}

unsigned char *kv_row(const backend_cache *c, int layer, int position, bool is_k) {
    const layer_store *s = &c->layer[layer];
    size_t row = kv_row_bytes(c, layer);
    if (c->t.layer[layer].kind == STORE_RING) return slot(&s->ring, c->t.ring_capacity, position, row, is_k);
    unsigned char *page = s->pages[position / KV_PAGE_POSITIONS];
    return page + ((size_t)(position % KV_PAGE_POSITIONS) + (is_k ? KV_PAGE_POSITIONS : 0)) * row;
}

unsigned char *kv_sink_row(const backend_cache *c, int layer, int position, bool is_k) {
    const ring_store *sink = &c->layer[layer].sink;
    return (is_k ? sink->k : sink->v) + (size_t)position * kv_row_bytes(c, layer);
}

unsigned char *kv_draft_row(const backend_cache *c, int draft_layer, int position, bool is_k) {
    return slot(&c->draft[draft_layer], c->t.draft[draft_layer].capacity, position, kv_draft_row_bytes(c), is_k);
}

unsigned char *latent_code(const backend_cache *c, int position) {
    size_t row = c->t.latent.bytes;
    if (c->t.latents == STORE_RING) return c->latent.codes + (size_t)(position % c->t.latent_capacity) * row;
    return c->latent.pages[position / KV_PAGE_POSITIONS] + (size_t)(position % KV_PAGE_POSITIONS) * row;
}

float *latent_scales(const backend_cache *c, int position) {
    size_t heads = (size_t)c->t.latent_heads;
    if (c->t.latents == STORE_RING) return c->latent.scales + (size_t)(position % c->t.latent_capacity) * heads;
    unsigned char *page = c->latent.pages[position / KV_PAGE_POSITIONS];
    float *scales = (float *)(void *)(page + KV_PAGE_POSITIONS * c->t.latent.bytes);
    return scales + (size_t)(position % KV_PAGE_POSITIONS) * heads;
}

/* ------------------------------------------------------------------------------------------------- allocation */

static kakeya_status out_of_memory(kakeya_error *error, const char *what, size_t bytes) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: %s needs another %zu bytes", what, bytes);
}

static mem_tag layer_tag(const backend_cache *c, int layer) {
    return mem_layer_tag(c->t.layer[layer].kind == STORE_PAGES ? MEM_KV_FULL : MEM_KV_SLIDING, layer);
}

static void ring_free(ring_store *ring) {
    mem_free(ring->k);
    mem_free(ring->v);
    *ring = (ring_store){0};
}

static kakeya_status ring_allocate(backend_cache *c, ring_store *ring, mem_tag tag, bool has_keys, size_t bytes,
                                   const char *what, kakeya_error *error) {
    if (bytes == 0) return KAKEYA_OK;
    ring->v = mem_alloc(c->account, tag, bytes);
    if (has_keys) ring->k = mem_alloc(c->account, tag, bytes);
    if (ring->v && (ring->k || !has_keys)) return KAKEYA_OK;
    ring_free(ring);
    return out_of_memory(error, what, bytes);
}

/* Rings of `capacity` for all sliding layers; `which`: the one of its three. */
static kakeya_status rings_allocate(backend_cache *c, size_t which, int capacity, kakeya_error *error) {
    for (int i = 0; i < c->t.models.verifier->layers; i++) {
        if (c->t.layer[i].kind != STORE_RING) continue;
        ring_store *ring = (ring_store *)(void *)((char *)&c->layer[i] + which);
        kakeya_status status = ring_allocate(c, ring, layer_tag(c, i), c->t.layer[i].has_keys,
                                             kv_row_bytes(c, i) * (size_t)capacity, "K/V of a sliding layer", error);
        if (status) return status;
    }
    return KAKEYA_OK;
}

static size_t page_slots(const backend_cache *c) { return (size_t)kv_pages(c->t.options.context_tokens); }

static kakeya_status create_layer(backend_cache *c, int layer, kakeya_error *error) {
    const timeline_layer *l = &c->t.layer[layer];
    layer_store *s = &c->layer[layer];
    if (l->kind == STORE_NONE) return KAKEYA_OK;
    size_t sink = l->bounded ? kv_row_bytes(c, layer) * (size_t)c->t.options.sink : 0;
    kakeya_status status = ring_allocate(c, &s->sink, layer_tag(c, layer), l->has_keys, sink, "K/V of the sink", error);
    if (status || l->kind == STORE_RING) return status;
    s->pages = calloc(page_slots(c), sizeof *s->pages);
    return s->pages ? KAKEYA_OK : out_of_memory(error, "the page table", page_slots(c) * sizeof *s->pages);
}

static kakeya_status create_latents(backend_cache *c, kakeya_error *error) {
    if (c->t.latents == STORE_PAGES) {
        c->latent.pages = calloc(page_slots(c), sizeof *c->latent.pages);
        return c->latent.pages ? KAKEYA_OK
                               : out_of_memory(error, "the latent page table", page_slots(c) * sizeof(void *));
    }
    size_t codes = (size_t)c->t.latent_capacity * c->t.latent.bytes,
           scales = (size_t)c->t.latent_capacity * scale_bytes(c);
    c->latent.codes = mem_alloc(c->account, MEM_KV_LATENT, codes);
    c->latent.scales = mem_alloc(c->account, MEM_KV_LATENT, scales);
    return c->latent.codes && c->latent.scales ? KAKEYA_OK : out_of_memory(error, "latents", codes + scales);
}

static kakeya_status create_drafter(backend_cache *c, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; !status && i < c->t.models.drafter->layers; i++) {
        size_t bytes = kv_draft_row_bytes(c) * (size_t)c->t.draft[i].capacity;
        status = ring_allocate(c, &c->draft[i], mem_layer_tag(MEM_KV_DRAFT, i), true, bytes, "drafter context", error);
    }
    return status;
}

static kakeya_status create_backlog(backend_cache *c, kakeya_error *error) {
    size_t bytes = KV_BACKLOG * kv_aux_row_bytes(c);
    c->backlog = mem_alloc(c->account, MEM_WORKSPACE, bytes);
    return c->backlog ? KAKEYA_OK : out_of_memory(error, "aux hidden states", bytes);
}

/* What is kept is the drafter's, what waits for a commit is not. */
static kakeya_status create_state(backend_cache *c, kakeya_error *error) {
    size_t bytes = timeline_state_bytes(&c->t);
    c->state = mem_alloc(c->account, MEM_KV_DRAFT, bytes);
    if (c->state) c->pending_state = mem_alloc(c->account, MEM_WORKSPACE, BACKEND_MAX_DECODE_ROWS * bytes);
    return c->pending_state ? KAKEYA_OK
                            : out_of_memory(error, "an assistant's state", (1 + BACKEND_MAX_DECODE_ROWS) * bytes);
}

/* Pages [c->end_page, end) of every store that grows. A page that is there already stays. */
static kakeya_status grow_pages(backend_cache *c, int end, kakeya_error *error) {
    for (; c->end_page < end; c->end_page++) {
        for (int i = 0; i < c->t.models.verifier->layers; i++) {
            if (c->t.layer[i].kind != STORE_PAGES || c->end_page < c->first_page || c->layer[i].pages[c->end_page])
                continue;
            unsigned char *page = mem_alloc(c->account, layer_tag(c, i), page_bytes(c, i));
            if (!page) return out_of_memory(error, "K/V of a full-attention layer", page_bytes(c, i));
            c->layer[i].pages[c->end_page] = page;
        }
        if (c->t.latents != STORE_PAGES || c->latent.pages[c->end_page]) continue;
        c->latent.pages[c->end_page] = mem_alloc(c->account, MEM_KV_LATENT, latent_page_bytes(c));
        if (!c->latent.pages[c->end_page]) return out_of_memory(error, "latents", latent_page_bytes(c));
    }
    return KAKEYA_OK;
}

/* --------------------------------------------------------------------------------------------------- sharing */

/* The first page to which a row may still be written. */
static int first_open_page(const backend_cache *c) { return c->t.length / KV_PAGE_POSITIONS; }
static int first_open_latent_page(const backend_cache *c) { return c->t.latent_length / KV_PAGE_POSITIONS; }

static void share(backend_cache *c, unsigned char **pages, unsigned char *const *from, int begin, int end) {
    for (int p = begin; p < end; p++) {
        if (mem_share(from[p], c->account)) pages[p] = from[p];
    }
}

static void share_pages(backend_cache *c, const backend_cache *from) {
    for (int i = 0; i < c->t.models.verifier->layers; i++) {
        if (c->t.layer[i].kind == STORE_PAGES)
            share(c, c->layer[i].pages, from->layer[i].pages, c->t.first_page, first_open_page(c));
    }
    if (c->t.latents == STORE_PAGES) share(c, c->latent.pages, from->latent.pages, 0, first_open_latent_page(c));
}

static kakeya_status own(backend_cache *c, unsigned char **pages, int begin, mem_tag tag, size_t bytes,
                         const char *what, kakeya_error *error) {
    for (int p = begin; p < c->end_page; p++) {
        if (!pages[p] || !mem_is_shared(pages[p])) continue;
        unsigned char *copy = mem_alloc(c->account, tag, bytes);
        if (!copy) return out_of_memory(error, what, bytes);
        memcpy(copy, pages[p], bytes);
        mem_free(pages[p]);
        pages[p] = copy;
    }
    return KAKEYA_OK;
}

kakeya_status stores_own_pages(backend_cache *c, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; !status && i < c->t.models.verifier->layers; i++) {
        if (c->t.layer[i].kind != STORE_PAGES) continue;
        status = own(c, c->layer[i].pages, first_open_page(c), layer_tag(c, i), page_bytes(c, i),
                     "K/V of a full-attention layer", error);
    }
    if (!status && c->t.latents == STORE_PAGES) {
        status =
            own(c, c->latent.pages, first_open_latent_page(c), MEM_KV_LATENT, latent_page_bytes(c), "latents", error);
    }
    return status;
}

static size_t foreign_bytes(const backend_cache *c, unsigned char *const *pages, size_t bytes) {
    size_t sum = 0;
    for (int p = 0; pages && p < c->end_page; p++) {
        if (pages[p] && mem_account_of(pages[p]) != c->account) sum += mem_rounded(bytes);
    }
    return sum;
}

size_t stores_shared_full(const backend_cache *c) {
    size_t bytes = 0;
    for (int i = 0; i < c->t.models.verifier->layers; i++) {
        if (c->t.layer[i].kind == STORE_PAGES) bytes += foreign_bytes(c, c->layer[i].pages, page_bytes(c, i));
    }
    return bytes;
}

size_t stores_shared_latent(const backend_cache *c) {
    return c->t.latents == STORE_PAGES ? foreign_bytes(c, c->latent.pages, latent_page_bytes(c)) : 0;
}

kakeya_status stores_create(backend_cache *c, const backend_cache *from, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; !status && i < c->t.models.verifier->layers; i++) status = create_layer(c, i, error);
    if (!status) status = rings_allocate(c, offsetof(layer_store, ring), c->t.ring_capacity, error);
    if (!status && c->t.latents != STORE_NONE) status = create_latents(c, error);
    if (!status && c->t.options.keep_draft_context) status = create_drafter(c, error);
    if (!status && c->t.keeps_backlog) status = create_backlog(c, error);
    if (!status && c->t.keeps_state) status = create_state(c, error);
    if (!status && c->t.latents_from_tokens) {
        size_t bytes = (size_t)c->t.options.context_tokens * sizeof *c->tokens;
        c->tokens = mem_alloc(c->account, MEM_WORKSPACE, bytes);
        if (!c->tokens) status = out_of_memory(error, "token ids", bytes);
    }
    c->first_page = c->t.first_page;
    if (!status && from) share_pages(c, from);
    if (!status) status = grow_pages(c, c->t.end_page, error);
    return status;
}

static void free_pages(unsigned char **pages, int begin, int end) {
    for (int p = begin; pages && p < end; p++) {
        mem_free(pages[p]);
        pages[p] = NULL;
    }
}

void stores_destroy(backend_cache *c) {
    int slots = (int)page_slots(c);
    for (int i = 0; i < c->t.models.verifier->layers; i++) {
        layer_store *s = &c->layer[i];
        ring_store *rings[] = {&s->ring, &s->grown, &s->kept, &s->sink};
        for (int r = 0; r < 4; r++) ring_free(rings[r]);
        free_pages(s->pages, 0, slots);
        free(s->pages);
        if (c->own_raw) mem_free(c->own_raw[i]);
    }
    mem_free(c->latent.codes);
    mem_free(c->latent.scales);
    free_pages(c->latent.pages, 0, slots);
    free(c->latent.pages);
    for (int i = 0; i < BLOCK_DRAFTER_MAX_LAYERS; i++) ring_free(&c->draft[i]);
    mem_free(c->backlog);
    mem_free(c->state);
    mem_free(c->pending_state);
    mem_free(c->tokens);
    mem_free(c->pass);
    mem_free(c->aside);
    free(c->own_raw);
}

void stores_trim(backend_cache *c) {
    int slots = (int)page_slots(c);
    for (int i = 0; i < c->t.models.verifier->layers; i++) {
        ring_free(&c->layer[i].grown);
        ring_free(&c->layer[i].kept);
        free_pages(c->layer[i].pages, c->first_page, c->t.first_page);
        free_pages(c->layer[i].pages, c->t.end_page, slots < c->end_page + 1 ? slots : c->end_page + 1);
    }
    free_pages(c->latent.pages, c->t.end_page, slots < c->end_page + 1 ? slots : c->end_page + 1);
    c->first_page = c->t.first_page;
    c->end_page = c->t.end_page;
    mem_free(c->pass);
    c->pass = NULL;
}

/* ----------------------------------------------------------------------------------------------------- a step */

static kakeya_status reserve_aside(backend_cache *c, kakeya_error *error) {
    size_t bytes = 0;
    for (int i = 0; i < c->t.models.verifier->layers; i++) {
        if (c->t.layer[i].kind == STORE_RING) bytes += kv_row_bytes(c, i) * (c->t.layer[i].has_keys ? 2 : 1);
    }
    c->aside = mem_alloc(c->account, MEM_WORKSPACE, bytes);
    return c->aside ? KAKEYA_OK : out_of_memory(error, "rows set aside", bytes);
}

kakeya_status stores_reserve(backend_cache *c, const timeline_step *step, kakeya_error *error) {
    kakeya_status status = grow_pages(c, step->end_page, error);
    if (!status) status = stores_own_pages(c, error);
    if (!status && step->ring_capacity != c->t.ring_capacity)
        status = rings_allocate(c, offsetof(layer_store, grown), step->ring_capacity, error);
    if (!status && step->kept_capacity != step->ring_capacity)
        status = rings_allocate(c, offsetof(layer_store, kept), step->kept_capacity, error);
    if (!status && step->set_aside >= 0 && !c->aside) status = reserve_aside(c, error);
    return status;
}

/* Rows of ring to ring; the old one goes. */
static void move_ring(backend_cache *c, int layer, ring_store *from, int from_capacity, ring_store *to, int to_capacity,
                      position_range moved) {
    size_t row = kv_row_bytes(c, layer);
    for (int is_k = 0; is_k < (from->k ? 2 : 1); is_k++) {
        for (int p = moved.begin; p < moved.end; p++)
            memcpy(slot(to, to_capacity, p, row, is_k), slot(from, from_capacity, p, row, is_k), row);
    }
    ring_free(from);
    *from = *to;
    *to = (ring_store){0};
}

/* Copies the row of `position` of every ring to or from where it is set aside. */
static void transfer_aside(backend_cache *c, int position, int capacity, bool back) {
    unsigned char *at = c->aside;
    for (int i = 0; i < c->t.models.verifier->layers; i++) {
        if (c->t.layer[i].kind != STORE_RING) continue;
        size_t row = kv_row_bytes(c, i);
        for (int is_k = 0; is_k < (c->t.layer[i].has_keys ? 2 : 1); is_k++, at += row) {
            unsigned char *stored = slot(&c->layer[i].ring, capacity, position, row, is_k);
            memcpy(back ? stored : at, back ? at : stored, row);
        }
    }
}

void stores_begin(backend_cache *c, const timeline_step *step) {
    for (int i = 0; step->ring_capacity != c->t.ring_capacity && i < c->t.models.verifier->layers; i++) {
        if (c->t.layer[i].kind != STORE_RING) continue;
        layer_store *s = &c->layer[i];
        move_ring(c, i, &s->ring, c->t.ring_capacity, &s->grown, step->ring_capacity, step->moved);
    }
    if (step->set_aside >= 0) transfer_aside(c, step->set_aside, step->ring_capacity, false);
}

void stores_keep(backend_cache *c, const timeline_keep *keep) {
    for (int i = 0; keep->ring_capacity && i < c->t.models.verifier->layers; i++) {
        if (c->t.layer[i].kind != STORE_RING) continue;
        layer_store *s = &c->layer[i];
        move_ring(c, i, &s->ring, c->t.ring_capacity, &s->kept, keep->ring_capacity, keep->moved);
    }
    if (keep->put_back >= 0) transfer_aside(c, keep->put_back, c->t.ring_capacity, true);
    if (!c->t.keeps_state || keep->n == 0) return;
    size_t row = c->t.pending_kind == SEGMENT_PROMPT ? 0 : (size_t)keep->n - 1;
    memcpy(c->state, c->pending_state + row * (size_t)c->t.models.verifier->hidden, timeline_state_bytes(&c->t));
}

/* -------------------------------------------------------------------------------------------------------- copy */

static void copy_ring(ring_store *to, const ring_store *from, size_t bytes) {
    if (from->v) memcpy(to->v, from->v, bytes);
    if (from->k) memcpy(to->k, from->k, bytes);
}

void stores_copy(backend_cache *to, const backend_cache *from) {
    const timeline *t = &from->t;
    for (int i = 0; i < from->t.models.verifier->layers; i++) {
        if (t->layer[i].kind == STORE_NONE) continue;
        const layer_store *s = &from->layer[i];
        if (s->sink.v) copy_ring(&to->layer[i].sink, &s->sink, kv_row_bytes(from, i) * (size_t)t->options.sink);
        if (t->layer[i].kind == STORE_RING) {
            copy_ring(&to->layer[i].ring, &s->ring, kv_row_bytes(from, i) * (size_t)t->ring_capacity);
            continue;
        }
        for (int p = t->first_page; p < t->end_page; p++) {
            if (to->layer[i].pages[p] != s->pages[p]) memcpy(to->layer[i].pages[p], s->pages[p], page_bytes(from, i));
        }
    }
    if (t->latents == STORE_RING) {
        memcpy(to->latent.codes, from->latent.codes, (size_t)t->latent_capacity * from->t.latent.bytes);
        memcpy(to->latent.scales, from->latent.scales, (size_t)t->latent_capacity * scale_bytes(from));
    }
    for (int p = 0; t->latents == STORE_PAGES && p < t->end_page; p++) {
        if (to->latent.pages[p] != from->latent.pages[p])
            memcpy(to->latent.pages[p], from->latent.pages[p], latent_page_bytes(from));
    }
    for (int i = 0; t->options.keep_draft_context && i < t->models.drafter->layers; i++)
        copy_ring(&to->draft[i], &from->draft[i], kv_draft_row_bytes(from) * (size_t)t->draft[i].capacity);
    position_range waiting = timeline_backlog_held(t);
    if (!range_is_empty(waiting))
        memcpy(to->backlog, from->backlog, (size_t)(waiting.end - waiting.begin) * kv_aux_row_bytes(from));
    if (timeline_has_state(t)) memcpy(to->state, from->state, timeline_state_bytes(t));
    if (t->latents_from_tokens) memcpy(to->tokens, from->tokens, (size_t)t->length * sizeof *from->tokens);
}
