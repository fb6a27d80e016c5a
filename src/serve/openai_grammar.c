#include "serve/openai_grammar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
static const cJSON *member(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* One field decides about the form; a second one would contradict it. */
static bool claim(fields *f, answer_form *form, const char *param, kakeya_grammar_kind kind) {
    if (form->kind != KAKEYA_GRAMMAR_TEXT)
        return api_fail(f->error, 400, "invalid_value", param, "%s: %s already determines the form of the answer",
                        param, form->param);
    form->kind = kind;
    form->param = param;
    return true;
}

static void take_json(fields *f, answer_form *form, const char *param, kakeya_grammar_kind kind, const cJSON *value) {
    if (!claim(f, form, param, kind)) return;
    form->text = json_text_print(value);
    if (!form->text) api_out_of_memory(f->error);
}

/* A schema as an object, or as the text of one. */
static void take_schema(fields *f, answer_form *form, const char *param, const cJSON *value) {
    if (cJSON_IsString(value)) {
        if (!claim(f, form, param, KAKEYA_GRAMMAR_JSON_SCHEMA)) return;
        form->text = strdup(value->valuestring);
    } else if (cJSON_IsObject(value) || cJSON_IsBool(value)) {
        take_json(f, form, param, KAKEYA_GRAMMAR_JSON_SCHEMA, value);
    } else if (value) {
        api_fail(f->error, 400, "invalid_type", param, "%s is not a schema", param);
    }
}

static void take_regex(fields *f, answer_form *form, const char *param, const cJSON *value) {
    if (!cJSON_IsString(value)) {
        api_fail(f->error, 400, "invalid_type", param, "%s is not a string", param);
    } else if (claim(f, form, param, KAKEYA_GRAMMAR_REGEX)) {
        form->source = value->valuestring;
    }
}

static void take_rules(fields *f, answer_form *form, const char *param, const cJSON *value) {
    if (!cJSON_IsString(value)) {
        api_fail(f->error, 400, "invalid_type", param, "%s is not a string", param);
    } else if (claim(f, form, param, KAKEYA_GRAMMAR_RULES)) {
        form->source = value->valuestring;
    }
}

static void take_choice(fields *f, answer_form *form, const char *param, const cJSON *value) {
    const cJSON *item;
    bool strings = cJSON_IsArray(value) && value->child;
    cJSON_ArrayForEach(item, value) strings = strings && cJSON_IsString(item);
    if (!strings) {
        api_fail(f->error, 400, "invalid_type", param, "%s is not a list of strings", param);
    } else {
        take_json(f, form, param, KAKEYA_GRAMMAR_CHOICE, value);
    }
}

static void read_response_format(fields *f, answer_form *form) {
    const cJSON *format = fields_object(f, "response_format"), *type = member(format, "type");
    if (!format) return;
    if (!cJSON_IsString(type)) {
        api_fail(f->error, 400, "missing_required_parameter", "response_format.type",
                 "response_format.type is missing");
        return;
    }
    const cJSON *schema = member(format, "schema"), *named = member(format, "json_schema");
    if (!schema && cJSON_IsObject(named)) schema = member(named, "schema");
    if (strcmp(type->valuestring, "text") == 0) return;
    if (strcmp(type->valuestring, "json_object") == 0) {
        if (schema) {
            take_schema(f, form, "response_format", schema);
        } else {
            claim(f, form, "response_format", KAKEYA_GRAMMAR_JSON_OBJECT);
        }
    } else if (strcmp(type->valuestring, "json_schema") != 0) {
        api_fail(f->error, 400, "unsupported_value", "response_format.type",
                 "response_format.type: %.64s is not text, json_object or json_schema", type->valuestring);
    } else if (!schema) {
        api_fail(f->error, 400, "missing_required_parameter", "response_format.json_schema.schema",
                 "response_format.json_schema.schema is missing");
    } else {
        take_schema(f, form, "response_format", schema);
    }
}

void openai_read_format(fields *f, answer_form *form) {
    const cJSON *value;
    form->any_order = !fields_bool(f, "strict_order", true);
    read_response_format(f, form);
    take_schema(f, form, "json_schema", fields_get(f, "json_schema"));
    take_schema(f, form, "guided_json", fields_get(f, "guided_json"));
    if ((value = fields_get(f, "guided_regex")) != NULL) take_regex(f, form, "guided_regex", value);
    if ((value = fields_get(f, "guided_choice")) != NULL) take_choice(f, form, "guided_choice", value);
    if ((value = fields_get(f, "grammar")) != NULL) take_rules(f, form, "grammar", value);
    if ((value = fields_get(f, "guided_grammar")) != NULL) take_rules(f, form, "guided_grammar", value);
    fields inner;
    fields_begin(&inner, fields_object(f, "structured_outputs"), "structured_outputs.", f->error);
    take_schema(&inner, form, "structured_outputs.json", fields_get(&inner, "json"));
    if ((value = fields_get(&inner, "regex")) != NULL) take_regex(&inner, form, "structured_outputs.regex", value);
    if ((value = fields_get(&inner, "choice")) != NULL) take_choice(&inner, form, "structured_outputs.choice", value);
    if ((value = fields_get(&inner, "grammar")) != NULL) take_rules(&inner, form, "structured_outputs.grammar", value);
}

/* --------------------------------------------------------------------------------------------------------- tool calls
 */

static const char *name_of(const cJSON *tool) {
    const cJSON *function = member(tool, "function"), *name = member(function ? function : tool, "name");
    return cJSON_IsString(name) ? name->valuestring : NULL;
}

static bool allow(fields *f, const cJSON *tools, const char *name, answer_form *form) {
    const cJSON *tool;
    if (!name) return api_fail(f->error, 400, "invalid_value", "tool_choice", "tool_choice: the tool has no name");
    cJSON_ArrayForEach(tool, tools) {
        const char *its = name_of(tool);
        if (!its || strcmp(its, name) != 0 || form->n_names == GRAMMAR_MAX_NAMES) continue;
        form->names[form->n_names++] = name;
        return true;
    }
    return api_fail(f->error, 400, "invalid_value", "tool_choice", "tool_choice: there is no tool %.64s", name);
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
        if (!allow(f, tools, name_of(tool), form)) return;
    }
}

void openai_read_tool_choice(fields *f, const cJSON *tools, answer_form *form) {
    const cJSON *choice = fields_get(f, "tool_choice");
    form->calls = tools ? KAKEYA_CALLS_AUTO : KAKEYA_CALLS_FREE;
    if (!choice) return;
    const char *mode = cJSON_IsString(choice) ? choice->valuestring : NULL;
    const cJSON *type = member(choice, "type");
    if (mode && strcmp(mode, "none") == 0) {
        form->calls = KAKEYA_CALLS_NONE;
    } else if (!tools && mode && strcmp(mode, "auto") == 0) {
        /* nothing is offered, nothing is called */
    } else if (!tools) {
        api_fail(f->error, 400, "invalid_value", "tool_choice", "tool_choice is given, but no tools are");
    } else if (mode && strcmp(mode, "required") == 0) {
        form->calls = KAKEYA_CALLS_REQUIRED;
    } else if (cJSON_IsObject(choice) && cJSON_IsString(type) && strcmp(type->valuestring, "allowed_tools") == 0) {
        read_allowed(f, choice, tools, form);
    } else if (cJSON_IsObject(choice)) {
        form->calls = KAKEYA_CALLS_REQUIRED;
        allow(f, tools, name_of(choice), form);
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

static void compile(call *c, fields *f, const answer_form *form, bool thinking, answer_options *out) {
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
    api_fail_library(f->error, "invalid_json_schema", param, &why);
}

/* An answer of calls alone has no content that could follow the format; it must be one all the same. */
static void set_format_aside(call *c, fields *f, answer_form *form, bool thinking) {
    answer_form content = *form;
    answer_options none = {0};
    content.calls = KAKEYA_CALLS_NONE;
    compile(c, f, &content, thinking, &none);
    grammar_cache_give(none.grammar);
    form->kind = KAKEYA_GRAMMAR_TEXT;
    form->source = NULL;
}

void openai_compile_form(call *c, fields *f, answer_form *form, bool has_tools, bool thinking, answer_options *out) {
    bool free_text = form->kind == KAKEYA_GRAMMAR_TEXT;
    if (!out || f->error->status) {
        /* nothing is generated */
    } else if (free_text && (!has_tools || form->calls == KAKEYA_CALLS_NONE)) {
        out->without_calls = true; /* the token that begins a call needs no grammar to be forbidden */
    } else {
        if (!free_text && form->calls == KAKEYA_CALLS_REQUIRED) set_format_aside(c, f, form, thinking);
        if (f->error->status == 0) compile(c, f, form, thinking, out);
    }
    cJSON_free(form->text);
    form->text = NULL;
}
