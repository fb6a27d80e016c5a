/* The int8 products as int8.h defines them, and the tiles of int8_forms.h, in plain C: the oracle of the others. */
#include "backend/cpu/int8_codes.h"
#include "backend/cpu/tiles.h"

static int sum_of(const int8_form *form, const uint8_t *u, const int8_t *x, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += form_signed(form, u[i]) * x[i];
    return sum;
}

/* The sum so far and 32 values more. */
BLOCKS_INLINE float add_block(const int8_form *form, const uint8_t *u, const int8_scale *s, const int8_record *x,
                              float acc) {
    int low = sum_of(form, u, x->codes, 16), high = sum_of(form, u + 16, x->codes + 16, 16);
    if (form_has_halves(form)) {
        for (int h = 0; h < 2; h++) {
            acc = fmaf(s->d[h] * x->scale, (float)(h ? high : low), acc);
            if (form_has_min(form)) acc = fmaf(s->m[h] * x->scale, (float)x->half[h], acc);
        }
        return acc;
    }
    int sum = form->scales == SCALES_PAIR ? s->s[0] * low + s->s[1] * high : low + high;
    if (form->scales == SCALES_GROUP_ZERO) sum += (int)s->m[0] * (x->half[0] + x->half[1]);
    acc = fmaf(s->d[0] * x->scale, (float)sum, acc);
    return form_has_min(form) ? fmaf(s->m[0] * x->scale, x->total, acc) : acc;
}

BLOCKS_INLINE void multiply(const int8_form *form, part_taker take, const void *packed, int rows, const weight *w,
                            float *y, size_t ldy) {
    const size_t blocks = int8_blocks(w->in), row_bytes = int8_row_bytes(w->in);
    const int8_shape shape = form_shape(form, w);
    const int8_rows weights = w->tiled ? (int8_rows){.group = 1} : int8_rows_of(w, 0);
    for (int o = 0; o < w->out; o++) {
        for (int r = 0; r < rows; r++) y[(size_t)r * ldy + (size_t)o] = 0;
        for (size_t b = 0; b < blocks; b++) {
            uint8_t u[INT8_BLOCK];
            int8_scale s;
            if (w->tiled) {
                tiles_block(w, o, b, u, &s);
            } else {
                int8_bytes bytes;
                take(&weights, o, b, u, &bytes);
                s = form_scale(form, shape, bytes.head, bytes.sub);
            }
            for (int r = 0; r < rows; r++) {
                const unsigned char *x = (const unsigned char *)packed + (size_t)r * row_bytes;
                float *acc = &y[(size_t)r * ldy + (size_t)o];
                *acc = add_block(form, u, &s, (const int8_record *)(const void *)x + b, *acc);
            }
        }
        if (!form_has_factors(form)) continue;
        for (int r = 0; r < rows; r++) {
            float *to = &y[(size_t)r * ldy + (size_t)o];
            *to = tiles_times_factor(w->format, *to, *tiles_factors(w, o));
        }
    }
}

/* One output's codes to its places in the pieces of 32 values. */
BLOCKS_INLINE void place_codes(const int8_form *form, const uint8_t *u, int lane, unsigned char *pieces) {
    unsigned char *high = pieces + (size_t)(form->low * TILE_PIECE_BYTES);
    for (int i = 0; i < INT8_BLOCK; i++) {
        int p = i / 4, at = 4 * lane + i % 4, above = u[i] >> form->low;
        if (form->low == 8)
            pieces[p * TILE_PIECE_BYTES + at] = u[i];
        else if (form->low == 4)
            pieces[p % 4 * TILE_PIECE_BYTES + at] |= (unsigned char)((u[i] & 15) << 4 * (p / 4));
        else
            pieces[p / 4 * TILE_PIECE_BYTES + at] |= (unsigned char)((u[i] & 3) << 2 * (p % 4));
        if (form->high == 1) high[at] |= (unsigned char)((above & 1) << p);
        if (form->high == 2) high[p / 4 * TILE_PIECE_BYTES + at] |= (unsigned char)((above & 3) << 2 * (p % 4));
    }
}

BLOCKS_INLINE void make_tiles(const int8_form *form, part_taker take, const weight *w, int row, int outputs,
                              int8_shape shape, size_t first, size_t n, unsigned char *tiles) {
    const int8_rows rows = int8_rows_of(w, row);
    const size_t inside = (size_t)shape.inside;
    memset(tiles, 0, n * tile_bytes(form, shape));
    for (size_t b = 0; b < n; b++, tiles += tile_bytes(form, shape)) {
        for (int lane = 0; lane < outputs; lane++) {
            for (size_t j = 0; j < inside; j++) {
                uint8_t u[INT8_BLOCK];
                int8_bytes s;
                unsigned char *to = tiles + tile_head_bytes(form) + j * tile_part_bytes(form);
                take(&rows, lane, (first + b) * inside + j, u, &s);
                for (int i = 0; i < form_head_bytes(form); i++) tiles[head_at(form, i, lane)] = s.head[i];
                for (int i = 0; i < form_sub_bytes(form); i++) to[TILE_OUTPUTS * i + lane] = s.sub[i];
                place_codes(form, u, lane, to + tile_subs_bytes(form));
            }
        }
    }
}

#define DEFINE_MULTIPLY(NAME, name, values, bytes)                                                                     \
    static void multiply_##name(const void *packed, int rows, const weight *w, float *y, size_t ldy) {                 \
        multiply(&form_##name, take_##name, packed, rows, w, y, ldy);                                                  \
    }                                                                                                                  \
    static void tile_##name(const weight *w, int row, int outputs, int8_shape shape, size_t first, size_t n,           \
                            unsigned char *tiles) {                                                                    \
        make_tiles(&form_##name, take_##name, w, row, outputs, shape, first, n, tiles);                                \
    }
BLOCK_FORMATS(DEFINE_MULTIPLY)
GROUP_INT8_FORMATS(DEFINE_MULTIPLY)

static void pack(const float *x, size_t ldx, int rows, int k, void *packed) {
    int8_pack_rows(int8_pack_block, false, x, ldx, rows, k, packed);
}
static void pack_fine(const float *x, size_t ldx, int rows, int k, void *packed) {
    int8_pack_rows(int8_pack_block, true, x, ldx, rows, k, packed);
}

static double probe(size_t iterations) {
    int8_record x = {.scale = 1};
    uint8_t u[INT8_BLOCK] = {0};
    int sum = 0;
    for (size_t n = 0; n < iterations; n++) {
        __asm__ volatile("" : : "r"(u), "r"(&x) : "memory"); /* other values each time, as far as the compiler knows */
        sum += sum_of(&form_q4_0, u, x.codes, INT8_BLOCK);
    }
    __asm__ volatile("" : : "r"(sum));
    return (double)iterations * INT8_BLOCK * 2;
}

#define MULTIPLY_ENTRY(NAME, name, values, bytes) [WEIGHT_##NAME] = multiply_##name,
#define TILE_ENTRY(NAME, name, values, bytes)     [WEIGHT_##NAME] = tile_##name,
const int8_kernels int8_scalar = {.pack = pack,
                                  .pack_fine = pack_fine,
                                  .multiply = {BLOCK_FORMATS(MULTIPLY_ENTRY) GROUP_INT8_FORMATS(MULTIPLY_ENTRY)},
                                  .tile = {BLOCK_FORMATS(TILE_ENTRY) GROUP_INT8_FORMATS(TILE_ENTRY)},
                                  .probe = probe};

#if defined(__x86_64__)
const int8_kernels *int8_widest(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512vnni") ? &int8_vnni : &int8_avx2;
}
#endif

const int8_kernels *int8_of(const cpu_kernels *table) {
#if defined(__x86_64__)
    if (strcmp(table->name, "avx2") == 0) return &int8_avx2;
    if (strncmp(table->name, "avx512", 6) == 0) return int8_widest();
#elif defined(__aarch64__)
    if (strcmp(table->name, "neon") == 0) return &int8_neon;
    if (strcmp(table->name, "neon-dotprod") == 0) return &int8_dotprod;
    if (strcmp(table->name, "neon-i8mm") == 0) return &int8_i8mm;
#endif
    (void)table;
    return &int8_scalar;
}

const char *int8_name(const int8_kernels *kernels) {
#if defined(__x86_64__)
    if (kernels == &int8_avx2) return "avx2";
    if (kernels == &int8_vnni) return "vnni";
#elif defined(__aarch64__)
    if (kernels == &int8_neon) return "neon";
    if (kernels == &int8_dotprod) return "dotprod";
    if (kernels == &int8_i8mm) return "i8mm";
#endif
    (void)kernels;
    return "scalar";
}
