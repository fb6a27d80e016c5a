/* Dense products of many decode rows on the warpgroup instructions of Hopper (sm_90a): 128 outputs of 128 rows a block,
 * on the bits of products.cu, because a step of wgmma sums its 16 products as one of mma.sync does.
 *
 * Four warps request, two groups of four multiply, with 64 outputs each. (A fence before wgmma waits for all requests
 * of its own thread.) Weights are the left operand, in registers: a lane's 16 bytes of a row hold what both
 * instructions of a step take from it. Rows of x are the right operand, in shared memory: word j of chunk t of a step
 * becomes word t of chunk j, which puts the k of an instruction beside each other. Requests of four bytes do that on
 * the way.
 *
 * Two neighbouring chains are computed at a time: 128 bytes of a row. Where tiles are few, each block of a cluster has
 * one such pair, and the chains meet in shared memory, in their order. */
#ifndef KAKEYA_BACKEND_CUDA_PRODUCTS_DENSE_CUH
#define KAKEYA_BACKEND_CUDA_PRODUCTS_DENSE_CUH

#include "backend/cuda/cluster.cuh"
#include "backend/cuda/product_items.cuh"
#include "backend/cuda/product_split.h"
#include "backend/cuda/prompt_bulk.cuh"
#include "backend/cuda/prompt_wgmma.cuh"

/* What becomes of the sums. gate NULL: outputs of a list of products; else act(gate x) * (up x) in bf16. */
struct dense_work {
    product_list list; /* tiles of M outputs; of gate and up: of M / 2 */
    const cuda_bf16 *x;
    int steps, ldx, rows, column_tiles;
    float cap;
    const cuda_bf16 *gate, *up;
    cuda_bf16 *act;
    int outs, ld_act, silu;
};

namespace dense {

constexpr int OUTS = 128, ROWS = 128, GROUP = 128, STAGES = 7, SUMS = 64; /* accumulators of a chain */
constexpr int MULTIPLY = 2 * GROUP, BLOCK = MULTIPLY + GROUP;             /* threads; those that request come last */
constexpr int MULTIPLY_REGISTERS = 232, REQUEST_REGISTERS = 40;
constexpr int LANE_BYTES = 16;           /* of a step of a row */
constexpr int K_BYTES = CUDA_K_STEP * 2; /* of a row: a step */
constexpr int WEIGHT_BYTES = OUTS * 2 * K_BYTES;
/* A chunk of all rows, and the four of a step: what one request of a warp writes lies in 32 banks. */
constexpr int CHUNK_BYTES = ROWS * LANE_BYTES + 32, ROWS_BYTES = 4 * CHUNK_BYTES + 16;
constexpr int STAGE_BYTES = WEIGHT_BYTES + (2 * ROWS_BYTES + 127) / 128 * 128, RING_BYTES = STAGES * STAGE_BYTES;
constexpr int BYTES = RING_BYTES + 128; /* full and empty barriers of the stages */
static_assert(RING_BYTES >= 2 * SUMS * MULTIPLY * (int)sizeof(float), "chains of a cluster meet in the ring's place");
static_assert(BYTES <= 227 << 10, "what a block may have on Hopper");

#if PROMPT_WGMMA
#define DENSE_BOUNDS __launch_bounds__(dense::BLOCK, 1)

__device__ __forceinline__ void request_weights(uint32_t to, const char *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void request_word(uint32_t to, const char *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ uint4 read_weights(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
/* Two neighbouring chunks of all rows, without a swizzle: groups of eight rows are 128 bytes apart. */
__device__ __forceinline__ uint64_t rows_descriptor(uint32_t address) {
    return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(CHUNK_BYTES >> 4) << 16 |
           static_cast<uint64_t>(8 * LANE_BYTES >> 4) << 32;
}
/* A step of 32 k: the two instructions of products.cu. */
__device__ __forceinline__ void multiply_step(float (&acc)[SUMS], const uint4 &low, const uint4 &high, uint32_t rows,
                                              int accumulate) {
    const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
    prompt::warpgroup_multiply(acc, first, rows_descriptor(rows), accumulate);
    prompt::warpgroup_multiply(acc, second, rows_descriptor(rows + 2 * CHUNK_BYTES), 1);
}
#else
#define DENSE_BOUNDS __launch_bounds__(32, 1) /* tells the host that there is no body */
#endif

/* A place in the ring. */
struct place {
    int stage, parity;
    __device__ __forceinline__ void follow() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

} // namespace dense

/* CLUSTER > 1: a block has pair `blockIdx.x % CLUSTER` of the chains alone, else all pairs. */
template <bool GATED, int CLUSTER>
static __global__ void DENSE_BOUNDS dense_wgmma_kernel(const __grid_constant__ dense_work w) {
#if PROMPT_WGMMA
    using namespace dense;
    extern __shared__ __align__(128) unsigned char ring[];
    int rank = blockIdx.x % CLUSTER, block = blockIdx.x / CLUSTER;
    int tile = block / w.column_tiles, first = block % w.column_tiles * ROWS, p = 0;
    int steps = w.steps, split = product_split(steps), pair_end = CLUSTER > 1 ? rank + 1 : split / 2;
    while (!GATED && p + 1 < w.list.n && tile >= w.list.first_tile[p + 1]) p++;
    int o = GATED ? tile * (OUTS / 2) : (tile - w.list.first_tile[p]) * OUTS;
    int outs = GATED ? w.outs : w.list.product[p].out;
    int thread = threadIdx.x % GROUP, warp = thread >> 5, lane = threadIdx.x & 31;
    uint32_t memory = prompt::shared_address(ring), full = memory + RING_BYTES, empty = full + STAGES * 8;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            prompt::barrier_init(full + i * 8, GROUP);
            prompt::barrier_init(empty + i * 8, MULTIPLY / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= MULTIPLY) {
        prompt::leave_registers<REQUEST_REGISTERS>();
        size_t ldw = (size_t)steps * K_BYTES;
        const char *weights[4]; /* lower and upper rows of both groups */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = i / 2 * 4 + warp, output = o + row * (GATED ? 8 : 16) + (lane >> 2) + (GATED ? 0 : i % 2 * 8);
            const cuda_bf16 *of = !GATED ? w.list.product[p].w : i % 2 ? w.up : w.gate;
            weights[i] =
                reinterpret_cast<const char *>(of) + (size_t)min(output, outs - 1) * ldw + (lane & 3) * LANE_BYTES;
        }
        auto bring_weights = [&](int stage, int step) {
            uint32_t to = memory + stage * STAGE_BYTES + thread * LANE_BYTES;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const char *from = weights[i] + (size_t)step * K_BYTES;
                uint32_t at = to + (i % 2 * MULTIPLY + i / 2 * GROUP) * LANE_BYTES;
                request_weights(at, from);
                if (step + 1 < steps) request_weights(at + 2 * MULTIPLY * LANE_BYTES, from + K_BYTES);
            }
        };
        /* A warp has every fourth row, a lane a word of both steps. */
        int row_bytes = w.ldx * 2, rows = min(w.rows - first, ROWS), more = 4 * row_bytes;
        const char *x = reinterpret_cast<const char *>(w.x) + (size_t)(first + warp) * row_bytes + lane * 4;
        uint32_t word = memory + WEIGHT_BYTES + (lane >> 4) * ROWS_BYTES + (lane & 3) * CHUNK_BYTES +
                        (lane >> 2 & 3) * 4 + warp * LANE_BYTES;
        auto bring_rows = [&](int stage, int step) {
            if (step + (lane >> 4) < steps) {
                uint32_t to = word + stage * STAGE_BYTES;
                const char *from = x + (size_t)step * K_BYTES;
#pragma unroll 8
                for (int row = warp; row < rows; row += 4) { /* sums of others are not stored */
                    request_word(to, from);
                    to += 4 * LANE_BYTES;
                    from += more;
                }
            }
            asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full + stage * 8) : "memory");
        };
        int requested = 0; /* stages whose weights came before the predecessor had ended */
        for (int pair = rank; pair < pair_end && requested < STAGES; pair++)
            for (int step = pair * 2; step < steps && requested < STAGES; step += split)
                bring_weights(requested++, step);
        wait_for_predecessor();
        place to = {0, 1};
        for (int pair = rank; pair < pair_end; pair++) {
            for (int step = pair * 2; step < steps; step += split) {
                if (requested > 0) {
                    requested--;
                } else {
                    prompt::barrier_wait(empty + to.stage * 8, to.parity);
                    bring_weights(to.stage, step);
                }
                bring_rows(to.stage, step);
                to.follow();
            }
        }
        asm volatile("cp.async.wait_all;" ::: "memory"); /* nothing may arrive after the warp has ended */
        release_successor();
        if (CLUSTER > 1) {
            cluster_arrive();
            cluster_wait();
            cluster_arrive();
            cluster_wait();
        }
        return;
    }
    prompt::take_registers<MULTIPLY_REGISTERS>();
    float acc[2][SUMS], sum[CLUSTER > 1 ? 1 : SUMS];
#pragma unroll
    for (int i = 0; i < (CLUSTER > 1 ? 1 : SUMS); i++) sum[i] = 0;
    place at = {0, 0};
    int read = -1; /* the stage that may still be read */
    for (int pair = rank; pair < pair_end; pair++) {
        for (int step = pair * 2; step < steps; step += split) {
            prompt::barrier_wait(full + at.stage * 8, at.parity);
            prompt::warpgroup_publish();
            prompt::warpgroup_wait<0>();
            if (read >= 0 && lane == 0) prompt::barrier_arrive(empty + read * 8);
            uint32_t stage = memory + at.stage * STAGE_BYTES, own = stage + threadIdx.x * LANE_BYTES;
            uint4 a[4];
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = read_weights(own + i * MULTIPLY * LANE_BYTES);
            int accumulate = step >= split;
            prompt::warpgroup_hold(acc[0]);
            prompt::warpgroup_hold(acc[1]);
            prompt::warpgroup_begin();
            dense::multiply_step(acc[0], a[0], a[1], stage + WEIGHT_BYTES, accumulate);
            if (step + 1 < steps)
                dense::multiply_step(acc[1], a[2], a[3], stage + WEIGHT_BYTES + ROWS_BYTES, accumulate);
            prompt::warpgroup_commit();
            read = at.stage;
            at.follow();
        }
        prompt::warpgroup_wait<0>();
        prompt::warpgroup_hold(acc[0]);
        prompt::warpgroup_hold(acc[1]);
        if constexpr (CLUSTER == 1) {
#pragma unroll
            for (int i = 0; i < SUMS; i++) {
                sum[i] += acc[0][i];
                sum[i] += acc[1][i];
            }
        }
    }
    release_successor();
    int output = o + (threadIdx.x >> 5) * (GATED ? 8 : 16) + (lane >> 2);
    auto store = [&](int i, float value, float up) {
        int r = first + i / 4 * 8 + (lane & 3) * 2 + (i & 1), to = output + (GATED ? 0 : (i & 2) * 4);
        if (r >= w.rows || to >= outs) return;
        if constexpr (GATED) {
            store_bf16(w.act + (size_t)r * w.ld_act + to, (w.silu ? silu(value) : gelu_tanh(value)) * up);
        } else {
            const cuda_product &product = w.list.product[p];
            product.y[(size_t)r * product.ldy + to] = soft_cap(value, w.cap);
        }
    };
    if constexpr (CLUSTER == 1) {
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            if (!GATED || !(i & 2)) store(i, sum[i], GATED ? sum[i | 2] : 0);
        }
    } else {
        float *sums = reinterpret_cast<float *>(ring) + threadIdx.x;
        asm volatile("bar.sync 1, %0;" ::"n"(MULTIPLY) : "memory"); /* both groups have read the ring */
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            sums[i * MULTIPLY] = acc[0][i];
            sums[(SUMS + i) * MULTIPLY] = acc[1][i];
        }
        cluster_arrive();
        cluster_wait();
        uint32_t of[CLUSTER];
#pragma unroll
        for (int c = 0; c < CLUSTER; c++) of[c] = shared_of_block(sums, c);
#pragma unroll
        for (int n = 0; n < SUMS / CLUSTER; n++) {
            int i = n * CLUSTER + rank;
            float value = 0;
#pragma unroll
            for (int chain = 0; chain < 2 * CLUSTER; chain++)
                value += load_from_block(of[chain / 2] + (chain % 2 * SUMS + i) * MULTIPLY * 4);
            store(i, value, 0);
        }
        cluster_arrive(); /* nobody's memory goes before all have read it */
        cluster_wait();
    }
#endif
}

#endif
