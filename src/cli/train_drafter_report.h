/* What a drafter is worth: tokens per forward, and the drafts that hold, on prompts that it was not trained on, through
 * the decode loop that serves. */
#ifndef KAKEYA_CLI_TRAIN_DRAFTER_REPORT_H
#define KAKEYA_CLI_TRAIN_DRAFTER_REPORT_H

#include "kakeya.h"
#include "train/corpus.h"

enum { DRAFTER_PLACES = 32, DRAFTER_KINDS = 2 };

typedef struct drafter_answer {
    uint32_t tokens, forwards;
} drafter_answer;

typedef struct drafter_score {
    uint64_t answers, tokens, forwards, drafted[DRAFTER_PLACES], accepted[DRAFTER_PLACES];
    drafter_answer *each; /* [answers] */
} drafter_score;

typedef struct drafter_row {
    const char *name; /* "before", "after", ... */
    const char *directory;
    int drafts; /* of a block */
    drafter_score score[DRAFTER_KINDS];
} drafter_row;

/* Prompts by kind, and what the kinds are called. */
typedef struct drafter_prompts {
    const corpus *of[DRAFTER_KINDS]; /* may be empty */
    int tokens[DRAFTER_KINDS];       /* of an answer, at most */
} drafter_prompts;

extern const char *const drafter_kind_names[DRAFTER_KINDS];

/* Answers to all prompts with blocks of the drafter in row->directory. KAKEYA_CANCELLED when interrupted. */
kakeya_status drafter_measure(const kakeya_engine_options *engine, const kakeya_session_options *session,
                              const drafter_prompts *prompts, drafter_row *row, kakeya_progress_fn progress,
                              kakeya_error *error);
void drafter_row_free(drafter_row *row); /* what was measured; one that never was is fine */
void drafter_print(const drafter_row *rows, size_t n);
struct cJSON *drafter_json(const drafter_row *rows, size_t n); /* an array; NULL when out of memory */

#endif
