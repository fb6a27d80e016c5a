/* Protects the order of who gives way where memory is short: idle sessions, which the engine's `relieve` closes, before
 * requests that are paused; and what a pause is: nothing is computed, no place is taken, and the tokens are the same.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
#include <string.h>

#include "fake_engine.h"

enum { PROMPT = 20, NEW = 40, PAUSE_AT = 5, TIGHT = 2048 };

typedef struct answer {
    kakeya_session *session;
    kakeya_request *request;
    int32_t prompt[PROMPT];
    int said;
    bool pauses;
    sem_t paused, done;
} answer;

static bool on_event(void *user, const kakeya_event *event) {
    answer *a = user;
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    if (++a->said != PAUSE_AT || !a->pauses) return true;
    kakeya_session_pause(a->session);
    assert_int_equal(sem_post(&a->paused), 0);
    return true;
}

static void on_done(void *user) { assert_int_equal(sem_post(&((answer *)user)->done), 0); }

static void await(sem_t *s) {
    while (sem_wait(s) != 0) continue;
}

/* Its answer is paused, nothing else is under way, and nobody looks at the engine. */
static void await_pause(answer *a) {
    await(&a->paused);
    while (!atomic_load(&a->session->engine->rests)) sched_yield();
}

static void begin(answer *a, kakeya_engine *engine, uint64_t seed, bool pauses) {
    *a = (answer){.session = fake_session(engine, NULL), .pauses = pauses};
    fake_prompt(a->prompt, PROMPT, seed, FAKE_VOCAB);
    assert_int_equal(sem_init(&a->paused, 0, 0), 0);
    assert_int_equal(sem_init(&a->done, 0, 0), 0);
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.ignore_stop_tokens = true;
    go.max_tokens = NEW;
    go.mode = KAKEYA_MODE_AR;
    go.on_event = on_event;
    go.user = a;
    kakeya_request_options ask;
    KAKEYA_INIT(&ask);
    ask.tokens = a->prompt;
    ask.n_tokens = PROMPT;
    ask.generate = &go;
    ask.on_done = on_done;
    ask.done_user = a;
    ok(kakeya_session_submit(a->session, &ask, &a->request, error));
}

/* How often it moved to a file. */
static uint64_t end(answer *a, kakeya_status expected) {
    kakeya_stats stats;
    KAKEYA_INIT(&stats);
    kakeya_error why = {0};
    await(&a->done);
    if (kakeya_request_wait(a->request, &stats, &why) != expected) fail_msg("%s", why.message);
    sem_destroy(&a->paused);
    sem_destroy(&a->done);
    return stats.waits;
}

static void says(const answer *a, const int32_t *expected) { assert_timeline(a->session, expected, PROMPT + NEW, "a"); }

typedef struct world {
    fake_script script;
    kakeya_engine *engine;
    int32_t expected[3][PROMPT + NEW]; /* what answers of seeds 0 to 2 are alone */
} world;

static void open_world(world *w) {
    w->script = fake_script_default();
    w->engine = fake_engine(&w->script, (fake_engine_options){.no_drafter = true});
    for (int i = 0; i < 3; i++) {
        answer a;
        begin(&a, w->engine, (uint64_t)i, false);
        (void)end(&a, KAKEYA_OK);
        memcpy(w->expected[i], a.session->timeline.tokens, sizeof w->expected[i]);
        kakeya_session_close(a.session);
    }
}

static void close_world(world *w) { close_all(NULL, w->engine, &w->script); }

static void a_pause_computes_nothing_and_takes_no_place(void **state) {
    (void)state;
    world w;
    answer slow, other;
    open_world(&w);
    w.engine->max_batch = 1;
    begin(&slow, w.engine, 0, true);
    await_pause(&slow);
    begin(&other, w.engine, 1, false);
    assert_int_equal(end(&other, KAKEYA_OK), 0);
    says(&other, w.expected[1]);
    assert_int_equal(slow.said, PAUSE_AT);
    kakeya_session_resume(slow.session);
    assert_int_equal(end(&slow, KAKEYA_OK), 0);
    says(&slow, w.expected[0]);
    kakeya_session_close(slow.session);
    kakeya_session_close(other.session);
    close_world(&w);
}

/* At once, and not when others come; so does one that waits in a file, from which it can go on. */
static void a_cancel_ends_a_pause(void **state) {
    (void)state;
    for (int parked = 0; parked < 2; parked++) {
        world w;
        answer slow, other;
        open_world(&w);
        begin(&slow, w.engine, 0, true);
        await_pause(&slow);
        if (parked) {
            w.engine->account.limit_bytes = mem_total(&w.engine->account) + TIGHT;
            begin(&other, w.engine, 1, false);
            (void)end(&other, KAKEYA_OK);
            kakeya_session_close(other.session);
        }
        kakeya_session_cancel(slow.session);
        assert_int_equal(end(&slow, KAKEYA_OK), parked);
        assert_int_equal(slow.said, PAUSE_AT);
        assert_int_equal(kakeya_session_is_parked(slow.session), parked);
        kakeya_generate_options go;
        KAKEYA_INIT(&go);
        go.ignore_stop_tokens = true;
        go.max_tokens = NEW - PAUSE_AT;
        ok(kakeya_session_generate(slow.session, &go, NULL, error));
        says(&slow, w.expected[0]);
        kakeya_session_close(slow.session);
        close_world(&w);
    }
}

static void a_paused_request_gives_its_memory(void **state) {
    (void)state;
    world w;
    answer slow[2], other;
    open_world(&w);
    for (int i = 0; i < 2; i++) {
        begin(&slow[i], w.engine, (uint64_t)i, true);
        await_pause(&slow[i]);
    }
    w.engine->account.limit_bytes = mem_total(&w.engine->account) + TIGHT;
    begin(&other, w.engine, 2, false);
    assert_int_equal(end(&other, KAKEYA_OK), 0);
    says(&other, w.expected[2]);
    kakeya_session_close(other.session);
    assert_null(slow[1].session->timeline.cache); /* which arrived last */
    assert_int_equal(kakeya_session_kv_bytes(slow[1].session).total, 0);
    for (int i = 0; i < 2; i++) {
        kakeya_session_resume(slow[i].session);
        assert_true(end(&slow[i], KAKEYA_OK) >= (uint64_t)i);
        says(&slow[i], w.expected[i]);
    }
    for (int i = 0; i < 2; i++) kakeya_session_close(slow[i].session);
    close_world(&w);
}

/* Idle sessions, as a server keeps them. */
typedef struct idle {
    kakeya_engine *engine;
    kakeya_session *session[2];
    int n;
    bool later;
    sem_t asked; /* with later */
    size_t bytes;
} idle;

static void close_one(idle *i) { kakeya_session_close(i->session[--i->n]); }

/* Closing takes the engine's turn. */
static size_t relieve(void *user, size_t bytes) {
    idle *i = user;
    i->bytes = bytes;
    if (i->later) {
        assert_int_equal(sem_post(&i->asked), 0);
        return KAKEYA_RELIEF_LATER;
    }
    if (!i->n) return 0;
    const size_t before = mem_total(&i->engine->account);
    close_one(i);
    return before - mem_total(&i->engine->account);
}

static void open_idle(idle *i, kakeya_engine *engine, bool later) {
    *i = (idle){.engine = engine, .later = later};
    assert_int_equal(sem_init(&i->asked, 0, 0), 0);
    for (; i->n < 2; i->n++) {
        int32_t prompt[PROMPT];
        fake_prompt(prompt, PROMPT, 9, FAKE_VOCAB);
        i->session[i->n] = fake_session(engine, NULL);
        ok(kakeya_session_sync(i->session[i->n], prompt, PROMPT, NULL, NULL, NULL, error));
    }
    engine->relieve = relieve;
    engine->relieve_user = i;
    engine->account.limit_bytes = mem_total(&engine->account) + TIGHT;
}

static void close_idle(idle *i) {
    while (i->n) close_one(i);
    sem_destroy(&i->asked);
}

static void idle_sessions_go_first(void **state) {
    (void)state;
    world w;
    answer slow, other;
    idle kept;
    open_world(&w);
    begin(&slow, w.engine, 0, true);
    await_pause(&slow);
    open_idle(&kept, w.engine, false);
    begin(&other, w.engine, 1, false);
    (void)end(&other, KAKEYA_OK);
    says(&other, w.expected[1]);
    assert_true(kept.bytes > 0);
    assert_true(kept.n < 2);
    if (kept.n) assert_non_null(slow.session->timeline.cache);
    kakeya_session_resume(slow.session);
    (void)end(&slow, KAKEYA_OK);
    says(&slow, w.expected[0]);
    close_idle(&kept);
    kakeya_session_close(slow.session);
    kakeya_session_close(other.session);
    close_world(&w);
}

static void memory_on_its_way_is_waited_for(void **state) {
    (void)state;
    for (int cancels = 0; cancels < 2; cancels++) {
        world w;
        answer a;
        idle kept;
        open_world(&w);
        open_idle(&kept, w.engine, true);
        begin(&a, w.engine, 1, false);
        await(&kept.asked);
        assert_int_equal(a.said, 0);
        if (cancels) {
            kakeya_session_cancel(a.session);
            (void)end(&a, KAKEYA_CANCELLED);
        } else {
            close_one(&kept);
            close_one(&kept);
            kakeya_engine_relieved(w.engine);
            (void)end(&a, KAKEYA_OK);
            says(&a, w.expected[1]);
        }
        close_idle(&kept);
        kakeya_session_close(a.session);
        close_world(&w);
    }
}

typedef struct bytes {
    const unsigned char *data;
    size_t n, at;
} bytes;

static size_t read_bytes(void *user, void *data, size_t n) {
    bytes *b = user;
    if (n > b->n - b->at) n = b->n - b->at;
    memcpy(data, b->data + b->at, n);
    b->at += n;
    return n;
}

/* A session that is read where there is no memory for it goes on with the same tokens once there is. What is damaged
 * leaves it as it was. */
static void a_session_is_read_without_memory(void **state) {
    (void)state;
    world w;
    open_world(&w);
    void *data;
    bytes b = {0};
    kakeya_session *session = fake_session(w.engine, NULL), *again = fake_session(w.engine, NULL);
    ok(kakeya_session_sync(session, w.expected[0], PROMPT, NULL, NULL, NULL, error));
    ok(session_to_memory(session, &data, &b.n, error));
    b.data = data;
    kakeya_session_close(session);
    b.n--;
    assert_int_equal(kakeya_session_load_parked(again, read_bytes, &b, NULL), KAKEYA_FORMAT);
    assert_false(kakeya_session_is_parked(again));
    assert_int_equal(kakeya_engine_spilled_bytes(w.engine), 0);
    b.n++;
    b.at = 0;
    w.engine->account.limit_bytes = mem_total(&w.engine->account) + TIGHT;
    assert_int_equal(kakeya_session_load(again, read_bytes, &b, NULL), KAKEYA_OUT_OF_MEMORY);
    b.at = 0;
    ok(kakeya_session_load_parked(again, read_bytes, &b, error));
    assert_true(kakeya_session_is_parked(again));
    assert_int_equal(kakeya_session_kv_bytes(again).total, 0);
    w.engine->account.limit_bytes = 0;
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.ignore_stop_tokens = true;
    go.max_tokens = NEW;
    ok(kakeya_session_generate(again, &go, NULL, error));
    assert_timeline(again, w.expected[0], PROMPT + NEW, "read without memory");
    assert_int_equal(kakeya_engine_spilled_bytes(w.engine), 0);
    kakeya_free(data);
    kakeya_session_close(again);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pause_computes_nothing_and_takes_no_place),
        cmocka_unit_test(a_cancel_ends_a_pause),
        cmocka_unit_test(a_paused_request_gives_its_memory),
        cmocka_unit_test(idle_sessions_go_first),
        cmocka_unit_test(memory_on_its_way_is_waited_for),
        cmocka_unit_test(a_session_is_read_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
