#include "backend/cuda/recorder.h"

#include <stdlib.h>

static void note(cuda_profiler *p, cudaError_t status) {
    if (p->failure == cudaSuccess) p->failure = status;
}

void cuda_profile_part(const cuda_launch *l, const char *part, double bytes, double operations) {
    if (!l->profiler) return;
    l->profiler->part = part;
    l->profiler->bytes = bytes;
    l->profiler->operations = operations;
}

void cuda_profile_begin(const cuda_launch *l, const void *kernel) {
    cuda_profiler *p = l->profiler;
    if (!p) return;
    p->overflow |= p->n == PROFILER_MAX_LAUNCHES;
    if (p->overflow) return;
    profiled_launch *launch = &p->launches[p->n];
    if (!launch->begin) note(p, cudaEventCreate(&launch->begin));
    if (!launch->end) note(p, cudaEventCreate(&launch->end));
    launch->kernel = kernel;
    launch->part = p->part;
    launch->bytes = p->bytes;
    launch->operations = p->operations;
    p->bytes = p->operations = 0;
    note(p, cudaEventRecord(launch->begin, l->stream));
}

void cuda_profile_end(const cuda_launch *l) {
    cuda_profiler *p = l->profiler;
    if (!p || p->overflow) return;
    note(p, cudaEventRecord(p->launches[p->n++].end, l->stream));
}

cuda_profiler *cuda_profiler_create(void) {
    cuda_profiler *p = calloc(1, sizeof *p);
    if (p) p->part = "";
    return p;
}

void cuda_profiler_destroy(cuda_profiler *p) {
    if (!p) return;
    for (int i = 0; i < PROFILER_MAX_LAUNCHES; i++) {
        if (p->launches[i].begin) (void)cudaEventDestroy(p->launches[i].begin);
        if (p->launches[i].end) (void)cudaEventDestroy(p->launches[i].end);
    }
    free(p);
}
