/* Which kernel table this CPU can run. */
#include "backend/cpu/kernels.h"

#include <string.h>

#include "backend/cpu/kernels_private.h"

/* Best first. Each instruction set contains the ones behind it, so what a CPU supports is a tail of this list. */
#if defined(__x86_64__)
enum { TABLES = 4 };
static const cpu_kernels *const best_first[TABLES] = {&cpu_kernels_avx512bf16, &cpu_kernels_avx512, &cpu_kernels_avx2,
                                                      &cpu_kernels_scalar};
static const char *const best_names[TABLES + 1] = {"avx512bf16", "avx512", "avx2", "scalar", NULL};
/* Intel's CPUs since Sapphire Rapids multiply pairs of bf16 at half the rate of float32 (docs/kernels-cpu.md): they
 * have AMX for that. */
static const cpu_kernels *const intel_first[TABLES] = {&cpu_kernels_avx512, &cpu_kernels_avx512bf16, &cpu_kernels_avx2,
                                                       &cpu_kernels_scalar};
static const char *const intel_names[TABLES + 1] = {"avx512", "avx512bf16", "avx2", "scalar", NULL};

static size_t first_supported(void) {
    __builtin_cpu_init();
    /* F16C is older than AVX2 and part of every CPU that has it. */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 3;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return 2;
    return __builtin_cpu_supports("avx512bf16") ? 0 : 1;
}

static bool pairs_are_slow(size_t first) { return first == 0 && __builtin_cpu_is("intel"); }
static const cpu_kernels *const *supported_tables(size_t first) {
    return (pairs_are_slow(first) ? intel_first : best_first) + first;
}
static const char *const *supported_names(size_t first) {
    return (pairs_are_slow(first) ? intel_names : best_names) + first;
}
#else
enum { TABLES = 1 };
static const cpu_kernels *const tables[TABLES] = {&cpu_kernels_scalar};
static const char *const names[TABLES + 1] = {"scalar", NULL};

static size_t first_supported(void) { return 0; }
static const cpu_kernels *const *supported_tables(size_t first) { return tables + first; }
static const char *const *supported_names(size_t first) { return names + first; }
#endif

const char *const *cpu_kernels_supported(void) { return supported_names(first_supported()); }

const cpu_kernels *cpu_kernels_find(const char *name) {
    size_t first = first_supported();
    const cpu_kernels *const *tables_here = supported_tables(first);
    const char *const *names_here = supported_names(first);
    for (size_t i = 0; i < TABLES - first; i++) {
        if (!name || strcmp(name, names_here[i]) == 0) return tables_here[i];
    }
    return NULL;
}
