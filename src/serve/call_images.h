/* The pictures that a call's body holds. */
#ifndef KAKEYA_SERVE_CALL_IMAGES_H
#define KAKEYA_SERVE_CALL_IMAGES_H

#include "kakeya.h"
#include "serve/text.h"

typedef struct call_images {
    kakeya_image **image; /* [n] */
    size_t n;
    text_buffer
        smaller; /* what was resized to less: "messages[0].content[1] 4032x3024 to 912x672", with "; " between */
} call_images;

/* The picture is theirs from now on. False: out of memory, and it is not. *images may be NULL at first. */
bool call_images_add(call_images **images, kakeya_image *picture);
/* For a header and the log; NULL: nothing was made smaller. images may be NULL. */
const char *call_images_smaller(const call_images *images);
void call_images_free(call_images *images); /* NULL is fine */

#endif
