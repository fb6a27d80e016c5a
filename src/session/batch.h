/* Requests that are computed together, an iteration at a time. Everything here happens on one thread at a time, which
 * takes the engine's turn for the backend's work and gives it back before it calls anybody. */
#ifndef KAKEYA_SESSION_BATCH_H
#define KAKEYA_SESSION_BATCH_H

#include "session/admission.h"
#include "session/step_costs.h"

typedef struct batch {
    kakeya_engine *engine;
    admission requests;
    decode_buffers buffers;
    mem_spare spare;     /* of the buffers */
    int most;            /* requests in one forward that there was memory for; 0: as many as allowed */
    int known;           /* of these, so many have had memory since */
    int tried, patience; /* with `most`: iterations since then, and how many are awaited before more are tried */
    double prompt_speed; /* tokens per second that prompts beside answers are taken to have; 0: none seen yet */
    /* The last step of answers alone; 0: there was none. Prompts beside answers add what a step takes beyond it. */
    double answer_seconds;
    int answer_rows, since_answers; /* its rows; steps with prompts since then */
    bool answers_alone;             /* the next step has no prompts: what it takes must be known */
    step_costs costs;
    bool advanced;  /* something was computed in the last iteration, or could have been */
    uint64_t count; /* of iterations */
} batch;

void batch_init(batch *batch, kakeya_engine *engine);
/* Without requests. */
void batch_free(batch *batch);
/* A list of new requests (NULL: none). Those that have places and memory begin. */
void batch_add(batch *batch, kakeya_request *requests);
/* One iteration: at least one request advances, unless all rest. Returns a list of those that are done. */
kakeya_request *batch_step(batch *batch);
/* Whether nothing could be computed in the last iteration: all are paused, or wait for memory that is on its way. */
bool batch_rests(const batch *batch);

#endif
