/* Answers that find no memory: idle sessions give way, then answers wait for each other. */
#include "base/error.h"
#include "kakeya_study.h"
#include "serve/answer_private.h"

enum { LIKELY_ANSWER = 1024 }; /* tokens, as the scheduler reckons */

/* Those that wait for memory come before those that have not begun. */
void answer_memory_enter(answer *a) {
    memory_queue_enter(&a->server->memory, &a->cancelled);
    a->holds_memory = true;
}

void answer_memory_leave(answer *a) {
    if (a->holds_memory) memory_queue_leave(&a->server->memory);
    a->holds_memory = false;
}

void answer_memory_wake(answer *a) { memory_queue_wake(&a->server->memory); }

/* About as many bytes as this answer needs: one that finds too little asks again. */
static size_t need(const answer *a) {
    const server_context *s = a->server;
    size_t most = a->options.max_tokens ? (size_t)a->options.max_tokens : LIKELY_ANSWER;
    size_t tokens = a->options.n_ids + (most < LIKELY_ANSWER ? most : LIKELY_ANSWER);
    if (tokens > (size_t)s->context) tokens = (size_t)s->context;
    kakeya_kv_bytes bytes;
    KAKEYA_INIT(&bytes);
    kakeya_status status =
        kakeya_description_kv_bytes(kakeya_engine_description(s->engine), &s->settings->session, tokens, &bytes, NULL);
    return status == KAKEYA_OK ? bytes.total * a->n_choices : SIZE_MAX / 2;
}

kakeya_session *choice_set_session(answer_choice *c, kakeya_session *session) {
    answer *a = c->answer;
    pthread_mutex_lock(&a->lock); /* whoever cancels looks at it */
    kakeya_session *before = c->session;
    c->session = session;
    pthread_mutex_unlock(&a->lock);
    choice_measure(c);
    return before;
}

/* ------------------------------------------------------------------------------------------------------ giving up */

static bool is_live(const answer_choice *c) { return c->end == CHOICE_GOES_ON || c->end == CHOICE_STALLED; }

static bool has_spoken(const answer *a) {
    for (size_t i = 0; i < a->n_choices; i++)
        if (a->choices[i].generated > 0) return true;
    return false;
}

/* Choices that have ended need their sessions no more: they are idle ones, which give way. */
static bool give_ended(answer *a) {
    bool given = false;
    for (size_t i = 0; i < a->n_choices; i++) {
        answer_choice *c = &a->choices[i];
        if (!c->session || is_live(c) || c->end == CHOICE_FAILED) continue;
        choice_finish(c);
        store_give(a->server->store, a->options.salt, choice_set_session(c, NULL), a->options.n_ids);
        given = true;
    }
    return given;
}

/* All sessions but the first `kept` ones. Until it has said something an answer can begin again; afterwards its
 * sessions are kept in files, so that the tokens are the same under every attention policy. */
static bool let_go(answer *a, size_t kept) {
    bool spoken = has_spoken(a), given = give_ended(a);
    for (size_t i = 0; i < a->n_choices; i++) {
        answer_choice *c = &a->choices[i];
        if (!c->session || (kept > 0 && kept--)) continue;
        if (spoken && kakeya_session_is_parked(c->session)) continue;
        if (spoken) {
            given = kakeya_session_park(c->session, NULL) == KAKEYA_OK || given;
            choice_measure(c);
        } else {
            kakeya_session_close(choice_set_session(c, NULL));
            given = true;
        }
    }
    if (!spoken) atomic_store(&a->prompt_done, 0);
    if (given) metrics_add(&a->server->metrics.preemptions, 1);
    return given;
}

void answers_ask_stalled(void *user) {
    server_context *s = user;
    pthread_mutex_lock(&s->answers_lock);
    for (answer *a = s->answers; a; a = a->next) {
        pthread_mutex_lock(&a->lock);
        pthread_cond_broadcast(&a->changed);
        pthread_mutex_unlock(&a->lock);
    }
    pthread_mutex_unlock(&s->answers_lock);
}

void answer_memory_offer(answer *a) {
    if (!a->holds_memory || a->keeps_memory || !memory_queue_is_wanted(&a->server->memory)) return;
    a->keeps_memory = !let_go(a, 0);
    if (!a->keeps_memory) answer_memory_leave(a);
}

/* ---------------------------------------------------------------------------------------------------- taking up again
 */

/* Sessions for choices that have none, empty ones; parked ones are taken up by what they compute next. KAKEYA_OK: at
 * least one choice that has not ended has a session. */
static kakeya_status take_up_some(answer *a, kakeya_error *why) {
    const answer_options *o = &a->options;
    bool any = false;
    for (size_t i = 0; i < (a->forked ? a->n_choices : 1); i++) {
        answer_choice *c = &a->choices[i];
        if (!is_live(c)) continue;
        kakeya_session *empty;
        kakeya_status status = KAKEYA_OK;
        if (!c->session) {
            status = store_take(a->server->store, o->salt, answer_keys(o), o->n_ids, false, &empty, NULL, why);
            if (status == KAKEYA_OK) (void)choice_set_session(c, empty);
        }
        any |= status == KAKEYA_OK;
        if (status == KAKEYA_OUT_OF_MEMORY && any) break;
        if (status != KAKEYA_OK) return status;
    }
    return any ? KAKEYA_OK : error_set(why, KAKEYA_OUT_OF_MEMORY, "no choice of the answer has memory");
}

/* Without memory, until another answer has ended. Where all wait, the first one computes, and the others wait on. */
static bool give_way(answer *a) {
    memory_queue *queue = &a->server->memory;
    uint64_t seen;
    if (memory_queue_is_alone(queue, &seen)) {
        /* who had the memory may have ended meanwhile; choices may still wait for each other: once a token */
        size_t said = atomic_load(&a->tokens) + 1;
        bool again = a->said_alone == said;
        a->said_alone = said;
        if (!again) (void)let_go(a, 1);
        return !again;
    }
    (void)let_go(a, 0);
    memory_queue_wait(queue, seen, &a->cancelled);
    return true;
}

bool answer_memory_find(answer *a, kakeya_error *why) {
    kakeya_status status;
    do {
        if (atomic_load(&a->cancelled)) return false;
        if (store_relieve(a->server->store, need(a)) == 0 && !give_way(a)) return false;
        status = take_up_some(a, why);
    } while (status == KAKEYA_OUT_OF_MEMORY);
    return status == KAKEYA_OK && !atomic_load(&a->cancelled);
}

bool answer_memory_take_up(answer *a, kakeya_error *why) {
    if (!a->holds_memory) memory_queue_hold(&a->server->memory);
    a->holds_memory = true;
    kakeya_status status = take_up_some(a, why);
    return status == KAKEYA_OUT_OF_MEMORY ? answer_memory_find(a, why) : status == KAKEYA_OK;
}
