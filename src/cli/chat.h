/* kakeya run without a prompt: a conversation on a terminal. Every turn renders the whole conversation and synchronises
 * the session with it, which computes only what the session does not hold yet. */
#ifndef KAKEYA_CLI_CHAT_H
#define KAKEYA_CLI_CHAT_H

#include "cli/answer.h"

/* system: the system message, or NULL; image_budget: of pictures that name none, 0: the model's; session_options: those
 * that the session was opened with. Returns an exit status.
 */
int chat_run(const answer_options *options, const char *system, int image_budget, kakeya_engine *engine,
             const kakeya_session_options *session_options, kakeya_session *session);

#endif
