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

/* How each operation is computed, of rows of answers, then of prompts. */
static int checks(const backend_model *m, backend_check out[BACKEND_MAX_CHECKS]) {
    const mlx_ways *ways = mlx_device_ways(m->device);
    int n = 0;
    for (int prompt = 0; prompt < 2; prompt++) {
        for (int op = 0; op < MLX_OPS && n < BACKEND_MAX_CHECKS; op++) {
            mlx_way way = prompt ? ways->prompt[op] : ways->few[op];
            mlx_way first = prompt || !mlx_device_has_kernels(m->device) ? MLX_WAY_FIXED : MLX_WAY_OWN;
            backend_check *c = &out[n++];
            *c = (backend_check){.first_choice = way == first};
            snprintf(c->operation, sizeof c->operation, "%s%s", mlx_op_name((mlx_op)op), prompt ? " of prompts" : "");
            snprintf(c->chosen, sizeof c->chosen, "%s", mlx_way_name(way));
            if (way != first)
                snprintf(c->reason, sizeof c->reason, "by %s a row's bits depend on the rows beside it",
                         mlx_way_name(first));
        }
    }
    return n;
}

const backend_measure_ops *mlx_measure(void);

const backend_measure_ops *mlx_measure(void) {
    static const backend_measure_ops ops = {
        .free_bytes = mlx_free_bytes, .probe = mlx_probe, .device = device, .checks = checks};
    return &ops;
}
