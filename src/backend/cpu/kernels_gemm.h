/* A matrix product of many float32 rows (GEMM), for the vector tables: what product[INPUT_EXACT] computes, in another
 * order of additions. It is for rows that are always computed like this, a picture's.
 *
 * Lanes run along outputs, so nothing is summed over lanes. A tile is GEMM_TILE_ROWS rows by GEMM_PANEL outputs, whose
 * sums are all in registers. The weights of a panel's outputs and of one chunk of k are loaded as float32 and
 * transposed into L1. They stay there while the rows of a block, which fit in L2, pass by; the sums of a block of
 * outputs wait in L2, side by side, until all of k is done.
 *
 * Canonical order of one result: k is cut into chunks of GEMM_CHUNK. Within a chunk one fused multiply-add follows the
 * other; the chunks' sums are added in order. Nothing else enters, not even the width of a vector.
 *
 * Bound: the multiply-add rate, GEMM_TILE_ROWS * GEMM_VECTORS multiply-adds for GEMM_TILE_ROWS + GEMM_VECTORS loads. */
#ifndef KAKEYA_BACKEND_CPU_KERNELS_GEMM_H
#define KAKEYA_BACKEND_CPU_KERNELS_GEMM_H

#include "backend/cpu/kernels_matmul.h"

enum {
    GEMM_VECTORS = 2, /* of outputs */
    GEMM_PANEL = GEMM_VECTORS * SIMD_LANES,
    GEMM_TILE_ROWS = SIMD_REGISTERS == 32 ? 12 : 6,
    GEMM_UNROLLED = 4,       /* values of k of one round of the loop */
    GEMM_CHUNK = 192,        /* values of k */
    GEMM_BLOCK_TILES = 42,   /* of rows */
    GEMM_BLOCK_OUTPUTS = 96, /* whole panels */
    GEMM_AHEAD = 2,          /* steps of k that are fetched from L2 early */
};
_Static_assert((int)GEMM_MOST_ROWS % (int)GEMM_TILE_ROWS == 0, "room for whole tiles");
_Static_assert((int)GEMM_CHUNK % (int)GEMM_STEP == 0 && (int)GEMM_STEP % (int)SIMD_LANES == 0, "whole vectors");
_Static_assert((int)GEMM_CHUNK % (int)STEP == 0, "room for whole pairs of vectors");
_Static_assert((int)GEMM_BLOCK_OUTPUTS % (int)GEMM_PANEL == 0, "whole panels");

/* Tiles of rows, each [steps][GEMM_TILE_ROWS][GEMM_STEP]. */
static void gemm_pack(const float *x, size_t ldx, int rows, int k, float *packed) {
    for (int first = 0; first < rows; first += GEMM_TILE_ROWS) {
        for (int i = 0; i < k; i += GEMM_STEP) {
            for (int r = first; r < first + GEMM_TILE_ROWS; r++) {
                UNROLL for (int at = i; at < i + GEMM_STEP; at += SIMD_LANES, packed += SIMD_LANES) {
                    const int n = r >= rows ? 0 : k - at;
                    const float *in = x + (size_t)r * ldx + at;
                    simd_store(packed, n >= SIMD_LANES ? simd_load(in) : n > 0 ? simd_load_first(in, n) : simd_zero());
                }
            }
        }
    }
}

/* Weights of one chunk, [k][GEMM_PANEL]; outputs beyond `outputs` and values beyond n are zero. */
static void gemm_fill_panel(const weight *w, cpu_row_loader load, int first, int outputs, int begin, int n, int k,
                            float *panel) {
    float rows[SIMD_LANES][GEMM_CHUNK];
    for (int v = 0; v < GEMM_VECTORS; v++, panel += SIMD_LANES) {
        for (int o = 0; o < SIMD_LANES; o++) {
            const int given = v * SIMD_LANES + o < outputs ? n : 0;
            if (given) load(w, first + v * SIMD_LANES + o, begin, n, rows[o]);
            memset(rows[o] + given, 0, (size_t)(k - given) * sizeof(float));
        }
        for (int i = 0; i < k; i += SIMD_LANES) {
            simd_f32 square[SIMD_LANES];
            UNROLL for (int o = 0; o < SIMD_LANES; o++) square[o] = simd_load(rows[o] + i);
            simd_transpose(square);
            UNROLL for (int j = 0; j < SIMD_LANES; j++) simd_store(panel + (i + j) * GEMM_PANEL, square[j]);
        }
    }
}

/* The same of bf16 weights where they lie, two values of k at a time. */
static void gemm_fill_panel_bf16(const weight *w, int first, int outputs, int begin, int n, int k, float *panel) {
    const size_t row_bytes = weight_row_bytes(w, 0);
    for (int v = 0; v < GEMM_VECTORS; v++, first += SIMD_LANES, outputs -= SIMD_LANES, panel += SIMD_LANES) {
        const char *rows = (const char *)weight_row(w, 0, outputs > 0 ? first : 0) + (size_t)begin * sizeof(uint16_t);
        for (int i = 0; i < k; i += STEP) {
            simd_f32 square[SIMD_LANES];
            for (int o = 0; o < SIMD_LANES; o++) {
                const char *in = rows + (size_t)o * row_bytes + (size_t)i * sizeof(uint16_t);
                const int given = o < outputs ? n - i : 0;
                square[o] = simd_pairs_to_f32(given >= STEP ? simd_pairs_load(in)
                                              : given > 0   ? simd_pairs_load_first(in, given)
                                                            : simd_pairs_zero());
            }
            simd_transpose(square);
            UNROLL for (int j = 0; j < SIMD_LANES; j++) {
                const simd_pairs pairs = simd_pairs_from_f32(square[j]);
                float *out = panel + (i + 2 * j) * GEMM_PANEL;
                simd_store(out, simd_pairs_even(pairs));
                simd_store(out + GEMM_PANEL, simd_pairs_odd(pairs));
            }
        }
    }
}

/* The sums of a tile over one chunk of k, a whole number of steps; sums [GEMM_TILE_ROWS][GEMM_PANEL] are written, or
 * added to. */
__attribute__((noinline)) static void gemm_tile(const float *x, const float *panel, int k, bool first, float *sums) {
    simd_f32 tile[GEMM_TILE_ROWS][GEMM_VECTORS];
    UNROLL for (int r = 0; r < GEMM_TILE_ROWS; r++) {
        UNROLL for (int v = 0; v < GEMM_VECTORS; v++) tile[r][v] = simd_zero();
    }
    for (int i = 0; i < k; i += GEMM_STEP, x += GEMM_TILE_ROWS * GEMM_STEP) {
        UNROLL for (int r = 0; r < GEMM_TILE_ROWS; r++) PREFETCH_L1(x + (GEMM_AHEAD * GEMM_TILE_ROWS + r) * GEMM_STEP);
        for (int at = 0; at < GEMM_STEP; at += GEMM_UNROLLED) {
            UNROLL for (int j = 0; j < GEMM_UNROLLED; j++, panel += GEMM_PANEL) {
                simd_f32 weights[GEMM_VECTORS];
                UNROLL for (int v = 0; v < GEMM_VECTORS; v++) {
                    weights[v] = simd_in_register(simd_load(panel + v * SIMD_LANES));
                }
                UNROLL for (int r = 0; r < GEMM_TILE_ROWS; r++) {
                    const simd_f32 value = simd_in_register(simd_set1(x[r * GEMM_STEP + at + j]));
                    UNROLL for (int v = 0; v < GEMM_VECTORS; v++) tile[r][v] = simd_fma(value, weights[v], tile[r][v]);
                }
            }
        }
    }
    UNROLL for (int r = 0; r < GEMM_TILE_ROWS; r++) {
        UNROLL for (int v = 0; v < GEMM_VECTORS; v++, sums += SIMD_LANES) {
            simd_store(sums, first ? tile[r][v] : simd_add(simd_load(sums), tile[r][v]));
        }
    }
}

/* Values [begin, begin + n) of a row of weights, which lie together in formats without streams beside, to L2. */
static void gemm_fetch(const weight *w, int row, int begin, int n) {
    const size_t bytes = weight_row_bytes(w, 0), k = (size_t)w->in;
    const char *values = (const char *)weight_row(w, 0, row) + bytes * (size_t)begin / k;
    for (size_t at = 0; at < bytes * (size_t)n / k; at += 64) PREFETCH_L2(values + at);
}

/* A block of rows by one of outputs [first, first + outputs). */
static void gemm_block(const float *packed, int rows, const weight *w, cpu_row_loader load, int first, int outputs,
                       float *y, size_t ldy) {
    alignas(64) float panel[GEMM_CHUNK * GEMM_PANEL];
    alignas(64) float sums[GEMM_BLOCK_OUTPUTS / GEMM_PANEL][GEMM_BLOCK_TILES * GEMM_TILE_ROWS][GEMM_PANEL];
    const int whole = (int)gemm_row_floats(w->in);
    const int tiles = (rows + GEMM_TILE_ROWS - 1) / GEMM_TILE_ROWS;
    for (int begin = 0; begin < whole; begin += GEMM_CHUNK) {
        const int k = whole - begin < GEMM_CHUNK ? whole - begin : GEMM_CHUNK;
        const int n = w->in - begin < k ? w->in - begin : k;
        const bool last = begin + k == whole;
        for (int o = 0; o < outputs; o += GEMM_PANEL) {
            if (w->format == WEIGHT_BF16)
                gemm_fill_panel_bf16(w, first + o, outputs - o, begin, n, k, panel);
            else
                gemm_fill_panel(w, load, first + o, outputs - o, begin, n, k, panel);
            /* While the rows pass by, the next panel's weights are fetched, and at the end where results go. */
            const bool wraps = o + GEMM_PANEL >= outputs;
            const int ahead = first + (wraps && !last ? 0 : o + GEMM_PANEL);
            const int ahead_k = !wraps ? begin : last ? 0 : begin + k;
            const int ahead_n = w->in - ahead_k < GEMM_CHUNK ? w->in - ahead_k : GEMM_CHUNK;
            for (int t = 0; t < tiles; t++) {
                for (int i = t; !w->tiled && i < GEMM_PANEL && ahead + i < w->out; i += tiles)
                    gemm_fetch(w, ahead + i, ahead_k, ahead_n);
                for (int r = t * GEMM_TILE_ROWS; last && r < (t + 1) * GEMM_TILE_ROWS && r < rows; r++) {
                    const float *out = y + (size_t)r * ldy + (first + o);
                    for (int i = 0; i < GEMM_PANEL && o + i < outputs; i += 16) __builtin_prefetch(out + i, 1, 2);
                }
                gemm_tile(packed + ((size_t)t * (size_t)whole + (size_t)begin) * GEMM_TILE_ROWS, panel, k, begin == 0,
                          sums[o / GEMM_PANEL][t * GEMM_TILE_ROWS]);
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        float *out = y + (size_t)r * ldy + first;
        for (int o = 0; o < outputs; o += SIMD_LANES) {
            const simd_f32 done = simd_load(sums[o / GEMM_PANEL][r] + o % GEMM_PANEL);
            if (o + SIMD_LANES <= outputs)
                simd_store(out + o, done);
            else
                simd_store_first(out + o, outputs - o, done);
        }
    }
}

static void gemm(const float *packed, int rows, const weight *w, cpu_row_loader load, float *y, size_t ldy) {
    const int most = GEMM_BLOCK_TILES * GEMM_TILE_ROWS;
    for (int r = 0; r < rows; r += most) {
        for (int o = 0; o < w->out; o += GEMM_BLOCK_OUTPUTS) {
            gemm_block(packed + (size_t)r * gemm_row_floats(w->in), rows - r < most ? rows - r : most, w, load, o,
                       w->out - o < GEMM_BLOCK_OUTPUTS ? w->out - o : GEMM_BLOCK_OUTPUTS, y + (size_t)r * ldy, ldy);
        }
    }
}

#endif
