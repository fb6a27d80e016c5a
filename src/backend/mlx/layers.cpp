// The decoder layers of the verifier over one tile of rows, as one graph (order of operations: backend/cpu/forward.c).
// Every shape follows from the tile's: a row's products, keys and sums do not depend on how many rows were asked for.
#include "backend/mlx/device.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

using namespace kakeya;

namespace {

const float minus_infinity = -std::numeric_limits<float>::infinity();

// What the rows see of a span's slots, [rows][slots], and where they lie.
struct seen {
    mx::array position, from, mask;
    std::optional<mx::array> restored_position, restored_mask, codes_k, codes_v;
    int slots, restored;
};

// Keys and values of a layer, for itself and for layers that share them.
struct keys {
    mx::array k, v; // [kv_heads][slots][head_dim]
    std::optional<mx::array> restored_k, scales, codes_v;
    std::optional<mx::array> whole, restored_whole; // guarded: [kv_heads][1][1][slots], all numbers are finite
};

mx::array column(const int32_t *from, int rows) { return mx::expand_dims(integers(from, rows), 1); }

mx::array between(const mx::array &position, const int32_t *begin, const int32_t *end, int rows) {
    auto at = mx::expand_dims(position, 0);
    return mx::logical_and(mx::greater_equal(at, column(begin, rows)), mx::less(at, column(end, rows)));
}

seen see(const mlx_span &s, int rows) {
    auto position = integers(s.position, s.slots);
    seen out{position,
             integers(s.from, s.slots),
             mx::logical_or(between(position, s.sink_begin, s.sink_end, rows), between(position, s.begin, s.end, rows)),
             {},
             {},
             {},
             {},
             s.slots,
             s.restored};
    if (!s.restored) return out;
    out.restored_position = integers(s.restored_position, s.restored);
    out.restored_mask = between(*out.restored_position, s.restored_begin, s.restored_end, rows);
    out.codes_k = floats(s.codes_k, {s.restored, s.rank_k});
    out.codes_v = floats(s.codes_v, {s.restored, s.rank_v});
    return out;
}

struct tile_graph {
    const mlx_device *device;
    const mlx_form *form;
    const mlx_tile *tile;
    int rows;
    mx::array position;
    std::vector<seen> spans;
    std::vector<std::optional<keys>> kept; // of layers with a store

    const mlx_rope &rope_of(const mlx_layer &l) const { return form->rope[l.full]; }
    const seen &span_of(const mlx_layer &l) const { return spans[l.full]; }

    // x [rows][heads][head_dim] as it will be read when it has been stored.
    static mx::array as_stored(const mx::array &x, mlx_stored stored) {
        if (stored == MLX_STORED_F32) return x;
        if (stored == MLX_STORED_BF16) return rounded(x);
        // kv_q8_store and kv_q8_load
        auto largest = mx::max(mx::abs(x), -1, true);
        auto codes = mx::round(x * (mx::array(127.0f) / largest));
        auto value = codes * (largest / mx::array(127.0f));
        value = mx::where(mx::less(largest, mx::array(0x1p-100f)), mx::array(0.0f), value);
        return mx::where(mx::isfinite(mx::sum(mx::abs(x) * mx::array(0.0f), -1, true)), value, mx::array(NAN));
    }

    mx::array stored(int layer, bool is_k, int slots, int values) const {
        bool bf16 = tile->span[form->layer[layer].full].stored == MLX_STORED_BF16;
        auto out = filled({slots, values}, bf16 ? mx::bfloat16 : mx::float32,
                          [&](void *to) { tile->fill(tile->user, layer, is_k, to); });
        return bf16 ? mx::astype(out, mx::float32) : out;
    }

    // Rows [rows][kv_heads][head_dim] of this tile among the stored ones, each in its slot:
    // [slots][kv_heads][head_dim].
    mx::array placed(int layer, bool is_k, const mx::array &fresh) const {
        const mlx_layer &l = form->layer[layer];
        int slots = span_of(l).slots, values = l.kv_heads * l.head_dim;
        auto all = mx::concatenate({stored(layer, is_k, slots, values), mx::reshape(fresh, {rows, values})}, 0);
        return mx::reshape(mx::take(all, span_of(l).from, 0), {slots, l.kv_heads, l.head_dim});
    }

    mx::array by_head(const mx::array &x) const { return mx::transpose(x, {1, 0, 2}); }

    keys keys_of(int layer, const mx::array &x, mlx_tile_result *result, std::vector<mx::array> &outputs,
                 std::vector<const float **> &targets) const {
        const mlx_layer &l = form->layer[layer];
        mx::Shape shape{rows, l.kv_heads, l.head_dim};
        auto raw = mx::reshape(product(device, x, l.k_proj), shape);
        auto v = norm(l.k_eq_v ? raw : mx::reshape(product(device, x, l.v_proj), shape), nullptr, form->eps);
        auto stored = tile->span[l.full].stored;
        outputs.push_back(readable(v));
        targets.push_back(&result->v[layer]);
        auto values = placed(layer, false, as_stored(v, stored));
        std::optional<mx::array> k;
        if (l.k_eq_v) { // derived from stored values, where they are attended
            k = rope(values * l.k_norm->value, rope_of(l), span_of(l).position);
        } else {
            auto fresh = rope(norm(raw, l.k_norm, form->eps), rope_of(l), position);
            outputs.push_back(readable(fresh));
            targets.push_back(&result->k[layer]);
            k = placed(layer, true, as_stored(fresh, stored));
        }
        keys out{by_head(*k), by_head(values), {}, {}, {}, {}, {}};
        const seen &s = span_of(l);
        if (tile->guarded) guard(out.whole, out.k, out.v);
        if (!s.restored) return out;
        auto decoded = mx::reshape(mx::matmul(*s.codes_k, mx::transpose(l.decoder_k->value)),
                                   {s.restored, l.kv_heads, l.head_dim});
        out.restored_k = by_head(rope(norm(decoded, l.k_norm, form->eps), rope_of(l), *s.restored_position));
        auto scales = filled({s.restored, l.kv_heads}, mx::float32,
                             [&](void *to) { tile->fill_scales(tile->user, layer, static_cast<float *>(to)); });
        out.scales = mx::expand_dims(mx::transpose(scales), 1); // [kv_heads][1][restored]
        out.codes_v = mx::broadcast_to(mx::expand_dims(*s.codes_v, 0), {l.kv_heads, s.restored, s.codes_v->shape(1)});
        if (tile->guarded) guard(out.restored_whole, *out.restored_k, *out.codes_v);
        return out;
    }

    // Values that are not finite are taken out; the positions that have any such number are told.
    static void guard(std::optional<mx::array> &whole, const mx::array &k, mx::array &v) {
        auto finite = mx::logical_and(mx::all(mx::isfinite(k), -1), mx::all(mx::isfinite(v), -1)); // [kv_heads][slots]
        v = mx::where(mx::expand_dims(finite, 2), v, mx::array(0.0f));
        whole = mx::expand_dims(finite, {1, 2});
    }

    // q [rows][heads][head_dim] -> [rows][heads * head_dim]
    mx::array attend(const mlx_layer &l, const mx::array &q, const keys &kv) const {
        const seen &s = span_of(l);
        int heads = form->heads, group = heads / l.kv_heads, queries = group * rows, all = s.slots + s.restored;
        auto by = mx::reshape(mx::transpose(q, {1, 0, 2}), {l.kv_heads, queries, l.head_dim});
        std::optional<mx::array> spoilt; // guarded: rows that see a number which is none, [kv_heads][1][rows][1]
        auto scores_of = [&](const mx::array &k, const mx::array &mask, const std::optional<mx::array> &whole, int n) {
            auto scores = mx::reshape(mx::matmul(by, mx::transpose(k, {0, 2, 1})), {l.kv_heads, group, rows, n});
            if (whole) {
                auto sees = mx::any(mx::logical_and(mask, mx::logical_not(*whole)), -1, true);
                spoilt = spoilt ? mx::logical_or(*spoilt, sees) : sees;
            }
            return mx::where(whole ? mx::logical_and(mask, *whole) : mask, scores, mx::array(minus_infinity));
        };
        auto scores = scores_of(kv.k, s.mask, kv.whole, s.slots);
        if (s.restored) {
            auto more = scores_of(*kv.restored_k, *s.restored_mask, kv.restored_whole, s.restored);
            scores = mx::concatenate({scores, more}, 3);
        }
        auto weights = mx::reshape(mx::softmax(scores, -1, true), {l.kv_heads, queries, all});
        auto part = [&](int begin, int end) {
            return mx::slice(weights, mx::Shape{0, 0, begin}, mx::Shape{l.kv_heads, queries, end});
        };
        auto out = mx::matmul(s.restored ? part(0, s.slots) : weights, kv.v);
        if (s.restored) { // values stay latents until they are summed
            auto latent = mx::matmul(part(s.slots, all) * *kv.scales, *kv.codes_v);
            auto decoder = mx::reshape(form->layer[l.source].decoder_v->value, {l.kv_heads, l.head_dim, -1});
            out = out + mx::matmul(latent, mx::transpose(decoder, {0, 2, 1}));
        }
        if (spoilt) {
            out = mx::where(*spoilt, mx::array(NAN), mx::reshape(out, {l.kv_heads, group, rows, l.head_dim}));
        }
        out = mx::transpose(mx::reshape(out, {heads, rows, l.head_dim}), {1, 0, 2});
        return mx::reshape(out, {rows, heads * l.head_dim});
    }

    static mx::array gelu(const mx::array &x) {
        auto inner = mx::array(0.7978845608028654f) * (x + mx::array(0.044715f) * x * x * x);
        return mx::array(0.5f) * x * (mx::array(1.0f) + mx::tanh(inner));
    }

    mx::array experts(const mlx_layer &l, const mx::array &h) const {
        int chosen = form->experts_per_token;
        auto x = norm(h, nullptr, form->eps) * l.router_scale->value *
                 mx::array(1.0f / std::sqrt(static_cast<float>(form->hidden)));
        auto logits = product(device, x, l.router_proj, true);
        int first = tile->first, n = tile->n;
        auto real = [&](const mx::array &of, int columns) {
            return mx::slice(of, mx::Shape{first, 0}, mx::Shape{first + n, columns});
        };
        // Stable: of equal logits the lowest expert comes first.
        auto order = real(mx::argsort(mx::negative(logits), -1), chosen);
        auto weights = mx::softmax(mx::take_along_axis(real(logits, logits.shape(1)), order, -1), -1, true) *
                       mx::take(l.router_expert_scale->value, order);

        auto input = real(norm(h, l.pre_ffn_norm_2, form->eps), form->hidden);
        input = mx::reshape(input, {n, 1, 1, form->hidden});
        // One product for each pair of a row and an expert, whatever stands beside it: [n][chosen][1][out].
        auto each = [&](const mx::array &from, const mlx_array *w) { return product_of_each(device, from, w, order); };
        std::optional<mx::array> gate, up;
        if (l.experts_gate_up) {
            auto both = mx::split(each(input, l.experts_gate_up), 2, -1);
            gate = both[0];
            up = both[1];
        } else {
            gate = each(input, l.experts_gate);
            up = each(input, l.experts_up);
        }
        auto out = mx::reshape(each(gelu(*gate) * *up, l.experts_down), {n, chosen, form->hidden});
        out = out * mx::expand_dims(weights, 2);
        std::optional<mx::array> sum; // in the order of their ranks
        for (auto &one : mx::split(out, chosen, 1)) {
            auto row = mx::reshape(one, {n, form->hidden});
            sum = sum ? *sum + row : row;
        }
        return mx::pad(*sum, {{first, rows - first - n}, {0, 0}});
    }

    mx::array dense(const mlx_layer &l, const mx::array &h) const {
        auto x = norm(h, l.pre_ffn_norm, form->eps);
        return product(device, gelu(product(device, x, l.gate_proj)) * product(device, x, l.up_proj), l.down_proj);
    }

    // (norm(W h0 / sqrt(hidden)) + table) / sqrt(2): [rows][layers][width]
    mx::array ple_inputs(const mx::array &h) const {
        mx::Shape shape{rows, form->layers, form->ple_width};
        auto context = mx::reshape(product(device, h, form->ple_model_proj), shape) *
                       mx::array(1.0f / std::sqrt(static_cast<float>(form->hidden)));
        return (norm(context, form->ple_proj_norm, form->eps) + floats(tile->ple, shape)) * mx::array(std::sqrt(0.5f));
    }

    mx::array layer(int index, const mx::array &before, const std::optional<mx::array> &ple, mlx_tile_result *result,
                    std::vector<mx::array> &outputs, std::vector<const float **> &targets) {
        const mlx_layer &l = form->layer[index];
        auto h = before;
        auto x = norm(h, l.input_norm, form->eps);
        if (l.source == index) kept[index] = keys_of(index, x, result, outputs, targets);
        auto q = mx::reshape(product(device, x, l.q_proj), {rows, form->heads, l.head_dim});
        q = rope(norm(q, l.q_norm, form->eps), rope_of(l), position);
        auto attended = product(device, attend(l, q, *kept[l.source]), l.o_proj);
        h = h + norm(attended, l.post_attention_norm, form->eps);

        auto branch = dense(l, h);
        if (form->experts_per_token) {
            branch = norm(branch, l.post_ffn_norm_1, form->eps) + norm(experts(l, h), l.post_ffn_norm_2, form->eps);
        }
        h = h + norm(branch, l.post_ffn_norm, form->eps);
        if (ple) {
            auto own = mx::reshape(mx::slice(*ple, mx::Shape{0, index, 0}, mx::Shape{rows, index + 1, form->ple_width}),
                                   {rows, form->ple_width});
            auto gated = gelu(product(device, h, l.ple_gate)) * own;
            h = h + norm(product(device, gated, l.ple_proj), l.post_ple_norm, form->eps);
        }
        return h * mx::array(l.scalar);
    }
};

} // namespace

int mlx_tile_run(mlx_device *device, const mlx_form *form, const mlx_tile *tile, mlx_tile_result *result,
                 mlx_failure *failure) {
    *result = mlx_tile_result{};
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        int rows = tile->rows;
        tile_graph graph{device, form, tile, rows, integers(tile->position, rows), {}, {}};
        for (const mlx_span &s : tile->span) {
            if (s.slots) {
                graph.spans.push_back(see(s, rows));
            } else { // there is no layer of this type
                graph.spans.push_back(seen{mx::array(0), mx::array(0), mx::array(0), {}, {}, {}, {}, 0, 0});
            }
        }
        graph.kept.resize(static_cast<size_t>(form->layers));
        std::vector<mx::array> outputs;
        std::vector<const float **> targets;
        auto h = floats(tile->embedded, {rows, form->hidden});
        std::optional<mx::array> ple;
        if (form->ple_width) ple = graph.ple_inputs(h);
        for (int i = 0; i < form->layers; i++) {
            h = graph.layer(i, h, ple, result, outputs, targets);
            if (!tile->wanted[i]) continue;
            outputs.push_back(readable(h));
            targets.push_back(&result->output[i]);
        }
        outputs.push_back(readable(norm(h, form->final_norm, form->eps)));
        targets.push_back(&result->hidden);
        auto owner = std::make_unique<std::vector<mx::array>>(outputs);
        mx::eval(outputs);
        for (size_t i = 0; i < outputs.size(); i++) *targets[i] = outputs[i].data<float>();
        result->owner = owner.release();
    });
}

void mlx_tile_result_free(mlx_tile_result *result) {
    delete static_cast<std::vector<mx::array> *>(result->owner);
    *result = mlx_tile_result{};
}

int mlx_head_run(mlx_device *device, const mlx_form *form, const float *hidden, int rows, const mlx_array *bias,
                 float *logits, int32_t *choice, mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        auto z = product(device, floats(hidden, {rows, form->hidden}), form->head);
        if (form->softcap > 0) z = mx::tanh(z / mx::array(form->softcap)) * mx::array(form->softcap);
        z = readable(z);
        std::vector<mx::array> wanted;
        if (logits) wanted.push_back(z);
        if (choice) {
            auto biased = bias ? z + bias->value : z;
            auto no_number = mx::any(mx::isnan(biased), -1);
            wanted.push_back(
                mx::contiguous(mx::where(no_number, mx::array(-1), mx::astype(mx::argmax(biased, -1), mx::int32))));
        }
        mx::eval(wanted);
        if (logits) read(z, logits);
        if (choice) std::memcpy(choice, wanted.back().data<int32_t>(), static_cast<size_t>(rows) * sizeof *choice);
    });
}
