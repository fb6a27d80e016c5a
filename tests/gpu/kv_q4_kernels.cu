/* K/V in 4 bits on a device (kv_q4.cuh) against the host's: the same bytes are stored, and what is read is bf16 of the
 * same values, however vectors are shared out among lanes. Runs as C++ on the host too (emulated_kv_q4.cpp). */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backend/cuda/kv_q4.cuh"

extern "C" {
#include "backend/kv_q4.h"
}

namespace {

void check(cudaError_t status) {
    if (status == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
    std::exit(1);
}

template <typename T> struct on_device {
    T *data = nullptr;
    size_t n;
    explicit on_device(const std::vector<T> &from) : n(from.size()) {
        check(cudaMalloc(reinterpret_cast<void **>(&data), n * sizeof(T)));
        check(cudaMemcpy(data, from.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    on_device(const on_device &) = delete;
    on_device &operator=(const on_device &) = delete;
    ~on_device() { (void)cudaFree(data); }
    std::vector<T> get() const {
        std::vector<T> out(n);
        check(cudaMemcpy(out.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost));
        return out;
    }
};

enum { WARPS = 4, VECTORS = 83, MOST_VALUES = 512 };

__global__ void store_kernel(const float *x, int d, int vectors, unsigned char *out, unsigned char *sink) {
    __shared__ float buffer[WARPS][MOST_VALUES];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, at = blockIdx.x * WARPS + warp;
    if (at >= vectors) return;
    for (int i = lane; i < d; i += 32) buffer[warp][i] = x[at * d + i];
    __syncwarp();
    size_t to = (size_t)at * kv_q4_vector_bytes(d);
    kv_q4_store_warp(buffer[warp], d, lane, out + to, at % 3 == 0 ? sink + to : nullptr);
}

enum { ROWS = 64, PAD_VALUES = 8 };

template <int D> __global__ void load_kernel(const kv_q4_rows rows, cuda_bf16 *out) {
    __shared__ uint4 memory[ROWS * (D + PAD_VALUES) / 8];
    bf16 *shared = reinterpret_cast<bf16 *>(memory);
    for (int i = threadIdx.x; i < ROWS * (D + PAD_VALUES); i += WARPS * 32)
        reinterpret_cast<cuda_bf16 *>(memory)[i] = 7;
    __syncthreads();
    kv_q4_load_rows<D, D + PAD_VALUES, ROWS, WARPS>(shared, rows, threadIdx.x >> 5);
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * (D + PAD_VALUES); i += WARPS * 32)
        out[i] = reinterpret_cast<cuda_bf16 *>(memory)[i];
}

/* Ordinary values of many widths; zeros; equal magnitudes; groups of zeros; tiny ones about the least that is kept;
 * huge ones; what is no number. */
std::vector<float> vectors_of(int d) {
    std::vector<float> x((size_t)VECTORS * d);
    uint32_t seed = 19;
    for (int r = 0; r < VECTORS; r++) {
        for (int i = 0; i < d; i++) {
            seed = seed * 1664525u + 1013904223u;
            float u = (float)(seed >> 8) / 8388608.0f - 1.0f, v = u * (float)(1 + r % 7);
            if (r > 20) v *= u * u * std::ldexp(1.0f, (r - 50) * 4);
            if (r == 1) v = 0;
            if (r == 2) v = i % 2 ? 3.0f : -3.0f;
            if (r == 3) v *= 0x1p-101f;
            if (r == 4) v *= 0x1p-108f;
            if (r == 5) v = i % 5 ? v : 3.4028234e38f;
            if (r == 6 && i % 37 == 3) v = NAN;
            if (r == 7 && i % 41 == 5) v = -INFINITY;
            if (r == 8 && i % (d / 16) != 0) v = 0;
            if (r == 9) v = i == d / 2 ? -2.0f : 0;
            if (r == 10) v *= 1e36f;
            x[(size_t)r * d + i] = v;
        }
    }
    return x;
}

uint16_t bf16_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return x == x ? (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : 0x7fff;
}

bool same(const char *what, int d, int row, int i, unsigned found, unsigned expected) {
    if (found == expected) return true;
    std::printf("# %s, heads of %d, row %d, %d: %u, expected %u\n", what, d, row, i, found, expected);
    return false;
}

template <int D> bool check_dim() {
    const int bytes = (int)kv_q4_bytes(D);
    if (!same("bytes of a vector", D, 0, 0, kv_q4_form<D>::BYTES, (unsigned)bytes)) return false;
    std::vector<float> x = vectors_of(D), value((size_t)VECTORS * D);
    std::vector<unsigned char> expected((size_t)VECTORS * bytes), nothing(expected.size(), 0xaa);
    for (int r = 0; r < VECTORS; r++) {
        kv_q4_store(&x[(size_t)r * D], D, &expected[(size_t)r * bytes]);
        kv_q4_load(&expected[(size_t)r * bytes], D, &value[(size_t)r * D]);
    }
    cuda_launch launch = {};
    on_device<float> raw(x);
    on_device<unsigned char> stored(nothing), sink(nothing);
    launch_kernel(&launch, store_kernel, dim3((VECTORS + WARPS - 1) / WARPS), dim3(WARPS * 32), 0, raw.data, D,
                  (int)VECTORS, stored.data, sink.data);
    check(cudaStreamSynchronize(nullptr));
    std::vector<unsigned char> found = stored.get(), twice = sink.get();
    for (int i = 0; i < VECTORS * bytes; i++) {
        int r = i / bytes;
        if (!same("stored byte", D, r, i % bytes, found[i], expected[i])) return false;
        if (!same("byte in the sink", D, r, i % bytes, twice[i], r % 3 == 0 ? expected[i] : 0xaa)) return false;
    }
    on_device<cuda_bf16> expanded(std::vector<cuda_bf16>((size_t)(VECTORS + 1) * D, 7));
    cuda_expand_q4(&launch, reinterpret_cast<cuda_bf16 *>(stored.data), D, VECTORS, expanded.data);
    check(cudaStreamSynchronize(nullptr));
    std::vector<cuda_bf16> halves = expanded.get();
    for (int i = 0; i < (VECTORS + 1) * D; i++) {
        if (!same("expanded value", D, i / D, i % D, halves[i], i < VECTORS * D ? bf16_of(value[i]) : 7)) return false;
    }
    /* Two heads to a row: the rows of 41 positions, tiles at 0, and so that the last rows are not there. */
    on_device<cuda_bf16> tile(std::vector<cuda_bf16>((size_t)ROWS * (D + PAD_VALUES), 0));
    const int heads = 2, positions = VECTORS / heads, later = 20; /* sinks are those of later positions */
    for (int test = 0; test < 4; test++) {
        kv_q4_rows rows = {};
        const int head = test % heads;
        rows.rows = stored.data + head * bytes;
        rows.sinks = test & 2 ? stored.data + (later * heads + head) * bytes : nullptr;
        rows.stride = heads * bytes;
        rows.base = test == 3 ? 4 : 0;
        rows.from = test == 1 ? 11 : 0;
        rows.to = test == 2 ? 33 : 1000;
        rows.begin = test == 1 ? 13 : 0;
        rows.end = test == 3 ? 39 : positions;
        rows.sink = test & 1 ? 6 : 0;
        rows.evicted = test & 1 ? 17 : 0;
        rows.in_sink = test & 2 ? 5 : 0;
        launch_kernel(&launch, load_kernel<D>, dim3(1), dim3(WARPS * 32), 0, rows, tile.data);
        check(cudaStreamSynchronize(nullptr));
        std::vector<cuda_bf16> loaded = tile.get();
        for (int i = 0; i < ROWS * (D + PAD_VALUES); i++) {
            int p = rows.base + i / (D + PAD_VALUES), column = i % (D + PAD_VALUES),
                vector = (p < rows.in_sink ? p + later : p) * heads + head;
            unsigned wanted = 7;
            if (column < D && p >= rows.from && p < rows.to) {
                bool seen = p >= rows.begin && p < rows.end && (p >= rows.evicted || p < rows.sink);
                wanted = seen ? bf16_of(value[(size_t)vector * D + column]) : 0x8000;
                if (!seen && loaded[i] == 0) continue;
            }
            if (!same("value of a row", D, p, column, loaded[i], wanted)) return false;
        }
    }
    return true;
}

} // namespace

int main() {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("1..0 # SKIP no device\n");
        return 0;
    }
    bool good = check_dim<512>() && check_dim<256>() && check_dim<128>() && check_dim<64>() && check_dim<32>() &&
                check_dim<16>();
    std::printf("1..1\n%sok 1 - K/V in 4 bits have the bytes and the values of the host\n", good ? "" : "not ");
    return !good;
}
