/* What was sampled, found again by what clients send back of it. A client returns texts and tool calls, not tokens;
 * rendered anew they need not become the same tokens, and everything behind the difference would be computed again. An
 * answer is found by the ids of its calls, or by the conversation in front of it; in either case its names, arguments
 * (compared as JSON values) and content (but for white space around it) must be what was given out. What a client has
 * edited is not found.
 *
 * The least lately used answers are forgotten first. All functions may be called by several threads at a time. */
#ifndef KAKEYA_SERVE_TURN_MEMORY_H
#define KAKEYA_SERVE_TURN_MEMORY_H

#include "text/chat_conversation.h"

typedef struct turn_memory turn_memory;

enum { TURN_MEMORY_ENTRIES = 100000 };
#define TURN_MEMORY_BYTES ((size_t)64 << 20)

/* At most so many answers and bytes. NULL when out of memory. */
turn_memory *turn_memory_open(size_t entries, size_t bytes);
void turn_memory_close(turn_memory *memory); /* NULL is fine */

/* Remembers the answer to a conversation of n_messages. answer: the assistant's message as it was given out: content,
 * calls with ids. ids[0..n): the prompt, whose first n_stable ids are the conversation, then the answer without its
 * stop token. Not for answers whose content was cut at a stop string, since their tokens say more. */
void turn_memory_put(turn_memory *memory, const kakeya_chat_message *messages, size_t n_messages,
                     const kakeya_chat_message *answer, const int32_t *ids, size_t n_stable, size_t n);

/* Gives the messages that are known the ids of their answers, which lie in the conversation, and takes them from the
 * others. How many are known; 0 where memory fails. */
size_t turn_memory_find(turn_memory *memory, chat_conversation *conversation);

/* The answers that lie in these ids, as the text of a JSON list (malloc'ed); NULL if there are none. It becomes the
 * member "turns" of the metadata of a session's file. */
char *turn_memory_export(turn_memory *memory, const int32_t *ids, size_t n);
/* Remembers them again, from such metadata. What is malformed is ignored. */
void turn_memory_import(turn_memory *memory, const char *metadata);

size_t turn_memory_entries(turn_memory *memory);

#endif
