/* The prefix store: what later prompts may continue never changes an answer. On the demo model under every policy, and
 * on a toy model for the rules of its memory, random use against a naive reading, and many threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>

#include "serve/store_index.h"

#include "store_support.h"
#include "sweep.h"

/* ------------------------------------------------------------------------------------------------------ the index */

typedef struct listed {
    store_index_entry index; /* first */
    int32_t ids[300];
    size_t n;
    bool in, met;
} listed;

typedef struct listing {
    const int32_t *ids;
    size_t n, best;
} listing;

static size_t common(const listed *e, const int32_t *ids, size_t n) {
    size_t i = 0;
    while (i < n && i < e->n && e->ids[i] == ids[i]) i++;
    return i;
}

static size_t meet(void *user, store_index_entry *index) {
    listing *l = user;
    listed *e = (listed *)index;
    assert_true(e->in && !e->met); /* everyone once */
    e->met = true;
    size_t offer = common(e, l->ids, l->n);
    if (offer > l->best) l->best = offer;
    return offer;
}

/* The search finds what comparing with every entry finds, whatever comes and goes. */
static void test_index_against_every_entry(void **state) {
    (void)state;
    enum { ENTRIES = 60, STEPS = 4000 };
    static listed all[ENTRIES];
    memset(all, 0, sizeof all);
    const store_key seed_key = store_key_seed("model", 5);
    store_index *index = store_index_open();
    uint64_t at = 0;
#define draw(n) ((size_t)(random_uniform_at(17, at++) * (double)(n)))
    for (int step = 0; step < STEPS; step++) {
        listed *e = &all[draw(ENTRIES)];
        if (e->in) {
            store_index_remove(index, &e->index);
            e->in = false;
        } else {
            const listed *like = &all[draw(ENTRIES)];
            e->n = 1 + draw(300);
            size_t same = like->n ? draw(like->n + 1) : 0;
            for (size_t i = 0; i < e->n; i++) e->ids[i] = i < same ? like->ids[i] : (int32_t)draw(3);
            assert_true(store_index_add(index, &e->index, seed_key, e->ids, e->n));
            e->in = true;
        }
        const listed *like = &all[draw(ENTRIES)];
        int32_t ids[300];
        size_t n = draw(301), same = draw(like->n + 1);
        for (size_t i = 0; i < n; i++) ids[i] = i < same ? like->ids[i] : (int32_t)draw(3);
        listing l = {.ids = ids, .n = n};
        size_t best = 0;
        for (size_t i = 0; i < ENTRIES; i++) {
            all[i].met = false;
            if (all[i].in && common(&all[i], ids, n) > best) best = common(&all[i], ids, n);
        }
        store_index_search(index, seed_key, ids, n, meet, &l);
        if (l.best != best) fail_msg("step %d: the search finds %zu of %zu ids, there are %zu", step, l.best, n, best);
    }
#undef draw
    for (size_t i = 0; i < ENTRIES; i++)
        if (all[i].in) store_index_remove(index, &all[i].index);
    assert_int_equal(store_index_pages(index), 0);
    store_index_close(index);
}

static void test_keys(void **state) {
    (void)state;
    int32_t ids[200];
    fake_prompt(ids, 200, 3, 1000);
    store_key seed = store_key_seed("a", 1), other = store_key_seed("b", 1);
    assert_false(store_key_equal(store_key_of(seed, ids, 200), store_key_of(other, ids, 200)));
    for (size_t n = 0; n <= 200; n++) {
        store_key key = store_key_of(seed, ids, n);
        size_t whole = n / STORE_PAGE_TOKENS * STORE_PAGE_TOKENS;
        if (n > whole)
            assert_true(store_key_equal(key, store_key_extend(store_key_of(seed, ids, whole), ids + whole, n - whole)));
        for (size_t m = 0; m < n; m++) assert_false(store_key_equal(key, store_key_of(seed, ids, m)));
    }
}

/* -------------------------------------------------------------------------------------------------- the demo model */

/* Turns of two conversations behind one system turn, one of them said again with another end. Every answer is that of
 * a session of its own, and what the exactness rule allows is found. */
static void conversations_on(kakeya_engine *engine, const policy *p, float temperature) {
    enum { TURN = 50, TURNS = 2 };
    const size_t system_tokens = sweep_short() ? 140 : 260; /* several pages of the index, and a part of one */
    const int answer_tokens = sweep_short() ? 5 : 12;
    kakeya_session_options so = session_options();
    so.attention = p->attention;
    so.restore_layers = p->layers;
    so.window = 16;
    so.context_tokens = MOST_TOKENS;
    prefix_store *store = open_store(engine, &so, (store_options){.ram_bytes = (size_t)1 << 30});
    static request r, alone;
    bool native = p->attention == KAKEYA_ATTENTION_NATIVE;
    for (uint64_t talk = 0; talk < 2; talk++) {
        r.n_all = system_tokens;
        text_ids(r.ids, system_tokens, 1);
        size_t before = 0;
        for (int turn = 0; turn < TURNS; turn++) {
            size_t begin = r.n_all;
            text_ids(r.ids + begin, TURN, 10 * talk + (uint64_t)turn + 2);
            r.n = begin + TURN;
            alone = r;
            const size_t stops[] = {system_tokens, r.n - 4};
            serve(store, &r, stops, 2, answer_tokens, temperature);
            serve_alone(engine, &so, &alone, answer_tokens, temperature);
            assert_same(&r, &alone, p->name);
            /* all of the last turn but its newest token; under bounded policies its prompt's stable end */
            size_t least = talk + (uint64_t)turn == 0 ? 0 : turn == 0 ? system_tokens : native ? begin - 1 : before;
            if (r.hit.tokens < least)
                fail_msg("%s: talk %d, turn %d: %zu tokens found, at least %zu are there", p->name, (int)talk, turn,
                         r.hit.tokens, least);
            before = r.n - 4;
        }
        /* the last question again, with another end */
        r.n_all = r.n;
        text_ids(r.ids + r.n - 3, 3, 77);
        alone = r;
        serve(store, &r, NULL, 0, answer_tokens, temperature);
        serve_alone(engine, &so, &alone, answer_tokens, temperature);
        assert_same(&r, &alone, "another end");
        assert_true(r.hit.tokens >= before);
    }
    store_counts counts = counts_of(store);
    assert_int_equal(counts.takes, 2 * (TURNS + 1));
    assert_int_equal(counts.hits[STORE_HIT_NONE], 1);
    assert_int_equal(counts.evictions, 0);
    store_close(store, 0);
}

static void test_a_hit_never_changes_an_answer(void **state) {
    (void)state;
    kakeya_engine *engine = open_demo();
    /* a short run has native attention and one that restores everywhere; test_store_disk has the others */
    for (size_t p = 0; p < POLICIES; p += sweep_short() ? 3 : 1) {
        conversations_on(engine, &policies[p], p % 2 ? 1.0f : 0.0f);
    }
    size_t kv =
        kakeya_engine_memory(engine, KAKEYA_MEMORY_KV_FULL) + kakeya_engine_memory(engine, KAKEYA_MEMORY_KV_SLIDING);
    assert_int_equal(kv, 0);
    kakeya_engine_close(engine);
}

/* With reuse_any a bounded timeline goes on behind its answer. */
static void test_reuse_any(void **state) {
    (void)state;
    kakeya_engine *engine = open_demo();
    kakeya_session_options so = session_options();
    so.attention = KAKEYA_ATTENTION_RESTORED;
    so.window = 16;
    so.context_tokens = MOST_TOKENS;
    for (int any = 0; any < 2; any++) {
        prefix_store *store =
            open_store(engine, &so, (store_options){.ram_bytes = (size_t)1 << 30, .reuse_any = any == 1});
        static request r;
        r.n = 100;
        text_ids(r.ids, 100, 1);
        serve(store, &r, NULL, 0, 20, 0);
        text_ids(r.ids + r.n_all, 10, 2);
        r.n = r.n_all + 10;
        serve(store, &r, NULL, 0, 5, 0);
        assert_int_equal(r.hit.tokens, any ? 119 : 0);
        assert_int_equal(counts_of(store).live, any ? 1 : 0); /* memory for entries that serve nobody is given back */
        store_close(store, 0);
    }
    kakeya_engine_close(engine);
}

/* ---------------------------------------------------------------------------------------------------- the toy model */

/* Random conversations on a store that is always too small: every answer is that of a session of its own. */
static void random_use(int reach, size_t ram_bytes, uint64_t seed) {
    enum { TALKS = 8, REQUESTS = 120 };
    fake_script script = fake_script_default();
    script.truncate_reach = reach;
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    prefix_store *store = open_store(engine, &so, (store_options){.ram_bytes = ram_bytes, .max_live = 3});
    static request talks[TALKS], alone;
    memset(talks, 0, sizeof talks);
    uint64_t at = 0;
#define draw(n) ((size_t)(random_uniform_at(seed, at++) * (double)(n)))
    for (int i = 0; i < REQUESTS; i++) {
        request *r = &talks[draw(TALKS)];
        if (r->n_all < 70 || r->n_all > 300) {
            const request *like = &talks[draw(TALKS)];
            r->n_all = 30 + draw(100);
            fake_prompt(r->ids, r->n_all, 900 + draw(3), FAKE_VOCAB);
            if (like->n_all > r->n_all) memmove(r->ids, like->ids, draw(r->n_all) * sizeof *r->ids);
        } else if (draw(4) == 0) {
            r->n_all -= draw(60); /* an edited history */
        }
        size_t more = 1 + draw(30);
        fake_prompt(r->ids + r->n_all, more, at, FAKE_VOCAB);
        r->n = r->n_all + more;
        alone = *r;
        const size_t stops[] = {r->n / 2, r->n - 1};
        size_t n_stops = draw(3), tokens = 1 + draw(20);
        serve(store, r, stops, n_stops, (int)tokens, draw(2) ? 1 : 0);
        r->n_all = r->n; /* replaced below, by the same answer alone */
        (void)alone;
        kakeya_session *session = NULL;
        store_hit hit;
        ok(store_take(store, NULL, r->ids, r->n, draw(5) != 0, &session, &hit, error));
        assert_true(hit.tokens < r->n);
        ok(kakeya_session_sync(session, r->ids, r->n, NULL, NULL, NULL, error));
        request again = *r;
        answer(session, &again, 10, 0);
        serve_alone(engine, &so, &alone, 10, 0);
        assert_same(&again, &alone, "random use");
        *r = again;
        store_give(store, NULL, session, r->n);
        store_counts counts = counts_of(store);
        if (ram_bytes == 0) {
            assert_int_equal(counts.ram, 0);
            assert_true(counts.live <= 3);
        } else if (counts.live > 1) {
            assert_true(counts.ram_bytes <= ram_bytes);
        }
    }
#undef draw
    store_counts counts = counts_of(store);
    assert_true(counts.evictions > 0);
    assert_true(counts.hits[STORE_HIT_LIVE] > 0);
    if (ram_bytes) assert_true(counts.hits[STORE_HIT_RAM] > 0);
    store_close(store, 0);
    close_all(NULL, engine, &script);
}

static void test_random_use(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        random_use(-1, 0, seed);
        random_use(16, 0, seed);
        random_use(16, 20000, seed);
        random_use(-1, 60000, seed);
    }
}

/* Those that are used stay, those that are not go; relief closes everything where it must. */
static void test_what_is_given_up(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    script.truncate_reach = 16;
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    prefix_store *store = open_store(engine, &so, (store_options){.max_live = 4});
    static request r[6];
    for (uint64_t i = 0; i < 6; i++) {
        r[i].n = 100;
        fake_prompt(r[i].ids, 100, i, FAKE_VOCAB);
        serve(store, &r[i], NULL, 0, 5, 0);
        /* the first one goes on all the time */
        fake_prompt(r[0].ids + r[0].n_all, 3, i, FAKE_VOCAB);
        r[0].n = r[0].n_all + 3;
        serve(store, &r[0], NULL, 0, 5, 0);
        assert_int_equal(r[0].hit.source, STORE_HIT_LIVE);
        assert_int_equal(r[0].hit.tokens, r[0].n - 4);
    }
    assert_int_equal(counts_of(store).live, 4);
    assert_int_equal(counts_of(store).evictions, 2);
    size_t held = counts_of(store).ram_bytes;
    assert_true(store_relieve(store, 1) > 0);
    assert_int_equal(counts_of(store).live, 3);
    assert_true(store_relieve(store, held) > 0);
    assert_int_equal(counts_of(store).live, 0);
    assert_int_equal(counts_of(store).ram_bytes, 0);
    assert_int_equal(store_relieve(store, 1), 0);
    store_close(store, 0);
    close_all(NULL, engine, &script);
}

/* A session that lost its memory, or holds nothing, is no entry. */
static void test_what_cannot_be_kept(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    prefix_store *store = open_store(engine, &so, (store_options){.ram_bytes = (size_t)1 << 30});
    store_give(store, NULL, fake_session(engine, &so), 0);
    store_give(store, NULL, NULL, 0);
    kakeya_session *session = fake_session(engine, &so);
    store_checkpoint(store, NULL, session, STORE_PROMPT_END);
    request r = {.n = 50};
    fake_prompt(r.ids, 50, 1, FAKE_VOCAB);
    ok(kakeya_session_sync(session, r.ids, 50, NULL, NULL, NULL, error));
    script.fail_verb = FAKE_FORK;
    script.fail_after = script.calls[FAKE_FORK];
    store_checkpoint(store, NULL, session, STORE_PROMPT_END); /* no copy: no checkpoint, no harm */
    script.fail_after = -1;
    assert_int_equal(counts_of(store).checkpoints, 0);
    store_checkpoint(store, NULL, session, STORE_PROMPT_END);
    store_checkpoint(store, NULL, session, STORE_PROMPT_END); /* there already */
    assert_int_equal(counts_of(store).checkpoints, 1);
    /* cancelled in the meantime: the next request does not inherit that */
    kakeya_session_cancel(session);
    store_give(store, NULL, session, 50);
    assert_int_equal(counts_of(store).live, 1);
    serve(store, &r, NULL, 0, 3, 0);
    assert_int_equal(r.hit.tokens, 49);
    store_close(store, 0);
    close_all(NULL, engine, &script);
}

typedef struct worker {
    prefix_store *store;
    uint64_t seed;
} worker;

static void *work(void *user) {
    worker *w = user;
    request *r = calloc(1, sizeof *r);
    for (uint64_t i = 0; i < 40; i++) {
        double pick = random_uniform_at(w->seed, i);
        r->n = 80 + (size_t)(pick * 100);
        fake_prompt(r->ids, r->n, (uint64_t)(pick * 3), FAKE_VOCAB);
        const size_t stops[] = {70, r->n - 1};
        serve(w->store, r, stops, i % 3, 5, 0);
        if (i % 16 == 0) (void)store_relieve(w->store, 1000);
        (void)counts_of(w->store);
    }
    free(r);
    return NULL;
}

static void test_many_threads(void **state) {
    (void)state;
    enum { THREADS = 4 };
    fake_script script = fake_script_default();
    script.truncate_reach = 16;
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    prefix_store *store = open_store(engine, &so, (store_options){.ram_bytes = 100000});
    pthread_t threads[THREADS];
    worker workers[THREADS];
    for (uint64_t i = 0; i < THREADS; i++) {
        workers[i] = (worker){store, i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(counts_of(store).takes, THREADS * 40);
    store_close(store, 0);
    close_all(NULL, engine, &script);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index_against_every_entry),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_a_hit_never_changes_an_answer),
        cmocka_unit_test(test_reuse_any),
        cmocka_unit_test(test_random_use),
        cmocka_unit_test(test_what_is_given_up),
        cmocka_unit_test(test_what_cannot_be_kept),
        cmocka_unit_test(test_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
