/* The functions of libzmq, which is loaded when a server is to publish K/V events: every other start does without it
 * and the libraries that it brings. */
#ifndef KAKEYA_SERVE_ZMQ_CORE_H
#define KAKEYA_SERVE_ZMQ_CORE_H

#include <zmq.h>

#include "kakeya.h"

/* What the server uses of it; another function is added here. */
/* clang-format off */
#define ZMQ_CORE_FUNCTIONS(X) \
    X(zmq_bind) \
    X(zmq_close) \
    X(zmq_ctx_new) \
    X(zmq_ctx_shutdown) \
    X(zmq_ctx_term) \
    X(zmq_errno) \
    X(zmq_getsockopt) \
    X(zmq_recv) \
    X(zmq_send) \
    X(zmq_setsockopt) \
    X(zmq_socket) \
    X(zmq_strerror)
/* clang-format on */

typedef struct zmq_core_functions {
#define FIELD(name) __typeof__(name) *name;
    ZMQ_CORE_FUNCTIONS(FIELD)
#undef FIELD
} zmq_core_functions;

/* Filled by zmq_core_load and constant from then on. */
extern zmq_core_functions zmq_core;

/* Any thread, any number of times. Fails, naming the library, where it is not installed. It stays loaded. */
kakeya_status zmq_core_load(kakeya_error *error);

#endif
