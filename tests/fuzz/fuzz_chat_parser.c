/* Any tokens as an answer: the events do not depend on how the stream is cut, every text is valid UTF-8, the arguments
 * of every call that ends are a JSON object, and an answer without control tokens is its text.
 *
 * Input: one byte of options, then one byte a token: printable ASCII and the line end are pieces of their own, 0xF5 to
 * 0xFF are control tokens, all others are byte pieces. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat_json.h"
#include "text/chat_parser.h"
#include "text/detokenizer.h"
#include "text/utf8.h"
#include "unit/tokenizer_form.h"

enum { FIRST_CONTROL = 0xF5, CONTROL_ID = 256, CONTROLS = 11, LINE_ID = CONTROL_ID + CONTROLS, SPACE_ID };

static const char *const controls[CONTROLS] = {
    "<|channel>", "<channel|>", "<|tool_call>",     "<tool_call|>", "<|\\\"|>",  "<|turn>",
    "<turn|>",    "<eos>",      "<|tool_response>", "<|tool>",      "<|think|>",
};

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"n\":{\"type\":[\"integer\",\"null\"]},\"r\":{\"$ref\":\"#\"},"
    "\"l\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
    "\"o\":{\"additionalProperties\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"boolean\"}]}}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"fg\"}},{\"function\":{}},3]";

static tokenizer *shared_tokenizer(void) {
    static tokenizer *t;
    if (t) return t;
    char *added = NULL, *vocab = NULL;
    size_t added_bytes, vocab_bytes;
    FILE *out = open_memstream(&added, &added_bytes);
    if (!out) abort();
    for (int i = 0; i < CONTROLS; i++) {
        fprintf(out, "%c{\"id\":%d,\"content\":\"%s\",\"special\":true}", i ? ',' : '[', CONTROL_ID + i, controls[i]);
    }
    fputs("]", out);
    fclose(out);
    out = open_memstream(&vocab, &vocab_bytes);
    if (!out) abort();
    fprintf(out, "\"\\n\":%d,\"\xE2\x96\x81\":%d", LINE_ID, SPACE_ID);
    for (int c = 0x21; c < 0x7F; c++) {
        fprintf(out, ",\"%s%c\":%d", c == '"' || c == '\\' ? "\\" : "", c, SPACE_ID + c - ' ');
    }
    fclose(out);
    tokenizer_form form = default_form;
    form.added_tokens = added;
    form.vocab = vocab;
    form.merges = "[]";
    if (open_form(&form, &t, NULL)) abort();
    free(added);
    free(vocab);
    return t;
}

static int32_t id_of(uint8_t byte) {
    if (byte >= FIRST_CONTROL) return CONTROL_ID + (byte - FIRST_CONTROL);
    if (byte == '\n') return LINE_ID;
    return byte >= ' ' && byte < 0x7F ? SPACE_ID + byte - ' ' : byte;
}

/* All events as one text: neighbours of one kind are joined, kinds are marked by bytes that no UTF-8 has. */
typedef struct heard {
    char *text;
    size_t bytes, capacity, calls;
    int last;
    size_t arguments; /* where those of the open call begin */
    bool in_call;
} heard;

static void append(heard *h, const char *text, size_t bytes) {
    if (h->bytes + bytes > h->capacity) {
        h->capacity = 2 * (h->bytes + bytes);
        h->text = realloc(h->text, h->capacity);
        if (!h->text) abort();
    }
    if (bytes) memcpy(h->text + h->bytes, text, bytes);
    h->bytes += bytes;
}

static bool hear(void *user, const chat_event *event) {
    heard *h = user;
    char mark = (char)(0xF8 + (int)event->kind);
    if (event->kind == CHAT_EVENT_CALL_BEGIN) {
        if (event->call != h->calls++ || strlen(event->id) != 29) abort();
        append(h, &mark, 1);
        append(h, event->name, strlen(event->name));
        append(h, &mark, 1);
        h->arguments = h->bytes;
        h->in_call = true;
    } else if (event->kind == CHAT_EVENT_CALL_END) {
        cJSON *json;
        if (!h->in_call || event->call + 1 != h->calls) abort();
        if (chat_json_parse("arguments", h->text + h->arguments, h->bytes - h->arguments, &json, NULL)) abort();
        if (!cJSON_IsObject(json)) abort();
        cJSON_Delete(json);
        append(h, &mark, 1);
        h->in_call = false;
    } else {
        if (event->bytes == 0 || utf8_valid_bytes(event->text, event->bytes) != event->bytes) abort();
        if ((event->kind == CHAT_EVENT_CALL_ARGUMENTS) != h->in_call) abort();
        if (!h->in_call && h->last != (int)event->kind) append(h, &mark, 1);
        append(h, event->text, event->bytes);
    }
    h->last = (int)event->kind;
    return true;
}

static heard parse(const tokenizer *t, const int32_t *ids, size_t n, uint8_t flags, bool single) {
    heard h = {.last = -1};
    size_t n_prompt = (flags & 0x10) && n ? n / 3 : 0;
    chat_parser_options options = {
        .tools = flags & 1 ? tools : NULL,
        .without_reasoning = (flags & 2) != 0,
        .marked_calls_only = (flags & 4) != 0,
        .prompt = ids,
        .n_prompt = n_prompt,
        .on_event = hear,
        .user = &h,
    };
    chat_parser *parser;
    if (chat_parser_open(t, &options, &parser, NULL)) abort();
    size_t block = single ? 1 : 1 + (flags >> 5);
    for (size_t at = n_prompt; at < n; at += block, block = single ? 1 : block * 5 % 11 + 1) {
        if (block > n - at) block = n - at;
        if (chat_parser_feed(parser, ids + at, block, NULL)) abort();
    }
    bool stop = (flags & 8) != 0;
    if (chat_parser_finish(parser, stop ? CHAT_ENDING_STOP : CHAT_ENDING_CUT, NULL)) abort();
    chat_parser_counts counts = chat_parser_count(parser);
    if (counts.calls != h.calls || counts.complete_calls > counts.calls) abort();
    if (stop && counts.complete_calls != counts.calls) abort();
    if (counts.reasoning_tokens > n - n_prompt) abort();
    chat_parser_close(parser);
    return h;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const tokenizer *t = shared_tokenizer();
    if (size == 0) return 0;
    size_t n = size - 1;
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids) abort();
    bool any_control = false;
    for (size_t i = 0; i < n; i++) {
        ids[i] = id_of(data[i + 1]);
        any_control = any_control || tokenizer_is_special(t, ids[i]);
    }
    heard single = parse(t, ids, n, data[0], true), blocks = parse(t, ids, n, data[0], false);
    if (single.bytes != blocks.bytes || (single.bytes && memcmp(single.text, blocks.text, single.bytes) != 0)) abort();
    if (!any_control && (data[0] & 0x11) == 0) {
        char *text;
        size_t bytes;
        if (detokenize(t, ids, n, true, &text, &bytes, NULL)) abort();
        if (single.bytes != bytes + (bytes > 0) || (bytes && memcmp(single.text + 1, text, bytes) != 0)) abort();
        free(text);
    }
    free(single.text);
    free(blocks.text);
    free(ids);
    return 0;
}
