/* What a worker can be asked to run: a table compiled into the program. A preset is words of the program's own command
 * line with typed and bounded values between them; no request adds a word of its own. */
#ifndef KAKEYA_REMOTE_PRESETS_H
#define KAKEYA_REMOTE_PRESETS_H

#include "remote/request.h"

typedef enum preset_type {
    PRESET_INTEGER,  /* [min, max] */
    PRESET_INTEGERS, /* comma-separated, each in [min, max], at most `most` of them */
    PRESET_CHOICE,   /* one of `choices` */
    PRESET_CHOICES,  /* comma-separated, each one of `choices`, none twice */
    PRESET_INPUT,    /* the name of a file of the request */
    PRESET_FLAG,     /* "yes" or "no": the option stands there or not */
    PRESET_SHAPE,    /* one of `choices`; stands in place of the model */
} preset_type;

typedef struct preset_param {
    const char *name;     /* NULL ends the list */
    const char *option;   /* "--lines" */
    const char *fallback; /* NULL: the option is left out where the request does not name it */
    preset_type type;
    long min, max;
    size_t most;
    const char *choices; /* with blanks between them */
    bool required;
} preset_param;

typedef struct preset {
    const char *name, *summary;
    const char *words[8]; /* of the command line, behind the program; NULL at the end */
    bool model;           /* --model DIRECTORY follows */
    bool gated;           /* writes a report, which the gate judges; otherwise prints JSON, which is kept */
    int minutes;          /* that it may take */
    const preset_param *params;
} preset;

/* NULL where there is none of this name. */
const preset *preset_find(const char *name);
/* The table, one after the other; NULL behind the last. */
const preset *preset_at(size_t index);

/* KAKEYA_INVALID_ARGUMENT, naming the parameter and its bounds, where a value of the request is not allowed, one is
 * missing or one is not known. */
kakeya_status preset_check(const preset *wanted, const request *request, kakeya_error *error);

enum { PRESET_MAX_WORDS = 64 };

/* A command line; word[n] is NULL. The words live as long as the request and the struct. */
typedef struct preset_command {
    const char *word[PRESET_MAX_WORDS + 1];
    size_t n;
    char model[REMOTE_NAME + 16];
    char input[REQUEST_MAX_INPUTS][24]; /* paths of input files in the folder of the run: "inputs/00" */
} preset_command;

/* The command line for a request that preset_check takes, to be run in a folder where models/NAME leads to the model
 * and inputs/NN is the request's file number NN. The report becomes report.json there. word[0] is "kakeya". */
void preset_make_command(const preset *wanted, const request *request, preset_command *out);

#endif
