#include "cli/info_weights.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "cli/input.h"
#include "cli/terminal.h"
#include "kakeya_study.h"
#include "session/weights_needs.h"

enum { CURVE_STEPS = 8, CURVE_ROWS = CURVE_STEPS + 2 };

typedef struct curve_row {
    size_t limit;
    double held;      /* part of all experts that are in memory: the hit rate of uniform routing */
    double bytes;     /* that a token reads */
    double tokens;    /* a second that these reads allow; 0: there are none */
    bool asked, fits; /* fits: more than what every token needs */
} curve_row;

/* One forward for each token, as in an answer. */
static kakeya_status follow(kakeya_engine *engine, const int32_t *ids, size_t n, info_weights *out,
                            kakeya_error *error) {
    kakeya_session_options options;
    kakeya_session *session = NULL;
    KAKEYA_INIT(&options);
    options.without_drafter = true;
    kakeya_status status = kakeya_session_open(engine, &options, &session, error);
    kakeya_weights before = kakeya_engine_weights(engine);
    for (size_t i = 1; i <= n && !status; i++) {
        status = kakeya_session_sync(session, ids, i, NULL, NULL, NULL, error);
        if (i == n / 2) before = kakeya_engine_weights(engine);
    }
    kakeya_session_close(session);
    if (status) return status;
    const kakeya_weights after = kakeya_engine_weights(engine);
    out->tokens = n - n / 2;
    out->hit_rate = (double)(after.found - before.found) / (double)(after.wanted - before.wanted);
    out->bytes = (double)(after.bytes_read - before.bytes_read) / (double)out->tokens;
    return KAKEYA_OK;
}

static kakeya_status try_text(const kakeya_engine_options *options, const char *file, info_weights *out,
                              kakeya_error *error) {
    kakeya_engine_options alone = *options;
    kakeya_engine *engine = NULL;
    char *text = NULL;
    int32_t *ids = NULL;
    size_t bytes = 0, n = 0;
    alone.drafter = alone.f_theta = "none";
    alone.second_drafter = NULL;
    kakeya_status status = input_read_text(file, &text, &bytes, error);
    if (!status) status = kakeya_engine_open(&alone, &engine, error);
    terminal_clear_progress();
    if (!status)
        status = kakeya_tokenize(kakeya_engine_tokenizer(engine), text, bytes, KAKEYA_TEXT_PROMPT, &ids, &n, error);
    if (!status && n < 2) status = error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: not two tokens", file);
    if (!status) status = follow(engine, ids, n < INFO_TEXT_TOKENS ? n : INFO_TEXT_TOKENS, out, error);
    kakeya_free(ids);
    free(text);
    kakeya_engine_close(engine);
    return status;
}

kakeya_status info_weights_measure(const kakeya_engine_options *options, const char *text_file, info_weights *out,
                                   kakeya_error *error) {
    *out = (info_weights){.needs = {.size = sizeof out->needs}, .limit = options->weights_limit_bytes};
    kakeya_status status = weights_needs_on(options->backend, options->model, 1, &out->needs, &out->copies, error);
    return status || !text_file ? status : try_text(options, text_file, out, error);
}

static curve_row row_of(const kakeya_weights_needs *n, size_t limit) {
    curve_row row = {.limit = limit, .fits = limit > n->resident};
    if (row.fits) row.held = (double)((limit - n->resident) / n->expert_bytes) / (double)n->experts;
    if (row.held > 1) row.held = 1;
    row.bytes = (1 - row.held) * (double)n->wanted * (double)n->expert_bytes;
    if (row.bytes > 0) row.tokens = n->read_bytes_per_second / row.bytes;
    return row;
}

static int by_limit(const void *a, const void *b) {
    const curve_row *x = a, *y = b;
    return (x->limit > y->limit) - (x->limit < y->limit);
}

/* From an eighth of the experts to all of them, and the limit that was asked for. */
static int make_curve(const kakeya_weights_needs *n, size_t limit, curve_row rows[CURVE_ROWS]) {
    int count = 0;
    for (size_t i = 1; i <= CURVE_STEPS; i++)
        rows[count++] = row_of(n, n->resident + n->experts * n->expert_bytes / CURVE_STEPS * i + n->expert_bytes);
    if (limit && limit != KAKEYA_WEIGHTS_AUTO) {
        rows[count] = row_of(n, limit);
        rows[count++].asked = true;
    }
    qsort(rows, (size_t)count, sizeof *rows, by_limit);
    return count;
}

void info_weights_print(const info_weights *w) {
    const kakeya_weights_needs *n = &w->needs;
    char a[32], b[32], c[32];
    curve_row rows[CURVE_ROWS];
    const int count = make_curve(n, w->limit, rows);
    printf("\nweights under a limit (--weights-limit): %s that every token needs, %s experts of %s, of which a token "
           "chooses %zu\n",
           format_bytes(a, (double)n->resident), format_count(b, n->experts), format_bytes(c, (double)n->expert_bytes),
           n->wanted);
    printf("%s %s a second; routing is taken to be uniform, which is the worst case\n",
           w->copies ? "the host gives a device" : "the disk reads", format_bytes(a, n->read_bytes_per_second));
    printf("  %10s %10s %16s %18s\n", "limit", "hit rate", w->copies ? "copied per token" : "read per token",
           w->copies ? "copies allow" : "reads allow");
    for (int i = 0; i < count; i++) {
        char tokens[48] = "all is in memory";
        if (rows[i].tokens > 0) snprintf(tokens, sizeof tokens, "%.2f tokens/s", rows[i].tokens);
        if (!rows[i].fits) snprintf(tokens, sizeof tokens, "not enough");
        printf("%s %10s %8.1f %% %16s %18s\n", rows[i].asked ? "->" : "  ", format_bytes(a, (double)rows[i].limit),
               100 * rows[i].held, format_bytes(b, rows[i].bytes), tokens);
    }
    if (!w->tokens) return;
    printf("measured under the limit, on %zu tokens of the text: hit rate %.1f %%, %s read per token", w->tokens,
           100 * w->hit_rate, format_bytes(a, w->bytes));
    if (w->bytes > 0) printf(", which allows %.2f tokens/s", n->read_bytes_per_second / w->bytes);
    putchar('\n');
}

void info_weights_add_json(struct cJSON *object, const info_weights *w) {
    const kakeya_weights_needs *n = &w->needs;
    curve_row rows[CURVE_ROWS];
    const int count = make_curve(n, w->limit, rows);
    cJSON *weights = cJSON_AddObjectToObject(object, "weights_limit");
    cJSON_AddNumberToObject(weights, "resident_bytes", (double)n->resident);
    cJSON_AddNumberToObject(weights, "expert_bytes", (double)n->expert_bytes);
    cJSON_AddNumberToObject(weights, "experts", (double)n->experts);
    cJSON_AddNumberToObject(weights, "experts_per_token", (double)n->wanted);
    cJSON_AddNumberToObject(weights, "read_bytes_per_second", n->read_bytes_per_second);
    cJSON_AddStringToObject(weights, "read_from", w->copies ? "host" : "disk");
    cJSON *curve = cJSON_AddArrayToObject(weights, "curve");
    for (int i = 0; i < count; i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddNumberToObject(row, "limit_bytes", (double)rows[i].limit);
        cJSON_AddBoolToObject(row, "enough", rows[i].fits);
        cJSON_AddNumberToObject(row, "hit_rate", rows[i].held);
        cJSON_AddNumberToObject(row, "bytes_per_token", rows[i].bytes);
        if (rows[i].tokens > 0)
            cJSON_AddNumberToObject(row, "tokens_per_second", rows[i].tokens);
        else
            cJSON_AddNullToObject(row, "tokens_per_second");
        cJSON_AddItemToArray(curve, row);
    }
    if (!w->tokens) return;
    cJSON *measured = cJSON_AddObjectToObject(weights, "measured");
    cJSON_AddNumberToObject(measured, "tokens", (double)w->tokens);
    cJSON_AddNumberToObject(measured, "hit_rate", w->hit_rate);
    cJSON_AddNumberToObject(measured, "bytes_per_token", w->bytes);
}
