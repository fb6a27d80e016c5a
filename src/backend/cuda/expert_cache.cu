/* The cache of experts. Bounds: a lookup is a few accesses to memory, one after the other; copies are bounded by the
 * link to the host, of which a few hundred KB must be on their way at any time. */
#include "backend/cuda/expert_cache.h"

#include "backend/cuda/common.cuh"

enum {
    NOWHERE = CUDA_EXPERT_NOWHERE,
    CLEAR_THREADS = 256,
    ORDER_THREADS = 1024,
    FIND_MOST_THREADS = CUDA_ROUTE_MAX_EXPERTS, /* one for every expert that may be chosen */
    COPY_THREADS = 512,
    COPY_PIECES = 4, /* of 16 bytes, by each thread at a time */
    COPY_BYTES = COPY_THREADS * COPY_PIECES * 16,
    COPY_BLOCKS = 16,  /* that copy beside other work: what they have on its way fills the link */
    PREDICT_WARPS = 8, /* an expert each */
    PREDICT_THREADS = PREDICT_WARPS * 32,
};
static_assert((int)CUDA_DECODE_ROWS * (int)CUDA_ROUTE_MAX_RANK <= (int)FIND_MOST_THREADS, "a thread for every choice");

/* How much a use counts one pass later: 0.98, as model/expert_store.c has it. Its base-2 logarithm. */
static __device__ __forceinline__ float faded(const cuda_expert_cache &c, int id, unsigned passes) {
    const float fade = -0.029146346f;
    return c.score[id] * exp2f(fade * static_cast<float>(passes - c.scored[id]));
}

static __device__ __forceinline__ uint64_t device_clock() {
    uint64_t now = 0;
#ifdef __CUDA_ARCH__
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
#endif
    return now;
}

static __global__ __launch_bounds__(CLEAR_THREADS) void clear_kernel(const __grid_constant__ cuda_expert_cache c,
                                                                     int ids) {
    wait_for_predecessor();
    int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < ids) c.slot_of[i] = NOWHERE;
    if (i < c.slots) c.owner[i] = NOWHERE;
}

void cuda_expert_clear(const cuda_launch *l, const cuda_expert_cache *c, int layers) {
    int ids = layers * c->experts, most = ids > c->slots ? ids : c->slots;
    launch_kernel(l, clear_kernel, dim3(ceil_div(most, CLEAR_THREADS)), dim3(CLEAR_THREADS), 0, *c, ids);
}

/* -------------------------------------------------------------------------------------------------------- order */

/* Scores are at most 1 / (1 - 0.98) = 50. Below 2^-30 nobody minds the order. */
enum { STEPS_OF_OCTAVE_BITS = 6, LEAST_EXPONENT = 127 - 30, MOST_EXPONENT = 127 + 6, BINS_OF_THREAD = 3 };
enum { BIN_OF_ONE = ((127 - LEAST_EXPONENT) << STEPS_OF_OCTAVE_BITS) + 1 };
enum { ORDER_BINS = ((MOST_EXPONENT - LEAST_EXPONENT) << STEPS_OF_OCTAVE_BITS) + 2 };
static_assert((int)ORDER_BINS <= (int)BINS_OF_THREAD * (int)ORDER_THREADS, "every bin has a thread");

/* Ascends with the score of what a slot holds; 0: nothing. */
static __device__ __forceinline__ int bin_of(const cuda_expert_cache &c, int slot, unsigned passes) {
    int id = c.owner[slot];
    if (id < 0) return 0;
    int bin = static_cast<int>(__float_as_uint(faded(c, id, passes)) >> (23 - STEPS_OF_OCTAVE_BITS)) -
              (LEAST_EXPONENT << STEPS_OF_OCTAVE_BITS) + 1;
    return bin < 1 ? 1 : bin < ORDER_BINS ? bin : ORDER_BINS - 1;
}

/* One block: sorts by counting. */
static __global__ __launch_bounds__(ORDER_THREADS) void order_kernel(const __grid_constant__ cuda_expert_cache c) {
    __shared__ int place[BINS_OF_THREAD * ORDER_THREADS], sums[2][ORDER_THREADS];
    int i = static_cast<int>(threadIdx.x), own = 0, now = 0;
    release_successor();
    wait_for_predecessor();
    unsigned passes = c.state->passes + 1;
    for (int b = i; b < BINS_OF_THREAD * ORDER_THREADS; b += ORDER_THREADS) place[b] = 0;
    __syncthreads();
    for (int s = i; s < c.slots; s += ORDER_THREADS) atomicAdd(&place[bin_of(c, s, passes)], 1);
    __syncthreads();
    for (int b = 0; b < BINS_OF_THREAD; b++) own += place[i * BINS_OF_THREAD + b];
    sums[0][i] = own;
    __syncthreads();
    for (int o = 1; o < ORDER_THREADS; o <<= 1, now ^= 1) {
        sums[now ^ 1][i] = sums[now][i] + (i >= o ? sums[now][i - o] : 0);
        __syncthreads();
    }
    int before = sums[now][i] - own;
    for (int b = 0; b < BINS_OF_THREAD; b++) {
        int n = place[i * BINS_OF_THREAD + b];
        place[i * BINS_OF_THREAD + b] = before;
        before += n;
    }
    __syncthreads();
    int few = place[BIN_OF_ONE];
    __syncthreads();
    for (int s = i; s < c.slots; s += ORDER_THREADS) c.order[atomicAdd(&place[bin_of(c, s, passes)], 1)] = s;
    if (i) return;
    c.state->passes = passes;
    c.state->first = c.state->lookups;
    c.state->few = few;
    c.state->next = c.state->again = 0;
}

void cuda_expert_order(const cuda_launch *l, const cuda_expert_cache *c) {
    launch_kernel(l, order_kernel, dim3(1), dim3(ORDER_THREADS), 0, *c);
}

/* ------------------------------------------------------------------------------------------------------- lookup */

struct find_memory {
    int missing[FIND_MOST_THREADS], good[FIND_MOST_THREADS], victim[FIND_MOST_THREADS];
    int few, next, again, rounds, got; /* of the walk through the order */
    int wanted, copies, guessed;
};

/* Slots for `needed` experts of `lookup`, in m.victim; m.got of them are found. Slots from `least` on, but none that
 * lookups from `kept` on have chosen or taken. */
static __device__ void find_victims(const cuda_expert_cache &c, find_memory &m, uint64_t lookup, uint64_t kept,
                                    uint64_t first, int needed, int least) {
    enum { ROUNDS_OF_FEW = 2, ROUNDS = 4 };
    int i = static_cast<int>(threadIdx.x), width = static_cast<int>(blockDim.x);
    while (m.got < needed && m.rounds < ROUNDS) {
        int end = m.rounds < ROUNDS_OF_FEW ? m.few : c.slots;
        int from = m.next, got = m.got, at = from + i, slot = at < end ? c.order[at] : NOWHERE;
        bool again = m.again;
        /* what this pass has used is good only the second time */
        bool good = slot >= least && c.used[slot] < (again ? kept : first + 1);
        m.good[i] = good;
        __syncthreads();
        int before = 0, all = 0;
        for (int k = 0; k < width; k++) {
            before += k < i && m.good[k];
            all += m.good[k];
        }
        int taken = all < needed - got ? all : needed - got;
        if (good && before < taken) {
            m.victim[got + before] = slot;
            c.used[slot] = lookup;
            if (before == needed - got - 1) m.next = at + 1;
        }
        if (i == 0) {
            m.got = got + taken;
            if (all < needed - got) m.next = from + width;
        }
        __syncthreads();
        if (i == 0 && m.next >= end && m.got < needed) {
            m.next = 0;
            m.again = 1;
            m.rounds++;
        }
        __syncthreads();
    }
}

static __device__ __forceinline__ void evict(const cuda_expert_cache &c, int slot) {
    int held = c.owner[slot];
    if (held >= 0 && c.slot_of[held] == slot) c.slot_of[held] = NOWHERE;
    c.owner[slot] = NOWHERE;
}

static __device__ __forceinline__ void settle(const cuda_expert_cache &c, int id, int slot) {
    c.owner[slot] = id;
    c.slot_of[id] = slot;
}

/* One block, a thread for each expert that may be chosen. PLACED: expert e comes to slot e. */
template <bool PLACED>
static __global__ __launch_bounds__(FIND_MOST_THREADS) void find_kernel(const __grid_constant__ cuda_expert_cache c,
                                                                        const __grid_constant__ cuda_route route,
                                                                        int layer) {
    __shared__ find_memory m;
    int i = static_cast<int>(threadIdx.x), width = static_cast<int>(blockDim.x);
    release_successor();
    wait_for_predecessor();
    cuda_expert_state *state = c.state;
    uint64_t lookup = state->lookups + 1, first = state->first;
    unsigned passes = state->passes;
    int expert = NOWHERE, guess = state->guess;
    if (PLACED) {
        if (i < c.experts && __ldcg(route.begin + i) < __ldcg(route.begin + i + 1)) expert = i;
    } else if (i < __ldcg(route.active_count)) {
        expert = __ldcg(route.active + i);
    }
    int id = layer * c.experts + expert;
    if (i == 0) {
        m.next = state->next;
        m.again = state->again;
        m.few = state->few;
        m.rounds = m.got = m.wanted = m.copies = m.guessed = 0;
    }
    if (PLACED && expert >= 0 && c.owner[i] != id) evict(c, i);
    __syncthreads();
    int slot = expert >= 0 ? c.slot_of[id] : NOWHERE, rank = 0, missing = 0;
    float score = 0;
    if (expert >= 0) {
        score = faded(c, id, passes) + 1;
        atomicAdd(&m.wanted, 1);
        if (slot >= 0) c.used[slot] = lookup;
        if (id + 1 == guess) m.guessed = 1;
        if (PLACED) c.used[i] = lookup;
    }
    m.missing[i] = expert >= 0 && slot < 0;
    __syncthreads();
    if (expert >= 0) {
        c.score[id] = score;
        c.scored[id] = passes;
    }
    for (int k = 0; k < width; k++) {
        rank += k < i && m.missing[k];
        missing += m.missing[k];
    }
    find_victims(c, m, lookup, lookup, first, missing, PLACED ? c.experts : 0);
    __syncthreads();
    int victim = m.missing[i] && rank < m.got ? m.victim[rank] : NOWHERE;
    if (PLACED && victim >= 0) {
        int held = c.owner[victim];
        if (held >= 0 && faded(c, held, passes) >= score) victim = NOWHERE;
    }
    if (victim >= 0) evict(c, victim);
    __syncthreads();
    if (m.missing[i]) {
        if (PLACED || victim >= 0) settle(c, id, victim >= 0 ? victim : i);
        c.copies[atomicAdd(&m.copies, 1)] = {expert, NOWHERE, PLACED ? i : victim, PLACED ? victim : NOWHERE};
        slot = victim;
    } else if (PLACED && expert >= 0 && slot != i) {
        c.copies[atomicAdd(&m.copies, 1)] = {expert, slot, i, NOWHERE};
    }
    if (!PLACED && expert >= 0) route.active[i] = slot;
    __syncthreads();
    if (i) return;
    state->lookups = lookup;
    state->next = m.next;
    state->again = m.again;
    state->copies = m.copies;
    state->guess = 0;
    state->counts.wanted += static_cast<uint64_t>(m.wanted);
    state->counts.found += static_cast<uint64_t>(m.wanted - missing - m.guessed);
    state->counts.bytes += static_cast<uint64_t>(missing + (guess ? 1 : 0)) * (c.gate_up_bytes + c.down_bytes);
    state->begun = device_clock();
}

void cuda_expert_find(const cuda_launch *l, const cuda_expert_cache *c, const cuda_route *route, int layer, bool prompt,
                      int rows) {
    bool placed = prompt || rows > CUDA_DECODE_ROWS;
    int most = placed || rows * route->rank > c->experts ? c->experts : rows * route->rank;
    dim3 threads(ceil_div(most, 32) * 32);
    if (placed)
        launch_kernel(l, find_kernel<true>, dim3(1), threads, 0, *c, *route, layer);
    else
        launch_kernel(l, find_kernel<false>, dim3(1), threads, 0, *c, *route, layer);
}

/* ------------------------------------------------------------------------------------------------------- copies */

static __device__ __forceinline__ void copy_piece(const unsigned char *from, unsigned char *to, unsigned char *also,
                                                  uint64_t bytes) {
    uint4 values[COPY_PIECES];
#pragma unroll
    for (int k = 0; k < COPY_PIECES; k++) {
        uint64_t at = static_cast<uint64_t>(k * COPY_THREADS + static_cast<int>(threadIdx.x)) * 16;
        if (at < bytes) values[k] = __ldcg(reinterpret_cast<const uint4 *>(from + at));
    }
#pragma unroll
    for (int k = 0; k < COPY_PIECES; k++) {
        uint64_t at = static_cast<uint64_t>(k * COPY_THREADS + static_cast<int>(threadIdx.x)) * 16;
        if (at >= bytes) continue;
        *reinterpret_cast<uint4 *>(to + at) = values[k];
        if (also) *reinterpret_cast<uint4 *>(also + at) = values[k];
    }
}

/* Piece `at` of a copy: those of gate_up come first. */
static __device__ __forceinline__ void copy_part(const cuda_expert_cache &c, const cuda_expert_copy &copy, int at,
                                                 int of_gate_up, const unsigned char *gate_up,
                                                 const unsigned char *down) {
    bool second = at >= of_gate_up;
    uint64_t each = second ? c.down_bytes : c.gate_up_bytes,
             begin = static_cast<uint64_t>(second ? at - of_gate_up : at) * COPY_BYTES,
             bytes = each - begin < COPY_BYTES ? each - begin : COPY_BYTES;
    unsigned char *arena = (second ? c.down : c.gate_up) + begin;
    const unsigned char *host = (second ? down : gate_up) + begin;
    copy_piece(copy.from >= 0 ? arena + copy.from * each : host + copy.expert * each, arena + copy.to * each,
               copy.also >= 0 ? arena + copy.also * each : nullptr, bytes);
}

static __device__ __forceinline__ int pieces_of(uint64_t bytes) {
    return static_cast<int>((bytes + COPY_BYTES - 1) / COPY_BYTES);
}

/* gate_up, down NULL: not these. The last launch of a lookup has `down`. */
static __global__ __launch_bounds__(COPY_THREADS) void copy_kernel(const __grid_constant__ cuda_expert_cache c,
                                                                   const unsigned char *gate_up,
                                                                   const unsigned char *down) {
    wait_for_predecessor();
    cuda_expert_state *state = c.state;
    int copies = state->copies;
    if (!copies && blockIdx.x) return;
    int of_gate_up = pieces_of(c.gate_up_bytes), first = gate_up ? 0 : of_gate_up,
        pieces = of_gate_up - first + (down ? pieces_of(c.down_bytes) : 0);
    for (int at = static_cast<int>(blockIdx.x); at < copies * pieces; at += static_cast<int>(gridDim.x))
        copy_part(c, c.copies[at / pieces], first + at % pieces, of_gate_up, gate_up, down);
    if (!down) return;
    __syncthreads();
    if (threadIdx.x) return;
    if (copies) {
        __threadfence();
        if (atomicAdd(&state->finished, 1u) != gridDim.x - 1) return;
        state->finished = 0;
        state->counts.nanoseconds += device_clock() - state->begun;
    }
    *c.counts = state->counts;
}

void cuda_expert_copy_in(const cuda_launch *l, const cuda_expert_cache *c, const void *gate_up, const void *down) {
    int blocks = gate_up && down ? l->multiprocessors : COPY_BLOCKS;
    launch_kernel(l, copy_kernel, dim3(blocks), dim3(COPY_THREADS), 0, *c, static_cast<const unsigned char *>(gate_up),
                  static_cast<const unsigned char *>(down));
}

/* ------------------------------------------------------------------------------------------------------- ahead */

/* A bf16 is the upper half of a float32. */
static __device__ __forceinline__ float2 pair_of(uint32_t bits) {
    return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}

static __device__ __forceinline__ float square_of(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }

/* One warp: what the router would give a row's residual stream, to order experts by. */
static __device__ float outlook_of(const cuda_expert_outlook &o, int row, int expert) {
    const float *x = o.x + static_cast<size_t>(row) * o.hidden;
    const cuda_bf16 *w = o.router + static_cast<size_t>(expert) * o.ld;
    float logit = 0, squares = 0;
#pragma unroll 4
    for (int k = static_cast<int>(threadIdx.x & 31) * 8; k + 8 <= o.hidden; k += 256) {
        uint4 packed = __ldcg(reinterpret_cast<const uint4 *>(w + k));
        const uint32_t bits[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float4 v = __ldcg(reinterpret_cast<const float4 *>(x + k) + half),
                   scale = __ldcg(reinterpret_cast<const float4 *>(o.router_scale + k) + half);
            float2 first = pair_of(bits[2 * half]), second = pair_of(bits[2 * half + 1]);
            squares += square_of(v);
            logit += v.x * scale.x * first.x + v.y * scale.y * first.y;
            logit += v.z * scale.z * second.x + v.w * scale.w * second.y;
        }
    }
    logit = warp_sum(logit);
    squares = warp_sum(squares);
    return logit / sqrtf(squares / static_cast<float>(o.hidden) + o.eps);
}

struct predict_memory {
    find_memory find;
    float best[CUDA_ROUTE_MAX_EXPERTS]; /* of all rows: how far below the row's largest logit */
    float largest[CUDA_DECODE_ROWS];
    int expert[CUDA_ROUTE_MAX_EXPERTS]; /* by place among the likely ones; NOWHERE: it is in a slot */
    int choice, last;
};

/* A block: the most likely expert that is in no slot, of the first `rank`. */
static __device__ int choose_ahead(const cuda_expert_cache &c, predict_memory &m, int layer, int rank, int rows) {
    int i = static_cast<int>(threadIdx.x), warp = i / 32, lane = i % 32;
    for (int r = warp; r < rows; r += PREDICT_WARPS) {
        float most = __ldcg(c.likely + r * c.experts);
        for (int e = lane; e < c.experts; e += 32) most = fmaxf(most, __ldcg(c.likely + r * c.experts + e));
        for (int o = 16; o > 0; o >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, o));
        if (lane == 0) m.largest[r] = most;
    }
    for (int e = i; e < rank; e += PREDICT_THREADS) m.expert[e] = NOWHERE;
    if (i == 0) m.choice = NOWHERE;
    __syncthreads();
    for (int e = i; e < c.experts; e += PREDICT_THREADS) {
        float best = __ldcg(c.likely + e) - m.largest[0];
        for (int r = 1; r < rows; r++) best = fmaxf(best, __ldcg(c.likely + r * c.experts + e) - m.largest[r]);
        m.best[e] = best;
    }
    __syncthreads();
    for (int e = i; e < c.experts; e += PREDICT_THREADS) {
        int place = 0;
        for (int k = 0; k < c.experts; k++) place += m.best[k] > m.best[e] || (m.best[k] == m.best[e] && k < e);
        if (place < rank && c.slot_of[layer * c.experts + e] < 0) m.expert[place] = e;
    }
    __syncthreads();
    for (int k = 0; i == 0 && k < rank && m.choice < 0; k++) m.choice = m.expert[k];
    __syncthreads();
    return m.choice;
}

static __global__ __launch_bounds__(PREDICT_THREADS) void predict_kernel(const __grid_constant__ cuda_expert_cache c,
                                                                         const __grid_constant__ cuda_expert_outlook o,
                                                                         int layer) {
    __shared__ predict_memory m;
    int i = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.y), blocks = gridDim.x * gridDim.y,
        expert = static_cast<int>(blockIdx.x) * PREDICT_WARPS + i / 32;
    cuda_expert_state *state = c.state;
    wait_for_predecessor();
    if (expert < c.experts) {
        float likely = outlook_of(o, row, expert);
        if (i % 32 == 0) {
            c.likely[row * c.experts + expert] = likely;
            __threadfence();
        }
    }
    __syncthreads();
    if (i == 0) {
        m.last = atomicAdd(&state->predicted, 1u) == static_cast<unsigned>(blocks) - 1;
        if (m.last) state->predicted = 0;
        __threadfence();
    }
    __syncthreads();
    if (!m.last) return;
    expert = choose_ahead(c, m, layer, o.rank, static_cast<int>(gridDim.y));
    if (i == 0) {
        m.find.next = state->next;
        m.find.again = state->again;
        m.find.few = state->few;
        m.find.rounds = m.find.got = 0;
        state->ahead.expert = NOWHERE;
    }
    __syncthreads();
    if (expert < 0) return;
    /* the next lookup takes it, so that nobody else writes there meanwhile; products still read what the last one chose
     */
    find_victims(c, m.find, state->lookups + 1, state->lookups, state->first, 1, 0);
    __syncthreads();
    if (i || !m.find.got) return;
    int id = layer * c.experts + expert, slot = m.find.victim[0];
    evict(c, slot);
    settle(c, id, slot);
    state->guess = id + 1;
    state->ahead = {expert, NOWHERE, slot, NOWHERE};
    state->next = m.find.next;
    state->again = m.find.again;
}

void cuda_expert_predict(const cuda_launch *l, const cuda_expert_cache *c, const cuda_expert_outlook *o, int layer,
                         int rows) {
    launch_kernel(l, predict_kernel, dim3(ceil_div(c->experts, PREDICT_WARPS), rows), dim3(PREDICT_THREADS), 0, *c, *o,
                  layer);
}

static __global__ __launch_bounds__(COPY_THREADS) void ahead_kernel(const __grid_constant__ cuda_expert_cache c,
                                                                    const unsigned char *gate_up,
                                                                    const unsigned char *down) {
    wait_for_predecessor();
    const cuda_expert_copy copy = c.state->ahead;
    if (copy.expert < 0) return;
    int of_gate_up = pieces_of(c.gate_up_bytes), pieces = of_gate_up + pieces_of(c.down_bytes);
    for (int at = static_cast<int>(blockIdx.x); at < pieces; at += static_cast<int>(gridDim.x))
        copy_part(c, copy, at, of_gate_up, gate_up, down);
}

void cuda_expert_copy_ahead(const cuda_launch *l, const cuda_expert_cache *c, const void *gate_up, const void *down) {
    launch_kernel(l, ahead_kernel, dim3(COPY_BLOCKS), dim3(COPY_THREADS), 0, *c,
                  static_cast<const unsigned char *>(gate_up), static_cast<const unsigned char *>(down));
}
