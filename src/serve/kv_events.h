/* K/V events: tells routers which beginnings of texts this server could continue, in vLLM's form over ZeroMQ. What the
 * messages say is kv_messages.h, how they travel zmq_publisher.h. */
#ifndef KAKEYA_SERVE_KV_EVENTS_H
#define KAKEYA_SERVE_KV_EVENTS_H

#include "kakeya.h"
#include "serve/kv_blocks.h"

typedef struct kv_events kv_events;

/* KAKEYA_UNSUPPORTED: a build without libzmq, or the library is not there. replay may be NULL. */
kakeya_status kv_events_open(const char *address, const char *topic, const char *replay, kv_events **out,
                             kakeya_error *error);
void kv_events_close(kv_events *events); /* after those who have its blocks; NULL is fine */

/* What the store fills; NULL where events is NULL. */
kv_blocks *kv_events_blocks(kv_events *events);
/* Endpoints, with the ports that were chosen; the second may be NULL. */
const char *kv_events_address(const kv_events *events);
const char *kv_events_replay_address(const kv_events *events);

typedef struct kv_events_counts {
    kv_block_counts blocks;
    uint64_t bytes, replayed; /* of payloads; messages */
} kv_events_counts;
void kv_events_count(kv_events *events, kv_events_counts *out);

#endif
