/* int8 products of many rows, for instruction sets whose vectors hold the 16 outputs of a tile.
 *
 * The codes of two tiles are taken apart once for all rows of a call, to bytes that stay in the first cache together
 * with a few rows: a panel. In a panel all formats look alike, so the products know kinds of scales, not formats. Each
 * four values of a row are broadcast once for both tiles.
 *
 * Bound: 8 products of four bytes for 32 values, a row and 16 outputs, with at least three operations on float32 that
 * the definition asks for (int8.h), all on the same two ports: 8 / 11 of the rate of the products alone. */
#ifndef KAKEYA_BACKEND_CPU_INT8_PANELS_H
#define KAKEYA_BACKEND_CPU_INT8_PANELS_H

enum {
    PANEL_TILES = 2,
    PANEL_OUTPUTS = PANEL_TILES * TILE_OUTPUTS,
    PANEL_ROWS = 6,        /* that pass together: their sums fit into registers */
    PANEL_ROWS_APART = 4,  /* with sums of halves */
    PANEL_PARTS = 24,      /* blocks of 32 of a panel */
    PANEL_LEAST_ROWS = 17, /* fewer are one or two passes over tiles as they lie, the second from the second cache */
    PANEL_ROUND_BYTES = 640 << 10, /* of packed rows that stay in the second cache while outputs pass */
    PANEL_ROUND_ROWS = 192,
};

/* 32 values of the tiles of a panel. Codes stand 128 above the signed ones, those of formats with minimums or zero
 * points 0. Of the scales only those are there that the kind has. */
typedef struct panel_part {
    uint8_t codes[TILE_PIECES][PANEL_TILES][TILE_PIECE_BYTES];
    float d[2][PANEL_OUTPUTS], m[2][PANEL_OUTPUTS], s[2][PANEL_OUTPUTS];
} panel_part;

/* Forms that stand for their kinds. */
static const int8_form panel_plain = {.scales = SCALES_F16}, panel_min = {.scales = SCALES_F16_MIN},
                       panel_zero = {.scales = SCALES_GROUP_ZERO}, panel_pair = {.scales = SCALES_PAIR},
                       panel_halves = {.scales = SCALES_HALVES}, panel_halves_min = {.scales = SCALES_HALVES_MIN};

BLOCKS_INLINE void store_scales(const int8_form *form, const tile_scales *s, int at, panel_part *out) {
    UNROLL for (int h = 0; h < 2; h++) {
        const bool halves = form_has_halves(form);
        if (h == 0 || halves) lanes_store(out->d[h] + at, s->d[h]);
        if (form_has_total(form) && (h == 0 || halves)) lanes_store(out->m[h] + at, s->m[h]);
        if (form->scales == SCALES_PAIR) lanes_store(out->s[h] + at, s->s[h]);
    }
}

BLOCKS_INLINE tile_scales stored_scales(const int8_form *form, const panel_part *part, int at) {
    tile_scales s;
    const bool halves = form_has_halves(form);
    UNROLL for (int h = 0; h < 2; h++) {
        s.d[h] = lanes_load(part->d[halves ? h : 0] + at);
        s.m[h] = form_has_total(form) ? lanes_load(part->m[halves ? h : 0] + at) : lanes_zero_f32();
        s.s[h] = form->scales == SCALES_PAIR ? lanes_load(part->s[h] + at) : lanes_zero_f32();
    }
    return s;
}

/* `blocks` tiles to outputs [at, at + TILE_OUTPUTS) of a panel. */
BLOCKS_INLINE void open_tiles(const int8_form *form, int8_shape shape, const unsigned char *tiles, size_t blocks,
                              int at, panel_part *out) {
    const int above = form_has_total(form) ? 0 : 128 - form->offset;
    for (size_t b = 0; b < blocks; b++, tiles += tile_bytes(form, shape)) {
        lanes_f32 d, m;
        load_head(form, shape, tiles, 0, &d, &m);
        const unsigned char *part = tiles + tile_head_bytes(form);
        for (int j = 0; j < shape.inside; j++, part += tile_part_bytes(form), out++) {
            tile_scales s;
            load_subs(form, part, 0, d, m, &s);
            store_scales(form, &s, at, out);
            UNROLL for (int p = 0; p < TILE_PIECES; p++) {
                const lanes_codes c = load_piece(form, part + tile_subs_bytes(form), p);
                codes_store(out->codes[p][at / TILE_OUTPUTS], above ? codes_add(c, above) : c);
            }
        }
    }
}

/* Where the sums of rows with a panel come from and go to. */
typedef struct panel_sums {
    const float *from; /* NULL: zeros */
    float *to;
    size_t ld_from, ld_to;
} panel_sums;

/* R rows, x_bytes apart, with a panel. What the rows behind them need is fetched meanwhile. */
BLOCKS_INLINE void panel_rows(const int8_form *kind, const int R, const unsigned char *x, size_t x_bytes,
                              const panel_part *part, size_t parts, const panel_sums *sums) {
    const bool apart = form_in_halves(kind), signed_codes = !form_has_total(kind);
    lanes_f32 acc[PANEL_ROWS][PANEL_TILES];
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int t = 0; t < PANEL_TILES; t++) {
            acc[r][t] = lanes_zero_f32();
            if (sums->from) acc[r][t] = lanes_load(sums->from + (size_t)r * sums->ld_from + t * TILE_OUTPUTS);
            __builtin_prefetch(sums->to + (size_t)(r + R) * sums->ld_to + t * TILE_OUTPUTS, 1, 3);
        }
    }
    for (size_t b = 0; b < parts; b++, part++, x += sizeof(int8_record)) {
        lanes_i32 sum[2][PANEL_ROWS][PANEL_TILES];
        UNROLL for (int r = 0; r < R; r++) {
            const int8_record *row = (const int8_record *)(const void *)(x + (size_t)r * x_bytes);
            __builtin_prefetch(x + (size_t)(r + R) * x_bytes, 0, 3);
            lanes_i32 from[2] = {lanes_zero(), lanes_zero()};
            if (signed_codes && !apart) from[0] = lanes_set_i32(&row->start);
            if (signed_codes && apart) {
                from[0] = lanes_pairs(-128, 0, row->half);
                from[1] = lanes_pairs(0, -128, row->half);
            }
            UNROLL for (int t = 0; t < PANEL_TILES; t++) {
                sum[0][r][t] = from[0];
                sum[1][r][t] = from[1];
            }
        }
        UNROLL for (int p = 0; p < TILE_PIECES; p++) {
            const int h = apart && p >= TILE_PIECES / 2;
            lanes_codes c[PANEL_TILES];
            UNROLL for (int t = 0; t < PANEL_TILES; t++) c[t] = codes_load(part->codes[p][t]);
            UNROLL for (int r = 0; r < R; r++) {
                const unsigned char *four = x + (size_t)r * x_bytes + 4 * p;
                UNROLL for (int t = 0; t < PANEL_TILES; t++) sum[h][r][t] = part_add(sum[h][r][t], c[t], four, false);
            }
        }
        UNROLL for (int t = 0; t < PANEL_TILES; t++) {
            const tile_scales s = stored_scales(kind, part, t * TILE_OUTPUTS);
            UNROLL for (int r = 0; r < R; r++) {
                const int8_record *row = (const int8_record *)(const void *)(x + (size_t)r * x_bytes);
                acc[r][t] = add_part(kind, &s, sum[0][r][t], sum[apart ? 1 : 0][r][t], row, acc[r][t]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int t = 0; t < PANEL_TILES; t++)
            lanes_store(sums->to + (size_t)r * sums->ld_to + t * TILE_OUTPUTS, acc[r][t]);
    }
}

typedef void (*panel_product)(int rows, const unsigned char *x, size_t x_bytes, const panel_part *panel, size_t parts,
                              const panel_sums *sums);

#define PANEL_CASE(kind, R)                                                                                            \
    case R:                                                                                                            \
        panel_rows(&panel_##kind, R, x, x_bytes, panel, parts, sums);                                                  \
        break;
#define DEFINE_PANEL_PRODUCT(kind, MORE_CASES)                                                                         \
    static void panel_product_##kind(int rows, const unsigned char *x, size_t x_bytes, const panel_part *panel,        \
                                     size_t parts, const panel_sums *sums) {                                           \
        switch (rows) {                                                                                                \
            PANEL_CASE(kind, 1)                                                                                        \
            PANEL_CASE(kind, 2)                                                                                        \
            PANEL_CASE(kind, 3)                                                                                        \
            PANEL_CASE(kind, 4)                                                                                        \
            MORE_CASES                                                                                                 \
        default:                                                                                                       \
            break;                                                                                                     \
        }                                                                                                              \
    }
DEFINE_PANEL_PRODUCT(plain, PANEL_CASE(plain, 5) PANEL_CASE(plain, 6))
DEFINE_PANEL_PRODUCT(min, PANEL_CASE(min, 5) PANEL_CASE(min, 6))
DEFINE_PANEL_PRODUCT(zero, PANEL_CASE(zero, 5) PANEL_CASE(zero, 6))
DEFINE_PANEL_PRODUCT(pair, )
DEFINE_PANEL_PRODUCT(halves, )
DEFINE_PANEL_PRODUCT(halves_min, )

BLOCKS_INLINE panel_product panel_product_of(const int8_form *form) {
    if (form->scales == SCALES_PAIR) return panel_product_pair;
    if (form->scales == SCALES_GROUP_ZERO) return panel_product_zero;
    if (form_has_factors(form)) return panel_product_halves;
    if (form->scales == SCALES_HALVES_MIN) return panel_product_halves_min;
    return form_has_min(form) ? panel_product_min : panel_product_plain;
}

typedef void (*panel_opener)(int8_shape shape, const unsigned char *tiles, size_t blocks, int at, panel_part *out);

/* The next of `left` things, at most `most` at a time and as even as it goes. */
static int even_share(int left, int most) {
    int groups = (left + most - 1) / most;
    return (left + groups - 1) / groups;
}

/* Some of the bytes [at, end), which come next, on their way to the second cache. */
BLOCKS_INLINE const unsigned char *fetch(const unsigned char *at, const unsigned char *end, size_t bytes) {
    if ((size_t)(end - at) < bytes) bytes = (size_t)(end - at);
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
    return at + bytes;
}

/* Rows [0, rows) of one round; few enough that they stay in the second cache while the outputs pass. */
static void multiply_panels(const int8_form *form, panel_opener open, const void *packed, int rows, const weight *w,
                            float *y, size_t ldy) {
    alignas(64) panel_part panel[PANEL_PARTS];
    alignas(64) float kept[PANEL_ROUND_ROWS * PANEL_OUTPUTS];
    const size_t row_bytes = int8_row_bytes(w->in), tile_row = tiles_row_bytes(w);
    const int8_shape shape = form_shape(form, w);
    const int inside = shape.inside, blocks = (int)tiles_in_row(w);
    const int together = form_in_halves(form) ? PANEL_ROWS_APART : PANEL_ROWS;
    const panel_product product = panel_product_of(form);
    tile_outputs t[PANEL_TILES];
    /* A tile that is not there is multiplied too, and its sums are dropped: it has to be written once. */
    const int lanes = w->first % TILE_OUTPUTS + w->out;
    if ((lanes + TILE_OUTPUTS - 1) / TILE_OUTPUTS % PANEL_TILES) memset(panel, 0, sizeof panel);
    for (int o = 0; o < w->out; o += t[0].n + t[1].n) {
        t[0] = outputs_at(form, w, o);
        t[1] = (tile_outputs){0};
        if (o + t[0].n < w->out) t[1] = outputs_at(form, w, o + t[0].n);
        const bool whole = t[0].n == TILE_OUTPUTS && t[1].n == TILE_OUTPUTS && !t[0].factors;
        const unsigned char *tiles =
            (const unsigned char *)w->stream[0] + (size_t)((w->first + o) / TILE_OUTPUTS) * tile_row;
        for (int first = 0, n; first < blocks; first += n) {
            n = even_share(blocks - first, PANEL_PARTS / inside);
            const size_t bytes = (size_t)n * tile_bytes(form, shape);
            const bool last = first + n == blocks;
            const unsigned char *next[PANEL_TILES], *end[PANEL_TILES];
            for (int i = 0; i < PANEL_TILES; i++) {
                const unsigned char *at = tiles + (size_t)i * tile_row + (size_t)first * tile_bytes(form, shape);
                if (t[i].n) open(shape, at, (size_t)n, i * TILE_OUTPUTS, panel);
                next[i] = end[i] = at + bytes + (last ? (PANEL_TILES - 1) * tile_row : 0);
                if (!last || o + PANEL_TILES * TILE_OUTPUTS < w->out) end[i] += bytes;
            }
            const unsigned char *x = (const unsigned char *)packed + (size_t)(first * inside) * sizeof(int8_record);
            const size_t share = bytes / (size_t)((rows + together - 1) / together) + 64;
            panel_sums sums = {first ? kept : NULL, kept, PANEL_OUTPUTS, PANEL_OUTPUTS};
            if (last && whole) sums.to = y + o, sums.ld_to = ldy;
            for (int r = 0, some; r < rows; r += some) {
                some = even_share(rows - r, together);
                for (int i = 0; i < PANEL_TILES; i++) next[i] = fetch(next[i], end[i], share);
                product(some, x + (size_t)r * row_bytes, row_bytes, panel, (size_t)(n * inside), &sums);
                if (sums.from) sums.from += (size_t)some * sums.ld_from;
                sums.to += (size_t)some * sums.ld_to;
            }
        }
        if (whole) continue;
        store_sums(&t[0], rows, kept, PANEL_OUTPUTS, y + o, ldy);
        if (t[1].n) store_sums(&t[1], rows, kept + TILE_OUTPUTS, PANEL_OUTPUTS, y + o + t[0].n, ldy);
    }
}

static void multiply_in_rounds(const int8_form *form, panel_opener open, const void *packed, int rows, const weight *w,
                               float *y, size_t ldy) {
    const size_t row_bytes = int8_row_bytes(w->in);
    size_t most = PANEL_ROUND_BYTES / row_bytes / PANEL_ROWS * PANEL_ROWS;
    if (most < 4 * PANEL_ROWS) most = 4 * PANEL_ROWS;
    if (most > PANEL_ROUND_ROWS) most = PANEL_ROUND_ROWS;
    for (int r = 0, n; r < rows; r += n) {
        n = even_share(rows - r, (int)most);
        multiply_panels(form, open, (const unsigned char *)packed + (size_t)r * row_bytes, n, w, y + (size_t)r * ldy,
                        ldy);
    }
}

#endif
