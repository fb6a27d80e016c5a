#include "train/corpus.h"

#include <stdlib.h>
#include <string.h>

/* Room for `more` items of `size` bytes behind `n`. */
static bool grow(void **items, size_t *room, size_t n, size_t more, size_t size) {
    if (n + more <= *room) return true;
    size_t wanted = 2 * (n + more);
    void *grown = realloc(*items, wanted * size);
    if (!grown) return false;
    *items = grown;
    *room = wanted;
    return true;
}

kakeya_status corpus_add(corpus *c, const int32_t *tokens, int n, int answer, kakeya_error *error) {
    if (!grow((void **)&c->tokens, &c->room_tokens, c->n_tokens, (size_t)n, sizeof *c->tokens) ||
        !grow((void **)&c->sequence, &c->room, c->n, 1, sizeof *c->sequence))
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: %zu tokens to train on", c->n_tokens + (size_t)n);
    memcpy(c->tokens + c->n_tokens, tokens, (size_t)n * sizeof *tokens);
    c->sequence[c->n++] = (corpus_sequence){.begin = c->n_tokens, .length = n, .answer = answer};
    c->n_tokens += (size_t)n;
    return KAKEYA_OK;
}

void corpus_free(corpus *c) {
    free(c->tokens);
    free(c->sequence);
    *c = (corpus){0};
}
