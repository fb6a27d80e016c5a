/* What `eval lossless --batch` runs: compositions of sessions, drawn by seed. The evaluation follows this plan, and the
 * gate derives it again from a report's options. */
#ifndef KAKEYA_MEASURE_LOSSLESS_BATCH_PLAN_H
#define KAKEYA_MEASURE_LOSSLESS_BATCH_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOSSLESS_BATCH_SESSIONS = 32 }; /* of a composition, at most */

/* One session of a composition. */
typedef struct lossless_batch_session {
    int kind;   /* of the prompt: lossless_kind_names */
    int policy; /* index of the report's policies */
    const char *mode;
    int draft_length; /* 0: the mode's own choice */
    int prompt_chunk; /* 0: the scheduler's choice */
    int temperature;  /* 0 or 1 */
    int cancel_after; /* its callback ends it once so many tokens were delivered; 0: never */
    bool late;        /* its request comes once the first session has been answered, beside those that go on */
    bool forked;      /* its prompt begins like that of the session before it, and so does its timeline */
    bool log_probabilities;
} lossless_batch_session;

typedef struct lossless_batch_options {
    uint64_t seed;
    int sessions; /* of the largest composition, 2 to LOSSLESS_BATCH_SESSIONS */
    int max_tokens;
    int policies;
    bool drafter;
} lossless_batch_options;

/* Sessions of a composition (0, 1, ...); the first composition is the largest. Returns their number. */
int lossless_batch_composition(const lossless_batch_options *options, int composition,
                               lossless_batch_session out[LOSSLESS_BATCH_SESSIONS]);

/* The name of a session's prompt within the report. */
void lossless_batch_sample(int composition, int session, int kind, char *out, size_t bytes);

#endif
