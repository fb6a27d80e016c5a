/* Saved sessions of several devices: the file of one. Rows of K/V are put together from what the devices have of them,
 * and dealt to them again. */
#ifndef KAKEYA_BACKEND_CUDA_DEVICES_SNAPSHOT_H
#define KAKEYA_BACKEND_CUDA_DEVICES_SNAPSHOT_H

#include "backend/cuda/cache.h"

size_t cuda_devices_snapshot_bytes(const backend_cache *c);
kakeya_status cuda_devices_snapshot(const backend_cache *c, backend_write_fn write, void *user, kakeya_error *error);
kakeya_status cuda_devices_restore(backend_cache *c, backend_read_fn read, void *user, kakeya_error *error);

#endif
