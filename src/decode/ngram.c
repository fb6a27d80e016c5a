#include "decode/ngram.h"

#include <limits.h>

kakeya_status ngram_create(ngram_index *index, int vocab, size_t capacity, mem_account *account, kakeya_error *error) {
    *index = (ngram_index){0};
    index->last = mem_alloc(account, MEM_WORKSPACE, (size_t)vocab * sizeof *index->last);
    index->previous = mem_alloc(account, MEM_WORKSPACE, capacity * sizeof *index->previous);
    if (index->last && index->previous) return KAKEYA_OK;
    ngram_free(index);
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "n-gram index of %d + %zu entries: out of memory", vocab, capacity);
}

void ngram_free(ngram_index *index) {
    mem_free(index->last);
    mem_free(index->previous);
    *index = (ngram_index){0};
}

void ngram_extend(ngram_index *index, const int32_t *tokens, size_t n) {
    for (; index->n < n; index->n++) {
        int32_t token = tokens[index->n];
        index->previous[index->n] = index->last[token];
        index->last[token] = (int32_t)index->n + 1;
    }
}

void ngram_truncate(ngram_index *index, const int32_t *tokens, size_t n) {
    while (index->n > n) {
        index->n--;
        index->last[tokens[index->n]] = index->previous[index->n];
    }
}

/* Tokens that agree backwards from positions a and b, at most NGRAM_MAX_MATCH; b < a. */
static int common_suffix(const int32_t *tokens, size_t a, size_t b) {
    int length = 0;
    while (length < NGRAM_MAX_MATCH && b + 1 > (size_t)length &&
           tokens[a - (size_t)length] == tokens[b - (size_t)length])
        length++;
    return length;
}

int ngram_draft(const ngram_index *index, const int32_t *tokens, int max, int32_t *drafts, int *match) {
    *match = 0;
    size_t n = index->n;
    if (n < 2 || max <= 0) return 0;
    size_t best = 0;
    int32_t place = index->previous[n - 1];
    for (int examined = 0; place && examined < NGRAM_MAX_PLACES && *match < NGRAM_MAX_MATCH; examined++) {
        size_t at = (size_t)place - 1;
        int length = common_suffix(tokens, n - 1, at);
        if (length > *match) { /* among equal lengths the latest place, which is met first, stays */
            *match = length;
            best = at;
        }
        place = index->previous[at];
    }
    if (*match < NGRAM_MIN_MATCH) return 0;
    for (int i = 0; i < max; i++) {
        size_t source = best + 1 + (size_t)i;
        drafts[i] = source < n ? tokens[source] : drafts[source - n];
    }
    return max;
}
