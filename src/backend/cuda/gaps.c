#include "backend/cuda/gaps.h"

void cuda_gaps_watch(cuda_gaps *g, bool on) {
    cudaEvent_t *events[] = {&g->begin, &g->end[0], &g->end[1]};
    cudaError_t status = cudaSuccess;
    if (on == g->watched) return;
    g->followed = false;
    g->watched = on;
    for (int i = 0; on && i < 3 && status == cudaSuccess; i++) status = cudaEventCreate(events[i]);
    if (on && status == cudaSuccess) return;
    g->watched = false;
    for (int i = 0; i < 3; i++) {
        if (*events[i]) (void)cudaEventDestroy(*events[i]);
        *events[i] = NULL;
    }
}

void cuda_gaps_begin(const cuda_gaps *g, cudaStream_t stream) {
    if (g->watched) (void)cudaEventRecord(g->begin, stream);
}

void cuda_gaps_end(const cuda_gaps *g, cudaStream_t stream) {
    if (g->watched) (void)cudaEventRecord(g->end[1], stream);
}

void cuda_gaps_add(cuda_gaps *g, bool whole) {
    float milliseconds = 0;
    cudaEvent_t ended = g->end[0];
    if (!g->watched) return;
    if (whole && g->followed && cudaEventElapsedTime(&milliseconds, ended, g->begin) == cudaSuccess) {
        double seconds = (double)milliseconds / 1e3;
        g->n++;
        g->seconds += seconds;
        if (seconds > g->most_seconds) g->most_seconds = seconds;
    }
    g->end[0] = g->end[1];
    g->end[1] = ended;
    g->followed = whole;
}
