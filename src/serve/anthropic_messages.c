#include "serve/anthropic_messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json_text.h"
#include "serve/body.h"
#include "serve/images.h"
#include "serve/media.h"
#include "text/chat_parts.h"

/* Agents tell here, in a text that is another one in every request, who pays. No prompt would be found again with it.
 */
static const char billing[] = "x-anthropic-billing-header:";

/* Where a block is: "messages[3].content[0]". */
typedef struct place {
    char name[96];
} place;

enum { MOST = 10000 }; /* messages; calls */

typedef enum turn_role { TURN_NONE = 0, TURN_USER, TURN_ASSISTANT } turn_role;

/* Ids of calls; the strings are the calls'. Open addressing, at most half full. */
typedef struct id_set {
    const char **slots;
    size_t n, room;
} id_set;

typedef struct writer {
    messages_out *out;
    const reasoning_seal *seal;
    bool pictures;
    api_error *error;
    /* --- the turn that goes on; it is not in the list yet */
    turn_role role;
    text_buffer content, reasoning;
    kakeya_chat_message turn; /* its calls; of a user's with pictures the parts before `content` */
    id_set call_ids;
    bool said;     /* there was a text, be it an empty one */
    bool answered; /* there was a result */
    /* --- the last message that called tools, while no other message of an assistant has come behind it */
    bool has_caller;
    id_set caller_ids;
    chat_conversation later; /* messages that came behind it; its results stand in front of them */
    size_t n_messages, n_calls;
} writer;

static bool wrong(writer *w, const place *at, const char *key, const char *expected) {
    char param[144];
    snprintf(param, sizeof param, "%s%s%s", at->name, at->name[0] && key[0] ? "." : "", key);
    return api_fail(w->error, 400, "invalid_type", param, "%s is not %s", param, expected);
}

static bool refuse(writer *w, const place *at, const char *type) {
    return api_fail(w->error, 400, "unsupported_content", at->name,
                    "%s is a block of type %.64s; only text is supported", at->name, type);
}

static bool out_of_memory(writer *w) { return api_out_of_memory(w->error); }

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* Blocks of users and systems are texts of their own: their words must not run together. */
static void join(text_buffer *text, const char *more) {
    if (text->n && more[0] && !is_space(text->data[text->n - 1]) && !is_space(more[0])) text_add(text, "\n");
    text_add(text, more);
}

/* A line of its own. */
static void join_apart(text_buffer *text, const char *line) {
    if (text->n && text->data[text->n - 1] != '\n') text_add(text, "\n");
    text_add(text, line);
}

/* The text as it stays; NULL: out of memory. */
static const char *keep(writer *w, const text_buffer *text) {
    const char *kept = text->failed ? NULL : chat_keep(w->out->said, text->data ? text->data : "", text->n);
    if (!kept) out_of_memory(w);
    return kept;
}

/* The text becomes a part, if there is one. */
static bool add_text_part(writer *w, kakeya_chat_message *message, text_buffer *text) {
    const char *kept = text->n || text->failed ? keep(w, text) : "";
    if (text->n && kept) (void)chat_add_part(w->out->said, message, (kakeya_chat_part){.text = kept});
    text_clear(text);
    return kept != NULL;
}

/* A picture behind the text, which becomes a part too. */
static bool add_picture(writer *w, kakeya_chat_message *message, text_buffer *text, const cJSON *block,
                        const place *at) {
    if (text && !add_text_part(w, message, text)) return false;
    media_add(w->out->said, message, (cJSON *)(uintptr_t)block, at->name);
    return !w->out->said->failed || out_of_memory(w);
}

static bool too_many(writer *w, size_t n, const char *what) {
    if (n <= MOST) return false;
    api_fail(w->error, 400, "invalid_value", "messages", "messages: more than %d %s", MOST, what);
    return true;
}

/* Appends a message. */
static bool add_message(writer *w, chat_conversation *to, const kakeya_chat_message *message) {
    if (too_many(w, ++w->n_messages, "messages and results of tools")) return false;
    chat_add_copy(to, message);
    return !to->failed || out_of_memory(w);
}

static kakeya_chat_message message_of(const char *role, const char *content) {
    return (kakeya_chat_message){.size = sizeof(kakeya_chat_message), .role = role, .content = content};
}

/* A message of a user or a system. */
static bool add_said(writer *w, const kakeya_chat_message *message) {
    return add_message(w, w->has_caller ? &w->later : w->out->said, message);
}

static bool end_user(writer *w) {
    kakeya_chat_message *turn = &w->turn;
    turn->role = "user";
    if (turn->n_parts)
        (void)add_text_part(w, turn, &w->content);
    else
        turn->content = keep(w, &w->content);
    return w->error->status == 0 && add_said(w, turn);
}

static bool add_later(writer *w) {
    for (size_t i = 0; i < w->later.n; i++) chat_add_copy(w->out->said, &w->later.messages[i]);
    w->later.n = 0;
    return !w->out->said->failed || out_of_memory(w);
}

static bool add_assistant(writer *w, const kakeya_chat_message *message) {
    return add_later(w) && add_message(w, w->out->said, message);
}

/* ------------------------------------------------------------------------------------------------------------- turns
 */

static const char **slot_of(const id_set *set, const char *id) {
    size_t at = (size_t)hash_fnv1a(HASH_FNV1A_START, id, strlen(id)) & (set->room - 1);
    while (set->slots[at] && strcmp(set->slots[at], id) != 0) at = (at + 1) & (set->room - 1);
    return &set->slots[at];
}

static bool has_id(const id_set *set, const char *id) { return set->n && *slot_of(set, id) != NULL; }

/* False: out of memory. */
static bool add_id(id_set *set, const char *id) {
    if (2 * (set->n + 1) > set->room) {
        id_set grown = {.n = set->n, .room = set->room ? 2 * set->room : 16};
        grown.slots = calloc(grown.room, sizeof *grown.slots);
        if (!grown.slots) return false;
        for (size_t i = 0; i < set->room; i++)
            if (set->slots[i]) *slot_of(&grown, set->slots[i]) = set->slots[i];
        free(set->slots);
        *set = grown;
    }
    const char **slot = slot_of(set, id);
    set->n += *slot == NULL;
    *slot = id;
    return true;
}

static void clear_ids(id_set *set) {
    free(set->slots);
    *set = (id_set){0};
}

static void clear_turn(writer *w) {
    clear_ids(&w->call_ids);
    text_clear(&w->content);
    text_clear(&w->reasoning);
    w->turn = message_of(NULL, NULL);
    w->said = w->answered = false;
    w->role = TURN_NONE;
}

static bool end_assistant(writer *w) {
    kakeya_chat_message *turn = &w->turn;
    bool calls = turn->n_calls > 0;
    if (!calls && w->content.n == 0 && w->reasoning.n == 0) return true;
    turn->role = "assistant";
    if (w->content.n || !calls) turn->content = keep(w, &w->content);
    if (w->reasoning.n) turn->reasoning = keep(w, &w->reasoning);
    if (w->error->status || !add_assistant(w, turn)) return false;
    w->has_caller = calls;
    clear_ids(&w->caller_ids);
    w->caller_ids = w->call_ids;
    w->call_ids = (id_set){0};
    return true;
}

/* The turn becomes a message. */
static bool end_turn(writer *w) {
    bool good = !w->content.failed && !w->reasoning.failed;
    if (!good) {
        out_of_memory(w);
    } else if (w->role == TURN_ASSISTANT) {
        good = end_assistant(w);
    } else if (w->role == TURN_USER && (w->said || !w->answered)) {
        good = end_user(w);
    }
    clear_turn(w);
    return good;
}

static bool begin_turn(writer *w, turn_role role) {
    if (w->role == role) return true;
    if (!end_turn(w)) return false;
    w->role = role;
    return true;
}

/* ------------------------------------------------------------------------------------------------- calls and results
 */

static bool add_call(writer *w, const cJSON *block, const place *at) {
    const char *id = body_string(block, "id"), *name = body_string(block, "name");
    const cJSON *input = cJSON_GetObjectItemCaseSensitive(block, "input");
    if (!id || !id[0]) return wrong(w, at, "id", "a string");
    if (!name || !name[0]) return wrong(w, at, "name", "a string");
    if (input && !cJSON_IsNull(input) && !cJSON_IsObject(input)) return wrong(w, at, "input", "an object");
    if (too_many(w, ++w->n_calls, "calls of tools")) return false;
    char *arguments = cJSON_IsObject(input) ? json_text_print(input) : NULL;
    const kakeya_chat_call made = {
        .id = id, .name = name, .arguments = arguments ? chat_keep(w->out->said, arguments, strlen(arguments)) : "{}"};
    bool good = arguments || !cJSON_IsObject(input);
    cJSON_free(arguments);
    chat_add_call(w->out->said, &w->turn, made);
    return (good && !w->out->said->failed && add_id(&w->call_ids, id)) || out_of_memory(w);
}

static bool was_called(const writer *w, const char *id) { return w->has_caller && has_id(&w->caller_ids, id); }

/* message: its pictures, which the text comes before. */
static bool add_result(writer *w, const char *id, text_buffer *text, const kakeya_chat_message *pictures) {
    kakeya_chat_message message = message_of("tool", NULL);
    message.call_id = id;
    const char *kept = keep(w, text);
    if (!kept) return false;
    if (!pictures->n_parts) message.content = kept;
    if (pictures->n_parts && text->n) (void)chat_add_part(w->out->said, &message, (kakeya_chat_part){.text = kept});
    for (size_t i = 0; i < pictures->n_parts; i++) (void)chat_add_part(w->out->said, &message, pictures->parts[i]);
    return add_message(w, w->out->said, &message);
}

static bool note_cache_control(writer *w, const cJSON *block) {
    const cJSON *control = cJSON_GetObjectItemCaseSensitive(block, "cache_control");
    if (control && !cJSON_IsNull(control)) w->out->cache_control = true;
    return true;
}

/* What a result of a tool holds beside texts. Nobody can take it out of a conversation again, so it is no reason to
 * refuse: what is written in it is read, and a line stands for what is not. */
static void put_other_block(writer *w, const cJSON *block, const char *type, const place *at, text_buffer *text) {
    char line[CHAT_LINE_BYTES];
    const cJSON *source = cJSON_GetObjectItemCaseSensitive(block, "source"), *part;
    const char *written = body_string(source, "type");
    if (written && strcmp(written, "text") == 0 && body_string(source, "data")) {
        const char *title = body_string(block, "title");
        if (title) join(text, title);
        if (title) text_add(text, "\n");
        join(text, body_string(source, "data"));
        return;
    }
    join_apart(text, chat_part_line(block, line));
    bool texts = false;
    cJSON_ArrayForEach(part, cJSON_GetObjectItemCaseSensitive(block, "content")) {
        const char *said = body_string(part, "text");
        texts = texts || said;
        if (said) join(text, said);
    }
    if (!texts) ignored_add(w->out->ignored, "%s(%.64s)", at->name, type);
}

/* The texts of a list of blocks, or a text; a system's without what is nobody's business. message, where pictures are
 * read: those go there; NULL: a system has none. */
static bool read_texts(writer *w, const cJSON *content, kakeya_chat_message *message, const place *at, const char *key,
                       text_buffer *text) {
    const bool system = !message;
    if (cJSON_IsString(content)) {
        text_add(text, content->valuestring);
        return true;
    }
    if (!cJSON_IsArray(content)) return wrong(w, at, key, "a text or a list of blocks");
    const cJSON *block;
    size_t i = 0;
    cJSON_ArrayForEach(block, content) {
        place its;
        snprintf(its.name, sizeof its.name, "%.56s%s%s[%zu]", at->name, at->name[0] ? "." : "", key, i);
        const char *type = body_string(block, "type"), *said = body_string(block, "text");
        if (!type) return wrong(w, &its, "type", "a string");
        i++;
        note_cache_control(w, block);
        if (message && w->pictures && images_is_part(block)) {
            if (!add_picture(w, message, NULL, block, &its)) return false;
            continue;
        }
        if (strcmp(type, "text") != 0 && !system) {
            put_other_block(w, block, type, &its, text);
            continue;
        }
        if (strcmp(type, "text") != 0) return refuse(w, &its, type);
        if (!said) return wrong(w, &its, "text", "a string");
        if (system && strncmp(said, billing, sizeof billing - 1) == 0) {
            ignored_add(w->out->ignored, "%s(x-anthropic-billing-header)", its.name);
        } else {
            join(text, said);
        }
    }
    return true;
}

static bool put_result(writer *w, const cJSON *block, const place *at) {
    const char *id = body_string(block, "tool_use_id");
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(block, "content");
    const cJSON *failed = cJSON_GetObjectItemCaseSensitive(block, "is_error");
    if (!id) return wrong(w, at, "tool_use_id", "a string");
    if (failed && !cJSON_IsNull(failed) && !cJSON_IsBool(failed)) return wrong(w, at, "is_error", "true or false");
    if (!was_called(w, id)) {
        char param[144];
        snprintf(param, sizeof param, "%s.tool_use_id", at->name);
        return api_fail(w->error, 400, "invalid_prompt", param,
                        "%s: the assistant's message before it has no tool_use with the id %.64s", param, id);
    }
    text_buffer text = {0};
    kakeya_chat_message pictures = message_of("tool", NULL);
    if (cJSON_IsTrue(failed)) text_add(&text, "Error: ");
    bool good = !content || cJSON_IsNull(content) || read_texts(w, content, &pictures, at, "content", &text);
    good = good && add_result(w, id, &text, &pictures);
    text_free(&text);
    w->answered = true;
    return good;
}

/* What a tool brought that another server ran, as JSON: the model's turn goes on behind it. */
static bool put_foreign_result(writer *w, const cJSON *block, const place *at) {
    const char *id = body_string(block, "tool_use_id");
    if (!id) return wrong(w, at, "tool_use_id", "a string");
    bool silent = !w->turn.n_calls && !w->content.n && !w->reasoning.n; /* nothing has come since its call */
    if (!has_id(&w->call_ids, id) && !(silent && was_called(w, id))) {
        ignored_add(w->out->ignored, "%s", at->name);
        return true;
    }
    if (!end_turn(w)) return false;
    w->role = TURN_ASSISTANT;
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(block, "content");
    char *json = content ? json_text_print(content) : NULL;
    text_buffer text = {0};
    text.failed = content && !json;
    if (json) text_add(&text, json);
    const kakeya_chat_message none = message_of("tool", NULL);
    bool good = add_result(w, id, &text, &none);
    cJSON_free(json);
    text_free(&text);
    return good;
}

/* ------------------------------------------------------------------------------------------------------------ blocks
 */

static bool put_thinking(writer *w, const cJSON *block, const place *at) {
    const char *thinking = body_string(block, "thinking"), *signature = body_string(block, "signature");
    if (!thinking) return wrong(w, at, "thinking", "a string");
    char *opened = NULL;
    if (!thinking[0] && signature && signature[0]) {
        opened = w->seal ? reasoning_seal_open(w->seal, signature) : NULL;
        if (!opened) ignored_add(w->out->ignored, "%s", at->name);
    }
    const char *text = opened ? opened : thinking;
    if (w->reasoning.n && text[0]) text_add(&w->reasoning, "\n");
    text_add(&w->reasoning, text);
    free(opened);
    return true;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static bool put_assistant_block(writer *w, const cJSON *block, const char *type, const place *at) {
    if (strcmp(type, "text") == 0) {
        const char *text = body_string(block, "text");
        if (!text) return wrong(w, at, "text", "a string");
        text_add(&w->content, text); /* as the blocks of an answer follow each other */
        return true;
    }
    if (strcmp(type, "thinking") == 0) return put_thinking(w, block, at);
    if (strcmp(type, "redacted_thinking") == 0) {
        ignored_add(w->out->ignored, "%s(redacted_thinking)", at->name);
        return true;
    }
    if (strcmp(type, "tool_use") == 0 || ends_with(type, "_tool_use")) return add_call(w, block, at);
    if (ends_with(type, "_tool_result")) return put_foreign_result(w, block, at);
    return refuse(w, at, type);
}

static bool put_user_block(writer *w, const cJSON *block, const char *type, const place *at) {
    if (strcmp(type, "tool_result") == 0) return put_result(w, block, at);
    if (images_is_part(block)) { /* media_take refuses it where none are read, and says why */
        w->said = true;
        return add_picture(w, &w->turn, &w->content, block, at);
    }
    if (strcmp(type, "text") != 0) return refuse(w, at, type);
    const char *text = body_string(block, "text");
    if (!text) return wrong(w, at, "text", "a string");
    join(&w->content, text);
    w->said = true;
    return true;
}

static bool put_blocks(writer *w, const cJSON *content, size_t message) {
    const cJSON *block;
    size_t i = 0;
    cJSON_ArrayForEach(block, content) {
        place at;
        snprintf(at.name, sizeof at.name, "messages[%zu].content[%zu]", message, i++);
        const char *type = body_string(block, "type");
        if (!type) return wrong(w, &at, "type", "a string");
        note_cache_control(w, block);
        bool good =
            w->role == TURN_USER ? put_user_block(w, block, type, &at) : put_assistant_block(w, block, type, &at);
        if (!good) return false;
    }
    return true;
}

static bool put_turn(writer *w, const cJSON *content, size_t message, turn_role role) {
    place at;
    snprintf(at.name, sizeof at.name, "messages[%zu]", message);
    if (!begin_turn(w, role)) return false;
    if (cJSON_IsArray(content)) return put_blocks(w, content, message);
    if (!cJSON_IsString(content)) return wrong(w, &at, "content", "a text or a list of blocks");
    if (role == TURN_USER) {
        join(&w->content, content->valuestring);
        w->said = true;
    } else {
        text_add(&w->content, content->valuestring);
    }
    return true;
}

/* A system's text, from the request's field or between messages. */
static bool put_system(writer *w, const cJSON *content, const place *at, const char *key) {
    text_buffer text = {0};
    bool good = read_texts(w, content, NULL, at, key, &text);
    if (good && text.failed) good = out_of_memory(w);
    if (good && text.n) {
        const kakeya_chat_message message = message_of("system", keep(w, &text));
        good = message.content && end_turn(w) && add_said(w, &message);
    }
    text_free(&text);
    return good;
}

static bool put_message(writer *w, const cJSON *message, size_t index) {
    place at;
    snprintf(at.name, sizeof at.name, "messages[%zu]", index);
    if (!cJSON_IsObject(message)) return wrong(w, &at, "", "an object");
    const char *role = body_string(message, "role");
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(message, "content");
    if (role && strcmp(role, "user") == 0) return put_turn(w, content, index, TURN_USER);
    if (role && strcmp(role, "assistant") == 0) return put_turn(w, content, index, TURN_ASSISTANT);
    if (role && strcmp(role, "system") == 0) return put_system(w, content, &at, "content");
    char param[144];
    snprintf(param, sizeof param, "%s.role", at.name);
    return api_fail(w->error, 400, "invalid_value", param, "%s is not user, assistant or system", param);
}

/* What an assistant has begun to say at the end of the conversation stays open. */
static bool end_conversation(writer *w) {
    if (w->role != TURN_ASSISTANT) return end_turn(w);
    if (w->turn.n_calls)
        return api_fail(w->error, 400, "invalid_prompt", "messages",
                        "messages: the last one calls a tool; its tool_result is missing");
    while (w->content.n && is_space(w->content.data[w->content.n - 1])) w->content.data[--w->content.n] = '\0';
    if (w->content.failed) return out_of_memory(w);
    w->out->continues = w->content.n > 0;
    const kakeya_chat_message last = message_of("assistant", keep(w, &w->content));
    bool good = last.content && (!w->out->continues || add_assistant(w, &last));
    clear_turn(w);
    return good;
}

bool anthropic_messages(const messages_in *in, messages_out *out, api_error *error) {
    writer w = {.out = out, .seal = in->seal, .pictures = in->pictures, .error = error};
    w.turn = message_of(NULL, NULL);
    const cJSON *message;
    size_t i = 0;
    bool good = !in->system || put_system(&w, in->system, &(place){""}, "system");
    cJSON_ArrayForEach(message, in->messages) good = good && put_message(&w, message, i++);
    good = good && end_conversation(&w);
    good = add_later(&w) && good;
    chat_conversation_free(&w.later);
    clear_turn(&w);
    clear_ids(&w.caller_ids);
    text_free(&w.content);
    text_free(&w.reasoning);
    return good;
}
