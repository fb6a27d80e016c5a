/* Values and keys as they are spelled. */
#include <stdlib.h>
#include <string.h>

#include "base/nul.h"
#include "grammar/schema_private.h"

uint32_t schema_add_node(schema_compiler *c, node_kind kind) {
    kakeya_error error = {0};
    if (c->status) return 0;
    uint32_t node = program_add(c->program, kind, c->form, &error);
    if (node != GRAMMAR_NOTHING) return node;
    schema_fail(c, NULL, error.status, "%s", error.message);
    return 0;
}

void schema_add_child(schema_compiler *c, uint32_t node, uint32_t child) {
    if (!c->status && !program_add_child(&c->program->nodes[node], child)) schema_out_of_memory(c);
}

void schema_add_member(schema_compiler *c, uint32_t object, const char *key, uint32_t value, bool required) {
    size_t n = 0;
    uint16_t *letters = c->status ? NULL : schema_spell_key(c->form, key, &n);
    if (c->status) return;
    grammar_node *node = &c->program->nodes[object];
    uint32_t member = node->n_children;
    uint8_t *flags = realloc(node->required, member + 1);
    if (flags) node->required = flags;
    if (!letters || !flags || !trie_add(&node->words, letters, n, &member))
        schema_out_of_memory(c);
    else
        node->required[node->n_children] = required;
    free(letters);
    schema_add_child(c, object, value);
}

/* ---------------------------------------------------------------------------------------------------------- letters */

typedef struct spelling {
    uint16_t *letters;
    size_t n;
} spelling;

static void put(spelling *s, unsigned letter) { s->letters[s->n++] = (uint16_t)letter; }

/* The next byte of a C string that may spell U+0000. */
static unsigned char next_byte(const char **text) {
    bool nul = nul_is_spelled(*text, strnlen(*text, 2));
    unsigned char byte = nul ? 0 : (unsigned char)**text;
    *text += nul ? 2 : 1;
    return byte;
}

static void put_bytes(spelling *s, const char *text) {
    while (*text) put(s, next_byte(&text));
}

/* The inside of a JSON string, as short as it can be. */
static void put_escaped(spelling *s, const char *text) {
    static const char names[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t", hex[] = "0123456789abcdef";
    while (*text) {
        unsigned char byte = next_byte(&text);
        const char *meaning = byte ? strchr(meanings, byte) : NULL;
        if (meaning) {
            put(s, '\\');
            put(s, (unsigned char)names[meaning - meanings]);
        } else if (byte < 0x20) {
            put_bytes(s, "\\u00");
            put(s, (unsigned char)hex[byte >> 4]);
            put(s, (unsigned char)hex[byte & 15]);
        } else {
            put(s, byte);
        }
    }
}

/* Room for a text in any form. */
static spelling start(const char *text) {
    return (spelling){.letters = calloc(6 * strlen(text) + 3, sizeof(uint16_t))};
}

/* Keys that the reader of calls takes without quotes as they are. */
static bool may_be_bare(const char *key) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-$@/";
    return *key && key[strspn(key, plain)] == 0;
}

uint16_t *schema_spell_key(grammar_form form, const char *key, size_t *n) {
    spelling s = start(key);
    *n = 0;
    if (!s.letters) return NULL;
    bool bare = form == GRAMMAR_CALL && may_be_bare(key);
    if (form == GRAMMAR_JSON) {
        put_escaped(&s, key);
    } else {
        if (!bare) put(&s, LETTER_QUOTE);
        put_bytes(&s, key);
        if (!bare) put(&s, LETTER_QUOTE);
    }
    *n = s.n;
    return s.letters;
}

static bool spell_scalar(grammar_form form, const cJSON *value, spelling *s) {
    const char *text = cJSON_IsTrue(value) ? "true" : cJSON_IsFalse(value) ? "false" : "null";
    if (cJSON_IsString(value) || cJSON_IsRaw(value)) text = value->valuestring;
    *s = start(text);
    if (!s->letters) return false;
    if (!cJSON_IsString(value)) {
        put_bytes(s, text);
    } else if (form == GRAMMAR_JSON) {
        put(s, '"');
        put_escaped(s, text);
        put(s, '"');
    } else {
        put(s, LETTER_QUOTE);
        put_bytes(s, text);
        put(s, LETTER_QUOTE);
    }
    return true;
}

/* ----------------------------------------------------------------------------------------------------------- values */

/* 2.0 is 2, which whoever gives the value as 2.0 means, too: how many letters of its spelling say it so. 0: none. */
static size_t whole_letters(const cJSON *value) {
    const char *point = cJSON_IsRaw(value) ? strchr(value->valuestring, '.') : NULL;
    return point && point[1 + strspn(point + 1, "0")] == 0 ? (size_t)(point - value->valuestring) : 0;
}

uint32_t schema_literals(schema_compiler *c, const cJSON *const *values, size_t n) {
    uint32_t node = schema_add_node(c, n ? NODE_LITERAL : NODE_NEVER);
    for (size_t i = 0; i < n && !c->status; i++) {
        uint32_t word = (uint32_t)i;
        size_t whole = whole_letters(values[i]);
        spelling s;
        trie *words = &c->program->nodes[node].words;
        if (!spell_scalar(c->form, values[i], &s) || !trie_add(words, s.letters, s.n, &word) ||
            (whole && !trie_add(words, s.letters, whole, &word)))
            schema_out_of_memory(c);
        free(s.letters);
    }
    return node;
}

uint32_t schema_constant(schema_compiler *c, const cJSON *value) {
    const cJSON *item;
    if (cJSON_IsArray(value)) {
        uint32_t node = schema_add_node(c, NODE_ARRAY);
        cJSON_ArrayForEach(item, value) schema_add_child(c, node, c->status ? 0 : schema_constant(c, item));
        if (c->status) return 0;
        grammar_node *array = &c->program->nodes[node];
        array->minimum = array->maximum = array->n_children;
        return node;
    }
    if (cJSON_IsObject(value)) {
        uint32_t node = schema_add_node(c, NODE_OBJECT);
        cJSON_ArrayForEach(item, value)
            schema_add_member(c, node, item->string, c->status ? 0 : schema_constant(c, item), true);
        return node;
    }
    return schema_literals(c, &value, 1);
}
