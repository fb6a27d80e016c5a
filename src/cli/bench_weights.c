/* kakeya bench --weights-limit: a row for each limit. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "measure/bench_weights.h"

enum { MOST_LIMITS = 16, LIMIT_CHARACTERS = 32 };

static const char *bound_name(const kakeya_weights *state, bench_weights_bound bound) {
    return bound == BOUND_MEMORY      ? "memory"
           : bound == BOUND_COMPUTING ? "FLOP/s"
           : bound == BOUND_STEP      ? "the step"
           : state->host_bytes        ? "copies"
                                      : "disk";
}

typedef struct weights_table {
    char limit[MOST_LIMITS][LIMIT_CHARACTERS]; /* as given */
    bench_weights_row row[MOST_LIMITS];
    int n;
} weights_table;

/* The limits of a list, each of which is one by itself. */
static kakeya_status read_limits(const char *text, weights_table *t, kakeya_error *error) {
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ","), bytes;
        if (t->n == MOST_LIMITS)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "--weights-limit: more than %d limits", (int)MOST_LIMITS);
        char *limit = t->limit[t->n++];
        if (length < LIMIT_CHARACTERS) memcpy(limit, at, length);
        if (length >= LIMIT_CHARACTERS || !cli_weights_limit(limit, &bytes))
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "--weights-limit: '%s' is not a list of numbers of bytes (K, M, G and T may follow)",
                             text);
        at += length;
        if (!*at) return KAKEYA_OK;
    }
}

static kakeya_status measure(bench_arguments *arguments, weights_table *t, int i, kakeya_error *error) {
    const bench_options options = {.contexts = arguments->contexts.value,
                                   .n_contexts = 1,
                                   .prompt_tokens = arguments->prompt_tokens,
                                   .decode_tokens = arguments->decode_tokens,
                                   .repeats = arguments->repeats,
                                   .progress = terminal_progress};
    bench_options with_session = options;
    cli_shared_session_options(&arguments->shared, &with_session.session);
    kakeya_engine *engine = NULL;
    arguments->shared.weights_limit = t->limit[i];
    kakeya_status status = cli_open_engine("bench", &arguments->shared, &engine, error);
    if (!status) status = bench_weights_measure(engine, &with_session, &t->row[i], error);
    terminal_clear_progress();
    kakeya_engine_close(engine);
    return status;
}

static void print_case(const bench_weights_row *r, const bench_weights_case *c, int tokens) {
    char bytes[32];
    printf("  %9.2f (%.2f to %.2f)  %9s  %3.0f %% of %s", tokens / c->seconds.median, tokens / c->seconds.high,
           tokens / c->seconds.low, format_bytes(bytes, c->bytes_read), 100 * c->share.median,
           bound_name(&r->state, c->bound));
}

static void print_table(const weights_table *t, const bench_arguments *arguments) {
    char a[32], b[32], c[32];
    const bench_weights_row *first = &t->row[0];
    bench_print_probes(&first->read_bytes_per_second, &first->flops_per_second, first->threads, arguments->repeats);
    printf("%s %s a second (%s), %s that every token needs, %zu experts of %s\n",
           first->state.host_bytes ? "the host gives" : "the disk reads", format_bytes(a, first->disk.median),
           first->state.read_method, format_bytes(b, (double)first->state.resident), first->state.experts,
           format_bytes(c, (double)first->state.slot_bytes));
    printf("share: of the slowest of bytes that were missed / %s, bytes / memory, operations / FLOP/s%s\n",
           first->state.host_bytes ? "copies" : "disk",
           first->state.host_bytes ? "" : ", and the step without its waits for reads");
    for (int i = 0; i < t->n; i++) {
        const bench_weights_row *r = &t->row[i];
        printf("%s: %zu of %zu experts in memory\n", t->limit[i], r->state.slots, r->state.experts);
        printf("  decode, hit rate %5.1f %%, tokens/s", 100 * r->decode.hit_rate);
        print_case(r, &r->decode, 1);
        printf(" a token\n  prompt of %d, tokens/s        ", arguments->prompt_tokens);
        print_case(r, &r->prompt, arguments->prompt_tokens);
        printf("\n");
    }
}

static cJSON *case_json(const bench_weights_row *r, const bench_weights_case *c, int tokens) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "tokens_per_second", tokens / c->seconds.median);
    bench_add_spread(json, "seconds", &c->seconds);
    cJSON_AddStringToObject(json, "bound", bound_name(&r->state, c->bound));
    cJSON_AddNumberToObject(json, "bound_seconds", c->bound_seconds);
    bench_add_spread(json, "share_of_bound", &c->share);
    cJSON_AddNumberToObject(json, "hit_rate", c->hit_rate);
    cJSON_AddNumberToObject(json, "bytes_read", c->bytes_read);
    cJSON_AddNumberToObject(json, "bytes_missed", c->missed);
    bench_add_spread(json, "waited_seconds", &c->waited);
    return json;
}

static cJSON *table_json(const weights_table *t, const bench_arguments *arguments) {
    cJSON *json = cJSON_CreateObject(), *rows = cJSON_AddArrayToObject(json, "weights_limits");
    for (int i = 0; i < t->n; i++) {
        const bench_weights_row *r = &t->row[i];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddNumberToObject(row, "limit_bytes", (double)r->state.limit);
        cJSON_AddNumberToObject(row, "resident_bytes", (double)r->state.resident);
        cJSON_AddNumberToObject(row, "expert_bytes", (double)r->state.slot_bytes);
        cJSON_AddNumberToObject(row, "slots", (double)r->state.slots);
        cJSON_AddNumberToObject(row, "experts", (double)r->state.experts);
        bench_add_spread(row, "disk_bytes_per_second", &r->disk);
        bench_add_spread(row, "read_bytes_per_second", &r->read_bytes_per_second);
        bench_add_spread(row, "flops_per_second", &r->flops_per_second);
        cJSON_AddItemToObject(row, "decode", case_json(r, &r->decode, 1));
        cJSON_AddItemToObject(row, "prompt", case_json(r, &r->prompt, arguments->prompt_tokens));
        cJSON_AddItemToArray(rows, row);
    }
    return json;
}

kakeya_status bench_weights(bench_arguments *arguments, kakeya_error *error) {
    weights_table *t = calloc(1, sizeof *t);
    if (!t) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    kakeya_status status = read_limits(arguments->shared.weights_limit, t, error);
    for (int i = 0; i < t->n && !status; i++) status = measure(arguments, t, i, error);
    if (!status && arguments->shared.json) {
        cJSON *json = table_json(t, arguments);
        status = cli_print_json(json, error);
        cJSON_Delete(json);
    } else if (!status) {
        print_table(t, arguments);
    }
    free(t);
    return status;
}
