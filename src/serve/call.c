#include "serve/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/platform.h"
#include "serve/call_media.h"
#include "serve/lifecycle.h"
#include "serve/multipart.h"

void random_id(char out[RANDOM_ID_BYTES]) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    unsigned char bytes[64];
    size_t n = 0;
    while (n + 1 < RANDOM_ID_BYTES) {
        if (!platform_random(bytes, sizeof bytes)) continue;
        for (size_t i = 0; i < sizeof bytes && n + 1 < RANDOM_ID_BYTES; i++)
            if (bytes[i] < 62 * 4) out[n++] = digits[bytes[i] % 62]; /* no digit is likelier than another */
    }
    out[n] = '\0';
}

static void name_call(call *c) {
    const char *given = http_head_find(http_request(c->exchange), "x-request-id");
    size_t bytes = given ? strlen(given) : 0;
    bool clean = bytes > 0 && bytes < CALL_ID_BYTES;
    for (size_t i = 0; i < bytes && clean; i++) clean = given[i] > 0x20 && given[i] < 0x7f;
    if (clean) {
        memcpy(c->id, given, bytes + 1);
        return;
    }
    memcpy(c->id, "req_", 4);
    random_id(c->id + 4);
}

/* ------------------------------------------------------------------------------------------------------- the end */

static void write_log(const call *c, int status) {
    metrics *m = &c->server->metrics;
    metrics_request(m, c->route ? (size_t)c->place : METRICS_ROUTES, status);
    if (c->ignored.n && !c->ignored.failed) metrics_fields(m, c->ignored.data);
    const serve_settings *s = c->server->settings;
    const http_head *head = http_request(c->exchange);
    double ms = (clock_seconds() - http_received(c->exchange)) * 1000;
    const char *smaller = call_media_smaller(c->media);
    text_buffer line = {0};
    if (s->log_json) {
        text_add(&line, "{\"id\":");
        text_json_string(&line, c->id);
        text_add(&line, ",\"method\":");
        text_json_string(&line, head->method);
        text_add(&line, ",\"path\":");
        text_json_string(&line, head->path);
        text_format(&line, ",\"status\":%d,\"ms\":%.1f", status, ms);
        if (c->gone) text_add(&line, ",\"client_left\":true");
        if (c->log.n) text_format(&line, ",%s", c->log.data);
        if (smaller) {
            text_add(&line, ",\"images_resized\":");
            text_json_string(&line, smaller);
        }
        text_add(&line, "}\n");
    } else {
        text_format(&line, "%s %s %s %d %.1f ms%s", c->id, head->method, c->route ? c->route->path : "-", status, ms,
                    c->gone ? ", client left" : "");
        if (c->log.n) text_format(&line, ", %s", c->log.data);
        if (smaller) text_format(&line, ", images resized: %s", smaller);
        text_add(&line, "\n");
    }
    if (!line.failed) fwrite(line.data, 1, line.n, stderr);
    text_free(&line);
}

/* Clients are given an address with /v1 at its end, or without: every route has both. */
static const char *without_version(const char *path) { return strncmp(path, "/v1/", 4) == 0 ? path + 3 : path; }

/* Whether the one who asks reads Anthropic's API: by the path, known or not, or because the client says so. */
static bool is_anthropic(const call *c) {
    static const char path[] = "/messages";
    const http_head *head = http_request(c->exchange);
    return strncmp(without_version(head->path), path, sizeof path - 1) == 0 ||
           http_head_find(head, "anthropic-version");
}

static void free_call(call *c) {
    if (c->has_model) lifecycle_release(c->server->lifecycle);
    if (c->begun) atomic_fetch_sub(&c->server->calls, 1);
    cJSON_Delete(c->body);
    call_media_free(c->media);
    cJSON_free(c->tools);
    chat_conversation_free(&c->conversation);
    text_free(&c->ignored);
    text_free(&c->log);
    text_free(&c->reply);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void add_headers(call *c) {
    http_exchange *x = c->exchange;
    http_add_header(x, "x-request-id", c->id);
    if (is_anthropic(c)) http_add_header(x, "request-id", c->id);
    if (c->ignored.n && !c->ignored.failed) http_add_header(x, "x-kakeya-ignored", c->ignored.data);
    const char *smaller = call_media_smaller(c->media);
    if (smaller) http_add_header(x, "x-kakeya-images-resized", smaller);
    char number[32];
    if (c->retry_after) {
        snprintf(number, sizeof number, "%d", c->retry_after);
        http_add_header(x, "retry-after", number);
    }
    if (c->allow) http_add_header(x, "allow", c->allow);
    if (c->never_retry) http_add_header(x, "x-should-retry", "false");
    if (!c->streaming) {
        snprintf(number, sizeof number, "%.0f", (clock_seconds() - http_received(x)) * 1000);
        http_add_header(x, "openai-processing-ms", number);
    }
    const char *origin = auth_origin(c->server->auth, http_head_find(http_request(x), "origin"));
    if (!origin) return;
    http_add_header(x, "access-control-allow-origin", origin);
    if (strcmp(origin, "*") != 0) http_add_header(x, "vary", "Origin");
    http_add_header(x, "access-control-expose-headers",
                    "x-request-id, x-kakeya-ignored, x-kakeya-images-resized, retry-after");
}

static void send_reply(void *user) {
    call *c = user;
    if (c->reply.failed) {
        text_free(&c->reply);
        c->status = 500;
        text_add(&c->reply, "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,"
                            "\"code\":\"internal\"}}");
    }
    add_headers(c);
    write_log(c, c->status);
    http_reply(c->exchange, c->status, c->content_type, c->reply.data, c->reply.n);
    free_call(c);
}

void call_reply(call *c, int status, const char *content_type, text_buffer *body) {
    c->status = status;
    c->content_type = content_type;
    if (body) {
        c->reply = *body;
        *body = (text_buffer){0};
    }
    http_post(c->server->http, &c->task, send_reply, c);
}

void call_reply_json(call *c, text_buffer *body) { call_reply(c, 200, "application/json", body); }

void call_fail(call *c, const api_error *error) {
    text_buffer body = {0};
    int status = error->status;
    if (is_anthropic(c)) {
        status = api_error_anthropic_status(error);
        api_error_anthropic(error, c->id, &body);
    } else {
        api_error_openai(error, &body);
    }
    c->retry_after = error->retry_after;
    c->never_retry = error->final;
    call_reply(c, status, "application/json", &body);
}

void call_stream_begin(call *c) {
    c->streaming = true;
    http_add_header(c->exchange, "x-accel-buffering", "no");
    add_headers(c);
    http_stream_begin(c->exchange, 200, "text/event-stream; charset=utf-8");
}

void call_stream_write(call *c, text_buffer *out) {
    if (out->failed) {
        http_stream_break(c->exchange);
    } else if (out->n) {
        http_stream_write(c->exchange, out->data, out->n);
    }
    text_clear(out);
}

void call_stream_end(call *c) {
    write_log(c, 200);
    http_stream_end(c->exchange);
    free_call(c);
}

/* ------------------------------------------------------------------------------------------------- leaving clients */

void call_cancel(call *c) {
    pthread_mutex_lock(&c->lock);
    if (c->cancel) c->cancel(c->cancel_user);
    c->cancel = NULL;
    pthread_mutex_unlock(&c->lock);
}

static void on_gone(void *user) {
    call *c = user;
    atomic_store(&c->gone, true);
    if (c->begun) {
        call_cancel(c);
        return;
    }
    http_reply(c->exchange, 0, NULL, NULL, 0); /* nobody hears it */
    free_call(c);
}

void call_on_cancel(call *c, void (*fn)(void *user), void *user) {
    pthread_mutex_lock(&c->lock);
    c->cancel = fn;
    c->cancel_user = user;
    if (fn && atomic_load(&c->gone)) {
        c->cancel = NULL;
        fn(user);
    }
    pthread_mutex_unlock(&c->lock);
}

bool call_query(const call *c, const char *name, char *out, size_t room) {
    const size_t length = strlen(name);
    for (const char *at = http_request(c->exchange)->query; *at; at += strcspn(at, "&"), at += *at == '&') {
        const size_t bytes = strcspn(at, "&"), skip = length + 1;
        if (bytes < skip || strncmp(at, name, length) != 0 || at[length] != '=' || bytes - skip >= room) continue;
        memcpy(out, at + skip, bytes - skip);
        out[bytes - skip] = '\0';
        return true;
    }
    return false;
}

bool call_query_asks(const call *c, const char *name) {
    char value[16];
    return call_query(c, name, value, sizeof value) && value[0] && strcmp(value, "0") != 0 &&
           strcmp(value, "false") != 0;
}

bool call_hold(call *c, size_t bytes, api_error *error) {
    if (http_hold(c->exchange, bytes)) return true;
    if (!error->status) error->retry_after = 1;
    return api_fail(error, 503, "overloaded", NULL, "the bodies of all requests take too much memory");
}

bool call_body(call *c, api_error *error) {
    size_t bytes;
    const char *body = http_body(c->exchange, &bytes);
    return call_hold(c, body_tree_bytes(body, bytes), error) && body_parse(body, bytes, &c->body, error);
}

/* ----------------------------------------------------------------------------------------------------- the beginning
 */

static int method_bit(const char *method) {
    if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0) return CALL_GET;
    if (strcmp(method, "POST") == 0) return CALL_POST;
    return strcmp(method, "DELETE") == 0 ? CALL_DELETE : 0;
}

/* The route of a path, preferring one that has the method. */
static const route *find_route(call *c, char *path, int method, int *allowed) {
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/') path[--bytes] = '\0';
    const char *asked = without_version(path);
    const route *found = NULL;
    for (size_t i = 0; i < c->server->n_routes; i++) {
        const route *r = &c->server->routes[i];
        const char *its = without_version(r->path);
        size_t length = strlen(its);
        bool prefix = (r->flags & ROUTE_PREFIX) != 0;
        if (prefix ? strncmp(asked, its, length) != 0 || !asked[length] : strcmp(asked, its) != 0) continue;
        *allowed |= r->methods;
        if (found && (found->methods & method)) continue;
        found = r;
        c->place = i;
        c->rest = asked + length;
    }
    return found;
}

static bool is_json(const char *content_type) {
    if (!content_type || strncasecmp(content_type, "application/json", 16) != 0) return false;
    const char *rest = content_type + 16 + strspn(content_type + 16, " \t");
    if (!*rest) return true;
    if (*rest != ';') return false;
    const char *charset = strcasestr(rest, "charset=");
    if (!charset) return true;
    charset += 8 + (charset[8] == '"');
    return strncasecmp(charset, "utf-8", 5) == 0 || strncasecmp(charset, "utf8", 4) == 0;
}

static void add_methods(text_buffer *list, int methods) {
    if (methods & CALL_GET) text_add(list, "GET, HEAD, ");
    if (methods & CALL_POST) text_add(list, "POST, ");
    if (methods & CALL_DELETE) text_add(list, "DELETE, ");
    text_add(list, "OPTIONS");
}

static void reply_options(call *c) {
    const char *wanted = http_head_find(http_request(c->exchange), "access-control-request-headers");
    if (auth_origin(c->server->auth, http_head_find(http_request(c->exchange), "origin"))) {
        http_add_header(c->exchange, "access-control-allow-methods", "GET, POST, DELETE, OPTIONS");
        if (wanted) http_add_header(c->exchange, "access-control-allow-headers", wanted);
        http_add_header(c->exchange, "access-control-max-age", "600");
    }
    call_reply(c, 204, NULL, NULL);
}

/* Whether the one who asks may, and what is asked can be done at all. */
static bool admit(call *c, int method, int allowed, api_error *error) {
    const server_context *s = c->server;
    const route *found = c->route;
    const http_head *head = http_request(c->exchange);
    const char *host = http_head_find(head, "host");
    /* Where a page of somebody else could have a browser ask: it brings no key, but its own host's name. */
    if ((http_is_loopback(s->http) || !auth_needs_key(s->auth)) && !auth_host_allowed(s->auth, host))
        return api_fail(error, 403, "forbidden_host", NULL,
                        "Host %.64s is neither localhost nor an address (--allowed-host names others)", host);
    unsigned long long identity = 0;
    bool key =
        auth_allows(s->auth, http_head_find(head, "authorization"), http_head_find(head, "x-api-key"), &identity);
    if (!key && !(found && (found->flags & ROUTE_PUBLIC))) {
        http_add_header(c->exchange, "www-authenticate", "Bearer realm=\"kakeya\"");
        return api_fail(error, 401, "invalid_api_key", NULL, "there is no API key, or it is not one of this server's");
    }
    const char *peer = http_peer(c->exchange);
    c->client = identity ? identity : hash_fnv1a(HASH_FNV1A_START, peer, strlen(peer));
    if (!found) return api_fail(error, 404, "not_found", NULL, "there is no route %.128s", head->path);
    if (!(found->methods & method)) {
        text_buffer list = {0};
        add_methods(&list, allowed);
        if (!list.failed) http_add_header(c->exchange, "allow", list.data);
        text_free(&list);
        return api_fail(error, 405, "method_not_allowed", NULL, "%s does not take %s", found->path, head->method);
    }
    const char *type = http_head_find(head, "content-type");
    if (method == CALL_POST && (found->flags & ROUTE_FORM) && !multipart_is_form(type))
        return api_fail(error, 415, "unsupported_media_type", NULL, "the content type must be multipart/form-data");
    if (method == CALL_POST && !(found->flags & ROUTE_FORM) && !is_json(type))
        return api_fail(error, 415, "unsupported_media_type", NULL, "the content type must be application/json");
    return true;
}

/* Who needs the model waits for it, but not for the first load and not at the end. */
static bool is_serving(const call *c, api_error *error) {
    const server_context *s = c->server;
    if (c->route->flags & ROUTE_EARLY) return true;
    int state = atomic_load(&s->state);
    if (state != SERVER_LOADING && state != SERVER_DRAINING) return true;
    error->retry_after = 2;
    return state == SERVER_LOADING
               ? api_fail(error, 503, "loading", NULL, "the model is loading: %u %%", atomic_load(&s->progress) / 10)
               : api_fail(error, 503, "draining", NULL, "the server is shutting down");
}

static bool hold_model(call *c, api_error *error) {
    lifecycle *model = c->server->lifecycle;
    call_on_cancel(c, lifecycle_nudge, model);
    bool held = lifecycle_hold(model, &c->gone, error);
    call_on_cancel(c, NULL, NULL);
    return held;
}

static void handle(void *user) {
    call *c = user;
    lifecycle *model = c->route->flags & ROUTE_MODEL ? c->server->lifecycle : NULL;
    api_error error = {0};
    if (model && !hold_model(c, &error)) {
        call_fail(c, &error);
        return;
    }
    if (model) lifecycle_hold_again(model); /* the call may end before this function does */
    c->has_model = model != NULL;
    c->route->handle(c);
    if (model) lifecycle_release(model);
}

static void begin(call *c) {
    c->begun = true;
    atomic_fetch_add(&c->server->calls, 1);
}

static void run(call *c) {
    api_error error = {0};
    c->work = (worker_task){.fn = handle, .argument = c};
    if (!is_serving(c, &error)) {
        call_fail(c, &error);
    } else if (!(c->route->flags & ROUTE_WORKER)) {
        c->route->handle(c);
    } else if (!workers_run(c->server->workers, &c->work)) {
        api_fail(&error, 503, "overloaded", NULL, "no thread is left for the request");
        error.retry_after = 1;
        call_fail(c, &error);
    }
}

bool call_head(server_context *server, http_exchange *exchange) {
    call *c = calloc(1, sizeof *c);
    if (!c) {
        http_reply(exchange, 503, NULL, NULL, 0);
        return false;
    }
    c->server = server;
    c->exchange = exchange;
    c->rest = "";
    pthread_mutex_init(&c->lock, NULL);
    name_call(c);
    http_set_user(exchange, c);
    http_on_gone(exchange, on_gone, c);
    const http_head *head = http_request(exchange);
    int method = method_bit(head->method), allowed = 0;
    api_error error = {0};
    if (strcmp(head->method, "OPTIONS") == 0) {
        begin(c);
        reply_options(c);
        return false;
    }
    c->route = find_route(c, head->path, method, &allowed);
    if (!admit(c, method, allowed, &error) || !is_serving(c, &error)) {
        begin(c);
        call_fail(c, &error);
        return false;
    }
    if (method == CALL_POST) return true;
    begin(c);
    run(c);
    return false;
}

void call_begin(http_exchange *exchange) {
    call *c = http_user(exchange);
    begin(c);
    run(c);
}

void call_refuse(http_exchange *exchange, int status, const char *why) {
    call *c = http_user(exchange);
    api_error error = {0};
    begin(c);
    error.retry_after = status == 503;
    api_fail(&error, status, api_code(status), NULL, "%s", why);
    call_fail(c, &error);
}
