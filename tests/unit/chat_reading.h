/* Conversations of tests: read out of JSON, and told as JSON. */
#ifndef TEST_CHAT_READING_H
#define TEST_CHAT_READING_H

#include <stdlib.h>
#include <string.h>

#include "text/chat_request.h"

/* A request as the library reads it. */
typedef struct read_chat {
    cJSON *root;
    const cJSON *tools;
    chat_conversation c;
    size_t place_bytes;
} read_chat;

static inline kakeya_status read_chat_open(const char *json, size_t bytes, read_chat *out, kakeya_error *error) {
    const chat_media none = {0};
    const cJSON *messages;
    *out = (read_chat){0};
    kakeya_status status = chat_request_parse(json, bytes, &out->root, &messages, &out->tools, error);
    return status ? status : chat_request_read(messages, &none, &out->c, &out->place_bytes, error);
}

static inline void read_chat_close(read_chat *r) {
    chat_conversation_free(&r->c);
    cJSON_Delete(r->root);
    *r = (read_chat){0};
}

/* A message in the form of chat completions: role, tool_call_id, reasoning_content, content, tool_calls. */
static inline cJSON *chat_as_json(const kakeya_chat_message *m) {
    static const char *const media[] = {"text", "image", "audio"};
    cJSON *out = cJSON_CreateObject(), *list;
    cJSON_AddStringToObject(out, "role", m->role ? m->role : "?");
    if (m->call_id) cJSON_AddStringToObject(out, "tool_call_id", m->call_id);
    if (m->reasoning) cJSON_AddStringToObject(out, "reasoning_content", m->reasoning);
    if (m->content) cJSON_AddStringToObject(out, "content", m->content);
    list = !m->content && m->parts ? cJSON_AddArrayToObject(out, "content") : NULL;
    for (size_t i = 0; list && i < m->n_parts; i++) {
        cJSON *part = cJSON_CreateObject();
        cJSON_AddItemToArray(list, part);
        cJSON_AddStringToObject(part, "type", media[m->parts[i].type]);
        if (m->parts[i].text) cJSON_AddStringToObject(part, "text", m->parts[i].text);
    }
    list = m->n_calls ? cJSON_AddArrayToObject(out, "tool_calls") : NULL;
    for (size_t i = 0; i < m->n_calls; i++) {
        cJSON *call = cJSON_CreateObject(), *function;
        cJSON_AddItemToArray(list, call);
        if (m->calls[i].id) cJSON_AddStringToObject(call, "id", m->calls[i].id);
        cJSON_AddStringToObject(call, "type", "function");
        function = cJSON_AddObjectToObject(call, "function");
        cJSON_AddStringToObject(function, "name", m->calls[i].name);
        cJSON_AddStringToObject(function, "arguments", m->calls[i].arguments ? m->calls[i].arguments : "");
    }
    return out;
}

static inline cJSON *chats_as_json(const chat_conversation *c) {
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < c->n; i++) cJSON_AddItemToArray(list, chat_as_json(&c->messages[i]));
    return list;
}

#endif
