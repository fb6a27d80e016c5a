/* Reading JSON with clear errors: parsing that names file, line and byte, and typed getters on cJSON objects that name
 * file and key. cJSON looks keys up linearly, so large objects (tensor lists) are iterated, never searched. */
#ifndef KAKEYA_BASE_JSON_H
#define KAKEYA_BASE_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum {
    JSON_MAX_DEPTH = 64,
    JSON_MAX_VALUES = 1 << 19, /* of a text that a stranger sends: a prompt of twice the longest context */
};

/* The bytes of the mark that editors on Windows put in front of a text (U+FEFF), which is no part of it: 3 or 0. cJSON
 * passes over it by itself. */
size_t json_mark_bytes(const char *text, size_t bytes);

/* Parses exactly one value (no text behind it but white space; numbers in JSON's own form); `text` needs no NUL behind
 * it. A NUL in it, also as \u0000, is refused: C strings end there. `name` is the file name used in messages. *out is
 * freed with cJSON_Delete. */
kakeya_status json_parse(const char *name, const char *text, size_t bytes, cJSON **out, kakeya_error *error);
/* The same, and the value must be an object. */
kakeya_status json_parse_object(const char *name, const char *text, size_t bytes, cJSON **out, kakeya_error *error);

/* No fewer values than a JSON text has, keys not counted. A tree takes more than a hundred bytes for each, so a text of
 * a stranger is asked before it is parsed. */
size_t json_most_values(const char *text, size_t bytes);

/* KAKEYA_FORMAT where an object in `value` (itself, or inside it) has a key twice: readers differ in which of the two
 * counts. NULL is fine. */
kakeya_status json_refuse_repeated_keys(const char *name, const cJSON *value, kakeya_error *error);

/* A number that is an integer within [min, max]. */
bool json_is_integer(const cJSON *item, double min, double max);

/* Getters read through a reader that keeps the first failure, so that a caller reads all its keys and checks
 * reader.status once. An absent key or null gives the fallback. */
typedef struct json_reader {
    const char *name; /* file name */
    kakeya_status status;
    kakeya_error *error; /* may be NULL */
} json_reader;

/* The first failure sticks; later calls change nothing. */
void json_fail(json_reader *reader, kakeya_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* NULL where absent or null. object == NULL reads as an empty object. */
const cJSON *json_get(const cJSON *object, const char *key);

int json_int(json_reader *reader, const cJSON *object, const char *key, int min, int max, int fallback);
int json_required_int(json_reader *reader, const cJSON *object, const char *key, int min, int max);
double json_number(json_reader *reader, const cJSON *object, const char *key, double min, double max, double fallback);
bool json_bool(json_reader *reader, const cJSON *object, const char *key, bool fallback);
/* Points into the object. */
const char *json_string(json_reader *reader, const cJSON *object, const char *key, const char *fallback);
const cJSON *json_object(json_reader *reader, const cJSON *object, const char *key); /* NULL where absent */
const cJSON *json_array(json_reader *reader, const cJSON *object, const char *key);  /* NULL where absent */
/* Copies an array of integers; returns their number, 0 where absent. More than `capacity` of them is a failure. */
int json_int_array(json_reader *reader, const cJSON *object, const char *key, int min, int max, int *out, int capacity);

/* A member that shows `item`, which belongs to another tree and outlives this one. False: no memory, or no item;
 * nothing has changed. cJSON's own function loses memory where the key cannot be copied. */
bool json_add_reference(cJSON *object, const char *key, const cJSON *item);

#endif
