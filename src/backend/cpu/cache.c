/* The K/V memory of one timeline. Three kinds of stores (layer_store, latent_store, draft_store in cpu.h); everything is
 * addressed by absolute position. Rings carry BACKEND_MAX_DRAFT positions of slack, so that a rejected block never
 * overwrites a position that the accepted length still needs: truncation stays exact after the ring has wrapped. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "model/sizes.h"

size_t kv_element_bytes(const backend_cache *c) { return dtype_bytes(kv_type(c)); }

static int native_capacity(const backend_cache *c) { return kv_ring_positions(c->model->config->sliding_window); }

static int bounded_capacity(const backend_cache *c) {
    int bounded = kv_ring_positions(c->options.window), native = native_capacity(c);
    return bounded < native ? bounded : native;
}

bool cache_bounds_layer(const backend_cache *c, int layer) {
    if (c->options.attention == KAKEYA_ATTENTION_NATIVE) return false;
    if (c->model->config->layer[layer].type == GEMMA4_SLIDING) return true;
    return c->options.attention == KAKEYA_ATTENTION_RESTORED && c->options.restore_layers == KAKEYA_RESTORE_ALL;
}

bool cache_restores_layer(const backend_cache *c, int layer) {
    return c->options.attention == KAKEYA_ATTENTION_RESTORED && cache_bounds_layer(c, layer);
}

int cache_frontier(const backend_cache *c) {
    if (c->options.attention == KAKEYA_ATTENTION_NATIVE || c->n_runs == 0) return 0;
    int frontier = c->runs[c->n_runs - 1].end - c->options.window;
    return frontier > 0 ? frontier : 0;
}

static size_t row_bytes(const backend_cache *c, const layer_store *s) { return (size_t)s->kv_dim * kv_element_bytes(c); }

static size_t page_bytes(const backend_cache *c, const layer_store *s) {
    return row_bytes(c, s) * KV_PAGE_POSITIONS * (s->has_k ? 2 : 1);
}

unsigned char *store_row(const backend_cache *c, const layer_store *s, int position, bool is_k) {
    size_t row = row_bytes(c, s);
    if (s->kind == STORE_RING) return (is_k ? s->k : s->v) + (size_t)(position % s->capacity) * row;
    unsigned char *page = s->pages[position / KV_PAGE_POSITIONS];
    return page + ((size_t)(position % KV_PAGE_POSITIONS) + (is_k ? KV_PAGE_POSITIONS : 0)) * row;
}

static size_t latent_code_bytes(const backend_cache *c) {
    return 2 * (size_t)c->model->options.f_theta->config.rank * kv_element_bytes(c);
}

static size_t latent_page_bytes(const backend_cache *c) {
    return KV_PAGE_POSITIONS * (latent_code_bytes(c) + (size_t)c->latent.heads * sizeof(float));
}

unsigned char *latent_code(const backend_cache *c, int position) {
    const latent_store *s = &c->latent;
    if (s->ring) return s->codes + (size_t)(position % s->capacity) * latent_code_bytes(c);
    return s->pages[position / KV_PAGE_POSITIONS] + (size_t)(position % KV_PAGE_POSITIONS) * latent_code_bytes(c);
}

float *latent_scales(const backend_cache *c, int position) {
    const latent_store *s = &c->latent;
    if (s->ring) return s->scales + (size_t)(position % s->capacity) * (size_t)s->heads;
    float *scales = (float *)(void *)(s->pages[position / KV_PAGE_POSITIONS] + KV_PAGE_POSITIONS * latent_code_bytes(c));
    return scales + (size_t)(position % KV_PAGE_POSITIONS) * (size_t)s->heads;
}

/* ------------------------------------------------------------------------------------------------ creation */

static kakeya_status out_of_memory(kakeya_error *error, const char *what, size_t bytes) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: %s needs another %zu bytes", what, bytes);
}

static mem_tag layer_tag(const backend_cache *c, int layer) {
    return c->model->config->layer[layer].type == GEMMA4_FULL ? MEM_KV_FULL : MEM_KV_SLIDING;
}

static kakeya_status ring_allocate(backend_cache *c, layer_store *s, mem_tag tag, int capacity, kakeya_error *error) {
    size_t bytes = row_bytes(c, s) * (size_t)capacity;
    s->v = mem_alloc(c->account, tag, bytes);
    s->k = s->has_k ? mem_alloc(c->account, tag, bytes) : NULL;
    if (!s->v || (s->has_k && !s->k)) {
        mem_free(s->v);
        mem_free(s->k);
        s->v = s->k = NULL;
        return out_of_memory(error, "K/V of a sliding layer", bytes);
    }
    s->capacity = capacity;
    return KAKEYA_OK;
}

static kakeya_status create_layer(backend_cache *c, int layer, kakeya_error *error) {
    const gemma4_layer_config *lc = &c->model->config->layer[layer];
    layer_store *s = &c->layer[layer];
    if (lc->kv_source != layer) return KAKEYA_OK;
    s->kv_dim = lc->kv_heads * lc->head_dim;
    s->has_k = !lc->k_eq_v;
    if (cache_bounds_layer(c, layer) && c->options.sink > 0) {
        size_t bytes = row_bytes(c, s) * (size_t)c->options.sink;
        s->sink_v = mem_alloc(c->account, layer_tag(c, layer), bytes);
        if (s->has_k) s->sink_k = mem_alloc(c->account, layer_tag(c, layer), bytes);
        if (!s->sink_v || (s->has_k && !s->sink_k)) return out_of_memory(error, "K/V of the sink", bytes);
    }
    if (lc->type == GEMMA4_SLIDING) {
        s->kind = STORE_RING;
        return ring_allocate(c, s, MEM_KV_SLIDING, native_capacity(c), error);
    }
    s->kind = STORE_PAGES;
    size_t slots = ((size_t)c->options.context_tokens + ATTENTION_BLOCK) / KV_PAGE_POSITIONS + 1;
    s->pages = calloc(slots, sizeof *s->pages);
    return s->pages ? KAKEYA_OK : out_of_memory(error, "the page table", slots * sizeof *s->pages);
}

static kakeya_status create_latents(backend_cache *c, kakeya_error *error) {
    const gemma4_config *config = c->model->config;
    latent_store *s = &c->latent;
    s->heads = 0;
    for (int i = 0; i < config->layers; i++) {
        bool own = config->layer[i].kv_source == i && cache_restores_layer(c, i);
        s->head_offset[i] = own ? s->heads : -1;
        if (own) s->heads += config->layer[i].kv_heads;
    }
    s->ring = c->options.restore_layers == KAKEYA_RESTORE_SLIDING;
    if (!s->ring) {
        size_t slots = ((size_t)c->options.context_tokens + ATTENTION_BLOCK) / KV_PAGE_POSITIONS + 1;
        s->pages = calloc(slots, sizeof *s->pages);
        return s->pages ? KAKEYA_OK : out_of_memory(error, "the latent page table", slots * sizeof *s->pages);
    }
    s->capacity = native_capacity(c);
    size_t codes = (size_t)s->capacity * latent_code_bytes(c);
    size_t scales = (size_t)s->capacity * (size_t)s->heads * sizeof(float);
    s->codes = mem_alloc(c->account, MEM_KV_LATENT, codes);
    s->scales = mem_alloc(c->account, MEM_KV_LATENT, scales);
    return s->codes && s->scales ? KAKEYA_OK : out_of_memory(error, "latents", codes + scales);
}

static kakeya_status create_drafter(backend_cache *c, kakeya_error *error) {
    const dflash_config *d = &c->model->options.drafter->config;
    size_t row = (size_t)(d->kv_heads * d->head_dim) * kv_element_bytes(c);
    for (int i = 0; i < d->layers; i++) {
        draft_store *s = &c->draft[i];
        s->window = c->options.draft_window;
        if (d->sliding_window[i] && d->sliding_window[i] < s->window) s->window = d->sliding_window[i];
        s->capacity = kv_ring_positions(s->window);
        s->k = mem_alloc(c->account, MEM_KV_DRAFT, row * (size_t)s->capacity);
        s->v = mem_alloc(c->account, MEM_KV_DRAFT, row * (size_t)s->capacity);
        if (!s->k || !s->v) return out_of_memory(error, "drafter context", 2 * row * (size_t)s->capacity);
    }
    size_t backlog = (size_t)CPU_AUX_BACKLOG * (size_t)d->targets * (size_t)c->model->config->hidden * sizeof(float);
    c->aux_backlog = mem_alloc(c->account, MEM_WORKSPACE, backlog);
    return c->aux_backlog ? KAKEYA_OK : out_of_memory(error, "aux hidden states", backlog);
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
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "attention 'restored' needs a drafter and an f_theta (%s missing)",
                         m->options.drafter ? "f_theta" : "drafter");
    }
    if ((unsigned)o->kv_format >= KV_FORMAT_COUNT) {
        return error_set(error, KAKEYA_UNSUPPORTED, "K/V format %s is not supported", kv_format_name(o->kv_format));
    }
    return KAKEYA_OK;
}

kakeya_status cpu_cache_create(backend_model *m, const backend_cache_options *options, backend_cache **out,
                               kakeya_error *error) {
    *out = NULL;
    kakeya_status status = check_options(m, options, error);
    if (status) return status;
    backend_cache *c = calloc(1, sizeof *c);
    if (!c) return out_of_memory(error, "a cache", sizeof *c);
    c->model = m;
    c->options = *options;
    c->account = options->account;
    if (c->options.attention == KAKEYA_ATTENTION_RESTORED) c->options.keep_draft_context = true;
    if (!m->options.drafter) c->options.keep_draft_context = false;
    for (int i = 0; !status && i < m->config->layers; i++) status = create_layer(c, i, error);
    if (!status && c->options.attention == KAKEYA_ATTENTION_RESTORED) status = create_latents(c, error);
    if (!status && c->options.keep_draft_context) status = create_drafter(c, error);
    if (!status && c->options.attention == KAKEYA_ATTENTION_RESTORED &&
        m->options.f_theta->config.input == F_THETA_DRAFTER_TOKEN_KV) {
        c->tokens = mem_alloc(c->account, MEM_WORKSPACE, (size_t)c->options.context_tokens * sizeof *c->tokens);
        if (!c->tokens) status = out_of_memory(error, "token ids", (size_t)c->options.context_tokens * sizeof *c->tokens);
    }
    if (status) {
        cpu_cache_destroy(c);
        return status;
    }
    *out = c;
    return KAKEYA_OK;
}

void cpu_cache_destroy(backend_cache *c) {
    if (!c) return;
    for (int i = 0; i < c->model->config->layers; i++) {
        layer_store *s = &c->layer[i];
        mem_free(s->k);
        mem_free(s->v);
        mem_free(s->sink_k);
        mem_free(s->sink_v);
        for (int p = s->first_page; p < s->n_pages; p++) mem_free(s->pages[p]);
        free(s->pages);
        if (c->own_raw) mem_free(c->own_raw[i]);
    }
    mem_free(c->latent.codes);
    mem_free(c->latent.scales);
    for (int p = 0; p < c->latent.n_pages; p++) mem_free(c->latent.pages[p]);
    free(c->latent.pages);
    for (int i = 0; i < DFLASH_MAX_LAYERS; i++) {
        mem_free(c->draft[i].k);
        mem_free(c->draft[i].v);
    }
    mem_free(c->aux_backlog);
    mem_free(c->tokens);
    free(c->own_raw);
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

/* Moves every bounded ring to another capacity. All new rings exist before an old one goes. */
static kakeya_status resize_rings(backend_cache *c, int capacity, kakeya_error *error) {
    const gemma4_config *config = c->model->config;
    layer_store fresh[GEMMA4_MAX_LAYERS];
    memset(fresh, 0, sizeof fresh);
    for (int i = 0; i < config->layers; i++) {
        if (c->layer[i].kind != STORE_RING) continue;
        fresh[i] = c->layer[i];
        kakeya_status status = ring_allocate(c, &fresh[i], MEM_KV_SLIDING, capacity, error);
        if (status) {
            for (int j = 0; j < i; j++) {
                if (c->layer[j].kind != STORE_RING) continue;
                mem_free(fresh[j].k);
                mem_free(fresh[j].v);
            }
            return status;
        }
    }
    int oldest = 0;
    for (int i = 0; i < config->layers; i++) {
        layer_store *s = &c->layer[i];
        if (s->kind != STORE_RING) continue;
        oldest = ring_oldest(c, s);
        if (c->length - capacity > oldest) oldest = c->length - capacity;
        size_t row = row_bytes(c, s);
        for (int p = oldest; p < c->length; p++) {
            memcpy(store_row(c, &fresh[i], p, false), store_row(c, s, p, false), row);
            if (s->has_k) memcpy(store_row(c, &fresh[i], p, true), store_row(c, s, p, true), row);
        }
        mem_free(s->k);
        mem_free(s->v);
        *s = fresh[i];
    }
    c->held_from = oldest;
    c->high = c->length;
    return KAKEYA_OK;
}

static kakeya_status grow_pages(backend_cache *c, int layer, int positions, kakeya_error *error) {
    layer_store *s = &c->layer[layer];
    while (s->n_pages * KV_PAGE_POSITIONS < positions) {
        unsigned char *page = mem_alloc(c->account, layer_tag(c, layer), page_bytes(c, s));
        if (!page) return out_of_memory(error, "K/V of a full-attention layer", page_bytes(c, s));
        s->pages[s->n_pages++] = page;
    }
    return KAKEYA_OK;
}

/* Full-attention layers under restore-all: pages below the window are given back once decoding has begun. */
static void release_pages(backend_cache *c) {
    int keep_from = c->length - c->options.window - BACKEND_MAX_DRAFT;
    for (int i = 0; i < c->model->config->layers; i++) {
        layer_store *s = &c->layer[i];
        if (s->kind != STORE_PAGES || !cache_bounds_layer(c, i)) continue;
        while ((s->first_page + 1) * KV_PAGE_POSITIONS <= keep_from) {
            mem_free(s->pages[s->first_page]);
            s->pages[s->first_page++] = NULL;
        }
    }
}

/* Pages (and paged latents) for positions [0, positions). */
kakeya_status cache_reserve(backend_cache *c, int positions, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; !status && i < c->model->config->layers; i++) {
        if (c->layer[i].kind == STORE_PAGES) status = grow_pages(c, i, positions, error);
    }
    if (c->options.attention != KAKEYA_ATTENTION_RESTORED || c->latent.ring) return status;
    while (!status && c->latent.n_pages * KV_PAGE_POSITIONS < positions) {
        unsigned char *page = mem_alloc(c->account, MEM_KV_LATENT, latent_page_bytes(c));
        if (!page) status = out_of_memory(error, "latents", latent_page_bytes(c));
        else c->latent.pages[c->latent.n_pages++] = page;
    }
    return status;
}

kakeya_status cache_prepare(backend_cache *c, segment_kind kind, int n, kakeya_error *error) {
    if (c->pending) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%d pending rows must be committed first", c->pending);
    }
    if (n > c->options.context_tokens - c->length) {
        return error_set(error, KAKEYA_CONTEXT_FULL, "%d tokens behind %d do not fit into a context of %d", n, c->length,
                         c->options.context_tokens);
    }
    bool bounded = c->options.attention != KAKEYA_ATTENTION_NATIVE;
    if (kind == SEGMENT_DECODE) {
        int most = bounded && c->options.window < BACKEND_MAX_DECODE_ROWS ? c->options.window : BACKEND_MAX_DECODE_ROWS;
        if (n > most) {
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "%d decode rows in one segment; at most %d", n, most);
        }
    }
    kakeya_status status = cache_reserve(c, c->length + n, error);
    if (!status && kind == SEGMENT_DECODE && c->n_runs == c->max_runs) {
        int grown = c->max_runs ? 2 * c->max_runs : 16;
        decode_run *runs = realloc(c->runs, (size_t)grown * sizeof *runs);
        if (!runs) return out_of_memory(error, "turn history", (size_t)grown * sizeof *runs);
        c->runs = runs;
        c->max_runs = grown;
    }
    if (!status && c->tokens && kind == SEGMENT_DECODE && c->latent_length < c->draft_length) {
        status = token_latents_prompt(c, error);
    }
    if (!status && bounded && c->decoding != (kind == SEGMENT_DECODE)) {
        status = resize_rings(c, kind == SEGMENT_DECODE ? bounded_capacity(c) : native_capacity(c), error);
        if (!status) c->decoding = kind == SEGMENT_DECODE;
    }
    if (!status && c->options.keep_draft_context) {
        int waiting = c->length - c->draft_length;
        if (kind == SEGMENT_PROMPT || waiting + n > CPU_AUX_BACKLOG) draft_flush(c);
    }
    return status;
}

/* ------------------------------------------------------------------------------------- commit and truncate */

kakeya_status cpu_cache_commit(backend_cache *c, int n, kakeya_error *error) {
    if (n < 0 || n > c->pending) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot commit %d of %d pending rows", n, c->pending);
    }
    if (c->pending_kind == SEGMENT_PROMPT && n != c->pending) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "a prompt of %d rows must be committed whole, not %d rows",
                         c->pending, n);
    }
    int begin = c->length;
    c->length += n;
    c->pending = 0;
    if (n == 0) return KAKEYA_OK;
    if (c->pending_kind == SEGMENT_PROMPT) {
        if (c->options.keep_draft_context) c->draft_length = c->length;
        return KAKEYA_OK;
    }
    if (c->n_runs && c->runs[c->n_runs - 1].end == begin) c->runs[c->n_runs - 1].end = c->length;
    else c->runs[c->n_runs++] = (decode_run){begin, c->length};
    if (c->decoding) release_pages(c);
    if (c->options.attention == KAKEYA_ATTENTION_RESTORED) {
        /* Latents must exist for everything that the next block can find evicted. */
        int evicted_next = c->length + BACKEND_MAX_DECODE_ROWS - c->options.window;
        if (evicted_next > c->draft_length) draft_flush(c);
    }
    return KAKEYA_OK;
}

int cpu_cache_min_truncate(const backend_cache *c) {
    int least = 0;
    bool bounded = c->options.attention != KAKEYA_ATTENTION_NATIVE;
    int reach = bounded && c->decoding ? c->options.window : c->model->config->sliding_window;
    for (int i = 0; i < c->model->config->layers; i++) {
        const layer_store *s = &c->layer[i];
        int held = s->kind == STORE_RING ? ring_oldest(c, s) : s->kind == STORE_PAGES ? s->first_page * KV_PAGE_POSITIONS : 0;
        int needs = s->kind == STORE_RING ? reach : c->options.window;
        if (held > 0 && held + needs > least) least = held + needs;
    }
    if (c->options.attention == KAKEYA_ATTENTION_RESTORED && c->latent.ring) {
        int held = c->high - c->latent.capacity;
        if (held > 0 && held + c->model->config->sliding_window > least) least = held + c->model->config->sliding_window;
    }
    if (bounded && c->n_runs && cache_frontier(c) > c->options.sink) {
        /* Earlier turns evicted by their own rule; their state cannot be had back. */
        int last = c->runs[c->n_runs - 1].begin + 1;
        if (!c->decoding) last = c->runs[c->n_runs - 1].end;
        if (last > least) least = last;
    }
    return least < c->length ? least : c->length;
}

/* Pages that hold nothing any more. */
static void release_tail_pages(backend_cache *c) {
    for (int i = 0; i < c->model->config->layers; i++) {
        layer_store *s = &c->layer[i];
        if (s->kind != STORE_PAGES) continue;
        while (s->n_pages > s->first_page && (s->n_pages - 1) * KV_PAGE_POSITIONS >= c->length) {
            mem_free(s->pages[--s->n_pages]);
            s->pages[s->n_pages] = NULL;
        }
    }
}

kakeya_status cpu_cache_truncate(backend_cache *c, int length, kakeya_error *error) {
    if (c->pending) return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot truncate with %d pending rows", c->pending);
    if (length > c->length || length < cpu_cache_min_truncate(c)) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot truncate to %d: the cache can go back to %d to %d", length,
                         cpu_cache_min_truncate(c), c->length);
    }
    c->length = length;
    for (int l = 0; c->options.keep_draft_context && l < c->model->options.drafter->config.layers; l++) {
        /* What the dropped rows have overwritten in the ring is no context any more. */
        int oldest = c->draft_length - c->draft[l].capacity;
        if (oldest > c->draft_from) c->draft_from = oldest < length ? oldest : length;
    }
    if (c->draft_length > length) c->draft_length = length;
    if (c->latent_length > length) c->latent_length = length;
    release_tail_pages(c);
    while (c->n_runs && c->runs[c->n_runs - 1].begin >= length) c->n_runs--;
    if (c->n_runs && c->runs[c->n_runs - 1].end > length) c->runs[c->n_runs - 1].end = length;
    return KAKEYA_OK;
}

kakeya_status cpu_cache_fork(const backend_cache *c, mem_account *account, backend_cache **out, kakeya_error *error) {
    *out = NULL;
    backend_cache_options options = c->options;
    options.account = account;
    size_t bytes = cpu_cache_snapshot_bytes(c);
    void *data = malloc(bytes ? bytes : 1);
    if (!data) return out_of_memory(error, "a fork", bytes);
    backend_cache *copy = NULL;
    kakeya_status status = cpu_cache_snapshot(c, data, bytes, error);
    if (!status) status = cpu_cache_create(c->model, &options, &copy, error);
    if (!status) status = cpu_cache_restore(copy, data, bytes, error);
    free(data);
    if (status) {
        cpu_cache_destroy(copy);
        return status;
    }
    *out = copy;
    return KAKEYA_OK;
}

/* The layout's formula; tests hold it against the allocator's counters. */
backend_cache_bytes cpu_cache_bytes(const backend_cache *c) {
    backend_cache_bytes b = {0};
    for (int i = 0; i < c->model->config->layers; i++) {
        const layer_store *s = &c->layer[i];
        size_t copies = s->has_k ? 2 : 1, bytes = 0;
        if (s->kind == STORE_NONE) continue;
        if (s->sink_v) bytes += copies * mem_rounded(row_bytes(c, s) * (size_t)c->options.sink);
        if (s->kind == STORE_RING) bytes += copies * mem_rounded(row_bytes(c, s) * (size_t)s->capacity);
        else bytes += (size_t)(s->n_pages - s->first_page) * mem_rounded(page_bytes(c, s));
        if (layer_tag(c, i) == MEM_KV_FULL) b.full += bytes;
        else b.sliding += bytes;
        if (c->own_raw && c->own_raw[i]) {
            b.latent += mem_rounded((size_t)c->options.context_tokens * 2 * (size_t)s->kv_dim * sizeof(float));
        }
    }
    if (c->options.attention == KAKEYA_ATTENTION_RESTORED) {
        if (c->latent.ring) {
            b.latent += mem_rounded((size_t)c->latent.capacity * latent_code_bytes(c)) +
                        mem_rounded((size_t)c->latent.capacity * (size_t)c->latent.heads * sizeof(float));
        } else {
            b.latent += (size_t)c->latent.n_pages * mem_rounded(latent_page_bytes(c));
        }
    }
    if (c->options.keep_draft_context) {
        const dflash_config *d = &c->model->options.drafter->config;
        size_t row = (size_t)(d->kv_heads * d->head_dim) * kv_element_bytes(c);
        for (int i = 0; i < d->layers; i++) b.draft += 2 * mem_rounded(row * (size_t)c->draft[i].capacity);
    }
    return b;
}
