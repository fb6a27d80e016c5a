// The own kernels' texts, compiled as C++ on fibers.
#include "mlx/host_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "mlx/fibers.hpp"

namespace {

typedef uint8_t uchar;
typedef uint16_t ushort;
typedef uint32_t uint;
typedef uint64_t ulong;

template <class To, class From> To bits_as(From from) {
    To to;
    static_assert(sizeof to == sizeof from);
    std::memcpy(&to, &from, sizeof to);
    return to;
}

#define DEVICE
#define SHARED
#define THREAD
#define INLINE               inline
#define CONSTANT             constexpr
#define AS_FLOAT(bits)       bits_as<float>(static_cast<uint>(bits))
#define AS_UINT(value)       bits_as<uint>(static_cast<float>(value))
#define FMA(a, b, c)         std::fma(a, b, c)
#define EXP(x)               std::exp(x)
#define TANH(x)              std::tanh(x)
#define RSQRT(x)             (1.0f / std::sqrt(x))
#define RINT(x)              std::rint(x)
#define MIN(a, b)            std::min(a, b)
#define MAX(a, b)            std::max(a, b)
#define IS_NUMBER(x)         (!std::isnan(x))
#define LANES_MAX(x)         fibers::largest(x)
#define LANES_LEAST(x)       fibers::least(x)
#define LANES_SUM(values, n) fibers::sum(values, n)
#define BARRIER()            fibers::barrier()

#include "backend/mlx/kernels/shim.metal.h"

#include "backend/mlx/kernels/product.metal.h"

#include "backend/mlx/kernels/q4.metal.h"

#include "backend/mlx/kernels/attention.metal.h"
#include "backend/mlx/kernels/rows.metal.h"

// Every threadgroup of a launch.
template <class F> void launch(const mlx_kernel_call *c, F body) {
    for (int z = 0; z < c->groups[2]; z++) {
        for (int y = 0; y < c->groups[1]; y++) {
            for (int x = 0; x < c->groups[0]; x++) {
                fibers::run(c->simdgroups, [&](int simdgroup, int lane) {
                    body(place{x, y, z, simdgroup, c->simdgroups, lane});
                });
            }
        }
    }
}

template <class T> const T *in(const mlx_kernel_call *c, int i) { return static_cast<const T *>(c->input[i]); }
template <class T> T *out(const mlx_kernel_call *c, int i) { return static_cast<T *>(c->output[i]); }

void unknown(const char *what, int value) {
    std::fprintf(stderr, "no kernel for %s %d\n", what, value);
    std::abort();
}

template <int FORMAT, int ROWS, int OUTPUTS> void product(const mlx_kernel_call *c) {
    auto f = [&](int i) { return in<float>(c, i); };
    auto u = [&](int i) { return in<uchar>(c, i); };
    if (c->kernel == MLX_KERNEL_PRODUCT)
        launch(c, [&](place here) {
            rows_product<FORMAT, ROWS, OUTPUTS>(f(0), u(1), u(2), f(3), u(4), u(5), f(6), u(7), u(8), f(9),
                                                in<int>(c, 10), out<float>(c, 0), here);
        });
    else
        launch(c, [&](place here) {
            experts_product<FORMAT, ROWS, OUTPUTS>(f(0), u(1), u(2), f(3), u(4), u(5), f(6), in<int>(c, 7),
                                                   in<int>(c, 8), out<float>(c, 0), here);
        });
}

template <int FORMAT> void product_of_rows(const mlx_kernel_call *c) {
    switch (c->constant[1]) {
    case 1:
        product<FORMAT, 1, 4>(c);
        break;
    case 2:
        product<FORMAT, 2, 4>(c);
        break;
    case 4:
        product<FORMAT, 4, 4>(c);
        break;
    case 8:
        product<FORMAT, 8, 4>(c);
        break;
    case 17:
        product<FORMAT, 17, 2>(c);
        break;
    default:
        unknown("rows", c->constant[1]);
    }
}

void product_of_format(const mlx_kernel_call *c) {
    switch (c->constant[0]) {
    case 2:
        product_of_rows<2>(c);
        break;
    case 3:
        product_of_rows<3>(c);
        break;
    case 4:
        product_of_rows<4>(c);
        break;
    case 5:
        product_of_rows<5>(c);
        break;
    case 6:
        product_of_rows<6>(c);
        break;
    case 8:
        product_of_rows<8>(c);
        break;
    case FORMAT_BF16:
        product_of_rows<FORMAT_BF16>(c);
        break;
    case FORMAT_F32:
        product_of_rows<FORMAT_F32>(c);
        break;
    case FORMAT_MXFP4:
        product_of_rows<FORMAT_MXFP4>(c);
        break;
    case FORMAT_MXFP8:
        product_of_rows<FORMAT_MXFP8>(c);
        break;
    case FORMAT_NVFP4:
        product_of_rows<FORMAT_NVFP4>(c);
        break;
    default:
        unknown("format", c->constant[0]);
    }
}

template <int KV, int PER_LANE, int QUERIES> void attention(const mlx_kernel_call *c) {
    auto run = [&](auto keys_of_v) {
        launch(c, [&](place here) {
            attention_part<KV, PER_LANE, QUERIES, decltype(keys_of_v)::value>(
                in<float>(c, 0), in<uchar>(c, 1), in<uchar>(c, 2), in<float>(c, 3), in<float>(c, 4), in<float>(c, 5),
                in<float>(c, 6), in<float>(c, 7), in<int>(c, 8), in<int>(c, 9), out<float>(c, 0), here);
        });
    };
    if (c->constant[3])
        run(std::integral_constant<int, 1>());
    else
        run(std::integral_constant<int, 0>());
}

template <int KV, int PER_LANE> void attention_of_queries(const mlx_kernel_call *c) {
    switch (c->constant[2]) {
    case 1:
        attention<KV, PER_LANE, 1>(c);
        break;
    case 2:
        attention<KV, PER_LANE, 2>(c);
        break;
    case 4:
        attention<KV, PER_LANE, 4>(c);
        break;
    default:
        unknown("queries", c->constant[2]);
    }
}

template <int KV> void attention_of_lanes(const mlx_kernel_call *c) {
    switch (c->constant[1]) {
    case 1:
        attention_of_queries<KV, 1>(c);
        break;
    case 2:
        attention_of_queries<KV, 2>(c);
        break;
    case 4:
        attention_of_queries<KV, 4>(c);
        break;
    case 8:
        attention_of_queries<KV, 8>(c);
        break;
    case 16:
        attention_of_queries<KV, 16>(c);
        break;
    default:
        unknown("values of a lane", c->constant[1]);
    }
}

void attention_of_format(const mlx_kernel_call *c) {
    switch (c->constant[0]) {
    case KV_F32:
        attention_of_lanes<KV_F32>(c);
        break;
    case KV_BF16:
        attention_of_lanes<KV_BF16>(c);
        break;
    case KV_Q8:
        attention_of_lanes<KV_Q8>(c);
        break;
    case KV_Q4:
        attention_of_lanes<KV_Q4>(c);
        break;
    default:
        unknown("K/V format", c->constant[0]);
    }
}

} // namespace

void host_kernels_run(const mlx_kernel_call *c) {
    static float shared[3 * fibers::MOST_SIMDGROUPS];
    auto f = [&](int i) { return in<float>(c, i); };
    auto n = [&](int i) { return in<int>(c, i); };
    auto to = [&] { return out<float>(c, 0); };
    switch (c->kernel) {
    case MLX_KERNEL_PRODUCT:
    case MLX_KERNEL_EXPERTS:
        product_of_format(c);
        break;
    case MLX_KERNEL_NORM:
        launch(c, [&](place p) { row_norm(f(0), f(1), f(2), n(3), to(), shared, p); });
        break;
    case MLX_KERNEL_HEADS:
        launch(c, [&](place p) { head_rows(f(0), f(1), f(2), f(3), n(4), n(5), to(), p); });
        break;
    case MLX_KERNEL_GATED:
        launch(c, [&](place p) { gated_rows(f(0), n(1), to(), p); });
        break;
    case MLX_KERNEL_ROUTER:
        launch(c, [&](place p) { router_choice(f(0), f(1), n(2), out<int>(c, 0), out<float>(c, 1), p); });
        break;
    case MLX_KERNEL_EXPERTS_SUM:
        launch(c, [&](place p) { experts_sum(f(0), f(1), n(2), to(), p); });
        break;
    case MLX_KERNEL_CHOICE:
        launch(c, [&](place p) { row_choice(f(0), f(1), n(2), out<int>(c, 0), shared, p); });
        break;
    case MLX_KERNEL_ATTENTION:
        attention_of_format(c);
        break;
    case MLX_KERNEL_Q4:
        launch(c, [&](place p) { q4_rows(f(0), n(1), out<uchar>(c, 0), out<float>(c, 1), shared, p); });
        break;
    case MLX_KERNEL_MERGE:
        launch(c, [&](place p) { attention_merge(f(0), f(1), n(2), to(), p); });
        break;
    case MLX_KERNELS:
        break;
    }
}
