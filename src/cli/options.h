/* Command-line options as tables: one entry names an option, says what it takes, where the value goes and what is
 * allowed. Parsing (getopt_long), checks, error lines and help texts all come from the same entries. */
#ifndef KAKEYA_CLI_OPTIONS_H
#define KAKEYA_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2 }; /* exit statuses */

typedef enum cli_kind {
    CLI_FLAG,   /* bool: takes no value, sets true */
    CLI_INT,    /* int in [min, max] */
    CLI_UINT64, /* uint64_t */
    CLI_FLOAT,  /* float in [min, max] */
    CLI_BYTES,  /* size_t: a number with an optional K, M, G or T (powers of 1,024) */
    CLI_TEXT,   /* const char *: points into argv */
    CLI_CHOICE, /* int: the index of the value in `choices` */
    CLI_TEXTS,  /* cli_texts: every use adds one */
    CLI_INTS,   /* cli_ints: comma-separated, each in [min, max] */
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
    double min, max;            /* CLI_INT, CLI_FLOAT, CLI_INTS */
    const char *const *choices; /* NULL-terminated: of CLI_CHOICE; of others what shells propose, or NULL */
} cli_option;

/* A row of a table of options. Written like a call, because formatters put members in braces on a line each. */
#define CLI_OPTION(...)                                                                                                \
    { __VA_ARGS__ }

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
 * to go on, with *first_operand set; false when the verb is over: *status is then CLI_DONE (after --help) or CLI_USAGE
 * (a message and the usage line are on stderr). */
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
