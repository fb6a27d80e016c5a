#include "serve/metrics.h"

#include <math.h>
#include <stdio.h>

static const double seconds_bounds[METRICS_SECONDS] = {.001, .0025, .005, .01, .025, .05, .1, .25,
                                                       .5,   1,     2.5,  5,   10,   30,  60, 300};
static const int statuses[METRICS_STATUSES] = {200, 204, 400, 401, 403, 404, 405, 413,
                                               415, 429, 500, 503, 529, 0,   0,   0};

void metrics_add(_Atomic uint64_t *counter, uint64_t value) {
    atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
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

void metrics_header(text_buffer *out, const char *name, const char *type, const char *help) {
    text_format(out, "# HELP kakeya_%s %s\n# TYPE kakeya_%s %s\n", name, help, name, type);
}

static void label(text_buffer *out, const char *model) {
    text_add(out, "model=\"");
    for (const char *c = model; *c; c++) {
        if (*c == '"' || *c == '\\') text_bytes(out, "\\", 1);
        text_bytes(out, *c == '\n' ? " " : c, 1);
    }
    text_add(out, "\"");
}

static void line(text_buffer *out, const char *name, const char *suffix, const char *model, const char *labels,
                 double value) {
    text_format(out, "kakeya_%s%s{%s", name, suffix, labels);
    label(out, model);
    text_add(out, "} ");
    if (value == floor(value) && fabs(value) < 1e15) {
        text_format(out, "%.0f\n", value);
    } else {
        text_format(out, "%.9g\n", value);
    }
}

void metrics_value(text_buffer *out, const char *name, const char *model, const char *labels, double value) {
    line(out, name, "", model, labels, value);
}

void metrics_histogram(text_buffer *out, const char *name, const char *help, const char *model, const histogram *h,
                       bool seconds) {
    metrics_header(out, name, "histogram", help);
    size_t bounds = seconds ? METRICS_SECONDS : METRICS_TOKENS;
    uint64_t below = 0;
    char labels[48];
    for (size_t i = 0; i <= bounds; i++) {
        below += atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
        double bound = seconds ? (i < bounds ? seconds_bounds[i] : 0) : (double)(UINT64_C(1) << i);
        if (i < bounds) {
            snprintf(labels, sizeof labels, "le=\"%g\",", bound);
            if (!seconds) snprintf(labels, sizeof labels, "le=\"%.0f\",", bound);
        } else {
            snprintf(labels, sizeof labels, "le=\"+Inf\",");
        }
        line(out, name, "_bucket", model, labels, (double)below);
    }
    double sum = (double)atomic_load_explicit(&h->sum, memory_order_relaxed);
    line(out, name, "_sum", model, "", seconds ? sum * 1e-9 : sum);
    line(out, name, "_count", model, "", (double)below);
}
