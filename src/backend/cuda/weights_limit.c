#include "backend/cuda/weights_limit.h"

#include <stdlib.h>

#include "backend/cuda/model.h"
#include "base/clock.h"

void cuda_weights_limit_state(const backend_model *m, backend_weights *out) {
    cuda_bounded_state(m->weights.bounded, out);
}

/* Copies pieces of `bytes`, from places all over `host`, for a fifth of a second. */
static kakeya_status measure_copies(void *device, const unsigned char *host, size_t host_bytes, size_t bytes,
                                    cudaStream_t stream, double *bytes_per_second, kakeya_error *error) {
    static const double least_seconds = 0.2;
    cudaError_t status = cudaStreamSynchronize(stream);
    double begin = clock_seconds(), copied = 0, seconds = 0;
    for (size_t at = 0; status == cudaSuccess && seconds < least_seconds;
         at = at + 2 * bytes <= host_bytes ? at + bytes : 0) {
        status = cudaMemcpyAsync(device, host + at, bytes, cudaMemcpyHostToDevice, stream);
        if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
        copied += (double)bytes;
        seconds = clock_seconds() - begin;
    }
    *bytes_per_second = copied / seconds;
    return cuda_check(status, "measuring copies", error);
}

static const size_t probe_bytes = (size_t)256 << 20;

kakeya_status cuda_weights_limit_probe(backend_model *m, double *bytes_per_second, kakeya_error *error) {
    const cuda_bounded *b = m->weights.bounded;
    if (!b) return error_set(error, KAKEYA_INVALID_ARGUMENT, "there is no limit on weights");
    cuda_buffer to = {0};
    const cuda_bounded_host host = cuda_bounded_memory(b);
    const size_t bytes = host.bytes < probe_bytes ? host.bytes : probe_bytes;
    kakeya_status status = cuda_device_use(&m->device, error);
    if (!status)
        status = cuda_buffer_create(&to, &m->device, m->account, MEM_WORKSPACE, bytes, "measuring copies", error);
    if (!status)
        status = measure_copies(to.data, host.data, host.bytes, bytes, m->device.stream, bytes_per_second, error);
    cuda_buffer_destroy(&to);
    return status;
}

kakeya_status cuda_weights_limit_needs(const language_model *verifier, mem_account *account, size_t *resident,
                                       size_t *expert, double *bytes_per_second, kakeya_error *error) {
    const backend_model_options options = {.verifier = verifier, .precision = KAKEYA_PRECISION_BF16};
    cuda_weights *w = malloc(sizeof *w);
    cuda_device device = {0};
    if (!w) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a list of weights");
    *expert = 0;
    kakeya_status status = cuda_weights_describe_shared(w, &options, resident, error);
    *resident += mem_bytes(account, MEM_WEIGHTS);
    for (int i = 0; i < verifier->config.layers && !status; i++) {
        const cuda_bounded_layer layer = {&w->layer[i].experts_gate_up, &w->layer[i].experts_down};
        const size_t bytes = cuda_bounded_expert_bytes(&layer, verifier->config.experts);
        if (bytes > *expert) *expert = bytes;
    }
    free(w);
    void *to = NULL, *host = NULL;
    if (!status) status = cuda_device_open(&device, 0, error);
    if (!status) status = cuda_check(cudaMalloc(&to, probe_bytes), "measuring copies", error);
    if (!status) status = cuda_pinned(&host, probe_bytes, "measuring copies", error);
    if (!status) status = measure_copies(to, host, probe_bytes, probe_bytes, device.stream, bytes_per_second, error);
    if (host) (void)cudaFreeHost(host);
    if (to) (void)cudaFree(to);
    cuda_device_close(&device);
    return status;
}
