/* GET /v1/models and /v1/models/{id}: one object that the clients of both APIs read. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "kakeya_study.h"
#include "serve/routes.h"

static void write_model(const server_context *s, const char *name, text_buffer *out) {
    char created[32];
    time_t seconds = (time_t)s->created;
    struct tm utc;
    gmtime_r(&seconds, &utc);
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    const kakeya_facts facts = s->model.facts;
    int limit = s->settings->max_tokens ? s->settings->max_tokens : s->context;
    text_add(out, "{\"id\":");
    text_json_string(out, name);
    text_format(out,
                ",\"object\":\"model\",\"type\":\"model\",\"created\":%lld,\"created_at\":\"%s\","
                "\"owned_by\":\"kakeya\",\"display_name\":",
                s->created, created);
    text_json_string(out, name);
    text_format(out,
                ",\"lifecycle\":\"active\",\"max_model_len\":%d,\"max_input_tokens\":%d,\"max_tokens\":%d,"
                "\"meta\":{\"n_vocab\":%d,\"n_ctx_train\":%d,\"n_embd\":%d,\"n_params\":%llu,\"size\":%zu},"
                "\"architecture\":{\"input_modalities\":[\"text\"%s%s],\"output_modalities\":[\"text\"]}}",
                s->context, s->context - 1, limit < s->context ? limit : s->context, facts.vocab, facts.max_context,
                facts.hidden, (unsigned long long)facts.parameters, s->model.weight_bytes,
                s->model.vision ? ",\"image\"" : "", s->model.sound ? ",\"audio\"" : "");
}

void models_call(call *c) {
    const serve_settings *settings = c->server->settings;
    text_buffer body = {0};
    text_add(&body, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < settings->n_names; i++) {
        if (i) text_add(&body, ",");
        write_model(c->server, settings->names[i], &body);
    }
    text_add(&body, "],\"has_more\":false,\"first_id\":");
    text_json_string(&body, settings->names[0]);
    text_add(&body, ",\"last_id\":");
    text_json_string(&body, settings->names[settings->n_names - 1]);
    text_add(&body, "}");
    call_reply_json(c, &body);
}

void model_call(call *c) {
    const char *name = server_model(c->server, c->rest);
    if (!name) {
        api_error error = {0};
        api_fail(&error, 404, "model_not_found", "model", "there is no model %.64s here", c->rest);
        call_fail(c, &error);
        return;
    }
    text_buffer body = {0};
    write_model(c->server, name, &body);
    call_reply_json(c, &body);
}
