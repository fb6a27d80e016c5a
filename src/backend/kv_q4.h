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
#ifndef KAKEYA_BACKEND_KV_Q4_H
#define KAKEYA_BACKEND_KV_Q4_H

#include <stddef.h>
#include <stdint.h>

enum {
    KV_Q4_GROUP = 16,
    KV_Q4_LARGEST = 127,
    KV_Q4_FACTORS_AT = sizeof(float),
    KV_Q4_BLOCK = 32,
    KV_Q4_MAX_VALUES = 4096,
    KV_Q4_CODES = 16,
    KV_Q4_EXTREMES = 6,
};

/* The steps v that leave the least squared error of 16 normal numbers with a scale of their own, of either sign; what
 * lies between a step and the one before it; and where a group's extreme value comes to lie: the best is taken. */
extern const int8_t kv_q4_values[KV_Q4_CODES];
extern const float kv_q4_middles[KV_Q4_CODES], kv_q4_extremes[KV_Q4_EXTREMES];

int kv_q4_groups(int n);
size_t kv_q4_codes_at(int n);
size_t kv_q4_bytes(int n);

/* What takes the time of storing, as an instruction set does it best; all give the same bits. y [values][groups], of
 * which values are at most KV_Q4_GROUP. */
typedef struct kv_q4_search {
    /* The scale of each group that leaves the least error among the ways to place its extreme value. */
    void (*scales)(const float *y, int values, int groups, float *scales);
    /* The codes of the steps that are nearest to y * inverse. */
    void (*codes)(const float *y, int values, int groups, const float *inverse, unsigned char *codes);
} kv_q4_search;

void kv_q4_store_by(const kv_q4_search *search, const float *x, int n, void *out);
/* n: 1 to KV_Q4_MAX_VALUES. */
void kv_q4_store(const float *x, int n, void *out);
void kv_q4_load(const void *x, int n, float *out);

#endif
