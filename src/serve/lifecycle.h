/* Whether the model is in memory: it is loaded at the start; where --idle-unload says so it leaves when nobody has used
 * it for a while, and the next call that needs it waits until it is loaded again. A computation that fails as a whole,
 * as those of a lost device do, ends what runs, and the model is loaded again. */
#ifndef KAKEYA_SERVE_LIFECYCLE_H
#define KAKEYA_SERVE_LIFECYCLE_H

#include "serve/errors.h"
#include "serve/server.h"

typedef struct lifecycle lifecycle;

/* Before anything asks for it. NULL: out of memory. Freed with lifecycle_close. */
lifecycle *lifecycle_open(server_context *server);
/* Loads, on a thread of its own. */
kakeya_status lifecycle_begin(lifecycle *lifecycle, kakeya_error *error);
/* Nobody waits for the model any more, and it is not loaded again: once the server drains. NULL is fine. */
void lifecycle_stop(lifecycle *lifecycle);
/* After lifecycle_stop: nothing is loaded or closed from here on; the engine and the store stay the server's. NULL is
 * fine.
 */
void lifecycle_join(lifecycle *lifecycle);
/* Once neither calls nor ticks come. NULL is fine. */
void lifecycle_close(lifecycle *lifecycle);
/* Whether the model could not be loaded at the start, or after a failure: the server has no use any more. */
bool lifecycle_failed(lifecycle *lifecycle, kakeya_error *error);

/* The model stays in memory until lifecycle_release. Waits for it while it sleeps, so it is not for the network thread;
 * no longer than until *gone, for which whoever sets it calls lifecycle_nudge. False: *error says why not. */
bool lifecycle_hold(lifecycle *lifecycle, const _Atomic bool *gone, api_error *error);
void lifecycle_nudge(void *lifecycle);
/* Once more, for somebody who may outlast the call. */
void lifecycle_hold_again(lifecycle *lifecycle);
void lifecycle_release(lifecycle *lifecycle);

/* gRPC: the model is wanted, it has just been used. Any thread. */
void lifecycle_wake(lifecycle *lifecycle);
void lifecycle_touch(lifecycle *lifecycle);

/* Network thread, now and then. No call of that thread may use what a call has released. */
void lifecycle_tick(lifecycle *lifecycle, double now);

/* What its engine has done with pictures; zeros while there is none. Any thread. */
kakeya_image_counts lifecycle_image_counts(lifecycle *lifecycle);
kakeya_sound_counts lifecycle_sound_counts(lifecycle *lifecycle);
/* What the engine has allocated, and what its K/V memory may take; 0 while there is none. Any thread. */
size_t lifecycle_layer_memory(lifecycle *lifecycle, kakeya_memory_kind kind, int layer); /* K/V of one layer */
size_t lifecycle_memory(lifecycle *lifecycle, kakeya_memory_kind kind);
size_t lifecycle_kv_room(lifecycle *lifecycle);
kakeya_weights lifecycle_weights(lifecycle *lifecycle);
size_t lifecycle_spilled(lifecycle *lifecycle); /* bytes in files of sessions that wait for memory */
/* Loads after the first one: those that have succeeded, and the others. */
void lifecycle_counts(lifecycle *lifecycle, uint64_t *wakes, uint64_t *failures);

#endif
