#include "backend/cuda/graphs.h"

#include "backend/cuda/kernels.h"
#include "base/clock.h"

/* ------------------------------------------------------------------------------------------------------- sizes */

static int whole_steps(int n, int step) { return (n + step - 1) / step * step; }

int cuda_graph_doubled(int least, int n) {
    while (least < n) least *= 2;
    return least;
}

int cuda_graph_rows(int rows) {
    enum { FEW_ROWS = 64, FEW_STEP = 8, MANY_STEP = 32 };
    return rows <= CUDA_DECODE_ROWS ? rows : whole_steps(rows, rows <= FEW_ROWS ? FEW_STEP : MANY_STEP);
}

int cuda_graph_segments(int segments) { return cuda_graph_doubled(1, segments); }

int cuda_graph_segment_rows(int segments, int most_rows) {
    int rows = segments == 1 ? most_rows : cuda_graph_doubled(1, most_rows);
    return rows < CUDA_DECODE_ROWS ? rows : CUDA_DECODE_ROWS;
}

int cuda_graph_partitions(int segments, int most) {
    enum { LEAST = 8, STEP = 16 };
    return segments > 1 && most > STEP ? whole_steps(most, STEP) : cuda_graph_doubled(LEAST, most);
}

/* ------------------------------------------------------------------------------------------------------ graphs */

void cuda_graphs_drop(cuda_graphs *graphs) {
    for (int i = 0; i < graphs->n; i++) (void)cudaGraphExecDestroy(graphs->graph[i].exec);
    graphs->n = 0;
}

static kakeya_status capture(const cuda_device *device, const graph_key *key, cudaError_t (*enqueue)(void *),
                             void *context, cuda_graph *out, kakeya_error *error) {
    cudaGraph_t graph = NULL;
    cudaError_t status = cudaStreamBeginCapture(device->stream, cudaStreamCaptureModeThreadLocal);
    if (status == cudaSuccess) {
        cudaError_t refused = enqueue(context), launched = cudaGetLastError();
        status = cudaStreamEndCapture(device->stream, &graph);
        if (status == cudaSuccess) status = refused;
        if (status == cudaSuccess) status = launched;
    }
    if (status == cudaSuccess) status = cudaGraphInstantiate(&out->exec, graph, 0);
    if (graph) (void)cudaGraphDestroy(graph);
    out->key = *key;
    return cuda_check(status, "capturing a step", error);
}

static bool same_key(const graph_key *a, const graph_key *b) {
    return a->rows == b->rows && a->segments == b->segments && a->segment_rows == b->segment_rows &&
           a->partitions == b->partitions && a->restored == b->restored && a->aux == b->aux && a->codes == b->codes &&
           a->sink == b->sink && a->window == b->window && a->restore_all == b->restore_all &&
           a->leaders == b->leaders && a->greedy == b->greedy && a->draft_window == b->draft_window &&
           a->states == b->states && a->chain == b->chain;
}

static cuda_graph *find(cuda_graphs *graphs, const graph_key *key) {
    for (int i = 0; i < graphs->n; i++) {
        if (same_key(&graphs->graph[i].key, key)) return &graphs->graph[i];
    }
    return NULL;
}

static cuda_graph *place_of_next(cuda_graphs *graphs) {
    if (graphs->n < CUDA_MAX_GRAPHS) return &graphs->graph[graphs->n++];
    cuda_graph *oldest = &graphs->graph[0];
    for (int i = 1; i < graphs->n; i++) {
        if (graphs->graph[i].used < oldest->used) oldest = &graphs->graph[i];
    }
    (void)cudaGraphExecDestroy(oldest->exec);
    return oldest;
}

kakeya_status cuda_graphs_find(cuda_graphs *graphs, const cuda_device *device, const graph_key *key,
                               cudaError_t (*enqueue)(void *), void *context, cuda_graph **out, kakeya_error *error) {
    cuda_graph *graph = find(graphs, key);
    if (!graph) {
        cuda_graph captured = {0};
        double start = clock_seconds();
        kakeya_status status = capture(device, key, enqueue, context, &captured, error);
        if (status) return status;
        graphs->captured++;
        graphs->capture_seconds += clock_seconds() - start;
        graph = place_of_next(graphs);
        *graph = captured;
    }
    graph->used = ++graphs->uses;
    *out = graph;
    return KAKEYA_OK;
}

kakeya_status cuda_graphs_launch(const cuda_graph *graph, const cuda_device *device, kakeya_error *error) {
    return cuda_check(cudaGraphLaunch(graph->exec, device->stream), "launching a step", error);
}

kakeya_status cuda_graphs_run(cuda_graphs *graphs, const cuda_device *device, const graph_key *key,
                              cudaError_t (*enqueue)(void *), void *context, kakeya_error *error) {
    cuda_graph *graph;
    kakeya_status status = cuda_graphs_find(graphs, device, key, enqueue, context, &graph, error);
    return status ? status : cuda_graphs_launch(graph, device, error);
}
