/* How block formats lie in tiles of 16 outputs, and what their blocks are made of.
 *
 * A tile holds one block of 16 neighbouring outputs, side by side, so that a lane of a vector is an output and nothing
 * is summed over lanes. The tiles of 16 outputs follow each other along k, then come those of the next 16 outputs: a
 * product reads a matrix from its first byte to its last. Of one tile:
 *
 *   head      the block's scales of 16 or 32 bits, [16] each, or one byte of exponent [16], perhaps one of a zero point
 *             [16]; none for NVFP4
 *   for each 32 values of the block:
 *     subs    one or two bytes of scales [16] each, where the format has such (six bits unpacked to eight)
 *     low     4 bits: four pieces of 64 bytes; piece p holds values 4 p to 4 p + 3 of each output in low halves, values
 *             16 + 4 p and so on in high halves. 8 bits: eight pieces, one value a byte. 2 bits: two pieces, of which
 *             piece h holds in bits 2 i values 16 h + 4 i to 16 h + 4 i + 3.
 *     high    further bits. 1 bit: one piece, bit p holds values 4 p to 4 p + 3. 2 bits: as low's two pieces.
 *
 * A code is low | high << (bits of low), perhaps an index into a table; codes are unsigned and stand `offset` above
 * the signed ones. Outputs behind the last are zeros. */
#ifndef KAKEYA_BACKEND_CPU_INT8_FORMS_H
#define KAKEYA_BACKEND_CPU_INT8_FORMS_H

#include <math.h>

#include "backend/cpu/int8.h"

enum { TILE_OUTPUTS = 16, TILE_PIECES = 8, TILE_PIECE_BYTES = 4 * TILE_OUTPUTS };

typedef enum int8_scales {
    SCALES_F16 = 0,      /* head: d */
    SCALES_F16_MIN,      /* head: d, m */
    SCALES_E8M0,         /* head: exponent of d */
    SCALES_GROUP,        /* head: d of 16 bits, bf16 or float16 (as in the next) */
    SCALES_GROUP_MIN,    /* head: d, m */
    SCALES_GROUP_ZERO,   /* head: d, a byte of zero point */
    SCALES_GROUP_E8M0,   /* head: exponent of d; 255 is none */
    SCALES_GROUP_F32,    /* head: d, a float32 */
    SCALES_SUPER,        /* head: d; sub: a signed factor of it */
    SCALES_SUPER_MIN,    /* head: d, dmin; subs: a factor of each */
    SCALES_PAIR,         /* head: d; subs: the two whole scales */
    SCALES_HALVES,       /* subs: d of each half, an e4m3 without a sign */
    SCALES_GROUP_HALVES, /* the same with a sign; 127 and 255 are none */
    SCALES_HALVES_MIN,   /* head: d, dmin; subs: for each half a factor of both, four bits each */
} int8_scales;

typedef enum int8_table { TABLE_NONE = 0, TABLE_IQ4, TABLE_FP4 } int8_table;

typedef struct int8_form {
    int values, bytes; /* of a block of the format; where scales lie beside codes, of 32 codes; 0 values: in groups */
    int8_scales scales;
    int low, high; /* bits of codes */
    int8_table table;
    int offset, largest; /* of unsigned codes, after the table */
} int8_form;

#define INT8_FORM(name, ...) static const int8_form form_##name = {__VA_ARGS__};
INT8_FORM(q4_0, 32, 18, SCALES_F16, 4, 0, TABLE_NONE, 8, 15)
INT8_FORM(q4_1, 32, 20, SCALES_F16_MIN, 4, 0, TABLE_NONE, 0, 15)
INT8_FORM(q5_0, 32, 22, SCALES_F16, 4, 1, TABLE_NONE, 16, 31)
INT8_FORM(q5_1, 32, 24, SCALES_F16_MIN, 4, 1, TABLE_NONE, 0, 31)
INT8_FORM(q8_0, 32, 34, SCALES_F16, 8, 0, TABLE_NONE, 128, 255)
INT8_FORM(q2_k, 256, 84, SCALES_HALVES_MIN, 2, 0, TABLE_NONE, 0, 3)
INT8_FORM(q3_k, 256, 110, SCALES_PAIR, 2, 1, TABLE_NONE, 4, 7)
INT8_FORM(q4_k, 256, 144, SCALES_SUPER_MIN, 4, 0, TABLE_NONE, 0, 15)
INT8_FORM(q5_k, 256, 176, SCALES_SUPER_MIN, 4, 1, TABLE_NONE, 0, 31)
INT8_FORM(q6_k, 256, 210, SCALES_PAIR, 4, 2, TABLE_NONE, 32, 63)
INT8_FORM(iq4_nl, 32, 18, SCALES_F16, 4, 0, TABLE_IQ4, 128, 241)
INT8_FORM(iq4_xs, 256, 136, SCALES_SUPER, 4, 0, TABLE_IQ4, 128, 241)
INT8_FORM(mxfp4, 32, 17, SCALES_E8M0, 4, 0, TABLE_FP4, 12, 24)
INT8_FORM(nvfp4, 64, 36, SCALES_HALVES, 4, 0, TABLE_FP4, 12, 24)
/* Scales beside codes, of as many blocks of 32 as the matrix says. */
INT8_FORM(affine_2, 0, 8, SCALES_GROUP_MIN, 2, 0, TABLE_NONE, 0, 3)
INT8_FORM(affine_3, 0, 12, SCALES_GROUP_MIN, 2, 1, TABLE_NONE, 0, 7)
INT8_FORM(affine_5, 0, 20, SCALES_GROUP_MIN, 4, 1, TABLE_NONE, 0, 31)
INT8_FORM(affine_6, 0, 24, SCALES_GROUP_MIN, 4, 2, TABLE_NONE, 0, 63)
INT8_FORM(affine_4, 0, 16, SCALES_GROUP_MIN, 4, 0, TABLE_NONE, 0, 15)
INT8_FORM(affine_8, 0, 32, SCALES_GROUP_MIN, 8, 0, TABLE_NONE, 0, 255)
INT8_FORM(int4, 0, 16, SCALES_GROUP, 4, 0, TABLE_NONE, 8, 15)
INT8_FORM(int8, 0, 32, SCALES_GROUP, 8, 0, TABLE_NONE, 128, 255)
INT8_FORM(int4_zero, 0, 16, SCALES_GROUP_ZERO, 4, 0, TABLE_NONE, 0, 15)
INT8_FORM(int8_zero, 0, 32, SCALES_GROUP_ZERO, 8, 0, TABLE_NONE, 0, 255)
INT8_FORM(int8_signed, 0, 32, SCALES_GROUP_F32, 8, 0, TABLE_NONE, 128, 255)
/* Of one block of 32, or of each half of it. */
INT8_FORM(fp4_e8m0, 32, 16, SCALES_GROUP_E8M0, 4, 0, TABLE_FP4, 12, 24)
INT8_FORM(fp4_e4m3, 32, 16, SCALES_GROUP_HALVES, 4, 0, TABLE_FP4, 12, 24)
INT8_FORM(fp4_e4m3_div, 32, 16, SCALES_GROUP_HALVES, 4, 0, TABLE_FP4, 12, 24)

BLOCKS_INLINE bool form_has_min(const int8_form *f) {
    return f->scales == SCALES_F16_MIN || f->scales == SCALES_SUPER_MIN || f->scales == SCALES_HALVES_MIN ||
           f->scales == SCALES_GROUP_MIN;
}
/* Codes stand on no offset, and the sum of a row's codes takes part. */
BLOCKS_INLINE bool form_has_total(const int8_form *f) { return form_has_min(f) || f->scales == SCALES_GROUP_ZERO; }
/* A scale for each half, and a factor for the row. */
BLOCKS_INLINE bool form_has_factors(const int8_form *f) {
    return f->scales == SCALES_HALVES || f->scales == SCALES_GROUP_HALVES;
}
/* A scale for each half. */
BLOCKS_INLINE bool form_has_halves(const int8_form *f) { return form_has_factors(f) || f->scales == SCALES_HALVES_MIN; }
/* The two halves of 32 codes are summed apart. */
BLOCKS_INLINE bool form_in_halves(const int8_form *f) { return f->scales >= SCALES_PAIR; }
BLOCKS_INLINE bool form_in_groups(const int8_form *f) { return f->values == 0; }
/* The shape of tiles of a matrix. Of groups a head counts for up to four blocks, all of one group. */
BLOCKS_INLINE int8_shape form_shape(const int8_form *f, const weight *w) {
    if (!form_in_groups(f)) return (int8_shape){f->values / INT8_BLOCK, false};
    const int together = w->group % 128 == 0 && w->in % 128 == 0 ? 4 : w->group % 64 == 0 && w->in % 64 == 0 ? 2 : 1;
    return (int8_shape){together, w->scale_type != DTYPE_F16};
}
/* Bytes per output. */
BLOCKS_INLINE int form_head_bytes(const int8_form *f) {
    if (form_has_factors(f)) return 0;
    if (f->scales == SCALES_E8M0 || f->scales == SCALES_GROUP_E8M0) return 1;
    if (f->scales == SCALES_GROUP_ZERO) return 3;
    return form_has_min(f) || f->scales == SCALES_GROUP_F32 ? 4 : 2;
}
BLOCKS_INLINE int form_sub_bytes(const int8_form *f) {
    return f->scales <= SCALES_GROUP_F32 ? 0 : f->scales == SCALES_SUPER ? 1 : 2;
}
/* Bytes of a tile: of its head, of each 32 values, and of the whole. */
BLOCKS_INLINE size_t tile_head_bytes(const int8_form *f) { return (size_t)(TILE_OUTPUTS * form_head_bytes(f)); }
BLOCKS_INLINE size_t tile_subs_bytes(const int8_form *f) { return (size_t)(TILE_OUTPUTS * form_sub_bytes(f)); }
BLOCKS_INLINE size_t tile_part_bytes(const int8_form *f) {
    return tile_subs_bytes(f) + (size_t)(TILE_PIECE_BYTES * (f->low + f->high));
}
BLOCKS_INLINE size_t tile_bytes(const int8_form *f, int8_shape shape) {
    return tile_head_bytes(f) + (size_t)shape.inside * tile_part_bytes(f);
}
/* Where byte i of an output's head stands in that of a tile: scales lie side by side, each whole. */
BLOCKS_INLINE size_t head_at(const int8_form *f, int i, int lane) {
    const int bytes = form_head_bytes(f);
    const int width = f->scales == SCALES_GROUP_F32 ? 4 : bytes == 1 || (bytes == 3 && i == 2) ? 1 : 2;
    return (size_t)((i - i % width) * TILE_OUTPUTS + width * lane + i % width);
}

/* What a block's bytes of scales say of 32 values, or of each half of them. */
typedef struct int8_scale {
    float d[2], m[2];
    int s[2];
} int8_scale;

BLOCKS_INLINE float e8m0_half(unsigned char e) {
    return block_float(e < 2 ? 0x00200000u << e : ((uint32_t)e - 1) << 23);
}

BLOCKS_INLINE float scale_of_16(bool bf16, const unsigned char *p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

/* head, sub: one output's. */
BLOCKS_INLINE int8_scale form_scale(const int8_form *f, int8_shape shape, const unsigned char *head,
                                    const unsigned char *sub) {
    int8_scale s = {{0}, {0}, {0}};
    switch (f->scales) {
    case SCALES_F16_MIN:
        s.m[0] = block_f16(head + 2);
        s.d[0] = block_f16(head);
        break;
    case SCALES_F16:
        s.d[0] = block_f16(head);
        break;
    case SCALES_E8M0:
        s.d[0] = e8m0_half(head[0]);
        break;
    case SCALES_GROUP_MIN:
        s.m[0] = scale_of_16(shape.bf16, head + 2);
        s.d[0] = scale_of_16(shape.bf16, head);
        break;
    case SCALES_GROUP:
        s.d[0] = scale_of_16(shape.bf16, head);
        break;
    case SCALES_GROUP_ZERO:
        s.m[0] = -(float)head[2];
        s.d[0] = scale_of_16(shape.bf16, head);
        break;
    case SCALES_GROUP_E8M0:
        s.d[0] = 0.5f * e8m0_to_f32(head[0]);
        break;
    case SCALES_GROUP_F32:
        s.d[0] = block_float(block_u32(head));
        break;
    case SCALES_SUPER:
        s.d[0] = block_f16(head) * (float)(int8_t)sub[0];
        break;
    case SCALES_SUPER_MIN:
        s.d[0] = block_f16(head) * (float)sub[0];
        s.m[0] = -(block_f16(head + 2) * (float)sub[1]);
        break;
    case SCALES_PAIR:
        s.d[0] = block_f16(head);
        for (int h = 0; h < 2; h++) s.s[h] = (int8_t)sub[h];
        break;
    case SCALES_HALVES:
        for (int h = 0; h < 2; h++) s.d[h] = nvfp4_scale(sub[h]);
        break;
    case SCALES_GROUP_HALVES:
        for (int h = 0; h < 2; h++) s.d[h] = 0.5f * e4m3_to_f32(sub[h]);
        break;
    case SCALES_HALVES_MIN:
        for (int h = 0; h < 2; h++) {
            s.d[h] = block_f16(head) * (float)(sub[h] & 15);
            s.m[h] = -(block_f16(head + 2) * (float)(sub[h] >> 4));
        }
        break;
    }
    return s;
}

/* The signed code of a stored one. */
BLOCKS_INLINE int form_signed(const int8_form *f, int code) {
    return f->table == TABLE_IQ4 ? iq4_values[code] : f->table == TABLE_FP4 ? fp4_values[code] : code - f->offset;
}

#endif
