/* Formats in which one vector of K or V (one head at one position) can be stored, as `kakeya eval kv-format` compares
 * them. Each packs a vector into bytes and unpacks it from these bytes alone; nothing is shared between vectors.
 *
 *   identity           float32
 *   bf16               as sessions keep it
 *   fp8                e4m3, one float32 scale: largest magnitude by 448
 *   q8                 as sessions keep it (backend/kv_format.h)
 *   affine8, affine4   groups of 64 with an f16 scale and an f16 bias: least value, (largest - least) / (2^bits - 1)
 *   q4                 groups of 16, transformed, in codes of 4 bits with a factor each (backend/kv_q4.h)
 *   d4-Q, e8-Q         Hadamard transform, then the nearest point of the lattice D4 (E8) in blocks of 4 (8),
 * coordinates within [-Q, Q], one float32 scale. Points are numbered, and numbers packed bit by bit.
 *
 * A lattice's block takes ceil(log2(points it can number)) bits: D4 (2Q+1)^3 (Q+1), the last coordinate being half
 * implied by the parity of the others; E8 that of D8, (2Q+1)^7 (Q+1), and its shift by a half, (2Q)^7 Q. Where the
 * nearest point lies outside of the range, the nearest within it is taken; the scale is such that no coordinate starts
 * outside. Zero vectors stay zero, and what is no finite number becomes NaN throughout. */
#ifndef KAKEYA_MEASURE_KV_CODEC_H
#define KAKEYA_MEASURE_KV_CODEC_H

#include <stdbool.h>
#include <stddef.h>

enum { KV_CODECS = 13, KV_CODEC_MAX_VALUES = 1024 };

typedef struct kv_codec kv_codec;

/* In the order of the list above, the lattices with Q 10, 38, 152 (d4) and 9, 38, 151 (e8); NULL beyond KV_CODECS. */
const kv_codec *kv_codec_at(int index);
/* NULL: no such format. */
const kv_codec *kv_codec_find(const char *name);
const char *kv_codec_name(const kv_codec *codec);
bool kv_codec_is_lattice(const kv_codec *codec);

/* Whether vectors of n values can be stored: 1 to KV_CODEC_MAX_VALUES, multiples of 8; where they are transformed, a
 * power of two. */
bool kv_codec_takes(const kv_codec *codec, int n);
/* Bytes of a stored vector of n values. */
size_t kv_codec_bytes(const kv_codec *codec, int n);
void kv_codec_store(const kv_codec *codec, const float *x, int n, unsigned char *out);
void kv_codec_load(const kv_codec *codec, const unsigned char *from, int n, float *out);

#endif
