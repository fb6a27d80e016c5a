#include "text/chat_request.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "text/chat_json.h"
#include "text/chat_parts.h"

typedef struct reader {
    chat_conversation *out;
    chat_media media;
    char place[96]; /* of what is being read, such as messages[2].tool_calls[0] */
    size_t *place_bytes;
    kakeya_error *error;
} reader;

static kakeya_status out_of_memory(reader *r) {
    return error_set(r->error, KAKEYA_OUT_OF_MEMORY, "out of memory for %zu messages", r->out->n);
}

/* The place, perhaps with a member, then the reason. */
static kakeya_status fail_at(reader *r, kakeya_status status, const char *member, const char *format, ...) {
    char place[160], reason[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    int n = snprintf(place, sizeof place, "%s%s%.40s", r->place, member ? "." : "", member ? member : "");
    *r->place_bytes = (size_t)n;
    return error_set(r->error, status, "%s %s", place, reason);
}

static kakeya_status wrong(reader *r, const char *key, const char *expected) {
    return fail_at(r, KAKEYA_INVALID_ARGUMENT, key, "is not %s", expected);
}

static const cJSON *get(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(item) ? NULL : item;
}

/* A string, or NULL where the key is absent or null. */
static kakeya_status read_string(reader *r, const cJSON *object, const char *key, const char **out) {
    const cJSON *item = get(object, key);
    *out = cJSON_GetStringValue(item);
    return item && !*out ? wrong(r, key, "a string") : KAKEYA_OK;
}

/* A list, or NULL where the key is absent or null. */
static kakeya_status read_list(reader *r, const cJSON *object, const char *key, const cJSON **out) {
    *out = get(object, key);
    return *out && !cJSON_IsArray(*out) ? wrong(r, key, "a list") : KAKEYA_OK;
}

/* The JSON text of a value. */
static kakeya_status print(reader *r, const cJSON *value, const char **out) {
    char *text = json_text_print(value);
    *out = text ? chat_keep(r->out, text, strlen(text)) : NULL;
    cJSON_free(text);
    return *out ? KAKEYA_OK : out_of_memory(r);
}

/* -------------------------------------------------------------------------------------------------------- contents */

/* What parts of a type are. */
typedef struct part_type {
    const char *name;
    kakeya_chat_part_type type;
    const char *text; /* under which key a text has it */
} part_type;

static const part_type part_types[] = {
    {"text", KAKEYA_CHAT_TEXT, "text"},        {"input_text", KAKEYA_CHAT_TEXT, "text"},
    {"output_text", KAKEYA_CHAT_TEXT, "text"}, {"refusal", KAKEYA_CHAT_TEXT, "refusal"},
    {"image", KAKEYA_CHAT_IMAGE, NULL},        {"image_url", KAKEYA_CHAT_IMAGE, NULL},
    {"input_image", KAKEYA_CHAT_IMAGE, NULL},  {"audio", KAKEYA_CHAT_SOUND, NULL},
    {"input_audio", KAKEYA_CHAT_SOUND, NULL},
};

static const part_type *type_of(const char *name) {
    for (size_t i = 0; i < sizeof part_types / sizeof *part_types; i++)
        if (strcmp(part_types[i].name, name) == 0) return &part_types[i];
    return NULL;
}

static bool is_read(const reader *r, const part_type *type, const kakeya_chat_message *message) {
    if (!type) return false;
    if (type->type == KAKEYA_CHAT_TEXT) return true;
    const bool user = chat_is_role(message, "user"), image = type->type == KAKEYA_CHAT_IMAGE;
    if (image && chat_is_role(message, "tool")) return r->media.tools_images;
    return user && (image ? r->media.users_images : r->media.users_sounds);
}

static void tell_left_out(reader *r, const char *member, const char *type) {
    char place[160];
    snprintf(place, sizeof place, "%s.%.40s", r->place, member);
    if (r->media.left_out) r->media.left_out(r->media.user, place, type);
}

/* What a tool has brought, and what a model has said, stays in a conversation for good: a line stands for what cannot
 * be read of the one, and thoughts and the like of the other are left out. A user's own is refused. */
static kakeya_status replace_part(reader *r, const cJSON *part, const char *type, size_t index,
                                  kakeya_chat_message *message) {
    char line[CHAT_LINE_BYTES], member[40];
    snprintf(member, sizeof member, "content[%zu]", index);
    if (chat_is_model(message) || chat_is_role(message, "tool")) tell_left_out(r, member, type);
    if (chat_is_model(message)) return KAKEYA_OK;
    if (!chat_is_role(message, "tool"))
        return fail_at(r, KAKEYA_UNSUPPORTED, member, "is a part of type \"%.64s\"; only \"text\" is supported", type);
    const char *text = chat_part_line(part, line);
    (void)chat_add_part(r->out, message, (kakeya_chat_part){.text = chat_keep(r->out, text, strlen(text))});
    return KAKEYA_OK;
}

static kakeya_status read_part(reader *r, const cJSON *part, size_t index, kakeya_chat_message *message) {
    const char *name = cJSON_GetStringValue(get(part, "type"));
    if (!name) return wrong(r, "content", "a text or a list of parts with a type");
    const part_type *type = type_of(name);
    if (!is_read(r, type, message)) return replace_part(r, part, name, index, message);
    kakeya_chat_part read = {.type = type->type, .user = part};
    if (type->text) read = (kakeya_chat_part){.text = cJSON_GetStringValue(get(part, type->text))};
    if (type->text && !read.text) return wrong(r, "content", "a text or a list of parts with a text");
    (void)chat_add_part(r->out, message, read);
    return KAKEYA_OK;
}

static kakeya_status read_content(reader *r, const cJSON *object, kakeya_chat_message *message) {
    static const kakeya_chat_part none;
    const cJSON *content = get(object, "content"), *part;
    kakeya_status status = KAKEYA_OK;
    size_t index = 0;
    message->content = cJSON_GetStringValue(content);
    if (!content || message->content) return KAKEYA_OK;
    if (!cJSON_IsArray(content)) return wrong(r, "content", "a text or a list of parts");
    message->parts = &none;
    cJSON_ArrayForEach(part, content) {
        status = read_part(r, part, index++, message);
        if (status) break;
    }
    return status;
}

/* ----------------------------------------------------------------------------------------------- calls and answers */

static kakeya_status read_call(reader *r, const cJSON *item, kakeya_chat_message *message) {
    const cJSON *function = get(item, "function"), *arguments = get(function, "arguments");
    kakeya_chat_call call = {0};
    kakeya_status status = read_string(r, item, "id", &call.id);
    if (!status) status = read_string(r, function, "name", &call.name);
    if (!status && !call.name) status = wrong(r, "function", "an object with a name");
    if (!status)
        status = cJSON_IsObject(arguments) ? print(r, arguments, &call.arguments)
                                           : read_string(r, function, "arguments", &call.arguments);
    if (!status) chat_add_call(r->out, message, call);
    return status;
}

static kakeya_status read_response(reader *r, const cJSON *item, kakeya_chat_message *message) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(item, "response");
    kakeya_chat_response response = {0};
    kakeya_status status = read_string(r, item, "name", &response.name);
    if (!status && value) status = print(r, value, &response.response);
    if (!status) chat_add_response(r->out, message, response);
    return status;
}

static kakeya_status read_items(reader *r, const cJSON *object, const char *key, kakeya_chat_message *message,
                                kakeya_status (*read)(reader *r, const cJSON *item, kakeya_chat_message *message)) {
    const size_t n = strlen(r->place);
    const cJSON *list, *item;
    size_t index = 0;
    kakeya_status status = read_list(r, object, key, &list);
    cJSON_ArrayForEach(item, list) {
        if (status) break;
        snprintf(r->place + n, sizeof r->place - n, ".%s[%zu]", key, index++);
        status = read(r, item, message);
        r->place[n] = '\0';
    }
    return status;
}

/* The first one that says something. */
static void read_reasoning(reader *r, const cJSON *object, const char *key, kakeya_chat_message *message) {
    const cJSON *item = get(object, key);
    const char *text = cJSON_GetStringValue(item);
    if (item && !text && message->role && !chat_is_role(message, "user")) tell_left_out(r, key, NULL);
    if (!message->reasoning || !message->reasoning[0]) message->reasoning = text;
}

static kakeya_status read_message(reader *r, const cJSON *object, size_t index) {
    snprintf(r->place, sizeof r->place, "messages[%zu]", index);
    if (!cJSON_IsObject(object)) return fail_at(r, KAKEYA_INVALID_ARGUMENT, NULL, "is not an object");
    kakeya_chat_message *message = chat_add(r->out, NULL);
    if (!message) return out_of_memory(r);
    kakeya_status status = read_string(r, object, "role", &message->role);
    read_reasoning(r, object, "reasoning", message);
    read_reasoning(r, object, "reasoning_content", message);
    if (!status) status = read_string(r, object, "name", &message->name);
    if (!status) status = read_string(r, object, "tool_call_id", &message->call_id);
    if (!status) status = read_content(r, object, message);
    if (!status) status = read_items(r, object, "tool_calls", message, read_call);
    if (!status) status = read_items(r, object, "tool_responses", message, read_response);
    return status ? status : r->out->failed ? out_of_memory(r) : KAKEYA_OK;
}

kakeya_status chat_request_read(const cJSON *messages, const chat_media *media, chat_conversation *out,
                                size_t *place_bytes, kakeya_error *error) {
    reader r = {.out = out, .media = *media, .place_bytes = place_bytes, .error = error};
    const cJSON *message;
    size_t index = 0;
    kakeya_status status = KAKEYA_OK;
    *out = (chat_conversation){0};
    *place_bytes = 0;
    cJSON_ArrayForEach(message, messages) {
        status = read_message(&r, message, index++);
        if (status) break;
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------------------ text */

static kakeya_status find_tools(const cJSON *item, const cJSON **tools, kakeya_error *error) {
    if (item && !cJSON_IsNull(item) && !cJSON_IsArray(item))
        return error_set(error, KAKEYA_FORMAT, "tools: not a list");
    *tools = cJSON_IsArray(item) ? item : NULL;
    return KAKEYA_OK;
}

/* What is wrong leaves no tree. */
static kakeya_status keep_tree(kakeya_status status, cJSON **root) {
    if (status == KAKEYA_OK) return status;
    cJSON_Delete(*root);
    *root = NULL;
    return status;
}

kakeya_status chat_request_parse(const char *json, size_t bytes, cJSON **root, const cJSON **messages,
                                 const cJSON **tools, kakeya_error *error) {
    *tools = NULL;
    kakeya_status status = chat_json_parse("chat request", json, bytes, root, error);
    if (status) return status;
    *messages = cJSON_IsObject(*root) ? cJSON_GetObjectItemCaseSensitive(*root, "messages") : *root;
    if (!cJSON_IsArray(*messages))
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "chat request: \"messages\" is not a list");
    else if (cJSON_IsObject(*root))
        status = find_tools(cJSON_GetObjectItemCaseSensitive(*root, "tools"), tools, error);
    return keep_tree(status, root);
}

kakeya_status chat_tools_parse(const char *json, size_t bytes, cJSON **root, const cJSON **tools, kakeya_error *error) {
    *tools = NULL;
    kakeya_status status = chat_json_parse("tools", json, bytes, root, error);
    if (status) return status;
    const bool request = cJSON_IsObject(*root) && cJSON_GetObjectItemCaseSensitive(*root, "messages");
    const bool messages = cJSON_IsArray(*root) && cJSON_GetObjectItemCaseSensitive((*root)->child, "role");
    if (!messages)
        status = find_tools(request ? cJSON_GetObjectItemCaseSensitive(*root, "tools") : *root, tools, error);
    return keep_tree(status, root);
}

/* -------------------------------------------------------------------------------------------------- clients' ways */

/* Clients that show an answer as it grows begin with an empty one. */
static bool says_nothing(const kakeya_chat_message *message) {
    if (!chat_is_model(message)) return false;
    for (size_t i = 0; i < chat_n_parts(message); i++) {
        const kakeya_chat_part part = chat_part(message, i);
        if (part.text && part.text[0]) return false;
    }
    return !(message->reasoning && message->reasoning[0]) && !message->n_calls && !message->n_responses;
}

void chat_conversation_complete(chat_conversation *c) {
    const kakeya_chat_message *caller = NULL;
    for (size_t i = 0; i < c->n; i++) {
        kakeya_chat_message *message = &c->messages[i];
        if (!message->role) continue;
        if (!chat_is_role(message, "tool")) {
            caller = message;
        } else if (caller && caller->n_calls == 1 && !message->call_id && !message->name) {
            message->name = caller->calls[0].name;
        }
    }
    if (c->n && says_nothing(&c->messages[c->n - 1])) c->n--;
}
