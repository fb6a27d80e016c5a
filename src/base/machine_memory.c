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

/* Where control groups keep their limits: version 2, then version 1. A process's own group is named in its list of
 * groups, in a line that begins with `hierarchy`; a group above it may leave less. */
typedef struct group_files {
    const char *mount, *hierarchy, *limit, *used, *droppable;
} group_files;

static const group_files groups[] = {
    {"/sys/fs/cgroup", "0::", "memory.max", "memory.current", "inactive_file "},
    {"/sys/fs/cgroup/memory", ":memory:", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "},
};

enum { GROUP_CHARACTERS = 384 };

/* The process's group as a path below the mount, "" for the uppermost one, which is that of a container, too, where the
 * system does not say. */
static void read_own_group(const char *root, const char *hierarchy, char out[GROUP_CHARACTERS]) {
    char name[512], line[GROUP_CHARACTERS];
    *out = 0;
    const int length = snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *file = length > 0 && (size_t)length < sizeof name ? fopen(name, "r") : NULL;
    while (file && fgets(line, sizeof line, file)) {
        const char *at = strstr(line, hierarchy);
        if (!at || (hierarchy[0] != ':' && at != line)) continue;
        at += strlen(hierarchy);
        memcpy(out, at, strcspn(at, "\n"));
        out[strcspn(at, "\n")] = 0;
    }
    if (file) fclose(file);
    if (strstr(out, "..")) *out = 0; /* a group outside what is mounted here */
}

/* What a group's limit leaves; UINT64_MAX where it has none. */
static uint64_t group_leaves(const char *root, const group_files *files, const char *group) {
    char folder[512], statistics[600];
    uint64_t limit, used, droppable = 0;
    const int length =
        snprintf(folder, sizeof folder, "%s%s%s%s/", root, files->mount, *group == '/' ? "" : "/", group);
    if (length < 0 || (size_t)length >= sizeof folder) return UINT64_MAX;
    if (!read_number(folder, files->limit, "", &limit) || !read_number(folder, files->used, "", &used))
        return UINT64_MAX;
    (void)snprintf(statistics, sizeof statistics, "%smemory.stat", folder);
    (void)read_number("", statistics, files->droppable, &droppable); /* absent: nothing is */
    used = used > droppable ? used - droppable : 0;
    return limit > used ? limit - used : 0;
}

size_t machine_memory_available_in(const char *root) {
    uint64_t kilobytes = 0;
    if (!read_number(root, "/proc/meminfo", "MemAvailable:", &kilobytes)) return 0;
    uint64_t available = kilobytes * 1024;
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        char group[GROUP_CHARACTERS];
        read_own_group(root, groups[i].hierarchy, group);
        for (;;) {
            const uint64_t left = group_leaves(root, &groups[i], group);
            if (left < available) available = left;
            char *last = strrchr(group, '/');
            if (last)
                *last = 0; /* the group above */
            else if (*group)
                *group = 0;
            else
                break;
        }
    }
    return available < SIZE_MAX ? (size_t)available : SIZE_MAX;
}

size_t machine_memory_available(void) {
    size_t available = platform_memory_available();
    return available ? available : machine_memory_available_in("");
}
