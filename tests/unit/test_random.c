/* Protects the published algorithm (a changed bit would change every sampled text) and its keying by position. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/random.h"

/* Known-answer vectors published with the Random123 library for philox4x32-10. */
static void test_known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], expected[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}},
        {{0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu},
         {0xffffffffu, 0xffffffffu},
         {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}},
        {{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
         {0xa4093822u, 0x299f31d0u},
         {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t out[4];
        random_philox4x32(cases[i].counter, cases[i].key, out);
        for (int word = 0; word < 4; word++) assert_int_equal(out[word], cases[i].expected[word]);
    }
}

static void test_uniform_range_and_mean(void **state) {
    (void)state;
    double sum = 0, sum_squares = 0;
    enum { COUNT = 100000 };
    for (uint64_t position = 0; position < COUNT; position++) {
        double value = random_uniform_at(7, position);
        assert_true(value >= 0 && value < 1);
        sum += value;
        sum_squares += value * value;
    }
    double mean = sum / COUNT, variance = sum_squares / COUNT - mean * mean;
    assert_true(mean > 0.495 && mean < 0.505);
    assert_true(variance > 0.0825 && variance < 0.0842); /* 1/12 = 0.0833 */
}

static void test_normal_moments(void **state) {
    (void)state;
    double sum = 0, squares = 0, fourths = 0;
    enum { COUNT = 100000 };
    for (uint64_t position = 0; position < COUNT; position++) {
        double value = random_normal_at(7, position), square = value * value;
        sum += value;
        squares += square;
        fourths += square * square;
    }
    assert_true(sum / COUNT > -0.015 && sum / COUNT < 0.015);
    assert_true(squares / COUNT > 0.98 && squares / COUNT < 1.02);
    assert_true(fourths / COUNT > 2.85 && fourths / COUNT < 3.15); /* of a uniform distribution 1.8 */
}

static void test_keyed_by_all_bits(void **state) {
    (void)state;
    double base = random_uniform_at(1, 1);
    assert_true(base == random_uniform_at(1, 1));
    for (int bit = 0; bit < 64; bit++) {
        uint64_t flip = UINT64_C(1) << bit;
        assert_true(base != random_uniform_at(1 ^ flip, 1));
        assert_true(base != random_uniform_at(1, 1 ^ flip));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_uniform_range_and_mean),
        cmocka_unit_test(test_normal_moments),
        cmocka_unit_test(test_keyed_by_all_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
