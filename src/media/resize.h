/* From pixels to the patches that a vision model reads: the size that fills a budget of tokens, the antialiased bicubic
 * resize of torchvision bit for bit, and values. Whatever the budget, a row of a model stands for a square of
 * patch * pooling pixels. */
#ifndef KAKEYA_MEDIA_RESIZE_H
#define KAKEYA_MEDIA_RESIZE_H

#include "media/image.h"

enum { IMAGE_BUDGETS = 5, IMAGE_DEFAULT_BUDGET = 280 };
extern const int image_budgets[IMAGE_BUDGETS]; /* rows that a picture may have: 70, 140, 280, 560, 1120 */
bool image_budget_is_known(int budget);

/* The size in pixels that an image of width x height is resized to, so that its rows fill `budget` and never exceed it.
 * patch: pixels of a patch's side; pooling: patches of a row's side. KAKEYA_INVALID_ARGUMENT: too long and thin. */
kakeya_status image_target_size(int width, int height, int budget, int patch, int pooling, int *to_width,
                                int *to_height, kakeya_error *error);

/* out becomes the picture in another size; it is freed by image_free. */
kakeya_status image_resize(const image *from, int width, int height, image *out, kakeya_error *error);

/* Values in [0, 1] of all patches of side x side pixels, in order of rows of patches: out is
 * [height / side * width / side][side][side][3]. Both sides of the picture are multiples of `side`. */
void image_patches(const image *from, int side, float *out);

#endif
