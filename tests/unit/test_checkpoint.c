/* Protects: shards by index, refusal of every broken directory, and offline lookup of model names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <utime.h>

#include "formats/checkpoint.h"
#include "scratch.h"

static kakeya_error error;
static mem_account account;

#define TENSOR(name) "{\"" name "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"

/* A directory "d" with two shards and an index of this weight_map. */
static kakeya_status open_indexed(const char *weight_map, checkpoint **out) {
    scratch_folder("d");
    scratch_text("d/config.json", "{}");
    scratch_safetensors("d/one.safetensors", TENSOR("a"), 4);
    scratch_safetensors("d/two.safetensors", TENSOR("b"), 4);
    scratch_safetensors("d/again.safetensors", TENSOR("a"), 4);
    char index[512];
    snprintf(index, sizeof index, "{\"weight_map\": %s}", weight_map);
    scratch_text("d/model.safetensors.index.json", index);
    return checkpoint_open(scratch_path("d"), "config.json", "model.safetensors", out, &error);
}

static kakeya_status refuse_indexed(const char *weight_map) {
    checkpoint *ck;
    kakeya_status status = open_indexed(weight_map, &ck);
    checkpoint_close(ck);
    return status;
}

static void test_shards(void **state) {
    (void)state;
    checkpoint *ck;
    assert_ok(open_indexed("{\"a\": \"one.safetensors\", \"b\": \"two.safetensors\"}", &ck));
    assert_int_equal(ck->n_shards, 2);
    assert_int_equal(ck->n_tensors, 2);
    assert_string_equal(ck->config, "{}");
    assert_null(ck->generation_config);
    assert_string_equal(ck->tensors[checkpoint_find(ck, "b")]->name, "b");
    assert_int_equal(checkpoint_find(ck, "c"), -1);
    checkpoint_prefetch(ck);
    checkpoint_close(ck);
    checkpoint_close(NULL);

    assert_refused(refuse_indexed("{\"a\": \"three.safetensors\"}"), KAKEYA_IO, "index.json", "three.safetensors",
                   "not in the directory");
    assert_refused(refuse_indexed("{\"c\": \"one.safetensors\"}"), KAKEYA_FORMAT,
                   "tensor c is not in its shard one.safetensors");
    assert_refused(refuse_indexed("{\"a\": \"two.safetensors\"}"), KAKEYA_FORMAT,
                   "tensor a is not in its shard two.safetensors");
    assert_refused(refuse_indexed("{\"a\": \"again.safetensors\", \"a\": \"one.safetensors\"}"), KAKEYA_FORMAT,
                   "tensor a is also in");
    assert_refused(refuse_indexed("{\"a\": \"../d/one.safetensors\"}"), KAKEYA_FORMAT, "../d/one.safetensors",
                   "not a file name");
    assert_refused(refuse_indexed("{\"a\": \"/etc/passwd\"}"), KAKEYA_FORMAT, "not a file name");
    assert_refused(refuse_indexed("{\"a\": \"..\"}"), KAKEYA_FORMAT, "not a file name");
    assert_refused(refuse_indexed("{\"a\": \"\"}"), KAKEYA_FORMAT, "not a file name");
    assert_refused(refuse_indexed("{\"a\": 1}"), KAKEYA_FORMAT, "entry a is not a file name");
    assert_refused(refuse_indexed("[]"), KAKEYA_FORMAT, "weight_map");
    assert_refused(refuse_indexed("{"), KAKEYA_FORMAT, "index.json", "malformed JSON at line 1");
}

static kakeya_status open_plain(const char *folder) {
    checkpoint *ck;
    kakeya_status status = checkpoint_open(scratch_path(folder), "config.json", "model.safetensors", &ck, &error);
    checkpoint_close(ck);
    return status;
}

static void test_single(void **state) {
    (void)state;
    assert_refused(open_plain("nowhere"), KAKEYA_IO, "nowhere", "no such directory");
    scratch_folder("s");
    assert_refused(open_plain("s"), KAKEYA_IO, "s/config.json");
    scratch_text("s/config.json", "{}");
    assert_refused(open_plain("s"), KAKEYA_IO, "neither model.safetensors nor model.safetensors.index.json");
    scratch_safetensors("s/model.safetensors", TENSOR("a"), 3);
    assert_refused(open_plain("s"), KAKEYA_FORMAT, "s/model.safetensors", "tensor a");
    scratch_safetensors("s/model.safetensors", TENSOR("a"), 4);
    scratch_text("s/generation_config.json", "{\"top_k\": 64}");
    checkpoint *ck;
    assert_ok(checkpoint_open(scratch_path("s"), "config.json", "model.safetensors", &ck, &error));
    assert_string_equal(ck->generation_config, "{\"top_k\": 64}");
    assert_int_equal(ck->generation_config_bytes, 13);
    checkpoint_close(ck);
}

/* The format promises no alignment; what is unaligned is copied once, what is aligned never. */
static void test_alignment(void **state) {
    (void)state;
    scratch_folder("u");
    scratch_text("u/config.json", "{}");
    for (int shift = 0; shift < 4; shift++) {
        char header[128];
        snprintf(header, sizeof header, "%s%*s", TENSOR("a"), (int)((68 - strlen(TENSOR("a")) % 4) % 4 + (size_t)shift),
                 "");
        scratch_safetensors("u/model.safetensors", header, 4);
        bool aligned = strlen(header) % 4 == 0;
        checkpoint *ck;
        assert_ok(checkpoint_open(scratch_path("u"), "config.json", "model.safetensors", &ck, &error));
        const void *data;
        assert_ok(checkpoint_aligned(ck, ck->tensors[0], &account, &data, &error));
        assert_int_equal((uintptr_t)data % 4, 0);
        assert_memory_equal(data, "\0\1\2\3", 4);
        assert_true((data == ck->tensors[0]->data) == aligned);
        assert_int_equal(mem_bytes(&account, MEM_WEIGHTS), aligned ? 0 : 64);
        checkpoint_close(ck);
        assert_int_equal(mem_total(&account), 0);
    }
}

static kakeya_status resolve(const char *name, const char *expected) {
    char *directory;
    kakeya_status status = checkpoint_resolve(name, &directory, &error);
    assert_true((status == KAKEYA_OK) == (directory != NULL));
    if (directory && expected) assert_string_equal(directory, scratch_path(expected));
    free(directory);
    return status;
}

static void test_resolve(void **state) {
    (void)state;
    scratch_folder("hub/models--org--model/snapshots/old");
    scratch_folder("hub/models--org--model/snapshots/new");
    scratch_folder("home/hub/models--org--home/snapshots/only");
    scratch_folder("user/.cache/huggingface/hub/models--bare/snapshots/x");
    scratch_folder("hub/models--org--empty/snapshots");
    utime(scratch_path("hub/models--org--model/snapshots/old"), &(struct utimbuf){1000, 1000});
    setenv("HF_HUB_CACHE", scratch_path("hub"), 1);
    setenv("HF_HOME", scratch_path("home"), 1);
    setenv("HOME", scratch_path("user"), 1);

    assert_ok(resolve("org/model", "hub/models--org--model/snapshots/new"));
    scratch_folder("hub/models--org--model/refs");
    scratch_text("hub/models--org--model/refs/main", "old\n");
    assert_ok(resolve("org/model", "hub/models--org--model/snapshots/old"));
    scratch_text("hub/models--org--model/refs/main", "gone"); /* names no snapshot: the newest one serves */
    assert_ok(resolve("org/model", "hub/models--org--model/snapshots/new"));
    scratch_text("hub/models--org--model/refs/main", "../../x");
    assert_ok(resolve("org/model", "hub/models--org--model/snapshots/new"));
    assert_ok(resolve("org/home", "home/hub/models--org--home/snapshots/only"));
    assert_ok(resolve("bare", "user/.cache/huggingface/hub/models--bare/snapshots/x"));
    assert_ok(resolve(scratch_path("hub"), "hub")); /* a directory is taken as it is */

    assert_refused(resolve("org/other", NULL), KAKEYA_IO, "org/other", scratch_path("hub/models--org--other"),
                   scratch_path("user/.cache/huggingface/hub/models--org--other"));
    assert_refused(resolve("org/empty", NULL), KAKEYA_IO, "org/empty", "looked in");
    assert_refused(resolve("../hub/none", NULL), KAKEYA_IO, "../hub/none: no such directory");
    assert_refused(resolve("a/b/c", NULL), KAKEYA_IO, "a/b/c: no such directory");
    assert_refused(resolve("", NULL), KAKEYA_IO, "no such directory");
    assert_refused(resolve(scratch_text("file", "x"), NULL), KAKEYA_INVALID_ARGUMENT, "a model is a directory");
    unsetenv("HF_HUB_CACHE");
    unsetenv("HF_HOME");
    unsetenv("HOME");
    assert_refused(resolve("org/model", NULL), KAKEYA_IO, "HF_HUB_CACHE, HF_HOME and HOME are not set");
}

int main(void) {
    mem_account_init(&account, NULL, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_single),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_resolve),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
