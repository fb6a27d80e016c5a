/* Properties of characters, as \p{...} of regular expressions names them: general categories (gc), scripts (sc), and
 * the common ones that a character has or has not. */
#ifndef KAKEYA_GRAMMAR_UNICODE_PROPERTIES_H
#define KAKEYA_GRAMMAR_UNICODE_PROPERTIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Calls `add` for the ranges of what stands between the braces, in no order. False: it is not known. */
bool unicode_property(const char *text, size_t bytes, void *user, void (*add)(void *user, uint32_t low, uint32_t high));

/* Simple case folding: characters from first to last, `step` apart, fold to themselves + to. */
typedef struct unicode_fold {
    uint32_t first, last, step;
    int32_t to;
} unicode_fold;

/* The run number i; false: there are no more. */
bool unicode_case_fold(size_t i, unicode_fold *out);

#endif
