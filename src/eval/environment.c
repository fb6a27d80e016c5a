#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/files.h"
#include "base/hash.h"
#include "eval/report.h"

/* The rest of the first line of a text file that starts with `prefix`, behind the separator; "" where there is none. */
static void line_value(const char *path, const char *prefix, char separator, char *out, size_t bytes) {
    out[0] = '\0';
    FILE *file = fopen(path, "r");
    if (!file) return;
    char line[1024];
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, prefix, strlen(prefix)) != 0) continue;
        const char *value = strchr(line, separator);
        if (!value) continue;
        value += 1 + strspn(value + 1, " \t\"");
        snprintf(out, bytes, "%.*s", (int)strcspn(value, "\"\n"), value);
        break;
    }
    fclose(file);
}

cJSON *environment_describe(void) {
    cJSON *object = cJSON_CreateObject();
    if (!object) return NULL;
    struct utsname system = {0};
    uname(&system);
    char cpu[256], release[256], os[512], date[32];
    line_value("/proc/cpuinfo", "model name", ':', cpu, sizeof cpu);
    line_value("/etc/os-release", "PRETTY_NAME", '=', release, sizeof release);
    snprintf(os, sizeof os, "%s%s%s %s", release, release[0] ? ", " : "", system.sysname, system.release);
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);

    cJSON_AddStringToObject(object, "kakeya_version", kakeya_version());
    cJSON_AddStringToObject(object, "date", date);
    cJSON_AddStringToObject(object, "cpu_model", cpu[0] ? cpu : system.machine);
    cJSON_AddNumberToObject(object, "cores", (double)sysconf(_SC_NPROCESSORS_ONLN));
    cJSON_AddNumberToObject(object, "memory_bytes", (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE));
    cJSON_AddStringToObject(object, "os", os);
    return object;
}

/* Hashing tens of gigabytes would take longer than most evaluations; a changed header, size or any training step shows
 * in the pages looked at. */
enum { HEADER_BYTES = 65536, PAGE_BYTES = 4096, PAGES = 64 };

static uint64_t hash_file(uint64_t hash, const char *directory, const char *name, bool whole) {
    char *path = path_join(directory, name);
    file_map map;
    if (!path || file_map_open(path, &map, NULL) != KAKEYA_OK) {
        free(path);
        return hash;
    }
    hash = hash_fnv1a(hash, name, strlen(name));
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)map.bytes >> (8 * i));
    hash = hash_fnv1a(hash, size, sizeof size);
    if (whole || map.bytes <= HEADER_BYTES + (size_t)PAGES * PAGE_BYTES) {
        if (map.bytes) hash = hash_fnv1a(hash, map.data, map.bytes);
    } else {
        hash = hash_fnv1a(hash, map.data, HEADER_BYTES);
        size_t span = (map.bytes - HEADER_BYTES) / PAGES;
        for (size_t i = 0; i < PAGES; i++)
            hash = hash_fnv1a(hash, map.data + HEADER_BYTES + i * span, span < PAGE_BYTES ? span : PAGE_BYTES);
    }
    file_map_close(&map);
    free(path);
    return hash;
}

static int is_weight_file(const struct dirent *entry) {
    const char *dot = strrchr(entry->d_name, '.');
    return dot && strcmp(dot, ".safetensors") == 0;
}

uint64_t environment_fingerprint(const char *directory) {
    struct dirent **entries = NULL;
    int n = scandir(directory, &entries, is_weight_file, alphasort);
    if (n < 0) return 0;
    uint64_t hash = HASH_FNV1A_START;
    hash = hash_file(hash, directory, "config.json", true);
    hash = hash_file(hash, directory, "f_theta_config.json", true);
    for (int i = 0; i < n; i++) {
        hash = hash_file(hash, directory, entries[i]->d_name, false);
        free(entries[i]);
    }
    free(entries);
    return hash == HASH_FNV1A_START ? 0 : hash;
}
