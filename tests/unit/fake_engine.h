/* An engine on the fake backend. */
#ifndef KAKEYA_TESTS_FAKE_ENGINE_H
#define KAKEYA_TESTS_FAKE_ENGINE_H

#include <semaphore.h>

#include "fake_backend.h"
#include "session/scheduler.h"

enum { FAKE_CONTEXT = 400, FAKE_STOP = 7, FAKE_BLOCK = 8 };

/* draft_right 0.6, no failures, truncation as far back as wanted. */
static inline fake_script fake_script_default(void) {
    return (fake_script){.draft_right = 0.6, .peak = 1, .fail_after = -1, .nan_at = -1, .truncate_reach = -1};
}

typedef struct fake_engine_options {
    int vocab; /* 0: FAKE_VOCAB */
    bool no_drafter, f_theta;
    int suppress;          /* > 0: this token is never sampled */
    const char *tokenizer; /* path */
} fake_engine_options;

static inline kakeya_engine *fake_engine(fake_script *script, fake_engine_options options) {
    kakeya_engine *engine = NULL;
    kakeya_error error = {0};
    engine_parts parts = {.ops = &fake_backend, .precision = KAKEYA_PRECISION_F32};
    parts.verifier = calloc(1, sizeof *parts.verifier);
    if (!options.no_drafter) parts.drafter = calloc(1, sizeof *parts.drafter);
    if (options.f_theta) parts.f_theta = calloc(1, sizeof *parts.f_theta);
    parts.verifier->config = (model_config){.layers = 2,
                                            .hidden = 3,
                                            .vocab = options.vocab ? options.vocab : FAKE_VOCAB,
                                            .max_context = FAKE_CONTEXT,
                                            .stop_tokens = {FAKE_STOP},
                                            .n_stop_tokens = 1,
                                            .suppress_tokens = {options.suppress},
                                            .n_suppress_tokens = options.suppress > 0};
    if (parts.drafter) parts.drafter->config.block_size = FAKE_BLOCK;
    if (options.tokenizer && tokenizer_open(options.tokenizer, &parts.text.tokens, &error) != KAKEYA_OK)
        fail_msg("%s", error.message);
    fake_next_script = script;
    if (engine_create(0, &engine, &error) != KAKEYA_OK || engine_complete(engine, &parts, &error) != KAKEYA_OK)
        fail_msg("%s", error.message);
    return engine;
}

static inline kakeya_session *fake_session(kakeya_engine *engine, const kakeya_session_options *options) {
    kakeya_session *session = NULL;
    kakeya_error error = {0};
    if (kakeya_session_open(engine, options, &session, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    return session;
}

/* A prompt of n tokens that depends on the seed. */
static inline void fake_prompt(int32_t *tokens, size_t n, uint64_t seed, int vocab) {
    for (size_t i = 0; i < n; i++) tokens[i] = (int32_t)(random_uniform_at(seed, i) * vocab);
}

/* Requests that are submitted while an engine is held meet in its next step, however long submitting them takes. */
typedef struct fake_hold {
    kakeya_session *session; /* of one token: its request is done without a forward */
    kakeya_request *request;
    sem_t held, go_on;
} fake_hold;

static inline void fake_hold_until_posted(void *user) {
    fake_hold *hold = user;
    (void)sem_post(&hold->held);
    while (sem_wait(&hold->go_on) != 0) continue;
}

/* Takes the memory of a session until fake_hold_close. */
static inline void fake_hold_open(fake_hold *hold, kakeya_engine *engine) {
    kakeya_error error = {0};
    *hold = (fake_hold){.session = fake_session(engine, NULL)};
    assert_int_equal(sem_init(&hold->held, 0, 0), 0);
    assert_int_equal(sem_init(&hold->go_on, 0, 0), 0);
    if (kakeya_session_sync(hold->session, (int32_t[]){1}, 1, NULL, NULL, NULL, &error) != KAKEYA_OK)
        fail_msg("%s", error.message);
}

/* The scheduler stands still when this returns: it takes what comes behind in one go. */
static inline void fake_hold_begin(fake_hold *hold) {
    kakeya_error error = {0};
    kakeya_request_options options;
    KAKEYA_INIT(&options);
    options.tokens = (int32_t[]){1};
    options.n_tokens = 1;
    options.on_done = fake_hold_until_posted;
    options.done_user = hold;
    if (kakeya_session_submit(hold->session, &options, &hold->request, &error) != KAKEYA_OK)
        fail_msg("%s", error.message);
    while (sem_wait(&hold->held) != 0) continue;
}

static inline void fake_hold_end(fake_hold *hold) {
    assert_int_equal(sem_post(&hold->go_on), 0);
    assert_int_equal(kakeya_request_wait(hold->request, NULL, NULL), KAKEYA_OK);
}

static inline void fake_hold_close(fake_hold *hold) {
    kakeya_session_close(hold->session);
    sem_destroy(&hold->held);
    sem_destroy(&hold->go_on);
}

/* ----------------------------------------------------------------------------------------------------- checks */

#define ok(call)                                                                                                       \
    do {                                                                                                               \
        kakeya_error error_ = {0};                                                                                     \
        kakeya_error *error = &error_;                                                                                 \
        if ((call) != KAKEYA_OK) fail_msg("%s: %s", #call, error_.message);                                            \
    } while (0)

static inline void close_all(kakeya_session *session, kakeya_engine *engine, const fake_script *script) {
    kakeya_session_close(session);
    if (engine->scheduler) scheduler_close(engine->scheduler);
    engine->scheduler = NULL;
    assert_int_equal(mem_total(&engine->account), 0);
    assert_int_equal(script->live_caches, 0);
    kakeya_engine_close(engine);
}

static inline void assert_timeline(const kakeya_session *session, const int32_t *expected, size_t n, const char *what) {
    size_t have;
    const int32_t *tokens = kakeya_session_tokens(session, &have);
    if (have != n) fail_msg("%s: %zu tokens where %zu are expected", what, have, n);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] != expected[i]) fail_msg("%s: token %zu is %d, expected %d", what, i, tokens[i], expected[i]);
}

/* The invariant that makes modes interchangeable: the memory holds everything but the last generated token. */
static inline void assert_memory_behind(const kakeya_session *session, int behind) {
    assert_int_equal(session->timeline.ops->cache_length(session->timeline.cache), (int)session->timeline.n - behind);
    assert_int_equal(session->timeline.ops->cache_pending(session->timeline.cache), 0);
}

#endif
