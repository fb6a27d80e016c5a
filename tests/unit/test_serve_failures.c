/* F12: a forward fails for one of two answers, and for both. Who is meant gets 500 or an error event. Where it is one,
 * nobody else notices. Where nobody is meant, everybody is: the model is loaded again, and the next request has its
 * answer; where it cannot be loaded, the server has no use any more. Memory that is missing for a moment is no failure.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "scratch.h"
#include "serve/lifecycle.h"
#include "serve/serve.h"
#include "serve/server.h"
#include "session/engine.h"

static server_context *server;
static int port;
static char place[512]; /* a link, so that a test can take the model away */

/* ------------------------------------------------------------------------------------------------------- the device */

enum { FAIL_NOTHING = 0, FAIL_ONE, FAIL_ALL, FAIL_PROMPT, NO_MEMORY_FOR_PROMPT, NO_MEMORY_FOR_ANSWER, NO_MEMORY };

static const backend_ops *real;
static backend_ops failing;
static _Atomic int plan, failed, naps;

/* Nothing is computed before both requests have come; then ever more slowly, so that one does not end before the other
 * has its session. */
static void wait_for_the_other(void) {
    size_t running = 0, waiting = 0;
    while (admission_counts(server->admission, &running, &waiting), running + waiting < 2)
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    int nap = 10 * naps++; /* ms */
    (void)nanosleep(&(struct timespec){.tv_sec = nap / 1000, .tv_nsec = nap % 1000 * 1000000L}, NULL);
}

static kakeya_status forward(backend_model *model, backend_segment *segments, int n, kakeya_error *error) {
    bool answers = n == 2 && segments[0].kind == SEGMENT_DECODE && segments[1].kind == SEGMENT_DECODE;
    int what = plan;
    if ((what == FAIL_PROMPT && segments[0].kind == SEGMENT_PROMPT) ||
        (answers && (what == FAIL_ONE || what == FAIL_ALL))) {
        plan = FAIL_NOTHING;
        failed = failed + 1;
        if (what == FAIL_ONE) segments[1].status = KAKEYA_BACKEND;
        return error_set(error, KAKEYA_BACKEND, "forward: injected failure");
    }
    bool prompt = segments[0].kind == SEGMENT_PROMPT;
    if (what == NO_MEMORY || (what == NO_MEMORY_FOR_PROMPT && prompt) || (what == NO_MEMORY_FOR_ANSWER && !prompt)) {
        if (what != NO_MEMORY) plan = FAIL_NOTHING;
        failed = failed + 1;
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "forward: injected lack of memory");
    }
    if (what == FAIL_ONE || what == FAIL_ALL) wait_for_the_other();
    return real->forward(model, segments, n, error);
}

/* ------------------------------------------------------------------------------------------------------- the server */

/* What fails is the engine that is there now. */
static void hook(void) {
    real = server->engine->ops;
    failing = *real;
    failing.forward = forward;
    server->engine->ops = &failing;
}

static void wait_for_load(uint64_t wanted) {
    uint64_t loads = 0, failures = 0;
    for (lifecycle_counts(server->lifecycle, &loads, &failures); loads < wanted;
         lifecycle_counts(server->lifecycle, &loads, &failures))
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    while (atomic_load(&server->state) != SERVER_READY) sched_yield();
    assert_int_equal(loads, wanted);
    assert_int_equal(failures, 0);
    hook();
}

static int start(void **state) {
    if (scratch_setup(state)) return -1;
    static const char *const names[] = {"m"};
    static serve_settings settings = {.host = "127.0.0.1",
                                      .names = names,
                                      .n_names = 1,
                                      .max_tool_calls = 8,
                                      .ping_seconds = 60,
                                      .wake_wait_seconds = 600,
                                      .keep_alive_seconds = 60};
    kakeya_error error = {0};
    KAKEYA_INIT(&settings.engine);
    KAKEYA_INIT(&settings.session);
    snprintf(place, sizeof place, "%s", scratch_path("model"));
    if (symlink(KAKEYA_MODELS "/demo", place)) fail_msg("%s: no link", place);
    settings.engine.model = place;
    settings.engine.threads = 1;
    settings.engine.max_batch = 4;
    settings.session.context_tokens = 1024;
    if (serve_start(&settings, &server, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    port = atoi(strrchr(serve_url(server), ':') + 1);
    while (atomic_load(&server->state) == SERVER_LOADING) sched_yield();
    hook();
    return 0;
}

static int stop(void **state) {
    serve_stop(server);
    return scratch_teardown(state);
}

/* ------------------------------------------------------------------------------------------------------- the clients
 */

typedef struct client {
    const char *question;
    bool stream;
    char reply[1 << 19], content[1 << 16];
    size_t n;
    int status;
    bool error, whole;
    pthread_t thread;
} client;

/* All that stands behind "content":", as it is written there. */
static void read_content(client *c) {
    static const char before[] = "\"content\":\"";
    size_t n = 0;
    for (const char *at = c->reply; (at = strstr(at, before)) != NULL;) {
        for (at += sizeof before - 1; *at && *at != '"' && n < sizeof c->content - 2; at++) {
            if (*at == '\\') c->content[n++] = *at++;
            c->content[n++] = *at;
        }
    }
    c->content[n] = 0;
}

static void *ask(void *user) {
    client *c = user;
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    char body[512], request[1024];
    int bytes = snprintf(body, sizeof body,
                         "{\"model\":\"m\",\"temperature\":0,\"max_tokens\":300,\"ignore_eos\":true,\"stream\":%s,"
                         "\"cache_prompt\":false,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}",
                         c->stream ? "true" : "false", c->question);
    int n = snprintf(request, sizeof request,
                     "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                     "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
                     bytes, body);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    c->n = 0;
    if (s < 0 || connect(s, (const struct sockaddr *)&address, sizeof address) || send(s, request, (size_t)n, 0) != n)
        abort();
    for (ssize_t got; (got = recv(s, c->reply + c->n, sizeof c->reply - 1 - c->n, 0)) > 0;) c->n += (size_t)got;
    close(s);
    c->reply[c->n] = 0;
    c->status = c->n > 12 ? atoi(c->reply + 9) : 0;
    c->error = strstr(c->reply, "\"code\":\"backend\"") != NULL;
    c->whole = strstr(c->reply, "\"finish_reason\":\"length\"") != NULL;
    read_content(c);
    return NULL;
}

static client first = {.question = "Say a word", .stream = true}, second = {.question = "Count", .stream = true};
static char first_alone[sizeof first.content], second_alone[sizeof first.content];

static void ask_both(void) {
    naps = 0;
    assert_int_equal(pthread_create(&first.thread, NULL, ask, &first), 0);
    assert_int_equal(pthread_create(&second.thread, NULL, ask, &second), 0);
    pthread_join(first.thread, NULL);
    pthread_join(second.thread, NULL);
}

static void assert_whole(const client *c, const char *alone) {
    assert_int_equal(c->status, 200);
    assert_true(c->whole && !c->error);
    assert_true(strlen(alone) > 100);
    assert_string_equal(c->content, alone);
}

/* An error event, and the end of the stream as its clients expect it. */
static void assert_broken(const client *c, const char *alone) {
    assert_int_equal(c->status, 200);
    assert_true(c->error && !c->whole);
    assert_non_null(strstr(c->reply, "data: [DONE]\n\n"));
    assert_true(strlen(c->content) < strlen(alone));
    assert_memory_equal(c->content, alone, strlen(c->content));
}

static void alone(void **state) {
    (void)state;
    ask(&first);
    strcpy(first_alone, first.content);
    ask(&second);
    strcpy(second_alone, second.content);
    assert_whole(&first, first_alone);
    assert_whole(&second, second_alone);
    assert_string_not_equal(first_alone, second_alone);
}

static void one_answer_fails(void **state) {
    (void)state;
    failed = 0;
    plan = FAIL_ONE;
    ask_both();
    assert_int_equal(failed, 1);
    assert_int_equal(first.error + second.error, 1);
    if (first.error) {
        assert_broken(&first, first_alone);
        assert_whole(&second, second_alone);
    } else {
        assert_whole(&first, first_alone);
        assert_broken(&second, second_alone);
    }
}

static void all_fail(void **state) {
    (void)state;
    failed = 0;
    plan = FAIL_ALL;
    ask_both();
    assert_int_equal(failed, 1);
    assert_broken(&first, first_alone);
    assert_broken(&second, second_alone);
    ask_both(); /* waits for the model */
    assert_whole(&first, first_alone);
    assert_whole(&second, second_alone);
    wait_for_load(1);
}

static void a_prompt_fails(void **state) {
    (void)state;
    static client plain = {.question = "Say a word"};
    failed = 0;
    plan = FAIL_PROMPT;
    ask(&plain);
    assert_int_equal(failed, 1);
    assert_int_equal(plain.status, 500);
    assert_true(plain.error);
    assert_null(strstr(plain.reply, "injected")); /* details are the log's */
    ask(&plain);
    assert_int_equal(plain.status, 200);
    assert_string_equal(plain.content, first_alone);
    wait_for_load(2);
}

/* Nobody else has any memory, but somebody may have had it when it was missing: an answer that fits alone is not
 * refused, one that does not is. */
static void memory_comes_too_late(void **state) {
    (void)state;
    static client plain = {.question = "Say a word"};
    static const int plans[] = {NO_MEMORY_FOR_PROMPT, NO_MEMORY_FOR_ANSWER};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        failed = 0;
        plan = plans[i];
        ask(&plain);
        assert_int_equal(failed, 1);
        assert_int_equal(plain.status, 200);
        assert_string_equal(plain.content, first_alone);
    }
    plan = NO_MEMORY;
    ask(&plain);
    assert_int_equal(plain.status, 503);
    assert_non_null(strstr(plain.reply, "\"code\":\"out_of_memory\""));
    plan = FAIL_NOTHING;
    ask(&plain);
    assert_int_equal(plain.status, 200);
    assert_string_equal(plain.content, first_alone);
}

/* The end of `kakeya serve`: serve_wait returns, and the program says the line with status 1. */
static void the_model_has_gone(void **state) {
    (void)state;
    static client plain = {.question = "Say a word"};
    kakeya_error error = {0};
    sigset_t none;
    sigemptyset(&none);
    failed = 0;
    plan = FAIL_PROMPT;
    assert_int_equal(unlink(place), 0);
    ask(&plain);
    assert_int_equal(failed, 1);
    assert_int_equal(plain.status, 500);
    ask(&plain); /* waits, and hears why not */
    assert_int_equal(plain.status, 503);
    assert_non_null(strstr(plain.reply, "cannot be loaded again"));
    assert_int_equal(serve_wait(server, &none, &error), 0);
    assert_true(error.status != KAKEYA_OK);
    assert_non_null(strstr(error.message, "the computation has failed, and the model cannot be loaded again"));
    assert_non_null(strstr(error.message, place));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),          cmocka_unit_test(one_answer_fails),      cmocka_unit_test(all_fail),
        cmocka_unit_test(a_prompt_fails), cmocka_unit_test(memory_comes_too_late), cmocka_unit_test(the_model_has_gone),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
