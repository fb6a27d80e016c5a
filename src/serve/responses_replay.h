/* The events of a response that has ended, made again out of what is stored of it. */
#ifndef KAKEYA_SERVE_RESPONSES_REPLAY_H
#define KAKEYA_SERVE_RESPONSES_REPLAY_H

#include <cjson/cJSON.h>

#include "serve/text.h"

/* The stream that the response would be told in, texts in one piece: server-sent events, from the one behind number
 * `after` on (-1: all). False: out of memory. */
bool responses_replay(const cJSON *response, int64_t after, text_buffer *out);

#endif
