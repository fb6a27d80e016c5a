/* Protects: what a request hands over at the end of its prompt is the session as it would be had the prompt ended
 * there: under every attention policy a later prompt goes on from it with the tokens of a session of its own. The
 * request's own answer does not change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store_support.h"

enum { PROMPT = 500, MORE = 60, TOKENS = 10 };

static void fill(request *r, size_t shared, size_t salt) {
    r->n = PROMPT;
    r->ids[0] = 2;
    for (size_t i = 1; i < PROMPT + MORE; i++) r->ids[i] = (int32_t)(300 + (i * 37 + (i >= shared ? salt : 0)) % 4000);
}

static void take(void *user, kakeya_session *session) {
    kakeya_session **place = user;
    assert_null(*place);
    *place = session;
}

/* The prompt of r with a copy of its first `kept` tokens; the answer's tokens go to r. */
static kakeya_session *copied(kakeya_session *session, request *r, size_t kept) {
    kakeya_session *copy = NULL;
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.max_tokens = TOKENS;
    go.ignore_stop_tokens = true;
    go.sampling.seed = 5;
    kakeya_request_options ro;
    KAKEYA_INIT(&ro);
    ro.tokens = r->ids;
    ro.n_tokens = r->n;
    ro.generate = &go;
    ro.prompt_copy_tokens = kept;
    ro.on_prompt_copy = take;
    ro.prompt_copy_user = &copy;
    kakeya_request *asked = NULL;
    ok(kakeya_session_submit(session, &ro, &asked, error));
    ok(kakeya_request_wait(asked, NULL, error));
    const int32_t *ids = kakeya_session_tokens(session, &r->n_all);
    memcpy(r->ids, ids, r->n_all * sizeof *ids);
    return copy;
}

static void a_copy_is_a_prompt_that_ended_there(void **state) {
    (void)state;
    kakeya_engine *engine = open_demo();
    for (int p = 0; p < POLICIES; p++) {
        kakeya_session_options so = session_options();
        so.attention = policies[p].attention;
        so.restore_layers = policies[p].layers;
        request alone = {0};
        fill(&alone, PROMPT, 0);
        serve_alone(engine, &so, &alone, TOKENS, 0);
        static const size_t cut[] = {0, 1, 5, 16};
        for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
            size_t kept = PROMPT - cut[i], n;
            request first = {0}, later = {0}, expected = {0};
            fill(&first, PROMPT, 0);
            kakeya_session *session = fake_session(engine, &so);
            kakeya_session *copy = copied(session, &first, kept);
            assert_same(&first, &alone, policies[p].name);
            assert_non_null(copy);
            (void)kakeya_session_tokens(copy, &n);
            assert_int_equal(n, kept);
            fill(&later, kept, 11);
            fill(&expected, kept, 11);
            later.n = expected.n = PROMPT + MORE;
            size_t reused;
            ok(kakeya_session_sync(copy, later.ids, later.n, &reused, NULL, NULL, error));
            assert_int_equal(reused, kept);
            answer(copy, &later, TOKENS, 0);
            serve_alone(engine, &so, &expected, TOKENS, 0);
            assert_same(&later, &expected, policies[p].name);
            kakeya_session_close(copy);
            kakeya_session_close(session);
        }
    }
    kakeya_engine_close(engine);
}

static void where_there_is_no_copy(void **state) {
    (void)state;
    kakeya_engine *engine = open_demo();
    kakeya_session_options so = session_options();
    request r = {0};
    fill(&r, PROMPT, 0);
    kakeya_session *session = fake_session(engine, &so);
    assert_null(copied(session, &r, PROMPT - 17)); /* memory cannot go back so far */
    fill(&r, PROMPT, 0);
    assert_null(copied(session, &r, 0));
    kakeya_request_options ro;
    KAKEYA_INIT(&ro);
    ro.tokens = r.ids;
    ro.n_tokens = 4;
    ro.prompt_copy_tokens = 5;
    ro.on_prompt_copy = take;
    kakeya_request *asked = NULL;
    assert_int_equal(kakeya_session_submit(session, &ro, &asked, NULL), KAKEYA_INVALID_ARGUMENT);
    kakeya_session_close(session);
    kakeya_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_is_a_prompt_that_ended_there),
        cmocka_unit_test(where_there_is_no_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
