#include "serve/responses_output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/custom_tools.h"
#include "serve/openai_request.h"

const response_text_form response_text_forms[] = {
    [RESPONSE_ANSWER] = {"output_text",
                         "content_index",
                         {"response.content_part.added", "response.output_text.delta", "response.output_text.done",
                          "response.content_part.done"}},
    [RESPONSE_REASONING] = {"reasoning_text",
                            "content_index",
                            {"response.content_part.added", "response.reasoning_text.delta",
                             "response.reasoning_text.done", "response.content_part.done"}},
    [RESPONSE_SUMMARY] = {"summary_text",
                          "summary_index",
                          {"response.reasoning_summary_part.added", "response.reasoning_summary_text.delta",
                           "response.reasoning_summary_text.done", "response.reasoning_summary_part.done"}},
};

const response_call_form response_call_forms[] = {
    {"function_call", "arguments", "response.function_call_arguments.delta", "response.function_call_arguments.done"},
    {"custom_tool_call", "input", "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"},
};

void responses_output_free(responses_output *o) {
    text_free(&o->events);
    text_free(&o->items);
    text_free(&o->text);
    text_free(&o->logprob_entries);
    free(o->call_id);
    free(o->name);
}

bool responses_event_begin(responses_output *o, const char *type) {
    if (!o->streams) return false;
    text_format(&o->events, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%zu", type, type, o->sequence++);
    return true;
}

void responses_event_end(responses_output *o) { text_add(&o->events, "}\n\n"); }

static void add_text(text_buffer *out, const text_buffer *text) {
    text_json(out, text->data ? text->data : "", text->n);
    out->failed |= text->failed;
}

/* ----------------------------------------------------------------------------------------------------------- items */

static bool is_custom(const responses_output *o) { return o->tool && o->tool->custom; }

static void add_name(const responses_output *o, text_buffer *out) {
    text_add(out, ",\"name\":");
    text_json_string(out, o->tool ? o->tool->name : o->name);
    if (!o->tool || !o->tool->space) return;
    text_add(out, ",\"namespace\":");
    text_json_string(out, o->tool->space);
}

static const response_call_form *call_form(const responses_output *o) { return &response_call_forms[is_custom(o)]; }

static const response_text_form *text_form(const responses_output *o) {
    return &response_text_forms[o->kind == OUTPUT_MESSAGE ? RESPONSE_ANSWER
                                : o->summary              ? RESPONSE_SUMMARY
                                                          : RESPONSE_REASONING];
}

/* Whether the text of the item stands in a part of its content, and not in its summary. */
static bool in_content(const responses_output *o) { return o->kind == OUTPUT_MESSAGE || !o->summary; }

static void part_json(const responses_output *o, text_buffer *out, bool whole) {
    text_format(out, "{\"type\":\"%s\",\"text\":", text_form(o)->part);
    if (whole) {
        add_text(out, &o->text);
    } else {
        text_add(out, "\"\"");
    }
    if (o->kind == OUTPUT_MESSAGE)
        text_format(out, ",\"annotations\":[],\"logprobs\":[%s]",
                    whole && o->logprob_entries.data ? o->logprob_entries.data : "");
    text_add(out, "}");
    out->failed |= o->logprob_entries.failed;
}

/* status: "in_progress": nothing of its text is in it yet. */
static void item_json(const responses_output *o, text_buffer *out, const char *status) {
    bool whole = strcmp(status, "in_progress") != 0;
    text_format(out, "{\"id\":\"%s\",\"type\":\"%s\",\"status\":\"%s\"", o->id,
                o->kind == OUTPUT_REASONING ? "reasoning"
                : o->kind == OUTPUT_MESSAGE ? "message"
                                            : call_form(o)->type,
                status);
    if (o->kind == OUTPUT_CALL) {
        text_add(out, ",\"call_id\":");
        text_json_string(out, o->call_id);
        add_name(o, out);
        text_format(out, ",\"%s\":", call_form(o)->text);
        if (whole) {
            add_text(out, &o->text);
        } else {
            text_add(out, "\"\"");
        }
    } else {
        text_add(out, o->kind == OUTPUT_MESSAGE ? ",\"role\":\"assistant\"" : "");
        if (o->kind == OUTPUT_REASONING) {
            text_add(out, ",\"summary\":[");
            if (whole && o->summary) part_json(o, out, true);
            text_add(out, "]");
        }
        text_add(out, ",\"content\":[");
        if (whole && in_content(o)) part_json(o, out, true);
        text_add(out, "]");
        if (o->kind == OUTPUT_REASONING) {
            text_add(out, ",\"encrypted_content\":");
            if (whole && o->seal) {
                text_add(out, "\"");
                reasoning_seal_close(o->seal, o->text.data ? o->text.data : "", o->text.n, out);
                text_add(out, "\"");
            } else {
                text_add(out, "null");
            }
        }
    }
    text_add(out, "}");
}

/* ----------------------------------------------------------------------------------------------------------- events */

/* An event about the open item. */
static bool item_event(responses_output *o, const char *type) {
    if (!responses_event_begin(o, type)) return false;
    text_format(&o->events, ",\"item_id\":\"%s\",\"output_index\":%zu", o->id, o->n_items);
    return true;
}

/* An event about its part: of the content or of the summary. */
static bool part_event(responses_output *o, response_text_event event) {
    if (!item_event(o, text_form(o)->events[event])) return false;
    text_format(&o->events, ",\"%s\":0", text_form(o)->index);
    return true;
}

static void output_event(responses_output *o, const char *type, const char *item, size_t bytes) {
    if (!responses_event_begin(o, type)) return;
    text_format(&o->events, ",\"output_index\":%zu,\"item\":", o->n_items);
    text_bytes(&o->events, item, bytes);
    responses_event_end(o);
}

static void part_border(responses_output *o, response_text_event event) {
    if (!part_event(o, event)) return;
    text_add(&o->events, ",\"part\":");
    part_json(o, &o->events, event == PART_DONE);
    responses_event_end(o);
}

static void open_item(responses_output *o, output_kind kind) {
    static const char *const prefixes[] = {"", "rs_", "msg_", "fc_"};
    char random[RANDOM_ID_BYTES];
    o->kind = kind;
    random_id(random);
    snprintf(o->id, sizeof o->id, "%s%s", is_custom(o) ? "ctc_" : prefixes[kind], random);
    if (!o->streams) return;
    text_buffer item = {0};
    item_json(o, &item, "in_progress");
    o->events.failed |= item.failed;
    output_event(o, "response.output_item.added", item.data ? item.data : "", item.n);
    text_free(&item);
    if (kind != OUTPUT_CALL) part_border(o, PART_ADDED);
}

static void close_text(responses_output *o) {
    if (part_event(o, TEXT_DONE)) {
        text_add(&o->events, ",\"text\":");
        add_text(&o->events, &o->text);
        if (o->kind == OUTPUT_MESSAGE)
            text_format(&o->events, ",\"logprobs\":[%s]", o->logprob_entries.data ? o->logprob_entries.data : "");
        responses_event_end(o);
    }
    part_border(o, PART_DONE);
}

/* The text of a custom tool is known once its arguments are complete. */
static void close_custom(responses_output *o) {
    size_t bytes;
    char *input = custom_tool_input(o->text.data ? o->text.data : "", o->text.n, &bytes);
    text_clear(&o->text);
    if (input) text_bytes(&o->text, input, bytes);
    o->text.failed |= !input;
    free(input);
    if (o->text.n && item_event(o, call_form(o)->delta)) {
        text_add(&o->events, ",\"delta\":");
        add_text(&o->events, &o->text);
        responses_event_end(o);
    }
}

static void close_call(responses_output *o) {
    if (is_custom(o)) close_custom(o);
    if (!item_event(o, call_form(o)->done)) return;
    if (!is_custom(o)) add_name(o, &o->events);
    text_format(&o->events, ",\"%s\":", call_form(o)->text);
    add_text(&o->events, &o->text);
    responses_event_end(o);
}

void responses_output_close(responses_output *o, bool complete) {
    if (o->kind == OUTPUT_NOTHING) return;
    if (o->kind == OUTPUT_CALL) {
        close_call(o);
    } else {
        close_text(o);
    }
    if (o->n_items) text_add(&o->items, ",");
    size_t from = o->items.n;
    item_json(o, &o->items, complete ? "completed" : "incomplete");
    if (!o->items.failed) output_event(o, "response.output_item.done", o->items.data + from, o->items.n - from);
    o->n_items++;
    o->kind = OUTPUT_NOTHING;
    text_clear(&o->text);
    text_clear(&o->logprob_entries);
    free(o->call_id);
    free(o->name);
    o->call_id = o->name = NULL;
    o->tool = NULL;
}

static void add_delta(responses_output *o, output_kind kind, const answer_event *e) {
    if (o->kind != kind) {
        responses_output_close(o, true);
        open_item(o, kind);
    }
    text_buffer entries = {0};
    if (o->logprobs && e->n_logprobs) openai_chat_logprobs(&entries, o->tokenizer, e->logprobs, e->n_logprobs);
    text_bytes(&o->text, e->text, e->text_bytes);
    if (entries.n) {
        if (o->logprob_entries.n) text_add(&o->logprob_entries, ",");
        text_bytes(&o->logprob_entries, entries.data, entries.n);
    }
    o->items.failed |= entries.failed;
    if (part_event(o, TEXT_DELTA)) {
        text_add(&o->events, ",\"delta\":");
        text_json(&o->events, e->text, e->text_bytes);
        if (kind == OUTPUT_MESSAGE) text_format(&o->events, ",\"logprobs\":[%s]", entries.data ? entries.data : "");
        responses_event_end(o);
    }
    text_free(&entries);
}

static void begin_call(responses_output *o, const answer_event *e) {
    responses_output_close(o, true);
    o->call_id = strdup(e->id);
    o->name = strdup(e->name);
    o->items.failed |= !o->call_id || !o->name;
    o->tool = response_tools_find(o->tools, e->name);
    open_item(o, OUTPUT_CALL);
}

static void add_arguments(responses_output *o, const answer_event *e) {
    text_bytes(&o->text, e->text, e->text_bytes);
    if (is_custom(o) || !item_event(o, call_form(o)->delta)) return;
    text_add(&o->events, ",\"delta\":");
    text_json(&o->events, e->text, e->text_bytes);
    responses_event_end(o);
}

void responses_output_event(responses_output *o, const answer_event *e) {
    switch (e->type) {
    case ANSWER_CONTENT:
        add_delta(o, OUTPUT_MESSAGE, e);
        break;
    case ANSWER_REASONING:
        add_delta(o, OUTPUT_REASONING, e);
        break;
    case ANSWER_CALL_BEGIN:
        begin_call(o, e);
        break;
    case ANSWER_CALL_ARGUMENTS:
        add_arguments(o, e);
        break;
    case ANSWER_CALL_END:
        responses_output_close(o, true);
        break;
    default:
        break;
    }
}
