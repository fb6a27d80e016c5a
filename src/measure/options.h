/* The options of every evaluation, in one table: how a report records them, how the command line names and explains
 * them, what they may be, and where a run finds them. */
#ifndef KAKEYA_MEASURE_OPTIONS_H
#define KAKEYA_MEASURE_OPTIONS_H

#include "measure/eval.h"

typedef enum eval_option_form {
    EVAL_COUNT,   /* int in [min, max] */
    EVAL_COUNTS,  /* const int *: different ones, at least one */
    EVAL_SHARES,  /* const double *: different ones in [min, max] */
    EVAL_NAME,    /* int: the index of one of `words` */
    EVAL_NAMES,   /* const char *const *: different ones of `words`, at least one */
    EVAL_TEXT,    /* const char *: not empty */
    EVAL_TEXTS,   /* names of samples and the like: at least one */
    EVAL_FLAG,    /* bool */
    EVAL_SEED,    /* uint64_t; in a report text where a number cannot hold it */
    EVAL_PROMISE, /* a list that follows from other options */
} eval_option_form;

typedef struct eval_option {
    const char *key;  /* in a report's "options"; NULL: not recorded there */
    const char *name; /* on the command line, without "--"; NULL: not there */
    unsigned kinds;   /* 1 << eval_kind */
    eval_option_form form;
    double min, max;
    const char *words; /* with blanks between them */
    bool optional;     /* left out of a report where it is not set; a count: where it is 1 or less */
    size_t at, n_at;   /* in eval_options, n_at of lists; EVAL_NOWHERE: runs add it to a report by themselves */
    const char *argument, *fallback, *help; /* of the command line; fallback NULL: nothing */
} eval_option;

#define EVAL_NOWHERE SIZE_MAX

/* One after the other; NULL at the end. Where an option is in a report of another kind, or as another form, it has a
 * row of its own. */
const eval_option *eval_option_at(size_t index);

/* The options of a report as far as they are in *options; NULL when out of memory. */
cJSON *eval_options_json(eval_kind kind, const eval_options *options);
/* Whether what a report says has the option's form. */
bool eval_option_fits(const eval_option *option, const cJSON *item);

/* A seed of a report: an integer, or the text of one that a number cannot hold. NULL when out of memory. */
cJSON *eval_seed_json(uint64_t seed);
bool eval_seed_read(const cJSON *item, uint64_t *out); /* false: it is none */

/* Whether a word is one of a list, separated by blanks. */
bool eval_is_listed(const char *list, const char *word);

#endif
