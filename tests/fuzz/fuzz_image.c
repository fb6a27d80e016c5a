/* Any bytes as a picture: what is refused says why in one line and gives nothing; what is decoded has the size that its
 * header states, and every pixel of it. */
#include <stdlib.h>

#include "media/decode.h"
#include "media/digest.h"
#include "media/resize.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const image_limits limits = {.side = 512, .pixels = 128 * 128};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kakeya_error error = {0};
    image_info header, info;
    image picture;
    kakeya_status read = image_read_info("fuzz", data, size, &limits, &header, &error);
    if (read && (error.status != read || !*error.message)) abort();
    kakeya_status status = image_decode("fuzz", data, size, &limits, &info, &picture, &error);
    if ((status == KAKEYA_OK) != (picture.rgb != NULL)) abort();
    if (status != KAKEYA_OK) {
        if (error.status != status || !*error.message) abort();
        return 0;
    }
    if (read || header.width != info.width || header.height != info.height || info.orientation < 1 ||
        info.orientation > 8)
        abort();
    const bool turned = info.orientation > 4;
    if (picture.width != (turned ? info.height : info.width) || picture.height != (turned ? info.width : info.height))
        abort();
    unsigned char digest[IMAGE_DIGEST_BYTES]; /* reads them all */
    image resized;
    int width, height;
    if (image_digest(&picture, digest, &error)) abort();
    if (image_target_size(picture.width, picture.height, 70, 1, 3, &width, &height, &error)) abort();
    if (image_resize(&picture, width, height, &resized, &error)) abort();
    if (image_digest(&resized, digest, &error)) abort();
    image_free(&resized);
    image_free(&picture);
    return 0;
}
