/* Shared by the rules of the gate. */
#ifndef KAKEYA_MEASURE_GATE_PRIVATE_H
#define KAKEYA_MEASURE_GATE_PRIVATE_H

#include "measure/gate.h"

enum {
    GATE_MIN_SAMPLES = 5,       /* per rung and arm */
    GATE_MIN_REPETITIONS = 5,   /* of a timed file */
    GATE_MIN_SPEED_TOKENS = 32, /* decoded by an arm before its speed means anything */
};
/* Recall may be this much below the oracle's. */
#define GATE_RECALL_TOLERANCE 0.05
/* Speculation counts as not slower than AR from this ratio on: medians of paired runs still move by a few percent. */
#define GATE_SPEED_RATIO 0.95

typedef struct gate_context {
    const cJSON *report, *environment, *options;
    eval_kind kind;
    eval_rows rows;
    gate_result *result;
    bool out_of_memory;
} gate_context;

void gate_violate(gate_context *context, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A rung: measured rows that are compared with each other, told apart by `lines` (one rung in kinds without lines). */
bool gate_measured(const eval_row *row); /* neither warm-up nor diagnostic */
bool gate_same_rung(const eval_row *a, const eval_row *b);
/* row i is the first measured one of its arm (and rung, if by_rung) */
bool gate_first_of_arm(const gate_context *context, size_t i, bool by_rung);
bool gate_is_native(const eval_row *row);
bool gate_is_restored(const eval_row *row); /* "restored" or "restored-all" */

/* Rules on rows of any kind. */
void gate_rule_timing(gate_context *context);
void gate_rule_kv_sum(gate_context *context);
void gate_rule_counts(gate_context *context);
void gate_rule_turn_end(gate_context *context);
void gate_rule_duplicates(gate_context *context);
void gate_rule_warmup(gate_context *context);
void gate_rule_samples(gate_context *context);
void gate_rule_summary(gate_context *context);
void gate_rule_lossless(gate_context *context);

/* Rules on policies and claims. */
void gate_rule_recall(gate_context *context);
void gate_rule_memory(gate_context *context);
void gate_rule_self_comparison(gate_context *context);
void gate_rule_speed(gate_context *context);
void gate_rule_identity(gate_context *context);
void gate_rule_fidelity(gate_context *context);
void gate_rule_forms(gate_context *context);
void gate_rule_coverage(gate_context *context);

#endif
