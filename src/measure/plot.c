#include "measure/plot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/statistics.h"
#include "measure/svg.h"

static bool in_picture(const eval_row *row) { return !row->warmup && row->arm.mix_alpha < 0; }

/* Medians over the samples of one arm and rung. */
typedef struct rung_figures {
    double prompt_tokens, recall, decode_speed, kv_bytes;
} rung_figures;

static rung_figures figures_of(const eval_rows *rows, const eval_row *of, double *scratch) {
    rung_figures f = {0};
    size_t n = 0;
    for (size_t i = 0; i < rows->n; i++) {
        const eval_row *row = &rows->row[i];
        if (!in_picture(row) || row->lines != of->lines || !eval_arm_equal(&row->arm, &of->arm)) continue;
        f.prompt_tokens += (double)row->prompt_tokens;
        f.recall += row->correct;
        if ((double)row->kv.total > f.kv_bytes) f.kv_bytes = (double)row->kv.total;
        scratch[n++] = eval_row_decode_speed(row);
    }
    f.decode_speed = statistics_median(scratch, n);
    f.prompt_tokens /= (double)n;
    f.recall /= (double)n;
    return f;
}

/* Points stand in the order of their context. */
static void add_point(svg_series *series, double x, double y) {
    if (series->n == SVG_MAX_POINTS) return;
    size_t i = series->n++;
    for (; i && series->x[i - 1] > x; i--) {
        series->x[i] = series->x[i - 1];
        series->y[i] = series->y[i - 1];
    }
    series->x[i] = x;
    series->y[i] = y;
}

enum { RECALL = 0, MEMORY, SPEED, PANELS, MAX_ARMS = 24 };

/* The colour says the policy, the stroke the mode. */
static svg_series *find_series(svg_series *series, size_t *n, const eval_arm *arm) {
    static const char *const policies[] = {"native", "restored", "sink-window", "restored-all"};
    bool ar = strcmp(arm->mode, "ar") == 0;
    svg_series wanted = {.stroke = ar};
    snprintf(wanted.name, sizeof wanted.name, "%s, %s", arm->policy, arm->mode);
    size_t used = strlen(wanted.name);
    if (!ar) snprintf(wanted.name + used, sizeof wanted.name - used, ", draft window %d", arm->draft_window);
    while (wanted.colour < 3 && strcmp(policies[wanted.colour], arm->policy) != 0) wanted.colour++;
    int others = 0; /* of this policy and not one token at a time: other draft windows */
    for (size_t i = 0; i < *n; i++) {
        if (strcmp(series[i].name, wanted.name) == 0) return &series[i];
        others += series[i].colour == wanted.colour && series[i].stroke != 1;
    }
    if (*n == MAX_ARMS) return NULL;
    if (!ar && others) wanted.stroke = 1 + others;
    series[*n] = wanted;
    return &series[(*n)++];
}

static bool first_of_rung(const eval_rows *rows, size_t i) {
    if (!in_picture(&rows->row[i])) return false;
    for (size_t j = 0; j < i; j++)
        if (in_picture(&rows->row[j]) && rows->row[j].lines == rows->row[i].lines &&
            eval_arm_equal(&rows->row[j].arm, &rows->row[i].arm))
            return false;
    return true;
}

char *plot_niah(const eval_rows *rows) {
    svg_series *series = calloc((size_t)PANELS * MAX_ARMS, sizeof *series);
    double *scratch = calloc(rows->n + 1, sizeof *scratch);
    char *text = NULL;
    if (series && scratch) {
        size_t n[PANELS] = {0};
        for (size_t i = 0; i < rows->n; i++) /* arms stand in the order of their first rows */
            for (int p = 0; p < PANELS && rows->row[i].arm.mix_alpha < 0; p++)
                find_series(series + p * MAX_ARMS, &n[p], &rows->row[i].arm);
        for (size_t i = 0; i < rows->n; i++) {
            if (!first_of_rung(rows, i)) continue;
            rung_figures f = figures_of(rows, &rows->row[i], scratch);
            const double value[PANELS] = {f.recall * 100, f.kv_bytes, f.decode_speed};
            for (int p = 0; p < PANELS; p++) {
                svg_series *line = find_series(series + p * MAX_ARMS, &n[p], &rows->row[i].arm);
                if (line) add_point(line, f.prompt_tokens, value[p]);
            }
        }
        const char *context = "prompt tokens";
        const svg_panel panels[PANELS] = {
            {"Recall", context, "needles found, %", series, n[RECALL], true, 100},
            {"Resident K/V of a session", context, "bytes allocated", series + MAX_ARMS, n[MEMORY], true, 0},
            {"Decoding", context, "tokens per second (median)", series + 2 * MAX_ARMS, n[SPEED], true, 0},
        };
        text = svg_chart("Needle in a haystack: attention policies side by side", panels, PANELS);
    }
    free(series);
    free(scratch);
    return text;
}
