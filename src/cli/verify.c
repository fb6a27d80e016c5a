/* kakeya verify: the certificate. Runs everything twice or more, says what differed, and leaves a report for the gate.
 */
#include "measure/verify.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "cli/eval_command.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cli/verify_page.h"
#include "measure/verify_logits.h"
#include "measure/verify_plan.h"
#include "remote/gate_check.h"
#include "remote/keys.h"
#include "remote/process.h"

extern char **environ;

static const cli_command command = {
    .name = "verify",
    .summary = "Certifies that a model's tokens on this machine do not depend on how they are computed.",
    .operands = "",
    .details = "Every prompt is answered alone, in one piece and one row at a time. It is then answered again in\n"
               "other ways: k + 1 rows at a time, with drafts from every source, with the prompt in pieces, from a\n"
               "fork, after a truncation, after parking, among other sessions, with another number of threads, and\n"
               "after being saved and loaded in another process. This is done at temperatures 0 and 1, under every\n"
               "requested policy and K/V format. Tokens and the bits of their log-probabilities must be the same.\n"
               "\n"
               "New rounds begin for --seconds; there is always at least one. Only one engine is in memory at a\n"
               "time. Exit status 0 if nothing differs, 1 otherwise. docs/reference/verify.md explains the output.\n",
    .examples =
        "  kakeya verify --seconds 60 --report v.json && kakeya gate v.json\n"
        "  kakeya verify --kv-formats bf16,q8 --policies native,restored --report v.json --sign ~/.ssh/id_ed25519\n"
        "  kakeya verify --model DIR --logits theirs.safetensors\n",
};

enum { DEFAULT_SECONDS = 60, DEFAULT_TOKENS = 12, DEFAULT_SEED = 42, MOST_SECONDS = 1 << 20, MOST_ROUNDS = 1 << 20 };

typedef struct verify_command {
    eval_command eval;
    verify_options options;
    int seconds;
    const char *kv_formats, *sign, *elsewhere;
    char *format_text; /* owns format_names */
    const char *format_names[VERIFY_FORMATS + 1];
} verify_command;

/* ------------------------------------------------------------------------------------------------ the other process */

/* The words of this command, with what the other process has of its own before operands. NULL when out of memory. */
static const char **other_words(const verify_command *c, const char *program, const char *directory,
                                const char *threads) {
    const char *const own[] = {"--elsewhere", directory, "--threads", threads};
    enum { OWN = sizeof own / sizeof own[0] };
    int n = c->eval.setup.argc, at = 0, end = 1;
    const char **words = calloc((size_t)n + OWN + 1, sizeof *words);
    if (!words) return NULL;
    while (end < n && strcmp(c->eval.words[end], "--") != 0) end++;
    for (int i = 0; i < end; i++) words[at++] = i ? c->eval.words[i] : program;
    for (int i = 0; i < OWN; i++) words[at++] = own[i];
    for (int i = end; i < n; i++) words[at++] = c->eval.words[i];
    return words;
}

/* Until it ends. An interruption here is one there. */
static int wait_for(pid_t pid) {
    const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
    int status = 0;
    bool told = false;
    for (;;) {
        pid_t ended = waitpid(pid, &status, WNOHANG);
        if (ended == pid) return status;
        if (ended < 0 && errno != EINTR) return -1;
        if (!told && terminal_interrupted()) told = kill(pid, SIGINT) == 0;
        nanosleep(&pause, NULL);
    }
}

static kakeya_status run_elsewhere(void *user, const char *directory, int threads, kakeya_error *error) {
    const verify_command *c = user;
    char number[16], *program = gate_own_program(error);
    pid_t pid;
    if (!program) return KAKEYA_IO;
    snprintf(number, sizeof number, "%d", threads);
    const char **words = other_words(c, program, directory, number);
    const process_child child = {.argv = words,
                                 .environment = (const char *const *)environ,
                                 .in = -1,
                                 .out = -1,
                                 .err = STDERR_FILENO,
                                 .dies_with_parent = true};
    kakeya_status status =
        words ? process_start(&child, &pid, error) : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (status == KAKEYA_OK) {
        int ended = wait_for(pid);
        if (terminal_interrupted())
            status = error_set(error, KAKEYA_CANCELLED, "interrupted in the other process");
        else if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0)
            status = error_set(error, KAKEYA_BACKEND, "the other process has failed (%s %d)",
                               WIFEXITED(ended) ? "status" : "signal",
                               WIFEXITED(ended) ? WEXITSTATUS(ended) : WTERMSIG(ended));
    }
    free(words);
    free(program);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ signatures */

static kakeya_status write_signature(const char *report, const char *signature, size_t bytes, kakeya_error *error) {
    char *path = verify_signature_path(report);
    file_writer *writer = NULL;
    kakeya_status status =
        path ? file_writer_open(path, &writer, error) : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (status == KAKEYA_OK) status = file_writer_write(writer, signature, bytes, error);
    if (status == KAKEYA_OK)
        status = file_writer_commit(writer, error);
    else
        file_writer_abort(writer);
    free(path);
    return status;
}

/* The bytes of the report, as results of `kakeya remote` are. */
static kakeya_status sign_report(const verify_command *c, kakeya_error *error) {
    enum { MAX_REPORT_BYTES = 1 << 28 };
    char *text = NULL, *signature = NULL;
    size_t bytes = 0, signature_bytes = 0;
    kakeya_status status = file_read(c->eval.report, MAX_REPORT_BYTES, &text, &bytes, error);
    if (status == KAKEYA_OK) status = keys_sign(c->sign, text, bytes, &signature, &signature_bytes, error);
    if (status == KAKEYA_OK) status = write_signature(c->eval.report, signature, signature_bytes, error);
    free(signature);
    free(text);
    return status;
}

/* A key that cannot sign is known before the work. */
static kakeya_status try_key(const verify_command *c, kakeya_error *error) {
    static const char probe[] = "kakeya verify\n";
    char *signature = NULL;
    size_t bytes;
    kakeya_status status = keys_check_program(error);
    if (status == KAKEYA_OK) status = keys_sign(c->sign, probe, sizeof probe - 1, &signature, &bytes, error);
    free(signature);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------- verb */

static void tell_notes(void *user, kakeya_engine *engine) {
    (void)user;
    terminal_clear_progress();
    for (size_t i = 0; kakeya_engine_note(engine, i); i++)
        fprintf(stderr, "kakeya verify: %s\n", kakeya_engine_note(engine, i));
}

static kakeya_status split_formats(verify_command *c, kakeya_error *error) {
    verify_options *o = &c->options;
    o->kv_formats = c->format_names;
    if (!c->kv_formats) return KAKEYA_OK;
    c->format_text = strdup(c->kv_formats);
    if (!c->format_text) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    char *rest = c->format_text;
    for (char *name; (name = strsep(&rest, ",")) != NULL && o->n_kv_formats <= VERIFY_FORMATS;)
        c->format_names[o->n_kv_formats++] = name;
    return KAKEYA_OK;
}

static kakeya_status prepare(verify_command *c, kakeya_error *error) {
    verify_options *o = &c->options;
    const char *const inputs[] = {o->logits, c->sign};
    size_t first = o->logits ? 0 : 1, last = c->sign ? 2 : 1;
    kakeya_status status = eval_prepare(&c->eval, &o->policies, inputs + first, last > first ? last - first : 0, error);
    if (status == KAKEYA_OK) status = split_formats(c, error);
    if (status == KAKEYA_OK && c->sign) status = try_key(c, error);
    o->seconds = c->seconds;
    o->elsewhere = run_elsewhere;
    o->elsewhere_user = c;
    o->on_engine = tell_notes;
    return status;
}

static kakeya_status show(const verify_command *c, const eval_report *report, kakeya_error *error) {
    if (!c->eval.shared.json) return verify_print_page(report, c->eval.report, c->sign != NULL, error);
    cJSON *json = eval_report_to_json(report);
    kakeya_status status = cli_print_json(json, error);
    cJSON_Delete(json);
    return status;
}

/* Exit status of the whole: 1 where something differs, too. */
static int certify(verify_command *c, kakeya_error *error) {
    eval_report *report = NULL;
    size_t differ = 0;
    kakeya_status status = prepare(c, error);
    if (status == KAKEYA_OK) status = verify_run_all(&c->eval.setup, &c->options, &report, error);
    terminal_meter_clear(c->eval.setup.user);
    if (status == KAKEYA_OK && c->sign) status = sign_report(c, error);
    if (status == KAKEYA_OK) status = show(c, report, error);
    if (status == KAKEYA_OK) differ = verify_differences(report);
    if (status == KAKEYA_OK && report->logits) differ += !verify_logits_hold(report->logits);
    if (status == KAKEYA_CANCELLED && report && c->eval.report)
        error_set(error, status, "interrupted; %s holds the %zu finished streams", c->eval.report, report->rows.n);
    eval_report_close(report);
    return status != KAKEYA_OK ? cli_fail(command.name, error) : differ ? CLI_FAILED : CLI_DONE;
}

static int be_elsewhere(verify_command *c, kakeya_error *error) {
    eval_setup *setup = &c->eval.setup;
    kakeya_status status = cli_shared_engine_options(&c->eval.shared, &setup->engine, error);
    cli_shared_session_options(&c->eval.shared, &setup->session);
    setup->progress = eval_show_progress;
    if (status == KAKEYA_OK) status = verify_elsewhere(setup, c->elsewhere, NULL, NULL, error);
    terminal_meter_clear(setup->user);
    return status == KAKEYA_OK ? CLI_DONE : cli_fail(command.name, error);
}

int cli_verify(int argc, char **argv) {
    verify_command c = {.options = {.max_tokens = DEFAULT_TOKENS, .seed = DEFAULT_SEED}, .seconds = DEFAULT_SECONDS};
    verify_options *o = &c.options;
    eval_command_init(&c.eval, argc, argv, NULL);
    eval_command_rename(&c.eval);
    eval_drop_option(c.eval.shared_table, "kv-format");
    const cli_option own[] = {
        CLI_INT("seconds", "N", &c.seconds, 1, MOST_SECONDS, "time during which new rounds begin (60)"),
        CLI_INT("rounds", "N", &o->rounds, 1, MOST_ROUNDS, "number of rounds, instead of --seconds"),
        POLICIES_OPTION(c.eval, "native and restored, or sink-window without an f_theta"),
        CLI_TEXT("kv-formats", "LIST", &c.kv_formats,
                 "f32, bf16, q8, q4, separated by commas (the precision's default)"),
        CLI_INT("max-tokens", "N", &o->max_tokens, VERIFY_LEAST_TOKENS, VERIFY_MOST_TOKENS,
                "length of every answer in tokens (12)"),
        SEED_OPTION(*o),
        CLI_TEXT("logits", "FILE", &o->logits,
                 "compare with the ids and logits that bench/transformers_compare.py --save made elsewhere"),
        REPORT_OPTION(c.eval),
        CLI_TEXT("sign", "KEY", &c.sign, "sign the report with this SSH key, into FILE.sig (`kakeya gate --signers`)"),
        CLI_TEXT("elsewhere", "DIR", &c.elsewhere,
                 "internal: used for the other process, which this verb starts itself"),
        {.name = NULL},
    };
    int status;
    if (!cli_parse(&command, own, c.eval.shared_table, argc, argv, NULL, &status)) return status;
    if (c.sign && !c.eval.report) return cli_usage_error(&command, "--sign needs --report");

    terminal_meter progress = {0};
    kakeya_error error = {0};
    c.eval.setup.user = &progress;
    status = c.elsewhere ? be_elsewhere(&c, &error) : certify(&c, &error);
    free(c.format_text);
    eval_command_free(&c.eval);
    return status;
}
