/* The worker's round: a look at the bus, one request after the other, the oldest first. */
#include "remote/worker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "remote/first_seen.h"
#include "remote/folders.h"
#include "remote/gate_check.h"
#include "remote/keys.h"
#include "remote/worker_private.h"

enum {
    MOST_ATTEMPTS = 3,     /* starts of one request, by this worker or by several */
    MOST_NEW_A_ROUND = 64, /* requests that are fetched in one round */
};
/* Refusals of what nobody known has signed cost a push each: so many in a row, then one in so many seconds. */
static const double refusals_in_a_row = 30, seconds_for_a_refusal = 60;
static const double longest_wait = 3600;
static const double seconds_for_the_lock = 2;

typedef struct round {
    worker w;
    first_seen *seen;
    char *own_program;
    double refusals, refusals_at; /* what may still be refused, and when that was counted */
    bool was_reached;             /* the bus, at the last look */
    bool told;                    /* that it is not reached */
} round;

/* ----------------------------------------------------------------------------------------------------- single requests
 */

static bool may_refuse(round *r) {
    double now = clock_seconds();
    r->refusals += (now - r->refusals_at) / seconds_for_a_refusal;
    if (r->refusals > refusals_in_a_row) r->refusals = refusals_in_a_row;
    r->refusals_at = now;
    if (r->refusals < 1) return false;
    r->refusals -= 1;
    return true;
}

/* Answers without running: through a claim, so that no other worker begins meanwhile. */
static kakeya_status answer(round *r, incoming *in, const char *expected, const char *outcome, const char *reason,
                            kakeya_error *error) {
    worker *w = &r->w;
    char oid[BUS_OID];
    bool lost = false;
    result *made = malloc(sizeof *made);
    if (!made) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    kakeya_status status = worker_claim(w, in->nonce, expected, 1, 0, NULL, 0, oid, &lost, error);
    if (status == KAKEYA_OK && !lost) {
        worker_begin_result(w, in, made);
        snprintf(made->outcome, sizeof made->outcome, "%s", outcome);
        snprintf(made->reason, sizeof made->reason, "%.390s", reason);
        made->reason[remote_printable(made->reason, strlen(made->reason))] = '\0';
        status = worker_finish_result(w, in, made, error);
        if (status == KAKEYA_OK) status = worker_publish(w, in->nonce, error);
    }
    free(made);
    return status;
}

/* Whether a result has come since the bus was listed: the worker that made it has deleted its claim behind it. */
static kakeya_status is_answered(round *r, const char *nonce, bool *answered, kakeya_error *error) {
    bus_ref *refs;
    size_t n;
    kakeya_status status = bus_list(r->w.bus, nonce, &refs, &n, error);
    *answered = status == KAKEYA_OK && n && *refs[0].oid[BUS_RESULT];
    free(refs);
    return status;
}

/* What the claim of a dead worker says of attempts; 1 where it says nothing. */
static int attempts_of(round *r, const char *nonce) {
    static const bus_rule rules[] = {
        {"claim.json", DOCUMENT_MAX_BYTES}, {"claim.json.sig", KEYS_MAX_SIGNATURE}, {"tail.txt", CLAIM_MAX_TAIL}};
    bus_tree tree;
    kakeya_error error;
    int attempts = 1;
    if (bus_fetch(r->w.bus, BUS_CLAIM, nonce, rules, sizeof rules / sizeof rules[0], &tree, &error) != KAKEYA_OK)
        return attempts;
    const bus_file *file = bus_tree_find(&tree, "claim.json");
    claim c;
    if (file && claim_read(file->data, file->bytes, &c, &error) == KAKEYA_OK) attempts = c.attempt;
    bus_tree_free(&tree);
    return attempts;
}

/* Claims and runs. claim: the one that is there, ours or a dead worker's, or "". */
static kakeya_status claim_and_run(round *r, incoming *in, const char *expected, int attempt, kakeya_error *error) {
    worker *w = &r->w;
    char oid[BUS_OID];
    bool lost = false, answered = false;
    if (attempt > MOST_ATTEMPTS)
        return answer(r, in, expected, "failed", "workers died several times while it ran", error);
    kakeya_status status = worker_claim(w, in->nonce, expected, attempt, 0, NULL, 0, oid, &lost, error);
    if (status == KAKEYA_OK && !lost) status = is_answered(r, in->nonce, &answered, error);
    if (status != KAKEYA_OK) return status;
    if (lost) {
        worker_event(w, in->nonce, "another worker has claimed it");
        return KAKEYA_OK;
    }
    if (answered) {
        char *folder = worker_run_folder(w, in->nonce, false, error);
        status = bus_push(w->bus, BUS_CLAIM, in->nonce, oid, NULL, &lost, error);
        if (folder) folder_remove(folder);
        free(folder);
        return status;
    }
    status = worker_run(w, in, attempt, oid, &lost, error);
    if (status == KAKEYA_OK && lost) {
        worker_event(w, in->nonce, "another worker has taken over");
        status = served_add(w->served, worker_now(), in->nonce, in->sha256, SERVED_LOST, in->principal, 0, error);
        char *folder = worker_run_folder(w, in->nonce, false, error);
        if (folder) folder_remove(folder);
        free(folder);
        return status;
    }
    return status == KAKEYA_OK ? worker_publish(w, in->nonce, error) : status;
}

/* 1, 2, 4 ... polls, at most an hour. */
static void put_off(round *r, const char *oid) {
    double seconds = r->w.options->poll_seconds;
    for (int i = first_seen_times(r->seen, oid); i > 0 && seconds < longest_wait; i--) seconds *= 2;
    first_seen_put_off(r->seen, oid, seconds < longest_wait ? seconds : longest_wait);
}

/* What to do with a request that is not to be run, or not yet. */
static kakeya_status refuse(round *r, incoming *in, const bus_ref *ref, const char *expected, verdict judged,
                            const kakeya_error *why, kakeya_error *error) {
    const worker *w = &r->w;
    const char *oid = ref->oid[BUS_REQUEST];
    if (judged == VERDICT_SILENT) {
        worker_event(w, in->nonce, "no answer: %s", why->message);
        first_seen_put_off(r->seen, oid, longest_wait);
        return KAKEYA_OK;
    }
    if (judged == VERDICT_UNCLEAR) {
        worker_event(w, in->nonce, "later again: %s", why->message);
        put_off(r, oid);
        return KAKEYA_OK;
    }
    if (judged == VERDICT_CANCEL) return answer(r, in, expected, "cancelled", why->message, error);
    if (judged == VERDICT_REFUSE_LATER) {
        double left = r->w.config.limits.reject_after_seconds - first_seen_seconds(r->seen, oid);
        if (left > 0) {
            if (!first_seen_times(r->seen, oid))
                worker_event(w, in->nonce, "left to others for %.0f s: %s", left, why->message);
            first_seen_put_off(r->seen, oid, left < w->options->poll_seconds ? left : w->options->poll_seconds);
            return KAKEYA_OK;
        }
    }
    if (!*in->principal && !may_refuse(r)) {
        if (!first_seen_times(r->seen, oid))
            worker_event(w, in->nonce, "no answer, there were too many like it: %s", why->message);
        first_seen_put_off(r->seen, oid, seconds_for_a_refusal);
        return KAKEYA_OK;
    }
    return answer(r, in, expected, "rejected", why->message, error);
}

/* Whether the claim on a request lets this worker have it; *attempt is then the number of its attempt. */
static bool is_free(round *r, const bus_ref *ref, int *attempt) {
    const char *there = ref->oid[BUS_CLAIM];
    const served_entry *entry = served_find(r->w.served, ref->nonce);
    char own[BUS_OID];
    *attempt = entry ? entry->starts + 1 : 1;
    if (!*there) return true;
    worker_own_claim(&r->w, ref->nonce, own);
    if (strcmp(own, there) == 0) return true; /* made before this worker died */
    if (first_seen_seconds(r->seen, there) < r->w.config.limits.lease_seconds) return false;
    *attempt = attempts_of(r, ref->nonce) + 1;
    worker_event(&r->w, ref->nonce, "its worker has given no sign of life for %d s", r->w.config.limits.lease_seconds);
    return true;
}

/* One request that has no result yet. *fetched counts what was read. *worked: something was answered. */
static kakeya_status handle(round *r, const bus_ref *ref, int *fetched, bool *worked, kakeya_error *error) {
    worker *w = &r->w;
    int attempt;
    const char *oid = ref->oid[BUS_REQUEST];
    if (first_seen_is_put_off(r->seen, oid) || !is_free(r, ref, &attempt)) return KAKEYA_OK;
    incoming in = {.nonce = ref->nonce};
    ++*fetched;
    kakeya_error why = {0};
    if (bus_fetch(w->bus, BUS_REQUEST, ref->nonce, worker_request_rules, worker_request_rules_n, &in.tree, &why) !=
        KAKEYA_OK) {
        if (!first_seen_times(r->seen, oid)) worker_event(w, ref->nonce, "cannot be read: %s", why.message);
        put_off(r, oid);
        return KAKEYA_OK;
    }
    verdict judged = worker_check(w, &in, &why);
    const served_entry *entry = served_find(w->served, ref->nonce);
    if (entry && entry->over && judged != VERDICT_SILENT && judged != VERDICT_UNCLEAR) {
        /* Somebody has deleted its result. Told once, and then no more. */
        error_set(&why, KAKEYA_INVALID_ARGUMENT, "replay: %s has already answered this nonce", w->config.name);
        judged = entry->refusals > 1 || !may_refuse(r) ? VERDICT_SILENT : VERDICT_REFUSE;
    }
    kakeya_status status;
    if (judged == VERDICT_RUN) {
        status = claim_and_run(r, &in, ref->oid[BUS_CLAIM], attempt, error);
        *worked = true;
    } else {
        status = refuse(r, &in, ref, ref->oid[BUS_CLAIM], judged, &why, error);
        *worked = judged == VERDICT_REFUSE || judged == VERDICT_CANCEL;
    }
    if (status != KAKEYA_OK && status != KAKEYA_CANCELLED) {
        worker_event(w, ref->nonce, "later again: %s", error->message);
        put_off(r, oid);
        *worked = false;
        status = KAKEYA_OK;
    }
    bus_tree_free(&in.tree);
    return status;
}

/* ----------------------------------------------------------------------------------------------------------- rounds */

/* Results that could not be pushed when they were made. */
static void publish_waiting(round *r) {
    DIR *entries = opendir(r->w.runs);
    if (!entries) return;
    for (struct dirent *e; (e = readdir(entries)) != NULL;) {
        kakeya_error error;
        if (!remote_is_nonce(e->d_name) || !worker_has_result(&r->w, e->d_name) || worker_stopped(&r->w)) continue;
        if (worker_publish(&r->w, e->d_name, &error) != KAKEYA_OK)
            worker_event(&r->w, e->d_name, "its result waits: %s", error.message);
    }
    closedir(entries);
}

static kakeya_status load_config(round *r, kakeya_error *error) {
    remote_config config;
    const worker_options *o = r->w.options;
    kakeya_status status = config_load(o->folder, o->state, &config, error);
    if (status == KAKEYA_OK && !config.is_worker)
        status = error_set(error, KAKEYA_INVALID_ARGUMENT,
                           "%s: this end is not a worker (init "
                           "--worker)",
                           config.folder);
    if (status != KAKEYA_OK) {
        config_free(&config);
        return status;
    }
    if (!config.program) config.program = r->own_program;
    config_free(&r->w.config);
    r->w.config = config;
    return KAKEYA_OK;
}

/* *worked: something was done, and another look may find more. */
static kakeya_status look(round *r, bool *worked, kakeya_error *error) {
    worker *w = &r->w;
    bus_ref *refs;
    size_t n;
    int fetched = 0;
    *worked = false;
    publish_waiting(r);
    kakeya_status status = bus_list(w->bus, NULL, &refs, &n, error);
    if (status != KAKEYA_OK) return status;
    for (size_t i = 0; status == KAKEYA_OK && i < n && fetched < MOST_NEW_A_ROUND && !*worked; i++) {
        if (worker_stopped(w)) break;
        for (int kind = 0; kind < BUS_KINDS; kind++)
            if (*refs[i].oid[kind]) first_seen_seconds(r->seen, refs[i].oid[kind]);
        if (!*refs[i].oid[BUS_REQUEST] || *refs[i].oid[BUS_RESULT] || worker_has_result(w, refs[i].nonce)) continue;
        status = handle(r, &refs[i], &fetched, worked, error);
    }
    /* What was read is put off or answered: behind it there may be more. */
    if (fetched == MOST_NEW_A_ROUND) *worked = true;
    if (status == KAKEYA_OK) status = first_seen_keep(r->seen, refs, n, error);
    free(refs);
    return status;
}

static void wait_for_next(const worker *w, double seconds) {
    for (double end = clock_seconds() + seconds; clock_seconds() < end && !worker_stopped(w);) poll(NULL, 0, 100);
}

static kakeya_status rounds(round *r, kakeya_error *error) {
    worker *w = &r->w;
    for (;;) {
        bool worked = false;
        kakeya_error why;
        kakeya_status status = load_config(r, &why);
        if (status == KAKEYA_OK) status = look(r, &worked, &why);
        if (worker_stopped(w)) return KAKEYA_OK;
        if (status != KAKEYA_OK && w->options->once) return error_set(error, status, "%s", why.message);
        if (status != KAKEYA_OK && !r->told) worker_event(w, NULL, "cannot work: %s", why.message);
        if (status == KAKEYA_OK && r->told) worker_event(w, NULL, "works again");
        r->told = status != KAKEYA_OK;
        if (worked) continue;
        if (w->options->once) return KAKEYA_OK;
        wait_for_next(w, w->options->poll_seconds);
    }
}

static kakeya_status lock_state(const char *state, int *lock, kakeya_error *error) {
    char *path = path_join(state, "worker.lock");
    *lock = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    free(path);
    if (*lock < 0) return error_set(error, KAKEYA_IO, "%s: cannot write there: %s", state, strerror(errno));
    /* The supervisor of a worker that has just been killed holds it for a moment. */
    for (double end = clock_seconds() + seconds_for_the_lock;; poll(NULL, 0, 20)) {
        if (flock(*lock, LOCK_EX | LOCK_NB) == 0) return KAKEYA_OK;
        if (clock_seconds() > end) break;
    }
    return error_set(error, KAKEYA_IO, "%s: another worker is at work there", state);
}

static void describe_host(worker *w) {
    struct utsname about = {0};
    uname(&about);
    snprintf(w->host, sizeof w->host, "kakeya %s, %.20s %.20s, %ld processors", kakeya_version(), about.sysname,
             about.machine, sysconf(_SC_NPROCESSORS_ONLN));
}

kakeya_status worker_serve(const worker_options *options, kakeya_error *error) {
    round r = {.w = {.options = options}, .refusals = refusals_in_a_row, .refusals_at = clock_seconds()};
    worker *w = &r.w;
    int lock = -1;
    char *log = NULL;
    describe_host(w);
    r.own_program = gate_own_program(error);
    kakeya_status status = r.own_program ? keys_check_program(error) : KAKEYA_IO;
    if (status == KAKEYA_OK) status = load_config(&r, error);
    if (status == KAKEYA_OK) status = folder_make(w->config.state, error);
    if (status == KAKEYA_OK) status = lock_state(w->config.state, &lock, error);
    if (status == KAKEYA_OK) {
        w->runs = path_join(w->config.state, "runs");
        log = path_join(w->config.state, "served.log");
        status = w->runs && log ? folder_make(w->runs, error) : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    }
    if (status == KAKEYA_OK) status = served_open(log, &w->served, error);
    if (status == KAKEYA_OK) status = first_seen_open(w->config.state, &r.seen, error);
    if (status == KAKEYA_OK)
        status =
            bus_open(w->config.state, w->config.bus, w->config.limits.bus_seconds, options->stopped, &w->bus, error);
    if (status == KAKEYA_OK) {
        worker_event(w, NULL, "%s is at work on %s", w->config.name, w->config.bus);
        status = rounds(&r, error);
    }
    bus_close(w->bus);
    first_seen_close(r.seen);
    served_close(w->served);
    if (lock >= 0) close(lock);
    free(log);
    free(w->runs);
    free(r.own_program);
    config_free(&w->config);
    return status;
}
