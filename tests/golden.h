/* What the tests on reference vectors share: opening vectors, models and backends, comparing arrays. */
#ifndef KAKEYA_TESTS_GOLDEN_H
#define KAKEYA_TESTS_GOLDEN_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "formats/safetensors.h"

#define REQUIRE_OK(call)                                                                                               \
    do {                                                                                                               \
        kakeya_error error_ = {0};                                                                                     \
        kakeya_error *error = &error_;                                                                                 \
        kakeya_status status_ = (call);                                                                                \
        if (status_ != KAKEYA_OK) fail_msg("%s: %s", #call, error_.message);                                           \
    } while (0)

/* Largest |a - b|; prints where when it exceeds the bound. */
static inline void assert_close(const char *what, const float *found, const float *expected, size_t n, double bound) {
    double worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        double difference = fabs((double)found[i] - (double)expected[i]);
        if (!(difference <= worst)) {
            worst = difference;
            at = i;
        }
    }
    if (!(worst <= bound)) {
        fail_msg("%s: element %zu is %.9g, expected %.9g (difference %.3g, bound %.3g)", what, at, (double)found[at],
                 (double)expected[at], worst, bound);
    }
}

/* ||found - expected|| / ||expected|| */
static inline void assert_close_relative(const char *what, const float *found, const float *expected, size_t n,
                                         double bound) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)found[i] - (double)expected[i];
        difference += d * d;
        norm += (double)expected[i] * (double)expected[i];
    }
    double relative = sqrt(difference / (norm > 0 ? norm : 1));
    if (!(relative <= bound)) fail_msg("%s: relative error %.3g, bound %.3g", what, relative, bound);
}

static inline void assert_same_bits(const char *what, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (memcmp(a + i, b + i, sizeof *a) != 0) {
            fail_msg("%s: element %zu differs: %.9g and %.9g", what, i, (double)a[i], (double)b[i]);
        }
    }
}

#endif
