/* kakeya gate: derives every verdict of a report again from its raw rows. */
#include "measure/gate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "cli/cli.h"
#include "cli/eval.h"
#include "cli/terminal.h"
#include "cli/verify_page.h"
#include "measure/replay.h"
#include "remote/keys.h"

static const cli_command command = {
    .name = "gate",
    .summary = "Checks reports of `kakeya eval` and `kakeya verify` by deriving every verdict from the raw rows.",
    .operands = "FILE...",
    .details = "Exit status 0 if every report passes, 1 otherwise, with one line '[CODE] what is wrong' per\n"
               "violation. docs/reference/reports.md explains the codes.\n"
               "\n"
               "With --replay, the report's evaluation runs again for some of its rows: tokens, drafts, likelihoods\n"
               "and divergences are compared bit for bit. The probability of detecting a changed report is printed.\n"
               "The model is the one named by the report's command, or --model.\n",
    .examples = "  kakeya eval niah --report r.json && kakeya gate r.json\n"
                "  kakeya gate r.json --replay 10 --model models/demo\n",
};

static cJSON *result_json(const char *path, const gate_result *result) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "file", path);
    if (result->recognised) {
        cJSON_AddStringToObject(object, "kind", result->kind_name);
    } else {
        cJSON_AddNullToObject(object, "kind");
    }
    cJSON_AddBoolToObject(object, "passed", result->n_violations == 0);
    cJSON_AddNumberToObject(object, "rows", (double)result->rows);
    cJSON *violations = cJSON_AddArrayToObject(object, "violations");
    for (size_t i = 0; i < result->n_violations; i++) {
        cJSON *violation = cJSON_CreateObject();
        cJSON_AddStringToObject(violation, "code", result->violation[i].code);
        cJSON_AddStringToObject(violation, "message", result->violation[i].message);
        cJSON_AddItemToArray(violations, violation);
    }
    if (result->note[0]) cJSON_AddStringToObject(object, "note", result->note);
    return object;
}

static void print_result(const char *path, const gate_result *result, const char *signer) {
    if (!result->n_violations) {
        printf("%s: passed (%s, %zu rows%s%s)\n", path, result->kind_name, result->rows, *signer ? ", signed by " : "",
               signer);
    } else {
        printf("%s: refused\n", path);
    }
    for (size_t i = 0; i < result->n_violations; i++)
        printf("  [%s] %s\n", result->violation[i].code, result->violation[i].message);
    if (result->note[0]) printf("  note: %s\n", result->note);
}

/* What a replay takes. */
typedef struct gate_command {
    const char *signers; /* file of allowed signers; NULL: nobody asks who signed */
    char signer[REMOTE_NAME];
    const char *rows; /* "N" or "all"; NULL: no replay */
    replay_options replay;
    eval_again again;
} gate_command;

static bool is_usual(const replay_outcome *o) { return o->speed >= o->slowest_usual && o->speed <= o->fastest_usual; }

static cJSON *outcome_json(const gate_command *c, const replay_outcome *o) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "replayed_rows", (double)o->replayed);
    cJSON_AddNumberToObject(object, "decisive_rows", (double)o->decisive);
    cJSON_AddNumberToObject(object, "drawn_rows", (double)o->drawn);
    cJSON_AddNumberToObject(object, "seed", (double)c->replay.seed);
    cJSON_AddStringToObject(object, "backend", o->backend);
    cJSON_AddStringToObject(object, "compared", o->exact ? "bits" : "bounds");
    cJSON *found = cJSON_AddObjectToObject(object, "detection_probability");
    cJSON_AddNumberToObject(found, "one_row", o->found_one);
    cJSON_AddNumberToObject(found, "half_an_arm", o->found_half);
    cJSON_AddNumberToObject(found, "whole_arm", o->found_arm);
    cJSON_AddBoolToObject(found, "prompts", true);
    cJSON *speed = cJSON_AddObjectToObject(object, "speed");
    cJSON_AddBoolToObject(speed, "reproducible", false);
    cJSON_AddNumberToObject(speed, "rows", (double)o->timed);
    cJSON_AddNumberToObject(speed, "ratio", o->speed);
    cJSON_AddBoolToObject(speed, "within_tolerance", is_usual(o));
    return object;
}

static void print_outcome(const gate_command *c, const replay_outcome *o) {
    printf("  replayed %zu of %zu rows on %s", o->replayed, o->rows, o->backend);
    if (!c->replay.all)
        printf(": %zu that matter most, %zu drawn with seed %llu, and the rows that these need", o->decisive, o->drawn,
               (unsigned long long)c->replay.seed);
    printf(";\n  compared %s\n",
           o->exact ? "bit for bit" : "within bounds, because the report was made with another backend");
    printf("  a change%s is found with probability %.3g in one row, %.3g in half of an arm (of %zu rows), %.3g in a "
           "whole arm,\n  1 in a prompt or in the choice of samples\n",
           o->exact ? "" : " beyond the bounds", o->found_one, o->found_half, o->arm_rows, o->found_arm);
    if (o->timed)
        printf("  speed: %.2f times the report's, median of %zu rows: %s (not reproducible, not judged)\n", o->speed,
               o->timed, is_usual(o) ? "a usual difference" : "another machine, or the times are not from it");
}

/* The report's own kernels, where its backend is the CPU: "cpu/avx512, 2 threads". */
static void take_backend(const cJSON *environment, eval_again *again, char isa[32]) {
    const cJSON *backend = cJSON_GetObjectItemCaseSensitive(environment, "backend"),
                *threads = cJSON_GetObjectItemCaseSensitive(environment, "threads");
    if (cJSON_IsNumber(threads)) again->threads = threads->valueint;
    if (again->backend || again->isa || !cJSON_IsString(backend)) return;
    size_t length = strcspn(backend->valuestring, "/");
    if (strncmp(backend->valuestring, "cpu/", 4) != 0) return;
    const char *name = backend->valuestring + length + 1;
    snprintf(isa, 32, "%.*s", (int)strcspn(name, ","), name);
    again->backend = "cpu";
    again->isa = isa;
}

/* The evaluation of the report's command, under what the person here has said instead. */
static void run_again(const cJSON *report, const eval_again *again) {
    const cJSON *word, *words = cJSON_GetObjectItemCaseSensitive(report, "command");
    char *argv[EVAL_MAX_WORDS + 1];
    int argc = 0;
    cJSON_ArrayForEach(word, words) if (argc < EVAL_MAX_WORDS) argv[argc++] = word->valuestring;
    argv[argc] = NULL;
    eval_run_again(argc, argv, again);
}

static kakeya_status replay_report(const gate_command *c, const cJSON *report, gate_result *result,
                                   replay_outcome *outcome, kakeya_error *error) {
    replay *r = NULL;
    eval_again again = c->again;
    eval_again_outcome ran = {0};
    char isa[32];
    kakeya_status status = replay_open(report, &c->replay, &r, error);
    if (status == KAKEYA_OK) {
        again.replay = replay_hook(r);
        again.outcome = &ran;
        take_backend(cJSON_GetObjectItemCaseSensitive(report, "environment"), &again, isa);
        run_again(report, &again);
        if (ran.status == KAKEYA_UNSUPPORTED && again.isa == isa) { /* a machine without these kernels */
            eval_report_close(ran.report);
            again.isa = NULL;
            run_again(report, &again);
        }
        status = ran.status == KAKEYA_OK ? KAKEYA_OK : error_set(error, ran.status, "%s", ran.error.message);
    }
    if (status == KAKEYA_OK) status = replay_judge(r, ran.report, result, outcome, error);
    eval_report_close(ran.report);
    replay_close(r);
    return status;
}

/* Who signed the file: its signature lies beside it. Nobody of those who may: a violation. */
static kakeya_status ask_signer(gate_command *c, const char *path, gate_result *result, kakeya_error *error) {
    enum { MAX_REPORT_BYTES = 1 << 28 };
    const char *temporary = getenv("TMPDIR");
    kakeya_error problem = {0};
    char *text = NULL, *signature = NULL, *beside = verify_signature_path(path);
    size_t bytes = 0, signature_bytes = 0;
    kakeya_status status = beside ? file_read(path, MAX_REPORT_BYTES, &text, &bytes, &problem)
                                  : error_set(&problem, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (status == KAKEYA_OK) status = file_read(beside, KEYS_MAX_SIGNATURE, &signature, &signature_bytes, &problem);
    if (status == KAKEYA_OK)
        status = keys_verify(c->signers, temporary && *temporary ? temporary : "/tmp", text, bytes, signature,
                             signature_bytes, c->signer, &problem);
    free(signature);
    free(text);
    free(beside);
    if (status == KAKEYA_OUT_OF_MEMORY) return error_set(error, status, "%s", problem.message);
    return status == KAKEYA_OK ? KAKEYA_OK : gate_refuse(result, "SIGNATURE", problem.message, error);
}

/* Judges a file, and computes rows of it again where that was asked for. What is refused anyway need not be of a form
 * that can be computed. */
static kakeya_status judge(gate_command *c, const char *path, gate_result *result, replay_outcome *outcome,
                           kakeya_error *error) {
    kakeya_error problem = {0};
    cJSON *report = NULL;
    *outcome = (replay_outcome){0};
    kakeya_status status = gate_read_file(path, result, &report, error);
    if (status == KAKEYA_OK && c->rows && result->rows) {
        size_t before = result->n_violations;
        kakeya_status replayed = replay_report(c, report, result, outcome, &problem);
        if (replayed == KAKEYA_OUT_OF_MEMORY || replayed == KAKEYA_CANCELLED)
            status = error_set(error, replayed, "%s: %s", path, problem.message);
        else if (replayed != KAKEYA_OK && before == 0)
            status = gate_refuse(result, "NOT_REPLAYED", problem.message, error);
    }
    cJSON_Delete(report);
    if (status == KAKEYA_OK && c->signers) status = ask_signer(c, path, result, error);
    return status;
}

static bool parse_rows(const char *text, replay_options *out) {
    out->all = strcmp(text, "all") == 0;
    if (out->all) return true;
    char *end;
    size_t digits = strspn(text, "0123456789");
    out->rows = (size_t)strtoull(text, &end, 10);
    return digits > 0 && digits < 10 && !*end;
}

/* Nobody may know beforehand which rows are drawn. */
static uint64_t unknown_seed(void) {
    uint64_t seed = 0;
    if (getentropy(&seed, sizeof seed) != 0) seed = (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32;
    return seed >> 11; /* a number of JSON */
}

int cli_gate(int argc, char **argv) {
    bool json = false;
    gate_command c = {.replay = {.seed = UINT64_MAX}};
    const cli_option own[] = {
        CLI_TEXT("replay", "N", &c.rows, "compute N random rows and those that matter most again, or 'all'"),
        CLI_TEXT("model", "DIR", &c.again.model, "with --replay: the report's model (as its command names it)"),
        CLI_TEXT("drafter", "PATH", &c.again.drafter, "with --replay: the report's drafter (as its command names it)"),
        CLI_TEXT("f-theta", "DIR", &c.again.f_theta, "with --replay: the report's f_theta (as its command names it)"),
        CLI_TEXT("files", "DIR", &c.again.files,
                 "with --replay: folder of the text files that the report's command names"),
        CLI_TEXT("backend", "NAME", &c.again.backend, "with --replay: backend (the report's, if available)"),
        CLI_TEXT("isa", "NAME", &c.again.isa, "with --replay: CPU kernels (the report's, if available)"),
        CLI_UINT64("seed", "N", &c.replay.seed,
                   "with --replay: random seed for drawing rows, to repeat a draw (unpredictable)"),
        CLI_TEXT("signers", "FILE", &c.signers,
                 "allowed signers (as ssh-keygen has them); REPORT.sig must be a signature by one of them"),
        CLI_FLAG("json", &json, "print one JSON object on stdout"),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&command, own, NULL, argc, argv, &first, &status)) return status;
    if (first == argc) return cli_usage_error(&command, "name at least one report");
    if (c.rows && !parse_rows(c.rows, &c.replay))
        return cli_usage_error(&command, "--replay: '%s' is neither a number of rows nor 'all'", c.rows);
    const eval_again *a = &c.again;
    bool instead = a->model || a->drafter || a->f_theta || a->files || a->backend || a->isa;
    if (!c.rows && (instead || c.replay.seed != UINT64_MAX))
        return cli_usage_error(&command, "--model, --drafter, --f-theta, --files, --backend, --isa and --seed need "
                                         "--replay");
    if (c.replay.seed == UINT64_MAX) c.replay.seed = unknown_seed();

    bool passed = true;
    cJSON *reports = cJSON_CreateArray();
    for (int i = first; i < argc; i++) {
        gate_result result;
        replay_outcome outcome;
        kakeya_error error = {0};
        c.signer[0] = '\0';
        if (judge(&c, argv[i], &result, &outcome, &error) != KAKEYA_OK) {
            gate_result_free(&result);
            cJSON_Delete(reports);
            return cli_fail(command.name, &error);
        }
        passed &= result.n_violations == 0;
        if (json) {
            cJSON *object = result_json(argv[i], &result);
            if (c.signer[0]) cJSON_AddStringToObject(object, "signed_by", c.signer);
            if (outcome.replayed) cJSON_AddItemToObject(object, "replay", outcome_json(&c, &outcome));
            cJSON_AddItemToArray(reports, object);
        } else {
            print_result(argv[i], &result, c.signer);
            if (outcome.replayed) print_outcome(&c, &outcome);
        }
        gate_result_free(&result);
    }
    if (json) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddBoolToObject(object, "passed", passed);
        cJSON_AddItemToObject(object, "reports", reports);
        char *text = cJSON_PrintUnformatted(object);
        if (text && terminal_write(text, strlen(text))) terminal_write("\n", 1);
        cJSON_free(text);
        cJSON_Delete(object);
    } else {
        cJSON_Delete(reports);
    }
    return passed ? CLI_DONE : CLI_FAILED;
}
