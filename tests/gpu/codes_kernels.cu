/* Prompt products of quantised weights as they lie: the bits of prompt_gemm.h with the weights that quant_expand
 * writes, and their times beside those of both.
 *
 *   codes_kernels            every check, then the table of times
 *   codes_kernels check      checks only
 *   codes_kernels times      times only
 */
#include <functional>

#include "backend/cuda/prompt_gemm.h"
#include "backend/cuda/quant.h"
#include "gpu/prompt_support.cuh"

namespace {

struct form_case {
    cuda_form form;
    const char *name;
};
const form_case forms[] = {{CUDA_FORM_Q4, "q4"}, {CUDA_FORM_Q8, "q8"}, {CUDA_FORM_A4, "a4"}, {CUDA_FORM_A8, "a8"},
                           {CUDA_FORM_G8, "g8"}, {CUDA_FORM_F8, "f8"}, {CUDA_FORM_S4, "s4"}, {CUDA_FORM_G4, "g4"}};

cuda_launch make_launch(cudaStream_t stream) {
    cuda_launch l = {};
    l.stream = stream;
    CHECK(cudaDeviceGetAttribute(&l.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    return l;
}

/* A random matrix as codes, and as quant_expand writes it. */
struct both_forms {
    device_array<unsigned char> codes;
    device_array<uint16_t> wide;
    cuda_matrix matrix;

    both_forms(cuda_form form, int out, int in, uint64_t seed)
        : codes(static_cast<size_t>(out) / QUANT_ROWS * quant_strip_bytes(form, cuda_padded(in))),
          wide(static_cast<size_t>(out) * cuda_padded(in)) {
        cuda_launch l = make_launch(0);
        matrix = {reinterpret_cast<cuda_bf16 *>(codes.data), form, out, in, cuda_padded(in), false};
        quant_fill_random(&l, &matrix, 0.05f, seed);
        expand(&l);
    }
    void expand(const cuda_launch *l) { quant_expand(l, &matrix, matrix.out, wide.data); }
};

bool is_gated(prompt_gemm_output output) { return output == PROMPT_GEMM_GELU_BF16 || output == PROMPT_GEMM_SILU_BF16; }

size_t bytes_of(prompt_gemm_output output) { return output == PROMPT_GEMM_F32 ? sizeof(float) : sizeof(uint16_t); }

/* The same product twice: of codes, and of expanded weights. */
bool same_bits(prompt_gemm_grouped_args args, const both_forms &w, size_t up_row, size_t expert_rows, size_t slots) {
    device_array<unsigned char> results[2] = {
        device_array<unsigned char>(slots * args.product.ldo * bytes_of(args.product.output)),
        device_array<unsigned char>(slots * args.product.ldo * bytes_of(args.product.output))};
    const bool gated = is_gated(args.product.output);
    for (int codes = 0; codes < 2; codes++) {
        results[codes].poison();
        args.product.out = results[codes].data;
        if (codes) {
            const size_t strip = quant_strip_bytes(w.matrix.form, w.matrix.ld);
            args.product.w = w.matrix.data;
            args.product.w_up = gated ? w.matrix.data + up_row / QUANT_ROWS * strip / sizeof(uint16_t) : nullptr;
            args.expert_stride = expert_rows / QUANT_ROWS;
            prompt_gemm_codes_args of_codes = {args, w.matrix.form};
            CHECK(prompt_gemm_codes(&of_codes, 0));
        } else {
            args.product.w = w.wide.data;
            args.product.w_up = gated ? w.wide.data + up_row * w.matrix.ld : nullptr;
            args.expert_stride = expert_rows * w.matrix.ld;
            if (args.expert_begin)
                CHECK(prompt_gemm_grouped(&args, 0));
            else
                CHECK(prompt_gemm(&args.product, 0));
        }
    }
    return results[0].get() == results[1].get();
}

const prompt_gemm_output outputs[] = {PROMPT_GEMM_F32, PROMPT_GEMM_BF16, PROMPT_GEMM_GELU_BF16, PROMPT_GEMM_SILU_BF16};

void check_dense(const form_case &c) {
    static const int shapes[][2] = {{48, 96}, {8, 32}, {704, 704}, {264, 2112}, {2816, 2112}, {176, 4096}, {40, 160}};
    for (const auto &s : shapes) {
        const int n = s[0], k = s[1];
        both_forms w(c.form, 2 * n, k, 7);
        bool same = true;
        for (int m : {1, 17, 64, 130, 300, 700}) {
            device_array<uint16_t> x(static_cast<size_t>(m) * w.matrix.ld);
            randomize(x, 1.0f);
            for (prompt_gemm_output output : outputs) {
                prompt_gemm_grouped_args args = {};
                args.product = {
                    x.data,  static_cast<size_t>(w.matrix.ld), nullptr, nullptr, static_cast<size_t>(w.matrix.ld),
                    nullptr, static_cast<size_t>(n),           m,       n,       w.matrix.ld,
                    output};
                same &= same_bits(args, w, n, 0, m);
            }
        }
        report(same, "%s: %d outputs of %d, up to 700 rows: the bits of expanded weights", c.name, n, k);
    }
}

void check_experts(const form_case &c) {
    static const int counts[] = {0, 3, 300, 64, 1, 0, 257, 16, 9};
    enum { EXPERTS = sizeof counts / sizeof *counts };
    std::vector<int> begin = {0};
    for (int count : counts) begin.push_back(begin.back() + count);
    const int slots = begin.back();
    device_array<int> d_begin(begin.size());
    device_array<unsigned> counter(1);
    d_begin.set(begin);
    counter.set({0});
    for (const auto &s : {std::pair<int, int>{96, 256}, {704, 352}, {24, 2816}, {2816, 704}}) {
        const int n = s.first, k = s.second;
        bool same = true;
        for (prompt_gemm_output output : outputs) {
            const int expert_rows = is_gated(output) ? 2 * n : n;
            both_forms w(c.form, EXPERTS * expert_rows, k, 8);
            device_array<uint16_t> x(static_cast<size_t>(slots) * w.matrix.ld);
            randomize(x, 1.0f);
            prompt_gemm_grouped_args args = {};
            args.product = {
                x.data,  static_cast<size_t>(w.matrix.ld), nullptr, nullptr, static_cast<size_t>(w.matrix.ld),
                nullptr, static_cast<size_t>(n),           slots,   n,       w.matrix.ld,
                output};
            args.expert_begin = d_begin.data;
            args.experts = EXPERTS;
            args.counter = counter.data;
            same &= same_bits(args, w, n, expert_rows, slots);
        }
        report(same, "%s experts: %d outputs of %d: the bits of expanded weights", c.name, n, k);
    }
}

/* ------------------------------------------------------------------------------------------------------------- times
 */

double microseconds(const std::function<void()> &run) {
    cudaEvent_t start, end;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    std::vector<float> each;
    for (int i = 0; i < 9; i++) {
        float ms;
        CHECK(cudaEventRecord(start, 0));
        run();
        CHECK(cudaEventRecord(end, 0));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, start, end));
        if (i >= 2) each.push_back(ms * 1000);
    }
    std::sort(each.begin(), each.end());
    CHECK(cudaEventDestroy(start));
    CHECK(cudaEventDestroy(end));
    return each[each.size() / 2];
}

/* The 26B-A4B's products, as codes, expanded first, and of weights that are bf16. */
void times(const form_case &c) {
    struct product_case {
        const char *name;
        int n, k, experts;
        bool gated;
    };
    static const product_case cases[] = {{"q/k/v", 8192, 2816, 0, false},
                                         {"dense gate/up", 2112, 2816, 0, true},
                                         {"experts gate/up", 704, 2816, 128, true},
                                         {"experts down", 2816, 704, 128, false}};
    cuda_launch l = make_launch(0);
    device_array<unsigned> counter(1);
    counter.set({0});
    for (const product_case &p : cases) {
        const int rows_of_one = (p.gated ? 2 : 1) * p.n, all = rows_of_one * (p.experts ? p.experts : 1);
        both_forms w(c.form, all, p.k, 9);
        for (int rows : {128, 512, 4096}) {
            const int m = p.experts ? rows * 8 : rows;
            std::vector<int> begin;
            for (int e = 0; e <= p.experts; e++) begin.push_back(p.experts ? m / p.experts * e : 0);
            device_array<int> d_begin(begin.size());
            d_begin.set(begin);
            device_array<uint16_t> x(static_cast<size_t>(m) * p.k);
            randomize(x, 1.0f);
            device_array<float> y(static_cast<size_t>(m) * p.n);
            prompt_gemm_grouped_args args = {};
            args.product = {x.data,
                            static_cast<size_t>(p.k),
                            w.wide.data,
                            nullptr,
                            static_cast<size_t>(p.k),
                            y.data,
                            static_cast<size_t>(p.n),
                            m,
                            p.n,
                            p.k,
                            p.gated ? PROMPT_GEMM_GELU_BF16 : PROMPT_GEMM_F32};
            if (p.gated) args.product.w_up = w.wide.data + static_cast<size_t>(p.n) * p.k;
            args.expert_begin = p.experts ? d_begin.data : nullptr;
            args.experts = p.experts;
            args.counter = counter.data;
            args.expert_stride = static_cast<size_t>(rows_of_one) * p.k;
            prompt_gemm_codes_args codes = {args, c.form};
            codes.grouped.product.w = w.matrix.data;
            if (p.gated)
                codes.grouped.product.w_up =
                    w.matrix.data + p.n / QUANT_ROWS * quant_strip_bytes(c.form, p.k) / sizeof(uint16_t);
            codes.grouped.expert_stride = rows_of_one / QUANT_ROWS;
            auto wide = [&] { CHECK(p.experts ? prompt_gemm_grouped(&args, 0) : prompt_gemm(&args.product, 0)); };
            const double of_codes = microseconds([&] { CHECK(prompt_gemm_codes(&codes, 0)); }),
                         of_wide = microseconds(wide), of_both = microseconds([&] {
                                                           w.expand(&l);
                                                           wide();
                                                       });
            const double tera = 2.0 * m * p.n * p.k * (p.gated ? 2 : 1) / 1e6;
            std::printf(
                "%s %-16s %4d rows  codes %8.1f us %6.1f TFLOP/s %5.0f GB/s  bf16 %8.1f us  expanded first %8.1f "
                "us\n",
                c.name, p.name, rows, of_codes, tera / of_codes, static_cast<double>(w.codes.count) / of_codes / 1e3,
                of_wide, of_both);
        }
    }
}

} /* namespace */

int main(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : "";
    if (!prompt_gemm_bulk_runs()) {
        std::printf("1..0 # SKIP this GPU has no bulk tensor copies\n");
        return 0;
    }
    for (const form_case &c : forms) {
        if (std::strcmp(only, "times") != 0) {
            check_dense(c);
            check_experts(c);
        }
        if (std::strcmp(only, "check") != 0) times(c);
    }
    return failures ? 1 : 0;
}
