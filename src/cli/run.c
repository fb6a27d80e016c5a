/* kakeya run: one prompt, from wherever it comes, and its answer. */
#include "cli/run.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/input.h"
#include "cli/terminal.h"
#include "model/sizes.h"
#include "session/session.h"

static const cli_command command = {
    .name = "run",
    .summary = "Answers a prompt. With no prompt on a terminal: a chat.",
    .operands = "[PROMPT]",
    .details = "The prompt is PROMPT, --prompt-file, --ids-file or standard input ('-', or a pipe). The answer streams to\n"
               "stdout, a line of figures goes to stderr. Without --temperature the answer is greedy.\n"
               "Prompts and chats run under restored attention where the model has a drafter and an f_theta; --raw and\n"
               "--ids-file, which are for exact work, and models without them run native. --attention decides otherwise.\n",
    .examples = "  kakeya run --prompt-file examples/needle-60.txt\n"
                "  kakeya run --raw --max-tokens 64 --json 'def fibonacci(n):' | jq .stats\n",
};

void run_stream_free(run_stream *stream) {
    free(stream->text);
    stream->text = NULL;
}

static bool stream_append(run_stream *stream, const char *text, size_t bytes) {
    if (stream->bytes + bytes + 1 > stream->capacity) {
        size_t capacity = (stream->bytes + bytes + 1) * 2;
        char *larger = realloc(stream->text, capacity);
        if (!larger) {
            stream->out_of_memory = true;
            return false;
        }
        stream->text = larger;
        stream->capacity = capacity;
    }
    memcpy(stream->text + stream->bytes, text, bytes);
    stream->bytes += bytes;
    stream->text[stream->bytes] = '\0';
    return true;
}

static bool on_event(void *user, const kakeya_event *event) {
    run_stream *stream = user;
    const char *text = event->text;
    size_t text_bytes = event->text_bytes;
    char id[16];
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    if (stream->as_ids) {
        text_bytes = (size_t)snprintf(id, sizeof id, stream->wrote_any ? " %d" : "%d", (int)event->token);
        text = id;
    }
    if (text_bytes) {
        if (!stream_append(stream, text, text_bytes)) return false;
        if (!stream->quiet && !terminal_write(text, text_bytes)) return false;
        stream->wrote_any = true;
        stream->ends_with_newline = text[text_bytes - 1] == '\n';
    }
    return !terminal_interrupted();
}

kakeya_status run_generate(const run_options *options, kakeya_session *session, run_stream *stream, kakeya_stats *stats,
                           kakeya_error *error) {
    kakeya_generate_options generate;
    kakeya_generate_options_init(&generate);
    generate.max_tokens = options->max_tokens;
    generate.mode = (kakeya_mode)options->mode;
    generate.draft_length = options->draft_length;
    generate.sampling = options->sampling;
    generate.stop_strings = options->stop.text;
    generate.n_stop_strings = options->stop.n;
    generate.ignore_stop_tokens = options->ignore_eos;
    generate.on_event = on_event;
    generate.user = stream;
    kakeya_status status = kakeya_session_generate(session, &generate, stats, error);
    if (!status && stream->out_of_memory) {
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory after %zu bytes of answer", stream->bytes);
    }
    return status;
}

static double per_second(uint64_t count, double seconds) { return seconds > 0 ? (double)count / seconds : 0; }

static double tokens_per_forward(const kakeya_stats *stats) {
    return stats->verifier_forwards ? (double)stats->completion_tokens / (double)stats->verifier_forwards : 0;
}

static uint64_t computed_prompt_tokens(const kakeya_stats *stats) { return stats->prompt_tokens - stats->reused_tokens; }

/* What the same tokens would hold under native attention: what bounded memory is measured against. */
static size_t native_kv_bytes(const kakeya_session *session) {
    const kakeya_engine *engine = session->engine;
    size_t n_tokens;
    (void)kakeya_session_tokens(session, &n_tokens);
    const kv_policy policy = {.attention = KAKEYA_ATTENTION_NATIVE,
                              .draft_window = session->cache_options.draft_window,
                              .type = session->cache_options.kv_format == KV_FORMAT_BF16 ? DTYPE_BF16 : DTYPE_F32};
    bool drafts = engine->drafter && session->cache_options.keep_draft_context;
    return kv_session_bytes(&engine->verifier->config, drafts ? &engine->drafter->config : NULL, &policy, (int)n_tokens).total;
}

void run_print_figures(const kakeya_session *session, const kakeya_stats *stats) {
    char prompt[32], completion[32], resident[32], native[64] = "";
    if (session->options.attention != KAKEYA_ATTENTION_NATIVE) {
        char bytes[32];
        snprintf(native, sizeof native, " (native: %s)", format_bytes(bytes, (double)native_kv_bytes(session)));
    }
    fprintf(stderr, "%s[%s prompt tokens at %.0f/s, %s tokens at %.0f/s, %.2f tokens per forward, K/V %s%s]%s\n",
            terminal_dim(STDERR_FILENO), format_count(prompt, stats->prompt_tokens),
            per_second(computed_prompt_tokens(stats), stats->prefill_seconds),
            format_count(completion, stats->completion_tokens),
            per_second(stats->completion_tokens, stats->decode_seconds), tokens_per_forward(stats),
            format_bytes(resident, (double)kakeya_session_kv_bytes(session).total), native, terminal_plain(STDERR_FILENO));
}

/* All figures that DESIGN promises by name; NULL when out of memory. */
static cJSON *result_json(const run_options *options, const kakeya_engine *engine, kakeya_session *session,
                          const run_stream *stream, const kakeya_stats *stats, size_t prompt_tokens) {
    cJSON *json = cJSON_CreateObject();
    if (stream->as_ids) {
        cJSON_AddNullToObject(json, "text");
    } else {
        cli_json_add_text(json, "text", stream->text ? stream->text : "", stream->bytes);
    }
    size_t n_tokens;
    const int32_t *tokens = kakeya_session_tokens(session, &n_tokens);
    cJSON_AddItemToObject(json, "token_ids", cJSON_CreateIntArray(tokens + prompt_tokens, (int)(n_tokens - prompt_tokens)));
    cJSON_AddNumberToObject(json, "prompt_tokens", (double)prompt_tokens);
    cJSON_AddNumberToObject(json, "completion_tokens", (double)stats->completion_tokens);
    cJSON_AddStringToObject(json, "finish_reason", kakeya_finish_name(stats->finish));
    cJSON *figures = cJSON_AddObjectToObject(json, "stats");
    cJSON_AddStringToObject(figures, "mode", cli_mode_names[options->mode]);
    cJSON_AddStringToObject(figures, "attention", cli_attention_names[options->shared.attention]);
    cJSON_AddStringToObject(figures, "backend", kakeya_engine_backend(engine));
    cJSON_AddNumberToObject(figures, "prefill_tokens_per_second",
                            per_second(computed_prompt_tokens(stats), stats->prefill_seconds));
    cJSON_AddNumberToObject(figures, "decode_tokens_per_second",
                            per_second(stats->completion_tokens, stats->decode_seconds));
    cJSON_AddNumberToObject(figures, "verifier_forwards", (double)stats->verifier_forwards);
    cJSON_AddNumberToObject(figures, "tokens_per_forward", tokens_per_forward(stats));
    cJSON_AddNumberToObject(figures, "drafted_tokens", (double)stats->drafted_tokens);
    cJSON_AddNumberToObject(figures, "accepted_tokens", (double)stats->accepted_tokens);
    kakeya_kv_bytes kv = kakeya_session_kv_bytes(session);
    cJSON *bytes = cJSON_AddObjectToObject(figures, "kv_bytes");
    cJSON_AddNumberToObject(bytes, "full", (double)kv.full);
    cJSON_AddNumberToObject(bytes, "sliding", (double)kv.sliding);
    cJSON_AddNumberToObject(bytes, "latent", (double)kv.latent);
    cJSON_AddNumberToObject(bytes, "draft", (double)kv.draft);
    cJSON_AddNumberToObject(bytes, "total", (double)kv.total);
    return json;
}

/* The prompt's tokens from whichever source was given. *ids is freed with free or kakeya_free alike (malloc'ed). */
static kakeya_status prompt_tokens(const run_options *options, const kakeya_engine *engine, const char *text,
                                   size_t text_bytes, int32_t **ids, size_t *n, kakeya_error *error) {
    if (options->ids_file) {
        return input_read_ids(options->ids_file, kakeya_engine_vocab_size(engine), ids, n, error);
    }
    if (options->raw) return kakeya_tokenize(kakeya_engine_tokenizer(engine), text, text_bytes, KAKEYA_TEXT_PROMPT, ids, n, error);
    kakeya_message messages[2];
    size_t count = 0;
    if (options->system) messages[count++] = (kakeya_message){.role = "system", .content = options->system};
    messages[count++] = (kakeya_message){.role = "user", .content = text};
    return kakeya_chat_tokens(kakeya_engine_tokenizer(engine), messages, count, options->thinking, ids, n, error);
}

enum { ATTENTION_NOT_GIVEN = -1 };

/* Conversations get everything that is there; what is given as it is, is computed as it is. */
static kakeya_attention default_attention(const run_options *options, const kakeya_engine *engine) {
    bool conversation = !options->raw && !options->ids_file;
    bool restores = kakeya_engine_has_drafter(engine) && kakeya_engine_has_f_theta(engine);
    return conversation && restores ? KAKEYA_ATTENTION_RESTORED : KAKEYA_ATTENTION_NATIVE;
}

static kakeya_status answer_prompt(const run_options *options, kakeya_engine *engine, kakeya_session *session,
                                   const int32_t *ids, size_t n, kakeya_error *error) {
    run_stream stream = {.quiet = options->shared.json, .as_ids = !kakeya_engine_has_tokenizer(engine)};
    kakeya_stats stats;
    kakeya_stats_init(&stats);
    kakeya_status status = kakeya_session_sync(session, ids, n, NULL, terminal_progress, NULL, error);
    if (status) goto done;
    status = run_generate(options, session, &stream, &stats, error);
    if (status) {
        if (!stream.quiet && stream.wrote_any && !stream.ends_with_newline) terminal_write("\n", 1);
        goto done;
    }
    if (options->shared.json) {
        cJSON *json = result_json(options, engine, session, &stream, &stats, n);
        status = cli_print_json(json, error);
        cJSON_Delete(json);
    } else {
        if (stream.wrote_any && !stream.ends_with_newline) terminal_write("\n", 1);
        run_print_figures(session, &stats);
    }
done:
    run_stream_free(&stream);
    return status;
}

static int run(const run_options *options, bool chat, kakeya_error *error) {
    int result = CLI_FAILED;
    char *text = NULL;
    size_t text_bytes = 0;
    int32_t *ids = NULL;
    size_t n = 0;
    kakeya_engine *engine = NULL;
    kakeya_session *session = NULL;
    run_options local = *options; /* finding the model and the attention policy are remembered in the shared options */

    if (options->system && input_check_utf8("--system", options->system, strlen(options->system), error)) goto done;
    for (size_t i = 0; i < options->stop.n; i++) {
        if (input_check_utf8("--stop", options->stop.text[i], strlen(options->stop.text[i]), error)) goto done;
    }
    if (options->prompt_file) {
        if (input_read_text(options->prompt_file, &text, &text_bytes, error)) goto done;
    } else if (options->prompt) {
        text_bytes = strlen(options->prompt);
        if (input_check_utf8("the prompt", options->prompt, text_bytes, error)) goto done;
        text = strdup(options->prompt);
        if (!text) {
            error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
            goto done;
        }
    }
    if (text && !options->raw && strlen(text) != text_bytes) {
        error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: NUL byte at offset %zu", options->prompt_file, strlen(text));
        goto done;
    }

    if (cli_open_engine(command.name, &local.shared, &engine, error)) goto done;
    if (local.shared.attention == ATTENTION_NOT_GIVEN) local.shared.attention = (int)default_attention(options, engine);
    kakeya_session_options session_options;
    cli_shared_session_options(&local.shared, &session_options);
    session_options.without_drafter = options->mode == KAKEYA_MODE_AR || options->mode == KAKEYA_MODE_NGRAM;
    if (!chat && prompt_tokens(options, engine, text, text_bytes, &ids, &n, error)) goto done;
    if (!chat && n == 0) {
        error_set(error, KAKEYA_INVALID_ARGUMENT, "the prompt has no tokens");
        goto done;
    }
    if (kakeya_session_open(engine, &session_options, &session, error)) goto done;
    if (chat) {
        result = run_chat(&local, engine, session);
    } else if (!answer_prompt(&local, engine, session, ids, n, error)) {
        result = CLI_DONE;
    }
done:
    if (result && error->status) result = cli_fail(command.name, error);
    kakeya_session_close(session);
    kakeya_engine_close(engine);
    kakeya_free(ids);
    free(text);
    cli_shared_free(&local.shared);
    return result;
}

int cli_run(int argc, char **argv) {
    run_options options = {0};
    kakeya_generate_options defaults;
    kakeya_generate_options_init(&defaults);
    options.sampling = defaults.sampling;
    options.mode = (int)defaults.mode;
    cli_option shared[CLI_SHARED_OPTIONS];
    cli_shared_init(&options.shared, shared);
    options.shared.attention = ATTENTION_NOT_GIVEN;
    const cli_option own[] = {
        {.name = "prompt-file", .argument = "FILE", .kind = CLI_TEXT, .target = &options.prompt_file,
         .help = "read the prompt from FILE, as it is ('-': standard input)"},
        {.name = "ids-file", .argument = "FILE", .kind = CLI_TEXT, .target = &options.ids_file,
         .help = "token ids as they are, a JSON array; needs no tokenizer"},
        {.name = "raw", .kind = CLI_FLAG, .target = &options.raw, .help = "no turn format: continue the text"},
        {.name = "system", .argument = "TEXT", .kind = CLI_TEXT, .target = &options.system, .help = "system message"},
        {.name = "thinking", .kind = CLI_FLAG, .target = &options.thinking, .help = "let the model think before it answers"},
        {.name = "max-tokens", .argument = "N", .kind = CLI_INT, .target = &options.max_tokens, .min = 0, .max = 1 << 30,
         .help = "end the answer after N tokens (0: until the context is full)"},
        {.name = "mode", .argument = "MODE", .kind = CLI_CHOICE, .target = &options.mode, .choices = cli_mode_names,
         .help = "auto, ar, speculative or ngram: same tokens, different speed (auto)"},
        {.name = "draft-length", .argument = "N", .kind = CLI_INT, .target = &options.draft_length, .min = 0, .max = 16,
         .help = "tokens drafted per block; 0: the drafter's block size - 1, in auto up to 16 (0)"},
        {.name = "temperature", .argument = "T", .kind = CLI_FLOAT, .target = &options.sampling.temperature, .min = 0,
         .max = 100, .help = "0 is greedy (0)"},
        {.name = "top-k", .argument = "N", .kind = CLI_INT, .target = &options.sampling.top_k, .min = 0, .max = 1 << 30,
         .help = "sample from the N best tokens (0: off)"},
        {.name = "top-p", .argument = "P", .kind = CLI_FLOAT, .target = &options.sampling.top_p, .min = 0, .max = 1,
         .help = "sample from the smallest set of this probability (1: off)"},
        {.name = "min-p", .argument = "P", .kind = CLI_FLOAT, .target = &options.sampling.min_p, .min = 0, .max = 1,
         .help = "drop tokens below P times the best one's probability (0: off)"},
        {.name = "repetition-penalty", .argument = "X", .kind = CLI_FLOAT,
         .target = &options.sampling.repetition_penalty, .min = 0.01, .max = 100,
         .help = "divide the logits of tokens seen before (1: off)"},
        {.name = "seed", .argument = "N", .kind = CLI_UINT64, .target = &options.sampling.seed,
         .help = "same seed, same answer (0)"},
        {.name = "stop", .argument = "TEXT", .kind = CLI_TEXTS, .target = &options.stop,
         .help = "end the answer before TEXT; may be given several times"},
        {.name = "ignore-eos", .kind = CLI_FLAG, .target = &options.ignore_eos, .help = "go on after stop tokens"},
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&command, own, shared, argc, argv, &first, &status)) return status;
    if (argc - first > 1) {
        return cli_usage_error(&command, "more than one PROMPT ('%s'): quote it", argv[first + 1]);
    }
    if (argc > first) options.prompt = argv[first];
    if (options.prompt && strcmp(options.prompt, "-") == 0) {
        options.prompt = NULL;
        if (options.prompt_file) return cli_usage_error(&command, "PROMPT and --prompt-file exclude each other");
        options.prompt_file = "-";
    }
    if ((options.prompt != NULL) + (options.prompt_file != NULL) + (options.ids_file != NULL) > 1) {
        return cli_usage_error(&command, "PROMPT, --prompt-file and --ids-file exclude each other");
    }
    if (options.system && (options.raw || options.ids_file)) {
        return cli_usage_error(&command, "--system needs the turn format: not with --raw or --ids-file");
    }
    for (size_t i = 0; i < options.stop.n; i++) {
        if (!*options.stop.text[i]) return cli_usage_error(&command, "--stop: the text is empty");
    }
    bool chat = false;
    if (!options.prompt && !options.prompt_file && !options.ids_file) {
        if (!isatty(STDIN_FILENO)) {
            options.prompt_file = "-";
        } else if (!options.shared.json && !options.raw && isatty(STDOUT_FILENO)) {
            chat = true;
        } else {
            return cli_usage_error(&command, "no prompt");
        }
    }
    kakeya_error error = {0};
    return run(&options, chat, &error);
}
