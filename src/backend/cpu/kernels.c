/* Which kernel table this CPU can run. */
#include "backend/cpu/kernels.h"

#include <stdio.h>
#include <string.h>

#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "backend/cpu/int8.h"
#include "backend/cpu/kernels_private.h"
#include "backend/products.h"

/* Best first. Each instruction set contains the ones behind it, so what a CPU supports is a tail of this list. */
#if defined(__x86_64__)
enum { TABLES = 4 };
static const cpu_kernels *const best_first[TABLES] = {&cpu_kernels_avx512bf16, &cpu_kernels_avx512, &cpu_kernels_avx2,
                                                      &cpu_kernels_scalar};
static const char *const best_names[TABLES + 1] = {"avx512bf16", "avx512", "avx2", "scalar", NULL};
/* Intel's CPUs since Sapphire Rapids multiply pairs of bf16 at half the rate of float32 (docs/design/kernels-cpu.md):
 * they have AMX for that. */
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
#if defined(__aarch64__)
/* Every 64-bit Arm has NEON; tables differ in the instructions of int8 products. */
enum { TABLES = 4 };
static const cpu_kernels *const tables[TABLES] = {&cpu_kernels_i8mm, &cpu_kernels_dotprod, &cpu_kernels_neon,
                                                  &cpu_kernels_scalar};
static const char *const names[TABLES + 1] = {"neon-i8mm", "neon-dotprod", "neon", "scalar", NULL};

#if defined(__APPLE__)
static bool has(const char *feature) {
    int value = 0;
    size_t bytes = sizeof value;
    return sysctlbyname(feature, &value, &bytes, NULL, 0) == 0 && value != 0;
}
static bool has_dotprod(void) { return has("hw.optional.arm.FEAT_DotProd"); }
static bool has_i8mm(void) { return has("hw.optional.arm.FEAT_I8MM"); }
#else
static bool has_dotprod(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
static bool has_i8mm(void) { return getauxval(AT_HWCAP2) & HWCAP2_I8MM; }
#endif

static size_t first_supported(void) { return !has_dotprod() ? 2 : !has_i8mm() ? 1 : 0; }
#else
enum { TABLES = 1 };
static const cpu_kernels *const tables[TABLES] = {&cpu_kernels_scalar};
static const char *const names[TABLES + 1] = {"scalar", NULL};

static size_t first_supported(void) { return 0; }
#endif
static const cpu_kernels *const *supported_tables(size_t first) { return tables + first; }
static const char *const *supported_names(size_t first) { return names + first; }
#endif

const char *const *cpu_kernels_compiled(void) { return supported_names(0); }

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

kakeya_status cpu_kernels_choose(const char *name, const cpu_kernels **out, kakeya_error *error) {
    *out = cpu_kernels_find(name);
    if (*out) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED, "kernel set '%s' is unknown or not supported by this CPU",
                     name ? name : "(best)");
}

cpu_input cpu_input_of(kakeya_precision precision) {
    return precision == KAKEYA_PRECISION_BF16   ? INPUT_BF16
           : precision == KAKEYA_PRECISION_INT8 ? INPUT_INT8
                                                : INPUT_EXACT;
}

const char *backend_cpu_products(weight_format format, char *out, size_t n) {
    const cpu_kernels *table = cpu_kernels_find(NULL);
    if (table->weight[format].product[INPUT_INT8].packing == PACKING_INT8)
        snprintf(out, n, "int8, %s, tiles", int8_name(int8_of(table)));
    else
        snprintf(out, n, "f32, %s", table->name);
    return out;
}
