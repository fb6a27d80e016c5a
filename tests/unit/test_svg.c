/* Protects the charts: ticks that cover the data at round values, labels that can be read, and documents that any XML
 * reader takes, whatever the names in them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "measure/plot.h"
#include "measure/statistics.h"
#include "measure/svg.h"

static void ticks_cover_the_range_at_round_steps(void **state) {
    (void)state;
    static const double ranges[][2] = {{0, 1},      {0, 100},    {0, 7312},  {-3, 4},      {1e-6, 2e-6},
                                       {0, 1e12},   {12, 280},   {0.1, 0.1}, {0, 0},       {-1e-3, 1e-3},
                                       {99.5, 100}, {0, 5.0001}, {0, 9.99},  {0, 2097152}, {250, 260}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        double ticks[SVG_MAX_TICKS];
        double low = ranges[i][0], high = ranges[i][1];
        size_t n = svg_ticks(low, high, ticks);
        if (n < 2 || n > SVG_MAX_TICKS) fail_msg("[%g, %g] has %zu ticks", low, high, n);
        double step = ticks[1] - ticks[0], slack = 1e-6 * step;
        if (ticks[0] > low + slack || ticks[n - 1] < high - slack)
            fail_msg("[%g, %g] is not covered by ticks %g..%g", low, high, ticks[0], ticks[n - 1]);
        double mantissa = step / pow(10, floor(log10(step) + 1e-9));
        if (fabs(mantissa - 1) > 1e-6 && fabs(mantissa - 2) > 1e-6 && fabs(mantissa - 5) > 1e-6)
            fail_msg("[%g, %g] has steps of %g", low, high, step);
    }
}

static void numbers_are_short(void **state) {
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"},       {1200, "1.2k"},   {7000, "7k"}, {2500000, "2.5M"},
                 {0.25, "0.25"}, {-1500, "-1.5k"}, {3e9, "3G"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[32];
        svg_number(cases[i].value, text, sizeof text);
        assert_string_equal(text, cases[i].text);
    }
}

static size_t count(const char *text, const char *part) {
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part)) n++;
    return n;
}

/* Every tag is closed, in order, and no markup comes from data. */
static void assert_well_formed(const char *document) {
    char stack[64][32];
    int depth = 0;
    for (const char *at = document; (at = strchr(at, '<')) != NULL; at++) {
        const char *end = strchr(at, '>');
        assert_non_null(end);
        char name[32] = "";
        bool closing = at[1] == '/';
        size_t length = strcspn(at + 1 + closing, " />\n");
        assert_true(length > 0 && length < sizeof name);
        memcpy(name, at + 1 + closing, length);
        if (closing) {
            assert_true(depth > 0);
            assert_string_equal(stack[--depth], name);
        } else if (end[-1] != '/') {
            assert_true(depth < 64);
            memcpy(stack[depth++], name, sizeof name);
        }
    }
    assert_int_equal(depth, 0);
}

static void charts_hold_their_series(void **state) {
    (void)state;
    svg_series series[2] = {{.name = "a < b & \"c\"", .x = {0, 10, 20}, .y = {1, 2, 3}, .n = 3},
                            {.name = "dashed\x01", .x = {0, 10}, .y = {5, 5}, .n = 2, .colour = 9, .stroke = 5}};
    const svg_panel panels[] = {{"one", "x", "y", series, 2, true, 0}, {"two", "x", "y", series, 1, false, 0}};
    char *document = svg_chart("title <&>", panels, 2);
    assert_non_null(document);
    assert_well_formed(document);
    assert_int_equal(count(document, "<polyline"), 3);
    assert_int_equal(count(document, "<circle"), 3 + 2 + 3);
    assert_int_equal(count(document, "a &lt; b &amp; &quot;c&quot;"), 1); /* the legend names a series once */
    assert_null(strchr(document, '\x01'));
    assert_null(strstr(document, "nan"));
    assert_null(strstr(document, "inf"));
    free(document);

    char *empty = svg_chart("nothing measured", &(svg_panel){"t", "x", "y", NULL, 0, true, 0}, 1);
    assert_non_null(empty);
    assert_well_formed(empty);
    assert_null(strstr(empty, "nan"));
    free(empty);
}

static void needle_plots_leave_warm_up_out(void **state) {
    (void)state;
    eval_rows rows = {0};
    for (int i = 0; i < 13; i++) {
        eval_row row;
        eval_row_init(&row);
        strcpy(row.arm.policy, i % 2 ? "native" : "restored");
        strcpy(row.arm.mode, "ar");
        row.warmup = i == 12;
        row.lines = row.warmup ? 999 : 12 * (1 + i / 4);
        row.prompt_tokens = row.warmup ? 99999 : row.lines * 20;
        row.decode_seconds = 1;
        row.kv.total = 1000;
        row.correct = true;
        assert_int_equal(eval_rows_add(&rows, &row, NULL), KAKEYA_OK);
    }
    char *document = plot_niah(&rows);
    assert_non_null(document);
    assert_well_formed(document);
    assert_int_equal(count(document, "<polyline"), 3 * 2);   /* panels x arms */
    assert_int_equal(count(document, "<circle"), 3 * 2 * 3); /* rungs */
    free(document);
    eval_rows_free(&rows);
}

static void medians_and_spreads(void **state) {
    (void)state;
    double odd[] = {5, 1, 3}, even[] = {4, 1, 3, 2}, one[] = {7};
    assert_true(fabs(statistics_median(odd, 3) - 3) < 1e-12);
    assert_true(fabs(statistics_median(even, 4) - 2.5) < 1e-12);
    assert_true(fabs(statistics_median(one, 1) - 7) < 1e-12);
    assert_true(fabs(statistics_median(NULL, 0)) < 1e-12);
    assert_true(fabs(statistics_spread(even, 4) - 1.2) < 1e-12);
    assert_true(fabs(statistics_spread(one, 1)) < 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticks_cover_the_range_at_round_steps),
        cmocka_unit_test(numbers_are_short),
        cmocka_unit_test(charts_hold_their_series),
        cmocka_unit_test(needle_plots_leave_warm_up_out),
        cmocka_unit_test(medians_and_spreads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
