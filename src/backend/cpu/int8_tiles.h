/* The int8 products of the vector instruction sets, written once against a vocabulary of LANES outputs. The weights of
 * 16 outputs pass as tiles (int8_forms.h), read where they lie, or made from rows, a chunk of blocks at a time.
 *
 * Bound: few rows read the weights once, at what memory gives; many rows need 8 products of four bytes per lane, row
 * and block of 32, and three operations on float32 beside them. */
#ifndef KAKEYA_BACKEND_CPU_INT8_TILES_H
#define KAKEYA_BACKEND_CPU_INT8_TILES_H

#include <stdalign.h>

#include "backend/cpu/int8_codes.h"
#include "backend/cpu/tiles.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* LANES and TILE_ROWS (4 or 8), whose sums fit into registers, are the instruction set's. */
enum {
    CHUNK_PARTS = 16, /* blocks of 32 that are turned into tiles at a time */
    MAX_PART_BYTES = TILE_OUTPUTS * (4 + 2) + 8 * TILE_PIECE_BYTES,
    /* Tiles are fetched so much early: to the second cache before the hardware, which stops at the ends of pages, would
     * ask for them, and from there to the first. One of the two alone leaves a tenth of the bandwidth. */
    FAR_AHEAD_BYTES = 8192,
    AHEAD_BYTES = 2048,
};

/* --- codes ------------------------------------------------------------------------------------------------------ */

/* Whether the instruction set takes codes of this form signed: then they stand on no offset. */
BLOCKS_INLINE bool codes_are_signed(const int8_form *form) { return LANES_SIGNED_WIDE && form->largest > 127; }
BLOCKS_INLINE int codes_offset(const int8_form *form) { return form->offset - (codes_are_signed(form) ? 128 : 0); }

/* Piece p of LANES outputs; `pieces` points at their first byte in piece 0. */
BLOCKS_INLINE lanes_codes load_piece(const int8_form *form, const uint8_t *pieces, const int p) {
    const uint8_t *above = pieces + form->low * TILE_PIECE_BYTES;
    lanes_codes c;
    if (form->low == 8) {
        c = codes_load(pieces + p * TILE_PIECE_BYTES);
        if (codes_are_signed(form)) c = codes_flip(c);
    } else if (form->low == 4) {
        c = codes_load(pieces + p % 4 * TILE_PIECE_BYTES);
        c = codes_and(p < 4 ? c : codes_right(c, 4), 15);
    } else {
        c = codes_load(pieces + p / 4 * TILE_PIECE_BYTES);
        c = codes_and(codes_right(c, 2 * (p % 4)), 3);
    }
    if (form->high == 1) {
        lanes_codes h = codes_load(above);
        h = p < form->low ? codes_left(h, form->low - p) : codes_right(h, p - form->low);
        c = codes_or(c, codes_and(h, 1 << form->low));
    } else if (form->high == 2) {
        lanes_codes h = codes_load(above + p / 4 * TILE_PIECE_BYTES);
        int from = 2 * (p % 4);
        h = from < form->low ? codes_left(h, form->low - from) : codes_right(h, from - form->low);
        c = codes_or(c, codes_and(h, 3 << form->low));
    }
    if (form->table == TABLE_IQ4) c = codes_look_up(iq4_values, codes_offset(form), c);
    if (form->table == TABLE_FP4) c = codes_look_up(fp4_values, codes_offset(form), c);
    return c;
}

/* --- scales ----------------------------------------------------------------------------------------------------- */

typedef struct tile_scales {
    lanes_f32 d[2], m[2], s[2];
} tile_scales;

/* With a sign, and with codes that are none. */
BLOCKS_INLINE lanes_f32 lanes_signed_e4m3(const unsigned char *p) {
    const lanes_i32 bits = lanes_u8(p);
    return lanes_none_where(lanes_and(bits, 0x7f), 0x7f, lanes_with_sign(bits, lanes_e4m3(p)));
}

/* Of outputs [first, first + LANES): what is the same in the whole tile ... */
BLOCKS_INLINE void load_head(const int8_form *form, int8_shape shape, const unsigned char *tile, int first,
                             lanes_f32 *d, lanes_f32 *m) {
    *d = *m = lanes_zero_f32();
    if (form->scales == SCALES_GROUP_F32) {
        float scales[LANES];
        memcpy(scales, tile + 4 * first, sizeof scales);
        *d = lanes_load(scales);
        return;
    }
    if (form_in_groups(form)) {
        const unsigned char *lower = tile + 2 * first, *upper = lower + 2 * TILE_OUTPUTS;
        *d = shape.bf16 ? lanes_bf16(lower) : lanes_f16(lower);
        if (form->scales == SCALES_GROUP_ZERO)
            *m = lanes_negative(lanes_to_f32(lanes_u8(tile + 2 * TILE_OUTPUTS + first)));
        if (form_has_min(form)) *m = shape.bf16 ? lanes_bf16(upper) : lanes_f16(upper);
        return;
    }
    if (form->scales == SCALES_GROUP_E8M0) *d = lanes_none_where(lanes_u8(tile + first), 255, lanes_e8m0(tile + first));
    if (form->scales == SCALES_E8M0) *d = lanes_e8m0(tile + first);
    if (form_head_bytes(form) >= 2) *d = lanes_f16(tile + 2 * first);
    if (form_head_bytes(form) == 4) *m = lanes_f16(tile + 2 * (TILE_OUTPUTS + first));
}
/* ... and in 32 values of it. */
BLOCKS_INLINE void load_subs(const int8_form *form, const unsigned char *subs, int first, lanes_f32 d, lanes_f32 m,
                             tile_scales *s) {
    const unsigned char *lower = subs + first, *upper = lower + TILE_OUTPUTS;
    s->d[0] = s->d[1] = d;
    s->m[0] = s->m[1] = m;
    switch (form->scales) {
    case SCALES_SUPER:
        s->d[0] = lanes_mul(d, lanes_to_f32(lanes_s8(lower)));
        break;
    case SCALES_SUPER_MIN:
        s->d[0] = lanes_mul(d, lanes_to_f32(lanes_u8(lower)));
        s->m[0] = lanes_negative(lanes_mul(m, lanes_to_f32(lanes_u8(upper))));
        break;
    case SCALES_PAIR:
        s->s[0] = lanes_to_f32(lanes_s8(lower));
        s->s[1] = lanes_to_f32(lanes_s8(upper));
        break;
    case SCALES_HALVES:
        s->d[0] = lanes_e4m3(lower);
        s->d[1] = lanes_e4m3(upper);
        break;
    case SCALES_GROUP_HALVES:
        s->d[0] = lanes_signed_e4m3(lower);
        s->d[1] = lanes_signed_e4m3(upper);
        break;
    case SCALES_HALVES_MIN:
        s->d[0] = lanes_mul(d, lanes_to_f32(lanes_and(lanes_u8(lower), 15)));
        s->d[1] = lanes_mul(d, lanes_to_f32(lanes_and(lanes_u8(upper), 15)));
        s->m[0] = lanes_negative(lanes_mul(m, lanes_to_f32(lanes_right(lanes_u8(lower), 4))));
        s->m[1] = lanes_negative(lanes_mul(m, lanes_to_f32(lanes_right(lanes_u8(upper), 4))));
        break;
    default:
        break;
    }
}

/* The sum so far and 32 values more, of which low and high are the sums of products (low: of all 32, unless the form is
 * in halves). Products with whole scales and zero points are exact in float32, like their sum. */
BLOCKS_INLINE lanes_f32 add_part(const int8_form *form, const tile_scales *s, lanes_i32 low, lanes_i32 high,
                                 const int8_record *x, lanes_f32 acc) {
    const lanes_f32 scale = lanes_set(&x->scale);
    lanes_f32 sum = lanes_to_f32(low);
    if (form->scales == SCALES_PAIR) sum = lanes_fma(s->s[1], lanes_to_f32(high), lanes_mul(s->s[0], sum));
    if (form->scales == SCALES_GROUP_ZERO) sum = lanes_fma(s->m[0], lanes_set(&x->total), sum);
    acc = lanes_fma(lanes_mul(s->d[0], scale), sum, acc);
    if (form->scales == SCALES_HALVES_MIN) {
        const float halves[2] = {(float)x->half[0], (float)x->half[1]};
        acc = lanes_fma(lanes_mul(s->m[0], scale), lanes_set(&halves[0]), acc);
        acc = lanes_fma(lanes_mul(s->d[1], scale), lanes_to_f32(high), acc);
        return lanes_fma(lanes_mul(s->m[1], scale), lanes_set(&halves[1]), acc);
    }
    if (form_has_factors(form)) return lanes_fma(lanes_mul(s->d[1], scale), lanes_to_f32(high), acc);
    if (form_has_min(form)) acc = lanes_fma(lanes_mul(s->m[0], scale), lanes_set(&x->total), acc);
    return acc;
}

/* --- products --------------------------------------------------------------------------------------------------- */

/* Sums of products on their way: `part` may be narrower than `sum` and is added to it before it overflows. */
typedef struct lanes_sum {
    lanes_i32 sum;
    lanes_part part;
} lanes_sum;

BLOCKS_INLINE lanes_sum sum_begin(lanes_i32 from) { return (lanes_sum){from, part_begin(from)}; }
/* The done-th of products of which `together` fit into a part. */
BLOCKS_INLINE void sum_add(const int8_form *form, lanes_sum *s, lanes_codes c, const void *x, int done, int together) {
    s->part = part_add(s->part, c, x, codes_are_signed(form));
    if (done % together != together - 1) return;
    s->sum = part_end(s->sum, s->part);
    s->part = part_begin(s->sum);
}

/* The products of R rows, x_bytes apart, with 32 values. */
BLOCKS_INLINE void add_products(const int8_form *form, const int R, const unsigned char *x, size_t x_bytes,
                                const uint8_t *pieces, lanes_sum *low, lanes_sum *high) {
    const bool apart = form_in_halves(form);
    const int fits = PART_PIECES(form->largest), together = apart && fits > 4 ? 4 : fits;
#ifdef LANES_ROW_PAIRS
    /* Rows in pairs, the last of an odd number by itself. */
    if (R > 1) {
        const int8_t *codes = (const int8_t *)x;
        lanes_row_pair pair[2][TILE_ROWS / 2];
        UNROLL for (int i = 0; i < R / 2; i++) pair[0][i] = pair[1][i] = row_pair_zero();
        UNROLL for (int p = 0; p < TILE_PIECES / 2; p += 2) {
            UNROLL for (int h = 0; h < 2; h++) {
                const int at = 16 * h + 4 * p, to = apart ? h : 0;
                const lanes_codes c = load_piece(form, pieces, 4 * h + p),
                                  next = load_piece(form, pieces, 4 * h + p + 1);
                const lanes_pairs_of_codes both = codes_in_pairs(c, next);
                UNROLL for (int i = 0; i < R / 2; i++) pair[to][i] =
                    row_pair_add(pair[to][i], both, codes + (size_t)(2 * i) * x_bytes + at, x_bytes);
                if (R % 2) {
                    lanes_sum *sum = apart && h ? &high[R - 1] : &low[R - 1];
                    sum_add(form, sum, c, codes + (size_t)(R - 1) * x_bytes + at, 0, 1);
                    sum_add(form, sum, next, codes + (size_t)(R - 1) * x_bytes + at + 4, 0, 1);
                }
            }
        }
        UNROLL for (int r = 0; r < R - R % 2; r++) {
            low[r].sum = row_pair_end(low[r].sum, pair[0][r / 2], r % 2);
            if (apart) high[r].sum = row_pair_end(high[r].sum, pair[1][r / 2], r % 2);
        }
        return;
    }
#endif
    UNROLL for (int p = 0; p < TILE_PIECES / 2; p++) {
        const lanes_codes c0 = load_piece(form, pieces, p), c1 = load_piece(form, pieces, p + 4);
        UNROLL for (int r = 0; r < R; r++) {
            const int8_t *codes = (const int8_t *)x + (size_t)r * x_bytes;
            sum_add(form, &low[r], c0, codes + 4 * p, apart ? p : 2 * p, together);
            sum_add(form, apart ? &high[r] : &low[r], c1, codes + 16 + 4 * p, apart ? p : 2 * p + 1, together);
        }
    }
}

/* R rows, x_bytes apart, against `blocks` tiles, of which outputs [first, first + LANES); sums [R][TILE_OUTPUTS] go on.
 */
BLOCKS_INLINE void multiply_lanes(const int8_form *form, int8_shape shape, const int R, const unsigned char *x,
                                  size_t x_bytes, const unsigned char *tiles, size_t blocks, int first, float *sums) {
    const bool apart = form_in_halves(form);
    const int offset = codes_offset(form);
    lanes_f32 acc[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++) acc[r] = lanes_load(sums + r * TILE_OUTPUTS);
    for (size_t b = 0; b < blocks; b++, tiles += tile_bytes(form, shape)) {
        lanes_f32 d, m;
        load_head(form, shape, tiles, first, &d, &m);
        const unsigned char *at = tiles + tile_head_bytes(form);
        for (int j = 0; j < shape.inside; j++, at += tile_part_bytes(form), x += sizeof(int8_record)) {
            const uint8_t *pieces = at + tile_subs_bytes(form) + 4 * first;
            /* A tile is half a line more than its part: one line beyond, or every ninth would be left out. */
            for (size_t ahead = 0; ahead <= tile_part_bytes(form); ahead += 64) {
                __builtin_prefetch(at + AHEAD_BYTES + ahead, 0, 3);
                __builtin_prefetch(at + FAR_AHEAD_BYTES + ahead, 0, 2);
            }
            lanes_sum low[TILE_ROWS], high[TILE_ROWS];
            UNROLL for (int r = 0; r < R; r++) {
                const int8_record *row = (const int8_record *)(const void *)(x + (size_t)r * x_bytes);
                low[r] = sum_begin(offset ? lanes_pairs(-offset, apart ? 0 : -offset, row->half) : lanes_zero());
                if (apart) high[r] = sum_begin(offset ? lanes_pairs(0, -offset, row->half) : lanes_zero());
            }
            add_products(form, R, x, x_bytes, pieces, low, high);
            tile_scales scales;
            load_subs(form, at, first, d, m, &scales);
            UNROLL for (int r = 0; r < R; r++) {
                const int8_record *row = (const int8_record *)(const void *)(x + (size_t)r * x_bytes);
                acc[r] = add_part(form, &scales, low[r].sum, apart ? high[r].sum : low[r].sum, row, acc[r]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) lanes_store(sums + r * TILE_OUTPUTS, acc[r]);
}

BLOCKS_INLINE void multiply_rows(const int8_form *form, int8_shape shape, const int R, const unsigned char *x,
                                 size_t x_bytes, const unsigned char *tiles, size_t blocks, float *sums) {
    for (int first = 0; first < TILE_OUTPUTS; first += LANES)
        multiply_lanes(form, shape, R, x, x_bytes, tiles, blocks, first, sums + first);
}

/* What a format's product of 1 to TILE_ROWS rows with tiles looks like from outside. */
typedef void (*tiles_product)(int8_shape shape, int rows, const unsigned char *x, size_t x_bytes,
                              const unsigned char *tiles, size_t blocks, float *sums);

BLOCKS_INLINE void multiply_tiles(const int8_form *form, int8_shape shape, int rows, const unsigned char *x,
                                  size_t x_bytes, const unsigned char *tiles, size_t blocks, float *sums) {
#define ROWS_CASE(R)                                                                                                   \
    case R:                                                                                                            \
        multiply_rows(form, shape, R, x, x_bytes, tiles, blocks, sums);                                                \
        break;
    switch (rows) {
        ROWS_CASE(1)
        ROWS_CASE(2)
        ROWS_CASE(3)
        ROWS_CASE(4)
#if TILE_ROWS == 8
        ROWS_CASE(5)
        ROWS_CASE(6)
        ROWS_CASE(7)
        ROWS_CASE(8)
#endif
    default:
        break;
    }
}

/* --- tiles ------------------------------------------------------------------------------------------------------ */

/* Codes of 16 outputs, turned into pieces of one byte a code, to the pieces of the form. */
BLOCKS_INLINE void store_pieces(const int8_form *form, const uint8_t *bytes, uint8_t *out) {
    for (int first = 0; first < TILE_PIECE_BYTES; first += 4 * LANES) {
        lanes_codes c[TILE_PIECES];
        UNROLL for (int p = 0; p < TILE_PIECES; p++) c[p] = codes_load(bytes + p * TILE_PIECE_BYTES + first);
        uint8_t *to = out + first;
        if (form->low == 8) {
            UNROLL for (int p = 0; p < TILE_PIECES; p++) codes_store(to + p * TILE_PIECE_BYTES, c[p]);
        } else if (form->low == 4) {
            UNROLL for (int p = 0; p < 4; p++) {
                lanes_codes upper = codes_left(codes_and(c[p + 4], 15), 4);
                codes_store(to + p * TILE_PIECE_BYTES, codes_or(codes_and(c[p], 15), upper));
            }
        } else {
            UNROLL for (int h = 0; h < 2; h++) {
                lanes_codes all = codes_and(c[4 * h], 3);
                UNROLL for (int i = 1; i < 4; i++) all = codes_or(all, codes_left(codes_and(c[4 * h + i], 3), 2 * i));
                codes_store(to + h * TILE_PIECE_BYTES, all);
            }
        }
        to += form->low * TILE_PIECE_BYTES;
        if (form->high == 1) {
            lanes_codes all = codes_and(codes_right(c[0], form->low), 1);
            UNROLL for (int p = 1; p < TILE_PIECES; p++) all =
                codes_or(all, codes_left(codes_and(codes_right(c[p], form->low), 1), p));
            codes_store(to, all);
        } else if (form->high == 2) {
            UNROLL for (int h = 0; h < 2; h++) {
                lanes_codes all = codes_and(codes_right(c[4 * h], form->low), 3);
                UNROLL for (int i = 1; i < 4; i++) all =
                    codes_or(all, codes_left(codes_and(codes_right(c[4 * h + i], form->low), 3), 2 * i));
                codes_store(to + h * TILE_PIECE_BYTES, all);
            }
        }
    }
}

/* Blocks that are a head and 16 bytes, of which four hold what a piece has of an output: nothing is taken apart. */
BLOCKS_INLINE bool form_is_moved(const int8_form *f) {
    return f->scales <= SCALES_E8M0 && f->bytes == form_head_bytes(f) + INT8_BLOCK / 2;
}

/* Four dwords of each of four outputs to where they lie in four pieces: a transposition. */
typedef uint32_t four_dwords __attribute__((vector_size(16)));
BLOCKS_INLINE void move_dwords(const unsigned char *from, size_t row_bytes, uint8_t *pieces) {
    four_dwords r[4], t[4];
    UNROLL for (int i = 0; i < 4; i++) memcpy(&r[i], from + (size_t)i * row_bytes, sizeof r[i]);
    UNROLL for (int i = 0; i < 4; i += 2) {
        t[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 4, 1, 5);
        t[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 6, 3, 7);
    }
    UNROLL for (int i = 0; i < 2; i++, pieces += 2 * TILE_PIECE_BYTES) {
        const four_dwords even = __builtin_shufflevector(t[i], t[i + 2], 0, 1, 4, 5);
        const four_dwords odd = __builtin_shufflevector(t[i], t[i + 2], 2, 3, 6, 7);
        memcpy(pieces, &even, sizeof even);
        memcpy(pieces + TILE_PIECE_BYTES, &odd, sizeof odd);
    }
}

BLOCKS_INLINE void move_tiles(const int8_form *form, const weight *w, int row, size_t first, size_t n,
                              unsigned char *tiles) {
    const int8_rows rows = int8_rows_of(w, row);
    const size_t row_bytes = rows.row_bytes[0];
    const int head = form_head_bytes(form), width = head < 2 ? head : 2;
    for (size_t b = first; b < first + n; b++, tiles += tile_head_bytes(form) + tile_part_bytes(form)) {
        const unsigned char *block = rows.stream[0] + b * (size_t)form->bytes;
        for (size_t o = 0; o < TILE_OUTPUTS; o++) {
            UNROLL for (int i = 0; i < head; i += width)
                memcpy(tiles + head_at(form, i, (int)o), block + o * row_bytes + i, (size_t)width);
        }
        for (size_t o = 0; o < TILE_OUTPUTS; o += 4)
            move_dwords(block + o * row_bytes + head, row_bytes, tiles + tile_head_bytes(form) + 4 * o);
    }
}

BLOCKS_INLINE void make_tiles(const int8_form *form, part_taker take, const weight *w, int row, int outputs,
                              int8_shape shape, size_t first, size_t n, unsigned char *tiles) {
    if (form_is_moved(form) && outputs == TILE_OUTPUTS) {
        move_tiles(form, w, row, first, n, tiles);
        return;
    }
    alignas(64) uint8_t u[TILE_OUTPUTS][INT8_BLOCK] = {{0}}, bytes[TILE_PIECES * TILE_PIECE_BYTES];
    const int8_rows rows = int8_rows_of(w, row);
    const size_t inside = (size_t)shape.inside;
    for (size_t b = first; b < first + n; b++) {
        unsigned char *head = tiles;
        tiles += tile_head_bytes(form);
        memset(head, 0, tile_head_bytes(form));
        for (size_t j = 0; j < inside; j++, tiles += tile_part_bytes(form)) {
            memset(tiles, 0, tile_subs_bytes(form));
            for (int o = 0; o < outputs; o++) {
                int8_bytes s;
                take(&rows, o, b * inside + j, u[o], &s);
                for (int i = 0; i < form_head_bytes(form); i++) head[head_at(form, i, o)] = s.head[i];
                if (form_sub_bytes(form) >= 1) tiles[o] = s.sub[0];
                if (form_sub_bytes(form) == 2) tiles[TILE_OUTPUTS + o] = s.sub[1];
            }
            transpose_codes(u[0], bytes);
            store_pieces(form, bytes, tiles + tile_subs_bytes(form));
        }
    }
}

/* --- matrices --------------------------------------------------------------------------------------------------- */

/* Rows of activations that pass together: as even as it goes. */
static int rows_together(int left) {
    int groups = (left + TILE_ROWS - 1) / TILE_ROWS;
    return (left + groups - 1) / groups;
}

/* n outputs that lie in lanes [lane, lane + n) of one tile. */
typedef struct tile_outputs {
    int lane, n;
    const float *factors; /* of these outputs, or NULL */
    weight_format format;
} tile_outputs;

/* sums: [rows][lds] */
static void store_sums(const tile_outputs *t, int rows, const float *sums, int lds, float *y, size_t ldy) {
    for (int r = 0; r < rows; r++) {
        const float *from = sums + r * lds + t->lane;
        float *to = y + (size_t)r * ldy;
        if (t->n == TILE_OUTPUTS && !t->factors)
            memcpy(to, from, TILE_OUTPUTS * sizeof *to);
        else
            for (int i = 0; i < t->n; i++)
                to[i] = t->factors ? tiles_times_factor(t->format, from[i], t->factors[i]) : from[i];
    }
}

static tile_outputs outputs_at(const int8_form *form, const weight *w, int o) {
    tile_outputs t = {w->tiled ? (w->first + o) % TILE_OUTPUTS : 0, w->out - o, NULL, w->format};
    if (t.n > TILE_OUTPUTS - t.lane) t.n = TILE_OUTPUTS - t.lane;
    if (form_has_factors(form)) t.factors = tiles_factors(w, o);
    return t;
}

/* Rows outside, so that few stay in the first cache while the weights of a piece, which fit into the second, pass. */
static void multiply_tiled(const int8_form *form, tiles_product product, const void *packed, int rows, const weight *w,
                           float *y, size_t ldy) {
    const size_t row_bytes = int8_row_bytes(w->in), tile_row = tiles_row_bytes(w), blocks = tiles_in_row(w);
    const int8_shape shape = form_shape(form, w);
    for (int r = 0, together; r < rows; r += together) {
        together = rows_together(rows - r);
        tile_outputs t;
        for (int o = 0; o < w->out; o += t.n) {
            alignas(64) float sums[TILE_ROWS * TILE_OUTPUTS] = {0};
            t = outputs_at(form, w, o);
            product(shape, together, (const unsigned char *)packed + (size_t)r * row_bytes, row_bytes,
                    (const unsigned char *)w->stream[0] + (size_t)((w->first + o) / TILE_OUTPUTS) * tile_row, blocks,
                    sums);
            store_sums(&t, together, sums, TILE_OUTPUTS, y + (size_t)r * ldy + (size_t)o, ldy);
        }
    }
}

/* Of blocks the compiler knows the shape. */
#define OWN_SHAPE(name) (form_in_groups(&form_##name) ? shape : (int8_shape){form_##name.values / INT8_BLOCK, false})

#ifdef LANES_PANELS
#include "backend/cpu/int8_panels.h"
#define DEFINE_PANELS(name)                                                                                            \
    static void open_##name(int8_shape shape, const unsigned char *tiles, size_t blocks, int at, panel_part *out) {    \
        open_tiles(&form_##name, OWN_SHAPE(name), tiles, blocks, at, out);                                             \
    }                                                                                                                  \
    static bool multiplied_in_panels_##name(const void *packed, int rows, const weight *w, float *y, size_t ldy) {     \
        if (rows < PANEL_LEAST_ROWS) return false;                                                                     \
        multiply_in_rounds(&form_##name, open_##name, packed, rows, w, y, ldy);                                        \
        return true;                                                                                                   \
    }
#else
#define DEFINE_PANELS(name)                                                                                            \
    static bool multiplied_in_panels_##name(const void *packed, int rows, const weight *w, float *y, size_t ldy) {     \
        (void)packed, (void)rows, (void)w, (void)y, (void)ldy;                                                         \
        return false;                                                                                                  \
    }
#endif

/* Weights in rows: tiles of a chunk are made once for all rows of the call. */
static void multiply_untiled(const int8_form *form, tiles_product product, int8_tile_maker make, const void *packed,
                             int rows, const weight *w, float *y, size_t ldy) {
    alignas(64) unsigned char tiles[CHUNK_PARTS * MAX_PART_BYTES];
    const int8_shape shape = form_shape(form, w);
    const size_t row_bytes = int8_row_bytes(w->in), inside = (size_t)shape.inside, blocks = tiles_in_row(w);
    for (int o = 0; o < w->out; o += TILE_OUTPUTS) {
        tile_outputs t = outputs_at(form, w, o);
        for (size_t first = 0, n; first < blocks; first += n) {
            n = blocks - first < CHUNK_PARTS / inside ? blocks - first : CHUNK_PARTS / inside;
            make(w, o, t.n, shape, first, n, tiles);
            tile_outputs whole = {0, t.n, first + n == blocks ? t.factors : NULL, w->format};
            for (int r = 0, together; r < rows; r += together) {
                alignas(64) float sums[TILE_ROWS * TILE_OUTPUTS] = {0};
                float *to = y + (size_t)r * ldy + (size_t)o;
                together = rows_together(rows - r);
                for (int i = 0; i < together && first; i++)
                    memcpy(sums + i * TILE_OUTPUTS, to + (size_t)i * ldy, (size_t)t.n * sizeof *sums);
                product(shape, together,
                        (const unsigned char *)packed + (size_t)r * row_bytes + first * inside * sizeof(int8_record),
                        row_bytes, tiles, n, sums);
                store_sums(&whole, together, sums, TILE_OUTPUTS, to, ldy);
            }
        }
    }
}

#define DEFINE_MULTIPLY(NAME, name, values, bytes)                                                                     \
    static void product_##name(int8_shape shape, int rows, const unsigned char *x, size_t x_bytes,                     \
                               const unsigned char *tiles, size_t blocks, float *sums) {                               \
        multiply_tiles(&form_##name, OWN_SHAPE(name), rows, x, x_bytes, tiles, blocks, sums);                          \
    }                                                                                                                  \
    static void tile_##name(const weight *w, int row, int outputs, int8_shape shape, size_t first, size_t n,           \
                            unsigned char *tiles) {                                                                    \
        make_tiles(&form_##name, take_##name, w, row, outputs, OWN_SHAPE(name), first, n, tiles);                      \
    }                                                                                                                  \
    DEFINE_PANELS(name)                                                                                                \
    static void multiply_##name(const void *packed, int rows, const weight *w, float *y, size_t ldy) {                 \
        if (w->tiled && multiplied_in_panels_##name(packed, rows, w, y, ldy)) return;                                  \
        if (w->tiled)                                                                                                  \
            multiply_tiled(&form_##name, product_##name, packed, rows, w, y, ldy);                                     \
        else                                                                                                           \
            multiply_untiled(&form_##name, product_##name, tile_##name, packed, rows, w, y, ldy);                      \
    }
BLOCK_FORMATS(DEFINE_MULTIPLY)
GROUP_INT8_FORMATS(DEFINE_MULTIPLY)

BLOCKS_INLINE void pack_block(const float *x, int n, int8_record *out) {
    float values[INT8_BLOCK] = {0};
    if (n < INT8_BLOCK) memcpy(values, x, (size_t)n * sizeof *x);
    lanes_pack(n < INT8_BLOCK ? values : x, out);
}

static void pack(const float *x, size_t ldx, int rows, int k, void *packed) {
    int8_pack_rows(pack_block, false, x, ldx, rows, k, packed);
}
static void pack_fine(const float *x, size_t ldx, int rows, int k, void *packed) {
    int8_pack_rows(pack_block, true, x, ldx, rows, k, packed);
}

#if defined(__clang__)
#define UNROLL_SUMS UNROLL
#else
#define UNROLL_SUMS _Pragma("GCC unroll 16")
#endif

static double probe(size_t iterations) {
    enum { SUMS = PROBE_SUMS /* fit into registers with their parts */ };
    static const uint8_t pieces[TILE_PIECE_BYTES];
    static const int8_t values[16] = {1, 1, 1, 1};
    lanes_codes codes = codes_load(pieces);
#ifdef LANES_ROW_PAIRS
    lanes_pairs_of_codes both = codes_in_pairs(codes, codes);
    lanes_row_pair pairs[SUMS / 2];
    UNROLL_SUMS for (int i = 0; i < SUMS / 2; i++) pairs[i] = row_pair_zero();
    for (size_t n = 0; n < iterations; n++) {
        UNROLL for (int p = 0; p < TILE_PIECES / 2; p++) {
            UNROLL_SUMS for (int i = 0; i < SUMS / 2; i++) pairs[i] = row_pair_add(pairs[i], both, values, 8);
        }
    }
    UNROLL_SUMS for (int i = 0; i < SUMS / 2; i++) lanes_keep(row_pair_end(lanes_zero(), pairs[i], true));
    return (double)iterations * (double)(TILE_PIECES / 2 * (SUMS / 2) * LANES * 2 * 8 * 2);
#else
    lanes_sum sums[SUMS];
    UNROLL_SUMS for (int i = 0; i < SUMS; i++) sums[i] = sum_begin(lanes_zero());
    for (size_t n = 0; n < iterations; n++) {
        UNROLL for (int p = 0; p < TILE_PIECES; p++) {
            codes = codes_others(codes);
            UNROLL_SUMS for (int i = 0; i < SUMS; i++) sum_add(&form_q4_0, &sums[i], codes, values, p, PART_PIECES(15));
        }
    }
    UNROLL_SUMS for (int i = 0; i < SUMS; i++) lanes_keep(sums[i].sum);
    return (double)iterations * (double)(TILE_PIECES * SUMS * LANES * 4 * 2);
#endif
}

#define MULTIPLY_ENTRY(NAME, name, values, bytes) [WEIGHT_##NAME] = multiply_##name,
#define TILE_ENTRY(NAME, name, values, bytes)     [WEIGHT_##NAME] = tile_##name,
#define INT8_TABLE                                                                                                     \
    {                                                                                                                  \
        .pack = pack, .pack_fine = pack_fine,                                                                          \
        .multiply = {BLOCK_FORMATS(MULTIPLY_ENTRY) GROUP_INT8_FORMATS(MULTIPLY_ENTRY)},                                \
        .tile = {BLOCK_FORMATS(TILE_ENTRY) GROUP_INT8_FORMATS(TILE_ENTRY)}, .probe = probe                             \
    }

#endif
