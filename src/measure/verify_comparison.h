/* The ways in which `kakeya verify` computes a stream. */
#ifndef KAKEYA_MEASURE_VERIFY_COMPARISON_H
#define KAKEYA_MEASURE_VERIFY_COMPARISON_H

#include <stdbool.h>

/* How a stream is computed. All of them begin with the same prompt as their reference, and go on for as many tokens. */
typedef enum verify_comparison {
    VERIFY_REFERENCE = 0, /* a session of its own, the prompt in one piece, one row at a time */
    VERIFY_ROWS,          /* k + 1 rows at a time, of which the first k drafts are what the reference says */
    VERIFY_NGRAM,         /* drafts from the text */
    VERIFY_DRAFTER,       /* drafts from the drafter */
    VERIFY_AUTO,          /* drafts as they come, from both, of any length */
    VERIFY_CHUNKS,        /* the prompt in pieces */
    VERIFY_FORKED,        /* from a copy in the middle of an answer, while the other half goes on otherwise */
    VERIFY_TRUNCATED,     /* the end of the answer is cut off and computed again */
    VERIFY_PARKED,        /* in the middle of an answer, the session gives its memory up and takes it up again */
    VERIFY_BATCH,         /* among other sessions, one row at a time */
    VERIFY_MIXED,         /* among other sessions, with drafts */
    VERIFY_THREADS,       /* in another process, with another number of threads */
    VERIFY_SAVED,         /* in the middle of an answer, the session goes into a file, and another process goes on */
    VERIFY_COMPARISONS
} verify_comparison;

/* "reference", "rows", ...: in reports. */
const char *verify_comparison_name(verify_comparison comparison);
bool verify_comparison_find(const char *name, verify_comparison *out);
/* One line for people: "k + 1 rows at a time, ...". */
const char *verify_comparison_text(verify_comparison comparison);
/* Whether another process computes it, after all others. */
bool verify_is_elsewhere(verify_comparison comparison);

#endif
