/* Inside of a kakeya_image. */
#ifndef KAKEYA_SESSION_IMAGE_H
#define KAKEYA_SESSION_IMAGE_H

#include "media/image.h"

struct kakeya_image {
    image_info info;
    image pixels; /* upright */
};

#endif
