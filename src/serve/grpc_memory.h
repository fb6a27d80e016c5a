/* Operations that find no memory for what they compute: idle sessions give way, then operations and answers over HTTP
 * wait for each other, their sessions in files (memory_queue.h). For the server's thread. */
#ifndef KAKEYA_SERVE_GRPC_MEMORY_H
#define KAKEYA_SERVE_GRPC_MEMORY_H

#include "serve/grpc_operation.h"

/* Whether the operation may have memory now. Otherwise it is STATE_QUEUED: others wait. */
bool grpc_memory_enter(operation *op);
/* For an operation that found none for the session itself, on the thread of grpc_work: idle sessions give way. */
bool grpc_memory_relieve(operation *op, const kakeya_error *why);
/* The same afterwards, on the server's thread: true: it is STATE_QUEUED until others have given memory back. */
bool grpc_memory_wait(operation *op, const kakeya_error *why);
/* Whether an operation that is STATE_QUEUED goes on. */
bool grpc_memory_goes_on(operation *op);
/* Whatever an operation that computes may want of memory, or others of it. Does not end it. */
void grpc_memory_tend(operation *op);

#endif
