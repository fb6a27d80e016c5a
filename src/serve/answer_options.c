/* What an answer is asked for: defaults, and what is owned. */
#include <stdlib.h>

#include "serve/answer.h"

void answer_options_init(answer_options *o) {
    *o = (answer_options){.choices = 1, .thinking_budget = -1, .max_calls = SIZE_MAX};
    o->sampling = (kakeya_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
}

void answer_options_free(answer_options *o) {
    kakeya_free(o->ids);
    free(o->bias);
    free(o->begun);
    free(o->media);
    free(o->keys);
    grammar_cache_give(o->grammar);
    o->grammar = NULL;
    kakeya_free(o->prediction);
    o->prediction = NULL;
    o->ids = NULL;
    o->bias = NULL;
    o->begun = NULL;
    o->media = NULL;
    o->keys = NULL;
}

const int32_t *answer_keys(const answer_options *o) { return o->keys ? o->keys : o->ids; }

size_t answer_media_tokens(const answer_options *o, int32_t token) {
    size_t rows = 0;
    for (size_t i = 0; o->keys && i < o->n_ids; i++) rows += o->keys[i] < 0 && o->ids[i] == token;
    return rows;
}

size_t answer_media_before(const answer_options *o, size_t n) {
    size_t media = 0;
    for (size_t i = 0; o->keys && i < n; i++) media += o->keys[i] < 0 && (i == 0 || o->keys[i - 1] >= 0);
    return media;
}

size_t answer_outside_media(const answer_options *o, size_t n) {
    while (o->keys && n && n < o->n_ids && o->keys[n] < 0 && o->keys[n - 1] < 0) n--;
    return n;
}
