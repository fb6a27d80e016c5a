/* Where in a document something went wrong, or was left out; and whether it takes too long. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "grammar/schema.h"
#include "grammar/schema_private.h"

typedef struct pointer {
    char text[SCHEMA_MAX_POINTER];
    size_t n;
} pointer;

static void put(pointer *p, char c) {
    if (c == '\xC0') c = '?'; /* of U+0000 (base/nul.h) */
    if (p->n + 1 < sizeof p->text) p->text[p->n++] = c;
    p->text[p->n] = 0;
}

static void put_step(pointer *p, const char *key) {
    put(p, '/');
    for (; *key; key++) {
        if (*key == '~' || *key == '/') put(p, '~');
        put(p, *key == '~' ? '0' : *key == '/' ? '1' : *key);
    }
}

/* False: it is not in there. */
static bool find(const cJSON *at, const cJSON *wanted, pointer *p) {
    const cJSON *item;
    char digits[24];
    size_t before = p->n;
    unsigned index = 0;
    if (at == wanted) return true;
    cJSON_ArrayForEach(item, at) {
        snprintf(digits, sizeof digits, "%u", index++);
        put_step(p, item->string ? item->string : digits);
        if (find(item, wanted, p)) return true;
        p->n = before;
        p->text[before] = 0;
    }
    return false;
}

static void point(const schema_compiler *c, const cJSON *at, pointer *p) {
    p->n = (size_t)snprintf(p->text, sizeof p->text, "%.200s", c->where);
    if (at && c->root) (void)find(c->root, at, p);
}

kakeya_status schema_fail(schema_compiler *c, const cJSON *at, kakeya_status status, const char *format, ...) {
    char what[300];
    pointer p;
    va_list arguments;
    if (c->status) return c->status;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    point(c, at, &p);
    c->status = error_set(c->error, status, "%s: %s", p.text, what);
    return c->status;
}

kakeya_status schema_out_of_memory(schema_compiler *c) {
    return schema_fail(c, NULL, KAKEYA_OUT_OF_MEMORY, "out of memory");
}

bool schema_spend(schema_compiler *c, const cJSON *at, size_t steps) {
    if (program_spend(c->program, steps)) return true;
    schema_fail(c, at, KAKEYA_UNSUPPORTED, "too large: compiling it takes too long");
    return false;
}

void schema_spend_on(schema_compiler *c, const cJSON *at, const dfa *made) {
    (void)schema_spend(c, at, program_steps(made));
}

void schema_note(schema_compiler *c, const cJSON *at) {
    const cJSON *note;
    pointer p;
    if (c->status) return;
    if (!c->notes && !(c->notes = cJSON_CreateArray())) {
        schema_out_of_memory(c);
        return;
    }
    point(c, at, &p);
    char *space = strchr(p.text, ' '); /* in front of the pointer: names of fields have none */
    if (space && space[1] == '#') memmove(space, space + 1, strlen(space));
    double hash = (double)(uint32_t)hash_fnv1a(HASH_FNV1A_START, p.text, strlen(p.text));
    cJSON_ArrayForEach(note, c->notes) if (note->valuedouble == hash && strcmp(note->valuestring, p.text) == 0) return;
    cJSON *made = cJSON_CreateString(p.text);
    if (made) made->valuedouble = hash; /* most notes differ, and there may be thousands of them */
    if (cJSON_AddItemToArray(c->notes, made)) return;
    cJSON_Delete(made);
    schema_out_of_memory(c);
}

void schema_cannot(schema_compiler *c, const cJSON *at, kakeya_status status, const char *format, ...) {
    char what[300];
    va_list arguments;
    if (c->loosen && status != KAKEYA_OUT_OF_MEMORY) {
        schema_note(c, at);
        return;
    }
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    schema_fail(c, at, status, "%s", what);
}

kakeya_status schema_explain(const schema_compiler *c, kakeya_status status, kakeya_error *error) {
    pointer p;
    if (!c->narrowed) return status;
    point(c, c->narrowed, &p);
    return error_set(error, KAKEYA_UNSUPPORTED, "%s: not supported where it is negated, and nothing else is left",
                     p.text);
}

void schema_place_of(schema_compiler *c, const cJSON *at, char **out) {
    pointer p;
    point(c, at, &p);
    *out = strdup(p.text);
    if (!*out) schema_out_of_memory(c);
}
