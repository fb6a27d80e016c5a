/* Protects the rules of K/V memory (backend/timeline.h): random schedules of prompts, blocks, drops, truncations, forks
 * and snapshots on stores that hold the names of rows instead of values. Every row must find, under every policy,
 * exactly what a naive reading of the rule says: each position exact, restored or not at all, and never a row that was
 * dropped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/timeline.h"
#include "sweep.h"

enum { CONTEXT = 320, LAYERS = 5, DRAFT_LAYERS = 2, MOST_RING = 400, NAMELESS = 0 };

/* A stored row: the name of the token row that it was made for; latents also name the pass that made them. */
typedef struct cell {
    uint32_t name;
    int position, pass_begin, pass_end;
    uint32_t pass_names;
} cell;

typedef struct stores {
    cell ring[MOST_RING], reserved[MOST_RING], aside;
    bool page[CONTEXT / KV_PAGE_POSITIONS + 2];
    cell rows[CONTEXT + KV_PAGE_POSITIONS]; /* pages of full-attention layers */
    cell sink[CONTEXT];                     /* of sliding layers */
    cell full_sink[CONTEXT];
    cell latent_ring[MOST_RING], latent_rows[CONTEXT + KV_PAGE_POSITIONS];
    cell draft[DRAFT_LAYERS][MOST_RING];
    cell backlog[KV_BACKLOG];
} stores;

typedef struct run {
    uint64_t seed, random;
    model_config verifier;
    block_drafter_config drafter;
    restoration_config f_theta;
    backend_cache_options options;
    timeline t;
    stores *s;
    /* the oracle: what was committed, and what is pending behind it */
    segment_kind kind[CONTEXT + 1];
    uint32_t name[CONTEXT + 1];
    int length, pending;
    uint32_t last_name;
    long steps;
    bool dropped_prompt;
} run;

static uint32_t draw(run *r, uint32_t n) {
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((r->random >> 33) % n);
}

static int draw_within(run *r, int low, int high) { return low + (int)draw(r, (uint32_t)(high - low + 1)); }

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            char text_[1200];                                                                                          \
            snprintf(text_, sizeof text_, __VA_ARGS__);                                                                \
            fail_msg("seed %llu, step %ld, attention %d/%d, W %d, window %d, sink %d, length %d: %s",                  \
                     (unsigned long long)r->seed, r->steps, (int)r->options.attention, (int)r->options.restore_layers, \
                     r->verifier.sliding_window, r->options.window, r->options.sink, r->length, text_);                \
        }                                                                                                              \
    } while (0)

static void check_ok(run *r, kakeya_status status, const kakeya_error *error, const char *what) {
    CHECK(status == KAKEYA_OK, "%s: %s", what, error->message);
}

/* Two sliding layers, two full-attention layers (one K = V), one that shares the K/V of the first. */
static void make_models(run *r) {
    r->verifier = (model_config){.layers = LAYERS,
                                 .hidden = 8,
                                 .heads = 4,
                                 .vocab = 64,
                                 .max_context = CONTEXT,
                                 .sliding_window = draw_within(r, 1, draw(r, 2) ? 20 : 90)};
    for (int i = 0; i < LAYERS; i++) {
        r->verifier.layer[i] = (layer_config){.type = i % 2 ? LAYER_FULL : LAYER_SLIDING,
                                              .head_dim = 4,
                                              .kv_heads = 2,
                                              .k_eq_v = i == 3,
                                              .kv_source = i == 4 ? 0 : i};
    }
    r->drafter = (block_drafter_config){.layers = DRAFT_LAYERS,
                                        .hidden = 8,
                                        .heads = 2,
                                        .kv_heads = 1,
                                        .head_dim = 4,
                                        .targets = 2,
                                        .sliding_window = {0, draw(r, 2) ? draw_within(r, 1, 40) : 0}};
    r->f_theta =
        (restoration_config){.layers = LAYERS,
                             .rank = 4,
                             .rank_k = 4,
                             .rank_v = 4,
                             .input = draw(r, 2) ? RESTORATION_DRAFTER_TOKEN_KV : RESTORATION_DRAFTER_CONTEXT_KV};
    r->options = (backend_cache_options){.context_tokens = draw(r, 4) ? CONTEXT : draw_within(r, 1, CONTEXT),
                                         .attention = (kakeya_attention)draw(r, 3),
                                         .restore_layers = (kakeya_restore_layers)draw(r, 2),
                                         .window = draw_within(r, 1, draw(r, 2) ? 24 : 100),
                                         .draft_window = draw_within(r, 1, 60),
                                         .keep_draft_context = draw(r, 2)};
    if (draw(r, 3) == 0) r->options.window = draw_within(r, 1, 4) * 16; /* rings without a spare slot */
    r->options.sink = draw_within(r, 0, draw(r, 2) ? 5 : 150);
    if (r->options.sink > r->options.context_tokens) r->options.sink = r->options.context_tokens;
}

static timeline_models models_of(const run *r) {
    return (timeline_models){&r->verifier, &r->drafter, &r->f_theta, NULL};
}

/* ------------------------------------------------------------------------------------------------- the oracle */

typedef enum sight { UNSEEN, EXACT, RESTORED } sight;

/* Straight from the rule: docs/design/restoration.md. The row is pending or committed at `t`, of `kind`; frontiers come
 * from the committed decode rows before it. */
static sight expected_sight(const run *r, bool sliding, segment_kind kind, int t, int j) {
    const backend_cache_options *o = &r->options;
    if (j > t || (sliding && t - j >= r->verifier.sliding_window)) return UNSEEN;
    bool bounded = o->attention != KAKEYA_ATTENTION_NATIVE;
    if (!sliding) bounded = o->attention == KAKEYA_ATTENTION_RESTORED && o->restore_layers == KAKEYA_RESTORE_ALL;
    if (!bounded || j < o->sink) return EXACT;
    int evictor = t; /* the decode row whose eviction this row sees */
    if (kind == SEGMENT_PROMPT) {
        for (evictor = r->length - 1; evictor >= 0 && r->kind[evictor] == SEGMENT_PROMPT; evictor--) {
        }
        if (evictor < 0) return EXACT;
    }
    if (j > evictor - o->window) return EXACT;
    return o->attention == KAKEYA_ATTENTION_RESTORED ? RESTORED : UNSEEN;
}

static uint32_t names_of(const run *r, int begin, int end) {
    uint32_t hash = 17;
    for (int i = begin; i < end; i++) hash = hash * 31 + r->name[i];
    return hash;
}

/* The latent that position j must have: made from that row alone, or, of a prompt under the other input form, in one
 * pass over all rows of its turn's prompt. */
static cell expected_latent(const run *r, int j) {
    cell c = {.name = r->name[j], .position = j, .pass_begin = j, .pass_end = j + 1};
    if (r->f_theta.input == RESTORATION_DRAFTER_TOKEN_KV && r->kind[j] == SEGMENT_PROMPT) {
        while (c.pass_begin > 0 && r->kind[c.pass_begin - 1] == SEGMENT_PROMPT) c.pass_begin--;
        while (c.pass_end < r->length && r->kind[c.pass_end] == SEGMENT_PROMPT) c.pass_end++;
    }
    c.pass_names = names_of(r, c.pass_begin, c.pass_end);
    return c;
}

/* ---------------------------------------------------------------------------------------- what a backend does */

static cell cell_of(const run *r, int position) { return (cell){.name = r->name[position], .position = position}; }

static void store_latent(run *r, int j, int begin, int end) {
    const timeline *t = &r->t;
    cell c = {
        .name = r->name[j], .position = j, .pass_begin = begin, .pass_end = end, .pass_names = names_of(r, begin, end)};
    if (t->latents == STORE_RING)
        r->s->latent_ring[j % t->latent_capacity] = c;
    else
        r->s->latent_rows[j] = c;
}

/* The drafter's context (and latents) of rows [begin, end). */
static void extend_context(run *r, int begin, int end) {
    const timeline *t = &r->t;
    int n = end - begin, rows = timeline_context_rows(t, n), latents = timeline_latent_rows(t, n);
    for (int j = end - rows; j < end; j++) {
        for (int l = 0; l < DRAFT_LAYERS; l++) {
            if (j >= end - t->draft[l].capacity) r->s->draft[l][j % t->draft[l].capacity] = cell_of(r, j);
        }
    }
    for (int j = end - latents; !t->latents_from_tokens && j < end; j++) store_latent(r, j, j, j + 1);
}

static void flush(run *r, position_range rows) {
    const timeline *t = &r->t;
    if (range_is_empty(rows)) return;
    CHECK(rows.begin == t->draft_length && rows.end == r->length, "flush of %d to %d", rows.begin, rows.end);
    for (int j = rows.begin; j < rows.end; j++) {
        cell waiting = r->s->backlog[j - rows.begin];
        CHECK(waiting.name == r->name[j] && waiting.position == j, "the backlog has position %d where %d waits",
              waiting.position, j);
    }
    extend_context(r, rows.begin, rows.end);
    for (int j = rows.begin; t->latents_from_tokens && t->latents && j < rows.end; j++) {
        CHECK(t->latent_length == rows.begin, "rows from %d wait behind latents to %d", rows.begin, t->latent_length);
        store_latent(r, j, j, j + 1);
    }
}

static void begin(run *r, const timeline_step *step) {
    timeline *t = &r->t;
    stores *s = r->s;
    for (int p = 0; p < step->end_page; p++) s->page[p] |= p >= t->first_page;
    if (step->ring_capacity != t->ring_capacity) {
        cell fresh[MOST_RING] = {0};
        for (int j = step->moved.begin; j < step->moved.end; j++)
            fresh[j % step->ring_capacity] = s->ring[j % t->ring_capacity];
        memcpy(s->ring, fresh, sizeof fresh);
    }
    if (step->set_aside >= 0) s->aside = s->ring[step->set_aside % step->ring_capacity];
    flush(r, step->flushed);
    position_range pass = step->prompt_latents;
    int skip = t->latents == STORE_RING && pass.end - pass.begin > t->latent_capacity
                   ? pass.end - pass.begin - t->latent_capacity
                   : 0;
    for (int j = pass.begin + skip; j < pass.end; j++) store_latent(r, j, pass.begin, pass.end);
    timeline_begin(t, step);
}

static void store_row(run *r, int j, bool ring) {
    stores *s = r->s;
    if (j < r->options.sink) s->sink[j] = s->full_sink[j] = cell_of(r, j);
    if (ring) s->ring[j % r->t.ring_capacity] = cell_of(r, j);
    CHECK(s->page[j / KV_PAGE_POSITIONS], "no page for position %d", j);
    s->rows[j] = cell_of(r, j);
}

/* Row t looks at every position through the timeline's eyes; the oracle says what it must find. */
static void check_row(run *r, const timeline_step *step, int t) {
    const stores *s = r->s;
    for (int layer = 0; layer < 2; layer++) {
        bool sliding = layer == 0;
        timeline_view view = timeline_sees(&r->t, layer, step->kind, t);
        for (int j = 0; j <= t; j++) {
            bool sink = j >= view.sink.begin && j < view.sink.end,
                 evicted = j >= view.evicted.begin && j < view.evicted.end;
            bool exact = j >= view.exact.begin && j < view.exact.end;
            CHECK(sink + evicted + exact <= 1, "row %d sees %d more than once", t, j);
            sight found = sink || exact ? EXACT : evicted && r->t.layer[layer].restored ? RESTORED : UNSEEN;
            sight expected = expected_sight(r, sliding, step->kind, t, j);
            CHECK(found == expected, "row %d of kind %d sees %d as %d instead of %d", t, (int)step->kind, j, (int)found,
                  (int)expected);
            if (found == UNSEEN) continue;
            cell c;
            if (found == RESTORED) {
                cell wanted = expected_latent(r, j);
                c = r->t.latents == STORE_RING ? s->latent_ring[j % r->t.latent_capacity] : s->latent_rows[j];
                CHECK(memcmp(&c, &wanted, sizeof c) == 0,
                      "row %d finds the latent of %d (pass %d to %d) where that of %d (%d to %d) belongs", t,
                      c.position, c.pass_begin, c.pass_end, j, wanted.pass_begin, wanted.pass_end);
                continue;
            }
            bool in_chunk = sliding && step->kind == SEGMENT_PROMPT && j >= r->length;
            if (in_chunk) continue;
            if (sink)
                c = sliding ? s->sink[j] : s->full_sink[j];
            else
                c = sliding ? s->ring[j % r->t.ring_capacity] : s->rows[j];
            if (!sink && !sliding) CHECK(s->page[j / KV_PAGE_POSITIONS], "row %d attends %d, whose page is gone", t, j);
            CHECK(c.name == r->name[j] && c.position == j, "row %d of kind %d attends %d and finds %d (%s)", t,
                  (int)step->kind, j, c.position, c.position == j ? "dropped" : "another position");
        }
    }
}

/* A forward: false where the timeline refuses it for a good reason. */
static bool forward(run *r, segment_kind kind, int n) {
    timeline *t = &r->t;
    timeline_step step;
    kakeya_error error = {0};
    kakeya_status status = timeline_plan(t, kind, n, &step, &error);
    int most = r->options.attention != KAKEYA_ATTENTION_NATIVE && r->options.window < BACKEND_MAX_DECODE_ROWS
                   ? r->options.window
                   : BACKEND_MAX_DECODE_ROWS;
    if (timeline_min_truncate(t) > r->length) {
        CHECK(r->dropped_prompt, "spoilt without a dropped prompt");
        CHECK(status == KAKEYA_INVALID_ARGUMENT, "a spoilt timeline goes on");
        return false;
    }
    if (n > r->options.context_tokens - r->length) {
        CHECK(status == KAKEYA_CONTEXT_FULL, "%d rows fit behind %d", n, r->length);
        return false;
    }
    if (kind == SEGMENT_DECODE && n > most) {
        CHECK(status == KAKEYA_INVALID_ARGUMENT, "%d decode rows at once", n);
        return false;
    }
    check_ok(r, status, &error, "plan");
    if (draw(r, 8) == 0) return false; /* another segment could not be planned or reserved */
    check_ok(r, timeline_reserve(t, &step, &error), &error, "reserve");
    if (draw(r, 8) == 0) return false;
    begin(r, &step);
    for (int i = 0; i < n; i++) {
        r->name[r->length + i] = ++r->last_name;
        r->kind[r->length + i] = kind;
    }
    r->pending = n;
    for (int i = 0; i < n; i++) store_row(r, r->length + i, kind == SEGMENT_DECODE);
    for (int i = 0; i < n; i++) check_row(r, &step, r->length + i);
    for (int i = n - step.stored; i < n; i++) store_row(r, r->length + i, true);
    if (t->options.keep_draft_context && kind == SEGMENT_PROMPT) extend_context(r, r->length, r->length + n);
    for (int i = 0; t->options.keep_draft_context && kind == SEGMENT_DECODE && i < n; i++) {
        CHECK(r->length + i - t->draft_length < KV_BACKLOG, "the backlog overflows");
        r->s->backlog[r->length + i - t->draft_length] = cell_of(r, r->length + i);
    }
    timeline_computed(t, &step);
    return true;
}

static void give_back_pages(run *r) {
    for (int p = 0; p < (int)(sizeof r->s->page / sizeof *r->s->page); p++) {
        if (p < r->t.first_page || p >= r->t.end_page) r->s->page[p] = false;
    }
}

static void commit(run *r, int n) {
    timeline *t = &r->t;
    stores *s = r->s;
    timeline_keep keep;
    kakeya_error error = {0};
    check_ok(r, timeline_plan_commit(t, n, &keep, &error), &error, "commit");
    if (keep.ring_capacity) {
        memset(s->reserved, 0, sizeof s->reserved);
        for (int j = keep.moved.begin; j < keep.moved.end; j++)
            s->reserved[j % keep.ring_capacity] = s->ring[j % t->ring_capacity];
        memcpy(s->ring, s->reserved, sizeof s->ring);
    }
    if (keep.put_back >= 0) s->ring[keep.put_back % t->ring_capacity] = s->aside;
    if (n == 0 && t->pending_kind == SEGMENT_PROMPT) r->dropped_prompt = true;
    timeline_commit(t, &keep);
    give_back_pages(r);
    r->length += n;
    r->pending = 0;
    CHECK(t->length == r->length && t->pending == 0, "length %d", t->length);
    CHECK(r->dropped_prompt || timeline_min_truncate(t) <= r->length, "spoilt by a commit of %d", n);
}

/* ------------------------------------------------------------------------------------------------ the schedule */

static void truncate_some(run *r) {
    kakeya_error error;
    int smallest = timeline_min_truncate(&r->t);
    if (smallest > 0) assert_int_equal(timeline_truncate(&r->t, smallest - 1, &error), KAKEYA_INVALID_ARGUMENT);
    if (smallest > r->length) return;
    int length = draw(r, 3) ? r->length - (int)draw(r, 20) : draw_within(r, smallest, r->length);
    if (draw(r, 4) == 0) length = smallest;
    if (length < smallest) return;
    check_ok(r, timeline_truncate(&r->t, length, &error), &error, "truncate");
    r->length = length;
    give_back_pages(r);
}

static void check_draft(run *r) {
    timeline *t = &r->t;
    if (!t->options.keep_draft_context) return;
    flush(r, timeline_flush(t));
    timeline_flushed(t);
    for (int l = 0; l < DRAFT_LAYERS; l++) {
        position_range seen = timeline_draft_context(t, l);
        for (int j = seen.begin; j < seen.end; j++) {
            cell c = r->s->draft[l][j % t->draft[l].capacity];
            CHECK(c.name == r->name[j] && c.position == j, "a block sees %d of layer %d and finds %d", j, l,
                  c.position);
        }
    }
}

static void fork_timeline(run *r) {
    timeline copy;
    kakeya_error error = {0};
    check_ok(r, timeline_copy(&copy, &r->t, &error), &error, "copy");
    timeline_destroy(&r->t);
    r->t = copy;
}

static void copy_held(cell *to, int to_capacity, const cell *from, int from_capacity, position_range held) {
    for (int j = held.begin; j < held.end; j++)
        to[to_capacity ? j % to_capacity : j] = from[from_capacity ? j % from_capacity : j];
}

/* Through the state and the held ranges into stores that hold nothing else. */
static void snapshot(run *r) {
    if (timeline_min_truncate(&r->t) > r->length) return;
    timeline fresh;
    kakeya_error error = {0};
    timeline_models models = models_of(r);
    const timeline *t = &r->t;
    timeline_state state = timeline_get_state(t);
    check_ok(r, timeline_create(&fresh, &models, &r->options, &error), &error, "create");
    check_ok(r, timeline_set_state(&fresh, &state, t->runs, &error), &error, "set_state");
    stores *s = calloc(1, sizeof *s), *old = r->s;
    for (int p = fresh.first_page; p < fresh.end_page; p++) s->page[p] = true;
    copy_held(s->ring, fresh.ring_capacity, old->ring, t->ring_capacity, timeline_layer_held(t, 0));
    copy_held(s->rows, 0, old->rows, 0, timeline_layer_held(t, 1));
    copy_held(s->sink, 0, old->sink, 0, timeline_sink_held(t));
    copy_held(s->full_sink, 0, old->full_sink, 0, timeline_sink_held(t));
    if (t->latents == STORE_RING)
        copy_held(s->latent_ring, t->latent_capacity, old->latent_ring, t->latent_capacity, timeline_latents_held(t));
    if (t->latents == STORE_PAGES) copy_held(s->latent_rows, 0, old->latent_rows, 0, timeline_latents_held(t));
    for (int l = 0; t->options.keep_draft_context && l < DRAFT_LAYERS; l++)
        copy_held(s->draft[l], t->draft[l].capacity, old->draft[l], t->draft[l].capacity, timeline_draft_held(t, l));
    position_range waiting = timeline_backlog_held(t);
    for (int j = waiting.begin; j < waiting.end; j++) s->backlog[j - waiting.begin] = old->backlog[j - waiting.begin];
    timeline_destroy(&r->t);
    r->t = fresh;
    memcpy(old, s, sizeof *s);
    free(s);
}

static void play(run *r, int steps) {
    int phase = SEGMENT_PROMPT;
    for (int i = 0; i < steps; i++, r->steps++) {
        if (draw(r, 4) == 0) phase = 1 - phase;
        if (phase == SEGMENT_PROMPT) {
            int n = draw_within(r, 1, draw(r, 3) ? 30 : 130);
            if (forward(r, SEGMENT_PROMPT, n)) commit(r, draw(r, 12) ? n : 0);
        } else {
            int n = draw(r, 3) ? draw_within(r, 1, BACKEND_MAX_DECODE_ROWS) : BACKEND_MAX_DECODE_ROWS;
            if (n > r->options.window && draw(r, 8)) n = r->options.window;
            if (forward(r, SEGMENT_DECODE, n)) commit(r, draw(r, 4) ? draw_within(r, 0, n) : draw(r, 2) ? n : 0);
        }
        uint32_t detour = draw(r, 16);
        if (detour < 2) truncate_some(r);
        if (detour == 2) check_draft(r);
        if (detour == 3) fork_timeline(r);
        if (detour == 4) snapshot(r);
        if (timeline_min_truncate(&r->t) <= r->length) continue;
        assert_false(forward(r, SEGMENT_PROMPT, 1)); /* spoilt, which it says only where a dropped prompt has done it */
        return;
    }
}

static void rows_see_what_the_rule_says(void **state) {
    (void)state;
    enum { SCHEDULES = 4000, STEPS = 24 };
    run *r = calloc(1, sizeof *r);
    stores *s = calloc(1, sizeof *s);
    for (uint64_t seed = 1; seed <= (sweep_short() ? SCHEDULES / 8 : SCHEDULES); seed++) {
        memset(r, 0, sizeof *r);
        memset(s, 0, sizeof *s);
        r->s = s;
        r->seed = seed;
        r->random = seed * 0x9e3779b97f4a7c15u;
        make_models(r);
        timeline_models models = models_of(r);
        kakeya_error error = {0};
        check_ok(r, timeline_create(&r->t, &models, &r->options, &error), &error, "create");
        play(r, STEPS);
        timeline_destroy(&r->t);
    }
    free(s);
    free(r);
}

/* A plan that is not carried out, and a reservation, change nothing that anybody can see. */
static void a_plan_changes_nothing(void **state) {
    (void)state;
    run *r = calloc(1, sizeof *r);
    r->s = calloc(1, sizeof *r->s);
    for (uint64_t seed = 1; seed <= 300; seed++) {
        r->seed = r->random = seed;
        r->length = 0;
        r->dropped_prompt = false;
        make_models(r);
        timeline_models models = models_of(r);
        kakeya_error error = {0};
        check_ok(r, timeline_create(&r->t, &models, &r->options, &error), &error, "create");
        play(r, 6);
        for (int kind = 0; kind < 2; kind++) {
            timeline before = r->t;
            timeline_step step;
            if (timeline_plan(&r->t, (segment_kind)kind, 1, &step, &error)) continue;
            check_ok(r, timeline_reserve(&r->t, &step, &error), &error, "reserve");
            before.runs = r->t.runs;
            before.max_runs = r->t.max_runs;
            assert_memory_equal(&before, &r->t, sizeof before);
        }
        timeline_destroy(&r->t);
    }
    free(r->s);
    free(r);
}

static kakeya_status state_of(const timeline *like, timeline_state state, const timeline_run *runs) {
    timeline t;
    kakeya_error error = {0};
    assert_int_equal(timeline_create(&t, &like->models, &like->options, &error), KAKEYA_OK);
    kakeya_status status = timeline_set_state(&t, &state, runs, &error);
    timeline_destroy(&t);
    return status;
}

/* States that no schedule leads to are refused, field by field. */
static void damaged_states_are_refused(void **state) {
    (void)state;
    run *r = calloc(1, sizeof *r);
    make_models(r);
    r->verifier.sliding_window = 32;
    r->options = (backend_cache_options){.context_tokens = CONTEXT,
                                         .attention = KAKEYA_ATTENTION_RESTORED,
                                         .restore_layers = KAKEYA_RESTORE_ALL,
                                         .sink = 4,
                                         .window = 16,
                                         .draft_window = 20};
    r->f_theta.input = RESTORATION_DRAFTER_CONTEXT_KV;
    timeline_models models = models_of(r);
    timeline t;
    kakeya_error error = {0};
    check_ok(r, timeline_create(&t, &models, &r->options, &error), &error, "create");
    const timeline_run runs[] = {{40, 60}, {90, 120}};
    const timeline_state good = {.length = 120,
                                 .ring_capacity = 32,
                                 .ring_from = 88,
                                 .first_page = 1,
                                 .draft_length = 110,
                                 .draft_from = 70,
                                 .latent_length = 110,
                                 .latent_from = 0,
                                 .n_runs = 2};
    assert_int_equal(state_of(&t, good, runs), KAKEYA_OK);
    const struct {
        size_t field;
        int32_t value;
    } damages[] = {
        {offsetof(timeline_state, length), -1},          {offsetof(timeline_state, length), CONTEXT + 1},
        {offsetof(timeline_state, length), 119},         {offsetof(timeline_state, ring_capacity), 64},
        {offsetof(timeline_state, ring_from), 87},       {offsetof(timeline_state, ring_from), 121},
        {offsetof(timeline_state, ring_from), 105},      {offsetof(timeline_state, first_page), 2},
        {offsetof(timeline_state, first_page), -1},      {offsetof(timeline_state, draft_length), 121},
        {offsetof(timeline_state, draft_length), 87},    {offsetof(timeline_state, draft_from), 111},
        {offsetof(timeline_state, draft_from), -1},      {offsetof(timeline_state, latent_length), 109},
        {offsetof(timeline_state, latent_from), 1},      {offsetof(timeline_state, n_runs), -1},
        {offsetof(timeline_state, n_runs), CONTEXT + 1},
    };
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        timeline_state bad = good;
        memcpy((char *)&bad + damages[i].field, &damages[i].value, sizeof damages[i].value);
        if (state_of(&t, bad, runs) != KAKEYA_FORMAT) fail_msg("damage %zu was not found", i);
    }
    const timeline_run adjacent[] = {{40, 90}, {90, 120}}, empty[] = {{40, 40}, {90, 120}},
                       beyond[] = {{40, 60}, {90, 121}}, negative[] = {{-1, 60}, {90, 120}};
    assert_int_equal(state_of(&t, good, adjacent), KAKEYA_FORMAT);
    assert_int_equal(state_of(&t, good, empty), KAKEYA_FORMAT);
    assert_int_equal(state_of(&t, good, beyond), KAKEYA_FORMAT);
    assert_int_equal(state_of(&t, good, negative), KAKEYA_FORMAT);
    timeline_destroy(&t);
    free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_see_what_the_rule_says),
        cmocka_unit_test(a_plan_changes_nothing),
        cmocka_unit_test(damaged_states_are_refused),
    };
    return cmocka_run_group_tests_name("timeline", tests, NULL, NULL);
}
