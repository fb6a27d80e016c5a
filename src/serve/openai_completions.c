/* POST /v1/completions: text or ids in, text out; several prompts, echoes and scores. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/openai_grammar.h"
#include "serve/openai_request.h"
#include "serve/openai_score.h"
#include "serve/routes.h"

enum { MAX_PROMPTS = 2048, MAX_LOGPROBS = KAKEYA_MAX_TOP_LOG_PROBABILITIES, DEFAULT_TOKENS = 16 };

/* The four lists of the logprobs object, as they grow. */
typedef struct score_lists {
    text_buffer tokens, values, top, offsets;
    size_t n, offset; /* characters so far */
} score_lists;

typedef struct completion {
    text_buffer text;
    score_lists scores;
    text_buffer tokens; /* with token_ids: those that no chunk has told yet */
    const char *finish;
    char *stop_text;
    int32_t stop_token;
    bool began; /* a chunk of it has been sent */
} completion;

typedef struct completions_job {
    call *call;
    const char *model;
    char id[RANDOM_ID_BYTES], fingerprint[96];
    long long created;
    bool stream, include_usage, echo, token_ids;
    bool only_prompt; /* max_tokens is 0 */
    int logprobs;     /* < 0: none */
    size_t n_prompts, choices;
    size_t prompt;      /* whose answer's events come now; network thread */
    answer_usage usage; /* of all prompts so far */
    text_buffer out;
    completion *completions; /* n_prompts * choices */
    text_buffer *prompt_ids; /* with token_ids: of each prompt; NULL: none */
} completions_job;

static const kakeya_tokenizer *tokenizer_of(const completions_job *job) {
    return kakeya_engine_tokenizer(job->call->server->engine);
}

static void free_job(completions_job *job) {
    for (size_t i = 0; i < job->n_prompts * job->choices; i++) {
        completion *c = &job->completions[i];
        text_free(&c->text);
        text_free(&c->scores.tokens);
        text_free(&c->scores.values);
        text_free(&c->scores.top);
        text_free(&c->scores.offsets);
        text_free(&c->tokens);
        free(c->stop_text);
    }
    for (size_t i = 0; job->prompt_ids && i < job->n_prompts; i++) text_free(&job->prompt_ids[i]);
    free(job->prompt_ids);
    free(job->completions);
    text_free(&job->out);
    free(job);
}

/* ---------------------------------------------------------------------------------------------------------------- JSON
 */

static size_t characters(const char *bytes, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)bytes[i] & 0xC0) != 0x80;
    return count;
}

/* One token into the lists. value NaN: nothing predicts it. */
static void add_score(completions_job *job, score_lists *s, const answer_logprob *entry) {
    const kakeya_tokenizer *t = tokenizer_of(job);
    text_buffer bytes = {0};
    const char *comma = s->n++ ? "," : "";
    openai_token_name(&bytes, t, entry->token);
    text_add(&s->tokens, comma);
    text_json(&s->tokens, bytes.data ? bytes.data : "", bytes.n);
    text_add(&s->values, comma);
    text_json_number(&s->values, entry->value);
    text_format(&s->offsets, "%s%zu", comma, s->offset);
    if (t) s->offset += characters(bytes.data, bytes.n);
    s->tokens.failed |= bytes.failed;
    text_add(&s->top, comma);
    text_add(&s->top, isnan(entry->value) ? "null" : "{");
    for (size_t k = 0; k < entry->n_top && !isnan(entry->value); k++) {
        text_clear(&bytes);
        openai_token_name(&bytes, t, entry->top[k].token);
        if (k) text_add(&s->top, ",");
        text_json(&s->top, bytes.data ? bytes.data : "", bytes.n);
        text_add(&s->top, ":");
        text_json_number(&s->top, entry->top[k].log_probability);
        s->top.failed |= bytes.failed;
    }
    if (!isnan(entry->value)) text_add(&s->top, "}");
    text_free(&bytes);
}

static const char *list(const text_buffer *b) { return b->data ? b->data : ""; }

static void write_logprobs(const completions_job *job, const score_lists *s, text_buffer *out) {
    if (job->logprobs < 0) {
        text_add(out, "null");
        return;
    }
    text_format(out, "{\"tokens\":[%s],\"token_logprobs\":[%s],\"top_logprobs\":[%s],\"text_offset\":[%s]}",
                list(&s->tokens), list(&s->values), list(&s->top), list(&s->offsets));
    out->failed |= s->tokens.failed || s->values.failed || s->top.failed || s->offsets.failed;
}

static void write_head(completions_job *job) {
    text_format(&job->out, "{\"id\":\"cmpl-%s\",\"object\":\"text_completion\",\"created\":%lld,\"model\":", job->id,
                job->created);
    text_json_string(&job->out, job->model);
    text_format(&job->out, ",\"system_fingerprint\":\"%s\",\"choices\":[", job->fingerprint);
}

/* The prompt's ids stand in the first piece of a choice, its own in every one. */
static void write_ids(completions_job *job, size_t index) {
    completion *c = &job->completions[index];
    text_buffer *out = &job->out;
    const text_buffer *prompt = &job->prompt_ids[index / job->choices];
    if (!c->began) text_format(out, ",\"prompt_token_ids\":[%s]", list(prompt));
    text_format(out, ",\"token_ids\":[%s]", list(&c->tokens));
    out->failed |= prompt->failed || c->tokens.failed;
    text_clear(&c->tokens);
    c->began = true;
}

static void write_choice(completions_job *job, size_t index, const char *text, size_t bytes, const score_lists *scores,
                         const char *finish, const char *stop_text, int32_t stop_token) {
    text_buffer *out = &job->out;
    text_format(out, "{\"index\":%zu,\"text\":", index);
    text_json(out, text, bytes);
    if (job->prompt_ids) write_ids(job, index);
    text_add(out, ",\"logprobs\":");
    write_logprobs(job, scores, out);
    text_add(out, ",\"finish_reason\":");
    text_json_string(out, finish);
    text_add(out, ",\"stop_reason\":");
    if (stop_token >= 0) {
        text_format(out, "%d}", stop_token);
    } else {
        text_json_string(out, stop_text);
        text_add(out, "}");
    }
}

static void clear_scores(score_lists *s) {
    text_clear(&s->tokens);
    text_clear(&s->values);
    text_clear(&s->top);
    text_clear(&s->offsets);
    s->n = 0;
}

/* -------------------------------------------------------------------------------------------------------------- events
 */

static void flush(completions_job *job) { call_stream_write(job->call, &job->out); }

static void chunk(completions_job *job, size_t index, completion *c, const answer_event *e) {
    bool last = e->type == ANSWER_FINISH;
    text_add(&job->out, "data: ");
    write_head(job);
    write_choice(job, index, e->text, last ? 0 : e->text_bytes, &c->scores, last ? e->finish_reason : NULL,
                 last ? e->stop_text : NULL, last ? e->stop_token : -1);
    clear_scores(&c->scores);
    text_add(&job->out, "]");
    if (last) {
        text_add(&job->out, ",");
        openai_timings(&job->out, e->usage);
    }
    text_add(&job->out, job->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void add_usage(answer_usage *sum, const answer_usage *u) {
    sum->prompt_tokens += u->prompt_tokens;
    sum->cached_tokens += u->cached_tokens;
    sum->completion_tokens += u->completion_tokens;
    sum->prefill_seconds += u->prefill_seconds;
    sum->decode_seconds += u->decode_seconds;
    sum->first_tokens += u->first_tokens;
    sum->drafted += u->drafted;
    sum->accepted += u->accepted;
    sum->forwards += u->forwards;
}

static void end_stream(completions_job *job, const api_error *error) {
    call *c = job->call;
    text_buffer *out = &job->out;
    if (error) {
        text_add(out, "data: ");
        api_error_openai(error, out);
        text_add(out, "\n\n");
    } else if (job->include_usage) {
        text_add(out, "data: ");
        write_head(job);
        text_add(out, "],");
        openai_usage(out, &job->usage);
        text_add(out, ",");
        openai_timings(out, &job->usage);
        text_add(out, "}\n\n");
    }
    text_add(out, "data: [DONE]\n\n");
    flush(job);
    free_job(job);
    call_stream_end(c);
}

static void end_whole(completions_job *job) {
    call *c = job->call;
    write_head(job);
    for (size_t i = 0; i < job->n_prompts * job->choices; i++) {
        completion *done = &job->completions[i];
        if (i) text_add(&job->out, ",");
        write_choice(job, i, list(&done->text), done->text.n, &done->scores, done->finish, done->stop_text,
                     done->stop_token);
        job->out.failed |= done->text.failed;
    }
    text_add(&job->out, "],");
    openai_usage(&job->out, &job->usage);
    text_add(&job->out, ",");
    openai_timings(&job->out, &job->usage);
    text_add(&job->out, "}");
    text_buffer body = job->out;
    job->out = (text_buffer){0};
    free_job(job);
    call_reply_json(c, &body);
}

static void on_event(void *user, const answer_event *e) {
    completions_job *job = user;
    size_t index = job->prompt * job->choices + e->choice;
    completion *c = e->choice < job->choices && job->prompt < job->n_prompts ? &job->completions[index] : NULL;
    switch (e->type) {
    case ANSWER_BEGIN:
        if (job->stream && !job->call->streaming) call_stream_begin(job->call);
        break;
    case ANSWER_TOKEN:
        if (c) text_format(&c->tokens, "%s%d", c->tokens.n ? "," : "", e->token);
        /* where there is no text, tokens are told alone */
        if (c && job->stream && !tokenizer_of(job))
            chunk(job, index, c, &(answer_event){.type = ANSWER_CONTENT, .text = ""});
        break;
    case ANSWER_CONTENT:
        for (size_t i = 0; c && i < e->n_logprobs; i++) add_score(job, &c->scores, &e->logprobs[i]);
        if (c && job->stream) {
            chunk(job, index, c, e);
        } else if (c) {
            text_bytes(&c->text, e->text, e->text_bytes);
        }
        break;
    case ANSWER_FINISH:
        if (c && job->stream) {
            chunk(job, index, c, e);
        } else if (c) {
            c->finish = e->finish_reason;
            c->stop_text = e->stop_text ? strdup(e->stop_text) : NULL;
            job->out.failed |= e->stop_text && !c->stop_text;
            c->stop_token = e->stop_token;
        }
        break;
    case ANSWER_PING:
        text_add(&job->out, ": ping\n\n");
        break;
    case ANSWER_FLUSH:
        flush(job);
        break;
    case ANSWER_DONE:
        add_usage(&job->usage, e->usage);
        if (++job->prompt < job->n_prompts) break;
        if (job->stream) {
            end_stream(job, NULL);
        } else {
            end_whole(job);
        }
        break;
    case ANSWER_FAILED: {
        call *its = job->call;
        const api_error error = *e->error;
        if (its->streaming) {
            end_stream(job, &error);
        } else {
            free_job(job);
            call_fail(its, &error);
        }
        break;
    }
    default:
        break;
    }
}

/* ------------------------------------------------------------------------------------------------------------- prompts
 */

typedef struct prompts {
    size_t n;
    int32_t **ids; /* [room], each freed with kakeya_free or free: both are the C library's */
    size_t *n_ids; /* [room] */
} prompts;

static bool open_prompts(prompts *p, int room, api_error *error) {
    p->ids = calloc((size_t)room, sizeof *p->ids);
    p->n_ids = calloc((size_t)room, sizeof *p->n_ids);
    return (p->ids && p->n_ids) || api_out_of_memory(error);
}

static void free_prompts(prompts *p) {
    for (size_t i = 0; i < p->n; i++) kakeya_free(p->ids[i]);
    free((void *)p->ids);
    free(p->n_ids);
}

static bool add_text(call *c, prompts *p, const char *text, int how, api_error *error) {
    kakeya_error why = {0};
    kakeya_status status =
        openai_tokenize(c, text, how, answer_most_tokens(c->server), &p->ids[p->n], &p->n_ids[p->n], &why);
    if (status == KAKEYA_CONTEXT_FULL) return answer_is_too_long(c->server, p->n_ids[p->n], "prompt", error);
    if (status != KAKEYA_OK) return api_fail_library(error, "invalid_prompt", "prompt", &why);
    p->n++;
    return true;
}

static bool add_ids(call *c, prompts *p, const cJSON *array, api_error *error) {
    int vocab = kakeya_engine_vocab_size(c->server->engine);
    size_t n = (size_t)cJSON_GetArraySize(array), i = 0;
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids) return api_out_of_memory(error);
    p->ids[p->n] = ids;
    p->n_ids[p->n++] = n;
    const cJSON *item;
    cJSON_ArrayForEach(item, array) {
        double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (!(value >= 0 && value < vocab && value == floor(value)))
            return api_fail(error, 400, "invalid_value", "prompt", "prompt: element %zu is not a token id below %d", i,
                            vocab);
        ids[i++] = (int32_t)value;
    }
    return true;
}

static bool read_prompts(call *c, fields *f, prompts *p) {
    static const char expected[] = "a string, a list of strings, a list of ids, or a list of lists of ids";
    const cJSON *prompt = fields_get(f, "prompt"), *item;
    bool special = fields_bool(f, "parse_special", true);
    int how = special ? KAKEYA_TEXT_PROMPT : KAKEYA_TEXT_ADD_SPECIAL;
    if (!prompt) return api_fail(f->error, 400, "missing_required_parameter", "prompt", "prompt is missing");
    int n = cJSON_GetArraySize(prompt);
    bool many = n > 0 && n <= MAX_PROMPTS && !cJSON_IsNumber(prompt->child);
    if (!open_prompts(p, many ? n : 1, f->error)) return false;
    if (cJSON_IsString(prompt)) return add_text(c, p, prompt->valuestring, how, f->error);
    if (!cJSON_IsArray(prompt) || n == 0) return fields_wrong_type(f, "prompt", prompt, expected);
    if (cJSON_IsNumber(prompt->child)) return add_ids(c, p, prompt, f->error);
    if (n > MAX_PROMPTS)
        return api_fail(f->error, 400, "invalid_value", "prompt", "prompt: %d prompts, but %d are the most", n,
                        MAX_PROMPTS);
    cJSON_ArrayForEach(item, prompt) {
        if (cJSON_IsString(item)) {
            if (!add_text(c, p, item->valuestring, how, f->error)) return false;
        } else if (!cJSON_IsArray(item)) {
            return fields_wrong_type(f, "prompt", prompt, expected);
        } else if (!add_ids(c, p, item, f->error)) {
            return false;
        }
    }
    return true;
}

/* The prompt's own text and scores go in front of its answers. */
static bool echo_prompt(completions_job *job, size_t prompt, const int32_t *ids, size_t n, api_error *error) {
    const kakeya_tokenizer *t = tokenizer_of(job);
    kakeya_error why = {0};
    char *text = NULL;
    bool bos = n > 0 && ids[0] == kakeya_tokenizer_find(t, "<bos>");
    size_t bytes = 0;
    if (t && kakeya_detokenize(t, ids + bos, n - bos, true, &text, &bytes, &why) != KAKEYA_OK)
        return api_fail_library(error, NULL, "prompt", &why);
    answer_logprob *scores = NULL;
    bool good = job->logprobs < 0 || openai_score(job->call->server, ids, n, job->logprobs, &scores, error);
    for (size_t i = 0; i < job->choices && good; i++) {
        completion *c = &job->completions[prompt * job->choices + i];
        text_bytes(&c->text, text, bytes);
        for (size_t k = bos; scores && k < n; k++) add_score(job, &c->scores, &scores[k]);
    }
    free(scores);
    kakeya_free(text);
    return good;
}

/* ------------------------------------------------------------------------------------------------------------- request
 */

static bool read_request(call *c, completions_job *job, answer_options *o, prompts *p, api_error *error) {
    static const char *const limits[] = {"max_tokens", NULL};
    static const char *const accepted[] = {"user", "session_id", "metadata", "store", "service_tier", NULL};
    static const char *const refused[] = {"suffix", "prompt_logprobs", "truncate_prompt_tokens", NULL};
    answer_form form = {.calls = KAKEYA_CALLS_FREE};
    if (!call_body(c, error)) return false;
    fields f, inner;
    fields_begin(&f, c->body, "", error);
    job->model = openai_read_model(c, &f);
    job->stream = fields_bool(&f, "stream", false);
    fields_begin(&inner, fields_object(&f, "stream_options"), "stream_options.", error);
    job->include_usage = job->stream && fields_bool(&inner, "include_usage", false);
    openai_read_sampling(c, &f, o);
    job->logprobs = (int)fields_integer(&f, "logprobs", 0, MAX_LOGPROBS, -1);
    o->logprobs = job->logprobs >= 0;
    o->top_logprobs = job->logprobs > 0 ? job->logprobs : 0;
    o->raw = true;
    job->echo = fields_bool(&f, "echo", false);
    o->score_stop = job->echo && o->logprobs; /* who scores texts counts the tokens behind them */
    o->max_tokens = openai_read_max_tokens(&f, limits, 0, DEFAULT_TOKENS);
    const cJSON *limit = fields_get(&f, "max_tokens");
    if (cJSON_IsNumber(limit) && limit->valuedouble == -1) o->max_tokens = c->server->settings->max_tokens;
    if (fields_integer(&f, "best_of", 1, ANSWER_MAX_CHOICES, (int64_t)o->choices) > (int64_t)o->choices)
        api_fail(error, 400, "unsupported_parameter", "best_of", "best_of is not supported here");
    if (fields_bool(&f, "use_beam_search", false))
        api_fail(error, 400, "unsupported_parameter", "use_beam_search", "use_beam_search is not supported here");
    job->only_prompt = cJSON_IsNumber(limit) && limit->valuedouble == 0;
    if (job->only_prompt && job->stream)
        api_fail(error, 400, "unsupported_parameter", "max_tokens",
                 "max_tokens: 0 is not supported together with stream");
    if (job->echo && job->stream)
        api_fail(error, 400, "unsupported_parameter", "echo", "echo is not supported together with stream");
    job->token_ids = o->token_ids;
    openai_read_format(&f, &form);
    openai_check_metadata(&f);
    openai_accept_routers_fields(&f);
    fields_accept(&f, accepted);
    fields_refuse(&f, refused);
    read_prompts(c, &f, p);
    fields_end(&f, c->server->settings->strict, &c->ignored);
    bool generates = !job->only_prompt && openai_is_forced(&form);
    openai_compile_form(c, &form, false, generates ? o : NULL, f.error);
    o->param = "prompt";
    for (size_t i = 0; i < p->n && error->status == 0; i++) {
        const answer_options its = {.n_ids = p->n_ids[i], .param = o->param};
        if (p->n_ids[i] == 0) api_fail(error, 400, "invalid_value", "prompt", "prompt %zu has no tokens", i);
        if (!job->only_prompt) answer_has_room(c->server, &its, error);
    }
    return error->status == 0;
}

/* Every prompt in turn. False: the call has not been ended, and *error says why. */
static bool run(completions_job *job, const answer_options *options, prompts *p, api_error *error) {
    for (size_t i = 0; i < p->n; i++) {
        if (job->echo && !echo_prompt(job, i, p->ids[i], p->n_ids[i], error)) return false;
        if (!job->only_prompt) continue;
        job->usage.prompt_tokens += p->n_ids[i];
        for (size_t k = 0; k < job->choices; k++) job->completions[i * job->choices + k].finish = "length";
    }
    if (job->only_prompt) {
        end_whole(job);
        return true;
    }
    const answer_sink sink = {.event = on_event, .user = job, .streams = job->stream, .timings = job->stream};
    call *c = job->call;
    size_t n = p->n;
    kakeya_logit_bias **biases = calloc(n, sizeof *biases); /* every answer owns its own */
    bool copied = biases != NULL;
    for (size_t i = 0; options->bias && i < n && copied; i++) {
        biases[i] = malloc((options->n_bias + 1) * sizeof *biases[i]);
        copied = biases[i] != NULL;
        if (copied) memcpy(biases[i], options->bias, options->n_bias * sizeof *biases[i]);
    }
    size_t done = 0;
    for (bool good = copied; done < n && good; done++) {
        answer_options its = *options;
        its.bias = biases[done];
        its.grammar = grammar_cache_share(options->grammar);
        its.ids = p->ids[done];
        its.n_ids = p->n_ids[done];
        p->ids[done] = NULL;
        if (done + 1 < n) {
            good = answer_run(c, &its, &sink); /* after a failure, the call is gone */
        } else {
            answer_start(c, &its, &sink);
        }
    }
    for (; biases && done < n; done++) free(biases[done]);
    free((void *)biases);
    return copied || api_out_of_memory(error);
}

static void list_ids(const int32_t *ids, size_t n, text_buffer *out) {
    for (size_t i = 0; i < n; i++) text_format(out, "%s%d", i ? "," : "", ids[i]);
}

void completions_call(call *c) {
    api_error error = {0};
    prompts p = {0};
    answer_options options;
    answer_options_init(&options);
    completions_job *job = calloc(1, sizeof *job);
    bool read = job && read_request(c, job, &options, &p, &error);
    if (read) {
        job->call = c;
        job->n_prompts = p.n;
        job->choices = options.choices;
        job->created = (long long)time(NULL);
        random_id(job->id);
        openai_fingerprint(c->server, job->fingerprint);
        job->completions = calloc(p.n * options.choices, sizeof *job->completions);
        for (size_t i = 0; job->completions && i < p.n * options.choices; i++) job->completions[i].stop_token = -1;
        if (job->token_ids) job->prompt_ids = calloc(p.n, sizeof *job->prompt_ids);
        for (size_t i = 0; job->prompt_ids && i < p.n; i++) list_ids(p.ids[i], p.n_ids[i], &job->prompt_ids[i]);
    }
    bool ran = read && job->completions && (job->prompt_ids || !job->token_ids) && run(job, &options, &p, &error);
    if (!ran) {
        api_out_of_memory(&error);
        if (job && job->completions) {
            free_job(job);
        } else {
            free(job);
        }
        call_fail(c, &error);
    }
    free(options.bias);
    grammar_cache_give(options.grammar);
    free_prompts(&p);
}

void completions_render_call(call *c) {
    api_error error = {0};
    prompts p = {0};
    fields f;
    bool read = call_body(c, &error);
    if (read) {
        fields_begin(&f, c->body, "", &error);
        read = read_prompts(c, &f, &p);
    }
    for (size_t i = 0; i < p.n && read; i++) {
        const answer_options its = {.n_ids = p.n_ids[i], .param = "prompt"};
        read = answer_has_room(c->server, &its, &error);
    }
    if (read) {
        text_buffer body = {0};
        for (size_t i = 0; i < p.n; i++) {
            text_add(&body, i ? "," : "[");
            openai_rendered(&body, p.ids[i], p.n_ids[i]);
        }
        text_add(&body, "]");
        call_reply_json(c, &body);
    } else {
        call_fail(c, &error);
    }
    free_prompts(&p);
}
