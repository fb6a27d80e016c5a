#include "cli/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_OPTIONS = 96,
    HELP_CODE = 1000,
    LIST_CODE,
    WORDS_CODE,
    FIRST_CODE, /* getopt codes of the tables' entries */
    HELP_COLUMN = 30,
    HELP_WIDTH = 100, /* columns of a line */
};

static void print_usage_line(FILE *out, const cli_command *command) {
    fprintf(out, "usage: kakeya %s [OPTION]...%s%s\n", command->name, *command->operands ? " " : "", command->operands);
}

int cli_usage_error(const cli_command *command, const char *format, ...) {
    fprintf(stderr, "kakeya %s: ", command->name);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    print_usage_line(stderr, command);
    return CLI_USAGE;
}

/* Prints text from HELP_COLUMN on, where the cursor is, and breaks it between words. */
static void print_wrapped(const char *text) {
    for (const size_t room = HELP_WIDTH - HELP_COLUMN;;) {
        size_t length = strlen(text);
        if (length > room) {
            for (length = room; length > 0 && text[length] != ' ';) length--;
            if (!length) length = strcspn(text, " "); /* a word that is longer than a line */
        }
        printf("%.*s\n", (int)length, text);
        text += length;
        if (!*text) return;
        text++;
        printf("%*s", HELP_COLUMN, "");
    }
}

static void print_table(const cli_option *table) {
    for (const cli_option *option = table; option->name; option++) {
        char left[64];
        snprintf(left, sizeof left, "  --%s%s%s", option->name, option->argument ? " " : "",
                 option->argument ? option->argument : "");
        if (strlen(left) < HELP_COLUMN) {
            printf("%-*s", HELP_COLUMN, left);
        } else {
            printf("%s\n%*s", left, HELP_COLUMN, "");
        }
        print_wrapped(option->help);
    }
}

static void print_help(const cli_command *command, const cli_option *own, const cli_option *shared) {
    print_usage_line(stdout, command);
    printf("\n%s\n", command->summary);
    if (command->details) printf("\n%s", command->details);
    printf("\nOptions:\n");
    print_table(own);
    printf("%-*s%s\n", HELP_COLUMN, "  --help", "print this help");
    if (shared) {
        printf("\nShared options:\n");
        print_table(shared);
    }
    printf("\nExample:\n%s", command->examples);
}

/* For completion by shells: a line for each option, its name, what it takes and its help between tabs. */
static void list_table(const cli_option *table) {
    for (const cli_option *option = table; option && option->name; option++) {
        printf("--%s\t", option->name);
        for (size_t i = 0; option->choices && option->choices[i]; i++) printf("%s%s", i ? " " : "", option->choices[i]);
        printf("%s\t%s\n", option->choices || !option->argument ? "" : option->argument, option->help);
    }
}

void cli_list_words(const cli_word *words) {
    for (; words && words->name; words++) printf("%s\t%s\n", words->name, words->summary);
}

static bool parse_number(const char *text, double *out) {
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end || errno == ERANGE || !isfinite(value)) return false;
    *out = value;
    return true;
}

/* Digits only (and a minus): "1e3", "0x10", " 7" and "" are not integers. */
static bool parse_integer(const char *text, long long *out) {
    const char *digits = *text == '-' ? text + 1 : text;
    if (!*digits || strspn(digits, "0123456789") != strlen(digits)) return false;
    errno = 0;
    *out = strtoll(text, NULL, 10);
    return errno == 0;
}

bool cli_parse_bytes(const char *text, size_t *out) {
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 15) return false;
    unsigned long long value = strtoull(text, NULL, 10);
    static const char units[] = "KMGT";
    int shift = 0;
    if (text[digits]) {
        const char *unit = strchr(units, text[digits]);
        if (!unit || text[digits + 1]) return false;
        shift = 10 * (int)(unit - units + 1);
    }
    if (value > (SIZE_MAX >> shift)) return false;
    *out = (size_t)value << shift;
    return true;
}

static int wrong_value(const cli_command *command, const cli_option *option, const char *value, const char *expected) {
    return cli_usage_error(command, "--%s: '%s' is not %s", option->name, value, expected);
}

/* An empty text is a system prompt like any other; no file, name or address is. */
static bool takes_empty_text(const cli_option *option) { return strcmp(option->argument, "TEXT") == 0; }

static int empty_value(const cli_command *command, const cli_option *option) {
    return cli_usage_error(command, "--%s: the %s is empty", option->name, option->argument);
}

static int set_integer(const cli_command *command, const cli_option *option, const char *text, int *out) {
    char expected[96];
    long long value;
    if (!parse_integer(text, &value) || (double)value < option->min || (double)value > option->max) {
        snprintf(expected, sizeof expected, "an integer from %.0f to %.0f", option->min, option->max);
        return wrong_value(command, option, text, expected);
    }
    *out = (int)value;
    return CLI_DONE;
}

static int set_integers(const cli_command *command, const cli_option *option, const char *text) {
    cli_ints *list = option->target;
    list->n = 0;
    for (const char *at = text;;) {
        size_t length = strcspn(at, ",");
        char item[24];
        if (list->n == CLI_MAX_VALUES)
            return cli_usage_error(command, "--%s: more than %d values", option->name, CLI_MAX_VALUES);
        if (length >= sizeof item) return wrong_value(command, option, text, "a list of integers");
        memcpy(item, at, length);
        item[length] = '\0';
        int status = set_integer(command, option, item, &list->value[list->n]);
        if (status) return status;
        list->n++;
        if (!at[length]) return CLI_DONE;
        at += length + 1;
    }
}

static int set_choice(const cli_command *command, const cli_option *option, const char *text) {
    char expected[256];
    size_t used = (size_t)snprintf(expected, sizeof expected, "one of:");
    for (int i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], text) == 0) {
            *(int *)option->target = i;
            return CLI_DONE;
        }
        if (used < sizeof expected) {
            used += (size_t)snprintf(expected + used, sizeof expected - used, " %s", option->choices[i]);
        }
    }
    return wrong_value(command, option, text, expected);
}

static int set_value(const cli_command *command, const cli_option *option, const char *text) {
    char expected[96];
    switch (option->kind) {
    case CLI_KIND_FLAG:
        *(bool *)option->target = true;
        return CLI_DONE;
    case CLI_KIND_INT:
        return set_integer(command, option, text, option->target);
    case CLI_KIND_INTS:
        return set_integers(command, option, text);
    case CLI_KIND_UINT64: {
        errno = 0;
        if (!*text || strspn(text, "0123456789") != strlen(text)) {
            return wrong_value(command, option, text, "a non-negative integer");
        }
        unsigned long long value = strtoull(text, NULL, 10);
        if (errno) return wrong_value(command, option, text, "an integer below 2^64");
        *(uint64_t *)option->target = value;
        return CLI_DONE;
    }
    case CLI_KIND_FLOAT: {
        double value;
        if (!parse_number(text, &value) || value < option->min || value > option->max) {
            snprintf(expected, sizeof expected, "a number from %g to %g", option->min, option->max);
            return wrong_value(command, option, text, expected);
        }
        *(float *)option->target = (float)value;
        return CLI_DONE;
    }
    case CLI_KIND_BYTES:
        if (!cli_parse_bytes(text, option->target)) {
            return wrong_value(command, option, text, "a number of bytes (K, M, G and T may follow)");
        }
        return CLI_DONE;
    case CLI_KIND_TEXT:
        if (!*text && !takes_empty_text(option)) return empty_value(command, option);
        *(const char **)option->target = text;
        return CLI_DONE;
    case CLI_KIND_CHOICE:
        return set_choice(command, option, text);
    case CLI_KIND_TEXTS: {
        cli_texts *list = option->target;
        if (!*text && !takes_empty_text(option)) return empty_value(command, option);
        if (list->n == CLI_MAX_VALUES) {
            return cli_usage_error(command, "--%s: given more than %d times", option->name, CLI_MAX_VALUES);
        }
        list->text[list->n++] = text;
        return CLI_DONE;
    }
    }
    return CLI_DONE;
}

static size_t add_table(const cli_option *table, struct option *long_options, const cli_option **entries, size_t n) {
    for (; table && table->name && n < MAX_OPTIONS; table++, n++) {
        long_options[n] = (struct option){.name = table->name,
                                          .has_arg = table->kind == CLI_KIND_FLAG ? no_argument : required_argument,
                                          .val = FIRST_CODE + (int)n};
        entries[n] = table;
    }
    return n;
}

/* A first operand that is a GGUF file is the model, where the verb takes one and no option has given it. */
static bool is_model_file(const cli_option *shared, const char *operand, const char ***target) {
    size_t length = strlen(operand);
    if (length < 5 || strcmp(operand + length - 5, ".gguf") != 0 || access(operand, F_OK) != 0) return false;
    for (; shared && shared->name; shared++) {
        if (strcmp(shared->name, "model") != 0) continue;
        *target = shared->target;
        return !**target;
    }
    return false;
}

static bool beginnings_taken;

void cli_take_beginnings(bool take) { beginnings_taken = take; }

/* getopt_long takes any beginning that no other option has, so that a verb without --mode would read it as --model. */
static bool is_whole_name(const cli_command *command, const struct option *options, const char *word, int *status) {
    if (beginnings_taken || strncmp(word, "--", 2) != 0) return true;
    size_t length = strcspn(word + 2, "=");
    const char *meant = NULL;
    int n = 0;
    for (; options->name; options++) {
        if (strncmp(options->name, word + 2, length) != 0) continue;
        if (!options->name[length]) return true;
        meant = options->name;
        n++;
    }
    if (n == 1)
        *status = cli_usage_error(command, "unknown option '%.*s'; did you mean '--%s'?", (int)length + 2, word, meant);
    else
        *status = cli_usage_error(command, "unknown option '%s'", word);
    return false;
}

bool cli_parse(const cli_command *command, const cli_option *own, const cli_option *shared, int argc, char **argv,
               int *first_operand, int *status) {
    struct option long_options[MAX_OPTIONS + 4];
    const cli_option *entries[MAX_OPTIONS];
    size_t n = add_table(own, long_options, entries, 0);
    n = add_table(shared, long_options, entries, n);
    long_options[n] = (struct option){.name = "help", .has_arg = no_argument, .val = HELP_CODE};
    long_options[n + 1] = (struct option){.name = "list-options", .has_arg = no_argument, .val = LIST_CODE};
    long_options[n + 2] = (struct option){.name = "list-verbs", .has_arg = no_argument, .val = WORDS_CODE};
    long_options[n + 3] = (struct option){0};

    opterr = 0; /* the messages are ours */
    optind = 1;
    for (;;) {
        int code = getopt_long(argc, argv, ":h", long_options, NULL);
        if (code == -1) break;
        const char *word = argv[optarg && optarg == argv[optind - 1] ? optind - 2 : optind - 1];
        bool is_letter = code == 'h' || (code == '?' && optopt && optopt < HELP_CODE);
        if (!is_letter && !is_whole_name(command, long_options, word, status)) return false;
        if (code == HELP_CODE || code == 'h') {
            print_help(command, own, shared);
            *status = CLI_DONE;
            return false;
        }
        if (code == LIST_CODE) {
            list_table(own);
            list_table(shared);
            *status = CLI_DONE;
            return false;
        }
        if (code == WORDS_CODE) {
            cli_list_words(command->words);
            *status = CLI_DONE;
            return false;
        }
        if (code == ':') {
            *status = cli_usage_error(command, "option '%s' needs a value", argv[optind - 1]);
            return false;
        }
        if (code == '?') {
            if (is_letter)
                *status = cli_usage_error(command, "unknown option '-%c'", optopt);
            else
                *status = cli_usage_error(command, "option '%.*s' takes no value", (int)strcspn(word, "="), word);
            return false;
        }
        *status = set_value(command, entries[code - FIRST_CODE], optarg);
        if (*status) return false;
    }
    const char **model;
    if (optind < argc && is_model_file(shared, argv[optind], &model)) *model = argv[optind++];
    if (!*command->operands && optind < argc) {
        *status = cli_usage_error(command, "unexpected '%s': it takes options alone", argv[optind]);
        return false;
    }
    if (first_operand) *first_operand = optind;
    *status = CLI_DONE;
    return true;
}
