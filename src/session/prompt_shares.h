/* How the prompts that are under way share the rows that a forward has for them: half for the oldest, half for those
 * with the least left, in that order; what one of the two leaves is the other's. */
#ifndef KAKEYA_SESSION_PROMPT_SHARES_H
#define KAKEYA_SESSION_PROMPT_SHARES_H

#include <stddef.h>

#include "backend/backend.h"

typedef struct prompt_share {
    void *prompt;
    size_t left; /* tokens still to be computed */
    int most;    /* of them, in one forward */
    int tokens;  /* out: at most `most`; 0: none now */
} prompt_share;

typedef struct prompt_shares {
    prompt_share share[BACKEND_MAX_PROMPTS]; /* [n] the oldest, then by what is left */
    int n, places;                           /* at most so many take part */
} prompt_shares;

/* All zero but for `places`, 1 to BACKEND_MAX_PROMPTS: empty. In the order of arrival. */
void prompt_shares_add(prompt_shares *p, void *prompt, size_t left, int most);
void prompt_shares_divide(prompt_shares *p, int budget);

#endif
