#include "decode/sampling.h"

#include <math.h>
#include <sched.h>
#include <string.h>

#include "base/exp_weight.h"
#include "base/random.h"

/* Beyond these the penalty of one token drowns every other number of its row, and soon there is no finite one left. */
static const float least_penalty = 1e-3f, most_penalty = 1e3f;

kakeya_status sampling_validate(const kakeya_sampling *p, kakeya_error *error) {
    if (!isfinite(p->temperature) || p->temperature < 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "temperature is %g, must be finite and at least 0",
                         (double)p->temperature);
    if (p->top_k < 0) return error_set(error, KAKEYA_INVALID_ARGUMENT, "top_k is %d, must be at least 0", p->top_k);
    if (!(p->top_p >= 0 && p->top_p <= 1))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "top_p is %g, must be between 0 and 1", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "min_p is %g, must be between 0 and 1", (double)p->min_p);
    if (!(p->repetition_penalty >= least_penalty && p->repetition_penalty <= most_penalty))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "repetition_penalty is %g, must be from %g to %g",
                         (double)p->repetition_penalty, (double)least_penalty, (double)most_penalty);
    return KAKEYA_OK;
}

void sampler_init(sampler *s, int vocab, const int32_t *suppress, int n_suppress, sampler_space *space) {
    *s = (sampler){.vocab = vocab, .suppress = suppress, .n_suppress = n_suppress, .space = space};
}

void sampler_space_free(sampler_space *space) {
    mem_free(space->adjusted);
    mem_free(space->candidates);
    mem_free(space->seen);
    mem_free(space->allowed);
    matcher_space_free(&space->grammar);
    *space = (sampler_space){.account = space->account};
}

bool sampler_space_give_back(sampler_space *space) {
    int none = 0;
    if (!atomic_compare_exchange_strong(&space->grammars, &none, -1)) return false;
    bool held = space->grammar.trial != NULL;
    matcher_space_free(&space->grammar);
    atomic_store(&space->grammars, 0);
    return held;
}

/* From now on the grammar's memory stays. */
static void hold_grammar(sampler *s) {
    int users = atomic_load(&s->space->grammars);
    if (s->holds_grammar) return;
    while (users < 0 || !atomic_compare_exchange_weak(&s->space->grammars, &users, users + 1)) {
        if (users < 0) sched_yield();
        users = atomic_load(&s->space->grammars);
    }
    s->holds_grammar = true;
}

void sampler_release(sampler *s) {
    s->constraints.grammar = NULL;
    if (s->holds_grammar) atomic_fetch_sub(&s->space->grammars, 1);
    s->holds_grammar = false;
}

static kakeya_status ensure(sampler_space *space, void **buffer, size_t bytes, kakeya_error *error) {
    if (*buffer) return KAKEYA_OK;
    *buffer = mem_alloc(space->account, MEM_WORKSPACE, bytes);
    if (*buffer) return KAKEYA_OK;
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "sampling workspace of %zu bytes: out of memory", bytes);
}

size_t sampler_mask_words(const sampler *s) { return ((size_t)s->vocab + 31) / 32; }

static kakeya_status check_bias(const sampler *s, const sampler_constraints *c, kakeya_error *error) {
    if (c->n_bias && !c->bias)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%zu logit biases, but the array is NULL", c->n_bias);
    for (size_t i = 0; i < c->n_bias; i++) {
        if (c->bias[i].token < 0 || c->bias[i].token >= s->vocab)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "logit bias %zu: token %d, the vocabulary has ids 0 to %d",
                             i, (int)c->bias[i].token, s->vocab - 1);
        if (isnan(c->bias[i].bias) || c->bias[i].bias == INFINITY)
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "logit bias %zu: %g for token %d, must be finite or -infinity", i, (double)c->bias[i].bias,
                             (int)c->bias[i].token);
    }
    return KAKEYA_OK;
}

static bool counts(const sampler_constraints *c) { return c->presence != 0 || c->frequency != 0; }

/* Other logits than the model's. */
static bool constrained(const sampler_constraints *c) { return c->n_bias || c->mask || counts(c); }

kakeya_status sampler_check(const sampler *s, const kakeya_sampling *parameters, const sampler_constraints *constraints,
                            kakeya_error *error) {
    kakeya_status status = sampling_validate(parameters, error);
    if (status || !constraints) return status;
    if (!isfinite(constraints->presence) || !isfinite(constraints->frequency))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "presence_penalty is %g and frequency_penalty %g, must be finite",
                         (double)constraints->presence, (double)constraints->frequency);
    return check_bias(s, constraints, error);
}

kakeya_status sampler_configure(sampler *s, const kakeya_sampling *parameters, const sampler_constraints *constraints,
                                kakeya_error *error) {
    const sampler_constraints none = {0}, *c = constraints ? constraints : &none;
    size_t vocab = (size_t)s->vocab;
    sampler_space *space = s->space;
    kakeya_status status = sampler_check(s, parameters, c, error);
    bool penalty = parameters->repetition_penalty != 1.0f;
    if (status == KAKEYA_OK && (penalty || s->n_suppress || c->excluded || constrained(c) || c->grammar))
        status = ensure(space, (void **)&space->adjusted, vocab * sizeof *space->adjusted, error);
    if (status == KAKEYA_OK && (penalty || counts(c)))
        status = ensure(space, (void **)&space->seen, vocab * sizeof *space->seen, error);
    if (!c->grammar) sampler_release(s);
    if (status == KAKEYA_OK && c->grammar) {
        hold_grammar(s);
        space->grammar.account = space->account;
        status = matcher_space_reserve(&space->grammar, matcher_grammar(c->grammar), error);
    }
    if (status == KAKEYA_OK && (c->mask || c->grammar))
        status = ensure(space, (void **)&space->allowed, sampler_mask_words(s) * sizeof *space->allowed, error);
    if (status == KAKEYA_OK && parameters->temperature > 0)
        status = ensure(space, (void **)&space->candidates, vocab * sizeof *space->candidates, error);
    if (status != KAKEYA_OK) {
        sampler_release(s);
        return status;
    }
    s->parameters = *parameters;
    s->constraints = *c;
    s->redraws = s->masks = 0;
    return KAKEYA_OK;
}

bool sampler_is_argmax(const sampler *s) {
    return s->parameters.temperature == 0 && s->parameters.repetition_penalty == 1.0f && !constrained(&s->constraints);
}

bool sampler_suppresses(const sampler *s, int32_t token) {
    for (int i = 0; i < s->n_suppress; i++)
        if (s->suppress[i] == token) return true;
    return s->constraints.excluded && *s->constraints.excluded == token;
}

bool sampler_suppresses_any(const sampler *s) { return s->n_suppress || s->constraints.excluded; }

int sampler_correct_drafts(const sampler *s, int32_t *drafts, int n, int most) {
    return s->constraints.grammar ? matcher_correct(s->constraints.grammar, &s->space->grammar, drafts, n, most) : n;
}

int sampler_forced_drafts(const sampler *s, int32_t *drafts, int most) {
    return s->constraints.grammar ? matcher_forced(s->constraints.grammar, &s->space->grammar, drafts, most) : 0;
}

static void forbid(uint32_t *allowed, int vocab, int32_t token) {
    if (token >= 0 && token < vocab) allowed[token / 32] &= ~(1u << (token % 32));
}

void sampler_mask(sampler *s, const int32_t *drafts, int n, uint32_t *allowed) {
    const size_t words = sampler_mask_words(s);
    matcher_masks(s->constraints.grammar, &s->space->grammar, drafts, n, allowed, words);
    s->masks += (uint64_t)n + 1;
    for (int row = 0; row <= n; row++, allowed += words) {
        for (int i = 0; i < s->n_suppress; i++) forbid(allowed, s->vocab, s->suppress[i]);
        if (s->constraints.excluded) forbid(allowed, s->vocab, *s->constraints.excluded);
        if (s->vocab % 32) allowed[words - 1] &= (1u << (s->vocab % 32)) - 1;
    }
}

static kakeya_status nothing_left(const sampler *s, size_t position, kakeya_error *error) {
    return error_set(error, KAKEYA_INVALID_ARGUMENT, "the grammar leaves none of the %d tokens at position %zu",
                     s->vocab, position);
}

kakeya_status sampler_take_masked(sampler *s, const uint32_t *allowed, int32_t token, size_t position,
                                  kakeya_error *error) {
    if (token >= 0) {
        (void)matcher_accept(s->constraints.grammar, &s->space->grammar, token);
        return KAKEYA_OK;
    }
    for (size_t i = 0; i < sampler_mask_words(s); i++)
        if (allowed[i]) return KAKEYA_OK;
    return nothing_left(s, position, error);
}

/* No token has been seen. */
static void forget_seen(sampler *s) {
    if (++s->space->seen_mark != 0) return;
    memset(s->space->seen, 0, (size_t)s->vocab * sizeof *s->space->seen);
    s->space->seen_mark = 1;
}

/* Each token of the answer as often as it occurs, in the order of positions. */
static void penalise_answer(sampler *s, const int32_t *history, size_t n) {
    const sampler_constraints *c = &s->constraints;
    forget_seen(s);
    for (size_t i = c->answer_start; i < n; i++) {
        int32_t token = history[i];
        s->space->adjusted[token] -= c->frequency;
        if (s->space->seen[token] == s->space->seen_mark) continue;
        s->space->seen[token] = s->space->seen_mark;
        s->space->adjusted[token] -= c->presence;
    }
}

/* Each distinct token of the history once: positive logits are divided, negative ones multiplied (Keskar et al., CTRL).
 */
static void penalise(sampler *s, const int32_t *history, size_t n) {
    forget_seen(s);
    float penalty = s->parameters.repetition_penalty;
    for (size_t i = 0; i < n; i++) {
        int32_t token = history[i];
        if (s->space->seen[token] == s->space->seen_mark) continue;
        s->space->seen[token] = s->space->seen_mark;
        float logit = s->space->adjusted[token];
        s->space->adjusted[token] = logit > 0 ? logit / penalty : logit * penalty;
    }
}

/* The caller's mask, applied to the adjusted row. */
static kakeya_status mask_row(sampler *s, const int32_t *history, size_t n, kakeya_error *error) {
    const sampler_constraints *c = &s->constraints;
    memset(s->space->allowed, 0, sampler_mask_words(s) * sizeof *s->space->allowed);
    if (!c->mask(c->mask_user, history, n, s->space->allowed, sampler_mask_words(s))) return KAKEYA_OK;
    bool left = false;
    for (int32_t t = 0; t < s->vocab; t++) {
        if (!(s->space->allowed[t / 32] >> (t % 32) & 1)) s->space->adjusted[t] = -INFINITY;
        left |= s->space->adjusted[t] != -INFINITY;
    }
    if (left) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT, "the token mask of position %zu leaves none of the %d tokens", n,
                     s->vocab);
}

/* Largest logit and its lowest id. NaN and +inf are failures of the computation and never become a token. */
static kakeya_status row_maximum(const float *logits, int vocab, int32_t *best, float *maximum, kakeya_error *error) {
    enum { LANES = 16 };
    float top[LANES];
    int invalid[LANES] = {0};
    for (int j = 0; j < LANES; j++) top[j] = -INFINITY;
    int i = 0;
    for (; i + LANES <= vocab; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            float x = logits[i + j];
            top[j] = x > top[j] ? x : top[j];
            invalid[j] |= x != x;
        }
    }
    for (; i < vocab; i++) {
        top[0] = logits[i] > top[0] ? logits[i] : top[0];
        invalid[0] |= logits[i] != logits[i];
    }
    for (int j = 1; j < LANES; j++) {
        top[0] = top[j] > top[0] ? top[j] : top[0];
        invalid[0] |= invalid[j];
    }
    if (invalid[0] || isinf(top[0])) {
        for (int32_t t = 0; t < vocab; t++)
            if (isnan(logits[t]) || logits[t] == INFINITY)
                return error_set(error, KAKEYA_BACKEND, "the logit of token %d is %g, not a finite number", (int)t,
                                 (double)logits[t]);
        return error_set(error, KAKEYA_BACKEND, "all %d logits are -inf, no token can be sampled", vocab);
    }
    int32_t token = 0;
    while (logits[token] != top[0]) token++;
    *best = token;
    *maximum = top[0];
    return KAKEYA_OK;
}

/* The one total order of candidates: larger logit first, then lower id. */
static bool before(sampling_candidate a, sampling_candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

static void swap_candidates(sampling_candidate *a, sampling_candidate *b) {
    sampling_candidate t = *a;
    *a = *b;
    *b = t;
}

/* heap[0] is the worst of the kept candidates. */
static void sift_down(sampling_candidate *heap, size_t n, size_t at) {
    for (;;) {
        size_t worst = at, left = 2 * at + 1, right = left + 1;
        if (left < n && before(heap[worst], heap[left])) worst = left;
        if (right < n && before(heap[worst], heap[right])) worst = right;
        if (worst == at) return;
        swap_candidates(&heap[at], &heap[worst]);
        at = worst;
    }
}

static void select_top_k(sampling_candidate *heap, size_t k, const float *logits, int vocab) {
    for (size_t i = 0; i < k; i++) heap[i] = (sampling_candidate){.logit = logits[i], .token = (int32_t)i};
    for (size_t i = k / 2; i-- > 0;) sift_down(heap, k, i);
    for (int32_t t = (int32_t)k; t < vocab; t++) {
        if (logits[t] > heap[0].logit) { /* an equal logit has a higher id and stays out */
            heap[0] = (sampling_candidate){.logit = logits[t], .token = t};
            sift_down(heap, k, 0);
        }
    }
}

/* Moves the smallest leading set (in the order of `before`) whose weight reaches `mass`, at most the weight of all, to
 * the front, its last element behind the others, and returns its size: quickselect by accumulated weight, linear in n
 * on average. */
static size_t select_mass(sampling_candidate *c, size_t n, uint64_t mass) {
    size_t low = 0, high = n;
    uint64_t accepted = 0;
    while (low < high) {
        size_t middle = low + (high - low) / 2, last = high - 1;
        if (before(c[middle], c[low])) swap_candidates(&c[middle], &c[low]);
        if (before(c[last], c[low])) swap_candidates(&c[last], &c[low]);
        if (before(c[middle], c[last])) swap_candidates(&c[middle], &c[last]); /* c[last] is the median of three */
        sampling_candidate pivot = c[last];
        size_t store = low;
        uint64_t left = 0;
        for (size_t i = low; i < last; i++) {
            if (!before(c[i], pivot)) continue;
            left += c[i].weight;
            swap_candidates(&c[i], &c[store++]);
        }
        swap_candidates(&c[store], &c[last]);
        if (store > low && accepted + left >= mass) {
            high = store;
        } else if (accepted + left + pivot.weight >= mass) {
            return store + 1;
        } else {
            accepted += left + pivot.weight;
            low = store + 1;
        }
    }
    return n;
}

/* The same for a whole vocabulary: candidates are dealt to slices of the distance from the largest logit first, and
 * only those of the slice in which the mass is reached are put in order. Weights end at a distance of 29. */
static size_t lead_to_mass(const kakeya_sampling *p, float maximum, sampling_candidate *c, size_t n, uint64_t mass) {
    enum { SLICES = 256, PER_UNIT = 8 };
    uint64_t weights[SLICES] = {0}, reached = 0;
    float scale = (float)PER_UNIT / p->temperature;
    for (size_t i = 0; i < n; i++) {
        float slice = (maximum - c[i].logit) * scale;
        weights[slice < SLICES - 1 ? (int)slice : SLICES - 1] += c[i].weight;
    }
    int wanted = 0;
    while (wanted < SLICES - 1 && reached + weights[wanted] < mass) reached += weights[wanted++];
    size_t front = 0, kept = 0; /* [0, front): slices before the wanted one; [front, kept): that one */
    for (size_t i = 0; i < n; i++) {
        float slice = (maximum - c[i].logit) * scale;
        int own = slice < SLICES - 1 ? (int)slice : SLICES - 1;
        if (own > wanted) continue;
        sampling_candidate candidate = c[i];
        size_t to = kept++;
        if (own < wanted) {
            c[to] = c[front];
            to = front++;
        }
        c[to] = candidate;
    }
    return front + select_mass(c + front, kept - front, mass - reached);
}

static uint64_t weight_of(const sampling_candidate *c, size_t n) {
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) total += c[i].weight;
    return total;
}

/* The mass that the set of top-p must reach. */
static uint64_t top_p_mass(const kakeya_sampling *p, uint64_t total) {
    double mass = ceil((double)p->top_p * (double)total);
    return mass < 1 ? 1 : mass >= (double)total ? total : (uint64_t)mass;
}

/* Weights are relative to the best token's. */
static double min_p_weight(const kakeya_sampling *p) {
    return (double)p->min_p * (double)((uint64_t)1 << EXP_WEIGHT_BITS);
}

static size_t keep_min_p(const kakeya_sampling *p, sampling_candidate *c, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if ((double)c[i].weight >= min_p_weight(p)) c[kept++] = c[i];
    return kept;
}

/* The drawn token is the first one at which the accumulated weight reaches this. number: of the draw at this position.
 */
static uint64_t drawn_mass(const kakeya_sampling *p, uint64_t total, size_t position, uint32_t number) {
    uint64_t drawn = (uint64_t)(random_uniform_numbered(p->seed, position, number) * (double)total);
    return (drawn < total ? drawn : total - 1) + 1;
}

/* Candidates of all tokens that weigh anything, by id; returns how many there are. */
static size_t weigh_all(sampling_candidate *c, const float *logits, int vocab, float maximum, float temperature) {
    enum { LANES = 16 };
    size_t n = 0;
    for (int32_t base = 0; base < vocab; base += LANES) {
        float unrounded[LANES] = {0};
        int count = vocab - base < LANES ? vocab - base : LANES;
        if (count == LANES)
            for (int j = 0; j < LANES; j++) unrounded[j] = exp_weight_unrounded(logits[base + j], maximum, temperature);
        else
            for (int j = 0; j < count; j++) unrounded[j] = exp_weight_unrounded(logits[base + j], maximum, temperature);
        for (int j = 0; j < count; j++) {
            c[n] = (sampling_candidate){logits[base + j], base + j, (uint64_t)(int64_t)unrounded[j]};
            n += c[n].weight != 0;
        }
    }
    return n;
}

static int32_t draw(sampler *s, const float *logits, float maximum, size_t position, uint32_t number) {
    const kakeya_sampling *p = &s->parameters;
    sampling_candidate *c = s->space->candidates;
    size_t n = 0;
    if (p->top_k > 0 && p->top_k < s->vocab) {
        select_top_k(c, (size_t)p->top_k, logits, s->vocab);
        for (size_t i = 0; i < (size_t)p->top_k; i++) {
            c[i].weight = exp_weight(c[i].logit, maximum, p->temperature);
            if (c[i].weight) c[n++] = c[i];
        }
    } else {
        n = weigh_all(c, logits, s->vocab, maximum, p->temperature);
    }
    if (p->top_p < 1) n = lead_to_mass(p, maximum, c, n, top_p_mass(p, weight_of(c, n)));
    if (p->min_p > 0) n = keep_min_p(p, c, n);
    return c[lead_to_mass(p, maximum, c, n, drawn_mass(p, weight_of(c, n), position, number)) - 1].token;
}

bool sampler_takes_leaders(const sampler *s) {
    return s->parameters.repetition_penalty == 1.0f && !constrained(&s->constraints);
}

static bool draw_leaders(sampler *s, const backend_leaders *leaders, size_t position, uint32_t number, int32_t *token) {
    const kakeya_sampling *p = &s->parameters;
    sampling_candidate *c = s->space->candidates; /* in order already */
    size_t n = 0;
    uint64_t total = 0;
    for (int i = 0; i < leaders->n; i++) {
        uint64_t own = exp_weight(leaders->logit[i], leaders->logit[0], p->temperature);
        if (!own) break;
        c[n++] = (sampling_candidate){leaders->logit[i], leaders->token[i], own};
        total += own;
    }
    bool complete = total == leaders->total; /* what is not listed weighs nothing */
    if (p->top_k > 0 && p->top_k < s->vocab) {
        if ((size_t)p->top_k > n && !complete) return false;
        if ((size_t)p->top_k < n) n = (size_t)p->top_k;
        complete = true;
    }
    total = complete ? weight_of(c, n) : leaders->total;
    if (p->top_p < 1) {
        uint64_t mass = top_p_mass(p, total), reached = 0;
        size_t kept = 0;
        while (kept < n && reached < mass) reached += c[kept++].weight;
        if (reached < mass) return false;
        n = kept;
        total = reached;
        complete = true;
    }
    if (p->min_p > 0) {
        const double rounding = 1.00001; /* a weight may exceed that of a larger logit by its error */
        complete |= n > 0 && (double)c[n - 1].weight * rounding < min_p_weight(p);
        if (!complete) return false;
        n = keep_min_p(p, c, n);
        total = weight_of(c, n);
    }
    uint64_t mass = drawn_mass(p, total, position, number), reached = 0;
    for (size_t i = 0; i < n; i++) {
        reached += c[i].weight;
        if (reached < mass) continue;
        *token = c[i].token;
        return true;
    }
    return false;
}

/* Whether the token stands: without a grammar, or where it allows it. */
static bool accepts(sampler *s, int32_t token) {
    return !s->constraints.grammar || matcher_accept(s->constraints.grammar, &s->space->grammar, token);
}

bool sampler_draw_leaders(sampler *s, const backend_leaders *leaders, size_t position, int32_t *token) {
    bool greedy = s->parameters.temperature == 0;
    uint32_t tries = !s->constraints.grammar ? 1 : greedy ? (uint32_t)leaders->n : SAMPLER_DRAWS;
    *token = -1;
    if (leaders->n < 0) return true;
    for (uint32_t number = 0; number < tries; number++) {
        if (greedy && leaders->n == 0) return false;
        if (greedy)
            *token = leaders->token[number];
        else if (!draw_leaders(s, leaders, position, number, token))
            return false;
        if (accepts(s, *token)) {
            s->redraws += number;
            return true;
        }
    }
    return false;
}

static kakeya_status choose(sampler *s, const float *logits, size_t position, uint32_t number, int32_t *token,
                            kakeya_error *error) {
    float maximum = 0;
    kakeya_status status = row_maximum(logits, s->vocab, token, &maximum, error);
    if (status != KAKEYA_OK) return error_prefix(error, status, "sampling at position %zu", position);
    if (s->parameters.temperature > 0) *token = draw(s, logits, maximum, position, number);
    return KAKEYA_OK;
}

/* The largest logit that the grammar allows, the lowest id on ties. */
static kakeya_status choose_largest_allowed(sampler *s, const float *logits, size_t position, int32_t *token,
                                            kakeya_error *error) {
    uint32_t *allowed = s->space->allowed;
    float largest = -INFINITY;
    *token = -1;
    sampler_mask(s, NULL, 0, allowed);
    for (size_t i = 0; i < sampler_mask_words(s); i++) {
        for (uint32_t left = allowed[i]; left; left &= left - 1) {
            int32_t id = (int32_t)(32 * i) + __builtin_ctz(left);
            if (logits[id] <= largest) continue;
            largest = logits[id];
            *token = id;
        }
    }
    if (*token < 0) return nothing_left(s, position, error);
    (void)accepts(s, *token);
    return KAKEYA_OK;
}

/* The token of a row that the grammar has refused `token` of, above temperature 0. logits: the space's own row. */
static kakeya_status choose_allowed(sampler *s, float *logits, size_t position, int32_t *token, kakeya_error *error) {
    matcher *grammar = s->constraints.grammar;
    uint32_t *allowed = s->space->allowed, number = 1;
    kakeya_status status = KAKEYA_OK;
    for (; number < SAMPLER_DRAWS && status == KAKEYA_OK; number++) {
        s->redraws++;
        status = choose(s, logits, position, number, token, NULL);
        if (status == KAKEYA_OK && accepts(s, *token)) return KAKEYA_OK;
    }
    s->redraws++;
    s->masks++;
    matcher_mask(grammar, &s->space->grammar, allowed, sampler_mask_words(s));
    bool left = false;
    for (int32_t t = 0; t < s->vocab; t++) {
        if (!(allowed[t / 32] >> (t % 32) & 1)) logits[t] = -INFINITY;
        left |= logits[t] != -INFINITY;
    }
    if (!left) return nothing_left(s, position, error);
    status = choose(s, logits, position, SAMPLER_DRAWS, token, error);
    if (status == KAKEYA_OK) (void)accepts(s, *token);
    return status;
}

kakeya_status sampler_sample(sampler *s, const float *logits, const int32_t *history, size_t position, int32_t *token,
                             kakeya_error *error) {
    bool penalty = s->parameters.repetition_penalty != 1.0f;
    const sampler_constraints *c = &s->constraints;
    if (penalty || sampler_suppresses_any(s) || constrained(c)) {
        memcpy(s->space->adjusted, logits, (size_t)s->vocab * sizeof *logits);
        for (size_t i = 0; i < c->n_bias; i++) s->space->adjusted[c->bias[i].token] += c->bias[i].bias;
        for (int i = 0; i < s->n_suppress; i++)
            if (s->suppress[i] >= 0 && s->suppress[i] < s->vocab) s->space->adjusted[s->suppress[i]] = -INFINITY;
        if (c->excluded) s->space->adjusted[*c->excluded] = -INFINITY;
        if (c->mask) {
            kakeya_status masked = mask_row(s, history, position, error);
            if (masked != KAKEYA_OK) return masked;
        }
        if (penalty) penalise(s, history, position);
        if (counts(c)) penalise_answer(s, history, position);
        logits = s->space->adjusted;
    }
    kakeya_status status = choose(s, logits, position, 0, token, error);
    if (status != KAKEYA_OK || accepts(s, *token)) return status;
    if (s->parameters.temperature == 0) {
        s->redraws++;
        return choose_largest_allowed(s, logits, position, token, error);
    }
    if (logits != s->space->adjusted) memcpy(s->space->adjusted, logits, (size_t)s->vocab * sizeof *logits);
    return choose_allowed(s, s->space->adjusted, position, token, error);
}
