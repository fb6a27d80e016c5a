/* Matrix products of prompt chunks on tensor cores: bf16 operands, float32 accumulation.
 *
 * Every output element is summed over k in one fixed order (blocks of 16, ascending, one accumulator), whatever the
 * number of rows, the tile that the launcher picks, and the place of the row in its tile: cutting a prompt into chunks
 * changes no bit. Launchers allocate nothing, wait for nothing, and may be captured in a graph.
 *
 * bf16 values are given as uint16_t. Base addresses are 16-byte aligned; k, n and the leading dimensions of A and W are
 * multiples of PROMPT_GEMM_UNIT, ldo is even. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_GEMM_H
#define KAKEYA_BACKEND_CUDA_PROMPT_GEMM_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/kernels.h"
#include "backend/cuda/prompt_gemm_output.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PROMPT_GEMM_UNIT = 8 };

typedef struct prompt_gemm_args {
    const uint16_t *a; /* [m][lda] */
    size_t lda;
    const uint16_t *w;    /* [n][ldw]; gated outputs: the gate's rows */
    const uint16_t *w_up; /* [n][ldw], gated outputs only */
    size_t ldw;
    void *out; /* [m][ldo] */
    size_t ldo;
    int m, n, k;
    prompt_gemm_output output;
} prompt_gemm_args;

/* Whether the arguments are what is said above; cudaErrorInvalidValue where they are not. */
static inline int prompt_gemm_takes(const prompt_gemm_args *args) {
    int gated = args->output == PROMPT_GEMM_GELU_BF16 || args->output == PROMPT_GEMM_SILU_BF16;
    return args->a && args->w && args->out && (!gated || args->w_up) && args->m > 0 && args->n > 0 && args->k > 0 &&
           args->n % PROMPT_GEMM_UNIT == 0 && args->k % PROMPT_GEMM_UNIT == 0 && args->lda % PROMPT_GEMM_UNIT == 0 &&
           args->ldw % PROMPT_GEMM_UNIT == 0 && args->ldo % 2 == 0;
}

cudaError_t prompt_gemm(const prompt_gemm_args *args, cudaStream_t stream);
/* Whether this device, the current one, has the bulk tensor copy engine, and this build kernels for it (sm_90a). */
int prompt_gemm_bulk_runs(void);

/* Keys and values of evicted positions from their gathered latents, rounded to bf16: the restore buffers' rows, up to
 * `rows`, for which there is memory. Keys pass k_norm and RoPE, values their stored scales. A programmatic launch
 * begins beside its predecessor, which must not write what is read here nor read what is written; `chained`: the next
 * kernel in the stream begins beside this one and waits for its end before it reads the results. Only where
 * prompt_gemm_restores says so. */
struct cuda_batch;
struct cuda_launch;
struct cuda_restore;
int prompt_gemm_restores(const struct cuda_restore *r);
cudaError_t prompt_gemm_restore(const struct cuda_launch *l, const struct cuda_batch *batch,
                                const struct cuda_restore *r, int rows, int chained);

/* One product per expert over the slots [expert_begin[e], expert_begin[e + 1]): slot s takes row `rows[s]` of A (row s
 * when rows is NULL) and writes row s of `out`. `product.w`, `w_up` point to expert 0, expert e's matrices lie e *
 * expert_stride elements further; `product.m` is an upper bound of the number of slots and only sizes the launch. Any
 * count per expert is valid, 0 too; A has at least `product.m` rows when rows is NULL. Efficient from 32 slots an
 * expert on. */
typedef struct prompt_gemm_grouped_args {
    prompt_gemm_args product;
    const int *expert_begin; /* device, [experts + 1], ascending from 0 */
    const int *rows;         /* device, [slots], or NULL */
    size_t expert_stride;
    int experts;       /* at most PROMPT_GEMM_MAX_EXPERTS */
    unsigned *counter; /* device: one, zero before the launch and after it */
} prompt_gemm_grouped_args;

enum { PROMPT_GEMM_MAX_EXPERTS = 256 };

static inline int prompt_gemm_takes_experts(const prompt_gemm_grouped_args *args) {
    return prompt_gemm_takes(&args->product) && args->expert_begin && args->counter && args->experts > 0 &&
           args->experts <= PROMPT_GEMM_MAX_EXPERTS && args->expert_stride % PROMPT_GEMM_UNIT == 0;
}

cudaError_t prompt_gemm_grouped(const prompt_gemm_grouped_args *args, cudaStream_t stream);

/* The same with quantised weights as they lie (quant.h): to the bit, those of the weights that quant_expand would have
 * written. Only where prompt_gemm_bulk_runs() says so. */
typedef struct prompt_gemm_codes_args {
    /* w, w_up: strips; expert_stride counts them. rows is NULL. Dense: expert_begin is NULL, and the others are not
     * read. */
    prompt_gemm_grouped_args grouped;
    cuda_form form;
} prompt_gemm_codes_args;

cudaError_t prompt_gemm_codes(const prompt_gemm_codes_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
