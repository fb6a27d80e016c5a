/* Captured steps: one graph per shape of a step, reused for every position and session. */
#ifndef KAKEYA_BACKEND_CUDA_GRAPHS_H
#define KAKEYA_BACKEND_CUDA_GRAPHS_H

#include <stdbool.h>

#include "backend/cuda/device.h"

/* What a captured step depends on. Everything else is read from device memory when it runs. */
typedef struct graph_key {
    int rows;
    int partitions;      /* of full-attention layers */
    int restored;        /* positions of the restore buffers; 0: no restored policy */
    const void *latents; /* ring whose latents are decoded; NULL: none */
    int sink, window;    /* of caches with latents */
    bool aux;            /* keeps aux hidden states */
    bool leaders;        /* the head is followed by them */
    bool greedy;         /* only the choice of rows is wanted */
    bool restore_all;
    int draft_window; /* of a block of the drafter; 0: a decode step */
} graph_key;

enum { CUDA_MAX_GRAPHS = 64 };

typedef struct cuda_graph {
    graph_key key;
    cudaGraphExec_t exec;
} cuda_graph;

typedef struct cuda_graphs {
    cuda_graph graph[CUDA_MAX_GRAPHS];
    int n;
} cuda_graphs;

/* Launches the graph of this key on the device's stream; where there is none yet, what `enqueue` launches there is
 * captured first; a step of which `enqueue` says that it is not whole is never kept. With all places taken, all graphs
 * go. */
kakeya_status cuda_graphs_run(cuda_graphs *graphs, const cuda_device *device, const graph_key *key,
                              cudaError_t (*enqueue)(void *), void *context, kakeya_error *error);
/* Needed whenever an address that a graph holds moves. */
void cuda_graphs_drop(cuda_graphs *graphs);

#endif
