/* Products of float32 matrices in float32: tiles of 64 x 64, 16 values of k at a time, 4 x 4 sums of a thread. Bound by
 * shared memory, eight values of which make sixteen multiplications. */
#include "backend/cuda/common.cuh"
#include "backend/cuda/train_kernels.h"

enum { TILE = 64, STEP = 16, THREADS = 256, PAD = 4, EACH = TILE * STEP / THREADS };

/* Four values of a tile as this thread loads them: along k, or along the tile's rows. */
template <bool ALONG_K> struct tile_place {
    int row, k;
    __device__ tile_place(int thread) {
        if (ALONG_K) {
            row = thread / (STEP / EACH);
            k = thread % (STEP / EACH) * EACH;
        } else {
            k = thread / (TILE / EACH);
            row = thread % (TILE / EACH) * EACH;
        }
    }
};

/* x is [rows][ld] of k where ALONG_K, else [k][ld] of rows. What lies outside is zero. */
template <bool ALONG_K>
static __device__ __forceinline__ void load_tile(const float *x, size_t ld, int rows, int k_end, int row, int k,
                                                 bool wide, float (&v)[EACH]) {
    const float *from = ALONG_K ? x + (size_t)row * ld + k : x + (size_t)k * ld + row;
    bool inside = ALONG_K ? row < rows : k < k_end;
    int at = ALONG_K ? k : row, end = ALONG_K ? k_end : rows;
    if (wide && inside && at + EACH <= end) {
        float4 four = *reinterpret_cast<const float4 *>(from);
        v[0] = four.x;
        v[1] = four.y;
        v[2] = four.z;
        v[3] = four.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) v[i] = inside && at + i < end ? from[i] : 0.0f;
}

template <bool ALONG_K>
static __device__ __forceinline__ void store_tile(float (&tile)[STEP][TILE + PAD], int row, int k,
                                                  const float (&v)[EACH]) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (ALONG_K)
            tile[k + i][row] = v[i];
        else
            tile[k][row + i] = v[i];
    }
}

static __device__ __forceinline__ bool is_wide(const float *x, size_t ld) {
    return ld % EACH == 0 && reinterpret_cast<size_t>(x) % sizeof(float4) == 0;
}

/* blockIdx.z counts items, heads and parts of k; `parts` above 1: sums go to partial[part][m][n]. */
template <bool A_ALONG_K, bool B_ALONG_K>
static __global__ void __launch_bounds__(THREADS) product_kernel(train_product p, int parts, int k_of_part) {
    __shared__ float a_tile[STEP][TILE + PAD], b_tile[STEP][TILE + PAD];
    int part = blockIdx.z % parts, of = blockIdx.z / parts, item = of / p.heads, head = of % p.heads;
    const float *a = p.a + item * p.a_item + head * p.a_head;
    const float *b = p.b + item * p.b_item + head / p.group * p.b_head;
    float *c = p.c + item * p.c_item + head * p.c_head;
    int m = p.m, row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE;
    size_t ldc = p.ldc;
    if (p.begin) {
        int first = p.begin[item];
        m = p.begin[item + 1] - first;
        a += first * p.lda;
        c += first * p.ldc;
    }
    if (row0 >= m) return;
    int k_begin = part * k_of_part, k_end = k_begin + k_of_part < p.k ? k_begin + k_of_part : p.k;
    if (parts > 1) {
        c = p.partial + (size_t)part * m * p.n;
        ldc = p.n;
    }
    bool a_wide = is_wide(a, p.lda), b_wide = is_wide(b, p.ldb);
    int thread = threadIdx.x, ty = thread / 16, tx = thread % 16;
    tile_place<A_ALONG_K> a_at(thread);
    tile_place<B_ALONG_K> b_at(thread);
    float a_next[EACH], b_next[EACH], sum[4][4] = {};
    load_tile<A_ALONG_K>(a, p.lda, m, k_end, row0 + a_at.row, k_begin + a_at.k, a_wide, a_next);
    load_tile<B_ALONG_K>(b, p.ldb, p.n, k_end, column0 + b_at.row, k_begin + b_at.k, b_wide, b_next);
    for (int k0 = k_begin; k0 < k_end; k0 += STEP) {
        store_tile<A_ALONG_K>(a_tile, a_at.row, a_at.k, a_next);
        store_tile<B_ALONG_K>(b_tile, b_at.row, b_at.k, b_next);
        __syncthreads();
        if (k0 + STEP < k_end) {
            load_tile<A_ALONG_K>(a, p.lda, m, k_end, row0 + a_at.row, k0 + STEP + a_at.k, a_wide, a_next);
            load_tile<B_ALONG_K>(b, p.ldb, p.n, k_end, column0 + b_at.row, k0 + STEP + b_at.k, b_wide, b_next);
        }
#pragma unroll
        for (int k = 0; k < STEP; k++) {
            float x[4], y[4];
            *reinterpret_cast<float4 *>(x) = *reinterpret_cast<const float4 *>(&a_tile[k][ty * 4]);
            *reinterpret_cast<float4 *>(y) = *reinterpret_cast<const float4 *>(&b_tile[k][tx * 4]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++) {
        int row = row0 + ty * 4 + i;
        for (int j = 0; j < 4 && row < m; j++) {
            int column = column0 + tx * 4 + j;
            if (column >= p.n) continue;
            float *to = c + (size_t)row * ldc + column;
            *to = parts == 1 && p.add ? *to + sum[i][j] : sum[i][j];
        }
    }
}

static __global__ void sum_parts_kernel(const float *partial, int parts, int m, int n, float *c, size_t ldc, int add) {
    size_t all = (size_t)m * n;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (size_t)gridDim.x * blockDim.x) {
        float sum = 0;
        for (int part = 0; part < parts; part++) sum += partial[part * all + i];
        float *to = c + i / n * ldc + i % n;
        *to = add ? *to + sum : sum;
    }
}

void cuda_train_sum_parts(const cuda_launch *l, const float *partial, int parts, int m, int n, float *c, size_t ldc,
                          int add) {
    enum { MOST = 1024 };
    int blocks = ceil_div(m * n, THREADS);
    launch_kernel(l, sum_parts_kernel, dim3(blocks < MOST ? blocks : MOST), dim3(THREADS), 0, partial, parts, m, n, c,
                  ldc, add);
}

/* Parts of k that keep the device busy where the result is small. */
static int parts_of(const train_product *p) {
    enum { BLOCKS = 512, LEAST_K = 128 };
    int tiles = ceil_div(p->m, TILE) * ceil_div(p->n, TILE), most = p->k / LEAST_K;
    if (!p->partial || p->items > 1 || p->heads > 1 || p->begin) return 1;
    size_t room = p->partial_floats / ((size_t)p->m * (size_t)p->n);
    int parts = BLOCKS / tiles;
    if (parts > most) parts = most;
    if ((size_t)parts > room) parts = (int)room;
    return parts > 1 ? parts : 1;
}

void cuda_train_product(const cuda_launch *l, train_form form, const train_product *given) {
    train_product p = *given;
    if (p.items < 1) p.items = 1;
    if (p.heads < 1) p.heads = 1;
    if (p.group < 1) p.group = 1;
    if (p.m <= 0 || p.n <= 0) return;
    int parts = parts_of(&p), k_of_part = ceil_div(ceil_div(p.k, parts), STEP) * STEP;
    dim3 grid(ceil_div(p.n, TILE), ceil_div(p.m, TILE), p.items * p.heads * parts);
    if (form == TRAIN_NT) launch_kernel(l, product_kernel<true, true>, grid, dim3(THREADS), 0, p, parts, k_of_part);
    if (form == TRAIN_NN) launch_kernel(l, product_kernel<true, false>, grid, dim3(THREADS), 0, p, parts, k_of_part);
    if (form == TRAIN_TN) launch_kernel(l, product_kernel<false, false>, grid, dim3(THREADS), 0, p, parts, k_of_part);
    if (parts > 1) cuda_train_sum_parts(l, p.partial, parts, p.m, p.n, p.c, p.ldc, p.add);
}
