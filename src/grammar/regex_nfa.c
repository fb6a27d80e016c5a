#include "grammar/regex_nfa.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_NFA_STATES = 200000,
    MAX_TABLES = 8192, /* of 512 bytes */
};

static uint32_t add_state(nfa *a, nfa_state s) {
    if (a->failure) return 0;
    if (a->n == a->capacity) {
        uint32_t capacity = a->capacity ? 2 * a->capacity : 256;
        nfa_state *states = a->n >= MAX_NFA_STATES ? NULL : realloc(a->states, capacity * sizeof *states);
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
    return add_state(a, (nfa_state){.kind = NFA_SPLIT, .out = out, .other = other});
}

/* ------------------------------------------------------------------------------------------ characters as bytes */

/* The tables of the set, which may have been made for another node. */
static const nfa_set *tables_of(nfa *a, const character_range *ranges, uint32_t first, uint32_t n) {
    enum { LOOKED_AT = 64 };
    for (uint32_t i = a->n_sets; i-- > 0 && a->n_sets - i <= LOOKED_AT;) {
        const nfa_set *own = &a->sets[i];
        if (own->n_ranges == n && memcmp(ranges + own->first_range, ranges + first, n * sizeof *ranges) == 0)
            return own;
    }
    if (a->n_sets == a->set_capacity) {
        uint32_t capacity = a->set_capacity ? 2 * a->set_capacity : 16;
        nfa_set *sets = realloc(a->sets, capacity * sizeof *sets);
        if (!sets) return NULL;
        a->sets = sets;
        a->set_capacity = capacity;
    }
    uint32_t before = a->bytes.n;
    if (before > MAX_TABLES || !byte_tables_add(&a->bytes, ranges + first, n)) return NULL;
    a->sets[a->n_sets] = (nfa_set){first, n, before, a->bytes.n - before};
    return &a->sets[a->n_sets++];
}

/* A state from which a character of the set leads to `to`. */
static uint32_t add_set(nfa *a, const character_range *ranges, uint32_t first, uint32_t n, uint32_t to) {
    if (a->failure) return 0;
    const nfa_set *set = tables_of(a, ranges, first, n);
    if (!set) {
        a->failure = a->bytes.n > MAX_TABLES ? DFA_TOO_LARGE : DFA_OUT_OF_MEMORY;
        return 0;
    }
    uint32_t own = a->n, n_tables = set->n_tables, table = set->first_table;
    for (uint32_t i = 0; i < n_tables; i++)
        add_state(a, (nfa_state){.kind = NFA_BYTE, .out = to, .other = table + i, .set = own});
    return own;
}

/* --------------------------------------------------------------------------------------------------- construction */

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
    while (n-- > 0) to = nfa_add_node(a, t, row[n], to);
    free(row);
    return to;
}

static uint32_t add_repeat(nfa *a, const regex_tree *t, const regex_node *node, uint32_t to) {
    if (node->maximum == REGEX_NONE) {
        uint32_t loop = add_split(a, 0, to), inner = nfa_add_node(a, t, node->child, loop);
        if (!a->failure) a->states[loop].out = inner;
        to = loop;
    } else {
        uint32_t end = to;
        for (uint32_t i = node->minimum; i < node->maximum && !a->failure; i++)
            to = add_split(a, nfa_add_node(a, t, node->child, to), end);
    }
    for (uint32_t i = 0; i < node->minimum && !a->failure; i++) to = nfa_add_node(a, t, node->child, to);
    return to;
}

/* Whether what stands before the node's place makes a difference to it. */
static bool asks_before(const regex_tree *t, uint32_t at) {
    const regex_node *node = &t->nodes[at];
    bool asks = node->kind == REGEX_BEGIN || (node->kind == REGEX_LOOK && node->behind);
    for (uint32_t i = node->child; i != REGEX_NONE && !asks; i = t->nodes[i].sibling) asks = asks_before(t, i);
    return asks;
}

/* Such as those of two word boundaries. */
static bool same_set(const regex_tree *t, uint32_t a, uint32_t b) {
    const regex_node *x = &t->nodes[a], *y = &t->nodes[b];
    return x->kind == REGEX_SET && y->kind == REGEX_SET && x->n_ranges == y->n_ranges &&
           memcmp(t->ranges + x->first_range, t->ranges + y->first_range, x->n_ranges * sizeof *t->ranges) == 0;
}

/* A node that is built several times, as part of a repetition, is one look. */
static uint32_t look_of(nfa *a, const regex_tree *t, uint32_t at) {
    const regex_node *node = &t->nodes[at];
    nfa_look made = {at, node->behind, node->negative, 0, false, a->n_behind};
    for (uint32_t i = 0; i < a->n_looks; i++)
        if (a->looks[i].node == at) return i;
    for (uint32_t i = 0; node->behind && i < a->n_behind; i++)
        if (same_set(t, node->child, t->nodes[a->looks[a->behind[i]].node].child)) made.number = i;
    bool new = node->behind &&made.number == a->n_behind;
    if (new && a->n_behind == NFA_MAX_BEHIND) a->failure = a->failure ? a->failure : DFA_TOO_LARGE;
    if (!node->behind) {
        made.start = nfa_add_node(a, t, node->child, a->any_rest);
        made.asks_before = asks_before(t, node->child);
    }
    if (a->failure) return 0;
    if (a->n_looks == a->look_capacity) {
        uint32_t capacity = a->look_capacity ? 2 * a->look_capacity : 8;
        nfa_look *looks = realloc(a->looks, capacity * sizeof *looks);
        if (!looks) {
            a->failure = DFA_OUT_OF_MEMORY;
            return 0;
        }
        a->looks = looks;
        a->look_capacity = capacity;
    }
    if (new) a->behind[a->n_behind++] = a->n_looks;
    a->looks[a->n_looks] = made;
    return a->n_looks++;
}

uint32_t nfa_add_node(nfa *a, const regex_tree *t, uint32_t at, uint32_t to) {
    const regex_node *node = &t->nodes[at];
    uint32_t s = REGEX_NONE;
    if (a->failure) return 0;
    switch (node->kind) {
    case REGEX_EMPTY:
        return to;
    case REGEX_SET:
        if (node->n_ranges == 0) return add_state(a, (nfa_state){.kind = NFA_NEVER});
        return add_set(a, t->ranges, node->first_range, node->n_ranges, to);
    case REGEX_IN_ROW:
        return add_row(a, t, node->child, to);
    case REGEX_ONE_OF:
        for (uint32_t i = node->child; i != REGEX_NONE; i = t->nodes[i].sibling) {
            uint32_t one = nfa_add_node(a, t, i, to);
            s = s == REGEX_NONE ? one : add_split(a, s, one);
        }
        return s;
    case REGEX_REPEAT:
        return add_repeat(a, t, node, to);
    case REGEX_BEGIN:
        return add_state(a, (nfa_state){.kind = NFA_BEGIN, .out = to});
    case REGEX_END:
        return add_state(a, (nfa_state){.kind = NFA_END, .out = to});
    case REGEX_LOOK:
        return add_state(a, (nfa_state){.kind = NFA_LOOK, .out = to, .other = look_of(a, t, at)});
    }
    return to;
}

uint32_t nfa_add_match(nfa *a) { return add_state(a, (nfa_state){.kind = NFA_MATCH}); }

uint32_t nfa_add_anything(nfa *a, uint32_t to) {
    static const character_range any[] = {{0, 0x10FFFF}};
    uint32_t loop = add_split(a, 0, to), inner = a->n, before = a->bytes.n;
    if (a->failure) return 0;
    if (!byte_tables_add(&a->bytes, any, 1)) a->failure = DFA_OUT_OF_MEMORY;
    for (uint32_t i = before; i < a->bytes.n; i++)
        add_state(a, (nfa_state){.kind = NFA_BYTE, .out = loop, .other = i, .set = inner});
    if (!a->failure) a->states[loop].out = inner;
    return loop;
}

void nfa_classes(const nfa *a, uint16_t *class_of) {
    uint16_t own[LETTERS], told_apart[LETTERS];
    for (unsigned letter = 0; letter < LETTERS; letter++) class_of[letter] = letter > 0xFF;
    for (uint32_t i = 0; i < a->bytes.n; i++) {
        memcpy(own, a->bytes.tables[i].next, sizeof a->bytes.tables[i].next);
        for (unsigned letter = 0x100; letter < LETTERS; letter++) own[letter] = BYTE_REFUSED;
        dfa_refine(told_apart, class_of, own);
        memcpy(class_of, told_apart, sizeof told_apart);
    }
}

void nfa_free(nfa *a) {
    free(a->states);
    free(a->sets);
    free(a->looks);
    free(a->bytes.tables);
    *a = (nfa){0};
}
