/* Which position lies in which slot of a tile's keys. Positions alone decide, never the call: so a row meets the same
 * numbers at the same places in whatever block or chunk it is computed, and every operation has the same shape.
 *
 * The same holds for rows: a tile begins at a multiple of its rows, so a row is always the same one of its tile.
 *
 *   layers          | prompt tile [o, o + P)            | decode tile
 *   ----------------+-----------------------------------+------------------------------------------------------
 *   sliding         | ascending from o - W + 1          | position mod ring(W)
 *   sliding, bounded| the same                          | the sink, then position mod ring(min(w, W))
 *   full            | ascending from 0, to a multiple of MLX_KEY_STEP behind the row
 *   full, bounded   | the same                          | the sink, then position mod ring(w)
 *   latents         | as the layer's exact keys         | sliding: position mod ring(W); full: ascending from 0
 *
 * A picture whose rows see each other is a tile of its own, which begins where the picture does: it is never cut, so
 * its rows always lie together.
 *
 * Where a slot's row comes from is another matter, and only copies know of it: from rows that are stored, or from those
 * of the segment's tiles up to this one. */
#ifndef KAKEYA_BACKEND_MLX_LAYOUT_H
#define KAKEYA_BACKEND_MLX_LAYOUT_H

#include "backend/mlx/mlx.h"

/* Rows [first, first + n) of a segment as rows of a tile. */
typedef struct tile_rows {
    const backend_cache *cache;
    segment_kind kind;
    int rows;     /* of the tile */
    int origin;   /* position of its row 0 */
    int first, n; /* positions that are computed; the tile's other rows are padding */
    bool picture; /* whose rows see each other in sliding layers */
} tile_rows;

/* The tile that position `at` of a segment is computed in: as many of its rows as belong together. */
tile_rows layout_tile(const backend_segment *r, int at);

/* Stored rows of layers of one type that a segment's rows see: a row of zeros, then these positions, ascending. */
typedef struct stored_plan {
    position_range sink, exact;
    int rows; /* 0: there is no such layer */
} stored_plan;

/* What a segment's tiles share. */
typedef struct chain_plan {
    stored_plan stored[2]; /* sliding, full */
    int length;            /* positions that were stored when it began */
    int tile_rows;         /* of a tile, at most, but for those of pictures */
    bool pictures;         /* there are such tiles */
    bool single;           /* tiles are of one row and the next forward's may follow */
} chain_plan;

/* Slots of a tile by type of layer: exact, and of latents. */
typedef struct tile_sizes {
    int rows, slots[2], restored[2];
} tile_sizes;
tile_sizes layout_sizes(const backend_model *m, const tile_rows *tile);

chain_plan layout_chain(const backend_segment *r);
/* How the rows of layers of one type are kept. */
mlx_stored_rows layout_stored(const backend_model *m, const backend_cache *c, const chain_plan *plan, int type);
/* Bytes of a stored row as the numbers that stock operations take. */
size_t layout_number_bytes(const timeline_layer *l);
/* The position of a row of stored[type], -1: zeros. */
int layout_position(const stored_plan *plan, int row);

/* The spans of a tile with their memory: one block. */
typedef struct tile_spans {
    mlx_span span[2];
    void *memory;
} tile_spans;

kakeya_status layout_spans(const backend_model *m, const tile_rows *tile, const chain_plan *plan, tile_spans *out,
                           kakeya_error *error);
void layout_free(tile_spans *spans);

#endif
