/* The events of an answer on their way from the thread that computes to the network thread. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "serve/answer_private.h"

/* What may wait in one answer before it stalls: bytes of events, and bytes that its client has not taken; and what the
 * events of an answer that is not streamed may take before they are put together. */
enum { MOST_QUEUED = 1 << 20, MOST_UNSENT = 1 << 20, MOST_HELD = 1 << 16, RECORD_ALIGN = 16 };

static void drain(void *user);

static void post(answer *a) { http_post(a->server->http, &a->task, drain, a); }

/* Parts of an answer that is not streamed can wait until it is complete. */
static bool is_urgent(const answer *a, answer_event_type type) {
    if (a->sink.streams) return true;
    return type != ANSWER_CONTENT && type != ANSWER_REASONING && type != ANSWER_TOKEN && type != ANSWER_CALL_ARGUMENTS;
}

void answer_say(answer *a, event_record record, const char *text, const answer_logprob *logprobs) {
    static const char padding[RECORD_ALIGN] = {0};
    size_t logprob_bytes = record.n_logprobs * sizeof *logprobs;
    record.bytes = sizeof record + logprob_bytes + record.text_bytes;
    size_t pad = (RECORD_ALIGN - record.bytes % RECORD_ALIGN) % RECORD_ALIGN;
    record.bytes += pad;
    pthread_mutex_lock(&a->lock);
    text_buffer *in = &a->queue.in;
    bool wake = !a->posted && (is_urgent(a, record.type) || in->n > MOST_HELD);
    if (!atomic_load_explicit(&a->lost, memory_order_relaxed) && text_reserve(in, record.bytes)) {
        text_bytes(in, (const char *)&record, sizeof record);
        text_bytes(in, (const char *)logprobs, logprob_bytes);
        text_bytes(in, text, record.text_bytes);
        text_bytes(in, padding, pad);
        a->posted |= wake;
    } else { /* without one of them the others mean nothing */
        atomic_store(&a->lost, true);
        atomic_store(&a->cancelled, true);
        wake = false;
    }
    pthread_mutex_unlock(&a->lock);
    if (wake) post(a);
}

/* Needs no memory in the queue, so that every answer ends. */
void answer_say_last(answer *a) {
    pthread_mutex_lock(&a->lock);
    bool wake = !a->posted;
    a->posted = a->over = true;
    pthread_mutex_unlock(&a->lock);
    if (wake) post(a);
}

void answer_pause(answer_choice *c) {
    answer *a = c->answer;
    pthread_mutex_lock(&a->lock);
    if (atomic_load(&a->stalled) || a->queue.in.n > MOST_QUEUED) kakeya_session_pause(c->session);
    pthread_mutex_unlock(&a->lock);
}

/* ------------------------------------------------------------------------------------------------ network thread */

static void free_answer(answer *a) {
    answer_options_free(&a->options);
    text_free(&a->queue.in);
    text_free(&a->queue.out);
    for (size_t i = 0; i < a->n_choices; i++) free(a->choices[i].pending);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    pthread_mutex_destroy(&a->speaking);
    free(a);
}

static void unlink_answer(answer *a) {
    server_context *s = a->server;
    pthread_mutex_lock(&s->answers_lock);
    *a->link = a->next;
    if (a->next) a->next->link = a->link;
    pthread_mutex_unlock(&s->answers_lock);
}

/* Under the lock: who pauses meanwhile has seen that there is something to wait for. */
static void resume(answer *a) {
    for (size_t i = 0; i < a->n_choices; i++)
        if (a->choices[i].session) kakeya_session_resume(a->choices[i].session);
}

static void on_sent(void *user) {
    answer *a = user;
    pthread_mutex_lock(&a->lock);
    if (atomic_exchange(&a->stalled, false)) resume(a);
    pthread_mutex_unlock(&a->lock);
}

size_t answer_kv_bytes(const answer *a) {
    size_t bytes = 0;
    for (size_t i = 0; i < a->n_choices; i++) bytes += atomic_load(&a->choices[i].kv_bytes);
    return bytes;
}

/* What the answer has taken so far. What the computing thread writes at its end is not looked at. */
static answer_usage usage_so_far(answer *a) {
    double at = atomic_load(&a->first_token_at);
    answer_usage u = {.prompt_tokens = a->options.n_ids,
                      .cached_tokens = atomic_load(&a->cached),
                      .image_tokens = a->usage.image_tokens,
                      .audio_tokens = a->usage.audio_tokens,
                      .completion_tokens = atomic_load(&a->tokens),
                      .first_tokens = a->options.choices,
                      .drafted = atomic_load(&a->drafted),
                      .accepted = atomic_load(&a->accepted),
                      .forwards = atomic_load(&a->forwards),
                      .kv_bytes = answer_kv_bytes(a)};
    u.prefill_seconds = (at > 0 ? at : clock_seconds()) - a->begun_prompt;
    size_t sampled = atomic_load(&a->sampled);
    if (sampled > u.completion_tokens) u.completion_tokens = sampled;
    if (at > 0) u.decode_seconds = clock_seconds() - at;
    /* Its sessions are given back while what it said is still being sent. Asked after they were measured. */
    if (atomic_load(&a->complete)) u.kv_bytes = a->final.kv_bytes;
    return u;
}

static void deliver(answer *a, const event_record *record, const char *text, const answer_logprob *logprobs) {
    answer_event event = {.type = record->type,
                          .choice = record->choice,
                          .logprobs = record->n_logprobs ? logprobs : NULL,
                          .n_logprobs = record->n_logprobs,
                          .text = text,
                          .text_bytes = record->text_bytes,
                          .call = record->call,
                          .token = record->token,
                          .finish_reason = record->finish_reason,
                          .stop_text = record->stop_text,
                          .stop_token = record->stop_token,
                          .prompt_done = record->prompt_done,
                          .prompt_total = a->options.n_ids,
                          .usage = &a->usage,
                          .error = &a->error};
    answer_usage live;
    if (a->sink.timings && event.type != ANSWER_DONE && event.type != ANSWER_FAILED) {
        live = usage_so_far(a);
        event.usage = &live;
    }
    if (event.type == ANSWER_FINISH && atomic_load(&a->complete)) event.usage = &a->final;
    if (event.type == ANSWER_CALL_BEGIN) { /* the id, a NUL, the name, a NUL */
        event.id = event.text;
        event.name = event.text + strlen(event.text) + 1;
    }
    if (event.type == ANSWER_BEGIN) a->streaming = a->sink.streams;
    a->sink.event(a->sink.user, &event);
}

static void flush(answer *a) {
    const answer_event event = {.type = ANSWER_FLUSH};
    a->sink.event(a->sink.user, &event);
}

/* Whether all that was said has been delivered, and the client has taken it. Needs `speaking`. */
static bool is_clear(answer *a) {
    if (!a->streaming) return false;
    pthread_mutex_lock(&a->lock);
    bool empty = !a->posted && a->queue.in.n == 0 && !atomic_load_explicit(&a->lost, memory_order_relaxed);
    pthread_mutex_unlock(&a->lock);
    return empty && http_stream_is_clear(a->call->exchange);
}

void answer_say_alone(answer *a, event_record record, const char *text, const answer_logprob *logprobs) {
    if (a->sink.streams && pthread_mutex_trylock(&a->speaking) == 0) {
        bool clear = is_clear(a);
        if (clear) {
            deliver(a, &record, text, logprobs);
            flush(a);
            a->last_said = clock_seconds();
        }
        pthread_mutex_unlock(&a->speaking);
        if (clear) return;
    }
    answer_say(a, record, text, logprobs);
}

static void drain(void *user) {
    answer *a = user;
    event_queue *q = &a->queue;
    pthread_mutex_lock(&a->speaking);
    pthread_mutex_lock(&a->lock);
    text_buffer filled = q->in;
    q->in = q->out;
    q->out = filled;
    a->posted = false;
    bool over = a->over;
    text_clear(&q->in);
    if (filled.n > MOST_QUEUED && !atomic_load(&a->stalled)) resume(a);
    pthread_mutex_unlock(&a->lock);
    for (size_t at = 0; at < filled.n;) {
        const event_record *record = (const void *)(filled.data + at);
        const char *rest = (const char *)(record + 1);
        deliver(a, record, rest + record->n_logprobs * sizeof(answer_logprob), (const void *)rest);
        at += record->bytes;
    }
    if (!over && a->streaming) {
        flush(a);
        a->last_said = clock_seconds();
        if (http_unsent(a->call->exchange) > MOST_UNSENT) {
            atomic_store(&a->stalled, true);
            http_on_sent(a->call->exchange, MOST_UNSENT / 2, on_sent, a);
        }
    }
    pthread_mutex_unlock(&a->speaking);
    if (!over) return;
    unlink_answer(a);
    deliver(a, &(event_record){.type = a->error.status ? ANSWER_FAILED : ANSWER_DONE}, NULL, NULL);
    free_answer(a);
}

void answers_tick(server_context *s, double now) {
    double patience = s->settings->ping_seconds;
    pthread_mutex_lock(&s->answers_lock);
    for (answer *a = s->answers; a; a = a->next) {
        if (pthread_mutex_trylock(&a->speaking) != 0) continue; /* somebody is saying something */
        if (!a->streaming || now < a->last_said + patience) {
            pthread_mutex_unlock(&a->speaking);
            continue;
        }
        a->last_said = now;
        bool prompt = !atomic_load(&a->first_token_seen);
        const answer_event ping = {.type = ANSWER_PING,
                                   .prompt_done = prompt ? atomic_load(&a->prompt_done) : 0,
                                   .prompt_total = prompt ? a->options.n_ids : 0};
        a->sink.event(a->sink.user, &ping);
        flush(a);
        pthread_mutex_unlock(&a->speaking);
    }
    pthread_mutex_unlock(&s->answers_lock);
}

answer_counts answers_count(server_context *s) {
    answer_counts counts = {0};
    pthread_mutex_lock(&s->answers_lock);
    for (const answer *a = s->answers; a; a = a->next) {
        if (!atomic_load(&a->has_place)) continue;
        bool spoken = atomic_load(&a->first_token_seen);
        size_t sessions = spoken ? a->n_choices : 1;
        *(atomic_load(&a->stalled) ? &counts.stalled : spoken ? &counts.decode : &counts.prompt) += sessions;
    }
    pthread_mutex_unlock(&s->answers_lock);
    return counts;
}

size_t answers_tokens(server_context *s) {
    size_t tokens = 0;
    pthread_mutex_lock(&s->answers_lock);
    for (const answer *a = s->answers; a; a = a->next) {
        bool reads = atomic_load(&a->has_place) && !atomic_load(&a->first_token_seen);
        tokens += (reads ? atomic_load(&a->prompt_done) : a->options.n_ids) + atomic_load(&a->tokens);
    }
    pthread_mutex_unlock(&s->answers_lock);
    return tokens;
}

void answers_list(server_context *s, text_buffer *out) {
    pthread_mutex_lock(&s->answers_lock);
    text_add(out, "[");
    for (const answer *a = s->answers; a; a = a->next) {
        bool spoken = atomic_load(&a->first_token_seen), begun = atomic_load(&a->has_place);
        const char *state = !begun ? "queued" : atomic_load(&a->stalled) ? "stalled" : spoken ? "decode" : "prompt";
        size_t tokens = atomic_load(&a->tokens), cached = atomic_load(&a->cached);
        size_t done = spoken ? a->options.n_ids : atomic_load(&a->prompt_done);
        text_add(out, a == s->answers ? "{\"id\":" : ",{\"id\":");
        text_json_string(out, a->call->id);
        text_format(out,
                    ",\"state\":\"%s\",\"is_processing\":%s,\"n_ctx\":%d,\"n_tokens\":%zu,\"prompt_tokens\":%zu,"
                    "\"prompt_done\":%zu,\"cached_tokens\":%zu,\"kv_bytes\":%zu,\"choices\":%zu,"
                    "\"client\":\"%016llx\",\"seconds\":%.3f,"
                    "\"params\":{\"temperature\":",
                    state, begun ? "true" : "false", s->context, tokens, a->options.n_ids, done, cached,
                    answer_kv_bytes(a), a->options.choices, a->call->client, clock_seconds() - a->begun);
        text_json_number(out, (double)a->options.sampling.temperature);
        text_format(out, ",\"max_tokens\":%d}}", a->options.max_tokens ? a->options.max_tokens : -1);
    }
    text_add(out, "]");
    pthread_mutex_unlock(&s->answers_lock);
}
