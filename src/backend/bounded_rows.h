/* Rows of a prompt's forward where weights are under a limit: each forward reads each expert at most once, so long ones
 * read less. Their workspace may take a part of what the limit is, which is small beside it. */
#ifndef KAKEYA_BACKEND_BOUNDED_ROWS_H
#define KAKEYA_BACKEND_BOUNDED_ROWS_H

#include <stddef.h>

enum { BOUNDED_ROWS_MOST = 2048, BOUNDED_ROWS_STEP = 128, BOUNDED_ROWS_PARTS = 10 };

/* limit: of weights; row_bytes: of workspace. At least `least`, which is at most BOUNDED_ROWS_MOST. */
static inline int bounded_rows(size_t limit, size_t row_bytes, int least) {
    const size_t rows = limit / BOUNDED_ROWS_PARTS / row_bytes / BOUNDED_ROWS_STEP * BOUNDED_ROWS_STEP;
    if (rows < (size_t)least) return least;
    return rows < BOUNDED_ROWS_MOST ? (int)rows : BOUNDED_ROWS_MOST;
}

#endif
