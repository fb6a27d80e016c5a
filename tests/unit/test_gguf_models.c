/* Protects: a model in a GGUF file is the model of its safetensors directory, bit for bit, in every form in which
 * converters write one; quantised models give the logits of their dequantised weights; damaged and foreign models are
 * refused with one line. */
#include "base/json.h"
#include "gguf_models.h"
#include "model/tensors.h"
#include "packed.h"
#include "scratch.h"
#include "text/tokenizer_gguf.h"

#define QUANT KAKEYA_TEST_DATA "/golden/quant/"

static kakeya_error error;

typedef struct subject {
    mem_account account;
    language_model *model;
    backend_model *backend;
    const backend_ops *ops;
} subject;

static void subject_open(subject *s, const char *path, kakeya_precision precision, const char *isa, int threads) {
    memset(s, 0, sizeof *s);
    mem_account_init(&s->account, NULL, 0);
    assert_ok(language_model_open(path, &s->account, &s->model, &error));
    s->ops = backend_find("cpu", NULL);
    backend_model_options options = {
        .verifier = s->model, .precision = precision, .isa = isa, .threads = threads, .account = &s->account};
    assert_ok(s->ops->model_create(&options, &s->backend, &error));
}

static void subject_close(subject *s) {
    s->ops->model_destroy(s->backend);
    language_model_close(s->model);
    assert_int_equal(mem_total(&s->account), 0);
}

/* Logits [n][vocab] of a prompt, computed in pieces of `chunk` rows; malloc'ed. */
static float *logits_of(subject *s, const int32_t *tokens, int n, int chunk) {
    size_t vocab = (size_t)s->model->config.vocab;
    float *logits = malloc((size_t)n * vocab * sizeof *logits);
    backend_cache *cache;
    backend_cache_options options = {.context_tokens = n, .kv_format = KV_FORMAT_F32, .account = &s->account};
    assert_ok(s->ops->cache_create(s->backend, &options, &cache, &error));
    for (int i = 0; i < n; i += chunk) {
        int rows = n - i < chunk ? n - i : chunk;
        backend_segment segment = {.cache = cache,
                                   .tokens = tokens + i,
                                   .n = rows,
                                   .kind = SEGMENT_PROMPT,
                                   .logits = logits + (size_t)i * vocab};
        assert_ok(s->ops->forward(s->backend, &segment, 1, &error));
        assert_ok(s->ops->cache_commit(cache, rows, &error));
    }
    s->ops->cache_destroy(cache);
    return logits;
}

/* ------------------------------------------------------------------------------------------- reference vectors */

static void check_logits(const char *folder, const char *name, const char *isa) {
    char path[512], vectors[512];
    snprintf(path, sizeof path, "%s/%s.gguf", folder, name);
    snprintf(vectors, sizeof vectors, "%s/%s.safetensors", folder, name);
    safetensors *expected;
    assert_ok(safetensors_open(vectors, &expected, &error));
    const tensor *ids = safetensors_find(expected, "input_ids"), *logits = safetensors_find(expected, "logits");
    int n = (int)ids->shape[ids->dims - 1];
    int32_t *tokens = malloc((size_t)n * sizeof *tokens);
    for (int i = 0; i < n; i++) {
        int64_t id;
        memcpy(&id, ids->data + (size_t)i * sizeof id, sizeof id);
        tokens[i] = (int32_t)id;
    }
    subject s;
    subject_open(&s, path, KAKEYA_PRECISION_F32, isa, 2);
    size_t vocab = (size_t)s.model->config.vocab;
    assert_int_equal(logits->bytes, (size_t)n * vocab * sizeof(float));
    float *found = logits_of(&s, tokens, n, n), *apart = logits_of(&s, tokens, n, 3), *want = malloc(logits->bytes);
    memcpy(want, logits->data, logits->bytes);
    assert_close(name, found, want, (size_t)n * vocab, 1e-3);
    assert_same_bits(name, found, apart, (size_t)n * vocab);
    free(want);
    free(apart);
    free(found);
    free(tokens);
    subject_close(&s);
    safetensors_close(expected);
}

static void test_reference_logits(void **state) {
    (void)state;
    for (const char *const *isa = cpu_kernels_supported(); *isa; isa++) check_logits(QUANT, "micro", *isa);
}

/* In int8, a position's logits do not depend on the chunks of the prompt or on threads. */
static void test_int8_rows(void **state) {
    (void)state;
    int32_t tokens[23];
    for (int i = 0; i < 23; i++) tokens[i] = 3 + i * 41 % 290;
    for (const char *const *isa = cpu_kernels_supported(); *isa; isa++) {
        float *first = NULL;
        size_t n = 0;
        static const int chunks[] = {23, 1, 7};
        for (int i = 0; i < 3; i++) {
            subject s;
            subject_open(&s, QUANT "micro.gguf", KAKEYA_PRECISION_INT8, *isa, i + 1);
            float *found = logits_of(&s, tokens, 23, chunks[i]);
            n = 23 * (size_t)s.model->config.vocab;
            if (first) assert_same_bits("int8", found, first, n);
            if (first)
                free(found);
            else
                first = found;
            subject_close(&s);
        }
        for (size_t i = 0; i < n; i++) assert_true(isfinite(first[i]));
        free(first);
    }
}

static bool count_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    int *calls = user;
    assert_string_equal(what, "repacking the weights");
    assert_true(done <= total && total > 0);
    return ++*calls != 3;
}

/* Matrices are repacked where memory has room for all of them, are counted, change no bit, and can be cancelled. */
static void test_repacking(void **state) {
    (void)state;
    enum { TOKENS = 9 };
    int32_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++) tokens[i] = 3 + i * 41 % 290;
    subject exact, packed, rows = {.ops = backend_find("cpu", NULL)};
    subject_open(&exact, QUANT "micro.gguf", KAKEYA_PRECISION_F32, NULL, 2);
    subject_open(&packed, QUANT "micro.gguf", KAKEYA_PRECISION_INT8, NULL, 2);
    size_t plain = mem_bytes(&exact.account, MEM_WEIGHTS), tiles = mem_bytes(&packed.account, MEM_WEIGHTS) - plain;
    assert_true(tiles > 0 && tiles < 2 * packed.model->mapped_bytes);
    size_t others = mem_total(&packed.account) - tiles;

    mem_account_init(&rows.account, NULL, others + tiles + tiles / 2); /* half of the room is theirs */
    assert_ok(language_model_open(QUANT "micro.gguf", &rows.account, &rows.model, &error));
    int calls = 0;
    backend_model_options options = {.verifier = rows.model,
                                     .precision = KAKEYA_PRECISION_INT8,
                                     .threads = 2,
                                     .account = &rows.account,
                                     .progress = count_progress,
                                     .user = &calls};
    assert_ok(rows.ops->model_create(&options, &rows.backend, &error));
    assert_int_equal(calls, 0);
    assert_int_equal(mem_bytes(&rows.account, MEM_WEIGHTS), plain);
    float *want = logits_of(&packed, tokens, TOKENS, TOKENS);
    rows.account.limit_bytes = 0;
    float *got = logits_of(&rows, tokens, TOKENS, 2);
    assert_same_bits("tiles", got, want, TOKENS * (size_t)packed.model->config.vocab);
    free(got);
    free(want);
    rows.ops->model_destroy(rows.backend);
    assert_int_equal(rows.ops->model_create(&options, &rows.backend, &error), KAKEYA_CANCELLED);
    assert_int_equal(calls, 3);
    language_model_close(rows.model);
    assert_int_equal(mem_total(&rows.account), 0);
    subject_close(&packed);
    subject_close(&exact);
}

/* A synthetic model of blocks has no data of its own: the backend makes the same on every instruction set, as tiles
 * alone. */
static void test_synthetic_blocks(void **state) {
    (void)state;
    enum { TOKENS = 7 };
    int32_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++) tokens[i] = 3 + i * 41 % 290;
    subject micro;
    subject_open(&micro, QUANT "micro.gguf", KAKEYA_PRECISION_INT8, NULL, 1);
    language_model made = {.config = micro.model->config};
    made.config.checkpoint_format = WEIGHT_Q8_0;
    tensor_memory memory = {0};
    mem_account account;
    mem_account_init(&account, NULL, 0);
    assert_ok(tensors_synthesize(gemma4_walk, &made.config, &made.weights, WEIGHT_Q8_0, &account, &memory, &error));
    if (made.config.tied_head) made.weights.head = made.weights.embed;
    float *first = NULL;
    size_t n = TOKENS * (size_t)made.config.vocab;
    for (const char *const *isa = cpu_kernels_supported(); *isa; isa++) {
        subject s = {.model = &made, .ops = micro.ops};
        mem_account_init(&s.account, &account, 0);
        backend_model_options options = {
            .verifier = &made, .precision = KAKEYA_PRECISION_INT8, .isa = *isa, .threads = 3, .account = &s.account};
        assert_ok(s.ops->model_create(&options, &s.backend, &error));
        float *found = logits_of(&s, tokens, TOKENS, 3), lowest = INFINITY, highest = -INFINITY;
        for (size_t i = 0; i < n; i++) {
            assert_true(isfinite(found[i]));
            lowest = fminf(lowest, found[i]);
            highest = fmaxf(highest, found[i]);
        }
        assert_true(highest > lowest);
        if (first) assert_close("synthetic", found, first, n, 1e-3);
        free(first);
        first = found;
        s.ops->model_destroy(s.backend);
        assert_int_equal(mem_total(&s.account), 0);
        options.precision = KAKEYA_PRECISION_F32;
        assert_refused(s.ops->model_create(&options, &s.backend, &error), KAKEYA_UNSUPPORTED, "Q8_0", "int8");
        mem_account_init(&s.account, &account, 1 << 10);
        options.precision = KAKEYA_PRECISION_INT8;
        assert_int_equal(s.ops->model_create(&options, &s.backend, &error), KAKEYA_OUT_OF_MEMORY);
    }
    free(first);
    tensor_memory_release(&memory);
    subject_close(&micro);
}

/* KAKEYA_QUANT_VECTORS names a folder with more of them. */
static void test_more_reference_logits(void **state) {
    (void)state;
    static const char *const names[] = {"micro", "tiny-dense-f16", "tiny-moe-q4_0", "tiny-ple-mixed"};
    const char *folder = getenv("KAKEYA_QUANT_VECTORS");
    if (!folder) skip();
    for (const char *const *isa = cpu_kernels_supported(); *isa; isa++) {
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) check_logits(folder, names[i], *isa);
    }
}

/* ------------------------------------------------------------------------------------------- the same in safetensors
 */

static const char *const tiny_models[] = {"gemma4-tiny-dense", "gemma4-tiny-moe", "gemma4-tiny-ple"};
enum { PROMPT = 19 };

/* The reference model as float32, and as bf16 in a directory of the same configuration. */
static const char *reference_directory(const char *name, bool bf16) {
    char path[512];
    snprintf(path, sizeof path, KAKEYA_TEST_DATA "/golden/%s", name);
    if (!bf16) {
        static char kept[512];
        snprintf(kept, sizeof kept, "%s", path);
        return kept;
    }
    char file[600];
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    safetensors *source;
    assert_ok(safetensors_open(file, &source, &error));
    safetensors_entry *entries = calloc(source->count, sizeof *entries);
    for (size_t i = 0; i < source->count; i++) {
        const tensor *t = &source->tensors[i];
        entries[i] = (safetensors_entry){.name = t->name, .type = TENSOR_BF16, .dims = t->dims};
        memcpy(entries[i].shape, t->shape, sizeof t->shape);
    }
    char folder[64], to[96];
    snprintf(folder, sizeof folder, "%s-bf16", name);
    scratch_folder(folder);
    snprintf(to, sizeof to, "%s/model.safetensors", folder);
    safetensors_writer *writer;
    assert_ok(safetensors_writer_open(scratch_path(to), entries, source->count, &writer, &error));
    for (size_t i = 0; i < source->count; i++) {
        gguf_bytes bytes = {0};
        gw_values(&bytes, (const float *)(const void *)source->tensors[i].data, source->tensors[i].bytes / 4, true);
        assert_ok(safetensors_writer_write(writer, bytes.data, bytes.bytes, &error));
        free(bytes.data);
    }
    assert_ok(safetensors_writer_commit(writer, &error));
    free(entries);
    safetensors_close(source);
    size_t bytes;
    snprintf(file, sizeof file, "%s/config.json", path);
    char *config = scratch_read(file, &bytes);
    snprintf(to, sizeof to, "%s/config.json", folder);
    scratch_write(to, config, bytes);
    free(config);
    return scratch_path(folder);
}

static const char *converted_file(const char *name, const gguf_form *form) {
    char path[512];
    snprintf(path, sizeof path, KAKEYA_TEST_DATA "/golden/%s", name);
    mem_account account;
    language_model *model;
    safetensors *source;
    mem_account_init(&account, NULL, 0);
    assert_ok(language_model_open(path, &account, &model, &error));
    snprintf(path, sizeof path, KAKEYA_TEST_DATA "/golden/%s/model.safetensors", name);
    assert_ok(safetensors_open(path, &source, &error));
    gguf_writer w = gw_begin();
    gw_model(&w, source, &model->config, form);
    size_t bytes;
    unsigned char *data = gw_finish(&w, &bytes);
    const char *written = scratch_write("converted.gguf", data, bytes);
    free(data);
    safetensors_close(source);
    language_model_close(model);
    return written;
}

static void check_equal(const char *name, const gguf_form *form, kakeya_precision precision) {
    int32_t tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++) tokens[i] = 3 + i * 37 % 290;
    subject a, b;
    subject_open(&a, reference_directory(name, form->bf16), precision, NULL, 1);
    subject_open(&b, converted_file(name, form), precision, NULL, 2);
    assert_int_equal(a.model->config.vocab, b.model->config.vocab);
    assert_memory_equal(a.model->config.rope, b.model->config.rope, sizeof a.model->config.rope);
    float *x = logits_of(&a, tokens, PROMPT, 7), *y = logits_of(&b, tokens, PROMPT, PROMPT);
    assert_same_bits(name, x, y, PROMPT * (size_t)a.model->config.vocab);
    free(x);
    free(y);
    subject_close(&a);
    subject_close(&b);
}

static void test_equals_safetensors(void **state) {
    (void)state;
    static const gguf_form forms[] = {
        {.bf16 = false},
        {.bf16 = true},
        {.bf16 = true, .split_experts = true, .heads_listed = true},
        {.bf16 = false, .split_experts = true, .fused_qkv = true},
        {.bf16 = true, .fused_qkv = true, .padding = 11, .vocab_size = 320},
    };
    for (size_t m = 0; m < 3; m++) {
        for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
            check_equal(tiny_models[m], &forms[f], KAKEYA_PRECISION_F32);
            if (forms[f].bf16) check_equal(tiny_models[m], &forms[f], KAKEYA_PRECISION_BF16);
        }
    }
}

/* ----------------------------------------------------------------------------------------------- NVFP4's factors */

/* One number beside a matrix or one per expert multiplies what the matrix gives. */
static void test_factors(void **state) {
    (void)state;
    enum { IN = 64, OUT = 6 };
    unsigned char blocks[OUT][36];
    for (int o = 0; o < OUT; o++) {
        for (int i = 0; i < 36; i++) blocks[o][i] = (unsigned char)(i < 4 ? 0x38 + i : 7 * i + o);
    }
    mem_account account;
    mem_account_init(&account, NULL, 0);
    gguf_writer w = gw_begin();
    model_config *c = calloc(1, sizeof *c);
    safetensors *source;
    language_model *model;
    assert_ok(language_model_open(KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense", &account, &model, &error));
    *c = model->config;
    assert_ok(safetensors_open(KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense/model.safetensors", &source, &error));
    gw_config(&w, c);
    const float factor = 0.75f, inputs = 3;
    for (size_t i = 0; i < source->count; i++) {
        const tensor *t = &source->tensors[i];
        const char *name = t->name + 6;
        if (strstr(name, "v_proj") && strstr(name, "layers.5.")) continue;
        if (strcmp(name, "layers.0.self_attn.k_proj.weight") == 0) continue;
        gw_model_tensor(&w, t, name, &(gguf_form){0});
    }
    int rows = c->layer[0].kv_heads * c->layer[0].head_dim;
    gguf_bytes many = {0};
    for (int o = 0; o < rows; o++) gw_put(&many, blocks[o % OUT], 36);
    gw_tensor(&w, "blk.0.attn_k.weight", GGUF_TENSOR_NVFP4, 2, (const int64_t[]){IN, rows}, many.data, many.bytes);
    gw_tensor(&w, "blk.0.attn_k.scale", GGUF_TENSOR_F32, 1, (const int64_t[]){1}, &factor, sizeof factor);
    gw_tensor(&w, "blk.0.attn_k.input_scale", GGUF_TENSOR_F32, 1, (const int64_t[]){1}, &inputs, sizeof inputs);
    free(many.data);
    size_t bytes;
    unsigned char *data = gw_finish(&w, &bytes);
    scratch_write("nvfp4.gguf", data, bytes);
    free(data);
    safetensors_close(source);
    language_model_close(model);
    free(c);

    assert_ok(language_model_open(scratch_path("nvfp4.gguf"), &account, &model, &error));
    const weight *k = &model->weights.layer[0].k_proj;
    float row[IN], plain[IN];
    weight unscaled = *k;
    float *ones = malloc((size_t)k->out * sizeof *ones);
    for (int i = 0; i < k->out; i++) ones[i] = 1;
    unscaled.stream[1] = ones;
    const cpu_kernels *kernels = cpu_kernels_find("scalar");
    for (int o = 0; o < k->out; o++) {
        kernels->weight[WEIGHT_NVFP4].load(k, o, 0, IN, row);
        kernels->weight[WEIGHT_NVFP4].load(&unscaled, o, 0, IN, plain);
        for (int i = 0; i < IN; i++) assert_true(row[i] == factor * plain[i]);
    }
    free(ones);
    language_model_close(model);
    assert_int_equal(mem_total(&account), 0);
}

/* --------------------------------------------------------------------------------------------------- refusals */

static kakeya_status open_both(const char *path) {
    mem_account account;
    mem_account_init(&account, NULL, 0);
    language_model *model = NULL;
    kakeya_status status = language_model_open(path, &account, &model, &error);
    assert_int_equal(status == KAKEYA_OK, model != NULL);
    language_model_close(model);
    assert_int_equal(mem_total(&account), 0);
    gguf *file;
    if (status != KAKEYA_OK || gguf_open(path, &file, &error) != KAKEYA_OK) return status;
    tokenizer *tokens = NULL;
    status = tokenizer_open_gguf(file, &tokens, &error);
    tokenizer_close(tokens);
    gguf_close(file);
    return status;
}

/* All cases of bad.json through the loaders of weights and vocabulary. */
static void test_damaged_models(void **state) {
    (void)state;
    size_t bytes, base_bytes;
    char *text = scratch_read(unpacked_file(QUANT "bad.json"), &bytes),
         *base = scratch_read(QUANT "micro.gguf", &base_bytes);
    cJSON *json = cJSON_ParseWithLength(text, bytes);
    int cases = 0;
    const cJSON *item, *patch;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(json, "cases")) {
        const char *name = cJSON_GetObjectItem(item, "name")->valuestring;
        char *changed = malloc(base_bytes);
        memcpy(changed, base, base_bytes);
        cJSON_ArrayForEach(patch, cJSON_GetObjectItem(item, "patches")) {
            size_t at = (size_t)cJSON_GetObjectItem(patch, "offset")->valuedouble;
            const char *hex = cJSON_GetObjectItem(patch, "hex")->valuestring;
            for (size_t i = 0; hex[2 * i]; i++) {
                char digits[3] = {hex[2 * i], hex[2 * i + 1], 0};
                changed[at + i] = (char)strtol(digits, NULL, 16);
            }
        }
        const cJSON *truncate = cJSON_GetObjectItem(item, "truncate");
        const char *path = scratch_write("bad.gguf", changed, truncate ? (size_t)truncate->valuedouble : base_bytes);
        /* an end token of 4294967295 says that there is none */
        bool demanded =
            strcmp(cJSON_GetObjectItem(item, "expect")->valuestring, "error") == 0 && strcmp(name, "eos-max") != 0;
        error = (kakeya_error){0};
        kakeya_status status = open_both(path);
        if (demanded && status == KAKEYA_OK) fail_msg("%s was accepted", name);
        if (status != KAKEYA_OK && (!error.message[0] || strchr(error.message, '\n'))) fail_msg("%s: no line", name);
        free(changed);
        cases++;
    }
    assert_int_equal(cases, 132);
    free(text);
    free(base);
    cJSON_Delete(json);
}

static kakeya_status open_made(gguf_writer *w) {
    size_t bytes;
    unsigned char *data = gw_finish(w, &bytes);
    const char *path = scratch_write("made.gguf", data, bytes);
    free(data);
    return open_both(path);
}

/* micro.gguf with the bytes `from` replaced by `to` of the same length, everywhere. */
static kakeya_status open_replaced(const char *from, const char *to) {
    size_t bytes, n = strlen(from);
    char *data = scratch_read(QUANT "micro.gguf", &bytes);
    int replaced = 0;
    for (size_t i = 0; i + n <= bytes; i++) {
        if (memcmp(data + i, from, n) != 0) continue;
        memcpy(data + i, to, n);
        replaced++;
    }
    assert_true(replaced > 0);
    const char *path = scratch_write("replaced.gguf", data, bytes);
    free(data);
    return open_both(path);
}

static void test_refusals(void **state) {
    (void)state;
    gguf_writer w = gw_begin();
    gw_key_text(&w, "general.architecture", "clip");
    assert_refused(open_made(&w), KAKEYA_UNSUPPORTED, "vision part (mmproj)", "language model's file");
    gw_key_text(&w, "general.architecture", "gemma2");
    assert_refused(open_made(&w), KAKEYA_UNSUPPORTED, "gemma2", "Gemma 4", "26B-A4B", "Gemma 3");
    gw_key_text(&w, "general.architecture", "dflash");
    assert_refused(open_made(&w), KAKEYA_UNSUPPORTED, "dflash", "a drafter");
    gw_key_u32(&w, "general.architecture", 4);
    assert_refused(open_made(&w), KAKEYA_FORMAT, "general.architecture", "u32", "a string");
    assert_refused(open_made(&w), KAKEYA_FORMAT, "general.architecture is missing");

    /* every tensor is asked for, and none is left over */
    assert_refused(open_replaced("blk.1.ffn_up.weight", "blk.1.ffn_UP.weight"), KAKEYA_FORMAT,
                   "1 missing tensor(s): blk.1.ffn_up.weight", "1 unexpected: blk.1.ffn_UP.weight");
    assert_refused(open_replaced("blk.0.ffn_gate_inp.scale", "blk.0.ffn_gate_inp.SCALE"), KAKEYA_FORMAT,
                   "blk.0.ffn_gate_inp.scale", "blk.0.ffn_gate_inp.SCALE");
    assert_refused(open_replaced("blk.0.attn_v.weight", "blk.0.attn_W.weight"), KAKEYA_FORMAT, "blk.0.attn_v.weight");
    /* without its vocabulary's form */
    assert_refused(open_replaced("tokenizer.ggml.merges", "tokenizer.ggml.MERGES"), KAKEYA_FORMAT,
                   "tokenizer.ggml.merges is missing");

    /* a type without kernels: IQ2_XS in the place of F32 norms would be smaller, so the model is made of it alone */
    static const unsigned char nothing[74 * 8];
    model_config *c = calloc(1, sizeof *c);
    *c = (model_config){
        .layers = 2, .hidden = 256, .heads = 1, .max_context = 64, .sliding_window = 8, .rms_eps = 1e-6f};
    c->layer[0] = (layer_config){.type = LAYER_FULL, .head_dim = 16, .kv_heads = 1, .intermediate = 32};
    c->layer[1] = c->layer[0];
    c->rope[0] = c->rope[1] = (rope_config){.theta = 1e4f, .factor = 1, .rotated_pairs = 2};
    gw_config_of(&w, c, (const int[]){1, 2});
    assert_refused(open_made(&w), KAKEYA_UNSUPPORTED, "gemma4.attention.head_count", "layer 1 2 heads", "layer 0 1");
    gw_config(&w, c);
    free(c);
    gw_tensor(&w, "token_embd.weight", 17, 2, (const int64_t[]){256, 8}, nothing, sizeof nothing);
    assert_refused(open_made(&w), KAKEYA_UNSUPPORTED, "token_embd.weight", "IQ2_XS", "Q4_K_M");
}

/* ------------------------------------------------------------------------------------------------------- tokens */

static void check_ids(const tokenizer *t, const cJSON *expected, const char *text, size_t bytes, bool special) {
    int32_t *ids;
    size_t n;
    tokenizer_encode_options options = {.add_special = special, .parse_special = true};
    assert_ok(tokenizer_encode(t, text, bytes, options, &ids, &n, &error));
    bool same = n == (size_t)cJSON_GetArraySize(expected);
    size_t i = 0;
    const cJSON *id;
    cJSON_ArrayForEach(id, expected) {
        same = same && ids[i] == id->valueint;
        i++;
    }
    if (!same) fail_msg("other ids for \"%s\"", text);
    free(ids);
}

static void test_vocabulary(void **state) {
    (void)state;
    gguf *file;
    tokenizer *t;
    size_t bytes;
    char *packed = packed_read(QUANT "vocab.gguf.gz", &bytes);
    scratch_write("vocab.gguf", packed, bytes);
    free(packed);
    assert_ok(gguf_open(scratch_path("vocab.gguf"), &file, &error));
    assert_ok(tokenizer_open_gguf(file, &t, &error));
    gguf_close(file);
    char *text = scratch_read(unpacked_file(QUANT "vocab.json"), &bytes);
    cJSON *json = cJSON_ParseWithLength(text, bytes);
    const cJSON *item;
    int n = 0;
    cJSON_ArrayForEach(item, json) {
        const char *line = cJSON_GetObjectItem(item, "text")->valuestring;
        size_t length = strlen(line);
        if (strcmp(line, "a") == 0) { /* one text has a NUL, at which cJSON ends it */
            line = "a\0b";
            length = 3;
        }
        check_ids(t, cJSON_GetObjectItem(item, "ids"), line, length, true);
        check_ids(t, cJSON_GetObjectItem(item, "ids_no_special"), line, length, false);
        n++;
    }
    assert_true(n > 30);
    cJSON_Delete(json);
    free(text);
    tokenizer_close(t);
}

/* "#" has two ids, as in the first files of the QAT models: the lower one is written, both are read. */
static void test_repeated_texts(void **state) {
    (void)state;
    gguf *file;
    tokenizer *t;
    assert_ok(gguf_open(QUANT "micro.gguf", &file, &error));
    assert_ok(tokenizer_open_gguf(file, &t, &error));
    gguf_close(file);
    int32_t first = tokenizer_id(t, "#"), second = -1;
    for (int32_t id = first + 1; id < tokenizer_vocab_size(t); id++) {
        const char *piece = tokenizer_piece(t, id, NULL);
        if (piece && strcmp(piece, "#") == 0) second = id;
    }
    assert_true(first >= 0 && second > first);
    int32_t *ids;
    size_t n;
    assert_ok(tokenizer_encode(t, "#", 1, (tokenizer_encode_options){.add_special = true}, &ids, &n, &error));
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], 2);
    assert_int_equal(ids[1], first);
    free(ids);
    assert_true(tokenizer_is_special(t, tokenizer_id(t, "<|channel>"))); /* forced to be user-defined */
    tokenizer_close(t);
}

static void test_stop_and_suppressed_tokens(void **state) {
    (void)state;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    language_model *model;
    assert_ok(language_model_open(QUANT "micro.gguf", &account, &model, &error));
    assert_int_equal(model->config.n_stop_tokens, 1);
    assert_int_equal(model->config.stop_tokens[0], 1); /* <eos>; ends of turns come with the engine */
    assert_int_equal(model->config.bos_token, 2);
    assert_int_equal(model->config.n_suppress_tokens, 0);
    language_model_close(model);
    gguf_writer w = gw_begin();
    model_config *c = calloc(1, sizeof *c);
    language_model *tiny;
    safetensors *source;
    assert_ok(language_model_open(KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense", &account, &tiny, &error));
    assert_ok(safetensors_open(KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense/model.safetensors", &source, &error));
    gw_model(&w, source, &tiny->config, &(gguf_form){0});
    static const int32_t suppressed[] = {7, 1000, -1, 9, 7};
    gw_key_array(&w, "tokenizer.ggml.suppress_tokens", GGUF_I32, suppressed, 5, 4);
    assert_ok(open_made(&w));
    assert_ok(language_model_open(scratch_path("made.gguf"), &account, &model, &error));
    assert_int_equal(model->config.n_suppress_tokens, 2);
    assert_int_equal(model->config.suppress_tokens[0], 7);
    assert_int_equal(model->config.suppress_tokens[1], 9);
    language_model_close(model);
    language_model_close(tiny);
    safetensors_close(source);
    free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_logits),
        cmocka_unit_test(test_int8_rows),
        cmocka_unit_test(test_repacking),
        cmocka_unit_test(test_synthetic_blocks),
        cmocka_unit_test(test_more_reference_logits),
        cmocka_unit_test(test_equals_safetensors),
        cmocka_unit_test(test_factors),
        cmocka_unit_test(test_damaged_models),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_repeated_texts),
        cmocka_unit_test(test_stop_and_suppressed_tokens),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
