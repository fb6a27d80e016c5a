/* The command line: one function per verb, and what the verbs share. argv[0] of a verb is its name; a verb returns the
 * exit status (options.h). */
#ifndef KAKEYA_CLI_CLI_H
#define KAKEYA_CLI_CLI_H

#include "cli/options.h"
#include "kakeya_study.h"

struct cJSON;

int cli_run(int argc, char **argv);
int cli_serve(int argc, char **argv);
int cli_top(int argc, char **argv);
int cli_sessions(int argc, char **argv);
int cli_tokenize(int argc, char **argv);
int cli_score(int argc, char **argv);
int cli_info(int argc, char **argv);
int cli_explain(int argc, char **argv);
int cli_convert(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_eval(int argc, char **argv);
int cli_gate(int argc, char **argv);
int cli_verify(int argc, char **argv);
int cli_remote(int argc, char **argv);
int cli_train(int argc, char **argv);

/* Values of the options that every verb with a model understands. */
typedef struct cli_shared {
    const char *model, *f_theta, *mmproj, *backend, *devices;
    cli_texts drafter;
    kakeya_study_options study;
    int attention, restore_layers, precision, kv_format, vision; /* indices of choices = values of the public enums */
    int sink, window, draft_window, threads, context;
    size_t memory_limit_bytes;
    const char *weights_limit; /* as given: bytes or "auto" */
    bool json;
    int max_batch, max_stall_ms; /* 0: defaults; of verbs that have options for them */
    char *model_path;            /* what cli_shared_model found; freed by cli_shared_free */
} cli_shared;

enum { CLI_SHARED_OPTIONS = 27 };

/* Sets the defaults and fills `table` with entries that point into *shared. */
void cli_shared_init(cli_shared *shared, cli_option table[CLI_SHARED_OPTIONS]);
void cli_shared_free(cli_shared *shared);

/* The model directory or name: --model, else $KAKEYA_MODEL, else the bundled demo beside the executable; NULL with
 * --synthetic. */
kakeya_status cli_shared_model(cli_shared *shared, const char **model, kakeya_error *error);

/* A limit on weights: bytes, or "auto". */
bool cli_weights_limit(const char *text, size_t *out);

/* Options for the library, which point into *shared. The engine's progress goes to the terminal. */
kakeya_status cli_shared_engine_options(cli_shared *shared, kakeya_engine_options *options, kakeya_error *error);
/* Opens the engine, and says on stderr what is worth knowing about the model (skipped vision tensors, for example). */
kakeya_status cli_open_engine(const char *verb, cli_shared *shared, kakeya_engine **out, kakeya_error *error);
void cli_shared_session_options(const cli_shared *shared, kakeya_session_options *options);

/* The key of a server that is asked: what was given, or the first of $KAKEYA_API_KEYS. malloc'ed, or NULL. */
char *cli_server_key(const char *given);

/* Names in the order of the enums, NULL at the end; there since cli_shared_init. */
extern const char *const *const cli_attention_names; /* by kakeya_attention */
extern const char *const *const cli_mode_names;      /* by kakeya_mode */

/* Prints "kakeya VERB: message" on stderr as one line and returns CLI_FAILED. */
int cli_fail(const char *verb, const kakeya_error *error);

/* Adds text of any content, NUL included (cJSON's own strings end there), under a key. False when out of memory. */
bool cli_json_add_text(struct cJSON *object, const char *key, const char *text, size_t bytes);
/* Prints a value as one line on stdout; NULL stands for a value that memory did not suffice for. */
kakeya_status cli_print_json(const struct cJSON *json, kakeya_error *error);

#endif
