/* POST /v1/chat/completions: the request as an answer, its events as JSON, whole or in chunks. */
#include "serve/openai_chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/custom_tools.h"
#include "serve/openai_request.h"
#include "serve/routes.h"

typedef struct made_call {
    char *id, *name;
    text_buffer arguments;
    bool custom;
} made_call;

typedef struct chat_choice {
    text_buffer content, reasoning, logprobs, tokens;
    made_call *calls;
    size_t n_calls;
    bool began;          /* a chunk with the role has been sent */
    bool custom;         /* streamed: the call that is open is one of a custom tool, */
    size_t custom_index; /* the one of this number, */
    text_buffer input;   /* and these are its arguments so far */
    const char *finish;
    char *stop_text;
    int32_t stop_token;
} chat_choice;

typedef struct chat_job {
    call *call;
    const char *model;
    char id[RANDOM_ID_BYTES];
    char fingerprint[96];
    long long created;
    bool stream, include_usage, logprobs, token_ids;
    bool timings, progress; /* in chunks */
    size_t n_choices;
    text_buffer out;  /* chunks that have not been sent */
    text_buffer head; /* with which every chunk begins */
    text_buffer prompt_ids;
    chat_choice choices[ANSWER_MAX_CHOICES];
} chat_job;

static void free_job(chat_job *job) {
    for (size_t i = 0; i < job->n_choices; i++) {
        chat_choice *c = &job->choices[i];
        for (size_t k = 0; k < c->n_calls; k++) {
            free(c->calls[k].id);
            free(c->calls[k].name);
            text_free(&c->calls[k].arguments);
        }
        free(c->calls);
        free(c->stop_text);
        text_free(&c->content);
        text_free(&c->reasoning);
        text_free(&c->logprobs);
        text_free(&c->tokens);
        text_free(&c->input);
    }
    text_free(&job->out);
    text_free(&job->head);
    text_free(&job->prompt_ids);
    free(job);
}

/* ---------------------------------------------------------------------------------------------------------------
 * chunks */

static void make_head(chat_job *job) {
    text_buffer *head = &job->head;
    text_format(head, "data: {\"id\":\"chatcmpl-%s\",\"object\":\"chat.completion.chunk\",\"created\":%lld,\"model\":",
                job->id, job->created);
    text_json_string(head, job->model);
    text_format(head, ",\"system_fingerprint\":\"%s\",\"choices\":[", job->fingerprint);
}

static void chunk_begin(chat_job *job) {
    text_bytes(&job->out, job->head.data, job->head.n);
    job->out.failed |= job->head.failed;
}

static void chunk_end(chat_job *job, const answer_event *e) {
    text_add(&job->out, job->include_usage ? "],\"usage\":null" : "]");
    if ((job->timings && e->usage) || e->type == ANSWER_FINISH) {
        text_add(&job->out, ",");
        openai_timings(&job->out, e->usage);
    }
    text_add(&job->out, "}\n\n");
}

static void choice_begin(chat_job *job, size_t choice) {
    chunk_begin(job);
    text_add(&job->out, "{\"index\":");
    text_unsigned(&job->out, choice);
    text_add(&job->out, ",\"delta\":{");
}

/* After the delta's members. */
static void choice_end(chat_job *job, const answer_event *e) {
    text_buffer *out = &job->out;
    text_add(out, "},\"logprobs\":");
    if (job->logprobs && e->n_logprobs) {
        text_add(out, "{\"content\":[");
        openai_chat_logprobs(out, kakeya_engine_tokenizer(job->call->server->engine), e->logprobs, e->n_logprobs);
        text_add(out, "],\"refusal\":null}");
    } else {
        text_add(out, "null");
    }
    text_add(out, ",\"finish_reason\":");
    text_json_string(out, e->type == ANSWER_FINISH ? e->finish_reason : NULL);
}

static void simple_chunk(chat_job *job, const answer_event *e, const char *member) {
    choice_begin(job, e->choice);
    text_add(&job->out, member);
    text_json(&job->out, e->text, e->text_bytes);
    choice_end(job, e);
    text_add(&job->out, "}");
    chunk_end(job, e);
}

static bool is_custom(const chat_job *job, const char *name) {
    return custom_tool_is(cJSON_GetObjectItemCaseSensitive(job->call->body, "tools"), name);
}

/* The text of a call of a custom tool, out of its arguments. */
static void custom_input(text_buffer *out, const text_buffer *arguments) {
    size_t bytes;
    char *input = custom_tool_input(arguments->data ? arguments->data : "", arguments->n, &bytes);
    if (input) text_json(out, input, bytes);
    out->failed |= !input || arguments->failed;
    free(input);
}

static void call_chunk(chat_job *job, const answer_event *e) {
    chat_choice *c = &job->choices[e->choice];
    text_buffer *out = &job->out;
    if (e->type == ANSWER_CALL_ARGUMENTS && c->custom) { /* its text is known once they are complete */
        text_bytes(&c->input, e->text, e->text_bytes);
        return;
    }
    choice_begin(job, e->choice);
    text_format(out, "\"tool_calls\":[{\"index\":%zu,", e->call);
    if (e->type == ANSWER_CALL_BEGIN) {
        c->custom = is_custom(job, e->name);
        c->custom_index = e->call;
        const char *type = c->custom ? "custom" : "function";
        text_add(out, "\"id\":");
        text_json_string(out, e->id);
        text_format(out, ",\"type\":\"%s\",\"%s\":{\"name\":", type, type);
        text_json_string(out, e->name);
        text_add(out, c->custom ? ",\"input\":\"\"}}]" : ",\"arguments\":\"\"}}]");
    } else {
        text_add(out, "\"function\":{\"arguments\":");
        text_json(out, e->text, e->text_bytes);
        text_add(out, "}}]");
    }
    choice_end(job, e);
    text_add(out, "}");
    chunk_end(job, e);
}

/* The call of a custom tool has ended, or the answer has. */
static void custom_chunk(chat_job *job, size_t choice) {
    const answer_event none = {.type = ANSWER_CALL_END};
    chat_choice *c = &job->choices[choice];
    if (!c->custom) return;
    choice_begin(job, choice);
    text_format(&job->out, "\"tool_calls\":[{\"index\":%zu,\"custom\":{\"input\":", c->custom_index);
    custom_input(&job->out, &c->input);
    text_add(&job->out, "}}]");
    choice_end(job, &none);
    text_add(&job->out, "}");
    chunk_end(job, &none);
    c->custom = false;
    text_clear(&c->input);
}

static void stop_reason(text_buffer *out, const char *stop_text, int32_t stop_token) {
    text_add(out, ",\"stop_reason\":");
    if (stop_token >= 0) {
        text_format(out, "%d", stop_token);
    } else {
        text_json_string(out, stop_text);
    }
}

static void finish_chunk(chat_job *job, const answer_event *e) {
    choice_begin(job, e->choice);
    if (!job->choices[e->choice].began) text_add(&job->out, "\"role\":\"assistant\",\"content\":\"\"");
    choice_end(job, e);
    stop_reason(&job->out, e->stop_text, e->stop_token);
    if (job->token_ids) {
        const text_buffer *tokens = &job->choices[e->choice].tokens;
        text_format(&job->out, ",\"token_ids\":[%s]", tokens->data ? tokens->data : "");
        job->out.failed |= tokens->failed;
    }
    text_add(&job->out, "}");
    chunk_end(job, e);
}

static void progress_chunk(chat_job *job, const answer_event *e) {
    chunk_begin(job);
    text_add(&job->out, job->include_usage ? "],\"usage\":null" : "]");
    text_format(&job->out, ",\"prompt_progress\":{\"total\":%zu,\"cache\":%zu,\"processed\":%zu,\"time_ms\":%.3f}}\n\n",
                e->prompt_total, e->usage->cached_tokens, e->prompt_done, e->usage->prefill_seconds * 1000);
}

static void begin_stream(chat_job *job, const answer_event *e) {
    call_stream_begin(job->call);
    /* of what ends at once, the first chunk is the last one, so that a proxy need not read on */
    for (size_t i = 0; i < job->n_choices && !e->finish_reason; i++) {
        const answer_event none = {.type = ANSWER_BEGIN};
        choice_begin(job, i);
        text_add(&job->out, "\"role\":\"assistant\",\"content\":\"\"");
        choice_end(job, &none);
        text_add(&job->out, "}");
        chunk_end(job, &none);
        job->choices[i].began = true;
    }
}

static void flush(chat_job *job) { call_stream_write(job->call, &job->out); }

static void end_stream(chat_job *job, const answer_event *e) {
    text_buffer *out = &job->out;
    if (e->type == ANSWER_FAILED) {
        text_add(out, "data: ");
        api_error_openai(e->error, out);
        text_add(out, "\n\n");
    } else if (job->include_usage) {
        chunk_begin(job);
        text_add(out, "],");
        openai_usage(out, e->usage);
        text_add(out, ",");
        openai_timings(out, e->usage);
        text_add(out, "}\n\n");
    }
    text_add(out, "data: [DONE]\n\n");
    flush(job);
    call *c = job->call;
    free_job(job);
    call_stream_end(c);
}

static void stream_event(chat_job *job, const answer_event *e) {
    switch (e->type) {
    case ANSWER_BEGIN:
        begin_stream(job, e);
        break;
    case ANSWER_CONTENT:
        simple_chunk(job, e, "\"content\":");
        break;
    case ANSWER_REASONING:
        simple_chunk(job, e, "\"reasoning_content\":");
        break;
    case ANSWER_CALL_BEGIN:
    case ANSWER_CALL_ARGUMENTS:
        call_chunk(job, e);
        break;
    case ANSWER_CALL_END:
        custom_chunk(job, e->choice);
        break;
    case ANSWER_FINISH:
        custom_chunk(job, e->choice);
        finish_chunk(job, e);
        break;
    case ANSWER_PROGRESS:
        progress_chunk(job, e);
        break;
    case ANSWER_PING:
        if (e->prompt_total) {
            text_format(&job->out, ": prompt %zu/%zu\n\n", e->prompt_done, e->prompt_total);
        } else {
            text_add(&job->out, ": ping\n\n");
        }
        break;
    case ANSWER_FLUSH:
        flush(job);
        break;
    default:
        break;
    }
}

/* --------------------------------------------------------------------------------------------------------------- whole
 */

static void add_call(chat_choice *c, const answer_event *e, bool custom, text_buffer *out) {
    made_call *grown = realloc(c->calls, (c->n_calls + 1) * sizeof *grown);
    if (!grown) {
        out->failed = true;
        return;
    }
    c->calls = grown;
    c->calls[c->n_calls] = (made_call){.id = strdup(e->id), .name = strdup(e->name), .custom = custom};
    out->failed |= !c->calls[c->n_calls].id || !c->calls[c->n_calls].name;
    c->n_calls++;
}

static void whole_event(chat_job *job, const answer_event *e) {
    if (e->choice >= job->n_choices) return;
    chat_choice *c = &job->choices[e->choice];
    switch (e->type) {
    case ANSWER_CONTENT:
        text_bytes(&c->content, e->text, e->text_bytes);
        if (e->n_logprobs) {
            if (c->logprobs.n) text_add(&c->logprobs, ",");
            openai_chat_logprobs(&c->logprobs, kakeya_engine_tokenizer(job->call->server->engine), e->logprobs,
                                 e->n_logprobs);
        }
        break;
    case ANSWER_REASONING:
        text_bytes(&c->reasoning, e->text, e->text_bytes);
        break;
    case ANSWER_CALL_BEGIN:
        add_call(c, e, is_custom(job, e->name), &job->out);
        break;
    case ANSWER_CALL_ARGUMENTS:
        if (e->call < c->n_calls) text_bytes(&c->calls[e->call].arguments, e->text, e->text_bytes);
        break;
    case ANSWER_FINISH:
        c->finish = e->finish_reason;
        c->stop_text = e->stop_text ? strdup(e->stop_text) : NULL;
        job->out.failed |= e->stop_text && !c->stop_text;
        c->stop_token = e->stop_token;
        break;
    default:
        break;
    }
}

static void whole_choice(chat_job *job, size_t i) {
    const chat_choice *c = &job->choices[i];
    text_buffer *out = &job->out;
    text_format(out, "%s{\"index\":%zu,\"message\":{\"role\":\"assistant\",\"content\":", i ? "," : "", i);
    if (c->content.n == 0 && c->n_calls) {
        text_add(out, "null");
    } else {
        text_json(out, c->content.data ? c->content.data : "", c->content.n);
    }
    text_add(out, ",\"refusal\":null");
    if (c->reasoning.n) {
        text_add(out, ",\"reasoning_content\":");
        text_json(out, c->reasoning.data, c->reasoning.n);
    }
    for (size_t k = 0; k < c->n_calls; k++) {
        const made_call *m = &c->calls[k];
        text_add(out, k ? ",{\"id\":" : ",\"tool_calls\":[{\"id\":");
        text_json_string(out, m->id);
        const char *type = m->custom ? "custom" : "function";
        text_format(out, ",\"type\":\"%s\",\"%s\":{\"name\":", type, type);
        text_json_string(out, m->name);
        text_add(out, m->custom ? ",\"input\":" : ",\"arguments\":");
        if (m->custom)
            custom_input(out, &m->arguments);
        else
            text_json(out, m->arguments.data ? m->arguments.data : "", m->arguments.n);
        text_add(out, "}}");
        out->failed |= m->arguments.failed;
    }
    if (c->n_calls) text_add(out, "]");
    text_add(out, "},\"logprobs\":");
    if (job->logprobs) {
        text_format(out, "{\"content\":[%s],\"refusal\":null}", c->logprobs.data ? c->logprobs.data : "");
    } else {
        text_add(out, "null");
    }
    text_add(out, ",\"finish_reason\":");
    text_json_string(out, c->finish);
    stop_reason(out, c->stop_text, c->stop_token);
    if (job->token_ids) text_format(out, ",\"token_ids\":[%s]", c->tokens.data ? c->tokens.data : "");
    text_add(out, "}");
    out->failed |= c->content.failed || c->reasoning.failed || c->logprobs.failed || c->tokens.failed;
}

static void end_whole(chat_job *job, const answer_event *e) {
    call *c = job->call;
    if (e->type == ANSWER_FAILED) {
        const api_error error = *e->error;
        free_job(job);
        call_fail(c, &error);
        return;
    }
    text_buffer *out = &job->out;
    text_format(out, "{\"id\":\"chatcmpl-%s\",\"object\":\"chat.completion\",\"created\":%lld,\"model\":", job->id,
                job->created);
    text_json_string(out, job->model);
    text_format(out, ",\"system_fingerprint\":\"%s\",\"choices\":[", job->fingerprint);
    for (size_t i = 0; i < job->n_choices; i++) whole_choice(job, i);
    text_add(out, "],");
    if (job->prompt_ids.n) text_format(out, "\"prompt_token_ids\":[%s],", job->prompt_ids.data);
    out->failed |= job->prompt_ids.failed;
    openai_usage(out, e->usage);
    text_add(out, ",");
    openai_timings(out, e->usage);
    text_add(out, "}");
    text_buffer body = *out;
    *out = (text_buffer){0};
    free_job(job);
    call_reply_json(c, &body);
}

static void on_event(void *user, const answer_event *e) {
    chat_job *job = user;
    if (e->type == ANSWER_TOKEN && e->choice < job->n_choices) {
        text_buffer *tokens = &job->choices[e->choice].tokens;
        text_format(tokens, "%s%d", tokens->n ? "," : "", e->token);
    } else if (e->type == ANSWER_DONE || e->type == ANSWER_FAILED) {
        if (job->call->streaming) {
            end_stream(job, e);
        } else {
            end_whole(job, e);
        }
    } else if (job->stream) {
        stream_event(job, e);
    } else {
        whole_event(job, e);
    }
}

/* ------------------------------------------------------------------------------------------------------------- request
 */

static void read_stream(fields *f, chat_job *job) {
    job->stream = fields_bool(f, "stream", false);
    fields options;
    fields_begin(&options, fields_object(f, "stream_options"), "stream_options.", f->error);
    job->include_usage = fields_bool(&options, "include_usage", false) && job->stream;
    job->timings = fields_bool(f, "timings_per_token", false) && job->stream;
    job->progress = fields_bool(f, "return_progress", false) && job->stream;
}

static void read_logprobs(fields *f, chat_job *job, answer_options *out) {
    job->logprobs = out->logprobs = fields_bool(f, "logprobs", false);
    out->top_logprobs = (int)fields_integer(f, "top_logprobs", 0, KAKEYA_MAX_TOP_LOG_PROBABILITIES, 0);
    if (fields_get(f, "top_logprobs") && !out->logprobs)
        api_fail(f->error, 400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs");
}

/* The forerunners of tools: none are offered, so none may be called for. */
static void read_functions(fields *f) {
    const cJSON *functions = fields_get(f, "functions"), *choice = fields_get(f, "function_call");
    const char *mode = cJSON_IsString(choice) ? choice->valuestring : "";
    if (functions && !(cJSON_IsArray(functions) && !functions->child))
        api_fail(f->error, 400, "unsupported_parameter", "functions", "functions is not supported here; use tools");
    if (choice && strcmp(mode, "none") != 0 && strcmp(mode, "auto") != 0)
        api_fail(f->error, 400, "unsupported_parameter", "function_call", "function_call is not supported here");
}

static void read_rest(fields *f) {
    static const char *const accepted[] = {
        "user",         "safety_identifier", "prompt_cache_key",       "session_id",           "metadata", "store",
        "service_tier", "verbosity",         "prompt_cache_retention", "prompt_cache_options", NULL};
    static const char *const refused[] = {"audio",           "web_search_options",     "moderation",
                                          "prompt_logprobs", "truncate_prompt_tokens", NULL};
    openai_check_metadata(f);
    openai_accept_routers_fields(f);
    fields_accept(f, accepted);
    fields_refuse(f, refused);
    read_functions(f);
    const cJSON *modalities = fields_array(f, "modalities"), *item;
    cJSON_ArrayForEach(item, modalities) {
        if (!cJSON_IsString(item) || strcmp(item->valuestring, "text") != 0)
            api_fail(f->error, 400, "unsupported_value", "modalities", "modalities: only text is supported");
    }
    static const char *const off[] = {"use_beam_search", "echo", NULL};
    for (const char *const *name = off; *name; name++)
        if (fields_bool(f, *name, false))
            api_fail(f->error, 400, "unsupported_parameter", *name, "%s is not supported here", *name);
    if (fields_integer(f, "best_of", 1, 1 << 20, 1) > 1)
        api_fail(f->error, 400, "unsupported_parameter", "best_of", "best_of is not supported here");
}

/* {"type":"content","content": a text, or a list of text parts}: tokens that answers may be drafted from. */
static void read_prediction(call *c, fields *f, answer_options *out) {
    const cJSON *object = fields_object(f, "prediction"), *part;
    fields inner;
    if (!object) return;
    fields_begin(&inner, object, "prediction.", f->error);
    const char *type = fields_string(&inner, "type", "content");
    const cJSON *content = fields_get(&inner, "content");
    const cJSON *list = cJSON_IsArray(content) ? content : NULL;
    text_buffer text = {0};
    bool good = cJSON_IsString(content) || list;
    if (strcmp(type, "content") != 0)
        api_fail(f->error, 400, "unsupported_value", "prediction.type", "prediction.type: %.64s is not content", type);
    if (cJSON_IsString(content)) text_add(&text, content->valuestring);
    cJSON_ArrayForEach(part, list) {
        const char *said = body_string(part, "text"), *kind = body_string(part, "type");
        good = good && said && kind && strcmp(kind, "text") == 0;
        if (good) text_add(&text, said);
    }
    if (!good)
        api_fail(f->error, 400, "invalid_type", "prediction.content",
                 "prediction.content is neither a text nor a list of text parts");
    kakeya_error why = {0};
    if (f->error->status == 0 && text.n &&
        openai_tokenize(c, text.data, KAKEYA_TEXT_LITERAL, 0, &out->prediction, &out->n_prediction, &why) != KAKEYA_OK)
        api_fail_library(f->error, "invalid_value", "prediction.content", &why);
    if (text.failed) api_out_of_memory(f->error);
    text_free(&text);
}

static bool read_request(call *c, chat_job *job, answer_options *options, api_error *error) {
    static const char *const limits[] = {"max_completion_tokens", "max_tokens", NULL};
    fields f;
    chat_shape shape = {0};
    if (!call_body(c, error)) return false;
    fields_begin(&f, c->body, "", error);
    job->model = openai_read_model(c, &f);
    read_stream(&f, job);
    openai_read_sampling(c, &f, options);
    read_logprobs(&f, job, options);
    options->max_tokens = openai_read_max_tokens(&f, limits, 1, c->server->settings->max_tokens);
    openai_read_chat(c, &f, &shape, options);
    read_prediction(c, &f, options);
    read_rest(&f);
    fields_end(&f, c->server->settings->strict, &c->ignored);
    shape.is_question = true;
    return error->status == 0 && openai_render_chat(c, &shape, options, error);
}

void chat_completions_call(call *c) {
    api_error error = {0};
    answer_options options;
    answer_options_init(&options);
    chat_job *job = calloc(1, sizeof *job);
    if (!job) api_out_of_memory(&error);
    if (!job || !read_request(c, job, &options, &error)) {
        answer_options_free(&options);
        free(job);
        call_fail(c, &error);
        return;
    }
    job->call = c;
    job->n_choices = options.choices;
    job->token_ids = options.token_ids;
    job->created = (long long)time(NULL);
    random_id(job->id);
    openai_fingerprint(c->server, job->fingerprint);
    if (job->stream) make_head(job);
    for (size_t i = 0; options.token_ids && i < options.n_ids; i++)
        text_format(&job->prompt_ids, "%s%d", i ? "," : "", options.ids[i]);
    const answer_sink sink = {
        .event = on_event, .user = job, .streams = job->stream, .progress = job->progress, .timings = job->stream};
    answer_start(c, &options, &sink);
}

static void write_count(const answer_options *o, text_buffer *out) {
    text_format(out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}", o->n_ids);
}

static void write_prompt(const answer_options *o, text_buffer *out) { openai_rendered_prompt(out, o); }

/* What is to be told of the prompt alone. question: one that the context has no room for is refused. */
static void prompt_call(call *c, bool question, void (*write)(const answer_options *o, text_buffer *out)) {
    api_error error = {0};
    answer_options options;
    answer_options_init(&options);
    fields f;
    chat_shape shape = {0};
    bool read = call_body(c, &error);
    if (read) {
        fields_begin(&f, c->body, "", &error);
        openai_read_chat(c, &f, &shape, NULL);
        shape.is_question = question;
        read = error.status == 0 && openai_render_chat(c, &shape, &options, &error);
    }
    if (read && question) read = answer_has_room(c->server, &options, &error);
    if (read) {
        text_buffer body = {0};
        write(&options, &body);
        call_reply_json(c, &body);
    } else {
        call_fail(c, &error);
    }
    answer_options_free(&options);
}

void chat_input_tokens_call(call *c) { prompt_call(c, false, write_count); }

void chat_render_call(call *c) { prompt_call(c, true, write_prompt); }
