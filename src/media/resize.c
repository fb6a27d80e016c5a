/* torchvision's resize(uint8, BICUBIC, antialias=True): ATen's native kernel (aten/src/ATen/native/cpu/
 * UpSampleKernel.cpp), whose weights are whole numbers of 16 bits. */
#include "media/resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const int image_budgets[IMAGE_BUDGETS] = {70, 140, 280, 560, 1120};

bool image_budget_is_known(int budget) {
    for (int i = 0; i < IMAGE_BUDGETS; i++)
        if (image_budgets[i] == budget) return true;
    return false;
}

static int smaller(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

kakeya_status image_target_size(int width, int height, int budget, int patch, int pooling, int *to_width,
                                int *to_height, kakeya_error *error) {
    const int side = patch * pooling;
    const double w = width, h = height, area = (double)budget * pooling * pooling * patch * patch;
    const double factor = sqrt(area / (h * w));
    int64_t tall = (int64_t)floor(factor * h / side) * side, wide = (int64_t)floor(factor * w / side) * side;
    const int64_t longest = (int64_t)budget * side;
    bool fits = tall || wide;
    if (!tall) {
        tall = side;
        wide = smaller((int64_t)(width / height) * side, longest);
    } else if (!wide) {
        wide = side;
        tall = smaller((int64_t)(height / width) * side, longest);
    }
    if (!fits || (double)tall * (double)wide > area || tall < side || wide < side)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "an image of %d x %d pixels is too long and thin for a budget of %d tokens", width, height,
                         budget);
    *to_width = (int)wide;
    *to_height = (int)tall;
    return KAKEYA_OK;
}

/* ---------------------------------------------------------------------------------------------------- weights */

/* Of one output sample: inputs [first, first + n), their weights at `weights`. */
typedef struct resize_tap {
    int first, n;
} resize_tap;

typedef struct resize_axis {
    resize_tap *tap;  /* [out] */
    int16_t *weights; /* [out][most] */
    int most;
    int bits; /* weights are multiples of 2^-bits */
} resize_axis;

static double cubic(double x) {
    x = fabs(x);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    if (x < 2) return ((-0.5 * x + 2.5) * x - 4) * x + 2;
    return 0;
}

static void axis_free(resize_axis *axis) {
    free(axis->tap);
    free(axis->weights);
}

static kakeya_status out_of_memory(kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "resizing an image: out of memory");
}

static kakeya_status axis_create(resize_axis *axis, int in, int out, kakeya_error *error) {
    const double scale = (double)in / out, support = 2 * (scale > 1 ? scale : 1), inverse = scale > 1 ? 1 / scale : 1;
    axis->most = (int)ceil(support) * 2 + 1;
    const size_t most = (size_t)axis->most, n = (size_t)out;
    axis->tap = malloc(n * sizeof *axis->tap);
    axis->weights = calloc(n * most, sizeof *axis->weights);
    double *exact = calloc(n * most, sizeof *exact), largest = 0;
    if (!axis->tap || !axis->weights || !exact) {
        free(exact);
        return out_of_memory(error);
    }
    for (int i = 0; i < out; i++) {
        const double centre = scale * (i + 0.5);
        int from = (int)(centre - support + 0.5), to = (int)(centre + support + 0.5);
        if (from < 0) from = 0;
        if (to > in) to = in;
        double *w = exact + (size_t)i * most, sum = 0;
        for (int j = from; j < to; j++) sum += w[j - from] = cubic((j - centre + 0.5) * inverse);
        for (int j = 0; j < to - from; j++) {
            if (sum != 0) w[j] /= sum;
            if (w[j] > largest) largest = w[j];
        }
        axis->tap[i] = (resize_tap){from, to - from};
    }
    while (axis->bits < 22 && (int)(0.5 + largest * (1 << (axis->bits + 1))) < 1 << 15) axis->bits++;
    for (size_t i = 0; i < n * most; i++)
        axis->weights[i] = (int16_t)(exact[i] * (1 << axis->bits) + (exact[i] < 0 ? -0.5 : 0.5));
    free(exact);
    return KAKEYA_OK;
}

/* ----------------------------------------------------------------------------------------------------- passes */

static unsigned char clipped(int32_t sum, int bits) {
    const int32_t value = sum >> bits;
    return (unsigned char)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static int32_t half(const resize_axis *axis) { return axis->bits ? 1 << (axis->bits - 1) : 0; }

static void resize_row(const resize_axis *axis, const unsigned char *from, int out, unsigned char *to) {
    for (int x = 0; x < out; x++, to += 3) {
        const resize_tap tap = axis->tap[x];
        const int16_t *w = axis->weights + (size_t)x * (size_t)axis->most;
        int32_t sum[3] = {half(axis), half(axis), half(axis)};
        const unsigned char *in = from + 3 * (size_t)tap.first;
        for (int j = 0; j < tap.n; j++, in += 3)
            for (int c = 0; c < 3; c++) sum[c] += w[j] * in[c];
        for (int c = 0; c < 3; c++) to[c] = clipped(sum[c], axis->bits);
    }
}

/* One row of the result from rows of `bytes` bytes. sums: [bytes] */
static void resize_column(const resize_axis *axis, const unsigned char *from, size_t bytes, int y, int32_t *sums,
                          unsigned char *to) {
    const resize_tap tap = axis->tap[y];
    const int16_t *w = axis->weights + (size_t)y * (size_t)axis->most;
    for (size_t i = 0; i < bytes; i++) sums[i] = half(axis);
    for (int j = 0; j < tap.n; j++) {
        const unsigned char *in = from + (size_t)(tap.first + j) * bytes;
        for (size_t i = 0; i < bytes; i++) sums[i] += w[j] * in[i];
    }
    for (size_t i = 0; i < bytes; i++) to[i] = clipped(sums[i], axis->bits);
}

static kakeya_status resize_width(const image *from, int width, image *out, kakeya_error *error) {
    const size_t row = 3 * (size_t)width, source_row = 3 * (size_t)from->width, rows = (size_t)from->height;
    *out = (image){width, from->height, malloc(row * rows)};
    if (!out->rgb) return out_of_memory(error);
    if (width == from->width) {
        memcpy(out->rgb, from->rgb, row * rows);
        return KAKEYA_OK;
    }
    resize_axis axis = {0};
    kakeya_status status = axis_create(&axis, from->width, width, error);
    for (size_t y = 0; !status && y < rows; y++)
        resize_row(&axis, from->rgb + y * source_row, width, out->rgb + y * row);
    axis_free(&axis);
    return status;
}

static kakeya_status resize_height(image *picture, int height, kakeya_error *error) {
    if (height == picture->height) return KAKEYA_OK;
    const size_t row = 3 * (size_t)picture->width;
    unsigned char *rgb = malloc(row * (size_t)height);
    int32_t *sums = malloc(row * sizeof *sums);
    resize_axis axis = {0};
    kakeya_status status = rgb && sums ? axis_create(&axis, picture->height, height, error) : out_of_memory(error);
    for (int y = 0; !status && y < height; y++) resize_column(&axis, picture->rgb, row, y, sums, rgb + (size_t)y * row);
    axis_free(&axis);
    free(sums);
    if (status) {
        free(rgb);
        return status;
    }
    free(picture->rgb);
    picture->rgb = rgb;
    picture->height = height;
    return KAKEYA_OK;
}

kakeya_status image_resize(const image *from, int width, int height, image *out, kakeya_error *error) {
    kakeya_status status = resize_width(from, width, out, error);
    if (!status) status = resize_height(out, height, error);
    if (status) image_free(out);
    return status;
}

void image_patches(const image *from, int side, float *out) {
    const size_t across = (size_t)(from->width / side), down = (size_t)(from->height / side), edge = (size_t)side;
    const size_t row = 3 * (size_t)from->width, part = 3 * edge;
    const float scale = (float)(1.0 / 255);
    for (size_t py = 0; py < down; py++) {
        for (size_t px = 0; px < across; px++) {
            const unsigned char *corner = from->rgb + py * edge * row + px * part;
            for (size_t y = 0; y < edge; y++, corner += row)
                for (size_t i = 0; i < part; i++) *out++ = (float)corner[i] * scale;
        }
    }
}
