/* What the server says about itself: health, properties, slots, metrics. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "serve/answer.h"
#include "serve/life.h"
#include "serve/routes.h"

void liveness_call(call *c) {
    text_buffer body = {0};
    text_add(&body, "{\"status\":\"ok\"}");
    call_reply_json(c, &body);
}

/* A server whose model sleeps is well: the next request wakes it. */
void health_call(call *c) {
    server_context *s = c->server;
    text_buffer body = {0};
    static const char *const names[] = {[SERVER_LOADING] = "loading",
                                        [SERVER_READY] = "ok",
                                        [SERVER_SLEEPING] = "sleeping",
                                        [SERVER_WAKING] = "waking",
                                        [SERVER_DRAINING] = "draining"};
    int state = atomic_load(&s->state);
    bool loading = state == SERVER_LOADING, well = !loading && state != SERVER_DRAINING;
    text_format(&body, "{\"status\":\"%s\"", names[state]);
    if (!well || state == SERVER_WAKING)
        text_format(&body, ",\"progress\":%.3f", state == SERVER_DRAINING ? 1.0 : atomic_load(&s->progress) / 1000.0);
    if (well) {
        text_add(&body, ",\"model\":");
        text_json_string(&body, s->settings->names[0]);
        text_add(&body, ",\"backend\":");
        text_json_string(&body, s->model.backend);
        text_add(&body, "}");
        call_reply_json(c, &body);
        return;
    }
    text_format(&body, ",\"error\":{\"code\":503,\"message\":\"%s\",\"type\":\"unavailable_error\"}}",
                loading ? "Loading model" : "Shutting down");
    c->retry_after = 2;
    call_reply(c, 503, "application/json", &body);
}

/* -----------------------------------------------------------------------------------------------------------
 * properties */

void props_call(call *c) {
    server_context *s = c->server;
    const serve_settings *settings = s->settings;
    const kakeya_session_options *o = &settings->session;
    const server_model_facts *model = &s->model;
    const int state = atomic_load(&s->state);
    text_buffer out = {0};
    size_t running, waiting;
    gate_counts(s->gate, &running, &waiting);
    text_format(&out, "{\"default_generation_settings\":{\"n_ctx\":%d,\"params\":{\"temperature\":", s->context);
    text_json_number(&out, (double)s->sampling.temperature);
    text_add(&out, ",\"top_p\":");
    text_json_number(&out, (double)s->sampling.top_p);
    text_format(&out, ",\"top_k\":%d,\"max_tokens\":%d}},\"total_slots\":%zu,\"model_path\":", s->sampling.top_k,
                settings->max_tokens ? settings->max_tokens : -1, gate_room(s->gate));
    text_json_string(&out, settings->names[0]);
    text_format(&out,
                ",\"modalities\":{\"vision\":false,\"audio\":false},\"build_info\":\"kakeya %s\","
                "\"is_sleeping\":%s,\"kakeya\":{\"backend\":",
                kakeya_version(), state == SERVER_SLEEPING || state == SERVER_WAKING ? "true" : "false");
    text_json_string(&out, model->backend);
    text_format(&out,
                ",\"attention\":\"%s\",\"sink\":%d,\"window\":%d,\"kv_bytes_per_token\":%zu,"
                "\"kv_bytes_per_session\":%zu,\"kv_bytes_of_a_full_context\":%zu,\"memory_limit\":%zu,"
                "\"thinking\":%s}}",
                kakeya_attention_name(o->attention), o->sink, o->window, model->kv_of_one.each_token,
                model->kv_of_one.total, model->kv_of_context.total, settings->engine.memory_limit_bytes,
                settings->thinking ? "true" : "false");
    call_reply_json(c, &out);
}

void slots_call(call *c) {
    text_buffer out = {0};
    answers_list(c->server, &out);
    call_reply_json(c, &out);
}

/* --------------------------------------------------------------------------------------------------------------
 * metrics */

static double open_files(void) {
    DIR *directory = opendir("/proc/self/fd");
    if (!directory) return 0;
    double n = -1; /* the directory's own */
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) n += entry->d_name[0] != '.';
    closedir(directory);
    return n;
}

static double resident_bytes(void) {
    unsigned long long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%llu %llu", &total, &resident) != 2) resident = 0;
    if (file) fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static double value_of(const _Atomic uint64_t *counter) {
    return (double)atomic_load_explicit(counter, memory_order_relaxed);
}

static void one(text_buffer *out, const char *model, const char *name, const char *type, const char *help,
                double value) {
    metrics_header(out, name, type, help);
    metrics_value(out, name, model, "", value);
}

static void write_requests(const server_context *s, const char *model, text_buffer *out) {
    const metrics *m = &s->metrics;
    metrics_header(out, "request_total", "counter", "Requests by route and status.");
    for (size_t i = 0; i < METRICS_ROUTES; i++) {
        bool routed = i < s->n_routes;
        if (!routed && i + 1 < METRICS_ROUTES) continue;
        for (size_t k = 0; k < METRICS_STATUSES; k++) {
            double n = value_of(&m->requests[i][k]);
            if (n == 0) continue;
            char labels[160];
            snprintf(labels, sizeof labels, "route=\"%s\",status=\"%d\",", routed ? s->routes[i].path : "other",
                     metrics_status(k));
            metrics_value(out, "request_total", model, labels, n);
        }
    }
}

static void write_positions(const char *name, const char *help, const char *model, const _Atomic uint64_t *values,
                            text_buffer *out) {
    metrics_header(out, name, "counter", help);
    for (size_t i = 0; i < METRICS_POSITIONS; i++) {
        char labels[32];
        snprintf(labels, sizeof labels, "position=\"%zu\",", i);
        metrics_value(out, name, model, labels, value_of(&values[i]));
    }
}

static void write_store(server_context *s, const char *model, text_buffer *out) {
    store_counts counts;
    store_counts_get(s->store, &counts);
    static const char *const sources[] = {"none", "live", "ram", "disk"};
    metrics_header(out, "prompt_tokens_cached_total", "counter", "Prompt tokens that were not computed again.");
    for (size_t i = 1; i <= STORE_HIT_DISK; i++) {
        char labels[32];
        snprintf(labels, sizeof labels, "source=\"%s\",", sources[i]);
        metrics_value(out, "prompt_tokens_cached_total", model, labels, value_of(&s->metrics.cached_tokens[i]));
    }
    metrics_header(out, "store_entries", "gauge", "Prefixes that later prompts may continue.");
    metrics_value(out, "store_entries", model, "kind=\"live\",", (double)counts.live);
    metrics_value(out, "store_entries", model, "kind=\"checkpoint\",", (double)counts.ram);
    metrics_header(out, "store_bytes", "gauge", "K/V memory of the prefixes.");
    metrics_value(out, "store_bytes", model, "tier=\"ram\",", (double)counts.ram_bytes);
    one(out, model, "sessions_evicted_total", "counter", "Prefixes dropped for room.", (double)counts.evictions);
    static const struct {
        kakeya_memory_kind kind;
        const char *labels;
    } kinds[] = {{KAKEYA_MEMORY_KV_FULL, "kind=\"full\","},
                 {KAKEYA_MEMORY_KV_SLIDING, "kind=\"sliding\","},
                 {KAKEYA_MEMORY_KV_LATENT, "kind=\"latent\","},
                 {KAKEYA_MEMORY_KV_DRAFT, "kind=\"draft\","}};
    metrics_header(out, "kv_bytes", "gauge", "K/V memory of all sessions.");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        metrics_value(out, "kv_bytes", model, kinds[i].labels, (double)life_memory(s->life, kinds[i].kind));
}

static void write_process(server_context *s, const char *model, text_buffer *out) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                 (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
    const http_counts http = http_count(s->http);
    one(out, model, "http_connections", "gauge", "Connections that are open.", (double)http.connections);
    one(out, model, "http_disconnects_total", "counter", "Clients that left before their reply ended.",
        (double)http.disconnects);
    one(out, model, "process_resident_memory_bytes", "gauge", "Resident memory.", resident_bytes());
    one(out, model, "process_cpu_seconds_total", "counter", "Processor time.", cpu);
    one(out, model, "process_open_fds", "gauge", "Open file descriptors.", open_files());
    one(out, model, "process_start_time_seconds", "gauge", "Start of the server, Unix time.", (double)s->created);
}

static void write_answers(server_context *s, const char *model, text_buffer *out) {
    const metrics *m = &s->metrics;
    size_t running, waiting;
    gate_counts(s->gate, &running, &waiting);
    one(out, model, "requests_running", "gauge", "Answers that are being computed.", (double)running);
    one(out, model, "requests_waiting", "gauge", "Requests that wait for their turn.", (double)waiting);
    static const char *const reasons[] = {"stop", "length", "tool_calls", "cancelled", "error"};
    metrics_header(out, "requests_finished_total", "counter", "Answers by how they ended.");
    for (size_t i = 0; i < FINISHED_REASONS; i++) {
        char labels[32];
        snprintf(labels, sizeof labels, "reason=\"%s\",", reasons[i]);
        metrics_value(out, "requests_finished_total", model, labels, value_of(&m->finished[i]));
    }
    one(out, model, "prompt_tokens_total", "counter", "Tokens of prompts, cached ones included.",
        value_of(&m->prompt_tokens));
    one(out, model, "generation_tokens_total", "counter", "Tokens that were generated, stop tokens aside.",
        value_of(&m->generation_tokens));
    one(out, model, "forwards_total", "counter", "Decode forwards, counted for every answer in them.",
        value_of(&m->forwards));
    one(out, model, "draft_tokens_total", "counter", "Drafted tokens.", value_of(&m->draft_tokens));
    one(out, model, "draft_tokens_accepted_total", "counter", "Drafted tokens that were kept.",
        value_of(&m->draft_accepted));
    write_positions("draft_tokens_at_total", "Drafted tokens by position.", model, m->drafted_at, out);
    write_positions("draft_tokens_accepted_at_total", "Accepted drafts by position.", model, m->accepted_at, out);
    one(out, model, "preemptions_total", "counter", "Answers that gave their memory to others for a while.",
        value_of(&m->preemptions));
    one(out, model, "fields_ignored_total", "counter", "Requests with fields that had no effect.",
        value_of(&m->fields_ignored));
    one(out, model, "parser_repairs_total", "counter", "Tokens of answers that were dropped or mended.",
        value_of(&m->parser_repairs));
    one(out, model, "grammar_redraws_total", "counter", "Tokens that were drawn, but not allowed by a grammar.",
        value_of(&m->grammar_redraws));
    one(out, model, "grammar_masks_total", "counter", "Positions at which a grammar looked at the whole vocabulary.",
        value_of(&m->grammar_masks));
    metrics_histogram(out, "time_to_first_token_seconds", "From the request to its first token.", model,
                      &m->first_token, true);
    metrics_histogram(out, "inter_token_latency_seconds", "Between two tokens of an answer.", model, &m->inter_token,
                      true);
    metrics_histogram(out, "e2e_request_latency_seconds", "From the request to its end.", model, &m->whole, true);
    metrics_histogram(out, "request_queue_time_seconds", "Waiting for a turn.", model, &m->queue, true);
    metrics_histogram(out, "request_prefill_time_seconds", "Computing the prompt.", model, &m->prefill, true);
    metrics_histogram(out, "request_decode_time_seconds", "Generating.", model, &m->decode, true);
    metrics_histogram(out, "request_prompt_tokens", "Tokens of a prompt.", model, &m->prompt_size, false);
    metrics_histogram(out, "request_generation_tokens", "Tokens of an answer.", model, &m->answer_size, false);
}

void metrics_call(call *c) {
    server_context *s = c->server;
    api_error error = {0};
    const http_head *head = http_request(c->exchange);
    unsigned long long identity;
    if (s->settings->metrics_key &&
        !auth_allows(s->auth, http_head_find(head, "authorization"), http_head_find(head, "x-api-key"), &identity)) {
        http_add_header(c->exchange, "www-authenticate", "Bearer realm=\"kakeya\"");
        api_fail(&error, 401, "invalid_api_key", NULL, "there is no API key, or it is not one of this server's");
        call_fail(c, &error);
        return;
    }
    const char *model = s->settings->names[0];
    text_buffer out = {0};
    write_answers(s, model, &out);
    write_requests(s, model, &out);
    if (atomic_load(&s->loaded)) write_store(s, model, &out);
    write_process(s, model, &out);
    call_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
}
