/* Compiled grammars, so that the same schema in request after request is compiled once, also one that is refused. Those
 * that were used last are kept, within bounds; those that answers use live as long as they do. All functions may be
 * called by several threads at a time. */
#ifndef KAKEYA_SERVE_GRAMMAR_CACHE_H
#define KAKEYA_SERVE_GRAMMAR_CACHE_H

#include "kakeya.h"

enum { GRAMMAR_CACHE_ENTRIES = 64, GRAMMAR_CACHE_BYTES = 64 << 20 };

typedef struct grammar_cache grammar_cache;
typedef struct cached_grammar cached_grammar;

/* bytes: of grammars and of what they are compiled from. NULL: out of memory. */
grammar_cache *grammar_cache_open(size_t most, size_t bytes);
/* Nobody may use one of its grammars any more. NULL is fine. */
void grammar_cache_close(grammar_cache *cache);

/* As kakeya_grammar_open. *out is given back with grammar_cache_give. What is refused is kept with
 * its error, and refused again without being compiled; other failures, such as of memory, are not kept. */
kakeya_status grammar_cache_take(grammar_cache *cache, const kakeya_tokenizer *tokenizer,
                                 const kakeya_grammar_options *options, cached_grammar **out, kakeya_error *error);
cached_grammar *grammar_cache_share(cached_grammar *grammar); /* the same, to be given back once more; NULL is fine */
void grammar_cache_give(cached_grammar *grammar);             /* NULL is fine */
const kakeya_grammar *grammar_cache_grammar(const cached_grammar *grammar);

/* Forgets all: their tokenizer goes. Nobody may use one. */
void grammar_cache_clear(grammar_cache *cache);

typedef struct grammar_cache_counts {
    uint64_t hits, compiled, refused; /* compiled: those that are grammars; refused: tried, and not found to be one */
    size_t entries, bytes;
} grammar_cache_counts;
void grammar_cache_count(grammar_cache *cache, grammar_cache_counts *out);

#endif
