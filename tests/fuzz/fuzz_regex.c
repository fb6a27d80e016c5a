/* Any text as a regular expression, and what is made of its automaton: limits of length, strings of JSON, strings of
 * calls. The second byte says which of them. */
#include "grammar/regex.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every state leads on or accepts. */
static void check(const dfa *d) {
    for (unsigned letter = 0; letter < LETTERS; letter++)
        if (d->class_of[letter] >= d->n_classes) abort();
    for (unsigned s = 0; s < d->n_states; s++) {
        bool goes_on = false;
        for (unsigned class = 0; class < d->n_classes; class ++) {
            uint16_t next = d->next[s * d->n_classes + class];
            if (next != DFA_REFUSED && next >= d->n_states) abort();
            goes_on = goes_on || next != DFA_REFUSED;
        }
        if (goes_on != ((d->flags[s] & DFA_GOES_ON) != 0)) abort();
        if (!goes_on && !(d->flags[s] & DFA_ACCEPTS)) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    dfa d, other, both;
    kakeya_error error = {0};
    if (size < 2) return 0;
    regex_match match = data[0] % 2 ? REGEX_WHOLE : REGEX_SEARCH;
    if (regex_compile((const char *)data + 2, size - 2, match, &d, &error) != KAKEYA_OK) {
        if (d.next || !error.message[0]) abort();
        return 0;
    }
    check(&d);
    if (d.n_states < 200 && data[1] / 64 == 0) {
        if (dfa_limit_characters(&d, data[1] % 4, data[1] % 16, &other) == DFA_OK) check(&other);
        if (dfa_combine(&d, other.next ? &other : &d, DFA_AND, &both) == DFA_OK) check(&both);
        dfa_free(&other);
        dfa_free(&both);
    } else if (d.n_states < 200 && data[1] / 64 == 1) {
        if (dfa_in_json_string(&d, &other) == DFA_OK) check(&other);
        dfa_free(&other);
    } else if (d.n_states < 200 && data[1] / 64 == 2) {
        if (dfa_in_quotes(&d, &other) == DFA_OK) check(&other);
        dfa_free(&other);
    }
    dfa_free(&d);
    return 0;
}
