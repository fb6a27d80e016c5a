/* Line charts as SVG text: panels side by side, each with axes, grid and its series, and one legend below. */
#ifndef KAKEYA_MEASURE_SVG_H
#define KAKEYA_MEASURE_SVG_H

#include <stdbool.h>
#include <stddef.h>

enum { SVG_MAX_TICKS = 12, SVG_MAX_POINTS = 64 };

typedef struct svg_series {
    char name[96]; /* series of equal names share one legend entry across panels */
    double x[SVG_MAX_POINTS], y[SVG_MAX_POINTS];
    size_t n;
    int colour; /* any number: the palette goes round */
    int stroke; /* 0 solid, 1 dashed, 2 dotted, 3 dash and dot; goes round */
} svg_series;

typedef struct svg_panel {
    const char *title, *x_label, *y_label;
    const svg_series *series;
    size_t n_series;
    bool from_zero;   /* the y axis starts at 0 */
    double least_top; /* the y axis reaches at least this; 0: the data decide */
} svg_panel;

/* Ascending round values (1, 2 or 5 times a power of ten apart) that cover [low, high]; returns their number. */
size_t svg_ticks(double low, double high, double ticks[SVG_MAX_TICKS]);
/* 1200 -> "1.2k", 0.25 -> "0.25". */
void svg_number(double value, char *out, size_t bytes);

/* malloc'ed SVG document; NULL when out of memory. */
char *svg_chart(const char *title, const svg_panel *panels, size_t n_panels);

#endif
