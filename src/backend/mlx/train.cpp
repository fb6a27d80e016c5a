// Sums over rows, for training.
#include "backend/mlx/device.hpp"

#include <cstring>

using namespace kakeya;

int mlx_outer_run(mlx_device *device, const float *a, int na, const float *b, size_t ldb, int nb, int rows, float *out,
                  mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        size_t n = static_cast<size_t>(nb);
        auto left = filled({rows, nb}, mx::float32, [&](void *to) {
            for (size_t r = 0; r < static_cast<size_t>(rows); r++)
                std::memcpy(static_cast<float *>(to) + r * n, b + r * ldb, n * sizeof *b);
        });
        auto sums = readable(mx::matmul(mx::transpose(left), floats(a, {rows, na})));
        evaluate({sums});
        read(sums, out);
    });
}
