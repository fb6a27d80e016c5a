/* Recorded texts for the study of draft lengths. The token stream of a session does not depend on how it was drafted,
 * so one recording of a text serves every policy: its tokens, what the drafter proposes behind each of them, and what
 * blocks cost on the machine that recorded it. */
#ifndef KAKEYA_MEASURE_DRAFT_TRACE_H
#define KAKEYA_MEASURE_DRAFT_TRACE_H

#include "backend/backend.h"
#include "base/files.h"

enum { TRACE_COST_SAMPLES = 12 };

/* Seconds of one kind of step as they were measured, in that order. */
typedef struct trace_cost {
    float seconds[TRACE_COST_SAMPLES];
    int n;
} trace_cost;

typedef struct draft_trace {
    char name[64], workload[16], policy[16], backend[64];
    int32_t *tokens; /* [n]: the prompt, then what was generated */
    int n, prompt_tokens;
    int max_drafts; /* 0: no drafter */
    /* [n - prompt_tokens][max_drafts][max_drafts]: behind token prompt_tokens + i, the drafts of a block of k + 1
     * drafts begin at [i][k]. */
    int32_t *drafts;
    trace_cost verify[BACKEND_MAX_DECODE_ROWS + 1]; /* by rows: forward, choice and commit */
    trace_cost draft[BACKEND_MAX_DRAFT + 1];        /* by drafts */
} draft_trace;

typedef struct draft_traces {
    draft_trace *trace;
    int n, capacity;
} draft_traces;

/* Appends an empty trace; NULL when out of memory. */
draft_trace *draft_traces_add(draft_traces *traces);
void draft_traces_free(draft_traces *traces);

/* Memory for `tokens` tokens of which the first `prompt_tokens` are the prompt. */
kakeya_status draft_trace_allocate(draft_trace *trace, int tokens, int prompt_tokens, int max_drafts,
                                   kakeya_error *error);
/* Drafts of a block of k drafts (1 .. max_drafts) whose bonus token is the last of the first n tokens. */
int32_t *draft_trace_drafts(const draft_trace *trace, int n, int k);

/* As a JSON file, and back. Reading checks every number that indexes something. */
kakeya_status draft_traces_write(const draft_traces *traces, file_writer *writer, kakeya_error *error);
kakeya_status draft_traces_load(const char *path, draft_traces *out, kakeya_error *error);

#endif
