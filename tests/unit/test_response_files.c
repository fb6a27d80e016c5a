/* Stored responses in a directory: byte for byte what they were, found by later servers and by those that share it,
 * bounded, refused when damaged, there after kill -9; and the key of sealed reasoning, made once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "serve/response_store.h"

#include "scratch.h"

static const response_limits many = {.entries = 100, .bytes = 1 << 20, .seconds = 1e9};

static text_buffer text(const char *t) {
    text_buffer out = {0};
    text_add(&out, t);
    return out;
}

static const char *file_of(const char *path, const char *name) {
    static char file[700];
    snprintf(file, sizeof file, "%s/%s", path, name);
    return file;
}

static bool is_there(const char *path, const char *name) { return access(file_of(path, name), F_OK) == 0; }

typedef struct lines {
    pthread_mutex_t lock;
    size_t n;
    char last[2000];
} lines;

static void hear(void *user, const char *line) {
    lines *l = user;
    pthread_mutex_lock(&l->lock);
    l->n++;
    snprintf(l->last, sizeof l->last, "%s", line);
    pthread_mutex_unlock(&l->lock);
}

static response_store *open_store(const char *path, size_t entries, size_t bytes, double seconds, lines *heard) {
    kakeya_error error;
    reasoning_seal seal;
    response_store *s = response_store_open(entries, bytes, seconds);
    assert_non_null(s);
    if (response_store_use(s, path, heard ? hear : NULL, heard, &seal, &error)) fail_msg("%s", error.message);
    return s;
}

static response_table *open_table(const char *path, lines *heard) {
    kakeya_error error;
    response_table *t;
    if (response_table_open(path, many, heard ? hear : NULL, heard, &t, &error)) fail_msg("%s", error.message);
    return t;
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

/* --------------------------------------------------------------------------------------------------- one response */

static const char id[] = "resp_0123456789abcdefghijABCD";
static const unsigned long long owner = 0xfedcba9876543210;

/* Whether it is there; where it is, it is what was put. */
static bool is_whole(response_table *t) {
    response_texts read;
    if (!response_table_get(t, id, owner, &read)) return false;
    assert_string_equal(read.previous, "resp_zzz");
    assert_string_equal(read.object.data, "{\"a\":\"\xc3\xa4\\n\"}");
    assert_string_equal(read.input.data, "[7, {\"id\":5}, {\"id\":\"in\",\"text\":\"\\u0000\"}]");
    assert_string_equal(read.output.data, "no JSON");
    response_texts_free(&read);
    return true;
}

static void test_one_response(void **state) {
    (void)state;
    kakeya_error error;
    char path[600];
    snprintf(path, sizeof path, "%s", scratch_path("one"));
    response_table *t = open_table(path, NULL);
    response_texts wrote = {.object = text("{\"a\":\"\xc3\xa4\\n\"}"),
                            .input = text("[7, {\"id\":5}, {\"id\":\"in\",\"text\":\"\\u0000\"}]"),
                            .output = text("no JSON"),
                            .previous = "resp_zzz"},
                   read;
    assert_false(is_whole(t));
    if (response_table_put(t, id, owner, response_now_ms(), &wrote, &error)) fail_msg("%s", error.message);
    assert_true(is_whole(t));
    assert_false(response_table_get(t, id, 1, &read));
    assert_false(response_table_with_item(t, "5", owner, &read) || response_table_with_item(t, "in", 1, &read));
    assert_true(response_table_with_item(t, "in", owner, &read));
    response_texts_free(&read);
    response_texts_free(&wrote);
    response_table_close(t);
    struct stat about;
    assert_int_equal(stat(file_of(path, "state.db"), &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0700);
    /* What is damaged is never used: every byte of the row, and others. */
    size_t bytes, bad = 0, gone = 0, row;
    char *data = scratch_read(file_of(path, "state.db"), &bytes);
    for (row = 0; memcmp(data + row, "resp_zzz", 8) != 0; row++) assert_in_range(row, 0, bytes);
    lines heard = {.lock = PTHREAD_MUTEX_INITIALIZER};
    for (size_t at = 0; at<bytes; at += at + 80> row && at < row + 90 ? 1 : 97) {
        data[at] ^= 4;
        scratch_write("one/state.db", data, bytes);
        data[at] ^= 4;
        t = open_table(path, &heard);
        if (!is_whole(t)) gone++;
        response_table_close(t);
        bad += is_there(path, "state.db.bad");
        (void)unlink(file_of(path, "state.db.bad"));
    }
    assert_in_range(gone, 80, bytes);
    assert_in_range(bad, 1, heard.n);
    free(data);
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
    lines heard = {.lock = PTHREAD_MUTEX_INITIALIZER};
    s = open_store(path, 100, 1 << 20, 1e9, &heard);
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
    /* what is deleted after a restart is deleted for good, and its text is not in the file any more */
    assert_int_equal(response_store_delete(s, "resp_b", 1), RESPONSE_ENDED);
    assert_null(response_store_item(s, 1, "msg_of_resp_b"));
    size_t bytes;
    char *data = scratch_read(file_of(path, "state.db"), &bytes);
    assert_non_null(memmem(data, bytes, "first", 5));
    assert_null(memmem(data, bytes, "second", 6));
    free(data);
    /* where the directory goes, what was read stays known, and memory takes the rest */
    (void)unlink(file_of(path, "state.db-journal"));
    assert_int_equal(unlink(file_of(path, "state.db")), 0);
    assert_int_equal(rmdir(path), 0);
    assert_true(has(s, "resp_a", 1, "", "first"));
    put(s, "resp_e", 1, "", "later");
    assert_true(has(s, "resp_e", 1, "", "later"));
    assert_int_equal(response_store_size(s), 3);
    assert_true(has(s, "resp_e", 1, "", "later"));
    put(s, "resp_f", 1, "", "later");
    assert_int_equal(response_store_size(s), 4);
    assert_int_equal(heard.n, 1); /* not one for each */
    assert_non_null(strstr(heard.last, "state.db"));
    /* where it is there again, it is used again */
    assert_int_equal(mkdir(path, 0700), 0);
    put(s, "resp_g", 1, "", "again");
    assert_int_equal(response_store_size(s), 3);
    assert_false(has(s, "resp_a", 1, "", "first"));
    response_store_close(s);
    s = open_store(path, 100, 1 << 20, 1e9, NULL);
    assert_int_equal(response_store_size(s), 1);
    assert_true(has(s, "resp_g", 1, "", "again"));
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
    (void)response_store_size(a);
    assert_int_equal(response_store_size(b), 20);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "resp_%d", i);
        if (!has(i % 2 ? b : a, name, 1, "", "said")) fail_msg("%s is not found by the other", name);
    }
    assert_int_equal(response_store_delete(a, "resp_0", 1), RESPONSE_ENDED); /* b has stored it */
    assert_false(has(a, "resp_0", 1, "", "said"));
    assert_false(has(b, "resp_0", 1, "", "said"));
    put(a, "resp_x", 1, "", "new");
    (void)response_store_size(a);
    cJSON *item = response_store_item(b, 1, "msg_of_resp_x");
    assert_non_null(item);
    cJSON_Delete(item);
    response_store_close(a);
    assert_int_equal(response_store_size(b), 20);
    response_store_close(b);
}

/* A server that is killed while it writes: what another one has found stays, and the file is sound. */
static void test_killed(void **state) {
    (void)state;
    const char *path = scratch_path("killed");
    char name[20];
    int seen = 0;
    for (int round = 0; round < 8; round++) {
        lines heard = {.lock = PTHREAD_MUTEX_INITIALIZER};
        pid_t child = fork();
        assert_in_range(child, 0, INT32_MAX);
        if (child == 0) {
            response_store *s = open_store(path, 100000, 1 << 30, 1e9, NULL);
            for (int i = round * 100000;; i++) {
                snprintf(name, sizeof name, "resp_%d", i);
                put(s, name, 1, "", "said");
                (void)response_store_size(s);
            }
        }
        response_store *s = open_store(path, 100000, 1 << 30, 1e9, &heard);
        for (int n = round; n >= 0; seen++) { /* so many of this round, at another moment in each */
            snprintf(name, sizeof name, "resp_%d", round * 100000 + round - n);
            while (!has(s, name, 1, "", "said")) usleep(200);
            n--;
        }
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        response_store_close(s);
        s = open_store(path, 100000, 1 << 30, 1e9, &heard);
        for (int i = 0; i <= round; i++) {
            snprintf(name, sizeof name, "resp_%d", i * 100000);
            if (!has(s, name, 1, "", "said")) fail_msg("round %d: %s is lost", round, name);
        }
        assert_in_range(response_store_size(s), seen, 100000);
        response_store_close(s);
        if (heard.n) fail_msg("round %d: %s", round, heard.last);
        assert_false(is_there(path, "state.db.bad"));
    }
}

/* The newest stay: by number, by bytes, by age. */
static void test_limits(void **state) {
    (void)state;
    const char *path = scratch_path("limits");
    response_store *s = open_store(path, 5, 1 << 20, 1e9, NULL);
    char name[20];
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof name, "resp_%d", i);
        put(s, name, 1, "", "said");
    }
    assert_int_equal(response_store_size(s), 5);
    assert_false(has(s, "resp_6", 1, "", "said"));
    assert_true(has(s, "resp_7", 1, "", "said"));
    response_store_close(s);
    s = open_store(path, 3, 1 << 20, 1e9, NULL);
    put(s, "resp_12", 1, "", "said");
    assert_int_equal(response_store_size(s), 3);
    assert_false(has(s, "resp_9", 1, "", "said"));
    assert_true(has(s, "resp_10", 1, "", "said"));
    response_store_close(s);
    s = open_store(path, 100, 1000, 1e9, NULL);
    put(s, "resp_13", 1, "", "said");
    assert_in_range(response_store_size(s), 1, 2);
    assert_true(has(s, "resp_13", 1, "", "said"));
    response_store_close(s);
    /* ended 30 days ago, or a day less */
    response_table *t = open_table(path, NULL);
    for (int i = 0; i < 2; i++) {
        response_texts old = {.object = text("{}"), .input = text("[{\"id\":\"in_1\"}]")};
        const uint64_t ended = response_now_ms() - (uint64_t)(29 + 2 * i) * 24 * 3600 * 1000;
        assert_int_equal(response_table_put(t, i ? "resp_old" : "resp_younger", 1, ended, &old, NULL), KAKEYA_OK);
        response_texts_free(&old);
    }
    assert_int_equal(response_table_count(t), 4);
    s = open_store(path, 100, 1 << 20, RESPONSE_STORE_SECONDS, NULL);
    assert_int_equal(response_store_size(s), 3);
    assert_false(has(s, "resp_old", 1, "", ""));
    assert_int_equal(response_store_delete(s, "resp_old", 1), RESPONSE_UNKNOWN);
    assert_true(has(s, "resp_younger", 1, "", ""));
    assert_int_equal(response_table_count(t), 4); /* nobody has written */
    put(s, "resp_15", 1, "", "said");
    assert_int_equal(response_store_size(s), 4);
    assert_int_equal(response_table_count(t), 4);
    response_table_close(t);
    response_store_close(s);
}

/* ---------------------------------------------------------------------------------------------- what cannot be used */

static void test_damaged(void **state) {
    (void)state;
    kakeya_error error;
    const char *path = scratch_path("damaged"), *file = scratch_text("file", "");
    response_table *t;
    lines heard = {.lock = PTHREAD_MUTEX_INITIALIZER};
    response_store *s = open_store(path, 5, 1 << 20, 1e9, &heard), *other;
    put(s, "resp_a", 1, "", "first");
    assert_int_equal(response_store_size(s), 1);
    for (int kind = 0; kind < 2; kind++) { /* another kind of file, one that ends early */
        if (kind) {
            put(s, "resp_c", 1, "", "first");
            assert_int_equal(response_store_size(s), 1);
            assert_int_equal(truncate(file_of(path, "state.db"), 12288), 0);
        } else {
            scratch_text("damaged/state.db", "resp_a is no database, but it is long enough to be taken for one");
        }
        heard.n = 0;
        other = open_store(path, 5, 1 << 20, 1e9, &heard);
        assert_int_equal(heard.n, 1);
        assert_non_null(strstr(heard.last, "damaged/state.db"));
        assert_non_null(strstr(heard.last, "state.db.bad now and not used"));
        assert_true(is_there(path, "state.db.bad"));
        assert_int_equal(unlink(file_of(path, "state.db.bad")), 0);
        assert_false(has(other, "resp_a", 1, "", "first"));
        put(other, "resp_b", 1, "", "second");
        assert_int_equal(response_store_size(other), 1);
        response_store_close(other);
        assert_true(has(s, "resp_b", 1, "", "second")); /* who had the old file has the new one now */
        assert_int_equal(response_store_delete(s, "resp_b", 1), RESPONSE_ENDED);
    }
    response_store_close(s);
    /* of a later version: it is not touched */
    sqlite3 *db;
    assert_int_equal(sqlite3_open(file_of(path, "state.db"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version=2", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_refused(response_table_open(path, many, NULL, NULL, &t, &error), KAKEYA_UNSUPPORTED, "damaged/state.db",
                   "version 2, not 1");
    assert_false(is_there(path, "state.db.bad"));
    assert_int_equal(unlink(file_of(path, "state.db")), 0);
    (void)unlink(file_of(path, "state.db-journal"));
    assert_int_equal(mkdir(file_of(path, "state.db"), 0700), 0);
    assert_refused(response_table_open(path, many, NULL, NULL, &t, &error), KAKEYA_IO, "damaged/state.db");
    assert_refused(response_table_open(file, many, NULL, NULL, &t, &error), KAKEYA_IO, "file");
    assert_refused(response_table_open("/proc/sys", many, NULL, NULL, &t, &error), KAKEYA_IO, "/proc/sys/state.db");
}

/* A disk without room: such responses are in memory alone, which is said once; later ones are stored. */
static void test_full(void **state) {
    (void)state;
    const char *path = scratch_path("full");
    lines heard = {.lock = PTHREAD_MUTEX_INITIALIZER};
    response_store *s = open_store(path, 5, 1 << 20, 1e9, &heard);
    struct rlimit before, small;
    struct stat about;
    put(s, "resp_a", 1, "", "first");
    assert_int_equal(response_store_size(s), 1);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(stat(file_of(path, "state.db"), &about), 0);
    small = before;
    small.rlim_cur = (rlim_t)about.st_size;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    char *big = malloc(100001);
    for (int i = 0; i < 2; i++) {
        memset(big, 'x', 100000);
        big[100000] = '\0';
        response_texts texts = {.object = text("{}"), .input = text("[{\"id\":\"in_1\"}]")};
        response_entry *e = response_store_begin(s, i ? "resp_c" : "resp_b", 1, true, &texts, nothing, NULL);
        text_buffer whole = text("second"), output = text(big);
        text_add(&output, "second");
        response_store_end(s, e, &whole, &output);
    }
    assert_int_equal(response_store_size(s), 3);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    free(big);
    assert_int_equal(heard.n, 1);
    assert_non_null(strstr(heard.last, "it is kept in memory alone"));
    assert_true(has(s, "resp_a", 1, "", "first") && has(s, "resp_b", 1, "", "second"));
    put(s, "resp_d", 1, "", "third");
    assert_int_equal(response_store_size(s), 4);
    assert_int_equal(response_store_delete(s, "resp_b", 1), RESPONSE_ENDED);
    assert_false(has(s, "resp_b", 1, "", "second"));
    response_store_close(s);
    s = open_store(path, 5, 1 << 20, 1e9, &heard);
    assert_int_equal(heard.n, 1);
    assert_int_equal(response_store_size(s), 2);
    assert_true(has(s, "resp_a", 1, "", "first") && has(s, "resp_d", 1, "", "third"));
    response_store_close(s);
}

/* ------------------------------------------------------------------------------------------------------- the key */

static const char *keys;

static void *open_key(void *user) {
    kakeya_error error;
    response_table *t;
    bool good = response_table_open(keys, many, NULL, NULL, &t, &error) == KAKEYA_OK &&
                response_table_seal(t, user, &error) == KAKEYA_OK;
    if (!good) fprintf(stderr, "%s\n", error.message);
    response_table_close(t);
    return good ? user : NULL;
}

/* Servers that start together have one key, also where they find a damaged file. */
static void test_key(void **state) {
    (void)state;
    enum { SERVERS = 6 };
    reasoning_seal seals[SERVERS], after;
    pthread_t threads[SERVERS];
    keys = scratch_path("keys");
    for (int round = 0; round < 3; round++) {
        memset(seals, 0, sizeof seals);
        if (round == 2) scratch_text("keys/state.db", "neither a key nor a database");
        for (int i = 0; i < SERVERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, open_key, &seals[i]), 0);
        for (int i = 0; i < SERVERS; i++) {
            void *good;
            pthread_join(threads[i], &good);
            assert_non_null(good);
            assert_memory_equal(seals[i].key, seals[0].key, SEAL_KEY_BYTES);
        }
        if (round == 1) assert_memory_equal(seals[0].key, after.key, SEAL_KEY_BYTES);
        if (round == 2) assert_memory_not_equal(seals[0].key, after.key, SEAL_KEY_BYTES);
        after = seals[0];
    }
    static const unsigned char zeros[SEAL_KEY_BYTES];
    assert_memory_not_equal(after.key, zeros, SEAL_KEY_BYTES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_response), cmocka_unit_test(test_restart), cmocka_unit_test(test_shared),
        cmocka_unit_test(test_killed),       cmocka_unit_test(test_limits),  cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_full),         cmocka_unit_test(test_key),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
