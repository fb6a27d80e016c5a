/* Where the attention of prompts (prompt_attention.h) finds the keys and values of a layer. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_KEYS_H
#define KAKEYA_BACKEND_CUDA_PROMPT_KEYS_H

#include <stddef.h>
#include <stdint.h>

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

#endif
