/* GET and DELETE /v1/responses/{id}, GET .../input_items, POST .../cancel. */
#include <string.h>

#include "base/json_text.h"
#include "serve/responses_request.h"
#include "serve/routes.h"

/* Which response, and what of it: "" or "input_items" or "cancel". */
typedef struct target {
    char id[RESPONSE_ID_BYTES];
    const char *part;
} target;

static bool not_found(const target *t, api_error *error) {
    return api_fail(error, 404, "not_found", "response_id", "there is no stored response %.64s", t->id);
}

static bool read_target(const call *c, target *t, api_error *error) {
    size_t bytes = strcspn(c->rest, "/");
    t->part = c->rest[bytes] ? c->rest + bytes + 1 : "";
    size_t kept = bytes < sizeof t->id ? bytes : sizeof t->id - 1;
    memcpy(t->id, c->rest, kept);
    t->id[kept] = '\0';
    if (t->part[0] && strcmp(t->part, "input_items") != 0 && strcmp(t->part, "cancel") != 0)
        return api_fail(error, 404, "not_found", NULL, "there is no route /v1/responses/{id}/%.64s", t->part);
    return kept == bytes || not_found(t, error);
}

static bool get_object(const call *c, const target *t, text_buffer *out, api_error *error) {
    response_texts texts;
    if (!response_store_get(c->server->responses, t->id, responses_owner(c), &texts)) return not_found(t, error);
    *out = texts.object;
    texts.object = (text_buffer){0};
    response_texts_free(&texts);
    return true;
}

static void add_id(text_buffer *out, const char *name, const cJSON *item) {
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(item, "id");
    text_format(out, ",\"%s\":", name);
    text_json_string(out, cJSON_IsString(id) ? id->valuestring : NULL);
}

static bool get_input(const call *c, const target *t, text_buffer *out, api_error *error) {
    response_texts texts;
    if (!response_store_get(c->server->responses, t->id, responses_owner(c), &texts)) return not_found(t, error);
    cJSON *items = json_text_read(texts.input.data, texts.input.n);
    int n = cJSON_GetArraySize(items);
    text_add(out, "{\"object\":\"list\",\"data\":");
    text_bytes(out, texts.input.data, texts.input.n);
    add_id(out, "first_id", cJSON_GetArrayItem(items, 0));
    add_id(out, "last_id", n ? cJSON_GetArrayItem(items, n - 1) : NULL);
    text_add(out, ",\"has_more\":false}");
    cJSON_Delete(items);
    response_texts_free(&texts);
    return true;
}

static bool delete_response(const call *c, const target *t, text_buffer *out, api_error *error) {
    switch (response_store_delete(c->server->responses, t->id, responses_owner(c))) {
    case RESPONSE_ENDED:
        text_format(out, "{\"id\":\"%s\",\"object\":\"response.deleted\",\"deleted\":true}", t->id);
        return true;
    case RESPONSE_RUNNING:
        return api_fail(error, 400, "invalid_value", "response_id", "%s is running; cancel it first", t->id);
    default:
        return not_found(t, error);
    }
}

static bool cancel_response(const call *c, const target *t, text_buffer *out, api_error *error) {
    switch (response_store_cancel(c->server->responses, t->id, responses_owner(c), out)) {
    case RESPONSE_RUNNING:
        return true;
    case RESPONSE_ENDED:
        return api_fail(error, 400, "invalid_value", "response_id", "%s has ended: it cannot be cancelled", t->id);
    default:
        return not_found(t, error);
    }
}

void response_call(call *c) {
    api_error error = {0};
    target t;
    text_buffer body = {0};
    const char *method = http_request(c->exchange)->method;
    bool post = strcmp(method, "POST") == 0, delete = strcmp(method, "DELETE") == 0;
    bool good = read_target(c, &t, &error);
    bool cancels = good && strcmp(t.part, "cancel") == 0, input = good && strcmp(t.part, "input_items") == 0;
    if (good && (post != cancels || (delete &&input))) {
        c->allow = cancels ? "POST, OPTIONS" : input ? "GET, HEAD, OPTIONS" : "GET, HEAD, DELETE, OPTIONS";
        good = api_fail(&error, 405, "method_not_allowed", NULL, "%s is not for %s", method,
                        http_request(c->exchange)->path);
    }
    if (!good) {
    } else if (post) {
        good = cancel_response(c, &t, &body, &error);
    } else if (delete) {
        good = delete_response(c, &t, &body, &error);
    } else if (input) {
        good = get_input(c, &t, &body, &error);
    } else {
        good = get_object(c, &t, &body, &error);
    }
    if (good) {
        call_reply_json(c, &body);
    } else {
        text_free(&body);
        call_fail(c, &error);
    }
}
