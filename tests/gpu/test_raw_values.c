/* Models whose values pass no norm (Gemma 3) on a device, under every policy. Without one every test is skipped. */
#include "gpu/policy_checks.h"

static void form_without_value_norm(void **state) {
    (void)state;
    check_form("forms/gemma3-nested");
}

/* Gemma 3, whose values pass no norm: all that a policy does, with f_thetas of several ranks. */
static void values_without_norm(void **state) {
    (void)state;
    static const int ranks[][2] = {{136, 200}, {72, 40}};
    model_config form = gemma3_form();
    for (int k = 0; k < POLICIES; k++) check_window(&form, &policies[k], 5, NULL, policies[k].name);
    for (int i = 0; i < 2; i++) check_window(&form, &policies[2 + i], 5, ranks[i], "values without norm, two ranks");
}

/* Their latents have 1 in the place of a norm's scalar, on the device as on the CPU: sessions change sides. */
static void snapshots_without_value_norm(void **state) {
    (void)state;
    enum { ROWS = 700, ANSWER = 30 };
    static const int windows[3] = {0, 0, 0};
    pair p;
    model_config form = gemma3_form();
    pair_random(&p, &form, windows, false, true);
    size_t vocab = (size_t)form.vocab;
    int32_t tokens[ROWS + ANSWER];
    fill_tokens(tokens, ROWS + ANSWER, form.vocab, 53);
    float *a = calloc(9 * vocab, sizeof *a), *b = calloc(9 * vocab, sizeof *b);
    for (int k = 0; k < POLICIES; k++) {
        backend_cache *cache = new_cache(&p, CUDA, &policies[k], CONTEXT, true),
                      *host = new_cache(&p, CPU, &policies[k], CONTEXT, true),
                      *back = new_cache(&p, CUDA, &policies[k], CONTEXT, true);
        step(&p, CUDA, cache, tokens, ROWS, ROWS, SEGMENT_PROMPT, NULL);
        for (int i = 0; i < ANSWER; i++) step(&p, CUDA, cache, tokens + ROWS + i, 1, 1, SEGMENT_DECODE, NULL);
        memory_stream data = snapshot_of(&p, CUDA, cache);
        REQUIRE_OK(p.ops[CPU]->cache_restore(host, memory_read, &data, error));
        memory_stream host_data = snapshot_of(&p, CPU, host);
        assert_int_equal(data.bytes, host_data.bytes);
        assert_memory_equal(data.data, host_data.data, data.bytes);
        REQUIRE_OK(p.ops[CUDA]->cache_restore(back, memory_read, &host_data, error));
        step(&p, CUDA, cache, tokens + 60, 9, 9, SEGMENT_DECODE, a);
        step(&p, CUDA, back, tokens + 60, 9, 9, SEGMENT_DECODE, b);
        assert_same_bits(policies[k].name, b, a, 9 * vocab);
        p.ops[CUDA]->cache_destroy(cache);
        p.ops[CUDA]->cache_destroy(back);
        p.ops[CPU]->cache_destroy(host);
        memory_free(&data);
        memory_free(&host_data);
    }
    free(a);
    free(b);
    pair_close(&p);
}

static void later_prompts_without_value_norm(void **state) {
    (void)state;
    static const int windows[3] = {0, 0, 0};
    model_config form = gemma3_form();
    form.sliding_window = 192;                                             /* smaller than the conversation */
    for (int i = 0; i < form.layers; i++) form.layer[i].intermediate -= 7; /* prompts multiply eights of rows */
    pair p;
    pair_random(&p, &form, windows, false, true);
    check_later_prompts(&p, "values without norm", form.sliding_window);
    pair_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(form_without_value_norm),
        cmocka_unit_test(values_without_norm),
        cmocka_unit_test(snapshots_without_value_norm),
        cmocka_unit_test(later_prompts_without_value_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
