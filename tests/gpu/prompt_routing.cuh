/* Checks of the routers, of the grouping of rows by expert, and of products of such groups. */
#ifndef KAKEYA_TESTS_PROMPT_ROUTING_CUH
#define KAKEYA_TESTS_PROMPT_ROUTING_CUH

#include "gpu/prompt_support.cuh"

namespace {

/* A row of an expert has the bits that it has alone, whatever other rows the expert and its neighbours have. */
void check_grouped_invariance() {
    const int experts = 5, counts[experts] = {270, 0, 250, 37, 600}, n = 704, k = 256, slots = 1157;
    device_array<uint16_t> a(static_cast<size_t>(slots) * k), w(static_cast<size_t>(experts) * 2 * n * k);
    device_array<uint16_t> whole(static_cast<size_t>(slots) * n), part(static_cast<size_t>(slots) * n);
    device_array<int> begin(experts + 1);
    device_array<unsigned> counter(1);
    randomize(a, 1.0f);
    randomize(w, 0.06f);
    counter.set({0});
    std::vector<int> first(experts + 1, 0);
    for (int e = 0; e < experts; e++) first[e + 1] = first[e] + counts[e];
    begin.set(first);
    prompt_gemm_grouped_args g = {};
    g.product = {
        a.data, k, w.data, w.data + static_cast<size_t>(n) * k, k, whole.data, n, slots, n, k, PROMPT_GEMM_GELU_BF16};
    g.expert_begin = begin.data;
    g.expert_stride = static_cast<size_t>(2) * n * k;
    g.experts = experts;
    g.counter = counter.data;
    CHECK(prompt_gemm_grouped(&g, 0));
    std::vector<uint16_t> want = whole.get();
    for (int e = 0; e < experts; e++) {
        for (int rows : {1, 13, 37, 251}) {
            if (rows > counts[e]) continue;
            std::vector<int> alone(experts + 1, 0);
            for (int i = e; i < experts; i++) alone[i + 1] = rows;
            begin.set(alone);
            part.poison();
            g.product.a = a.data + static_cast<size_t>(first[e]) * k;
            g.product.out = part.data;
            g.product.m = rows;
            CHECK(prompt_gemm_grouped(&g, 0));
            std::vector<uint16_t> got = part.get();
            bool same = std::memcmp(got.data(), want.data() + static_cast<size_t>(first[e]) * n,
                                    static_cast<size_t>(rows) * n * sizeof(uint16_t)) == 0,
                 behind = got.size() == static_cast<size_t>(rows) * n || got[static_cast<size_t>(rows) * n] == 0xffff;
            report(same && behind, "%d rows of an expert with %d, alone: the same bits, and nothing behind them", rows,
                   counts[e]);
        }
    }
}

/* The router against logits in double, and the grouping: stable, by expert. */
void check_router() {
    struct routing {
        int rows, experts, hidden, rank;
    };
    for (const routing &c :
         {routing{70, 128, 2816, 8}, routing{4096, 128, 704, 8}, routing{33, 160, 72, 3}, routing{1, 16, 64, 2}}) {
        int ld = cuda_padded(c.hidden), slots = c.rows * c.rank;
        device_array<float> x(static_cast<size_t>(c.rows) * c.hidden), scale(c.experts), weight(slots),
            logits(static_cast<size_t>(c.rows) * c.experts);
        device_array<uint16_t> w(static_cast<size_t>(c.experts) * ld);
        device_array<int> expert(slots), row_of(slots), slot_of(slots), begin(c.experts + 1);
        randomize(x, 1.0f, 0.1f);
        randomize(scale, 0.2f, 1.0f);
        randomize(w, 0.1f);
        std::vector<uint16_t> matrix = w.get();
        for (int e = 0; e < c.experts; e++) { /* the padding is zero */
            for (int i = c.hidden; i < ld; i++) matrix[static_cast<size_t>(e) * ld + i] = 0;
        }
        w.set(matrix);
        expert.poison(), row_of.poison(), slot_of.poison(), begin.poison();
        cuda_route route = {};
        route.logits = logits.data;
        route.weight = weight.data;
        route.expert = expert.data;
        route.slot_row = row_of.data;
        route.slot_of = slot_of.data;
        route.begin = begin.data;
        route.experts = c.experts;
        route.rank = c.rank;
        cuda_router_weights weights = {w.data, scale.data, ld};
        cuda_launch l = {};
        cuda_router(&l, &route, &weights, x.data, c.hidden, c.rows);
        CHECK(cudaGetLastError());
        std::vector<int> chosen = expert.get(), rows = row_of.get(), slot = slot_of.get(), first = begin.get();
        std::vector<float> in = x.get(), factor = weight.get(), scales = scale.get(), values = widen(matrix);
        bool choices = true, places = first[0] == 0 && first[c.experts] == slots;
        std::vector<int> next(first.begin(), first.end() - 1);
        double worst = 0;
        for (int r = 0; r < c.rows; r++) {
            std::vector<double> z(c.experts, 0);
            for (int e = 0; e < c.experts; e++) {
                for (int i = 0; i < c.hidden; i++)
                    z[e] += static_cast<double>(in[static_cast<size_t>(r) * c.hidden + i]) *
                            values[static_cast<size_t>(e) * ld + i];
            }
            double sum = 0;
            for (int i = 0; i < c.rank; i++) sum += std::exp(z[chosen[r * c.rank + i]] - z[chosen[r * c.rank]]);
            for (int i = 0; i < c.rank; i++) {
                int e = chosen[r * c.rank + i], better = 0;
                for (int other = 0; other < c.experts; other++) better += z[other] > z[e] + 1e-4;
                choices &= better <= i;
                double want = std::exp(z[e] - z[chosen[r * c.rank]]) / sum * scales[e];
                worst = std::max(worst, std::fabs(factor[r * c.rank + i] - want));
                int at = slot[r * c.rank + i];
                places &= at == next[e] && at < first[e + 1] && rows[at] == r;
                next[e]++;
            }
        }
        report(choices && places && worst < 1e-4,
               "router of %d rows, %d experts, hidden %d: choices %d, places %d, error of weights %.1e", c.rows,
               c.experts, c.hidden, choices, places, worst);
    }
}

/* Rows after attention: many of them have the bits that they have in passes of CUDA_DECODE_ROWS and fewer, where one
 * kernel does everything. */
void check_routes_of_many_rows() {
    struct routing {
        int rows, experts, hidden, rank;
    };
    for (const routing &c :
         {routing{40, 128, 2816, 8}, routing{256, 128, 2816, 8}, routing{19, 33, 3328, 5}, routing{203, 16, 72, 2}}) {
        const int ld = cuda_padded(c.hidden), slots = c.rows * c.rank, units = cuda_route_units(c.experts, c.rank);
        const size_t values = static_cast<size_t>(c.rows) * c.hidden, logits = static_cast<size_t>(c.rows) * c.experts;
        device_array<float> h(values), branch(values), norms(static_cast<size_t>(4) * c.hidden), scale(c.experts);
        device_array<uint16_t> w(static_cast<size_t>(c.experts) * ld);
        device_array<unsigned> finished(1);
        device_array<int> row_count(1);
        randomize(h, 1.0f, 0.1f);
        randomize(branch, 1.0f, 0.0f);
        randomize(norms, 0.2f, 1.0f);
        randomize(scale, 0.2f, 1.0f);
        randomize(w, 0.1f);
        finished.set({0});
        struct outcome {
            std::vector<float> h, logits, weight;
            std::vector<uint16_t> dense, experts;
            std::vector<int> expert;
            bool same(const outcome &o) const {
                return std::memcmp(h.data(), o.h.data(), h.size() * sizeof(float)) == 0 && logits == o.logits &&
                       weight == o.weight && dense == o.dense && experts == o.experts && expert == o.expert;
            }
        } got[2];
        bool places = true;
        std::vector<int> few_experts; /* kernels for few rows write units alone */
        for (int many = 0; many < 2; many++) {
            device_array<float> out(values), x_router(values), z(logits), weight(slots);
            device_array<uint16_t> dense(static_cast<size_t>(c.rows) * ld), inputs(static_cast<size_t>(c.rows) * ld);
            device_array<int> expert(slots), row_of(slots), slot_of(slots), begin(c.experts + 1), active(units),
                active_begin(units), active_rows(units), active_count(1);
            out.poison(), z.poison(), weight.poison(), dense.poison(), inputs.poison(), expert.poison();
            const int each = many ? c.rows : CUDA_DECODE_ROWS;
            for (int first = 0; first < c.rows; first += each) {
                const int rows = std::min(each, c.rows - first);
                const size_t at = static_cast<size_t>(first) * c.hidden, to = static_cast<size_t>(first) * ld;
                row_count.set({rows});
                cuda_route route = {};
                route.logits = z.data + static_cast<size_t>(first) * c.experts;
                route.weight = weight.data + first * c.rank;
                route.expert = expert.data + first * c.rank;
                route.slot_row = row_of.data;
                route.slot_of = slot_of.data;
                route.begin = begin.data;
                route.active = active.data;
                route.active_begin = active_begin.data;
                route.active_rows = active_rows.data;
                route.active_count = active_count.data;
                route.finished = finished.data;
                route.row_count = row_count.data;
                route.experts = c.experts;
                route.rank = c.rank;
                cuda_after_attention a = {};
                a.branch = branch.data + at;
                a.post_attention_norm = norms.data;
                a.pre_ffn_norm = norms.data + c.hidden;
                a.pre_ffn_norm_2 = norms.data + 2 * c.hidden;
                a.router_scale = norms.data + 3 * c.hidden;
                a.h = h.data + at;
                a.h_out = out.data + at;
                a.x_dense = dense.data + to;
                a.x_experts = inputs.data + to;
                a.x_router = x_router.data;
                a.router = {w.data, scale.data, ld};
                a.eps = 1e-6f;
                a.hidden = c.hidden;
                a.ldx = ld;
                cuda_launch l = {};
                CHECK(cudaDeviceGetAttribute(&l.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
                cuda_after_attention_rows(&l, &a, &route, rows);
                CHECK(cudaGetLastError());
                CHECK(cudaDeviceSynchronize());
                if (many) continue;
                std::vector<int> slot = slot_of.get(), unit = active.get(), unit_begin = active_begin.get(),
                                 unit_rows = active_rows.get();
                const int units_used = active_count.get()[0];
                for (int s = 0; s < rows * c.rank; s++) {
                    int of = -1;
                    for (int u = 0; u < units_used; u++)
                        if (slot[s] >= unit_begin[u] && slot[s] < unit_begin[u] + unit_rows[u]) of = unit[u];
                    few_experts.push_back(of);
                }
            }
            got[many] = {out.get(),   z.get(),      weight.get(),
                         dense.get(), inputs.get(), many ? expert.get() : few_experts};
            if (!many) continue;
            std::vector<int> row = row_of.get(), slot = slot_of.get(), next = begin.get();
            for (int s = 0; s < slots; s++) { /* stable */
                int at = next[got[1].expert[s]]++;
                places &= at < slots && slot[s] == at && row[at] == s / c.rank;
            }
        }
        report(got[0].same(got[1]) && places,
               "route of %d rows, %d experts, hidden %d: the bits of few rows, and stable places", c.rows, c.experts,
               c.hidden);
    }
}

} // namespace

#endif
