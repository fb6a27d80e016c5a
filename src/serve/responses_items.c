#include "serve/responses_items.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "serve/call.h"
#include "serve/images.h"
#include "serve/media.h"
#include "text/chat_parts.h"

typedef struct item_place {
    char name[96]; /* "input[3].content[0]" */
} item_place;

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static bool wrong(const item_place *at, const char *key, const char *expected, api_error *error) {
    char param[144];
    snprintf(param, sizeof param, "%s.%s", at->name, key);
    return api_fail(error, 400, "invalid_type", param, "%s is not %s", param, expected);
}

/* --------------------------------------------------------------------------------------------------------- reading */

static bool is_text_part(const char *type) {
    static const char *const types[] = {"input_text", "output_text", "text", "refusal", "reasoning_text", NULL};
    for (size_t i = 0; types[i]; i++)
        if (strcmp(type, types[i]) == 0) return true;
    return false;
}

/* A list of parts that are texts, and a user's pictures; of what tools have brought and a model has said, any parts. */
static bool check_parts(const cJSON *parts, const char *key, bool any, bool pictures, const item_place *at,
                        api_error *error) {
    const cJSON *part;
    size_t i = 0;
    cJSON_ArrayForEach(part, parts) {
        item_place its;
        snprintf(its.name, sizeof its.name, "%.60s.%.16s[%zu]", at->name, key, i++);
        const char *type = body_string(part, "type");
        if (!type) return wrong(&its, "type", "a string", error);
        if (!is_text_part(type) && (any || (pictures && images_is_part(part)))) continue;
        if (!is_text_part(type))
            return api_fail(error, 400, "unsupported_content", its.name,
                            "%s is a part of type %.64s; only text is supported", its.name, type);
        const char *text = strcmp(type, "refusal") == 0 ? "refusal" : "text";
        if (!body_string(part, text)) return wrong(&its, text, "a string", error);
    }
    return true;
}

static bool is_role(const char *role) {
    static const char *const roles[] = {"user", "system", "developer", "assistant", NULL};
    for (size_t i = 0; roles[i]; i++)
        if (strcmp(role, roles[i]) == 0) return true;
    return false;
}

/* The content of a message as a list of parts. */
static bool complete_message(cJSON *item, const item_place *at, api_error *error) {
    const char *role = body_string(item, "role");
    cJSON *content = cJSON_GetObjectItemCaseSensitive(item, "content");
    if (!role || !is_role(role)) {
        char param[144];
        snprintf(param, sizeof param, "%s.role", at->name);
        return api_fail(error, 400, "invalid_value", param, "%s is not user, system, developer or assistant", param);
    }
    bool output = strcmp(role, "assistant") == 0;
    if (cJSON_IsArray(content)) return check_parts(content, "content", output, strcmp(role, "user") == 0, at, error);
    if (!cJSON_IsString(content)) return wrong(at, "content", "a text or a list of parts", error);
    cJSON *parts = cJSON_CreateArray(), *part = cJSON_CreateObject();
    bool good = parts && part && cJSON_AddStringToObject(part, "type", output ? "output_text" : "input_text") &&
                cJSON_AddStringToObject(part, "text", content->valuestring) &&
                (!output || cJSON_AddArrayToObject(part, "annotations"));
    if (good) good = cJSON_AddItemToArray(parts, part);
    if (good) part = NULL;
    if (good) good = cJSON_ReplaceItemInObjectCaseSensitive(item, "content", parts);
    if (good && parts->string) return true;
    cJSON_Delete(part);
    if (!good) cJSON_Delete(parts); /* otherwise they are the item's, but cJSON found no memory for the key */
    return api_out_of_memory(error);
}

static bool check_call(const cJSON *item, const item_place *at, api_error *error) {
    const cJSON *arguments = cJSON_GetObjectItemCaseSensitive(item, "arguments");
    if (!body_string(item, "call_id")) return wrong(at, "call_id", "a string", error);
    if (!body_string(item, "name")) return wrong(at, "name", "a string", error);
    if (arguments && !cJSON_IsNull(arguments) && !cJSON_IsString(arguments) && !cJSON_IsObject(arguments))
        return wrong(at, "arguments", "a string that holds a JSON object", error);
    return true;
}

static bool check_output(const cJSON *item, const item_place *at, api_error *error) {
    const cJSON *output = cJSON_GetObjectItemCaseSensitive(item, "output");
    if (!body_string(item, "call_id")) return wrong(at, "call_id", "a string", error);
    if (cJSON_IsArray(output)) return check_parts(output, "output", true, false, at, error);
    return cJSON_IsString(output) || wrong(at, "output", "a text or a list of parts", error);
}

/* content and summary: lists of parts, null, or absent. */
static bool check_reasoning(const cJSON *item, const item_place *at, api_error *error) {
    static const char *const lists[] = {"content", "summary", NULL};
    for (size_t i = 0; lists[i]; i++) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(item, lists[i]), *part;
        if (!list || cJSON_IsNull(list)) continue;
        if (!cJSON_IsArray(list)) return wrong(at, lists[i], "a list of parts", error);
        cJSON_ArrayForEach(part, list) {
            if (!body_string(part, "text")) return wrong(at, lists[i], "a list of parts with a text", error);
        }
    }
    const cJSON *sealed = cJSON_GetObjectItemCaseSensitive(item, "encrypted_content");
    return !sealed || cJSON_IsNull(sealed) || cJSON_IsString(sealed) ||
           wrong(at, "encrypted_content", "a string", error);
}

static const char *prefix_of(const char *type) {
    if (strcmp(type, "message") == 0) return "msg_";
    if (strcmp(type, "reasoning") == 0) return "rs_";
    if (strcmp(type, "function_call") == 0) return "fc_";
    if (strcmp(type, "custom_tool_call") == 0) return "ctc_";
    return "item_";
}

/* Every one of that name. */
static void remove_member(cJSON *object, const char *name) {
    while (cJSON_HasObjectItem(object, name)) cJSON_DeleteItemFromObject(object, name);
}

/* Items have types and ids, the client's or new ones. */
static bool name_item(cJSON *item, const char *type, api_error *error) {
    if (!body_string(item, "type")) {
        remove_member(item, "type");
        if (!cJSON_AddStringToObject(item, "type", type)) return api_out_of_memory(error);
        type = body_string(item, "type");
    }
    const char *given = body_string(item, "id");
    if (given && given[0]) return true;
    char id[RANDOM_ID_BYTES + 8], random[RANDOM_ID_BYTES];
    random_id(random);
    snprintf(id, sizeof id, "%s%s", prefix_of(type), random);
    remove_member(item, "id");
    return cJSON_AddStringToObject(item, "id", id) || api_out_of_memory(error);
}

static bool complete_item(cJSON *item, const item_place *at, api_error *error) {
    const char *type = body_string(item, "type");
    if (!type && body_string(item, "role")) type = "message";
    if (!type) return wrong(at, "type", "a string", error);
    bool good = true;
    if (strcmp(type, "message") == 0) {
        good = complete_message(item, at, error);
    } else if (strcmp(type, "function_call") == 0) {
        good = check_call(item, at, error);
    } else if (strcmp(type, "function_call_output") == 0) {
        good = check_output(item, at, error);
    } else if (strcmp(type, "reasoning") == 0) {
        good = check_reasoning(item, at, error);
    } else if (strncmp(type, "input_", 6) == 0) {
        good = api_fail(error, 400, "unsupported_content", at->name, "%s is of type %.64s; only text is supported",
                        at->name, type);
    }
    return good && name_item(item, type, error);
}

/* given: the caller's; *taken: it is the list's from now on. */
static bool read_item(cJSON *given, const item_place *at, const item_source *source, cJSON *list, bool *taken,
                      api_error *error) {
    if (!cJSON_IsObject(given)) return api_fail(error, 400, "invalid_type", at->name, "%s is not an object", at->name);
    const char *type = body_string(given, "type"), *id = body_string(given, "id");
    bool bare = !type && id && !body_string(given, "role");
    bool reference = bare || (type && strcmp(type, "item_reference") == 0);
    if (reference && !id) return wrong(at, "id", "a string", error);
    cJSON *item = reference ? source->find(source->user, id) : given;
    if (!item && reference)
        return api_fail(error, 400, "invalid_value", at->name, "%s: there is no stored item %.64s", at->name, id);
    (void)cJSON_AddItemToArray(list, item); /* which cannot fail */
    *taken = !reference;
    return complete_item(item, at, error);
}

bool items_read(cJSON *input, const item_source *source, cJSON **out, api_error *error) {
    cJSON *list = *out = cJSON_CreateArray();
    if (!list) return api_out_of_memory(error);
    bool good = true;
    if (cJSON_IsString(input)) {
        cJSON *item = cJSON_CreateObject();
        good = item && cJSON_AddItemToArray(list, item);
        if (!good) cJSON_Delete(item);
        good = good && cJSON_AddStringToObject(item, "role", "user") &&
               cJSON_AddStringToObject(item, "content", input->valuestring);
        if (!good) api_out_of_memory(error);
        good = good && complete_item(item, &(item_place){"input"}, error);
    } else if (cJSON_IsArray(input)) {
        cJSON *given;
        for (size_t i = 0; good && (given = cJSON_DetachItemFromArray(input, 0)) != NULL; i++) {
            bool taken = false;
            item_place at;
            snprintf(at.name, sizeof at.name, "input[%zu]", i);
            good = read_item(given, &at, source, list, &taken, error);
            if (!taken) cJSON_Delete(given);
        }
    } else {
        good = api_fail(error, 400, "invalid_type", "input", "input is not a text or a list of items");
    }
    if (good) return true;
    cJSON_Delete(list);
    *out = NULL;
    return false;
}

/* ------------------------------------------------------------------------------------------------- calls and outputs
 */

/* Which call an item is or answers; NULL: it is none of the two. */
static const char *call_of(const cJSON *item, bool *output) {
    const char *type = body_string(item, "type");
    *output = ends_with(type, "_output");
    if (!*output && !ends_with(type, "_call")) return NULL;
    const char *id = body_string(item, "call_id");
    if (!id) id = body_string(item, "id");
    return id ? id : "";
}

typedef struct call_place {
    const char *id;
    size_t place; /* of the item */
    bool output;
    size_t other; /* the last call in front of an output, the last output behind a call; `place`: there is none */
} call_place;

static int compare_calls(const void *a, const void *b) {
    const call_place *x = a, *y = b;
    int order = strcmp(x->id, y->id);
    return order ? order : (x->place > y->place) - (x->place < y->place);
}

typedef struct call_table {
    call_place *calls;
    size_t n;
} call_table;

static void find_others(call_table *table) {
    const call_place *last = NULL; /* the one of the other kind */
    for (size_t i = 0; i < table->n; i++) {
        call_place *c = &table->calls[i];
        if (last && strcmp(last->id, c->id) != 0) last = NULL;
        if (c->output && last) c->other = last->place;
        if (!c->output) last = c;
    }
    last = NULL;
    for (size_t i = table->n; i-- > 0;) {
        call_place *c = &table->calls[i];
        if (last && strcmp(last->id, c->id) != 0) last = NULL;
        if (!c->output && last) c->other = last->place;
        if (c->output && !last) last = c;
    }
}

static bool make_table(const cJSON *items, call_table *out) {
    const cJSON *item;
    size_t place = 0;
    *out = (call_table){.calls = calloc((size_t)cJSON_GetArraySize(items) + 1, sizeof *out->calls)};
    if (!out->calls) return false;
    cJSON_ArrayForEach(item, items) {
        bool output;
        const char *id = call_of(item, &output);
        if (id) out->calls[out->n++] = (call_place){.id = id, .place = place, .output = output, .other = place};
        place++;
    }
    qsort(out->calls, out->n, sizeof *out->calls, compare_calls);
    find_others(out);
    return true;
}

/* The output of a call, or the call of an output; `place` where there is none. */
static size_t other_of(const call_table *table, const char *id, size_t place) {
    const call_place wanted = {.id = id, .place = place};
    const call_place *found = bsearch(&wanted, table->calls, table->n, sizeof wanted, compare_calls);
    return found ? found->other : place;
}

static bool has_other(const call_table *table, const char *id, size_t place) {
    return other_of(table, id, place) != place;
}

/* -------------------------------------------------------------------------------------------------------- messages */

typedef struct writer {
    chat_conversation *said;
    const item_source *source;
    call_table table;
    /* --- the item that is put: */
    size_t index;    /* in the request; SIZE_MAX: in an earlier one */
    const char *key; /* of its parts */
    bool goes_on;    /* the last message is an assistant's, and goes on */
    text_buffer *ignored;
    bool failed; /* out of memory, as is said->failed */
} writer;

static kakeya_chat_message *assistant(writer *w) {
    if (w->goes_on) return &w->said->messages[w->said->n - 1];
    w->goes_on = true;
    return chat_add(w->said, "assistant");
}

static const char *keep(writer *w, const char *text) { return chat_keep(w->said, text, strlen(text)); }

/* A picture of a user's, or a tool's where the model reads pictures. */
static bool is_shown(const writer *w, const kakeya_chat_message *message, const cJSON *part) {
    if (!images_is_part(part)) return false;
    return chat_is_role(message, "user") || (chat_is_role(message, "tool") && w->source->pictures);
}

static void add_picture(writer *w, kakeya_chat_message *message, const cJSON *part, size_t i) {
    char place[80] = "previous_response_id";
    if (w->index != SIZE_MAX) snprintf(place, sizeof place, "input[%zu].%s[%zu]", w->index, w->key, i);
    media_add(w->said, message, (cJSON *)(uintptr_t)part, place);
}

/* The text of a part, or the line that stands for it. */
static const char *text_of(writer *w, const cJSON *part) {
    char line[CHAT_LINE_BYTES];
    const char *text = body_string(part, "text");
    if (!text) text = body_string(part, "refusal");
    return text ? text : keep(w, chat_part_line(part, line));
}

/* Names the parts for which lines stand. index: of the item in the request; SIZE_MAX: in an earlier one. */
static void note_parts(writer *w, size_t index, const char *key, const cJSON *parts) {
    const cJSON *part;
    size_t i = 0;
    cJSON_ArrayForEach(part, parts) {
        const char *type = body_string(part, "type");
        bool shown = w->source->pictures && images_is_part(part);
        if (index != SIZE_MAX && type && !shown && !body_string(part, "text") && !body_string(part, "refusal"))
            ignored_add(w->ignored, "input[%zu].%s[%zu](%.64s)", index, key, i, type);
        i++;
    }
}

/* The texts of a list of parts become the content of a message, or more of it. One text is not a list: the template
 * writes lists differently. */
static void add_content(writer *w, kakeya_chat_message *message, const cJSON *parts) {
    static const kakeya_chat_part none;
    const cJSON *part;
    size_t i = 0;
    if (!message) return;
    const bool first = !message->content && !message->parts;
    if (first && cJSON_GetArraySize(parts) == 1 && !is_shown(w, message, parts->child)) {
        message->content = text_of(w, parts->child);
        return;
    }
    if (first) message->parts = &none;
    cJSON_ArrayForEach(part, parts) {
        if (is_shown(w, message, part))
            add_picture(w, message, part, i);
        else
            (void)chat_add_part(w->said, message, (kakeya_chat_part){.text = text_of(w, part)});
        i++;
    }
}

static void put_message(writer *w, const cJSON *item) {
    const char *role = body_string(item, "role");
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(item, "content");
    if (strcmp(role, "assistant") == 0) {
        add_content(w, assistant(w), content);
        return;
    }
    w->goes_on = false;
    /* The turn format knows a system turn, and no developer's. */
    add_content(w, chat_add(w->said, strcmp(role, "user") == 0 ? "user" : "system"), content);
}

static void join_parts(text_buffer *out, const cJSON *parts) {
    const cJSON *part;
    cJSON_ArrayForEach(part, parts) {
        if (out->n) text_add(out, "\n");
        text_add(out, body_string(part, "text"));
    }
}

/* The reasoning of the assistant's message behind it. */
static bool put_reasoning(writer *w, const cJSON *item) {
    text_buffer text = {0};
    bool known = true;
    join_parts(&text, cJSON_GetObjectItemCaseSensitive(item, "content"));
    const char *sealed = body_string(item, "encrypted_content");
    if (text.n == 0 && sealed && sealed[0]) {
        char *opened = w->source->unseal(w->source->user, sealed);
        known = opened != NULL;
        if (opened) text_add(&text, opened);
        free(opened);
    }
    if (text.n == 0) join_parts(&text, cJSON_GetObjectItemCaseSensitive(item, "summary"));
    kakeya_chat_message *message = text.n ? assistant(w) : NULL;
    if (message) message->reasoning = chat_join(w->said, message->reasoning, "\n", keep(w, text.data));
    w->failed |= text.failed;
    text_free(&text);
    return known;
}

/* name and arguments need not last. */
static void put_call(writer *w, const char *id, const char *name, const char *arguments) {
    const kakeya_chat_call made = {.id = id, .name = keep(w, name), .arguments = keep(w, arguments)};
    chat_add_call(w->said, assistant(w), made);
}

/* The message of a tool; an assistant's items behind it are a new message. */
static kakeya_chat_message *add_output(writer *w, const char *id) {
    kakeya_chat_message *message = chat_add(w->said, "tool");
    w->goes_on = false;
    if (message) message->call_id = id;
    return message;
}

/* What a call brought. */
static void put_output(writer *w, const char *id, const cJSON *output) {
    kakeya_chat_message *message = add_output(w, id);
    if (cJSON_IsArray(output)) {
        add_content(w, message, output);
        return;
    }
    char *json = cJSON_IsString(output) || !output ? NULL : json_text_print(output);
    w->failed |= output && !cJSON_IsString(output) && !json;
    if (message) message->content = json ? keep(w, json) : cJSON_IsString(output) ? output->valuestring : "";
    cJSON_free(json);
}

const char *item_tool_name(const cJSON *item, char out[ITEM_NAME_BYTES]) {
    const char *name = body_string(item, "name"), *space = body_string(item, "namespace");
    return item_join_name(space, name ? name : "", out);
}

const char *item_join_name(const char *space, const char *name, char out[ITEM_NAME_BYTES]) {
    size_t n = space ? strlen(space) : 0;
    bool apart = n > 0 && space[n - 1] != '_' && space[n - 1] != '.';
    snprintf(out, ITEM_NAME_BYTES, "%s%s%s", n ? space : "", apart ? "__" : "", name);
    return out;
}

/* Arguments as the text of a JSON object. */
static void put_function_call(writer *w, const cJSON *item) {
    const cJSON *arguments = cJSON_GetObjectItemCaseSensitive(item, "arguments");
    char *json = cJSON_IsObject(arguments) ? json_text_print(arguments) : NULL;
    const char *text = json ? json : cJSON_IsString(arguments) ? arguments->valuestring : "";
    char name[ITEM_NAME_BYTES];
    put_call(w, body_string(item, "call_id"), item_tool_name(item, name), text);
    cJSON_free(json);
}

/* The arguments of a call that is not one of a function: its own, its input, or whatever it says besides. */
static char *foreign_arguments(const cJSON *item) {
    static const char *const form[] = {"type", "id", "status", "call_id", "name", "namespace", "output", NULL};
    const char *arguments = body_string(item, "arguments");
    if (arguments) return strdup(arguments);
    cJSON *rest = cJSON_Duplicate(item, true);
    for (size_t i = 0; rest && form[i]; i++) cJSON_DeleteItemFromObjectCaseSensitive(rest, form[i]);
    char *json = rest ? json_text_print(rest) : NULL, *copy = json ? strdup(json) : NULL;
    cJSON_free(json);
    cJSON_Delete(rest);
    return copy;
}

/* A picture that is the whole output. */
static void put_screenshot(writer *w, const char *id, const cJSON *output) {
    char place[80] = "previous_response_id";
    if (w->index != SIZE_MAX) snprintf(place, sizeof place, "input[%zu].output", w->index);
    media_add(w->said, add_output(w, id), (cJSON *)(uintptr_t)output, place);
}

/* What a tool of another kind brought: parts as those of functions, a picture as its line, anything else as JSON. */
static void put_any_output(writer *w, const char *id, const cJSON *output) {
    const cJSON *part;
    bool parts = true;
    cJSON_ArrayForEach(part, output) parts = parts && body_string(part, "type");
    char line[CHAT_LINE_BYTES];
    bool picture = cJSON_IsObject(output) && body_string(output, "image_url");
    if (picture && w->source->pictures) {
        put_screenshot(w, id, output);
    } else if (!picture && (parts || !cJSON_IsArray(output))) {
        put_output(w, id, output);
    } else {
        char *json = picture ? NULL : json_text_print(output);
        kakeya_chat_message *message = add_output(w, id);
        w->failed |= !picture && !json;
        if (message) message->content = keep(w, json ? json : chat_part_line(output, line));
        cJSON_free(json);
    }
}

/* Calls of other kinds of tools read as calls of functions; each has an output, so that the turn goes on behind it. */
static void put_foreign_call(writer *w, const cJSON *item, const char *id, size_t place) {
    const char *type = body_string(item, "type"), *given = body_string(item, "name");
    char name[ITEM_NAME_BYTES];
    if (given && given[0]) {
        item_tool_name(item, name);
    } else {
        snprintf(name, sizeof name, "%.*s", (int)(strlen(type) - strlen("_call")), type);
    }
    char *arguments = foreign_arguments(item);
    if (arguments) {
        put_call(w, id, name, arguments);
    } else {
        w->failed = true;
    }
    free(arguments);
    if (has_other(&w->table, id, place)) return;
    const cJSON *output = cJSON_GetObjectItemCaseSensitive(item, "output");
    put_any_output(w, id, output ? output : cJSON_GetObjectItemCaseSensitive(item, "status"));
}

static void put_foreign_output(writer *w, const cJSON *item, const char *id, size_t place) {
    if (!has_other(&w->table, id, place)) {
        const char *type = body_string(item, "type"), *end = strstr(type, "_call_output");
        char name[ITEM_NAME_BYTES];
        snprintf(name, sizeof name, "%.*s", (int)(end ? (size_t)(end - type) : strlen(type) - strlen("_output")), type);
        put_call(w, id, name, "");
    }
    put_any_output(w, id, cJSON_GetObjectItemCaseSensitive(item, "output"));
}

static bool put_item(writer *w, const cJSON *item, size_t place, size_t n_earlier, api_error *error) {
    const char *type = body_string(item, "type");
    bool output, own = place >= n_earlier;
    size_t index = own ? place - n_earlier : place;
    const char *id = call_of(item, &output);
    w->index = own ? index : SIZE_MAX;
    w->key = id && output ? "output" : "content";
    note_parts(w, own ? index : SIZE_MAX, "content",
               strcmp(type, "message") == 0 ? cJSON_GetObjectItemCaseSensitive(item, "content") : NULL);
    note_parts(w, own ? index : SIZE_MAX, "output",
               id && output ? cJSON_GetObjectItemCaseSensitive(item, "output") : NULL);
    if (strcmp(type, "message") == 0) {
        put_message(w, item);
    } else if (strcmp(type, "reasoning") == 0) {
        if (!put_reasoning(w, item) && own) ignored_add(w->ignored, "input[%zu].encrypted_content", index);
    } else if (strcmp(type, "function_call") == 0) {
        put_function_call(w, item);
    } else if (strcmp(type, "function_call_output") == 0) {
        if (!has_other(&w->table, id, place)) {
            char param[64];
            snprintf(param, sizeof param, "input[%zu].call_id", index);
            return api_fail(error, 400, "invalid_prompt", param, "%s: there is no call %.64s before it", param, id);
        }
        put_output(w, id, cJSON_GetObjectItemCaseSensitive(item, "output"));
    } else if (id && output) {
        put_foreign_output(w, item, id, place);
    } else if (id) {
        put_foreign_call(w, item, id, place);
    } else if (own) {
        ignored_add(w->ignored, "input[%zu].%.64s", index, type);
    }
    return true;
}

typedef struct item_order {
    const cJSON *item;
    size_t place, key; /* the item of which it is part or behind which it belongs */
    bool output;
} item_order;

static int compare_order(const void *a, const void *b) {
    const item_order *x = a, *y = b;
    if (x->key != y->key) return (x->key > y->key) - (x->key < y->key);
    return x->output != y->output ? x->output - y->output : (x->place > y->place) - (x->place < y->place);
}

/* Whether the assistant's message goes on with the item; *ends: and ends there, since the item brings its own output.
 */
static bool is_assistants(const writer *w, const cJSON *item, size_t place, bool *ends) {
    const char *type = body_string(item, "type"), *role = body_string(item, "role");
    bool output;
    const char *id = call_of(item, &output);
    *ends = id && !output && strcmp(type, "function_call") != 0 && !has_other(&w->table, id, place);
    if (strcmp(type, "message") == 0) return role && strcmp(role, "assistant") == 0;
    return strcmp(type, "reasoning") == 0 || (id && !output);
}

/* Items in the order of messages: an output comes behind the assistant's message with its call, whatever stands between
 * the two, because the template knows no other place for it. NULL: out of memory. */
static item_order *order_items(const writer *w, const cJSON *items, size_t *n) {
    item_order *all = calloc((size_t)cJSON_GetArraySize(items) + 1, sizeof *all);
    size_t *ends = calloc((size_t)cJSON_GetArraySize(items) + 1, sizeof *ends); /* where the message with item i does */
    const cJSON *item;
    *n = 0;
    if (!all || !ends) {
        free(all);
        free(ends);
        return NULL;
    }
    cJSON_ArrayForEach(item, items) {
        all[*n] = (item_order){.item = item, .place = *n, .key = *n};
        ++*n;
    }
    for (size_t i = *n; i-- > 0;) {
        bool stops, next_stops;
        (void)is_assistants(w, all[i].item, i, &stops);
        ends[i] = i + 1 < *n && !stops && is_assistants(w, all[i + 1].item, i + 1, &next_stops) ? ends[i + 1] : i;
    }
    for (size_t i = 0; i < *n; i++) {
        const char *id = call_of(all[i].item, &all[i].output);
        if (all[i].output && has_other(&w->table, id, i)) all[i].key = ends[other_of(&w->table, id, i)];
    }
    free(ends);
    qsort(all, *n, sizeof *all, compare_order);
    return all;
}

bool items_to_messages(const cJSON *items, size_t n_earlier, const item_source *source, chat_conversation *said,
                       text_buffer *ignored, api_error *error) {
    writer w = {.said = said, .source = source, .ignored = ignored};
    size_t n = 0;
    item_order *order = make_table(items, &w.table) ? order_items(&w, items, &n) : NULL;
    bool good = order != NULL;
    w.failed = !good;
    for (size_t i = 0; i < n && good; i++)
        good = put_item(&w, order[i].item, order[i].place, n_earlier, error) && !w.failed && !said->failed;
    free(order);
    free(w.table.calls);
    return w.failed || said->failed ? api_out_of_memory(error) : good;
}
