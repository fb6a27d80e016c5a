#include "base/platform.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "kakeya.h"

#if defined(__APPLE__)
#include <mach-o/dyld.h>
#include <mach/mach.h>
#include <sys/random.h>
#include <sys/sysctl.h>

/* Between the call and this one another thread may start a program: macOS has no call that does both. */
static int closed_for_others(int descriptor) {
    if (descriptor >= 0) fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    return descriptor;
}

int platform_pipe(int ends[2]) {
    if (pipe(ends) != 0) return -1;
    for (int i = 0; i < 2; i++) closed_for_others(ends[i]);
    return 0;
}

int platform_local_socket(int type) { return closed_for_others(socket(AF_UNIX, type, 0)); }

int platform_socket_pair(int ends[2]) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return -1;
    for (int i = 0; i < 2; i++) closed_for_others(ends[i]);
    return 0;
}

int platform_socket(int family, int type, int protocol) { return closed_for_others(socket(family, type, protocol)); }

int platform_wake_open(int ends[2]) {
    if (platform_pipe(ends) != 0) return -1;
    for (int i = 0; i < 2; i++) fcntl(ends[i], F_SETFL, O_NONBLOCK);
    return 0;
}

bool platform_random(void *bytes, size_t n) { return getentropy(bytes, n) == 0; }

/* macOS has no conditions on a clock of one's choice, but waits that last. */
void platform_condition_init(pthread_cond_t *condition) { pthread_cond_init(condition, NULL); }

static int wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, double until) {
    double left = until - clock_seconds();
    if (left <= 0) return ETIMEDOUT;
    struct timespec span = {.tv_sec = (time_t)left, .tv_nsec = (long)((left - floor(left)) * 1e9)};
    return pthread_cond_timedwait_relative_np(condition, lock, &span);
}

/* macOS has no wait for signals that ends by itself. */
int platform_wait_signal(const sigset_t *wanted, int milliseconds) {
    const struct timespec moment = {.tv_nsec = 10000000};
    for (double end = clock_seconds() + 1e-3 * milliseconds;; nanosleep(&moment, NULL)) {
        sigset_t pending;
        sigpending(&pending);
        for (int number = 1; number < NSIG; number++) {
            if (!sigismember(&pending, number) || !sigismember(wanted, number)) continue;
            int taken = 0;
            return sigwait(wanted, &taken) == 0 ? taken : 0;
        }
        if (clock_seconds() >= end) return 0;
    }
}

int platform_sync_data(int descriptor) { return fsync(descriptor); }
int platform_reserve(int descriptor, uint64_t bytes) {
    fstore_t room = {.fst_flags = F_ALLOCATEALL, .fst_posmode = F_PEOFPOSMODE, .fst_length = (off_t)bytes};
    return fcntl(descriptor, F_PREALLOCATE, &room) == 0 ? 0 : errno == ENOTSUP ? EOPNOTSUPP : errno;
}
struct timespec platform_modified(const struct stat *about) {
    return about->st_mtimespec;
}

double platform_resident_bytes(void) {
    mach_task_basic_info_data_t about;
    mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
    bool known = task_info(mach_task_self(), MACH_TASK_BASIC_INFO, (task_info_t)&about, &count) == KERN_SUCCESS;
    return known ? (double)about.resident_size : 0;
}

bool platform_program(char *path, size_t bytes) {
    uint32_t room = bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
    char found[4096];
    uint32_t found_room = sizeof found;
    if (_NSGetExecutablePath(found, &found_room) != 0) return false;
    char *whole = realpath(found, NULL); /* the path that the program was started by may go through links */
    bool fits = whole && strlen(whole) < room;
    if (fits) memcpy(path, whole, strlen(whole) + 1);
    free(whole);
    return fits;
}

int platform_processors(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }

void platform_cpu_name(char *name, size_t bytes) {
    if (sysctlbyname("machdep.cpu.brand_string", name, &bytes, NULL, 0) != 0) name[0] = '\0';
}

size_t platform_memory_available(void) {
    vm_statistics64_data_t pages;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    mach_port_t host = mach_host_self();
    bool known = host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&pages, &count) == KERN_SUCCESS;
    mach_port_deallocate(mach_task_self(), host);
    if (!known) return 0;
    /* Pages with files' contents are dropped when others want them; speculative ones are among the free. */
    return ((size_t)pages.free_count + pages.inactive_count + pages.purgeable_count) * (size_t)sysconf(_SC_PAGESIZE);
}

typedef struct sort_call {
    platform_order order;
    void *context;
} sort_call;

static int by_call(void *call, const void *a, const void *b) {
    const sort_call *c = call;
    return c->order(a, b, c->context);
}

void platform_sort(void *items, size_t n, size_t item_bytes, platform_order order, void *context) {
    sort_call call = {order, context};
    qsort_r(items, n, item_bytes, &call, by_call);
}

static const char descriptors[] = "/dev/fd";

#else

#include <sched.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/random.h>

int platform_pipe(int ends[2]) { return pipe2(ends, O_CLOEXEC); }
int platform_local_socket(int type) { return socket(AF_UNIX, type | SOCK_CLOEXEC, 0); }
int platform_socket_pair(int ends[2]) { return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends); }

int platform_socket(int family, int type, int protocol) { return socket(family, type | SOCK_CLOEXEC, protocol); }

int platform_wake_open(int ends[2]) {
    ends[0] = ends[1] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return ends[0] < 0 ? -1 : 0;
}

bool platform_random(void *bytes, size_t n) { return getrandom(bytes, n, 0) == (ssize_t)n; }

void platform_condition_init(pthread_cond_t *condition) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static int wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, double until) {
    struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - floor(until)) * 1e9)};
    return pthread_cond_timedwait(condition, lock, &at);
}

int platform_wait_signal(const sigset_t *wanted, int milliseconds) {
    const struct timespec span = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L};
    int number = sigtimedwait(wanted, NULL, &span);
    return number > 0 ? number : 0;
}

int platform_sync_data(int descriptor) { return fdatasync(descriptor); }
int platform_reserve(int descriptor, uint64_t bytes) { return posix_fallocate(descriptor, 0, (off_t)bytes); }
struct timespec platform_modified(const struct stat *about) {
    return about->st_mtim;
}

double platform_resident_bytes(void) {
    unsigned long long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%llu %llu", &total, &resident) != 2) resident = 0;
    if (file) fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

bool platform_program(char *path, size_t bytes) {
    ssize_t length = readlink("/proc/self/exe", path, bytes - 1);
    if (length <= 0) return false;
    path[length] = '\0';
    return true;
}

int platform_processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
}

void platform_cpu_name(char *name, size_t bytes) {
    static const char key[] = "model name";
    char line[512];
    name[0] = '\0';
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && !name[0] && fgets(line, sizeof line, file)) {
        const char *value = strncmp(line, key, sizeof key - 1) == 0 ? strchr(line, ':') : NULL;
        if (!value) continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(name, bytes, "%.*s", (int)strcspn(value, "\n"), value);
    }
    if (file) fclose(file);
}

size_t platform_memory_available(void) { return 0; }

void platform_sort(void *items, size_t n, size_t item_bytes, platform_order order, void *context) {
    qsort_r(items, n, item_bytes, order, context);
}

static const char descriptors[] = "/proc/self/fd";

#endif

void platform_wake_close(const int ends[2]) {
    if (ends[0] >= 0) close(ends[0]);
    if (ends[1] >= 0 && ends[1] != ends[0]) close(ends[1]);
}

bool platform_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, double until) {
    return wait_until(condition, lock, until) != ETIMEDOUT;
}

double platform_open_files(void) {
    DIR *directory = opendir(descriptors);
    if (!directory) return 0;
    double n = -1; /* the directory's own */
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) n += entry->d_name[0] != '.';
    closedir(directory);
    return n;
}

int platform_thread_create(pthread_t *thread, void *(*run)(void *user), void *user) {
    enum { INSTRUMENTED = 4 }; /* frames of sanitizers are larger */
    pthread_attr_t attributes;
    int failure = pthread_attr_init(&attributes);
    if (failure) return failure;
    failure = pthread_attr_setstacksize(&attributes, (size_t)INSTRUMENTED * KAKEYA_STACK_BYTES);
    if (!failure) failure = pthread_create(thread, &attributes, run, user);
    pthread_attr_destroy(&attributes);
    return failure;
}
