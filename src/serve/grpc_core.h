/* The functions of grpc core, which is loaded when the first server opens. Linked into the program, the library and the
 * forty that it brings would cost every start of `kakeya` more time than all the rest of starting. */
#ifndef KAKEYA_SERVE_GRPC_CORE_H
#define KAKEYA_SERVE_GRPC_CORE_H

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>

#include "kakeya.h"

/* What the server uses of it; another function is added here. */
/* clang-format off */
#define GRPC_CORE_FUNCTIONS(X) \
    X(gpr_inf_future) \
    X(gpr_now) \
    X(gpr_set_log_function) \
    X(gpr_time_add) \
    X(gpr_time_from_millis) \
    X(grpc_byte_buffer_destroy) \
    X(grpc_byte_buffer_reader_destroy) \
    X(grpc_byte_buffer_reader_init) \
    X(grpc_byte_buffer_reader_readall) \
    X(grpc_call_cancel) \
    X(grpc_call_cancel_with_status) \
    X(grpc_call_details_destroy) \
    X(grpc_call_details_init) \
    X(grpc_call_start_batch) \
    X(grpc_call_unref) \
    X(grpc_channel_create_call) \
    X(grpc_channel_destroy) \
    X(grpc_completion_queue_create_for_next) \
    X(grpc_completion_queue_destroy) \
    X(grpc_completion_queue_next) \
    X(grpc_completion_queue_shutdown) \
    X(grpc_init) \
    X(grpc_insecure_server_credentials_create) \
    X(grpc_lame_client_channel_create) \
    X(grpc_metadata_array_destroy) \
    X(grpc_metadata_array_init) \
    X(grpc_raw_byte_buffer_create) \
    X(grpc_server_add_http2_port) \
    X(grpc_server_cancel_all_calls) \
    X(grpc_server_create) \
    X(grpc_server_credentials_release) \
    X(grpc_server_destroy) \
    X(grpc_server_register_completion_queue) \
    X(grpc_server_request_call) \
    X(grpc_server_shutdown_and_notify) \
    X(grpc_server_start) \
    X(grpc_shutdown) \
    X(grpc_slice_from_copied_buffer) \
    X(grpc_slice_from_copied_string) \
    X(grpc_slice_from_static_string) \
    X(grpc_slice_str_cmp) \
    X(grpc_slice_unref) \
    X(grpc_ssl_server_credentials_create_ex)
/* clang-format on */

typedef struct grpc_core_functions {
#define FIELD(name) __typeof__(name) *name;
    GRPC_CORE_FUNCTIONS(FIELD)
#undef FIELD
} grpc_core_functions;

/* Filled by grpc_core_load and constant from then on. */
extern grpc_core_functions grpc_core;

/* Any thread, any number of times. Fails, naming the library, where it is not installed. It stays loaded: the core has
 * threads of its own. */
kakeya_status grpc_core_load(kakeya_error *error);

#endif
