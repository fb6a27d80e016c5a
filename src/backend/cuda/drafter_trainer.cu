/* What blocks of a drafter see, their activations, their loss, there and back. Bound by the bytes of their rows. */
#include "backend/cuda/drafter_trainer_kernels.h"
#include "backend/cuda/train_common.cuh"

/* ---------------------------------------------------------------------------------------------------- attention */

/* A block is a column. */
static __global__ void drafter_trainer_columns_kernel(drafter_trainer_mask m, int n, const float *context_k,
                                                      const float *context_v, const float *own_k, const float *own_v,
                                                      float *keys, float *values) {
    int columns = m.context + m.rows, item = blockIdx.x / columns, column = blockIdx.x % columns;
    bool own = column >= m.context;
    size_t row = own ? (size_t)item * m.rows + (column - m.context) : (size_t)item * m.context + column,
           to = (size_t)blockIdx.x * n;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) {
        keys[to + i] = (own ? own_k : context_k)[row * n + i];
        values[to + i] = (own ? own_v : context_v)[row * n + i];
    }
}

void cuda_drafter_trainer_columns(const cuda_launch *l, const drafter_trainer_mask *mask, int n,
                                  const float *const context[2], const float *const own[2], float *keys,
                                  float *values) {
    launch_kernel(l, drafter_trainer_columns_kernel, dim3(mask->sequences * (mask->context + mask->rows)),
                  dim3(TRAIN_THREADS), 0, *mask, n, context[0], context[1], own[0], own[1], keys, values);
}

/* A block is a column. */
static __global__ void drafter_trainer_columns_back_kernel(drafter_trainer_mask m, int n, int heads, int d,
                                                           const float *d_key, const float *d_value, float *context_k,
                                                           float *context_v, float *own_k, float *own_v) {
    int columns = m.context + m.rows, item = blockIdx.x / columns, column = blockIdx.x % columns,
        group = heads / (n / d);
    bool own = column >= m.context;
    size_t row = own ? (size_t)item * m.rows + (column - m.context) : (size_t)item * m.context + column;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) {
        float key = 0, value = 0;
        for (int head = i / d * group; head < (i / d + 1) * group; head++) {
            size_t at = (((size_t)item * heads + head) * columns + column) * d + i % d;
            key += d_key[at];
            value += d_value[at];
        }
        (own ? own_k : context_k)[row * n + i] = key;
        (own ? own_v : context_v)[row * n + i] = value;
    }
}

void cuda_drafter_trainer_columns_back(const cuda_launch *l, const drafter_trainer_mask *mask, int n, int heads, int d,
                                       const float *d_key, const float *d_value, float *const context[2],
                                       float *const own[2]) {
    launch_kernel(l, drafter_trainer_columns_back_kernel, dim3(mask->sequences * (mask->context + mask->rows)),
                  dim3(TRAIN_THREADS), 0, *mask, n, heads, d, d_key, d_value, context[0], context[1], own[0], own[1]);
}

static __device__ __forceinline__ bool drafter_trainer_sees(const drafter_trainer_mask &m, int row, int position,
                                                            int first, int column) {
    if (first < 0) return false;
    if (column < m.context) return column < first && (!m.sliding || column > position - m.sliding);
    int other = column - m.context, off = other - row;
    if (other / m.block != row / m.block) return false;
    if (!m.sliding) return true;
    return off > -m.sliding && off < (m.bidirectional ? m.sliding : 1);
}

/* A block is a head's row. */
static __global__ void drafter_trainer_softmax_kernel(drafter_trainer_mask m, int heads, float *scores) {
    __shared__ float shared[TRAIN_WARPS];
    int columns = m.context + m.rows, row = blockIdx.x % m.rows, item = blockIdx.x / m.rows / heads,
        position = m.position[item * m.rows + row], first = m.first[item * m.rows + row];
    float *x = scores + (size_t)blockIdx.x * columns, largest = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < columns; i += TRAIN_THREADS) {
        if (!drafter_trainer_sees(m, row, position, first, i)) x[i] = -INFINITY;
        largest = fmaxf(largest, x[i]);
    }
    largest = block_largest(largest, shared);
    for (int i = threadIdx.x; i < columns; i += TRAIN_THREADS) {
        x[i] = x[i] == -INFINITY ? 0 : expf(x[i] - largest);
        sum += x[i];
    }
    sum = block_sum<TRAIN_THREADS>(sum, shared);
    float by = sum > 0 ? 1 / sum : 0;
    for (int i = threadIdx.x; i < columns; i += TRAIN_THREADS) x[i] *= by;
}

void cuda_drafter_trainer_softmax(const cuda_launch *l, const drafter_trainer_mask *mask, int heads, float *scores) {
    launch_kernel(l, drafter_trainer_softmax_kernel, dim3(mask->sequences * heads * mask->rows), dim3(TRAIN_THREADS), 0,
                  *mask, heads, scores);
}

/* --------------------------------------------------------------------------------------------------------- rows */

static __global__ void drafter_trainer_gated_kernel(const float *gate_up, float *out, int n) {
    const float *gate = gate_up + (size_t)blockIdx.x * 2 * n, *up = gate + n;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS)
        out[(size_t)blockIdx.x * n + i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

void cuda_drafter_trainer_gated(const cuda_launch *l, const float *gate_up, float *out, int rows, int n) {
    if (rows > 0) launch_kernel(l, drafter_trainer_gated_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, gate_up, out, n);
}

static __global__ void drafter_trainer_gated_back_kernel(const float *gate_up, const float *d_out, float *d_gate_up,
                                                         int n) {
    const float *gate = gate_up + (size_t)blockIdx.x * 2 * n, *up = gate + n;
    float *d_gate = d_gate_up + (size_t)blockIdx.x * 2 * n, *d_up = d_gate + n;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) {
        float x = gate[i], s = 1 / (1 + expf(-x)), d = d_out[(size_t)blockIdx.x * n + i];
        d_up[i] = d * x * s;
        d_gate[i] = d * up[i] * s * (1 + x * (1 - s));
    }
}

void cuda_drafter_trainer_gated_back(const cuda_launch *l, const float *gate_up, const float *d_out, float *d_gate_up,
                                     int rows, int n) {
    if (rows > 0)
        launch_kernel(l, drafter_trainer_gated_back_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, gate_up, d_out,
                      d_gate_up, n);
}

/* A block is a row of heads; a thread has pairs, and values that do not turn. */
static __global__ void drafter_trainer_unturn_kernel(float *x, float scale, int heads, int d, train_turn turn) {
    size_t angle = (size_t)turn.position[blockIdx.x] * turn.pairs;
    for (int i = threadIdx.x; i < heads * turn.half; i += TRAIN_THREADS) {
        int pair = i % turn.half;
        float *at = x + ((size_t)blockIdx.x * heads + i / turn.half) * d + pair, a = at[0] * scale,
              b = at[turn.half] * scale;
        float cosine = pair < turn.pairs ? turn.cosine[angle + pair] : 1,
              sine = pair < turn.pairs ? turn.sine[angle + pair] : 0;
        at[0] = a * cosine + b * sine;
        at[turn.half] = b * cosine - a * sine;
    }
}

void cuda_drafter_trainer_unturn(const cuda_launch *l, float *x, float scale, int rows, int heads, int d,
                                 train_turn turn) {
    if (rows > 0)
        launch_kernel(l, drafter_trainer_unturn_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, x, scale, heads, d, turn);
}

/* A block has a part of the rows, a thread its own values of each. */
static __global__ void drafter_trainer_gain_kernel(const float *x, const float *d_out, int rows, int of_part, int n,
                                                   float eps, float *partial) {
    __shared__ float shared[TRAIN_WARPS];
    int begin = blockIdx.x * of_part, end = begin + of_part < rows ? begin + of_part : rows;
    float *to = partial + (size_t)blockIdx.x * n;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) to[i] = 0;
    for (int row = begin; row < end; row++) {
        const float *from = x + (size_t)row * n, *d = d_out + (size_t)row * n;
        float squares = 0;
        for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) squares += from[i] * from[i];
        float s = 1.0f / sqrtf(block_sum<TRAIN_THREADS>(squares, shared) / n + eps);
        for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) to[i] += d[i] * from[i] * s;
    }
}

static __global__ void drafter_trainer_gain_sum_kernel(const float *partial, int parts, int n, float *d_gain) {
    for (int i = blockIdx.x * TRAIN_THREADS + threadIdx.x; i < n; i += gridDim.x * TRAIN_THREADS) {
        float sum = 0;
        for (int p = 0; p < parts; p++) sum += partial[(size_t)p * n + i];
        d_gain[i] += sum;
    }
}

void cuda_drafter_trainer_gain(const cuda_launch *l, const float *x, const float *d_out, int rows, int n, float eps,
                               float *partial, float *d_gain) {
    if (rows <= 0) return;
    int parts = rows < DRAFTER_TRAINER_GAIN_PARTS ? rows : DRAFTER_TRAINER_GAIN_PARTS, of_part = ceil_div(rows, parts);
    launch_kernel(l, drafter_trainer_gain_kernel, dim3(parts), dim3(TRAIN_THREADS), 0, x, d_out, rows, of_part, n, eps,
                  partial);
    launch_kernel(l, drafter_trainer_gain_sum_kernel, train_blocks(n), dim3(TRAIN_THREADS), 0, partial, parts, n,
                  d_gain);
}

/* --------------------------------------------------------------------------------------------------------- loss */

/* A block is a row. */
static __global__ void drafter_trainer_entropy_kernel(float *logits, const int *target, const float *weigh, int vocab,
                                                      float cap, int mask_token, float scale, double *loss,
                                                      int *right) {
    __shared__ float shared[TRAIN_WARPS];
    __shared__ double sums[TRAIN_WARPS];
    int t = target[blockIdx.x];
    float *z = logits + (size_t)blockIdx.x * vocab, largest = -INFINITY, best = -INFINITY;
    if (t < 0) {
        for (int i = threadIdx.x; i < vocab; i += TRAIN_THREADS) z[i] = 0;
        if (threadIdx.x == 0) {
            loss[blockIdx.x] = 0;
            right[blockIdx.x] = 0;
        }
        return;
    }
    for (int i = threadIdx.x; i < vocab; i += TRAIN_THREADS) {
        largest = fmaxf(largest, z[i]);
        if (i != mask_token) best = fmaxf(best, z[i]);
    }
    largest = capped(block_largest(largest, shared), cap);
    best = block_largest(best, shared);
    float at = z[t]; /* every thread reads it before one of them changes it */
    double sum = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < vocab; i += TRAIN_THREADS) {
        float y = capped(z[i], cap), inside = cap > 0 ? y / cap : 0, e = expf(y - largest);
        sum += (double)e;
        z[i] = e * (1 - inside * inside);
    }
    sum = block_sum_double(sum, sums, TRAIN_WARPS);
    float by = (float)((double)(scale * weigh[blockIdx.x]) / sum), y = capped(at, cap), inside = cap > 0 ? y / cap : 0;
    for (int i = threadIdx.x; i < vocab; i += TRAIN_THREADS) {
        float v = z[i] * by;
        if (i == t) v -= scale * weigh[blockIdx.x] * (1 - inside * inside);
        z[i] = v;
    }
    if (threadIdx.x == 0) {
        loss[blockIdx.x] = (double)weigh[blockIdx.x] * ((double)largest + log(sum) - (double)y);
        right[blockIdx.x] = t != mask_token && at == best;
    }
}

void cuda_drafter_trainer_cross_entropy(const cuda_launch *l, float *logits, const int *target, const float *weigh,
                                        int rows, int vocab, float cap, int mask_token, float scale, double *loss,
                                        int *right) {
    if (rows > 0)
        launch_kernel(l, drafter_trainer_entropy_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, logits, target, weigh,
                      vocab, cap, mask_token, scale, loss, right);
}
