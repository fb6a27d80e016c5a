/* The subset construction, of expressions with look-around. */
#include "grammar/regex.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "grammar/regex_nfa.h"

enum {
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
    MAX_WORK = 5000, /* a hundred small expressions find more than a large one, and any six letters can be large */
#else
    MAX_WORK = 20000000, /* looks at NFA states while subsets are made: some 50 ms */
#endif
    TABLE_COST = 64, /* of a table of bytes, in looks */
};

/* ------------------------------------------------------------------------------------------------- configurations */

/* What look-around adds to a state of the NFA. Look-behinds are automata that read along from the beginning: where they
 * all stand is a context. Each look-ahead that is still open is one, too, which the rest of the text must satisfy: an
 * obligation. So a way to match is a state and a list of obligations: a configuration. */
typedef struct behind_context {
    uint16_t at[NFA_MAX_BEHIND]; /* DFA_REFUSED: it never holds from here on */
} behind_context;

/* The automaton of a look-ahead whose place has a context. States with the label 1 accept whatever follows. */
typedef struct ahead {
    uint32_t look, context;
    bool at_begin;
    dfa dfa; /* without states: no text matches */
} ahead;

typedef struct obligation {
    uint16_t ahead, at;
} obligation;

enum { MAX_OBLIGATIONS = 12, MAX_AHEADS = 400, MAX_CONFIGURATIONS = 200000, ENDLESS = 1 << DFA_LABEL_SHIFT };

typedef struct obligations {
    uint32_t n;
    obligation list[MAX_OBLIGATIONS]; /* ascending; the rest is zero */
} obligations;

typedef struct configuration {
    uint32_t state, obligations;
} configuration;

/* A list of equal-sized things, each once, found by their bytes. */
typedef struct distinct {
    uint8_t *items;
    size_t size;                  /* of one */
    uint32_t n, capacity, *slots; /* slots [2 * capacity]: item + 1, 0: empty */
} distinct;

/* What all automata of one expression share. */
typedef struct looking {
    const nfa *a;
    dfa behind[NFA_MAX_BEHIND];
    distinct contexts, obligations; /* the first of each is: all at their start; none */
    distinct configurations;        /* those with obligations; their numbers begin behind the NFA's states */
    ahead *aheads;
    uint32_t n_aheads;
    size_t work;
    dfa_result failure; /* the first one sticks */
} looking;

static bool distinct_grow(distinct *d) {
    uint32_t capacity = d->capacity ? 2 * d->capacity : 64;
    uint8_t *items = realloc(d->items, capacity * d->size);
    if (items) d->items = items;
    uint32_t *slots = items ? calloc(2 * (size_t)capacity, sizeof *slots) : NULL;
    if (!slots) return false;
    free(d->slots);
    d->slots = slots;
    d->capacity = capacity;
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t slot = (uint32_t)hash_fnv1a(HASH_FNV1A_START, d->items + i * d->size, d->size) & (2 * capacity - 1);
        while (d->slots[slot]) slot = (slot + 1) & (2 * capacity - 1);
        d->slots[slot] = i + 1;
    }
    return true;
}

/* The number of the item, which is added where it is not there. */
static uint32_t number_of(looking *l, distinct *d, const void *item) {
    if (l->failure) return 0;
    if (d->n == d->capacity && !distinct_grow(d)) {
        l->failure = DFA_OUT_OF_MEMORY;
        return 0;
    }
    uint32_t mask = 2 * d->capacity - 1, slot = (uint32_t)hash_fnv1a(HASH_FNV1A_START, item, d->size) & mask;
    while (d->slots[slot] && memcmp(d->items + (d->slots[slot] - 1) * d->size, item, d->size) != 0)
        slot = (slot + 1) & mask;
    if (!d->slots[slot]) {
        memcpy(d->items + d->n * d->size, item, d->size);
        d->slots[slot] = ++d->n;
    }
    return d->slots[slot] - 1;
}

static const obligations *obligations_at(const looking *l, uint32_t i) {
    return (const obligations *)(const void *)(l->obligations.items + i * sizeof(obligations));
}

static configuration configuration_at(const looking *l, uint32_t i) {
    if (i < l->a->n) return (configuration){i, 0};
    return ((const configuration *)(const void *)l->configurations.items)[i - l->a->n];
}

static uint32_t configuration_of(looking *l, uint32_t state, uint32_t open) {
    configuration made = {state, open};
    if (open == 0) return state;
    uint32_t i = l->a->n + number_of(l, &l->configurations, &made);
    if (i > MAX_CONFIGURATIONS && !l->failure) l->failure = DFA_TOO_LARGE;
    return i;
}

/* Where the text has satisfied (or broken) the look-ahead, whatever follows: *holds. */
static bool is_settled(const looking *l, obligation o, bool refused, bool *holds) {
    const ahead *own = &l->aheads[o.ahead];
    bool negative = l->a->looks[own->look].negative;
    *holds = refused == negative;
    return refused || own->dfa.n_states == 0 || own->dfa.flags[o.at] & ENDLESS;
}

/* False: a look-ahead is broken, or the compiler has failed. */
static bool add_obligation(looking *l, obligations *to, obligation o, bool refused) {
    bool holds;
    if (is_settled(l, o, refused, &holds)) return holds;
    uint32_t i = to->n;
    for (uint32_t k = 0; k < to->n; k++)
        if (to->list[k].ahead == o.ahead && to->list[k].at == o.at) return true;
    if (to->n == MAX_OBLIGATIONS) {
        if (!l->failure) l->failure = DFA_TOO_LARGE;
        return false;
    }
    for (;
         i > 0 && (to->list[i - 1].ahead > o.ahead || (to->list[i - 1].ahead == o.ahead && to->list[i - 1].at > o.at));
         i--)
        to->list[i] = to->list[i - 1];
    to->list[i] = o;
    to->n++;
    return true;
}

/* The obligations behind a letter. False: one is broken. */
static bool step_obligations(looking *l, uint32_t open, unsigned letter, uint32_t *to) {
    obligations before, after = {0};
    *to = 0;
    if (open == 0) return true;
    before = *obligations_at(l, open);
    for (uint32_t i = 0; i < before.n; i++) {
        obligation o = before.list[i];
        o.at = dfa_next(&l->aheads[o.ahead].dfa, o.at, letter);
        if (!add_obligation(l, &after, o, o.at == DFA_REFUSED)) return false;
    }
    *to = number_of(l, &l->obligations, &after);
    return !l->failure;
}

static bool obligations_hold_at_end(const looking *l, uint32_t open) {
    const obligations *own = obligations_at(l, open);
    for (uint32_t i = 0; i < own->n; i++) {
        const ahead *one = &l->aheads[own->list[i].ahead];
        if ((bool)(one->dfa.flags[own->list[i].at] & DFA_ACCEPTS) == l->a->looks[one->look].negative) return false;
    }
    return true;
}

static bool holds_behind(const looking *l, const nfa_look *look, uint32_t at) {
    const dfa *d = &l->behind[look->number];
    const behind_context *own = (const behind_context *)(const void *)l->contexts.items + at;
    uint16_t state = own->at[look->number];
    return (state != DFA_REFUSED && d->flags[state] & DFA_ACCEPTS) != look->negative;
}

static uint32_t step_context(looking *l, uint32_t at, unsigned letter) {
    if (l->a->n_behind == 0) return 0;
    behind_context next = ((const behind_context *)(const void *)l->contexts.items)[at];
    for (uint32_t i = 0; i < l->a->n_behind; i++)
        if (next.at[i] != DFA_REFUSED) next.at[i] = dfa_next(&l->behind[i], next.at[i], letter);
    return number_of(l, &l->contexts, &next);
}

static dfa_result determine(looking *l, uint32_t start, uint32_t context, bool at_begin, bool is_ahead, dfa *out);

/* The number of a look-ahead's automaton. */
static uint32_t ahead_of(looking *l, uint32_t look, uint32_t context, bool at_begin) {
    bool asks = l->a->looks[look].asks_before;
    ahead made = {look, asks ? context : 0, asks && at_begin, {0}};
    for (uint32_t i = 0; i < l->n_aheads; i++)
        if (l->aheads[i].look == look && l->aheads[i].context == made.context && l->aheads[i].at_begin == made.at_begin)
            return i;
    dfa_result result = determine(l, l->a->looks[look].start, made.context, made.at_begin, true, &made.dfa);
    if (result != DFA_OK && result != DFA_EMPTY && !l->failure) l->failure = result;
    if (!l->failure && !l->aheads && !(l->aheads = malloc(MAX_AHEADS * sizeof *l->aheads)))
        l->failure = DFA_OUT_OF_MEMORY;
    if (!l->failure && l->n_aheads == MAX_AHEADS) l->failure = DFA_TOO_LARGE;
    if (l->failure) {
        dfa_free(&made.dfa);
        return 0;
    }
    l->aheads[l->n_aheads] = made;
    return l->n_aheads++;
}

/* -------------------------------------------------------------------------------------------------------- subsets */

/* Sets of configurations that wait for a byte or for the end, as names of DFA states. */
typedef struct subsets {
    looking *l;
    const nfa *a;
    bool is_ahead;
    uint32_t *members; /* of all sets, one behind the other */
    size_t n_members, member_capacity;
    size_t *first;                /* [n + 1]: where a set begins in members */
    uint64_t *hashes;             /* [capacity] */
    uint32_t n, capacity, *slots; /* slots [2 * capacity]: set + 1, 0: empty */
    uint32_t *mark,
        stamp; /* [room]: stamp where a configuration has been met; of those that sets hold: is in the set */
    uint32_t *stack, *set; /* [2 * room], [room] */
    uint32_t room, n_set;
    uint32_t any_set; /* of which any text may follow, or REGEX_NONE */
    uint64_t hash;    /* of the set, whatever its order */
} subsets;

/* Room for all configurations. */
static bool make_room(subsets *s) {
    uint32_t need = s->a->n + s->l->configurations.n + 2, room = s->room;
    if (need <= room) return true;
    room = room ? 2 * need : need;
    uint32_t *mark = realloc(s->mark, room * sizeof *mark);
    if (mark) s->mark = mark;
    uint32_t *stack = mark ? realloc(s->stack, 2 * (size_t)room * sizeof *stack) : NULL;
    if (stack) s->stack = stack;
    uint32_t *set = stack ? realloc(s->set, room * sizeof *set) : NULL;
    if (set) s->set = set;
    if (!set) {
        s->l->failure = DFA_OUT_OF_MEMORY;
        return false;
    }
    memset(s->mark + s->room, 0, (room - s->room) * sizeof *s->mark);
    s->room = room;
    return true;
}

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

/* Where the closure stands. */
typedef struct place {
    uint32_t context;
    bool at_begin, at_end;
} place;

/* Whether a look holds, as far as it can be told; *open: the obligations behind it. */
static bool pass_look(subsets *s, uint32_t look, place where, uint32_t *open) {
    looking *l = s->l;
    if (s->a->looks[look].behind) return holds_behind(l, &s->a->looks[look], where.context);
    uint32_t own = ahead_of(l, look, where.context, where.at_begin);
    if (l->failure) return false;
    obligations made = *obligations_at(l, *open);
    if (!add_obligation(l, &made, (obligation){(uint16_t)own, 0}, l->aheads[own].dfa.n_states == 0)) return false;
    *open = number_of(l, &l->obligations, &made);
    return !l->failure;
}

/* Adds a configuration and what can be reached from it without reading anything. */
static void add_closure(subsets *s, uint32_t from, place where) {
    uint32_t depth = 0;
    if (!make_room(s)) return;
    s->stack[depth++] = from;
    while (depth && !s->l->failure) {
        uint32_t at = s->stack[--depth];
        if (s->mark[at] == s->stamp) continue;
        s->mark[at] = s->stamp;
        s->l->work++;
        configuration c = configuration_at(s->l, at);
        const nfa_state *own = &s->a->states[c.state];
        if (own->kind == NFA_SPLIT) { /* a state is on the stack twice at most: by either end of its splits */
            uint32_t other = configuration_of(s->l, own->other, c.obligations);
            uint32_t out = configuration_of(s->l, own->out, c.obligations);
            if (!make_room(s)) return;
            s->stack[depth++] = other;
            if (s->mark[out] != s->stamp) s->stack[depth++] = out;
        } else if ((own->kind == NFA_BEGIN && where.at_begin) || (own->kind == NFA_END && where.at_end) ||
                   (own->kind == NFA_LOOK && pass_look(s, own->other, where, &c.obligations))) {
            uint32_t out = configuration_of(s->l, own->out, c.obligations);
            if (!make_room(s)) return;
            s->stack[depth++] = out;
        }
        if (own->kind == NFA_BYTE || own->kind == NFA_MATCH || own->kind == NFA_END) add_to_set(s, at);
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

static bool any_text_may_follow(const subsets *s) {
    return s->a->any_rest != REGEX_NONE && s->mark[s->a->any_rest] == s->stamp;
}

/* The number of the set that has been gathered. */
static uint32_t number_of_set(subsets *s) {
    if (s->l->failure) return 0;
    if (s->n == s->capacity && !subsets_grow(s)) {
        s->l->failure = DFA_OUT_OF_MEMORY;
        return 0;
    }
    uint32_t slot = subset_slot(s);
    if (s->slots[slot]) return s->slots[slot] - 1;
    if (s->n_members + s->n_set > s->member_capacity) {
        size_t capacity = 2 * (s->n_members + s->n_set) + 1024;
        uint32_t *members = realloc(s->members, capacity * sizeof *members);
        if (!members) {
            s->l->failure = DFA_OUT_OF_MEMORY;
            return 0;
        }
        s->members = members;
        s->member_capacity = capacity;
    }
    if (s->n_set) memcpy(s->members + s->n_members, s->set, s->n_set * sizeof *s->set);
    s->n_members += s->n_set;
    s->hashes[s->n] = s->hash;
    s->first[++s->n] = s->n_members;
    s->slots[slot] = s->n;
    return s->n - 1;
}

/* A DFA state's name: its set, the context of its place, and whether nothing has been read. */
typedef struct named {
    uint32_t set, context;
    bool at_begin;
} named;

static uint64_t as_name(named n) { return (uint64_t)n.set << 32 | (uint64_t)n.context << 1 | n.at_begin; }
static named from_name(uint64_t name) {
    return (named){(uint32_t)(name >> 32), (uint32_t)(name & UINT32_MAX) >> 1, name & 1};
}

/* The name of the set that has been gathered. Where any text may follow, nothing else in the set matters. */
static uint64_t name_of_set(subsets *s, uint32_t context, bool at_begin) {
    if (!any_text_may_follow(s)) return as_name((named){number_of_set(s), context, at_begin});
    begin_set(s);
    add_closure(s, s->a->any_rest, (place){0});
    s->any_set = number_of_set(s);
    return as_name((named){s->any_set, 0, false});
}

typedef struct described {
    subsets sets;
    dfa_source source;
} described;

static bool subset_step(void *user, uint64_t name, unsigned letter, uint64_t *to) {
    described *d = user;
    subsets *s = &d->sets;
    named from = from_name(name);
    if (letter > 0xFF) return false;
    place where = {.context = step_context(s->l, from.context, letter)};
    begin_set(s);
    for (size_t i = s->first[from.set]; i < s->first[from.set + 1]; i++) {
        configuration c = configuration_at(s->l, s->members[i]);
        const nfa_state *own = &s->a->states[c.state];
        s->l->work++;
        uint16_t next = own->kind == NFA_BYTE ? s->a->bytes.tables[own->other].next[letter] : BYTE_REFUSED;
        if (next == BYTE_REFUSED || !step_obligations(s->l, c.obligations, letter, &c.obligations)) continue;
        add_closure(s, configuration_of(s->l, next == BYTE_ENDS ? own->out : own->set + next, c.obligations), where);
    }
    if (s->l->work > MAX_WORK && !s->l->failure) s->l->failure = DFA_TOO_LARGE;
    if (s->n_set && !s->l->failure) *to = name_of_set(s, where.context, false);
    d->source.failure = s->l->failure;
    return s->n_set && !s->l->failure;
}

static uint8_t subset_flags(void *user, uint64_t name) {
    described *d = user;
    subsets *s = &d->sets;
    named from = from_name(name);
    place end = {from.context, from.at_begin, true};
    begin_set(s);
    for (size_t i = s->first[from.set]; i < s->first[from.set + 1]; i++) add_closure(s, s->members[i], end);
    d->source.failure = s->l->failure;
    for (uint32_t i = 0; i < s->n_set && !s->l->failure; i++) {
        configuration c = configuration_at(s->l, s->set[i]);
        if (s->a->states[c.state].kind == NFA_MATCH && obligations_hold_at_end(s->l, c.obligations))
            return (uint8_t)(DFA_ACCEPTS | (s->is_ahead && from.set == s->any_set ? ENDLESS : 0));
    }
    return 0;
}

static void classes_of(const looking *l, uint16_t *class_of) {
    uint16_t told_apart[LETTERS];
    nfa_classes(l->a, class_of);
    for (uint32_t i = 0; i < l->a->n_behind; i++) {
        dfa_refine(told_apart, class_of, l->behind[i].class_of);
        memcpy(class_of, told_apart, sizeof told_apart);
    }
}

static dfa_result determine(looking *l, uint32_t start, uint32_t context, bool at_begin, bool is_ahead, dfa *out) {
    described d = {.sets = {.l = l, .a = l->a, .is_ahead = is_ahead, .any_set = REGEX_NONE}};
    subsets *s = &d.sets;
    dfa_result result = DFA_OK;
    if (make_room(s)) {
        begin_set(s);
        add_closure(s, start, (place){context, at_begin, false});
    }
    uint64_t name = l->failure ? 0 : name_of_set(s, context, at_begin);
    if (!l->failure) {
        d.source = (dfa_source){
            .user = &d, .start = name, .most_states = l->a->most_states, .step = subset_step, .flags = subset_flags};
        classes_of(l, d.source.class_of);
        result = dfa_make(&d.source, out);
    }
    if (l->failure) {
        uint32_t cost = out->cost;
        dfa_free(out);
        out->cost = cost;
        result = l->failure;
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

static dfa_result determine_all(const nfa *a, const regex_tree *tree, uint32_t start, dfa *out);

/* The automaton of texts that end as the look-behind says. */
static dfa_result read_behind(const regex_tree *tree, uint32_t node, dfa *out) {
    nfa a = {.any_rest = REGEX_NONE};
    uint32_t match = nfa_add_match(&a),
             start = nfa_add_anything(&a, nfa_add_node(&a, tree, tree->nodes[node].child, match));
    dfa_result result = determine_all(&a, tree, start, out);
    nfa_free(&a);
    return result;
}

/* The automaton of an NFA. */
static dfa_result determine_all(const nfa *a, const regex_tree *tree, uint32_t start, dfa *out) {
    looking l = {.a = a, .failure = a->failure};
    behind_context begin = {{0}};
    const obligations none = {0};
    dfa_result result;
    l.contexts.size = sizeof begin;
    l.obligations.size = sizeof none;
    l.configurations.size = sizeof(configuration);
    (void)number_of(&l, &l.obligations, &none);
    for (uint32_t i = 0; i < a->n_behind && !l.failure; i++) {
        result = read_behind(tree, a->looks[a->behind[i]].node, &l.behind[i]);
        if (result != DFA_OK && result != DFA_EMPTY) l.failure = result;
        if (result != DFA_OK) begin.at[i] = DFA_REFUSED;
    }
    (void)number_of(&l, &l.contexts, &begin);
    result = l.failure ? l.failure : determine(&l, start, 0, true, false, out);
    out->cost += (uint32_t)l.work + a->n + TABLE_COST * a->bytes.n;
    for (uint32_t i = 0; i < l.n_aheads; i++) out->cost += l.aheads[i].dfa.cost, dfa_free(&l.aheads[i].dfa);
    for (uint32_t i = 0; i < a->n_behind; i++) out->cost += l.behind[i].cost, dfa_free(&l.behind[i]);
    free(l.aheads);
    distinct *const lists[] = {&l.contexts, &l.obligations, &l.configurations};
    for (size_t i = 0; i < 3; i++) {
        free(lists[i]->items);
        free(lists[i]->slots);
    }
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

static kakeya_status compile_tree(const regex_tree *tree, regex_match match, uint32_t most_states, dfa *out,
                                  kakeya_error *error) {
    nfa a = {.any_rest = REGEX_NONE, .most_states = most_states};
    uint32_t end = nfa_add_match(&a);
    if (match != REGEX_WHOLE || tree->looks) a.any_rest = nfa_add_anything(&a, end);
    if (match != REGEX_WHOLE) end = a.any_rest;
    uint32_t start = nfa_add_node(&a, tree, tree->root, end);
    if (match == REGEX_SEARCH) start = nfa_add_anything(&a, start);
    dfa_result result = determine_all(&a, tree, start, out);
    nfa_free(&a);
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

static kakeya_status compile_text(const char *text, size_t bytes, regex_match match, uint32_t most_states, dfa *out,
                                  kakeya_error *error) {
    regex_tree tree;
    *out = (dfa){0};
    kakeya_status status = regex_parse(text, bytes, &tree, error);
    if (status != KAKEYA_OK) return status;
    if (match != REGEX_WHOLE) cut_last_repetition(&tree, tree.root);
    for (uint32_t i = 0; i < tree.n_nodes; i++)
        if (tree.nodes[i].kind == REGEX_LOOK && !tree.nodes[i].behind) cut_last_repetition(&tree, tree.nodes[i].child);
    status = compile_tree(&tree, match, most_states, out, error);
    regex_tree_free(&tree);
    return status;
}

kakeya_status regex_compile(const char *text, size_t bytes, regex_match match, dfa *out, kakeya_error *error) {
    return compile_text(text, bytes, match, 0, out, error);
}

kakeya_status regex_compile_small(const char *text, size_t bytes, uint32_t most_states, dfa *out) {
    return compile_text(text, bytes, REGEX_WHOLE, most_states, out, NULL);
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
    if (status != KAKEYA_OK) return status;
    uint32_t repeat = only_repetition(&tree);
    if (repeat != REGEX_NONE) {
        *minimum = tree.nodes[repeat].minimum;
        *maximum = tree.nodes[repeat].maximum; /* REGEX_NONE is no limit, too */
        tree.nodes[repeat].minimum = 0;
        tree.nodes[repeat].maximum = REGEX_NONE;
        *out = (dfa){0};
        status = compile_tree(&tree, REGEX_WHOLE, 0, out, error);
    }
    regex_tree_free(&tree);
    return repeat != REGEX_NONE ? status : regex_compile(text, bytes, REGEX_SEARCH, out, error);
}
