/* The two forms of one vocabulary: pieces with scores, which GGUF files of Gemma 3 hold, and a list of merges, which a
 * tokenizer.json does. */
#ifndef KAKEYA_CONVERT_VOCABULARY_H
#define KAKEYA_CONVERT_VOCABULARY_H

#include "base/error.h"
#include "text/tokenizer.h"

/* Scores of all pieces, [tokenizer_vocab_size(t)], under which text becomes the same ids as by the merges of `t`: 0 for
 * what is merged first, then -1, -2, and so on; -1000 for added tokens, 0 for bytes. *ranked is false where there are
 * no such scores: merges are not in the order of what they make, or some that make a piece are not listed. */
kakeya_status vocabulary_scores(const tokenizer *t, float *scores, bool *ranked, kakeya_error *error);

/* A piece with ASCII spaces in the place of U+2581, as GGUF files spell what is looked for before spaces are replaced;
 * *bytes becomes its length. malloc'ed; NULL where nothing is to be replaced, or out of memory. */
char *vocabulary_spaced(const char *piece, size_t *bytes);

/* The text of a tokenizer.json with the same ids; `name` stands for the model in messages. *out is malloc'ed.
 * KAKEYA_UNSUPPORTED where two pieces are spelled alike, which that form cannot say. */
kakeya_status vocabulary_json(const tokenizer *t, const char *name, char **out, size_t *bytes, kakeya_error *error);

#endif
