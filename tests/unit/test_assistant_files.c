/* Protects: files of every form are the same MTP assistant, and one of another verifier, or one that is damaged, is
 * refused before anything runs, with both numbers. */
#include "unit/assistant_pair.h"

#include "convert/quantise.h"
#include "gguf_writer.h"
#include "model/sizes.h"
#include "model/tensors.h"
#include "scratch.h"

/* ------------------------------------------------------------------------------------------------------- files */

static char *config_text(int which, size_t *bytes) {
    char path[512];
    snprintf(path, sizeof path, "%s/config.json", assistant_path(which));
    return scratch_read(path, bytes);
}

static void others_are_refused(void **state) {
    (void)state;
    static const struct {
        int which;
        const char *from, *to, *a, *b; /* what the message names */
    } cases[] = {
        {0, "\"backbone_hidden_size\": 64", "\"backbone_hidden_size\": 96", "96", "64"},
        {0, "\"vocab_size\": 320", "\"vocab_size\": 640", "640", "320"},
        {0, "\"head_dim\": 16", "\"head_dim\": 32", "32", "16"},
        {0, "\"global_head_dim\": 32", "\"global_head_dim\": 64", "64", "32"},
        {0, "\"sliding_window\": 12", "\"sliding_window\": 13", "13", "12"},
        {0, "\"rope_theta\": 10000.0", "\"rope_theta\": 20000.0", "20000", "10000"},
        {0, "\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 0.5", "8", "4"},
        {2, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 1", "1", "2"},
        {2, "\"num_centroids\": 16", "\"num_centroids\": 17", "320", "17"},
        {2, "\"centroid_intermediate_top_k\": 3", "\"centroid_intermediate_top_k\": 30", "30", "16"},
        {0, "\"num_kv_shared_layers\": 4", "\"num_kv_shared_layers\": 3", "3", "4"},
        {0, "\"hidden_size_per_layer_input\": 0", "\"hidden_size_per_layer_input\": 8", "8", "0"},
        {0, "gemma4_assistant", "gemma4_helper", "assistant", "model_type"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pair p;
        open_models(&p, cases[i].which);
        size_t bytes;
        char *text = config_text(cases[i].which, &bytes), *changed = scratch_replace(text, cases[i].from, cases[i].to);
        if (strcmp(cases[i].to, "gemma4_helper") == 0) {
            char *more = scratch_replace(changed, "Gemma4AssistantForCausalLM", "Other");
            free(changed);
            changed = more;
        }
        assistant_config c;
        kakeya_error message = {0};
        kakeya_status status = assistant_config_parse("config.json", changed, strlen(changed), &c, &message);
        if (status == KAKEYA_OK) status = assistant_config_fits("config.json", &c, &p.verifier->config, &message);
        if (status == KAKEYA_OK || !strstr(message.message, cases[i].a) || !strstr(message.message, cases[i].b))
            fail_msg("%s: \"%s\" does not name %s and %s", cases[i].to, message.message, cases[i].a, cases[i].b);
        free(changed);
        free(text);
        assistant_model_close(p.assistant);
        language_model_close(p.verifier);
        safetensors_close(p.vectors);
        assert_int_equal(mem_total(&p.account), 0);
    }
}

/* A directory with an edited ordering. */
static void orderings_are_permutations(void **state) {
    (void)state;
    pair p;
    open_models(&p, 2);
    char path[512];
    size_t bytes, config_bytes;
    snprintf(path, sizeof path, "%s/model.safetensors", assistant_path(2));
    char *file = scratch_read(path, &bytes), *config = config_text(2, &config_bytes);
    safetensors *tensors;
    REQUIRE_OK(safetensors_open(path, &tensors, error));
    const tensor *t = safetensors_find(tensors, "masked_embedding.token_ordering");
    assert_non_null(t);
    size_t at = (size_t)((const char *)t->data - (const char *)tensors->map.data);
    int64_t second;
    memcpy(&second, file + at + 8, 8);
    memcpy(file + at, &second, 8); /* the first token is there twice now */
    safetensors_close(tensors);
    const char *folder = scratch_folder("doubled");
    scratch_write("doubled/model.safetensors", file, bytes);
    scratch_write("doubled/config.json", config, config_bytes);
    assistant_model *refused = NULL;
    kakeya_error message = {0};
    assert_int_equal(assistant_model_open(folder, &p.verifier->config, &p.account, &refused, &message), KAKEYA_FORMAT);
    assert_non_null(strstr(message.message, "token_ordering[1]"));
    assert_null(refused);
    free(file);
    free(config);
    assistant_model_close(p.assistant);
    language_model_close(p.verifier);
    safetensors_close(p.vectors);
    assert_int_equal(mem_total(&p.account), 0);
}

/* --------------------------------------------------------------------------------------------------- GGUF files */

typedef struct writing {
    const assistant_model *model;
    gguf_writer *to;
    weight_format format; /* of matrices of whole blocks */
    bool clusters;
} writing;

static float value_of(const weight *w, int row, int i) {
    uint16_t bits;
    memcpy(&bits, (const char *)weight_row(w, 0, row) + (size_t)i * 2, 2);
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static const char *gguf_name(const char *slot, char *out) {
    static const char *const names[][2] = {
        {"pre_projection", "nextn.pre_projection"},
        {"post_projection", "nextn.post_projection"},
        {"model.embed_tokens", "token_embd"},
        {"model.norm", "output_norm"},
        {"self_attn.q_proj", "attn_q"},
        {"self_attn.q_norm", "attn_q_norm"},
        {"self_attn.o_proj", "attn_output"},
        {"mlp.gate_proj", "ffn_gate"},
        {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},
        {"input_layernorm", "attn_norm"},
        {"post_attention_layernorm", "post_attention_norm"},
        {"pre_feedforward_layernorm", "ffn_norm"},
        {"post_feedforward_layernorm", "post_ffw_norm"},
        {"layer_scalar", "layer_output_scale"},
        {"masked_embedding.centroids", "masked_embd_centroids"},
    };
    int layer = -1;
    const char *rest = slot;
    if (strncmp(slot, "model.layers.", 13) == 0) {
        layer = atoi(slot + 13);
        rest = strchr(slot + 13, '.') + 1;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t length = strlen(names[i][0]);
        if (strncmp(rest, names[i][0], length) != 0 || (rest[length] && rest[length] != '.')) continue;
        if (layer < 0)
            sprintf(out, "%s.weight", names[i][1]);
        else
            sprintf(out, "blk.%d.%s.weight", layer, names[i][1]);
        return out;
    }
    return NULL;
}

/* The head's rows are in the order of clusters in memory, and in that of tokens in files. */
static int file_row(const writing *w, const char *name, int row) {
    const int32_t *token_of = w->model->weights.token_of;
    if (!token_of || strncmp(name, "token_embd", 10) != 0) return row;
    for (int i = 0; i < w->model->config.stack.vocab; i++)
        if (token_of[i] == row) return i;
    return -1;
}

static kakeya_status write_slot(void *context, const tensor_slot *slot, kakeya_error *unused) {
    (void)unused;
    const writing *w = context;
    const char *base = (const char *)&w->model->weights + slot->offset;
    char memory[128];
    const char *name = gguf_name(slot->name, memory);
    if (slot->kind == SLOT_IGNORED || (!w->clusters && strncmp(slot->name, "masked", 6) == 0)) return KAKEYA_OK;
    assert_non_null(name);
    int64_t ne[2] = {slot->shape[slot->dims - 1], slot->shape[0]};
    if (slot->kind != SLOT_MATRIX) {
        const float *values =
            slot->kind == SLOT_VECTOR ? *(const float *const *)(const void *)base : (const float *)(const void *)base;
        gw_tensor(w->to, name, GGUF_TENSOR_F32, 1, ne, values, (size_t)ne[0] * sizeof(float));
        return KAKEYA_OK;
    }
    const weight *matrix = (const weight *)(const void *)base;
    int in = (int)ne[0], out = (int)ne[1];
    bool blocks = in % 32 == 0 && w->format != WEIGHT_BF16;
    weight_format format = blocks ? w->format : WEIGHT_BF16;
    size_t row_bytes = weight_format_bytes(weight_format_find(format), 1, in, 0);
    unsigned char *data = malloc(row_bytes * (size_t)out);
    float *values = malloc((size_t)in * sizeof *values);
    for (int row = 0; row < out; row++) {
        int from = file_row(w, name, row);
        for (int i = 0; i < in; i++) values[i] = value_of(matrix, from, i);
        quantise_row(format, values, NULL, in, data + (size_t)row * row_bytes);
    }
    gw_tensor(w->to, name,
              format == WEIGHT_Q8_0   ? GGUF_TENSOR_Q8_0
              : format == WEIGHT_Q4_0 ? GGUF_TENSOR_Q4_0
                                      : GGUF_TENSOR_BF16,
              2, ne, data, row_bytes * (size_t)out);
    free(values);
    free(data);
    return KAKEYA_OK;
}

static const char *write_file(const assistant_model *model, weight_format format, bool clusters,
                              const char *architecture) {
    const assistant_config *c = &model->config;
    const model_config *s = &c->stack;
    gguf_writer w = gw_begin();
    gw_key_text(&w, "general.architecture", architecture);
    const struct {
        const char *key;
        int value;
    } numbers[] = {
        {"block_count", s->layers},
        {"context_length", s->max_context},
        {"embedding_length", s->hidden},
        {"embedding_length_out", c->backbone},
        {"feed_forward_length", s->layer[0].intermediate},
        {"attention.head_count", s->heads},
        {"attention.key_length", s->layer[s->layers - 1].head_dim},
        {"attention.value_length", s->layer[s->layers - 1].head_dim},
        {"attention.key_length_swa", s->layer[0].head_dim},
        {"attention.value_length_swa", s->layer[0].head_dim},
        {"attention.sliding_window", s->sliding_window},
        {"attention.shared_kv_layers", s->layers},
        {"embedding_length_per_layer_input", 0},
        {"nextn_predict_layers", s->layers},
    };
    char key[128];
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        snprintf(key, sizeof key, "gemma4-assistant.%s", numbers[i].key);
        gw_key_u32(&w, key, (uint32_t)numbers[i].value);
    }
    uint32_t kv[8];
    unsigned char slides[8];
    for (int i = 0; i < s->layers; i++) {
        kv[i] = (uint32_t)s->layer[i].kv_heads;
        slides[i] = s->layer[i].type == LAYER_SLIDING;
    }
    gw_key_array(&w, "gemma4-assistant.attention.head_count_kv", GGUF_U32, kv, (uint64_t)s->layers, 4);
    gw_key_array(&w, "gemma4-assistant.attention.sliding_window_pattern", GGUF_BOOL, slides, (uint64_t)s->layers, 1);
    gw_key_f32(&w, "gemma4-assistant.attention.layer_norm_rms_epsilon", s->rms_eps);
    gw_key_f32(&w, "gemma4-assistant.rope.freq_base", s->rope[LAYER_FULL].theta);
    gw_key_f32(&w, "gemma4-assistant.rope.freq_base_swa", s->rope[LAYER_SLIDING].theta);
    if (clusters) gw_key_u32(&w, "gemma4-assistant.centroid_top_k", (uint32_t)c->chosen_clusters);
    int half = s->layer[s->layers - 1].head_dim / 2;
    float divisors[64];
    for (int i = 0; i < half; i++) divisors[i] = i < s->rope[LAYER_FULL].rotated_pairs ? 1.0f : 1e30f;
    gw_tensor(&w, "rope_freqs.weight", GGUF_TENSOR_F32, 1, (int64_t[]){half}, divisors, (size_t)half * sizeof(float));
    if (clusters)
        gw_tensor(&w, "masked_embd_ordering", 26, 1, (int64_t[]){s->vocab}, model->weights.token_of,
                  (size_t)s->vocab * sizeof(int32_t));
    writing context = {model, &w, format, clusters};
    REQUIRE_OK(assistant_walk(c, write_slot, &context, error));
    size_t bytes;
    unsigned char *data = gw_finish(&w, &bytes);
    const char *path = scratch_write("assistant.gguf", data, bytes);
    free(data);
    return path;
}

/* What a pair drafts behind its prompt, with logits. */
static void draft_with(pair *p, int32_t drafts[LONGEST], float *logits) {
    complete(p, KAKEYA_PRECISION_F32, 1);
    backend_cache *cache = prompted(p, &native, KV_FORMAT_F32);
    const assistant_trace trace = {logits, NULL};
    REQUIRE_OK(assistant_chain(cache, *ids(p, "bonus"), LONGEST, drafts, &trace, error));
    p->ops->cache_destroy(cache);
    p->ops->model_destroy(p->backend);
}

static void gguf_files_are_the_same_assistant(void **state) {
    (void)state;
    static float expected[LONGEST * 320], found[LONGEST * 320];
    for (int which = 0; which < PAIRS; which++) {
        pair p;
        int32_t drafts[LONGEST], of_file[LONGEST];
        open_models(&p, which);
        draft_with(&p, drafts, expected);
        bool clustered = p.assistant->config.clusters > 0;
        assistant_model *directory = p.assistant;
        static const weight_format stored[] = {WEIGHT_BF16, WEIGHT_Q8_0, WEIGHT_Q4_0};
        for (int k = 0; k < 3; k++) {
            const char *path = write_file(directory, stored[k], clustered, "gemma4-assistant");
            bool is_assistant = false;
            REQUIRE_OK(assistant_is_at(path, &is_assistant, error));
            assert_true(is_assistant);
            REQUIRE_OK(assistant_model_open(path, &p.verifier->config, &p.account, &p.assistant, error));
            assert_int_equal(p.assistant->config.clusters, directory->config.clusters);
            draft_with(&p, of_file, found);
            if (k == 0) assert_same_bits("logits of the file", found, expected, LONGEST * 320);
            /* Blocks of 32: the first draft of a chain differs by what they round. */
            if (k == 1) assert_close_relative("logits of Q8_0", found, expected, 320, clustered ? 0.2 : 0.05);
            if (k == 2) assert_close_relative("logits of Q4_0", found, expected, 320, clustered ? 0.8 : 0.5);
            assistant_model_close(p.assistant);
        }
        if (clustered) { /* a file without the clusters has the dense head */
            REQUIRE_OK(assistant_model_open(write_file(directory, WEIGHT_BF16, false, "gemma4-assistant"),
                                            &p.verifier->config, &p.account, &p.assistant, error));
            assert_int_equal(p.assistant->config.clusters, 0);
            draft_with(&p, of_file, found);
            for (int i = 0; i < 320; i++)
                if (expected[i] > expected[(drafts[0] + 1) % 320] + 1e-3f) assert_true(found[i] > -1e30f);
            assert_true(found[drafts[0]] == expected[drafts[0]]);
            assistant_model_close(p.assistant);
        }
        kakeya_error message = {0};
        assert_int_equal(assistant_model_open(write_file(directory, WEIGHT_BF16, false, "gemma4_assistant"),
                                              &p.verifier->config, &p.account, &p.assistant, &message),
                         KAKEYA_UNSUPPORTED);
        assert_non_null(strstr(message.message, "older dialect"));
        assistant_model_close(directory);
        language_model_close(p.verifier);
        safetensors_close(p.vectors);
        assert_int_equal(mem_total(&p.account), 0);
    }
}

/* Published shapes: parameters as counted from the published files' shapes. */
static void published_shapes(void **state) {
    (void)state;
    static const struct {
        const char *variant;
        long long parameters;
        int sliding, full; /* layers of the verifier whose K/V are read */
    } shapes[] = {{"e2b", 77731332, 13, 14},
                  {"e4b", 78517764, 22, 23},
                  {"12b", 422856964, 46, 47},
                  {"26b-a4b", 419711236, 28, 29},
                  {"31b", 469518596, 58, 59}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        model_config verifier;
        assistant_config c;
        REQUIRE_OK(model_config_variant(shapes[i].variant, &verifier, error));
        assistant_config_published(&verifier, &c);
        REQUIRE_OK(assistant_config_fits(shapes[i].variant, &c, &verifier, error));
        if (assistant_parameters(&c) != shapes[i].parameters)
            fail_msg("%s: %lld parameters, expected %lld", shapes[i].variant, (long long)assistant_parameters(&c),
                     shapes[i].parameters);
        program_op *ops = calloc((size_t)program_most_assistant_ops(&c), sizeof *ops);
        int n = program_assistant(&c, &verifier, ops), attends = 0;
        assert_true(ops && n <= program_most_assistant_ops(&c));
        for (int k = 0; k < n; k++) {
            if (ops[k].kind != OP_ATTEND) continue;
            assert_true(ops[k].before);
            assert_int_equal(ops[k].source, attends < 3 ? shapes[i].sliding : shapes[i].full);
            attends++;
        }
        assert_int_equal(attends, 4);
        free(ops);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_are_refused),
        cmocka_unit_test(orderings_are_permutations),
        cmocka_unit_test(gguf_files_are_the_same_assistant),
        cmocka_unit_test(published_shapes),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
