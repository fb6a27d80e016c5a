/* The picture of a needle evaluation: recall, resident K/V and decode speed against context. */
#ifndef KAKEYA_MEASURE_PLOT_H
#define KAKEYA_MEASURE_PLOT_H

#include "measure/rows.h"

/* malloc'ed SVG document; NULL when out of memory. */
char *plot_niah(const eval_rows *rows);

#endif
