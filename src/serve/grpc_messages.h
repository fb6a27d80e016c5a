/* Messages of the gRPC services between bytes and plain values (src/serve/proto). Requests come from anybody: reading
 * one takes bounded memory, and text in it is checked. */
#ifndef KAKEYA_SERVE_GRPC_MESSAGES_H
#define KAKEYA_SERVE_GRPC_MESSAGES_H

#include "kakeya.h"

typedef enum grpc_request_type {
    GRPC_CREATE_SESSION = 0,
    GRPC_APPEND_TOKENS,
    GRPC_GENERATE,
    GRPC_CLOSE_SESSION,
    GRPC_GET_SESSION_INFO,
    GRPC_HEALTH,
    GRPC_REQUEST_TYPES,
} grpc_request_type;

/* Any request; the fields that its type does not have are zero. */
typedef struct grpc_request {
    char *name; /* client_label, session_id or service: UTF-8, NUL-terminated, never NULL */
    uint32_t *ids;
    size_t n_ids;
    uint32_t max_tokens;
    bool has_seed, has_temperature, has_top_p, has_top_k;
    uint64_t seed;
    float temperature, top_p;
    uint32_t top_k;
} grpc_request;

/* KAKEYA_INVALID_ARGUMENT where the bytes are no such message, or text is no text; KAKEYA_OUT_OF_MEMORY where it is
 * larger than a request can sensibly be. *out is freed with grpc_request_free, also after a failure. */
kakeya_status grpc_request_read(grpc_request_type type, const uint8_t *data, size_t bytes, grpc_request *out,
                                kakeya_error *error);
void grpc_request_free(grpc_request *request);

typedef enum grpc_stop_reason {
    GRPC_STOP_MAX_TOKENS = 1,
    GRPC_STOP_EOS,
    GRPC_STOP_CANCELLED,
    GRPC_STOP_TRUNCATED,
} grpc_stop_reason;

/* Responses. Each writes at most GRPC_RESPONSE_ROOM bytes and returns how many. */
enum { GRPC_RESPONSE_ROOM = 128, GRPC_SESSION_ID_BYTES = 37 /* without NUL */ };
size_t grpc_write_created(const char id[GRPC_SESSION_ID_BYTES + 1], uint8_t *out);
size_t grpc_write_appended(uint64_t history, uint8_t *out);
size_t grpc_write_token(uint32_t token, uint8_t *out);
size_t grpc_write_truncated(uint64_t dropped, uint8_t *out);
size_t grpc_write_done(grpc_stop_reason reason, uint32_t tokens, double prefill_seconds, double total_seconds,
                       uint8_t *out);
size_t grpc_write_closed(uint64_t history, uint8_t *out);
size_t grpc_write_info(uint64_t history, uint64_t kv_bytes, double idle_seconds, uint8_t *out);
/* status: the number of HealthCheckResponse.ServingStatus. */
size_t grpc_write_health(int status, uint8_t *out);

#endif
