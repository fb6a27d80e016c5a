/* Products of few rows with quantised weights: the items, tiles and columns of products.cu, but for what is loaded and
 * how it is added. Codes become bf16, exactly. Two mma.m16n8k16 make the sum of a block of 32 from zero, and one fma in
 * float32 adds it, times the block's scale, to the output's sum: the same instructions in the same order for any number
 * of rows. Rows of x are read as products.cu reads them: thread t of a quad takes 8 neighbouring k of a block.
 *
 * A unit of 64 k is 288 or 544 bytes of eight outputs, of which a lane loads 8 or 16 of codes and 4 of scales. */
#include "backend/cuda/product_items.cuh"
#include "backend/cuda/quant_values.cuh"

/* D (16 x 8) = A (16 x 16) B (16 x 8): from zero. */
static __device__ __forceinline__ void mma_from_zero(float (&d)[4], const unsigned (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

static __device__ __forceinline__ unsigned load_word(const char *p) {
    unsigned v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

static __device__ __forceinline__ uint2 load_words(const char *p) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

/* One lane's part of a unit of 8 outputs: codes of 8 k of each of two blocks. operands: those of a block for the two
 * instructions. */
struct q4_codes {
    uint2 block;

    static __device__ __forceinline__ q4_codes load(const char *p) { return {load_words(p)}; }
    __device__ __forceinline__ void operands(int b, unsigned (&k)[4]) const {
        unsigned word = b ? block.y : block.x;
#pragma unroll
        for (int i = 0; i < 4; i++) k[i] = q4_pair(word >> 4 * i);
    }
};

struct q8_codes {
    uint4 block;

    static __device__ __forceinline__ q8_codes load(const char *p) { return {load_weights(p)}; }
    __device__ __forceinline__ void operands(int b, unsigned (&k)[4]) const {
        unsigned low = b ? block.z : block.x, high = b ? block.w : block.y;
        k[0] = q8_pair(low);
        k[1] = q8_pair(low >> 8);
        k[2] = q8_pair(high);
        k[3] = q8_pair(high >> 8);
    }
};

/* One lane's weights of a unit of 16 outputs: rows g and g + 8. */
template <class CODES> struct quant_stage {
    CODES first, second;
    unsigned first_scales, second_scales; /* float16 of block 0, of block 1 */
};

/* A warp's slice of an item: neighbouring units, so that all of them lie at constant distances. */
struct unit_slice {
    int first, count;
};

template <int COLUMNS> static __device__ __forceinline__ unit_slice slice_of(const warp_item<COLUMNS> &item) {
    int units = (item.steps + QUANT_BLOCKS - 1) / QUANT_BLOCKS;
    int shift = 31 - __clz(item.split); /* a power of two */
    int first = units * item.slice >> shift, end = units * (item.slice + 1) >> shift;
    return {first, end - first};
}

/* The units that a warp has still to request. */
struct unit_cursor {
    const char *first, *second;               /* this lane's codes of two strips ... */
    const char *first_scales, *second_scales; /* ... and scales */
    int left;
};

template <cuda_form FORM, int COLUMNS>
static __device__ __forceinline__ unit_cursor cursor_of(const warp_item<COLUMNS> &item) {
    int lane = threadIdx.x & 31;
    int to_scales = quant_scale_offset(FORM, lane >> 2, 0) - quant_lane_offset(FORM, lane);
    unit_slice slice = slice_of(item);
    const char *a = item.wa + slice.first * quant_unit_bytes(FORM), *b = item.wb + slice.first * quant_unit_bytes(FORM);
    return {a, b, a + to_scales, b + to_scales, slice.count};
}

/* Requests unit `u` from the cursor on. */
template <int UNIT_BYTES, class CODES>
static __device__ __forceinline__ void request_unit(quant_stage<CODES> &stage, const unit_cursor &cursor, int u) {
    stage.first = CODES::load(cursor.first + u * UNIT_BYTES);
    stage.second = CODES::load(cursor.second + u * UNIT_BYTES);
    stage.first_scales = load_word(cursor.first_scales + u * UNIT_BYTES);
    stage.second_scales = load_word(cursor.second_scales + u * UNIT_BYTES);
}

template <int UNIT_BYTES> static __device__ __forceinline__ void advance(unit_cursor &cursor, int units) {
    cursor.first += units * UNIT_BYTES;
    cursor.second += units * UNIT_BYTES;
    cursor.first_scales += units * UNIT_BYTES;
    cursor.second_scales += units * UNIT_BYTES;
    cursor.left -= units;
}

static __device__ __forceinline__ uint4 load_x(const bf16 *x) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(x));
    return v;
}

template <int COLUMNS> struct unit_rows { uint4 block[QUANT_BLOCKS][COLUMNS]; };

template <class CODES, int COLUMNS>
static __device__ __forceinline__ void multiply_unit(float (&acc)[COLUMNS][4], const quant_stage<CODES> &stage,
                                                     const unit_rows<COLUMNS> &rows) {
#pragma unroll
    for (int b = 0; b < QUANT_BLOCKS; b++) {
        unsigned first[4], second[4];
        stage.first.operands(b, first);
        stage.second.operands(b, second);
        float first_scale = half_bits((unsigned short)(stage.first_scales >> 16 * b)),
              second_scale = half_bits((unsigned short)(stage.second_scales >> 16 * b));
        const unsigned low[4] = {first[0], second[0], first[1], second[1]},
                       high[4] = {first[2], second[2], first[3], second[3]};
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const uint4 x = rows.block[b][c];
            float sum[4];
            mma_from_zero(sum, low, x.x, x.y);
            mma_bf16(sum, high[0], high[1], high[2], high[3], x.z, x.w);
            acc[c][0] = fmaf(first_scale, sum[0], acc[c][0]);
            acc[c][1] = fmaf(first_scale, sum[1], acc[c][1]);
            acc[c][2] = fmaf(second_scale, sum[2], acc[c][2]);
            acc[c][3] = fmaf(second_scale, sum[3], acc[c][3]);
        }
    }
}

/* As run_items of products.cu, in units. A warp waits for what it has requested once in DEPTH units: rows of x are
 * loaded before the first of them, and that is multiplied whatever happens. A wait among the units would be for those
 * that have just been requested, too: the hardware counts few sorts of requests. */
template <cuda_form FORM, class CODES, int COLUMNS, int DEPTH, class WORK>
static __device__ __forceinline__ void run_units(WORK &work, int first, int stride) {
    const int UNIT_BYTES =
        FORM == CUDA_FORM_Q4 ? QUANT_Q4_CODES + QUANT_SCALE_BYTES : QUANT_Q8_CODES + QUANT_SCALE_BYTES;
    __shared__ partial_sums<COLUMNS> sums[2];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, index = first, parity = 0;
    warp_item<COLUMNS> item, next;
    unit_cursor cursor;
    quant_stage<CODES> stage[DEPTH];
    auto request_first = [&]() {
        cursor = cursor_of<FORM>(item);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            if (u < cursor.left) request_unit<UNIT_BYTES>(stage[u], cursor, u);
        }
        advance<UNIT_BYTES>(cursor, DEPTH);
    };
    bool early = work.early(index);
    if (early) {
        work.resolve(index, item);
        request_first();
    }
    wait_for_predecessor();
    work.prepare();
    int items = work.items();
    if (index >= items) return;
    if (!early) {
        work.resolve(index, item);
        request_first();
    }
    for (;;) {
        int next_index = index + stride;
        unit_slice slice = slice_of(item);
        bool more = next_index < items;
        if (more)
            work.resolve(next_index, next);
        else
            release_successor();
        /* Rows that are absent are computed from one that is there, and nobody asks for the result. */
        const bf16 *present = reinterpret_cast<const bf16 *>(
            __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(item.x[0]), lane & 3));
        const bf16 *x[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) x[c] = (item.x[c] ? item.x[c] : present) + slice.first * QUANT_VALUES;
        int whole = item.steps / QUANT_BLOCKS - slice.first; /* units with two blocks */
        float acc[COLUMNS][4] = {};
        for (int left = slice.count; left > 0; left -= DEPTH, whole -= DEPTH) {
            unit_rows<COLUMNS> rows[DEPTH];
#pragma unroll
            for (int u = 0; u < DEPTH; u++) {
                if (u > 0 && u >= left) break;
                /* A second block that is missing has scales of zero, and some x of this row. */
                int second = u < whole ? QUANT_BLOCK : 0;
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    rows[u].block[0][c] = load_x(x[c] + u * QUANT_VALUES);
                    rows[u].block[1][c] = load_x(x[c] + second + u * QUANT_VALUES);
                }
            }
            if (left <= DEPTH && more) cursor = cursor_of<FORM>(next);
#pragma unroll
            for (int u = 0; u < DEPTH; u++) {
                if (u == 0 || u < left) multiply_unit<CODES, COLUMNS>(acc, stage[u], rows[u]);
                if (u < cursor.left) request_unit<UNIT_BYTES>(stage[u], cursor, u);
            }
            advance<UNIT_BYTES>(cursor, DEPTH);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) x[c] += DEPTH * QUANT_VALUES;
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

template <cuda_form FORM, class CODES> struct quant_form {
    /* Units that are in flight, as many as the registers of a thread hold with their rows of x. */
    template <int COLUMNS>
    static constexpr int depth = COLUMNS == 1   ? (FORM == CUDA_FORM_Q4 ? 6 : 4)
                                 : COLUMNS == 2 ? 3
                                                : 2 - (COLUMNS == 4 && FORM == CUDA_FORM_Q8);

    static __host__ __device__ __forceinline__ int split(int steps) {
        return steps >= 120 ? 8 : steps >= 48 ? 4 : steps >= 32 ? 2 : 1;
    }
    static __device__ __forceinline__ const cuda_bf16 *advance(const cuda_bf16 *w, size_t rows, int steps) {
        return w + rows / QUANT_ROWS * quant_strip_bytes(FORM, steps * CUDA_K_STEP) / sizeof *w;
    }
    /* The strip of o and that of second_o. */
    template <int COLUMNS>
    static __device__ __forceinline__ void place(warp_item<COLUMNS> &item, const cuda_bf16 *first,
                                                 const cuda_bf16 *second, int o, int second_o, int outs, int steps) {
        int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, last = (outs - 1) / QUANT_ROWS;
        size_t strip = quant_strip_bytes(FORM, steps * CUDA_K_STEP);
        item.steps = steps;
        item.split = split(steps);
        item.slice = warp % item.split;
        item.wa = reinterpret_cast<const char *>(first) + (size_t)min(o / QUANT_ROWS, last) * strip +
                  quant_lane_offset(FORM, lane);
        item.wb = reinterpret_cast<const char *>(second) + (size_t)min(second_o / QUANT_ROWS, last) * strip +
                  quant_lane_offset(FORM, lane);
    }
    template <int COLUMNS, class WORK> static __device__ __forceinline__ void run(WORK &work, int first, int stride) {
        run_units<FORM, CODES, COLUMNS, depth<COLUMNS>>(work, first, stride);
    }
};

typedef quant_form<CUDA_FORM_Q4, q4_codes> q4_form;
typedef quant_form<CUDA_FORM_Q8, q8_codes> q8_form;

void quant_products(const cuda_launch *l, cuda_form form, const cuda_product *products, int n, int in,
                    const cuda_bf16 *x, int ldx, int rows, float cap) {
    if (form == CUDA_FORM_Q4)
        run_products<q4_form>(l, products, n, in, x, ldx, rows, cap);
    else
        run_products<q8_form>(l, products, n, in, x, ldx, rows, cap);
}

template <bool GATE_UP>
static void run_quant_ffn(const cuda_launch *l, cuda_form form, const cuda_feed_forward *f, const cuda_route *route,
                          int rows) {
    if (form == CUDA_FORM_Q4)
        run_ffn<q4_form, GATE_UP>(l, f, route, rows);
    else
        run_ffn<q8_form, GATE_UP>(l, f, route, rows);
}

void quant_gate_up(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    run_quant_ffn<true>(l, f->gate.data ? f->gate.form : f->experts_gate_up.form, f, route, rows);
}

void quant_down(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    run_quant_ffn<false>(l, f->down.data ? f->down.form : f->experts_down.form, f, route, rows);
}
