/* OpenAI-style JSON to messages. The strings stay in the parsed tree; arrays are allocated per kind and freed together.
 */
#include "text/chat_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "text/chat_json.h"
#include "text/chat_parts.h"

struct chat_request_storage {
    cJSON *root;
    const char **parts;
    chat_picture *pictures; /* of the parts; NULL: there are none */
    chat_media given;
    size_t pictures_taken, sounds_taken; /* that parts have asked for so far */
    chat_tool_call *calls;
    chat_tool_response *responses;
    size_t n_parts, n_calls, n_responses; /* handed out so far */
};

/* Where a failure is, such as messages[2].tool_calls[0]. */
typedef struct place {
    char name[96];
} place;

static kakeya_status wrong(const place *at, const char *key, const char *expected, kakeya_error *error) {
    return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s.%s is not %s", at->name, key, expected);
}

/* A string, or NULL where the key is absent or null. */
static kakeya_status read_string(const cJSON *object, const char *key, const place *at, const char **out,
                                 kakeya_error *error) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    *out = NULL;
    if (!item || cJSON_IsNull(item)) return KAKEYA_OK;
    if (!cJSON_IsString(item)) return wrong(at, key, "a string", error);
    *out = item->valuestring;
    return KAKEYA_OK;
}

/* A list, or NULL where the key is absent or null. */
static kakeya_status read_list(const cJSON *object, const char *key, const place *at, cJSON **out,
                               kakeya_error *error) {
    cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    *out = NULL;
    if (!item || cJSON_IsNull(item)) return KAKEYA_OK;
    if (!cJSON_IsArray(item)) return wrong(at, key, "a list", error);
    *out = item;
    return KAKEYA_OK;
}

/* Replaces a value by a string that holds its JSON text. */
static kakeya_status flatten(cJSON *object, const char *key, const char **out, kakeya_error *error) {
    char *text = json_text_print(cJSON_GetObjectItemCaseSensitive(object, key));
    cJSON *string = text ? cJSON_CreateString(text) : NULL;
    cJSON_free(text);
    if (!string || !cJSON_ReplaceItemInObjectCaseSensitive(object, key, string)) {
        cJSON_Delete(string);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a chat request");
    }
    if (!string->string) /* cJSON replaces the value also where there is no memory for its key */
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a chat request");
    *out = string->valuestring;
    return KAKEYA_OK;
}

/* Under which key a part of this type has its text; NULL: it is no text. */
static const char *text_key(const char *type) {
    static const char *const types[] = {"text", "input_text", "output_text"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(type, types[i]) == 0) return "text";
    }
    return strcmp(type, "refusal") == 0 ? "refusal" : NULL;
}

static bool has_role(const chat_message *message, const char *role) {
    return message->role && strcmp(message->role, role) == 0;
}

/* What a tool has brought, and what a model has said, stays in a conversation for good: a line stands for what cannot
 * be read of the one, and thoughts and the like of the other are left out (*text stays NULL). A user's own is refused.
 */
static kakeya_status replace_part(cJSON *part, const place *at, const chat_message *message, const char **text,
                                  kakeya_error *error) {
    char line[CHAT_LINE_BYTES];
    if (has_role(message, "assistant") || has_role(message, "model")) return KAKEYA_OK;
    if (!has_role(message, "tool"))
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "%s.content[%zu] is a part of type \"%s\"; only \"text\" is supported", at->name,
                         message->n_parts, cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(part, "type")));
    const cJSON *added = cJSON_AddStringToObject(part, "kakeya_line", chat_part_line(part, line));
    if (!added) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a chat request");
    *text = added->valuestring;
    return KAKEYA_OK;
}

static bool is_picture(const char *type) {
    return strcmp(type, "image") == 0 || strcmp(type, "image_url") == 0 || strcmp(type, "input_image") == 0;
}

static bool is_sound(const char *type) { return strcmp(type, "audio") == 0 || strcmp(type, "input_audio") == 0; }

/* Whether a part is one that ids stand for. */
static bool take_media(struct chat_request_storage *storage, const char *type, const chat_message *message) {
    const chat_media *given = &storage->given;
    const bool user = has_role(message, "user");
    const bool picture = given->pictures && (user || has_role(message, "tool")) && is_picture(type);
    if (!picture && !(given->sounds && user && is_sound(type))) return false;
    const size_t i = picture ? storage->pictures_taken++ : storage->sounds_taken++;
    if (i < (picture ? given->n_pictures : given->n_sounds))
        storage->pictures[storage->n_parts + message->n_parts] = (picture ? given->pictures : given->sounds)[i];
    return true;
}

static kakeya_status read_content(struct chat_request_storage *storage, const cJSON *object, const place *at,
                                  chat_message *message, kakeya_error *error) {
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(object, "content");
    if (!content || cJSON_IsNull(content)) return KAKEYA_OK;
    const char **parts = storage->parts + storage->n_parts;
    message->parts = parts;
    if (storage->pictures) message->pictures = storage->pictures + storage->n_parts;
    if (cJSON_IsString(content)) {
        parts[message->n_parts++] = content->valuestring;
    } else if (cJSON_IsArray(content)) {
        message->is_list = true;
        cJSON *part;
        cJSON_ArrayForEach(part, content) {
            const cJSON *type = cJSON_GetObjectItemCaseSensitive(part, "type");
            if (!cJSON_IsString(type)) return wrong(at, "content", "a text or a list of parts with a type", error);
            const char *key = text_key(type->valuestring);
            if (!key && take_media(storage, type->valuestring, message)) {
                parts[message->n_parts++] = "";
                continue;
            }
            if (!key) {
                const char *line = NULL;
                kakeya_status status = replace_part(part, at, message, &line, error);
                if (status) return status;
                if (line) parts[message->n_parts++] = line;
                continue;
            }
            const cJSON *text = cJSON_GetObjectItemCaseSensitive(part, key);
            if (!cJSON_IsString(text)) return wrong(at, "content", "a text or a list of parts with a text", error);
            parts[message->n_parts++] = text->valuestring;
        }
    } else {
        return wrong(at, "content", "a text or a list of parts", error);
    }
    storage->n_parts += message->n_parts;
    return KAKEYA_OK;
}

static kakeya_status read_call(cJSON *item, const place *at, chat_tool_call *call, kakeya_error *error) {
    cJSON *function = cJSON_GetObjectItemCaseSensitive(item, "function");
    cJSON *arguments = cJSON_GetObjectItemCaseSensitive(function, "arguments");
    kakeya_status status = read_string(item, "id", at, &call->id, error);
    if (!status) status = read_string(function, "name", at, &call->name, error);
    if (status) return status;
    if (!call->name) return wrong(at, "function", "an object with a name", error);
    if (cJSON_IsObject(arguments)) return flatten(function, "arguments", &call->arguments, error);
    return read_string(function, "arguments", at, &call->arguments, error);
}

static kakeya_status read_calls(struct chat_request_storage *storage, const cJSON *object, const place *at,
                                chat_message *message, kakeya_error *error) {
    cJSON *list, *item;
    kakeya_status status = read_list(object, "tool_calls", at, &list, error);
    chat_tool_call *calls = storage->calls + storage->n_calls;
    message->tool_calls = calls;
    cJSON_ArrayForEach(item, list) {
        if (status) break;
        place call_at;
        snprintf(call_at.name, sizeof call_at.name, "%.48s.tool_calls[%zu]", at->name, message->n_tool_calls);
        status = read_call(item, &call_at, &calls[message->n_tool_calls++], error);
    }
    storage->n_calls += message->n_tool_calls;
    return status;
}

static kakeya_status read_responses(struct chat_request_storage *storage, const cJSON *object, const place *at,
                                    chat_message *message, kakeya_error *error) {
    cJSON *list, *item;
    kakeya_status status = read_list(object, "tool_responses", at, &list, error);
    chat_tool_response *responses = storage->responses + storage->n_responses;
    message->tool_responses = responses;
    cJSON_ArrayForEach(item, list) {
        if (status) break;
        chat_tool_response *response = &responses[message->n_tool_responses++];
        status = read_string(item, "name", at, &response->name, error);
        if (!status && cJSON_GetObjectItemCaseSensitive(item, "response")) {
            status = flatten(item, "response", &response->response, error);
        }
    }
    storage->n_responses += message->n_tool_responses;
    return status;
}

static kakeya_status read_message(struct chat_request_storage *storage, const cJSON *object, size_t index,
                                  chat_message *message, kakeya_error *error) {
    place at;
    snprintf(at.name, sizeof at.name, "messages[%zu]", index);
    if (!cJSON_IsObject(object)) return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s is not an object", at.name);
    const char *other_reasoning = NULL;
    kakeya_status status = read_string(object, "role", &at, &message->role, error);
    message->reasoning = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "reasoning"));
    other_reasoning = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "reasoning_content"));
    if (!status) status = read_string(object, "name", &at, &message->name, error);
    if (!status) status = read_string(object, "tool_call_id", &at, &message->tool_call_id, error);
    if (!status) status = read_content(storage, object, &at, message, error);
    if (!status) status = read_calls(storage, object, &at, message, error);
    if (!status) status = read_responses(storage, object, &at, message, error);
    if (!message->reasoning || !message->reasoning[0]) message->reasoning = other_reasoning;
    return status;
}

static size_t list_size(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsArray(item) ? (size_t)cJSON_GetArraySize(item) : 0;
}

static kakeya_status allocate(chat_request *request, const cJSON *messages, kakeya_error *error) {
    struct chat_request_storage *storage = request->storage;
    size_t parts = 0, calls = 0, responses = 0, n = (size_t)cJSON_GetArraySize(messages);
    const cJSON *message;
    cJSON_ArrayForEach(message, messages) {
        parts += 1 + list_size(message, "content");
        calls += list_size(message, "tool_calls");
        responses += list_size(message, "tool_responses");
    }
    request->messages = calloc(n + 1, sizeof *request->messages);
    storage->parts = calloc(parts + 1, sizeof *storage->parts);
    storage->calls = calloc(calls + 1, sizeof *storage->calls);
    storage->responses = calloc(responses + 1, sizeof *storage->responses);
    const bool media = storage->given.pictures || storage->given.sounds;
    if (media) storage->pictures = calloc(parts + 1, sizeof *storage->pictures);
    if (!request->messages || !storage->parts || (media && !storage->pictures) || !storage->calls ||
        !storage->responses) {
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for %zu messages", n);
    }
    return KAKEYA_OK;
}

/* Clients that show an answer as it grows begin with an empty one. */
static bool says_nothing(const chat_message *message) {
    if (!message->role || (strcmp(message->role, "assistant") != 0 && strcmp(message->role, "model") != 0))
        return false;
    for (size_t i = 0; i < message->n_parts; i++) {
        if (message->parts[i][0]) return false;
    }
    bool reasons = message->reasoning && message->reasoning[0];
    return !reasons && message->n_tool_calls == 0 && message->n_tool_responses == 0;
}

void chat_request_complete(chat_request *request) {
    const chat_message *caller = NULL;
    for (size_t i = 0; i < request->n_messages; i++) {
        chat_message *message = &request->messages[i];
        if (!message->role) continue;
        if (strcmp(message->role, "tool") != 0) {
            caller = message;
        } else if (caller && caller->n_tool_calls == 1 && !message->tool_call_id && !message->name) {
            message->name = caller->tool_calls[0].name;
        }
    }
    if (request->n_messages && says_nothing(&request->messages[request->n_messages - 1])) request->n_messages--;
}

static kakeya_status print_tools(const cJSON *tools, char **out, kakeya_error *error) {
    *out = NULL;
    if (!tools || cJSON_IsNull(tools)) return KAKEYA_OK;
    if (!cJSON_IsArray(tools)) return error_set(error, KAKEYA_FORMAT, "tools: not a list");
    *out = json_text_print(tools);
    return *out ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a list of tools");
}

static kakeya_status check_taken(const char *what, size_t given, size_t taken, kakeya_error *error) {
    if (given == taken) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT, "%zu %s, but the messages have room for %zu", given, what, taken);
}

static kakeya_status read_request(chat_request *request, const char *json, size_t bytes, const chat_media *media,
                                  kakeya_error *error) {
    request->storage = calloc(1, sizeof *request->storage);
    if (!request->storage) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a chat request");
    request->storage->given = *media;
    kakeya_status status = chat_json_parse("chat request", json, bytes, &request->storage->root, error);
    if (status) return status;
    cJSON *root = request->storage->root;
    const cJSON *messages = cJSON_IsObject(root) ? cJSON_GetObjectItemCaseSensitive(root, "messages") : root;
    if (!cJSON_IsArray(messages)) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "chat request: \"messages\" is not a list");
    }
    status = allocate(request, messages, error);
    const cJSON *item;
    cJSON_ArrayForEach(item, messages) {
        if (status) return status;
        status =
            read_message(request->storage, item, request->n_messages, &request->messages[request->n_messages], error);
        request->n_messages++;
    }
    if (status) return status;
    status = check_taken("images", media->n_pictures, request->storage->pictures_taken, error);
    if (!status) status = check_taken("sounds", media->n_sounds, request->storage->sounds_taken, error);
    if (status) return status;
    const cJSON *tools = cJSON_IsObject(root) ? cJSON_GetObjectItemCaseSensitive(root, "tools") : NULL;
    return print_tools(tools, &request->tools, error);
}

kakeya_status chat_request_read_media(const char *json, size_t bytes, const chat_media *media, chat_request *out,
                                      kakeya_error *error) {
    *out = (chat_request){0};
    kakeya_status status = read_request(out, json, bytes, media, error);
    if (status) chat_request_free(out);
    return status;
}

kakeya_status chat_request_read(const char *json, size_t bytes, chat_request *out, kakeya_error *error) {
    return chat_request_read_media(json, bytes, &(chat_media){0}, out, error);
}

void chat_request_free(chat_request *request) {
    if (request->storage) {
        cJSON_Delete(request->storage->root);
        free(request->storage->parts);
        free(request->storage->pictures);
        free(request->storage->calls);
        free(request->storage->responses);
        free(request->storage);
    }
    free(request->messages);
    cJSON_free(request->tools);
    *request = (chat_request){0};
}

kakeya_status chat_tools_read(const char *json, size_t bytes, char **tools, kakeya_error *error) {
    cJSON *root;
    *tools = NULL;
    kakeya_status status = chat_json_parse("tools", json, bytes, &root, error);
    if (status) return status;
    bool request = cJSON_IsObject(root) && cJSON_GetObjectItemCaseSensitive(root, "messages");
    bool messages = cJSON_IsArray(root) && cJSON_GetObjectItemCaseSensitive(root->child, "role");
    if (!messages) {
        status = print_tools(request ? cJSON_GetObjectItemCaseSensitive(root, "tools") : root, tools, error);
    }
    cJSON_Delete(root);
    return status;
}

void chat_tools_free(char *tools) { cJSON_free(tools); }
