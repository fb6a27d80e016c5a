#include "measure/lossless_batch_plan.h"

#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "measure/lossless_plan.h"
#include "measure/mt19937.h"

static const char *const modes[] = {"ar", "ngram", "auto", "speculative"};
enum { MODES = 4, MODES_WITHOUT_DRAFTER = 3 };
static const int chunks[] = {0, 0, 13, 64, 129};
enum { CHUNKS = sizeof chunks / sizeof chunks[0] };
enum { ONE_IN_CANCELLED = 5, ONE_IN_FORKED = 4 };

static bool one_in(mt19937 *generator, int n) { return mt19937_below(generator, (uint32_t)n) == 0; }

int lossless_batch_composition(const lossless_batch_options *o, int composition,
                               lossless_batch_session out[LOSSLESS_BATCH_SESSIONS]) {
    mt19937 generator;
    mt19937_seed(&generator, o->seed + UINT64_C(0x9e3779b97f4a7c15) * ((uint64_t)composition + 1));
    int drawn = mt19937_between(&generator, 1, o->sessions), n = composition ? drawn : o->sessions;
    for (int i = 0; i < n; i++) {
        lossless_batch_session *s = &out[i];
        *s = (lossless_batch_session){.kind = (int)mt19937_below(&generator, LOSSLESS_KINDS)};
        s->policy = (int)mt19937_below(&generator, (uint32_t)o->policies);
        s->mode = modes[mt19937_below(&generator, o->drafter ? MODES : MODES_WITHOUT_DRAFTER)];
        int length = mt19937_between(&generator, 1, BACKEND_MAX_DRAFT);
        s->prompt_chunk = chunks[mt19937_below(&generator, CHUNKS)];
        s->temperature = (int)mt19937_below(&generator, 2);
        bool cancelled = one_in(&generator, ONE_IN_CANCELLED), forked = one_in(&generator, ONE_IN_FORKED);
        int after = mt19937_between(&generator, 1, o->max_tokens > 1 ? o->max_tokens / 2 : 1);
        s->late = i > 0 && one_in(&generator, 2);
        s->log_probabilities = one_in(&generator, 2);
        if (cancelled && o->max_tokens > 1) s->cancel_after = after;
        if (forked && i > 0 && !out[i - 1].forked) { /* a fork has the options of the session that it is made of */
            s->forked = true;
            s->policy = out[i - 1].policy;
            s->mode = out[i - 1].mode;
            s->prompt_chunk = out[i - 1].prompt_chunk;
        }
        if (strcmp(s->mode, "speculative") == 0 || strcmp(s->mode, "ngram") == 0) s->draft_length = length;
    }
    return n;
}

void lossless_batch_sample(int composition, int session, int kind, char *out, size_t bytes) {
    snprintf(out, bytes, "%03d.%02d/%s", composition, session, lossless_kind_names[kind]);
}
