/* Regular expressions to automata: the part of ECMAScript's syntax that is regular. Characters are Unicode's; texts are
 * UTF-8. Understood are classes, escapes (\d \w \s and their opposites, \n \t \r \f \v \0 \cX \xHH \uHHHH \u{H}), .,
 * groups of any kind, look-ahead and look-behind anywhere, word boundaries, |, the counters * + ? {m} {m,} {m,n} also
 * with a ? behind, and the anchors ^ and $. */
#ifndef KAKEYA_GRAMMAR_REGEX_H
#define KAKEYA_GRAMMAR_REGEX_H

#include "base/error.h"
#include "grammar/dfa.h"

typedef enum regex_match {
    REGEX_WHOLE,  /* the expression stands for the whole text */
    REGEX_SEARCH, /* for some part of it, as in JSON Schema */
    REGEX_PREFIX, /* for its beginning */
} regex_match;

/* KAKEYA_FORMAT: not an expression. KAKEYA_UNSUPPORTED: not one that this understands, or its automaton is too large.
 * KAKEYA_INVALID_ARGUMENT: no text matches. Messages begin with "regular expression". On failure *out is all zero but
 * for the cost. */
kakeya_status regex_compile(const char *text, size_t bytes, regex_match match, dfa *out, kakeya_error *error);

/* REGEX_WHOLE, of an automaton that is wanted only if it is made of no more states, before those are taken out that
 * lead to nothing. */
kakeya_status regex_compile_small(const char *text, size_t bytes, uint32_t most_states, dfa *out);

/* REGEX_SEARCH. Where the expression is one character of a set, so many times, the automaton takes any number of them
 * and *minimum..*maximum receive how many; otherwise they stay as they are. */
kakeya_status regex_compile_counted(const char *text, size_t bytes, dfa *out, uint32_t *minimum, uint32_t *maximum,
                                    kakeya_error *error);

/* What went wrong with an automaton, as an error; `what` names it. */
kakeya_status regex_error(dfa_result result, const char *what, kakeya_error *error);

#endif
