/* A picture of a code: a frame around a light ground, and four digits below in a dark ink. tools/train_demo_tower.py
 * draws the same ones to train the demo's tower. */
#ifndef KAKEYA_MEASURE_CODE_PICTURE_H
#define KAKEYA_MEASURE_CODE_PICTURE_H

#include "kakeya.h"

enum { CODE_PICTURE_DIGITS = 4 };

/* Colours, the frame's width and the exact place are drawn by the seed. *out is freed by kakeya_image_close. */
kakeya_status code_picture(const char code[CODE_PICTURE_DIGITS + 1], uint64_t seed, kakeya_image **out,
                           kakeya_error *error);

#endif
