/* The matrix product of the vector tables, written once against a simd_*.h vocabulary and compiled per instruction set.
 *
 * Weights are used as they lie, row by row along k, so the lanes of every accumulator run along k. Work goes in steps
 * of 2 * SIMD_LANES values of k: bf16 weights of one vector become two float32 vectors (even and odd k) by a shift and
 * a mask, and packed activations are stored deinterleaved to match; f32 and f16 weights are two vectors in natural
 * order. Where the CPU multiplies bf16 pairs itself, a step is one instruction on two vectors as they lie: a file
 * that defines SIMD_DOT_PAIRS has the products of pairs, and no others.
 *
 * Canonical order of one result (row r, output o). k is cut into chunks of equal numbers of steps. Within a chunk one
 * accumulator vector takes, step by step, the product of the even (lower), then of the odd (upper) vectors; at its end
 * the lanes are summed by halving. The chunks' sums are added in order. Nothing else enters: tiles of any shape, blocks
 * and pieces of outputs change which results are computed together, never how.
 *
 * Few rows (multiply_few): weights stream from memory through registers, expanded once for all rows; the bound is the
 * memory bandwidth, then R / (R + 1) of the multiply-add rate. Many rows (multiply_many): the weights of PANEL_OUTPUTS
 * outputs and one chunk are expanded into L1 and stay there while the rows of a block, which fit in L2, pass by; the
 * bound is the multiply-add rate. */
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

/* Memory that is read soon goes to the first or the second cache. */
#define PREFETCH_L1(address) __builtin_prefetch((address), 0, 3)
#define PREFETCH_L2(address) __builtin_prefetch((address), 0, 2)

/* How weights meet activations. */
typedef enum product {
    PRODUCT_F32,
    PRODUCT_F16,
    PRODUCT_BF16,
    PRODUCT_PAIRS,
    PRODUCT_Q8, /* codes of 8 bits, without their scale: keys alone */
    PRODUCT_COUNT
} product;

enum {
    STEP = 2 * SIMD_LANES, /* values of k */
    MAX_CHUNK_STEPS = 768 / STEP,
    MAX_CHUNK_STEPS_PAIRS = 1536 / STEP, /* half the bytes per step */

    FEW_ROWS = SIMD_REGISTERS == 32 ? 8 : 6,
    MAX_FEW_ROWS = 2 * FEW_ROWS,
    MAX_TILE_OUTPUTS = 8,
    MAX_TILE_SUMS = SIMD_REGISTERS * 3 / 4, /* rows * outputs of a tile */
    FEW_BLOCK_BYTES = 28 * 1024,            /* activations in L1 */
    FEW_DIRECT_BYTES = 16 * 1024,           /* rows that are together so short need no reordering to stay in L1 */
    FEW_BLOCK_OUTPUTS = 96,
    /* Tiles of a block, at most MAX_TILE_OUTPUTS of them narrow, each with up to MAX_TILE_SUMS results. */
    FEW_BLOCK_RESULTS = 2048,

    PANEL_ROWS = SIMD_REGISTERS == 32 ? 4 : 3,
    PANEL_OUTPUTS = SIMD_REGISTERS == 32 ? 6 : 4,
    X_AHEAD_BYTES = 256,    /* activations are fetched from L2 this much early */
    PANEL_BLOCK_TILES = 32, /* activations of a chunk in L2 */
    PANEL_BLOCK_ROWS = PANEL_BLOCK_TILES * PANEL_ROWS,
    MAX_BLOCK_PANELS = 22, /* their results are kept until the end of k */
};

/* Bytes of one step of one row of activations, and of weights. */
SIMD_INLINE size_t x_step_bytes(product kind) {
    return STEP * (kind == PRODUCT_PAIRS ? sizeof(uint16_t) : sizeof(float));
}
SIMD_INLINE size_t w_step_bytes(product kind) {
    return STEP * (kind == PRODUCT_F32 ? sizeof(float) : kind == PRODUCT_Q8 ? 1 : sizeof(uint16_t));
}

/* --- packing ---------------------------------------------------------------------------------------------------- */

typedef enum pack_form { PACK_F32, PACK_SPLIT, PACK_PAIRS } pack_form;

SIMD_INLINE size_t pack_step_bytes(pack_form form) {
    return STEP * (form == PACK_PAIRS ? sizeof(uint16_t) : sizeof(float));
}

SIMD_INLINE size_t pack_row_bytes(pack_form form, int k) {
    size_t bytes = ((size_t)k + STEP - 1) / STEP * pack_step_bytes(form);
    return (bytes + 63) / 64 * 64;
}

SIMD_INLINE void pack_rows(pack_form form, bool round, const float *x, size_t ldx, int rows, int k, void *packed) {
    size_t step_bytes = pack_step_bytes(form), row_bytes = pack_row_bytes(form, k);
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
            if (round) {
                a = simd_round_to_bf16(a);
                b = simd_round_to_bf16(b);
            }
            if (form == PACK_PAIRS) {
                simd_store_bf16(out, a);
                simd_store_bf16(out + step_bytes / 2, b);
                continue;
            }
            if (form == PACK_SPLIT) simd_deinterleave(a, b, &a, &b);
            simd_store(out, a);
            simd_store(out + step_bytes / 2, b);
        }
        memset(out, 0, (size_t)(end - out));
    }
}

#define DEFINE_PACKING(name, form, round)                                                                              \
    static size_t row_bytes_##name(int k) { return pack_row_bytes(form, k); }                                          \
    static void pack_##name(const float *x, size_t ldx, int rows, int k, void *packed) {                               \
        pack_rows(form, round, x, ldx, rows, k, packed);                                                               \
    }
#define PACKING_ENTRY(name)                                                                                            \
    { row_bytes_##name, pack_##name }
#ifdef SIMD_DOT_PAIRS
DEFINE_PACKING(pairs, PACK_PAIRS, true)
#else
DEFINE_PACKING(f32, PACK_F32, false)
DEFINE_PACKING(f32_rounded, PACK_F32, true)
DEFINE_PACKING(split, PACK_SPLIT, false)
DEFINE_PACKING(split_rounded, PACK_SPLIT, true)
#endif

/* --- tiles ------------------------------------------------------------------------------------------------------ */

/* Steps of k, and how they are cut into chunks. */
typedef struct k_chunks {
    int steps, chunks, steps_per_chunk;
} k_chunks;

static k_chunks chunks_of(product kind, int k) {
    int most = kind == PRODUCT_PAIRS ? MAX_CHUNK_STEPS_PAIRS : MAX_CHUNK_STEPS;
    k_chunks c = {.steps = (k + STEP - 1) / STEP};
    c.chunks = c.steps > most ? (c.steps + most - 1) / most : 1;
    c.steps_per_chunk = (c.steps + c.chunks - 1) / c.chunks;
    return c;
}

typedef struct tile_call {
    const unsigned char *x;           /* R rows at the first k of this call */
    size_t x_row_bytes, x_step_bytes; /* from row to row, and from step to step */
    const unsigned char *w;           /* first weight row, at the first k of this call */
    size_t w_row_bytes;
    int tiles;                          /* side by side, one after the other */
    int fetched;                        /* at the first so many of them the next tile's weights are fetched meanwhile */
    int chunks, steps_per_chunk, steps; /* steps: of all chunks, the last of which may be shorter */
    int tail;                           /* values of k in the last step, STEP if it is whole */
    bool first;                         /* results are written, not added to */
    float *results;                     /* [tiles][R][O], each with room for whole vectors */
} tile_call;

typedef void (*tile_function)(const tile_call *call);

/* Half the weights of one step: the lower (even k) or the upper (odd k) factor. n: values of the step present, STEP or
 * fewer. */
SIMD_INLINE simd_f32 load_weights(product kind, const unsigned char *w, int n, bool upper) {
    if (kind == PRODUCT_BF16) {
        simd_pairs pairs = n == STEP ? simd_pairs_load(w) : simd_pairs_load_first(w, n);
        return upper ? simd_pairs_odd(pairs) : simd_pairs_even(pairs);
    }
    int n_lower = n < SIMD_LANES ? n : SIMD_LANES, present = upper ? n - n_lower : n_lower;
    const unsigned char *half = w + (upper ? w_step_bytes(kind) / 2 : 0);
    if (kind == PRODUCT_F32) {
        return n == STEP ? simd_load(half) : present ? simd_load_first(half, present) : simd_zero();
    }
    if (kind == PRODUCT_Q8) {
        return n == STEP ? simd_load_i8(half) : present ? simd_load_i8_first(half, present) : simd_zero();
    }
    return n == STEP ? simd_load_f16(half) : present ? simd_load_f16_first(half, present) : simd_zero();
}

/* One step of R rows of activations, x_stride bytes apart, and O rows of weights, of which n values are present. */
SIMD_INLINE void multiply_step(product kind, const int R, const int O, const unsigned char *x, size_t x_stride,
                               const unsigned char *w, size_t w_row_bytes, int n, simd_f32 *sums) {
#ifdef SIMD_DOT_PAIRS
    if (kind == PRODUCT_PAIRS) {
        simd_pairs weights[MAX_TILE_OUTPUTS];
        UNROLL for (int o = 0; o < O; o++) {
            const unsigned char *row = w + (size_t)o * w_row_bytes;
            weights[o] = n == STEP ? simd_pairs_load(row) : simd_pairs_load_first(row, n);
        }
        UNROLL for (int r = 0; r < R; r++) {
            simd_pairs values = simd_pairs_in_register(simd_pairs_load(x + (size_t)r * x_stride));
            UNROLL for (int o = 0; o < O; o++) {
                sums[r * O + o] = SIMD_DOT_PAIRS(sums[r * O + o], values, weights[o]);
            }
        }
        return;
    }
#endif
    UNROLL for (int half = 0; half < 2; half++) {
        simd_f32 weights[MAX_TILE_OUTPUTS];
        UNROLL for (int o = 0; o < O; o++) weights[o] = load_weights(kind, w + (size_t)o * w_row_bytes, n, half);
        UNROLL for (int r = 0; r < R; r++) {
            simd_f32 value =
                simd_in_register(simd_load(x + (size_t)r * x_stride + (size_t)half * (x_step_bytes(kind) / 2)));
            UNROLL for (int o = 0; o < O; o++) sums[r * O + o] = simd_fma(value, weights[o], sums[r * O + o]);
        }
    }
}

/* results[i] (+)= sum over the lanes of sums[i]. results has room for whole vectors: ROOM(count) floats. */
#define ROOM(count) (((count) + SIMD_LANES - 1) / SIMD_LANES * SIMD_LANES)

SIMD_INLINE void add_lane_sums(const simd_f32 *sums, const int count, bool first, float *results) {
    simd_f32 group[SIMD_LANES];
    UNROLL for (int g = 0; g < ROOM(MAX_TILE_SUMS) / SIMD_LANES; g++) {
        const int done = g * SIMD_LANES, left = count - done;
        if (left <= 0) break;
        const int width = left > SIMD_LANES / 2 ? SIMD_LANES : SIMD_LANES / 2;
        UNROLL for (int i = 0; i < width; i++) group[i] = i < left ? sums[done + i] : simd_zero();
        simd_f32 sum = width == SIMD_LANES ? simd_sum_full(group) : simd_sum_half(group);
        simd_store(results + done, first ? sum : simd_add(simd_load(results + done), sum));
    }
}

SIMD_INLINE void tile(product kind, const int R, const int O, const tile_call *call) {
    const size_t x_row_bytes = call->x_row_bytes, x_step = call->x_step_bytes;
    const size_t w_row_bytes = call->w_row_bytes;
    const unsigned char *w_tile = call->w;
    float *results = call->results;
    for (int t = 0; t < call->tiles; t++, w_tile += (size_t)O * w_row_bytes, results += ROOM(R * O)) {
        const unsigned char *x = call->x, *w = w_tile;
        const size_t ahead = t < call->fetched ? (size_t)O * w_row_bytes : 0;
        int left = call->steps;
        for (int chunk = 0; chunk < call->chunks; chunk++) {
            simd_f32 sums[MAX_TILE_SUMS];
            UNROLL for (int i = 0; i < R * O; i++) sums[i] = simd_zero();
            int steps = left < call->steps_per_chunk ? left : call->steps_per_chunk;
            left -= steps;
            bool partial = left == 0 && call->tail < STEP;
            for (int s = partial; s < steps; s++) {
                UNROLL for (int o = 0; o < O; o++) { PREFETCH_L2(w + ahead + (size_t)o * w_row_bytes); }
                multiply_step(kind, R, O, x, x_row_bytes, w, w_row_bytes, STEP, sums);
                x += x_step;
                w += w_step_bytes(kind);
            }
            if (partial) multiply_step(kind, R, O, x, x_row_bytes, w, w_row_bytes, call->tail, sums);
            add_lane_sums(sums, R * O, call->first && chunk == 0, results);
        }
    }
}

#define TILE_NAME(kind, R, O) tile_##kind##_##R##x##O
#define DEFINE_TILE(kind, R, O)                                                                                        \
    static void TILE_NAME(kind, R, O)(const tile_call *call) { tile(PRODUCT_##kind, R, O, call); }

/* The tiles of multiply_few: TILES(X, kind) calls X(kind, R, O), for each R the widest and the single-output one. */
#if defined(__AVX512F__)
#define TILES(X, kind)                                                                                                 \
    X(kind, 1, 8)                                                                                                      \
    X(kind, 2, 8)                                                                                                      \
    X(kind, 3, 8)                                                                                                      \
    X(kind, 4, 6)                                                                                                      \
    X(kind, 5, 4)                                                                                                      \
    X(kind, 6, 4)                                                                                                      \
    X(kind, 7, 3)                                                                                                      \
    X(kind, 8, 3)                                                                                                      \
    X(kind, 1, 1) X(kind, 2, 1) X(kind, 3, 1) X(kind, 4, 1) X(kind, 5, 1) X(kind, 6, 1) X(kind, 7, 1) X(kind, 8, 1)
static const int tile_outputs[FEW_ROWS + 1] = {0, 8, 8, 8, 6, 4, 4, 3, 3};
#elif defined(SIMD_LOADS_OPERANDS)
#define TILES(X, kind)                                                                                                 \
    X(kind, 1, 8)                                                                                                      \
    X(kind, 2, 4)                                                                                                      \
    X(kind, 3, 3)                                                                                                      \
    X(kind, 4, 2)                                                                                                      \
    X(kind, 5, 2) X(kind, 6, 2) X(kind, 1, 1) X(kind, 2, 1) X(kind, 3, 1) X(kind, 4, 1) X(kind, 5, 1) X(kind, 6, 1)
static const int tile_outputs[FEW_ROWS + 1] = {0, 8, 4, 3, 2, 2, 2};
#else
#define TILES(X, kind)                                                                                                 \
    X(kind, 1, 8)                                                                                                      \
    X(kind, 2, 4)                                                                                                      \
    X(kind, 3, 4)                                                                                                      \
    X(kind, 4, 3)                                                                                                      \
    X(kind, 5, 2) X(kind, 6, 2) X(kind, 1, 1) X(kind, 2, 1) X(kind, 3, 1) X(kind, 4, 1) X(kind, 5, 1) X(kind, 6, 1)
static const int tile_outputs[FEW_ROWS + 1] = {0, 8, 4, 4, 3, 2, 2};
#endif

#ifdef SIMD_DOT_PAIRS
#define MATRIX_PRODUCTS(X) TILES(X, PAIRS)
#else
#define MATRIX_PRODUCTS(X) TILES(X, F32) TILES(X, F16) TILES(X, BF16)
#endif
MATRIX_PRODUCTS(DEFINE_TILE)

/* [product][rows][full width (1) or a single output (0)] */
#define TILE_ENTRY(kind, R, O) [PRODUCT_##kind][R][(O) > 1] = TILE_NAME(kind, R, O),
static const tile_function tile_functions[PRODUCT_COUNT][FEW_ROWS + 1][2] = {MATRIX_PRODUCTS(TILE_ENTRY)};

/* --- few rows --------------------------------------------------------------------------------------------------- */

/* [R][steps] to [steps][R]. Read where they lie, rows at a power-of-two distance would fall on the same cache sets. */
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

/* Rows [0, R) of x, R <= FEW_ROWS, against weight rows [0, outputs), behind which the caller's go on to
 * `outputs_ahead`. */
static void multiply_few(product kind, int R, const unsigned char *x, size_t x_row_bytes, int k, const unsigned char *w,
                         size_t w_row_bytes, int outputs, int outputs_ahead, float *y, size_t ldy) {
    alignas(64) unsigned char x_block[FEW_BLOCK_BYTES];
    alignas(64) float results[FEW_BLOCK_RESULTS];
    const size_t x_bytes = x_step_bytes(kind), w_bytes = w_step_bytes(kind);
    const k_chunks cut = chunks_of(kind, k);
    const size_t chunk_bytes = (size_t)cut.steps_per_chunk * (size_t)R * x_bytes;
    const bool direct = R == 1 || (size_t)R * x_row_bytes <= FEW_DIRECT_BYTES;
    int call_width = 1;
    /* Chunks that are multiplied in one go. */
    int together = direct ? cut.chunks : chunk_bytes ? (int)(FEW_BLOCK_BYTES / chunk_bytes) : 1;
    for (int chunk = 0; chunk < cut.chunks; chunk += together) {
        int begin = chunk * cut.steps_per_chunk, end = begin + together * cut.steps_per_chunk;
        if (end > cut.steps) end = cut.steps;
        tile_call call = {
            .x = x,
            .x_row_bytes = x_row_bytes,
            .x_step_bytes = x_bytes,
            .w_row_bytes = w_row_bytes,
            .chunks = chunk + together < cut.chunks ? together : cut.chunks - chunk,
            .steps_per_chunk = cut.steps_per_chunk,
            .steps = end - begin,
            .tail = end == cut.steps && k % STEP ? k % STEP : STEP,
            .first = chunk == 0,
            .results = results,
        };
        if (!direct) {
            interleave_rows(x + (size_t)begin * x_bytes, x_row_bytes, R, end - begin, x_bytes, x_block);
            call.x = x_block;
            call.x_row_bytes = x_bytes;
            call.x_step_bytes = (size_t)R * x_bytes;
        }
        for (int o = 0; o < outputs; o += call.tiles * call_width) {
            call_width = o + tile_outputs[R] <= outputs ? tile_outputs[R] : 1;
            call.tiles = (outputs - o) / call_width;
            call.fetched = (outputs_ahead - o) / call_width - 1;
            call.w = w + (size_t)o * w_row_bytes + (size_t)begin * w_bytes;
            tile_functions[kind][R][call_width > 1](&call);
            call.results += call.tiles * ROOM(R * call_width);
        }
    }
    const int width = tile_outputs[R], wide = outputs / width;
    const size_t tile_results = (size_t)ROOM(R * width);
    for (int r = 0; r < R; r++) {
        float *row = y + (size_t)r * ldy;
        const float *result = results + r * width;
        /* Four or eight at a time; what goes too far is overwritten by the next tile. */
        int o = 0;
        if (width <= 4) {
            for (; o + 4 <= outputs; o += width, result += tile_results) simd_copy_4(row + o, result);
        } else {
            for (; o + 8 <= outputs; o += width, result += tile_results) simd_copy_8(row + o, result);
        }
        for (; o < wide * width; o += width, result += tile_results) {
            for (int i = 0; i < width; i++) row[o + i] = result[i];
        }
        const float *single = results + wide * ROOM(R * width) + r;
        for (o = wide * width; o < outputs; o++, single += ROOM(R)) row[o] = *single;
    }
}

/* --- many rows -------------------------------------------------------------------------------------------------- */

/* Weights of one chunk, ready to be multiplied: [steps][2][PANEL_OUTPUTS] vectors (for pairs [steps][PANEL_OUTPUTS]).
 * Outputs beyond `outputs` and values beyond k are zero. */
SIMD_INLINE void expand_panel(product kind, const unsigned char *w, size_t w_row_bytes, int outputs, int steps,
                              int tail, unsigned char *panel) {
    const size_t vector = sizeof(simd_f32);
    const size_t step_bytes = (kind == PRODUCT_PAIRS ? 1u : 2u) * PANEL_OUTPUTS * vector;
    for (int o = 0; o < PANEL_OUTPUTS; o++, panel += vector) {
        const unsigned char *row = w + (size_t)o * w_row_bytes;
        unsigned char *out = panel;
        if (o >= outputs) {
            for (int s = 0; s < steps; s++, out += step_bytes) {
                simd_store(out, simd_zero());
                if (kind != PRODUCT_PAIRS) simd_store(out + PANEL_OUTPUTS * vector, simd_zero());
            }
            continue;
        }
        for (int s = 0; s < steps; s++, row += w_step_bytes(kind), out += step_bytes) {
            int n = s == steps - 1 ? tail : STEP;
            if (kind == PRODUCT_PAIRS) {
                simd_pairs_store(out, n == STEP ? simd_pairs_load(row) : simd_pairs_load_first(row, n));
            } else {
                simd_store(out, load_weights(kind, row, n, false));
                simd_store(out + PANEL_OUTPUTS * vector, load_weights(kind, row, n, true));
            }
        }
    }
}

static void fill_panel(product kind, const unsigned char *w, size_t w_row_bytes, int outputs, int steps, int tail,
                       unsigned char *panel) {
    switch (kind) {
#ifndef SIMD_DOT_PAIRS
    case PRODUCT_F32:
        expand_panel(PRODUCT_F32, w, w_row_bytes, outputs, steps, tail, panel);
        break;
    case PRODUCT_F16:
        expand_panel(PRODUCT_F16, w, w_row_bytes, outputs, steps, tail, panel);
        break;
    case PRODUCT_BF16:
        expand_panel(PRODUCT_BF16, w, w_row_bytes, outputs, steps, tail, panel);
        break;
#else
    case PRODUCT_PAIRS:
        expand_panel(PRODUCT_PAIRS, w, w_row_bytes, outputs, steps, tail, panel);
        break;
#endif
    default:
        break;
    }
}

typedef struct panel_call {
    const unsigned char *x; /* R rows at the chunk's first step */
    size_t x_row_bytes;
    const unsigned char *panel;
    int steps;
    bool first;
    float *results; /* [R][PANEL_OUTPUTS], room for whole vectors */
} panel_call;

typedef void (*panel_function)(const panel_call *call);

SIMD_INLINE void multiply_panel(const int R, const panel_call *call) {
    enum { O = PANEL_OUTPUTS };
    const size_t vector = sizeof(simd_f32), x_row_bytes = call->x_row_bytes;
    const unsigned char *x = call->x, *panel = call->panel;
    simd_f32 sums[PANEL_ROWS * O];
    UNROLL for (int i = 0; i < R * O; i++) sums[i] = simd_zero();
#ifdef SIMD_DOT_PAIRS
    for (int s = 0; s < call->steps; s++, x += vector, panel += O * vector) {
        simd_pairs values[PANEL_ROWS];
        UNROLL for (int r = 0; r < R; r++) {
            values[r] = simd_pairs_load(x + (size_t)r * x_row_bytes);
            PREFETCH_L1(x + (size_t)r * x_row_bytes + X_AHEAD_BYTES);
        }
        UNROLL for (int o = 0; o < O; o++) {
            simd_pairs weights = simd_pairs_load(panel + (size_t)o * vector);
            UNROLL for (int r = 0; r < R; r++) sums[r * O + o] = SIMD_DOT_PAIRS(sums[r * O + o], values[r], weights);
        }
    }
#else
    /* Even, then odd: two passes of the same code. */
    for (int s = 0; s < 2 * call->steps; s++, x += vector, panel += O * vector) {
        simd_f32 values[PANEL_ROWS];
        UNROLL for (int r = 0; r < R; r++) {
            values[r] = simd_load(x + (size_t)r * x_row_bytes);
            PREFETCH_L1(x + (size_t)r * x_row_bytes + X_AHEAD_BYTES);
        }
        UNROLL for (int o = 0; o < O; o++) {
            simd_f32 weights = simd_load(panel + (size_t)o * vector);
            UNROLL for (int r = 0; r < R; r++) sums[r * O + o] = simd_fma(values[r], weights, sums[r * O + o]);
        }
    }
#endif
    add_lane_sums(sums, R * O, call->first, call->results);
}

#define DEFINE_PANEL(R)                                                                                                \
    static void panel_##R(const panel_call *call) { multiply_panel(R, call); }
DEFINE_PANEL(1)
DEFINE_PANEL(2)
DEFINE_PANEL(3)
#if defined(__AVX512F__)
DEFINE_PANEL(4)
#endif
static const panel_function panel_functions[PANEL_ROWS + 1] = {
    NULL,    panel_1, panel_2, panel_3,
#if defined(__AVX512F__)
    panel_4,
#endif
};

/* Up to PANEL_BLOCK_ROWS rows against up to MAX_BLOCK_PANELS panels of outputs. */
static void multiply_block(product kind, int rows, const unsigned char *x, size_t x_row_bytes, int k,
                           const unsigned char *w, size_t w_row_bytes, int outputs, float *y, size_t ldy) {
    enum { TILE_RESULTS = ROOM(PANEL_ROWS * PANEL_OUTPUTS) };
    alignas(64) unsigned char panel[MAX_CHUNK_STEPS * 2 * PANEL_OUTPUTS * sizeof(simd_f32)];
    alignas(64) float results[MAX_BLOCK_PANELS][PANEL_BLOCK_TILES][TILE_RESULTS];
    const k_chunks cut = chunks_of(kind, k);
    const size_t line = 64, x_bytes = x_step_bytes(kind), w_bytes = w_step_bytes(kind);
    const int tiles = (rows + PANEL_ROWS - 1) / PANEL_ROWS, panels = (outputs + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS;

    for (int chunk = 0; chunk < cut.chunks; chunk++) {
        int begin = chunk * cut.steps_per_chunk;
        int steps = cut.steps - begin < cut.steps_per_chunk ? cut.steps - begin : cut.steps_per_chunk;
        int tail = begin + steps == cut.steps && k % STEP ? k % STEP : STEP;
        const unsigned char *w_chunk = w + (size_t)begin * w_bytes;
        for (int o = 0; o < outputs; o += PANEL_OUTPUTS) {
            fill_panel(kind, w_chunk + (size_t)o * w_row_bytes, w_row_bytes, outputs - o, steps, tail, panel);
            /* While the rows pass by, the next panel's weights are fetched, and this panel's share of the next chunk's
             * activations (behind the last chunk comes the first, for the next block of outputs). */
            const unsigned char *w_ahead = w_chunk + (size_t)(o + PANEL_OUTPUTS) * w_row_bytes;
            const unsigned char *x_ahead = x + (size_t)((chunk + 1) % cut.chunks * cut.steps_per_chunk) * x_bytes;
            const size_t share =
                ((size_t)cut.steps_per_chunk * x_bytes / line + (size_t)panels - 1) / (size_t)panels * line;
            for (int t = 0; t < tiles; t++) {
                int R = rows - t * PANEL_ROWS < PANEL_ROWS ? rows - t * PANEL_ROWS : PANEL_ROWS;
                panel_call call = {
                    .x = x + (size_t)t * PANEL_ROWS * x_row_bytes + (size_t)begin * x_bytes,
                    .x_row_bytes = x_row_bytes,
                    .panel = panel,
                    .steps = steps,
                    .first = chunk == 0,
                    .results = results[o / PANEL_OUTPUTS][t],
                };
                if (o + 2 * PANEL_OUTPUTS <= outputs) {
                    for (size_t at = (size_t)t * line; at < (size_t)steps * w_bytes; at += (size_t)tiles * line) {
                        for (int i = 0; i < PANEL_OUTPUTS; i++) {
                            PREFETCH_L2(w_ahead + (size_t)i * w_row_bytes + at);
                        }
                    }
                }
                if (cut.chunks > 1) {
                    const unsigned char *from =
                        x_ahead + (size_t)t * PANEL_ROWS * x_row_bytes + (size_t)(o / PANEL_OUTPUTS) * share;
                    for (int r = 0; r < R; r++, from += x_row_bytes) {
                        for (size_t at = 0; at < share; at += line) PREFETCH_L2(from + at);
                    }
                }
                panel_functions[R](&call);
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        const float *row = results[0][r / PANEL_ROWS] + r % PANEL_ROWS * PANEL_OUTPUTS;
        float *out = y + (size_t)r * ldy;
        int o = 0;
        for (; o + PANEL_OUTPUTS <= outputs; o += PANEL_OUTPUTS, row += PANEL_BLOCK_TILES * TILE_RESULTS) {
            memcpy(out + o, row, PANEL_OUTPUTS * sizeof *out);
        }
        if (o < outputs) memcpy(out + o, row, (size_t)(outputs - o) * sizeof *out);
    }
}

/* --- weight formats ---------------------------------------------------------------------------------------------- */

static void multiply_rows(product kind, const void *packed, int rows, const weight *w, float *y, size_t ldy) {
    const int k = w->in, outputs = w->out;
    const size_t x_row_bytes = pack_row_bytes(kind == PRODUCT_PAIRS ? PACK_PAIRS : PACK_F32, k);
    const size_t w_row_bytes = weight_row_bytes(w, 0);
    const unsigned char *x = packed, *weights = weight_row(w, 0, 0);
    if (rows <= MAX_FEW_ROWS) {
        int tiles = (rows + FEW_ROWS - 1) / FEW_ROWS;
        for (int o = 0; o < outputs; o += FEW_BLOCK_OUTPUTS) {
            int together = outputs - o < FEW_BLOCK_OUTPUTS ? outputs - o : FEW_BLOCK_OUTPUTS;
            for (int t = 0; t < tiles; t++) {
                int begin = rows * t / tiles, end = rows * (t + 1) / tiles;
                multiply_few(kind, end - begin, x + (size_t)begin * x_row_bytes, x_row_bytes, k,
                             weights + (size_t)o * w_row_bytes, w_row_bytes, together, outputs - o,
                             y + (size_t)begin * ldy + (size_t)o, ldy);
            }
        }
        return;
    }
    int panels = (outputs + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS;
    int blocks = (panels + MAX_BLOCK_PANELS - 1) / MAX_BLOCK_PANELS;
    for (int r = 0; r < rows; r += PANEL_BLOCK_ROWS) {
        int block_rows = rows - r < PANEL_BLOCK_ROWS ? rows - r : PANEL_BLOCK_ROWS;
        for (int b = 0; b < blocks; b++) {
            int o = panels * b / blocks * PANEL_OUTPUTS;
            int end = panels * (b + 1) / blocks * PANEL_OUTPUTS;
            if (end > outputs) end = outputs;
            multiply_block(kind, block_rows, x + (size_t)r * x_row_bytes, x_row_bytes, k,
                           weights + (size_t)o * w_row_bytes, w_row_bytes, end - o, y + (size_t)r * ldy + (size_t)o,
                           ldy);
        }
    }
}

#define DEFINE_MULTIPLY(kind)                                                                                          \
    static void multiply_##kind(const void *packed, int rows, const weight *w, float *y, size_t ldy) {                 \
        multiply_rows(PRODUCT_##kind, packed, rows, w, y, ldy);                                                        \
    }
#ifdef SIMD_DOT_PAIRS
DEFINE_MULTIPLY(PAIRS)
#else
DEFINE_MULTIPLY(F32)
DEFINE_MULTIPLY(F16)
DEFINE_MULTIPLY(BF16)
#endif

#endif
