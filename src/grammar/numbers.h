/* JSON numbers between limits, as automata on their digits. */
#ifndef KAKEYA_GRAMMAR_NUMBERS_H
#define KAKEYA_GRAMMAR_NUMBERS_H

#include "base/error.h"
#include "grammar/dfa.h"

/* Limits as JSON spells them; NULL: none. */
typedef struct number_limits {
    bool integer;
    const char *minimum, *maximum;
    bool above_minimum, below_maximum; /* the limit itself is not allowed */
} number_limits;

/* Numbers have at most 20 digits in front of the point and 20 behind it. Only those without limits may have an
 * exponent, of at most two digits. KAKEYA_INVALID_ARGUMENT: there is no such number. KAKEYA_UNSUPPORTED: a limit has
 * too many digits. */
kakeya_status number_dfa(const number_limits *limits, dfa *out, kakeya_error *error);

#endif
