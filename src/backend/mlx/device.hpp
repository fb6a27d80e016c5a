// What the C++ files of this folder share: arrays, the stream that everything runs on, and how exceptions end.
#ifndef KAKEYA_BACKEND_MLX_DEVICE_HPP
#define KAKEYA_BACKEND_MLX_DEVICE_HPP

#include <cstdio>
#include <functional>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <mlx/mlx.h>

#include "backend/mlx/mlx_device.h"

namespace mx = mlx::core;

struct mlx_array {
    mx::array value; // or codes, with what is beside them
    std::optional<mx::array> scales, biases;
    mlx_codes codes;
    mx::array raw; // the bytes of value
};

struct mlx_device {
    mx::Stream stream;
    bool round_inputs;
    mlx_ways ways;
    mlx_fault fault; // of tests
    mutable std::vector<mlx_profile_row> profile;
    int profile_repeats; // 0: nothing is measured
    int under_way;       // graphs that have been begun and not finished

    bool own(mlx_op op) const { return ways.few[op] == MLX_WAY_OWN; }
};

namespace kakeya {

// Counts down to the failure that a test has asked for.
void count_call();

// Nothing of C++ passes this: an exception becomes one line.
template <class F> int guarded(mlx_failure *failure, F run) noexcept {
    try {
        count_call();
        run();
        return MLX_DEVICE_OK;
    } catch (const std::bad_alloc &) {
        std::snprintf(failure->text, sizeof failure->text, "libmlx: out of memory");
        return MLX_DEVICE_OUT_OF_MEMORY;
    } catch (const std::exception &e) {
        std::snprintf(failure->text, sizeof failure->text, "libmlx: %s", e.what());
        return MLX_DEVICE_FAILED;
    } catch (...) {
        std::snprintf(failure->text, sizeof failure->text, "libmlx: unknown exception");
        return MLX_DEVICE_FAILED;
    }
}

// An array that `fill` writes in place.
template <class F> mx::array filled(mx::Shape shape, mx::Dtype type, F fill) {
    size_t bytes = mx::size_of(type);
    for (auto n : shape) bytes *= static_cast<size_t>(n);
    auto data = mx::allocator::malloc(bytes);
    void *to = data.buffer().raw_ptr();
    if (bytes && !to) throw std::bad_alloc();
    fill(to);
    return mx::array(std::move(data), std::move(shape), type);
}

mx::array floats(const float *from, mx::Shape shape);
mx::array integers(const int32_t *from, int n);

// As it would be stored in bf16, in float32.
mx::array rounded(const mx::array &x);
// Weights in float32, which sums are made in.
mx::array wide(const mx::array &x);
// x [rows][in] times w [out][in]; exact: x is never rounded.
mx::array product(const mlx_device *d, const mx::array &x, const mlx_array *w, bool exact = false);
// Side by side, in one launch where one takes them: [rows][outputs of all].
mx::array products(const mlx_device *d, const mx::array &x, const std::vector<const mlx_array *> &w);
// x [rows][n]: (norm(x) * weight [+ residual]) [* factor].
mx::array norm(const mlx_device *d, const mx::array &x, const mlx_array *weight, float eps,
               const mx::array *residual = nullptr, float factor = 1);
// Columns from `first` on of x [rows][..] as heads, their norm and RoPE: [rows][n][dim].
struct head_form {
    int first, n, dim;
    const mlx_array *weight;
    float eps;
    const mlx_rope *table; // NULL: not turned
};
mx::array heads(const mlx_device *d, const mx::array &x, const head_form &form, const mx::array &position);
// gelu(gate) * up of x [rows][gate | up]
mx::array gated(const mlx_device *d, const mx::array &x);
// x [rows][heads][head_dim], turned by the table's angles at positions [rows]. Pairs are (j, j + head_dim / 2).
mx::array rope(const mx::array &x, const mlx_rope &table, const mx::array &position);
mx::array plain_norm(const mx::array &x, const mlx_array *weight, float eps);

// The experts of rows [first, first + n) of h [rows][hidden]: [rows][hidden], zero in other rows.
struct expert_rows {
    int first, n, chosen;
    float eps;
};
mx::array experts(const mlx_device *d, const mlx_layer &l, const mx::array &h, const expert_rows &rows);

// Capped logits of hidden states [rows][hidden], and the choice among them.
mx::array head_logits(const mlx_device *d, const mlx_form *form, const mx::array &hidden);
mx::array head_choice(const mlx_device *d, const mx::array &logits, const mlx_array *bias);

// Vectors x [..][n] of K or V in 4 bits: their bytes [vectors][bytes], and the values that these mean, of x's shape. By
// the own kernel where that computes attention, else by the host.
struct q4_vectors {
    mx::array bytes, values;
};
q4_vectors in_q4(const mlx_device *d, const mx::array &x);

// While a step is profiled: what `make` gives, computed alone and measured. Bytes and operations are those of the one
// row that is wanted.
struct measured_form {
    const char *kernel;
    std::string part;
    double bytes, operations;
};
mx::array measured_alone(const mlx_device *d, const measured_form &form, const std::function<mx::array()> &make);
template <class F> mx::array measured(const mlx_device *d, F form, const std::function<mx::array()> &make) {
    return d->profile_repeats ? measured_alone(d, form(), make) : make();
}

// What a test has asked for: a result that depends on the rows beside it.
mx::array faulty(const mlx_device *d, mlx_op op, const mx::array &x);

// Computes a graph of inference, and waits for it.
void evaluate(std::vector<mx::array> outputs);
// The same in two parts. What is dropped is waited for, too: it reads memory that its owner may give back.
void begin_evaluation(mlx_device *d, const std::vector<mx::array> &outputs);
void end_evaluation(mlx_device *d, std::vector<mx::array> &outputs);
void drop_evaluation(mlx_device *d);

// Row-contiguous float32, to be read when it has been evaluated.
mx::array readable(const mx::array &x);
void read(const mx::array &x, float *to);

} // namespace kakeya

#endif
