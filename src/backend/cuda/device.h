/* One CUDA device: its stream, its counted memory, its errors as one line. */
#ifndef KAKEYA_BACKEND_CUDA_DEVICE_H
#define KAKEYA_BACKEND_CUDA_DEVICE_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "backend/cuda/blocks.h"
#include "base/alloc.h"
#include "base/error.h"

/* Virtual memory management, found in the driver at run time: nothing links against it. */
typedef struct cuda_virtual_memory {
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*release_address)(CUdeviceptr, size_t);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    size_t granule_bytes;
} cuda_virtual_memory;

typedef struct cuda_device {
    int index;
    char name[64];
    int capability; /* 10 * major + minor */
    int multiprocessors;
    int block_bytes; /* of shared memory that a block may have */
    size_t total_bytes;
    cudaStream_t stream;
    cuda_virtual_memory memory;
    cuda_blocks *blocks; /* memory of closed sessions */
} cuda_device;

/* Whether there is a device that this build can use; its name, and how many there are, into about unless that is NULL.
 * Makes no context. */
kakeya_status cuda_device_present(char *about, size_t bytes, kakeya_error *error);
kakeya_status cuda_device_open(cuda_device *device, int index, kakeya_error *error);
void cuda_device_close(cuda_device *device);
/* Makes the device current for the calling thread. */
kakeya_status cuda_device_use(const cuda_device *device, kakeya_error *error);

/* Turns a CUDA status into ours, naming what was being done. */
kakeya_status cuda_check(cudaError_t status, const char *what, kakeya_error *error);
/* Waits for the stream and reports the first failure since the last call. */
kakeya_status cuda_finish(const cuda_device *device, const char *what, kakeya_error *error);

/* Page-locked memory of the host, freed with cudaFreeHost. */
kakeya_status cuda_pinned(void **out, size_t bytes, const char *what, kakeya_error *error);

/* Device memory counted in an account, zeroed. That of sessions is kept for the next ones when it is destroyed. */
typedef struct cuda_buffer {
    void *data;
    const cuda_device *device;
    size_t bytes; /* as counted */
    mem_account *account;
    mem_tag tag;
} cuda_buffer;

kakeya_status cuda_buffer_create(cuda_buffer *buffer, const cuda_device *device, mem_account *account, mem_tag tag,
                                 size_t bytes, const char *what, kakeya_error *error);
void cuda_buffer_destroy(cuda_buffer *buffer);

/* Memory of one granule, counted and shared as base/alloc.h has it: extents that share it map the same memory. */
typedef struct cuda_granule {
    CUmemGenericAllocationHandle handle;
} cuda_granule;

/* One contiguous address range whose memory grows at its end and is given back at its beginning, in granules. Behind
 * them lies the address of one more, where a granule is made before it takes the place of a shared one. */
typedef struct cuda_extent {
    CUdeviceptr address;
    size_t reserved_bytes;
    cuda_granule **granules;
    size_t n;          /* granules that there can be */
    size_t first, end; /* granules that have memory */
    const cuda_device *device;
    mem_account *account;
    mem_tag tag;
} cuda_extent;

kakeya_status cuda_extent_create(cuda_extent *extent, const cuda_device *device, mem_account *account, mem_tag tag,
                                 size_t largest_bytes, kakeya_error *error);
void cuda_extent_destroy(cuda_extent *extent);
/* Bytes [begin, end) have memory afterwards; memory wholly outside is given back. On failure nothing more is held. */
kakeya_status cuda_extent_cover(cuda_extent *extent, size_t begin, size_t end, kakeya_error *error);
size_t cuda_extent_bytes(const cuda_extent *extent); /* what is held */

/* `to`, which holds nothing, shares the granules of `from` that lie wholly before byte `end`; none where their accounts
 * have nothing above them in common. On failure what is shared is held. */
kakeya_status cuda_extent_share(cuda_extent *to, const cuda_extent *from, size_t end, kakeya_error *error);
/* Copies granules that are shared, from the one with byte `begin` on, so that they can be written. Ends with the stream
 * idle. On failure some may be copied. */
kakeya_status cuda_extent_own(cuda_extent *extent, size_t begin, kakeya_error *error);
/* Copies what `from` holds and `to`, which covers the same, does not share with it. Asynchronous. */
cudaError_t cuda_extent_copy(const cuda_extent *to, const cuda_extent *from);
/* Bytes that are counted in another account than the extent's (base/alloc.h: mem_share). */
size_t cuda_extent_shared_bytes(const cuda_extent *extent);

#endif
