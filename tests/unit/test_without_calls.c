/* Protects answers that cannot call tools: no such answer holds the token that begins a call, in any mode, however the
 * backend finds tokens, and it is otherwise the answer that it would be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "fake_engine.h"

/* One token more is never sampled, by whole rows, by leading logits and by the backend's own choice: the stream is that
 * of a bias that forbids it. */
static void test_without_calls(void **state) {
    (void)state;
    enum { PROMPT = 12, NEW = 120, CALL = 5 };
    static const kakeya_mode modes[] = {KAKEYA_MODE_AR, KAKEYA_MODE_SPECULATIVE, KAKEYA_MODE_NGRAM, KAKEYA_MODE_AUTO};
    static const kakeya_logit_bias never = {.token = CALL, .bias = -INFINITY};
    int32_t prompt[PROMPT], expected[PROMPT + NEW];
    fake_prompt(prompt, PROMPT, 3, FAKE_VOCAB);
    for (int greedy = 0; greedy < 2; greedy++) {
        int met = 0;
        for (int how = 0; how < 2 + 3 * 4; how++) { /* free; biased; then backends by modes */
            fake_script script = fake_script_default();
            kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
            engine->call_token = CALL;
            fake_backend.finds_argmax = how >= 2 && (how - 2) / 4 == 1;
            fake_backend.finds_leaders = how >= 2 && (how - 2) / 4 == 2;
            kakeya_session *session = fake_session(engine, NULL);
            kakeya_generate_options go;
            KAKEYA_INIT(&go);
            go.mode = how < 2 ? KAKEYA_MODE_AR : modes[(how - 2) % 4];
            go.max_tokens = NEW;
            go.ignore_stop_tokens = true;
            go.sampling.temperature = greedy ? 0 : 1.2f;
            go.sampling.seed = 11;
            go.without_calls = how >= 2;
            if (how == 1) {
                go.logit_bias = &never;
                go.n_logit_bias = 1;
            }
            ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
            ok(kakeya_session_generate(session, &go, NULL, error));
            size_t n;
            const int32_t *tokens = kakeya_session_tokens(session, &n);
            assert_int_equal(n, PROMPT + NEW);
            for (size_t i = PROMPT; i < n; i++) {
                met += how == 0 && tokens[i] == CALL;
                if (how) assert_int_not_equal(tokens[i], CALL);
            }
            if (how == 1) memcpy(expected, tokens, sizeof expected);
            if (how > 1) assert_memory_equal(tokens, expected, sizeof expected);
            close_all(session, engine, &script);
        }
        assert_true(met > 0);
    }
    fake_backend.finds_argmax = fake_backend.finds_leaders = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_without_calls)};
    return cmocka_run_group_tests_name("without calls", tests, NULL, NULL);
}
