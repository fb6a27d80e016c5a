/* Protects: tiles from a file are the tiles that loading makes, for every kernel set and number of threads, and take no
 * memory of the engine's; a file of other weights, of another version, damaged or cut is refused with one line; writing
 * one refuses what it cannot make, and leaves nothing where it fails. */
#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "convert/convert.h"
#include "formats/safetensors.h"
#include "golden.h"
#include "scratch.h"

#define MICRO KAKEYA_TEST_DATA "/golden/quant/micro.gguf"

enum { ROWS = 7 };
static kakeya_error error;

typedef struct loaded {
    kakeya_status status;
    float *logits; /* [ROWS][vocab] */
    size_t bytes;  /* of weights in memory */
    char note[256];
} loaded;

static loaded load(const char *path, const char *isa, int threads) {
    static const int32_t tokens[ROWS] = {2, 5, 9, 17, 33, 6, 11};
    loaded out = {0};
    mem_account account;
    mem_account_init(&account, NULL, 0);
    language_model *model;
    backend_model *backend;
    backend_cache *cache;
    const backend_ops *ops = backend_find("cpu", NULL);
    assert_ok(language_model_open(path, &account, &model, &error));
    size_t vocab = (size_t)model->config.vocab;
    backend_model_options options = {
        .verifier = model, .precision = KAKEYA_PRECISION_INT8, .isa = isa, .threads = threads, .account = &account};
    out.status = ops->model_create(&options, &backend, &error);
    if (out.status == KAKEYA_OK) {
        snprintf(out.note, sizeof out.note, "%s", ops->model_note(backend));
        out.bytes = mem_bytes(&account, MEM_WEIGHTS);
        out.logits = malloc(ROWS * vocab * sizeof *out.logits);
        backend_cache_options cached = {.context_tokens = ROWS, .kv_format = KV_FORMAT_F32, .account = &account};
        assert_ok(ops->cache_create(backend, &cached, &cache, &error));
        backend_segment segment = {
            .cache = cache, .tokens = tokens, .n = ROWS, .kind = SEGMENT_PROMPT, .logits = out.logits};
        assert_ok(ops->forward(backend, &segment, 1, &error));
        assert_ok(ops->cache_commit(cache, ROWS, &error));
        ops->cache_destroy(cache);
        ops->model_destroy(backend);
    }
    language_model_close(model);
    assert_int_equal(mem_total(&account), 0);
    return out;
}

static size_t vocabulary(const char *path) {
    mem_account account;
    mem_account_init(&account, NULL, 0);
    language_model *model;
    assert_ok(language_model_open(path, &account, &model, &error));
    size_t vocab = (size_t)model->config.vocab;
    language_model_close(model);
    return vocab;
}

/* A copy of the reference model, and the bytes of its tiles. */
static const char *copied(const char *name) {
    size_t bytes;
    char *data;
    assert_ok(file_read(MICRO, 1 << 20, &data, &bytes, &error));
    const char *path = scratch_write(name, data, bytes);
    free(data);
    return path;
}

/* The same of the reference directory that mlx-lm quantised. */
static const char *copied_directory(void) {
    static const char *const files[] = {"config.json", "model.safetensors"};
    scratch_folder("mlx");
    for (size_t i = 0; i < 2; i++) {
        char from[512], to[64];
        size_t bytes;
        snprintf(from, sizeof from, KAKEYA_TEST_DATA "/golden/quant/tiny-dense-mlx/%s", files[i]);
        snprintf(to, sizeof to, "mlx/%s", files[i]);
        char *data = scratch_read(from, &bytes);
        scratch_write(to, data, bytes);
        free(data);
    }
    return scratch_path("mlx");
}

static kakeya_status make_tiles(const char *model, const char *out, int threads) {
    convert_report report;
    const convert_options options = {.to = CONVERT_TILES, .threads = threads};
    return convert_model(model, out, &options, &report, &error);
}

static void test_same_tiles(void **state) {
    (void)state;
    const char *path = copied("same.gguf"), *tiles = scratch_path("same.gguf.tiles");
    size_t logits_bytes = ROWS * vocabulary(path) * sizeof(float);
    enum { MOST = 8 };
    loaded made[MOST];
    const char *const *isa = cpu_kernels_supported();
    for (size_t i = 0; isa[i]; i++) {
        assert_true(i < MOST);
        made[i] = load(path, isa[i], 2);
        assert_ok(made[i].status);
        assert_string_equal(made[i].note, "");
    }
    assert_ok(make_tiles(path, tiles, 3));
    for (size_t i = 0; isa[i]; i++) {
        loaded mapped = load(path, isa[i], 2);
        assert_ok(mapped.status);
        assert_non_null(strstr(mapped.note, "same.gguf.tiles"));
        assert_memory_equal(mapped.logits, made[i].logits, logits_bytes);
        assert_true(mapped.bytes + 20000 < made[i].bytes); /* tiles of 55 kB */
        free(mapped.logits);
        free(made[i].logits);
    }
    /* never over what is there, and the same bytes for any number of threads */
    assert_refused(make_tiles(path, tiles, 1), KAKEYA_INVALID_ARGUMENT, "already exists");
    const char *again = scratch_path("again.tiles");
    assert_ok(make_tiles(path, again, 1));
    char *a, *b;
    size_t a_bytes, b_bytes;
    assert_ok(file_read(tiles, 1 << 20, &a, &a_bytes, &error));
    assert_ok(file_read(again, 1 << 20, &b, &b_bytes, &error));
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(a, b, a_bytes);
    free(a);
    free(b);
}

/* Of a directory they lie in it; what they were made of are codes, scales and biases. */
static void test_directory(void **state) {
    (void)state;
    char path[512], tiles[512];
    snprintf(path, sizeof path, "%s", copied_directory());
    snprintf(tiles, sizeof tiles, "%s", scratch_path("mlx/model.tiles"));
    size_t logits_bytes = ROWS * vocabulary(path) * sizeof(float), bytes;
    loaded made = load(path, NULL, 2);
    assert_ok(made.status);
    assert_ok(make_tiles(path, tiles, 2));
    loaded mapped = load(path, NULL, 2);
    assert_ok(mapped.status);
    assert_non_null(strstr(mapped.note, "mlx/model.tiles"));
    assert_memory_equal(mapped.logits, made.logits, logits_bytes);
    assert_true(mapped.bytes + 20000 < made.bytes);
    free(mapped.logits);
    free(made.logits);
    static const char weights[] = "mlx/model.safetensors", *const streams[] = {"weight", "scales", "biases"};
    char name[512];
    snprintf(name, sizeof name, "%s", scratch_path(weights));
    for (size_t i = 0; i < 3; i++) {
        char tensor_name[128], *data = scratch_read(name, &bytes);
        safetensors *file;
        snprintf(tensor_name, sizeof tensor_name, "model.layers.0.mlp.up_proj.%s", streams[i]);
        assert_ok(safetensors_open(name, &file, &error));
        const tensor *t = safetensors_find(file, tensor_name);
        if (!t) fail_msg("there is no %s", tensor_name);
        size_t at = 0;
        while (memcmp(data + at, t->data, t->bytes) != 0) at++;
        safetensors_close(file);
        data[at] = (char)(data[at] ^ 1);
        scratch_write(weights, data, bytes);
        assert_refused(load(path, NULL, 1).status, KAKEYA_FORMAT, "made from other weights");
        data[at] = (char)(data[at] ^ 1);
        scratch_write(weights, data, bytes);
        free(data);
    }
}

static void test_refusals(void **state) {
    (void)state;
    char path[512]; /* what scratch_path gives does not last */
    snprintf(path, sizeof path, "%s", copied("bad.gguf"));
    const char *tiles = scratch_path("bad.gguf.tiles");
    enum { HEADER = 16, RECORD = 40 };
    char *data;
    size_t bytes;
    assert_ok(make_tiles(path, tiles, 1));
    assert_ok(file_read(tiles, 1 << 20, &data, &bytes, &error));
    /* every byte of the header, whatever it says */
    uint32_t n;
    memcpy(&n, data + 12, sizeof n);
    for (size_t i = 0; i < HEADER + n * RECORD; i++) {
        data[i] = (char)(data[i] ^ 0x81);
        scratch_write("bad.gguf.tiles", data, bytes);
        assert_refused(load(path, NULL, 1).status, KAKEYA_FORMAT,
                       i < 8    ? "is not a file of tiles"
                       : i < 12 ? "another version"
                                : "made from other weights");
        data[i] = (char)(data[i] ^ 0x81);
    }
    static const size_t cut[] = {0, 1, 15, 16, 17, 200, 4095, 4096};
    for (size_t i = 0; i < sizeof cut / sizeof cut[0]; i++) {
        scratch_write("bad.gguf.tiles", data, cut[i]);
        assert_refused(load(path, NULL, 1).status, KAKEYA_FORMAT, "remove it, and make it again");
    }
    scratch_write("bad.gguf.tiles", data, bytes - 1);
    assert_refused(load(path, NULL, 1).status, KAKEYA_FORMAT, "is not complete");
    scratch_write("bad.gguf.tiles", data, bytes);
    loaded whole = load(path, NULL, 1);
    assert_ok(whole.status);
    free(whole.logits);
    free(data);

    /* the weights changed behind it */
    char *model;
    size_t model_bytes;
    assert_ok(file_read(path, 1 << 20, &model, &model_bytes, &error));
    size_t changed = 0;
    for (size_t i = model_bytes / 2; i < model_bytes; i += 997) {
        model[i] = (char)(model[i] ^ 1);
        scratch_write("bad.gguf", model, model_bytes);
        loaded out = load(path, NULL, 1);
        changed += out.status == KAKEYA_FORMAT;
        free(out.logits);
        model[i] = (char)(model[i] ^ 1);
    }
    assert_true(changed > 20); /* the router, norms and padding are not in tiles */
    free(model);
}

static void test_what_cannot_be_made(void **state) {
    (void)state;
    const char *out = scratch_path("none.tiles");
    assert_refused(make_tiles(KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense", out, 1), KAKEYA_UNSUPPORTED,
                   "the model has no weights for tiles");
    assert_refused(make_tiles(scratch_path("nowhere"), out, 1), KAKEYA_IO, "nowhere");
    assert_refused(make_tiles(MICRO, scratch_path("no/folder"), 1), KAKEYA_IO, "no/folder");
    convert_report report;
    const convert_options with_head = {.to = CONVERT_TILES, .head = "q8_0"};
    assert_refused(convert_model(MICRO, out, &with_head, &report, &error), KAKEYA_INVALID_ARGUMENT, "no option");
    assert_false(file_exists(out));
}

static bool stop(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)total;
    return done < *(const uint64_t *)user;
}

static void test_cancelled(void **state) {
    (void)state;
    uint64_t most = 1;
    convert_report report;
    const convert_options options = {.to = CONVERT_TILES, .progress = stop, .user = &most};
    const char *out = scratch_path("cancelled.tiles");
    assert_refused(convert_model(MICRO, out, &options, &report, &error), KAKEYA_CANCELLED, "cancelled");
    assert_false(file_exists(out));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_tiles),          cmocka_unit_test(test_directory), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_what_cannot_be_made), cmocka_unit_test(test_cancelled),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
