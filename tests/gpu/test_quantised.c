/* Quantised models on a device: the tiny reference models as they are converted to each format, with the CPU as oracle,
 * and on bits for every number of rows; the same with random codes in the forms of other tools' directories. Without a
 * device every test is skipped. */
#include "convert/convert.h"
#include "gpu/pair.h"
#include "quantised_models.h"

enum { T = 60, BATCH = 3 };

/* Logits of all rows, of prompts in chunks or of decode blocks. */
static void run_rows(pair *p, const int32_t *ids, int rows, segment_kind kind, float *logits) {
    size_t vocab = (size_t)p->verifier->config.vocab;
    backend_cache *cache = new_cache(p, CUDA, &policies[0], 128, false);
    for (int at = 0; at < T; at += rows) {
        int n = T - at < rows ? T - at : rows;
        step(p, CUDA, cache, ids + at, n, n, kind, logits + (size_t)at * vocab);
    }
    p->ops[CUDA]->cache_destroy(cache);
}

/* Sessions side by side in one forward have the bits that each has alone. */
static void check_batch(pair *p, const int32_t *ids, const float *alone) {
    size_t vocab = (size_t)p->verifier->config.vocab;
    backend_cache *caches[BATCH];
    float *logits = calloc(BATCH * vocab, sizeof *logits);
    for (int s = 0; s < BATCH; s++) caches[s] = new_cache(p, CUDA, &policies[0], 128, false);
    for (int t = 0; t < T; t++) {
        backend_segment segments[BATCH];
        for (int s = 0; s < BATCH; s++)
            segments[s] = (backend_segment){.cache = caches[s],
                                            .tokens = ids + t,
                                            .n = 1,
                                            .kind = SEGMENT_DECODE,
                                            .logits = logits + (size_t)s * vocab};
        REQUIRE_OK(p->ops[CUDA]->forward(p->model[CUDA], segments, BATCH, error));
        for (int s = 0; s < BATCH; s++) {
            REQUIRE_OK(p->ops[CUDA]->cache_commit(caches[s], 1, error));
            assert_same_bits("sessions side by side", logits + (size_t)s * vocab, alone + (size_t)t * vocab, vocab);
        }
    }
    for (int s = 0; s < BATCH; s++) p->ops[CUDA]->cache_destroy(caches[s]);
    free(logits);
}

static void check_model(const char *name, const char *path) {
    pair p;
    pair_open(&p, path, false);
    size_t vocab = (size_t)p.verifier->config.vocab;
    int32_t ids[T];
    fill_tokens(ids, T, (int)vocab, 5);
    float *logits[MODELS], *one = calloc(T * vocab, sizeof *one), *again = calloc(T * vocab, sizeof *again);
    for (int b = 0; b < MODELS; b++) {
        logits[b] = calloc(T * vocab, sizeof(float));
        backend_cache *cache = new_cache(&p, b, &policies[0], 128, false);
        step(&p, b, cache, ids, T, T, SEGMENT_PROMPT, logits[b]);
        p.ops[b]->cache_destroy(cache);
    }
    print_message("%s\n", name);
    assert_as_close("prompt", logits[CUDA], logits[CPU], logits[REFERENCE], T * vocab);
    static const int chunks[] = {1, 7, 23, 59};
    for (size_t k = 0; k < sizeof chunks / sizeof chunks[0]; k++) {
        run_rows(&p, ids, chunks[k], SEGMENT_PROMPT, again);
        assert_same_bits("chunked prompt", again, logits[CUDA], T * vocab);
    }
    run_rows(&p, ids, 1, SEGMENT_DECODE, one);
    assert_as_close("decode rows", one, logits[CPU], logits[REFERENCE], T * vocab);
    for (int rows = 2; rows <= BACKEND_MAX_DECODE_ROWS; rows++) {
        run_rows(&p, ids, rows, SEGMENT_DECODE, again);
        assert_same_bits("decode blocks", again, one, T * vocab);
    }
    check_batch(&p, ids, one);
    for (int b = 0; b < MODELS; b++) free(logits[b]);
    free(one);
    free(again);
    pair_close(&p);
}

static void check_target(convert_target target) {
    static const char *const forms[] = {"gemma4-tiny-dense", "gemma4-tiny-ple", "gemma4-tiny-moe"};
    if (!device_present()) skip();
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        char from[512], name[128];
        snprintf(from, sizeof from, "%s/golden/%s", KAKEYA_TEST_DATA, forms[i]);
        snprintf(name, sizeof name, "%s-%s%s", forms[i], convert_target_names[target],
                 target < CONVERT_AFFINE4 ? ".gguf" : "");
        convert_options options = {.to = target};
        convert_report report;
        REQUIRE_OK(convert_model(from, scratch_path(name), &options, &report, error));
        check_model(name, scratch_path(name));
    }
}

static void q4_0(void **state) {
    (void)state;
    check_target(CONVERT_Q4_0);
}

static void q8_0(void **state) {
    (void)state;
    check_target(CONVERT_Q8_0);
}

/* Blocks of 256 do not fit the widths of these models: most become Q8_0 and Q5_0. */
static void q4_k_m(void **state) {
    (void)state;
    check_target(CONVERT_Q4_K_M);
}

static void affine4(void **state) {
    (void)state;
    check_target(CONVERT_AFFINE4);
}

static void other_tools(void **state) {
    (void)state;
    static const struct {
        const char *model;
        stored_form form;
    } cases[] = {{"gemma4-tiny-moe", STORED_INT4},        {"gemma4-tiny-moe", STORED_INT4_ZERO},
                 {"gemma4-tiny-dense", STORED_INT8},      {"gemma4-tiny-moe", STORED_W8A8},
                 {"gemma4-tiny-ple", STORED_MLX_MXFP4},   {"gemma4-tiny-ple", STORED_MLX_NVFP4},
                 {"gemma4-tiny-dense", STORED_MLX_MXFP4}, {"gemma4-tiny-moe", STORED_MODELOPT_NVFP4},
                 {"gemma4-tiny-moe", STORED_NVFP4}};
    if (!device_present()) skip();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[128];
        made_model(cases[i].model, cases[i].form);
        snprintf(name, sizeof name, "%s, form %d", cases[i].model, (int)cases[i].form);
        check_model(name, scratch_path("quantised"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q4_0),    cmocka_unit_test(q8_0),        cmocka_unit_test(q4_k_m),
        cmocka_unit_test(affine4), cmocka_unit_test(other_tools),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
