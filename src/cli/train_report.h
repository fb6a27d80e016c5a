/* What an f_theta is worth on sequences that it has not seen, rank by rank. */
#ifndef KAKEYA_CLI_TRAIN_REPORT_H
#define KAKEYA_CLI_TRAIN_REPORT_H

#include "kakeya.h"

struct cJSON;

#define TRAIN_REPORT_NAME  "report.json"
#define TRAIN_CONFIG_NAME  "f_theta_config.json"
#define TRAIN_WEIGHTS_NAME "f_theta_weights.safetensors"

/* Sums over the scored tokens of one policy. */
typedef struct train_score {
    double tokens, nll, kl, agreements;
} train_score;

typedef struct train_rank {
    char *directory;  /* of the f_theta; malloc'ed, the caller's */
    bool left_out;    /* it was measured, and not kept */
    const char *note; /* behind the rank, where there is one: NULL or a word */
    int rank_k, rank_v;
    size_t latent_bytes; /* of an evicted position, v_norm's scalars included */
    train_score restored, restored_all;
    double recall; /* of needles; negative: not measured */
} train_rank;

typedef struct train_report {
    int argc; /* the command line */
    const char *const *argv;
    train_score native, dropped;
    train_rank *rank;
    size_t n;
} train_report;

/* Mean KL from native of restoring with the f_theta of a directory, full-attention layers exact. */
kakeya_status train_report_kl(const train_report *report, const char *directory, const kakeya_engine_options *engine,
                              const kakeya_session_options *session, const char *ids_json, kakeya_progress_fn progress,
                              double *kl, kakeya_error *error);
/* Fills the scores of all ranks. ids_json: the held-out sequences, as `kakeya eval fidelity` takes them. */
kakeya_status train_report_measure(train_report *report, const kakeya_engine_options *engine,
                                   const kakeya_session_options *session, const char *ids_json, bool needles,
                                   kakeya_progress_fn progress, kakeya_error *error);

double train_perplexity(const train_score *score);
double train_kl(const train_score *score); /* mean, from native */
/* Restoring with it is further from native than dropping is. */
bool train_rank_loses(const train_report *report, const train_rank *rank);
/* The share of the perplexity that dropping costs which is given back. */
double train_gap_closed(const train_report *report, const train_score *score);

/* The first row becomes that of the rank to take: the smallest whose KL is a quarter of what dropping costs or less;
 * else the nearest to native. */
void train_report_choose(train_report *report);
/* What is worth keeping stays where it is, and the first row's f_theta moves to `out`; what is worse than dropping is
 * removed, unless it is wanted. Rows with a note stay. */
kakeya_status train_report_keep(train_report *report, const char *out, bool even_if_worse, kakeya_error *error);
/* report.json in `out`, with the members of the object `more`, and beside each other f_theta one that begins with its
 * own row: engines read it. */
kakeya_status train_report_write(const train_report *report, const struct cJSON *more, const char *out,
                                 kakeya_error *error);
/* Takes an f_theta and its report out of a directory of the trainer's, and removes that where nothing else is in it. */
void train_report_drop(const char *directory);

void train_report_print(const train_report *report);
struct cJSON *train_report_json(const train_report *report); /* NULL when out of memory */

#endif
