/* Protects: under a limit on weights the device gives the bits that it gives with all weights in its memory (logits of
 * prompts and of answers; tokens in every mode, policy and batch, also of passes in which experts come to places of
 * their own), the limit is kept, counts are plausible, and what cannot be bounded is refused with one line. Run by
 * `make test-gpu`; on a fake device, which moves no experts, what is left is refusals and memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cuda_runtime_api.h>

#include "convert/convert.h"
#include "kakeya_study.h"
#include "scratch.h"
#include "session/engine.h"

#ifndef FAKE_DEVICE
#define FAKE_DEVICE 0
#endif

enum { TOKENS = 90, PROMPT = 60, ANSWER = 24, MODES = 4, POLICIES = 3, MOST_BATCH = 24 };
static const int batches[] = {3, MOST_BATCH}; /* the second has more rows than are looked up in any slot */

static kakeya_error error;

static bool device_present(void) {
    int devices = 0;
    return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

static kakeya_status open_with(const char *model, size_t limit, bool alone, kakeya_engine **out) {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = model;
    options.backend = "cuda";
    options.weights_limit_bytes = limit;
    if (alone) options.drafter = options.f_theta = "none";
    return kakeya_engine_open(&options, out, &error);
}

/* The limit from which on a model runs, which its refusal says. */
static size_t needed_by(const char *model, bool alone) {
    kakeya_engine *engine;
    assert_refused(open_with(model, 1000, alone, &engine), KAKEYA_INVALID_ARGUMENT, "1000 bytes are not enough");
    const char *says = strstr(error.message, "not enough: ");
    assert_non_null(says);
    return strtoul(says + strlen("not enough: "), NULL, 10);
}

/* What an engine gives. */
typedef struct numbers {
    float *logits; /* [TOKENS][vocab] */
    size_t logit_bytes;
    int32_t token[MODES][POLICIES][ANSWER], batch[2][MOST_BATCH][ANSWER];
} numbers;

static void some_tokens(const kakeya_engine *engine, int seed, int32_t tokens[TOKENS]) {
    const int vocab = kakeya_engine_vocab_size(engine);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (7 + seed * 131 + i * i * 37) % (vocab - 10) + 5;
}

static bool has_policy(const kakeya_engine *engine, int policy) {
    return policy != KAKEYA_ATTENTION_RESTORED || kakeya_engine_has_f_theta(engine);
}

static bool has_mode(const kakeya_engine *engine, int mode) {
    return mode != KAKEYA_MODE_SPECULATIVE || kakeya_engine_has_drafter(engine);
}

static kakeya_session *open_session(kakeya_engine *engine, int policy) {
    kakeya_session_options options;
    kakeya_session *session;
    KAKEYA_INIT(&options);
    options.context_tokens = TOKENS + ANSWER + 32;
    options.attention = (kakeya_attention)policy;
    options.window = 32;
    assert_ok(kakeya_session_open(engine, &options, &session, &error));
    return session;
}

static kakeya_generate_options answer_options(int mode) {
    kakeya_generate_options options;
    KAKEYA_INIT(&options);
    options.mode = (kakeya_mode)mode;
    options.max_tokens = ANSWER;
    options.ignore_stop_tokens = true;
    return options;
}

static void take_answer(const kakeya_session *session, int32_t out[ANSWER]) {
    size_t n;
    const int32_t *tokens = kakeya_session_tokens(session, &n);
    assert_int_equal(n, PROMPT + ANSWER);
    memcpy(out, tokens + PROMPT, ANSWER * sizeof *out);
}

static void run_batch(kakeya_engine *engine, int n, int32_t out[MOST_BATCH][ANSWER]) {
    kakeya_session *session[MOST_BATCH];
    kakeya_request *request[MOST_BATCH];
    for (int i = 0; i < n; i++) {
        int32_t tokens[TOKENS];
        some_tokens(engine, i, tokens);
        session[i] = open_session(engine, KAKEYA_ATTENTION_NATIVE);
        kakeya_generate_options answer = answer_options(KAKEYA_MODE_AUTO);
        kakeya_request_options options;
        KAKEYA_INIT(&options);
        options.tokens = tokens;
        options.n_tokens = PROMPT;
        options.generate = &answer;
        assert_ok(kakeya_session_submit(session[i], &options, &request[i], &error));
    }
    for (int i = 0; i < n; i++) {
        assert_ok(kakeya_request_wait(request[i], NULL, &error));
        take_answer(session[i], out[i]);
        kakeya_session_close(session[i]);
    }
}

static numbers numbers_of(kakeya_engine *engine) {
    numbers out = {0};
    int32_t tokens[TOKENS];
    some_tokens(engine, 0, tokens);
    out.logit_bytes = TOKENS * (size_t)kakeya_engine_vocab_size(engine) * sizeof(float);
    out.logits = calloc(1, out.logit_bytes);
    kakeya_session *session = open_session(engine, KAKEYA_ATTENTION_NATIVE);
    kakeya_score_options score;
    KAKEYA_INIT(&score);
    score.prompt_length = PROMPT;
    score.logits = out.logits;
    assert_ok(kakeya_session_score(session, tokens, TOKENS, &score, &error));
    kakeya_session_close(session);
    for (int mode = 0; mode < MODES; mode++) {
        for (int policy = 0; policy < POLICIES; policy++) {
            if (!has_policy(engine, policy) || !has_mode(engine, mode)) continue;
            session = open_session(engine, policy);
            kakeya_generate_options options = answer_options(mode);
            assert_ok(kakeya_session_sync(session, tokens, PROMPT, NULL, NULL, NULL, &error));
            assert_ok(kakeya_session_generate(session, &options, NULL, &error));
            take_answer(session, out.token[mode][policy]);
            kakeya_session_close(session);
        }
    }
    for (int i = 0; i < 2; i++) run_batch(engine, batches[i], out.batch[i]);
    return out;
}

static void assert_same(const numbers *a, const numbers *b) {
    assert_int_equal(a->logit_bytes, b->logit_bytes);
    assert_memory_equal(a->logits, b->logits, a->logit_bytes);
    assert_memory_equal(a->token, b->token, sizeof a->token);
    assert_memory_equal(a->batch, b->batch, sizeof a->batch);
}

static void check_counts(const kakeya_weights *w, bool all) {
    assert_true(w->host_bytes > 0);
    if (FAKE_DEVICE) return;
    print_message("%zu of %zu experts in memory: %.1f %% of those that were wanted\n", w->slots, w->experts,
                  100 * (double)w->found / (double)w->wanted);
    assert_true(w->wanted > w->found && w->found > 0 && w->read_seconds > 0);
    /* one expert is copied ahead for a lookup at most, and a lookup wants one at least */
    assert_true(w->bytes_read > 0 && w->bytes_read <= (2 * w->wanted - w->found) * w->slot_bytes);
    if (all) assert_true(w->found > w->wanted / 2);
}

/* With three limits: the smallest and one above, under which work goes on beside copies, and one under which all
 * experts have a place. */
static void check_model(const char *model, bool alone) {
    if (!device_present()) skip();
    kakeya_engine *engine;
    assert_ok(open_with(model, 0, alone, &engine));
    numbers resident = numbers_of(engine);
    kakeya_weights weights = kakeya_engine_weights(engine);
    assert_true(weights.limit == 0 && weights.slots == 0 && weights.host_bytes == 0);
    kakeya_engine_close(engine);

    const size_t needed = needed_by(model, alone);
    assert_refused(open_with(model, needed - 1, alone, &engine), KAKEYA_INVALID_ARGUMENT, "are needed");
    assert_ok(open_with(model, needed, alone, &engine));
    weights = kakeya_engine_weights(engine);
    assert_true(weights.slots < weights.experts);
    const size_t all = weights.resident + (weights.experts + 1) * weights.slot_bytes;
    kakeya_engine_close(engine);
    const size_t limits[] = {needed, needed + (all - needed) / 3, all + 12345};
    for (size_t i = 0; i < 3; i++) {
        assert_ok(open_with(model, limits[i], alone, &engine));
        numbers bounded = numbers_of(engine);
        assert_same(&resident, &bounded);
        free(bounded.logits);
        weights = kakeya_engine_weights(engine);
        assert_int_equal(weights.limit, limits[i]);
        assert_true(weights.resident + weights.slots * weights.slot_bytes <= limits[i]);
        assert_true(kakeya_engine_memory(engine, KAKEYA_MEMORY_WEIGHTS) <= limits[i]);
        if (i < 2)
            assert_true(kakeya_engine_memory(engine, KAKEYA_MEMORY_WEIGHTS) + 3 * weights.slot_bytes > limits[i]);
        assert_int_equal(weights.slots == weights.experts, i == 2);
        check_counts(&weights, i == 2);
        kakeya_engine_close(engine);
    }
    free(resident.logits);
}

static void test_bf16(void **state) {
    (void)state;
    check_model(KAKEYA_MODELS "/demo", false);
}

static const char *converted(const char *name, convert_target to) {
    convert_report report;
    const convert_options options = {.to = to, .threads = 2};
    const char *path = scratch_path(name);
    assert_ok(convert_model(KAKEYA_MODELS "/demo", path, &options, &report, &error));
    return path;
}

static void test_q4_0(void **state) {
    (void)state;
    if (FAKE_DEVICE || !device_present()) skip();
    check_model(converted("demo.gguf", CONVERT_Q4_0), true);
}

static void test_groups(void **state) {
    (void)state;
    if (FAKE_DEVICE || !device_present()) skip();
    check_model(converted("demo-affine4", CONVERT_AFFINE4), true);
}

/* Weights that the device makes are the same whether it keeps them or not. */
static void test_synthetic(void **state) {
    (void)state;
    if (FAKE_DEVICE || !device_present()) skip();
    static const char *const names[] = {"26b-a4b:layers=2:q4_0", "26b-a4b:layers=2"};
    for (size_t m = 0; m < sizeof names / sizeof names[0]; m++) {
        float *logits[2];
        size_t bytes = 0;
        for (int limited = 0; limited < 2; limited++) {
            kakeya_engine_options options;
            KAKEYA_INIT(&options);
            kakeya_study_options study;
            KAKEYA_INIT(&study);
            study.synthetic = names[m];
            options.study = &study;
            options.backend = "cuda";
            options.drafter = options.f_theta = "none";
            options.weights_limit_bytes = limited ? (size_t)5 << 30 : 0;
            kakeya_engine *engine;
            int32_t tokens[TOKENS];
            assert_ok(kakeya_engine_open(&options, &engine, &error));
            some_tokens(engine, 3, tokens);
            bytes = TOKENS * (size_t)kakeya_engine_vocab_size(engine) * sizeof(float);
            logits[limited] = calloc(1, bytes);
            kakeya_session *session = open_session(engine, KAKEYA_ATTENTION_NATIVE);
            kakeya_score_options score;
            KAKEYA_INIT(&score);
            score.prompt_length = PROMPT;
            score.logits = logits[limited];
            assert_ok(kakeya_session_score(session, tokens, TOKENS, &score, &error));
            kakeya_session_close(session);
            kakeya_engine_close(engine);
        }
        assert_memory_equal(logits[0], logits[1], bytes);
        free(logits[0]);
        free(logits[1]);
    }
}

static void test_refusals(void **state) {
    (void)state;
    if (!device_present()) skip();
    kakeya_engine *engine = NULL;
    assert_refused(open_with(KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense", 1 << 20, true, &engine), KAKEYA_UNSUPPORTED,
                   "no experts");
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = KAKEYA_MODELS "/demo";
    options.backend = "cuda";
    options.devices = "0,1";
    options.weights_limit_bytes = (size_t)1 << 30;
    assert_refused(kakeya_engine_open(&options, &engine, &error), KAKEYA_UNSUPPORTED, "one device, not to 2");
    assert_ok(open_with(KAKEYA_MODELS "/demo", KAKEYA_WEIGHTS_AUTO, true, &engine));
    kakeya_weights weights = kakeya_engine_weights(engine);
    assert_int_equal(weights.slots, weights.experts);
    kakeya_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refusals), cmocka_unit_test(test_bf16),
                                       cmocka_unit_test(test_q4_0), cmocka_unit_test(test_groups),
                                       cmocka_unit_test(test_synthetic)};
    return cmocka_run_group_tests_name("weights_limit", tests, scratch_setup, scratch_teardown);
}
