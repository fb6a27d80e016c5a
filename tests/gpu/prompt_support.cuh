/* What the checks of the prompt kernels share: memory with an owner, random numbers, comparison and report. */
#ifndef KAKEYA_TESTS_PROMPT_SUPPORT_CUH
#define KAKEYA_TESTS_PROMPT_SUPPORT_CUH

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backend/cuda/kernels.h"
#include "backend/cuda/prompt_attention.h"
#include "backend/cuda/prompt_gemm.h"

namespace {

int failures = 0;
unsigned next_seed = 1;

void check_cuda(cudaError_t status, const char *what) {
    if (status == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
    std::exit(1);
}

#define CHECK(call) check_cuda((call), #call)

/* Device memory with an owner. */
template <class T> struct device_array {
    T *data = nullptr;
    size_t count = 0;
    explicit device_array(size_t n) : count(n) { CHECK(cudaMalloc(&data, (n ? n : 1) * sizeof(T))); }
    device_array(const device_array &) = delete;
    device_array &operator=(const device_array &) = delete;
    ~device_array() { cudaFree(data); }
    void poison() { CHECK(cudaMemset(data, 0xff, count * sizeof(T))); } /* NaN as float32 and as bf16 */
    void set(const std::vector<T> &from) {
        CHECK(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> get() const {
        std::vector<T> to(count);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(to.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
        return to;
    }
};

/* Approximately normal numbers: the sum of three uniforms. */
__device__ float random_number(unsigned long long i, unsigned seed) {
    unsigned long long x = i * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    float a = static_cast<float>(x & 0x1fffff), b = static_cast<float>(x >> 21 & 0x1fffff),
          c = static_cast<float>(x >> 42 & 0x1fffff);
    return (a + b + c) / 2097152.0f * 2.0f - 3.0f;
}

__global__ void fill_bf16(uint16_t *to, size_t n, float scale, unsigned seed) {
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
         i += static_cast<size_t>(gridDim.x) * blockDim.x) {
        reinterpret_cast<__nv_bfloat16 *>(to)[i] = __float2bfloat16(random_number(i, seed) * scale);
    }
}

__global__ void fill_f32(float *to, size_t n, float scale, float offset, unsigned seed) {
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
         i += static_cast<size_t>(gridDim.x) * blockDim.x) {
        to[i] = random_number(i, seed) * scale + offset;
    }
}

void randomize(device_array<uint16_t> &a, float scale) {
    fill_bf16<<<2048, 256>>>(a.data, a.count, scale, next_seed++);
}
void randomize(device_array<float> &a, float scale, float offset) {
    fill_f32<<<2048, 256>>>(a.data, a.count, scale, offset, next_seed++);
}

__device__ float from_bf16(uint16_t x) { return __uint_as_float(static_cast<unsigned>(x) << 16); }
float host_bf16(uint16_t x) {
    unsigned bits = static_cast<unsigned>(x) << 16;
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
}

std::vector<float> widen(const std::vector<uint16_t> &x) {
    std::vector<float> y(x.size());
    for (size_t i = 0; i < x.size(); i++) y[i] = host_bf16(x[i]);
    return y;
}

void report(bool ok, const char *format, ...) {
    char text[256];
    va_list list;
    va_start(list, format);
    std::vsnprintf(text, sizeof text, format, list);
    va_end(list);
    std::printf("%s  %s\n", ok ? "ok" : "not ok", text);
    if (!ok) failures++;
}

/* |got - want| / |want|, and NaN where anything was not written. Unwritten padding is not part of the rows compared. */
double relative_error(const std::vector<float> &got, const std::vector<float> &want) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < want.size(); i++) {
        difference += (static_cast<double>(got[i]) - want[i]) * (static_cast<double>(got[i]) - want[i]);
        norm += static_cast<double>(want[i]) * want[i];
    }
    return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

} /* namespace */

#endif
