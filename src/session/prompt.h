/* A prompt on its way into a session's timeline, a chunk per forward. Whoever drives it calls the backend. */
#ifndef KAKEYA_SESSION_PROMPT_H
#define KAKEYA_SESSION_PROMPT_H

#include "session/prompt_media.h"
#include "session/session.h"

typedef struct prompt_work {
    const int32_t *tokens; /* [n] the wanted timeline; may be the session's own array */
    size_t n;
    prompt_media media;
    kakeya_progress_fn progress; /* or NULL */
    void *user;
    bool cancellable;
    bool again;           /* the timeline itself, whose rows are computed again as the kinds that they were */
    size_t reused, first; /* tokens kept; the first that is computed */
    size_t end;           /* of the chunk in work */
    bool as_computed, behind_answer; /* its rows' kinds are known; its first row is an answer's newest token */
} prompt_work;

/* Keeps the longest common prefix that the cache can still reach. Needs the turn. */
kakeya_status prompt_begin(kakeya_session *session, prompt_work *work, kakeya_error *error);
bool prompt_done(const kakeya_session *session, const prompt_work *work);
/* Tokens still to be computed. */
size_t prompt_left(const kakeya_session *session, const prompt_work *work);
/* KAKEYA_CANCELLED where the session was told so. */
kakeya_status prompt_check(const kakeya_session *session, const prompt_work *work, kakeya_error *error);
/* The next chunk, of `most` tokens at most, as a segment of a forward; a picture or sound is never cut, and may have up
 * to `room` tokens: where it has more, or its rows take more than `time`, segment->n becomes 0, and another forward is
 * to be asked. Needs the turn. first: how an answer behind the prompt wants its first token; NULL: there is none, and
 * the logits of the last row stay with the timeline. May allocate. */
kakeya_status prompt_segment(kakeya_session *session, prompt_work *work, size_t most, size_t room, media_time *time,
                             decode_first *first, backend_segment *segment, kakeya_error *error);
/* Right behind the forward: of the last chunk, the token that prompt_segment was asked for. segment: its index. */
kakeya_status prompt_read(kakeya_session *session, const prompt_work *work, decode_first *first,
                          const decode_options *options, int segment, kakeya_error *error);
/* Keeps the chunk that was computed, or drops it where `status` says so, which is handed on. Needs the turn. */
kakeya_status prompt_commit(kakeya_session *session, prompt_work *work, kakeya_status status, kakeya_error *error);
/* A failure of the chunk, with the positions in front of its message. */
kakeya_status prompt_failed(const kakeya_session *session, const prompt_work *work, kakeya_status status,
                            kakeya_error *error);
/* Tells the caller how far it is; KAKEYA_CANCELLED where that answers so. */
kakeya_status prompt_report(const kakeya_session *session, const prompt_work *work, kakeya_error *error);

#endif
