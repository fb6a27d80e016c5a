#include "serve/responses_replay.h"

#include <string.h>

#include "base/json_text.h"
#include "serve/body.h"
#include "serve/responses_output.h"

typedef struct replay {
    text_buffer *out;
    int64_t after, sequence;
    const char *item_id;
    size_t item, part;
} replay;

/* False: this event is not wanted. */
static bool begin(replay *r, const char *type) {
    int64_t number = r->sequence++;
    if (number <= r->after) return false;
    text_format(r->out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%lld", type, type, (long long)number);
    return true;
}

static void end(replay *r) { text_add(r->out, "}\n\n"); }

static void add(replay *r, const char *name, const cJSON *value) {
    char *json = json_text_print(value);
    text_format(r->out, ",\"%s\":", name);
    r->out->failed |= !json;
    if (json) text_add(r->out, json);
    cJSON_free(json);
}

static void tell(replay *r, const char *type, const char *name, const cJSON *value) {
    if (!begin(r, type)) return;
    add(r, name, value);
    end(r);
}

/* -------------------------------------------------------------------------------------------- what has just begun */

static bool set(cJSON *object, const char *name, cJSON *value) {
    if (!cJSON_HasObjectItem(object, name)) {
        cJSON_Delete(value);
        return true;
    }
    if (value && cJSON_ReplaceItemInObjectCaseSensitive(object, name, value)) return true;
    cJSON_Delete(value);
    return false;
}

/* A copy in which nothing has been said yet. */
static cJSON *begun(const cJSON *object) {
    static const char *const lists[] = {"output", "content", "summary", "logprobs", NULL};
    static const char *const texts[] = {"text", "arguments", "input", NULL};
    static const char *const unknown[] = {"usage", "completed_at", "error", "incomplete_details", "encrypted_content",
                                          NULL};
    cJSON *copy = cJSON_Duplicate(object, true);
    bool good = copy && set(copy, "status", cJSON_CreateString("in_progress"));
    for (size_t i = 0; good && lists[i]; i++)
        if (cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(copy, lists[i])))
            good = set(copy, lists[i], cJSON_CreateArray());
    for (size_t i = 0; good && texts[i]; i++)
        if (body_string(copy, texts[i])) good = set(copy, texts[i], cJSON_CreateString(""));
    for (size_t i = 0; good && unknown[i]; i++) good = set(copy, unknown[i], cJSON_CreateNull());
    if (good) return copy;
    cJSON_Delete(copy);
    return NULL;
}

static void tell_begun(replay *r, const char *type, const char *name, const cJSON *object) {
    cJSON *copy = begun(object);
    r->out->failed |= !copy;
    if (copy) tell(r, type, name, copy);
    cJSON_Delete(copy);
}

/* ----------------------------------------------------------------------------------------------------------- items */

static bool begin_item(replay *r, const char *type) {
    if (!begin(r, type)) return false;
    text_add(r->out, ",\"item_id\":");
    text_json_string(r->out, r->item_id);
    text_format(r->out, ",\"output_index\":%zu", r->item);
    return true;
}

static void tell_part(replay *r, const response_text_form *form, const cJSON *part) {
    const char *text = body_string(part, "text");
    const cJSON *logprobs = cJSON_GetObjectItemCaseSensitive(part, "logprobs");
    cJSON *empty = begun(part);
    r->out->failed |= !empty;
    for (int step = PART_ADDED; step <= PART_DONE && empty; step++) {
        if (step == TEXT_DELTA && !(text && text[0])) continue;
        if (!begin_item(r, form->events[step])) continue;
        text_format(r->out, ",\"%s\":%zu", form->index, r->part);
        if (step == PART_ADDED) add(r, "part", empty);
        if (step == TEXT_DELTA || step == TEXT_DONE) {
            text_format(r->out, ",\"%s\":", step == TEXT_DELTA ? "delta" : "text");
            text_json_string(r->out, text ? text : "");
            if (logprobs) add(r, "logprobs", logprobs);
        }
        if (step == PART_DONE) add(r, "part", part);
        end(r);
    }
    cJSON_Delete(empty);
}

static void tell_parts(replay *r, response_text kind, const cJSON *parts) {
    const cJSON *part;
    r->part = 0;
    cJSON_ArrayForEach(part, parts) {
        tell_part(r, &response_text_forms[kind], part);
        r->part++;
    }
}

/* A call's arguments, or the input of a custom tool. */
static void tell_input(replay *r, const response_call_form *form, const cJSON *item) {
    const char *text = body_string(item, form->text);
    if (text && text[0] && begin_item(r, form->delta)) {
        text_add(r->out, ",\"delta\":");
        text_json_string(r->out, text);
        end(r);
    }
    if (!begin_item(r, form->done)) return;
    if (form == response_call_forms) {
        add(r, "name", cJSON_GetObjectItemCaseSensitive(item, "name"));
        const cJSON *space = cJSON_GetObjectItemCaseSensitive(item, "namespace");
        if (space) add(r, "namespace", space);
    }
    text_format(r->out, ",\"%s\":", form->text);
    text_json_string(r->out, text ? text : "");
    end(r);
}

static void tell_item(replay *r, const cJSON *item) {
    const char *type = body_string(item, "type");
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(item, "content");
    r->item_id = body_string(item, "id");
    for (int step = 0; step < 3; step++) {
        if (step == 1) {
            if (type && strcmp(type, "message") == 0) tell_parts(r, RESPONSE_ANSWER, content);
            if (type && strcmp(type, "reasoning") == 0) {
                tell_parts(r, RESPONSE_REASONING, content);
                tell_parts(r, RESPONSE_SUMMARY, cJSON_GetObjectItemCaseSensitive(item, "summary"));
            }
            for (size_t i = 0; type && i < 2; i++)
                if (strcmp(type, response_call_forms[i].type) == 0) tell_input(r, &response_call_forms[i], item);
            continue;
        }
        if (!begin(r, step == 0 ? "response.output_item.added" : "response.output_item.done")) continue;
        text_format(r->out, ",\"output_index\":%zu", r->item);
        cJSON *copy = step == 0 ? begun(item) : NULL;
        r->out->failed |= step == 0 && !copy;
        add(r, "item", copy ? copy : item);
        cJSON_Delete(copy);
        end(r);
    }
}

bool responses_replay(const cJSON *response, int64_t after, text_buffer *out) {
    replay r = {.out = out, .after = after};
    const cJSON *item;
    const char *status = body_string(response, "status");
    tell_begun(&r, "response.created", "response", response);
    tell_begun(&r, "response.in_progress", "response", response);
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(response, "output")) {
        tell_item(&r, item);
        r.item++;
    }
    tell(&r,
         status && strcmp(status, "completed") == 0 ? "response.completed"
         : status && strcmp(status, "failed") == 0  ? "response.failed"
                                                    : "response.incomplete",
         "response", response);
    return !out->failed;
}
