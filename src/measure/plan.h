/* The runs that the options of a report promise, in their order: the evaluation makes them, and the gate expects them.
 */
#ifndef KAKEYA_MEASURE_PLAN_H
#define KAKEYA_MEASURE_PLAN_H

#include "measure/rows.h"

/* Rows with sample, prompt_kind, category, arm, warmup, repetition, lines and what else is known of a run before it is
 * made; `expected` where the seed says it. options and environment: of a report, of sound form. What promises more than
 * `limit` runs need not be planned whole. *out needs eval_rows_free; on failure (KAKEYA_OUT_OF_MEMORY) it is empty. */
kakeya_status eval_plan(eval_kind kind, const cJSON *options, const cJSON *environment, size_t limit, eval_rows *out,
                        kakeya_error *error);

#endif
