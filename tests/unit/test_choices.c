/* What a caller may ask about and of the choice of tokens: log-probabilities, biases, masks. All of them leave the
 * stream the same for every mode and draft length, and log-probabilities are those of a double-precision softmax. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "decode/log_probabilities.h"
#include "fake_engine.h"
#include "kakeya_study.h"
#include "sweep.h"

static const double accuracy = 4e-6; /* as kakeya.h promises */

/* ------------------------------------------------------------------------------------------------- one row */

static double reference_log_sum(const float *row, int vocab) {
    double maximum = -INFINITY, sum = 0;
    for (int i = 0; i < vocab; i++) maximum = fmax(maximum, (double)row[i]);
    for (int i = 0; i < vocab; i++) sum += exp((double)row[i] - maximum);
    return maximum + log(sum);
}

static void assert_close(const char *what, uint64_t seed, double found, double expected) {
    if (!(fabs(found - expected) <= accuracy))
        fail_msg("%s, seed %d: log-probability %.9f, expected %.9f", what, (int)seed, found, expected);
}

/* Flat, peaked, wide and tied rows of all sizes up to the family's vocabulary. */
static void test_rows(void **state) {
    (void)state;
    enum { MOST = 262144 };
    static float row[MOST];
    static const int vocabs[] = {1, 15, 64, 1000, 8192, MOST};
    for (uint64_t seed = 0; seed < 60; seed++) {
        int vocab = vocabs[seed % 6];
        double width = (double[]){0, 1, 8, 40, 200}[seed % 5];
        for (int i = 0; i < vocab; i++) row[i] = (float)(random_uniform_at(seed, (uint64_t)i) * width);
        if (seed % 3 == 1) row[vocab / 2] += 30;
        if (seed % 4 == 2 && vocab > 1) row[0] = -INFINITY;
        if (seed % 7 == 3)
            for (int i = 0; i < vocab; i++) row[i] = rintf(row[i]); /* ties */
        double log_sum = reference_log_sum(row, vocab);
        int32_t token = (int32_t)(random_uniform_at(seed, 1u << 30) * vocab);
        token_log_probabilities found;
        log_probabilities_of_row(row, vocab, token, KAKEYA_MAX_TOP_LOG_PROBABILITIES, &found);
        if (isinf(row[token]))
            assert_true(found.chosen == -INFINITY);
        else
            assert_close("the token", seed, found.chosen, (double)row[token] - log_sum);
        int n_top = vocab < KAKEYA_MAX_TOP_LOG_PROBABILITIES ? vocab : KAKEYA_MAX_TOP_LOG_PROBABILITIES;
        assert_int_equal(found.n_top, n_top);
        for (int i = 0; i < n_top; i++) {
            const kakeya_log_probability *t = &found.top[i];
            if (!isinf(row[t->token]))
                assert_close("a leader", seed, t->log_probability, (double)row[t->token] - log_sum);
            int before = 0; /* tokens in front of it by the order of logits, then ids */
            for (int j = 0; j < vocab; j++)
                before += row[j] > row[t->token] || (row[j] == row[t->token] && j < t->token);
            assert_int_equal(before, i);
        }
    }
}

/* --------------------------------------------------------------------------------------------------- streams */

typedef struct variant {
    kakeya_mode mode;
    int draft_length;
} variant;

static const variant variants[] = {
    {KAKEYA_MODE_AR, 0},   {KAKEYA_MODE_SPECULATIVE, 0},  {KAKEYA_MODE_SPECULATIVE, 1}, {KAKEYA_MODE_SPECULATIVE, 3},
    {KAKEYA_MODE_AUTO, 0}, {KAKEYA_MODE_SPECULATIVE, 16}, {KAKEYA_MODE_NGRAM, 16},
};
enum { VARIANTS = sizeof variants / sizeof variants[0], PROMPT = 40, NEW = 90 };

/* What came out of one generation. */
typedef struct stream {
    size_t n;
    int32_t token[NEW];
    double log_probability[NEW];
    int n_top[NEW];
    kakeya_log_probability top[NEW][KAKEYA_MAX_TOP_LOG_PROBABILITIES];
    size_t masks; /* calls of the mask */
    size_t masked_at;
} stream;

static bool record(void *user, const kakeya_event *event) {
    stream *s = user;
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    assert_true(s->n < NEW);
    s->token[s->n] = event->token;
    s->log_probability[s->n] = event->log_probability;
    s->n_top[s->n] = (int)event->n_top;
    memcpy(s->top[s->n++], event->top, event->n_top * sizeof *event->top);
    return true;
}

/* A third of the tokens is forbidden, another third behind every token; at every tenth position all are allowed. */
static bool forbidden(const int32_t *tokens, size_t n, int32_t token) {
    return n % 10 != 0 && (token + tokens[n - 1] + (int32_t)n) % 3 == 0;
}

static bool some_mask(void *user, const int32_t *tokens, size_t n, uint32_t *allowed, size_t n_words) {
    stream *s = user;
    assert_int_equal(n_words, (FAKE_VOCAB + 31) / 32);
    for (size_t i = 0; i < n_words; i++) assert_int_equal(allowed[i], 0);
    if (s->masks++) assert_int_equal(n, s->masked_at + 1); /* once for each position, in order */
    assert_int_equal(tokens[n - 1], s->n ? s->token[s->n - 1] : tokens[n - 1]);
    s->masked_at = n;
    if (n % 10 == 0) return false;
    for (int32_t t = 0; t < FAKE_VOCAB; t++)
        if (!forbidden(tokens, n, t)) allowed[t / 32] |= 1u << (t % 32);
    return true;
}

typedef struct wish {
    float temperature;
    int top; /* log-probabilities of so many; < 0: none at all */
    bool mask, bias, penalty, suppress, counts;
    bool together; /* the answer and the prompt before it are one request */
    kakeya_attention attention;
} wish;

static const kakeya_logit_bias biases[] = {{3, 4}, {5, -INFINITY}, {9, 1.5f}, {9, 1.5f}};

static kakeya_generate_options options_of(const wish *w, const variant *v, stream *out) {
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.mode = v->mode;
    go.draft_length = v->draft_length;
    go.max_tokens = NEW;
    go.ignore_stop_tokens = true;
    go.sampling.temperature = w->temperature;
    go.sampling.seed = 11;
    if (w->penalty) go.sampling.repetition_penalty = 1.2f;
    if (w->counts) go.presence_penalty = 0.8f;
    if (w->counts) go.frequency_penalty = 0.3f;
    go.log_probabilities = w->top == 0;
    go.top_log_probabilities = w->top > 0 ? w->top : 0;
    if (w->mask) go.token_mask = some_mask;
    go.token_mask_user = out;
    if (w->bias) go.logit_bias = biases;
    go.n_logit_bias = w->bias ? sizeof biases / sizeof biases[0] : 0;
    go.on_event = record;
    go.user = out;
    return go;
}

static void ask_together(kakeya_session *session, const int32_t *prompt, const kakeya_generate_options *go) {
    kakeya_request *request;
    kakeya_request_options ro;
    KAKEYA_INIT(&ro);
    ro.tokens = prompt;
    ro.n_tokens = PROMPT;
    ro.generate = go;
    ok(kakeya_session_submit(session, &ro, &request, error));
    ok(kakeya_request_wait(request, NULL, error));
}

/* One generation; rows_read (may be NULL): whole rows that the backend was asked for, apart from those that came with
 * the prompt, which `whole` counts (likewise). */
static void generate_counted(const wish *w, const variant *v, stream *out, int *rows_read, int *whole) {
    int32_t prompt[PROMPT];
    fake_prompt(prompt, PROMPT, 5, FAKE_VOCAB);
    fake_script script = fake_script_default();
    script.draft_right = 0.9;
    script.peak = 3;
    fake_engine_options eo = {.f_theta = true, .suppress = w->suppress ? 17 : 0};
    kakeya_engine *engine = fake_engine(&script, eo);
    kakeya_session_options so;
    KAKEYA_INIT(&so);
    so.attention = w->attention;
    so.window = w->attention == KAKEYA_ATTENTION_NATIVE ? 64 : 5;
    kakeya_session *session = fake_session(engine, &so);
    kakeya_generate_options go = options_of(w, v, out);
    memset(out, 0, sizeof *out);
    if (w->together) {
        ask_together(session, prompt, &go);
    } else {
        ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
        ok(kakeya_session_generate(session, &go, NULL, error));
    }
    assert_int_equal(out->n, NEW);
    if (rows_read) *rows_read = engine->model->rows_read;
    if (whole) *whole = engine->model->prompt_rows;
    size_t n;
    const int32_t *tokens = kakeya_session_tokens(session, &n);
    for (size_t i = PROMPT; i < n; i++) {
        if (w->mask && forbidden(tokens, i, tokens[i])) fail_msg("token %d at %zu is forbidden", tokens[i], i);
        if (w->bias) assert_int_not_equal(tokens[i], 5);
        if (w->suppress) assert_int_not_equal(tokens[i], 17);
    }
    if (w->mask) assert_int_equal(out->masks, NEW);

    /* log-probabilities are those of scoring: the model's own, whatever changed the choice */
    static float nll[PROMPT + NEW], logits[(PROMPT + NEW) * FAKE_VOCAB];
    kakeya_score_options score;
    KAKEYA_INIT(&score);
    score.nll = nll;
    score.logits = logits;
    score.prompt_length = PROMPT;
    ok(kakeya_session_score(session, tokens, n, &score, error));
    for (size_t i = 0; i < NEW; i++) {
        if (w->top < 0) {
            assert_true(isnan(out->log_probability[i]));
            assert_int_equal(out->n_top[i], 0);
            continue;
        }
        assert_close("in the stream", i, out->log_probability[i], -(double)nll[PROMPT + i - 1]);
        assert_int_equal(out->n_top[i], w->top);
        const float *row = logits + (PROMPT + i - 1) * FAKE_VOCAB;
        double log_sum = reference_log_sum(row, FAKE_VOCAB);
        for (int k = 0; k < w->top; k++) {
            const kakeya_log_probability *t = &out->top[i][k];
            assert_close("top", i, t->log_probability, (double)row[t->token] - log_sum);
            for (int j = 0; j < FAKE_VOCAB; j++) {
                bool listed = false;
                for (int l = 0; l <= k; l++) listed |= out->top[i][l].token == j;
                assert_true(listed || row[j] <= row[t->token]);
            }
        }
    }
    close_all(session, engine, &script);
}

static void generate(const wish *w, const variant *v, stream *out, int *rows_read) {
    generate_counted(w, v, out, rows_read, NULL);
}

static void same_in_every_mode(const wish *w) {
    static stream expected, found;
    for (size_t v = 0; v < VARIANTS; v++) {
        generate(w, &variants[v], v ? &found : &expected, NULL);
        if (v == 0) continue;
        for (size_t i = 0; i < NEW; i++) {
            if (found.token[i] != expected.token[i])
                fail_msg("variant %zu, token %zu: %d, expected %d", v, i, found.token[i], expected.token[i]);
            assert_memory_equal(&found.log_probability[i], &expected.log_probability[i], sizeof(double));
            for (int k = 0; k < found.n_top[i]; k++) {
                assert_int_equal(found.top[i][k].token, expected.top[i][k].token);
                assert_true(found.top[i][k].log_probability == expected.top[i][k].log_probability);
            }
        }
    }
}

/* A short sweep takes every third wish; `first` says which. */
static void every_wish(int first) {
    static const float temperatures[] = {0, 0.7f, 1};
    int count = first;
    for (size_t t = 0; t < 3; t++)
        for (int top = -1; top <= 20; top += top == 3 ? 17 : top == 0 ? 3 : 1) { /* none, 0, 3, 20 */
            static const int sets[] = {0, 1, 2, 8, 16, 29, 31}; /* of mask, bias, penalty, suppressed token, counts */
            for (size_t s = 0; s < sizeof sets / sizeof sets[0]; s++) {
                int bits = sets[s];
                if (sweep_short() && count++ % 3) continue;
                same_in_every_mode(&(wish){.temperature = temperatures[t],
                                           .top = top,
                                           .mask = bits & 1,
                                           .bias = bits & 2,
                                           .penalty = bits & 4,
                                           .suppress = bits & 8,
                                           .counts = bits & 16,
                                           .attention = s % 2 ? KAKEYA_ATTENTION_NATIVE : KAKEYA_ATTENTION_RESTORED});
            }
        }
}

static void test_lossless(void **state) {
    (void)state;
    every_wish(0);
}

static void test_lossless_where_the_backend_finds_the_largest_logit(void **state) {
    (void)state;
    fake_backend.finds_argmax = true;
    every_wish(1);
    fake_backend.finds_argmax = false;
}

static void test_lossless_where_the_backend_finds_leaders(void **state) {
    (void)state;
    fake_backend.finds_argmax = fake_backend.finds_leaders = true;
    every_wish(2);
    fake_backend.finds_argmax = fake_backend.finds_leaders = false;
}

/* Backends that list the leading logits are not asked for whole rows where those suffice, and answer the same bits. */
static void test_leaders_suffice(void **state) {
    (void)state;
    static stream whole, led;
    static const float temperatures[] = {0, 1, 0.5f};
    for (int sampled = 0; sampled < 3; sampled++) {
        wish w = {.temperature = temperatures[sampled], .top = 3};
        int rows_read;
        generate(&w, &variants[3], &whole, &rows_read);
        assert_int_equal(rows_read, 0); /* it has no such verb */
        fake_backend.finds_argmax = fake_backend.finds_leaders = true;
        generate(&w, &variants[3], &led, &rows_read);
        assert_memory_equal(&led, &whole, sizeof whole);
        if (sampled)
            assert_in_range(rows_read, 1, NEW - 10); /* drawn behind the leaders */
        else
            assert_int_equal(rows_read, 0);
        w.top = 20; /* the toy lists five */
        generate(&w, &variants[3], &led, &rows_read);
        assert_true(rows_read > NEW / 2);
        fake_backend.finds_argmax = fake_backend.finds_leaders = false;
    }
}

/* An answer that is asked for with its prompt has the tokens that it has behind a sync, and a whole row comes with the
 * prompt only where the choice needs it. */
static void test_first_token_behind_its_prompt(void **state) {
    (void)state;
    static stream apart, together;
    static const wish wishes[] = {
        {.top = -1},
        {.top = -1, .suppress = true},
        {.top = 3},
        {.temperature = 1, .top = -1},
        {.temperature = 0.5f, .top = 3},
        {.temperature = 1, .top = 20},
        {.top = -1, .mask = true},
        {.top = 2, .bias = true},
        {.temperature = 1, .top = -1, .penalty = true},
        {.top = -1, .counts = true},
    };
    for (int finds = 0; finds < 3; finds++) { /* nothing; the largest logit; leaders, too */
        fake_backend.finds_argmax = finds > 0;
        fake_backend.finds_leaders = finds > 1;
        for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
            wish w = wishes[i];
            bool greedy = w.temperature == 0 && w.top < 0, plain = !w.mask && !w.bias && !w.penalty && !w.counts;
            int whole;
            generate(&w, &variants[i % VARIANTS], &apart, NULL);
            w.together = true;
            generate_counted(&w, &variants[i % VARIANTS], &together, NULL, &whole);
            assert_memory_equal(&together, &apart, sizeof apart);
            int expected = plain && (finds == 2 || (finds == 1 && greedy)) ? 0 : 1;
            if (whole != expected)
                fail_msg("wish %zu, finds %d: %d whole rows, expected %d", i, finds, whole, expected);
        }
    }
    fake_backend.finds_argmax = fake_backend.finds_leaders = false;
}

static bool no_token(void *user, const int32_t *tokens, size_t n, uint32_t *allowed, size_t n_words) {
    (void)tokens;
    const size_t *at = user;
    if (n != *at) memset(allowed, 0xff, n_words * sizeof *allowed);
    if (n == *at) allowed[FAKE_VOCAB / 32] = 0; /* bits behind the vocabulary would count for nothing */
    return true;
}

/* A mask that leaves nothing is an error that names the position; what came before stays, and the session goes on. */
static void test_dead_end(void **state) {
    (void)state;
    int32_t prompt[PROMPT];
    fake_prompt(prompt, PROMPT, 5, FAKE_VOCAB - 5);
    for (size_t v = 0; v < VARIANTS; v++) {
        fake_script script = fake_script_default();
        kakeya_engine *engine = fake_engine(&script, (fake_engine_options){.vocab = FAKE_VOCAB + 3});
        kakeya_session *session = fake_session(engine, NULL);
        size_t at = PROMPT + 7, n;
        stream unused = {0};
        kakeya_generate_options go = options_of(&(wish){.top = -1}, &variants[v], &unused);
        go.token_mask = no_token;
        go.token_mask_user = &at;
        go.max_tokens = 20;
        kakeya_error e = {0};
        kakeya_stats stats;
        KAKEYA_INIT(&stats);
        ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
        assert_int_equal(kakeya_session_generate(session, &go, &stats, &e), KAKEYA_INVALID_ARGUMENT);
        assert_non_null(strstr(e.message, "47"));
        assert_int_equal(stats.finish, KAKEYA_FINISH_FAILED);
        (void)kakeya_session_tokens(session, &n);
        assert_int_equal(n, at);
        assert_int_equal(unused.n, 7);
        go.token_mask = NULL;
        ok(kakeya_session_generate(session, &go, &stats, error));
        assert_int_equal(stats.completion_tokens, 20);
        close_all(session, engine, &script);
    }
}

static void test_refusals(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *session = fake_session(engine, NULL);
    const int32_t prompt[] = {1, 2, 3};
    ok(kakeya_session_sync(session, prompt, 3, NULL, NULL, NULL, error));
    static const kakeya_logit_bias bad[] = {{-1, 0}, {FAKE_VOCAB, 0}, {1, INFINITY}, {1, NAN}};
    for (size_t i = 0; i < 4; i++) {
        kakeya_error e = {0};
        kakeya_generate_options go;
        KAKEYA_INIT(&go);
        go.logit_bias = &bad[i];
        go.n_logit_bias = 1;
        assert_int_equal(kakeya_session_generate(session, &go, NULL, &e), KAKEYA_INVALID_ARGUMENT);
        assert_non_null(strstr(e.message, "bias 0"));
        go.logit_bias = NULL;
        assert_int_equal(kakeya_session_generate(session, &go, NULL, &e), KAKEYA_INVALID_ARGUMENT);
        KAKEYA_INIT(&go);
        go.top_log_probabilities = i % 2 ? 21 : -1;
        assert_int_equal(kakeya_session_generate(session, &go, NULL, &e), KAKEYA_INVALID_ARGUMENT);
        assert_non_null(strstr(e.message, "20"));
    }
    close_all(session, engine, &script);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_lossless),
        cmocka_unit_test(test_lossless_where_the_backend_finds_the_largest_logit),
        cmocka_unit_test(test_lossless_where_the_backend_finds_leaders),
        cmocka_unit_test(test_first_token_behind_its_prompt),
        cmocka_unit_test(test_leaders_suffice),
        cmocka_unit_test(test_dead_end),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
