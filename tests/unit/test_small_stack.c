/* Protects: a thread with KAKEYA_STACK_BYTES of stack can do anything, and threads of the library have enough of their
 * own where the system's default is small. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <pthread.h>

#include "kakeya_study.h"
#include "session/session.h"
#include "sweep.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { FRAMES = 4 }; /* larger ones */
#else
enum { FRAMES = 1 };
#endif

typedef struct caller {
    kakeya_status status;
    kakeya_error error;
    size_t tokens;
} caller;

static kakeya_status use(caller *c, kakeya_engine *engine, kakeya_attention attention, kakeya_kv_format format) {
    kakeya_session *session = NULL, *fork = NULL;
    kakeya_session_options so;
    KAKEYA_INIT(&so);
    so.context_tokens = 600;
    so.attention = attention;
    so.restore_layers = KAKEYA_RESTORE_ALL;
    so.kv_format = format;
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.max_tokens = 12;
    go.sampling.temperature = 1;
    go.ignore_stop_tokens = true;
    kakeya_score_options scores;
    KAKEYA_INIT(&scores);
    scores.prompt_length = 290;
    int32_t prompt[300];
    void *data = NULL;
    size_t bytes = 0;
    for (int i = 0; i < 300; i++) prompt[i] = 100 + i * 7 % 900;
    kakeya_status status = kakeya_session_open(engine, &so, &session, &c->error);
    if (!status) status = kakeya_session_sync(session, prompt, 300, NULL, NULL, NULL, &c->error);
    if (!status) status = kakeya_session_generate(session, &go, NULL, &c->error);
    if (!status) status = kakeya_session_fork(session, &fork, &c->error);
    if (!status) status = session_to_memory(session, &data, &bytes, &c->error);
    if (!status) status = session_from_memory(fork, data, bytes, &c->error);
    if (!status) status = kakeya_session_park(fork, &c->error);
    if (!status) status = kakeya_session_generate(fork, &go, NULL, &c->error);
    if (!status) status = kakeya_session_score(session, prompt, 300, &scores, &c->error);
    size_t n;
    if (!status) (void)kakeya_session_tokens(fork, &n);
    if (!status) c->tokens += n;
    kakeya_free(data);
    kakeya_session_close(fork);
    kakeya_session_close(session);
    return status;
}

static void *call(void *user) {
    caller *c = user;
    kakeya_engine *engine = NULL;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = KAKEYA_MODELS "/demo";
    options.backend = "cpu";
    options.threads = 2;
    c->status = kakeya_engine_open(&options, &engine, &c->error);
    if (!c->status) c->status = use(c, engine, KAKEYA_ATTENTION_RESTORED, KAKEYA_KV_Q4);
    if (!c->status && !sweep_short()) c->status = use(c, engine, KAKEYA_ATTENTION_NATIVE, KAKEYA_KV_AUTO);
    kakeya_engine_close(engine);
    return NULL;
}

static void a_small_stack_is_enough(void **state) {
    (void)state;
    caller c = {0};
    pthread_t thread;
    pthread_attr_t small, own;
    assert_int_equal(pthread_attr_init(&small), 0);
    assert_int_equal(pthread_attr_setstacksize(&small, 65536), 0);
#if defined(__GLIBC__)
    assert_int_equal(pthread_setattr_default_np(&small), 0); /* as `ulimit -s 64` does */
#endif
    assert_int_equal(pthread_attr_init(&own), 0);
    assert_int_equal(pthread_attr_setstacksize(&own, FRAMES * KAKEYA_STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &own, call, &c), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&own);
    pthread_attr_destroy(&small);
    if (c.status != KAKEYA_OK) fail_msg("%s", c.error.message);
    assert_true(c.tokens >= 324);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_small_stack_is_enough)};
    return cmocka_run_group_tests_name("small stack", tests, NULL, NULL);
}
