/* Protects: at precision f32 a quantised file has the bits of the file that holds its values in float32, when all kinds
 * of matrices are quantised together, routers included, which converters leave in float32. */
#include "backend/weight_values.h"
#include "convert/convert.h"
#include "golden.h"
#include "model/tensors.h"
#include "scratch.h"
#include "sweep.h"

enum { TOKENS = 24 };

static float *logits_of(const language_model *model, mem_account *account) {
    const backend_ops *ops = backend_find("cpu", NULL);
    size_t vocab = (size_t)model->config.vocab;
    backend_model *backend = NULL;
    backend_cache *cache = NULL;
    const backend_model_options options = {
        .verifier = model, .precision = KAKEYA_PRECISION_F32, .threads = 2, .account = account};
    const backend_cache_options cached = {.context_tokens = 64, .kv_format = KV_FORMAT_F32, .account = account};
    float *logits = malloc(TOKENS * vocab * sizeof *logits);
    int32_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++) tokens[i] = 100 + 17 * i;
    REQUIRE_OK(ops->model_create(&options, &backend, error));
    REQUIRE_OK(ops->cache_create(backend, &cached, &cache, error));
    backend_segment segment = {.cache = cache, .tokens = tokens, .n = TOKENS, .logits = logits};
    REQUIRE_OK(ops->forward(backend, &segment, 1, error));
    ops->cache_destroy(cache);
    ops->model_destroy(backend);
    return logits;
}

typedef struct dequantising {
    model_weights *weights;
    float *made[MODEL_MAX_LAYERS * 16];
    int n, quantised, widened;
} dequantising;

static kakeya_status dequantise(void *context, const tensor_slot *slot, kakeya_error *unused) {
    (void)unused;
    dequantising *d = context;
    if (slot->kind != SLOT_MATRIX) return KAKEYA_OK;
    weight *w = (weight *)(void *)((char *)d->weights + slot->offset);
    if (!weight_present(w)) return KAKEYA_OK;
    assert_true(d->n < (int)(sizeof d->made / sizeof d->made[0]));
    float *values = malloc((size_t)w->out * (size_t)w->in * sizeof *values);
    for (int row = 0; row < w->out; row++) weight_values(w, row, 0, w->in, values + (size_t)row * (size_t)w->in);
    d->quantised += !weight_format_is_plain(w->format);
    d->widened += w->format == WEIGHT_BF16;
    *w = weight_matrix(WEIGHT_F32, values, w->out, w->in);
    d->made[d->n++] = values;
    return KAKEYA_OK;
}

static void same_bits(convert_target target) {
    char path[64];
    snprintf(path, sizeof path, "demo-%d.gguf", (int)target);
    const char *file = scratch_path(path);
    const convert_options options = {.to = target, .threads = 2};
    convert_report report;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    REQUIRE_OK(convert_model(KAKEYA_MODELS "/demo", file, &options, &report, error));
    language_model *model = NULL;
    REQUIRE_OK(language_model_open(file, &account, &model, error));
    size_t vocab = (size_t)model->config.vocab;
    float *found = logits_of(model, &account);
    static dequantising d;
    d = (dequantising){.weights = &model->weights};
    REQUIRE_OK(gemma4_walk(&model->config, dequantise, &d, error));
    if (model->config.tied_head) model->weights.head = model->weights.embed;
    model->config.checkpoint_format = WEIGHT_F32;
    assert_true(d.quantised > 4 * model->config.layers && d.widened == model->config.layers); /* the routers */
    float *expected = logits_of(model, &account);
    assert_same_bits(path, found, expected, TOKENS * vocab);
    for (int i = 0; i < d.n; i++) free(d.made[i]);
    free(found);
    free(expected);
    language_model_close(model);
    remove(file);
}

static void quantised_files_have_the_bits_of_dequantised_ones(void **state) {
    (void)state;
    same_bits(CONVERT_Q8_0);
    if (!sweep_short()) same_bits(CONVERT_Q4_0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(quantised_files_have_the_bits_of_dequantised_ones)};
    return cmocka_run_group_tests_name("dequantised", tests, scratch_setup, scratch_teardown);
}
