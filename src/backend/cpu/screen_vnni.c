/* CPUs that multiply bytes four at a time (Intel from Cascade Lake on, AMD from Zen 4 on): 64 products an instruction.
 * The sums of 16 outputs lie in one vector and a row's four values are broadcast to them, so nothing is summed over
 * lanes. Bound: the bytes of the codes, up to the eight rows of a call. */
#include "backend/cpu/screen_vnni.h"

#include <immintrin.h>

enum { STEP_BYTES = SCREEN_OUTPUTS * SCREEN_DEPTH, MAX_BLOCKS = 8, MAX_SUMS = 24 };
_Static_assert(STEP_BYTES == sizeof(__m512i), "a step of a block is one vector");

static inline __attribute__((always_inline)) void bound_blocks(const int R, const int B, const screen_matrix *m,
                                                               int first, const screen_row *rows, float *upper,
                                                               size_t ld) {
    const size_t block_bytes = (size_t)m->steps * STEP_BYTES;
    const uint8_t *w = m->codes + (size_t)first * block_bytes;
    __m512i sums[MAX_SUMS];
#pragma GCC unroll 24
    for (int i = 0; i < R * B; i++) sums[i] = _mm512_setzero_si512();
    for (int s = 0; s < m->steps; s++, w += STEP_BYTES) {
        __m512i weights[MAX_BLOCKS];
#pragma GCC unroll 8
        for (int b = 0; b < B; b++) {
            weights[b] = _mm512_loadu_si512(w + (size_t)b * block_bytes);
            _mm_prefetch((const char *)w + (size_t)(B + b) * block_bytes, _MM_HINT_T1);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            int32_t four;
            __builtin_memcpy(&four, rows[r].codes + (size_t)s * SCREEN_DEPTH, sizeof four);
            __m512i x = _mm512_set1_epi32(four);
#pragma GCC unroll 8
            for (int b = 0; b < B; b++) sums[r * B + b] = _mm512_dpbusd_epi32(sums[r * B + b], weights[b], x);
        }
    }
#pragma GCC unroll 8
    for (int b = 0; b < B; b++) {
        size_t o = (size_t)(first + b) * SCREEN_OUTPUTS;
        __m512 scale = _mm512_loadu_ps(m->scale + o), rest = _mm512_loadu_ps(m->rest + o),
               norm = _mm512_loadu_ps(m->norm + o);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m512 sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums[r * B + b], _mm512_set1_epi32(rows[r].offset)));
            __m512 loss =
                _mm512_fmadd_ps(rest, _mm512_set1_ps(rows[r].a),
                                _mm512_fmadd_ps(norm, _mm512_set1_ps(rows[r].b), _mm512_set1_ps(SCREEN_TINY)));
            __m512 bound = _mm512_fmadd_ps(sum, _mm512_mul_ps(scale, _mm512_set1_ps(rows[r].scale)), loss);
            _mm512_storeu_ps(upper + (size_t)r * ld + (size_t)b * SCREEN_OUTPUTS, bound);
        }
    }
}

#define DEFINE_BOUND(R, B)                                                                                             \
    static void bound_##R(const screen_matrix *m, int first, int n, const screen_row *rows, float *upper, size_t ld) { \
        int b = 0;                                                                                                     \
        for (; b + (B) <= n; b += (B)) bound_blocks(R, B, m, first + b, rows, upper + b * SCREEN_OUTPUTS, ld);         \
        for (; b < n; b++) bound_blocks(R, 1, m, first + b, rows, upper + b * SCREEN_OUTPUTS, ld);                     \
    }
DEFINE_BOUND(1, 8)
DEFINE_BOUND(2, 8)
DEFINE_BOUND(3, 8)
DEFINE_BOUND(4, 6)
DEFINE_BOUND(5, 4)
DEFINE_BOUND(6, 4)
DEFINE_BOUND(7, 3)
DEFINE_BOUND(8, 3)

typedef void (*bound_function)(const screen_matrix *m, int first, int n, const screen_row *rows, float *upper,
                               size_t ld);

void screen_bounds_vnni(const screen_matrix *matrix, int first, int n, const screen_row *rows, int n_rows, float *upper,
                        size_t ld) {
    static const bound_function functions[SCREEN_ROWS] = {bound_1, bound_2, bound_3, bound_4,
                                                          bound_5, bound_6, bound_7, bound_8};
    functions[n_rows - 1](matrix, first, n, rows, upper, ld);
}
