#include "grammar/numbers.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/decimals.h"
#include "grammar/regex.h"

enum { MAX_DIGITS = 20, EXACT_DIGITS = 15, EXPRESSION_BYTES = 8192 };

/* |limit| = digits[0..point) . digits[point..n): no zeros in front of it but one, none behind it. */
typedef struct limit {
    char digits[2 * MAX_DIGITS + 1];
    int n, point;
} limit;

typedef struct expression {
    char text[EXPRESSION_BYTES];
    size_t n;
    int decimals;      /* digits behind the point, at most */
    char fraction[24]; /* any of them, or none */
} expression;

static void put(expression *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(expression *e, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(e->text + e->n, sizeof e->text - e->n, format, arguments);
    va_end(arguments);
    if (n > 0 && e->n + (size_t)n < sizeof e->text) e->n += (size_t)n;
}

/* The size of the decimal, cut behind MAX_DIGITS digits of its fraction. */
static limit limit_of(const decimal *d, bool *cut) {
    limit out = {.point = 1, .n = 1, .digits = "0"};
    int whole = d->exponent > 0 ? (int)d->exponent : 0; /* at most MAX_DIGITS */
    for (int i = 0; i < whole; i++) out.digits[i] = i < d->n ? d->digits[i] : '0';
    if (whole) out.n = out.point = whole;
    int last = out.n;
    for (int i = 0; i < MAX_DIGITS; i++) {
        long at = d->exponent + i;
        char digit = at >= 0 && at < d->n ? d->digits[at] : '0';
        out.digits[out.point + i] = digit;
        if (digit != '0') last = out.point + i + 1;
    }
    out.n = last;
    *cut = d->n - d->exponent > MAX_DIGITS;
    return out;
}

/* Numbers whose digits in front of the point are more than the limit's. */
static void put_longer_or_larger(expression *e, const limit *d) {
    if (d->point < MAX_DIGITS)
        put(e, "[1-9][0-9]{%d,%d}", d->point, MAX_DIGITS - 1);
    else
        put(e, "[]");
    for (int i = 0; i < d->point; i++) {
        if (d->digits[i] == '9') continue;
        put(e, "|%.*s[%c-9][0-9]{%d}", i, d->digits, d->digits[i] + 1, d->point - 1 - i);
    }
}

static bool put_shorter_or_smaller(expression *e, const limit *d) {
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
static void put_at_least(expression *e, const limit *d, bool above, bool integer) {
    const char *whole = d->digits, *fraction = d->digits + d->point;
    int k = d->n - d->point;
    put(e, "((");
    put_longer_or_larger(e, d);
    put(e, ")%s", integer ? "" : e->fraction);
    if (k == 0) {
        if (!above) put(e, "|%.*s%s", d->point, whole, integer ? "" : e->fraction);
        if (above && !integer)
            put(e, "|%.*s\\.0{0,%d}[1-9][0-9]{0,%d}", d->point, whole, e->decimals - 1, e->decimals - 1);
    } else if (!integer) {
        for (int i = 0; i < k; i++)
            if (fraction[i] != '9')
                put(e, "|%.*s\\.%.*s[%c-9][0-9]{0,%d}", d->point, whole, i, fraction, fraction[i] + 1,
                    e->decimals - 1 - i);
        put(e, "|%.*s\\.%.*s", d->point, whole, k, fraction);
        if (!above) put(e, "[0-9]{0,%d}", e->decimals - k);
        if (above) put(e, k < e->decimals ? "0{0,%d}[1-9]" : "[]", e->decimals - 1 - k);
    }
    put(e, ")");
}

/* Numbers without sign that are at most the limit, or below it. */
static void put_at_most(expression *e, const limit *d, bool below, bool integer) {
    const char *whole = d->digits, *fraction = d->digits + d->point;
    int k = d->n - d->point;
    put(e, "((");
    bool some = put_shorter_or_smaller(e, d);
    put(e, "%s)%s", some ? "" : "[]", integer ? "" : e->fraction);
    if (k == 0) {
        if (!below) put(e, "|%.*s%s", d->point, whole, integer ? "" : "(\\.0{1,20})?");
    } else {
        put(e, "|%.*s", d->point, whole);
        for (int i = 0; i < k && !integer; i++) {
            if (i > 0) put(e, "|%.*s\\.%.*s", d->point, whole, i, fraction);
            if (fraction[i] != '0')
                put(e, "|%.*s\\.%.*s[0-%c][0-9]{0,%d}", d->point, whole, i, fraction, fraction[i] - 1,
                    e->decimals - 1 - i);
        }
        if (!integer && !below) put(e, "|%.*s\\.%.*s0{0,%d}", d->point, whole, k, fraction, e->decimals - k);
    }
    put(e, ")");
}

/* A limit beyond all numbers that there are here: none at all, or one that no number keeps. */
static bool is_beyond(const decimal *d, bool is_minimum, bool *never) {
    if (d->exponent <= MAX_DIGITS) return false;
    *never = is_minimum != d->negative;
    return true;
}

static kakeya_status compile_limit(const char *text, bool is_minimum, bool exclusive, bool integer, dfa *out,
                                   kakeya_error *error) {
    decimal d;
    bool cut, never;
    decimal_read(text, &d);
    if (is_beyond(&d, is_minimum, &never)) {
        const char *all = integer ? "-?(0|[1-9][0-9]{0,19})" : "-?(0|[1-9][0-9]{0,19})(\\.[0-9]{1,20})?";
        return regex_compile(never ? "[]" : all, never ? 2 : strlen(all), REGEX_WHOLE, out, error);
    }
    expression *e = calloc(1, sizeof *e);
    if (!e) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for the limits of a number");
    limit l = limit_of(&d, &cut);
    /* As close to an excluded limit as 15 digits are, or its own digits and one more: others round to it. */
    int own = l.n - l.point + 1, exact = EXACT_DIGITS - l.point;
    e->decimals = !exclusive || own > MAX_DIGITS ? MAX_DIGITS : own > exact ? own : exact;
    snprintf(e->fraction, sizeof e->fraction, "(\\.[0-9]{1,%d})?", e->decimals);
    const char *fraction = integer ? "" : e->fraction;
    if (cut) exclusive = is_minimum != d.negative; /* of the numbers that there are, the next one */
    if (is_minimum && d.negative) {
        put(e, "(0|[1-9][0-9]{0,19})%s|-", fraction);
        put_at_most(e, &l, exclusive, integer);
    } else if (is_minimum) {
        put_at_least(e, &l, exclusive, integer);
    } else if (d.negative) {
        put(e, "-");
        put_at_least(e, &l, exclusive, integer);
    } else {
        if (d.n == 0 && exclusive) /* -0 is 0 */
            put(e, "-([1-9][0-9]{0,19}%s%s)|", fraction, integer ? "" : "|0\\.0{0,13}[1-9][0-9]{0,19}");
        else
            put(e, "-(0|[1-9][0-9]{0,19})%s|", fraction);
        put_at_most(e, &l, exclusive, integer);
    }
    kakeya_status status = regex_compile(e->text, e->n, REGEX_WHOLE, out, error);
    free(e);
    return status;
}

kakeya_status number_dfa(const number_limits *l, dfa *out, kakeya_error *error) {
    static const char integers[] = "-?(0|[1-9][0-9]{0,19})", whole[] = "-?(0|[1-9][0-9]{0,19})(\\.0{1,20})?";
    static const char plain[] = "-?(0|[1-9][0-9]{0,19})(\\.[0-9]{1,20})?";
    /* with so few digits, no reader takes one for an integer */
    static const char fractions[] = "-?(0|[1-9][0-9]{0,8})\\.[0-9]{1,6}";
    static const char exact[] = "-?(0|[1-9][0-9]{0,19})|-?(0|[1-9][0-9]{0,8})\\.[0-9]{1,6}";
    static const char numbers[] = "-?(0|[1-9][0-9]{0,19})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?";
    static const char from_zero[] = "(0|[1-9][0-9]{0,19})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?";
    static const char above_zero[] =
        "([1-9][0-9]{0,19}(\\.[0-9]{1,20})?|0\\.0{0,19}[1-9][0-9]{0,19})([eE][+-]?[0-9]{1,2})?";
    *out = (dfa){0};
    if (l->minimum && !l->maximum && !l->integer && !l->plain && number_compare(l->minimum, "0") == 0) {
        const char *text = l->above_minimum ? above_zero : from_zero; /* the sign is not the exponent's business */
        return regex_compile(text, strlen(text), REGEX_WHOLE, out, error);
    }
    if (!l->minimum && !l->maximum) {
        const char *text = l->integer    ? integers
                           : l->whole    ? whole
                           : l->exact    ? exact
                           : l->fraction ? fractions
                           : l->plain    ? plain
                                         : numbers;
        return regex_compile(text, strlen(text), REGEX_WHOLE, out, error);
    }
    dfa low = {0}, high = {0};
    kakeya_status status = KAKEYA_OK;
    if (l->minimum) status = compile_limit(l->minimum, true, l->above_minimum, l->integer, &low, error);
    if (status == KAKEYA_OK && l->maximum)
        status = compile_limit(l->maximum, false, l->below_maximum, l->integer, &high, error);
    if (status == KAKEYA_OK && l->minimum && l->maximum) {
        status = regex_error(dfa_combine(&low, &high, DFA_AND, out), "a number between these limits", error);
        out->cost += low.cost + high.cost;
    } else if (status == KAKEYA_OK) {
        *out = l->minimum ? low : high;
        *(l->minimum ? &low : &high) = (dfa){0};
    }
    if (status != KAKEYA_OK && out->cost == 0) out->cost = low.cost + high.cost;
    dfa_free(&low);
    dfa_free(&high);
    return status;
}

/* -------------------------------------------------------------------------------------------------------- multiples */

/* Multiples of unit * 10^-decimals, or of unit * 10^zeros. */
typedef struct multiples {
    uint64_t unit;
    unsigned decimals, zeros;
} multiples;

enum { MAX_MULTIPLE_STATES = 12000, PHASE_SIGN = 0, PHASE_WHOLE = 1, PHASE_POINT = 2 /* and digits behind it */ };

static uint64_t multiple_state(unsigned phase, unsigned zeros, uint64_t rest) {
    return (uint64_t)phase << 40 | (uint64_t)zeros << 32 | rest;
}

/* A number so far: what divides by 10^zeros is left over by `unit` as rest. */
static bool whole_step(const multiples *m, unsigned zeros, uint64_t rest, unsigned digit, uint64_t *to) {
    if (digit == 0 && zeros < m->zeros) {
        *to = multiple_state(PHASE_WHOLE, zeros + 1, rest);
        return true;
    }
    for (unsigned i = 0; i < zeros && digit; i++) rest = rest * 10 % m->unit;
    rest = (rest * 10 + digit) % m->unit;
    *to = multiple_state(PHASE_WHOLE, digit ? 0 : zeros, rest);
    return true;
}

static bool multiple_step(void *user, uint64_t state, unsigned letter, uint64_t *to) {
    const multiples *m = user;
    unsigned phase = (unsigned)(state >> 40), zeros = (unsigned)(state >> 32) & 0xFF;
    uint64_t rest = state & 0xFFFFFFFF;
    if (letter == '-') {
        *to = multiple_state(PHASE_WHOLE, zeros, rest);
        return phase == PHASE_SIGN;
    }
    if (letter == '.') {
        *to = multiple_state(PHASE_POINT, zeros, rest);
        return phase == PHASE_WHOLE;
    }
    if (letter < '0' || letter > '9') return false;
    if (phase < PHASE_POINT) return whole_step(m, zeros, rest, letter - '0', to);
    if (phase - PHASE_POINT < m->decimals)
        *to = multiple_state(phase + 1, zeros, (rest * 10 + letter - '0') % m->unit);
    else
        *to = state;
    return phase - PHASE_POINT < m->decimals || letter == '0';
}

static uint8_t multiple_flags(void *user, uint64_t state) {
    const multiples *m = user;
    unsigned phase = (unsigned)(state >> 40), zeros = (unsigned)(state >> 32) & 0xFF;
    uint64_t rest = state & 0xFFFFFFFF;
    for (unsigned i = phase < PHASE_POINT ? 0 : phase - PHASE_POINT; i < m->decimals; i++) rest = rest * 10 % m->unit;
    return rest == 0 && zeros == m->zeros;
}

kakeya_status number_multiples(const char *of, dfa *out, kakeya_error *error) {
    decimal d;
    multiples m = {0};
    *out = (dfa){0};
    decimal_read(of, &d);
    long behind = d.n - d.exponent;
    bool fits = d.n > 0 && d.n <= 9 && behind <= MAX_DIGITS && behind >= -MAX_DIGITS;
    for (int i = 0; i < d.n && fits; i++) m.unit = m.unit * 10 + (uint64_t)(d.digits[i] - '0');
    if (fits && behind >= 0) m.decimals = (unsigned)behind;
    if (fits && behind < 0) m.zeros = (unsigned)-behind;
    if (!fits || m.unit * (m.decimals + m.zeros + 3) > MAX_MULTIPLE_STATES)
        return error_set(error, KAKEYA_UNSUPPORTED, "multiples of %.40s are not supported: it has too many digits", of);
    dfa_source source = {
        .user = &m, .start = multiple_state(PHASE_SIGN, m.zeros, 0), .step = multiple_step, .flags = multiple_flags};
    for (unsigned digit = 0; digit < 10; digit++) source.class_of['0' + digit] = (uint16_t)(1 + digit);
    source.class_of['-'] = 11;
    source.class_of['.'] = 12;
    return regex_error(dfa_make(&source, out), "the multiples of a number", error);
}
