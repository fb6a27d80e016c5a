#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/platform.h"

#include "measure/report.h"

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
    platform_cpu_name(cpu, sizeof cpu);
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
