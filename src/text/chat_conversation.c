#include "text/chat_conversation.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

typedef struct chat_chunk {
    struct chat_chunk *next;
    size_t used, room;
    alignas(max_align_t) unsigned char bytes[];
} chat_chunk;

void chat_conversation_free(chat_conversation *c) {
    for (chat_chunk *chunk = c->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(c->messages);
    *c = (chat_conversation){0};
}

void *chat_take(chat_conversation *c, size_t bytes) {
    enum { LEAST = 4096, ALIGNMENT = alignof(max_align_t) };
    if (c->failed) return NULL;
    chat_chunk *chunk = c->chunks;
    if (!chunk || chunk->room - chunk->used < bytes) {
        const size_t room = bytes > LEAST ? bytes : LEAST;
        chunk = malloc(sizeof *chunk + room);
        if (!chunk) {
            c->failed = true;
            return NULL;
        }
        *chunk = (chat_chunk){.next = c->chunks, .room = room};
        c->chunks = chunk;
    }
    void *taken = chunk->bytes + chunk->used;
    const size_t aligned = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, left = chunk->room - chunk->used;
    chunk->used += aligned < left ? aligned : left;
    return taken;
}

const char *chat_keep(chat_conversation *c, const char *text, size_t bytes) {
    char *copy = chat_take(c, bytes + 1);
    if (!copy) return NULL;
    if (bytes) memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return copy;
}

const char *chat_join(chat_conversation *c, const char *first, const char *between, const char *second) {
    if (!first || !second) return first ? first : second;
    char *all = chat_take(c, strlen(first) + strlen(between) + strlen(second) + 1);
    if (all) stpcpy(stpcpy(stpcpy(all, first), between), second);
    return all;
}

/* ------------------------------------------------------------------------------------------------------- messages */

kakeya_chat_message *chat_add(chat_conversation *c, const char *role) {
    kakeya_chat_message message;
    KAKEYA_INIT(&message);
    message.role = role;
    chat_add_copy(c, &message);
    return c->failed ? NULL : &c->messages[c->n - 1];
}

void chat_add_copy(chat_conversation *c, const kakeya_chat_message *message) {
    if (c->failed) return;
    if (c->n == c->room) {
        const size_t room = c->room ? 2 * c->room : 16;
        kakeya_chat_message *grown = realloc(c->messages, room * sizeof *grown);
        if (!grown) {
            c->failed = true;
            return;
        }
        c->messages = grown;
        c->room = room;
    }
    c->messages[c->n++] = *message;
}

/* A list of n items that has room for one more, with the items: it has grown where n is a power of two, or 0. */
static void *grow(chat_conversation *c, const void *list, size_t n, size_t item_bytes) {
    if (n & (n - 1)) return (void *)(uintptr_t)list;
    void *grown = chat_take(c, (n ? 2 * n : 1) * item_bytes);
    if (grown && n) memcpy(grown, list, n * item_bytes);
    return grown;
}

kakeya_chat_part *chat_add_part(chat_conversation *c, kakeya_chat_message *m, kakeya_chat_part part) {
    if (!m) return NULL;
    const char *text = m->content;
    m->content = NULL;
    if (text) (void)chat_add_part(c, m, (kakeya_chat_part){.text = text});
    kakeya_chat_part *parts = grow(c, m->parts, m->n_parts, sizeof part);
    if (!parts) return NULL;
    m->parts = parts;
    parts[m->n_parts] = part;
    return &parts[m->n_parts++];
}

void chat_add_call(chat_conversation *c, kakeya_chat_message *m, kakeya_chat_call call) {
    kakeya_chat_call *calls = m ? grow(c, m->calls, m->n_calls, sizeof call) : NULL;
    if (!calls) return;
    m->calls = calls;
    calls[m->n_calls++] = call;
}

void chat_add_response(chat_conversation *c, kakeya_chat_message *m, kakeya_chat_response response) {
    kakeya_chat_response *responses = m ? grow(c, m->responses, m->n_responses, sizeof response) : NULL;
    if (!responses) return;
    m->responses = responses;
    responses[m->n_responses++] = response;
}

kakeya_chat_part *chat_own_part(const kakeya_chat_message *m, size_t i) {
    return (kakeya_chat_part *)(uintptr_t)&m->parts[i];
}

bool chat_is_role(const kakeya_chat_message *m, const char *role) { return m->role && strcmp(m->role, role) == 0; }

bool chat_is_model(const kakeya_chat_message *m) { return chat_is_role(m, "assistant") || chat_is_role(m, "model"); }
