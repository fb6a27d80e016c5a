/* One thread for what the gRPC server's thread must not wait for: sessions are opened and closed in the engine's turn,
 * and may be files. Jobs are run one after the other, in the order in which they were added. */
#ifndef KAKEYA_SERVE_GRPC_WORK_H
#define KAKEYA_SERVE_GRPC_WORK_H

#include "kakeya.h"

typedef struct grpc_work grpc_work;

/* The first member of what a job needs. */
typedef struct grpc_job {
    void (*run)(struct grpc_job *job);  /* on the work's thread */
    void (*done)(struct grpc_job *job); /* by grpc_work_settle; frees it */
    struct grpc_job *next;
} grpc_job;

/* wake: called on the work's thread when a job has run; settle is to be called soon. */
kakeya_status grpc_work_open(void (*wake)(void *user), void *user, grpc_work **out, kakeya_error *error);
void grpc_work_add(grpc_work *work, grpc_job *job);
/* Calls `done` of all jobs that have run. On the thread that adds jobs. */
void grpc_work_settle(grpc_work *work);
/* Whether jobs are not settled. On the thread that adds jobs. */
bool grpc_work_is_idle(const grpc_work *work);
/* Runs and settles what is left. NULL is fine. */
void grpc_work_close(grpc_work *work);

#endif
