/* The prompt kernels of the CUDA backend against plain float32 kernels on random inputs, and their speed.
 *
 *   prompt_kernels            every check, then the table of times
 *   prompt_kernels check      checks only
 *   prompt_kernels times      times only
 *
 * Outputs are poisoned with NaN before every run. A failure prints the case and both values; the exit status is 1 then.
 */
#include "gpu/prompt_routing.cuh"
#include "gpu/prompt_support.cuh"

namespace {

/* ---- products ---- */

__device__ float gate(float x, int output) {
    if (output == PROMPT_GEMM_SILU_BF16) return x / (1.0f + expf(-x));
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

/* expert_of NULL: dense. One thread an element. */
__global__ void reference_gemm(prompt_gemm_args g, const int *rows, const int *expert_of, size_t expert_stride,
                               float *out) {
    size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
    if (i >= static_cast<size_t>(g.m) * g.n) return;
    size_t row = i / g.n, column = i % g.n, source = rows ? rows[row] : row;
    size_t matrix = expert_of ? expert_of[row] * expert_stride : 0;
    float sum = 0, up = 0;
    for (int k = 0; k < g.k; k++) {
        float a = from_bf16(g.a[source * g.lda + k]);
        sum += a * from_bf16(g.w[matrix + column * g.ldw + k]);
        if (g.w_up) up += a * from_bf16(g.w_up[matrix + column * g.ldw + k]);
    }
    out[i] = g.w_up ? gate(sum, g.output) * up : sum;
}

bool is_gated(prompt_gemm_output o) { return o == PROMPT_GEMM_GELU_BF16 || o == PROMPT_GEMM_SILU_BF16; }

struct product_result {
    std::vector<float> got, want;
};

/* Runs a product with ldo = n on `a`, `w` and the reference beside it. */
product_result run_product(const prompt_gemm_grouped_args &args, bool grouped, const std::vector<int> &expert_of) {
    prompt_gemm_args g = args.product;
    size_t count = static_cast<size_t>(g.m) * g.n;
    device_array<float> want(count);
    device_array<int> experts(expert_of.size());
    experts.set(expert_of);
    reference_gemm<<<static_cast<unsigned>((count + 255) / 256), 256>>>(g, args.rows, grouped ? experts.data : nullptr,
                                                                        args.expert_stride, want.data);
    CHECK(cudaGetLastError());
    product_result r;
    r.want = want.get();
    prompt_gemm_grouped_args run = args;
    if (g.output == PROMPT_GEMM_F32) {
        device_array<float> out(count);
        out.poison();
        run.product.out = out.data;
        CHECK(grouped ? prompt_gemm_grouped(&run, 0) : prompt_gemm(&run.product, 0));
        r.got = out.get();
    } else {
        device_array<uint16_t> out(count);
        out.poison();
        run.product.out = out.data;
        CHECK(grouped ? prompt_gemm_grouped(&run, 0) : prompt_gemm(&run.product, 0));
        r.got = widen(out.get());
    }
    return r;
}

void check_dense() {
    static const int shapes[][3] = {{1, 128, 2816},   {17, 2112, 2816},  {100, 704, 2112}, {300, 4096, 704},
                                    {513, 1024, 256}, {257, 2816, 4096}, {64, 8200, 64},   {2048, 2816, 704},
                                    {33, 8, 8},       {4096, 512, 2112}, {129, 264, 72},   {4096, 128, 2816}};
    for (const auto &s : shapes) {
        for (int output = 0; output < 4; output++) {
            int m = s[0], n = s[1], k = s[2];
            bool gated = is_gated(static_cast<prompt_gemm_output>(output));
            device_array<uint16_t> a(static_cast<size_t>(m) * (k + 8)), w(static_cast<size_t>(n) * (k + 16) * 2);
            randomize(a, 1.0f);
            randomize(w, 1.0f / std::sqrt(static_cast<float>(k)));
            prompt_gemm_grouped_args args = {};
            args.product = {a.data,
                            static_cast<size_t>(k + 8),
                            w.data,
                            gated ? w.data + static_cast<size_t>(n) * (k + 16) : nullptr,
                            static_cast<size_t>(k + 16),
                            nullptr,
                            static_cast<size_t>(n),
                            m,
                            n,
                            k,
                            static_cast<prompt_gemm_output>(output)};
            product_result r = run_product(args, false, {});
            double error = relative_error(r.got, r.want), limit = output == 0 ? 1e-5 : 3e-3;
            report(error < limit, "product m %d n %d k %d output %d: relative error %.2e, limit %.0e", m, n, k, output,
                   error, limit);
        }
    }
}

/* The first rows of a product, computed alone or in any number, have the bits that they have among 4,096. */
void check_row_invariance() {
    const int m = 4096, n = 2816, k = 2112;
    device_array<uint16_t> a(static_cast<size_t>(m) * k), w(static_cast<size_t>(n) * k);
    device_array<float> whole(static_cast<size_t>(m) * n), part(static_cast<size_t>(m) * n);
    randomize(a, 1.0f);
    randomize(w, 0.02f);
    prompt_gemm_args g = {a.data, k, w.data, nullptr, k, whole.data, n, m, n, k, PROMPT_GEMM_F32};
    CHECK(prompt_gemm(&g, 0));
    std::vector<float> want = whole.get();
    for (int rows : {1, 5, 64, 100, 300, 700, 1024, 1500, 2500}) {
        const int first = 37;
        part.poison();
        g.a = a.data + static_cast<size_t>(first) * k;
        g.out = part.data;
        g.m = rows;
        CHECK(prompt_gemm(&g, 0));
        std::vector<float> got = part.get();
        bool same = std::memcmp(got.data(), want.data() + static_cast<size_t>(first) * n,
                                static_cast<size_t>(rows) * n * sizeof(float)) == 0;
        report(same, "product of %d rows equals the same rows among %d, bit for bit", rows, m);
    }
}

void check_grouped() {
    struct grouping {
        int experts, tokens, top, n, k;
        bool gather;
        prompt_gemm_output output;
        int skew; /* 0: even, 1: few experts take most, 2: one takes all */
    };
    static const grouping cases[] = {
        {128, 700, 8, 704, 2816, true, PROMPT_GEMM_GELU_BF16, 0}, {128, 700, 8, 2816, 704, false, PROMPT_GEMM_F32, 0},
        {128, 60, 8, 704, 2816, true, PROMPT_GEMM_GELU_BF16, 1},  {16, 5, 2, 64, 64, true, PROMPT_GEMM_SILU_BF16, 1},
        {8, 200, 2, 264, 72, true, PROMPT_GEMM_F32, 2},           {128, 1, 8, 2816, 704, false, PROMPT_GEMM_BF16, 0},
        {33, 500, 3, 128, 256, true, PROMPT_GEMM_F32, 1},
    };
    for (const grouping &c : cases) {
        int slots = c.tokens * c.top;
        std::vector<int> expert_of, rows, begin(c.experts + 1, 0);
        std::vector<std::vector<int>> members(c.experts);
        std::srand(static_cast<unsigned>(slots));
        for (int t = 0; t < c.tokens; t++) {
            int e = c.skew == 2 ? 3 : std::rand() % (c.skew == 1 ? 1 + c.experts / 7 : c.experts);
            for (int i = 0; i < c.top; i++) members[c.skew == 2 ? 3 : (e + i * (1 + t % 5)) % c.experts].push_back(t);
        }
        for (int e = 0; e < c.experts; e++) {
            begin[e + 1] = begin[e] + static_cast<int>(members[e].size());
            for (int t : members[e]) rows.push_back(t), expert_of.push_back(e);
        }
        bool gated = is_gated(c.output);
        size_t stride = static_cast<size_t>(gated ? 2 : 1) * c.n * c.k;
        device_array<uint16_t> a(static_cast<size_t>(c.gather ? c.tokens : slots) * c.k), w(stride * c.experts);
        device_array<int> device_begin(begin.size()), device_rows(rows.size());
        randomize(a, 1.0f);
        randomize(w, 1.0f / std::sqrt(static_cast<float>(c.k)));
        device_begin.set(begin);
        device_rows.set(rows);
        prompt_gemm_grouped_args args = {};
        args.product = {a.data,
                        static_cast<size_t>(c.k),
                        w.data,
                        gated ? w.data + static_cast<size_t>(c.n) * c.k : nullptr,
                        static_cast<size_t>(c.k),
                        nullptr,
                        static_cast<size_t>(c.n),
                        slots,
                        c.n,
                        c.k,
                        c.output};
        device_array<unsigned> counter(1);
        counter.set({0});
        args.expert_begin = device_begin.data;
        args.counter = counter.data;
        args.rows = c.gather ? device_rows.data : nullptr;
        args.expert_stride = stride;
        args.experts = c.experts;
        product_result r = run_product(args, true, expert_of);
        double error = relative_error(r.got, r.want), limit = c.output == PROMPT_GEMM_F32 ? 1e-5 : 3e-3;
        report(counter.get()[0] == 0, "the counter of tiles is zero again");
        report(error < limit,
               "grouped product, %d experts, %d slots, n %d k %d output %d skew %d: relative error %.2e, limit %.0e",
               c.experts, slots, c.n, c.k, c.output, c.skew, error, limit);
    }
}

/* ---- attention ---- */

/* One block a (row, head); keys and values of all positions in float32 [position][kv_heads][dim]. */
__global__ void reference_attention(const float *q, const float *k, const float *v, int first_position, int heads,
                                    int kv_heads, int dim, int window, int evicted_end, float *out, float *m_out,
                                    float *l_out) {
    extern __shared__ float scores[];
    __shared__ float shared_m, shared_l;
    int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), kv = head / (heads / kv_heads),
        t = first_position + row;
    int begin = window > 0 && t - window + 1 > 0 ? t - window + 1 : 0;
    if (begin < evicted_end) begin = evicted_end;
    int n = t + 1 - begin;
    const float *query = q + (static_cast<size_t>(row) * heads + head) * dim;
    for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
        const float *key = k + (static_cast<size_t>(begin + i) * kv_heads + kv) * dim;
        float s = 0;
        for (int d = 0; d < dim; d++) s += query[d] * key[d];
        scores[i] = s;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float m = -INFINITY, l = 0;
        for (int i = 0; i < n; i++) m = fmaxf(m, scores[i]);
        for (int i = 0; i < n; i++) l += expf(scores[i] - m);
        shared_m = m;
        shared_l = l;
        m_out[row * heads + head] = m;
        l_out[row * heads + head] = l;
    }
    __syncthreads();
    for (int d = static_cast<int>(threadIdx.x); d < dim; d += static_cast<int>(blockDim.x)) {
        float o = 0;
        for (int i = 0; i < n; i++)
            o += expf(scores[i] - shared_m) * v[(static_cast<size_t>(begin + i) * kv_heads + kv) * dim + d];
        out[(static_cast<size_t>(row) * heads + head) * dim + d] = n > 0 ? o / shared_l : 0;
    }
}

__global__ void widen_kernel(const uint16_t *from, float *to, size_t n) {
    size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
    if (i < n) to[i] = from_bf16(from[i]);
}

/* Plain statement of K = RoPE(k_norm * v). */
__global__ void reference_keys(const uint16_t *v, const float *norm, const float *cosine, const float *sine, int pairs,
                               int positions, int kv_heads, int dim, float *k) {
    size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
    if (i >= static_cast<size_t>(positions) * kv_heads * dim) return;
    int d = static_cast<int>(i % dim), half = dim / 2, j = d % half;
    size_t position = i / (static_cast<size_t>(kv_heads) * dim), vector = i - d;
    float a = from_bf16(v[vector + j]) * norm[j], b = from_bf16(v[vector + j + half]) * norm[j + half];
    if (j < pairs) {
        float c = cosine[position * pairs + j], s = sine[position * pairs + j], x = a * c - b * s, y = b * c + a * s;
        a = x;
        b = y;
    }
    k[i] = d < half ? a : b;
}

__global__ void fill_angles(float *cosine, float *sine, size_t n, int pairs) {
    size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
    if (i >= n) return;
    float angle = static_cast<float>(i / pairs) * powf(10000.0f, -static_cast<float>(i % pairs) / pairs);
    cosine[i] = cosf(angle);
    sine[i] = sinf(angle);
}

__global__ void fill_ring(const uint16_t *from, uint16_t *ring, int begin, int end, int capacity, int width) {
    int p = begin + static_cast<int>(blockIdx.x);
    if (p >= end) return;
    for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
        ring[static_cast<size_t>(p % capacity) * width + i] = from[static_cast<size_t>(p) * width + i];
    }
}

enum storage { STORE_CHUNK, STORE_RING, STORE_PAGES };

struct attention_case {
    int dim, heads, kv_heads, rows, first, window, evicted_end;
    bool derived;
    storage store; /* of the positions before `first`, STORE_CHUNK: none there */
};

/* Everything one case needs, positions 0 .. first + rows - 1. */
struct attention_inputs {
    attention_case c;
    int positions, width, pairs, capacity;
    device_array<uint16_t> k, v, q, ring_k, ring_v, pages, k_scratch;
    device_array<float> norm, cosine, sine;
    device_array<const uint16_t *> page_table;

    static int pages_of(int positions) { return (positions + PROMPT_PAGE_POSITIONS - 1) / PROMPT_PAGE_POSITIONS; }

    explicit attention_inputs(const attention_case &which)
        : c(which), positions(which.first + which.rows), width(which.kv_heads * which.dim),
          pairs(which.derived ? which.dim / 8 : which.dim / 2), capacity(which.window + 24),
          k(static_cast<size_t>(positions) * width), v(static_cast<size_t>(positions) * width),
          q(static_cast<size_t>(which.rows) * which.heads * which.dim), ring_k(static_cast<size_t>(capacity) * width),
          ring_v(static_cast<size_t>(capacity) * width),
          pages(static_cast<size_t>(pages_of(positions)) * 2 * PROMPT_PAGE_POSITIONS * width),
          k_scratch(static_cast<size_t>(which.derived ? std::min<int>(PROMPT_SLAB_POSITIONS, positions) : 0) * width),
          norm(which.dim), cosine(static_cast<size_t>(positions) * pairs), sine(static_cast<size_t>(positions) * pairs),
          page_table(pages_of(positions)) {
        randomize(k, 1.0f);
        randomize(v, 1.0f);
        randomize(q, 1.5f / std::sqrt(static_cast<float>(c.dim)));
        randomize(norm, 0.1f, 1.0f);
        size_t n = static_cast<size_t>(positions) * pairs;
        fill_angles<<<static_cast<unsigned>((n + 255) / 256), 256>>>(cosine.data, sine.data, n, pairs);
        ring_k.poison();
        ring_v.poison();
        pages.poison();
    }

    /* Rows [0, begin) as the cache would hold them, the rest in the chunk buffers. */
    prompt_keys keys(int begin) {
        prompt_keys s = {};
        s.chunk_begin = begin;
        s.chunk_k = c.derived ? nullptr : k.data + static_cast<size_t>(begin) * width;
        s.chunk_v = v.data + static_cast<size_t>(begin) * width;
        if (c.derived) s.k_norm = norm.data;
        s.cosine = cosine.data;
        s.sine = sine.data;
        s.rope_pairs = pairs;
        if (c.store == STORE_RING && begin > 0) {
            int oldest = begin > capacity ? begin - capacity : 0;
            unsigned blocks = static_cast<unsigned>(begin - oldest);
            fill_ring<<<blocks, 256>>>(v.data, ring_v.data, oldest, begin, capacity, width);
            if (!c.derived) fill_ring<<<blocks, 256>>>(k.data, ring_k.data, oldest, begin, capacity, width);
            s.ring_capacity = capacity;
            s.ring_v = ring_v.data;
            s.ring_k = c.derived ? nullptr : ring_k.data;
        } else if (begin > 0) {
            int n = pages_of(begin);
            size_t page = static_cast<size_t>(PROMPT_PAGE_POSITIONS) * width;
            std::vector<const uint16_t *> table(n);
            for (int i = 0; i < n; i++) {
                uint16_t *to = pages.data + static_cast<size_t>(n - 1 - i) * 2 * page; /* scattered */
                int rows = std::min<int>(PROMPT_PAGE_POSITIONS, begin - i * PROMPT_PAGE_POSITIONS);
                size_t bytes = static_cast<size_t>(rows) * width * sizeof(uint16_t);
                CHECK(cudaMemcpy(to, v.data + i * page, bytes, cudaMemcpyDeviceToDevice));
                if (!c.derived) CHECK(cudaMemcpy(to + page, k.data + i * page, bytes, cudaMemcpyDeviceToDevice));
                table[i] = to;
            }
            CHECK(cudaMemcpy(page_table.data, table.data(), table.size() * sizeof table[0], cudaMemcpyHostToDevice));
            s.pages = page_table.data;
            s.page_v = 0;
            s.page_k = page;
        }
        return s;
    }

    prompt_attention_args args(int row, int rows, int begin, void *out, bool f32) {
        prompt_attention_args a = {};
        a.q = q.data + static_cast<size_t>(row) * c.heads * c.dim;
        a.q_stride = static_cast<size_t>(c.heads) * c.dim;
        a.rows = rows;
        a.first_position = c.first + row;
        a.heads = c.heads;
        a.kv_heads = c.kv_heads;
        a.head_dim = c.dim;
        a.window = c.window;
        a.evicted_end = c.evicted_end;
        a.keys = keys(begin);
        a.k_scratch = k_scratch.data;
        k_scratch.poison();
        a.out = out;
        a.out_is_f32 = f32;
        a.out_stride = a.q_stride;
        return a;
    }
};

const attention_case attention_cases[] = {
    {256, 16, 8, 300, 0, 1024, 0, false, STORE_CHUNK},    {256, 16, 8, 333, 1111, 1024, 0, false, STORE_RING},
    {256, 8, 1, 70, 601, 512, 0, false, STORE_RING},      {512, 16, 2, 200, 0, 0, 0, true, STORE_CHUNK},
    {512, 16, 2, 133, 777, 0, 0, true, STORE_PAGES},      {512, 8, 1, 77, 500, 0, 300, false, STORE_PAGES},
    {512, 16, 1, 40, 129, 0, 0, true, STORE_PAGES},       {128, 32, 8, 150, 333, 0, 0, false, STORE_PAGES},
    {64, 6, 2, 99, 250, 100, 0, false, STORE_RING},       {64, 4, 4, 17, 3, 16, 0, true, STORE_RING},
    {256, 16, 8, 100, 900, 1024, 800, false, STORE_RING}, {256, 32, 16, 200, 64, 1024, 0, false, STORE_CHUNK},
    {512, 16, 2, 20, 60, 0, 70, true, STORE_PAGES},       {512, 16, 2, 90, 8150, 0, 0, true, STORE_PAGES},
    {256, 8, 2, 40, 16390, 0, 100, true, STORE_PAGES},    {256, 10, 2, 1, 2000, 1024, 0, false, STORE_RING},
};

const char *describe(const attention_case &c) {
    static char text[160];
    std::snprintf(text, sizeof text, "dim %d heads %d/%d rows %d at %d window %d evicted %d%s store %d", c.dim, c.heads,
                  c.kv_heads, c.rows, c.first, c.window, c.evicted_end, c.derived ? " K = V" : "",
                  static_cast<int>(c.store));
    return text;
}

/* Keys and values of the evicted positions of three segments, one of which has none, from rings of latents whose first
 * position lies in the middle, against the plain product with norms, turns and scales in double. Rows behind the last
 * one stay as they were. */
void check_restored() {
    const int rank = 96, capacity = 336, heads = 2, head_dim = 256, pairs = head_dim / 2, columns = heads * head_dim;
    const int segments = 3, begin[segments] = {1000, 77, 5002}, count[segments] = {290, 0, 131}, all = 421, room = 512;
    const float eps = 1e-6f, base = 10000.0f;
    size_t rows = (size_t)segments * capacity;
    device_array<uint16_t> codes(rows * 2 * rank), decoder((size_t)columns * rank), out((size_t)room * columns),
        gathered_codes((size_t)room * 2 * rank);
    device_array<float> scales(rows * heads), norm(head_dim), frequency(pairs), raw(rows * columns),
        gathered_scales((size_t)room * heads);
    device_array<float2> turns((size_t)room * pairs);
    device_array<int> positions(room);
    device_array<cuda_batch> batch(1);
    device_array<cuda_cache_view> view(segments);
    randomize(codes, 1.0f);
    randomize(decoder, 0.1f);
    randomize(scales, 0.5f, 1.0f);
    randomize(norm, 0.3f, 1.0f);
    std::vector<float> inverse(pairs);
    for (int j = 0; j < pairs; j++) inverse[j] = std::pow(base, -2.0f * j / head_dim);
    frequency.set(inverse);
    std::vector<cuda_cache_view> host_view(segments);
    std::vector<cuda_batch> host_batch(1);
    std::vector<int> slot_of, position_of;
    for (int s = 0; s < segments; s++) {
        host_view[s].latent = {(unsigned char *)(codes.data + (size_t)s * capacity * 2 * rank),
                               scales.data + (size_t)s * capacity * heads, capacity, heads};
        cuda_step &step = host_batch[0].step[s];
        step.cache = view.data + s;
        step.restored_begin[0] = begin[s];
        step.restored_first[0] = (int)slot_of.size();
        for (int p = begin[s]; p < begin[s] + count[s]; p++) {
            slot_of.push_back(s * capacity + p % capacity);
            position_of.push_back(p);
        }
    }
    host_batch[0].segments = segments;
    host_batch[0].restored_rows[0] = all;
    view.set(host_view);
    batch.set(host_batch);
    cuda_restore r = {};
    device_array<uint16_t> other((size_t)room * columns);
    cuda_matrix matrix = {decoder.data, CUDA_FORM_BF16, columns, rank, rank};
    r.gathered = {gathered_codes.data, gathered_scales.data, turns.data, positions.data};
    r.gathered.latent = {CUDA_LATENT_BF16, rank, rank, 2 * rank, rank, 4 * rank, 2 * rank};
    r.gathered.heads = heads, r.gathered.pairs = pairs, r.latent = r.gathered.latent;
    r.k_norm = norm.data, r.eps = eps, r.decoder_k = r.decoder_v = &matrix;
    r.pairs = pairs, r.kv_heads = heads, r.head_dim = head_dim, r.rank_k = r.rank_v = rank;
    if (!prompt_gemm_restores(&r)) {
        std::printf("restored keys and values: not in one product on this device\n");
        return;
    }
    cuda_launch launch = {};
    launch.multiprocessors = 5; /* fewer blocks than tiles */
    cuda_gather_latents(&launch, batch.data, &r.gathered, frequency.data, room);
    std::vector<float> norms = norm.get(), host_scales = scales.get();
    for (int keys = 1; keys >= 0; keys--) {
        prompt_gemm_args args = {};
        args.a = codes.data + (keys ? 0 : rank), args.lda = 2 * rank, args.w = decoder.data, args.ldw = rank;
        args.m = (int)rows, args.n = columns, args.k = rank, args.ldo = columns, args.out = raw.data;
        CHECK(prompt_gemm(&args, nullptr));
        out.poison();
        r.k = keys ? out.data : other.data;
        r.v = keys ? other.data : out.data;
        CHECK(prompt_gemm_restore(&launch, batch.data, &r, room, 0));
        std::vector<float> plain = raw.get();
        std::vector<uint16_t> found = out.get();
        double worst = 0;
        bool untouched = true;
        for (int row = 0; row < room; row++) {
            size_t slot = row < all ? (size_t)slot_of[row] : 0;
            for (int h = 0; h < heads; h++) {
                const float *x = &plain[(slot * heads + h) * head_dim];
                const uint16_t *y = &found[((size_t)row * heads + h) * head_dim];
                double squares = 0;
                for (int i = 0; i < head_dim; i++) squares += (double)x[i] * x[i];
                double scale = keys ? 1 / std::sqrt(squares / head_dim + eps) : host_scales[slot * heads + h];
                for (int i = 0; i < head_dim; i++) {
                    if (row >= all) {
                        untouched = untouched && y[i] == 0xffff;
                        continue;
                    }
                    int j = i % pairs;
                    double angle = (double)((float)position_of[row] * inverse[j]), low = x[j] * scale,
                           high = x[j + pairs] * scale, wanted = x[i] * scale;
                    if (keys) {
                        low *= norms[j], high *= norms[j + pairs];
                        wanted = i < pairs ? low * std::cos(angle) - high * std::sin(angle)
                                           : high * std::cos(angle) + low * std::sin(angle);
                    }
                    uint32_t bits = (uint32_t)y[i] << 16;
                    float value;
                    std::memcpy(&value, &bits, sizeof value);
                    double error = std::fabs(value - wanted) / (std::fabs(wanted) + 0.05);
                    if (!(error <= worst) && worst == worst) worst = error; /* NaN is worst */
                }
            }
        }
        report(worst < 6e-3 && untouched, "restored %s: largest error %.2g%s", keys ? "keys" : "values", worst,
               untouched ? "" : ", rows behind the last position were written");
    }
}

void check_attention() {
    for (attention_case c : attention_cases) {
        attention_inputs in(c);
        if (c.store == STORE_CHUNK) in.c.store = STORE_PAGES; /* and no position before the chunk */
        size_t out_count = in.q.count, kv_count = in.k.count, states = static_cast<size_t>(c.rows) * c.heads;
        device_array<float> q(out_count), k(kv_count), v(kv_count), want(out_count), want_m(states), want_l(states);
        widen_kernel<<<static_cast<unsigned>((out_count + 255) / 256), 256>>>(in.q.data, q.data, out_count);
        widen_kernel<<<static_cast<unsigned>((kv_count + 255) / 256), 256>>>(in.v.data, v.data, kv_count);
        if (c.derived) {
            reference_keys<<<static_cast<unsigned>((kv_count + 255) / 256), 256>>>(
                in.v.data, in.norm.data, in.cosine.data, in.sine.data, in.pairs, in.positions, c.kv_heads, c.dim,
                k.data);
        } else {
            widen_kernel<<<static_cast<unsigned>((kv_count + 255) / 256), 256>>>(in.k.data, k.data, kv_count);
        }
        CHECK(cudaFuncSetAttribute(reference_attention, cudaFuncAttributeMaxDynamicSharedMemorySize, 80 * 1024));
        reference_attention<<<dim3(c.rows, c.heads), 128, (in.positions + 3) / 4 * 4 * sizeof(float)>>>(
            q.data, k.data, v.data, c.first, c.heads, c.kv_heads, c.dim, c.window, c.evicted_end, want.data,
            want_m.data, want_l.data);
        CHECK(cudaGetLastError());
        std::vector<float> expected = want.get(), expected_m = want_m.get(), expected_l = want_l.get();

        device_array<float> out(out_count), m(states), l(states);
        device_array<uint16_t> out_bf16(out_count);
        bool slabs = c.derived && in.positions > PROMPT_SLAB_POSITIONS;
        out.poison();
        prompt_attention_args a = in.args(0, c.rows, c.store == STORE_CHUNK ? 0 : c.first, out.data, true);
        a.q = q.data;
        a.q_is_f32 = 1;
        if (slabs) a.m = m.data, a.l = l.data;
        CHECK(prompt_attention(&a, 0));
        std::vector<float> got = out.get();
        double error = relative_error(got, expected);
        report(error < 6e-3, "attention %s: relative error %.2e, limit 6e-03", describe(c), error);

        if (!slabs) {
            out_bf16.poison();
            a = in.args(0, c.rows, c.store == STORE_CHUNK ? 0 : c.first, out_bf16.data, false);
            CHECK(prompt_attention(&a, 0));
            error = relative_error(widen(out_bf16.get()), got);
            report(error < 3e-3, "  as bf16: relative error to float32 %.2e, limit 3e-03", error);
        }

        out.poison();
        m.poison();
        l.poison();
        a = in.args(0, c.rows, c.store == STORE_CHUNK ? 0 : c.first, out.data, true);
        a.m = m.data;
        a.l = l.data;
        a.undivided = 1;
        CHECK(prompt_attention(&a, 0));
        std::vector<float> state = out.get(), got_m = m.get(), got_l = l.get();
        double worst = 0;
        bool empty_rows_match = true;
        for (size_t i = 0; i < states; i++) {
            if (expected_l[i] == 0) {
                empty_rows_match = empty_rows_match && got_l[i] == 0 && std::isinf(got_m[i]);
                continue;
            }
            double difference = std::fabs(std::log(got_l[i]) + got_m[i] - std::log(expected_l[i]) - expected_m[i]);
            worst = difference <= worst ? worst : difference; /* keeps a NaN */
            for (int d = 0; d < c.dim; d++) state[i * c.dim + d] /= got_l[i];
        }
        error = relative_error(state, got);
        report(empty_rows_match && worst < 2e-2 && error < 1e-6,
               "  states: log-sum-exp off by %.1e, limit 2e-02; o / l off by %.1e, limit 1e-06", worst, error);

        /* The same rows in chunks of odd sizes. */
        std::vector<float> pieces;
        out.poison();
        for (int row = 0, n = 1; row < c.rows; row += n, n = n * 3 + 4) {
            n = std::min(n, c.rows - row);
            a = in.args(row, n, c.first + row, out.data + static_cast<size_t>(row) * c.heads * c.dim, true);
            if (slabs) a.m = m.data, a.l = l.data;
            CHECK(prompt_attention(&a, 0));
            CHECK(cudaDeviceSynchronize()); /* the ring is filled anew for the next chunk */
        }
        pieces = out.get();
        size_t differing = 0;
        for (size_t i = 0; i < out_count; i++) differing += std::memcmp(&pieces[i], &got[i], sizeof(float)) != 0;
        report(differing == 0, "  in chunks: %zu of %zu values differ, limit 0", differing, out_count);
    }
}

/* ---- times ---- */

/* Median time of `launch(i)` in microseconds. */
template <class F> double time_us(const F &launch) {
    const int warm = 3, repeats = 15;
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < warm + repeats; i++) {
        CHECK(cudaEventRecord(begin));
        CHECK(launch(i));
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i >= warm) times.push_back(ms * 1000);
    }
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

constexpr double PEAK_TFLOPS = 790; /* a large bf16 product of random numbers on an H200, by the vendor's library */

double print_time(const char *name, double us, double flops) {
    double tflops = flops / us * 1e-6;
    std::printf("%-58s %9.1f us  %6.1f TFLOP/s  %5.1f %% of %.0f\n", name, us, tflops, tflops / PEAK_TFLOPS * 100,
                PEAK_TFLOPS);
    return us;
}

double time_dense(const char *name, int m, int n, int k, prompt_gemm_output output) {
    const int sets = 4; /* so that W does not stay in the cache */
    bool gated = is_gated(output);
    size_t matrix = static_cast<size_t>(n) * k * (gated ? 2 : 1);
    device_array<uint16_t> a(static_cast<size_t>(m) * k), w(matrix * sets);
    device_array<float> out(static_cast<size_t>(m) * n);
    randomize(a, 1.0f);
    randomize(w, 0.02f);
    double us = time_us([&](int i) {
        const uint16_t *first = w.data + static_cast<size_t>(i % sets) * matrix;
        prompt_gemm_args g = {a.data,
                              static_cast<size_t>(k),
                              first,
                              gated ? first + static_cast<size_t>(n) * k : nullptr,
                              static_cast<size_t>(k),
                              out.data,
                              static_cast<size_t>(n),
                              m,
                              n,
                              k,
                              output};
        return prompt_gemm(&g, 0);
    });
    char text[96];
    std::snprintf(text, sizeof text, "%s [%d x %d x %d]", name, m, gated ? 2 * n : n, k);
    return print_time(text, us, 2.0 * m * k * n * (gated ? 2 : 1));
}

double time_grouped(const char *name, int tokens, int n, int k, bool gather, prompt_gemm_output output) {
    const int experts = 128, top = 8;
    int slots = tokens * top;
    std::vector<std::vector<int>> members(experts);
    std::srand(7);
    for (int t = 0; t < tokens; t++) {
        bool taken[experts] = {};
        for (int i = 0; i < top;) {
            int e = std::rand() % experts;
            if (taken[e]) continue;
            taken[e] = true;
            members[e].push_back(t);
            i++;
        }
    }
    std::vector<int> begin(experts + 1, 0), rows;
    for (int e = 0; e < experts; e++) {
        begin[e + 1] = begin[e] + static_cast<int>(members[e].size());
        rows.insert(rows.end(), members[e].begin(), members[e].end());
    }
    bool gated = is_gated(output);
    size_t stride = static_cast<size_t>(n) * k * (gated ? 2 : 1);
    device_array<uint16_t> a(static_cast<size_t>(gather ? tokens : slots) * k), w(stride * experts);
    device_array<float> out(static_cast<size_t>(slots) * n);
    device_array<int> device_begin(begin.size()), device_rows(rows.size());
    randomize(a, 1.0f);
    randomize(w, 0.02f);
    device_begin.set(begin);
    device_rows.set(rows);
    prompt_gemm_grouped_args g = {};
    g.product = {a.data,
                 static_cast<size_t>(k),
                 w.data,
                 gated ? w.data + static_cast<size_t>(n) * k : nullptr,
                 static_cast<size_t>(k),
                 out.data,
                 static_cast<size_t>(n),
                 slots,
                 n,
                 k,
                 output};
    device_array<unsigned> counter(1);
    counter.set({0});
    g.expert_begin = device_begin.data;
    g.counter = counter.data;
    g.rows = gather ? device_rows.data : nullptr;
    g.expert_stride = stride;
    g.experts = experts;
    double us = time_us([&](int) { return prompt_gemm_grouped(&g, 0); });
    char text[96];
    std::snprintf(text, sizeof text, "%s [%d slots, %d x %d]", name, slots, gated ? 2 * n : n, k);
    return print_time(text, us, 2.0 * slots * k * n * (gated ? 2 : 1));
}

double time_attention(const char *name, const attention_case &c) {
    attention_inputs in(c);
    bool slabs = c.derived && in.positions > PROMPT_SLAB_POSITIONS;
    device_array<float> out(in.q.count), m(static_cast<size_t>(c.rows) * c.heads), l(m.count);
    prompt_attention_args a = in.args(0, c.rows, c.first, out.data, slabs);
    if (slabs) a.m = m.data, a.l = l.data;
    double pairs = 0;
    for (int t = c.first; t < c.first + c.rows; t++) pairs += c.window > 0 ? std::min(t + 1, c.window) : t + 1;
    double us = time_us([&](int) { return prompt_attention(&a, 0); });
    char text[96];
    std::snprintf(text, sizeof text, "%s [%d rows at %d, dim %d, %d/%d]", name, c.rows, c.first, c.dim, c.heads,
                  c.kv_heads);
    return print_time(text, us, 4.0 * pairs * c.heads * c.dim);
}

void print_times() {
    std::printf("\nMedian times, gemma 4 26b-a4b shapes\n");
    for (int m : {4096, 1024, 64}) {
        double sliding = time_dense("q, sliding", m, 4096, 2816, PROMPT_GEMM_F32);
        sliding += 2 * time_dense("k or v, sliding", m, 2048, 2816, PROMPT_GEMM_F32);
        sliding += time_dense("o, sliding", m, 2816, 4096, PROMPT_GEMM_F32);
        double full = time_dense("q, full", m, 8192, 2816, PROMPT_GEMM_F32);
        full += time_dense("k = v, full", m, 1024, 2816, PROMPT_GEMM_F32);
        full += time_dense("o, full", m, 2816, 8192, PROMPT_GEMM_F32);
        double both = time_dense("dense gate and up", m, 2112, 2816, PROMPT_GEMM_GELU_BF16);
        both += time_dense("dense down", m, 2816, 2112, PROMPT_GEMM_F32);
        both += time_dense("router", m, 128, 2816, PROMPT_GEMM_F32);
        both += time_grouped("experts gate and up", m, 704, 2816, true, PROMPT_GEMM_GELU_BF16);
        both += time_grouped("experts down", m, 2816, 704, false, PROMPT_GEMM_F32);
        sliding += time_attention("attention, sliding", {256, 16, 8, m, 0, 1024, 0, false, STORE_CHUNK});
        full += time_attention("attention, full", {512, 16, 2, m, 0, 0, 0, true, STORE_CHUNK});
        double total = 25 * sliding + 5 * full + 30 * both;
        std::printf("products and attention of a prompt of %d tokens: %.2f ms, %.0f tokens/s\n\n", m, total / 1000,
                    m / total * 1e6);
    }
    time_grouped("experts gate and up, rows in order", 4096, 704, 2816, false, PROMPT_GEMM_GELU_BF16);
    time_grouped("experts down, bf16 results", 4096, 2816, 704, false, PROMPT_GEMM_BF16);
    time_attention("attention, full, behind pages", {512, 16, 2, 4096, 12288, 0, 0, true, STORE_PAGES});
    time_attention("attention, sliding, behind a ring", {256, 16, 8, 4096, 4096, 1024, 0, false, STORE_RING});
    time_attention("attention, full, dim 256", {256, 16, 8, 4096, 4096, 0, 0, false, STORE_PAGES});
    time_attention("attention, draft form", {128, 32, 8, 2048, 0, 0, 0, false, STORE_CHUNK});
}

} // namespace

int main(int argc, char **argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    std::printf("%s, compute capability %d.%d, %d multiprocessors\n", device.name, device.major, device.minor,
                device.multiProcessorCount);
    if (argc < 2 || std::strcmp(argv[1], "times") != 0) {
        check_dense();
        check_row_invariance();
        check_grouped();
        check_grouped_invariance();
        check_router();
        check_routes_of_many_rows();
        check_restored();
        check_attention();
        std::printf("%d failures\n", failures);
    }
    if (argc < 2 || std::strcmp(argv[1], "check") != 0) print_times();
    return failures ? 1 : 0;
}
