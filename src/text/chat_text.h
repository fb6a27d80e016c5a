/* Text made of control tokens and ordinary words, kept apart: only what the turn format itself writes can become
 * control tokens. Every word that comes from a caller is encoded as ordinary text, whatever it spells. */
#ifndef KAKEYA_TEXT_CHAT_TEXT_H
#define KAKEYA_TEXT_CHAT_TEXT_H

#include "text/tokenizer.h"

#define CHAT_QUOTE "<|\"|>" /* the control token around strings */

/* A stretch of the rendered text: one control token, text that is never read as control tokens, or ids that stand for
 * themselves and have no text. */
typedef struct chat_segment {
    size_t offset, bytes;
    bool control;
    size_t times;       /* of a control token: how often it stands there; it is written once */
    const int32_t *ids; /* borrowed; NULL: text */
    size_t n_ids;
} chat_segment;

typedef struct chat_text {
    char *text; /* NUL-terminated */
    size_t bytes;
    chat_segment *segments; /* in order, covering the text; two texts are never adjacent */
    size_t n_segments;
    size_t stable_segments; /* the first so many are the conversation, the others open the model's turn */
} chat_text;

void chat_text_free(chat_text *text);

/* The ids of a rendered conversation, malloc'ed. *n_stable (may be NULL) receives how many of them are the conversation
 * itself, which a later request that goes on from here begins with; the others open the model's turn. Fails if the
 * vocabulary lacks a control token that the text uses. most: as soon as there are known to be more it is
 * KAKEYA_CONTEXT_FULL, and *n_ids a number of ids that there are at least; 0: no limit. */
kakeya_status chat_tokenize(const tokenizer *t, const chat_text *text, size_t most, int32_t **ids, size_t *n_ids,
                            size_t *n_stable, kakeya_error *error);

/* Writes a chat_text; the first failure sticks in `status` and everything after it is ignored. */
typedef struct chat_writer {
    chat_text out;
    size_t text_capacity, segment_capacity;
    kakeya_status status;
    kakeya_error *error;
    size_t place_bytes; /* how much of the error's message is a place */
} chat_writer;

void chat_put_control(chat_writer *w, const char *token);
void chat_put_repeated(chat_writer *w, const char *token, size_t times);
void chat_put(chat_writer *w, const char *text, size_t bytes);
void chat_puts(chat_writer *w, const char *text);
void chat_put_ids(chat_writer *w, const int32_t *ids, size_t n);
/* Hands the text over, or what has failed. */
kakeya_status chat_writer_end(chat_writer *w, chat_text *out);
void chat_fail(chat_writer *w, kakeya_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same about messages[index], or a member of it (".role"; "" for the message itself): the message begins with it.
 */
void chat_fail_at(chat_writer *w, kakeya_status status, size_t index, const char *member, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

#endif
