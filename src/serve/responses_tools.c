#include "serve/responses_tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "serve/custom_tools.h"
#include "serve/responses_items.h"

typedef struct reader {
    cJSON *functions;
    response_tools *out;
    text_buffer *ignored;
    api_error *error;
} reader;

static bool is_type(const cJSON *tool, const char *wanted) {
    const char *type = body_string(tool, "type");
    return type && strcmp(type, wanted) == 0;
}

/* ---------------------------------------------------------------------------------------------------- declarations */

static bool know(reader *k, const cJSON *tool, const char *space, const char *called) {
    response_tools *out = k->out;
    response_tool *grown = realloc(out->list, (out->n + 1) * sizeof *grown);
    if (!grown) return api_out_of_memory(k->error);
    out->list = grown;
    response_tool *t = &out->list[out->n++];
    *t = (response_tool){.called = strdup(called),
                         .name = strdup(body_string(tool, "name")),
                         .space = space ? strdup(space) : NULL,
                         .custom = is_type(tool, "custom")};
    return (t->called && t->name && (t->space || !space)) || api_out_of_memory(k->error);
}

static bool copy_member(cJSON *to, const char *name, const cJSON *from) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(from, name);
    if (!value || cJSON_IsNull(value)) return true;
    cJSON *copy = cJSON_Duplicate(value, true);
    if (copy && cJSON_AddItemToObject(to, name, copy)) return true;
    cJSON_Delete(copy);
    return false;
}

static bool add_function(reader *k, const cJSON *tool, const char *space, const char *param) {
    const char *name = body_string(tool, "name");
    char called[ITEM_NAME_BYTES];
    if (!name) return api_fail(k->error, 400, "invalid_type", param, "%s.name is not a string", param);
    item_join_name(space, name, called);
    const bool custom = is_type(tool, "custom");
    if ((custom || space) && !know(k, tool, space, called)) return false;
    if (custom) return custom_tool_declare(k->functions, tool, called, param, k->error);
    cJSON *entry = cJSON_CreateObject();
    if (!entry || !cJSON_AddItemToArray(k->functions, entry)) {
        cJSON_Delete(entry);
        return api_out_of_memory(k->error);
    }
    cJSON *function = cJSON_AddObjectToObject(entry, "function");
    bool good = function && cJSON_AddStringToObject(entry, "type", "function") &&
                cJSON_AddStringToObject(function, "name", called) && copy_member(function, "description", tool) &&
                copy_member(function, "parameters", tool) && copy_member(function, "strict", tool);
    return good || api_out_of_memory(k->error);
}

static bool is_callable(const cJSON *tool) { return is_type(tool, "function") || is_type(tool, "custom"); }

/* Whether the client runs it itself. */
static bool read_tool(reader *k, const cJSON *tool, const char *param, bool *own) {
    const char *type = body_string(tool, "type"), *space = body_string(tool, "name");
    const cJSON *inner;
    size_t i = 0;
    *own = true;
    if (!type) return api_fail(k->error, 400, "invalid_type", param, "%s is not a tool with a type", param);
    if (is_callable(tool)) return add_function(k, tool, NULL, param);
    if (!is_type(tool, "namespace")) {
        ignored_add(k->ignored, "%s(%.64s)", param, type);
        *own = false;
        return true;
    }
    if (!space || !space[0]) return api_fail(k->error, 400, "invalid_type", param, "%s.name is not a string", param);
    cJSON_ArrayForEach(inner, cJSON_GetObjectItemCaseSensitive(tool, "tools")) {
        char place[112];
        const char *its = body_string(inner, "type");
        snprintf(place, sizeof place, "%.64s.tools[%zu]", param, i++);
        if (!its) return api_fail(k->error, 400, "invalid_type", place, "%s is not a tool with a type", place);
        if (!is_callable(inner)) {
            ignored_add(k->ignored, "%s(%.64s)", place, its);
        } else if (!add_function(k, inner, space, place)) {
            return false;
        }
    }
    return true;
}

bool response_tools_read(const cJSON *tools, cJSON *functions, response_tools *out, text_buffer *echo,
                         text_buffer *ignored, api_error *error) {
    reader k = {.functions = functions, .out = out, .ignored = ignored, .error = error};
    const cJSON *tool;
    size_t i = 0;
    bool first = true, own;
    cJSON_ArrayForEach(tool, tools) {
        char param[64];
        snprintf(param, sizeof param, "tools[%zu]", i++);
        if (!read_tool(&k, tool, param, &own)) return false;
        char *json = own ? json_text_print(tool) : NULL;
        if (json && !first) text_add(echo, ",");
        if (json) text_add(echo, json);
        if (own && !json) echo->failed = true;
        first = first && !json;
        cJSON_free(json);
    }
    return true;
}

void response_tools_free(response_tools *tools) {
    for (size_t i = 0; i < tools->n; i++) {
        free(tools->list[i].called);
        free(tools->list[i].name);
        free(tools->list[i].space);
    }
    free(tools->list);
    *tools = (response_tools){0};
}

const response_tool *response_tools_find(const response_tools *tools, const char *called) {
    for (size_t i = 0; tools && i < tools->n; i++)
        if (strcmp(tools->list[i].called, called) == 0) return &tools->list[i];
    return NULL;
}

/* ---------------------------------------------------------------------------------------------------------- choice */

/* {"type":"function","name"} as {"type":"function","function":{"name"}}. */
static cJSON *named_tool(const cJSON *choice) {
    char called[ITEM_NAME_BYTES];
    cJSON *tool = cJSON_CreateObject(), *function = tool ? cJSON_AddObjectToObject(tool, "function") : NULL;
    if (body_string(choice, "name") && function && cJSON_AddStringToObject(tool, "type", "function") &&
        cJSON_AddStringToObject(function, "name", item_tool_name(choice, called)))
        return tool;
    cJSON_Delete(tool);
    return NULL;
}

static cJSON *allowed_tools(const cJSON *choice, api_error *error) {
    cJSON *out = cJSON_CreateObject(), *inner = out ? cJSON_AddObjectToObject(out, "allowed_tools") : NULL;
    cJSON *list = inner ? cJSON_AddArrayToObject(inner, "tools") : NULL;
    const char *mode = body_string(choice, "mode");
    const cJSON *tools = cJSON_GetObjectItemCaseSensitive(choice, "tools"), *tool;
    bool good = list && cJSON_AddStringToObject(out, "type", "allowed_tools") &&
                cJSON_AddStringToObject(inner, "mode", mode ? mode : "auto");
    cJSON_ArrayForEach(tool, tools) {
        if (!is_callable(tool)) continue; /* dropped, as the tools themselves were */
        cJSON *one = named_tool(tool);
        good = good && one && cJSON_AddItemToArray(list, one);
        if (!good) cJSON_Delete(one);
        if (!good) break;
    }
    if (good && !list->child)
        good =
            api_fail(error, 400, "invalid_value", "tool_choice", "tool_choice: none of the allowed tools is offered");
    if (good) return out;
    cJSON_Delete(out);
    return NULL;
}

cJSON *response_tools_choice(const cJSON *choice, api_error *error) {
    if (is_type(choice, "allowed_tools")) return allowed_tools(choice, error);
    return is_callable(choice) ? named_tool(choice) : NULL;
}
