/* How an answer was drafted, block by block, as text. In `auto` the lengths of blocks come from measured times, so
 * nobody else can know them; with them, an answer's drafts can be computed again. */
#ifndef KAKEYA_MEASURE_DRAFT_BLOCKS_H
#define KAKEYA_MEASURE_DRAFT_BLOCKS_H

#include "decode/draft_control.h"

typedef struct draft_blocks {
    draft_block *block; /* [n]: source, asked, drafted and looked_up; owned */
    size_t n, capacity;
} draft_blocks;

/* False when out of memory. */
bool draft_blocks_add(draft_blocks *blocks, const draft_block *block);
void draft_blocks_free(draft_blocks *blocks);

/* A word for each block, with blanks between: "0" (no draft), "n4" (four of n-grams), "d7" (the drafter was asked for
 * seven, and all were verified), "d7:3+2" (three of seven, and two that the text had behind them), "a4" the same of an
 * MTP assistant. malloc'ed; NULL when out of memory. */
char *draft_blocks_to_text(const draft_blocks *blocks);
/* KAKEYA_FORMAT where it is no such text. *out needs draft_blocks_free in every case. */
kakeya_status draft_blocks_from_text(const char *text, draft_blocks *out, kakeya_error *error);

#endif
