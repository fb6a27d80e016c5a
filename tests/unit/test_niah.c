/* Protects the reproducibility of needle prompts: the generator must draw exactly what Python's random.Random draws.
 * The expected values were computed with CPython 3.11. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "measure/code_picture.h"
#include "measure/mt19937.h"
#include "measure/niah.h"
#include "session/image.h"

static void draws_equal_cpython(void **state) {
    (void)state;
    mt19937 generator;
    mt19937_seed(&generator, 42);
    assert_int_equal(mt19937_next(&generator), 2746317213u);
    assert_int_equal(mt19937_next(&generator), 478163327u);
    assert_int_equal(mt19937_next(&generator), 107420369u);

    /* A seed of two words, past the first turn of the state. */
    mt19937_seed(&generator, (UINT64_C(1) << 40) + 7);
    for (int i = 0; i < 997; i++) (void)mt19937_next(&generator);
    assert_int_equal(mt19937_next(&generator), 1655322389u);
    assert_int_equal(mt19937_next(&generator), 98279371u);
    assert_int_equal(mt19937_next(&generator), 3133584645u);

    static const int between[] = {7, 1, 9, -2, -1, 0, 8, -2, 3, -2, -1, 10};
    mt19937_seed(&generator, 7);
    for (size_t i = 0; i < sizeof between / sizeof between[0]; i++)
        assert_int_equal(mt19937_between(&generator, -3, 12), between[i]);
}

typedef struct expected_sample {
    uint64_t seed;
    int min_lines, max_lines;
    int index; /* of the sample in its data set */
    int lines;
    const char *answer;
    int needle_line;
    size_t prompt_bytes;
    uint64_t prompt_hash;
} expected_sample;

static const expected_sample expected[] = {
    {42, 60, 80, 0, 80, "BETA-1409", 39, 6485, UINT64_C(0x80f86d6b613433d5)},
    {42, 60, 80, 1, 67, "DELTA-3286", 51, 5446, UINT64_C(0x5e952757ea6c2f72)},
    {42, 60, 80, 2, 63, "ORCHID-9935", 9, 5127, UINT64_C(0x06f681d39d4b0120)},
    {0, 60, 60, 0, 60, "MAPLE-7890", 6, 4886, UINT64_C(0x34b196ee9720ba96)},
    {0, 60, 60, 1, 60, "IOTA-8961", 29, 4885, UINT64_C(0xd1dd50f086352234)},
    {0, 60, 60, 2, 60, "THETA-6866", 41, 4886, UINT64_C(0xfb51011f50d9fb5f)},
    {42, 10, 10, 0, 10, "ALPHA-5506", 4, 886, UINT64_C(0xffab61f6f9cf1108)},
    {42, 10, 10, 1, 10, "GAMMA-2679", 6, 886, UINT64_C(0x4704888d99c3d105)},
    {UINT64_C(12345678901), 12, 12, 2, 12, "DELTA-6726", 6, 1046, UINT64_C(0xa85d80ac3d4712ea)},
    {UINT64_MAX, 10, 400, 2, 384, "PINE-1890", 102, 30805, UINT64_C(0x0e71731a90a382b3)},
};

static void data_sets_equal_the_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const expected_sample *want = &expected[i];
        niah_options options;
        niah_options_init(&options);
        options.samples = want->index + 1;
        options.seed = want->seed;
        options.min_lines = want->min_lines;
        options.max_lines = want->max_lines;
        niah_dataset dataset;
        kakeya_error error;
        assert_int_equal(niah_generate(&options, &dataset, &error), KAKEYA_OK);
        assert_int_equal(dataset.n, want->index + 1);
        const niah_sample *got = &dataset.samples[want->index];
        print_message("seed %llu lines %d..%d sample %d\n", (unsigned long long)want->seed, want->min_lines,
                      want->max_lines, want->index);
        assert_int_equal(got->lines, want->lines);
        assert_string_equal(got->answer, want->answer);
        assert_int_equal(got->needle_line, want->needle_line);
        assert_int_equal(strlen(got->prompt), want->prompt_bytes);
        assert_true(hash_fnv1a(HASH_FNV1A_START, got->prompt, strlen(got->prompt)) == want->prompt_hash);
        assert_non_null(strstr(got->prompt, got->needle));
        assert_non_null(strstr(got->needle, got->answer));
        niah_dataset_free(&dataset);
    }
}

/* As many facts as lines, each about somebody else and with a code of its own; the needle's begins again at the end. */
static void facts_have_one_answer(void **state) {
    (void)state;
    static const int lines[] = {10, 400, 1000};
    niah_dataset drawn;
    kakeya_error error = {0};
    assert_int_equal(niah_ladder(lines, 3, 2, 7, false, true, &drawn, &error), KAKEYA_OK);
    for (size_t s = 0; s < drawn.n; s++) {
        const niah_sample *sample = &drawn.samples[s];
        char *text = niah_facts(sample), *asked = strrchr(text, '\n') + 1, *needle = NULL;
        int facts = 0, answers = 0;
        size_t length = strlen(asked);
        for (char *line = text; line < asked; line = strchr(line, '\n') + 1, facts++) {
            bool is_asked = strncmp(line, asked, length) == 0;
            const char *code = strstr(line, " is ");
            bool is_answer = strncmp(code + 4, sample->answer, strlen(sample->answer)) == 0;
            answers += is_answer;
            if (is_asked != is_answer) fail_msg("line %d of %d: another one is asked for", facts, sample->lines);
            if (is_asked) needle = line;
        }
        assert_int_equal(facts, sample->lines);
        assert_int_equal(answers, 1);
        assert_non_null(needle);
        assert_string_equal(asked + length - 3, " is");
        free(text);
    }
    niah_dataset_free(&drawn);
}

static void refuse(niah_options options, const char *word) {
    niah_dataset dataset;
    kakeya_error error = {0};
    assert_int_equal(niah_generate(&options, &dataset, &error), KAKEYA_INVALID_ARGUMENT);
    if (!strstr(error.message, word)) fail_msg("message '%s' does not mention '%s'", error.message, word);
    assert_null(dataset.samples);
}

static void impossible_options_are_refused(void **state) {
    (void)state;
    niah_options options;
    niah_options_init(&options);
    niah_options bad = options;
    bad.samples = 0;
    refuse(bad, "samples");
    bad = options;
    bad.min_lines = 81;
    refuse(bad, "81");
    bad = options;
    bad.min_lines = 9;
    refuse(bad, "9");
    bad = options;
    bad.max_lines = 2000000000;
    refuse(bad, "2000000000");
    bad = options;
    bad.n_prefixes = 0;
    refuse(bad, "prefixes");
    bad = options;
    bad.min_code = 5;
    bad.max_code = 4;
    refuse(bad, "code");
}

/* Of every seed: no two samples of a ladder share a code, the warm-up sample included; and a sample is the same on
 * every ladder on which nothing else took its code. */
static void ladders_share_no_code(void **state) {
    (void)state;
    enum { SEEDS = 200, SAMPLES = 40 };
    static const int lines[] = {12, 40, 60, 150}, alone[] = {60};
    size_t moved = 0;
    for (uint64_t seed = 4700; seed < 4700 + SEEDS; seed++) {
        niah_dataset all, one;
        kakeya_error error;
        assert_int_equal(niah_ladder(lines, 4, SAMPLES, seed, false, true, &all, &error), KAKEYA_OK);
        assert_int_equal(niah_ladder(alone, 1, SAMPLES, seed, false, true, &one, &error), KAKEYA_OK);
        assert_int_equal(all.n, 4 * SAMPLES + 1);
        assert_int_equal(all.samples[all.n - 1].lines, 12);
        for (size_t i = 0; i < all.n; i++)
            for (size_t j = 0; j < i; j++)
                if (strcmp(all.samples[i].answer, all.samples[j].answer) == 0)
                    fail_msg("seed %d: samples %zu and %zu have the code %s", (int)seed, j, i, all.samples[i].answer);
        for (size_t i = 0; i < SAMPLES; i++)
            moved += strcmp(all.samples[2 * SAMPLES + i].answer, one.samples[i].answer) != 0;
        niah_dataset_free(&all);
        niah_dataset_free(&one);
    }
    /* of 8,000 samples, each beside 80 others with 135,000 codes */
    assert_in_range(moved, 0, 40);
}

/* Expected values by CPython: random.Random(fnv1a("SEED/LINES/INDEX")). */
static void ladder_samples_equal_cpython(void **state) {
    (void)state;
    static const int lines[] = {12, 40, 60, 150};
    static const struct {
        size_t at;
        int lines, needle_line;
        const char *answer;
    } drawn[] = {
        {0, 12, 7, "MAPLE-1968"},   {1, 12, 6, "BETA-9482"},      {5, 40, 9, "ORCHID-1780"},
        {10, 60, 55, "THETA-5484"}, {19, 150, 124, "KAPPA-6816"}, {20, 12, 5, "DELTA-4283"},
    };
    niah_dataset all;
    kakeya_error error;
    assert_int_equal(niah_ladder(lines, 4, 5, 4711, false, false, &all, &error), KAKEYA_OK);
    for (size_t i = 0; i < sizeof drawn / sizeof drawn[0]; i++) {
        const niah_sample *got = &all.samples[drawn[i].at];
        assert_int_equal(got->lines, drawn[i].lines);
        assert_string_equal(got->answer, drawn[i].answer);
        assert_int_equal(got->needle_line, drawn[i].needle_line);
        assert_non_null(strstr(got->prompt, got->needle));
    }
    niah_dataset_free(&all);
}

static void impossible_ladders_are_refused(void **state) {
    (void)state;
    niah_dataset dataset;
    kakeya_error error = {0};
    const int few[] = {12, 9}, good[] = {12, 40};
    assert_int_equal(niah_ladder(few, 2, 5, 1, false, true, &dataset, &error), KAKEYA_INVALID_ARGUMENT);
    assert_int_equal(niah_ladder(good, 2, 0, 1, false, true, &dataset, &error), KAKEYA_INVALID_ARGUMENT);
    assert_int_equal(niah_ladder(good, 2, NIAH_MAX_LADDER / 2, 1, false, true, &dataset, &error),
                     KAKEYA_INVALID_ARGUMENT);
    assert_int_equal(niah_ladder(good, 2, NIAH_MAX_PICTURES / 2, 1, true, true, &dataset, &error),
                     KAKEYA_INVALID_ARGUMENT);
    assert_null(dataset.samples);
}

/* The draws of the texts, without a prefix; the picture's place is between what is before it and what is after it. */
static void pictures_stand_where_needles_do(void **state) {
    (void)state;
    const int lines[] = {12, 40};
    niah_dataset texts, pictures;
    kakeya_error error;
    assert_int_equal(niah_ladder(lines, 2, 5, 4711, false, false, &texts, &error), KAKEYA_OK);
    assert_int_equal(niah_ladder(lines, 2, 5, 4711, true, false, &pictures, &error), KAKEYA_OK);
    assert_int_equal(pictures.n, texts.n);
    for (size_t i = 0; i < texts.n; i++) {
        const niah_sample *text = &texts.samples[i], *picture = &pictures.samples[i];
        char *whole = NULL;
        assert_string_equal(picture->answer, strchr(text->answer, '-') + 1);
        assert_null(picture->needle);
        assert_null(text->after);
        assert_true(asprintf(&whole, "%s%s\n%s", picture->prompt, text->needle, picture->after) > 0);
        assert_string_equal(whole, text->prompt);
        free(whole);
    }
    niah_dataset_free(&texts);
    niah_dataset_free(&pictures);
}

static bool same_pixels(const kakeya_image *a, const kakeya_image *b) {
    assert_int_equal(a->pixels.width, b->pixels.width);
    assert_int_equal(a->pixels.height, b->pixels.height);
    return memcmp(a->pixels.rgb, b->pixels.rgb, (size_t)3 * (size_t)a->pixels.width * (size_t)a->pixels.height) == 0;
}

/* A picture is its code and its seed. */
static void pictures_show_their_code(void **state) {
    (void)state;
    kakeya_image *picture[4];
    kakeya_error error;
    assert_int_equal(code_picture("4821", 1, &picture[0], &error), KAKEYA_OK);
    assert_int_equal(code_picture("4821", 1, &picture[1], &error), KAKEYA_OK);
    assert_int_equal(code_picture("4821", 2, &picture[2], &error), KAKEYA_OK);
    assert_int_equal(code_picture("4827", 1, &picture[3], &error), KAKEYA_OK);
    assert_true(same_pixels(picture[0], picture[1]));
    assert_false(same_pixels(picture[0], picture[2]));
    assert_false(same_pixels(picture[0], picture[3]));
    for (int i = 0; i < 4; i++) kakeya_image_close(picture[i]);
    assert_int_equal(code_picture("48a1", 1, &picture[0], &error), KAKEYA_INVALID_ARGUMENT);
    assert_null(picture[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts_have_one_answer),          cmocka_unit_test(draws_equal_cpython),
        cmocka_unit_test(data_sets_equal_the_reference),  cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(ladders_share_no_code),          cmocka_unit_test(ladder_samples_equal_cpython),
        cmocka_unit_test(impossible_ladders_are_refused), cmocka_unit_test(pictures_stand_where_needles_do),
        cmocka_unit_test(pictures_show_their_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
