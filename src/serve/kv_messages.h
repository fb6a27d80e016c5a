/* K/V events as vLLM's consumers read them: msgpack, [timestamp, [event], rank], each event a map with a `type`. */
#ifndef KAKEYA_SERVE_KV_MESSAGES_H
#define KAKEYA_SERVE_KV_MESSAGES_H

#include "serve/kv_blocks.h"
#include "serve/text.h"

/* Adds the bytes of a batch of one event. seconds: real time. */
void kv_message_write(text_buffer *out, const kv_block_event *event, double seconds);

#endif
