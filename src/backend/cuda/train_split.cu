/* Numbers in parts, matrices turned, and what products leave behind, for split_products.c. Bound by bytes. */
#include "backend/cuda/split_products.h"
#include "backend/cuda/train_common.cuh"

static __device__ __forceinline__ cuda_bf16 upper(float x) { return train_rounded(x); }
static __device__ __forceinline__ cuda_bf16 lower(float x) { return train_rounded(x - train_widened(upper(x))); }

/* Two columns of a row are a thread's. */
static __global__ void split_rows_kernel(const float *x, size_t ldx, int n, int terms, uint32_t *out, int pairs) {
    const float *from = x + blockIdx.x * ldx;
    uint32_t *to = out + (size_t)blockIdx.x * terms * pairs;
    for (int i = blockIdx.y * TRAIN_THREADS + threadIdx.x; i < pairs; i += gridDim.y * TRAIN_THREADS) {
        float a = 2 * i < n ? from[2 * i] : 0.0f, b = 2 * i + 1 < n ? from[2 * i + 1] : 0.0f;
        for (int term = 0; term < terms; term++) {
            cuda_bf16 first = upper(a), second = upper(b);
            to[(size_t)term * pairs + i] = first | (uint32_t)second << 16;
            a -= train_widened(first);
            b -= train_widened(second);
        }
    }
}

/* Blocks of a row that is long. */
static unsigned blocks_of_row(int n, int rows) {
    enum { BUSY = 1024 };
    int most = ceil_div(n, TRAIN_THREADS), wanted = ceil_div(BUSY, rows);
    return (unsigned)(most < wanted ? most : wanted);
}

void cuda_split_rows(const cuda_launch *l, const float *x, size_t ldx, int rows, int n, int terms, cuda_bf16 *out,
                     size_t ldo) {
    int pairs = (int)(ldo / 2);
    if (rows <= 0) return;
    launch_kernel(l, split_rows_kernel, dim3(rows, blocks_of_row(pairs, rows)), dim3(TRAIN_THREADS), 0, x, ldx, n,
                  terms, (uint32_t *)(void *)out, pairs);
}

static __global__ void join_kernel(const float *from, int terms, int n, float *y, size_t ldy, int add) {
    const float *parts = from + (size_t)blockIdx.x * terms * n;
    float *to = y + blockIdx.x * ldy;
    for (int i = blockIdx.y * TRAIN_THREADS + threadIdx.x; i < n; i += gridDim.y * TRAIN_THREADS) {
        float sum = 0;
        for (int term = terms - 1; term >= 0; term--) sum += parts[(size_t)term * n + i];
        to[i] = add ? to[i] + sum : sum;
    }
}

void cuda_split_join(const cuda_launch *l, const float *from, int rows, int terms, int n, float *y, size_t ldy,
                     int add) {
    if (rows > 0)
        launch_kernel(l, join_kernel, dim3(rows, blocks_of_row(n, rows)), dim3(TRAIN_THREADS), 0, from, terms, n, y,
                      ldy, add);
}

static __global__ void begins_kernel(const int *begin, int by, int n, int *to) {
    for (int i = threadIdx.x; i < n; i += TRAIN_THREADS) to[i] = by * (begin ? begin[i] : i);
}

void cuda_split_begins(const cuda_launch *l, const int *begin, int by, int n, int *to) {
    launch_kernel(l, begins_kernel, dim3(1), dim3(TRAIN_THREADS), 0, begin, by, n, to);
}

enum { SQUARE = 64, LANES = SQUARE / 2, STRIPES = TRAIN_THREADS / LANES };

/* A square of 64 x 64, two values at a time. */
static __global__ void turn_square_kernel(const cuda_bf16 *w, size_t ldw, int rows, int in, cuda_bf16 *out,
                                          size_t ldo) {
    __shared__ cuda_bf16 square[SQUARE][SQUARE + 2];
    int column0 = blockIdx.y * SQUARE, row0 = blockIdx.x * SQUARE, lane = threadIdx.x % LANES,
        stripe = threadIdx.x / LANES;
    w += (size_t)blockIdx.z * rows * ldw;
    out += (size_t)blockIdx.z * in * ldo;
    for (int i = stripe; i < SQUARE; i += STRIPES) {
        int row = row0 + i, column = column0 + 2 * lane;
        uint32_t two = 0;
        if (row < rows && column < in) two = *(const uint32_t *)(const void *)(w + (size_t)row * ldw + column);
        square[i][2 * lane] = (cuda_bf16)two;
        square[i][2 * lane + 1] = (cuda_bf16)(two >> 16);
    }
    __syncthreads();
    for (int i = stripe; i < SQUARE; i += STRIPES) {
        int column = column0 + i, row = row0 + 2 * lane;
        if (column >= in || (size_t)row >= ldo) continue;
        *(uint32_t *)(void *)(out + (size_t)column * ldo + row) =
            square[2 * lane][i] | (uint32_t)square[2 * lane + 1][i] << 16;
    }
}

void cuda_split_turn(const cuda_launch *l, const cuda_bf16 *w, size_t ldw, int rows, int in, int matrices,
                     cuda_bf16 *out, size_t ldo) {
    dim3 grid((unsigned)((ldo + SQUARE - 1) / SQUARE), ceil_div(in, SQUARE), matrices);
    launch_kernel(l, turn_square_kernel, grid, dim3(TRAIN_THREADS), 0, w, ldw, rows, in, out, ldo);
}

enum { TILE_SIDE = 32, TILE_STRIPES = TRAIN_THREADS / TILE_SIDE, TILE_PAIRS = TILE_SIDE / 2 };

static __device__ __forceinline__ uint32_t pair_of(cuda_bf16 a, cuda_bf16 b) { return a | (uint32_t)b << 16; }

/* Rows and columns of a square, read along what lies side by side and written two at a time. */
static __global__ void pack_kernel(split_packed p, int padded_rows, int padded_k, int parts, int second,
                                   cuda_bf16 *out) {
    __shared__ float square[TILE_SIDE][TILE_SIDE + 1];
    int group = p.first + blockIdx.z, item = group / p.heads, head = group % p.heads / p.group * p.stack,
        row0 = blockIdx.x * TILE_SIDE, k0 = blockIdx.y * TILE_SIDE, lane = threadIdx.x % TILE_SIDE,
        stripe = threadIdx.x / TILE_SIDE;
    const float *of_item = p.x + item * p.item;
    for (int i = stripe; i < TILE_SIDE; i += TILE_STRIPES) {
        int row = row0 + (p.turned ? lane : i), k = k0 + (p.turned ? i : lane);
        bool inside = row < p.stack * p.rows && k < p.k;
        const float *x = of_item + (head + row / p.rows) * p.head;
        row %= p.rows;
        float v = inside ? x[p.turned ? (size_t)k * p.ld + row : (size_t)row * p.ld + k] : 0.0f;
        if (p.turned)
            square[lane][i] = v;
        else
            square[i][lane] = v;
    }
    __syncthreads();
    for (int i = threadIdx.x / TILE_PAIRS; i < TILE_SIDE; i += TRAIN_THREADS / TILE_PAIRS) {
        int row = row0 + i, at = threadIdx.x % TILE_PAIRS * 2, k = k0 + at;
        if (row >= padded_rows || k >= padded_k) continue;
        float v = square[i][at], w = square[i][at + 1];
        cuda_bf16 *first = out + ((size_t)blockIdx.z * padded_rows + row) * parts * padded_k + k;
        uint32_t *to = (uint32_t *)(void *)first, above = pair_of(upper(v), upper(w));
        int pairs = padded_k / 2;
        to[0] = above;
        if (parts == 1) continue;
        uint32_t below = pair_of(lower(v), lower(w));
        to[pairs] = second ? above : below;
        to[2 * pairs] = second ? below : above;
    }
}

void cuda_split_pack(const cuda_launch *l, const split_packed *p, int padded_rows, int padded_k, int parts, int second,
                     cuda_bf16 *out) {
    dim3 grid(ceil_div(padded_rows, TILE_SIDE), ceil_div(padded_k, TILE_SIDE), p->groups);
    launch_kernel(l, pack_kernel, grid, dim3(TRAIN_THREADS), 0, *p, padded_rows, padded_k, parts, second, out);
}

static __global__ void place_kernel(const float *from, size_t ldf, train_product p, int stack, int first) {
    int group = (first + blockIdx.y) * stack + blockIdx.x / p.m, item = group / p.heads, head = group % p.heads;
    const float *row = from + ((size_t)blockIdx.y * p.m * stack + blockIdx.x) * ldf;
    float *to = p.c + item * p.c_item + head * p.c_head + blockIdx.x % p.m * p.ldc;
    for (int i = threadIdx.x; i < p.n; i += TRAIN_THREADS) to[i] = p.add ? to[i] + row[i] : row[i];
}

void cuda_split_place(const cuda_launch *l, const float *from, size_t ldf, const train_product *p, int stack, int first,
                      int groups) {
    launch_kernel(l, place_kernel, dim3(p->m * stack, groups), dim3(TRAIN_THREADS), 0, from, ldf, *p, stack, first);
}
