/* The JSON body of a request, and its fields with the errors that clients know. */
#ifndef KAKEYA_SERVE_BODY_H
#define KAKEYA_SERVE_BODY_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "serve/errors.h"
#include "serve/text.h"

/* Parses a body: one JSON object in valid UTF-8, no key of an object twice. Texts may hold U+0000 and halves of
 * surrogate pairs, as base/json_text.h says. Numbers in conversations, tools, formats and seeds keep their spelling:
 * they are raw items. *out is freed with cJSON_Delete. False: *error says why. */
bool body_parse(const char *bytes, size_t n, cJSON **out, api_error *error);

/* No less than the memory that body_parse takes for a body; for one that it refuses, perhaps more. */
size_t body_tree_bytes(const char *bytes, size_t n);
size_t body_value_bytes(const cJSON *value); /* of what was parsed */

enum { FIELDS_MAX = 512 };

/* Reads the fields of one object. Every getter takes null for absent, marks the field as known, and on the first wrong
 * value fills *error; later ones then give the fallback. */
typedef struct fields {
    const cJSON *object;
    const char *path; /* in front of names in errors: "" or "stream_options." */
    api_error *error;
    unsigned char known[FIELDS_MAX]; /* by place in the object */
} fields;

void fields_begin(fields *f, const cJSON *object, const char *path, api_error *error);
/* NULL where absent or null. */
const cJSON *fields_get(fields *f, const char *name);
bool fields_bool(fields *f, const char *name, bool fallback);
double fields_number(fields *f, const char *name, double min, double max, double fallback);
/* min and max within +-2^53. */
int64_t fields_integer(fields *f, const char *name, int64_t min, int64_t max, int64_t fallback);
/* A number of tokens and the like, from min on: clients write the largest integer that they know for "no limit", so
 * what is above `most` means `most`. */
int64_t fields_count(fields *f, const char *name, int64_t min, int64_t most, int64_t fallback);
const char *fields_string(fields *f, const char *name, const char *fallback);
const cJSON *fields_object(fields *f, const char *name); /* NULL where absent */
const cJSON *fields_array(fields *f, const char *name);  /* NULL where absent */
/* A 64-bit seed; its spelling was kept, because a double would lose bits. False where it is absent or -1. */
bool fields_seed(fields *f, const char *name, uint64_t *seed);
/* Known, and without effect here. names: NULL-terminated. */
void fields_accept(fields *f, const char *const *names);
/* Known, and without effect, where they have this number, or are true (1) or false (0) as this says; otherwise as if
 * nobody knew them. The list ends with a name of NULL. */
typedef struct field_value {
    const char *name;
    double value;
} field_value;
void fields_accept_values(fields *f, const field_value *list);
/* Known, would change the answer, and not offered: 400 where given. names: NULL-terminated. */
void fields_refuse(fields *f, const char *const *names);
/* The names nobody asked for go into a comma-separated list; with `strict` they are an error. */
void fields_end(fields *f, bool strict, text_buffer *ignored);

/* Errors about one value: "temperature: 3 is not a number from 0 to 2". */
bool fields_wrong_type(fields *f, const char *name, const cJSON *value, const char *expected);
bool fields_wrong_value(fields *f, const char *name, const cJSON *value, const char *expected);
/* The value as JSON, cut to 64 bytes. */
void fields_show(const cJSON *value, char out[80]);

/* Adds a name to a list of what had no effect, which becomes a header: one line of at most 159 visible characters,
 * without commas. A list that is long already stays as it is. */
void ignored_add(text_buffer *ignored, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A member that is there and not null. */
cJSON *body_member(const cJSON *object, const char *key);
/* A member that is a text; NULL where it is none. */
const char *body_string(const cJSON *object, const char *key);
/* Numbers in the named members of an object get the spelling that they have in its text: they become raw items. A
 * double would lose digits. names: NULL-terminated. False: out of memory. */
bool body_keep_numbers(cJSON *body, const char *text, size_t bytes, const char *const *names);

#endif
