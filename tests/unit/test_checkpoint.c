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
    scratch_safetensors("d/again.safetensors",
                        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                        "\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                        8);
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
                   "the key \"a\" appears twice");
    assert_refused(refuse_indexed("{\"a\": \"one.safetensors\", \"c\": \"again.safetensors\"}"), KAKEYA_FORMAT,
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

/* transformers saves a single file into a directory and leaves an older index where it is. */
static void test_single_file_wins_over_index(void **state) {
    (void)state;
    scratch_folder("both");
    scratch_text("both/config.json", "{}");
    scratch_safetensors("both/model.safetensors", TENSOR("new"), 4);
    scratch_safetensors("both/old.safetensors", TENSOR("old"), 4);
    scratch_text("both/model.safetensors.index.json", "{\"weight_map\": {\"old\": \"old.safetensors\"}}");
    checkpoint *ck;
    assert_ok(checkpoint_open(scratch_path("both"), "config.json", "model.safetensors", &ck, &error));
    assert_int_equal(ck->n_tensors, 1);
    assert_string_equal(ck->tensors[0]->name, "new");
    checkpoint_close(ck);
    scratch_text("both/model.safetensors.index.json", "{\"weight_map\": {\"gone\": \"gone.safetensors\"}}");
    assert_ok(open_plain("both"));
}

static const char lfs_pointer[] =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:cc8d3a0ce36466ccc1278bf987df5f71db1719b9ca6b4118264f45cb627bfe0f\nsize 32169626\n";

/* What is found in the place of a checkpoint's files is called by its name. */
static void test_foreign_files(void **state) {
    (void)state;
    scratch_folder("f");
    scratch_text("f/config.json", lfs_pointer);
    assert_refused(open_plain("f"), KAKEYA_FORMAT, "f/config.json", "Git LFS pointer", "git lfs pull");
    scratch_text("f/config.json", "{}");
    scratch_text("f/generation_config.json", lfs_pointer);
    assert_refused(open_plain("f"), KAKEYA_FORMAT, "f/generation_config.json", "Git LFS pointer");
    scratch_text("f/generation_config.json", "{}");
    scratch_text("f/model.safetensors.index.json", lfs_pointer);
    assert_refused(open_plain("f"), KAKEYA_FORMAT, "f/model.safetensors.index.json", "Git LFS pointer");
    scratch_text("f/model.safetensors.index.json", "{\"weight_map\": {\"a\": \"one.bin\"}}");
    scratch_write("f/one.bin", "PK\3\4\0\0\0\0\0\0\0\0", 12);
    assert_refused(open_plain("f"), KAKEYA_FORMAT, "f/one.bin", "PyTorch checkpoint", "safetensors");

    static const struct {
        const char *bytes;
        size_t n;
        const char *first, *second;
    } cases[] = {
        {lfs_pointer, sizeof lfs_pointer - 1, "Git LFS pointer", "git lfs pull"},
        {"<!DOCTYPE html><html>", 21, "web page", "download"},
        {"<html><body>401</body>", 22, "web page", "download"},
        {"PK\3\4\0\0\0\0\0\0\0\0", 12, "PyTorch checkpoint", "save_pretrained"},
        {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9", 9, "PyTorch checkpoint", "save_pretrained"},
        {"GGUF\3\0\0\0", 8, "GGUF", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        scratch_write("f/model.safetensors", cases[i].bytes, cases[i].n);
        assert_refused(open_plain("f"), KAKEYA_FORMAT, "f/model.safetensors", cases[i].first, cases[i].second);
    }
    /* a header of 0x280 bytes begins as a pickle does */
    char header[0x280 + 1];
    snprintf(header, sizeof header, "%-640s", TENSOR("a"));
    scratch_safetensors("f/model.safetensors", header, 4);
    assert_ok(open_plain("f"));

    static const char *const pickled[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    for (int i = 0; i < 2; i++) {
        char folder[16], name[64];
        snprintf(folder, sizeof folder, "p%d", i);
        scratch_folder(folder);
        snprintf(name, sizeof name, "%s/config.json", folder);
        scratch_text(name, "{}");
        snprintf(name, sizeof name, "%s/%s", folder, pickled[i]);
        scratch_text(name, "{}");
        assert_refused(open_plain(folder), KAKEYA_UNSUPPORTED, folder, pickled[i], "convert it to safetensors");
    }
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
    assert_refused(resolve("", NULL), KAKEYA_INVALID_ARGUMENT, "the path of the model is empty");
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
        cmocka_unit_test(test_single_file_wins_over_index),
        cmocka_unit_test(test_foreign_files),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_resolve),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
