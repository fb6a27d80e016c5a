#include "serve/openai_grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"

static const cJSON *member(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* One field decides about the form; a second one would contradict it. */
static bool claim(answer_form *form, const char *param, kakeya_grammar_kind kind, api_error *error) {
    if (form->kind != KAKEYA_GRAMMAR_TEXT)
        return api_fail(error, 400, "invalid_value", param, "%s: %s already determines the form of the answer", param,
                        form->param);
    form->kind = kind;
    form->param = param;
    return true;
}

static void take_json(answer_form *form, const char *param, kakeya_grammar_kind kind, const cJSON *value,
                      api_error *error) {
    if (!claim(form, param, kind, error)) return;
    form->text = json_text_print(value);
    if (!form->text) api_out_of_memory(error);
}

void openai_take_schema(const cJSON *value, const char *param, answer_form *form, api_error *error) {
    if (cJSON_IsString(value)) {
        if (claim(form, param, KAKEYA_GRAMMAR_JSON_SCHEMA, error)) form->source = value->valuestring;
    } else if (cJSON_IsObject(value) || cJSON_IsBool(value)) {
        take_json(form, param, KAKEYA_GRAMMAR_JSON_SCHEMA, value, error);
    } else if (value) {
        api_fail(error, 400, "invalid_type", param, "%s is not a schema", param);
    }
}

/* A regular expression, or rules. */
static void take_source(fields *f, answer_form *form, const char *param, kakeya_grammar_kind kind, const cJSON *value) {
    if (!value) return;
    if (!cJSON_IsString(value)) {
        api_fail(f->error, 400, "invalid_type", param, "%s is not a string", param);
    } else if (claim(form, param, kind, f->error)) {
        form->source = value->valuestring;
    }
}

static void take_choice(fields *f, answer_form *form, const char *param, const cJSON *value) {
    const cJSON *item;
    if (!value) return;
    bool strings = cJSON_IsArray(value) && value->child;
    cJSON_ArrayForEach(item, value) strings = strings && cJSON_IsString(item);
    if (!strings) {
        api_fail(f->error, 400, "invalid_type", param, "%s is not a list of strings", param);
    } else {
        take_json(form, param, KAKEYA_GRAMMAR_CHOICE, value, f->error);
    }
}

void openai_take_format(const cJSON *format, const char *param, const char *schema_place, answer_form *form,
                        api_error *error) {
    const char *type = body_string(format, "type");
    const cJSON *schema = member(format, "schema"), *named = member(format, "json_schema");
    char place[96];
    snprintf(place, sizeof place, "%.80s.type", param);
    if (!schema && cJSON_IsObject(named)) schema = member(named, "schema");
    if (cJSON_IsNull(schema)) schema = NULL;
    if (!type) {
        api_fail(error, 400, "missing_required_parameter", place, "%s is missing", place);
    } else if (strcmp(type, "json_object") == 0 && !schema) {
        claim(form, param, KAKEYA_GRAMMAR_JSON_OBJECT, error);
    } else if (strcmp(type, "json_object") == 0 || (strcmp(type, "json_schema") == 0 && schema)) {
        openai_take_schema(schema, param, form, error);
    } else if (strcmp(type, "json_schema") == 0) {
        api_fail(error, 400, "missing_required_parameter", schema_place, "%s is missing", schema_place);
    } else if (strcmp(type, "text") != 0) {
        api_fail(error, 400, "unsupported_value", place, "%s: %.64s is not text, json_object or json_schema", place,
                 type);
    }
}

void openai_read_format(fields *f, answer_form *form) {
    form->any_order = !fields_bool(f, "strict_order", true);
    const cJSON *format = fields_object(f, "response_format");
    if (format) openai_take_format(format, "response_format", "response_format.json_schema.schema", form, f->error);
    openai_take_schema(fields_get(f, "json_schema"), "json_schema", form, f->error);
    openai_take_schema(fields_get(f, "guided_json"), "guided_json", form, f->error);
    take_source(f, form, "guided_regex", KAKEYA_GRAMMAR_REGEX, fields_get(f, "guided_regex"));
    take_choice(f, form, "guided_choice", fields_get(f, "guided_choice"));
    take_source(f, form, "grammar", KAKEYA_GRAMMAR_RULES, fields_get(f, "grammar"));
    take_source(f, form, "guided_grammar", KAKEYA_GRAMMAR_RULES, fields_get(f, "guided_grammar"));
    fields inner;
    fields_begin(&inner, fields_object(f, "structured_outputs"), "structured_outputs.", f->error);
    openai_take_schema(fields_get(&inner, "json"), "structured_outputs.json", form, f->error);
    take_source(&inner, form, "structured_outputs.regex", KAKEYA_GRAMMAR_REGEX, fields_get(&inner, "regex"));
    take_choice(&inner, form, "structured_outputs.choice", fields_get(&inner, "choice"));
    take_source(&inner, form, "structured_outputs.grammar", KAKEYA_GRAMMAR_RULES, fields_get(&inner, "grammar"));
}

/* --------------------------------------------------------------------------------------------------------- tool calls
 */

static const char *name_of(const cJSON *tool) {
    const cJSON *function = member(tool, "function"), *name = member(function ? function : tool, "name");
    return cJSON_IsString(name) ? name->valuestring : NULL;
}

static bool allow(const cJSON *tools, const char *name, answer_form *form, api_error *error) {
    const cJSON *tool;
    if (!name) return api_fail(error, 400, "invalid_value", "tool_choice", "tool_choice: the tool has no name");
    cJSON_ArrayForEach(tool, tools) {
        const char *its = name_of(tool);
        if (!its || strcmp(its, name) != 0 || form->n_names == GRAMMAR_MAX_NAMES) continue;
        form->names[form->n_names++] = name;
        return true;
    }
    return api_fail(error, 400, "invalid_value", "tool_choice", "tool_choice: there is no tool %.64s", name);
}

/* {"type":"allowed_tools","allowed_tools":{"mode":..,"tools":[..]}}, or the same flat. */
static void read_allowed(fields *f, const cJSON *choice, const cJSON *tools, answer_form *form) {
    const cJSON *inner = member(choice, "allowed_tools"), *tool;
    if (!cJSON_IsObject(inner)) inner = choice;
    const cJSON *mode = member(inner, "mode"), *list = member(inner, "tools");
    bool required = cJSON_IsString(mode) && strcmp(mode->valuestring, "required") == 0;
    if (!cJSON_IsArray(list) || !list->child) {
        api_fail(f->error, 400, "invalid_value", "tool_choice",
                 "tool_choice.allowed_tools.tools is not a list of tools");
        return;
    }
    form->calls = required ? KAKEYA_CALLS_REQUIRED : KAKEYA_CALLS_AUTO;
    cJSON_ArrayForEach(tool, list) {
        if (!allow(tools, name_of(tool), form, f->error)) return;
    }
}

bool openai_force_call(const cJSON *tools, answer_form *form, api_error *error) {
    form->calls = KAKEYA_CALLS_REQUIRED;
    return tools || api_fail(error, 400, "invalid_value", "tool_choice", "tool_choice is given, but no tools are");
}

void openai_force_tool(const cJSON *tools, const char *name, answer_form *form, api_error *error) {
    if (openai_force_call(tools, form, error)) allow(tools, name, form, error);
}

void openai_take_tool_choice(fields *f, const cJSON *choice, const cJSON *tools, answer_form *form) {
    form->calls = tools ? KAKEYA_CALLS_AUTO : KAKEYA_CALLS_FREE;
    if (!choice) return;
    const char *mode = cJSON_IsString(choice) ? choice->valuestring : NULL;
    const cJSON *type = member(choice, "type");
    if (mode && strcmp(mode, "none") == 0) {
        form->calls = KAKEYA_CALLS_NONE;
    } else if (!tools && mode && strcmp(mode, "auto") == 0) {
        /* nothing is offered, nothing is called */
    } else if (!tools || (mode && strcmp(mode, "required") == 0)) {
        openai_force_call(tools, form, f->error);
    } else if (cJSON_IsObject(choice) && cJSON_IsString(type) && strcmp(type->valuestring, "allowed_tools") == 0) {
        read_allowed(f, choice, tools, form);
    } else if (cJSON_IsObject(choice)) {
        openai_force_tool(tools, name_of(choice), form, f->error);
    } else if (!mode || strcmp(mode, "auto") != 0) {
        fields_wrong_value(f, "tool_choice", choice, "none, auto, required or a tool");
    }
}

bool openai_is_forced(const answer_form *form) {
    return form->kind != KAKEYA_GRAMMAR_TEXT || form->calls == KAKEYA_CALLS_REQUIRED;
}

/* ------------------------------------------------------------------------------------------------------------- grammar
 */

/* What the grammar has left out of the schemas of the request. */
static void name_notes(call *c, const kakeya_grammar *g) {
    const char *note;
    for (size_t i = 0; (note = kakeya_grammar_note(g, i)) != NULL; i++) {
        ignored_add(&c->ignored, "%s", note);
        metrics_add(&c->server->metrics.grammar_keywords_ignored, 1);
    }
}

static void compile(call *c, const answer_form *form, bool thinking, answer_options *out, api_error *error) {
    kakeya_grammar_options options;
    KAKEYA_INIT(&options);
    options.kind = form->kind;
    options.text = form->kind == KAKEYA_GRAMMAR_TEXT ? NULL : form->source ? form->source : form->text;
    options.any_order = form->any_order;
    options.text_bytes = options.text ? strlen(options.text) : 0;
    options.calls = form->calls;
    options.tools = out->tools;
    options.tools_bytes = out->tools_bytes;
    options.tool_names = form->names;
    options.n_tool_names = form->n_names;
    options.tool_places = form->tool_places;
    options.n_tool_places = form->n_tool_places;
    options.parameters = form->parameters;
    if (form->calls != KAKEYA_CALLS_FREE) options.max_calls = (int)out->max_calls;
    options.thinking = thinking;
    options.loosen = !c->server->settings->strict;
    const kakeya_tokenizer *t = kakeya_engine_tokenizer(c->server->engine);
    kakeya_error why = {0};
    kakeya_status status = grammar_cache_take(c->server->grammars, t, &options, &out->grammar, &why);
    if (status == KAKEYA_OK) {
        name_notes(c, grammar_cache_grammar(out->grammar));
        return;
    }
    const char *param = form->param && form->kind != KAKEYA_GRAMMAR_TEXT ? form->param : "tools";
    api_fail_library(error, "invalid_json_schema", param, &why);
}

/* An answer of calls alone has no content that could follow the format; it must be one all the same. */
static void set_format_aside(call *c, answer_form *form, bool thinking, api_error *error) {
    answer_form content = *form;
    answer_options none = {0};
    content.calls = KAKEYA_CALLS_NONE;
    compile(c, &content, thinking, &none, error);
    grammar_cache_give(none.grammar);
    form->kind = KAKEYA_GRAMMAR_TEXT;
    form->source = NULL;
}

void openai_compile_form(call *c, answer_form *form, bool thinking, answer_options *out, api_error *error) {
    bool free_text = form->kind == KAKEYA_GRAMMAR_TEXT;
    if (!out || error->status) {
        /* nothing is generated */
    } else if (free_text && (!out->tools || form->calls == KAKEYA_CALLS_NONE)) {
        out->without_calls = true; /* the token that begins a call needs no grammar to be forbidden */
    } else {
        if (!free_text && form->calls == KAKEYA_CALLS_REQUIRED) set_format_aside(c, form, thinking, error);
        if (error->status == 0) compile(c, form, thinking, out, error);
    }
    cJSON_free(form->text);
    form->text = NULL;
}
