/* kakeya_session_cancel: from callbacks, from other threads, before anything runs. The session keeps a prefix of what
 * it was to hold, and goes on from there as if nothing had happened. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>

#include "fake_engine.h"
#include "kakeya_study.h"
#include "sweep.h"

enum { PROMPT = 150, NEW = 50 };

typedef struct variant {
    kakeya_mode mode;
    int draft_length;
} variant;

static const variant variants[] = {
    {KAKEYA_MODE_AR, 0},   {KAKEYA_MODE_SPECULATIVE, 0}, {KAKEYA_MODE_SPECULATIVE, 16},
    {KAKEYA_MODE_AUTO, 0}, {KAKEYA_MODE_NGRAM, 0},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static int32_t prompt[PROMPT], expected[FAKE_CONTEXT]; /* prompt and NEW tokens */

static kakeya_generate_options options_of(size_t v) {
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.mode = variants[v].mode;
    go.draft_length = variants[v].draft_length;
    go.ignore_stop_tokens = true;
    go.sampling.temperature = 0.5f;
    return go;
}

static fake_script script;
static kakeya_engine *engine;

static int setup(void **state) {
    (void)state;
    script = fake_script_default();
    script.draft_right = 0.9;
    engine =
        fake_engine(&script, (fake_engine_options){.vocab = 8192, .tokenizer = KAKEYA_MODELS "/demo/tokenizer.json"});
    fake_prompt(prompt, PROMPT, 3, 8192);
    kakeya_session *session = fake_session(engine, NULL);
    kakeya_generate_options go = options_of(0);
    go.max_tokens = NEW;
    ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
    ok(kakeya_session_generate(session, &go, NULL, error));
    size_t n;
    memcpy(expected, kakeya_session_tokens(session, &n), (PROMPT + NEW) * sizeof *expected);
    kakeya_session_close(session);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    close_all(NULL, engine, &script);
    return 0;
}

/* Generates until the timeline has all tokens, and compares. */
static void finish_and_compare(kakeya_session *session, size_t v) {
    size_t n;
    (void)kakeya_session_tokens(session, &n);
    if (n < PROMPT + NEW) {
        kakeya_generate_options go = options_of(v);
        go.max_tokens = (int)(PROMPT + NEW - n);
        kakeya_stats stats;
        KAKEYA_INIT(&stats);
        ok(kakeya_session_generate(session, &go, &stats, error));
        assert_int_equal(stats.finish, KAKEYA_FINISH_LENGTH);
    }
    assert_timeline(session, expected, PROMPT + NEW, "after the cancel");
}

/* A cancel that comes while nothing runs ends the next call before it computes anything, and that one alone. */
static void test_before_a_call(void **state) {
    (void)state;
    for (size_t v = 0; v < VARIANTS; v++) {
        kakeya_session *session = fake_session(engine, NULL);
        kakeya_generate_options go = options_of(v);
        kakeya_score_options score;
        KAKEYA_INIT(&score);
        kakeya_stats stats;
        KAKEYA_INIT(&stats);
        kakeya_error e = {0};
        size_t n;
        int forwards = script.calls[FAKE_FORWARD];
        kakeya_session_cancel(session);
        kakeya_session_cancel(session);
        assert_int_equal(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, &e), KAKEYA_CANCELLED);
        kakeya_session_cancel(session);
        assert_int_equal(kakeya_session_score(session, prompt, PROMPT, &score, &e), KAKEYA_CANCELLED);
        assert_int_equal(script.calls[FAKE_FORWARD], forwards);
        ok(kakeya_session_score(session, prompt, PROMPT, &score, error));

        ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
        kakeya_session_cancel(session); /* also where nothing is left to compute: the caller wants no answer */
        assert_int_equal(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, &e), KAKEYA_CANCELLED);
        assert_timeline(session, prompt, PROMPT, "cancelled sync");
        forwards = script.calls[FAKE_FORWARD];
        kakeya_session_cancel(session);
        ok(kakeya_session_generate(session, &go, &stats, error));
        assert_int_equal(stats.finish, KAKEYA_FINISH_CANCELLED);
        assert_int_equal(stats.completion_tokens, 0);
        assert_int_equal(script.calls[FAKE_FORWARD], forwards);
        (void)kakeya_session_tokens(session, &n);
        assert_int_equal(n, PROMPT);

        kakeya_session_cancel(session);
        kakeya_session_clear_cancel(session);
        finish_and_compare(session, v);
        kakeya_session_close(session);
    }
}

/* A call that ends by itself takes a late cancel with it; a fork takes none. */
static bool cancel_at_finish(void *user, const kakeya_event *event) {
    if (event->type == KAKEYA_EVENT_FINISH) kakeya_session_cancel(user);
    return true;
}

static void test_too_late(void **state) {
    (void)state;
    kakeya_session *session = fake_session(engine, NULL), *fork = NULL;
    kakeya_generate_options go = options_of(0);
    go.max_tokens = 10;
    go.on_event = cancel_at_finish;
    go.user = session;
    ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
    ok(kakeya_session_generate(session, &go, NULL, error));
    kakeya_session_cancel(session);
    ok(kakeya_session_fork(session, &fork, error));
    finish_and_compare(fork, 1);
    kakeya_session_clear_cancel(session);
    finish_and_compare(session, 1);
    kakeya_session_close(fork);
    kakeya_session_close(session);
}

typedef struct capture {
    kakeya_session *session;
    size_t cancel_after, n;
    int32_t token[NEW];
    bool finished;
} capture;

static bool cancel_at_token(void *user, const kakeya_event *event) {
    capture *c = user;
    if (event->type == KAKEYA_EVENT_FINISH) {
        assert_int_equal(event->finish, KAKEYA_FINISH_CANCELLED);
        c->finished = true;
        return true;
    }
    c->token[c->n++] = event->token;
    if (c->n == c->cancel_after) kakeya_session_cancel(c->session);
    return true;
}

/* From the callback, the answer ends at the same token in every mode; every token of the timeline has been delivered,
 * also one whose text was undecided. */
static void test_from_the_callback(void **state) {
    (void)state;
    for (size_t after = 1; after < 40; after *= sweep_short() ? 5 : 2) {
        size_t stopped_at = 0;
        for (size_t v = 0; v < VARIANTS; v++) {
            kakeya_session *session = fake_session(engine, NULL);
            capture c = {.session = session, .cancel_after = after};
            kakeya_generate_options go = options_of(v);
            go.on_event = cancel_at_token;
            go.user = &c;
            kakeya_stats stats;
            KAKEYA_INIT(&stats);
            ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
            ok(kakeya_session_generate(session, &go, &stats, error));
            assert_int_equal(stats.finish, KAKEYA_FINISH_CANCELLED);
            assert_true(c.finished);
            assert_in_range(c.n, after, after + 1);
            if (v) assert_int_equal(c.n, stopped_at);
            stopped_at = c.n;
            assert_int_equal(stats.completion_tokens, c.n);
            assert_memory_equal(c.token, expected + PROMPT, c.n * sizeof *expected);
            assert_memory_behind(session, 1);
            finish_and_compare(session, v);
            kakeya_session_close(session);
        }
    }
}

static bool cancel_in_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)total;
    if (done >= 60) kakeya_session_cancel(user);
    return true;
}

static void test_prompt(void **state) {
    (void)state;
    kakeya_session_options so;
    KAKEYA_INIT(&so);
    so.prompt_chunk_tokens = 30;
    kakeya_session *session = fake_session(engine, &so);
    kakeya_error e = {0};
    size_t reused;
    assert_int_equal(kakeya_session_sync(session, prompt, PROMPT, NULL, cancel_in_progress, session, &e),
                     KAKEYA_CANCELLED);
    assert_timeline(session, prompt, 60, "cancelled prompt");
    ok(kakeya_session_sync(session, prompt, PROMPT, &reused, NULL, NULL, error));
    assert_int_equal(reused, 60);
    finish_and_compare(session, 1);
    kakeya_session_close(session);
}

/* ------------------------------------------------------------------------------------------------- threads */

typedef struct nuisance {
    kakeya_session *session;
    atomic_bool over;
    uint64_t seed;
} nuisance;

static void *disturb(void *user) {
    nuisance *n = user;
    for (uint64_t i = 0; !atomic_load(&n->over); i++) {
        int wait = (int)(random_uniform_at(n->seed, i) * 3000);
        for (int k = 0; k < wait; k++) sched_yield();
        kakeya_session_cancel(n->session);
        if (i % 5 == 0) kakeya_session_clear_cancel(n->session);
    }
    return NULL;
}

/* Two sessions of one engine work while two threads cancel them at any moment: each gets there in the end, and the
 * tokens are those of an undisturbed session. */
static void *work(void *user) {
    nuisance *self = user;
    kakeya_error e = {0};
    size_t n = 0;
    for (int tries = 0; kakeya_session_sync(self->session, prompt, PROMPT, NULL, NULL, NULL, &e) != KAKEYA_OK; tries++)
        if (e.status != KAKEYA_CANCELLED || tries == 1000000) return "sync";
    for (int tries = 0; n < PROMPT + NEW; tries++) {
        kakeya_generate_options go = options_of(self->seed % VARIANTS);
        (void)kakeya_session_tokens(self->session, &n);
        go.max_tokens = (int)(PROMPT + NEW - n);
        if (go.max_tokens && kakeya_session_generate(self->session, &go, NULL, &e) != KAKEYA_OK) return "generate";
        if (tries == 1000000) return "no progress";
    }
    return NULL;
}

static void test_from_other_threads(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        nuisance workers[2];
        pthread_t threads[4];
        for (int i = 0; i < 2; i++) {
            workers[i] = (nuisance){.session = fake_session(engine, NULL), .seed = seed * 2 + (uint64_t)i};
            assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
            assert_int_equal(pthread_create(&threads[2 + i], NULL, disturb, &workers[i]), 0);
        }
        for (int i = 0; i < 2; i++) {
            void *failure;
            assert_int_equal(pthread_join(threads[i], &failure), 0);
            atomic_store(&workers[i].over, true);
            assert_int_equal(pthread_join(threads[2 + i], NULL), 0);
            if (failure) fail_msg("seed %d: %s", (int)workers[i].seed, (const char *)failure);
        }
        for (int i = 0; i < 2; i++) {
            assert_timeline(workers[i].session, expected, PROMPT + NEW, "disturbed");
            kakeya_session_close(workers[i].session);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_a_call),      cmocka_unit_test(test_too_late),
        cmocka_unit_test(test_from_the_callback),  cmocka_unit_test(test_prompt),
        cmocka_unit_test(test_from_other_threads),
    };
#ifdef __SANITIZE_THREAD__
    if (sweep_short()) cmocka_set_test_filter("*threads"); /* the others have one */
#endif
    return cmocka_run_group_tests(tests, setup, teardown);
}
