/* What the declared JSON schemas of tools say about a call's values: enough to read a bare word as the type that the
 * tool expects. "type" (one or a list), "properties", "additionalProperties", "items", "anyOf", "oneOf", "allOf" and
 * "$ref" within the same schema are followed. */
#ifndef KAKEYA_TEXT_CHAT_SCHEMA_H
#define KAKEYA_TEXT_CHAT_SCHEMA_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

/* A place in a tool's schema; node == NULL: nothing is declared there. Borrows the tree. */
typedef struct chat_schema {
    const cJSON *root, *node;
} chat_schema;

enum {
    CHAT_TYPE_STRING = 1,
    CHAT_TYPE_NUMBER = 2, /* integers too */
    CHAT_TYPE_BOOLEAN = 4,
    CHAT_TYPE_NULL = 8,
    CHAT_TYPE_OTHER = 16, /* objects and lists */
};

/* The parameters of the tool with this name in a list of OpenAI tool declarations (NULL: no list). */
chat_schema chat_schema_of_tool(const cJSON *tools, const char *name, size_t name_bytes);
/* The types that a value may have; 0: anything. */
unsigned chat_schema_types(chat_schema schema);
/* The schema of an object's member, whether declared by name or by additionalProperties. */
chat_schema chat_schema_member(chat_schema schema, const char *key, size_t key_bytes);
/* Whether an object's member is declared by name. */
bool chat_schema_names(chat_schema schema, const char *key, size_t key_bytes);
/* The schema of a list's items. */
chat_schema chat_schema_items(chat_schema schema);

#endif
