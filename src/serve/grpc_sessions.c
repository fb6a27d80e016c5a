#include "serve/grpc_sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"

enum { BUCKETS = 1024, RANDOM_BYTES = 16 };

struct grpc_sessions {
    grpc_session *bucket[BUCKETS];
    grpc_session *oldest, *newest;
    size_t n;
};

/* Names are random, so any of their digits spread them; a foreign name may be anything. */
static size_t bucket_of(const char *id) {
    size_t hash = 0;
    for (; *id; id++) hash = hash * 31 + (unsigned char)*id;
    return hash % BUCKETS;
}

grpc_sessions *grpc_sessions_new(void) { return calloc(1, sizeof(grpc_sessions)); }

void grpc_sessions_free(grpc_sessions *sessions) { free(sessions); }

size_t grpc_sessions_count(const grpc_sessions *sessions) { return sessions->n; }

static bool make_id(char id[GRPC_SESSION_ID_BYTES + 1]) {
    unsigned char bytes[RANDOM_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) return false;
    int at = sprintf(id, "sess-");
    for (size_t i = 0; i < sizeof bytes; i++) at += sprintf(id + at, "%02x", bytes[i]);
    return true;
}

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void add_newest(grpc_sessions *s, grpc_session *x) {
    x->older = s->newest;
    x->newer = NULL;
    *(s->newest ? &s->newest->newer : &s->oldest) = x;
    s->newest = x;
}

static void unlink_age(grpc_sessions *s, grpc_session *x) {
    *(x->older ? &x->older->newer : &s->oldest) = x->newer;
    *(x->newer ? &x->newer->older : &s->newest) = x->older;
}

grpc_session *grpc_sessions_add(grpc_sessions *sessions, kakeya_session *session, const uint32_t *eos, size_t n_eos) {
    grpc_session *x = calloc(1, sizeof *x);
    uint32_t *copy = malloc(n_eos * sizeof *copy + 1);
    if (!x || !copy || !make_id(x->id)) {
        free(copy);
        free(x);
        return NULL;
    }
    if (n_eos) memcpy(copy, eos, n_eos * sizeof *copy);
    qsort(copy, n_eos, sizeof *copy, compare);
    x->session = session;
    x->eos = copy;
    x->n_eos = n_eos;
    x->touched = clock_seconds();
    grpc_session **bucket = &sessions->bucket[bucket_of(x->id)];
    x->next_of_bucket = *bucket;
    *bucket = x;
    add_newest(sessions, x);
    sessions->n++;
    return x;
}

grpc_session *grpc_sessions_find(const grpc_sessions *sessions, const char *id) {
    for (grpc_session *x = sessions->bucket[bucket_of(id)]; x; x = x->next_of_bucket)
        if (strcmp(x->id, id) == 0) return x;
    return NULL;
}

void grpc_sessions_touch(grpc_sessions *sessions, grpc_session *session) {
    session->touched = clock_seconds();
    unlink_age(sessions, session);
    add_newest(sessions, session);
}

grpc_session *grpc_sessions_oldest_idle(const grpc_sessions *sessions) {
    grpc_session *x = sessions->oldest;
    while (x && x->user) x = x->newer;
    return x;
}

grpc_session *grpc_sessions_any(const grpc_sessions *sessions) { return sessions->oldest; }

kakeya_session *grpc_sessions_remove(grpc_sessions *sessions, grpc_session *session) {
    grpc_session **at = &sessions->bucket[bucket_of(session->id)];
    while (*at != session) at = &(*at)->next_of_bucket;
    *at = session->next_of_bucket;
    unlink_age(sessions, session);
    sessions->n--;
    kakeya_session *own = session->session;
    free(session->eos);
    free(session);
    return own;
}
