/* Rows of a forward on their way into sums. Bound by bytes: rows are read once or twice, sums in float64 once a chunk.
 */
#include "backend/cuda/statistics_kernels.h"
#include "backend/cuda/train_common.cuh"

/* ---------------------------------------------------------------------------------------------------------- rows */

/* A row of a group is a warp's. */
static __global__ void rms_kernel(const float *x, size_t ldx, int rows, int groups, int n, float eps, float *rms,
                                  size_t ld) {
    int item = blockIdx.x * TRAIN_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (item >= rows * groups) return;
    int row = item / groups, group = item % groups;
    const float *from = x + (size_t)row * ldx + (size_t)group * n;
    float squares = 0;
    for (int i = lane; i < n; i += 32) squares += from[i] * from[i];
    squares = warp_sum(squares);
    if (lane == 0) rms[(size_t)group * ld + row] = sqrtf(squares / n + eps);
}

void cuda_statistics_rms(const cuda_launch *l, const float *x, size_t ldx, int rows, int groups, int n, float eps,
                         float *rms, size_t ld) {
    if (rows <= 0) return;
    launch_kernel(l, rms_kernel, dim3(ceil_div(rows * groups, TRAIN_WARPS)), dim3(TRAIN_THREADS), 0, x, ldx, rows,
                  groups, n, eps, rms, ld);
}

enum { SIDE = 32, STRIPE = TRAIN_THREADS / SIDE };

static __global__ void turn_kernel(const float *x, size_t ldx, int rows, int padded, int columns, int group,
                                   const float *rms, size_t ld, cuda_bf16 *out, size_t ldo) {
    __shared__ float tile[SIDE][SIDE + 1];
    int column0 = blockIdx.x * SIDE, row0 = blockIdx.y * SIDE, tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    for (int i = ty; i < SIDE; i += STRIPE) {
        int row = row0 + i, column = column0 + tx;
        bool inside = row < rows && column < columns;
        tile[i][tx] = inside ? x[(size_t)row * ldx + column] / rms[(size_t)(column / group) * ld + row] : 0.0f;
    }
    __syncthreads();
    for (int i = ty; i < SIDE; i += STRIPE) {
        int column = column0 + i, row = row0 + tx;
        if (column < columns && row < padded) out[(size_t)column * ldo + row] = train_rounded(tile[tx][i]);
    }
}

void cuda_statistics_turn(const cuda_launch *l, const float *x, size_t ldx, int rows, int padded, int columns,
                          int group, const float *rms, size_t ld, cuda_bf16 *out, size_t ldo) {
    launch_kernel(l, turn_kernel, dim3(ceil_div(columns, SIDE), ceil_div(padded, SIDE)), dim3(TRAIN_THREADS), 0, x, ldx,
                  rows, padded, columns, group, rms, ld, out, ldo);
}

static __global__ void sizes_kernel(const float *rms, size_t ld, int rows, bool squares, double *size, size_t stride) {
    __shared__ double shared[TRAIN_WARPS];
    double sum = 0;
    for (int row = threadIdx.x; row < rows; row += TRAIN_THREADS) {
        double one = rms[blockIdx.x * ld + row];
        sum += squares ? one * one : one;
    }
    sum = block_sum_double(sum, shared, TRAIN_WARPS);
    if (threadIdx.x == 0) size[blockIdx.x * stride] += sum;
}

void cuda_statistics_sizes(const cuda_launch *l, const float *rms, size_t ld, int groups, int rows, bool squares,
                           double *size, size_t stride) {
    launch_kernel(l, sizes_kernel, dim3(groups), dim3(TRAIN_THREADS), 0, rms, ld, rows, squares, size, stride);
}

static __global__ void widen_add_kernel(const float *from, double *to, size_t n) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        to[i] += from[i];
}

void cuda_statistics_add(const cuda_launch *l, const float *from, double *to, size_t n) {
    launch_kernel(l, widen_add_kernel, train_blocks(n), dim3(TRAIN_THREADS), 0, from, to, n);
}

static __global__ void widen_kernel(const cuda_bf16 *x, size_t ldx, float *out, int n) {
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS)
        out[(size_t)blockIdx.x * n + i] = train_widened(x[(size_t)blockIdx.x * ldx + i]);
}

void cuda_statistics_widen(const cuda_launch *l, const cuda_bf16 *x, size_t ldx, float *out, int rows, int n) {
    if (rows <= 0) return;
    launch_kernel(l, widen_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, x, ldx, out, n);
}

/* -------------------------------------------------------------------------------------------------------- metric */

static __global__ void squares_kernel(const float *x, const float *gain, int n, float eps, float *square,
                                      double *row_sum) {
    __shared__ double shared[TRAIN_WARPS];
    const float *row = x + (size_t)blockIdx.x * n;
    double plain = 0, weighed = 0;
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) {
        double v = row[i], w = v * gain[i];
        plain += v * v;
        weighed += w * w;
    }
    plain = block_sum_double(plain, shared, TRAIN_WARPS) / n + eps;
    weighed = block_sum_double(weighed, shared, TRAIN_WARPS);
    if (threadIdx.x == 0) {
        square[blockIdx.x] = (float)plain;
        row_sum[blockIdx.x] = weighed / plain;
    }
}

static __global__ void added_kernel(const double *row_sum, int rows, double *added) {
    __shared__ double shared[TRAIN_WARPS];
    double sum = 0;
    for (int row = threadIdx.x; row < rows; row += TRAIN_THREADS) sum += row_sum[row];
    sum = block_sum_double(sum, shared, TRAIN_WARPS);
    if (threadIdx.x == 0) {
        added[0] += sum;
        added[1] += rows;
    }
}

void cuda_statistics_squares(const cuda_launch *l, const float *x, const float *gain, int rows, int n, float eps,
                             float *square, double *row_sum, double *added) {
    if (rows <= 0) return;
    launch_kernel(l, squares_kernel, dim3(rows), dim3(TRAIN_THREADS), 0, x, gain, n, eps, square, row_sum);
    launch_kernel(l, added_kernel, dim3(1), dim3(TRAIN_THREADS), 0, row_sum, rows, added);
}

/* A row of a head is a block's. */
static __global__ void weigh_kernel(statistics_metric m) {
    __shared__ float shared_largest[TRAIN_WARPS];
    __shared__ double shared_sum[TRAIN_WARPS];
    int row = blockIdx.x, head = blockIdx.y, position = m.position + row,
        oldest = m.sliding && position >= m.sliding ? position - m.sliding + 1 : 0;
    const float *scores = m.scores + ((size_t)head * m.rows + row) * m.columns;
    float *weight = m.weight + ((size_t)head * m.rows + row) * m.offsets, largest = -INFINITY;
    for (int p = oldest + threadIdx.x; p <= position; p += TRAIN_THREADS) largest = fmaxf(largest, scores[p]);
    largest = block_largest(largest, shared_largest);
    double sum = 0;
    for (int p = oldest + threadIdx.x; p <= position; p += TRAIN_THREADS) sum += expf(scores[p] - largest);
    sum = block_sum_double(sum, shared_sum, TRAIN_WARPS);
    for (int i = threadIdx.x; i < m.offsets; i += TRAIN_THREADS) {
        int p = position - m.offset[i];
        double share = p < oldest || p < m.sink ? 0.0 : (double)expf(scores[p] - largest) / sum;
        weight[i] = share < m.negligible ? 0.0f : (float)(share * share / m.square[row]);
    }
}

void cuda_statistics_weigh(const cuda_launch *l, const statistics_metric *m) {
    if (m->rows <= 0) return;
    launch_kernel(l, weigh_kernel, dim3(m->rows, m->heads), dim3(TRAIN_THREADS), 0, *m);
}

static __global__ void sum_weights_kernel(const float *weight, size_t n, double *sum) {
    __shared__ double shared[TRAIN_WARPS];
    const float *from = weight + blockIdx.x * n;
    double all = 0;
    for (size_t i = threadIdx.x; i < n; i += TRAIN_THREADS) all += from[i];
    all = block_sum_double(all, shared, TRAIN_WARPS);
    if (threadIdx.x == 0) sum[blockIdx.x] += all;
}

void cuda_statistics_sum_weights(const cuda_launch *l, const statistics_metric *m, double *sum) {
    if (m->rows <= 0) return;
    launch_kernel(l, sum_weights_kernel, dim3(m->heads), dim3(TRAIN_THREADS), 0, m->weight,
                  (size_t)m->rows * m->offsets, sum);
}

/* An offset of a row is a block's, in both. */
static __global__ void errors_kernel(statistics_metric m, statistics_head h, float *u) {
    int row = blockIdx.x / m.offsets, offset = blockIdx.x % m.offsets;
    float *to = u + (size_t)blockIdx.x * h.dim;
    bool seen = h.weight[blockIdx.x] > 0;
    const float *v = h.v + (size_t)(seen ? m.position + row - m.offset[offset] : 0) * h.ldv, *o = h.o + row * h.ldq;
    for (int i = threadIdx.x; i < h.dim; i += TRAIN_THREADS) to[i] = seen ? v[i] - o[i] : 0.0f;
}

void cuda_statistics_errors(const cuda_launch *l, const statistics_metric *m, const statistics_head *h, float *u) {
    if (m->rows <= 0) return;
    launch_kernel(l, errors_kernel, dim3(m->rows * m->offsets), dim3(TRAIN_THREADS), 0, *m, *h, u);
}

static __global__ void directions_kernel(statistics_metric m, statistics_head h, const float *u, const float *gu,
                                         float *g) {
    __shared__ float shared[TRAIN_WARPS];
    size_t at = (size_t)blockIdx.x * h.dim;
    int row = blockIdx.x / m.offsets, offset = blockIdx.x % m.offsets, half = h.dim / 2;
    float weight = h.weight[blockIdx.x], change = 0;
    for (int i = threadIdx.x; i < h.dim; i += TRAIN_THREADS) change += u[at + i] * gu[at + i];
    change = block_sum<TRAIN_THREADS>(change, shared);
    float scale = weight > 0 && change > 0 ? sqrtf(weight * change) : 0.0f;
    const float *q = h.q + row * h.ldq;
    size_t angle = scale > 0 ? (size_t)(m.position + row - m.offset[offset]) * h.pairs : 0;
    for (int i = threadIdx.x; i < h.dim; i += TRAIN_THREADS) {
        int pair = i < half ? i : i - half;
        float v = q[i];
        if (pair < h.pairs) { /* turned back */
            float sine = h.sine[angle + pair];
            v = v * h.cosine[angle + pair] + (i < half ? q[i + half] * sine : -q[pair] * sine);
        }
        g[at + i] = scale * v * h.k_norm[i];
    }
}

void cuda_statistics_directions(const cuda_launch *l, const statistics_metric *m, const statistics_head *h,
                                const float *u, const float *gu, float *g) {
    if (m->rows <= 0) return;
    launch_kernel(l, directions_kernel, dim3(m->rows * m->offsets), dim3(TRAIN_THREADS), 0, *m, *h, u, gu, g);
}
