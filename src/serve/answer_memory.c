/* Answers that find no memory: idle sessions give way, then answers wait for each other. */
#include "serve/answer_private.h"

enum { LIKELY_ANSWER = 1024 }; /* tokens, as the scheduler reckons */

void answer_memory_enter(answer *a) {
    server_context *s = a->server;
    pthread_mutex_lock(&s->memory_lock);
    s->memory_holders++;
    pthread_mutex_unlock(&s->memory_lock);
}

void answer_memory_leave(answer *a) {
    server_context *s = a->server;
    pthread_mutex_lock(&s->memory_lock);
    s->memory_holders--;
    s->memory_given_back++;
    pthread_cond_broadcast(&s->memory_changed);
    pthread_mutex_unlock(&s->memory_lock);
}

void answer_memory_wake(answer *a) {
    server_context *s = a->server;
    pthread_mutex_lock(&s->memory_lock);
    pthread_cond_broadcast(&s->memory_changed);
    pthread_mutex_unlock(&s->memory_lock);
}

/* About as many bytes as this answer needs: one that finds too little asks again. */
static size_t need(const answer *a) {
    const server_context *s = a->server;
    size_t most = a->options.max_tokens ? (size_t)a->options.max_tokens : LIKELY_ANSWER;
    size_t tokens = a->options.n_ids + (most < LIKELY_ANSWER ? most : LIKELY_ANSWER);
    if (tokens > (size_t)s->context) tokens = (size_t)s->context;
    kakeya_kv_bytes bytes;
    kakeya_kv_bytes_init(&bytes);
    kakeya_status status =
        kakeya_description_kv_bytes(kakeya_engine_description(s->engine), &s->settings->session, tokens, &bytes, NULL);
    return status == KAKEYA_OK ? bytes.total * a->n_choices : SIZE_MAX / 2;
}

/* An answer that has said nothing can begin again: an empty session takes the place of its own. False: there is no
 * memory for that either. */
static bool give_up_prompt(answer *a) {
    answer_choice *c = &a->choices[0];
    kakeya_session *full = c->session, *empty = NULL;
    kakeya_error why = {0};
    if (a->n_choices > 1 || c->generated > 0) return true;
    pthread_mutex_lock(&a->lock);
    c->session = NULL; /* whoever cancels finds none */
    pthread_mutex_unlock(&a->lock);
    kakeya_session_close(full);
    choice_measure(c);
    if (store_take(a->server->store, a->options.ids, a->options.n_ids, false, &empty, NULL, &why) != KAKEYA_OK)
        return false;
    pthread_mutex_lock(&a->lock);
    c->session = empty;
    pthread_mutex_unlock(&a->lock);
    choice_measure(c);
    return true;
}

bool answer_memory_find(answer *a) {
    server_context *s = a->server;
    if (atomic_load(&a->cancelled)) return false;
    if (store_relieve(s->store, need(a)) > 0) return true;
    pthread_mutex_lock(&s->memory_lock);
    uint64_t seen = s->memory_given_back;
    bool alone = s->memory_holders <= 1;
    pthread_mutex_unlock(&s->memory_lock);
    if (alone || !give_up_prompt(a)) return false;
    metrics_add(&s->metrics.preemptions, 1);
    pthread_mutex_lock(&s->memory_lock);
    s->memory_holders--;
    pthread_cond_broadcast(&s->memory_changed);
    while (s->memory_given_back == seen && s->memory_holders > 0 && !atomic_load(&a->cancelled))
        pthread_cond_wait(&s->memory_changed, &s->memory_lock);
    s->memory_holders++; /* where all have waited, the first one computes and the others wait on */
    pthread_mutex_unlock(&s->memory_lock);
    return !atomic_load(&a->cancelled);
}
