/* Answers that are drafted from a text that the caller expects: the tokens are those of an answer without drafts,
 * whatever the text, and a text that is right saves forwards. For whole runs only;
 * test_decode stands in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "kakeya.h"
#include "scratch.h"

enum { PROMPT = 60, TOKENS = 60, FORMS = 6 };

static kakeya_engine *engine;
static kakeya_error error;

static int open_engine(void **state) {
    (void)state;
    kakeya_engine_options o;
    KAKEYA_INIT(&o);
    o.model = KAKEYA_MODELS "/demo";
    o.drafter = "none";
    o.threads = 2;
    return kakeya_engine_open(&o, &engine, NULL) == KAKEYA_OK ? 0 : -1;
}

static int close_engine(void **state) {
    (void)state;
    kakeya_engine_close(engine);
    return 0;
}

static kakeya_stats answer(kakeya_generate_options o, int pieces, int32_t *out) {
    kakeya_session *session = NULL;
    kakeya_stats all = {0}, stats;
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++) prompt[i] = 300 + 37 * i % 4000;
    assert_ok(kakeya_session_open(engine, NULL, &session, &error));
    assert_ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, &error));
    o.ignore_stop_tokens = true;
    o.answer_start = PROMPT;
    for (int i = 0; i < pieces; i++) {
        o.max_tokens = TOKENS / pieces;
        KAKEYA_INIT(&stats);
        assert_ok(kakeya_session_generate(session, &o, &stats, &error));
        all.verifier_forwards += stats.verifier_forwards;
        all.drafted_tokens += stats.drafted_tokens;
        all.prediction_drafted += stats.prediction_drafted;
        all.prediction_accepted += stats.prediction_accepted;
    }
    size_t n;
    const int32_t *tokens = kakeya_session_tokens(session, &n);
    assert_int_equal(n, PROMPT + TOKENS);
    memcpy(out, tokens + PROMPT, TOKENS * sizeof *out);
    kakeya_session_close(session);
    return all;
}

/* The right text; one with a token replaced, one with tokens missing, one with tokens more; another one; no tokens of
 * the vocabulary. */
static size_t form(int which, const int32_t *right, int32_t *out) {
    size_t n = TOKENS;
    memcpy(out, right, TOKENS * sizeof *out);
    switch (which) {
    case 1:
        out[10] ^= 1;
        break;
    case 2:
        n -= 5;
        memmove(out + 20, out + 25, (TOKENS - 25) * sizeof *out);
        break;
    case 3:
        n += 5;
        memmove(out + 25, out + 20, (TOKENS - 20) * sizeof *out);
        break;
    case 4:
        for (int i = 0; i < TOKENS; i++) out[i] = 1000 + i;
        break;
    case 5:
        for (int i = 0; i < TOKENS; i += 2) out[i] = i % 4 ? -1 : INT32_MAX;
        break;
    default:
        break;
    }
    return n;
}

static void test_same_tokens(void **state) {
    (void)state;
    for (int temperature = 0; temperature < 2; temperature++) {
        int32_t alone[TOKENS], out[TOKENS], text[TOKENS + 5];
        kakeya_generate_options plain;
        KAKEYA_INIT(&plain);
        plain.mode = KAKEYA_MODE_AR;
        plain.sampling.temperature = (float)temperature;
        plain.sampling.seed = 3;
        kakeya_stats ar = answer(plain, 1, alone);
        assert_int_equal(ar.prediction_drafted, 0);
        static const kakeya_mode modes[] = {KAKEYA_MODE_NGRAM, KAKEYA_MODE_AUTO, KAKEYA_MODE_AR};
        for (int m = 0; m < 3; m++) {
            for (int which = 0; which < FORMS; which++) {
                kakeya_generate_options o = plain;
                o.mode = modes[m];
                o.prediction = text;
                o.n_prediction = form(which, alone, text);
                kakeya_stats stats = answer(o, which % 2 ? 3 : 1, out);
                assert_memory_equal(out, alone, sizeof out);
                assert_true(stats.prediction_accepted <= stats.prediction_drafted);
                assert_true(stats.prediction_drafted <= stats.drafted_tokens);
                if (modes[m] == KAKEYA_MODE_AR) assert_int_equal(stats.prediction_drafted, 0);
                if (modes[m] != KAKEYA_MODE_NGRAM) continue;
                if (which < 4) assert_true(stats.prediction_accepted >= TOKENS / 2);
                if (which == 0) assert_int_equal(stats.prediction_accepted, stats.prediction_drafted);
                if (which == 0) assert_true(stats.verifier_forwards <= TOKENS / 4);
                if (which == 4) assert_int_equal(stats.prediction_accepted, 0);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_tokens)};
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
