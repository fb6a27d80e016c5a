/* The forward pass against vectors computed by Hugging Face transformers in float32: random models of every text form,
 * logits, hidden states and greedy continuations. Protects arithmetic and layer order. */
#include "golden.h"
#include "packed.h"

typedef struct loaded {
    mem_account account;
    language_model *model;
    backend_model *backend;
    const backend_ops *ops;
    safetensors *vectors;
} loaded;

static void load(loaded *l, const char *name, const char *isa, int threads) {
    char path[512];
    memset(l, 0, sizeof *l);
    mem_account_init(&l->account, NULL, 0);
    snprintf(path, sizeof path, "%s/golden/%s", KAKEYA_TEST_DATA, name);
    REQUIRE_OK(language_model_open(unpacked_folder(path), &l->account, &l->model, error));
    snprintf(path, sizeof path, "%s/golden/%s/golden.safetensors", KAKEYA_TEST_DATA, name);
    REQUIRE_OK(safetensors_open(unpacked_file(path), &l->vectors, error));
    l->ops = backend_find("cpu", NULL);
    backend_model_options options = {.verifier = l->model,
                                     .precision = KAKEYA_PRECISION_F32,
                                     .isa = isa,
                                     .threads = threads,
                                     .account = &l->account};
    REQUIRE_OK(l->ops->model_create(&options, &l->backend, error));
}

static void unload(loaded *l) {
    l->ops->model_destroy(l->backend);
    language_model_close(l->model);
    safetensors_close(l->vectors);
    assert_int_equal(mem_total(&l->account), 0);
}

static backend_cache *new_cache(loaded *l, int context) {
    backend_cache *cache = NULL;
    backend_cache_options options = {.context_tokens = context, .kv_format = KV_FORMAT_F32, .account = &l->account};
    REQUIRE_OK(l->ops->cache_create(l->backend, &options, &cache, error));
    return cache;
}

static const float *floats(loaded *l, const char *name, size_t count) {
    const tensor *t = safetensors_find(l->vectors, name);
    assert_non_null(t);
    assert_int_equal(t->bytes, count * 4);
    return (const float *)(const void *)t->data;
}

static const int32_t *integers(loaded *l, const char *name, int *count) {
    const tensor *t = safetensors_find(l->vectors, name);
    assert_non_null(t);
    *count = (int)t->shape[0];
    return (const int32_t *)(const void *)t->data;
}

static void forward_one(loaded *l, backend_cache *cache, const int32_t *tokens, int n, segment_kind kind,
                        int first_logit, float *logits, float *hidden) {
    backend_segment segment = {.cache = cache,
                               .tokens = tokens,
                               .n = n,
                               .kind = kind,
                               .first_logit_row = first_logit,
                               .logits = logits,
                               .hidden_states = hidden};
    REQUIRE_OK(l->ops->forward(l->backend, &segment, 1, error));
    REQUIRE_OK(l->ops->cache_commit(cache, n, error));
}

static void check_model(const char *name, const char *isa) {
    loaded l;
    load(&l, name, isa, 2);
    const model_config *c = &l.model->config;
    size_t vocab = (size_t)c->vocab, hidden = (size_t)c->hidden, layers = (size_t)c->layers;
    int n, steps;
    const int32_t *ids = integers(&l, "input_ids", &n), *greedy = integers(&l, "greedy", &steps);
    size_t rows = (size_t)n;
    float *logits = calloc(rows * vocab, sizeof *logits),
          *states = calloc((layers + 1) * rows * hidden, sizeof *states);
    float *again = calloc(rows * vocab, sizeof *again);

    backend_cache *cache = new_cache(&l, 128);
    forward_one(&l, cache, ids, n, SEGMENT_PROMPT, 0, logits, states);
    assert_close("logits", logits, floats(&l, "logits", rows * vocab), rows * vocab, 3e-3);
    const float *expected = floats(&l, "hidden_states", (layers + 1) * rows * hidden);
    for (size_t i = 0; i <= layers; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s %s hidden state %zu", name, isa, i);
        assert_close_relative(what, states + i * rows * hidden, expected + i * rows * hidden, rows * hidden, 3e-4);
    }
    /* Chunks of any size and single decode rows give the same bits. */
    static const int chunks[] = {1, 7, 16, 23, 59};
    for (size_t k = 0; k < sizeof chunks / sizeof chunks[0]; k++) {
        backend_cache *other = new_cache(&l, 128);
        for (int at = 0; at < n; at += chunks[k]) {
            int part = n - at < chunks[k] ? n - at : chunks[k];
            segment_kind kind = part == 1 ? SEGMENT_DECODE : SEGMENT_PROMPT;
            forward_one(&l, other, ids + at, part, kind, 0, again + (size_t)at * vocab, NULL);
        }
        assert_same_bits("chunked logits", again, logits, rows * vocab);
        l.ops->cache_destroy(other);
    }
    int32_t token = 0;
    const float *row = logits + (rows - 1) * vocab;
    for (int step = 0; step < steps; step++) {
        token = 0;
        for (size_t v = 1; v < vocab; v++) {
            if (row[v] > row[token]) token = (int32_t)v;
        }
        if (token != greedy[step])
            fail_msg("%s: greedy step %d gives %d, expected %d", name, step, token, greedy[step]);
        forward_one(&l, cache, &token, 1, SEGMENT_DECODE, 0, again, NULL);
        row = again;
    }
    l.ops->cache_destroy(cache);
    free(logits);
    free(states);
    free(again);
    unload(&l);
}

static void check_form(const char *name) {
    for (const char *const *isa = cpu_kernels_supported(); *isa; isa++) check_model(name, *isa);
}

static void moe_form(void **state) {
    (void)state;
    check_form("gemma4-tiny-moe");
}

static void dense_form(void **state) {
    (void)state;
    check_form("gemma4-tiny-dense");
}

static void per_layer_embedding_form(void **state) {
    (void)state;
    check_form("gemma4-tiny-ple");
}

/* Shapes that are multiples of nothing, both dialects of the configuration, shards, every dtype (tools/make_golden.py).
 */
static void odd_forms(void **state) {
    (void)state;
    static const char *const forms[] = {"shared-kv", "shared-k-eq-v", "experts",     "untied",       "window-of-one",
                                        "one-token", "respelt",       "gemma3-flat", "gemma3-nested"};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "forms/%s", forms[i]);
        check_form(name);
    }
}

static int32_t largest_logit(const model_config *c, const float *logits, int32_t excluded) {
    int32_t best = -1;
    for (int32_t v = 0; v < c->vocab; v++) {
        bool suppressed = v == excluded;
        for (int i = 0; i < c->n_suppress_tokens; i++) suppressed |= c->suppress_tokens[i] == v;
        if (!suppressed && (best < 0 || logits[v] > logits[best])) best = v;
    }
    return best;
}

/* Greedy choices are those of the capped logits, the lowest id on ties, also where the cap makes many logits equal. */
static void check_greedy(const char *name, float scale) {
    enum { ROWS = 9 };
    loaded l;
    load(&l, name, NULL, 2);
    const model_config *c = &l.model->config;
    float *norm = (float *)(uintptr_t)l.model->weights.final_norm;
    for (int i = 0; i < c->hidden; i++) norm[i] *= scale;
    int n;
    const int32_t *ids = integers(&l, "input_ids", &n);
    float *logits = malloc((size_t)ROWS * (size_t)c->vocab * sizeof *logits);
    for (int rows = 1; rows <= ROWS; rows += 4) {
        int32_t beside_logits[ROWS], alone[ROWS];
        backend_cache *cache = new_cache(&l, 128);
        backend_segment segment = {.cache = cache,
                                   .tokens = ids,
                                   .n = rows,
                                   .kind = SEGMENT_DECODE,
                                   .logits = logits,
                                   .argmax = beside_logits};
        REQUIRE_OK(l.ops->forward(l.backend, &segment, 1, error));
        REQUIRE_OK(l.ops->cache_commit(cache, 0, error));
        segment.logits = NULL;
        segment.argmax = alone;
        REQUIRE_OK(l.ops->forward(l.backend, &segment, 1, error));
        for (int row = 0; row < rows; row++) {
            int32_t best = largest_logit(c, logits + (size_t)row * (size_t)c->vocab, -1);
            assert_int_equal(beside_logits[row], best);
            assert_int_equal(alone[row], best);
        }
        REQUIRE_OK(l.ops->cache_commit(cache, 0, error));
        segment.excluded = &beside_logits[rows / 2];
        REQUIRE_OK(l.ops->forward(l.backend, &segment, 1, error));
        for (int row = 0; row < rows; row++)
            assert_int_equal(alone[row], largest_logit(c, logits + (size_t)row * (size_t)c->vocab, *segment.excluded));
        l.ops->cache_destroy(cache);
    }
    free(logits);
    unload(&l);
}

static void greedy_choices_are_the_largest_logits(void **state) {
    (void)state;
    static const char *const names[] = {"gemma4-tiny-moe", "gemma4-tiny-dense", "gemma4-tiny-ple"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        check_greedy(names[i], 1);
        check_greedy(names[i], 1000);
        check_greedy(names[i], -1000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moe_form),
        cmocka_unit_test(dense_form),
        cmocka_unit_test(per_layer_embedding_form),
        cmocka_unit_test(odd_forms),
        cmocka_unit_test(greedy_choices_are_the_largest_logits),
    };
    return cmocka_run_group_tests_name("forward", tests, NULL, NULL);
}
