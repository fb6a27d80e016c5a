/* Protects: drafters and f_theta are bound completely, and refused before anything runs where they are broken or do not
 * fit the verifier, naming both numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "copies.h"
#include "model/restoration.h"
#include "scratch.h"

static kakeya_error error;
static mem_account account;
static language_model *demo;

#define DRAFTER KAKEYA_MODELS "/demo-dflash"
#define F_THETA KAKEYA_TEST_DATA "/golden/demo-f-theta-regression"

/* ------------------------------------------------------------------------------------------------ drafter */

static void test_drafter(void **state) {
    (void)state;
    size_t before = mem_total(&account);
    block_drafter_model *d;
    assert_ok(block_drafter_model_open(DRAFTER, &demo->config, &account, &d, &error));
    const block_drafter_config *c = &d->config;
    assert_int_equal(c->layers, 3);
    assert_int_equal(c->block_size, 8);
    assert_int_equal(c->mask_token, 4);
    assert_int_equal(c->targets, 3);
    assert_int_equal(c->target_layer[2], 9);
    assert_int_equal(c->target_layers_total, 12);
    assert_int_equal(c->sliding_window[0], 0);
    assert_true(c->logit_softcap == 30 && c->rope_theta == 1e6f);
    assert_int_equal(d->fc.out, 256);
    assert_int_equal(d->fc.in, 768);
    for (int i = 0; i < 3; i++) {
        const block_drafter_layer_weights *l = &d->layer[i];
        assert_non_null(l->q_norm);
        assert_non_null(l->post_attention_norm);
        assert_int_equal(l->k_proj.out, 128);
        assert_int_equal(l->down_proj.in, 512);
    }
    block_drafter_model_close(d);
    block_drafter_model_close(NULL);
    assert_int_equal(mem_total(&account), before);
}

static const char drafter_json[] =
    "{\"hidden_size\": 256, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"head_dim\": 64,"
    "\"intermediate_size\": 512, \"vocab_size\": 8192, \"num_target_layers\": 12, \"final_logit_softcapping\": null,"
    "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\"], \"sliding_window\": 128,"
    "\"block_size\": 8, \"dflash_config\": {\"target_layer_ids\": [1, 5, 9], \"mask_token_id\": 4}}";

static kakeya_status parse_drafter(const char *json, block_drafter_config *c) {
    return block_drafter_config_parse("config.json", json, strlen(json), c, &error);
}

static void test_drafter_config(void **state) {
    (void)state;
    block_drafter_config c;
    assert_ok(parse_drafter(drafter_json, &c));
    assert_int_equal(c.block_size, 8); /* from the top level */
    assert_int_equal(c.sliding_window[0], 128);
    assert_int_equal(c.sliding_window[1], 0);
    assert_true(c.logit_softcap == 0 && c.rope_theta == 1e6f && c.rms_eps == 1e-6f);
    char *json = scratch_replace(drafter_json, "\"mask_token_id\": 4", "\"mask_token_id\": 4, \"block_size\": 16");
    assert_ok(parse_drafter(json, &c));
    assert_int_equal(c.block_size, 16); /* block_drafter_config goes first */
    free(json);

    static const struct {
        const char *from, *to;
        kakeya_status status;
        const char *message;
    } cases[] = {
        {"\"dflash_config\"", "\"other\"", KAKEYA_FORMAT, "does not look like a DFlash drafter checkpoint"},
        {"[1, 5, 9]", "[]", KAKEYA_FORMAT, "does not look like a DFlash drafter checkpoint"},
        {"[1, 5, 9]", "[1, 5, 12]", KAKEYA_FORMAT, "target_layer_ids[2] is not an integer from 0 to 11"},
        {"[1, 5, 9]", "[0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6]", KAKEYA_FORMAT,
         "target_layer_ids has 17 entries, at most 16"},
        {", \"mask_token_id\": 4", "", KAKEYA_FORMAT, "mask_token_id is missing"},
        {"\"mask_token_id\": 4", "\"mask_token_id\": 8192", KAKEYA_FORMAT, "mask_token_id is 8192"},
        {"\"block_size\": 8,", "", KAKEYA_FORMAT, "block_size is missing"},
        {"\"block_size\": 8", "\"block_size\": 1", KAKEYA_FORMAT, "block_size is 1"},
        {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", KAKEYA_FORMAT, "4 attention heads cannot share 3"},
        {"\"head_dim\": 64", "\"head_dim\": 63", KAKEYA_FORMAT, "head dimension 63"},
        {"\"hidden_size\": 256,", "", KAKEYA_FORMAT, "hidden_size is missing"},
        {"\"num_hidden_layers\": 3", "\"num_hidden_layers\": 17", KAKEYA_FORMAT, "num_hidden_layers is 17"},
        {"\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4", KAKEYA_FORMAT,
         "layer_types has 3 entries, num_hidden_layers is 4"},
        {"\"full_attention\"", "\"mamba\"", KAKEYA_UNSUPPORTED, "layer_types[1]: unknown layer type \"mamba\""},
        {"\"sliding_window\": 128,", "", KAKEYA_FORMAT, "sliding_window is missing"},
        {"\"block_size\"", "\"hidden_act\": \"gelu\", \"block_size\"", KAKEYA_UNSUPPORTED, "hidden_act \"gelu\""},
        {"\"block_size\"", "\"attention_bias\": true, \"block_size\"", KAKEYA_UNSUPPORTED, "attention_bias"},
        {"\"block_size\"", "\"rope_scaling\": {}, \"block_size\"", KAKEYA_UNSUPPORTED, "rope_scaling"},
        {"\"block_size\"", "\"rope_parameters\": {\"rope_type\": \"yarn\"}, \"block_size\"", KAKEYA_UNSUPPORTED,
         "rope_parameters.rope_type \"yarn\""},
        {"\"hidden_size\": 256,", "\"hidden_size\": 256, \"hidden_size\": 128,", KAKEYA_FORMAT,
         "the key \"hidden_size\" appears twice"},
        {"{", "", KAKEYA_FORMAT, "malformed JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json = scratch_replace(drafter_json, cases[i].from, cases[i].to);
        assert_refused(parse_drafter(json, &c), cases[i].status, "config.json: ", cases[i].message);
        free(json);
    }
}

static kakeya_status open_drafter_for(model_config verifier) {
    block_drafter_model *d;
    kakeya_status status = block_drafter_model_open(DRAFTER, &verifier, &account, &d, &error);
    block_drafter_model_close(d);
    return status;
}

static kakeya_status open_changed_drafter(copy_change change) {
    scratch_folder("d");
    copy_file(DRAFTER "/config.json", "d/config.json");
    copy_safetensors(DRAFTER "/model.safetensors", scratch_path("d/model.safetensors"), &change);
    block_drafter_model *d;
    kakeya_status status = block_drafter_model_open(scratch_path("d"), &demo->config, &account, &d, &error);
    block_drafter_model_close(d);
    return status;
}

#define CHANGE(...) ((copy_change){__VA_ARGS__})

static void test_drafter_refusals(void **state) {
    (void)state;
    model_config verifier = demo->config;
    verifier.hidden = 512;
    assert_refused(open_drafter_for(verifier), KAKEYA_FORMAT, "hidden_size is 256", "512");
    verifier = demo->config;
    verifier.vocab = 9000;
    assert_refused(open_drafter_for(verifier), KAKEYA_FORMAT, "vocab_size is 8192", "9000");
    verifier = demo->config;
    verifier.layers = 11;
    assert_refused(open_drafter_for(verifier), KAKEYA_FORMAT, "12 layers", "11");

    assert_refused(open_changed_drafter(CHANGE(.drop = "fc.weight")), KAKEYA_FORMAT, "1 missing",
                   "fc.weight [256, 768]");
    assert_refused(open_changed_drafter(CHANGE(.add = {"embed_tokens.weight"})), KAKEYA_FORMAT, "1 unexpected",
                   "embed_tokens.weight");
    assert_refused(open_changed_drafter(CHANGE(.from_prefix = "layers.0.", .to_prefix = "layers.7.")), KAKEYA_FORMAT,
                   "11 missing", "11 unexpected", "layers.7.mlp");
    assert_refused(open_changed_drafter(CHANGE(.reshape = "layers.1.mlp.up_proj.weight")), KAKEYA_FORMAT,
                   "[1, 256, 512]", "[512, 256]");

    block_drafter_model *d;
    assert_refused(block_drafter_model_open(KAKEYA_MODELS "/demo", &demo->config, &account, &d, &error), KAKEYA_FORMAT,
                   "does not look like a DFlash drafter checkpoint");
    assert_refused(block_drafter_model_open(scratch_path("none"), &demo->config, &account, &d, &error), KAKEYA_IO,
                   "no such directory");
    assert_null(d);
}

/* The published drafters' shapes, and a usable one for every prefix. */
static void test_synthetic_drafter(void **state) {
    (void)state;
    model_config verifier;
    static const struct {
        const char *verifier;
        int heads, intermediate, targets, target[6];
    } cases[] = {{"26b-a4b", 32, 5632, 6, {1, 6, 11, 17, 22, 27}},
                 {"26b-a4b:layers=6", 32, 5632, 3, {1, 2, 3}},
                 {"26b-a4b:layers=1", 32, 5632, 1, {0}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t before = mem_total(&account);
        assert_ok(model_config_variant(cases[i].verifier, &verifier, &error));
        block_drafter_model *d;
        assert_ok(block_drafter_model_synthesize(&verifier, &account, &d, &error));
        assert_int_equal(d->config.heads, cases[i].heads);
        assert_int_equal(d->config.intermediate, cases[i].intermediate);
        assert_int_equal(d->config.targets, cases[i].targets);
        assert_memory_equal(d->config.target_layer, cases[i].target, (size_t)cases[i].targets * sizeof(int));
        assert_int_equal(d->config.block_size, 16);
        assert_int_equal(d->config.sliding_window[3], 2048);
        assert_int_equal(d->config.sliding_window[4], 0);
        assert_int_equal(d->fc.in, cases[i].targets * 2816);
        assert_int_equal(d->layer[4].gate_proj.format, WEIGHT_BF16);
        block_drafter_model_close(d);
        assert_int_equal(mem_total(&account), before);
    }
}

/* ------------------------------------------------------------------------------------------------ f_theta */

static block_drafter_config drafter_config;

static kakeya_status open_f_theta(const char *directory, const model_config *verifier,
                                  const block_drafter_config *drafter, restoration_model **out) {
    return restoration_model_open(directory, verifier, drafter, &account, out, &error);
}

static void test_f_theta(void **state) {
    (void)state;
    restoration_model *f;
    assert_ok(open_f_theta(F_THETA, &demo->config, &drafter_config, &f));
    assert_int_equal(f->config.input, RESTORATION_DRAFTER_CONTEXT_KV);
    assert_int_equal(f->config.rank, 128);
    assert_int_equal(f->encoder_in, 384);
    assert_int_equal(f->encoder_k.out, 128);
    assert_int_equal(f->encoder_v.in, 384);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(f->decoder_k[i].out, 128);
        assert_int_equal(f->decoder_v[i].in, 128);
        assert_non_null(f->decoder_k[i].stream[0]);
        if (i) assert_ptr_not_equal(f->decoder_k[i].stream[0], f->decoder_k[i - 1].stream[0]);
    }
    restoration_model_close(f);
    restoration_model_close(NULL);
}

static const char f_theta_json[] =
    "{\"drafter_num_layers\": 3, \"drafter_num_kv_heads\": 2, \"drafter_head_dim\": 64, \"verifier_num_layers\": 4,"
    "\"verifier_num_kv_heads\": 2, \"verifier_head_dim\": 64, \"rank\": 16, \"verifier_layer_kv_heads\": [2, 2, 2, 1],"
    "\"verifier_layer_head_dims\": null}";

static kakeya_status parse_f_theta(const char *json, restoration_config *c) {
    return restoration_config_parse("f_theta_config.json", json, strlen(json), c, &error);
}

static void test_f_theta_config(void **state) {
    (void)state;
    restoration_config c;
    assert_ok(parse_f_theta(f_theta_json, &c));
    assert_int_equal(c.input, RESTORATION_DRAFTER_TOKEN_KV); /* the reference writes no "input" */
    assert_int_equal(c.kv_heads[3], 1);
    assert_int_equal(c.head_dim[3], 64); /* null: uniform */
    static const struct {
        const char *from, *to;
        kakeya_status status;
        const char *message;
    } cases[] = {
        {"\"rank\"", "\"ranks\"", KAKEYA_FORMAT, "unknown key \"ranks\""},
        {"[2, 2, 2, 1]", "[2, 2, 1]", KAKEYA_FORMAT, "verifier_layer_kv_heads has 3 entries, verifier_num_layers is 4"},
        {"[2, 2, 2, 1]", "[]", KAKEYA_FORMAT, "has 0 entries"},
        {"[2, 2, 2, 1]", "[2, 2, 2, 0]", KAKEYA_FORMAT, "verifier_layer_kv_heads[3]"},
        {"\"rank\": 16", "\"rank\": 0", KAKEYA_FORMAT, "rank is 0"},
        {"\"drafter_head_dim\": 64,", "", KAKEYA_FORMAT, "drafter_head_dim is missing"},
        {"\"rank\": 16", "\"input\": \"tokens\"", KAKEYA_UNSUPPORTED, "input \"tokens\""},
        {"\"verifier_num_layers\": 4", "\"verifier_num_layers\": 1000", KAKEYA_FORMAT, "verifier_num_layers is 1000"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *json = scratch_replace(f_theta_json, cases[i].from, cases[i].to);
        assert_refused(parse_f_theta(json, &c), cases[i].status, "f_theta_config.json: ", cases[i].message);
        free(json);
    }
    char *json = scratch_replace(f_theta_json, "\"rank\": 16", "\"input\": \"drafter_kv\"");
    assert_ok(parse_f_theta(json, &c));
    assert_int_equal(c.rank, 256);
    free(json);
}

static const char aux_json[] =
    "{\"input\": \"aux_hidden\", \"verifier_hidden_size\": 64, \"aux_layers\": [1, 3], \"verifier_num_layers\": 4,"
    "\"verifier_num_kv_heads\": 2, \"verifier_head_dim\": 64, \"rank\": 16}";

static void test_aux_config(void **state) {
    (void)state;
    restoration_config c;
    assert_ok(parse_f_theta(aux_json, &c));
    assert_int_equal(c.input, RESTORATION_AUX_HIDDEN);
    assert_int_equal(c.latents, RESTORATION_LATENTS_KV);
    assert_true(c.shared_latent && c.rank == 16 && c.rank_k == 16 && c.rank_v == 16);
    assert_int_equal(restoration_encoder_in(&c), 128);
    char *json = scratch_replace(aux_json, "\"rank\": 16", "\"rank_k\": 8, \"rank_v\": 24, \"latent_format\": \"q4\"");
    assert_ok(parse_f_theta(json, &c));
    assert_true(!c.shared_latent && c.rank == 24 && c.rank_k == 8 && c.rank_v == 24 &&
                c.latents == RESTORATION_LATENTS_Q4);
    free(json);
    static const struct {
        const char *from, *to;
        kakeya_status status;
        const char *message;
    } cases[] = {
        {"[1, 3]", "[3, 1]", KAKEYA_FORMAT, "aux_layers[1] is layer 1, after layer 3"},
        {"[1, 3]", "[1, 4]", KAKEYA_FORMAT, "aux_layers[1] is layer 4, verifier_num_layers is 4"},
        {"[1, 3]", "[]", KAKEYA_FORMAT, "aux_layers names no layer"},
        {"\"rank\": 16", "\"rank_k\": 16", KAKEYA_FORMAT, "rank_k is given without rank_v"},
        {"\"rank\": 16", "\"rank\": 16, \"rank_k\": 8, \"rank_v\": 8", KAKEYA_FORMAT, "both given"},
        {", \"rank\": 16", "", KAKEYA_FORMAT, "rank is missing"},
        {"\"rank\": 16", "\"rank\": 16, \"latent_format\": \"q5\"", KAKEYA_UNSUPPORTED, "latent_format \"q5\""},
        {"\"rank\": 16", "\"rank\": 16, \"drafter_head_dim\": 8", KAKEYA_FORMAT,
         "key \"drafter_head_dim\" has no meaning for input \"aux_hidden\""},
        {"\"aux_hidden\"", "\"drafter_kv\"", KAKEYA_FORMAT, "has no meaning for input \"drafter_kv\""},
        {"\"verifier_hidden_size\": 64,", "", KAKEYA_FORMAT, "verifier_hidden_size is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json = scratch_replace(aux_json, cases[i].from, cases[i].to);
        assert_refused(parse_f_theta(json, &c), cases[i].status, "f_theta_config.json: ", cases[i].message);
        free(json);
    }
}

/* One that reads a drafter says so where there is none. */
static void test_f_theta_without_drafter(void **state) {
    (void)state;
    restoration_model *f;
    assert_refused(open_f_theta(F_THETA, &demo->config, NULL, &f), KAKEYA_INVALID_ARGUMENT, "demo-f-theta-regression",
                   "needs a drafter");
}

static kakeya_status refuse_f_theta(const model_config *verifier, const block_drafter_config *drafter) {
    restoration_model *f;
    kakeya_status status = open_f_theta(F_THETA, verifier, drafter, &f);
    restoration_model_close(f);
    return status;
}

static kakeya_status open_changed_f_theta(const char *file, copy_change change) {
    char target[64];
    scratch_folder("f");
    copy_file(F_THETA "/f_theta_config.json", "f/f_theta_config.json");
    snprintf(target, sizeof target, "f/%s", file);
    copy_safetensors(F_THETA "/f_theta_weights.safetensors", scratch_path(target), &change);
    restoration_model *f;
    kakeya_status status = open_f_theta(scratch_path("f"), &demo->config, &drafter_config, &f);
    restoration_model_close(f);
    remove(scratch_path(target));
    return status;
}

static void test_f_theta_refusals(void **state) {
    (void)state;
    block_drafter_config drafter = drafter_config;
    drafter.layers = 5;
    assert_refused(refuse_f_theta(&demo->config, &drafter), KAKEYA_FORMAT, "drafter_num_layers is 3", "drafter has 5");
    drafter = drafter_config;
    drafter.kv_heads = 8;
    assert_refused(refuse_f_theta(&demo->config, &drafter), KAKEYA_FORMAT, "drafter_num_kv_heads is 2",
                   "drafter has 8");
    drafter = drafter_config;
    drafter.head_dim = 128;
    assert_refused(refuse_f_theta(&demo->config, &drafter), KAKEYA_FORMAT, "drafter_head_dim is 64", "drafter has 128");
    model_config verifier = demo->config;
    verifier.layers = 10;
    assert_refused(refuse_f_theta(&verifier, &drafter_config), KAKEYA_FORMAT, "verifier_num_layers is 12",
                   "verifier has 10");
    verifier = demo->config;
    verifier.layer[5].kv_heads = 2;
    assert_refused(refuse_f_theta(&verifier, &drafter_config), KAKEYA_FORMAT, "K/V heads of layer 5 is 1",
                   "verifier has 2");
    verifier = demo->config;
    verifier.layer[3].head_dim = 32;
    assert_refused(refuse_f_theta(&verifier, &drafter_config), KAKEYA_FORMAT, "head dimension of layer 3 is 64",
                   "verifier has 32");

    const char *weights = "f_theta_weights.safetensors";
    assert_ok(open_changed_f_theta("model.safetensors", CHANGE(.drop = NULL))); /* the other accepted name */
    assert_refused(open_changed_f_theta(weights, CHANGE(.drop = "decoders_v.11.weight")), KAKEYA_FORMAT,
                   "decoders_v.11.weight [128, 128]");
    assert_refused(open_changed_f_theta(weights, CHANGE(.add = {"encoder_k.bias"})), KAKEYA_FORMAT, "1 unexpected",
                   "encoder_k.bias");
    assert_refused(open_changed_f_theta(weights, CHANGE(.reshape = "encoder_k.weight")), KAKEYA_FORMAT, "[1, 384, 128]",
                   "[128, 384]");

    restoration_model *f;
    assert_refused(open_f_theta(scratch_path("f"), &demo->config, &drafter_config, &f), KAKEYA_IO,
                   "neither f_theta_weights.safetensors nor model.safetensors");
    scratch_text("f/f_theta_weights.pt", "pickle");
    assert_refused(open_f_theta(scratch_path("f"), &demo->config, &drafter_config, &f), KAKEYA_UNSUPPORTED,
                   "f_theta_weights.pt", "save_file(", "'f_theta_weights.safetensors')");
    assert_refused(open_f_theta(scratch_path("none"), &demo->config, &drafter_config, &f), KAKEYA_IO,
                   "no such directory");
    assert_null(f);
}

static int setup(void **state) {
    mem_account_init(&account, NULL, 0);
    size_t bytes;
    char *json = scratch_read(DRAFTER "/config.json", &bytes);
    int failed = block_drafter_config_parse("config.json", json, bytes, &drafter_config, &error) != KAKEYA_OK;
    free(json);
    return failed || language_model_open(KAKEYA_MODELS "/demo", &account, &demo, &error) != KAKEYA_OK ||
           scratch_setup(state);
}

static int teardown(void **state) {
    language_model_close(demo);
    return mem_total(&account) != 0 || scratch_teardown(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drafter),          cmocka_unit_test(test_drafter_config),
        cmocka_unit_test(test_drafter_refusals), cmocka_unit_test(test_synthetic_drafter),
        cmocka_unit_test(test_f_theta),          cmocka_unit_test(test_f_theta_config),
        cmocka_unit_test(test_aux_config),       cmocka_unit_test(test_f_theta_without_drafter),
        cmocka_unit_test(test_f_theta_refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
