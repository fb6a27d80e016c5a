/* Byte-pair encoding of the Gemma family, read from a checkpoint's tokenizer.json.
 *
 * The form accepted is Gemma's: model BPE with byte fallback; normalizer " " -> U+2581; a pre-tokenizer that splits at
 * spaces (which the normalizer has removed, so nothing is ever split) or none; decoder U+2581 -> " ", byte fallback,
 * fuse; added tokens matched before everything else, first verbatim ones, then those whose text is normalized as well.
 * A file of any other form is refused by name rather than tokenised wrongly.
 *
 * A tokenizer is immutable after opening and may be shared by threads. */
#ifndef KAKEYA_TEXT_TOKENIZER_H
#define KAKEYA_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct tokenizer_tables tokenizer; /* opaque */

/* Reads a tokenizer.json. *out is released by tokenizer_close. */
kakeya_status tokenizer_open(const char *path, tokenizer **out, kakeya_error *error);
/* The same from memory, which is not needed afterwards; `name` stands for the path in messages. */
kakeya_status tokenizer_open_memory(const char *name, const char *data, size_t bytes, tokenizer **out,
                                    kakeya_error *error);
void tokenizer_close(tokenizer *t); /* NULL is fine */

typedef struct tokenizer_encode_options {
    bool add_special;   /* put what the file's post-processor adds around a text (Gemma: <bos> in front, or nothing) */
    bool parse_special; /* special-token strings in the text become their ids; otherwise they are ordinary text */
    bool add_once;      /* what is put in front is not, where the text's own ids begin so */
    size_t most;        /* a text of more tokens is KAKEYA_CONTEXT_FULL as soon as that is known; 0: no limit */
} tokenizer_encode_options;

/* Text to ids; *ids is malloc'ed (never NULL on success), freed by the caller. The text must be valid UTF-8 of at most
 * TOKENIZER_MAX_TEXT_BYTES bytes and may hold NUL. Takes O(n log n) time. With KAKEYA_CONTEXT_FULL *n_ids is a number
 * of tokens that the text has at least.
 *
 * {true, true} equals a Hugging Face tokenizer's encode(text), {false, true} its encode(text,
 * add_special_tokens=False); {false, false} is for text that nobody vouches for, such as the words of a chat's user. */
kakeya_status tokenizer_encode(const tokenizer *t, const char *text, size_t text_bytes,
                               tokenizer_encode_options options, int32_t **ids, size_t *n_ids, kakeya_error *error);

#define TOKENIZER_MAX_TEXT_BYTES ((size_t)512 << 20)

int tokenizer_vocab_size(const tokenizer *t); /* the largest id + 1; below it, ids between added tokens may be unused */
size_t tokenizer_longest_piece(const tokenizer *t); /* bytes */
/* The piece as the vocabulary spells it (spaces as U+2581, bytes as "<0xNN>"), NUL-terminated; NULL if there is no such
 * id. `bytes` may be NULL. */
const char *tokenizer_piece(const tokenizer *t, int32_t id, size_t *bytes);
/* The id of a piece spelled exactly so, -1 if there is none. */
int32_t tokenizer_id(const tokenizer *t, const char *piece);
/* Whether the id is an added token marked special: control, not text. False for ids outside the vocabulary. */
bool tokenizer_is_special(const tokenizer *t, int32_t id);
/* Whether it is an added token at all: one that is not special is text, found before everything else. */
bool tokenizer_is_added(const tokenizer *t, int32_t id);
/* The byte that a "<0xNN>" piece stands for, -1 for other pieces. */
int tokenizer_byte(const tokenizer *t, int32_t id);

#endif
