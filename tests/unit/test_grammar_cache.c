/* Grammars that are compiled once and shared: within bounds, and never the wrong one; and the memory that answers under
 * grammars leave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "serve/grammar_cache.h"
#include "session/session.h"

static kakeya_tokenizer *demo;

static int open_tokenizer(void **state) {
    (void)state;
    return kakeya_tokenizer_open(KAKEYA_MODELS "/demo", &demo, NULL) == KAKEYA_OK ? 0 : -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    kakeya_tokenizer_close(demo);
    return 0;
}

static kakeya_grammar_options regex(const char *text) {
    kakeya_grammar_options o;
    KAKEYA_INIT(&o);
    o.kind = KAKEYA_GRAMMAR_REGEX;
    o.text = text;
    o.text_bytes = strlen(text);
    return o;
}

static cached_grammar *take(grammar_cache *cache, const kakeya_grammar_options *o) {
    cached_grammar *g = NULL;
    kakeya_error error = {0};
    if (grammar_cache_take(cache, demo, o, &g, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    assert_non_null(grammar_cache_grammar(g));
    return g;
}

static grammar_cache_counts counts_of(grammar_cache *cache) {
    grammar_cache_counts counts;
    grammar_cache_count(cache, &counts);
    return counts;
}

static void test_compiled_once(void **state) {
    (void)state;
    grammar_cache *cache = grammar_cache_open(4, 1 << 20);
    char text[] = "[a-z]{1,5}";
    kakeya_grammar_options o = regex(text);
    cached_grammar *first = take(cache, &o), *second = take(cache, &o);
    assert_ptr_equal(first, second);
    text[8] = '6'; /* what it was compiled from is not borrowed */
    cached_grammar *third = take(cache, &o);
    assert_ptr_not_equal(third, first);
    text[8] = '5';
    assert_ptr_equal(take(cache, &o), first);
    grammar_cache_counts counts = counts_of(cache);
    assert_int_equal(counts.compiled, 2);
    assert_int_equal(counts.hits, 2);
    assert_int_equal(counts.entries, 2);
    assert_true(counts.bytes >= kakeya_grammar_bytes(grammar_cache_grammar(first)) +
                                    kakeya_grammar_bytes(grammar_cache_grammar(third)));
    for (int i = 0; i < 3; i++) grammar_cache_give(first);
    grammar_cache_give(third);
    grammar_cache_give(NULL);
    grammar_cache_clear(cache);
    counts = counts_of(cache);
    assert_int_equal(counts.entries + counts.bytes, 0);
    grammar_cache_close(cache);
}

/* Every option is a part of what a grammar is found by. */
static void test_options_differ(void **state) {
    (void)state;
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
                                "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";
    static const char *const names[] = {"f", "g"};
    grammar_cache *cache = grammar_cache_open(64, 64 << 20);
    kakeya_grammar_options o[10];
    for (int i = 0; i < 10; i++) {
        KAKEYA_INIT(&o[i]);
        o[i].calls = KAKEYA_CALLS_AUTO;
        o[i].tools = tools;
        o[i].tools_bytes = sizeof tools - 1;
    }
    o[1].calls = KAKEYA_CALLS_REQUIRED;
    o[2].tool_names = names;
    o[2].n_tool_names = 1;
    o[3].tool_names = names + 1;
    o[3].n_tool_names = 1;
    o[4].tool_names = names;
    o[4].n_tool_names = 2;
    o[5].max_calls = 3;
    o[6].loosen = true;
    o[7].thinking = true;
    o[8].thinking = true;
    o[8].thinking_tokens = 7;
    o[9].kind = KAKEYA_GRAMMAR_JSON_OBJECT;
    cached_grammar *g[10];
    for (int i = 0; i < 10; i++) {
        g[i] = take(cache, &o[i]);
        for (int k = 0; k < i; k++) assert_ptr_not_equal(g[i], g[k]);
    }
    for (int i = 0; i < 10; i++) {
        assert_ptr_equal(take(cache, &o[i]), g[i]);
        grammar_cache_give(g[i]);
        grammar_cache_give(g[i]);
    }
    assert_int_equal(counts_of(cache).compiled, 10);
    grammar_cache_close(cache);
}

static void test_bounds(void **state) {
    (void)state;
    grammar_cache *cache = grammar_cache_open(3, 64 << 20);
    char text[5][32];
    cached_grammar *held = NULL;
    for (int i = 0; i < 5; i++) {
        snprintf(text[i], sizeof text[i], "x{%d}y", i + 1);
        kakeya_grammar_options o = regex(text[i]);
        cached_grammar *g = take(cache, &o);
        if (i == 0)
            held = g; /* it lives on, though it is not kept */
        else
            grammar_cache_give(g);
        o = regex(text[1]); /* used again and again, so it stays */
        if (i) grammar_cache_give(take(cache, &o));
    }
    grammar_cache_counts counts = counts_of(cache);
    assert_int_equal(counts.entries, 3);
    assert_int_equal(counts.compiled, 5);
    assert_true(kakeya_grammar_bytes(grammar_cache_grammar(held)) > 0);
    kakeya_grammar_options o = regex(text[1]);
    grammar_cache_give(take(cache, &o));
    assert_int_equal(counts_of(cache).compiled, 5);
    o = regex(text[0]);
    cached_grammar *again = take(cache, &o);
    assert_ptr_not_equal(again, held);
    assert_int_equal(counts_of(cache).compiled, 6);
    grammar_cache_give(again);
    grammar_cache_give(held);
    grammar_cache_close(cache);

    size_t bytes = counts.bytes / 3; /* about one of them */
    cache = grammar_cache_open(64, 2 * bytes);
    for (int i = 0; i < 5; i++) {
        o = regex(text[i]);
        grammar_cache_give(take(cache, &o));
        assert_true(counts_of(cache).bytes <= 2 * bytes);
    }
    assert_int_equal(counts_of(cache).compiled, 5);
    grammar_cache_close(cache);
    cache = grammar_cache_open(64, 1); /* too large to be kept, and good for its answer all the same */
    o = regex(text[0]);
    grammar_cache_give(take(cache, &o));
    assert_int_equal(counts_of(cache).entries, 0);
    grammar_cache_close(cache);
}

/* A refusal is kept as a grammar is: it is told again in the same words, without another look, within the same bounds.
 */
static void test_refused(void **state) {
    (void)state;
    static const char *const wrong[] = {"(", "a{3,2}", "[", "(?=a)", "x**("};
    grammar_cache *cache = grammar_cache_open(2, 1 << 20);
    for (int i = 0; i < 5; i++) {
        kakeya_error first = {0};
        kakeya_status first_status = KAKEYA_OK;
        for (int again = 0; again < 3; again++) {
            kakeya_grammar_options o = regex(wrong[i]);
            cached_grammar *g = NULL;
            kakeya_error error = {0};
            kakeya_status status = grammar_cache_take(cache, demo, &o, &g, again == 1 ? NULL : &error);
            assert_int_not_equal(status, KAKEYA_OK);
            assert_null(g);
            if (again == 0) first = error, first_status = status;
            if (again == 2) {
                assert_string_equal(error.message, first.message);
                assert_int_equal(status, first_status);
            }
        }
        assert_true(first.message[0] != '\0');
        assert_int_equal(counts_of(cache).refused, i + 1);
        assert_int_equal(counts_of(cache).hits, 2 * (i + 1));
    }
    grammar_cache_counts counts = counts_of(cache);
    assert_int_equal(counts.compiled, 0);
    assert_int_equal(counts.entries, 2);
    kakeya_grammar_options o = regex("ab");
    cached_grammar *good = take(cache, &o); /* they have no place of their own */
    assert_int_equal(counts_of(cache).entries, 2);
    grammar_cache_give(good);
    grammar_cache_clear(cache);
    assert_int_equal(counts_of(cache).bytes, 0);
    grammar_cache_close(cache);
}

enum { THREADS = 4, ROUNDS = 200 };

static void *use(void *user) {
    grammar_cache *cache = user;
    for (int i = 0; i < ROUNDS; i++) {
        char text[32];
        snprintf(text, sizeof text, "z{%d}", 1 + i % 7);
        kakeya_grammar_options o = regex(text);
        cached_grammar *g = NULL;
        if (grammar_cache_take(cache, demo, &o, &g, NULL) != KAKEYA_OK) return user;
        if (kakeya_grammar_bytes(grammar_cache_grammar(g)) == 0) return user;
        grammar_cache_give(g);
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    grammar_cache *cache = grammar_cache_open(3, 1 << 20);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, use, cache), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    grammar_cache_counts counts = counts_of(cache);
    assert_int_equal(counts.hits + counts.compiled, THREADS * ROUNDS);
    assert_int_equal(counts.entries, 3);
    grammar_cache_close(cache);
}

/* -------------------------------------------------------------------------------------- memory that answers leave */

enum { WANTED = 256 << 10 }; /* by another session: less than what trying tokens takes */

/* Whether somebody finds memory where all but a page is taken. */
static bool finds_memory(kakeya_engine *engine) {
    mem_account other;
    mem_account_init(&other, &engine->account, 0);
    engine->account.limit_bytes = mem_total(&engine->account) + 4096;
    void *memory = mem_alloc(&other, MEM_KV_FULL, WANTED);
    engine->account.limit_bytes = 0;
    mem_free(memory);
    return memory != NULL;
}

typedef struct watched {
    kakeya_engine *engine;
    char text[64];
    bool found;
} watched;

static bool watch(void *user, const kakeya_event *event) {
    watched *w = user;
    if (event->type != KAKEYA_EVENT_TOKEN || !event->text) return true;
    assert_true(strlen(w->text) + event->text_bytes < sizeof w->text);
    strncat(w->text, event->text, event->text_bytes);
    w->found |= finds_memory(w->engine);
    return true;
}

static watched answer(kakeya_engine *engine, const kakeya_grammar *g) {
    watched w = {.engine = engine};
    kakeya_error error = {0};
    kakeya_session *session = NULL;
    kakeya_session_options session_options;
    KAKEYA_INIT(&session_options);
    session_options.context_tokens = 64;
    const int32_t prompt[] = {2, 300, 301};
    kakeya_generate_options o;
    KAKEYA_INIT(&o);
    o.grammar = g;
    o.max_tokens = 24;
    o.on_event = watch;
    o.user = &w;
    if (kakeya_session_open(engine, &session_options, &session, &error) != KAKEYA_OK ||
        kakeya_session_sync(session, prompt, 3, NULL, NULL, NULL, &error) != KAKEYA_OK ||
        kakeya_session_generate(session, &o, NULL, &error) != KAKEYA_OK)
        fail_msg("%s", error.message);
    kakeya_session_close(session);
    return w;
}

static void test_memory_for_others(void **state) {
    (void)state;
    kakeya_engine_options options;
    kakeya_engine *engine = NULL;
    kakeya_grammar *g = NULL;
    kakeya_error error = {0};
    KAKEYA_INIT(&options);
    options.model = KAKEYA_MODELS "/demo";
    options.threads = 1;
    if (kakeya_engine_open(&options, &engine, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    kakeya_grammar_options o = regex("[a-c]{6}[0-9]{3}");
    if (kakeya_grammar_open(kakeya_engine_tokenizer(engine), &o, &g, &error) != KAKEYA_OK)
        fail_msg("%s", error.message);
    while (finds_memory(engine)) { /* what else an engine can do without */
    }
    const watched first = answer(engine, g);
    assert_int_equal(strlen(first.text), 9);
    assert_false(first.found); /* it was in use */
    size_t held = kakeya_engine_memory(engine, KAKEYA_MEMORY_WORKSPACE);
    assert_true(finds_memory(engine));
    assert_true(held - kakeya_engine_memory(engine, KAKEYA_MEMORY_WORKSPACE) >= WANTED);
    assert_false(finds_memory(engine)); /* it is gone */
    const watched second = answer(engine, g);
    assert_string_equal(second.text, first.text);
    assert_true(finds_memory(engine));
    kakeya_grammar_close(g);
    kakeya_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compiled_once), cmocka_unit_test(test_options_differ),
        cmocka_unit_test(test_bounds),        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_memory_for_others),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
