#include "backend/cuda/graphs.h"

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
    return a->rows == b->rows && a->partitions == b->partitions && a->restored == b->restored && a->aux == b->aux &&
           a->latents == b->latents && a->sink == b->sink && a->window == b->window &&
           a->restore_all == b->restore_all && a->leaders == b->leaders && a->greedy == b->greedy &&
           a->draft_window == b->draft_window;
}

kakeya_status cuda_graphs_run(cuda_graphs *graphs, const cuda_device *device, const graph_key *key,
                              cudaError_t (*enqueue)(void *), void *context, kakeya_error *error) {
    for (int i = 0; i < graphs->n; i++) {
        if (same_key(&graphs->graph[i].key, key))
            return cuda_check(cudaGraphLaunch(graphs->graph[i].exec, device->stream), "launching a step", error);
    }
    if (graphs->n == CUDA_MAX_GRAPHS) cuda_graphs_drop(graphs);
    kakeya_status status = capture(device, key, enqueue, context, &graphs->graph[graphs->n], error);
    if (status) return status;
    return cuda_check(cudaGraphLaunch(graphs->graph[graphs->n++].exec, device->stream), "launching a step", error);
}
