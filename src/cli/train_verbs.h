/* What `kakeya train` can train, beside an f_theta (train.c), and options of all that takes steps. */
#ifndef KAKEYA_CLI_TRAIN_VERBS_H
#define KAKEYA_CLI_TRAIN_VERBS_H

#include "cli/options.h"

/* `kakeya train drafter ...`; argv[0] is "drafter". */
int cli_train_drafter(int argc, char **argv);

/* Rows of a table; `o` has a member for each, and the other texts say what the recipe has. */
#define TRAIN_STEP_OPTIONS(o, steps_text, batch_text, rate_text)                                                       \
    CLI_INT("steps", "N", &(o).steps, 1, 1 << 24, "number of optimiser steps (" steps_text ")"),                       \
        CLI_INT("batch", "N", &(o).batch, 1, 1 << 12, "sequences per step (" batch_text ")"),                          \
        CLI_FLOAT("rate", "X", &(o).rate, 0, 1, "peak learning rate (" rate_text ")"),                                 \
        CLI_INT("warm-up", "N", &(o).warm_up, 0, 1 << 24, "steps until the peak learning rate (40, or 2/5 of all)"),   \
        CLI_CHOICE("schedule", "NAME", &(o).schedule, train_schedules,                                                 \
                   "learning rate schedule: cosine or constant (cosine)"),                                             \
        CLI_FLOAT("weight-decay", "X", &(o).weight_decay, 0, 1, "weight decay of the trained weights (0)"),            \
        CLI_FLOAT("needles", "X", &(o).needles, 0, 0.9,                                                                \
                  "share of prompts that ask for a code in a long text (0.2; 0 without a tokenizer)")

enum { TRAIN_COSINE, TRAIN_CONSTANT };
extern const char *const train_schedules[];

#endif
