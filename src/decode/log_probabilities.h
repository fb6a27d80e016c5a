/* Log-probabilities of generated tokens: of the model's own softmax at temperature 1, before penalties, biases, masks
 * and filters, so that they do not depend on how a token was chosen.
 *
 * The sum of the softmax is made of the integer weights of base/exp_weight.h. It has no order, and a row's leading
 * logits with the sum of all weights give the same bits as the whole row. Error: at most 4e-6, of which a weight's
 * relative error is 2e-6 and what rounding down takes from 2^20 weights is 1e-6. */
#ifndef KAKEYA_DECODE_LOG_PROBABILITIES_H
#define KAKEYA_DECODE_LOG_PROBABILITIES_H

#include "backend/backend.h"

/* Of one token. */
typedef struct token_log_probabilities {
    double chosen; /* NaN: not asked for */
    int n_top;
    kakeya_log_probability top[KAKEYA_MAX_TOP_LOG_PROBABILITIES]; /* largest first, then lowest id */
} token_log_probabilities;

/* From a row of logits without NaN, of which one at least is finite; n_top: how many leaders are wanted. */
void log_probabilities_of_row(const float *logits, int vocab, int32_t token, int n_top, token_log_probabilities *out);

/* From the leading logits of a model without suppressed or excluded tokens. False where they do not suffice: `token` or
 * some of the n_top largest are not listed. */
bool log_probabilities_of_leaders(const backend_leaders *leaders, int vocab, int32_t token, int n_top,
                                  token_log_probabilities *out);

#endif
