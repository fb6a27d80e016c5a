/* Clusters of thread blocks (sm_90): blocks that run at the same time, near each other, and write to each other's
 * shared memory. */
#ifndef KAKEYA_BACKEND_CUDA_CLUSTER_CUH
#define KAKEYA_BACKEND_CUDA_CLUSTER_CUH

#include "backend/cuda/common.cuh"

/* Arrive and wait are one barrier; what was written before arriving, also to shared
 * memory of other blocks, is seen behind the wait. */
static __device__ __forceinline__ void cluster_arrive_first() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
static __device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
static __device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/* The same place in the shared memory of block `rank` of the cluster. */
static __device__ __forceinline__ uint32_t shared_of_block(const void *shared, int rank) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
#if __CUDA_ARCH__ >= 900
    asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(rank));
#endif
    return at;
}
static __device__ __forceinline__ void store_in_block(uint32_t at, float2 v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(v.x), "f"(v.y) : "memory");
#endif
}
static __device__ __forceinline__ float load_from_block(uint32_t at) {
    float v = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
#endif
    return v;
}

/* As launch_kernel; cluster: neighbouring blocks that form one. */
template <typename... Parameters, typename... Arguments>
static void launch_cluster(const cuda_launch *l, int cluster, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                           size_t shared, Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = l->stream;
    cudaLaunchAttribute attribute[2] = {};
    config.attrs = attribute;
    if (l->programmatic) {
        attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    attribute[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attribute[config.numAttrs].val.clusterDim.x = (unsigned)cluster;
    attribute[config.numAttrs].val.clusterDim.y = attribute[config.numAttrs].val.clusterDim.z = 1;
    config.numAttrs++;
    cuda_profile_begin(l, reinterpret_cast<const void *>(kernel));
    cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
    cuda_profile_end(l);
}

#endif
