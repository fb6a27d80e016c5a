#include "backend/cuda/weight_rows.h"

#include <string.h>

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
 * A block of 32 values as signed codes and the bits of a float16 scale: of formats that are just that. */

typedef void (*block_loader)(const unsigned char *block, int8_t *codes);

static void codes_q4_0(const unsigned char *b, int8_t *codes) {
    for (int i = 0; i < 16; i++) {
        codes[i] = (int8_t)((b[2 + i] & 15) - 8);
        codes[i + 16] = (int8_t)((b[2 + i] >> 4) - 8);
    }
}

static void codes_q5_0(const unsigned char *b, int8_t *codes) {
    uint32_t high = block_u32(b + 2);
    for (int i = 0; i < 16; i++) {
        codes[i] = (int8_t)(((b[6 + i] & 15) | (int)(high >> i & 1) << 4) - 16);
        codes[i + 16] = (int8_t)((b[6 + i] >> 4 | (int)(high >> (i + 16) & 1) << 4) - 16);
    }
}

static void codes_q8_0(const unsigned char *b, int8_t *codes) { memcpy(codes, b + 2, QUANT_BLOCK); }

static void codes_iq4_nl(const unsigned char *b, int8_t *codes) {
    for (int i = 0; i < 16; i++) {
        codes[i] = iq4_values[b[2 + i] & 15];
        codes[i + 16] = iq4_values[b[2 + i] >> 4];
    }
}

typedef struct block_format {
    cuda_form form;
    int bytes; /* of a block, of which the first two are the scale */
    block_loader load;
} block_format;

static const block_format block_formats[WEIGHT_FORMAT_COUNT] = {
    [WEIGHT_Q4_0] = {CUDA_FORM_Q4, 18, codes_q4_0},
    [WEIGHT_Q5_0] = {CUDA_FORM_Q8, 22, codes_q5_0},
    [WEIGHT_Q8_0] = {CUDA_FORM_Q8, 34, codes_q8_0},
    [WEIGHT_IQ4_NL] = {CUDA_FORM_Q8, 18, codes_iq4_nl},
};

/* Eight codes of a block as lane t of a row has them. */
static void pack_q4(const int8_t *codes, unsigned char *to) {
    uint32_t word = 0;
    for (int j = 0; j < 8; j++) word |= (uint32_t)((codes[j] + 8) & 15) << quant_q4_shift(j);
    memcpy(to, &word, sizeof word);
}

static void pack_q8(const int8_t *codes, unsigned char *to) {
    for (int j = 0; j < 8; j++) to[quant_q8_byte(j)] = (unsigned char)codes[j];
}

static void row_to_strip(const weight_source *s, const cuda_matrix *m, size_t row, int g, unsigned char *strip) {
    static const int8_t zeros[QUANT_BLOCK];
    source_row r = row < (size_t)m->out ? row_of(s, row) : (source_row){0};
    const block_format *f = r.w ? &block_formats[r.w->format] : NULL;
    int blocks = r.w ? s->cut.columns / QUANT_BLOCK : 0, first = s->cut.first_column / QUANT_BLOCK;
    int to_lane = quant_lane_offset(m->form, 1), of_block = to_lane / QUANT_BLOCKS;
    for (int b = 0; b < quant_units(m->ld) * QUANT_BLOCKS; b++) {
        int8_t codes[QUANT_BLOCK];
        unsigned char *unit = strip + (size_t)(b / QUANT_BLOCKS) * (size_t)quant_unit_bytes(m->form);
        const unsigned char *block = NULL;
        const int8_t *from = zeros;
        if (b < blocks) {
            block = (const unsigned char *)r.stream[0] + (size_t)(first + b) * (size_t)f->bytes;
            f->load(block, codes);
            from = codes;
        }
        unsigned char *scale = unit + quant_scale_offset(m->form, g, b % QUANT_BLOCKS);
        if (block)
            memcpy(scale, block, 2);
        else
            memset(scale, 0, 2);
        for (int t = 0; t < 4; t++) {
            unsigned char *to = unit + (g * 4 + t) * to_lane + b % QUANT_BLOCKS * of_block;
            if (m->form == CUDA_FORM_Q4)
                pack_q4(from + 8 * t, to);
            else
                pack_q8(from + 8 * t, to);
        }
    }
}

/* -------------------------------------------------------------------------------------------------------- forms */

/* Blocks are not cut, and every expert has whole strips. */
static bool fits_blocks(const weight_source *s) {
    return s->cut.columns % QUANT_BLOCK == 0 && s->cut.first_column % QUANT_BLOCK == 0 &&
           (s->cut.rows % QUANT_ROWS == 0 || s->cut.rows == weight_source_out(s));
}

cuda_form weight_source_form(const weight_source *s) {
    cuda_form form = block_formats[s->first->format].form;
    if (s->second && block_formats[s->second->format].form != form) return CUDA_FORM_BF16;
    return fits_blocks(s) ? form : CUDA_FORM_BF16;
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
