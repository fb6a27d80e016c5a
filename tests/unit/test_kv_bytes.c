/* Protects: the session memory that `kakeya info` promises is what the allocator holds, policy by policy. */
#include "golden.h"

#include "backend/kv_bytes.h"
#include "sweep.h"

typedef struct demo {
    mem_account account;
    language_model *verifier;
    block_drafter_model *drafter;
    restoration_model *f_theta;
    const backend_ops *ops;
    backend_model *backend;
} demo;

static void check_held(const char *what, size_t held, size_t promised) {
    if (held != promised) fail_msg("%s: the allocator holds %zu bytes, the formula says %zu", what, held, promised);
}

/* One session of its own account: a prompt, then one decoded token. */
static void check(demo *d, backend_cache_options options, int prompt_tokens) {
    mem_account account;
    mem_account_init(&account, &d->account, 0);
    options.context_tokens = 1024;
    options.account = &account;
    backend_cache *cache = NULL;
    REQUIRE_OK(d->ops->cache_create(d->backend, &options, &cache, error));
    int32_t tokens[1024];
    for (int i = 0; i <= prompt_tokens; i++) tokens[i] = 100 + i * 37 % 8000;
    for (int at = 0; at < prompt_tokens;) {
        int n = prompt_tokens - at < 256 ? prompt_tokens - at : 256;
        backend_segment segment = {
            .cache = cache, .tokens = tokens + at, .n = n, .kind = SEGMENT_PROMPT, .first_logit_row = n};
        REQUIRE_OK(d->ops->forward(d->backend, &segment, 1, error));
        REQUIRE_OK(d->ops->cache_commit(cache, n, error));
        at += n;
    }
    backend_segment segment = {
        .cache = cache, .tokens = tokens + prompt_tokens, .n = 1, .kind = SEGMENT_DECODE, .first_logit_row = 1};
    REQUIRE_OK(d->ops->forward(d->backend, &segment, 1, error));
    REQUIRE_OK(d->ops->cache_commit(cache, 1, error));

    const timeline_models models = {&d->verifier->config, &d->drafter->config, &d->f_theta->config, NULL};
    timeline t = timeline_preview(&models, &options, prompt_tokens + 1);
    backend_cache_bytes promised = kv_bytes(&t, 0), counted = d->ops->cache_bytes(cache);
    assert_memory_equal(&promised, &counted, sizeof promised);
    check_held("kv.full", mem_bytes(&account, MEM_KV_FULL), promised.full);
    check_held("kv.sliding", mem_bytes(&account, MEM_KV_SLIDING), promised.sliding);
    check_held("kv.latent", mem_bytes(&account, MEM_KV_LATENT), promised.latent);
    check_held("kv.draft", mem_bytes(&account, MEM_KV_DRAFT), promised.draft);
    d->ops->cache_destroy(cache);
    assert_int_equal(mem_total(&account), 0);
}

static void test_policies(void **state) {
    demo *d = *state;
    static const struct {
        kakeya_attention attention;
        kakeya_restore_layers layers;
        bool with_drafter;
        int sink, window, draft_window;
    } cases[] = {
        {KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, false, 4, 64, 1024},
        {KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, true, 4, 64, 100},
        {KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING, false, 4, 64, 1024},
        {KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_ALL, false, 0, 33, 1024},
        {KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING, false, 4, 500,
         1024}, /* wider than the model's own window */
        {KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, true, 4, 64, 1024},
        {KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, true, 5, 64, 256},
        {KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, true, 4, 130, 64},
    };
    static const int prompts[] = {1, 62, 63, 64, 300, 607};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t p = 0; p < sizeof prompts / sizeof prompts[0]; p += sweep_short() ? 3 : 1) {
            backend_cache_options options = {.attention = cases[i].attention,
                                             .restore_layers = cases[i].layers,
                                             .sink = cases[i].sink,
                                             .window = cases[i].window,
                                             .draft_window = cases[i].draft_window,
                                             .kv_format = (kv_format)((i + p) % KV_FORMAT_COUNT),
                                             .keep_draft_context = cases[i].with_drafter};
            check(d, options, prompts[p]);
        }
    }
}

static int setup(void **state) {
    static demo d;
    mem_account_init(&d.account, NULL, 0);
    REQUIRE_OK(language_model_open(KAKEYA_MODELS "/demo", &d.account, &d.verifier, error));
    REQUIRE_OK(
        block_drafter_model_open(KAKEYA_MODELS "/demo-dflash", &d.verifier->config, &d.account, &d.drafter, error));
    REQUIRE_OK(restoration_model_open(KAKEYA_TEST_DATA "/golden/demo-f-theta-regression", &d.verifier->config,
                                      &d.drafter->config, &d.account, &d.f_theta, error));
    d.ops = backend_find("cpu", NULL);
    backend_model_options options = {.verifier = d.verifier,
                                     .drafter = d.drafter,
                                     .restoration = d.f_theta,
                                     .precision = KAKEYA_PRECISION_BF16,
                                     .threads = 1,
                                     .account = &d.account};
    REQUIRE_OK(d.ops->model_create(&options, &d.backend, error));
    *state = &d;
    return 0;
}

static int teardown(void **state) {
    demo *d = *state;
    d->ops->model_destroy(d->backend);
    restoration_model_close(d->f_theta);
    block_drafter_model_close(d->drafter);
    language_model_close(d->verifier);
    return mem_total(&d->account) != 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_policies)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
