// The drafter's context, its blocks, and the restoration's encoders, as graphs (formulas: backend/cpu/draft.c, block.c,
// latents.c).
#include "backend/mlx/device.hpp"

#include <cmath>
#include <cstring>
#include <limits>

using namespace kakeya;

namespace {

mx::array silu(const mx::array &x) { return x * mx::sigmoid(x); }

// Latents of one input, or of an input for keys and one for values.
mx::array encoded(const mlx_device *d, const mlx_encoders *e, const mx::array &k, const mx::array &v) {
    auto codes = product(d, k, e->k);
    return e->v ? mx::concatenate({codes, product(d, v, e->v)}, 1) : codes;
}

struct block_graph {
    const mlx_device *device;
    const mlx_drafter *form;
    const mlx_block *block;
    int rows;
    mx::array position;

    mx::array as_stored(const mx::array &x) const { return block->stored_bf16 ? rounded(x) : x; }

    mx::array heads_of(const mx::array &x, int heads) const { return mx::reshape(x, {rows, heads, form->head_dim}); }

    // Context rows of the layer, then the block's own: [kv_heads][context + rows][head_dim].
    mx::array behind_context(int layer, bool is_k, const mx::array &own) const {
        int context = block->context[layer], values = form->kv_heads * form->head_dim;
        if (!context) return mx::transpose(own, {1, 0, 2});
        auto type = block->stored_bf16 ? mx::bfloat16 : mx::float32;
        auto before = filled({context, values}, type, [&](void *to) { block->fill(block->user, layer, is_k, to); });
        auto all = mx::concatenate(
            {mx::reshape(mx::astype(before, mx::float32), {context, form->kv_heads, form->head_dim}), own}, 0);
        return mx::transpose(all, {1, 0, 2});
    }

    // [rows][context + rows]
    mx::array mask(int layer) const {
        int context = block->context[layer];
        auto begin = mx::expand_dims(integers(block->begin[layer], rows), 1);
        auto row = mx::expand_dims(mx::arange(rows), 1), other = mx::expand_dims(mx::arange(rows), 0);
        auto inside = mx::logical_and(mx::greater_equal(other, row - mx::array(block->before[layer])),
                                      mx::less_equal(other, row + mx::array(block->behind[layer])));
        if (!context) return inside;
        auto at = mx::expand_dims(mx::arange(context) + mx::array(block->first[layer]), 0);
        return mx::concatenate({mx::greater_equal(at, begin), inside}, 1);
    }

    mx::array attend(int layer, const mx::array &x) const {
        const mlx_draft_layer &l = form->layer[layer];
        int group = form->heads / form->kv_heads, queries = group * rows;
        auto q = rope(plain_norm(heads_of(product(device, x, l.q_proj), form->heads), l.q_norm, form->eps), form->rope,
                      position) *
                 mx::array(1.0f / std::sqrt(static_cast<float>(form->head_dim)));
        auto own_k = rope(plain_norm(heads_of(product(device, x, l.k_proj), form->kv_heads), l.k_norm, form->eps),
                          form->rope, position);
        auto k = behind_context(layer, true, as_stored(own_k));
        auto v = behind_context(layer, false, as_stored(heads_of(product(device, x, l.v_proj), form->kv_heads)));
        int keys = k.shape(1);
        auto by = mx::reshape(mx::transpose(q, {1, 0, 2}), {form->kv_heads, queries, form->head_dim});
        auto scores = mx::reshape(mx::matmul(by, mx::transpose(k, {0, 2, 1})), {form->kv_heads, group, rows, keys});
        scores = mx::where(mask(layer), scores, mx::array(-std::numeric_limits<float>::infinity()));
        auto weights = mx::reshape(mx::softmax(scores, -1, true), {form->kv_heads, queries, keys});
        auto out = mx::reshape(mx::matmul(weights, v), {form->heads, rows, form->head_dim});
        out = mx::reshape(mx::transpose(out, {1, 0, 2}), {rows, form->heads * form->head_dim});
        return product(device, out, l.o_proj);
    }
};

} // namespace

int mlx_context_run(mlx_device *device, const mlx_drafter *drafter, const mlx_encoders *encoders, int rows,
                    const float *aux, int aux_width, const int32_t *position, float *k, float *v, float *codes,
                    mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        int values = drafter->kv_heads * drafter->head_dim;
        auto at = integers(position, rows);
        auto x = plain_norm(product(device, floats(aux, {rows, aux_width}), drafter->fc), drafter->hidden_norm,
                            drafter->eps);
        std::vector<mx::array> raw_k, raw_v, turned;
        for (int i = 0; i < drafter->layers; i++) {
            const mlx_draft_layer &l = drafter->layer[i];
            raw_k.push_back(product(device, x, l.k_proj));
            raw_v.push_back(product(device, x, l.v_proj));
            auto heads = mx::reshape(raw_k.back(), {rows, drafter->kv_heads, drafter->head_dim});
            turned.push_back(
                mx::reshape(rope(plain_norm(heads, l.k_norm, drafter->eps), drafter->rope, at), {rows, values}));
        }
        std::vector<mx::array> outputs{readable(mx::stack(turned)), readable(mx::stack(raw_v))};
        if (encoders) {
            outputs.push_back(
                readable(encoded(device, encoders, mx::concatenate(raw_k, 1), mx::concatenate(raw_v, 1))));
        }
        evaluate(outputs);
        read(outputs[0], k);
        read(outputs[1], v);
        if (encoders) read(outputs[2], codes);
    });
}

int mlx_encode_run(mlx_device *device, const mlx_encoders *encoders, int rows, int parts, int width, float eps,
                   const float *aux, float *codes, mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        auto x = mx::reshape(plain_norm(floats(aux, {rows, parts, width}), nullptr, eps), {rows, parts * width});
        auto out = readable(encoded(device, encoders, x, x));
        evaluate({out});
        read(out, codes);
    });
}

int mlx_scales_run(mlx_device *device, const mlx_form *form, const bool *layers, int rows, int rank_v,
                   const float *codes, float *scales, mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        auto input = floats(codes, {rows, rank_v});
        std::vector<mx::array> parts;
        for (int i = 0; i < form->layers; i++) {
            if (!layers[i]) continue;
            const mlx_layer &l = form->layer[i];
            auto values = mx::reshape(product(device, input, l.decoder_v, true), {rows, l.kv_heads, l.head_dim});
            parts.push_back(mx::rsqrt(mx::mean(mx::square(values), -1) + mx::array(form->eps)));
        }
        auto out = readable(mx::concatenate(parts, 1));
        evaluate({out});
        read(out, scales);
    });
}

int mlx_block_run(mlx_device *device, const mlx_form *form, const mlx_drafter *drafter, const mlx_block *block,
                  const mlx_array *bias, int32_t *drafts, mlx_failure *failure) {
    return guarded(failure, [&] {
        mx::StreamContext on(device->stream);
        int n = block->rows - 1;
        block_graph graph{device, drafter, block, block->rows, integers(block->position, block->rows)};
        auto h = floats(block->embedded, {block->rows, drafter->hidden});
        for (int i = 0; i < drafter->layers; i++) {
            const mlx_draft_layer &l = drafter->layer[i];
            h = h + graph.attend(i, plain_norm(h, l.input_norm, drafter->eps));
            auto x = plain_norm(h, l.post_attention_norm, drafter->eps);
            h = h + product(device, silu(product(device, x, l.gate_proj)) * product(device, x, l.up_proj), l.down_proj);
        }
        auto last = plain_norm(h, drafter->norm, drafter->eps);
        auto rows = mx::contiguous(mx::slice(last, mx::Shape{1, 0}, mx::Shape{n + 1, drafter->hidden}));
        auto choice = head_choice(device, readable(head_logits(device, form, rows)), bias);
        evaluate({choice});
        std::memcpy(drafts, choice.data<int32_t>(), static_cast<size_t>(n) * sizeof *drafts);
    });
}
