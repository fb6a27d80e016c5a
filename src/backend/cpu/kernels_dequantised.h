/* Products with block formats for the vector tables: tiles of weights become float32 and are multiplied as F32 weights
 * are. The order of additions is therefore that of F32 weights (kernels_matmul.h), whatever the format, and the result
 * has the bits of the product with the dequantised matrix. A tile is dequantised once for all rows of a call. */
#ifndef KAKEYA_BACKEND_CPU_KERNELS_DEQUANTISED_H
#define KAKEYA_BACKEND_CPU_KERNELS_DEQUANTISED_H

#include "backend/cpu/int8.h"
#include "backend/cpu/kernels_matmul.h"
#include "backend/groups.h"

enum { DEQUANTISED_OUTPUTS = 24 }; /* of a tile: a multiple of all tile_outputs but the single one */

/* One chunk of k of R rows against the tile's outputs; y is written or added to. */
static void multiply_tile(int R, const unsigned char *x, size_t x_row_bytes, const float *tile_weights,
                          size_t w_row_bytes, int outputs, int steps, bool first, float *y, size_t ldy) {
    alignas(64) float results[DEQUANTISED_OUTPUTS * ROOM(FEW_ROWS)];
    tile_call call = {
        .x = x,
        .x_row_bytes = x_row_bytes,
        .x_step_bytes = x_step_bytes(PRODUCT_F32),
        .w_row_bytes = w_row_bytes,
        .chunks = 1,
        .steps_per_chunk = steps,
        .steps = steps,
        .tail = STEP,
        .first = true,
        .results = results,
    };
    for (int o = 0, width; o < outputs; o += call.tiles * width) {
        width = o + tile_outputs[R] <= outputs ? tile_outputs[R] : 1;
        call.tiles = (outputs - o) / width;
        call.w = (const unsigned char *)tile_weights + (size_t)o * w_row_bytes;
        tile_functions[PRODUCT_F32][R][width > 1](&call);
        for (int t = 0; t < call.tiles; t++) {
            const float *result = results + t * ROOM(R * width);
            for (int r = 0; r < R; r++) {
                float *to = y + (size_t)r * ldy + (size_t)(o + t * width);
                for (int i = 0; i < width; i++) to[i] = first ? result[r * width + i] : to[i] + result[r * width + i];
            }
        }
    }
}

static void multiply_dequantised(cpu_row_loader load, const void *packed, int rows, const weight *w, float *y,
                                 size_t ldy) {
    alignas(64) float tile_weights[DEQUANTISED_OUTPUTS][MAX_CHUNK_STEPS * STEP];
    const k_chunks cut = chunks_of(PRODUCT_F32, w->in);
    const size_t x_row_bytes = pack_row_bytes(PACK_F32, w->in);
    for (int o = 0; o < w->out; o += DEQUANTISED_OUTPUTS) {
        int outputs = w->out - o < DEQUANTISED_OUTPUTS ? w->out - o : DEQUANTISED_OUTPUTS;
        for (int chunk = 0; chunk < cut.chunks; chunk++) {
            int begin = chunk * cut.steps_per_chunk;
            int steps = cut.steps - begin < cut.steps_per_chunk ? cut.steps - begin : cut.steps_per_chunk;
            int n = w->in - begin * STEP < steps * STEP ? w->in - begin * STEP : steps * STEP;
            for (int i = 0; i < outputs; i++) {
                load(w, o + i, begin * STEP, n, tile_weights[i]);
                memset(tile_weights[i] + n, 0, (size_t)(steps * STEP - n) * sizeof(float));
            }
            const unsigned char *x = (const unsigned char *)packed + (size_t)begin * x_step_bytes(PRODUCT_F32);
            for (int r = 0; r < rows; r += FEW_ROWS) {
                multiply_tile(rows - r < FEW_ROWS ? rows - r : FEW_ROWS, x + (size_t)r * x_row_bytes, x_row_bytes,
                              tile_weights[0], sizeof tile_weights[0], outputs, steps, chunk == 0,
                              y + (size_t)r * ldy + (size_t)o, ldy);
            }
        }
    }
}

#define DEFINE_BLOCK_FORMAT(NAME, name, values, bytes)                                                                 \
    static void load_weights_##name(const weight *w, int index, int begin, int n, float *out) {                        \
        const void *row[WEIGHT_STREAMS];                                                                               \
        weight_row_streams(w, index, row);                                                                             \
        row_##name(w, row, begin, n, out);                                                                             \
    }                                                                                                                  \
    static void multiply_##name(const void *packed, int rows, const weight *w, float *y, size_t ldy) {                 \
        multiply_dequantised(load_weights_##name, packed, rows, w, y, ldy);                                            \
    }
BLOCK_FORMATS(DEFINE_BLOCK_FORMAT)
GROUP_FORMATS(DEFINE_BLOCK_FORMAT)
DEFINE_INT8

#define BLOCK_PRODUCTS(name, ...)                                                                                      \
    {                                                                                                                  \
        .product = {[INPUT_EXACT] = {PACKING_F32, multiply_##name},                                                    \
                    [INPUT_BF16] = {PACKING_F32_ROUNDED, multiply_##name},                                             \
                    __VA_ARGS__},                                                                                      \
        .load = load_weights_##name                                                                                    \
    }
#define BLOCK_FORMAT_ENTRY(NAME, name, values, bytes) [WEIGHT_##NAME] = BLOCK_PRODUCTS(name, INT8_PRODUCTS(name)),
#define GROUP_INT8_ENTRY(NAME, name, bits, kind)      [WEIGHT_##NAME] = BLOCK_PRODUCTS(name, INT8_PRODUCTS(name)),
#define GROUP_OTHER_ENTRY(NAME, name, bits, kind)                                                                      \
    [WEIGHT_##NAME] = BLOCK_PRODUCTS(name, EXACT_INSTEAD_OF_INT8(PACKING_F32, multiply_##name)),

#endif
