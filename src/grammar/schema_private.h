/* What the files of the schema compiler share. */
#ifndef KAKEYA_GRAMMAR_SCHEMA_PRIVATE_H
#define KAKEYA_GRAMMAR_SCHEMA_PRIVATE_H

#include <cjson/cJSON.h>

#include "grammar/program.h"

typedef struct schema_compiler schema_compiler;

enum { SCHEMA_MAX_POINTER = 480, SCHEMA_MAX_LEVELS = 256 };

typedef struct schema_known {
    const cJSON *schema; /* NULL: an empty slot */
    uint32_t node;
} schema_known;

struct schema_compiler {
    grammar_program *program;
    const cJSON *root;
    grammar_form form;
    schema_known *known; /* schemas of this document and form that have a node: [n_slots], a power of two */
    uint32_t n_known, n_slots;
    uint32_t n_schemas, n_merged, n_states;
    int depth;                   /* schemas in one another that are being compiled */
    uint32_t any[GRAMMAR_FORMS]; /* GRAMMAR_NOTHING: not made yet */
    cJSON *owned;                /* a list of merged schemas */
    char pointer[SCHEMA_MAX_POINTER];
    size_t pointer_bytes;
    kakeya_status status; /* the first failure sticks */
    kakeya_error *error;
};

/* Fails at the current place. */
kakeya_status schema_fail(schema_compiler *c, kakeya_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
kakeya_status schema_out_of_memory(schema_compiler *c);

/* One step down in the pointer; returns what schema_leave takes. */
size_t schema_enter(schema_compiler *c, const char *key);
size_t schema_enter_index(schema_compiler *c, size_t index);
void schema_leave(schema_compiler *c, size_t mark);

/* What "$ref" leads to; NULL with the compiler failed. */
const cJSON *schema_resolve(schema_compiler *c, const char *reference);
/* An equal schema without "$ref" and "allOf": these are merged into it. NULL with the compiler failed. `schema` itself
 * where it has neither. */
const cJSON *schema_normalise(schema_compiler *c, const cJSON *schema, int depth);
/* Both schemas hold. `a` and `b` have neither "$ref" nor "allOf". NULL with the compiler failed, also where one of them
 * is no schema. */
cJSON *schema_merge(schema_compiler *c, const cJSON *a, const cJSON *b);
/* Whether the keyword says something about values (true), or about the schema (false). */
bool schema_is_assertion(const char *keyword);

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
