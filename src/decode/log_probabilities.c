#include "decode/log_probabilities.h"

#include <math.h>

#include "base/exp_weight.h"

/* log of the softmax's sum, relative to the largest logit. */
static double log_total(uint64_t total) { return log((double)total) - EXP_WEIGHT_BITS * log(2.0); }

static double log_probability(float logit, float maximum, double log_sum) {
    return (double)logit - (double)maximum - log_sum;
}

static uint64_t sum_of_weights(const float *logits, int vocab, float maximum) {
    enum { LANES = 16 };
    uint64_t total = 0;
    for (int base = 0; base < vocab; base += LANES) {
        float unrounded[LANES] = {0};
        int count = vocab - base < LANES ? vocab - base : LANES;
        if (count == LANES)
            for (int j = 0; j < LANES; j++) unrounded[j] = exp_weight_unrounded(logits[base + j], maximum, 1);
        else
            for (int j = 0; j < count; j++) unrounded[j] = exp_weight_unrounded(logits[base + j], maximum, 1);
        for (int j = 0; j < LANES; j++) total += (uint64_t)(int64_t)unrounded[j];
    }
    return total;
}

/* The n largest logits in order: an insertion into a short list. */
static int find_top(const float *logits, int vocab, int n, int32_t *top) {
    int found = 0;
    for (int32_t token = 0; token < vocab && n > 0; token++) {
        if (found == n && !(logits[token] > logits[top[n - 1]])) continue;
        int at = found < n ? found++ : n - 1;
        for (; at > 0 && logits[token] > logits[top[at - 1]]; at--) top[at] = top[at - 1];
        top[at] = token;
    }
    return found;
}

void log_probabilities_of_row(const float *logits, int vocab, int32_t token, int n_top, token_log_probabilities *out) {
    float maximum = -INFINITY;
    for (int i = 0; i < vocab; i++) maximum = logits[i] > maximum ? logits[i] : maximum;
    double log_sum = log_total(sum_of_weights(logits, vocab, maximum));
    out->chosen = log_probability(logits[token], maximum, log_sum);
    int32_t top[KAKEYA_MAX_TOP_LOG_PROBABILITIES];
    out->n_top = find_top(logits, vocab, n_top, top);
    for (int i = 0; i < out->n_top; i++)
        out->top[i] = (kakeya_log_probability){.token = top[i],
                                               .log_probability = log_probability(logits[top[i]], maximum, log_sum)};
}

bool log_probabilities_of_leaders(const backend_leaders *leaders, int vocab, int32_t token, int n_top,
                                  token_log_probabilities *out) {
    if (n_top > vocab) n_top = vocab;
    if (leaders->n < 1 || leaders->n < n_top) return false;
    int at = 0;
    while (at < leaders->n && leaders->token[at] != token) at++;
    if (at == leaders->n) return false;
    double log_sum = log_total(leaders->plain_total);
    out->chosen = log_probability(leaders->logit[at], leaders->logit[0], log_sum);
    out->n_top = n_top;
    for (int i = 0; i < n_top; i++)
        out->top[i] =
            (kakeya_log_probability){.token = leaders->token[i],
                                     .log_probability = log_probability(leaders->logit[i], leaders->logit[0], log_sum)};
    return true;
}
