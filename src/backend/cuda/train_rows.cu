/* Norms, RoPE, activations and rows of experts, there and back. Bound by the bytes of their rows. */
#include "backend/cuda/train_common.cuh"

/* -------------------------------------------------------------------------------------------------------- norms */

static __global__ void norm_kernel(const float *x, size_t ldx, const float *gain, const float *add, float *out,
                                   size_t ldo, int n, float eps) {
    __shared__ float shared[TRAIN_WARPS];
    const float *row = x + blockIdx.x * ldx;
    float *to = out + blockIdx.x * ldo, squares = 0;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) squares += row[i] * row[i];
    float s = 1.0f / sqrtf(block_sum<TRAIN_THREADS>(squares, shared) / n + eps);
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) {
        float v = row[i] * s * (gain ? gain[i] : 1.0f);
        to[i] = add ? v + add[blockIdx.x * ldo + i] : v;
    }
}

void cuda_train_norm(const cuda_launch *l, const float *x, size_t ldx, const float *gain, const float *add, float *out,
                     size_t ldo, int rows, int n, float eps) {
    if (rows <= 0) return;
    launch_kernel(l, norm_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, x, ldx, gain, add, out, ldo, n, eps);
}

/* With s = 1 / rms, y = x s, g = d_out * gain: s (g - y mean(g y)). */
static __global__ void norm_back_kernel(const float *x, const float *gain, const float *d_out, float *d_x, int set,
                                        int n, float eps) {
    __shared__ float shared[TRAIN_WARPS];
    size_t at = (size_t)blockIdx.x * n;
    float squares = 0, along = 0;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) {
        squares += x[at + i] * x[at + i];
        along += d_out[at + i] * (gain ? gain[i] : 1.0f) * x[at + i];
    }
    float s = 1.0f / sqrtf(block_sum<TRAIN_THREADS>(squares, shared) / n + eps);
    along = block_sum<TRAIN_THREADS>(along, shared) * s / n;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) {
        float d = s * (d_out[at + i] * (gain ? gain[i] : 1.0f) - x[at + i] * s * along);
        d_x[at + i] = set ? d : d_x[at + i] + d;
    }
}

void cuda_train_norm_back(const cuda_launch *l, const float *x, const float *gain, const float *d_out, float *d_x,
                          int set, int rows, int n, float eps) {
    if (rows <= 0) return;
    launch_kernel(l, norm_back_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, x, gain, d_out, d_x, set, n, eps);
}

/* -------------------------------------------------------------------------------------------------------- heads
 * A head is a warp's. */

static __global__ void heads_kernel(const float *raw, const float *gain, float *out, int vectors, int heads, int d,
                                    float eps, train_turn turn) {
    int vector = blockIdx.x * TRAIN_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (vector >= vectors) return;
    const float *x = raw + (size_t)vector * d;
    float *to = out + (size_t)vector * d, squares = 0;
    for (int i = lane; i < d; i += 32) squares += x[i] * x[i];
    float s = 1.0f / sqrtf(warp_sum(squares) / d + eps);
    size_t angle = turn.pairs ? (size_t)turn.position[vector / heads] * turn.pairs : 0;
    for (int i = lane; i < d; i += 32) {
        float v = x[i] * s * (gain ? gain[i] : 1.0f);
        int pair = i < turn.half ? i : i - turn.half;
        if (pair < turn.pairs) {
            int j = i < turn.half ? i + turn.half : pair;
            float other = x[j] * s * (gain ? gain[j] : 1.0f), sine = turn.sine[angle + pair];
            v = v * turn.cosine[angle + pair] + (i < turn.half ? -other * sine : other * sine);
        }
        to[i] = v;
    }
}

void cuda_train_heads(const cuda_launch *l, const float *raw, const float *gain, float *out, int rows, int heads, int d,
                      float eps, train_turn turn) {
    if (rows <= 0) return;
    launch_kernel(l, heads_kernel, dim3(ceil_div(rows * heads, TRAIN_WARPS)), dim3(TRAIN_THREADS), 0, raw, gain, out,
                  rows * heads, heads, d, eps, turn);
}

static __global__ void heads_back_kernel(const float *raw, const float *gain, const float *d_out, float *d_raw, int add,
                                         int vectors, int heads, int d, float eps, train_turn turn) {
    int vector = blockIdx.x * TRAIN_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (vector >= vectors) return;
    const float *x = raw + (size_t)vector * d, *g = d_out + (size_t)vector * d;
    float *to = d_raw + (size_t)vector * d, squares = 0, along = 0;
    size_t angle = turn.pairs ? (size_t)turn.position[vector / heads] * turn.pairs : 0;
    for (int pass = 0; pass < 2; pass++) {
        float s = 0;
        if (pass) {
            s = 1.0f / sqrtf(warp_sum(squares) / d + eps);
            along = warp_sum(along) * s / d;
        }
        for (int i = lane; i < d; i += 32) {
            float turned = g[i];
            int pair = i < turn.half ? i : i - turn.half;
            if (pair < turn.pairs) {
                float other = g[i < turn.half ? i + turn.half : pair], sine = turn.sine[angle + pair];
                turned = turned * turn.cosine[angle + pair] + (i < turn.half ? other * sine : -other * sine);
            }
            turned *= gain ? gain[i] : 1.0f;
            if (pass) {
                float back = s * (turned - x[i] * s * along);
                to[i] = add ? to[i] + back : back;
            } else {
                squares += x[i] * x[i];
                along += turned * x[i];
            }
        }
    }
}

void cuda_train_heads_back(const cuda_launch *l, const float *raw, const float *gain, const float *d_out, float *d_raw,
                           int add, int rows, int heads, int d, float eps, train_turn turn) {
    if (rows <= 0) return;
    launch_kernel(l, heads_back_kernel, dim3(ceil_div(rows * heads, TRAIN_WARPS)), dim3(TRAIN_THREADS), 0, raw, gain,
                  d_out, d_raw, add, rows * heads, heads, d, eps, turn);
}

/* ------------------------------------------------------------------------------------------------------- values */

static __global__ void gated_kernel(const float *gate, size_t ldg, const float *up, size_t ldu, float *out, int n) {
    size_t row = blockIdx.x;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS)
        out[row * n + i] = gelu_tanh(gate[row * ldg + i]) * up[row * ldu + i];
}

void cuda_train_gated(const cuda_launch *l, const float *gate, size_t ldg, const float *up, size_t ldu, float *out,
                      int rows, int n) {
    if (rows <= 0) return;
    launch_kernel(l, gated_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, gate, ldg, up, ldu, out, n);
}

static __global__ void gated_back_kernel(const float *gate, size_t ldg, const float *up, size_t ldu, const float *d_out,
                                         float *d_gate, size_t ldd, float *d_up, int n) {
    const float root = 0.797884560802865356f, cubic = 0.044715f; /* sqrt(2 / pi) */
    size_t row = blockIdx.x;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) {
        float x = gate[row * ldg + i], t = tanhf(root * (x + cubic * x * x * x)), d = d_out[row * n + i];
        float slope = (1 + t) / 2 + x * (1 - t * t) * root * (1 + 3 * cubic * x * x) / 2;
        if (d_up) d_up[row * ldd + i] = d * x * (1 + t) / 2;
        d_gate[row * ldd + i] = d * up[row * ldu + i] * slope;
    }
}

void cuda_train_gated_back(const cuda_launch *l, const float *gate, size_t ldg, const float *up, size_t ldu,
                           const float *d_out, float *d_gate, size_t ldd, float *d_up, int rows, int n) {
    if (rows <= 0) return;
    launch_kernel(l, gated_back_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, gate, ldg, up, ldu, d_out, d_gate, ldd,
                  d_up, n);
}

static __global__ void gather_kernel(const float *x, size_t ldx, const int *index, float scale, float *out, size_t ldo,
                                     int n) {
    const float *from = x + (index ? (size_t)index[blockIdx.x] : blockIdx.x) * ldx;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) out[blockIdx.x * ldo + i] = scale * from[i];
}

void cuda_train_gather(const cuda_launch *l, const float *x, size_t ldx, const int *index, float scale, float *out,
                       size_t ldo, int rows, int n) {
    if (rows <= 0) return;
    launch_kernel(l, gather_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, x, ldx, index, scale, out, ldo, n);
}

static __global__ void gather_bits_kernel(const cuda_bf16 *x, size_t ldx, const int *index, float scale, float *out,
                                          int n) {
    const cuda_bf16 *from = x + index[blockIdx.x] * ldx;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS)
        out[(size_t)blockIdx.x * n + i] = scale * train_widened(from[i]);
}

void cuda_train_gather_bits(const cuda_launch *l, const cuda_bf16 *x, size_t ldx, const int *index, float scale,
                            float *out, int rows, int n) {
    if (rows > 0)
        launch_kernel(l, gather_bits_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, x, ldx, index, scale, out, n);
}

static __global__ void scatter_kernel(const float *x, const int *index, float *to, int n) {
    float *row = to + (size_t)index[blockIdx.x] * n;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) row[i] += x[(size_t)blockIdx.x * n + i];
}

void cuda_train_scatter(const cuda_launch *l, const float *x, const int *index, float *to, int rows, int n) {
    if (rows > 0) launch_kernel(l, scatter_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, x, index, to, n);
}

static __global__ void add_kernel(const float *x, float *to, size_t n) {
    for (size_t i = (size_t)blockIdx.x * TRAIN_THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * TRAIN_THREADS)
        to[i] += x[i];
}

void cuda_train_add(const cuda_launch *l, const float *x, float *to, size_t n) {
    if (n) launch_kernel(l, add_kernel, train_blocks(n), dim3(TRAIN_THREADS), 0, x, to, n);
}

static __global__ void scale_kernel(float *x, float by, size_t n) {
    for (size_t i = (size_t)blockIdx.x * TRAIN_THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * TRAIN_THREADS)
        x[i] *= by;
}

void cuda_train_scale(const cuda_launch *l, float *x, float by, size_t n) {
    if (n) launch_kernel(l, scale_kernel, train_blocks(n), dim3(TRAIN_THREADS), 0, x, by, n);
}

/* A block is a layer's inputs of a row. */
static __global__ void ple_kernel(const float *table, const cuda_bf16 *bits, size_t ld, const int *tokens,
                                  const float *gain, int hidden, int layers, int width, float eps, float *out) {
    __shared__ float shared[TRAIN_WARPS];
    int row = blockIdx.x / layers, layer = blockIdx.x % layers;
    float *x = out + (size_t)blockIdx.x * width, by = 1.0f / sqrtf((float)hidden), squares = 0;
    size_t at = (table ? (size_t)layers * width : ld) * tokens[row] + (size_t)layer * width;
    for (int i = threadIdx.x; i < width; i += TRAIN_THREADS) squares += x[i] * by * (x[i] * by);
    float s = by / sqrtf(block_sum<TRAIN_THREADS>(squares, shared) / width + eps), root = sqrtf((float)width);
    for (int i = threadIdx.x; i < width; i += TRAIN_THREADS) {
        float own = table ? table[at + i] : train_widened(bits[at + i]);
        x[i] = (x[i] * s * gain[i] + own * root) * sqrtf(0.5f);
    }
}

void cuda_train_ple(const cuda_launch *l, const float *table, const cuda_bf16 *bits, size_t ld, const int *tokens,
                    const float *gain, int hidden, int layers, int width, float eps, float *out, int rows) {
    if (rows <= 0) return;
    launch_kernel(l, ple_kernel, dim3(rows * layers), dim3(TRAIN_THREADS), 0, table, bits, ld, tokens, gain, hidden,
                  layers, width, eps, out);
}

/* As latent_row.c has it: 8 bits and one scale for all, or 4 bits and a bf16 scale for 32 values. */
static __global__ void round_kernel(int bits, float *x, int n) {
    enum { GROUP = 32, LARGEST_8 = 127, ZERO_4 = 8, LARGEST_4 = 15 };
    __shared__ float shared[TRAIN_WARPS];
    float *row = x + (size_t)blockIdx.x * n;
    if (bits == 4) {
        for (int group = threadIdx.x; group * GROUP < n; group += TRAIN_THREADS) {
            int end = (group + 1) * GROUP < n ? (group + 1) * GROUP : n;
            float extreme = 0;
            for (int i = group * GROUP; i < end; i++) extreme = fabsf(row[i]) > fabsf(extreme) ? row[i] : extreme;
            float scale = __bfloat162float(__float2bfloat16(extreme / -ZERO_4));
            for (int i = group * GROUP; i < end; i++) {
                float code = scale != 0 ? rintf(row[i] / scale) + (float)ZERO_4 : (float)ZERO_4;
                row[i] = scale * (fminf(fmaxf(code, 0), LARGEST_4) - ZERO_4);
            }
        }
        return;
    }
    float largest = 0;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) largest = fmaxf(largest, fabsf(row[i]));
    float scale = block_largest(largest, shared) / LARGEST_8;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS)
        row[i] = scale > 0 ? scale * fminf(fmaxf(rintf(row[i] / scale), -LARGEST_8), LARGEST_8) : 0;
}

void cuda_train_round(const cuda_launch *l, int bits, float *x, int rows, int n) {
    if (rows > 0) launch_kernel(l, round_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, bits, x, n);
}

/* ------------------------------------------------------------------------------------------------------ experts */

/* The k largest logits, lowest id first on ties; their softmax, times the experts' own scales. A row is a thread's. */
static __global__ void choose_kernel(const float *logits, const float *expert_scale, train_routing r, int rows) {
    int row = blockIdx.x * TRAIN_THREADS + threadIdx.x;
    if (row >= rows) return;
    const float *z = logits + (size_t)row * r.experts;
    int *chosen = r.chosen + (size_t)row * r.k;
    float *share = r.share + (size_t)row * r.k, sum = 0, largest = 0, last = 0;
    for (int rank = 0; rank < r.k; rank++) {
        int best = -1;
        for (int e = 0; e < r.experts; e++) {
            bool taken = rank && (z[e] > last || (z[e] == last && e <= chosen[rank - 1]));
            if (!taken && (best < 0 || z[e] > z[best])) best = e;
        }
        chosen[rank] = best < 0 ? 0 : best;
        last = z[chosen[rank]];
        if (rank == 0) largest = last;
        share[rank] = expf(last - largest);
        sum += share[rank];
    }
    for (int rank = 0; rank < r.k; rank++) share[rank] = share[rank] / sum * expert_scale[chosen[rank]];
}

/* A thread counts an expert's slots in a stretch of its own; the stretches of a block cover all slots. */
static __device__ void stretch_of(int slots, int *begin, int *end) {
    int each = (slots + TRAIN_THREADS - 1) / TRAIN_THREADS;
    *begin = threadIdx.x * each < slots ? threadIdx.x * each : slots;
    *end = *begin + each < slots ? *begin + each : slots;
}

static __global__ void count_kernel(train_routing r, int slots) {
    __shared__ int counts[TRAIN_THREADS];
    int begin, end, n = 0;
    stretch_of(slots, &begin, &end);
    for (int i = begin; i < end; i++) n += r.chosen[i] == (int)blockIdx.x;
    counts[threadIdx.x] = n;
    __syncthreads();
    if (threadIdx.x) return;
    for (int t = 1; t < TRAIN_THREADS; t++) n += counts[t];
    r.counts[blockIdx.x] = n;
}

static __global__ void sort_kernel(train_routing r, int slots) {
    __shared__ int counts[TRAIN_THREADS];
    int begin, end, n = 0, at = 0, expert = blockIdx.x;
    stretch_of(slots, &begin, &end);
    for (int i = begin; i < end; i++) n += r.chosen[i] == expert;
    counts[threadIdx.x] = n;
    __syncthreads();
    for (int e = 0; e < expert; e++) at += r.counts[e];
    if (threadIdx.x == 0) {
        r.begin[expert] = at;
        if (expert == r.experts - 1) r.begin[r.experts] = slots;
    }
    for (int t = 0; t < (int)threadIdx.x; t++) at += counts[t];
    for (int i = begin; i < end; i++) {
        if (r.chosen[i] != expert) continue;
        r.slot_of[i] = at;
        r.row_of[at++] = i / r.k;
    }
}

void cuda_train_route(const cuda_launch *l, const float *z, const float *expert_scale, const train_routing *r,
                      int rows) {
    launch_kernel(l, choose_kernel, dim3(ceil_div(rows, TRAIN_THREADS)), dim3(TRAIN_THREADS), 0, z, expert_scale, *r,
                  rows);
    launch_kernel(l, count_kernel, dim3(r->experts), dim3(TRAIN_THREADS), 0, *r, rows * r->k);
    launch_kernel(l, sort_kernel, dim3(r->experts), dim3(TRAIN_THREADS), 0, *r, rows * r->k);
}

static __global__ void mix_kernel(const float *x, train_routing r, int weighted, float *out, int n) {
    size_t row = blockIdx.x;
    for (int j = threadIdx.x; j < n; j += TRAIN_THREADS) {
        float sum = 0;
        for (int i = 0; i < r.k; i++)
            sum += (weighted ? r.share[row * r.k + i] : 1.0f) * x[(size_t)r.slot_of[row * r.k + i] * n + j];
        out[row * n + j] = sum;
    }
}

void cuda_train_mix(const cuda_launch *l, const float *x, const train_routing *r, int weighted, float *out, int rows,
                    int n) {
    launch_kernel(l, mix_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, x, *r, weighted, out, n);
}

static __global__ void unmix_kernel(const float *d_mixed, const float *slot_out, const float *expert_scale,
                                    train_routing r, float *d_slot, float *d_z, int n) {
    __shared__ float shared[TRAIN_WARPS], d_share[TRAIN_MAX_CHOSEN];
    size_t row = blockIdx.x;
    const float *share = r.share + row * r.k;
    for (int i = 0; i < r.k; i++) {
        size_t slot = (size_t)r.slot_of[row * r.k + i];
        float sum = 0;
        for (int j = threadIdx.x; j < n; j += TRAIN_THREADS) {
            sum += d_mixed[row * n + j] * slot_out[slot * n + j];
            d_slot[slot * n + j] = share[i] * d_mixed[row * n + j];
        }
        sum = block_sum<TRAIN_THREADS>(sum, shared);
        if (threadIdx.x == 0) d_share[i] = sum;
    }
    for (int e = threadIdx.x; e < r.experts; e += TRAIN_THREADS) d_z[row * r.experts + e] = 0;
    __syncthreads();
    if (threadIdx.x) return;
    float along = 0; /* softmax(z) * scale, backwards */
    for (int i = 0; i < r.k; i++) along += share[i] * d_share[i];
    for (int i = 0; i < r.k; i++) {
        int expert = r.chosen[row * r.k + i];
        float scale = expert_scale[expert];
        d_z[row * r.experts + expert] = share[i] * d_share[i] - (scale != 0 ? share[i] / scale : 0) * along;
    }
}

void cuda_train_unmix(const cuda_launch *l, const float *d_mixed, const float *slot_out, const float *expert_scale,
                      const train_routing *r, float *d_slot, float *d_z, int rows, int n) {
    launch_kernel(l, unmix_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, d_mixed, slot_out, expert_scale, *r, d_slot, d_z,
                  n);
}
