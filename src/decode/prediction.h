/* Drafts from a text that the caller expects the answer to be like, such as a file before an edit: its continuation
 * where the answer's last tokens stand in it. */
#ifndef KAKEYA_DECODE_PREDICTION_H
#define KAKEYA_DECODE_PREDICTION_H

#include <stddef.h>
#include <stdint.h>

typedef struct prediction {
    const int32_t *tokens; /* [n]; borrowed */
    size_t n;
    size_t start; /* the answer begins at this position of the timeline */
} prediction;

/* Drafts up to `max` tokens that follow the answer tokens[start..n_tokens); returns how many, and in *match the length
 * of the suffix of the answer that the prediction has in front of them, at most NGRAM_MAX_MATCH. An answer without
 * tokens is taken to begin as the prediction does, with the longest match. *place: where the answer is thought to stand
 * in the prediction; where several places match as well as each other this one is preferred, then the next behind it.
 * It becomes the place of the drafts. */
int prediction_draft(const prediction *p, const int32_t *tokens, size_t n_tokens, int max, int32_t *drafts, int *match,
                     size_t *place);

#endif
