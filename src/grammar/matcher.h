/* Following an answer token by token: which tokens may come next, and where the answer stands behind one.
 *
 * An answer is a thought, if it may have one; then text, calls, or both. The text and each call are read by the
 * automaton. A stop token is allowed exactly where the answer may end, and inside of thoughts nothing ends it. */
#ifndef KAKEYA_GRAMMAR_MATCHER_H
#define KAKEYA_GRAMMAR_MATCHER_H

#include "base/alloc.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/masks.h"

enum { MATCHER_MAX_FORCED = 32 };

/* Memory in which tokens are tried. Nothing in it outlives a call, so all answers of a thread share it. */
typedef struct matcher_space {
    mem_account *account;
    mask_space masks;
    struct matcher *trial; /* an answer that goes on, perhaps */
} matcher_space;

kakeya_status matcher_space_reserve(matcher_space *space, const kakeya_grammar *g, kakeya_error *error);
void matcher_space_free(matcher_space *space);

typedef struct matcher matcher;

/* stop_tokens: of the model; borrowed. tokens[0..n): in front of the answer; they may end with an open thought. */
kakeya_status matcher_create(const kakeya_grammar *g, const int32_t *stop_tokens, int n_stop_tokens,
                             const int32_t *tokens, size_t n, mem_account *account, matcher **out, kakeya_error *error);
void matcher_destroy(matcher *m); /* NULL is fine */
const kakeya_grammar *matcher_grammar(const matcher *m);
bool matcher_allows(const matcher *m, matcher_space *space, int32_t token);
/* The token is part of the answer. False, and nothing changes, where it is not allowed. */
bool matcher_accept(matcher *m, matcher_space *space, int32_t token);
/* The bits of all tokens that are allowed; [n_words] words, of a vocabulary that may be larger than the grammar's. */
void matcher_mask(const matcher *m, matcher_space *space, uint32_t *allowed, size_t n_words);
/* The same of n + 1 places: here, and behind each of the tokens; nothing behind one that is not allowed. allowed:
 * [n + 1][n_words]. */
void matcher_masks(const matcher *m, matcher_space *space, const int32_t *tokens, int n, uint32_t *allowed,
                   size_t n_words);

/* How many of the tokens, one behind the other, are allowed. */
int matcher_count_allowed(const matcher *m, matcher_space *space, const int32_t *tokens, int n);
/* Tokens that must come next, as the tokenizer would write them: where one letter only may follow, and again. Text that
 * ends where there is a choice lacks its last token, since a longer one might take its place. Returns their number, at
 * most `most` and MATCHER_MAX_FORCED; 0 where memory ends, too. */
int matcher_forced(const matcher *m, matcher_space *space, int32_t *tokens, int most);
/* n drafts of at most `most`: behind those that are allowed stands what must come there. Returns how many there are
 * then. */
int matcher_correct(const matcher *m, matcher_space *space, int32_t *tokens, int n, int most);

#endif
