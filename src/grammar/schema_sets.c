/* Schemas that hold at once. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_private.h"

bool schema_set_add(schema_compiler *c, schema_set *set, const cJSON *schema, bool negated) {
    if (c->status || set->never) return !c->status;
    if (cJSON_IsObject(schema)) schema = schema_target(c, schema);
    if (!schema) { /* a reference that leads to itself, or was left out */
        set->never = !c->status && !c->loosen;
        return !c->status;
    }
    if (cJSON_IsBool(schema)) {
        set->never = (bool)cJSON_IsTrue(schema) == negated;
        return true;
    }
    if (!cJSON_IsObject(schema)) {
        schema_cannot(c, schema, KAKEYA_FORMAT, "not a schema");
        return !c->status;
    }
    if (!schema->child) {
        set->never = negated;
        return true;
    }
    schema_term term = {schema, negated};
    for (uint32_t i = 0; i < set->n; i++)
        if (set->terms[i].schema == schema && set->terms[i].negated == negated) return true;
    if (set->n == set->capacity) {
        uint32_t capacity = set->capacity ? 2 * set->capacity : 4;
        schema_term *terms = realloc(set->terms, capacity * sizeof *terms);
        if (!terms) return schema_out_of_memory(c), false;
        set->terms = terms;
        set->capacity = capacity;
    }
    set->terms[set->n++] = term;
    return true;
}

void schema_set_free(schema_set *set) {
    free(set->terms);
    *set = (schema_set){0};
}
