/* How many tokens to draft in the next block, and where from: the choice behind the `auto` mode. A session may have a
 * DFlash drafter, an MTP assistant and its own text to draft from, each with its price and its acceptance.
 *
 * A block of L drafts costs draft(L) + verify(L + 1) seconds and yields 1 + q1 + q1 q2 + ... + q1..qL tokens, where qi
 * is the probability that draft i is accepted if all before it were. Costs are the better ones of the last measured
 * blocks (no machine is too fast by accident), the q are moving averages per draft position. The choice is the source
 * and the L >= 0 (0: plain autoregression) with the most tokens per second. What is not chosen goes stale, so a small
 * share of the time is spent on finding out:
 *   - predictions that were not verified are compared with the tokens that come anyway: n-grams for nothing, and now
 * and then a draft that a drafter is asked for to this end only,
 *   - a block of another length is run as a probe when the loss to be expected fits the budget.
 *
 * Once a drafter has drafted, the text may know how its first few drafts go on (draft_control_extend). Such tokens cost
 * their rows only. They are judged one by one against what time is worth on average, not by the block's own rate:
 * blocks are not alike, and the end of a passage that does not fit into this one costs another. In a forward that
 * sessions share, a row has a price (draft_prices), and an extension has what is worth its rows.
 *
 * Only block lengths depend on this, never tokens. All times come from the caller, so tests can simulate them. */
#ifndef KAKEYA_DECODE_DRAFT_CONTROL_H
#define KAKEYA_DECODE_DRAFT_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "decode/draft_acceptance.h"
#include "decode/draft_costs.h"

/* The drafters stand in the order of backend_drafter. */
typedef enum draft_source { DRAFT_NONE = 0, DRAFT_DFLASH, DRAFT_ASSISTANT, DRAFT_NGRAM } draft_source;

static inline draft_source draft_source_of(backend_drafter drafter) {
    return (draft_source)(DRAFT_DFLASH + (int)drafter);
}
/* Whether the source is a drafter, and which one. */
static inline bool draft_source_asks(draft_source source) {
    return source == DRAFT_DFLASH || source == DRAFT_ASSISTANT;
}
static inline backend_drafter draft_source_drafter(draft_source source) {
    return (backend_drafter)((int)source - DRAFT_DFLASH);
}

/* How the time was spent. */
typedef struct draft_budget {
    double elapsed_seconds;               /* all blocks */
    double probe_seconds;                 /* what probe blocks have cost beyond the best choice */
    double shadow_seconds;                /* what shadow drafts have cost */
    double recent_tokens, recent_seconds; /* of the last blocks: what time is worth */
} draft_budget;

/* What earlier turns on an engine know and the next session starts with. All zero: nothing yet. */
typedef struct draft_experience {
    bool known;
    draft_costs costs;
    draft_budget budget; /* so that many short texts explore no more than one long one */
    float drafter_rate[BACKEND_DRAFTERS][BACKEND_MAX_DRAFT]; /* acceptance to expect of a text not seen yet */
    float ngram_rate[NGRAM_MAX_MATCH + 1][BACKEND_MAX_DRAFT];
    float extension_rate[NGRAM_MAX_MATCH + 1][BACKEND_MAX_DRAFT];
    float forced_rate[BACKEND_MAX_DRAFT];
} draft_experience;

/* A drafter, and how often its drafts hold. */
typedef struct draft_drafter {
    int longest;  /* its longest draft; 0: there is none */
    bool unready; /* it cannot draft in the block that is planned */
    draft_acceptance acceptance;
    shadow_draft shadow;
} draft_drafter;

typedef struct draft_control {
    const draft_policy *policy;
    draft_costs costs;
    draft_budget budget;
    draft_drafter drafter[BACKEND_DRAFTERS];
    draft_acceptance ngram[NGRAM_MAX_MATCH + 1];     /* by length of the matched suffix */
    draft_acceptance extension[NGRAM_MAX_MATCH + 1]; /* of what continues drafts; it ends elsewhere in a text */
    draft_acceptance forced; /* of text that a grammar leaves no choice about, which can be cut in other tokens */
    shadow_draft shadow_ngram, shadow_extension, shadow_forced;
    unsigned forced_blocks; /* in which forced text was not worth its rows */
    int next_probe, next_length;
    int next_drafter; /* whom a probe is about */
    int next_shadow;  /* who is asked for a shadow draft, if it is not the one that drafts */
    bool drafting;    /* the last choice, probes aside */
    bool probing;     /* the planned block is a probe */
    double best_rate; /* tokens per second that the best choice promised when the block was planned */
} draft_control;

typedef struct draft_plan {
    draft_source source;
    int length;        /* tokens to draft and verify */
    int shadow_length; /* > 0: also ask a drafter for this many, only to compare them with what comes */
    backend_drafter shadow;
} draft_plan;

typedef struct draft_block {
    draft_source source;
    int asked;             /* tokens that the drafter was asked for, where the source is one */
    int drafted, accepted; /* tokens verified behind the bonus token, and how many held */
    int looked_up;         /* of a drafter: the last of `drafted`, an n-gram continuation of the others */
    int ngram_match;       /* with DRAFT_NGRAM, and of what was looked up */
    double draft_seconds, verify_seconds; /* draft_seconds: time in the drafter; verify: forward and commit */
    double read_seconds;                  /* of verify_seconds: waiting for weights that are read from files */
} draft_block;

/* longest: draft of each drafter that is wanted, 0 where there is none. experience: of earlier sessions, or NULL. */
void draft_control_init(draft_control *control, const draft_policy *policy, const int longest[BACKEND_DRAFTERS],
                        const draft_experience *experience);

/* Adds what a finished turn has learned. */
void draft_control_share(const draft_control *control, draft_experience *experience);

/* limit: drafts that fit into the context, the window and the remaining tokens. ngram_available drafts can be had from
 * a suffix match of ngram_match tokens. */
draft_plan draft_control_plan(draft_control *control, int limit, int ngram_available, int ngram_match);

/* What drafts cost where many sessions share a forward, in tokens that the time would bring otherwise. */
typedef struct draft_prices {
    double row;                      /* one row more */
    double drafts[BACKEND_DRAFTERS]; /* asking the drafter; of an assistant, for one draft */
} draft_prices;

/* The same at these prices: of each source as many drafts as are worth their rows, from the source that leaves most. */
draft_plan draft_control_plan_at(draft_control *control, int limit, int ngram_available, int ngram_match,
                                 const draft_prices *prices);

/* Whether it is worth looking for text that a grammar forces; now and then where it is not. */
bool draft_control_asks_forced(draft_control *control, const draft_prices *prices);
/* How many of the first n tokens of a text that a grammar forces are worth their rows at these prices. What is not
 * verified is compared with the tokens that come. */
int draft_control_forced_at(draft_control *control, const int32_t *tokens, int n, const draft_prices *prices);
/* So many of them were verified, and held. */
void draft_control_record_forced(draft_control *control, int drafted, int accepted);

/* What to verify of a finished draft: its first `kept` tokens and `more` tokens that followed them earlier in the text.
 * `value` is expected tokens less what the rows' time is worth. */
typedef struct draft_extension {
    int kept, more;
    double value;
} draft_extension;

/* The best extension of the first `kept` drafts of a drafter by up to `available` n-gram drafts, found by a suffix
 * match of ngram_match tokens. Those cost no more than their rows, so here a block can grow beyond the drafter's.
 * prices: of a shared forward, where each row must be worth its price; NULL: the stream is alone. */
draft_extension draft_control_extend(const draft_control *control, backend_drafter drafter, int kept, int available,
                                     int ngram_match, const draft_prices *prices);

/* A prediction to be compared with the tokens passed to draft_control_token from now on. The block verifies its first
 * `verified` tokens. */
void draft_control_shadow(draft_control *control, draft_source source, int ngram_match, const int32_t *tokens,
                          int verified, int n);
/* The same for `kept` drafts of a drafter and what continues them, n in all. */
void draft_control_shadow_extension(draft_control *control, int ngram_match, const int32_t *tokens, int kept,
                                    int verified, int n);
void draft_control_token(draft_control *control, int32_t token);

/* A shadow draft of a drafter, and the time it took. */
typedef struct shadow_result {
    backend_drafter drafter;
    int drafts; /* 0: none */
    double seconds;
} shadow_result;

/* Reports a finished block: `block.accepted` of the drafts were accepted, one more token was sampled. */
void draft_control_record(draft_control *control, const draft_block *block, const shadow_result *shadow);
/* The same of a block that shared its forward with others: only what was accepted, for its time says nothing. */
void draft_control_record_accepted(draft_control *control, const draft_block *block);

#endif
