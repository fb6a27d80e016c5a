/* The gRPC service as a part of the server; where the build or the settings have none, nothing. */
#ifndef KAKEYA_SERVE_RPC_H
#define KAKEYA_SERVE_RPC_H

#include "serve/server.h"

/* Calls the server's model_wanted and model_used. */
kakeya_status rpc_open(server_context *server, kakeya_error *error);
/* "127.0.0.1:50051"; NULL: there is none. */
const char *rpc_address(const server_context *server);
/* Engine and store are there: for the first time, or again. */
void rpc_serve(server_context *server);
/* Takes the engine away: calls that need it wait, and wake it. False: one of them is under way. Waits for the service's
 * thread. failed: what is under way ends with INTERNAL, and whoever comes meanwhile waits already. */
bool rpc_unload(server_context *server, bool failed);
/* Those who wait get UNAVAILABLE. */
void rpc_wake_failed(server_context *server, const char *why);
/* New work is refused. */
void rpc_drain(server_context *server);
bool rpc_is_running(server_context *server);
/* Before the store is closed. */
void rpc_close(server_context *server);

#endif
