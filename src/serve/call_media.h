/* The pictures and sounds that a call's body holds. */
#ifndef KAKEYA_SERVE_CALL_MEDIA_H
#define KAKEYA_SERVE_CALL_MEDIA_H

#include "kakeya.h"
#include "serve/text.h"

typedef struct call_media {
    kakeya_media *item; /* [n] */
    size_t n, sounds;   /* of both; of sounds */
    text_buffer
        smaller; /* what was resized to less: "messages[0].content[1] 4032x3024 to 912x672", with "; " between */
    bool smaller_is_full; /* it ends with "and others" */
} call_media;

/* The picture, or the sound, is theirs from now on. False: out of memory, and it is not. *media may be NULL at first.
 */
bool call_media_add(call_media **media, const kakeya_media *item);
/* For a header and the log; NULL: no picture was made smaller. media may be NULL. */
const char *call_media_smaller(const call_media *media);
void call_media_free(call_media *media);         /* NULL is fine */
void call_media_close(const kakeya_media *item); /* the picture, or the sound */

#endif
