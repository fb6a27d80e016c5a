/* Protects: a fact means the same in config.json and in a GGUF file. Every row of the table is changed in both forms,
 * to values inside and outside of its range and in every spelling that a form has: both accept it and give the same
 * configuration, or both refuse it by name. The documents list every name. */
#include <float.h>
#include <math.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gguf_writer.h"
#include "model/gemma4_facts.h"
#include "model/gemma4_gguf.h"
#include "scratch.h"

static kakeya_error error;

static const char base_json[] =
    "{\"model_type\": \"gemma4_text\", \"num_hidden_layers\": 12, \"hidden_size\": 64, \"max_position_embeddings\": "
    "1000,"
    "\"sliding_window\": 24, \"rms_norm_eps\": 0.000001, \"final_logit_softcapping\": 30, \"num_attention_heads\": 4,"
    "\"num_key_value_heads\": 2, \"num_global_key_value_heads\": null, \"head_dim\": 16, \"global_head_dim\": 32,"
    "\"attention_k_eq_v\": true, \"intermediate_size\": 96, \"num_kv_shared_layers\": 0, \"enable_moe_block\": true,"
    "\"num_experts\": 4, \"top_k_experts\": 2, \"moe_intermediate_size\": 16, \"hidden_size_per_layer_input\": 8,"
    "\"vocab_size_per_layer_input\": 40, \"vocab_size\": 40, \"bos_token_id\": 2, \"pad_token_id\": 0, "
    "\"eos_token_id\": 1,"
    "\"rope_parameters\": {"
    "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0},"
    "\"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 1000000.0, "
    "\"partial_rotary_factor\": 0.25}}}";

/* The same model's keys. */
static const struct {
    const char *key;
    gguf_value_type type;
    double value;
} base_keys[] = {
    {"gemma4.block_count", GGUF_U32, 12},
    {"gemma4.embedding_length", GGUF_U32, 64},
    {"gemma4.context_length", GGUF_U32, 1000},
    {"gemma4.attention.sliding_window", GGUF_U32, 24},
    {"gemma4.attention.sliding_window_pattern", GGUF_U32, 6},
    {"gemma4.attention.layer_norm_rms_epsilon", GGUF_F32, 1e-6},
    {"gemma4.final_logit_softcapping", GGUF_F32, 30},
    {"gemma4.attention.head_count", GGUF_U32, 4},
    {"gemma4.attention.head_count_kv", GGUF_U32, 2},
    {"gemma4.attention.key_length_swa", GGUF_U32, 16},
    {"gemma4.attention.key_length", GGUF_U32, 32},
    {"gemma4.feed_forward_length", GGUF_U32, 96},
    {"gemma4.attention.shared_kv_layers", GGUF_U32, 0},
    {"gemma4.expert_count", GGUF_U32, 4},
    {"gemma4.expert_used_count", GGUF_U32, 2},
    {"gemma4.expert_feed_forward_length", GGUF_U32, 16},
    {"gemma4.embedding_length_per_layer_input", GGUF_U32, 8},
    {"gemma4.vocab_size", GGUF_U32, 40},
    {"tokenizer.ggml.bos_token_id", GGUF_U32, 2},
    {"tokenizer.ggml.padding_token_id", GGUF_U32, 0},
    {"tokenizer.ggml.eos_token_id", GGUF_U32, 1},
    {"gemma4.rope.freq_base_swa", GGUF_F32, 1e4},
    {"gemma4.rope.freq_base", GGUF_F32, 1e6},
};

/* The configuration with `text` in the place of a dotted key's value; NULL: without the key. */
static kakeya_status read_json(const char *key, const char *text, const char *generation, model_config *out) {
    cJSON *top = cJSON_Parse(base_json), *object = top;
    const char *dot;
    assert_non_null(top);
    while (key && (dot = strchr(key, '.'))) {
        char part[64];
        snprintf(part, sizeof part, "%.*s", (int)(dot - key), key);
        object = cJSON_GetObjectItem(object, part);
        assert_non_null(object);
        key = dot + 1;
    }
    if (key) cJSON_DeleteItemFromObjectCaseSensitive(object, key);
    if (key && text) cJSON_AddItemToObject(object, key, cJSON_CreateRaw(text));
    char *json = cJSON_PrintUnformatted(top);
    kakeya_status status = model_config_parse("config.json", json, strlen(json), generation,
                                              generation ? strlen(generation) : 0, out, &error);
    cJSON_free(json);
    cJSON_Delete(top);
    return status;
}

static void put_number(gguf_writer *w, const char *key, gguf_value_type type, double value) {
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
        float f32;
        double f64;
    } at = {.u64 = 0};
    size_t bytes = 4;
    switch (type) {
    case GGUF_U8:
        at.u8 = (uint8_t)value, bytes = 1;
        break;
    case GGUF_I8:
        at.i8 = (int8_t)value, bytes = 1;
        break;
    case GGUF_U16:
        at.u16 = (uint16_t)value, bytes = 2;
        break;
    case GGUF_I16:
        at.i16 = (int16_t)value, bytes = 2;
        break;
    case GGUF_U32:
        at.u32 = (uint32_t)value;
        break;
    case GGUF_I32:
        at.i32 = (int32_t)value;
        break;
    case GGUF_U64:
        at.u64 = (uint64_t)value, bytes = 8;
        break;
    case GGUF_I64:
        at.i64 = (int64_t)value, bytes = 8;
        break;
    case GGUF_F64:
        at.f64 = value, bytes = 8;
        break;
    default:
        assert_int_equal(type, GGUF_F32);
        at.f32 = (float)value;
    }
    gw_value(w, key, type, &at, bytes);
}

/* Whether a type of GGUF holds this number. */
static bool holds(gguf_value_type type, double value) {
    static const double range[GGUF_VALUE_TYPES][2] = {
        [GGUF_U8] = {0, 255},         [GGUF_I8] = {-128, 127},        [GGUF_U16] = {0, 65535},
        [GGUF_I16] = {-32768, 32767}, [GGUF_U32] = {0, 4294967295.},  [GGUF_I32] = {-2147483648., 2147483647.},
        [GGUF_U64] = {0, 1.8e19},     [GGUF_I64] = {-9.2e18, 9.2e18},
    };
    if (type == GGUF_F64) return true;
    if (type == GGUF_F32) return (double)(float)value == value;
    return value == floor(value) && value >= range[type][0] && value <= range[type][1] && range[type][1] > 0;
}

/* A file without the key `left_out`, and with what `w` holds already. */
static kakeya_status read_gguf_with(gguf_writer *w, const char *left_out, model_config *out) {
    static float nothing[64 * 40], freqs[16];
    gw_key_text(w, "general.architecture", "gemma4");
    gw_key_text(w, "tokenizer.ggml.model", "none");
    for (size_t i = 0; i < sizeof base_keys / sizeof base_keys[0]; i++) {
        if (left_out && strcmp(left_out, base_keys[i].key) == 0) continue;
        put_number(w, base_keys[i].key, base_keys[i].type, base_keys[i].value);
    }
    for (int i = 0; i < 16; i++) freqs[i] = i < 4 ? 1.0f : 1e30f;
    gw_tensor(w, "token_embd.weight", GGUF_TENSOR_F32, 2, (const int64_t[]){64, 40}, nothing, sizeof nothing);
    gw_tensor(w, "per_layer_token_embd.weight", GGUF_TENSOR_F32, 2, (const int64_t[]){8, 40}, nothing,
              8 * 40 * sizeof(float));
    if (!left_out || strcmp(left_out, "gemma4.attention.key_length") != 0)
        gw_tensor(w, "rope_freqs.weight", GGUF_TENSOR_F32, 1, (const int64_t[]){16}, freqs, sizeof freqs);
    size_t bytes;
    unsigned char *data = gw_finish(w, &bytes);
    gguf *file;
    assert_ok(gguf_parse("m.gguf", data, bytes, &file, &error));
    kakeya_status status = gemma4_gguf_config(file, out, NULL, &error);
    gguf_close(file);
    free(data);
    return status;
}

static kakeya_status read_gguf(const char *key, gguf_value_type type, double value, model_config *out) {
    gguf_writer w = gw_begin();
    if (key) put_number(&w, key, type, value);
    return read_gguf_with(&w, key, out);
}

static bool same(model_config *a, model_config *b) {
    a->checkpoint_format = b->checkpoint_format = WEIGHT_F32; /* which tensors say */
    return memcmp(a, b, sizeof *a) == 0;
}

static model_config from_json, from_gguf;

static void test_base(void **state) {
    (void)state;
    assert_ok(read_json(NULL, NULL, NULL, &from_json));
    assert_ok(read_gguf(NULL, GGUF_U32, 0, &from_gguf));
    assert_true(same(&from_json, &from_gguf));
    assert_int_equal(from_json.layer[5].type, LAYER_FULL);
    assert_int_equal(from_json.experts, 4);
}

/* One value in both forms; `text` is JSON's. */
static void compare(const gemma4_fact *f, double value, const char *text) {
    static const gguf_value_type types[] = {GGUF_U8,  GGUF_I8,  GGUF_U16, GGUF_I16, GGUF_U32,
                                            GGUF_I32, GGUF_U64, GGUF_I64, GGUF_F32, GGUF_F64};
    kakeya_status status = read_json(f->json, text, NULL, &from_json);
    kakeya_error json_error = error;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        if (!holds(types[t], value)) continue;
        kakeya_status other = read_gguf(f->gguf, types[t], value, &from_gguf);
        if ((status == KAKEYA_OK) != (other == KAKEYA_OK))
            fail_msg("%s %s: \"%s\"; %s %s %.17g: \"%s\"", f->json, text, status ? json_error.message : "taken",
                     f->gguf, gguf_value_type_name(types[t]), value, other ? error.message : "taken");
        if (status == KAKEYA_OK && !same(&from_json, &from_gguf))
            fail_msg("%s %s and %s %s %.17g give two configurations", f->json, text, f->gguf,
                     gguf_value_type_name(types[t]), value);
    }
}

static void test_values(void **state) {
    (void)state;
    int compared = 0;
    for (int id = 0; id < FACT_COUNT; id++) {
        const gemma4_fact *f = &gemma4_facts[id];
        if (!f->gguf) continue;
        /* In GGUF files no experts say that there is no mixture, and a factor of 0 that nothing is scaled. */
        const bool zero_differs = id == FACT_EXPERTS || id == FACT_ROPE_FACTOR;
        const double values[] = {f->min,
                                 f->max,
                                 f->min - 1,
                                 f->max + 1,
                                 -1,
                                 0,
                                 1,
                                 2,
                                 3,
                                 4,
                                 6,
                                 12,
                                 39,
                                 40,
                                 1.5,
                                 0.25,
                                 1000000,
                                 2147483647.0,
                                 2147483648.0,
                                 1e18,
                                 4294967295.0,
                                 1152921504606846976.0};
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            /* Files hold their embedding and the full layers' divisors, which limit these two. */
            if (id == FACT_VOCAB && values[i] > 40) continue;
            if (values[i] == 0 && zero_differs) continue;
            if (id == FACT_GLOBAL_HEAD_DIM && values[i] > 2 && values[i] <= f->max) continue;
            char text[64];
            snprintf(text, sizeof text, "%.17g", values[i]);
            compare(f, values[i], text);
            if (values[i] == floor(values[i]) && values[i] < 1e6) {
                snprintf(text, sizeof text, "%.1f", values[i]); /* 4.0 */
                compare(f, values[i], text);
            }
            compared++;
        }
        if (!zero_differs) compare(f, 0, "-0");
        if (!zero_differs) compare(f, -0.0, "-0.0");
    }
    assert_true(compared > 400);
}

/* Absent: what the table says. A GGUF file that must say it is refused by the key's name. */
static void test_absent(void **state) {
    (void)state;
    for (int id = 0; id < FACT_COUNT; id++) {
        const gemma4_fact *f = &gemma4_facts[id];
        if (!f->gguf || f->kind == FACT_NESTED) continue;
        gguf_writer w = gw_begin();
        kakeya_status status = read_gguf_with(&w, f->gguf, &from_gguf);
        if (id == FACT_EXPERTS) { /* which says in GGUF files that there are any */
            assert_ok(status);
            assert_false(from_gguf.moe);
            assert_refused(read_json(f->json, NULL, NULL, &from_json), KAKEYA_FORMAT, f->json, "is missing");
            continue;
        }
        if (id == FACT_EXPERTS_PER_TOKEN || id == FACT_EXPERT_INTERMEDIATE) {
            assert_refused(status, KAKEYA_FORMAT, f->gguf, "is missing");
            assert_refused(read_json(f->json, NULL, NULL, &from_json), KAKEYA_FORMAT, f->json, "is missing");
            continue;
        }
        if (isnan(f->gguf_absent)) {
            assert_refused(status, KAKEYA_FORMAT, f->gguf, "is missing");
            continue;
        }
        assert_ok(status);
        assert_ok(read_json(f->json, NULL, NULL, &from_json));
        if (f->json_absent == f->gguf_absent && !same(&from_json, &from_gguf)) fail_msg("%s", f->json);
    }
}

static void test_none(void **state) {
    (void)state;
    static const char *const none[] = {"null", "-1", "4294967295"};
    for (int i = 0; i < 3; i++) {
        assert_ok(read_json("bos_token_id", none[i], NULL, &from_json));
        assert_int_equal(from_json.bos_token, -1);
        assert_ok(read_json("pad_token_id", none[i], NULL, &from_json));
        assert_int_equal(from_json.pad_token, -1);
    }
    assert_ok(read_json("num_global_key_value_heads", NULL, NULL, &from_json));
    assert_int_equal(from_json.layer[5].kv_heads, 2);
    assert_ok(read_json("hidden_size_per_layer_input", "null", NULL, &from_json));
    assert_int_equal(from_json.ple_width, 0);
    assert_ok(read_json("final_logit_softcapping", "null", NULL, &from_json));
    assert_true(from_json.logit_softcap == 0);
    /* other nulls are defaults */
    assert_ok(read_json("sliding_window", "null", NULL, &from_json));
    assert_int_equal(from_json.sliding_window, 512);
}

/* End tokens: one or a list, and what is none is none. */
static void test_stop_tokens(void **state) {
    (void)state;
    static const struct {
        const char *json;
        int n;
        double ids[3];
    } cases[] = {{"7", 1, {7}},   {"[7]", 1, {7}},           {"[7, 8, 7]", 3, {7, 8, 7}},
                 {"-1", 1, {-1}}, {"40", 1, {40}},           {"4294967295", 1, {4294967295.}},
                 {"[]", 0, {0}},  {"[39, -1]", 2, {39, -1}}, {"0", 1, {0}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_ok(read_json("eos_token_id", cases[i].json, NULL, &from_json));
        gguf_writer w = gw_begin();
        int64_t ids[3];
        for (int k = 0; k < cases[i].n; k++) ids[k] = (int64_t)cases[i].ids[k];
        if (cases[i].n == 1)
            put_number(&w, "tokenizer.ggml.eos_token_id", GGUF_I64, cases[i].ids[0]);
        else
            gw_key_array(&w, "tokenizer.ggml.eos_token_id", GGUF_I64, ids, (uint64_t)cases[i].n, 8);
        assert_ok(read_gguf_with(&w, "tokenizer.ggml.eos_token_id", &from_gguf));
        if (!same(&from_json, &from_gguf)) fail_msg("eos_token_id %s", cases[i].json);
    }
    gguf_writer w = gw_begin();
    put_number(&w, "tokenizer.ggml.eot_token_id", GGUF_U32, 9);
    put_number(&w, "tokenizer.ggml.eom_token_id", GGUF_U32, 4294967295.);
    assert_ok(read_gguf_with(&w, NULL, &from_gguf));
    assert_ok(read_json("eos_token_id", "[1, 9]", NULL, &from_json));
    assert_true(same(&from_json, &from_gguf));
}

static void test_suppressed(void **state) {
    (void)state;
    static const uint16_t narrow[] = {7, 9, 7, 1000};
    static const int64_t wide[] = {7, 9, -1, 4294967295};
    static const char key[] = "tokenizer.ggml.suppress_tokens";
    assert_ok(read_json(NULL, NULL, "{\"suppress_tokens\": [7, 9, -1, 4294967295]}", &from_json));
    for (int i = 0; i < 2; i++) {
        gguf_writer w = gw_begin();
        gw_key_array(&w, key, i ? GGUF_I64 : GGUF_U16, i ? (const void *)wide : narrow, 4, i ? 8 : 2);
        assert_ok(read_gguf_with(&w, NULL, &from_gguf));
        assert_true(same(&from_json, &from_gguf));
    }
    static const gguf_value_type empty[] = {GGUF_I32, GGUF_U8, GGUF_STRING, GGUF_F32};
    assert_ok(read_json(NULL, NULL, "{\"suppress_tokens\": []}", &from_json));
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
        gguf_writer w = gw_begin();
        gw_key_array(&w, key, empty[i], narrow, 0, 2);
        assert_ok(read_gguf_with(&w, NULL, &from_gguf));
        assert_true(same(&from_json, &from_gguf));
    }
    gguf_writer w = gw_begin();
    gw_key_array(&w, key, GGUF_F32, (const float[]){7}, 1, 4);
    assert_refused(read_gguf_with(&w, NULL, &from_gguf), KAKEYA_FORMAT, key, "f32", "whole numbers");
}

static void test_layer_patterns(void **state) {
    (void)state;
    static const char key[] = "gemma4.attention.sliding_window_pattern";
    static const unsigned char flags[12] = {1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1}; /* the last is full all the same */
    char json[512] = "[";
    for (int i = 0; i < 12; i++)
        sprintf(json + strlen(json), "%s\"%s\"", i ? ", " : "", flags[i] ? "sliding_attention" : "full_attention");
    strcat(json, "]");
    assert_ok(read_json("layer_types", json, NULL, &from_json));
    assert_int_equal(from_json.layer[11].type, LAYER_FULL);
    int32_t i32[12], bad[12];
    uint64_t u64[12];
    for (int i = 0; i < 12; i++) {
        i32[i] = bad[i] = flags[i];
        u64[i] = flags[i];
    }
    const struct {
        gguf_value_type type;
        const void *data;
        size_t bytes;
    } forms[] = {{GGUF_BOOL, flags, 1}, {GGUF_U8, flags, 1}, {GGUF_I8, flags, 1},
                 {GGUF_I32, i32, 4},    {GGUF_U32, i32, 4},  {GGUF_U64, u64, 8}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        gguf_writer w = gw_begin();
        gw_key_array(&w, key, forms[i].type, forms[i].data, 12, forms[i].bytes);
        assert_ok(read_gguf_with(&w, key, &from_gguf));
        if (!same(&from_json, &from_gguf)) fail_msg("pattern in %s", gguf_value_type_name(forms[i].type));
    }
    gguf_writer w = gw_begin();
    bad[3] = 2;
    gw_key_array(&w, key, GGUF_I32, bad, 12, 4);
    assert_refused(read_gguf_with(&w, key, &from_gguf), KAKEYA_FORMAT, "sliding_window_pattern[3] is 2", "0 to 1");
    gw_key_array(&w, key, GGUF_BOOL, flags, 11, 1);
    assert_refused(read_gguf_with(&w, key, &from_gguf), KAKEYA_FORMAT, "11 elements, expected 12");
    gw_key_array(&w, key, GGUF_BOOL, flags, 0, 1);
    assert_refused(read_gguf_with(&w, key, &from_gguf), KAKEYA_FORMAT, "0 elements, expected 12");
    assert_refused(read_gguf_with(&w, key, &from_gguf), KAKEYA_FORMAT, key, "is missing");
    gw_key_f32(&w, key, 6);
    assert_refused(read_gguf_with(&w, key, &from_gguf), KAKEYA_FORMAT, key, "f32");
}

/* What scales positions: applied where it is defined, refused by name where it is not. */
static void test_rope(void **state) {
    (void)state;
    static const char *const scales[] = {"gemma4.rope.scaling.factor", "gemma4.rope.scale_linear"};
    assert_ok(read_json("rope_parameters.full_attention.factor", "8", NULL, &from_json));
    assert_true(from_json.rope[LAYER_FULL].factor == 8);
    gguf_writer w = gw_begin();
    for (int i = 0; i < 2; i++) {
        for (int typed = 0; typed < 2; typed++) {
            gw_key_f32(&w, scales[i], 8);
            if (typed) gw_key_text(&w, "gemma4.rope.scaling.type", "linear");
            gw_key_u32(&w, "gemma4.rope.scaling.original_context_length", 1000);
            gw_key_bool(&w, "gemma4.rope.scaling.finetuned", true);
            assert_ok(read_gguf_with(&w, NULL, &from_gguf));
            assert_true(same(&from_json, &from_gguf));
        }
    }
    assert_ok(read_json(NULL, NULL, NULL, &from_json));
    for (int i = 0; i < 3; i++) { /* no scaling */
        gw_key_f32(&w, scales[0], i == 0 ? 8.0f : i == 1 ? 1.0f : 0.0f);
        if (i != 1) gw_key_text(&w, "gemma4.rope.scaling.type", i ? "linear" : "none");
        gw_key_f32(&w, "gemma4.rope.scaling.attn_factor", 1);
        assert_ok(read_gguf_with(&w, NULL, &from_gguf));
        assert_true(same(&from_json, &from_gguf));
    }
    static const char *const kinds[] = {"yarn", "longrope", "linear2", "Linear"};
    for (int i = 0; i < 4; i++) {
        gw_key_text(&w, "gemma4.rope.scaling.type", kinds[i]);
        assert_refused(read_gguf_with(&w, NULL, &from_gguf), KAKEYA_UNSUPPORTED, "gemma4.rope.scaling.type", kinds[i]);
    }
    static const struct {
        const char *key;
        float value;
    } refused[] = {{"gemma4.rope.scaling.attn_factor", 1.5f},
                   {"gemma4.rope.scaling.yarn_beta_fast", 32},
                   {"gemma4.rope.scaling.factor", -2},
                   {"gemma4.rope.scaling.factor", NAN},
                   {"gemma4.rope.dimension_sections", 1},
                   {"gemma4.rope.dimension_count", 16},
                   {"gemma4.rope.dimension_count_swa", 8},
                   {"gemma4.rope.anything", 1},
                   {"gemma4.attn_logit_softcapping", 50},
                   {"gemma4.attention.scale", 0.5f},
                   {"gemma4.logit_scale", 2},
                   {"gemma4.expert_weights_scale", 2.5f},
                   {"gemma4.expert_gating_func", 2},
                   {"gemma4.expert_shared_count", 1},
                   {"gemma4.attention.value_length", 16},
                   {"gemma4.embedding_scale", 2}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        gw_key_f32(&w, refused[i].key, refused[i].value);
        kakeya_status status = read_gguf_with(&w, NULL, &from_gguf);
        if (status == KAKEYA_OK || !strstr(error.message, refused[i].key))
            fail_msg("%s: %s", refused[i].key, error.message);
    }
    static const struct {
        const char *key;
        float value;
    } neutral[] = {{"gemma4.rope.dimension_count", 32},  {"gemma4.rope.dimension_count_swa", 16},
                   {"gemma4.attn_logit_softcapping", 0}, {"gemma4.attention.scale", 1},
                   {"gemma4.embedding_scale", 8},        {"gemma4.expert_gating_func", 1}};
    for (size_t i = 0; i < sizeof neutral / sizeof neutral[0]; i++) {
        gw_key_f32(&w, neutral[i].key, neutral[i].value);
        assert_ok(read_gguf_with(&w, NULL, &from_gguf));
        assert_true(same(&from_json, &from_gguf));
    }
    gw_key_bool(&w, "gemma4.attention.causal", false);
    assert_refused(read_gguf_with(&w, NULL, &from_gguf), KAKEYA_UNSUPPORTED, "gemma4.attention.causal");
    assert_refused(read_json("attn_logit_softcapping", "50.0", NULL, &from_json), KAKEYA_UNSUPPORTED,
                   "attn_logit_softcapping");
    assert_ok(read_json("attn_logit_softcapping", "null", NULL, &from_json));
}

/* The text part of a gemma4_unified model has no per-layer inputs unless it says so; a vision part's kind of RoPE is
 * spelled in two ways and says nothing of the text. */
static void test_unified(void **state) {
    (void)state;
    static const struct {
        const char *json;
        int width;
    } cases[] = {
        {"{\"model_type\": \"gemma4_unified\", \"text_config\": {\"model_type\": \"gemma4_unified_text\"}}", 0},
        {"{\"architectures\": [\"Gemma4UnifiedForConditionalGeneration\"], \"text_config\": {}}", 0},
        {"{\"model_type\": \"gemma4_unified_text\"}", 0},
        {"{\"model_type\": \"gemma4_unified\", \"text_config\": {\"hidden_size_per_layer_input\": 128}}", 128},
        {"{\"model_type\": \"gemma4_unified\", \"text_config\": {\"hidden_size_per_layer_input\": null}}", 0},
        {"{\"model_type\": \"gemma4\", \"text_config\": {\"model_type\": \"gemma4_text\"}}", 256},
        {"{\"model_type\": \"gemma4\", \"text_config\": {}, \"vision_config\": {\"rope_parameters\": {\"rope_type\": "
         "\"axial\", \"rope_theta\": 100.0}}}",
         256},
        {"{\"model_type\": \"gemma4\", \"text_config\": {}, \"vision_config\": {\"rope_parameters\": {\"rope_type\": "
         "\"default\", \"rope_theta\": 100.0}}}",
         256},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_ok(model_config_parse("config.json", cases[i].json, strlen(cases[i].json), NULL, 0, &from_json, &error));
        if (from_json.ple_width != cases[i].width) fail_msg("%s: %d", cases[i].json, from_json.ple_width);
        assert_int_equal(from_json.ple_vocab, cases[i].width ? 262144 : 0);
    }
}

/* Turns that the program writes end where the turn ends, whatever the files name. */
static void test_turn_ends(void **state) {
    (void)state;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.drafter = options.f_theta = "none";
    options.threads = 1;
    const char *const models[] = {KAKEYA_MODELS "/demo", KAKEYA_TEST_DATA "/golden/quant/micro.gguf"};
    static const char *const ends[] = {"<eos>", "<turn|>", "<|tool_response>"};
    int found = 0;
    for (int i = 0; i < 2; i++) {
        kakeya_engine *engine;
        options.model = models[i];
        assert_ok(kakeya_engine_open(&options, &engine, &error));
        for (int k = 0; k < 3; k++) {
            int32_t id = kakeya_tokenizer_find(kakeya_engine_tokenizer(engine), ends[k]);
            if (id >= 0 && !kakeya_engine_is_stop_token(engine, id)) fail_msg("%s: %s", models[i], ends[k]);
            found += id >= 0;
        }
        kakeya_engine_close(engine);
    }
    assert_true(found >= 4);
}

static void test_documented(void **state) {
    (void)state;
    size_t bytes;
    char *text = scratch_read(KAKEYA_TEST_DATA "/../../docs/reference/formats.md", &bytes);
    for (int id = 0; id < FACT_COUNT; id++) {
        const char *const names[] = {gemma4_facts[id].json, gemma4_facts[id].gguf};
        for (int i = 0; i < 2; i++)
            if (names[i] && !strstr(text, names[i])) fail_msg("docs/reference/formats.md does not name %s", names[i]);
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base),           cmocka_unit_test(test_values),      cmocka_unit_test(test_absent),
        cmocka_unit_test(test_none),           cmocka_unit_test(test_stop_tokens), cmocka_unit_test(test_suppressed),
        cmocka_unit_test(test_layer_patterns), cmocka_unit_test(test_rope),        cmocka_unit_test(test_unified),
        cmocka_unit_test(test_turn_ends),      cmocka_unit_test(test_documented),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
