/* Models small enough for thousands of forwards, and caches of every policy over them. */
#ifndef KAKEYA_TESTS_TINY_H
#define KAKEYA_TESTS_TINY_H

#include "golden.h"
#include "packed.h"

/* The backend that is tested; tests are also compiled for others (CMakeLists.txt), which may not have the last of the
 * policies. */
#ifndef TINY_BACKEND
#define TINY_BACKEND "cpu"
#endif
#ifndef TINY_MISSING_POLICIES
#define TINY_MISSING_POLICIES 0
#endif

typedef struct tiny {
    mem_account account;
    language_model *verifier;
    block_drafter_model *drafter;
    restoration_model *f_theta;
    backend_model *backend;
    const backend_ops *ops;
} tiny;

/* A verifier of the vectors and, unless NULL, a drafter for it. */
static inline void tiny_open_weights(tiny *d, const char *verifier, const char *drafter) {
    memset(d, 0, sizeof *d);
    mem_account_init(&d->account, NULL, 0);
    char path[512];
    snprintf(path, sizeof path, "%s/golden/%s", KAKEYA_TEST_DATA, verifier);
    REQUIRE_OK(language_model_open(unpacked_folder(path), &d->account, &d->verifier, error));
    d->verifier->config.sliding_window = 40; /* wider than the policies' windows, so that there is something to evict */
    if (drafter) {
        snprintf(path, sizeof path, "%s/golden/%s", KAKEYA_TEST_DATA, drafter);
        REQUIRE_OK(
            block_drafter_model_open(unpacked_folder(path), &d->verifier->config, &d->account, &d->drafter, error));
    }
    d->ops = backend_find(TINY_BACKEND, NULL);
}

/* The model of these weights. */
static inline void tiny_complete(tiny *d, kakeya_precision precision, const char *isa, int threads) {
    backend_model_options options = {.verifier = d->verifier,
                                     .drafter = d->drafter,
                                     .restoration = d->f_theta,
                                     .precision = precision,
                                     .isa = isa,
                                     .threads = threads,
                                     .account = &d->account};
    REQUIRE_OK(d->ops->model_create(&options, &d->backend, error));
}

/* With a drafter, an f_theta is made for the two. */
static inline void tiny_open_on(tiny *d, const char *verifier, const char *drafter, kakeya_precision precision,
                                const char *isa, int threads) {
    tiny_open_weights(d, verifier, drafter);
    if (drafter)
        REQUIRE_OK(restoration_model_synthesize(&d->verifier->config, &d->drafter->config, RESTORATION_PUBLISHED_RANK,
                                                RESTORATION_PUBLISHED_RANK, false, &d->account, &d->f_theta, error));
    tiny_complete(d, precision, isa, threads);
}

static inline void tiny_open(tiny *d, const char *verifier, const char *drafter, kakeya_precision precision) {
    tiny_open_on(d, verifier, drafter, precision, NULL, 1);
}

static inline void tiny_close(tiny *d) {
    d->ops->model_destroy(d->backend);
    if (d->f_theta) restoration_model_close(d->f_theta);
    if (d->drafter) block_drafter_model_close(d->drafter);
    language_model_close(d->verifier);
    assert_int_equal(mem_total(&d->account), 0);
}

typedef struct tiny_policy {
    const char *name;
    kakeya_attention attention;
    kakeya_restore_layers layers;
    int sink, window;
    restoration_input input;
} tiny_policy;

static const tiny_policy tiny_policies[] = {
    {"native", KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, 0, 0, RESTORATION_DRAFTER_CONTEXT_KV},
    {"sink-window 16", KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING, 4, 16, RESTORATION_DRAFTER_CONTEXT_KV},
    {"sink-window 5", KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING, 0, 5, RESTORATION_DRAFTER_CONTEXT_KV},
    {"restored 16", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, 2, 16, RESTORATION_DRAFTER_CONTEXT_KV},
    {"restored 7", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, 90, 7, RESTORATION_DRAFTER_CONTEXT_KV},
    {"restored all 32", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, 4, 32, RESTORATION_DRAFTER_CONTEXT_KV},
    {"restored all 9", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, 70, 9, RESTORATION_DRAFTER_CONTEXT_KV},
    {"restored 16 from tokens", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, 3, 16, RESTORATION_DRAFTER_TOKEN_KV},
    {"restored all 20 from tokens", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, 0, 20, RESTORATION_DRAFTER_TOKEN_KV},
};
enum {
    TINY_POLICIES = (int)(sizeof tiny_policies / sizeof tiny_policies[0]) - TINY_MISSING_POLICIES,
    TINY_CONTEXT = 400,
};

static inline backend_cache_options tiny_options(tiny *d, const tiny_policy *p, kv_format format) {
    return (backend_cache_options){.context_tokens = TINY_CONTEXT,
                                   .attention = p->attention,
                                   .restore_layers = p->layers,
                                   .sink = p->sink,
                                   .window = p->window,
                                   .draft_window = 24,
                                   .kv_format = format,
                                   .keep_draft_context = d->drafter != NULL,
                                   .account = &d->account};
}

static inline backend_cache *tiny_cache(tiny *d, const tiny_policy *p, kv_format format) {
    backend_cache *cache = NULL;
    backend_cache_options options = tiny_options(d, p, format);
    if (d->f_theta) d->f_theta->config.input = p->input;
    REQUIRE_OK(d->ops->cache_create(d->backend, &options, &cache, error));
    return cache;
}

static inline int tiny_block_rows(const tiny_policy *p) {
    bool cut = p->attention != KAKEYA_ATTENTION_NATIVE && p->window < BACKEND_MAX_DECODE_ROWS;
    return cut ? p->window : BACKEND_MAX_DECODE_ROWS;
}

static inline backend_segment tiny_rows(backend_cache *cache, segment_kind kind, const int32_t *tokens, int n,
                                        float *logits) {
    return (backend_segment){
        .cache = cache, .tokens = tokens, .n = n, .kind = kind, .first_logit_row = logits ? 0 : n, .logits = logits};
}

/* Rows behind the committed ones, of which `kept` stay. logits [n][vocab] or NULL. */
static inline void tiny_step(tiny *d, backend_cache *cache, segment_kind kind, const int32_t *tokens, int n, int kept,
                             float *logits) {
    backend_segment segment = tiny_rows(cache, kind, tokens, n, logits);
    REQUIRE_OK(d->ops->forward(d->backend, &segment, 1, error));
    REQUIRE_OK(d->ops->cache_commit(cache, kept, error));
}

static inline uint32_t tiny_draw(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

static inline void tiny_tokens(int32_t *tokens, int n, uint64_t seed) {
    for (int i = 0; i < n; i++) tokens[i] = (int32_t)tiny_draw(&seed, 300);
}

#endif
