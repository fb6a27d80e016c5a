/* kakeya.v1.RuntimeService: five methods on sessions of tokens (docs/reference/grpc.md). All functions are for the
 * server's thread, but for the opening and the closing. */
#ifndef KAKEYA_SERVE_GRPC_RUNTIME_H
#define KAKEYA_SERVE_GRPC_RUNTIME_H

#include "serve/grpc_messages.h"
#include "serve/grpc_options.h"
#include "serve/grpc_server.h"
#include "serve/store.h"

typedef struct grpc_runtime grpc_runtime;

/* wake: makes grpc_runtime_advance be called soon; from any thread. */
kakeya_status grpc_runtime_open(const grpc_service_options *options, void (*wake)(void *user), void *user,
                                grpc_runtime **out, kakeya_error *error);
/* No call may be left. NULL is fine. */
void grpc_runtime_close(grpc_runtime *runtime);

void grpc_runtime_request(grpc_runtime *runtime, rpc_call *call, grpc_request_type type, const uint8_t *data,
                          size_t bytes);
void grpc_runtime_sent(grpc_runtime *runtime, rpc_call *call);
void grpc_runtime_gone(grpc_runtime *runtime, rpc_call *call);
/* What has happened on other threads, and what time has done. */
void grpc_runtime_advance(grpc_runtime *runtime);

/* From now on, or again, there are sessions: the named ones of the store, in this engine. */
void grpc_runtime_serve(grpc_runtime *runtime, kakeya_engine *engine, prefix_store *store);
/* Takes the engine away until there is one again; false: a call is under way. failed: what is under way ends with
 * INTERNAL, and calls that come wait already where this is false. */
bool grpc_runtime_unload(grpc_runtime *runtime, bool failed);
/* There will be none: the calls that wait for it end. */
void grpc_runtime_wake_failed(grpc_runtime *runtime, const char *why);
/* No new work is taken, which gets UNAVAILABLE; what runs goes on. */
void grpc_runtime_drain(grpc_runtime *runtime);
/* Ends what runs, with UNAVAILABLE. */
void grpc_runtime_stop(grpc_runtime *runtime);
/* Calls that compute or wait, and one more while the store is at work for them. 0 after grpc_runtime_stop: `wake` is
 * not called again. */
size_t grpc_runtime_running(const grpc_runtime *runtime);

#endif
