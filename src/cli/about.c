#include "cli/about.h"

#include <kakeya_build.h>    /* made by CMake: how this was compiled, and against which libraries */
#include <kakeya_revision.h> /* and of which sources */

#include <cjson/cJSON.h>
#include <openssl/crypto.h>
#include <spng.h>
#include <stdio.h>
#include <string.h>
#include <webp/demux.h>
#include <yajl/yajl_version.h>
#include <zlib.h>
#ifdef KAKEYA_SERVE
#include <event2/event.h>
#endif
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#include "backend/registry.h"
#include "cli/cli.h"

enum { VERSION_BYTES = 64 };

static const char *state_of(const backend_listing *b) {
    return b->automatic ? "used by --backend auto" : b->usable ? "usable" : "not used";
}

static void print_backends(const char *indent) {
    backend_listing list[BACKEND_KINDS];
    backend_list(list);
    for (size_t i = 0; i < BACKEND_KINDS; i++) {
        const backend_listing *b = &list[i];
        printf("%s%-5s %s: %s\n", indent, b->name, state_of(b), b->about);
        if (b->plugin) printf("%s      from %s\n", indent, b->plugin);
    }
}

kakeya_status about_backends(bool as_json, kakeya_error *error) {
    if (!as_json) {
        print_backends("");
        return KAKEYA_OK;
    }
    backend_listing list[BACKEND_KINDS];
    backend_list(list);
    cJSON *json = cJSON_CreateObject();
    cJSON *rows = cJSON_AddArrayToObject(json, "backends");
    for (size_t i = 0; i < BACKEND_KINDS; i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "name", list[i].name);
        cJSON_AddBoolToObject(row, "built_in", list[i].built_in);
        if (list[i].plugin)
            cJSON_AddStringToObject(row, "plugin", list[i].plugin);
        else
            cJSON_AddNullToObject(row, "plugin");
        cJSON_AddBoolToObject(row, "usable", list[i].usable);
        cJSON_AddBoolToObject(row, "automatic", list[i].automatic);
        cJSON_AddStringToObject(row, "about", list[i].about);
        cJSON_AddItemToArray(rows, row);
    }
    kakeya_status status = cli_print_json(json, error);
    cJSON_Delete(json);
    return status;
}

/* The version of a library that is loaded now, where it tells one; "" where it does not. */
static void loaded_version(const char *name, char out[VERSION_BYTES]) {
    const char *text = "";
    *out = '\0';
    if (strcmp(name, "cJSON") == 0) {
        text = cJSON_Version();
    } else if (strcmp(name, "zlib") == 0) {
        text = zlibVersion();
    } else if (strcmp(name, "OpenSSL") == 0) {
        text = OpenSSL_version(OPENSSL_VERSION_STRING);
    } else if (strcmp(name, "libspng") == 0) {
        text = spng_version_string();
    } else if (strcmp(name, "libwebp") == 0) {
        int version = WebPGetDemuxVersion();
        snprintf(out, VERSION_BYTES, "%d.%d.%d", version >> 16, version >> 8 & 255, version & 255);
    } else if (strcmp(name, "yajl") == 0) {
        int version = yajl_version();
        snprintf(out, VERSION_BYTES, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
#ifdef KAKEYA_SERVE
    } else if (strcmp(name, "libevent") == 0) {
        text = event_get_version();
#endif
    }
    if (*text) snprintf(out, VERSION_BYTES, "%s", text);
}

/* A library whose version says when it was released may add more, as in 2.1.12-stable. */
static void print_library(const char *name, const char *built, const char *role) {
    char loaded[VERSION_BYTES];
    loaded_version(name, loaded);
    printf("  %-14s %s", name, *loaded ? loaded : built);
    if (*loaded && strncmp(loaded, built, strlen(built)) != 0) printf(", compiled against %s", built);
    printf("%s%s\n", *role ? ", " : "", role);
}

void about_build(void) {
    printf("\nbuild\n");
    printf("  source         %s\n", *KAKEYA_REVISION ? KAKEYA_REVISION : "unknown revision");
    printf("  compiler       %s\n", KAKEYA_BUILD_COMPILER);
    printf("  type, flags    %s, %s\n", KAKEYA_BUILD_TYPE, KAKEYA_BUILD_FLAGS);
    printf("  for            %s\n", KAKEYA_BUILD_TARGET);
    printf("\nbackends\n");
    print_backends("  ");
    printf("\nlibraries\n");
#ifdef __GLIBC__
    printf("  %-14s %s\n", "glibc", gnu_get_libc_version());
#endif
#define PRINT(name, version, license, role) print_library(name, version, role);
    KAKEYA_BUILD_LIBRARIES(PRINT)
#undef PRINT
}
