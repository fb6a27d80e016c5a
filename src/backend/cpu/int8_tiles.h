/* The int8 products of the vector instruction sets, written once against a vocabulary of 16 lanes. Weights of 16
 * outputs are turned from rows of blocks into tiles, a chunk of blocks at a time: piece p of a tile holds codes 4 p to
 * 4 p + 3 of all 16 outputs side by side, so a lane is an output and nothing is summed over lanes. A tile is made once
 * for all rows of a call and stays in L1 while they pass by. */
#ifndef KAKEYA_BACKEND_CPU_INT8_TILES_H
#define KAKEYA_BACKEND_CPU_INT8_TILES_H

#include <stdalign.h>

#include "backend/cpu/int8_codes.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* TILE_ROWS, whose sums fit into registers, is the instruction set's. */
enum { TILE_OUTPUTS = 16, TILE_PIECES = 8, CHUNK_BLOCKS = 16 };

typedef struct int8_tile {
    alignas(64) uint8_t codes[TILE_PIECES][TILE_OUTPUTS * 4];
    float d[TILE_OUTPUTS], m[TILE_OUTPUTS];
    int32_t s0[TILE_OUTPUTS], s1[TILE_OUTPUTS];
} int8_tile;

typedef void (*codes_of)(const unsigned char *block, int j, uint8_t *u, int8_scale *s);

/* The next 16 outputs' bytes at the same place. */
BLOCKS_INLINE void fetch_ahead(const unsigned char *from, size_t row_bytes, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64)
        _mm_prefetch((const char *)from + TILE_OUTPUTS * row_bytes + at, _MM_HINT_T1);
}

/* Blocks [first, first + n) of 16 rows of weights; of rows that are not there the last one is taken. */
BLOCKS_INLINE void make_tiles(const int8_form *form, codes_of codes, const unsigned char *rows, size_t row_bytes,
                              int outputs, int outputs_ahead, int first, int n, int8_tile *tiles) {
    const int inside = form->values / INT8_BLOCK;
    alignas(64) uint8_t u[TILE_OUTPUTS][INT8_BLOCK];
    for (int b = 0; b < n; b++) {
        int block = (first + b) / inside, j = (first + b) % inside;
        int8_tile *tile = &tiles[b];
        for (int o = 0; o < TILE_OUTPUTS; o++) {
            const unsigned char *row = rows + (size_t)(o < outputs ? o : outputs - 1) * row_bytes;
            int8_scale s = {0};
            codes(row + (size_t)block * (size_t)form->bytes, j, u[o], &s);
            tile->d[o] = s.d;
            if (form->minimum) tile->m[o] = s.m;
            if (form->pair) {
                tile->s0[o] = s.s[0];
                tile->s1[o] = s.s[1];
            }
        }
        transpose_codes(u[0], tile->codes[0]);
    }
    if (outputs_ahead < 2 * TILE_OUTPUTS) return;
    size_t begin = (size_t)(first / inside) * (size_t)form->bytes;
    size_t end = (size_t)((first + n - 1) / inside + 1) * (size_t)form->bytes;
    for (int o = 0; o < TILE_OUTPUTS; o++) fetch_ahead(rows + (size_t)o * row_bytes + begin, row_bytes, end - begin);
}

/* R rows against a chunk of tiles; sums [R][16] go on. */
BLOCKS_INLINE void multiply_chunk(const int8_form *form, const int R, const unsigned char *x, size_t row_bytes,
                                  size_t blocks, int first, int n, const int8_tile *tiles, float *sums) {
    lanes_f32 acc[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++) acc[r] = lanes_load(sums + r * TILE_OUTPUTS);
    for (int b = 0; b < n; b++) {
        const int8_tile *tile = &tiles[b];
        const size_t at = (size_t)(first + b);
        lanes_i32 low[TILE_ROWS], high[TILE_ROWS];
        UNROLL for (int r = 0; r < R; r++) low[r] = high[r] = lanes_zero();
        UNROLL for (int p = 0; p < TILE_PIECES / 2; p++) {
            lanes_codes w0 = lanes_load_codes(tile->codes[p]), w1 = lanes_load_codes(tile->codes[p + 4]);
            UNROLL for (int r = 0; r < R; r++) {
                const unsigned char *codes = x + (size_t)r * row_bytes + at * INT8_BLOCK;
                low[r] = lanes_dot(low[r], w0, codes + 4 * p, form->largest > 127);
                high[r] = lanes_dot(high[r], w1, codes + 16 + 4 * p, form->largest > 127);
            }
        }
        UNROLL for (int r = 0; r < R; r++) {
            const unsigned char *row = x + (size_t)r * row_bytes;
            float sx;
            int16_t halves[2];
            memcpy(&sx, row + int8_scales_at(blocks) + at * sizeof sx, sizeof sx);
            memcpy(halves, row + int8_sums_at(blocks) + at * sizeof halves, sizeof halves);
            lanes_i32 sum;
            if (form->pair) {
                lanes_i32 first_half = lanes_sub(low[r], lanes_set(form->offset * halves[0]));
                lanes_i32 second_half = lanes_sub(high[r], lanes_set(form->offset * halves[1]));
                sum = lanes_add(lanes_mul(first_half, tile->s0), lanes_mul(second_half, tile->s1));
            } else {
                sum = lanes_add(low[r], high[r]);
                if (form->offset) sum = lanes_sub(sum, lanes_set(form->offset * (halves[0] + halves[1])));
            }
            acc[r] = lanes_fma_scaled(tile->d, sx, lanes_to_f32(sum), acc[r]);
            if (form->minimum)
                acc[r] = lanes_fma_scaled(tile->m, sx, lanes_to_f32(lanes_set(halves[0] + halves[1])), acc[r]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) lanes_store(sums + r * TILE_OUTPUTS, acc[r]);
}

BLOCKS_INLINE void multiply_rows(const int8_form *form, const int R, const unsigned char *x, size_t row_bytes,
                                 size_t blocks, int first, int n, const int8_tile *tiles, int outputs, float *y,
                                 size_t ldy) {
    alignas(64) float sums[TILE_ROWS * TILE_OUTPUTS] = {0};
    for (int r = 0; r < R && first; r++)
        memcpy(sums + r * TILE_OUTPUTS, y + (size_t)r * ldy, (size_t)outputs * sizeof *y);
    multiply_chunk(form, R, x, row_bytes, blocks, first, n, tiles, sums);
    for (int r = 0; r < R; r++) memcpy(y + (size_t)r * ldy, sums + r * TILE_OUTPUTS, (size_t)outputs * sizeof *y);
}

BLOCKS_INLINE void multiply(const int8_form *form, codes_of codes, const void *packed, int rows, const weight *w,
                            float *y, size_t ldy) {
    int8_tile tiles[CHUNK_BLOCKS];
    const size_t blocks = int8_blocks(w->in), row_bytes = int8_row_bytes(w->in), w_row_bytes = weight_row_bytes(w, 0);
    const unsigned char *weights = weight_row(w, 0, 0);
    for (int o = 0; o < w->out; o += TILE_OUTPUTS) {
        int outputs = w->out - o < TILE_OUTPUTS ? w->out - o : TILE_OUTPUTS;
        for (int first = 0; first < (int)blocks; first += CHUNK_BLOCKS) {
            int n = (int)blocks - first < CHUNK_BLOCKS ? (int)blocks - first : CHUNK_BLOCKS;
            make_tiles(form, codes, weights + (size_t)o * w_row_bytes, w_row_bytes, outputs, w->out - o, first, n,
                       tiles);
            for (int r = 0, together; r < rows; r += together) {
                const unsigned char *x = (const unsigned char *)packed + (size_t)r * row_bytes;
                float *to = y + (size_t)r * ldy + (size_t)o;
                together = TILE_ROWS;
                while (together > rows - r) together /= 2;
                if (together == 8)
                    multiply_rows(form, TILE_ROWS, x, row_bytes, blocks, first, n, tiles, outputs, to, ldy);
                else if (together == 4)
                    multiply_rows(form, TILE_ROWS < 4 ? 1 : 4, x, row_bytes, blocks, first, n, tiles, outputs, to, ldy);
                else if (together == 2)
                    multiply_rows(form, 2, x, row_bytes, blocks, first, n, tiles, outputs, to, ldy);
                else
                    multiply_rows(form, 1, x, row_bytes, blocks, first, n, tiles, outputs, to, ldy);
            }
        }
    }
}

#define DEFINE_MULTIPLY(NAME, name, values, bytes)                                                                     \
    static void multiply_##name(const void *packed, int rows, const weight *w, float *y, size_t ldy) {                 \
        multiply(&form_##name, codes_##name, packed, rows, w, y, ldy);                                                 \
    }
INT8_BLOCK_FORMATS(DEFINE_MULTIPLY)

static void pack(const float *x, size_t ldx, int rows, int k, void *packed) { int8_pack_rows(x, ldx, rows, k, packed); }

#define INT8_ENTRY(NAME, name, values, bytes) [WEIGHT_##NAME] = multiply_##name,
#define INT8_TABLE                                                                                                     \
    {                                                                                                                  \
        .pack = pack, .multiply = { INT8_BLOCK_FORMATS(INT8_ENTRY) }                                                   \
    }

#endif
