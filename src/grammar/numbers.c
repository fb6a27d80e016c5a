#include "grammar/numbers.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/regex.h"

enum { MAX_DIGITS = 20, EXPRESSION_BYTES = 8192 };

/* |limit| = digits[0..point) . digits[point..n): no zeros in front of it but one, none behind it. */
typedef struct decimal {
    bool negative;
    char digits[4 * MAX_DIGITS + 1];
    int n, point;
} decimal;

typedef struct expression {
    char text[EXPRESSION_BYTES];
    size_t n;
} expression;

static void put(expression *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(expression *e, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(e->text + e->n, sizeof e->text - e->n, format, arguments);
    va_end(arguments);
    if (n > 0 && e->n + (size_t)n < sizeof e->text) e->n += (size_t)n;
}

static bool read_decimal(const char *text, decimal *out) {
    char digits[2 * MAX_DIGITS + 1];
    int n = 0, point = -1;
    *out = (decimal){0};
    if (*text == '-') {
        out->negative = true;
        text++;
    }
    for (; (*text >= '0' && *text <= '9') || *text == '.'; text++) {
        if (*text == '.')
            point = n;
        else if (n == 2 * MAX_DIGITS)
            return false;
        else
            digits[n++] = *text;
    }
    if (point < 0) point = n;
    long exponent = 0;
    if (*text == 'e' || *text == 'E') exponent = strtol(text + 1, NULL, 10);
    if (exponent < -2 * MAX_DIGITS || exponent > 2 * MAX_DIGITS) return false;
    point += (int)exponent;
    int first = 0;
    while (first < n && digits[first] == '0') first++; /* of what is left, the point may stand in front or behind */
    if (first == n) {
        *out = (decimal){.digits = "0", .n = 1, .point = 1};
        return true;
    }
    while (n > first && digits[n - 1] == '0') n--;
    int length = 0;
    for (int i = point < first ? point - 1 : first; i < n || i < point; i++) {
        if (length == 4 * MAX_DIGITS) return false;
        if (i == point) out->point = length;
        out->digits[length++] = i < first || i >= n ? '0' : digits[i];
    }
    if (point >= n) out->point = length;
    if (point == first) { /* nothing in front of the point */
        memmove(out->digits + 1, out->digits, (size_t)length);
        out->digits[0] = '0';
        length++;
        out->point = 1;
    }
    out->n = length;
    return out->point <= MAX_DIGITS && out->n - out->point < MAX_DIGITS;
}

static const char any_fraction[] = "(\\.[0-9]{1,20})?";

/* Numbers whose digits in front of the point are more than the limit's. */
static void put_longer_or_larger(expression *e, const decimal *d) {
    if (d->point < MAX_DIGITS) put(e, "[1-9][0-9]{%d,%d}", d->point, MAX_DIGITS - 1);
    for (int i = 0; i < d->point; i++) {
        if (d->digits[i] == '9') continue;
        put(e, "|%.*s[%c-9][0-9]{%d}", i, d->digits, d->digits[i] + 1, d->point - 1 - i);
    }
}

static bool put_shorter_or_smaller(expression *e, const decimal *d) {
    size_t before = e->n;
    if (d->point > 1) put(e, "0|[1-9][0-9]{0,%d}", d->point - 2);
    for (int i = 0; i < d->point; i++) {
        char least = i == 0 && d->point > 1 ? '1' : '0';
        if (d->digits[i] <= least) continue;
        put(e, "%s%.*s[%c-%c][0-9]{%d}", e->n > before ? "|" : "", i, d->digits, least, d->digits[i] - 1,
            d->point - 1 - i);
    }
    return e->n > before;
}

/* Numbers without sign that are at least the limit, or above it. */
static void put_at_least(expression *e, const decimal *d, bool above, bool integer) {
    const char *whole = d->digits, *fraction = d->digits + d->point;
    int k = d->n - d->point;
    put(e, "((");
    put_longer_or_larger(e, d);
    put(e, ")%s", integer ? "" : any_fraction);
    if (k == 0) {
        if (!above) put(e, "|%.*s%s", d->point, whole, integer ? "" : any_fraction);
        if (above && !integer) put(e, "|%.*s\\.0{0,19}[1-9][0-9]{0,19}", d->point, whole);
    } else if (!integer) {
        for (int i = 0; i < k; i++)
            if (fraction[i] != '9')
                put(e, "|%.*s\\.%.*s[%c-9][0-9]{0,%d}", d->point, whole, i, fraction, fraction[i] + 1,
                    MAX_DIGITS - 1 - i);
        put(e, "|%.*s\\.%.*s", d->point, whole, k, fraction);
        put(e, above ? "0{0,%d}[1-9]" : "[0-9]{0,%d}", above ? MAX_DIGITS - 1 - k : MAX_DIGITS - k);
    }
    put(e, ")");
}

/* Numbers without sign that are at most the limit, or below it. */
static void put_at_most(expression *e, const decimal *d, bool below, bool integer) {
    const char *whole = d->digits, *fraction = d->digits + d->point;
    int k = d->n - d->point;
    put(e, "((");
    bool some = put_shorter_or_smaller(e, d);
    put(e, "%s)%s", some ? "" : "[]", integer ? "" : any_fraction);
    if (k == 0) {
        if (!below) put(e, "|%.*s%s", d->point, whole, integer ? "" : "(\\.0{1,20})?");
    } else {
        put(e, "|%.*s", d->point, whole);
        for (int i = 0; i < k && !integer; i++) {
            if (i > 0) put(e, "|%.*s\\.%.*s", d->point, whole, i, fraction);
            if (fraction[i] != '0')
                put(e, "|%.*s\\.%.*s[0-%c][0-9]{0,%d}", d->point, whole, i, fraction, fraction[i] - 1,
                    MAX_DIGITS - 1 - i);
        }
        if (!integer && !below) put(e, "|%.*s\\.%.*s0{0,%d}", d->point, whole, k, fraction, MAX_DIGITS - k);
    }
    put(e, ")");
}

static kakeya_status compile_limit(const char *limit, bool is_minimum, bool exclusive, bool integer, dfa *out,
                                   kakeya_error *error) {
    decimal d;
    expression *e = calloc(1, sizeof *e);
    if (!e) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for the limits of a number");
    const char *fraction = integer ? "" : any_fraction;
    if (!read_decimal(limit, &d)) {
        free(e);
        return error_set(error, KAKEYA_UNSUPPORTED, "the limit %.60s has more digits than are supported (%d)", limit,
                         (int)MAX_DIGITS);
    }
    if (is_minimum && d.negative) {
        put(e, "(0|[1-9][0-9]{0,19})%s|-", fraction);
        put_at_most(e, &d, exclusive, integer);
    } else if (is_minimum) {
        put_at_least(e, &d, exclusive, integer);
    } else if (d.negative) {
        put(e, "-");
        put_at_least(e, &d, exclusive, integer);
    } else {
        put(e, "-(0|[1-9][0-9]{0,19})%s|", fraction);
        put_at_most(e, &d, exclusive, integer);
    }
    kakeya_status status = regex_compile(e->text, e->n, REGEX_WHOLE, out, error);
    free(e);
    return status;
}

kakeya_status number_dfa(const number_limits *l, dfa *out, kakeya_error *error) {
    static const char integers[] = "-?(0|[1-9][0-9]{0,19})";
    static const char numbers[] = "-?(0|[1-9][0-9]{0,19})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?";
    *out = (dfa){0};
    if (!l->minimum && !l->maximum) {
        const char *text = l->integer ? integers : numbers;
        return regex_compile(text, strlen(text), REGEX_WHOLE, out, error);
    }
    dfa low = {0}, high = {0};
    kakeya_status status = KAKEYA_OK;
    if (l->minimum) status = compile_limit(l->minimum, true, l->above_minimum, l->integer, &low, error);
    if (status == KAKEYA_OK && l->maximum)
        status = compile_limit(l->maximum, false, l->below_maximum, l->integer, &high, error);
    if (status == KAKEYA_OK && l->minimum && l->maximum) {
        status = regex_error(dfa_intersect(&low, &high, out), "a number between these limits", error);
    } else if (status == KAKEYA_OK) {
        *out = l->minimum ? low : high;
        *(l->minimum ? &low : &high) = (dfa){0};
    }
    dfa_free(&low);
    dfa_free(&high);
    return status;
}
