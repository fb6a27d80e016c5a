// Every operation in the ways that it can be computed: by an own kernel, or by stock operations, whose shapes the
// caller keeps. Which way is the device's choice (check.cpp).
#include "backend/mlx/kernels.hpp"

#include <cmath>

using namespace kakeya;

namespace {

const char *mode_name(mlx_code_form form) {
    return form == MLX_AFFINE ? "affine" : form == MLX_MXFP4 ? "mxfp4" : form == MLX_MXFP8 ? "mxfp8" : "nvfp4";
}

bool ours(const mlx_device *d, mlx_op op, const mx::array &x) { return d->own(op) && x.shape(0) <= MLX_KERNEL_ROWS; }

mx::array stock_product(const mlx_device *d, const mx::array &x, const mlx_array *w, bool exact) {
    auto input = d->round_inputs && !exact ? rounded(x) : x;
    if (!w->scales) return mx::matmul(input, mx::transpose(wide(w->value)));
    return mx::quantized_matmul(input, w->value, *w->scales, w->biases, true, w->codes.group, w->codes.bits,
                                mode_name(w->codes.form));
}

// x [n][1 or chosen][1][in] times those of w [experts][out][in] that `order` [n][chosen] names, one by one.
mx::array product_of_each(const mlx_device *d, const mx::array &x, const mlx_array *w, const mx::array &order) {
    auto input = d->round_inputs ? rounded(x) : x;
    if (!w->scales) return mx::gather_mm(input, mx::transpose(wide(w->value), {0, 2, 1}), std::nullopt, order);
    return mx::gather_qmm(input, w->value, *w->scales, w->biases, std::nullopt, order, true, w->codes.group,
                          w->codes.bits, mode_name(w->codes.form));
}

mx::array gelu(const mx::array &x) {
    auto inner = mx::array(0.7978845608028654f) * (x + mx::array(0.044715f) * x * x * x);
    return mx::array(0.5f) * x * (mx::array(1.0f) + mx::tanh(inner));
}

mx::array rows_of(const mx::array &x, int first, int n) {
    return mx::slice(x, mx::Shape{first, 0}, mx::Shape{first + n, x.shape(1)});
}

mx::array router_input(const mlx_layer &l, const mx::array &normed) {
    return normed * l.router_scale->value * mx::array(1.0f / std::sqrt(static_cast<float>(normed.shape(1))));
}

mx::array own_experts(const mlx_device *d, const mlx_layer &l, const mx::array &all, const expert_rows &rows) {
    auto h = rows_of(all, rows.first, rows.n);
    auto logits = own::product(router_input(l, own::norm(h, nullptr, rows.eps)), {l.router_proj}, false);
    auto chosen = own::router(logits, l.router_expert_scale, rows.chosen);
    auto input = own::norm(h, l.pre_ffn_norm_2, rows.eps);
    auto of = [&](const mx::array &x, const std::vector<const mlx_array *> &w, bool of_pairs) {
        return own::experts(x, w, chosen.order, rows.n, rows.chosen, of_pairs, d->round_inputs);
    };
    auto both = [&] {
        if (l.experts_gate_up) return of(input, {l.experts_gate_up}, false);
        if (own::alike(l.experts_gate, l.experts_up)) return of(input, {l.experts_gate, l.experts_up}, false);
        return mx::concatenate({of(input, {l.experts_gate}, false), of(input, {l.experts_up}, false)}, 1);
    }();
    return own::experts_sum(of(own::gated(both), {l.experts_down}, true), chosen.weights, rows.n, rows.chosen);
}

mx::array stock_experts(const mlx_device *d, const mlx_layer &l, const mx::array &h, const expert_rows &rows) {
    int n = rows.n, chosen = rows.chosen, hidden = h.shape(1);
    auto logits = stock_product(d, router_input(l, plain_norm(h, nullptr, rows.eps)), l.router_proj, true);
    // Stable: of equal logits the lowest expert comes first.
    auto ranks = rows_of(mx::argsort(mx::negative(logits), -1), rows.first, n);
    auto order = mx::slice(ranks, mx::Shape{0, 0}, mx::Shape{n, chosen});
    auto weights = mx::softmax(mx::take_along_axis(rows_of(logits, rows.first, n), order, -1), -1, true) *
                   mx::take(l.router_expert_scale->value, order);
    auto input = mx::reshape(rows_of(plain_norm(h, l.pre_ffn_norm_2, rows.eps), rows.first, n), {n, 1, 1, hidden});
    // One product for each pair of a row and an expert, whatever stands beside it: [n][chosen][1][out].
    auto each = [&](const mx::array &from, const mlx_array *w) { return product_of_each(d, from, w, order); };
    std::optional<mx::array> gate, up;
    if (l.experts_gate_up) {
        auto both = mx::split(each(input, l.experts_gate_up), 2, -1);
        gate = both[0];
        up = both[1];
    } else {
        gate = each(input, l.experts_gate);
        up = each(input, l.experts_up);
    }
    auto out = mx::reshape(each(gelu(*gate) * *up, l.experts_down), {n, chosen, hidden});
    out = out * mx::expand_dims(weights, 2);
    std::optional<mx::array> sum; // in the order of their ranks
    for (auto &one : mx::split(out, chosen, 1)) {
        auto row = mx::reshape(one, {n, hidden});
        sum = sum ? *sum + row : row;
    }
    return *sum;
}

// A product with weights of so many bytes, of which `share` is read for a row.
measured_form product_form(bool own, const std::vector<const mlx_array *> &w, double share = 1) {
    double bytes = 0, values = 0;
    std::string part;
    for (auto one : w) {
        int n = one->value.ndim(), columns = one->value.shape(n - 1);
        int in = one->scales ? columns * 32 / one->codes.bits : columns;
        bytes += static_cast<double>(mlx_array_bytes(one));
        values += static_cast<double>(one->value.size() / static_cast<size_t>(columns)) * in;
        part.append(part.empty() ? "" : " + ").append(std::to_string(one->value.shape(n - 2)));
        if (one == w.back()) part.append(" x ").append(std::to_string(in));
    }
    return {own ? "own product" : "product", part, bytes * share, 2 * values * share};
}

} // namespace

namespace kakeya {

mx::array faulty(const mlx_device *d, mlx_op op, const mx::array &x) {
    bool asked = d->fault.op == op && d->fault.in[ours(d, op, x) ? MLX_WAY_OWN : MLX_WAY_FIXED];
    return asked && x.shape(0) > 1 ? x + mx::array(0.01f) * mx::sum(x, 0, true) : x;
}

mx::array product(const mlx_device *d, const mx::array &x, const mlx_array *w, bool exact) {
    bool own = ours(d, MLX_OP_PRODUCT, x) && own::multiplies(w);
    auto make = [&] { return own ? own::product(x, {w}, d->round_inputs && !exact) : stock_product(d, x, w, exact); };
    return faulty(d, MLX_OP_PRODUCT,
                  measured(
                      d, [&] { return product_form(own, {w}); }, make));
}

mx::array products(const mlx_device *d, const mx::array &x, const std::vector<const mlx_array *> &w) {
    bool own = ours(d, MLX_OP_PRODUCT, x);
    for (auto one : w) own = own && own::multiplies(one) && own::alike(one, w[0]);
    if (own) {
        auto make = [&] { return own::product(x, w, d->round_inputs); };
        return faulty(d, MLX_OP_PRODUCT,
                      measured(
                          d, [&] { return product_form(true, w); }, make));
    }
    std::vector<mx::array> parts;
    for (auto one : w) parts.push_back(product(d, x, one));
    return mx::concatenate(parts, 1);
}

mx::array wide(const mx::array &x) { return x.dtype() == mx::bfloat16 ? mx::astype(x, mx::float32) : x; }

mx::array plain_norm(const mx::array &x, const mlx_array *weight, float eps) {
    return mx::fast::rms_norm(x, weight ? std::optional<mx::array>(weight->value) : std::nullopt, eps);
}

mx::array norm(const mlx_device *d, const mx::array &x, const mlx_array *weight, float eps, const mx::array *residual,
               float factor) {
    bool own = ours(d, MLX_OP_NORM, x);
    auto make = [&] {
        if (own) return own::norm(x, weight, eps, residual, factor);
        auto out = plain_norm(x, weight, eps);
        if (residual) out = *residual + out;
        return factor == 1 ? out : out * mx::array(factor);
    };
    auto about = [&] { return measured_form{own ? "own norm" : "norm", "rows", 0, 0}; };
    return faulty(d, MLX_OP_NORM, measured(d, about, make));
}

mx::array rope(const mx::array &x, const mlx_rope &table, const mx::array &position) {
    int rows = x.shape(0), n = x.shape(1), dim = x.shape(2), half = dim / 2, pairs = table.pairs;
    if (!pairs) return x;
    auto at = mx::maximum(position, mx::array(0));
    auto cosine = mx::expand_dims(mx::take(table.cosine->value, at, 0), 1);
    auto sine = mx::expand_dims(mx::take(table.sine->value, at, 0), 1);
    auto part = [&](int begin, int end) { return mx::slice(x, mx::Shape{0, 0, begin}, mx::Shape{rows, n, end}); };
    auto a = part(0, pairs), b = part(half, half + pairs);
    std::vector<mx::array> parts{a * cosine - b * sine};
    if (pairs < half) parts.push_back(part(pairs, half));
    parts.push_back(b * cosine + a * sine);
    if (pairs < half) parts.push_back(part(half + pairs, dim));
    return mx::concatenate(parts, 2);
}

mx::array heads(const mlx_device *d, const mx::array &x, const head_form &f, const mx::array &position) {
    int rows = x.shape(0), columns = f.n * f.dim;
    bool own = ours(d, MLX_OP_HEADS, x);
    auto make = [&] {
        if (own) return own::heads(x, f.first, f.n, f.dim, f.weight, f.eps, f.table, position);
        auto part = columns == x.shape(1) ? x : mx::slice(x, mx::Shape{0, f.first}, mx::Shape{rows, f.first + columns});
        auto out = plain_norm(mx::reshape(part, {rows, f.n, f.dim}), f.weight, f.eps);
        return f.table ? rope(out, *f.table, mx::slice(position, mx::Shape{0}, mx::Shape{rows})) : out;
    };
    auto about = [&] { return measured_form{own ? "own norm and RoPE" : "norm and RoPE", "heads", 0, 0}; };
    return faulty(d, MLX_OP_HEADS, measured(d, about, make));
}

mx::array gated(const mlx_device *d, const mx::array &x) {
    if (ours(d, MLX_OP_PRODUCT, x)) return own::gated(x);
    auto both = mx::split(x, 2, -1);
    return gelu(both[0]) * both[1];
}

mx::array experts(const mlx_device *d, const mlx_layer &l, const mx::array &h, const expert_rows &rows) {
    bool own = ours(d, MLX_OP_EXPERTS, h);
    auto form = [&] {
        std::vector<const mlx_array *> w{l.experts_down};
        if (l.experts_gate_up) w.push_back(l.experts_gate_up);
        if (!l.experts_gate_up) w.insert(w.end(), {l.experts_gate, l.experts_up});
        auto all = product_form(own, w, static_cast<double>(rows.chosen) / l.router_proj->value.shape(0));
        auto router = product_form(own, {l.router_proj});
        return measured_form{own ? "own experts" : "experts", "router and experts", all.bytes + router.bytes,
                             all.operations + router.operations};
    };
    auto out = measured(d, form, [&] { return own ? own_experts(d, l, h, rows) : stock_experts(d, l, h, rows); });
    out = mx::pad(out, {{rows.first, h.shape(0) - rows.first - rows.n}, {0, 0}});
    return faulty(d, MLX_OP_EXPERTS, out);
}

mx::array head_logits(const mlx_device *d, const mlx_form *form, const mx::array &hidden) {
    bool own = ours(d, MLX_OP_HEAD, hidden) && own::multiplies(form->head);
    auto make = [&] {
        if (own) return own::product(hidden, {form->head}, d->round_inputs, form->softcap);
        auto z = stock_product(d, hidden, form->head, false);
        return form->softcap > 0 ? mx::tanh(z / mx::array(form->softcap)) * mx::array(form->softcap) : z;
    };
    auto about = [&] {
        auto product = product_form(own, {form->head});
        product.part = "head, " + product.part;
        return product;
    };
    return faulty(d, MLX_OP_HEAD, measured(d, about, make));
}

mx::array head_choice(const mlx_device *d, const mx::array &z, const mlx_array *bias) {
    if (ours(d, MLX_OP_HEAD, z)) return own::choice(z, bias);
    auto biased = bias ? z + bias->value : z;
    auto no_number = mx::any(mx::isnan(biased), -1);
    return mx::contiguous(mx::where(no_number, mx::array(-1), mx::astype(mx::argmax(biased, -1), mx::int32)));
}

} // namespace kakeya
