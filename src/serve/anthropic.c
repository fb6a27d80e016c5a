/* POST /v1/messages and /v1/messages/count_tokens: an answer as a message of Anthropic's API, whole or told in events.
 */
#include <stdlib.h>
#include <string.h>

#include "serve/anthropic_output.h"
#include "serve/anthropic_request.h"
#include "serve/openai_request.h"
#include "serve/routes.h"

typedef struct messages_job {
    call *call;
    anthropic_request request;
    anthropic_output output;
    char id[RANDOM_ID_BYTES];
    size_t prompt_tokens, max_tokens;
    const char *finish; /* "stop", "length", "tool_calls", "cache_threshold" */
    char *stop_text;    /* the stop sequence that ended it */
} messages_job;

static void free_job(messages_job *job) {
    anthropic_request_free(&job->request);
    anthropic_output_free(&job->output);
    free(job->stop_text);
    free(job);
}

/* ----------------------------------------------------------------------------------------------------------- message
 */

static void add_usage(const messages_job *job, const answer_usage *u, bool ended, text_buffer *out) {
    text_format(out,
                "{\"input_tokens\":%zu,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%zu,"
                "\"output_tokens\":%zu",
                job->prompt_tokens - u->cached_tokens, u->cached_tokens, ended ? u->completion_tokens : 0);
    if (ended) text_format(out, ",\"output_tokens_details\":{\"thinking_tokens\":%zu}", u->reasoning_tokens);
    text_add(out, "}");
}

static void add_stop(const messages_job *job, const answer_usage *u, text_buffer *out) {
    const char *reason = "end_turn";
    if (job->finish && strcmp(job->finish, "tool_calls") == 0) {
        reason = "tool_use";
    } else if (job->finish && strcmp(job->finish, "length") == 0) {
        reason = u->completion_tokens < job->max_tokens ? "model_context_window_exceeded" : "max_tokens";
    } else if (job->finish && strcmp(job->finish, "cache_threshold") == 0) {
        reason = job->finish;
    } else if (job->stop_text) {
        reason = "stop_sequence";
    }
    text_format(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    text_json_string(out, job->stop_text);
}

/* Up to the usage. content: JSON of its blocks. */
static void add_message(const messages_job *job, const text_buffer *content, const answer_usage *u, bool ended,
                        text_buffer *out) {
    text_format(out, "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", job->id);
    text_json_string(out, job->request.model);
    text_add(out, ",\"content\":[");
    text_bytes(out, content->data ? content->data : "", content->n);
    out->failed |= content->failed;
    text_add(out, "],");
    if (ended) {
        add_stop(job, u, out);
    } else {
        text_add(out, "\"stop_reason\":null,\"stop_sequence\":null");
    }
    text_add(out, ",\"usage\":");
    add_usage(job, u, ended, out);
    text_add(out, "}");
}

/* ------------------------------------------------------------------------------------------------------------ events
 */

static const char ping[] = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

static void flush(messages_job *job) { call_stream_write(job->call, &job->output.events); }

static void begin_stream(messages_job *job, const answer_event *e) {
    text_buffer *out = &job->output.events;
    call_stream_begin(job->call);
    text_add(out, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
    add_message(job, &(text_buffer){0}, e->usage, false, out);
    text_add(out, "}\n\n");
    text_add(out, ping);
}

static void end_stream(messages_job *job, const answer_event *e, const api_error *error) {
    text_buffer *out = &job->output.events;
    call *c = job->call;
    if (error) {
        text_add(out, "event: error\ndata: ");
        api_error_anthropic(error, c->id, out);
        text_add(out, "\n\n");
    } else {
        anthropic_output_end(&job->output);
        text_add(out, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
        add_stop(job, e->usage, out);
        text_add(out, "},\"usage\":");
        add_usage(job, e->usage, true, out);
        text_add(out, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    }
    flush(job);
    free_job(job);
    call_stream_end(c);
}

static void end_whole(messages_job *job, const answer_event *e, const api_error *error) {
    call *c = job->call;
    if (error) {
        free_job(job);
        call_fail(c, error);
        return;
    }
    text_buffer body = {0};
    anthropic_output_end(&job->output);
    add_message(job, &job->output.blocks, e->usage, true, &body);
    free_job(job);
    call_reply_json(c, &body);
}

/* Agents know by these words that they should shorten the conversation. */
static void say_too_long(const call *c, size_t tokens, api_error *error) {
    if (!error->code || strcmp(error->code, "context_length_exceeded") != 0) return;
    error->status = API_OK;
    error->n_prompt_tokens = tokens;
    error->n_ctx = (size_t)c->server->context;
    api_fail(error, 400, "context_length_exceeded", "messages", "prompt is too long: %zu tokens > %d maximum", tokens,
             c->server->context - 1);
}

/* The last event of the answer. */
static void end(messages_job *job, const answer_event *e) {
    bool failed = e->type == ANSWER_FAILED;
    api_error error = failed ? *e->error : (api_error){0};
    say_too_long(job->call, job->prompt_tokens, &error);
    if (job->call->streaming) {
        end_stream(job, e, failed ? &error : NULL);
    } else {
        end_whole(job, e, failed ? &error : NULL);
    }
}

static void on_event(void *user, const answer_event *e) {
    messages_job *job = user;
    switch (e->type) {
    case ANSWER_BEGIN:
        if (job->request.stream) begin_stream(job, e);
        break;
    case ANSWER_FINISH:
        job->finish = e->finish_reason;
        job->stop_text = e->stop_text ? strdup(e->stop_text) : NULL;
        job->output.events.failed |= e->stop_text && !job->stop_text;
        job->output.blocks.failed |= job->output.events.failed;
        break;
    case ANSWER_PING:
        text_add(&job->output.events, ping);
        break;
    case ANSWER_FLUSH:
        flush(job);
        break;
    case ANSWER_DONE:
    case ANSWER_FAILED:
        end(job, e);
        break;
    default:
        anthropic_output_event(&job->output, e);
        break;
    }
}

/* ------------------------------------------------------------------------------------------------------------- calls
 */

void messages_call(call *c) {
    api_error error = {0};
    messages_job *job = calloc(1, sizeof *job);
    if (!job) {
        api_out_of_memory(&error);
        call_fail(c, &error);
        return;
    }
    anthropic_request *r = &job->request;
    anthropic_request_init(r);
    if (!anthropic_request_read(c, false, r, &error)) {
        say_too_long(c, r->options.n_ids, &error);
        free_job(job);
        call_fail(c, &error);
        return;
    }
    job->call = c;
    job->prompt_tokens = r->options.n_ids;
    job->max_tokens = (size_t)r->options.max_tokens;
    random_id(job->id);
    job->output.seal = &c->server->seal;
    job->output.streams = r->stream;
    job->output.omit_thinking = r->omit_thinking;
    const answer_sink sink = {.event = on_event, .user = job, .streams = r->stream};
    answer_start(c, &r->options, &sink);
}

static void write_count(const answer_options *o, text_buffer *out) {
    text_format(out, "{\"input_tokens\":%zu}", o->n_ids);
}

static void write_prompt(const answer_options *o, text_buffer *out) { openai_rendered_prompt(out, o); }

/* What is to be told of the prompt alone. question: one that the context has no room for is refused. */
static void prompt_call(call *c, bool question, void (*write)(const answer_options *o, text_buffer *out)) {
    api_error error = {0};
    anthropic_request r;
    anthropic_request_init(&r);
    bool read = anthropic_request_read(c, true, &r, &error);
    if (read && question && !answer_has_room(c->server, &r.options, &error)) {
        say_too_long(c, r.options.n_ids, &error);
        read = false;
    }
    if (read) {
        text_buffer body = {0};
        write(&r.options, &body);
        call_reply_json(c, &body);
    } else {
        call_fail(c, &error);
    }
    anthropic_request_free(&r);
}

void messages_count_tokens_call(call *c) { prompt_call(c, false, write_count); }

void messages_render_call(call *c) { prompt_call(c, true, write_prompt); }
