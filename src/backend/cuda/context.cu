/* What follows committed rows: the drafter's context, and latents, encoded as backend/latent_row.c
 * encodes them, to the bit. */
#include "backend/cuda/latent_values.cuh"

enum { NORM_THREADS = 256 };

static __global__ void round_aux_kernel(const __grid_constant__ cuda_context_source source, int width, cuda_bf16 *x,
                                        int ldx) {
    wait_for_predecessor();
    const float *aux = source.row[blockIdx.x].aux;
    bf16 *out = as_bf16(x) + (size_t)blockIdx.x * ldx;
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[i] = __float2bfloat16_rn(aux[i]);
}

void cuda_round_aux(const cuda_launch *l, const cuda_context_source *source, int width, cuda_bf16 *x, int ldx) {
    launch_kernel(l, round_aux_kernel, dim3(source->rows), dim3(256), 0, *source, width, x, ldx);
}

/* grid: rows, tapped layers. */
static __global__
__launch_bounds__(NORM_THREADS) void norm_aux_kernel(const __grid_constant__ cuda_context_source source,
                                                     const __grid_constant__ cuda_taps taps, int hidden, float eps,
                                                     cuda_bf16 *x, int ldx) {
    __shared__ float shared[NORM_THREADS / 32];
    wait_for_predecessor();
    int tap = blockIdx.y;
    const cuda_context_row mine = source.row[blockIdx.x];
    const float *aux = mine.aux + (size_t)taps.at[mine.aux_form][tap] * hidden;
    bf16 *out = as_bf16(x) + (size_t)blockIdx.x * ldx;
    float sum = 0;
    for (int i = threadIdx.x; i < hidden; i += NORM_THREADS) sum += aux[i] * aux[i];
    float scale = rsqrtf(block_sum<NORM_THREADS>(sum, shared) / (float)hidden + eps);
    for (int i = threadIdx.x; i < hidden; i += NORM_THREADS)
        out[tap * hidden + i] = __float2bfloat16_rn(aux[i] * scale);
    if (tap + 1 < taps.n) return;
    for (int i = taps.n * hidden + threadIdx.x; i < ldx; i += NORM_THREADS) out[i] = __float2bfloat16_rn(0.0f);
}

void cuda_norm_aux(const cuda_launch *l, const cuda_context_source *source, const cuda_taps *taps, int hidden,
                   float eps, cuda_bf16 *x, int ldx) {
    launch_kernel(l, norm_aux_kernel, dim3(source->rows, taps->n), dim3(NORM_THREADS), 0, *source, *taps, hidden, eps,
                  x, ldx);
}

/* One warp per (row, layer, head). */
static __global__ void store_context_kernel(const __grid_constant__ cuda_context_rows c) {
    extern __shared__ float buffers[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, d = c.head_dim;
    float *x = buffers + warp * d;
    wait_for_predecessor();
    int row = blockIdx.x, layer = blockIdx.y, head = blockIdx.z * (blockDim.x >> 5) + warp;
    if (head >= c.kv_heads) return;
    const cuda_context_row mine = c.source.row[row];
    const cuda_draft_view &draft = mine.cache->draft[layer];
    if (mine.behind >= draft.capacity) return; /* another row of the launch takes its place */
    size_t kv_dim = (size_t)c.kv_heads * d, all = c.layers * kv_dim;
    const float *k = c.raw + (size_t)row * 2 * all + layer * kv_dim + (size_t)head * d, *v = k + all;
    int position = mine.position;
    float sum = 0;
    for (int i = lane; i < d; i += 32) sum += k[i] * k[i];
    float scale = rsqrtf(warp_sum(sum) / (float)d + c.eps);
    for (int i = lane; i < d; i += 32) x[i] = k[i] * scale * c.k_norm[layer][i];
    __syncwarp();
    for (int j = lane; j < d / 2; j += 32) {
        float sine, cosine, u = x[j], w = x[j + d / 2];
        sincosf((float)position * c.inverse_frequency[j], &sine, &cosine);
        x[j] = u * cosine - w * sine;
        x[j + d / 2] = w * cosine + u * sine;
    }
    __syncwarp();
    size_t to = (size_t)(position % draft.capacity) * kv_dim + (size_t)head * d;
    for (int i = lane; i < d; i += 32) {
        as_bf16(draft.k)[to + i] = __float2bfloat16_rn(x[i]);
        as_bf16(draft.v)[to + i] = __float2bfloat16_rn(v[i]);
    }
}

void cuda_store_context(const cuda_launch *l, const cuda_context_rows *c) {
    int warps = c->kv_heads < 8 ? c->kv_heads : 8;
    launch_kernel(l, store_context_kernel, dim3(c->source.rows, c->layers, ceil_div(c->kv_heads, warps)),
                  dim3(32 * warps), (size_t)(warps * c->head_dim) * sizeof(float), *c);
}

/* One latent of n values, by a warp: the stored form, and its values as attention will read them (half, or NULL). */
static __device__ __forceinline__ void store_q8(const float *x, int n, unsigned char *to, bf16 *half, int lane) {
    float largest = 0;
    bool finite = true;
    for (int i = lane; i < n; i += 32) {
        finite &= isfinite(x[i]) != 0;
        largest = fmaxf(largest, fabsf(x[i])); /* of a NaN the other one */
    }
    finite = __all_sync(0xffffffffu, finite);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, o));
    float scale = finite ? __fdiv_rn(largest, 127.0f) : __uint_as_float(0x7fc00000u);
    if (lane == 0) *reinterpret_cast<float *>(to) = scale;
    for (int i = lane; i < n; i += 32) {
        float code = finite && scale != 0 ? fminf(fmaxf(rintf(__fdiv_rn(x[i], scale)), -127.0f), 127.0f) : 0;
        int8_t stored = (int8_t)code;
        to[sizeof(float) + i] = (unsigned char)stored;
        if (half) half[i] = __float2bfloat16_rn(__fmul_rn(scale, (float)stored));
    }
}

static __device__ __forceinline__ void store_q4(const float *values, int n, int group, unsigned char *to, bf16 *half,
                                                int lane) {
    int groups = (n + LATENT_Q4_GROUP - 1) / LATENT_Q4_GROUP, i = group * LATENT_Q4_GROUP + lane;
    float x = i < n ? values[i] : 0, top = isnan(x) ? 0 : fabsf(x);
    bool finite = __all_sync(0xffffffffu, isfinite(x) != 0);
    int first = lane; /* of those with the largest magnitude */
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, top, o);
        int other_first = __shfl_xor_sync(0xffffffffu, first, o);
        if (other > top || (other == top && other_first < first)) {
            top = other;
            first = other_first;
        }
    }
    float extreme = __shfl_sync(0xffffffffu, x, first);
    uint32_t bits = 0x7fc0;
    if (finite)
        bits = __bfloat16_as_ushort(__float2bfloat16_rn(__fdiv_rn(top > 0 ? extreme : 0.0f, -(float)LATENT_Q4_ZERO)));
    float scale = __uint_as_float(bits << 16);
    float code = finite && scale != 0 ? fminf(fmaxf(rintf(__fdiv_rn(x, scale)) + LATENT_Q4_ZERO, 0.0f), 15.0f)
                                      : (float)LATENT_Q4_ZERO;
    unsigned mine = (unsigned)code, next = __shfl_down_sync(0xffffffffu, mine, 1);
    if (lane == 0) reinterpret_cast<uint16_t *>(to)[group] = (uint16_t)bits;
    if (i < n && lane % 2 == 0) to[groups * sizeof(uint16_t) + i / 2] = (unsigned char)(mine | next << 4);
    if (half && i < n) half[i] = __float2bfloat16_rn(__fmul_rn(scale, code - LATENT_Q4_ZERO));
}

static __global__ void store_latents_kernel(const __grid_constant__ cuda_context_source source, const float *latents,
                                            const __grid_constant__ cuda_latent_row form, cuda_bf16 *v_half, int ldv) {
    wait_for_predecessor();
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    const cuda_context_row mine = source.row[blockIdx.x];
    const cuda_latent_view &latent = mine.cache->latent;
    const float *values = latents + (size_t)blockIdx.x * form.width;
    unsigned char *row = latent.codes + latent_place(latent, mine.position) * form.bytes;
    bf16 *half = as_bf16(v_half) + (size_t)blockIdx.x * ldv;
    if (form.form == CUDA_LATENT_BF16) {
        for (int i = threadIdx.x; i < form.width; i += blockDim.x) {
            bf16 v = __float2bfloat16_rn(values[i]);
            reinterpret_cast<bf16 *>(row)[i] = v;
            if (i >= form.first_v) half[i - form.first_v] = v;
        }
        return;
    }
    for (int part = form.first_v ? 0 : 1; part < 2; part++) { /* e_k, e_v; of one latent for both, that one */
        int n = part ? form.rank_v : form.rank_k;
        const float *x = values + (part ? form.first_v : 0);
        unsigned char *to = row + (part ? form.v_at : 0);
        bf16 *decoded = part ? half : nullptr;
        if (form.form == CUDA_LATENT_Q8) {
            if (warp == part) store_q8(x, n, to, decoded, lane);
            continue;
        }
        for (int group = warp; group * LATENT_Q4_GROUP < n; group += warps) store_q4(x, n, group, to, decoded, lane);
    }
}

void cuda_store_latents(const cuda_launch *l, const cuda_context_source *source, const float *latents,
                        const cuda_latent_row *row, cuda_bf16 *v_half, int ldv) {
    launch_kernel(l, store_latents_kernel, dim3(source->rows), dim3(256), 0, *source, latents, *row, v_half, ldv);
}

static __global__ void store_scales_kernel(const __grid_constant__ cuda_context_source source, const float *values,
                                           int kv_heads, int head_dim, int head, float eps) {
    wait_for_predecessor();
    const cuda_context_row mine = source.row[blockIdx.x];
    int h = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const cuda_latent_view &latent = mine.cache->latent;
    for (; h < kv_heads; h += blockDim.x >> 5) {
        float sum = 0, scale = 1;
        if (values) {
            const float *x = values + ((size_t)blockIdx.x * kv_heads + h) * head_dim;
            for (int i = lane; i < head_dim; i += 32) sum += x[i] * x[i];
            scale = rsqrtf(warp_sum(sum) / (float)head_dim + eps);
        }
        if (lane == 0) latent.scales[latent_place(latent, mine.position) * latent.heads + head + h] = scale;
    }
}

void cuda_store_scales(const cuda_launch *l, const cuda_context_source *source, const float *values, int kv_heads,
                       int head_dim, int head, float eps) {
    launch_kernel(l, store_scales_kernel, dim3(source->rows), dim3(256), 0, *source, values, kv_heads, head_dim, head,
                  eps);
}
