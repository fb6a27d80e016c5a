/* Thompson's construction, then the subset construction. */
#include "grammar/regex.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/byte_tables.h"
#include "grammar/regex_syntax.h"

enum {
    MAX_NFA_STATES = 200000,
    MAX_TABLES = 8192, /* of 512 bytes */
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
    MAX_WORK = 5000, /* a hundred small expressions find more than a large one, and any six letters can be large */
#else
    MAX_WORK = 20000000, /* looks at NFA states while subsets are made: some 50 ms */
#endif
};

typedef enum state_kind { STATE_BYTE, STATE_SPLIT, STATE_BEGIN, STATE_END, STATE_MATCH, STATE_NEVER } state_kind;

typedef struct state {
    uint8_t kind;
    uint32_t out;   /* where it leads to; STATE_BYTE: behind the character */
    uint32_t other; /* STATE_SPLIT: where else; STATE_BYTE: its table */
    uint32_t set;   /* STATE_BYTE: the state of the first table of its set; the others follow it */
} state;

/* The tables of a set of characters. */
typedef struct known_set {
    uint32_t first_range, n_ranges, first_table, n_tables;
} known_set;

typedef struct nfa {
    state *states;
    uint32_t n, capacity;
    byte_tables bytes;
    known_set *sets;
    uint32_t n_sets, set_capacity;
    uint32_t any_rest;  /* from here any text matches; REGEX_NONE: there is no such state */
    dfa_result failure; /* the first one sticks */
} nfa;

static uint32_t add_state(nfa *a, state s) {
    if (a->failure) return 0;
    if (a->n == a->capacity) {
        uint32_t capacity = a->capacity ? 2 * a->capacity : 256;
        state *states = a->n >= MAX_NFA_STATES ? NULL : realloc(a->states, capacity * sizeof *states);
        if (!states) {
            a->failure = a->n >= MAX_NFA_STATES ? DFA_TOO_LARGE : DFA_OUT_OF_MEMORY;
            return 0;
        }
        a->states = states;
        a->capacity = capacity;
    }
    a->states[a->n] = s;
    return a->n++;
}

static uint32_t add_split(nfa *a, uint32_t out, uint32_t other) {
    return add_state(a, (state){.kind = STATE_SPLIT, .out = out, .other = other});
}

/* ------------------------------------------------------------------------------------------ characters as bytes */

/* The tables of the set, which may have been made for another node. */
static const known_set *tables_of(nfa *a, const character_range *ranges, uint32_t first, uint32_t n) {
    enum { LOOKED_AT = 64 };
    for (uint32_t i = a->n_sets; i-- > 0 && a->n_sets - i <= LOOKED_AT;) {
        const known_set *own = &a->sets[i];
        if (own->n_ranges == n && memcmp(ranges + own->first_range, ranges + first, n * sizeof *ranges) == 0)
            return own;
    }
    if (a->n_sets == a->set_capacity) {
        uint32_t capacity = a->set_capacity ? 2 * a->set_capacity : 16;
        known_set *sets = realloc(a->sets, capacity * sizeof *sets);
        if (!sets) return NULL;
        a->sets = sets;
        a->set_capacity = capacity;
    }
    uint32_t before = a->bytes.n;
    if (before > MAX_TABLES || !byte_tables_add(&a->bytes, ranges + first, n)) return NULL;
    a->sets[a->n_sets] = (known_set){first, n, before, a->bytes.n - before};
    return &a->sets[a->n_sets++];
}

/* A state from which a character of the set leads to `to`. */
static uint32_t add_set(nfa *a, const character_range *ranges, uint32_t first, uint32_t n, uint32_t to) {
    if (a->failure) return 0;
    const known_set *set = tables_of(a, ranges, first, n);
    if (!set) {
        a->failure = a->bytes.n > MAX_TABLES ? DFA_TOO_LARGE : DFA_OUT_OF_MEMORY;
        return 0;
    }
    uint32_t own = a->n, n_tables = set->n_tables, table = set->first_table;
    for (uint32_t i = 0; i < n_tables; i++)
        add_state(a, (state){.kind = STATE_BYTE, .out = to, .other = table + i, .set = own});
    return own;
}

/* --------------------------------------------------------------------------------------------------- construction */

/* The state in front of a node that leads to `to` behind it. */
static uint32_t add_node(nfa *a, const regex_tree *t, uint32_t node, uint32_t to);

static uint32_t add_row(nfa *a, const regex_tree *t, uint32_t first, uint32_t to) {
    uint32_t n = 0;
    for (uint32_t i = first; i != REGEX_NONE; i = t->nodes[i].sibling) n++;
    uint32_t *row = malloc((n + 1) * sizeof *row);
    if (!row) {
        a->failure = DFA_OUT_OF_MEMORY;
        return to;
    }
    n = 0;
    for (uint32_t i = first; i != REGEX_NONE; i = t->nodes[i].sibling) row[n++] = i;
    while (n-- > 0) to = add_node(a, t, row[n], to);
    free(row);
    return to;
}

static uint32_t add_repeat(nfa *a, const regex_tree *t, const regex_node *node, uint32_t to) {
    if (node->maximum == REGEX_NONE) {
        uint32_t loop = add_split(a, 0, to), inner = add_node(a, t, node->child, loop);
        if (!a->failure) a->states[loop].out = inner;
        to = loop;
    } else {
        uint32_t end = to;
        for (uint32_t i = node->minimum; i < node->maximum && !a->failure; i++)
            to = add_split(a, add_node(a, t, node->child, to), end);
    }
    for (uint32_t i = 0; i < node->minimum && !a->failure; i++) to = add_node(a, t, node->child, to);
    return to;
}

static uint32_t add_node(nfa *a, const regex_tree *t, uint32_t at, uint32_t to) {
    const regex_node *node = &t->nodes[at];
    uint32_t s = REGEX_NONE;
    if (a->failure) return 0;
    switch (node->kind) {
    case REGEX_EMPTY:
        return to;
    case REGEX_SET:
        if (node->n_ranges == 0) return add_state(a, (state){.kind = STATE_NEVER});
        return add_set(a, t->ranges, node->first_range, node->n_ranges, to);
    case REGEX_IN_ROW:
        return add_row(a, t, node->child, to);
    case REGEX_ONE_OF:
        for (uint32_t i = node->child; i != REGEX_NONE; i = t->nodes[i].sibling) {
            uint32_t one = add_node(a, t, i, to);
            s = s == REGEX_NONE ? one : add_split(a, s, one);
        }
        return s;
    case REGEX_REPEAT:
        return add_repeat(a, t, node, to);
    case REGEX_BEGIN:
        return add_state(a, (state){.kind = STATE_BEGIN, .out = to});
    case REGEX_END:
        return add_state(a, (state){.kind = STATE_END, .out = to});
    }
    return to;
}

/* The state in front of any number of any characters, which leads to `to` behind them. */
static uint32_t add_anything(nfa *a, uint32_t to) {
    static const character_range any[] = {{0, 0x10FFFF}};
    uint32_t loop = add_split(a, 0, to), inner = a->n, before = a->bytes.n;
    if (a->failure) return 0;
    if (!byte_tables_add(&a->bytes, any, 1)) a->failure = DFA_OUT_OF_MEMORY;
    for (uint32_t i = before; i < a->bytes.n; i++)
        add_state(a, (state){.kind = STATE_BYTE, .out = loop, .other = i, .set = inner});
    if (!a->failure) a->states[loop].out = inner;
    return loop;
}

/* -------------------------------------------------------------------------------------------------------- subsets */

/* Sets of NFA states that wait for a byte or for the end, as names of DFA states. */
typedef struct subsets {
    const nfa *a;
    uint32_t *members; /* of all sets, one behind the other */
    size_t n_members, member_capacity;
    size_t *first;                /* [n + 1]: where a set begins in members */
    uint64_t *hashes;             /* [capacity] */
    uint32_t n, capacity, *slots; /* slots [2 * capacity]: set + 1, 0: empty */
    uint32_t *mark, stamp; /* [states]: stamp where a state has been met; of those that sets hold: is in the set */
    uint32_t *stack, *set; /* [states + 1] */
    uint32_t n_set;
    uint64_t hash; /* of the set, whatever its order */
    size_t work;
} subsets;

static void begin_set(subsets *s) {
    s->n_set = 0;
    s->hash = 0;
    s->stamp++;
}

static void add_to_set(subsets *s, uint32_t at) {
    uint64_t mixed = (at + UINT64_C(1)) * UINT64_C(0x9E3779B97F4A7C15);
    s->hash += mixed ^ mixed >> 32;
    s->set[s->n_set++] = at;
}

/* Adds a state and what can be reached from it without reading anything. */
static void add_closure(subsets *s, uint32_t from, bool at_begin, bool at_end) {
    uint32_t depth = 0;
    s->stack[depth++] = from;
    while (depth) {
        uint32_t at = s->stack[--depth];
        if (s->mark[at] == s->stamp) continue;
        s->mark[at] = s->stamp;
        s->work++;
        const state *own = &s->a->states[at];
        if (own->kind == STATE_SPLIT) {
            s->stack[depth++] = own->other; /* a state is on the stack twice at most: by either end of its splits */
            if (s->mark[own->out] != s->stamp) s->stack[depth++] = own->out;
        } else if ((own->kind == STATE_BEGIN && at_begin) || (own->kind == STATE_END && at_end)) {
            s->stack[depth++] = own->out;
        }
        if (own->kind == STATE_BYTE || own->kind == STATE_MATCH || own->kind == STATE_END) add_to_set(s, at);
    }
}

static bool is_gathered(const subsets *s, uint32_t other) {
    if (s->hashes[other] != s->hash || s->first[other + 1] - s->first[other] != s->n_set) return false;
    for (size_t i = s->first[other]; i < s->first[other + 1]; i++)
        if (s->mark[s->members[i]] != s->stamp) return false;
    return true;
}

static uint32_t slot_of_hash(const subsets *s, uint64_t hash) { return (uint32_t)(hash >> 20) & (2 * s->capacity - 1); }

/* Where the set that has been gathered is, or may be put. */
static uint32_t subset_slot(const subsets *s) {
    uint32_t slot = slot_of_hash(s, s->hash);
    while (s->slots[slot] && !is_gathered(s, s->slots[slot] - 1)) slot = (slot + 1) & (2 * s->capacity - 1);
    return slot;
}

static bool subsets_grow(subsets *s) {
    uint32_t capacity = s->capacity ? 2 * s->capacity : 256;
    size_t *first = realloc(s->first, (capacity + 1) * sizeof *first);
    if (first) s->first = first;
    uint64_t *hashes = first ? realloc(s->hashes, capacity * sizeof *hashes) : NULL;
    if (hashes) s->hashes = hashes;
    uint32_t *slots = hashes ? calloc(2 * (size_t)capacity, sizeof *slots) : NULL;
    if (!slots) return false;
    free(s->slots);
    s->slots = slots;
    s->capacity = capacity;
    s->first[0] = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t slot = slot_of_hash(s, s->hashes[i]);
        while (s->slots[slot]) slot = (slot + 1) & (2 * capacity - 1);
        s->slots[slot] = i + 1;
    }
    return true;
}

/* The name of the set that has been gathered. Where any text may follow, nothing else in the set matters. */
static bool name_subset(subsets *s, uint64_t *name) {
    if (s->a->any_rest != REGEX_NONE && s->mark[s->a->any_rest] == s->stamp) {
        begin_set(s);
        add_closure(s, s->a->any_rest, false, false);
    }
    if (s->n == s->capacity && !subsets_grow(s)) return false;
    uint32_t slot = subset_slot(s);
    if (!s->slots[slot]) {
        if (s->n_members + s->n_set > s->member_capacity) {
            size_t capacity = 2 * (s->n_members + s->n_set) + 1024;
            uint32_t *members = realloc(s->members, capacity * sizeof *members);
            if (!members) return false;
            s->members = members;
            s->member_capacity = capacity;
        }
        if (s->n_set) memcpy(s->members + s->n_members, s->set, s->n_set * sizeof *s->set);
        s->n_members += s->n_set;
        s->hashes[s->n] = s->hash;
        s->first[++s->n] = s->n_members;
        s->slots[slot] = s->n;
    }
    *name = s->slots[slot] - 1;
    return true;
}

typedef struct described {
    subsets sets;
    dfa_source source;
    uint32_t start; /* of the NFA */
} described;

enum { AT_BEGIN = 1 }; /* bit of a DFA state's name: nothing has been read */

static bool subset_step(void *user, uint64_t name, unsigned letter, uint64_t *to) {
    described *d = user;
    subsets *s = &d->sets;
    if (letter > 0xFF) return false;
    begin_set(s);
    for (size_t i = s->first[name >> 1]; i < s->first[(name >> 1) + 1]; i++) {
        const state *own = &s->a->states[s->members[i]];
        s->work++;
        uint16_t next = own->kind == STATE_BYTE ? s->a->bytes.tables[own->other].next[letter] : BYTE_REFUSED;
        if (next != BYTE_REFUSED) add_closure(s, next == BYTE_ENDS ? own->out : own->set + next, false, false);
    }
    if (s->work > MAX_WORK) d->source.failure = DFA_TOO_LARGE;
    if (s->n_set == 0 || d->source.failure) return false;
    if (!name_subset(s, to)) d->source.failure = DFA_OUT_OF_MEMORY;
    *to <<= 1;
    return !d->source.failure;
}

static uint8_t subset_flags(void *user, uint64_t name) {
    described *d = user;
    subsets *s = &d->sets;
    begin_set(s);
    for (size_t i = s->first[name >> 1]; i < s->first[(name >> 1) + 1]; i++)
        add_closure(s, s->members[i], name & AT_BEGIN, true);
    for (uint32_t i = 0; i < s->n_set; i++)
        if (s->a->states[s->set[i]].kind == STATE_MATCH) return DFA_ACCEPTS;
    return 0;
}

/* Bytes that all tables lead to the same place. Other letters are a class of their own, which no table has. */
static void classes_of(const nfa *a, uint16_t *class_of) {
    uint16_t own[LETTERS], told_apart[LETTERS];
    for (unsigned letter = 0; letter < LETTERS; letter++) class_of[letter] = letter > 0xFF;
    for (uint32_t i = 0; i < a->bytes.n; i++) {
        memcpy(own, a->bytes.tables[i].next, sizeof a->bytes.tables[i].next);
        for (unsigned letter = 0x100; letter < LETTERS; letter++) own[letter] = BYTE_REFUSED;
        dfa_refine(told_apart, class_of, own);
        memcpy(class_of, told_apart, sizeof told_apart);
    }
}

static dfa_result determine(const nfa *a, uint32_t start, dfa *out) {
    described d = {.sets = {.a = a}, .start = start};
    subsets *s = &d.sets;
    size_t bytes = ((size_t)a->n + 2) * sizeof(uint32_t);
    uint64_t name = 0;
    s->mark = calloc(1, bytes);
    s->stack = malloc(2 * bytes);
    s->set = malloc(bytes);
    dfa_result result = DFA_OUT_OF_MEMORY;
    if (s->mark && s->stack && s->set) {
        begin_set(s);
        add_closure(s, start, true, false);
        if (name_subset(s, &name)) {
            d.source =
                (dfa_source){.user = &d, .start = name << 1 | AT_BEGIN, .step = subset_step, .flags = subset_flags};
            classes_of(a, d.source.class_of);
            result = dfa_make(&d.source, out);
            out->cost += (uint32_t)s->work;
        }
    }
    free(s->mark);
    free(s->stack);
    free(s->set);
    free(s->members);
    free(s->first);
    free(s->hashes);
    free(s->slots);
    return result;
}

/* --------------------------------------------------------------------------------------------------------- the face */

kakeya_status regex_error(dfa_result result, const char *what, kakeya_error *error) {
    switch (result) {
    case DFA_EMPTY:
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: no text matches", what);
    case DFA_TOO_LARGE:
        return error_set(error, KAKEYA_UNSUPPORTED, "%s: too large, its automaton has more than %d states", what,
                         (int)DFA_MAX_STATES);
    case DFA_OUT_OF_MEMORY:
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", what);
    case DFA_OK:
        break;
    }
    return KAKEYA_OK;
}

static kakeya_status compile_tree(const regex_tree *tree, regex_match match, dfa *out, kakeya_error *error) {
    nfa a = {.any_rest = REGEX_NONE};
    uint32_t end = add_state(&a, (state){.kind = STATE_MATCH});
    if (match != REGEX_WHOLE) end = a.any_rest = add_anything(&a, end);
    uint32_t start = add_node(&a, tree, tree->root, end);
    if (match == REGEX_SEARCH) start = add_anything(&a, start);
    dfa_result result = a.failure ? a.failure : determine(&a, start, out);
    free(a.states);
    free(a.sets);
    free(a.bytes.tables);
    return regex_error(result, "regular expression", error);
}

/* At the end of what is looked for, more than the least number of repetitions changes nothing. */
static void cut_last_repetition(regex_tree *tree, uint32_t at) {
    regex_node *node = &tree->nodes[at];
    uint32_t last = REGEX_NONE;
    for (uint32_t i = node->child; i != REGEX_NONE && node->kind != REGEX_REPEAT; i = tree->nodes[i].sibling) {
        if (node->kind == REGEX_ONE_OF) cut_last_repetition(tree, i);
        last = i;
    }
    if (node->kind == REGEX_IN_ROW && last != REGEX_NONE) cut_last_repetition(tree, last);
    if (node->kind == REGEX_REPEAT) node->maximum = node->minimum;
}

static kakeya_status compile_plain(const char *text, size_t bytes, regex_match match, dfa *out, kakeya_error *error) {
    regex_tree tree;
    *out = (dfa){0};
    kakeya_status status = regex_parse(text, bytes, &tree, error);
    if (status != KAKEYA_OK) return status;
    if (match != REGEX_WHOLE) cut_last_repetition(&tree, tree.root);
    status = compile_tree(&tree, match, out, error);
    regex_tree_free(&tree);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- look-ahead */

/* The byte behind the parenthesis that closes the one at `at`; 0: there is none. *choice: there is a | in front of it,
 * outside of groups, if `at` is SIZE_MAX: in the whole text. */
static size_t behind_group(const char *text, size_t bytes, size_t at, bool *choice) {
    int depth = 0;
    bool class = false;
    for (size_t i = at == SIZE_MAX ? 0 : at; i < bytes; i++) {
        char c = text[i];
        if (c == '\\') {
            i++;
        } else if (class) {
            class = c != ']';
        } else if (c == '[') {
            class = true;
        } else if (c == '(') {
            depth++;
        } else if (c == ')') {
            if (--depth == 0 && at != SIZE_MAX) return i + 1;
        } else if (c == '|' && depth == 0) {
            *choice = true;
        }
    }
    return 0;
}

static bool is_look_ahead(const char *text, size_t bytes, size_t at) {
    return at + 3 < bytes && text[at] == '(' && text[at + 1] == '?' && (text[at + 2] == '=' || text[at + 2] == '!');
}

/* Takes the texts that begin as (or not as) the look-ahead says out of *out, whose texts are all, or (no states) any.
 */
static kakeya_status look_ahead(const char *text, size_t bytes, bool negative, dfa *out, kakeya_error *error) {
    dfa ahead = {0}, both = {0};
    kakeya_status status = compile_plain(text, bytes, REGEX_PREFIX, &ahead, error);
    bool nothing = status == KAKEYA_INVALID_ARGUMENT;
    if (nothing && negative) return KAKEYA_OK;
    if (status == KAKEYA_OK)
        status =
            regex_error(dfa_combine(out, &ahead, negative ? DFA_WITHOUT : DFA_AND, &both), "regular expression", error);
    dfa_free(&ahead);
    dfa_free(out);
    *out = both;
    return status;
}

kakeya_status regex_compile(const char *text, size_t bytes, regex_match match, dfa *out, kakeya_error *error) {
    size_t anchor = bytes && text[0] == '^', at = anchor;
    bool choice = false;
    if (!is_look_ahead(text, bytes, at) || (!anchor && match == REGEX_SEARCH))
        return compile_plain(text, bytes, match, out, error);
    *out = (dfa){0};
    (void)behind_group(text, bytes, SIZE_MAX, &choice);
    while (is_look_ahead(text, bytes, at) && (at = behind_group(text, bytes, at, &choice)) != 0) {
    }
    if (at == 0 || choice) return compile_plain(text, bytes, match, out, error); /* which says what is wrong */
    /* What follows the look-aheads, from the beginning on. */
    char *rest = malloc(bytes + 8);
    if (!rest) return error_set(error, KAKEYA_OUT_OF_MEMORY, "regular expression: out of memory");
    memcpy(rest, "^(?:", 4);
    memcpy(rest + 4, text + at, bytes - at);
    memcpy(rest + 4 + bytes - at, ")", 1);
    kakeya_status status = compile_plain(rest, bytes - at + 5, match, out, error);
    free(rest);
    for (at = anchor; status == KAKEYA_OK && is_look_ahead(text, bytes, at);) {
        size_t end = behind_group(text, bytes, at, &choice);
        status = look_ahead(text + at + 3, end - at - 4, text[at + 2] == '!', out, error);
        at = end;
    }
    return status;
}

/* ^(set){m,n}$, with or without groups: the node that repeats; REGEX_NONE: it is something else. */
static uint32_t only_repetition(const regex_tree *t) {
    uint32_t at = t->root, begin, middle, end;
    if (t->nodes[at].kind != REGEX_IN_ROW) return REGEX_NONE;
    begin = t->nodes[at].child;
    middle = begin == REGEX_NONE ? REGEX_NONE : t->nodes[begin].sibling;
    end = middle == REGEX_NONE ? REGEX_NONE : t->nodes[middle].sibling;
    if (end == REGEX_NONE || t->nodes[end].sibling != REGEX_NONE) return REGEX_NONE;
    if (t->nodes[begin].kind != REGEX_BEGIN || t->nodes[end].kind != REGEX_END) return REGEX_NONE;
    while (t->nodes[middle].kind == REGEX_IN_ROW && t->nodes[middle].child != REGEX_NONE &&
           t->nodes[t->nodes[middle].child].sibling == REGEX_NONE)
        middle = t->nodes[middle].child;
    if (t->nodes[middle].kind != REGEX_REPEAT) return REGEX_NONE;
    uint32_t inner = t->nodes[middle].child;
    while (t->nodes[inner].kind == REGEX_IN_ROW && t->nodes[inner].child != REGEX_NONE &&
           t->nodes[t->nodes[inner].child].sibling == REGEX_NONE)
        inner = t->nodes[inner].child;
    return t->nodes[inner].kind == REGEX_SET ? middle : REGEX_NONE;
}

kakeya_status regex_compile_counted(const char *text, size_t bytes, dfa *out, uint32_t *minimum, uint32_t *maximum,
                                    kakeya_error *error) {
    regex_tree tree;
    kakeya_status status = regex_parse(text, bytes, &tree, error);
    if (status == KAKEYA_OUT_OF_MEMORY) return status;
    if (status != KAKEYA_OK) return regex_compile(text, bytes, REGEX_SEARCH, out, error); /* a look-ahead, perhaps */
    uint32_t repeat = only_repetition(&tree);
    if (repeat != REGEX_NONE) {
        *minimum = tree.nodes[repeat].minimum;
        *maximum = tree.nodes[repeat].maximum; /* REGEX_NONE is no limit, too */
        tree.nodes[repeat].minimum = 0;
        tree.nodes[repeat].maximum = REGEX_NONE;
        *out = (dfa){0};
        status = compile_tree(&tree, REGEX_WHOLE, out, error);
    }
    regex_tree_free(&tree);
    return repeat != REGEX_NONE ? status : regex_compile(text, bytes, REGEX_SEARCH, out, error);
}
