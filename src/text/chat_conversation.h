/* A conversation as it is put together: messages whose lists grow, and the texts that were made for them. Other texts
 * are borrowed. */
#ifndef KAKEYA_TEXT_CHAT_CONVERSATION_H
#define KAKEYA_TEXT_CHAT_CONVERSATION_H

#include "kakeya.h"

typedef struct chat_conversation {
    kakeya_chat_message *messages;
    size_t n, room;
    struct chat_chunk *chunks;
    bool failed; /* out of memory: later additions do nothing */
} chat_conversation;

void chat_conversation_free(chat_conversation *c);

/* Memory that lives as long as the conversation; NULL: it has failed. */
void *chat_take(chat_conversation *c, size_t bytes);
/* A copy of a text, with a NUL behind it. */
const char *chat_keep(chat_conversation *c, const char *text, size_t bytes);
/* Texts between which `between` stands where there are two; NULL where both are. */
const char *chat_join(chat_conversation *c, const char *first, const char *between, const char *second);

/* The message is the conversation's until the next one is added. NULL: it has failed; what adds to messages takes that.
 */
kakeya_chat_message *chat_add(chat_conversation *c, const char *role);
void chat_add_copy(chat_conversation *c, const kakeya_chat_message *message);
/* A part behind the content, which becomes a list where it was a text. The part is the conversation's. */
kakeya_chat_part *chat_add_part(chat_conversation *c, kakeya_chat_message *message, kakeya_chat_part part);
void chat_add_call(chat_conversation *c, kakeya_chat_message *message, kakeya_chat_call call);
void chat_add_response(chat_conversation *c, kakeya_chat_message *message, kakeya_chat_response response);

/* Part i of a message of a conversation, which may be changed. */
kakeya_chat_part *chat_own_part(const kakeya_chat_message *message, size_t i);

/* The content of any message, part by part. */
static inline size_t chat_n_parts(const kakeya_chat_message *m) { return m->content ? 1 : m->parts ? m->n_parts : 0; }
static inline kakeya_chat_part chat_part(const kakeya_chat_message *m, size_t i) {
    return m->content ? (kakeya_chat_part){.text = m->content} : m->parts[i];
}

bool chat_is_role(const kakeya_chat_message *message, const char *role);
bool chat_is_model(const kakeya_chat_message *message); /* "assistant" or "model" */

#endif
