/* The int8 products as int8.h defines them, in plain C: the oracle of the others. */
#include "backend/cpu/int8_codes.h"

typedef void (*codes_of)(const unsigned char *block, int j, uint8_t *u, int8_scale *s);

static int sum_of(const uint8_t *u, const int8_t *x, int n, int offset) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += ((int)u[i] - offset) * x[i];
    return sum;
}

BLOCKS_INLINE void multiply(const int8_form *form, codes_of codes, const void *packed, int rows, const weight *w,
                            float *y, size_t ldy) {
    const size_t blocks = int8_blocks(w->in), row_bytes = int8_row_bytes(w->in);
    const int inside = form->values / INT8_BLOCK;
    for (int o = 0; o < w->out; o++) {
        const unsigned char *row = weight_row(w, 0, o);
        for (int r = 0; r < rows; r++) y[(size_t)r * ldy + (size_t)o] = 0;
        for (size_t b = 0; b < blocks; b++) {
            uint8_t u[INT8_BLOCK];
            int8_scale s = {0};
            codes(row + b / (size_t)inside * (size_t)form->bytes, (int)(b % (size_t)inside), u, &s);
            for (int r = 0; r < rows; r++) {
                const unsigned char *x = (const unsigned char *)packed + (size_t)r * row_bytes;
                const int8_t *c = (const int8_t *)x + b * INT8_BLOCK;
                float sx, *acc = &y[(size_t)r * ldy + (size_t)o];
                int16_t sums[2];
                memcpy(&sx, x + int8_scales_at(blocks) + b * sizeof sx, sizeof sx);
                memcpy(sums, x + int8_sums_at(blocks) + b * sizeof sums, sizeof sums);
                int sum = form->pair ? s.s[0] * sum_of(u, c, 16, form->offset) +
                                           s.s[1] * sum_of(u + 16, c + 16, 16, form->offset)
                                     : sum_of(u, c, INT8_BLOCK, form->offset);
                *acc = fmaf(s.d * sx, (float)sum, *acc);
                if (form->minimum) *acc = fmaf(s.m * sx, (float)(sums[0] + sums[1]), *acc);
            }
        }
    }
}

#define DEFINE_MULTIPLY(NAME, name, values, bytes)                                                                     \
    static void multiply_##name(const void *packed, int rows, const weight *w, float *y, size_t ldy) {                 \
        multiply(&form_##name, codes_##name, packed, rows, w, y, ldy);                                                 \
    }
INT8_BLOCK_FORMATS(DEFINE_MULTIPLY)

static void pack(const float *x, size_t ldx, int rows, int k, void *packed) { int8_pack_rows(x, ldx, rows, k, packed); }

#define ENTRY(NAME, name, values, bytes) [WEIGHT_##NAME] = multiply_##name,
const int8_kernels int8_scalar = {.pack = pack, .multiply = {INT8_BLOCK_FORMATS(ENTRY)}};

#if defined(__x86_64__)
const int8_kernels *int8_widest(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512vnni") ? &int8_vnni : &int8_avx2;
}
#endif
