/* JSON numbers between limits, as automata on their digits. */
#ifndef KAKEYA_GRAMMAR_NUMBERS_H
#define KAKEYA_GRAMMAR_NUMBERS_H

#include "base/error.h"
#include "grammar/dfa.h"

/* Limits as JSON spells them; NULL: none. */
typedef struct number_limits {
    bool integer;  /* spelled as one, without a fraction */
    bool plain;    /* without an exponent */
    bool whole;    /* without limits: equal to an integer, and plain */
    bool fraction; /* without limits: with few digits in front of the point and some behind it */
    bool exact;    /* without limits: integers, and fractions of few digits, which a double holds closely */
    const char *minimum, *maximum;
    bool above_minimum, below_maximum; /* the limit itself is not allowed */
} number_limits;

/* Numbers have at most 20 digits in front of the point and 20 behind it. Only those without limits, or
 * from zero on, may have an exponent, of at most two digits. KAKEYA_INVALID_ARGUMENT: there is no such number. */
kakeya_status number_dfa(const number_limits *limits, dfa *out, kakeya_error *error);
/* Plain numbers that are multiples of a number above 0, with any number of digits. KAKEYA_UNSUPPORTED: its automaton is
 * too large. */
kakeya_status number_multiples(const char *of, dfa *out, kakeya_error *error);

#endif
