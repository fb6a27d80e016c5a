/* What benchmarks ask of this backend beside inference. */
#include "backend/measure.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

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
                snprintf(c->reason, sizeof c->reason, "%s: no such way, or a row's bits depend on others",
                         mlx_way_name(first));
        }
    }
    return n;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One row behind what is committed, and dropped again. */
static kakeya_status step(backend_cache *c, int32_t token, kakeya_error *error) {
    int32_t choice;
    backend_segment row = {.cache = c, .tokens = &token, .n = 1, .kind = SEGMENT_DECODE, .argmax = &choice};
    kakeya_status status = mlx_forward(c->model, &row, 1, error);
    return status ? status : host_cache_commit(c, 0, error);
}

/* Every operation alone, which takes longer than all of them in one graph; the step is told as the fastest of some. */
static kakeya_status profile(backend_cache *c, int32_t token, int repeats, backend_profile *out, kakeya_error *error) {
    backend_model *m = c->model;
    mlx_profile_row rows[MLX_PROFILE_ROWS];
    mlx_failure failure;
    *out = (backend_profile){0};
    kakeya_status status = step(c, token, error);
    for (int i = 0; i < repeats && !status; i++) {
        double start = now();
        status = step(c, token, error);
        double taken = now() - start;
        if (!i || taken < out->step_seconds) out->step_seconds = taken;
    }
    if (!status) status = mlx_check(mlx_empty_run(m->device, repeats, &out->empty_seconds, &failure), &failure, error);
    if (status) return status;
    mlx_device_profile(m->device, repeats);
    status = step(c, token, error);
    mlx_device_profile(m->device, 0);
    int n = status ? 0 : mlx_device_profiled(m->device, rows);
    for (int i = 0; i < n && i < BACKEND_MAX_PROFILE_ROWS; i++) {
        backend_profile_row *to = &out->row[out->n++];
        *to = (backend_profile_row){.launches = rows[i].launches,
                                    .seconds = rows[i].seconds,
                                    .bytes = rows[i].bytes,
                                    .operations = rows[i].operations};
        _Static_assert(sizeof to->kernel == sizeof rows[i].kernel && sizeof to->part == sizeof rows[i].part, "names");
        memcpy(to->kernel, rows[i].kernel, sizeof to->kernel);
        memcpy(to->part, rows[i].part, sizeof to->part);
    }
    return status;
}

const backend_measure_ops *mlx_measure(void);

const backend_measure_ops *mlx_measure(void) {
    static const backend_measure_ops ops = {.makes_weights = true,
                                            .free_bytes = mlx_free_bytes,
                                            .image_bytes = mlx_image_bytes,
                                            .probe = mlx_probe,
                                            .device = device,
                                            .checks = checks,
                                            .profile = profile};
    return &ops;
}
