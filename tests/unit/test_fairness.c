/* Who waits for how long, on a clock that computing alone moves: a forward takes a base and a time for each row, so
 * what is measured here does not depend on the machine. For whole runs only; test_scheduler stands in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "scratch.h"
#include "session/session.h"
#include "sweep.h"

enum { STALL_MS = 60, STREAMS = 63, CHUNK = 512, CONTEXT = 60400 };

static const double row_seconds = 0.0002, quick = 0.004, slow = 0.05; /* of a row, and of a forward beyond its rows */
static double base_seconds = 0.004;

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
    KAKEYA_INIT(&options);
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
    kakeya_session *cancels; /* by its first token */
} speaker;

static int32_t text[CONTEXT];

static bool listen(void *user, const kakeya_event *event) {
    speaker *s = user;
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    double now = virtual_now;
    if (s->cancels) kakeya_session_cancel(s->cancels);
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
    KAKEYA_INIT(&generate);
    KAKEYA_INIT(&r);
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
    KAKEYA_INIT(&options);
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
 * again as the scheduler errs by; and the prompt is done within twice its chunks, however long the streams' own steps
 * are. */
static void a_long_prompt_among_streams(void **state) {
    base_seconds = *(const double *)*state;
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
    /* it begins with the 8 rows that the prompts of the streams leave of their forward; then the streams have a step of
     * their own, and the speed is learned */
    assert_in_range(reader.first - reader.served + 1, chunks, 2 * chunks + 3);
    for (int i = 0; i < STREAMS; i++) kakeya_session_close(stream[i].session);
    kakeya_session_close(reader.session);
    kakeya_session_close(first.session);
    kakeya_engine_close(engine);
    base_seconds = quick;
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

/* Prompts of 50 tokens behind one of 60,000, alone and beside streams: each begins within two forwards. */
static void short_prompts_behind_a_very_long_one(void **state) {
    (void)state;
    enum { LATE = 5, LONG = 60000 };
    static speaker stream[STREAMS], reader, late[LATE], first;
    for (int streams = 0; streams < STREAMS; streams += STREAMS - 1) { /* the two have places beside them */
        const int n = streams ? 1 : LATE; /* beside streams half of a forward's prompt rows is less */
        backend_ops ops;
        kakeya_engine *engine = open_engine(&ops);
        for (int i = 0; i < streams; i++) open_session(engine, &stream[i], 8, 60);
        open_session(engine, &reader, LONG, 2);
        open_session(engine, &first, 600, 1);
        for (int i = 0; i < n; i++) open_session(engine, &late[i], 50, 1);
        for (int i = 0; i < streams; i++) stream[i].next = i + 1 < streams ? &stream[i + 1] : &reader;
        for (int i = 0; i + 1 < n; i++) late[i].next = &late[i + 1];
        first.then = streams ? &stream[0] : &reader;
        reader.then = &late[0];
        late[n - 1].cancels = reader.session;
        begin(&first);
        assert_ok(kakeya_request_wait(first.request, NULL, &error));
        for (int i = 0; i < streams; i++) assert_ok(kakeya_request_wait(stream[i].request, NULL, &error));
        assert_int_equal(kakeya_request_wait(reader.request, NULL, &error), KAKEYA_CANCELLED);
        for (speaker *s = late; s < late + n; s++) {
            assert_ok(kakeya_request_wait(s->request, NULL, &error));
            printf("50 tokens behind 60,000%s: begin in forward %d\n", streams ? " beside streams" : "",
                   s->served - s->submitted);
            assert_in_range(s->served - s->submitted, 1, 2);
        }
        for (int i = 0; i < streams; i++) kakeya_session_close(stream[i].session);
        for (int i = 0; i < n; i++) kakeya_session_close(late[i].session);
        kakeya_session_close(reader.session);
        kakeya_session_close(first.session);
        kakeya_engine_close(engine);
    }
}

/* ---------------------------------------------------------------------------- little memory, clients that stand still
 */

enum { CLIENTS = 200, STALLED = 10, ROOM = 20, ASKED = 40, ANSWERED = 24, STALL_AT = 5, STAND = 12, BEHIND = 4 };

/* What happened, in the order in which it did. */
typedef struct simulation {
    int began[CLIENTS]; /* forward in which a client's prompt began; 0: it has not */
    int first[CLIENTS]; /* clients in the order of the first rows of their prompts */
    int n, running, most;
    double came, token[CLIENTS];                    /* virtual time of all submissions, and of first tokens */
    struct client *news[2 * CLIENTS + 2 * STALLED]; /* whose request is done, or who holds everything */
    _Atomic int n_news, ended, left; /* requests that are done, and those that have given their memory back */
    sem_t told, go_on, gone;
} simulation;

typedef struct client {
    simulation *all;
    int number, tokens;
    int resumed; /* forward of its first token after it stood still; 0: none */
    bool stalls; /* its callback refuses the next token from STALL_AT on */
    bool holds;  /* everything stands still at its first token until the stalled one is back */
    bool done;   /* its request is, else it holds */
    kakeya_session *session;
    kakeya_request *request;
} client;

/* By the thread that computes. */
static void tell_of(client *c) {
    simulation *s = c->all;
    s->news[s->n_news] = c;
    s->n_news++;
    (void)sem_post(&s->told);
}

/* Who is done holds its memory until it has left: nobody goes on while too many have not. */
static void let_leave(simulation *s) {
    while (s->ended - s->left > BEHIND) (void)sem_wait(&s->gone);
}

/* The next one of whom there is news. */
static client *hear_of(simulation *s, int *heard) {
    while (sem_wait(&s->told) != 0) continue;
    return s->news[(*heard)++];
}

static bool hear(void *user, const kakeya_event *event) {
    client *c = user;
    simulation *s = c->all;
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    let_leave(s);
    if (c->tokens++ == 0) s->token[c->number] = virtual_now;
    if (c->tokens == STALL_AT + 1 && !c->resumed) c->resumed = forwards;
    if (c->holds && c->tokens == 1) {
        tell_of(c);
        while (sem_wait(&s->go_on) != 0) continue;
        c->holds = false;
    }
    return !(c->stalls && c->tokens == STALL_AT);
}

static bool see_prompt(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)done, (void)total;
    client *c = user;
    simulation *s = c->all;
    if (s->began[c->number]) return true;
    s->began[c->number] = forwards;
    s->first[s->n++] = c->number;
    if (++s->running > s->most) s->most = s->running;
    return true;
}

static void tell(void *user) {
    client *c = user;
    c->all->running--;
    c->all->ended += !c->stalls;
    c->done = true;
    tell_of(c);
}

static int answer_of(const client *c) { return ANSWERED + c->number * 7 % 17; }

static void ask(client *c, uint64_t arrival) {
    kakeya_generate_options generate;
    kakeya_request_options r;
    KAKEYA_INIT(&generate);
    KAKEYA_INIT(&r);
    generate.mode = KAKEYA_MODE_AR;
    generate.ignore_stop_tokens = true;
    generate.max_tokens = answer_of(c) - c->tokens;
    generate.on_event = hear;
    generate.user = c;
    r.tokens = c->tokens ? NULL : text;
    r.n_tokens = c->tokens ? 0 : ASKED;
    r.generate = &generate;
    r.progress = see_prompt;
    r.progress_user = c;
    r.on_done = tell;
    r.done_user = c;
    r.arrival = arrival;
    c->done = false;
    assert_ok(kakeya_session_submit(c->session, &r, &c->request, &error));
}

static void leave(client *c) {
    assert_ok(kakeya_request_wait(c->request, NULL, &error));
    assert_int_equal(c->tokens, answer_of(c));
    kakeya_session_close(c->session);
    c->session = NULL;
    c->all->left++;
    (void)sem_post(&c->all->gone);
}

static size_t memory_of(const kakeya_engine *engine) { return mem_total(&engine->account); }

static void open_clients(kakeya_engine *engine, simulation *s, client *c) {
    *s = (simulation){0};
    assert_int_equal(sem_init(&s->told, 0, 0), 0);
    assert_int_equal(sem_init(&s->go_on, 0, 0), 0);
    assert_int_equal(sem_init(&s->gone, 0, 0), 0);
    kakeya_session_options options;
    KAKEYA_INIT(&options);
    options.context_tokens = ASKED + 2 * ANSWERED;
    for (int i = 0; i < CLIENTS; i++) {
        c[i] = (client){.all = s, .number = i};
        assert_ok(kakeya_session_open(engine, &options, &c[i].session, &error));
    }
}

static client *stalled_one(client *c, int i) { return &c[3 + 15 * i]; }

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Bytes of all sessions at rest, and those that one takes for its prompt and its answer. */
static size_t learn_memory(size_t *each) {
    static client c[CLIENTS];
    static simulation s;
    backend_ops ops;
    kakeya_engine *engine = open_engine(&ops);
    open_clients(engine, &s, c);
    size_t begun = memory_of(engine), after[2];
    for (int i = 0; i < 2; i++) { /* the first one's needs are also the engine's */
        ask(&c[i], 0);
        assert_ok(kakeya_request_wait(c[i].request, NULL, &error));
        after[i] = memory_of(engine);
    }
    *each = after[1] - after[0];
    for (int i = 0; i < CLIENTS; i++) kakeya_session_close(c[i].session);
    kakeya_engine_close(engine);
    return begun + (after[0] - begun - *each);
}

/* A client that stands still and comes back keeps its place in the order of arrival: nobody who had not begun begins
 * before it goes on. keeps false: it comes back as anybody new. Returns the p99 of first tokens in virtual seconds. */
static double simulate(size_t begun, size_t each, bool keeps, int *waited) {
    static client c[CLIENTS];
    static simulation s;
    backend_ops ops;
    kakeya_engine *engine = open_engine(&ops);
    engine->max_stall_ms = 1000; /* whoever begins has its whole prompt computed in the same forward */
    open_clients(engine, &s, c);
    engine->account.limit_bytes = begun + ROOM * each + each / 2;
    for (int i = 0; i < STALLED; i++) stalled_one(c, i)->stalls = stalled_one(c, i)[STAND + ROOM].holds = true;
    int heard = 0, left = CLIENTS, back[STALLED], not_begun[STALLED], n_back = 0;
    s.came = virtual_now;
    c[0].holds = true; /* until all are there */
    for (int i = 0; i < CLIENTS; i++) {
        ask(&c[i], 0);
        if (i == 0) assert_ptr_equal(hear_of(&s, &heard), &c[0]);
    }
    assert_int_equal(sem_post(&s.go_on), 0);
    while (left) {
        client *who = hear_of(&s, &heard);
        if (who->done && !who->stalls) {
            leave(who);
            left--;
        } else if (!who->done) {
            client *stalled = stalled_one(c, n_back);
            uint64_t arrival = kakeya_request_arrival(stalled->request);
            assert_true(stalled->done);
            assert_int_equal(stalled->tokens, STALL_AT);
            assert_ok(kakeya_request_wait(stalled->request, NULL, &error));
            stalled->stalls = false;
            back[n_back] = forwards;
            not_begun[n_back++] = CLIENTS - s.n;
            ask(stalled, keeps ? arrival : 0);
            assert_int_equal(sem_post(&s.go_on), 0);
        }
    }
    *waited = 0;
    for (int i = 0; i < STALLED; i++) {
        const client *stalled = stalled_one(c, i);
        assert_true(not_begun[i] > 0); /* there was somebody to come before */
        for (int k = 0; k < CLIENTS; k++) *waited += s.began[k] > back[i] && s.began[k] < stalled->resumed;
    }
    for (int i = 0; i < CLIENTS; i++) {
        if (s.first[i] != i) fail_msg("client %d begins as number %d", s.first[i], i);
        s.token[i] -= s.came;
    }
    assert_in_range(s.most, ROOM / 2, 2 * ROOM);
    qsort(s.token, CLIENTS, sizeof *s.token, ascending);
    printf(
        "%d clients, memory for %d (%d at once), %d stand still and %s: first token p50 %.2f s, p99 %.2f s; %d began "
        "before one that had come back\n",
        CLIENTS, ROOM, s.most, STALLED, keeps ? "keep their place" : "come back as new ones", s.token[CLIENTS / 2],
        s.token[CLIENTS * 99 / 100], *waited);
    for (int i = 0; i < CLIENTS; i++) kakeya_session_close(c[i].session);
    kakeya_engine_close(engine);
    sem_destroy(&s.told);
    sem_destroy(&s.go_on);
    sem_destroy(&s.gone);
    return s.token[CLIENTS * 99 / 100];
}

static void clients_that_stand_still(void **state) {
    (void)state;
    size_t each, begun = learn_memory(&each);
    int waited;
    (void)simulate(begun, each, false, &waited);
    assert_true(waited > 0); /* so the test would see it */
    (void)simulate(begun, each, true, &waited);
    assert_int_equal(waited, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        {"a_long_prompt_among_streams, quick", a_long_prompt_among_streams, NULL, NULL, (void *)(uintptr_t)&quick},
        {"a_long_prompt_among_streams, slow", a_long_prompt_among_streams, NULL, NULL, (void *)(uintptr_t)&slow},
        cmocka_unit_test(a_short_prompt_behind_long_ones),
        cmocka_unit_test(short_prompts_behind_a_very_long_one),
        cmocka_unit_test(clients_that_stand_still),
    };
    return cmocka_run_group_tests(tests, open_text, NULL);
}
