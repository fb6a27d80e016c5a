/* Properties of characters, as \p{...} of regular expressions names them: general categories (gc), scripts (sc), and
 * the common ones that a character has or has not. */
#ifndef KAKEYA_GRAMMAR_UNICODE_PROPERTIES_H
#define KAKEYA_GRAMMAR_UNICODE_PROPERTIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Calls `add` for the ranges of what stands between the braces, in no order. False: it is not known. */
bool unicode_property(const char *text, size_t bytes, void *user, void (*add)(void *user, uint32_t low, uint32_t high));

/* Calls `add` for characters that differ from those of the range in their case alone, by simple case folding: what they
 * fold to, and what folds to them. Of the characters that this gives, those that are alike are the rest. */
void unicode_other_cases(uint32_t low, uint32_t high, void *user, void (*add)(void *user, uint32_t low, uint32_t high));

#endif
