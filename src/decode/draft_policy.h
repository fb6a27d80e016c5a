/* What the choice of draft lengths goes by beside what it measures. docs/design/draft-lengths.md says how much each
 * value matters, and `kakeya eval draft-policy` measures it. */
#ifndef KAKEYA_DECODE_DRAFT_POLICY_H
#define KAKEYA_DECODE_DRAFT_POLICY_H

#include "decode/ngram.h"

typedef struct draft_policy {
    /* Shares of the time that may go into probe blocks and into shadow drafts. */
    double probe_share, shadow_share;
    /* What follows drafts in the text is verified as long as it brings this share of what the time is worth: the rest
     * of a passage that is cut short takes a block of its own. */
    double passage_share;
    /* Drafting is taken up only if it promises this much more than plain autoregression, and then kept while it
     * promises anything: estimates are noisy, and changing back and forth costs more than either. */
    double advantage;
    double recent_blocks;    /* blocks over which the worth of time is averaged */
    float acceptance_memory; /* observations after which a moving average forgets */
    /* Where so many surprises come in a row the text has changed its character: what was learned before then counts for
     * this many observations at most. */
    int surprises;
    float memory_after_surprise;
    /* Before anything is measured: each further row adds this share of a single row's time, and drafting costs this
     * much. */
    double assumed_row_share, assumed_draft_share;
    /* Acceptance before any observation, worth `assumed_weight` of one. N-grams: of the first draft by the length of
     * the match, and of every further one. */
    float assumed_forced_rate; /* of text that a grammar forces */
    float assumed_dflash_rate, assumed_ngram_rate[NGRAM_MAX_MATCH + 1], assumed_ngram_next_rate, assumed_weight;
    float expected_weight; /* observations that the rates of earlier sessions are worth */
} draft_policy;

extern const draft_policy draft_policy_default;

#endif
