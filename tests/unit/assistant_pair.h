/* The pairs of verifier and MTP assistant of tests/data/golden/mtp with their vectors, and caches over them. */
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
    gemma4_model *verifier;
    assistant_model *assistant;
    f_theta_model *f_theta;
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
                                     .f_theta = p->f_theta,
                                     .precision = precision,
                                     .threads = threads,
                                     .account = &p->account};
    REQUIRE_OK(p->ops->model_create(&options, &p->backend, error));
}

static inline void open_models(pair *p, int which) {
    memset(p, 0, sizeof *p);
    mem_account_init(&p->account, NULL, 0);
    p->ops = backend_find("cpu", NULL);
    REQUIRE_OK(gemma4_model_open(unpacked_folder(data_path(pairs[which].verifier)), &p->account, &p->verifier, error));
    const char *folder = assistant_path(which);
    REQUIRE_OK(assistant_model_open(folder, &p->verifier->config, &p->account, &p->assistant, error));
    char path[512];
    snprintf(path, sizeof path, "%s/golden.safetensors", folder);
    REQUIRE_OK(safetensors_open(path, &p->vectors, error));
}

static inline void open_pair(pair *p, int which, kakeya_precision precision, int threads) {
    open_models(p, which);
    REQUIRE_OK(f_theta_model_synthesize(&p->verifier->config, NULL, 8, 8, false, &p->account, &p->f_theta, error));
    complete(p, precision, threads);
}

static inline void close_pair(pair *p) {
    p->ops->model_destroy(p->backend);
    f_theta_model_close(p->f_theta);
    assistant_model_close(p->assistant);
    gemma4_model_close(p->verifier);
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

#endif
