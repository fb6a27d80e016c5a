/* The way of an answer: a place, a session, the prompt in pieces, the tokens, the session back. */
#include "serve/answer.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "serve/answer_checkpoints.h"
#include "serve/answer_private.h"
#include "serve/pressure.h"

/* Whoever ends an answer from outside: the client that leaves, the server that drains. */
static void cancel(void *user) {
    answer *a = user;
    atomic_store(&a->cancelled, true);
    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; a->submitted && i < a->n_choices; i++)
        if (a->choices[i].session) kakeya_session_cancel(a->choices[i].session);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    admission_cancel(a->server->admission, &a->entry);
}

void answers_expire(server_context *s, double now) {
    double most = s->settings->request_timeout;
    if (most <= 0) return;
    pthread_mutex_lock(&s->answers_lock);
    for (answer *a = s->answers; a; a = a->next) {
        if (now < http_received(a->call->exchange) + most || atomic_exchange(&a->expired, true)) continue;
        cancel(a);
    }
    pthread_mutex_unlock(&s->answers_lock);
}

void answers_stop(server_context *s) {
    pthread_mutex_lock(&s->answers_lock);
    for (answer *a = s->answers; a; a = a->next) {
        atomic_store(&a->draining, true);
        cancel(a);
    }
    pthread_mutex_unlock(&s->answers_lock);
}

void answers_fail(server_context *s) {
    pthread_mutex_lock(&s->answers_lock);
    for (answer *a = s->answers; a; a = a->next) {
        if (!atomic_exchange(&a->broken, true)) cancel(a);
    }
    pthread_mutex_unlock(&s->answers_lock);
}

/* ------------------------------------------------------------------------------------------------------- submissions
 */

static void on_done(void *user) {
    answer_choice *c = user;
    answer *a = c->answer;
    store_hand_begin(a->server->store); /* the request's session is the answer's again */
    pthread_mutex_lock(&a->lock);
    c->done = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static bool on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what;
    answer *a = user;
    size_t held = atomic_load(&a->prompt_piece) - (size_t)(total - done);
    atomic_store(&a->prompt_done, held);
    choice_measure(&a->choices[0]);
    if (a->sink.progress && !atomic_load(&a->first_token_seen))
        answer_say(a, (event_record){.type = ANSWER_PROGRESS, .prompt_done = held}, NULL, NULL);
    return !atomic_load(&a->cancelled);
}

static void on_copy(void *user, kakeya_session *copy) {
    answer *a = user;
    store_hand_begin(a->server->store);
    pthread_mutex_lock(&a->lock);
    a->copy = copy;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* The prompt's first n tokens become the choice's, unless it has an answer already, and are answered if `generate` says
 * how. */
static kakeya_status submit(answer *a, answer_choice *c, size_t n, const kakeya_generate_options *generate,
                            kakeya_error *why) {
    kakeya_request_options options;
    KAKEYA_INIT(&options);
    if (c->generated == 0) {
        options.tokens = a->options.ids;
        options.n_tokens = n;
        options.n_media = answer_media_before(&a->options, n);
    }
    options.media = a->options.media;
    options.generate = generate;
    options.progress = on_progress;
    options.progress_user = a;
    options.on_done = on_done;
    options.done_user = c;
    atomic_store(&a->prompt_piece, n);
    if (options.tokens && n == a->options.n_ids && a->copy_at) {
        options.prompt_copy_tokens = a->copy_at;
        options.on_prompt_copy = on_copy;
        options.prompt_copy_user = a;
        a->copy_at = 0;
    }
    options.arrival = a->arrival;
    pthread_mutex_lock(&a->lock);
    c->done = false;
    a->submitted = true; /* before it is: a cancel meets either the flag below or the session */
    pthread_mutex_unlock(&a->lock);
    kakeya_status status = kakeya_session_submit(c->session, &options, &c->request, why);
    if (status != KAKEYA_OK) return status;
    store_hand_end(a->server->store);
    a->arrival = kakeya_request_arrival(c->request); /* the other submissions take the first one's place */
    if (atomic_load(&a->cancelled)) kakeya_session_cancel(c->session);
    return status;
}

/* The store gets the copy of the prompt: what it has to do for that is not for the thread that computes. */
static void keep_copy(answer *a, kakeya_session *copy) {
    (a->files ? store_keep_in_file : store_keep)(a->server->store, a->options.salt, copy, STORE_PROMPT_END);
    store_hand_end(a->server->store);
}

/* Under the lock. */
static answer_choice *next_done(answer *a, bool *any) {
    *any = false;
    for (size_t i = 0; i < a->n_choices; i++) {
        if (!a->choices[i].request) continue;
        if (a->choices[i].done) return &a->choices[i];
        *any = true;
    }
    return NULL;
}

/* Waits for a choice whose request is done, which is to be collected; NULL: there is no request. */
static answer_choice *wait_for_one(answer *a) {
    bool any;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        kakeya_session *copy = a->copy;
        answer_choice *done = copy ? NULL : next_done(a, &any);
        a->copy = NULL;
        if (!copy && (done || !any)) {
            pthread_mutex_unlock(&a->lock);
            return done;
        }
        if (copy) {
            pthread_mutex_unlock(&a->lock);
            keep_copy(a, copy);
            pthread_mutex_lock(&a->lock);
        } else {
            pthread_cond_wait(&a->changed, &a->lock);
        }
    }
}

/* Adds what the submission took to what the answer took. */
static kakeya_status collect(answer *a, answer_choice *c, kakeya_error *why) {
    kakeya_stats all;
    KAKEYA_INIT(&all);
    kakeya_status status = kakeya_request_wait(c->request, &all, why);
    c->request = NULL;
    metrics *m = &a->server->metrics;
    const kakeya_stats *s = &all;
    choice_count(c, s);
    c->stats = (kakeya_stats){0}; /* the next submission begins anew */
    a->usage.prefill_seconds += s->prefill_seconds;
    a->usage.decode_seconds += s->decode_seconds;
    a->usage.completion_tokens += s->completion_tokens * c->copies;
    atomic_store(&a->sampled, a->usage.completion_tokens);
    a->usage.forwards += s->verifier_forwards;
    a->usage.drafted += s->drafted_tokens;
    a->usage.accepted += s->accepted_tokens;
    a->usage.predicted += s->prediction_drafted * c->copies;
    a->usage.predicted_accepted += s->prediction_accepted * c->copies;
    metrics_add(&m->grammar_redraws, s->grammar_redraws);
    metrics_add(&m->grammar_masks, s->grammar_masks);
    return status;
}

static bool fail(answer *a, const char *code, const kakeya_error *why) {
    if (atomic_load(&a->cancelled)) return false; /* what comes of a cancel is no failure */
    fprintf(stderr, "%s: %s\n", a->call->id, why->message);
    return api_fail_library(&a->error, code, NULL, why);
}

/* ------------------------------------------------------------------------------------------------------------ prompts
 */

/* Memory that is not K/V may be missing beside others that take all there is: then the request goes on as another one,
 * which begins where the engine has room for it. */
static bool starves(answer_choice *c, kakeya_status status) {
    enum { MOST = 8 }; /* requests in a row */
    if (status != KAKEYA_OUT_OF_MEMORY || atomic_load(&c->answer->cancelled)) return false;
    c->starved = c->generated > c->starved_at ? 1 : c->starved + 1;
    c->starved_at = c->generated;
    c->end = CHOICE_GOES_ON;
    return c->starved < MOST;
}

/* The timeline becomes ids[0..n). */
static bool compute_prompt(answer *a, answer_choice *c, size_t n) {
    kakeya_status status;
    kakeya_error why = {0};
    do {
        status = submit(a, c, n, NULL, &why);
        if (status == KAKEYA_OK) status = collect(a, wait_for_one(a), &why);
    } while (starves(c, status));
    return status == KAKEYA_OK ? !atomic_load(&a->cancelled) : fail(a, "invalid_prompt", &why);
}

/* Whether less of the prompt is known than the request wants: it goes elsewhere then, and nothing is computed. */
static bool is_below(const answer *a, size_t cached) {
    return (double)cached < a->options.least_cached * (double)a->options.n_ids;
}

static void complete_usage(answer *a);

/* Ends all choices before anything of them is computed. */
static void decline(answer *a, size_t cached) {
    static const char why[] = "cache_threshold";
    a->usage.cached_tokens = cached;
    a->declined = true;
    complete_usage(a);
    answer_say(a, (event_record){.type = ANSWER_BEGIN, .finish_reason = why}, NULL, NULL);
    for (size_t i = 0; i < a->options.choices; i++)
        answer_say(a, (event_record){.type = ANSWER_FINISH, .choice = i, .finish_reason = why, .stop_token = -1}, NULL,
                   NULL);
}

/* A session from the store, which is in the answer's hands until it has a request. */
static bool choice_take(answer_choice *c, bool reuse, store_hit *hit, kakeya_error *why) {
    const answer *a = c->answer;
    const answer_options *o = &a->options;
    prefix_store *store = a->server->store;
    kakeya_session *session = NULL;
    store_hand_begin(store);
    if (store_take(store, o->salt, answer_keys(o), o->n_ids, reuse, &session, hit, why) != KAKEYA_OK) {
        store_hand_end(store);
        return false;
    }
    (void)choice_set_session(c, session);
    choice_measure(c);
    return true;
}

/* The way back, if it has one. */
static void choice_give(answer_choice *c) {
    const answer *a = c->answer;
    prefix_store *store = a->server->store;
    kakeya_session *session = choice_set_session(c, NULL);
    if (!session) return;
    kakeya_session_clear_cancel(session);
    size_t n;
    kakeya_session_tokens(session, &n);
    if (a->error.status >= 500 || n == 0 || kakeya_session_is_parked(session))
        kakeya_session_close(session); /* whatever is wrong may be wrong with it */
    else
        store_give(store, a->options.salt, session, n < a->options.n_ids ? n : a->options.n_ids);
    store_hand_end(store);
}

/* False where the answer ends here, because of an error, or declined. */
static bool take_session(answer *a) {
    store_hit hit = {0};
    kakeya_error why = {0};
    const answer_options *o = &a->options;
    a->begun_prompt = clock_seconds();
    if (!choice_take(&a->choices[0], !o->fresh, &hit, &why)) return fail(a, "invalid_prompt", &why);
    if (is_below(a, hit.tokens)) { /* a file was not what it seemed */
        decline(a, hit.tokens);
        return false;
    }
    a->usage.cached_tokens = hit.tokens;

    metrics *m = &a->server->metrics;
    metrics_add(&m->cached_tokens[hit.source], hit.tokens);
    metrics_add(&m->prompt_tokens, o->n_ids);
    atomic_store(&a->prompt_done, hit.tokens);
    atomic_store(&a->cached, hit.tokens);
    answer_say(a, (event_record){.type = ANSWER_BEGIN}, NULL, NULL);
    return true;
}

/* Who asks for a single token wants the prompt computed, for another server that goes on from the shared directory: the
 * file is there before the answer is. */
static bool wants_file(answer *a) {
    enum { MOST_CUT = 16 }; /* tokens, that a copy of the prompt's end may lack */
    const answer_options *o = &a->options;
    if (o->max_tokens != 1 || o->n_ids < 2) return false;
    bool stable = o->n_stable < o->n_ids && o->n_stable + MOST_CUT >= o->n_ids;
    size_t end = stable ? o->n_stable : o->n_ids - 1;
    if (!store_wants_file(a->server->store, o->salt, answer_keys(o), end)) return false;
    a->copy_at = end;
    return true;
}

/* The prompt up to the last place where other prompts are likely to part from this one, with copies for the store. The
 * rest is computed together with the answer's first token; a copy of its end, where the conversation goes on, is made
 * there on the way. */
static bool compute_checkpoints(answer *a) {
    const answer_options *o = &a->options;
    if (o->fresh) return true;
    size_t known = a->usage.cached_tokens, end = o->n_stable < o->n_ids ? o->n_stable : 0;
    if (end < known + CHECKPOINT_LEAST_ADDED) end = 0;
    a->files = wants_file(a);
    if (!a->files && end && store_wants(a->server->store, o->salt, answer_keys(o), end, STORE_PROMPT_END))
        a->copy_at = end;
    checkpoint points[ANSWER_MAX_CHECKPOINTS];
    size_t n = answer_checkpoints(kakeya_engine_tokenizer(a->server->engine), o->ids, o->n_ids, end, known, points);
    for (size_t i = 0; i < n; i++) {
        const size_t position = answer_outside_media(o, points[i].position);
        if (position <= known || !store_wants(a->server->store, o->salt, answer_keys(o), position, points[i].reason))
            continue;
        if (!compute_prompt(a, &a->choices[0], position)) return false;
        known = position;
        store_checkpoint(a->server->store, o->salt, a->choices[0].session, points[i].reason);
    }
    return true;
}

/* A choice for whose fork there is no memory computes the prompt itself, once there is some. */
static bool fork_choices(answer *a) {
    if (a->n_choices > 1 && !compute_prompt(a, &a->choices[0], a->options.n_ids)) return false;
    kakeya_status status = KAKEYA_OK;
    for (size_t i = 1; i < a->n_choices; i++) {
        kakeya_error why = {0};
        kakeya_session *session = NULL;
        if (status == KAKEYA_OK) status = kakeya_session_fork(a->choices[0].session, &session, &why);
        if (status == KAKEYA_OUT_OF_MEMORY) {
            if (!choice_take(&a->choices[i], false, NULL, &why)) return fail(a, NULL, &why);
            continue;
        }
        if (status != KAKEYA_OK) return fail(a, NULL, &why);
        store_hand_begin(a->server->store);
        (void)choice_set_session(&a->choices[i], session);
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------------------- answers
 */

/* All is computed: the ends of choices and the answer's own end tell the same times. */
static void complete_usage(answer *a) {
    a->usage.prompt_tokens = a->options.n_ids;
    a->usage.first_tokens =
        a->options.choices < a->usage.completion_tokens ? a->options.choices : a->usage.completion_tokens;
    a->usage.kv_bytes = answer_kv_bytes(a);
    a->final = a->usage;
    atomic_store(&a->complete, true);
}

static bool submit_choice(answer *a, answer_choice *c) {
    kakeya_error why = {0};
    kakeya_generate_options options;
    choice_generate_options(c, &options);
    if (submit(a, c, a->options.n_ids, &options, &why) == KAKEYA_OK) return true;
    fail(a, NULL, &why); /* before the others are stopped: what comes of a cancel is no failure */
    cancel(a);
    return false;
}

/* Its request is done. One that has ended needs its session no more, which others may wait for. */
static bool end_choice(answer *a, answer_choice *c, size_t *left) {
    kakeya_error why = {0};
    kakeya_status status = collect(a, c, &why);
    if (!a->error.status && starves(c, status)) return submit_choice(a, c);
    --*left;
    if (status == KAKEYA_CANCELLED) c->end = CHOICE_CANCELLED;
    if (status != KAKEYA_OK && status != KAKEYA_CANCELLED) return fail(a, NULL, &why);
    if (c->end == CHOICE_FAILED) { /* our own, in a callback */
        if (!a->error.status) a->error = c->error;
        return false;
    }
    if (*left == 0 || a->error.status || atomic_load(&a->cancelled)) return true;
    choice_finish(c);
    choice_give(c);
    return true;
}

static bool generate(answer *a) {
    for (size_t i = 0; i < a->n_choices; i++) {
        if (choice_open(&a->choices[i])) continue;
        a->error = a->choices[i].error;
        return false;
    }
    if (atomic_load(&a->cancelled)) return false;
    bool good = true;
    size_t left = a->n_choices; /* the first one's request has the rest of the prompt */
    for (size_t i = 0; i < a->n_choices && good; i++) good = submit_choice(a, &a->choices[i]);
    for (answer_choice *c; (c = wait_for_one(a)) != NULL;) good &= end_choice(a, c, &left);
    if (!good || atomic_load(&a->cancelled)) return false;
    complete_usage(a);
    for (size_t i = 0; i < a->n_choices; i++) {
        choice_finish(&a->choices[i]);
        choice_tell_end(&a->choices[i]);
        if (a->choices[i].error.status && !a->error.status) a->error = a->choices[i].error;
    }
    return a->error.status == 0;
}

static void give_back(answer *a) {
    pthread_mutex_lock(&a->lock);
    a->submitted = false; /* nobody cancels sessions from here on */
    pthread_mutex_unlock(&a->lock);
    for (size_t i = 0; i < a->n_choices; i++) {
        choice_close(&a->choices[i]);
        choice_give(&a->choices[i]);
        atomic_store(&a->choices[i].kv_bytes, 0);
    }
}

/* --------------------------------------------------------------------------------------------------------------- whole
 */

size_t answer_most_tokens(const server_context *s) {
    enum { EXACT = 4 }; /* contexts: up to there the message says how many tokens there are */
    return EXACT * (size_t)s->context;
}

bool answer_is_too_long(const server_context *s, size_t least, const char *param, api_error *error) {
    return api_fail_context(error, param, "at least ", least, (size_t)s->context);
}

bool answer_has_room(const server_context *s, const answer_options *o, api_error *error) {
    const char *param = o->param ? o->param : "messages";
    if (o->n_ids == 0) return api_fail(error, 400, "invalid_prompt", param, "the prompt has no tokens");
    if (o->n_ids + 1 > (size_t)s->context) return api_fail_context(error, param, "", o->n_ids, (size_t)s->context);
    return true;
}

/* Seconds until the prompts in front of this answer and its own are computed; 0 where nobody knows, or no one waits. */
static double predicted_wait(answer *a) {
    server_context *s = a->server;
    size_t running, waiting, tokens = 0;
    double speed = atomic_load(&s->prompt_speed);
    admission_counts(s->admission, &running, &waiting);
    if (running < admission_room(s->admission) || speed <= 0) return 0;
    pthread_mutex_lock(&s->answers_lock);
    for (const answer *other = s->answers; other; other = other->next) {
        size_t done = atomic_load(&other->prompt_done);
        if (!atomic_load(&other->first_token_seen) && done < other->options.n_ids)
            tokens += other->options.n_ids - done;
    }
    pthread_mutex_unlock(&s->answers_lock);
    return (double)tokens / speed;
}

static bool refuse(answer *a, double wait) {
    a->error.retry_after = wait <= 1 ? 1 : wait >= 60 ? 60 : (int)ceil(wait);
    return api_fail(&a->error, 429, "queue_full", NULL, "too many requests are waiting");
}

/* Whether the answers that run leave memory for more, by the settings. */
static bool has_memory(answer *a) {
    server_context *s = a->server;
    if (!s->settings->memory_refuse_percent || pressure_now(s).state != PRESSURE_REFUSES) return true;
    metrics_add(&s->metrics.memory_refusals, 1);
    a->error.retry_after = 2;
    return api_fail(&a->error, 503, "overloaded", NULL,
                    "answers that run have taken %d %% of the memory for K/V (--memory-refuse)",
                    s->settings->memory_refuse_percent);
}

/* Whether it may begin, now that it is known whether it has a place. */
static bool enter(answer *a) {
    switch (a->place) {
    case ADMISSION_ENTERED:
        atomic_store(&a->has_place, true);
        a->usage.queue_seconds = clock_seconds() - a->begun;
        metrics_seconds(&a->server->metrics.queue, a->usage.queue_seconds);
        return true;
    case ADMISSION_FULL:
        return refuse(a, a->predicted);
    case ADMISSION_CLOSED:
        a->error.retry_after = 2;
        return api_fail(&a->error, 503, "draining", NULL, "the server is shutting down");
    default:
        return false;
    }
}

/* Short prompts say little of how fast prompts are computed. */
static void note_speed(const answer *a) {
    enum { LEAST = 256 };
    size_t computed = a->options.n_ids - a->usage.cached_tokens;
    if (computed < LEAST || a->usage.prefill_seconds <= 0) return;
    double speed = (double)computed / a->usage.prefill_seconds;
    store_note_speed(a->server->store, speed);
    double best = atomic_load(&a->server->prompt_speed);
    while (speed > best && !atomic_compare_exchange_weak(&a->server->prompt_speed, &best, speed)) {
    }
}

double answer_speed(const answer_usage *u) {
    size_t behind = u->completion_tokens > u->first_tokens ? u->completion_tokens - u->first_tokens : 0;
    return u->decode_seconds > 0 ? (double)behind / u->decode_seconds : 0;
}

/* What the answer took, for the log and the metrics. */
static void account(answer *a) {
    metrics *m = &a->server->metrics;
    answer_usage *u = &a->usage;
    u->prompt_tokens = a->options.n_ids;
    finished_reason reason = FINISHED_STOP;
    for (size_t i = 0; i < a->n_choices; i++) {
        const answer_choice *c = &a->choices[i];
        reason = c->end == CHOICE_LENGTH  ? FINISHED_LENGTH
                 : c->end == CHOICE_CALLS ? FINISHED_TOOL_CALLS
                                          : FINISHED_STOP;
    }
    if (a->declined) reason = FINISHED_CACHE_THRESHOLD;
    if (a->error.status) reason = FINISHED_ERROR;
    if (a->error.code && strcmp(a->error.code, "cancelled") == 0) reason = FINISHED_CANCELLED;
    static const char *const names[] = {"stop", "length", "tool_calls", "cache_threshold", "cancelled", "error"};
    metrics_add(&m->finished[reason], 1);
    if (u->first_token_seconds > 0) {
        metrics_seconds(&m->prefill, u->prefill_seconds);
        metrics_seconds(&m->decode, u->decode_seconds);
        note_speed(a);
        metrics_seconds(&m->whole, clock_seconds() - http_received(a->call->exchange));
        metrics_tokens(&m->prompt_size, u->prompt_tokens);
        metrics_tokens(&m->answer_size, u->completion_tokens);
    }
    double speed = answer_speed(u);
    double each = u->forwards ? (double)u->completion_tokens / (double)u->forwards : 0;
    text_format(
        &a->call->log,
        a->server->settings->log_json
            ? "\"prompt\":%zu,\"cached\":%zu,\"generated\":%zu,\"first_token_ms\":%.1f,"
              "\"tokens_per_second\":%.1f,\"tokens_per_forward\":%.2f,\"finish\":\"%s\""
            : "prompt %zu (%zu cached), generated %zu, first token %.1f ms, %.1f tokens/s, %.2f per forward, %s",
        u->prompt_tokens, u->cached_tokens, u->completion_tokens, u->first_token_seconds * 1000, speed, each,
        names[reason]);
}

static void on_place(admission_entry *entry, admission_result result);

static answer *open_answer(call *c, answer_options *options, const answer_sink *sink) {
    answer *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    server_context *s = c->server;
    const kakeya_tokenizer *t = kakeya_engine_tokenizer(s->engine);
    a->server = s;
    a->call = c;
    a->sink = *sink;
    a->options = *options;
    a->usage.image_tokens = answer_media_tokens(options, kakeya_engine_image_token(s->engine));
    a->usage.audio_tokens = answer_media_tokens(options, kakeya_engine_sound_token(s->engine));
    a->entry = (admission_entry){.client = c->client, .told = on_place};
    a->begun = a->last_said = clock_seconds();
    a->id_channel = t ? kakeya_tokenizer_find(t, "<|channel>") : -1;
    a->id_channel_end = t ? kakeya_tokenizer_find(t, "<channel|>") : -1;
    pthread_mutex_init(&a->lock, NULL);
    pthread_mutex_init(&a->speaking, NULL);
    pthread_cond_init(&a->changed, NULL);
    /* Greedy choices would all be the same text: it is computed once. */
    bool same = options->sampling.temperature == 0;
    a->n_choices = same ? 1 : options->choices;
    for (size_t i = 0; i < a->n_choices; i++) {
        a->choices[i].answer = a;
        a->choices[i].index = i;
        a->choices[i].copies = same ? options->choices : 1;
    }
    pthread_mutex_lock(&s->answers_lock);
    a->link = &s->answers;
    a->next = s->answers;
    if (a->next) a->next->link = &a->next;
    s->answers = a;
    pthread_mutex_unlock(&s->answers_lock);
    return a;
}

/* An answer that could not even begin. The sink hears of it where it hears of everything. */
typedef struct stillborn {
    const answer_sink *sink;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool heard;
} stillborn;

static void say_out_of_memory(void *user) {
    stillborn *s = user;
    api_error error = {0};
    const answer_usage usage = {0};
    api_out_of_memory(&error);
    s->sink->event(s->sink->user, &(answer_event){.type = ANSWER_FAILED, .error = &error, .usage = &usage});
    pthread_mutex_lock(&s->lock);
    s->heard = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static bool finish(answer *a) {
    call *c = a->call;
    call_on_cancel(c, NULL, NULL);
    if (atomic_load(&a->lost)) {
        api_out_of_memory(&a->error);
    } else if (atomic_load(&a->broken) && !a->error.status) {
        api_fail(&a->error, 500, "backend", NULL, "the computation has failed");
    } else if (atomic_load(&a->draining) && !a->error.status) {
        a->error.retry_after = 2;
        api_fail(&a->error, 503, "draining", NULL, "the server is shutting down");
    } else if (atomic_load(&a->expired) && !a->error.status) {
        a->error.final = true;
        api_fail(&a->error, 503, "timeout", NULL, "the answer was not complete within %g s (--request-timeout)",
                 c->server->settings->request_timeout);
    } else if (atomic_load(&a->cancelled) && !a->error.status) {
        api_fail(&a->error, 503, "cancelled", NULL, "the client has left");
    }
    account(a);
    bool good = a->error.status == 0;
    answer_say_last(a);
    return good;
}

/* What is to be done once it is known whether there is a place. */
static bool go_on(answer *a) {
    if (a->error.status == 0 && !a->declined && enter(a)) {
        if (take_session(a) && compute_checkpoints(a) && fork_choices(a)) generate(a);
        give_back(a);
        admission_leave(a->server->admission, a->entry.client);
    }
    return finish(a);
}

static void go_on_later(void *user) { (void)go_on(user); }

static void on_place(admission_entry *entry, admission_result result) {
    answer *a = (answer *)((char *)entry - offsetof(answer, entry));
    a->place = result;
    if (!a->held) {
        a->work = (worker_task){.fn = go_on_later, .argument = a};
        workers_go_on(a->server->workers, &a->work);
        return;
    }
    pthread_mutex_lock(&a->lock);
    a->told = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* NULL: out of memory, which the sink has heard of. Otherwise ADMISSION_WAITS: the answer is not to be touched unless
 * it is held. */
static answer *begin(call *c, answer_options *options, const answer_sink *sink, bool held, admission_result *place) {
    answer *a = open_answer(c, options, sink);
    if (!a) {
        stillborn s = {.sink = sink, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
        http_server *http = c->server->http;
        answer_options_free(options);
        http_task task;
        http_post(http, &task, say_out_of_memory, &s);
        pthread_mutex_lock(&s.lock);
        while (!s.heard) pthread_cond_wait(&s.changed, &s.lock);
        pthread_mutex_unlock(&s.lock);
        return NULL;
    }
    *options = (answer_options){0};
    a->held = held; /* nobody tells it anything before it has come to the admission */
    call_on_cancel(c, cancel, a);
    double most = c->server->settings->max_wait;
    *place = ADMISSION_CANCELLED;
    if (!answer_has_room(a->server, &a->options, &a->error)) return a;
    if (a->options.least_cached > 0) { /* told at once, also where there is no place */
        size_t cached = a->options.fresh
                            ? 0
                            : store_look(a->server->store, a->options.salt, answer_keys(&a->options), a->options.n_ids);
        if (is_below(a, cached)) {
            decline(a, cached);
            return a;
        }
    }
    a->predicted = predicted_wait(a);
    if (most > 0 && a->predicted > most) {
        (void)refuse(a, a->predicted);
        return a;
    }
    if (!has_memory(a)) return a;
    *place = admission_enter(a->server->admission, &a->entry, &a->cancelled);
    if (*place != ADMISSION_WAITS) a->place = *place;
    return a;
}

void answer_start(call *c, answer_options *options, const answer_sink *sink) {
    admission_result place;
    answer *a = begin(c, options, sink, false, &place);
    if (a && place != ADMISSION_WAITS) (void)go_on(a);
}

bool answer_run(call *c, answer_options *options, const answer_sink *sink) {
    admission_result place;
    answer *a = begin(c, options, sink, true, &place);
    if (!a) return false;
    if (place == ADMISSION_WAITS) {
        workers *pool = a->server->workers;
        workers_wait_begin(pool);
        pthread_mutex_lock(&a->lock);
        while (!a->told) pthread_cond_wait(&a->changed, &a->lock);
        pthread_mutex_unlock(&a->lock);
        workers_wait_end(pool);
    }
    return go_on(a);
}
