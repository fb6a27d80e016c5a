/* Protects: matrices of quantised directories (MLX, compressed-tensors, ModelOpt) mean what their tools' own code makes
 * of them, bit for bit; whole models of every form have the logits of the values that their codes mean; what does not
 * agree with itself or with its configuration is refused with one line that names it. */
#include "quantised_models.h"

#include "backend/cpu/int8.h"
#include "block_operands.h"
#include "model/language_model.h"
#include "model/modules.h"
#include "packed.h"
#include "sweep.h"

#define QUANT KAKEYA_TEST_DATA "/golden/quant/"

static kakeya_error error;

/* --------------------------------------------------------------------------------------------- reference vectors */

typedef struct vectors {
    safetensors *file;
    checkpoint ck;
    bool used[1024];
    mem_account account;
    tensor_memory memory;
    tensor_binding binding;
} vectors;

static void vectors_open(vectors *v, const char *folder, const char *name) {
    char path[512];
    memset(v, 0, sizeof *v);
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
    assert_ok(safetensors_open(unpacked_file(path), &v->file, &error));
    v->ck.directory = (char *)(uintptr_t) "vectors";
    v->ck.tensors = malloc(v->file->count * sizeof *v->ck.tensors);
    v->ck.n_tensors = v->file->count;
    for (size_t i = 0; i < v->file->count; i++) v->ck.tensors[i] = &v->file->tensors[i];
    mem_account_init(&v->account, NULL, 0);
    v->binding =
        (tensor_binding){.ck = &v->ck, .prefix = "", .account = &v->account, .memory = &v->memory, .used = v->used};
}

static void vectors_close(vectors *v) {
    tensor_memory_release(&v->memory);
    assert_int_equal(mem_total(&v->account), 0);
    free(v->ck.tensors);
    safetensors_close(v->file);
}

/* A module of the file against its values, in every kernel table, whole rows and pieces. */
static void check_module(vectors *v, const char *module, const char *values, const char *configuration) {
    char name[128];
    snprintf(name, sizeof name, "%s.f32", values);
    const tensor *f32 = safetensors_find(v->file, name);
    if (!f32) fail_msg("no %s", name);
    quantisation *q;
    assert_ok(quantisation_parse("configuration", configuration, strlen(configuration), &q, &error));
    int rows = (int)f32->shape[0], k = (int)f32->shape[1];
    weight w;
    bool bound;
    assert_ok(module_bind(&v->binding, q, module, false, (module_shape){.out = rows, .in = k}, &w, &bound, &error));
    if (!bound) fail_msg("%s was not bound", module);
    float *found = malloc((size_t)k * sizeof *found);
    FOR_TABLES(kernels) {
        for (int r = 0; r < rows; r++) {
            for (int n = 1; n <= k; n += n < k && n + 13 > k ? k - n : 13) {
                int begin = k - n;
                kernels->weight[w.format].load(&w, r, begin, n, found);
                for (int i = 0; i < n; i++) {
                    float want;
                    memcpy(&want, f32->data + ((size_t)(r * k + begin + i)) * sizeof want, sizeof want);
                    check_same_bits(module, kernels->name, r * k + begin + i, found[i], want);
                }
            }
        }
    }
    free(found);
    quantisation_free(q);
}

static void check_folder(const char *folder) {
    static const int bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    static vectors v;
    char name[64], configuration[256];
    for (size_t b = 0; b < COUNT(bits); b++) {
        snprintf(name, sizeof name, "mlx-affine-%d", bits[b]);
        vectors_open(&v, folder, name);
        int checked = 0;
        for (size_t g = 0; g < COUNT(groups); g++) {
            for (int f16 = 0; f16 < 2; f16++) {
                snprintf(configuration, sizeof configuration, "{\"quantization\":{\"bits\":%d,\"group_size\":%d}}",
                         bits[b], groups[g]);
                snprintf(name, sizeof name, "g%d.%s", groups[g], f16 ? "f16" : "bf16");
                char weight_name[80];
                snprintf(weight_name, sizeof weight_name, "%s.weight", name);
                if (!safetensors_find(v.file, weight_name)) continue;
                check_module(&v, name, name, configuration);
                checked++;
            }
        }
        assert_true(checked >= 3);
        vectors_close(&v);
    }
    vectors_open(&v, folder, "mlx-float");
    static const char *const modes[] = {"mxfp4", "nvfp4", "mxfp8"};
    for (size_t i = 0; i < COUNT(modes); i++) {
        snprintf(configuration, sizeof configuration, "{\"quantization\":{\"mode\":\"%s\"}}", modes[i]);
        check_module(&v, modes[i], modes[i], configuration);
        snprintf(name, sizeof name, "%s.random", modes[i]);
        check_module(&v, name, name, configuration);
    }
    vectors_close(&v);
#define CT(format, weights)                                                                                            \
    "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"" format                           \
    "\",\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":{" weights "}}}}}"
#define MODELOPT(algorithm) "{\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":\"" algorithm "\"}}"
    static const struct {
        const char *file, *module, *configuration;
    } modules[] = {
        {"ct-int", "int4.g32", CT("pack-quantized", "\"num_bits\":4,\"strategy\":\"group\",\"group_size\":32")},
        {"ct-int", "int4.g128", CT("pack-quantized", "\"num_bits\":4,\"strategy\":\"group\",\"group_size\":128")},
        {"ct-int", "int4.channel", CT("pack-quantized", "\"num_bits\":4,\"strategy\":\"channel\"")},
        {"ct-int", "int4.g32.asym",
         CT("pack-quantized", "\"num_bits\":4,\"strategy\":\"group\",\"group_size\":32,\"symmetric\":false")},
        {"ct-int", "int8.g128", CT("pack-quantized", "\"num_bits\":8,\"strategy\":\"group\",\"group_size\":128")},
        {"ct-int", "int8.channel", CT("pack-quantized", "\"num_bits\":8,\"strategy\":\"channel\"")},
        {"ct-int", "w8a8", CT("int-quantized", "\"num_bits\":8,\"strategy\":\"channel\"")},
        {"ct-float8", "channel", CT("float-quantized", "\"type\":\"float\",\"strategy\":\"channel\"")},
        {"ct-float8", "tensor", CT("naive-quantized", "\"type\":\"float\",\"strategy\":\"tensor\"")},
        {"ct-float8", "tensor", MODELOPT("FP8")},
        {"ct-float8", "block",
         CT("float-quantized", "\"type\":\"float\",\"strategy\":\"block\",\"block_structure\":[128,128]")},
        {"ct-float4", "ct",
         CT("nvfp4-pack-quantized",
            "\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor_group\",\"group_size\":16")},
        {"ct-float4", "modelopt", MODELOPT("NVFP4")},
        {"ct-float4", "mxfp4",
         CT("mxfp4-pack-quantized", "\"num_bits\":4,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":32")},
    };
    for (size_t i = 0; i < COUNT(modules); i++) {
        vectors_open(&v, folder, modules[i].file);
        check_module(&v, modules[i].module, modules[i].module, modules[i].configuration);
        vectors_close(&v);
    }
}

static void test_vectors(void **state) {
    (void)state;
    check_folder(QUANT);
}

/* KAKEYA_QUANT_VECTORS names a folder of others of the same kind. */
static void test_more_vectors(void **state) {
    (void)state;
    const char *folder = getenv("KAKEYA_QUANT_VECTORS");
    if (!folder) skip();
    check_folder(folder);
}

/* ----------------------------------------------------------------------------------------------------- products */

/* Every format of groups multiplies as its values in F32 do, whole and in pieces. */
static void test_products(void **state) {
    (void)state;
    static const int rows[] = {1, 3, 8, 17}, outs[] = {1, 17, 49};
    for (weight_format format = WEIGHT_AFFINE_2; format < WEIGHT_FORMAT_COUNT; format++) {
        for (size_t shape = 0; shape < COUNT(rows) * COUNT(outs); shape++) {
            /* a short run has half of the shapes of each format: every count of rows or outputs, both widths */
            if (sweep_short() && (shape / 2 + (size_t)format) % 2) continue;
            int out = outs[shape % COUNT(outs)], n = rows[shape / COUNT(outs)], k = shape % 2 ? 192 : 704;
            group_matrix m = random_groups(format, out, k, 31 + shape);
            float *values = dequantised(&m.w);
            weight plain = weight_matrix(WEIGHT_F32, values, out, k);
            float *x = random_floats((size_t)n * (size_t)k, 11, 1);
            size_t elements = (size_t)n * (size_t)out;
            float *want = malloc(elements * sizeof *want), *got = malloc(elements * sizeof *got);
            for (size_t i = 0; i < (size_t)out * (size_t)k; i++) assert_true(isfinite(values[i]));
            FOR_TABLES(kernels)
            for (int input = 0; input < INPUT_COUNT; input++) {
                const cpu_product *product = &kernels->weight[format].product[input];
                const cpu_product *oracle = &kernels->weight[WEIGHT_F32].product[input];
                if (input >= INPUT_INT8 && int8_takes(&m.w)) continue; /* test_int8 */
                assert_int_equal(product->packing, oracle->packing);
                char *packed = packed_as(kernels, product->packing, x, (size_t)k, n, k);
                oracle->multiply(packed, n, &plain, want, (size_t)out);
                int half = out / 3;
                weight parts[2] = {weight_rows(&m.w, 0, half), weight_rows(&m.w, half, out - half)};
                for (int p = 0; p < 2; p++) {
                    if (parts[p].out) product->multiply(packed, n, &parts[p], got + (p ? half : 0), (size_t)out);
                }
                for (size_t i = 0; i < elements; i++)
                    check_same_bits(weight_format_name(format), kernels->name, (long)i, got[i], want[i]);
                free(packed);
            }
            free(got);
            free(want);
            free(x);
            free(values);
            group_matrix_free(&m);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------- models */

static float *logits_of(const char *path, kakeya_precision precision, const int32_t *tokens, int n, int chunk,
                        size_t *vocab) {
    mem_account account;
    language_model *model;
    backend_model *backend;
    backend_cache *cache;
    mem_account_init(&account, NULL, 0);
    assert_ok(language_model_open(path, &account, &model, &error));
    const backend_ops *ops = backend_find("cpu", NULL);
    backend_model_options options = {.verifier = model, .precision = precision, .threads = 2, .account = &account};
    assert_ok(ops->model_create(&options, &backend, &error));
    *vocab = (size_t)model->config.vocab;
    float *logits = malloc((size_t)n * *vocab * sizeof *logits);
    backend_cache_options session = {.context_tokens = n, .kv_format = KV_FORMAT_F32, .account = &account};
    assert_ok(ops->cache_create(backend, &session, &cache, &error));
    for (int i = 0; i < n; i += chunk) {
        int rows = n - i < chunk ? n - i : chunk;
        backend_segment segment = {.cache = cache,
                                   .tokens = tokens + i,
                                   .n = rows,
                                   .kind = SEGMENT_PROMPT,
                                   .logits = logits + (size_t)i * *vocab};
        assert_ok(ops->forward(backend, &segment, 1, &error));
        assert_ok(ops->cache_commit(cache, rows, &error));
    }
    ops->cache_destroy(cache);
    ops->model_destroy(backend);
    language_model_close(model);
    assert_int_equal(mem_total(&account), 0);
    return logits;
}

/* A directory as mlx-lm wrote it, whose tensors are not aligned. */
static void test_reference_logits(void **state) {
    (void)state;
    safetensors *expected;
    assert_ok(safetensors_open(QUANT "tiny-dense-mlx/expected.safetensors", &expected, &error));
    const tensor *ids = safetensors_find(expected, "input_ids"), *logits = safetensors_find(expected, "logits");
    int n = (int)ids->shape[0];
    int32_t tokens[64];
    assert_in_range(n, 1, 64);
    for (int i = 0; i < n; i++) {
        int64_t id;
        memcpy(&id, ids->data + (size_t)i * sizeof id, sizeof id);
        tokens[i] = (int32_t)id;
    }
    float *want = malloc(logits->bytes);
    memcpy(want, logits->data, logits->bytes);
    static const int chunks[] = {1, 7, 64};
    float *first = NULL;
    for (size_t i = 0; i < COUNT(chunks); i++) {
        size_t vocab;
        float *found = logits_of(QUANT "tiny-dense-mlx", KAKEYA_PRECISION_F32, tokens, n, chunks[i], &vocab);
        assert_int_equal(logits->bytes, (size_t)n * vocab * sizeof(float));
        assert_close("tiny-dense-mlx", found, want, (size_t)n * vocab, 1e-3);
        if (first) assert_same_bits("chunks", found, first, (size_t)n * vocab);
        if (first)
            free(found);
        else
            first = found;
    }
    free(first);
    free(want);
    safetensors_close(expected);
}

static void test_models(void **state) {
    (void)state;
    static const char *const names[] = {"gemma4-tiny-dense", "gemma4-tiny-moe", "gemma4-tiny-ple"};
    enum { PROMPT = 11 };
    int32_t tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++) tokens[i] = 3 + i * 37 % 290;
    for (size_t m = 0; m < COUNT(names); m++) {
        for (int form = 0; form < STORED_FORMS; form++) {
            size_t vocab;
            made_model(names[m], (stored_form)form);
            float *want = logits_of(scratch_path("meant"), KAKEYA_PRECISION_F32, tokens, PROMPT, PROMPT, &vocab);
            float *got = logits_of(scratch_path("quantised"), KAKEYA_PRECISION_F32, tokens, PROMPT, 4, &vocab);
            char what[64];
            snprintf(what, sizeof what, "%s, form %d", names[m], form);
            assert_same_bits(what, got, want, PROMPT * vocab);
            free(got);
            free(want);
        }
    }
}

/* ----------------------------------------------------------------------------------------------------- refusals */

static void check_refused(const char *path, const char *first, const char *second) {
    mem_account account;
    language_model *model;
    mem_account_init(&account, NULL, 0);
    kakeya_status status = language_model_open(path, &account, &model, &error);
    if (status == KAKEYA_OK) fail_msg("accepted, expected a message with \"%s\" and \"%s\"", first, second);
    if (!strstr(error.message, first) || !strstr(error.message, second) || strchr(error.message, '\n'))
        fail_msg("\"%s\", expected \"%s\" and \"%s\"", error.message, first, second);
    assert_null(model);
    assert_int_equal(mem_total(&account), 0);
}

/* config.json of the scratch directory, with `from` replaced once. */
static void replace_in_configuration(const char *from, const char *to) {
    size_t bytes;
    char *text = scratch_read(scratch_path("quantised/config.json"), &bytes);
    char *copy = malloc(bytes + strlen(to) + 1), *at = strstr(text, from);
    if (!at) fail_msg("no %s in %s", from, text);
    int n = sprintf(copy, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    scratch_write("quantised/config.json", copy, (size_t)n);
    free(copy);
    free(text);
}

static void test_configurations_that_disagree(void **state) {
    (void)state;
    static const struct {
        stored_form form;
        const char *from, *to, *first, *second;
    } cases[] = {
        {STORED_AFFINE, "\"bits\":4", "\"bits\":8", "4 bits in groups of 32", "8 in groups of 32"},
        {STORED_AFFINE, "\"bits\":4", "\"bits\":7", "7 bits in groups of 32", "affine: 2, 3, 4"},
        {STORED_AFFINE, "\"group_size\":32", "\"group_size\":64", "4 bits in groups of 32", "4 in groups of 64"},
        {STORED_AFFINE, "\"mode\":\"affine\"", "\"mode\":\"lattice\"", "mode \"lattice\"", "affine, mxfp4"},
        {STORED_MLX_MXFP4, "\"mode\":\"mxfp4\"", "\"mode\":\"affine\"", "embed_tokens is stored as mxfp4",
         "says affine"},
        {STORED_AFFINE, "\"mode\":\"affine\"", "\"model.layers.0.mlp.gate_proj\":false",
         "model.layers.0.mlp.gate_proj is stored as affine", "says plain"},
        {STORED_AFFINE, "\"mode\":\"affine\"", "\"model.layers.0.mlp.gate_proj\":17", "model.layers.0.mlp.gate_proj",
         "neither a module's form nor true or false"},
        {STORED_AFFINE, "\"quantization\"", "\"quantisation\"", "embed_tokens is stored as affine",
         "does not mention it"},
        {STORED_AFFINE, "\"quantization\":{", "\"quantization\":[1],\"x\":{", "quantization is not an object", ""},
        {STORED_AFFINE, "\"quantization\":{", "\"quantization_config\":{\"quant_method\":\"gptq\",", "\"gptq\"",
         "GGUF"},
        {STORED_INT4, "\"quant_method\":\"compressed-tensors\"", "\"quant_method\":\"awq\"", "\"awq\"", "GGUF"},
        {STORED_INT4, "pack-quantized", "marlin-24", "\"marlin-24\"", "pack-quantized"},
        {STORED_INT4, "\"group_size\":32", "\"group_size\":64", "4 bits in groups of 32", "4 in groups of 64"},
        {STORED_INT4, "\"num_bits\":4", "\"num_bits\":3", "3 bits", "not supported"},
        {STORED_INT4, "\"strategy\":\"group\"", "\"strategy\":\"moon\"", "strategy \"moon\"", "channel"},
        {STORED_INT4, "\"symmetric\":true", "\"symmetric\":false", "has no zero points", "symmetric: false"},
        {STORED_INT4_ZERO, "\"symmetric\":false", "\"symmetric\":true", "has zero points", "symmetric: true"},
        {STORED_INT4, "\"symmetric\":true", "\"actorder\":\"group\"", "actorder", "permutes columns"},
        {STORED_INT4, "\"format\"", "\"transform_config\":{\"a\":1},\"format\"", "transform_config", "not supported"},
        {STORED_INT4, "\"config_groups\":{", "\"config_groups\":{},\"x\":{", "no config_groups", ""},
        {STORED_INT4, "\"Linear\"", "\"re:.*q_proj{1,9}\"", "expression", "not supported"},
        {STORED_INT4, "\"Linear\"", "\"re:.*q_proj++\"", "expression", "not supported"},
        {STORED_INT4, "\"Linear\"", "\"re:((q)+)+\"", "expression", "not supported"},
        {STORED_INT4, "\"Linear\"", "\"re:.*?\\\\.q_proj\"", "k_proj is stored as pack-quantized", "says plain"},
        {STORED_INT4, "\"Linear\"", "\"re:.*?*q_proj\"", "expression", "not supported"},
        {STORED_INT4, "\"format\"", "\"transform_config\":[1],\"format\"", "transform_config", "not supported"},
        {STORED_INT4, "\"format\"", "\"transform_config\":{\"config_groups\":{\"a\":1}},\"format\"", "transform_config",
         "not supported"},
        {STORED_INT4, "\"Linear\"", "\"re:.*q_proj\"", "is stored as pack-quantized", "says plain"},
        {STORED_INT4, "\"lm_head\"", "\"model.layers.2.self_attn.o_proj\"",
         "layers.2.self_attn.o_proj is stored as pack", "says plain"},
        {STORED_FP8_CHANNEL, "\"re:.*router.*\"", "\"router\"", "router.proj is stored plainly", "float-quantized"},
        {STORED_MODELOPT_FP8, "\"FP8\"", "\"INT4_AWQ\"", "\"INT4_AWQ\"", "NVFP4"},
        {STORED_MODELOPT_FP8, "\"FP8\"", "\"MIXED_PRECISION\"", "MIXED_PRECISION", "quantized_layers"},
        {STORED_MODELOPT_NVFP4, "\"NVFP4\"", "\"FP8\"", "is stored as NVFP4", "says float-quantized"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        bool router = strstr(cases[i].from, "router") != NULL;
        made_model(router ? "gemma4-tiny-moe" : "gemma4-tiny-dense", cases[i].form);
        replace_in_configuration(cases[i].from, cases[i].to);
        check_refused(scratch_path("quantised"), cases[i].first, cases[i].second);
    }
}

static void test_configurations_that_agree(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"\"Linear\"", "\"re:.*?_proj\""},
        {"\"Linear\"", "\"re:model.+?(self_attn|mlp).*?\""},
        {"\"format\"", "\"transform_config\":{\"config_groups\":{}},\"format\""},
        {"\"format\"", "\"transform_config\":null,\"format\""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        mem_account account;
        language_model *model;
        mem_account_init(&account, NULL, 0);
        made_model("gemma4-tiny-dense", STORED_INT4);
        replace_in_configuration(cases[i].from, cases[i].to);
        if (language_model_open(scratch_path("quantised"), &account, &model, &error))
            fail_msg("%s: %s", cases[i].to, error.message);
        language_model_close(model);
    }
}

/* A copy of the directory without tensor `without`, or with another shape of it. */
static void write_without(const char *without, bool shorten) {
    safetensors *source;
    assert_ok(safetensors_open(scratch_path("quantised/model.safetensors"), &source, &error));
    made_file copy = {0};
    for (size_t i = 0; i < source->count; i++) {
        const tensor *t = &source->tensors[i];
        bool this_one = strcmp(t->name, without) == 0;
        if (this_one && !shorten) continue;
        int64_t shape[3] = {t->dims > 0 ? t->shape[0] : 0, t->dims > 1 ? t->shape[1] : 0,
                            t->dims > 2 ? t->shape[2] : 0};
        if (this_one) shape[t->dims - 1]--;
        unsigned char *data = made_add(&copy, t->name, "", t->type, shape[0], shape[1], shape[2]);
        memcpy(data, t->data, copy.tensors[copy.n - 1].bytes);
    }
    safetensors_close(source);
    made_write(&copy, scratch_path("quantised/model.safetensors"));
    made_free(&copy);
}

static void test_tensors_that_are_missing(void **state) {
    (void)state;
    static const struct {
        stored_form form;
        const char *tensor;
        bool shorten;
        const char *first, *second;
    } cases[] = {
        {STORED_AFFINE, "language_model.model.layers.3.self_attn.q_proj.scales", false, "q_proj.scales", "missing"},
        {STORED_AFFINE, "language_model.model.layers.3.self_attn.q_proj.weight", false, "q_proj.weight", "missing"},
        {STORED_AFFINE, "language_model.model.layers.3.self_attn.q_proj.biases", false, "q_proj.biases", "missing"},
        {STORED_AFFINE, "language_model.model.layers.3.self_attn.q_proj.biases", true, "q_proj.biases", "has shape"},
        {STORED_AFFINE, "language_model.model.layers.3.experts.switch_glu.up_proj.weight", true, "up_proj", "words"},
        {STORED_AFFINE, "language_model.model.layers.3.experts.switch_glu.down_proj.weight", false, "down_proj",
         "missing"},
        {STORED_INT4, "model.language_model.layers.3.experts.7.up_proj.weight_packed", false, "experts.7.up_proj",
         "missing"},
        {STORED_INT4, "model.language_model.layers.3.experts.7.up_proj.weight_scale", true, "experts.7.up_proj",
         "groups"},
        {STORED_INT4, "model.language_model.layers.3.self_attn.q_proj.weight_shape", true, "weight_shape",
         "two numbers"},
        {STORED_NVFP4, "model.language_model.layers.3.self_attn.q_proj.weight_global_scale", false,
         "q_proj.weight_global_scale", "missing"},
        {STORED_FP8_BLOCK, "model.language_model.layers.3.mlp.up_proj.weight_scale", true, "up_proj.weight_scale",
         "has shape"},
        {STORED_MODELOPT_NVFP4, "model.language_model.layers.3.mlp.up_proj.weight_scale_2", false,
         "up_proj.weight_scale_2", "missing"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        made_model("gemma4-tiny-moe", cases[i].form);
        write_without(cases[i].tensor, cases[i].shorten);
        check_refused(scratch_path("quantised"), cases[i].first, cases[i].second);
    }
    /* A whole expert */
    made_model("gemma4-tiny-moe", STORED_W8A8);
    write_without("model.language_model.layers.1.experts.11.up_proj.weight", false);
    write_without("model.language_model.layers.1.experts.11.up_proj.weight_scale", false);
    check_refused(scratch_path("quantised"), "layers.1.experts.11.up_proj", "11 of 12 experts");
}

/* hf_quant_config.json says what config.json does not. */
static void test_configuration_beside(void **state) {
    (void)state;
    made_model("gemma4-tiny-dense", STORED_MODELOPT_FP8);
    replace_in_configuration("\"quantization_config\"", "\"nothing\"");
    check_refused(scratch_path("quantised"), "is stored as float-quantized", "does not mention it");
    scratch_text("quantised/hf_quant_config.json",
                 "{\"producer\":{\"name\":\"modelopt\"},\"quantization\":{\"quant_algo\":\"FP8\","
                 "\"exclude_modules\":[\"lm_head\"]}}");
    size_t vocab;
    const int32_t tokens[] = {5, 6, 7};
    free(logits_of(scratch_path("quantised"), KAKEYA_PRECISION_AUTO, tokens, 3, 3, &vocab));
    remove(scratch_path("quantised/hf_quant_config.json"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_more_vectors),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_reference_logits),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_configurations_that_disagree),
        cmocka_unit_test(test_configurations_that_agree),
        cmocka_unit_test(test_tensors_that_are_missing),
        cmocka_unit_test(test_configuration_beside),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
