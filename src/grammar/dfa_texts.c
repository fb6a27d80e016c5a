/* How many texts an automaton accepts, and how long they are. */
#include <stdlib.h>
#include <string.h>

#include "grammar/dfa.h"

/* ---------------------------------------------------------------------------------------------------------- lengths */

static uint32_t weight(const dfa *d, uint32_t from, uint32_t to) { return from != 0 && (d->flags[to] & DFA_CHARACTER); }

enum {
    MAX_LOOKS = 20000000, /* at transitions: some 20 ms */
    LOOKS_A_STEP = 4,     /* that are as costly as a look at a state while an automaton is made */
};

/* Rounds until nothing changes: few, because successors mostly have higher numbers. False: too much work. */
static bool find_shortest(const dfa *d, uint32_t *shortest, size_t *looks) {
    size_t work = 0;
    for (uint32_t s = 0; s < d->n_states; s++) shortest[s] = d->flags[s] & DFA_ACCEPTS ? 0 : UINT32_MAX;
    for (bool more = true; more; work += (size_t)d->n_states * d->n_classes) {
        more = false;
        *looks += (size_t)d->n_states * d->n_classes;
        if (work > MAX_LOOKS) return false;
        for (uint32_t s = d->n_states; s-- > 0;) {
            for (uint32_t c = 0; c < d->n_classes; c++) {
                uint32_t to = d->next[s * d->n_classes + c];
                if (to == DFA_REFUSED || shortest[to] == UINT32_MAX) continue;
                uint32_t n = shortest[to] + weight(d, s, to);
                if (n >= shortest[s]) continue;
                shortest[s] = n;
                more = true;
            }
        }
    }
    return true;
}

/* As far as `most`. False: too much work. */
static bool find_longest(const dfa *d, uint32_t most, uint32_t *longest, size_t *looks) {
    size_t work = 0;
    memset(longest, 0, d->n_states * sizeof *longest);
    for (bool more = true; more; work += (size_t)d->n_states * d->n_classes) {
        more = false;
        *looks += (size_t)d->n_states * d->n_classes;
        if (work > MAX_LOOKS) return false;
        for (uint32_t s = d->n_states; s-- > 0;) {
            for (uint32_t c = 0; c < d->n_classes && longest[s] < most; c++) {
                uint32_t to = d->next[s * d->n_classes + c];
                if (to == DFA_REFUSED) continue;
                uint32_t n = longest[to] + weight(d, s, to);
                if (n > most) n = most;
                if (n <= longest[s]) continue;
                longest[s] = n;
                more = true;
            }
        }
    }
    return true;
}

/* Whether there is a rest of every length from the shortest to the longest. */
static bool has_every_length(const dfa *d, uint32_t s, const uint32_t *shortest, const uint32_t *longest) {
    uint32_t reach = shortest[s];
    for (bool more = true; more && reach < longest[s];) {
        more = false;
        for (uint32_t c = 0; c < d->n_classes; c++) {
            uint32_t to = d->next[s * d->n_classes + c];
            if (to == DFA_REFUSED) continue;
            uint32_t low = shortest[to] + weight(d, s, to), high = longest[to] + weight(d, s, to);
            if (low > reach + 1 || high <= reach) continue;
            reach = high;
            more = true;
        }
    }
    return reach >= longest[s];
}

dfa_result dfa_lengths(const dfa *d, uint32_t minimum, uint32_t maximum, uint32_t **shortest, uint32_t **longest,
                       uint32_t *cost) {
    bool exact = true, done = true;
    size_t looks = 0;
    *cost = 0;
    *shortest = malloc(d->n_states * sizeof **shortest);
    *longest = malloc(d->n_states * sizeof **longest);
    if (!*shortest || !*longest) goto failed;
    done = find_shortest(d, *shortest, &looks) && find_longest(d, minimum, *longest, &looks);
    *cost = (uint32_t)(looks / LOOKS_A_STEP);
    for (uint32_t s = 0; s < d->n_states && done && exact && minimum && maximum != UINT32_MAX; s++)
        exact = has_every_length(d, s, *shortest, *longest);
    if (done && exact && (*shortest)[0] <= maximum && (minimum == 0 || (*longest)[0] >= minimum)) return DFA_OK;
    if (done && ((*shortest)[0] > maximum || (minimum && (*longest)[0] < minimum)))
        exact = true;
    else
        exact = false;
    free(*shortest);
    free(*longest);
    *shortest = *longest = NULL;
    return exact ? DFA_EMPTY : DFA_TOO_LARGE;
failed:
    free(*shortest);
    free(*longest);
    *shortest = *longest = NULL;
    return DFA_OUT_OF_MEMORY;
}

/* ------------------------------------------------------------------------------------------------------- completions
 */

/* Where the walk stands in a state. */
typedef struct visit {
    uint16_t state, class;
    uint64_t sum;
} visit;

enum { NOT_MET = 0, OPEN, DONE };

/* A walk in depth: a state that is met again while it is open is in a circle, and so completed in any number of ways.
 */
static void count_completions(const dfa *d, uint16_t *n, uint8_t *met, visit *path) {
    uint16_t letters[LETTERS] = {0};
    uint32_t depth = 0;
    for (unsigned letter = 0; letter < LETTERS; letter++) letters[d->class_of[letter]]++;
    path[depth++] = (visit){.sum = d->flags[0] & DFA_ACCEPTS ? 1 : 0};
    met[0] = OPEN;
    while (depth) {
        visit *own = &path[depth - 1];
        if (own->class == d->n_classes) {
            n[own->state] = own->sum > DFA_ENDLESS ? DFA_ENDLESS : (uint16_t)own->sum;
            met[own->state] = DONE;
            depth--;
            continue;
        }
        uint16_t to = d->next[(size_t)own->state * d->n_classes + own->class];
        if (to != DFA_REFUSED && met[to] == NOT_MET) {
            met[to] = OPEN;
            path[depth++] = (visit){.state = to, .sum = d->flags[to] & DFA_ACCEPTS ? 1 : 0};
            continue;
        }
        if (to != DFA_REFUSED) own->sum += met[to] == OPEN ? DFA_ENDLESS : (uint64_t)n[to] * letters[own->class];
        own->class ++;
    }
}

uint16_t *dfa_completions(const dfa *d) {
    uint16_t *n = calloc(d->n_states + 1u, sizeof *n);
    uint8_t *met = calloc(1, d->n_states + 1u);
    visit *path = malloc((d->n_states + 1u) * sizeof *path);
    bool room = n && met && path;
    if (room && d->n_states) count_completions(d, n, met, path);
    free(met);
    free(path);
    if (room) return n;
    free(n);
    return NULL;
}

enum { MAX_TEXT = 512 };

/* DFA_TOO_LARGE: a text is too long, or has a zero in it. */
static dfa_result gather(const dfa *d, uint32_t s, char *text, size_t n, char **out, uint32_t *found) {
    if (d->flags[s] & DFA_ACCEPTS) {
        text[n] = 0;
        out[*found] = strdup(text);
        if (!out[*found]) return DFA_OUT_OF_MEMORY;
        ++*found;
    }
    if (n + 1 == MAX_TEXT) return d->flags[s] & DFA_GOES_ON ? DFA_TOO_LARGE : DFA_OK;
    dfa_result result = DFA_OK;
    for (unsigned letter = 0; letter < 256 && result == DFA_OK; letter++) {
        uint16_t to = dfa_next(d, s, letter);
        if (to == DFA_REFUSED) continue;
        text[n] = (char)letter;
        result = letter == 0 ? DFA_TOO_LARGE : gather(d, to, text, n + 1, out, found);
    }
    return result;
}

dfa_result dfa_texts(const dfa *d, char **out, uint32_t *n) {
    char text[MAX_TEXT];
    uint16_t *completions = dfa_completions(d);
    uint32_t found = 0;
    dfa_result result = !completions           ? DFA_OUT_OF_MEMORY
                        : completions[0] <= *n ? gather(d, 0, text, 0, out, &found)
                                               : DFA_TOO_LARGE;
    for (uint32_t i = 0; i < found && result != DFA_OK; i++) free(out[i]);
    free(completions);
    *n = result == DFA_OK ? found : 0;
    return result;
}
