/* The server from its start to its end. */
#ifndef KAKEYA_SERVE_SERVE_H
#define KAKEYA_SERVE_SERVE_H

#include <signal.h>

#include "serve/settings.h"

typedef struct server_context server_context;

/* Starts answering while the model is being loaded on a thread of the server's. The settings must outlive it. */
kakeya_status serve_start(const serve_settings *settings, server_context **out, kakeya_error *error);
const char *serve_url(const server_context *server);
/* HOST:PORT of the gRPC service; NULL: there is none. */
const char *serve_grpc(const server_context *server);
/* "tcp://127.0.0.1:5557", where K/V events are published and where they can be asked for again; NULL: nowhere. */
const char *serve_kv_events(const server_context *server);
const char *serve_kv_events_replay(const server_context *server);
/* Waits for one of the signals of `wanted`, which all threads block, or for a model that cannot be loaded: then 0 comes
 * back, and *error says why. */
int serve_wait(server_context *server, const sigset_t *wanted, kakeya_error *error);
/* Reads the key file again. */
kakeya_status serve_reload_keys(server_context *server, kakeya_error *error);
/* New requests are refused, running ones go on for drain_seconds. *second, where it becomes true, ends that at once. */
void serve_drain(server_context *server);
void serve_stop(server_context *server);

#endif
