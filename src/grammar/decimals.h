/* Decimal numbers as JSON spells them, exactly. */
#ifndef KAKEYA_GRAMMAR_DECIMALS_H
#define KAKEYA_GRAMMAR_DECIMALS_H

#include <stdbool.h>
#include <stdint.h>

enum { DECIMAL_MAX_DIGITS = 400 };

/* |value| = 0.digits * 10^exponent; no zeros in front or behind, so zero has no digits. */
typedef struct decimal {
    bool negative;
    int n;
    long exponent;
    char digits[DECIMAL_MAX_DIGITS];
} decimal;

/* Digits behind DECIMAL_MAX_DIGITS are not read. */
void decimal_read(const char *text, decimal *out);
int decimal_compare(const decimal *a, const decimal *b); /* -1, 0, 1 */

int number_compare(const char *a, const char *b);
bool number_is_integer(const char *text);
/* False: `of` is zero, or has more than 18 digits. */
bool number_is_multiple(const char *text, const char *of, bool *multiple);

#endif
