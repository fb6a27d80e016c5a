/* Sessions take their K/V memory with their first prompt: one that is only open has none, and waits for nobody. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fake_engine.h"
#include "session/session.h"

enum { PROMPT = 20 };

static void test_before_the_first_prompt(void **state) {
    (void)state;
    int32_t prompt[PROMPT];
    fake_prompt(prompt, PROMPT, 3, FAKE_VOCAB);
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *session = fake_session(engine, NULL), *copy = NULL, *other = fake_session(engine, NULL);
    assert_int_equal(kakeya_session_kv_bytes(session).total, 0);
    assert_int_equal(kakeya_session_reachable(session, prompt, PROMPT), 0);
    ok(kakeya_session_truncate(session, 0, error));
    ok(kakeya_session_fork(session, &copy, error));
    assert_int_equal(script.calls[FAKE_CREATE], 0);

    /* It is saved as any empty session is, and an empty one can be read back. */
    void *data = NULL, *after = NULL;
    size_t bytes = 0, bytes_after = 0;
    ok(session_to_memory(session, &data, &bytes, error));
    assert_int_equal(script.live_caches, 0);
    ok(kakeya_session_sync(session, NULL, 0, NULL, NULL, NULL, error));
    ok(session_to_memory(session, &after, &bytes_after, error));
    assert_int_equal(bytes, bytes_after);
    assert_memory_equal(data, after, bytes);
    ok(session_from_memory(other, data, bytes, error));
    free(data);
    free(after);

    ok(kakeya_session_park(copy, error));
    assert_true(kakeya_session_is_parked(copy));
    kakeya_session *const all[] = {session, copy, other};
    for (size_t i = 0; i < 3; i++) {
        ok(kakeya_session_sync(all[i], prompt, PROMPT, NULL, NULL, NULL, error));
        size_t n = 0;
        (void)kakeya_session_tokens(all[i], &n);
        assert_int_equal(n, PROMPT);
    }
    kakeya_session_close(copy);
    kakeya_session_close(other);
    close_all(session, engine, &script);
}

static void open_and_close(void *user) {
    kakeya_error error = {0};
    kakeya_session *session = fake_session(user, NULL), *copy = NULL;
    if (kakeya_session_fork(session, &copy, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    kakeya_session_close(session);
    kakeya_session_close(copy);
}

/* A forward holds the engine's turn: whoever needed it would wait here for ever. */
static void test_opening_waits_for_no_forward(void **state) {
    (void)state;
    int32_t prompt[PROMPT];
    fake_prompt(prompt, PROMPT, 3, FAKE_VOCAB);
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *session = fake_session(engine, NULL);
    script.on_forward = open_and_close;
    script.user = engine;
    ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
    assert_true(script.calls[FAKE_FORWARD] > 0);
    close_all(session, engine, &script);
}

/* ----------------------------------------------------------------------------------------------- several requests */

typedef struct late {
    int32_t prompt[PROMPT];
    kakeya_session *session;
    kakeya_request *request;
    size_t requests; /* of the first step */
} late;

static kakeya_request *submit(kakeya_session *session, const int32_t *prompt) {
    kakeya_request *request = NULL;
    kakeya_error error = {0};
    kakeya_request_options options;
    KAKEYA_INIT(&options);
    options.tokens = prompt;
    options.n_tokens = PROMPT;
    if (kakeya_session_submit(session, &options, &request, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    return request;
}

static bool submit_late(void *user) {
    late *l = user;
    if (!l->request) l->request = submit(l->session, l->prompt);
    return true;
}

static void tell(void *user, const kakeya_step *step) {
    late *l = user;
    if (!l->requests) l->requests = step->requests;
}

/* Who comes while another session gets its memory shares the forward with it. */
static void test_late_ones_share_the_forward(void **state) {
    (void)state;
    late l = {0};
    fake_prompt(l.prompt, PROMPT, 3, FAKE_VOCAB);
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    engine->on_step = tell;
    engine->step_user = &l;
    kakeya_session *session = fake_session(engine, NULL);
    l.session = fake_session(engine, NULL);
    script.on_create = submit_late;
    script.user = &l;
    ok(kakeya_session_sync(session, l.prompt, PROMPT, NULL, NULL, NULL, error));
    ok(kakeya_request_wait(l.request, NULL, error));
    assert_int_equal(l.requests, 2);
    kakeya_session_close(l.session);
    close_all(session, engine, &script);
}

static bool has_room_for_one(void *user) { return ((const fake_script *)user)->live_caches == 0; }

/* A prompt that finds no memory is refused; its session can be used once there is some. */
static void test_memory_for_one(void **state) {
    (void)state;
    int32_t prompt[PROMPT];
    fake_prompt(prompt, PROMPT, 3, FAKE_VOCAB);
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    script.on_create = has_room_for_one;
    script.user = &script;
    kakeya_session *first = fake_session(engine, NULL), *second = fake_session(engine, NULL);
    ok(kakeya_session_sync(first, prompt, PROMPT, NULL, NULL, NULL, error));
    assert_int_equal(kakeya_session_sync(second, prompt, PROMPT, NULL, NULL, NULL, NULL), KAKEYA_OUT_OF_MEMORY);
    kakeya_session_close(first);
    ok(kakeya_session_sync(second, prompt, PROMPT, NULL, NULL, NULL, error));
    close_all(second, engine, &script);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_the_first_prompt),
        cmocka_unit_test(test_opening_waits_for_no_forward),
        cmocka_unit_test(test_late_ones_share_the_forward),
        cmocka_unit_test(test_memory_for_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
