/* The int8 bounds of logits hold, and a greedy choice through them is the choice of the whole product.
 * Whole runs only: test_logit_hashes and test_choices meet the head, too. */
#include "kernel_operands.h"

#include "backend/cpu/head.h"
#include "backend/cpu/matrix.h"
#include "base/random.h"
#include "sweep.h"

#define REQUIRE(call)                                                                                                  \
    do {                                                                                                               \
        kakeya_error memory = {0}, *error = &memory;                                                                   \
        if ((call) != KAKEYA_OK) fail_msg("%s: %s", #call, memory.message);                                            \
    } while (0)

/* ------------------------------------------------------------------------------------------------------- bounds */

enum { MAX_ROWS = CPU_HEAD_ROWS + 6 };

/* Every number of rows of one block, then those around what goes together. */
static const int row_counts[] = {
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 32, 33, CPU_HEAD_ROWS, CPU_HEAD_ROWS + 1, MAX_ROWS};
enum { ROW_COUNTS = sizeof row_counts / sizeof row_counts[0] };

typedef struct fixture {
    backend_model *m;
    model_config config;
    model_weights weights;
    mem_account account;
    packed_rows packed;
    void *allocation;
    float *x; /* [MAX_ROWS][k] */
} fixture;

/* A model that is only a head: vocab x k of one type, weights and rows with a few values far larger than the others. */
static void make_head(fixture *f, const cpu_kernels *kernels, weight_format format, int vocab, int k, float cap,
                      bool round, uint64_t seed) {
    memset(f, 0, sizeof *f);
    mem_account_init(&f->account, NULL, 0);
    backend_model *m = f->m = calloc(1, sizeof *m);
    f->config = (model_config){.vocab = vocab, .hidden = k, .logit_softcap = cap};
    void *w = random_weights(format, (size_t)vocab * (size_t)k, seed, &f->allocation);
    f->weights.head = weight_matrix(format, w, vocab, k);
    f->x = random_floats((size_t)MAX_ROWS * (size_t)k, seed + 1, 1.0f);
    for (int r = 0; r < MAX_ROWS; r += 3) f->x[(size_t)r * (size_t)k + (size_t)(r % k)] *= 40;
    m->config = &f->config;
    m->weights = &f->weights;
    m->kernels = kernels;
    m->account = &f->account;
    m->input = round ? INPUT_BF16 : INPUT_EXACT;
    REQUIRE(thread_pool_create(2, &m->pool, error));
    m->threads = thread_pool_size(m->pool);
    m->head_stride = (vocab + SCREEN_OUTPUTS - 1) / SCREEN_OUTPUTS * SCREEN_OUTPUTS;
    m->head_logits = malloc((size_t)CPU_HEAD_ROWS * (size_t)m->head_stride * sizeof(float));
    m->scratch = calloc((size_t)m->threads, sizeof *m->scratch);
    for (int t = 0; t < m->threads; t++) m->scratch[t].row = malloc((size_t)k * sizeof(float));
    REQUIRE(packed_rows_create(m, &f->packed, MAX_ROWS, k, packing_of(m, &f->weights.head), error));
}

/* Logits [rows][vocab]; where they go row by row changes no bit. */
static void compute_logits(fixture *f, int rows, float *logits) {
    size_t vocab = (size_t)f->config.vocab;
    float *to[MAX_ROWS], *apart = malloc((size_t)rows * vocab * sizeof *apart);
    for (int r = 0; r < rows; r++) to[r] = apart + (size_t)(rows - 1 - r) * vocab;
    head_logits(f->m, &f->packed, f->x, rows, to);
    for (int r = 0; r < rows; r++) to[r] = logits + (size_t)r * vocab;
    head_logits(f->m, &f->packed, f->x, rows, to);
    for (int r = 0; r < rows; r++) {
        if (memcmp(to[r], apart + (size_t)(rows - 1 - r) * vocab, vocab * sizeof *logits) != 0)
            fail_msg("%s: row %d of %d differs where rows go to places of their own", f->m->kernels->name, r, rows);
    }
    free(apart);
}

static void free_head(fixture *f) {
    head_destroy(f->m);
    packed_rows_destroy(&f->packed);
    assert_int_equal(mem_total(&f->account), 0);
    thread_pool_destroy(f->m->pool);
    free(f->m->head_logits);
    for (int t = 0; t < f->m->threads; t++) free(f->m->scratch[t].row);
    free(f->m->scratch);
    free(f->m);
    free(f->x);
    free(f->allocation);
}

static void bounds_hold(void **state) {
    (void)state;
    static const int shapes[][2] = {{1, 1}, {16, 64}, {50, 33}, {400, 256}, {37, 2816}, {19, 7}};
    static const weight_format formats[] = {WEIGHT_BF16, WEIGHT_F32, WEIGHT_F16};
    FOR_TABLES(kernels) {
        screen_bounds bounds = screen_bounds_beside(kernels);
        if (!bounds) continue;
        for (size_t i = 0; i < COUNT(shapes) * COUNT(formats) * 2; i += sweep_short() ? 5 : 1) {
            int vocab = shapes[i / 2 / COUNT(formats)][0], k = shapes[i / 2 / COUNT(formats)][1];
            fixture f;
            make_head(&f, kernels, formats[i / 2 % COUNT(formats)], vocab, k, 0, i % 2, 50 + i);
            head_create(f.m);
            const head_screen *s = &f.m->screen;
            float *logits = malloc((size_t)MAX_ROWS * (size_t)vocab * sizeof *logits);
            compute_logits(&f, MAX_ROWS, logits);
            for (int count = 0; row_counts[count] <= CPU_HEAD_ROWS; count++) {
                int32_t choice[MAX_ROWS];
                int rows = row_counts[count];
                f.m->screen.pause = f.m->screen.backoff = 0;
                head_choose(f.m, &f.packed, f.x, rows, &(head_limits){0}, choice);
                /* the bounds, as the choice has made them */
                for (int first = 0; first < rows; first += SCREEN_ROWS) {
                    int n = rows - first < SCREEN_ROWS ? rows - first : SCREEN_ROWS;
                    float *upper = malloc((size_t)n * (size_t)f.m->head_stride * sizeof *upper);
                    bounds(&s->matrix, 0, s->matrix.blocks, s->row + first, n, upper, (size_t)f.m->head_stride);
                    for (int r = 0; r < n; r++) {
                        for (int o = 0; o < vocab; o++) {
                            const screen_row *row = &s->row[first + r];
                            double bound = (double)upper[(size_t)r * (size_t)f.m->head_stride + (size_t)o];
                            double logit = (double)logits[(size_t)(first + r) * (size_t)vocab + (size_t)o];
                            double loss =
                                (double)s->matrix.rest[o] * (double)row->a + (double)s->matrix.norm[o] * (double)row->b;
                            if (!(logit <= bound && bound <= logit + 2.0001 * loss + 1e-6))
                                fail_msg("%s %d x %d, %d rows, row %d output %d: logit %.9g, bound %.9g, loss %.3g",
                                         kernels->name, vocab, k, rows, first + r, o, logit, bound, loss);
                        }
                    }
                    free(upper);
                }
            }
            free(logits);
            free_head(&f);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------ choices */

/* allowed: NULL, or bits. */
static int32_t expected_choice(const fixture *f, const float *logits, const int *excluded, int n_excluded, int32_t own,
                               const uint32_t *allowed) {
    int32_t best = -1;
    for (int32_t o = 0; o < f->config.vocab; o++) {
        bool out = o == own || (allowed && !(allowed[o / 32] >> (o % 32) & 1));
        if (!isfinite(logits[o]) && !(allowed && out)) return -1;
        for (int i = 0; i < n_excluded; i++) out |= excluded[i] == o;
        if (!out && (best < 0 || logits[o] > logits[best])) best = o;
    }
    return best;
}

/* Masks of every density from none to all, and without: by row, in turns. */
static void check_masked_choices(fixture *f, const char *what, const float *logits, const int *excluded,
                                 int n_excluded) {
    static const double shares[] = {-1, 0, 0.002, 0.02, 0.3, 0.9, 0.999, 1};
    const size_t vocab = (size_t)f->config.vocab, words = (vocab + 31) / 32;
    uint32_t *bits = calloc(MAX_ROWS * words, sizeof *bits);
    for (uint64_t shift = 0; shift < (sweep_short() ? 2 : COUNT(shares)); shift++) {
        const uint32_t *allowed[MAX_ROWS];
        int32_t choice[MAX_ROWS], own[MAX_ROWS];
        memset(bits, 0, MAX_ROWS * words * sizeof *bits);
        for (size_t r = 0; r < MAX_ROWS; r++) {
            const double share = shares[(r + shift * 3) % COUNT(shares)];
            allowed[r] = share < 0 ? NULL : bits + r * words;
            for (size_t o = 0; o < vocab; o++)
                if (random_uniform_at(shift, r * vocab + o) < share) bits[r * words + o / 32] |= 1u << (o % 32);
            own[r] = r % 4 ? -1 : expected_choice(f, logits + r * vocab, excluded, n_excluded, -1, allowed[r]);
        }
        const head_limits limits = {excluded, n_excluded, own, allowed};
        const greedy_head whole = {&f->weights.head, NULL, f->config.logit_softcap};
        for (int screened = 0; screened < 2; screened++) {
            f->m->screen.pause = f->m->screen.backoff = 0;
            if (screened)
                head_choose(f->m, &f->packed, f->x, MAX_ROWS, &limits, choice);
            else
                head_choose_by(f->m, &whole, &f->packed, f->x, MAX_ROWS, &limits, choice);
            for (size_t r = 0; r < MAX_ROWS; r++) {
                int32_t expected = expected_choice(f, logits + r * vocab, excluded, n_excluded, own[r], allowed[r]);
                if (choice[r] != expected)
                    fail_msg("%s, %s, cap %g, a share of %g allowed, screened %d: row %zu chose %d, expected %d", what,
                             f->m->kernels->name, (double)f->config.logit_softcap,
                             shares[(r + shift * 3) % COUNT(shares)], screened, r, choice[r], expected);
            }
        }
    }
    free(bits);
}

/* Returns in how many of the calls the screen was enough. */
static int check_choices(fixture *f, const char *what, const int *excluded, int n_excluded) {
    size_t vocab = (size_t)f->config.vocab;
    float *logits = malloc(MAX_ROWS * vocab * sizeof *logits);
    int enough = 0;
    head_screen second = {0};
    compute_logits(f, MAX_ROWS, logits);
    head_screen_create(f->m, &f->weights.head, &second);
    for (int count = 0; count < ROW_COUNTS; count++) {
        int32_t choice[MAX_ROWS], own[MAX_ROWS], again[MAX_ROWS];
        int rows = row_counts[count];
        for (int r = 0; r < MAX_ROWS; r++) own[r] = -1;
        for (int with_own = 1; with_own >= 0; with_own--) { /* every other row excludes what it would choose */
            for (int r = 1; r < rows && with_own; r += 2)
                own[r] = expected_choice(f, logits + (size_t)r * vocab, excluded, n_excluded, -1, NULL);
            const head_limits limits = {excluded, n_excluded, with_own ? own : NULL, NULL};
            head_choose(f->m, &f->packed, f->x, rows, &limits, choice);
            for (int screened = 0; screened < 2; screened++) { /* as another head, such as an assistant's */
                const greedy_head by = {&f->weights.head, screened ? &second : NULL, f->config.logit_softcap};
                head_choose_by(f->m, &by, &f->packed, f->x, rows, &limits, again);
                assert_memory_equal(again, choice, (size_t)rows * sizeof *choice);
            }
            for (int r = 0; r < rows; r++) {
                int32_t expected =
                    expected_choice(f, logits + (size_t)r * vocab, excluded, n_excluded, with_own ? own[r] : -1, NULL);
                if (choice[r] != expected)
                    fail_msg("%s, %s, cap %g, %d rows, %s: row %d chose %d, expected %d", what, f->m->kernels->name,
                             (double)f->config.logit_softcap, rows, with_own ? "own exclusions" : "none of their own",
                             r, choice[r], expected);
            }
        }
        enough += f->m->screen.bounds && f->m->screen.pause == 0 && f->m->screen.backoff == 0;
    }
    const int pause = f->m->screen.pause, backoff = f->m->screen.backoff;
    check_masked_choices(f, what, logits, excluded, n_excluded);
    f->m->screen.pause = pause;
    f->m->screen.backoff = backoff;
    head_screen_destroy(f->m, &second);
    free(logits);
    return enough;
}

enum { VOCAB = 999, WIDTH = 96 };

static uint16_t *head_row(fixture *f, int o) {
    return (uint16_t *)(uintptr_t)f->weights.head.stream[0] + (size_t)o * WIDTH;
}

static void choices_are_those_of_the_product(void **state) {
    (void)state;
    static const float caps[] = {0, 30};
    FOR_TABLES(kernels)
    for (size_t c = 0; c < COUNT(caps) * 2; c++) {
        if (sweep_short() && (c == 1 || c == 2) != (strcmp(kernels->name, "scalar") == 0)) continue;
        bool screened = screen_bounds_beside(kernels) != NULL, round = c >= COUNT(caps);
        fixture f;
        make_head(&f, kernels, WEIGHT_BF16, VOCAB, WIDTH, caps[c % COUNT(caps)], round, 900);
        head_create(f.m);
        int enough = check_choices(&f, "as it is", NULL, 0);
        assert_int_equal(enough, screened ? ROW_COUNTS : 0);
        int banned[4] = {-1, VOCAB, 3, 0};
        float *logits = malloc((size_t)MAX_ROWS * VOCAB * sizeof *logits);
        compute_logits(&f, MAX_ROWS, logits);
        banned[3] = expected_choice(&f, logits, NULL, 0, -1, NULL); /* the first row's choice */
        check_choices(&f, "largest excluded", banned, 4);
        int32_t best = banned[3];
        free(logits);
        free_head(&f);

        /* copies of the largest before and behind it, and some that differ in the last bit of one weight */
        make_head(&f, kernels, WEIGHT_BF16, VOCAB, WIDTH, caps[c % COUNT(caps)], round, 900);
        for (int i = 0; i < 12; i++) {
            int at = (best + 1 + i * 83) % VOCAB;
            memcpy(head_row(&f, at), head_row(&f, best), WIDTH * sizeof(uint16_t));
            if (i % 3) head_row(&f, at)[i] ^= 1;
        }
        head_create(f.m);
        check_choices(&f, "ties", NULL, 0);
        free_head(&f);

        /* two logits far above the cap, of which the smaller has the lower id: capped, they are equal */
        make_head(&f, kernels, WEIGHT_BF16, VOCAB, WIDTH, caps[c % COUNT(caps)], round, 900);
        for (size_t i = 0; i < WIDTH; i++) {
            float towards = f.x[i] < 0 ? -0.5f : 0.5f;
            head_row(&f, 20)[i] = f32_to_bf16(towards * 16);
            head_row(&f, 700)[i] = f32_to_bf16(towards * 32);
        }
        head_create(f.m);
        check_choices(&f, "equal when capped", NULL, 0);
        free_head(&f);

        /* where the cap is flat, where all logits are equal, and where nothing is a number */
        make_head(&f, kernels, WEIGHT_BF16, VOCAB, WIDTH, caps[c % COUNT(caps)], round, 901);
        head_create(f.m);
        for (size_t i = 0; i < (size_t)MAX_ROWS * WIDTH; i++) f.x[i] *= i / WIDTH % 2 ? 50.0f : -3.0f;
        check_choices(&f, "large logits", NULL, 0);
        memset(f.x + 2 * WIDTH, 0, WIDTH * sizeof *f.x);
        for (size_t i = 0; i < WIDTH; i++) f.x[4 * WIDTH + i] = i % 2 ? 0x1p-149f : 0x1p-140f;
        check_choices(&f, "a row of zeros", NULL, 0);
        f.x[5 * WIDTH + 1] = NAN;
        f.x[7 * WIDTH] = NAN;
        check_choices(&f, "rows that are not numbers", NULL, 0);
        free_head(&f);

        make_head(&f, kernels, WEIGHT_BF16, VOCAB, WIDTH, caps[c % COUNT(caps)], round, 902);
        for (int o = 1; o < VOCAB; o++) memcpy(head_row(&f, o), head_row(&f, 0), WIDTH * sizeof(uint16_t));
        head_create(f.m);
        check_choices(&f, "all equal", NULL, 0);
        if (screened) assert_true(f.m->screen.backoff > 0); /* such rows are not screened for nothing every time */
        free_head(&f);

        make_head(&f, kernels, WEIGHT_BF16, VOCAB, WIDTH, caps[c % COUNT(caps)], round, 900);
        f.account.limit_bytes =
            mem_total(&f.account) + 2 * VOCAB * WIDTH; /* it would take half of what sessions need */
        head_create(f.m);
        assert_null(f.m->screen.bounds);
        check_choices(&f, "no memory for a copy", NULL, 0);
        free_head(&f);

        make_head(&f, kernels, WEIGHT_BF16, VOCAB, WIDTH, caps[c % COUNT(caps)], round, 903);
        head_row(&f, 77)[3] = 0x7fc0;
        head_create(f.m);
        assert_null(f.m->screen.bounds);
        check_choices(&f, "a weight that is no number", NULL, 0);
        free_head(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_hold),
        cmocka_unit_test(choices_are_those_of_the_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
