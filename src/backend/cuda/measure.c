/* What benchmarks ask of this backend beside inference. */
#include "backend/measure.h"

#include "backend/cuda/machine.h"
#include "backend/cuda/model.h"
#include "backend/cuda/profile.h"
#include "backend/cuda/tower.h"
#include "backend/cuda/tp_group.h"
#include "backend/cuda/weights_limit.h"

static kakeya_status seconds_between(cudaEvent_t start, cudaEvent_t end, double *seconds, kakeya_error *error) {
    float milliseconds = 0;
    cudaError_t status = cudaEventSynchronize(end);
    if (status == cudaSuccess) status = cudaEventElapsedTime(&milliseconds, start, end);
    *seconds = (double)milliseconds / 1e3;
    return cuda_check(status, "measuring the device", error);
}

static int devices_of(const backend_model *m) { return m->tp_group ? cuda_tp_group_size(m->tp_group) : 1; }
static backend_model *device_of(backend_model *m, int index) {
    return index ? cuda_tp_group_model(m->tp_group, index) : m;
}

/* Reads the weights themselves: they are larger than every cache, or there is nothing else to read. */
static kakeya_status probe_one(backend_model *m, backend_probe *out, kakeya_error *error) {
    enum { PASSES = 2, ITERATIONS = 4096 };
    static const size_t largest = (size_t)8 << 30;
    size_t bytes = m->weights.memory.bytes < largest ? m->weights.memory.bytes : largest;
    bytes = bytes / 16 * 16;
    cudaEvent_t start, end;
    kakeya_status status = cuda_device_use(&m->device, error);
    if (!status) status = cuda_check(cudaEventCreate(&start), "measuring the device", error);
    if (status) return status;
    status = cuda_check(cudaEventCreate(&end), "measuring the device", error);
    if (status) {
        (void)cudaEventDestroy(start);
        return status;
    }
    double seconds = 0;
    (void)cudaEventRecord(start, m->device.stream);
    for (int i = 0; i < PASSES; i++) cuda_probe_read(&m->launch, m->weights.memory.data, bytes, m->space.logits);
    (void)cudaEventRecord(end, m->device.stream);
    status = seconds_between(start, end, &seconds, error);
    out->read_bytes_per_second = PASSES * (double)bytes / seconds;
    if (!status) {
        (void)cudaEventRecord(start, m->device.stream);
        double operations = cuda_probe_flops(&m->launch, m->device.multiprocessors, ITERATIONS, m->space.logits);
        (void)cudaEventRecord(end, m->device.stream);
        status = seconds_between(start, end, &seconds, error);
        out->flops_per_second = operations / seconds;
        out->threads = 1;
    }
    (void)cudaEventDestroy(start);
    (void)cudaEventDestroy(end);
    return status ? status : cuda_finish(&m->device, "measuring the device", error);
}

/* Of several devices, which read and compute side by side, the sum. */
static kakeya_status cuda_probe(backend_model *m, backend_probe *out, kakeya_error *error) {
    *out = (backend_probe){0};
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < devices_of(m) && !status; i++) {
        backend_probe one = {0};
        status = probe_one(device_of(m, i), &one, error);
        out->read_bytes_per_second += one.read_bytes_per_second;
        out->flops_per_second += one.flops_per_second;
        out->threads += one.threads;
    }
    return status;
}

/* Of several devices the first one's copy may be the whole head's, for the drafter. */
static size_t greedy_head_bytes(const backend_model *m) {
    const cuda_matrix *head = m->options.drafter ? &m->weights.draft_head : &m->weights.head;
    size_t bytes = cuda_head_greedy_bytes(&m->head_copy, head);
    return m->tp_group && !m->options.drafter ? (size_t)devices_of(m) * bytes : bytes;
}

static size_t assistant_head_bytes(const backend_model *m) {
    return cuda_head_greedy_bytes(&m->assistant_copy, &m->weights.assistant.head);
}

static size_t page_granule(const backend_model *m) { return m->device.memory.granule_bytes; }

static size_t free_of_one(const backend_model *m) {
    size_t available = 0, total = 0;
    kakeya_error error = {0};
    if (m && cuda_device_use(&m->device, &error) != KAKEYA_OK) return 0;
    return cudaMemGetInfo(&available, &total) == cudaSuccess ? available : 0;
}

/* Sessions take as much of every device. */
static size_t cuda_free_bytes(const backend_model *m) {
    size_t least = free_of_one(m);
    if (!m || !m->tp_group) return least;
    int devices = devices_of(m);
    for (int i = 1; i < devices; i++) {
        size_t one = free_of_one(cuda_tp_group_model(m->tp_group, i));
        if (one < least) least = one;
    }
    return (size_t)devices * least;
}

static void watch_forwards(backend_model *m, bool on) {
    if (cuda_device_use(&m->device, NULL) == KAKEYA_OK) cuda_gaps_watch(&m->gaps, on);
}

/* Of several devices the first one's, which launches what the others do. */
static void forwards(backend_model *m, backend_forwards *out) {
    *out = (backend_forwards){.graphs = m->graphs.captured,
                              .graph_seconds = m->graphs.capture_seconds,
                              .gaps = m->gaps.n,
                              .gap_seconds = m->gaps.seconds,
                              .longest_gap_seconds = m->gaps.most_seconds};
}

const backend_measure_ops *cuda_measure(void);

const backend_measure_ops *cuda_measure(void) {
    static const backend_measure_ops ops = {
        .makes_weights = true,
        .greedy_head_bytes = greedy_head_bytes,
        .assistant_head_bytes = assistant_head_bytes,
        .devices = devices_of,
        .page_granule = page_granule,
        .free_bytes = cuda_free_bytes,
        .image_bytes = cuda_image_bytes,
        .probe = cuda_probe,
        .probe_weights = cuda_weights_limit_probe,
        .bounded_needs = cuda_weights_limit_needs,
        .machine = cuda_machine,
        .profile = cuda_profile,
        .watch_forwards = watch_forwards,
        .forwards = forwards,
    };
    return &ops;
}
