/* The greedy choice through int8 bounds (head.cu) against the full product and its argmax: the same ids on every head,
 * and bounds that hold. Prints one line a case, and fails with the row and both values. */
#include <functional>

#include "gpu/prompt_support.cuh"

namespace {

enum { MOST_ROWS = CUDA_DECODE_ROWS };

float bf16_value(uint16_t bits) { return host_bf16(bits); }
uint16_t to_bf16(float v) {
    unsigned bits;
    std::memcpy(&bits, &v, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint64_t random_state = 1;
float uniform() { /* in [-1, 1) */
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<float>(random_state >> 40) * 0x1p-23f - 1;
}
float normal() { return (uniform() + uniform() + uniform()); }

struct head_case {
    const char *name;
    int out, in;
    float cap, weight, row; /* deviations */
    int excluded;           /* so many of the largest ids of row 0; below 0: the id of this magnitude */
    int multiprocessors;    /* 0: all */
    bool screens;           /* few outputs are computed */
    std::function<void(std::vector<uint16_t> &w, std::vector<uint16_t> &x, int ld)> change;
};

struct head_data {
    const head_case &c;
    int ld, tiles, steps;
    std::vector<uint16_t> w, x;
    device_array<uint16_t> dw, dx;
    device_array<float> logits, upper, lower, parts;
    device_array<int8_t> codes, parts_of_rows;
    device_array<cuda_head_output> outputs;
    device_array<cuda_screen_row> rows;
    device_array<unsigned long long> best;
    device_array<unsigned> finished;
    device_array<int> indices, expected, found;
    cuda_launch launch = {};
    cuda_matrix head = {};
    cuda_head_codes copy = {};
    cuda_screen screen = {};
    cuda_excluded excluded = {};
    device_array<cuda_row> own{MOST_ROWS}; /* what rows exclude for themselves, and what they may choose: */
    device_array<uint32_t> masks;

    explicit head_data(const head_case &of)
        : c(of), ld((of.in + CUDA_K_STEP - 1) / CUDA_K_STEP * CUDA_K_STEP), tiles(cuda_head_tiles(of.out)),
          steps(cuda_head_steps(of.in)), w(static_cast<size_t>(of.out) * ld), x(static_cast<size_t>(MOST_ROWS) * ld),
          dw(w.size()), dx(x.size()), logits(static_cast<size_t>(MOST_ROWS) * of.out),
          upper(static_cast<size_t>(MOST_ROWS) * tiles * CUDA_HEAD_TILE), lower(static_cast<size_t>(MOST_ROWS) * tiles),
          parts(MOST_ROWS * CUDA_ARGMAX_PARTS),
          codes(static_cast<size_t>(tiles) * CUDA_HEAD_TILE * steps * CUDA_HEAD_STEP),
          parts_of_rows(static_cast<size_t>(CUDA_SCREEN_ROWS) * 2 * steps * CUDA_HEAD_STEP),
          outputs(tiles * CUDA_HEAD_TILE), rows(MOST_ROWS), best(MOST_ROWS), finished(1),
          indices(MOST_ROWS * CUDA_ARGMAX_PARTS), expected(MOST_ROWS), found(MOST_ROWS),
          masks(static_cast<size_t>(MOST_ROWS) * words() + 1) {
        for (int o = 0; o < c.out; o++)
            for (int k = 0; k < c.in; k++) w[static_cast<size_t>(o) * ld + k] = to_bf16(normal() * c.weight);
        for (int r = 0; r < MOST_ROWS; r++)
            for (int k = 0; k < c.in; k++) x[static_cast<size_t>(r) * ld + k] = to_bf16(normal() * c.row);
        if (c.change) c.change(w, x, ld);
        dw.set(w);
        dx.set(x);
        codes.poison();
        outputs.poison();
        cudaDeviceProp device;
        CHECK(cudaGetDeviceProperties(&device, 0));
        launch.multiprocessors = c.multiprocessors ? c.multiprocessors : device.multiProcessorCount;
        launch.programmatic = device.major >= 9;
        head = {dw.data, CUDA_FORM_BF16, c.out, c.in, ld};
        copy = {codes.data, outputs.data, c.out, steps};
        screen = {parts_of_rows.data, rows.data, upper.data, lower.data, best.data, finished.data};
        cuda_encode_head(&launch, &head, &copy);
        CHECK(cudaDeviceSynchronize());
    }

    int words() const { return (c.out + 31) / 32; }

    /* Every third row has no limits, the others may choose among some outputs, few of them or nearly all; every fourth
     * excludes the output of its own number. */
    void limit_rows() {
        static const double shares[] = {0.5, 0.02, 0.998, 0, 0.0005};
        std::vector<uint32_t> bits(static_cast<size_t>(MOST_ROWS) * words() + 1);
        std::vector<cuda_row> rows_of(MOST_ROWS);
        for (int r = 0; r < MOST_ROWS; r++) {
            if (r % 4 == 1) rows_of[r].excluded = r + 1;
            if (r % 3 == 0) continue;
            rows_of[r].allowed = masks.data + static_cast<size_t>(r) * words();
            for (int o = 0; o < c.out; o++)
                if ((uniform() + 1) / 2 < shares[r % 5])
                    bits[static_cast<size_t>(r) * words() + o / 32] |= 1u << (o % 32);
        }
        masks.set(bits);
        own.set(rows_of);
        excluded.row = own.data;
        allowed_bits = bits;
        limits = rows_of;
    }
    std::vector<uint32_t> allowed_bits;
    std::vector<cuda_row> limits;

    /* What the host makes of a row's logits under the limits. */
    int32_t limited_choice(const float *row, int r) const {
        int32_t best = -1;
        for (int o = 0; o < c.out; o++) {
            bool out = limits[r].excluded == o + 1;
            for (int e = 0; e < excluded.n; e++) out |= excluded.id[e] == o;
            if (limits[r].allowed) out |= !(allowed_bits[static_cast<size_t>(r) * words() + o / 32] >> (o % 32) & 1);
            if (out) continue;
            if (std::isnan(row[o])) return -1;
            if (best < 0 || row[o] > row[best]) best = o;
        }
        return best >= 0 && std::isinf(row[best]) ? -1 : best;
    }

    /* What the full product says of `n` rows, capped by `cap`. */
    void reference(int n, float cap) {
        cuda_product product = {dw.data, logits.data, c.out, c.out};
        cuda_products(&launch, &product, 1, c.in, dx.data, ld, n, cap);
        cuda_argmax(&launch, logits.data, c.out, &excluded, n, parts.data, indices.data, expected.data);
        CHECK(cudaDeviceSynchronize());
    }

    void choose(int n) {
        upper.poison();
        lower.poison();
        rows.poison();
        best.poison();
        finished.poison();
        found.poison();
        cuda_greedy_choice(&launch, &head, &copy, &screen, &excluded, dx.data, n, c.cap, found.data);
        CHECK(cudaDeviceSynchronize());
    }
};

bool is_excluded(const cuda_excluded &excluded, int o) {
    for (int e = 0; e < excluded.n; e++)
        if (excluded.id[e] == o) return true;
    return false;
}

/* Uncapped logits lie below their upper bounds and the largest one not below the largest lower bound. Returns the part
 * of all outputs that the bounds leave to be computed (cap 0: the widest choice is the caller's). */
bool check_bounds(head_data &d, int n, double *left) {
    d.reference(n, 0);
    std::vector<float> logits = d.logits.get(), upper = d.upper.get(), lower = d.lower.get();
    int most = d.launch.multiprocessors * 2, needed = (d.tiles + 7) / 8, blocks = needed < most ? needed : most;
    size_t remaining = 0;
    for (int r = 0; r < n; r++) {
        float least = -INFINITY, largest = -INFINITY;
        bool numbers = true;
        for (int b = 0; b < blocks; b++) least = std::max(least, lower[static_cast<size_t>(r) * blocks + b]);
        for (int o = 0; o < d.c.out; o++) {
            float bound =
                upper[(static_cast<size_t>(o / CUDA_HEAD_TILE) * n + r) * CUDA_HEAD_TILE + o % CUDA_HEAD_TILE];
            float logit = logits[static_cast<size_t>(r) * d.c.out + o];
            if (is_excluded(d.excluded, o)) continue;
            numbers &= std::isfinite(logit);
            largest = std::max(largest, logit);
            remaining += bound >= least;
            if (std::isfinite(logit) ? !(logit <= bound) : !(bound == INFINITY)) {
                std::printf("# row %d of %d, output %d: logit %.9g, upper bound %.9g\n", r, n, o, logit, bound);
                return false;
            }
        }
        if (numbers && !(least <= largest)) {
            std::printf("# row %d of %d: largest logit %.9g, lower bound %.9g\n", r, n, largest, least);
            return false;
        }
    }
    *left = static_cast<double>(remaining) / n / d.c.out;
    return true;
}

bool check_case(const head_case &c, double *left) {
    head_data d(c);
    if (c.excluded < 0) d.excluded.id[d.excluded.n++] = -c.excluded;
    for (int e = 0; e < c.excluded; e++) { /* the ids that would be chosen, one after the other */
        d.reference(1, c.cap);
        int id = d.expected.get()[0];
        if (id < 0) break;
        d.excluded.id[d.excluded.n++] = id;
    }
    *left = 1;
    for (int n = 1; n <= MOST_ROWS; n++) {
        d.choose(n);
        d.reference(n, c.cap);
        std::vector<int> expected = d.expected.get(), found = d.found.get();
        std::vector<float> logits = d.logits.get();
        for (int r = 0; r < n; r++) {
            if (found[r] == expected[r]) continue;
            const float *row = logits.data() + static_cast<size_t>(r) * c.out;
            std::printf("# row %d of %d: chosen %d (%.9g), expected %d (%.9g)\n", r, n, found[r],
                        found[r] >= 0 && found[r] < c.out ? row[found[r]] : NAN, expected[r],
                        expected[r] >= 0 ? row[expected[r]] : NAN);
            return false;
        }
        if (!check_bounds(d, n, left)) return false;
    }
    return !c.screens || *left < 0.05;
}

/* Rows with limits of their own: the screen, the argmax and the host choose alike. */
bool check_limits(const head_case &c) {
    head_data d(c);
    d.limit_rows();
    for (int n = 1; n <= MOST_ROWS; n++) {
        d.choose(n);
        d.reference(n, c.cap);
        std::vector<int> expected = d.expected.get(), found = d.found.get();
        std::vector<float> logits = d.logits.get();
        for (int r = 0; r < n; r++) {
            int32_t host = d.limited_choice(logits.data() + static_cast<size_t>(r) * c.out, r);
            if (found[r] == host && expected[r] == host) continue;
            std::printf("# limited row %d of %d: chosen %d, by the argmax %d, by the host %d\n", r, n, found[r],
                        expected[r], host);
            return false;
        }
    }
    return true;
}

using row_vector = std::vector<uint16_t>;

void copy_row(row_vector &w, int ld, int to, int from) {
    std::copy_n(w.begin() + static_cast<long>(from) * ld, ld, w.begin() + static_cast<long>(to) * ld);
}

void check_heads() {
    const uint16_t infinity = 0x7f80, nan = 0x7fc0;
    const head_case cases[] = {
        {"random, width 2816", 20011, 2816, 30, 0.02f, 1, 0, 0, true, nullptr},
        {"the draft's: no cap, one excluded", 20011, 2816, 0, 0.02f, 1, 1, 0, true, nullptr},
        {"the 17 largest excluded", 9001, 256, 30, 0.05f, 1, 17, 0, true, nullptr},
        {"many tiles a block", 30001, 256, 30, 0.05f, 1, 2, 3, true, nullptr},
        {"width 200, no multiple of a step", 1001, 200, 30, 0.1f, 1, 1, 0, false, nullptr},
        {"width 8", 333, 8, 30, 1, 1, 0, 0, false, nullptr},
        {"width 8192", 300, 8192, 30, 0.02f, 1, 1, 0, false, nullptr},
        {"one output", 1, 64, 30, 0.1f, 1, 0, 0, false, nullptr},
        {"all outputs excluded", 15, 64, 30, 0.1f, 1, 15, 0, false, nullptr},
        {"duplicates: the lowest id wins", 8000, 256, 30, 0.05f, 1, 0, 0, true,
         [](row_vector &w, row_vector &, int ld) {
             for (int o = 4000; o < 8000; o++) copy_row(w, ld, o, 7999 - o);
         }},
        {"outputs that differ in one last bit", 4099, 512, 30, 0.05f, 1, 1, 0, false,
         [](row_vector &w, row_vector &, int ld) {
             for (int o = 1; o < 4099; o++) {
                 copy_row(w, ld, o, 0);
                 w[static_cast<size_t>(o) * ld + o * 31 % 512] ^= 1;
             }
         }},
        {"logits where the cap is flat", 5000, 256, 30, 20, 1, 3, 0, false, nullptr},
        {"logits around the end of the cap", 20000, 256, 30, 1.9f, 1, 3, 0, false, nullptr},
        {"logits far below the cap", 700, 256, 30, 0.05f, 1, 0, 0, false,
         [](row_vector &w, row_vector &x, int) {
             for (uint16_t &v : w) v = to_bf16(-std::fabs(bf16_value(v)) - 2);
             for (uint16_t &v : x) v = to_bf16(std::fabs(bf16_value(v)));
         }},
        {"all outputs equal", 6000, 256, 30, 0.05f, 1, 1, 0, false,
         [](row_vector &w, row_vector &, int ld) {
             for (int o = 1; o < 6000; o++) copy_row(w, ld, o, 0);
         }},
        {"a head of zeros", 3000, 256, 30, 0, 1, 1, 0, false, nullptr},
        {"rows of zeros, of denormal and of huge numbers", 3000, 256, 30, 0.05f, 1, 0, 0, false,
         [](row_vector &, row_vector &x, int ld) {
             for (int k = 0; k < 256; k++) {
                 x[k] = 0;
                 x[ld + k] = static_cast<uint16_t>(k & 1 ? 0x8003 : k % 100);
                 x[3 * ld + k] = to_bf16(bf16_value(x[3 * ld + k]) * 1e37f);
                 x[5 * ld + k] = to_bf16(bf16_value(x[5 * ld + k]) * 1e-30f);
             }
         }},
        {"rows that are not numbers", 3000, 256, 30, 0.05f, 1, 1, 0, false,
         [=](row_vector &, row_vector &x, int ld) {
             x[2 * ld + 5] = nan;
             x[4 * ld + 255] = infinity;
             x[16 * ld] = static_cast<uint16_t>(infinity | 0x8000);
         }},
        {"outputs that are not numbers", 3000, 256, 30, 0.05f, 1, 0, 0, false,
         [=](row_vector &w, row_vector &, int ld) {
             w[static_cast<size_t>(1234) * ld + 17] = infinity;
             w[static_cast<size_t>(2999) * ld + 255] = static_cast<uint16_t>(infinity | 0x8000);
         }},
        {"an output that is not a number is excluded", 3000, 256, 30, 0.05f, 1, -777, 0, true,
         [=](row_vector &w, row_vector &, int ld) { w[static_cast<size_t>(777) * ld] = nan; }},
        {"logits that leave float32", 500, 256, 30, 1e37f, 1, 0, 0, false, nullptr},
        {"outliers in rows and outputs", 20011, 512, 30, 0.02f, 1, 1, 0, true,
         [](row_vector &w, row_vector &x, int ld) {
             for (int r = 0; r < MOST_ROWS; r++) x[static_cast<size_t>(r) * ld + 3 + r] = to_bf16(90);
             for (int o = 0; o < 20011; o += 7) w[static_cast<size_t>(o) * ld + 400] = to_bf16(0.3f);
         }},
        {"the largest elements round to the end of int8", 2000, 256, 30, 0.05f, 1, 0, 0, false,
         [](row_vector &, row_vector &x, int ld) {
             for (int r = 0; r < MOST_ROWS; r++)
                 x[static_cast<size_t>(r) * ld + r] = static_cast<uint16_t>(0x40ff - (r & 1)); /* 7.97, 7.94 */
         }},
    };
    for (const head_case &c : cases) {
        double left;
        bool passed = check_case(c, &left);
        if (passed && !c.excluded) passed = check_limits(c);
        report(passed, "greedy choice: %s [%d x %d, cap %g]: %.3g %% computed", c.name, c.out, c.in, c.cap, 100 * left);
    }
}

struct event_pair {
    cudaEvent_t start, end;
    event_pair() {
        CHECK(cudaEventCreate(&start));
        CHECK(cudaEventCreate(&end));
    }
    ~event_pair() {
        cudaEventDestroy(start);
        cudaEventDestroy(end);
    }
    template <class WORK> double median_us(cudaStream_t stream, int repeats, WORK work) {
        std::vector<float> times;
        for (int i = -2; i < repeats; i++) { /* the first ones warm up */
            float ms;
            CHECK(cudaEventRecord(start, stream));
            work();
            CHECK(cudaEventRecord(end, stream));
            CHECK(cudaEventSynchronize(end));
            CHECK(cudaEventElapsedTime(&ms, start, end));
            if (i >= 0) times.push_back(ms * 1000);
        }
        std::sort(times.begin(), times.end());
        return times[times.size() / 2];
    }
};

/* The shape of the 26B-A4B's head, of random weights or with all outputs alike, where the bounds decide nothing. */
void print_times() {
    enum { OUT = 262144, IN = 2816, REPEATS = 20 };
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    cuda_launch launch = {stream, device.multiProcessorCount, device.major >= 9, nullptr};
    int tiles = cuda_head_tiles(OUT), steps = cuda_head_steps(IN);
    device_array<uint16_t> w(static_cast<size_t>(OUT) * IN), x(static_cast<size_t>(MOST_ROWS) * IN);
    device_array<float> logits(static_cast<size_t>(MOST_ROWS) * OUT), lower(static_cast<size_t>(MOST_ROWS) * tiles),
        parts(MOST_ROWS * CUDA_ARGMAX_PARTS);
    device_array<int8_t> codes(static_cast<size_t>(OUT) * steps * CUDA_HEAD_STEP),
        parts_of_rows(static_cast<size_t>(CUDA_SCREEN_ROWS) * 2 * steps * CUDA_HEAD_STEP);
    device_array<cuda_head_output> outputs(OUT);
    device_array<cuda_screen_row> rows(MOST_ROWS);
    device_array<unsigned long long> best(MOST_ROWS);
    device_array<unsigned> finished(1);
    device_array<int> indices(MOST_ROWS * CUDA_ARGMAX_PARTS), choice(MOST_ROWS);
    cuda_matrix head = {w.data, CUDA_FORM_BF16, OUT, IN, IN};
    cuda_head_codes copy = {codes.data, outputs.data, OUT, steps};
    cuda_screen screen = {parts_of_rows.data, rows.data, logits.data, lower.data, best.data, finished.data};
    cuda_excluded excluded = {};
    event_pair events;
    cuda_fill_random(&launch, x.data, x.count, 1, 7);
    for (bool alike : {false, true}) {
        cuda_fill_random(&launch, w.data, w.count, 0.02f, 1);
        if (alike) CHECK(cudaMemsetAsync(w.data, 0x3c, w.count * sizeof(uint16_t), stream));
        cuda_encode_head(&launch, &head, &copy);
        for (int n : {1, 4, 8, 16, 17}) {
            double full = events.median_us(stream, REPEATS, [&] {
                cuda_product product = {w.data, logits.data, OUT, OUT};
                cuda_products(&launch, &product, 1, IN, x.data, IN, n, 30);
                cuda_argmax(&launch, logits.data, OUT, &excluded, n, parts.data, indices.data, choice.data);
            });
            double screened = events.median_us(stream, REPEATS, [&] {
                cuda_greedy_choice(&launch, &head, &copy, &screen, &excluded, x.data, n, 30, choice.data);
            });
            std::printf("%2d rows, %s: full product %.1f us, greedy choice %.1f us\n", n,
                        alike ? "all outputs alike" : "random weights", full, screened);
        }
    }
    CHECK(cudaStreamDestroy(stream));
}

} /* namespace */

int main(int argc, char **argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (argc > 1 && std::strcmp(argv[1], "times") == 0) {
        print_times();
        return 0;
    }
    check_heads();
    std::printf("%d failures\n", failures);
    return failures ? 1 : 0;
}
