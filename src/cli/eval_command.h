/* What all evaluations of the command line have in common. */
#ifndef KAKEYA_CLI_EVAL_COMMAND_H
#define KAKEYA_CLI_EVAL_COMMAND_H

#include "base/files.h"
#include "cli/cli.h"
#include "measure/options.h"

enum { EVAL_MAX_WORDS = 512 };

/* An evaluation that is replayed from its report: what takes the place of words of its command (NULL, 0: nothing
 * does). */
typedef struct eval_again_outcome {
    kakeya_status status;
    kakeya_error error;
    eval_report *report; /* of the rows that were computed again; NULL where it came to none */
} eval_again_outcome;

typedef struct eval_again {
    const char *model, *drafter, *f_theta, *backend, *isa;
    const char *files; /* folder of the files that the command names; NULL: they are where it says */
    int threads;       /* as the report has it */
    const eval_replay *replay;
    eval_again_outcome *outcome;
} eval_again;

/* A list on the command line, and its values. */
typedef struct eval_list {
    const eval_option *option;
    cli_ints ints;
    const char *text; /* as given; NULL: it is not */
    char *owned;      /* holds the names */
    const char *names[CLI_MAX_VALUES];
    double shares[CLI_MAX_VALUES];
} eval_list;

enum { EVAL_OWN_OPTIONS = 24, EVAL_LISTS = 5, EVAL_HELP = 176 };

/* Options of every evaluation, beside the shared ones. */
typedef struct eval_command {
    cli_shared shared;
    cli_option shared_table[CLI_SHARED_OPTIONS];
    const char *report, *plot, *policies;
    const char *policy_names[CLI_MAX_VALUES];
    char *policy_text;                /* owns policy_names */
    file_writer *plot_writer;         /* open from the start, so that an unwritable path is known before the work */
    cli_option own[EVAL_OWN_OPTIONS]; /* [n_own]: those of the table; nameless at the end */
    size_t n_own;
    char help[EVAL_OWN_OPTIONS][EVAL_HELP];
    eval_list list[EVAL_LISTS];
    size_t n_lists;
    eval_setup setup;
    const char *words[EVAL_MAX_WORDS]; /* the whole command line */
    const eval_again *again;           /* NULL: a new evaluation */
    char *found[EVAL_MAX_WORDS];       /* files of a replay */
    size_t n_found;
    const char *missing; /* one of them that is not here */
} eval_command;

/* "eval 34/150, 1:20 left" on a terminal; cancels after Ctrl-C anywhere. */
bool eval_show_progress(void *user, const char *what, uint64_t done, uint64_t total);

void eval_command_init(eval_command *c, int argc, char **argv, const eval_again *again);
void eval_command_free(eval_command *c);
/* Of a verb whose words are not those of an evaluation: "kakeya VERB ...". */
void eval_command_rename(eval_command *c);
/* Takes an option out of the shared table: the evaluation has its own form of it, or decides by itself. */
void eval_drop_option(cli_option *table, const char *name);
/* Adds the rows of the table of evaluations, as far as they are of these kinds, to c->own, and sets their defaults. */
void eval_options_add(eval_command *c, unsigned kinds, eval_options *o);
void eval_option_add(eval_command *c, cli_option option);
/* After parsing: lists take their places in *o. What is wrong with one is in *error. */
kakeya_status eval_options_take(eval_command *c, eval_options *o, kakeya_error *error);

/* An input file that the command names: in a replay, where it is here. */
const char *eval_input(eval_command *c, const char *path);

/* Neither output may hit what the evaluation reads: its files, the models' folders, or the other output. */
kakeya_status eval_check_outputs(const eval_command *c, const char *const *inputs, size_t n, kakeya_error *error);
/* Everything behind the parsing. inputs: the files that the evaluation reads, [n]. */
kakeya_status eval_prepare(eval_command *c, eval_policies *policies, const char *const *inputs, size_t n,
                           kakeya_error *error);
/* What every evaluation ends with; an interrupted one still shows what it has. */
int eval_finish(eval_command *c, const char *name, kakeya_status status, eval_report *report, kakeya_error *error);

#define REPORT_OPTION(c)                                                                                               \
    CLI_TEXT("report", "FILE", &(c).report, "write raw rows and summary as JSON, for `kakeya gate`")
#define POLICIES_OPTION(c, defaults)                                                                                   \
    CLI_TEXT("policies", "LIST", &(c).policies,                                                                        \
             "native, sink-window, restored, restored-all, separated by commas (" defaults ")")
#define MAX_TOKENS_OPTION(o, default_text)                                                                             \
    CLI_INT("max-tokens", "N", &(o).max_tokens, 1, 1 << 20,                                                            \
            "maximum number of tokens generated per run (" default_text ")")
#define SEED_OPTION(o) CLI_UINT64("seed", "N", &(o).seed, "random seed for prompts and sampling (42)")

#endif
