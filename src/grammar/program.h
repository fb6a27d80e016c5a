/* A grammar as data: nodes that say which texts a value may be spelled as. Built by compilers (schema.h, calls.h, ...),
 * read by the automaton (automaton.h). Immutable once finished.
 *
 * Every node that is left can be completed from wherever it is allowed to begin, so an automaton that has refused
 * nothing so far never comes to an end where nothing is allowed. */
#ifndef KAKEYA_GRAMMAR_PROGRAM_H
#define KAKEYA_GRAMMAR_PROGRAM_H

#include <stddef.h>

#include "base/error.h"
#include "grammar/dfa.h"
#include "grammar/trie.h"

enum {
    GRAMMAR_MAX_NODES = 20000,
    GRAMMAR_MAX_DEPTH = 64,       /* of values in one another */
    GRAMMAR_MAX_FREE_DEPTH = 32,  /* where the schema says nothing, and inside of calls */
    GRAMMAR_MAX_BRANCHES = 16,    /* alternatives that have a beginning in common */
    GRAMMAR_COUNTED_OTHERS = 48,  /* members that are not declared, of those that minProperties asks for */
    GRAMMAR_MAX_ANY_ORDER = 1024, /* keys of an object; more of them come in their own order */
    GRAMMAR_MAX_WORK = 8000000,   /* steps of compiling: less than half a second */
    GRAMMAR_MAX_STATES = 60000,   /* of the automata of all strings, numbers and expressions */
};

/* No enumerators: those are ints. */
#define GRAMMAR_NOTHING  UINT32_MAX /* no node */
#define GRAMMAR_NO_LIMIT UINT32_MAX

/* JSON, or the form that the model writes the arguments of a call in: keys without quotes, strings between quote
 * letters, no white space. */
typedef enum grammar_form { GRAMMAR_JSON = 0, GRAMMAR_CALL, GRAMMAR_FORMS } grammar_form;

typedef enum node_kind {
    NODE_NEVER = 0, /* no value */
    NODE_DFA,       /* what the automaton accepts, quotes included */
    NODE_LITERAL,   /* a word of the trie */
    NODE_STRING,    /* any string of minimum..maximum characters */
    NODE_ARRAY,     /* minimum..maximum items: the first ones as children say, the others as `rest`. With rests
                     * [n_children + 1]: least..most of them are instead what the same place has there.
                     * With `distinct`: part of every item is one that no other has */
    NODE_OBJECT,    /* children: the values of the keys in the trie; minimum..maximum members; rest: of other keys, or
                     * rests: by the label of the key in the dfa */
    NODE_SET,       /* an array of minimum..maximum items, no two of the same letters, that the dfa accepts */
    NODE_DISTINCT,  /* what the dfa accepts; no two items of the array `level` values further out have the same letters
                     */
    NODE_CALL,      /* call:NAME and arguments: names in the trie, children: the arguments of each */
    NODE_UNION,     /* one of the children */
    NODE_ROW,       /* all children, one behind the other */
    NODE_REPEAT,    /* the one child, minimum..maximum times */
    NODE_ROOT,      /* the text as a whole is `rest` */
} node_kind;

typedef struct grammar_node {
    node_kind kind;
    grammar_form form;
    bool any_order;    /* NODE_OBJECT: keys may come in any order; otherwise in their own */
    bool may_be_empty; /* the empty text is one */
    uint8_t depth_limit;
    uint8_t depth; /* of the flattest value, itself included; 255: there is none */
    uint32_t minimum, maximum;
    uint32_t rest;
    uint32_t *children; /* malloc'ed */
    uint32_t n_children;
    uint8_t *required;       /* NODE_OBJECT: [n_children] */
    uint32_t *next_required; /* NODE_OBJECT: [n_children + 1]: the first required key from this one on, or n_children */
    uint32_t n_required;     /* NODE_OBJECT */
    uint32_t *turns; /* NODE_OBJECT of one literal member: by its word, the object that this one turns out to be.
                      * [n_turns], malloc'ed; the member is turn_key of that object */
    uint32_t *turn_keys;
    uint32_t n_turns;
    uint32_t *rests;       /* NODE_OBJECT: [n_rests], malloc'ed; `rest` is one of them */
    uint32_t n_rests;      /* 0: keys that are not declared may be anything */
    uint32_t least, most;  /* NODE_ARRAY with rests; most: GRAMMAR_NO_LIMIT where others may be such, too */
    uint32_t distinct;     /* NODE_ARRAY: a NODE_DISTINCT that is part of some items, or GRAMMAR_NOTHING */
    uint32_t level;        /* NODE_DISTINCT: 1: an item itself; 2: a part of one */
    uint16_t *completions; /* NODE_OBJECT with rests, NODE_SET, NODE_DISTINCT: dfa_completions */
    uint32_t *shortest;    /* NODE_DFA: dfa_lengths, or NULL: lengths are not counted */
    uint32_t *longest;
    uint32_t twin; /* NODE_DFA: the first node that reads the same texts by the same automaton */
    char *where;   /* NODE_UNION: its place in the schema, for messages; malloc'ed, may be NULL */
    dfa dfa;
    trie words;
} grammar_node;

typedef struct grammar_program {
    grammar_node *nodes;
    uint32_t n, capacity;
    bool lenient; /* of many alternatives that begin alike the last ones may be lost */
    size_t work;  /* program_spend */
    size_t states;
} grammar_program;

/* Says what compiling has cost, in steps of some tens of nanoseconds: callers wait for it. False: it has become too
 * much. */
bool program_spend(grammar_program *p, size_t steps);
/* What making the automaton took, or trying to, in such steps. */
static inline size_t program_steps(const dfa *made) { return 8 + made->cost / 4; }
/* Counts the states of an automaton that stays. False: all of them have become too many. */
bool program_count_states(grammar_program *p, const dfa *made);
/* Only the first n nodes stay. Nothing that stays may lead to the others. */
void program_cut(grammar_program *p, uint32_t n);

/* An index into nodes, or GRAMMAR_NOTHING with *error set: too many nodes, or no memory. Pointers into nodes do not
 * outlive it. */
uint32_t program_add(grammar_program *p, node_kind kind, grammar_form form, kakeya_error *error);
/* Appends a child. False where memory ends. */
bool program_add_child(grammar_node *node, uint32_t child);
/* Once everything is there. KAKEYA_UNSUPPORTED where more than GRAMMAR_MAX_BRANCHES alternatives begin alike, and where
 * unions of unions have become too many. */
kakeya_status program_finish(grammar_program *p, kakeya_error *error);
/* Of a finished program: KAKEYA_INVALID_ARGUMENT where the node has no value. */
kakeya_status program_check_value(const grammar_program *p, uint32_t node, kakeya_error *error);
void program_free(grammar_program *p);
/* What it has allocated. */
size_t program_bytes(const grammar_program *p);

#endif
