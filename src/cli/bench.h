/* Shared by the files of `kakeya bench`. */
#ifndef KAKEYA_CLI_BENCH_H
#define KAKEYA_CLI_BENCH_H

#include "measure/bench.h"

/* The tables of --profile on stdout. */
void bench_print_profiles(const bench_result *result);
/* One object per context, in an array. */
struct cJSON *bench_profiles_json(const bench_result *result);

#endif
