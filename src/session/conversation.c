/* The public functions between conversations and tokens. */
#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "decode/stop_text.h"
#include "session/tokenizer.h"
#include "text/chat_gemma3.h"
#include "text/chat_parser.h"
#include "text/chat_request.h"

/* ------------------------------------------------------------------------------------------------------ prompts */

static kakeya_status need_turns(const kakeya_tokenizer *t, kakeya_error *error) {
    kakeya_status status = tokenizer_need(t, error);
    if (status != KAKEYA_OK) return status;
    if (t->chat.gemma_turns) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED,
                     "chat: the model's chat template writes no turns of Gemma 4 or Gemma 3%s%s",
                     t->chat.note[0] ? ": " : "", t->chat.note);
}

/* The format would leave these out of the prompt without a word. */
static kakeya_status check_tool_messages(const chat_message *messages, size_t n_messages, kakeya_error *error) {
    bool called = false; /* tools, by the message in front of those of tools */
    for (size_t i = 0; i < n_messages; i++) {
        const chat_message *message = &messages[i];
        if (!message->role || strcmp(message->role, "tool") != 0) {
            called = message->n_tool_calls > 0;
        } else if (!called) {
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "messages[%zu].role: a tool message must follow an assistant message with tool_calls, "
                             "or another tool message",
                             i);
        }
    }
    return KAKEYA_OK;
}

static kakeya_status render(const kakeya_tokenizer *t, const chat_message *messages, size_t n_messages,
                            const chat_options *options, size_t most, int32_t **ids, size_t *n_ids, size_t *n_stable,
                            kakeya_error *error) {
    chat_text text = {0};
    kakeya_status status = check_tool_messages(messages, n_messages, error);
    if (status == KAKEYA_OK)
        status = (options->style == CHAT_STYLE_GEMMA3 ? chat_render_gemma3 : chat_render)(messages, n_messages, options,
                                                                                          &text, error);
    if (status == KAKEYA_OK) status = chat_tokenize(t->tokens, &text, most, ids, n_ids, n_stable, error);
    chat_text_free(&text);
    return status;
}

kakeya_status kakeya_message_tokens(const kakeya_tokenizer *t, const kakeya_message *messages, size_t n_messages,
                                    bool thinking, int32_t **ids, size_t *n_ids, kakeya_error *error) {
    *ids = NULL;
    *n_ids = 0;
    kakeya_status status = need_turns(t, error);
    if (status != KAKEYA_OK) return status;
    chat_message *turns = calloc(n_messages ? n_messages : 1, sizeof *turns);
    if (!turns) return error_set(error, KAKEYA_OUT_OF_MEMORY, "chat of %zu messages: out of memory", n_messages);
    for (size_t i = 0; i < n_messages; i++)
        turns[i] = (chat_message){
            .role = messages[i].role, .parts = &messages[i].content, .n_parts = messages[i].content != NULL};
    const chat_options options = {.style = t->chat.style, .thinking = thinking, .add_generation_prompt = true};
    status = render(t, turns, n_messages, &options, 0, ids, n_ids, NULL, error);
    free(turns);
    return status;
}

/* Ids without what lies between each <|channel> and the next <channel|>, both included. */
static size_t drop_thoughts(const kakeya_tokenizer *t, const int32_t *ids, size_t n, int32_t *out) {
    int32_t open = tokenizer_id(t->tokens, "<|channel>"), close = tokenizer_id(t->tokens, "<channel|>");
    size_t kept = 0;
    bool inside = false;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] == open) inside = true;
        if (!inside) out[kept++] = ids[i];
        if (ids[i] == close) inside = false;
    }
    return kept;
}

/* Puts the runs into the messages. *memory, freed by the caller, holds what the messages point to beside the runs. */
static kakeya_status replay(const kakeya_tokenizer *t, chat_request *request, const kakeya_chat_options *o,
                            int32_t **memory, kakeya_error *error) {
    size_t all = 0;
    if (o->n_runs && !o->runs)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "chat options: %zu runs, but the array is NULL", o->n_runs);
    for (size_t i = 0; i < o->n_runs; i++) {
        const kakeya_chat_run *run = &o->runs[i];
        /* an empty message at the end has been left out already */
        const char *role = run->message < request->n_messages ? request->messages[run->message].role : "assistant";
        if (!role || (strcmp(role, "assistant") != 0 && strcmp(role, "model") != 0))
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "chat options: runs[%zu] is for messages[%zu], which is not the model's", i, run->message);
        for (size_t k = 0; k < run->n_ids; k++)
            if (run->ids[k] < 0 || run->ids[k] >= kakeya_tokenizer_vocab_size(t))
                return error_set(error, KAKEYA_INVALID_ARGUMENT,
                                 "chat options: runs[%zu].ids[%zu] is %d, the vocabulary has ids 0 to %d", i, k,
                                 (int)run->ids[k], kakeya_tokenizer_vocab_size(t) - 1);
        all += run->n_ids;
    }
    int32_t *at = *memory = malloc(all * sizeof *at + 1);
    if (!at) return error_set(error, KAKEYA_OUT_OF_MEMORY, "chat options: %zu ids: out of memory", all);
    int32_t turn = tokenizer_id(t->tokens, chat_style_turn(t->chat.style));
    for (size_t i = 0; i < o->n_runs; i++) {
        const kakeya_chat_run *run = &o->runs[i];
        if (run->message >= request->n_messages || run->n_ids == 0) continue;
        chat_message *message = &request->messages[run->message];
        message->ids = run->ids;
        message->n_ids = run->n_ids;
        message->ids_open_turn = run->ids[0] == turn;
        message->ids_without_thoughts = at;
        message->n_ids_without_thoughts = drop_thoughts(t, run->ids, run->n_ids, at);
        at += message->n_ids_without_thoughts;
    }
    return KAKEYA_OK;
}

/* The message that the answer goes on with leaves the conversation; *text, malloc'ed, is what it says. */
static kakeya_status take_last(chat_request *request, char **text, kakeya_error *error) {
    size_t last = request->n_messages - 1, bytes = 1;
    const chat_message *message = &request->messages[last];
    if (!message->role || (strcmp(message->role, "assistant") != 0 && strcmp(message->role, "model") != 0))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "messages[%zu] is not the model's: it cannot be continued",
                         last);
    if (message->n_tool_calls || message->n_tool_responses)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "messages[%zu] calls a tool: it cannot be continued", last);
    for (size_t i = 0; i < message->n_parts; i++) bytes += strlen(message->parts[i]);
    *text = malloc(bytes);
    if (!*text) return error_set(error, KAKEYA_OUT_OF_MEMORY, "messages[%zu]: out of memory", last);
    char *to = *text;
    *to = '\0';
    for (size_t i = 0; i < message->n_parts; i++) to = stpcpy(to, message->parts[i]);
    request->n_messages = last;
    return KAKEYA_OK;
}

/* Ids of ordinary text behind those that are there. */
static kakeya_status append_text(const kakeya_tokenizer *t, const char *text, int32_t **ids, size_t *n_ids,
                                 kakeya_error *error) {
    int32_t *more = NULL;
    size_t n = 0;
    kakeya_status status = kakeya_tokenize(t, text, strlen(text), KAKEYA_TEXT_LITERAL, &more, &n, error);
    int32_t *all = status == KAKEYA_OK ? realloc(*ids, (*n_ids + n) * sizeof *all + 1) : NULL;
    if (status == KAKEYA_OK && !all)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "a prompt of %zu tokens: out of memory", *n_ids + n);
    if (all) {
        if (n) memcpy(all + *n_ids, more, n * sizeof *more);
        *ids = all;
        *n_ids += n;
    }
    kakeya_free(more);
    return status;
}

/* What parts of a kind become. */
typedef struct media_kind {
    const char *what, *option;
    const char *names[3]; /* of what begins it, stands for its rows, and ends it */
} media_kind;
static const media_kind of_images = {"images", "image_tokens", {"<|image>", "<|image|>", "<image|>"}};
static const media_kind of_sounds = {"sounds", "sound_tokens", {"<|audio>", "<|audio|>", "<audio|>"}};

/* The ids of n parts of these lengths, each between its begin and its end. *out and *memory are malloc'ed. */
static kakeya_status make_parts(const kakeya_tokenizer *t, const media_kind *kind, const int *lengths, size_t n_parts,
                                chat_picture **out, int32_t **memory, kakeya_error *error) {
    int32_t id[3];
    size_t all = 0;
    for (size_t i = 0; i < 3; i++) {
        id[i] = tokenizer_id(t->tokens, kind->names[i]);
        if (id[i] < 0)
            return error_set(error, KAKEYA_UNSUPPORTED, "%s: the model's vocabulary has no token %s", kind->what,
                             kind->names[i]);
    }
    for (size_t i = 0; i < n_parts; i++) {
        if (lengths[i] < 1 || lengths[i] > 1 << 20)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "chat options: %s[%zu] is %d", kind->option, i,
                             lengths[i]);
        all += (size_t)lengths[i] + 2;
    }
    chat_picture *parts = malloc((n_parts + 1) * sizeof *parts);
    int32_t *at = *memory = malloc((all + 1) * sizeof *at);
    *out = parts;
    if (!parts || !at) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%zu %s: out of memory", n_parts, kind->what);
    for (size_t i = 0; i < n_parts; i++) {
        const size_t n = (size_t)lengths[i];
        parts[i] = (chat_picture){at, n + 2};
        *at++ = id[0];
        for (size_t k = 0; k < n; k++) *at++ = id[1];
        *at++ = id[2];
    }
    return KAKEYA_OK;
}

kakeya_status kakeya_chat_tokens(const kakeya_tokenizer *t, const char *json, size_t json_bytes,
                                 const kakeya_chat_options *options, int32_t **ids, size_t *n_ids, size_t *n_stable,
                                 kakeya_error *error) {
    *ids = NULL;
    *n_ids = 0;
    if (n_stable) *n_stable = 0;
    kakeya_chat_options o = {.size = sizeof o};
    kakeya_status status = options ? sized_read("chat options", options, &o, sizeof o, error) : KAKEYA_OK;
    if (status == KAKEYA_OK) status = need_turns(t, error);
    if (status != KAKEYA_OK) return status;
    chat_request request = {0};
    char *tools = NULL;
    chat_picture *pictures = NULL, *sounds = NULL;
    int32_t *picture_ids = NULL, *sound_ids = NULL;
    if (o.image_tokens) status = make_parts(t, &of_images, o.image_tokens, o.n_images, &pictures, &picture_ids, error);
    if (status == KAKEYA_OK && o.sound_tokens)
        status = make_parts(t, &of_sounds, o.sound_tokens, o.n_sounds, &sounds, &sound_ids, error);
    if (status == KAKEYA_OK) {
        const chat_media media = {pictures, sounds, pictures ? o.n_images : 0, sounds ? o.n_sounds : 0};
        status = chat_request_read_media(json, json_bytes, &media, &request, error);
    }
    if (status == KAKEYA_OK && request.n_messages == 0)
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "chat request: there are no messages");
    char *begun = NULL;
    if (status == KAKEYA_OK && o.continue_last) status = take_last(&request, &begun, error);
    if (status == KAKEYA_OK && o.tools) status = chat_tools_read(o.tools, o.tools_bytes, &tools, error);
    if (status == KAKEYA_OK) chat_request_complete(&request);
    int32_t *memory = NULL;
    if (status == KAKEYA_OK) status = replay(t, &request, &o, &memory, error);
    if (status == KAKEYA_OK) {
        const chat_options how = {.style = t->chat.style,
                                  .thinking = o.thinking,
                                  .preserve_thinking = o.preserve_thinking,
                                  .add_generation_prompt = !o.without_turn || begun,
                                  .tools = tools ? tools : request.tools};
        status = render(t, request.messages, request.n_messages, &how, o.most_tokens, ids, n_ids, n_stable, error);
    }
    if (status == KAKEYA_OK && begun) status = append_text(t, begun, ids, n_ids, error);
    if (status != KAKEYA_OK) {
        kakeya_free(*ids);
        *ids = NULL;
        if (status != KAKEYA_CONTEXT_FULL) *n_ids = 0;
    }
    free(begun);
    free(memory);
    free(pictures);
    free(picture_ids);
    free(sounds);
    free(sound_ids);
    chat_tools_free(tools);
    chat_request_free(&request);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ answers */

const char *kakeya_chat_event_name(kakeya_chat_event_type type) {
    static const char *const names[] = {"content", "reasoning", "call-begin", "call-arguments", "call-end"};
    return (size_t)type < sizeof names / sizeof *names ? names[type] : NULL;
}

struct kakeya_chat_parser {
    chat_parser *parser;
    kakeya_chat_event_fn on_event;
    void *user;
    mem_account account; /* of the stop strings */
    stop_text stop;
    bool stops;           /* there are stop strings */
    bool stopped;         /* one of them is complete */
    kakeya_status status; /* a failure inside a callback of the parser */
    kakeya_error error;
};

static bool deliver(kakeya_chat_parser *p, const chat_event *event, const char *text, size_t bytes) {
    const kakeya_chat_event given = {
        .size = sizeof given,
        .type = (kakeya_chat_event_type)event->kind,
        .text = text,
        .text_bytes = bytes,
        .call = event->call,
        .id = event->id,
        .name = event->name,
    };
    return !p->on_event || p->on_event(p->user, &given);
}

static bool deliver_content(kakeya_chat_parser *p, const char *text, size_t bytes) {
    const chat_event content = {.kind = CHAT_EVENT_CONTENT};
    return bytes == 0 || deliver(p, &content, text, bytes);
}

/* Content that might have begun a stop string is content after all: something else comes behind it, or nothing. */
static bool release_content(kakeya_chat_parser *p) {
    if (!p->stops || p->stopped || p->stop.held == 0) return true;
    size_t before = p->stop.released;
    bool stopped;
    p->status = stop_text_flush(&p->stop, NULL, 0, &stopped, &p->error);
    return p->status == KAKEYA_OK && deliver_content(p, p->stop.text + before, p->stop.released - before);
}

static bool on_event(void *user, const chat_event *event) {
    kakeya_chat_parser *p = user;
    if (p->stopped) return true;
    if (event->kind != CHAT_EVENT_CONTENT) return release_content(p) && deliver(p, event, event->text, event->bytes);
    if (!p->stops) return deliver(p, event, event->text, event->bytes);
    p->status = stop_text_push(&p->stop, event->text, event->bytes, &p->stopped, &p->error);
    return p->status == KAKEYA_OK && deliver_content(p, p->stop.text, p->stop.released);
}

kakeya_status kakeya_chat_parser_open(const kakeya_tokenizer *t, const kakeya_chat_parser_options *options,
                                      kakeya_chat_parser **out, kakeya_error *error) {
    *out = NULL;
    kakeya_chat_parser_options o = {.size = sizeof o};
    kakeya_status status = options ? sized_read("chat parser options", options, &o, sizeof o, error) : KAKEYA_OK;
    if (status == KAKEYA_OK) status = tokenizer_need(t, error);
    if (status != KAKEYA_OK) return status;
    char *tools = NULL;
    if (o.tools) status = chat_tools_read(o.tools, o.tools_bytes, &tools, error);
    kakeya_chat_parser *p = status == KAKEYA_OK ? calloc(1, sizeof *p) : NULL;
    if (status == KAKEYA_OK && !p) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "chat parser: out of memory");
    if (status == KAKEYA_OK) {
        p->on_event = o.on_event;
        p->user = o.user;
        p->stops = o.n_stop_strings > 0;
        mem_account_init(&p->account, NULL, 0);
        if (p->stops) status = stop_text_create(&p->stop, o.stop_strings, o.n_stop_strings, &p->account, error);
    }
    if (status == KAKEYA_OK) {
        const chat_parser_options how = {
            .tools = tools,
            .prompt = o.prompt,
            .n_prompt = o.prompt ? o.n_prompt : 0,
            .without_reasoning = o.without_reasoning,
            .marked_calls_only = o.marked_calls_only,
            .id_prefix = o.id_prefix,
            .on_event = on_event,
            .user = p,
        };
        status = chat_parser_open(t->tokens, &how, &p->parser, error);
    }
    chat_tools_free(tools);
    if (status != KAKEYA_OK) {
        kakeya_chat_parser_close(p);
        return status;
    }
    *out = p;
    return KAKEYA_OK;
}

void kakeya_chat_parser_close(kakeya_chat_parser *p) {
    if (!p) return;
    chat_parser_close(p->parser);
    stop_text_free(&p->stop);
    free(p);
}

/* What ended the parser: a failure of ours inside its callback, or its own. */
static kakeya_status outcome(const kakeya_chat_parser *p, kakeya_status status, kakeya_error *error) {
    if (status == KAKEYA_OK || p->status == KAKEYA_OK) return status;
    if (error) *error = p->error;
    return p->status;
}

kakeya_status kakeya_chat_parser_feed(kakeya_chat_parser *p, const int32_t *tokens, size_t n, bool *stopped,
                                      kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    size_t block = p->stops ? 1 : n; /* one by one, so that nothing behind a stop string counts */
    for (size_t at = 0; at < n && !p->stopped && status == KAKEYA_OK; at += block) {
        status = outcome(p, chat_parser_feed(p->parser, tokens + at, block, error), error);
    }
    if (stopped) *stopped = p->stopped;
    return status;
}

kakeya_chat_place kakeya_chat_parser_place(const kakeya_chat_parser *p) {
    return (kakeya_chat_place)chat_parser_place(p->parser);
}

static const char *finish_reason(const kakeya_chat_parser *p, kakeya_finish finish, size_t complete_calls) {
    if (p->stopped) return "stop";
    if (finish == KAKEYA_FINISH_LENGTH) return "length";
    if (finish != KAKEYA_FINISH_STOP) return "cancelled";
    return complete_calls ? "tool_calls" : "stop";
}

kakeya_status kakeya_chat_parser_finish(kakeya_chat_parser *p, kakeya_finish finish, kakeya_chat_summary *summary,
                                        kakeya_error *error) {
    kakeya_status status = summary ? sized_check("chat summary", summary, error) : KAKEYA_OK;
    if (status != KAKEYA_OK) return status;
    if (!p->stopped) {
        chat_ending ending = finish == KAKEYA_FINISH_STOP ? CHAT_ENDING_STOP : CHAT_ENDING_CUT;
        status = outcome(p, chat_parser_finish(p->parser, ending, error), error);
        if (status == KAKEYA_OK && !release_content(p)) {
            status = p->status == KAKEYA_OK
                         ? error_set(error, KAKEYA_CANCELLED, "the callback ended the parsing of an answer")
                         : outcome(p, KAKEYA_CANCELLED, error);
        }
    }
    if (summary) {
        chat_parser_counts counts = chat_parser_count(p->parser);
        const kakeya_chat_summary all = {
            .size = sizeof all,
            .calls = counts.calls,
            .complete_calls = counts.complete_calls,
            .reasoning_tokens = counts.reasoning_tokens,
            .repairs = counts.repairs,
            .call_repairs = counts.call_repairs,
            .stop_string = p->stopped ? (int32_t)p->stop.completed : -1,
            .finish_reason = finish_reason(p, finish, counts.complete_calls),
        };
        sized_write(summary, &all, sizeof all);
    }
    return status;
}
