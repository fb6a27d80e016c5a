/* One evaluation as a process that is watched: by a supervisor of its own, so that limits hold while the worker waits
 * for the bus, and so that nothing goes on when the worker dies. */
#ifndef KAKEYA_REMOTE_RUNNER_H
#define KAKEYA_REMOTE_RUNNER_H

#include <stdbool.h>
#include <sys/types.h>

#include "remote/process.h"

typedef struct runner_job {
    const char *const *argv, *const *environment; /* NULL at their ends; argv[0] is a path */
    const char *name;   /* what the program is told that it is called, because its log may travel; NULL: argv[0] */
    const char *folder; /* where it runs and what it writes lies: the log as log.0 and log.1, stdout as `output` */
    const char *output; /* NULL: stdout goes to the log, too */
    double seconds, grace_seconds; /* until it is asked to end; from then until it is ended */
    process_limits limits;
    size_t log_bytes, output_bytes; /* more ends it */
} runner_job;

typedef enum runner_reason {
    RUNNER_EXITED,
    RUNNER_TIMED_OUT,
    RUNNER_LOG_LIMIT,
    RUNNER_OUTPUT_LIMIT,
    RUNNER_STOPPED,
    RUNNER_DISK,   /* its output could not be written */
    RUNNER_FAILED, /* it did not start, or the supervisor died */
} runner_reason;

typedef struct runner_end {
    runner_reason reason;
    int exit_status; /* 128 + the signal for a process that a signal has ended; -1: none */
    double seconds;
    char message[200]; /* for this machine's eyes: it may name the program's path */
} runner_end;

typedef struct runner {
    pid_t supervisor;
    int end_pipe, lock;
} runner;

enum { RUNNER_LOG_PART = 512 << 10 }; /* the last one to two parts of the log are kept */

/* Starts the supervisor, which starts the job. The folder must not have a run already (runner_wait_alone). */
kakeya_status runner_start(const runner_job *job, runner *out, kakeya_error *error);
/* Waits up to `seconds` for the end: true when it has come, with *end set and everything of the job gone. */
bool runner_wait(runner *r, double seconds, runner_end *end);
/* Asks the job to end, as when its time is over; runner_wait then reports RUNNER_STOPPED. */
void runner_stop(runner *r);

/* Waits up to `seconds` until no supervisor of an earlier worker is left in the folder. */
bool runner_wait_alone(const char *folder, double seconds);

/* The last bytes of the log, at most `most`, into malloc'ed memory. */
char *runner_log_tail(const char *folder, size_t most, size_t *bytes);

#endif
