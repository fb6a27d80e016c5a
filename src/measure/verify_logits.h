/* The model's logits beside those of a file that was made elsewhere, by another program: whether the weights are those
 * and the arithmetic is right. That streams agree with each other says nothing of it. */
#ifndef KAKEYA_MEASURE_VERIFY_LOGITS_H
#define KAKEYA_MEASURE_VERIFY_LOGITS_H

#include "measure/harness.h"

/* What the gate allows: of the mean divergence, and of the share of rows in which both hold the same token likeliest.
 * Logits in bf16 differ by a part in 256 wherever they are computed. */
extern const double verify_logits_divergence, verify_logits_agreement;
/* By which a divergence may be less than the two likelihoods of its row give. */
extern const double verify_logits_rounding;

/* Whether a report's "logits" hold what is allowed. */
bool verify_logits_hold(const cJSON *logits);

/* Scores the ids of the safetensors file (tensor "ids", I64 or I32 [n]) under native attention against its "logits"
 * (F32 [n, vocab]). *out: the object "logits" of a report, the caller's. KAKEYA_FORMAT, KAKEYA_INVALID_ARGUMENT: no
 * such tensors, or of another vocabulary. */
kakeya_status verify_logits(eval_harness *harness, const char *path, cJSON **out, kakeya_error *error);

#endif
