/* Tool declarations: a JSON schema in the grammar that the model was trained on. The quirks (a schema without a type
 * leaves its brace open, an object without properties shows its own keys as properties) are the template's, and kept.
 */
#include "text/chat_tools.h"

#include <stdlib.h>
#include <string.h>

#include "text/chat_json.h"

/* What a template finds under a key: NULL where the key is absent or `value` is no object. */
static const cJSON *get(const cJSON *value, const char *key) {
    return cJSON_IsObject(value) ? cJSON_GetObjectItemCaseSensitive(value, key) : NULL;
}

/* Python's truth of a JSON value. */
static bool is_true(const cJSON *value) {
    if (!value || cJSON_IsNull(value) || cJSON_IsFalse(value)) return false;
    if (cJSON_IsString(value)) return value->valuestring[0] != 0;
    if (cJSON_IsArray(value) || cJSON_IsObject(value)) return value->child != NULL;
    if (cJSON_IsRaw(value)) {
        size_t mantissa = strcspn(value->valuestring, "eE");
        return strcspn(value->valuestring, "123456789") < mantissa;
    }
    return true;
}

static void put_quoted(chat_writer *w, const char *where, const cJSON *value) {
    if (!cJSON_IsString(value)) {
        chat_fail(w, KAKEYA_FORMAT, "tools: %s is not a string", where);
        return;
    }
    chat_put_control(w, CHAT_QUOTE);
    chat_puts(w, value->valuestring);
    chat_put_control(w, CHAT_QUOTE);
}

static char ascii_upper(char c) { return c >= 'a' && c <= 'z' ? (char)(c - 32) : c; }

static void put_upper(chat_writer *w, const char *text) {
    for (; *text; text++) {
        char c = ascii_upper(*text);
        chat_put(w, &c, 1);
    }
}

/* The type in capitals. A list of types appears as Python prints a list. */
static void put_type(chat_writer *w, const cJSON *type) {
    if (!type) return;
    if (cJSON_IsNull(type)) {
        chat_puts(w, "NONE");
    } else if (cJSON_IsString(type)) {
        put_upper(w, type->valuestring);
    } else if (cJSON_IsArray(type)) {
        chat_puts(w, "[");
        const cJSON *item;
        cJSON_ArrayForEach(item, type) {
            if (!cJSON_IsString(item) || strpbrk(item->valuestring, "'\"\\\n\r\t")) {
                chat_fail(w, KAKEYA_FORMAT, "tools: a list of types holds something that is not the name of a type");
                return;
            }
            chat_puts(w, item == type->child ? "'" : ", '");
            put_upper(w, item->valuestring);
            chat_puts(w, "'");
        }
        chat_puts(w, "]");
    } else {
        chat_fail(w, KAKEYA_FORMAT, "tools: a type is neither a string nor a list of strings");
    }
}

/* Whether the type in capitals is this name. */
static bool type_is(const cJSON *value, const char *name) {
    const cJSON *type = get(value, "type");
    if (!cJSON_IsString(type)) return false;
    const char *found = type->valuestring;
    while (*name && ascii_upper(*found) == *name) found++, name++;
    return *found == 0 && *name == 0;
}

/* required:["a","b"], quotes being control tokens */
static void put_required(chat_writer *w, const cJSON *list) {
    if (!cJSON_IsArray(list)) {
        chat_fail(w, KAKEYA_FORMAT, "tools: \"required\" is not a list");
        return;
    }
    chat_puts(w, "required:[");
    const cJSON *item;
    cJSON_ArrayForEach(item, list) {
        if (item != list->child) chat_puts(w, ",");
        put_quoted(w, "an entry of \"required\"", item);
    }
    chat_puts(w, "]");
}

static void put_comma(chat_writer *w, bool *needed) {
    if (*needed) chat_puts(w, ",");
    *needed = true;
}

static void put_parameters(chat_writer *w, const cJSON *properties, bool skip_schema_keys);

static void put_items(chat_writer *w, const cJSON *items) {
    size_t n;
    const cJSON **sorted = chat_sorted(items, &n);
    if (!sorted) {
        chat_fail(w, KAKEYA_OUT_OF_MEMORY, "out of memory");
        return;
    }
    bool comma = false;
    chat_puts(w, "items:{");
    for (size_t i = 0; i < n && !w->status; i++) {
        const cJSON *item = sorted[i];
        if (cJSON_IsNull(item)) continue;
        put_comma(w, &comma);
        if (strcmp(item->string, "properties") == 0) {
            chat_puts(w, "properties:{");
            if (cJSON_IsObject(item)) put_parameters(w, item, false);
            chat_puts(w, "}");
        } else if (strcmp(item->string, "required") == 0) {
            put_required(w, item);
        } else if (strcmp(item->string, "type") == 0) {
            chat_puts(w, "type:");
            if (cJSON_IsString(item)) {
                chat_put_control(w, CHAT_QUOTE);
                put_type(w, item);
                chat_put_control(w, CHAT_QUOTE);
            } else {
                const cJSON *type;
                chat_puts(w, "[");
                cJSON_ArrayForEach(type, item) {
                    if (type != item->child) chat_puts(w, ",");
                    chat_put_control(w, CHAT_QUOTE);
                    put_type(w, type);
                    chat_put_control(w, CHAT_QUOTE);
                }
                chat_puts(w, "]");
            }
        } else {
            chat_puts(w, item->string);
            chat_puts(w, ":");
            chat_put_value(w, item, true);
        }
    }
    chat_puts(w, "}");
    free(sorted);
}

static void put_parameter(chat_writer *w, const cJSON *value) {
    bool comma = false;
    const cJSON *description = get(value, "description"), *items = get(value, "items"), *required;
    if (is_true(description)) {
        put_comma(w, &comma);
        chat_puts(w, "description:");
        put_quoted(w, "a description", description);
    }
    if (type_is(value, "STRING") && is_true(get(value, "enum"))) {
        put_comma(w, &comma);
        chat_puts(w, "enum:");
        chat_put_value(w, get(value, "enum"), true);
    } else if (type_is(value, "ARRAY") && cJSON_IsObject(items) && is_true(items)) {
        put_comma(w, &comma);
        put_items(w, items);
    }
    if (is_true(get(value, "nullable"))) {
        put_comma(w, &comma);
        chat_puts(w, "nullable:true");
    }
    if (type_is(value, "OBJECT")) {
        const cJSON *properties = get(value, "properties");
        bool own = cJSON_IsObject(properties);
        put_comma(w, &comma);
        chat_puts(w, "properties:{");
        put_parameters(w, own ? properties : value, !own);
        chat_puts(w, "}");
        required = get(value, "required");
        if (is_true(required)) {
            put_comma(w, &comma);
            put_required(w, required);
        }
    }
    put_comma(w, &comma);
    chat_puts(w, "type:");
    chat_put_control(w, CHAT_QUOTE);
    put_type(w, get(value, "type"));
    chat_put_control(w, CHAT_QUOTE);
}

static bool is_schema_key(const char *key) {
    static const char *const keys[] = {"description", "type", "properties", "required", "nullable"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strcmp(key, keys[i]) == 0) return true;
    }
    return false;
}

static void put_parameters(chat_writer *w, const cJSON *properties, bool skip_schema_keys) {
    size_t n;
    if (!cJSON_IsObject(properties)) {
        chat_fail(w, KAKEYA_FORMAT, "tools: \"properties\" is not an object");
        return;
    }
    const cJSON **sorted = chat_sorted(properties, &n);
    if (!sorted) {
        chat_fail(w, KAKEYA_OUT_OF_MEMORY, "out of memory");
        return;
    }
    bool comma = false;
    for (size_t i = 0; i < n && !w->status; i++) {
        if (skip_schema_keys && is_schema_key(sorted[i]->string)) continue;
        put_comma(w, &comma);
        chat_puts(w, sorted[i]->string);
        chat_puts(w, ":{");
        put_parameter(w, sorted[i]);
        chat_puts(w, "}");
    }
    free(sorted);
}

static void put_declaration(chat_writer *w, const cJSON *function) {
    const cJSON *name = get(function, "name"), *description = get(function, "description");
    const cJSON *parameters = get(function, "parameters"), *response = get(function, "response");
    if (!cJSON_IsString(name)) {
        chat_fail(w, KAKEYA_FORMAT, "tools: a tool has no function.name");
        return;
    }
    chat_puts(w, "declaration:");
    chat_puts(w, name->valuestring);
    chat_puts(w, "{description:");
    chat_put_control(w, CHAT_QUOTE);
    if (cJSON_IsString(description)) chat_puts(w, description->valuestring);
    if (cJSON_IsNull(description)) chat_puts(w, "None");
    chat_put_control(w, CHAT_QUOTE);
    if (is_true(parameters)) {
        chat_puts(w, ",parameters:{");
        if (is_true(get(parameters, "properties"))) {
            chat_puts(w, "properties:{");
            put_parameters(w, get(parameters, "properties"), false);
            chat_puts(w, "},");
        }
        if (is_true(get(parameters, "required"))) {
            put_required(w, get(parameters, "required"));
            chat_puts(w, ",");
        }
        if (is_true(get(parameters, "type"))) {
            chat_puts(w, "type:");
            chat_put_control(w, CHAT_QUOTE);
            put_type(w, get(parameters, "type"));
            chat_put_control(w, CHAT_QUOTE);
            chat_puts(w, "}");
        }
    }
    if (response) {
        chat_puts(w, ",response:{");
        if (is_true(get(response, "description"))) {
            chat_puts(w, "description:");
            put_quoted(w, "a response's description", get(response, "description"));
            chat_puts(w, ",");
        }
        if (type_is(response, "OBJECT")) {
            chat_puts(w, "type:");
            chat_put_control(w, CHAT_QUOTE);
            chat_puts(w, "OBJECT");
            chat_put_control(w, CHAT_QUOTE);
            chat_puts(w, "}");
        }
    }
    chat_puts(w, "}");
}

void chat_put_tools(chat_writer *w, const cJSON *tools) {
    const cJSON *tool;
    cJSON_ArrayForEach(tool, tools) {
        chat_put_control(w, "<|tool>");
        put_declaration(w, get(tool, "function"));
        chat_put_control(w, "<tool|>");
    }
}
