/* Attention of a segment's rows over columns: keys of the teacher, restored ones, and the rows' own. Products are
 * train_products.cu's; here columns are laid side by side, masked, and their gradients taken back. */
#include "backend/cuda/train_common.cuh"

/* The rule of docs/design/restoration.md. */
static __device__ __forceinline__ bool sees(const train_mask &m, int item, int t, const train_column &column) {
    int p = column.position;
    if (column.kind == TRAIN_NO_COLUMN || p > t || (m.sliding && p <= t - m.sliding)) return false;
    if (m.rule == 0) return true;
    bool restored = !m.restored || m.restored[item];
    int row = m.rule == 1 && m.prompt[item] ? m.first[item] - 1 : t; /* that has evicted */
    bool exact = m.rule == 1 && (!restored || p < m.sink || p > row - m.window);
    return exact == (column.kind != TRAIN_RESTORED);
}

/* A block is a head's row. */
static __global__ void softmax_kernel(train_mask m, int heads, float *scores) {
    __shared__ float shared[TRAIN_WARPS];
    int row = blockIdx.x % m.rows, item = blockIdx.x / m.rows / heads, t = m.first[item] + row;
    float *x = scores + (size_t)blockIdx.x * m.columns, largest = -INFINITY, sum = 0;
    const train_column *column = m.column + (size_t)item * m.columns;
    for (int i = threadIdx.x; i < m.columns; i += TRAIN_THREADS) {
        if (!sees(m, item, t, column[i])) x[i] = -INFINITY;
        largest = fmaxf(largest, x[i]);
    }
    largest = block_largest(largest, shared);
    for (int i = threadIdx.x; i < m.columns; i += TRAIN_THREADS) {
        x[i] = x[i] == -INFINITY ? 0 : expf(x[i] - largest);
        sum += x[i];
    }
    sum = block_sum<TRAIN_THREADS>(sum, shared);
    float by = sum > 0 ? 1 / sum : 0;
    for (int i = threadIdx.x; i < m.columns; i += TRAIN_THREADS) x[i] *= by;
}

/* The same of up to HELD values a thread, which are read and written once. */
template <int HELD> static __global__ void held_softmax_kernel(train_mask m, int heads, float *scores) {
    __shared__ float shared[TRAIN_WARPS];
    int row = blockIdx.x % m.rows, item = blockIdx.x / m.rows / heads, t = m.first[item] + row;
    float *x = scores + (size_t)blockIdx.x * m.columns, held[HELD], largest = -INFINITY, sum = 0;
    const train_column *column = m.column + (size_t)item * m.columns;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int i = threadIdx.x + k * TRAIN_THREADS;
        held[k] = i < m.columns && sees(m, item, t, column[i]) ? x[i] : -INFINITY;
        largest = fmaxf(largest, held[k]);
    }
    largest = block_largest(largest, shared);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        held[k] = held[k] == -INFINITY ? 0 : expf(held[k] - largest);
        sum += held[k];
    }
    sum = block_sum<TRAIN_THREADS>(sum, shared);
    float by = sum > 0 ? 1 / sum : 0;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int i = threadIdx.x + k * TRAIN_THREADS;
        if (i < m.columns) x[i] = held[k] * by;
    }
}

void cuda_train_softmax(const cuda_launch *l, const train_mask *mask, int heads, float *scores) {
    enum { FEW = 16, MANY = 36 };
    dim3 grid(mask->items * heads * mask->rows), block(TRAIN_THREADS);
    if (mask->columns <= FEW * TRAIN_THREADS)
        launch_kernel(l, held_softmax_kernel<FEW>, grid, block, 0, *mask, heads, scores);
    else if (mask->columns <= MANY * TRAIN_THREADS)
        launch_kernel(l, held_softmax_kernel<MANY>, grid, block, 0, *mask, heads, scores);
    else
        launch_kernel(l, softmax_kernel, grid, block, 0, *mask, heads, scores);
}

static __global__ void softmax_back_kernel(const float *shares, float *d_shares, int columns) {
    __shared__ float shared[TRAIN_WARPS];
    const float *p = shares + (size_t)blockIdx.x * columns;
    float *d = d_shares + (size_t)blockIdx.x * columns, along = 0;
    for (int i = threadIdx.x; i < columns; i += TRAIN_THREADS) along += p[i] * d[i];
    along = block_sum<TRAIN_THREADS>(along, shared);
    for (int i = threadIdx.x; i < columns; i += TRAIN_THREADS) d[i] = p[i] * (d[i] - along);
}

void cuda_train_softmax_back(const cuda_launch *l, const float *shares, float *d_shares, int rows, int columns) {
    launch_kernel(l, softmax_back_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, shares, d_shares, columns);
}

/* A block is a column. */
static __global__ void columns_kernel(train_mask m, train_sources from, float *keys, float *values) {
    train_column column = m.column[blockIdx.x];
    for (int half = 0; half < 2; half++) {
        const float *x = from.kv[half][column.kind];
        float *to = (half ? values : keys) + (size_t)blockIdx.x * from.n;
        for (int i = threadIdx.x; i < from.n; i += TRAIN_THREADS) to[i] = x ? x[(size_t)column.row * from.n + i] : 0;
    }
}

void cuda_train_columns(const cuda_launch *l, const train_mask *mask, const train_sources *from, float *keys,
                        float *values) {
    launch_kernel(l, columns_kernel, dim3(mask->items * mask->columns), dim3(TRAIN_THREADS), 0, *mask, *from, keys,
                  values);
}

static __global__ void columns_back_kernel(train_mask m, train_sources to, int heads, int d, const float *d_key,
                                           const float *d_value) {
    train_column column = m.column[blockIdx.x];
    int item = blockIdx.x / m.columns, at = blockIdx.x % m.columns, group = heads / (to.n / d);
    for (int half = 0; half < 2; half++) {
        float *x = to.kv[half][column.kind];
        const float *from = half ? d_value : d_key;
        for (int i = threadIdx.x; x && i < to.n; i += TRAIN_THREADS) {
            float sum = 0;
            for (int head = i / d * group; head < (i / d + 1) * group; head++)
                sum += from[(((size_t)item * heads + head) * m.columns + at) * d + i % d];
            x[(size_t)column.row * to.n + i] += sum;
        }
    }
}

void cuda_train_columns_back(const cuda_launch *l, const train_mask *mask, const train_sources *to, int heads, int d,
                             const float *d_key, const float *d_value) {
    launch_kernel(l, columns_back_kernel, dim3(mask->items * mask->columns), dim3(TRAIN_THREADS), 0, *mask, *to, heads,
                  d, d_key, d_value);
}
