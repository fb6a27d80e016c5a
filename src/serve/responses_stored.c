/* GET and DELETE /v1/responses/{id}, GET .../input_items, POST .../cancel. */
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "serve/responses_replay.h"
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

/* ---------------------------------------------------------------------------------------------------- input items */

/* Which of the items are asked for. */
typedef struct page {
    bool ascending;
    int64_t limit;
    char after[RESPONSE_ID_BYTES * 2], before[RESPONSE_ID_BYTES * 2]; /* ids; "": none */
} page;

static bool read_number(const call *c, const char *name, int64_t min, int64_t max, int64_t *out, api_error *error) {
    char text[24], *end;
    if (!call_query(c, name, text, sizeof text)) return true;
    *out = strtoll(text, &end, 10);
    return (*text && !*end && *out >= min && *out <= max) ||
           api_fail(error, 400, "invalid_value", name, "%s: %s is not an integer from %lld to %lld", name, text,
                    (long long)min, (long long)max);
}

static bool read_page(const call *c, page *p, api_error *error) {
    char order[16] = "desc";
    *p = (page){.limit = 20};
    (void)call_query(c, "order", order, sizeof order);
    (void)call_query(c, "after", p->after, sizeof p->after);
    (void)call_query(c, "before", p->before, sizeof p->before);
    p->ascending = strcmp(order, "asc") == 0;
    if (!p->ascending && strcmp(order, "desc") != 0)
        return api_fail(error, 400, "invalid_value", "order", "order: %s is not asc or desc", order);
    return read_number(c, "limit", 1, 100, &p->limit, error);
}

/* The place of an item in the order that is asked for. False: there is none of that id. */
static bool find_place(const cJSON *items, const page *p, const char *name, const char *id, int64_t *place,
                       api_error *error) {
    int64_t n = cJSON_GetArraySize(items), i = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, items) {
        const char *its = body_string(item, "id");
        if (its && strcmp(its, id) == 0) {
            *place = p->ascending ? i : n - 1 - i;
            return true;
        }
        i++;
    }
    return api_fail(error, 400, "invalid_value", name, "%s: there is no item %.64s", name, id);
}

static void add_id(text_buffer *out, const char *name, const cJSON *item) {
    text_format(out, ",\"%s\":", name);
    text_json_string(out, body_string(item, "id"));
}

/* Items first .. end - 1 in the order that is asked for. */
static void add_page(const cJSON *items, const page *p, int64_t first, int64_t end, bool more, text_buffer *out) {
    int n = cJSON_GetArraySize(items);
    const cJSON *first_item = NULL, *last = NULL;
    text_add(out, "{\"object\":\"list\",\"data\":[");
    for (int64_t i = first; i < end; i++) {
        last = cJSON_GetArrayItem(items, p->ascending ? (int)i : n - 1 - (int)i);
        char *json = json_text_print(last);
        if (!first_item) first_item = last;
        if (i > first) text_add(out, ",");
        out->failed |= !json;
        if (json) text_add(out, json);
        cJSON_free(json);
    }
    text_add(out, "]");
    add_id(out, "first_id", first_item);
    add_id(out, "last_id", last);
    text_format(out, ",\"has_more\":%s}", more ? "true" : "false");
}

static bool get_input(const call *c, const target *t, text_buffer *out, api_error *error) {
    response_texts texts;
    page p;
    if (!read_page(c, &p, error)) return false;
    if (!response_store_get(c->server->responses, t->id, responses_owner(c), &texts)) return not_found(t, error);
    cJSON *items = json_text_read(texts.input.data, texts.input.n);
    int64_t n = cJSON_GetArraySize(items), first = -1, end = n;
    bool good = items || api_out_of_memory(error);
    if (good && p.after[0]) good = find_place(items, &p, "after", p.after, &first, error);
    if (good && p.before[0]) good = find_place(items, &p, "before", p.before, &end, error);
    first++;
    bool more = good && end - first > p.limit;
    if (more && p.before[0] && !p.after[0]) {
        first = end - p.limit; /* those right in front of it */
    } else if (more) {
        end = first + p.limit;
    }
    if (good) add_page(items, &p, first, end, more, out);
    cJSON_Delete(items);
    response_texts_free(&texts);
    return good;
}

/* --------------------------------------------------------------------------------------------------------- replay */

typedef struct replayed {
    http_task task;
    call *call;
    text_buffer events;
} replayed;

/* Network thread. */
static void send_replay(void *user) {
    replayed *r = user;
    call *c = r->call;
    call_stream_begin(c);
    call_stream_write(c, &r->events);
    text_free(&r->events);
    free(r);
    call_stream_end(c);
}

/* True: the call is under way to its end. */
static bool replay(call *c, const target *t, api_error *error) {
    int64_t after = -1;
    text_buffer object = {0};
    if (!read_number(c, "starting_after", 0, INT32_MAX, &after, error)) return false;
    response_store_wait(c->server->responses, t->id, responses_owner(c)); /* one that runs is told when it has ended */
    if (!get_object(c, t, &object, error)) return false;
    bool held = call_hold(c, object.n + body_tree_bytes(object.data, object.n), error);
    replayed *r = held ? calloc(1, sizeof *r) : NULL;
    static const char *const spelled[] = {"output", NULL}; /* log-probabilities are told with all their digits */
    cJSON *tree = r ? json_text_read(object.data, object.n) : NULL;
    bool good =
        tree && body_keep_numbers(tree, object.data, object.n, spelled) && responses_replay(tree, after, &r->events);
    cJSON_Delete(tree);
    text_free(&object);
    if (!good) {
        if (r) text_free(&r->events);
        free(r);
        return api_out_of_memory(error);
    }
    r->call = c;
    http_post(c->server->http, &r->task, send_replay, r);
    return true;
}

/* ----------------------------------------------------------------------------------------------------------- the rest
 */

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
    if (good && !post && !delete &&!input && call_query_asks(c, "stream")) {
        if (replay(c, &t, &error)) return;
        good = false;
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
