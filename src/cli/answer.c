#include "cli/answer.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "kakeya_study.h"

/* ------------------------------------------------------------------------------------------------ keeping */

static bool failed(answer *a, kakeya_status status, const char *message) {
    if (!a->status) a->status = error_set(&a->error, status, "%s", message);
    return false;
}

static bool keep(answer *a, answer_text *t, const char *text, size_t bytes) {
    if (t->bytes + bytes + 1 > t->capacity) {
        size_t capacity = (t->bytes + bytes + 1) * 2;
        char *larger = realloc(t->text, capacity);
        if (!larger) return failed(a, KAKEYA_OUT_OF_MEMORY, "out of memory for the answer");
        t->text = larger;
        t->capacity = capacity;
    }
    memcpy(t->text + t->bytes, text, bytes);
    t->bytes += bytes;
    t->text[t->bytes] = '\0';
    return true;
}

static bool keep_call(answer *a, const kakeya_chat_event *event) {
    answer_call *larger = realloc(a->calls, (a->n_calls + 1) * sizeof *larger);
    if (!larger) return failed(a, KAKEYA_OUT_OF_MEMORY, "out of memory for the answer");
    a->calls = larger;
    answer_call *call = &a->calls[a->n_calls++];
    *call = (answer_call){.id = strdup(event->id), .name = strdup(event->name)};
    if (!call->id || !call->name) return failed(a, KAKEYA_OUT_OF_MEMORY, "out of memory for the answer");
    return keep(a, &call->arguments, "", 0);
}

void answer_free(answer *a) {
    for (size_t i = 0; i < a->n_calls; i++) {
        free(a->calls[i].id);
        free(a->calls[i].name);
        free(a->calls[i].arguments.text);
    }
    free(a->calls);
    free(a->text.text);
    free(a->reasoning.text);
    kakeya_chat_parser_close(a->parser);
    *a = (answer){0};
}

/* ------------------------------------------------------------------------------------------------ showing */

static bool show(answer *a, const char *text, size_t bytes) {
    if (a->options->quiet || bytes == 0) return true;
    if (!terminal_write(text, bytes)) return false;
    a->wrote_any = true;
    a->ends_with_line = text[bytes - 1] == '\n';
    return true;
}

static bool show_line_end(answer *a) { return !a->wrote_any || a->ends_with_line || show(a, "\n", 1); }

static void show_thought(answer *a, const char *text, size_t bytes) {
    if (a->options->quiet) return;
    fprintf(stderr, "%s%.*s%s", terminal_dim(STDERR_FILENO), (int)bytes, text, terminal_plain(STDERR_FILENO));
    fflush(stderr);
    a->in_thought = true;
}

static void end_thought(answer *a) {
    if (a->in_thought) fputs("\n", stderr);
    a->in_thought = false;
}

/* ------------------------------------------------------------------------------------------------ hearing */

static bool on_message(void *user, const kakeya_chat_event *event) {
    answer *a = user;
    if (event->type != KAKEYA_CHAT_REASONING) end_thought(a);
    switch (event->type) {
    case KAKEYA_CHAT_CONTENT:
        return keep(a, &a->text, event->text, event->text_bytes) && show(a, event->text, event->text_bytes);
    case KAKEYA_CHAT_REASONING:
        show_thought(a, event->text, event->text_bytes);
        return keep(a, &a->reasoning, event->text, event->text_bytes);
    case KAKEYA_CHAT_CALL_BEGIN:
        return keep_call(a, event) && show_line_end(a) && show(a, "call ", 5) &&
               show(a, event->name, strlen(event->name)) && show(a, " ", 1);
    case KAKEYA_CHAT_CALL_ARGUMENTS:
        return keep(a, &a->calls[a->n_calls - 1].arguments, event->text, event->text_bytes) &&
               show(a, event->text, event->text_bytes);
    case KAKEYA_CHAT_CALL_END:
        return show(a, "\n", 1);
    }
    return true;
}

/* A callback that refused has either failed, or the output has broken, which the process tells in the end. */
static void take_failure(answer *a, kakeya_status status, const kakeya_error *error) {
    if (!status || status == KAKEYA_CANCELLED || a->status) return;
    a->status = status;
    a->error = *error;
}

static bool on_event(void *user, const kakeya_event *event) {
    answer *a = user;
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    bool more = true;
    if (a->form == ANSWER_MESSAGE) {
        kakeya_error error = {0};
        kakeya_status status = kakeya_chat_parser_feed(a->parser, &event->token, 1, &a->stopped, &error);
        take_failure(a, status, &error);
        more = !status && !a->stopped;
    } else if (a->form == ANSWER_IDS) {
        char id[16];
        int bytes = snprintf(id, sizeof id, a->text.bytes ? " %d" : "%d", (int)event->token);
        more = keep(a, &a->text, id, (size_t)bytes) && show(a, id, (size_t)bytes);
    } else if (event->text_bytes) {
        more = keep(a, &a->text, event->text, event->text_bytes) && show(a, event->text, event->text_bytes);
    }
    return more && !terminal_interrupted();
}

static kakeya_status open_parser(answer *a, const char *tools, size_t tools_bytes, const kakeya_engine *engine,
                                 const kakeya_session *session, kakeya_error *error) {
    kakeya_chat_parser_options options;
    KAKEYA_INIT(&options);
    options.tools = tools;
    options.tools_bytes = tools_bytes;
    options.prompt = kakeya_session_tokens(session, &options.n_prompt);
    options.without_reasoning = !a->options->thinking;
    options.stop_strings = a->options->stop.text;
    options.n_stop_strings = a->options->stop.n;
    options.on_event = on_message;
    options.user = a;
    return kakeya_chat_parser_open(kakeya_engine_tokenizer(engine), &options, &a->parser, error);
}

static void end_message(answer *a, kakeya_stats *stats) {
    kakeya_error error = {0};
    kakeya_chat_summary summary;
    KAKEYA_INIT(&summary);
    take_failure(a, kakeya_chat_parser_finish(a->parser, stats->finish, &summary, &error), &error);
    a->finish_reason = summary.finish_reason;
    if (a->stopped) stats->finish = KAKEYA_FINISH_STOP;
}

kakeya_status answer_generate(const answer_options *options, answer_form form, const char *tools, size_t tools_bytes,
                              const kakeya_engine *engine, kakeya_session *session, answer *out, kakeya_stats *stats,
                              kakeya_error *error) {
    *out = (answer){.options = options, .form = form};
    KAKEYA_INIT(stats);
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.max_tokens = options->max_tokens;
    generate.mode = (kakeya_mode)options->mode;
    generate.draft_length = options->draft_length;
    generate.sampling = options->sampling;
    generate.sampling.top_p = kakeya_options_top_p(options->sampling.top_p);
    if (form != ANSWER_MESSAGE) { /* the parser looks for them in the content alone */
        generate.stop_strings = options->stop.text;
        generate.n_stop_strings = options->stop.n;
    }
    generate.ignore_stop_tokens = options->ignore_eos;
    generate.grammar = options->grammar;
    generate.on_event = on_event;
    generate.user = out;
    kakeya_status status = KAKEYA_OK;
    if (form == ANSWER_MESSAGE) status = open_parser(out, tools, tools_bytes, engine, session, error);
    if (!status) status = kakeya_session_generate(session, &generate, stats, error);
    if (!status) {
        out->finish_reason = kakeya_finish_name(stats->finish);
        if (form == ANSWER_MESSAGE) end_message(out, stats);
    }
    end_thought(out);
    show_line_end(out);
    if (!status && out->status) {
        status = out->status;
        if (error) *error = out->error;
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------ results */

static bool add_call(cJSON *list, const answer_call *call) {
    cJSON *item = cJSON_CreateObject(), *function = NULL;
    bool added = cJSON_AddStringToObject(item, "id", call->id) && cJSON_AddStringToObject(item, "type", "function") &&
                 (function = cJSON_AddObjectToObject(item, "function")) &&
                 cJSON_AddStringToObject(function, "name", call->name) &&
                 cJSON_AddStringToObject(function, "arguments", call->arguments.text);
    if (added && cJSON_AddItemToArray(list, item)) return true;
    cJSON_Delete(item);
    return false;
}

cJSON *answer_message(const answer *a) {
    cJSON *message = cJSON_CreateObject(), *calls = NULL;
    bool made = cJSON_AddStringToObject(message, "role", "assistant");
    if (a->text.bytes || a->n_calls == 0) {
        made = made && cli_json_add_text(message, "content", a->text.text ? a->text.text : "", a->text.bytes);
    } else {
        made = made && cJSON_AddNullToObject(message, "content");
    }
    if (a->reasoning.bytes) {
        made = made && cli_json_add_text(message, "reasoning_content", a->reasoning.text, a->reasoning.bytes);
    }
    if (a->n_calls) made = made && (calls = cJSON_AddArrayToObject(message, "tool_calls"));
    for (size_t i = 0; i < a->n_calls && made; i++) made = add_call(calls, &a->calls[i]);
    if (made) return message;
    cJSON_Delete(message);
    return NULL;
}

static double per_second(uint64_t count, double seconds) { return seconds > 0 ? (double)count / seconds : 0; }

double answer_tokens_per_forward(const kakeya_stats *stats) {
    return stats->verifier_forwards ? (double)stats->completion_tokens / (double)stats->verifier_forwards : 0;
}

double answer_prefill_tokens_per_second(const kakeya_stats *stats) {
    return per_second(stats->prompt_tokens - stats->reused_tokens, stats->prefill_seconds);
}

double answer_decode_tokens_per_second(const kakeya_stats *stats) {
    return per_second(stats->completion_tokens, stats->decode_seconds);
}

/* What the same tokens would hold under native attention: what bounded memory is measured against. 0: not known. */
static size_t native_kv_bytes(const kakeya_engine *engine, const kakeya_session_options *options,
                              const kakeya_session *session) {
    kakeya_session_options native = *options;
    native.attention = KAKEYA_ATTENTION_NATIVE;
    if (native.kv_format == KAKEYA_KV_AUTO) { /* follows what the engine computes in */
        bool bf16 = kakeya_engine_precision(engine) != KAKEYA_PRECISION_F32;
        native.kv_format = bf16 ? KAKEYA_KV_BF16 : KAKEYA_KV_F32;
    }
    size_t n_tokens;
    kakeya_session_tokens(session, &n_tokens);
    kakeya_kv_bytes bytes;
    KAKEYA_INIT(&bytes);
    const kakeya_description *description = kakeya_engine_description(engine);
    return kakeya_description_kv_bytes(description, &native, n_tokens, &bytes, NULL) ? 0 : bytes.total;
}

void answer_print_figures(const kakeya_engine *engine, const kakeya_session_options *options,
                          const kakeya_session *session, const kakeya_stats *stats) {
    char prompt[32], completion[32], resident[32], native[64] = "";
    size_t native_bytes = options->attention == KAKEYA_ATTENTION_NATIVE ? 0 : native_kv_bytes(engine, options, session);
    if (native_bytes) {
        char bytes[32];
        snprintf(native, sizeof native, " (native: %s)", format_bytes(bytes, (double)native_bytes));
    }
    fprintf(stderr, "%s[%s prompt tokens at %.0f/s, %s tokens at %.0f/s, %.2f tokens per forward, K/V %s%s]%s\n",
            terminal_dim(STDERR_FILENO), format_count(prompt, stats->prompt_tokens),
            answer_prefill_tokens_per_second(stats), format_count(completion, stats->completion_tokens),
            answer_decode_tokens_per_second(stats), answer_tokens_per_forward(stats),
            format_bytes(resident, (double)kakeya_session_kv_bytes(session).total), native,
            terminal_plain(STDERR_FILENO));
}
