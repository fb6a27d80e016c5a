/* Products with fine rows, which are rows of two parts (int8.h). */
#include <stdalign.h>

#include "backend/cpu/int8.h"

/* Results of both parts that are added while they are in the second cache, as the weights of the outputs are. */
enum { FINE_ROWS = 48, FINE_OUTPUTS = 192 };

void int8_multiply_fine(int8_multiply multiply, const void *packed, int rows, const weight *w, float *y, size_t ldy) {
    alignas(64) float parts[2 * FINE_ROWS * FINE_OUTPUTS];
    for (int o = 0, outputs; o < w->out; o += outputs) {
        outputs = w->out - o < FINE_OUTPUTS ? w->out - o : FINE_OUTPUTS;
        weight some = weight_rows(w, o, outputs);
        for (int r = 0, n; r < rows; r += n) {
            n = rows - r < FINE_ROWS ? rows - r : FINE_ROWS;
            multiply((const unsigned char *)packed + (size_t)r * int8_fine_row_bytes(w->in), 2 * n, &some, parts,
                     (size_t)outputs);
            for (int i = 0; i < n; i++) {
                const float *first = parts + (size_t)(2 * i * outputs), *second = first + outputs;
                float *to = y + (size_t)(r + i) * ldy + (size_t)o;
                for (int j = 0; j < outputs; j++) to[j] = first[j] + second[j];
            }
        }
    }
}
