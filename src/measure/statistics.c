#include "measure/statistics.h"

#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double statistics_median(double *values, size_t n) {
    if (!n) return 0;
    qsort(values, n, sizeof *values, ascending);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double statistics_spread(double *values, size_t n) {
    double median = statistics_median(values, n);
    return median > 0 ? (values[n - 1] - values[0]) / median : 0;
}
