/* kakeya remote init, allow, serve, presets, doctor: what is done on one end alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "cli/cli.h"
#include "cli/remote.h"
#include "cli/terminal.h"
#include "remote/config.h"
#include "remote/doctor.h"
#include "remote/gate_check.h"
#include "remote/install.h"
#include "remote/presets.h"
#include "remote/worker.h"

/* ------------------------------------------------------------------------------------------------------------ init */

static const cli_command init_command = {
    .name = "remote init",
    .summary = "Sets up this end: writes remote.json, makes a key, and prints the line for the other end.",
    .operands = "",
    .details = "The bus is any git remote that both ends can push to. Only refs/heads/kakeya/ is used; no other\n"
               "branch and no work tree is touched. Both ends must call it by the same name: its URL or, if they\n"
               "reach it by different URLs, --bus-name.\n",
    .examples = "  kakeya remote init --bus /srv/bus.git --name mini --worker --model demo=models/demo\n"
                "  kakeya remote init --bus git@host:me/bus.git --name alice --key ~/.ssh/id_ed25519\n",
};

int remote_init(int argc, char **argv) {
    remote_place place = {NULL, NULL};
    const char *bus = NULL, *bus_name = NULL, *name = NULL, *key = NULL;
    bool worker = false;
    cli_texts models = {{NULL}, 0};
    const cli_option own[] = {
        CLI_TEXT("bus", "URL", &bus, "the git remote: a directory, or an ssh or https URL"),
        CLI_TEXT("bus-name", "NAME", &bus_name, "name of the bus at both ends (its URL)"),
        CLI_TEXT("name", "NAME", &name, "name of this end: a-z, 0-9, '.', '_', '-'"),
        CLI_TEXT("key", "FILE", &key, "SSH key to sign with, or the public half of one in ssh-agent (a new key)"),
        CLI_FLAG("worker", &worker, "this end runs evaluations"),
        CLI_TEXTS("model", "NAME=DIR", &models, "with --worker: model that requests may name; may be repeated"),
        REMOTE_PLACE_OPTIONS(place),
        {.name = NULL},
    };
    int status;
    if (!cli_parse(&init_command, own, NULL, argc, argv, NULL, &status)) return status;
    if (!bus || !name) return cli_usage_error(&init_command, "give --bus and --name");
    if (models.n && !worker) return cli_usage_error(&init_command, "--model needs --worker");
    kakeya_error error = {0};
    kakeya_status done =
        config_create(place.config, place.state, bus, bus_name, name, key, worker, models.text, models.n, &error);
    remote_config config = {0};
    char *public = NULL;
    if (done == KAKEYA_OK) done = config_load(place.config, place.state, &config, &error);
    if (done == KAKEYA_OK) done = config_public_key(&config, &public, &error);
    if (done == KAKEYA_OK) {
        printf("%s/remote.json is written. The other end has to know this key:\n\n  kakeya remote allow %s %s '%s'\n",
               config.folder, worker ? "worker" : "requester", name, public);
    }
    free(public);
    config_free(&config);
    return done == KAKEYA_OK ? CLI_DONE : cli_fail(init_command.name, &error);
}

/* ----------------------------------------------------------------------------------------------------------- allow */

static const cli_command allow_command = {
    .name = "remote allow",
    .summary = "Allows a requester (on a worker), or trusts the results of a worker (on a requester).",
    .operands = "requester|worker NAME KEY",
    .details = "KEY is the text of a public SSH key, 'ssh-ed25519 AAAA...', or a file that contains it. If NAME is\n"
               "already listed, it gets the new key and the new limits.\n",
    .examples = "  kakeya remote allow requester alice 'ssh-ed25519 AAAA...' --preset niah --preset env --minutes 240\n"
                "  kakeya remote allow worker mini mini.pub\n",
};

int remote_allow(int argc, char **argv) {
    enum { MAX_KEY_BYTES = 64 << 10 };
    remote_place place = {NULL, NULL};
    cli_texts presets = {{NULL}, 0};
    int minutes = 0;
    const cli_option own[] = {
        CLI_TEXTS("preset", "NAME", &presets, "preset that the requester may use; may be repeated (all)"),
        CLI_INT("minutes", "N", &minutes, 0, 1440,
                "minutes per day that the requester's runs may take; 0: no limit (0)"),
        REMOTE_PLACE_OPTIONS(place),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&allow_command, own, NULL, argc, argv, &first, &status)) return status;
    if (argc - first != 3) return cli_usage_error(&allow_command, "give requester or worker, a name and a key");
    bool requester = strcmp(argv[first], "requester") == 0;
    if (!requester && strcmp(argv[first], "worker") != 0)
        return cli_usage_error(&allow_command, "'%s' is neither requester nor worker", argv[first]);
    if (!requester && (presets.n || minutes))
        return cli_usage_error(&allow_command, "--preset and --minutes are for requesters");
    const char *name = argv[first + 1], *key = argv[first + 2];
    kakeya_error error = {0};
    remote_config config;
    char *text = NULL;
    size_t bytes;
    kakeya_status done = config_load(place.config, place.state, &config, &error);
    if (done == KAKEYA_OK && file_exists(key)) done = file_read_text(key, MAX_KEY_BYTES, &text, &bytes, &error);
    if (done == KAKEYA_OK)
        done = requester
                   ? config_allow_requester(&config, name, text ? text : key, presets.text, presets.n, minutes, &error)
                   : config_allow_worker(&config, name, text ? text : key, &error);
    free(text);
    config_free(&config);
    return done == KAKEYA_OK ? CLI_DONE : cli_fail(allow_command.name, &error);
}

/* ----------------------------------------------------------------------------------------------------------- serve */

static const cli_command serve_command = {
    .name = "remote serve",
    .summary = "Runs a worker: polls the bus, runs what allowed requesters ask for, and sends results.",
    .operands = "",
    .details = "Prints one line per event on stdout. There is one run at a time. SIGTERM stops the run cleanly; the\n"
               "next worker starts it again. Permissions, models and limits are read again before each poll.\n",
    .examples = "  kakeya remote serve\n"
                "  kakeya remote serve --install\n",
};

static void print_event(void *user, const char *line) {
    (void)user;
    char time_text[32];
    time_t now = time(NULL);
    struct tm parts;
    strftime(time_text, sizeof time_text, "%H:%M:%S", localtime_r(&now, &parts));
    char text[900];
    int length = snprintf(text, sizeof text, "%s %s\n", time_text, line);
    terminal_write(text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
}

static kakeya_status install(const remote_place *place, int poll, kakeya_error *error) {
    remote_config config;
    kakeya_status status = config_load(place->config, place->state, &config, error);
    char *program = NULL, *path = NULL, poll_text[16];
    if (status == KAKEYA_OK && !config.is_worker)
        status = error_set(error, KAKEYA_INVALID_ARGUMENT,
                           "%s: this end is not a worker (init "
                           "--worker)",
                           config.folder);
    if (status == KAKEYA_OK && !(program = gate_own_program(error))) status = KAKEYA_IO;
    if (status == KAKEYA_OK) {
        snprintf(poll_text, sizeof poll_text, "%d", poll);
        const char *const words[] = {program,    "remote",      "serve",   "--poll",    poll_text,
                                     "--config", config.folder, "--state", config.state};
        status = install_write(install_here(), words, sizeof words / sizeof words[0], &path, error);
    }
    if (status == KAKEYA_OK) printf("%s is written. To start it:\n\n%s\n", path, install_next_steps(install_here()));
    free(program);
    free(path);
    config_free(&config);
    return status;
}

int remote_serve(int argc, char **argv) {
    remote_place place = {NULL, NULL};
    bool once = false, to_install = false;
    int poll = 30;
    const cli_option own[] = {
        CLI_FLAG("once", &once, "exit when there is nothing more to do"),
        CLI_INT("poll", "SECONDS", &poll, 1, 3600, "interval between two polls of the bus (30)"),
        CLI_FLAG("install", &to_install, "instead write a systemd user unit (on a Mac: a launchd agent) and exit"),
        REMOTE_PLACE_OPTIONS(place),
        {.name = NULL},
    };
    int status;
    if (!cli_parse(&serve_command, own, NULL, argc, argv, NULL, &status)) return status;
    kakeya_error error = {0};
    worker_options options = {.folder = place.config,
                              .state = place.state,
                              .once = once,
                              .poll_seconds = poll,
                              .event = print_event,
                              .stopped = terminal_interrupted};
    kakeya_status done = to_install ? install(&place, poll, &error) : worker_serve(&options, &error);
    return done == KAKEYA_OK ? CLI_DONE : cli_fail(serve_command.name, &error);
}

/* --------------------------------------------------------------------------------------------------------- presets */

static const cli_command presets_command = {
    .name = "remote presets",
    .summary = "Lists the presets with their parameters, bounds and defaults.",
    .operands = "[NAME]...",
    .examples = "  kakeya remote presets niah\n",
};

static void print_param(const preset_param *p) {
    char bounds[200] = "";
    switch (p->type) {
    case PRESET_INTEGER:
        snprintf(bounds, sizeof bounds, "%ld to %ld", p->min, p->max);
        break;
    case PRESET_INTEGERS:
        snprintf(bounds, sizeof bounds, "up to %zu of %ld to %ld", p->most, p->min, p->max);
        break;
    case PRESET_CHOICE:
    case PRESET_SHAPE:
        snprintf(bounds, sizeof bounds, "%s", p->choices);
        break;
    case PRESET_CHOICES:
        snprintf(bounds, sizeof bounds, "some of %s", p->choices);
        break;
    case PRESET_INPUT:
        snprintf(bounds, sizeof bounds, "an --input%s", p->required ? ", needed" : "");
        break;
    case PRESET_FLAG:
        snprintf(bounds, sizeof bounds, "yes or no");
        break;
    }
    printf("    %-18s %s%s%s%s\n", p->name, bounds, p->fallback ? " (" : "", p->fallback ? p->fallback : "",
           p->fallback ? ")" : "");
}

int remote_presets(int argc, char **argv) {
    const cli_option own[] = {{.name = NULL}};
    int first, status;
    if (!cli_parse(&presets_command, own, NULL, argc, argv, &first, &status)) return status;
    for (int i = first; i < argc; i++) {
        if (preset_find(argv[i])) continue;
        kakeya_error error;
        error_set(&error, KAKEYA_INVALID_ARGUMENT, "there is no preset '%s'", argv[i]);
        return cli_fail(presets_command.name, &error);
    }
    const preset *p;
    for (size_t i = 0; (p = preset_at(i)) != NULL; i++) {
        bool wanted = first == argc;
        for (int k = first; k < argc; k++) wanted |= strcmp(argv[k], p->name) == 0;
        if (!wanted) continue;
        printf("%s: %s (up to %d minutes%s)\n", p->name, p->summary, p->minutes, p->gated ? ", gated" : "");
        for (const preset_param *q = p->params; q->name; q++) print_param(q);
    }
    return CLI_DONE;
}

/* ---------------------------------------------------------------------------------------------------------- doctor */

static const cli_command doctor_command = {
    .name = "remote doctor",
    .summary = "Checks this end and says how to fix what does not work.",
    .operands = "",
    .details = "Exit status 0 if nothing is wrong.\n",
    .examples = "  kakeya remote doctor\n",
};

static void print_finding(void *user, doctor_finding finding, const char *what, const char *mend) {
    static const char *const names[] = {"ok  ", "note", "BAD "};
    (void)user;
    printf("%s  %s\n", names[finding], what);
    if (*mend) printf("      %s\n", mend);
    fflush(stdout);
}

int remote_doctor(int argc, char **argv) {
    remote_place place = {NULL, NULL};
    const cli_option own[] = {
        REMOTE_PLACE_OPTIONS(place),
        {.name = NULL},
    };
    int status;
    if (!cli_parse(&doctor_command, own, NULL, argc, argv, NULL, &status)) return status;
    doctor_options options = {
        .folder = place.config, .state = place.state, .stopped = terminal_interrupted, .report = print_finding};
    return doctor_examine(&options) ? CLI_FAILED : CLI_DONE;
}
