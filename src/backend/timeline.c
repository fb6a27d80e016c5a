#include "backend/timeline.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kv_q4.h"
#include "model/gemma4_layers.h"

_Static_assert((int)MODEL_MAX_HEAD_DIM <= (int)KV_Q4_MAX_VALUES, "every head can be kept in q4");

static int least(int a, int b) { return a < b ? a : b; }
static int most(int a, int b) { return a > b ? a : b; }

static bool is_bounded(const timeline *t) { return t->options.attention != KAKEYA_ATTENTION_NATIVE; }
static bool is_restored(const timeline *t) { return t->options.attention == KAKEYA_ATTENTION_RESTORED; }

/* The window in sums: a wider one than the context never evicts either. */
static int window_of(const timeline *t) { return least(t->options.window, t->options.context_tokens); }

/* Full-attention layers evict, too. */
static bool bounds_all(const timeline *t) { return is_restored(t) && t->options.restore_layers == KAKEYA_RESTORE_ALL; }

static bool has_layers_of(const timeline *t, store_kind kind) {
    for (int i = 0; i < t->models.verifier->layers; i++) {
        if (t->layer[i].kind == kind) return true;
    }
    return false;
}

/* ---------------------------------------------------------------------------------------------------- creation */

kakeya_status timeline_check(const timeline_models *m, const backend_cache_options *o, kakeya_error *error) {
    int maximum = m->verifier->max_context;
    if (o->context_tokens < 1 || o->context_tokens > maximum) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "context of %d tokens is outside 1 to %d, the model's maximum",
                         o->context_tokens, maximum);
    }
    bool bounded = o->attention != KAKEYA_ATTENTION_NATIVE, restored = o->attention == KAKEYA_ATTENTION_RESTORED;
    if (bounded && (o->sink < 0 || o->sink > o->context_tokens)) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "sink %d is outside 0 to %d", o->sink, o->context_tokens);
    }
    if (bounded && o->window < 1) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "window %d must be at least 1", o->window);
    }
    if ((o->keep_draft_context || restored) && (o->draft_window < 1 || o->draft_window > maximum)) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "draft window %d is outside 1 to %d", o->draft_window,
                         maximum);
    }
    if (restored && !m->restoration)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "attention 'restored' needs an f_theta (it is missing)");
    if (restored && !m->drafter && restoration_needs_drafter(m->restoration))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "attention 'restored' needs a drafter, from which f_theta's input %s is made (it is missing)",
                         restoration_input_name(m->restoration->input));
    if ((unsigned)o->kv_format >= KV_FORMAT_COUNT) {
        return error_set(error, KAKEYA_UNSUPPORTED, "K/V format %d is not supported", (int)o->kv_format);
    }
    return KAKEYA_OK;
}

static void lay_out_layers(timeline *t) {
    const model_config *c = t->models.verifier;
    for (int i = 0; i < c->layers; i++) {
        const layer_config *lc = &c->layer[i];
        timeline_layer *l = &t->layer[i];
        l->latent_head = -1;
        if (lc->kv_source != i) continue;
        bool sliding = lc->type == LAYER_SLIDING;
        l->kind = sliding ? STORE_RING : STORE_PAGES;
        l->values = lc->kv_heads * lc->head_dim;
        l->format = sliding ? kv_format_base(t->options.kv_format) : t->options.kv_format;
        l->head_bytes = kv_format_row_bytes(l->format, 1, (size_t)lc->head_dim);
        l->row_bytes = (size_t)lc->kv_heads * l->head_bytes;
        l->has_keys = !lc->k_eq_v;
        l->bounded = sliding ? is_bounded(t) : bounds_all(t);
        l->restored = l->bounded && is_restored(t);
        if (!l->restored) continue;
        l->latent_head = t->latent_heads;
        t->latent_heads += lc->kv_heads;
    }
    t->draft_format = kv_format_base(t->options.kv_format);
    int window = c->sliding_window;
    t->prompt_capacity = kv_ring_positions(window);
    t->decode_capacity = is_bounded(t) ? kv_ring_positions(least(t->options.window, window)) : t->prompt_capacity;
    t->ring_capacity = t->prompt_capacity;
    if (!is_restored(t)) return;
    t->latents = bounds_all(t) ? STORE_PAGES : STORE_RING;
    t->latent_capacity = t->latents == STORE_RING ? t->prompt_capacity : 0;
    t->latents_from_tokens = t->models.restoration->input == RESTORATION_DRAFTER_TOKEN_KV;
    t->latents_from_aux = t->models.restoration->input == RESTORATION_AUX_HIDDEN;
    t->latent = latent_row_of(t->models.restoration, t->options.kv_format);
}

/* The drafter's layers come first and in its order: its fc reads them as they lie. */
static void lay_out_taps(timeline *t) {
    if (t->options.keep_draft_context) {
        const block_drafter_config *d = t->models.drafter;
        for (int i = 0; i < d->targets; i++) t->tap[t->taps++] = d->target_layer[i];
    }
    const restoration_config *f = t->models.restoration;
    for (int i = 0; t->latents_from_aux && i < f->aux_layers; i++) {
        int at = 0;
        while (at < t->taps && t->tap[at] != f->aux_layer[i]) at++;
        if (at == t->taps) t->tap[t->taps++] = f->aux_layer[i];
        t->restoration_tap[i] = at;
    }
    t->keeps_backlog = t->options.keep_draft_context || t->latents_from_aux;
}

static timeline lay_out(const timeline_models *models, const backend_cache_options *options) {
    timeline t = {.models = *models, .options = *options, .set_aside = -1};
    if (is_restored(&t) && restoration_needs_drafter(models->restoration)) t.options.keep_draft_context = true;
    if (!models->drafter) t.options.keep_draft_context = false;
    t.keeps_state = t.options.keep_draft_state = models->assistant && options->keep_draft_state;
    lay_out_layers(&t);
    lay_out_taps(&t);
    for (int i = 0; t.options.keep_draft_context && i < models->drafter->layers; i++) {
        int own = models->drafter->sliding_window[i], window = options->draft_window;
        t.draft[i].window = own ? least(own, window) : window;
        t.draft[i].capacity = kv_ring_positions(t.draft[i].window);
    }
    return t;
}

kakeya_status timeline_create(timeline *t, const timeline_models *models, const backend_cache_options *options,
                              kakeya_error *error) {
    *t = (timeline){0};
    kakeya_status status = timeline_check(models, options, error);
    if (!status) *t = lay_out(models, options);
    return status;
}

void timeline_destroy(timeline *t) {
    free(t->runs);
    t->runs = NULL;
    t->n_runs = t->max_runs = 0;
}

static kakeya_status grow_runs(timeline *t, int n, kakeya_error *error) {
    enum { FIRST_RUNS = 16 };
    if (n <= t->max_runs) return KAKEYA_OK;
    int grown = most(n, t->max_runs ? 2 * t->max_runs : FIRST_RUNS);
    timeline_run *runs = realloc(t->runs, (size_t)grown * sizeof *runs);
    if (!runs) {
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the history of turns needs %zu bytes",
                         (size_t)grown * sizeof *runs);
    }
    t->runs = runs;
    t->max_runs = grown;
    return KAKEYA_OK;
}

kakeya_status timeline_copy(timeline *copy, const timeline *t, kakeya_error *error) {
    assert(t->pending == 0);
    *copy = *t;
    copy->runs = NULL;
    copy->max_runs = 0;
    kakeya_status status = grow_runs(copy, t->n_runs, error);
    if (!status && t->n_runs) memcpy(copy->runs, t->runs, (size_t)t->n_runs * sizeof *t->runs);
    return status;
}

int timeline_decode_rows(const timeline *t) {
    return is_bounded(t) ? least(t->options.window, BACKEND_MAX_DECODE_ROWS) : BACKEND_MAX_DECODE_ROWS;
}

/* ---------------------------------------------------------------------------------------------- what a row sees */

/* The frontier of the timeline cut to `length`. */
static int frontier_at(const timeline *t, int length) {
    if (!is_bounded(t)) return 0;
    for (int i = t->n_runs - 1; i >= 0; i--) {
        if (t->runs[i].begin < length) return most(0, least(t->runs[i].end, length) - window_of(t));
    }
    return 0;
}

int timeline_frontier(const timeline *t) { return frontier_at(t, t->length); }

/* The smallest length whose frontier is at least `position` (above 0); INT_MAX if there is none. */
static int length_of_frontier(const timeline *t, int position) {
    int end = position + window_of(t);
    for (int i = 0; i < t->n_runs; i++) {
        if (t->runs[i].end >= end) return most(t->runs[i].begin + 1, end);
    }
    return INT_MAX;
}

timeline_view timeline_sees(const timeline *t, int layer, segment_kind kind, int position) {
    const timeline_layer *l = &t->layer[layer];
    int oldest = l->kind == STORE_RING ? most(0, position + 1 - t->models.verifier->sliding_window) : 0,
        end = position + 1;
    if (!l->bounded) return (timeline_view){.exact = {oldest, end}};
    int sink = least(t->options.sink, end), behind_sink = most(sink, oldest);
    int evicted = kind == SEGMENT_DECODE ? end - window_of(t) : timeline_frontier(t);
    return (timeline_view){
        .sink = {oldest, most(sink, oldest)},
        .evicted = {behind_sink, most(evicted, behind_sink)},
        .exact = {most(evicted, behind_sink), end},
    };
}

timeline_view timeline_assistant_sees(const timeline *t, int layer) {
    timeline_view view = timeline_sees(t, layer, SEGMENT_DECODE, t->length);
    position_range *ranges[] = {&view.sink, &view.exact};
    for (int i = 0; i < 2; i++) ranges[i]->end = least(ranges[i]->end, t->length);
    view.evicted = (position_range){0, 0};
    return view;
}

position_range timeline_draft_context(const timeline *t, int draft_layer) {
    return (position_range){most(most(0, t->length - t->draft[draft_layer].window), t->draft_from), t->length};
}

/* -------------------------------------------------------------------------------------------------- truncation */

int timeline_min_truncate(const timeline *t) {
    int window = t->models.verifier->sliding_window, sink = is_bounded(t) ? t->options.sink : 0, result = 0;
    /* A row behind length n sees ring rows from n - W + 1 and from the frontier on, whichever is later; sinks lie
     * elsewhere. */
    if (has_layers_of(t, STORE_RING) && t->ring_from > sink) {
        int by_window = t->ring_from + window - 1, by_frontier = length_of_frontier(t, t->ring_from);
        result = is_bounded(t) ? least(by_window, by_frontier) : by_window;
    }
    int held = t->first_page * KV_PAGE_POSITIONS;
    if (held > 0) result = most(result, held <= sink ? held : length_of_frontier(t, held));
    /* Latents are seen inside the sliding window, if eviction begins there at all. */
    bool sees_latents = t->latents == STORE_RING && window_of(t) < window;
    if (sees_latents && t->latent_from > sink) result = most(result, t->latent_from + window - 1);
    return least(result, t->length + 1);
}

/* Where the text behind the last answer begins. */
static int turn_begin(const timeline *t) { return t->n_runs ? t->runs[t->n_runs - 1].end : 0; }

kakeya_status timeline_truncate(timeline *t, int length, kakeya_error *error) {
    if (t->pending)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot truncate with %d pending rows", t->pending);
    int smallest = timeline_min_truncate(t);
    if (length > t->length || length < smallest) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot truncate to %d: the cache can go back to %d to %d",
                         length, smallest, t->length);
    }
    /* What dropped rows have overwritten in the drafter's rings is no context any more. */
    for (int i = 0; t->options.keep_draft_context && i < t->models.drafter->layers; i++) {
        t->draft_from = most(t->draft_from, t->draft_length - t->draft[i].capacity);
    }
    t->draft_from = least(t->draft_from, length);
    if (length < t->length) t->state_length = 0;
    t->length = length;
    t->draft_length = least(t->draft_length, length);
    while (t->n_runs && t->runs[t->n_runs - 1].begin >= length) t->n_runs--;
    if (t->n_runs) t->runs[t->n_runs - 1].end = least(t->runs[t->n_runs - 1].end, length);
    t->latent_length = least(t->latent_length, length);
    /* A prompt's pass over its tokens saw the dropped ones, too: it is made again. */
    if (t->latents_from_tokens) t->latent_length = least(t->latent_length, turn_begin(t));
    t->latent_from = least(t->latent_from, t->latent_length);
    t->ring_from = least(t->ring_from, length);
    t->end_page = most(t->first_page, kv_pages(length));
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------- one forward */

static kakeya_status check_step(const timeline *t, segment_kind kind, int n, kakeya_error *error) {
    if (t->pending) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%d pending rows must be committed first", t->pending);
    }
    if (timeline_min_truncate(t) > t->length) {
        return error_set(
            error, KAKEYA_INVALID_ARGUMENT,
            "a dropped prompt has overwritten positions that the %d before it need: compute them again in a new cache",
            t->length);
    }
    if (n > t->options.context_tokens - t->length) {
        return error_set(error, KAKEYA_CONTEXT_FULL, "%d tokens after %d do not fit into a context of %d", n, t->length,
                         t->options.context_tokens);
    }
    if (kind == SEGMENT_DECODE && n > timeline_decode_rows(t)) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%d decode rows in one segment; at most %d", n,
                         timeline_decode_rows(t));
    }
    return KAKEYA_OK;
}

/* The one ring row that the last row of a full block overwrites although a prompt, should nothing of the block be kept,
 * may see it; -1 where there is none. */
static int row_at_risk(const timeline *t, const timeline_step *step) {
    if (step->kind == SEGMENT_PROMPT || !has_layers_of(t, STORE_RING)) return -1;
    int needed = most(t->length + 1 - t->models.verifier->sliding_window, timeline_frontier(t));
    needed = most(needed, most(t->ring_from, is_bounded(t) ? t->options.sink : 0));
    int overwritten = t->length + step->n - step->ring_capacity;
    assert(overwritten <= needed + 1);
    return needed < overwritten ? needed : -1;
}

/* Rows wait until a prompt comes, until the backlog would overflow, or until a row of this block can find a position
 * evicted that has no latent yet. */
static position_range rows_to_flush(const timeline *t, const timeline_step *step) {
    int waiting = t->length - t->draft_length;
    bool evicts = is_restored(t) && t->length + step->n - window_of(t) > t->draft_length;
    bool flush = step->kind == SEGMENT_PROMPT || waiting + step->n > KV_BACKLOG || evicts;
    if (!t->keeps_backlog || !flush) return (position_range){t->length, t->length};
    return (position_range){t->draft_length, t->length};
}

kakeya_status timeline_plan(const timeline *t, segment_kind kind, int n, timeline_step *step, kakeya_error *error) {
    kakeya_status status = check_step(t, kind, n, error);
    if (status) return status;
    *step = (timeline_step){.kind = kind, .n = n, .position = t->length};
    bool answering = kind == SEGMENT_DECODE && t->n_runs && turn_begin(t) == t->length;
    step->end_page = most(t->end_page, kv_pages(t->length + n));
    step->ring_capacity = answering ? t->ring_capacity : t->prompt_capacity;
    step->kept_capacity = kind == SEGMENT_DECODE ? t->decode_capacity : step->ring_capacity;
    step->moved = (position_range){t->length, t->length};
    if (step->ring_capacity != t->ring_capacity) step->moved.begin = t->ring_from;
    step->set_aside = row_at_risk(t, step);
    step->flushed = rows_to_flush(t, step);
    bool pass = kind == SEGMENT_DECODE && t->latents_from_tokens;
    step->prompt_latents = pass ? (position_range){t->latent_length, t->draft_length} : (position_range){0, 0};
    step->stored = kind == SEGMENT_PROMPT ? least(n, step->ring_capacity) : n;
    return KAKEYA_OK;
}

kakeya_status timeline_reserve(timeline *t, const timeline_step *step, kakeya_error *error) {
    return step->kind == SEGMENT_DECODE ? grow_runs(t, t->n_runs + 1, error) : KAKEYA_OK;
}

/* Latents up to `end` have been written to their store. */
static void latents_written(timeline *t, int end) {
    if (t->latents == STORE_RING) t->latent_from = most(t->latent_from, end - t->latent_capacity);
}

position_range timeline_flush(const timeline *t) {
    return (position_range){t->keeps_backlog ? t->draft_length : t->length, t->length};
}

void timeline_flushed(timeline *t) {
    if (!t->keeps_backlog || t->draft_length == t->length) return;
    t->draft_length = t->length;
    if (t->latents == STORE_NONE) return;
    t->latent_length = t->length;
    latents_written(t, t->length);
}

void timeline_begin(timeline *t, const timeline_step *step) {
    t->end_page = step->end_page;
    t->ring_capacity = step->ring_capacity;
    t->reserved_capacity = step->kept_capacity != step->ring_capacity ? step->kept_capacity : 0;
    t->set_aside = step->set_aside;
    if (!range_is_empty(step->flushed)) timeline_flushed(t);
    t->pending_latents = t->latent_length;
    if (range_is_empty(step->prompt_latents)) return;
    t->pending_latents = step->prompt_latents.end;
    latents_written(t, t->pending_latents);
}

void timeline_computed(timeline *t, const timeline_step *step) {
    int end = t->length + step->n;
    t->pending = step->n;
    t->pending_kind = step->kind;
    if (has_layers_of(t, STORE_RING)) t->ring_from = most(t->ring_from, end - t->ring_capacity);
    if (step->kind == SEGMENT_DECODE || t->latents == STORE_NONE || t->latents_from_tokens) return;
    t->pending_latents = end;
    latents_written(t, end);
}

int timeline_latent_rows(const timeline *t, int n) {
    if (t->latents == STORE_NONE) return 0;
    return t->latents == STORE_RING ? least(n, t->latent_capacity) : n;
}

size_t timeline_draft_row_bytes(const timeline *t) {
    const block_drafter_config *d = t->models.drafter;
    return kv_format_row_bytes(t->draft_format, (size_t)d->kv_heads, (size_t)d->head_dim);
}

size_t timeline_aux_row_bytes(const timeline *t) {
    return (size_t)t->taps * (size_t)t->models.verifier->hidden * sizeof(float);
}

size_t timeline_state_bytes(const timeline *t) { return (size_t)t->models.verifier->hidden * sizeof(float); }

bool timeline_has_state(const timeline *t) {
    return t->keeps_state && t->state_length > 0 && t->state_length == t->length;
}

int timeline_context_rows(const timeline *t, int n) {
    int needed = t->latents_from_aux ? 0 : timeline_latent_rows(t, n);
    for (int i = 0; i < t->models.drafter->layers; i++) needed = most(needed, t->draft[i].capacity);
    return least(n, needed);
}

/* ------------------------------------------------------------------------------------------------------ commit */

kakeya_status timeline_plan_commit(const timeline *t, int n, timeline_keep *keep, kakeya_error *error) {
    if (n < 0 || n > t->pending) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot commit %d of %d pending rows", n, t->pending);
    }
    if (t->pending_kind == SEGMENT_PROMPT && n != t->pending && n != 0) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "a prompt of %d rows must be committed whole or not at all, not %d rows", t->pending, n);
    }
    int length = t->length + n;
    *keep = (timeline_keep){.n = n, .moved = {length, length}, .put_back = n == 0 ? t->set_aside : -1};
    if (n == 0 || !t->reserved_capacity) return KAKEYA_OK;
    keep->ring_capacity = t->reserved_capacity;
    keep->moved.begin = least(length, most(t->ring_from, length - t->reserved_capacity));
    return KAKEYA_OK;
}

static void drop_pending(timeline *t) {
    if (t->set_aside >= 0) t->ring_from = t->set_aside;
    if (t->pending_kind == SEGMENT_PROMPT && t->options.keep_draft_context) {
        for (int i = 0; i < t->models.drafter->layers; i++) {
            t->draft_from = most(t->draft_from, t->length + t->pending - t->draft[i].capacity);
        }
        t->draft_from = least(t->draft_from, t->length);
    }
    t->latent_from = least(t->latent_from, t->latent_length);
    t->ring_from = least(t->ring_from, t->length);
    t->end_page = most(t->first_page, kv_pages(t->length));
}

/* Of full-attention layers that evict: those below the window, and below what a truncation by one block may need. */
static void release_pages(timeline *t) {
    int kept = t->length - window_of(t) - KV_RING_SLACK;
    if (bounds_all(t)) t->first_page = most(t->first_page, kept / KV_PAGE_POSITIONS);
}

timeline timeline_preview(const timeline_models *models, const backend_cache_options *options, int positions) {
    timeline t = lay_out(models, options);
    t.length = t.options.context_tokens = positions;
    t.ring_capacity = t.decode_capacity;
    t.end_page = kv_pages(positions);
    release_pages(&t);
    return t;
}

static void keep_prompt(timeline *t, int n) {
    t->length += n;
    if (t->keeps_backlog) t->draft_length = t->length;
}

static void keep_block(timeline *t, const timeline_keep *keep) {
    if (t->n_runs && turn_begin(t) == t->length) {
        t->runs[t->n_runs - 1].end += keep->n;
    } else {
        assert(t->n_runs < t->max_runs);
        t->runs[t->n_runs++] = (timeline_run){t->length, t->length + keep->n};
    }
    t->length += keep->n;
    if (keep->ring_capacity) {
        t->ring_capacity = keep->ring_capacity;
        t->ring_from = keep->moved.begin;
    }
    release_pages(t);
}

void timeline_commit(timeline *t, const timeline_keep *keep) {
    if (keep->n == 0) {
        drop_pending(t);
    } else {
        if (t->latents != STORE_NONE) t->latent_length = t->pending_latents;
        if (t->pending_kind == SEGMENT_PROMPT)
            keep_prompt(t, keep->n);
        else
            keep_block(t, keep);
        if (t->keeps_state) t->state_length = t->length;
    }
    t->pending = 0;
    t->reserved_capacity = 0;
    t->set_aside = -1;
}

/* ----------------------------------------------------------------------------------------------- stored ranges */

position_range timeline_layer_held(const timeline *t, int layer) {
    if (t->layer[layer].kind == STORE_RING) return (position_range){t->ring_from, t->length};
    return (position_range){t->first_page * KV_PAGE_POSITIONS, t->length};
}

position_range timeline_sink_held(const timeline *t) {
    return (position_range){0, is_bounded(t) ? least(t->options.sink, t->length) : 0};
}

position_range timeline_latents_held(const timeline *t) { return (position_range){t->latent_from, t->latent_length}; }

position_range timeline_draft_held(const timeline *t, int draft_layer) {
    return (position_range){most(t->draft_from, t->draft_length - t->draft[draft_layer].capacity), t->draft_length};
}

position_range timeline_backlog_held(const timeline *t) {
    return (position_range){t->keeps_backlog ? t->draft_length : t->length, t->length};
}

timeline_state timeline_get_state(const timeline *t) {
    return (timeline_state){t->length,     t->ring_capacity, t->ring_from,   t->first_page, t->draft_length,
                            t->draft_from, t->latent_length, t->latent_from, t->n_runs};
}

static bool is_within(int value, int low, int high) { return low <= value && value <= high; }

static bool is_possible(const timeline *t, const timeline_state *s) {
    int length = s->length;
    if (!is_within(length, 0, t->options.context_tokens)) return false;
    if (s->ring_capacity != t->prompt_capacity && s->ring_capacity != t->decode_capacity) return false;
    if (!is_within(s->ring_from, has_layers_of(t, STORE_RING) ? length - s->ring_capacity : 0, length) ||
        s->ring_from < 0)
        return false;
    if (!is_within(s->first_page, 0, bounds_all(t) ? length / KV_PAGE_POSITIONS : 0)) return false;
    bool waits = t->keeps_backlog;
    if (!is_within(s->draft_length, waits ? length - KV_BACKLOG : 0, waits ? length : 0) || s->draft_length < 0)
        return false;
    if (!is_within(s->draft_from, 0, t->options.keep_draft_context ? s->draft_length : 0)) return false;
    int all = t->latents == STORE_NONE ? 0 : s->draft_length;
    bool may_lack = t->latents_from_tokens && s->draft_length == length; /* a prompt that no answer has followed yet */
    if (!is_within(s->latent_length, may_lack ? 0 : all, all)) return false;
    int oldest = t->latents == STORE_RING ? most(0, s->latent_length - t->latent_capacity) : 0;
    return is_within(s->latent_from, oldest, t->latents == STORE_RING ? s->latent_length : 0);
}

static bool are_runs(const timeline_run *runs, int n, int length) {
    for (int i = 0; i < n; i++) {
        int least_begin = i ? runs[i - 1].end + 1 : 0;
        if (runs[i].begin < least_begin || runs[i].end <= runs[i].begin || runs[i].end > length) return false;
    }
    return true;
}

kakeya_status timeline_set_state(timeline *t, const timeline_state *s, const timeline_run *runs, kakeya_error *error) {
    bool sane = is_possible(t, s) && is_within(s->n_runs, 0, s->length) && are_runs(runs, s->n_runs, s->length);
    if (sane) {
        timeline probe = *t; /* with the history that is to be checked; it allocates nothing */
        probe.length = s->length;
        probe.ring_capacity = s->ring_capacity;
        probe.ring_from = s->ring_from;
        probe.first_page = s->first_page;
        probe.latent_from = s->latent_from;
        timeline_run *copy = NULL;
        if (s->n_runs) {
            copy = malloc((size_t)s->n_runs * sizeof *copy);
            if (!copy)
                return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the history of %d turns", (int)s->n_runs);
            memcpy(copy, runs, (size_t)s->n_runs * sizeof *copy);
        }
        probe.runs = copy;
        probe.n_runs = probe.max_runs = s->n_runs;
        probe.draft_length = s->draft_length;
        probe.draft_from = s->draft_from;
        probe.latent_length = s->latent_length;
        probe.state_length = 0; /* a snapshot says apart whether it has one */
        probe.end_page = most(s->first_page, kv_pages(s->length));
        if (timeline_min_truncate(&probe) <= s->length) {
            timeline_destroy(t);
            *t = probe;
            return KAKEYA_OK;
        }
        timeline_destroy(&probe);
    }
    return error_set(error, KAKEYA_FORMAT,
                     "snapshot is damaged: length %d, rings from %d, drafter to %d, latents %d to %d, %d turns",
                     (int)s->length, (int)s->ring_from, (int)s->draft_length, (int)s->latent_from,
                     (int)s->latent_length, (int)s->n_runs);
}
