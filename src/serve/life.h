/* Whether the model is in memory: it is loaded at the start; where --idle-unload says so it leaves when nobody has used
 * it for a while, and the next call that needs it waits until it is loaded again. A computation that fails as a whole,
 * as those of a lost device do, ends what runs, and the model is loaded again. */
#ifndef KAKEYA_SERVE_LIFE_H
#define KAKEYA_SERVE_LIFE_H

#include "serve/errors.h"
#include "serve/server.h"

typedef struct life life;

/* Before anything asks for it. NULL: out of memory. Freed with life_close. */
life *life_open(server_context *server);
/* Loads, on a thread of its own. */
kakeya_status life_begin(life *life, kakeya_error *error);
/* Nobody waits for the model any more, and it is not loaded again: once the server drains. NULL is fine. */
void life_stop(life *life);
/* After life_stop: nothing is loaded or closed from here on; the engine and the store stay the server's. NULL is fine.
 */
void life_join(life *life);
/* Once neither calls nor ticks come. NULL is fine. */
void life_close(life *life);
/* Whether the model could not be loaded at the start, or after a failure: the server has no use any more. */
bool life_failed(life *life, kakeya_error *error);

/* The model stays in memory until life_release. Waits for it while it sleeps, so it is not for the network thread; no
 * longer than until *gone, for which whoever sets it calls life_nudge. False: *error says why not. */
bool life_hold(life *life, const _Atomic bool *gone, api_error *error);
void life_nudge(void *life);
/* Once more, for somebody who may outlast the call. */
void life_hold_again(life *life);
void life_release(life *life);

/* gRPC: the model is wanted, it has just been used. Any thread. */
void life_wake(life *life);
void life_touch(life *life);

/* Network thread, now and then. No call of that thread may use what a call has released. */
void life_tick(life *life, double now);

/* What its engine has done with pictures; zeros while there is none. Any thread. */
kakeya_image_counts life_image_counts(life *life);
/* What the engine has allocated, and what its K/V memory may take; 0 while there is none. Any thread. */
size_t life_layer_memory(life *life, kakeya_memory_kind kind, int layer); /* K/V of one layer */
size_t life_memory(life *life, kakeya_memory_kind kind);
size_t life_kv_room(life *life);
kakeya_weights life_weights(life *life);
size_t life_spilled(life *life); /* bytes in files of sessions that wait for memory */
/* Loads after the first one: those that have succeeded, and the others. */
void life_counts(life *life, uint64_t *wakes, uint64_t *failures);

#endif
