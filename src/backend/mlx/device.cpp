// libmlx's device: its version, the stream, memory, arrays, and the operations that all graphs are made of.
#include "backend/mlx/device.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <variant>

namespace {

std::atomic<int> calls_to_failure{-1};
std::atomic<long> waits{0};

mlx_fault injected = {MLX_OPS, {false, false, false}};

// Bytes of an array, as kernels see it.
mx::array bytes_of(const mx::array &x) {
    auto raw = mx::view(x, mx::uint8);
    mx::eval(raw);
    return raw;
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

mx::array readable(const mx::array &x) { return mx::contiguous(mx::astype(x, mx::float32)); }

void evaluate(std::vector<mx::array> outputs) {
    waits++;
    mx::eval(std::move(outputs));
}

void begin_evaluation(mlx_device *d, const std::vector<mx::array> &outputs) {
    mx::async_eval(outputs);
    d->under_way++;
}

void end_evaluation(mlx_device *d, std::vector<mx::array> &outputs) {
    for (auto &output : outputs) output.wait();
    if (--d->under_way == 0) waits++;
}

void drop_evaluation(mlx_device *d) {
    d->under_way--;
    try {
        mx::synchronize(d->stream);
    } catch (...) { // it is dropped all the same
    }
}

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
        // Stock operations in tiles, until a check has said what else will do.
        mlx_ways ways;
        for (int op = 0; op < MLX_OPS; op++) ways.few[op] = ways.prompt[op] = MLX_WAY_FIXED;
        *out = new mlx_device{mx::new_thread_unsafe_stream(device), round_inputs, ways, injected, {}, 0, 0};
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
void mlx_device_limit(size_t bytes) { mx::set_memory_limit(bytes); }
long mlx_device_waits(void) { return waits; }
void mlx_device_fail_after(int calls) { calls_to_failure = calls; }
void mlx_device_inject(const mlx_fault *fault) {
    injected = fault ? *fault : mlx_fault{MLX_OPS, {false, false, false}};
}

const mlx_ways *mlx_device_ways(const mlx_device *device) { return &device->ways; }
const char *mlx_op_name(mlx_op op) {
    static const char *const names[MLX_OPS] = {"products", "experts", "norms", "heads", "attention", "head"};
    return names[op];
}
const char *mlx_way_name(mlx_way way) {
    return way == MLX_WAY_OWN ? "own kernel" : way == MLX_WAY_FIXED ? "tiles" : "row by row";
}

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
        *out = new mlx_array{value, {}, {}, {}, bytes_of(value)};
    });
}

int mlx_array_create_bf16(mlx_device *device, int count, int rows, int columns, mlx_code_row_fn row, const void *user,
                          mlx_array **out, mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        mx::Shape shape{rows, columns};
        if (count > 1) shape.insert(shape.begin(), count);
        auto value = filled(shape, mx::bfloat16, [&](void *to) {
            for (int i = 0; i < count * rows; i++)
                row(user, i, 0, static_cast<char *>(to) + static_cast<size_t>(i) * static_cast<size_t>(columns) * 2);
        });
        *out = new mlx_array{value, {}, {}, {}, bytes_of(value)};
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
        *out = new mlx_array{value, scales, biases, codes, bytes_of(value)};
    });
}

void mlx_array_free(mlx_array *array) { delete array; }
size_t mlx_array_bytes(const mlx_array *array) {
    return array->value.nbytes() + (array->scales ? array->scales->nbytes() : 0) +
           (array->biases ? array->biases->nbytes() : 0);
}

size_t mlx_array_widened_bytes(const mlx_array *array) {
    return array->value.dtype() == mx::bfloat16 ? array->value.size() * sizeof(float) : 0;
}
