#include "serve/anthropic_output.h"

#include <string.h>

void anthropic_output_free(anthropic_output *o) {
    text_free(&o->events);
    text_free(&o->blocks);
    text_free(&o->text);
}

/* ------------------------------------------------------------------------------------------------------------ events
 */

/* An event about the open block; its members and "}\n\n" follow. */
static void begin_event(anthropic_output *o, const char *type) {
    text_format(&o->events, "event: %s\ndata: {\"type\":\"%s\",\"index\":%zu", type, type, o->n_blocks);
}

static void delta_event(anthropic_output *o, const char *type, const char *member, const char *text, size_t bytes) {
    begin_event(o, "content_block_delta");
    text_format(&o->events, ",\"delta\":{\"type\":\"%s\",\"%s\":", type, member);
    text_json(&o->events, text, bytes);
    text_add(&o->events, "}}\n\n");
}

/* ------------------------------------------------------------------------------------------------------------ blocks
 */

/* A call that was cut short: what is complete of its arguments, as an object. Clients that read a stream keep the same.
 */
static void put_part(text_buffer *out, const char *json, size_t n) {
    enum { MOST_OPEN = 64 };
    char closing[MOST_OPEN];
    size_t depth = 0, good = 0; /* bytes up to which everything that is open could be closed */
    bool key = false;           /* the next text is one */
    for (size_t i = 0; i < n; i++) {
        char c = json[i];
        if (c == '"') {
            for (i++; i < n && json[i] != '"'; i++)
                if (json[i] == '\\') i++;
            if (i < n && !key) good = i + 1;
        } else if (c == '{' || c == '[') {
            if (depth == MOST_OPEN) break;
            closing[depth++] = c == '{' ? '}' : ']';
            key = c == '{';
            good = i + 1;
        } else if (c == '}' || c == ']') {
            if (depth) depth--;
            key = false;
            good = i + 1;
        } else if (c == ',') {
            key = depth && closing[depth - 1] == '}';
            good = i;
        } else if (c == ':') {
            key = false;
        } else if (!key) {
            good = i + 1; /* of a number or a word, which the parser of answers gives out whole */
        }
    }
    if (good == 0) {
        text_add(out, "{}");
        return;
    }
    text_bytes(out, json, good);
    while (depth) text_bytes(out, &closing[--depth], 1);
}

static void add_signature(const anthropic_output *o, text_buffer *out) {
    const char *text = o->text.data ? o->text.data : "";
    if (o->omit_thinking) {
        reasoning_seal_close(o->seal, text, o->text.n, out);
    } else {
        reasoning_seal_sign(o->seal, text, o->text.n, out);
    }
}

static void end_whole(anthropic_output *o, bool complete) {
    text_buffer *out = &o->blocks;
    const char *text = o->text.data ? o->text.data : "";
    if (o->kind == BLOCK_CALL) {
        if (!complete) {
            put_part(out, text, o->text.n);
        } else {
            text_bytes(out, text, o->text.n);
        }
    } else if (o->kind == BLOCK_TEXT) {
        text_json(out, text, o->text.n);
    } else {
        text_json(out, text, o->omit_thinking ? 0 : o->text.n);
        text_add(out, ",\"signature\":\"");
        add_signature(o, out);
        text_add(out, "\"");
    }
    text_add(out, "}");
    out->failed |= o->text.failed;
}

static void end_block(anthropic_output *o, bool complete) {
    if (o->kind == BLOCK_NONE) return;
    if (!o->streams) {
        end_whole(o, complete);
    } else {
        if (o->kind == BLOCK_THINKING) {
            text_buffer signature = {0};
            add_signature(o, &signature);
            delta_event(o, "signature_delta", "signature", signature.data ? signature.data : "", signature.n);
            o->events.failed |= signature.failed || o->text.failed;
            text_free(&signature);
        }
        begin_event(o, "content_block_stop");
        text_add(&o->events, "}\n\n");
    }
    o->n_blocks++;
    o->kind = BLOCK_NONE;
    text_clear(&o->text);
}

/* id and name: of a call. */
static void begin_block(anthropic_output *o, block_kind kind, const char *id, const char *name) {
    static const char *const types[] = {"", "thinking", "text", "tool_use"};
    text_buffer *out = o->streams ? &o->events : &o->blocks;
    end_block(o, false);
    o->kind = kind;
    if (o->streams) {
        begin_event(o, "content_block_start");
        text_add(out, ",\"content_block\":");
    } else if (o->n_blocks) {
        text_add(out, ",");
    }
    text_format(out, "{\"type\":\"%s\"", types[kind]);
    if (kind == BLOCK_CALL) {
        text_add(out, ",\"id\":");
        text_json_string(out, id);
        text_add(out, ",\"name\":");
        text_json_string(out, name);
    }
    static const char *const members[] = {"", "thinking", "text", "input"};
    static const char *const empty[] = {"", "\"\",\"signature\":\"\"", "\"\"", "{}"};
    text_format(out, ",\"%s\":", members[kind]);
    if (o->streams) text_format(out, "%s}}\n\n", empty[kind]);
}

static void add_delta(anthropic_output *o, block_kind kind, const answer_event *e) {
    if (o->kind != kind) begin_block(o, kind, NULL, NULL);
    if (!o->streams || kind == BLOCK_THINKING) text_bytes(&o->text, e->text, e->text_bytes);
    if (!o->streams || e->text_bytes == 0) return;
    if (kind == BLOCK_CALL) {
        delta_event(o, "input_json_delta", "partial_json", e->text, e->text_bytes);
    } else if (kind == BLOCK_TEXT) {
        delta_event(o, "text_delta", "text", e->text, e->text_bytes);
    } else if (!o->omit_thinking) {
        delta_event(o, "thinking_delta", "thinking", e->text, e->text_bytes);
    }
}

void anthropic_output_event(anthropic_output *o, const answer_event *e) {
    switch (e->type) {
    case ANSWER_CONTENT:
        add_delta(o, BLOCK_TEXT, e);
        break;
    case ANSWER_REASONING:
        add_delta(o, BLOCK_THINKING, e);
        break;
    case ANSWER_CALL_BEGIN:
        begin_block(o, BLOCK_CALL, e->id, e->name);
        break;
    case ANSWER_CALL_ARGUMENTS:
        add_delta(o, BLOCK_CALL, e);
        break;
    case ANSWER_CALL_END:
        end_block(o, true);
        break;
    default:
        break;
    }
}

void anthropic_output_end(anthropic_output *o) {
    if (o->kind == BLOCK_NONE && o->n_blocks == 0) begin_block(o, BLOCK_TEXT, NULL, NULL);
    end_block(o, false);
}
