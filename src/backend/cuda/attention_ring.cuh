/* What blocks that stay have in common: some warps bring tiles of keys into a ring in shared memory, others work on
 * them. attention_runs.cu keeps the ring in bf16, attention_codes.cu in codes. Needs sm_90. */
#ifndef KAKEYA_BACKEND_CUDA_ATTENTION_RING_CUH
#define KAKEYA_BACKEND_CUDA_ATTENTION_RING_CUH

#include "backend/cuda/attention_units.cuh"

/* A query of a unit: its place among all of its segment, row by row, and its position. */
struct run_query {
    int row_head, position;
};

enum tile_flags { TILE_BEGINS_UNIT = 1, TILE_ENDS_UNIT = 2, TILE_IS_NONE = 4 /* behind the last one */ };

struct run_tile {
    int base, flags;
    int segment, head, partition, query_tile;
    int first_query, queries;
};

/* The tile at a cursor; unit: of the tile before. */
static __device__ __forceinline__ run_tile describe_tile(const run_cursor &c, int unit, bool more) {
    run_cursor following = c;
    if (more) next_tile(following);
    int flags = (c.unit != unit ? TILE_BEGINS_UNIT : 0) | (following.base >= following.end ? TILE_ENDS_UNIT : 0) |
                (more ? 0 : TILE_IS_NONE);
    return {c.base, flags, c.segment, c.head, c.partition, c.query_tile, c.first_query, c.queries};
}

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Of barriers that a place of the ring has; threads see them after the block's next barrier. */
static __device__ __forceinline__ void init_barriers(unsigned long long *full, int bringing, unsigned long long *empty,
                                                     int working) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(full)), "r"(bringing) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(empty)), "r"(working) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void arrive(unsigned long long *barrier) {
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0];}" ::"r"(shared_address(barrier))
                 : "memory");
}

static __device__ __forceinline__ void wait_for(unsigned long long *barrier, int parity) {
    asm volatile("{.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* What this thread has requested and written so far is there, when its copies are; each thread and each warp arrive. */
static __device__ __forceinline__ void publish(unsigned long long *full) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(full)) : "memory");
    __syncwarp();
    if ((threadIdx.x & 31) == 0) arrive(full);
}

/* Of the warps that work alone. */
template <int THREADS> static __device__ __forceinline__ void working_barrier() {
    asm volatile("bar.sync 1, %0;" ::"r"(THREADS) : "memory");
}

#endif

#endif
