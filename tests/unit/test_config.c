/* Protects: both dialects of the published configurations give the same model; what cannot be run is refused by name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/language_model.h"
#include "scratch.h"

static kakeya_error error;
static model_config config;

static kakeya_status parse(const char *json, const char *generation) {
    return model_config_parse("config.json", json, strlen(json), generation, generation ? strlen(generation) : 0,
                              &config, &error);
}

/* A published-style dense configuration; tests change single keys of it. */
static const char dense[] =
    "{\"architectures\": [\"Gemma4ForConditionalGeneration\"], \"model_type\": \"gemma4\", \"eos_token_id\": [1, "
    "106],\n"
    " \"vision_config\": {\"hidden_size\": 1}, \"text_config\": {\n"
    "  \"model_type\": \"gemma4_text\", \"num_hidden_layers\": 12, \"hidden_size\": 64, \"vocab_size\": 512,\n"
    "  \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 16, \"global_head_dim\": 32,\n"
    "  \"num_global_key_value_heads\": 2, \"attention_k_eq_v\": true, \"intermediate_size\": 96, \"sliding_window\": "
    "24,\n"
    "  \"max_position_embeddings\": 1000, \"hidden_size_per_layer_input\": 0, \"num_kv_shared_layers\": 0,\n"
    "  \"use_double_wide_mlp\": false, \"final_logit_softcapping\": 30.0, \"tie_word_embeddings\": true,\n"
    "  \"use_bidirectional_attention\": \"vision\", \"enable_moe_block\": false, \"num_experts\": null,\n"
    "  \"eos_token_id\": 1, \"dtype\": \"bfloat16\", \"rope_parameters\": {\n"
    "   \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0},\n"
    "   \"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 1000000.0, \"partial_rotary_factor\": "
    "0.25}}}}";

static void test_nested(void **state) {
    (void)state;
    assert_ok(parse(dense, "{\"eos_token_id\": [1, 106, 50], \"suppress_tokens\": [400, 401]}"));
    assert_int_equal(config.layers, 12);
    assert_int_equal(config.hidden, 64);
    assert_int_equal(config.heads, 8);
    assert_int_equal(config.max_context, 1000);
    assert_int_equal(config.sliding_window, 24);
    assert_true(config.rms_eps == 1e-6f && config.logit_softcap == 30.0f && config.tied_head);
    assert_int_equal(config.checkpoint_format, WEIGHT_BF16);
    assert_string_equal(config.variant, "gemma4");
    for (int i = 0; i < 12; i++) {
        const layer_config *l = &config.layer[i];
        bool full = i == 5 || i == 11; /* the default pattern */
        assert_int_equal(l->type, full ? LAYER_FULL : LAYER_SLIDING);
        assert_int_equal(l->head_dim, full ? 32 : 16);
        assert_int_equal(l->kv_heads, full ? 2 : 4);
        assert_int_equal(l->k_eq_v, full);
        assert_int_equal(l->kv_source, i);
        assert_int_equal(l->intermediate, 96);
    }
    assert_int_equal(config.rope[LAYER_SLIDING].rotated_pairs, 8);
    assert_int_equal(config.rope[LAYER_FULL].rotated_pairs, 4);
    assert_true(config.rope[LAYER_SLIDING].theta == 1e4f && config.rope[LAYER_FULL].theta == 1e6f);
    assert_true(config.rope[LAYER_FULL].factor == 1.0f);
    assert_int_equal(config.n_stop_tokens, 3);
    assert_int_equal(config.stop_tokens[0], 1);
    assert_int_equal(config.stop_tokens[1], 106);
    assert_int_equal(config.stop_tokens[2], 50);
    assert_int_equal(config.n_suppress_tokens, 2);
    assert_int_equal(config.suppress_tokens[1], 401);
    assert_int_equal(config.bos_token, 2);
}

static void test_flat_defaults(void **state) {
    (void)state;
    /* only what has no default */
    assert_ok(parse(
        "{\"model_type\": \"gemma4_text\", \"num_hidden_layers\": 7, \"hidden_size\": 64, \"num_attention_heads\": 4,"
        "\"num_key_value_heads\": 2, \"intermediate_size\": 96}",
        NULL));
    assert_int_equal(config.vocab, 262144);
    assert_int_equal(config.sliding_window, 512);
    assert_int_equal(config.ple_width, 256);
    assert_int_equal(config.ple_vocab, 262144);
    assert_true(config.logit_softcap == 0);
    assert_int_equal(config.layer[5].type, LAYER_FULL);
    assert_int_equal(config.layer[6].type, LAYER_FULL); /* the last one is forced */
    assert_int_equal(config.layer[4].type, LAYER_SLIDING);
    assert_int_equal(config.layer[0].head_dim, 256);
    assert_int_equal(config.layer[5].head_dim, 512);
    assert_int_equal(config.layer[5].kv_heads, 2);
    assert_false(config.layer[5].k_eq_v);
    assert_int_equal(config.rope[LAYER_FULL].rotated_pairs, 64);
    assert_int_equal(config.rope[LAYER_SLIDING].rotated_pairs, 128);
    assert_int_equal(config.n_stop_tokens, 1);
    assert_int_equal(config.stop_tokens[0], 1);
    assert_int_equal(config.checkpoint_format, WEIGHT_FORMAT_COUNT);

    /* nested configurations may leave out whatever equals the class's default */
    assert_ok(parse("{\"model_type\": \"gemma4\", \"text_config\": {}}", NULL));
    assert_int_equal(config.layers, 30);
    assert_int_equal(config.hidden, 2304);
    assert_int_equal(config.heads, 8);
    assert_int_equal(config.layer[0].kv_heads, 4);
    assert_int_equal(config.layer[0].intermediate, 9216);
    /* the last layer is a full one even where the list says otherwise */
    assert_ok(parse("{\"model_type\": \"gemma4\", \"text_config\": {\"num_hidden_layers\": 2, \"layer_types\": "
                    "[\"sliding_attention\", \"sliding_attention\"]}}",
                    NULL));
    assert_int_equal(config.layer[0].type, LAYER_SLIDING);
    assert_int_equal(config.layer[1].type, LAYER_FULL);
    assert_int_equal(config.layer[1].head_dim, 512);
}

/* A re-saved configuration means the same model as the published one. */
static void test_resaved(void **state) {
    (void)state;
    assert_ok(parse(dense, NULL));
    model_config published = config;
    char *step = scratch_replace(dense, "\"global_head_dim\": 32,", "");
    char *resaved = scratch_replace(step, "\"num_global_key_value_heads\": 2,",
                                    "\"per_layer_config\": {\"05\": {\"head_dim\": 32, \"num_key_value_heads\": 2},"
                                    "\"11\": {\"head_dim\": 32, \"num_key_value_heads\": 2}},");
    assert_ok(parse(resaved, NULL));
    assert_memory_equal(&config, &published, sizeof config);
    char *both = scratch_replace(resaved, "\"per_layer_config\"", "\"global_head_dim\": 64, \"per_layer_config\"");
    assert_ok(parse(both, NULL)); /* the overrides replace the published keys */
    assert_memory_equal(&config, &published, sizeof config);
    free(both);
    char *bad = scratch_replace(resaved, "\"05\"", "\"12\"");
    assert_refused(parse(bad, NULL), KAKEYA_FORMAT, "per_layer_config", "\"12\"", "12 layers");
    free(bad);
    bad = scratch_replace(resaved, "\"05\"", "\"five\"");
    assert_refused(parse(bad, NULL), KAKEYA_FORMAT, "\"five\"");
    free(bad);
    bad = scratch_replace(resaved, "\"05\": {\"head_dim\"", "\"05\": {\"sliding_window\"");
    assert_refused(parse(bad, NULL), KAKEYA_UNSUPPORTED, "layer 5 overrides \"sliding_window\"");
    free(bad);
    bad = scratch_replace(resaved, "\"05\": {\"head_dim\": 32", "\"05\": {\"head_dim\": 64");
    assert_refused(parse(bad, NULL), KAKEYA_UNSUPPORTED, "full_attention layers 5 and 11", "64 and 32");
    free(bad);
    free(resaved);
    free(step);
}

static void test_shared_kv(void **state) {
    (void)state;
    char *step = scratch_replace(dense, "\"num_kv_shared_layers\": 0", "\"num_kv_shared_layers\": 5");
    char *json = scratch_replace(step, "\"use_double_wide_mlp\": false", "\"use_double_wide_mlp\": true");
    assert_ok(parse(json, NULL));
    static const int sources[12] = {0, 1, 2, 3, 4, 5, 6, 6, 6, 6, 6, 5};
    for (int i = 0; i < 12; i++) {
        assert_int_equal(config.layer[i].kv_source, sources[i]);
        assert_int_equal(config.layer[i].intermediate, i < 7 ? 96 : 192);
    }
    free(json);
    free(step);
    json = scratch_replace(dense, "\"num_kv_shared_layers\": 0", "\"num_kv_shared_layers\": 8");
    assert_refused(parse(json, NULL), KAKEYA_FORMAT, "num_kv_shared_layers is 8",
                   "layer 5 has no earlier full_attention");
    free(json);
    json = scratch_replace(dense, "\"num_kv_shared_layers\": 0", "\"num_kv_shared_layers\": 12");
    assert_refused(parse(json, NULL), KAKEYA_FORMAT, "num_kv_shared_layers is 12 of 12");
    free(json);
}

static void test_moe(void **state) {
    (void)state;
    char *json = scratch_replace(
        dense, "\"enable_moe_block\": false, \"num_experts\": null",
        "\"enable_moe_block\": true, \"num_experts\": 16, \"top_k_experts\": 4, \"moe_intermediate_size\": 8");
    assert_ok(parse(json, NULL));
    assert_true(config.moe);
    assert_int_equal(config.experts, 16);
    assert_int_equal(config.experts_per_token, 4);
    assert_int_equal(config.expert_intermediate, 8);
    char *bad = scratch_replace(json, "\"top_k_experts\": 4", "\"top_k_experts\": 17");
    assert_refused(parse(bad, NULL), KAKEYA_FORMAT, "top_k_experts is 17", "16 experts");
    free(bad);
    bad = scratch_replace(json, "\"moe_intermediate_size\": 8", "\"other\": 8");
    assert_refused(parse(bad, NULL), KAKEYA_FORMAT, "moe_intermediate_size is missing");
    free(bad);
    bad = scratch_replace(json, "\"num_experts\": 16", "\"num_experts\": 16384");
    free(json);
    json = scratch_replace(bad, "\"moe_intermediate_size\": 8", "\"moe_intermediate_size\": 131072");
    assert_refused(parse(json, NULL), KAKEYA_FORMAT, "16384 experts of width 131072");
    free(bad);
    free(json);
}

static void test_values(void **state) {
    (void)state;
    char *json = scratch_replace(dense, "\"final_logit_softcapping\": 30.0", "\"final_logit_softcapping\": null");
    assert_ok(parse(json, NULL));
    assert_true(config.logit_softcap == 0);
    free(json);
    json = scratch_replace(dense, "\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 0.3, \"factor\": 8.0");
    assert_ok(parse(json, NULL));
    assert_int_equal(config.rope[LAYER_FULL].rotated_pairs, 4); /* int(0.3 * 32 / 2) */
    assert_true(config.rope[LAYER_FULL].factor == 8.0f);
    free(json);
    json = scratch_replace(dense, "\"proportional\"", "\"default\""); /* its partial_rotary_factor is not looked at */
    assert_ok(parse(json, NULL));
    assert_int_equal(config.rope[LAYER_FULL].rotated_pairs, 16);
    free(json);
    json = scratch_replace(dense, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
    assert_ok(parse(json, NULL));
    assert_true(config.tied_head); /* a nested model's switch stands at the top */
    free(json);
    json = scratch_replace(dense, "\"vision_config\"", "\"tie_word_embeddings\": false, \"vision_config\"");
    assert_ok(parse(json, NULL));
    assert_false(config.tied_head);
    free(json);
    json = scratch_replace(dense, "\"dtype\": \"bfloat16\"", "\"torch_dtype\": \"torch.float16\"");
    assert_ok(parse(json, NULL));
    assert_int_equal(config.checkpoint_format, WEIGHT_F16);
    free(json);
}

static void assert_stops(const int *tokens, int n) {
    assert_int_equal(config.n_stop_tokens, n);
    for (int i = 0; i < n; i++) assert_int_equal(config.stop_tokens[i], tokens[i]);
}

/* The stop tokens of generation_config.json stand in the place of those of config.json, as in generate(). */
static void test_stop_tokens(void **state) {
    (void)state;
    assert_ok(parse(dense, NULL));
    assert_stops((int[]){1, 106}, 2);
    assert_ok(parse(dense, "{\"eos_token_id\": [7, 8, 7]}"));
    assert_stops((int[]){7, 8}, 2);
    assert_ok(parse(dense, "{\"eos_token_id\": 7}"));
    assert_stops((int[]){7}, 1);
    assert_ok(parse(dense, "{\"eos_token_id\": [512, 1, 262144, -1]}")); /* what is outside the vocabulary */
    assert_stops((int[]){1}, 1);
    static const char *const none[] = {"{}", "{\"eos_token_id\": null}", "{\"eos_token_id\": []}",
                                       "{\"eos_token_id\": 512}"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        assert_ok(parse(dense, none[i]));
        assert_stops((int[]){1, 106}, 2);
    }
    char *json = scratch_replace(dense, "\"eos_token_id\": [1, 106],", "");
    char *text = scratch_replace(json, "\"eos_token_id\": 1", "\"eos_token_id\": [9, 5]");
    assert_ok(parse(text, NULL));
    assert_stops((int[]){9, 5}, 2);
    free(text);
    text = scratch_replace(json, "\"eos_token_id\": 1,", "");
    assert_ok(parse(text, NULL));
    assert_stops((int[]){1}, 1);
    free(text);
    free(json);
    assert_refused(parse(dense, "{\"eos_token_id\": 1, \"eos_token_id\": 2}"), KAKEYA_FORMAT,
                   "generation_config.json: the key \"eos_token_id\" appears twice");
    assert_refused(parse(dense, "{\"eos_token_id\": \"1\"}"), KAKEYA_FORMAT, "generation_config.json: eos_token_id");
}

/* {"suppress_tokens": [first, ..., last]} */
static const char *suppressing(int first, int last) {
    static char text[8192];
    size_t used = (size_t)snprintf(text, sizeof text, "{\"suppress_tokens\": [%d", first);
    for (int i = first + 1; i <= last; i++) used += (size_t)snprintf(text + used, sizeof text - used, ", %d", i);
    snprintf(text + used, sizeof text - used, "]}");
    return text;
}

static void test_suppressed_tokens(void **state) {
    (void)state;
    assert_ok(parse(dense, "{\"suppress_tokens\": [258882, 3]}"));
    assert_int_equal(config.n_suppress_tokens, 1);
    assert_int_equal(config.suppress_tokens[0], 3);
    assert_ok(parse(dense, suppressing(100, 187)));
    assert_int_equal(config.n_suppress_tokens, 88);
    assert_int_equal(config.suppress_tokens[87], 187);
    assert_ok(parse(dense, suppressing(100, 99 + MODEL_MAX_SUPPRESS_TOKENS)));
    assert_int_equal(config.n_suppress_tokens, MODEL_MAX_SUPPRESS_TOKENS);
    assert_refused(parse(dense, suppressing(100, 100 + MODEL_MAX_SUPPRESS_TOKENS)), KAKEYA_UNSUPPORTED,
                   "generation_config.json: suppress_tokens: more than 256 different tokens");
    char *json = scratch_replace(dense, "\"vocab_size\": 512", "\"vocab_size\": 40");
    assert_refused(parse(json, suppressing(0, 60)), KAKEYA_FORMAT, "suppress_tokens leaves none of the 40 tokens");
    free(json);
}

/* What stands for pictures, sounds and films, as far as the vocabulary has it. */
static void test_placeholders_are_suppressed(void **state) {
    (void)state;
    char *json = scratch_replace(dense, "\"vision_config\": {\"hidden_size\": 1}",
                                 "\"vision_config\": null, \"image_token_id\": 7, \"audio_token_id\": 258881, "
                                 "\"video_token_id\": 9, \"boi_token_id\": 11");
    assert_ok(parse(json, "{\"suppress_tokens\": [9, 3]}"));
    assert_int_equal(config.n_suppress_tokens, 3);
    assert_int_equal(config.suppress_tokens[2], 7);
    free(json);
    json = scratch_replace(dense, "\"vision_config\"",
                           "\"image_token_id\": \"7\", \"video_token_id\": -1, \"vision_config\"");
    assert_ok(parse(json, NULL));
    assert_int_equal(config.n_suppress_tokens, 0);
    free(json);
}

/* No model depends on its padding token, so every way of saying that there is none is read. */
static void test_pad_token(void **state) {
    (void)state;
    static const char *const none[] = {"-1", "null", "512", "1000000"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        char keys[128];
        snprintf(keys, sizeof keys, "\"eos_token_id\": 1, \"pad_token_id\": %s,", none[i]);
        char *json = scratch_replace(dense, "\"eos_token_id\": 1,", keys);
        assert_ok(parse(json, NULL));
        assert_int_equal(config.pad_token, -1);
        free(json);
    }
    char *json = scratch_replace(dense, "\"eos_token_id\": 1,", "\"eos_token_id\": 1, \"pad_token_id\": \"0\",");
    assert_refused(parse(json, NULL), KAKEYA_FORMAT, "pad_token_id is neither a token id nor null");
    free(json);
    json = scratch_replace(dense, "\"eos_token_id\": 1,", "\"eos_token_id\": 1, \"bos_token_id\": -1,");
    assert_ok(parse(json, NULL));
    assert_int_equal(config.bos_token, -1);
    free(json);
    assert_ok(parse(dense, NULL));
    assert_int_equal(config.bos_token, 2);
    assert_int_equal(config.pad_token, 0);
}

/* ------------------------------------------------------------------------------------------------------- RoPE
 *
 * What Hugging Face transformers 5.17 makes of each of these was read off its inv_freq buffers. */

#define SLIDING_ROPE "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}"
#define FULL_ROPE                                                                                                      \
    "\"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 1000000.0, "                                \
    "\"partial_rotary_factor\": 0.25}"

/* `dense` with other text than its rope_parameters, which are the last key; `keys` comes without a comma in front. */
static char *with_rope(const char *keys) {
    const char *from = strstr(dense, "\"rope_parameters\"");
    char *json = NULL;
    if (asprintf(&json, "%.*s%s}}", (int)(from - dense), dense, keys) < 0) exit(1);
    return json;
}

static kakeya_status parse_rope(const char *keys) {
    char *json = with_rope(keys);
    kakeya_status status = parse(json, NULL);
    free(json);
    return status;
}

static void test_rope_spellings(void **state) {
    (void)state;
    assert_ok(parse(dense, NULL));
    model_config published = config;
    static const char *const same[] = {
        "\"rope_parameters\": {" SLIDING_ROPE ", " FULL_ROPE "}",
        /* `type` where there is no rope_type, which wins where there are both */
        "\"rope_parameters\": {\"sliding_attention\": {\"type\": \"default\", \"rope_theta\": 1e4}, "
        "\"full_attention\": {\"type\": \"proportional\", \"rope_theta\": 1e6, \"partial_rotary_factor\": 0.25}}",
        "\"rope_parameters\": {\"sliding_attention\": {\"type\": \"proportional\", \"rope_type\": \"default\", "
        "\"rope_theta\": 1e4}, " FULL_ROPE "}",
        "\"rope_parameters\": {\"sliding_attention\": {\"rope_theta\": 1e4}, " FULL_ROPE "}",
        /* rope_scaling in the place of rope_parameters, or before it; null is none */
        "\"rope_scaling\": {" SLIDING_ROPE ", " FULL_ROPE "}",
        "\"rope_scaling\": {" SLIDING_ROPE ", " FULL_ROPE
        "}, \"rope_parameters\": {\"sliding_attention\": {\"rope_type\": "
        "\"default\", \"rope_theta\": 3.0}, \"full_attention\": {\"rope_type\": \"linear\", \"factor\": 2.0}}",
        "\"rope_scaling\": null, \"rope_parameters\": {" SLIDING_ROPE ", " FULL_ROPE "}",
        /* the factor of the text model */
        "\"partial_rotary_factor\": 0.25, \"rope_parameters\": {" SLIDING_ROPE ", \"full_attention\": "
        "{\"rope_type\": \"proportional\", \"rope_theta\": 1e6}}",
        "\"partial_rotary_factor\": 0.75, \"rope_parameters\": {" SLIDING_ROPE ", " FULL_ROPE "}",
        "\"partial_rotary_factor\": null, \"rope_parameters\": {" SLIDING_ROPE ", " FULL_ROPE "}",
        /* what has no meaning for anybody */
        "\"rope_theta\": 5.0, \"rope_parameters\": {" SLIDING_ROPE ", " FULL_ROPE ", \"chunked_attention\": null}",
        "\"rope_parameters\": null",
        "\"partial_rotary_factor\": 0.75",
    };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        assert_ok(parse_rope(same[i]));
        if (memcmp(&config, &published, sizeof config) != 0) fail_msg("another model: %s", same[i]);
    }
    /* without any factor all pairs turn */
    assert_ok(parse_rope("\"rope_parameters\": {" SLIDING_ROPE ", \"full_attention\": {\"type\": \"proportional\", "
                         "\"rope_theta\": 1e6, \"factor\": 4}}"));
    assert_int_equal(config.rope[LAYER_FULL].rotated_pairs, 16);
    assert_true(config.rope[LAYER_FULL].factor == 4.0f);
    assert_ok(parse_rope("\"partial_rotary_factor\": 0.5, \"rope_parameters\": {" FULL_ROPE
                         ", \"sliding_attention\": {\"type\": \"proportional\", \"rope_theta\": 100}}"));
    assert_int_equal(config.rope[LAYER_SLIDING].rotated_pairs, 4);
    assert_int_equal(config.rope[LAYER_FULL].rotated_pairs, 4);
    assert_true(config.rope[LAYER_SLIDING].theta == 100.0f);
}

static void test_rope_refusals(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        kakeya_status status;
        const char *first, *second;
    } cases[] = {
        {"\"rope_parameters\": {" FULL_ROPE ", \"sliding_attention\": {\"type\": \"linear\", \"factor\": 4, "
         "\"rope_theta\": 1e4}}",
         KAKEYA_UNSUPPORTED, "rope_parameters.sliding_attention", "\"linear\""},
        {"\"rope_scaling\": {" SLIDING_ROPE ", \"full_attention\": {\"type\": \"yarn\", \"rope_theta\": 1e4}}",
         KAKEYA_UNSUPPORTED, "rope_scaling.full_attention", "\"yarn\""},
        {"\"rope_parameters\": {" SLIDING_ROPE ", " FULL_ROPE
         "}, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}",
         KAKEYA_UNSUPPORTED, "rope_scaling has no entry for sliding_attention layers", "type, factor"},
        {"\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e4}", KAKEYA_UNSUPPORTED,
         "rope_parameters has no entry for sliding_attention layers", "rope_type, rope_theta"},
        {"\"rope_parameters\": {" SLIDING_ROPE
         ", \"full_atention\": {\"rope_type\": \"default\", \"rope_theta\": 1e4}}",
         KAKEYA_UNSUPPORTED, "rope_parameters has no entry for full_attention layers",
         "sliding_attention, full_atention"},
        {"\"rope_parameters\": {}", KAKEYA_UNSUPPORTED, "rope_parameters has no entry for sliding_attention", ""},
        {"\"rope_parameters\": {" SLIDING_ROPE ", " FULL_ROPE ", \"factor\": 8.0}", KAKEYA_UNSUPPORTED,
         "rope_parameters.factor is not an object", ""},
        {"\"rope_parameters\": {" SLIDING_ROPE ", \"full_attention\": null}", KAKEYA_UNSUPPORTED,
         "rope_parameters.full_attention is null", "without RoPE"},
        {"\"rope_parameters\": {" SLIDING_ROPE ", \"full_attention\": 7}", KAKEYA_FORMAT,
         "rope_parameters.full_attention is not an object", ""},
        {"\"rope_parameters\": [1]", KAKEYA_FORMAT, "rope_parameters is not an object", ""},
        {"\"rope_scaling\": \"linear\"", KAKEYA_FORMAT, "rope_scaling is not an object", ""},
        {"\"rope_parameters\": {" FULL_ROPE ", \"sliding_attention\": {\"rope_type\": null, \"rope_theta\": 1e4}}",
         KAKEYA_FORMAT, "rope_parameters.sliding_attention.rope_type is not a string", ""},
        {"\"rope_parameters\": {" FULL_ROPE ", \"sliding_attention\": {\"rope_type\": \"default\"}}", KAKEYA_FORMAT,
         "rope_parameters.sliding_attention has no rope_theta", ""},
        {"\"rope_parameters\": {" SLIDING_ROPE ", \"full_attention\": {\"rope_type\": \"proportional\", "
         "\"rope_theta\": 1e6, \"partial_rotary_factor\": null}}",
         KAKEYA_FORMAT, "rope_parameters.full_attention.partial_rotary_factor is null", ""},
        {"\"rope_parameters\": {" SLIDING_ROPE ", \"full_attention\": {\"rope_type\": \"proportional\", "
         "\"rope_theta\": 1e6, \"factor\": null}}",
         KAKEYA_FORMAT, "rope_parameters.full_attention.factor is null", ""},
        {"\"partial_rotary_factor\": 1.5, \"rope_parameters\": {" SLIDING_ROPE ", \"full_attention\": {\"rope_type\": "
         "\"proportional\", \"rope_theta\": 1e6}}",
         KAKEYA_FORMAT, "partial_rotary_factor is 1.5", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_refused(parse_rope(cases[i].keys), cases[i].status, cases[i].first, cases[i].second);
    /* a layer type that does not occur needs no entry */
    static const char only_full[] =
        "{\"model_type\": \"gemma4_text\", \"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\", "
        "\"full_attention\"], \"rope_parameters\": {" FULL_ROPE "}}";
    assert_ok(parse(only_full, NULL));
    assert_int_equal(config.rope[LAYER_FULL].rotated_pairs, 64);
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
        kakeya_status status;
        const char *first, *second;
    } cases[] = {
        {"Gemma4ForConditionalGeneration", "LlamaForCausalLM", KAKEYA_UNSUPPORTED, "architecture", "LlamaForCausalLM"},
        {"Gemma4ForConditionalGeneration", "Gemma4AssistantForCausalLM", KAKEYA_UNSUPPORTED, "architecture",
         "Gemma4AssistantForCausalLM"},
        {"\"model_type\": \"gemma4\"", "\"model_type\": \"gemma2\"", KAKEYA_UNSUPPORTED, "model_type", "gemma2"},
        {"\"gemma4_text\"", "\"qwen3\"", KAKEYA_UNSUPPORTED, "text_config.model_type", "qwen3"},
        {"\"gemma4_text\"", "17", KAKEYA_FORMAT, "model_type is not a string", ""},
        {"\"vision_config\"", "\"transformers_weights\": \"other.safetensors\", \"vision_config\"", KAKEYA_UNSUPPORTED,
         "transformers_weights", "other.safetensors"},
        {"\"sliding_window\": 24", "\"sliding_window\": 24, \"sliding_window\": 12", KAKEYA_FORMAT,
         "the key \"sliding_window\" appears twice", ""},
        {"\"num_hidden_layers\": 12", "\"num_hidden_layers\": 129", KAKEYA_FORMAT, "num_hidden_layers is 129",
         "1 to 128"},
        {"\"num_hidden_layers\": 12", "\"num_hidden_layers\": 0", KAKEYA_FORMAT, "num_hidden_layers is 0", ""},
        {"\"num_hidden_layers\": 12", "\"num_hidden_layers\": \"12\"", KAKEYA_FORMAT,
         "num_hidden_layers is not a number", ""},
        {"\"hidden_size\": 64", "\"hidden_size\": -64", KAKEYA_FORMAT, "hidden_size is -64", ""},
        {"\"hidden_size\": 64", "\"hidden_size\": 64.5", KAKEYA_FORMAT, "hidden_size is 64.5", "integer"},
        {"\"hidden_size\": 64", "\"hidden_size\": 1e18", KAKEYA_FORMAT, "hidden_size is 1e+18", ""},
        {"\"vocab_size\": 512", "\"vocab_size\": 2147483648", KAKEYA_FORMAT, "vocab_size is 2147483648", ""},
        {"\"num_key_value_heads\": 4", "\"num_key_value_heads\": 3", KAKEYA_FORMAT, "8 attention heads of layer 0",
         "3 K/V heads"},
        {"\"num_global_key_value_heads\": 2", "\"num_global_key_value_heads\": 5", KAKEYA_FORMAT,
         "8 attention heads of layer 5", "5 K/V heads"},
        {"\"head_dim\": 16", "\"head_dim\": 15", KAKEYA_FORMAT, "head dimension 15", "odd"},
        {"\"intermediate_size\": 96", "\"intermediate_size\": 0", KAKEYA_FORMAT, "intermediate_size is 0", ""},
        {"\"sliding_window\": 24", "\"sliding_window\": 0", KAKEYA_FORMAT, "sliding_window is 0", ""},
        {"\"sliding_window\": 24", "\"attention_bias\": true", KAKEYA_UNSUPPORTED, "attention_bias", ""},
        {"\"sliding_window\": 24", "\"hidden_activation\": \"silu\"", KAKEYA_UNSUPPORTED, "hidden_activation", "silu"},
        {"\"vision\"", "\"all\"", KAKEYA_UNSUPPORTED, "use_bidirectional_attention", ""},
        {"\"sliding_window\": 24", "\"layer_types\": [\"full_attention\"]", KAKEYA_FORMAT, "layer_types has 1 entries",
         "12"},
        {"\"sliding_window\": 24",
         "\"layer_types\": "
         "[\"full_attention\",\"full_attention\",\"full_attention\",\"linear_attention\",\"full_attention\",\"full_"
         "attention\","
         "\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\",\"full_"
         "attention\"]",
         KAKEYA_UNSUPPORTED, "layer_types[3]", "linear_attention"},
        {"\"proportional\"", "\"yarn\"", KAKEYA_UNSUPPORTED, "rope_parameters.full_attention", "yarn"},
        {"\"rope_theta\": 1000000.0", "\"rope_theta\": 0", KAKEYA_FORMAT, "rope_theta is 0", ""},
        {"\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 2", KAKEYA_FORMAT, "partial_rotary_factor is 2",
         ""},
        {"\"bfloat16\"", "\"int8\"", KAKEYA_UNSUPPORTED, "dtype \"int8\"", ""},
        {"\"eos_token_id\": 1,", "\"eos_token_id\": 1.5,", KAKEYA_FORMAT, "eos_token_id", ""},
        {"[1, 106]", "[1, \"x\"]", KAKEYA_FORMAT, "eos_token_id", ""},
        {"[1, 106]", "[11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27]", KAKEYA_UNSUPPORTED, "more than 16", ""},
        {"\"eos_token_id\": 1,", "\"bos_token_id\": 600,", KAKEYA_FORMAT, "bos_token_id is 600", "511"},
        {"\"hidden_size_per_layer_input\": 0", "\"hidden_size_per_layer_input\": 131073", KAKEYA_FORMAT,
         "hidden_size_per_layer_input is 131073", ""},
        {"\"text_config\": {", "\"text_config\": 5, \"x\": {", KAKEYA_FORMAT, "text_config is not an object", ""},
        {"\"head_dim\": 16,", "\"head_dim\": 16", KAKEYA_FORMAT, "malformed JSON at line 4", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *json = scratch_replace(dense, cases[i].from, cases[i].to);
        assert_refused(parse(json, NULL), cases[i].status, "config.json: ", cases[i].first, cases[i].second);
        free(json);
    }
    assert_refused(parse("{}", NULL), KAKEYA_UNSUPPORTED, "neither model_type nor architectures");
    assert_refused(parse("[]", NULL), KAKEYA_FORMAT, "not a JSON object");
    assert_refused(parse(dense, "{"), KAKEYA_FORMAT, "generation_config.json", "malformed JSON");
    assert_refused(parse(dense, "{\"eos_token_id\": {}}"), KAKEYA_FORMAT, "generation_config.json", "eos_token_id");
    assert_refused(parse(dense, "{\"suppress_tokens\": [\"a\"]}"), KAKEYA_FORMAT, "generation_config.json",
                   "suppress_tokens");
}

/* The files that the other tests run. */
static void test_bundled(void **state) {
    (void)state;
    static const struct {
        const char *path;
        int layers, shared, ple, experts;
    } cases[] = {{KAKEYA_MODELS "/demo/config.json", 12, 0, 0, 16},
                 {KAKEYA_TEST_DATA "/golden/gemma4-tiny-moe/config.json", 12, 0, 0, 12},
                 {KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense/config.json", 6, 0, 0, 0},
                 {KAKEYA_TEST_DATA "/golden/gemma4-tiny-ple/config.json", 10, 4, 24, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bytes;
        char *json = scratch_read(cases[i].path, &bytes);
        assert_ok(model_config_parse(cases[i].path, json, bytes, NULL, 0, &config, &error));
        assert_int_equal(config.layers, cases[i].layers);
        assert_int_equal(config.shared_kv_layers, cases[i].shared);
        assert_int_equal(config.ple_width, cases[i].ple);
        assert_int_equal(config.experts, cases[i].experts);
        free(json);
    }
}

static void test_variants(void **state) {
    (void)state;
    assert_ok(model_config_variant("26b-a4b", &config, &error));
    assert_int_equal(config.layers, 30);
    for (int i = 0; i < 30; i++) assert_int_equal(config.layer[i].type, i % 6 == 5 ? LAYER_FULL : LAYER_SLIDING);
    assert_int_equal(config.layer[5].kv_heads, 2);
    assert_int_equal(config.rope[LAYER_FULL].rotated_pairs, 64);
    assert_string_equal(config.variant, "26b-a4b");

    assert_ok(model_config_variant("e2b", &config, &error));
    assert_int_equal(config.layer[34].kv_source, 14);
    assert_int_equal(config.layer[33].kv_source, 13);
    assert_int_equal(config.layer[15].intermediate, 12288);
    assert_int_equal(config.layer[14].intermediate, 6144);
    assert_ok(model_config_variant("e4b", &config, &error));
    assert_int_equal(config.layer[41].kv_source, 23);
    assert_int_equal(config.layer[40].kv_source, 22);

    /* prefixes: every layer has a source that stores K/V */
    static const char *const names[] = {"26b-a4b", "31b", "12b", "e4b", "e2b"};
    for (size_t v = 0; v < 5; v++) {
        char description[64];
        for (int layers = 1;
             model_config_variant(
                 (snprintf(description, sizeof description, "%s:layers=%d", names[v], layers), description), &config,
                 NULL) == KAKEYA_OK;
             layers++) {
            assert_int_equal(config.layers, layers);
            for (int i = 0; i < layers; i++) {
                int source = config.layer[i].kv_source;
                assert_true(source <= i && config.layer[source].kv_source == source);
                assert_int_equal(config.layer[source].type, config.layer[i].type);
                assert_int_equal(source != i, i >= layers - config.shared_kv_layers);
            }
        }
        assert_refused(model_config_variant(description, &config, &error), KAKEYA_INVALID_ARGUMENT, description,
                       "layers=1 to layers=");
    }
    assert_ok(model_config_variant("31b:dtype=f32:layers=2", &config, &error));
    assert_int_equal(config.checkpoint_format, WEIGHT_F32);
    assert_int_equal(config.layers, 2);

    assert_ok(model_config_variant("31b:layers=2:q4_k_m", &config, &error));
    assert_int_equal(config.checkpoint_format, WEIGHT_Q4_K);

    static const char *const bad[] = {"",
                                      "27b",
                                      "26b-a4b:",
                                      "26b-a4b:layers=",
                                      "26b-a4b:layers=0",
                                      "26b-a4b:layers=31",
                                      "26b-a4b:layers=2x",
                                      "26b-a4b:dtype=f64",
                                      "26b-a4b:dtype=f32x",
                                      "26b-a4b:experts=2",
                                      "26b-a4b:q4_00",
                                      "26b-a4b:q4_k",
                                      "e2b:layers=99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_refused(model_config_variant(bad[i], &config, &error), KAKEYA_INVALID_ARGUMENT, "synthetic model",
                       bad[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_flat_defaults),
        cmocka_unit_test(test_resaved),
        cmocka_unit_test(test_shared_kv),
        cmocka_unit_test(test_moe),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_stop_tokens),
        cmocka_unit_test(test_suppressed_tokens),
        cmocka_unit_test(test_placeholders_are_suppressed),
        cmocka_unit_test(test_pad_token),
        cmocka_unit_test(test_rope_spellings),
        cmocka_unit_test(test_rope_refusals),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bundled),
        cmocka_unit_test(test_variants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
