/* The CUDA runtime and the driver's virtual memory on the host's memory, as far as the backend uses them. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/fake/fake_device.h"

void fake_broken(const char *what, int a, int b) {
    fprintf(stderr, "fake device: %s (%d, %d)\n", what, a, b);
    abort();
}

/* -------------------------------------------------------------------------------------------------- the runtime */

enum { DEVICES = 2 };
cudaError_t cudaGetDeviceCount(int *count) {
    *count = DEVICES;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device >= 0 && device < DEVICES ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int other) {
    *can = device != other;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned flags) {
    (void)flags;
    return other >= 0 && other < DEVICES ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    (void)device;
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    (void)device;
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "a fake device");
    properties->major = 9;
    properties->multiProcessorCount = 8;
    properties->totalGlobalMem = (size_t)4 << 30;
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorInvalidValue ? "invalid value" : "an error";
}
const char *cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorInvalidValue ? "cudaErrorInvalidValue" : "error";
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *available = *total = (size_t)4 << 30;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    *pointer = malloc(bytes);
    if (!*pointer) return cudaErrorMemoryAllocation;
    memset(*pointer, 0xcd, bytes);
    return cudaSuccess;
}
cudaError_t cudaFree(void *pointer) {
    free(pointer);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **pointer, size_t bytes) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFreeHost(void *pointer) { return cudaFree(pointer); }

static _Thread_local bool capturing; /* copies belong to no captured step */

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream) {
    (void)stream;
    if (capturing) fake_broken("memory is set while a step is captured", 0, 0);
    memset(pointer, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    (void)stream;
    if (capturing) fake_broken("memory is copied while a step is captured", 0, 0);
    memmove(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    cudaError_t status = cudaSuccess;
    for (size_t row = 0; row < height && !status; row++)
        status =
            cudaMemcpyAsync((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind, stream);
    return status;
}

/* Streams and events are addresses of nothing: all runs in the order of its launch. */
static char nothing;
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    *stream = (cudaStream_t)(void *)&nothing;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    (void)stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    (void)stream;
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)stream;
    (void)event;
    (void)flags;
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    *event = (cudaEvent_t)(void *)&nothing;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    (void)event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    (void)event;
    (void)stream;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    (void)event;
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    (void)begin;
    (void)end;
    *milliseconds = 1;
    return cudaSuccess;
}
cudaError_t cudaFuncGetName(const char **name, const void *function) {
    (void)function;
    *name = "_Z11fake_kernelv";
    return cudaSuccess;
}

/* --------------------------------------------------------------------------------------- virtual memory (driver) */

enum { GRANULE = 2 << 20 };

static CUresult fake_reserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr at,
                             unsigned long long flags) {
    (void)alignment;
    (void)at;
    (void)flags;
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}
static CUresult fake_release_address(CUdeviceptr address, size_t bytes) {
    return munmap((void *)(uintptr_t)address, bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
/* Granules are pieces of one file in memory, so that one can be mapped at several addresses. Handle h is piece h - 1.
 * A piece that is released keeps its pages, and what was written there: fresh pages cost more than the arithmetic. */
enum { MOST_GRANULES = 1 << 16 };
static int granule_file = -1;
static unsigned char granule_used[MOST_GRANULES];
static pthread_mutex_t granule_lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult take_granule(CUmemGenericAllocationHandle *handle) {
    if (granule_file < 0) granule_file = memfd_create("granules", 0);
    if (granule_file < 0 || ftruncate(granule_file, (off_t)MOST_GRANULES * GRANULE)) return CUDA_ERROR_UNKNOWN;
    size_t i = 0;
    while (i < MOST_GRANULES && granule_used[i]) i++;
    if (i == MOST_GRANULES) return CUDA_ERROR_OUT_OF_MEMORY;
    granule_used[i] = 1;
    *handle = i + 1;
    return CUDA_SUCCESS;
}
static CUresult fake_create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                            unsigned long long flags) {
    (void)properties;
    (void)flags;
    if (bytes != GRANULE) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&granule_lock);
    CUresult result = take_granule(handle);
    pthread_mutex_unlock(&granule_lock);
    return result;
}
static int is_granule(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&granule_lock);
    int used = handle >= 1 && handle <= MOST_GRANULES && granule_used[handle - 1];
    pthread_mutex_unlock(&granule_lock);
    return used;
}
static CUresult fake_release(CUmemGenericAllocationHandle handle) {
    if (!is_granule(handle)) fake_broken("memory is released that is not held", (int)handle, 0);
    pthread_mutex_lock(&granule_lock);
    granule_used[handle - 1] = 0;
    pthread_mutex_unlock(&granule_lock);
    return CUDA_SUCCESS;
}
static CUresult fake_map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
    (void)offset;
    (void)flags;
    if (!is_granule(handle)) fake_broken("memory is mapped that is not held", (int)handle, 0);
    void *p = mmap((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
                   granule_file, (off_t)(handle - 1) * GRANULE);
    return p == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static CUresult fake_unmap(CUdeviceptr address, size_t bytes) {
    void *p = mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return p == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static CUresult fake_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t n) {
    (void)address;
    (void)bytes;
    (void)access;
    return n == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult fake_granularity(size_t *bytes, const CUmemAllocationProp *properties,
                                 CUmemAllocationGranularity_flags flags) {
    (void)properties;
    (void)flags;
    *bytes = GRANULE;
    return CUDA_SUCCESS;
}

typedef void (*any_function)(void);

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    (void)version;
    (void)flags;
    const struct {
        const char *name;
        any_function function;
    } known[] = {
        {"cuMemAddressReserve", (any_function)fake_reserve},
        {"cuMemAddressFree", (any_function)fake_release_address},
        {"cuMemCreate", (any_function)fake_create},
        {"cuMemRelease", (any_function)fake_release},
        {"cuMemMap", (any_function)fake_map},
        {"cuMemUnmap", (any_function)fake_unmap},
        {"cuMemSetAccess", (any_function)fake_set_access},
        {"cuMemGetAllocationGranularity", (any_function)fake_granularity},
    };
    *function = NULL;
    *result = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, symbol) != 0) continue;
        memcpy(function, &known[i].function, sizeof known[i].function);
        *result = cudaDriverEntryPointSuccess;
    }
    return cudaSuccess;
}

/* ------------------------------------------------------------------------------------------------------- graphs */

enum { ARGUMENT_BYTES = 2048 };
typedef struct command {
    void (*run)(const void *arguments);
    _Alignas(16) unsigned char arguments[ARGUMENT_BYTES];
} command;
typedef struct fake_graph {
    command *commands;
    int n, capacity;
} fake_graph;

static _Thread_local fake_graph *current;

bool fake_capturing(void) { return capturing; }

void fake_launch(void (*run)(const void *), const void *arguments, size_t bytes) {
    if (bytes > ARGUMENT_BYTES) fake_broken("arguments of a kernel are too long", (int)bytes, ARGUMENT_BYTES);
    if (!capturing) {
        run(arguments);
        return;
    }
    if (current->n == current->capacity) {
        current->capacity = current->capacity ? 2 * current->capacity : 256;
        current->commands = realloc(current->commands, (size_t)current->capacity * sizeof(command));
        if (!current->commands) abort();
    }
    command *c = &current->commands[current->n++];
    c->run = run;
    memcpy(c->arguments, arguments, bytes);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    (void)stream;
    (void)mode;
    current = calloc(1, sizeof *current);
    capturing = true;
    return current ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    (void)stream;
    capturing = false;
    *graph = (cudaGraph_t)(void *)current;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    fake_graph *copy = malloc(sizeof *copy);
    if (!copy) return cudaErrorMemoryAllocation;
    *copy = *(fake_graph *)(void *)graph;
    *exec = (cudaGraphExec_t)(void *)copy;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { /* its commands are the executable's */
    free(graph);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    free(((fake_graph *)(void *)exec)->commands);
    free(exec);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    (void)stream;
    const fake_graph *graph = (const fake_graph *)(const void *)exec;
    for (int i = 0; i < graph->n; i++) graph->commands[i].run(graph->commands[i].arguments);
    return cudaSuccess;
}
