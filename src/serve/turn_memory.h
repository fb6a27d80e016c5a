/* What was sampled, found again by what clients send back of it. A client returns texts and tool calls, not tokens;
 * rendered anew they need not become the same tokens, and everything behind the difference would be computed again. An
 * answer is found by the ids of its calls, or by the conversation in front of it; in either case its names, arguments
 * (compared as JSON values) and content (but for white space around it) must be what was given out. What a client has
 * edited is not found.
 *
 * The least lately used answers are forgotten first. All functions may be called by several threads at a time. */
#ifndef KAKEYA_SERVE_TURN_MEMORY_H
#define KAKEYA_SERVE_TURN_MEMORY_H

#include <cjson/cJSON.h>

#include "kakeya.h"

typedef struct turn_memory turn_memory;

enum { TURN_MEMORY_ENTRIES = 100000 };
#define TURN_MEMORY_BYTES ((size_t)64 << 20)

/* At most so many answers and bytes. NULL when out of memory. */
turn_memory *turn_memory_open(size_t entries, size_t bytes);
void turn_memory_close(turn_memory *memory); /* NULL is fine */

/* Remembers the answer to a conversation. messages: those of the request, as kakeya_chat_tokens takes them; the first
 * n_messages of them are the conversation. answer: the assistant's message as it was given out, in the same form:
 * content, tool_calls with ids. ids[0..n): the prompt, whose first n_stable ids are the conversation, then the answer
 * without its stop token. Not for answers whose content was cut at a stop string, since their tokens say more. */
void turn_memory_put(turn_memory *memory, const cJSON *messages, size_t n_messages, const cJSON *answer,
                     const int32_t *ids, size_t n_stable, size_t n);

/* The runs of all messages that are known, for kakeya_chat_options; *runs is freed by kakeya_free and holds the ids.
 * NULL and 0 where there are none. */
void turn_memory_find(turn_memory *memory, const cJSON *messages, kakeya_chat_run **runs, size_t *n_runs);

/* The answers that lie in these ids, as the text of a JSON list (malloc'ed); NULL if there are none. It becomes the
 * member "turns" of the metadata of a session's file. */
char *turn_memory_export(turn_memory *memory, const int32_t *ids, size_t n);
/* Remembers them again, from such metadata. What is malformed is ignored. */
void turn_memory_import(turn_memory *memory, const char *metadata);

size_t turn_memory_entries(turn_memory *memory);

#endif
