/* Stop strings on a stream of text. Text that may be the beginning of a stop string is held back until it is known not
 * to be one, so nothing of a stop string is ever delivered, however tokens cut it. */
#ifndef KAKEYA_DECODE_STOP_TEXT_H
#define KAKEYA_DECODE_STOP_TEXT_H

#include <stdbool.h>

#include "base/alloc.h"
#include "base/error.h"

typedef struct stop_text {
    char **strings; /* with lengths: U+0000 in them is a byte */
    size_t *lengths;
    size_t n;
    char *text; /* what push has released, then what is held back */
    size_t released, held, capacity;
    size_t completed; /* index of the string that was completed */
    mem_account *account;
} stop_text;

/* Each string must be non-empty valid UTF-8, but for U+0000, which is spelled as base/nul.h says: then held text always
 * begins at a character. They are copied. */
kakeya_status stop_text_create(stop_text *s, const char *const *strings, size_t n, mem_account *account,
                               kakeya_error *error);
void stop_text_free(stop_text *s); /* a zeroed stop_text is fine */

/* Adds text. s->text[0..s->released) is then what can be delivered (valid until the next call); *stopped tells whether
 * a stop string was completed, in which case the text before it is released and the rest is dropped. Of several stop
 * strings the one that is completed first counts, so the result does not depend on how the stream was cut. */
kakeya_status stop_text_push(stop_text *s, const char *text, size_t bytes, bool *stopped, kakeya_error *error);
/* At the end of the stream: releases what is held back, and `text` behind it, together with what the last push
 * released. *stopped: `text` completed a stop string, and is released up to it. */
kakeya_status stop_text_flush(stop_text *s, const char *text, size_t bytes, bool *stopped, kakeya_error *error);

#endif
