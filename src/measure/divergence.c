#include "measure/divergence.h"

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

double eval_divergence(const float *native, const float *other, int vocab, int *top, bool *agree) {
    int native_top = 0, other_top = 0;
    double native_log = log_sum(native, vocab, &native_top), other_log = log_sum(other, vocab, &other_top), kl = 0;
    for (int i = 0; i < vocab; i++) {
        double p = (double)native[i] - native_log;
        if (isfinite(p)) kl += exp(p) * (p - ((double)other[i] - other_log));
    }
    *agree = native_top == other_top;
    *top = other_top;
    return kl;
}
