/* Intel from Skylake-SP on, AMD from Zen 4 on; and the table of CPUs that multiply pairs of bf16 beside (Intel Cooper
 * Lake and from Sapphire Rapids on, AMD from Zen 4 on), which differs in bf16 weights with rounded activations alone.
 */
#include "backend/cpu/simd_avx512.h"

#define INT8_KERNELS int8_widest()
#include "backend/cpu/kernels_attention.h"

const cpu_kernels cpu_kernels_avx512 = VECTOR_TABLE("avx512");

static double probe_flops_pairs(bool round_to_bf16, size_t iterations) {
    return round_to_bf16 ? cpu_pairs_probe(iterations) : probe_flops(false, iterations);
}

#undef ROUNDED_BF16
#undef ROUNDED_BF16_PACKING
#undef ROUNDED_BF16_PROBE
#define ROUNDED_BF16                                                                                                   \
    { PACKING_PAIRS, cpu_pairs_multiply }
#define ROUNDED_BF16_PACKING [PACKING_PAIRS] = {cpu_pairs_row_bytes, cpu_pairs_pack}
#define ROUNDED_BF16_PROBE   probe_flops_pairs

const cpu_kernels cpu_kernels_avx512bf16 = VECTOR_TABLE("avx512bf16");
