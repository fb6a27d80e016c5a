/* While a session is being saved or taken up, others compute between its pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "fake_engine.h"
#include "session/session.h"

enum { TOKENS = 380 };

static atomic_int forwards;

static void count_forward(void *user) {
    (void)user;
    atomic_fetch_add(&forwards, 1);
}

/* One prompt after the other, each of which is computed. */
typedef struct neighbour {
    kakeya_engine *engine;
    pthread_t thread;
    atomic_bool stop;
} neighbour;

static void *compute(void *user) {
    neighbour *n = user;
    kakeya_session *session = NULL;
    int32_t prompt[20];
    if (kakeya_session_open(n->engine, NULL, &session, NULL) != KAKEYA_OK) return n;
    kakeya_status status = KAKEYA_OK;
    for (uint64_t seed = 0; status == KAKEYA_OK && !atomic_load(&n->stop); seed++) {
        fake_prompt(prompt, 20, seed, FAKE_VOCAB);
        status = kakeya_session_sync(session, prompt, 20, NULL, NULL, NULL, NULL);
    }
    kakeya_session_close(session);
    return status == KAKEYA_OK ? NULL : n;
}

static void begin(neighbour *n, kakeya_engine *engine) {
    n->engine = engine;
    atomic_init(&n->stop, false);
    assert_int_equal(pthread_create(&n->thread, NULL, compute, n), 0);
}

static void end(neighbour *n) {
    void *failed;
    atomic_store(&n->stop, true);
    assert_int_equal(pthread_join(n->thread, &failed), 0);
    assert_null(failed);
}

/* A stream, whose callbacks hold the engine for longer than they may, until somebody waits for it. */
typedef struct stream {
    kakeya_engine *engine;
    const fake_script *script;
    int verb, calls; /* of the backend, that calls; how often it was called before */
    unsigned char data[16384];
    size_t bytes, at, most;
    int pieces, first, last; /* forwards by then */
} stream;

static void hold(stream *s) {
    const struct timespec moment = {.tv_nsec = 2000000};
    if (s->script->calls[s->verb] == s->calls || s->at >= s->most) return;
    if (s->pieces++ == 0) s->first = atomic_load(&forwards);
    s->last = atomic_load(&forwards);
    engine_turn *turn = &s->engine->turn;
    for (bool waits = false; !waits;) {
        nanosleep(&moment, NULL);
        pthread_mutex_lock(&turn->mutex);
        waits = turn->waited != turn->served;
        pthread_mutex_unlock(&turn->mutex);
    }
}

static bool put(void *user, const void *data, size_t bytes) {
    stream *s = user;
    hold(s);
    if (sizeof s->data - s->at < bytes) return false;
    memcpy(s->data + s->at, data, bytes);
    s->at += bytes;
    return true;
}

static size_t get(void *user, void *data, size_t bytes) {
    stream *s = user;
    hold(s);
    size_t left = s->bytes - s->at, n = bytes < left ? bytes : left;
    memcpy(data, s->data + s->at, n);
    s->at += n;
    return n;
}

static kakeya_engine *open_engine(fake_script *script) {
    *script = fake_script_default();
    script->on_forward = count_forward;
    kakeya_engine *engine = fake_engine(script, (fake_engine_options){0});
    engine->max_stall_ms = 1;
    return engine;
}

/* Every piece but the first is preceded by somebody else's turn; a prompt's forward takes a few. */
static void assert_others_computed(const stream *s) {
    const int least = TOKENS / FAKE_PIECE;
    if (s->pieces < least) fail_msg("%d pieces, at least %d are expected", s->pieces, least);
    if (s->last - s->first < 2) fail_msg("%d forwards between %d pieces", s->last - s->first, s->pieces);
}

static void others_compute_meanwhile(void **state) {
    (void)state;
    fake_script script;
    kakeya_engine *engine = open_engine(&script);
    int32_t prompt[TOKENS];
    fake_prompt(prompt, TOKENS, 11, FAKE_VOCAB);
    kakeya_session *session = fake_session(engine, NULL), *other = fake_session(engine, NULL);
    ok(kakeya_session_sync(session, prompt, TOKENS, NULL, NULL, NULL, error));
    neighbour beside;
    begin(&beside, engine);

    stream saved = {.engine = engine, .script = &script, .verb = FAKE_SNAPSHOT};
    saved.bytes = (size_t)kakeya_session_save_bytes(session);
    saved.most = saved.bytes - 8; /* the checksum follows behind the memory, without the engine */
    ok(kakeya_session_save(session, put, &saved, error));
    assert_int_equal(saved.at, saved.bytes);
    assert_others_computed(&saved);

    stream loaded = saved;
    loaded.verb = FAKE_RESTORE;
    loaded.at = 0;
    loaded.pieces = 0;
    const double asked = clock_seconds();
    assert_true(kakeya_session_load_waited(other) == 0);
    ok(kakeya_session_load(other, get, &loaded, error));
    const double waited = kakeya_session_load_waited(other), held = 0.002 * (TOKENS / FAKE_PIECE);
    if (!(waited > 0 && waited <= clock_seconds() - asked - held)) fail_msg("waited for %g s", waited);
    assert_int_equal(loaded.at, loaded.bytes);
    assert_others_computed(&loaded);
    end(&beside);

    assert_timeline(other, prompt, TOKENS, "taken up in pieces");
    assert_memory_behind(other, 0);
    void *a = NULL, *b = NULL;
    size_t a_bytes = 0, b_bytes = 0;
    ok(session_to_memory(session, &a, &a_bytes, error));
    ok(session_to_memory(other, &b, &b_bytes, error));
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(a, b, a_bytes);
    assert_int_equal(a_bytes, saved.bytes);
    assert_memory_equal(a, saved.data, a_bytes);
    kakeya_free(a);
    kakeya_free(b);
    kakeya_session_close(other);
    close_all(session, engine, &script);
}

/* Whatever the others do meanwhile, a session that cannot be read is as it was. */
static void failing_in_the_middle(void **state) {
    (void)state;
    fake_script script;
    kakeya_engine *engine = open_engine(&script);
    int32_t prompt[TOKENS], own[10];
    fake_prompt(prompt, TOKENS, 12, FAKE_VOCAB);
    fake_prompt(own, 10, 13, FAKE_VOCAB);
    kakeya_session *session = fake_session(engine, NULL), *other = fake_session(engine, NULL);
    ok(kakeya_session_sync(session, prompt, TOKENS, NULL, NULL, NULL, error));
    ok(kakeya_session_sync(other, own, 10, NULL, NULL, NULL, error));
    void *data = NULL;
    size_t bytes = 0;
    ok(session_to_memory(session, &data, &bytes, error));
    neighbour beside;
    begin(&beside, engine);
    const size_t cuts[] = {9, 700, 1200, 3};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        stream cut = {.engine = engine, .script = &script, .verb = FAKE_RESTORE, .bytes = bytes - cuts[i]};
        cut.calls = script.calls[FAKE_RESTORE];
        memcpy(cut.data, data, cut.bytes);
        cut.most = cuts[i] < 8 ? bytes - 8 : cut.bytes;
        assert_int_equal(kakeya_session_load(other, get, &cut, NULL), KAKEYA_FORMAT);
        assert_timeline(other, own, 10, "after a stream that ends early");
        assert_memory_behind(other, 0);
    }
    stream full = {.engine = engine,
                   .script = &script,
                   .verb = FAKE_SNAPSHOT,
                   .at = sizeof full.data - 3000,
                   .most = sizeof full.data};
    full.calls = script.calls[FAKE_SNAPSHOT];
    assert_int_equal(kakeya_session_save(session, put, &full, NULL), KAKEYA_IO);
    assert_timeline(session, prompt, TOKENS, "after a stream that takes no more");
    end(&beside);
    ok(session_from_memory(other, data, bytes, error));
    assert_timeline(other, prompt, TOKENS, "taken up in the end");
    kakeya_free(data);
    kakeya_session_close(other);
    close_all(session, engine, &script);
}

/* Without anybody who waits, nothing is waited for. */
static void nobody_waits(void **state) {
    (void)state;
    fake_script script;
    kakeya_engine *engine = open_engine(&script);
    double since = 0;
    engine_turn_begin(engine);
    engine_turn_share(engine, &since);
    assert_true(since > 0 && engine->turn.held);
    const double before = since;
    engine->max_stall_ms = 1000000;
    engine_turn_share(engine, &since);
    assert_true(since == before);
    engine_turn_end(engine);
    assert_true(!engine->turn.held && engine->turn.waited == engine->turn.served);
    close_all(NULL, engine, &script);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_compute_meanwhile),
        cmocka_unit_test(failing_in_the_middle),
        cmocka_unit_test(nobody_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
