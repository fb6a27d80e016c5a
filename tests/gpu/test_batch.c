/* Many sessions in one forward, and in one call of draft: whatever is beside a session, of any policy and with any
 * number of rows, its results and what it keeps have the bits that it has alone. Run by `make test-gpu`, and on a fake
 * device (tests/gpu/fake) wherever the backend is compiled. */
#include "backend/cuda/prompt_gemm.h"
#include "backend/measure.h"
#include "base/random.h"
#include "gpu/random_pair.h"
#include "sweep.h"

enum {
    CONTEXT = 4096,
    POOL = 64,
    CROWD = BACKEND_MAX_SEGMENTS, /* the pool, and forks of it */
    MOST = BACKEND_MAX_FORWARD,   /* the crowd, and first prompts beside it */
    MIXED = 32,
    LONGEST_PROMPT = 300,
    LONGEST_PACKED = 600,
    FAR = 1400,
    FARTHEST = 2600
};

typedef struct pool {
    pair *p;
    const backend_ops *ops;
    backend_model *model;
    size_t vocab;
    uint32_t state;
    int mixed; /* the first so many take part in random forwards */
    backend_cache *cache[MOST];
} pool;

static int draw(pool *q, int n) {
    q->state = q->state * 1664525u + 1013904223u;
    return (int)((q->state >> 8) % (uint32_t)n);
}

/* One cache in four of the first ones is under each policy, the others are native; one in eight keeps nothing for the
 * drafter, where its policy lets it. Lengths differ, by much; some have answered already. */
static void pool_open(pool *q, pair *p, uint32_t seed) {
    *q = (pool){.p = p,
                .ops = p->ops[CUDA],
                .model = p->model[CUDA],
                .vocab = (size_t)p->verifier->config.vocab,
                .state = seed,
                .mixed = MIXED};
    static int32_t tokens[FARTHEST + BACKEND_MAX_DECODE_ROWS];
    for (int i = 0; i < POOL; i++) {
        int length = 1 + draw(q, LONGEST_PROMPT), answer = draw(q, BACKEND_MAX_DECODE_ROWS + 1);
        if (i % 9 == 3) length += i % 2 ? FAR : FARTHEST - LONGEST_PROMPT; /* more partitions than others */
        q->cache[i] = new_cache(p, CUDA, &policies[i < MIXED ? i % POLICIES : 0], CONTEXT, i % 8 != 4);
        fill_tokens(tokens, length + answer, (int)q->vocab, seed + (uint32_t)i);
        for (int at = 0, n; at < length; at += n) {
            n = length - at < 700 ? length - at : 700;
            step(p, CUDA, q->cache[i], tokens + at, n, n, SEGMENT_PROMPT, NULL);
        }
        if (answer) step(p, CUDA, q->cache[i], tokens + length, answer, answer, SEGMENT_DECODE, NULL);
    }
}

/* Restored sessions whose lengths lie about the edges of what is evicted, of windows and of tiles. Most have answered,
 * so that something is evicted; some are forks of their neighbours, and one in eight is under another policy. `layers`:
 * of the restored ones. */
static void pool_open_restored(pool *q, pair *p, kakeya_restore_layers layers, uint32_t seed) {
    int w = p->verifier->config.sliding_window;
    const int lengths[] = {1,   3,   5,     63,    64,    65,    68,     69,        80,
                           127, 128, 129,   w - 1, w,     w + 1, w + 63, w + 64,    w + 65,
                           200, 330, w + 4, 2 * w, 3 * w, 1000,  1023,   1024 + 64, 1500};
    static int32_t tokens[CONTEXT];
    *q = (pool){.p = p,
                .ops = p->ops[CUDA],
                .model = p->model[CUDA],
                .vocab = (size_t)p->verifier->config.vocab,
                .state = seed,
                .mixed = POOL};
    for (int i = 0; i < POOL; i++) {
        if (i % 8 == 5) { /* of one that is not a fork */
            REQUIRE_OK(q->ops->cache_fork(q->cache[i - 1], &p->account, &q->cache[i], error));
            continue;
        }
        policy how = {"restored", KAKEYA_ATTENTION_RESTORED, layers};
        if (i % 8 == 7) how = policies[i / 8 % POLICIES];
        int length = lengths[(size_t)i % (sizeof lengths / sizeof lengths[0])],
            answer = i % 5 == 2 ? 0 : 1 + draw(q, BACKEND_MAX_DECODE_ROWS);
        q->cache[i] = new_cache(p, CUDA, &how, CONTEXT, i % 6 != 2); /* one that restores keeps what f_theta needs */
        fill_tokens(tokens, length + answer, (int)q->vocab, seed + (uint32_t)i);
        for (int at = 0, n; at < length; at += n) {
            n = length - at < 700 ? length - at : 700;
            step(p, CUDA, q->cache[i], tokens + at, n, n, SEGMENT_PROMPT, NULL);
        }
        if (answer) step(p, CUDA, q->cache[i], tokens + length, answer, answer, SEGMENT_DECODE, NULL);
    }
}

static void pool_close(pool *q) {
    for (int i = 0; i < MOST; i++) {
        if (q->cache[i]) q->ops->cache_destroy(q->cache[i]);
    }
}

/* A segment, where its results go, and the same segment alone on a fork. */
typedef struct trial {
    int member, kept;
    int32_t tokens[LONGEST_PACKED], argmax[LONGEST_PACKED], argmax_alone[LONGEST_PACKED];
    float *logits, *logits_alone;
    backend_leaders *leaders, *leaders_alone;
    backend_segment segment;
    backend_cache *fork;
} trial;

enum { WANTS_NOTHING = 0, WANTS_CHOICES, WANTS_LOGITS, WANTS_LEADERS, WANTS_ALL, WANTS };

static void trial_open(trial *t, pool *q, int member, segment_kind kind, int n, int wants) {
    *t = (trial){.member = member, .kept = kind == SEGMENT_PROMPT ? n : draw(q, n + 1)};
    int first = wants == WANTS_NOTHING ? n : kind == SEGMENT_PROMPT ? n - 1 : draw(q, 3) ? 0 : draw(q, n);
    if (kind == SEGMENT_PROMPT && wants == WANTS_LOGITS && draw(q, 3) == 0) first = draw(q, n);
    bool leaders = wants == WANTS_LEADERS || wants == WANTS_ALL, logits = wants == WANTS_LOGITS || wants == WANTS_ALL;
    size_t rows = (size_t)(n - first);
    fill_tokens(t->tokens, n, (int)q->vocab, (uint32_t)draw(q, 1 << 20));
    t->logits = calloc(rows * q->vocab + 1, sizeof(float));
    t->logits_alone = calloc(rows * q->vocab + 1, sizeof(float));
    t->leaders = calloc(rows + 1, sizeof *t->leaders);
    t->leaders_alone = calloc(rows + 1, sizeof *t->leaders_alone);
    t->segment = (backend_segment){.cache = q->cache[member],
                                   .tokens = t->tokens,
                                   .n = n,
                                   .kind = kind,
                                   .first_logit_row = first,
                                   .logits = logits ? t->logits : NULL,
                                   .leaders = leaders ? t->leaders : NULL,
                                   .temperature = leaders ? (draw(q, 2) ? 1.0f : 0.7f) : 0,
                                   .argmax = wants == WANTS_LOGITS ? NULL : t->argmax};
    REQUIRE_OK(q->ops->cache_fork(q->cache[member], &q->p->account, &t->fork, error));
}

static void trial_close(trial *t, pool *q) {
    q->ops->cache_destroy(t->fork);
    free(t->logits);
    free(t->logits_alone);
    free(t->leaders);
    free(t->leaders_alone);
}

static void assert_same_leaders(const char *what, const backend_leaders *a, const backend_leaders *b) {
    bool same = a->n == b->n && a->total == b->total && a->plain_total == b->plain_total;
    for (int i = 0; same && i < a->n; i++)
        same = a->token[i] == b->token[i] && memcmp(&a->logit[i], &b->logit[i], sizeof(float)) == 0;
    if (!same) fail_msg("%s: other leading logits (%d listed, %d alone)", what, (int)a->n, (int)b->n);
}

static void run_alone(trial *t, pool *q, const char *what) {
    backend_segment alone = t->segment;
    size_t rows = (size_t)(alone.n - alone.first_logit_row);
    alone.cache = t->fork;
    alone.logits = t->logits_alone;
    alone.argmax = t->argmax_alone;
    if (alone.leaders) alone.leaders = t->leaders_alone;
    REQUIRE_OK(q->ops->forward(q->model, &alone, 1, error));
    REQUIRE_OK(q->ops->cache_commit(t->fork, t->kept, error));
    if (t->segment.logits) assert_same_bits(what, t->logits, t->logits_alone, rows * q->vocab);
    if (t->segment.argmax) assert_memory_equal(t->argmax, t->argmax_alone, rows * sizeof *t->argmax);
    for (size_t i = 0; t->segment.leaders && i < rows; i++)
        assert_same_leaders(what, &t->leaders[i], &t->leaders_alone[i]);
}

static void assert_same_state(const char *what, pool *q, const backend_cache *a, const backend_cache *b) {
    memory_stream of_a = snapshot_of(q->p, CUDA, a), of_b = snapshot_of(q->p, CUDA, b);
    if (of_a.bytes != of_b.bytes || memcmp(of_a.data, of_b.data, of_a.bytes) != 0)
        fail_msg("%s: another state is kept", what);
    memory_free(&of_a);
    memory_free(&of_b);
}

/* All trials in one forward, then each alone: the same results, logits that are read afterwards, and states, of one in
 * `states` of them. */
static void compare(pool *q, trial *trials, int n, int states, const char *what) {
    static backend_segment segments[MOST];
    static float *read[MOST];
    static int read_row[MOST];
    char name[128];
    for (int i = 0; i < n; i++) segments[i] = trials[i].segment;
    REQUIRE_OK(q->ops->forward(q->model, segments, n, error));
    for (int i = 0; i < n; i++) {
        const backend_segment *s = &segments[i];
        int rows = s->n - s->first_logit_row;
        assert_int_equal(s->status, KAKEYA_OK);
        assert_int_equal(q->ops->cache_pending(s->cache), s->n);
        read[i] = NULL;
        if (rows == 0 || (s->kind == SEGMENT_PROMPT && rows > 1) || !(s->logits || s->leaders)) continue;
        read[i] = calloc(q->vocab, sizeof(float));
        read_row[i] = draw(q, rows);
        REQUIRE_OK(q->ops->read_logits(q->model, i, read_row[i], read[i], error));
        assert_int_not_equal(q->ops->read_logits(q->model, i, rows, read[i], NULL), KAKEYA_OK);
    }
    assert_int_not_equal(q->ops->read_logits(q->model, n, 0, trials[0].logits_alone, NULL), KAKEYA_OK);
    for (int i = 0; i < n; i++) REQUIRE_OK(q->ops->cache_commit(segments[i].cache, trials[i].kept, error));
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s, segment %d of %d, %d %s rows", what, i, n, segments[i].n,
                 segments[i].kind == SEGMENT_DECODE ? "decode" : "prompt");
        run_alone(&trials[i], q, name);
        if (read[i] && segments[i].logits)
            assert_same_bits(name, read[i], trials[i].logits_alone + (size_t)read_row[i] * q->vocab, q->vocab);
        free(read[i]);
        if (draw(q, states) == 0) assert_same_state(name, q, segments[i].cache, trials[i].fork);
    }
}

/* n members of the pool from among the first `among`, in random order. */
static void choose_members(pool *q, int n, int among, int *members) {
    for (int i = 0; i < among; i++) members[i] = i;
    for (int i = 0; i < n; i++) {
        int other = i + draw(q, among - i), swapped = members[i];
        members[i] = members[other];
        members[other] = swapped;
    }
}

static void random_forward(pool *q, trial *trials, const char *what) {
    int members[POOL], n = 1 + draw(q, q->mixed);
    choose_members(q, n, q->mixed, members);
    for (int i = 0; i < n; i++) {
        segment_kind kind = draw(q, 6) ? SEGMENT_DECODE : SEGMENT_PROMPT;
        int rows = kind == SEGMENT_PROMPT ? 1 + draw(q, 30) : draw(q, 2) ? 1 : 1 + draw(q, BACKEND_MAX_DECODE_ROWS);
        trial_open(&trials[i], q, members[i], kind, rows, draw(q, WANTS));
    }
    compare(q, trials, n, 4, what);
    for (int i = 0; i < n; i++) trial_close(&trials[i], q);
}

/* The first n sessions, with so many rows each. */
static void full_forward(pool *q, trial *trials, int n, int rows, int wants, const char *what) {
    for (int i = 0; i < n; i++) trial_open(&trials[i], q, i, SEGMENT_DECODE, rows, wants);
    compare(q, trials, n, n / 16, what);
    for (int i = 0; i < n; i++) trial_close(&trials[i], q);
}

/* As many sessions as one forward takes: the others are forks of the pool's. */
static void open_crowd(pool *q) {
    for (int i = POOL; i < CROWD; i++)
        REQUIRE_OK(q->ops->cache_fork(q->cache[i % POOL], &q->p->account, &q->cache[i], error));
}

/* ------------------------------------------------------------------------------------------------ first prompts */

/* Sessions that have not answered yet, from member `first` on: of the first policies most, some with a chunk of their
 * prompt behind them, one in eight without a drafter's context where its policy lets it. */
static void open_unanswered(pool *q, int first, int n, uint32_t seed) {
    static int32_t tokens[LONGEST_PROMPT];
    for (int i = first; i < first + n; i++) {
        int how = draw(q, 2) ? 0 : draw(q, POLICIES), held = draw(q, 3) ? 0 : 1 + draw(q, LONGEST_PROMPT);
        q->cache[i] = new_cache(q->p, CUDA, &policies[how], CONTEXT, i % 8 != 4 || how >= 2);
        fill_tokens(tokens, held, (int)q->vocab, seed + (uint32_t)i);
        if (held) step(q->p, CUDA, q->cache[i], tokens, held, held, SEGMENT_PROMPT, NULL);
    }
}

/* `total` rows, cut at random places into n prompts. */
static void cut_rows(pool *q, int total, int n, int rows[MOST]) {
    for (int i = 0; i < n; i++) rows[i] = 1;
    for (int left = total - n; left > 0;) {
        int at = draw(q, n), more = 1 + draw(q, draw(q, 4) ? 8 : 200);
        if (more > left) more = left;
        if (rows[at] + more > LONGEST_PACKED) more = LONGEST_PACKED - rows[at];
        rows[at] += more;
        left -= more;
    }
}

/* Prompts that share their products, at numbers of rows that take every width of tiles: last rows, K/V, and what
 * follows the drafter have the bits that each has alone. */
static void packed_prompts(pair *p, const char *name, uint32_t seed) {
    static const struct {
        int total, prompts;
    } cases[] = {{2, 2},   {9, 3},    {17, 16}, {40, 3},   {64, 64},  {71, 2},   {100, 9},  {129, 5},
                 {200, 3}, {257, 33}, {384, 2}, {500, 64}, {640, 11}, {777, 24}, {1000, 17}};
    static trial trials[MOST];
    char what[96];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (sweep_short() && (i + seed) % (PAIR_DEVICES > 1 ? 4 : 2)) continue;
        int n = cases[i].prompts, rows[MOST];
        pool q = {.p = p,
                  .ops = p->ops[CUDA],
                  .model = p->model[CUDA],
                  .vocab = (size_t)p->verifier->config.vocab,
                  .state = seed + (uint32_t)i};
        open_unanswered(&q, 0, n, seed);
        cut_rows(&q, cases[i].total, n, rows);
        for (int k = 0; k < n; k++) trial_open(&trials[k], &q, k, SEGMENT_PROMPT, rows[k], draw(&q, WANTS));
        snprintf(what, sizeof what, "%s, K/V in %s, %d rows packed", name, kv_format_name(pair_kv_format),
                 cases[i].total);
        compare(&q, trials, n, 1, what);
        for (int k = 0; k < n; k++) trial_close(&trials[k], &q);
        pool_close(&q);
    }
}

/* As many answers as one forward takes, and beside them as many prompts. */
static void everything_at_once(pool *q, trial *trials, const char *what) {
    open_unanswered(q, CROWD, MOST - CROWD, q->state);
    for (int i = 0; i < MOST; i++) {
        bool prompt = i >= CROWD;
        trial_open(&trials[i], q, i, prompt ? SEGMENT_PROMPT : SEGMENT_DECODE, prompt ? 1 + draw(q, 10) : 1,
                   draw(q, WANTS));
    }
    compare(q, trials, MOST, 16, what);
    for (int i = 0; i < MOST; i++) trial_close(&trials[i], q);
}

/* The same of K/V in all forms, beside each other in one model. */
static void packed_in_all_forms(pair *p, const char *name, uint32_t seed) {
    static const kv_format formats[] = {KV_FORMAT_BF16, KV_FORMAT_Q8, KV_FORMAT_Q4};
    for (int i = 0; i < 3; i++) {
        pair_kv_format = formats[i];
        packed_prompts(p, name, seed + (uint32_t)i);
    }
    pair_kv_format = KV_FORMAT_BF16;
}

/* With experts, and with weights in codes: expanded for a pass, or multiplied as they are (precision fp8). */
static void packed_in_all_weights(void) {
    static const struct {
        const char *name;
        weight_format format;
        kakeya_precision precision;
    } cases[] = {
        {"experts", WEIGHT_BF16, KAKEYA_PRECISION_BF16},
        {"experts in Q4_0", WEIGHT_Q4_0, KAKEYA_PRECISION_BF16},
        {"experts in FP8", WEIGHT_FP8, KAKEYA_PRECISION_BF16},
        {"experts in FP8, rows in FP8", WEIGHT_FP8, KAKEYA_PRECISION_FP8},
    };
    static const int windows[3] = {0, 40, 0};
    const model_config form = routed_form();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].format != WEIGHT_BF16 && !prompt_gemm_bulk_runs()) continue; /* the fake device has no codes */
        pair p;
        random_weights = cases[i].format;
        pair_precision = cases[i].precision;
        pair_device_alone = cases[i].format != WEIGHT_BF16;
        pair_random(&p, &form, windows, false, true);
        packed_prompts(&p, cases[i].name, 419 + (uint32_t)i);
        pair_close(&p);
    }
    random_weights = WEIGHT_BF16;
    pair_precision = KAKEYA_PRECISION_BF16;
    pair_device_alone = false;
}

static void first_prompts_together(void **state) {
    (void)state;
    static const int windows[3] = {0, 40, 0};
    pair p;
    pair_open(&p, demo_path(), true);
    packed_in_all_forms(&p, "demo", 401);
    pair_close(&p);
    static const char *const names[] = {"shared layers", "heads of 512", "eight queries to a head of 512",
                                        "values without norm"};
    model_config forms[] = {wide_form(), tall_form(), grouped_form(), gemma3_form()};
    for (int i = 0; i < 4; i++) {
        forms[i].sliding_window = 192;
        pair_random(&p, &forms[i], windows, false, true);
        packed_in_all_forms(&p, names[i], 403 + (uint32_t)i);
        pair_close(&p);
    }
    for (int i = 0; i < AUX_FORMS; i += sweep_short() ? 3 : 1) {
        pair_random_aux(&p, &forms[0], &aux_forms[i]);
        packed_prompts(&p, aux_forms[i].name, 409);
        pair_close(&p);
    }
    packed_in_all_weights();
}

/* --------------------------------------------------------------------------------------------------------- drafts */

static bool keeps_draft_context(const pool *q, int member) {
    if (!q->p->drafter) return false;
    return q->mixed == POOL ? member % 6 != 2 && !(member % 8 == 5 && member % 6 == 3) : member % 8 != 4;
}

/* Drafts of many caches in one call are those of each alone, and leave the same state. */
static void random_drafts(pool *q, int among, const char *what) {
    static int32_t drafts[CROWD][BACKEND_MAX_DRAFT];
    backend_draft_request requests[CROWD];
    backend_cache *forks[CROWD];
    int members[CROWD], wanted = among > POOL ? among : 1 + draw(q, among), n = 0;
    choose_members(q, wanted, among, members);
    for (int i = 0; i < wanted; i++) {
        if (!keeps_draft_context(q, members[i] % POOL)) continue;
        requests[n] = (backend_draft_request){.cache = q->cache[members[i]],
                                              .bonus = draw(q, (int)q->vocab),
                                              .n = 1 + draw(q, BACKEND_MAX_DRAFT),
                                              .drafts = drafts[n]};
        REQUIRE_OK(q->ops->cache_fork(requests[n].cache, &q->p->account, &forks[n], error));
        n++;
    }
    if (n) REQUIRE_OK(q->ops->draft(q->model, requests, n, error));
    for (int i = 0; i < n; i++) {
        int32_t alone[BACKEND_MAX_DRAFT];
        REQUIRE_OK(backend_draft_one(q->ops, q->model, forks[i], requests[i].bonus, requests[i].n, alone, error));
        for (int k = 0; k < requests[i].n; k++) {
            if (drafts[i][k] != alone[k])
                fail_msg("%s: draft %d of cache %d of %d is %d, alone %d", what, k, i, n, (int)drafts[i][k],
                         (int)alone[k]);
        }
        if (draw(q, among / 8) == 0) assert_same_state(what, q, requests[i].cache, forks[i]);
        q->ops->cache_destroy(forks[i]);
    }
}

static void compositions(pair *p, const char *name, int rounds, uint32_t seed) {
    if (sweep_short()) rounds = (rounds + 2) / (PAIR_DEVICES > 1 ? 6 : 3);
    static trial trials[MOST];
    pool q;
    char what[96];
    pool_open(&q, p, seed);
    for (int i = 0; i < rounds; i++) {
        snprintf(what, sizeof what, "%s, round %d", name, i);
        random_forward(&q, trials, what);
        if (i % 3 == 0) random_drafts(&q, POOL, what);
    }
    open_crowd(&q);
    full_forward(&q, trials, CROWD, 1, WANTS_CHOICES, "a crowd of one row each");
    random_drafts(&q, CROWD, "a crowd of drafts");
    full_forward(&q, trials, 65, 1, WANTS_LEADERS, "65 sessions of one row");
    full_forward(&q, trials, sweep_short() ? POOL : CROWD, 2, WANTS_LEADERS, "sessions of two rows");
    everything_at_once(&q, trials, "64 prompts beside a crowd");
    if (!sweep_short() || PAIR_DEVICES == 1) full_forward(&q, trials, POOL, 15, WANTS_ALL, "64 sessions of 15 rows");
    pool_close(&q);
}

/* Sessions that restore share a pass: their evicted positions are decoded together. */
static void restored_together(pair *p, const char *name, kakeya_restore_layers layers, int rounds, uint32_t seed) {
    if (sweep_short()) rounds = (rounds + 1) / (PAIR_DEVICES > 1 ? 4 : 2);
    static trial trials[CROWD];
    pool q;
    char what[96];
    pool_open_restored(&q, p, layers, seed);
    for (int i = 0; i < rounds; i++) {
        snprintf(what, sizeof what, "%s, round %d", name, i);
        random_forward(&q, trials, what);
        random_drafts(&q, POOL, what);
    }
    open_crowd(&q);
    full_forward(&q, trials, CROWD, 1, WANTS_CHOICES, "a crowd of restored sessions of one row each");
    if (!sweep_short() || PAIR_DEVICES == 1)
        full_forward(&q, trials, POOL, 4, WANTS_LOGITS, "64 restored sessions of four rows");
    pool_close(&q);
}

static void restored_sessions(void **state) {
    (void)state;
    static const int windows[3] = {0, 0, 48};
    pair p;
    pair_open(&p, demo_path(), true);
    restored_together(&p, "demo, restored", KAKEYA_RESTORE_SLIDING, 6, 307);
    restored_together(&p, "demo, restored in all layers", KAKEYA_RESTORE_ALL, 4, 311);
    pair_close(&p);
    model_config form = wide_form();
    for (int i = 0; i < (sweep_short() && PAIR_DEVICES > 1 ? 1 : 2); i++) {
        form.sliding_window = i ? 1024 : 192;
        if (i)
            pair_random(&p, &form, windows, false, true);
        else
            pair_random_ranks(&p, &form, windows, 136, 256);
        restored_together(&p, "wide heads, restored", KAKEYA_RESTORE_SLIDING, 4, 313);
        pair_close(&p);
    }
    if (sweep_short() && PAIR_DEVICES > 1) return; /* one device has it */
    form = gemma3_form();
    pair_random(&p, &form, windows, false, true);
    restored_together(&p, "values without norm, restored", KAKEYA_RESTORE_SLIDING, 2, 337);
    restored_together(&p, "values without norm, restored in all layers", KAKEYA_RESTORE_ALL, 2, 347);
    pair_close(&p);
}

/* Sessions whose latents are made of aux hidden states, some of which keep a drafter's context, too. */
static void aux_forms_together(void **state) {
    (void)state;
    model_config form = wide_form();
    form.sliding_window = 192;
    for (int i = 0; i < (sweep_short() ? 2 : AUX_FORMS); i++) {
        pair p;
        pair_random_aux(&p, &form, &aux_forms[i]);
        restored_together(&p, aux_forms[i].name, i % 2 ? KAKEYA_RESTORE_ALL : KAKEYA_RESTORE_SLIDING, 2, 317);
        if (i == 1 || !sweep_short()) restored_together(&p, aux_forms[i].name, KAKEYA_RESTORE_SLIDING, 2, 331);
        pair_close(&p);
    }
}

static void demo_compositions(void **state) {
    (void)state;
    pair p;
    pair_open(&p, demo_path(), true);
    compositions(&p, "demo", 24, 211);
    pair_close(&p);
}

static void shared_layer_compositions(void **state) {
    (void)state;
    static const int windows[3] = {0, 40, 0};
    model_config form = wide_form();
    form.sliding_window = 192;
    pair p;
    pair_random(&p, &form, windows, false, true);
    compositions(&p, "shared layers", 12, 223);
    pair_close(&p);
    form = tall_form();
    pair_random(&p, &form, windows, false, true);
    compositions(&p, "heads of 512", 6, 227);
    pair_close(&p);
    if (sweep_short() && PAIR_DEVICES > 1) return; /* one device has it */
    form = grouped_form();
    pair_random(&p, &form, windows, false, true);
    compositions(&p, "eight queries to a head of 512", 6, 229);
    pair_close(&p);
    form = gemma3_form();
    form.sliding_window = 192;
    pair_random(&p, &form, windows, false, true);
    compositions(&p, "values without norm", 6, 233);
    pair_close(&p);
}

/* A session whose K/V are not numbers, in the middle of others: it alone is ill. */
static void ill_among(model_config form) {
    enum { POISON = 639, ROWS = 80, SESSIONS = 9, ILL = 4 };
    static const int windows[3] = {0, 0, 0};
    form.sliding_window = 192;
    pair p;
    random_models(&p, &form, windows, true);
    uint16_t *row = (uint16_t *)(uintptr_t)weight_row(&p.verifier->weights.embed, 0, POISON);
    for (int i = 0; i < form.hidden; i++) row[i] = 0x7fc0;
    pair_create(&p, false);
    const backend_ops *ops = p.ops[CUDA];
    size_t vocab = (size_t)form.vocab;
    float *logits = calloc(2 * SESSIONS * 3 * vocab, sizeof *logits), *alone = logits + SESSIONS * 3 * vocab;
    for (int k = 0; k < POLICIES; k++) {
        backend_cache *cache[SESSIONS], *fork[SESSIONS];
        backend_segment segments[SESSIONS];
        backend_draft_request requests[SESSIONS];
        int32_t tokens[SESSIONS][ROWS], choice[SESSIONS][3], drafts[SESSIONS][7], drafts_alone[7];
        for (int s = 0; s < SESSIONS; s++) {
            fill_tokens(tokens[s], ROWS, POISON, 31 + (uint32_t)s);
            for (int i = 0; s == ILL && i < ROWS; i += 3) tokens[s][i] = POISON;
            cache[s] = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
            step(&p, CUDA, cache[s], tokens[s], ROWS - 3, ROWS - 3, SEGMENT_PROMPT, NULL);
            REQUIRE_OK(ops->cache_fork(cache[s], &p.account, &fork[s], error));
            segments[s] = (backend_segment){.cache = cache[s],
                                            .tokens = tokens[s] + ROWS - 3,
                                            .n = 3,
                                            .kind = SEGMENT_DECODE,
                                            .logits = logits + (size_t)s * 3 * vocab,
                                            .argmax = choice[s]};
        }
        REQUIRE_OK(ops->forward(p.model[CUDA], segments, SESSIONS, error));
        for (int s = 0; s < SESSIONS; s++) {
            REQUIRE_OK(ops->cache_commit(cache[s], 3, error));
            requests[s] = (backend_draft_request){.cache = cache[s], .bonus = 7, .n = 7, .drafts = drafts[s]};
        }
        REQUIRE_OK(ops->draft(p.model[CUDA], requests, SESSIONS, error));
        for (int s = 0; s < SESSIONS; s++) {
            step(&p, CUDA, fork[s], tokens[s] + ROWS - 3, 3, 3, SEGMENT_DECODE, alone + (size_t)s * 3 * vocab);
            REQUIRE_OK(backend_draft_one(ops, p.model[CUDA], fork[s], 7, 7, drafts_alone, error));
            if (s == ILL) {
                for (int i = 0; i < 3; i++) assert_int_equal(choice[s][i], -1);
            } else {
                assert_true(isfinite(logits[(size_t)s * 3 * vocab]));
                assert_same_bits(policies[k].name, logits + (size_t)s * 3 * vocab, alone + (size_t)s * 3 * vocab,
                                 3 * vocab);
                assert_memory_equal(drafts[s], drafts_alone, sizeof drafts_alone);
            }
            ops->cache_destroy(cache[s]);
            ops->cache_destroy(fork[s]);
        }
    }
    free(logits);
    pair_close(&p);
}

static void ill_session(void **state) {
    (void)state;
    ill_among(wide_form());
    ill_among(grouped_form());
}

/* Rows with masks choose the largest logit of what these allow, beside rows without; a row that may choose nothing says
 * so. The masks of a forward are no part of the next one's. */
static void masked_tokens(void **state) {
    (void)state;
    enum { SESSIONS = 6, PROMPT = 40, ROWS = 4, FIRST = 1, MASKS = ROWS - FIRST };
    static const double shares[] = {1, 0.5, 0.01, 0.0005, 0};
    pair p;
    pair_open(&p, demo_path(), true);
    const backend_ops *ops = p.ops[CUDA];
    assert_true(ops->masks_argmax);
    const size_t vocab = (size_t)p.verifier->config.vocab, words = (vocab + 31) / 32;
    float *logits = calloc(SESSIONS * ROWS * vocab, sizeof *logits);
    uint32_t *masks = calloc(SESSIONS * MASKS * words, sizeof *masks);
    int32_t tokens[SESSIONS][PROMPT + ROWS], choice[SESSIONS][ROWS];
    backend_segment segments[SESSIONS];
    for (int s = 0; s < SESSIONS; s++) {
        fill_tokens(tokens[s], PROMPT + ROWS, (int)vocab, 151 + (uint32_t)s);
        backend_cache *cache = new_cache(&p, CUDA, &policies[0], CONTEXT, true);
        step(&p, CUDA, cache, tokens[s], PROMPT, PROMPT, SEGMENT_PROMPT, NULL);
        segments[s] = (backend_segment){.cache = cache,
                                        .tokens = tokens[s] + PROMPT,
                                        .n = ROWS,
                                        .first_logit_row = s % 2 ? FIRST : 0,
                                        .kind = SEGMENT_DECODE,
                                        .argmax = choice[s]};
    }
    for (int round = 0; round < 6; round++) { /* the last one without masks */
        const bool with_logits = round % 2 == 0, masked = round < 4;
        for (size_t s = 0; s < SESSIONS; s++) {
            uint32_t *own = masks + s * MASKS * words;
            memset(own, 0, MASKS * words * sizeof *own);
            for (size_t i = 0; i < MASKS; i++)
                for (size_t t = 0; t < vocab; t++)
                    if (random_uniform_at((uint64_t)round / 2, (s * MASKS + i) * vocab + t) < shares[(s + i) % 5])
                        own[i * words + t / 32] |= 1u << (t % 32);
            segments[s].logits = with_logits ? logits + s * ROWS * vocab : NULL;
            segments[s].allowed = masked && s % 2 ? own : NULL;
        }
        REQUIRE_OK(ops->forward(p.model[CUDA], segments, SESSIONS, error));
        for (int s = 0; s < SESSIONS; s++) {
            REQUIRE_OK(ops->cache_commit(segments[s].cache, 0, error));
            for (int i = 0; i < ROWS - segments[s].first_logit_row; i++) {
                const float *row = logits + ((size_t)s * ROWS + (size_t)i) * vocab;
                const uint32_t *allowed = segments[s].allowed ? segments[s].allowed + (size_t)i * words : NULL;
                int32_t best = -1;
                for (int32_t t = 0; t < (int32_t)vocab; t++)
                    if ((!allowed || allowed[t / 32] >> (t % 32) & 1) && (best < 0 || row[t] > row[best])) best = t;
                if (choice[s][i] != best)
                    fail_msg("round %d, session %d, row %d: %d, expected %d", round, s, i, (int)choice[s][i],
                             (int)best);
            }
        }
    }
    for (int s = 0; s < SESSIONS; s++) ops->cache_destroy(segments[s].cache);
    free(masks);
    free(logits);
    pair_close(&p);
}

/* Rows that exclude a token of their own choose another one, beside rows that do not, and nothing else changes. */
static void excluded_tokens(void **state) {
    (void)state;
    enum { SESSIONS = 5, PROMPT = 40, ROWS = 3 };
    pair p;
    pair_open(&p, demo_path(), true);
    const backend_ops *ops = p.ops[CUDA];
    size_t vocab = (size_t)p.verifier->config.vocab;
    float *logits = calloc(SESSIONS * ROWS * vocab, sizeof *logits);
    int32_t tokens[SESSIONS][PROMPT + ROWS], free_choice[SESSIONS][ROWS], choice[SESSIONS][ROWS];
    backend_segment segments[SESSIONS];
    for (int s = 0; s < SESSIONS; s++) {
        fill_tokens(tokens[s], PROMPT + ROWS, (int)vocab, 51 + (uint32_t)s);
        backend_cache *cache = new_cache(&p, CUDA, &policies[0], CONTEXT, true);
        step(&p, CUDA, cache, tokens[s], PROMPT, PROMPT, SEGMENT_PROMPT, NULL);
        segments[s] = (backend_segment){
            .cache = cache, .tokens = tokens[s] + PROMPT, .n = ROWS, .kind = SEGMENT_DECODE, .argmax = free_choice[s]};
    }
    for (int with_logits = 0; with_logits < 2; with_logits++) { /* without, the head is screened where it can be */
        for (int s = 0; s < SESSIONS; s++) {
            segments[s].logits = with_logits ? logits + (size_t)s * ROWS * vocab : NULL;
            segments[s].argmax = free_choice[s];
            segments[s].excluded = NULL;
        }
        REQUIRE_OK(ops->forward(p.model[CUDA], segments, SESSIONS, error));
        for (int s = 0; s < SESSIONS; s++) {
            REQUIRE_OK(ops->cache_commit(segments[s].cache, 0, error));
            segments[s].argmax = choice[s];
            segments[s].excluded = s % 2 ? &free_choice[s][s % ROWS] : NULL;
        }
        REQUIRE_OK(ops->forward(p.model[CUDA], segments, SESSIONS, error));
        for (int s = 0; s < SESSIONS; s++) {
            REQUIRE_OK(ops->cache_commit(segments[s].cache, 0, error));
            for (int i = 0; i < ROWS; i++) {
                float *row = logits + ((size_t)s * ROWS + (size_t)i) * vocab;
                bool other = segments[s].excluded && free_choice[s][i] == *segments[s].excluded;
                assert_int_equal(choice[s][i] != free_choice[s][i], other);
                if (!with_logits || !segments[s].excluded) continue;
                row[*segments[s].excluded] = -INFINITY;
                assert_int_equal(choice[s][i], argmax_of(row, (int)vocab));
            }
        }
    }
    for (int s = 0; s < SESSIONS; s++) ops->cache_destroy(segments[s].cache);
    free(logits);
    pair_close(&p);
}

/* One session has no memory for its step: it is named, no cache has changed, and without it, or with memory, all is as
 * it is alone. */
static void one_session_without_memory(void **state) {
    (void)state;
    enum { FIRST = 120, ANSWER = 3, SESSIONS = 6, POOR = 3, LATER = 20 };
    pair p;
    pair_open(&p, demo_path(), true);
    const backend_ops *ops = p.ops[CUDA];
    size_t vocab = (size_t)p.verifier->config.vocab;
    mem_account own;
    mem_account_init(&own, &p.account, 0);
    backend_cache *cache[SESSIONS];
    backend_segment segments[SESSIONS];
    int32_t tokens[SESSIONS][FIRST + ANSWER + LATER];
    float *logits = calloc(SESSIONS * vocab, sizeof *logits), *alone = calloc(SESSIONS * vocab, sizeof *alone);
    for (int s = 0; s < SESSIONS; s++) {
        /* Its rings are the small ones of an answer; a prompt needs larger ones. */
        backend_cache_options options = {.context_tokens = CONTEXT,
                                         .attention = KAKEYA_ATTENTION_SINK_WINDOW,
                                         .sink = 4,
                                         .window = 64,
                                         .draft_window = 256,
                                         .kv_format = KV_FORMAT_BF16,
                                         .account = s == POOR ? &own : &p.account};
        REQUIRE_OK(ops->cache_create(p.model[CUDA], &options, &cache[s], error));
        fill_tokens(tokens[s], FIRST + ANSWER + LATER, (int)vocab, 17 + (uint32_t)s);
        step(&p, CUDA, cache[s], tokens[s], FIRST, FIRST, SEGMENT_PROMPT, NULL);
        step(&p, CUDA, cache[s], tokens[s] + FIRST, ANSWER, ANSWER, SEGMENT_DECODE, NULL);
        int n = s == POOR ? LATER : 1;
        segments[s] = (backend_segment){.cache = cache[s],
                                        .tokens = tokens[s] + FIRST + ANSWER,
                                        .n = n,
                                        .kind = s == POOR ? SEGMENT_PROMPT : SEGMENT_DECODE,
                                        .first_logit_row = n - 1,
                                        .logits = logits + (size_t)s * vocab};
        backend_cache *fork;
        REQUIRE_OK(ops->cache_fork(cache[s], &p.account, &fork, error));
        backend_segment single = segments[s];
        single.cache = fork;
        single.logits = alone + (size_t)s * vocab;
        REQUIRE_OK(ops->forward(p.model[CUDA], &single, 1, error));
        ops->cache_destroy(fork);
    }
    own.limit_bytes = mem_total(&own);
    kakeya_error refusal = {0};
    size_t before = mem_total(&p.account);
    assert_int_equal(ops->forward(p.model[CUDA], segments, SESSIONS, &refusal), KAKEYA_OUT_OF_MEMORY);
    for (int s = 0; s < SESSIONS; s++) {
        assert_int_equal(segments[s].status, s == POOR ? KAKEYA_OUT_OF_MEMORY : KAKEYA_OK);
        assert_int_equal(ops->cache_length(cache[s]), FIRST + ANSWER);
        assert_int_equal(ops->cache_pending(cache[s]), 0);
    }
    assert_int_equal(mem_total(&p.account), before);
    own.limit_bytes = 0;
    REQUIRE_OK(ops->forward(p.model[CUDA], segments, SESSIONS, error));
    assert_same_bits("with memory again", logits, alone, SESSIONS * vocab);
    for (int s = 0; s < SESSIONS; s++) ops->cache_destroy(cache[s]);
    free(logits);
    free(alone);
    pair_close(&p);
}

/* A step is captured at its first use and counted; gaps are those between forwards that are watched. */
static void forwards_are_counted(void **state) {
    (void)state;
    enum { PROMPT = 20, STEPS = 5 };
    pair p;
    pair_open(&p, demo_path(), false);
    const backend_measure_ops *measure = backend_measure_find(p.ops[CUDA]);
    backend_model *m = p.model[CUDA];
    backend_cache *cache = new_cache(&p, CUDA, &policies[0], CONTEXT, false);
    int32_t tokens[PROMPT + 3 * STEPS];
    backend_forwards before, counted;
    fill_tokens(tokens, PROMPT + 3 * STEPS, (int)p.verifier->config.vocab, 23);
    step(&p, CUDA, cache, tokens, PROMPT, PROMPT, SEGMENT_PROMPT, NULL);
    measure->forwards(m, &before);
    for (int watched = 0; watched < 3; watched++) { /* not, watched, not */
        measure->watch_forwards(m, watched == 1);
        for (int i = 0; i < STEPS; i++) {
            const int32_t *token = tokens + PROMPT + watched * STEPS + i;
            step(&p, CUDA, cache, token, 1, 1, SEGMENT_DECODE, NULL);
        }
    }
    measure->forwards(m, &counted);
    assert_int_equal(counted.gaps - before.gaps, STEPS - 1);
    assert_int_equal(counted.graphs - before.graphs, 1);
    assert_true(counted.graph_seconds > before.graph_seconds);
    assert_true(counted.gap_seconds >= counted.longest_gap_seconds);
    p.ops[CUDA]->cache_destroy(cache);
    pair_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_compositions),
        cmocka_unit_test(shared_layer_compositions),
        cmocka_unit_test(restored_sessions),
        cmocka_unit_test(ill_session),
        cmocka_unit_test(one_session_without_memory),
        cmocka_unit_test(aux_forms_together),
        cmocka_unit_test(first_prompts_together),
        cmocka_unit_test(forwards_are_counted),
        cmocka_unit_test(excluded_tokens),
        cmocka_unit_test(masked_tokens),
    };
    return cmocka_run_group_tests_name("batch", tests, NULL, NULL);
}
