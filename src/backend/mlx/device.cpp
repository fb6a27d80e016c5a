// libmlx's device: its version, the stream, memory, arrays, and the operations that all graphs are made of.
#include "backend/mlx/device.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <variant>

namespace {

std::atomic<int> calls_to_failure{-1};

const char *mode_name(mlx_code_form form) {
    return form == MLX_AFFINE ? "affine" : form == MLX_MXFP4 ? "mxfp4" : "mxfp8";
}

#define TEXT_OF(x)                        #x
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

} // namespace

namespace kakeya {

void count_call() {
    if (calls_to_failure.load() >= 0 && calls_to_failure.fetch_sub(1) == 0)
        throw std::runtime_error("failure asked for by a test");
}

// libmlx's own arrays from pointers do not look whether there was memory.
mx::array floats(const float *from, mx::Shape shape) {
    size_t bytes = sizeof *from;
    for (auto n : shape) bytes *= static_cast<size_t>(n);
    return filled(std::move(shape), mx::float32, [&](void *to) { std::memcpy(to, from, bytes); });
}

mx::array integers(const int32_t *from, int n) {
    return filled(mx::Shape{n}, mx::int32,
                  [&](void *to) { std::memcpy(to, from, static_cast<size_t>(n) * sizeof *from); });
}

mx::array rounded(const mx::array &x) { return mx::astype(mx::astype(x, mx::bfloat16), mx::float32); }

mx::array product(const mlx_device *d, const mx::array &x, const mlx_array *w, bool exact) {
    auto input = d->round_inputs && !exact ? rounded(x) : x;
    if (!w->scales) return mx::matmul(input, mx::transpose(w->value));
    return mx::quantized_matmul(input, w->value, *w->scales, w->biases, true, w->codes.group, w->codes.bits,
                                mode_name(w->codes.form));
}

mx::array product_of_each(const mlx_device *d, const mx::array &x, const mlx_array *w, const mx::array &order) {
    auto input = d->round_inputs ? rounded(x) : x;
    if (!w->scales) return mx::gather_mm(input, mx::transpose(w->value, {0, 2, 1}), std::nullopt, order);
    return mx::gather_qmm(input, w->value, *w->scales, w->biases, std::nullopt, order, true, w->codes.group,
                          w->codes.bits, mode_name(w->codes.form));
}

mx::array norm(const mx::array &x, const mlx_array *weight, float eps) {
    return mx::fast::rms_norm(x, weight ? std::optional<mx::array>(weight->value) : std::nullopt, eps);
}

mx::array rope(const mx::array &x, const mlx_rope &table, const mx::array &position) {
    int rows = x.shape(0), heads = x.shape(1), dim = x.shape(2), half = dim / 2, pairs = table.pairs;
    if (!pairs) return x;
    auto at = mx::maximum(position, mx::array(0));
    auto cosine = mx::expand_dims(mx::take(table.cosine->value, at, 0), 1);
    auto sine = mx::expand_dims(mx::take(table.sine->value, at, 0), 1);
    auto part = [&](int begin, int end) { return mx::slice(x, mx::Shape{0, 0, begin}, mx::Shape{rows, heads, end}); };
    auto a = part(0, pairs), b = part(half, half + pairs);
    std::vector<mx::array> parts{a * cosine - b * sine};
    if (pairs < half) parts.push_back(part(pairs, half));
    parts.push_back(b * cosine + a * sine);
    if (pairs < half) parts.push_back(part(half + pairs, dim));
    return mx::concatenate(parts, 2);
}

mx::array readable(const mx::array &x) { return mx::contiguous(mx::astype(x, mx::float32)); }

void read(const mx::array &x, float *to) { std::memcpy(to, x.data<float>(), x.nbytes()); }

} // namespace kakeya

using namespace kakeya;

const char *mlx_version_loaded(void) { return mx::version(); }
const char *mlx_version_built(void) { return VERSION_TEXT(MLX_VERSION_MAJOR, MLX_VERSION_MINOR, MLX_VERSION_PATCH); }

bool mlx_metal_present(void) {
    try {
        return mx::metal::is_available();
    } catch (...) {
        return false;
    }
}

int mlx_device_open(bool round_inputs, mlx_device **out, mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::Device device(mx::is_available(mx::Device::gpu) ? mx::Device::gpu : mx::Device::cpu, 0);
        // On the CPU device a compiled function is C++ source that a compiler makes into a file others could write to.
        if (device == mx::Device::cpu) mx::disable_compile();
        *out = new mlx_device{mx::new_thread_unsafe_stream(device), round_inputs};
    });
}

void mlx_device_close(mlx_device *device) { delete device; }
bool mlx_device_is_gpu(const mlx_device *device) { return device->stream.device == mx::Device::gpu; }

void mlx_device_describe(const mlx_device *device, mlx_device_info *out) {
    *out = mlx_device_info{};
    try {
        const auto &known = mx::device_info(device->stream.device);
        auto text = [&](const char *key) {
            auto at = known.find(key);
            return at != known.end() && std::holds_alternative<std::string>(at->second)
                       ? std::get<std::string>(at->second)
                       : std::string();
        };
        auto bytes = [&](const char *key) {
            auto at = known.find(key);
            return at != known.end() && std::holds_alternative<size_t>(at->second) ? std::get<size_t>(at->second) : 0;
        };
        auto name = text("device_name"), architecture = text("architecture");
        std::snprintf(out->name, sizeof out->name, "%s%s%s", name.c_str(), architecture.empty() ? "" : ", ",
                      architecture.c_str());
        out->memory_bytes = bytes("memory_size");
        out->working_set_bytes = bytes("max_recommended_working_set_size");
    } catch (...) { // nothing is lost but the description
    }
}

size_t mlx_device_active_bytes(void) { return mx::get_active_memory(); }
size_t mlx_device_peak_bytes(void) { return mx::get_peak_memory(); }
void mlx_device_reset_peak(void) { mx::reset_peak_memory(); }
void mlx_device_fail_after(int calls) { calls_to_failure = calls; }

int mlx_probe_run(mlx_device *device, double *read_bytes_per_second, double *flops_per_second, mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        // Far beyond every cache; a product large enough for the device's best, small enough for one slow core.
        const bool gpu = mlx_device_is_gpu(device);
        const int values = gpu ? 64 << 20 : 16 << 20, side = gpu ? 4096 : 256, repeats = gpu ? 4 : 2;
        auto fastest = [&](auto make) {
            double best = 0;
            for (int i = 0; i < repeats; i++) {
                auto start = std::chrono::steady_clock::now();
                auto result = make();
                mx::eval(result);
                std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
                if (best == 0 || taken.count() < best) best = taken.count();
            }
            return best;
        };
        auto large = mx::full({values}, 1.0f), square = mx::full({side, side}, 0.5f);
        mx::eval(large, square);
        *read_bytes_per_second = 4.0 * values / fastest([&] { return mx::max(large); });
        *flops_per_second = 2.0 * side * side * side / fastest([&] { return mx::matmul(square, square); });
    });
}

int mlx_array_create(mlx_device *device, int count, int rows, int columns, mlx_row_fn row, const void *user,
                     mlx_array **out, mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        mx::Shape shape{columns};
        if (rows) shape.insert(shape.begin(), rows);
        if (count > 1) shape.insert(shape.begin(), count);
        int all = count * (rows ? rows : 1);
        auto value = filled(shape, mx::float32, [&](void *to) {
            for (int i = 0; i < all; i++) row(user, i, static_cast<float *>(to) + static_cast<size_t>(i) * columns);
        });
        *out = new mlx_array{value, {}, {}, {}};
    });
}

int mlx_array_create_codes(mlx_device *device, int count, int rows, int columns, mlx_codes codes, mlx_code_row_fn row,
                           const void *user, mlx_array **out, mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        auto stream = [&](int index, int width, mx::Dtype type) {
            mx::Shape shape{rows, width};
            if (count > 1) shape.insert(shape.begin(), count);
            size_t bytes = static_cast<size_t>(width) * mx::size_of(type);
            return filled(shape, type, [&](void *to) {
                for (int i = 0; i < count * rows; i++)
                    row(user, i, index, static_cast<char *>(to) + static_cast<size_t>(i) * bytes);
            });
        };
        bool affine = codes.form == MLX_AFFINE;
        auto value = stream(0, columns * codes.bits / 32, mx::uint32);
        auto scales = stream(1, columns / codes.group, affine ? mx::float32 : mx::uint8);
        std::optional<mx::array> biases;
        if (affine) biases = stream(2, columns / codes.group, mx::float32);
        *out = new mlx_array{value, scales, biases, codes};
    });
}

void mlx_array_free(mlx_array *array) { delete array; }
size_t mlx_array_bytes(const mlx_array *array) {
    return array->value.nbytes() + (array->scales ? array->scales->nbytes() : 0) +
           (array->biases ? array->biases->nbytes() : 0);
}
