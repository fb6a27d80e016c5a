/* The pairs of verifier and MTP assistant of tests/data/golden/mtp with their vectors, caches over them, and what holds
 * of their drafts on every backend. */
#ifndef KAKEYA_TESTS_ASSISTANT_PAIR_H
#define KAKEYA_TESTS_ASSISTANT_PAIR_H

#include "golden.h"

#include "backend/cpu/assistant.h"
#include "model/assistant.h"
#include "packed.h"

enum { PROMPT = 60, LONGEST = 6, PAIRS = 4, CONTEXT = 160 };

static const struct {
    const char *name, *verifier;
} pairs[PAIRS] = {{"moe", "gemma4-tiny-moe"},
                  {"dense", "gemma4-tiny-dense"},
                  {"ple", "gemma4-tiny-ple"},
                  {"unified", "mtp/unified-verifier"}};

/* A verifier with its assistant, its vectors, and a model of both. */
typedef struct pair {
    mem_account account;
    language_model *verifier;
    assistant_model *assistant;
    restoration_model *f_theta;
    safetensors *vectors;
    const backend_ops *ops;
    backend_model *backend;
} pair;

static inline const char *data_path(const char *name) {
    static char path[2][512];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/golden/%s", KAKEYA_TEST_DATA, name);
    return path[turn];
}

static inline const char *assistant_path(int which) {
    char name[64];
    snprintf(name, sizeof name, "mtp/%s", pairs[which].name);
    return unpacked_folder(data_path(name));
}

static inline void complete(pair *p, kakeya_precision precision, int threads) {
    backend_model_options options = {.verifier = p->verifier,
                                     .assistant = p->assistant,
                                     .restoration = p->f_theta,
                                     .precision = precision,
                                     .threads = threads,
                                     .account = &p->account};
    REQUIRE_OK(p->ops->model_create(&options, &p->backend, error));
}

static inline void open_models(pair *p, int which) {
    memset(p, 0, sizeof *p);
    mem_account_init(&p->account, NULL, 0);
    p->ops = backend_find("cpu", NULL);
    REQUIRE_OK(
        language_model_open(unpacked_folder(data_path(pairs[which].verifier)), &p->account, &p->verifier, error));
    const char *folder = assistant_path(which);
    REQUIRE_OK(assistant_model_open(folder, &p->verifier->config, &p->account, &p->assistant, error));
    char path[512];
    snprintf(path, sizeof path, "%s/golden.safetensors", folder);
    REQUIRE_OK(safetensors_open(path, &p->vectors, error));
}

static inline void open_pair(pair *p, int which, kakeya_precision precision, int threads) {
    open_models(p, which);
    REQUIRE_OK(restoration_model_synthesize(&p->verifier->config, NULL, 8, 8, false, &p->account, &p->f_theta, error));
    complete(p, precision, threads);
}

static inline void close_pair(pair *p) {
    p->ops->model_destroy(p->backend);
    restoration_model_close(p->f_theta);
    assistant_model_close(p->assistant);
    language_model_close(p->verifier);
    safetensors_close(p->vectors);
    assert_int_equal(mem_total(&p->account), 0);
}

static inline const float *floats(const pair *p, const char *name) {
    const tensor *t = safetensors_find(p->vectors, name);
    assert_non_null(t);
    assert_int_equal(t->type, TENSOR_F32);
    return (const float *)(const void *)t->data;
}

static inline const int32_t *ids(const pair *p, const char *name) {
    const tensor *t = safetensors_find(p->vectors, name);
    assert_non_null(t);
    assert_int_equal(t->type, TENSOR_I32);
    return (const int32_t *)(const void *)t->data;
}

static inline int rows_of(const pair *p, const char *name) {
    const tensor *t = safetensors_find(p->vectors, name);
    assert_non_null(t);
    return (int)t->shape[0];
}

/* ---------------------------------------------------------------------------------------------------- caches */

typedef struct policy {
    const char *name;
    kakeya_attention attention;
    kakeya_restore_layers layers;
    int sink, window;
} policy;

static const policy native = {"native", KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, 0, 0};
static const policy sink_window = {"sink-window", KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING, 4, 8};
static const policy restored = {"restored", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, 4, 8};
static const policy bounded_all = {"restored all", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, 4, 8};

static inline backend_cache *open_cache(pair *p, const policy *of, kv_format format) {
    backend_cache_options options = {.context_tokens = CONTEXT,
                                     .attention = of->attention,
                                     .restore_layers = of->layers,
                                     .sink = of->sink,
                                     .window = of->window,
                                     .draft_window = 16,
                                     .kv_format = format,
                                     .keep_draft_state = true,
                                     .account = &p->account};
    backend_cache *cache = NULL;
    REQUIRE_OK(p->ops->cache_create(p->backend, &options, &cache, error));
    return cache;
}

static inline void step(pair *p, backend_cache *cache, segment_kind kind, const int32_t *tokens, int n, int kept,
                        int32_t *argmax) {
    backend_segment segment = {
        .cache = cache, .tokens = tokens, .n = n, .kind = kind, .first_logit_row = argmax ? 0 : n, .argmax = argmax};
    REQUIRE_OK(p->ops->forward(p->backend, &segment, 1, error));
    REQUIRE_OK(p->ops->cache_commit(cache, kept, error));
}

/* The prompt of the vectors, all of it committed. */
static inline backend_cache *prompted(pair *p, const policy *of, kv_format format) {
    backend_cache *cache = open_cache(p, of, format);
    step(p, cache, SEGMENT_PROMPT, ids(p, "input_ids"), PROMPT, PROMPT, NULL);
    return cache;
}

static inline void chain(backend_cache *cache, int32_t bonus, int n, int32_t *drafts) {
    REQUIRE_OK(assistant_chain(cache, bonus, n, drafts, NULL, error));
}

/* ---------------------------------------------------------------------------------------------------- properties */

static const policy *const all_policies[] = {&native, &sink_window, &restored, &bounded_all};
enum { POLICIES = 4 };

static inline void drafts_of(pair *p, backend_cache *cache, int32_t bonus, int n, int32_t *drafts) {
    REQUIRE_OK(backend_draft_by(p->ops, p->backend, BACKEND_ASSISTANT, cache, bonus, n, drafts, error));
}

static inline void assert_drafts(const char *what, const policy *of, kv_format format, const int32_t *found,
                                 const int32_t *expected, int n) {
    for (int i = 0; i < n; i++)
        if (found[i] != expected[i])
            fail_msg("%s, %s, %s: draft %d is %d, expected %d", what, of->name, kv_format_name(format), i,
                     (int)found[i], (int)expected[i]);
}

static inline void assert_unknown(pair *p, backend_cache *cache) {
    int32_t drafts[1];
    kakeya_error message = {0};
    assert_false(p->ops->cache_has_state(cache));
    assert_int_equal(backend_draft_by(p->ops, p->backend, BACKEND_ASSISTANT, cache, 5, 1, drafts, &message),
                     KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(message.message, "state"));
}

/* The prompt in pieces, then tokens of an answer one by one or in blocks of which some rows are rejected: the drafts
 * behind them are the same. */
static inline void check_committed_tokens_alone(pair *p, const kv_format *formats, int n_formats) {
    enum { ANSWER = 12 };
    const int32_t *prompt = ids(p, "input_ids"), *answer = ids(p, "run6_tokens");
    for (int k = 0; k < POLICIES * n_formats; k++) {
        const policy *of = all_policies[k % POLICIES];
        kv_format format = formats[k / POLICIES];
        backend_cache *one = open_cache(p, of, format), *blocks = open_cache(p, of, format);
        assert_false(p->ops->cache_has_state(one));
        step(p, one, SEGMENT_PROMPT, prompt, PROMPT, PROMPT, NULL);
        step(p, blocks, SEGMENT_PROMPT, prompt, 7, 7, NULL);
        step(p, blocks, SEGMENT_PROMPT, prompt + 7, 41, 41, NULL);
        step(p, blocks, SEGMENT_PROMPT, prompt + 48, PROMPT - 48, PROMPT - 48, NULL);
        for (int at = 0, kept = 1; at < ANSWER; at += kept, kept = 1 + at % 3) {
            int32_t block[5] = {answer[at], 1, 2, 3, 4}, drafts[2][LONGEST];
            if (kept > ANSWER - at) kept = ANSWER - at;
            for (int i = 1; i < kept; i++) block[i] = answer[at + i];
            assert_true(p->ops->cache_has_state(one) && p->ops->cache_has_state(blocks));
            drafts_of(p, one, answer[at], LONGEST, drafts[0]);
            drafts_of(p, blocks, answer[at], LONGEST, drafts[1]);
            assert_drafts("in blocks", of, format, drafts[1], drafts[0], LONGEST);
            for (int i = 0; i < LONGEST; i++) assert_in_range(drafts[0][i], 0, p->verifier->config.vocab - 1);
            step(p, blocks, SEGMENT_DECODE, block, 5, kept, NULL);
            for (int i = 0; i < kept; i++) step(p, one, SEGMENT_DECODE, block + i, 1, 1, NULL);
        }
        p->ops->cache_destroy(one);
        p->ops->cache_destroy(blocks);
    }
}

#endif
