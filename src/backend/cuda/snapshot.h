/* Snapshots of a cache (backend/snapshot.h): rows between the stores on the device and the host. */
#ifndef KAKEYA_BACKEND_CUDA_SNAPSHOT_H
#define KAKEYA_BACKEND_CUDA_SNAPSHOT_H

#include "backend/cuda/cache.h"

size_t cuda_cache_snapshot_bytes(const backend_cache *c);
kakeya_status cuda_cache_snapshot(const backend_cache *c, backend_write_fn write, void *user, kakeya_error *error);
kakeya_status cuda_cache_restore(backend_cache *c, backend_read_fn read, void *user, kakeya_error *error);

#endif
