/* The formats of JSON Schema's strings, as automata on what the string says. */
#ifndef KAKEYA_GRAMMAR_FORMATS_H
#define KAKEYA_GRAMMAR_FORMATS_H

#include "base/error.h"
#include "grammar/dfa.h"

/* Whether the standard defines it; others are annotations. */
bool format_is_known(const char *name);
/* What is accepted, in at most *most characters (UINT32_MAX: any number), is always one of the format, and most that
 * are one are accepted: docs/grammar.md says what is left out. KAKEYA_UNSUPPORTED: it is not known. */
kakeya_status format_dfa(const char *name, dfa *out, uint32_t *most, kakeya_error *error);

#endif
