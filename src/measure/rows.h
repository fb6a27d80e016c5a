/* The raw rows of a report: one per sample and arm. Everything a report claims is derived from them
 * (measure/summary.h), and the gate (measure/gate.h) derives it again. docs/reference/reports.md documents the JSON
 * form. */
#ifndef KAKEYA_MEASURE_ROWS_H
#define KAKEYA_MEASURE_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "base/error.h"
#include "measure/draft_blocks.h"

typedef enum eval_kind {
    EVAL_NIAH = 0,
    EVAL_FIDELITY,
    EVAL_CODE,
    EVAL_ACCEPTANCE,
    EVAL_LOSSLESS,
    EVAL_BATCH,
    EVAL_KV_FORMAT,
    EVAL_VERIFY,
    EVAL_KIND_COUNT
} eval_kind;

/* "kakeya.eval.niah", ...: the "kind" of a report. */
const char *eval_kind_name(eval_kind kind);
bool eval_kind_find(const char *name, eval_kind *out);
/* Whether rows score given tokens, beside a reference arm: fidelity, kv-format. The others generate. */
bool eval_kind_scores(eval_kind kind);

enum { EVAL_DRAFT_POSITIONS = 32 };

/* What was run: rows with equal arms differ in their sample or repetition only. */
typedef struct eval_arm {
    char policy[16]; /* "native", "sink-window", "restored", "restored-all" */
    char
        mode[16]; /* "ar", "speculative", "ngram", "auto"; lossless also "reforward", "unfused"; "score" for fidelity */
    int sink, window, draft_window;
    int draft_length; /* 0: the mode's own choice */
    int threads;
    int prompt_chunk; /* 0: the backend's choice */
    int together;     /* batch: sessions that were computed with it, itself included; 0: alone */
    double temperature;
    bool scaled_embedding; /* drafter block embeddings times sqrt(hidden) */
    double mix_alpha;      /* diagnostics only; negative: none */
    char kv_format[16];    /* kv-format: what K/V of full-attention layers pass (kv_codec.h); verify: what sessions
                              keep; otherwise "" */
    bool as_stored;        /* sessions keep K/V in it; else (kv-format) they keep float32 and nothing is stored */
    char source[16];       /* code, acceptance: who drafts in mode speculative: "assistant", or "" for DFlash */
    char comparison[16];   /* verify: how the stream was computed (verify_plan.h); otherwise "" */
} eval_arm;

/* A generated continuation (every kind but fidelity) or a scored sequence (fidelity). */
typedef struct eval_row {
    char sample[96];      /* unique within the report; measured and warm-up samples never share one */
    char prompt_kind[16]; /* lossless, batch: "needle", "code", "random"; verify: "text", "random"; otherwise "" */
    char category[32];    /* acceptance: of the prompt, where it has one */
    eval_arm arm;
    bool warmup;
    int repetition;
    int lines;            /* niah, kv-format: haystack lines; otherwise 0 */
    uint64_t prompt_hash; /* of the prompt's token ids */
    int64_t prompt_tokens;
    kakeya_kv_bytes kv;
    char finish[16]; /* "stop", "length"; batch also "cancelled" */
    double
        started_seconds; /* since the report was begun: rows stand in the order in which they ran, and do not overlap */
    double prefill_seconds, decode_seconds;
    int64_t verifier_forwards, drafted_tokens, accepted_tokens;
    int64_t drafted_at[EVAL_DRAFT_POSITIONS], accepted_at[EVAL_DRAFT_POSITIONS];
    bool has_blocks; /* how it was drafted is known: mode auto of a session alone, in reports since it is recorded */
    draft_blocks blocks;
    int32_t *
        token_ids; /* generated ids, the stop token included; fidelity: the likeliest id at every scored token; owned */
    size_t n_token_ids;
    char *text;     /* NULL without tokenizer; kv-format: the answer to the needle prompt; owned */
    char *expected; /* niah, kv-format: the answer; otherwise NULL; owned */
    bool correct;
    double relative_mse[2]; /* diagnostics: sliding, full-attention layers */
    double replay_margin; /* of a replayed answer that is another: of the report's first other token, how far its logit
                             is below that of the token here, or if sampled its probability here. Not in the JSON */

    /* batch only */
    bool truncated; /* lossless: its last dropped_tokens tokens were cut off and said again */
    int dropped_tokens;
    bool forked;                   /* its timeline was forked from one that held the beginning of its prompt */
    int cancel_after;              /* tokens after which its callback ends it; 0: none */
    bool has_log_probabilities;    /* asked for */
    uint64_t log_probability_hash; /* of the bits of all of them, in order */

    /* fidelity, kv-format: sums over the scored tokens that follow the first prompt_tokens ids */
    int64_t scored_tokens, agreements;
    double nll, kl, seconds;
    double *token_nll, *token_kl; /* [scored_tokens], in the JSON form; owned */

    /* kv-format only: what was stored while the tokens were scored */
    int64_t stored_vectors, stored_values, stored_bytes;
    /* not as_stored, where kernels pack and unpack; there verifier_forwards and decode_seconds are of the answer */
    double store_seconds, load_seconds;
    int layers;                         /* full-attention layers with K/V of their own */
    double *layer_error, *layer_energy; /* [layers] sums of squares: of differences, of values; owned */
} eval_row;

typedef struct eval_rows {
    eval_row *row;
    size_t n, capacity;
} eval_rows;

void eval_row_init(eval_row *row); /* all zero, no mix_alpha */
void eval_row_free(eval_row *row);
/* Moves *row into the list; on failure the row is freed. */
kakeya_status eval_rows_add(eval_rows *rows, eval_row *row, kakeya_error *error);
void eval_rows_free(eval_rows *rows);

/* The format that the others of kv-format are compared with. */
const char *eval_reference_format(bool as_stored);
/* The arm's drafts come from "dflash", "assistant" or "ngram": its mode, and who is asked. */
void eval_arm_source(eval_arm *arm, const char *source);
bool eval_arm_equal(const eval_arm *a, const eval_arm *b);
/* "restored auto", with draft length, draft window, ... where they are not the common case. */
void eval_arm_label(const eval_arm *arm, char *out, size_t bytes);
/* A continuation counts as right when it contains the expected answer. */
bool eval_answer_correct(const char *text, const char *expected);
/* Tokens per second of the prompt and of decoding; 0 when nothing was measured. */
double eval_row_prefill_speed(const eval_row *row);
double eval_row_decode_speed(const eval_row *row);

/* What sort of figure a field is: bits that anybody computes alike; times; what depends on which blocks were drafted;
 * bytes that a session holds. */
typedef enum eval_figure { EVAL_BITS = 0, EVAL_TIME, EVAL_DRAFTS, EVAL_HELD } eval_figure;

/* The fields of the JSON form, one after the other; NULL at the end of the list. "kv_bytes.full" is a member of an
 * object; *kinds are bits, as often as a key stands there. */
const char *eval_row_key(size_t index, unsigned *kinds, eval_figure *figure);

/* NULL when out of memory. */
cJSON *eval_row_to_json(eval_kind kind, const eval_row *row);
/* KAKEYA_FORMAT names the field that is missing or of the wrong type. *out needs eval_row_free in every case. */
kakeya_status eval_row_from_json(eval_kind kind, const cJSON *json, eval_row *out, kakeya_error *error);

#endif
