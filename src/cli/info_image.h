/* `kakeya info --image`: what a model would read of a picture. */
#ifndef KAKEYA_CLI_INFO_IMAGE_H
#define KAKEYA_CLI_INFO_IMAGE_H

#include <stdbool.h>

#include "kakeya.h"

/* Reads the file ('-': standard input) and prints its format and size, and at each budget the size that it is resized
 * to, its patches, its tokens and its digest. */
kakeya_status info_image_print(const char *path, bool json, kakeya_error *error);

#endif
