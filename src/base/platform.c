#include "base/platform.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#if defined(__APPLE__)
#include <mach-o/dyld.h>
#include <mach/mach.h>
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

#else

#include <stdio.h>

int platform_pipe(int ends[2]) { return pipe2(ends, O_CLOEXEC); }
int platform_local_socket(int type) { return socket(AF_UNIX, type | SOCK_CLOEXEC, 0); }
int platform_socket_pair(int ends[2]) { return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends); }

bool platform_program(char *path, size_t bytes) {
    ssize_t length = readlink("/proc/self/exe", path, bytes - 1);
    if (length <= 0) return false;
    path[length] = '\0';
    return true;
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

#endif
