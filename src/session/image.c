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
    if (status) {
        free(made);
        return status;
    }
    made->width = made->pixels.width;
    made->height = made->pixels.height;
    *out = made;
    return KAKEYA_OK;
}

void kakeya_image_close(kakeya_image *picture) {
    if (!picture) return;
    image_free(&picture->pixels);
    free(picture);
}

void kakeya_image_facts_sized(const kakeya_image *picture, kakeya_image_facts *out) {
    const kakeya_image_facts facts = {
        .format = image_format_name(picture->info.format),
        .width = picture->width,
        .height = picture->height,
        .orientation = picture->info.orientation,
    };
    sized_write(out, &facts, sizeof facts);
}

int kakeya_image_budget(size_t i) { return i < IMAGE_BUDGETS ? image_budgets[i] : 0; }

static kakeya_status check_budget(int budget, kakeya_error *error) {
    if (image_budget_is_known(budget)) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT,
                     "the image budget is %d tokens, must be 70, 140, 280, 560 or "
                     "1120",
                     budget);
}

static kakeya_image_fit describe(const image *resized, int patch, int pooling,
                                 const unsigned char digest[IMAGE_DIGEST_BYTES]) {
    kakeya_image_fit fit = {.width = resized->width, .height = resized->height};
    fit.patches = fit.width / patch * (fit.height / patch);
    fit.tokens = fit.patches / (pooling * pooling);
    image_digest_text(digest, fit.digest);
    return fit;
}

kakeya_status kakeya_image_fit_budget(const kakeya_image *picture, int budget, kakeya_image_fit *out,
                                      kakeya_error *error) {
    kakeya_status status = sized_check("image fit", out, error);
    if (!status) status = check_budget(budget, error);
    if (status) return status;
    if (picture->budget)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "the image has been fitted into %d tokens", picture->budget);
    image resized = {0};
    int width, height;
    unsigned char digest[IMAGE_DIGEST_BYTES];
    status = image_target_size(picture->width, picture->height, budget, PATCH, POOLING, &width, &height, error);
    if (!status) status = image_resize(&picture->pixels, width, height, &resized, error);
    if (!status) status = image_digest(&resized, digest, error);
    if (!status) {
        const kakeya_image_fit fit = describe(&resized, PATCH, POOLING, digest);
        sized_write(out, &fit, sizeof fit);
    }
    image_free(&resized);
    return status;
}

bool kakeya_image_fitted(const kakeya_image *picture, kakeya_image_fit *out) {
    kakeya_image_fit fit = {0};
    if (picture->budget) fit = describe(&picture->pixels, picture->patch, picture->pooling, picture->digest);
    sized_write(out, &fit, sizeof fit);
    return picture->budget != 0;
}

static bool find_format(const char *name, image_format *out) {
    for (int i = 0; name && i < IMAGE_FORMATS; i++) {
        *out = (image_format)i;
        if (strcmp(image_format_name(*out), name) == 0) return true;
    }
    return false;
}

kakeya_status kakeya_image_of_fit(const kakeya_engine *engine, const kakeya_image_facts *facts, int budget, int width,
                                  int height, const unsigned char *rgb, kakeya_image **out, kakeya_error *error) {
    *out = NULL;
    int fit_width, fit_height, patch, pooling;
    image_format format;
    kakeya_status status = check_budget(budget, error);
    if (status) return status;
    if (!kakeya_engine_image_grid(engine, &patch, &pooling))
        return error_set(error, KAKEYA_UNSUPPORTED, "the model reads no images");
    if (!find_format(facts->format, &format) || facts->width < 1 || facts->width > IMAGE_MAX_SIDE ||
        facts->height < 1 || facts->height > IMAGE_MAX_SIDE)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "an image of %d x %d pixels", facts->width, facts->height);
    status = image_target_size(facts->width, facts->height, budget, patch, pooling, &fit_width, &fit_height, error);
    if (status) return status;
    if (width != fit_width || height != fit_height)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "an image of %d x %d pixels is fitted to %d x %d, not %d x %d",
                         facts->width, facts->height, fit_width, fit_height, width, height);
    size_t bytes = 3 * (size_t)width * (size_t)height;
    kakeya_image *made = calloc(1, sizeof *made);
    unsigned char *copy = made ? malloc(bytes) : NULL;
    if (!copy) {
        free(made);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "an image of %d x %d pixels: out of memory", width, height);
    }
    memcpy(copy, rgb, bytes);
    *made = (kakeya_image){.info = {format, facts->width, facts->height, facts->orientation},
                           .width = facts->width,
                           .height = facts->height,
                           .pixels = {width, height, copy},
                           .budget = budget,
                           .patch = patch,
                           .pooling = pooling};
    status = image_digest(&made->pixels, made->digest, error);
    if (status) {
        kakeya_image_close(made);
        return status;
    }
    *out = made;
    return KAKEYA_OK;
}
