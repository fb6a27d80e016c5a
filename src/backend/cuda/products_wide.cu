/* Products of many decode rows. An output of products.cu is the sum of up to eight chains of mma.m16n8k16: chain s has
 * the steps s, s + split, ... of k in ascending order, and chains are added in their order. Nothing else decides its
 * bits, so these kernels make the same sums with other neighbours:
 *
 *   dense    on sm_90a products_dense.cuh has them. Elsewhere, and where tiles of 128 rows would be too few, a block
 *            has 64 or 128 outputs of 64 rows, and goes through the chains one after the other. Rows and
 *            weights come through a ring of steps in shared memory, where all warps read them.
 *   experts  a warp has a chain of 64 outputs (gate and up: 32 of each) of up to 32 rows of one expert, as a warp of
 *            products.cu has it for 16 outputs. Each warp has a ring of its own; the chains meet in shared memory.
 *
 * A step of a row is 64 bytes, in shared memory as in memory: a quarter of a warp reads two neighbouring rows, 128
 * bytes without a conflict, and thread t of a quad has the 8 neighbouring k of products.cu. Bound: one read of the
 * weights. */
#include "backend/cuda/products_wide.h"

#include "backend/cuda/products_dense.cuh"
#include "backend/cuda/products_wide.cuh"

enum {
    STEP_BYTES = CUDA_K_STEP * 2, /* of a row */
    CHUNKS = STEP_BYTES / CHUNK,
    WIDE_LEAST_ROWS = 33, /* below, products.cu reads weights once as well */
    FFN_LEAST_ROWS = 129,
};

/* This lane's part of row `row` of a step in shared memory. */
static __device__ __forceinline__ uint4 read_row(const unsigned char *step, int row) {
    int lane = threadIdx.x & 31;
    return *reinterpret_cast<const uint4 *>(step + (size_t)(row + (lane >> 2)) * STEP_BYTES + (lane & 3) * CHUNK);
}

/* Two instructions: k of a step of 32. */
static __device__ __forceinline__ void multiply_step(float (&acc)[4], const uint4 &a, const uint4 &b, const uint4 &x) {
    mma_bf16(acc, a.x, b.x, a.y, b.y, x.x, x.y);
    mma_bf16(acc, a.z, b.z, a.w, b.w, x.z, x.w);
}

/* A place in the order in which the steps of k are added. */
struct chain_step {
    int chain, step;
};

static __device__ __forceinline__ void next_step(chain_step &s, int steps, int split) {
    s.step += split;
    if (s.step >= steps) s.step = ++s.chain;
}

/* --------------------------------------------------------------------------------------------------------- dense */

enum { DENSE_ROWS = 64, DENSE_STAGES = 8, ROW_THREADS = THREADS / CHUNKS /* rows that all threads request at once */ };
static_assert(ROW_THREADS == DENSE_ROWS, "a thread requests a chunk of x");

template <int M> struct dense_tile {
    static constexpr int WARP_OUTS = M / 4, WARP_ROWS = DENSE_ROWS / 2; /* four warps by two */
    static constexpr int TILES = WARP_OUTS / 16, COLUMNS = WARP_ROWS / 8;
    static constexpr int STAGE_BYTES = (M + DENSE_ROWS) * STEP_BYTES, BYTES = DENSE_STAGES * STAGE_BYTES;
};

template <int M, bool GATED>
static __global__ __launch_bounds__(THREADS, 2) void dense_kernel(const __grid_constant__ dense_work w) {
    typedef dense_tile<M> T;
    extern __shared__ __align__(128) unsigned char ring[];
    int tile = blockIdx.x / w.column_tiles, first = blockIdx.x % w.column_tiles * DENSE_ROWS, p = 0;
    int steps = w.steps, split = product_split(steps);
    while (!GATED && p + 1 < w.list.n && tile >= w.list.first_tile[p + 1]) p++;
    int o = GATED ? tile * (M / 2) : (tile - w.list.first_tile[p]) * M, outs = GATED ? w.outs : w.list.product[p].out;
    int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    size_t ldw = (size_t)steps * STEP_BYTES;
    const char *weights[M / ROW_THREADS];
#pragma unroll
    for (int i = 0; i < M / ROW_THREADS; i++) {
        int r = row + i * ROW_THREADS, output = GATED ? o + r / 16 * 8 + r % 8 : o + r;
        const cuda_bf16 *of = !GATED ? w.list.product[p].w : r % 16 < 8 ? w.gate : w.up;
        weights[i] = reinterpret_cast<const char *>(of) + (size_t)min(output, outs - 1) * ldw + chunk * CHUNK;
    }
    bool there = first + row < w.rows;
    const char *x = reinterpret_cast<const char *>(w.x + (size_t)(there ? first + row : 0) * w.ldx) + chunk * CHUNK;
    unsigned char *own = ring + row * STEP_BYTES + chunk * CHUNK;
    auto request_weights = [&](int stage, int step) {
#pragma unroll
        for (int i = 0; i < M / ROW_THREADS; i++)
            request_chunk(own + stage * T::STAGE_BYTES + i * ROW_THREADS * STEP_BYTES,
                          weights[i] + (size_t)step * STEP_BYTES, true);
    };
    auto request_x = [&](int stage, int step) {
        request_chunk(own + stage * T::STAGE_BYTES + M * STEP_BYTES, x + (size_t)step * STEP_BYTES, there);
    };
    chain_step ahead = {0, 0};
    int requested = 0;
    for (; requested < DENSE_STAGES - 1 && requested < steps; requested++) {
        request_weights(requested, ahead.step);
        next_step(ahead, steps, split);
    }
    wait_for_predecessor();
    chain_step begin = {0, 0};
    for (int i = 0; i < DENSE_STAGES - 1; i++) {
        if (i < requested) {
            request_x(i, begin.step);
            next_step(begin, steps, split);
        }
        close_group();
    }
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warp_out = warp % 4 * T::WARP_OUTS,
        warp_row = warp / 4 * T::WARP_ROWS;
    float acc[T::TILES][T::COLUMNS][4] = {}, sum[T::TILES][T::COLUMNS][4] = {};
    chain_step now = {0, 0};
    for (int i = 0, stage = 0, fill = DENSE_STAGES - 1; i < steps; i++) {
        wait_groups<DENSE_STAGES - 2>();
        __syncthreads();
        if (requested < steps) {
            request_weights(fill, ahead.step);
            request_x(fill, ahead.step);
            next_step(ahead, steps, split);
            requested++;
        }
        close_group();
        const unsigned char *at = ring + stage * T::STAGE_BYTES;
        uint4 b[T::COLUMNS];
#pragma unroll
        for (int c = 0; c < T::COLUMNS; c++) b[c] = read_row(at + M * STEP_BYTES, warp_row + c * 8);
#pragma unroll
        for (int t = 0; t < T::TILES; t++) {
            uint4 low = read_row(at, warp_out + t * 16), high = read_row(at, warp_out + t * 16 + 8);
#pragma unroll
            for (int c = 0; c < T::COLUMNS; c++) multiply_step(acc[t][c], low, high, b[c]);
        }
        int chain = now.chain;
        next_step(now, steps, split);
        if (now.chain != chain) { /* it is whole */
#pragma unroll
            for (int t = 0; t < T::TILES; t++) {
#pragma unroll
                for (int c = 0; c < T::COLUMNS; c++) {
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        sum[t][c][k] += acc[t][c][k];
                        acc[t][c][k] = 0;
                    }
                }
            }
        }
        if (++stage == DENSE_STAGES) stage = 0;
        if (++fill == DENSE_STAGES) fill = 0;
    }
    release_successor();
#pragma unroll
    for (int t = 0; t < T::TILES; t++) {
#pragma unroll
        for (int c = 0; c < T::COLUMNS; c++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int r = first + warp_row + c * 8 + (lane & 3) * 2 + (k & 1);
                if (r >= w.rows || (GATED && k >= 2)) continue;
                if constexpr (GATED) {
                    int output = o + (warp_out + t * 16) / 2 + (lane >> 2);
                    float gate = sum[t][c][k], up = sum[t][c][k + 2 < 4 ? k + 2 : k];
                    if (output < outs)
                        store_bf16(w.act + (size_t)r * w.ld_act + output, (w.silu ? silu(gate) : gelu_tanh(gate)) * up);
                } else {
                    const cuda_product &to = w.list.product[p];
                    int output = o + warp_out + t * 16 + (lane >> 2) + (k & 2) * 4;
                    if (output < outs) to.y[(size_t)r * to.ldy + output] = soft_cap(sum[t][c][k], w.cap);
                }
            }
        }
    }
}

static bool serves(const cuda_launch *l, int least, int rows) {
    return rows >= least && l->block_bytes >= WIDE_LEAST_BLOCK_BYTES;
}

template <int M, bool GATED> static void launch_dense(const cuda_launch *l, const dense_work &w, int tiles) {
    launch_kernel(l, dense_kernel<M, GATED>, dim3(tiles * w.column_tiles), dim3(THREADS), (size_t)dense_tile<M>::BYTES,
                  w);
}

/* Whether this device has code for sm_90a. */
template <bool GATED, int CLUSTER> static bool has_wgmma(void) {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, dense_wgmma_kernel<GATED, CLUSTER>) == cudaSuccess)
        return attributes.maxThreadsPerBlock >= dense::BLOCK;
    cudaGetLastError();
    return false;
}

template <bool GATED, int CLUSTER> static bool launch_wgmma(const cuda_launch *l, const dense_work &w, int tiles) {
    if (l->block_bytes < dense::BYTES || !has_wgmma<GATED, CLUSTER>()) return false;
    dim3 grid(tiles * w.column_tiles * CLUSTER), block(dense::BLOCK);
    if (CLUSTER == 1)
        launch_kernel(l, dense_wgmma_kernel<GATED, CLUSTER>, grid, block, (size_t)dense::BYTES, w);
    else
        launch_cluster(l, CLUSTER, dense_wgmma_kernel<GATED, CLUSTER>, grid, block, (size_t)dense::BYTES, w);
    return true;
}

/* Where chains are dealt to a cluster, a wave of blocks takes the stages of a pair, and as long as some more until the
 * chains have met. Clusters find no room on some multiprocessors. Measured on an H200 (quant_kernels dense). */
enum {
    CLUSTER_STAGES = 6, /* more */
    CLUSTER_ROOM = 93,  /* % of the multiprocessors */
    SHORT_PAIR = 8,     /* stages: of two such waves nothing is gained */
    FULL_TILE_ROWS = 64 /* up to here the other kernel has one tile of rows as well */
};

/* On the warpgroup instructions. False: this device is not served, or others are faster. */
static bool products_wgmma(const cuda_launch *l, dense_work w, const cuda_product *products) {
    int split = product_split(w.steps), pairs = split / 2, stages = w.steps / 2;
    if (pairs < 1) return false;
    w.column_tiles = ceil_div(w.rows, dense::ROWS);
    for (int i = 0; i < w.list.n; i++) {
        w.list.product[i] = products[i];
        w.list.first_tile[i + 1] = w.list.first_tile[i] + ceil_div(products[i].out, dense::OUTS);
    }
    int tiles = w.list.first_tile[w.list.n], blocks = tiles * w.column_tiles,
        room = l->multiprocessors * CLUSTER_ROOM / 100;
    int waves = ceil_div(blocks * pairs, room > 0 ? room : 1), pair = stages / pairs;
    if (pairs == 1 || waves * (pair + CLUSTER_STAGES) >= ceil_div(blocks, l->multiprocessors) * stages) {
        if (w.rows > FULL_TILE_ROWS && blocks * 2 <= l->multiprocessors) return false; /* half of them would idle */
        return launch_wgmma<false, 1>(l, w, tiles);
    }
    if (waves > 1 && pair <= SHORT_PAIR) return false;
    return pairs == 4 ? launch_wgmma<false, 4>(l, w, tiles) : launch_wgmma<false, 2>(l, w, tiles);
}

bool cuda_products_wide(const cuda_launch *l, const cuda_product *products, int n, int in, const cuda_bf16 *x, int ldx,
                        int rows, float cap) {
    if (!serves(l, WIDE_LEAST_ROWS, rows)) return false;
    dense_work w = {};
    w.x = x;
    w.steps = ceil_div(in, CUDA_K_STEP);
    w.ldx = ldx;
    w.rows = rows;
    w.cap = cap;
    w.list.n = n;
    if (products_wgmma(l, w, products)) return true;
    w.column_tiles = ceil_div(rows, DENSE_ROWS);
    int outs = 0;
    for (int i = 0; i < n; i++) outs += products[i].out;
    int tile = outs * w.column_tiles <= 64 * 2 * l->multiprocessors ? 64 : 128; /* one wave of small ones */
    for (int i = 0; i < n; i++) {
        w.list.product[i] = products[i];
        w.list.first_tile[i + 1] = w.list.first_tile[i] + ceil_div(products[i].out, tile);
    }
    if (w.list.first_tile[n] * w.column_tiles < l->multiprocessors) return false; /* too few blocks */
    if (tile == 64)
        launch_dense<64, false>(l, w, w.list.first_tile[n]);
    else
        launch_dense<128, false>(l, w, w.list.first_tile[n]);
    return true;
}

/* ------------------------------------------------------------------------------------------------------- experts */

enum {
    EXPERT_STAGES = 2,
    EXPERT_STAGE_BYTES = (WIDE_OUTS + WIDE_ROWS) * STEP_BYTES,
    EXPERT_BYTES = WARPS * EXPERT_STAGES * EXPERT_STAGE_BYTES,
};
static_assert(EXPERT_BYTES >= WARPS * WIDE_SUMS * 32 * (int)sizeof(float), "the chains meet in the ring's place");

/* grid: tiles of an expert, experts. */
template <bool GATE_UP>
static __global__ __launch_bounds__(THREADS, 2) void expert_kernel(const __grid_constant__ cuda_feed_forward f,
                                                                   const __grid_constant__ cuda_route route) {
    extern __shared__ __align__(128) unsigned char ring[];
    const int TILES = WIDE_TILES, COLUMNS = WIDE_COLUMNS, OUTS = GATE_UP ? WIDE_OUTS / 2 : WIDE_OUTS;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, expert = blockIdx.y;
    int steps = (GATE_UP ? f.ldx : f.experts_down.ld) / CUDA_K_STEP, split = product_split(steps);
    int groups = WARPS / split, chain = warp % split;
    int outs = GATE_UP ? f.expert_intermediate : f.down.out, ldx = GATE_UP ? f.ldx : f.experts_down.ld;
    int o = (blockIdx.x * groups + warp / split) * OUTS;
    size_t ldw = (size_t)steps * STEP_BYTES;
    const char *matrix = reinterpret_cast<const char *>(GATE_UP ? f.experts_gate_up.data : f.experts_down.data) +
                         (size_t)expert * (GATE_UP ? 2 : 1) * outs * ldw + (lane & 3) * CHUNK;
    const char *all_x = reinterpret_cast<const char *>(GATE_UP ? f.x_experts : f.act_experts) + (lane & 3) * CHUNK;
    unsigned char *own = ring + warp * EXPERT_STAGES * EXPERT_STAGE_BYTES,
                  *to = own + g * STEP_BYTES + (lane & 3) * CHUNK;
    /* Row 8 i + g of the tile: of gate and up in turns. */
    uint32_t weights[WIDE_OUTS / 8]; /* bytes behind the matrix */
#pragma unroll
    for (int i = 0; i < WIDE_OUTS / 8; i++) {
        int output = min(GATE_UP ? o + i / 2 * 8 + g : o + i * 8 + g, outs - 1);
        weights[i] = (uint32_t)(((size_t)output + (GATE_UP && i % 2 ? outs : 0)) * ldw);
    }
    auto request_weights = [&](int stage, int step) {
        if (step >= steps) return;
#pragma unroll
        for (int i = 0; i < WIDE_OUTS / 8; i++)
            request_weights_chunk(to + stage * EXPERT_STAGE_BYTES + i * 8 * STEP_BYTES,
                                  matrix + (weights[i] + (uint32_t)(step * STEP_BYTES)));
    };
    for (int s = 0; s < EXPERT_STAGES; s++) request_weights(s, chain + s * split); /* nearly all experts have rows */
    wait_for_predecessor();
    int begin = __ldcg(route.begin + expert), end = __ldcg(route.begin + expert + 1);
    if (begin == end) wait_all(); /* nothing may arrive after the block has ended */
    for (int first = begin; first < end; first += WIDE_ROWS) {
        int n = min(end - first, (int)WIDE_ROWS);
        uint32_t x[COLUMNS]; /* bytes behind all_x */
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            int slot = first + min(c * 8 + g, n - 1);
            x[c] = (uint32_t)((GATE_UP ? __ldcg(route.slot_row + slot) : slot) * ldx) * (uint32_t)sizeof(cuda_bf16);
        }
        auto request_x = [&](int stage, int step) {
            if (step < steps) {
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    if (c * 8 >= n) break;
                    request_chunk(to + stage * EXPERT_STAGE_BYTES + (WIDE_OUTS + c * 8) * STEP_BYTES,
                                  all_x + (x[c] + (uint32_t)(step * STEP_BYTES)), c * 8 + g < n);
                }
            }
            close_group();
        };
        float acc[TILES][COLUMNS][4] = {};
        for (int s = 0; s < EXPERT_STAGES; s++) {
            if (first > begin) request_weights(s, chain + s * split);
            request_x(s, chain + s * split);
        }
        for (int step = chain, stage = 0; step < steps; step += split) {
            wait_groups<EXPERT_STAGES - 1>();
            __syncwarp();
            const unsigned char *at = own + stage * EXPERT_STAGE_BYTES;
            uint4 b[COLUMNS];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                if (c * 8 >= n) break;
                b[c] = read_row(at, WIDE_OUTS + c * 8);
            }
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                uint4 low = read_row(at, t * 16), high = read_row(at, t * 16 + 8);
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    if (c * 8 >= n) break;
                    multiply_step(acc[t][c], low, high, b[c]);
                }
            }
            __syncwarp();
            request_weights(stage, step + EXPERT_STAGES * split);
            request_x(stage, step + EXPERT_STAGES * split);
            stage ^= 1;
        }
        wait_groups<0>();
        if (first + WIDE_ROWS >= end) release_successor();
        __syncthreads(); /* all rings have been read */
        float *sums = reinterpret_cast<float *>(ring);
        put_sums(sums, acc, n);
        __syncthreads();
        collect_sums<GATE_UP>(sums, split, n, [&](int row, int at, float y, float up) {
            int output = blockIdx.x * groups * OUTS + at;
            if (output >= outs) return;
            if constexpr (GATE_UP)
                store_bf16(f.act_experts + (size_t)(first + row) * f.experts_down.ld + output,
                           (f.silu ? silu(y) : gelu_tanh(y)) * up);
            else
                f.y_experts[(size_t)(first + row) * outs + output] = y;
        });
        __syncthreads(); /* the ring is filled again */
    }
}

template <bool GATE_UP> static dim3 expert_blocks(const cuda_feed_forward *f, const cuda_route *route) {
    int steps = (GATE_UP ? f->ldx : f->experts_down.ld) / CUDA_K_STEP, groups = WARPS / product_split(steps);
    int outs = GATE_UP ? f->expert_intermediate : f->down.out, each = (GATE_UP ? WIDE_OUTS / 2 : WIDE_OUTS) * groups;
    return dim3(ceil_div(outs, each), route->experts);
}

template <bool GATE_UP>
static void launch_experts(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route) {
    launch_kernel(l, expert_kernel<GATE_UP>, expert_blocks<GATE_UP>(f, route), dim3(THREADS), (size_t)EXPERT_BYTES, *f,
                  *route);
}

/* A block goes through all rows of its expert, so few blocks take longer than products.cu, where rows are items as
 * well. Offsets in one expert's matrix are 32 bits. */
template <bool GATE_UP>
static bool serves_experts(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route) {
    if (!f->experts_gate_up.data) return true;
    dim3 blocks = expert_blocks<GATE_UP>(f, route);
    size_t values = GATE_UP ? (size_t)2 * f->expert_intermediate * f->ldx : (size_t)f->down.out * f->experts_down.ld;
    return (int)(blocks.x * blocks.y) >= l->multiprocessors && values < (size_t)1 << 30;
}

bool cuda_gate_up_wide(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    if (!serves(l, FFN_LEAST_ROWS, rows) || !serves_experts<true>(l, f, route)) return false;
    if (f->gate.data) {
        dense_work w = {};
        w.x = f->x_dense;
        w.steps = f->gate.ld / CUDA_K_STEP;
        w.ldx = f->ldx;
        w.rows = rows;
        w.column_tiles = ceil_div(rows, DENSE_ROWS);
        w.gate = f->gate.data;
        w.up = f->up.data;
        w.act = f->act;
        w.outs = f->gate.out;
        w.ld_act = f->down.ld;
        w.silu = f->silu;
        int tiles = ceil_div(w.outs, 64);
        dense_work wide = w;
        wide.column_tiles = ceil_div(rows, dense::ROWS);
        if (product_split(w.steps) < 2 || !launch_wgmma<true, 1>(l, wide, tiles)) launch_dense<128, true>(l, w, tiles);
    }
    if (f->experts_gate_up.data) launch_experts<true>(l, f, route);
    return true;
}

bool cuda_experts_down_wide(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    if (!serves(l, FFN_LEAST_ROWS, rows) || !serves_experts<false>(l, f, route)) return false;
    if (f->experts_down.data) launch_experts<false>(l, f, route);
    return true;
}

template <typename KERNEL> static cudaError_t allow(KERNEL kernel, int bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

cudaError_t cuda_products_wide_prepare(void) {
    int device = 0, most = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess) status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status != cudaSuccess || most < WIDE_LEAST_BLOCK_BYTES) return status; /* then they are never launched */
    status = allow(dense_kernel<64, false>, dense_tile<64>::BYTES);
    if (status == cudaSuccess) status = allow(dense_kernel<128, false>, dense_tile<128>::BYTES);
    if (status == cudaSuccess) status = allow(dense_kernel<128, true>, dense_tile<128>::BYTES);
    if (most >= dense::BYTES) {
        if (status == cudaSuccess) status = allow(dense_wgmma_kernel<false, 1>, dense::BYTES);
        if (status == cudaSuccess) status = allow(dense_wgmma_kernel<false, 2>, dense::BYTES);
        if (status == cudaSuccess) status = allow(dense_wgmma_kernel<false, 4>, dense::BYTES);
        if (status == cudaSuccess) status = allow(dense_wgmma_kernel<true, 1>, dense::BYTES);
    }
    if (status == cudaSuccess) status = allow(expert_kernel<true>, EXPERT_BYTES);
    return status == cudaSuccess ? allow(expert_kernel<false>, EXPERT_BYTES) : status;
}
