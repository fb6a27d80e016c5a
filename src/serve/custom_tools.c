#include "serve/custom_tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "base/nul.h"

/* Under which name a custom tool gets its text, and where its declaration keeps what functions do not have: the library
 * reads both (kakeya_grammar_options.tools). */
static const char input_name[] = "input", custom_name[] = "custom";

static cJSON *member(const cJSON *object, const char *key) { return cJSON_GetObjectItemCaseSensitive(object, key); }

static bool is_type(const cJSON *value, const char *wanted) {
    const char *type = body_string(value, "type");
    return type && strcmp(type, wanted) == 0;
}

/* ---------------------------------------------------------------------------------------------------- declarations */

typedef struct format {
    const char *syntax, *definition; /* NULL: free text */
} format;

/* {"type":"text"}, or {"type":"grammar","syntax","definition"}, as chat completions have it inside of a "grammar". */
static bool read_format(const cJSON *value, const char *param, format *out, api_error *error) {
    char place[112];
    *out = (format){0};
    if (!value || cJSON_IsNull(value)) return true;
    snprintf(place, sizeof place, "%.96s.format", param);
    if (!cJSON_IsObject(value)) return api_fail(error, 400, "invalid_type", place, "%s is not an object", place);
    if (is_type(value, "text")) return true;
    if (!is_type(value, "grammar"))
        return api_fail(error, 400, "unsupported_value", place, "%s.type is not text or grammar", place);
    const cJSON *inner = member(value, "grammar");
    if (cJSON_IsObject(inner)) value = inner;
    out->syntax = body_string(value, "syntax");
    out->definition = body_string(value, "definition");
    if (!out->syntax || (strcmp(out->syntax, "lark") != 0 && strcmp(out->syntax, "regex") != 0))
        return api_fail(error, 400, "unsupported_value", place, "%s.syntax is not lark or regex", place);
    if (!out->definition)
        return api_fail(error, 400, "missing_required_parameter", place, "%s.definition is not a string", place);
    return true;
}

static bool describe(cJSON *function, const char *description, const format *how) {
    text_buffer text = {0};
    if (description) text_add(&text, description);
    if (how->definition) {
        text_add(&text, text.n ? "\n\n" : "");
        text_add(&text, "The input follows this grammar (");
        text_add(&text, how->syntax);
        text_add(&text, "):\n");
        text_add(&text, how->definition);
    }
    bool good = !text.failed && (!text.n || cJSON_AddStringToObject(function, "description", text.data));
    text_free(&text);
    return good;
}

static bool add_parameters(cJSON *function) {
    cJSON *parameters = cJSON_AddObjectToObject(function, "parameters");
    cJSON *properties = parameters ? cJSON_AddObjectToObject(parameters, "properties") : NULL;
    cJSON *input = properties ? cJSON_AddObjectToObject(properties, input_name) : NULL;
    cJSON *required = input ? cJSON_AddArrayToObject(parameters, "required") : NULL;
    cJSON *name = required ? cJSON_CreateString(input_name) : NULL;
    bool good = name && cJSON_AddItemToArray(required, name);
    if (!good) cJSON_Delete(name);
    return good && cJSON_AddStringToObject(parameters, "type", "object") &&
           cJSON_AddStringToObject(input, "type", "string");
}

bool custom_tool_declare(cJSON *functions, const cJSON *custom, const char *called, const char *param,
                         api_error *error) {
    format how;
    const cJSON *description = member(custom, "description");
    if (description && !cJSON_IsNull(description) && !cJSON_IsString(description))
        return api_fail(error, 400, "invalid_type", param, "%s.description is not a string", param);
    if (!read_format(member(custom, "format"), param, &how, error)) return false;
    cJSON *entry = cJSON_CreateObject();
    if (!entry || !cJSON_AddItemToArray(functions, entry)) {
        cJSON_Delete(entry);
        return api_out_of_memory(error);
    }
    bool good = cJSON_AddStringToObject(entry, "type", "function");
    cJSON *function = good ? cJSON_AddObjectToObject(entry, "function") : NULL;
    cJSON *mark = function ? cJSON_AddObjectToObject(entry, custom_name) : NULL;
    good = mark && cJSON_AddStringToObject(function, "name", called) &&
           describe(function, cJSON_GetStringValue(description), &how) && add_parameters(function);
    if (good && how.definition)
        good = cJSON_AddStringToObject(mark, "syntax", how.syntax) &&
               cJSON_AddStringToObject(mark, "definition", how.definition);
    return good || api_out_of_memory(error);
}

bool custom_tool_is(const cJSON *functions, const char *called) {
    const cJSON *tool;
    cJSON_ArrayForEach(tool, functions) {
        const char *name = body_string(member(tool, "function"), "name");
        if (name && strcmp(name, called) == 0) return member(tool, custom_name) != NULL;
    }
    return false;
}

/* ----------------------------------------------------------------------------------------------------------- input */

/* The arguments, completed where max_tokens has cut them inside the text, as JSON. */
static cJSON *read_arguments(const char *arguments, size_t bytes) {
    enum { LONGEST_ESCAPE = 12 }; /* of a surrogate pair */
    cJSON *tree = json_text_read(arguments, bytes);
    text_buffer closed = {0};
    for (size_t cut = 0; !tree && cut < LONGEST_ESCAPE && cut < bytes; cut++) {
        text_clear(&closed);
        text_bytes(&closed, arguments, bytes - cut);
        text_add(&closed, "\"}");
        if (!closed.failed) tree = json_text_read(closed.data, closed.n);
    }
    text_free(&closed);
    return tree;
}

char *custom_tool_input(const char *arguments, size_t bytes, size_t *input_bytes) {
    cJSON *tree = read_arguments(arguments, bytes);
    const char *input = body_string(tree, input_name);
    size_t n = input ? strlen(input) : 0; /* cut in front of the text: there is none yet */
    char *copy = malloc(n + 1);
    if (copy) n = nul_read(copy, input ? input : "", n);
    if (copy) copy[n] = '\0';
    *input_bytes = copy ? n : 0;
    cJSON_Delete(tree);
    return copy;
}

/* ------------------------------------------------------------------------------------------------ chat completions */

static bool replace_tools(cJSON *tools, api_error *error) {
    cJSON *tool = cJSON_IsArray(tools) ? tools->child : NULL, *made = cJSON_CreateArray();
    bool good = made || api_out_of_memory(error);
    for (int i = 0; tool && good; i++) {
        cJSON *next = tool->next, *custom = member(tool, custom_name);
        const char *name = body_string(custom, "name");
        char param[64];
        snprintf(param, sizeof param, "tools[%d].custom", i);
        if (is_type(tool, "custom")) {
            good = name ? custom_tool_declare(made, custom, name, param, error)
                        : api_fail(error, 400, "invalid_type", param, "%s.name is not a string", param);
            if (good) cJSON_ReplaceItemViaPointer(tools, tool, cJSON_DetachItemFromArray(made, 0));
        }
        tool = next;
    }
    cJSON_Delete(made);
    return good;
}

/* {"type":"custom","custom":{...}} becomes {"type":"function","function":{...}}. */
static bool rename_custom(cJSON *item, api_error *error) {
    if (!is_type(item, "custom")) return true;
    cJSON *custom = cJSON_DetachItemFromObjectCaseSensitive(item, custom_name);
    cJSON_DeleteItemFromObjectCaseSensitive(item, "type");
    bool good = !custom || cJSON_AddItemToObject(item, "function", custom);
    if (!good) cJSON_Delete(custom);
    return (good && cJSON_AddStringToObject(item, "type", "function")) || api_out_of_memory(error);
}

static bool replace_choice(cJSON *choice, api_error *error) {
    cJSON *inner = member(choice, "allowed_tools"), *tool;
    if (!rename_custom(choice, error)) return false;
    cJSON_ArrayForEach(tool, member(inner ? inner : choice, "tools")) {
        if (!rename_custom(tool, error)) return false;
    }
    return true;
}

/* The text of a call in a message becomes the arguments of the function. */
static bool replace_call(cJSON *item, const char *param, api_error *error) {
    if (!is_type(item, "custom")) return true;
    const char *input = body_string(member(item, custom_name), "input");
    if (!input) return api_fail(error, 400, "invalid_type", param, "%s.custom.input is not a string", param);
    cJSON *arguments = cJSON_CreateObject();
    bool made = arguments && cJSON_AddStringToObject(arguments, input_name, input);
    char *text = made ? json_text_print(arguments) : NULL;
    cJSON_Delete(arguments);
    bool good =
        (text && rename_custom(item, error) && cJSON_AddStringToObject(member(item, "function"), "arguments", text)) ||
        api_out_of_memory(error);
    cJSON_free(text);
    return good;
}

static bool replace_calls(const cJSON *messages, api_error *error) {
    const cJSON *message;
    int i = 0;
    cJSON_ArrayForEach(message, messages) {
        cJSON *item;
        int k = 0;
        cJSON_ArrayForEach(item, member(message, "tool_calls")) {
            char param[80];
            snprintf(param, sizeof param, "messages[%d].tool_calls[%d]", i, k++);
            if (!replace_call(item, param, error)) return false;
        }
        i++;
    }
    return true;
}

bool custom_tools_rewrite(cJSON *body, api_error *error) {
    return replace_tools(member(body, "tools"), error) && replace_choice(member(body, "tool_choice"), error) &&
           replace_calls(member(body, "messages"), error);
}
