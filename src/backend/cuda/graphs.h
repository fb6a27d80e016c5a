/* Captured steps: one graph per shape of a step, reused for every position and session. */
#ifndef KAKEYA_BACKEND_CUDA_GRAPHS_H
#define KAKEYA_BACKEND_CUDA_GRAPHS_H

#include <stdbool.h>

#include "backend/cuda/device.h"

/* What a captured step depends on. Everything else is read from device memory when it runs. */
typedef struct graph_key {
    int rows;         /* of all segments, and those that the pass is filled up with */
    int segments;     /* with those that the pass is filled up with */
    int segment_rows; /* the most rows of one of them */
    int partitions;   /* of full-attention layers */
    int restored;     /* rows of the restore buffers; 0: no restored policy */
    int sink, window; /* of caches with latents */
    unsigned aux;     /* keeps aux hidden states: of the forms (kernels.h) whose bits are set */
    int codes;        /* cuda_kv_codes of the caches' layers that grow */
    bool leaders;     /* the head is followed by them */
    bool greedy;      /* only the choice of rows is wanted */
    bool restore_all;
    bool states;      /* keeps those that an assistant begins with */
    int draft_window; /* of a block of the drafter; 0: a decode step */
    int chain;        /* drafts of an assistant; 0: others */
} graph_key;

enum { CUDA_MAX_GRAPHS = 64 };

typedef struct cuda_graph {
    graph_key key;
    cudaGraphExec_t exec;
    unsigned long long used; /* the use of cuda_graphs that was its last */
} cuda_graph;

typedef struct cuda_graphs {
    cuda_graph graph[CUDA_MAX_GRAPHS];
    int n;
    unsigned long long uses, captured; /* captured: of all time, ... */
    double capture_seconds;            /* ... and what that took */
} cuda_graphs;

/* A pass as it is launched: a few sizes, so that a few captured steps serve all. One segment's rows stay as they are.
 */
int cuda_graph_rows(int rows);
int cuda_graph_segments(int segments);
int cuda_graph_segment_rows(int segments, int most_rows);
/* Partitions of full-attention layers, `most` of them in the longest segment. */
int cuda_graph_partitions(int segments, int most);
/* `least`, doubled until it is at least `n`. */
int cuda_graph_doubled(int least, int n);

/* The graph of this key; where there is none yet, what `enqueue` launches on the device's stream is captured. A step of
 * which `enqueue` says that it is not whole is never kept. With all places taken, the graph goes that has not been used
 * for longest. It stays until the next call. */
kakeya_status cuda_graphs_find(cuda_graphs *graphs, const cuda_device *device, const graph_key *key,
                               cudaError_t (*enqueue)(void *), void *context, cuda_graph **out, kakeya_error *error);
/* Launches it on the device's stream. */
kakeya_status cuda_graphs_launch(const cuda_graph *graph, const cuda_device *device, kakeya_error *error);
/* Both. */
kakeya_status cuda_graphs_run(cuda_graphs *graphs, const cuda_device *device, const graph_key *key,
                              cudaError_t (*enqueue)(void *), void *context, kakeya_error *error);
/* Needed whenever an address that a graph holds moves. */
void cuda_graphs_drop(cuda_graphs *graphs);

#endif
