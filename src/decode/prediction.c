#include "decode/prediction.h"

#include <string.h>

#include "decode/ngram.h"

/* Tokens in front of `place` that are the answer's last ones, at most NGRAM_MAX_MATCH. */
static int common(const prediction *p, size_t place, const int32_t *answer, size_t n) {
    int length = 0;
    while (length < NGRAM_MAX_MATCH && (size_t)length < place && (size_t)length < n &&
           p->tokens[place - 1 - (size_t)length] == answer[n - 1 - (size_t)length])
        length++;
    return length;
}

/* The best place, from *place on and then from the beginning. */
static int find(const prediction *p, const int32_t *answer, size_t n, size_t *place) {
    size_t best = 0, from = *place <= p->n ? *place : 0;
    int match = 0;
    for (size_t i = 0; i <= p->n && match < NGRAM_MAX_MATCH; i++) {
        size_t at = from + i <= p->n ? from + i : from + i - p->n - 1;
        int length = common(p, at, answer, n);
        if (length <= match) continue;
        match = length;
        best = at;
        if ((size_t)match == n) break; /* it cannot be longer */
    }
    *place = best;
    return match;
}

int prediction_draft(const prediction *p, const int32_t *tokens, size_t n_tokens, int max, int32_t *drafts, int *match,
                     size_t *place) {
    *match = 0;
    if (p->n == 0 || max <= 0 || n_tokens < p->start) return 0;
    if (n_tokens == p->start) {
        *place = 0;
        *match = NGRAM_MAX_MATCH;
    } else {
        *match = find(p, tokens + p->start, n_tokens - p->start, place);
        if (*match < NGRAM_MIN_MATCH) return 0;
    }
    size_t left = p->n - *place;
    int found = left < (size_t)max ? (int)left : max;
    memcpy(drafts, p->tokens + *place, (size_t)found * sizeof *drafts);
    if (found == 0) *match = 0;
    return found;
}
