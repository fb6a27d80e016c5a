/* Protects: the figures of `kakeya info`, against counts of the published models and hand-computed session sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/kv_bytes.h"
#include "model/sizes.h"
#include "scratch.h"

static model_config variant(const char *name) {
    static model_config config;
    kakeya_error error = {0};
    assert_ok(model_config_variant(name, &config, &error));
    return config;
}

static void test_parameters(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t total, ple_table;
    } published[] = {{"26b-a4b", 25233141790, 0},
                     {"31b", 30697345340, 0},
                     {"12b", 11907350320, 0},
                     {"e4b", 7463013418, 2818572288},
                     {"e2b", 4628569379, 2348810240}};
    for (size_t i = 0; i < 5; i++) {
        model_config c = variant(published[i].name);
        parameter_counts p = gemma4_parameters(&c);
        int64_t sum = 0;
        for (int g = 0; g < PARAMETERS_GROUPS; g++) sum += p.group[g];
        assert_int_equal(p.total, published[i].total);
        assert_int_equal(sum, p.total);
        assert_int_equal(p.group[PARAMETERS_PLE_TABLE], published[i].ple_table);
        if (!c.moe && !c.ple_width) assert_int_equal(p.active, p.total);
    }
    model_config c = variant("26b-a4b");
    parameter_counts p = gemma4_parameters(&c);
    assert_int_equal(p.group[PARAMETERS_EMBEDDING], 738197504);
    assert_int_equal(p.group[PARAMETERS_HEAD], 0);
    assert_int_equal(p.group[PARAMETERS_ATTENTION], 1110179840);
    assert_int_equal(p.group[PARAMETERS_DENSE_MLP], 535265280);
    assert_int_equal(p.group[PARAMETERS_EXPERTS], 22837985280);
    assert_int_equal(p.group[PARAMETERS_ROUTER], 10901760);
    assert_int_equal(p.group[PARAMETERS_NORMS], 612126);
    assert_int_equal(p.active, 3822530590);
    assert_int_equal(gemma4_bytes_per_token(&c, WEIGHT_BF16), 7645061180);
    c.tied_head = false; /* one row of the table, and a head of its own */
    p = gemma4_parameters(&c);
    assert_int_equal(p.group[PARAMETERS_HEAD], 738197504);
    assert_int_equal(p.active, 3822530590 + 2816);
}

static void test_auxiliary_models(void **state) {
    (void)state;
    model_config c = variant("26b-a4b");
    block_drafter_config drafter = {
        .layers = 5, .hidden = 2816, .heads = 32, .kv_heads = 8, .head_dim = 128, .intermediate = 5632, .targets = 6};
    assert_int_equal(dflash_parameters(&drafter), 429689088);
    restoration_config f = {.drafter_layers = 5, .drafter_kv_heads = 8, .drafter_head_dim = 128, .layers = 30};
    f.rank = f.rank_k = f.rank_v = 768;
    for (int i = 0; i < 30; i++) {
        f.kv_heads[i] = c.layer[i].kv_heads;
        f.head_dim[i] = c.layer[i].head_dim;
    }
    assert_int_equal(f_theta_parameters(&f), 94371840);
}

static void test_rings(void **state) {
    (void)state;
    static const int cases[][2] = {{1, 32}, {16, 32}, {17, 48}, {64, 80}, {1024, 1040}};
    for (size_t i = 0; i < 5; i++) assert_int_equal(kv_ring_positions(cases[i][0]), cases[i][1]);
}

typedef struct session_options {
    timeline_models models;
    backend_cache_options options;
} session_options;

static backend_cache_bytes session_bytes(const session_options *s, int positions) {
    timeline t = timeline_preview(&s->models, &s->options, positions);
    return kv_bytes(&t, 0);
}

static size_t per_token(const session_options *s) {
    timeline t = timeline_preview(&s->models, &s->options, 100);
    return kv_bytes_per_token(&t);
}

/* The demo pair: 10 sliding layers of 2 x 64 at window 256, 2 full ones of 1 x 128 with K = V. */
static void test_sessions(void **state) {
    (void)state;
    size_t bytes;
    kakeya_error error = {0};
    model_config c;
    char *json = scratch_read(KAKEYA_MODELS "/demo/config.json", &bytes);
    assert_ok(model_config_parse("config.json", json, bytes, NULL, 0, &c, &error));
    free(json);
    block_drafter_config drafter = {.layers = 3, .kv_heads = 2, .head_dim = 64};

    restoration_config f_theta = {.rank = 128, .rank_k = 128, .rank_v = 128};
    session_options policy = {{&c, NULL, &f_theta, NULL},
                              {.attention = KAKEYA_ATTENTION_NATIVE,
                               .sink = 4,
                               .window = 64,
                               .draft_window = 1024,
                               .kv_format = KV_FORMAT_BF16,
                               .keep_draft_context = true}};
    const size_t sliding_row = 2 * 128 * 2, full_row = 128 * 2;
    backend_cache_bytes b = session_bytes(&policy, 7300);
    assert_int_equal(b.sliding, 10 * sliding_row * 272);
    assert_int_equal(b.full, 2 * full_row * 64 * 115); /* 115 pages */
    assert_int_equal(b.latent, 0);
    assert_int_equal(b.draft, 0);
    assert_int_equal(b.total, b.sliding + b.full);
    assert_int_equal(per_token(&policy), 2 * full_row);

    policy.options.attention = KAKEYA_ATTENTION_SINK_WINDOW;
    policy.models.drafter = &drafter;
    b = session_bytes(&policy, 7300);
    assert_int_equal(b.sliding, 10 * sliding_row * (4 + 80));
    assert_int_equal(b.full, 2 * full_row * 64 * 115);
    assert_int_equal(b.latent, 0);
    assert_int_equal(b.draft, 3 * 2 * 128 * 2 * 1040);

    policy.options.attention = KAKEYA_ATTENTION_RESTORED;
    b = session_bytes(&policy, 7300);
    assert_int_equal(b.sliding, 10 * sliding_row * (4 + 80));
    assert_int_equal(b.latent, 272 * (2 * 128 * 2 + 20 * 4)); /* two latents; 10 layers x 2 heads */
    size_t hybrid = kv_reference_bytes(&c, KV_FORMAT_BF16, 7300, true),
           all = kv_reference_bytes(&c, KV_FORMAT_BF16, 7300, false);
    assert_int_equal(hybrid, 10 * sliding_row * 256 + 2 * 2 * full_row * 7300);
    assert_int_equal(all, 10 * sliding_row * 7300 + 2 * 2 * full_row * 7300);

    policy.options.restore_layers = KAKEYA_RESTORE_ALL;
    b = session_bytes(&policy, 7300);
    /* 7300 - 64 - 16 = 7220 lies in page 112; pages 112 to 114 stay, beside the sink */
    assert_int_equal(b.full, 2 * (full_row * 4 + 3 * 64 * full_row));
    assert_int_equal(b.latent, 115 * 64 * (512 + 22 * 4));
    assert_int_equal(per_token(&policy), 512 + 22 * 4);

    /* what does not bound, does not grow; a window beyond the model's own adds nothing */
    policy.options.restore_layers = KAKEYA_RESTORE_SLIDING;
    backend_cache_bytes near = session_bytes(&policy, 300), far = session_bytes(&policy, 8000);
    assert_int_equal(near.sliding + near.latent + near.draft, far.sliding + far.latent + far.draft);
    policy.options.window = 4096;
    assert_int_equal(session_bytes(&policy, 7300).sliding, 10 * sliding_row * (4 + 272));
}

/* K/V bytes per token of the published models, K and V both stored. */
static void test_references(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t sliding, full, q8, q4; /* codes: K = V layers hold V alone */
    } published[] = {{"26b-a4b", 204800, 20480, 5160, 2920},
                     {"31b", 819200, 81920, 20640, 11680},
                     {"12b", 327680, 16384, 4128, 2336},
                     {"e4b", 40960, 16384, 8256, 4672},
                     {"e2b", 12288, 6144, 3096, 1752}};
    for (size_t i = 0; i < 5; i++) {
        model_config c = variant(published[i].name);
        assert_int_equal(kv_reference_bytes(&c, KV_FORMAT_BF16, 1, false), published[i].sliding + published[i].full);
        assert_int_equal(kv_reference_bytes(&c, KV_FORMAT_BF16, 100000, true),
                         published[i].sliding * (size_t)c.sliding_window + published[i].full * 100000);
        session_options native = {{&c, NULL, NULL, NULL}, {.kv_format = KV_FORMAT_BF16}};
        assert_int_equal(per_token(&native), c.layer[5].k_eq_v ? published[i].full / 2 : published[i].full);
        session_options small = {{&c, NULL, NULL, NULL}, {.kv_format = KV_FORMAT_Q8}};
        assert_int_equal(per_token(&small), published[i].q8);
        assert_int_equal(session_bytes(&small, 5000).sliding, session_bytes(&native, 5000).sliding);
        session_options smaller = {{&c, NULL, NULL, NULL}, {.kv_format = KV_FORMAT_Q4}};
        assert_int_equal(per_token(&smaller), published[i].q4);
        assert_int_equal(session_bytes(&smaller, 5000).sliding, session_bytes(&native, 5000).sliding);
        assistant_config assistant; /* whose session holds one row more, and the rest as before */
        assistant_config_published(&c, &assistant);
        session_options assisted = {{&c, NULL, NULL, &assistant}, {.keep_draft_state = true}};
        session_options not_kept = {{&c, NULL, NULL, &assistant}, {.keep_draft_state = false}};
        assert_int_equal(session_bytes(&assisted, 5000).draft, mem_rounded((size_t)c.hidden * sizeof(float)));
        assert_int_equal(session_bytes(&not_kept, 5000).draft, 0);
        assert_int_equal(session_bytes(&assisted, 5000).total,
                         session_bytes(&not_kept, 5000).total + session_bytes(&assisted, 5000).draft);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters), cmocka_unit_test(test_auxiliary_models), cmocka_unit_test(test_rings),
        cmocka_unit_test(test_sessions),   cmocka_unit_test(test_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
