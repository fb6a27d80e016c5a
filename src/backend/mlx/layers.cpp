// The decoder layers of the verifier over one tile of rows, as one graph (order of operations: backend/cpu/forward.c).
// Every shape follows from the tile's: a row's products, keys and sums do not depend on how many rows were asked for.
// Only copies, which change no value, know how many rows are stored or lie in earlier tiles of the chain.
#include "backend/mlx/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

using namespace kakeya;

// Rows of K or V of one layer: stored ones, the first of which is zero, and those of each tile of the chain.
struct chain_rows {
    std::optional<mx::array> stored; // [rows][values], for stock operations
    std::optional<mx::array> raw;    // their bytes, for the own kernel
    std::vector<mx::array> fresh;    // [real rows of the tile][values] each, as they will be stored
};

struct chain_layer {
    chain_rows rows[2]; // V, K
    int format = MLX_STORED_F32, row_bytes = 0;
};

struct mlx_chain {
    mlx_chain_source source;
    bool own; // the own kernel attends, but for pictures
    int tiles;
    std::vector<chain_layer> layer;
};

namespace {

const float minus_infinity = -std::numeric_limits<float>::infinity();

// What the rows see of a span's slots, [rows][slots], and where they lie.
struct seen {
    mx::array position, from, mask;
    std::optional<mx::array> restored_position, restored_mask, codes_k, codes_v;
    int slots, restored;
    std::optional<mx::array> own, own_restored; // the same for the own kernel (attention.metal.h)
};

// Keys and values of a layer, for itself and for layers that share them.
struct keys {
    mx::array k, v; // [kv_heads][slots][head_dim]
    std::optional<mx::array> restored_k, scales, codes_v;
    std::optional<mx::array> whole, restored_whole; // guarded: [kv_heads][1][1][slots], all numbers are finite
    std::optional<own::attended> own, own_restored; // the own kernel's, instead of all these
};

// libmlx gives arrays of fewer than 8 numbers another kind of pointer in Metal.
mx::array padded_integers(const int32_t *from, int n) {
    return filled({n + 8}, mx::int32, [&](void *to) {
        std::memset(to, 0, static_cast<size_t>(n + 8) * sizeof *from);
        std::memcpy(to, from, static_cast<size_t>(n) * sizeof *from);
    });
}

mx::array column(const int32_t *from, int rows) { return mx::expand_dims(integers(from, rows), 1); }

mx::array between(const mx::array &position, const int32_t *begin, const int32_t *end, int rows) {
    auto at = mx::expand_dims(position, 0);
    return mx::logical_and(mx::greater_equal(at, column(begin, rows)), mx::less(at, column(end, rows)));
}

// Positions, where they lie, and what each row sees of them.
mx::array own_span(const int32_t *position, const int32_t *from, int slots, const int32_t *const bounds[4], int rows) {
    return filled({2 * slots + 4 * rows + 8}, mx::int32, [&](void *memory) {
        int32_t *to = static_cast<int32_t *>(memory);
        for (int i = 0; i < slots; i++) {
            to[i] = position[i];
            to[slots + i] = from ? from[i] : i;
        }
        for (int i = 0; i < 4 * rows + 8; i++)
            to[2 * slots + i] = i < 4 * rows && bounds[i % 4] ? bounds[i % 4][i / 4] : 0;
    });
}

seen see(const mlx_span &s, int rows, bool own) {
    auto position = integers(s.position, s.slots);
    seen out{position,
             integers(s.from, s.slots),
             mx::logical_or(between(position, s.sink_begin, s.sink_end, rows), between(position, s.begin, s.end, rows)),
             {},
             {},
             {},
             {},
             s.slots,
             s.restored,
             {},
             {}};
    const int32_t *const bounds[4] = {s.sink_begin, s.sink_end, s.begin, s.end};
    if (own) out.own = own_span(s.position, s.from, s.slots, bounds, rows);
    if (!s.restored) return out;
    const int32_t *const evicted[4] = {nullptr, nullptr, s.restored_begin, s.restored_end};
    if (own) out.own_restored = own_span(s.restored_position, nullptr, s.restored, evicted, rows);
    out.restored_position = integers(s.restored_position, s.restored);
    out.restored_mask = between(*out.restored_position, s.restored_begin, s.restored_end, rows);
    out.codes_k = floats(s.codes_k, {s.restored, s.rank_k});
    out.codes_v = floats(s.codes_v, {s.restored, s.rank_v});
    return out;
}

// Where to what is read of a tile is told, in `found`.
struct target {
    const float **numbers = nullptr;
    const unsigned char **bytes = nullptr;
};

// A tile that is computed: what is to be read of it, and where to.
struct tile_work {
    std::vector<mx::array> outputs;
    std::vector<mx::array> inputs; // embedded rows, and those of per-layer embeddings
    mlx_tile_result found{};
    std::vector<target> targets; // of the first outputs
    bool begun = false, finished = false;
};

struct tile_graph {
    const mlx_device *device;
    const mlx_form *form;
    const mlx_tile *tile;
    mlx_chain *chain;
    int rows;
    mx::array position;
    std::vector<seen> spans;
    std::vector<std::optional<keys>> kept; // of layers with a store

    const mlx_rope &rope_of(const mlx_layer &l) const { return form->rope[l.full]; }
    const seen &span_of(const mlx_layer &l) const { return spans[l.full]; }

    // x [rows][heads][head_dim] as it will be read when it has been stored, but in 4 bits.
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

    // x [rows][values] without those that are padding.
    mx::array real_rows(const mx::array &x, int values) const {
        return mx::slice(mx::reshape(x, {rows, values}), mx::Shape{tile->first, 0},
                         mx::Shape{tile->first + tile->n, values});
    }

    // The stored rows of a layer and the new ones of all tiles of the chain up to this one, each in its slot:
    // [slots][kv_heads][head_dim].
    mx::array placed(int layer, bool is_k, const mx::array &x) const {
        const mlx_layer &l = form->layer[layer];
        int slots = span_of(l).slots, values = l.kv_heads * l.head_dim;
        chain_rows &of = chain->layer[static_cast<size_t>(layer)].rows[is_k];
        of.fresh.push_back(chain->own ? real_rows(x, values) : mx::astype(real_rows(x, values), of.stored->dtype()));
        std::vector<mx::array> all{*of.stored};
        for (auto &of_tile : of.fresh) all.push_back(mx::astype(of_tile, of.stored->dtype()));
        auto each = mx::astype(mx::take(mx::concatenate(all, 0), span_of(l).from, 0), mx::float32);
        return mx::reshape(each, {slots, l.kv_heads, l.head_dim});
    }

    mx::array by_head(const mx::array &x) const { return mx::transpose(x, {1, 0, 2}); }
    // Products would copy them for each group of rows.
    mx::array heads_together(const mx::array &x) const {
        return rows > MLX_ATTENTION_ROWS ? mx::contiguous(by_head(x)) : by_head(x);
    }

    bool own_attention() const { return chain->own && !tile->picture; }

    // What is stored of a layer as the own kernel reads it: as it lies in memory.
    own::attended own_keys(int layer, const mx::array &v, const std::optional<mx::array> &k) const {
        const mlx_layer &l = form->layer[layer];
        const mlx_span &s = tile->span[l.full];
        int values = l.kv_heads * l.head_dim;
        chain_layer &in_chain = chain->layer[static_cast<size_t>(layer)];
        auto fresh = [&](bool is_k, const mx::array &x) {
            auto &all = in_chain.rows[is_k].fresh;
            all.push_back(real_rows(x, values));
            return all.size() == 1 ? mx::contiguous(all[0]) : mx::concatenate(all, 0);
        };
        auto fresh_v = fresh(false, v), fresh_k = k ? fresh(true, *k) : fresh_v;
        return {*in_chain.rows[k.has_value()].raw,
                *in_chain.rows[false].raw,
                fresh_k,
                fresh_v,
                *span_of(l).own,
                in_chain.format,
                l.kv_heads,
                l.head_dim,
                s.slots,
                chain->source.kept[l.full].rows,
                in_chain.row_bytes / l.kv_heads,
                k ? nullptr : l.k_norm,
                &rope_of(l)};
    }

    // Restored K/V, decoded whole: the shapes are those of the slots, whatever rows there are.
    own::attended own_restored_keys(const mlx_layer &l, const mx::array &k, const mx::array &scales) const {
        const seen &s = span_of(l);
        auto v = mx::reshape(mx::matmul(*s.codes_v, mx::transpose(wide(l.decoder_v->value))),
                             {s.restored, l.kv_heads, l.head_dim}) *
                 mx::expand_dims(scales, 2);
        auto bytes = [&](const mx::array &x) {
            return mx::view(mx::contiguous(mx::reshape(x, {s.restored, l.kv_heads * l.head_dim})), mx::uint8);
        };
        return {bytes(k),
                bytes(v),
                mx::reshape(v, {-1}),
                mx::reshape(v, {-1}),
                *s.own_restored,
                MLX_STORED_F32,
                l.kv_heads,
                l.head_dim,
                s.restored,
                s.restored,
                l.head_dim * static_cast<int>(sizeof(float)),
                nullptr,
                nullptr};
    }

    // x [rows][..] has raw keys from column `k` on, and raw values from column `v` on.
    keys keys_of(int layer, const mx::array &x, int k_at, int v_at, mlx_tile_result *result,
                 std::vector<mx::array> &outputs, std::vector<target> &targets) const {
        const mlx_layer &l = form->layer[layer];
        // As they will be read when they have been stored, which the host does, but in 4 bits.
        auto kept_rows = [&](const mx::array &made, const float **numbers, const unsigned char **bytes) {
            mlx_stored stored = tile->span[l.full].stored;
            if (stored != MLX_STORED_Q4) {
                outputs.push_back(readable(made));
                targets.push_back({numbers, nullptr});
                return as_stored(made, stored);
            }
            auto packed = in_q4(device, made);
            outputs.push_back(mx::contiguous(packed.bytes));
            targets.push_back({nullptr, bytes});
            return packed.values;
        };
        auto v = kept_rows(
            heads(device, x, {l.k_eq_v ? k_at : v_at, l.kv_heads, l.head_dim, nullptr, form->eps, nullptr}, position),
            &result->v[layer], &result->q4_v[layer]);
        std::optional<mx::array> fresh;
        if (!l.k_eq_v) // else derived from stored values, where they are attended
            fresh =
                kept_rows(heads(device, x, {k_at, l.kv_heads, l.head_dim, l.k_norm, form->eps, &rope_of(l)}, position),
                          &result->k[layer], &result->q4_k[layer]);
        keys out = own_attention() ? keys{mx::array(0), mx::array(0), {}, {}, {}, {}, {}, own_keys(layer, v, fresh), {}}
                                   : stored_keys(layer, v, fresh);
        const seen &s = span_of(l);
        if (!s.restored) return out;
        auto decoded = mx::reshape(mx::matmul(*s.codes_k, mx::transpose(wide(l.decoder_k->value))),
                                   {s.restored, l.kv_heads, l.head_dim});
        auto restored_k = rope(plain_norm(decoded, l.k_norm, form->eps), rope_of(l), *s.restored_position);
        auto scales = filled({s.restored, l.kv_heads}, mx::float32,
                             [&](void *to) { tile->fill_scales(tile->user, layer, static_cast<float *>(to)); });
        if (own_attention()) {
            out.own_restored = own_restored_keys(l, restored_k, scales);
            return out;
        }
        out.restored_k = by_head(restored_k);
        out.scales = mx::expand_dims(mx::transpose(scales), 1); // [kv_heads][1][restored]
        out.codes_v = mx::broadcast_to(mx::expand_dims(*s.codes_v, 0), {l.kv_heads, s.restored, s.codes_v->shape(1)});
        if (tile->guarded) guard(out.restored_whole, *out.restored_k, *out.codes_v);
        return out;
    }

    keys stored_keys(int layer, const mx::array &v, const std::optional<mx::array> &fresh) const {
        const mlx_layer &l = form->layer[layer];
        auto values = placed(layer, false, v);
        auto k = fresh ? placed(layer, true, *fresh) : rope(values * l.k_norm->value, rope_of(l), span_of(l).position);
        keys out{heads_together(k), heads_together(values), {}, {}, {}, {}, {}, {}, {}};
        if (tile->guarded) guard(out.whole, out.k, out.v);
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
        int heads = form->heads;
        if (kv.own) {
            auto exact = own::attention_parts(q, *kv.own);
            std::optional<mx::array> restored;
            if (kv.own_restored) restored = own::attention_parts(q, *kv.own_restored);
            return own::merged(exact, restored ? &*restored : nullptr, rows, heads, l.head_dim);
        }
        if (rows <= MLX_ATTENTION_ROWS) return attend_rows(l, q, kv, 0, rows);
        // One group of rows behind the other, so that no more scores than theirs are there.
        std::vector<mx::array> parts;
        for (int first = 0; first < rows; first += MLX_ATTENTION_ROWS) {
            int n = std::min(rows - first, static_cast<int>(MLX_ATTENTION_ROWS));
            auto some = mx::slice(q, mx::Shape{first, 0, 0}, mx::Shape{first + n, heads, l.head_dim});
            parts.push_back(attend_rows(l, first ? mx::depends({some}, {parts.back()})[0] : some, kv, first, n));
        }
        return mx::concatenate(parts, 0);
    }

    // The same for q [n][heads][head_dim] of rows [first, first + n), by stock operations.
    mx::array attend_rows(const mlx_layer &l, const mx::array &q, const keys &kv, int first, int n_rows) const {
        const seen &s = span_of(l);
        int heads = form->heads, group = heads / l.kv_heads, queries = group * n_rows, all = s.slots + s.restored;
        auto of_rows = [&](const mx::array &mask) {
            return mx::slice(mask, mx::Shape{first, 0}, mx::Shape{first + n_rows, mask.shape(1)});
        };
        auto by = mx::reshape(mx::transpose(q, {1, 0, 2}), {l.kv_heads, queries, l.head_dim});
        std::optional<mx::array> spoilt; // guarded: rows that see a number which is none, [kv_heads][1][rows][1]
        auto scores_of = [&](const mx::array &k, const mx::array &mask, const std::optional<mx::array> &whole, int n) {
            auto scores = mx::reshape(mx::matmul(by, mx::transpose(k, {0, 2, 1})), {l.kv_heads, group, n_rows, n});
            if (whole) {
                auto sees = mx::any(mx::logical_and(mask, mx::logical_not(*whole)), -1, true);
                spoilt = spoilt ? mx::logical_or(*spoilt, sees) : sees;
            }
            return mx::where(whole ? mx::logical_and(mask, *whole) : mask, scores, mx::array(minus_infinity));
        };
        auto scores = scores_of(kv.k, of_rows(s.mask), kv.whole, s.slots);
        if (s.restored) {
            auto more = scores_of(*kv.restored_k, of_rows(*s.restored_mask), kv.restored_whole, s.restored);
            scores = mx::concatenate({scores, more}, 3);
        }
        auto weights = mx::reshape(mx::softmax(scores, -1, true), {l.kv_heads, queries, all});
        auto part = [&](int begin, int end) {
            return mx::slice(weights, mx::Shape{0, 0, begin}, mx::Shape{l.kv_heads, queries, end});
        };
        auto out = mx::matmul(s.restored ? part(0, s.slots) : weights, kv.v);
        if (s.restored) { // values stay latents until they are summed
            auto latent = mx::matmul(part(s.slots, all) * *kv.scales, *kv.codes_v);
            auto decoder = mx::reshape(wide(form->layer[l.source].decoder_v->value), {l.kv_heads, l.head_dim, -1});
            out = out + mx::matmul(latent, mx::transpose(decoder, {0, 2, 1}));
        }
        if (spoilt) {
            out = mx::where(*spoilt, mx::array(NAN), mx::reshape(out, {l.kv_heads, group, n_rows, l.head_dim}));
        }
        out = mx::transpose(mx::reshape(out, {heads, n_rows, l.head_dim}), {1, 0, 2});
        return mx::reshape(out, {n_rows, heads * l.head_dim});
    }

    // What the last row sees, as it is stored, and latents.
    measured_form attention_form(const mlx_layer &l) const {
        const mlx_span &s = tile->span[l.full];
        int row = tile->first + tile->n - 1;
        double exact = s.end[row] - s.begin[row] + s.sink_end[row] - s.sink_begin[row];
        double evicted = s.restored ? s.restored_end[row] - s.restored_begin[row] : 0;
        double latents = evicted * (s.rank_k + s.rank_v);
        return {own_attention() ? "own attention" : "attention", l.full ? "full layers" : "sliding layers",
                exact * static_cast<double>(s.row_bytes) * (l.k_eq_v ? 1 : 2) + latents * sizeof(float),
                4 * (exact + evicted) * form->heads * l.head_dim};
    }

    static mx::array gelu(const mx::array &x) {
        auto inner = mx::array(0.7978845608028654f) * (x + mx::array(0.044715f) * x * x * x);
        return mx::array(0.5f) * x * (mx::array(1.0f) + mx::tanh(inner));
    }

    mx::array dense(const mlx_layer &l, const mx::array &h) const {
        auto x = norm(device, h, l.pre_ffn_norm, form->eps);
        return product(device, gated(device, products(device, x, {l.gate_proj, l.up_proj})), l.down_proj);
    }

    // (norm(W h0 / sqrt(hidden)) + table) / sqrt(2): [rows][layers][width]
    mx::array ple_inputs(const mx::array &h, const mx::array &table) const {
        mx::Shape shape{rows, form->layers, form->ple_width};
        auto context = mx::reshape(product(device, h, form->ple_model_proj), shape) *
                       mx::array(1.0f / std::sqrt(static_cast<float>(form->hidden)));
        mx::Shape each{rows * form->layers, form->ple_width};
        bool own = device->own(MLX_OP_NORM) && rows <= MLX_KERNEL_ROWS;
        auto normed = own ? mx::reshape(own::norm(mx::reshape(context, each), form->ple_proj_norm, form->eps), shape)
                          : plain_norm(context, form->ple_proj_norm, form->eps);
        return (normed + mx::reshape(table, shape)) * mx::array(std::sqrt(0.5f));
    }

    mx::array layer(int index, const mx::array &before, const std::optional<mx::array> &ple, mlx_tile_result *result,
                    std::vector<mx::array> &outputs, std::vector<target> &targets) {
        const mlx_layer &l = form->layer[index];
        auto h = before;
        auto x = norm(device, h, l.input_norm, form->eps);
        int q_columns = form->heads * l.head_dim, kv_columns = l.kv_heads * l.head_dim;
        std::vector<const mlx_array *> w{l.q_proj};
        if (l.source == index) {
            w.push_back(l.k_proj);
            if (!l.k_eq_v) w.push_back(l.v_proj);
        }
        auto raw = products(device, x, w);
        if (l.source == index)
            kept[index] = keys_of(index, raw, q_columns, q_columns + kv_columns, result, outputs, targets);
        auto q = heads(device, raw, {0, form->heads, l.head_dim, l.q_norm, form->eps, &rope_of(l)}, position);
        auto about = [&] { return attention_form(l); };
        auto make = [&] { return attend(l, q, *kept[l.source]); };
        auto attended = faulty(device, MLX_OP_ATTENTION, measured(device, about, make));
        auto added = product(device, attended, l.o_proj);
        if (form->inner) {
            mlx_inner &inner = result->inner[index];
            const float **wanted[] = {&inner.raw, &inner.q, &inner.attended, &inner.added};
            for (auto &value : {raw, q, attended, added}) outputs.push_back(readable(value));
            for (auto to : wanted) targets.push_back({to, nullptr});
        }
        h = norm(device, added, l.post_attention_norm, form->eps, &h);

        auto branch = dense(l, h);
        if (form->experts_per_token) {
            auto chosen = experts(device, l, h, {tile->first, tile->n, form->experts_per_token, form->eps});
            auto both = norm(device, branch, l.post_ffn_norm_1, form->eps);
            branch = norm(device, chosen, l.post_ffn_norm_2, form->eps, &both);
        }
        h = norm(device, branch, l.post_ffn_norm, form->eps, &h, ple ? 1 : l.scalar);
        if (!ple) return h;
        {
            auto own = mx::reshape(mx::slice(*ple, mx::Shape{0, index, 0}, mx::Shape{rows, index + 1, form->ple_width}),
                                   {rows, form->ple_width});
            auto gated = gelu(product(device, h, l.ple_gate)) * own;
            return norm(device, product(device, gated, l.ple_proj), l.post_ple_norm, form->eps, &h, l.scalar);
        }
    }

    // Logits of the rows that want them, and the choice, which is the last output. Without rows that are computed as
    // they come, each row keeps its place in the tile, and the others are zero.
    void head(const mx::array &last, mlx_tile_result *result, std::vector<mx::array> &outputs,
              std::vector<target> &targets) const {
        int first = tile->head_first, end = first + tile->head_n;
        auto rows_of_head = [&] {
            auto wanted = mx::slice(last, mx::Shape{first, 0}, mx::Shape{end, form->hidden});
            return tile->head_alone ? mx::contiguous(wanted) : mx::pad(wanted, {{first, rows - end}, {0, 0}});
        };
        auto z = readable(head_logits(device, form, rows_of_head()));
        if (tile->logits) {
            outputs.push_back(z);
            targets.push_back({&result->logits, nullptr});
        }
        if (tile->choice) outputs.push_back(head_choice(device, z, tile->bias));
    }
};

// The stored rows of a layer, copied once: for the own kernel bytes as they lie in memory, for stock operations
// numbers.
chain_layer stored_rows_of(const mlx_chain &chain, const mlx_layer &l, int index) {
    const mlx_chain_source &from = chain.source;
    const mlx_stored_rows &kept = from.kept[l.full];
    int values = l.kv_heads * l.head_dim;
    bool bf16 = kept.stored == MLX_STORED_BF16;
    chain_layer out;
    out.format = static_cast<int>(kept.stored);
    out.row_bytes = static_cast<int>(kept.row_bytes);
    for (int is_k = 0; is_k < (l.k_eq_v ? 1 : 2); is_k++) {
        if (chain.own)
            out.rows[is_k].raw = filled({kept.rows * out.row_bytes}, mx::uint8,
                                        [&](void *to) { from.fill_raw(from.user, index, is_k, to); });
        if (!chain.own || from.pictures)
            out.rows[is_k].stored = filled({kept.rows, values}, bf16 ? mx::bfloat16 : mx::float32,
                                           [&](void *to) { from.fill(from.user, index, is_k, to); });
    }
    return out;
}

// Room is filled in later, before anything is computed.
mx::array rows_or_room(const float *from, const mx::Shape &shape) {
    if (from) return floats(from, shape);
    return filled(shape, mx::float32, [](void *) {});
}

// The graph, of which nothing is held but what is to be read and what later tiles attend.
void build(const mlx_device *device, const mlx_form *form, mlx_chain *chain, const mlx_tile *tile, tile_work &work) {
    int rows = tile->rows;
    mlx_tile_result *result = &work.found;
    tile_graph graph{device, form, tile, chain, rows, padded_integers(tile->position, rows), {}, {}};
    for (const mlx_span &s : tile->span) {
        if (s.slots) {
            graph.spans.push_back(see(s, rows, graph.own_attention()));
        } else { // there is no layer of this type
            graph.spans.push_back(seen{mx::array(0), mx::array(0), mx::array(0), {}, {}, {}, {}, 0, 0, {}, {}});
        }
    }
    graph.kept.resize(static_cast<size_t>(form->layers));
    auto h = rows_or_room(tile->embedded, {rows, form->hidden});
    std::optional<mx::array> ple;
    work.inputs.push_back(h);
    if (form->ple_width) {
        work.inputs.push_back(rows_or_room(tile->ple, {rows, form->layers * form->ple_width}));
        ple = graph.ple_inputs(h, work.inputs.back());
    }
    for (int i = 0; i < form->layers; i++) {
        h = graph.layer(i, h, ple, result, work.outputs, work.targets);
        if (!tile->wanted[i] && !form->inner) continue;
        work.outputs.push_back(readable(h));
        work.targets.push_back({&result->output[i], nullptr});
    }
    auto last = norm(device, h, form->final_norm, form->eps);
    work.outputs.push_back(readable(last));
    work.targets.push_back({&result->hidden, nullptr});
    if (tile->head_n) graph.head(last, result, work.outputs, work.targets);
}

} // namespace

int mlx_chain_begin(mlx_device *device, const mlx_form *form, const mlx_chain_source *source, mlx_chain **out,
                    mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        bool own = device->own(MLX_OP_ATTENTION) && source->tile_rows <= MLX_KERNEL_ROWS;
        auto chain = std::make_unique<mlx_chain>(mlx_chain{*source, own, 0, {}});
        chain->layer.resize(static_cast<size_t>(form->layers));
        for (int i = 0; i < form->layers; i++) {
            const mlx_layer &l = form->layer[i];
            if (l.source == i) chain->layer[static_cast<size_t>(i)] = stored_rows_of(*chain, l, i);
        }
        *out = chain.release();
    });
}

void mlx_chain_cut(mlx_chain *chain, int tiles) {
    chain->tiles = tiles;
    for (auto &layer : chain->layer) {
        for (auto &rows : layer.rows) {
            while (rows.fresh.size() > static_cast<size_t>(tiles)) rows.fresh.pop_back();
        }
    }
}

void mlx_chain_free(mlx_chain *chain) { delete chain; }

int mlx_tile_prepare(mlx_device *device, const mlx_form *form, mlx_chain *chain, const mlx_tile *tile,
                     mlx_tile_result *result, mlx_failure *failure) {
    *result = mlx_tile_result{};
    int status = guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        if (!tile->embedded && device->profile_repeats) throw std::runtime_error("a profiled graph without its rows");
        auto work = std::make_unique<tile_work>();
        build(device, form, chain, tile, *work);
        chain->tiles++;
        result->owner = work.release();
    });
    if (status) mlx_chain_cut(chain, chain->tiles);
    return status;
}

int mlx_tile_begin(mlx_device *device, mlx_tile_result *result, const float *embedded, const float *ple,
                   mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        auto &work = *static_cast<tile_work *>(result->owner);
        const float *const rows[] = {embedded, ple};
        for (size_t i = 0; i < work.inputs.size() && embedded; i++)
            std::memcpy(work.inputs[i].data<float>(), rows[i], work.inputs[i].nbytes());
        work.inputs.clear();
        begin_evaluation(device, work.outputs);
        work.begun = true;
    });
}

int mlx_tile_finish(mlx_device *device, const mlx_form *form, const mlx_tile *tile, mlx_tile_result *result,
                    mlx_failure *failure) {
    return guarded(failure, [&] {
        auto &work = *static_cast<tile_work *>(result->owner);
        end_evaluation(device, work.outputs);
        work.finished = true;
        for (size_t i = 0; i < work.targets.size(); i++) {
            const target &to = work.targets[i];
            if (to.bytes)
                *to.bytes = work.outputs[i].data<unsigned char>();
            else
                *to.numbers = work.outputs[i].data<float>();
        }
        int head_at = tile->head_alone ? 0 : tile->head_first;
        work.found.owner = &work;
        *result = work.found;
        if (result->logits) result->logits += static_cast<size_t>(head_at) * static_cast<size_t>(form->vocab);
        if (tile->head_n && tile->choice) result->choice = work.outputs.back().data<int32_t>() + head_at;
    });
}

void mlx_tile_result_free(mlx_device *device, mlx_tile_result *result) {
    auto work = static_cast<tile_work *>(result->owner);
    if (work && work->begun && !work->finished) drop_evaluation(device);
    delete work;
    *result = mlx_tile_result{};
}

int mlx_head_run(mlx_device *device, const mlx_form *form, const float *hidden, int rows, const mlx_array *bias,
                 float *logits, int32_t *choice, mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        auto z = readable(head_logits(device, form, floats(hidden, {rows, form->hidden})));
        std::vector<mx::array> wanted;
        if (logits) wanted.push_back(z);
        if (choice) wanted.push_back(head_choice(device, z, bias));
        evaluate(wanted);
        if (logits) read(z, logits);
        if (choice) std::memcpy(choice, wanted.back().data<int32_t>(), static_cast<size_t>(rows) * sizeof *choice);
    });
}
