/* Prompt attention on the warpgroup instructions of Hopper (sm_90a), for head dimensions 256 and 512. Both use two
 * warpgroups and blocks of 64 keys. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_ATTENTION_WGMMA_CUH
#define KAKEYA_BACKEND_CUDA_PROMPT_ATTENTION_WGMMA_CUH

#include "backend/cuda/prompt_attention_state.cuh"
#include "backend/cuda/prompt_wgmma.cuh"

namespace prompt {

constexpr int WGMMA_KEYS = 64, WGMMA_THREADS = 256;

/* Shared memory after the tiles, in bytes from the first tile. */
struct wgmma_256 {
    static constexpr int Q = 0, K = 128 * 256 * 2, BLOCK = WGMMA_KEYS * 256 * 2, V = K + 2 * BLOCK,
                         ROWS = V + 2 * BLOCK;
    static constexpr int BYTES = TILE_ALIGNMENT + ROWS + row_table<WGMMA_KEYS>::BYTES;
};
struct wgmma_512 {
    static constexpr int Q = 0, K = 64 * 512 * 2, BLOCK = WGMMA_KEYS * 512 * 2, V = K + BLOCK, P = V + BLOCK,
                         ROWS = P + 64 * PANEL_ROW_BYTES;
    static constexpr int EXCHANGE = ROWS + row_table<WGMMA_KEYS>::BYTES;
    static constexpr int BYTES = TILE_ALIGNMENT + EXCHANGE + 64 * 2 * static_cast<int>(sizeof(float));
};

#if PROMPT_WGMMA

/* 128 queries, 64 a warpgroup. The scores of block j + 1 and the values of block j are multiplied together, and the
 * softmax of block j + 1 runs beside the latter. */
__device__ __forceinline__ void attend_256(const attention_params &p, char *memory) {
    constexpr int D = 256, M = 128;
    using L = wgmma_256;
    uint32_t raw = shared_address(memory), base = align_tile(raw);
    const row_table<WGMMA_KEYS> table = {reinterpret_cast<const __nv_bfloat16 **>(memory + (base - raw) + L::ROWS)};
    int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, warpgroup = warp / 4;
    const attention_tile t = make_tile(p);
    if (t.skip) return;
    int first = t.begin / WGMMA_KEYS * WGMMA_KEYS,
        blocks = t.end > first && t.end > t.begin ? (t.end - first + WGMMA_KEYS - 1) / WGMMA_KEYS : 0;

    row_states state(p, t, warpgroup * 64 + warp % 4 * 16 + lane / 4);
    float o[128];
#pragma unroll
    for (int e = 0; e < 128; e++) o[e] = 0;
    if (t.resume) state.resume(p, t, D, lane % 4 * 2, lane % 4 == 0, o);

    auto load_k = [&](int j) {
        if (j < blocks)
            load_rows<WGMMA_KEYS, D, WGMMA_THREADS>(table.slot(j, false),
                                                    base + static_cast<uint32_t>(L::K + j % 2 * L::BLOCK), p.q);
    };
    auto load_v = [&](int j) {
        if (j < blocks)
            load_rows<WGMMA_KEYS, D, WGMMA_THREADS>(table.slot(j, true),
                                                    base + static_cast<uint32_t>(L::V + j % 2 * L::BLOCK), p.q);
    };
    auto score = [&](int j, float(&s)[32]) {
        uint64_t q = panel_descriptor(base + static_cast<uint32_t>(L::Q + warpgroup * 64 * PANEL_ROW_BYTES));
        uint64_t k = panel_descriptor(base + static_cast<uint32_t>(L::K + j % 2 * L::BLOCK));
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint64_t step = static_cast<uint64_t>(d % 4 * 2);
            warpgroup_multiply(s, q + static_cast<uint64_t>(d / 4 * M * PANEL_ROW_BYTES / 16) + step,
                               k + static_cast<uint64_t>(d / 4 * WGMMA_KEYS * PANEL_ROW_BYTES / 16) + step, d > 0);
        }
        warpgroup_commit();
    };
    auto add_values = [&](int j, uint32_t(&a)[4][4]) {
        uint64_t v =
            transposed_descriptor(base + static_cast<uint32_t>(L::V + j % 2 * L::BLOCK), WGMMA_KEYS * PANEL_ROW_BYTES);
#pragma unroll
        for (int i = 0; i < 4; i++)
            warpgroup_multiply_transposed(o, a[i], v + static_cast<uint64_t>(i * 16 * PANEL_ROW_BYTES / 16));
        warpgroup_commit();
    };
    auto mask = [&](int j, float(&s)[32]) {
        int key = first + j * WGMMA_KEYS;
        if (key < t.masked_below || key + WGMMA_KEYS > t.seen_end) state.mask(s, key + lane % 4 * 2);
    };

    table.locate_block(p, t, first, 0, D);
    table.locate_block(p, t, first, 1, D);
    table.locate_block(p, t, first, 2, D);
    load_queries<M, D, WGMMA_THREADS>(p, t, base + L::Q);
    __syncthreads();
    load_k(0);
    copy_commit();
    load_k(1);
    load_v(0);
    copy_commit();

    if (blocks > 0) {
        float s[32], top[2], scale[2];
        uint32_t a[4][4];
        copy_wait<1>();
        warpgroup_publish();
        __syncthreads();
        warpgroup_begin();
        score(0, s);
        warpgroup_wait<0>();
        warpgroup_hold(s);
        mask(0, s);
        state.maxima(s, top);
        state.absorb(s, top, scale);
        state.rescale(o, scale);
#pragma unroll
        for (int i = 0; i < 4; i++) pack_probabilities(s, i, a[i]);
        for (int j = 0; j + 1 < blocks; j++) {
            copy_wait<0>();
            warpgroup_publish();
            __syncthreads(); /* K of block j + 1 and V of block j have landed; K of j and V of j - 1 are used up */
            warpgroup_hold(o);
            warpgroup_hold(s);
            warpgroup_begin();
            score(j + 1, s);
            add_values(j, a);
            load_k(j + 2);
            load_v(j + 1);
            copy_commit();
            table.locate_block(p, t, first, j + 3, D);
            warpgroup_wait<1>();
            warpgroup_hold(s);
            mask(j + 1, s);
            state.maxima(s, top);
            state.absorb(s, top, scale);
            warpgroup_wait<0>();
            warpgroup_hold(o);
            state.rescale(o, scale);
#pragma unroll
            for (int i = 0; i < 4; i++) pack_probabilities(s, i, a[i]);
        }
        copy_wait<0>();
        warpgroup_publish();
        __syncthreads();
        warpgroup_hold(o);
        warpgroup_begin();
        add_values(blocks - 1, a);
        warpgroup_wait<0>();
        warpgroup_hold(o);
    }
    float sum[2] = {row_sum(state.l[0]), row_sum(state.l[1])};
    state.write(p, t, D, lane % 4 * 2, lane % 4 == 0, sum, o);
}

/* 64 queries for both warpgroups: each scores half of a block's keys and multiplies half of the value columns. One
 * stage of K and of V: the next K comes in during the second product, the next V during the first. */
__device__ __forceinline__ void attend_512(const attention_params &p, char *memory) {
    constexpr int D = 512, M = 64;
    using L = wgmma_512;
    uint32_t raw = shared_address(memory), base = align_tile(raw);
    const row_table<WGMMA_KEYS> table = {reinterpret_cast<const __nv_bfloat16 **>(memory + (base - raw) + L::ROWS)};
    float *exchange = reinterpret_cast<float *>(memory + (base - raw) + L::EXCHANGE); /* [2][M] */
    int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, part = warp / 4;
    const attention_tile t = make_tile(p);
    if (t.skip) return;
    int first = t.begin / WGMMA_KEYS * WGMMA_KEYS,
        blocks = t.end > first && t.end > t.begin ? (t.end - first + WGMMA_KEYS - 1) / WGMMA_KEYS : 0;
    int column = part * 256 + lane % 4 * 2;
    bool owns_sum = part == 0 && lane % 4 == 0;

    row_states state(p, t, warp % 4 * 16 + lane / 4);
    float o[128];
#pragma unroll
    for (int e = 0; e < 128; e++) o[e] = 0;
    if (t.resume) state.resume(p, t, D, column, owns_sum, o);

    table.locate_block(p, t, first, 0, D);
    table.locate_block(p, t, first, 1, D);
    load_queries<M, D, WGMMA_THREADS>(p, t, base + L::Q);
    __syncthreads();
    if (blocks > 0) load_rows<WGMMA_KEYS, D, WGMMA_THREADS>(table.slot(0, false), base + L::K, p.q);
    copy_commit();

    for (int j = 0; j < blocks; j++) {
        copy_wait<0>();
        warpgroup_publish();
        __syncthreads(); /* K of this block has landed, V of the one before is used up */
        float s[16];
        uint64_t q = panel_descriptor(base + L::Q),
                 k = panel_descriptor(base + static_cast<uint32_t>(L::K + part * 32 * PANEL_ROW_BYTES));
        warpgroup_begin();
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint64_t step =
                static_cast<uint64_t>(d / 4 * WGMMA_KEYS * PANEL_ROW_BYTES / 16 + d % 4 * 2); /* M = WGMMA_KEYS */
            warpgroup_multiply(s, q + step, k + step, d > 0);
        }
        warpgroup_commit();
        load_rows<WGMMA_KEYS, D, WGMMA_THREADS>(table.slot(j, true), base + L::V, p.q);
        copy_commit();
        table.locate_block(p, t, first, j + 2, D);
        warpgroup_wait<0>();
        warpgroup_hold(s);

        int key = first + j * WGMMA_KEYS;
        if (key < t.masked_below || key + WGMMA_KEYS > t.seen_end) state.mask(s, key + part * 32 + lane % 4 * 2);
        float top[2], scale[2];
        state.maxima(s, top);
        if (lane % 4 == 0) {
            exchange[part * M + state.row[0]] = top[0];
            exchange[part * M + state.row[1]] = top[1];
        }
        __syncthreads(); /* all maxima are known, K is used up */
        if (j + 1 < blocks) load_rows<WGMMA_KEYS, D, WGMMA_THREADS>(table.slot(j + 1, false), base + L::K, p.q);
        copy_commit();
#pragma unroll
        for (int i = 0; i < 2; i++) top[i] = fmaxf(exchange[state.row[i]], exchange[M + state.row[i]]);
        state.absorb(s, top, scale);
#pragma unroll
        for (int e = 0; e < 16; e += 2) {
            int row = state.row[e / 2 % 2], chunk = part * 4 + e / 4;
            uint32_t at = base + L::P + chunk_offset(row, chunk, M) + static_cast<uint32_t>(lane % 4 * 4);
            asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(at), "r"(pack_pair(s[e], s[e + 1])) : "memory");
        }
        state.rescale(o, scale);
        copy_wait<1>();
        warpgroup_publish();
        __syncthreads(); /* V and all probabilities are there */
        uint64_t a = panel_descriptor(base + L::P);
        uint64_t v = transposed_descriptor(base + static_cast<uint32_t>(L::V + part * 4 * WGMMA_KEYS * PANEL_ROW_BYTES),
                                           WGMMA_KEYS * PANEL_ROW_BYTES);
        warpgroup_hold(o);
        warpgroup_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            warpgroup_multiply_transposed(o, a + static_cast<uint64_t>(i * 2),
                                          v + static_cast<uint64_t>(i * 16 * PANEL_ROW_BYTES / 16));
        }
        warpgroup_commit();
        warpgroup_wait<0>();
        warpgroup_hold(o);
    }
    float sum[2];
#pragma unroll
    for (int i = 0; i < 2; i++) sum[i] = row_sum(state.l[i]);
    __syncthreads();
    if (lane % 4 == 0) {
        exchange[part * M + state.row[0]] = sum[0];
        exchange[part * M + state.row[1]] = sum[1];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) sum[i] = exchange[state.row[i]] + exchange[M + state.row[i]];
    state.write(p, t, D, column, owns_sum, sum, o);
}

#endif

} // namespace prompt

#endif
