/* What this machine allows, measured with the model's own threads and kernels: the denominators of `kakeya bench`. */
#include <stdint.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/clock.h"

/* Far beyond any last-level cache, so that every read comes from memory. */
static const size_t probe_buffer_bytes = (size_t)512 << 20;
/* Smallest share of the buffer that a thread takes at a time; probe_read wants multiples of 4,096. */
static const size_t probe_piece_bytes = (size_t)1 << 20;
/* Long enough that starting the threads does not count, short enough to be repeated beside every measurement. */
static const double probe_flops_seconds = 0.005;
/* The fastest of these counts: what the machine allows, not what a disturbance left of it. */
static const int probe_repeats = 4;

typedef struct read_probe {
    const cpu_kernels *kernels;
    const unsigned char *data;
    float checksum[CPU_MAX_THREADS];
} read_probe;

/* Fresh memory is one shared page of zeros until it is written; reading that would measure a cache. */
static void write_pieces(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    memset((unsigned char *)context + begin * probe_piece_bytes, 1, (end - begin) * probe_piece_bytes);
}

static void read_pieces(void *context, size_t begin, size_t end, int thread) {
    read_probe *probe = context;
    probe->checksum[thread] +=
        probe->kernels->probe_read(probe->data + begin * probe_piece_bytes, (end - begin) * probe_piece_bytes);
}

typedef struct flops_probe {
    const cpu_kernels *kernels;
    bool round;
    size_t iterations;
    double operations[CPU_MAX_THREADS];
} flops_probe;

static void run_operations(void *context, int thread, int threads) {
    (void)threads;
    flops_probe *probe = context;
    probe->operations[thread] = probe->kernels->probe_flops(probe->round, probe->iterations);
}

static double seconds_of_operations(thread_pool *pool, flops_probe *probe) {
    double start = clock_seconds();
    thread_pool_run(pool, run_operations, probe);
    return clock_seconds() - start;
}

kakeya_status cpu_probe(backend_model *m, backend_probe *out, kakeya_error *error) {
    int threads = thread_pool_size(m->pool);
    unsigned char *buffer = mem_alloc(m->account, MEM_WORKSPACE, probe_buffer_bytes);
    if (!buffer) {
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the bandwidth probe reads %zu bytes",
                         probe_buffer_bytes);
    }
    thread_pool_for(m->pool, probe_buffer_bytes / probe_piece_bytes, 1, write_pieces, buffer);
    read_probe reading = {.kernels = m->kernels, .data = buffer};
    double fastest = 0;
    for (int i = 0; i < probe_repeats; i++) {
        double start = clock_seconds();
        thread_pool_for(m->pool, probe_buffer_bytes / probe_piece_bytes, 1, read_pieces, &reading);
        double rate = (double)probe_buffer_bytes / (clock_seconds() - start);
        if (rate > fastest) fastest = rate;
    }
    mem_free(buffer);
    out->read_bytes_per_second = fastest;

    flops_probe computing = {.kernels = m->kernels, .round = m->round, .iterations = 1000};
    while (seconds_of_operations(m->pool, &computing) < probe_flops_seconds && computing.iterations < SIZE_MAX / 2) {
        computing.iterations *= 2; /* wakes the threads and finds a run that is long enough */
    }
    fastest = 0;
    for (int i = 0; i < probe_repeats; i++) {
        double seconds = seconds_of_operations(m->pool, &computing), operations = 0;
        for (int t = 0; t < threads; t++) operations += computing.operations[t];
        if (operations / seconds > fastest) fastest = operations / seconds;
    }
    out->flops_per_second = fastest;
    out->threads = threads;
    return KAKEYA_OK;
}
