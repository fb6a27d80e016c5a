// Launches of the own kernels: by libmlx on Metal, which compiles their text, or by a runner on the host.
#include "backend/mlx/kernels.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <string>

#include <mlx/backend/cpu/encoder.h>
#include <mlx/primitives.h>

#include <kernel_texts.h>

namespace {

std::atomic<mlx_kernel_runner> host_runner{nullptr};

enum { PRODUCT_SIMDGROUPS = 2, ROW_SIMDGROUPS = 8, VALUE_SIMDGROUPS = 4, LANES = 32, PART_SLOTS = 256 };
enum { ATTENTION_ROWS = 8 }; // of a threadgroup: more would leave its threads too few registers
enum { FORMAT_BF16 = 16, FORMAT_F32 = 32, FORMAT_MX = 100, FORMAT_NV = 200 };

struct text {
    const char *name;
    std::vector<std::string> inputs, outputs, constants;
    bool shared; // numbers that the simdgroups of a threadgroup share
};

const text &text_of(mlx_kernel kernel) {
    static const std::vector<std::string> experts{"x",        "codes_0",  "scales_0", "biases_0", "codes_1",
                                                  "scales_1", "biases_1", "order",    "params"};
    static const std::vector<std::string> product{"x",        "codes_0", "scales_0", "biases_0", "codes_1", "scales_1",
                                                  "biases_1", "codes_2", "scales_2", "biases_2", "params"};
    static const text texts[MLX_KERNELS] = {
        {"rows_product", product, {"out"}, {"FORMAT", "ROWS", "OUTPUTS"}, false},
        {"experts_product", experts, {"out"}, {"FORMAT", "ROWS", "OUTPUTS"}, false},
        {"row_norm", {"x", "weight", "residual", "params"}, {"out"}, {}, true},
        {"head_rows", {"x", "weight", "cosine", "sine", "position", "params"}, {"out"}, {}, false},
        {"gated_rows", {"x", "params"}, {"out"}, {}, false},
        {"router_choice", {"logits", "factor", "params"}, {"order", "weights"}, {}, false},
        {"experts_sum", {"x", "weights", "params"}, {"out"}, {}, false},
        {"row_choice", {"logits", "bias", "params"}, {"out"}, {}, true},
        {"attention_part",
         {"q", "k", "v", "fresh_k", "fresh_v", "k_norm", "cosine", "sine", "span", "params"},
         {"out"},
         {"KV", "PER_LANE", "QUERIES", "KEYS_OF_V"},
         false},
        {"attention_merge", {"exact", "restored", "params"}, {"out"}, {}, false},
        {"q4_rows", {"x", "params"}, {"bytes", "out"}, {}, true},
    };
    return texts[kernel];
}

std::string joined(const std::vector<std::string> &parts) {
    std::string all;
    for (auto &part : parts) {
        if (!all.empty()) all.append(", ");
        all.append(part);
    }
    return all;
}

// The body of the Metal function: one call. libmlx finds in it which attributes the function wants.
std::string body_of(const text &t) {
    std::string body = "place here = {int(threadgroup_position_in_grid.x), int(threadgroup_position_in_grid.y), "
                       "int(threadgroup_position_in_grid.z), int(simdgroup_index_in_threadgroup), "
                       "int(simdgroups_per_threadgroup), int(thread_index_in_simdgroup)};\n";
    if (t.shared) body += "threadgroup float shared[96];\n";
    body.append(t.name);
    if (!t.constants.empty()) body.append("<").append(joined(t.constants)).append(">");
    body.append("(").append(joined(t.inputs)).append(", ").append(joined(t.outputs));
    return body.append(t.shared ? ", shared, here);\n" : ", here);\n");
}

const mx::fast::CustomKernelFunction &metal_function(mlx_kernel kernel) {
    static std::map<mlx_kernel, mx::fast::CustomKernelFunction> functions;
    auto found = functions.find(kernel);
    if (found != functions.end()) return found->second;
    const text &t = text_of(kernel);
    std::string header = kernel_text_shim;
    header += kernel_text_product;
    header += kernel_text_q4;
    header += kernel_text_attention;
    header += kernel_text_rows;
    return functions[kernel] =
               mx::fast::metal_kernel(std::string("kakeya_") + t.name, t.inputs, t.outputs, body_of(t), header);
}

// A launch as a node of graphs, computed by a processor.
class HostKernel : public mx::Primitive {
  public:
    HostKernel(mx::Stream s, mlx_kernel_call c, mlx_kernel_runner r) : Primitive(s), call(c), runner(r) {}
    void eval_cpu(const std::vector<mx::array> &inputs, std::vector<mx::array> &outputs) override {
        mlx_kernel_call now = call;
        for (size_t i = 0; i < inputs.size(); i++) now.input[i] = inputs[i].data<void>();
        for (size_t i = 0; i < outputs.size(); i++) {
            outputs[i].set_data(mx::allocator::malloc(outputs[i].nbytes()));
            now.output[i] = outputs[i].data<void>();
        }
        mx::cpu::get_command_encoder(stream()).dispatch([now, run = runner] { run(&now); });
    }
    void eval_gpu(const std::vector<mx::array> &, std::vector<mx::array> &) override {
        throw std::runtime_error("a kernel of the host on a GPU");
    }
    const char *name() const override { return text_of(call.kernel).name; }

  private:
    mlx_kernel_call call;
    mlx_kernel_runner runner;
};

struct launch {
    mlx_kernel kernel;
    std::array<int, 4> constant;
    std::vector<mx::array> inputs;
    std::vector<mx::Shape> shapes;
    std::vector<mx::Dtype> types;
    std::array<int, 3> groups;
    int simdgroups;
};

std::vector<mx::array> run_on_host(const launch &l, mx::Stream stream, mlx_kernel_runner runner) {
    mlx_kernel_call call = {};
    call.kernel = l.kernel;
    for (size_t i = 0; i < 4; i++) call.constant[i] = l.constant[i];
    for (size_t i = 0; i < 3; i++) call.groups[i] = l.groups[i];
    call.simdgroups = l.simdgroups;
    std::vector<mx::array> inputs;
    for (auto &input : l.inputs) inputs.push_back(mx::contiguous(input));
    return mx::array::make_arrays(l.shapes, l.types, std::make_shared<HostKernel>(stream, call, runner), inputs);
}

std::vector<mx::array> run(const launch &l) {
    mx::Stream stream = mx::default_stream(mx::default_device());
    if (stream.device == mx::Device::gpu) {
        std::vector<std::pair<std::string, mx::fast::TemplateArg>> constants;
        const text &t = text_of(l.kernel);
        for (size_t i = 0; i < t.constants.size(); i++) constants.emplace_back(t.constants[i], l.constant[i]);
        int threads = LANES * l.simdgroups;
        return metal_function(l.kernel)(l.inputs, l.shapes, l.types, {threads * l.groups[0], l.groups[1], l.groups[2]},
                                        {threads, 1, 1}, constants, std::nullopt, false, stream);
    }
    return run_on_host(l, stream, host_runner.load());
}

int bits(float x) { return std::bit_cast<int>(x); }

// Always 16 numbers: libmlx gives shorter arrays another kind of pointer.
mx::array params(std::initializer_list<int> values) {
    std::array<int32_t, 16> all{};
    size_t i = 0;
    for (int value : values) all[i++] = value;
    return mx::array(all.data(), mx::Shape{16}, mx::int32);
}

// For what a kernel does not read.
mx::array nothing() {
    static const mx::array zeros = mx::array(std::array<float, 16>{}.data(), mx::Shape{16}, mx::float32);
    return zeros;
}

int format_of(const mlx_array *w) {
    if (!w->scales) return w->value.dtype() == mx::bfloat16 ? FORMAT_BF16 : FORMAT_F32;
    if (w->codes.form == MLX_AFFINE) return w->codes.bits;
    return w->codes.bits + (w->codes.form == MLX_NVFP4 ? FORMAT_NV : FORMAT_MX);
}

int outputs_of(const mlx_array *w) { return w->value.shape(w->value.ndim() - 2); }
int inputs_of(const mlx_array *w) {
    int columns = w->value.shape(w->value.ndim() - 1);
    return w->scales ? columns * 32 / w->codes.bits : columns;
}
int group_of(const mlx_array *w) { return w->scales ? w->codes.group : 8; }

void add_weights(std::vector<mx::array> &inputs, const mlx_array *w) {
    inputs.push_back(w->raw);
    inputs.push_back(w->scales ? mx::view(*w->scales, mx::uint8) : mx::view(nothing(), mx::uint8));
    inputs.push_back(w->biases ? *w->biases : nothing());
}

int tiles_of(int outputs, int together) { return (outputs + together - 1) / together; }
int groups_of(int tiles, int simdgroups) { return (tiles + simdgroups - 1) / simdgroups; }

// q4_rows by the code that defines the format.
void store_q4(const mlx_kernel_call *call) {
    const int *parameters = static_cast<const int *>(call->input[1]);
    size_t vectors = static_cast<size_t>(call->groups[0]), n = static_cast<size_t>(parameters[0]);
    for (size_t i = 0; i < vectors; i++) {
        unsigned char *bytes = static_cast<unsigned char *>(call->output[0]) + i * kv_q4_bytes(parameters[0]);
        kv_q4_store(static_cast<const float *>(call->input[0]) + i * n, parameters[0], bytes);
        kv_q4_load(bytes, parameters[0], static_cast<float *>(call->output[1]) + i * n);
    }
}

} // namespace

void mlx_kernels_run_with(mlx_kernel_runner runner) { host_runner = runner; }
bool mlx_device_has_kernels(const mlx_device *d) { return kakeya::own::available(d->stream); }

namespace kakeya::own {

bool available(const mx::Stream &stream) { return stream.device == mx::Device::gpu || host_runner.load(); }

bool multiplies(const mlx_array *w) { return w->value.ndim() >= 2 && inputs_of(w) % 8 == 0 && group_of(w) % 8 == 0; }

bool alike(const mlx_array *a, const mlx_array *b) {
    return format_of(a) == format_of(b) && group_of(a) == group_of(b) && inputs_of(a) == inputs_of(b);
}

mx::array product(const mx::array &x, const std::vector<const mlx_array *> &w, bool round, float cap) {
    int rows = x.shape(0), made = mlx_kernel_rows_made(rows), together = mlx_kernel_outputs(made), tiles = 0, total = 0;
    std::array<int, 3> outputs{};
    std::vector<mx::array> inputs{x};
    for (size_t i = 0; i < 3; i++) {
        add_weights(inputs, w[i < w.size() ? i : 0]);
        if (i >= w.size()) continue;
        outputs[i] = outputs_of(w[i]);
        tiles += tiles_of(outputs[i], together);
        total += outputs[i];
    }
    inputs.push_back(
        params({inputs_of(w[0]), group_of(w[0]), rows, round, bits(cap), outputs[0], outputs[1], outputs[2]}));
    return run({MLX_KERNEL_PRODUCT,
                {format_of(w[0]), made, together, 0},
                inputs,
                {{rows, total}},
                {mx::float32},
                {groups_of(tiles, PRODUCT_SIMDGROUPS), 1, 1},
                PRODUCT_SIMDGROUPS})[0];
}

mx::array experts(const mx::array &x, const std::vector<const mlx_array *> &w, const mx::array &order, int rows,
                  int chosen, bool of_pairs, bool round) {
    int made = mlx_kernel_rows_made(rows), together = mlx_kernel_outputs(made), pairs = rows * chosen;
    int first = outputs_of(w[0]), second = w.size() > 1 ? outputs_of(w[1]) : 0;
    std::vector<mx::array> inputs{x};
    add_weights(inputs, w[0]);
    add_weights(inputs, w[w.size() > 1]);
    inputs.push_back(order);
    inputs.push_back(params({inputs_of(w[0]), group_of(w[0]), pairs, round, chosen, first, second, of_pairs}));
    return run({MLX_KERNEL_EXPERTS,
                {format_of(w[0]), made, together, 0},
                inputs,
                {{pairs, first + second}},
                {mx::float32},
                {groups_of(tiles_of(first, together) + tiles_of(second, together), PRODUCT_SIMDGROUPS), pairs, 1},
                PRODUCT_SIMDGROUPS})[0];
}

mx::array norm(const mx::array &x, const mlx_array *weight, float eps, const mx::array *residual, float factor) {
    int rows = x.shape(0), n = x.shape(1);
    return run({MLX_KERNEL_NORM,
                {},
                {x, weight ? weight->value : nothing(), residual ? *residual : nothing(),
                 params({n, bits(eps), bits(factor), weight != nullptr, residual != nullptr})},
                {{rows, n}},
                {mx::float32},
                {rows, 1, 1},
                ROW_SIMDGROUPS})[0];
}

mx::array heads(const mx::array &x, int first, int n, int dim, const mlx_array *weight, float eps,
                const mlx_rope *table, const mx::array &position) {
    int rows = x.shape(0), pairs = table ? table->pairs : 0;
    return run({MLX_KERNEL_HEADS,
                {},
                {x, weight ? weight->value : nothing(), pairs ? table->cosine->value : nothing(),
                 pairs ? table->sine->value : nothing(), position,
                 params({n, dim, pairs, bits(eps), weight != nullptr, x.shape(1), first})},
                {{rows, n, dim}},
                {mx::float32},
                {n, rows, 1},
                1})[0];
}

mx::array gated(const mx::array &x) {
    int rows = x.shape(0), n = x.shape(1) / 2;
    return run({MLX_KERNEL_GATED,
                {},
                {x, params({n, rows})},
                {{rows, n}},
                {mx::float32},
                {groups_of(n, LANES * VALUE_SIMDGROUPS), rows, 1},
                VALUE_SIMDGROUPS})[0];
}

chosen_experts router(const mx::array &logits, const mlx_array *factor, int chosen) {
    int rows = logits.shape(0), all = rows * chosen < 8 ? 8 : rows * chosen;
    auto out = run({MLX_KERNEL_ROUTER,
                    {},
                    {logits, factor->value, params({logits.shape(1), chosen})},
                    {{all}, {all}},
                    {mx::int32, mx::float32},
                    {rows, 1, 1},
                    1});
    return {out[0], out[1]};
}

mx::array experts_sum(const mx::array &x, const mx::array &weights, int rows, int chosen) {
    int n = x.shape(1);
    return run({MLX_KERNEL_EXPERTS_SUM,
                {},
                {x, weights, params({n, chosen})},
                {{rows, n}},
                {mx::float32},
                {groups_of(n, LANES * VALUE_SIMDGROUPS), rows, 1},
                VALUE_SIMDGROUPS})[0];
}

mx::array choice(const mx::array &z, const mlx_array *bias) {
    int rows = z.shape(0), vocab = z.shape(1);
    return run({MLX_KERNEL_CHOICE,
                {},
                {z, bias ? bias->value : nothing(), params({vocab, bias != nullptr})},
                {{rows}},
                {mx::int32},
                {rows, 1, 1},
                ROW_SIMDGROUPS})[0];
}

mx::array attention_parts(const mx::array &q, const attended &kv) {
    int rows = q.shape(0), heads = q.shape(1), group = heads / kv.kv_heads, parts = groups_of(kv.slots, PART_SLOTS);
    int queries = group % 4 == 0 && kv.dim <= 256 ? 4 : group % 2 == 0 ? 2 : 1;
    int per_lane = 1, pairs = kv.table ? kv.table->pairs : 0;
    while (per_lane * LANES < kv.dim) per_lane *= 2;
    bool turned = kv.keys_of_v && pairs;
    return run({MLX_KERNEL_ATTENTION,
                {kv.format, per_lane, queries, kv.keys_of_v != nullptr},
                {q, kv.k, kv.v, kv.fresh_k, kv.fresh_v, kv.keys_of_v ? kv.keys_of_v->value : nothing(),
                 turned ? kv.table->cosine->value : nothing(), turned ? kv.table->sine->value : nothing(), kv.span,
                 params({heads, kv.kv_heads, kv.dim, kv.slots, rows, parts, pairs, kv.head_bytes, kv.stored})},
                {{rows, heads, parts, kv.dim + 2}},
                {mx::float32},
                {kv.kv_heads * (group / queries), parts, groups_of(rows, ATTENTION_ROWS)},
                rows < ATTENTION_ROWS ? rows : ATTENTION_ROWS})[0];
}

mx::array merged(const mx::array &exact, const mx::array *restored, int rows, int heads, int dim) {
    return run(
        {MLX_KERNEL_MERGE,
         {},
         {exact, restored ? *restored : exact, params({heads, dim, exact.shape(2), restored ? restored->shape(2) : 0})},
         {{rows, heads * dim}},
         {mx::float32},
         {heads, rows, 1},
         1})[0];
}

} // namespace kakeya::own

namespace kakeya {

q4_vectors in_q4(const mlx_device *d, const mx::array &x) {
    int n = x.shape(-1), vectors = static_cast<int>(x.size()) / n, bytes = static_cast<int>(kv_q4_bytes(n));
    const launch l{
        MLX_KERNEL_Q4,   {}, {x, params({n, bytes})}, {{vectors, bytes}, x.shape()}, {mx::uint8, mx::float32},
        {vectors, 1, 1}, 1};
    bool own = d->own(MLX_OP_ATTENTION) && n % KV_Q4_GROUP == 0 && n / KV_Q4_GROUP <= LANES;
    bool gpu = d->stream.device == mx::Device::gpu;
    auto host = [&] { return gpu ? mx::default_stream(mx::Device::cpu) : d->stream; };
    auto out = own ? run(l) : run_on_host(l, host(), store_q4);
    return {out[0], out[1]};
}

} // namespace kakeya
