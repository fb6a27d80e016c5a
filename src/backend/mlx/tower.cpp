// A picture on its way through the list of a tower (backend/program/tower.h), piece by piece. Products and row programs
// run over a group of rows from one operation that waits for all rows to the next; attention over a group of queries.
// Every piece is computed before the next one is made, so that what is there is what later pieces read. All is float32
// and no input is rounded, whatever the model's precision.
#include "backend/mlx/device.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include "backend/program/op.h"

using namespace kakeya;

struct mlx_picture {
    mlx_device *device;
    const mlx_tower *tower;
    int across, down;
    int all;   // rows of the part of the list in work: patches, then pooled
    int at;    // the first operation of the part
    int first; // row of the next piece
    std::array<std::optional<mx::array>, PROGRAM_ITEMS> item; // of all rows
    std::array<std::vector<mx::array>, PROGRAM_ITEMS> made;   // of the groups so far
    std::optional<mx::array> keys, values;                    // [1][heads][rows][padded head], of attention in work
};

namespace {

const float layer_norm_eps = 1e-5f;

template <size_t N> bool names(const uint8_t (&items)[N], int item) {
    return std::find(items, items + N, static_cast<uint8_t>(item)) != items + N;
}

bool waits_for_all(const program_op &o) { return o.kind == OP_ATTEND || o.kind == OP_POOL; }

mx::array clamped(const mx::array &x, float least, float most) {
    return mx::clip(x, mx::array(least), mx::array(most));
}

// Rows [first, first + n) of a picture between two operations that wait for all.
struct group {
    mlx_picture &p;
    int first, n;
    std::array<std::optional<mx::array>, PROGRAM_ITEMS> item; // written by one of the operations
    mx::array columns, lines;                                 // of the table of places

    group(mlx_picture &picture, int begin, int rows)
        : p(picture), first(begin), n(rows), columns(places(false)), lines(places(true)) {}

    mx::array places(bool line) const {
        return filled({n}, mx::int32, [&](void *to) {
            for (int i = 0; i < n; i++)
                static_cast<int32_t *>(to)[i] = line ? (first + i) / p.across : (first + i) % p.across;
        });
    }

    mx::array read(int i) const {
        if (item[i]) return *item[i];
        const mx::array &all = p.item[i].value();
        return mx::slice(all, mx::Shape{first, 0}, mx::Shape{first + n, all.shape(1)});
    }

    const mlx_tower_weight &weight_of(int slot) const { return p.tower->weight[slot]; }
    const mlx_array *vector_of(int slot) const { return slot ? weight_of(slot).value : nullptr; }

    mx::array product_of(const program_op &o, const mx::array &x, int slot) const {
        const mlx_tower_weight &w = weight_of(slot);
        if (!o.clipped) return product(p.device, x, w.value, true);
        return clamped(product(p.device, clamped(x, w.input_min, w.input_max), w.value, true), w.output_min,
                       w.output_max);
    }

    void products_of(const program_op &o) {
        auto x = read(o.in[0]);
        if (o.epilogue == EPILOGUE_GATED) {
            item[o.out[0]] =
                gated(p.device, mx::concatenate({product_of(o, x, o.slot[0]), product_of(o, x, o.slot[1])}, 1));
            return;
        }
        for (int i = 0; i < PROGRAM_MATRICES && o.slot[i]; i++) item[o.out[i]] = product_of(o, x, o.slot[i]);
    }

    // The two halves of a head turn by the patch's column and by its line.
    mx::array turned(const mx::array &x) const {
        const int heads = x.shape(1), half = x.shape(2) / 2;
        auto part = [&](int begin) { return mx::slice(x, mx::Shape{0, 0, begin}, mx::Shape{n, heads, begin + half}); };
        return mx::concatenate({rope(part(0), p.tower->rope, columns), rope(part(half), p.tower->rope, lines)}, 2);
    }

    void heads_of(const program_op &o) {
        for (const head_rule &rule : o.head) {
            if (!rule.item) continue;
            auto x = read(rule.item);
            auto heads = mx::reshape(x, {n, x.shape(1) / o.width, o.width});
            if (rule.norm) heads = plain_norm(heads, vector_of(rule.slot), p.tower->eps);
            if (rule.rope) heads = turned(heads);
            item[rule.item] = mx::reshape(heads * mx::array(rule.scale), {n, x.shape(1)});
        }
    }

    mx::array place_of(const row_step &s) const {
        auto at = s.part ? lines : columns;
        auto row = p.tower->places_alternate ? at * mx::array(2) + mx::array(static_cast<int>(s.part))
                                             : at + mx::array(s.part ? p.tower->positions : 0);
        return wide(mx::take(weight_of(s.slot).value->value, row, 0));
    }

    mx::array step_of(const row_step &s, const std::array<std::optional<mx::array>, ROW_REGISTERS> &reg) const {
        switch (s.verb) {
        case ROW_LOAD:
            return read(s.item);
        case ROW_LOOKUP:
            return place_of(s);
        case ROW_NORM:
            return plain_norm(reg[s.from].value(), vector_of(s.slot), p.tower->eps);
        case ROW_CENTRE:
            return mx::fast::layer_norm(reg[s.from].value(), vector_of(s.slot)->value, vector_of(s.part)->value,
                                        layer_norm_eps);
        case ROW_ADD:
            return reg[s.into].value() + reg[s.from].value();
        case ROW_SCALE:
            return reg[s.into].value() * mx::array(s.scalar);
        case ROW_MULTIPLY:
            return reg[s.into].value() * vector_of(s.slot)->value;
        case ROW_SHIFT:
            if (!s.slot) return reg[s.into].value() + mx::array(s.scalar);
            return reg[s.into].value() + mx::array(s.scalar) * vector_of(s.slot)->value;
        default:
            throw std::logic_error("a row program of a tower with an instruction that it cannot have");
        }
    }

    void rows_of(const program_op &o) {
        std::array<std::optional<mx::array>, ROW_REGISTERS> reg;
        for (int i = 0; i < o.steps; i++) {
            const row_step &s = o.step[i];
            reg[s.into] = step_of(s, reg);
            if (s.item && s.verb != ROW_LOAD) item[s.item] = reg[s.into];
        }
    }

    void run(const program_op &o) {
        if (o.kind == OP_PRODUCTS)
            products_of(o);
        else if (o.kind == OP_HEADS)
            heads_of(o);
        else
            rows_of(o);
    }
};

// Whether an operation from `at` on reads an item, before one writes it. The last one's is read by the caller.
bool read_later(const mlx_tower *t, int item, int at) {
    for (int i = at; i < t->ops; i++) {
        if (names(t->op[i].in, item)) return true;
        if (names(t->op[i].out, item)) return false;
    }
    return item == DATA_SOFT;
}

// A group of rows through operations [p.at, end).
void run_group(mlx_picture &p, int end) {
    group rows(p, p.first, std::min(p.all - p.first, static_cast<int>(MLX_PICTURE_ROWS)));
    for (int i = p.at; i < end; i++) rows.run(p.tower->op[i]);
    std::vector<mx::array> kept;
    for (int i = 0; i < PROGRAM_ITEMS; i++) {
        if (!rows.item[i] || !read_later(p.tower, i, end)) continue;
        p.made[i].push_back(mx::contiguous(*rows.item[i]));
        kept.push_back(p.made[i].back());
    }
    p.first += rows.n;
    evaluate(kept);
}

// What groups have made becomes what all rows have; what nobody reads any more goes.
void end_part(mlx_picture &p, int end) {
    for (int i = 0; i < PROGRAM_ITEMS; i++) {
        if (!read_later(p.tower, i, end)) p.item[i].reset();
        if (p.made[i].empty()) continue;
        p.item[i] = p.made[i].size() == 1 ? p.made[i][0] : mx::concatenate(p.made[i], 0);
        p.made[i].clear();
        evaluate({*p.item[i]});
    }
}

// What fused attention is there for; zeros change no score and no sum.
int padded_head(int dim) { return dim <= 64 ? 64 : dim <= 80 ? 80 : dim <= 128 ? 128 : dim; }

// x [rows][heads * dim] as [1][heads][rows][padded dim].
mx::array by_head(const mx::array &x, int dim) {
    const int rows = x.shape(0), heads = x.shape(1) / dim;
    auto apart = mx::transpose(mx::reshape(x, {1, rows, heads, dim}), {0, 2, 1, 3});
    return mx::contiguous(mx::pad(apart, {{0, 0}, {0, 0}, {0, 0}, {0, padded_head(dim) - dim}}));
}

// Queries whose scores may lie in memory together: those of all, where none do.
int queries_together(const mlx_picture &p, int heads, int dim) {
    if (mlx_device_is_gpu(p.device) && padded_head(dim) <= 128) return p.all;
    return std::max(16, MLX_PICTURE_SCORES / (heads * p.all));
}

// A piece of attention. True: that was the last one.
bool attend(mlx_picture &p, const program_op &o) {
    const auto &q = p.item[o.in[0]].value();
    const int dim = o.width, heads = q.shape(1) / dim;
    if (p.first == 0) {
        p.keys = by_head(p.item[o.in[1]].value(), dim);
        p.values = by_head(p.item[o.in[2]].value(), dim);
        evaluate({*p.keys, *p.values});
    }
    const int n = std::min(p.all - p.first, queries_together(p, heads, dim));
    auto some = by_head(mx::slice(q, mx::Shape{p.first, 0}, mx::Shape{p.first + n, heads * dim}), dim);
    auto out = mx::fast::scaled_dot_product_attention(some, *p.keys, *p.values, o.scale);
    out = mx::slice(out, mx::Shape{0, 0, 0, 0}, mx::Shape{1, heads, n, dim});
    p.made[o.out[0]].push_back(mx::contiguous(mx::reshape(mx::transpose(out, {0, 2, 1, 3}), {n, heads * dim})));
    evaluate({p.made[o.out[0]].back()});
    p.first += n;
    if (p.first < p.all) return false;
    p.keys.reset();
    p.values.reset();
    return true;
}

// Means over squares of patches.
void pool(mlx_picture &p, const program_op &o) {
    const int side = o.parts, wide = p.item[o.in[0]].value().shape(1);
    auto squares = mx::reshape(*p.item[o.in[0]], {p.down / side, side, p.across / side, side, wide});
    p.all = p.down / side * (p.across / side);
    p.made[o.out[0]].push_back(mx::reshape(mx::mean(squares, {1, 3}), {p.all, wide}));
    evaluate({p.made[o.out[0]].back()});
}

// True: that was the list's last piece.
bool run_piece(mlx_picture &p) {
    const mlx_tower *t = p.tower;
    int end = p.at;
    while (end < t->ops && !waits_for_all(t->op[end])) end++;
    if (end > p.at) {
        run_group(p, end);
        if (p.first < p.all) return false;
    } else {
        const program_op &o = t->op[end++];
        if (o.kind == OP_POOL)
            pool(p, o);
        else if (!attend(p, o))
            return false;
    }
    end_part(p, end);
    p.at = end;
    p.first = 0;
    return end == t->ops;
}

} // namespace

int mlx_picture_begin(mlx_device *device, const mlx_tower *tower, int across, int down, int patch_values,
                      const float *patches, mlx_picture **out, mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        auto picture = std::make_unique<mlx_picture>();
        picture->device = device;
        picture->tower = tower;
        picture->across = across;
        picture->down = down;
        picture->all = across * down;
        picture->item[DATA_PATCHES] = floats(patches, {picture->all, patch_values});
        *out = picture.release();
    });
}

int mlx_picture_step(mlx_picture *picture, float *rows, bool *made, mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(picture->device->stream);
        *made = run_piece(*picture);
        if (*made) read(*picture->item[DATA_SOFT], rows);
    });
}

void mlx_picture_free(mlx_picture *picture) { delete picture; }
