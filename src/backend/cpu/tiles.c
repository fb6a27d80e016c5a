#include "backend/cpu/tiles.h"

static const int8_form *form_of(weight_format format) {
#define FORM_ENTRY(NAME, name, values, bytes) [WEIGHT_##NAME] = &form_##name,
    static const int8_form *const forms[WEIGHT_FORMAT_COUNT] = {BLOCK_FORMATS(FORM_ENTRY)
                                                                    GROUP_INT8_FORMATS(FORM_ENTRY)};
    return forms[format];
}

int8_shape tiles_shape(const weight *w) { return form_shape(form_of(w->format), w); }

bool tiles_have_factors(const weight *w) { return form_has_factors(form_of(w->format)); }

size_t tiles_in_row(const weight *w) { return (size_t)(w->in / INT8_BLOCK / tiles_shape(w).inside); }

size_t tiles_row_bytes(const weight *w) { return tiles_in_row(w) * tile_bytes(form_of(w->format), tiles_shape(w)); }

size_t tiles_bytes(const weight *w) { return ((size_t)w->out + TILE_OUTPUTS - 1) / TILE_OUTPUTS * tiles_row_bytes(w); }

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
    const int8_shape shape = form_shape(form, w);
    const size_t inside = (size_t)shape.inside, o = (size_t)(w->first + row);
    const int lane = (int)(o % TILE_OUTPUTS);
    const unsigned char *tile = (const unsigned char *)w->stream[0] + o / TILE_OUTPUTS * tiles_row_bytes(w) +
                                block / inside * tile_bytes(form, shape);
    const unsigned char *part = tile + tile_head_bytes(form) + block % inside * tile_part_bytes(form);
    unsigned char head[4] = {0}, sub[2] = {0};
    for (int i = 0; i < form_head_bytes(form); i++) head[i] = tile[head_at(form, i, lane)];
    for (int i = 0; i < form_sub_bytes(form); i++) sub[i] = part[TILE_OUTPUTS * i + lane];
    *scale = form_scale(form, shape, head, sub);
    for (int i = 0; i < INT8_BLOCK; i++) codes[i] = code_at(form, part + tile_subs_bytes(form), lane, i);
}

/* The products and sums of the formats' own loaders (blocks.h), in their order. */
static float value_of(const int8_form *form, int code, int half, const int8_scale *s) {
    float c = (float)form_signed(form, code);
    switch (form->scales) {
    case SCALES_GROUP_ZERO:
        return (c + s->m[0]) * s->d[0];
    case SCALES_GROUP_E8M0: /* code 8 is a zero below zero */
        return s->d[0] * (code == 8 ? -0.0f : c);
    case SCALES_PAIR:
        return s->d[0] * (float)s->s[half] * c;
    case SCALES_HALVES:
        return s->d[half] * c;
    case SCALES_GROUP_HALVES:
        return s->d[half] * (code == 8 ? -0.0f : 0.5f * c);
    case SCALES_HALVES_MIN:
        return s->d[half] * c + s->m[half];
    default:
        return form_has_min(form) ? s->d[0] * c + s->m[0] : s->d[0] * c;
    }
}

void tiles_load(const weight *w, int row, int begin, int n, float *out) {
    const int8_form *form = form_of(w->format);
    float factor = 1;
    if (form_has_factors(form)) factor = *tiles_factors(w, row);
    for (int done = 0; done < n;) {
        int at = begin + done, skipped = at % INT8_BLOCK;
        int taken = INT8_BLOCK - skipped < n - done ? INT8_BLOCK - skipped : n - done;
        uint8_t codes[INT8_BLOCK];
        int8_scale scale;
        tiles_block(w, row, (size_t)at / INT8_BLOCK, codes, &scale);
        for (int h = 0; form->scales == SCALES_GROUP_HALVES && h < 2; h++)
            scale.d[h] = tiles_times_factor(w->format, 2 * scale.d[h], factor);
        for (int i = skipped; i < skipped + taken; i++) {
            float value = value_of(form, codes[i], i / 16, &scale);
            out[done++] = form->scales == SCALES_HALVES ? value * factor : value;
        }
    }
}
