#include "session/divergence.h"

#include <math.h>

/* log of the sum of exponentials of a row; *top is the lowest id of the largest logit. */
static double log_sum(const float *row, int vocab, int *top) {
    double maximum = -INFINITY, sum = 0;
    for (int i = 0; i < vocab; i++) {
        if ((double)row[i] <= maximum) continue;
        maximum = (double)row[i];
        *top = i;
    }
    for (int i = 0; i < vocab; i++) sum += exp((double)row[i] - maximum);
    return maximum + log(sum);
}

double logits_divergence(const float *reference, const float *other, int vocab, int *top, bool *agree) {
    int reference_top = 0, other_top = 0;
    double reference_log = log_sum(reference, vocab, &reference_top), other_log = log_sum(other, vocab, &other_top),
           kl = 0;
    for (int i = 0; i < vocab; i++) {
        double p = (double)reference[i] - reference_log;
        if (isfinite(p)) kl += exp(p) * (p - ((double)other[i] - other_log));
    }
    *agree = reference_top == other_top;
    *top = other_top;
    return kl;
}
