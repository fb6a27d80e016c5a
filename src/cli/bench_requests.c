/* The figures of `kakeya bench --requests`. */
#include "measure/bench_requests.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/bench.h"
#include "cli/terminal.h"

/* ----------------------------------------------------------------------------------------------------------- text */

static void print_load(const bench_arguments *a, const char *who) {
    const int n = a->prompt_tokens;
    printf("%s: %d requests of %d to %d prompt tokens and %d answer tokens", who, a->requests, n / 2, n / 2 + n - 1,
           a->answer_tokens);
    if (a->rate > 0)
        printf(", %g a second", (double)a->rate);
    else
        printf(", all at once");
    if (a->outstanding) printf(", at most %d under way", a->outstanding);
    putchar('\n');
}

static void print_percentiles(const char *what, const bench_percentiles *p) {
    printf("%-12s p50 %.1f ms, p99 %.1f ms, longest %.1f ms\n", what, p->p50 * 1e3, p->p99 * 1e3, p->most * 1e3);
}

/* Text is what shows when tokens come. */
static bool tells_times(const bench_figures *run) { return run->first_token.most > 0; }

static void print_run(const bench_figures *run, const bench_spread *seconds, int repeats) {
    char prompt[32], answer[32];
    printf("%s prompt and %s answer tokens in %.3f s (%.3f to %.3f, %d run%s): %.1f answer tokens/s, %.1f tokens/s in "
           "all\n",
           format_count(prompt, run->prompt_tokens), format_count(answer, run->answer_tokens), run->seconds,
           seconds->low, seconds->high, repeats, repeats == 1 ? "" : "s", (double)run->answer_tokens / run->seconds,
           (double)(run->answer_tokens + run->prompt_tokens) / run->seconds);
    if (run->cached_tokens)
        printf("cached       %s of the prompts' tokens: the server had them\n",
               format_count(prompt, run->cached_tokens));
    if (!tells_times(run)) {
        puts("first token  unknown: the server sent no text (without a tokenizer there is none)");
        return;
    }
    print_percentiles("first token", &run->first_token);
    print_percentiles("gap", &run->gap);
}

static void print_recorded(double recorded, double measured) {
    if (recorded > 0) printf(" (%.0f recorded: now %.2f x)", recorded, measured / recorded);
}

static void print_ideal(const bench_ideal *i, const bench_figures *run) {
    const double all = i->prompt_seconds + i->answer_seconds;
    printf("ideal        %.3f s, the run took %.2f x\n", all, run->seconds / all);
    printf("  prompts    %.3f s at %.1f tokens/s: one of %d alone", i->prompt_seconds,
           i->measured.prompt_tokens_per_second, i->prompt_tokens);
    print_recorded(i->recorded.prompt_tokens_per_second, i->measured.prompt_tokens_per_second);
    printf("\n  answers    %.3f s at %.1f tokens/s: %d sessions in step after %d tokens each", i->answer_seconds,
           i->measured.answer_tokens_per_second, i->sessions, i->context);
    print_recorded(i->recorded.answer_tokens_per_second, i->measured.answer_tokens_per_second);
    putchar('\n');
}

static void print_between(const bench_between *b) {
    printf("in a run of its own: %llu steps of %.1f answer and %.1f prompt rows\n", (unsigned long long)b->steps,
           b->answer_rows, b->prompt_rows);
    printf("  host       %.3f ms a step (p99 %.3f, longest %.3f), %.3f s in all between forwards\n", b->host.p50 * 1e3,
           b->host.p99 * 1e3, b->host.most * 1e3, b->host_seconds);
    if (b->on_device)
        printf("  kernels    %.3f ms from a forward's last to the next one's first (longest %.3f)\n",
               b->kernel_gap * 1e3, b->longest_kernel_gap * 1e3);
    if (b->graphs) printf("  graphs     %llu captured in %.3f s\n", (unsigned long long)b->graphs, b->graph_seconds);
}

/* ----------------------------------------------------------------------------------------------------------- JSON */

static void add_percentiles(cJSON *object, const char *key, const bench_percentiles *p) {
    cJSON *json = cJSON_AddObjectToObject(object, key);
    cJSON_AddNumberToObject(json, "p50", p->p50);
    cJSON_AddNumberToObject(json, "p99", p->p99);
    cJSON_AddNumberToObject(json, "longest", p->most);
}

static void add_run(cJSON *json, const bench_arguments *a, const bench_figures *run, const bench_spread *seconds) {
    cJSON_AddNumberToObject(json, "requests", a->requests);
    cJSON_AddNumberToObject(json, "rate", (double)a->rate);
    cJSON_AddNumberToObject(json, "outstanding", a->outstanding);
    cJSON_AddNumberToObject(json, "repeats", a->repeats);
    cJSON_AddNumberToObject(json, "prompt_tokens", (double)run->prompt_tokens);
    cJSON_AddNumberToObject(json, "cached_tokens", (double)run->cached_tokens);
    cJSON_AddNumberToObject(json, "answer_tokens", (double)run->answer_tokens);
    bench_add_spread(json, "seconds", seconds);
    cJSON_AddNumberToObject(json, "answer_tokens_per_second", (double)run->answer_tokens / run->seconds);
    cJSON_AddNumberToObject(json, "tokens_per_second",
                            (double)(run->answer_tokens + run->prompt_tokens) / run->seconds);
    if (!tells_times(run)) return;
    add_percentiles(json, "first_token_seconds", &run->first_token);
    add_percentiles(json, "gap_seconds", &run->gap);
}

/* What --recorded reads. */
enum { MOST_RECORDED_BYTES = 1 << 20 };
static const char prompt_speed[] = "prompt_tokens_per_second", answer_speed[] = "answer_tokens_per_second";

static void add_speeds(cJSON *object, const char *key, const bench_speeds *s) {
    cJSON *json = cJSON_AddObjectToObject(object, key);
    cJSON_AddNumberToObject(json, prompt_speed, s->prompt_tokens_per_second);
    cJSON_AddNumberToObject(json, answer_speed, s->answer_tokens_per_second);
}

static void add_ideal(cJSON *object, const bench_ideal *i, const bench_figures *run) {
    cJSON *json = cJSON_AddObjectToObject(object, "ideal");
    const double all = i->prompt_seconds + i->answer_seconds;
    cJSON_AddNumberToObject(json, "seconds", all);
    cJSON_AddNumberToObject(json, "prompt_seconds", i->prompt_seconds);
    cJSON_AddNumberToObject(json, "answer_seconds", i->answer_seconds);
    cJSON_AddNumberToObject(json, "ratio", run->seconds / all);
    cJSON_AddNumberToObject(json, "prompt_tokens", i->prompt_tokens);
    cJSON_AddNumberToObject(json, "sessions", i->sessions);
    cJSON_AddNumberToObject(json, "context", i->context);
    add_speeds(json, "speeds", &i->measured);
    if (i->recorded.prompt_tokens_per_second > 0) add_speeds(json, "recorded", &i->recorded);
}

static void add_between(cJSON *object, const bench_between *b) {
    cJSON *json = cJSON_AddObjectToObject(object, "steps");
    cJSON_AddNumberToObject(json, "steps", (double)b->steps);
    cJSON_AddNumberToObject(json, "answer_rows", b->answer_rows);
    cJSON_AddNumberToObject(json, "prompt_rows", b->prompt_rows);
    add_percentiles(json, "host_seconds", &b->host);
    cJSON_AddNumberToObject(json, "host_seconds_in_all", b->host_seconds);
    if (b->on_device) {
        cJSON_AddNumberToObject(json, "kernel_gap_seconds", b->kernel_gap);
        cJSON_AddNumberToObject(json, "longest_kernel_gap_seconds", b->longest_kernel_gap);
    }
    cJSON_AddNumberToObject(json, "graphs", (double)b->graphs);
    cJSON_AddNumberToObject(json, "graph_seconds", b->graph_seconds);
}

static kakeya_status read_recorded(const char *path, bench_speeds *out, kakeya_error *error) {
    char *text = NULL;
    size_t bytes = 0;
    cJSON *json = NULL;
    kakeya_status status = file_read(path, MOST_RECORDED_BYTES, &text, &bytes, error);
    if (status == KAKEYA_OK) status = json_parse_object(path, text, bytes, &json, error);
    free(text);
    if (status != KAKEYA_OK) return status;
    const cJSON *speeds = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(json, "ideal"), "speeds");
    const cJSON *prompt = cJSON_GetObjectItemCaseSensitive(speeds, prompt_speed),
                *answer = cJSON_GetObjectItemCaseSensitive(speeds, answer_speed);
    if (cJSON_IsNumber(prompt) && cJSON_IsNumber(answer) && prompt->valuedouble > 0 && answer->valuedouble > 0)
        *out = (bench_speeds){prompt->valuedouble, answer->valuedouble};
    else
        status = error_set(error, KAKEYA_FORMAT,
                           "%s is not an output of kakeya bench --requests --json: it has no ideal.speeds", path);
    cJSON_Delete(json);
    return status;
}

/* ----------------------------------------------------------------------------------------------------------- runs */

static bench_load load_of(const bench_arguments *a) {
    return (bench_load){.requests = a->requests,
                        .prompt_tokens = a->prompt_tokens,
                        .answer_tokens = a->answer_tokens,
                        .rate = (double)a->rate,
                        .outstanding = a->outstanding};
}

kakeya_status bench_requests(kakeya_engine *engine, const bench_arguments *arguments, kakeya_error *error) {
    bench_requests_result result;
    bench_requests_options options = {.load = load_of(arguments),
                                      .repeats = arguments->repeats,
                                      .mode = (kakeya_mode)arguments->mode,
                                      .progress = terminal_progress};
    cli_shared_session_options(&arguments->shared, &options.session);
    options.session.without_drafter = options.mode == KAKEYA_MODE_AR || options.mode == KAKEYA_MODE_NGRAM;
    kakeya_status status = KAKEYA_OK;
    if (arguments->recorded) status = read_recorded(arguments->recorded, &options.recorded, error);
    if (!status) status = bench_requests_measure(engine, &options, &result, error);
    terminal_clear_progress();
    if (!status && arguments->shared.json) {
        cJSON *json = bench_facts_json(engine, arguments);
        cJSON_AddStringToObject(json, "mode", cli_mode_names[arguments->mode]);
        add_run(json, arguments, &result.run, &result.seconds);
        add_ideal(json, &result.ideal, &result.run);
        add_between(json, &result.between);
        status = cli_print_json(json, error);
        cJSON_Delete(json);
    } else if (!status) {
        char who[256];
        snprintf(who, sizeof who, "%s, %d layers, %s attention, %s", engine->verifier->config.variant,
                 engine->verifier->config.layers, cli_attention_names[arguments->shared.attention],
                 kakeya_engine_backend(engine));
        print_load(arguments, who);
        print_run(&result.run, &result.seconds, arguments->repeats);
        print_ideal(&result.ideal, &result.run);
        print_between(&result.between);
    }
    return status;
}

kakeya_status bench_url(const bench_arguments *arguments, kakeya_error *error) {
    const bench_load load = load_of(arguments);
    bench_figures run;
    bench_spread seconds;
    kakeya_status status = bench_url_measure(arguments, &load, &run, &seconds, error);
    terminal_clear_progress();
    if (!status && arguments->shared.json) {
        cJSON *json = cJSON_CreateObject();
        cJSON_AddStringToObject(json, "url", arguments->url);
        add_run(json, arguments, &run, &seconds);
        status = cli_print_json(json, error);
        cJSON_Delete(json);
    } else if (!status) {
        print_load(arguments, arguments->url);
        print_run(&run, &seconds, arguments->repeats);
    }
    return status;
}
