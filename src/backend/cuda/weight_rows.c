#include "backend/cuda/weight_rows.h"

#include <string.h>

#include "backend/cuda/f8_rows.h"
#include "backend/cuda/quant.h"
#include "backend/groups.h"
#include "backend/weight_values.h"

/* A row of the source: its streams. */
typedef struct source_row {
    const weight *w; /* NULL: behind the last */
    const void *stream[WEIGHT_STREAMS];
} source_row;

int weight_source_out(const weight_source *s) { return model_cut_out(s->first, &s->cut) * (s->second ? 2 : 1); }

static source_row row_of(const weight_source *s, size_t row) {
    size_t rows = (size_t)s->cut.rows, group = row / rows, of_group = row % rows;
    bool second = s->second && group % 2;
    if (s->second) group /= 2;
    source_row r = {.w = second ? s->second : s->first};
    weight_row_streams(r.w, (int)(group * (size_t)s->cut.period + (size_t)s->cut.first_row + of_group), r.stream);
    return r;
}

/* ------------------------------------------------------------------------------------------------------- values */

static void row_to_bf16(const weight_source *s, const cuda_matrix *m, size_t row, cuda_bf16 *out) {
    enum { AT_A_TIME = 256 };
    source_row r = row_of(s, row);
    int columns = s->cut.columns, at = s->cut.first_column;
    if (r.w->format == WEIGHT_BF16) {
        memcpy(out, (const char *)r.stream[0] + sizeof *out * (size_t)at, sizeof *out * (size_t)columns);
    } else {
        for (int done = 0, n; done < columns; done += n) {
            float values[AT_A_TIME];
            n = columns - done < AT_A_TIME ? columns - done : AT_A_TIME;
            weight_row_values(r.w, r.stream, at + done, n, values);
            for (int i = 0; i < n; i++) out[done + i] = f32_to_bf16(values[i]);
        }
    }
    memset(out + columns, 0, (size_t)(m->ld - columns) * sizeof *out);
}

/* -------------------------------------------------------------------------------------------------------- codes
 * A block of 32 values as quant.h has it: bytes of codes, and scales. */

typedef struct block_codes {
    uint8_t code[QUANT_BLOCK]; /* of Q4 the nibble */
    unsigned char scales[8];   /* as many as the form has of a block */
} block_codes;

/* Block `index` of a row. */
typedef void (*block_loader)(const weight *w, const void *const *row, size_t index, block_codes *to);

static const unsigned char *block_at(const void *const *row, size_t index, size_t bytes) {
    return (const unsigned char *)row[0] + index * bytes;
}

static void set_scales(block_codes *to, float first, float second) {
    memcpy(to->scales, &first, sizeof first);
    memcpy(to->scales + sizeof first, &second, sizeof second);
}

static void codes_q4_0(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    const unsigned char *b = block_at(row, index, 18);
    memcpy(to->scales, b, 2);
    for (int i = 0; i < 16; i++) {
        to->code[i] = b[2 + i] & 15;
        to->code[i + 16] = b[2 + i] >> 4;
    }
}

static void codes_q5_0(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    const unsigned char *b = block_at(row, index, 22);
    uint32_t high = block_u32(b + 2);
    memcpy(to->scales, b, 2);
    for (int i = 0; i < 16; i++) {
        to->code[i] = (uint8_t)(((b[6 + i] & 15) | (int)(high >> i & 1) << 4) - 16);
        to->code[i + 16] = (uint8_t)((b[6 + i] >> 4 | (int)(high >> (i + 16) & 1) << 4) - 16);
    }
}

static void codes_q8_0(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    const unsigned char *b = block_at(row, index, 34);
    memcpy(to->scales, b, 2);
    memcpy(to->code, b + 2, QUANT_BLOCK);
}

static void codes_iq4_nl(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    const unsigned char *b = block_at(row, index, 18);
    memcpy(to->scales, b, 2);
    for (int i = 0; i < 16; i++) {
        to->code[i] = (uint8_t)iq4_values[b[2 + i] & 15];
        to->code[i + 16] = (uint8_t)iq4_values[b[2 + i] >> 4];
    }
}

static void codes_q4_1(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    const unsigned char *b = block_at(row, index, 20);
    set_scales(to, block_f16(b), block_f16(b + 2));
    for (int i = 0; i < 16; i++) {
        to->code[i] = b[4 + i] & 15;
        to->code[i + 16] = b[4 + i] >> 4;
    }
}

static void codes_q5_1(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    const unsigned char *b = block_at(row, index, 24);
    uint32_t high = block_u32(b + 4);
    set_scales(to, block_f16(b), block_f16(b + 2));
    for (int i = 0; i < 16; i++) {
        to->code[i] = (uint8_t)((b[8 + i] & 15) | (high >> i & 1) << 4);
        to->code[i + 16] = (uint8_t)(b[8 + i] >> 4 | (high >> (i + 16) & 1) << 4);
    }
}

/* Scale and offset of sub-block j of a block that begins with d, dmin and the packed scales; returns j. */
static int set_k_scales(const unsigned char *b, size_t index, block_codes *to) {
    int j = (int)(index % 8), scale, min;
    k_scale(b + 4, j, &scale, &min);
    set_scales(to, block_f16(b) * (float)scale, -(block_f16(b + 2) * (float)min));
    return j;
}

static void codes_q4_k(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    const unsigned char *b = block_at(row, index / 8, 144);
    int j = set_k_scales(b, index, to);
    for (int l = 0; l < 32; l++) to->code[l] = b[16 + 32 * (j / 2) + l] >> 4 * (j % 2) & 15;
}

static void codes_q5_k(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    const unsigned char *b = block_at(row, index / 8, 176);
    int j = set_k_scales(b, index, to);
    for (int l = 0; l < 32; l++)
        to->code[l] = (uint8_t)((b[48 + 32 * (j / 2) + l] >> 4 * (j % 2) & 15) + 16 * (b[16 + l] >> j & 1));
}

static void codes_q6_k(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    const unsigned char *b = block_at(row, index / 8, 210);
    int j = (int)(index % 8), part = j % 4;
    const unsigned char *low = b + 64 * (j / 4) + 32 * (part % 2), *high = b + 128 + 32 * (j / 4);
    float d = block_f16(b + 208);
    set_scales(to, d * (float)(int8_t)b[192 + 2 * j], d * (float)(int8_t)b[193 + 2 * j]);
    for (int l = 0; l < 32; l++)
        to->code[l] = (uint8_t)(((low[l] >> 4 * (part / 2) & 15) | (high[l] >> 2 * part & 3) << 4) - 32);
}

static void codes_q3_k(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    const unsigned char *b = block_at(row, index / 8, 110), *s = b + 96;
    int g = (int)(index % 8);
    const unsigned char *codes = b + 32 + 32 * (g / 4);
    float d = block_f16(b + 108), scale[2];
    for (int half = 0; half < 2; half++) {
        int j = 2 * g + half;
        int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4, upper = s[8 + j % 4] >> 2 * (j / 4) & 3;
        scale[half] = d * (float)((low | upper << 4) - 32);
    }
    set_scales(to, scale[0], scale[1]);
    for (int l = 0; l < 32; l++) { /* 0 to 3 are e2m1 codes, as are the other four with a sign */
        int code = (codes[l] >> 2 * (g % 4) & 3) - (b[l] >> g & 1 ? 0 : 4);
        to->code[l] = (uint8_t)(code < 0 ? 8 - code : code);
    }
}

static void codes_iq4_xs(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    const unsigned char *b = block_at(row, index / 8, 136);
    int j = (int)(index % 8);
    int scale = (b[4 + j / 2] >> 4 * (j % 2) & 15) | ((b[2] | b[3] << 8) >> 2 * j & 3) << 4;
    float ds = block_f16(b) * (float)(scale - 32);
    set_scales(to, ds, ds);
    for (int i = 0; i < 16; i++) {
        to->code[i] = (uint8_t)iq4_values[b[8 + 16 * j + i] & 15];
        to->code[i + 16] = (uint8_t)iq4_values[b[8 + 16 * j + i] >> 4];
    }
}

static void codes_affine(int bits, const weight *w, const void *const *row, size_t index, block_codes *to) {
    size_t first = index * QUANT_BLOCK, group = first / (size_t)w->group;
    set_scales(to, group_scale(w, row[1], group), group_scale(w, row[2], group));
    for (size_t i = 0; i < QUANT_BLOCK; i++) to->code[i] = (uint8_t)group_code(bits, row[0], first + i);
}

static void codes_affine_2(const weight *w, const void *const *row, size_t index, block_codes *to) {
    codes_affine(2, w, row, index, to);
}
static void codes_affine_3(const weight *w, const void *const *row, size_t index, block_codes *to) {
    codes_affine(3, w, row, index, to);
}
static void codes_affine_4(const weight *w, const void *const *row, size_t index, block_codes *to) {
    codes_affine(4, w, row, index, to);
}
static void codes_affine_5(const weight *w, const void *const *row, size_t index, block_codes *to) {
    codes_affine(5, w, row, index, to);
}
static void codes_affine_6(const weight *w, const void *const *row, size_t index, block_codes *to) {
    codes_affine(6, w, row, index, to);
}
static void codes_affine_8(const weight *w, const void *const *row, size_t index, block_codes *to) {
    codes_affine(8, w, row, index, to);
}

/* Codes of the file in order, with `less` taken off. */
static void packed_codes(int bits, int less, const void *const *row, size_t index, block_codes *to) {
    for (size_t i = 0; i < QUANT_BLOCK; i++)
        to->code[i] = (uint8_t)(group_code(bits, row[0], index * QUANT_BLOCK + i) - less);
}

static float packed_scale(const weight *w, const void *const *row, size_t index) {
    return group_scale(w, row[1], index * QUANT_BLOCK / (size_t)w->group);
}

/* scale (code - zero) = scale code - scale zero, exactly: a scale of 16 bits and an integer have no more than 24
 * significant bits between them. */
static void codes_zero(int bits, int zero, const weight *w, const void *const *row, size_t index, block_codes *to) {
    float scale = packed_scale(w, row, index);
    set_scales(to, scale, -(scale * (float)zero));
    packed_codes(bits, 0, row, index, to);
}

static int zero_point(const weight *w, const void *const *row, size_t index) {
    return ((const unsigned char *)row[2])[index * QUANT_BLOCK / (size_t)w->group];
}

static void codes_int4_zero(const weight *w, const void *const *row, size_t index, block_codes *to) {
    codes_zero(4, zero_point(w, row, index), w, row, index, to);
}
static void codes_int8_zero(const weight *w, const void *const *row, size_t index, block_codes *to) {
    codes_zero(8, zero_point(w, row, index), w, row, index, to);
}

static void codes_int4(const weight *w, const void *const *row, size_t index, block_codes *to) {
    set_scales(to, packed_scale(w, row, index), 0);
    packed_codes(4, 0, row, index, to);
}

static void codes_int8(const weight *w, const void *const *row, size_t index, block_codes *to) {
    float scale = packed_scale(w, row, index);
    set_scales(to, scale, scale);
    packed_codes(8, 128, row, index, to);
}

static void codes_int8_signed(const weight *w, const void *const *row, size_t index, block_codes *to) {
    size_t first = index * QUANT_BLOCK;
    float scale = group_float(row[1], first / (size_t)w->group);
    set_scales(to, scale, scale);
    memcpy(to->code, (const unsigned char *)row[0] + first, QUANT_BLOCK);
}

/* Scales of 16 bits as they lie in the file: float16. */
static void codes_int4_half(const weight *w, const void *const *row, size_t index, block_codes *to) {
    memcpy(to->scales, (const unsigned char *)row[1] + 2 * (index * QUANT_BLOCK / (size_t)w->group), 2);
    packed_codes(4, 0, row, index, to);
}
static void codes_int8_half(const weight *w, const void *const *row, size_t index, block_codes *to) {
    memcpy(to->scales, (const unsigned char *)row[1] + 2 * (index * QUANT_BLOCK / (size_t)w->group), 2);
    packed_codes(8, 128, row, index, to);
}

static void codes_mxfp4(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    const unsigned char *b = block_at(row, index, 17);
    float scale = mxfp4_scale(b[0]);
    set_scales(to, scale, scale);
    for (int i = 0; i < 16; i++) {
        to->code[i] = b[1 + i] & 15;
        to->code[i + 16] = b[1 + i] >> 4;
    }
}

/* Half the scales of the file, as codes are twice the values. */
static void codes_fp4_e8m0(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    float half = e8m0_to_f32(((const unsigned char *)row[1])[index]) * 0.5f;
    set_scales(to, half, half);
    packed_codes(4, 0, row, index, to);
}

/* Here alone something is rounded: a value is code times scale, exactly, times the row's factor, rounded once; scale
 * times factor is rounded before, too. */
static void codes_nvfp4(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    const unsigned char *b = block_at(row, index / 2, 36);
    size_t first = 2 * (index % 2);
    float factor = group_float(row[1], 0);
    set_scales(to, nvfp4_scale(b[first]) * factor, nvfp4_scale(b[first + 1]) * factor);
    for (size_t i = 0; i < QUANT_BLOCK; i++) {
        unsigned char pair = b[4 + 8 * (first + i / 16) + i % 8];
        to->code[i] = i % 16 < 8 ? pair & 15 : pair >> 4;
    }
}

static void codes_fp4_e4m3(bool divide, const void *const *row, size_t index, block_codes *to) {
    const unsigned char *scales = (const unsigned char *)row[1] + 2 * index;
    float factor = group_float(row[2], 0), half[2];
    for (int i = 0; i < 2; i++) {
        float scale = e4m3_to_f32(scales[i]);
        half[i] = (divide ? scale / factor : scale * factor) * 0.5f;
    }
    set_scales(to, half[0], half[1]);
    packed_codes(4, 0, row, index, to);
}

static void codes_fp4_times(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    codes_fp4_e4m3(false, row, index, to);
}
static void codes_fp4_over(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    codes_fp4_e4m3(true, row, index, to);
}

/* A block in which a code is no number has a scale that is none. */
static void codes_float8(float scale, const unsigned char *codes, block_codes *to) {
    bool number = true;
    for (int i = 0; i < QUANT_BLOCK; i++) number &= (codes[i] & 0x7f) != 0x7f;
    set_scales(to, number ? scale : block_float(0x7fc00000u), 0);
    memcpy(to->code, codes, QUANT_BLOCK);
}

static void codes_fp8(const weight *w, const void *const *row, size_t index, block_codes *to) {
    size_t first = index * QUANT_BLOCK;
    codes_float8(group_float(row[1], first / (size_t)w->group), (const unsigned char *)row[0] + first, to);
}

static void codes_fp8_e8m0(const weight *w, const void *const *row, size_t index, block_codes *to) {
    (void)w;
    codes_float8(e8m0_to_f32(((const unsigned char *)row[1])[index]),
                 (const unsigned char *)row[0] + index * QUANT_BLOCK, to);
}

typedef struct block_format {
    cuda_form form;
    block_loader load;
} block_format;

static const block_format block_formats[WEIGHT_FORMAT_COUNT] = {
    [WEIGHT_Q4_0] = {CUDA_FORM_Q4, codes_q4_0},
    [WEIGHT_Q5_0] = {CUDA_FORM_Q8, codes_q5_0},
    [WEIGHT_Q8_0] = {CUDA_FORM_Q8, codes_q8_0},
    [WEIGHT_IQ4_NL] = {CUDA_FORM_Q8, codes_iq4_nl},
    [WEIGHT_Q4_1] = {CUDA_FORM_A4, codes_q4_1},
    [WEIGHT_Q5_1] = {CUDA_FORM_A8, codes_q5_1},
    [WEIGHT_Q4_K] = {CUDA_FORM_A4, codes_q4_k},
    [WEIGHT_Q5_K] = {CUDA_FORM_A8, codes_q5_k},
    [WEIGHT_Q6_K] = {CUDA_FORM_G8, codes_q6_k},
    [WEIGHT_AFFINE_2] = {CUDA_FORM_A4, codes_affine_2},
    [WEIGHT_AFFINE_3] = {CUDA_FORM_A4, codes_affine_3},
    [WEIGHT_AFFINE_4] = {CUDA_FORM_A4, codes_affine_4},
    [WEIGHT_AFFINE_5] = {CUDA_FORM_A8, codes_affine_5},
    [WEIGHT_AFFINE_6] = {CUDA_FORM_A8, codes_affine_6},
    [WEIGHT_AFFINE_8] = {CUDA_FORM_A8, codes_affine_8},
    [WEIGHT_FP8] = {CUDA_FORM_F8, codes_fp8},
    [WEIGHT_FP8_E8M0] = {CUDA_FORM_F8, codes_fp8_e8m0},
    [WEIGHT_Q3_K] = {CUDA_FORM_G4, codes_q3_k},
    [WEIGHT_IQ4_XS] = {CUDA_FORM_G8, codes_iq4_xs},
    [WEIGHT_INT4] = {CUDA_FORM_S4, codes_int4},
    [WEIGHT_INT8] = {CUDA_FORM_G8, codes_int8},
    [WEIGHT_INT4_ZERO] = {CUDA_FORM_A4, codes_int4_zero},
    [WEIGHT_INT8_ZERO] = {CUDA_FORM_A8, codes_int8_zero},
    [WEIGHT_INT8_SIGNED] = {CUDA_FORM_G8, codes_int8_signed},
    [WEIGHT_MXFP4] = {CUDA_FORM_G4, codes_mxfp4},
    [WEIGHT_FP4_E8M0] = {CUDA_FORM_G4, codes_fp4_e8m0},
    [WEIGHT_NVFP4] = {CUDA_FORM_G4, codes_nvfp4},
    [WEIGHT_FP4_E4M3] = {CUDA_FORM_G4, codes_fp4_times},
    [WEIGHT_FP4_E4M3_DIV] = {CUDA_FORM_G4, codes_fp4_over},
};

static const block_format *format_of(const weight *w) {
    static const block_format half_int4 = {CUDA_FORM_Q4, codes_int4_half}, half_int8 = {CUDA_FORM_Q8, codes_int8_half};
    if (w->scale_type == DTYPE_F16 && w->format == WEIGHT_INT4) return &half_int4;
    if (w->scale_type == DTYPE_F16 && w->format == WEIGHT_INT8) return &half_int8;
    return &block_formats[w->format];
}

/* The codes of one block of row g of a strip, in its unit. */
static void place_codes(cuda_form form, unsigned char *unit, int g, int block, const block_codes *from) {
    int of_lane = quant_lane_offset(form, 1), of_block = of_lane / QUANT_BLOCKS;
    for (int k = 0; k < QUANT_BLOCK; k++) {
        unsigned char *to = unit + (g * 4 + quant_lane(form, k)) * of_lane + block * of_block;
        int j = quant_place(form, k);
        if (!quant_is_narrow(form)) {
            to[quant_q8_byte(j)] = from->code[k];
        } else {
            int shift = quant_q4_shift(j), byte = shift / 8;
            to[byte] =
                (unsigned char)(shift % 8 ? (to[byte] & 15) | from->code[k] << 4 : (to[byte] & 0xf0) | from->code[k]);
        }
    }
    memcpy(unit + quant_scale_offset(form, g, block), from->scales, (size_t)quant_row_scales(form) / QUANT_BLOCKS);
}

static void row_to_strip(const weight_source *s, const cuda_matrix *m, size_t row, int g, unsigned char *strip) {
    block_codes nothing = {0};
    memset(nothing.code, m->form == CUDA_FORM_Q4 || m->form == CUDA_FORM_S4 ? 8 : 0, sizeof nothing.code);
    source_row r = row < (size_t)m->out ? row_of(s, row) : (source_row){0};
    const block_format *f = r.w ? format_of(r.w) : NULL;
    int blocks = r.w ? s->cut.columns / QUANT_BLOCK : 0, first = s->cut.first_column / QUANT_BLOCK;
    for (int b = 0; b < quant_units(m->ld) * QUANT_BLOCKS; b++) {
        unsigned char *unit = strip + (size_t)(b / QUANT_BLOCKS) * (size_t)quant_unit_bytes(m->form);
        block_codes codes = nothing;
        if (b < blocks) f->load(r.w, r.stream, (size_t)(first + b), &codes);
        place_codes(m->form, unit, g, b % QUANT_BLOCKS, &codes);
    }
}

/* -------------------------------------------------------------------------------------------------------- forms */

/* Whether the values of a block share their scale, but in formats that say themselves how many do. */
static bool groups_hold_blocks(const weight *w) {
    bool says_itself = weight_format_find(w->format)->stream[1].values != WEIGHT_GROUP;
    return says_itself || w->group % QUANT_BLOCK == 0 || w->group == w->in;
}

/* Blocks are not cut, and every expert has whole strips. */
static bool fits_blocks(const weight_source *s) {
    if (!groups_hold_blocks(s->first) || (s->second && !groups_hold_blocks(s->second))) return false;
    return s->cut.columns % QUANT_BLOCK == 0 && s->cut.first_column % QUANT_BLOCK == 0 &&
           (s->cut.rows % QUANT_ROWS == 0 || s->cut.rows == weight_source_out(s));
}

cuda_form weight_source_form(const weight_source *s) {
    cuda_form form = format_of(s->first)->form;
    if (s->second && format_of(s->second)->form != form) return CUDA_FORM_BF16;
    return fits_blocks(s) ? form : CUDA_FORM_BF16;
}

static bool has_wide_scales(const weight *w, const matrix_cut *cut) {
    enum { STEP = 128, SIXTEEN = 16 };
    return w->format == WEIGHT_FP8 && cut->rows % SIXTEEN == 0 &&
           (w->group == w->in || (w->group % STEP == 0 && cut->first_column % STEP == 0));
}

bool weight_source_rounds_rows(const weight_source *s) {
    return weight_source_form(s) == CUDA_FORM_F8 && s->cut.columns <= F8_MOST_WIDTH &&
           has_wide_scales(s->first, &s->cut) && (!s->second || has_wide_scales(s->second, &s->cut));
}

bool weight_source_has_one_scale(const weight_source *s) {
    return weight_source_form(s) == CUDA_FORM_F8 && s->first->format == WEIGHT_FP8 && s->first->group == s->first->in &&
           (!s->second || (s->second->format == WEIGHT_FP8 && s->second->group == s->second->in));
}

bool weight_source_rounds(const weight_source *s, cuda_form form) {
    return form == CUDA_FORM_BF16 &&
           (s->first->format != WEIGHT_BF16 || (s->second && s->second->format != WEIGHT_BF16));
}

size_t weight_rows_bytes(const cuda_matrix *m, size_t n) {
    if (m->form == CUDA_FORM_BF16) return n * (size_t)m->ld * sizeof(cuda_bf16);
    return (n + QUANT_ROWS - 1) / QUANT_ROWS * quant_strip_bytes(m->form, m->ld);
}

void weight_rows_convert(const weight_source *s, const cuda_matrix *m, size_t first, size_t n, void *to) {
    if (m->form == CUDA_FORM_BF16) {
        for (size_t i = 0; i < n; i++) row_to_bf16(s, m, first + i, (cuda_bf16 *)to + i * (size_t)m->ld);
        return;
    }
    for (size_t i = 0; i < n; i += QUANT_ROWS) {
        unsigned char *strip = (unsigned char *)to + i / QUANT_ROWS * quant_strip_bytes(m->form, m->ld);
        for (int g = 0; g < QUANT_ROWS; g++) row_to_strip(s, m, first + i + (size_t)g, g, strip);
    }
}
