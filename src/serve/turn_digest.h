/* Numbers of 128 bits that stand for what messages say, however a client spells it: the order of keys, white space
 * around texts, the spelling of numbers and whether a text came as a list of parts make no difference. */
#ifndef KAKEYA_SERVE_TURN_DIGEST_H
#define KAKEYA_SERVE_TURN_DIGEST_H

#include "kakeya.h"

enum { MEDIA_DIGEST_BYTES = 65 };
/* What `user` of a part that is a picture or a sound points to: it begins with the digest. */
typedef struct media_digest {
    char text[MEDIA_DIGEST_BYTES];
} media_digest;

typedef struct turn_digest {
    uint64_t low, high;
} turn_digest;

static inline bool turn_digest_equal(turn_digest a, turn_digest b) { return a.low == b.low && a.high == b.high; }

/* Of no conversation. */
turn_digest turn_digest_start(void);
/* Of content and calls (names, arguments) of one message. */
turn_digest turn_digest_said(const kakeya_chat_message *message);
/* Of the conversation and one message more: its role and what it says. Not its reasoning, nor the ids of its calls. */
turn_digest turn_digest_message(turn_digest before, const kakeya_chat_message *message, turn_digest said);
/* Of tokens. */
turn_digest turn_digest_ids(const int32_t *ids, size_t n);
/* Of the id of a call. */
turn_digest turn_digest_id(const char *id);

#endif
