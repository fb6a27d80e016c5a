/* What two devices tell each other: sums of rows, with and without experts, in captured steps and by events, exact on
 * integers. Prints what an exchange takes in a captured chain of 60, less the kernel between, which makes the parts and
 * checks the sums. Given the path of libnccl.so.2, also what its all-reduce takes there.
 * usage: exchange_kernels [LIBNCCL]     Without two devices that reach each other it is skipped. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/common.cuh"
#include "backend/cuda/exchange.h"

enum { DEVICES = 2, HIDDEN = 2816, TURNS = 60, DECODE_ROWS = 256, PROMPT_ROWS = 1024, RANK = 8, REPEATS = 15 };

static void require(cudaError_t status, const char *what) {
    if (status == cudaSuccess) return;
    printf("not ok - %s: %s\n", what, cudaGetErrorString(status));
    exit(1);
}

struct device {
    cudaStream_t stream;
    cudaEvent_t begin, end, sent;
    char *inbox;
    float *part[2], *experts;
    uint32_t *before;
    int *wrong;
    cuda_launch launch;
    cuda_route route;
};

static struct device sides[DEVICES];
static cuda_inbox layout;
static int *abandoned;
static uint32_t exchanges;

/* What a device has of element i; small integers, whose sums are exact. */
static __device__ float part_of(int device, int turn, int vector, int i) {
    return (float)((i * 7 + turn * 13 + vector * 3 + device * 101) % 1009);
}

/* Checks the sums of the turn before, and makes this turn's parts. A row's experts are all its second part, with
 * weights of a quarter each. */
static __global__ void make_parts_kernel(float *first, float *second, float *experts, int n, int device, int turn,
                                         int check, int *wrong) {
    release_successor();
    wait_for_predecessor();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        if (check) {
            float expected = part_of(0, turn - 1, 0, i) + part_of(1, turn - 1, 0, i);
            float mixed = 2 * (part_of(0, turn - 1, 1, i) + part_of(1, turn - 1, 1, i));
            if (first[i] != expected || (second && second[i] != mixed)) atomicAdd(wrong, 1);
        }
        first[i] = part_of(device, turn, 0, i);
        for (int r = 0; second && r < RANK; r++)
            experts[((size_t)(i / HIDDEN) * RANK + r) * HIDDEN + i % HIDDEN] = part_of(device, turn, 1, i);
    }
}

static void open_device(int d) {
    device *v = &sides[d];
    require(cudaSetDevice(d), "using a device");
    require(cudaDeviceEnablePeerAccess(1 - d, 0), "reaching the other device");
    require(cudaStreamCreateWithFlags(&v->stream, cudaStreamNonBlocking), "a stream");
    require(cudaEventCreate(&v->begin), "an event");
    require(cudaEventCreate(&v->end), "an event");
    require(cudaEventCreateWithFlags(&v->sent, cudaEventDisableTiming), "an event");
    size_t row = HIDDEN * sizeof(float), slots = (size_t)PROMPT_ROWS * RANK;
    require(cudaMalloc(&v->inbox, layout.bytes), "an inbox");
    require(cudaMemset(v->inbox, 0, layout.bytes), "an inbox");
    for (int k = 0; k < 2; k++) require(cudaMalloc(&v->part[k], PROMPT_ROWS * row), "parts");
    require(cudaMalloc(&v->experts, slots * row), "experts");
    require(cudaMalloc(&v->before, sizeof *v->before), "a number");
    require(cudaMalloc(&v->wrong, sizeof *v->wrong), "a number");
    require(cudaMalloc(&v->route.slot_of, slots * sizeof(int)), "a route");
    require(cudaMalloc(&v->route.weight, slots * sizeof(float)), "a route");
    int *slot = (int *)malloc(slots * sizeof *slot);
    float *weight = (float *)malloc(slots * sizeof *weight);
    for (size_t i = 0; i < slots; i++) slot[i] = (int)i, weight[i] = 0.25f;
    require(cudaMemcpy(v->route.slot_of, slot, slots * sizeof *slot, cudaMemcpyHostToDevice), "a route");
    require(cudaMemcpy(v->route.weight, weight, slots * sizeof *weight, cudaMemcpyHostToDevice), "a route");
    free(slot);
    free(weight);
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, d), "asking a device");
    v->route.rank = RANK;
    v->launch = {};
    v->launch.stream = v->stream;
    v->launch.multiprocessors = properties.multiProcessorCount;
    v->launch.programmatic = properties.major >= 9;
}

static cuda_exchange exchange_of(int d, int turn, bool experts) {
    cuda_exchange e = {};
    e.index = d;
    e.devices = DEVICES;
    for (int k = 0; k < DEVICES; k++) e.inbox[k] = sides[k].inbox;
    e.layout = layout;
    e.before = sides[d].before;
    e.turn = turn;
    e.abandoned = abandoned;
    e.sum[0] = sides[d].part[0];
    e.sum[1] = experts ? sides[d].part[1] : NULL;
    e.experts = experts ? sides[d].experts : NULL;
    e.hidden = HIDDEN;
    return e;
}

static void make_parts(int d, int turn, int rows, bool experts, bool check) {
    device *v = &sides[d];
    launch_kernel(&v->launch, make_parts_kernel, dim3(rows < 96 ? rows * 11 : 1056), dim3(256), 0, v->part[0],
                  experts ? v->part[1] : (float *)NULL, v->experts, rows * HIDDEN, d, turn, check && turn > 0,
                  v->wrong);
}

enum what { PARTS_ALONE, SUMS, SUMS_AND_EXPERTS, MEETINGS };

static void capture(int d, what mode, int rows, cudaGraphExec_t *graph) {
    device *v = &sides[d];
    cudaGraph_t captured;
    require(cudaSetDevice(d), "using a device");
    require(cudaStreamBeginCapture(v->stream, cudaStreamCaptureModeThreadLocal), "capturing");
    for (int turn = 0; turn < TURNS; turn++) {
        bool experts = mode == SUMS_AND_EXPERTS;
        make_parts(d, turn, rows, experts, mode == SUMS || experts);
        cuda_exchange e = exchange_of(d, turn, experts);
        if (mode == SUMS || experts) cuda_exchange_rows(&v->launch, &e, &v->route, rows);
        if (mode == MEETINGS) cuda_exchange_meet(&v->launch, &e);
    }
    require(cudaStreamEndCapture(v->stream, &captured), "capturing");
    require(cudaGetLastError(), "launching");
    require(cudaGraphInstantiate(graph, captured, 0), "a graph");
    cudaGraphDestroy(captured);
}

static int compare(const void *a, const void *b) { return *(const float *)a < *(const float *)b ? -1 : 1; }

/* Median milliseconds of both devices' graphs, side by side. */
static float run(cudaGraphExec_t *graph) {
    float ms[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        for (int d = 0; d < DEVICES; d++) {
            require(cudaSetDevice(d), "using a device");
            require(cudaMemcpy(sides[d].before, &exchanges, sizeof exchanges, cudaMemcpyHostToDevice), "a number");
        }
        exchanges += 2 * TURNS;
        for (int d = 0; d < DEVICES; d++) {
            require(cudaSetDevice(d), "using a device");
            require(cudaEventRecord(sides[d].begin, sides[d].stream), "timing");
            require(cudaGraphLaunch(graph[d], sides[d].stream), "a graph");
            require(cudaEventRecord(sides[d].end, sides[d].stream), "timing");
        }
        for (int d = 0; d < DEVICES; d++) {
            require(cudaSetDevice(d), "using a device");
            require(cudaStreamSynchronize(sides[d].stream), "running");
        }
        require(cudaEventElapsedTime(&ms[i], sides[1].begin, sides[1].end),
                "timing"); /* which has waited for no start */
    }
    qsort(ms, REPEATS, sizeof ms[0], compare);
    return ms[REPEATS / 2];
}

static int found_wrong(void) {
    int sum = 0;
    for (int d = 0; d < DEVICES; d++) {
        int wrong = 0;
        require(cudaSetDevice(d), "using a device");
        require(cudaDeviceSynchronize(), "running");
        require(cudaMemcpy(&wrong, sides[d].wrong, sizeof wrong, cudaMemcpyDeviceToHost), "a number");
        require(cudaMemset(sides[d].wrong, 0, sizeof wrong), "a number");
        sum += wrong;
    }
    return sum;
}

static int failures;

static float captured_chain(what mode, int rows) {
    cudaGraphExec_t graph[DEVICES];
    for (int d = 0; d < DEVICES; d++) capture(d, mode, rows, &graph[d]);
    float us = 1000 * run(graph) / TURNS;
    for (int d = 0; d < DEVICES; d++) cudaGraphExecDestroy(graph[d]);
    return us;
}

static void check_captured(what mode, const char *name, int rows) {
    float us = captured_chain(mode, rows), alone = captured_chain(PARTS_ALONE, rows);
    int wrong = found_wrong();
    failures += wrong > 0;
    printf("%s - %s, %d rows: %.1f us (%.1f with the kernel between)\n", wrong ? "not ok" : "ok", name, rows,
           us - alone, us);
}

static void check_events(int rows) {
    for (int turn = 0; turn < TURNS; turn++) {
        for (int d = 0; d < DEVICES; d++) {
            require(cudaSetDevice(d), "using a device");
            make_parts(d, turn, rows, true, true);
            cuda_exchange e = exchange_of(d, turn, true);
            cuda_send_rows(&sides[d].launch, &e, &sides[d].route, rows);
            require(cudaEventRecord(sides[d].sent, sides[d].stream), "an event");
        }
        for (int d = 0; d < DEVICES; d++) {
            require(cudaSetDevice(d), "using a device");
            require(cudaStreamWaitEvent(sides[d].stream, sides[1 - d].sent, 0), "an event");
            cuda_exchange e = exchange_of(d, turn, true);
            cuda_add_rows(&sides[d].launch, &e, rows);
        }
    }
    int wrong = found_wrong();
    failures += wrong > 0;
    printf("%s - sums ordered by events, %d rows\n", wrong ? "not ok" : "ok", rows);
}

/* ------------------------------------------------------------------------------------------- NCCL, to compare with */

typedef int (*nccl_init_all)(void **, int, const int *);
typedef int (*nccl_all_reduce)(const void *, void *, size_t, int, int, void *, cudaStream_t);
typedef int (*nccl_group)(void);
enum { NCCL_FLOAT = 7, NCCL_SUM = 0 };

static void time_nccl(const char *path, const int *rows, int n) {
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    void *library = dlopen(path, RTLD_NOW), *communicator[DEVICES];
    nccl_init_all init = library ? (nccl_init_all)dlsym(library, "ncclCommInitAll") : NULL;
    nccl_all_reduce reduce = library ? (nccl_all_reduce)dlsym(library, "ncclAllReduce") : NULL;
    nccl_group begin = library ? (nccl_group)dlsym(library, "ncclGroupStart") : NULL,
               end = library ? (nccl_group)dlsym(library, "ncclGroupEnd") : NULL;
    static const int devices[DEVICES] = {0, 1};
    if (!init || !reduce || !begin || !end || init(communicator, DEVICES, devices)) {
        printf("# %s cannot be used\n", path);
        return;
    }
    for (int k = 0; k < n; k++) {
        cudaGraphExec_t graph[DEVICES];
        int refused = 0;
        for (int d = 0; d < DEVICES; d++) {
            require(cudaSetDevice(d), "using a device");
            require(cudaStreamBeginCapture(sides[d].stream, cudaStreamCaptureModeRelaxed), "capturing");
        }
        for (int turn = 0; turn < TURNS; turn++) {
            for (int d = 0; d < DEVICES; d++) {
                require(cudaSetDevice(d), "using a device");
                make_parts(d, turn, rows[k], false, false);
            }
            begin();
            for (int d = 0; d < DEVICES; d++)
                refused |= reduce(sides[d].part[0], sides[d].part[0], (size_t)rows[k] * HIDDEN, NCCL_FLOAT, NCCL_SUM,
                                  communicator[d], sides[d].stream);
            refused |= end();
        }
        for (int d = 0; d < DEVICES; d++) {
            cudaGraph_t captured;
            require(cudaSetDevice(d), "using a device");
            require(cudaStreamEndCapture(sides[d].stream, &captured), "capturing");
            require(cudaGraphInstantiate(&graph[d], captured, 0), "a graph");
        }
        float us = 1000 * run(graph) / TURNS;
        printf("# NCCL's all-reduce, %d rows: %.1f us%s\n", rows[k], us - captured_chain(PARTS_ALONE, rows[k]),
               refused ? ", refused" : "");
    }
}

int main(int argc, char **argv) {
    int count = 0, can = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < DEVICES ||
        cudaDeviceCanAccessPeer(&can, 0, 1) != cudaSuccess || !can) {
        printf("ok - exchanges # SKIP there are no two devices that reach each other\n1..1\n");
        return 0;
    }
    layout = cuda_inbox_layout(DEVICES, HIDDEN, DECODE_ROWS, PROMPT_ROWS);
    require(cudaMallocHost(&abandoned, sizeof *abandoned), "page-locked memory");
    *abandoned = 0;
    for (int d = 0; d < DEVICES; d++) open_device(d);
    static const int rows[] = {1, 8, 17, 64, DECODE_ROWS};
    enum { SIZES = sizeof rows / sizeof rows[0] };
    found_wrong();
    for (int k = 0; k < SIZES; k++) check_captured(SUMS, "sums", rows[k]);
    for (int k = 0; k < SIZES; k++) check_captured(SUMS_AND_EXPERTS, "sums and experts", rows[k]);
    check_captured(MEETINGS, "meetings", 1);
    check_events(3);
    check_events(PROMPT_ROWS);
    printf("1..%d\n", 2 * SIZES + 3);
    if (argc > 1) time_nccl(argv[1], rows, SIZES);
    return failures > 0;
}
