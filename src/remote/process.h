/* Other programs (git, ssh-keygen) as calls: an argument vector and never a shell, a fixed environment, a session of
 * their own without a terminal to ask questions on, and limits on time, memory, files and output. */
#ifndef KAKEYA_REMOTE_PROCESS_H
#define KAKEYA_REMOTE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

/* What a child may use; 0 sets no limit. */
typedef struct process_limits {
    size_t cpu_seconds, file_bytes, memory_bytes;
    bool no_network; /* where the system lets a process do without */
} process_limits;

/* A child between its fork and its execution. Signals get their defaults, the child leads a session and process group
 * of its own, every descriptor but stdin, stdout and stderr closes with the execution. directory: NULL stays here. */
typedef struct process_child {
    const char *const *argv;        /* NULL at the end; argv[0] is looked for in the environment's PATH */
    const char *name;               /* what the program is told that it is called; NULL: argv[0] */
    const char *const *environment; /* NULL at the end */
    const char *directory;
    int in, out, err; /* become 0, 1 and 2; -1: /dev/null */
    process_limits limits;
    bool dies_with_parent; /* killed when this process ends, however it ends (where the system can do that) */
} process_child;

/* Starts it. KAKEYA_IO names the program when it is not there or cannot be executed. */
kakeya_status process_start(const process_child *child, pid_t *pid, kakeya_error *error);

typedef struct process_call {
    const char *const *argv, *const *environment;
    const char *input; /* [input_bytes] on stdin */
    size_t input_bytes;
    size_t most_output; /* bytes of stdout; more is a failure */
    double seconds;     /* after which the process group is killed */
    process_limits limits;
    bool (*stopped)(void); /* NULL, or: asked several times a second; true kills it */
} process_call;

typedef struct process_answer {
    int exit_status; /* 128 + the signal for a process that a signal has ended */
    char *output;    /* malloc'ed, a NUL behind; free'd by process_answer_free */
    size_t bytes;
    char complaint[400]; /* the beginning of stderr as one printable line */
} process_answer;

/* Runs a program to its end. KAKEYA_OK says that it ended by itself, whatever its exit status; KAKEYA_IO that it could
 * not be started, took too long or wrote too much; KAKEYA_CANCELLED that `stopped` said so. */
kakeya_status process_run(const process_call *call, process_answer *out, kakeya_error *error);
void process_answer_free(process_answer *answer);

/* The environment for git and ssh-keygen: of this process HOME, PATH, SSH_AUTH_SOCK and what names proxies and the
 * user's git configuration, and besides no questions and no translations. NULL at the end; process_environment_free. */
char **process_environment(void);
/* What is given, and of this process what is named, where it is there. Lists with NULL at their ends. */
char **process_environment_of(const char *const *fixed, const char *const *kept);
void process_environment_free(char **environment);

#endif
