/* What the server says about itself: health. */
#include "serve/routes.h"

void liveness_call(call *c) {
    text_buffer body = {0};
    text_add(&body, "{\"status\":\"ok\"}");
    call_reply_json(c, &body);
}

void health_call(call *c) {
    server_context *s = c->server;
    text_buffer body = {0};
    int state = atomic_load(&s->state);
    if (state == SERVER_READY) {
        text_add(&body, "{\"status\":\"ok\",\"model\":");
        text_json_string(&body, s->settings->names[0]);
        text_add(&body, ",\"backend\":");
        text_json_string(&body, kakeya_engine_backend(s->engine));
        text_add(&body, "}");
        call_reply_json(c, &body);
        return;
    }
    bool loading = state == SERVER_LOADING;
    text_format(&body,
                "{\"status\":\"%s\",\"progress\":%.3f,\"error\":{\"code\":503,\"message\":\"%s\","
                "\"type\":\"unavailable_error\"}}",
                loading ? "loading" : "draining", loading ? atomic_load(&s->progress) / 1000.0 : 1.0,
                loading ? "Loading model" : "Shutting down");
    c->retry_after = 2;
    call_reply(c, 503, "application/json", &body);
}
