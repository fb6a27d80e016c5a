/* One model on two devices: what only several devices can get wrong. The suites of sessions, batches, forks and of the
 * backend are compiled for two devices beside this (CMakeLists.txt), and hold them to the same bits whatever the number
 * of rows. Run by `make test-gpu`; without two devices every test is skipped. On a fake device (tests/gpu/fake)
 * wherever the backend is compiled, but for what compares numbers. */
#undef PAIR_DEVICES
#define PAIR_DEVICES 2
#include <pthread.h>
#include <stdatomic.h>

#include "backend/measure.h"
#include "gpu/random_pair.h"
#include "measure/kv_geometry.h"

enum { CONTEXT = 1024, PROMPT_ROWS = 90, ROWS = BACKEND_MAX_DECODE_ROWS };

/* A step's launch that fails on the second device, which has a thread of its own. */
static pthread_t caller;
static atomic_int failing_launches;

cudaError_t __real_cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t __wrap_cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);

cudaError_t __wrap_cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    if (atomic_load(&failing_launches) > 0 && !pthread_equal(pthread_self(), caller)) {
        atomic_fetch_sub(&failing_launches, 1);
        return cudaErrorInvalidValue;
    }
    return __real_cudaGraphLaunch(exec, stream);
}

/* Each device has half of the head, and chooses with an int8 copy of it; the choice is that of the whole. */
static void choices_of_halves(void **state) {
    (void)state;
    enum { VOCAB = 280000 }; /* so that half a head is worth a copy */
    pair p;
    model_config form = shared_form();
    form.vocab = VOCAB;
    pair_random(&p, &form, NULL, false, false);
    const backend_ops *ops = p.ops[CUDA];
    int32_t tokens[PROMPT_ROWS + ROWS], found[ROWS], again[ROWS];
    fill_tokens(tokens, PROMPT_ROWS + ROWS, 640, 41);
    float *logits = calloc((size_t)ROWS * VOCAB, sizeof *logits);
    backend_cache *cache = new_cache(&p, CUDA, &policies[0], CONTEXT, false);
    step(&p, CUDA, cache, tokens, PROMPT_ROWS, PROMPT_ROWS, SEGMENT_PROMPT, NULL);
    int halves[2] = {0, 0};
    for (int n = 1; n <= ROWS; n++) {
        backend_segment segment = {
            .cache = cache, .tokens = tokens + PROMPT_ROWS, .n = n, .kind = SEGMENT_DECODE, .argmax = found};
        REQUIRE_OK(ops->forward(p.model[CUDA], &segment, 1, error));
        REQUIRE_OK(ops->cache_commit(cache, 0, error));
        segment.argmax = again;
        segment.logits = logits;
        REQUIRE_OK(ops->forward(p.model[CUDA], &segment, 1, error));
        REQUIRE_OK(ops->cache_commit(cache, 0, error));
        for (int i = 0; i < n; i++) {
            int expected = argmax_of(logits + (size_t)i * VOCAB, VOCAB);
            if (found[i] != expected || again[i] != expected)
                fail_msg("row %d of %d: %d and %d, expected %d", i, n, (int)found[i], (int)again[i], expected);
            halves[expected >= VOCAB / 2]++;
        }
    }
    assert_true(halves[0] > 0 && halves[1] > 0);
    ops->cache_destroy(cache);
    free(logits);
    pair_close(&p);
}

/* Sums over devices round once more than those of one, no worse. */
static void near_the_reference(void **state) {
    (void)state;
    const struct {
        const char *name;
        model_config form;
    } cases[] = {{"shared", shared_form()}, {"wide", wide_form()}, {"tall", tall_form()}, {"routed", routed_form()}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        pair p;
        pair_random(&p, &cases[k].form, NULL, false, false);
        if (strstr(p.ops[CUDA]->model_description(p.model[CUDA]), "fake")) {
            pair_close(&p);
            skip();
        }
        size_t vocab = (size_t)p.verifier->config.vocab, n = (PROMPT_ROWS + ROWS) * vocab;
        int32_t tokens[PROMPT_ROWS + ROWS];
        fill_tokens(tokens, PROMPT_ROWS + ROWS, (int)vocab, 43);
        float *logits[MODELS];
        for (int b = 0; b < MODELS; b++) {
            logits[b] = calloc(n, sizeof **logits);
            backend_cache *cache = new_cache(&p, b, &policies[0], CONTEXT, false);
            step(&p, b, cache, tokens, PROMPT_ROWS, PROMPT_ROWS, SEGMENT_PROMPT, logits[b]);
            step(&p, b, cache, tokens + PROMPT_ROWS, ROWS, ROWS, SEGMENT_DECODE, logits[b] + PROMPT_ROWS * vocab);
            p.ops[b]->cache_destroy(cache);
        }
        assert_as_close(cases[k].name, logits[CUDA], logits[CPU], logits[REFERENCE], n);
        for (int b = 0; b < MODELS; b++) free(logits[b]);
        pair_close(&p);
    }
}

/* What a report records of the model, its devices included, gives the bytes that the cache holds. */
static void expect_bytes(const pair *p, const backend_cache *cache, const policy *how) {
    const backend_measure_ops *measure = backend_measure_find(p->ops[CUDA]);
    kv_geometry written, read;
    kv_geometry_of(&p->verifier->config, &p->drafter->config, &p->f_theta->config, KV_FORMAT_BF16, &written);
    written.page_granule = measure->page_granule(p->model[CUDA]);
    written.devices = measure->devices(p->model[CUDA]);
    cJSON *json = kv_geometry_to_json(&written);
    REQUIRE_OK(kv_geometry_from_json(json, &read, error));
    cJSON_Delete(json);
    eval_arm arm = {.mode = "speculative", .sink = 4, .window = 64, .draft_window = 256};
    snprintf(arm.policy, sizeof arm.policy, "%s", how->layers == KAKEYA_RESTORE_ALL ? "restored-all" : how->name);
    backend_cache_bytes held = p->ops[CUDA]->cache_bytes(cache);
    backend_cache_bytes derived = kv_geometry_bytes(&read, &arm, p->ops[CUDA]->cache_length(cache));
    assert_memory_equal(&held, &derived, sizeof held);
}

/* A saved session of two devices goes on on one, and one of one on two. */
static void sessions_change_devices(void **state) {
    (void)state;
    static const int windows[3] = {0, 40, 0};
    model_config form = wide_form();
    form.sliding_window = 192;
    pair p;
    pair_random(&p, &form, windows, false, true);
    const backend_ops *ops = p.ops[CUDA];
    backend_model *models[2] = {p.model[CUDA], NULL};
    backend_model_options options = pair_options(&p, CUDA, false);
    options.n_devices = 1;
    REQUIRE_OK(ops->model_create(&options, &models[1], error));
    int32_t tokens[PROMPT_ROWS * 3];
    fill_tokens(tokens, PROMPT_ROWS * 3, form.vocab, 47);
    for (int k = 0; k < POLICIES; k++) {
        for (int from = 0; from < 2; from++) {
            p.model[CUDA] = models[from];
            backend_cache *cache = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
            step(&p, CUDA, cache, tokens, PROMPT_ROWS * 2, PROMPT_ROWS * 2, SEGMENT_PROMPT, NULL);
            step(&p, CUDA, cache, tokens + PROMPT_ROWS * 2, 9, 9, SEGMENT_DECODE, NULL);
            memory_stream saved = snapshot_of(&p, CUDA, cache);
            p.model[CUDA] = models[1 - from];
            backend_cache *other = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
            REQUIRE_OK(ops->cache_restore(other, memory_read, &saved, error));
            memory_stream again = snapshot_of(&p, CUDA, other);
            assert_int_equal(again.bytes, saved.bytes);
            assert_memory_equal(again.data, saved.data, saved.bytes);
            step(&p, CUDA, other, tokens + PROMPT_ROWS * 2 + 9, 5, 5, SEGMENT_DECODE, NULL);
            assert_int_equal(ops->cache_length(other), PROMPT_ROWS * 2 + 14);
            expect_bytes(&p, other, &policies[k]);
            ops->cache_destroy(cache);
            ops->cache_destroy(other);
            memory_free(&saved);
            memory_free(&again);
        }
    }
    ops->model_destroy(models[1]);
    p.model[CUDA] = models[0];
    pair_close(&p);
}

/* The first device is in the middle of a step whose second half never comes: it stops waiting, the forward fails on
 * both with one line that names the device, and the same forward works afterwards. */
static void one_device_fails(void **state) {
    (void)state;
    pair p;
    model_config form = shared_form();
    pair_random(&p, &form, NULL, false, false);
    const backend_ops *ops = p.ops[CUDA];
    size_t n = 5 * (size_t)form.vocab;
    int32_t tokens[PROMPT_ROWS + 5];
    fill_tokens(tokens, PROMPT_ROWS + 5, form.vocab, 53);
    float *expected = calloc(n, sizeof *expected), *found = calloc(n, sizeof *found);
    caller = pthread_self();
    for (int k = 0; k < 2; k++) {
        backend_cache *cache = new_cache(&p, CUDA, &policies[k], CONTEXT, false);
        step(&p, CUDA, cache, tokens, PROMPT_ROWS, PROMPT_ROWS, SEGMENT_PROMPT, NULL);
        step(&p, CUDA, cache, tokens + PROMPT_ROWS, 5, 0, SEGMENT_DECODE, expected);
        backend_segment segment = {
            .cache = cache, .tokens = tokens + PROMPT_ROWS, .n = 5, .kind = SEGMENT_DECODE, .logits = found};
        kakeya_error refusal = {0};
        atomic_store(&failing_launches, 1);
        assert_int_equal(ops->forward(p.model[CUDA], &segment, 1, &refusal), KAKEYA_BACKEND);
        assert_int_equal(atomic_load(&failing_launches), 0);
        assert_non_null(strstr(refusal.message, "device 1: "));
        assert_int_equal(ops->cache_length(cache), PROMPT_ROWS);
        assert_int_equal(ops->cache_pending(cache), 0);
        step(&p, CUDA, cache, tokens + PROMPT_ROWS, 5, 5, SEGMENT_DECODE, found);
        assert_same_bits("a step after one that failed", found, expected, n);
        ops->cache_destroy(cache);
    }
    free(expected);
    free(found);
    pair_close(&p);
}

static void expect_refusal(pair *p, const int *devices, int n, const char *words) {
    backend_model *model = NULL;
    kakeya_error refusal = {0};
    backend_model_options options = pair_options(p, CUDA, false);
    options.devices = devices;
    options.n_devices = n;
    size_t before = mem_total(&p->account);
    kakeya_status status = p->ops[CUDA]->model_create(&options, &model, &refusal);
    if (status == KAKEYA_OK || !strstr(refusal.message, words))
        fail_msg("expected a refusal with '%s', found status %d: %s", words, (int)status, refusal.message);
    assert_null(model);
    assert_int_equal(mem_total(&p->account), before);
}

static void what_is_refused(void **state) {
    (void)state;
    static const int twice[] = {0, 0}, absent[] = {0, 77}, three[] = {0, 1, 2}, nine[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    pair p;
    model_config form = shared_form();
    pair_random(&p, &form, NULL, false, false);
    expect_refusal(&p, twice, 2, "names device 0 twice");
    expect_refusal(&p, absent, 2, "names device 77");
    expect_refusal(&p, three, 3, "4 query heads");
    expect_refusal(&p, nine, 9, "9 devices");
    pair_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_of_halves),       cmocka_unit_test(near_the_reference),
        cmocka_unit_test(sessions_change_devices), cmocka_unit_test(one_device_fails),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
