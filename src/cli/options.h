/* Command-line options as tables: one entry names an option, says what it takes, where the value goes and what is
 * allowed. Parsing (getopt_long), checks, error lines and help texts all come from the same entries. */
#ifndef KAKEYA_CLI_OPTIONS_H
#define KAKEYA_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2 }; /* exit statuses */

typedef enum cli_kind {
    CLI_KIND_FLAG,
    CLI_KIND_INT,
    CLI_KIND_UINT64,
    CLI_KIND_FLOAT,
    CLI_KIND_BYTES,
    CLI_KIND_TEXT,
    CLI_KIND_CHOICE,
    CLI_KIND_TEXTS,
    CLI_KIND_INTS,
} cli_kind;

enum { CLI_MAX_VALUES = 64 };

typedef struct cli_texts {
    const char *text[CLI_MAX_VALUES];
    size_t n;
} cli_texts;

typedef struct cli_ints {
    int value[CLI_MAX_VALUES];
    size_t n;
} cli_ints;

typedef struct cli_option {
    const char *name;     /* "max-tokens"; NULL ends the table */
    const char *argument; /* "N", shown in the help; NULL for flags */
    const char *help;     /* one line; --help wraps it */
    cli_kind kind;
    void *target;
    double min, max;
    const char *const *choices; /* NULL-terminated; NULL: any value */
} cli_option;

/* Rows of a table by what the option takes. `argument` stands for the value in the help; `to` is where the value goes,
 * whose type is checked. CLI_INTS: separated by commas, each in [min, max]; CLI_TEXT: points into argv; CLI_TEXTS:
 * every use adds one; CLI_BYTES: a number with an optional K, M, G or T (powers of 1,024); CLI_CHOICE: the index of the
 * value in `choices`; CLI_TEXT_OF: `choices` are what shells propose. Written like calls, because formatters put
 * members in braces on a line each. */
#define CLI_FLAG(name, to, help)                      CLI_ROW(FLAG, bool, name, NULL, to, 0, 0, NULL, help)
#define CLI_INT(name, argument, to, min, max, help)   CLI_ROW(INT, int, name, argument, to, min, max, NULL, help)
#define CLI_INTS(name, argument, to, min, max, help)  CLI_ROW(INTS, cli_ints, name, argument, to, min, max, NULL, help)
#define CLI_FLOAT(name, argument, to, min, max, help) CLI_ROW(FLOAT, float, name, argument, to, min, max, NULL, help)
#define CLI_UINT64(name, argument, to, help)          CLI_ROW(UINT64, uint64_t, name, argument, to, 0, 0, NULL, help)
#define CLI_BYTES(name, argument, to, help)           CLI_ROW(BYTES, size_t, name, argument, to, 0, 0, NULL, help)
#define CLI_TEXT(name, argument, to, help)            CLI_TEXT_OF(name, argument, to, NULL, help)
#define CLI_TEXT_OF(name, argument, to, choices, help)                                                                 \
    CLI_ROW(TEXT, const char *, name, argument, to, 0, 0, choices, help)
#define CLI_TEXTS(name, argument, to, help)           CLI_ROW(TEXTS, cli_texts, name, argument, to, 0, 0, NULL, help)
#define CLI_CHOICE(name, argument, to, choices, help) CLI_ROW(CHOICE, int, name, argument, to, 0, 0, choices, help)
#define CLI_ROW(kind, type, name, argument, to, min, max, choices, help)                                               \
    { name, argument, help, CLI_KIND_##kind, 1 ? (to) : (type *)0, min, max, choices }

/* A word that chooses among commands: a verb, or what some verbs take next. */
typedef struct cli_word {
    const char *name, *summary; /* name NULL ends a list */
} cli_word;

typedef struct cli_command {
    const char *name;      /* "run" */
    const char *summary;   /* one line, shown by `kakeya --help` too */
    const char *operands;  /* "[PROMPT]" or "" */
    const char *examples;  /* whole lines */
    const char *details;   /* whole lines below the summary, or NULL */
    const cli_word *words; /* first operands that choose what the verb does, or NULL */
} cli_command;

/* Parses argv[1..argc) against up to two tables (`shared` may be NULL). Options have their whole names. A first operand
 * that is the name of a GGUF file is taken as the value of the shared option "model", where that has none. --help
 * prints the tables, --list-options and --list-verbs the same for completion by shells (tools/completion). Returns true
 * to go on, with *first_operand set (NULL: the command takes no operands, which are refused); false when the verb is
 * over: *status is then CLI_DONE (after --help) or CLI_USAGE (a message and the usage line are on stderr). */
bool cli_parse(const cli_command *command, const cli_option *own, const cli_option *shared, int argc, char **argv,
               int *first_operand, int *status);

/* A number of bytes, behind which K, M, G or T may stand, as options take it. False: it is none. */
bool cli_parse_bytes(const char *text, size_t *out);

/* What --list-verbs prints, for completion by shells: a line for each word, its name and its summary between a tab. */
void cli_list_words(const cli_word *words);

/* Whether beginnings of names are taken as well, as long as no other option has them: not, unless a command line of an
 * earlier version is run again, whose options could be shortened. Of the whole process. */
void cli_take_beginnings(bool take);

/* A wrong use that parsing alone cannot see: one line and the usage line on stderr; returns CLI_USAGE. */
int cli_usage_error(const cli_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
