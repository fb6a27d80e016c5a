/* Flash attention of prompt chunks on tensor cores: the rows of one segment, all heads, against the exact keys of one
 * layer. The row at position t sees the positions [max(t - window + 1, evicted_end, 0), t]; attention scale 1. With
 * `both_ways`, rows of a picture, it sees up to the last row of the launch instead.
 *
 * Keys are walked in ascending blocks whose edges are multiples of the block size in absolute positions, with an online
 * softmax in float32 (probabilities enter the second product as bf16). Blocks without a visible key leave a row's state
 * as it is, bit for bit: a row's result depends neither on its chunk nor on its place in a tile. No T x T matrix
 * exists.
 *
 * bf16 values are given as uint16_t; rows of keys and values are [kv_heads][head_dim], 16-byte aligned. Launchers
 * allocate nothing, wait for nothing, and may be captured in a graph. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_ATTENTION_H
#define KAKEYA_BACKEND_CUDA_PROMPT_ATTENTION_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/prompt_keys.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct prompt_attention_args {
    const void *q; /* [rows][q_stride], heads of head_dim, normed and rotated; float32 or bf16 */
    int q_is_f32;
    size_t q_stride; /* elements, a multiple of 8 */
    int rows, first_position;
    int heads, kv_heads, head_dim; /* head_dim 64, 128, 256 or 512; heads / kv_heads at most 16 */
    int window;                    /* 0: full attention */
    int evicted_end;               /* 0: nothing evicted */
    int both_ways;                 /* not in K = V layers */
    prompt_keys keys;
    uint16_t *k_scratch; /* K = V: [min(PROMPT_SLAB_POSITIONS, first_position + rows)][kv_heads][head_dim] */
    void *out;           /* [rows][out_stride], float32 or bf16; rows that see no key become zero */
    int out_is_f32;
    size_t out_stride;
    /* [rows][heads], or both NULL: the maximum score and the sum of exp(score - m); -INFINITY and 0 in a row without
     * keys. Needed, with a float32 `out`, by K = V layers whose keys reach past one slab, and for `undivided`. */
    float *m, *l;
    int undivided; /* leave `out` undivided by l, to be merged with the states of other passes */
} prompt_attention_args;

/* Whether the arguments are what is said above; cudaErrorInvalidValue where they are not. */
static inline int prompt_attention_takes(const prompt_attention_args *a) {
    int d = a->head_dim;
    return a->q && a->out && !a->m == !a->l && (!a->undivided || a->m) && a->rows > 0 && a->kv_heads > 0 &&
           !(a->both_ways && a->keys.k_norm) && a->heads % a->kv_heads == 0 && a->heads / a->kv_heads <= 16 &&
           a->q_stride % 8 == 0 && a->out_stride % 2 == 0 && (d == 64 || d == 128 || d == 256 || d == 512);
}

cudaError_t prompt_attention(const prompt_attention_args *args, cudaStream_t stream);

/* K = V layers of this shape on this device: positions of one slab. Slabs begin at multiples of it. */
int prompt_attention_slab(int head_dim, int rope_pairs);

#ifdef __cplusplus
}
#endif

#endif
