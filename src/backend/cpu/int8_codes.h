/* Blocks as files hold them, taken apart: 32 unsigned codes at a time, and their bytes of scales (int8_forms.h). */
#ifndef KAKEYA_BACKEND_CPU_INT8_CODES_H
#define KAKEYA_BACKEND_CPU_INT8_CODES_H

#include "backend/cpu/int8_forms.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* Steps of taking codes apart: 32 of them at a time, in vectors where there are some. */
#if defined(__AVX2__)
BLOCKS_INLINE __m256i load_32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
BLOCKS_INLINE void store_32(uint8_t *p, __m256i x) { _mm256_storeu_si256((__m256i *)(void *)p, x); }
BLOCKS_INLINE __m256i field_of(const uint8_t *b, int shift, int mask) {
    return _mm256_and_si256(_mm256_srl_epi16(load_32(b), _mm_cvtsi32_si128(shift)), _mm256_set1_epi8((char)mask));
}
/* u = b >> shift & mask */
BLOCKS_INLINE void take_bits(const uint8_t *b, int shift, int mask, uint8_t *u) {
    store_32(u, field_of(b, shift, mask));
}
/* u |= (b >> shift & mask) << up */
BLOCKS_INLINE void add_bits(const uint8_t *b, int shift, int mask, int up, uint8_t *u) {
    __m256i bits = _mm256_sll_epi16(field_of(b, shift, mask), _mm_cvtsi32_si128(up));
    store_32(u, _mm256_or_si256(load_32(u), bits));
}
/* Low halves of 16 bytes, then their high halves. */
BLOCKS_INLINE void take_nibbles(const uint8_t *b, uint8_t *u) {
    /* One store: two halves that are loaded as a whole would have to reach the cache first. */
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)b);
    store_32(u, _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(x, 4), x), _mm256_set1_epi8(15)));
}
/* The same of 8 bytes, then of the next 8. */
BLOCKS_INLINE void take_eights(const uint8_t *b, uint8_t *u) {
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)b), upper = _mm_srli_epi16(x, 4);
    __m256i both = _mm256_set_m128i(_mm_unpackhi_epi64(x, upper), _mm_unpacklo_epi64(x, upper));
    store_32(u, _mm256_and_si256(both, _mm256_set1_epi8(15)));
}
/* u |= bit i of high << 4 */
BLOCKS_INLINE void add_fifth_bits(uint32_t high, uint8_t *u) {
    const __m256i bytes = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bits = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i x = _mm256_shuffle_epi8(_mm256_set1_epi32((int)high), bytes);
    x = _mm256_cmpeq_epi8(_mm256_and_si256(x, bits), bits);
    store_32(u, _mm256_or_si256(load_32(u), _mm256_and_si256(x, _mm256_set1_epi8(16))));
}
BLOCKS_INLINE void flip_signs(const uint8_t *b, uint8_t *u) {
    store_32(u, _mm256_xor_si256(load_32(b), _mm256_set1_epi8((char)0x80)));
}
#else
BLOCKS_INLINE void take_bits(const uint8_t *b, int shift, int mask, uint8_t *u) {
    for (int i = 0; i < 32; i++) u[i] = (uint8_t)(b[i] >> shift & mask);
}
BLOCKS_INLINE void add_bits(const uint8_t *b, int shift, int mask, int up, uint8_t *u) {
    for (int i = 0; i < 32; i++) u[i] = (uint8_t)(u[i] | (b[i] >> shift & mask) << up);
}
BLOCKS_INLINE void take_nibbles(const uint8_t *b, uint8_t *u) {
    for (int i = 0; i < 16; i++) u[i] = b[i] & 15;
    for (int i = 0; i < 16; i++) u[i + 16] = b[i] >> 4;
}
BLOCKS_INLINE void take_eights(const uint8_t *b, uint8_t *u) {
    for (int i = 0; i < 32; i++) u[i] = b[8 * (i / 16) + i % 8] >> 4 * (i / 8 % 2) & 15;
}
BLOCKS_INLINE void add_fifth_bits(uint32_t high, uint8_t *u) {
    for (int i = 0; i < 32; i++) u[i] = (uint8_t)(u[i] | (high >> i & 1) << 4);
}
BLOCKS_INLINE void flip_signs(const uint8_t *b, uint8_t *u) {
    for (int i = 0; i < 32; i++) u[i] = b[i] ^ 0x80;
}
#endif

/* Of 32 values: the block's bytes of scales in the order of int8_forms.h, and the codes. */
typedef struct int8_bytes {
    unsigned char head[4], sub[2];
} int8_bytes;

/* Part j of 32 values of a block of the format. */
BLOCKS_INLINE void codes_q4_0(const unsigned char *b, int j, uint8_t *u, int8_bytes *s) {
    (void)j;
    memcpy(s->head, b, 2);
    take_nibbles(b + 2, u);
}
BLOCKS_INLINE void codes_q4_1(const unsigned char *b, int j, uint8_t *u, int8_bytes *s) {
    (void)j;
    memcpy(s->head, b, 4);
    take_nibbles(b + 4, u);
}
BLOCKS_INLINE void codes_q5_0(const unsigned char *b, int j, uint8_t *u, int8_bytes *s) {
    (void)j;
    memcpy(s->head, b, 2);
    take_nibbles(b + 6, u);
    add_fifth_bits(block_u32(b + 2), u);
}
BLOCKS_INLINE void codes_q5_1(const unsigned char *b, int j, uint8_t *u, int8_bytes *s) {
    (void)j;
    memcpy(s->head, b, 4);
    take_nibbles(b + 8, u);
    add_fifth_bits(block_u32(b + 4), u);
}
BLOCKS_INLINE void codes_q8_0(const unsigned char *b, int j, uint8_t *u, int8_bytes *s) {
    (void)j;
    memcpy(s->head, b, 2);
    flip_signs(b + 2, u);
}
BLOCKS_INLINE void codes_q2_k(const unsigned char *b, int j, uint8_t *u, int8_bytes *s) {
    memcpy(s->head, b + 80, 4);
    memcpy(s->sub, b + 2 * j, 2);
    take_bits(b + 16 + 32 * (j / 4), 2 * (j % 4), 3, u);
}
BLOCKS_INLINE void codes_q3_k(const unsigned char *b, int j, uint8_t *u, int8_bytes *s) {
    const unsigned char *scales = b + 96;
    memcpy(s->head, b + 108, 2);
    for (int half = 0; half < 2; half++) {
        int g = 2 * j + half;
        int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4, upper = scales[8 + g % 4] >> 2 * (g / 4) & 3;
        s->sub[half] = (unsigned char)((low | upper << 4) - 32);
    }
    take_bits(b + 32 + 32 * (j / 4), 2 * (j % 4), 3, u);
    add_bits(b, j, 1, 2, u);
}
BLOCKS_INLINE void k_scales(const unsigned char *b, int j, int8_bytes *s) {
    int scale, min;
    k_scale(b + 4, j, &scale, &min);
    memcpy(s->head, b, 4);
    s->sub[0] = (unsigned char)scale;
    s->sub[1] = (unsigned char)min;
}
BLOCKS_INLINE void codes_q4_k(const unsigned char *b, int j, uint8_t *u, int8_bytes *s) {
    k_scales(b, j, s);
    take_bits(b + 16 + 32 * (j / 2), 4 * (j % 2), 15, u);
}
BLOCKS_INLINE void codes_q5_k(const unsigned char *b, int j, uint8_t *u, int8_bytes *s) {
    k_scales(b, j, s);
    take_bits(b + 48 + 32 * (j / 2), 4 * (j % 2), 15, u);
    add_bits(b + 16, j, 1, 4, u);
}
BLOCKS_INLINE void codes_q6_k(const unsigned char *b, int j, uint8_t *u, int8_bytes *s) {
    int part = j % 4;
    memcpy(s->head, b + 208, 2);
    memcpy(s->sub, b + 192 + 2 * j, 2);
    take_bits(b + 64 * (j / 4) + 32 * (part % 2), 4 * (part / 2), 15, u);
    add_bits(b + 128 + 32 * (j / 4), 2 * part, 3, 4, u);
}
BLOCKS_INLINE void codes_iq4_nl(const unsigned char *b, int j, uint8_t *u, int8_bytes *s) { codes_q4_0(b, j, u, s); }
BLOCKS_INLINE void codes_iq4_xs(const unsigned char *b, int j, uint8_t *u, int8_bytes *s) {
    int high = b[2] | b[3] << 8, scale = (b[4 + j / 2] >> 4 * (j % 2) & 15) | (high >> 2 * j & 3) << 4;
    memcpy(s->head, b, 2);
    s->sub[0] = (unsigned char)(scale - 32);
    take_nibbles(b + 8 + 16 * j, u);
}
BLOCKS_INLINE void codes_mxfp4(const unsigned char *b, int j, uint8_t *u, int8_bytes *s) {
    (void)j;
    s->head[0] = b[0];
    take_nibbles(b + 1, u);
}
BLOCKS_INLINE void codes_nvfp4(const unsigned char *b, int j, uint8_t *u, int8_bytes *s) {
    memcpy(s->sub, b + 2 * j, 2);
    take_eights(b + 4 + 16 * j, u);
}

/* Weights in rows: where outputs' streams begin and how far they lie apart. */
typedef struct int8_rows {
    const unsigned char *stream[WEIGHT_STREAMS];
    size_t row_bytes[WEIGHT_STREAMS];
    size_t group; /* blocks of 32 that share a scale which lies beside the codes */
} int8_rows;

BLOCKS_INLINE int8_rows int8_rows_of(const weight *w, int row) {
    int8_rows rows = {.group = (size_t)(w->group / INT8_BLOCK)};
    for (int s = 0; s < weight_format_find(w->format)->streams; s++) {
        rows.stream[s] = weight_row(w, s, row);
        rows.row_bytes[s] = weight_row_bytes(w, s);
    }
    return rows;
}

/* n < 8 bytes, in pieces that processors load: what is stored in pieces and loaded as a whole has to reach the cache.
 */
BLOCKS_INLINE uint64_t few_bytes(const int n, const unsigned char *b) {
    uint32_t four = 0;
    uint16_t two = 0;
    if (n & 4) memcpy(&four, b, sizeof four);
    if (n & 2) memcpy(&two, b + (n & 4), sizeof two);
    const uint64_t last = n & 1 ? b[n - 1] : 0;
    return four | (uint64_t)two << 8 * (n & 4) | last << 8 * (n & 6);
}

/* 32 codes that are one string of bits, the lowest first. Eight of them are as many bytes as a code has bits: halves,
 * quarters and eighths of these are moved to where they go, all of a size at once. */
BLOCKS_INLINE void take_string(const int bits, const unsigned char *b, uint8_t *u) {
    const uint64_t one = (1u << bits) - 1, two = (1u << 2 * bits) - 1, four = ((uint64_t)1 << 4 * bits) - 1;
    for (int i = 0; i < INT8_BLOCK; i += 8) {
        uint64_t x = few_bytes(bits, b + i / 8 * bits);
        x = (x & four) | x >> 4 * bits << 32;
        x = (x & two * 0x0000000100000001u) | (x & (two << 2 * bits) * 0x0000000100000001u) << (16 - 2 * bits);
        x = (x & one * 0x0001000100010001u) | (x & (one << bits) * 0x0001000100010001u) << (8 - bits);
        memcpy(u + i, &x, sizeof x);
    }
}

/* Values [32 part, 32 part + 32) of the output-th row. */
BLOCKS_INLINE void take_group(const int8_form *f, const int8_rows *rows, int output, size_t part, uint8_t *u,
                              int8_bytes *s) {
    const size_t o = (size_t)output, group = form_in_groups(f) ? part / rows->group : part;
    const size_t scale_bytes = f->scales == SCALES_GROUP_F32 ? 4 : f->scales == SCALES_GROUP_E8M0 ? 1 : 2;
    const unsigned char *b = rows->stream[0] + o * rows->row_bytes[0] + part * (size_t)f->bytes;
    memcpy(form_has_factors(f) ? s->sub : s->head, rows->stream[1] + o * rows->row_bytes[1] + scale_bytes * group,
           scale_bytes);
    if (form_has_min(f)) memcpy(s->head + 2, rows->stream[2] + o * rows->row_bytes[2] + 2 * group, 2);
    if (f->scales == SCALES_GROUP_ZERO) s->head[2] = rows->stream[2][o * rows->row_bytes[2] + group];
    if (f->scales == SCALES_GROUP_F32)
        flip_signs(b, u);
    else if (f->low == 8)
        memcpy(u, b, INT8_BLOCK);
    else
        take_string(f->low + f->high, b, u);
}

typedef void (*part_taker)(const int8_rows *rows, int output, size_t part, uint8_t *u, int8_bytes *s);

#define DEFINE_TAKE_BLOCK(NAME, name, values, bytes)                                                                   \
    BLOCKS_INLINE void take_##name(const int8_rows *rows, int output, size_t part, uint8_t *u, int8_bytes *s) {        \
        const size_t inside = (values) / INT8_BLOCK;                                                                   \
        codes_##name(rows->stream[0] + (size_t)output * rows->row_bytes[0] + part / inside * (bytes),                  \
                     (int)(part % inside), u, s);                                                                      \
    }
#define DEFINE_TAKE_GROUP(NAME, name, bits, kind)                                                                      \
    BLOCKS_INLINE void take_##name(const int8_rows *rows, int output, size_t part, uint8_t *u, int8_bytes *s) {        \
        take_group(&form_##name, rows, output, part, u, s);                                                            \
    }
BLOCK_FORMATS(DEFINE_TAKE_BLOCK)
GROUP_INT8_FORMATS(DEFINE_TAKE_GROUP)

/* What a block's largest size makes of its values: they are multiplied with the result, and its scale is stored. */
BLOCKS_INLINE float int8_steps(uint32_t largest, float *scale) {
    float a = block_float(largest);
    bool finite = largest < 0x7f800000u, zero = !(a >= 0x1p-100f) || !finite;
    *scale = !finite ? NAN : zero ? 0 : a / 127;
    return zero ? 0 : 127 / a;
}

/* One block of activations. */
BLOCKS_INLINE void int8_pack_block(const float *x, int n, int8_record *out) {
    uint32_t largest = 0; /* the bits of sizes have the order of the sizes */
    float values[INT8_BLOCK] = {0};
    memcpy(values, x, (size_t)n * sizeof *x);
    for (int i = 0; i < INT8_BLOCK; i++) {
        uint32_t size;
        memcpy(&size, &values[i], sizeof size);
        size &= 0x7fffffffu;
        largest = size > largest ? size : largest;
    }
    float r = int8_steps(largest, &out->scale);
    int total[2] = {0};
    for (int i = 0; i < INT8_BLOCK; i++) {
        int code = r == 0 ? 0 : (int)rintf(values[i] * r);
        out->codes[i] = (int8_t)code;
        total[i / 16] += code;
    }
    for (int h = 0; h < 2; h++) out->half[h] = (int16_t)total[h];
    out->total = (float)(total[0] + total[1]);
    out->start = -128 * (total[0] + total[1]);
}

typedef void (*int8_packer)(const float *x, int n, int8_record *out);

/* fine: each row is followed by one of what it leaves. */
BLOCKS_INLINE void int8_pack_rows(int8_packer pack_block, const bool fine, const float *x, size_t ldx, int rows, int k,
                                  void *packed) {
    size_t blocks = int8_blocks(k), row_bytes = int8_row_bytes(k), used = blocks * sizeof(int8_record);
    for (int r = 0; r < rows; r++) {
        unsigned char *row = (unsigned char *)packed + (size_t)(fine ? 2 * r : r) * row_bytes;
        int8_record *record = (int8_record *)(void *)row, *rest = (int8_record *)(void *)(row + row_bytes);
        for (size_t b = 0; b < blocks; b++) {
            const float *values = x + (size_t)r * ldx + b * INT8_BLOCK;
            int left = k - (int)b * INT8_BLOCK, n = left < INT8_BLOCK ? left : INT8_BLOCK;
            pack_block(values, n, &record[b]);
            if (!fine) continue;
            float rests[INT8_BLOCK];
            for (int i = 0; i < n; i++) rests[i] = values[i] - record[b].scale * (float)record[b].codes[i];
            pack_block(rests, n, &rest[b]);
        }
        memset(row + used, 0, row_bytes - used);
        if (fine) memset(row + row_bytes + used, 0, row_bytes - used);
    }
}

#endif
