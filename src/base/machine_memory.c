#include "base/machine_memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/platform.h"

/* The number behind `key` at the beginning of a line; a key of "" takes the file's first word. False where there is no
 * such number ("max", for example). */
static bool read_number(const char *root, const char *path, const char *key, uint64_t *out) {
    char name[512], line[256];
    int length = snprintf(name, sizeof name, "%s%s", root, path);
    FILE *file = length > 0 && (size_t)length < sizeof name ? fopen(name, "r") : NULL;
    if (!file) return false;
    bool found = false;
    size_t key_length = strlen(key);
    while (!found && fgets(line, sizeof line, file)) {
        found = strncmp(line, key, key_length) == 0 && sscanf(line + key_length, "%" SCNu64, out) == 1;
    }
    fclose(file);
    return found;
}

/* Where control groups keep the limit of a container: version 2, then version 1. */
typedef struct group_files {
    const char *limit, *used, *statistics, *droppable;
} group_files;

static const group_files groups[] = {
    {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file "},
    {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
     "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file "},
};

size_t machine_memory_available_in(const char *root) {
    uint64_t kilobytes = 0;
    if (!read_number(root, "/proc/meminfo", "MemAvailable:", &kilobytes)) return 0;
    uint64_t available = kilobytes * 1024;
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        uint64_t limit, used, droppable = 0;
        if (!read_number(root, groups[i].limit, "", &limit) || !read_number(root, groups[i].used, "", &used)) continue;
        (void)read_number(root, groups[i].statistics, groups[i].droppable, &droppable); /* absent: nothing is */
        used = used > droppable ? used - droppable : 0;
        uint64_t left = limit > used ? limit - used : 0;
        if (left < available) available = left;
    }
    return available < SIZE_MAX ? (size_t)available : SIZE_MAX;
}

size_t machine_memory_available(void) {
    size_t available = platform_memory_available();
    return available ? available : machine_memory_available_in("");
}
