/* What prompt rows are rounded to at precision fp8 (backend/cuda/f8_code.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>

#include "backend/cuda/f8_code.h"
#include "backend/groups.h"

static float float_of(uint32_t bits) {
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static float value_of(unsigned char code) { return e4m3_to_f32(code); }

/* Every code is its own value's; between neighbours the nearer one, of two that are as near the even one. */
static void test_codes(void **state) {
    (void)state;
    for (int code = 0; code < 0x7f; code++) {
        float v = value_of((unsigned char)code);
        assert_int_equal(f8_code(v), code);
        assert_int_equal(f8_code(-v), code | 0x80);
        if (code == 0x7e) break;
        float next = value_of((unsigned char)(code + 1)), middle = v + (next - v) / 2;
        assert_int_equal(f8_code(middle), code % 2 ? code + 1 : code);
        assert_int_equal(f8_code(nextafterf(middle, 0)), code);
        assert_int_equal(f8_code(-nextafterf(middle, 500)), (code + 1) | 0x80);
    }
}

/* The least power of two that brings the largest magnitude down to 448, for every magnitude of bf16. */
static void test_scales(void **state) {
    (void)state;
    assert_true(float_of(f8_scale_bits(0)) == 1);
    for (uint32_t largest = 1; largest < 0x7f80; largest++) {
        float m = float_of(largest << 16), s = float_of(f8_scale_bits(largest));
        int exponent;
        assert_true(frexpf(s, &exponent) == 0.5f);
        assert_true(s * float_of(f8_inverse_bits(f8_scale_bits(largest))) == 1);
        if (!(m <= 448 * s && (s == 0x1p-100f || m > 224 * s))) fail_msg("magnitude %g has the scale %g", m, s);
    }
    for (uint32_t none = 0x7f80; none <= 0x7fff; none += 0x7f)
        assert_true(isnan(float_of(f8_scale_bits(none))) && isnan(float_of(f8_inverse_bits(f8_scale_bits(none)))));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_codes), cmocka_unit_test(test_scales)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
