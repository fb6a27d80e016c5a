/* Protects: a Gemma 3 keeps its numbers on the way from directories to GGUF files and back: what norms multiply with,
 * the scale of attention, which layers slide, RoPE, every matrix. Quantised models come to floating point exactly. */
#include "backend/weight_values.h"
#include "convert/convert.h"
#include "gguf_models.h"
#include "model/tensors.h"
#include "packed.h"
#include "scratch.h"

#include <math.h>

static kakeya_error error;

static const char *source_of(const char *name) {
    static char path[512]; /* what is not packed is returned as it is */
    snprintf(path, sizeof path, KAKEYA_TEST_DATA "/golden/%s", name);
    return unpacked_folder(path);
}

static void convert(const char *from, const char *to, convert_target target, bool keep) {
    convert_report report;
    static const char *const all[] = {".=f32"};
    const convert_options options = {.to = target, .threads = 2, .keep = all, .n_keep = keep};
    char *path = strdup(from); /* which may be scratch's own text */
    (void)nftw(scratch_path(to), scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (convert_model(path, scratch_path(to), &options, &report, &error)) fail_msg("%s: %s", to, error.message);
    free(path);
}

typedef struct comparison {
    language_model *from, *to;
    const char *what;
    double most; /* of a matrix's values: relative to the row's largest */
    double norms;
    int compared;
} comparison;

static const void *binding(const language_model *m, const tensor_slot *slot) {
    return (const char *)&m->weights + slot->offset;
}

/* Row `row` of a slot's matrix; experts' gate and up may be apart. */
static const weight *matrix_of(const language_model *m, const tensor_slot *slot, int *row) {
    const weight *w = binding(m, slot);
    int layer;
    if (weight_present(w) || sscanf(slot->name, "layers.%d.", &layer) != 1) return w;
    int whole = (int)slot->shape[1], half = whole / 2, expert = *row / whole, at = *row % whole;
    *row = expert * half + at % half;
    return at < half ? &m->weights.layer[layer].experts_gate : &m->weights.layer[layer].experts_up;
}

static kakeya_status compare_slot(void *context, const tensor_slot *slot, kakeya_error *unused) {
    (void)unused;
    comparison *c = context;
    if (slot->kind == SLOT_VECTOR) {
        const float *a = *(const float *const *)binding(c->from, slot),
                    *b = *(const float *const *)binding(c->to, slot);
        for (int64_t i = 0; i < slot->shape[0]; i++) {
            if (!(fabs((double)a[i] - (double)b[i]) <= c->norms * fabs((double)a[i])))
                fail_msg("%s: %s[%d] is %.9g, not %.9g", c->what, slot->name, (int)i, (double)b[i], (double)a[i]);
        }
        c->compared++;
    }
    if (slot->kind != SLOT_MATRIX) return KAKEYA_OK;
    const int in = (int)slot->shape[slot->dims - 1], rows = (int)(tensor_slot_elements(slot) / in);
    float *x = malloc((size_t)in * sizeof *x), *y = malloc((size_t)in * sizeof *y);
    for (int row = 0; row < rows; row++) {
        int at = row, place = row;
        double largest = 0;
        const weight *a = matrix_of(c->from, slot, &at), *b = matrix_of(c->to, slot, &place);
        assert_true(weight_present(a) && weight_present(b) && a->in == in && b->in == in);
        weight_values(a, at, 0, in, x);
        weight_values(b, place, 0, in, y);
        for (int i = 0; i < in; i++) largest = fmax(largest, fabs((double)x[i]));
        for (int i = 0; i < in; i++) {
            if (!(fabs((double)x[i] - (double)y[i]) <= c->most * largest))
                fail_msg("%s: %s[%d][%d] is %g, not %g", c->what, slot->name, row, i, (double)y[i], (double)x[i]);
        }
    }
    free(x);
    free(y);
    c->compared++;
    return KAKEYA_OK;
}

/* Two models as they are computed with. */
static void check_same(const char *from, const char *to, const char *what, double most, double norms) {
    mem_account account;
    comparison c = {.what = what, .most = most, .norms = norms};
    mem_account_init(&account, NULL, 0);
    char *first = strdup(from);
    assert_ok(language_model_open(first, &account, &c.from, &error));
    free(first);
    if (language_model_open(to, &account, &c.to, &error)) fail_msg("%s: %s", what, error.message);
    const model_config *a = &c.from->config, *b = &c.to->config;
    assert_int_equal(b->generation, a->generation);
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->vocab, b->vocab);
    assert_int_equal(a->max_context, b->max_context);
    assert_int_equal(a->sliding_window, b->sliding_window);
    assert_memory_equal(a->rope, b->rope, sizeof a->rope);
    assert_memory_equal(a->layer, b->layer, (size_t)a->layers * sizeof *a->layer);
    assert_true(a->logit_softcap == b->logit_softcap && a->rms_eps == b->rms_eps);
    assert_int_equal(a->n_stop_tokens, b->n_stop_tokens);
    assert_memory_equal(a->stop_tokens, b->stop_tokens, (size_t)a->n_stop_tokens * sizeof *a->stop_tokens);
    assert_int_equal(a->bos_token, b->bos_token);
    assert_int_equal(a->pad_token, b->pad_token);
    assert_ok(gemma4_walk(a, compare_slot, &c, NULL));
    assert_true(c.compared > 13 * a->layers);
    language_model_close(c.from);
    language_model_close(c.to);
    assert_int_equal(mem_total(&account), 0);
}

/* Both forms (one with a scale of attention that no GGUF file says, one nested, with a soft cap and an irregular order
 * of layers): to a GGUF file of the same values, to a directory, and on. */
static void test_round_trip(void **state) {
    (void)state;
    static const char *const forms[] = {"forms/gemma3-flat", "forms/gemma3-nested"};
    for (int i = 0; i < 2; i++) {
        const char *from = source_of(forms[i]);
        convert(from, "a.gguf", CONVERT_Q8_0, true);
        check_same(from, scratch_path("a.gguf"), "a GGUF file", 0, 3e-7);
        convert(scratch_path("a.gguf"), "b", CONVERT_F32, false);
        check_same(from, scratch_path("b"), "a directory of it", 0, 3e-6);
        convert(scratch_path("b"), "c.gguf", CONVERT_Q8_0, true);
        check_same(scratch_path("b"), scratch_path("c.gguf"), "a GGUF file of that", 0, 3e-7);
        convert(from, "d", CONVERT_F32, false);
        check_same(from, scratch_path("d"), "a directory in float32", 0, 0);
        convert(from, "d", CONVERT_BF16, false);
        check_same(from, scratch_path("d"), "a directory in bf16", i ? 1.0 / 256 : 0, 0);
        convert(scratch_path("a.gguf"), "d", CONVERT_F16, false);
        check_same(from, scratch_path("d"), "a directory in float16", 1.0 / 1024, 3e-6);
    }
}

/* Quantised, and from there to floating point, of which nothing is lost. Experts whose gate and up were apart are
 * together again. */
static void test_quantised(void **state) {
    (void)state;
    static const char *const models[] = {"gemma4-tiny-dense", "gemma4-tiny-moe", "gemma4-tiny-ple"};
    for (int i = 0; i < 3; i++) {
        convert(source_of(models[i]), "quantised", i == 1 ? CONVERT_AFFINE4 : CONVERT_AFFINE8, false);
        convert(scratch_path("quantised"), "plain", CONVERT_F32, false);
        check_same(scratch_path("quantised"), scratch_path("plain"), models[i], 0, 0);
        convert(scratch_path("plain"), "plain.gguf", CONVERT_Q8_0, true);
        check_same(scratch_path("plain"), scratch_path("plain.gguf"), models[i], 0, 0);
    }
}

/* What only a directory says of a Gemma 4 cannot be made up. */
static void test_refusals(void **state) {
    (void)state;
    convert_report report;
    const convert_options plain = {.to = CONVERT_BF16};
    convert(source_of("gemma4-tiny-moe"), "gemma4.gguf", CONVERT_Q8_0, false);
    char *gemma4 = strdup(scratch_path("gemma4.gguf"));
    assert_int_equal(convert_model(gemma4, scratch_path("never"), &plain, &report, &error), KAKEYA_UNSUPPORTED);
    assert_non_null(strstr(error.message, "a GGUF file has none"));
    free(gemma4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_quantised),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
