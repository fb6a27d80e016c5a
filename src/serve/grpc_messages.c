#include "serve/grpc_messages.h"

#include <stdlib.h>
#include <string.h>

#include <grpc/health/v1/health.pb-c.h>
#include <kakeya/v1/runtime.pb-c.h>

#include "base/error.h"
#include "text/utf8.h"

/* ---------------------------------------------------------------------------------------------------- reading */

/* Numbers that are not packed cost many times their bytes while they are read, so memory has an end. A million packed
 * ids take 4 MiB. */
enum { READ_LIMIT_BYTES = 64 << 20 };

typedef struct budget {
    size_t left;
} budget;

static void *take(void *user, size_t bytes) {
    budget *b = user;
    if (bytes > b->left) return NULL;
    void *memory = malloc(bytes ? bytes : 1);
    if (memory) b->left -= bytes;
    return memory;
}

static void give(void *user, void *memory) {
    (void)user;
    free(memory);
}

static const ProtobufCMessageDescriptor *const descriptors[GRPC_REQUEST_TYPES] = {
    [GRPC_CREATE_SESSION] = &kakeya__v1__create_session_request__descriptor,
    [GRPC_APPEND_TOKENS] = &kakeya__v1__append_tokens_request__descriptor,
    [GRPC_GENERATE] = &kakeya__v1__generate_request__descriptor,
    [GRPC_CLOSE_SESSION] = &kakeya__v1__close_session_request__descriptor,
    [GRPC_GET_SESSION_INFO] = &kakeya__v1__get_session_info_request__descriptor,
    [GRPC_HEALTH] = &grpc__health__v1__health_check_request__descriptor,
};

static kakeya_status read_name(const ProtobufCBinaryData *text, const char *field, grpc_request *out,
                               kakeya_error *error) {
    const char *data = (const char *)text->data;
    if (text->len && (memchr(data, '\0', text->len) || utf8_valid_bytes(data, text->len) != text->len))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s is not UTF-8 text without NUL", field);
    out->name = malloc(text->len + 1);
    if (!out->name) return error_set(error, KAKEYA_OUT_OF_MEMORY, "request: out of memory");
    if (text->len) memcpy(out->name, data, text->len);
    out->name[text->len] = '\0';
    return KAKEYA_OK;
}

/* Takes the array over. */
static void read_ids(uint32_t **ids, size_t *n, grpc_request *out) {
    out->ids = *ids;
    out->n_ids = *n;
    *ids = NULL;
    *n = 0;
}

static void read_sampling(const Kakeya__V1__GenerateRequest *m, grpc_request *out) {
    out->max_tokens = m->max_tokens;
    out->has_seed = m->_seed_case == KAKEYA__V1__GENERATE_REQUEST___SEED_SEED;
    out->has_temperature = m->_temperature_case == KAKEYA__V1__GENERATE_REQUEST___TEMPERATURE_TEMPERATURE;
    out->has_top_p = m->_top_p_case == KAKEYA__V1__GENERATE_REQUEST___TOP_P_TOP_P;
    out->has_top_k = m->_top_k_case == KAKEYA__V1__GENERATE_REQUEST___TOP_K_TOP_K;
    if (out->has_seed) out->seed = m->seed;
    if (out->has_temperature) out->temperature = m->temperature;
    if (out->has_top_p) out->top_p = m->top_p;
    if (out->has_top_k) out->top_k = m->top_k;
}

static kakeya_status read_fields(grpc_request_type type, void *message, grpc_request *out, kakeya_error *error) {
    switch (type) {
    case GRPC_CREATE_SESSION: {
        Kakeya__V1__CreateSessionRequest *m = message;
        read_ids(&m->eos_token_ids, &m->n_eos_token_ids, out);
        return read_name(&m->client_label, "client_label", out, error);
    }
    case GRPC_APPEND_TOKENS: {
        Kakeya__V1__AppendTokensRequest *m = message;
        read_ids(&m->token_ids, &m->n_token_ids, out);
        return read_name(&m->session_id, "session_id", out, error);
    }
    case GRPC_GENERATE: {
        const Kakeya__V1__GenerateRequest *m = message;
        read_sampling(m, out);
        return read_name(&m->session_id, "session_id", out, error);
    }
    case GRPC_CLOSE_SESSION:
        return read_name(&((Kakeya__V1__CloseSessionRequest *)message)->session_id, "session_id", out, error);
    case GRPC_GET_SESSION_INFO:
        return read_name(&((Kakeya__V1__GetSessionInfoRequest *)message)->session_id, "session_id", out, error);
    default:
        return read_name(&((Grpc__Health__V1__HealthCheckRequest *)message)->service, "service", out, error);
    }
}

kakeya_status grpc_request_read(grpc_request_type type, const uint8_t *data, size_t bytes, grpc_request *out,
                                kakeya_error *error) {
    memset(out, 0, sizeof *out);
    budget left = {.left = READ_LIMIT_BYTES};
    ProtobufCAllocator allocator = {.alloc = take, .free = give, .allocator_data = &left};
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptors[type], &allocator, bytes, data);
    if (!message)
        return left.left < READ_LIMIT_BYTES / 2
                   ? error_set(error, KAKEYA_OUT_OF_MEMORY, "a request of %zu bytes has too many fields", bytes)
                   : error_set(error, KAKEYA_INVALID_ARGUMENT, "the request's %zu bytes are no %s", bytes,
                               descriptors[type]->name);
    kakeya_status status = read_fields(type, message, out, error);
    protobuf_c_message_free_unpacked(message, &allocator);
    return status;
}

void grpc_request_free(grpc_request *request) {
    free(request->name);
    free(request->ids);
    memset(request, 0, sizeof *request);
}

/* ---------------------------------------------------------------------------------------------------- writing */

size_t grpc_write_created(const char id[GRPC_SESSION_ID_BYTES + 1], uint8_t *out) {
    Kakeya__V1__CreateSessionResponse m = KAKEYA__V1__CREATE_SESSION_RESPONSE__INIT;
    uint8_t bytes[GRPC_SESSION_ID_BYTES];
    memcpy(bytes, id, sizeof bytes);
    m.session_id = (ProtobufCBinaryData){.len = sizeof bytes, .data = bytes};
    return kakeya__v1__create_session_response__pack(&m, out);
}

size_t grpc_write_appended(uint64_t history, uint8_t *out) {
    Kakeya__V1__AppendTokensResponse m = KAKEYA__V1__APPEND_TOKENS_RESPONSE__INIT;
    m.history_length = history;
    return kakeya__v1__append_tokens_response__pack(&m, out);
}

size_t grpc_write_token(uint32_t token, uint8_t *out) {
    Kakeya__V1__GenerateResponse m = KAKEYA__V1__GENERATE_RESPONSE__INIT;
    m.payload_case = KAKEYA__V1__GENERATE_RESPONSE__PAYLOAD_TOKEN_ID;
    m.token_id = token;
    return kakeya__v1__generate_response__pack(&m, out);
}

size_t grpc_write_truncated(uint64_t dropped, uint8_t *out) {
    Kakeya__V1__HistoryTruncated truncated = KAKEYA__V1__HISTORY_TRUNCATED__INIT;
    truncated.dropped_token_count = dropped;
    Kakeya__V1__GenerateResponse m = KAKEYA__V1__GENERATE_RESPONSE__INIT;
    m.payload_case = KAKEYA__V1__GENERATE_RESPONSE__PAYLOAD_TRUNCATED;
    m.truncated = &truncated;
    return kakeya__v1__generate_response__pack(&m, out);
}

size_t grpc_write_done(grpc_stop_reason reason, uint32_t tokens, double prefill_seconds, double total_seconds,
                       uint8_t *out) {
    Kakeya__V1__GenerateDone done = KAKEYA__V1__GENERATE_DONE__INIT;
    done.stop_reason = (Kakeya__V1__GenerateDone__StopReason)reason;
    done.generated_token_count = tokens;
    done.prefill_duration_seconds = prefill_seconds;
    done.total_duration_seconds = total_seconds;
    Kakeya__V1__GenerateResponse m = KAKEYA__V1__GENERATE_RESPONSE__INIT;
    m.payload_case = KAKEYA__V1__GENERATE_RESPONSE__PAYLOAD_DONE;
    m.done = &done;
    return kakeya__v1__generate_response__pack(&m, out);
}

size_t grpc_write_closed(uint64_t history, uint8_t *out) {
    Kakeya__V1__CloseSessionResponse m = KAKEYA__V1__CLOSE_SESSION_RESPONSE__INIT;
    m.final_history_length = history;
    return kakeya__v1__close_session_response__pack(&m, out);
}

size_t grpc_write_info(uint64_t history, uint64_t kv_bytes, double idle_seconds, uint8_t *out) {
    Kakeya__V1__GetSessionInfoResponse m = KAKEYA__V1__GET_SESSION_INFO_RESPONSE__INIT;
    m.history_length = history;
    m.kv_live_bytes = kv_bytes;
    m.idle_seconds = idle_seconds;
    return kakeya__v1__get_session_info_response__pack(&m, out);
}

size_t grpc_write_health(int status, uint8_t *out) {
    Grpc__Health__V1__HealthCheckResponse m = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    m.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)status;
    return grpc__health__v1__health_check_response__pack(&m, out);
}
