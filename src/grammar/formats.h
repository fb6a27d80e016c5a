/* The formats of JSON Schema's strings, as automata on what the string says. */
#ifndef KAKEYA_GRAMMAR_FORMATS_H
#define KAKEYA_GRAMMAR_FORMATS_H

#include <stddef.h>

#include "base/error.h"
#include "grammar/dfa.h"

/* Whether the standard defines it; others are annotations. */
bool format_is_known(const char *name);
/* What is accepted, in at most *most characters (UINT32_MAX: any number), is always one of the format, and most that
 * are one are accepted: docs/reference/grammar.md says what is left out. KAKEYA_UNSUPPORTED: it is not known. */
kakeya_status format_dfa(const char *name, dfa *out, uint32_t *most, kakeya_error *error);

/* What of the format number i is left out, in words; *most: the characters that it may have, 0: any number. NULL: there
 * are no more. */
const char *format_left_out(size_t i, const char **name, uint32_t *most);

#endif
