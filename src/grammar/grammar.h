/* A grammar: what an answer may consist of. Compiled once, immutable, shared by any number of answers. */
#ifndef KAKEYA_GRAMMAR_GRAMMAR_H
#define KAKEYA_GRAMMAR_GRAMMAR_H

#include <cjson/cJSON.h>

#include "grammar/program.h"
#include "grammar/token_table.h"

struct kakeya_grammar {
    const token_table *tokens; /* borrowed */
    uint64_t number;           /* of its own among the grammars of the vocabulary */
    grammar_program program;
    uint32_t content; /* the NODE_ROOT of the text; GRAMMAR_NOTHING: it is free */
    uint32_t call;    /* the NODE_ROOT of one call; GRAMMAR_NOTHING: calls are not read */
    kakeya_grammar_calls calls;
    int max_calls;       /* 0: any number */
    bool thinking;       /* a thought may come first */
    int thinking_tokens; /* of a thought, at most; 0: any number */
    cJSON *notes;        /* what was left out: a list of texts; NULL: nothing */
};

/* tokens: borrowed. */
kakeya_status grammar_compile(const token_table *tokens, const kakeya_grammar_options *options, kakeya_grammar **out,
                              kakeya_error *error);
void grammar_free(kakeya_grammar *g); /* NULL is fine */
size_t grammar_bytes(const kakeya_grammar *g);

#endif
