/* A server's way of using the prefix store, and the same without it. */
#ifndef KAKEYA_TESTS_STORE_SUPPORT_H
#define KAKEYA_TESTS_STORE_SUPPORT_H

#include "serve/store.h"

#include "fake_engine.h"

static inline kakeya_session_options session_options(void) {
    kakeya_session_options so;
    KAKEYA_INIT(&so);
    return so;
}

static inline prefix_store *open_store(kakeya_engine *engine, const kakeya_session_options *so, store_options options) {
    prefix_store *store = NULL;
    ok(store_open(engine, so, &options, &store, error));
    return store;
}

static inline store_counts counts_of(prefix_store *store) {
    store_counts counts;
    store_counts_get(store, &counts);
    return counts;
}

/* ------------------------------------------------------------------------------------------ one request on a store */

enum { MOST_TOKENS = 800 };

typedef struct request {
    int32_t ids[MOST_TOKENS]; /* the prompt, then the answer */
    size_t n, n_all;
    store_hit hit;
} request;

static inline void answer(kakeya_session *session, request *r, int tokens, float temperature) {
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.max_tokens = tokens;
    go.ignore_stop_tokens = true;
    go.sampling.temperature = temperature;
    go.sampling.seed = 5;
    ok(kakeya_session_generate(session, &go, NULL, error));
    const int32_t *ids = kakeya_session_tokens(session, &r->n_all);
    assert_true(r->n_all <= MOST_TOKENS);
    memcpy(r->ids, ids, r->n_all * sizeof *ids);
}

/* As a server does it: the prompt in pieces that end at checkpoints. */
static inline void serve(prefix_store *store, request *r, const size_t *stops, size_t n_stops, int tokens,
                         float temperature) {
    kakeya_session *session = NULL;
    ok(store_take(store, NULL, r->ids, r->n, true, &session, &r->hit, error));
    size_t held;
    const int32_t *begun = kakeya_session_tokens(session, &held);
    assert_in_range(held, r->hit.tokens, r->hit.tokens + 1); /* an answer's newest token is not computed yet */
    assert_true(held <= r->n && r->hit.tokens < r->n);
    for (size_t i = 0; i < held; i++) assert_int_equal(begun[i], r->ids[i]);
    for (size_t i = 0; i < n_stops; i++) {
        if (stops[i] <= held || stops[i] >= r->n) continue;
        ok(kakeya_session_sync(session, r->ids, stops[i], NULL, NULL, NULL, error));
        store_checkpoint(store, NULL, session, i ? STORE_PROMPT_END : STORE_SYSTEM_TURN);
    }
    size_t reused;
    ok(kakeya_session_sync(session, r->ids, r->n, &reused, NULL, NULL, error));
    if (n_stops == 0) assert_in_range(reused, r->hit.tokens, r->hit.tokens + 1); /* +1: the row is there, too */
    answer(session, r, tokens, temperature);
    store_give(store, NULL, session, r->n);
}

/* The same in a session of its own. */
static inline void serve_alone(kakeya_engine *engine, const kakeya_session_options *so, request *r, int tokens,
                               float temperature) {
    kakeya_session *session = fake_session(engine, so);
    ok(kakeya_session_sync(session, r->ids, r->n, NULL, NULL, NULL, error));
    answer(session, r, tokens, temperature);
    kakeya_session_close(session);
}

static inline void assert_same(const request *got, const request *expected, const char *what) {
    assert_int_equal(got->n_all, expected->n_all);
    for (size_t i = 0; i < got->n_all; i++)
        if (got->ids[i] != expected->ids[i])
            fail_msg("%s: token %zu of a prompt of %zu (%zu found in %d) is %d, alone it is %d", what, i, got->n,
                     got->hit.tokens, (int)got->hit.source, got->ids[i], expected->ids[i]);
}

/* -------------------------------------------------------------------------------------------------- the demo model */

typedef struct policy {
    const char *name;
    kakeya_attention attention;
    kakeya_restore_layers layers;
} policy;

static const policy policies[] = {
    {"native", KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING},
    {"sink-window", KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING},
    {"restored", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING},
    {"restored all", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL},
};
enum { POLICIES = sizeof policies / sizeof policies[0] };

static inline kakeya_engine *open_demo(void) {
    kakeya_engine_options eo;
    KAKEYA_INIT(&eo);
    eo.model = KAKEYA_MODELS "/demo";
    eo.threads = 1;
    kakeya_engine *engine = NULL;
    ok(kakeya_engine_open(&eo, &engine, error));
    return engine;
}

static inline void text_ids(int32_t *ids, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) ids[i] = 200 + (int32_t)(random_uniform_at(seed, i) * 3000);
}

#endif
