/* `kakeya train f-theta --distill`: what is chosen, and the steps with their progress and their saved state. */
#ifndef KAKEYA_CLI_TRAIN_DISTILL_H
#define KAKEYA_CLI_TRAIN_DISTILL_H

#include "cli/options.h"
#include "train/distiller.h"

struct cJSON;

typedef struct train_distill {
    bool on;
    const char *init_from;                     /* an f_theta to begin with; NULL: the closed form */
    int loss, schedule;                        /* indices of choices */
    int steps, batch, segments, rows, warm_up; /* 0: the recipe's */
    float rate, weight_decay, needles;         /* the first and the last below 0: the recipe's */
    float later_turns;
    float all_layers; /* below 0: the recipe's */
    float lambda[4];
} train_distill;

enum { TRAIN_DISTILL_OPTIONS = 18 };

/* Sets the defaults and fills `table` with entries that point into *d; returns how many. */
size_t train_distill_init(train_distill *d, cli_option table[TRAIN_DISTILL_OPTIONS]);
/* What speaks against the choice, for a usage error; NULL: nothing. */
const char *train_distill_refuse(const train_distill *d);

typedef struct train_distill_job {
    const train_distill *chosen;
    kakeya_engine *engine;
    distiller_options options;
    corpus data;
    const char *state_path;
    uint64_t purpose;
} train_distill_job;

/* Options of a job whose `chosen`, `engine`, and configuration are set, and their part of its purpose. */
kakeya_status train_distill_settle(train_distill_job *job, int sequence, int sink, int window, int threads,
                                   uint64_t seed, kakeya_error *error);
/* Needle prompts with their answers, so many that they are the chosen share of the corpus. */
kakeya_status train_distill_needles(train_distill_job *job, kakeya_error *error);
/* *weights, the beginning, becomes the result. A state that is there is gone on from. KAKEYA_CANCELLED leaves one. */
kakeya_status train_distill_run(train_distill_job *job, closed_form_weights *weights, struct cJSON *told,
                                kakeya_error *error);

#endif
