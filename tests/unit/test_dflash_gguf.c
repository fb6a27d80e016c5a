/* Protects: a DFlash drafter in a GGUF file is the drafter that the directory holds, and drafts its tokens; files whose
 * arithmetic is another one, or that are not complete, are refused with a line that names the key or the tensor. */
#include "golden.h"

#include "gguf_writer.h"
#include "model/dflash_gguf.h"
#include "model/tensors.h"
#include "scratch.h"

#define DRAFTER KAKEYA_MODELS "/demo-dflash"

static mem_account account;
static language_model *demo;

typedef struct file_options {
    const char *without;  /* a key or a tensor */
    const char *key;      /* another value of it */
    gguf_value_type type; /* U32, F32, BOOL or STRING */
    double number;
    const char *text;
    bool quantised; /* o_proj is Q8_0, all zeros */
    bool sliding;   /* the first layer slides */
} file_options;

typedef struct writing {
    const file_options *options;
    const block_drafter_model *model;
    gguf_writer *to;
} writing;

static const char *const names[][2] = {
    {"hidden_norm.weight", "enc.output_norm.weight"},  {"norm.weight", "output_norm.weight"},
    {"input_layernorm.weight", "attn_norm.weight"},    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},      {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},      {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"}, {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},       {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
};

static kakeya_status write_slot(void *context, const tensor_slot *slot, kakeya_error *unused) {
    (void)unused;
    const writing *w = context;
    const char *base = (const char *)w->model + slot->offset, *rest = slot->name;
    char name[128] = "fc.weight";
    int layer = -1;
    if (strncmp(rest, "layers.", 7) == 0) {
        layer = atoi(rest + 7);
        rest = strchr(rest + 7, '.') + 1;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i][0], rest) != 0) continue;
        if (layer < 0)
            snprintf(name, sizeof name, "%s", names[i][1]);
        else
            snprintf(name, sizeof name, "blk.%d.%s", layer, names[i][1]);
    }
    if (w->options->without && strcmp(w->options->without, name) == 0) return KAKEYA_OK;
    int64_t ne[2] = {slot->shape[slot->dims - 1], slot->shape[0]};
    if (slot->kind == SLOT_VECTOR) {
        gw_tensor(w->to, name, GGUF_TENSOR_F32, 1, ne, *(const float *const *)(const void *)base,
                  (size_t)ne[0] * sizeof(float));
    } else if (w->options->quantised && strstr(name, "attn_output")) {
        size_t bytes = (size_t)(ne[0] / 32 * ne[1]) * 34;
        void *zeros = calloc(1, bytes);
        gw_tensor(w->to, name, GGUF_TENSOR_Q8_0, 2, ne, zeros, bytes);
        free(zeros);
    } else {
        const weight *matrix = (const weight *)(const void *)base;
        assert_int_equal(matrix->format, WEIGHT_BF16);
        gw_tensor(w->to, name, GGUF_TENSOR_BF16, 2, ne, matrix->stream[0], (size_t)(ne[0] * ne[1]) * 2);
    }
    return KAKEYA_OK;
}

static bool wanted(const file_options *o, const char *key) {
    return !(o->without && strcmp(o->without, key) == 0) && !(o->key && strcmp(o->key, key) == 0);
}

/* The bundled drafter as a file. */
static const char *write_file(const block_drafter_model *model, const file_options *o) {
    gguf_writer w = gw_begin();
    const block_drafter_config *c = &model->config;
    const struct {
        const char *key;
        int value;
    } numbers[] = {
        {"dflash.block_count", c->layers},
        {"dflash.embedding_length", c->hidden},
        {"dflash.feed_forward_length", c->intermediate},
        {"dflash.attention.head_count", c->heads},
        {"dflash.attention.head_count_kv", c->kv_heads},
        {"dflash.attention.key_length", c->head_dim},
        {"dflash.block_size", c->block_size},
        {"tokenizer.ggml.mask_token_id", c->mask_token},
    };
    if (wanted(o, "general.architecture")) gw_key_text(&w, "general.architecture", "dflash");
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (wanted(o, numbers[i].key)) gw_key_u32(&w, numbers[i].key, (uint32_t)numbers[i].value);
    gw_key_f32(&w, "dflash.attention.layer_norm_rms_epsilon", c->rms_eps);
    gw_key_f32(&w, "dflash.rope.freq_base", c->rope_theta);
    gw_key_f32(&w, "dflash.final_logit_softcapping", c->logit_softcap);
    int32_t targets[BLOCK_DRAFTER_MAX_TARGETS]; /* the input of the layer behind */
    for (int i = 0; i < c->targets; i++) targets[i] = c->target_layer[i] + 1;
    if (wanted(o, "dflash.target_layers"))
        gw_key_array(&w, "dflash.target_layers", GGUF_I32, targets, (uint64_t)c->targets, sizeof *targets);
    if (o->sliding) {
        static const unsigned char pattern[] = {1, 0, 0};
        gw_key_u32(&w, "dflash.attention.sliding_window", 77);
        gw_key_array(&w, "dflash.attention.sliding_window_pattern", GGUF_BOOL, pattern, 3, 1);
    }
    if (o->key && o->type == GGUF_U32) gw_key_u32(&w, o->key, (uint32_t)o->number);
    if (o->key && o->type == GGUF_F32) gw_key_f32(&w, o->key, (float)o->number);
    if (o->key && o->type == GGUF_BOOL) gw_key_bool(&w, o->key, o->number != 0);
    if (o->key && o->type == GGUF_STRING) gw_key_text(&w, o->key, o->text);
    writing context = {o, model, &w};
    REQUIRE_OK(dflash_walk(c, write_slot, &context, error));
    size_t bytes;
    unsigned char *data = gw_finish(&w, &bytes);
    const char *path = scratch_write("drafter.gguf", data, bytes);
    free(data);
    return path;
}

static block_drafter_model *of_directory(void) {
    block_drafter_model *d;
    REQUIRE_OK(block_drafter_model_open(DRAFTER, &demo->config, &account, &d, error));
    return d;
}

static kakeya_status same_slot(void *context, const tensor_slot *slot, kakeya_error *unused) {
    (void)unused;
    const block_drafter_model *const *both = context;
    const char *a = (const char *)both[0] + slot->offset, *b = (const char *)both[1] + slot->offset;
    if (slot->kind == SLOT_VECTOR) {
        assert_same_bits(slot->name, *(const float *const *)(const void *)a, *(const float *const *)(const void *)b,
                         (size_t)slot->shape[0]);
        return KAKEYA_OK;
    }
    const weight *x = (const weight *)(const void *)a, *y = (const weight *)(const void *)b;
    assert_int_equal(x->format, y->format);
    assert_memory_equal(x->stream[0], y->stream[0], (size_t)x->out * (size_t)x->in * 2);
    return KAKEYA_OK;
}

static void test_same_drafter(void **state) {
    (void)state;
    for (int sliding = 0; sliding < 2; sliding++) {
        block_drafter_model *a = of_directory(), *b;
        REQUIRE_OK(block_drafter_model_open(write_file(a, &(file_options){.sliding = sliding}), &demo->config, &account,
                                            &b, error));
        if (sliding) a->config.sliding_window[0] = 77;
        a->config.target_layers_total = 0; /* files do not say */
        assert_memory_equal(&a->config, &b->config, sizeof a->config);
        const block_drafter_model *both[] = {a, b};
        REQUIRE_OK(dflash_walk(&a->config, same_slot, both, error));
        assert_true(block_drafter_is_plain(b) && !b->scaled_embedding);
        block_drafter_model_close(a);
        block_drafter_model_close(b);
    }
}

static void test_quantised(void **state) {
    (void)state;
    block_drafter_model *a = of_directory(), *b;
    const file_options options = {
        .quantised = true, .key = "dflash.embedding_scale", .type = GGUF_F32, .number = sqrt(a->config.hidden)};
    REQUIRE_OK(block_drafter_model_open(write_file(a, &options), &demo->config, &account, &b, error));
    assert_int_equal(b->layer[1].o_proj.format, WEIGHT_Q8_0);
    assert_false(block_drafter_is_plain(b));
    assert_true(b->scaled_embedding);
    block_drafter_model_close(a);
    block_drafter_model_close(b);
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        file_options options;
        kakeya_status status;
        const char *first, *second;
    } cases[] = {
        {{.without = "blk.1.ffn_up.weight"}, KAKEYA_FORMAT, "1 missing", "blk.1.ffn_up.weight"},
        {{.without = "enc.output_norm.weight"}, KAKEYA_FORMAT, "1 missing", "enc.output_norm.weight"},
        {{.without = "dflash.block_size"}, KAKEYA_FORMAT, "dflash.block_size", "missing"},
        {{.without = "dflash.target_layers"}, KAKEYA_FORMAT, "dflash.target_layers", "1 to 16"},
        {{.without = "tokenizer.ggml.mask_token_id"}, KAKEYA_FORMAT, "mask_token_id", "missing"},
        {{.without = "general.architecture"}, KAKEYA_FORMAT, "general.architecture", "missing"},
        {{.key = "general.architecture", .type = GGUF_STRING, .text = "gemma4-assistant"},
         KAKEYA_UNSUPPORTED,
         "gemma4-assistant",
         "dflash"},
        {{.key = "dflash.target_layers", .type = GGUF_U32, .number = 3},
         KAKEYA_FORMAT,
         "target_layers",
         "not an array"},
        {{.key = "dflash.block_count", .type = GGUF_U32, .number = 4}, KAKEYA_FORMAT, "11 missing", "blk.3."},
        {{.key = "dflash.block_count", .type = GGUF_U32, .number = 2}, KAKEYA_FORMAT, "11 unexpected", "blk.2."},
        {{.key = "dflash.block_count", .type = GGUF_U32, .number = 17}, KAKEYA_FORMAT, "is 17", "1 to 16"},
        {{.key = "dflash.embedding_length", .type = GGUF_U32, .number = 128}, KAKEYA_FORMAT, "is 128", "256"},
        {{.key = "dflash.vocab_size", .type = GGUF_U32, .number = 9}, KAKEYA_FORMAT, "is 9", "8192"},
        {{.key = "dflash.attention.head_count_kv", .type = GGUF_U32, .number = 3}, KAKEYA_FORMAT, "is 3", "4 heads"},
        {{.key = "dflash.attention.value_length", .type = GGUF_U32, .number = 32}, KAKEYA_UNSUPPORTED, "32", "64"},
        {{.key = "dflash.attention.scale", .type = GGUF_F32, .number = 1}, KAKEYA_UNSUPPORTED, "scale is 1", "64"},
        {{.key = "dflash.attention.causal", .type = GGUF_BOOL, .number = 1}, KAKEYA_UNSUPPORTED, "causal", "true"},
        {{.key = "dflash.attention.sliding_window", .type = GGUF_U32, .number = 9},
         KAKEYA_FORMAT,
         "sliding_window_pattern",
         "missing"},
        {{.key = "dflash.embedding_scale", .type = GGUF_F32, .number = 3}, KAKEYA_UNSUPPORTED, "is 3", "sqrt(256)"},
        {{.key = "dflash.logit_scale", .type = GGUF_F32, .number = 2}, KAKEYA_UNSUPPORTED, "logit_scale is 2", ""},
        {{.key = "dflash.rope.dimension_count", .type = GGUF_U32, .number = 32}, KAKEYA_UNSUPPORTED, "is 32", "64"},
        {{.key = "dflash.rope.scaling.type", .type = GGUF_STRING, .text = "yarn"}, KAKEYA_UNSUPPORTED, "scaling", ""},
    };
    kakeya_error error;
    block_drafter_model *a = of_directory(), *b;
    size_t before = mem_total(&account);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *path = write_file(a, &cases[i].options);
        assert_refused(block_drafter_model_open(path, &demo->config, &account, &b, &error), cases[i].status,
                       "drafter.gguf: ", cases[i].first, cases[i].second);
        assert_null(b);
        assert_int_equal(mem_total(&account), before);
    }
    language_model *verifier;
    assert_refused(language_model_open(write_file(a, &(file_options){0}), &account, &verifier, &error),
                   KAKEYA_UNSUPPORTED, "dflash", "--drafter");
    block_drafter_model_close(a);
}

typedef struct answer {
    int32_t tokens[48];
    int n;
} answer;

static bool keep(void *user, const kakeya_event *event) {
    answer *a = user;
    if (event->type == KAKEYA_EVENT_TOKEN) a->tokens[a->n++] = event->token;
    return true;
}

static kakeya_stats generate(const char *drafter, answer *a) {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = KAKEYA_MODELS "/demo";
    options.drafter = drafter;
    options.f_theta = "none";
    options.threads = 1;
    kakeya_engine *engine = NULL;
    kakeya_session *session = NULL;
    REQUIRE_OK(kakeya_engine_open(&options, &engine, error));
    REQUIRE_OK(kakeya_session_open(engine, NULL, &session, error));
    int32_t prompt[24] = {2};
    for (int i = 1; i < 24; i++) prompt[i] = 300 + 7 * (i % 5);
    REQUIRE_OK(kakeya_session_sync(session, prompt, 24, NULL, NULL, NULL, error));
    kakeya_generate_options g;
    KAKEYA_INIT(&g);
    g.max_tokens = 48;
    g.mode = KAKEYA_MODE_SPECULATIVE;
    g.ignore_stop_tokens = true;
    g.on_event = keep;
    g.user = a;
    kakeya_stats stats = {.size = sizeof stats};
    REQUIRE_OK(kakeya_session_generate(session, &g, &stats, error));
    kakeya_session_close(session);
    kakeya_engine_close(engine);
    return stats;
}

/* The same drafts as the directory's; with a matrix of zeros others, and the same tokens. */
static void test_drafts(void **state) {
    (void)state;
    block_drafter_model *d = of_directory();
    answer of[3] = {0};
    kakeya_stats directory = generate(DRAFTER, &of[0]);
    kakeya_stats file = generate(write_file(d, &(file_options){0}), &of[1]);
    assert_int_equal(directory.accepted_tokens, file.accepted_tokens);
    assert_int_equal(directory.drafted_tokens, file.drafted_tokens);
    (void)generate(write_file(d, &(file_options){.quantised = true}), &of[2]);
    for (int i = 1; i < 3; i++) assert_memory_equal(&of[i], &of[0], sizeof of[0]);
    block_drafter_model_close(d);
}

static int setup(void **state) {
    kakeya_error error;
    mem_account_init(&account, NULL, 0);
    return language_model_open(KAKEYA_MODELS "/demo", &account, &demo, &error) != KAKEYA_OK || scratch_setup(state);
}

static int teardown(void **state) {
    language_model_close(demo);
    return mem_total(&account) != 0 || scratch_teardown(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_drafter),
        cmocka_unit_test(test_quantised),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_drafts),
    };
    return cmocka_run_group_tests_name("drafters in GGUF files", tests, setup, teardown);
}
