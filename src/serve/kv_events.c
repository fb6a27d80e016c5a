#include "serve/kv_events.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/error.h"

#ifdef KAKEYA_HAVE_ZMQ

#include "serve/kv_messages.h"
#include "serve/zmq_publisher.h"

struct kv_events {
    kv_blocks *blocks;
    zmq_publisher *publisher;
    text_buffer message; /* under the lock of the blocks */
    _Atomic uint64_t bytes;
};

/* A message that finds no memory is not sent, and its number is missing: whoever listens knows that it has a gap. */
static void publish(void *user, const kv_block_event *event) {
    kv_events *events = user;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    text_buffer *m = &events->message;
    text_clear(m);
    kv_message_write(m, event, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    zmq_publisher_send(events->publisher, m->failed ? NULL : m->data, m->n);
    if (!m->failed) atomic_fetch_add_explicit(&events->bytes, m->n, memory_order_relaxed);
}

kakeya_status kv_events_open(const char *address, const char *topic, const char *replay, kv_events **out,
                             kakeya_error *error) {
    *out = NULL;
    kv_events *events = calloc(1, sizeof *events);
    if (events) events->blocks = kv_blocks_open(publish, events);
    kakeya_status status = events && events->blocks
                               ? zmq_publisher_open(address, topic, replay, &events->publisher, error)
                               : error_set(error, KAKEYA_OUT_OF_MEMORY, "K/V events: out of memory");
    if (status != KAKEYA_OK) {
        kv_events_close(events);
        return status;
    }
    *out = events;
    return KAKEYA_OK;
}

void kv_events_close(kv_events *events) {
    if (!events) return;
    zmq_publisher_close(events->publisher);
    kv_blocks_close(events->blocks);
    text_free(&events->message);
    free(events);
}

kv_blocks *kv_events_blocks(kv_events *events) { return events ? events->blocks : NULL; }

const char *kv_events_address(const kv_events *events) { return zmq_publisher_address(events->publisher); }

const char *kv_events_replay_address(const kv_events *events) {
    return zmq_publisher_replay_address(events->publisher);
}

void kv_events_count(kv_events *events, kv_events_counts *out) {
    kv_blocks_count(events->blocks, &out->blocks);
    out->bytes = atomic_load_explicit(&events->bytes, memory_order_relaxed);
    out->replayed = zmq_publisher_replayed(events->publisher);
}

#else

kakeya_status kv_events_open(const char *address, const char *topic, const char *replay, kv_events **out,
                             kakeya_error *error) {
    (void)address, (void)topic, (void)replay;
    *out = NULL;
    return error_set(error, KAKEYA_UNSUPPORTED,
                     "K/V events: this build has no ZeroMQ (it was built without "
                     "libzmq3-dev)");
}

void kv_events_close(kv_events *events) { (void)events; }

kv_blocks *kv_events_blocks(kv_events *events) {
    (void)events;
    return NULL;
}

const char *kv_events_address(const kv_events *events) {
    (void)events;
    return NULL;
}

const char *kv_events_replay_address(const kv_events *events) {
    (void)events;
    return NULL;
}

void kv_events_count(kv_events *events, kv_events_counts *out) {
    (void)events;
    *out = (kv_events_counts){0};
}

#endif
