/* Shared by the rules of the gate. */
#ifndef KAKEYA_MEASURE_GATE_PRIVATE_H
#define KAKEYA_MEASURE_GATE_PRIVATE_H

#include "measure/kv_geometry.h"
#include "measure/options.h"
#include "measure/rows.h"

enum {
    GATE_MIN_SAMPLES = 5,       /* per rung and arm, or repetitions of a timed file */
    GATE_MIN_SPEED_TOKENS = 32, /* decoded by an arm before its speed means anything */
    GATE_MAX_PER_CODE = 5,      /* messages; a broken run breaks a rule in every row */
};
/* Recall may be this much below the oracle's. */
#define GATE_RECALL_TOLERANCE 0.05
/* Mean divergence up to which a format that sessions offer counts as faithful. */
#define GATE_KV_DIVERGENCE 0.005
/* Speculation counts as not slower than AR from this ratio on: medians of paired runs still move by a few percent. */
#define GATE_SPEED_RATIO 0.95

typedef struct gate_context {
    const cJSON *report, *environment, *options;
    eval_kind kind;
    bool options_sound; /* every option is there and of its form */
    bool has_geometry;
    kv_geometry geometry; /* from the environment, where has_geometry */
    eval_rows rows;
    struct gate_result *result; /* gate.h; filled by gate_violate and gate_note */
    bool out_of_memory;
} gate_context;

/* Adds a violation, at most five of one code. Texts of a report are shown as they are only where they are plain ASCII:
 * a name with a line break or an escape sequence in it could otherwise write lines of its own into a terminal or a log.
 */
void gate_violate(gate_context *context, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Sets the result's note, unless there is one. */
void gate_note(gate_context *context, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whether the report is one of ours that this version can judge; sets the kind. */
bool gate_recognise(gate_context *context);
/* Rows are taken only whole: one bad row, and there are none, so that no rule that needs rows is asked. False when out
 * of memory. */
bool gate_read_rows(gate_context *context, kakeya_error *error);
/* Whether two rows are of one run: what a plan knows of a row beforehand is alike. */
bool gate_same_run(const eval_row *a, const eval_row *b);

/* The form of the whole report: keys, ranges, options, environment, command. Sets options_sound and geometry. */
void gate_check_form(gate_context *context);
/* Its parts, for kinds of reports whose form is their own. Keys: those of two lists, separated by blanks. */
void gate_check_values(gate_context *context);
void gate_check_environment(gate_context *context);
void gate_allow_keys(gate_context *context, const char *where, const cJSON *object, const char *list, const char *more);
/* Options of a sound form; 0 where there is none. */
int gate_option(const gate_context *context, const char *key);

/* A rung: measured rows that are compared with each other, told apart by `lines` (one rung in kinds without lines). */
bool gate_measured(const eval_row *row); /* neither warm-up nor diagnostic */
bool gate_same_rung(const eval_row *a, const eval_row *b);
/* row i is the first measured one of its arm (and rung, if by_rung) */
bool gate_first_of_arm(const gate_context *context, size_t i, bool by_rung);
bool gate_is_native(const eval_row *row);
/* The row that scores are relative to: native attention; in kv-format, where that is everywhere, what is
 * not quantised (rows.h, eval_reference_format). */
bool gate_is_reference(const gate_context *context, const eval_row *row);
bool gate_is_restored(const eval_row *row); /* "restored" or "restored-all" */

/* Rules on what must be there, and on what rows say together (gate_plan.c, gate_rows.c). */
void gate_rule_plan(gate_context *context);
void gate_rule_samples(gate_context *context);
void gate_rule_times(gate_context *context);
void gate_rule_kv_formula(gate_context *context);
void gate_rule_lossless(gate_context *context);
void gate_rule_summary(gate_context *context);

/* Rules on claims (gate_claims.c, gate_verify.c). */
void gate_rule_recall(gate_context *context);
void gate_rule_memory(gate_context *context);
void gate_rule_drafts(gate_context *context);
void gate_rule_coverage(gate_context *context);
void gate_rule_speed(gate_context *context);
void gate_rule_identity(gate_context *context);
void gate_rule_fidelity(gate_context *context);
void gate_rule_kv_formats(gate_context *context);
void gate_rule_verify(gate_context *context);

#endif
