/* Which kernel table this CPU can run. */
#include <string.h>

#include "backend/cpu/kernels_private.h"

/* Best first. Each instruction set contains the ones behind it, so what a CPU supports is a tail of this list. */
#if defined(__x86_64__)
static const cpu_kernels *const tables[] = {&cpu_kernels_avx512bf16, &cpu_kernels_avx512, &cpu_kernels_avx2,
                                            &cpu_kernels_scalar};
static const char *const names[] = {"avx512bf16", "avx512", "avx2", "scalar", NULL};

static size_t first_supported(void) {
    __builtin_cpu_init();
    /* F16C is older than AVX2 and part of every CPU that has it. */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 3;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return 2;
    return __builtin_cpu_supports("avx512bf16") ? 0 : 1;
}
#else
static const cpu_kernels *const tables[] = {&cpu_kernels_scalar};
static const char *const names[] = {"scalar", NULL};

static size_t first_supported(void) { return 0; }
#endif

const char *const *cpu_kernels_supported(void) { return names + first_supported(); }

const cpu_kernels *cpu_kernels_find(const char *name) {
    size_t count = sizeof tables / sizeof tables[0];
    for (size_t i = first_supported(); i < count; i++) {
        if (!name || strcmp(name, names[i]) == 0) return tables[i];
    }
    return NULL;
}
