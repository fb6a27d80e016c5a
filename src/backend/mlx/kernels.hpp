// The own kernels as operations on arrays. Up to MLX_KERNEL_ROWS rows; a row's bits do not depend on how many.
#ifndef KAKEYA_BACKEND_MLX_KERNELS_HPP
#define KAKEYA_BACKEND_MLX_KERNELS_HPP

#include "backend/mlx/device.hpp"
#include "backend/mlx/mlx_kernels.h"

extern "C" {
#include "backend/kv_format.h"
#include "backend/kv_q4.h"
}

namespace kakeya::own {

// Whether there is anything that can compute them: Metal, or a runner that tests have named.
bool available(const mx::Stream &stream);
// Whether there is a product for these weights.
bool multiplies(const mlx_array *w);
// Whether one launch takes both.
bool alike(const mlx_array *a, const mlx_array *b);

// x [rows][k] times up to three matrices that are alike: [rows][outputs of all]. cap: of logits; 0: none.
mx::array product(const mx::array &x, const std::vector<const mlx_array *> &w, bool round, float cap = 0);
// x [rows or pairs][k] times the experts that `order` [pairs] names, of one or two stacks: [pairs][outputs of all].
mx::array experts(const mx::array &x, const std::vector<const mlx_array *> &w, const mx::array &order, int rows,
                  int chosen, bool of_pairs, bool round);
// (norm(x) * weight [+ residual]) * factor, of rows [rows][n]
mx::array norm(const mx::array &x, const mlx_array *weight, float eps, const mx::array *residual = nullptr,
               float factor = 1);
// Columns from `first` on of x [rows][..] as heads: norm, weight, RoPE: [rows][heads][dim].
mx::array heads(const mx::array &x, int first, int heads, int dim, const mlx_array *weight, float eps,
                const mlx_rope *table, const mx::array &position);
// gelu(gate) * up of x [rows][gate | up]
mx::array gated(const mx::array &x);
struct chosen_experts {
    mx::array order, weights; // [rows * chosen], at least 8 values
};
chosen_experts router(const mx::array &logits, const mlx_array *factor, int chosen);
mx::array experts_sum(const mx::array &x, const mx::array &weights, int rows, int chosen);
// The largest of each row of z [rows][vocab]; bias may be NULL.
mx::array choice(const mx::array &z, const mlx_array *bias);

// What rows attend: K/V of one layer in slots (attention.metal.h).
struct attended {
    mx::array k, v;             // bytes, as they are stored
    mx::array fresh_k, fresh_v; // [rows][kv_heads * dim], as they will be stored
    mx::array span;
    int format, kv_heads, dim, slots;
    int stored; // rows of k and v; slots that name rows behind them hold fresh ones
    int head_bytes;
    const mlx_array *keys_of_v; // the norm's weight where keys are made of values; else NULL
    const mlx_rope *table;
};
mx::array attention_parts(const mx::array &q, const attended &kv); // q [rows][heads][dim]
// [rows][heads * dim]; restored may be NULL.
mx::array merged(const mx::array &exact, const mx::array *restored, int rows, int heads, int dim);

} // namespace kakeya::own

#endif
