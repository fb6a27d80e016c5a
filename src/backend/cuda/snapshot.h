/* Snapshots of a cache (backend/snapshot.h): rows between the stores on the device and the host. */
#ifndef KAKEYA_BACKEND_CUDA_SNAPSHOT_H
#define KAKEYA_BACKEND_CUDA_SNAPSHOT_H

#include "backend/cuda/cache.h"
#include "backend/snapshot.h"

size_t cuda_cache_snapshot_bytes(const backend_cache *c);
kakeya_status cuda_cache_snapshot(const backend_cache *c, backend_write_fn write, void *user, kakeya_error *error);
kakeya_status cuda_cache_restore(backend_cache *c, backend_read_fn read, void *user, kakeya_error *error);

/* A snapshot_copy_fn: rows of this device's stores. */
kakeya_status cuda_snapshot_copy(backend_cache *c, const snapshot_rows *rows, void *host, bool to_host,
                                 kakeya_error *error);

#endif
