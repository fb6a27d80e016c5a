/* gRPC: kakeya.v1.RuntimeService and grpc.health.v1.Health on a port of its own. The service answers from the start;
 * until a model is there, and from draining on, it says UNAVAILABLE and its health is NOT_SERVING. */
#ifndef KAKEYA_SERVE_GRPC_H
#define KAKEYA_SERVE_GRPC_H

#include "serve/grpc_options.h"
#include "serve/store.h"

typedef struct grpc_service grpc_service;

/* Listens. *out is freed with grpc_service_stop. */
kakeya_status grpc_service_start(const grpc_service_options *options, grpc_service **out, kakeya_error *error);
/* "127.0.0.1:50051", with the port that was chosen. */
const char *grpc_service_address(const grpc_service *service);
/* The model is there. Sessions are the named ones of the store; both must live until grpc_service_stop returns. */
void grpc_service_serve(grpc_service *service, kakeya_engine *engine, prefix_store *store);
/* Takes the engine away until grpc_service_serve gives one again: calls that need it wait, after on_wanted. False: a
 * call is under way, or the service does not serve. Waits for the service's thread. failed: what is under way ends with
 * INTERNAL, and whoever comes waits already where this is false. */
bool grpc_service_unload(grpc_service *service, bool failed);
/* There is none: the calls that wait get UNAVAILABLE. */
void grpc_service_wake_failed(grpc_service *service, const char *why);
/* New work is refused, running work goes on. */
void grpc_service_drain(grpc_service *service);
/* Calls that compute or wait to. */
size_t grpc_service_running(grpc_service *service);
/* Ends what runs, gives all sessions back to the store and frees the service. NULL is fine. */
void grpc_service_stop(grpc_service *service);

#endif
