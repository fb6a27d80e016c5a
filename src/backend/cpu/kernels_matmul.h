/* The matrix product of the vector tables, written once against a simd_*.h vocabulary and compiled per instruction set.
 *
 * Weights are used as they lie, row by row along k, so the lanes of every accumulator run along k. Work goes in steps
 * of 2 * SIMD_LANES values of k: bf16 weights of one vector become two float32 vectors (even and odd k) by a shift and
 * a mask, and packed activations are stored deinterleaved to match; f32 and f16 weights are two vectors in natural
 * order. Where the CPU multiplies bf16 pairs itself (SIMD_DOT_PAIRS), a step is one instruction on two vectors as they
 * lie.
 *
 * Canonical order of one result (row r, output o): one accumulator vector; for every step first the even (lower), then
 * the odd (upper) vector is multiplied and added; at the end the lanes are summed by halving. Nothing else enters:
 * tiles of any shape, blocks of k (whose accumulators are put aside as whole vectors) and pieces of outputs change
 * which results are computed together, never how.
 *
 * A tile is R rows by O outputs, held in registers. The expansion of a weight costs two operations and serves R rows,
 * so the arithmetic bound is R / (R + 1) of the multiply-add rate, and for few rows the bound is the memory bandwidth.
 * Block sizes: the activations of a tile are copied into an L1-sized buffer in the order of use (rows at a power-of-two
 * distance would fall on the same cache sets) and serve all outputs of a block; the weights of a block of outputs stay
 * in L2 for all row tiles. */
#ifndef KAKEYA_BACKEND_CPU_KERNELS_MATMUL_H
#define KAKEYA_BACKEND_CPU_KERNELS_MATMUL_H

#include <stdalign.h>
#include <string.h>

#include "backend/cpu/kernels_private.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* How weights meet activations. */
typedef enum product { PRODUCT_F32, PRODUCT_F16, PRODUCT_BF16, PRODUCT_PAIRS, PRODUCT_COUNT } product;

enum {
    STEP = 2 * SIMD_LANES, /* values of k */
    MAX_TILE_ROWS = SIMD_REGISTERS == 32 ? 12 : 6,
    MAX_TILE_OUTPUTS = 8,
    MAX_TILE_SUMS = SIMD_REGISTERS * 3 / 4, /* rows * outputs of a tile */
    X_BLOCK_BYTES = 24 * 1024,              /* activations of a tile in L1 */
    WEIGHT_BLOCK_BYTES = 384 * 1024,        /* weights of a block of outputs in L2 */
    MAX_BLOCK_OUTPUTS = 128,
    MAX_SET_ASIDE = 768, /* accumulators put aside between blocks of k */
};

static product product_of(dtype w, bool round_to_bf16) {
#ifdef SIMD_DOT_PAIRS
    if (w == DTYPE_BF16 && round_to_bf16) return PRODUCT_PAIRS;
#endif
    (void)round_to_bf16;
    return w == DTYPE_F32 ? PRODUCT_F32 : w == DTYPE_F16 ? PRODUCT_F16 : PRODUCT_BF16;
}

/* Bytes of one step of one row of activations, and of weights. */
SIMD_INLINE size_t x_step_bytes(product kind) {
    return STEP * (kind == PRODUCT_PAIRS ? sizeof(uint16_t) : sizeof(float));
}
SIMD_INLINE size_t w_step_bytes(product kind) {
    return STEP * (kind == PRODUCT_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* --- packing ---------------------------------------------------------------------------------------------------- */

static size_t pack_row_bytes(dtype w, bool round_to_bf16, int k) {
    size_t bytes = ((size_t)k + STEP - 1) / STEP * x_step_bytes(product_of(w, round_to_bf16));
    return (bytes + 63) / 64 * 64;
}

static void pack_rows(dtype w, bool round_to_bf16, const float *x, size_t ldx, int rows, int k, void *packed) {
    product kind = product_of(w, round_to_bf16);
    size_t step_bytes = x_step_bytes(kind), row_bytes = pack_row_bytes(w, round_to_bf16, k);
    for (int r = 0; r < rows; r++) {
        const float *in = x + (size_t)r * ldx;
        unsigned char *out = (unsigned char *)packed + (size_t)r * row_bytes;
        unsigned char *end = out + row_bytes;
        for (int i = 0; i < k; i += STEP, out += step_bytes) {
            int n = k - i;
            simd_f32 a = n >= SIMD_LANES ? simd_load(in + i) : simd_load_first(in + i, n);
            simd_f32 b = n >= STEP         ? simd_load(in + i + SIMD_LANES)
                         : n <= SIMD_LANES ? simd_zero()
                                           : simd_load_first(in + i + SIMD_LANES, n - SIMD_LANES);
            if (round_to_bf16) {
                a = simd_round_to_bf16(a);
                b = simd_round_to_bf16(b);
            }
            if (kind == PRODUCT_PAIRS) {
                simd_store_16(DTYPE_BF16, out, a);
                simd_store_16(DTYPE_BF16, out + step_bytes / 2, b);
                continue;
            }
            if (kind == PRODUCT_BF16) simd_deinterleave(a, b, &a, &b);
            simd_store(out, a);
            simd_store(out + step_bytes / 2, b);
        }
        memset(out, 0, (size_t)(end - out));
    }
}

/* --- tiles ------------------------------------------------------------------------------------------------------ */

typedef struct tile_call {
    const unsigned char *x; /* [steps, and one more for the tail][R][x_step_bytes] */
    const unsigned char *w; /* first weight row, at the first k of this block of k */
    size_t w_row_bytes;
    size_t next_tile; /* bytes from here to the weights of the next tile, which are fetched ahead; 0 at the end */
    int steps, tail;  /* whole steps, and values of k behind them (fewer than STEP) */
    bool first, last; /* this block holds the beginning, the end of k */
    simd_f32 *aside;  /* [R * O] accumulators between blocks of k */
    float *y;
    size_t ldy;
} tile_call;

typedef void (*tile_function)(const tile_call *call);

/* Weights of one step as the two factors a, b (as one, a, for pairs). n: values present, STEP or fewer. */
SIMD_INLINE void load_weights(product kind, const unsigned char *w, int n, simd_f32 *a, simd_f32 *b) {
    if (kind == PRODUCT_BF16) {
        simd_pairs pairs = n == STEP ? simd_pairs_load(w) : simd_pairs_load_first(w, n);
        *a = simd_pairs_even(pairs);
        *b = simd_pairs_odd(pairs);
        return;
    }
    int n_a = n < SIMD_LANES ? n : SIMD_LANES, n_b = n - n_a;
    const unsigned char *upper = w + w_step_bytes(kind) / 2;
    if (kind == PRODUCT_F32) {
        *a = n == STEP ? simd_load(w) : simd_load_first(w, n_a);
        *b = n == STEP ? simd_load(upper) : n_b ? simd_load_first(upper, n_b) : simd_zero();
    } else {
        *a = n == STEP ? simd_load_16(DTYPE_F16, w) : simd_load_16_first(DTYPE_F16, w, n_a);
        *b = n == STEP ? simd_load_16(DTYPE_F16, upper) : n_b ? simd_load_16_first(DTYPE_F16, upper, n_b) : simd_zero();
    }
}

SIMD_INLINE void multiply_step(product kind, const int R, const int O, const unsigned char *x, const unsigned char *w,
                               size_t w_row_bytes, int n, simd_f32 *sums) {
    const size_t x_bytes = x_step_bytes(kind);
#ifdef SIMD_DOT_PAIRS
    if (kind == PRODUCT_PAIRS) {
        simd_pairs weights[MAX_TILE_OUTPUTS];
        UNROLL for (int o = 0; o < O; o++) {
            const unsigned char *row = w + (size_t)o * w_row_bytes;
            weights[o] = n == STEP ? simd_pairs_load(row) : simd_pairs_load_first(row, n);
        }
        UNROLL for (int r = 0; r < R; r++) {
            simd_pairs values = simd_pairs_load(x + (size_t)r * x_bytes);
            UNROLL for (int o = 0; o < O; o++) {
                sums[r * O + o] = SIMD_DOT_PAIRS(sums[r * O + o], values, weights[o]);
            }
        }
        return;
    }
#endif
    simd_f32 a[MAX_TILE_OUTPUTS], b[MAX_TILE_OUTPUTS];
    UNROLL for (int o = 0; o < O; o++) load_weights(kind, w + (size_t)o * w_row_bytes, n, &a[o], &b[o]);
    UNROLL for (int r = 0; r < R; r++) {
        simd_f32 value = simd_load(x + (size_t)r * x_bytes); __asm__("" : "+v"(value));
        UNROLL for (int o = 0; o < O; o++) sums[r * O + o] = simd_fma(value, a[o], sums[r * O + o]);
    }
    UNROLL for (int r = 0; r < R; r++) {
        simd_f32 value = simd_load(x + (size_t)r * x_bytes + x_bytes / 2); __asm__("" : "+v"(value));
        UNROLL for (int o = 0; o < O; o++) sums[r * O + o] = simd_fma(value, b[o], sums[r * O + o]);
    }
}

/* out[i] = sum over the lanes of sums[i]. */
SIMD_INLINE void sum_lanes(const simd_f32 *sums, const int count, float *out) {
    simd_f32 group[SIMD_LANES];
    int done = 0;
    UNROLL for (int g = 0; g < MAX_TILE_SUMS / SIMD_LANES + 1; g++) {
        if (count - done > SIMD_LANES / 2) {
            UNROLL for (int i = 0; i < SIMD_LANES; i++) group[i] = done + i < count ? sums[done + i] : simd_zero();
            simd_sum_full(group, out + done);
            done += SIMD_LANES;
        }
    }
    if (count - done > 2) {
        UNROLL for (int i = 0; i < SIMD_LANES / 2; i++) group[i] = done + i < count ? sums[done + i] : simd_zero();
        simd_sum_half(group, out + done);
        done += SIMD_LANES / 2;
    }
    UNROLL for (int i = 0; i < 2; i++) {
        if (done + i < count) out[done + i] = simd_sum(sums[done + i]);
    }
}

SIMD_INLINE void tile(product kind, const int R, const int O, const tile_call *call) {
    simd_f32 sums[MAX_TILE_SUMS];
    UNROLL for (int i = 0; i < R * O; i++) sums[i] = call->first ? simd_zero() : call->aside[i];
    const unsigned char *x = call->x, *w = call->w;
    const size_t w_row_bytes = call->w_row_bytes, next_tile = call->next_tile;
    for (int s = 0; s < call->steps; s++) {
        UNROLL for (int o = 0; o < O; o++)
            _mm_prefetch((const char *)w + next_tile + (size_t)o * w_row_bytes, _MM_HINT_T0);
        multiply_step(kind, R, O, x, w, w_row_bytes, STEP, sums);
        x += (size_t)R * x_step_bytes(kind);
        w += w_step_bytes(kind);
    }
    if (call->tail) multiply_step(kind, R, O, x, w, w_row_bytes, call->tail, sums);
    if (!call->last) {
        UNROLL for (int i = 0; i < R * O; i++) call->aside[i] = sums[i];
        return;
    }
    float results[MAX_TILE_SUMS + SIMD_LANES];
    sum_lanes(sums, R * O, results);
    UNROLL for (int r = 0; r < R; r++)
        memcpy(call->y + (size_t)r * call->ldy, results + r * O, (size_t)O * sizeof *results);
}

#define TILE_NAME(kind, R, O) tile_##kind##_##R##x##O
#define DEFINE_TILE(kind, R, O)                                                                                        \
    static void TILE_NAME(kind, R, O)(const tile_call *call) { tile(PRODUCT_##kind, R, O, call); }

/* Outputs of the tile for each number of rows, and the tiles: TILES(X) calls X(R, O). */
#if defined(__AVX512F__)
#define TILES(X, kind)                                                                                                 \
    X(kind, 1, 8)                                                                                                      \
    X(kind, 2, 8)                                                                                                      \
    X(kind, 3, 8)                                                                                                      \
    X(kind, 4, 6)                                                                                                      \
    X(kind, 5, 4)                                                                                                      \
    X(kind, 6, 4) X(kind, 7, 3) X(kind, 8, 3) X(kind, 9, 2) X(kind, 10, 2) X(kind, 11, 2) X(kind, 12, 2) X(kind, 1, 1) \
        X(kind, 2, 1) X(kind, 3, 1) X(kind, 4, 1) X(kind, 5, 1) X(kind, 6, 1) X(kind, 7, 1) X(kind, 8, 1)              \
            X(kind, 9, 1) X(kind, 10, 1) X(kind, 11, 1) X(kind, 12, 1)
static const int tile_outputs[MAX_TILE_ROWS + 1] = {0, 8, 8, 8, 6, 4, 4, 3, 3, 2, 2, 2, 2};
#else
#define TILES(X, kind)                                                                                                 \
    X(kind, 1, 8)                                                                                                      \
    X(kind, 2, 4)                                                                                                      \
    X(kind, 3, 2)                                                                                                      \
    X(kind, 4, 2)                                                                                                      \
    X(kind, 5, 2) X(kind, 6, 2) X(kind, 1, 1) X(kind, 2, 1) X(kind, 3, 1) X(kind, 4, 1) X(kind, 5, 1) X(kind, 6, 1)
static const int tile_outputs[MAX_TILE_ROWS + 1] = {0, 8, 4, 2, 2, 2, 2};
#endif

TILES(DEFINE_TILE, F32)
TILES(DEFINE_TILE, F16)
TILES(DEFINE_TILE, BF16)
#ifdef SIMD_DOT_PAIRS
TILES(DEFINE_TILE, PAIRS)
#endif

/* [product][rows][full width (1) or a single output (0)] */
#define TILE_ENTRY(kind, R, O) [PRODUCT_##kind][R][(O) > 1] = TILE_NAME(kind, R, O),
static const tile_function tile_functions[PRODUCT_COUNT][MAX_TILE_ROWS + 1][2] = {
    TILES(TILE_ENTRY, F32) TILES(TILE_ENTRY, F16) TILES(TILE_ENTRY, BF16)
#ifdef SIMD_DOT_PAIRS
        TILES(TILE_ENTRY, PAIRS)
#endif
};

/* --- blocks ----------------------------------------------------------------------------------------------------- */

/* [R][steps] to [steps][R]. */
static void interleave_rows(const unsigned char *x, size_t x_row_bytes, int R, int steps, size_t x_bytes,
                            unsigned char *out) {
    for (int r = 0; r < R; r++) {
        const unsigned char *row = x + (size_t)r * x_row_bytes;
        unsigned char *to = out + (size_t)r * x_bytes;
        for (int s = 0; s < steps; s++, row += x_bytes, to += (size_t)R * x_bytes) {
            for (size_t c = 0; c < x_bytes; c += sizeof(simd_f32)) simd_store(to + c, simd_load(row + c));
        }
    }
}

/* Rows [0, R) of x against weight rows [0, outputs), all of k. */
static void multiply_row_tile(product kind, int R, const unsigned char *x, size_t x_row_bytes, int k,
                              const unsigned char *w, size_t w_row_bytes, int outputs, float *y, size_t ldy) {
    alignas(64) unsigned char x_block[X_BLOCK_BYTES];
    simd_f32 aside[MAX_SET_ASIDE];
    const size_t x_bytes = x_step_bytes(kind), w_bytes = w_step_bytes(kind);
    const int width = tile_outputs[R];

    int steps = (k + STEP - 1) / STEP;
    int most = (int)(X_BLOCK_BYTES / ((size_t)R * x_bytes));
    int blocks = R == 1 ? 1 : (steps + most - 1) / most; /* one row needs no reordering: it is read where it lies */
    if (blocks < 1) blocks = 1;
    for (int block = 0; block < blocks; block++) {
        int begin = (int)((long)steps * block / blocks), end = (int)((long)steps * (block + 1) / blocks);
        tile_call call = {
            .x = x,
            .w_row_bytes = w_row_bytes,
            .steps = end - begin,
            .first = block == 0,
            .last = block == blocks - 1,
            .ldy = ldy,
        };
        if (call.last && k % STEP) {
            call.steps--;
            call.tail = k % STEP;
        }
        if (R > 1) {
            interleave_rows(x + (size_t)begin * x_bytes, x_row_bytes, R, end - begin, x_bytes, x_block);
            call.x = x_block;
        }
        for (int o = 0; o < outputs;) {
            int n = o + width <= outputs ? width : 1;
            call.w = w + (size_t)o * w_row_bytes + (size_t)begin * w_bytes;
            call.next_tile = o + 2 * n <= outputs ? (size_t)n * w_row_bytes : 0;
            call.aside = aside + o * R;
            call.y = y + o;
            tile_functions[kind][R][n > 1](&call);
            o += n;
        }
    }
}

static void matmul(dtype w_type, bool round_to_bf16, const void *packed, int rows, int k, const void *w, size_t ldw,
                   int o_begin, int o_end, float *y, size_t ldy) {
    const product kind = product_of(w_type, round_to_bf16);
    const size_t x_row_bytes = pack_row_bytes(w_type, round_to_bf16, k);
    const size_t w_row_bytes = ldw * dtype_bytes(w_type);
    if (rows < 1) return;

    /* Row tiles of nearly equal height: a low last tile would run at the low rate of few rows. */
    int tiles = (rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS;
    int height = (rows + tiles - 1) / tiles;
    int block = MAX_SET_ASIDE / height;
    if (tiles > 1) {
        int in_l2 = (int)(WEIGHT_BLOCK_BYTES / ((size_t)(k ? k : 1) * dtype_bytes(w_type)));
        if (in_l2 < block) block = in_l2;
    }
    if (block > MAX_BLOCK_OUTPUTS) block = MAX_BLOCK_OUTPUTS;
    block = block / tile_outputs[height] * tile_outputs[height];
    if (block < tile_outputs[height]) block = tile_outputs[height];

    for (int o = o_begin; o < o_end; o += block) {
        int outputs = o_end - o < block ? o_end - o : block;
        for (int t = 0; t < tiles; t++) {
            int begin = (int)((long)rows * t / tiles), end = (int)((long)rows * (t + 1) / tiles);
            multiply_row_tile(kind, end - begin, (const unsigned char *)packed + (size_t)begin * x_row_bytes,
                              x_row_bytes, k, (const unsigned char *)w + (size_t)o * w_row_bytes, w_row_bytes, outputs,
                              y + (size_t)begin * ldy + (size_t)(o - o_begin), ldy);
        }
    }
}

#endif
