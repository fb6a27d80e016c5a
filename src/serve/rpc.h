/* The gRPC service as a part of the server; where the build or the settings have none, nothing. */
#ifndef KAKEYA_SERVE_RPC_H
#define KAKEYA_SERVE_RPC_H

#include "serve/server.h"

kakeya_status rpc_open(server_context *server, kakeya_error *error);
/* "127.0.0.1:50051"; NULL: there is none. */
const char *rpc_address(const server_context *server);
/* Engine and store are there. */
void rpc_serve(server_context *server);
/* New work is refused. */
void rpc_drain(server_context *server);
bool rpc_is_running(server_context *server);
/* Before the store is closed. */
void rpc_close(server_context *server);

#endif
