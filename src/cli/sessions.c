/* kakeya sessions: what a directory of saved sessions holds. */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/platform.h"
#include "cli/cli.h"
#include "cli/terminal.h"

#ifdef KAKEYA_SERVE

#include "serve/store_file.h"

enum { LIST, SHOW, REMOVE };
static const cli_word actions[] = {
    [LIST] = {"list", "list the sessions that are saved"},
    [SHOW] = {"show", "verify one and show its contents"},
    [REMOVE] = {"rm", "remove sessions"},
    {0},
};

static const cli_command command = {
    .name = "sessions",
    .words = actions,
    .summary = "Lists, shows and removes the sessions that kakeya serve has saved.",
    .operands = "list | show NAME | rm NAME...",
    .examples = "  kakeya sessions list --session-dir ~/kv\n"
                "  kakeya sessions show 4be1 --session-dir ~/kv --json | jq .tokens\n"
                "  kakeya sessions rm 4be1 sess-09c2 --session-dir ~/kv\n",
    .details = "NAME is the name of a file, or a beginning that only one file has. `list` reads headers and\n"
               "descriptions, `show` verifies every byte. Servers may run meanwhile: they compute removed sessions\n"
               "again when they need them.\n",
};

typedef struct saved {
    char *file;
    struct stat about;
    store_file_info info;
    char *metadata;       /* NULL: unreadable */
    kakeya_error failure; /* status KAKEYA_OK: a good file */
} saved;

typedef struct listing {
    const char *path;
    int fd;
    saved *item;
    size_t n, allocated;
} listing;

static void listing_close(listing *list) {
    for (size_t i = 0; i < list->n; i++) {
        free(list->item[i].file);
        free(list->item[i].metadata);
    }
    free(list->item);
    if (list->fd >= 0) close(list->fd);
}

/* Sessions, and files that a server has set aside as damaged. */
static bool is_saved(const char *name) {
    const char *end = strstr(name, ".kkc");
    return name[0] != '.' && end && (end[4] == 0 || strcmp(end + 4, ".bad") == 0);
}

static void read_saved(const listing *list, saved *s, bool verify) {
    store_file *file = NULL;
    kakeya_status status = store_file_open(list->fd, s->file, &file, NULL, &s->failure);
    if (status == KAKEYA_OK) {
        s->info = *store_file_about(file);
        status = verify ? store_file_verify(file, &s->failure) : store_file_read_metadata(file, &s->failure);
    }
    if (status == KAKEYA_OK) s->metadata = strdup(store_file_metadata(file));
    s->failure.status = status;
    store_file_close(file);
}

/* The last used first. */
static int by_age(const void *a, const void *b) {
    const struct timespec x = platform_modified(&((const saved *)a)->about),
                          y = platform_modified(&((const saved *)b)->about);
    if (x.tv_sec != y.tv_sec) return x.tv_sec < y.tv_sec ? 1 : -1;
    return x.tv_nsec < y.tv_nsec ? 1 : x.tv_nsec > y.tv_nsec ? -1 : 0;
}

static kakeya_status add(listing *list, const char *name, kakeya_error *error) {
    if (list->n == list->allocated) {
        size_t more = list->allocated ? 2 * list->allocated : 64;
        saved *moved = realloc(list->item, more * sizeof *moved);
        if (!moved) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", list->path);
        list->item = moved;
        list->allocated = more;
    }
    saved s = {.file = strdup(name)};
    if (!s.file) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", list->path);
    if (fstatat(list->fd, name, &s.about, AT_SYMLINK_NOFOLLOW) != 0) {
        free(s.file); /* removed meanwhile */
        return KAKEYA_OK;
    }
    list->item[list->n++] = s;
    return KAKEYA_OK;
}

static kakeya_status listing_open(const char *path, listing *list, kakeya_error *error) {
    *list = (listing){.path = path};
    list->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = list->fd >= 0 ? opendir(path) : NULL;
    if (!entries) return error_set(error, KAKEYA_IO, "%s: %s", path, strerror(errno));
    kakeya_status status = KAKEYA_OK;
    for (struct dirent *e; status == KAKEYA_OK && (e = readdir(entries)) != NULL;)
        if (is_saved(e->d_name)) status = add(list, e->d_name, error);
    closedir(entries);
    if (list->n) qsort(list->item, list->n, sizeof *list->item, by_age);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- output */

static const char *reason_name(uint32_t reason) {
    static const char *const names[] = {"", "prompt end", "system turn", "turn end", "grid", "idle", "shutdown"};
    return reason < sizeof names / sizeof names[0] ? names[reason] : "";
}

static double idle_seconds(const saved *s) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct timespec used = platform_modified(&s->about);
    double idle = (double)(now.tv_sec - used.tv_sec) + (double)(now.tv_nsec - used.tv_nsec) * 1e-9;
    return idle > 0 ? idle : 0;
}

static cJSON *json_of(const saved *s) {
    cJSON *object = cJSON_CreateObject();
    char number[32];
    cJSON_AddStringToObject(object, "file", s->file);
    cJSON_AddNumberToObject(object, "bytes", (double)s->about.st_size);
    cJSON_AddNumberToObject(object, "idle_seconds", idle_seconds(s));
    cJSON_AddBoolToObject(object, "good", s->failure.status == KAKEYA_OK);
    if (s->failure.status != KAKEYA_OK) cJSON_AddStringToObject(object, "error", s->failure.message);
    if (s->info.tokens == 0) return object;
    cJSON_AddNumberToObject(object, "tokens", (double)s->info.tokens);
    cJSON_AddStringToObject(object, "reason", reason_name(s->info.reason));
    cJSON_AddBoolToObject(object, "prompt_rows_only", (s->info.flags & STORE_FILE_PROMPT_ROWS) != 0);
    cJSON_AddNumberToObject(object, "created_ms", (double)s->info.created_ms);
    snprintf(number, sizeof number, "%016" PRIx64, s->info.fingerprint);
    cJSON_AddStringToObject(object, "fingerprint", number);
    snprintf(number, sizeof number, "%016" PRIx64, s->info.policy);
    cJSON_AddStringToObject(object, "policy", number);
    cJSON *metadata = s->metadata ? cJSON_Parse(s->metadata) : NULL;
    cJSON_DeleteItemFromObjectCaseSensitive(metadata, "turns"); /* tokens of users' conversations */
    if (metadata) cJSON_AddItemToObject(object, "metadata", metadata);
    return object;
}

static void text_of(const saved *s, const char *key, char *out, size_t bytes) {
    cJSON *metadata = s->metadata ? cJSON_Parse(s->metadata) : NULL;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(metadata, key);
    snprintf(out, bytes, "%s", cJSON_IsString(item) ? item->valuestring : "");
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?'; /* nothing from a file steers the terminal */
    cJSON_Delete(metadata);
}

static void age_text(double seconds, char out[16]) {
    if (seconds < 120)
        snprintf(out, 16, "%.0f s", seconds);
    else if (seconds < 2 * 3600.0)
        snprintf(out, 16, "%.0f min", seconds / 60);
    else if (seconds < 2 * 24 * 3600.0)
        snprintf(out, 16, "%.0f h", seconds / 3600);
    else
        snprintf(out, 16, "%.0f d", seconds / (24 * 3600.0));
}

static kakeya_status list(listing *all, bool json, kakeya_error *error) {
    uint64_t bytes = 0;
    cJSON *object = json ? cJSON_CreateObject() : NULL,
          *sessions = json ? cJSON_AddArrayToObject(object, "sessions") : NULL;
    if (!json && all->n)
        printf("%-16s  %8s  %9s  %8s  %-11s  %s\n", "name", "tokens", "MB", "unused", "reason", "model");
    for (size_t i = 0; i < all->n; i++) {
        saved *s = &all->item[i];
        read_saved(all, s, false);
        bytes += (uint64_t)s->about.st_size;
        char age[16], model[64];
        if (json) {
            cJSON_AddItemToArray(sessions, json_of(s));
            continue;
        }
        age_text(idle_seconds(s), age);
        text_of(s, "model", model, sizeof model);
        const char *reason = s->failure.status == KAKEYA_OK ? reason_name(s->info.reason) : "unreadable";
        printf("%-16.16s  %8" PRIu64 "  %9.1f  %8s  %-11s  %s\n", s->file, s->info.tokens,
               (double)s->about.st_size / 1e6, age, reason, model);
    }
    if (!json) {
        printf("%zu sessions, %.1f MB in %s\n", all->n, (double)bytes / 1e6, all->path);
        return KAKEYA_OK;
    }
    cJSON_AddNumberToObject(object, "bytes", (double)bytes);
    kakeya_status status = cli_print_json(object, error);
    cJSON_Delete(object);
    return status;
}

static kakeya_status show(listing *all, saved *s, bool json, kakeya_error *error) {
    read_saved(all, s, true);
    if (json) {
        cJSON *object = json_of(s);
        kakeya_status status = cli_print_json(object, error);
        cJSON_Delete(object);
        return status;
    }
    if (s->failure.status != KAKEYA_OK) return error_set(error, s->failure.status, "%s", s->failure.message);
    char created[64], age[16], model[64], name[64];
    time_t seconds = (time_t)(s->info.created_ms / 1000);
    struct tm local;
    if (!localtime_r(&seconds, &local) || strftime(created, sizeof created, "%Y-%m-%d %H:%M:%S", &local) == 0)
        created[0] = 0;
    age_text(idle_seconds(s), age);
    text_of(s, "model", model, sizeof model);
    text_of(s, "name", name, sizeof name);
    printf("file         %s\n", s->file);
    if (name[0]) printf("name         %s\n", name);
    printf("model        %s (fingerprint %016" PRIx64 ", policy %016" PRIx64 ")\n", model, s->info.fingerprint,
           s->info.policy);
    printf("tokens       %" PRIu64 "%s\n", s->info.tokens,
           s->info.flags & STORE_FILE_PROMPT_ROWS ? ", all of them prompt rows" : "");
    printf("reason       %s\n", reason_name(s->info.reason));
    printf("created      %s\n", created);
    printf("unused for   %s\n", age);
    printf("bytes        %" PRIu64 ", of which %" PRIu64 " are the session; all of them verified\n", s->info.file_bytes,
           s->info.payload_bytes);
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------------------ names */

/* The one file that is called so, or begins so. */
static kakeya_status find(listing *all, const char *name, saved **out, kakeya_error *error) {
    size_t found = 0, bytes = strlen(name);
    *out = NULL;
    for (size_t i = 0; i < all->n; i++) {
        if (strncmp(all->item[i].file, name, bytes) != 0) continue;
        *out = &all->item[i];
        found++;
        if (all->item[i].file[bytes] != 0) continue;
        found = 1;
        break;
    }
    if (bytes == 0 || found == 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: no session is called '%s'", all->path, name);
    if (found > 1)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: %zu sessions begin with '%s'", all->path, found, name);
    return KAKEYA_OK;
}

static kakeya_status remove_all(listing *all, char **names, int n, kakeya_error *error) {
    saved *s;
    for (int i = 0; i < n; i++) { /* nothing is removed where one of the names is wrong */
        kakeya_status status = find(all, names[i], &s, error);
        if (status != KAKEYA_OK) return status;
    }
    for (int i = 0; i < n; i++) {
        kakeya_status status = find(all, names[i], &s, error);
        if (status != KAKEYA_OK) return status;
        if (unlinkat(all->fd, s->file, 0) != 0 && errno != ENOENT)
            return error_set(error, KAKEYA_IO, "%s/%s: %s", all->path, s->file, strerror(errno));
        printf("removed %s\n", s->file);
    }
    return KAKEYA_OK;
}

int cli_sessions(int argc, char **argv) {
    bool json = false;
    const char *directory = NULL;
    const cli_option own[] = {
        CLI_TEXT("session-dir", "DIR", &directory, "the directory that kakeya serve was given"),
        CLI_FLAG("json", &json, "print one JSON object on stdout"),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&command, own, NULL, argc, argv, &first, &status)) return status;
    if (first == argc) return cli_usage_error(&command, "say list, show or rm");
    const char *what = argv[first++];
    bool lists = strcmp(what, actions[LIST].name) == 0, shows = strcmp(what, actions[SHOW].name) == 0;
    bool removes = strcmp(what, actions[REMOVE].name) == 0;
    if (!lists && !shows && !removes) return cli_usage_error(&command, "unknown '%s' (list, show or rm)", what);
    if (lists && first < argc) return cli_usage_error(&command, "list takes no name, but there is '%s'", argv[first]);
    if (shows && argc != first + 1) return cli_usage_error(&command, "show takes one name");
    if (removes && first == argc) return cli_usage_error(&command, "rm takes at least one name");
    if (removes && json) return cli_usage_error(&command, "rm prints no JSON");
    if (!directory) return cli_usage_error(&command, "--session-dir is missing");

    kakeya_error error = {0};
    listing all;
    saved *one = NULL;
    kakeya_status failed = listing_open(directory, &all, &error);
    if (!failed && lists) failed = list(&all, json, &error);
    if (!failed && shows) failed = find(&all, argv[first], &one, &error);
    if (!failed && shows) failed = show(&all, one, json, &error);
    if (!failed && removes) failed = remove_all(&all, argv + first, argc - first, &error);
    listing_close(&all);
    return failed ? cli_fail(command.name, &error) : CLI_DONE;
}

#else

int cli_sessions(int argc, char **argv) {
    (void)argc, (void)argv;
    fputs("kakeya sessions: this build has no server (KAKEYA_SERVE was OFF when it was made)\n", stderr);
    return CLI_FAILED;
}

#endif
