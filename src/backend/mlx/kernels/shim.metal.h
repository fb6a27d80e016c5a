// What the texts of this folder are written in: a plain subset of C++ that Metal's compiler takes at run time, and that
// C++ compiles for the tests, where the threads of a threadgroup are fibers (tests/mlx/fibers.hpp). Rules: pointers say
// where they point to (DEVICE, SHARED, THREAD), a multiply-add is an explicit FMA, lanes meet in LANES_* and BARRIER
// alone, where all of a simdgroup, or of a threadgroup, arrive, and nothing is half or fast.
#ifdef __METAL_VERSION__

#define DEVICE         device
#define SHARED         threadgroup
#define THREAD         thread
#define INLINE         inline
#define CONSTANT       constant
#define AS_FLOAT(bits) as_type<float>(bits)
#define AS_UINT(value) as_type<uint>(value)
#define FMA(a, b, c)   metal::fma(a, b, c)
#define EXP(x)         metal::precise::exp(x)
#define TANH(x)        metal::precise::tanh(x)
#define RSQRT(x)       metal::precise::rsqrt(x)
#define RINT(x)        metal::rint(x)
#define MIN(a, b)      metal::min(a, b)
#define MAX(a, b)      metal::max(a, b)
#define IS_NUMBER(x)   (!metal::isnan(x))
#define LANES_MAX(x)   metal::simd_max(x)
#define LANES_LEAST(x) metal::simd_min(x)
#define LANES_SUM(values, n)                                                                                           \
    for (int meeting = 0; meeting < (n); meeting++) (values)[meeting] = metal::simd_sum((values)[meeting])
#define BARRIER() metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup)

#endif

// Where a thread is.
struct place {
    int group_x, group_y, group_z;
    int simdgroup, simdgroups, lane;
};
