/* The CUDA backend as the registry sees it; in a plugin, all that the plugin exports. */
#include <stdio.h>

#include "backend/cuda/device.h"
#include "backend/entry.h"

const backend_ops *cuda_backend(void);
const backend_measure_ops *cuda_measure(void);
const backend_train_ops *cuda_train(void);

static bool present(char *about, size_t bytes) {
    kakeya_error error = {0};
    char name[128];
    bool there = cuda_device_present(about ? name : NULL, sizeof name, &error) == KAKEYA_OK;
    if (about) snprintf(about, bytes, "%s", there ? name : error.message);
    return there;
}

BACKEND_ENTRY(cuda_entry) = {
    .interface = KAKEYA_INTERFACE,
    .name = "cuda",
    .present = present,
    .ops = cuda_backend,
    .measure = cuda_measure,
    .train = cuda_train,
};
