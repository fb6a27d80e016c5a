/* F13: every allocation of every kind of request fails in turn, in the server's code, the library's, libevent's and
 * cJSON's. The client gets its answer, or 500, 503 or 529, or a connection that ends early; never an answer with a
 * hole. The next request is answered, and nothing stays behind (the sanitizers say so at the end).
 * Whole runs only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <event2/event.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "failing_allocations.h"
#include "serve/serve.h"
#include "serve/server.h"
#include "sweep.h"

static server_context *server;
static bool reads_pictures;
static int port;

static void *event_realloc(void *block, size_t bytes) { return realloc(block, bytes); }
static void *plain_malloc(size_t bytes) { return malloc(bytes); }
static void plain_free(void *block) { free(block); }

static int start(void **state) {
    (void)state;
    static const char *const names[] = {"m"};
    static serve_settings settings = {.host = "127.0.0.1",
                                      .names = names,
                                      .n_names = 1,
                                      .max_tool_calls = 8,
                                      .ping_seconds = 10,
                                      .keep_alive_seconds = 60,
                                      .cache_ram_bytes = 1 << 26};
    event_set_mem_functions(plain_malloc, event_realloc, plain_free);
    cJSON_InitHooks(&(cJSON_Hooks){plain_malloc, plain_free});
    KAKEYA_INIT(&settings.engine);
    KAKEYA_INIT(&settings.session);
    settings.engine.model = reads_pictures ? KAKEYA_TEST_DATA "/vision/tiny-tower" : KAKEYA_MODELS "/demo";
    settings.engine.threads = 1;
    settings.engine.max_batch = 4;
    settings.session.context_tokens = 512;
    kakeya_error error = {0};
    if (serve_start(&settings, &server, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    port = atoi(strrchr(serve_url(server), ':') + 1);
    while (atomic_load(&server->state) == SERVER_LOADING) sched_yield();
    return 0;
}

static int stop(void **state) {
    (void)state;
    serve_stop(server);
    return 0;
}

/* ------------------------------------------------------------------------------------------------------- the client */

typedef struct reply {
    char data[1 << 18];
    size_t n;
    int status; /* 0: none came */
    bool complete;
} reply;

static int connected(void) {
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct timeval patience = {.tv_sec = 300};
    assert_true(s >= 0);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(connect(s, (const struct sockaddr *)&address, sizeof address), 0);
    return s;
}

/* Sends a request whose connection ends with it, and reads all that comes. Allocates nothing. */
static void ask(const char *method, const char *path, const char *body, reply *r) {
    static char head[512];
    int s = connected();
    int n = snprintf(head, sizeof head,
                     "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     method, path, strlen(body));
    r->n = 0;
    bool sent = send(s, head, (size_t)n, MSG_NOSIGNAL) == n &&
                send(s, body, strlen(body), MSG_NOSIGNAL) == (ssize_t)strlen(body);
    (void)sent; /* the server may have refused it already */
    for (;;) {
        ssize_t got = recv(s, r->data + r->n, sizeof r->data - 1 - r->n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno != ECONNRESET) fail_msg("%s %s: no end of the reply: %s", method, path, strerror(errno));
        if (got <= 0) break;
        r->n += (size_t)got;
        assert_true(r->n < sizeof r->data - 1);
    }
    close(s);
    r->data[r->n] = '\0';
    r->status = r->n > 12 ? atoi(r->data + 9) : 0;
    const char *rest = strstr(r->data, "\r\n\r\n"), *length = strstr(r->data, "content-length: ");
    r->complete = rest && ((length && length < rest && strlen(rest + 4) == (size_t)atol(length + 16)) ||
                           (!length && r->n > 5 && strcmp(r->data + r->n - 5, "0\r\n\r\n") == 0));
}

/* All of what requests allocated is free again when they have ended. */
static void settle(void) {
    while (atomic_load(&server->calls) || http_count(server->http).connections) sched_yield();
}

/* -------------------------------------------------------------------------------------------------------- the sweep */

#define USER                                                                                                           \
    "{\"model\":\"m\",\"seed\":3,\"temperature\":0,\"messages\":[{\"role\":\"user\",\"content\":\"Say a word\"}]"
#define TOOLS                                                                                                          \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","              \
    "\"properties\":{\"a\":{\"enum\":[1,2]}},\"required\":[\"a\"],\"additionalProperties\":false}}}]"

#define CUSTOM                                                                                                         \
    "\"parallel_tool_calls\":false,\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"c\",\"format\":"             \
    "{\"type\":\"grammar\",\"grammar\":{\"syntax\":\"lark\",\"definition\":\"start: \\\"ab\\\"\"}}}}]"

#define PICTURE                                                                                                        \
    "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAAAAAC4HznGAAAAGmVYSWZJSSoACAAAAAEAEgEDAAEAAAABAAAAAAAAAL"                       \
    "2NGDAAAAAQSURBVHicY2BgZGJgZmEFAAAuABAS2WiDAAAAAElFTkSuQmCC"

static const struct {
    const char *name, *method, *path, *body;
    const char *holds[3]; /* in every 200 that is complete and has no error in it */
} requests[] = {
    {"health", "GET", "/health", "", {"\"ok\""}},
    {"models", "GET", "/v1/models", "", {"\"first_id\":\"m\""}},
    {"props", "GET", "/props", "", {"\"total_slots\""}},
    {"slots", "GET", "/slots", "", {"["}},
    {"metrics", "GET", "/metrics", "", {"kakeya_requests_running", "process_start_time_seconds"}},
    {"tokenize",
     "POST",
     "/tokenize",
     "{\"content\":\"a b\",\"with_pieces\":true,\"return_token_strs\":true}",
     {"\"count\":"}},
    {"detokenize", "POST", "/detokenize", "{\"tokens\":[100,101,102]}", {"\"content\":\"", "\"text\":\""}},
    {"template", "POST", "/apply-template", USER "}", {"<|turn>user\\nSay a word<turn|>"}},
    {"chat",
     "POST",
     "/v1/chat/completions",
     USER ",\"max_tokens\":2,\"return_token_ids\":true}",
     {"\"finish_reason\":\"length\"", "\"prompt_token_ids\":[2,", "\"completion_tokens\":2,"}},
    {"chat stream",
     "POST",
     "/v1/chat/completions",
     USER ",\"max_tokens\":2,\"stream\":true,\"logprobs\":true,\"top_logprobs\":2,"
          "\"stream_options\":{\"include_usage\":true}}",
     {"\"finish_reason\":\"length\"", "\"completion_tokens\":2,", "data: [DONE]\n\n"}},
    {"choices",
     "POST",
     "/v1/chat/completions",
     "{\"model\":\"m\",\"seed\":3,\"temperature\":1,\"n\":2,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"max_tokens\":2,"
     "\"logit_bias\":{\"300\":-100},\"stop\":[\"zzzz\"],\"min_tokens\":1}",
     {"\"index\":0", "\"index\":1", "\"completion_tokens\":4,"}},
    {"call",
     "POST",
     "/v1/chat/completions",
     USER ",\"max_tokens\":40,\"tool_choice\":\"required\"," TOOLS "}",
     {"\"name\":\"f\"", "\"arguments\":\"{\\\"a\\\":"}},
    {"custom call",
     "POST",
     "/v1/chat/completions",
     USER ",\"max_tokens\":40,\"tool_choice\":{\"type\":\"custom\",\"custom\":{\"name\":\"c\"}}," CUSTOM "}",
     {"\"custom\":{\"name\":\"c\",\"input\":\"ab\"}"}},
    {"custom call stream",
     "POST",
     "/v1/chat/completions",
     USER ",\"max_tokens\":40,\"stream\":true,\"tool_choice\":\"required\"," CUSTOM "}",
     {"\"custom\":{\"name\":\"c\"", "\"custom\":{\"input\":\"ab\"}", "data: [DONE]\n\n"}},
    {"schema",
     "POST",
     "/v1/chat/completions",
     USER ",\"max_tokens\":20,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"s\","
          "\"schema\":{\"enum\":[\"word\"]}}}}",
     {"\"content\":\"\\\"word\\\"\""}},
    {"completion",
     "POST",
     "/v1/completions",
     "{\"model\":\"m\",\"prompt\":[\"a b\",\"c\"],\"max_tokens\":2,\"temperature\":0,\"echo\":true,\"logprobs\":1}",
     {"\"text\":\"a b", "\"text\":\"c", "\"completion_tokens\":4,"}},
    {"completion with a form",
     "POST",
     "/v1/completions",
     "{\"model\":\"m\",\"prompt\":[\"a b\",\"c\"],\"max_tokens\":9,\"temperature\":0,\"guided_choice\":[\"word\"]}",
     {"\"text\":\"word\"", "\"index\":1"}},
    {"completion stream",
     "POST",
     "/v1/completions",
     "{\"model\":\"m\",\"prompt\":[[2,100],[2,101]],\"max_tokens\":2,\"temperature\":0,\"stream\":true,\"logprobs\":1}",
     {"\"index\":0", "\"index\":1", "data: [DONE]\n\n"}},
    {"response",
     "POST",
     "/v1/responses",
     "{\"model\":\"m\",\"input\":\"Say a word\",\"max_output_tokens\":2,\"temperature\":0}",
     {"\"output_tokens\":2", "\"incomplete\""}},
    {"response stream",
     "POST",
     "/v1/responses",
     "{\"model\":\"m\",\"input\":[{\"role\":\"user\",\"content\":\"Say a word\"}],\"max_output_tokens\":2,"
     "\"temperature\":0,"
     "\"stream\":true,\"store\":false}",
     {"event: response.created", "event: response.output_text.done", "event: response.incomplete"}},
    {"message",
     "POST",
     "/v1/messages",
     "{\"model\":\"m\",\"temperature\":0,\"max_tokens\":2,\"stop_sequences\":[\"zzzz\"],\"foo\":1,"
     "\"metadata\":{\"user_id\":\"u\"},"
     "\"system\":[{\"type\":\"text\",\"text\":\"Be brief.\"}],\"messages\":[{\"role\":\"user\","
     "\"content\":\"Say a word\"},"
     "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"s\"},"
     "{\"type\":\"text\",\"text\":\"I look.\"},{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\","
     "\"input\":{\"a\":1}}]},"
     "{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
     "\"tool_use_id\":\"t\","
     "\"content\":\"7\"}]},{\"role\":\"assistant\",\"content\":\"So\"}]}",
     {"\"type\":\"message\"", "\"stop_reason\":\"max_tokens\"", "\"output_tokens\":2,"}},
    {"message stream",
     "POST",
     "/v1/messages",
     USER ",\"max_tokens\":2,\"stream\":true,\"thinking\":{\"type\":\"adaptive\"}}",
     {"event: message_start", "event: content_block_stop", "event: message_stop"}},
    {"message call",
     "POST",
     "/v1/messages",
     USER ",\"max_tokens\":40,\"tool_choice\":{\"type\":\"any\",\"disable_parallel_tool_use\":true},"
          "\"tools\":[{\"name\":\"f\","
          "\"input_schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[1,2]}},\"required\":[\"a\"],"
          "\"additionalProperties\":false}}]}",
     {"\"type\":\"tool_use\"", "\"input\":{\"a\":", "\"stop_reason\":\"tool_use\""}},
    {"message count", "POST", "/v1/messages/count_tokens", USER "}", {"\"input_tokens\":"}},
    {"pictures",
     "POST",
     "/v1/chat/completions",
     "{\"model\":\"m\",\"temperature\":0,\"max_tokens\":2,\"image_budget\":70,\"cache_prompt\":false,"
     "\"messages\":[{\"role\":\"user\","
     "\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64," PICTURE "\"}},"
     "{\"type\":\"text\",\"text\":\"x\"}]}]}",
     {"\"completion_tokens\":2,"}},
    {"response with a picture",
     "POST",
     "/v1/responses/render",
     "{\"model\":\"m\",\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"detail\":\"low\","
     "\"image_url\":\"data:image/png;base64," PICTURE "\"}]}]}",
     {"\"mm_hashes\":"}},
    {"message with pictures",
     "POST",
     "/v1/messages/render",
     "{\"model\":\"m\",\"max_tokens\":2,\"image_budget\":70,\"messages\":[{\"role\":\"user\","
     "\"content\":\"x\"},{\"role\":\"assistant\","
     "\"content\":[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{}}]},{\"role\":\"user\",\"content\":["
     "{\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"content\":[{\"type\":\"image\",\"source\":{"
     "\"type\":\"base64\",\"data\":\"" PICTURE "\"}}]},{\"type\":\"text\",\"text\":\"y\"}]}]}",
     {"\"mm_hashes\":"}},
};
enum { REQUESTS = sizeof requests / sizeof *requests };

/* The word of the answer that must not change: what is behind `"content":"` or `"text":"`, if anything. */
static bool check(size_t i, const reply *r, long k) {
    bool early = r->status == 0 || !r->complete, refused = r->status == 500 || r->status == 503 || r->status == 529;
    if (early || refused) return false;
    if (r->status != 200) fail_msg("%s, allocation %ld: status %d: %.300s", requests[i].name, k, r->status, r->data);
    if (strstr(r->data, "\"error\":{")) return false;
    for (size_t h = 0; h < 3 && requests[i].holds[h]; h++)
        if (!strstr(r->data, requests[i].holds[h]))
            fail_msg("%s, allocation %ld: %s is not in what ends with %s", requests[i].name, k, requests[i].holds[h],
                     r->data + (r->n > 900 ? r->n - 900 : 0));
    return true;
}

static void test_sweep(void **state) {
    (void)state;
    static reply r;
    for (size_t i = 0; i < REQUESTS; i++) {
        long most = 0, failed = 0;
        if (!strstr(requests[i].body, PICTURE) == reads_pictures) continue;
        for (int warm = 0; warm < 3; warm++) { /* the first of its kind may allocate what stays */
            failing_allocations_arm(0, false);
            allocation_sites_begin();
            ask(requests[i].method, requests[i].path, requests[i].body, &r);
            settle();
            allocation_sites_end();
            most = failing_allocations_made();
            if (!check(i, &r, 0)) fail_msg("%s: %s", requests[i].name, r.data);
        }
        long step = sweep_short() ? most / 20 + 1 : 1;
        for (long k = 1; k <= most; k += step) {
            if (!allocation_sites_worth(k)) continue;
            failing_allocations_arm(k, false);
            ask(requests[i].method, requests[i].path, requests[i].body, &r);
            settle();
            failing_allocations_end();
            failed += !check(i, &r, k);
            ask("GET", "/livez", "", &r);
            settle();
            if (r.status != 200) fail_msg("%s, allocation %ld: the next request: %s", requests[i].name, k, r.data);
        }
        ask(requests[i].method, requests[i].path, requests[i].body, &r);
        settle();
        if (!check(i, &r, -1)) fail_msg("%s, after the sweep: %s", requests[i].name, r.data);
        if (failed == 0) fail_msg("%s: nothing failed for %ld allocations", requests[i].name, most);
        print_message("%s: %ld allocations, %ld refusals\n", requests[i].name, most, failed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sweep)};
    int failed = cmocka_run_group_tests(tests, start, stop);
    reads_pictures = true;
    return failed + cmocka_run_group_tests(tests, start, stop);
}
