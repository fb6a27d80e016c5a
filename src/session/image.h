/* Inside of a kakeya_image. */
#ifndef KAKEYA_SESSION_IMAGE_H
#define KAKEYA_SESSION_IMAGE_H

#include "media/digest.h"
#include "media/image.h"

struct kakeya_image {
    image_info info;
    int width, height;                        /* upright */
    image pixels;                             /* upright, */
    int budget;                               /* as a model reads them with this budget; 0: as they were */
    int patch, pooling;                       /* with a budget: of that model */
    unsigned char digest[IMAGE_DIGEST_BYTES]; /* with a budget: of these pixels */
};

#endif
