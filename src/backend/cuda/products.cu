/* Matrix products of few rows: y[r][o] = sum_k x[r][k] w[o][k], bound by reading w once.
 *
 * A warp computes 16 outputs with mma.m16n8k16: the weights are operand A, loaded from global memory straight into
 * registers, 16 bytes per thread; the rows of x are operand B. The instruction's k index is only a label, so thread t of a
 * quad takes 8 neighbouring k of a step of 32 and feeds them to two instructions; x is read by the same rule. The steps of
 * one output are dealt to `split` warps (a function of k alone), each in ascending order, and their sums are added in the
 * order of the warps. A column of an mma depends on no other column, so a row's result is the same bits whatever rows
 * are computed with it.
 *
 * Blocks stay and take one item of work after the other (8 / split tiles of 16 outputs each). The weights of the next item are
 * requested while the current one is finished, and those of the first before the predecessor kernel has ended (programmatic
 * dependent launch): the memory is never idle while norms and other short kernels run. */
#include "backend/cuda/route.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, TILE = 16, BLOCKS_PER_MULTIPROCESSOR = 2 };

static __host__ __device__ int split_of(int steps) { return steps >= 64 ? 8 : steps >= 32 ? 4 : steps >= 16 ? 2 : 1; }

/* What one warp has to do for one item: its slice of the steps of 16 outputs. */
template <int COLUMNS> struct warp_item {
    const bf16 *wa, *wb;         /* this lane's weights: outputs g and g + 8 of the tile */
    const bf16 *x[COLUMNS];      /* this lane's row of x; NULL: absent */
    int steps, slice, split;
};

template <int COLUMNS> struct partial_sums {
    float value[WARPS][COLUMNS * 4][32];
};

/* Sum of the warps of tile `group` for accumulator register `reg` of lane `lane`. */
template <int COLUMNS>
static __device__ __forceinline__ float collect(const partial_sums<COLUMNS> &sums, int group, int split, int reg, int lane) {
    float sum = 0;
    for (int w = 0; w < split; w++) sum += sums.value[group * split + w][reg][lane];
    return sum;
}

/* Through L1, where the rows stay while the weights pass it by. */
static __device__ __forceinline__ uint4 load_row(const bf16 *x, int step) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (x) {
        asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(x + (size_t)step * CUDA_K_STEP));
    }
    return v;
}

template <int COLUMNS, int DEPTH>
static __device__ __forceinline__ void request(uint4 (&a)[DEPTH][2], const warp_item<COLUMNS> &item) {
#pragma unroll
    for (int u = 0; u < DEPTH; u++) {
        int step = item.slice + u * item.split;
        if (step >= item.steps) break;
        a[u][0] = load_weights(item.wa + (size_t)step * CUDA_K_STEP);
        a[u][1] = load_weights(item.wb + (size_t)step * CUDA_K_STEP);
    }
}

/* WORK gives the items: early(index): can be resolved before the predecessor has ended; prepare(): once after that, items()
 * afterwards; resolve(index, item); finish(index, sums). */
template <int COLUMNS, int DEPTH, class WORK> static __device__ __forceinline__ void run_items(WORK &work) {
    __shared__ partial_sums<COLUMNS> sums[2];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, index = blockIdx.x, parity = 0;
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
        int next_index = index + gridDim.x;
        bool more = next_index < items;
        if (more) work.resolve(next_index, next);
        else release_successor();
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
                const bf16 *wa = last ? next.wa : item.wa, *wb = last ? next.wb : item.wb;
                int step = last ? next.slice + u * next.split : following + u * item.split;
                if (step >= (last ? next.steps : item.steps)) continue;
                a[u][0] = load_weights(wa + (size_t)step * CUDA_K_STEP);
                a[u][1] = load_weights(wb + (size_t)step * CUDA_K_STEP);
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

/* Points an item at a tile of 16 outputs: rows o + g of the first half, o + g (+ 8) of the second. */
template <int COLUMNS>
static __device__ __forceinline__ void place(warp_item<COLUMNS> &item, const cuda_bf16 *first, const cuda_bf16 *second, int o,
                                             int second_o, int outs, int steps) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    size_t ldw = (size_t)steps * CUDA_K_STEP;
    item.steps = steps;
    item.split = split_of(steps);
    item.slice = warp % item.split;
    item.wa = as_bf16(first) + (size_t)min(o + g, outs - 1) * ldw + 8 * t;
    item.wb = as_bf16(second) + (size_t)min(second_o + g, outs - 1) * ldw + 8 * t;
}

static __device__ __forceinline__ int group_of_warp(int steps) { return (int)(threadIdx.x >> 5) / split_of(steps); }

/* This lane's rows among `rows` rows of x. */
template <int COLUMNS>
static __device__ __forceinline__ void place_rows(warp_item<COLUMNS> &item, const cuda_bf16 *x, int ldx, int rows) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) item.x[c] = c * 8 + g < rows ? as_bf16(x) + (size_t)(c * 8 + g) * ldx + 8 * t : nullptr;
}

/* -------------------------------------------------------------------------------------------- plain products */

struct product_list {
    cuda_product product[CUDA_MAX_PRODUCTS];
    int first_tile[CUDA_MAX_PRODUCTS + 1];
    int n;
};

template <int COLUMNS> struct plain_work {
    const product_list &list;
    const cuda_bf16 *x;
    int steps, ldx, rows;
    float cap;

    __device__ __forceinline__ int per_item() const { return WARPS / split_of(steps); }
    __device__ __forceinline__ bool early(int) const { return true; }
    __device__ __forceinline__ void prepare() {}
    __device__ __forceinline__ int items() const { return (list.first_tile[list.n] + per_item() - 1) / per_item(); }
    __device__ __forceinline__ int product_of(int tile) const {
        int p = 0;
        while (p + 1 < list.n && tile >= list.first_tile[p + 1]) p++;
        return p;
    }
    __device__ __forceinline__ void resolve(int index, warp_item<COLUMNS> &item) const {
        int tile = index * per_item() + group_of_warp(steps), p = product_of(tile), o = (tile - list.first_tile[p]) * TILE;
        place(item, list.product[p].w, list.product[p].w, o, o + 8, list.product[p].out, steps);
        place_rows(item, x, ldx, rows);
    }
    __device__ __forceinline__ void finish(int index, const partial_sums<COLUMNS> &sums) const {
        const int per_tile = COLUMNS * 128;
        int split = split_of(steps);
        for (int i = threadIdx.x; i < per_item() * per_tile; i += THREADS) {
            int at = i / per_tile, reg = i % per_tile / 32, from = i & 31, tile = index * per_item() + at, p = product_of(tile);
            int o = (tile - list.first_tile[p]) * TILE + (from >> 2) + (reg & 2) * 4;
            int row = reg / 4 * 8 + (from & 3) * 2 + (reg & 1);
            if (o >= list.product[p].out || row >= rows) continue;
            float y = collect(sums, at, split, reg, from);
            if (cap > 0) y = cap * tanhf(y / cap);
            list.product[p].y[(size_t)row * list.product[p].ldy + o] = y;
        }
    }
};

template <int COLUMNS, int DEPTH>
static __global__ __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR) void products_kernel(const __grid_constant__ product_list list,
                                                                                             int steps, const cuda_bf16 *x, int ldx,
                                                                                             int rows, float cap) {
    plain_work<COLUMNS> work = {list, x, steps, ldx, rows, cap};
    run_items<COLUMNS, DEPTH>(work);
}

static dim3 resident_blocks(const cuda_launch *l, int items) {
    int most = l->multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    return dim3(items < most ? items : most);
}

void cuda_products(const cuda_launch *l, const cuda_product *products, int n, int in, const cuda_bf16 *x, int ldx, int rows,
                   float cap) {
    product_list list;
    int steps = ceil_div(in, CUDA_K_STEP), per_item = WARPS / split_of(steps);
    for (int first = 0; first < rows; first += CUDA_ROW_BLOCK) {
        int m = rows <= CUDA_DECODE_ROWS ? rows : rows - first < CUDA_ROW_BLOCK ? rows - first : CUDA_ROW_BLOCK;
        list.n = n;
        list.first_tile[0] = 0;
        for (int i = 0; i < n; i++) {
            list.product[i] = products[i];
            list.product[i].y += (size_t)first * products[i].ldy;
            list.first_tile[i + 1] = list.first_tile[i] + ceil_div(products[i].out, TILE);
        }
        const cuda_bf16 *rows_of_x = x + (size_t)first * ldx;
        dim3 blocks = resident_blocks(l, ceil_div(list.first_tile[n], per_item));
        if (m <= 8) launch_kernel(l, products_kernel<1, 6>, blocks, dim3(THREADS), 0, list, steps, rows_of_x, ldx, m, cap);
        else if (m <= 16) launch_kernel(l, products_kernel<2, 4>, blocks, dim3(THREADS), 0, list, steps, rows_of_x, ldx, m, cap);
        else launch_kernel(l, products_kernel<3, 3>, blocks, dim3(THREADS), 0, list, steps, rows_of_x, ldx, m, cap);
        if (rows <= CUDA_DECODE_ROWS) return;
    }
}

/* -------------------------------------------------------------------------------------------------- feed forward
 * gate/up: a tile holds 8 gate rows (registers 0, 1) and the 8 up rows of the same outputs (registers 2, 3), so that the
 * activation is applied where the sums are made. The dense MLP's items come first: they do not wait for the router. */

static __device__ __forceinline__ void store_bf16(cuda_bf16 *p, float v) { *as_bf16(p) = __float2bfloat16_rn(v); }

template <int COLUMNS, bool GATE_UP> struct ffn_work {
    const cuda_feed_forward &f;
    const cuda_route &route;
    route_table &table;
    int dense_steps, dense_items, expert_steps, expert_items, rows; /* expert_items: per expert */

    __device__ __forceinline__ int tile_outputs() const { return GATE_UP ? 8 : TILE; }
    /* The down kernel's predecessor has waited for the route before it was released: all of its items are early. */
    __device__ __forceinline__ bool early(int index) {
        if (GATE_UP || !expert_items) return index < dense_items;
        read_route<THREADS>(table, route, rows);
        return index < items();
    }
    __device__ __forceinline__ void prepare() {
        if (GATE_UP && expert_items) read_route<THREADS>(table, route, rows);
    }
    __device__ __forceinline__ int items() const { return dense_items + (expert_items ? table.count * expert_items : 0); }
    __device__ __forceinline__ void resolve(int index, warp_item<COLUMNS> &item) const {
        if (index < dense_items) {
            int o = (index * (WARPS / split_of(dense_steps)) + group_of_warp(dense_steps)) * tile_outputs();
            if (GATE_UP) {
                place(item, f.gate.data, f.up.data, o, o, f.gate.out, dense_steps);
                place_rows(item, f.x_dense, f.ldx, rows);
            } else {
                place(item, f.down.data, f.down.data, o, o + 8, f.down.out, dense_steps);
                place_rows(item, f.act, f.down.ld, rows);
            }
            return;
        }
        int at = (index - dense_items) / expert_items, tile = (index - dense_items) % expert_items;
        int o = (tile * (WARPS / split_of(expert_steps)) + group_of_warp(expert_steps)) * tile_outputs();
        int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, begin = table.begin[at], n = table.rows[at];
        size_t ldw = (size_t)expert_steps * CUDA_K_STEP;
        if (GATE_UP) {
            const cuda_bf16 *matrix = f.experts_gate_up.data + (size_t)table.active[at] * 2 * f.expert_intermediate * ldw;
            place(item, matrix, matrix + (size_t)f.expert_intermediate * ldw, o, o, f.expert_intermediate, expert_steps);
        } else {
            const cuda_bf16 *matrix = f.experts_down.data + (size_t)table.active[at] * f.down.out * ldw;
            place(item, matrix, matrix, o, o + 8, f.down.out, expert_steps);
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            item.x[c] = nullptr;
            if (c * 8 + g >= n) continue;
            int slot = begin + c * 8 + g;
            item.x[c] = (GATE_UP ? as_bf16(f.x_experts) + (size_t)table.slot_row[slot] * f.ldx
                                 : as_bf16(f.act_experts) + (size_t)slot * f.experts_down.ld) + 8 * t;
        }
    }
    __device__ __forceinline__ void finish(int index, const partial_sums<COLUMNS> &sums) const {
        bool dense = index < dense_items;
        int steps = dense ? dense_steps : expert_steps, split = split_of(steps), per_item = WARPS / split;
        int at = dense ? 0 : (index - dense_items) / expert_items, tile = dense ? index : (index - dense_items) % expert_items;
        int n = dense ? rows : table.rows[at], first = dense ? 0 : table.begin[at];
        int outs = !GATE_UP ? f.down.out : dense ? f.gate.out : f.expert_intermediate;
        const int per_tile = COLUMNS * (GATE_UP ? 64 : 128);
        for (int i = threadIdx.x; i < per_item * per_tile; i += THREADS) {
            int group = i / per_tile, rest = i % per_tile, from = i & 31;
            if (GATE_UP) {
                int c = rest / 64, odd = rest / 32 & 1, row = c * 8 + (from & 3) * 2 + odd;
                int o = (tile * per_item + group) * 8 + (from >> 2);
                if (o >= outs || row >= n) continue;
                float gate = collect(sums, group, split, c * 4 + odd, from), up = collect(sums, group, split, c * 4 + 2 + odd, from);
                cuda_bf16 *act = dense ? f.act + (size_t)row * f.down.ld : f.act_experts + (size_t)(first + row) * f.experts_down.ld;
                store_bf16(act + o, (f.silu ? silu(gate) : gelu_tanh(gate)) * up);
            } else {
                int reg = rest / 32, row = reg / 4 * 8 + (from & 3) * 2 + (reg & 1);
                int o = (tile * per_item + group) * TILE + (from >> 2) + (reg & 2) * 4;
                if (o >= outs || row >= n) continue;
                float *y = dense ? f.y : f.y_experts;
                y[(size_t)(first + row) * outs + o] = collect(sums, group, split, reg, from);
            }
        }
    }
};

template <int COLUMNS, int DEPTH, bool GATE_UP>
static __global__ __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR) void ffn_kernel(const __grid_constant__ cuda_feed_forward f,
                                                                                        const __grid_constant__ cuda_route route,
                                                                                        int dense_items, int expert_items, int rows) {
    __shared__ route_table table;
    int dense_steps = (GATE_UP ? f.gate.ld : f.down.ld) / CUDA_K_STEP;
    int expert_steps = GATE_UP ? dense_steps : f.experts_down.ld / CUDA_K_STEP;
    ffn_work<COLUMNS, GATE_UP> work = {f, route, table, dense_steps, dense_items, expert_steps, expert_items, rows};
    run_items<COLUMNS, DEPTH>(work);
}

template <bool GATE_UP> static void run_ffn(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    cuda_route r = route ? *route : cuda_route{};
    int dense_steps = (GATE_UP ? f->gate.ld : f->down.ld) / CUDA_K_STEP, expert_steps = dense_steps;
    if (!GATE_UP) expert_steps = f->experts_down.ld / CUDA_K_STEP;
    int dense_outs = GATE_UP ? f->gate.out : f->down.out, expert_outs = GATE_UP ? f->expert_intermediate : f->down.out;
    int outputs = GATE_UP ? 8 : TILE, expert_items = 0, active = 0;
    int dense_items = ceil_div(ceil_div(dense_outs, outputs), WARPS / split_of(dense_steps));
    if (f->experts_gate_up.data) {
        expert_items = ceil_div(ceil_div(expert_outs, outputs), WARPS / split_of(expert_steps));
        active = rows * r.rank < r.experts ? rows * r.rank : r.experts;
    }
    dim3 blocks = resident_blocks(l, dense_items + active * expert_items);
    if (rows <= 8) launch_kernel(l, ffn_kernel<1, 6, GATE_UP>, blocks, dim3(THREADS), 0, *f, r, dense_items, expert_items, rows);
    else if (rows <= 16) launch_kernel(l, ffn_kernel<2, 4, GATE_UP>, blocks, dim3(THREADS), 0, *f, r, dense_items, expert_items, rows);
    else launch_kernel(l, ffn_kernel<3, 3, GATE_UP>, blocks, dim3(THREADS), 0, *f, r, dense_items, expert_items, rows);
}

void cuda_gate_up(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    run_ffn<true>(l, f, route, rows);
}

void cuda_down(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    run_ffn<false>(l, f, route, rows);
}
