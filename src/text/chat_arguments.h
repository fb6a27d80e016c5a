/* The arguments of one tool call, from the form that the model writes ({key:value,...}, strings between two quote
 * tokens) to JSON text, piece by piece: what has been written is never taken back. What the model gets wrong is
 * repaired (quoted keys, JSON strings, missing commas, values and brackets), so that the text is always one JSON object
 * in the end.
 *
 * A bare word waits until its end is known, because 1 may become 10; numbers keep their spelling. */
#ifndef KAKEYA_TEXT_CHAT_ARGUMENTS_H
#define KAKEYA_TEXT_CHAT_ARGUMENTS_H

#include <stdint.h>

#include "text/chat_schema.h"

enum { CHAT_ARGUMENTS_MAX_DEPTH = 32, CHAT_ARGUMENTS_MAX_BYTES = 1 << 20 };

/* Takes JSON text as it becomes certain. */
typedef void (*chat_arguments_put_fn)(void *user, const char *text, size_t bytes);

typedef struct chat_arguments {
    chat_arguments_put_fn put;
    void *user;
    int state; /* private, as is what follows */
    int depth;
    struct {
        bool list, any; /* any: something has been written inside */
        chat_schema schema;
    } open[CHAT_ARGUMENTS_MAX_DEPTH];
    chat_schema expected; /* of the next value */
    bool parentheses;     /* the outermost brackets are ( and ) */
    char *held;           /* a key, a bare word, or white space behind a quote */
    size_t held_bytes, held_capacity;
    size_t comma; /* of a bare string: 1 + where its last comma is held */
    unsigned escape, escape_digits, code, high_surrogate;
    size_t written_bytes;
    /* results */
    bool done;      /* the outermost bracket is closed */
    bool too_large; /* a limit was reached: the text has been closed, the rest of the call is to be dropped */
    bool out_of_memory;
    size_t repairs;
} chat_arguments;

/* `a` is zeroed before its first use and keeps its memory from call to call; chat_arguments_free releases it.
 * opening: '{' or '('. Writes "{". */
void chat_arguments_begin(chat_arguments *a, chat_schema schema, char opening);
/* More text of the call, in whole characters. Returns how many bytes belong to the arguments: fewer than `bytes` if
 * they end before. */
size_t chat_arguments_text(chat_arguments *a, const char *text, size_t bytes);
/* The quote token. */
void chat_arguments_quote(chat_arguments *a);
/* The call is over: closes what is open. */
void chat_arguments_close(chat_arguments *a);
void chat_arguments_free(chat_arguments *a);

#endif
