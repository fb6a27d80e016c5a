/* The test of kernels on K/V in 4 bits as C++ for the host, with those kernels; its device memory is the host's. */
#include <cstdlib>
#include <cstring>

#include "backend/cuda/common.cuh"

#include "backend/cuda/kv_q4.cu"
#include "gpu/kv_q4_kernels.cu"

cudaError_t cudaGetDeviceCount(int *devices) {
    *devices = 1;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    *pointer = std::malloc(bytes);
    return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *pointer) {
    std::free(pointer);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t) { return "no memory"; }
