/* Attention of decode rows to evicted positions whose values are never decoded (sm_90a): they are summed as latents,
 * and a sum is decoded once for each query, where all partial results of a row meet. Keys are decoded either ahead,
 * beside other kernels, which suits few sessions, or tile by tile where they are multiplied with the queries.
 *
 *     score(q, p) = q . RoPE_p(k_norm(D_k e_k(p)))      latent_scores.cu; keys decoded ahead: latent_attend.cu
 *     z = sum_p softmax(p) s(p) e_v(p)                  latent_attend.cu, with what the row sees exactly
 *     out = D_v z + what the row sees exactly           latent_merge.cu
 *
 * RoPE is cut in two. Keys are turned by their place among LATENT_GROUP aligned positions, queries are turned back by
 * the group's first position: q . R(base + i) k = (R(-base) q) . (R(i) k).
 *
 * Both ways have the same bits. A score depends on its query and its position alone; sums run over partitions that are
 * cut at absolute positions and merged in ascending order. So a row's bits depend on nothing that is computed beside
 * it. */
#ifndef KAKEYA_BACKEND_CUDA_LATENT_ATTENTION_H
#define KAKEYA_BACKEND_CUDA_LATENT_ATTENTION_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LATENT_GROUP = CUDA_LATENT_GROUP,
    LATENT_HEAD_DIM = 256,    /* the one that is served */
    LATENT_MOST_RANK = 256,   /* a decoder stays in shared memory */
    LATENT_PARTITION = 128,   /* positions of a partial sum, of latents or of exact values */
    LATENT_MOST_AHEAD = 4096, /* rows of latents of a pass up to which keys are decoded ahead */
};

typedef struct latent_attention {
    cuda_attention exact; /* the layer, its queries and results; of its partial results those of exact positions, in
                             partitions of LATENT_PARTITION */
    const cuda_matrix *decoder_k, *decoder_v; /* [kv_heads * head_dim][rank_k], [..][rank_v]; read by the host */
    const float *k_norm;                      /* [head_dim] */
    cuda_gathered gathered;
    int rank_k, rank_v;
    int latent_head; /* first column of the layer in the latents' scales */
    float eps;
    /* Decoded ahead, without the scales of their norms: [row of latents][kv_heads * head_dim], [..][kv_heads]. NULL:
     * keys are decoded in place, into scores. */
    cuda_bf16 *keys;
    float *key_scales;
    float *scores; /* [row][heads][stride]: of the rows of the segment's latents */
    int stride;
    float *sums;   /* [row][heads][partitions][rank_v] */
    float2 *state; /* [row][heads][partitions]: maximum, sum */
    int partitions;
    int rows;         /* of the pass, with what it is filled up with */
    int most_latents; /* rows of gathered latents */
    int alone;        /* the predecessor gathers the latents: the first kernel waits for its end */
} latent_attention;

/* Whether this device serves such layers. */
int latent_attention_serves(const cuda_launch *l, int heads, int kv_heads, int head_dim, int pairs, int rank_k,
                            int rank_v);
/* Columns of scores that the rows of a segment need, their partial sums, and those of what they see exactly. */
int latent_attention_stride(int sliding_window, int window, int rows);
int latent_attention_partitions(int sliding_window, int window, int rows);
int latent_attention_exact_partitions(int sliding_window, int sink, int window, int rows);
cudaError_t latent_attention_prepare(void);

/* Keys that are decoded ahead. Nothing of it depends on the queries. */
cudaError_t latent_attention_keys(const cuda_launch *l, const cuda_batch *batch, const latent_attention *a);
/* Scores of keys that are decoded in place. */
cudaError_t latent_attention_scores(const cuda_launch *l, const cuda_batch *batch, const latent_attention *a);
/* Sums of latents, from scores or from keys, and of exact values. */
void latent_attention_attend(const cuda_launch *l, const cuda_batch *batch, const latent_attention *a);
/* Behind them: the results. */
void latent_attention_merge(const cuda_launch *l, const latent_attention *a);

#ifdef __cplusplus
}
#endif

#endif
