/* Ids back to text.
 *
 * U+2581 becomes a space. A run of byte pieces becomes its characters if the whole run is valid UTF-8, otherwise each
 * of its bytes becomes U+FFFD, as in Hugging Face's ByteFallback; so the text is always valid UTF-8. */
#ifndef KAKEYA_TEXT_DETOKENIZER_H
#define KAKEYA_TEXT_DETOKENIZER_H

#include "text/tokenizer.h"

/* *text is malloc'ed and NUL-terminated (text_bytes does not count the NUL). With keep_special = false, tokens marked
 * special contribute nothing. An id outside the vocabulary is KAKEYA_INVALID_ARGUMENT. */
kakeya_status detokenize(const tokenizer *t, const int32_t *ids, size_t n_ids, bool keep_special, char **text,
                         size_t *text_bytes, kakeya_error *error);

/* The same text, id by id: what the pushes and the finish return, put together, is what detokenize returns. A run of
 * byte pieces is held back until it ends or is seen to be invalid, so no call ever returns a part of a character. The
 * tokenizer must outlive the detokenizer. */
typedef struct detokenizer detokenizer;

kakeya_status detokenizer_create(const tokenizer *t, bool keep_special, detokenizer **out, kakeya_error *error);
void detokenizer_destroy(detokenizer *d); /* NULL is fine */

/* The text that this id completes, possibly empty; not NUL-terminated, valid until the next call. Allocates only when a
 * run of byte pieces is longer than any before. Ids outside the vocabulary contribute nothing. */
kakeya_status detokenizer_push(detokenizer *d, int32_t id, const char **text, size_t *text_bytes, kakeya_error *error);
/* The text still held back; afterwards the detokenizer is as new. */
void detokenizer_finish(detokenizer *d, const char **text, size_t *text_bytes);

#endif
