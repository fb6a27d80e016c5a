#include "media/image.h"

#include <stdlib.h>

const image_limits image_default_limits = {.side = IMAGE_MAX_SIDE, .pixels = IMAGE_MAX_PIXELS};

const char *image_format_name(image_format format) {
    static const char *const names[IMAGE_FORMATS] = {"PNG", "JPEG", "WebP", "GIF"};
    return names[format];
}

void image_free(image *picture) {
    free(picture->rgb);
    *picture = (image){0};
}
