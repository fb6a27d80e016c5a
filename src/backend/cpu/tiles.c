#include "backend/cpu/tiles.h"

static const int8_form *form_of(weight_format format) {
#define FORM_ENTRY(NAME, name, values, bytes) [WEIGHT_##NAME] = &form_##name,
    static const int8_form *const forms[WEIGHT_FORMAT_COUNT] = {BLOCK_FORMATS(FORM_ENTRY)};
    return forms[format];
}

size_t tiles_row_bytes(weight_format format, int in) {
    const int8_form *form = form_of(format);
    return (size_t)in / (size_t)form->values * tile_bytes(form);
}

size_t tiles_bytes(weight_format format, int out, int in) {
    return ((size_t)out + TILE_OUTPUTS - 1) / TILE_OUTPUTS * tiles_row_bytes(format, in);
}

/* Code i of 32 of an output. */
static uint8_t code_at(const int8_form *form, const unsigned char *pieces, int lane, int i) {
    const unsigned char *high = pieces + (size_t)(form->low * TILE_PIECE_BYTES);
    int p = i / 4, at = 4 * lane + i % 4, code, above = 0;
    if (form->low == 8)
        code = pieces[p * TILE_PIECE_BYTES + at];
    else if (form->low == 4)
        code = pieces[p % 4 * TILE_PIECE_BYTES + at] >> 4 * (p / 4) & 15;
    else
        code = pieces[p / 4 * TILE_PIECE_BYTES + at] >> 2 * (p % 4) & 3;
    if (form->high == 1) above = high[at] >> p & 1;
    if (form->high == 2) above = high[p / 4 * TILE_PIECE_BYTES + at] >> 2 * (p % 4) & 3;
    return (uint8_t)(code | above << form->low);
}

void tiles_block(const weight *w, int row, size_t block, uint8_t *codes, int8_scale *scale) {
    const int8_form *form = form_of(w->format);
    const size_t inside = (size_t)form_inside(form), o = (size_t)(w->first + row);
    const int lane = (int)(o % TILE_OUTPUTS);
    const unsigned char *tile = (const unsigned char *)w->stream[0] +
                                o / TILE_OUTPUTS * tiles_row_bytes(w->format, w->in) +
                                block / inside * tile_bytes(form);
    const unsigned char *part = tile + tile_head_bytes(form) + block % inside * tile_part_bytes(form);
    unsigned char head[4] = {0}, sub[2] = {0};
    if (form_head_bytes(form) == 1) head[0] = tile[lane];
    for (int i = 0; i + 1 < form_head_bytes(form); i += 2) memcpy(head + i, tile + TILE_OUTPUTS * i + 2 * lane, 2);
    for (int i = 0; i < form_sub_bytes(form); i++) sub[i] = part[TILE_OUTPUTS * i + lane];
    *scale = form_scale(form, head, sub);
    for (int i = 0; i < INT8_BLOCK; i++) codes[i] = code_at(form, part + tile_subs_bytes(form), lane, i);
}

/* The products and sums of the formats' own loaders (blocks.h), in their order. */
static float value_of(const int8_form *form, int code, int half, const int8_scale *s) {
    float c = (float)form_signed(form, code);
    switch (form->scales) {
    case SCALES_PAIR:
        return s->d[0] * (float)s->s[half] * c;
    case SCALES_HALVES:
        return s->d[half] * c;
    case SCALES_HALVES_MIN:
        return s->d[half] * c + s->m[half];
    default:
        return form_has_min(form) ? s->d[0] * c + s->m[0] : s->d[0] * c;
    }
}

void tiles_load(const weight *w, int row, int begin, int n, float *out) {
    const int8_form *form = form_of(w->format);
    float factor = 1;
    if (form->scales == SCALES_HALVES) memcpy(&factor, weight_row(w, 1, row), sizeof factor);
    for (int done = 0; done < n;) {
        int at = begin + done, skipped = at % INT8_BLOCK;
        int taken = INT8_BLOCK - skipped < n - done ? INT8_BLOCK - skipped : n - done;
        uint8_t codes[INT8_BLOCK];
        int8_scale scale;
        tiles_block(w, row, (size_t)at / INT8_BLOCK, codes, &scale);
        for (int i = skipped; i < skipped + taken; i++) {
            float value = value_of(form, codes[i], i / 16, &scale);
            out[done++] = form->scales == SCALES_HALVES ? value * factor : value;
        }
    }
}
