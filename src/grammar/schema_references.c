/* References within a document: JSON pointers, $id and $anchor. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_private.h"

enum { MAX_HOPS = 64, MAX_SEARCHED = 64, MAX_URI = 1024 };

/* One step of a JSON pointer: reads up to the next '/', with ~0, ~1 and %XX decoded. */
static const char *next_step(const char *at, char *step, size_t room) {
    size_t n = 0;
    for (at++; *at && *at != '/'; at++) {
        char byte = *at;
        char digits[3] = {at[1], at[1] ? at[2] : 0, 0}, *end;
        if (byte == '%' && digits[1]) {
            long value = strtol(digits, &end, 16);
            if (*end == 0 && value > 0) {
                byte = (char)value;
                at += 2;
            }
        }
        if (byte == '~' && (at[1] == '0' || at[1] == '1')) byte = *++at == '0' ? '~' : '/';
        if (n + 1 == room) return NULL;
        step[n++] = byte;
    }
    step[n] = 0;
    return at;
}

static const cJSON *walk(schema_compiler *c, const char *pointer, const cJSON *at) {
    char step[256];
    for (const char *rest = pointer; at && *rest;) {
        rest = next_step(rest, step, sizeof step);
        if (!rest) return NULL;
        if (cJSON_IsArray(at) && step[0] >= '0' && step[0] <= '9' && strlen(step) < 6)
            at = cJSON_GetArrayItem(at, atoi(step));
        else
            at = schema_member(c, at, step);
    }
    return at;
}

/* --------------------------------------------------------------------------------------------------------------- URIs
 */

typedef char uri[MAX_URI];

static const char *text_of(const cJSON *schema, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(schema, key);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

/* A name of a document within another's: absolute, from the root, or beside it. */
static bool join(const char *base, const char *name, uri out) {
    const char *scheme = strstr(base, "://"), *colon = strchr(name, ':');
    size_t keep = 0, n = strcspn(name, "#");
    if (colon && strcspn(name, "/?#") > (size_t)(colon - name)) {
        keep = 0;
    } else if (n == 0) {
        keep = strlen(base);
    } else if (name[0] == '/') {
        keep = scheme ? (size_t)(scheme - base) + 3 + strcspn(scheme + 3, "/") : 0;
    } else {
        const char *slash = strrchr(base, '/');
        keep = slash ? (size_t)(slash - base) + 1 : 0;
    }
    if (keep + n >= MAX_URI) return false;
    memcpy(out, base, keep);
    memcpy(out + keep, name, n);
    out[keep + n] = 0;
    return true;
}

typedef struct search {
    const cJSON *wanted;           /* an item whose document's name is asked for */
    const char *document, *anchor; /* or a schema by its names */
    const char *dynamic;           /* or how many $dynamicAnchor there are */
    const cJSON *found;
    uri base; /* of what was wanted */
    int n;
    bool old; /* an older draft */
} search;

/* The name that a schema gives itself. Beside $ref it counts since draft 2019-09. */
static const char *id_of(const search *s, const cJSON *schema) {
    const char *id = text_of(schema, "$id");
    if (!id) id = text_of(schema, "id"); /* draft 4 */
    return cJSON_GetObjectItemCaseSensitive(schema, "$ref") && s->old ? NULL : id;
}

/* The name that the document of a schema has; base: of what is around it. */
static void rename_base(const search *s, const cJSON *schema, const char *base, uri out) {
    const char *id = id_of(s, schema);
    if (!id || id[0] == '#' || !join(base, id, out)) strcpy(out, base);
}

/* Where schemas are within a schema: 1: the value, or each of a list; 2: each member. */
static int holds_schemas(const cJSON *item) {
    static const char *const maps[] = {
        "properties", "patternProperties", "dependentSchemas", "dependencies", "definitions", "$defs", NULL};
    static const char *const own[] = {
        "allOf",         "anyOf", "oneOf", "prefixItems", "items", "additionalItems",      "unevaluatedItems",
        "contains",      "not",   "if",    "then",        "else",  "additionalProperties", "unevaluatedProperties",
        "propertyNames", NULL};
    for (const char *const *name = own; *name; name++)
        if (strcmp(*name, item->string) == 0) return 1;
    for (const char *const *name = maps; *name; name++)
        if (strcmp(*name, item->string) == 0) return 2;
    return 0;
}

/* Whether the schema has one of the names that are looked for. own: of its document. */
static bool is_named(search *s, const cJSON *at, const uri own) {
    const char *anchor = text_of(at, "$anchor"), *dynamic = text_of(at, "$dynamicAnchor"), *id = id_of(s, at);
    if (s->dynamic) s->n += dynamic && strcmp(dynamic, s->dynamic) == 0;
    if (!s->document || strcmp(own, s->document) != 0) return false;
    if (!s->anchor) return id && id[0] != '#';
    return (anchor && strcmp(anchor, s->anchor) == 0) || (dynamic && strcmp(dynamic, s->anchor) == 0) ||
           (id && id[0] == '#' && strcmp(id + 1, s->anchor) == 0);
}

/* Visits all schemas of the document. True: found. */
static bool visit(search *s, const cJSON *at, const char *base, int depth) {
    uri own;
    const cJSON *item, *inner;
    if (depth > MAX_SEARCHED || !cJSON_IsObject(at)) return false;
    rename_base(s, at, base, own);
    if (is_named(s, at, own)) return s->found = at, true;
    cJSON_ArrayForEach(item, at) {
        if (item == s->wanted) {
            strcpy(s->base, own);
            return true;
        }
        int kind = holds_schemas(item);
        if (kind == 1 && cJSON_IsObject(item) && visit(s, item, own, depth + 1)) return true;
        if (kind == 2 || (kind == 1 && cJSON_IsArray(item)))
            cJSON_ArrayForEach(inner, item) if (visit(s, inner, own, depth + 1)) return true;
    }
    return false;
}

/* Whether a part of the document has a name. What the root's $id says is known without looking for it. */
static bool has_names(const cJSON *at, int depth) {
    const cJSON *item;
    if (depth > MAX_SEARCHED) return false;
    cJSON_ArrayForEach(item, at) {
        const char *key = item->string;
        bool names = key && cJSON_IsString(item) &&
                     (strcmp(key, "$anchor") == 0 || strcmp(key, "$dynamicAnchor") == 0 ||
                      (depth > 0 && (strcmp(key, "$id") == 0 || strcmp(key, "id") == 0)));
        if (names || (item->child && has_names(item, depth + 1))) return true;
    }
    return false;
}

static bool is_old(const schema_compiler *c) {
    const char *draft = text_of(c->root, "$schema");
    return !draft || (!strstr(draft, "2019-09") && !strstr(draft, "2020-12"));
}

/* A reference in a document whose parts have names. */
static const cJSON *resolve_named(schema_compiler *c, const cJSON *reference) {
    const char *text = reference->valuestring, *fragment = strchr(text, '#');
    uri document, root;
    search s = {.wanted = reference, .old = is_old(c)};
    rename_base(&s, c->root, "", root);
    if (!visit(&s, c->root, "", 0)) strcpy(s.base, root); /* it stands where schemas are not looked for */
    if (!join(s.base, text, document)) return NULL;
    bool named = fragment && fragment[1] && fragment[1] != '/';
    search other = {.document = document, .anchor = named ? fragment + 1 : NULL, .old = s.old};
    if (!named && strcmp(document, root) == 0) return fragment ? walk(c, fragment + 1, c->root) : c->root;
    if (!visit(&other, c->root, "", 0)) return NULL;
    return fragment && !named ? walk(c, fragment + 1, other.found) : other.found;
}

/* A reference in a document that has a name as a whole. */
static const cJSON *resolve_root(schema_compiler *c, const char *text) {
    search s = {.old = is_old(c)};
    const char *fragment = strchr(text, '#');
    uri root, document;
    rename_base(&s, c->root, "", root);
    if (!root[0] || !join(root, text, document) || strcmp(root, document) != 0) return NULL;
    if (!fragment || !fragment[1]) return c->root;
    return fragment[1] == '/' ? walk(c, fragment + 1, c->root) : NULL;
}

/* References that were followed before, since looking for names takes a walk through the document. */
static const cJSON *known_target(const schema_compiler *c, const cJSON *reference) {
    uint32_t slot = (uint32_t)((uintptr_t)reference >> 4) % SCHEMA_KNOWN_TARGETS;
    return c->targets[slot].reference == reference ? c->targets[slot].target : NULL;
}

static void know_target(schema_compiler *c, const cJSON *reference, const cJSON *target) {
    uint32_t slot = (uint32_t)((uintptr_t)reference >> 4) % SCHEMA_KNOWN_TARGETS;
    c->targets[slot].reference = reference;
    c->targets[slot].target = target;
}

/* A dynamic reference whose anchor is there once means what $ref would mean. */
static bool is_static(schema_compiler *c, const cJSON *reference) {
    const char *fragment = strchr(reference->valuestring, '#');
    if (strcmp(reference->string, "$dynamicRef") == 0) {
        search s = {.dynamic = fragment ? fragment + 1 : ""};
        visit(&s, c->root, "", 0);
        return s.n <= 1;
    }
    return strcmp(reference->string, "$recursiveRef") != 0 || !text_of(c->root, "$id");
}

const cJSON *schema_resolve(schema_compiler *c, const cJSON *reference) {
    if (!cJSON_IsString(reference)) {
        schema_cannot(c, reference, KAKEYA_FORMAT, "not a text");
        return NULL;
    }
    const char *text = reference->valuestring;
    if (strcmp(reference->string, "$ref") != 0 && !is_static(c, reference)) {
        schema_cannot(c, reference, KAKEYA_UNSUPPORTED, "not supported where its anchor is there more than once");
        return NULL;
    }
    if (c->names == 0) c->names = has_names(c->root, 0) ? 1 : -1;
    bool whole = text[0] == 0; /* the document itself */
    bool pointer = whole || (text[0] == '#' && (text[1] == 0 || text[1] == '/'));
    const cJSON *found = c->names > 0 ? known_target(c, reference) : NULL;
    if (found) return found;
    if (c->names > 0)
        found = resolve_named(c, reference);
    else
        found = whole ? c->root : pointer ? walk(c, text + 1, c->root) : resolve_root(c, text);
    if (found && c->names > 0) know_target(c, reference, found);
    if (found) return found;
    if (text[0] == '#')
        schema_cannot(c, reference, KAKEYA_FORMAT, "the reference '%.100s' leads nowhere", text);
    else
        schema_cannot(c, reference, KAKEYA_UNSUPPORTED, "the reference '%.100s' does not lead into the schema itself",
                      text);
    return NULL;
}

const cJSON *schema_target(schema_compiler *c, const cJSON *schema) {
    for (int hops = 0; hops < MAX_HOPS && cJSON_IsObject(schema) && !c->status; hops++) {
        const cJSON *item, *reference = NULL;
        bool alone = true;
        cJSON_ArrayForEach(item, schema) {
            keyword_kind kind = schema_keyword_of(item->string)->kind;
            if (kind == KEYWORD_REFERENCE && !reference)
                reference = item;
            else if (kind != KEYWORD_ANNOTATION)
                alone = false;
        }
        if (!reference || !alone || cJSON_IsNull(reference)) return schema;
        schema = schema_resolve(c, reference);
    }
    return c->status || !schema || !cJSON_IsObject(schema) ? schema : NULL;
}
