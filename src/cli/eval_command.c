#include "cli/eval_command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/eval_output.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "measure/plot.h"

/* ---------------------------------------------------------------------------------------------------- progress */

bool eval_show_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    if (terminal_interrupted()) return false;
    terminal_meter_show(user, (double)done, (double)total, "%s %llu/%llu", what, (unsigned long long)done,
                        (unsigned long long)total);
    return true;
}

/* ------------------------------------------------------------------------------------------------------ common */

void eval_drop_option(cli_option *table, const char *name) {
    cli_option *to = table;
    for (const cli_option *from = table; from->name; from++)
        if (strcmp(from->name, name) != 0) *to++ = *from;
    *to = (cli_option){0};
}

void eval_command_init(eval_command *c, int argc, char **argv, const eval_again *again) {
    *c = (eval_command){.again = again};
    cli_shared_init(&c->shared, c->shared_table);
    eval_drop_option(c->shared_table, "attention");
    eval_drop_option(c->shared_table, "restore-layers");
    eval_drop_option(c->shared_table, "context");
    c->words[c->setup.argc++] = "kakeya";
    c->words[c->setup.argc++] = "eval";
    for (int i = 0; i < argc && c->setup.argc < (int)(sizeof c->words / sizeof c->words[0]); i++)
        c->words[c->setup.argc++] = argv[i];
    c->setup.argv = c->words;
}

void eval_command_rename(eval_command *c) {
    memmove(c->words + 1, c->words + 2, (size_t)(c->setup.argc - 2) * sizeof *c->words);
    c->setup.argc--;
}

void eval_command_free(eval_command *c) {
    for (size_t i = 0; i < c->n_found; i++) free(c->found[i]);
    file_writer_abort(c->plot_writer);
    for (size_t i = 0; i < c->n_lists; i++) free(c->list[i].owned);
    free(c->policy_text);
    cli_shared_free(&c->shared);
}

/* "native,restored" -> names, which *owned holds. */
static kakeya_status split_names(const char *text, char **owned, const char *names[CLI_MAX_VALUES], size_t *n,
                                 kakeya_error *error) {
    *n = 0;
    if (!text) return KAKEYA_OK;
    char *rest = *owned = strdup(text);
    if (!rest) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    for (char *name; (name = strsep(&rest, ",")) != NULL && *n < CLI_MAX_VALUES;) names[(*n)++] = name;
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------- the table of options */

void eval_option_add(eval_command *c, cli_option option) { c->own[c->n_own++] = option; }

/* The list whose value goes there; the same for all names of an option. */
static eval_list *list_of(eval_command *c, const eval_option *option) {
    size_t i = 0;
    while (i < c->n_lists && c->list[i].option->at != option->at) i++;
    if (i == c->n_lists) {
        c->list[c->n_lists++].option = option;
        for (const char *at = option->fallback; at && option->form == EVAL_COUNTS;) {
            c->list[i].ints.value[c->list[i].ints.n++] = atoi(at);
            at = strchr(at, ',');
            if (at) at++;
        }
    }
    return &c->list[i];
}

void eval_options_add(eval_command *c, unsigned kinds, eval_options *o) {
    static const cli_kind takes[] = {
        [EVAL_COUNT] = CLI_KIND_INT,  [EVAL_SEED] = CLI_KIND_UINT64, [EVAL_NAME] = CLI_KIND_CHOICE,
        [EVAL_FLAG] = CLI_KIND_FLAG,  [EVAL_COUNTS] = CLI_KIND_INTS, [EVAL_SHARES] = CLI_KIND_TEXT,
        [EVAL_NAMES] = CLI_KIND_TEXT, [EVAL_TEXT] = CLI_KIND_TEXT};
    const eval_option *option;
    for (size_t i = 0; (option = eval_option_at(i)) != NULL; i++) {
        if (!(option->kinds & kinds) || !option->name) continue;
        const eval_option_form form = option->form;
        char *help = c->help[c->n_own];
        void *at = (char *)o + option->at;
        snprintf(help, EVAL_HELP, option->fallback ? "%s (%s)" : "%s", option->help, option->fallback);
        if (form == EVAL_COUNT && option->fallback) *(int *)at = atoi(option->fallback);
        if (form == EVAL_SEED) *(uint64_t *)at = strtoull(option->fallback, NULL, 10);
        if (form == EVAL_COUNTS) at = &list_of(c, option)->ints;
        if (form == EVAL_SHARES || form == EVAL_NAMES) at = &list_of(c, option)->text;
        eval_option_add(c, (cli_option){option->name, option->argument, help, takes[form], at, option->min, option->max,
                                        form == EVAL_NAME ? cli_mode_names : NULL});
    }
}

/* "0,0.25,1" */
static bool parse_shares(const char *text, double out[CLI_MAX_VALUES], size_t *n) {
    for (const char *at = text;; at++) {
        char *end;
        double value = strtod(at, &end);
        if (end == at || *n + 1 >= CLI_MAX_VALUES || !(value >= 0 && value <= 1)) return false;
        out[(*n)++] = value;
        at = end;
        if (!*at) return true;
        if (*at != ',') return false;
    }
}

kakeya_status eval_options_take(eval_command *c, eval_options *o, kakeya_error *error) {
    for (size_t i = 0; i < c->n_lists; i++) {
        eval_list *list = &c->list[i];
        const eval_option *option = list->option;
        size_t n = list->ints.n;
        const void *values = list->ints.value;
        if (option->form == EVAL_NAMES) {
            kakeya_status status = split_names(list->text, &list->owned, list->names, &n, error);
            if (status != KAKEYA_OK) return status;
            values = list->names;
        } else if (option->form == EVAL_SHARES) {
            if (list->text && !parse_shares(list->text, list->shares, &n))
                return error_set(error, KAKEYA_INVALID_ARGUMENT, "--%s: '%s' is not a list of numbers from 0 to 1",
                                 option->name, list->text);
            for (size_t k = 0; k < n; k++) o->identity_restore &= list->shares[k] < 1;
            if (o->identity_restore) list->shares[n++] = 1;
            values = list->shares;
        }
        memcpy((char *)o + option->at, &values, sizeof values);
        memcpy((char *)o + option->n_at, &n, sizeof n);
    }
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------ inputs and outputs
 */

kakeya_status eval_check_outputs(const eval_command *c, const char *const *inputs, size_t n, kakeya_error *error) {
    const kakeya_engine_options *engine = &c->setup.engine;
    const char *const folders[] = {engine->model, engine->drafter, engine->second_drafter, engine->f_theta};
    enum { FOLDERS = sizeof folders / sizeof folders[0] };
    kakeya_status status = output_differs("report", c->report, "plot", c->plot, error);
    for (size_t i = 0; status == KAKEYA_OK && i < FOLDERS + n; i++) {
        const char *input = i < FOLDERS ? folders[i] : inputs[i - FOLDERS];
        status = output_spares("report", c->report, input, error);
        if (status == KAKEYA_OK) status = output_spares("plot", c->plot, input, error);
    }
    return status;
}

const char *eval_input(eval_command *c, const char *path) {
    if (!c->again || c->n_found == EVAL_MAX_WORDS) return path;
    const char *slash = strrchr(path, '/'), *files = c->again->files;
    char *places[] = {files ? path_join(files, path) : strdup(path),
                      files ? path_join(files, slash ? slash + 1 : path) : NULL};
    char *found = NULL;
    for (size_t i = 0; i < 2; i++) {
        if (!found && places[i] && file_exists(places[i]))
            found = places[i];
        else
            free(places[i]);
    }
    if (!found) {
        if (!c->missing) c->missing = path;
        return path;
    }
    return c->found[c->n_found++] = found;
}

static bool is_called(const char *path, const char *name) {
    const char *slash = strrchr(path, '/');
    return strcmp(slash ? slash + 1 : path, name) == 0;
}

/* What the person who replays says in place of the command. */
static kakeya_status prepare_again(eval_command *c, kakeya_error *error) {
    const eval_again *again = c->again;
    kakeya_engine_options *engine = &c->setup.engine;
    c->report = c->plot = NULL;
    if (again->model) {
        engine->model = again->model;
        c->shared.study.synthetic = NULL;
    } else if (c->shared.model && access(c->shared.model, F_OK) != 0) {
        /* A path of another machine: the model that is taken where none is named may be this one. */
        const char *usual = NULL, *named = strrchr(c->shared.model, '/');
        c->shared.model = NULL;
        if (cli_shared_model(&c->shared, &usual, NULL) == KAKEYA_OK && is_called(usual, named ? named + 1 : ""))
            engine->model = usual;
    }
    if (again->drafter) {
        engine->drafter = again->drafter;
        engine->second_drafter = NULL;
    }
    if (again->f_theta) engine->f_theta = again->f_theta;
    if (again->backend) engine->backend = again->backend;
    if (again->isa) c->shared.study.cpu_isa = again->isa;
    if (again->threads) engine->threads = again->threads;
    c->setup.replay = again->replay;
    return c->missing
               ? error_set(error, KAKEYA_IO,
                           "%s: no such file here; name the folder of the command's files with --files", c->missing)
               : KAKEYA_OK;
}

kakeya_status eval_prepare(eval_command *c, eval_policies *policies, const char *const *inputs, size_t n,
                           kakeya_error *error) {
    kakeya_status status = cli_shared_engine_options(&c->shared, &c->setup.engine, error);
    if (status == KAKEYA_OK) status = split_names(c->policies, &c->policy_text, c->policy_names, &policies->n, error);
    policies->names = c->policy_names;
    if (c->again) {
        if (status == KAKEYA_OK) status = prepare_again(c, error);
        cli_shared_session_options(&c->shared, &c->setup.session);
        c->setup.progress = eval_show_progress;
        return status;
    }
    if (status == KAKEYA_OK) status = eval_check_outputs(c, inputs, n, error);
    if (status != KAKEYA_OK) return status;
    cli_shared_session_options(&c->shared, &c->setup.session);
    c->setup.report_path = c->report;
    c->setup.progress = eval_show_progress;
    if (c->report && directory_exists(c->report))
        return error_set(error, KAKEYA_IO, "--report: %s is a directory", c->report);
    return c->plot ? file_writer_open(c->plot, &c->plot_writer, error) : KAKEYA_OK;
}

static kakeya_status write_plot(eval_command *c, const eval_report *report, kakeya_error *error) {
    char *svg = plot_niah(&report->rows);
    if (!svg) return error_set(error, KAKEYA_OUT_OF_MEMORY, "--plot: out of memory");
    kakeya_status status = file_writer_write(c->plot_writer, svg, strlen(svg), error);
    if (status == KAKEYA_OK) {
        status = file_writer_commit(c->plot_writer, error);
        c->plot_writer = NULL;
    }
    free(svg);
    return status;
}

static kakeya_status print_report(const eval_command *c, const eval_report *report, kakeya_error *error) {
    if (!c->shared.json) {
        eval_print_tables(report);
        if (c->report) printf("\nReport: %s\n", c->report);
        return KAKEYA_OK;
    }
    cJSON *json = eval_report_to_json(report);
    char *text = json ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    if (!text) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory while writing JSON");
    if (terminal_write(text, strlen(text))) terminal_write("\n", 1);
    cJSON_free(text);
    return KAKEYA_OK;
}

/* The report goes to whoever wanted it again. */
static int hand_over(eval_command *c, kakeya_status status, eval_report *report, const kakeya_error *error) {
    c->again->outcome->status = status;
    c->again->outcome->error = *error;
    c->again->outcome->report = report;
    eval_command_free(c);
    return status == KAKEYA_OK ? CLI_DONE : CLI_FAILED;
}

int eval_finish(eval_command *c, const char *name, kakeya_status status, eval_report *report, kakeya_error *error) {
    terminal_meter_clear(c->setup.user);
    if (c->again) return hand_over(c, status, report, error);
    if (report && (status == KAKEYA_OK || (status == KAKEYA_CANCELLED && report->rows.n))) {
        kakeya_error late = {0};
        kakeya_status shown = print_report(c, report, &late);
        if (shown == KAKEYA_OK && c->plot) shown = write_plot(c, report, &late);
        if (status == KAKEYA_OK && shown != KAKEYA_OK) {
            status = shown;
            *error = late;
        }
    }
    if (status == KAKEYA_CANCELLED && report && c->report)
        error_set(error, status, "interrupted; %s holds the %zu finished rows", c->report, report->rows.n);
    eval_report_close(report);
    eval_command_free(c);
    return status == KAKEYA_OK ? CLI_DONE : cli_fail(name, error);
}
