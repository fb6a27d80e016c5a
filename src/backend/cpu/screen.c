#include "backend/cpu/screen.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/kernels_private.h"
#include "backend/cpu/screen_vnni.h"

/* Rests are summed in LANES float32 sums, which lose less than this share for up to 2^16 values, and each rest is off
 * by at most 2^-23 of the largest value. */
enum { LANES = 16 };
static const double slack = 1 + 1e-3;

bool screen_split(const float *x, int n, int8_t *codes, float *scale, float *norm, float *rest) {
    /* The bits of sizes have the order of the sizes, and a maximum of integers is vectorised. */
    int32_t largest_bits = 0;
    for (int i = 0; i < n; i++) {
        int32_t size;
        memcpy(&size, &x[i], sizeof size);
        size &= INT32_MAX;
        largest_bits = size > largest_bits ? size : largest_bits;
    }
    float largest;
    memcpy(&largest, &largest_bits, sizeof largest);
    if (!isfinite(largest)) return false;
    float step = largest / 127;
    if (!(step > 0)) step = 1; /* zeros, and subnormal values: all of them are rest */
    float rests[LANES] = {0};
    int64_t squares = 0;
    for (int begin = 0; begin < n; begin += LANES) {
        int count = n - begin < LANES ? n - begin : LANES, sum = 0;
        for (int i = 0; i < count; i++) {
            float steps = x[begin + i] / step;
            int code = (int)(steps + (steps < 0 ? -0.5f : 0.5f));
            code = code > 127 ? 127 : code < -127 ? -127 : code;
            codes[begin + i] = (int8_t)code;
            sum += code * code;
            float left = x[begin + i] - step * (float)code;
            rests[i] += left * left;
        }
        squares += sum;
    }
    double left = 0;
    for (int i = 0; i < LANES; i++) left += (double)rests[i];
    *scale = step;
    *norm = nextafterf((float)((double)step * sqrt((double)squares) * slack), INFINITY);
    *rest = nextafterf((float)(sqrt(left) * slack + sqrt((double)n) * (double)largest * 0x1p-22), INFINITY);
    return isfinite(*norm) && isfinite(*rest);
}

static void screen_bounds_scalar(const screen_matrix *matrix, int first, int n, const screen_row *rows, int n_rows,
                                 float *upper, size_t ld) {
    for (int o = first * SCREEN_OUTPUTS; o < (first + n) * SCREEN_OUTPUTS; o++) {
        const uint8_t *codes = matrix->codes +
                               (size_t)(o / SCREEN_OUTPUTS) * (size_t)matrix->steps * SCREEN_OUTPUTS * SCREEN_DEPTH +
                               (size_t)(o % SCREEN_OUTPUTS) * SCREEN_DEPTH;
        for (int r = 0; r < n_rows; r++) {
            int32_t sum = -rows[r].offset;
            for (int s = 0; s < matrix->steps; s++) {
                const uint8_t *w = codes + (size_t)s * SCREEN_OUTPUTS * SCREEN_DEPTH;
                const int8_t *x = rows[r].codes + (size_t)s * SCREEN_DEPTH;
                for (int i = 0; i < SCREEN_DEPTH; i++) sum += w[i] * x[i];
            }
            upper[(size_t)r * ld + (size_t)(o - first * SCREEN_OUTPUTS)] =
                (float)sum * (matrix->scale[o] * rows[r].scale) +
                (matrix->rest[o] * rows[r].a + matrix->norm[o] * rows[r].b + SCREEN_TINY);
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
