#include "serve/anthropic_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "serve/anthropic_messages.h"
#include "serve/images.h"
#include "serve/media.h"
#include "serve/openai_chat.h"
#include "serve/openai_request.h"

/* What is known while a request is read. */
typedef struct reader {
    call *call;
    fields *f;
    anthropic_request *r;
    chat_shape shape;
    chat_wish wish;
    cJSON *tools;        /* of the wish; they show members of the body's */
    size_t *tool_places; /* of those, in the body */
    bool cache_control;
    const char *asked; /* the field that asks for a thought; NULL: none */
} reader;

void anthropic_request_init(anthropic_request *r) {
    *r = (anthropic_request){0};
    answer_options_init(&r->options);
}

void anthropic_request_free(anthropic_request *r) { answer_options_free(&r->options); }

/* A member of what belongs to the body: shown, not copied. */
static bool show(cJSON *object, const char *name, const cJSON *from, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);
    return !item || cJSON_IsNull(item) || json_add_reference(object, name, item);
}

static void end_fields(reader *k, fields *f) { fields_end(f, k->call->server->settings->strict, &k->call->ignored); }

/* ------------------------------------------------------------------------------------------------- the conversation */

static void read_conversation(reader *k) {
    fields *f = k->f;
    const cJSON *messages = fields_array(f, "messages");
    chat_conversation *said = &k->call->conversation;
    messages_in in = {.system = fields_get(f, "system"),
                      .messages = messages,
                      .pictures = images_are_read(k->call->server),
                      .seal = &k->call->server->seal};
    messages_out out = {.said = said, .ignored = &k->call->ignored};
    if (!messages) {
        api_fail(f->error, 400, "missing_required_parameter", "messages", "messages is missing");
    } else if (!messages->child) {
        api_fail(f->error, 400, "invalid_value", "messages", "messages: there is no message");
    } else if (anthropic_messages(&in, &out, f->error) && said->n <= out.continues) {
        api_fail(f->error, 400, "invalid_prompt", "messages", "messages: there is nothing that an answer could follow");
    } else if (f->error->status == 0) {
        media_take(k->call, f->error);
    }
    k->shape.continues = out.continues;
    k->cache_control = out.cache_control;
}

/* ------------------------------------------------------------------------------------------------------------- tools
 */

static void add_tool(reader *k, const cJSON *tool, size_t i, cJSON *list) {
    char param[64];
    const cJSON *schema = body_member(tool, "input_schema"), *description = body_member(tool, "description");
    snprintf(param, sizeof param, "tools[%zu]", i);
    if (!openai_is_tool_name(body_member(tool, "name"))) {
        api_fail(k->f->error, 400, "invalid_value", param,
                 "%s.name is not a name of 1 to 128 letters, digits, '_', '-' and '.'", param);
        return;
    }
    if (schema && !cJSON_IsObject(schema)) {
        api_fail(k->f->error, 400, "invalid_type", param, "%s.input_schema is not an object", param);
        return;
    }
    if (description && !cJSON_IsString(description)) {
        api_fail(k->f->error, 400, "invalid_type", param, "%s.description is not a string", param);
        return;
    }
    cJSON *entry = cJSON_CreateObject();
    bool good = entry && cJSON_AddStringToObject(entry, "type", "function");
    cJSON *function = good ? cJSON_AddObjectToObject(entry, "function") : NULL;
    good = function && show(function, "name", tool, "name") && show(function, "description", tool, "description") &&
           show(function, "parameters", tool, "input_schema") && show(function, "strict", tool, "strict") &&
           cJSON_AddItemToArray(list, entry);
    if (good) return;
    cJSON_Delete(entry);
    api_out_of_memory(k->f->error);
}

/* Tools that Anthropic's own server would run are listed to every server. */
static void read_tools(reader *k) {
    const cJSON *tools = fields_array(k->f, "tools"), *tool;
    if (!tools || !tools->child) return;
    k->tools = cJSON_CreateArray();
    k->tool_places = calloc((size_t)cJSON_GetArraySize(tools), sizeof *k->tool_places);
    if (!k->tools || !k->tool_places) {
        api_out_of_memory(k->f->error);
        return;
    }
    size_t i = 0, n = 0;
    cJSON_ArrayForEach(tool, tools) {
        const cJSON *type = body_member(tool, "type");
        if (!cJSON_IsObject(tool) || (type && !cJSON_IsString(type))) {
            char param[64];
            snprintf(param, sizeof param, "tools[%zu]", i);
            api_fail(k->f->error, 400, "invalid_type", param, "%s is not a tool", param);
        } else if (type && strcmp(type->valuestring, "custom") != 0) {
            ignored_add(&k->call->ignored, "tools[%zu](%.64s)", i, type->valuestring);
        } else {
            k->cache_control = k->cache_control || body_member(tool, "cache_control");
            k->tool_places[n++] = i;
            add_tool(k, tool, i, k->tools);
        }
        i++;
    }
    k->wish.tools = openai_check_tools(k->tools, k->f->error);
    k->wish.form.tool_places = k->tool_places;
    k->wish.form.n_tool_places = n;
    k->wish.form.parameters = "input_schema";
}

static void read_tool_choice(reader *k) {
    fields inner;
    const cJSON *choice = fields_object(k->f, "tool_choice");
    answer_form *form = &k->wish.form;
    fields_begin(&inner, choice, "tool_choice.", k->f->error);
    const char *type = fields_string(&inner, "type", NULL), *name = fields_string(&inner, "name", NULL);
    k->wish.one_call = fields_bool(&inner, "disable_parallel_tool_use", false);
    end_fields(k, &inner);
    openai_take_tool_choice(k->f, NULL, k->wish.tools, form);
    if (!choice) return;
    if (type && strcmp(type, "any") == 0) {
        openai_force_call(k->wish.tools, form, k->f->error);
    } else if (type && strcmp(type, "none") == 0) {
        form->calls = KAKEYA_CALLS_NONE;
    } else if (type && strcmp(type, "tool") == 0 && name) {
        openai_force_tool(k->wish.tools, name, form, k->f->error);
    } else if (!type || strcmp(type, "auto") != 0) {
        api_fail(k->f->error, 400, "invalid_value", "tool_choice",
                 "tool_choice.type is not auto, any, none, or tool with a name");
    }
}

/* ------------------------------------------------------------------------------------------------ form of the answer
 */

static void read_thinking(reader *k) {
    fields inner;
    const cJSON *thinking = fields_object(k->f, "thinking");
    fields_begin(&inner, thinking, "thinking.", k->f->error);
    const char *type = fields_string(&inner, "type", NULL), *display = fields_string(&inner, "display", "summarized");
    int64_t budget = fields_count(&inner, "budget_tokens", 1, 1 << 30, -1);
    end_fields(k, &inner);
    if (!thinking) return;
    bool on = type && (strcmp(type, "enabled") == 0 || strcmp(type, "adaptive") == 0);
    if (!on && !(type && strcmp(type, "disabled") == 0)) {
        api_fail(k->f->error, 400, "invalid_value", "thinking.type",
                 "thinking.type is not enabled, adaptive or disabled");
        return;
    }
    k->r->omit_thinking = strcmp(display, "omitted") == 0;
    if (!k->r->omit_thinking && strcmp(display, "summarized") != 0)
        fields_wrong_value(&inner, "display", fields_get(&inner, "display"), "summarized or omitted");
    k->asked = on ? "thinking" : NULL;
    k->wish.thinks = on;
    if (on) k->wish.thinking_budget = budget;
}

static void read_format(reader *k, const cJSON *format, const char *param) {
    if (!format) return;
    const char *type = body_string(format, "type");
    if (!type || strcmp(type, "json_schema") != 0) {
        api_fail(k->f->error, 400, "unsupported_value", param, "%s.type is not json_schema", param);
    } else if (!body_member(format, "schema")) {
        api_fail(k->f->error, 400, "missing_required_parameter", param, "%s.schema is missing", param);
    } else if (k->wish.form.kind == KAKEYA_GRAMMAR_TEXT) { /* the first of the two counts */
        openai_take_schema(body_member(format, "schema"), "output_config.format", &k->wish.form, k->f->error);
    }
}

/* How much trouble is to be taken, also without a thought: Claude Code names an effort in every request, and says
 * nothing of thinking where its user has turned that off. The format has no levels, so it changes nothing. */
static void read_output(reader *k) {
    fields inner;
    fields_begin(&inner, fields_object(k->f, "output_config"), "output_config.", k->f->error);
    const char *effort = fields_string(&inner, "effort", NULL);
    read_format(k, fields_object(&inner, "format"), "output_config.format");
    end_fields(k, &inner);
    read_format(k, fields_object(k->f, "output_format"), "output_format");
    if (effort && openai_effort(effort) < 0)
        api_fail(k->f->error, 400, "invalid_value", "output_config.effort", "output_config.effort is %.32s", effort);
}

/* The answer goes on in the middle of a text: there is no place for a thought, a format or a call. */
static void check_continuation(reader *k) {
    const char *param = k->asked                                      ? k->asked
                        : k->wish.form.kind != KAKEYA_GRAMMAR_TEXT    ? "output_config.format"
                        : k->wish.form.calls == KAKEYA_CALLS_REQUIRED ? "tool_choice"
                                                                      : NULL;
    if (k->shape.continues && param)
        api_fail(k->f->error, 400, "invalid_value", param,
                 "%s: the answer continues the assistant's last message, which leaves no place for it", param);
}

/* ------------------------------------------------------------------------------------------------------------ fields
 */

static void read_sampling(reader *k, bool counting) {
    fields *f = k->f;
    answer_options *o = &k->r->options;
    openai_read_sampling(k->call, f, o);
    openai_read_stops(k->call, f, "stop_sequences", o);
    if (o->choices != 1)
        api_fail(f->error, 400, "unsupported_parameter", "n", "n is not supported here: a message is one answer");
    o->choices = 1;
    o->token_ids = false;
    o->id_prefix = "toolu_";
    k->r->stream = fields_bool(f, "stream", false);
    if (!counting && !fields_get(f, "max_tokens"))
        api_fail(f->error, 400, "missing_required_parameter", "max_tokens", "max_tokens is missing");
    o->max_tokens = (int)fields_count(f, "max_tokens", 1, 1 << 30, 0);
}

/* Where no key says who asks, the client may say for whom: it is fairness that depends on it, and nothing else. */
static void read_metadata(reader *k) {
    fields inner;
    fields_begin(&inner, fields_object(k->f, "metadata"), "metadata.", k->f->error);
    const char *user = fields_string(&inner, "user_id", NULL);
    end_fields(k, &inner);
    if (user && user[0] && !auth_needs_key(k->call->server->auth))
        k->call->client = hash_fnv1a(HASH_FNV1A_START, user, strlen(user));
}

/* Errors of this API have no field for the parameter: the message begins with it. */
static void name_parameter(api_error *error) {
    char text[sizeof error->message];
    if (strncmp(error->message, error->param, strcspn(error->param, ".[")) == 0) return;
    snprintf(text, sizeof text, "%.150s: %.480s", error->param, error->message);
    memcpy(error->message, text, sizeof text);
}

bool anthropic_request_read(call *c, bool counting, anthropic_request *r, api_error *error) {
    fields f;
    if (!call_body(c, error)) return false;
    reader k = {.call = c, .f = &f, .r = r, .shape = {.is_question = !counting}};
    chat_wish_init(&k.wish);
    fields_begin(&f, c->body, "", error);
    r->model = openai_read_model(c, &f);
    read_sampling(&k, counting);
    images_read_budget(c, &f);
    read_conversation(&k);
    read_tools(&k);
    read_tool_choice(&k);
    read_thinking(&k);
    read_output(&k);
    check_continuation(&k);
    read_metadata(&k);
    if (fields_get(&f, "cache_control")) k.cache_control = true;
    if (k.cache_control) ignored_add(&c->ignored, "cache_control");
    end_fields(&k, &f);
    openai_settle(c, &k.wish, &k.shape, counting ? NULL : &r->options, error);
    cJSON_Delete(k.tools);
    free(k.tool_places);
    if (error->status == 0 && openai_render_chat(c, &k.shape, &r->options, error)) return true;
    name_parameter(error);
    return false;
}
