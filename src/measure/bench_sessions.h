/* What `kakeya bench --sessions` measures: many sessions that decode together, one row each in a step, alone and with a
 * prompt beside them. Nothing is printed here. */
#ifndef KAKEYA_MEASURE_BENCH_SESSIONS_H
#define KAKEYA_MEASURE_BENCH_SESSIONS_H

#include "measure/bench.h"

typedef enum bench_together {
    BENCH_TOGETHER_DECODE = 0, /* every session has one row in a step */
    BENCH_TOGETHER_PROMPT,     /* the same, with a share of a new session's prompt beside them until it is computed */
    BENCH_TOGETHER_ALONE,      /* the prompt alone, in the backend's own chunks */
} bench_together;

enum {
    BENCH_MAX_SESSIONS = 1024,
    BENCH_WARM_STEPS = 4,         /* untimed steps of every session behind its context */
    BENCH_LEAST_PROMPT_ROWS = 32, /* of a prompt in a step beside decodes, where the backend takes as many */
};

/* One measured case. Bounds and shares are those of bench_row, of a mean step. */
typedef struct bench_together_row {
    bench_together what;
    int context, sessions; /* BENCH_TOGETHER_ALONE: sessions is 0 */
    int prompt_rows;       /* of a step, at most; 0: no prompt */
    int steps, forwards;   /* of one measurement */
    double bytes, operations;
    bool bound_by_bytes;
    bench_spread seconds, bound_seconds, share;
    double longest_seconds;          /* the longest step of all repetitions */
    double tokens_per_second;        /* decoded by all sessions; 0: none are */
    double prompt_tokens_per_second; /* 0: no prompt */
    /* Tokens decoded per second against one session behind the same context, and prompt tokens per second against the
     * prompt alone: medians over repetitions. 0: the run has not measured it. */
    double against_one, prompt_share;
} bench_together_row;

typedef struct bench_sessions_options {
    const int *contexts;
    size_t n_contexts;
    const int *sessions; /* 1 to BENCH_MAX_SESSIONS each */
    size_t n_sessions;
    int prompt_tokens, decode_tokens, repeats;
    int stall_ms;     /* of prompt work that a step may take on beside decodes; 0: the engine's max_stall_ms */
    bool none_beside; /* no BENCH_TOGETHER_PROMPT */
    kakeya_session_options session;
    kakeya_progress_fn progress;
} bench_sessions_options;

typedef struct bench_sessions_result {
    bench_together_row *row; /* freed by bench_sessions_result_free */
    size_t n;
    bench_spread read_bytes_per_second, flops_per_second;
    int threads;
    int prompt_chunk; /* of the prompt alone */
    int stall_ms;     /* resolved */
} bench_sessions_result;

/* Each session holds a text of its own and decodes tokens of its own, as those of different people do, so that neither
 * its memory nor its experts are another one's. A step is one forward (several, where there are more sessions than
 * one takes) and a commit of every row; after each BACKEND_MAX_DRAFT steps the sessions go back to their context
 * outside of the timed windows. KAKEYA_OUT_OF_MEMORY, with both figures, before anything is filled where the sessions
 * cannot fit. */
kakeya_status bench_sessions_measure(kakeya_engine *engine, const bench_sessions_options *options,
                                     bench_sessions_result *out, kakeya_error *error);
void bench_sessions_result_free(bench_sessions_result *result);

/* How a step is cut into forwards: sessions [i * most, ...) in the i-th, `most` at a time. The prompt's rows stand in
 * the last one where it has room for them, otherwise in one of their own. */
typedef struct bench_step_shape {
    int most;        /* sessions in one forward */
    int last;        /* sessions in the last forward with sessions; 0: there are none */
    int forwards;    /* without prompt */
    int prompt_room; /* rows of a prompt that fit beside the last sessions; 0: it needs a forward of its own */
} bench_step_shape;
/* max_rows: of one forward. */
bench_step_shape bench_shape_of(int sessions, int max_rows);

/* Rows of a prompt in a step beside decodes: what its speed alone gives in the time, within [BENCH_LEAST_PROMPT_ROWS,
 * most]. */
int bench_prompt_rows(double tokens_per_second, int stall_ms, int most);

/* Bytes of K/V memory that the measurement holds at once, at most. */
size_t bench_sessions_bytes(const kakeya_engine *engine, const backend_cache_options *options, size_t granule,
                            int sessions, int context, int prompt_tokens);

#endif
