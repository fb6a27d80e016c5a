/* Rows that stand in the place of tokens, on the MLX backend (tests/unit/test_vision.c, which is built for it, too, has
 * the values of transformers): the CPU backend as oracle, and bits that depend neither on how a prompt is cut nor on
 * how its other rows are computed, in every format of K/V, with pictures that are longer than the window, than a tile
 * and than a group of rows whose scores are computed together. */
#include <math.h>

#include "backend/mlx/mlx.h"
#include "mlx/host_kernels.h"
#include "sweep.h"
#include "tiny.h"

#define VISION KAKEYA_TEST_DATA "/vision/tiny-tower"

/* Text, a picture, text, two pictures beside each other, text, an answer, and a turn with one more. */
enum {
    FIRST = 13,
    LONG = 150,
    SECOND = FIRST + LONG + 20,
    SHORT = 9,
    THIRD = SECOND + SHORT,
    TURN = THIRD + 40 + 11,
    ANSWER = 6,
    LATER = TURN + ANSWER + 3,
    MIDDLE = 37,
    ALL = LATER + MIDDLE + 5,
    PICTURES = 4,
};
static const struct {
    int begin, n;
} picture[PICTURES] = {{FIRST, LONG}, {SECOND, SHORT}, {THIRD, 40}, {LATER, MIDDLE}};

static void open_model(tiny *d, const char *backend) {
    *d = (tiny){.ops = backend_find(backend, NULL)};
    assert_non_null(d->ops);
    mem_account_init(&d->account, NULL, 0);
    REQUIRE_OK(language_model_open(VISION, &d->account, &d->verifier, error));
    assert_true(LONG > d->verifier->config.sliding_window && LONG > 2 * MLX_ATTENTION_ROWS);
    tiny_complete(d, KAKEYA_PRECISION_F32, NULL, 1);
}

/* Rows [at, end), of which pictures are not cut. */
static int piece_end(int at, int most) {
    int end = at + most;
    for (int i = 0; i < PICTURES; i++)
        if (picture[i].begin < end && end < picture[i].begin + picture[i].n)
            end = picture[i].begin > at ? picture[i].begin : picture[i].begin + picture[i].n;
    return end;
}

/* Logits [ALL][vocab] of prompts in pieces of at most `chunk` rows and an answer in blocks of `block`. */
static float *run(tiny *d, const tiny_policy *p, kv_format format, bool both_ways, int chunk, int block) {
    const size_t vocab = (size_t)d->verifier->config.vocab, hidden = (size_t)d->verifier->config.hidden;
    float *logits = calloc(ALL * vocab, sizeof *logits), *rows = calloc(ALL * hidden, sizeof *rows);
    int32_t tokens[ALL];
    assert_true(logits && rows);
    tiny_tokens(tokens, ALL, 17);
    for (size_t i = 0; i < ALL * hidden; i++) rows[i] = 3 * sinf((float)i * 0.7f);
    backend_cache *cache = tiny_cache(d, p, format);
    for (int at = 0, end; at < ALL; at = end) {
        const bool answers = at >= TURN && at < TURN + ANSWER;
        const int turn = at < TURN ? TURN : answers ? TURN + ANSWER : ALL;
        backend_given given[PICTURES];
        int n = 0;
        end = piece_end(at, answers ? block : chunk);
        if (end > turn) end = turn;
        for (int i = 0; i < PICTURES; i++)
            if (picture[i].begin >= at && picture[i].begin < end)
                given[n++] = (backend_given){.first = picture[i].begin - at,
                                             .n = picture[i].n,
                                             .rows = rows + (size_t)picture[i].begin * hidden,
                                             .both_ways = both_ways};
        backend_segment segment = tiny_rows(cache, answers ? SEGMENT_DECODE : SEGMENT_PROMPT, tokens + at, end - at,
                                            logits + (size_t)at * vocab);
        segment.given = n ? given : NULL;
        segment.n_given = n;
        REQUIRE_OK(d->ops->forward(d->backend, &segment, 1, error));
        REQUIRE_OK(d->ops->cache_commit(cache, end - at, error));
    }
    d->ops->cache_destroy(cache);
    free(rows);
    return logits;
}

/* Whatever way prompts and answers are computed in. */
static void check_cuts(const char *what, const tiny_policy *p, kv_format format, bool both_ways, const float *wanted) {
    static const int chunks[] = {31, 200};
    tiny d;
    open_model(&d, "mlx");
    const size_t vocab = (size_t)d.verifier->config.vocab;
    float *whole = run(&d, p, format, both_ways, ALL, ANSWER);
    if (wanted) assert_close_relative(what, whole, wanted, ALL * vocab, 1e-2);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        float *parts = run(&d, p, format, both_ways, chunks[i], 1 + (int)i);
        assert_same_bits(what, parts, whole, ALL * vocab);
        free(parts);
    }
    assert_true(d.backend->needed_bytes && d.backend->needed_bytes <= d.backend->foreseen_bytes);
    free(whole);
    tiny_close(&d);
}

static void pictures_are_those_of_the_cpu(void **state) {
    (void)state;
    static const struct {
        int policy;
        kv_format format;
        bool both_ways;
    } cases[] = {{0, KV_FORMAT_F32, true}, {1, KV_FORMAT_BF16, true}, {0, KV_FORMAT_F32, false},
                 {0, KV_FORMAT_Q8, true},  {2, KV_FORMAT_F32, true},  {0, KV_FORMAT_Q4, true},
                 {2, KV_FORMAT_Q8, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases - (sweep_short() ? 3 : 0); i++) {
        const tiny_policy *p = &tiny_policies[cases[i].policy];
        tiny cpu;
        open_model(&cpu, "cpu");
        float *wanted = run(&cpu, p, cases[i].format, cases[i].both_ways, ALL, ANSWER);
        /* roundings to codes differ, and random weights let differences grow */
        check_cuts(p->name, p, cases[i].format, cases[i].both_ways, cases[i].format < KV_FORMAT_Q8 ? wanted : NULL);
        free(wanted);
        tiny_close(&cpu);
    }
}

/* Text by own kernels or row by row beside pictures, which neither can compute. */
static void other_ways_change_no_bit(void **state) {
    (void)state;
    static const mlx_fault faults[] = {{MLX_OPS, {false, false, false}},          /* prompts by tiles */
                                       {MLX_OP_ATTENTION, {false, true, false}}}; /* prompts row by row */
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        mlx_kernels_run_with(host_kernels_run);
        mlx_device_inject(&faults[i]);
        tiny d;
        open_model(&d, "mlx");
        assert_int_equal(d.backend->prompt_rows, i ? 1 : MLX_PROMPT_ROWS);
        assert_int_equal(d.backend->decode_rows, 0);
        tiny_close(&d);
        check_cuts(i ? "row by row" : "tiles", &tiny_policies[0], i ? KV_FORMAT_BF16 : KV_FORMAT_F32, true, NULL);
        mlx_kernels_run_with(NULL);
        mlx_device_inject(NULL);
    }
}

/* A row that is no number reaches the rows of its picture in sliding layers, and no text before it. */
static void what_is_no_number_stays_behind(void **state) {
    (void)state;
    enum { TEXT = 40, ROWS = 70, REST = 5, N = TEXT + ROWS + REST };
    tiny d;
    open_model(&d, "mlx");
    const size_t vocab = (size_t)d.verifier->config.vocab, hidden = (size_t)d.verifier->config.hidden;
    float *rows = calloc(ROWS * hidden, sizeof *rows), *logits[2];
    int32_t tokens[N];
    tiny_tokens(tokens, N, 23);
    for (size_t i = 0; i < ROWS * hidden; i++) rows[i] = sinf((float)i);
    for (int spoilt = 0; spoilt < 2; spoilt++) {
        const backend_given given = {.first = TEXT, .n = ROWS, .rows = rows, .both_ways = true};
        backend_cache *cache = tiny_cache(&d, &tiny_policies[0], KV_FORMAT_F32);
        if (spoilt) rows[(ROWS - 1) * hidden] = NAN;
        logits[spoilt] = calloc(N * vocab, sizeof *logits[spoilt]);
        backend_segment segment = tiny_rows(cache, SEGMENT_PROMPT, tokens, N, logits[spoilt]);
        segment.given = &given;
        segment.n_given = 1;
        REQUIRE_OK(d.ops->forward(d.backend, &segment, 1, error));
        REQUIRE_OK(d.ops->cache_commit(cache, N, error));
        d.ops->cache_destroy(cache);
    }
    assert_same_bits("text before the picture", logits[1], logits[0], TEXT * vocab);
    for (size_t i = TEXT * vocab; i < N * vocab; i++)
        if (!isnan(logits[1][i])) fail_msg("row %zu is a number", i / vocab);
    for (int i = 0; i < 2; i++) free(logits[i]);
    free(rows);
    tiny_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_are_those_of_the_cpu),
        cmocka_unit_test(other_ways_change_no_bit),
        cmocka_unit_test(what_is_no_number_stays_behind),
    };
    return cmocka_run_group_tests_name("mlx images", tests, NULL, NULL);
}
