/* Protects what losslessness rests on: a sampled token depends on (seed, position, logits, history) alone, and the
 * filters keep exactly the set that the definition names (checked against a sort over the whole vocabulary). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/exp_weight.h"
#include "base/random.h"
#include "decode/sampling.h"

enum { VOCAB = 1000 };

static kakeya_sampling defaults(float temperature) {
    return (kakeya_sampling){.temperature = temperature, .top_p = 1, .repetition_penalty = 1};
}

/* kind 0: random; 1: many ties; 2: nearly flat; 3: one token takes all */
static void make_row(float *row, int vocab, uint64_t seed, int kind) {
    for (int i = 0; i < vocab; i++) {
        float x = (float)(random_uniform_at(seed, (uint64_t)i) * 20 - 10);
        row[i] = kind == 1 ? roundf(x) : kind == 2 ? x * 0.01f : x;
    }
    if (kind == 3) row[vocab / 3] = 200;
}

static const float *sort_row;
static int by_logit(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sort_row[x] != sort_row[y]) return sort_row[x] > sort_row[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* The set that top-k, top-p and min-p keep, by full sort in double precision. Tokens within 1e-6 of the top-p border
 * may fall on either side: they are marked 2. */
static void reference_set(const float *row, int vocab, const kakeya_sampling *p, char *keep) {
    int32_t *order = malloc((size_t)vocab * sizeof *order);
    for (int i = 0; i < vocab; i++) order[i] = i;
    sort_row = row;
    qsort(order, (size_t)vocab, sizeof *order, by_logit);
    memset(keep, 0, (size_t)vocab);
    int k = p->top_k && p->top_k < vocab ? p->top_k : vocab;
    double maximum = (double)row[order[0]], total = 0, mass = 0;
    for (int i = 0; i < k; i++) total += exp(((double)row[order[i]] - maximum) / (double)p->temperature);
    for (int i = 0; i < k; i++) {
        double share = exp(((double)row[order[i]] - maximum) / (double)p->temperature);
        double excess = mass - (double)p->top_p * total;
        char in = 1;
        if (p->top_p < 1 && i > 0 && excess >= 0) in = 0;
        if (share < (double)p->min_p) in = 0;
        if ((p->top_p < 1 && i > 0 && fabs(excess) < 1e-6 * total) || fabs(share - (double)p->min_p) < 1e-6) in = 2;
        keep[order[i]] = in;
        mass += share;
    }
    free(order);
}

static void test_filters_match_full_sort(void **state) {
    (void)state;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    static const kakeya_sampling settings[] = {
        {.temperature = 1, .top_k = 1, .top_p = 1, .repetition_penalty = 1},
        {.temperature = 1, .top_k = 64, .top_p = 0.95f, .repetition_penalty = 1},
        {.temperature = 0.7f, .top_p = 0.5f, .repetition_penalty = 1},
        {.temperature = 1.5f, .top_p = 0.999f, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 0, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1, .min_p = 0.1f, .repetition_penalty = 1},
        {.temperature = 2, .top_k = 999, .top_p = 0.9f, .min_p = 0.01f, .repetition_penalty = 1},
        {.temperature = 1, .top_k = 5000, .top_p = 1, .repetition_penalty = 1},
    };
    sampler s;
    sampler_init(&s, VOCAB, NULL, 0, &(sampler_space){.account = &account});
    float row[VOCAB];
    char keep[VOCAB];
    for (size_t setting = 0; setting < sizeof settings / sizeof settings[0]; setting++) {
        for (int kind = 0; kind < 4; kind++) {
            make_row(row, VOCAB, 11 + setting, kind);
            reference_set(row, VOCAB, &settings[setting], keep);
            kakeya_sampling p = settings[setting];
            p.seed = 5;
            assert_int_equal(sampler_configure(&s, &p, NULL, NULL), KAKEYA_OK);
            for (size_t position = 0; position < 400; position++) {
                int32_t token = -1;
                assert_int_equal(sampler_sample(&s, row, NULL, position, &token, NULL), KAKEYA_OK);
                if (!keep[token])
                    fail_msg("setting %zu kind %d position %zu: token %d is outside the kept set", setting, kind,
                             position, token);
            }
        }
    }
    sampler_space_free(s.space);
    assert_int_equal(mem_total(&account), 0);
}

/* What a backend lists of a row (backend.h), made by a full sort. */
static void make_leaders(const float *row, int vocab, float temperature, backend_leaders *out) {
    int32_t *order = malloc((size_t)vocab * sizeof *order);
    for (int i = 0; i < vocab; i++) order[i] = i;
    sort_row = row;
    qsort(order, (size_t)vocab, sizeof *order, by_logit);
    *out = (backend_leaders){.n = vocab < BACKEND_LEADERS ? vocab : BACKEND_LEADERS};
    for (int i = 0; i < out->n; i++) {
        out->token[i] = order[i];
        out->logit[i] = row[order[i]];
    }
    for (int i = 0; i < vocab; i++) out->total += exp_weight(row[i], row[order[0]], temperature);
    free(order);
}

/* The leading logits decide exactly what the whole row does, or say that they cannot. */
static void test_leaders_decide_as_rows_do(void **state) {
    (void)state;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    static const kakeya_sampling settings[] = {
        {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
        {.temperature = 0.3f, .top_p = 1, .repetition_penalty = 1},
        {.temperature = 1, .top_k = 1, .top_p = 1, .repetition_penalty = 1},
        {.temperature = 1, .top_k = 64, .top_p = 0.95f, .repetition_penalty = 1},
        {.temperature = 0.7f, .top_k = 300, .top_p = 0.9f, .repetition_penalty = 1},
        {.temperature = 0.7f, .top_p = 0.5f, .repetition_penalty = 1},
        {.temperature = 1.5f, .top_p = 0.999f, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 0, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1, .min_p = 0.1f, .repetition_penalty = 1},
        {.temperature = 2, .top_k = 999, .top_p = 0.9f, .min_p = 0.01f, .repetition_penalty = 1},
        {.temperature = 1e-38f, .top_p = 1, .repetition_penalty = 1},
    };
    enum { SETTINGS = sizeof settings / sizeof settings[0], POSITIONS = 200 };
    sampler s;
    sampler_init(&s, VOCAB, NULL, 0, &(sampler_space){.account = &account});
    float row[VOCAB];
    backend_leaders leaders;
    int decided_by_setting[SETTINGS] = {0};
    for (size_t setting = 0; setting < SETTINGS; setting++) {
        for (int kind = 0; kind < 4; kind++) {
            make_row(row, VOCAB, 31 + setting, kind);
            make_leaders(row, VOCAB, settings[setting].temperature, &leaders);
            kakeya_sampling p = settings[setting];
            p.seed = 6;
            assert_int_equal(sampler_configure(&s, &p, NULL, NULL), KAKEYA_OK);
            assert_true(sampler_takes_leaders(&s));
            for (size_t position = 0; position < POSITIONS; position++) {
                int32_t whole = -1, token = -1;
                assert_int_equal(sampler_sample(&s, row, NULL, position, &whole, NULL), KAKEYA_OK);
                bool decided = sampler_draw_leaders(&s, &leaders, position, &token);
                if (decided && token != whole)
                    fail_msg("setting %zu kind %d position %zu: leaders give %d, the row %d", setting, kind, position,
                             token, whole);
                decided_by_setting[setting] += decided;
            }
        }
        /* rows of kind 3 always, the others where what is kept fits */
        if (decided_by_setting[setting] < POSITIONS)
            fail_msg("setting %zu: leaders decided %d of %d draws", setting, decided_by_setting[setting],
                     4 * POSITIONS);
    }
    int32_t token;
    leaders.n = 0; /* too many ties: undecided, whatever is asked for */
    assert_false(sampler_draw_leaders(&s, &leaders, 1, &token));
    leaders.n = -1; /* not numbers */
    assert_true(sampler_draw_leaders(&s, &leaders, 1, &token));
    assert_int_equal(token, -1);
    kakeya_sampling p = defaults(1);
    p.repetition_penalty = 1.1f; /* history changes the order: leaders know nothing of it */
    assert_int_equal(sampler_configure(&s, &p, NULL, NULL), KAKEYA_OK);
    assert_false(sampler_takes_leaders(&s));
    const kakeya_logit_bias bias = {.token = 3, .bias = -1};
    const sampler_constraints biased = {.bias = &bias, .n_bias = 1};
    p = defaults(1);
    assert_int_equal(sampler_configure(&s, &p, &biased, NULL), KAKEYA_OK);
    assert_false(sampler_takes_leaders(&s));
    assert_int_equal(sampler_configure(&s, &p, NULL, NULL), KAKEYA_OK);
    assert_true(sampler_takes_leaders(&s));
    sampler_space_free(s.space);
    assert_int_equal(mem_total(&account), 0);
}

/* Weights are those of exp, and the same integers wherever they are made: this table is what a device has to give too.
 */
static void test_weights(void **state) {
    (void)state;
    for (float x = 0; x > -27; x -= 0.013f) {
        double expected = exp((double)x) * (double)((uint64_t)1 << EXP_WEIGHT_BITS);
        double found = (double)exp_weight(x, 0, 1);
        if (fabs(found - expected) > 2e-6 * expected + 1)
            fail_msg("exp(%g): weight %.0f, expected %.1f", (double)x, found, expected);
    }
    assert_int_equal(exp_weight(3, 3, 0.01f), (uint64_t)1 << EXP_WEIGHT_BITS);
    assert_int_equal(exp_weight(-INFINITY, 3, 1), 0);
    assert_int_equal(exp_weight(-100, 3, 1), 0);
    assert_int_equal(exp_weight(2.9f, 3, 1e-38f), 0);
    assert_int_equal(exp_weight(-1, 0, 1), 404487733248);
    assert_int_equal(exp_weight(-20, 0, 1), 2266);
}

/* Frequencies against probabilities: catches a draw that is biased or loses kept tokens. */
static void test_draw_follows_probabilities(void **state) {
    (void)state;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    enum { SMALL = 8, DRAWS = 200000 };
    const float row[SMALL] = {0, 1, 2, -1, 0.5f, 2, -30, 1.5f};
    sampler s;
    sampler_init(&s, SMALL, NULL, 0, &(sampler_space){.account = &account});
    kakeya_sampling p = defaults(0.8f);
    assert_int_equal(sampler_configure(&s, &p, NULL, NULL), KAKEYA_OK);
    size_t count[SMALL] = {0};
    for (size_t position = 0; position < DRAWS; position++) {
        int32_t token;
        assert_int_equal(sampler_sample(&s, row, NULL, position, &token, NULL), KAKEYA_OK);
        count[token]++;
    }
    double total = 0;
    for (int i = 0; i < SMALL; i++) total += exp((double)row[i] / 0.8);
    for (int i = 0; i < SMALL; i++) {
        double expected = exp((double)row[i] / 0.8) / total, sigma = sqrt(expected * (1 - expected) / DRAWS);
        double seen = (double)count[i] / DRAWS;
        if (fabs(seen - expected) > 5 * sigma + 1e-9)
            fail_msg("token %d: frequency %g, probability %g", i, seen, expected);
    }
    sampler_space_free(s.space);
}

static void test_greedy_ties_and_order_of_steps(void **state) {
    (void)state;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    float row[VOCAB];
    memset(row, 0, sizeof row);
    row[700] = row[41] = row[999] = 3;
    const int32_t suppress[] = {41};
    sampler s;
    sampler_init(&s, VOCAB, NULL, 0, &(sampler_space){.account = &account});
    kakeya_sampling p = defaults(0);
    int32_t token;
    assert_int_equal(sampler_configure(&s, &p, NULL, NULL), KAKEYA_OK);
    assert_int_equal(sampler_sample(&s, row, NULL, 9, &token, NULL), KAKEYA_OK);
    assert_int_equal(token, 41);
    assert_int_equal(mem_total(&account), 0); /* plain greedy decoding needs no workspace */
    sampler_space_free(s.space);

    sampler_init(&s, VOCAB, suppress, 1, &(sampler_space){.account = &account});
    assert_int_equal(sampler_configure(&s, &p, NULL, NULL), KAKEYA_OK);
    assert_int_equal(sampler_sample(&s, row, NULL, 9, &token, NULL), KAKEYA_OK);
    assert_int_equal(token, 700);
    assert_true(sampler_suppresses(&s, 41) && !sampler_suppresses(&s, 700));

    /* the penalty counts a token once however often it occurred, and only tokens before the position */
    p.repetition_penalty = 1.2f;
    const int32_t history[] = {700, 700, 700, 999};
    row[700] = 3.5f; /* 3.5 / 1.2 = 2.92; twice would be 2.43 */
    row[999] = 2.9f;
    assert_int_equal(sampler_configure(&s, &p, NULL, NULL), KAKEYA_OK);
    assert_int_equal(sampler_sample(&s, row, history, 3, &token, NULL), KAKEYA_OK);
    assert_int_equal(token, 700);
    row[999] = 3.0f;
    assert_int_equal(sampler_sample(&s, row, history, 3, &token, NULL), KAKEYA_OK);
    assert_int_equal(token, 999);
    assert_int_equal(sampler_sample(&s, row, history, 4, &token, NULL), KAKEYA_OK);
    assert_int_equal(token, 700);
    sampler_space_free(s.space);
    assert_int_equal(mem_total(&account), 0);
}

static void test_depends_on_seed_position_and_row_only(void **state) {
    (void)state;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    float row[VOCAB], other[VOCAB];
    make_row(row, VOCAB, 3, 2);
    make_row(other, VOCAB, 4, 0);
    sampler a, b;
    sampler_init(&a, VOCAB, NULL, 0, &(sampler_space){.account = &account});
    sampler_init(&b, VOCAB, NULL, 0, &(sampler_space){.account = &account});
    kakeya_sampling p = defaults(1);
    p.top_p = 0.9f;
    p.seed = 77;
    assert_int_equal(sampler_configure(&a, &p, NULL, NULL), KAKEYA_OK);
    assert_int_equal(sampler_configure(&b, &p, NULL, NULL), KAKEYA_OK);
    int differs = 0;
    int32_t first[64];
    for (size_t i = 0; i < 64; i++) assert_int_equal(sampler_sample(&a, row, NULL, i, &first[i], NULL), KAKEYA_OK);
    for (size_t i = 64; i-- > 0;) { /* other order, other calls in between */
        int32_t token, ignored;
        assert_int_equal(sampler_sample(&b, other, NULL, i, &ignored, NULL), KAKEYA_OK);
        assert_int_equal(sampler_sample(&b, row, NULL, i, &token, NULL), KAKEYA_OK);
        assert_int_equal(token, first[i]);
        differs += token != first[0];
    }
    assert_true(differs > 32);
    p.seed = 78;
    assert_int_equal(sampler_configure(&b, &p, NULL, NULL), KAKEYA_OK);
    differs = 0;
    for (size_t i = 0; i < 64; i++) {
        int32_t token;
        assert_int_equal(sampler_sample(&b, row, NULL, i, &token, NULL), KAKEYA_OK);
        differs += token != first[i];
    }
    assert_true(differs > 32);
    sampler_space_free(a.space);
    sampler_space_free(b.space);
}

static void test_refuses_bad_values(void **state) {
    (void)state;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    sampler s;
    sampler_init(&s, VOCAB, NULL, 0, &(sampler_space){.account = &account});
    static const kakeya_sampling bad[] = {
        {.temperature = -1, .top_p = 1, .repetition_penalty = 1},
        {.temperature = NAN, .top_p = 1, .repetition_penalty = 1},
        {.top_k = -1, .top_p = 1, .repetition_penalty = 1},
        {.top_p = 1.5f, .repetition_penalty = 1},
        {.top_p = NAN, .repetition_penalty = 1},
        {.top_p = 1, .min_p = -0.1f, .repetition_penalty = 1},
        {.top_p = 1, .repetition_penalty = 0},
        {.top_p = 1, .repetition_penalty = 1.4e-45f},
        {.top_p = 1, .repetition_penalty = 1e4f},
        {.top_p = 1, .repetition_penalty = NAN},
    };
    static const char *const names[] = {"temperature",
                                        "temperature",
                                        "top_k",
                                        "top_p",
                                        "top_p",
                                        "min_p",
                                        "repetition_penalty",
                                        "repetition_penalty",
                                        "repetition_penalty",
                                        "repetition_penalty"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kakeya_error error = {0};
        assert_int_equal(sampler_configure(&s, &bad[i], NULL, &error), KAKEYA_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, names[i]));
    }
    for (int greedy = 0; greedy < 2; greedy++) {
        kakeya_sampling p = defaults(greedy ? 0 : 1);
        assert_int_equal(sampler_configure(&s, &p, NULL, NULL), KAKEYA_OK);
        float row[VOCAB];
        for (int where = 0; where < VOCAB; where += 333) {
            make_row(row, VOCAB, 1, 0);
            row[where] = where == 333 ? INFINITY : NAN;
            kakeya_error error = {0};
            int32_t token;
            assert_int_equal(sampler_sample(&s, row, NULL, 12, &token, &error), KAKEYA_BACKEND);
            assert_non_null(strstr(error.message, "position 12"));
        }
        for (int i = 0; i < VOCAB; i++) row[i] = -INFINITY;
        int32_t token;
        assert_int_equal(sampler_sample(&s, row, NULL, 0, &token, NULL), KAKEYA_BACKEND);
    }
    sampler_space_free(s.space);

    mem_account_init(&account, NULL, 100);
    sampler_init(&s, VOCAB, NULL, 0, &(sampler_space){.account = &account});
    kakeya_sampling p = defaults(1);
    assert_int_equal(sampler_configure(&s, &p, NULL, NULL), KAKEYA_OUT_OF_MEMORY);
    sampler_space_free(s.space);
}

/* Extreme temperatures neither overflow nor divide 0 by 0. */
static void test_extreme_temperatures(void **state) {
    (void)state;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    float row[VOCAB];
    make_row(row, VOCAB, 21, 0);
    int32_t best = 0, token;
    for (int i = 1; i < VOCAB; i++)
        if (row[i] > row[best]) best = i;
    sampler s;
    sampler_init(&s, VOCAB, NULL, 0, &(sampler_space){.account = &account});
    kakeya_sampling p = defaults(1e-38f);
    assert_int_equal(sampler_configure(&s, &p, NULL, NULL), KAKEYA_OK);
    for (size_t position = 0; position < 50; position++) {
        assert_int_equal(sampler_sample(&s, row, NULL, position, &token, NULL), KAKEYA_OK);
        assert_int_equal(token, best);
    }
    p.temperature = 1e30f;
    p.top_p = 0.5f;
    assert_int_equal(sampler_configure(&s, &p, NULL, NULL), KAKEYA_OK);
    for (size_t position = 0; position < 50; position++) {
        assert_int_equal(sampler_sample(&s, row, NULL, position, &token, NULL), KAKEYA_OK);
        assert_in_range(token, 0, VOCAB - 1);
    }
    sampler_space_free(s.space);
}

/* Presence counts a token of the answer once, frequency as often as it occurs; tokens of the prompt count for nothing.
 */
static void test_counts_of_the_answer(void **state) {
    (void)state;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    sampler s;
    sampler_init(&s, VOCAB, NULL, 0, &(sampler_space){.account = &account});
    float row[VOCAB] = {0};
    row[3] = 5;
    row[7] = 4.5f;
    row[9] = 3.25f;
    const int32_t history[] = {3, 3, 3, 7, 3, 3}; /* two of the prompt, then the answer */
    static const struct {
        float presence, frequency;
        size_t n;
        int32_t token;
    } cases[] = {
        {0, 0, 6, 3},       {1, 0, 2, 3}, /* nothing of the answer yet */
        {1, 0, 3, 7},                     /* 4, 4.5, 3.25 */
        {1, 0, 6, 3},                     /* 4, 3.5, 3.25: more than once is once */
        {0, 0.25f, 4, 3},                 /* 4.75, 4.25 */
        {0, 0.5f, 6, 7},                  /* 3.5, 4 */
        {0.5f, 0.5f, 6, 7},               /* 3, 3.5, 3.25 */
        {1, 0.5f, 6, 9},                  /* 2.5, 3, 3.25 */
        {-1, -0.5f, 6, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const sampler_constraints counts = {
            .presence = cases[i].presence, .frequency = cases[i].frequency, .answer_start = 2};
        const kakeya_sampling p = defaults(0);
        int32_t token;
        assert_int_equal(sampler_configure(&s, &p, &counts, NULL), KAKEYA_OK);
        assert_int_equal(sampler_is_argmax(&s), i == 0);
        assert_int_equal(sampler_sample(&s, row, history, cases[i].n, &token, NULL), KAKEYA_OK);
        if (token != cases[i].token) fail_msg("case %zu: token %d, expected %d", i, token, cases[i].token);
    }
    const sampler_constraints bad = {.presence = NAN};
    const kakeya_sampling p = defaults(0);
    kakeya_error error = {0};
    assert_int_equal(sampler_configure(&s, &p, &bad, &error), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "presence_penalty"));
    sampler_space_free(s.space);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_of_the_answer),
        cmocka_unit_test(test_filters_match_full_sort),
        cmocka_unit_test(test_leaders_decide_as_rows_do),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_draw_follows_probabilities),
        cmocka_unit_test(test_greedy_ties_and_order_of_steps),
        cmocka_unit_test(test_depends_on_seed_position_and_row_only),
        cmocka_unit_test(test_refuses_bad_values),
        cmocka_unit_test(test_extreme_temperatures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
