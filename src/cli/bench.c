/* kakeya bench: what it does per second, beside what the hardware allows. */
#include "cli/bench.h"

#include <cjson/cJSON.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "cli/terminal.h"
#include "measure/bench_sessions.h"

static const cli_command command = {
    .name = "bench",
    .summary = "Measures prompt and decode speed and the cost of verifying and drafting, at several contexts.",
    .operands = "",
    .details = "Two probes precede every measurement: the same threads read memory far larger than the caches, and\n"
               "run the product's inner instruction on registers. The share compares the measured speed with the\n"
               "bound from these probes: bytes that must be read over read bandwidth, or operations over FLOP/s,\n"
               "whichever takes longer. Figures are medians, with the lowest and the highest in brackets. A small\n"
               "model that stays in the caches can exceed 100 %.\n"
               "--profile adds, on backends cuda and mlx, a table of one decode step's kernels, each measured alone.\n"
               "--sessions measures many sessions instead. Each decodes one token per step: first by themselves,\n"
               "then beside a new session's prompt; a step takes as much of the prompt as --stall-ms allows.\n"
               "--weights-limit, which may be a list here, measures instead what each limit costs: a prompt and\n"
               "decoding with random tokens at the first context, experts in memory, bytes read, and the share of\n"
               "the slowest of disk, memory and kernels, all probed in the same run.\n"
               "--requests measures a busy engine instead. Each request has a random text of half to one and a half\n"
               "times --prompt-tokens. The ideal beside it has all prompts at the speed of one long prompt, and all\n"
               "answers at that of a full batch in step. With --url the requests go to a server, as streams.\n",
    .examples = "  kakeya bench --context-frontiers 0,1024,4096\n"
                "  kakeya bench --synthetic 26b-a4b:layers=6 --threads 2 --csv bench.csv\n"
                "  kakeya bench --sessions 1,4,8 --context-frontiers 1238\n"
                "  kakeya bench --weights-limit 3G,4G,8G --model gemma-4-26b-q4_0.gguf --repeats 1\n"
                "  kakeya bench --requests 64 --prompt-tokens 256 --answer-tokens 32\n"
                "  kakeya bench --requests 64 --url http://127.0.0.1:8080 --outstanding 32\n",
};

static const char *const what_names[] = {"prefill", "decode", "verify", "draft"}; /* by bench_what */

/* Tokens per second of prompts and decoding; 0 for costs. */
static double rate(const bench_row *row, double seconds) {
    if (row->what != BENCH_PREFILL && row->what != BENCH_DECODE) return 0;
    return seconds > 0 ? row->rows / seconds : 0;
}

static void print_table(const bench_result *result, const kakeya_engine *engine, const bench_arguments *arguments) {
    const model_config *c = &engine->verifier->config;
    printf("%s, %d layers, %s attention, %s\n", c->variant, c->layers, cli_attention_names[arguments->shared.attention],
           kakeya_engine_backend(engine));
    bench_print_probes(&result->read_bytes_per_second, &result->flops_per_second, result->threads, arguments->repeats);
    printf("%8s  %-12s %12s %22s  %-22s %s\n", "context", "what", "milliseconds", "", "result", "share of the bound");
    for (size_t i = 0; i < result->n; i++) {
        const bench_row *row = &result->row[i];
        char what[32], figure[64] = "", spread[40];
        snprintf(what, sizeof what, "%s %d", what_names[row->what], row->rows);
        snprintf(spread, sizeof spread, "(%.3f to %.3f)", row->seconds.low * 1e3, row->seconds.high * 1e3);
        if (rate(row, row->seconds.median) > 0) {
            snprintf(figure, sizeof figure, "%.1f tokens/s", rate(row, row->seconds.median));
        } else if (row->what == BENCH_VERIFY && row->cost > 0) {
            snprintf(figure, sizeof figure, "%.2f x (bytes: %.2f x)", row->cost, row->cost_bound);
        }
        printf("%8d  %-12s %12.3f %22s  %-22s %3.0f %% of %s (%.0f to %.0f)\n", row->context, what,
               row->seconds.median * 1e3, spread, figure, 100 * row->share.median,
               row->bound_by_bytes ? "read bandwidth" : "FLOP/s", 100 * row->share.low, 100 * row->share.high);
    }
}

static cJSON *row_json(const bench_row *row) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "what", what_names[row->what]);
    cJSON_AddNumberToObject(json, "context", row->context);
    cJSON_AddNumberToObject(json, "rows", row->rows);
    bench_add_spread(json, "seconds", &row->seconds);
    if (rate(row, row->seconds.median) > 0) {
        cJSON_AddNumberToObject(json, "tokens_per_second", rate(row, row->seconds.median));
    }
    if (row->what == BENCH_VERIFY && row->cost > 0) {
        cJSON_AddNumberToObject(json, "cost", row->cost);
        cJSON_AddNumberToObject(json, "cost_bound", row->cost_bound);
    }
    cJSON_AddNumberToObject(json, "bytes", row->bytes);
    cJSON_AddNumberToObject(json, "operations", row->operations);
    cJSON_AddStringToObject(json, "bound", row->bound_by_bytes ? "read_bandwidth" : "flops");
    bench_add_spread(json, "bound_seconds", &row->bound_seconds);
    bench_add_spread(json, "share_of_bound", &row->share);
    return json;
}

static cJSON *result_json(const bench_result *result, const kakeya_engine *engine, const bench_arguments *arguments) {
    cJSON *json =
        bench_json(engine, arguments, &result->read_bytes_per_second, &result->flops_per_second, result->threads);
    cJSON *rows = cJSON_AddArrayToObject(json, "rows");
    for (size_t i = 0; i < result->n; i++) cJSON_AddItemToArray(rows, row_json(&result->row[i]));
    if (arguments->profile) cJSON_AddItemToObject(json, "profiles", bench_profiles_json(result));
    return json;
}

static kakeya_status write_csv(file_writer *writer, const bench_result *result, kakeya_error *error) {
    static const char header[] = "what,context,rows,seconds,seconds_low,seconds_high,tokens_per_second,cost,cost_bound,"
                                 "bytes,operations,bound,bound_seconds,share_of_bound\n";
    kakeya_status status = file_writer_write(writer, header, sizeof header - 1, error);
    for (size_t i = 0; i < result->n && !status; i++) {
        const bench_row *row = &result->row[i];
        char line[512];
        int n = snprintf(line, sizeof line, "%s,%d,%d,%.9g,%.9g,%.9g,%.6g,%.6g,%.6g,%.0f,%.0f,%s,%.9g,%.6g\n",
                         what_names[row->what], row->context, row->rows, row->seconds.median, row->seconds.low,
                         row->seconds.high, rate(row, row->seconds.median), row->cost, row->cost_bound, row->bytes,
                         row->operations, row->bound_by_bytes ? "read_bandwidth" : "flops", row->bound_seconds.median,
                         row->share.median);
        status = file_writer_write(writer, line, (size_t)n, error);
    }
    return status;
}

static kakeya_status check_contexts(const bench_arguments *arguments, const kakeya_engine *engine,
                                    kakeya_error *error) {
    int maximum = arguments->shared.context ? arguments->shared.context : kakeya_engine_max_context(engine);
    int measured =
        arguments->prompt_tokens > arguments->decode_tokens ? arguments->prompt_tokens : arguments->decode_tokens;
    for (size_t i = 0; i < arguments->contexts.n; i++) {
        int context = arguments->contexts.value[i];
        if (context > maximum - measured - BACKEND_MAX_DECODE_ROWS - 1) {
            return error_set(
                error, KAKEYA_INVALID_ARGUMENT,
                "--context-frontiers: %d tokens and the %d measured after them do not fit into a context of "
                "%d",
                context, measured + BACKEND_MAX_DECODE_ROWS + 1, maximum);
        }
    }
    return KAKEYA_OK;
}

static kakeya_status bench_one(kakeya_engine *engine, const bench_arguments *arguments, file_writer *csv,
                               kakeya_error *error) {
    bench_result result = {0};
    bench_options options = {.contexts = arguments->contexts.value,
                             .n_contexts = arguments->contexts.n,
                             .verify_rows = arguments->verify_rows.value,
                             .n_verify_rows = arguments->verify_rows.n,
                             .prompt_tokens = arguments->prompt_tokens,
                             .decode_tokens = arguments->decode_tokens,
                             .repeats = arguments->repeats,
                             .profile = arguments->profile,
                             .progress = terminal_progress};
    cli_shared_session_options(&arguments->shared, &options.session);
    kakeya_status status = bench_measure(engine, &options, &result, error);
    terminal_clear_progress();
    if (!status && csv) status = write_csv(csv, &result, error);
    if (!status && csv) {
        status = file_writer_commit(csv, error);
        csv = NULL;
    }
    if (!status && arguments->shared.json) {
        cJSON *json = result_json(&result, engine, arguments);
        status = cli_print_json(json, error);
        cJSON_Delete(json);
    } else if (!status) {
        print_table(&result, engine, arguments);
        bench_print_profiles(&result);
    }
    file_writer_abort(csv);
    bench_result_free(&result);
    return status;
}

static kakeya_status bench(bench_arguments *arguments, kakeya_error *error) {
    if (arguments->url) return bench_url(arguments, error);
    if (arguments->shared.weights_limit) return bench_weights(arguments, error);
    kakeya_engine *engine = NULL;
    file_writer *csv = NULL;
    const char *model = NULL;
    kakeya_status status = cli_shared_model(&arguments->shared, &model, error);
    if (!status) status = output_spares("csv", arguments->csv, model, error);
    for (size_t i = 0; i < arguments->shared.drafter.n && !status; i++)
        status = output_spares("csv", arguments->csv, arguments->shared.drafter.text[i], error);
    if (!status) status = output_spares("csv", arguments->csv, arguments->shared.f_theta, error);
    if (!status && arguments->csv)
        status = file_writer_open(arguments->csv, &csv, error); /* unwritable: known before measuring */
    if (status) goto done;
    status = cli_open_engine(command.name, &arguments->shared, &engine, error);
    if (!status && arguments->requests) {
        status = bench_requests(engine, arguments, error);
        goto done;
    }
    if (!status) status = check_contexts(arguments, engine, error);
    if (status) goto done;
    status = (arguments->sessions.n ? bench_sessions : bench_one)(engine, arguments, csv, error);
    csv = NULL;
done:
    file_writer_abort(csv);
    kakeya_engine_close(engine);
    return status;
}

static bool check_combination(const bench_arguments *a, int *status) {
    const bool others = a->url || a->recorded || a->rate > 0 || a->outstanding || a->shared.max_batch;
    if (a->profile && a->sessions.n)
        *status = cli_usage_error(&command, "--profile and --sessions exclude each other");
    else if (a->requests && (a->profile || a->sessions.n || a->csv))
        *status = cli_usage_error(&command, "--requests and %s exclude each other",
                                  a->profile ? "--profile"
                                  : a->csv   ? "--csv"
                                             : "--sessions");
    else if (a->shared.weights_limit && (a->requests || a->sessions.n || a->profile || a->csv))
        *status = cli_usage_error(&command, "--weights-limit and %s exclude each other",
                                  a->requests     ? "--requests"
                                  : a->sessions.n ? "--sessions"
                                  : a->profile    ? "--profile"
                                                  : "--csv");
    else if (!a->requests && others)
        *status = cli_usage_error(&command, "--url, --recorded, --rate, --outstanding and --max-batch need --requests");
    else if (a->requests && a->prompt_tokens < 2)
        *status = cli_usage_error(&command, "--requests needs --prompt-tokens of at least 2");
    else
        return true;
    return false;
}

int cli_bench(int argc, char **argv) {
    bench_arguments arguments = {.contexts = {.value = {0, 1024, 4096}, .n = 3},
                                 .verify_rows = {.value = {1, 2, 4, 8, 16}, .n = 5},
                                 .prompt_tokens = 512,
                                 .decode_tokens = 32,
                                 .answer_tokens = 128,
                                 .mode = KAKEYA_MODE_AR};
    cli_option shared[CLI_SHARED_OPTIONS];
    cli_shared_init(&arguments.shared, shared);
    const cli_option own[] = {
        CLI_INTS("context-frontiers", "N,N,...", &arguments.contexts, 0, INT_MAX,
                 "context lengths at which to measure (0,1024,4096)"),
        CLI_INT("prompt-tokens", "N", &arguments.prompt_tokens, 1, 1 << 20,
                "length of the measured prompt, or the average length with --requests (512)"),
        CLI_INT("decode-tokens", "N", &arguments.decode_tokens, 1, 1 << 16, "tokens per decode measurement (32)"),
        CLI_INTS("verify-rows", "N,N,...", &arguments.verify_rows, 1, BACKEND_MAX_DECODE_ROWS,
                 "rows verified in one forward; costs are relative to 1 (1,2,4,8,16)"),
        CLI_INTS("sessions", "N,N,...", &arguments.sessions, 1, BENCH_MAX_SESSIONS,
                 "measure this many sessions that decode together, and a prompt beside them, instead"),
        CLI_INT("stall-ms", "N", &arguments.stall_ms, 0, 10000,
                "prompt work in a step beside the decodes of --sessions or --requests "
                "(0: the scheduler's default, 200, on a GPU 60)"),
        CLI_INT("requests", "N", &arguments.requests, 1, BENCH_MAX_REQUESTS,
                "measure a busy engine with this many requests for prompt and answer instead"),
        CLI_INT("answer-tokens", "N", &arguments.answer_tokens, 1, 1 << 20,
                "with --requests: length of every answer (128)"),
        CLI_FLOAT("rate", "R", &arguments.rate, 0, 1e6, "with --requests: requests per second (0: all at once)"),
        CLI_INT("outstanding", "N", &arguments.outstanding, 0, BENCH_MAX_REQUESTS,
                "with --requests: maximum number under way; the others wait (0: no limit)"),
        CLI_INT("max-batch", "N", &arguments.shared.max_batch, 1, BACKEND_MAX_SEGMENTS,
                "with --requests: maximum number of answers computed at the same time (CUDA 256, else 64)"),
        CLI_CHOICE("mode", "MODE", &arguments.mode, cli_mode_names,
                   "with --requests: ar, ngram, speculative or auto (ar)"),
        CLI_TEXT("recorded", "FILE", &arguments.recorded,
                 "with --requests: output of an earlier run with --json; the ideal uses "
                 "the faster of the speeds of both"),
        CLI_TEXT("url", "URL", &arguments.url,
                 "with --requests: send them to this server's /v1/completions (OpenAI's API)"),
        CLI_TEXT("api-key", "KEY", &arguments.key, "with --url: key of the server (the first of $KAKEYA_API_KEYS)"),
        CLI_INT("repeats", "N", &arguments.repeats, 1, BENCH_MAX_REPEATS - 1,
                "repetitions of every measurement (5, with --requests 3)"),
        CLI_FLAG("profile", &arguments.profile,
                 "also print where one decode step spends its time, kernel by kernel (cuda, mlx)"),
        CLI_TEXT("csv", "FILE", &arguments.csv, "write the rows as CSV too"),
        {.name = NULL},
    };
    int status;
    if (!cli_parse(&command, own, shared, argc, argv, NULL, &status)) return status;

    if (!check_combination(&arguments, &status)) return status;
    if (!arguments.repeats) arguments.repeats = arguments.requests ? 3 : 5;
    if (arguments.requests) arguments.shared.max_stall_ms = arguments.stall_ms;

    kakeya_error error = {0};
    int result = bench(&arguments, &error) ? cli_fail(command.name, &error) : CLI_DONE;
    cli_shared_free(&arguments.shared);
    return result;
}
