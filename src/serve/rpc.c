#include "serve/rpc.h"

#include <stdio.h>

#include "base/error.h"
#include "serve/text.h"

#ifdef KAKEYA_HAVE_GRPC

#include "serve/grpc.h"

static bool allows(void *user, const char *authorization) {
    const server_context *s = user;
    unsigned long long identity;
    return auth_allows(s->auth, authorization, NULL, &identity);
}

static void write_log(const server_context *s, const grpc_finished *f) {
    text_buffer line = {0};
    if (s->settings->log_json) {
        text_add(&line, "{\"rpc\":");
        text_json_string(&line, f->method);
        text_add(&line, ",\"session\":");
        text_json_string(&line, f->session);
        if (f->label[0]) {
            text_add(&line, ",\"label\":");
            text_json_string(&line, f->label);
        }
        text_format(&line, ",\"code\":%d,\"ms\":%.1f,\"prompt_tokens\":%zu,\"generated_tokens\":%zu", f->code,
                    f->seconds * 1e3, f->prompt_tokens, f->generated_tokens);
        if (f->generated_tokens) text_format(&line, ",\"first_token_ms\":%.1f", f->first_token_seconds * 1e3);
        text_add(&line, "}\n");
    } else {
        text_add(&line, f->method);
        text_add(&line, " ");
        text_json_string(&line, f->session[0] ? f->session : f->label);
        text_format(&line, " %d %.1f ms", f->code, f->seconds * 1e3);
        if (f->prompt_tokens) text_format(&line, ", prompt %zu", f->prompt_tokens);
        if (f->generated_tokens)
            text_format(&line, ", generated %zu, first after %.1f ms", f->generated_tokens,
                        f->first_token_seconds * 1e3);
        text_add(&line, "\n");
    }
    if (!line.failed) fwrite(line.data, 1, line.n, stderr);
    text_free(&line);
}

static void wanted(void *user) {
    const server_context *s = user;
    s->model_wanted(s->lifecycle);
}

static void take_finished(void *user, const grpc_finished *finished) {
    server_context *s = user;
    if (finished->used_model) s->model_used(s->lifecycle);
    metrics_add(&s->metrics.prompt_tokens, finished->prompt_tokens);
    metrics_add(&s->metrics.generation_tokens, finished->generated_tokens);
    metrics_add(&s->metrics.forwards, finished->verifier_forwards);
    metrics_add(&s->metrics.draft_tokens, finished->drafted);
    metrics_add(&s->metrics.draft_accepted, finished->accepted);
    for (size_t i = 0; i < finished->n_positions && i < METRICS_POSITIONS; i++) {
        metrics_add(&s->metrics.drafted_at[i], finished->drafted_at[i]);
        metrics_add(&s->metrics.accepted_at[i], finished->accepted_at[i]);
    }
    static const finished_reason reasons[] = {[GRPC_ENDED_STOP] = FINISHED_STOP,
                                              [GRPC_ENDED_LENGTH] = FINISHED_LENGTH,
                                              [GRPC_ENDED_CANCELLED] = FINISHED_CANCELLED,
                                              [GRPC_ENDED_ERROR] = FINISHED_ERROR};
    if (finished->ended != GRPC_ENDED_NOT) metrics_add(&s->metrics.finished[reasons[finished->ended]], 1);
    if (finished->generated_tokens) metrics_seconds(&s->metrics.first_token, finished->first_token_seconds);
    write_log(s, finished);
}

kakeya_status rpc_open(server_context *s, kakeya_error *error) {
    const serve_settings *settings = s->settings;
    if (!settings->grpc) return KAKEYA_OK;
    grpc_service_options options;
    grpc_service_options_init(&options);
    options.address = settings->grpc;
    options.tls_certificate = settings->tls_certificate;
    options.tls_key = settings->tls_key;
    options.loopback_only = !settings->no_key && !auth_needs_key(s->auth);
    options.max_connections = settings->max_connections;
    options.idle_seconds = settings->keep_alive_seconds;
    options.session = settings->session;
    options.wake_seconds = settings->wake_wait_seconds;
    options.failed = &s->engine_failed;
    options.allows = allows;
    options.on_wanted = wanted;
    options.on_finished = take_finished;
    options.user = s;
    kakeya_error why = {0};
    kakeya_status status = grpc_service_start(&options, &s->grpc, &why);
    if (status == KAKEYA_OK) return KAKEYA_OK;
    if (!settings->grpc_by_default) return error_set(error, status, "%s", why.message);
    fprintf(stderr, "kakeya serve: without gRPC: %s (--grpc chooses another address, or off)\n", why.message);
    return KAKEYA_OK;
}

const char *rpc_address(const server_context *s) { return s->grpc ? grpc_service_address(s->grpc) : NULL; }

void rpc_serve(server_context *s) {
    if (s->grpc) grpc_service_serve(s->grpc, s->engine, s->store);
}

bool rpc_unload(server_context *s, bool failed) { return !s->grpc || grpc_service_unload(s->grpc, failed); }

void rpc_wake_failed(server_context *s, const char *why) {
    if (s->grpc) grpc_service_wake_failed(s->grpc, why);
}

void rpc_drain(server_context *s) {
    if (s->grpc) grpc_service_drain(s->grpc);
}

bool rpc_is_running(server_context *s) { return s->grpc && grpc_service_running(s->grpc) > 0; }

void rpc_close(server_context *s) {
    grpc_service_stop(s->grpc);
    s->grpc = NULL;
}

#else

kakeya_status rpc_open(server_context *s, kakeya_error *error) {
    if (!s->settings->grpc || s->settings->grpc_by_default) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED, "--grpc %s: this build has no gRPC (KAKEYA_GRPC)", s->settings->grpc);
}

const char *rpc_address(const server_context *s) {
    (void)s;
    return NULL;
}

void rpc_serve(server_context *s) { (void)s; }
bool rpc_unload(server_context *s, bool failed) {
    (void)s;
    (void)failed;
    return true;
}
void rpc_wake_failed(server_context *s, const char *why) {
    (void)s;
    (void)why;
}
void rpc_drain(server_context *s) { (void)s; }
bool rpc_is_running(server_context *s) {
    (void)s;
    return false;
}
void rpc_close(server_context *s) { (void)s; }

#endif
