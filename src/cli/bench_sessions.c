/* The table of `kakeya bench --sessions`. */
#include "measure/bench_sessions.h"

#include <cjson/cJSON.h>
#include <stdio.h>

#include "cli/bench.h"
#include "cli/terminal.h"

static const char *const what_names[] = {"decode", "beside_prompt", "prompt"}; /* by bench_together */

static const char *bound_name(const bench_together_row *row) {
    return row->bound_by_bytes ? "read_bandwidth" : "flops";
}

static void print_table(const bench_sessions_result *result, const kakeya_engine *engine,
                        const bench_arguments *arguments) {
    const model_config *c = &engine->verifier->config;
    printf("%s, %d layers, %s attention, %s: sessions that decode together, a row each in a step\n", c->variant,
           c->layers, cli_attention_names[arguments->shared.attention], kakeya_engine_backend(engine));
    bench_print_probes(&result->read_bytes_per_second, &result->flops_per_second, result->threads, arguments->repeats);
    printf("%8s %8s  %-22s %9s %20s %9s  %10s %9s  %8s %9s  %s\n", "context", "sessions", "what", "ms a step", "",
           "longest", "tokens/s", "", "prompt", "", "share of the bound");
    for (size_t i = 0; i < result->n; i++) {
        const bench_together_row *row = &result->row[i];
        char what[32], spread[40], decoded[16] = "", against[16] = "", prompt[16] = "", share[16] = "";
        snprintf(what, sizeof what, "%s", what_names[row->what]);
        if (row->prompt_rows)
            snprintf(what, sizeof what, "%s %d", row->sessions ? "beside prompt" : "prompt alone", row->prompt_rows);
        snprintf(spread, sizeof spread, "(%.2f to %.2f)", row->seconds.low * 1e3, row->seconds.high * 1e3);
        if (row->sessions) snprintf(decoded, sizeof decoded, "%.1f", row->tokens_per_second);
        if (row->against_one > 0) snprintf(against, sizeof against, "(%.2f x)", row->against_one);
        if (row->prompt_rows) snprintf(prompt, sizeof prompt, "%.0f", row->prompt_tokens_per_second);
        if (row->prompt_share > 0) snprintf(share, sizeof share, "(%.2f x)", row->prompt_share);
        printf("%8d %8d  %-22s %9.2f %20s %9.2f  %10s %9s  %8s %9s  %3.0f %% of %s (%.0f to %.0f)\n", row->context,
               row->sessions, what, row->seconds.median * 1e3, spread, row->longest_seconds * 1e3, decoded, against,
               prompt, share, 100 * row->share.median, row->bound_by_bytes ? "read bandwidth" : "FLOP/s",
               100 * row->share.low, 100 * row->share.high);
    }
}

static void add_known(cJSON *json, const char *key, double value) {
    if (value > 0) cJSON_AddNumberToObject(json, key, value);
}

static cJSON *row_json(const bench_together_row *row) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "what", what_names[row->what]);
    cJSON_AddNumberToObject(json, "context", row->context);
    cJSON_AddNumberToObject(json, "sessions", row->sessions);
    cJSON_AddNumberToObject(json, "prompt_rows", row->prompt_rows);
    cJSON_AddNumberToObject(json, "steps", row->steps);
    cJSON_AddNumberToObject(json, "forwards", row->forwards);
    bench_add_spread(json, "step_seconds", &row->seconds);
    cJSON_AddNumberToObject(json, "longest_step_seconds", row->longest_seconds);
    add_known(json, "tokens_per_second", row->tokens_per_second);
    add_known(json, "against_one_session", row->against_one);
    add_known(json, "prompt_tokens_per_second", row->prompt_tokens_per_second);
    add_known(json, "prompt_against_alone", row->prompt_share);
    cJSON_AddNumberToObject(json, "bytes", row->bytes);
    cJSON_AddNumberToObject(json, "operations", row->operations);
    cJSON_AddStringToObject(json, "bound", bound_name(row));
    bench_add_spread(json, "bound_seconds", &row->bound_seconds);
    bench_add_spread(json, "share_of_bound", &row->share);
    return json;
}

static kakeya_status print_json(const bench_sessions_result *result, const kakeya_engine *engine,
                                const bench_arguments *arguments, kakeya_error *error) {
    cJSON *json =
        bench_json(engine, arguments, &result->read_bytes_per_second, &result->flops_per_second, result->threads);
    cJSON_AddNumberToObject(json, "prompt_tokens", arguments->prompt_tokens);
    cJSON_AddNumberToObject(json, "decode_tokens", arguments->decode_tokens);
    cJSON_AddNumberToObject(json, "stall_ms", result->stall_ms);
    cJSON *rows = cJSON_AddArrayToObject(json, "rows");
    for (size_t i = 0; i < result->n; i++) cJSON_AddItemToArray(rows, row_json(&result->row[i]));
    kakeya_status status = cli_print_json(json, error);
    cJSON_Delete(json);
    return status;
}

static kakeya_status write_csv(file_writer *writer, const bench_sessions_result *result, kakeya_error *error) {
    static const char header[] =
        "what,context,sessions,prompt_rows,steps,forwards,step_seconds,step_seconds_low,step_seconds_high,"
        "longest_step_seconds,tokens_per_second,against_one_session,prompt_tokens_per_second,prompt_against_alone,"
        "bytes,operations,bound,bound_seconds,share_of_bound\n";
    kakeya_status status = file_writer_write(writer, header, sizeof header - 1, error);
    for (size_t i = 0; i < result->n && !status; i++) {
        const bench_together_row *row = &result->row[i];
        char line[512];
        int n = snprintf(line, sizeof line,
                         "%s,%d,%d,%d,%d,%d,%.9g,%.9g,%.9g,%.9g,%.6g,%.6g,%.6g,%.6g,%.0f,%.0f,%s,%.9g,%.6g\n",
                         what_names[row->what], row->context, row->sessions, row->prompt_rows, row->steps,
                         row->forwards, row->seconds.median, row->seconds.low, row->seconds.high, row->longest_seconds,
                         row->tokens_per_second, row->against_one, row->prompt_tokens_per_second, row->prompt_share,
                         row->bytes, row->operations, bound_name(row), row->bound_seconds.median, row->share.median);
        status = file_writer_write(writer, line, (size_t)n, error);
    }
    return status;
}

kakeya_status bench_sessions(kakeya_engine *engine, const bench_arguments *arguments, file_writer *csv,
                             kakeya_error *error) {
    bench_sessions_result result = {0};
    bench_sessions_options options = {.contexts = arguments->contexts.value,
                                      .n_contexts = arguments->contexts.n,
                                      .sessions = arguments->sessions.value,
                                      .n_sessions = arguments->sessions.n,
                                      .prompt_tokens = arguments->prompt_tokens,
                                      .decode_tokens = arguments->decode_tokens,
                                      .repeats = arguments->repeats,
                                      .stall_ms = arguments->stall_ms,
                                      .progress = terminal_progress};
    cli_shared_session_options(&arguments->shared, &options.session);
    kakeya_status status = bench_sessions_measure(engine, &options, &result, error);
    terminal_clear_progress();
    if (!status && csv) status = write_csv(csv, &result, error);
    if (!status && csv) {
        status = file_writer_commit(csv, error);
        csv = NULL;
    }
    if (!status && arguments->shared.json)
        status = print_json(&result, engine, arguments, error);
    else if (!status)
        print_table(&result, engine, arguments);
    file_writer_abort(csv);
    bench_sessions_result_free(&result);
    return status;
}
