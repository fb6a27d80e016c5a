/* The gate, asked as a program of its own: a report from elsewhere is read by a process that may fail. */
#ifndef KAKEYA_REMOTE_GATE_CHECK_H
#define KAKEYA_REMOTE_GATE_CHECK_H

#include "remote/documents.h"

/* Runs `program gate --json report.json` in the folder, and sets r->verdict and r->code. A gate that does not answer is
 * a refusal with the code NO_VERDICT. */
kakeya_status gate_check_report(const char *program, const char *folder, result *r, kakeya_error *error);

/* The path of this program; malloc'ed. */
char *gate_own_program(kakeya_error *error);

#endif
