#include "serve/call_images.h"

#include <stdlib.h>

bool call_images_add(call_images **images, kakeya_image *picture) {
    if (!*images) *images = calloc(1, sizeof **images);
    call_images *all = *images;
    if (!all) return false;
    kakeya_image **more = realloc(all->image, (all->n + 1) * sizeof *more);
    if (!more) return false;
    all->image = more;
    all->image[all->n++] = picture;
    return true;
}

const char *call_images_smaller(const call_images *all) {
    return all && all->smaller.n && !all->smaller.failed ? all->smaller.data : NULL;
}

void call_images_free(call_images *all) {
    if (!all) return;
    for (size_t i = 0; i < all->n; i++) kakeya_image_close(all->image[i]);
    free(all->image);
    text_free(&all->smaller);
    free(all);
}
