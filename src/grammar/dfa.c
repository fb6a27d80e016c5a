#include "grammar/dfa.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_LOOKS = 50000000, /* at transitions, where states are looked through in rounds: some 50 ms */
    LOOKS_A_STEP = 4,     /* that are as costly as a look at a state while it is made */
};

void dfa_free(dfa *d) {
    free(d->next);
    free(d->flags);
    *d = (dfa){0};
}

/* ------------------------------------------------------------------------------------------------------ exploring */

/* States of a source by number and by name. */
typedef struct explored {
    uint64_t *keys;  /* [capacity] */
    uint32_t *slots; /* [2 * capacity]: state + 1 of a key, 0: empty; capacity is a power of two */
    uint32_t n, capacity, most;
} explored;

static uint32_t slot_of(const explored *e, uint64_t key) {
    uint64_t mixed = key * UINT64_C(0x9E3779B97F4A7C15);
    uint32_t mask = 2 * e->capacity - 1, slot = (uint32_t)(mixed >> 32) & mask;
    while (e->slots[slot] && e->keys[e->slots[slot] - 1] != key) slot = (slot + 1) & mask;
    return slot;
}

static bool explored_grow(explored *e) {
    uint32_t capacity = e->capacity ? 2 * e->capacity : 256;
    uint64_t *keys = realloc(e->keys, capacity * sizeof *keys);
    if (keys) e->keys = keys;
    uint32_t *slots = calloc(2 * (size_t)capacity, sizeof *slots);
    if (!keys || !slots) {
        free(slots);
        return false;
    }
    free(e->slots);
    e->slots = slots;
    e->capacity = capacity;
    for (uint32_t i = 0; i < e->n; i++) e->slots[slot_of(e, e->keys[i])] = i + 1;
    return true;
}

static dfa_result state_of(explored *e, uint64_t key, uint16_t *state) {
    if (e->n == e->capacity && !explored_grow(e)) return DFA_OUT_OF_MEMORY;
    uint32_t slot = slot_of(e, key);
    if (!e->slots[slot]) {
        if (e->n == e->most) return DFA_TOO_LARGE;
        e->keys[e->n++] = key;
        e->slots[slot] = e->n;
    }
    *state = (uint16_t)(e->slots[slot] - 1);
    return DFA_OK;
}

static dfa_result explore(dfa_source *source, const uint16_t *representative, dfa *d, explored *e) {
    uint32_t rows = 0;
    uint16_t state;
    e->most = source->most_states ? source->most_states : DFA_MAX_STATES;
    dfa_result result = state_of(e, source->start, &state);
    for (uint32_t at = 0; result == DFA_OK && at < e->n; at++) {
        if (at == rows) {
            rows = rows ? 2 * rows : 64;
            uint16_t *next = realloc(d->next, (size_t)rows * d->n_classes * sizeof *next);
            if (next) d->next = next;
            uint8_t *flags = next ? realloc(d->flags, rows) : NULL;
            if (!flags) return DFA_OUT_OF_MEMORY;
            d->flags = flags;
        }
        uint64_t key = e->keys[at];
        d->flags[at] = source->flags(source->user, key);
        for (uint32_t c = 0; c < d->n_classes && result == DFA_OK; c++) {
            uint64_t to;
            uint16_t *next = &d->next[at * d->n_classes + c];
            *next = DFA_REFUSED;
            if (source->step(source->user, key, representative[c], &to)) result = state_of(e, to, next);
            if (source->failure) result = source->failure;
        }
    }
    d->n_states = (uint16_t)e->n;
    return result;
}

/* Removes the states from which no accepting one can be reached. Marks go round until nothing new is marked: few
 * rounds, because successors mostly have higher numbers. */
static dfa_result trim(dfa *d, size_t *looks) {
    uint16_t n = d->n_states, kept = 0;
    size_t work = 0;
    uint16_t *number = malloc(n * sizeof *number);
    if (!number) return DFA_OUT_OF_MEMORY;
    for (uint32_t s = 0; s < n; s++) number[s] = d->flags[s] & DFA_ACCEPTS ? 0 : DFA_REFUSED;
    for (bool more = true; more && work <= MAX_LOOKS; work += (size_t)n * d->n_classes) {
        more = false;
        for (uint32_t s = n; s-- > 0;) {
            for (uint32_t c = 0; c < d->n_classes && number[s] == DFA_REFUSED; c++) {
                uint16_t to = d->next[s * d->n_classes + c];
                if (to == DFA_REFUSED || number[to] == DFA_REFUSED) continue;
                number[s] = 0;
                more = true;
            }
        }
    }
    for (uint32_t s = 0; s < n; s++)
        if (number[s] != DFA_REFUSED) number[s] = kept++;
    bool empty = number[0] == DFA_REFUSED;
    for (uint32_t s = 0; s < n; s++) {
        if (number[s] == DFA_REFUSED) continue;
        uint32_t to = number[s];
        d->flags[to] = d->flags[s];
        for (uint32_t c = 0; c < d->n_classes; c++) {
            uint16_t next = d->next[s * d->n_classes + c];
            next = next == DFA_REFUSED ? DFA_REFUSED : number[next];
            d->next[to * d->n_classes + c] = next;
            if (next != DFA_REFUSED) d->flags[to] |= DFA_GOES_ON;
        }
    }
    d->n_states = kept;
    free(number);
    *looks = work;
    return work > MAX_LOOKS ? DFA_TOO_LARGE : empty ? DFA_EMPTY : DFA_OK;
}

dfa_result dfa_make(dfa_source *source, dfa *out) {
    explored e = {0};
    uint16_t representative[LETTERS];
    *out = (dfa){0};
    memcpy(out->class_of, source->class_of, sizeof out->class_of);
    for (unsigned letter = LETTERS; letter-- > 0;) {
        uint16_t class = source->class_of[letter];
        representative[class] = (uint16_t)letter;
        if (class >= out->n_classes) out->n_classes = class + 1;
    }
    size_t looks = 0;
    dfa_result result = explore(source, representative, out, &e);
    uint32_t cost = e.n * out->n_classes;
    if (result == DFA_OK) result = trim(out, &looks);
    free(e.keys);
    free(e.slots);
    if (result != DFA_OK) dfa_free(out);
    out->cost = cost + (uint32_t)(looks / LOOKS_A_STEP);
    return result;
}

/* ---------------------------------------------------------------------------------------------- derived automata */

void dfa_refine(uint16_t *out, const uint16_t *a, const uint16_t *b) {
    uint16_t n = 0, last[LETTERS] = {0}, before[LETTERS + 1]; /* first letters of classes by their class in a, linked */
    for (unsigned letter = 0; letter < LETTERS; letter++) {
        unsigned same = last[a[letter]];
        while (same && b[same - 1] != b[letter]) same = before[same];
        if (same) {
            out[letter] = out[same - 1];
            continue;
        }
        out[letter] = n++;
        before[letter + 1] = last[a[letter]];
        last[a[letter]] = (uint16_t)(letter + 1);
    }
}

typedef struct pair {
    const dfa *a, *b;
    dfa_operation operation;
} pair;

static uint16_t next_of(const dfa *d, unsigned state, unsigned letter) {
    return state == DFA_REFUSED ? DFA_REFUSED : dfa_next(d, state, letter);
}

static bool pair_step(void *user, uint64_t state, unsigned letter, uint64_t *to) {
    const pair *p = user;
    uint16_t a = next_of(p->a, (unsigned)(state >> 16), letter), b = next_of(p->b, state & 0xFFFF, letter);
    *to = (uint64_t)a << 16 | b;
    if (p->operation == DFA_OR) return a != DFA_REFUSED || b != DFA_REFUSED;
    return a != DFA_REFUSED && (p->operation == DFA_WITHOUT || b != DFA_REFUSED);
}

static bool accepts_at(const dfa *d, unsigned state) { return state != DFA_REFUSED && (d->flags[state] & DFA_ACCEPTS); }

static uint8_t pair_flags(void *user, uint64_t state) {
    const pair *p = user;
    bool a = accepts_at(p->a, (unsigned)(state >> 16)), b = accepts_at(p->b, state & 0xFFFF);
    if (p->operation == DFA_OR) return a || b;
    if (!a || b == (p->operation == DFA_WITHOUT)) return 0;
    return p->a->flags[state >> 16] & (uint8_t) ~(DFA_GOES_ON | DFA_CHARACTER);
}

dfa_result dfa_combine(const dfa *a, const dfa *b, dfa_operation operation, dfa *out) {
    pair p = {a, b, operation};
    dfa_source source = {.user = &p, .step = pair_step, .flags = pair_flags};
    dfa_refine(source.class_of, a->class_of, b->class_of);
    return dfa_make(&source, out);
}

typedef struct labelling {
    const dfa *a, *b;
    unsigned bit;
    const uint32_t *masks; /* of a's labels */
    uint32_t made[DFA_MAX_LABELS], n_made;
    bool failed;
} labelling;

static bool label_step(void *user, uint64_t state, unsigned letter, uint64_t *to) {
    const labelling *l = user;
    uint16_t a = next_of(l->a, (unsigned)(state >> 16), letter), b = next_of(l->b, state & 0xFFFF, letter);
    *to = (uint64_t)a << 16 | b;
    return a != DFA_REFUSED;
}

static uint8_t label_flags(void *user, uint64_t state) {
    labelling *l = user;
    unsigned a = (unsigned)(state >> 16);
    uint32_t label = 0;
    if (!accepts_at(l->a, a)) return 0;
    uint32_t mask = l->masks[dfa_label_of(l->a, a)] | (uint32_t)accepts_at(l->b, state & 0xFFFF) << l->bit;
    while (label < l->n_made && l->made[label] != mask) label++;
    if (label == DFA_MAX_LABELS) {
        l->failed = true;
        return 0;
    }
    if (label == l->n_made) l->made[l->n_made++] = mask;
    return (uint8_t)(DFA_ACCEPTS | label << DFA_LABEL_SHIFT);
}

dfa_result dfa_label(const dfa *a, const dfa *b, unsigned bit, uint32_t *masks, uint32_t *n_labels, dfa *out) {
    labelling l = {.a = a, .b = b, .bit = bit, .masks = masks};
    dfa_source source = {.user = &l, .step = label_step, .flags = label_flags};
    dfa_refine(source.class_of, a->class_of, b->class_of);
    dfa_result result = dfa_make(&source, out);
    if (l.failed) dfa_free(out);
    memcpy(masks, l.made, l.n_made * sizeof *masks);
    *n_labels = l.n_made;
    return l.failed ? DFA_TOO_LARGE : result;
}

typedef struct keeping {
    const dfa *a;
    uint32_t keep;
} keeping;

static bool keep_step(void *user, uint64_t state, unsigned letter, uint64_t *to) {
    const keeping *k = user;
    *to = dfa_next(k->a, (unsigned)state, letter);
    return *to != DFA_REFUSED;
}

static uint8_t keep_flags(void *user, uint64_t state) {
    const keeping *k = user;
    uint8_t flags = k->a->flags[state] & (uint8_t)~DFA_GOES_ON;
    bool kept = k->keep >> dfa_label_of(k->a, (unsigned)state) & 1;
    return kept ? flags : flags & DFA_CHARACTER;
}

dfa_result dfa_keep_labels(const dfa *a, uint32_t keep, dfa *out) {
    keeping k = {a, keep};
    dfa_source source = {.user = &k, .step = keep_step, .flags = keep_flags};
    memcpy(source.class_of, a->class_of, sizeof source.class_of);
    return dfa_make(&source, out);
}

static bool text_step(void *user, uint64_t state, unsigned letter, uint64_t *to) {
    const unsigned char *text = user;
    *to = state + 1;
    return text[state] && letter == text[state];
}

static uint8_t text_flags(void *user, uint64_t state) { return ((const char *)user)[state] ? 0 : DFA_ACCEPTS; }

dfa_result dfa_of_text(const char *text, dfa *out) {
    union {
        const char *constant;
        void *user;
    } given = {text};
    dfa_source source = {.user = given.user, .step = text_step, .flags = text_flags};
    for (; *text; text++) source.class_of[(unsigned char)*text] = 1;
    uint16_t n = 0;
    for (unsigned letter = 0; letter < LETTERS; letter++) source.class_of[letter] = source.class_of[letter] ? ++n : 0;
    return dfa_make(&source, out);
}

static bool trie_step(void *user, uint64_t state, unsigned letter, uint64_t *to) {
    *to = trie_next(user, (uint32_t)state, letter);
    return *to != TRIE_NONE;
}

static uint8_t trie_flags(void *user, uint64_t state) {
    return ((const trie *)user)->nodes[state].word != TRIE_NONE ? DFA_ACCEPTS : 0;
}

dfa_result dfa_of_trie(const trie *words, dfa *out) {
    union {
        const trie *constant;
        void *user;
    } given = {words};
    dfa_source source = {.user = given.user, .step = trie_step, .flags = trie_flags};
    uint16_t n = 0;
    for (uint32_t i = 1; i < words->n; i++) source.class_of[words->nodes[i].letter] = 1;
    for (unsigned letter = 0; letter < LETTERS; letter++) source.class_of[letter] = source.class_of[letter] ? ++n : 0;
    return dfa_make(&source, out);
}

bool dfa_accepts(const dfa *d, const char *text) {
    unsigned at = 0;
    if (d->n_states == 0) return false;
    for (; *text && at != DFA_REFUSED; text++) at = dfa_next(d, at, (unsigned char)*text);
    return accepts_at(d, at);
}

typedef struct limited {
    const dfa *a;
    uint32_t minimum, maximum;
} limited;

static bool continues_character(unsigned letter) { return letter >= 0x80 && letter < 0xC0; }

static bool limited_step(void *user, uint64_t state, unsigned letter, uint64_t *to) {
    const limited *l = user;
    uint32_t count = (uint32_t)state;
    uint16_t a = dfa_next(l->a, (unsigned)(state >> 32), letter);
    if (a == DFA_REFUSED) return false;
    if (!continues_character(letter)) {
        if (count == l->maximum) return false;
        if (l->maximum != UINT32_MAX || count < l->minimum) count++; /* beyond the minimum, no limit counts alike */
    }
    *to = (uint64_t)a << 32 | count;
    return true;
}

static uint8_t limited_flags(void *user, uint64_t state) {
    const limited *l = user;
    return (uint32_t)state >= l->minimum && (l->a->flags[state >> 32] & DFA_ACCEPTS);
}

dfa_result dfa_limit_characters(const dfa *a, uint32_t minimum, uint32_t maximum, dfa *out) {
    limited l = {a, minimum, maximum};
    dfa_source source = {.user = &l, .step = limited_step, .flags = limited_flags};
    uint16_t lead[LETTERS];
    for (unsigned letter = 0; letter < LETTERS; letter++) lead[letter] = continues_character(letter);
    dfa_refine(source.class_of, a->class_of, lead);
    return dfa_make(&source, out);
}

static bool spelled_step(void *user, uint64_t state, unsigned letter, uint64_t *to) {
    const limited *l = user;
    uint32_t count = (uint32_t)state, from = (uint32_t)(state >> 32);
    uint16_t a = dfa_next(l->a, from, letter);
    if (a == DFA_REFUSED) return false;
    bool counts = from != 0 && (l->a->flags[a] & DFA_CHARACTER);
    if (counts && count == l->maximum) return false;
    if (counts && (l->maximum != UINT32_MAX || count < l->minimum)) count++;
    *to = (uint64_t)a << 32 | count;
    return true;
}

dfa_result dfa_limit_spelled(const dfa *a, uint32_t minimum, uint32_t maximum, dfa *out) {
    limited l = {a, minimum, maximum};
    dfa_source source = {.user = &l, .step = spelled_step, .flags = limited_flags};
    memcpy(source.class_of, a->class_of, sizeof source.class_of);
    return dfa_make(&source, out);
}

/* Where a string stands: in front of it, inside, behind a backslash, and so on. */
enum { BEFORE, INSIDE, ESCAPED, U, U0, U00, U000, U001, BEHIND };

static bool spelled(const dfa *a, unsigned state, unsigned byte, uint64_t *to) {
    uint16_t next = dfa_next(a, state, byte);
    *to = (uint64_t)next << 8 | INSIDE;
    return next != DFA_REFUSED;
}

static bool go(unsigned state, unsigned place, uint64_t *to) {
    *to = (uint64_t)state << 8 | place;
    return true;
}

static int hex_value(unsigned letter) {
    if (letter >= '0' && letter <= '9') return (int)letter - '0';
    if (letter >= 'a' && letter <= 'f') return (int)letter - 'a' + 10;
    if (letter >= 'A' && letter <= 'F') return (int)letter - 'A' + 10;
    return -1;
}

/* Whether the text may go on with a character that an escape spells: any, or a control character. */
static bool takes_escaped(const dfa *a, unsigned state, bool control) {
    bool takes = !control && (dfa_next(a, state, '"') != DFA_REFUSED || dfa_next(a, state, '\\') != DFA_REFUSED);
    for (unsigned byte = 0; byte < 0x20 && !takes; byte++) takes = dfa_next(a, state, byte) != DFA_REFUSED;
    return takes;
}

static bool json_step(void *user, uint64_t key, unsigned letter, uint64_t *to) {
    static const char names[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t";
    const dfa *a = user;
    unsigned state = (unsigned)(key >> 8), place = key & 0xFF;
    const char *name;
    switch (place) {
    case BEFORE:
        return letter == '"' && go(0, INSIDE, to);
    case INSIDE:
        if (letter == '"') return (a->flags[state] & DFA_ACCEPTS) && go(0, BEHIND, to);
        if (letter == '\\') return takes_escaped(a, state, false) && go(state, ESCAPED, to);
        return letter >= 0x20 && spelled(a, state, letter, to);
    case ESCAPED:
        if (letter == 'u') return takes_escaped(a, state, true) && go(state, U, to);
        name = letter && letter < 0x80 ? strchr(names, (int)letter) : NULL;
        return name && spelled(a, state, (unsigned char)meanings[name - names], to);
    case U:
    case U0:
        return letter == '0' && go(state, place + 1, to);
    case U00:
        return (letter == '0' || letter == '1') && go(state, letter == '0' ? U000 : U001, to);
    case U000:
    case U001:
        return hex_value(letter) >= 0 && spelled(a, state, (place == U001) * 16u + (unsigned)hex_value(letter), to);
    default:
        return false;
    }
}

static bool quoted_step(void *user, uint64_t key, unsigned letter, uint64_t *to) {
    const dfa *a = user;
    unsigned state = (unsigned)(key >> 8), place = key & 0xFF;
    if (place == BEFORE) return letter == LETTER_QUOTE && go(0, INSIDE, to);
    if (place == BEHIND) return false;
    if (letter == LETTER_QUOTE) return (a->flags[state] & DFA_ACCEPTS) && go(0, BEHIND, to);
    return spelled(a, state, letter, to);
}

/* Inside of a UTF-8 character, one of its bytes must follow. */
static bool in_character(const dfa *a, unsigned state) {
    for (unsigned byte = 0x80; byte < 0xC0; byte++)
        if (dfa_next(a, state, byte) != DFA_REFUSED) return true;
    return false;
}

static uint8_t string_flags(void *user, uint64_t key) {
    if ((key & 0xFF) == BEHIND) return DFA_ACCEPTS;
    return (key & 0xFF) == INSIDE && !in_character(user, (unsigned)(key >> 8)) ? DFA_CHARACTER : 0;
}

/* As it is spelled in one way alone. */
static bool key_step(void *user, uint64_t key, unsigned letter, uint64_t *to) {
    const dfa *a = user;
    unsigned state = (unsigned)(key >> 8), place = key & 0xFF;
    if (place == INSIDE && letter == '"') return false;
    if (place == U000 || place == U001) {
        int value = hex_value(letter);
        if (value < 0 || (letter >= 'A' && letter <= 'F')) return false;
        unsigned byte = (place == U001) * 16u + (unsigned)value;
        return (byte < 8 || byte == 11 || byte > 13) && spelled(a, state, byte, to);
    }
    if (place == ESCAPED && letter == 'u') {
        for (unsigned byte = 0; byte < 0x20; byte++)
            if ((byte < 8 || byte == 11 || byte > 13) && dfa_next(a, state, byte) != DFA_REFUSED)
                return go(state, U, to);
        return false;
    }
    return json_step(user, key, letter, to);
}

static uint8_t key_flags(void *user, uint64_t key) {
    const dfa *a = user;
    if ((key & 0xFF) != INSIDE) return 0;
    return a->flags[key >> 8] & (uint8_t) ~(DFA_GOES_ON | DFA_CHARACTER);
}

typedef enum spelling { IN_JSON, IN_QUOTES, IN_KEY } spelling;

static dfa_result in_string(const dfa *a, spelling how, dfa *out) {
    union {
        const dfa *constant;
        void *user;
    } given = {a};
    dfa_source source = {.user = given.user,
                         .start = how == IN_KEY ? INSIDE : BEFORE,
                         .step = how == IN_JSON  ? json_step
                                 : how == IN_KEY ? key_step
                                                 : quoted_step,
                         .flags = how == IN_KEY ? key_flags : string_flags};
    uint16_t own[LETTERS] = {0};
    own[LETTER_QUOTE] = 1;
    for (unsigned letter = 0; how != IN_QUOTES && letter < 0x80; letter++) {
        bool told_apart = hex_value(letter) >= 0 || (letter && strchr("\"\\bfnrtu", (int)letter));
        own[letter] = letter < 0x20 ? 2 : told_apart ? (uint16_t)(3 + letter) : 0;
    }
    dfa_refine(source.class_of, a->class_of, own);
    return dfa_make(&source, out);
}

dfa_result dfa_in_json_string(const dfa *a, dfa *out) { return in_string(a, IN_JSON, out); }
dfa_result dfa_in_quotes(const dfa *a, dfa *out) { return in_string(a, IN_QUOTES, out); }
dfa_result dfa_in_json_key(const dfa *a, dfa *out) { return in_string(a, IN_KEY, out); }
