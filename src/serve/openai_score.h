/* Log-probabilities of given tokens. */
#ifndef KAKEYA_SERVE_OPENAI_SCORE_H
#define KAKEYA_SERVE_OPENAI_SCORE_H

#include "serve/answer.h"

/* One entry for each of ids[0..n), the first with the value NaN: nothing predicts it. top: how many of the most likely
 * tokens each gets. *out is freed with free. On a worker thread. */
bool openai_score(server_context *server, const int32_t *ids, size_t n, int top, answer_logprob **out,
                  api_error *error);

#endif
