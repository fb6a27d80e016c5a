/* A vector of K or V in 4 bits for each value. Its n values are g groups: group b has every g-th value from b on, in
 * all m = n / g of them, 16 or, where n is not divisible by it, the largest power of two that divides n. A group is
 * stored after a Hadamard transform (+1 and -1, Sylvester's order), which commutes with all that a group has in common:
 *
 *   x[a g + b] = s * (k[b] * sum over a' of H[a][a'] v[a' g + b])      v = one of 16 steps; sums are exact integers
 *
 * In memory: the float32 scale s, the g factors k as int8, n codes of 4 bits. Of each 32 values the first 16 are the
 * lower halves of 16 bytes, the others their upper halves; of r < 32 that are left, the first (r + 1) / 2 those of so
 * many bytes. Then zeros up to a multiple of 4 bytes. The same bytes on every machine, of the vector's values alone. A
 * vector whose largest magnitude is below 2^-100 becomes zero; one with a value that is no finite number NaN.
 *
 * So whoever attends a stored vector need not transform it: its product with q is s * sum over i of k[i % g] q'[i] v[i]
 * with q' = q transformed, and values may be summed as s * k * v and their sum transformed once. */
#ifndef KAKEYA_MEASURE_KV_Q4_H
#define KAKEYA_MEASURE_KV_Q4_H

#include <stddef.h>

enum {
    KV_Q4_GROUP = 16,
    KV_Q4_LARGEST = 127,
    KV_Q4_FACTORS_AT = sizeof(float),
    KV_Q4_BLOCK = 32,
    KV_Q4_MAX_VALUES = 1024,
};

int kv_q4_groups(int n);
size_t kv_q4_bytes(int n);
/* n: 1 to KV_Q4_MAX_VALUES. */
void kv_q4_store(const float *x, int n, void *out);
void kv_q4_load(const void *x, int n, float *out);

#endif
