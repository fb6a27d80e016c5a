/* The kernels of quantised weights against float64 and against the kernels of bf16 weights, and their speed.
 *
 *   quant_kernels            every check, then the table of times
 *   quant_kernels check      checks only
 *   quant_kernels times      times only
 *   quant_kernels dense      dense products of many rows in bf16 alone: checks, then times
 */
#include <array>
#include <memory>

#include "backend/cuda/quant.h"
#include "gpu/dense_products.cuh"

namespace {

uint64_t random_state = 1;
unsigned random_bits() {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<unsigned>(random_state >> 33);
}

uint16_t half_of(float v) { /* of a normal number */
    unsigned bits;
    std::memcpy(&bits, &v, sizeof bits);
    return static_cast<uint16_t>((bits >> 16 & 0x8000u) | (((bits >> 23 & 255) - 112) << 10) | (bits >> 13 & 1023));
}

float float_of(uint16_t half) {
    float v = std::ldexp(1024.0f + (half & 1023), (half >> 10 & 31) - 25);
    return half & 0x8000 ? -v : v;
}

uint16_t bf16_of(float v) {
    unsigned bits;
    std::memcpy(&bits, &v, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct form_case {
    cuda_form form;
    const char *name;
};
const form_case forms[] = {{CUDA_FORM_Q4, "q4"}, {CUDA_FORM_Q8, "q8"}, {CUDA_FORM_A4, "a4"}, {CUDA_FORM_A8, "a8"},
                           {CUDA_FORM_G8, "g8"}, {CUDA_FORM_F8, "f8"}, {CUDA_FORM_S4, "s4"}, {CUDA_FORM_G4, "g4"}};
const char *name_of(cuda_form form) { return forms[form - CUDA_FORM_Q4].name; }

float e4m3_of(int code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    float v = exponent ? std::ldexp(8.0f + static_cast<float>(mantissa), exponent - 10)
                       : std::ldexp(static_cast<float>(mantissa), -9);
    return code & 0x80 ? -v : v;
}

/* What a code counts, apart from scale and offset. */
float value_of(cuda_form form, int code) {
    switch (form) {
    case CUDA_FORM_Q4:
    case CUDA_FORM_S4:
        return static_cast<float>(code - 8);
    case CUDA_FORM_G4: {
        const float twice[] = {0, 1, 2, 3, 4, 6, 8, 12};
        return code & 8 ? -twice[code & 7] : twice[code & 7];
    }
    case CUDA_FORM_A4:
    case CUDA_FORM_A8:
        return static_cast<float>(code);
    case CUDA_FORM_F8:
        return e4m3_of(code);
    default:
        return static_cast<float>(static_cast<signed char>(code));
    }
}

/* A random matrix: its bytes on the device and its values here. */
struct quant_matrix {
    int out, in, ld;
    std::vector<float> values;
    device_array<unsigned char> bytes;
    cuda_matrix matrix;

    /* powers: scales are powers of two, so that values are bf16; one_scale: those of a row are equal. */
    quant_matrix(cuda_form form, int out, int in, bool powers, bool one_scale = false)
        : out(out), in(in), ld(cuda_padded(in)), values(static_cast<size_t>(out) * in),
          bytes((out + QUANT_ROWS - 1) / QUANT_ROWS * quant_strip_bytes(form, ld)) {
        std::vector<unsigned char> host(bytes.count);
        for (int strip = 0; strip * QUANT_ROWS < out; strip++) {
            for (int unit = 0; unit < quant_units(ld); unit++) {
                unsigned char *to = host.data() + strip * quant_strip_bytes(form, ld) +
                                    static_cast<size_t>(unit) * quant_unit_bytes(form);
                for (int at = 0; at < QUANT_ROWS * QUANT_VALUES; at++)
                    put(form, to, strip * QUANT_ROWS + at / QUANT_VALUES, unit * QUANT_VALUES + at % QUANT_VALUES,
                        powers, one_scale);
            }
        }
        bytes.set(host);
        matrix = {reinterpret_cast<cuda_bf16 *>(bytes.data), form, out, in, ld, one_scale};
    }

    void put(cuda_form form, unsigned char *unit, int row, int k, bool powers, bool one_scale) {
        bool there = row < out && k < in, affine = form == CUDA_FORM_A4 || form == CUDA_FORM_A8;
        bool halves = form == CUDA_FORM_Q4 || form == CUDA_FORM_Q8;
        int g = row % QUANT_ROWS, block = k % QUANT_VALUES / QUANT_BLOCK, in_block = k % QUANT_BLOCK;
        unsigned char *scale = unit + quant_scale_offset(form, g, block);
        if (quant_is_halved(form)) scale += in_block / 16 * sizeof(float);
        if (in_block % (quant_is_halved(form) ? 16 : QUANT_BLOCK) == 0) {
            float s = powers ? std::ldexp(1.0f, -9 - static_cast<int>(random_bits() % 3))
                             : 0.001f * (1 + static_cast<float>(random_bits() % 1000) / 1000);
            float o = powers ? (form == CUDA_FORM_A4 ? -8 : -128) * s
                             : 0.01f * (static_cast<float>(random_bits() % 2001) / 1000 - 1);
            s = there ? (random_bits() % 2 && !powers ? s : affine ? s : -s) : 0;
            if (!there) o = 0;
            if (one_scale && there) s = std::ldexp(powers ? 1 : 1.3f, -9 - row % 3);
            uint16_t half = there ? half_of(s) : 0;
            if (halves) std::memcpy(scale, &half, 2);
            if (!halves) std::memcpy(scale, &s, 4);
            if (affine) std::memcpy(scale + 4, &o, 4);
        }
        float s, o = 0;
        uint16_t half;
        std::memcpy(&half, scale, 2);
        std::memcpy(&s, scale, 4);
        if (halves) s = float_of(half);
        if (affine) std::memcpy(&o, scale + 4, 4);
        int code = static_cast<int>(random_bits() % (quant_is_narrow(form) ? 16 : 256));
        if (!there) code = form == CUDA_FORM_Q4 || form == CUDA_FORM_S4 ? 8 : 0;
        if (form == CUDA_FORM_F8 && (code & 0x7f) == 0x7f) code ^= 1;
        unsigned char *lane = unit + quant_lane_offset(form, g * 4 + quant_lane(form, in_block));
        int j = quant_place(form, in_block);
        if (quant_is_narrow(form)) {
            unsigned word;
            std::memcpy(&word, lane + 4 * block, 4);
            word |= static_cast<unsigned>(code) << quant_q4_shift(j);
            std::memcpy(lane + 4 * block, &word, 4);
        } else {
            lane[8 * block + quant_q8_byte(j)] = static_cast<unsigned char>(code);
        }
        volatile float product = s * value_of(form, code); /* no fma */
        if (there) values[static_cast<size_t>(row) * in + k] = affine ? product + o : product;
    }

    std::vector<uint16_t> rounded() const {
        std::vector<uint16_t> r(static_cast<size_t>(out) * ld);
        for (int o = 0; o < out; o++)
            for (int k = 0; k < in; k++)
                r[static_cast<size_t>(o) * ld + k] = bf16_of(values[static_cast<size_t>(o) * in + k]);
        return r;
    }
};

/* Rows behind the last of x are NaN: nothing may read them. */
void check_products(cuda_form form) {
    static const int shapes[][2] = {{16, 32},    {8, 96},      {40, 64},    {100, 256}, {704, 704},
                                    {264, 2112}, {2048, 2816}, {176, 4096}, {96, 8192}, {20, 1568}};
    for (const auto &s : shapes) {
        int out = s[0], in = s[1], most = 70;
        quant_matrix w(form, out, in, false);
        std::vector<uint16_t> x(static_cast<size_t>(most) * w.ld, 0xffff);
        for (int r = 0; r < most; r++)
            for (int k = 0; k < w.ld; k++)
                x[static_cast<size_t>(r) * w.ld + k] =
                    k < in ? bf16_of(static_cast<float>(random_bits() % 2001) / 1000 - 1) : 0;
        device_array<float> y(static_cast<size_t>(most) * out);
        std::vector<float> alone(y.count);
        double worst = 0;
        bool same = true;
        for (int rows : {1, 2, 3, 8, 9, 16, 17, 24, 25, 33, 70, -33, -45, -70}) {
            cuda_launch l = make_launch(0, true, rows < 0);
            if (rows < 0) l.multiprocessors = 1;
            rows = std::abs(rows);
            std::vector<uint16_t> some(static_cast<size_t>(rows) * w.ld + 64, 0xffff);
            std::copy(x.begin(), x.begin() + static_cast<long>(rows) * w.ld, some.begin());
            device_array<uint16_t> dx(some.size());
            dx.set(some);
            y.poison();
            cuda_product product = {w.matrix.data, y.data, out, out};
            quant_products(&l, form, &product, 1, in, dx.data, w.ld, rows, 0);
            CHECK(cudaGetLastError());
            std::vector<float> got = y.get();
            for (int r = 0; r < rows; r++) {
                if (rows == 1) std::copy(got.begin(), got.begin() + out, alone.begin());
                /* Row 0 is compared with itself alone; each other with what it first was. */
                for (int o = 0; o < out; o++) {
                    size_t at = static_cast<size_t>(r) * out + o;
                    if (alone[at] == 0) alone[at] = got[at];
                    same &= std::memcmp(&alone[at], &got[at], 4) == 0;
                    double want = 0, sum = 0;
                    for (int k = 0; k < in && (rows <= 3 || rows == 70); k++) {
                        double p = static_cast<double>(host_bf16(x[static_cast<size_t>(r) * w.ld + k])) *
                                   w.values[static_cast<size_t>(o) * in + k];
                        want += p;
                        sum += std::fabs(p);
                    }
                    if (rows > 3 && rows != 70) continue;
                    double error = std::fabs(got[at] - want) / (sum > 0 ? sum : 1);
                    worst = error == error && error < 1 ? std::max(worst, error) : 1;
                }
            }
            if (rows == 1) {
                /* Every other row alone, too. */
                for (int r = 1; r < most; r += 7) {
                    std::vector<uint16_t> one(x.begin() + static_cast<long>(r) * w.ld,
                                              x.begin() + static_cast<long>(r + 1) * w.ld);
                    one.resize(one.size() + 64, 0xffff);
                    dx.set(std::vector<uint16_t>(one.begin(), one.begin() + w.ld));
                    quant_products(&l, form, &product, 1, in, dx.data, w.ld, 1, 0);
                    got = y.get();
                    std::copy(got.begin(), got.begin() + out, alone.begin() + static_cast<long>(r) * out);
                }
            }
        }
        report(worst < 2e-6 && same, "%s product, %d outputs of %d: error %.1e of the sum of magnitudes, %s",
               name_of(form), out, in, worst, same ? "the same bits for all row counts" : "bits differ by row count");
    }
}

/* Products that read one scale of a row have the bits of those that read all. */
void check_one_scale() {
    cuda_launch l = make_launch(0, true);
    for (const auto &s : {std::array<int, 2>{264, 2112}, {2048, 2816}, {176, 4096}, {20, 1568}, {8, 96}}) {
        int out = s[0], in = s[1];
        quant_matrix w(CUDA_FORM_F8, out, in, false, true);
        device_array<uint16_t> x(static_cast<size_t>(33) * w.ld);
        randomize(x, 1.0f);
        device_array<float> y(static_cast<size_t>(33) * out);
        bool same = true;
        for (int rows : {1, 8, 9, 17, 33}) {
            std::vector<float> results[2];
            for (bool one_scale : {false, true}) {
                y.poison();
                cuda_product product = {w.matrix.data, y.data, out, out, one_scale};
                quant_products(&l, CUDA_FORM_F8, &product, 1, in, x.data, w.ld, rows, 0);
                results[one_scale] = y.get();
            }
            same &= std::memcmp(results[0].data(), results[1].data(), sizeof(float) * rows * out) == 0;
        }
        report(same, "f8 product with one scale a row, %d outputs of %d: the bits of all scales", out, in);
    }
}

void check_expansion(cuda_form form) {
    for (int in : {32, 96, 704, 2816}) {
        quant_matrix w(form, 48, in, false);
        device_array<uint16_t> out(static_cast<size_t>(48) * w.ld);
        out.poison();
        cuda_launch l = make_launch(0, true);
        quant_expand(&l, &w.matrix, 48, out.data);
        report(out.get() == w.rounded(), "%s in bf16, width %d", name_of(form), in);
        /* Experts of 16 rows, of which 1 has no rows. */
        device_array<int> begin(4);
        begin.set({0, 3, 3, 5});
        cuda_route route = {};
        route.begin = begin.data;
        route.experts = 3;
        out.poison();
        quant_expand_experts(&l, &w.matrix, 16, &route, 1, 2, out.data);
        std::vector<uint16_t> got = out.get(), want = w.rounded();
        bool second = std::equal(got.begin() + 16L * w.ld, got.begin() + 32L * w.ld, want.begin() + 32L * w.ld);
        bool first = std::all_of(got.begin(), got.begin() + 16L * w.ld, [](uint16_t v) { return v == 0xffff; });
        report(first && second, "%s experts in bf16, width %d", name_of(form), in);
    }
}

/* Feed-forward blocks against those of bf16 weights with the same values. */
void check_feed_forward(cuda_form form, bool one_scale = false) {
    enum { EXPERTS = 12, RANK = 3, HIDDEN = 256, DENSE = 160, WIDTH = 96 };
    cuda_launch l = make_launch(0, true);
    quant_matrix gate(form, DENSE, HIDDEN, true, one_scale), up(form, DENSE, HIDDEN, true, one_scale),
        down(form, HIDDEN, DENSE, true, one_scale), experts(form, EXPERTS * 2 * WIDTH, HIDDEN, true, one_scale),
        experts_down(form, EXPERTS * HIDDEN, WIDTH, true, one_scale);
    std::vector<quant_matrix *> all = {&gate, &up, &down, &experts, &experts_down};
    std::vector<device_array<uint16_t> *> wide;
    for (quant_matrix *m : all) {
        wide.push_back(new device_array<uint16_t>(static_cast<size_t>(m->out) * m->ld));
        wide.back()->set(m->rounded());
    }
    for (int rows : {1, 4, 17}) {
        int slots = rows * RANK;
        std::vector<int> active, begin, counts, slot_row;
        for (int e = 0; e < EXPERTS; e++) { /* row r takes experts (5 r + 4 i) % EXPERTS */
            int first = static_cast<int>(slot_row.size());
            for (int r = 0; r < rows; r++)
                for (int i = 0; i < RANK; i++)
                    if ((5 * r + 4 * i) % EXPERTS == e) slot_row.push_back(r);
            if (static_cast<int>(slot_row.size()) == first) continue;
            active.push_back(e);
            begin.push_back(first);
            counts.push_back(static_cast<int>(slot_row.size()) - first);
        }
        device_array<int> d_active(active.size()), d_begin(begin.size()), d_counts(counts.size()),
            d_rows(slot_row.size()), d_count(1);
        d_active.set(active);
        d_begin.set(begin);
        d_counts.set(counts);
        d_rows.set(slot_row);
        d_count.set({static_cast<int>(active.size())});
        cuda_route route = {};
        route.slot_row = d_rows.data;
        route.active = d_active.data;
        route.active_begin = d_begin.data;
        route.active_rows = d_counts.data;
        route.active_count = d_count.data;
        route.experts = EXPERTS;
        route.rank = RANK;
        device_array<uint16_t> x(static_cast<size_t>(rows) * HIDDEN);
        randomize(x, 0.5f);
        std::vector<float> results[2][2];
        for (int quantised = 0; quantised < 2; quantised++) {
            device_array<uint16_t> act(static_cast<size_t>(rows) * DENSE),
                act_experts(static_cast<size_t>(slots) * WIDTH);
            device_array<float> y(static_cast<size_t>(rows) * HIDDEN), y_experts(static_cast<size_t>(slots) * HIDDEN);
            y.poison();
            y_experts.poison();
            CHECK(cudaMemset(act.data, 0, act.count * 2));
            CHECK(cudaMemset(act_experts.data, 0, act_experts.count * 2));
            cuda_matrix m[5];
            for (int i = 0; i < 5; i++) {
                m[i] = all[i]->matrix;
                if (quantised) continue;
                m[i].form = CUDA_FORM_BF16;
                m[i].data = wide[i]->data;
            }
            cuda_feed_forward f = {
                m[0],   m[1],           m[2], m[3], m[4], WIDTH, x.data, x.data, HIDDEN, act.data, act_experts.data,
                y.data, y_experts.data, 0};
            if (quantised) {
                quant_gate_up(&l, &f, &route, rows);
                quant_down(&l, &f, &route, rows);
            } else {
                cuda_gate_up(&l, &f, &route, rows);
                cuda_down(&l, &f, &route, rows);
            }
            CHECK(cudaGetLastError());
            results[quantised][0] = y.get();
            results[quantised][1] = y_experts.get();
        }
        for (int part = 0; part < 2; part++) {
            double error = relative_error(results[1][part], results[0][part]);
            report(error < 2e-3, "%s feed forward, %d rows, %s: %.1e from the same weights in bf16", name_of(form),
                   rows, part ? "experts" : "dense", error);
        }
    }
    for (device_array<uint16_t> *w : wide) delete w;
}

/* Where rows of a pass go: random experts, or, skewed, half of all choices to the first RANK. */
struct many_route {
    std::vector<int> begin, active, active_begin, active_rows, slot_row;
    device_array<int> d_begin, d_active, d_active_begin, d_active_rows, d_slot_row, d_count, d_row_count;
    cuda_route route = {};

    static std::vector<std::vector<int>> choose(int rows, int rank, int experts, bool skewed) {
        std::vector<std::vector<int>> of(static_cast<size_t>(experts));
        for (int r = 0; r < rows; r++) {
            std::vector<char> taken(static_cast<size_t>(experts));
            for (int i = 0; i < rank; i++) {
                int e = skewed && r % 2 ? i : static_cast<int>(random_bits()) % experts;
                while (taken[e]) e = (e + 1) % experts;
                taken[e] = 1;
                of[e].push_back(r);
            }
        }
        return of;
    }
    static std::vector<int> starts(const std::vector<std::vector<int>> &of) {
        std::vector<int> b(1);
        for (const auto &rows : of) b.push_back(b.back() + static_cast<int>(rows.size()));
        return b;
    }
    static int units(const std::vector<std::vector<int>> &of) {
        int n = 0;
        for (const auto &rows : of) n += (static_cast<int>(rows.size()) + CUDA_EXPERT_ROWS - 1) / CUDA_EXPERT_ROWS;
        return n;
    }
    explicit many_route(const std::vector<std::vector<int>> &of, int rank)
        : begin(starts(of)), d_begin(begin.size()), d_active(units(of)), d_active_begin(units(of)),
          d_active_rows(units(of)), d_slot_row(begin.back()), d_count(1), d_row_count(1) {
        for (size_t e = 0; e < of.size(); e++) {
            slot_row.insert(slot_row.end(), of[e].begin(), of[e].end());
            for (int at = begin[e]; at < begin[e + 1]; at += CUDA_EXPERT_ROWS) {
                active.push_back(static_cast<int>(e));
                active_begin.push_back(at);
                active_rows.push_back(std::min<int>(begin[e + 1] - at, CUDA_EXPERT_ROWS));
            }
        }
        d_begin.set(begin);
        d_active.set(active);
        d_active_begin.set(active_begin);
        d_active_rows.set(active_rows);
        d_slot_row.set(slot_row);
        d_count.set({static_cast<int>(active.size())});
        d_row_count.set({begin.back() / rank});
        route.row_count = d_row_count.data;
        route.begin = d_begin.data;
        route.active = d_active.data;
        route.active_begin = d_active_begin.data;
        route.active_rows = d_active_rows.data;
        route.active_count = d_count.data;
        route.slot_row = d_slot_row.data;
        route.experts = static_cast<int>(of.size());
        route.rank = rank;
    }
};

/* Feed-forward blocks of many rows: the bits of the kernels for few. in_bf16: with bf16 weights of the form's values.
 */
void check_many_rows(cuda_form form, bool in_bf16 = false) {
    enum { EXPERTS = 12, RANK = 3 };
    static const int shapes[][3] = {{256, 160, 96}, {1568, 704, 104}, {2816, 40, 704}}; /* hidden, dense, experts */
    for (const auto &s : shapes) {
        const int hidden = s[0], dense = s[1], width = s[2];
        quant_matrix gate(form, dense, hidden, false), up(form, dense, hidden, false), down(form, hidden, dense, false),
            experts(form, EXPERTS * 2 * width, hidden, false), experts_down(form, EXPERTS * hidden, width, false);
        const quant_matrix *all[] = {&gate, &up, &down, &experts, &experts_down};
        std::vector<std::unique_ptr<device_array<uint16_t>>> wide;
        cuda_matrix m[5];
        for (int i = 0; i < 5; i++) {
            m[i] = all[i]->matrix;
            if (!in_bf16) continue;
            wide.push_back(std::make_unique<device_array<uint16_t>>(static_cast<size_t>(all[i]->out) * all[i]->ld));
            wide.back()->set(all[i]->rounded());
            m[i].data = wide.back()->data;
            m[i].form = CUDA_FORM_BF16;
        }
        for (int rows : {33, 70, 140, 256}) {
            many_route to(many_route::choose(rows, RANK, EXPERTS, rows == 70 || rows == 140), RANK);
            const int slots = rows * RANK;
            device_array<uint16_t> x(static_cast<size_t>(rows) * hidden);
            randomize(x, 0.5f);
            std::vector<float> y[2][2];
            std::vector<uint16_t> acts[2][2];
            for (int many = 0; many < 2; many++) {
                cuda_launch l = make_launch(0, true, many);
                if (many) l.multiprocessors = 1;
                device_array<uint16_t> act(static_cast<size_t>(rows) * down.ld),
                    act_experts(static_cast<size_t>(slots) * experts_down.ld);
                device_array<float> out(static_cast<size_t>(rows) * hidden),
                    out_experts(static_cast<size_t>(slots) * hidden);
                out.poison();
                out_experts.poison();
                CHECK(cudaMemset(act.data, 0, act.count * 2));
                CHECK(cudaMemset(act_experts.data, 0, act_experts.count * 2));
                cuda_feed_forward f = {m[0],
                                       m[1],
                                       m[2],
                                       m[3],
                                       m[4],
                                       width,
                                       x.data,
                                       x.data,
                                       hidden,
                                       act.data,
                                       act_experts.data,
                                       out.data,
                                       out_experts.data,
                                       0};
                (in_bf16 ? cuda_gate_up : quant_gate_up)(&l, &f, &to.route, rows);
                (in_bf16 ? cuda_down : quant_down)(&l, &f, &to.route, rows);
                CHECK(cudaDeviceSynchronize());
                acts[many][0] = act.get();
                acts[many][1] = act_experts.get();
                y[many][0] = out.get();
                y[many][1] = out_experts.get();
            }
            for (int part = 0; part < 2; part++)
                report(acts[0][part] == acts[1][part] &&
                           std::memcmp(y[0][part].data(), y[1][part].data(), y[0][part].size() * sizeof(float)) == 0,
                       "%s feed forward of %d, %d rows, %s: the bits of kernels for few rows",
                       in_bf16 ? "bf16" : name_of(form), hidden, rows, part ? "experts" : "dense");
        }
    }
}

/* ---- times: a graph of 30 launches on weights of their own, of one row, eight and sixteen ---- */

void times(cuda_form form, bool one_scale = false) {
    enum { COPIES = 30 };
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    cuda_launch l = make_launch(stream, true);
    static const struct {
        const char *name;
        int out, in;
    } cases[] = {
        {"q/k/v, sliding", 8192, 2816}, {"o, sliding", 2816, 4096}, {"o, full", 2816, 8192}, {"head", 262144, 2816}};
    for (const auto &c : cases) {
        int copies = c.out > 100000 ? 2 : COPIES;
        size_t bytes = static_cast<size_t>(c.out) / 8 * quant_strip_bytes(form, c.in);
        device_array<unsigned char> w(bytes * copies);
        cuda_matrix m = {reinterpret_cast<cuda_bf16 *>(w.data), form, c.out * copies, c.in, c.in};
        quant_fill_random(&l, &m, 0.02f, 1);
        device_array<uint16_t> x(static_cast<size_t>(17) * c.in);
        randomize(x, 1.0f);
        device_array<float> y(static_cast<size_t>(17) * c.out);
        CHECK(cudaDeviceSynchronize());
        std::printf("%s%s %-15s", name_of(form), one_scale ? " one scale" : "", c.name);
        for (int rows : {1, 8, 16}) {
            double us = microseconds(stream, copies, [&](int i) {
                cuda_product p = {reinterpret_cast<cuda_bf16 *>(w.data + static_cast<size_t>(i) * bytes), y.data, c.out,
                                  c.out, one_scale};
                quant_products(&l, form, &p, 1, c.in, x.data, c.in, rows, 0);
            });
            std::printf("  %2d rows %7.2f us %5.0f GB/s", rows, us, static_cast<double>(bytes) / us / 1e3);
        }
        std::printf("\n");
    }
    /* A layer's feed-forward block: 8 of 128 experts, the same in every copy. */
    enum { EXPERTS = 128, RANK = 8, HIDDEN = 2816, DENSE = 2112, WIDTH = 704, LAYERS = 4 };
    size_t sizes[5] = {DENSE / 8 * quant_strip_bytes(form, HIDDEN), DENSE / 8 * quant_strip_bytes(form, HIDDEN),
                       HIDDEN / 8 * quant_strip_bytes(form, DENSE),
                       static_cast<size_t>(EXPERTS) * 2 * WIDTH / 8 * quant_strip_bytes(form, HIDDEN),
                       static_cast<size_t>(EXPERTS) * HIDDEN / 8 * quant_strip_bytes(form, WIDTH)};
    size_t all = sizes[0] + sizes[1] + sizes[2] + sizes[3] + sizes[4];
    device_array<unsigned char> w(all * LAYERS);
    CHECK(cudaMemset(w.data, 0x11, w.count));
    device_array<uint16_t> x(17 * HIDDEN), act(17 * DENSE), act_experts(17 * RANK * WIDTH);
    device_array<float> y(17 * HIDDEN), y_experts(17 * RANK * HIDDEN);
    randomize(x, 1.0f);
    device_array<int> active(EXPERTS), begin(EXPERTS), counts(EXPERTS), slot_row(17 * RANK), count(1);
    for (int part = 0; part < 2; part++) {
        std::printf("%s%s %-15s", name_of(form), one_scale ? " one scale" : "", part ? "down" : "gate/up");
        for (int rows : {1, 8, 16}) {
            int n = std::min<int>(rows * RANK, 80); /* experts with rows */
            std::vector<int> a(EXPERTS), b(EXPERTS), c(EXPERTS), s(17 * RANK);
            for (int i = 0, slot = 0; i < n; i++) {
                a[i] = i * EXPERTS / n;
                b[i] = slot;
                c[i] = rows * RANK / n + (i < rows * RANK % n);
                for (int k = 0; k < c[i]; k++) s[slot++] = (i + k) % rows;
            }
            active.set(a);
            begin.set(b);
            counts.set(c);
            slot_row.set(s);
            count.set({n});
            cuda_route route = {};
            route.slot_row = slot_row.data;
            route.active = active.data;
            route.active_begin = begin.data;
            route.active_rows = counts.data;
            route.active_count = count.data;
            route.experts = EXPERTS;
            route.rank = RANK;
            double read = static_cast<double>(n) / EXPERTS * sizes[3 + part] + (part ? sizes[2] : sizes[0] + sizes[1]);
            double us = microseconds(stream, COPIES, [&](int i) {
                unsigned char *at = w.data + all * (i % LAYERS);
                cuda_matrix m[5];
                const int outs[5] = {DENSE, DENSE, HIDDEN, EXPERTS * 2 * WIDTH, EXPERTS * HIDDEN},
                          ins[5] = {HIDDEN, HIDDEN, DENSE, HIDDEN, WIDTH};
                for (int k = 0; k < 5; k++) {
                    m[k] = {reinterpret_cast<cuda_bf16 *>(at), form, outs[k], ins[k], ins[k], one_scale};
                    at += sizes[k];
                }
                cuda_feed_forward f = {
                    m[0],   m[1],           m[2], m[3], m[4], WIDTH, x.data, x.data, HIDDEN, act.data, act_experts.data,
                    y.data, y_experts.data, 0};
                if (part)
                    quant_down(&l, &f, &route, rows);
                else
                    quant_gate_up(&l, &f, &route, rows);
            });
            std::printf("  %2d rows %7.2f us %5.0f GB/s", rows, us, read / us / 1e3);
        }
        std::printf("\n");
    }
    CHECK(cudaStreamDestroy(stream));
}

/* Many rows: kernels for few, and those for many. */
void many_times(cuda_form form) {
    enum { COPIES = 8, MOST = 256, EXPERTS = 128, RANK = 8, HIDDEN = 2816, DENSE = 2112, WIDTH = 704 };
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    static const struct {
        const char *name;
        int out, in;
    } cases[] = {{"q/k/v, sliding", 8192, 2816}, {"o, sliding", 2816, 4096}, {"head", 262144, 2816}};
    auto compare = [&](int rows, int copies, const std::function<void(const cuda_launch &, int)> &run) {
        double us[2];
        for (int many = 0; many < 2; many++) {
            cuda_launch l = make_launch(stream, true, many);
            us[many] = microseconds(stream, copies, [&](int i) { run(l, i); });
        }
        std::printf("  %3d rows %7.1f %7.1f us", rows, us[0], us[1]);
    };
    for (const auto &c : cases) {
        size_t bytes = static_cast<size_t>(c.out) / 8 * quant_strip_bytes(form, c.in);
        int copies = c.out > 100000 ? 1 : COPIES;
        device_array<unsigned char> w(bytes * copies);
        CHECK(cudaMemset(w.data, 0x11, w.count));
        device_array<uint16_t> x(static_cast<size_t>(MOST + 1) * c.in);
        randomize(x, 1.0f);
        device_array<float> y(static_cast<size_t>(MOST) * c.out);
        std::printf("%s many %-15s", name_of(form), c.name);
        for (int rows : {34, 64, 128, 256})
            compare(rows, copies, [&](const cuda_launch &l, int i) {
                cuda_product p = {reinterpret_cast<cuda_bf16 *>(w.data + static_cast<size_t>(i) * bytes), y.data, c.out,
                                  c.out, false};
                quant_products(&l, form, &p, 1, c.in, x.data, c.in, rows, 0);
            });
        std::printf("\n");
    }
    size_t sizes[5] = {DENSE / 8 * quant_strip_bytes(form, HIDDEN), DENSE / 8 * quant_strip_bytes(form, HIDDEN),
                       HIDDEN / 8 * quant_strip_bytes(form, DENSE),
                       static_cast<size_t>(EXPERTS) * 2 * WIDTH / 8 * quant_strip_bytes(form, HIDDEN),
                       static_cast<size_t>(EXPERTS) * HIDDEN / 8 * quant_strip_bytes(form, WIDTH)};
    size_t all = sizes[0] + sizes[1] + sizes[2] + sizes[3] + sizes[4];
    device_array<unsigned char> w(all * COPIES);
    CHECK(cudaMemset(w.data, 0x11, w.count));
    device_array<uint16_t> x(MOST * HIDDEN), act(MOST * DENSE), act_experts(MOST * RANK * WIDTH);
    device_array<float> y(MOST * HIDDEN), y_experts(MOST * RANK * HIDDEN);
    randomize(x, 1.0f);
    randomize(act, 1.0f);
    randomize(act_experts, 1.0f);
    static const char *const names[] = {"gate/up, dense", "gate/up, experts", "down, dense", "down, experts"};
    for (int part = 0; part < 4; part++) {
        std::printf("%s many %-16s", name_of(form), names[part]);
        for (int rows : {34, 64, 128, 256}) {
            many_route to(many_route::choose(rows, RANK, EXPERTS, false), RANK);
            compare(rows, COPIES, [&](const cuda_launch &l, int i) {
                unsigned char *at = w.data + all * static_cast<size_t>(i);
                cuda_matrix m[5];
                const int outs[5] = {DENSE, DENSE, HIDDEN, EXPERTS * 2 * WIDTH, EXPERTS * HIDDEN},
                          ins[5] = {HIDDEN, HIDDEN, DENSE, HIDDEN, WIDTH};
                for (int k = 0; k < 5; k++) {
                    m[k] = {reinterpret_cast<cuda_bf16 *>((k < 3) == (part % 2 == 0) ? at : nullptr),
                            form,
                            outs[k],
                            ins[k],
                            ins[k],
                            false};
                    at += sizes[k];
                }
                cuda_feed_forward f = {
                    m[0],   m[1],           m[2], m[3], m[4], WIDTH, x.data, x.data, HIDDEN, act.data, act_experts.data,
                    y.data, y_experts.data, 0};
                if (part < 2)
                    quant_gate_up(&l, &f, &to.route, rows);
                else
                    quant_down(&l, &f, &to.route, rows);
            });
        }
        std::printf("\n");
    }
    CHECK(cudaStreamDestroy(stream));
}

} /* namespace */

int main(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : "";
    CHECK(cuda_products_wide_prepare());
    if (std::strcmp(only, "times") != 0) check_dense();
    if (std::strcmp(only, "check") != 0) dense_times();
    if (std::strcmp(only, "dense") == 0) return failures ? 1 : 0;
    if (std::strcmp(only, "times") != 0) check_many_rows(CUDA_FORM_Q8, true);
    for (const form_case &c : forms) {
        if (std::strcmp(only, "times") != 0) {
            check_products(c.form);
            check_expansion(c.form);
            check_feed_forward(c.form);
            check_many_rows(c.form);
            if (c.form == CUDA_FORM_F8) {
                check_one_scale();
                check_feed_forward(c.form, true);
            }
        }
        if (std::strcmp(only, "check") != 0) times(c.form);
        if (std::strcmp(only, "check") != 0) many_times(c.form);
        if (std::strcmp(only, "check") != 0 && c.form == CUDA_FORM_F8) times(c.form, true);
    }
    return failures ? 1 : 0;
}
