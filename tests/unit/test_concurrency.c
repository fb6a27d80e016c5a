/* Sessions on threads of their own: they say what they say alone, and no two threads meet in the same memory. The
 * second half is ThreadSanitizer's to find, under which `make test` runs this program as well. It sees the scalar
 * kernels and everything around all kernels; the vector kernels are compiled without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kakeya_study.h"
#include "scratch.h"
#include "session/session.h"

enum { PROMPT = 24, GENERATED = 10, FURTHER = 5, TOKENS = PROMPT + GENERATED + FURTHER };

static kakeya_error error;

typedef struct speaker {
    kakeya_engine *engine;
    kakeya_attention attention;
    kakeya_mode mode;
    uint64_t seed;
    int32_t said[TOKENS];
    kakeya_status status;
    kakeya_error error;
} speaker;

static kakeya_status generate(speaker *s, kakeya_session *session, int max_tokens) {
    kakeya_generate_options options;
    KAKEYA_INIT(&options);
    options.mode = s->mode;
    options.max_tokens = max_tokens;
    options.ignore_stop_tokens = true;
    options.sampling.temperature = 0.8f;
    options.sampling.seed = s->seed;
    return kakeya_session_generate(session, &options, NULL, &s->error);
}

/* A session's whole life: prompt, generation, a fork, a snapshot that another session goes on from. */
static kakeya_status speak_once(speaker *s) {
    kakeya_session *session = NULL, *fork = NULL, *restored = NULL;
    kakeya_session_options options;
    KAKEYA_INIT(&options);
    options.attention = s->attention;
    options.window = 18;
    options.context_tokens = 128;
    void *snapshot = NULL;
    size_t bytes = 0, n = 0;
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++) prompt[i] = 110 + (int32_t)(((uint64_t)i * 37 + s->seed * 11) % 150);
    kakeya_status status = kakeya_session_open(s->engine, &options, &session, &s->error);
    if (!status) status = kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, &s->error);
    if (!status) status = generate(s, session, GENERATED);
    if (!status) status = kakeya_session_fork(session, &fork, &s->error);
    if (!status) status = session_to_memory(fork, &snapshot, &bytes, &s->error);
    if (!status) status = kakeya_session_open(s->engine, &options, &restored, &s->error);
    if (!status) status = session_from_memory(restored, snapshot, bytes, &s->error);
    if (!status) status = generate(s, restored, FURTHER);
    if (!status) {
        const int32_t *tokens = kakeya_session_tokens(restored, &n);
        if (n == TOKENS && kakeya_session_kv_bytes(restored).total > 0) memcpy(s->said, tokens, sizeof s->said);
    }
    kakeya_free(snapshot);
    kakeya_session_close(restored);
    kakeya_session_close(fork);
    kakeya_session_close(session);
    return status;
}

static void *speak(void *user) {
    speaker *s = user;
    s->status = speak_once(s);
    return NULL;
}

static kakeya_engine *open_engine(const char *model, const char *drafter, const char *isa) {
    kakeya_engine *engine = NULL;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = model;
    options.drafter = drafter;
    options.backend = "cpu";
    kakeya_study_options study;
    KAKEYA_INIT(&study);
    study.cpu_isa = isa;
    options.study = &study;
    options.threads = 2;
    options.max_stall_ms = 1; /* snapshots in the smallest pieces */
    assert_ok(kakeya_engine_open(&options, &engine, &error));
    return engine;
}

static void assert_spoken(const speaker *s) {
    error = s->error;
    assert_ok(s->status);
    assert_int_not_equal(s->said[TOKENS - 1] + s->said[TOKENS - 2] + s->said[0], 0);
}

/* Two speakers at the same time say what they say one after the other. */
static void compare(speaker a, speaker b) {
    speaker alone[2] = {a, b}, together[2] = {a, b};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) speak(&alone[i]);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, speak, &together[i]), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 2; i++) {
        assert_spoken(&alone[i]);
        assert_spoken(&together[i]);
        assert_memory_equal(together[i].said, alone[i].said, sizeof alone[i].said);
    }
}

static const char tiny[] = KAKEYA_TEST_DATA "/golden/gemma4-tiny-moe";
static const char dense[] = KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense";
static const char drafter[] = KAKEYA_TEST_DATA "/golden/dflash-tiny";

static void two_sessions_of_one_engine(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine(tiny, NULL, "scalar");
    compare((speaker){.engine = engine, .mode = KAKEYA_MODE_NGRAM, .seed = 1},
            (speaker){.engine = engine, .mode = KAKEYA_MODE_AR, .attention = KAKEYA_ATTENTION_SINK_WINDOW, .seed = 2});
    kakeya_engine_close(engine);
}

/* What the control of draft lengths learns belongs to the engine. */
static void two_sessions_that_draft(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine(dense, drafter, "scalar");
    compare((speaker){.engine = engine, .mode = KAKEYA_MODE_AUTO, .seed = 3},
            (speaker){.engine = engine, .mode = KAKEYA_MODE_SPECULATIVE, .seed = 4});
    kakeya_engine_close(engine);
}

static void two_sessions_with_restoration(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine(KAKEYA_MODELS "/demo", NULL, NULL);
    compare((speaker){.engine = engine, .mode = KAKEYA_MODE_AUTO, .seed = 7},
            (speaker){
                .engine = engine, .mode = KAKEYA_MODE_SPECULATIVE, .attention = KAKEYA_ATTENTION_RESTORED, .seed = 8});
    kakeya_engine_close(engine);
}

static void two_engines(void **state) {
    (void)state;
    kakeya_engine *first = open_engine(tiny, NULL, "scalar"), *second = open_engine(tiny, NULL, NULL);
    compare((speaker){.engine = first, .mode = KAKEYA_MODE_AR, .seed = 5},
            (speaker){.engine = second, .mode = KAKEYA_MODE_AUTO, .seed = 6});
    kakeya_engine_close(first);
    kakeya_engine_close(second);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_sessions_of_one_engine),
        cmocka_unit_test(two_sessions_that_draft),
        cmocka_unit_test(two_sessions_with_restoration),
        cmocka_unit_test(two_engines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
