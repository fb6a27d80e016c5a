/* Protects the lossless contract where many caches share a forward or a call of draft: whatever stands beside a row,
 * its bits are those that it has alone. Random compositions of up to 32 caches of all policies (prompts beside blocks,
 * drops, truncations, forks, drafts) go step by step against the same steps alone. And a segment that cannot be
 * computed is named, and leaves every cache as it was.
 * Whole runs only: test_scheduler and test_cache have rows of several sessions in one call. */
#include "memory_stream.h"
#include "sweep.h"
#include "tiny.h"

enum { MAX_CACHES = 32, MAX_PROMPT = 90, POISON = 310 };

/* A cache that is computed beside others, and one that takes the same steps alone. */
typedef struct pair {
    backend_cache *together, *alone;
    const tiny_policy *policy;
    bool answering, poisoned;
} pair;

typedef struct play {
    tiny *d;
    const char *name;
    kv_format format;
    uint64_t seed, random;
    int n_pairs;
    bool answers_only;
    pair pairs[MAX_CACHES];
    /* one forward */
    int who[MAX_CACHES];
    backend_segment segments[MAX_CACHES];
    int32_t tokens[MAX_CACHES][MAX_PROMPT];
} play;

static int draw(play *p, int n) { return (int)tiny_draw(&p->random, (uint32_t)n); }

static size_t vocab_of(const play *p) { return (size_t)p->d->verifier->config.vocab; }

static void open_pair(play *p, pair *x) {
    *x = (pair){.policy = &tiny_policies[p->d->drafter ? draw(p, TINY_POLICIES) : draw(p, 3)]};
    x->together = tiny_cache(p->d, x->policy, p->format);
    x->alone = tiny_cache(p->d, x->policy, p->format);
}

static void close_pair(play *p, pair *x) {
    p->d->ops->cache_destroy(x->together);
    p->d->ops->cache_destroy(x->alone);
}

static void fail_at(const play *p, int cache, const char *what) {
    fail_msg("%s, %s, seed %llu, cache %d of %d (%s): %s", p->name, kv_format_name(p->format),
             (unsigned long long)p->seed, cache, p->n_pairs, p->pairs[cache].policy->name, what);
}

/* A new cache in place of one that has little room left. */
static void renew(play *p) {
    for (int i = 0; i < p->n_pairs; i++) {
        pair *x = &p->pairs[i];
        int length = p->d->ops->cache_length(x->together);
        bool spoilt = p->d->ops->cache_min_truncate(x->together) > length;
        if (!spoilt && length + MAX_PROMPT <= TINY_CONTEXT) continue;
        close_pair(p, x);
        open_pair(p, x);
    }
}

/* Some of the caches, in some order. */
static int choose_caches(play *p) {
    int n = 1 + draw(p, p->n_pairs);
    for (int i = 0; i < p->n_pairs; i++) p->who[i] = i;
    for (int i = 0; i < n; i++) {
        int other = i + draw(p, p->n_pairs - i), swap = p->who[i];
        p->who[i] = p->who[other];
        p->who[other] = swap;
    }
    return n;
}

/* A segment of every chosen cache, as far as rows are left; their number is returned. */
static int choose_segments(play *p, int n) {
    int left = p->d->ops->model_prompt_chunk(p->d->backend);
    for (int i = 0; i < n; i++) {
        pair *x = &p->pairs[p->who[i]];
        if (draw(p, 4) == 0) x->answering = !x->answering;
        if (p->answers_only) x->answering = true;
        int most = x->answering ? tiny_block_rows(x->policy) : MAX_PROMPT;
        int rows = x->answering && draw(p, 2) ? 1 : 1 + draw(p, most);
        if (rows > left) return i;
        left -= rows;
        for (int r = 0; r < rows; r++) p->tokens[i][r] = x->poisoned && draw(p, 2) ? POISON : draw(p, 300);
        int first = draw(p, 3) ? draw(p, rows + 1) : 0;
        p->segments[i] = (backend_segment){.cache = x->together,
                                           .tokens = p->tokens[i],
                                           .n = rows,
                                           .kind = x->answering ? SEGMENT_DECODE : SEGMENT_PROMPT,
                                           .first_logit_row = first};
        int wanted = draw(p, 4);
        size_t outputs = (size_t)(rows - first) + 1;
        if (wanted & 1 || wanted == 0) p->segments[i].logits = malloc(outputs * vocab_of(p) * sizeof(float));
        if (wanted & 2) p->segments[i].argmax = malloc(outputs * sizeof(int32_t));
    }
    return n;
}

/* The same segment alone; every bit is compared, but for rows that are no numbers. */
static void check_alone(play *p, int i) {
    const backend_segment *r = &p->segments[i];
    const pair *x = &p->pairs[p->who[i]];
    size_t outputs = (size_t)(r->n - r->first_logit_row), vocab = vocab_of(p);
    backend_segment alone = *r;
    alone.cache = x->alone;
    alone.logits = r->logits ? malloc((outputs + 1) * vocab * sizeof(float)) : NULL;
    alone.argmax = r->argmax ? malloc((outputs + 1) * sizeof(int32_t)) : NULL;
    REQUIRE_OK(p->d->ops->forward(p->d->backend, &alone, 1, error));
    for (size_t row = 0; row < outputs; row++) {
        const float *here = r->logits ? r->logits + row * vocab : NULL;
        const float *there = r->logits ? alone.logits + row * vocab : NULL;
        bool number = !here || !isnan(there[0]);
        if (here && number && memcmp(here, there, vocab * sizeof(float)) != 0) fail_at(p, p->who[i], "logits differ");
        if (here && !number && !isnan(here[0])) fail_at(p, p->who[i], "a number that is none alone");
        if (!number && !x->poisoned) fail_at(p, p->who[i], "a healthy row is not a number");
        if (r->argmax && r->argmax[row] != alone.argmax[row]) fail_at(p, p->who[i], "greedy choices differ");
        if (r->argmax && !x->poisoned && r->argmax[row] < 0) fail_at(p, p->who[i], "no greedy choice");
    }
    free(alone.logits);
    free(alone.argmax);
}

static void step_together(play *p) {
    int n = choose_segments(p, choose_caches(p));
    if (n == 0) return;
    REQUIRE_OK(p->d->ops->forward(p->d->backend, p->segments, n, error));
    for (int i = 0; i < n; i++) assert_int_equal(p->segments[i].status, KAKEYA_OK);
    for (int i = 0; i < n; i++) {
        pair *x = &p->pairs[p->who[i]];
        int rows = p->segments[i].n, kept = x->answering && draw(p, 2) ? draw(p, rows + 1) : rows;
        check_alone(p, i);
        REQUIRE_OK(p->d->ops->cache_commit(x->together, kept, error));
        REQUIRE_OK(p->d->ops->cache_commit(x->alone, kept, error));
        free(p->segments[i].logits);
        free(p->segments[i].argmax);
    }
}

static void draft_together(play *p) {
    backend_draft_request requests[MAX_CACHES];
    int32_t drafts[MAX_CACHES][BACKEND_MAX_DRAFT], alone[BACKEND_MAX_DRAFT];
    int n = choose_caches(p);
    for (int i = 0; i < n; i++) {
        requests[i] = (backend_draft_request){.cache = p->pairs[p->who[i]].together,
                                              .bonus = draw(p, 300),
                                              .n = 1 + draw(p, BACKEND_MAX_DRAFT),
                                              .drafts = drafts[i]};
    }
    REQUIRE_OK(p->d->ops->draft(p->d->backend, requests, n, error));
    for (int i = 0; i < n; i++) {
        backend_cache *cache = p->pairs[p->who[i]].alone;
        REQUIRE_OK(backend_draft_one(p->d->ops, p->d->backend, cache, requests[i].bonus, requests[i].n, alone, error));
        if (memcmp(alone, drafts[i], (size_t)requests[i].n * sizeof *alone) != 0)
            fail_at(p, p->who[i], "drafts differ");
    }
}

static void compare_states(play *p, int i) {
    memory_stream here = {0}, there = {0};
    REQUIRE_OK(p->d->ops->cache_snapshot(p->pairs[i].together, memory_write, &here, error));
    REQUIRE_OK(p->d->ops->cache_snapshot(p->pairs[i].alone, memory_write, &there, error));
    if (here.bytes != there.bytes || memcmp(here.data, there.data, here.bytes) != 0) fail_at(p, i, "states differ");
    memory_free(&here);
    memory_free(&there);
}

static void detour(play *p) {
    const backend_ops *ops = p->d->ops;
    int i = draw(p, p->n_pairs);
    pair *x = &p->pairs[i];
    int length = ops->cache_length(x->together), back = length - draw(p, 20);
    switch (draw(p, 4)) {
    case 0:
        if (back < ops->cache_min_truncate(x->together)) break;
        REQUIRE_OK(ops->cache_truncate(x->together, back, error));
        REQUIRE_OK(ops->cache_truncate(x->alone, back, error));
        break;
    case 1: {
        backend_cache *copy = NULL;
        REQUIRE_OK(ops->cache_fork(x->together, &p->d->account, &copy, error));
        ops->cache_destroy(x->alone);
        x->alone = copy;
        break;
    }
    case 2:
        if (!x->poisoned) compare_states(p, i);
        break;
    default:
        break;
    }
}

static void run_play(tiny *d, const char *name, kv_format format, int n, int steps, bool poison, uint64_t seed) {
    play *p = calloc(1, sizeof *p);
    *p = (play){.d = d, .name = name, .format = format, .seed = seed, .n_pairs = n};
    p->random = seed * 0x9e3779b97f4a7c15u + (uint64_t)n;
    for (int i = 0; i < n; i++) {
        open_pair(p, &p->pairs[i]);
        p->pairs[i].poisoned = poison && i % 4 == 1;
    }
    for (int i = 0; i < steps; i++) {
        bool poisoned[MAX_CACHES];
        for (int k = 0; k < n; k++) poisoned[k] = p->pairs[k].poisoned;
        renew(p);
        for (int k = 0; k < n; k++) p->pairs[k].poisoned = poisoned[k];
        step_together(p);
        if (d->drafter && draw(p, 2)) draft_together(p);
        detour(p);
    }
    for (int i = 0; i < n; i++) {
        if (!p->pairs[i].poisoned) compare_states(p, i);
        close_pair(p, &p->pairs[i]);
    }
    free(p);
}

/* `size`: the one run that a short sweep makes; others make two. */
static void compositions(tiny *d, const char *name, uint64_t size, uint64_t seed) {
    static const struct { int caches, steps; } runs[] = {{1, 8}, {5, 10}, {13, 5}, {MAX_CACHES, 4}};
    for (uint64_t i = 0; i < 4; i++) {
        if (!sweep_whole() && i != size && (sweep_short() || i != (size + 2) % 4)) continue;
        kv_format format = (kv_format)((seed + i) % KV_FORMAT_COUNT);
        run_play(d, name, format, runs[i].caches, sweep_short() ? 3 : runs[i].steps, false, seed);
    }
}

static void small_models_on_every_instruction_set(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (const char *const *isa = cpu_kernels_supported(); *isa; isa++) {
        tiny d;
        char name[64];
        static const char *const models[][2] = {{"gemma4-tiny-dense", "dflash-tiny"},
                                                {"gemma4-tiny-dense", "dflash-sliding"},
                                                {"gemma4-tiny-moe", NULL},
                                                {"gemma4-tiny-ple", NULL}};
        for (int i = 0; i < 4; i++) {
            if (sweep_short() && (i + (int)((seed - 1) / 4)) % 2) { /* every model and every set, half of their pairs */
                seed++;
                continue;
            }
            snprintf(name, sizeof name, "%s and %s on %s", models[i][0], models[i][1] ? models[i][1] : "no drafter",
                     *isa);
            tiny_open_on(&d, models[i][0], models[i][1], i % 2 ? KAKEYA_PRECISION_BF16 : KAKEYA_PRECISION_F32, *isa, 2);
            compositions(&d, name, (seed + (seed - 1) / 4) % 4,
                         seed); /* every model and every set has all sizes, or two */
            seed++;
            tiny_close(&d);
        }
    }
}

static void demo_model(void **state) {
    (void)state;
    tiny d = {0};
    mem_account_init(&d.account, NULL, 0);
    REQUIRE_OK(language_model_open(KAKEYA_MODELS "/demo", &d.account, &d.verifier, error));
    REQUIRE_OK(
        block_drafter_model_open(KAKEYA_MODELS "/demo-dflash", &d.verifier->config, &d.account, &d.drafter, error));
    REQUIRE_OK(restoration_model_open(KAKEYA_TEST_DATA "/golden/demo-f-theta-regression", &d.verifier->config,
                                      &d.drafter->config, &d.account, &d.f_theta, error));
    d.ops = backend_find("cpu", NULL);
    backend_model_options options = {.verifier = d.verifier,
                                     .drafter = d.drafter,
                                     .restoration = d.f_theta,
                                     .precision = KAKEYA_PRECISION_BF16,
                                     .threads = 3,
                                     .account = &d.account};
    REQUIRE_OK(d.ops->model_create(&options, &d.backend, error));
    run_play(&d, "the demo model", KV_FORMAT_BF16, 5, sweep_short() ? 3 : 8, false, 3);
    run_play(&d, "the demo model", KV_FORMAT_F32, 16, sweep_short() ? 1 : 3, false, 4);
    tiny_close(&d);
}

/* Sessions whose numbers have burst among healthy ones: these have the bits that they have alone. */
static void burst_sessions_among_healthy_ones(void **state) {
    (void)state;
    tiny d;
    tiny_open_on(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32, NULL, 2);
    weight *e = &d.verifier->weights.embed;
    size_t values = (size_t)e->out * (size_t)e->in;
    float *embedding = malloc(values * sizeof *embedding);
    memcpy(embedding, e->stream[0], values * sizeof *embedding);
    for (int i = 0; i < e->in; i++) embedding[POISON * e->in + i] = NAN;
    e->stream[0] = (const unsigned char *)embedding;
    for (uint64_t seed = 1; seed <= (sweep_whole() ? 6 : 2); seed++)
        run_play(&d, "with burst sessions", seed % 2 ? KV_FORMAT_F32 : KV_FORMAT_BF16, 6, sweep_short() ? 8 : 16, true,
                 seed);
    tiny_close(&d);
    free(embedding);
}

static backend_cache *long_cache(tiny *d, const tiny_policy *policy, const int32_t *tokens, int length) {
    enum { PIECE = 300 };
    backend_cache_options options = tiny_options(d, policy, KV_FORMAT_F32);
    backend_cache *cache = NULL;
    options.context_tokens = 700;
    d->f_theta->config.input = policy->input;
    REQUIRE_OK(d->ops->cache_create(d->backend, &options, &cache, error));
    for (int at = 0, n; at < length; at += n) {
        n = length - at < PIECE ? length - at : PIECE;
        tiny_step(d, cache, SEGMENT_PROMPT, tokens + at, n, n, NULL);
    }
    return cache;
}

/* Long sessions beside short ones, with more partitions than are in flight together, so that some sessions have a part
 * of theirs in one wave and the others in the next. */
static void long_sessions_beside_short_ones(void **state) {
    (void)state;
    enum { CACHES = 24 };
    for (int restored = 0; restored < 2; restored++) {
        tiny d;
        tiny_open_on(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32, NULL, 2);
        play *p = calloc(1, sizeof *p);
        *p = (play){.d = &d,
                    .name = "long and short",
                    .format = KV_FORMAT_F32,
                    .n_pairs = CACHES,
                    .random = 5,
                    .answers_only = true};
        int32_t tokens[600];
        tiny_tokens(tokens, 600, 9);
        for (int i = 0; i < CACHES; i++) {
            pair *x = &p->pairs[i];
            x->policy = &tiny_policies[restored ? 5 + i % 2 : i % 3];
            int length = i % 3 == 2 ? 3 : i % 3 ? 500 + 3 * i : 240 + 2 * i;
            x->together = long_cache(&d, x->policy, tokens, length);
            x->alone = long_cache(&d, x->policy, tokens, length);
        }
        for (int i = 0; i < (sweep_short() ? 2 : 6); i++) step_together(p);
        for (int i = 0; i < CACHES; i++) {
            compare_states(p, i);
            close_pair(p, &p->pairs[i]);
        }
        free(p);
        tiny_close(&d);
    }
}

/* As many answers as one forward takes, and beside them as many prompts, in turns: each has the bits that it has alone.
 * One more of either kind is refused. */
static void a_full_forward(void **state) {
    (void)state;
    enum { MOST_ROWS = 5, EACH = BACKEND_MAX_FORWARD / BACKEND_MAX_PROMPTS /* of which one is a prompt */ };
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    size_t vocab = (size_t)d.verifier->config.vocab;
    backend_cache *cache[BACKEND_MAX_FORWARD + 2];
    backend_segment segments[BACKEND_MAX_FORWARD + 2];
    int32_t tokens[60 + MOST_ROWS], argmax[BACKEND_MAX_FORWARD + 2];
    float *logits = malloc((BACKEND_MAX_FORWARD + 2) * vocab * sizeof *logits), *alone = malloc(vocab * sizeof *alone);
    tiny_tokens(tokens, 60 + MOST_ROWS, 11);
    for (int i = 0; i < BACKEND_MAX_FORWARD + 2; i++) {
        bool prompt = i % EACH == 1;
        int first = prompt ? i / EACH % 7 : 1 + i % 60,
            n = prompt ? 1 + i / EACH % MOST_ROWS : 1; /* 0: a first prompt */
        cache[i] = tiny_cache(&d, &tiny_policies[i / 2 % 6], KV_FORMAT_F32);
        if (first) tiny_step(&d, cache[i], SEGMENT_PROMPT, tokens, first, first, NULL);
        segments[i] = tiny_rows(cache[i], prompt ? SEGMENT_PROMPT : SEGMENT_DECODE, tokens + first, n, NULL);
        segments[i].first_logit_row = n - 1;
        segments[i].logits = logits + (size_t)i * vocab;
        segments[i].argmax = &argmax[i];
    }
    for (int more = 1; more <= 2; more++) { /* an answer, a prompt */
        backend_segment swapped = segments[0];
        if (more == 2) segments[0] = segments[BACKEND_MAX_FORWARD + 1];
        assert_int_equal(d.ops->forward(d.backend, segments, BACKEND_MAX_FORWARD + (more == 1), NULL),
                         KAKEYA_INVALID_ARGUMENT);
        segments[0] = swapped;
    }
    REQUIRE_OK(d.ops->forward(d.backend, segments, BACKEND_MAX_FORWARD, error));
    for (int i = 0; i < BACKEND_MAX_FORWARD + 2; i++) {
        backend_segment single = segments[i];
        int32_t choice;
        if (i < BACKEND_MAX_FORWARD) {
            single.cache = tiny_cache(&d, &tiny_policies[i / 2 % 6], KV_FORMAT_F32);
            int first = d.ops->cache_length(cache[i]);
            if (first) tiny_step(&d, single.cache, SEGMENT_PROMPT, tokens, first, first, NULL);
            single.logits = alone;
            single.argmax = &choice;
            REQUIRE_OK(d.ops->forward(d.backend, &single, 1, error));
            assert_same_bits("beside all others", segments[i].logits, alone, vocab);
            assert_int_equal(argmax[i], choice);
            d.ops->cache_destroy(single.cache);
        }
        d.ops->cache_destroy(cache[i]);
    }
    free(logits);
    free(alone);
    tiny_close(&d);
}

/* --------------------------------------------------------------------------------------------- what is refused */

typedef struct refusal_case {
    const char *what;
    int32_t token; /* of the bad segment */
    int filled;    /* positions of its cache */
    bool no_memory, pending;
    kakeya_status status;
} refusal_case;

/* One of several segments cannot be computed, wherever it stands: it is named, no other is, and no cache has changed.
 */
static void the_segment_at_fault_is_named(void **state) {
    (void)state;
    enum { CACHES = 5, FILLED = 128 };
    static const refusal_case cases[] = {
        {"a token that does not exist", 320, FILLED, false, false, KAKEYA_INVALID_ARGUMENT},
        {"no room in the context", 1, TINY_CONTEXT, false, false, KAKEYA_CONTEXT_FULL},
        {"no memory for its cache", 1, FILLED, true, false, KAKEYA_OUT_OF_MEMORY},
        {"rows that wait for their commit", 1, FILLED, false, true, KAKEYA_INVALID_ARGUMENT},
    };
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    int32_t tokens[TINY_CONTEXT];
    tiny_tokens(tokens, TINY_CONTEXT, 8);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        const refusal_case *c = &cases[k];
        for (int bad = 0; bad < CACHES; bad += 2) {
            mem_account account[CACHES];
            backend_cache *cache[CACHES];
            backend_segment segments[CACHES];
            memory_stream before[CACHES] = {{0}}, after[CACHES] = {{0}};
            size_t held[CACHES];
            for (int i = 0; i < CACHES; i++) {
                mem_account_init(&account[i], &d.account, 0);
                backend_cache_options options = tiny_options(&d, &tiny_policies[i], KV_FORMAT_F32);
                options.account = &account[i];
                REQUIRE_OK(d.ops->cache_create(d.backend, &options, &cache[i], error));
                int length = i == bad ? c->filled : FILLED;
                tiny_step(&d, cache[i], SEGMENT_PROMPT, tokens, length, length, NULL);
                segments[i] = tiny_rows(cache[i], SEGMENT_DECODE, i == bad ? &c->token : tokens, 1, NULL);
            }
            for (int i = 0; i < CACHES; i++)
                REQUIRE_OK(d.ops->cache_snapshot(cache[i], memory_write, &before[i], error));
            if (c->pending) {
                backend_segment waiting = tiny_rows(cache[bad], SEGMENT_DECODE, tokens, 1, NULL);
                REQUIRE_OK(d.ops->forward(d.backend, &waiting, 1, error));
            }
            if (c->no_memory) account[bad].limit_bytes = mem_total(&account[bad]); /* its next page passes it */
            for (int i = 0; i < CACHES; i++) held[i] = mem_total(&account[i]);
            kakeya_error refusal = {0};
            kakeya_status status = d.ops->forward(d.backend, segments, CACHES, &refusal);
            if (status != c->status) fail_msg("%s in %d: status %d, %s", c->what, bad, (int)status, refusal.message);
            assert_true(refusal.message[0]);
            for (int i = 0; i < CACHES; i++) {
                if (segments[i].status != (i == bad ? c->status : KAKEYA_OK))
                    fail_msg("%s in %d: segment %d has status %d", c->what, bad, i, (int)segments[i].status);
                if (mem_total(&account[i]) != held[i]) fail_msg("%s in %d: cache %d holds more", c->what, bad, i);
            }
            if (c->pending) REQUIRE_OK(d.ops->cache_commit(cache[bad], 0, error));
            account[bad].limit_bytes = 0;
            for (int i = 0; i < CACHES; i++) {
                REQUIRE_OK(d.ops->cache_snapshot(cache[i], memory_write, &after[i], error));
                bool moved = c->pending && i == bad; /* the forward before has emptied its backlog */
                if (!moved &&
                    (before[i].bytes != after[i].bytes || memcmp(before[i].data, after[i].data, after[i].bytes) != 0))
                    fail_msg("%s in %d: cache %d has changed", c->what, bad, i);
                memory_free(&before[i]);
                memory_free(&after[i]);
                d.ops->cache_destroy(cache[i]);
            }
        }
    }
    tiny_close(&d);
}

/* The same for drafts; and formats do not meet in one call. */
static void the_draft_at_fault_is_named(void **state) {
    (void)state;
    enum { CACHES = 4 };
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    int32_t tokens[40], drafts[CACHES][BACKEND_MAX_DRAFT];
    tiny_tokens(tokens, 40, 8);
    for (int fault = 0; fault < 4; fault++) {
        backend_cache *cache[CACHES];
        backend_draft_request requests[CACHES];
        for (int i = 0; i < CACHES; i++) {
            backend_cache_options options =
                tiny_options(&d, &tiny_policies[0], fault == 3 && i == 2 ? KV_FORMAT_BF16 : KV_FORMAT_F32);
            if (fault == 0 && i == 2) options.keep_draft_context = false;
            REQUIRE_OK(d.ops->cache_create(d.backend, &options, &cache[i], error));
            tiny_step(&d, cache[i], SEGMENT_PROMPT, tokens, 40, 40, NULL);
            requests[i] = (backend_draft_request){.cache = cache[i], .bonus = 3, .n = 5, .drafts = drafts[i]};
        }
        if (fault == 1) requests[2].bonus = 320;
        if (fault == 2) requests[2].n = BACKEND_MAX_DRAFT + 1;
        kakeya_error refusal = {0};
        assert_int_equal(d.ops->draft(d.backend, requests, CACHES, &refusal), KAKEYA_INVALID_ARGUMENT);
        for (int i = 0; i < CACHES; i++) {
            kakeya_status expected = i == 2 && fault < 3 ? KAKEYA_INVALID_ARGUMENT : KAKEYA_OK;
            if (requests[i].status != expected)
                fail_msg("fault %d: request %d has status %d", fault, i, (int)requests[i].status);
        }
        if (fault == 3) assert_non_null(strstr(refusal.message, "bf16"));
        for (int i = 0; i < CACHES; i++) d.ops->cache_destroy(cache[i]);
    }
    tiny_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_models_on_every_instruction_set),
        cmocka_unit_test(demo_model),
        cmocka_unit_test(burst_sessions_among_healthy_ones),
        cmocka_unit_test(long_sessions_beside_short_ones),
        cmocka_unit_test(a_full_forward),
        cmocka_unit_test(the_segment_at_fault_is_named),
        cmocka_unit_test(the_draft_at_fault_is_named),
    };
    return cmocka_run_group_tests_name("composition", tests, NULL, NULL);
}
