/* What an f_theta is worth on sequences that it has not seen, rank by rank. */
#ifndef KAKEYA_CLI_TRAIN_REPORT_H
#define KAKEYA_CLI_TRAIN_REPORT_H

#include "kakeya.h"

/* Sums over the scored tokens of one policy. */
typedef struct train_score {
    double tokens, nll, kl, agreements;
} train_score;

typedef struct train_rank {
    const char *directory; /* of the f_theta */
    const char *note;      /* behind the rank, where there is one: NULL or a word */
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

/* Fills the scores of all ranks. ids_json: the held-out sequences, as `kakeya eval fidelity` takes them. */
kakeya_status train_report_measure(train_report *report, const kakeya_engine_options *engine,
                                   const kakeya_session_options *session, const char *ids_json, bool needles,
                                   kakeya_progress_fn progress, kakeya_error *error);

double train_perplexity(const train_score *score);
/* The share of the perplexity that dropping costs which is given back. */
double train_gap_closed(const train_report *report, const train_score *score);

void train_report_print(const train_report *report);
struct cJSON *train_report_json(const train_report *report); /* NULL when out of memory */

#endif
