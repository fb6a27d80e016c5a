/* What the files of the schema compiler share.
 *
 * A value has to follow a set of terms: schemas that hold at once, some of them negated. References and allOf add terms
 * to the set, anyOf, oneOf, if and the like are branches, and what is left of a branch is a list of claims: keywords
 * that say something about one type of value each (schema_branches.c). Nodes are made of claims, and the members of an
 * object and the items of an array are sets of terms again. So nothing has to be merged, and a keyword is either made
 * into nodes, or it is refused (or loosened) by name. */
#ifndef KAKEYA_GRAMMAR_SCHEMA_PRIVATE_H
#define KAKEYA_GRAMMAR_SCHEMA_PRIVATE_H

#include <cjson/cJSON.h>

#include "grammar/decimals.h"
#include "grammar/program.h"

typedef struct schema_compiler schema_compiler;

enum { SCHEMA_MAX_POINTER = 480, SCHEMA_MAX_LEVELS = 256, SCHEMA_MAX_PATTERNS = 256, SCHEMA_KNOWN_TARGETS = 1021 };

typedef struct schema_term {
    const cJSON *schema;
    bool negated;
} schema_term;

/* Each term once, in the order that they were met in: that of members follows from it. */
typedef struct schema_set {
    schema_term *terms;
    uint32_t n, capacity;
    bool never; /* no value */
} schema_set;

typedef struct schema_known {
    schema_term *terms; /* NULL: an empty slot */
    uint32_t n, node;
    grammar_form form;
} schema_known;

typedef enum value_type {
    TYPE_NULL = 1,
    TYPE_TRUE = 2,
    TYPE_FALSE = 4,
    TYPE_INTEGER = 8,
    TYPE_FRACTION = 16, /* a number that is no integer */
    TYPE_STRING = 32,
    TYPE_ARRAY = 64,
    TYPE_OBJECT = 128,
    TYPE_BOOLEAN = TYPE_TRUE | TYPE_FALSE,
    TYPE_NUMBER = TYPE_INTEGER | TYPE_FRACTION,
    TYPE_ANY = 255,
} value_type;

/* What a keyword is to the compiler (schema_keywords.c). */
typedef enum keyword_kind {
    KEYWORD_ANNOTATION = 0, /* says nothing about values */
    KEYWORD_BESIDE,         /* is read with another one */
    KEYWORD_TYPE,
    KEYWORD_VALUES,    /* enum, const */
    KEYWORD_REFERENCE, /* $ref and the like */
    KEYWORD_ALL,
    KEYWORD_ANY,
    KEYWORD_ONE,
    KEYWORD_NOT,
    KEYWORD_IF,
    KEYWORD_DEPENDENT,
    KEYWORD_CLAIM,   /* about one type of value */
    KEYWORD_REFUSED, /* by name */
} keyword_kind;

typedef struct schema_keyword {
    const char *name;
    keyword_kind kind;
    uint8_t types;         /* KEYWORD_CLAIM: that it is about */
    const char *treatment; /* in words, with %u for the limit */
    uint32_t limit;
} schema_keyword;

const schema_keyword *schema_keywords(size_t *n);          /* those that are known */
const schema_keyword *schema_keyword_of(const char *name); /* annotations, too; never NULL */

typedef enum claim_kind {
    CLAIM_KEYWORD,  /* item: the keyword, of `owner` */
    CLAIM_VALUES,   /* item: enum or const */
    CLAIM_REQUIRE,  /* a member `name` */
    CLAIM_FORBID,   /* none of that name */
    CLAIM_MEMBER,   /* where there is one, it follows the term */
    CLAIM_ITEMS,    /* all items follow the term */
    CLAIM_CONTAINS, /* one item follows it, at least; item: the keyword */
} claim_kind;

typedef struct schema_claim {
    claim_kind kind;
    bool negated;
    const cJSON *item, *owner;
    const char *name;
    schema_term term;
    uint32_t origin; /* the step of the branch that it comes from */
} schema_claim;

/* A schema that is followed in a branch, and the one that it was reached from. */
typedef struct branch_step {
    schema_term term;
    uint32_t parent; /* GRAMMAR_NOTHING: the set */
} branch_step;

/* A choice that is to be made. */
typedef struct branch_choice {
    const cJSON *item, *owner;
    const char *name; /* a member, of dependent keywords */
    bool negated;
    uint32_t origin;
} branch_choice;

typedef struct schema_branch {
    struct schema_compiler *c;
    const schema_set *set;
    uint8_t types;
    branch_step *steps;
    uint32_t n_steps, step_capacity;
    schema_claim *claims;
    uint32_t n_claims, claim_capacity;
    branch_choice *choices;
    uint32_t n_choices, choice_capacity, made; /* choices that have been made */
    uint32_t tried;                            /* alternatives, of all choices */
    uint32_t n_emitted;
    int depth;
    void (*emit)(struct schema_branch *b); /* is called for every branch that may have values */
    /* What all branches of the set come to. */
    uint32_t node;        /* the union */
    uint32_t *exclusions; /* [n_exclusions]: of each of its nodes, how much the branch excludes */
    uint32_t n_exclusions, exclusion_capacity;
    const cJSON **values;
    uint32_t n_values, value_capacity;
    uint8_t words; /* of TYPE_NULL and TYPE_BOOLEAN */
    bool of_names; /* names of members are wanted, no nodes: the three below, and `values` */
    bool any_name, no_name;
    dfa names;
} schema_branch;

struct schema_compiler {
    grammar_program *program;
    const cJSON *root;
    const char *where;
    grammar_form form;
    /* The node of values that follow a set: of those in objects and arrays, too. */
    uint32_t (*compile_set)(struct schema_compiler *c, const schema_set *set);
    void (*emit_names)(struct schema_branch *b); /* of sets that names of members follow */
    bool loosen;                                 /* what cannot be followed is left out and noted */
    bool strict_order; /* members in the order of the schema; others only where they are allowed expressly */
    schema_known *known;
    uint32_t n_known, n_slots;
    uint32_t n_sets, n_tried;
    int depth;                   /* sets in one another that are being compiled */
    uint32_t any[GRAMMAR_FORMS]; /* GRAMMAR_NOTHING: not made yet */
    uint32_t n_large;            /* patterns that were too large, and left out */
    const cJSON *last_one_of;    /* the list that schema_told_apart was asked about last, */
    bool told_apart;             /* and the answer */
    const cJSON *listed;         /* an enum */
    const cJSON *listed_value;   /* that is checked, and is one of it */
    bool uncertain;              /* schema_holds has taken a text for one that is not of a format, and it may be */
    const cJSON *narrowed;       /* a keyword that was negated, but cannot be: values may be missing for it */
    cJSON *notes;                /* pointers to what is left out, each once; NULL: none */
    bool draft3;                 /* members say themselves that they are required */
    bool halves;                 /* the text has escapes that are half of a surrogate pair */
    int names;                   /* whether parts of the document have names ($id, $anchor): 1, -1; 0: not known yet */
    struct schema_pattern {
        const char *text; /* of the document: an expression, or the name of a format; NULL: an empty slot */
        bool format;
        uint32_t most;                      /* characters, of a format */
        dfa dfa;                            /* without states: no text matches */
    } patterns[SCHEMA_MAX_PATTERNS], spare; /* by a hash of the text; spare: the last one that had no room */
    uint32_t n_patterns, n_pattern_states;
    struct schema_member {
        const cJSON *object, *item;
    } * members; /* of large objects, by a hash of object and key */
    uint32_t n_members, n_member_slots;
    struct {
        const cJSON *reference, *target;
    } targets[SCHEMA_KNOWN_TARGETS];
    struct schema_scalar {
        uint64_t key; /* a hash of the claims about it */
        uint32_t node;
    } * scalars; /* strings and numbers of this document that have a node */
    uint32_t n_scalars, scalar_capacity;
    kakeya_status status; /* the first failure sticks */
    kakeya_error *error;
};

/* Fails at an item of the document; NULL: nowhere. */
kakeya_status schema_fail(schema_compiler *c, const cJSON *at, kakeya_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
kakeya_status schema_out_of_memory(schema_compiler *c);
/* The keyword cannot be followed: it is left out and noted where that is allowed, otherwise the compiler fails. */
void schema_cannot(schema_compiler *c, const cJSON *at, kakeya_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* program_spend. False: it has become too much, and the compiler fails. */
bool schema_spend(schema_compiler *c, const cJSON *at, size_t steps);
void schema_spend_on(schema_compiler *c, const cJSON *at, const dfa *made);
/* Says that the item was left out. */
void schema_note(schema_compiler *c, const cJSON *at);

/* The pointer to an item, malloc'ed. */
void schema_place_of(schema_compiler *c, const cJSON *at, char **out);

const cJSON *schema_get(const cJSON *schema, const char *key); /* NULL where it is absent, or null */
/* The member of an object of the document; NULL: there is none, or it is no object. */
const cJSON *schema_member(schema_compiler *c, const cJSON *object, const char *key);
void schema_forget_members(schema_compiler *c);
/* The schema that the reference leads to; NULL: none, and the compiler has failed or noted it. */
const cJSON *schema_resolve(schema_compiler *c, const cJSON *reference);
/* The one that a schema stands for which is a reference and nothing else. */
const cJSON *schema_target(schema_compiler *c, const cJSON *schema);

bool schema_set_add(schema_compiler *c, schema_set *set, const cJSON *schema, bool negated);
void schema_set_free(schema_set *set);

/* Visits the branches of the set. */
void schema_each_branch(schema_branch *b);
/* Whether a step was reached from another one, not through a negation, or is it. */
bool schema_comes_from(const schema_branch *b, uint32_t step, uint32_t origin);
/* Whether a member tells all branches of the list apart: objects that must have it, each with texts of its own. */
bool schema_told_apart(schema_compiler *c, const cJSON *list);
/* Whether no value follows both; false also where that cannot be told. */
bool schema_disjoint(schema_compiler *c, const cJSON *a, const cJSON *b, int depth);

/* Whether the value is valid. What is not understood fails, or is noted and holds. */
bool schema_holds(schema_compiler *c, const cJSON *schema, const cJSON *value, int depth);
bool schema_equal(const cJSON *a, const cJSON *b);
uint8_t schema_type_of(const cJSON *value);
/* The types of "type"; TYPE_ANY where it is absent. */
uint8_t schema_types(schema_compiler *c, const cJSON *schema);
/* The automaton of a pattern, which is looked for anywhere in a text, or of a format that is known. NULL: it cannot be
 * followed, and the compiler has failed or noted it. It lives until the next one is asked for, at least. */
const struct schema_pattern *schema_pattern(schema_compiler *c, const cJSON *at, const char *text, bool format);
void schema_forget_patterns(schema_compiler *c);
/* Whether the text matches the pattern anywhere in it. */
bool schema_matches(schema_compiler *c, const cJSON *at, const char *pattern, const char *text);
/* A count, 0 to `most`. False: it cannot be followed. */
bool schema_count(schema_compiler *c, const cJSON *item, double most, uint32_t *out);

/* Values of one type that follow the claims of a branch. */
uint32_t schema_number(schema_branch *b, uint8_t types);
uint32_t schema_string(schema_branch *b);
uint32_t schema_array(schema_branch *b);
uint32_t schema_object(schema_branch *b);
/* An array of minimum..maximum items that all differ, of the node `item`; GRAMMAR_NOTHING: it cannot be followed, and
 * the compiler has failed or noted it. */
uint32_t schema_different_items(schema_compiler *c, const cJSON *at, uint32_t item, uint32_t minimum, uint32_t maximum);
void schema_name_branch(schema_branch *b);
/* Adds the bytes of a text to a trie; what is no text is left out. */
void schema_add_word(schema_compiler *c, trie *words, const cJSON *value);
/* Automata of one program, together: compiling takes time, and callers wait for it. */
void schema_count_states(schema_compiler *c, const cJSON *at, const dfa *made);

/* Whether `other` has a key that is spelled like number `key` of `object`, and its number. */
bool schema_same_key(const grammar_node *object, uint32_t key, const grammar_node *other, uint32_t *number);
/* Objects of a union that begin alike, and are told apart by a member: one node that reads it and then is one of them.
 */
void schema_tell_apart(schema_compiler *c, uint32_t node);

/* The node of a value that is given. */
uint32_t schema_constant(schema_compiler *c, const cJSON *value);
/* The node of one of these scalars. */
uint32_t schema_literals(schema_compiler *c, const cJSON *const *values, size_t n);
/* Letters of a key; *n of them. Freed by the caller. */
uint16_t *schema_spell_key(grammar_form form, const char *key, size_t *n);
uint32_t schema_add_node(schema_compiler *c, node_kind kind);
void schema_add_child(schema_compiler *c, uint32_t node, uint32_t child);
/* Adds a member to an object. */
void schema_add_member(schema_compiler *c, uint32_t object, const char *key, uint32_t value, bool required);

#endif
