/* Whatever fails, and wherever, a session holds a prefix of what it should, stays usable and gives its memory back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fake_engine.h"

/* Every verb fails at every call in turn. The session then holds a prefix of what it should, and goes on to the right
 * end. */
static void test_injected_failures(void **state) {
    (void)state;
    enum { PROMPT = 100, NEW = 40 };
    int32_t prompt[PROMPT], expected[PROMPT + NEW];
    fake_prompt(prompt, PROMPT, 77, FAKE_VOCAB);
    const int verbs[] = {FAKE_FORWARD, FAKE_COMMIT, FAKE_DRAFT, FAKE_TRUNCATE, FAKE_CREATE};
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.ignore_stop_tokens = true;
    go.mode = KAKEYA_MODE_SPECULATIVE;
    {
        fake_script script = fake_script_default();
        kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
        kakeya_session *session = fake_session(engine, NULL);
        go.max_tokens = NEW;
        ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
        ok(kakeya_session_generate(session, &go, NULL, error));
        memcpy(expected, session->timeline.tokens, sizeof expected);
        close_all(session, engine, &script);
    }
    for (size_t v = 0; v < sizeof verbs / sizeof verbs[0]; v++) {
        for (int after = 0; after < 12; after++) {
            fake_script script = fake_script_default();
            script.truncate_reach = verbs[v] == FAKE_CREATE ? 3 : -1; /* so that a sync has to make a new cache */
            kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
            kakeya_session *session = fake_session(engine, NULL);
            script.fail_verb = verbs[v];
            script.fail_after = script.calls[verbs[v]] + after;
            bool failed = false;
            size_t n;
            for (int step = 0; step < 3; step++) { /* prompt, answer, and the same prompt again */
                kakeya_error error = {0};
                go.max_tokens = NEW;
                kakeya_status status = step == 1 ? kakeya_session_generate(session, &go, NULL, &error)
                                                 : kakeya_session_sync(session, prompt, PROMPT - (step == 2) * 50, NULL,
                                                                       NULL, NULL, &error);
                if (status == KAKEYA_OK) continue;
                assert_int_equal(status, KAKEYA_BACKEND);
                assert_non_null(strstr(error.message, "injected failure"));
                failed = true;
                break;
            }
            if (!failed) assert_true(after > 0);
            const int32_t *tokens = kakeya_session_tokens(session, &n);
            assert_true(n <= PROMPT + NEW);
            assert_memory_equal(tokens, expected, n * sizeof *tokens);
            script.fail_after = -1;
            if (failed && n > PROMPT) { /* it can simply go on */
                go.max_tokens = (int)(PROMPT + NEW - n);
                if (go.max_tokens) ok(kakeya_session_generate(session, &go, NULL, error));
            } else {
                go.max_tokens = NEW;
                ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
                ok(kakeya_session_generate(session, &go, NULL, error));
            }
            assert_timeline(session, expected, PROMPT + NEW, "after a failure");
            close_all(session, engine, &script);
        }
    }
}

/* A cache that a dropped prompt has spoilt is replaced, and its tokens are computed again. */
static void test_spoilt_cache_is_replaced(void **state) {
    (void)state;
    enum { PROMPT = 30, MORE = 20 };
    int32_t prompt[PROMPT + MORE];
    fake_prompt(prompt, PROMPT + MORE, 5, FAKE_VOCAB);
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *session = fake_session(engine, NULL);
    size_t reused = 0;
    ok(kakeya_session_sync(session, prompt, PROMPT, &reused, NULL, NULL, error));
    int created = script.calls[FAKE_CREATE];
    script.spoilt = true;
    ok(kakeya_session_sync(session, prompt, PROMPT + MORE, &reused, NULL, NULL, error));
    assert_int_equal(reused, 0);
    assert_int_equal(script.calls[FAKE_CREATE], created + 1);
    assert_timeline(session, prompt, PROMPT + MORE, "after a spoilt cache");
    close_all(session, engine, &script);
}

static void test_memory_limit(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *session = fake_session(engine, NULL);
    assert_int_equal(mem_total(&engine->account), 0); /* a session has no memory before its first prompt */
    ok(kakeya_session_sync(session, NULL, 0, NULL, NULL, NULL, error));
    size_t needed = mem_total(&engine->account);
    assert_true(needed > 64);
    kakeya_session_close(session);
    for (size_t limit = 64; limit < needed; limit += 64) {
        session = fake_session(engine, NULL);
        engine->account.limit_bytes = limit;
        assert_int_equal(kakeya_session_sync(session, NULL, 0, NULL, NULL, NULL, NULL), KAKEYA_OUT_OF_MEMORY);
        kakeya_session_close(session);
        assert_int_equal(mem_total(&engine->account), 0);
    }
    engine->account.limit_bytes = 0;
    session = fake_session(engine, NULL);
    int32_t prompt[10];
    fake_prompt(prompt, 10, 7, FAKE_VOCAB);
    ok(kakeya_session_sync(session, prompt, 10, NULL, NULL, NULL, error));
    engine->account.limit_bytes = mem_total(&engine->account); /* enough to hold a prompt, not to decode */
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.max_tokens = 4;
    assert_int_equal(kakeya_session_generate(session, &go, NULL, NULL), KAKEYA_OUT_OF_MEMORY);
    engine->account.limit_bytes = 0;
    ok(kakeya_session_generate(session, &go, NULL, error));
    close_all(session, engine, &script);
}

/* The index of n-grams is for drafts alone: where there is no memory for it an answer goes on without them, with the
 * same tokens, and has them again once there is memory. So more memory is never worse than less. */
static void test_drafts_without_memory(void **state) {
    (void)state;
    enum { PROMPT = 100, NEW = 250, STEP = 128 }; /* index and tokens grow in the middle, behind 256 */
    const kakeya_mode modes[] = {KAKEYA_MODE_NGRAM, KAKEYA_MODE_AUTO};
    int32_t prompt[PROMPT], expected[PROMPT + NEW];
    fake_prompt(prompt, PROMPT, 77, FAKE_VOCAB);
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.ignore_stop_tokens = true;
    for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
        uint64_t most = 0;
        int answered = -1, without = 0, fewer = 0, failed = 0; /* -1: the first has no limit */
        go.mode = modes[m];
        for (size_t room = 0, last = 0; room <= last; room += room ? STEP : 1) { /* 0: no limit */
            fake_script script = fake_script_default();
            script.period = 5;
            kakeya_engine *engine = fake_engine(&script, (fake_engine_options){.no_drafter = true});
            kakeya_session *session = fake_session(engine, NULL);
            ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
            size_t held = mem_total(&engine->account), n;
            kakeya_stats stats;
            KAKEYA_INIT(&stats);
            kakeya_error why = {0};
            go.max_tokens = NEW;
            if (room) engine->account.limit_bytes = held + room;
            kakeya_status status = kakeya_session_generate(session, &go, &stats, &why);
            (void)kakeya_session_tokens(session, &n);
            if (status == KAKEYA_OK) {
                assert_int_equal(n, PROMPT + NEW);
                answered++;
                without += stats.drafted_tokens == 0;
                fewer += stats.drafted_tokens > 0 && stats.drafted_tokens < most;
            } else {
                if (status != KAKEYA_OUT_OF_MEMORY) fail_msg("%zu bytes: %s", room, why.message);
                if (answered > 0) fail_msg("mode %d: no answer with %zu bytes, but with fewer", modes[m], room);
                failed++;
            }
            if (!room) {
                most = stats.drafted_tokens;
                memcpy(expected, session->timeline.tokens, sizeof expected);
                last = atomic_load(&engine->account.peak_bytes) - held + STEP;
            }
            assert_timeline(session, expected, n, "with little memory");
            engine->account.limit_bytes = 0;
            ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
            ok(kakeya_session_generate(session, &go, &stats, error));
            assert_timeline(session, expected, PROMPT + NEW, "with memory again");
            assert_true(m == 1 || stats.drafted_tokens > 0); /* auto asks the clock whether drafts pay */
            close_all(session, engine, &script);
        }
        if (!failed || answered < 1 || (m == 0 && (!most || !without || !fewer)))
            fail_msg("mode %d: %d drafts; no answer %d times, an answer %d, no drafts %d, fewer %d", modes[m],
                     (int)most, failed, answered, without, fewer);
    }
}

static void lift_limit(void *user) { ((mem_account *)user)->limit_bytes = 0; }

/* Answers that do not fit together come one after the other, whatever it is that finds no memory: the first that is
 * done gives the others room. */
static void test_answers_without_memory(void **state) {
    (void)state;
    enum { SESSIONS = 3, PROMPT = 100, NEW = 250, LEAST = 4096, STEP = 512, MOST = 16384 };
    int32_t prompt[SESSIONS][PROMPT], expected[SESSIONS][PROMPT + NEW];
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.ignore_stop_tokens = true;
    go.max_tokens = NEW;
    go.mode = KAKEYA_MODE_NGRAM;
    uint64_t parkings = 0;
    for (size_t room = 0; room <= MOST; room += room ? STEP : LEAST) { /* 0: no limit */
        fake_script script = fake_script_default();
        script.period = 5;
        kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
        kakeya_session *session[SESSIONS];
        kakeya_request *request[SESSIONS];
        kakeya_request_options ask;
        KAKEYA_INIT(&ask);
        ask.generate = &go;
        ask.on_done = lift_limit;
        ask.done_user = &engine->account;
        for (int i = 0; i < SESSIONS; i++) {
            session[i] = fake_session(engine, NULL);
            fake_prompt(prompt[i], PROMPT, 100 + (uint64_t)i, FAKE_VOCAB);
            ok(kakeya_session_sync(session[i], prompt[i], PROMPT, NULL, NULL, NULL, error));
        }
        fake_hold hold;
        fake_hold_open(&hold, engine);
        fake_hold_begin(&hold);
        if (room) engine->account.limit_bytes = mem_total(&engine->account) + room;
        for (int i = 0; i < SESSIONS; i++) ok(kakeya_session_submit(session[i], &ask, &request[i], error));
        fake_hold_end(&hold);
        for (int i = 0; i < SESSIONS; i++) {
            kakeya_stats stats;
            KAKEYA_INIT(&stats);
            kakeya_error why = {0};
            if (kakeya_request_wait(request[i], &stats, &why) != KAKEYA_OK)
                fail_msg("%zu bytes: answer %d: %s", room, i, why.message);
            if (!room) memcpy(expected[i], session[i]->timeline.tokens, sizeof expected[i]);
            assert_timeline(session[i], expected[i], PROMPT + NEW, "with little memory");
            parkings += stats.waits;
        }
        fake_hold_close(&hold);
        for (int i = 1; i < SESSIONS; i++) kakeya_session_close(session[i]);
        close_all(session[0], engine, &script);
    }
    assert_true(parkings > 0);
}

/* Answers whose logits do not fit together are computed in smaller groups, down to one by one, with the same tokens. */
static void test_logits_without_memory(void **state) {
    (void)state;
    enum { SESSIONS = 4, PROMPT = 10, NEW = 3, END = PROMPT + 1 + NEW };
    enum { VOCAB = 4096, ROW = VOCAB * sizeof(float), SAMPLING = 4 * ROW };
    kakeya_generate_options first, answer;
    KAKEYA_INIT(&first);
    first.max_tokens = 1;
    KAKEYA_INIT(&answer);
    answer.mode = KAKEYA_MODE_AR;
    answer.ignore_stop_tokens = true;
    answer.max_tokens = NEW;
    answer.sampling.temperature = 1;
    answer.presence_penalty = 0.5f; /* whole rows of logits, and room to sample from one of them */
    kakeya_request_options ask;
    KAKEYA_INIT(&ask);
    ask.generate = &answer;
    /* Room behind what sessions hold (0: no limit), and the forwards of all: four together, in pairs, one by one. */
    const struct {
        size_t room;
        int forwards;
    } cases[] = {{0, NEW},
                 {SAMPLING + 12 * ROW, NEW},
                 {SAMPLING + 5 * ROW, 2 * NEW},
                 {SAMPLING + 3 * ROW + ROW / 2, SESSIONS * NEW}};
    int32_t expected[SESSIONS][END];
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        fake_script script = fake_script_default();
        kakeya_engine *engine = fake_engine(&script, (fake_engine_options){.vocab = VOCAB});
        kakeya_session *sessions[SESSIONS];
        kakeya_request *requests[SESSIONS];
        for (int i = 0; i < SESSIONS; i++) {
            int32_t prompt[PROMPT];
            sessions[i] = fake_session(engine, NULL);
            fake_prompt(prompt, PROMPT, 7 + (uint32_t)i, VOCAB);
            ok(kakeya_session_sync(sessions[i], prompt, PROMPT, NULL, NULL, NULL, error));
            ok(kakeya_session_generate(sessions[i], &first, NULL, error)); /* the prompt's row of logits goes */
        }
        fake_hold hold;
        fake_hold_open(&hold, engine);
        if (cases[c].room) engine->account.limit_bytes = mem_total(&engine->account) + cases[c].room;
        int forwards = script.calls[FAKE_FORWARD];
        fake_hold_begin(&hold);
        for (int i = 0; i < SESSIONS; i++) ok(kakeya_session_submit(sessions[i], &ask, &requests[i], error));
        fake_hold_end(&hold);
        for (int i = 0; i < SESSIONS; i++) ok(kakeya_request_wait(requests[i], NULL, error));
        assert_int_equal(script.calls[FAKE_FORWARD] - forwards, cases[c].forwards);
        for (int i = 0; i < SESSIONS; i++) {
            if (c == 0) memcpy(expected[i], sessions[i]->timeline.tokens, sizeof expected[i]);
            assert_timeline(sessions[i], expected[i], END, "with little memory");
        }
        engine->account.limit_bytes = 0;
        fake_hold_close(&hold);
        for (int i = 1; i < SESSIONS; i++) kakeya_session_close(sessions[i]);
        close_all(sessions[0], engine, &script);
    }
}

static void expect_refusal(kakeya_status status, const kakeya_error *error, const char *text) {
    assert_int_equal(status, KAKEYA_INVALID_ARGUMENT);
    if (!strstr(error->message, text)) fail_msg("'%s' does not name '%s'", error->message, text);
}

static void test_refusals_name_the_values(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){.no_drafter = true});
    kakeya_session *session = NULL;
    kakeya_session_options so;
    kakeya_error e = {0};
    KAKEYA_INIT(&so);
    so.context_tokens = FAKE_CONTEXT + 1;
    expect_refusal(kakeya_session_open(engine, &so, &session, &e), &e, "401");
    KAKEYA_INIT(&so);
    so.attention = KAKEYA_ATTENTION_RESTORED;
    expect_refusal(kakeya_session_open(engine, &so, &session, &e), &e, "f_theta");
    KAKEYA_INIT(&so);
    so.window = -1;
    expect_refusal(kakeya_session_open(engine, &so, &session, &e), &e, "window");
    KAKEYA_INIT(&so);
    so.sink = -2;
    expect_refusal(kakeya_session_open(engine, &so, &session, &e), &e, "sink");

    session = fake_session(engine, NULL);
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    expect_refusal(kakeya_session_generate(session, &go, NULL, &e), &e, "sync");
    const int32_t bad[] = {1, 2, FAKE_VOCAB};
    expect_refusal(kakeya_session_sync(session, bad, 3, NULL, NULL, NULL, &e), &e, "token 2 is 64");
    const int32_t negative[] = {-1};
    expect_refusal(kakeya_session_sync(session, negative, 1, NULL, NULL, NULL, &e), &e, "token 0 is -1");
    expect_refusal(kakeya_session_sync(session, NULL, 3, NULL, NULL, NULL, &e), &e, "NULL");
    ok(kakeya_session_sync(session, bad, 2, NULL, NULL, NULL, error));
    go.mode = KAKEYA_MODE_SPECULATIVE;
    expect_refusal(kakeya_session_generate(session, &go, NULL, &e), &e, "drafter");
    go.mode = KAKEYA_MODE_AUTO;
    go.draft_length = 17;
    expect_refusal(kakeya_session_generate(session, &go, NULL, &e), &e, "17");
    go.draft_length = 0;
    go.sampling.top_p = 2;
    expect_refusal(kakeya_session_generate(session, &go, NULL, &e), &e, "top_p");
    go.sampling.top_p = 1;
    const char *const stops[] = {"x"};
    go.stop_strings = stops;
    go.n_stop_strings = 1;
    expect_refusal(kakeya_session_generate(session, &go, NULL, &e), &e, "tokenizer");
    go.n_stop_strings = 0;
    go.max_tokens = 3;
    ok(kakeya_session_generate(session, &go, NULL, error)); /* refusals leave no trace */
    close_all(session, engine, &script);
}

/* A step that has no memory for all requests serves fewer of them, and all again once there is memory. */
static void test_steps_grow_again(void **state) {
    (void)state;
    enum { SESSIONS = 8, PROMPT = 5, NEW = 250, FITS = 3, ROUNDS = 50 };
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *session[SESSIONS];
    int32_t prompt[SESSIONS][PROMPT], expected[SESSIONS][NEW];
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.ignore_stop_tokens = true;
    go.mode = KAKEYA_MODE_AR;
    go.max_tokens = NEW;
    for (int s = 0; s < SESSIONS; s++) {
        session[s] = fake_session(engine, NULL);
        fake_prompt(prompt[s], PROMPT, 100 + (uint64_t)s, FAKE_VOCAB);
        ok(kakeya_session_sync(session[s], prompt[s], PROMPT, NULL, NULL, NULL, error));
        ok(kakeya_session_generate(session[s], &go, NULL, error));
        memcpy(expected[s], session[s]->timeline.tokens + PROMPT, sizeof expected[s]);
    }
    fake_hold hold;
    fake_hold_open(&hold, engine);
    for (int round = 0; round < ROUNDS; round++) {
        script.most_segments = round == 0 ? FITS : 0;
        script.max_segments_seen = 0;
        kakeya_request *request[SESSIONS];
        fake_hold_begin(&hold);
        for (int s = 0; s < SESSIONS; s++) {
            kakeya_request_options options;
            KAKEYA_INIT(&options);
            options.tokens = prompt[s];
            options.n_tokens = PROMPT;
            options.generate = &go;
            ok(kakeya_session_submit(session[s], &options, &request[s], error));
        }
        fake_hold_end(&hold);
        for (int s = 0; s < SESSIONS; s++) {
            ok(kakeya_request_wait(request[s], NULL, error));
            assert_memory_equal(session[s]->timeline.tokens + PROMPT, expected[s], sizeof expected[s]);
        }
        if (round == 0) {
            assert_in_range(script.max_segments_seen, 1, FITS);
            assert_in_range(script.refused_steps, 1, 16); /* each is tried for twice as long after the one before */
        } else if (script.max_segments_seen > FITS) {
            break;
        }
    }
    assert_in_range(script.max_segments_seen, FITS + 1, SESSIONS);
    fake_hold_close(&hold);
    for (int s = 1; s < SESSIONS; s++) kakeya_session_close(session[s]);
    close_all(session[0], engine, &script);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_injected_failures),     cmocka_unit_test(test_spoilt_cache_is_replaced),
        cmocka_unit_test(test_memory_limit),          cmocka_unit_test(test_logits_without_memory),
        cmocka_unit_test(test_drafts_without_memory), cmocka_unit_test(test_answers_without_memory),
        cmocka_unit_test(test_steps_grow_again),      cmocka_unit_test(test_refusals_name_the_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
