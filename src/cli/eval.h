/* Evaluations for other verbs than `kakeya eval`. */
#ifndef KAKEYA_CLI_EVAL_H
#define KAKEYA_CLI_EVAL_H

#include "cli/eval_command.h"

/* words: the command line, "kakeya eval NAME ..."; argv of getopt, which changes their order. */
void eval_run_again(int argc, char **argv, const eval_again *again);

#endif
