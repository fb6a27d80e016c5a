/* Bytes of strangers to pixels as a model reads them. */
#ifndef KAKEYA_SERVE_IMAGE_READER_H
#define KAKEYA_SERVE_IMAGE_READER_H

#include "media/image.h"

typedef struct image_wish {
    image_limits limits;
    int budget, patch, pooling; /* as image_target_size wants them */
} image_wish;

/* Decodes the file and fits it. `name` begins messages. info: of the file, with the size upright.
 * KAKEYA_INVALID_ARGUMENT: beyond a limit; KAKEYA_UNSUPPORTED: none of the formats; KAKEYA_FORMAT: damaged. *out is
 * freed by image_free. */
kakeya_status image_reader_read(const char *name, const void *data, size_t bytes, const image_wish *wish,
                                image_info *info, image *out, kakeya_error *error);

#endif
