/* How far one distribution over the vocabulary is from another. */
#ifndef KAKEYA_SESSION_DIVERGENCE_H
#define KAKEYA_SESSION_DIVERGENCE_H

#include <stdbool.h>

/* KL(reference || other) of two rows of logits [vocab], natural logarithm. *top: the lowest id of the other's largest
 * logit; *agree: it is the reference's too. */
double logits_divergence(const float *reference, const float *other, int vocab, int *top, bool *agree);

#endif
