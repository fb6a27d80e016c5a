/* Products of float64 matrices: tiles of 64 x 64, 16 values of k at a time, 4 x 4 sums of a thread, as
 * train_products.cu has them of float32. Bound by multiplications: sixteen of them take eight values from shared
 * memory, half of which a warp shares. */
#include "backend/cuda/statistics_kernels.h"
#include "backend/cuda/train_common.cuh"

namespace {

enum { TILE = 64, STEP = 16, THREADS = 256, EACH = TILE * STEP / THREADS, PAD = 2 };

/* Four values of a tile of x, [rows][ld] of k where ALONG_K, else [k][ld] of rows. What lies outside is zero. */
template <bool ALONG_K>
__device__ __forceinline__ void load_values(const double *x, size_t ld, int rows, int k_end, int row0, int k0,
                                            double (&v)[EACH]) {
    for (int i = 0; i < EACH; i++) {
        int at = threadIdx.x + i * THREADS, row = row0 + (ALONG_K ? at / STEP : at % TILE),
            k = k0 + (ALONG_K ? at % STEP : at / TILE);
        bool inside = row < rows && k < k_end;
        v[i] = inside ? x[ALONG_K ? (size_t)row * ld + k : (size_t)k * ld + row] : 0.0;
    }
}

template <bool ALONG_K>
__device__ __forceinline__ void store_values(double (&tile)[STEP][TILE + PAD], const double (&v)[EACH]) {
    for (int i = 0; i < EACH; i++) {
        int at = threadIdx.x + i * THREADS;
        if (ALONG_K)
            tile[at % STEP][at / STEP] = v[i];
        else
            tile[at / TILE][at % TILE] = v[i];
    }
}

template <bool A_ALONG_K, bool B_ALONG_K> __global__ void __launch_bounds__(THREADS, 2) dense_kernel(dense_product p) {
    __shared__ double a_tile[STEP][TILE + PAD], b_tile[STEP][TILE + PAD];
    int row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE, ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    if (p.lower && column0 > row0) return;
    double a_next[EACH], b_next[EACH], sum[4][4] = {};
    load_values<A_ALONG_K>(p.a, p.lda, p.m, p.k, row0, 0, a_next);
    load_values<B_ALONG_K>(p.b, p.ldb, p.n, p.k, column0, 0, b_next);
    for (int k0 = 0; k0 < p.k; k0 += STEP) {
        store_values<A_ALONG_K>(a_tile, a_next);
        store_values<B_ALONG_K>(b_tile, b_next);
        __syncthreads();
        if (k0 + STEP < p.k) {
            load_values<A_ALONG_K>(p.a, p.lda, p.m, p.k, row0, k0 + STEP, a_next);
            load_values<B_ALONG_K>(p.b, p.ldb, p.n, p.k, column0, k0 + STEP, b_next);
        }
#pragma unroll
        for (int k = 0; k < STEP; k++) {
            double x[4], y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = a_tile[k][ty * 4 + i];
                y[i] = b_tile[k][tx + i * 16]; /* neighbours of a warp take neighbouring banks */
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] = fma(x[i], y[j], sum[i][j]);
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++) {
        int row = row0 + ty * 4 + i;
        for (int j = 0; j < 4 && row < p.m; j++) {
            int column = column0 + tx + j * 16;
            if (column >= p.n) continue;
            double *to = p.c + (size_t)row * p.ldc + column, value = p.scale * sum[i][j];
            *to = p.set ? value : *to + value;
        }
    }
}

enum { SIDE = 32 };

/* Two tiles that lie opposite each other are a block's. */
__global__ void mirror_kernel(double *a, int n, int exchange) {
    __shared__ double low[SIDE][SIDE + 1], high[SIDE][SIDE + 1];
    int row0 = blockIdx.y * SIDE, column0 = blockIdx.x * SIDE, tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    if (column0 > row0) return;
    for (int i = ty; i < SIDE; i += THREADS / SIDE) {
        if (row0 + i < n && column0 + tx < n) low[i][tx] = a[(size_t)(row0 + i) * n + column0 + tx];
        if (column0 + i < n && row0 + tx < n) high[i][tx] = a[(size_t)(column0 + i) * n + row0 + tx];
    }
    __syncthreads();
    for (int i = ty; i < SIDE; i += THREADS / SIDE) {
        int row = row0 + i, column = column0 + tx;
        if (exchange && row < n && column < row) a[(size_t)row * n + column] = high[tx][i];
        row = column0 + i, column = row0 + tx;
        if (column < n && row < column) a[(size_t)row * n + column] = low[tx][i];
    }
}

} // namespace

void cuda_dense_product(const cuda_launch *l, const dense_product *p) {
    if (p->m <= 0 || p->n <= 0) return;
    dim3 grid(ceil_div(p->n, TILE), ceil_div(p->m, TILE)), block(THREADS);
    if (!p->a_turned && p->b_turned) launch_kernel(l, dense_kernel<true, true>, grid, block, 0, *p);
    if (!p->a_turned && !p->b_turned) launch_kernel(l, dense_kernel<true, false>, grid, block, 0, *p);
    if (p->a_turned && p->b_turned) launch_kernel(l, dense_kernel<false, true>, grid, block, 0, *p);
    if (p->a_turned && !p->b_turned) launch_kernel(l, dense_kernel<false, false>, grid, block, 0, *p);
}

void cuda_dense_mirror(const cuda_launch *l, double *a, int n, int exchange) {
    unsigned side = (unsigned)ceil_div(n, SIDE);
    launch_kernel(l, mirror_kernel, dim3(side, side), dim3(THREADS), 0, a, n, exchange);
}
