/* Typed, checked access to the keys of a GGUF file. A reader remembers the first failure: callers read all they want
 * and look at `status` once. Every message names the key, its value and what was expected. */
#ifndef KAKEYA_FORMATS_GGUF_KEYS_H
#define KAKEYA_FORMATS_GGUF_KEYS_H

#include <string.h>

#include "formats/gguf.h"

enum { GGUF_KEYS_NAMES = 4, GGUF_KEYS_NAME_BYTES = 96 };

typedef struct gguf_keys {
    const gguf *file;
    kakeya_error *error;
    kakeya_status status;
    /* Of architectures that say the same under their own names: keys that begin with the first are looked for, and
     * named in messages, with the second in its place. NULL: as they are asked for. */
    const char *asked, *written;
    char names[GGUF_KEYS_NAMES][GGUF_KEYS_NAME_BYTES];
    unsigned n_names;
} gguf_keys;

/* The key as the file has it; holds until four more names were asked for. */
const char *gguf_keys_name(gguf_keys *r, const char *key);
/* NULL where the key is absent. */
const gguf_value *gguf_keys_find(gguf_keys *r, const char *key);

void gguf_keys_fail(gguf_keys *r, kakeya_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A whole number of any type, as JSON knows but one: 2.0 is 2; `fallback` where the key is absent. */
long long gguf_keys_int(gguf_keys *r, const char *key, long long min, long long max, long long fallback);
/* The same for a key that must be there. */
long long gguf_keys_required_int(gguf_keys *r, const char *key, long long min, long long max);
/* A finite number of any type. */
double gguf_keys_number(gguf_keys *r, const char *key, double min, double max, double fallback);
double gguf_keys_required_number(gguf_keys *r, const char *key, double min, double max);
bool gguf_keys_bool(gguf_keys *r, const char *key, bool fallback);
/* False where the key is absent. */
bool gguf_keys_text(gguf_keys *r, const char *key, gguf_text *out);
/* general.architecture, without which no file is read: false where that has failed. */
bool gguf_keys_architecture(gguf_keys *r, gguf_text *out);
/* n whole numbers: an array of n, or one number for all of them. The key must be there. */
void gguf_keys_ints(gguf_keys *r, const char *key, int n, long long min, long long max, int *out);
/* The same of booleans, which may be written as 0 and 1. */
void gguf_keys_bools(gguf_keys *r, const char *key, int n, bool *out);
/* An array of elements of this type, or NULL where it is absent. */
const gguf_value *gguf_keys_array(gguf_keys *r, const char *key, gguf_value_type type);

/* The id of a piece of the file's vocabulary, of whose first `vocab` ids it must be one; -1: there is none. */
int gguf_keys_token(const gguf *file, int vocab, const char *text);

static inline bool gguf_text_is(gguf_text text, const char *expected) {
    return text.bytes == strlen(expected) && memcmp(text.data, expected, text.bytes) == 0;
}

#endif
