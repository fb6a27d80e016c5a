/* kakeya bench --requests --url: the same requests as streams of a server with OpenAI's completions. */
#include <cjson/cJSON.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/bench.h"
#include "cli/terminal.h"

#ifdef KAKEYA_SERVE

#include "serve/http_client.h"

enum { MOST_SECONDS = 24 * 3600, STACK_BYTES = 256 << 10, MOST_REFUSAL = 1 << 16, MAX_REASON = sizeof(kakeya_error) };

/* One request: a thread that sends it and reads its stream. */
typedef struct url_request {
    struct url_run *run;
    int number;
    text_buffer body, line, refusal;
    int status;
    int told; /* tokens of the answer by the server's own count; 0: it has not said */
    bool finished, failed;
    char reason[MAX_REASON]; /* with failed */
    pthread_t thread;
} url_request;

typedef struct url_run {
    http_client *client;
    const char *url;
    char *model;
    bench_traffic traffic;
    url_request *request;
    atomic_bool cancelled;
} url_run;

/* --------------------------------------------------------------------------------------------------------- streams */

static const char *text_of(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

/* What went wrong, in an error's words or in whatever came. */
static void keep_reason(url_request *r, const char *json) {
    cJSON *body = cJSON_Parse(json);
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(body, "error");
    const char *message = text_of(error, "message");
    if (!message) message = text_of(body, "message");
    snprintf(r->reason, sizeof r->reason, "%.300s", message ? message : json);
    for (char *at = r->reason; *at; at++)
        if ((unsigned char)*at < 0x20) *at = ' ';
    r->failed = true;
    cJSON_Delete(body);
}

static void take_event(url_request *r, const char *json) {
    if (strcmp(json, "[DONE]") == 0) {
        r->finished = true;
        return;
    }
    cJSON *event = cJSON_Parse(json);
    if (!event || cJSON_GetObjectItemCaseSensitive(event, "error")) keep_reason(r, json);
    const cJSON *choice = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(event, "choices"), 0);
    const cJSON *usage = cJSON_GetObjectItemCaseSensitive(event, "usage");
    const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(usage, "completion_tokens");
    const cJSON *details = cJSON_GetObjectItemCaseSensitive(usage, "prompt_tokens_details");
    const cJSON *cached = cJSON_GetObjectItemCaseSensitive(details, "cached_tokens");
    const char *text = text_of(choice, "text");
    bench_stream *stream = &r->run->traffic.stream[r->number];
    if (text && *text) bench_stream_piece(stream, 1);
    if (cJSON_IsNumber(tokens)) r->told = tokens->valueint;
    if (cJSON_IsNumber(cached)) stream->cached = cached->valueint;
    cJSON_Delete(event);
}

/* Lines of server-sent events. */
static bool take_bytes(void *user, const char *bytes, size_t n) {
    static const char data[] = "data:";
    url_request *r = user;
    if (r->status != 200) {
        text_bytes(&r->refusal, bytes, n);
        return !r->refusal.failed && r->refusal.n < MOST_REFUSAL;
    }
    for (size_t i = 0; i < n && !r->failed; i++) {
        if (bytes[i] != '\n') {
            text_bytes(&r->line, &bytes[i], 1);
            continue;
        }
        if (r->line.n && r->line.data[r->line.n - 1] == '\r') r->line.data[--r->line.n] = '\0';
        if (r->line.n > sizeof data && strncmp(r->line.data, data, sizeof data - 1) == 0) {
            const char *json = r->line.data + sizeof data - 1;
            take_event(r, json + strspn(json, " "));
        }
        if (r->line.failed) snprintf(r->reason, sizeof r->reason, "out of memory");
        r->failed |= r->line.failed;
        text_clear(&r->line);
    }
    return !r->failed && !atomic_load(&r->run->cancelled);
}

static void *stream_main(void *user) {
    url_request *r = user;
    url_run *run = r->run;
    kakeya_error error = {0};
    kakeya_status status =
        http_client_post(run->client, "/v1/completions", r->body.data, r->body.n, &r->status, take_bytes, r, &error);
    if (status != KAKEYA_OK) {
        snprintf(r->reason, sizeof r->reason, "%s", error.message);
        r->failed = true;
    } else if (r->status != 200) {
        keep_reason(r, r->refusal.data ? r->refusal.data : "");
    } else if (!r->finished && !r->failed && !atomic_load(&run->cancelled)) {
        snprintf(r->reason, sizeof r->reason, "the stream ended before its [DONE]");
        r->failed = true;
    }
    if (r->told > 0) run->traffic.stream[r->number].tokens = r->told;
    bench_traffic_over(&run->traffic, r->number);
    return NULL;
}

/* -------------------------------------------------------------------------------------------------------- requests */

static void write_body(url_request *r) {
    const bench_stream *stream = &r->run->traffic.stream[r->number];
    text_clear(&r->body);
    text_add(&r->body, "{\"model\":");
    text_json_string(&r->body, r->run->model);
    text_format(&r->body,
                ",\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,"
                "\"stream_options\":{\"include_usage\":true},\"prompt\":[",
                r->run->traffic.load.answer_tokens);
    for (int i = 0; i < stream->n_prompt; i++) text_format(&r->body, i ? ",%d" : "%d", (int)stream->prompt[i]);
    text_add(&r->body, "]}");
}

static kakeya_status begin_request(void *user, int number, kakeya_error *error) {
    url_run *run = user;
    url_request *r = &run->request[number];
    r->run = run;
    r->number = number;
    r->status = r->told = 0;
    r->finished = r->failed = false;
    text_clear(&r->line);
    text_clear(&r->refusal);
    write_body(r);
    if (r->body.failed) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a request");
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK_BYTES);
    int failure = pthread_create(&r->thread, &small, stream_main, r);
    pthread_attr_destroy(&small);
    if (!failure) return KAKEYA_OK;
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "no thread for a request: %s", strerror(failure));
}

static kakeya_status end_request(void *user, int number, kakeya_error *error) {
    url_run *run = user;
    const url_request *r = &run->request[number];
    pthread_join(r->thread, NULL);
    if (!r->failed) return KAKEYA_OK;
    if (r->status && r->status != 200)
        return error_set(error, KAKEYA_IO, "%s: request %d of %d got status %d: %s", run->url, number + 1,
                         run->traffic.load.requests, r->status, r->reason);
    return error_set(error, KAKEYA_IO, "request %d of %d: %s", number + 1, run->traffic.load.requests, r->reason);
}

static void cancel_request(void *user, int number) {
    (void)number;
    url_run *run = user;
    atomic_store(&run->cancelled, true);
}

static const bench_traffic_verbs server = {begin_request, end_request, cancel_request};

/* The first model that the server names. */
static kakeya_status find_model(url_run *run, kakeya_error *error) {
    text_buffer body = {0};
    int status = 0;
    kakeya_status result = http_client_get(run->client, "/v1/models", &status, &body, error);
    cJSON *models = result == KAKEYA_OK && status == 200 && body.data ? cJSON_Parse(body.data) : NULL;
    const char *id = text_of(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(models, "data"), 0), "id");
    if (id) run->model = strdup(id);
    if (result == KAKEYA_OK && status == 401)
        result = error_set(error, KAKEYA_IO, "%s: the server requires a key, or another one (--api-key)", run->url);
    else if (result == KAKEYA_OK && !id)
        result = error_set(error, KAKEYA_IO, "%s: /v1/models returned status %d and no model", run->url, status);
    else if (result == KAKEYA_OK && !run->model)
        result = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a model's name");
    cJSON_Delete(models);
    text_free(&body);
    return result;
}

kakeya_status bench_url_measure(const bench_arguments *arguments, const bench_load *load, bench_figures *median,
                                bench_spread *seconds, kakeya_error *error) {
    char *key = cli_server_key(arguments->key);
    const http_client_options options = {.url = arguments->url, .key = key, .seconds = MOST_SECONDS};
    bench_figures figures[BENCH_MAX_REPEATS];
    url_run run = {.url = arguments->url};
    kakeya_status status = http_client_open(&options, &run.client, error);
    if (status == KAKEYA_OK) status = find_model(&run, error);
    if (status == KAKEYA_OK) status = bench_traffic_open(load, 0, &run.traffic, error);
    if (status == KAKEYA_OK) {
        run.request = calloc((size_t)load->requests, sizeof *run.request);
        if (!run.request) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %d requests", load->requests);
    }
    for (int i = 0; i < arguments->repeats && status == KAKEYA_OK; i++) {
        status = bench_traffic_run(&run.traffic, &server, &run, terminal_progress, error);
        if (status == KAKEYA_OK) status = bench_traffic_figures(&run.traffic, &figures[i], error);
    }
    if (status == KAKEYA_OK) bench_requests_median(figures, arguments->repeats, median, seconds);
    for (int i = 0; run.request && i < load->requests; i++) {
        text_free(&run.request[i].body);
        text_free(&run.request[i].line);
        text_free(&run.request[i].refusal);
    }
    free(run.request);
    bench_traffic_free(&run.traffic);
    free(run.model);
    http_client_close(run.client);
    free(key);
    return status;
}

#else

kakeya_status bench_url_measure(const bench_arguments *arguments, const bench_load *load, bench_figures *median,
                                bench_spread *seconds, kakeya_error *error) {
    (void)arguments, (void)load, (void)median, (void)seconds;
    return error_set(error, KAKEYA_UNSUPPORTED, "--url: this build has no HTTP (it was built with KAKEYA_SERVE=OFF)");
}

#endif
