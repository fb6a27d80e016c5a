#include "text/chat_schema.h"

#include <stdlib.h>
#include <string.h>

/* A schema may refer to itself, so alternatives and references are followed this deep, and this many nodes in all. */
enum { MAX_DEPTH = 16, MAX_NODES = 256 };

static const cJSON *get(const cJSON *object, const char *key) {
    return cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, key) : NULL;
}

static const cJSON *get_bytes(const cJSON *object, const char *key, size_t bytes) {
    const cJSON *item;
    if (!cJSON_IsObject(object)) return NULL;
    cJSON_ArrayForEach(item, object) {
        if (strlen(item->string) == bytes && memcmp(item->string, key, bytes) == 0) return item;
    }
    return NULL;
}

chat_schema chat_schema_of_tool(const cJSON *tools, const char *name, size_t name_bytes) {
    const cJSON *tool;
    cJSON_ArrayForEach(tool, tools) {
        const cJSON *function = get(tool, "function"), *found = get(function, "name");
        if (!cJSON_IsString(found) || strlen(found->valuestring) != name_bytes) continue;
        if (memcmp(found->valuestring, name, name_bytes) != 0) continue;
        const cJSON *parameters = get(function, "parameters");
        return (chat_schema){.root = parameters, .node = parameters};
    }
    return (chat_schema){0};
}

/* "#/$defs/Name" within the root. ~0 and ~1 stand for ~ and /. */
static const cJSON *resolve(const cJSON *root, const char *reference) {
    if (*reference++ != '#') return NULL;
    const cJSON *node = root;
    char key[128];
    while (node && *reference == '/') {
        size_t n = 0;
        for (reference++; *reference && *reference != '/'; reference++) {
            if (n + 1 == sizeof key) return NULL;
            key[n++] = *reference;
            if (*reference != '~') continue;
            if (reference[1] != '0' && reference[1] != '1') return NULL;
            key[n - 1] = *++reference == '0' ? '~' : '/';
        }
        node = get_bytes(node, key, n);
    }
    return *reference ? NULL : node;
}

/* Calls visit for the node and for everything that it stands for, until one returns true. */
typedef bool (*visit_fn)(void *user, const cJSON *node);

static bool walk(const cJSON *root, const cJSON *node, int depth, int *nodes, visit_fn visit, void *user) {
    static const char *const combinations[] = {"anyOf", "oneOf", "allOf"};
    if (!cJSON_IsObject(node) || depth == MAX_DEPTH || ++*nodes > MAX_NODES) return false;
    if (visit(user, node)) return true;
    const cJSON *reference = get(node, "$ref"), *alternative;
    if (cJSON_IsString(reference)) {
        if (walk(root, resolve(root, reference->valuestring), depth + 1, nodes, visit, user)) return true;
    }
    for (size_t i = 0; i < sizeof combinations / sizeof *combinations; i++) {
        cJSON_ArrayForEach(alternative, get(node, combinations[i])) {
            if (walk(root, alternative, depth + 1, nodes, visit, user)) return true;
        }
    }
    return false;
}

static unsigned type_bit(const cJSON *type) {
    static const struct {
        const char *name;
        unsigned bit;
    } types[] = {
        {"string", CHAT_TYPE_STRING},   {"integer", CHAT_TYPE_NUMBER}, {"number", CHAT_TYPE_NUMBER},
        {"null", CHAT_TYPE_NULL},       {"object", CHAT_TYPE_OTHER},   {"array", CHAT_TYPE_OTHER},
        {"boolean", CHAT_TYPE_BOOLEAN},
    };
    if (!cJSON_IsString(type)) return 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcasecmp(type->valuestring, types[i].name) == 0) return types[i].bit;
    }
    return 0;
}

static bool add_types(void *user, const cJSON *node) {
    unsigned *mask = user;
    const cJSON *type = get(node, "type"), *item;
    if (cJSON_IsArray(type)) {
        cJSON_ArrayForEach(item, type) *mask |= type_bit(item);
    } else {
        *mask |= type_bit(type);
    }
    cJSON_ArrayForEach(item, get(node, "enum")) {
        if (!type && cJSON_IsString(item)) *mask |= CHAT_TYPE_STRING;
        if (!type && cJSON_IsRaw(item)) *mask |= CHAT_TYPE_NUMBER;
        if (!type && cJSON_IsBool(item)) *mask |= CHAT_TYPE_BOOLEAN;
        if (cJSON_IsNull(item)) *mask |= CHAT_TYPE_NULL;
    }
    if (cJSON_IsTrue(get(node, "nullable"))) *mask |= CHAT_TYPE_NULL;
    return false;
}

unsigned chat_schema_types(chat_schema schema) {
    unsigned mask = 0;
    int nodes = 0;
    walk(schema.root, schema.node, 0, &nodes, add_types, &mask);
    return mask;
}

typedef struct search {
    const char *key;
    size_t bytes;
    const cJSON *found;
} search;

static bool find_property(void *user, const cJSON *node) {
    search *s = user;
    s->found = get_bytes(get(node, "properties"), s->key, s->bytes);
    return s->found != NULL;
}

static bool find_key(void *user, const cJSON *node) {
    search *s = user;
    s->found = get(node, s->key);
    return cJSON_IsObject(s->found);
}

static chat_schema look_for(chat_schema schema, visit_fn visit, const char *key, size_t bytes) {
    search s = {.key = key, .bytes = bytes};
    int nodes = 0;
    bool found = walk(schema.root, schema.node, 0, &nodes, visit, &s);
    return (chat_schema){.root = schema.root, .node = found ? s.found : NULL};
}

bool chat_schema_names(chat_schema schema, const char *key, size_t key_bytes) {
    return look_for(schema, find_property, key, key_bytes).node != NULL;
}

chat_schema chat_schema_member(chat_schema schema, const char *key, size_t key_bytes) {
    chat_schema named = look_for(schema, find_property, key, key_bytes);
    return named.node ? named : look_for(schema, find_key, "additionalProperties", 0);
}

chat_schema chat_schema_items(chat_schema schema) { return look_for(schema, find_key, "items", 0); }
