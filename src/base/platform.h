/* What Linux and macOS call by different names. */
#ifndef KAKEYA_BASE_PLATFORM_H
#define KAKEYA_BASE_PLATFORM_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

/* A pipe, a stream or datagram socket of the local host (SOCK_STREAM, SOCK_DGRAM), and a pair of stream sockets.
 * Programs that are started later do not inherit them. 0, or -1 with errno. */
int platform_pipe(int ends[2]);
int platform_local_socket(int type);
int platform_socket_pair(int ends[2]);
/* socket(2) in the same way. */
int platform_socket(int family, int type, int protocol);

/* Wakes a thread that waits for descriptors: what is written to ends[1], 8 bytes at a time, makes ends[0] readable.
 * Neither end blocks; the two may be one. 0, or -1 with errno. */
int platform_wake_open(int ends[2]);
void platform_wake_close(const int ends[2]); /* -1: there is none */

/* Random bytes from the system. False: it has none. */
bool platform_random(void *bytes, size_t n);

/* A condition that is waited for until clock_seconds() is `until`, which does not jump with the time of day. False:
 * that time has come. */
void platform_condition_init(pthread_cond_t *condition);
bool platform_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, double until);

/* pthread_create with a stack that is large enough for anything that is computed here, whatever `ulimit -s` says, which
 * is what threads have otherwise. 0, or a value of errno. */
int platform_thread_create(pthread_t *thread, void *(*run)(void *user), void *user);

/* What threads of our own leave to those of the program: every signal but those that a thread's own instructions raise,
 * which would end the process unheard if they were blocked. */
static inline void platform_foreign_signals(sigset_t *set) {
    static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    sigfillset(set);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) sigdelset(set, own[i]);
}

/* The number of a signal of `wanted`, all of which the thread has blocked, that comes within so many milliseconds; 0:
 * none has come. */
int platform_wait_signal(const sigset_t *wanted, int milliseconds);

/* What was written to a file is on its device. 0, or -1 with errno. */
int platform_sync_data(int descriptor);
/* Room for a file of so many bytes. 0, or a value of errno; EOPNOTSUPP where the system cannot say it. */
int platform_reserve(int descriptor, uint64_t bytes);
/* When a file's contents last changed. */
struct timespec platform_modified(const struct stat *about);

/* Memory of this process that is in use, in bytes, and its open descriptors; 0 where the system does not say. */
double platform_resident_bytes(void);
double platform_open_files(void);

/* Where this program lies, up to `bytes` with the zero behind it. False where that cannot be found out. */
bool platform_program(char *path, size_t bytes);

/* Processors that this process may use. */
int platform_processors(void);

/* As the system calls the CPU; "" where it has no name for it. */
void platform_cpu_name(char *name, size_t bytes);

/* Memory that programs can get without others being swapped out; 0 where the system does not say it in one number. */
size_t platform_memory_available(void);

/* qsort with a context: glibc and macOS order its arguments differently. */
typedef int (*platform_order)(const void *a, const void *b, void *context);
void platform_sort(void *items, size_t n, size_t item_bytes, platform_order order, void *context);

#endif
