/* Many sessions on one backend: the blocks of all answers and the chunks of all prompts that are wanted are one forward
 * per iteration (docs/design/scheduling.md). One thread at a time computes: a caller that waits, for all, until its own
 * request is done; or a thread of the scheduler's own, while nobody waits.
 *
 *   - Requests begin in the order of arrival, while fewer than max_batch that want answers have begun and the K/V
 * memory that they are going to need fits beside what the others need.
 *   - Every iteration advances every answer that has begun by at least one token.
 *   - Beside answers, prompts get as many tokens as their speed lets pass in max_stall_ms, but at least 32, and without
 *     answers a whole chunk: half for the oldest, half for those with the least left, in that order.
 *   - Where memory is short, who gives way is in admission.h.
 *   - Who is paused computes nothing; where nobody can go on, the thread sleeps until scheduler_nudge.
 *   - What is one session's own fault (its callback, its numbers, its memory) ends that session's request alone.
 *
 * What a session computes does not depend on the others: a row's bits are its own (DESIGN of the backends). */
#ifndef KAKEYA_SESSION_SCHEDULER_H
#define KAKEYA_SESSION_SCHEDULER_H

#include "session/request.h"

typedef struct scheduler scheduler;

/* Hands the request over and returns; it must not move before it is done. Starts the scheduler's thread where there is
 * none. KAKEYA_INVALID_ARGUMENT: the session has a request already. */
kakeya_status scheduler_submit(kakeya_request *request, kakeya_error *error);
bool scheduler_is_done(kakeya_request *request);
/* Waits and takes the result. KAKEYA_INVALID_ARGUMENT, at once, from a callback of the thread that computes. */
kakeya_status scheduler_wait(kakeya_request *request, kakeya_error *error);
/* Both, without the thread. */
kakeya_status scheduler_run(kakeya_request *request, kakeya_error *error);
/* What kept requests from going on may have changed: memory, a pause, a cancel. Any thread, but not a signal's. */
void scheduler_nudge(kakeya_engine *engine);
/* Stops the thread. No request may be under way. */
void scheduler_close(scheduler *scheduler);

#endif
