/* The algebra of the closed form: factors and products, for any number of threads; subspace iteration beside the dense
 * solution; encoders that read a map of the input. */
#include <math.h>
#include <stdlib.h>

#include "base/threads.h"
#include "golden.h"
#include "train/closed_form.h"
#include "train/linear.h"
#include "train/products.h"
#include "train/subspace.h"

static double draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (double)(1 << 23) - 1;
}

static double *random_matrix(size_t n, uint64_t seed) {
    double *a = malloc(n * sizeof *a);
    for (size_t i = 0; i < n; i++) a[i] = draw(&seed);
    return a;
}

static thread_pool *make_pool(int threads) {
    thread_pool *pool;
    REQUIRE_OK(thread_pool_create(threads, &pool, error));
    return pool;
}

/* ------------------------------------------------------------------------------------------------------ linear */

/* Wider than one panel and one tile. */
enum { N = 150, ROWS = 19, DEEP = 1100, WIDE = 140 };

static void factors(void **state) {
    (void)state;
    thread_pool *one = make_pool(1), *three = make_pool(3);
    double *b = random_matrix(N * N, 7), *a = malloc(N * N * sizeof *a), *l = malloc(N * N * sizeof *l),
           *m = malloc(N * N * sizeof *m);
    linear_dots(one, b, N, b, N, N, a);
    for (int i = 0; i < N; i++) a[i * N + i] += 1;
    memcpy(l, a, N * N * sizeof *l);
    memcpy(m, a, N * N * sizeof *m);
    assert_true(linear_cholesky(one, l, N));
    assert_true(linear_cholesky(three, m, N));
    assert_memory_equal(l, m, N * N * sizeof *m);
    linear_dots(one, l, N, l, N, N, m);
    for (int i = 0; i < N * N; i++) {
        if (fabs(m[i] - a[i]) > 1e-10) fail_msg("L L' is off by %g in row %d", m[i] - a[i], i / N);
        if (i % N > i / N) assert_true(l[i] == 0);
    }
    /* rows of unknowns, lower and upper: the right answers */
    double *x = random_matrix(N * ROWS, 8), *rows = malloc(N * ROWS * sizeof *x), *again = malloc(N * ROWS * sizeof *x);
    memcpy(rows, x, N * ROWS * sizeof *x);
    memcpy(again, x, N * ROWS * sizeof *x);
    linear_solve_lower_rows(one, l, N, rows, ROWS);
    linear_solve_upper_rows(one, l, N, rows, ROWS);
    linear_solve_lower_rows(three, l, N, again, ROWS);
    linear_solve_upper_rows(three, l, N, again, ROWS);
    assert_memory_equal(rows, again, N * ROWS * sizeof *x);
    for (int i = 0; i < N; i++) {
        for (int c = 0; c < ROWS; c++) {
            double sum = 0;
            for (int k = 0; k < N; k++) sum += a[i * N + k] * rows[c * N + k];
            assert_true(fabs(sum - x[c * N + i]) < 1e-9);
        }
    }
    a[70 * N + 70] = -1;
    assert_false(linear_cholesky(one, a, N));
    double *all[] = {a, b, l, m, x, rows, again};
    for (int i = 0; i < 7; i++) free(all[i]);
    thread_pool_destroy(one);
    thread_pool_destroy(three);
}

static void products(void **state) {
    (void)state;
    thread_pool *one = make_pool(1), *three = make_pool(3);
    double *a = random_matrix(ROWS * DEEP, 1), *b = random_matrix(N * DEEP, 2),
           *out = malloc(ROWS * DEEP * sizeof *out), *again = malloc(ROWS * DEEP * sizeof *out);
    linear_dots(one, a, ROWS, b, N, DEEP, out);
    linear_dots(three, a, ROWS, b, N, DEEP, again);
    assert_memory_equal(out, again, ROWS * N * sizeof *out);
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < DEEP; k++) sum += a[i * DEEP + k] * b[j * DEEP + k];
            if (fabs(sum - out[i * N + j]) > 1e-10) fail_msg("dots %d, %d: %g, not %g", i, j, out[i * N + j], sum);
        }
    }
    linear_combine(one, a, ROWS, b, DEEP, N, out);
    linear_combine(three, a, ROWS, b, DEEP, N, again);
    assert_memory_equal(out, again, ROWS * DEEP * sizeof *out);
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < DEEP; j++) {
            double sum = 0;
            for (int k = 0; k < N; k++) sum += a[i * N + k] * b[k * DEEP + j];
            if (fabs(sum - out[i * DEEP + j]) > 1e-10) fail_msg("combined %d, %d: off", i, j);
        }
    }
    free(a);
    free(b);
    free(out);
    free(again);
    thread_pool_destroy(one);
    thread_pool_destroy(three);
}

/* Every form of a product, of parts of wider matrices; and what lies on the two sides of the diagonal. */
static void forms(void **state) {
    (void)state;
    enum { LD = 160, K = 135 };
    thread_pool *three = make_pool(3);
    double *a = random_matrix(LD * LD, 1), *b = random_matrix(LD * LD, 2), *c = random_matrix(LD * LD, 3),
           *out = malloc(LD * LD * sizeof *out);
    for (int form = 0; form < 16; form++) {
        const products_job job = {.a = a + 3,
                                  .b = b + 2,
                                  .c = out + 1,
                                  .lda = LD,
                                  .ldb = LD,
                                  .ldc = LD,
                                  .m = WIDE,
                                  .n = WIDE,
                                  .k = K,
                                  .a_turned = form & 1,
                                  .b_turned = form & 2,
                                  .scale = -0.5,
                                  .set = form & 4,
                                  .lower = form & 8};
        memcpy(out, c, LD * LD * sizeof *out);
        products_run(three, &job);
        for (int i = 0; i < LD; i++) {
            for (int j = 0; j < LD; j++) {
                bool inside = i < WIDE && j >= 1 && j <= WIDE;
                if (inside && (form & 8) && j - 1 > i) continue; /* some of these are computed */
                double sum = inside && (form & 4) ? 0 : c[i * LD + j];
                for (int k = 0; k < K && inside; k++)
                    sum -= 0.5 * (form & 1 ? a[3 + k * LD + i] : a[3 + i * LD + k]) *
                           (form & 2 ? b[2 + (j - 1) * LD + k] : b[2 + k * LD + j - 1]);
                if (fabs(sum - out[i * LD + j]) > 1e-11)
                    fail_msg("form %d, %d, %d: %g, not %g", form, i, j, out[i * LD + j], sum);
            }
        }
    }
    memcpy(out, c, LD * LD * sizeof *out);
    linear_transpose(three, out, LD - 7);
    for (int i = 0; i < (LD - 7) * (LD - 7); i++) assert_true(out[i] == c[i % (LD - 7) * (LD - 7) + i / (LD - 7)]);
    linear_mirror(three, out, LD - 7);
    for (int i = 0; i < (LD - 7) * (LD - 7); i++) {
        int low = i / (LD - 7) < i % (LD - 7) ? i / (LD - 7) : i % (LD - 7), high = i / (LD - 7) + i % (LD - 7) - low;
        assert_true(out[i] == c[low * (LD - 7) + high]);
    }
    free(a);
    free(b);
    free(c);
    free(out);
    thread_pool_destroy(three);
}

typedef struct known {
    thread_pool *pool;
    const double *a;
    int n;
} known;

static void times_known(void *context, const double *x, int rows, double *out) {
    const known *k = context;
    linear_dots(k->pool, x, rows, k->a, k->n, k->n, out);
}

/* Spectra that fall slowly, that fall steeply, that end, and that are equal. */
static void subspace(void **state) {
    (void)state;
    enum { WANTED = 20, BLOCK = 40 };
    thread_pool *pool = make_pool(2);
    double *v = random_matrix(N * N, 5), *scaled = malloc(N * N * sizeof *v), *a = malloc(N * N * sizeof *v), values[N],
           scratch[N], *vectors = malloc(BLOCK * N * sizeof *v), found[BLOCK];
    for (int i = 0; i < N; i++) { /* any symmetric matrix has orthonormal vectors */
        for (int j = 0; j < i; j++) v[i * N + j] = v[j * N + i];
    }
    assert_true(linear_eigen(v, N, values, scratch));
    static const char *const names[] = {"slow", "ends early", "equal", "nothing", "steep"};
    for (int kind = 0; kind < 5; kind++) {
        for (int i = 0; i < N; i++) {
            double value[] = {1 / (1.0 + 0.1 * i), i < 7 ? 1.0 - 0.1 * i : 0, 1, 0,
                              i < 20 ? pow(10, -0.2 * i) : 5e-5 / (i + 1)};
            values[i] = value[kind];
            for (int j = 0; j < N; j++) scaled[i * N + j] = values[i] * v[i * N + j];
        }
        /* a = V' diag V, where rows of V are the vectors */
        for (int i = 0; i < N; i++) {
            for (int j = 0; j < N; j++) {
                a[i * N + j] = 0;
                for (int k = 0; k < N; k++) a[i * N + j] += v[k * N + i] * scaled[k * N + j];
            }
        }
        known operator= {pool, a, N};
        bool out_of_memory;
        if (!subspace_eigen(pool, N, WANTED, BLOCK, times_known, &operator, vectors, found, &out_of_memory))
            fail_msg("%s: no solution", names[kind]);
        for (int i = 0; i < WANTED; i++) {
            if (fabs(found[i] - values[i]) > (kind == 4 ? 1e-3 * values[i] : 1e-8))
                fail_msg("%s: value %d is %g, not %g", names[kind], i, found[i], values[i]);
            double along = 0, square = 0;
            for (int j = 0; j < N; j++)
                along += vectors[i * N + j] * v[i * N + j], square += vectors[i * N + j] * vectors[i * N + j];
            if (fabs(square - 1) > 1e-10) fail_msg("%s: vector %d is %g long", names[kind], i, square);
            if (kind == 0 && fabs(along) < 1 - 1e-6) fail_msg("vector %d is off: %g", i, along);
        }
    }
    a[3 * N + 2] = a[2 * N + 3] = NAN;
    known operator= {pool, a, N};
    bool out_of_memory;
    assert_false(subspace_eigen(pool, N, WANTED, BLOCK, times_known, &operator, vectors, found, &out_of_memory));
    assert_false(out_of_memory);
    free(v);
    free(scaled);
    free(a);
    free(vectors);
    thread_pool_destroy(pool);
}

/* --------------------------------------------------------------------------------------------------- solutions */

enum { INPUTS = 144, TOKENS = 400, RANK = 24, RICH = 20, POOR = 3 };

/* Sums over made-up text: inputs of which some hardly vary, targets that they tell half of, metrics that see so many
 * directions of a head. */
typedef struct made_up {
    model_config config;
    closed_form_sums sums;
    float *gram[MODEL_MAX_LAYERS];
    restoration_config form;
} made_up;

static void add_psd(double *a, float *b, int d, int directions, uint64_t *random) {
    for (int r = 0; r < directions; r++) {
        double u[256];
        for (int i = 0; i < d; i++) u[i] = draw(random);
        for (int i = 0; i < d * d; i++) {
            if (a) a[i] += u[i / d] * u[i % d];
            if (b) b[i] += (float)(u[i / d] * u[i % d]);
        }
    }
}

static void make_up(made_up *m, bool shared, int directions) {
    m->config.layers = 3;
    m->config.heads = 4;
    for (int l = 0; l < 3; l++) {
        m->config.layer[l] = (layer_config){.type = l == 1 ? LAYER_FULL : LAYER_SLIDING,
                                            .kv_heads = l == 1 ? 1 : 2,
                                            .head_dim = l == 1 ? 32 : 16,
                                            .kv_source = l};
    }
    REQUIRE_OK(closed_form_sums_create(&m->config, INPUTS, &m->sums, error));
    m->form = (restoration_config){.input = RESTORATION_AUX_HIDDEN, .hidden = INPUTS, .aux_layers = 1};
    restoration_config_fit(&m->form, &m->config, RANK, RANK, shared);
    closed_form_sums *s = &m->sums;
    uint64_t random = 11;
    double *map = random_matrix((size_t)s->targets * INPUTS, 12), x[INPUTS];
    s->tokens[0] = TOKENS;
    for (int t = 0; t < TOKENS; t++) {
        for (int i = 0; i < INPUTS; i++) x[i] = draw(&random) * pow(10, -2.0 * i / INPUTS);
        for (int i = 0; i < INPUTS * INPUTS; i++) s->xx[i] += x[i / INPUTS] * x[i % INPUTS];
        for (int y = 0; y < s->targets; y++) {
            double value = draw(&random);
            for (int i = 0; i < INPUTS; i++) value += map[y * INPUTS + i] * x[i] * 0.2;
            for (int i = 0; i < INPUTS; i++) s->yx[y * INPUTS + i] += value * x[i];
        }
    }
    for (int y = 0; y < s->targets; y++) s->size[y] = TOKENS;
    for (int l = 0; l < m->config.layers; l++) {
        int d = m->config.layer[l].head_dim;
        m->gram[l] = calloc((size_t)(m->config.heads * d * d), sizeof *m->gram[l]);
        for (int h = 0; h < m->config.heads; h++) add_psd(NULL, m->gram[l] + h * d * d, d, directions, &random);
        for (int h = 0; h < m->config.layer[l].kv_heads; h++)
            add_psd(s->metric_k[l] + h * d * d, NULL, d, directions, &random);
        for (int h = 0; h < m->config.heads; h++) s->metric_v[l][h] = 1 + draw(&random);
        s->added[l][0] = 1 + 0.5 * draw(&random);
        s->added[l][1] = 1;
    }
    free(map);
}

static void unmake(made_up *m) {
    closed_form_sums_destroy(&m->sums);
    for (int l = 0; l < MODEL_MAX_LAYERS; l++) free(m->gram[l]);
}

static closed_form_weights solve_as(const made_up *m, closed_form_form form, closed_form_solver solver, int threads,
                                    const float *map) {
    closed_form_weights w;
    const closed_form_problem problem = {.sums = &m->sums,
                                         .config = &m->form,
                                         .form = form,
                                         .gram = m->gram,
                                         .map = {map, map},
                                         .pool = make_pool(threads),
                                         .solver = solver};
    REQUIRE_OK(closed_form_solve(&problem, &w, error));
    thread_pool_destroy(problem.pool);
    return w;
}

static closed_form_weights solve(const made_up *m, closed_form_solver solver, int threads, const float *map) {
    return solve_as(m, (closed_form_form){0}, solver, threads, map);
}

/* The largest difference between two encoders (or decoders), as a share of the largest value. */
static double difference(const float *a, const float *b, size_t n) {
    double most = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)a[i]));
    }
    return most / largest;
}

static void compare(const char *what, const made_up *m, const closed_form_weights *a, const closed_form_weights *b,
                    double tolerance) {
    for (int half = 0; half < 2; half++) {
        double off = a->encoder[half] ? difference(a->encoder[half], b->encoder[half], RANK * INPUTS) : 0;
        if (!(off <= tolerance)) fail_msg("%s: encoder %d differs by %g", what, half, off);
        for (int l = 0; l < m->config.layers; l++) {
            size_t n = (size_t)(m->config.layer[l].kv_heads * m->config.layer[l].head_dim * RANK);
            off = difference(a->decoder[half][l], b->decoder[half][l], n);
            if (!(off <= tolerance)) fail_msg("%s: decoder %d of layer %d differs by %g", what, half, l, off);
        }
    }
}

/* Iteration comes to the weights of the dense solution, and does not depend on threads. */
static void subspace_is_dense(void **state) {
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        made_up m = {0};
        make_up(&m, shared, RICH);
        closed_form_weights dense = solve(&m, CLOSED_FORM_DENSE, 1, NULL),
                            automatic = solve(&m, CLOSED_FORM_AUTO, 3, NULL),
                            iterated = solve(&m, CLOSED_FORM_SUBSPACE, 1, NULL),
                            again = solve(&m, CLOSED_FORM_SUBSPACE, 3, NULL);
        compare("small problems are dense", &m, &dense, &automatic, 0);
        compare("threads", &m, &iterated, &again, 0);
        compare("subspace", &m, &dense, &iterated, 1e-5);
        closed_form_weights_free(&dense);
        closed_form_weights_free(&automatic);
        closed_form_weights_free(&iterated);
        closed_form_weights_free(&again);
        unmake(&m);
    }
}

/* A metric that sees fewer directions than the rank has: the rest decodes to nothing. */
static void few_directions(void **state) {
    (void)state;
    for (int solver = CLOSED_FORM_DENSE; solver <= CLOSED_FORM_SUBSPACE; solver++) {
        made_up m = {0};
        make_up(&m, false, POOR);
        enum { SEEN = 5 * POOR }; /* K/V heads of all layers */
        closed_form_weights w = solve(&m, (closed_form_solver)solver, 2, NULL);
        for (int i = 0; i < RANK * INPUTS; i++) assert_true(isfinite(w.encoder[0][i]) && isfinite(w.encoder[1][i]));
        for (int l = 0; l < m.config.layers; l++) {
            int d = m.config.layer[l].head_dim;
            for (int r = SEEN; r < RANK; r++) {
                double seen = 0, all = 0; /* of the first head's keys */
                for (int i = 0; i < d * d; i++) {
                    double part = (double)w.decoder[0][l][i / d * RANK + r] * m.sums.metric_k[l][i] *
                                  (double)w.decoder[0][l][i % d * RANK + r];
                    seen += part;
                    all += fabs(part);
                }
                if (!(seen <= 1e-9 * (all + 1)))
                    fail_msg("solver %d: latent %d of layer %d is seen, %g", solver, r, l, seen);
            }
        }
        closed_form_weights_free(&w);
        unmake(&m);
    }
}

/* An encoder that reads W x with an orthogonal W is the encoder of x, turned. */
static void turned_input(void **state) {
    (void)state;
    made_up m = {0};
    make_up(&m, false, RICH);
    double u[INPUTS], square = 0;
    uint64_t random = 21;
    for (int i = 0; i < INPUTS; i++) u[i] = draw(&random), square += u[i] * u[i];
    float *map = malloc(INPUTS * INPUTS * sizeof *map);
    for (int i = 0; i < INPUTS * INPUTS; i++)
        map[i] = (float)((i / INPUTS == i % INPUTS) - 2 * u[i / INPUTS] * u[i % INPUTS] / square);
    closed_form_weights plain = solve(&m, CLOSED_FORM_DENSE, 1, NULL), turned = solve(&m, CLOSED_FORM_DENSE, 2, map);
    for (int half = 0; half < 2; half++) {
        for (int r = 0; r < RANK; r++) {
            float *row = turned.encoder[half] + r * INPUTS, back[INPUTS];
            double along = 0;
            for (int i = 0; i < INPUTS; i++) {
                double sum = 0;
                for (int k = 0; k < INPUTS; k++) sum += (double)map[k * INPUTS + i] * (double)row[k];
                back[i] = (float)sum;
                along += sum * (double)plain.encoder[half][r * INPUTS + i];
            }
            /* another factor of the same matrix: signs are decided elsewhere */
            float sign = along < 0 ? -1.0f : 1.0f;
            for (int i = 0; i < INPUTS; i++) row[i] = sign * back[i];
            for (int l = 0; l < m.config.layers && sign < 0; l++) {
                for (int o = 0; o < m.config.layer[l].kv_heads * m.config.layer[l].head_dim; o++)
                    turned.decoder[half][l][o * RANK + r] *= sign;
            }
        }
    }
    compare("turned", &m, &plain, &turned, 1e-3);
    closed_form_weights_free(&plain);
    closed_form_weights_free(&turned);
    free(map);
    unmake(&m);
}

/* With a ridge for each input, units of inputs do not matter; with a mean one they do. */
static void units_of_inputs(void **state) {
    (void)state;
    made_up m = {0}, other = {0};
    make_up(&m, true, RICH);
    make_up(&other, true, RICH);
    double unit[INPUTS];
    for (int i = 0; i < INPUTS; i++) unit[i] = i % 7 ? 1 : i % 2 ? 5 : 0.2;
    for (int i = 0; i < INPUTS * INPUTS; i++) other.sums.xx[i] *= unit[i / INPUTS] * unit[i % INPUTS];
    for (int i = 0; i < other.sums.targets * INPUTS; i++) other.sums.yx[i] *= unit[i % INPUTS];
    for (int by_input = 0; by_input < 2; by_input++) {
        closed_form_weights a = solve_as(&m, (closed_form_form){.by_input = by_input}, CLOSED_FORM_DENSE, 1, NULL),
                            b = solve_as(&other, (closed_form_form){.by_input = by_input}, CLOSED_FORM_DENSE, 2, NULL);
        for (int i = 0; i < RANK * INPUTS; i++) b.encoder[0][i] *= (float)unit[i % INPUTS];
        if (by_input)
            compare("units", &m, &a, &b, 1e-4);
        else
            assert_true(difference(a.encoder[0], b.encoder[0], RANK * INPUTS) > 1e-2);
        closed_form_weights_free(&a);
        closed_form_weights_free(&b);
    }
    unmake(&m);
    unmake(&other);
}

/* Tempered to nothing, a layer's keys count as much as another's, however much attention to them weighs. */
static void tempered_metric(void **state) {
    (void)state;
    made_up m = {0}, other = {0};
    make_up(&m, true, RICH);
    make_up(&other, true, RICH);
    int d = m.config.layer[0].head_dim;
    for (int i = 0; i < m.config.layer[0].kv_heads * d * d; i++) other.sums.metric_k[0][i] *= 1e4;
    const closed_form_form flat = {.temper = 1e-12};
    closed_form_weights a = solve_as(&m, flat, CLOSED_FORM_DENSE, 1, NULL),
                        b = solve_as(&other, flat, CLOSED_FORM_DENSE, 1, NULL),
                        plain = solve(&other, CLOSED_FORM_DENSE, 1, NULL);
    compare("tempered", &m, &a, &b, 1e-4);
    assert_true(difference(a.encoder[0], plain.encoder[0], RANK * INPUTS) > 1e-2);
    closed_form_weights_free(&a);
    closed_form_weights_free(&b);
    closed_form_weights_free(&plain);
    unmake(&m);
    unmake(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(factors),      cmocka_unit_test(products),          cmocka_unit_test(forms),
        cmocka_unit_test(subspace),     cmocka_unit_test(subspace_is_dense), cmocka_unit_test(few_directions),
        cmocka_unit_test(turned_input), cmocka_unit_test(units_of_inputs),   cmocka_unit_test(tempered_metric),
    };
    return cmocka_run_group_tests_name("closed form", tests, NULL, NULL);
}
