/* Matrix products of few rows: y[r][o] = sum_k x[r][k] w[o][k], bound by reading w once.
 *
 * A warp computes 16 outputs with mma.m16n8k16: the weights are operand A, loaded from global memory straight into
 * registers, 16 bytes per thread; the rows of x are operand B. The instruction's k index is only a label, so thread t
 * of a quad takes 8 neighbouring k of a step of 32 and feeds them to two instructions; x is read by the same rule. The
 * steps of one output are dealt to `split` warps (a function of k alone), each in ascending order, and their sums are
 * added in the order of the warps. A column of an mma depends on no other column, so a row's result is the same bits
 * whatever rows are computed with it. More rows than a warp has accumulators for are cut into tiles of columns, which
 * are items of their own: neighbouring blocks read the same weights, which come from memory once and from L2 then.
 *
 * Blocks stay and take one item of work after the other (8 / split tiles of 16 outputs each). The weights of the next
 * item are requested while the current one is finished, and those of the first before the predecessor kernel has ended
 * (programmatic dependent launch): the memory is never idle while norms and other short kernels run. */
#include <float.h>
#include <math_constants.h>

#include "backend/cuda/product_items.cuh"
#include "backend/cuda/products_wide.h"

enum { STEP_BYTES = CUDA_K_STEP * 2 }; /* of a row of weights */

template <int COLUMNS, int DEPTH>
static __device__ __forceinline__ void request(uint4 (&a)[DEPTH][2], const warp_item<COLUMNS> &item) {
#pragma unroll
    for (int u = 0; u < DEPTH; u++) {
        int step = item.slice + u * item.split;
        if (step >= item.steps) break;
        a[u][0] = load_weights(item.wa + (size_t)step * STEP_BYTES);
        a[u][1] = load_weights(item.wb + (size_t)step * STEP_BYTES);
    }
}

/* WORK gives the items first, first + stride, ...: early(index): can be resolved before the predecessor has ended;
 * prepare(): once after that, items() afterwards; resolve(index, item); finish(index, sums). */
template <int COLUMNS, int DEPTH, class WORK>
static __device__ __forceinline__ void run_items(WORK &work, int first, int stride) {
    __shared__ partial_sums<COLUMNS> sums[2];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, index = first, parity = 0;
    warp_item<COLUMNS> item, next;
    uint4 a[DEPTH][2];
    bool early = work.early(index);
    if (early) {
        work.resolve(index, item);
        request<COLUMNS, DEPTH>(a, item);
    }
    wait_for_predecessor();
    work.prepare();
    int items = work.items();
    if (index >= items) return;
    if (!early) {
        work.resolve(index, item);
        request<COLUMNS, DEPTH>(a, item);
    }
    for (;;) {
        int next_index = index + stride;
        bool more = next_index < items;
        if (more)
            work.resolve(next_index, next);
        else
            release_successor();
        float acc[COLUMNS][4] = {};
        for (int base = item.slice;;) {
            int following = base + DEPTH * item.split;
            bool last = following >= item.steps;
            uint4 b[DEPTH][COLUMNS];
#pragma unroll
            for (int u = 0; u < DEPTH; u++) {
                int step = base + u * item.split;
                if (step >= item.steps) break;
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) b[u][c] = load_row(item.x[c], step);
            }
#pragma unroll
            for (int u = 0; u < DEPTH; u++) {
                if (base + u * item.split < item.steps) {
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) {
                        mma_bf16(acc[c], a[u][0].x, a[u][1].x, a[u][0].y, a[u][1].y, b[u][c].x, b[u][c].y);
                        mma_bf16(acc[c], a[u][0].z, a[u][1].z, a[u][0].w, a[u][1].w, b[u][c].z, b[u][c].w);
                    }
                }
                if (last && !more) continue;
                const char *wa = last ? next.wa : item.wa, *wb = last ? next.wb : item.wb;
                int step = last ? next.slice + u * next.split : following + u * item.split;
                if (step >= (last ? next.steps : item.steps)) continue;
                a[u][0] = load_weights(wa + (size_t)step * STEP_BYTES);
                a[u][1] = load_weights(wb + (size_t)step * STEP_BYTES);
            }
            if (last) break;
            base = following;
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
            for (int i = 0; i < 4; i++) sums[parity].value[warp][c * 4 + i][lane] = acc[c][i];
        }
        __syncthreads();
        work.finish(index, sums[parity]);
        if (!more) return;
        item = next;
        index = next_index;
        parity ^= 1; /* the next item's sums go elsewhere: one barrier an item is enough */
    }
}

/* Weights in bf16, [out][steps of k]. */
struct bf16_form {
    template <int COLUMNS> static constexpr int depth = COLUMNS == 1 ? 6 : COLUMNS == 2 ? 4 : 3;

    static __host__ __device__ __forceinline__ int split(int steps) { return product_split(steps); }
    static __device__ __forceinline__ const cuda_bf16 *advance(const cuda_bf16 *w, size_t rows, int steps) {
        return w + rows * steps * CUDA_K_STEP;
    }
    /* Rows o + g of the first half, second_o + g of the second. */
    template <int COLUMNS>
    static __device__ __forceinline__ void place(warp_item<COLUMNS> &item, const cuda_bf16 *first,
                                                 const cuda_bf16 *second, int o, int second_o, int outs, int steps) {
        int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        size_t ldw = (size_t)steps * STEP_BYTES;
        item.steps = steps;
        item.split = split(steps);
        item.slice = warp % item.split;
        item.wa = reinterpret_cast<const char *>(first) + (size_t)min(o + g, outs - 1) * ldw + 16 * t;
        item.wb = reinterpret_cast<const char *>(second) + (size_t)min(second_o + g, outs - 1) * ldw + 16 * t;
    }
    template <int COLUMNS, class WORK> static __device__ __forceinline__ void run(WORK &work, int first, int stride) {
        run_items<COLUMNS, depth<COLUMNS>>(work, first, stride);
    }
};

void cuda_products(const cuda_launch *l, const cuda_product *products, int n, int in, const cuda_bf16 *x, int ldx,
                   int rows, float cap) {
    if (!cuda_products_wide(l, products, n, in, x, ldx, rows, cap))
        run_products<bf16_form>(l, products, n, in, x, ldx, rows, cap);
}

void cuda_gate_up(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    if (!cuda_gate_up_wide(l, f, route, rows)) run_ffn<bf16_form, true>(l, f, route, rows);
}

void cuda_down(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    if (!cuda_experts_down_wide(l, f, route, rows)) {
        run_ffn<bf16_form, false>(l, f, route, rows);
        return;
    }
    if (!f->down.data) return;
    const cuda_product dense = {.w = f->down.data, .y = f->y, .out = f->down.out, .ldy = f->down.out};
    cuda_products(l, &dense, 1, f->down.ld, f->act, f->down.ld, rows, 0);
}

/* ------------------------------------------------------------------------------------------- the greedy choice
 * Behind the screen of head.cu: each block takes the outputs of its own tiles that some row may choose, sixteen at a
 * time, wherever they lie, and computes them for all rows. The steps and their order are those of the plain product, so
 * are the bits. */

/* What a row's largest logit must be at least for a logit to be equal or above it once both are capped, if the largest
 * is at least `lower`. The cap keeps the order, but rounding may make unequal logits equal: where tanh is flat
 * (beyond 3.9 its slope is below 1.7e-3), never when they are 1e-3 of the cap apart and the smaller one below 3.9:
 * those differ by 1.3e-6, rounding by 3e-7 of the cap. */
static __device__ __forceinline__ float least_chosen(float lower, float cap) {
    if (!(cap > 0)) return lower;
    if (lower < -4 * cap) return -CUDART_INF_F;
    return fminf(lower, 3.9f * cap) - 1e-3f * cap;
}

/* Ascends with the value and descends with the id: the largest is what argmax chooses. NaN is above all; 0: none. */
static __device__ __forceinline__ unsigned long long choice_key(float value, int id) {
    unsigned bits = __float_as_uint(value + 0.0f);
    unsigned ascending = value != value ? 0xffffffffu : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
    return (unsigned long long)ascending << 32 | ~(unsigned)id;
}

static __device__ __forceinline__ int32_t chosen_id(unsigned long long key) {
    const unsigned infinity = 0xff800000u; /* and NaN above it; negative infinity is its complement */
    unsigned ascending = (unsigned)(key >> 32);
    return ascending >= infinity || ascending <= ~infinity ? -1 : (int32_t) ~(unsigned)key;
}

template <int COLUMNS> struct choose_work {
    const cuda_matrix &w;
    const unsigned short *list; /* outputs, counted through this block's tiles */
    int count, steps;
    const cuda_bf16 *x;
    int rows;
    float cap;
    const float *upper;      /* of the screen */
    unsigned long long best; /* of the row of this lane, among what this warp has finished */

    __device__ __forceinline__ int per_item() const { return WARPS / bf16_form::split(steps); }
    __device__ __forceinline__ bool early(int) const { return false; }
    __device__ __forceinline__ void prepare() {}
    __device__ __forceinline__ int items() const { return (count + TILE * per_item() - 1) / (TILE * per_item()); }
    __device__ __forceinline__ int output_of(int at) const {
        int local = list[min(at, count - 1)];
        return (local / CUDA_HEAD_TILE * gridDim.x + blockIdx.x) * CUDA_HEAD_TILE + local % CUDA_HEAD_TILE;
    }
    /* An output that one row wants may be excluded in another. */
    __device__ __forceinline__ bool may_choose(int row, int output) const {
        size_t tile = (size_t)(output / CUDA_HEAD_TILE);
        return __ldcg(upper + (tile * rows + row) * CUDA_HEAD_TILE + output % CUDA_HEAD_TILE) > -CUDART_INF_F;
    }
    __device__ __forceinline__ void resolve(int index, warp_item<COLUMNS> &item) const {
        int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        int at = (index * per_item() + group_of_warp<bf16_form>(steps)) * TILE + g;
        item.steps = steps;
        item.split = bf16_form::split(steps);
        item.slice = warp % item.split;
        item.wa = reinterpret_cast<const char *>(w.data + (size_t)output_of(at) * w.ld + 8 * t);
        item.wb = reinterpret_cast<const char *>(w.data + (size_t)output_of(at + 8) * w.ld + 8 * t);
        place_rows(item, x, w.ld, 0, rows);
    }
    __device__ __forceinline__ void finish(int index, const partial_sums<COLUMNS> &sums) {
        int row = threadIdx.x & 31, reg = row / 8 * 4 + (row & 1), from = row % 8 / 2;
        if (row >= rows) return;
        for (int i = threadIdx.x >> 5; i < TILE * per_item(); i += WARPS) {
            int at = index * TILE * per_item() + i;
            if (at >= count) return;
            float y = collect(sums, i / TILE, bf16_form::split(steps), reg + (i & 8) / 4, (i & 7) * 4 + from);
            int output = output_of(at);
            if (may_choose(row, output)) best = max(best, choice_key(soft_cap(y, cap), output));
        }
    }
};

enum { BOUND_REQUESTS = 4 }; /* of four bounds each, by one thread */

/* This thread's next bounds of `all` quarters of this block's tiles; the last one again behind the end. */
static __device__ __forceinline__ void request_bounds(float4 (&bound)[BOUND_REQUESTS], const cuda_screen &screen,
                                                      int per_tile, int all, int base) {
#pragma unroll
    for (int v = 0; v < BOUND_REQUESTS; v++) {
        int i = min(base + v * THREADS, all - 1);
        size_t tile = (size_t)(i / per_tile) * gridDim.x + blockIdx.x;
        bound[v] = __ldcg(reinterpret_cast<const float4 *>(screen.upper) + tile * per_tile + i % per_tile);
    }
}

template <int COLUMNS>
static __global__ __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR) void choose_kernel(
    const __grid_constant__ cuda_matrix w, const __grid_constant__ cuda_screen screen, int screen_blocks,
    const cuda_bf16 *x, int rows, float cap, int32_t *choice) {
    extern __shared__ unsigned
        wanted[]; /* by tile of this block: its outputs that some row may choose; then the list */
    __shared__ float least[CUDA_DECODE_ROWS];
    __shared__ unsigned long long best_of[WARPS][32];
    __shared__ int count;
    __shared__ bool last;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, tiles = (w.out + CUDA_HEAD_TILE - 1) / CUDA_HEAD_TILE;
    int own = (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
    unsigned short *list = reinterpret_cast<unsigned short *>(wanted + own);
    for (int j = threadIdx.x; j < own; j += THREADS) wanted[j] = 0;
    if (threadIdx.x == 0) count = 0;
    wait_for_predecessor();
    int per_tile = rows * (CUDA_HEAD_TILE / 4), all = own * per_tile;
    float4 bound[BOUND_REQUESTS];
    request_bounds(bound, screen, per_tile, all, threadIdx.x);
    for (int row = warp; row < rows; row += WARPS) {
        float lower = -CUDART_INF_F;
        for (int b = lane; b < screen_blocks; b += 32)
            lower = fmaxf(lower, __ldcg(screen.lower + row * screen_blocks + b));
#pragma unroll
        for (int s = 16; s > 0; s >>= 1) lower = fmaxf(lower, __shfl_xor_sync(0xffffffffu, lower, s));
        if (lane == 0) least[row] = fmaxf(least_chosen(lower, cap), -FLT_MAX); /* what is excluded stays out */
    }
    __syncthreads();
    for (int base = threadIdx.x; base < all; base += BOUND_REQUESTS * THREADS) {
#pragma unroll
        for (int v = 0; v < BOUND_REQUESTS; v++) {
            int i = min(base + v * THREADS, all - 1), at = i % per_tile;
            float enough = least[at / 4];
            unsigned bits = (bound[v].x >= enough) | (bound[v].y >= enough) << 1 | (bound[v].z >= enough) << 2 |
                            (bound[v].w >= enough) << 3;
            if (bits) atomicOr(&wanted[i / per_tile], bits << at % 4 * 4);
        }
        int next = base + BOUND_REQUESTS * THREADS;
        if (next < all) request_bounds(bound, screen, per_tile, all, next);
    }
    __syncthreads();
    for (int j = threadIdx.x; j < own; j += THREADS) {
        unsigned bits = wanted[j];
        if (!bits) continue;
        int to = atomicAdd(&count, __popc(bits));
        for (; bits; bits &= bits - 1) list[to++] = (unsigned short)(j * CUDA_HEAD_TILE + __ffs(bits) - 1);
    }
    __syncthreads();
    choose_work<COLUMNS> work = {w, list, count, w.ld / CUDA_K_STEP, x, rows, cap, screen.upper, 0};
    bf16_form::run<COLUMNS>(work, 0, 1);
    best_of[warp][lane] = work.best;
    __syncthreads();
    if (warp == 0 && lane < rows && count) {
        unsigned long long best = work.best;
        for (int v = 1; v < WARPS; v++) best = max(best, best_of[v][lane]);
        atomicMax(screen.best + lane, best);
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(screen.finished, 1u) == gridDim.x - 1;
    __syncthreads();
    if (last && (int)threadIdx.x < rows) choice[threadIdx.x] = chosen_id(__ldcg(screen.best + threadIdx.x));
}

static int choose_shared_bytes(int multiprocessors, int out) {
    int tiles = ceil_div(out, CUDA_HEAD_TILE), own = ceil_div(tiles, multiprocessors * BLOCKS_PER_MULTIPROCESSOR);
    return own * (int)(sizeof(unsigned) + CUDA_HEAD_TILE * sizeof(unsigned short));
}

int cuda_can_choose(int multiprocessors, int out) {
    enum { MOST_SHARED_BYTES = 16 << 10 }; /* 48 KB that need not be asked for, less the partial sums */
    return choose_shared_bytes(multiprocessors, out) <= MOST_SHARED_BYTES;
}

void cuda_choose(const cuda_launch *l, const cuda_matrix *head, const cuda_screen *screen, int blocks,
                 const cuda_bf16 *x, int rows, float cap, int32_t *choice) {
    dim3 grid = resident_blocks(l, ceil_div(head->out, CUDA_HEAD_TILE)), threads(THREADS);
    size_t shared = (size_t)choose_shared_bytes(l->multiprocessors, head->out);
    if (rows <= 8)
        launch_kernel(l, choose_kernel<1>, grid, threads, shared, *head, *screen, blocks, x, rows, cap, choice);
    else if (rows <= 16)
        launch_kernel(l, choose_kernel<2>, grid, threads, shared, *head, *screen, blocks, x, rows, cap, choice);
    else
        launch_kernel(l, choose_kernel<3>, grid, threads, shared, *head, *screen, blocks, x, rows, cap, choice);
}

/* An mma adds 16 exact products to an accumulator. Tensor cores align all addends to the largest, cut each behind at
 * least 23 bits and normalise the sum, in one pass of 16 products or two of 8: at most 20 cuts, each below 2^-22 of the
 * largest addend, which is not above the sum of all |w_k x_k| of this warp (nor are the partial sums, but for a part in
 * a thousand). Sums over warps round once each. The sum of |w_k x_k| is at most |w| |x|. */
float cuda_product_error(int in) {
    const float cut = 0x1p-22f, of_one = 20 * cut;
    int steps = ceil_div(in, CUDA_K_STEP), split = bf16_form::split(steps), chain = 2 * ceil_div(steps, split);
    return ((float)chain * of_one + (float)split * cut) * 1.01f;
}
