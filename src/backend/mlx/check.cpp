// Whether a row's result keeps its bits beside any other rows, tried when a model is loaded: per operation, for every
// shape of its weights. Own kernels are tried with 1 to 17 rows, stock operations in tiles with other rows taken out.
// Nothing of it is remembered: libmlx, the system and the driver may all change.
#include "backend/mlx/kernels.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <string>

using namespace kakeya;

namespace {

enum { FEW_TILE = 16, PROMPT_TILE = 32, SLOTS = 300 };

typedef std::function<mx::array(const mx::array &)> rows_operation; // [rows][..] -> [rows][..]

struct trial {
    int inputs;
    rows_operation run;
    bool own;          // there is an own kernel for it
    bool stock = true; // tiles of stock operations see it, too
};

// Values between -1 and 1, always the same.
mx::array some_rows(int rows, int n, uint32_t seed) {
    return filled({rows, n}, mx::float32, [&](void *memory) {
        float *to = static_cast<float *>(memory);
        for (size_t i = 0; i < static_cast<size_t>(rows) * static_cast<size_t>(n); i++) {
            seed = seed * 1664525u + 1013904223u;
            to[i] = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
        }
    });
}

struct result {
    mx::array values;
    size_t row_bytes;
};

result computed(const rows_operation &run, const mx::array &x) {
    auto values = readable(run(x));
    mx::eval(values);
    return {values, values.nbytes() / static_cast<size_t>(x.shape(0))};
}

bool same_row(const result &a, int i, const result &b, int k) {
    const char *first = reinterpret_cast<const char *>(a.values.data<float>()) + static_cast<size_t>(i) * a.row_bytes,
               *second = reinterpret_cast<const char *>(b.values.data<float>()) + static_cast<size_t>(k) * b.row_bytes;
    return std::memcmp(first, second, a.row_bytes) == 0;
}

mx::array part(const mx::array &x, int begin, int end) {
    return mx::contiguous(mx::slice(x, mx::Shape{begin, 0}, mx::Shape{end, x.shape(1)}));
}

// As many rows as there are: each as when it is alone.
bool own_keeps_bits(const trial &t) {
    static const int sizes[] = {2, 3, 8, MLX_KERNEL_ROWS}; // one of every instance (mlx_kernel_rows_made)
    auto x = some_rows(MLX_KERNEL_ROWS, t.inputs, 1);
    std::vector<result> alone;
    for (int r = 0; r < MLX_KERNEL_ROWS; r++) alone.push_back(computed(t.run, part(x, r, r + 1)));
    for (int n : sizes) {
        int first = MLX_KERNEL_ROWS - n;
        auto together = computed(t.run, part(x, first, MLX_KERNEL_ROWS));
        for (int r = 0; r < n; r++) {
            if (!same_row(together, r, alone[static_cast<size_t>(first + r)], 0)) return false;
        }
    }
    return true;
}

// A tile's rows, each at its place, whether the others are there or not.
bool tile_keeps_bits(const trial &t, int rows) {
    auto x = some_rows(rows, t.inputs, 2);
    auto whole = computed(t.run, x);
    const struct {
        int border;
        bool first; // the rows before the border are there, or those behind it
    } cases[] = {{1, true}, {5, false}, {rows - 1, false}};
    for (auto [border, first] : cases) {
        auto zeros = mx::zeros({first ? rows - border : border, t.inputs});
        auto kept = first ? part(x, 0, border) : part(x, border, rows);
        auto some = computed(
            t.run, mx::contiguous(first ? mx::concatenate({kept, zeros}, 0) : mx::concatenate({zeros, kept}, 0)));
        for (int r = first ? 0 : border; r < (first ? border : rows); r++) {
            if (!same_row(some, r, whole, r)) return false;
        }
    }
    return true;
}

std::string shape_of(const mlx_array *w) {
    std::string text = std::to_string(w->codes.form) + "." + std::to_string(w->codes.bits) + "." +
                       std::to_string(w->codes.group) + (w->value.dtype() == mx::bfloat16 ? "b" : "f");
    for (int n : w->value.shape()) text.append("x").append(std::to_string(n));
    return text;
}

int columns_of(const mlx_array *w) {
    int n = w->value.shape(w->value.ndim() - 1);
    return w->scales ? n * 32 / w->codes.bits : n;
}

void add_products(const mlx_device *d, const mlx_form *f, std::vector<trial> &trials) {
    std::set<std::string> seen;
    auto add = [&](const mlx_array *w) {
        if (!w || !seen.insert(shape_of(w)).second) return;
        trials.push_back({columns_of(w), [=](const mx::array &x) { return product(d, x, w); }, own::multiplies(w)});
    };
    for (int i = 0; i < f->layers; i++) {
        const mlx_layer &l = f->layer[i];
        for (auto w : {l.q_proj, l.k_proj, l.v_proj, l.o_proj, l.gate_proj, l.up_proj, l.down_proj, l.router_proj,
                       l.ple_gate, l.ple_proj})
            add(w);
    }
    add(f->ple_model_proj);
}

void add_experts(const mlx_device *d, const mlx_form *f, std::vector<trial> &trials) {
    std::set<std::string> seen;
    for (int i = 0; f->experts_per_token && i < f->layers; i++) {
        const mlx_layer *l = &f->layer[i];
        const mlx_array *up = l->experts_gate_up ? l->experts_gate_up : l->experts_gate;
        if (!seen.insert(shape_of(up) + shape_of(l->experts_down)).second) continue;
        auto run = [=](const mx::array &x) { return experts(d, *l, x, {0, x.shape(0), f->experts_per_token, f->eps}); };
        bool own = own::multiplies(up) && own::multiplies(l->experts_down) && own::multiplies(l->router_proj) &&
                   (l->experts_gate_up || own::multiplies(l->experts_up)) && l->router_proj->value.shape(0) <= 1024;
        trials.push_back({f->hidden, run, own});
    }
}

mx::array positions(int rows) { // alike: a row may stand anywhere
    std::vector<int32_t> at(static_cast<size_t>(rows) + 8, 37);
    return mx::array(at.data(), mx::Shape{rows + 8}, mx::int32);
}

void add_heads(const mlx_device *d, const mlx_form *f, std::vector<trial> &trials) {
    std::set<std::array<int, 2>> seen;
    for (int i = 0; i < f->layers; i++) {
        const mlx_layer *l = &f->layer[i];
        if (!seen.insert({l->full, l->head_dim}).second) continue;
        auto run = [=](const mx::array &x) {
            return heads(d, x, {0, f->heads, l->head_dim, l->q_norm, f->eps, &f->rope[l->full]}, positions(x.shape(0)));
        };
        trials.push_back({f->heads * l->head_dim, run, true});
    }
}

// Rows of K or V [SLOTS][kv_heads * head_dim] as they lie in memory; in 8 and 4 bits (kv_format.h) any codes will do.
mx::array stored_rows(const mx::array &values, mlx_stored format, const mlx_layer *l) {
    if (format == MLX_STORED_F32) return mx::view(values, mx::uint8);
    if (format == MLX_STORED_BF16) return mx::view(mx::astype(values, mx::bfloat16), mx::uint8);
    const bool q4 = format == MLX_STORED_Q4;
    const size_t head = kv_format_row_bytes(q4 ? KV_FORMAT_Q4 : KV_FORMAT_Q8, 1, static_cast<size_t>(l->head_dim));
    return filled({SLOTS, l->kv_heads * static_cast<int>(head)}, mx::uint8, [&](void *memory) {
        unsigned char *to = static_cast<unsigned char *>(memory);
        const float scale = q4 ? 1.0f / (127 * 127 * KV_Q4_GROUP) : 1.0f / 127.0f;
        uint32_t seed = 5;
        for (size_t i = 0; i < static_cast<size_t>(SLOTS * l->kv_heads); i++, to += head) {
            std::memcpy(to, &scale, sizeof scale);
            for (size_t j = sizeof scale; j < head; j++) {
                seed = seed * 1664525u + 1013904223u;
                to[j] = static_cast<unsigned char>(seed >> 24);
            }
        }
    });
}

// Queries over slots that all rows see.
mx::array attend(const mlx_device *d, const mlx_form *f, const mlx_layer *l, mlx_stored stored, const mx::array &x) {
    int rows = x.shape(0), group = f->heads / l->kv_heads, values = l->kv_heads * l->head_dim;
    auto k = some_rows(SLOTS, values, 3), v = some_rows(SLOTS, values, 4);
    auto q = mx::reshape(x, {rows, f->heads, l->head_dim});
    if (d->own(MLX_OP_ATTENTION) && rows <= MLX_KERNEL_ROWS) {
        std::vector<int32_t> span;
        for (int part = 0; part < 2; part++) {
            for (int i = 0; i < SLOTS; i++) span.push_back(i);
        }
        for (int i = 0; i < rows; i++) span.insert(span.end(), {0, 0, 0, SLOTS});
        auto bytes = stored_rows(k, stored, l);
        own::attended kv{bytes,
                         stored_rows(v, stored, l),
                         k,
                         v,
                         mx::array(span.data(), mx::Shape{static_cast<int>(span.size())}, mx::int32),
                         stored,
                         l->kv_heads,
                         l->head_dim,
                         SLOTS,
                         SLOTS,
                         static_cast<int>(bytes.size()) / (SLOTS * l->kv_heads),
                         nullptr,
                         nullptr};
        auto out = own::merged(own::attention_parts(q, kv), nullptr, rows, f->heads, l->head_dim);
        return faulty(d, MLX_OP_ATTENTION, out);
    }
    auto by_head = [&](const mx::array &of) {
        return mx::transpose(mx::reshape(of, {SLOTS, l->kv_heads, l->head_dim}), {1, 0, 2});
    };
    auto by = mx::reshape(mx::transpose(q, {1, 0, 2}), {l->kv_heads, group * rows, l->head_dim});
    auto weights = mx::softmax(mx::matmul(by, mx::transpose(by_head(k), {0, 2, 1})), -1, true);
    auto out = mx::reshape(mx::matmul(weights, by_head(v)), {f->heads, rows, l->head_dim});
    return faulty(d, MLX_OP_ATTENTION, mx::reshape(mx::transpose(out, {1, 0, 2}), {rows, f->heads * l->head_dim}));
}

void add_attention(const mlx_device *d, const mlx_form *f, std::vector<trial> &trials) {
    std::set<std::array<int, 3>> seen;
    for (int i = 0; i < f->layers; i++) {
        const mlx_layer *l = &f->layer[i];
        for (mlx_stored stored : {MLX_STORED_F32, MLX_STORED_BF16, MLX_STORED_Q8, MLX_STORED_Q4}) {
            if (stored >= MLX_STORED_Q8 && !l->full) continue; // whose rows are never kept so
            if (!seen.insert({l->kv_heads, l->head_dim, stored}).second) continue;
            auto run = [=](const mx::array &x) { return attend(d, f, l, stored, x); };
            trials.push_back({f->heads * l->head_dim, run, l->head_dim <= 512,
                              stored == MLX_STORED_F32}); // which stock operations see, too
            if (stored != MLX_STORED_Q4) continue;
            auto store = [=](const mx::array &x) {
                auto packed = in_q4(d, mx::reshape(x, {x.shape(0) * l->kv_heads, l->head_dim}));
                return mx::reshape(packed.values, x.shape());
            };
            trials.push_back({l->kv_heads * l->head_dim, store, true, false});
        }
    }
}

std::vector<trial> trials_of(const mlx_device *d, const mlx_form *f, mlx_op op) {
    std::vector<trial> trials;
    switch (op) {
    case MLX_OP_PRODUCT:
        add_products(d, f, trials);
        break;
    case MLX_OP_EXPERTS:
        add_experts(d, f, trials);
        break;
    case MLX_OP_NORM:
        trials.push_back(
            {f->hidden, [=](const mx::array &x) { return norm(d, x, f->final_norm, f->eps, &x, 0.5f); }, true});
        break;
    case MLX_OP_HEADS:
        add_heads(d, f, trials);
        break;
    case MLX_OP_ATTENTION:
        add_attention(d, f, trials);
        break;
    case MLX_OP_HEAD:
        trials.push_back(
            {f->hidden, [=](const mx::array &x) { return head_logits(d, f, x); }, own::multiplies(f->head)});
        break;
    case MLX_OPS:
        break;
    }
    return trials;
}

template <class F> bool all_of(const std::vector<trial> &trials, F holds) {
    for (auto &t : trials) {
        if (!holds(t)) return false;
    }
    return true;
}

// A kernel that cannot be compiled or run is one that fails its check.
bool own_way_holds(const std::vector<trial> &trials) {
    try {
        return all_of(trials, [](const trial &t) { return t.own && own_keeps_bits(t); });
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception &) {
        return false;
    }
}

} // namespace

int mlx_device_choose(mlx_device *device, const mlx_form *form, mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        mlx_ways chosen, plain;
        for (int op = 0; op < MLX_OPS; op++) plain.few[op] = plain.prompt[op] = MLX_WAY_FIXED;
        for (int i = 0; i < MLX_OPS; i++) {
            mlx_op op = static_cast<mlx_op>(i);
            device->ways = plain; // one operation at a time is anything else
            auto trials = trials_of(device, form, op);
            auto tile = [&](int rows) {
                return all_of(trials, [&](const trial &t) { return !t.stock || tile_keeps_bits(t, rows); })
                           ? MLX_WAY_FIXED
                           : MLX_WAY_SERIAL;
            };
            chosen.prompt[op] = op == MLX_OP_HEAD ? MLX_WAY_FIXED : tile(PROMPT_TILE); // logits are made few by few
            device->ways.few[op] = MLX_WAY_OWN;
            bool own = own::available(device->stream) && own_way_holds(trials);
            device->ways.few[op] = MLX_WAY_FIXED;
            chosen.few[op] = own ? MLX_WAY_OWN : tile(FEW_TILE);
        }
        device->ways = chosen;
    });
}
