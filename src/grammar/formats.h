/* The formats of JSON Schema's strings, as automata on what the string says. */
#ifndef KAKEYA_GRAMMAR_FORMATS_H
#define KAKEYA_GRAMMAR_FORMATS_H

#include "base/error.h"
#include "grammar/dfa.h"

/* KAKEYA_UNSUPPORTED: none of date-time, date, time, duration, uuid, email, ipv4, ipv6, uri, hostname. Some are
 * stricter than their standards: what is accepted is always one of the format. */
bool format_is_known(const char *name);
kakeya_status format_dfa(const char *name, dfa *out, kakeya_error *error);

#endif
