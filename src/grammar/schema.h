/* JSON Schemas to nodes of a program. What is not understood is refused, with a JSON pointer to it: an answer that has
 * followed a grammar is valid under the schema that it was made from.
 *
 * Some valid answers are not among those that can be given: members come in the order of the schema, members that it
 * does not name only where it allows them expressly, and strings without needless escapes where they are bounded by
 * more than their length. */
#ifndef KAKEYA_GRAMMAR_SCHEMA_H
#define KAKEYA_GRAMMAR_SCHEMA_H

#include <cjson/cJSON.h>

#include "grammar/program.h"

enum {
    SCHEMA_MAX_SCHEMAS = 5000, /* in one program */
    SCHEMA_MAX_ITEMS = 10000,  /* minItems, maxItems */
    SCHEMA_MAX_VALUES = 1000,  /* of an enum */
    SCHEMA_MAX_STATES = 60000, /* of the automata of all strings and numbers */
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
/* Any JSON object. */
kakeya_status schema_any_object(schema_compiler *c, grammar_form form, uint32_t *node, kakeya_error *error);

#endif
