/* Medians and sums of measurements. */
#ifndef KAKEYA_MEASURE_STATISTICS_H
#define KAKEYA_MEASURE_STATISTICS_H

#include <stddef.h>

/* The middle value, or the mean of the two middle ones; 0 for n = 0. Sorts `values`. */
double statistics_median(double *values, size_t n);
/* (largest - smallest) / median; 0 when the median is 0. Sorts `values`. */
double statistics_spread(double *values, size_t n);

#endif
