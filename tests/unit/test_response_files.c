/* Stored responses in files: byte for byte what they were, found by later servers and by those that share the
 * directory, bounded, refused when damaged; and the key of sealed reasoning, made once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>

#include "serve/response_store.h"
#include "serve/seal_file.h"
#include "serve/state_file.h"

#include "scratch.h"

static text_buffer text(const char *t) {
    text_buffer out = {0};
    text_add(&out, t);
    return out;
}

static int open_scratch(const char *name) {
    kakeya_error error;
    int directory = state_directory(scratch_path(name), &error);
    if (directory < 0) fail_msg("%s", error.message);
    return directory;
}

static size_t files_in(const char *path, const char *part) {
    size_t n = 0;
    DIR *list = opendir(path);
    assert_non_null(list);
    for (struct dirent *e; (e = readdir(list)) != NULL;) n += strstr(e->d_name, part) != NULL;
    closedir(list);
    return n;
}

typedef struct lines {
    pthread_mutex_t lock;
    size_t n;
} lines;

static void hear(void *user, const char *line) {
    lines *l = user;
    (void)line;
    pthread_mutex_lock(&l->lock);
    l->n++;
    pthread_mutex_unlock(&l->lock);
}

static response_store *open_store(const char *path, size_t entries, size_t bytes, double seconds, lines *heard) {
    kakeya_error error;
    response_disk *disk;
    response_store *s = response_store_open(entries, bytes, seconds);
    assert_non_null(s);
    if (response_disk_open(path, heard ? hear : NULL, heard, &disk, &error)) fail_msg("%s", error.message);
    response_store_use(s, disk);
    return s;
}

static void nothing(void *user) { (void)user; }

static void put(response_store *s, const char *id, unsigned long long owner, const char *previous, const char *said) {
    char items[200], object[400];
    snprintf(items, sizeof items, "[{\"id\":\"msg_of_%s\",\"text\":\"%s\"}]", id, said);
    snprintf(object, sizeof object, "{\"id\":\"%s\",\"output\":%s}", id, items);
    response_texts texts = {.object = text("{\"status\":\"in_progress\"}"), .input = text("[{\"id\":\"in_1\"}]")};
    snprintf(texts.previous, sizeof texts.previous, "%s", previous);
    response_entry *e = response_store_begin(s, id, owner, true, &texts, nothing, NULL);
    text_buffer whole = text(object), output = text(items);
    response_store_end(s, e, &whole, &output);
}

static bool has(response_store *s, const char *id, unsigned long long owner, const char *previous, const char *said) {
    response_texts texts;
    if (!response_store_get(s, id, owner, &texts)) return false;
    assert_string_equal(texts.previous, previous);
    assert_non_null(strstr(texts.object.data, said));
    assert_non_null(strstr(texts.output.data, said));
    assert_string_equal(texts.input.data, "[{\"id\":\"in_1\"}]");
    response_texts_free(&texts);
    return true;
}

/* -------------------------------------------------------------------------------------------------------- one file */

static const char id[] = "resp_0123456789abcdefghijABCD";

static response_record a_record(void) {
    response_record r = {.owner = 0xfedcba9876543210, .ended_ms = 1700000000123};
    snprintf(r.id, sizeof r.id, "%s", id);
    snprintf(r.texts.previous, sizeof r.texts.previous, "resp_zzz");
    r.texts.object = text("{\"a\":\"\xc3\xa4\\n\"}");
    r.texts.input = text("[]");
    r.texts.output = text("[1,2,3]");
    return r;
}

static void test_one_file(void **state) {
    (void)state;
    kakeya_error error;
    int directory = open_scratch("one");
    char name[RESPONSE_NAME_BYTES];
    response_record wrote = a_record(), read;
    assert_true(response_file_name(id, name));
    assert_int_equal(response_file_read(directory, name, &read, &error), KAKEYA_CANCELLED);
    if (response_file_write(directory, &wrote, &error)) fail_msg("%s", error.message);
    struct stat about;
    assert_int_equal(fstatat(directory, name, &about, 0), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    if (response_file_read(directory, name, &read, &error)) fail_msg("%s", error.message);
    assert_string_equal(read.id, id);
    assert_true(read.owner == wrote.owner && read.ended_ms == wrote.ended_ms);
    assert_string_equal(read.texts.previous, "resp_zzz");
    assert_string_equal(read.texts.object.data, wrote.texts.object.data);
    assert_string_equal(read.texts.input.data, "[]");
    assert_string_equal(read.texts.output.data, "[1,2,3]");
    response_texts_free(&read.texts);
    response_texts_free(&wrote.texts);
    /* every byte counts, and so does every length */
    char *data;
    size_t bytes;
    if (state_file_read(directory, name, 1 << 20, &data, &bytes, &error)) fail_msg("%s", error.message);
    for (size_t i = 0; i < 2 * bytes; i++) {
        size_t at = i % bytes, kept = i < bytes ? bytes : at;
        data[at] ^= 4;
        if (state_file_write(directory, name, data, kept, false, &error)) fail_msg("%s", error.message);
        data[at] ^= 4;
        if (response_file_read(directory, name, &read, &error) != KAKEYA_FORMAT) fail_msg("damage at %zu", i);
        assert_null(read.texts.object.data);
    }
    /* a copy under another name is none */
    if (state_file_write(directory, "resp_1.kkr", data, bytes, false, &error)) fail_msg("%s", error.message);
    assert_int_equal(response_file_read(directory, "resp_1.kkr", &read, &error), KAKEYA_FORMAT);
    free(data);
    assert_int_equal(unlinkat(directory, "resp_1.kkr", 0), 0);
    assert_int_equal(symlinkat(name, directory, "resp_1.kkr"), 0);
    assert_int_equal(response_file_read(directory, "resp_1.kkr", &read, &error), KAKEYA_IO);
    close(directory);
}

static void test_names(void **state) {
    (void)state;
    static const char *const wrong[] = {"",          "resp_",    "../resp_a",
                                        "resp_../a", "resp_a/b", "resp_a.b",
                                        "msg_a",     "resp_ a",  "resp_0123456789012345678901234567890123456789"};
    char name[RESPONSE_NAME_BYTES], back[RESPONSE_ID_BYTES];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char file[100];
        snprintf(file, sizeof file, "%s.kkr", wrong[i]);
        if (response_file_name(wrong[i], name) || response_file_id(file, back)) fail_msg("%s", wrong[i]);
    }
    assert_true(response_file_name("resp_aZ9", name));
    assert_string_equal(name, "resp_aZ9.kkr");
    assert_true(response_file_id(name, back));
    assert_string_equal(back, "resp_aZ9");
    assert_false(response_file_id("resp_aZ9.kkr.bad", back));
    assert_false(response_file_id(".tmp-1-resp_aZ9.kkr", back));
}

/* ------------------------------------------------------------------------------------------------- several servers */

static void test_restart(void **state) {
    (void)state;
    const char *path = scratch_path("restart");
    response_store *s = open_store(path, 100, 1 << 20, 1e9, NULL);
    put(s, "resp_a", 1, "", "first");
    put(s, "resp_b", 1, "resp_a", "second");
    put(s, "resp_c", 2, "", "theirs");
    put(s, "resp_d", 1, "", "deleted");
    assert_int_equal(response_store_delete(s, "resp_d", 1), RESPONSE_ENDED);
    response_store_close(s);
    assert_int_equal(files_in(path, ".kkr"), 3);
    assert_int_equal(files_in(path, ".tmp"), 0);
    s = open_store(path, 100, 1 << 20, 1e9, NULL);
    assert_int_equal(response_store_size(s), 3);
    assert_true(has(s, "resp_a", 1, "", "first"));
    assert_true(has(s, "resp_b", 1, "resp_a", "second"));
    assert_false(has(s, "resp_c", 1, "", "theirs"));
    assert_true(has(s, "resp_c", 2, "", "theirs"));
    assert_false(has(s, "resp_d", 1, "", "deleted"));
    assert_int_equal(response_store_delete(s, "resp_c", 1), RESPONSE_UNKNOWN);
    cJSON *item = response_store_item(s, 1, "msg_of_resp_b");
    assert_non_null(item);
    cJSON_Delete(item);
    assert_null(response_store_item(s, 2, "msg_of_resp_b"));
    /* what is deleted after a restart has no file either */
    assert_int_equal(response_store_delete(s, "resp_b", 1), RESPONSE_ENDED);
    assert_int_equal(files_in(path, ".kkr"), 2);
    /* where the directory goes, memory stays */
    assert_int_equal(unlinkat(AT_FDCWD, scratch_path("restart/resp_a.kkr"), 0), 0);
    assert_int_equal(unlinkat(AT_FDCWD, scratch_path("restart/resp_c.kkr"), 0), 0);
    assert_int_equal(rmdir(path), 0);
    assert_true(has(s, "resp_a", 1, "", "first"));
    put(s, "resp_e", 1, "", "later");
    assert_true(has(s, "resp_e", 1, "", "later"));
    response_store_close(s);
}

/* Two servers on one directory: each finds what the other has stored, and nothing that it has deleted. */
static void test_shared(void **state) {
    (void)state;
    const char *path = scratch_path("shared");
    response_store *a = open_store(path, 100, 1 << 20, 1e9, NULL), *b = open_store(path, 100, 1 << 20, 1e9, NULL);
    char name[20];
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "resp_%d", i);
        put(i % 2 ? a : b, name, 1, "", "said");
    }
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "resp_%d", i);
        response_store *other = i % 2 ? b : a;
        for (int tries = 0; !has(other, name, 1, "", "said"); tries++) {
            if (tries > 100000) fail_msg("%s is not found by the other", name);
            usleep(1000);
        }
    }
    assert_int_equal(response_store_delete(a, "resp_0", 1), RESPONSE_ENDED); /* b has stored it */
    assert_false(has(a, "resp_0", 1, "", "said"));
    assert_false(has(b, "resp_0", 1, "", "said"));
    put(a, "resp_x", 1, "", "new");
    cJSON *item = NULL;
    for (int tries = 0; !item && tries < 100000; tries++) {
        item = response_store_item(b, 1, "msg_of_resp_x");
        if (!item) usleep(1000);
    }
    assert_non_null(item);
    cJSON_Delete(item);
    response_store_close(a);
    response_store_close(b);
    assert_int_equal(files_in(path, ".kkr"), 20);
}

/* The newest stay: by number, by bytes, by age. Files of others count once they are read. */
static void test_limits(void **state) {
    (void)state;
    const char *path = scratch_path("limits");
    response_store *s = open_store(path, 5, 1 << 20, 1e9, NULL);
    char name[20];
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof name, "resp_%d", i);
        put(s, name, 1, "", "said");
        usleep(2000); /* ages are told in milliseconds */
    }
    response_store_close(s);
    assert_int_equal(files_in(path, ".kkr"), 5);
    int directory = open(path, O_RDONLY | O_DIRECTORY);
    for (int i = 7; i < 12; i++) { /* one a second */
        snprintf(name, sizeof name, "resp_%d.kkr", i);
        const struct timespec times[2] = {{.tv_sec = 1000 + i}, {.tv_sec = 1000 + i}};
        assert_int_equal(utimensat(directory, name, times, 0), 0);
    }
    s = open_store(path, 3, 1 << 20, 1e9, NULL);
    assert_int_equal(response_store_size(s), 3);
    assert_false(has(s, "resp_8", 1, "", "said"));
    assert_true(has(s, "resp_9", 1, "", "said"));
    response_store_close(s);
    assert_int_equal(files_in(path, ".kkr"), 3);
    s = open_store(path, 100, 1000, 1e9, NULL);
    assert_in_range(response_store_size(s), 1, 2);
    assert_true(has(s, "resp_11", 1, "", "said"));
    response_store_close(s);
    /* ended 30 days ago */
    response_record old = {.owner = 1, .ended_ms = (uint64_t)(time(NULL) - 31 * 24 * 3600) * 1000};
    snprintf(old.id, sizeof old.id, "resp_old");
    old.texts.object = text("{}");
    assert_int_equal(response_file_write(directory, &old, NULL), KAKEYA_OK);
    response_texts_free(&old.texts);
    s = open_store(path, 100, 1 << 20, RESPONSE_STORE_SECONDS, NULL);
    assert_false(has(s, "resp_old", 1, "", "{}"));
    assert_true(has(s, "resp_11", 1, "", "said"));
    response_store_close(s);
    assert_int_equal(files_in(path, "resp_old"), 0);
    close(directory);
}

static void test_damaged(void **state) {
    (void)state;
    const char *path = scratch_path("damaged");
    response_store *s = open_store(path, 5, 1 << 20, 1e9, NULL);
    put(s, "resp_a", 1, "", "first");
    put(s, "resp_b", 1, "", "second");
    response_store_close(s);
    int directory = open(path, O_RDONLY | O_DIRECTORY);
    kakeya_error error;
    assert_int_equal(state_file_write(directory, "resp_a.kkr", "kakeya-response 1 resp_a\n", 25, false, &error),
                     KAKEYA_OK);
    assert_int_equal(state_file_write(directory, "resp_c.kkr", "", 0, false, &error), KAKEYA_OK);
    lines heard = {.lock = PTHREAD_MUTEX_INITIALIZER};
    s = open_store(path, 5, 1 << 20, 1e9, &heard);
    assert_int_equal(heard.n, 2);
    assert_int_equal(files_in(path, ".kkr.bad"), 2);
    assert_false(has(s, "resp_a", 1, "", "first"));
    assert_true(has(s, "resp_b", 1, "", "second"));
    response_store_close(s);
    close(directory);
}

/* ------------------------------------------------------------------------------------------------------- the key */

static const char *keys;

static void *open_key(void *user) {
    kakeya_error error;
    reasoning_seal *seal = user;
    return seal_file_open(keys, seal, &error) == KAKEYA_OK ? seal : NULL;
}

/* Servers that start together have one key; a damaged file is no key. */
static void test_key(void **state) {
    (void)state;
    enum { SERVERS = 6 };
    reasoning_seal seals[SERVERS], after;
    pthread_t threads[SERVERS];
    kakeya_error error;
    const char *path = keys = scratch_path("keys");
    for (int round = 0; round < 2; round++) {
        memset(seals, 0, sizeof seals);
        for (int i = 0; i < SERVERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, open_key, &seals[i]), 0);
        for (int i = 0; i < SERVERS; i++) {
            void *good;
            pthread_join(threads[i], &good);
            assert_non_null(good);
            assert_memory_equal(seals[i].key, seals[0].key, SEAL_KEY_BYTES);
        }
        if (round) assert_memory_equal(seals[0].key, after.key, SEAL_KEY_BYTES);
        after = seals[0];
    }
    static const unsigned char zeros[SEAL_KEY_BYTES];
    assert_memory_not_equal(after.key, zeros, SEAL_KEY_BYTES);
    struct stat about;
    char file[600];
    snprintf(file, sizeof file, "%s/" SEAL_FILE_NAME, path);
    assert_int_equal(stat(file, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    assert_int_equal(about.st_nlink, 1);
    assert_int_equal(truncate(file, 31), 0);
    reasoning_seal fresh;
    assert_int_equal(seal_file_open(path, &fresh, &error), KAKEYA_OK);
    assert_memory_not_equal(fresh.key, after.key, SEAL_KEY_BYTES);
    assert_int_equal(files_in(path, "seal.key.bad"), 1);
    assert_int_equal(files_in(path, ".tmp"), 0);
    assert_int_equal(seal_file_open(path, &after, &error), KAKEYA_OK);
    assert_memory_equal(fresh.key, after.key, SEAL_KEY_BYTES);
    assert_int_equal(seal_file_open(file, &after, &error), KAKEYA_IO); /* not a directory */
    assert_memory_equal(fresh.key, after.key, SEAL_KEY_BYTES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_file), cmocka_unit_test(test_names),  cmocka_unit_test(test_restart),
        cmocka_unit_test(test_shared),   cmocka_unit_test(test_limits), cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_key),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
