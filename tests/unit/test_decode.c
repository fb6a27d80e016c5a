/* The parts of the decode loop by themselves: n-gram drafts against a search by definition, stop strings whatever the
 * cuts, and the choice of draft lengths on simulated machines and texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "decode/draft_control.h"
#include "decode/ngram.h"
#include "decode/prediction.h"
#include "decode/stop_text.h"

/* ------------------------------------------------------------------------------------------------------ n-grams */

/* Latest earlier place with the longest common suffix (of at most NGRAM_MAX_MATCH), by looking at all. */
static int ngram_by_definition(const int32_t *tokens, size_t n, int max, int32_t *drafts, int *match) {
    size_t best = 0;
    *match = 0;
    for (size_t place = n - 1; place-- > 0;) {
        int length = 0;
        while (length < NGRAM_MAX_MATCH && (size_t)length <= place &&
               tokens[place - (size_t)length] == tokens[n - 1 - (size_t)length])
            length++;
        if (length > *match) {
            *match = length;
            best = place;
        }
    }
    if (*match < NGRAM_MIN_MATCH) return 0;
    for (int i = 0; i < max; i++) {
        size_t source = best + 1 + (size_t)i;
        drafts[i] = source < n ? tokens[source] : drafts[source - n];
    }
    return max;
}

static void test_ngram_matches_definition(void **state) {
    (void)state;
    enum { VOCAB = 6, N = 200, MAX = 12 };
    mem_account account;
    mem_account_init(&account, NULL, 0);
    ngram_index index = {0};
    int32_t tokens[N], expected[MAX], found[MAX];
    size_t n = 0;
    for (uint64_t step = 0; step < 3000; step++) { /* grow, and now and then fall back and grow differently */
        if (n == N || random_uniform_at(3, step) < 0.05) {
            size_t keep = (size_t)(random_uniform_at(4, step) * (double)n);
            ngram_truncate(&index, tokens, keep);
            n = keep;
        }
        tokens[n++] = (int32_t)(random_uniform_at(5, step) * VOCAB);
        assert_int_equal(ngram_reserve(&index, n, &account, NULL), KAKEYA_OK);
        if (step % 3) continue; /* several tokens at once */
        ngram_extend(&index, tokens, n);
        int match, expected_match;
        int drafted = ngram_draft(&index, tokens, MAX, found, &match);
        assert_int_equal(drafted, ngram_by_definition(tokens, n, MAX, expected, &expected_match));
        assert_int_equal(match, expected_match);
        if (memcmp(found, expected, (size_t)drafted * sizeof *found) != 0) fail_msg("step %d: other drafts", (int)step);
    }
    ngram_truncate(&index, tokens, 0);
    ngram_free(&index);
    assert_int_equal(mem_total(&account), 0);
}

/* Tokens that were dropped do not fill the table, nor does what they link to come back. */
static void test_ngram_forgets(void **state) {
    (void)state;
    enum { N = 300, ROUNDS = 40 };
    mem_account account;
    mem_account_init(&account, NULL, 0);
    ngram_index index = {0};
    size_t held = 0;
    for (int32_t round = 0; round < ROUNDS; round++) {
        int32_t tokens[N], drafts[4];
        int match;
        for (int32_t i = 0; i < N; i++) tokens[i] = round * N + i % (N - 10); /* the last ten have been before */
        assert_int_equal(ngram_reserve(&index, N, &account, NULL), KAKEYA_OK);
        ngram_extend(&index, tokens, N);
        assert_int_equal(ngram_draft(&index, tokens, 4, drafts, &match), 4);
        assert_int_equal(drafts[0], round * N + 10);
        ngram_truncate(&index, tokens, 0);
        if (round == 1) held = mem_total(&account);
        if (round > 1) assert_int_equal(mem_total(&account), held);
    }
    ngram_free(&index);
}

static void test_ngram_drafts_loops_at_full_length(void **state) {
    (void)state;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    ngram_index index = {0};
    assert_int_equal(ngram_reserve(&index, 10, &account, NULL), KAKEYA_OK);
    const int32_t tokens[] = {9, 1, 2, 3, 1, 2, 3};
    const int32_t expected[] = {1, 2, 3, 1, 2, 3, 1, 2, 3, 1};
    int32_t drafts[10];
    int match;
    ngram_extend(&index, tokens, 7);
    assert_int_equal(ngram_draft(&index, tokens, 10, drafts, &match), 10);
    assert_int_equal(match, 3);
    assert_memory_equal(drafts, expected, sizeof expected);
    ngram_free(&index);
}

/* -------------------------------------------------------------------------------------------------- stop strings */

/* Where the stop string that is completed first begins (of those, the longest), or the length of the text. */
static size_t stop_by_definition(const char *text, size_t bytes, const char *const *stops, size_t n, bool *stopped) {
    for (size_t end = 1; end <= bytes; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n; i++) {
            size_t length = strlen(stops[i]);
            if (length <= end && length > longest && memcmp(text + end - length, stops[i], length) == 0)
                longest = length;
        }
        if (longest) {
            *stopped = true;
            return end - longest;
        }
    }
    *stopped = false;
    return bytes;
}

static void test_stop_strings_whatever_the_cuts(void **state) {
    (void)state;
    static const char *const sets[][3] = {
        {"aab", "never", "abc"}, {"b", "abcd", "cc"}, {"aaaa", "aba", "caab"}, {"abcabd", "bcabc", "zz"}};
    mem_account account;
    mem_account_init(&account, NULL, 0);
    for (uint64_t round = 0; round < 4000; round++) {
        const char *const *stops = sets[round % 4];
        char text[24], delivered[64] = "";
        size_t bytes = 4 + (size_t)(random_uniform_at(round, 1000) * 20), n = 0, at = 0;
        for (size_t i = 0; i < bytes; i++) text[i] = "abcd"[(int)(random_uniform_at(round, i) * (round % 3 ? 3 : 4))];
        stop_text s;
        assert_int_equal(stop_text_create(&s, stops, 3, &account, NULL), KAKEYA_OK);
        bool stopped = false, expected_stop;
        size_t tail = (size_t)(random_uniform_at(round, 3000) * 5); /* comes with the flush */
        for (uint64_t cut = 0; at < bytes - tail && !stopped; cut++) {
            size_t piece = (size_t)(random_uniform_at(round, 2000 + cut) * 4);
            if (piece > bytes - tail - at) piece = bytes - tail - at;
            assert_int_equal(stop_text_push(&s, text + at, piece, &stopped, NULL), KAKEYA_OK);
            memcpy(delivered + n, s.text, s.released);
            n += s.released;
            at += piece;
        }
        if (!stopped) { /* the flush adds to what the last push released */
            n -= s.released;
            assert_int_equal(stop_text_flush(&s, text + at, tail, &stopped, NULL), KAKEYA_OK);
            memcpy(delivered + n, s.text, s.released);
            n += s.released;
        }
        size_t expected = stop_by_definition(text, bytes, stops, 3, &expected_stop);
        if (stopped != expected_stop || n != expected || memcmp(delivered, text, n) != 0)
            fail_msg("round %d: '%.*s' delivered '%.*s', expected %zu bytes", (int)round, (int)bytes, text, (int)n,
                     delivered, expected);
        stop_text_free(&s);
    }
    assert_int_equal(mem_total(&account), 0);
}

/* A C string cannot hold U+0000; its spelling stands for it. */
static void test_stop_strings_with_nul(void **state) {
    (void)state;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    const char *const stops[] = {"b\xC0\x80"
                                 "c"};
    bool stopped;
    stop_text s;
    assert_int_equal(stop_text_create(&s, stops, 1, &account, NULL), KAKEYA_OK);
    assert_int_equal(stop_text_push(&s, "a\0b\0", 4, &stopped, NULL), KAKEYA_OK);
    assert_false(stopped);
    assert_int_equal(s.released, 2);
    assert_memory_equal(s.text, "a\0", 2);
    assert_int_equal(stop_text_push(&s, "cd", 2, &stopped, NULL), KAKEYA_OK);
    assert_true(stopped);
    assert_int_equal(s.released, 0);
    stop_text_free(&s);
    assert_int_equal(mem_total(&account), 0);
}

static void test_stop_strings_refused(void **state) {
    (void)state;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    static const char *const bad[] = {"", "\xff", "a\xC3", "\xA9"};
    for (size_t i = 0; i < 4; i++) {
        const char *const stops[] = {"fine", bad[i]};
        stop_text s;
        kakeya_error error = {0};
        assert_int_equal(stop_text_create(&s, stops, 2, &account, &error), KAKEYA_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "stop string 1"));
        assert_int_equal(mem_total(&account), 0);
    }
    stop_text s; /* pieces longer than any expected only make it grow */
    assert_int_equal(stop_text_create(&s, NULL, 0, &account, NULL), KAKEYA_OK);
    static char large[10000];
    memset(large, 'x', sizeof large);
    bool stopped;
    assert_int_equal(stop_text_push(&s, large, sizeof large, &stopped, NULL), KAKEYA_OK);
    assert_int_equal(s.released, sizeof large);
    assert_memory_equal(s.text, large, sizeof large);
    stop_text_free(&s);
}

/* ------------------------------------------------------------------------------------------------- draft lengths
 * A simulated machine: verify(rows) by a cost shape, drafts at a fixed cost, times disturbed by noise and spikes. A
 * simulated text: each draft is right with probability q given that all before it were. */

enum shape { SHAPE_FREE = 0, SHAPE_MILD, SHAPE_HALF, SHAPE_DEAR, SHAPE_STEPS, SHAPES };

static double verify_cost(int shape, int rows) {
    static const double per_row[] = {0.02, 0.15, 0.45, 0.9};
    if (shape == SHAPE_STEPS) return 1 + 0.8 * ((rows - 1) / 4);
    return 1 + per_row[shape] * (rows - 1);
}

static const double draft_cost = 0.3, chain_cost = 0.06; /* of a block; of each draft of an assistant */
enum { LONGEST = 7 };

typedef struct simulation {
    int shape;
    double q, ngram_q; /* ngram_q < 0: no matches */
    double more_q;     /* of what continues a DFlash draft; 0: nothing does */
    uint64_t seed, draws;
    double seconds;
    long tokens, by_source[DRAFT_NGRAM + 1], looked_up;
    double chain_q; /* of an assistant's drafts */
} simulation;

static double uniform(simulation *s) { return random_uniform_at(s->seed, s->draws++); }

static double disturbed(simulation *s, double seconds) {
    double factor = 0.95 + 0.1 * uniform(s);
    return uniform(s) < 0.03 ? 3 * factor * seconds : factor * seconds;
}

/* A prediction whose tokens are right with probability q each, until the first wrong one. */
static void predict(simulation *s, double q, int n, int32_t *tokens) {
    bool right = true;
    for (int i = 0; i < n; i++) {
        right = right && uniform(s) < q;
        tokens[i] = right ? (int32_t)(s->tokens + i) : -1;
    }
}

static const int dflash_alone[BACKEND_DRAFTERS] = {[BACKEND_BLOCK_DRAFTER] = LONGEST};

static double drafting_cost(backend_drafter drafter, int drafts) {
    return drafter == BACKEND_ASSISTANT ? chain_cost * drafts : draft_cost;
}

/* Token number i of the text is i, so a prediction can be checked by counting. */
static void simulate(simulation *s, draft_control *control, long tokens) {
    int32_t shadow_tokens[LONGEST];
    for (long end = s->tokens + tokens; s->tokens < end;) {
        bool ngrams = s->ngram_q >= 0;
        draft_plan plan = draft_control_plan(control, LONGEST, ngrams ? LONGEST : 0, ngrams ? 3 : 0);
        draft_block block = {.source = plan.source,
                             .asked = plan.length,
                             .drafted = plan.length,
                             .ngram_match = plan.source == DRAFT_NGRAM ? 3 : 0};
        if (plan.source == DRAFT_DFLASH && s->more_q > 0) {
            block.ngram_match = NGRAM_MAX_MATCH;
            block.looked_up = draft_control_extend(control, BACKEND_BLOCK_DRAFTER, plan.length,
                                                   BACKEND_MAX_DRAFT - plan.length, NGRAM_MAX_MATCH, NULL)
                                  .more;
            block.drafted += block.looked_up;
            s->looked_up += block.looked_up;
        }
        double verify = verify_cost(s->shape, block.drafted + 1), shadow = 0;
        if (plan.source == DRAFT_DFLASH && s->more_q > 0) {
            int32_t both[BACKEND_MAX_DRAFT];
            predict(s, 1, plan.length, both); /* whether the drafts themselves hold is decided below */
            s->tokens += plan.length;
            predict(s, s->more_q, BACKEND_MAX_DRAFT - plan.length, both + plan.length);
            s->tokens -= plan.length;
            draft_control_shadow_extension(control, NGRAM_MAX_MATCH, both, plan.length, block.drafted,
                                           BACKEND_MAX_DRAFT);
        }
        block.verify_seconds = disturbed(s, verify);
        s->seconds += verify;
        if (draft_source_asks(plan.source)) {
            double drafting = drafting_cost(draft_source_drafter(plan.source), plan.length);
            block.draft_seconds = disturbed(s, drafting);
            s->seconds += drafting;
        }
        double q = plan.source == DRAFT_NGRAM ? s->ngram_q : plan.source == DRAFT_ASSISTANT ? s->chain_q : s->q;
        while (block.accepted < block.drafted &&
               uniform(s) < (block.accepted < block.drafted - block.looked_up ? q : s->more_q))
            block.accepted++;
        if (plan.source != DRAFT_NGRAM && ngrams) {
            predict(s, s->ngram_q, LONGEST, shadow_tokens);
            draft_control_shadow(control, DRAFT_NGRAM, 3, shadow_tokens, 0, LONGEST);
        }
        if (plan.shadow_length) {
            double drafting = drafting_cost(plan.shadow, plan.shadow_length);
            shadow = disturbed(s, drafting);
            s->seconds += drafting;
            predict(s, plan.shadow == BACKEND_ASSISTANT ? s->chain_q : s->q, plan.shadow_length, shadow_tokens);
            draft_control_shadow(control, draft_source_of(plan.shadow), 0, shadow_tokens, 0, plan.shadow_length);
        }
        for (int i = 0; i <= block.accepted; i++) draft_control_token(control, (int32_t)s->tokens++);
        draft_control_record(control, &block,
                             &(shadow_result){.drafter = plan.shadow, .drafts = plan.shadow_length, .seconds = shadow});
        s->by_source[plan.source] += block.accepted + 1;
    }
}

/* Seconds per token of the best fixed length, 0 included. */
static double best_fixed(int shape, double q, double drafting) {
    double best = verify_cost(shape, 1);
    for (int length = 1; length <= LONGEST; length++) {
        double tokens = 1, reached = 1;
        for (int i = 0; i < length; i++) tokens += reached *= q;
        double seconds = (verify_cost(shape, length + 1) + drafting) / tokens;
        if (seconds < best) best = seconds;
    }
    return best;
}

/* At most 2 % slower than plain autoregression wherever that is best, and within 5 % of the best fixed length wherever
 * drafting gains a fifth or more. */
static void test_control_finds_the_best_length(void **state) {
    (void)state;
    static const double rates[] = {0, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 1};
    enum { TOKENS = 3000, RUNS = 8 };
    for (int shape = 0; shape < SHAPES; shape++) {
        for (size_t r = 0; r < sizeof rates / sizeof rates[0]; r++) {
            double seconds = 0;
            for (uint64_t run = 0; run < RUNS; run++) {
                simulation s = {.shape = shape, .q = rates[r], .ngram_q = -1, .seed = 100 + run};
                draft_control control;
                draft_control_init(&control, NULL, dflash_alone, NULL);
                simulate(&s, &control, TOKENS);
                seconds += s.seconds / (double)s.tokens / RUNS;
            }
            double best = best_fixed(shape, rates[r], draft_cost), plain = verify_cost(shape, 1);
            double allowed = best * 1.2 <= plain ? best * 1.05 : plain * 1.02;
            if (seconds > allowed)
                fail_msg("shape %d, acceptance %g: %.4f per token, the best fixed length takes %.4f, plain %.4f", shape,
                         rates[r], seconds, best, plain);
        }
    }
}

/* The text turns random, and back: drafting stops within a few blocks and is taken up again. */
static void test_control_follows_the_text(void **state) {
    (void)state;
    for (int shape = SHAPE_FREE; shape <= SHAPE_MILD; shape++) {
        simulation s = {.shape = shape, .q = 0.95, .ngram_q = -1, .seed = 7};
        draft_control control;
        draft_control_init(&control, NULL, dflash_alone, NULL);
        simulate(&s, &control, 400);
        for (int phase = 0; phase < 3; phase++) {
            double best_drafting = best_fixed(shape, 0.95, draft_cost), plain = verify_cost(shape, 1);
            s.q = 0;
            s.seconds = 0;
            simulate(&s, &control, 400);
            if (s.seconds > 400 * plain * 1.08)
                fail_msg("shape %d: random text took %.1f, plain %.1f", shape, s.seconds, 400 * plain);
            s.q = 0.95;
            long before = s.tokens;
            s.seconds = 0;
            simulate(&s, &control, 1500);
            double expected = (double)(s.tokens - before) * best_drafting;
            if (s.seconds > expected * 1.25)
                fail_msg("shape %d: easy text took %.1f, at best %.1f", shape, s.seconds, expected);
        }
    }
}

/* Without a drafter, and beside one: n-grams are used where they pay, and only there. */
static void test_control_uses_ngrams(void **state) {
    (void)state;
    for (int drafter = 0; drafter < 2; drafter++) {
        for (int good = 0; good < 2; good++) {
            simulation s = {.shape = SHAPE_MILD, .q = 0.3, .ngram_q = good ? 0.95 : 0.02, .seed = 21};
            draft_control control;
            draft_control_init(&control, NULL, drafter ? dflash_alone : (const int[BACKEND_DRAFTERS]){0}, NULL);
            simulate(&s, &control, 2000);
            double per_token = s.seconds / (double)s.tokens;
            double best = best_fixed(SHAPE_MILD, s.ngram_q, 0);
            if (per_token > best * 1.05)
                fail_msg("drafter %d, good %d: %.3f per token, best %.3f", drafter, good, per_token, best);
            assert_true(good ? s.by_source[DRAFT_NGRAM] > 1800 : s.by_source[DRAFT_NGRAM] < 100);
            if (!drafter) assert_int_equal(s.by_source[DRAFT_DFLASH], 0);
        }
    }
}

/* A text that continues DFlash drafts well makes blocks longer than the drafter's; one that does not costs nothing. */
static void test_control_extends_drafts(void **state) {
    (void)state;
    for (int good = 0; good < 2; good++) {
        simulation s = {.shape = SHAPE_FREE, .q = 0.98, .ngram_q = -1, .more_q = good ? 0.97 : 0.02, .seed = 31};
        draft_control control;
        draft_control_init(&control, NULL, dflash_alone, NULL);
        simulate(&s, &control, 3000);
        double per_token = s.seconds / (double)s.tokens, alone = best_fixed(SHAPE_FREE, s.q, draft_cost);
        double reached = 1, tokens = 1;
        for (int i = 0; i < BACKEND_MAX_DRAFT; i++) tokens += reached *= i < LONGEST ? s.q : s.more_q;
        double extended = (verify_cost(SHAPE_FREE, BACKEND_MAX_DRAFT + 1) + draft_cost) / tokens;
        if (good && per_token > extended * 1.05)
            fail_msg("good continuations: %.4f per token, full blocks take %.4f, DFlash alone %.4f", per_token,
                     extended, alone);
        if (!good && (per_token > alone * 1.05 || s.looked_up > 200))
            fail_msg("bad continuations, %ld verified: %.4f per token, DFlash alone %.4f", s.looked_up, per_token,
                     alone);
    }
    draft_control control; /* probes are about DFlash alone */
    draft_control_init(&control, NULL, dflash_alone, NULL);
    for (int m = 0; m <= NGRAM_MAX_MATCH; m++) {
        for (int i = 0; i < BACKEND_MAX_DRAFT; i++)
            control.extension[m].rate[i] = control.drafter[BACKEND_BLOCK_DRAFTER].acceptance.rate[i] = 1;
    }
    assert_int_equal(draft_control_extend(&control, BACKEND_BLOCK_DRAFTER, LONGEST, 5, NGRAM_MAX_MATCH, NULL).more, 5);
    /* drafts that do not hold from the fourth on: what followed the first three is worth more than all seven */
    for (int i = 3; i < BACKEND_MAX_DRAFT; i++) control.drafter[BACKEND_BLOCK_DRAFTER].acceptance.rate[i] = 0.1f;
    draft_extension all = draft_control_extend(&control, BACKEND_BLOCK_DRAFTER, LONGEST, 9, NGRAM_MAX_MATCH, NULL);
    draft_extension begun = draft_control_extend(&control, BACKEND_BLOCK_DRAFTER, 3, 9, NGRAM_MAX_MATCH, NULL);
    assert_true(begun.value > all.value && begun.more == 9);
    control.probing = true;
    assert_int_equal(draft_control_extend(&control, BACKEND_BLOCK_DRAFTER, LONGEST, 5, NGRAM_MAX_MATCH, NULL).more, 0);
}

/* Seconds per token of the best fixed number of an assistant's drafts. */
static double best_chain(int shape, double q) {
    double best = verify_cost(shape, 1);
    for (int length = 1; length <= LONGEST; length++) {
        double tokens = 1, reached = 1;
        for (int i = 0; i < length; i++) tokens += reached *= q;
        double seconds = (verify_cost(shape, length + 1) + chain_cost * length) / tokens;
        if (seconds < best) best = seconds;
    }
    return best;
}

/* A DFlash drafter and an assistant together: the better one of the two is found, wherever it lies, and where neither
 * pays it is plain decoding. */
static void test_control_chooses_the_drafter(void **state) {
    (void)state;
    static const double rates[][2] = {{0.9, 0.3}, {0.3, 0.9}, {0.8, 0.8}, {0.95, 0.6}, {0.5, 0.7}, {0.02, 0.02}};
    static const int both[BACKEND_DRAFTERS] = {LONGEST, LONGEST};
    enum { TOKENS = 3000, RUNS = 8 };
    for (int shape = 0; shape < SHAPES; shape++) {
        for (size_t r = 0; r < sizeof rates / sizeof rates[0]; r++) {
            double seconds = 0;
            long by_source[DRAFT_NGRAM + 1] = {0};
            for (uint64_t run = 0; run < RUNS; run++) {
                simulation s = {
                    .shape = shape, .q = rates[r][0], .chain_q = rates[r][1], .ngram_q = -1, .seed = 900 + run};
                draft_control control;
                draft_control_init(&control, NULL, both, NULL);
                simulate(&s, &control, TOKENS);
                seconds += s.seconds / (double)s.tokens / RUNS;
                for (int i = 0; i <= DRAFT_NGRAM; i++) by_source[i] += s.by_source[i];
            }
            double dflash = best_fixed(shape, rates[r][0], draft_cost), chain = best_chain(shape, rates[r][1]);
            double plain = verify_cost(shape, 1), best = dflash < chain ? dflash : chain;
            double found = shape == SHAPE_STEPS ? 1.15 : 1.08; /* stairs hide the best number of drafts */
            double allowed = best * 1.2 <= plain ? best * found : plain * 1.03;
            if (seconds > allowed)
                fail_msg("shape %d, acceptance %g and %g: %.4f per token; DFlash %.4f, assistant %.4f, plain %.4f",
                         shape, rates[r][0], rates[r][1], seconds, dflash, chain, plain);
            if (best * 1.3 > plain) continue;
            if (dflash * 1.3 < chain) assert_true(by_source[DRAFT_DFLASH] > 8 * by_source[DRAFT_ASSISTANT]);
            if (chain * 1.3 < dflash) assert_true(by_source[DRAFT_ASSISTANT] > 8 * by_source[DRAFT_DFLASH]);
        }
    }
}

/* The text turns from one that DFlash knows to one that the assistant knows, and back. */
static void test_control_changes_the_drafter(void **state) {
    (void)state;
    static const int both[BACKEND_DRAFTERS] = {LONGEST, LONGEST};
    simulation s = {.shape = SHAPE_MILD, .q = 0.95, .chain_q = 0.1, .ngram_q = -1, .seed = 77};
    draft_control control;
    draft_control_init(&control, NULL, both, NULL);
    simulate(&s, &control, 400);
    for (int phase = 0; phase < 4; phase++) {
        const bool chain = phase % 2 == 0;
        s.q = chain ? 0.1 : 0.95;
        s.chain_q = chain ? 0.95 : 0.1;
        long before = s.tokens;
        s.seconds = 0;
        simulate(&s, &control, 2000);
        double best = chain ? best_chain(SHAPE_MILD, 0.95) : best_fixed(SHAPE_MILD, 0.95, draft_cost);
        double per_token = s.seconds / (double)(s.tokens - before);
        if (per_token > best * 1.25)
            fail_msg("phase %d: %.4f per token, the drafter that knows the text %.4f", phase, per_token, best);
    }
}

/* In a batch every source has its price: of DFlash a block, of an assistant each draft. One that is not ready, or not
 * there, is not asked. */
static void test_control_compares_prices(void **state) {
    (void)state;
    static const int both[BACKEND_DRAFTERS] = {LONGEST, LONGEST};
    draft_control control;
    draft_control_init(&control, NULL, both, NULL);
    for (int i = 0; i < BACKEND_MAX_DRAFT; i++) {
        control.drafter[BACKEND_BLOCK_DRAFTER].acceptance.rate[i] =
            control.drafter[BACKEND_ASSISTANT].acceptance.rate[i] = 0.8f;
        control.ngram[3].rate[i] = 0.4f;
    }
    const draft_prices dear_block = {.row = 0.1, .drafts = {[BACKEND_BLOCK_DRAFTER] = 2, [BACKEND_ASSISTANT] = 0.05}};
    draft_plan plan = draft_control_plan_at(&control, LONGEST, LONGEST, 3, &dear_block);
    assert_int_equal(plan.source, DRAFT_ASSISTANT);
    assert_int_equal(plan.length, LONGEST); /* 0.8^7 is more than 0.15 */
    const draft_prices dear_drafts = {.row = 0.1, .drafts = {[BACKEND_BLOCK_DRAFTER] = 0.5, [BACKEND_ASSISTANT] = 0.5}};
    plan = draft_control_plan_at(&control, LONGEST, LONGEST, 3, &dear_drafts);
    assert_int_equal(plan.source, DRAFT_DFLASH);
    const draft_prices dear_both = {.row = 0.1, .drafts = {[BACKEND_BLOCK_DRAFTER] = 9, [BACKEND_ASSISTANT] = 0.9}};
    plan = draft_control_plan_at(&control, LONGEST, LONGEST, 3, &dear_both);
    assert_int_equal(plan.source, DRAFT_NGRAM);
    assert_int_equal(plan.length, 2); /* 0.4^3 is less than 0.1 */
    /* what continues drafts, where all of it holds: of seven drafts 0.8^7 is left for each row, of two 0.8^2 */
    for (int i = 0; i < BACKEND_MAX_DRAFT; i++) control.extension[3].rate[i] = 1;
    assert_int_equal(draft_control_extend(&control, BACKEND_ASSISTANT, LONGEST, 5, 3, &dear_block).more, 5);
    const draft_prices dear_rows = {.row = 0.3};
    assert_int_equal(draft_control_extend(&control, BACKEND_ASSISTANT, LONGEST, 5, 3, &dear_rows).more, 0);
    draft_extension begun = draft_control_extend(&control, BACKEND_ASSISTANT, 2, 5, 3, &dear_rows);
    assert_int_equal(begun.more, 5);
    assert_true(begun.value > draft_control_extend(&control, BACKEND_ASSISTANT, LONGEST, 0, 0, &dear_rows).value);
    control.drafter[BACKEND_ASSISTANT].unready = true;
    assert_int_equal(draft_control_plan_at(&control, LONGEST, 0, 0, &dear_block).source, DRAFT_DFLASH);
    control.drafter[BACKEND_BLOCK_DRAFTER].longest = 0;
    assert_int_equal(draft_control_plan_at(&control, LONGEST, 0, 0, &dear_block).source, DRAFT_NONE);
}

static void test_control_obeys_limits_and_learns_costs_once(void **state) {
    (void)state;
    draft_control control;
    draft_control_init(&control, NULL, (const int[BACKEND_DRAFTERS]){[BACKEND_BLOCK_DRAFTER] = 16}, NULL);
    for (int limit = 0; limit <= 16; limit++) {
        draft_plan plan = draft_control_plan(&control, limit, 0, 0);
        assert_true(plan.length <= limit && plan.shadow_length <= limit);
        assert_int_equal(plan.source, limit ? DRAFT_DFLASH : DRAFT_NONE);
        assert_int_equal(plan.length, limit); /* the first block is full length */
    }
    /* costs handed over from an earlier session: the first block of a dear machine is not a full one */
    simulation s = {.shape = SHAPE_DEAR, .q = 0.1, .ngram_q = -1, .seed = 5};
    draft_control_init(&control, NULL, dflash_alone, NULL);
    simulate(&s, &control, 500);
    draft_experience experience = {0};
    draft_control_share(&control, &experience);
    draft_control next;
    draft_control_init(&next, NULL, dflash_alone, &experience);
    for (int block = 0; block < 3; block++) { /* a block may be a probe, but not each */
        if (draft_control_plan(&next, LONGEST, 0, 0).source == DRAFT_NONE) return;
        assert_true(next.probing);
    }
    fail_msg("three probes one after the other");
}

/* Sessions of one engine: short random texts lose nothing but the first one's start, short easy texts soon begin with
 * full blocks, and a change of the kind of text is noticed. */
static void test_control_starts_with_experience(void **state) {
    (void)state;
    enum { SESSIONS = 12 };
    for (int shape = SHAPE_FREE; shape <= SHAPE_HALF; shape++) {
        draft_experience experience = {0};
        static const struct {
            double q;
            long tokens;
        } phases[] = {{0, 160}, {0.97, 15}, {0, 160}};
        for (size_t phase = 0; phase < sizeof phases / sizeof phases[0]; phase++) {
            simulation s = {.shape = shape, .q = phases[phase].q, .ngram_q = -1, .seed = 40 + phase};
            double last = 0; /* mean of the last four */
            for (int session = 0; session < SESSIONS; session++) {
                draft_control control;
                draft_control_init(&control, NULL, dflash_alone, &experience);
                double before = s.seconds;
                long tokens = s.tokens;
                simulate(&s, &control, phases[phase].tokens);
                if (session >= SESSIONS - 4) last += (s.seconds - before) / (double)(s.tokens - tokens) / 4;
                draft_control_share(&control, &experience);
            }
            double per_token = s.seconds / (double)s.tokens, plain = verify_cost(shape, 1);
            double best = best_fixed(shape, s.q, draft_cost);
            if (phase != 1 && per_token > plain * 1.03)
                fail_msg("shape %d, random sessions %zu: %.3f per token, plain %.3f", shape, phase, per_token, plain);
            if (phase == 1 && last > best * 1.25)
                fail_msg("shape %d, easy sessions: %.3f per token in the last four, best %.3f", shape, last, best);
        }
    }
}

/* ------------------------------------------------------------------------------------------------- predictions */

/* The place with the longest match, of at most NGRAM_MAX_MATCH; among equal ones the first from `place` on, round. */
static int predicted_by_definition(const prediction *p, const int32_t *answer, size_t n, size_t *place) {
    int best = 0;
    size_t at = 0;
    for (size_t i = 0; i <= p->n; i++) {
        size_t here = (*place + i) % (p->n + 1);
        int length = 0;
        while (length < NGRAM_MAX_MATCH && (size_t)length < here && (size_t)length < n &&
               p->tokens[here - 1 - (size_t)length] == answer[n - 1 - (size_t)length])
            length++;
        if (length <= best) continue;
        best = length;
        at = here;
    }
    *place = at;
    return best;
}

static void test_prediction_matches_definition(void **state) {
    (void)state;
    enum { START = 5, MOST = 60, MAX = 8 };
    int32_t tokens[START + MOST] = {9, 9, 9, 9, 9}, text[MOST], drafts[MAX];
    for (uint64_t seed = 0; seed < 3000; seed++) {
        size_t n = 1 + (size_t)(random_uniform_at(seed, 0) * MOST),
               answered = (size_t)(random_uniform_at(seed, 1) * MOST);
        for (size_t i = 0; i < n; i++) text[i] = (int32_t)(random_uniform_at(seed, 2 + i) * 4);
        for (size_t i = 0; i < answered; i++) tokens[START + i] = (int32_t)(random_uniform_at(seed, 200 + i) * 4);
        const prediction p = {.tokens = text, .n = n, .start = START};
        size_t place = (size_t)(random_uniform_at(seed, 400) * (double)(n + 1)), expected = place;
        int match, wanted = predicted_by_definition(&p, tokens + START, answered, &expected);
        if (answered == 0) {
            wanted = NGRAM_MAX_MATCH;
            expected = 0;
        }
        int found = prediction_draft(&p, tokens, START + answered, MAX, drafts, &match, &place);
        size_t left = wanted ? n - expected : 0;
        assert_int_equal(found, left < MAX ? left : MAX);
        if (found == 0) continue;
        assert_int_equal(match, wanted);
        assert_int_equal(place, expected);
        assert_memory_equal(drafts, text + place, (size_t)found * sizeof *drafts);
    }
    const prediction none = {.start = START};
    size_t place = 0;
    int match;
    assert_int_equal(prediction_draft(&none, tokens, START + 3, MAX, drafts, &match, &place), 0);
}

/* A block of several rows costs what it reads, on average: some that happened to find their experts in memory do not
 * make it cheap. Where nothing is read, disturbances do not make it dear. */
static void test_costs_of_reading(void **state) {
    (void)state;
    static const double reading[COST_SAMPLES] = {0.1, 0.1, 4, 5, 3.8};
    const draft_policy *policy = &draft_policy_default;
    draft_costs read = {0}, disturbed = {0};
    for (int i = 0; i < COST_SAMPLES; i++) {
        draft_costs_add(&read.verify[8], 1.5 + reading[i], reading[i]);
        draft_costs_add(&disturbed.verify[8], 1.5 + reading[i], 0);
    }
    assert_true(fabs(draft_costs_verify(policy, &read, 8) - (1.5 + 2.6)) < 1e-5);
    assert_true(fabs(draft_costs_verify(policy, &disturbed, 8) - (1.5 + 0.1)) < 1e-5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_costs_of_reading),
        cmocka_unit_test(test_ngram_matches_definition),
        cmocka_unit_test(test_ngram_forgets),
        cmocka_unit_test(test_prediction_matches_definition),
        cmocka_unit_test(test_ngram_drafts_loops_at_full_length),
        cmocka_unit_test(test_stop_strings_whatever_the_cuts),
        cmocka_unit_test(test_stop_strings_with_nul),
        cmocka_unit_test(test_stop_strings_refused),
        cmocka_unit_test(test_control_finds_the_best_length),
        cmocka_unit_test(test_control_follows_the_text),
        cmocka_unit_test(test_control_uses_ngrams),
        cmocka_unit_test(test_control_extends_drafts),
        cmocka_unit_test(test_control_chooses_the_drafter),
        cmocka_unit_test(test_control_changes_the_drafter),
        cmocka_unit_test(test_control_compares_prices),
        cmocka_unit_test(test_control_obeys_limits_and_learns_costs_once),
        cmocka_unit_test(test_control_starts_with_experience),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
