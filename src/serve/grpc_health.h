/* grpc.health.v1.Health: Check and Watch. For the server's thread. */
#ifndef KAKEYA_SERVE_GRPC_HEALTH_H
#define KAKEYA_SERVE_GRPC_HEALTH_H

#include "serve/grpc_server.h"

typedef struct grpc_health grpc_health;

/* NULL: out of memory. Nothing is served at first. */
grpc_health *grpc_health_new(void);
/* No call may be left. NULL is fine. */
void grpc_health_free(grpc_health *health);
/* Tells those who watch. */
void grpc_health_set(grpc_health *health, bool serving);
/* Ends what is being watched, with UNAVAILABLE. */
void grpc_health_stop(grpc_health *health);

void grpc_health_check(grpc_health *health, rpc_call *call, const uint8_t *data, size_t bytes);
void grpc_health_watch(grpc_health *health, rpc_call *call, const uint8_t *data, size_t bytes);
void grpc_health_sent(grpc_health *health, rpc_call *call);
void grpc_health_gone(grpc_health *health, rpc_call *call);

#endif
