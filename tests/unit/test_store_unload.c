/* A store whose engine is taken away for a while: nothing stays in memory, names keep their sessions, and what cannot
 * be saved keeps the engine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/resource.h>

#include "serve/store_named.h"

#include "scratch.h"
#include "store_support.h"

static store_options options_in(const char *directory) {
    return (store_options){.directory = directory,
                           .ram_bytes = 1 << 20,
                           .idle_delay = 0.01, /* the savers are at work meanwhile */
                           .checkpoint_delay = 0.01,
                           .least_file_tokens = 16,
                           .model = "toy"};
}

static size_t kv_memory(const kakeya_engine *engine) {
    return kakeya_engine_memory(engine, KAKEYA_MEMORY_KV_FULL) + kakeya_engine_memory(engine, KAKEYA_MEMORY_KV_SLIDING);
}

static size_t extend(prefix_store *store, const char *id, size_t n, uint64_t seed, int32_t *timeline_ids) {
    kakeya_session *session = NULL;
    assert_int_equal(store_named_take(store_names(store), id, &session, NULL, NULL), STORE_NAMED_OK);
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

static void prompt(request *r, size_t n, uint64_t seed) {
    fake_prompt(r->ids, n, seed, FAKE_VOCAB);
    r->n = n;
}

static void test_unload_and_resume(void **state) {
    (void)state;
    enum { SESSIONS = 4, ROUNDS = 3 };
    fake_script script = fake_script_default(), other_script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_engine *other = fake_engine(&other_script, (fake_engine_options){0}); /* of a store that is never unloaded */
    kakeya_session_options so = session_options();
    prefix_store *store = open_store(engine, &so, options_in(scratch_path("unload")));
    prefix_store *never = open_store(other, &so, (store_options){0});
    store_named *names = store_names(store);
    char id[SESSIONS][STORE_ID_BYTES], unbroken[SESSIONS][STORE_ID_BYTES], empty[STORE_ID_BYTES];
    static int32_t ids[FAKE_CONTEXT], alone[FAKE_CONTEXT];
    assert_int_equal(store_named_create(names, "7 ", empty, NULL), STORE_NAMED_OK);
    for (int round = 0; round < ROUNDS; round++) {
        for (uint64_t i = 0; i < SESSIONS; i++) {
            if (round == 0) {
                assert_int_equal(store_named_create(names, NULL, id[i], NULL), STORE_NAMED_OK);
                assert_int_equal(store_named_create(store_names(never), NULL, unbroken[i], NULL), STORE_NAMED_OK);
            }
            size_t n = extend(store, id[i], 20, i + 10 * (uint64_t)round, ids);
            assert_int_equal(extend(never, unbroken[i], 20, i + 10 * (uint64_t)round, alone), n);
            assert_memory_equal(ids, alone, n * sizeof *ids);
        }
        request r = {0}, by_itself = {0};
        prompt(&r, 100, 77);
        prompt(&by_itself, 100, 77);
        const size_t stops[] = {64};
        serve(store, &r, stops, 1, 5, 1);
        assert_int_equal(r.hit.source, round ? STORE_HIT_DISK : STORE_HIT_NONE);
        serve_alone(other, &so, &by_itself, 5, 1);
        assert_same(&r, &by_itself, "after it was unloaded");

        assert_true(kv_memory(engine) > 0);
        ok(store_unload(store, 20, error));
        assert_int_equal(kv_memory(engine), 0);
        store_counts counts = counts_of(store);
        assert_int_equal(counts.live + counts.ram + counts.named.memory, 0);
        assert_int_equal(counts.named.disk, SESSIONS + 1);
        store_named_info info;
        assert_int_equal(store_named_look(names, id[1], &info), STORE_NAMED_OK);
        assert_int_equal(info.tokens, 25 * (round + 1));
        assert_int_equal(info.kv_bytes, 0);
        assert_int_equal(store_named_look(names, empty, &info), STORE_NAMED_OK);
        store_resume(store, engine);
    }
    kakeya_session *session;
    char *note = NULL;
    assert_int_equal(store_named_take(names, empty, &session, &note, NULL), STORE_NAMED_OK);
    assert_string_equal(note, "7 ");
    free(note);
    store_named_give(names, empty, session);
    size_t tokens;
    assert_int_equal(store_named_drop(names, id[0], &tokens), STORE_NAMED_OK);
    assert_int_equal(tokens, 25 * ROUNDS);
    store_close(store, 0);
    store_close(never, 0);
    close_all(NULL, engine, &script);
    close_all(NULL, other, &other_script);
}

static void limit_files(rlim_t bytes) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Without a directory, or with one that takes nothing any more. */
static void test_what_cannot_be_saved_stays(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    static int32_t ids[FAKE_CONTEXT];
    for (int broken = 0; broken < 2; broken++) {
        const char *path = scratch_path("gone");
        store_options options = options_in(broken ? path : NULL);
        options.idle_delay = 1000;
        prefix_store *store = open_store(engine, &so, options);
        char id[STORE_ID_BYTES];
        assert_int_equal(store_named_create(store_names(store), NULL, id, NULL), STORE_NAMED_OK);
        size_t n = extend(store, id, 20, 3, ids);
        limit_files(broken ? 0 : RLIM_INFINITY);
        kakeya_error why = {0};
        assert_int_equal(store_unload(store, 20, &why), KAKEYA_IO);
        limit_files(RLIM_INFINITY);
        assert_non_null(strstr(why.message, id));
        assert_int_equal(extend(store, id, 20, 4, ids), n + 25);
        assert_int_equal(store_named_drop(store_names(store), id, NULL), STORE_NAMED_OK);
        ok(store_unload(store, 20, error));
        assert_int_equal(kv_memory(engine), 0);
        store_close(store, 0);
    }
    close_all(NULL, engine, &script);
}

/* What the engine has in memory is not believed: names that are in a file go back to it, others that hold tokens go. */
static void test_what_a_failure_takes(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    static int32_t ids[FAKE_CONTEXT];
    store_options options = options_in(scratch_path("failure"));
    options.idle_delay = 1000;
    prefix_store *store = open_store(engine, &so, options);
    store_named *names = store_names(store);
    char kept[STORE_ID_BYTES], lost[STORE_ID_BYTES], empty[STORE_ID_BYTES];
    assert_int_equal(store_named_create(names, NULL, kept, NULL), STORE_NAMED_OK);
    size_t n = extend(store, kept, 20, 3, ids);
    ok(store_unload(store, 20, error));
    store_resume(store, engine);
    assert_int_equal(store_named_create(names, NULL, lost, NULL), STORE_NAMED_OK);
    assert_int_equal(store_named_create(names, NULL, empty, NULL), STORE_NAMED_OK);
    extend(store, lost, 20, 4, ids);
    request r = {0};
    prompt(&r, 100, 77);
    const size_t stops[] = {64};
    serve(store, &r, stops, 1, 5, 1);
    assert_true(kv_memory(engine) > 0);
    assert_int_equal(store_give_up(store), 1);
    assert_int_equal(kv_memory(engine), 0);
    store_counts counts = counts_of(store);
    assert_int_equal(counts.live + counts.ram + counts.named.memory, 0);
    assert_int_equal(counts.named.dropped_lost, 1);
    store_resume(store, engine);
    serve(store, &r, stops, 1, 5, 1);
    assert_true(r.hit.source == STORE_HIT_NONE ||
                r.hit.source == STORE_HIT_DISK); /* what was saved before it is good */
    store_named_info info;
    assert_int_equal(store_named_look(names, lost, &info), STORE_NAMED_UNKNOWN);
    assert_int_equal(extend(store, kept, 20, 5, ids), n + 25);
    assert_int_equal(extend(store, empty, 20, 6, ids), 25);
    store_close(store, 0);
    close_all(NULL, engine, &script);
}

int main(void) {
    signal(SIGXFSZ, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unload_and_resume),
        cmocka_unit_test(test_what_cannot_be_saved_stays),
        cmocka_unit_test(test_what_a_failure_takes),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
