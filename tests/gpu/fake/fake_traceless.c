/* Launchers of kernels that leave no trace on the fake device, and its shapes (fake_device.h). */
#include <math.h>
#include <string.h>

#include "backend/cuda/expert_cache.h"
#include "backend/cuda/f8_rows.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/products_wide.h"
#include "backend/cuda/prompt_attention.h"
#include "backend/cuda/prompt_gemm.h"
#include "backend/cuda/prompt_gemm_f8.h"
#include "backend/cuda/prompt_rows.h"
#include "backend/cuda/quant.h"
#include "base/float16.h"
#include "gpu/fake/fake_device.h"

void cuda_add_norm(const cuda_launch *l, const float *branch, const float *w, float scalar, float *h, const float *next,
                   float eps, cuda_bf16 *x, int ldx, float *normed, int hidden, int rows) {
    (void)l, (void)branch, (void)w, (void)scalar, (void)h, (void)next, (void)eps, (void)x, (void)ldx, (void)normed,
        (void)hidden, (void)rows;
}
void cuda_after_attention_rows(const cuda_launch *l, const cuda_after_attention *a, const cuda_route *route, int rows) {
    (void)l, (void)a, (void)route, (void)rows;
}
void prompt_after_attention_rows(const cuda_launch *l, const cuda_after_attention *a, int rows) {
    (void)l, (void)a, (void)rows;
}
void prompt_gather_rows(const cuda_launch *l, const cuda_route *route, const cuda_bf16 *x, cuda_bf16 *to, int ld,
                        int rows) {
    (void)l, (void)route, (void)x, (void)to, (void)ld, (void)rows;
}
void cuda_router(const cuda_launch *l, const cuda_route *route, const cuda_router_weights *w, const float *x,
                 int hidden, int rows) {
    (void)l, (void)route, (void)w, (void)x, (void)hidden, (void)rows;
}
void cuda_expert_clear(const cuda_launch *l, const cuda_expert_cache *c, int layers) { (void)l, (void)c, (void)layers; }
void cuda_expert_order(const cuda_launch *l, const cuda_expert_cache *c) { (void)l, (void)c; }
void cuda_expert_find(const cuda_launch *l, const cuda_expert_cache *c, const cuda_route *route, int layer, bool prompt,
                      int rows) {
    (void)l, (void)c, (void)route, (void)layer, (void)prompt, (void)rows;
}
void cuda_expert_copy_in(const cuda_launch *l, const cuda_expert_cache *c, const void *gate_up, const void *down) {
    (void)l, (void)c, (void)gate_up, (void)down;
}
void cuda_expert_predict(const cuda_launch *l, const cuda_expert_cache *c, const cuda_expert_outlook *o, int layer,
                         int rows) {
    (void)l, (void)c, (void)o, (void)layer, (void)rows;
}
void cuda_expert_copy_ahead(const cuda_launch *l, const cuda_expert_cache *c, const void *gate_up, const void *down) {
    (void)l, (void)c, (void)gate_up, (void)down;
}
void cuda_gate_up(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    (void)l, (void)f, (void)route, (void)rows;
}
void cuda_down(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    (void)l, (void)f, (void)route, (void)rows;
}
void cuda_ple_inputs(const cuda_launch *l, float *ple, const cuda_matrix *table, const int32_t *tokens,
                     const float *norm, float eps, int layers, int width, int hidden, int rows) {
    (void)l, (void)ple, (void)table, (void)tokens, (void)norm, (void)eps, (void)layers, (void)width, (void)hidden,
        (void)rows;
}
void cuda_ple_gate(const cuda_launch *l, const float *gate, const float *ple, int layer, int layers, int width,
                   cuda_bf16 *x, int ldx, int rows) {
    (void)l, (void)gate, (void)ple, (void)layer, (void)layers, (void)width, (void)x, (void)ldx, (void)rows;
}
void cuda_rope_tables(const cuda_launch *l, const float *inverse_frequency, int pairs, int begin, int end,
                      float *cosine, float *sine) {
    (void)l, (void)inverse_frequency, (void)pairs, (void)begin, (void)end, (void)cosine, (void)sine;
}
void cuda_fill_random(const cuda_launch *l, cuda_bf16 *data, size_t n, float deviation, uint64_t seed) {
    (void)l, (void)data, (void)n, (void)deviation, (void)seed;
}
void quant_products(const cuda_launch *l, cuda_form form, const cuda_product *products, int n, int in,
                    const cuda_bf16 *x, int ldx, int rows, float cap) {
    (void)form;
    cuda_products(l, products, n, in, x, ldx, rows, cap);
}
void quant_gate_up(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    (void)l, (void)f, (void)route, (void)rows;
}
void quant_down(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    (void)l, (void)f, (void)route, (void)rows;
}
void quant_expand(const cuda_launch *l, const cuda_matrix *w, int rows, cuda_bf16 *out) {
    (void)l, (void)w, (void)rows, (void)out;
}
void quant_expand_experts(const cuda_launch *l, const cuda_matrix *w, int rows, const cuda_route *route, int first,
                          int n, cuda_bf16 *out) {
    (void)l, (void)w, (void)rows, (void)route, (void)first, (void)n, (void)out;
}
void quant_fill_random(const cuda_launch *l, const cuda_matrix *w, float deviation, uint64_t seed) {
    (void)l, (void)w, (void)deviation, (void)seed;
}
void cuda_profile_delay(const cuda_launch *l, int microseconds) { (void)l, (void)microseconds; }
void cuda_profile_empty(const cuda_launch *l) { (void)l; }
void cuda_probe_read(const cuda_launch *l, const void *data, size_t bytes, float *sink) {
    (void)l, (void)data, (void)bytes, (void)sink;
}
double cuda_probe_flops(const cuda_launch *l, int multiprocessors, int iterations, float *sink) {
    (void)l, (void)multiprocessors, (void)iterations, (void)sink;
    return 1;
}
int prompt_attention_slab(int head_dim, int rope_pairs) {
    (void)head_dim, (void)rope_pairs;
    return PROMPT_SLAB_POSITIONS;
}
bool fake_multiplies;

static float number_of(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static float product(const prompt_gemm_args *args, const uint16_t *w, int i, int j) {
    float sum = 0;
    for (int k = 0; k < args->k; k++)
        sum += number_of(args->a[(size_t)i * args->lda + (size_t)k]) * number_of(w[(size_t)j * args->ldw + (size_t)k]);
    return sum;
}

static void multiply_gated(const prompt_gemm_args *args) {
    for (int i = 0; i < args->m; i++) {
        for (int j = 0; j < args->n; j++) {
            const float z = product(args, args->w, i, j), y = product(args, args->w_up, i, j);
            const float gelu = 0.5f * z * (1.0f + tanhf(0.797884560802865356f * (z + 0.044715f * z * z * z)));
            ((uint16_t *)args->out)[(size_t)i * args->ldo + (size_t)j] = f32_to_bf16(gelu * y);
        }
    }
}

cudaError_t prompt_gemm(const prompt_gemm_args *args, cudaStream_t stream) {
    (void)stream;
    if (!prompt_gemm_takes(args)) return cudaErrorInvalidValue;
    if (!fake_multiplies) return cudaSuccess;
    if (args->output == PROMPT_GEMM_GELU_BF16) multiply_gated(args);
    if (args->output != PROMPT_GEMM_F32) return cudaSuccess;
    for (int i = 0; i < args->m; i++) {
        for (int j = 0; j < args->n; j++) {
            ((float *)args->out)[(size_t)i * args->ldo + (size_t)j] = product(args, args->w, i, j);
        }
    }
    return cudaSuccess;
}
cudaError_t prompt_gemm_grouped(const prompt_gemm_grouped_args *args, cudaStream_t stream) {
    if (!prompt_gemm_takes_experts(args)) return cudaErrorInvalidValue;
    for (int e = 0; e < args->experts && fake_multiplies; e++) {
        prompt_gemm_args one = args->product;
        int first = args->expert_begin[e];
        one.m = args->expert_begin[e + 1] - first;
        one.a += (size_t)first * one.lda;
        one.w += (size_t)e * args->expert_stride;
        one.out = (float *)one.out + (size_t)first * one.ldo;
        if (!args->rows) (void)prompt_gemm(&one, stream);
    }
    return cudaSuccess;
}

void f8_round_rows(const cuda_launch *l, const cuda_route *route, const cuda_bf16 *x, size_t ldx, int width,
                   unsigned char *codes, float *scale, int rows) {
    (void)l, (void)route, (void)x, (void)ldx, (void)width, (void)codes, (void)scale, (void)rows;
}
int prompt_gemm_bulk_runs(void) { return 0; }
cudaError_t prompt_gemm_codes(const prompt_gemm_codes_args *args, cudaStream_t stream) {
    (void)args, (void)stream;
    return cudaErrorNotSupported;
}
cudaError_t prompt_gemm_f8(const prompt_gemm_f8_args *args, cudaStream_t stream) {
    (void)args, (void)stream;
    return cudaErrorNotSupported;
}

/* Shapes are as they are on no device in particular, but for what every device refuses. */
cudaError_t cuda_attention_prepare(int head_dim) {
    bool power = (head_dim & (head_dim - 1)) == 0;
    return power && head_dim >= 16 && head_dim <= 512 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cuda_products_wide_prepare(void) { return cudaSuccess; }
cudaError_t cuda_restore_prepare(int largest_head_dim) {
    (void)largest_head_dim;
    return cudaSuccess;
}
bool cuda_attend_makes_heads(const cuda_attention *a, const cuda_heads *h) {
    return a->segments == 1 && a->segment_rows == 1 && a->sliding_window && !a->final && h->k && h->v;
}

void cuda_attend_new(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, const cuda_heads *h) {
    cuda_head_rows(l, batch, 0, h, 1);
    cuda_attend(l, batch, a, 1);
}

int cuda_attention_partitions(int sliding_window, int rows, int end) {
    return 1 + (sliding_window ? sliding_window + rows : end) / 128;
}
int cuda_attention_restored_partitions(int sliding_window, int window, int rows) {
    (void)rows;
    return window < sliding_window;
}
int cuda_attention_exact_partitions(int sliding_window, int sink, int window, int rows) {
    (void)sliding_window, (void)sink, (void)window, (void)rows;
    return 1;
}
int cuda_head_steps(int in) { return (in + CUDA_HEAD_STEP - 1) / CUDA_HEAD_STEP; }
int cuda_head_tiles(int out) { return (out + CUDA_HEAD_TILE - 1) / CUDA_HEAD_TILE; }
int cuda_can_choose(int multiprocessors, int out) {
    (void)multiprocessors, (void)out;
    return 0; /* no int8 copy of the head, so greedy rows take the product */
}
void cuda_encode_head(const cuda_launch *l, const cuda_matrix *head, const cuda_head_codes *codes) {
    (void)l, (void)head, (void)codes;
    fake_broken("a head that cannot be chosen from is encoded", 0, 0);
}
void cuda_greedy_choice(const cuda_launch *l, const cuda_matrix *head, const cuda_head_codes *codes,
                        const cuda_screen *screen, const cuda_excluded *excluded, const cuda_bf16 *x, int rows,
                        float cap, int32_t *choice) {
    (void)l, (void)head, (void)codes, (void)screen, (void)excluded, (void)x, (void)rows, (void)cap, (void)choice;
    fake_broken("a head that cannot be chosen from is", 0, 0);
}
