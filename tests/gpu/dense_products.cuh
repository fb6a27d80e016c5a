/* Dense products of many decode rows in bf16, part of quant_kernels: the kernels of products_wide.cu and
 * products_dense.cuh against the kernel for few rows, and their speed. */
#ifndef KAKEYA_TESTS_GPU_DENSE_PRODUCTS_CUH
#define KAKEYA_TESTS_GPU_DENSE_PRODUCTS_CUH

#include <functional>

#include "backend/cuda/products_wide.h"
#include "gpu/prompt_support.cuh"

namespace {

/* many: of a device whose blocks have the shared memory that kernels for many rows take. With one multiprocessor these
 * kernels are always launched. */
cuda_launch make_launch(cudaStream_t stream, bool programmatic, bool many = false) {
    int count = 0;
    CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
    cuda_launch l = {};
    l.stream = stream;
    l.multiprocessors = count;
    l.programmatic = programmatic;
    l.block_bytes = many ? 227 << 10 : 0;
    return l;
}

/* A graph of launches: us of one, the median of ten. */
double microseconds(cudaStream_t stream, int launches, const std::function<void(int)> &run) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; i++) run(i);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t start, end;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < 12; i++) {
        CHECK(cudaEventRecord(start, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, start, end));
        if (i >= 2) times.push_back(ms * 1000);
    }
    std::sort(times.begin(), times.end());
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return times[times.size() / 2] / launches;
}

/* ---- dense products of many rows in bf16: mma.sync, wgmma, and wgmma with the chains dealt to a cluster ---- */

enum dense_kernels { FEW_ROWS, MANY_ROWS, WGMMA, WGMMA_CLUSTER, AS_CHOSEN, DENSE_KERNELS };
cuda_launch launch_of(dense_kernels k, cudaStream_t stream = 0) {
    cuda_launch l = make_launch(stream, true, k != FEW_ROWS);
    if (k == MANY_ROWS) l.block_bytes = 200 << 10; /* too few for the wgmma kernel */
    if (k == WGMMA) l.multiprocessors = 1;         /* all tiles are many */
    if (k == WGMMA_CLUSTER) l.multiprocessors = 1 << 20;
    return l;
}

/* Three products of rows x, or a feed-forward block's gate and up (gated) of `out` each. */
struct dense_case {
    const char *name;
    int out[3], in;
    bool gated;
};
const dense_case dense_cases[] = {{"26b-a4b q/k/v", {4096, 2048, 2048}, 2816, false},
                                  {"26b-a4b o", {2816}, 4096, false},
                                  {"26b-a4b o, full", {2816}, 8192, false},
                                  {"26b-a4b gate/up", {2112}, 2816, true},
                                  {"26b-a4b down", {2816}, 2112, false},
                                  {"31b q/k/v", {8192, 4096, 4096}, 5376, false},
                                  {"31b o", {5376}, 8192, false},
                                  {"31b gate/up", {21504}, 5376, true},
                                  {"31b down", {5376}, 21504, false},
                                  {"12b q/k/v", {4096, 2048, 2048}, 3840, false},
                                  {"12b o", {3840}, 4096, false},
                                  {"12b gate/up", {15360}, 3840, true},
                                  {"12b down", {3840}, 15360, false},
                                  {"e4b q/k/v", {2048, 512, 512}, 2560, false},
                                  {"e4b o", {2560}, 2048, false},
                                  {"e4b gate/up", {10240}, 2560, true},
                                  {"e4b down", {2560}, 10240, false},
                                  {"odd", {1000, 7, 130}, 1568, false},
                                  {"odd, two chains", {203}, 768, false},
                                  {"odd gate/up", {333}, 1568, true}};

struct dense_run {
    const dense_case &c;
    int outs, wide; /* outputs of a row of y; matrices' rows in all */
    device_array<uint16_t> w, x, act;
    device_array<float> y;

    dense_run(const dense_case &c, int copies, int rows)
        : c(c), outs(c.out[0] + c.out[1] + c.out[2]), wide(c.gated ? 2 * outs : outs),
          w(static_cast<size_t>(wide) * c.in * copies), x(static_cast<size_t>(rows + 1) * c.in),
          act(static_cast<size_t>(rows) * outs), y(static_cast<size_t>(rows) * outs) {
        randomize(w, 0.5f);
        randomize(x, 1.0f);
    }
    void run(const cuda_launch &l, int copy, int rows) {
        cuda_bf16 *at = reinterpret_cast<cuda_bf16 *>(w.data) + static_cast<size_t>(copy) * wide * c.in;
        if (c.gated) {
            cuda_feed_forward f = {};
            f.gate = {at, CUDA_FORM_BF16, outs, c.in, c.in, false};
            f.up = {at + static_cast<size_t>(outs) * c.in, CUDA_FORM_BF16, outs, c.in, c.in, false};
            f.down.ld = outs;
            f.x_dense = x.data;
            f.ldx = c.in;
            f.act = act.data;
            cuda_route route = {};
            cuda_gate_up(&l, &f, &route, rows);
            return;
        }
        cuda_product products[3];
        int n = 0, first = 0;
        for (; n < 3 && c.out[n]; n++) {
            products[n] = {at + static_cast<size_t>(first) * c.in, y.data + first, c.out[n], outs, false};
            first += c.out[n];
        }
        cuda_products(&l, products, n, c.in, x.data, c.in, rows, 0);
    }
};

/* What follows the last row of x is NaN. */
void check_dense() {
    for (const dense_case &c : dense_cases) {
        for (int rows : {33, 65, 97, 128, 129, 191, 256}) {
            dense_run r(c, 1, rows);
            CHECK(cudaMemset(r.x.data + static_cast<size_t>(rows) * c.in, 0xff, c.in * 2));
            std::vector<float> y[DENSE_KERNELS];
            std::vector<uint16_t> act[DENSE_KERNELS];
            for (dense_kernels k : {FEW_ROWS, MANY_ROWS, WGMMA, WGMMA_CLUSTER, AS_CHOSEN}) {
                r.y.poison();
                r.act.poison();
                r.run(launch_of(k), 0, rows);
                CHECK(cudaDeviceSynchronize());
                y[k] = r.y.get();
                act[k] = r.act.get();
            }
            for (dense_kernels k : {MANY_ROWS, WGMMA, WGMMA_CLUSTER, AS_CHOSEN})
                report(act[k] == act[FEW_ROWS] &&
                           std::memcmp(y[k].data(), y[FEW_ROWS].data(), y[k].size() * sizeof(float)) == 0,
                       "dense %s, %d rows, kernel %d: the bits of the kernel for few rows", c.name, rows, k);
        }
    }
}

/* The kernel of mma.sync, both forms of the other, and what is launched. */
void dense_times() {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    for (const dense_case &c : dense_cases) {
        if (!std::strncmp(c.name, "odd", 3)) continue;
        int copies = 8;
        dense_run r(c, copies, 256);
        std::printf("dense %-16s", c.name);
        for (int rows : {40, 64, 96, 128, 160, 192, 256}) {
            std::printf("  %3d rows", rows);
            for (dense_kernels k : {MANY_ROWS, WGMMA, WGMMA_CLUSTER, AS_CHOSEN}) {
                if (c.gated && (rows < 129 || k == WGMMA || k == WGMMA_CLUSTER)) continue;
                std::printf(" %6.1f",
                            microseconds(stream, copies, [&](int i) { r.run(launch_of(k, stream), i, rows); }));
            }
        }
        std::printf(" us\n");
    }
    CHECK(cudaStreamDestroy(stream));
}

} /* namespace */

#endif
