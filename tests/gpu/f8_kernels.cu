/* Products of prompt rows in FP8 against their definition computed here, and their speed.
 *
 *   f8_kernels            every check, then the table of times
 *   f8_kernels check      checks only
 *   f8_kernels times      times only
 */
#include "backend/cuda/f8_rows.h"
#include "backend/cuda/prompt_gemm.h"
#include "backend/cuda/prompt_gemm_f8.h"
#include "gpu/prompt_support.cuh"

namespace {

uint64_t random_state = 1;
unsigned random_bits() {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<unsigned>(random_state >> 33);
}

uint16_t bf16_of(float v) {
    unsigned bits;
    std::memcpy(&bits, &v, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float float_of(uint32_t bits) {
    float v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
}

float e4m3_of(int code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    float v = exponent ? std::ldexp(8.0f + static_cast<float>(mantissa), exponent - 10)
                       : std::ldexp(static_cast<float>(mantissa), -9);
    return code & 0x80 ? -v : v;
}

cuda_launch make_launch() {
    cuda_launch l = {};
    CHECK(cudaDeviceGetAttribute(&l.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    l.programmatic = 1;
    return l;
}

/* ---- rows ---- */

struct rounded_rows {
    std::vector<unsigned char> codes; /* [rows][64 units], as they lie */
    std::vector<float> scale, values; /* values [rows][width]: of codes, without the scale */
};

rounded_rows round_here(const std::vector<uint16_t> &x, int rows, int width) {
    size_t ld = static_cast<size_t>(quant_units(width)) * QUANT_VALUES;
    rounded_rows r = {std::vector<unsigned char>(rows * ld), std::vector<float>(rows),
                      std::vector<float>(static_cast<size_t>(rows) * width)};
    for (int row = 0; row < rows; row++) {
        uint32_t largest = 0;
        for (int k = 0; k < width; k++) largest = std::max(largest, x[static_cast<size_t>(row) * width + k] & 0x7fffu);
        uint32_t bits = f8_scale_bits(largest);
        r.scale[row] = float_of(bits);
        for (int k = 0; k < width; k++) {
            size_t at = static_cast<size_t>(row) * width + k;
            unsigned char code =
                bits > 0x7f800000u ? 0x7f : f8_code(host_bf16(x[at]) * float_of(f8_inverse_bits(bits)));
            r.codes[row * ld + f8_place(k)] = code;
            r.values[at] = e4m3_of(code);
        }
    }
    return r;
}

/* Values of all magnitudes, and rows of zeros, of one value, of numbers that are none. */
std::vector<uint16_t> make_rows(int rows, int width, bool special) {
    std::vector<uint16_t> x(static_cast<size_t>(rows) * width);
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < width; k++) {
            float v = static_cast<float>(static_cast<int>(random_bits() % 20001) - 10000) / 3000;
            if (random_bits() % 50 == 0) v *= 20;
            if (special && r % 5 == 1) v = std::ldexp(v, static_cast<int>(random_bits() % 40) - 30);
            if (special && r % 5 == 2) v = k == 3 ? v : 0;
            if (special && r == 3) v = 0;
            if (special && r == 4) v = std::ldexp(v, -110);
            x[static_cast<size_t>(r) * width + k] = bf16_of(v);
        }
    if (special && rows > 7) x[static_cast<size_t>(6) * width + 1] = 0x7f80, x[static_cast<size_t>(7) * width] = 0xffc1;
    return x;
}

void check_rows() {
    cuda_launch l = make_launch();
    for (int width : {32, 96, 704, 1024, 2112, 2816, 3072, 4096, 8192, 16384}) {
        int rows = 21;
        std::vector<uint16_t> x = make_rows(rows, width, true);
        rounded_rows want = round_here(x, rows, width);
        device_array<uint16_t> dx(x.size());
        dx.set(x);
        device_array<unsigned char> codes(want.codes.size());
        device_array<float> scale(rows);
        codes.poison();
        f8_round_rows(&l, nullptr, dx.data, width, width, codes.data, scale.data, rows);
        CHECK(cudaGetLastError());
        std::vector<unsigned char> got = codes.get();
        std::vector<float> scales = scale.get();
        int wrong = 0, first = -1;
        for (int r = 0; r < rows; r++) {
            bool number = want.scale[r] == want.scale[r];
            bool same = number ? scales[r] == want.scale[r] : scales[r] != scales[r];
            size_t ld = got.size() / rows;
            for (size_t i = 0; i < ld && number; i++) same &= got[r * ld + i] == want.codes[r * ld + i];
            if (!same && wrong++ == 0) first = r;
        }
        report(wrong == 0, "rows of %d in e4m3: %d of %d differ, the first is %d", width, wrong, rows, first);
        /* Through a route: every row in three slots, backwards. */
        enum { RANK = 3 };
        std::vector<int> slots(rows * RANK);
        for (size_t i = 0; i < slots.size(); i++) slots[i] = static_cast<int>(slots.size() - 1 - i);
        device_array<int> slot_of(slots.size());
        slot_of.set(slots);
        cuda_route route = {};
        route.slot_of = slot_of.data;
        route.rank = RANK;
        device_array<unsigned char> many(got.size() * RANK);
        device_array<float> many_scales(slots.size());
        f8_round_rows(&l, &route, dx.data, width, width, many.data, many_scales.data, rows);
        CHECK(cudaGetLastError());
        std::vector<unsigned char> placed = many.get();
        std::vector<float> placed_scales = many_scales.get();
        bool same = true;
        size_t ld = got.size() / rows;
        for (int i = 0; i < rows * RANK; i++) {
            same &= std::memcmp(&placed[slots[i] * ld], &got[i / RANK * ld], ld) == 0;
            same &= std::memcmp(&placed_scales[slots[i]], &scales[i / RANK], 4) == 0;
        }
        report(same, "rows of %d in their slots", width);
    }
}

/* ---- products ---- */

/* Of the sum of magnitudes. Tensor cores align the addends of an instruction to the largest, and cut them behind some
 * 13 bits. */
const double MOST_ERROR = 4e-3;

/* A matrix in strips. Scales change every `group` values and by row. */
struct f8_matrix {
    int out, in, units;
    std::vector<float> values; /* of codes */
    std::vector<float> scales; /* [out][blocks of 128] */
    device_array<unsigned char> bytes;

    f8_matrix(int outputs, int width, int group)
        : out(outputs), in(width), units(quant_units(width)), values(static_cast<size_t>(outputs) * width),
          scales(static_cast<size_t>(outputs) * ((width + 127) / 128)),
          bytes(static_cast<size_t>(outputs) / QUANT_ROWS * quant_strip_bytes(CUDA_FORM_F8, width)) {
        std::vector<unsigned char> host(bytes.count);
        size_t strip = quant_strip_bytes(CUDA_FORM_F8, in), unit_bytes = quant_unit_bytes(CUDA_FORM_F8);
        for (int o = 0; o < out; o++) {
            float scale = 0;
            for (int k = 0; k < in; k++) {
                if (k % group == 0)
                    scale = 0.001f * (1 + static_cast<float>(random_bits() % 1000) / 1000) *
                            (random_bits() % 2 ? 1.0f : -1.0f);
                unsigned char *unit = host.data() + o / QUANT_ROWS * strip + k / QUANT_VALUES * unit_bytes;
                int g = o % QUANT_ROWS, code = static_cast<int>(random_bits() % 256);
                if ((code & 0x7f) == 0x7f) code ^= 1;
                unit[g * QUANT_VALUES + f8_place(k) % QUANT_VALUES] = static_cast<unsigned char>(code);
                std::memcpy(unit + quant_scale_offset(CUDA_FORM_F8, g, k % QUANT_VALUES / QUANT_BLOCK), &scale, 4);
                values[static_cast<size_t>(o) * in + k] = e4m3_of(code);
                if (k % 128 == 0) scales[static_cast<size_t>(o) * ((in + 127) / 128) + k / 128] = scale;
            }
        }
        bytes.set(host);
    }
};

/* The exact product of row r with output o, and the sum of magnitudes. */
void exact(const rounded_rows &a, int r, const f8_matrix &w, int o, double *product, double *magnitude) {
    *product = *magnitude = 0;
    for (int k = 0; k < w.in; k++) {
        double p = static_cast<double>(a.values[static_cast<size_t>(r) * w.in + k]) *
                   w.values[static_cast<size_t>(o) * w.in + k] * a.scale[r] *
                   w.scales[static_cast<size_t>(o) * ((w.in + 127) / 128) + k / 128];
        *product += p;
        *magnitude += std::fabs(p);
    }
}

prompt_gemm_f8_args args_of(const device_array<unsigned char> &codes, const device_array<float> &scale,
                            const f8_matrix &w, void *out, int rows, prompt_gemm_output output) {
    prompt_gemm_f8_args a = {};
    a.a = codes.data;
    a.a_scale = scale.data;
    a.w = w.bytes.data;
    a.units = w.units;
    a.out = out;
    a.ldo = static_cast<size_t>(w.out);
    a.m = rows;
    a.n = w.out;
    a.output = output;
    return a;
}

void check_products() {
    static const int shapes[][3] = {{16, 32, 32},     {16, 128, 128},    {48, 96, 96},     {704, 2816, 2816},
                                    {2112, 704, 704}, {2816, 2112, 128}, {2816, 704, 128}, {144, 8192, 8192},
                                    {176, 1568, 256}, {2048, 2816, 2816}};
    for (const auto &s : shapes) {
        int out = s[0], in = s[1], most = 700;
        f8_matrix w(out, in, s[2]);
        std::vector<uint16_t> x = make_rows(most, in, false);
        rounded_rows a = round_here(x, most, in);
        size_t ld = a.codes.size() / most;
        device_array<unsigned char> codes(a.codes.size());
        device_array<float> scale(most), y(static_cast<size_t>(most) * out);
        codes.set(a.codes);
        scale.set(a.scale);
        std::vector<float> all;
        double worst = 0;
        bool same = true, inside = true;
        for (int rows : {700, 1, 2, 7, 8, 17, 31, 64, 65, 100, 128, 129, 137, 200, 255, 256, 257, 300, 513}) {
            int first = rows == 700 ? 0 : static_cast<int>(random_bits() % (700 - rows));
            y.poison();
            prompt_gemm_f8_args p = args_of(codes, scale, w, y.data, rows, PROMPT_GEMM_F32);
            p.a += first * ld;
            p.a_scale += first;
            CHECK(prompt_gemm_f8(&p, 0));
            std::vector<float> got = y.get();
            if (all.empty()) all = got;
            same &= std::memcmp(got.data(), &all[static_cast<size_t>(first) * out], sizeof(float) * rows * out) == 0;
            for (size_t i = static_cast<size_t>(rows) * out; i < got.size(); i++) inside &= got[i] != got[i];
        }
        for (int i = 0; i < 4000; i++) {
            int r = static_cast<int>(random_bits() % most), o = static_cast<int>(random_bits() % out);
            double want, magnitude, got = all[static_cast<size_t>(r) * out + o];
            exact(a, r, w, o, &want, &magnitude);
            double error = std::fabs(got - want) / (magnitude > 0 ? magnitude : 1);
            worst = error == error && error < 1 ? std::max(worst, error) : 1;
        }
        report(worst < MOST_ERROR && same && inside,
               "fp8 product, %d outputs of %d, scales of %d: error %.1e of the sum of magnitudes, %s%s", out, in, s[2],
               worst, same ? "the same bits for all row counts and places" : "BITS DIFFER",
               inside ? "" : ", WRITES OUTSIDE");
        device_array<uint16_t> z(static_cast<size_t>(most) * out);
        z.poison();
        prompt_gemm_f8_args p = args_of(codes, scale, w, z.data, most - 9, PROMPT_GEMM_BF16);
        CHECK(prompt_gemm_f8(&p, 0));
        std::vector<uint16_t> half = z.get();
        bool rounded = true;
        for (size_t i = 0; i < half.size(); i++)
            rounded &= half[i] == (i < static_cast<size_t>(most - 9) * out ? bf16_of(all[i]) : 0xffff);
        report(rounded, "the same rounded to bf16");
    }
}

/* Experts with 0, 1 and many rows have the bits of each expert alone, for all outputs. What gate and up give is what
 * their products in float32 do. */
void check_experts() {
    static const int shapes[][2] = {{704, 2816}, {2112, 704}, {16, 96}, {80, 256}},
                     counts[] = {0, 1, 300, 17, 0, 257, 64, 9};
    for (const auto &s : shapes) {
        int width = s[0], in = s[1], experts = 8;
        std::vector<int> begin(1, 0);
        for (int n : counts) begin.push_back(begin.back() + n);
        int most = begin.back();
        f8_matrix w(2 * width * experts, in, in);
        rounded_rows a = round_here(make_rows(most, in, false), most, in);
        size_t ld = a.codes.size() / most, strips = quant_strip_bytes(CUDA_FORM_F8, in) / QUANT_ROWS;
        device_array<unsigned char> codes(a.codes.size());
        device_array<float> scale(most), y(static_cast<size_t>(most) * 2 * width), alone(y.count);
        device_array<int> d_begin(begin.size());
        device_array<unsigned> counter(1);
        codes.set(a.codes);
        scale.set(a.scale);
        d_begin.set(begin);
        counter.set({0});
        std::vector<float> products;
        for (int kind = 0; kind < 4; kind++) { /* float32, bf16, gate and up, up first */
            bool gated = kind >= 2;
            prompt_gemm_f8_args p = args_of(codes, scale, w, y.data, most,
                                            gated       ? PROMPT_GEMM_GELU_BF16
                                            : kind == 1 ? PROMPT_GEMM_BF16
                                                        : PROMPT_GEMM_F32);
            p.n = gated ? width : 2 * width;
            p.ldo = static_cast<size_t>(p.n);
            if (gated) p.w_up = w.bytes.data + (kind == 2 ? width : 0) * strips;
            p.w = w.bytes.data + (kind == 3 ? width : 0) * strips;
            prompt_gemm_f8_args one = p;
            p.expert_begin = d_begin.data;
            p.experts = experts;
            p.expert_rows = 2 * width;
            p.counter = counter.data;
            y.poison();
            CHECK(prompt_gemm_f8(&p, 0));
            std::vector<float> got = y.get();
            size_t line = p.ldo * (kind ? 2 : 4); /* bytes of a row */
            bool same = counter.get()[0] == 0;
            for (int e = 0; e < experts; e++) {
                one.m = counts[e];
                if (!one.m) continue;
                one.a = p.a + begin[e] * ld;
                one.a_scale = p.a_scale + begin[e];
                one.w = static_cast<const char *>(p.w) + 2 * width * strips * e;
                one.w_up = p.w_up ? static_cast<const char *>(p.w_up) + 2 * width * strips * e : nullptr;
                one.out = alone.data;
                CHECK(prompt_gemm_f8(&one, 0));
                std::vector<float> rows = alone.get();
                same &= std::memcmp(rows.data(), reinterpret_cast<char *>(got.data()) + begin[e] * line,
                                    counts[e] * line) == 0;
            }
            if (!kind) products = got;
            double worst = 0;
            for (size_t i = 0; gated && i < static_cast<size_t>(most) * width; i++) {
                const float *row = &products[i / width * 2 * width];
                double first = row[i % width], second = row[width + i % width];
                double gate = kind == 2 ? first : second, up = kind == 2 ? second : first;
                double want =
                    0.5 * gate * (1 + std::tanh(0.797884560802865356 * (gate + 0.044715 * gate * gate * gate))) * up;
                double error = std::fabs(host_bf16(reinterpret_cast<uint16_t *>(got.data())[i]) - want) /
                               (std::fabs(want) + 1e-3 * std::fabs(up));
                worst = error == error ? std::max(worst, error) : 1e9;
            }
            report(same && worst < 1e-2, "experts of %d outputs of %d, kind %d: %s, gated %.1e", p.n, in, kind,
                   same ? "as each alone" : "BITS DIFFER FROM EACH ALONE", worst);
        }
    }
}

/* ---- times ---- */

void times() {
    enum { ROWS = 4096, EXPERTS = 128, RANK = 8, COPIES = 4 };
    static const struct {
        const char *name;
        int out, in;
        bool experts, gated;
    } cases[] = {{"q/k/v, sliding", 8192, 2816, false, false}, {"o, sliding", 2816, 4096, false, false},
                 {"o, full", 2816, 8192, false, false},        {"gate/up", 2112, 2816, false, true},
                 {"down", 2816, 2112, false, false},           {"experts gate/up", 704, 2816, true, true},
                 {"experts down", 2816, 704, true, false}};
    cuda_launch l = make_launch();
    for (const auto &c : cases) {
        int rows = c.experts ? ROWS * RANK : ROWS, outs = (c.gated ? 2 : 1) * c.out;
        size_t matrix = static_cast<size_t>(outs) / 8 * quant_strip_bytes(CUDA_FORM_F8, c.in);
        size_t bytes = matrix * (c.experts ? EXPERTS : 1);
        device_array<unsigned char> w(bytes * COPIES), codes(static_cast<size_t>(rows) * c.in);
        cuda_matrix m = {reinterpret_cast<cuda_bf16 *>(w.data), CUDA_FORM_F8,
                         static_cast<int>(bytes * COPIES / quant_strip_bytes(CUDA_FORM_F8, c.in) * 8), c.in, c.in};
        cuda_launch plain = l;
        quant_fill_random(&plain, &m, 0.02f, 1);
        device_array<uint16_t> x(static_cast<size_t>(rows) * c.in);
        randomize(x, 1.0f);
        device_array<float> scale(rows), y(static_cast<size_t>(rows) * c.out);
        std::vector<int> begin(EXPERTS + 1, 0);
        for (int e = 0; e < EXPERTS; e++) {
            int n = 128 + static_cast<int>(random_bits() % 257);
            begin[e + 1] = std::min(begin[e] + n, rows);
        }
        begin[EXPERTS] = rows;
        device_array<int> d_begin(begin.size());
        d_begin.set(begin);
        device_array<unsigned> counter(1);
        counter.set({0});
        cudaEvent_t event[3];
        for (cudaEvent_t &e : event) CHECK(cudaEventCreate(&e));
        std::vector<float> took[2];
        for (int i = 0; i < 16; i++) {
            prompt_gemm_f8_args p = {};
            p.a = codes.data;
            p.a_scale = scale.data;
            p.w = w.data + i % COPIES * bytes;
            p.w_up = c.gated ? static_cast<const char *>(p.w) + matrix / 2 : nullptr;
            p.units = quant_units(c.in);
            p.out = y.data;
            p.ldo = static_cast<size_t>(c.out);
            p.m = rows;
            p.n = c.out;
            p.output = c.gated ? PROMPT_GEMM_GELU_BF16 : c.experts ? PROMPT_GEMM_BF16 : PROMPT_GEMM_F32;
            if (c.experts) {
                p.expert_begin = d_begin.data;
                p.experts = EXPERTS;
                p.expert_rows = outs;
                p.counter = counter.data;
            }
            CHECK(cudaEventRecord(event[0]));
            f8_round_rows(&l, nullptr, x.data, c.in, c.in, codes.data, scale.data, rows);
            CHECK(cudaEventRecord(event[1]));
            CHECK(prompt_gemm_f8(&p, 0));
            CHECK(cudaEventRecord(event[2]));
            CHECK(cudaEventSynchronize(event[2]));
            for (int k = 0; k < 2; k++) {
                float ms;
                CHECK(cudaEventElapsedTime(&ms, event[k], event[k + 1]));
                if (i >= 4) took[k].push_back(ms * 1000);
            }
        }
        for (auto &t : took) std::sort(t.begin(), t.end());
        double us = took[1][took[1].size() / 2];
        std::printf("f8 %-16s %5d rows: rounded in %6.1f us, multiplied in %7.1f us, %6.0f TFLOP/s\n", c.name, rows,
                    took[0][took[0].size() / 2], us, 2.0 * rows * outs * c.in / us / 1e6);
    }
}

} /* namespace */

int main(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : "";
    if (!prompt_gemm_bulk_runs()) {
        std::printf("1..0 # SKIP this GPU has no products in FP8\n");
        return 0;
    }
    if (std::strcmp(only, "times") != 0) {
        check_rows();
        check_products();
        check_experts();
    }
    if (std::strcmp(only, "check") != 0) times();
    return failures ? 1 : 0;
}
