#include "serve/metrics.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double seconds_bounds[METRICS_SECONDS] = {.001, .0025, .005, .01, .025, .05, .1, .25,
                                                       .5,   1,     2.5,  5,   10,   30,  60, 300};
static const int statuses[METRICS_STATUSES] = {200, 204, 400, 401, 403, 404, 405, 413,
                                               415, 429, 500, 503, 529, 0,   0,   0};

void metrics_add(_Atomic uint64_t *counter, uint64_t value) {
    if (value) atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

void metrics_seconds(histogram *h, double seconds) {
    size_t i = 0;
    while (i < METRICS_SECONDS && seconds > seconds_bounds[i]) i++;
    metrics_add(&h->buckets[i], 1);
    metrics_add(&h->sum, seconds > 0 ? (uint64_t)(seconds * 1e9) : 0);
    metrics_add(&h->count, 1);
}

void metrics_tokens(histogram *h, uint64_t tokens) {
    size_t i = 0;
    while (i < METRICS_TOKENS && tokens > (UINT64_C(1) << i)) i++;
    metrics_add(&h->buckets[i], 1);
    metrics_add(&h->sum, tokens);
    metrics_add(&h->count, 1);
}

int metrics_status(size_t column) { return statuses[column]; }

void metrics_request(metrics *m, size_t route, int status) {
    size_t column = 0;
    while (column + 1 < METRICS_STATUSES && statuses[column] && statuses[column] != status) column++;
    metrics_add(&m->requests[route < METRICS_ROUTES ? route : METRICS_ROUTES - 1][column], 1);
}

static const char *const fields[METRICS_FIELDS] = {
    "betas",           "cache_control", "chat_template_kwargs",
    "client_metadata", "container",     "context_management",
    "extra_body",      "include",       "inference_geo",
    "input",           "keep_alive",    "mcp_servers",
    "messages",        "metadata",      "options",
    "reasoning",       "service_tier",  "speed",
    "stream_options",  "system",        "text",
    "tool_choice",     "tools",         "other",
};

const char *metrics_field(size_t place) { return fields[place]; }

void metrics_fields(metrics *m, const char *names) {
    while (*names) {
        size_t whole = strcspn(names, ","), n = strcspn(names, ".[(,"), i = 0;
        while (i + 1 < METRICS_FIELDS && (strlen(fields[i]) != n || strncmp(fields[i], names, n) != 0)) i++;
        metrics_add(&m->fields_ignored[i], 1);
        names += whole;
        names += strspn(names, ", ");
    }
}

/* -------------------------------------------------------------------------------------------------------- the text */

static void header(text_buffer *out, const char *prefix, const char *name, const char *type, const char *help) {
    text_format(out, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, help, prefix, name, type);
}

void metrics_family(metrics_page *p, const char *name, const char *vllm, const char *type, const char *help) {
    p->vllm_name = p->names == METRICS_KAKEYA ? NULL : vllm;
    p->own_name = p->names == METRICS_VLLM && vllm ? NULL : name;
    if (p->own_name) header(&p->own, "kakeya_", name, type, help);
    if (p->vllm_name) header(&p->vllm, "vllm:", vllm, type, help);
}

static void add_model(text_buffer *out, const char *model) {
    for (const char *c = model; *c; c++) {
        if (*c == '"' || *c == '\\') text_bytes(out, "\\", 1);
        text_bytes(out, *c == '\n' ? " " : c, 1);
    }
}

static void line(text_buffer *out, const char *prefix, const char *name, const char *suffix, const char *labels,
                 const char *key, const char *model, double value) {
    text_format(out, "%s%s%s{%s%s=\"", prefix, name, suffix, labels, key);
    add_model(out, model);
    if (value == floor(value) && fabs(value) < 1e15) {
        text_format(out, "\"} %.0f\n", value);
    } else {
        text_format(out, "\"} %.9g\n", value);
    }
}

void metrics_sample(metrics_page *p, const char *suffix, const char *labels, double value) {
    if (p->own_name) line(&p->own, "kakeya_", p->own_name, suffix, labels, "model", p->model, value);
    if (p->vllm_name) line(&p->vllm, "vllm:", p->vllm_name, suffix, labels, "model_name", p->model, value);
}

void metrics_one(metrics_page *p, const char *name, const char *vllm, const char *type, const char *help,
                 double value) {
    metrics_family(p, name, vllm, type, help);
    metrics_sample(p, "", "", value);
}

void metrics_histogram(metrics_page *p, const char *labels, const histogram *h, bool seconds) {
    size_t bounds = seconds ? METRICS_SECONDS : METRICS_TOKENS;
    uint64_t below = 0;
    for (size_t i = 0; i <= bounds; i++) {
        below += atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
        char with_bound[96], bound[32] = "+Inf";
        if (i < bounds && seconds) snprintf(bound, sizeof bound, "%g", seconds_bounds[i]);
        if (i < bounds && !seconds) snprintf(bound, sizeof bound, "%.0f", (double)(UINT64_C(1) << i));
        snprintf(with_bound, sizeof with_bound, "%sle=\"%s\",", labels, bound);
        metrics_sample(p, "_bucket", with_bound, (double)below);
    }
    double sum = (double)atomic_load_explicit(&h->sum, memory_order_relaxed);
    metrics_sample(p, "_sum", labels, seconds ? sum * 1e-9 : sum);
    metrics_sample(p, "_count", labels, (double)below);
}

void metrics_page_end(metrics_page *p, text_buffer *out) {
    *out = p->own;
    p->own = (text_buffer){0};
    if (p->vllm.n) text_bytes(out, p->vllm.data, p->vllm.n);
    out->failed |= p->vllm.failed;
    text_free(&p->vllm);
}
