#include "serve/call_media.h"

#include <stdint.h>
#include <stdlib.h>

bool call_media_add(call_media **media, const kakeya_media *item) {
    if (!*media) *media = calloc(1, sizeof **media);
    call_media *all = *media;
    if (!all) return false;
    kakeya_media *more = realloc(all->item, (all->n + 1) * sizeof *more);
    if (!more) return false;
    all->item = more;
    all->item[all->n++] = *item;
    all->sounds += item->sound != NULL;
    return true;
}

const char *call_media_smaller(const call_media *all) {
    return all && all->smaller.n && !all->smaller.failed ? all->smaller.data : NULL;
}

void call_media_close(const kakeya_media *item) {
    kakeya_image_close((kakeya_image *)(uintptr_t)item->image);
    kakeya_sound_close((kakeya_sound *)(uintptr_t)item->sound);
}

void call_media_free(call_media *all) {
    if (!all) return;
    for (size_t i = 0; i < all->n; i++) call_media_close(&all->item[i]);
    free(all->item);
    text_free(&all->smaller);
    free(all);
}
