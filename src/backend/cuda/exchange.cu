#include "backend/cuda/exchange.h"

#include "backend/cuda/common.cuh"

enum {
    EXCHANGE_THREADS = 128,
    WAITING_BLOCKS = 4, /* on a multiprocessor: all are resident, so none waits in vain */
    OTHER_BLOCKS = 16
};

/* Where `sender` writes in the inbox of `receiver`. Places alternate: a device that sends the exchange after the next
 * one has the others' parts of the next one, which they sent when they had taken this one. */
static __device__ __forceinline__ size_t slot_of(const cuda_exchange &e, int sender, int receiver) {
    return (size_t)((e.turn & 1) * (e.devices - 1) + sender - (sender > receiver));
}

static __device__ __forceinline__ void send_flagged(uint4 *to, float a, float b, uint32_t number) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(__float_as_uint(a)), "r"(number),
                 "r"(__float_as_uint(b)), "r"(number)
                 : "memory");
}

static __device__ __forceinline__ uint4 look(const uint4 *at) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

static __device__ __forceinline__ bool is_abandoned(const cuda_exchange &e) {
    return *reinterpret_cast<const volatile int *>(e.abandoned) != 0;
}

enum { LOOKS = 1 << 12 }; /* between two questions to the host's memory */

static __device__ __forceinline__ float2 receive(const cuda_exchange &e, const uint4 *at, uint32_t number) {
    uint4 v = look(at);
    for (int looks = 1; v.y != number || v.w != number; looks++) {
        if (looks % LOOKS == 0 && is_abandoned(e)) break;
        v = look(at);
    }
    return make_float2(__uint_as_float(v.x), __uint_as_float(v.z));
}

static __device__ __forceinline__ float4 added(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* The experts of a row, and their weights. */
struct chosen_experts {
    int slot[CUDA_ROUTE_MAX_RANK];
    float weight[CUDA_ROUTE_MAX_RANK];
};

/* Four values of this device's parts, counted through all rows of one part and then of the other. */
struct part_walk {
    const cuda_exchange &e;
    const cuda_route &route;
    int rows;

    __device__ __forceinline__ int quarters() const { return rows * (e.hidden / 4); } /* of one part */
    __device__ __forceinline__ int all() const { return quarters() * (e.sum[1] ? 2 : 1); }
    __device__ __forceinline__ float4 *place(int i) const {
        int n = quarters();
        return reinterpret_cast<float4 *>(i < n ? e.sum[0] : e.sum[1]) + (i < n ? i : i - n);
    }
    __device__ __forceinline__ bool is_mixed(int i) const { return e.experts && i >= quarters(); }
    __device__ __forceinline__ void find_chosen(int i, chosen_experts &chosen) const {
        if (!is_mixed(i) || i >= all()) return;
        int at = (i - quarters()) / (e.hidden / 4) * route.rank;
#pragma unroll
        for (int r = 0; r < CUDA_ROUTE_MAX_RANK; r++) {
            if (r >= route.rank) break;
            chosen.slot[r] = __ldcg(route.slot_of + at + r);
            chosen.weight[r] = __ldcg(route.weight + at + r);
        }
    }
    __device__ __forceinline__ float4 mixed(int i, const chosen_experts &chosen) const {
        int per_row = e.hidden / 4, column = (i - quarters()) % per_row;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < CUDA_ROUTE_MAX_RANK; r++) {
            if (r >= route.rank) break;
            float4 y = __ldcg(reinterpret_cast<const float4 *>(e.experts) + (size_t)chosen.slot[r] * per_row + column);
            sum = make_float4(__fmaf_rn(y.x, chosen.weight[r], sum.x), __fmaf_rn(y.y, chosen.weight[r], sum.y),
                              __fmaf_rn(y.z, chosen.weight[r], sum.z), __fmaf_rn(y.w, chosen.weight[r], sum.w));
        }
        return sum;
    }
    __device__ __forceinline__ float4 part(int i, const chosen_experts &chosen) const {
        return is_mixed(i) ? mixed(i, chosen) : __ldcg(place(i));
    }
};

static __global__ __launch_bounds__(EXCHANGE_THREADS) void exchange_kernel(const __grid_constant__ cuda_exchange e,
                                                                           const __grid_constant__ cuda_route route,
                                                                           int rows) {
    part_walk walk = {e, route, rows};
    int first = blockIdx.x * EXCHANGE_THREADS + threadIdx.x, stride = gridDim.x * EXCHANGE_THREADS, all = walk.all();
    chosen_experts chosen;
    release_successor();
    walk.find_chosen(first, chosen); /* the route is older than the product that precedes */
    uint32_t number = __ldcg(e.before) + (uint32_t)e.turn + 1;
    wait_for_predecessor();
    for (int i = first; i < all; i += stride) {
        if (i != first) walk.find_chosen(i, chosen);
        float4 own = walk.part(i, chosen);
        for (int d = 0; d < e.devices; d++) {
            if (d == e.index) continue;
            uint4 *to = reinterpret_cast<uint4 *>(e.inbox[d] + slot_of(e, e.index, d) * e.layout.flagged_slot) + 2 * i;
            send_flagged(to, own.x, own.y, number);
            send_flagged(to + 1, own.z, own.w, number);
        }
        if (walk.is_mixed(i)) *walk.place(i) = own;
    }
    for (int i = first; i < all; i += stride) { /* all are sent before any is waited for */
        float4 own = __ldcg(walk.place(i));
        float4 sum = make_float4(0, 0, 0, 0);
        for (int d = 0; d < e.devices; d++) {
            float4 v = own;
            if (d != e.index) {
                const uint4 *at =
                    reinterpret_cast<const uint4 *>(e.inbox[e.index] + slot_of(e, d, e.index) * e.layout.flagged_slot) +
                    2 * i;
                float2 low = receive(e, at, number), high = receive(e, at + 1, number);
                v = make_float4(low.x, low.y, high.x, high.y);
            }
            sum = d == 0 ? v : added(sum, v);
        }
        *walk.place(i) = sum;
    }
}

static dim3 exchange_blocks(const cuda_launch *l, const cuda_exchange *e, int rows, int per_multiprocessor) {
    int quarters = rows * (e->hidden / 4) * (e->sum[1] ? 2 : 1), blocks = ceil_div(quarters, EXCHANGE_THREADS),
        most = per_multiprocessor * l->multiprocessors;
    return dim3(blocks < most ? blocks : most);
}

void cuda_exchange_rows(const cuda_launch *l, const cuda_exchange *e, const cuda_route *route, int rows) {
    cuda_route r = route ? *route : cuda_route{};
    launch_kernel(l, exchange_kernel, exchange_blocks(l, e, rows, WAITING_BLOCKS), dim3(EXCHANGE_THREADS), 0, *e, r,
                  rows);
}

static __global__ void meet_kernel(const __grid_constant__ cuda_exchange e) {
    release_successor();
    wait_for_predecessor();
    int other = threadIdx.x;
    if (other >= e.devices || other == e.index) return;
    uint32_t number = __ldcg(e.before) + (uint32_t)e.turn + 1, seen = 0;
    uint32_t *there = reinterpret_cast<uint32_t *>(e.inbox[other] + e.layout.meeting) + slot_of(e, e.index, other);
    const uint32_t *here =
        reinterpret_cast<const uint32_t *>(e.inbox[e.index] + e.layout.meeting) + slot_of(e, other, e.index);
    __threadfence_system();
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(there), "r"(number) : "memory");
    for (int looks = 1;; looks++) {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(here) : "memory");
        if (seen == number || (looks % LOOKS == 0 && is_abandoned(e))) break;
    }
}

void cuda_exchange_meet(const cuda_launch *l, const cuda_exchange *e) {
    launch_kernel(l, meet_kernel, dim3(1), dim3(32), 0, *e);
}

/* ------------------------------------------------------------------------------------------- sends that events order
 */

static __global__ __launch_bounds__(EXCHANGE_THREADS) void send_kernel(const __grid_constant__ cuda_exchange e,
                                                                       const __grid_constant__ cuda_route route,
                                                                       int rows) {
    part_walk walk = {e, route, rows};
    int stride = gridDim.x * EXCHANGE_THREADS, all = walk.all();
    chosen_experts chosen;
    release_successor();
    wait_for_predecessor();
    for (int i = blockIdx.x * EXCHANGE_THREADS + threadIdx.x; i < all; i += stride) {
        walk.find_chosen(i, chosen);
        float4 own = walk.part(i, chosen);
        if (walk.is_mixed(i)) *walk.place(i) = own;
        for (int d = 0; d < e.devices; d++) {
            char *to = e.inbox[d] + e.layout.plain + slot_of(e, e.index, d) * e.layout.plain_slot;
            if (d != e.index) reinterpret_cast<float4 *>(to)[i] = own;
        }
    }
}

void cuda_send_rows(const cuda_launch *l, const cuda_exchange *e, const cuda_route *route, int rows) {
    cuda_route r = route ? *route : cuda_route{};
    launch_kernel(l, send_kernel, exchange_blocks(l, e, rows, OTHER_BLOCKS), dim3(EXCHANGE_THREADS), 0, *e, r, rows);
}

static __global__ __launch_bounds__(EXCHANGE_THREADS) void add_kernel(const __grid_constant__ cuda_exchange e,
                                                                      int rows) {
    const cuda_route nobody = {};
    part_walk walk = {e, nobody, rows};
    int stride = gridDim.x * EXCHANGE_THREADS, all = walk.all();
    release_successor();
    wait_for_predecessor();
    for (int i = blockIdx.x * EXCHANGE_THREADS + threadIdx.x; i < all; i += stride) {
        float4 sum = make_float4(0, 0, 0, 0);
        for (int d = 0; d < e.devices; d++) {
            const char *from = e.inbox[e.index] + e.layout.plain + slot_of(e, d, e.index) * e.layout.plain_slot;
            float4 v = __ldcg(d == e.index ? walk.place(i) : reinterpret_cast<const float4 *>(from) + i);
            sum = d == 0 ? v : added(sum, v);
        }
        *walk.place(i) = sum;
    }
}

void cuda_add_rows(const cuda_launch *l, const cuda_exchange *e, int rows) {
    cuda_launch plain = {l->stream, l->multiprocessors, 0}; /* what it reads has been written by others' kernels, too */
    launch_kernel(&plain, add_kernel, exchange_blocks(l, e, rows, OTHER_BLOCKS), dim3(EXCHANGE_THREADS), 0, *e, rows);
}
