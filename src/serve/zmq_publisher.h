/* Numbered messages over ZeroMQ: three frames (topic, sequence number of 8 bytes big-endian, payload) to whoever is
 * subscribed, and the last ones again to whoever asks from which number on.
 *
 * Asking: a ROUTER socket takes a message whose last frame is the first number wanted, 8 bytes big-endian. It sends one
 * message (number, payload) for each that is kept, then one with the number -1 and no payload; what stood in front of
 * the number in the question (the empty frame of a REQ socket) stands in front of each. */
#ifndef KAKEYA_SERVE_ZMQ_PUBLISHER_H
#define KAKEYA_SERVE_ZMQ_PUBLISHER_H

#include "kakeya.h"

/* What is kept for those who ask. */
enum { ZMQ_PUBLISHER_KEPT = 10000 };
#define ZMQ_PUBLISHER_KEPT_BYTES ((size_t)64 << 20)

typedef struct zmq_publisher zmq_publisher;

/* Binds; the strings are copied. replay may be NULL: nothing is kept then. */
kakeya_status zmq_publisher_open(const char *address, const char *topic, const char *replay, zmq_publisher **out,
                                 kakeya_error *error);
void zmq_publisher_close(zmq_publisher *publisher); /* NULL is fine */

/* Sends, and keeps a copy; payload NULL: the number is passed over. One thread at a time. Never waits: whoever reads
 * too slowly misses messages, and sees that by their numbers. */
void zmq_publisher_send(zmq_publisher *publisher, const char *payload, size_t bytes);

/* Where it listens, with the ports that were chosen for "*"; the second is NULL where there is none. */
const char *zmq_publisher_address(const zmq_publisher *publisher);
const char *zmq_publisher_replay_address(const zmq_publisher *publisher);
/* Messages that were sent again. */
uint64_t zmq_publisher_replayed(const zmq_publisher *publisher);

#endif
