/* Who waits for how long, on a clock that computing alone moves: a forward takes a base and a time for each row, so
 * what is measured here does not depend on the machine. For whole runs only; test_scheduler stands in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "scratch.h"
#include "session/session.h"
#include "sweep.h"

enum { STALL_MS = 60, STREAMS = 63, CHUNK = 512, CONTEXT = 6400 };

static const double base_seconds = 0.004, row_seconds = 0.0002;

static kakeya_error error;
static _Atomic double virtual_now = 1;
static _Atomic int forwards;

/* In place of the C library's. */
int clock_gettime(clockid_t clock, struct timespec *out) {
    if (clock != CLOCK_MONOTONIC) return (int)syscall(SYS_clock_gettime, clock, out);
    double now = virtual_now;
    out->tv_sec = (time_t)now;
    out->tv_nsec = (long)((now - (double)out->tv_sec) * 1e9);
    return 0;
}

static const backend_ops *real;

static kakeya_status timed_forward(backend_model *model, backend_segment *segments, int n, kakeya_error *why) {
    kakeya_status status = real->forward(model, segments, n, why);
    double took = base_seconds;
    for (int i = 0; i < n; i++) took += row_seconds * segments[i].n;
    virtual_now = virtual_now + took;
    forwards++;
    return status;
}

static kakeya_engine *open_engine(backend_ops *ops) {
    kakeya_engine *engine = NULL;
    kakeya_engine_options options;
    kakeya_engine_options_init(&options);
    options.model = KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense";
    options.drafter = "none";
    options.backend = "cpu";
    options.threads = 1;
    options.max_batch = STREAMS + 1;
    options.max_stall_ms = STALL_MS;
    assert_ok(kakeya_engine_open(&options, &engine, &error));
    engine->verifier->config.max_context = CONTEXT; /* what the numbers mean does not matter here */
    real = engine->ops;
    *ops = *real;
    ops->forward = timed_forward;
    engine->ops = ops;
    return engine;
}

/* One request, and when its tokens came. */
typedef struct speaker {
    kakeya_session *session;
    kakeya_request *request;
    double last, most; /* seconds between two tokens */
    int tokens;
    int submitted, served, first; /* forwards when that happened: the first rows of its prompt, its first token */
    struct speaker *then, *next;  /* then, and all behind it, are submitted once this one's prompt has been begun */
    const int32_t *prompt;
    size_t n_prompt;
    int wanted;
} speaker;

static int32_t text[CONTEXT];

static bool listen(void *user, const kakeya_event *event) {
    speaker *s = user;
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    double now = virtual_now;
    if (s->tokens++ == 0)
        s->first = forwards;
    else if (now - s->last > s->most)
        s->most = now - s->last;
    s->last = now;
    return true;
}

static bool on_prompt(void *user, const char *what, uint64_t done, uint64_t total);

static void begin(speaker *s) {
    kakeya_generate_options generate;
    kakeya_request_options r;
    kakeya_generate_options_init(&generate);
    kakeya_request_options_init(&r);
    generate.mode = KAKEYA_MODE_AR;
    generate.ignore_stop_tokens = true;
    generate.max_tokens = s->wanted;
    generate.on_event = listen;
    generate.user = s;
    r.tokens = s->prompt;
    r.n_tokens = s->n_prompt;
    r.generate = &generate;
    r.progress = on_prompt;
    r.progress_user = s;
    s->submitted = forwards;
    assert_ok(kakeya_session_submit(s->session, &r, &s->request, &error));
}

static bool on_prompt(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what;
    (void)total;
    speaker *s = user;
    if (done && !s->served) s->served = forwards;
    if (done < CHUNK) return true;
    for (speaker *each = s->then; each; each = each->next) begin(each);
    s->then = NULL;
    return true;
}

static void open_session(kakeya_engine *engine, speaker *s, size_t prompt, int wanted) {
    kakeya_session_options options;
    kakeya_session_options_init(&options);
    options.context_tokens = (int)prompt + wanted + 16;
    *s = (speaker){.prompt = text, .n_prompt = prompt, .wanted = wanted};
    assert_ok(kakeya_session_open(engine, &options, &s->session, &error));
}

static int open_text(void **state) {
    (void)state;
    for (int i = 0; i < CONTEXT; i++) text[i] = 110 + i * 7 % 90;
    return 0;
}

/* 49: a prompt of 6,000 tokens among 63 streams. A stream waits for a step of them all, for max-stall, and for as much
 * again as the scheduler errs by; and the prompt is done within twice its chunks. */
static void a_long_prompt_among_streams(void **state) {
    (void)state;
    const int prompt = sweep_short() ? 2048 : 6000, chunks = (prompt + CHUNK - 1) / CHUNK;
    static speaker stream[STREAMS], reader, first;
    backend_ops ops;
    kakeya_engine *engine = open_engine(&ops);
    for (int i = 0; i < STREAMS; i++) open_session(engine, &stream[i], 8, 4 * chunks + 40);
    open_session(engine, &reader, (size_t)prompt, 2);
    open_session(engine, &first, 600, 1);
    for (int i = 0; i < STREAMS; i++) stream[i].next = i + 1 < STREAMS ? &stream[i + 1] : &reader;
    first.then = &stream[0]; /* so all come in one moment, whatever threads do */
    begin(&first);
    assert_ok(kakeya_request_wait(first.request, NULL, &error));
    for (int i = 0; i < STREAMS; i++) assert_ok(kakeya_request_wait(stream[i].request, NULL, &error));
    assert_ok(kakeya_request_wait(reader.request, NULL, &error));
    double step = base_seconds + row_seconds * (STREAMS + 1), most = 0;
    for (int i = 0; i < STREAMS; i++) most = stream[i].most > most ? stream[i].most : most;
    printf("longest wait %.1f ms, step %.1f ms, stall %d ms; the prompt took %d forwards for %d chunks\n", most * 1000,
           step * 1000, STALL_MS, reader.first - reader.served + 1, chunks);
    assert_true(most <= step + 1.25 * STALL_MS / 1000.0);
    assert_true(most > step); /* the prompt was read beside them */
    assert_in_range(reader.first - reader.served + 1, chunks, 2 * chunks);
    for (int i = 0; i < STREAMS; i++) kakeya_session_close(stream[i].session);
    kakeya_session_close(reader.session);
    kakeya_session_close(first.session);
    kakeya_engine_close(engine);
}

/* 50: a short prompt that comes behind three long ones: its first token comes within twice its own chunks. */
static void a_short_prompt_behind_long_ones(void **state) {
    (void)state;
    for (size_t n = 100; n <= 1100; n += sweep_short() ? 1000 : 500) {
        static speaker reader[3], late;
        backend_ops ops;
        kakeya_engine *engine = open_engine(&ops);
        for (int i = 0; i < 3; i++) open_session(engine, &reader[i], 6000 - 100 * (size_t)i, 2);
        open_session(engine, &late, n, 2);
        reader[0].then = &late;
        for (int i = 0; i < 3; i++) begin(&reader[i]);
        for (int i = 0; i < 3; i++) assert_ok(kakeya_request_wait(reader[i].request, NULL, &error));
        assert_ok(kakeya_request_wait(late.request, NULL, &error));
        int chunks = ((int)n + CHUNK - 1) / CHUNK;
        printf("%zu tokens behind long prompts: %d forwards for %d chunks\n", n, late.first - late.submitted, chunks);
        assert_in_range(late.first - late.submitted, 1, 2 * chunks + 1); /* one was under way when it came */
        assert_true(late.first < reader[2].first);
        for (int i = 0; i < 3; i++) kakeya_session_close(reader[i].session);
        kakeya_session_close(late.session);
        kakeya_engine_close(engine);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_among_streams),
        cmocka_unit_test(a_short_prompt_behind_long_ones),
    };
    return cmocka_run_group_tests(tests, open_text, NULL);
}
