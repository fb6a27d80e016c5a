#include "serve/zmq_publisher.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/platform.h"
#include "serve/zmq_core.h"

/* A message that is kept. */
typedef struct message {
    _Atomic int holders;
    uint64_t number;
    size_t bytes;
    char payload[];
} message;

enum { NUMBER_BYTES = 8, MOST_WAITING = 100000, LINGER_MS = 200, ADDRESS_BYTES = 256, MOST_ENVELOPE = 4 };

struct zmq_publisher {
    void *context, *out, *router;
    char *topic;
    char address[ADDRESS_BYTES], replay_address[ADDRESS_BYTES];
    uint64_t next;
    _Atomic uint64_t replayed;
    pthread_t thread;
    bool running;
    /* the newest messages, as a ring */
    pthread_mutex_t lock;
    message *kept[ZMQ_PUBLISHER_KEPT];
    size_t first, n_kept, kept_bytes;
};

static void number_bytes(uint64_t number, unsigned char out[NUMBER_BYTES]) {
    for (int i = 0; i < NUMBER_BYTES; i++) out[i] = (unsigned char)(number >> 8 * (NUMBER_BYTES - 1 - i));
}

static uint64_t number_of(const unsigned char *bytes) {
    uint64_t number = 0;
    for (int i = 0; i < NUMBER_BYTES; i++) number = number << 8 | bytes[i];
    return number;
}

/* ------------------------------------------------------------------------------------------------------------ keeping
 */

static void let_go(message *m) {
    if (atomic_fetch_sub(&m->holders, 1) == 1) free(m);
}

static void drop_oldest(zmq_publisher *p) {
    message *m = p->kept[p->first];
    p->kept_bytes -= m->bytes;
    p->first = (p->first + 1) % ZMQ_PUBLISHER_KEPT;
    p->n_kept--;
    let_go(m);
}

/* Where there is no memory for it, it cannot be sent again. */
static void keep(zmq_publisher *p, uint64_t number, const char *payload, size_t bytes) {
    message *m = malloc(sizeof *m + bytes);
    if (!m) return;
    atomic_init(&m->holders, 1);
    m->number = number;
    m->bytes = bytes;
    memcpy(m->payload, payload, bytes);
    pthread_mutex_lock(&p->lock);
    while (p->n_kept && (p->n_kept == ZMQ_PUBLISHER_KEPT || p->kept_bytes + bytes > ZMQ_PUBLISHER_KEPT_BYTES))
        drop_oldest(p);
    p->kept[(p->first + p->n_kept++) % ZMQ_PUBLISHER_KEPT] = m;
    p->kept_bytes += bytes;
    pthread_mutex_unlock(&p->lock);
}

/* Those from `from` on; NULL and 0 where there are none. Their memory stays until they are let go. */
static message **take_from(zmq_publisher *p, uint64_t from, size_t *n) {
    *n = 0;
    pthread_mutex_lock(&p->lock);
    message **taken = p->n_kept ? malloc(p->n_kept * sizeof(message *)) : NULL;
    for (size_t i = 0; taken && i < p->n_kept; i++) {
        message *m = p->kept[(p->first + i) % ZMQ_PUBLISHER_KEPT];
        if (m->number < from) continue;
        atomic_fetch_add(&m->holders, 1);
        taken[(*n)++] = m;
    }
    pthread_mutex_unlock(&p->lock);
    return taken;
}

/* ------------------------------------------------------------------------------------------------------------ sending
 */

void zmq_publisher_send(zmq_publisher *p, const char *payload, size_t bytes) {
    unsigned char number[NUMBER_BYTES];
    number_bytes(p->next++, number);
    if (!payload) return;
    if (p->router) keep(p, p->next - 1, payload, bytes);
    (void)zmq_core.zmq_send(p->out, p->topic, strlen(p->topic), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    (void)zmq_core.zmq_send(p->out, number, sizeof number, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    (void)zmq_core.zmq_send(p->out, payload, bytes, ZMQ_DONTWAIT);
}

/* ---------------------------------------------------------------------------------------------------------- answering
 */

/* What stands in front of the number: who asks, and the empty frame of a REQ socket. */
typedef struct envelope {
    unsigned char frame[MOST_ENVELOPE][256];
    size_t bytes[MOST_ENVELOPE], n;
} envelope;

static bool more_follows(void *socket) {
    int more = 0;
    size_t bytes = sizeof more;
    return zmq_core.zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &bytes) == 0 && more;
}

/* One whole question. False: the server ends. *right: it can be answered. */
static bool receive(void *socket, envelope *e, uint64_t *from, bool *right) {
    unsigned char frame[256];
    *e = (envelope){0};
    *right = true;
    for (bool more = true; more;) {
        int n = zmq_core.zmq_recv(socket, frame, sizeof frame, 0);
        if (n < 0 && zmq_core.zmq_errno() == EINTR) continue;
        if (n < 0) return false;
        more = more_follows(socket);
        bool fits = (size_t)n <= sizeof frame;
        if (!more) {
            *right = *right && e->n && n == NUMBER_BYTES;
            *from = *right ? number_of(frame) : 0;
        } else if (fits && e->n < MOST_ENVELOPE) {
            memcpy(e->frame[e->n], frame, (size_t)n);
            e->bytes[e->n++] = (size_t)n;
        } else {
            *right = false;
        }
    }
    return true;
}

static bool reply(void *socket, const envelope *e, uint64_t number, const void *payload, size_t bytes) {
    unsigned char text[NUMBER_BYTES];
    number_bytes(number, text);
    for (size_t i = 0; i < e->n; i++)
        if (zmq_core.zmq_send(socket, e->frame[i], e->bytes[i], ZMQ_SNDMORE) < 0) return false;
    return zmq_core.zmq_send(socket, text, sizeof text, ZMQ_SNDMORE) >= 0 &&
           zmq_core.zmq_send(socket, payload, bytes, 0) >= 0;
}

static void *answer(void *user) {
    zmq_publisher *p = user;
    envelope e;
    uint64_t from;
    bool right;
    while (receive(p->router, &e, &from, &right)) {
        if (!right) continue;
        size_t n;
        message **messages = take_from(p, from, &n);
        bool there = true;
        for (size_t i = 0; i < n; i++) {
            there = there && reply(p->router, &e, messages[i]->number, messages[i]->payload, messages[i]->bytes);
            if (there) atomic_fetch_add(&p->replayed, 1);
            let_go(messages[i]);
        }
        free(messages);
        if (there) (void)reply(p->router, &e, UINT64_MAX, "", 0);
    }
    return NULL;
}

/* --------------------------------------------------------------------------------------------------------- open, close
 */

static kakeya_status bind_socket(void *context, int type, int most_waiting, const char *address, void **out,
                                 char bound[ADDRESS_BYTES], kakeya_error *error) {
    const int linger = LINGER_MS;
    size_t bytes = ADDRESS_BYTES;
    *out = zmq_core.zmq_socket(context, type);
    if (!*out) return error_set(error, KAKEYA_IO, "K/V events: %s", zmq_core.zmq_strerror(zmq_core.zmq_errno()));
    (void)zmq_core.zmq_setsockopt(*out, ZMQ_LINGER, &linger, sizeof linger);
    (void)zmq_core.zmq_setsockopt(*out, ZMQ_SNDHWM, &most_waiting, sizeof most_waiting);
    if (zmq_core.zmq_bind(*out, address) != 0 || zmq_core.zmq_getsockopt(*out, ZMQ_LAST_ENDPOINT, bound, &bytes) != 0)
        return error_set(error, KAKEYA_IO, "K/V events: %s: %s", address, zmq_core.zmq_strerror(zmq_core.zmq_errno()));
    return KAKEYA_OK;
}

kakeya_status zmq_publisher_open(const char *address, const char *topic, const char *replay, zmq_publisher **out,
                                 kakeya_error *error) {
    *out = NULL;
    kakeya_status status = zmq_core_load(error);
    if (status != KAKEYA_OK) return status;
    zmq_publisher *p = calloc(1, sizeof *p);
    if (!p) return error_set(error, KAKEYA_OUT_OF_MEMORY, "K/V events: out of memory");
    pthread_mutex_init(&p->lock, NULL);
    p->topic = strdup(topic);
    p->context = zmq_core.zmq_ctx_new();
    if (!p->topic || !p->context) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "K/V events: out of memory");
    if (status == KAKEYA_OK)
        status = bind_socket(p->context, ZMQ_PUB, MOST_WAITING, address, &p->out, p->address, error);
    if (status == KAKEYA_OK && replay)
        status = bind_socket(p->context, ZMQ_ROUTER, 0, replay, &p->router, p->replay_address, error);
    if (status == KAKEYA_OK && replay) {
        p->running = platform_thread_create(&p->thread, answer, p) == 0;
        if (!p->running) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "K/V events: no thread for replays");
    }
    if (status != KAKEYA_OK) {
        zmq_publisher_close(p);
        return status;
    }
    *out = p;
    return KAKEYA_OK;
}

void zmq_publisher_close(zmq_publisher *p) {
    if (!p) return;
    if (p->out) (void)zmq_core.zmq_close(p->out); /* what was sent still leaves, for as long as it may linger */
    if (p->context) (void)zmq_core.zmq_ctx_shutdown(p->context);
    if (p->running) pthread_join(p->thread, NULL);
    if (p->router) (void)zmq_core.zmq_close(p->router);
    if (p->context) (void)zmq_core.zmq_ctx_term(p->context);
    while (p->n_kept) drop_oldest(p);
    pthread_mutex_destroy(&p->lock);
    free(p->topic);
    free(p);
}

const char *zmq_publisher_address(const zmq_publisher *p) { return p->address; }

const char *zmq_publisher_replay_address(const zmq_publisher *p) { return p->router ? p->replay_address : NULL; }

uint64_t zmq_publisher_replayed(const zmq_publisher *p) { return atomic_load(&p->replayed); }
