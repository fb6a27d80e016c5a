/* Protects the caches of backends that keep them in host memory: whatever the schedule of prompts, blocks, drops,
 * truncations, forks and snapshots, every row has the bits that it has one row at a time; a session knows nothing of
 * the others on its engine; what is refused or dropped leaves no trace; a snapshot that somebody has edited is refused.
 */
#include "memory_stream.h"
#include "sweep.h"
#include "tiny.h"

/* ---------------------------------------------------------------------------------------------------- schedules */

typedef struct play {
    tiny *d;
    const tiny_policy *policy;
    kv_format format;
    uint64_t seed, random;
    backend_cache *cache;
    int length;
    int32_t tokens[TINY_CONTEXT];
    segment_kind kind[TINY_CONTEXT];
    float *logits; /* [TINY_CONTEXT][vocab] of the committed rows */
} play;

static size_t vocab_of(const tiny *d) { return (size_t)d->verifier->config.vocab; }

static int draw_within(play *p, int low, int high) {
    return low + (int)tiny_draw(&p->random, (uint32_t)(high - low + 1));
}

/* n rows of `kind`, of which `kept` stay. */
static void rows(play *p, segment_kind kind, int n, int kept) {
    int32_t block[TINY_CONTEXT];
    float *logits = p->logits + (size_t)p->length * vocab_of(p->d), *dropped = NULL;
    for (int i = 0; i < n; i++) block[i] = (int32_t)tiny_draw(&p->random, 300);
    dropped = malloc((size_t)n * vocab_of(p->d) * sizeof *dropped);
    tiny_step(p->d, p->cache, kind, block, n, kept, dropped);
    memcpy(logits, dropped, (size_t)kept * vocab_of(p->d) * sizeof *dropped);
    free(dropped);
    for (int i = 0; i < kept; i++) {
        p->tokens[p->length + i] = block[i];
        p->kind[p->length + i] = kind;
    }
    p->length += kept;
}

static void detour(play *p) {
    const backend_ops *ops = p->d->ops;
    int least = ops->cache_min_truncate(p->cache), back = p->length - (int)tiny_draw(&p->random, 24);
    switch (tiny_draw(&p->random, 10)) {
    case 0:
    case 1:
        if (tiny_draw(&p->random, 3) == 0) back = least;
        if (back < least) break;
        REQUIRE_OK(ops->cache_truncate(p->cache, back, error));
        p->length = back;
        break;
    case 2: {
        backend_cache *copy = NULL;
        REQUIRE_OK(ops->cache_fork(p->cache, &p->d->account, &copy, error));
        ops->cache_destroy(p->cache);
        p->cache = copy;
        break;
    }
    case 3: {
        memory_stream stream = {0};
        REQUIRE_OK(ops->cache_snapshot(p->cache, memory_write, &stream, error));
        assert_int_equal(stream.bytes, ops->cache_snapshot_bytes(p->cache));
        ops->cache_destroy(p->cache);
        p->cache = tiny_cache(p->d, p->policy, p->format);
        REQUIRE_OK(ops->cache_restore(p->cache, memory_read, &stream, error));
        assert_int_equal(stream.at, stream.bytes);
        memory_free(&stream);
        break;
    }
    case 4:
        if (p->d->drafter) {
            int32_t drafts[5];
            REQUIRE_OK(backend_draft_one(ops, p->d->backend, p->cache, 7, 5, drafts, error));
        }
        break;
    default:
        break;
    }
}

/* The committed rows again: prompts whole, answers one row at a time. */
static void compare_with_one_by_one(play *p) {
    size_t vocab = vocab_of(p->d);
    float *expected = malloc(TINY_CONTEXT * vocab * sizeof *expected);
    backend_cache *cache = tiny_cache(p->d, p->policy, p->format);
    for (int at = 0, n; at < p->length; at += n) {
        for (n = 1; p->kind[at] == SEGMENT_PROMPT && at + n < p->length && p->kind[at + n] == SEGMENT_PROMPT;) n++;
        tiny_step(p->d, cache, p->kind[at], p->tokens + at, n, n, expected + (size_t)at * vocab);
    }
    for (int t = 0; t < p->length; t++) {
        char what[128];
        snprintf(what, sizeof what, "%s, %s, seed %llu, row %d of kind %d", p->policy->name, kv_format_name(p->format),
                 (unsigned long long)p->seed, t, (int)p->kind[t]);
        assert_same_bits(what, p->logits + (size_t)t * vocab, expected + (size_t)t * vocab, vocab);
    }
    p->d->ops->cache_destroy(cache);
    free(expected);
}

static void check_bytes(play *p) {
    backend_cache_bytes formula = p->d->ops->cache_bytes(p->cache);
    assert_int_equal(formula.full, mem_bytes(&p->d->account, MEM_KV_FULL));
    assert_int_equal(formula.sliding, mem_bytes(&p->d->account, MEM_KV_SLIDING));
    assert_int_equal(formula.latent, mem_bytes(&p->d->account, MEM_KV_LATENT));
    assert_int_equal(formula.draft, mem_bytes(&p->d->account, MEM_KV_DRAFT));
}

static void run_schedule(tiny *d, const tiny_policy *policy, kv_format format, uint64_t seed) {
    enum { STEPS = 22 };
    play *p = calloc(1, sizeof *p);
    *p = (play){.d = d, .policy = policy, .format = format, .seed = seed, .random = seed * 0x9e3779b97f4a7c15u};
    p->logits = malloc(TINY_CONTEXT * vocab_of(d) * sizeof *p->logits);
    p->cache = tiny_cache(d, policy, format);
    bool answering = false;
    for (int i = 0; i < STEPS; i++) {
        if (tiny_draw(&p->random, 4) == 0) answering = !answering;
        int room = TINY_CONTEXT - p->length, most = answering ? tiny_block_rows(policy) : 60;
        int n = tiny_draw(&p->random, 3) ? draw_within(p, 1, most) : most;
        if (n > room) n = room;
        if (n == 0) break;
        int kept = answering                   ? (tiny_draw(&p->random, 3) ? draw_within(p, 0, n) : 0)
                   : tiny_draw(&p->random, 20) ? n
                                               : 0;
        rows(p, answering ? SEGMENT_DECODE : SEGMENT_PROMPT, n, kept);
        check_bytes(p);
        if (d->ops->cache_min_truncate(p->cache) > p->length) break; /* a dropped prompt has overwritten the ring */
        detour(p);
        check_bytes(p);
    }
    compare_with_one_by_one(p);
    d->ops->cache_destroy(p->cache);
    free(p->logits);
    free(p);
}

static void schedules_change_no_bit(void **state) {
    (void)state;
    enum { SCHEDULES = 10 };
    const uint64_t schedules = sweep_short() ? 1 : sweep_whole() ? SCHEDULES : 4;
    static const char *const drafters[] = {"dflash-tiny", "dflash-sliding"};
    static const kv_format formats[][3] = {{KV_FORMAT_F32, KV_FORMAT_Q4, KV_FORMAT_F32},
                                           {KV_FORMAT_BF16, KV_FORMAT_Q8, KV_FORMAT_Q4},
                                           {KV_FORMAT_Q8, KV_FORMAT_F32, KV_FORMAT_Q4}};
    for (int k = 0; k < 2; k++) {
        tiny d;
        tiny_open(&d, "gemma4-tiny-dense", drafters[k], k ? KAKEYA_PRECISION_BF16 : KAKEYA_PRECISION_F32);
        for (int i = 0; i < TINY_POLICIES; i++) {
            for (uint64_t seed = 1; seed <= schedules; seed++)
                run_schedule(&d, &tiny_policies[i], formats[k][(seed + (uint64_t)i) % 3], seed);
        }
        tiny_close(&d);
    }
    tiny d; /* layers that share K/V, per-layer embeddings; no drafter */
    tiny_open(&d, "gemma4-tiny-ple", NULL, KAKEYA_PRECISION_F32);
    for (int i = 0; i < 3; i++) {
        for (uint64_t seed = 1; seed <= schedules; seed++)
            run_schedule(&d, &tiny_policies[i], formats[2][(seed + (uint64_t)i) % 3], seed);
    }
    tiny_close(&d);
}

/* ------------------------------------------------------------------------------------- what is dropped or refused */

/* The first block of an answer is computed and dropped; then a prompt comes. Nothing was evicted by it. */
static void a_dropped_block_evicts_nothing(void **state) {
    (void)state;
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    enum { FIRST = 50, SECOND = 20 };
    int32_t tokens[FIRST + SECOND], block[BACKEND_MAX_DECODE_ROWS];
    tiny_tokens(tokens, FIRST + SECOND, 3);
    tiny_tokens(block, BACKEND_MAX_DECODE_ROWS, 4);
    size_t n = SECOND * vocab_of(&d);
    float *found = malloc(n * sizeof *found), *expected = malloc(n * sizeof *expected);
    for (int i = 0; i < TINY_POLICIES; i++) {
        for (int dropping = 0; dropping < 2; dropping++) {
            backend_cache *cache = tiny_cache(&d, &tiny_policies[i], KV_FORMAT_F32);
            tiny_step(&d, cache, SEGMENT_PROMPT, tokens, FIRST, FIRST, NULL);
            if (dropping) tiny_step(&d, cache, SEGMENT_DECODE, block, tiny_block_rows(&tiny_policies[i]), 0, NULL);
            tiny_step(&d, cache, SEGMENT_PROMPT, tokens + FIRST, SECOND, SECOND, dropping ? found : expected);
            d.ops->cache_destroy(cache);
        }
        assert_same_bits(tiny_policies[i].name, found, expected, n);
    }
    free(found);
    free(expected);
    tiny_close(&d);
}

/* A prompt can be dropped. Where it has overwritten nothing that is needed, it was never there; otherwise the cache
 * says that it cannot go on. */
static void a_dropped_prompt_is_gone_or_known(void **state) {
    (void)state;
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    enum { FIRST = 10, DROPPED = 14, SECOND = 20, LONG = 60 };
    int32_t tokens[LONG], other[LONG];
    tiny_tokens(tokens, LONG, 3);
    tiny_tokens(other, LONG, 4);
    size_t n = SECOND * vocab_of(&d);
    float *found = malloc(n * sizeof *found), *expected = malloc(n * sizeof *expected);
    for (int i = 0; i < TINY_POLICIES; i++) {
        for (int dropping = 0; dropping < 2; dropping++) {
            backend_cache *cache = tiny_cache(&d, &tiny_policies[i], KV_FORMAT_F32);
            tiny_step(&d, cache, SEGMENT_PROMPT, tokens, FIRST, FIRST, NULL);
            if (dropping) tiny_step(&d, cache, SEGMENT_PROMPT, other, DROPPED, 0, NULL);
            tiny_step(&d, cache, SEGMENT_PROMPT, tokens + FIRST, SECOND, SECOND, dropping ? found : expected);
            tiny_step(&d, cache, SEGMENT_PROMPT, other, LONG, 0, NULL);
            bool spoilt = d.ops->cache_min_truncate(cache) > FIRST + SECOND;
            assert_int_equal(spoilt, tiny_policies[i].sink < FIRST + SECOND); /* sinks lie elsewhere */
            kakeya_error refusal = {0};
            backend_segment segment = tiny_rows(cache, SEGMENT_DECODE, tokens, 1, NULL);
            kakeya_status status = d.ops->forward(d.backend, &segment, 1, &refusal);
            assert_int_equal(status, spoilt ? KAKEYA_INVALID_ARGUMENT : KAKEYA_OK);
            if (spoilt) assert_non_null(strstr(refusal.message, "dropped prompt"));
            d.ops->cache_destroy(cache);
        }
        assert_same_bits(tiny_policies[i].name, found, expected, n);
    }
    free(found);
    free(expected);
    tiny_close(&d);
}

/* ---------------------------------------------------------------------------------------- sessions side by side */

/* Two segments of different caches, policies and kinds in one forward: each as if it were alone. */
static void segments_do_not_mix(void **state) {
    (void)state;
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    enum { FIRST = 40, ROWS = 9, MOST = 33 };
    int32_t tokens[2][FIRST + MOST];
    size_t vocab = vocab_of(&d);
    float *found[2], *expected[2];
    for (int s = 0; s < 2; s++) {
        tiny_tokens(tokens[s], FIRST + MOST, 30 + (uint64_t)s);
        found[s] = malloc(MOST * vocab * sizeof(float));
        expected[s] = malloc(MOST * vocab * sizeof(float));
    }
    for (int a = 0; a < 7; a++) {
        for (int b = 0; b < 7; b++) {
            for (int kinds = 0; kinds < 4; kinds++) {
                if (sweep_short() && (a + 2 * b + kinds) % 4) continue; /* one of the four */
                const tiny_policy *policy[2] = {&tiny_policies[a], &tiny_policies[b]};
                segment_kind kind[2] = {kinds & 1 ? SEGMENT_DECODE : SEGMENT_PROMPT,
                                        kinds & 2 ? SEGMENT_DECODE : SEGMENT_PROMPT};
                int n[2];
                for (int together = 0; together < 2; together++) {
                    backend_cache *cache[2];
                    backend_segment segments[2];
                    for (int s = 0; s < 2; s++) {
                        cache[s] = tiny_cache(&d, policy[s], KV_FORMAT_F32);
                        tiny_step(&d, cache[s], SEGMENT_PROMPT, tokens[s], FIRST, FIRST, NULL);
                        n[s] = kind[s] == SEGMENT_PROMPT           ? MOST - 5 * s
                               : tiny_block_rows(policy[s]) < ROWS ? tiny_block_rows(policy[s])
                                                                   : ROWS;
                        segments[s] =
                            tiny_rows(cache[s], kind[s], tokens[s] + FIRST, n[s], together ? found[s] : expected[s]);
                        if (!together) REQUIRE_OK(d.ops->forward(d.backend, &segments[s], 1, error));
                    }
                    if (together) REQUIRE_OK(d.ops->forward(d.backend, segments, 2, error));
                    for (int s = 0; s < 2; s++) d.ops->cache_destroy(cache[s]);
                }
                for (int s = 0; s < 2; s++) {
                    char what[128];
                    snprintf(what, sizeof what, "%s beside %s, kinds %d, segment %d", policy[0]->name, policy[1]->name,
                             kinds, s);
                    assert_same_bits(what, found[s], expected[s], (size_t)n[s] * vocab);
                }
            }
        }
    }
    for (int s = 0; s < 2; s++) {
        free(found[s]);
        free(expected[s]);
    }
    tiny_close(&d);
}

/* A segment that is refused takes the others with it: none has changed. */
static void refusals_change_no_cache(void **state) {
    (void)state;
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    int32_t tokens[TINY_CONTEXT];
    tiny_tokens(tokens, TINY_CONTEXT, 8);
    for (int i = 0; i < TINY_POLICIES; i++) {
        backend_cache *cache = tiny_cache(&d, &tiny_policies[i], KV_FORMAT_F32),
                      *full = tiny_cache(&d, &tiny_policies[i], KV_FORMAT_F32);
        tiny_step(&d, cache, SEGMENT_PROMPT, tokens, 70, 70, NULL);
        tiny_step(&d, full, SEGMENT_PROMPT, tokens, TINY_CONTEXT, TINY_CONTEXT, NULL);
        size_t held = mem_total(&d.account);
        memory_stream before = {0}, after = {0};
        REQUIRE_OK(d.ops->cache_snapshot(cache, memory_write, &before, error));
        backend_segment segments[2] = {tiny_rows(cache, SEGMENT_DECODE, tokens, 1, NULL),
                                       tiny_rows(full, SEGMENT_DECODE, tokens, 1, NULL)};
        kakeya_error refusal = {0};
        assert_int_equal(d.ops->forward(d.backend, segments, 2, &refusal), KAKEYA_CONTEXT_FULL);
        assert_int_equal(d.ops->cache_pending(cache), 0);
        REQUIRE_OK(d.ops->cache_snapshot(cache, memory_write, &after, error));
        assert_int_equal(before.bytes, after.bytes);
        assert_memory_equal(before.data, after.data, after.bytes);
        assert_int_equal(mem_total(&d.account), held);
        memory_free(&before);
        memory_free(&after);
        d.ops->cache_destroy(cache);
        d.ops->cache_destroy(full);
    }
    tiny_close(&d);
}

/* Buffers of the engine hold what other sessions left there, in other formats: bits that are no numbers. */
static void formats_do_not_meet(void **state) {
    (void)state;
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    enum { LONG = 200, SHORT = 5 };
    int32_t tokens[LONG], drafts[2][5];
    tiny_tokens(tokens, LONG, 5);
    size_t n = SHORT * vocab_of(&d);
    float *found = malloc(n * sizeof *found), *expected = malloc(n * sizeof *expected);
    for (int after = 0; after < 2; after++) {
        for (int i = 0; after && i < 2; i++) {
            backend_cache *other = tiny_cache(&d, &tiny_policies[i], KV_FORMAT_F32);
            tiny_step(&d, other, SEGMENT_PROMPT, tokens, LONG, LONG, NULL);
            REQUIRE_OK(backend_draft_one(d.ops, d.backend, other, 3, BACKEND_MAX_DRAFT, (int32_t[BACKEND_MAX_DRAFT]){0},
                                         error));
            d.ops->cache_destroy(other);
        }
        backend_cache *cache = tiny_cache(&d, &tiny_policies[0], KV_FORMAT_BF16);
        tiny_step(&d, cache, SEGMENT_PROMPT, tokens, SHORT, SHORT, after ? found : expected);
        REQUIRE_OK(backend_draft_one(d.ops, d.backend, cache, 3, 5, drafts[after], error));
        d.ops->cache_destroy(cache);
    }
    assert_same_bits("a bf16 session after float32 sessions", found, expected, n);
    assert_memory_equal(drafts[0], drafts[1], sizeof drafts[0]);
    free(found);
    free(expected);
    tiny_close(&d);
}

enum { POISON = 310 };

/* The token POISON has an embedding that is not a number. */
static float *open_poisoned(tiny *d) {
    tiny_open(d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    weight *e = &d->verifier->weights.embed;
    assert_int_equal(e->format, WEIGHT_F32);
    size_t n = (size_t)e->out * (size_t)e->in;
    float *copy = malloc(n * sizeof *copy);
    memcpy(copy, e->stream[0], n * sizeof *copy);
    for (int i = 0; i < e->in; i++) copy[POISON * e->in + i] = NAN;
    e->stream[0] = copy;
    return copy;
}

/* Logits and drafts of a healthy session and of one that poison was near. */
typedef struct witness {
    float *logits[2]; /* [2][rows][vocab]: without, with */
    int32_t drafts[2][5];
    size_t values;
} witness;

static witness witness_open(size_t values) {
    return (witness){.logits = {malloc(values * sizeof(float)), malloc(values * sizeof(float))}, .values = values};
}

static void assert_unharmed(const char *policy, const witness *w) {
    assert_same_bits(policy, w->logits[1], w->logits[0], w->values);
    assert_memory_equal(w->drafts[0], w->drafts[1], sizeof w->drafts[0]);
}

static void close_poisoned(tiny *d, float *embedding, witness *w) {
    free(w->logits[0]);
    free(w->logits[1]);
    tiny_close(d);
    free(embedding);
}

/* A session whose numbers have burst stands beside a healthy one, in the same forward and before it. */
static void poison_does_not_spread(void **state) {
    (void)state;
    tiny d;
    float *embedding = open_poisoned(&d);
    enum { FIRST = 21, SECOND = 4, BLOCK = 5, ALL = FIRST + SECOND + BLOCK };
    int32_t tokens[ALL], bad[FIRST], ignored[5];
    tiny_tokens(tokens, ALL, 6);
    for (int i = 0; i < FIRST; i++) bad[i] = POISON;
    size_t vocab = vocab_of(&d);
    witness w = witness_open(ALL * vocab);
    float *burst = malloc(FIRST * vocab * sizeof *burst);
    for (int i = 0; i < TINY_POLICIES; i++) {
        for (int beside = 0; beside < 2; beside++) {
            backend_cache *cache = tiny_cache(&d, &tiny_policies[i], KV_FORMAT_F32);
            backend_cache *poisoned = tiny_cache(&d, &tiny_policies[i], KV_FORMAT_F32);
            int at = 0;
            for (int part = 0; part < 3; part++) {
                int n = part == 0 ? FIRST : part == 1 ? SECOND : BLOCK;
                segment_kind kind = part == 2 ? SEGMENT_DECODE : SEGMENT_PROMPT;
                backend_segment segments[2] = {
                    tiny_rows(cache, kind, tokens + at, n, w.logits[beside] + (size_t)at * vocab),
                    tiny_rows(poisoned, kind, bad, n, burst)};
                REQUIRE_OK(d.ops->forward(d.backend, segments, 1 + beside, error));
                REQUIRE_OK(d.ops->cache_commit(cache, n, error));
                if (beside) {
                    assert_true(isnan(burst[0]));
                    REQUIRE_OK(d.ops->cache_commit(poisoned, n, error));
                    (void)backend_draft_one(d.ops, d.backend, poisoned, POISON, 5, ignored, NULL);
                }
                at += n;
            }
            REQUIRE_OK(backend_draft_one(d.ops, d.backend, cache, tokens[0], 5, w.drafts[beside], error));
            d.ops->cache_destroy(cache);
            d.ops->cache_destroy(poisoned);
        }
        assert_unharmed(tiny_policies[i].name, &w);
    }
    free(burst);
    close_poisoned(&d, embedding, &w);
}

/* A wrong draft bursts the rows behind the accepted ones. They are dropped, and gone. */
static void a_dropped_burst_leaves_no_trace(void **state) {
    (void)state;
    tiny d;
    float *embedding = open_poisoned(&d);
    enum { FIRST = 45, ANSWER = 40 };
    int32_t tokens[FIRST + ANSWER];
    tiny_tokens(tokens, FIRST + ANSWER, 9);
    size_t vocab = vocab_of(&d);
    witness w = witness_open(ANSWER * vocab);
    float *rows_of_block = malloc(BACKEND_MAX_DECODE_ROWS * vocab * sizeof *rows_of_block);
    for (int i = 0; i < TINY_POLICIES; i++) {
        int block = tiny_block_rows(&tiny_policies[i]);
        for (int bursting = 0; bursting < 2; bursting++) {
            backend_cache *cache = tiny_cache(&d, &tiny_policies[i], KV_FORMAT_F32);
            tiny_step(&d, cache, SEGMENT_PROMPT, tokens, FIRST, FIRST, NULL);
            for (int at = 0; at < ANSWER; at++) {
                int32_t drafted[BACKEND_MAX_DECODE_ROWS] = {tokens[FIRST + at]};
                for (int j = 1; j < block; j++) drafted[j] = POISON;
                if (bursting && at % 7 == 3) { /* and a block of which nothing is kept */
                    int32_t all_bad[BACKEND_MAX_DECODE_ROWS];
                    for (int j = 0; j < block; j++) all_bad[j] = POISON;
                    tiny_step(&d, cache, SEGMENT_DECODE, all_bad, block, 0, NULL);
                }
                tiny_step(&d, cache, SEGMENT_DECODE, drafted, bursting ? block : 1, 1, rows_of_block);
                memcpy(w.logits[bursting] + (size_t)at * vocab, rows_of_block, vocab * sizeof(float));
            }
            if (bursting) { /* also rows that were kept, and have entered the drafter's context */
                int32_t bad[2] = {POISON, POISON}, ignored[5];
                tiny_step(&d, cache, SEGMENT_DECODE, bad, 2, 2, NULL);
                REQUIRE_OK(backend_draft_one(d.ops, d.backend, cache, POISON, 5, ignored, error));
                REQUIRE_OK(d.ops->cache_truncate(cache, FIRST + ANSWER, error));
            }
            REQUIRE_OK(backend_draft_one(d.ops, d.backend, cache, tokens[0], 5, w.drafts[bursting], error));
            d.ops->cache_destroy(cache);
        }
        assert_unharmed(tiny_policies[i].name, &w);
    }
    free(rows_of_block);
    close_poisoned(&d, embedding, &w);
}

/* ---------------------------------------------------------------------------------------------------- snapshots */

/* Cut off anywhere, or with one word changed: refused, or as good as any other state; the cache is what it was. */
static void edited_snapshots_are_refused(void **state) {
    (void)state;
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    int32_t tokens[90];
    tiny_tokens(tokens, 90, 12);
    for (int i = 0; i < TINY_POLICIES; i++) {
        backend_cache *cache = tiny_cache(&d, &tiny_policies[i], KV_FORMAT_F32),
                      *target = tiny_cache(&d, &tiny_policies[i], KV_FORMAT_F32);
        tiny_step(&d, cache, SEGMENT_PROMPT, tokens, 80, 80, NULL);
        for (int at = 80; at < 90; at++) tiny_step(&d, cache, SEGMENT_DECODE, tokens + at, 1, 1, NULL);
        memory_stream good = {0};
        REQUIRE_OK(d.ops->cache_snapshot(cache, memory_write, &good, error));
        for (size_t cut = 0; cut < good.bytes; cut += cut < 200 ? 1 : 977) {
            memory_stream part = {.data = good.data, .bytes = cut};
            kakeya_error refusal = {0};
            assert_int_equal(d.ops->cache_restore(target, memory_read, &part, &refusal), KAKEYA_FORMAT);
            assert_int_equal(d.ops->cache_length(target), 0);
        }
        for (size_t word = 0; word < 50 && 4 * word < good.bytes; word++) {
            static const int32_t values[] = {-1, 0, 1, 0x7fffffff, (int32_t)0x80000000};
            for (int v = 0; v < 5; v++) {
                int32_t was, now = values[v];
                memcpy(&was, good.data + 4 * word, 4);
                if (was == now) continue;
                memcpy(good.data + 4 * word, &now, 4);
                kakeya_error refusal = {0};
                good.at = 0;
                backend_cache *other = tiny_cache(&d, &tiny_policies[i], KV_FORMAT_F32);
                kakeya_status status = d.ops->cache_restore(other, memory_read, &good, &refusal);
                if (status == KAKEYA_OK) /* a state like any other */
                    tiny_step(&d, other, SEGMENT_DECODE, tokens, 1, 1, NULL);
                else if (status != KAKEYA_FORMAT && status != KAKEYA_UNSUPPORTED)
                    fail_msg("%s, word %zu = %d: %s", tiny_policies[i].name, word, (int)now, refusal.message);
                d.ops->cache_destroy(other);
                memcpy(good.data + 4 * word, &was, 4);
            }
        }
        good.at = 0;
        REQUIRE_OK(d.ops->cache_restore(target, memory_read, &good, error));
        memory_free(&good);
        d.ops->cache_destroy(cache);
        d.ops->cache_destroy(target);
    }
    tiny_close(&d);
}

/* Tokens that the drafter's pass will look up come from the snapshot: one outside the vocabulary is refused. */
static void tokens_of_snapshots_are_checked(void **state) {
    (void)state;
    if (TINY_MISSING_POLICIES) skip();
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    const tiny_policy *policy = &tiny_policies[7];
    int32_t tokens[80];
    for (int i = 0; i < 80; i++) tokens[i] = 200 + i;
    backend_cache *cache = tiny_cache(&d, policy, KV_FORMAT_F32);
    tiny_step(&d, cache, SEGMENT_PROMPT, tokens, 80, 80, NULL);
    memory_stream snapshot = {0};
    REQUIRE_OK(d.ops->cache_snapshot(cache, memory_write, &snapshot, error));
    size_t at = 0;
    while (at + sizeof tokens <= snapshot.bytes && memcmp(snapshot.data + at, tokens, sizeof tokens)) at++;
    assert_true(at + sizeof tokens <= snapshot.bytes);
    static const int32_t wrong[] = {-1, 320, 0x7fffffff};
    for (int i = 0; i < 3; i++) {
        kakeya_error refusal = {0};
        memcpy(snapshot.data + at + 4 * 33, &wrong[i], 4);
        snapshot.at = 0;
        assert_int_equal(d.ops->cache_restore(cache, memory_read, &snapshot, &refusal), KAKEYA_FORMAT);
        assert_non_null(strstr(refusal.message, "token 33"));
    }
    memory_free(&snapshot);
    d.ops->cache_destroy(cache);
    tiny_close(&d);
}

/* A snapshot of the first version says which it is. */
static void old_snapshots_are_refused(void **state) {
    (void)state;
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", NULL, KAKEYA_PRECISION_F32);
    backend_cache *cache = tiny_cache(&d, &tiny_policies[0], KV_FORMAT_F32);
    memory_stream snapshot = {0};
    REQUIRE_OK(d.ops->cache_snapshot(cache, memory_write, &snapshot, error));
    snapshot.data[4] = 1;
    kakeya_error refusal = {0};
    assert_int_equal(d.ops->cache_restore(cache, memory_read, &snapshot, &refusal), KAKEYA_UNSUPPORTED);
    assert_non_null(strstr(refusal.message, "version 1"));
    memory_free(&snapshot);
    d.ops->cache_destroy(cache);
    tiny_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_change_no_bit),
        cmocka_unit_test(a_dropped_block_evicts_nothing),
        cmocka_unit_test(a_dropped_prompt_is_gone_or_known),
        cmocka_unit_test(segments_do_not_mix),
        cmocka_unit_test(refusals_change_no_cache),
        cmocka_unit_test(formats_do_not_meet),
        cmocka_unit_test(poison_does_not_spread),
        cmocka_unit_test(a_dropped_burst_leaves_no_trace),
        cmocka_unit_test(edited_snapshots_are_refused),
        cmocka_unit_test(tokens_of_snapshots_are_checked),
        cmocka_unit_test(old_snapshots_are_refused),
    };
    return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
