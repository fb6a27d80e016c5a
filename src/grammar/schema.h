/* JSON Schemas to nodes of a program. What is not understood is refused, with a JSON pointer to it: an answer that has
 * followed a grammar is valid under the schema that it was made from.
 *
 * Some valid answers are not among those that can be given: members come in the order of the schema (strict order), and
 * then members that it does not name only where it allows them expressly; strings come without needless escapes where
 * they are bounded by more than their length. */
#ifndef KAKEYA_GRAMMAR_SCHEMA_H
#define KAKEYA_GRAMMAR_SCHEMA_H

#include <cjson/cJSON.h>

#include "grammar/program.h"

enum {
    SCHEMA_MAX_SCHEMAS = 5000,     /* sets of schemas that hold together, in one program */
    SCHEMA_MAX_ITEMS = 1000000000, /* minItems, maxItems */
    SCHEMA_MAX_CONTAINED = 10,     /* minContains */
    SCHEMA_MAX_VALUES = 10000,     /* of an enum */
    SCHEMA_MAX_TRIED = 3000,       /* alternatives of one set */
    SCHEMA_MAX_TRIED_ALL = 30000,  /* of a program */
    SCHEMA_MAX_DIFFERENT = 256,    /* characters of strings that must all be different, where their length is limited */
};

typedef struct schema_compiler schema_compiler;

/* Compiles into `program`, any number of schemas. */
schema_compiler *schema_compiler_create(grammar_program *program);
void schema_compiler_destroy(schema_compiler *c);

/* Parses a schema's text. Numbers keep their spelling (text/chat_json.h). */
kakeya_status schema_parse(const char *name, const char *text, size_t bytes, cJSON **out, kakeya_error *error);
/* root: the document that references lead into, and the schema itself. It outlives the compiler. `where` stands in
 * front of the pointers in messages. */
kakeya_status schema_compile(schema_compiler *c, const cJSON *root, const char *where, grammar_form form,
                             uint32_t *node, kakeya_error *error);
/* Members come in the order of the schema (true, at first), or in any, and then others wherever they are allowed. */
void schema_set_strict_order(schema_compiler *c, bool strict_order);
/* Keywords that cannot be followed are left out at their place, and noted; otherwise (at first) they are refused. */
void schema_set_loosen(schema_compiler *c, bool loosen);
/* The text of what is compiled next had escapes that are half of a surrogate pair, which have been read as U+FFFD. */
void schema_set_halves(schema_compiler *c, bool halves);
/* Pointers to what was left out, annotations that others may take for assertions (a format that no standard defines)
 * among them; NULL: nothing. */
const cJSON *schema_notes(const schema_compiler *c);
/* Notes that a whole schema was left out. */
kakeya_status schema_leave_out(schema_compiler *c, const cJSON *root, const char *where, kakeya_error *error);
/* Where no value is possible because of a keyword that cannot be negated, the error says so. `status`: as it is. */
kakeya_status schema_explain(const schema_compiler *c, kakeya_status status, kakeya_error *error);
/* The first n nodes of the program are left: others were of a schema that could not be compiled. */
void schema_forget_nodes(schema_compiler *c, uint32_t n);
/* Any JSON object. */
kakeya_status schema_any_object(schema_compiler *c, grammar_form form, uint32_t *node, kakeya_error *error);

#endif
