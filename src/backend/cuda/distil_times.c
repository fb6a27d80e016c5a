/* Where the time of a step goes: events between its parts, read when the device has finished. */
#include "backend/cuda/distil.h"

void train_begin_part(backend_restoration_trainer *s, int part) {
    distil_times *t = &s->times;
    if (t->n == DISTIL_MARKS || (t->n && t->part[t->n - 1] == part)) return;
    if (!t->mark[t->n] && cudaEventCreate(&t->mark[t->n]) != cudaSuccess) return;
    (void)cudaEventRecord(t->mark[t->n], s->launch.stream);
    t->part[t->n++] = part;
}

void train_end_parts(backend_restoration_trainer *s) { train_begin_part(s, RESTORATION_PARTS); }

void train_read_times(backend_restoration_trainer *s) {
    distil_times *t = &s->times;
    for (int i = 0; i + 1 < t->n; i++) {
        float milliseconds = 0;
        (void)cudaEventElapsedTime(&milliseconds, t->mark[i], t->mark[i + 1]);
        t->seconds[t->part[i]] += (double)milliseconds / 1e3;
    }
    t->n = 0;
}

void train_forget_times(backend_restoration_trainer *s) {
    for (int i = 0; i < DISTIL_MARKS; i++) {
        if (s->times.mark[i]) (void)cudaEventDestroy(s->times.mark[i]);
    }
}
