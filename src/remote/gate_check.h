/* The gate, asked as a program of its own: a report from elsewhere is read by a process that may fail. */
#ifndef KAKEYA_REMOTE_GATE_CHECK_H
#define KAKEYA_REMOTE_GATE_CHECK_H

#include "remote/documents.h"

/* Rows of the report that are computed again here. */
typedef struct gate_replay {
    const char *rows;  /* "N" or "all" */
    const char *model; /* here; NULL: the one of the name that the report has */
    const char *files; /* folder of the files that its command names */
    char outcome[160]; /* what came of it, to be printed */
} gate_replay;

/* Runs `program gate --json report.json` in the folder, and sets r->verdict and r->code. A gate that does not answer is
 * a refusal with the code NO_VERDICT. replay: NULL, or what is to be computed again; that takes its time. */
kakeya_status gate_check_report(const char *program, const char *folder, gate_replay *replay, result *r,
                                kakeya_error *error);

/* The path of this program; malloc'ed. */
char *gate_own_program(kakeya_error *error);

#endif
