#include "backend/cuda/streams.h"

#include <stdlib.h>

#include "backend/cuda/snapshot.h"

size_t cuda_cache_stream_bytes(const backend_cache *c) { return sizeof(uint64_t) + cuda_cache_snapshot_bytes(c); }

kakeya_status cuda_cache_write_stream(const backend_cache *c, backend_write_fn write, void *user, kakeya_error *error) {
    uint64_t bytes = cuda_cache_snapshot_bytes(c);
    void *data = malloc((size_t)bytes);
    if (!data) return error_set(error, KAKEYA_OUT_OF_MEMORY, "snapshot of %zu bytes: out of memory", (size_t)bytes);
    kakeya_status status = cuda_cache_snapshot(c, data, (size_t)bytes, error);
    if (!status) status = write(user, &bytes, sizeof bytes, error);
    if (!status) status = write(user, data, (size_t)bytes, error);
    free(data);
    return status;
}

kakeya_status cuda_cache_read_stream(backend_cache *c, backend_read_fn read, void *user, kakeya_error *error) {
    uint64_t bytes = 0;
    kakeya_status status = read(user, &bytes, sizeof bytes, error);
    if (status) return status;
    void *data = bytes < SIZE_MAX ? malloc((size_t)bytes + 1) : NULL;
    if (!data) return error_set(error, KAKEYA_OUT_OF_MEMORY, "snapshot of %zu bytes: out of memory", (size_t)bytes);
    status = read(user, data, (size_t)bytes, error);
    if (!status) status = cuda_cache_restore(c, data, (size_t)bytes, error);
    free(data);
    return status;
}
