#include "serve/image_reader.h"

#include "media/decode.h"
#include "media/resize.h"

kakeya_status image_reader_read(const char *name, const void *data, size_t bytes, const image_wish *wish,
                                image_info *info, image *out, kakeya_error *error) {
    image whole = {0};
    int width, height;
    *out = (image){0};
    kakeya_status status = image_decode(name, data, bytes, &wish->limits, info, &whole, error);
    if (status == KAKEYA_OK) {
        info->width = whole.width;
        info->height = whole.height;
        status = image_target_size(whole.width, whole.height, wish->budget, wish->patch, wish->pooling, &width, &height,
                                   error);
    }
    if (status == KAKEYA_OK) status = image_resize(&whole, width, height, out, error);
    image_free(&whole);
    return status;
}
