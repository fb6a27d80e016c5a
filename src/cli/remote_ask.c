/* kakeya remote run, status, list, fetch, cancel, clean: the end that asks. What comes from the bus is printed through
 * remote_printable. */
#include <cjson/cJSON.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "cli/cli.h"
#include "cli/remote.h"
#include "cli/terminal.h"
#include "remote/client.h"

#define POLL_OPTION(TARGET) CLI_INT("poll", "SECONDS", &(TARGET), 1, 3600, "interval between two polls of the bus (10)")
#define JSON_OPTION(TARGET) CLI_FLAG("json", &(TARGET), "one JSON object on stdout")
#define REPORT_OPTION(TARGET)                                                                                          \
    CLI_TEXT("report", "FILE", &(TARGET),                                                                              \
             "also write the report to FILE, for `kakeya gate` (or the output, if there is no report)")

#define REPLAY_OPTIONS(TARGET)                                                                                         \
    CLI_TEXT("replay", "N", &(TARGET).rows,                                                                            \
             "compute N rows of the report again here, as `kakeya gate --replay` does, or 'all'"),                     \
        CLI_TEXT("replay-model", "DIR", &(TARGET).model,                                                               \
                 "with --replay: directory of the same model here (the bundled one of that name)")

/* -------------------------------------------------------------------------------------------------------- following */

/* What was shown last of a request. */
typedef struct shown {
    client_state state;
    char claim[BUS_OID], worker[REMOTE_NAME];
    char *tail;
    int rows, attempt;
    bool any;
} shown;

/* The part of the log that was not in the part before. */
static const char *new_part(const char *before, const char *now) {
    enum { LAST_BYTES = 256 };
    if (!before || !*before) return now;
    size_t length = strlen(before);
    if (strncmp(now, before, length) == 0) return now + length;
    const char *last = length > LAST_BYTES ? before + length - LAST_BYTES : before;
    const char *found = strstr(now, last);
    return found ? found + strlen(last) : now;
}

static void show_claim(const client_status *s, shown *before) {
    const claim *c = &s->claim;
    if (!s->claim_verified) {
        fprintf(stderr, "claimed by somebody who is not on the list of workers\n");
        return;
    }
    bool other = strcmp(before->worker, c->worker) != 0 || before->attempt != c->attempt;
    if (other) {
        char until[REMOTE_TIME];
        remote_time_write(c->lease_until, until);
        fprintf(stderr, "claimed by %s (%s), attempt %d, lease until %s\n", c->worker, c->host, c->attempt, until);
    }
    if (c->rows && (other || c->rows != before->rows)) fprintf(stderr, "%d rows of the report\n", c->rows);
    memcpy(before->worker, c->worker, sizeof before->worker);
    before->attempt = c->attempt;
    before->rows = c->rows;
    if (!s->tail) return;
    const char *part = new_part(before->tail, s->tail);
    if (*part) fprintf(stderr, "%s%s", part, part[strlen(part) - 1] == '\n' ? "" : "\n");
    free(before->tail);
    before->tail = strdup(s->tail);
}

/* Prints what is new. */
static void show(const client_status *s, shown *before) {
    static const char *const names[] = {"not on the bus", "requested: no worker has claimed it yet", "", "answered"};
    if ((!before->any || s->state != before->state) && *names[s->state]) fprintf(stderr, "%s\n", names[s->state]);
    if (s->state == CLIENT_CLAIMED && strcmp(s->claim_oid, before->claim) != 0) show_claim(s, before);
    memcpy(before->claim, s->claim_oid, BUS_OID);
    before->state = s->state;
    before->any = true;
}

static void wait_seconds(double seconds) {
    for (double end = clock_seconds() + seconds; clock_seconds() < end && !terminal_interrupted();) poll(NULL, 0, 100);
}

/* Shows where the request is, until it is answered where `follow` says so. A bus that fails now and then is waited for.
 */
static kakeya_status look(client *c, const char *nonce, bool follow, int seconds, client_state *state,
                          kakeya_error *error) {
    enum { MOST_FAILURES = 10 };
    shown before = {.state = CLIENT_UNKNOWN};
    kakeya_status status;
    int failures = 0;
    for (;;) {
        client_status now = {.tail = NULL};
        status = client_look(c, nonce, before.claim, &now, error);
        failures = status == KAKEYA_OK ? 0 : failures + 1;
        *state = now.state;
        if (status == KAKEYA_OK) show(&now, &before);
        free(now.tail);
        bool over = status == KAKEYA_OK ? now.state == CLIENT_ANSWERED || now.state == CLIENT_UNKNOWN
                                        : failures == MOST_FAILURES;
        if (!follow || over || status == KAKEYA_CANCELLED) break;
        wait_seconds(seconds);
        if (terminal_interrupted()) {
            status =
                error_set(error, KAKEYA_CANCELLED, "interrupted; the request continues: kakeya remote fetch %s", nonce);
            break;
        }
    }
    free(before.tail);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- results */

static kakeya_status copy_report(const result *r, const char *folder, const char *path, kakeya_error *error) {
    enum { MOST = RESULT_MAX_REPORT };
    char *source = NULL, *data = NULL;
    size_t bytes = 0;
    for (size_t i = 0; i < r->n_files && !source; i++)
        if (strcmp(r->file[i].name, document_log) != 0) source = path_join(folder, r->file[i].name);
    if (!source) return error_set(error, KAKEYA_INVALID_ARGUMENT, "--report: the result has no report");
    file_writer *writer = NULL;
    kakeya_status status = file_read(source, MOST, &data, &bytes, error);
    if (status == KAKEYA_OK) status = file_writer_open(path, &writer, error);
    if (status == KAKEYA_OK) {
        status = file_writer_write(writer, data, bytes, error);
        if (status == KAKEYA_OK)
            status = file_writer_commit(writer, error);
        else
            file_writer_abort(writer);
    }
    free(data);
    free(source);
    return status;
}

static void add_strings(cJSON *json, const char *const pairs[][2], size_t n) {
    for (size_t i = 0; i < n; i++) cJSON_AddStringToObject(json, pairs[i][0], pairs[i][1]);
}

static kakeya_status print_result_json(const result *r, const gate_replay *replay, const char *there,
                                       const char *folder, kakeya_error *error) {
    cJSON *json = cJSON_CreateObject();
    const char *const texts[][2] = {{"nonce", r->nonce},   {"outcome", r->outcome},  {"worker", r->worker},
                                    {"preset", r->preset}, {"reason", r->reason},    {"host", r->host},
                                    {"gate_there", there}, {"gate_here", r->verdict}};
    add_strings(json, texts, sizeof texts / sizeof *texts);
    if (replay) cJSON_AddStringToObject(json, "replay", replay->outcome);
    if (r->exit_status >= 0) cJSON_AddNumberToObject(json, "exit_status", r->exit_status);
    cJSON_AddNumberToObject(json, "seconds", r->seconds);
    cJSON_AddNumberToObject(json, "attempt", r->attempt);
    cJSON *codes = cJSON_AddArrayToObject(json, "gate_codes"), *files = cJSON_AddArrayToObject(json, "files");
    for (size_t i = 0; i < r->n_codes; i++) cJSON_AddItemToArray(codes, cJSON_CreateString(r->code[i]));
    for (size_t i = 0; i < r->n_files; i++) {
        char *path = path_join(folder, r->file[i].name);
        cJSON_AddItemToArray(files, cJSON_CreateString(path ? path : r->file[i].name));
        free(path);
    }
    kakeya_status status = cli_print_json(json, error);
    cJSON_Delete(json);
    return status;
}

static void print_result(const result *r, const gate_replay *replay, const char *there, const char *folder) {
    printf("%s: %s by %s", r->nonce, r->outcome, r->worker);
    if (r->exit_status >= 0) printf(", exit status %d, %.0f s", r->exit_status, r->seconds);
    if (r->attempt > 1) printf(", attempt %d", r->attempt);
    printf("%s%s\n", *r->reason ? ": " : "", r->reason);
    if (strcmp(there, "none") != 0) printf("gate there: %s\n", there);
    if (strcmp(there, "none") != 0 && strcmp(r->outcome, "done") == 0) {
        printf("gate here: %s", r->verdict);
        for (size_t i = 0; i < r->n_codes; i++) printf(" [%s]", r->code[i]);
        printf("\n");
        if (replay && *replay->outcome) printf("replay here: %s\n", replay->outcome);
    }
    for (size_t i = 0; i < r->n_files; i++) printf("%s/%s\n", folder, r->file[i].name);
}

/* Takes the result, prints it; *good: done, and the gate does not refuse it. */
static kakeya_status take(client *c, const char *nonce, gate_replay *replay, const char *report, bool as_json,
                          bool *good, kakeya_error *error) {
    if (!replay->rows) replay = NULL;
    result *r = malloc(sizeof *r);
    char *folder = NULL, there[16] = "none";
    if (!r) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    *good = false;
    kakeya_status status = client_fetch(c, nonce, replay, r, there, sizeof there, &folder, error);
    if (status == KAKEYA_OK) {
        if (as_json)
            status = print_result_json(r, replay, there, folder, error);
        else
            print_result(r, replay, there, folder);
        *good = strcmp(r->outcome, "done") == 0 && strcmp(r->verdict, "refused") != 0;
        if (report && status == KAKEYA_OK) status = copy_report(r, folder, report, error);
    }
    free(folder);
    free(r);
    return status;
}

static int finish(const cli_command *command, client *c, kakeya_status status, bool good, const kakeya_error *error) {
    client_close(c);
    if (status != KAKEYA_OK) return cli_fail(command->name, error);
    return good ? CLI_DONE : CLI_FAILED;
}

/* ------------------------------------------------------------------------------------------------------------- run */

static const cli_command run_command = {
    .name = "remote run",
    .summary = "Requests an evaluation: signs a request, puts it on the bus and prints its nonce.",
    .operands = "PRESET",
    .details = "With --wait, the command shows the request's progress, fetches the result and runs the gate on its\n"
               "report here. The exit status is then 0 if the run succeeded and the gate does not refuse its report.\n",
    .examples = "  kakeya remote run niah --param lines=12,60 --wait --report r.json && kakeya gate r.json\n"
                "  kakeya remote run score --input ids=ids.json --param ids-file=ids --model 26b\n",
};

int remote_run(int argc, char **argv) {
    remote_place place = {NULL, NULL};
    cli_texts params = {{NULL}, 0}, inputs = {{NULL}, 0};
    client_wish wish = {.model = "demo"};
    const char *report = NULL;
    gate_replay replay = {.rows = NULL};
    bool wait = false;
    int seconds = 10;
    const cli_option own[] = {
        CLI_TEXTS("param", "NAME=VALUE", &params,
                  "parameter of the preset (see kakeya remote presets); may be repeated"),
        CLI_TEXTS("input", "NAME=FILE", &inputs, "file to send with the request, at most 1 MB; may be repeated"),
        CLI_TEXT("model", "NAME", &wish.model, "the worker's name for the model (demo)"),
        CLI_TEXT("worker", "NAME", &wish.worker, "worker that must run it (any)"),
        CLI_FLAG("wait", &wait, "wait for the result and fetch it"),
        REPORT_OPTION(report),
        REPLAY_OPTIONS(replay),
        POLL_OPTION(seconds),
        REMOTE_PLACE_OPTIONS(place),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&run_command, own, NULL, argc, argv, &first, &status)) return status;
    if (argc - first != 1) return cli_usage_error(&run_command, "name one preset (kakeya remote presets lists them)");
    if (report && !wait) return cli_usage_error(&run_command, "--report needs --wait");
    if (replay.rows && !wait) return cli_usage_error(&run_command, "--replay needs --wait");
    if (replay.model && !replay.rows) return cli_usage_error(&run_command, "--replay-model needs --replay");
    wish.preset = argv[first];
    wish.params = params.text;
    wish.n_params = params.n;
    wish.inputs = inputs.text;
    wish.n_inputs = inputs.n;
    kakeya_error error = {0};
    client c;
    char nonce[REMOTE_NONCE];
    bool good = true;
    kakeya_status done = client_open(place.config, place.state, terminal_interrupted, &c, &error);
    if (done == KAKEYA_OK) done = client_request(&c, &wish, nonce, &error);
    if (done == KAKEYA_OK) {
        printf("%s\n", nonce);
        fflush(stdout);
    }
    if (done == KAKEYA_OK && wait) {
        client_state state;
        done = look(&c, nonce, true, seconds, &state, &error);
        if (done == KAKEYA_OK) done = take(&c, nonce, &replay, report, false, &good, &error);
    }
    return finish(&run_command, &c, done, good, &error);
}

/* ---------------------------------------------------------------------------------------------------------- status */

/* The nonce of the command line, or the newest that was sent from here. */
static kakeya_status find_nonce(client *c, int argc, char **argv, int first, char nonce[REMOTE_NONCE],
                                kakeya_error *error) {
    if (first == argc) return client_newest(c, nonce, error);
    if (!remote_is_nonce(argv[first]))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "'%.40s' is not a nonce such as 20261121T203012Z-9f3c2ab1",
                         argv[first]);
    memcpy(nonce, argv[first], REMOTE_NONCE);
    return KAKEYA_OK;
}

static const char *const state_names[] = {"unknown", "requested", "claimed", "answered"};

static kakeya_status print_status_json(client *c, const char *nonce, client_state *state, kakeya_error *error) {
    client_status now = {.tail = NULL};
    kakeya_status status = client_look(c, nonce, "", &now, error);
    if (status == KAKEYA_OK) {
        const claim *claimed = &now.claim;
        cJSON *json = cJSON_CreateObject();
        const char *const texts[][2] = {{"nonce", nonce}, {"state", state_names[now.state]}};
        add_strings(json, texts, 2);
        if (now.state == CLIENT_CLAIMED) {
            cJSON *inner = cJSON_AddObjectToObject(json, "claim");
            cJSON_AddBoolToObject(inner, "by_a_listed_worker", now.claim_verified);
            if (now.claim_verified) {
                char since[REMOTE_TIME], until[REMOTE_TIME];
                remote_time_write(claimed->since, since);
                remote_time_write(claimed->lease_until, until);
                const char *const told[][2] = {
                    {"worker", claimed->worker}, {"host", claimed->host}, {"since", since}, {"lease_until", until}};
                add_strings(inner, told, 4);
                cJSON_AddNumberToObject(inner, "attempt", claimed->attempt);
                cJSON_AddNumberToObject(inner, "rows", claimed->rows);
                if (now.tail) cJSON_AddStringToObject(inner, "log", now.tail);
            }
        }
        *state = now.state;
        status = cli_print_json(json, error);
        cJSON_Delete(json);
    }
    free(now.tail);
    return status;
}

static const cli_command status_command = {
    .name = "remote status",
    .summary = "Shows the state of a request: waiting, claimed (worker, lease, end of the log) or answered.",
    .operands = "[NONCE]",
    .details = "Without NONCE, the newest request made here is shown.\n",
    .examples = "  kakeya remote status --follow\n",
};

int remote_status(int argc, char **argv) {
    remote_place place = {NULL, NULL};
    bool follow = false, as_json = false;
    int seconds = 10;
    const cli_option own[] = {
        CLI_FLAG("follow", &follow, "wait for the result and print new lines of the log"),
        POLL_OPTION(seconds),
        JSON_OPTION(as_json),
        REMOTE_PLACE_OPTIONS(place),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&status_command, own, NULL, argc, argv, &first, &status)) return status;
    if (argc - first > 1) return cli_usage_error(&status_command, "more than one nonce");
    kakeya_error error = {0};
    client c;
    char nonce[REMOTE_NONCE];
    client_state state = CLIENT_UNKNOWN;
    kakeya_status done = client_open(place.config, place.state, terminal_interrupted, &c, &error);
    if (done == KAKEYA_OK) done = find_nonce(&c, argc, argv, first, nonce, &error);
    if (done == KAKEYA_OK && (follow || !as_json)) done = look(&c, nonce, follow, seconds, &state, &error);
    if (done == KAKEYA_OK && as_json) done = print_status_json(&c, nonce, &state, &error);
    if (done == KAKEYA_OK && !as_json) printf("%s: %s\n", nonce, state_names[state]);
    return finish(&status_command, &c, done, state != CLIENT_UNKNOWN, &error);
}

/* ------------------------------------------------------------------------------------------------------------ list */

static const cli_command list_command = {
    .name = "remote list",
    .summary = "Lists the requests made here and, with --all, those of others on the bus.",
    .operands = "",
    .examples = "  kakeya remote list\n",
};

static kakeya_status print_list_json(const client_item *items, size_t n, bool all, kakeya_error *error) {
    cJSON *json = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(json, "requests");
    for (size_t i = 0; i < n; i++) {
        if (!items[i].own && !all) continue;
        cJSON *item = cJSON_CreateObject();
        const char *const texts[][2] = {{"nonce", items[i].nonce}, {"state", state_names[items[i].state]}};
        add_strings(item, texts, 2);
        cJSON_AddBoolToObject(item, "own", items[i].own);
        if (items[i].own) cJSON_AddStringToObject(item, "preset", items[i].preset);
        cJSON_AddBoolToObject(item, "cancelled", items[i].cancelled);
        if (*items[i].outcome) cJSON_AddStringToObject(item, "outcome", items[i].outcome);
        cJSON_AddItemToArray(list, item);
    }
    kakeya_status status = cli_print_json(json, error);
    cJSON_Delete(json);
    return status;
}

int remote_list(int argc, char **argv) {
    remote_place place = {NULL, NULL};
    bool all = false, as_json = false;
    const cli_option own[] = {
        CLI_FLAG("all", &all, "also list the requests of others"),
        JSON_OPTION(as_json),
        REMOTE_PLACE_OPTIONS(place),
        {.name = NULL},
    };
    int status;
    if (!cli_parse(&list_command, own, NULL, argc, argv, NULL, &status)) return status;
    kakeya_error error = {0};
    client c;
    client_item *items = NULL;
    size_t n = 0;
    kakeya_status done = client_open(place.config, place.state, terminal_interrupted, &c, &error);
    if (done == KAKEYA_OK) done = client_list(&c, &items, &n, &error);
    static const char *const names[] = {"not on the bus", "requested", "claimed", "answered"};
    if (done == KAKEYA_OK && as_json) done = print_list_json(items, n, all, &error);
    for (size_t i = 0; i < n && !as_json; i++) {
        if (!items[i].own && !all) continue;
        const char *state = *items[i].outcome ? items[i].outcome : names[items[i].state];
        printf("%s  %-16s %s\n", items[i].nonce, items[i].own ? items[i].preset : "(of others)", state);
    }
    free(items);
    return finish(&list_command, &c, done, true, &error);
}

/* ----------------------------------------------------------------------------------------------------------- fetch */

static const cli_command fetch_command = {
    .name = "remote fetch",
    .summary = "Fetches a result: verifies who made it and for which request, and runs the gate on its report.",
    .operands = "[NONCE]",
    .details = "Prints the outcome, the gate's verdicts there and here, and where the files are. Exit status 0 if\n"
               "the run succeeded and the gate does not refuse its report. Without NONCE, the newest request is\n"
               "fetched.\n",
    .examples = "  kakeya remote fetch 20261121T203012Z-9f3c2ab1 --report r.json\n",
};

int remote_fetch(int argc, char **argv) {
    remote_place place = {NULL, NULL};
    const char *report = NULL;
    gate_replay replay = {.rows = NULL};
    bool as_json = false;
    const cli_option own[] = {
        REPORT_OPTION(report),       REPLAY_OPTIONS(replay), JSON_OPTION(as_json),
        REMOTE_PLACE_OPTIONS(place), {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&fetch_command, own, NULL, argc, argv, &first, &status)) return status;
    if (argc - first > 1) return cli_usage_error(&fetch_command, "more than one nonce");
    if (replay.model && !replay.rows) return cli_usage_error(&fetch_command, "--replay-model needs --replay");
    kakeya_error error = {0};
    client c;
    client_status now = {.tail = NULL};
    char nonce[REMOTE_NONCE];
    bool good = false;
    kakeya_status done = client_open(place.config, place.state, terminal_interrupted, &c, &error);
    if (done == KAKEYA_OK) done = find_nonce(&c, argc, argv, first, nonce, &error);
    if (done == KAKEYA_OK) done = client_look(&c, nonce, "", &now, &error);
    free(now.tail);
    if (done == KAKEYA_OK && now.state != CLIENT_ANSWERED)
        done = error_set(&error, KAKEYA_IO, "%s has no result yet", nonce);
    if (done == KAKEYA_OK) done = take(&c, nonce, &replay, report, as_json, &good, &error);
    return finish(&fetch_command, &c, done, good, &error);
}

/* ---------------------------------------------------------------------------------------------------------- cancel */

static const cli_command cancel_command = {
    .name = "remote cancel",
    .summary = "Cancels a request. One that waits will not run; one that runs is stopped at the worker's next poll.",
    .operands = "NONCE",
    .examples = "  kakeya remote cancel 20261121T203012Z-9f3c2ab1\n",
};

int remote_cancel(int argc, char **argv) {
    remote_place place = {NULL, NULL};
    const cli_option own[] = {
        REMOTE_PLACE_OPTIONS(place),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&cancel_command, own, NULL, argc, argv, &first, &status)) return status;
    if (argc - first != 1) return cli_usage_error(&cancel_command, "name one nonce");
    kakeya_error error = {0};
    client c;
    char nonce[REMOTE_NONCE];
    bool answered = false;
    kakeya_status done = client_open(place.config, place.state, terminal_interrupted, &c, &error);
    if (done == KAKEYA_OK) done = find_nonce(&c, argc, argv, first, nonce, &error);
    if (done == KAKEYA_OK) done = client_cancel(&c, nonce, &answered, &error);
    if (done == KAKEYA_OK) printf("%s: %s\n", nonce, answered ? "it is answered already" : "asked to stop");
    return finish(&cancel_command, &c, done, !answered, &error);
}

/* ----------------------------------------------------------------------------------------------------------- clean */

static const cli_command clean_command = {
    .name = "remote clean",
    .summary = "Deletes old requests, claims and results of all users from the bus, and their local files.",
    .operands = "",
    .examples = "  kakeya remote clean --days 30\n",
};

int remote_clean(int argc, char **argv) {
    remote_place place = {NULL, NULL};
    int days = 30;
    const cli_option own[] = {
        CLI_INT("days", "N", &days, 0, 100000, "delete what is older than this many days (30)"),
        REMOTE_PLACE_OPTIONS(place),
        {.name = NULL},
    };
    int status;
    if (!cli_parse(&clean_command, own, NULL, argc, argv, NULL, &status)) return status;
    kakeya_error error = {0};
    client c;
    size_t n = 0;
    kakeya_status done = client_open(place.config, place.state, terminal_interrupted, &c, &error);
    if (done == KAKEYA_OK) done = client_clean(&c, days, &n, &error);
    if (done == KAKEYA_OK) printf("%zu refs deleted\n", n);
    return finish(&clean_command, &c, done, true, &error);
}
