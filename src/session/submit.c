/* Requests as callers make them: submitted and waited for, or a call that does both. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/sized.h"
#include "session/scheduler.h"

/* Copies of the arrays behind the options, in one piece of memory: not the engine's, of which there may be none before
 * the request's turn. */
static kakeya_status own_arrays(kakeya_request *r, kakeya_error *error) {
    kakeya_generate_options *g = &r->answer.options;
    size_t ids = r->prompts ? r->prompt.n * sizeof *r->prompt.tokens : 0;
    size_t biases = g->n_logit_bias * sizeof *g->logit_bias, pointers = g->n_stop_strings * sizeof *g->stop_strings;
    size_t text = 0;
    for (size_t i = 0; i < g->n_stop_strings; i++) text += strlen(g->stop_strings[i]) + 1;
    r->owned = malloc(pointers + biases + ids + text + 1);
    if (!r->owned) return error_set(error, KAKEYA_OUT_OF_MEMORY, "request of %zu tokens: out of memory", r->prompt.n);
    char *at = r->owned;
    const char **stops = (const char **)(void *)at;
    at += pointers;
    if (biases) g->logit_bias = memcpy(at, g->logit_bias, biases);
    at += biases;
    if (ids) r->prompt.tokens = memcpy(at, r->prompt.tokens, ids);
    at += ids;
    for (size_t i = 0; i < g->n_stop_strings; i++) {
        size_t bytes = strlen(g->stop_strings[i]) + 1;
        stops[i] = memcpy(at, g->stop_strings[i], bytes);
        at += bytes;
    }
    if (pointers) g->stop_strings = stops;
    return KAKEYA_OK;
}

static kakeya_status prepare(kakeya_request *r, const kakeya_request_options *o, kakeya_error *error) {
    kakeya_session *session = r->session;
    kakeya_status status = KAKEYA_OK;
    if (!o->tokens && o->n_tokens)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%zu tokens, but the array is NULL", o->n_tokens);
    r->prompts = o->tokens != NULL;
    r->answers = o->generate != NULL;
    r->on_done = o->on_done;
    r->done_user = o->done_user;
    if (o->prompt_copy_tokens && o->on_prompt_copy) {
        if (!o->tokens || o->prompt_copy_tokens > o->n_tokens)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "a copy of %zu tokens, but the prompt has %zu",
                             o->prompt_copy_tokens, o->tokens ? o->n_tokens : 0);
        r->copy_tokens = o->prompt_copy_tokens;
        r->on_copy = o->on_prompt_copy;
        r->copy_user = o->prompt_copy_user;
    }
    r->arrival = o->arrival;
    if (!r->prompts && !r->answers)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "the request asks for neither a prompt nor an answer");
    if (r->prompts) {
        r->prompt = (prompt_work){.tokens = o->tokens,
                                  .n = o->n_tokens,
                                  .progress = o->progress,
                                  .user = o->progress_user,
                                  .cancellable = true};
        status = session_check_tokens(session, o->tokens, o->n_tokens, error);
        if (status == KAKEYA_OK)
            status = prompt_media_create(session->engine, o->tokens, o->n_tokens, o->media, o->n_media, true,
                                         &r->prompt.media, error);
    }
    if (status == KAKEYA_OK && r->answers) status = answer_prepare(session, o->generate, &r->answer, error);
    return status == KAKEYA_OK ? own_arrays(r, error) : status;
}

static void free_request(kakeya_request *r) {
    prompt_media_free(&r->prompt.media);
    free(r->owned);
    free(r);
}

kakeya_status kakeya_session_submit(kakeya_session *session, const kakeya_request_options *options,
                                    kakeya_request **out, kakeya_error *error) {
    *out = NULL;
    kakeya_request_options o = {.size = sizeof o};
    kakeya_status status = sized_read("request options", options, &o, sizeof o, error);
    if (status != KAKEYA_OK) return status;
    kakeya_request *r = calloc(1, sizeof *r);
    if (!r) return error_set(error, KAKEYA_OUT_OF_MEMORY, "request: out of memory");
    r->session = session;
    status = prepare(r, &o, error);
    if (status == KAKEYA_OK) status = scheduler_submit(r, error);
    if (status != KAKEYA_OK) {
        free_request(r);
        return status;
    }
    *out = r;
    return KAKEYA_OK;
}

bool kakeya_request_is_done(kakeya_request *request) { return scheduler_is_done(request); }

uint64_t kakeya_request_arrival(const kakeya_request *request) { return request->arrival; }

void kakeya_request_cancel(kakeya_request *request) { kakeya_session_cancel(request->session); }

kakeya_status kakeya_request_wait(kakeya_request *request, kakeya_stats *stats, kakeya_error *error) {
    kakeya_status status = stats ? sized_check("stats", stats, error) : KAKEYA_OK;
    if (status == KAKEYA_OK) status = scheduler_wait(request, error);
    if (!scheduler_is_done(request)) return status; /* refused */
    if (stats) sized_write(stats, &request->answer.counted, sizeof request->answer.counted);
    status = session_return(request->session, status);
    free_request(request);
    return status;
}

void kakeya_session_cancel(kakeya_session *session) {
    atomic_store(&session->cancelled, true);
    atomic_fetch_add(&session->engine->cancels, 1);
    if (atomic_load(&session->engine->rests)) scheduler_nudge(session->engine);
}

void kakeya_session_pause(kakeya_session *session) { atomic_store(&session->paused, true); }

void kakeya_session_resume(kakeya_session *session) {
    if (atomic_exchange(&session->paused, false)) scheduler_nudge(session->engine);
}

kakeya_status kakeya_session_sync_media(kakeya_session *session, const int32_t *tokens, size_t n,
                                        const kakeya_media *media, size_t n_media, size_t *reused,
                                        kakeya_progress_fn progress, void *user, kakeya_error *error) {
    kakeya_request request = {
        .session = session,
        .prompts = true,
        .prompt = {.tokens = tokens, .n = n, .progress = progress, .user = user, .cancellable = true},
    };
    kakeya_status status = session_check_tokens(session, tokens, n, error);
    if (status == KAKEYA_OK)
        status = prompt_media_create(session->engine, tokens, n, media, n_media, false, &request.prompt.media, error);
    if (status == KAKEYA_OK) status = scheduler_run(&request, error);
    if (reused) *reused = request.prompt.reused;
    prompt_media_free(&request.prompt.media);
    return session_return(session, status);
}

kakeya_status kakeya_session_sync(kakeya_session *session, const int32_t *tokens, size_t n, size_t *reused,
                                  kakeya_progress_fn progress, void *user, kakeya_error *error) {
    return kakeya_session_sync_media(session, tokens, n, NULL, 0, reused, progress, user, error);
}

void kakeya_session_close(kakeya_session *session) {
    if (session) session_free(session);
}
