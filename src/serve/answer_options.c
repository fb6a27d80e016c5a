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
    grammar_cache_give(o->grammar);
    o->grammar = NULL;
    kakeya_free(o->prediction);
    o->prediction = NULL;
    o->ids = NULL;
    o->bias = NULL;
    o->begun = NULL;
}
