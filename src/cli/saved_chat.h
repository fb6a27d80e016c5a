/* A conversation, and one in a file: its messages, its pictures and sounds and the session's memory, so that going
 * on computes only what is new. */
#ifndef KAKEYA_CLI_SAVED_CHAT_H
#define KAKEYA_CLI_SAVED_CHAT_H

#include "cli/images.h"

/* Stands before the text of a user's message. */
typedef struct conversation_medium {
    size_t message;
    cli_medium medium;
} conversation_medium;

/* Messages whose contents are malloc'ed; roles are literals. */
typedef struct conversation {
    kakeya_message *messages;
    size_t n, capacity;
    conversation_medium *media; /* in the order of messages; those of message n wait for it */
    size_t n_media;
} conversation;

/* Pictures and sounds that wait for a message are dropped, too. */
void conversation_cut(conversation *c, size_t n);
/* Gives the next message a picture or a sound, which is the conversation's from then on. False when out of memory. */
bool conversation_add_medium(conversation *c, const cli_medium *medium);
/* As messages in OpenAI's form, a picture as a part of type "image", a sound as one of type "audio"; freed with
 * cJSON_free. NULL when out of memory. */
char *conversation_print(const conversation *c);
/* Takes a copy of the content. role: "system", "user" or "model". False when out of memory. */
bool conversation_add(conversation *c, const char *role, const char *content);
void conversation_free(conversation *c);

/* Replaces the file as a whole: it is never seen half written. */
kakeya_status saved_chat_write(const char *path, const conversation *c, const kakeya_session *session,
                               kakeya_error *error);

/* Reads the messages into *c, which is left as it was on failure, and the memory into the session. Where only the
 * memory does not fit (it was saved under another model or policy, or is damaged), the session is left as it was and
 * *note says why: the next turn then computes the conversation anew. note->status is KAKEYA_OK otherwise. */
kakeya_status saved_chat_read(const char *path, conversation *c, kakeya_session *session, kakeya_error *note,
                              kakeya_error *error);

#endif
