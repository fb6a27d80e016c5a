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

/* All evaluations: on failure *out is the report as far as it came, or NULL if there is none yet; the caller closes it.
 */

typedef struct eval_niah_options {
    const int *lines; /* rungs of the ladder, in haystack lines */
    size_t n_lines;
    int samples;   /* per rung */
    bool facts;    /* text that a base model continues (niah_facts), not a user's question */
    bool pictures; /* the needle is a picture that shows the code (code_picture.h) */
    uint64_t seed;
    int max_tokens;
    eval_policies policies;
    kakeya_mode mode; /* compared with ar, which always runs too */
    int draft_length;
    const int *draft_windows; /* of the arms in `mode` */
    size_t n_draft_windows;
    const double *mix_alpha; /* diagnostics: evicted K/V as alpha * own + (1 - alpha) * f_theta, all layers */
    size_t n_mix_alpha;
} eval_niah_options;
kakeya_status eval_niah(const eval_setup *setup, const eval_niah_options *options, eval_report **out,
                        kakeya_error *error);

typedef struct eval_sequence {
    char name[64];
    int32_t *ids;
    size_t n;
} eval_sequence;

typedef struct eval_sequences {
    eval_sequence *sequence;
    size_t n;
} eval_sequences;

typedef struct eval_fidelity_options {
    const char *const *texts; /* text files, cut into sequences */
    size_t n_texts;
    const char *ids_json; /* {"sequences": [[ids] or {"source", "input_ids"}, ...], "prompt_length": N}; NULL: texts */
    int prompt_length;    /* 0: from ids_json, else 600 */
    int score_tokens;     /* per sequence, of texts */
    int max_sequences;    /* 0: all */
    int turns; /* what is scored is the answer of this turn: the prompt ends with the turns before it, whose answers and
                  next prompts are each as long as what is scored. 0 and 1: no turn before it */
    eval_policies policies;
    const int *windows;
    size_t n_windows;
} eval_fidelity_options;
kakeya_status eval_fidelity(const eval_setup *setup, const eval_fidelity_options *options, eval_report **out,
                            kakeya_error *error);

typedef struct eval_kv_format_options {
    const char *const *texts; /* text files, cut into sequences */
    size_t n_texts;
    int prompt_length, score_tokens; /* of a sequence */
    int sequences;                   /* as many, and a needle prompt with each */
    int lines;                       /* of the needle prompts */
    int max_tokens;                  /* of their answers */
    uint64_t seed;
    const char *const *formats; /* names of kv_codec.h; n = 0: all. identity (as stored: bf16) always comes first */
    size_t n_formats;
    bool as_stored; /* in sessions that keep K/V in these formats; without it where the backend knows no other way */
} eval_kv_format_options;
/* Formats for K/V of full-attention layers: packed and unpacked beside sessions that keep float32, or as stored. */
kakeya_status eval_kv_format(const eval_setup *setup, const eval_kv_format_options *options, eval_report **out,
                             kakeya_error *error);

typedef struct eval_code_options {
    const char *const *files; /* at least one */
    size_t n_files;
    int prompt_tokens; /* taken from the start of each file */
    int max_tokens;
    int repetitions;
    eval_policies policies; /* n = 0: native */
    const int *draft_lengths;
    size_t n_draft_lengths;
} eval_code_options;
kakeya_status eval_code(const eval_setup *setup, const eval_code_options *options, eval_report **out,
                        kakeya_error *error);

typedef struct eval_acceptance_options {
    const char *jsonl; /* prompts, perhaps with categories (measure/jsonl.h); plain or gzip */
    int prompts;       /* 0: all */
    int max_tokens;
    int draft_length; /* 0: the drafter's block */
    bool chat;        /* prompts as user messages instead of texts to continue */
} eval_acceptance_options;
kakeya_status eval_acceptance(const eval_setup *setup, const eval_acceptance_options *options, eval_report **out,
                              kakeya_error *error);

/* Pictures for prompts; n = 0: none. */
typedef struct eval_pictures {
    const kakeya_media *media;
    size_t n;
} eval_pictures;

typedef struct eval_lossless_options {
    int prompts;
    int max_tokens;
    uint64_t seed;
    const char *const *files; /* sources of code prompts, at least one */
    size_t n_files;
    int reference_prompts;  /* of the prompts, how many also run the slow references */
    eval_pictures pictures; /* every prompt has one or two of them, at places that are drawn */
} eval_lossless_options;
kakeya_status eval_lossless_run(const eval_setup *setup, const eval_lossless_options *options, eval_report **out,
                                kakeya_error *error);

typedef struct eval_lossless_batch_options {
    int compositions;
    int sessions; /* of the largest composition */
    int max_tokens;
    uint64_t seed;
    const char *const *files; /* sources of code prompts, at least one */
    size_t n_files;
    eval_policies policies; /* n = 0: all that the model has */
    eval_pictures pictures; /* as in eval_lossless_options */
} eval_lossless_batch_options;
/* Sessions alone, one after the other, and then all of a composition together: requests, prompts beside answers, forks,
 * answers that their callbacks end. */
kakeya_status eval_lossless_batch(const eval_setup *setup, const eval_lossless_batch_options *options,
                                  eval_report **out, kakeya_error *error);

#endif
