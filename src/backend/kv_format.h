/* The forms in which a session keeps K/V. Everything that computes the size of a row asks here.
 *
 *   f32, bf16   the values, everywhere
 *   q8          full-attention layers, whose memory grows with the text: a vector (K or V of one head at one position)
 * is a float32 scale s and its values as codes of 8 bits, c = rint(x * (127 / largest |x|)), s = largest |x| / 127;
 *               everything else, which is bounded, in bf16
 *   q4          the same with vectors in 4 bits (kv_q4.h)
 *
 * A stored vector depends on its own values alone, never on when it was written or on what lies beside it. */
#ifndef KAKEYA_BACKEND_KV_FORMAT_H
#define KAKEYA_BACKEND_KV_FORMAT_H

#include <stddef.h>

/* The numbers are written into snapshots: a new format takes the next one. */
typedef enum kv_format { KV_FORMAT_F32 = 0, KV_FORMAT_BF16, KV_FORMAT_Q8, KV_FORMAT_Q4, KV_FORMAT_COUNT } kv_format;

/* "f32", "bf16", "q8", "q4"; "unknown" for any other number. */
const char *kv_format_name(kv_format format);

/* Bytes of a row of `vectors` vectors, each of n values. */
size_t kv_format_row_bytes(kv_format format, size_t vectors, size_t n);

/* What a session of this format keeps everything in that is not K/V of full-attention layers: sliding layers, the
 * drafter's context, latents that say nothing else. */
kv_format kv_format_base(kv_format format);

/* A vector of KV_FORMAT_Q8: the scale, then n codes. The same bytes on every machine. A vector whose largest magnitude
 * is below 2^-100 becomes zero; one with a value that is no finite number becomes NaN throughout. */
enum { KV_Q8_LARGEST = 127, KV_Q8_CODES_AT = sizeof(float) };
void kv_q8_store(const float *x, int n, void *out);
void kv_q8_load(const void *x, int n, float *out);

#endif
