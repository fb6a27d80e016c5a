/* What benchmarks ask of this backend beside inference. */
#include "backend/measure.h"

#include <stdio.h>

#include "backend/mlx/mlx.h"
#include "base/machine_memory.h"

static size_t mlx_free_bytes(const backend_model *m) {
    (void)m;
    return machine_memory_available();
}

static kakeya_status mlx_probe(backend_model *m, backend_probe *out, kakeya_error *error) {
    mlx_failure failure;
    *out = (backend_probe){.threads = 1};
    return mlx_check(mlx_probe_run(m->device, &out->read_bytes_per_second, &out->flops_per_second, &failure), &failure,
                     error);
}

static void device(const backend_model *m, backend_device *out) {
    mlx_device_info info;
    *out = (backend_device){.held_bytes = mlx_device_active_bytes(), .most_bytes = mlx_device_peak_bytes()};
    mlx_device_describe(m->device, &info);
    snprintf(out->name, sizeof out->name, "%s", info.name);
    out->memory_bytes = info.memory_bytes;
    out->working_set_bytes = info.working_set_bytes;
}

const backend_measure_ops *mlx_measure(void);

const backend_measure_ops *mlx_measure(void) {
    static const backend_measure_ops ops = {.free_bytes = mlx_free_bytes, .probe = mlx_probe, .device = device};
    return &ops;
}
