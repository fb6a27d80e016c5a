#include "backend/cuda/device.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OLDEST_CAPABILITY = 80, /* bf16 on tensor cores */
    KEPT_SHARE = 8,         /* at most an eighth of the device's memory is kept for sessions to come */
};

kakeya_status cuda_check(cudaError_t status, const char *what, kakeya_error *error) {
    if (status == cudaSuccess) return KAKEYA_OK;
    (void)cudaGetLastError(); /* errors that are not sticky are forgotten */
    if (status == cudaErrorMemoryAllocation) {
        size_t available = 0, total = 0;
        if (cudaMemGetInfo(&available, &total) == cudaSuccess)
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of device memory: %s; %zu of %zu bytes are free", what,
                             available, total);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of device memory: %s", what);
    }
    if (status == cudaErrorInsufficientDriver) {
        int driver = 0; /* the newest CUDA that it serves; 0 where there is none */
        if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
            return error_set(error, KAKEYA_UNSUPPORTED, "%s: no NVIDIA driver is installed", what);
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "%s: the NVIDIA driver supports CUDA %d.%d, but this build needs %d.%d", what, driver / 1000,
                         driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    }
    if (status == cudaErrorNoKernelImageForDevice)
        return error_set(error, KAKEYA_UNSUPPORTED, "%s: this build has no kernels for the device's compute capability",
                         what);
    if (status == cudaErrorNoDevice) return error_set(error, KAKEYA_UNSUPPORTED, "%s: no CUDA device is present", what);
    return error_set(error, KAKEYA_BACKEND, "%s: %s (%s)", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

kakeya_status cuda_finish(const cuda_device *device, const char *what, kakeya_error *error) {
    cudaError_t status = cudaGetLastError();
    cudaError_t finished = cudaStreamSynchronize(device->stream);
    return cuda_check(status != cudaSuccess ? status : finished, what, error);
}

kakeya_status cuda_pinned(void **out, size_t bytes, const char *what, kakeya_error *error) {
    cudaError_t status = cudaMallocHost(out, bytes);
    if (status != cudaErrorMemoryAllocation) return cuda_check(status, what, error);
    (void)cudaGetLastError();
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of page-locked host memory: %s needs another %zu bytes", what,
                     bytes);
}

kakeya_status cuda_device_present(char *about, size_t bytes, kakeya_error *error) {
    int count = 0, major = 0, minor = 0;
    struct cudaDeviceProp properties;
    kakeya_status status = cuda_check(cudaGetDeviceCount(&count), "CUDA", error);
    if (!status && count == 0) status = error_set(error, KAKEYA_UNSUPPORTED, "CUDA: no CUDA device is present");
    if (!status)
        status =
            cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "CUDA device 0", error);
    if (!status)
        status =
            cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "CUDA device 0", error);
    if (!status && 10 * major + minor < OLDEST_CAPABILITY)
        status = error_set(error, KAKEYA_UNSUPPORTED,
                           "CUDA device 0: its compute capability is %d.%d; at least 8.0 is needed", major, minor);
    if (status || !about) return status;
    status = cuda_check(cudaGetDeviceProperties(&properties, 0), "CUDA device 0", error);
    if (!status)
        snprintf(about, bytes, "%.63s, compute capability %d.%d; devices: %d", properties.name, major, minor, count);
    return status;
}

static kakeya_status find_entry(const char *name, void *function, kakeya_error *error) {
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
    cudaError_t status = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
    if (status != cudaSuccess || result != cudaDriverEntryPointSuccess || !found)
        return error_set(error, KAKEYA_UNSUPPORTED, "the NVIDIA driver has no %s: it is too old for this build", name);
    memcpy(function, &found, sizeof found);
    return KAKEYA_OK;
}

static CUmemAllocationProp allocation_properties(const cuda_device *device) {
    CUmemAllocationProp properties;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device->index;
    return properties;
}

static kakeya_status find_virtual_memory(cuda_device *device, kakeya_error *error) {
    cuda_virtual_memory *m = &device->memory;
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) = NULL;
    kakeya_status status = find_entry("cuMemAddressReserve", &m->reserve, error);
    if (!status) status = find_entry("cuMemAddressFree", &m->release_address, error);
    if (!status) status = find_entry("cuMemCreate", &m->create, error);
    if (!status) status = find_entry("cuMemRelease", &m->release, error);
    if (!status) status = find_entry("cuMemMap", &m->map, error);
    if (!status) status = find_entry("cuMemUnmap", &m->unmap, error);
    if (!status) status = find_entry("cuMemSetAccess", &m->set_access, error);
    if (!status) status = find_entry("cuMemGetAllocationGranularity", &granularity, error);
    if (status) return status;
    CUmemAllocationProp properties = allocation_properties(device);
    if (granularity(&m->granule_bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
        !m->granule_bytes)
        return error_set(error, KAKEYA_UNSUPPORTED, "%s: no virtual memory management", device->name);
    return KAKEYA_OK;
}

kakeya_status cuda_device_open(cuda_device *device, int index, kakeya_error *error) {
    memset(device, 0, sizeof *device);
    device->index = index;
    int count = 0;
    kakeya_status status = cuda_check(cudaGetDeviceCount(&count), "backend cuda", error);
    if (!status && count == 0) status = error_set(error, KAKEYA_UNSUPPORTED, "backend cuda: no CUDA device is present");
    if (!status && (index < 0 || index >= count))
        status = error_set(error, KAKEYA_INVALID_ARGUMENT,
                           "--devices names device %d, but there are only %d, "
                           "numbered from 0",
                           index, count);
    char what[64];
    snprintf(what, sizeof what, "opening CUDA device %d", index);
    struct cudaDeviceProp properties;
    if (!status) status = cuda_check(cudaSetDevice(index), what, error);
    if (!status) status = cuda_check(cudaGetDeviceProperties(&properties, index), what, error);
    if (status) return status;
    snprintf(device->name, sizeof device->name, "%.63s", properties.name);
    device->capability = 10 * properties.major + properties.minor;
    device->multiprocessors = properties.multiProcessorCount;
    device->block_bytes = (int)properties.sharedMemPerBlockOptin;
    device->total_bytes = properties.totalGlobalMem;
    if (device->capability < OLDEST_CAPABILITY)
        return error_set(error, KAKEYA_UNSUPPORTED, "%s has compute capability %d.%d; at least 8.0 is needed",
                         device->name, properties.major, properties.minor);
    status = cuda_check(cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking), "creating a stream", error);
    if (!status) status = find_virtual_memory(device, error);
    if (!status) device->blocks = cuda_blocks_create(device->total_bytes / KEPT_SHARE, device->memory.release);
    if (!status && !device->blocks) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a device");
    if (status) cuda_device_close(device);
    return status;
}

void cuda_device_close(cuda_device *device) {
    cuda_blocks_destroy(device->blocks);
    device->blocks = NULL;
    if (device->stream) (void)cudaStreamDestroy(device->stream);
    device->stream = NULL;
}

kakeya_status cuda_device_use(const cuda_device *device, kakeya_error *error) {
    return cuda_check(cudaSetDevice(device->index), "using the CUDA device", error);
}

/* ------------------------------------------------------------------------------------------------- buffers */

/* Memory of sessions comes and goes while others wait; the rest stays. */
static bool is_of_sessions(mem_tag tag) {
    return tag == MEM_KV_FULL || tag == MEM_KV_SLIDING || tag == MEM_KV_LATENT || tag == MEM_KV_DRAFT;
}

/* What a device keeps and what is counted stay together below the engine's limit; several devices do not ask each
 * other. */
static void keep_limit(const cuda_device *device, const mem_account *account) {
    while (account->parent) account = account->parent;
    size_t total = atomic_load(&account->total_bytes), limit = account->limit_bytes;
    if (limit) (void)cuda_blocks_trim(device->blocks, total < limit ? limit - total : 0);
}

static cudaError_t take_block(const cuda_device *device, mem_tag tag, size_t bytes, void **out) {
    *out = is_of_sessions(tag) ? cuda_blocks_take(device->blocks, bytes) : NULL;
    if (*out) return cudaSuccess;
    cudaError_t status = cudaMalloc(out, bytes);
    if (status != cudaErrorMemoryAllocation || !cuda_blocks_trim(device->blocks, 0)) return status;
    (void)cudaGetLastError();
    return cudaMalloc(out, bytes);
}

kakeya_status cuda_buffer_create(cuda_buffer *buffer, const cuda_device *device, mem_account *account, mem_tag tag,
                                 size_t bytes, const char *what, kakeya_error *error) {
    *buffer = (cuda_buffer){0};
    size_t counted = mem_rounded(bytes);
    if (!mem_account_add(account, tag, counted))
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: %s needs another %zu bytes and the limit is %zu",
                         what, counted, account->limit_bytes);
    void *data = NULL;
    cudaError_t status = take_block(device, tag, counted, &data);
    keep_limit(device, account);
    if (status == cudaSuccess) status = cudaMemsetAsync(data, 0, counted, device->stream);
    if (status != cudaSuccess) {
        char text[128];
        snprintf(text, sizeof text, "%s needs another %zu bytes", what, counted);
        mem_account_remove(account, tag, counted);
        if (data) (void)cudaFree(data);
        return cuda_check(status, text, error);
    }
    *buffer = (cuda_buffer){.data = data, .device = device, .bytes = counted, .account = account, .tag = tag};
    return KAKEYA_OK;
}

void cuda_buffer_destroy(cuda_buffer *buffer) {
    if (!buffer->data) return;
    if (is_of_sessions(buffer->tag))
        cuda_blocks_give(buffer->device->blocks, buffer->data, buffer->bytes);
    else
        (void)cudaFree(buffer->data);
    mem_account_remove(buffer->account, buffer->tag, buffer->bytes);
    if (is_of_sessions(buffer->tag)) keep_limit(buffer->device, buffer->account);
    *buffer = (cuda_buffer){0};
}

/* ------------------------------------------------------------------------------------------------- extents */

static CUdeviceptr granule_address(const cuda_extent *e, size_t granule) {
    return e->address + granule * e->device->memory.granule_bytes;
}

kakeya_status cuda_extent_create(cuda_extent *extent, const cuda_device *device, mem_account *account, mem_tag tag,
                                 size_t largest_bytes, kakeya_error *error) {
    size_t granule = device->memory.granule_bytes, n = (largest_bytes + granule - 1) / granule;
    *extent = (cuda_extent){.device = device, .account = account, .tag = tag, .n = n};
    extent->granules = calloc(n + 1, sizeof *extent->granules);
    if (!extent->granules) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for %zu granules", n);
    extent->reserved_bytes = (n + 1) * granule;
    CUresult status = device->memory.reserve(&extent->address, extent->reserved_bytes, 0, 0, 0);
    if (status == CUDA_SUCCESS) return KAKEYA_OK;
    free(extent->granules);
    *extent = (cuda_extent){0};
    if (status == CUDA_ERROR_OUT_OF_MEMORY)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "the device's address space has no room for %zu bytes",
                         largest_bytes);
    return error_set(error, KAKEYA_BACKEND, "%s: reserving %zu bytes of address space failed with status %d",
                     mem_tag_name(tag), largest_bytes, (int)status);
}

static void *pointer_to(const cuda_extent *e, size_t granule) { return (void *)(uintptr_t)granule_address(e, granule); }

/* Gives up a share of the memory, and with the last one the memory itself. */
static void drop_granule(const cuda_extent *e, cuda_granule *granule) {
    CUmemGenericAllocationHandle handle = granule->handle;
    if (mem_free(granule)) cuda_blocks_give_granule(e->device->blocks, handle, e->device->memory.granule_bytes);
}

static CUresult map_granule(const cuda_extent *e, size_t at, const cuda_granule *granule) {
    const cuda_virtual_memory *m = &e->device->memory;
    CUmemAccessDesc access = {.location = allocation_properties(e->device).location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult status = m->map(granule_address(e, at), m->granule_bytes, 0, granule->handle, 0);
    if (status != CUDA_SUCCESS) return status;
    status = m->set_access(granule_address(e, at), m->granule_bytes, &access, 1);
    if (status != CUDA_SUCCESS) (void)m->unmap(granule_address(e, at), m->granule_bytes);
    return status;
}

static void unmap_granule(const cuda_extent *e, size_t at) {
    (void)e->device->memory.unmap(granule_address(e, at), e->device->memory.granule_bytes);
}

static kakeya_status mapping_failed(const cuda_extent *e, CUresult status, kakeya_error *error) {
    size_t bytes = e->device->memory.granule_bytes;
    if (status != CUDA_ERROR_OUT_OF_MEMORY)
        return error_set(error, KAKEYA_BACKEND, "%s: mapping %zu bytes of device memory failed with status %d",
                         mem_tag_name(e->tag), bytes, (int)status);
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of device memory: %s needs another %zu bytes",
                     mem_tag_name(e->tag), bytes);
}

static void give_back(cuda_extent *e, size_t granule) {
    unmap_granule(e, granule);
    drop_granule(e, e->granules[granule]);
    e->granules[granule] = NULL;
}

void cuda_extent_destroy(cuda_extent *extent) {
    if (!extent->granules) return;
    for (size_t i = extent->first; i < extent->end; i++) give_back(extent, i);
    (void)extent->device->memory.release_address(extent->address, extent->reserved_bytes);
    free(extent->granules);
    *extent = (cuda_extent){0};
}

/* New memory, mapped at granule `at`. */
static kakeya_status take(const cuda_extent *e, size_t at, cuda_granule **out, kakeya_error *error) {
    const cuda_virtual_memory *m = &e->device->memory;
    cuda_granule *granule = mem_alloc_record(e->account, e->tag, m->granule_bytes, sizeof *granule);
    *out = granule;
    if (!granule)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: %s needs another %zu bytes and the limit is %zu",
                         mem_tag_name(e->tag), m->granule_bytes, e->account->limit_bytes);
    CUmemAllocationProp properties = allocation_properties(e->device);
    CUresult status = CUDA_SUCCESS;
    if (!cuda_blocks_take_granule(e->device->blocks, &granule->handle, m->granule_bytes))
        status = m->create(&granule->handle, m->granule_bytes, &properties, 0);
    if (status == CUDA_ERROR_OUT_OF_MEMORY && cuda_blocks_trim(e->device->blocks, 0))
        status = m->create(&granule->handle, m->granule_bytes, &properties, 0);
    keep_limit(e->device, e->account);
    if (status != CUDA_SUCCESS) {
        (void)mem_free(granule);
        return mapping_failed(e, status, error);
    }
    status = map_granule(e, at, granule);
    if (status == CUDA_SUCCESS) return KAKEYA_OK;
    drop_granule(e, granule);
    return mapping_failed(e, status, error);
}

static kakeya_status take_cleared(cuda_extent *e, size_t at, kakeya_error *error) {
    cuda_granule *granule;
    kakeya_status status = take(e, at, &granule, error);
    if (status) return status;
    cudaError_t cleared = cudaMemsetAsync(pointer_to(e, at), 0, e->device->memory.granule_bytes, e->device->stream);
    if (cleared == cudaSuccess) {
        e->granules[at] = granule;
        return KAKEYA_OK;
    }
    unmap_granule(e, at);
    drop_granule(e, granule);
    return cuda_check(cleared, "clearing device memory", error);
}

kakeya_status cuda_extent_cover(cuda_extent *e, size_t begin, size_t end, kakeya_error *error) {
    size_t granule = e->device->memory.granule_bytes, first = begin / granule, last = (end + granule - 1) / granule;
    if (end <= begin) last = first;
    if (e->first == e->end) e->first = e->end = first;
    size_t had = e->end;
    while (e->end < last) {
        kakeya_status status = take_cleared(e, e->end, error);
        if (status) {
            (void)cudaStreamSynchronize(e->device->stream);
            while (e->end > had) give_back(e, --e->end);
            return status;
        }
        e->end++;
    }
    /* Nothing on the device may still be on its way to memory that goes. */
    if (e->first < first || e->end > last) (void)cudaStreamSynchronize(e->device->stream);
    while (e->first < first && e->first < e->end) give_back(e, e->first++);
    while (e->end > last && e->end > e->first) give_back(e, --e->end);
    return KAKEYA_OK;
}

size_t cuda_extent_bytes(const cuda_extent *e) {
    return (e->end - e->first) * (e->device ? e->device->memory.granule_bytes : 0);
}

/* ------------------------------------------------------------------------------------------------- shared granules */

kakeya_status cuda_extent_share(cuda_extent *to, const cuda_extent *from, size_t end, kakeya_error *error) {
    size_t last = end / to->device->memory.granule_bytes;
    to->first = to->end = from->first;
    for (; to->end < last && to->end < from->end; to->end++) {
        cuda_granule *granule = from->granules[to->end];
        if (!mem_share(granule, to->account)) return KAKEYA_OK;
        CUresult status = map_granule(to, to->end, granule);
        if (status != CUDA_SUCCESS) {
            drop_granule(to, granule);
            return mapping_failed(to, status, error);
        }
        to->granules[to->end] = granule;
    }
    return KAKEYA_OK;
}

/* The copy is made behind the others and then takes the place of what is shared: addresses stay. */
static kakeya_status own_granule(cuda_extent *e, size_t at, kakeya_error *error) {
    cuda_granule *copy;
    kakeya_status status = take(e, e->n, &copy, error);
    if (status) return status;
    cudaError_t copied = cudaMemcpyAsync(pointer_to(e, e->n), pointer_to(e, at), e->device->memory.granule_bytes,
                                         cudaMemcpyDeviceToDevice, e->device->stream);
    cudaError_t finished = cudaStreamSynchronize(e->device->stream);
    unmap_granule(e, e->n);
    status = cuda_check(copied != cudaSuccess ? copied : finished, "copying shared K/V", error);
    if (status) {
        drop_granule(e, copy);
        return status;
    }
    unmap_granule(e, at);
    CUresult mapped = map_granule(e, at, copy);
    if (mapped == CUDA_SUCCESS) {
        drop_granule(e, e->granules[at]);
        e->granules[at] = copy;
        return KAKEYA_OK;
    }
    drop_granule(e, copy);
    (void)map_granule(e, at, e->granules[at]); /* as it was, unless the device is lost */
    return mapping_failed(e, mapped, error);
}

kakeya_status cuda_extent_own(cuda_extent *e, size_t begin, kakeya_error *error) {
    size_t first = begin / e->device->memory.granule_bytes;
    kakeya_status status = KAKEYA_OK;
    for (size_t i = first > e->first ? first : e->first; i < e->end && !status; i++) {
        if (mem_is_shared(e->granules[i])) status = own_granule(e, i, error);
    }
    return status;
}

cudaError_t cuda_extent_copy(const cuda_extent *to, const cuda_extent *from) {
    size_t first = from->first;
    while (first < from->end && to->granules[first] == from->granules[first]) first++;
    if (first == from->end) return cudaSuccess;
    return cudaMemcpyAsync(pointer_to(to, first), pointer_to(from, first),
                           (from->end - first) * from->device->memory.granule_bytes, cudaMemcpyDeviceToDevice,
                           from->device->stream);
}

size_t cuda_extent_shared_bytes(const cuda_extent *e) {
    size_t bytes = 0;
    for (size_t i = e->first; i < e->end; i++) {
        if (mem_account_of(e->granules[i]) != e->account) bytes += e->device->memory.granule_bytes;
    }
    return bytes;
}
