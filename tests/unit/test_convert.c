/* Protects: quantisers make the bytes of the reference's own code; converted models hold the quantised values of every
 * tensor, whatever the number of threads, from directories and from GGUF files; weights on a grid of 4 bits are met;
 * what fails leaves nothing behind. */
#include "convert/convert.h"
#include "convert/quantise.h"
#include "convert/quantise_numbers.h"
#include "formats/gguf_output.h"
#include "gguf_models.h"
#include "kernel_operands.h"
#include "model/tensors.h"
#include "packed.h"
#include "scratch.h"

#include <dirent.h>

#define QUANT KAKEYA_TEST_DATA "/golden/quant/"

static kakeya_error error;

/* ----------------------------------------------------------------------------------------------------- quantisers */

static void check_bytes(const char *what, const void *found, const void *expected, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int a = ((const unsigned char *)found)[i], b = ((const unsigned char *)expected)[i];
        if (a != b) fail_msg("%s: byte %zu of %zu is %d, expected %d", what, i, n, a, b);
    }
}

static void test_blocks(void **state) {
    (void)state;
    static const struct {
        weight_format format;
        const char *key;
    } formats[] = {{WEIGHT_Q4_0, "q4_0"}, {WEIGHT_Q4_1, "q4_1"}, {WEIGHT_Q5_0, "q5_0"}, {WEIGHT_Q5_1, "q5_1"},
                   {WEIGHT_Q8_0, "q8_0"}, {WEIGHT_Q4_K, "q4_k"}, {WEIGHT_Q5_K, "q5_k"}, {WEIGHT_Q6_K, "q6_k"}};
    safetensors *file;
    assert_ok(safetensors_open(unpacked_file(QUANT "quantisers.safetensors"), &file, &error));
    for (size_t f = 0; f < COUNT(formats); f++) {
        char key[32];
        snprintf(key, sizeof key, "%s.x", formats[f].key);
        const tensor *x = safetensors_find(file, key);
        snprintf(key, sizeof key, "%s.raw", formats[f].key);
        const tensor *raw = safetensors_find(file, key);
        int rows = (int)x->shape[0], k = (int)x->shape[1];
        float *values = malloc(x->bytes);
        memcpy(values, x->data, x->bytes);
        size_t row_bytes = raw->bytes / (size_t)rows;
        unsigned char *made = malloc(row_bytes);
        assert_true(quantise_has(formats[f].format));
        for (int r = 0; r < rows; r++) {
            quantise_row(formats[f].format, values + r * k, NULL, k, made);
            check_bytes(formats[f].key, made, raw->data + (size_t)r * row_bytes, row_bytes);
        }
        free(made);
        free(values);
    }
    safetensors_close(file);
}

/* What the rows lose under importances, beside the reference's: its sums are vectors, so single bytes may differ. */
static void test_importances(void **state) {
    (void)state;
    static const struct {
        weight_format format;
        const char *key;
    } formats[] = {{WEIGHT_Q4_0, "q4_0"}, {WEIGHT_Q4_1, "q4_1"}, {WEIGHT_Q5_0, "q5_0"}, {WEIGHT_Q5_1, "q5_1"},
                   {WEIGHT_Q4_K, "q4_k"}, {WEIGHT_Q5_K, "q5_k"}, {WEIGHT_Q6_K, "q6_k"}};
    safetensors *file;
    assert_ok(safetensors_open(unpacked_file(QUANT "quantisers.safetensors"), &file, &error));
    for (size_t f = 0; f < COUNT(formats); f++) {
        static const char *const parts[] = {"x", "importance", "fitted"};
        enum { K = 512 };
        float x[2 * K], importance[K], back[K];
        unsigned char made[K], theirs[2 * K], plain[K];
        void *to[] = {x, importance, theirs};
        size_t bytes = 0;
        for (int p = 0; p < 3; p++) {
            char key[32];
            snprintf(key, sizeof key, "%s.%s", formats[f].key, parts[p]);
            const tensor *t = safetensors_find(file, key);
            assert_non_null(t);
            memcpy(to[p], t->data, t->bytes);
            bytes = t->bytes / 2; /* of a row, after the last one */
        }
        double lost[3] = {0};
        for (int r = 0; r < 2; r++) {
            quantise_row(formats[f].format, x + r * K, importance, K, made);
            quantise_row(formats[f].format, x + r * K, NULL, K, plain);
            const unsigned char *ways[] = {made, theirs + (size_t)r * bytes, plain};
            for (int way = 0; way < 3; way++) {
                weight one = weight_matrix(formats[f].format, ways[way], 1, K);
                cpu_kernels_find("scalar")->weight[one.format].load(&one, 0, 0, K, back);
                for (int i = 0; i < K; i++) {
                    double miss = (double)back[i] - (double)x[r * K + i];
                    lost[way] += (double)importance[i] * miss * miss;
                }
            }
        }
        if (!(lost[0] <= 1.01 * lost[1]))
            fail_msg("%s: %g is lost, of the reference %g", formats[f].key, lost[0], lost[1]);
        assert_true(lost[0] < 0.97 * lost[2]); /* else importances would be of no use */
    }
    safetensors_close(file);
}

static void test_affine(void **state) {
    (void)state;
    static const int bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    int checked = 0;
    for (size_t i = 0; i < COUNT(bits) * COUNT(groups) * 2; i++) {
        int b = bits[i % COUNT(bits)], group = groups[i / COUNT(bits) % COUNT(groups)];
        bool f16 = i >= COUNT(bits) * COUNT(groups);
        char name[512], key[64];
        safetensors *file;
        snprintf(name, sizeof name, QUANT "mlx-affine-%d.safetensors", b);
        assert_ok(safetensors_open(unpacked_file(name), &file, &error));
        const tensor *t[4];
        static const char *const parts[] = {"x", "weight", "scales", "biases"};
        for (int p = 0; p < 4; p++) {
            snprintf(key, sizeof key, "g%d.%s.%s", group, f16 ? "f16" : "bf16", parts[p]);
            t[p] = safetensors_find(file, key);
        }
        if (t[0]) {
            int rows = (int)t[0]->shape[0], k = (int)t[0]->shape[1];
            float *x = malloc((size_t)k * sizeof *x);
            unsigned char codes[1024], scales[64], biases[64];
            for (int r = 0; r < rows; r++) {
                for (int j = 0; j < k; j++)
                    x[j] = element(f16 ? WEIGHT_F16 : WEIGHT_BF16, t[0]->data, (size_t)(r * k + j));
                quantise_affine(b, group, f16 ? DTYPE_F16 : DTYPE_BF16, x, k, codes, scales, biases);
                unsigned char *made[] = {codes, scales, biases};
                for (int p = 1; p < 4; p++) {
                    size_t bytes = t[p]->bytes / (size_t)rows;
                    check_bytes(t[p]->name, made[p - 1], t[p]->data + (size_t)r * bytes, bytes);
                }
            }
            free(x);
            checked++;
        }
        safetensors_close(file);
    }
    assert_true(checked >= 18);
}

/* Every half is the nearest of its neighbourhood. */
static void test_halves(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float a = f16_to_f32((uint16_t)h), b = f16_to_f32((uint16_t)(h + 1)), middle = a / 2 + b / 2;
        assert_int_equal(f32_to_f16(a), h);
        assert_int_equal(f32_to_f16(-a), h | 0x8000);
        assert_int_equal(f32_to_f16(middle), h % 2 ? h + 1 : h);
        assert_int_equal(f32_to_f16(nextafterf(middle, a)), h);
        assert_int_equal(f32_to_f16(nextafterf(middle, b)), h + 1);
    }
    assert_int_equal(f32_to_f16(65519), 0x7bff);
    assert_int_equal(f32_to_f16(65520), 0x7c00);
    assert_int_equal(f32_to_f16(-INFINITY), 0xfc00);
}

/* Weights as quantisation-aware training leaves them: whole multiples of a step, rounded to bf16. */
static void test_grid(void **state) {
    (void)state;
    enum { BLOCKS = 4000 };
    uint64_t seed = 5;
    int met = 0, met_plainly = 0;
    for (int b = 0; b < BLOCKS; b++) {
        float x[32], step = bf16_to_f32(f32_to_bf16(0.01f + fabsf(random_value(&seed, 0.02f))));
        unsigned char block[2][18];
        for (int i = 0; i < 32; i++) {
            int k = (int)(fabsf(random_value(&seed, 1)) * 1e4f) % 16 - 8;
            x[i] = bf16_to_f32(f32_to_bf16(step * (float)k));
        }
        (void)quantise_q4_0_grid(x, block[0]);
        quantise_row(WEIGHT_Q4_0, x, NULL, 32, block[1]);
        for (int way = 0; way < 2; way++) {
            float d = element(WEIGHT_F16, block[way], 0);
            bool good = true;
            for (int i = 0; i < 32; i++) {
                int code = i < 16 ? block[way][2 + i] & 15 : block[way][2 + i - 16] >> 4;
                good = good && fabsf(d * (float)(code - 8) - x[i]) <= 0x1p-8f * fabsf(x[i]);
            }
            *(way ? &met_plainly : &met) += good;
        }
    }
    if (met < BLOCKS - BLOCKS / 1000) fail_msg("%d of %d blocks on their grid", met, BLOCKS);
    assert_true(met_plainly < met); /* else there would be nothing to look for */
    float zeros[32] = {0};
    unsigned char block[18];
    assert_int_equal(quantise_q4_0_grid(zeros, block), GRID_PLAIN);
    for (int i = 0; i < 16; i++) assert_int_equal(block[2 + i], 0x88);
}

/* -------------------------------------------------------------------------------------------------------- models */

static const char *const tiny_models[] = {"gemma4-tiny-dense", "gemma4-tiny-moe", "gemma4-tiny-ple"};

static const char *tiny(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, KAKEYA_TEST_DATA "/golden/%s", name);
    return path;
}

static void remove_output(const char *name) {
    (void)nftw(scratch_path(name), scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void convert(const char *from, const char *to, convert_target target, int threads) {
    convert_report report;
    const convert_options options = {.to = target, .threads = threads};
    remove_output(to);
    assert_ok(convert_model(from, scratch_path(to), &options, &report, &error));
    assert_true(report.bytes > 0 && report.tensors > 0);
}

/* What a quantiser of this format makes of a row, read back by the oracle. */
static void expected_row(const weight *w, const float *x, float *out) {
    unsigned char codes[4096], scales[256], biases[256];
    weight one = weight_matrix(w->format, codes, 1, w->in);
    if (weight_format_is_grouped(w->format)) {
        quantise_affine(w->format == WEIGHT_AFFINE_8 ? 8 : 4, w->group, w->scale_type, x, w->in, codes, scales, biases);
        one.group = w->group;
        one.scale_type = w->scale_type;
        one.stream[1] = scales;
        one.stream[2] = biases;
    } else {
        quantise_row(w->format, x, NULL, w->in, codes);
    }
    cpu_kernels_find("scalar")->weight[w->format].load(&one, 0, 0, w->in, out);
}

typedef struct comparison {
    language_model *from, *to;
    const char *what;
    int matrices, quantised;
} comparison;

static void load(const weight *w, int row, float *out) {
    cpu_kernels_find("scalar")->weight[w->format].load(w, row, 0, w->in, out);
}

/* Row `row` of a slot's matrix; experts' gate and up may be apart. */
static const weight *matrix_of(const language_model *m, const tensor_slot *slot, int *row) {
    const weight *w = (const weight *)(const void *)((const char *)&m->weights + slot->offset);
    int layer;
    if (weight_present(w) || sscanf(slot->name, "layers.%d.", &layer) != 1) return w;
    int whole = (int)slot->shape[1], half = whole / 2, expert = *row / whole, at = *row % whole;
    *row = expert * half + at % half;
    return at < half ? &m->weights.layer[layer].experts_gate : &m->weights.layer[layer].experts_up;
}

static kakeya_status compare_slot(void *context, const tensor_slot *slot, kakeya_error *unused) {
    (void)unused;
    comparison *c = context;
    if (slot->kind != SLOT_MATRIX) return KAKEYA_OK;
    int64_t in = slot->shape[slot->dims - 1], rows = tensor_slot_elements(slot) / in;
    float source[1024], want[1024], got[1024];
    assert_in_range(in, 1, 1024);
    for (int r = 0; r < (int)rows; r++) {
        int at = r, place = r;
        load(matrix_of(c->from, slot, &at), at, source);
        const weight *w = matrix_of(c->to, slot, &place);
        expected_row(w, source, want);
        load(w, place, got);
        for (int i = 0; i < (int)in; i++) check_same_bits(slot->name, c->what, r * in + i, got[i], want[i]);
        if (r == 0) c->quantised += !weight_format_is_plain(w->format);
    }
    c->matrices++;
    return KAKEYA_OK;
}

static void check_model(const char *from, const char *to, const char *what) {
    mem_account account;
    comparison c = {.what = what};
    mem_account_init(&account, NULL, 0);
    assert_ok(language_model_open(from, &account, &c.from, &error));
    assert_ok(language_model_open(to, &account, &c.to, &error));
    const model_config *a = &c.from->config, *b = &c.to->config;
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->vocab, b->vocab);
    assert_int_equal(a->sliding_window, b->sliding_window);
    assert_memory_equal(a->rope, b->rope, sizeof a->rope);
    assert_memory_equal(a->layer, b->layer, (size_t)a->layers * sizeof *a->layer);
    assert_true(a->logit_softcap == b->logit_softcap && a->rms_eps == b->rms_eps);
    assert_ok(gemma4_walk(a, compare_slot, &c, NULL));
    assert_true(c.matrices > 10 && c.quantised > c.matrices / 2);
    for (int i = 0; i < a->hidden; i++) {
        assert_true(c.from->weights.final_norm[i] == c.to->weights.final_norm[i]);
        assert_true(c.from->weights.layer[1].input_norm[i] == c.to->weights.layer[1].input_norm[i]);
    }
    assert_true(c.from->weights.layer[1].layer_scalar == c.to->weights.layer[1].layer_scalar);
    language_model_close(c.from);
    language_model_close(c.to);
    assert_int_equal(mem_total(&account), 0);
}

static void test_directories(void **state) {
    (void)state;
    for (size_t m = 0; m < COUNT(tiny_models); m++) {
        for (int target = 0; target < CONVERT_F32; target++) {
            char what[64];
            snprintf(what, sizeof what, "%s to %s", tiny_models[m], convert_target_names[target]);
            convert(tiny(tiny_models[m]), "out", (convert_target)target, 1 + target % 3);
            check_model(tiny(tiny_models[m]), scratch_path("out"), what);
        }
    }
}

static void test_threads(void **state) {
    (void)state;
    static const char *const names[] = {"one", "three", "eight"};
    static const int threads[] = {1, 3, 8};
    static const convert_target targets[] = {CONVERT_Q4_K_M, CONVERT_AFFINE4};
    for (int t = 0; t < 2; t++) {
        size_t bytes[3];
        char *data[3];
        for (int i = 0; i < 3; i++) {
            char path[64];
            convert(tiny("gemma4-tiny-moe"), names[i], targets[t], threads[i]);
            snprintf(path, sizeof path, "%s%s", names[i], t ? "/model.safetensors" : "");
            data[i] = scratch_read(scratch_path(path), &bytes[i]);
            assert_int_equal(bytes[i], bytes[0]);
            check_bytes(names[i], data[i], data[0], bytes[i]);
        }
        for (int i = 0; i < 3; i++) {
            free(data[i]);
            remove_output(names[i]);
        }
    }
}

/* A GGUF file in float32, whose experts' gate and up are apart. */
static void test_gguf(void **state) {
    (void)state;
    mem_account account;
    language_model *model;
    safetensors *source;
    mem_account_init(&account, NULL, 0);
    assert_ok(language_model_open(tiny("gemma4-tiny-moe"), &account, &model, &error));
    assert_ok(safetensors_open(KAKEYA_TEST_DATA "/golden/gemma4-tiny-moe/model.safetensors", &source, &error));
    const gguf_form form = {.split_experts = true, .vocab_size = 320};
    gguf_writer w = gw_begin();
    gw_model(&w, source, &model->config, &form);
    size_t bytes;
    unsigned char *data = gw_finish(&w, &bytes);
    scratch_write("source.gguf", data, bytes);
    free(data);
    safetensors_close(source);
    language_model_close(model);
    convert(scratch_path("source.gguf"), "out", CONVERT_Q5_K, 2);
    check_model(tiny("gemma4-tiny-moe"), scratch_path("out"), "from GGUF");
    /* What is quantised already is not quantised again. */
    convert_report report;
    const convert_options options = {.to = CONVERT_Q4_0};
    assert_int_equal(convert_model(scratch_path("out"), scratch_path("again"), &options, &report, &error),
                     KAKEYA_UNSUPPORTED);
    assert_non_null(strstr(error.message, "quantised already"));
    /* A GGUF file has no config.json to go on with. */
    const convert_options mlx = {.to = CONVERT_AFFINE4};
    assert_int_equal(convert_model(scratch_path("source.gguf"), scratch_path("again"), &mlx, &report, &error),
                     KAKEYA_UNSUPPORTED);
}

/* ------------------------------------------------------------------------------- importances, single tensors */

enum { HIDDEN = 64, EXPERTS = 12 };

static float importance_of(int expert, int column) { return (float)((expert * 7 + column * column) % 19) + 0.25f; }

/* A file of importances of one dense matrix and of one layer's experts, of which the fourth was never chosen. */
static void write_importances(const char *name, const char *key, int in, float bad) {
    static const char *const names[] = {"blk.0.attn_q.weight", "blk.1.ffn_gate_exps.weight"};
    gguf_output *o = gguf_output_create();
    gguf_output_u32(o, key, 3);
    for (int i = 0; i < 2; i++) {
        char text[64];
        const int64_t sums[] = {in, i ? EXPERTS : 1}, counts[] = {1, i ? EXPERTS : 1};
        snprintf(text, sizeof text, "%s.in_sum2", names[i]);
        gguf_output_tensor(o, text, GGUF_TENSOR_F32, 2, sums, (size_t)(sums[0] * sums[1]) * sizeof(float));
        snprintf(text, sizeof text, "%s.counts", names[i]);
        gguf_output_tensor(o, text, GGUF_TENSOR_F32, 2, counts, (size_t)counts[1] * sizeof(float));
    }
    remove_output(name);
    assert_ok(gguf_output_open(o, scratch_path(name), &error));
    for (int i = 0; i < 2; i++) {
        for (int part = 0; part < 2; part++) {
            for (int e = 0; e < (i ? EXPERTS : 1); e++) {
                for (int j = 0; j < (part ? 1 : in); j++) {
                    float count = i && e == 3 ? 0 : (float)(e + 2);
                    float value = part ? count : count * importance_of(e, j);
                    if (bad != 0 && i && e == 5 && j == 0 && part == 0) value = bad;
                    assert_ok(gguf_output_write(o, &value, sizeof value, &error));
                }
            }
        }
    }
    assert_ok(gguf_output_commit(o, &error));
}

static void check_important(const weight *from, const weight *to, int experts, bool reached) {
    int rows = (int)(from->out / experts), different = 0;
    for (int r = 0; r < (int)from->out; r += rows / 4) {
        float x[HIDDEN], importance[HIDDEN], got[HIDDEN], want[HIDDEN], plain[HIDDEN];
        unsigned char codes[256];
        const int e = r / rows;
        for (int j = 0; j < HIDDEN; j++) importance[j] = experts > 1 && e == 3 ? 1 : importance_of(e, j);
        load(from, r, x);
        load(to, r, got);
        weight one = weight_matrix(to->format, codes, 1, HIDDEN);
        quantise_row(to->format, x, reached ? importance : NULL, HIDDEN, codes);
        load(&one, 0, want);
        quantise_row(to->format, x, NULL, HIDDEN, codes);
        load(&one, 0, plain);
        for (int j = 0; j < HIDDEN; j++)
            check_same_bits("a weight", "under importances", r * HIDDEN + j, got[j], want[j]);
        different += memcmp(want, plain, sizeof want) != 0;
    }
    assert_true(reached ? different > 0 : different == 0);
}

static void test_importance_files(void **state) {
    (void)state;
    mem_account account;
    language_model *a, *b;
    convert_report report;
    write_importances("imatrix", "imatrix.chunk_count", HIDDEN, 0);
    /* The same file twice says what it says once. */
    char *file = strdup(scratch_path("imatrix"));
    const char *const files[] = {file, file};
    convert_options with = {.to = CONVERT_Q4_0, .threads = 2, .importance = files, .n_importance = 2};
    remove_output("out");
    assert_ok(convert_model(tiny("gemma4-tiny-moe"), scratch_path("out"), &with, &report, &error));
    assert_int_equal(report.important, 2);
    mem_account_init(&account, NULL, 0);
    assert_ok(language_model_open(tiny("gemma4-tiny-moe"), &account, &a, &error));
    assert_ok(language_model_open(scratch_path("out"), &account, &b, &error));
    check_important(&a->weights.layer[0].q_proj, &b->weights.layer[0].q_proj, 1, true);
    check_important(&a->weights.layer[1].experts_gate_up, &b->weights.layer[1].experts_gate_up, EXPERTS, true);
    check_important(&a->weights.layer[1].q_proj, &b->weights.layer[1].q_proj, 1, false);
    assert_int_equal(b->weights.layer[0].down_proj.format, WEIGHT_Q4_1); /* the first eighth of the layers, then */
    assert_int_equal(b->weights.layer[1].down_proj.format, WEIGHT_Q4_0);
    language_model_close(a);
    language_model_close(b);

    static const struct {
        const char *key, *says;
        int in;
        float bad;
    } bad[] = {{"imatrix.chunk_count", "not a mean square", HIDDEN, NAN},
               {"imatrix.chunk_count", "not a mean square", HIDDEN, -1},
               {"imatrix.chunk_count", "not for this model: expected 1 x 64", HIDDEN + 1, 0},
               {"general.size", "holds no importances", HIDDEN, 0}};
    for (size_t i = 0; i < COUNT(bad); i++) {
        write_importances("imatrix", bad[i].key, bad[i].in, bad[i].bad);
        assert_int_equal(convert_model(tiny("gemma4-tiny-moe"), scratch_path("never"), &with, &report, &error),
                         KAKEYA_FORMAT);
        if (!strstr(error.message, bad[i].says)) fail_msg("\"%s\" does not say \"%s\"", error.message, bad[i].says);
    }
    scratch_text("imatrix", "the older form begins with a number of entries");
    assert_int_equal(convert_model(tiny("gemma4-tiny-moe"), scratch_path("never"), &with, &report, &error),
                     KAKEYA_FORMAT);
    assert_non_null(strstr(error.message, ".dat"));
    write_importances("imatrix", "imatrix.chunk_count", 48, 0);
    with.grid = true;
    assert_int_equal(convert_model(tiny("gemma4-tiny-moe"), scratch_path("never"), &with, &report, &error),
                     KAKEYA_INVALID_ARGUMENT);
    free(file);
}

static void test_single_tensors(void **state) {
    (void)state;
    mem_account account;
    language_model *m;
    convert_report report;
    static const char *const keep[] = {"^blk\\.[02]\\..*_gate\\.=q8_0", "blk.2.ffn_gate=bf16"};
    const convert_options options = {
        .to = CONVERT_Q4_0, .head = "q8_0", .attention = "Q5_1", .keep = keep, .n_keep = COUNT(keep)};
    remove_output("out");
    assert_ok(convert_model(tiny("gemma4-tiny-dense"), scratch_path("out"), &options, &report, &error));
    mem_account_init(&account, NULL, 0);
    assert_ok(language_model_open(scratch_path("out"), &account, &m, &error));
    assert_int_equal(m->weights.embed.format, WEIGHT_Q8_0);
    assert_int_equal(m->weights.layer[3].q_proj.format, WEIGHT_Q5_1);
    assert_int_equal(m->weights.layer[0].gate_proj.format, WEIGHT_Q8_0);
    assert_int_equal(m->weights.layer[1].gate_proj.format, WEIGHT_Q4_0);
    assert_int_equal(m->weights.layer[2].gate_proj.format, WEIGHT_BF16);
    assert_int_equal(m->weights.layer[2].up_proj.format, WEIGHT_Q4_0);
    language_model_close(m);
    static const char *const wrong[][2] = {{"q9", "--head"},
                                           {"=q8_0", "REGEX=FORMAT"},
                                           {"(=q8_0", "regular expression"},
                                           {"x=f64", "--keep"},
                                           {"nothing=q4_1", "\"nothing=q4_1\" matches no quantised tensor"},
                                           {"^blk.0.attn_norm=q8_0", "no quantised tensor"}};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        convert_options bad = {.to = CONVERT_Q4_0};
        if (i == 0) bad.head = wrong[i][0];
        if (i) bad.keep = &wrong[i][0], bad.n_keep = 1;
        assert_int_equal(convert_model(tiny("gemma4-tiny-dense"), scratch_path("never"), &bad, &report, &error),
                         KAKEYA_INVALID_ARGUMENT);
        if (!strstr(error.message, wrong[i][1])) fail_msg("\"%s\" does not say \"%s\"", error.message, wrong[i][1]);
    }
    const convert_options mlx = {.to = CONVERT_AFFINE4, .head = "q8_0"};
    assert_int_equal(convert_model(tiny("gemma4-tiny-dense"), scratch_path("never"), &mlx, &report, &error),
                     KAKEYA_INVALID_ARGUMENT);
}

/* ------------------------------------------------------------------------------------------------------- refusals */

static int entries_of(const char *path) {
    int n = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    while (readdir(folder)) n++;
    closedir(folder);
    return n - 2;
}

static bool cancel_soon(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what;
    assert_true(done <= total);
    return --*(int *)user > 0;
}

static void test_nothing_is_left(void **state) {
    (void)state;
    convert_report report;
    scratch_folder("folder");
    for (int target = 0; target < CONVERT_TILES; target++) {
        for (int calls = 1; calls < 30; calls += 14) {
            int left = calls;
            const convert_options options = {.to = (convert_target)target, .progress = cancel_soon, .user = &left};
            assert_int_equal(
                convert_model(tiny("gemma4-tiny-moe"), scratch_path("folder/out"), &options, &report, &error),
                KAKEYA_CANCELLED);
            assert_int_equal(entries_of(scratch_path("folder")), 0);
        }
    }
    /* What is there stays. */
    scratch_text("folder/out", "mine");
    const convert_options options = {.to = CONVERT_Q8_0};
    assert_int_equal(convert_model(tiny("gemma4-tiny-moe"), scratch_path("folder/out"), &options, &report, &error),
                     KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "not overwritten"));
    size_t bytes;
    char *kept = scratch_read(scratch_path("folder/out"), &bytes);
    assert_int_equal(bytes, 4);
    free(kept);
    const convert_options grid = {.to = CONVERT_Q8_0, .grid = true};
    assert_int_equal(convert_model(tiny("gemma4-tiny-moe"), scratch_path("folder/b"), &grid, &report, &error),
                     KAKEYA_INVALID_ARGUMENT);
}

/* A value that is no number is refused with its tensor and row. */
static void test_bad_values(void **state) {
    (void)state;
    size_t bytes;
    char *config = scratch_read(KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense/config.json", &bytes);
    scratch_folder("bad");
    scratch_write("bad/config.json", config, bytes);
    free(config);
    char *weights = scratch_read(KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense/model.safetensors", &bytes);
    safetensors *file;
    assert_ok(safetensors_parse("weights", (const unsigned char *)weights, bytes, &file, &error));
    const tensor *t = safetensors_find(file, "model.layers.2.mlp.down_proj.weight");
    assert_non_null(t);
    size_t at = (size_t)(t->data - (const unsigned char *)weights) + (size_t)(5 * t->shape[1] + 3) * sizeof(float);
    const float nan = NAN;
    memcpy(weights + at, &nan, sizeof nan);
    scratch_write("bad/model.safetensors", weights, bytes);
    safetensors_close(file);
    free(weights);
    convert_report report;
    const convert_options options = {.to = CONVERT_Q8_0, .threads = 3};
    assert_int_equal(convert_model(scratch_path("bad"), scratch_path("worse"), &options, &report, &error),
                     KAKEYA_FORMAT);
    assert_non_null(strstr(error.message, "row 5 of tensor layers.2.mlp.down_proj"));
    assert_int_equal(access(scratch_path("worse"), F_OK), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_importances),
        cmocka_unit_test(test_affine),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_directories),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_importance_files),
        cmocka_unit_test(test_single_tensors),
        cmocka_unit_test(test_nothing_is_left),
        cmocka_unit_test(test_bad_values),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
