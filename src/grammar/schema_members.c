/* Members of large objects of the document by their keys, since cJSON looks through all of them. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "grammar/schema_private.h"

enum { FEW_MEMBERS = 16 };

static uint32_t slot_of(const schema_compiler *c, const cJSON *object, const char *key) {
    uint64_t hash = hash_fnv1a(HASH_FNV1A_START, &object, sizeof object);
    uint32_t at = (uint32_t)(hash_fnv1a(hash, key, strlen(key)) >> 20) & (c->n_member_slots - 1);
    for (; c->members[at].item; at = (at + 1) & (c->n_member_slots - 1))
        if (c->members[at].object == object && strcmp(c->members[at].item->string, key) == 0) break;
    return at;
}

static bool grow(schema_compiler *c, size_t more) {
    struct schema_member *old = c->members;
    uint32_t n = c->n_member_slots, larger = n ? n : 1024;
    while (larger < 2 * (c->n_members + more)) larger *= 2;
    if (larger == n) return true;
    struct schema_member *made = calloc(larger, sizeof *made);
    if (!made) return schema_out_of_memory(c), false;
    c->members = made;
    c->n_member_slots = larger;
    for (uint32_t i = 0; i < n; i++)
        if (old[i].item) c->members[slot_of(c, old[i].object, old[i].item->string)] = old[i];
    free(old);
    return true;
}

/* False: memory ends. An object whose first member is known is known as a whole. */
static bool know_object(schema_compiler *c, const cJSON *object) {
    const cJSON *item;
    if (c->n_member_slots) {
        uint32_t first = slot_of(c, object, object->child->string);
        if (c->members[first].item) return true;
    }
    if (!grow(c, (size_t)cJSON_GetArraySize(object))) return false;
    cJSON_ArrayForEach(item, object) {
        uint32_t at = slot_of(c, object, item->string);
        if (c->members[at].item) continue;
        c->members[at] = (struct schema_member){object, item};
        c->n_members++;
    }
    return true;
}

const cJSON *schema_member(schema_compiler *c, const cJSON *object, const char *key) {
    const cJSON *item = object ? object->child : NULL;
    int n = 0;
    if (!cJSON_IsObject(object)) return NULL;
    for (; item && n < FEW_MEMBERS; item = item->next, n++)
        if (strcmp(item->string, key) == 0) return item;
    if (!item) return NULL;
    return know_object(c, object) ? c->members[slot_of(c, object, key)].item : NULL;
}

void schema_forget_members(schema_compiler *c) {
    free(c->members);
    c->members = NULL;
    c->n_members = c->n_member_slots = 0;
}
