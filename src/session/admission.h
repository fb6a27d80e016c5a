/* Who begins and who gives way: the requests of an engine by the order of their arrival, the places of answers, and the
 * K/V memory that those who have begun will still want. Everything here happens on the thread that computes.
 *
 * Where memory is short, these give way, each only where nobody before it can:
 *
 *   1. what only drafts need, and pictures that are being read      where a computation has found none
 *   2. idle sessions: the engine's relieve                          always
 *   3. paused requests, the one that arrived last first             always
 *   4. requests that wait with memory of earlier ones, likewise     for those that arrived before them
 *   5. the active request that arrived last, unless it is the only  where a computation has found none
 *      one; those that have done so often are the last to be chosen
 *
 * 3 to 5 move to a file. Where nobody is left, a request that is alone fails. */
#ifndef KAKEYA_SESSION_ADMISSION_H
#define KAKEYA_SESSION_ADMISSION_H

#include "session/request.h"

typedef enum admission_room {
    ROOM_NONE = 0,
    ROOM_MADE,
    ROOM_LATER, /* memory is on its way: kakeya_engine_relieved tells */
} admission_room;

typedef struct admission {
    kakeya_engine *engine;
    request_list waiting; /* have not begun */
    request_list running; /* have begun; those that are done leave with admission_take_done */
    int waiting_prompts;  /* waiting ones that want no answer */
    int places;           /* of max_batch that running ones take: those that answer, or will, and do not rest */
    int active;           /* running ones that compute: neither parked nor resting, not done */
    int parked;           /* running ones that wait in a file, and do not rest; like the two above exact after
                             admission_take_done */
    bool later;           /* since admission_admit: admission_make_room has said ROOM_LATER */
    size_t preemptions;   /* requests that have moved to a file, until somebody asks */
    size_t wanting;       /* bytes that active ones will still want; 0 without a memory limit */
    unsigned cancels;     /* of the engine, as far as they were looked at */
} admission;

void admission_add(admission *a, kakeya_request *r);

/* Those that are paused rest. Those that wait in a file or rest no more come first, then those that have not begun, in
 * the order of arrival; who does not fit holds up those behind. Who wants an answer and finds no place lets prompts
 * alone pass. Cancelled ones end. */
void admission_admit(admission *a, decode_buffers *buffers);

/* What the request holds has changed. */
void admission_reckon(admission *a, kakeya_request *r);
/* Those that are done leave, as a list. */
kakeya_request *admission_take_done(admission *a);

/* It has begun, is not done, does not rest, and has its memory. */
bool admission_is_active(const kakeya_request *r);

/* Memory has run out for one that has begun. Where an active request gives way, the engine reckons from then on with
 * all that the requests may come to need: who waits begins again only if it need not make room once more. Needs the
 * turn, and gives it back meanwhile. */
admission_room admission_make_room(admission *a);

#endif
