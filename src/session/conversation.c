/* The public functions between conversations and tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "decode/stop_text.h"
#include "session/tokenizer.h"
#include "text/chat.h"
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
static kakeya_status check_tool_messages(const chat_conversation *c, size_t *place_bytes, kakeya_error *error) {
    bool called = false; /* tools, by the message in front of those of tools */
    for (size_t i = 0; i < c->n; i++) {
        const kakeya_chat_message *message = &c->messages[i];
        if (!chat_is_role(message, "tool")) {
            called = message->n_calls > 0;
        } else if (!called) {
            char place[64];
            *place_bytes = (size_t)snprintf(place, sizeof place, "messages[%zu].role", i);
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "%s: a tool message must follow an assistant message with tool_calls, or another tool "
                             "message",
                             place);
        }
    }
    return KAKEYA_OK;
}

/* The message that the answer goes on with leaves the conversation; *text is what it says, in the conversation. */
static kakeya_status take_last(chat_conversation *c, const char **text, size_t *place_bytes, kakeya_error *error) {
    const kakeya_chat_message *message = &c->messages[c->n - 1];
    const char *reason = !chat_is_model(message)                    ? " is not the model's"
                         : message->n_calls || message->n_responses ? " calls a tool"
                                                                    : NULL;
    char place[64];
    snprintf(place, sizeof place, "messages[%zu]", c->n - 1);
    if (reason) {
        *place_bytes = strlen(place);
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s%s: it cannot be continued", place, reason);
    }
    *text = "";
    for (size_t i = 0; i < chat_n_parts(message); i++) *text = chat_join(c, *text, "", chat_part(message, i).text);
    if (!*text || c->failed) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", place);
    c->n--;
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

/* What a prompt is made of; the conversation may be changed. */
typedef struct prompt {
    const kakeya_tokenizer *tokenizer;
    const kakeya_chat_options *options;
    const cJSON *tools;
    bool as_given;      /* what clients leave out and add stays so */
    size_t place_bytes; /* of the error */
} prompt;

static kakeya_status make_ids(prompt *p, chat_conversation *c, int32_t **ids, size_t *n_ids, size_t *n_stable,
                              kakeya_error *error) {
    const kakeya_tokenizer *t = p->tokenizer;
    const kakeya_chat_options *o = p->options;
    const char *begun = NULL;
    chat_text text = {0};
    kakeya_status status = KAKEYA_OK;
    if (o->continue_last) status = take_last(c, &begun, &p->place_bytes, error);
    if (status == KAKEYA_OK && !p->as_given) chat_conversation_complete(c);
    if (status == KAKEYA_OK) status = check_tool_messages(c, &p->place_bytes, error);
    const chat_options how = {.style = t->chat.style,
                              .thinking = o->thinking,
                              .preserve_thinking = o->preserve_thinking,
                              .add_generation_prompt = !o->without_turn || begun,
                              .tools = p->tools,
                              .turn = tokenizer_id(t->tokens, chat_style_turn(t->chat.style)),
                              .thought = tokenizer_id(t->tokens, "<|channel>"),
                              .thought_end = tokenizer_id(t->tokens, "<channel|>")};
    if (status == KAKEYA_OK)
        status = (how.style == CHAT_STYLE_GEMMA3 ? chat_render_gemma3 : chat_render)(c->messages, c->n, &how, &text,
                                                                                     &p->place_bytes, error);
    if (status == KAKEYA_OK) status = chat_tokenize(t->tokens, &text, o->most_tokens, ids, n_ids, n_stable, error);
    chat_text_free(&text);
    if (status == KAKEYA_OK && begun) status = append_text(t, begun, ids, n_ids, error);
    if (status == KAKEYA_OK) return KAKEYA_OK;
    kakeya_free(*ids);
    *ids = NULL;
    if (status != KAKEYA_CONTEXT_FULL) *n_ids = 0;
    return status;
}

static kakeya_status check_ids(const kakeya_tokenizer *t, const char *place, const int32_t *ids, size_t n,
                               kakeya_error *error) {
    for (size_t k = 0; k < n; k++)
        if (ids[k] < 0 || ids[k] >= kakeya_tokenizer_vocab_size(t))
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s.ids[%zu] is %d, the vocabulary has ids 0 to %d", place,
                             k, (int)ids[k], kakeya_tokenizer_vocab_size(t) - 1);
    return KAKEYA_OK;
}

/* Puts the runs into the messages. */
static kakeya_status replay(const kakeya_tokenizer *t, chat_conversation *c, const kakeya_chat_options *o,
                            kakeya_error *error) {
    if (o->n_runs && !o->runs)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "chat options: %zu runs, but the array is NULL", o->n_runs);
    for (size_t i = 0; i < o->n_runs; i++) {
        const kakeya_chat_run *run = &o->runs[i];
        char place[64];
        snprintf(place, sizeof place, "chat options: runs[%zu]", i);
        if (run->message < c->n && !chat_is_model(&c->messages[run->message]))
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s is for messages[%zu], which is not the model's", place,
                             run->message);
        kakeya_status status = check_ids(t, place, run->ids, run->n_ids, error);
        if (status != KAKEYA_OK) return status;
        if (run->message >= c->n) continue;
        c->messages[run->message].ids = run->ids;
        c->messages[run->message].n_ids = run->n_ids;
    }
    return KAKEYA_OK;
}

/* What parts of a kind become. */
typedef struct media_kind {
    const char *what, *option;
    const char *names[3]; /* of what begins it, stands for its rows, and ends it */
} media_kind;
static const media_kind kinds[] = {
    [KAKEYA_CHAT_IMAGE] = {"images", "image_tokens", {"<|image>", "<|image|>", "<image|>"}},
    [KAKEYA_CHAT_SOUND] = {"sounds", "sound_tokens", {"<|audio>", "<|audio|>", "<audio|>"}}};

static kakeya_status check_media(const kakeya_tokenizer *t, const media_kind *kind, const char *place, int n_tokens,
                                 kakeya_error *error) {
    for (size_t i = 0; i < 3; i++)
        if (tokenizer_id(t->tokens, kind->names[i]) < 0)
            return error_set(error, KAKEYA_UNSUPPORTED, "%s: the model's vocabulary has no token %s", kind->what,
                             kind->names[i]);
    if (n_tokens >= 1 && n_tokens <= 1 << 20) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s is %d", place, n_tokens);
}

/* The lengths of the options become those of the parts of a kind, in their order. */
static kakeya_status give_lengths(const kakeya_tokenizer *t, chat_conversation *c, kakeya_chat_part_type type,
                                  const int *lengths, size_t n, kakeya_error *error) {
    const media_kind *kind = &kinds[type];
    size_t found = 0;
    for (size_t i = 0; lengths && i < n; i++) {
        char place[64];
        snprintf(place, sizeof place, "chat options: %s[%zu]", kind->option, i);
        kakeya_status status = check_media(t, kind, place, lengths[i], error);
        if (status != KAKEYA_OK) return status;
    }
    for (size_t i = 0; lengths && i < c->n; i++) {
        for (size_t k = 0; !c->messages[i].content && k < c->messages[i].n_parts; k++) {
            kakeya_chat_part *part = chat_own_part(&c->messages[i], k);
            if (part->type == type && found++ < n) part->n_tokens = lengths[found - 1];
        }
    }
    if (!lengths || found == n) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT, "%zu %s, but the messages have room for %zu", n, kind->what,
                     found);
}

/* The options as this library knows them, and what an error leaves behind. */
static kakeya_status begin(const kakeya_tokenizer *t, const kakeya_chat_options *given, kakeya_chat_options *o,
                           int32_t **ids, size_t *n_ids, size_t *n_stable, kakeya_error *error) {
    *ids = NULL;
    *n_ids = 0;
    if (n_stable) *n_stable = 0;
    *o = (kakeya_chat_options){.size = sizeof *o};
    kakeya_status status = given ? sized_read("chat options", given, o, sizeof *o, error) : KAKEYA_OK;
    if (status == KAKEYA_OK && o->place_bytes) *o->place_bytes = 0;
    return status == KAKEYA_OK ? need_turns(t, error) : status;
}

kakeya_status kakeya_chat_tokens(const kakeya_tokenizer *t, const char *json, size_t json_bytes,
                                 const kakeya_chat_options *options, int32_t **ids, size_t *n_ids, size_t *n_stable,
                                 kakeya_error *error) {
    kakeya_chat_options o;
    kakeya_status status = begin(t, options, &o, ids, n_ids, n_stable, error);
    if (status != KAKEYA_OK) return status;
    prompt p = {.tokenizer = t, .options = &o};
    chat_conversation c = {0};
    cJSON *root = NULL, *tools = NULL;
    const cJSON *messages = NULL;
    const chat_media media = {.users_images = o.image_tokens != NULL,
                              .tools_images = o.image_tokens != NULL,
                              .users_sounds = o.sound_tokens != NULL};
    status = chat_request_parse(json, json_bytes, &root, &messages, &p.tools, error);
    if (status == KAKEYA_OK) status = chat_request_read(messages, &media, &c, &p.place_bytes, error);
    if (status == KAKEYA_OK) status = give_lengths(t, &c, KAKEYA_CHAT_IMAGE, o.image_tokens, o.n_images, error);
    if (status == KAKEYA_OK) status = give_lengths(t, &c, KAKEYA_CHAT_SOUND, o.sound_tokens, o.n_sounds, error);
    if (status == KAKEYA_OK && c.n == 0)
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "chat request: there are no messages");
    if (status == KAKEYA_OK && o.tools) status = chat_tools_parse(o.tools, o.tools_bytes, &tools, &p.tools, error);
    if (status == KAKEYA_OK) status = replay(t, &c, &o, error);
    if (status == KAKEYA_OK) status = make_ids(&p, &c, ids, n_ids, n_stable, error);
    if (o.place_bytes) *o.place_bytes = p.place_bytes;
    chat_conversation_free(&c);
    cJSON_Delete(tools);
    cJSON_Delete(root);
    return status;
}

/* What the library has to know before it looks at a message. */
static kakeya_status check_message(const kakeya_tokenizer *t, const kakeya_chat_message *m, size_t index,
                                   kakeya_error *error) {
    char place[64];
    snprintf(place, sizeof place, "messages[%zu]", index);
    kakeya_status status = check_ids(t, place, m->ids, m->n_ids, error);
    if (m->n_ids && !chat_is_model(m))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s.ids: the message is not the model's", place);
    for (size_t k = 0; k < chat_n_parts(m) && status == KAKEYA_OK; k++) {
        const kakeya_chat_part part = chat_part(m, k);
        snprintf(place, sizeof place, "messages[%zu].parts[%zu]", index, k);
        if ((int)part.type < 0 || part.type > KAKEYA_CHAT_SOUND)
            return error_set(error, KAKEYA_UNSUPPORTED, "%s: unknown type %d", place, (int)part.type);
        const bool user = chat_is_role(m, "user"), tool = chat_is_role(m, "tool");
        if (part.type != KAKEYA_CHAT_TEXT && !user && !(tool && part.type == KAKEYA_CHAT_IMAGE))
            return error_set(error, KAKEYA_UNSUPPORTED, "%s: a message of this role holds no %s", place,
                             kinds[part.type].what);
        if (part.type != KAKEYA_CHAT_TEXT)
            status = check_media(t, &kinds[part.type], place, part.n_tokens, error);
        else if (!part.text)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: the text is NULL", place);
    }
    return status;
}

kakeya_status kakeya_conversation_tokens(const kakeya_tokenizer *t, const kakeya_chat_message *messages,
                                         size_t n_messages, const kakeya_chat_options *options, int32_t **ids,
                                         size_t *n_ids, size_t *n_stable, kakeya_error *error) {
    kakeya_chat_options o;
    kakeya_status status = begin(t, options, &o, ids, n_ids, n_stable, error);
    if (status != KAKEYA_OK) return status;
    prompt p = {.tokenizer = t, .options = &o};
    chat_conversation c = {0};
    cJSON *tools = NULL;
    if (n_messages == 0) status = error_set(error, KAKEYA_INVALID_ARGUMENT, "messages: there are none");
    for (size_t i = 0; i < n_messages && status == KAKEYA_OK; i++) {
        const size_t stride = messages->size; /* of the caller's version */
        const kakeya_chat_message *given = (const void *)((const char *)messages + i * stride);
        kakeya_chat_message message;
        KAKEYA_INIT(&message);
        status = sized_read("messages", given, &message, sizeof message, error);
        if (status == KAKEYA_OK) status = check_message(t, &message, i, error);
        if (status == KAKEYA_OK) chat_add_copy(&c, &message);
    }
    if (status == KAKEYA_OK && c.failed)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "chat of %zu messages: out of memory", n_messages);
    if (status == KAKEYA_OK && o.tools) status = chat_tools_parse(o.tools, o.tools_bytes, &tools, &p.tools, error);
    if (status == KAKEYA_OK) status = replay(t, &c, &o, error);
    if (status == KAKEYA_OK) status = make_ids(&p, &c, ids, n_ids, n_stable, error);
    if (o.place_bytes) *o.place_bytes = p.place_bytes;
    chat_conversation_free(&c);
    cJSON_Delete(tools);
    return status;
}

kakeya_status kakeya_message_tokens(const kakeya_tokenizer *t, const kakeya_message *messages, size_t n_messages,
                                    bool thinking, int32_t **ids, size_t *n_ids, kakeya_error *error) {
    kakeya_chat_options o;
    kakeya_status status = begin(t, NULL, &o, ids, n_ids, NULL, error);
    if (status != KAKEYA_OK) return status;
    o.thinking = thinking;
    prompt p = {.tokenizer = t, .options = &o, .as_given = true};
    chat_conversation c = {0};
    for (size_t i = 0; i < n_messages; i++) {
        kakeya_chat_message *message = chat_add(&c, messages[i].role);
        if (message) message->content = messages[i].content;
    }
    status = c.failed ? error_set(error, KAKEYA_OUT_OF_MEMORY, "chat of %zu messages: out of memory", n_messages)
                      : make_ids(&p, &c, ids, n_ids, NULL, error);
    chat_conversation_free(&c);
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
    kakeya_chat_parser *p = calloc(1, sizeof *p);
    if (!p) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "chat parser: out of memory");
    if (status == KAKEYA_OK) {
        p->on_event = o.on_event;
        p->user = o.user;
        p->stops = o.n_stop_strings > 0;
        mem_account_init(&p->account, NULL, 0);
        if (p->stops) status = stop_text_create(&p->stop, o.stop_strings, o.n_stop_strings, &p->account, error);
    }
    if (status == KAKEYA_OK) {
        const chat_parser_options how = {
            .tools = o.tools && !o.tools_bytes ? "" : o.tools,
            .tools_bytes = o.tools_bytes,
            .like = o.like ? o.like->parser : NULL,
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
