#include "remote/doctor.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/files.h"
#include "base/json.h"
#include "remote/bus.h"
#include "remote/config.h"
#include "remote/documents.h"
#include "remote/folders.h"
#include "remote/keys.h"

static const double least_gigabytes = 1;

typedef struct examination {
    const doctor_options *options;
    remote_config config;
    bus *bus;
    int bad;
} examination;

static void report(examination *e, doctor_finding finding, const char *mend, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void report(examination *e, doctor_finding finding, const char *mend, const char *format, ...) {
    char what[1200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    what[remote_printable(what, strlen(what))] = '\0';
    e->bad += finding == DOCTOR_BAD;
    e->options->report(e->options->user, finding, what, mend);
}

static bool look_at_programs(examination *e) {
    kakeya_error error;
    bool git = bus_check_program(&error) == KAKEYA_OK;
    if (git)
        report(e, DOCTOR_GOOD, "", "git is there");
    else
        report(e, DOCTOR_BAD, "on Debian: apt-get install git", "%s", error.message);
    bool keys = keys_check_program(&error) == KAKEYA_OK;
    if (keys)
        report(e, DOCTOR_GOOD, "", "ssh-keygen signs and verifies");
    else
        report(e, DOCTOR_BAD, "on Debian: apt-get install openssh-client", "%s", error.message);
    return git && keys;
}

static void look_at_key(examination *e) {
    static const char text[] = "doctor";
    char *public = NULL, *signature = NULL, *list = path_join(e->config.state, "self"), signer[REMOTE_NAME];
    size_t bytes = 0;
    kakeya_error error;
    kakeya_status status = config_public_key(&e->config, &public, &error);
    if (status == KAKEYA_OK) status = keys_sign(e->config.key, text, strlen(text), &signature, &bytes, &error);
    if (status == KAKEYA_OK) status = keys_allow(list ? list : "", e->config.name, public, &error);
    if (status == KAKEYA_OK)
        status = keys_verify(list, e->config.state, text, strlen(text), signature, bytes, signer, &error);
    if (status == KAKEYA_OK)
        report(e, DOCTOR_GOOD, "", "the key of %s signs: %s", e->config.name, public);
    else
        report(e, DOCTOR_BAD, "name another key in remote.json, or load it: ssh-add KEY", "%s", error.message);
    free(public);
    free(signature);
    free(list);
}

static void look_at_disk(examination *e) {
    kakeya_error error;
    struct statvfs about;
    kakeya_status status = folder_make(e->config.state, &error);
    if (status == KAKEYA_OK) status = folder_write(e->config.state, "doctor", "", 0, &error);
    if (status != KAKEYA_OK) {
        report(e, DOCTOR_BAD, "give another folder with --state, or make this one writable", "%s", error.message);
        return;
    }
    double free_gigabytes =
        statvfs(e->config.state, &about) == 0 ? (double)about.f_bavail * (double)about.f_frsize / 1e9 : 0;
    bool enough = free_gigabytes >= least_gigabytes;
    report(e, enough ? DOCTOR_GOOD : DOCTOR_BAD, enough ? "" : "make room there", "%s has %.1f GB free",
           e->config.state, free_gigabytes);
}

static const char *mend_bus(const char *message) {
    if (strstr(message, "dubious ownership"))
        return "its owner is another user: git config --global --add safe.directory PATH";
    if (strstr(message, "does not appear to be a git repository") || strstr(message, "not found"))
        return "make it: git init --bare PATH; or correct \"bus\" in remote.json";
    if (strstr(message, "ermission denied") || strstr(message, "insufficient permission") || strstr(message, "denied"))
        return "this user may not write there: see to its credentials, or to the folder's permissions";
    if (strstr(message, "Host key verification")) return "connect once by hand, so that ssh knows the host";
    return "try it by hand: git ls-remote BUS";
}

/* Claims and nonces carry the time of other machines. */
static void look_at_clock(examination *e, const bus_ref *refs, size_t n) {
    static const bus_rule rules[] = {
        {"claim.json", DOCUMENT_MAX_BYTES}, {"claim.json.sig", KEYS_MAX_SIGNATURE}, {"tail.txt", CLAIM_MAX_TAIL}};
    long long now = (long long)time(NULL), newest = n ? (long long)remote_nonce_time(refs[n - 1].nonce) : 0;
    for (size_t i = n; i-- > 0;) {
        bus_tree tree;
        claim c;
        kakeya_error error;
        if (!*refs[i].oid[BUS_CLAIM]) continue;
        if (bus_fetch(e->bus, BUS_CLAIM, refs[i].nonce, rules, 3, &tree, &error) != KAKEYA_OK) break;
        const bus_file *file = bus_tree_find(&tree, "claim.json");
        if (file && claim_read(file->data, file->bytes, &c, &error) == KAKEYA_OK && c.since > newest) newest = c.since;
        bus_tree_free(&tree);
        break;
    }
    if (!n)
        report(e, DOCTOR_NOTE, "", "clock: nothing is on the bus that it could be compared with");
    else if (newest > now + REQUEST_CLOCK_SECONDS)
        report(e, DOCTOR_BAD, "set the clock of the machine that is wrong",
               "clock: the newest entry of the bus is %lld s from now; more than %d s are not borne", newest - now,
               REQUEST_CLOCK_SECONDS);
    else
        report(e, DOCTOR_GOOD, "", "clock: nothing on the bus comes from the future");
}

static void look_at_bus(examination *e) {
    kakeya_error error;
    bus_ref *refs = NULL;
    size_t n = 0;
    kakeya_status status =
        bus_open(e->config.state, e->config.bus, e->config.limits.bus_seconds, e->options->stopped, &e->bus, &error);
    if (status == KAKEYA_OK) status = bus_list(e->bus, NULL, &refs, &n, &error);
    if (status != KAKEYA_OK) {
        report(e, DOCTOR_BAD, mend_bus(error.message), "%s", error.message);
        return;
    }
    report(e, DOCTOR_GOOD, "", "the bus answers, with %zu request%s: %s", n, n == 1 ? "" : "s", e->config.bus);
    status = bus_try_push(e->bus, (int64_t)time(NULL), &error);
    if (status == KAKEYA_OK)
        report(e, DOCTOR_GOOD, "", "the bus would take a push");
    else
        report(e, DOCTOR_BAD, mend_bus(error.message), "%s", error.message);
    look_at_clock(e, refs, n);
    free(refs);
}

static void look_at_worker(examination *e) {
    const cJSON *models = json_get(e->config.json, "models"), *requesters = json_get(e->config.json, "requesters"),
                *item;
    cJSON_ArrayForEach(item, models) {
        char *config = path_join(item->valuestring, "config.json");
        bool there = config && file_exists(config);
        report(e, there ? DOCTOR_GOOD : DOCTOR_BAD, there ? "" : "correct \"models\" in remote.json", "model %s: %s%s",
               item->string, item->valuestring, there ? "" : " has no config.json");
        free(config);
    }
    if (!cJSON_GetArraySize(models))
        report(e, DOCTOR_BAD, "add \"models\": {\"NAME\": \"/DIRECTORY\"} to remote.json", "there is no model");
    char *keys = NULL;
    size_t bytes = 0;
    if (file_exists(e->config.requesters)) file_read(e->config.requesters, 1 << 20, &keys, &bytes, NULL);
    cJSON_ArrayForEach(item, requesters) {
        char begin[REMOTE_NAME + 4];
        snprintf(begin, sizeof begin, "%.64s ", item->string);
        bool listed = keys && (strncmp(keys, begin, strlen(begin)) == 0);
        for (const char *line = keys; line && !listed && (line = strchr(line, '\n')) != NULL; line++)
            listed = strncmp(line + 1, begin, strlen(begin)) == 0;
        report(e, listed ? DOCTOR_GOOD : DOCTOR_BAD, listed ? "" : "kakeya remote allow requester NAME KEY",
               "requester %s%s", item->string, listed ? "" : " has no key");
    }
    free(keys);
    if (!cJSON_GetArraySize(requesters))
        report(e, DOCTOR_BAD, "kakeya remote allow requester NAME KEY", "nobody may ask for anything");
    char *path = path_join(e->config.state, "worker.lock");
    int lock = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    bool at_work = lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0;
    if (lock >= 0) close(lock);
    free(path);
    report(e, at_work ? DOCTOR_GOOD : DOCTOR_NOTE,
           at_work ? "" : "kakeya remote serve, or kakeya remote serve --install",
           at_work ? "a worker is at work" : "no worker is at work");
}

int doctor_examine(const doctor_options *options) {
    examination e = {.options = options};
    kakeya_error error;
    bool programs = look_at_programs(&e);
    if (config_load(options->folder, options->state, &e.config, &error) != KAKEYA_OK) {
        report(&e, DOCTOR_BAD, "kakeya remote init --help", "%s", error.message);
        config_free(&e.config);
        return e.bad;
    }
    report(&e, DOCTOR_GOOD, "", "%s is the configuration of %s, a %s", e.config.folder, e.config.name,
           e.config.is_worker ? "worker" : "requester");
    look_at_disk(&e);
    if (programs) {
        look_at_key(&e);
        look_at_bus(&e);
    }
    if (e.config.is_worker) {
        look_at_worker(&e);
    } else {
        bool some = file_exists(e.config.workers);
        report(&e, some ? DOCTOR_GOOD : DOCTOR_BAD, some ? "" : "kakeya remote allow worker NAME KEY",
               some ? "results of the workers in %s are trusted" : "no worker is trusted: %s does not exist",
               e.config.workers);
    }
    bus_close(e.bus);
    config_free(&e.config);
    return e.bad;
}
