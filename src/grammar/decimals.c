#include "grammar/decimals.h"

#include <stdlib.h>
#include <string.h>

void decimal_read(const char *text, decimal *out) {
    bool point = false;
    out->negative = *text == '-';
    out->n = 0;
    out->exponent = 0;
    for (text += out->negative; (*text >= '0' && *text <= '9') || *text == '.'; text++) {
        if (*text == '.') {
            point = true;
        } else if (*text == '0' && out->n == 0) {
            out->exponent -= point;
        } else {
            if (out->n < DECIMAL_MAX_DIGITS) out->digits[out->n++] = *text;
            out->exponent += !point;
        }
    }
    if (*text == 'e' || *text == 'E') {
        long exponent = strtol(text + 1, NULL, 10);
        if (exponent > 1000000000) exponent = 1000000000;
        if (exponent < -1000000000) exponent = -1000000000;
        out->exponent += exponent;
    }
    while (out->n && out->digits[out->n - 1] == '0') out->n--;
    if (out->n == 0) {
        out->exponent = 0;
        out->negative = false;
    }
}

static int compare_sizes(const decimal *a, const decimal *b) {
    if (!a->n || !b->n) return (a->n > 0) - (b->n > 0);
    if (a->exponent != b->exponent) return a->exponent < b->exponent ? -1 : 1;
    int n = a->n < b->n ? a->n : b->n, order = memcmp(a->digits, b->digits, (size_t)n);
    return order ? (order < 0 ? -1 : 1) : (a->n > b->n) - (a->n < b->n);
}

int decimal_compare(const decimal *a, const decimal *b) {
    if (a->negative != b->negative) return a->negative ? -1 : 1;
    return a->negative ? compare_sizes(b, a) : compare_sizes(a, b);
}

int number_compare(const char *a, const char *b) {
    decimal x, y;
    decimal_read(a, &x);
    decimal_read(b, &y);
    return decimal_compare(&x, &y);
}

bool number_is_integer(const char *text) {
    decimal d;
    decimal_read(text, &d);
    return d.n <= d.exponent || d.n == 0;
}

bool number_is_multiple(const char *text, const char *of, bool *multiple) {
    decimal value, unit;
    decimal_read(text, &value);
    decimal_read(of, &unit);
    *multiple = true;
    if (unit.n == 0 || unit.n > 18) return false;
    if (value.n == 0) return true;
    uint64_t divisor = 0, rest = 0;
    for (int i = 0; i < unit.n; i++) divisor = divisor * 10 + (uint64_t)(unit.digits[i] - '0');
    /* Both as whole numbers, times a power of ten. */
    long tens = (value.exponent - value.n) - (unit.exponent - unit.n);
    *multiple = false;
    if (tens < 0) return true; /* the last digit of the value is no zero */
    for (int i = 0; i < value.n; i++) rest = (rest * 10 + (uint64_t)(value.digits[i] - '0')) % divisor;
    for (long i = 0; i < tens && rest && i < 10000; i++) rest = rest * 10 % divisor;
    *multiple = rest == 0;
    return true;
}
