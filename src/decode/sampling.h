/* Choosing the token of one position from a row of logits.
 *
 * The result is a pure function of (parameters, constraints, seed, position, logits, tokens before the position): that
 * is what lets a draft be accepted exactly if it equals the sampled token, at any temperature.
 *
 * Order of the steps, as in Hugging Face's generate(): biases, suppressed tokens, mask, repetition penalty,
 * presence and frequency penalties, temperature, top-k, top-p, min-p, draw. Ties always go to the lowest id.
 *
 * The draw is the inverse of the distribution function over tokens in the order of their logits, largest first. Weights
 * are integers (base/exp_weight.h), so the few leading tokens and the sum of all weights decide it exactly as a whole
 * row does.
 *
 * Under a grammar the token is the largest logit that the grammar allows; above temperature 0, it is drawn until it is
 * allowed, with numbers of its own for each try, which gives the distribution of the allowed tokens exactly. Where
 * SAMPLER_DRAWS of them were refused, the whole row is masked before the filters apply, and drawn from once more. */
#ifndef KAKEYA_DECODE_SAMPLING_H
#define KAKEYA_DECODE_SAMPLING_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "grammar/matcher.h"

enum { SAMPLER_DRAWS = 8 };

typedef struct sampling_candidate {
    float logit;
    int32_t token;
    uint64_t weight; /* exp_weight of the logit */
} sampling_candidate;

/* What a caller adds to the model's own opinion; borrowed. */
typedef struct sampler_constraints {
    const kakeya_logit_bias *bias;
    size_t n_bias;
    kakeya_token_mask_fn mask; /* may be NULL */
    void *mask_user;
    matcher *grammar;          /* where the answer stands: a token that is sampled is accepted. NULL: no grammar */
    const int32_t *excluded;   /* NULL, or one token that is never chosen, which leaves the greedy choice to backends */
    float presence, frequency; /* penalties of tokens at positions from `answer_start` on; 0: off */
    size_t answer_start;
} sampler_constraints;

/* Vocabulary-sized memory of sampling. Nothing in it outlives one call of a sampler, so any number of samplers of one
 * thread share it. All zero but for the account: empty. */
typedef struct sampler_space {
    mem_account *account;
    float *adjusted; /* [vocab]: the row that is sampled from where it is not the model's; NULL while unused */
    sampling_candidate *candidates; /* [vocab]; NULL while only greedy decoding was asked for */
    uint32_t *seen;                 /* [vocab]: the value of seen_mark where a token has been penalised */
    uint32_t seen_mark;
    uint32_t *allowed; /* [(vocab + 31) / 32]: the mask of a position; NULL while there is none */
    matcher_space grammar;
    atomic_int grammars; /* samplers that are configured with a grammar; below 0: its memory is being given back */
} sampler_space;

void sampler_space_free(sampler_space *space);
/* Memory that grammars alone need, unless a sampler has one now; the next that has one takes it again. False: there was
 * none. From any thread. */
bool sampler_space_give_back(sampler_space *space);

typedef struct sampler {
    kakeya_sampling parameters;
    sampler_constraints constraints;
    int vocab;
    const int32_t *suppress; /* borrowed */
    int n_suppress;
    sampler_space *space;    /* borrowed */
    bool holds_grammar;      /* counted in space->grammars */
    uint64_t redraws, masks; /* since sampler_configure: what the grammar has cost */
} sampler;

/* Ranges: temperature finite >= 0, top_k >= 0, top_p and min_p in [0, 1], repetition_penalty in
 * [1e-3, 1e3]. */
kakeya_status sampling_validate(const kakeya_sampling *parameters, kakeya_error *error);

/* space: of samplers with the same vocabulary; may be set later, before sampler_configure. */
void sampler_init(sampler *s, int vocab, const int32_t *suppress, int n_suppress, sampler_space *space);

/* Parameters and constraints (NULL: none) that sampler_configure takes if there is memory. */
kakeya_status sampler_check(const sampler *s, const kakeya_sampling *parameters, const sampler_constraints *constraints,
                            kakeya_error *error);
/* Checks and takes parameters and constraints; allocates (MEM_WORKSPACE) what they need in the space, so that sampling
 * itself never does. */
kakeya_status sampler_configure(sampler *s, const kakeya_sampling *parameters, const sampler_constraints *constraints,
                                kakeya_error *error);

/* The sampler's grammar is at its end: it samples no more until it is configured again. */
void sampler_release(sampler *s);

/* history[0..position) are the tokens before the position. KAKEYA_BACKEND for logits that are not numbers,
 * KAKEYA_INVALID_ARGUMENT where the mask or the grammar leave no token. */
kakeya_status sampler_sample(sampler *s, const float *logits, const int32_t *history, size_t position, int32_t *token,
                             kakeya_error *error);

/* Whether the token is simply the largest logit that is not suppressed, excluded or refused by the grammar, which a
 * backend may find by itself. */
bool sampler_is_argmax(const sampler *s);
/* The tokens that may be chosen under the grammar, of the next position and behind each of n drafts: bits, allowed [n +
 * 1][sampler_mask_words]. */
void sampler_mask(sampler *s, const int32_t *drafts, int n, uint32_t *allowed);
size_t sampler_mask_words(const sampler *s);
/* A token that was chosen under the mask of the next position becomes part of the answer. KAKEYA_INVALID_ARGUMENT for
 * -1 where the mask allows none; a token below 0 changes nothing. */
kakeya_status sampler_take_masked(sampler *s, const uint32_t *allowed, int32_t token, size_t position,
                                  kakeya_error *error);

/* Whether the leading logits of a row may be enough for the token. */
bool sampler_takes_leaders(const sampler *s);
/* False where the leaders do not decide; else *token is what sampler_sample finds in the whole row, or -1 where a logit
 * is not a number. */
bool sampler_draw_leaders(sampler *s, const backend_leaders *leaders, size_t position, int32_t *token);

/* Never sampled: suppressed by the model, or excluded. */
bool sampler_suppresses(const sampler *s, int32_t token);
/* Whether there is such a token at all. */
bool sampler_suppresses_any(const sampler *s);

/* n drafts for the next positions, of at most `most`. Where a grammar refuses one, or behind the last, follows what the
 * grammar leaves no choice about; returns how many there are then. */
int sampler_correct_drafts(const sampler *s, int32_t *drafts, int n, int most);
/* Drafts that the grammar leaves no choice about, at most `most`. */
int sampler_forced_drafts(const sampler *s, int32_t *drafts, int most);

#endif
