/* Any bytes as a request of the gRPC services: refused with a message, or read within bounds into valid text and ids
 * that are there. The first byte says which request. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/grpc_messages.h"
#include "text/utf8.h"

static void touch(const void *data, size_t bytes) {
    const volatile uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++) (void)at[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    kakeya_error error = {0};
    grpc_request request;
    const grpc_request_type type = data[0] % GRPC_REQUEST_TYPES;
    if (grpc_request_read(type, data + 1, size - 1, &request, &error)) {
        if (error.message[0] == 0) abort();
        if (utf8_valid_bytes(error.message, strlen(error.message)) != strlen(error.message)) abort();
    } else {
        const size_t bytes = strlen(request.name);
        if (bytes >= size || utf8_valid_bytes(request.name, bytes) != bytes) abort();
        if (request.n_ids >= size) abort(); /* every id has a byte at least */
        touch(request.ids, request.n_ids * sizeof *request.ids);
        if (!request.has_seed && request.seed != 0) abort();
    }
    grpc_request_free(&request);
    return 0;
}
