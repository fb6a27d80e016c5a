#include "session/image.h"

#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "media/decode.h"
#include "media/digest.h"
#include "media/resize.h"

enum { PATCH = 16, POOLING = 3 }; /* of every published size */

kakeya_status kakeya_image_open(const char *name, const void *data, size_t bytes, kakeya_image **out,
                                kakeya_error *error) {
    *out = NULL;
    kakeya_image *made = calloc(1, sizeof *made);
    if (!made) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", name);
    kakeya_status status = image_decode(name, data, bytes, &image_default_limits, &made->info, &made->pixels, error);
    if (status)
        free(made);
    else
        *out = made;
    return status;
}

void kakeya_image_close(kakeya_image *picture) {
    if (!picture) return;
    image_free(&picture->pixels);
    free(picture);
}

void kakeya_image_facts_sized(const kakeya_image *picture, kakeya_image_facts *out) {
    const kakeya_image_facts facts = {
        .format = image_format_name(picture->info.format),
        .width = picture->pixels.width,
        .height = picture->pixels.height,
        .orientation = picture->info.orientation,
    };
    sized_write(out, &facts, sizeof facts);
}

int kakeya_image_budget(size_t i) { return i < IMAGE_BUDGETS ? image_budgets[i] : 0; }

kakeya_status kakeya_image_fit_budget(const kakeya_image *picture, int budget, kakeya_image_fit *out,
                                      kakeya_error *error) {
    kakeya_image_fit fit = {0};
    kakeya_status status = sized_check("image fit", out, error);
    if (status) return status;
    if (!image_budget_is_known(budget))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "an image budget of %d tokens: 70, 140, 280, 560 or 1120",
                         budget);
    image resized = {0};
    unsigned char digest[IMAGE_DIGEST_BYTES];
    status = image_target_size(picture->pixels.width, picture->pixels.height, budget, PATCH, POOLING, &fit.width,
                               &fit.height, error);
    if (!status) status = image_resize(&picture->pixels, fit.width, fit.height, &resized, error);
    if (!status) status = image_digest(&resized, digest, error);
    image_free(&resized);
    if (status) return status;
    fit.patches = fit.width / PATCH * (fit.height / PATCH);
    fit.tokens = fit.patches / (POOLING * POOLING);
    image_digest_text(digest, fit.digest);
    sized_write(out, &fit, sizeof fit);
    return KAKEYA_OK;
}
