/* Scores beside those of a reference in a file: the divergence of two forms of attention against arithmetic in the
 * test, a model against itself, and files that do not fit. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "golden.h"
#include "kakeya_study.h"
#include "session/engine.h"

enum { N = 60, PROMPT = 20 };

typedef struct scored {
    float *logits;
    float nll[N - 1], against_nll[N - 1], against_kl[N];
    uint8_t same[N];
} scored;

static kakeya_engine *engine;
static char file[64];
static int32_t tokens[N];

static kakeya_status score(kakeya_attention attention, size_t n, const char *out, const char *against, scored *s,
                           kakeya_error *problem) {
    kakeya_session_options options;
    KAKEYA_INIT(&options);
    options.attention = attention;
    options.sink = 1;
    options.window = 4;
    kakeya_session *session = NULL;
    REQUIRE_OK(kakeya_session_open(engine, &options, &session, error));
    kakeya_score_options how;
    KAKEYA_INIT(&how);
    how.prompt_length = PROMPT;
    how.nll = s->nll;
    how.logits = s->logits;
    how.file = out;
    how.against = against;
    how.against_nll = s->against_nll;
    how.against_kl = s->against_kl;
    how.against_top_same = s->same;
    kakeya_status status = kakeya_session_score(session, tokens, n, &how, problem);
    kakeya_session_close(session);
    return status;
}

static int set_up(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/golden/gemma4-tiny-dense", KAKEYA_TEST_DATA);
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = path;
    options.drafter = options.f_theta = "none";
    options.precision = KAKEYA_PRECISION_F32;
    options.threads = 1;
    REQUIRE_OK(kakeya_engine_open(&options, &engine, error));
    for (int i = 0; i < N; i++) tokens[i] = 5 + i * i * 7 % 300;
    snprintf(file, sizeof file, "/tmp/kakeya-against-%d.safetensors", (int)getpid());
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    kakeya_engine_close(engine);
    unlink(file);
    return 0;
}

static scored new_scored(void) {
    return (scored){.logits = malloc((size_t)N * (size_t)kakeya_engine_vocab_size(engine) * sizeof(float))};
}

/* The definition, in long doubles and without a common maximum: the tiny form's logits are small. */
static long double divergence(const float *reference, const float *other, int vocab) {
    long double p_sum = 0, q_sum = 0, kl = 0;
    for (int i = 0; i < vocab; i++) {
        p_sum += expl((long double)reference[i]);
        q_sum += expl((long double)other[i]);
    }
    for (int i = 0; i < vocab; i++) {
        long double p = expl((long double)reference[i]) / p_sum, q = expl((long double)other[i]) / q_sum;
        kl += p * logl(p / q);
    }
    return kl;
}

static int likeliest(const float *row, int vocab) {
    int best = 0;
    for (int i = 1; i < vocab; i++) best = row[i] > row[best] ? i : best;
    return best;
}

static void two_forms(void **state) {
    (void)state;
    int vocab = kakeya_engine_vocab_size(engine);
    scored exact = new_scored(), windowed = new_scored(), again = new_scored();
    REQUIRE_OK(score(KAKEYA_ATTENTION_NATIVE, N, file, NULL, &exact, error));
    REQUIRE_OK(score(KAKEYA_ATTENTION_SINK_WINDOW, N, NULL, file, &windowed, error));
    assert_memory_equal(windowed.against_nll, exact.nll, sizeof exact.nll);
    int differ = 0;
    for (int t = 0; t < N; t++) {
        const float *p = exact.logits + (size_t)t * (size_t)vocab, *q = windowed.logits + (size_t)t * (size_t)vocab;
        assert_true(fabsl((long double)windowed.against_kl[t] - divergence(p, q, vocab)) < 1e-5L);
        assert_int_equal(windowed.same[t], likeliest(p, vocab) == likeliest(q, vocab));
        if (t < PROMPT) assert_true(fabsf(windowed.against_kl[t]) < 1e-6f); /* prompt rows see everything */
        differ += windowed.against_kl[t] > 1e-3f;
    }
    assert_true(differ > 0);
    REQUIRE_OK(score(KAKEYA_ATTENTION_NATIVE, N, NULL, file, &again, error));
    for (int t = 0; t < N; t++) {
        assert_true(fabsf(again.against_kl[t]) < 1e-6f);
        assert_int_equal(again.same[t], 1);
    }
    free(exact.logits);
    free(windowed.logits);
    free(again.logits);
}

static void files_that_do_not_fit(void **state) {
    (void)state;
    scored s = new_scored();
    kakeya_error problem = {0};
    REQUIRE_OK(score(KAKEYA_ATTENTION_NATIVE, N, file, NULL, &s, error));
    assert_int_equal(score(KAKEYA_ATTENTION_NATIVE, N - 1, NULL, file, &s, &problem), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(problem.message, "the logits are [60, "));
    assert_int_equal(score(KAKEYA_ATTENTION_NATIVE, N, NULL, "/nonexistent/a.safetensors", &s, &problem), KAKEYA_IO);
    char weights[512];
    snprintf(weights, sizeof weights, "%s/golden/gemma4-tiny-dense/model.safetensors", KAKEYA_TEST_DATA);
    assert_int_equal(score(KAKEYA_ATTENTION_NATIVE, N, NULL, weights, &s, &problem), KAKEYA_FORMAT);
    assert_non_null(strstr(problem.message, "no tensor \"logits\""));
    free(s.logits);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_forms), cmocka_unit_test(files_that_do_not_fit)};
    return cmocka_run_group_tests_name("scores against a reference", tests, set_up, tear_down);
}
