/* The table of `kakeya bench --profile`. */
#include <cjson/cJSON.h>
#include <stdio.h>

#include "cli/bench.h"

static void print_profile(const bench_result *result, const bench_profile *profile) {
    const backend_profile *step = &profile->step;
    double seconds = 0, bound = 0;
    int launches = 0;
    printf("\none decode step after %d tokens, kernel by kernel, in microseconds\n", profile->context);
    printf("%-26s %-22s %8s %10s %8s %10s %10s %9s\n", "part", "kernel", "launches", "time", "each", "MB", "bound",
           "of bound");
    for (int i = 0; i < step->n; i++) {
        const backend_profile_row *row = &step->row[i];
        double own = bench_kernel_bound(result, row);
        printf("%-26s %-22s %8d %10.1f %8.2f", row->part, row->kernel, row->launches, row->seconds * 1e6,
               row->seconds * 1e6 / row->launches);
        if (own > 0) printf(" %10.2f %10.1f %7.0f %%", row->bytes / 1e6, own * 1e6, 100 * own / row->seconds);
        putchar('\n');
        seconds += row->seconds;
        bound += own;
        launches += row->launches;
    }
    printf("%-26s %-22s %8d %10.1f %8s %10s %10.1f %7.0f %%\n", "all, one by one", "", launches, seconds * 1e6, "", "",
           bound * 1e6, 100 * bound / seconds);
    printf("%-26s %-22s %8s %10.1f %8s %10s %10.1f %7.0f %%\n", "the step, as decoding runs it", "", "",
           step->step_seconds * 1e6, "", "", bound * 1e6, 100 * bound / step->step_seconds);
    printf("a kernel that does nothing takes %.2f when it is measured like the others\n", step->empty_seconds * 1e6);
}

void bench_print_profiles(const bench_result *result) {
    for (size_t i = 0; i < result->n_profiles; i++) print_profile(result, &result->profile[i]);
}

static cJSON *kernel_json(const bench_result *result, const backend_profile_row *row) {
    double bound = bench_kernel_bound(result, row);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "part", row->part);
    cJSON_AddStringToObject(json, "kernel", row->kernel);
    cJSON_AddNumberToObject(json, "launches", row->launches);
    cJSON_AddNumberToObject(json, "seconds", row->seconds);
    cJSON_AddNumberToObject(json, "bytes", row->bytes);
    cJSON_AddNumberToObject(json, "operations", row->operations);
    cJSON_AddNumberToObject(json, "bound_seconds", bound);
    if (bound > 0)
        cJSON_AddNumberToObject(json, "share_of_bound", bound / row->seconds);
    else
        cJSON_AddNullToObject(json, "share_of_bound");
    return json;
}

cJSON *bench_profiles_json(const bench_result *result) {
    cJSON *json = cJSON_CreateArray();
    for (size_t i = 0; i < result->n_profiles; i++) {
        const backend_profile *step = &result->profile[i].step;
        cJSON *profile = cJSON_CreateObject();
        cJSON_AddNumberToObject(profile, "context", result->profile[i].context);
        cJSON_AddNumberToObject(profile, "step_seconds", step->step_seconds);
        cJSON_AddNumberToObject(profile, "empty_kernel_seconds", step->empty_seconds);
        cJSON *kernels = cJSON_AddArrayToObject(profile, "kernels");
        for (int k = 0; k < step->n; k++) cJSON_AddItemToArray(kernels, kernel_json(result, &step->row[k]));
        cJSON_AddItemToArray(json, profile);
    }
    return json;
}
