/* Matrices repacked in tiles of 16 outputs (int8_forms.h), value by value. */
#ifndef KAKEYA_BACKEND_CPU_TILES_H
#define KAKEYA_BACKEND_CPU_TILES_H

#include <stdint.h>

#include "backend/cpu/int8_forms.h"

int8_shape tiles_shape(const weight *w);
/* Where form_has_factors: those of rows from `row` on, the last stream. */
static inline const float *tiles_factors(const weight *w, int row) {
    return weight_row(w, weight_format_find(w->format)->streams - 1, row);
}
static inline float tiles_times_factor(weight_format format, float value, float factor) {
    return format == WEIGHT_FP4_E4M3_DIV ? value / factor : value * factor;
}
/* Whether tiles of this format need a factor per row beside them, in their matrix's last stream. */
bool tiles_have_factors(const weight *w);
/* Tiles of 16 outputs. */
size_t tiles_in_row(const weight *w);
/* Bytes of the tiles of a matrix. */
size_t tiles_bytes(const weight *w);
/* From 16 outputs to the next. */
size_t tiles_row_bytes(const weight *w);
/* The codes as stored, and the scales, of values [32 * block, 32 * block + 32) of a row of a tiled matrix. */
void tiles_block(const weight *w, int row, size_t block, uint8_t *codes, int8_scale *scale);
/* Values [begin, begin + n) of a row of a tiled matrix, as float32: the bits of the format's own loader. */
void tiles_load(const weight *w, int row, int begin, int n, float *out);

#endif
