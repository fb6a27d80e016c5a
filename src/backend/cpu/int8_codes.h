/* Blocks of 32 weights as unsigned codes with their scales: a code is the signed one plus the format's offset. */
#ifndef KAKEYA_BACKEND_CPU_INT8_CODES_H
#define KAKEYA_BACKEND_CPU_INT8_CODES_H

#include <math.h>

#include "backend/cpu/blocks.h"
#include "backend/cpu/int8.h"

#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__F16C__)
BLOCKS_INLINE float int8_f16(const unsigned char *p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return _cvtsh_ss(bits);
}
#else
BLOCKS_INLINE float int8_f16(const unsigned char *p) { return block_f16(p); }
#endif

typedef struct int8_scale {
    float d, m;
    int32_t s[2];
} int8_scale;

/* How a format's block is summed: with a minimum, with two whole scales; what its codes are above the signed ones, and
 * the largest code. */
typedef struct int8_form {
    int values, bytes; /* of a block of the format */
    bool minimum, pair;
    int offset, largest;
} int8_form;

#define INT8_FORM(name, ...) static const int8_form form_##name = {__VA_ARGS__};
INT8_FORM(q4_0, 32, 18, false, false, 8, 15)
INT8_FORM(q4_1, 32, 20, true, false, 0, 15)
INT8_FORM(q5_0, 32, 22, false, false, 16, 31)
INT8_FORM(q5_1, 32, 24, true, false, 0, 31)
INT8_FORM(q8_0, 32, 34, false, false, 128, 255)
INT8_FORM(q3_k, 256, 110, false, true, 4, 7)
INT8_FORM(q4_k, 256, 144, true, false, 0, 15)
INT8_FORM(q5_k, 256, 176, true, false, 0, 31)
INT8_FORM(q6_k, 256, 210, false, true, 32, 63)
INT8_FORM(iq4_nl, 32, 18, false, false, 128, 255)
INT8_FORM(iq4_xs, 256, 136, false, false, 128, 255)
INT8_FORM(mxfp4, 32, 17, false, false, 12, 24)

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
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)b), mask = _mm_set1_epi8(15);
    _mm_storeu_si128((__m128i *)(void *)u, _mm_and_si128(x, mask));
    _mm_storeu_si128((__m128i *)(void *)(u + 16), _mm_and_si128(_mm_srli_epi16(x, 4), mask));
}
/* u |= bit i of high << 4 */
BLOCKS_INLINE void add_fifth_bits(uint32_t high, uint8_t *u) {
    const __m256i bytes = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bits = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i x = _mm256_shuffle_epi8(_mm256_set1_epi32((int)high), bytes);
    x = _mm256_cmpeq_epi8(_mm256_and_si256(x, bits), bits);
    store_32(u, _mm256_or_si256(load_32(u), _mm256_and_si256(x, _mm256_set1_epi8(16))));
}
/* u = table[u] + offset */
BLOCKS_INLINE void look_up(const int8_t *table, int offset, uint8_t *u) {
    __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
    store_32(u, _mm256_add_epi8(_mm256_shuffle_epi8(values, load_32(u)), _mm256_set1_epi8((char)offset)));
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
BLOCKS_INLINE void add_fifth_bits(uint32_t high, uint8_t *u) {
    for (int i = 0; i < 32; i++) u[i] = (uint8_t)(u[i] | (high >> i & 1) << 4);
}
BLOCKS_INLINE void look_up(const int8_t *table, int offset, uint8_t *u) {
    for (int i = 0; i < 32; i++) u[i] = (uint8_t)(table[u[i]] + offset);
}
BLOCKS_INLINE void flip_signs(const uint8_t *b, uint8_t *u) {
    for (int i = 0; i < 32; i++) u[i] = b[i] ^ 0x80;
}
#endif

/* Block j of 32 inside of a block of the format. */
BLOCKS_INLINE void codes_q4_0(const unsigned char *b, int j, uint8_t *u, int8_scale *s) {
    (void)j;
    s->d = int8_f16(b);
    take_nibbles(b + 2, u);
}
BLOCKS_INLINE void codes_q4_1(const unsigned char *b, int j, uint8_t *u, int8_scale *s) {
    (void)j;
    s->d = int8_f16(b);
    s->m = int8_f16(b + 2);
    take_nibbles(b + 4, u);
}
BLOCKS_INLINE void codes_q5_0(const unsigned char *b, int j, uint8_t *u, int8_scale *s) {
    (void)j;
    s->d = int8_f16(b);
    take_nibbles(b + 6, u);
    add_fifth_bits(block_u32(b + 2), u);
}
BLOCKS_INLINE void codes_q5_1(const unsigned char *b, int j, uint8_t *u, int8_scale *s) {
    (void)j;
    s->d = int8_f16(b);
    s->m = int8_f16(b + 2);
    take_nibbles(b + 8, u);
    add_fifth_bits(block_u32(b + 4), u);
}
BLOCKS_INLINE void codes_q8_0(const unsigned char *b, int j, uint8_t *u, int8_scale *s) {
    (void)j;
    s->d = int8_f16(b);
    flip_signs(b + 2, u);
}
BLOCKS_INLINE void codes_q3_k(const unsigned char *b, int j, uint8_t *u, int8_scale *s) {
    const unsigned char *scales = b + 96;
    s->d = int8_f16(b + 108);
    for (int half = 0; half < 2; half++) {
        int g = 2 * j + half;
        int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4, upper = scales[8 + g % 4] >> 2 * (g / 4) & 3;
        s->s[half] = (low | upper << 4) - 32;
    }
    take_bits(b + 32 + 32 * (j / 4), 2 * (j % 4), 3, u);
    add_bits(b, j, 1, 2, u);
}
BLOCKS_INLINE void k_scales(const unsigned char *b, int j, int8_scale *s) {
    int scale, min;
    k_scale(b + 4, j, &scale, &min);
    s->d = int8_f16(b) * (float)scale;
    s->m = -(int8_f16(b + 2) * (float)min);
}
BLOCKS_INLINE void codes_q4_k(const unsigned char *b, int j, uint8_t *u, int8_scale *s) {
    k_scales(b, j, s);
    take_bits(b + 16 + 32 * (j / 2), 4 * (j % 2), 15, u);
}
BLOCKS_INLINE void codes_q5_k(const unsigned char *b, int j, uint8_t *u, int8_scale *s) {
    k_scales(b, j, s);
    take_bits(b + 48 + 32 * (j / 2), 4 * (j % 2), 15, u);
    add_bits(b + 16, j, 1, 4, u);
}
BLOCKS_INLINE void codes_q6_k(const unsigned char *b, int j, uint8_t *u, int8_scale *s) {
    int part = j % 4;
    s->d = int8_f16(b + 208);
    for (int half = 0; half < 2; half++) s->s[half] = (int8_t)b[192 + 2 * j + half];
    take_bits(b + 64 * (j / 4) + 32 * (part % 2), 4 * (part / 2), 15, u);
    add_bits(b + 128 + 32 * (j / 4), 2 * part, 3, 4, u);
}
BLOCKS_INLINE void codes_iq4_nl(const unsigned char *b, int j, uint8_t *u, int8_scale *s) {
    (void)j;
    s->d = int8_f16(b);
    take_nibbles(b + 2, u);
    look_up(iq4_values, 128, u);
}
BLOCKS_INLINE void codes_iq4_xs(const unsigned char *b, int j, uint8_t *u, int8_scale *s) {
    int high = b[2] | b[3] << 8, scale = (b[4 + j / 2] >> 4 * (j % 2) & 15) | (high >> 2 * j & 3) << 4;
    s->d = int8_f16(b) * (float)(scale - 32);
    take_nibbles(b + 8 + 16 * j, u);
    look_up(iq4_values, 128, u);
}
BLOCKS_INLINE void codes_mxfp4(const unsigned char *b, int j, uint8_t *u, int8_scale *s) {
    (void)j;
    s->d = block_float(b[0] < 2 ? 0x00200000u << b[0] : ((uint32_t)b[0] - 1) << 23);
    take_nibbles(b + 1, u);
    look_up(fp4_values, 12, u);
}

/* One block of activations. */
BLOCKS_INLINE void int8_pack_block(const float *x, int n, int8_t *codes, float *scale, int16_t sums[2]) {
    uint32_t largest = 0; /* the bits of sizes have the order of the sizes */
    float values[INT8_BLOCK] = {0};
    memcpy(values, x, (size_t)n * sizeof *x);
    for (int i = 0; i < INT8_BLOCK; i++) {
        uint32_t size;
        memcpy(&size, &values[i], sizeof size);
        size &= 0x7fffffffu;
        largest = size > largest ? size : largest;
    }
    float a = block_float(largest);
    bool finite = largest < 0x7f800000u, zero = !(a >= 0x1p-100f) || !finite;
    float r = zero ? 0 : 127 / a;
    *scale = !finite ? NAN : zero ? 0 : a / 127;
    int total[2] = {0};
    for (int i = 0; i < INT8_BLOCK; i++) {
        int code = zero ? 0 : (int)rintf(values[i] * r);
        codes[i] = (int8_t)code;
        total[i / 16] += code;
    }
    sums[0] = (int16_t)total[0];
    sums[1] = (int16_t)total[1];
}

BLOCKS_INLINE void int8_pack_rows(const float *x, size_t ldx, int rows, int k, void *packed) {
    size_t blocks = int8_blocks(k), row_bytes = int8_row_bytes(k);
    for (int r = 0; r < rows; r++) {
        unsigned char *row = (unsigned char *)packed + (size_t)r * row_bytes;
        float *scales = (float *)(void *)(row + int8_scales_at(blocks));
        int16_t *sums = (int16_t *)(void *)(row + int8_sums_at(blocks));
        for (size_t b = 0; b < blocks; b++) {
            int left = k - (int)b * INT8_BLOCK;
            int8_pack_block(x + (size_t)r * ldx + b * INT8_BLOCK, left < INT8_BLOCK ? left : INT8_BLOCK,
                            (int8_t *)row + b * INT8_BLOCK, &scales[b], &sums[2 * b]);
        }
        size_t used = int8_sums_at(blocks) + blocks * 2 * sizeof *sums;
        memset(row + used, 0, row_bytes - used);
    }
}

#endif
