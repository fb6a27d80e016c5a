/* The evaluations behind `kakeya eval`. Each opens the engine, runs its arms side by side on the same prompts, and
 * leaves a report (measure/report.h). Nothing is printed here; progress goes to the caller's callback, which can also
 * stop the run: what was finished until then stays in the report, marked incomplete. */
#ifndef KAKEYA_MEASURE_EVAL_H
#define KAKEYA_MEASURE_EVAL_H

#include "measure/report.h"

/* Some rows of a finished evaluation once more (replay.h). */
typedef struct eval_replay {
    /* Before anything is computed: the environment here. */
    void (*begin)(void *user, const cJSON *environment);
    /* Every prompt of the evaluation, also of rows that are left out. */
    void (*prompt)(void *user, const char *sample, uint64_t hash);
    /* The row of the report that is computed again, of which `planned` has sample, arm, warmup, repetition and lines;
     * NULL: this one is left out. */
    const eval_row *(*row)(void *user, const eval_row *planned);
    void *user;
} eval_replay;

/* What all evaluations share. */
typedef struct eval_setup {
    kakeya_engine_options engine;
    kakeya_session_options session; /* sizes, K/V format and restore_layers; the policy comes from the arms */
    const char *report_path;        /* NULL: no file */
    int argc;                       /* the command line, for the report */
    const char *const *argv;
    /* done/total count rows; called before each and, with unchanged counts, from inside long ones */
    kakeya_progress_fn progress;
    void *user;
    const eval_replay *replay; /* NULL: the whole evaluation */
} eval_setup;

/* Policies are "native", "sink-window", "restored" (sliding layers) and "restored-all". n_policies = 0: native,
 * sink-window and, where the model has an f_theta, restored. */
typedef struct eval_policies {
    const char *const *names;
    size_t n;
} eval_policies;

/* Pictures for prompts; n = 0: none. */
typedef struct eval_pictures {
    const kakeya_media *media;
    size_t n;
} eval_pictures;

typedef struct eval_sequence {
    char name[64];
    int32_t *ids;
    size_t n;
} eval_sequence;

typedef struct eval_sequences {
    eval_sequence *sequence;
    size_t n;
} eval_sequences;

/* What is asked of an evaluation. options.h says which of them an evaluation has, and what they may be. */
typedef struct eval_options {
    eval_policies policies;
    uint64_t seed;
    int max_tokens;
    int draft_length; /* 0: the drafter's block, or the mode's own choice */

    /* texts: cut into sequences (fidelity, kv-format), continued (code), or sources of prompts (lossless) */
    const char *const *files;
    size_t n_files;

    /* niah: needle prompts */
    const int *lines; /* rungs of the ladder, in haystack lines */
    size_t n_lines;
    int samples;              /* per rung */
    bool facts;               /* text that a base model continues (niah_facts), not a user's question */
    bool pictures;            /* the needle is a picture that shows the code (code_picture.h) */
    int mode;                 /* kakeya_mode, compared with ar, which always runs too */
    const int *draft_windows; /* of the arms in `mode` */
    size_t n_draft_windows;
    const double *mix_alpha; /* diagnostics: evicted K/V as alpha * own + (1 - alpha) * f_theta, all layers */
    size_t n_mix_alpha;
    bool identity_restore; /* of a command line: 1 is one of them */

    /* fidelity, kv-format: scores */
    const char *ids_json; /* {"sequences": [[ids] or {"source", "input_ids"}, ...], "prompt_length": N}; NULL: texts */
    int prompt_length;    /* fidelity: 0: from ids_json, else 600 */
    int score_tokens;     /* per sequence, of texts */
    int max_sequences;    /* 0: all */
    int turns; /* what is scored is the answer of this turn: the prompt ends with the turns before it, whose answers and
                  next prompts are each as long as what is scored. 0 and 1: no turn before it */
    const int *windows;
    size_t n_windows;
    int sequences;              /* kv-format: as many, and a needle prompt with each */
    int haystack_lines;         /* of the needle prompts */
    const char *const *formats; /* names of kv_codec.h; n = 0: all. identity (as stored: bf16) always comes first */
    size_t n_formats;
    bool as_stored; /* in sessions that keep K/V in these formats; without it where the backend knows no other way */

    /* code; policies n = 0: native */
    int prompt_tokens; /* taken from the start of each file */
    int repetitions;
    const int *draft_lengths;
    size_t n_draft_lengths;

    /* acceptance */
    const char *jsonl; /* prompts, perhaps with categories (measure/jsonl.h); plain or gzip */
    int prompts;       /* 0: all; lossless: so many */
    bool chat;         /* prompts as user messages instead of texts to continue */

    /* lossless; with `batch` policies n = 0: all that the model has */
    bool batch;            /* of a command line: eval_lossless_batch */
    int reference_prompts; /* of the prompts, how many also run the slow references */
    int compositions;
    int sessions;         /* of the largest composition */
    eval_pictures images; /* every prompt has one or two of them, at places that are drawn */
} eval_options;

/* On failure *out is the report as far as it came, or NULL if there is none yet; the caller closes it. */
typedef kakeya_status eval_function(const eval_setup *setup, const eval_options *options, eval_report **out,
                                    kakeya_error *error);
eval_function eval_niah, eval_fidelity, eval_code, eval_acceptance;
eval_function eval_kv_format;      /* packed and unpacked beside sessions that keep float32, or as stored */
eval_function eval_lossless_run;   /* every mode against plain decoding */
eval_function eval_lossless_batch; /* sessions alone, one after the other, and then all of a composition together:
                                      requests, prompts beside answers, forks, answers that their callbacks end */

#endif
