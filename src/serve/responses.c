/* POST /v1/responses: an answer as a response object, whole or told in events; stored, so that later requests can
 * continue it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/openai_request.h"
#include "serve/responses_output.h"
#include "serve/responses_request.h"
#include "serve/routes.h"

typedef struct responses_job {
    call *call;
    responses_request request;
    responses_output output;
    response_entry *entry; /* NULL: nobody can find it */
    char id[RESPONSE_ID_BYTES];
    long long created;
    const char *finish; /* "stop", "length", "tool_calls", "cache_threshold"; NULL: it has not come to an end */
} responses_job;

static void free_job(responses_job *job) {
    responses_request_free(&job->request);
    responses_output_free(&job->output);
    free(job);
}

/* -------------------------------------------------------------------------------------------------------- the object
 */

static void add_usage(text_buffer *out, const answer_usage *u) {
    text_format(out, "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%zu,\"cache_write_tokens\":0",
                u->prompt_tokens, u->cached_tokens);
    if (u->image_tokens) text_format(out, ",\"image_tokens\":%zu", u->image_tokens);
    text_format(out,
                "},\"output_tokens\":%zu,\"output_tokens_details\":{\"reasoning_tokens\":%zu},\"total_tokens\":%zu}",
                u->completion_tokens, u->reasoning_tokens, u->prompt_tokens + u->completion_tokens);
}

/* Codes that clients of this API know. */
static const char *failure_code(const api_error *error) {
    if (error->status == 429) return "rate_limit_exceeded";
    return error->status >= 500 || !error->code ? "server_error" : error->code;
}

static bool is_declined(const responses_job *job) { return job->finish && strcmp(job->finish, "cache_threshold") == 0; }

/* usage: NULL while it runs. error: of a failed one. */
static void add_object(responses_job *job, const char *status, const answer_usage *usage, const api_error *error,
                       text_buffer *out) {
    const responses_output *o = &job->output;
    text_format(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"completed_at\":", job->id,
                job->created);
    if (strcmp(status, "completed") == 0) {
        text_format(out, "%lld", (long long)time(NULL));
    } else {
        text_add(out, "null");
    }
    text_format(out, ",\"status\":\"%s\",\"error\":", status);
    if (error) {
        text_format(out, "{\"code\":\"%s\",\"message\":", failure_code(error));
        text_json_string(out, error->message);
        text_add(out, "}");
    } else {
        text_add(out, "null");
    }
    text_format(out, ",\"incomplete_details\":%s,\"output\":[",
                strcmp(status, "incomplete") != 0 ? "null"
                : is_declined(job)                ? "{\"reason\":\"cache_threshold\"}"
                                                  : "{\"reason\":\"max_output_tokens\"}");
    text_bytes(out, o->items.data ? o->items.data : "", o->items.n);
    out->failed |= o->items.failed;
    text_add(out, "],\"usage\":");
    if (usage) {
        add_usage(out, usage);
    } else {
        text_add(out, "null");
    }
    text_add(out, ",");
    text_bytes(out, job->request.echo.data, job->request.echo.n);
    text_add(out, "}");
}

static void response_event(responses_job *job, const char *type, const text_buffer *object) {
    if (!responses_event_begin(&job->output, type)) return;
    text_buffer *out = &job->output.events;
    text_add(out, ",\"response\":");
    text_bytes(out, object->data ? object->data : "", object->n);
    out->failed |= object->failed;
    responses_event_end(&job->output);
}

/* --------------------------------------------------------------------------------------------------- from begin to end
 */

static void cancel(void *user) { call_cancel(user); }

static void begin(responses_job *job) {
    text_buffer object = {0};
    add_object(job, "in_progress", NULL, NULL, &object);
    if (job->request.stream) {
        call_stream_begin(job->call);
        response_event(job, "response.created", &object);
        response_event(job, "response.in_progress", &object);
    }
    response_texts texts = {.object = object, .input = job->request.input};
    job->request.input = (text_buffer){0};
    memcpy(texts.previous, job->request.previous, sizeof texts.previous);
    job->entry = response_store_begin(job->call->server->responses, job->id, responses_owner(job->call),
                                      job->request.store, &texts, cancel, job->call);
}

static void flush(responses_job *job) { call_stream_write(job->call, &job->output.events); }

static void remember(responses_job *job, const text_buffer *object) {
    if (!job->entry) return;
    const text_buffer *items = &job->output.items;
    text_buffer copy = {0}, output = {0};
    text_bytes(&copy, object->data ? object->data : "", object->n);
    copy.failed |= object->failed;
    text_add(&output, "[");
    text_bytes(&output, items->data ? items->data : "", items->n);
    text_add(&output, "]");
    response_store_end(job->call->server->responses, job->entry, &copy, &output);
    job->entry = NULL;
}

/* The last event of the answer. */
static void end(responses_job *job, const answer_event *e) {
    call *c = job->call;
    bool failed = e->type == ANSWER_FAILED, streaming = c->streaming;
    bool cancelled = failed && e->error->code && strcmp(e->error->code, "cancelled") == 0;
    bool cut = is_declined(job) || (job->finish && strcmp(job->finish, "length") == 0);
    const char *status = cancelled ? "cancelled" : failed ? "failed" : cut ? "incomplete" : "completed";
    api_error error = failed ? *e->error : (api_error){0};
    text_buffer object = {0};
    responses_output_close(&job->output, !failed && !cut);
    add_object(job, status, e->usage, failed && !cancelled ? &error : NULL, &object);
    remember(job, &object);
    if (streaming) {
        response_event(job,
                       failed && !cancelled ? "response.failed"
                       : cancelled || cut   ? "response.incomplete"
                                            : "response.completed",
                       &object);
        flush(job);
        text_free(&object);
        free_job(job);
        call_stream_end(c);
        return;
    }
    free_job(job);
    if (failed && !cancelled) {
        text_free(&object);
        call_fail(c, &error);
    } else {
        call_reply_json(c, &object);
    }
}

static void on_event(void *user, const answer_event *e) {
    responses_job *job = user;
    switch (e->type) {
    case ANSWER_BEGIN:
        begin(job);
        break;
    case ANSWER_FINISH:
        job->finish = e->finish_reason;
        break;
    case ANSWER_PING:
        if (e->prompt_total) {
            text_format(&job->output.events, ": prompt %zu/%zu\n\n", e->prompt_done, e->prompt_total);
        } else {
            text_add(&job->output.events, ": ping\n\n");
        }
        break;
    case ANSWER_FLUSH:
        flush(job);
        break;
    case ANSWER_DONE:
    case ANSWER_FAILED:
        end(job, e);
        break;
    default:
        responses_output_event(&job->output, e);
        break;
    }
}

void responses_call(call *c) {
    api_error error = {0};
    responses_job *job = calloc(1, sizeof *job);
    if (!job) {
        api_out_of_memory(&error);
        call_fail(c, &error);
        return;
    }
    responses_request *r = &job->request;
    responses_request_init(r);
    if (!responses_request_read(c, false, r, &error)) {
        free_job(job);
        call_fail(c, &error);
        return;
    }
    char random[RANDOM_ID_BYTES];
    random_id(random);
    snprintf(job->id, sizeof job->id, "resp_%s", random);
    job->call = c;
    job->created = (long long)time(NULL);
    job->output.tokenizer = kakeya_engine_tokenizer(c->server->engine);
    job->output.seal = r->seal ? &c->server->seal : NULL;
    job->output.streams = r->stream;
    job->output.summary = r->summary;
    job->output.tools = &r->tools;
    job->output.logprobs = r->logprobs;
    const answer_sink sink = {.event = on_event, .user = job, .streams = r->stream};
    answer_start(c, &r->options, &sink);
}

static void write_count(const answer_options *o, text_buffer *out) {
    text_format(out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}", o->n_ids);
}

static void write_prompt(const answer_options *o, text_buffer *out) { openai_rendered_prompt(out, o); }

/* What is to be told of the prompt alone. question: one that the context has no room for is refused. */
static void prompt_call(call *c, bool question, void (*write)(const answer_options *o, text_buffer *out)) {
    api_error error = {0};
    responses_request r;
    responses_request_init(&r);
    bool read = responses_request_read(c, true, &r, &error);
    if (read && question) read = answer_has_room(c->server, &r.options, &error);
    if (read) {
        text_buffer body = {0};
        write(&r.options, &body);
        call_reply_json(c, &body);
    } else {
        call_fail(c, &error);
    }
    responses_request_free(&r);
}

void responses_input_tokens_call(call *c) { prompt_call(c, false, write_count); }

void responses_render_call(call *c) { prompt_call(c, true, write_prompt); }
