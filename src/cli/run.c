/* kakeya run: one prompt, from wherever it comes, and its answer. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/answer.h"
#include "cli/chat.h"
#include "cli/cli.h"
#include "cli/images.h"
#include "cli/input.h"
#include "cli/terminal.h"

static const cli_command command = {
    .name = "run",
    .summary = "Answers a prompt, or starts a chat if there is no prompt and stdin is a terminal.",
    .operands = "[PROMPT]",
    .details = "The prompt is PROMPT, --prompt-file, --messages, --ids-file or standard input ('-', or a pipe). The\n"
               "answer streams to stdout; thoughts and a line of figures go to stderr. The answer is greedy unless\n"
               "--temperature is set.\n"
               "\n"
               "With a model that has an f_theta, prompts and chats use restored attention, or sink-window if the\n"
               "f_theta's report says that restoring is worse than dropping. Models without an f_theta use native\n"
               "attention, and so do --raw and --ids-file, which are for exact work. --attention overrides this.\n",
    .examples = "  kakeya run --prompt-file examples/needle-60.txt\n"
                "  kakeya run --raw --max-tokens 64 --json 'def fibonacci(n):' | jq .stats\n"
                "  kakeya run --messages conversation.json --tools tools.json --json | jq .message\n"
                "  kakeya run --json-schema person.json 'Describe a person.'\n",
};

static const char *const switch_names[] = {"off", "on", NULL};
enum { ORDER_NOT_GIVEN = -1 };

typedef struct run_options {
    cli_shared shared;
    answer_options answer;
    const char *prompt, *prompt_file, *ids_file, *messages_file, *tools_file, *system;
    const char *schema_file, *grammar_file, *regex;
    int strict_order; /* ORDER_NOT_GIVEN, or an index of switch_names */
    bool raw, json_object;
    cli_texts images, sounds;
    int image_budget;
} run_options;

/* What was read before the model: nothing of it is needed once the prompt is tokens, but the tools. */
typedef struct run_input {
    char *text; /* the prompt, or a conversation as JSON */
    size_t bytes;
    char *tools; /* JSON, or NULL */
    size_t tools_bytes;
    char *schema; /* JSON, or rules; or NULL */
    size_t schema_bytes;
} run_input;

static bool is_conversation(const run_options *options) { return !options->raw && !options->ids_file; }

/* All figures that DESIGN promises by name; NULL when out of memory. */
static cJSON *result_json(const run_options *options, const kakeya_engine *engine, kakeya_session *session,
                          const answer *a, const kakeya_stats *stats, size_t prompt_tokens) {
    cJSON *json = cJSON_CreateObject();
    if (kakeya_engine_has_tokenizer(engine)) {
        cli_json_add_text(json, "text", a->text.text ? a->text.text : "", a->text.bytes);
    } else {
        cJSON_AddNullToObject(json, "text");
    }
    if (options->messages_file || (options->answer.thinking && is_conversation(options))) {
        cJSON *message = answer_message(a);
        if (!message || !cJSON_AddItemToObject(json, "message", message)) {
            cJSON_Delete(message);
            cJSON_Delete(json);
            return NULL;
        }
    }
    size_t n_tokens;
    const int32_t *tokens = kakeya_session_tokens(session, &n_tokens);
    cJSON_AddItemToObject(json, "token_ids",
                          cJSON_CreateIntArray(tokens + prompt_tokens, (int)(n_tokens - prompt_tokens)));
    cJSON_AddNumberToObject(json, "prompt_tokens", (double)prompt_tokens);
    cJSON_AddNumberToObject(json, "completion_tokens", (double)stats->completion_tokens);
    cJSON_AddStringToObject(json, "finish_reason", a->finish_reason);
    cJSON *figures = cJSON_AddObjectToObject(json, "stats");
    cJSON_AddStringToObject(figures, "mode", cli_mode_names[options->answer.mode]);
    cJSON_AddStringToObject(figures, "attention", cli_attention_names[options->shared.attention]);
    cJSON_AddStringToObject(figures, "backend", kakeya_engine_backend(engine));
    cJSON_AddNumberToObject(figures, "prefill_tokens_per_second", answer_prefill_tokens_per_second(stats));
    cJSON_AddNumberToObject(figures, "decode_tokens_per_second", answer_decode_tokens_per_second(stats));
    cJSON_AddNumberToObject(figures, "verifier_forwards", (double)stats->verifier_forwards);
    cJSON_AddNumberToObject(figures, "tokens_per_forward", answer_tokens_per_forward(stats));
    cJSON_AddNumberToObject(figures, "drafted_tokens", (double)stats->drafted_tokens);
    cJSON_AddNumberToObject(figures, "accepted_tokens", (double)stats->accepted_tokens);
    if (options->answer.grammar) {
        cJSON_AddNumberToObject(figures, "grammar_redraws", (double)stats->grammar_redraws);
        cJSON_AddNumberToObject(figures, "grammar_masks", (double)stats->grammar_masks);
    }
    const kakeya_weights weights = kakeya_engine_weights(engine);
    if (weights.limit) {
        cJSON *experts = cJSON_AddObjectToObject(figures, "weights");
        cJSON_AddNumberToObject(experts, "limit_bytes", (double)weights.limit);
        cJSON_AddNumberToObject(experts, "resident_bytes", (double)weights.resident);
        cJSON_AddNumberToObject(experts, "experts", (double)weights.experts);
        cJSON_AddNumberToObject(experts, "slots", (double)weights.slots);
        cJSON_AddNumberToObject(experts, "wanted", (double)weights.wanted);
        cJSON_AddNumberToObject(experts, "found", (double)weights.found);
        cJSON_AddNumberToObject(experts, "bytes_read", (double)weights.bytes_read);
        cJSON_AddNumberToObject(experts, "read_seconds", weights.read_seconds);
        if (weights.host_bytes) cJSON_AddNumberToObject(experts, "host_bytes", (double)weights.host_bytes);
    }
    kakeya_kv_bytes kv = kakeya_session_kv_bytes(session);
    cJSON *bytes = cJSON_AddObjectToObject(figures, "kv_bytes");
    cJSON_AddNumberToObject(bytes, "full", (double)kv.full);
    cJSON_AddNumberToObject(bytes, "sliding", (double)kv.sliding);
    cJSON_AddNumberToObject(bytes, "latent", (double)kv.latent);
    cJSON_AddNumberToObject(bytes, "draft", (double)kv.draft);
    cJSON_AddNumberToObject(bytes, "total", (double)kv.total);
    return json;
}

/* ------------------------------------------------------------------------------------------------ prompts */

static kakeya_status read_input(const run_options *options, run_input *input, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    const char *grammar = options->schema_file ? options->schema_file : options->grammar_file;
    if (grammar) status = input_read_text(grammar, &input->schema, &input->schema_bytes, error);
    if (status) return status;
    if (options->prompt_file) {
        status = input_read_text(options->prompt_file, &input->text, &input->bytes, error);
    } else if (options->messages_file) {
        status = input_read_text(options->messages_file, &input->text, &input->bytes, error);
        if (!status && options->tools_file) {
            status = input_read_text(options->tools_file, &input->tools, &input->tools_bytes, error);
        }
        return status;
    } else if (options->prompt) {
        input->bytes = strlen(options->prompt);
        status = input_check_utf8("the prompt", options->prompt, input->bytes, error);
        if (!status) input->text = strdup(options->prompt);
        if (!status && !input->text) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    }
    if (!status && input->text && !options->raw && strlen(input->text) != input->bytes) {
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: NUL byte at offset %zu", options->prompt_file,
                           strlen(input->text));
    }
    return status;
}

/* The file that an error of a conversation is about begins the line. */
static kakeya_status conversation_tokens(const run_options *options, const kakeya_tokenizer *tokenizer,
                                         const run_input *input, const int *media_tokens, int32_t **ids, size_t *n,
                                         kakeya_error *error) {
    kakeya_chat_options chat;
    KAKEYA_INIT(&chat);
    chat.thinking = options->answer.thinking;
    chat.tools = input->tools;
    chat.tools_bytes = input->tools_bytes;
    chat.image_tokens = options->images.n ? media_tokens : NULL;
    chat.n_images = options->images.n;
    chat.sound_tokens = options->sounds.n ? media_tokens + options->images.n : NULL;
    chat.n_sounds = options->sounds.n;
    kakeya_status status = kakeya_chat_tokens(tokenizer, input->text, input->bytes, &chat, ids, n, NULL, error);
    if (status == KAKEYA_OK) return status;
    bool tools = options->tools_file && strncmp(error->message, "tools", 5) == 0;
    const char *source = tools ? options->tools_file : options->messages_file;
    return source ? error_prefix(error, status, "%s", input_name(source)) : status;
}

/* The prompt behind its pictures and sounds as a conversation in JSON, in the place of its text. */
static kakeya_status add_media(const run_options *options, run_input *input, kakeya_error *error) {
    cJSON *messages = cJSON_CreateArray(), *user = cJSON_CreateObject(), *parts = cJSON_CreateArray();
    if (options->system) {
        cJSON *system = cJSON_CreateObject();
        cJSON_AddStringToObject(system, "role", "system");
        cJSON_AddStringToObject(system, "content", options->system);
        cJSON_AddItemToArray(messages, system);
    }
    const size_t pictures = options->images.n, all = pictures + options->sounds.n;
    for (size_t i = 0; i <= all; i++) {
        cJSON *part = cJSON_CreateObject();
        cJSON_AddStringToObject(part, "type", i < pictures ? "image" : i < all ? "audio" : "text");
        if (i == all) cJSON_AddStringToObject(part, "text", input->text);
        cJSON_AddItemToArray(parts, part);
    }
    cJSON_AddStringToObject(user, "role", "user");
    cJSON_AddItemToObject(user, "content", parts);
    cJSON_AddItemToArray(messages, user);
    char *json = cJSON_PrintUnformatted(messages);
    cJSON_Delete(messages);
    if (!json) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    free(input->text);
    input->text = json;
    input->bytes = strlen(json);
    return KAKEYA_OK;
}

static kakeya_status media_lengths(const kakeya_engine *engine, const cli_images *images, int *tokens,
                                   kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (size_t i = 0; i < images->n && !status; i++) {
        const kakeya_media *media = &images->media[i];
        status = media->sound ? kakeya_engine_sound_tokens(engine, media->sound, &tokens[i], error)
                              : kakeya_engine_image_tokens(engine, media, &tokens[i], error);
    }
    return status;
}

/* The prompt's tokens from whichever source was given. *ids is freed with free or kakeya_free alike (malloc'ed). */
static kakeya_status prompt_tokens(const run_options *options, const kakeya_engine *engine, const run_input *input,
                                   const cli_images *images, int32_t **ids, size_t *n, kakeya_error *error) {
    const kakeya_tokenizer *tokenizer = kakeya_engine_tokenizer(engine);
    int media_tokens[2 * CLI_MAX_VALUES] = {0};
    if (options->ids_file) {
        return input_read_ids(options->ids_file, kakeya_engine_vocab_size(engine), ids, n, error);
    }
    kakeya_status status = media_lengths(engine, images, media_tokens, error);
    if (status) return status;
    if (options->messages_file || images->n)
        return conversation_tokens(options, tokenizer, input, media_tokens, ids, n, error);
    if (options->raw) {
        return kakeya_tokenize(tokenizer, input->text, input->bytes, KAKEYA_TEXT_PROMPT, ids, n, error);
    }
    kakeya_message messages[2];
    size_t count = 0;
    if (options->system) messages[count++] = (kakeya_message){.role = "system", .content = options->system};
    messages[count++] = (kakeya_message){.role = "user", .content = input->text};
    return kakeya_message_tokens(tokenizer, messages, count, options->answer.thinking, ids, n, error);
}

/* What the answer may be, where the options say so. */
static kakeya_status open_grammar(const run_options *options, const run_input *input, const kakeya_engine *engine,
                                  kakeya_grammar **out, kakeya_error *error) {
    kakeya_grammar_options grammar;
    KAKEYA_INIT(&grammar);
    grammar.thinking = options->answer.thinking;
    grammar.any_order = options->strict_order == 0;
    if (options->schema_file || options->grammar_file) {
        grammar.kind = options->schema_file ? KAKEYA_GRAMMAR_JSON_SCHEMA : KAKEYA_GRAMMAR_RULES;
        grammar.text = input->schema;
        grammar.text_bytes = input->schema_bytes;
    } else if (options->regex) {
        grammar.kind = KAKEYA_GRAMMAR_REGEX;
        grammar.text = options->regex;
        grammar.text_bytes = strlen(options->regex);
    } else if (options->json_object) {
        grammar.kind = KAKEYA_GRAMMAR_JSON_OBJECT;
    } else {
        return KAKEYA_OK;
    }
    kakeya_status status = kakeya_grammar_open(kakeya_engine_tokenizer(engine), &grammar, out, error);
    if (!status) return status;
    const char *source = options->schema_file    ? input_name(options->schema_file)
                         : options->grammar_file ? input_name(options->grammar_file)
                         : options->regex        ? "--regex"
                                                 : NULL;
    return source ? error_prefix(error, status, "%s", source) : status;
}

enum { ATTENTION_NOT_GIVEN = -1 };

/* Conversations get everything that is there and helps; what is given as it is, is computed as it is. */
static kakeya_attention default_attention(const run_options *options, const kakeya_engine *engine) {
    if (!is_conversation(options) || !kakeya_engine_has_f_theta(engine)) return KAKEYA_ATTENTION_NATIVE;
    return kakeya_engine_f_theta_loses(engine) ? KAKEYA_ATTENTION_SINK_WINDOW : KAKEYA_ATTENTION_RESTORED;
}

/* ------------------------------------------------------------------------------------------------ answers */

static kakeya_status answer_prompt(const run_options *options, const run_input *input, kakeya_engine *engine,
                                   const kakeya_session_options *session_options, kakeya_session *session,
                                   const int32_t *ids, size_t n, const cli_images *images, kakeya_error *error) {
    kakeya_status status =
        kakeya_session_sync_media(session, ids, n, images->media, images->n, NULL, terminal_progress, NULL, error);
    if (status) return status;
    /* The tools that a conversation declares are its own, where no file replaces them. */
    const char *tools = input->tools ? input->tools : options->messages_file ? input->text : NULL;
    size_t tools_bytes = input->tools ? input->tools_bytes : input->bytes;
    answer_form form = is_conversation(options) ? ANSWER_MESSAGE : ANSWER_TEXT;
    if (!kakeya_engine_has_tokenizer(engine)) form = ANSWER_IDS;
    answer a;
    kakeya_stats stats;
    status = answer_generate(&options->answer, form, tools, tools_bytes, engine, session, &a, &stats, error);
    if (!status && options->shared.json) {
        cJSON *json = result_json(options, engine, session, &a, &stats, n);
        status = cli_print_json(json, error);
        cJSON_Delete(json);
    } else if (!status) {
        answer_print_figures(engine, session_options, session, &stats);
    }
    answer_free(&a);
    return status;
}

static int run(const run_options *options, bool chat, kakeya_error *error) {
    int result = CLI_FAILED;
    run_input input = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    kakeya_engine *engine = NULL;
    kakeya_grammar *grammar = NULL;
    kakeya_session *session = NULL;
    cli_images images = {0};
    run_options local = *options; /* finding the model and the attention policy are remembered in the shared options */

    if (options->system && input_check_utf8("--system", options->system, strlen(options->system), error)) goto done;
    for (size_t i = 0; i < options->answer.stop.n; i++) {
        const char *stop = options->answer.stop.text[i];
        if (input_check_utf8("--stop", stop, strlen(stop), error)) goto done;
    }
    if (read_input(options, &input, error)) goto done;
    if (cli_images_read(&options->images, options->image_budget, &options->sounds, &images, error)) goto done;
    if (images.n && input.text && !options->messages_file && add_media(options, &input, error)) goto done;
    if (cli_open_engine(command.name, &local.shared, &engine, error)) goto done;
    if (open_grammar(options, &input, engine, &grammar, error)) goto done;
    local.answer.grammar = grammar;
    if (local.shared.attention == ATTENTION_NOT_GIVEN) local.shared.attention = (int)default_attention(options, engine);
    kakeya_session_options session_options;
    cli_shared_session_options(&local.shared, &session_options);
    session_options.without_drafter =
        options->answer.mode == KAKEYA_MODE_AR || options->answer.mode == KAKEYA_MODE_NGRAM;
    if (!chat && prompt_tokens(options, engine, &input, &images, &ids, &n, error)) goto done;
    if (!chat && n == 0) {
        error_set(error, KAKEYA_INVALID_ARGUMENT, "the prompt has no tokens");
        goto done;
    }
    if (kakeya_session_open(engine, &session_options, &session, error)) goto done;
    if (chat) {
        result = chat_run(&local.answer, local.system, options->image_budget, engine, &session_options, session);
    } else if (!answer_prompt(&local, &input, engine, &session_options, session, ids, n, &images, error)) {
        result = CLI_DONE;
    }
done:
    if (result && error->status) result = cli_fail(command.name, error);
    kakeya_session_close(session);
    kakeya_grammar_close(grammar);
    kakeya_engine_close(engine);
    cli_images_free(&images);
    kakeya_free(ids);
    free(input.text);
    free(input.tools);
    free(input.schema);
    cli_shared_free(&local.shared);
    return result;
}

/* ------------------------------------------------------------------------------------------------ options */

/* What the options say together; CLI_DONE if they agree. *chat: there is no prompt, but a terminal. */
static int check_options(run_options *options, bool *chat) {
    *chat = false;
    if (options->prompt && strcmp(options->prompt, "-") == 0) {
        options->prompt = NULL;
        if (options->prompt_file) return cli_usage_error(&command, "PROMPT and --prompt-file exclude each other");
        options->prompt_file = "-";
    }
    bool text = options->prompt || options->prompt_file || options->ids_file;
    if (options->messages_file && (text || options->raw || options->system)) {
        return cli_usage_error(&command, "--messages is the whole conversation: not with PROMPT, --prompt-file, "
                                         "--ids-file, --raw or --system");
    }
    int forms = (options->schema_file != NULL) + (options->grammar_file != NULL) + (options->regex != NULL);
    if (forms + options->json_object > 1) {
        return cli_usage_error(&command, "--json-schema, --json-object, --grammar and --regex exclude each other");
    }
    if (options->strict_order != ORDER_NOT_GIVEN && !options->schema_file && !options->json_object) {
        return cli_usage_error(&command, "--strict-order needs --json-schema or --json-object");
    }
    if (options->grammar_file && strcmp(options->grammar_file, "-") == 0) {
        return cli_usage_error(&command, "--grammar cannot be standard input");
    }
    if (options->schema_file && strcmp(options->schema_file, "-") == 0) {
        return cli_usage_error(&command, "--json-schema cannot be standard input");
    }
    if (options->tools_file && !options->messages_file) return cli_usage_error(&command, "--tools needs --messages");
    if (options->tools_file && strcmp(options->tools_file, "-") == 0 && strcmp(options->messages_file, "-") == 0) {
        return cli_usage_error(&command, "--messages and --tools cannot both be standard input");
    }
    if ((options->prompt != NULL) + (options->prompt_file != NULL) + (options->ids_file != NULL) > 1) {
        return cli_usage_error(&command, "PROMPT, --prompt-file and --ids-file exclude each other");
    }
    if (options->system && (options->raw || options->ids_file)) {
        return cli_usage_error(&command, "--system needs the turn format: not with --raw or --ids-file");
    }
    for (size_t i = 0; i < options->answer.stop.n; i++) {
        if (!*options->answer.stop.text[i]) return cli_usage_error(&command, "--stop: the text is empty");
    }
    if (options->images.n && options->raw)
        return cli_usage_error(&command, "--image needs the turn format or --ids-file: not with --raw");
    if (options->sounds.n && options->raw)
        return cli_usage_error(&command, "--audio needs the turn format or --ids-file: not with --raw");
    if (text || options->messages_file) return CLI_DONE;
    if (!isatty(STDIN_FILENO)) {
        options->prompt_file = "-";
    } else if (!options->shared.json && !options->raw && !options->images.n && !options->sounds.n &&
               isatty(STDOUT_FILENO)) {
        *chat = true;
    } else {
        return cli_usage_error(&command, "no prompt");
    }
    return CLI_DONE;
}

int cli_run(int argc, char **argv) {
    run_options options = {0};
    options.answer.sampling = (kakeya_sampling){.top_p = 1, .repetition_penalty = 1};
    cli_option shared[CLI_SHARED_OPTIONS];
    cli_shared_init(&options.shared, shared);
    options.shared.attention = ATTENTION_NOT_GIVEN;
    options.strict_order = ORDER_NOT_GIVEN;
    const cli_option own[] = {
        CLI_TEXT("prompt-file", "FILE", &options.prompt_file,
                 "read the prompt from FILE without changing it ('-': standard input)"),
        CLI_TEXT("ids-file", "FILE", &options.ids_file,
                 "use the token ids in FILE, a JSON array, as the prompt; needs no tokenizer"),
        CLI_TEXT("messages", "FILE", &options.messages_file,
                 "a conversation as JSON messages in OpenAI's form ('-': standard input)"),
        CLI_TEXT("tools", "FILE", &options.tools_file, "a JSON list of tools in OpenAI's form that the model may call"),
        CLI_FLAG("raw", &options.raw, "continue the text without the turn format"),
        CLI_TEXT("system", "TEXT", &options.system, "system message"),
        CLI_FLAG("thinking", &options.answer.thinking, "let the model think before it answers"),
        CLI_INT("max-tokens", "N", &options.answer.max_tokens, 0, 1 << 30,
                "end the answer after N tokens (0: until the context is full)"),
        CLI_CHOICE("mode", "MODE", &options.answer.mode, cli_mode_names,
                   "auto, ar, speculative or ngram: same tokens, different speed (auto)"),
        CLI_INT("draft-length", "N", &options.answer.draft_length, 0, 16,
                "tokens drafted per block; 0: the drafter's block size - 1, in auto up to 16 (0)"),
        CLI_FLOAT("temperature", "T", &options.answer.sampling.temperature, 0, 100, "0 is greedy (0)"),
        CLI_INT("top-k", "N", &options.answer.sampling.top_k, 0, 1 << 30, "sample from the N best tokens (0: off)"),
        CLI_FLOAT("top-p", "P", &options.answer.sampling.top_p, 0, 1,
                  "sample from the smallest set of tokens whose probability reaches P (1: off)"),
        CLI_FLOAT("min-p", "P", &options.answer.sampling.min_p, 0, 1,
                  "drop tokens below P times the best one's probability (0: off)"),
        CLI_FLOAT("repetition-penalty", "X", &options.answer.sampling.repetition_penalty, 1e-3, 1e3,
                  "divide the logits of tokens that have already occurred by X (1: off)"),
        CLI_UINT64("seed", "N", &options.answer.sampling.seed, "same seed, same answer (0)"),
        CLI_TEXTS("stop", "TEXT", &options.answer.stop, "end the answer before TEXT; may be repeated"),
        CLI_TEXT("json-schema", "FILE", &options.schema_file,
                 "the answer is JSON that is valid under the JSON Schema in FILE"),
        CLI_FLAG("json-object", &options.json_object, "the answer is a JSON object"),
        CLI_CHOICE("strict-order", "on|off", &options.strict_order, switch_names,
                   "members of objects come in the schema's order (on), or in any order, with undeclared ones"),
        CLI_TEXT("grammar", "FILE", &options.grammar_file,
                 "the answer follows the rules in FILE, in GBNF or in Lark's syntax"),
        CLI_TEXT("regex", "TEXT", &options.regex, "the whole answer matches the regular expression TEXT"),
        CLI_FLAG("ignore-eos", &options.answer.ignore_eos, "continue after stop tokens"),
        CLI_IMAGE_OPTIONS(&options.images, &options.image_budget),
        CLI_AUDIO_OPTION(&options.sounds),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&command, own, shared, argc, argv, &first, &status)) return status;
    if (argc - first > 1) {
        return cli_usage_error(&command, "more than one PROMPT ('%s'): quote it", argv[first + 1]);
    }
    if (argc > first) options.prompt = argv[first];
    bool chat;
    status = check_options(&options, &chat);
    if (status) return status;
    options.answer.quiet = options.shared.json;
    kakeya_error error = {0};
    return run(&options, chat, &error);
}
