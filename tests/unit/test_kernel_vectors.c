/* Functions on vectors in every kernel table: within rounding of a double-precision reference, and the same bits where
 * two ways lead to one result. */
#include "kernel_operands.h"

static const int odd_sizes[] = {1, 7, 31, 33, 100, 704, 2816};

/* exp has no entry of its own: attention with one key after another shows it as the factor of l. */
static double exp_through_attention(const cpu_kernels *kernels, float x) {
    float k[ATTENTION_BLOCK] = {0}, v[ATTENTION_BLOCK] = {0}, q = 1.0f, m = x, l = 1.0f, o = 0.0f;
    int lo = 0, hi = 1;
    void *packed = packed_queries(kernels, KV_FORMAT_F32, &q, 1, 1, 1);
    v[0] = 0.0f;
    kernels->attend_block(1, &lo, &hi, packed, 1, KV_FORMAT_F32, k, 4, 1, KV_FORMAT_F32, v, 4, NULL, &m, &l, &o, 1);
    free(packed);
    return (double)l - 1.0; /* the key itself has weight 1 */
}

static void exp_is_accurate(void **state) {
    (void)state;
    FOR_FLOAT_TABLES(kernels) {
        if (exp_through_attention(kernels, 0.0f) != 1.0) fail_msg("exp(0), table %s: not exactly 1", kernels->name);
        if (exp_through_attention(kernels, -INFINITY) != 0.0)
            fail_msg("exp(-inf), table %s: not exactly 0", kernels->name);
        /* The key's weight against an old maximum far above: l = 1 + exp(-d), o = exp(-d) exactly as rounded. */
        for (float d = 0.0f; d < 110.0f; d += 0.0371f) {
            float k[ATTENTION_BLOCK] = {0}, v[ATTENTION_BLOCK] = {0}, q = 1.0f, m = d, l = 0.0f, o = 0.0f;
            int lo = 3, hi = 4;
            v[3] = 1.0f;
            void *packed = packed_queries(kernels, KV_FORMAT_F32, &q, 1, 1, 1);
            kernels->attend_block(1, &lo, &hi, packed, 1, KV_FORMAT_F32, k, 4, 1, KV_FORMAT_F32, v, 4, NULL, &m, &l, &o,
                                  1);
            free(packed);
            double want = exp(-(double)d);
            check_near("exp, argument in units of -0.0371", kernels->name, lrintf(d / 0.0371f), (double)o, want,
                       2e-7 * want + 0x1p-149);
        }
    }
}

static double gelu_tanh(double z) {
    return 0.5 * z * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (z + 0.044715 * z * z * z)));
}
static double silu(double z) { return z / (1 + exp(-z)); }

static void gates_and_caps_are_accurate(void **state) {
    (void)state;
    enum { N = 4099 };
    float *gate = malloc(N * sizeof *gate), *up = random_floats(N, 31, 1.0f), *out = malloc(N * sizeof *out);
    for (int i = 0; i < N; i++) gate[i] = (float)(i - N / 2) * 0.01f;
    static const float extremes[] = {1e30f, -1e30f, 3e38f, -3e38f, 1e-30f, -1e-30f, 0.0f, -0.0f, 100.0f, -100.0f};
    for (size_t i = 0; i < COUNT(extremes); i++) gate[i * 17] = extremes[i];
    FOR_FLOAT_TABLES(kernels) {
        for (int activation = 0; activation < 2; activation++) {
            kernels->gated(activation, gate, up, N, out);
            for (int i = 0; i < N; i++) {
                double z = (double)gate[i], f = activation == 0 ? gelu_tanh(z) : silu(z);
                if (activation == 0 && fabs(z) > 1e12) f = z > 0 ? z : 0;
                double want = f * (double)up[i];
                check_near(activation == 0 ? "gated gelu" : "gated silu", kernels->name, i, (double)out[i], want,
                           1e-6 * (fabs(z) > 1 ? 1 : fabs(z)) * fabs((double)up[i]) + 4e-7 * fabs(want));
            }
        }
        memcpy(out, gate, N * sizeof *out);
        kernels->soft_cap(30.0f, N, out);
        for (int i = 0; i < N; i++) {
            double want = 30 * tanh((double)gate[i] / 30);
            check_near("soft_cap", kernels->name, i, (double)out[i], want, 30e-6);
            if (fabs((double)out[i]) > 30)
                fail_msg("soft_cap, table %s: %.9g is beyond 30", kernels->name, (double)out[i]);
        }
        /* An element's result does not depend on its place or on the length. */
        for (int begin = 0; begin < 40; begin++)
            for (int n = 1; n < 40; n += 6) {
                float part[40];
                kernels->gated(0, gate + 2000 + begin, up + 2000 + begin, n, part);
                kernels->gated(0, gate, up, N, out);
                for (int i = 0; i < n; i++)
                    check_same_bits("gated part", kernels->name, i, part[i], out[2000 + begin + i]);
            }
    }
    free(gate);
    free(up);
    free(out);
}

static void norms_are_accurate(void **state) {
    (void)state;
    static const float scales[] = {1.0f, 1e-4f, 300.0f};
    FOR_FLOAT_TABLES(kernels)
    for (size_t ki = 0; ki < COUNT(odd_sizes); ki++)
        for (size_t si = 0; si < COUNT(scales); si++) {
            int n = odd_sizes[ki];
            float eps = 1e-6f;
            float *x = random_floats((size_t)n, 41, scales[si]), *gain = random_floats((size_t)n, 42, 1.0f),
                  *out = malloc((size_t)n * sizeof *out);
            double sum = 0;
            for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
            double want = 1 / sqrt(sum / n + (double)eps);
            char what[64];
            snprintf(what, sizeof what, "rms n %d scale %g", n, (double)scales[si]);
            check_near(what, kernels->name, 0, (double)kernels->rms_scale(x, n, eps), want, 3e-6 * want);
            kernels->rms_norm(x, gain, n, eps, out);
            for (int i = 0; i < n; i++) {
                double value = (double)x[i] * want * (double)gain[i];
                check_near(what, kernels->name, i, (double)out[i], value, 4e-6 * fabs(value));
            }
            kernels->rms_norm(x, NULL, n, eps, out);
            kernels->rms_norm(x, NULL, n, eps, x);
            for (int i = 0; i < n; i++) check_same_bits("rms_norm in place", kernels->name, i, x[i], out[i]);
            free(x);
            free(gain);
            free(out);
        }
}

static void rope_axpy_scale(void **state) {
    (void)state;
    static const int pair_counts[] = {1, 7, 32, 33, 64, 128};
    FOR_FLOAT_TABLES(kernels) for (size_t pi = 0; pi < COUNT(pair_counts); pi++) {
        int pairs = pair_counts[pi], half = 128;
        float *x = random_floats(256, 51, 1.0f), *before = malloc(256 * sizeof *before),
              *y = random_floats(256, 52, 1.0f);
        memcpy(before, x, 256 * sizeof *x);
        float cosine[128], sine[128];
        for (int i = 0; i < 128; i++) {
            cosine[i] = cosf((float)i);
            sine[i] = sinf((float)i);
        }
        kernels->rope(x, half, pairs, cosine, sine);
        for (int j = 0; j < half; j++) {
            double a = (double)before[j], b = (double)before[j + half], c = j < pairs ? (double)cosine[j] : 1,
                   s = j < pairs ? (double)sine[j] : 0;
            double bound = j < pairs ? 2e-7 * (fabs(a) + fabs(b)) : 0;
            check_near("rope", kernels->name, j, (double)x[j], a * c - b * s, bound);
            check_near("rope", kernels->name, j + half, (double)x[j + half], b * c + a * s, bound);
        }
        memcpy(before, y, 256 * sizeof *y);
        kernels->axpy(1.7f, x, pairs, y);
        for (int i = 0; i < 256; i++) {
            double want = i < pairs ? (double)before[i] + (double)1.7f * (double)x[i] : (double)before[i];
            check_near("axpy", kernels->name, i, (double)y[i], want,
                       i < pairs ? 2e-7 * (fabs((double)before[i]) + 2 * fabs((double)x[i])) : 0);
        }
        memcpy(before, y, 256 * sizeof *y);
        kernels->scale(0.3f, pairs, y);
        for (int i = 0; i < 256; i++)
            check_same_bits("scale", kernels->name, i, y[i], i < pairs ? before[i] * 0.3f : before[i]);
        free(x);
        free(before);
        free(y);
    }
}

static void largest_values_are_found(void **state) {
    (void)state;
    static const int sizes[] = {1, 3, 16, 17, 255, 256, 257, 8192, 8195};
    FOR_FLOAT_TABLES(kernels) for (size_t si = 0; si < COUNT(sizes); si++) {
        int n = sizes[si];
        float *x = random_floats((size_t)n, 71 + si, 2.0f);
        for (int i = 0; i < n; i++) x[i] -= 20; /* no zero may come in from a tail */
        for (int trial = 0; trial < 20; trial++) {
            int at = (int)((unsigned)(trial * 7919) % (unsigned)n);
            float before = x[at];
            x[at] = -1.5f;
            assert_true(kernels->maximum(x, n) == -1.5f);
            assert_int_equal(kernels->first_at_least(x, n, -1.5f), at);
            assert_int_equal(kernels->first_at_least(x, n, -1.25f), n);
            x[at] = trial % 3 == 0 ? NAN : trial % 3 == 1 ? INFINITY : -INFINITY;
            assert_true(isnan(kernels->maximum(x, n)));
            x[at] = before;
        }
        free(x);
    }
}

static void derived_keys_have_the_bits_of_their_steps(void **state) {
    (void)state;
    static const struct {
        int half, pairs;
    } shapes[] = {{64, 16}, {64, 64}, {256, 64}, {4, 1}, {8, 8}, {20, 16}, {32, 7}};
    FOR_FLOAT_TABLES(kernels)
    for (size_t s = 0; s < COUNT(shapes); s++)
        for (kv_format format = 0; format < KV_FORMAT_COUNT; format++) {
            const cpu_kv_kernels *kv = &kernels->kv[format];
            int half = shapes[s].half, pairs = shapes[s].pairs, n = 2 * half;
            float *raw = random_floats((size_t)n, 81, 1.0f), *norm = random_floats((size_t)n, 82, 1.0f);
            float *angles = random_floats((size_t)n, 83, 1.0f), *got = malloc((size_t)n * 4),
                  *want = malloc((size_t)n * 4);
            void *stored = malloc(kv_format_row_bytes(format, 1, (size_t)n));
            kv->store(raw, n, stored);
            kv->load(stored, n, want);
            kernels->multiply(norm, n, want);
            kernels->rope(want, half, pairs, angles, angles + half);
            kv->derive_key(stored, norm, half, pairs, angles, angles + half, got);
            for (int i = 0; i < n; i++) check_same_bits("derive_key", kernels->name, i, got[i], want[i]);
            free(raw), free(norm), free(angles), free(got), free(want), free(stored);
        }
}

static void halves_become_floats_and_back(void **state) {
    (void)state;
    enum { ALL = 65536 };
    uint16_t *halves = malloc(ALL * sizeof *halves), *again = malloc(ALL * sizeof *again);
    float *floats = malloc(ALL * sizeof *floats);
    for (int i = 0; i < ALL; i++) halves[i] = (uint16_t)i;
    FOR_FLOAT_TABLES(kernels) for (weight_format format = WEIGHT_F16; format <= WEIGHT_BF16; format++) {
        weight row = weight_matrix(format, halves, 1, ALL);
        kernels->weight[format].load(&row, 0, 0, ALL, floats);
        if (format == WEIGHT_BF16) kernels->kv[KV_FORMAT_BF16].store(floats, ALL, again);
        for (int i = 0; i < ALL; i++) {
            float want = format == WEIGHT_BF16 ? bf16_to_f32((uint16_t)i) : f16_to_f32((uint16_t)i);
            if (isnan(want)) {
                if (!isnan(floats[i]) || (format == WEIGHT_BF16 && !isnan(element(format, again, (size_t)i))))
                    fail_msg("%s 0x%04x, table %s: NaN is lost", weight_format_name(format), (unsigned)i,
                             kernels->name);
                continue;
            }
            check_same_bits("load", kernels->name, i, floats[i], want);
            if (format == WEIGHT_BF16 && again[i] != i)
                fail_msg("%s 0x%04x, table %s: stored as 0x%04x", weight_format_name(format), (unsigned)i,
                         kernels->name, again[i]);
        }
        if (format != WEIGHT_BF16) continue;
        kernels->kv[KV_FORMAT_BF16].load(halves, ALL, floats);
        for (int i = 0; i < ALL; i++) {
            float want = bf16_to_f32((uint16_t)i);
            if (!isnan(want)) check_same_bits("load of K/V", kernels->name, i, floats[i], want);
        }
    }
    free(halves);
    free(again);
    free(floats);
}

/* Every table rounds as float16.h does. */
static void storing_rounds_to_nearest_even(void **state) {
    (void)state;
    enum { N = 20011 };
    float *x = malloc(N * sizeof *x);
    uint16_t *stored = malloc(N * sizeof *stored);
    uint64_t seed = 61;
    for (int i = 0; i < N; i++) x[i] = random_value(&seed, ldexpf(1.0f, i % 60 - 40));
    static const uint32_t ties[] = {0x3f808000, 0x3f818000, 0x7f7fffff, 0x00008000, 0x3f801000, 0x3f803000, 0x33000000,
                                    0x33000001, 0x477fefff, 0x477ff000, 0x7f800000, 0xff800000, 0x80000000};
    memcpy(x, ties, sizeof ties);
    FOR_FLOAT_TABLES(kernels) {
        kernels->kv[KV_FORMAT_BF16].store(x, N, stored);
        for (int i = 0; i < N; i++) {
            if (stored[i] != f32_to_bf16(x[i]))
                fail_msg("store BF16 %.9g, table %s: 0x%04x instead of 0x%04x", (double)x[i], kernels->name, stored[i],
                         f32_to_bf16(x[i]));
        }
    }
    free(x);
    free(stored);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(gates_and_caps_are_accurate),
        cmocka_unit_test(norms_are_accurate),
        cmocka_unit_test(rope_axpy_scale),
        cmocka_unit_test(largest_values_are_found),
        cmocka_unit_test(derived_keys_have_the_bits_of_their_steps),
        cmocka_unit_test(halves_become_floats_and_back),
        cmocka_unit_test(storing_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
