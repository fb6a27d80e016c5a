#include "measure/code_picture.h"

#include <stdlib.h>

#include "base/error.h"
#include "measure/mt19937.h"
#include "session/image.h"

enum {
    SIDE = 256,
    CELL = 32, /* of a digit: a token of the 64 that the picture has at a budget of 70 */
    ROW = 7,   /* of the first digit's cell */
    COLUMN = 3,
    DOT = 4,
    ACROSS = 5,
    DOWN = 7,
};

/* ACROSS x DOWN dots of each digit, a row in five bits, the highest on the left. */
static const unsigned char digits[10][DOWN] = {
    {0x0E, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0E}, {0x04, 0x0C, 0x04, 0x04, 0x04, 0x04, 0x0E},
    {0x0E, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1F}, {0x1F, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0E},
    {0x02, 0x06, 0x0A, 0x12, 0x1F, 0x02, 0x02}, {0x1F, 0x10, 0x1E, 0x01, 0x01, 0x11, 0x0E},
    {0x06, 0x08, 0x10, 0x1E, 0x11, 0x11, 0x0E}, {0x1F, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08},
    {0x0E, 0x11, 0x11, 0x0E, 0x11, 0x11, 0x0E}, {0x0E, 0x11, 0x11, 0x0F, 0x01, 0x02, 0x0C},
};

typedef struct colour {
    unsigned char rgb[3];
} colour;

static colour draw_colour(mt19937 *generator, int low, int high) {
    colour c;
    for (int i = 0; i < 3; i++) c.rgb[i] = (unsigned char)mt19937_between(generator, low, high);
    return c;
}

static void fill(unsigned char *rgb, int left, int top, int width, int height, colour c) {
    for (int y = top; y < top + height; y++)
        for (int x = left; x < left + width; x++)
            for (int i = 0; i < 3; i++) rgb[3 * (y * SIDE + x) + i] = c.rgb[i];
}

static void paint(unsigned char *rgb, const char *code, mt19937 *generator) {
    const colour frame = draw_colour(generator, 0, 255), ground = draw_colour(generator, 176, 255);
    const colour ink = draw_colour(generator, 0, 96);
    const int wide = mt19937_between(generator, 2, 6);
    fill(rgb, 0, 0, SIDE, SIDE, frame);
    fill(rgb, wide, wide, SIDE - 2 * wide, SIDE - 2 * wide, ground);
    const int left = COLUMN * CELL + (CELL - ACROSS * DOT) / 2 + mt19937_between(generator, -2, 2);
    const int top = ROW * CELL + (CELL - DOWN * DOT) / 2 + mt19937_between(generator, -2, 2);
    for (int i = 0; i < CODE_PICTURE_DIGITS; i++)
        for (int y = 0; y < DOWN; y++)
            for (int x = 0; x < ACROSS; x++)
                if (digits[code[i] - '0'][y] >> (ACROSS - 1 - x) & 1)
                    fill(rgb, left + i * CELL + x * DOT, top + y * DOT, DOT, DOT, ink);
}

kakeya_status code_picture(const char code[CODE_PICTURE_DIGITS + 1], uint64_t seed, kakeya_image **out,
                           kakeya_error *error) {
    *out = NULL;
    for (int i = 0; i < CODE_PICTURE_DIGITS; i++)
        if (code[i] < '0' || code[i] > '9')
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "a picture shows a code of %d digits, not '%s'",
                             CODE_PICTURE_DIGITS, code);
    kakeya_image *made = calloc(1, sizeof *made);
    unsigned char *rgb = malloc((size_t)3 * SIDE * SIDE);
    if (!made || !rgb) {
        free(made);
        free(rgb);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a picture");
    }
    mt19937 generator;
    mt19937_seed(&generator, seed);
    paint(rgb, code, &generator);
    *made =
        (kakeya_image){.info = {IMAGE_PNG, SIDE, SIDE, 1}, .width = SIDE, .height = SIDE, .pixels = {SIDE, SIDE, rgb}};
    *out = made;
    return KAKEYA_OK;
}
