#include "measure/svg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pixels. */
enum {
    PANEL_WIDTH = 360,
    PLOT_LEFT = 64, /* room for the y labels */
    PLOT_RIGHT = 16,
    PLOT_TOP = 64,
    PLOT_HEIGHT = 240,
    AXIS_ROOM = 52,
    LEGEND_LINE = 20,
    LEGEND_COLUMN = 360,
    MARGIN = 16,
};

/* Okabe and Ito's palette, distinguishable with the common colour vision deficiencies. */
static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"};
enum { COLOURS = sizeof colours / sizeof colours[0] };

size_t svg_ticks(double low, double high, double ticks[SVG_MAX_TICKS]) {
    if (!(high > low)) high = low + (fabs(low) > 0 ? fabs(low) : 1);
    double raw = (high - low) / 5, power = pow(10, floor(log10(raw))), step = power;
    static const double multiples[] = {1, 2, 5, 10};
    for (int i = 0; i < 4 && step < raw * (1 - 1e-9); i++) step = multiples[i] * power;
    double first = floor(low / step + 1e-9) * step;
    size_t n = 0;
    for (; n < SVG_MAX_TICKS; n++) {
        ticks[n] = first + (double)n * step;
        if (fabs(ticks[n]) < step * 1e-9) ticks[n] = 0;
        if (ticks[n] >= high - step * 1e-9) return n + 1;
    }
    return n;
}

void svg_number(double value, char *out, size_t bytes) {
    double size = fabs(value);
    if (size >= 1e9) {
        snprintf(out, bytes, "%.4gG", value / 1e9);
    } else if (size >= 1e6) {
        snprintf(out, bytes, "%.4gM", value / 1e6);
    } else if (size >= 1e3) {
        snprintf(out, bytes, "%.4gk", value / 1e3);
    } else {
        snprintf(out, bytes, "%.4g", value);
    }
}

static void put_text(FILE *out, const char *text) {
    for (const char *c = text; *c; c++) {
        switch (*c) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            if ((unsigned char)*c >= ' ') fputc(*c, out); /* control characters are not XML */
        }
    }
}

/* Index among the distinct names of all panels, in order of appearance. */
static size_t legend_index(const svg_panel *panels, size_t n_panels, const char *name, size_t *total) {
    size_t found = 0, count = 0;
    bool have = false;
    for (size_t p = 0; p < n_panels; p++) {
        for (size_t s = 0; s < panels[p].n_series; s++) {
            const char *candidate = panels[p].series[s].name;
            bool seen = false;
            for (size_t q = 0; q <= p && !seen; q++)
                for (size_t r = 0; r < (q == p ? s : panels[q].n_series) && !seen; r++)
                    seen = strcmp(panels[q].series[r].name, candidate) == 0;
            if (seen) continue;
            if (!have && name && strcmp(candidate, name) == 0) {
                found = count;
                have = true;
            }
            count++;
        }
    }
    if (total) *total = count;
    return found;
}

typedef struct axis {
    double ticks[SVG_MAX_TICKS];
    size_t n;
    double origin, length; /* pixels; y axes have a negative length */
} axis;

static double at(const axis *a, double value) {
    double low = a->ticks[0], high = a->ticks[a->n - 1];
    return a->origin + a->length * (value - low) / (high - low);
}

static void find_axes(const svg_panel *panel, double left, axis *x, axis *y) {
    double low[2] = {INFINITY, INFINITY}, high[2] = {-INFINITY, -INFINITY};
    for (size_t s = 0; s < panel->n_series; s++) {
        for (size_t i = 0; i < panel->series[s].n; i++) {
            double value[2] = {panel->series[s].x[i], panel->series[s].y[i]};
            for (int k = 0; k < 2; k++) {
                low[k] = fmin(low[k], value[k]);
                high[k] = fmax(high[k], value[k]);
            }
        }
    }
    for (int k = 0; k < 2; k++)
        if (!(low[k] <= high[k])) low[k] = 0, high[k] = 1; /* no points */
    if (panel->from_zero) low[1] = fmin(low[1], 0);
    high[1] = fmax(high[1], panel->least_top);
    low[0] = fmin(low[0], 0); /* contexts start at nothing */
    *x = (axis){.origin = left + PLOT_LEFT, .length = PANEL_WIDTH - PLOT_LEFT - PLOT_RIGHT};
    *y = (axis){.origin = PLOT_TOP + PLOT_HEIGHT, .length = -PLOT_HEIGHT};
    x->n = svg_ticks(low[0], high[0], x->ticks);
    y->n = svg_ticks(low[1], high[1], y->ticks);
}

static void put_axes(FILE *out, const svg_panel *panel, double left, const axis *x, const axis *y) {
    double bottom = y->origin, top = y->origin + y->length, right = x->origin + x->length;
    char label[32];
    for (size_t i = 0; i < y->n; i++) {
        double v = at(y, y->ticks[i]);
        svg_number(y->ticks[i], label, sizeof label);
        fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#dddddd\"/>\n", x->origin, v,
                right, v);
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", x->origin - 6, v + 4, label);
    }
    for (size_t i = 0; i < x->n; i++) {
        double h = at(x, x->ticks[i]);
        svg_number(x->ticks[i], label, sizeof label);
        fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#333333\"/>\n", h, bottom, h,
                bottom + 4);
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", h, bottom + 18, label);
    }
    fprintf(out, "<path d=\"M%.1f %.1fV%.1fH%.1f\" fill=\"none\" stroke=\"#333333\"/>\n", x->origin, top, bottom,
            right);
    double middle = (x->origin + right) / 2;
    fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" font-weight=\"bold\">", middle, PLOT_TOP - 14);
    put_text(out, panel->title);
    fprintf(out, "</text>\n<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", middle, bottom + 38);
    put_text(out, panel->x_label);
    double y_middle = (bottom + top) / 2, y_left = left + 14;
    fprintf(out, "</text>\n<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" transform=\"rotate(-90 %.1f %.1f)\">",
            y_left, y_middle, y_left, y_middle);
    put_text(out, panel->y_label);
    fputs("</text>\n", out);
}

static void put_stroke(FILE *out, const svg_series *series) {
    static const char *const dashes[] = {"", " stroke-dasharray=\"7 4\"", " stroke-dasharray=\"2 3\"",
                                         " stroke-dasharray=\"9 3 2 3\""};
    fprintf(out, "stroke=\"%s\" stroke-width=\"2\"%s", colours[series->colour % COLOURS], dashes[series->stroke % 4]);
}

static void put_series(FILE *out, const svg_series *series, size_t index, const axis *x, const axis *y) {
    if (!series->n) return;
    fputs("<polyline fill=\"none\" ", out);
    put_stroke(out, series);
    fputs(" points=\"", out);
    for (size_t i = 0; i < series->n; i++)
        fprintf(out, "%s%.1f,%.1f", i ? " " : "", at(x, series->x[i]), at(y, series->y[i]));
    fputs("\"/>\n", out);
    /* Smaller marks for later series, so that coinciding points all show. */
    double radius = 5.5 - 0.7 * (double)(index % 6);
    for (size_t i = 0; i < series->n; i++)
        fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\"/>\n", at(x, series->x[i]),
                at(y, series->y[i]), radius, colours[series->colour % COLOURS]);
}

static void put_legend(FILE *out, const svg_panel *panels, size_t n_panels, size_t columns, double top) {
    size_t entries;
    legend_index(panels, n_panels, NULL, &entries);
    for (size_t e = 0; e < entries; e++) {
        const svg_series *series = NULL;
        for (size_t p = 0; p < n_panels && !series; p++)
            for (size_t s = 0; s < panels[p].n_series && !series; s++)
                if (legend_index(panels, n_panels, panels[p].series[s].name, NULL) == e) series = &panels[p].series[s];
        if (!series) continue;
        double left = MARGIN + (double)(e % columns) * LEGEND_COLUMN, y = top + (double)(e / columns) * LEGEND_LINE;
        fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" ", left, y, left + 28, y);
        put_stroke(out, series);
        fprintf(out, "/>\n<text x=\"%.1f\" y=\"%.1f\">", left + 36, y + 4);
        put_text(out, series->name);
        fputs("</text>\n", out);
    }
}

char *svg_chart(const char *title, const svg_panel *panels, size_t n_panels) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return NULL;
    size_t entries, columns = n_panels ? n_panels : 1;
    legend_index(panels, n_panels, NULL, &entries);
    size_t width = 2 * MARGIN + columns * PANEL_WIDTH;
    size_t legend_top = PLOT_TOP + PLOT_HEIGHT + AXIS_ROOM + MARGIN;
    size_t height = legend_top + ((entries + columns - 1) / columns) * LEGEND_LINE + MARGIN;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%zu\" height=\"%zu\" viewBox=\"0 0 %zu %zu\" "
            "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222222\">\n<rect width=\"100%%\" height=\"100%%\" "
            "fill=\"white\"/>\n<text x=\"%d\" y=\"26\" font-size=\"15\" font-weight=\"bold\">",
            width, height, width, height, MARGIN);
    put_text(out, title);
    fputs("</text>\n", out);
    for (size_t p = 0; p < n_panels; p++) {
        axis x, y;
        double left = MARGIN + (double)p * PANEL_WIDTH;
        find_axes(&panels[p], left, &x, &y);
        put_axes(out, &panels[p], left, &x, &y);
        for (size_t s = 0; s < panels[p].n_series; s++)
            put_series(out, &panels[p].series[s], legend_index(panels, n_panels, panels[p].series[s].name, NULL), &x,
                       &y);
    }
    put_legend(out, panels, n_panels, columns, (double)legend_top);
    fputs("</svg>\n", out);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
