/* What a vocabulary has to say to a text inside of quotes, whatever the grammar is: tokens that stay inside, by their
 * characters, and tokens with the quote that ends the text, by what stands behind it. */
#ifndef KAKEYA_GRAMMAR_TOKEN_SETS_H
#define KAKEYA_GRAMMAR_TOKEN_SETS_H

#include "grammar/token_trie.h"

typedef enum token_text_kind { TOKEN_JSON_STRING = 0, TOKEN_JSON_KEY, TOKEN_CALL_STRING, TOKEN_TEXTS } token_text_kind;

enum { TOKEN_MAX_CHARACTERS = 64 }; /* sets are kept for fewer */

typedef struct token_set {
    uint32_t most;    /* characters of a token that stays inside */
    uint32_t n_sets;  /* most + 1, at most TOKEN_MAX_CHARACTERS */
    uint32_t *inside; /* [n_sets + 1][words], bits: tokens of so many characters or fewer; the last set: all */
    /* Those that end the text, by what stands behind the quote. before: [n_tokens], where they have the quote;
     * characters: in front of it. */
    token_trie closers;
    uint16_t *before, *characters;
    uint16_t *closes;   /* [vocab], by token: 1 + where it has the quote; 0: it does not end the text */
    token_trie spelled; /* the same tokens by their texts */
    token_trie twice; /* of a key: those with two more quotes behind the first, by their texts; not among the closers */
    token_trie others; /* all that are not inside, by their texts */
} token_set;

typedef struct token_texts {
    const char *bytes;
    const uint32_t *offset; /* [vocab + 1] */
    int32_t vocab;
} token_texts;

/* entries: memory for as many as there are tokens. False where memory ends. */
bool token_set_make(const token_texts *texts, token_text_kind kind, token_trie_entry *entries, token_set *out);
void token_set_free(token_set *set);

static inline size_t token_set_words(int32_t vocab) { return ((size_t)vocab + 31) / 32; }

/* Tokens of at most so many characters, or NULL: there is no such set. */
static inline const uint32_t *token_set_inside(const token_set *set, int32_t vocab, uint64_t characters) {
    if (characters >= set->most) return set->inside + set->n_sets * token_set_words(vocab);
    return characters < set->n_sets ? set->inside + characters * token_set_words(vocab) : NULL;
}

#endif
