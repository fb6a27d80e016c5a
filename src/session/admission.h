/* Who begins: the requests of an engine by the order of their arrival, the places of answers, and the K/V memory that
 * those who have begun will still want. Everything here happens on the thread that computes. */
#ifndef KAKEYA_SESSION_ADMISSION_H
#define KAKEYA_SESSION_ADMISSION_H

#include "session/request.h"

typedef struct admission {
    kakeya_engine *engine;
    request_list waiting; /* have not begun */
    request_list running; /* have begun; those that are done leave with admission_take_done */
    int waiting_prompts;  /* waiting ones that want no answer */
    int places;           /* of max_batch that running ones take: those that answer, or will */
    int active;           /* running ones that hold their memory: not parked, not done */
    int parked;           /* running ones that wait in a file; like the two above exact after admission_take_done */
    size_t wanting;       /* bytes that active ones will still want; 0 without a memory limit */
    unsigned cancels;     /* of the engine, as far as they were looked at */
} admission;

void admission_add(admission *a, kakeya_request *r);

/* Those that wait in a file first, then those that have not begun, in the order of arrival; who does not fit holds up
 * those behind. Who wants an answer and finds no place lets prompts alone pass. Cancelled ones end. */
void admission_admit(admission *a, decode_buffers *buffers);

/* What the request holds has changed. */
void admission_reckon(admission *a, kakeya_request *r);
/* Those that are done leave, as a list. */
kakeya_request *admission_take_done(admission *a);

/* It has begun, is not done, and has its memory. */
bool admission_is_active(const kakeya_request *r);

/* Memory has run out for one that has begun. What only drafts need goes first, and pictures that are being read. Then
 * the request that arrived last makes room, unless it is the only one; those that have done so often are the last to be
 * chosen. From now on the engine reckons with all that the requests may come to need: who waits begins again only if it
 * need not make room once more. False: there is nothing to be had. Needs the turn. */
bool admission_make_room(admission *a);

#endif
