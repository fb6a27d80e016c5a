/* Protects: what `kakeya info --sessions` promises before anything is loaded is what an engine and its sessions then
 * hold, and as many sessions as it says fit into a memory limit, and no more.
 * Whole runs only: test_sizes has the formula. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kakeya_study.h"
#include "measure/session_room.h"
#include "scratch.h"
#include "session/session.h"
#include "sweep.h"

enum { TOKENS = 300, THREADS = 2, MOST = 20 };

static const kakeya_attention policies[] = {KAKEYA_ATTENTION_NATIVE, KAKEYA_ATTENTION_SINK_WINDOW,
                                            KAKEYA_ATTENTION_RESTORED};

static kakeya_engine_options demo_options(size_t memory_limit_bytes) {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = KAKEYA_MODELS "/demo";
    options.backend = "cpu";
    options.threads = THREADS;
    options.memory_limit_bytes = memory_limit_bytes;
    return options;
}

static kakeya_engine *demo(size_t memory_limit_bytes) {
    kakeya_engine *engine = NULL;
    kakeya_error error = {0};
    kakeya_engine_options options = demo_options(memory_limit_bytes);
    assert_ok(kakeya_engine_open(&options, &engine, &error));
    return engine;
}

static kakeya_description *demo_description(void) {
    kakeya_description *description = NULL;
    kakeya_error error = {0};
    kakeya_engine_options options = demo_options(0);
    assert_ok(kakeya_describe(&options, &description, &error));
    return description;
}

static kakeya_session_options session_options(kakeya_attention attention) {
    kakeya_session_options options;
    KAKEYA_INIT(&options);
    options.context_tokens = TOKENS + 1;
    options.attention = attention;
    return options;
}

/* A session that holds TOKENS tokens and has begun to answer. */
static kakeya_status use_session(kakeya_engine *engine, kakeya_attention attention, kakeya_session **out,
                                 kakeya_error *error) {
    kakeya_session_options options = session_options(attention);
    int32_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++) tokens[i] = 100 + i * 37 % 8000;
    kakeya_status status = kakeya_session_open(engine, &options, out, error);
    if (!status) status = kakeya_session_sync(*out, tokens, TOKENS - 1, NULL, NULL, NULL, error);
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.mode = KAKEYA_MODE_AR;
    generate.max_tokens = 2; /* the first comes from the prompt's logits, the second from a decode step */
    generate.ignore_stop_tokens = true;
    if (!status) status = kakeya_session_generate(*out, &generate, NULL, error);
    return status;
}

static size_t kv_held(const kakeya_session *session) {
    size_t held = 0;
    for (int kind = KAKEYA_MEMORY_KV_FULL; kind <= KAKEYA_MEMORY_KV_DRAFT; kind++)
        held += kakeya_session_memory(session, (kakeya_memory_kind)kind);
    return held;
}

/* Under a limit on weights forwards of prompts are longer, where it is large. */
static void test_bounded_weights(void **state) {
    const kakeya_description *description = *state;
    static const size_t limits[] = {(size_t)64 << 20, (size_t)700 << 20, (size_t)4 << 30};
    static const int least[] = {512, 513, 2048}, most[] = {512, 2047, 2048};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        kakeya_engine *engine = NULL;
        kakeya_error error = {0};
        kakeya_engine_options options = demo_options(0);
        options.weights_limit_bytes = limits[i];
        assert_ok(kakeya_engine_open(&options, &engine, &error));
        const int rows = engine->ops->model_prompt_chunk(engine->model);
        assert_int_equal(room_rows(description, ROOM_CPU, 0, THREADS, limits[i]), rows);
        if (rows < least[i] || rows > most[i]) fail_msg("a limit of %zu bytes: %d rows", limits[i], rows);
        kakeya_engine_close(engine);
    }
    assert_int_equal(room_rows(description, ROOM_CPU, 0, THREADS, 0), 512);
}

static void test_an_engine(void **state) {
    kakeya_description *description = *state;
    kakeya_engine *engine = demo(0);
    room_engine room = room_of_engine(description, ROOM_CPU, room_default_rows(ROOM_CPU, 0), THREADS, 1);
    assert_int_equal(room_default_rows(ROOM_CPU, 0), engine->ops->model_prompt_chunk(engine->model));
    /* RoPE tables come with the first session's memory */
    kakeya_session *session;
    kakeya_session_options options = session_options(KAKEYA_ATTENTION_NATIVE);
    assert_int_equal(kakeya_session_open(engine, &options, &session, NULL), KAKEYA_OK);
    assert_int_equal(kakeya_session_sync(session, NULL, 0, NULL, NULL, NULL, NULL), KAKEYA_OK);
    double held = (double)kakeya_engine_memory(engine, KAKEYA_MEMORY_WORKSPACE), estimated = (double)room.workspace;
    kakeya_session_close(session);
    if (estimated < 0.99 * held || estimated > 1.01 * held)
        fail_msg("the workspace is %.0f bytes, estimated %.0f", held, estimated);
    /* the files of the three models, but for their headers */
    const kakeya_facts facts = kakeya_description_facts(description);
    assert_int_equal(room.weights,
                     2 * (18884812 + facts.drafter_parameters + facts.f_theta_parameters) + facts.vision_bytes);
    kakeya_engine_close(engine);
}

static void test_a_session(void **state) {
    kakeya_description *description = *state;
    kakeya_engine *engine = demo(0);
    for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
        kakeya_session *session = NULL;
        kakeya_error error = {0};
        assert_ok(use_session(engine, policies[p], &session, &error));
        kakeya_session_options options = session_options(policies[p]);
        room_session room = room_of_session(description, ROOM_CPU, &options, TOKENS);
        if (kv_held(session) != room.kv)
            fail_msg("%s: %zu bytes of K/V, %zu promised", kakeya_attention_name(policies[p]), kv_held(session),
                     room.kv);
        size_t own = kakeya_session_memory(session, KAKEYA_MEMORY_WORKSPACE), slack = 256 << 10;
        if (own > room.own + slack || own + slack < room.own)
            fail_msg("%s: %zu bytes beside K/V, about %zu promised", kakeya_attention_name(policies[p]), own, room.own);
        kakeya_session_close(session);
    }
    kakeya_engine_close(engine);
}

/* With what an engine really holds, as many sessions fit as promised. */
static void test_sessions_that_fit(void **state) {
    kakeya_description *description = *state;
    kakeya_engine *engine = demo(0);
    room_engine held = {.workspace = kakeya_engine_memory(engine, KAKEYA_MEMORY_WORKSPACE)};
    kakeya_engine_close(engine);
    for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
        if (sweep_short() && policies[p] == KAKEYA_ATTENTION_SINK_WINDOW) continue; /* is restored without latents */
        kakeya_session_options options = session_options(policies[p]);
        room_session room = room_of_session(description, ROOM_CPU, &options, TOKENS);
        room_engine once = held;
        once.workspace += (size_t)1 << 20; /* RoPE tables of the first session, buffers of its sampling */
        size_t limit = once.workspace + room.shared + room.beginning + (room.kv + room.own) * 11 / 2;
        size_t promised = room_sessions(limit, &once, &room), opened = 0;
        assert_int_equal(promised, 5);
        engine = demo(limit);
        kakeya_session *sessions[MOST] = {NULL};
        kakeya_error error = {0};
        while (opened < MOST && use_session(engine, policies[p], &sessions[opened], &error) == KAKEYA_OK) opened++;
        assert_int_equal(error.status, KAKEYA_OUT_OF_MEMORY);
        if (opened != promised)
            fail_msg("%s: %zu sessions fit, %zu promised", kakeya_attention_name(policies[p]), opened, promised);
        for (int i = 0; i < MOST; i++) kakeya_session_close(sessions[i]);
        kakeya_engine_close(engine);
    }
}

static void test_edges(void **state) {
    kakeya_description *description = *state;
    kakeya_session_options options = session_options(KAKEYA_ATTENTION_NATIVE);
    room_session room = {.kv = 90, .own = 10, .beginning = 50};
    room_engine engine = {.weights = 1000, .workspace = 200};
    assert_int_equal(room_sessions(1249, &engine, &room), 0);
    assert_int_equal(room_sessions(1349, &engine, &room), 0);
    assert_int_equal(room_sessions(1350, &engine, &room), 1);
    assert_int_equal(room_sessions(2250, &engine, &room), 10);
    /* stores that grow take a GPU's memory by granules */
    room_session here = room_of_session(description, ROOM_CPU, &options, TOKENS);
    room_session there = room_of_session(description, ROOM_GPU, &options, TOKENS);
    assert_true(there.kv > here.kv);
    /* the prompt's rings stand beside the answer's only where eviction makes these smaller */
    assert_int_equal(here.beginning, 0);
    options.attention = KAKEYA_ATTENTION_SINK_WINDOW;
    assert_true(room_of_session(description, ROOM_CPU, &options, TOKENS).beginning > 0);
    assert_true(room_default_rows(ROOM_GPU, (size_t)141 << 30) > room_default_rows(ROOM_GPU, (size_t)24 << 30));
}

static int describe(void **state) {
    *state = demo_description();
    return 0;
}

static int close_description(void **state) {
    kakeya_description_close(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_engine), cmocka_unit_test(test_bounded_weights),
        cmocka_unit_test(test_a_session), cmocka_unit_test(test_sessions_that_fit),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, describe, close_description);
}
