/* Sessions with names: one user at a time, to disk when idle and back, also in another server; dropped when their time
 * is over, and never silently replaced by an older state. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <pthread.h>
#include <unistd.h>

#include "serve/store_named.h"

#include "scratch.h"
#include "store_support.h"

static store_options options_in(const char *directory) {
    return (store_options){.directory = directory, .idle_delay = 1000, .model = "toy"};
}

static size_t files_in(const char *path, const char *part) {
    size_t n = 0;
    DIR *list = opendir(path);
    if (!list) return 0;
    for (struct dirent *e; (e = readdir(list)) != NULL;) n += strstr(e->d_name, part) != NULL;
    closedir(list);
    return n;
}

static kakeya_session *take(prefix_store *store, const char *id) {
    kakeya_session *session = NULL;
    kakeya_error error = {0};
    store_named_result result = store_named_take(store_names(store), id, &session, NULL, &error);
    if (result != STORE_NAMED_OK) fail_msg("taking %s: %d %s", id, (int)result, error.message);
    return session;
}

/* n tokens more, of which the last five are generated; the timeline is copied out. */
static size_t extend(prefix_store *store, const char *id, size_t n, uint64_t seed, int32_t *timeline_ids) {
    kakeya_session *session = take(store, id);
    size_t held;
    const int32_t *ids = kakeya_session_tokens(session, &held);
    if (held) memcpy(timeline_ids, ids, held * sizeof *ids);
    fake_prompt(timeline_ids + held, n, seed, FAKE_VOCAB);
    ok(kakeya_session_sync(session, timeline_ids, held + n, NULL, NULL, NULL, error));
    request r = {0};
    answer(session, &r, 5, 1);
    memcpy(timeline_ids, r.ids, r.n_all * sizeof *r.ids);
    store_named_give(store_names(store), id, session);
    return r.n_all;
}

static void test_create_take_give_drop(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    prefix_store *store = open_store(engine, &so, (store_options){0});
    store_named *names = store_names(store);
    char id[STORE_ID_BYTES], other[STORE_ID_BYTES];
    assert_int_equal(store_named_create(names, "{\"eos\":[1]}", id, NULL), STORE_NAMED_OK);
    assert_int_equal(store_named_create(names, NULL, other, NULL), STORE_NAMED_OK);
    assert_int_equal(strlen(id), 37);
    assert_int_equal(strncmp(id, "sess-", 5), 0);
    assert_string_not_equal(id, other);
    kakeya_session *session = NULL, *again = NULL;
    char *note = NULL;
    assert_int_equal(store_named_take(names, id, &session, &note, NULL), STORE_NAMED_OK);
    assert_string_equal(note, "{\"eos\":[1]}");
    free(note);
    store_named_info info;
    assert_int_equal(store_named_look(names, id, &info), STORE_NAMED_OK);
    assert_true(info.busy);
    assert_int_equal(store_named_take(names, id, &again, NULL, NULL), STORE_NAMED_BUSY);
    assert_int_equal(store_named_drop(names, id, NULL), STORE_NAMED_BUSY);
    int32_t prompt[30];
    fake_prompt(prompt, 30, 1, FAKE_VOCAB);
    ok(kakeya_session_sync(session, prompt, 30, NULL, NULL, NULL, error));
    store_named_give(names, id, session);
    assert_int_equal(store_named_look(names, id, &info), STORE_NAMED_OK);
    assert_int_equal(info.tokens, 30);
    assert_false(info.busy);
    assert_true(info.kv_bytes > 0);
    /* never by content */
    store_hit hit;
    ok(store_take(store, NULL, prompt, 30, true, &session, &hit, error));
    assert_int_equal(hit.tokens, 0);
    kakeya_session_close(session);
    size_t tokens;
    assert_int_equal(store_named_drop(names, id, &tokens), STORE_NAMED_OK);
    assert_int_equal(tokens, 30);
    assert_int_equal(store_named_drop(names, id, &tokens), STORE_NAMED_UNKNOWN);
    static const char *const unknown[] = {"", "sess-", "../../etc/passwd", "sess-0123456789abcdef0123456789abcdef",
                                          "sess-0123456789ABCDEF0123456789abcdef/"};
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(store_named_take(names, unknown[i], &session, NULL, NULL), STORE_NAMED_UNKNOWN);
    /* a session that is lost takes its name along */
    assert_int_equal(store_named_take(names, other, &session, NULL, NULL), STORE_NAMED_OK);
    kakeya_session_close(session);
    store_named_give(names, other, NULL);
    assert_int_equal(store_named_look(names, other, &info), STORE_NAMED_UNKNOWN);
    store_close(store, 0);
    close_all(NULL, engine, &script);
}

/* More sessions than memory holds, and a restart: all go on as if nothing had happened. */
static void test_to_disk_and_back(void **state) {
    (void)state;
    enum { SESSIONS = 6 };
    const char *path = scratch_path("named");
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    char id[SESSIONS][STORE_ID_BYTES];
    static int32_t ids[SESSIONS][FAKE_CONTEXT], alone[SESSIONS][FAKE_CONTEXT];
    prefix_store *never = open_store(engine, &so, (store_options){0});
    char unbroken[SESSIONS][STORE_ID_BYTES];
    for (int round = 0; round < 3; round++) {
        store_options options = options_in(path);
        options.max_named = 2;
        prefix_store *store = open_store(engine, &so, options);
        for (uint64_t i = 0; i < SESSIONS; i++) {
            char *note = NULL;
            if (round == 0) {
                assert_int_equal(store_named_create(store_names(store), "mine", id[i], NULL), STORE_NAMED_OK);
                assert_int_equal(store_named_create(store_names(never), NULL, unbroken[i], NULL), STORE_NAMED_OK);
            } else {
                kakeya_session *session;
                assert_int_equal(store_named_take(store_names(store), id[i], &session, &note, NULL), STORE_NAMED_OK);
                assert_string_equal(note, "mine");
                free(note);
                store_named_give(store_names(store), id[i], session);
            }
            size_t n = extend(store, id[i], 20, i + 10 * (uint64_t)round, ids[i]);
            assert_int_equal(extend(never, unbroken[i], 20, i + 10 * (uint64_t)round, alone[i]), n);
            assert_int_equal(n, 25 * (round + 1));
            assert_memory_equal(ids[i], alone[i], n * sizeof(int32_t));
            store_counts counts = counts_of(store);
            assert_true(counts.named.memory <= 2);
            assert_int_equal(counts.named.dropped_lru, 0);
        }
        store_named_info info;
        assert_int_equal(store_named_look(store_names(store), id[0], &info), STORE_NAMED_OK);
        assert_int_equal(info.tokens, 25 * (round + 1));
        assert_int_equal(info.kv_bytes, 0);
        store_close(store, 1000);
        assert_int_equal(files_in(path, "sess-"), SESSIONS);
    }
    prefix_store *store = open_store(engine, &so, options_in(path));
    for (int i = 0; i < SESSIONS; i++) {
        size_t tokens;
        assert_int_equal(store_named_drop(store_names(store), id[i], &tokens), STORE_NAMED_OK);
        assert_int_equal(tokens, 75);
    }
    assert_int_equal(files_in(path, "sess-"), 0);
    store_close(store, 0);
    store_close(never, 0);
    close_all(NULL, engine, &script);
}

/* Two servers: the one that was asked last has the newest state. */
static void test_two_servers(void **state) {
    (void)state;
    const char *path = scratch_path("two");
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    prefix_store *store[2] = {open_store(engine, &so, options_in(path)), open_store(engine, &so, options_in(path))};
    char id[STORE_ID_BYTES];
    int32_t ids[FAKE_CONTEXT];
    assert_int_equal(store_named_create(store_names(store[0]), NULL, id, NULL), STORE_NAMED_OK);
    store_named_info info;
    assert_int_equal(store_named_look(store_names(store[1]), id, &info), STORE_NAMED_UNKNOWN); /* never saved */
    for (int turn = 0; turn < 6; turn++) {
        size_t n = extend(store[turn % 2], id, 10, (uint64_t)turn, ids);
        assert_int_equal(n, 15 * (turn + 1));
        usleep(2000); /* files are told apart by milliseconds */
        /* saved, and kept in memory */
        while (store_named_relieve(store_names(store[turn % 2]))) continue;
        if (turn % 3 == 0) {
            kakeya_session *session = take(store[turn % 2], id);
            store_named_give(store_names(store[turn % 2]), id, session);
            assert_true(store_named_relieve(store_names(store[turn % 2])) > 0);
        }
    }
    store_close(store[0], 1000);
    store_close(store[1], 1000);
    close_all(NULL, engine, &script);
}

static void test_time_is_over(void **state) {
    (void)state;
    const char *path = scratch_path("ttl");
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    store_options options = options_in(path);
    prefix_store *store = open_store(engine, &so, options);
    char id[2][STORE_ID_BYTES];
    int32_t ids[FAKE_CONTEXT];
    assert_int_equal(store_named_create(store_names(store), NULL, id[0], NULL), STORE_NAMED_OK);
    (void)extend(store, id[0], 10, 1, ids);
    store_close(store, 1000);
    assert_int_equal(files_in(path, "sess-"), 1);
    /* one on disk, one in memory; both are gone when their time is over */
    options.session_ttl = 0.05;
    store = open_store(engine, &so, options);
    assert_int_equal(store_named_create(store_names(store), NULL, id[1], NULL), STORE_NAMED_OK);
    store_named_info info;
    while (counts_of(store).named.dropped_ttl < 2) usleep(1000);
    for (int i = 0; i < 2; i++)
        assert_int_equal(store_named_look(store_names(store), id[i], &info), STORE_NAMED_UNKNOWN);
    assert_int_equal(files_in(path, "sess-"), 0);
    store_close(store, 0);
    close_all(NULL, engine, &script);
}

/* Without a directory the oldest are dropped; where all are taken there is no room. */
static void test_no_room(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    prefix_store *store = open_store(engine, &so, (store_options){.max_named = 2});
    store_named *names = store_names(store);
    char id[4][STORE_ID_BYTES];
    kakeya_session *taken[2];
    for (int i = 0; i < 3; i++) assert_int_equal(store_named_create(names, NULL, id[i], NULL), STORE_NAMED_OK);
    store_named_info info;
    assert_int_equal(store_named_look(names, id[0], &info), STORE_NAMED_UNKNOWN);
    assert_int_equal(counts_of(store).named.dropped_lru, 1);
    for (int i = 0; i < 2; i++) taken[i] = take(store, id[i + 1]);
    assert_int_equal(store_named_create(names, NULL, id[3], NULL), STORE_NAMED_FULL);
    for (int i = 0; i < 2; i++) store_named_give(names, id[i + 1], taken[i]);
    store_close(store, 0);
    close_all(NULL, engine, &script);
}

/* A damaged file is a session that is gone, not a wrong one. */
static void test_damaged(void **state) {
    (void)state;
    const char *path = scratch_path("named-damage");
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    prefix_store *store = open_store(engine, &so, options_in(path));
    char id[STORE_ID_BYTES], name[300];
    int32_t ids[FAKE_CONTEXT];
    assert_int_equal(store_named_create(store_names(store), NULL, id, NULL), STORE_NAMED_OK);
    (void)extend(store, id, 30, 1, ids);
    store_close(store, 1000);
    snprintf(name, sizeof name, "%s/%s.kkc", path, id);
    FILE *file = fopen(name, "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, 700, SEEK_SET), 0);
    int c = fgetc(file);
    assert_int_equal(fseek(file, 700, SEEK_SET), 0);
    fputc(c ^ 1, file);
    fclose(file);
    store = open_store(engine, &so, options_in(path));
    kakeya_session *session;
    assert_int_equal(store_named_take(store_names(store), id, &session, NULL, NULL), STORE_NAMED_UNKNOWN);
    assert_int_equal(counts_of(store).disk.errors_corrupt, 1);
    assert_int_equal(files_in(path, ".bad"), 1);
    store_close(store, 1000);
    close_all(NULL, engine, &script);
}

typedef struct user {
    prefix_store *store;
    char (*id)[STORE_ID_BYTES];
    uint64_t seed;
    size_t added[3];
} user;

static void *use(void *argument) {
    user *u = argument;
    for (uint64_t i = 0; i < 60; i++) {
        size_t which = (size_t)(random_uniform_at(u->seed, i) * 3), n;
        kakeya_session *session = NULL;
        store_named_info info;
        (void)store_named_look(store_names(u->store), u->id[which], &info);
        if (store_named_take(store_names(u->store), u->id[which], &session, NULL, NULL) != STORE_NAMED_OK) continue;
        int32_t ids[FAKE_CONTEXT];
        const int32_t *held = kakeya_session_tokens(session, &n);
        if (n) memcpy(ids, held, n * sizeof *ids);
        ids[n] = (int32_t)which;
        if (n + 1 < FAKE_CONTEXT && kakeya_session_sync(session, ids, n + 1, NULL, NULL, NULL, NULL) == KAKEYA_OK)
            u->added[which]++;
        store_named_give(store_names(u->store), u->id[which], session);
        if (i % 7 == 0) (void)store_named_relieve(store_names(u->store));
    }
    return NULL;
}

static void test_many_threads(void **state) {
    (void)state;
    enum { THREADS = 4 };
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    store_options options = options_in(scratch_path("threads"));
    options.idle_delay = 0.001;
    prefix_store *store = open_store(engine, &so, options);
    char id[3][STORE_ID_BYTES];
    for (int i = 0; i < 3; i++)
        assert_int_equal(store_named_create(store_names(store), NULL, id[i], NULL), STORE_NAMED_OK);
    pthread_t threads[THREADS];
    user users[THREADS];
    for (uint64_t i = 0; i < THREADS; i++) {
        users[i] = (user){.store = store, .id = id, .seed = i};
        assert_int_equal(pthread_create(&threads[i], NULL, use, &users[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (size_t i = 0; i < 3; i++) {
        size_t expected = 0, tokens;
        for (int k = 0; k < THREADS; k++) expected += users[k].added[i];
        assert_int_equal(store_named_drop(store_names(store), id[i], &tokens), STORE_NAMED_OK);
        assert_int_equal(tokens, expected); /* nothing was lost on the way to disk and back */
    }
    store_close(store, 1000);
    close_all(NULL, engine, &script);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_take_give_drop),
        cmocka_unit_test(test_to_disk_and_back),
        cmocka_unit_test(test_two_servers),
        cmocka_unit_test(test_time_is_over),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_many_threads),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
