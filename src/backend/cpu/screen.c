#include "backend/cpu/screen.h"

#include <math.h>

#include "backend/cpu/kernels_private.h"

/* Sums of squares lose less than this share in float32 if they are made in double, and the rounding of a difference of
 * float32 values is below 2^-24 of their sizes. */
static const double slack = 1 + 1e-6;

bool screen_split(const float *x, int n, int8_t *codes, float *scale, float *norm, float *rest) {
    float largest = 0;
    for (int i = 0; i < n; i++) {
        if (!isfinite(x[i])) return false;
        float size = fabsf(x[i]);
        if (size > largest) largest = size;
    }
    *scale = largest > 0 ? largest / 127 : 1;
    double squares = 0, rests = 0;
    for (int i = 0; i < n; i++) {
        float steps = x[i] / *scale;
        int code = (int)(steps + (steps < 0 ? -0.5f : 0.5f));
        codes[i] = (int8_t)(code > 127 ? 127 : code < -127 ? -127 : code);
        double whole = (double)*scale * codes[i], left = (double)x[i] - whole;
        squares += whole * whole;
        rests += left * left;
    }
    *norm = nextafterf((float)(sqrt(squares) * slack), INFINITY);
    *rest = nextafterf((float)(sqrt(rests) * slack), INFINITY);
    return isfinite(*norm) && isfinite(*rest);
}

void screen_bounds_scalar(const screen_matrix *matrix, int first, int n, const screen_row *rows, int n_rows, float *upper,
                          size_t ld) {
    for (int o = first * SCREEN_OUTPUTS; o < (first + n) * SCREEN_OUTPUTS; o++) {
        const uint8_t *codes = matrix->codes + (size_t)(o / SCREEN_OUTPUTS) * (size_t)matrix->steps * SCREEN_OUTPUTS * SCREEN_DEPTH +
                               (size_t)(o % SCREEN_OUTPUTS) * SCREEN_DEPTH;
        for (int r = 0; r < n_rows; r++) {
            int32_t sum = -rows[r].offset;
            for (int s = 0; s < matrix->steps; s++) {
                const uint8_t *w = codes + (size_t)s * SCREEN_OUTPUTS * SCREEN_DEPTH;
                const int8_t *x = rows[r].codes + (size_t)s * SCREEN_DEPTH;
                for (int i = 0; i < SCREEN_DEPTH; i++) sum += w[i] * x[i];
            }
            upper[(size_t)r * ld + (size_t)(o - first * SCREEN_OUTPUTS)] =
                (float)sum * (matrix->scale[o] * rows[r].scale) + (matrix->rest[o] * rows[r].a + matrix->norm[o] * rows[r].b + SCREEN_TINY);
        }
    }
}

screen_bounds screen_bounds_beside(const cpu_kernels *kernels) {
    if (kernels == &cpu_kernels_scalar) return screen_bounds_scalar;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (kernels != &cpu_kernels_avx2 && __builtin_cpu_supports("avx512vnni")) return screen_bounds_vnni;
#endif
    return NULL;
}
