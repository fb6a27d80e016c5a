/* Flash attention of prompt chunks on tensor cores: the rows of one segment, all heads, against the exact keys of one
 * layer. The row at position t sees the positions [max(t - window + 1, evicted_end, 0), t]; attention scale 1.
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

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PROMPT_PAGE_POSITIONS = 64,
    PROMPT_SLAB_POSITIONS = 8192, /* keys derived at a time in K = V layers */
};

/* Where the keys and values of position p lie (device memory, device pointers). Positions from `chunk_begin` on: row
 * p - chunk_begin of the chunk buffers. Earlier ones: slot p % ring_capacity of the ring when ring_capacity > 0, else
 * row p % 64 of page p / 64. Positions no row sees are never read.
 *
 * With k_norm the layer has K = V: the K pointers are ignored and keys are derived as bf16(RoPE_p(k_norm * v)). */
typedef struct prompt_keys {
    int chunk_begin; /* INT_MAX: none */
    const uint16_t *chunk_k, *chunk_v;
    int ring_capacity;
    const uint16_t *ring_k, *ring_v;
    const uint16_t *const *pages; /* device array */
    size_t page_k, page_v;        /* elements from a page's start to its K and V rows */
    const float *k_norm;          /* [head_dim], or NULL */
    const float *cosine, *sine;   /* [position][rope_pairs]; pair j is dimensions j and j + head_dim / 2 */
    int rope_pairs;
} prompt_keys;

typedef struct prompt_attention_args {
    const void *q; /* [rows][q_stride], heads of head_dim, normed and rotated; float32 or bf16 */
    int q_is_f32;
    size_t q_stride; /* elements, a multiple of 8 */
    int rows, first_position;
    int heads, kv_heads, head_dim; /* head_dim 64, 128, 256 or 512; heads / kv_heads at most 16 */
    int window;                    /* 0: full attention */
    int evicted_end;               /* 0: nothing evicted */
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

cudaError_t prompt_attention(const prompt_attention_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
