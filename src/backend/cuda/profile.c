/* Which kernels one decode step consists of, how long each takes alone, and what bounds it. */
#include "backend/cuda/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/forward.h"
#include "backend/cuda/recorder.h"
#include "base/clock.h"

enum {
    MAX_REPEATS = 100,
    HEAD_START_US = 8000, /* the host enqueues a step of 30 layers in 2 ms */
};

/* ------------------------------------------------------------------------------------------------- summing up */

/* The last identifier of a mangled name that ends in "_kernel": _Z15products_kernelILi1ELi6EEv... */
static void kernel_name(const profiled_launch *launch, char out[BACKEND_PROFILE_NAME]) {
    static const char ending[] = "_kernel";
    const char *mangled = NULL;
    snprintf(out, BACKEND_PROFILE_NAME, "%.*s", BACKEND_PROFILE_NAME - 1, launch->part);
    if (!launch->kernel || cudaFuncGetName(&mangled, launch->kernel) != cudaSuccess || !mangled) return;
    for (const char *at = mangled; *at; at++) {
        if (*at < '1' || *at > '9' || (at > mangled && at[-1] >= '0' && at[-1] <= '9')) continue;
        char *name;
        size_t length = strtoul(at, &name, 10), ends = sizeof ending - 1;
        if (length < ends || length > strlen(name) || strncmp(name + length - ends, ending, ends) != 0) continue;
        snprintf(out, BACKEND_PROFILE_NAME, "%.*s", (int)(length - ends), name);
        return;
    }
}

static backend_profile_row *row_of(backend_profile *profile, const profiled_launch *launch) {
    char kernel[BACKEND_PROFILE_NAME];
    kernel_name(launch, kernel);
    for (int i = 0; i < profile->n; i++) {
        backend_profile_row *row = &profile->row[i];
        if (strcmp(row->kernel, kernel) == 0 && strcmp(row->part, launch->part) == 0) return row;
    }
    if (profile->n == BACKEND_MAX_PROFILE_ROWS) return NULL;
    backend_profile_row *row = &profile->row[profile->n++];
    *row = (backend_profile_row){0};
    memcpy(row->kernel, kernel, sizeof kernel);
    snprintf(row->part, sizeof row->part, "%.*s", BACKEND_PROFILE_NAME - 1, launch->part);
    return row;
}

static int compare_floats(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double median_ms(float *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare_floats);
    return n % 2 ? (double)values[n / 2] : ((double)values[n / 2 - 1] + (double)values[n / 2]) / 2;
}

/* Milliseconds of each launch of the step that has just finished, into samples[launch][repeat]. */
static cudaError_t read_times(const cuda_profiler *p, float *samples, int repeat, int repeats) {
    cudaError_t status = cudaSuccess;
    for (int i = 0; i < p->n && status == cudaSuccess; i++)
        status = cudaEventElapsedTime(&samples[i * repeats + repeat], p->launches[i].begin, p->launches[i].end);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- verb */

static kakeya_status one_row(backend_cache *c, const int32_t *token, kakeya_error *error) {
    int32_t argmax;
    backend_segment segment = {.cache = c, .tokens = token, .n = 1, .kind = SEGMENT_DECODE, .argmax = &argmax};
    kakeya_status status = cuda_forward(c->model, &segment, 1, error);
    return status ? status : cuda_cache_commit(c, 0, error);
}

static kakeya_status profiled_row(backend_cache *c, const int32_t *token, cuda_profiler *p, kakeya_error *error) {
    backend_model *m = c->model;
    cuda_launch plain = m->launch;
    p->n = 0;
    m->launch.profiler = p;
    m->launch.programmatic = 0; /* each kernel alone */
    cuda_profile_delay(&plain, HEAD_START_US);
    kakeya_status status = one_row(c, token, error);
    m->launch = plain;
    if (!status) status = cuda_check(p->failure, "profiling a step", error);
    if (!status && p->overflow)
        status = error_set(error, KAKEYA_UNSUPPORTED, "one step has more than %d launches, too many to profile",
                           (int)PROFILER_MAX_LAUNCHES);
    return status;
}

static kakeya_status time_empty(backend_cache *c, cuda_profiler *p, double *seconds, kakeya_error *error) {
    enum { LAUNCHES = 32 };
    cuda_launch l = c->model->launch;
    float samples[LAUNCHES];
    l.profiler = p;
    l.programmatic = 0;
    p->n = 0;
    cuda_profile_delay(&l, HEAD_START_US);
    for (int i = 0; i < LAUNCHES; i++) cuda_profile_empty(&l);
    kakeya_status status = cuda_finish(&c->model->device, "profiling a step", error);
    if (!status) status = cuda_check(read_times(p, samples, 0, 1), "profiling a step", error);
    *seconds = status ? 0 : median_ms(samples, LAUNCHES) / 1e3;
    return status;
}

kakeya_status cuda_profile(backend_cache *c, int32_t token, int repeats, backend_profile *out, kakeya_error *error) {
    *out = (backend_profile){0};
    if (c->model->tp_group)
        return error_set(error, KAKEYA_UNSUPPORTED, "a profile covers a single device: omit --devices");
    if (repeats < 1 || repeats > MAX_REPEATS)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%d repetitions of a profile; 1 to %d", repeats,
                         (int)MAX_REPEATS);
    float whole[MAX_REPEATS], *samples = malloc((size_t)PROFILER_MAX_LAUNCHES * (size_t)repeats * sizeof *samples);
    cuda_profiler *p = cuda_profiler_create();
    kakeya_status status =
        samples && p ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a profile");
    if (!status) status = one_row(c, &token, error); /* warm, and captured */
    for (int i = 0; i < repeats && !status; i++) {
        double start = clock_seconds();
        status = one_row(c, &token, error);
        whole[i] = (float)(1e3 * (clock_seconds() - start));
    }
    for (int i = -1; i < repeats && !status; i++) { /* the first one loads kernels and creates events */
        status = profiled_row(c, &token, p, error);
        if (!status && i >= 0) status = cuda_check(read_times(p, samples, i, repeats), "profiling a step", error);
    }
    for (int i = 0; !status && i < p->n; i++) {
        backend_profile_row *row = row_of(out, &p->launches[i]);
        if (!row) {
            status = error_set(error, KAKEYA_UNSUPPORTED, "a step has more than %d kinds of launches",
                               (int)BACKEND_MAX_PROFILE_ROWS);
            break;
        }
        row->launches++;
        row->seconds += median_ms(samples + i * repeats, repeats) / 1e3;
        row->bytes += p->launches[i].bytes;
        row->operations += p->launches[i].operations;
    }
    if (!status) out->step_seconds = median_ms(whole, repeats) / 1e3;
    if (!status) status = time_empty(c, p, &out->empty_seconds, error);
    cuda_profiler_destroy(p);
    free(samples);
    return status;
}
