/* Protects: every tensor is bound where it belongs, whatever the prefix; what is missing, misshapen, mistyped or
 * unknown is refused by name; synthetic weights are complete, deterministic and finite. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "backend/weight_values.h"
#include "base/float16.h"
#include "copies.h"
#include "model/restoration.h"
#include "model/synthetic_rows.h"
#include "model/tensors.h"
#include "scratch.h"

static kakeya_error error;
static mem_account account;

#define GOLDEN KAKEYA_TEST_DATA "/golden/"

static language_model *open_model(const char *directory) {
    language_model *model;
    assert_ok(language_model_open(directory, &account, &model, &error));
    return model;
}

static void close_model(language_model *model) {
    language_model_close(model);
    assert_int_equal(mem_total(&account), 0);
}

static void assert_weight(const weight *w, int out, int in, weight_format format) {
    assert_true(weight_present(w));
    assert_int_equal(w->out, out);
    assert_int_equal(w->in, in);
    assert_int_equal(w->format, format);
    assert_int_equal((uintptr_t)w->stream[0] % (uintptr_t)weight_format_find(format)->stream[0].alignment, 0);
}

static void test_demo(void **state) {
    (void)state;
    language_model *m = open_model(KAKEYA_MODELS "/demo");
    const model_weights *w = &m->weights;
    assert_weight(&w->embed, 8192, 256, WEIGHT_BF16);
    assert_ptr_equal(w->head.stream[0], w->embed.stream[0]);
    assert_null(w->ple_embed.stream[0]);
    assert_string_equal(m->note, "");
    for (int i = 0; i < 12; i++) {
        const layer_weights *l = &w->layer[i];
        bool full = i == 5 || i == 11;
        assert_weight(&l->q_proj, full ? 512 : 256, 256, WEIGHT_BF16);
        assert_weight(&l->k_proj, 128, 256, WEIGHT_BF16);
        assert_weight(&l->o_proj, 256, full ? 512 : 256, WEIGHT_BF16);
        if (full)
            assert_null(l->v_proj.stream[0]);
        else
            assert_weight(&l->v_proj, 128, 256, WEIGHT_BF16);
        assert_weight(&l->experts_gate_up, 16 * 128, 256, WEIGHT_BF16);
        assert_weight(&l->experts_down, 16 * 256, 64, WEIGHT_BF16);
        assert_weight(&l->router_proj, 16, 256, WEIGHT_BF16);
        assert_non_null(l->post_ffn_norm_2);
        assert_true(l->layer_scalar != 0);
    }
    assert_int_equal(m->config.n_stop_tokens, 2);
    assert_int_equal(m->config.stop_tokens[1], 16);
    /* matrices are not copied */
    assert_true(m->mapped_bytes > 37000000);
    assert_true(mem_total(&account) < 200000);
    close_model(m);
}

/* The value of an element as the file holds it. */
static float stored(const char *directory, const char *name, size_t i) {
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    safetensors *file;
    assert_ok(safetensors_open(path, &file, &error));
    const tensor *t = safetensors_find(file, name);
    assert_non_null(t);
    float value;
    memcpy(&value, t->data + 4 * i, 4);
    safetensors_close(file);
    return value;
}

static void test_tiny(void **state) {
    (void)state;
    language_model *m = open_model(GOLDEN "gemma4-tiny-moe"); /* nested configuration and prefix */
    const layer_weights *l = &m->weights.layer[7];
#define MOE(name, i) stored(GOLDEN "gemma4-tiny-moe", "model.language_model.layers.7." name, i)
    assert_weight(&l->experts_gate_up, 12 * 48, 64, WEIGHT_F32);
    assert_true(((const float *)l->experts_gate_up.stream[0])[5000] == MOE("experts.gate_up_proj", 5000));
    assert_true(((const float *)l->q_proj.stream[0])[100] == MOE("self_attn.q_proj.weight", 100));
    assert_true(l->q_norm[3] == MOE("self_attn.q_norm.weight", 3));
    assert_true(l->k_norm[3] == MOE("self_attn.k_norm.weight", 3));
    assert_true(l->input_norm[63] == MOE("input_layernorm.weight", 63));
    assert_true(l->post_attention_norm[9] == MOE("post_attention_layernorm.weight", 9));
    assert_true(l->pre_ffn_norm[9] == MOE("pre_feedforward_layernorm.weight", 9));
    assert_true(l->post_ffn_norm[9] == MOE("post_feedforward_layernorm.weight", 9));
    assert_true(l->post_ffn_norm_1[9] == MOE("post_feedforward_layernorm_1.weight", 9));
    assert_true(l->pre_ffn_norm_2[9] == MOE("pre_feedforward_layernorm_2.weight", 9));
    assert_true(l->post_ffn_norm_2[9] == MOE("post_feedforward_layernorm_2.weight", 9));
    assert_true(l->router_scale[9] == MOE("router.scale", 9));
    assert_true(l->router_expert_scale[11] == MOE("router.per_expert_scale", 11));
    assert_true(l->layer_scalar == MOE("layer_scalar", 0));
    close_model(m);

    m = open_model(GOLDEN "gemma4-tiny-dense");
    assert_null(m->weights.layer[5].v_proj.stream[0]);
    assert_null(m->weights.layer[0].experts_gate_up.stream[0]);
    assert_null(m->weights.layer[0].post_ffn_norm_1);
    close_model(m);

    m = open_model(GOLDEN "gemma4-tiny-ple");
    assert_weight(&m->weights.ple_embed, 320, 240, WEIGHT_F32);
    assert_weight(&m->weights.ple_model_proj, 240, 64, WEIGHT_F32);
    assert_weight(&m->weights.layer[6].gate_proj, 192, 64, WEIGHT_F32); /* double-wide */
    assert_null(m->weights.layer[6].k_proj.stream[0]);                  /* shared */
    assert_null(m->weights.layer[6].k_norm);
    assert_non_null(m->weights.layer[6].q_norm);
    assert_weight(&m->weights.layer[5].v_proj, 32, 64, WEIGHT_F32);
    assert_non_null(m->weights.ple_proj_norm);
    assert_non_null(m->weights.layer[9].post_ple_norm);
    close_model(m);
}

/* A changed copy of a tiny model in the scratch directory "c". */
static kakeya_status open_changed(const char *name, copy_change change, language_model **out) {
    char source[512];
    scratch_folder("c");
    snprintf(source, sizeof source, GOLDEN "%s/config.json", name);
    copy_file(source, "c/config.json");
    snprintf(source, sizeof source, GOLDEN "%s/model.safetensors", name);
    copy_safetensors(source, scratch_path("c/model.safetensors"), &change);
    kakeya_status status = language_model_open(scratch_path("c"), &account, out, &error);
    if (status != KAKEYA_OK) assert_int_equal(mem_total(&account), 0);
    return status;
}

static kakeya_status refuse_changed(const char *name, copy_change change) {
    language_model *model;
    kakeya_status status = open_changed(name, change, &model);
    language_model_close(model);
    return status;
}

#define CHANGE(...) ((copy_change){__VA_ARGS__})

static void test_refusals(void **state) {
    (void)state;
    const char *dense = "gemma4-tiny-dense";
    assert_refused(refuse_changed(dense, CHANGE(.drop = "model.layers.3.mlp.up_proj.weight")), KAKEYA_FORMAT,
                   "1 missing", "model.layers.3.mlp.up_proj.weight [160, 64]");
    assert_refused(refuse_changed(dense, CHANGE(.drop = "model.layers.3.layer_scalar")), KAKEYA_FORMAT,
                   "model.layers.3.layer_scalar [1]");
    assert_refused(refuse_changed(dense, CHANGE(.drop = "model.norm.weight")), KAKEYA_FORMAT, "model.norm.weight [64]");
    assert_refused(refuse_changed(dense, CHANGE(.drop = "model.embed_tokens.weight")), KAKEYA_FORMAT,
                   "model.embed_tokens.weight [320, 64]");
    assert_refused(refuse_changed(dense, CHANGE(.reshape = "model.layers.0.self_attn.k_proj.weight")), KAKEYA_FORMAT,
                   "model.layers.0.self_attn.k_proj.weight has shape [1, 64, 32]", "expected [32, 64]");
    assert_refused(refuse_changed(dense, CHANGE(.reshape = "model.layers.0.self_attn.k_norm.weight")), KAKEYA_FORMAT,
                   "k_norm.weight has shape [1, 16]", "expected [16]");
    assert_refused(refuse_changed(dense, CHANGE(.retype = "model.layers.0.mlp.gate_proj.weight")), KAKEYA_FORMAT,
                   "model.layers.0.mlp.gate_proj.weight has dtype I32", "F32, F16 or BF16");
    assert_refused(refuse_changed(dense, CHANGE(.retype = "model.layers.0.layer_scalar")), KAKEYA_FORMAT,
                   "layer_scalar has dtype I32");
    assert_refused(refuse_changed(dense, CHANGE(.add = {"model.layers.6.layer_scalar", "extra"})), KAKEYA_FORMAT,
                   "2 unexpected", "extra, model.layers.6.layer_scalar");
    assert_refused(refuse_changed(dense, CHANGE(.rename = "model.norm.weight", .renamed = "model.final.weight")),
                   KAKEYA_FORMAT, "1 missing tensor(s): model.norm.weight [64]", "1 unexpected: model.final.weight");
    assert_refused(refuse_changed(dense, CHANGE(.from_prefix = "model.", .to_prefix = "net.")), KAKEYA_FORMAT,
                   "missing", "model.embed_tokens.weight", "net.");

    language_model *model;
    assert_refused(language_model_open(GOLDEN "dflash-tiny", &account, &model, &error), KAKEYA_UNSUPPORTED,
                   "DFlashDraftModel");
    assert_null(model);
    mem_account small;
    mem_account_init(&small, NULL, 1000);
    assert_refused(language_model_open(GOLDEN "gemma4-tiny-dense", &small, &model, &error), KAKEYA_OUT_OF_MEMORY,
                   "no memory");
    assert_int_equal(mem_total(&small), 0);
}

static void test_accepted_extras(void **state) {
    (void)state;
    language_model *m;
    assert_ok(open_changed("gemma4-tiny-moe",
                           CHANGE(.add = {"model.vision_tower.encoder.w", "model.embed_vision.p",
                                          "model.audio_tower.x.input_max", "model.language_model.rotary_emb.inv_freq"}),
                           &m));
    assert_non_null(strstr(m->note, "4 vision and audio tensors skipped"));
    close_model(m);
    assert_ok(
        open_changed("gemma4-tiny-dense", CHANGE(.add = {"lm_head.weight"}), &m)); /* tied: a copy that is not needed */
    assert_ptr_equal(m->weights.head.stream[0], m->weights.embed.stream[0]);
    assert_string_equal(m->note, "");
    close_model(m);
    /* the v_proj of a K = V layer */
    assert_ok(open_changed("gemma4-tiny-dense", CHANGE(.add = {"model.layers.5.self_attn.v_proj.weight"}), &m));
    assert_null(m->weights.layer[5].v_proj.stream[0]);
    assert_string_equal(m->note, "");
    close_model(m);
    /* rotary buffers, under every name that versions of transformers have given them */
    assert_ok(open_changed("gemma4-tiny-dense",
                           CHANGE(.add = {"model.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq",
                                          "model.rotary_emb.full_attention_inv_freq",
                                          "model.rotary_emb.sliding_attention_original_inv_freq"}),
                           &m));
    assert_string_equal(m->note, ""); /* nothing of the model is missing */
    close_model(m);
    /* K/V of layers that share another layer's */
    assert_ok(
        open_changed("gemma4-tiny-ple",
                     CHANGE(.add = {"model.layers.7.self_attn.k_proj.weight", "model.layers.7.self_attn.v_proj.weight",
                                    "model.layers.7.self_attn.k_norm.weight"}),
                     &m));
    assert_null(m->weights.layer[7].k_proj.stream[0]);
    close_model(m);
    assert_ok(
        open_changed("gemma4-tiny-dense", CHANGE(.from_prefix = "model.", .to_prefix = "model.language_model."), &m));
    assert_weight(&m->weights.embed, 320, 64, WEIGHT_F32);
    close_model(m);
}

static void test_untied(void **state) {
    (void)state;
    size_t bytes;
    scratch_folder("c");
    char *json = scratch_read(GOLDEN "gemma4-tiny-dense/config.json", &bytes);
    char *untied = scratch_replace(json, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
    copy_change none = {0};
    copy_safetensors(GOLDEN "gemma4-tiny-dense/model.safetensors", scratch_path("c/model.safetensors"), &none);
    scratch_text("c/config.json", untied);
    language_model *m;
    assert_refused(language_model_open(scratch_path("c"), &account, &m, &error), KAKEYA_FORMAT, "missing",
                   "lm_head.weight [320, 64]");
    free(untied);
    free(json);
}

/* No dtype in the configuration: the checkpoint's own type decides. */
static void test_dtype_from_tensors(void **state) {
    (void)state;
    size_t bytes;
    scratch_folder("c");
    char *json = scratch_read(GOLDEN "gemma4-tiny-dense/config.json", &bytes);
    char *changed = scratch_replace(json, "\"dtype\": \"float32\"", "\"comment\": 1");
    copy_change none = {0};
    copy_safetensors(GOLDEN "gemma4-tiny-dense/model.safetensors", scratch_path("c/model.safetensors"), &none);
    scratch_text("c/config.json", changed);
    language_model *m;
    assert_ok(language_model_open(scratch_path("c"), &account, &m, &error));
    assert_int_equal(m->config.checkpoint_format, WEIGHT_F32);
    close_model(m);
    free(changed);
    free(json);
}

static float value_of(const weight *w, size_t i) {
    if (w->format == WEIGHT_F32) return ((const float *)w->stream[0])[i];
    return bf16_to_f32(((const uint16_t *)w->stream[0])[i]);
}

/* Values of the shapes of a tiny model with every kind of tensor, in both types. */
static void test_synthetic_values(void **state) {
    (void)state;
    size_t bytes;
    char *json = scratch_read(GOLDEN "gemma4-tiny-moe/config.json", &bytes);
    model_config config;
    assert_ok(model_config_parse("config.json", json, bytes, NULL, 0, &config, &error));
    free(json);
    model_weights *weights[3];
    tensor_memory memory[3] = {0};
    const weight_format types[3] = {WEIGHT_BF16, WEIGHT_F32, WEIGHT_BF16};
    for (int k = 0; k < 3; k++) {
        weights[k] = calloc(1, sizeof *weights[k]);
        assert_ok(tensors_synthesize(gemma4_walk, &config, weights[k], types[k], &account, &memory[k], &error));
    }
    const layer_weights *l = &weights[0]->layer[0];
    assert_weight(&l->experts_gate_up, 12 * 48, 64, WEIGHT_BF16);
    assert_weight(&weights[1]->layer[0].experts_gate_up, 12 * 48, 64, WEIGHT_F32);
    assert_true(l->input_norm[63] == 1 && l->layer_scalar == 1 && l->router_expert_scale[11] == 1);
    double sum = 0, squares = 0;
    const size_t n = 12 * 48 * 64;
    for (size_t i = 0; i < n; i++) {
        double v = (double)value_of(&l->experts_gate_up, i);
        assert_true(fabs(v - (double)value_of(&weights[1]->layer[0].experts_gate_up, i)) <=
                    0.02 * 1.74 / 256); /* rounding only */
        sum += v;
        squares += v * v;
    }
    assert_true(fabs(sum / (double)n) < 1e-3);
    assert_true(fabs(sqrt(squares / (double)n) - 0.02) < 1e-3);
    assert_memory_equal(l->experts_gate_up.stream[0], weights[2]->layer[0].experts_gate_up.stream[0],
                        2 * n); /* deterministic */
    assert_memory_not_equal(l->gate_proj.stream[0], l->up_proj.stream[0], 128);
    assert_memory_not_equal(l->gate_proj.stream[0], weights[0]->layer[1].gate_proj.stream[0], 128);
    assert_memory_not_equal(l->gate_proj.stream[0], (const char *)l->gate_proj.stream[0] + 128, 128); /* rows differ */
    for (int k = 0; k < 3; k++) {
        tensor_memory_release(&memory[k]);
        free(weights[k]);
    }
    assert_int_equal(mem_total(&account), 0);
}

/* Quantised ones: matrices are of the formats that converters choose, and wait for the backend to make them. */
static void test_synthetic_blocks(void **state) {
    (void)state;
    static const struct {
        const char *shape;
        weight_format head, gate, down, experts_down, last_down;
    } cases[] = {
        {"26b-a4b:layers=9:q4_0", WEIGHT_Q8_0, WEIGHT_Q4_0, WEIGHT_Q4_0, WEIGHT_Q4_0, WEIGHT_Q4_0},
        {"26b-a4b:q8_0:layers=9", WEIGHT_Q8_0, WEIGHT_Q8_0, WEIGHT_Q8_0, WEIGHT_Q8_0, WEIGHT_Q8_0},
        {"26b-a4b:q4_k_m:layers=9", WEIGHT_Q6_K, WEIGHT_Q4_K, WEIGHT_Q5_0, WEIGHT_Q5_0, WEIGHT_Q8_0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        language_model *m;
        assert_ok(language_model_synthesize(cases[i].shape, &account, &m, &error));
        const layer_weights *l = &m->weights.layer[1], *last = &m->weights.layer[8];
        assert_int_equal(m->weights.head.format, cases[i].head);
        assert_int_equal(l->gate_proj.format, cases[i].gate);
        assert_int_equal(l->down_proj.format, cases[i].down);
        assert_int_equal(l->experts_down.format, cases[i].experts_down);
        assert_int_equal(last->down_proj.format, cases[i].last_down);
        assert_null(l->gate_proj.stream[0]);
        assert_true(l->gate_proj.synthetic > 0);
        assert_weight(&l->router_proj, 128, 2816, WEIGHT_BF16);
        close_model(m);
    }
}

/* FP8 has its data at once: codes that are numbers, and one scale for each output. The head stays plain. */
static void test_synthetic_fp8(void **state) {
    (void)state;
    language_model *m;
    assert_ok(language_model_outline("26b-a4b:layers=1:fp8", &account, &m, &error));
    const layer_weights *l = &m->weights.layer[0];
    assert_int_equal(l->router_proj.format, WEIGHT_BF16);
    assert_int_equal(m->weights.head.format, WEIGHT_BF16);
    assert_int_equal(l->experts_down.format, WEIGHT_FP8);
    assert_int_equal(l->experts_down.group, 704);
    assert_null(l->experts_down.stream[0]);
    close_model(m);
    assert_ok(language_model_synthesize("e2b:layers=1:fp8", &account, &m, &error));
    const weight *down = &m->weights.layer[0].down_proj;
    assert_int_equal(down->format, WEIGHT_FP8);
    assert_int_equal(down->group, 6144);
    const unsigned char *codes = down->stream[0];
    const float *scales = down->stream[1];
    for (int o = 0; o < down->out; o++) assert_true(scales[o] > 0 && scales[o] == scales[0]);
    for (int i = 0; i < 6144; i++) assert_true((codes[i] & 0x7f) < 0x38);
    assert_memory_not_equal(codes, codes + 6144, 6144);
    close_model(m);
    assert_int_equal(mem_total(&account), 0);
}

/* Affine codes: the router has eight bits; rows can be made one by one, and have the mean and deviation that are asked
 * for. */
static void test_synthetic_affine(void **state) {
    (void)state;
    language_model *m;
    assert_ok(language_model_outline("26b-a4b:layers=1:affine4", &account, &m, &error));
    const layer_weights *l = &m->weights.layer[0];
    assert_int_equal(l->router_proj.format, WEIGHT_AFFINE_8);
    assert_int_equal(m->weights.head.format, WEIGHT_AFFINE_4);
    assert_int_equal(l->experts_down.format, WEIGHT_AFFINE_4);
    assert_int_equal(l->experts_down.group, 64);
    assert_null(l->experts_down.stream[0]);
    close_model(m);
    static const weight_format formats[] = {WEIGHT_AFFINE_4, WEIGHT_AFFINE_8, WEIGHT_INT4, WEIGHT_FP8,
                                            WEIGHT_FP4_E8M0, WEIGHT_FP4_E4M3, WEIGHT_BF16, WEIGHT_F32};
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        enum { ROWS = 40, IN = 192 };
        weight w = {.format = formats[f], .out = ROWS, .in = IN, .scale_type = DTYPE_BF16, .synthetic = 0.05f};
        w.group = synthetic_group(w.format, IN);
        assert_true(synthetic_rows_can(w.format));
        double sum = 0, squares = 0;
        for (int o = 0; o < ROWS; o++) {
            _Alignas(4) char made[3][4 * IN], again[4 * IN];
            float values[IN];
            for (int i = 0; i < weight_format_find(w.format)->streams; i++) synthetic_row(&w, 7, o, i, made[i]);
            synthetic_row(&w, 7, o, 0, again);
            assert_memory_equal(made[0], again, weight_row_bytes(&w, 0));
            synthetic_row(&w, 7, o + 1, 0, again);
            assert_memory_not_equal(made[0], again, weight_row_bytes(&w, 0));
            synthetic_row(&w, 8, o, 0, again);
            assert_memory_not_equal(made[0], again, weight_row_bytes(&w, 0));
            const void *streams[WEIGHT_STREAMS] = {made[0], made[1], made[2]};
            weight_row_values(&w, streams, 0, IN, values);
            for (int i = 0; i < IN; i++) {
                sum += (double)values[i];
                squares += (double)values[i] * (double)values[i];
            }
        }
        assert_true(fabs(sum / (ROWS * IN)) < 2e-3);
        double near = formats[f] == WEIGHT_FP4_E8M0 ? 0.02 : 2e-3;
        assert_true(fabs(sqrt(squares / (ROWS * IN)) - 0.05) < near);
    }
    assert_false(synthetic_rows_can(WEIGHT_Q4_0));
}

static void test_synthetic(void **state) {
    (void)state;
    language_model *m;
    assert_ok(language_model_synthesize("e2b:layers=1", &account, &m, &error));
    assert_weight(&m->weights.embed, 262144, 1536, WEIGHT_BF16);
    assert_weight(&m->weights.layer[0].down_proj, 1536, 6144, WEIGHT_BF16);
    assert_weight(&m->weights.ple_embed, 262144, 256, WEIGHT_BF16);
    assert_ptr_equal(m->weights.head.stream[0], m->weights.embed.stream[0]);
    assert_null(m->checkpoint);
    assert_true(mem_bytes(&account, MEM_WEIGHTS) > (size_t)262144 * (1536 + 256) * 2);
    close_model(m);

    mem_account small;
    mem_account_init(&small, NULL, (size_t)100 << 20);
    assert_refused(language_model_synthesize("e2b:layers=1", &small, &m, &error), KAKEYA_OUT_OF_MEMORY, "no memory",
                   "embed_tokens");
    assert_int_equal(mem_total(&small), 0);
    assert_refused(language_model_synthesize("7b", &account, &m, &error), KAKEYA_INVALID_ARGUMENT, "7b");
}

int main(void) {
    mem_account_init(&account, NULL, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo),
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_accepted_extras),
        cmocka_unit_test(test_untied),
        cmocka_unit_test(test_dtype_from_tensors),
        cmocka_unit_test(test_synthetic_values),
        cmocka_unit_test(test_synthetic_fp8),
        cmocka_unit_test(test_synthetic_affine),
        cmocka_unit_test(test_synthetic),
        cmocka_unit_test(test_synthetic_blocks),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
