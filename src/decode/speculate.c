#include "decode/speculate.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"

static double seconds_now(const decode_options *o) {
    return o->seconds ? o->seconds(o->seconds_user) : clock_seconds();
}

static bool uses_ngrams(const decode_options *o) { return o->mode == KAKEYA_MODE_NGRAM || o->mode == KAKEYA_MODE_AUTO; }

/* ------------------------------------------------------------------------------------------------------ memory */

void decode_workspace_free(decode_workspace *w) { ngram_free(&w->ngram); }

bool decode_workspace_give_back(decode_workspace *w) {
    bool held = w->ngram.room > 0;
    ngram_free(&w->ngram);
    return held;
}

void decode_buffers_init(decode_buffers *b, int vocab, mem_account *account) {
    *b = (decode_buffers){.account = account, .vocab = vocab, .sampling = {.account = account}};
}

void decode_buffers_free(decode_buffers *b) {
    mem_free(b->logits);
    mem_free(b->leaders);
    mem_free(b->log_probabilities);
    mem_free(b->masks);
    sampler_space_free(&b->sampling);
    decode_buffers_init(b, b->vocab, b->account);
}

decode_room decode_room_of_both(decode_room a, decode_room b) {
    return (decode_room){a.logits + b.logits, a.leaders + b.leaders, a.masks + b.masks};
}

static size_t mask_words(const decode_buffers *b) { return ((size_t)b->vocab + 31) / 32; }

kakeya_status decode_buffers_reserve(decode_buffers *b, decode_room room, kakeya_error *error) {
    if (b->logit_rows < room.logits) {
        size_t bytes = (size_t)room.logits * (size_t)b->vocab * sizeof *b->logits;
        mem_free(b->logits);
        b->logit_rows = 0;
        b->logits = mem_alloc(b->account, MEM_WORKSPACE, bytes);
        if (!b->logits)
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "logits of %d rows, %zu bytes: out of memory", room.logits,
                             bytes);
        b->logit_rows = room.logits;
    }
    if (b->leader_rows < room.leaders) {
        mem_free(b->leaders);
        mem_free(b->log_probabilities);
        b->leader_rows = 0;
        b->leaders = mem_alloc(b->account, MEM_WORKSPACE, (size_t)room.leaders * sizeof *b->leaders);
        b->log_probabilities =
            mem_alloc(b->account, MEM_WORKSPACE, (size_t)room.leaders * sizeof *b->log_probabilities);
        if (!b->leaders || !b->log_probabilities)
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "leading logits of %d rows: out of memory", room.leaders);
        b->leader_rows = room.leaders;
    }
    if (b->mask_rows < room.masks) {
        mem_free(b->masks);
        b->mask_rows = 0;
        b->masks = mem_alloc(b->account, MEM_WORKSPACE, (size_t)room.masks * mask_words(b) * sizeof *b->masks);
        if (!b->masks)
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "grammar masks of %d rows: out of memory", room.masks);
        b->mask_rows = room.masks;
    }
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------------ drafts */

/* Cuts drafts at the first one that can never be sampled. */
static int usable_drafts(const decode_workspace *w, const int32_t *drafts, int n) {
    for (int i = 0; i < n; i++)
        if (drafts[i] < 0 || drafts[i] >= w->sampler.vocab || sampler_suppresses(&w->sampler, drafts[i])) return i;
    return n;
}

/* What the block that is followed did, where there is one: none behind the last. */
static const draft_block *followed(const decode_stream *s) {
    static const draft_block none = {.source = DRAFT_NONE};
    const decode_options *o = s->options;
    if (!o->follow) return NULL;
    return s->stats->verifier_forwards < o->n_follow ? &o->follow[s->stats->verifier_forwards] : &none;
}

/* The drafts that the block kept, and those that the text had behind them. */
static void extend_as_followed(decode_stream *s, const draft_block *as) {
    decode_timeline *t = s->timeline;
    decode_workspace *w = s->workspace;
    int32_t *drafts = s->tokens + 1, more[BACKEND_MAX_DRAFT];
    int kept = as->drafted - as->looked_up, match, found = 0;
    if (kept < 0 || kept > s->block.drafted) kept = s->block.drafted;
    if (as->looked_up > 0 && kept > 0 && kept < s->limit && ngram_has_room(&w->ngram, t->n + (size_t)s->limit)) {
        memcpy(t->tokens + t->n, drafts, (size_t)kept * sizeof *drafts);
        ngram_extend(&w->ngram, t->tokens, t->n + (size_t)kept);
        found = usable_drafts(w, more, ngram_draft(&w->ngram, t->tokens, s->limit - kept, more, &match));
        ngram_truncate(&w->ngram, t->tokens, t->n);
        if (found > as->looked_up) found = as->looked_up;
        memcpy(drafts + kept, more, (size_t)found * sizeof *more);
    }
    s->block.looked_up = found;
    s->block.drafted = kept + found;
}

/* Lets the text continue the drafts of a drafter, or their beginning where it seems to know better: the n-gram index
 * takes them for written, one by one, and is asked behind each. */
static void extend_drafts(decode_stream *b) {
    decode_timeline *t = b->timeline;
    decode_workspace *w = b->workspace;
    int limit = b->limit;
    int32_t *drafts = b->tokens + 1, more[BACKEND_MAX_DRAFT], best_more[BACKEND_MAX_DRAFT];
    int n = b->block.drafted, best_found = 0, best_match = 0;
    const backend_drafter drafter = draft_source_drafter(b->block.source);
    if (!ngram_has_room(&w->ngram, t->n + (size_t)limit)) return;
    const draft_prices *prices = b->priced ? &b->prices : NULL;
    draft_extension best = draft_control_extend(&w->control, drafter, n, 0, 0, prices);
    memcpy(t->tokens + t->n, drafts, (size_t)n * sizeof *drafts);
    for (int kept = 1; kept <= n && kept < limit; kept++) {
        int match;
        ngram_extend(&w->ngram, t->tokens, t->n + (size_t)kept);
        int found = usable_drafts(w, more, ngram_draft(&w->ngram, t->tokens, limit - kept, more, &match));
        draft_extension extension = draft_control_extend(&w->control, drafter, kept, found, match, prices);
        if (found == 0 || extension.more == 0 || extension.value <= best.value) continue;
        best = extension;
        best_found = found;
        best_match = match;
        memcpy(best_more, more, (size_t)found * sizeof *more);
    }
    ngram_truncate(&w->ngram, t->tokens, t->n);
    draft_control_shadow(&w->control, b->block.source, 0, drafts, best.kept, n);
    memcpy(drafts + best.kept, best_more, (size_t)best_found * sizeof *drafts);
    b->block.looked_up = best.more;
    b->block.ngram_match = best_match;
    b->block.drafted = best.kept + best.more;
    if (best_found)
        draft_control_shadow_extension(&w->control, best_match, drafts, best.kept, b->block.drafted,
                                       best.kept + best_found);
}

/* n drafts for the next positions, at most `most`, as a grammar corrects them, without those behind the first one that
 * cannot be. */
static int next_drafts(const decode_workspace *w, int32_t *drafts, int n, int most) {
    return usable_drafts(w, drafts, sampler_correct_drafts(&w->sampler, drafts, usable_drafts(w, drafts, n), most));
}

static int least(int a, int b) { return a < b ? a : b; }

static draft_plan plan_as_followed(const decode_stream *s, const draft_block *as) {
    const draft_drafter *drafter = s->workspace->control.drafter;
    int length = 0;
    if (as->source == DRAFT_NGRAM) length = least(as->drafted, s->n_found);
    if (draft_source_asks(as->source)) length = least(as->asked, drafter[draft_source_drafter(as->source)].longest);
    return (draft_plan){.source = as->source, .length = least(length, s->limit)};
}

/* An assistant drafts behind a known state only; without one a block of other drafts, or none, makes it known. */
static bool is_ready(const decode_stream *s, backend_drafter drafter) {
    const backend_ops *ops = s->timeline->ops;
    return drafter != BACKEND_ASSISTANT || (ops->cache_has_state && ops->cache_has_state(s->timeline->cache));
}

static draft_plan plan_of(decode_stream *s, const draft_prices *prices) {
    const decode_options *o = s->options;
    draft_plan plan = {.source = DRAFT_NONE};
    for (int d = 0; d < BACKEND_DRAFTERS; d++)
        s->workspace->control.drafter[d].unready = !is_ready(s, (backend_drafter)d);
    switch (o->mode) {
    case KAKEYA_MODE_AUTO:
        if (followed(s))
            plan = plan_as_followed(s, followed(s));
        else
            plan = prices ? draft_control_plan_at(&s->workspace->control, s->limit, s->n_found, s->match, prices)
                          : draft_control_plan(&s->workspace->control, s->limit, s->n_found, s->match);
        break;
    case KAKEYA_MODE_SPECULATIVE:
        plan = (draft_plan){.source = draft_source_of(o->drafter), .length = is_ready(s, o->drafter) ? s->limit : 0};
        break;
    case KAKEYA_MODE_NGRAM:
        plan = (draft_plan){.source = DRAFT_NGRAM, .length = s->n_found < s->limit ? s->n_found : s->limit};
        break;
    case KAKEYA_MODE_AR:
        break;
    }
    if (plan.length <= 0) plan.source = DRAFT_NONE;
    return plan;
}

enum { QUESTION_DRAFTS = 0, QUESTION_WATCH, QUESTION_NONE };

bool decode_asks(decode_stream *s, backend_draft_request *request) {
    *request = (backend_draft_request){.cache = s->timeline->cache, .bonus = s->tokens[0]};
    if (s->question == QUESTION_DRAFTS) {
        const bool asks = draft_source_asks(s->plan.source);
        request->n = asks ? s->plan.length : 0;
        request->drafter = asks ? draft_source_drafter(s->plan.source) : BACKEND_BLOCK_DRAFTER;
        request->drafts = s->tokens + 1;
        if (request->n) return true;
        s->question = QUESTION_WATCH;
    }
    if (s->question == QUESTION_WATCH) {
        request->n = s->options->mode == KAKEYA_MODE_AUTO ? s->plan.shadow_length : 0;
        request->drafter = s->plan.shadow;
        request->drafts = s->shadow_tokens;
        if (request->n) return true;
        s->question = QUESTION_NONE;
    }
    return false;
}

void decode_answered(decode_stream *s, double seconds) {
    decode_workspace *w = s->workspace;
    if (s->question++ == QUESTION_DRAFTS) {
        s->block.draft_seconds = seconds;
        s->block.asked = s->plan.length;
        s->block.drafted = next_drafts(w, s->tokens + 1, s->plan.length, s->plan.length);
        if (s->options->mode != KAKEYA_MODE_AUTO) return;
        if (followed(s))
            extend_as_followed(s, followed(s));
        else if (s->block.drafted == s->plan.length)
            extend_drafts(s);
        if (s->n_found) draft_control_shadow(&w->control, DRAFT_NGRAM, s->match, s->found, 0, s->n_found);
        return;
    }
    s->shadow = (shadow_result){.drafter = s->plan.shadow, .drafts = s->plan.shadow_length, .seconds = seconds};
    draft_control_shadow(&w->control, draft_source_of(s->plan.shadow), 0, s->shadow_tokens, 0, s->plan.shadow_length);
}

/* Where a grammar leaves no choice for as many tokens as were to be drafted, these are the drafts: they cost nothing
 * but their rows, which others may need more, and seldom fail. */
static void take_forced(decode_stream *s, const draft_prices *prices) {
    draft_control *control = &s->workspace->control;
    const bool priced = prices && s->options->mode == KAKEYA_MODE_AUTO;
    int32_t forced[BACKEND_MAX_DRAFT];
    if (s->options->mode == KAKEYA_MODE_AR || s->limit < 1) return;
    if (!s->workspace->sampler.constraints.grammar || (priced && !draft_control_asks_forced(control, prices))) return;
    int n = sampler_forced_drafts(&s->workspace->sampler, forced, s->limit);
    n = usable_drafts(s->workspace, forced, n);
    if (priced) n = draft_control_forced_at(control, forced, n, prices);
    if (n == 0 || n < s->plan.length) return;
    memcpy(s->tokens + 1, forced, (size_t)n * sizeof *forced);
    s->plan = (draft_plan){.source = DRAFT_NONE};
    s->block.drafted = s->forced = n;
}

/* Drafts of the caller's own take the drafter's place. */
static kakeya_status ask_caller(decode_stream *s, kakeya_error *error) {
    const decode_options *o = s->options;
    backend_draft_request request;
    kakeya_status status = KAKEYA_OK;
    while (status == KAKEYA_OK && decode_asks(s, &request)) {
        double start = seconds_now(o);
        status = o->draft(o->draft_user, request.bonus, request.n, request.drafts, error);
        if (status == KAKEYA_OK) decode_answered(s, seconds_now(o) - start);
    }
    return status;
}

/* The prediction's continuation takes the place of one that the text has after a shorter match. */
static void find_predicted(decode_stream *s) {
    const decode_options *o = s->options;
    const decode_timeline *t = s->timeline;
    int32_t found[BACKEND_MAX_DRAFT];
    int match;
    s->predicted = false;
    if (o->prediction.n == 0) return;
    int n = prediction_draft(&o->prediction, t->tokens, t->n, o->draft_length, found, &match, &s->place);
    if (n == 0 || match < s->match) return;
    memcpy(s->found, found, (size_t)n * sizeof *found);
    s->n_found = n;
    s->match = match;
    s->predicted = true;
}

kakeya_status decode_plan(decode_stream *s, int most_rows, const draft_prices *prices, kakeya_error *error) {
    decode_timeline *t = s->timeline;
    decode_workspace *w = s->workspace;
    const decode_options *o = s->options;
    size_t remaining = o->max_tokens - (t->n - s->start);
    int rows = o->draft_length + 1 < o->max_rows ? o->draft_length + 1 : o->max_rows;
    if (rows > most_rows) rows = most_rows;
    s->limit = rows - 1;
    if ((size_t)s->limit > remaining - 1) s->limit = (int)(remaining - 1);
    size_t longest = t->n + (size_t)s->limit + 1;
    kakeya_status status = decode_timeline_reserve(t, longest, error);
    if (status != KAKEYA_OK) return status;
    bool indexed = uses_ngrams(o) && ngram_reserve(&w->ngram, longest, w->account, NULL) == KAKEYA_OK;

    s->block = (draft_block){0};
    s->forced = 0;
    s->tokens[0] = t->tokens[t->n - 1];
    s->place += (size_t)s->taken;
    s->n_found = s->match = s->taken = 0;
    s->shadow = (shadow_result){0};
    s->question = QUESTION_DRAFTS;
    s->batched = false;
    if (indexed) {
        ngram_extend(&w->ngram, t->tokens, t->n);
        s->n_found = ngram_draft(&w->ngram, t->tokens, o->draft_length, s->found, &s->match);
    }
    if (uses_ngrams(o)) {
        find_predicted(s);
        /* beside others few are used, and those are corrected then */
        if (s->n_found && !prices) s->n_found = next_drafts(w, s->found, s->n_found, o->draft_length);
    }
    s->plan = plan_of(s, prices);
    take_forced(s, prices);
    s->priced = prices != NULL;
    if (prices) s->prices = *prices;
    s->block.source = s->plan.source;
    if (s->plan.source == DRAFT_NGRAM) {
        const int n = s->plan.length;
        memcpy(s->tokens + 1, s->found, (size_t)n * sizeof *s->found);
        s->block.drafted = prices ? next_drafts(w, s->tokens + 1, n, n) : n;
        s->block.ngram_match = s->match;
    }
    if (o->mode == KAKEYA_MODE_AUTO && s->plan.source == DRAFT_NONE && s->n_found)
        draft_control_shadow(&w->control, DRAFT_NGRAM, s->match, s->found, 0, s->n_found);
    return o->draft ? ask_caller(s, error) : KAKEYA_OK;
}

/* ---------------------------------------------------------------------------------------------------- one block */

int decode_rows(const decode_stream *s) { return s->block.drafted + 1; }

/* The backend chooses under masks. */
static bool is_masked(const decode_stream *s) {
    return s->choice == DECODE_BY_BACKEND && s->workspace->sampler.constraints.grammar;
}

decode_room decode_needs(const decode_stream *s) {
    const int rows = decode_rows(s);
    const bool led = s->choice == DECODE_FROM_LEADERS;
    return (decode_room){.logits = s->choice == DECODE_FROM_LOGITS ? rows : led,
                         .leaders = led ? rows : 0,
                         .masks = is_masked(s) ? rows : 0};
}

/* Of weights: greedy rows ask for leading logits because of log-probabilities alone. */
static float leading_temperature(const sampler *s) {
    return s->parameters.temperature > 0 ? s->parameters.temperature : 1;
}

backend_segment decode_segment(decode_stream *s, decode_room first) {
    const decode_buffers *b = s->buffers;
    sampler *choice = &s->workspace->sampler;
    s->logits = b->logits ? b->logits + (size_t)first.logits * (size_t)b->vocab : NULL;
    s->leaders = b->leaders ? b->leaders + first.leaders : NULL;
    s->log_probabilities = b->log_probabilities ? b->log_probabilities + first.leaders : NULL;
    s->masks = is_masked(s) ? b->masks + (size_t)first.masks * mask_words(b) : NULL;
    if (s->masks) sampler_mask(choice, s->tokens + 1, s->block.drafted, s->masks);
    return (backend_segment){.cache = s->timeline->cache,
                             .tokens = s->tokens,
                             .n = decode_rows(s),
                             .kind = SEGMENT_DECODE,
                             .logits = s->choice == DECODE_FROM_LOGITS ? s->logits : NULL,
                             .leaders = s->choice == DECODE_FROM_LEADERS ? s->leaders : NULL,
                             .temperature = leading_temperature(choice),
                             .argmax = s->choice == DECODE_BY_BACKEND ? s->known : NULL,
                             .excluded = choice->constraints.excluded,
                             .allowed = s->masks};
}

/* Chooses the token at `position` from leading logits, with its log-probabilities where they are asked for. *decided:
 * the token is found (-1 for logits that are not numbers). False: the whole row is needed for what is not. */
static bool choose_from_leaders(sampler *choice, const decode_options *o, const backend_leaders *leaders,
                                size_t position, int32_t *token, token_log_probabilities *known, bool *decided) {
    *decided = sampler_draw_leaders(choice, leaders, position, token);
    if (!*decided) return false;
    if (*token < 0 || !o->log_probabilities) return true;
    /* leaders know nothing of suppressed tokens, which have their part in the model's own softmax */
    return !sampler_suppresses_any(choice) &&
           log_probabilities_of_leaders(leaders, choice->vocab, *token, o->top_log_probabilities, known);
}

/* The same of a row of the block, and from the whole row where that is needed. */
static kakeya_status choose_row(decode_stream *s, int segment, int row, int32_t *token, kakeya_error *error) {
    const decode_timeline *t = s->timeline;
    const decode_options *o = s->options;
    sampler *choice = &s->workspace->sampler;
    size_t position = t->n + (size_t)row;
    token_log_probabilities *known = &s->log_probabilities[row];
    bool decided;
    if (choose_from_leaders(choice, o, &s->leaders[row], position, token, known, &decided)) return KAKEYA_OK;
    kakeya_status status = t->ops->read_logits(t->model, segment, row, s->logits, error);
    if (status == KAKEYA_OK && !decided) status = sampler_sample(choice, s->logits, NULL, position, token, error);
    if (status == KAKEYA_OK && o->log_probabilities)
        log_probabilities_of_row(s->logits, t->vocab, *token, o->top_log_probabilities, known);
    return status;
}

/* The grammar follows what the backend has chosen under its mask. */
static kakeya_status take_masked_row(decode_stream *s, int row, kakeya_error *error) {
    sampler *choice = &s->workspace->sampler;
    const uint32_t *allowed = s->masks + (size_t)row * mask_words(s->buffers);
    return sampler_take_masked(choice, allowed, s->known[row], s->timeline->n + (size_t)row, error);
}

kakeya_status decode_read(decode_stream *s, int segment, kakeya_error *error) {
    const bool masked = is_masked(s);
    if (!masked && s->choice != DECODE_FROM_LEADERS) return KAKEYA_OK;
    for (int row = 0; row < decode_rows(s); row++) {
        kakeya_status status =
            masked ? take_masked_row(s, row, error) : choose_row(s, segment, row, &s->known[row], error);
        if (status != KAKEYA_OK) return status;
        if (row < s->block.drafted && s->known[row] != s->tokens[row + 1]) break; /* rows behind it are dropped */
    }
    return KAKEYA_OK;
}

/* What a row says about the next token: its logits, or the token itself where that is known already. */
typedef struct row_result {
    const float *logits;
    const int32_t *token;                             /* NULL: sample from the logits; -1: the logits are not numbers */
    const token_log_probabilities *log_probabilities; /* with token; NULL: not asked for */
} row_result;

static bool is_cancelled(const decode_options *o) { return o->cancelled && atomic_load(o->cancelled); }

static kakeya_status choose_token(decode_stream *s, row_result row, output_token *out, kakeya_error *error) {
    const decode_timeline *t = s->timeline;
    const decode_options *o = s->options;
    *out = (output_token){.position = t->n, .log_probabilities.chosen = (double)NAN};
    if (row.token) {
        out->token = *row.token;
        if (out->token < 0)
            return error_set(error, KAKEYA_BACKEND, "sampling at position %zu: the logits are not finite numbers",
                             t->n);
        if (row.log_probabilities) out->log_probabilities = *row.log_probabilities;
        return KAKEYA_OK;
    }
    kakeya_status status = sampler_sample(&s->workspace->sampler, row.logits, t->tokens, t->n, &out->token, error);
    if (status == KAKEYA_OK && o->log_probabilities)
        log_probabilities_of_row(row.logits, t->vocab, out->token, o->top_log_probabilities, &out->log_probabilities);
    return status;
}

/* Chooses the token behind tokens[0..n) and lets the output decide about it. */
static kakeya_status take_next(decode_stream *s, row_result row, int32_t *token, kakeya_error *error) {
    decode_timeline *t = s->timeline;
    output_token chosen;
    bool last = t->n - s->start + 1 == s->options->max_tokens;
    kakeya_status status = choose_token(s, row, &chosen, error);
    if (status != KAKEYA_OK) return status;
    status = output_take(s->output, &chosen, last, &s->verdict, error);
    if (status != KAKEYA_OK || s->verdict == OUTPUT_REFUSED) return status;
    *token = chosen.token;
    t->tokens[t->n++] = chosen.token;
    if (s->verdict != OUTPUT_TAKEN || !is_cancelled(s->options)) return KAKEYA_OK;
    s->verdict = OUTPUT_TAKEN_LAST;
    return output_cut(s->output, KAKEYA_FINISH_CANCELLED, error);
}

kakeya_status decode_take(decode_stream *s, kakeya_error *error) {
    for (int row = 0; row < decode_rows(s); row++) {
        int32_t token = -1;
        bool probable = s->choice == DECODE_FROM_LEADERS && s->options->log_probabilities;
        row_result result = {.token = &s->known[row],
                             .log_probabilities = probable ? &s->log_probabilities[row] : NULL};
        if (s->choice == DECODE_FROM_LOGITS)
            result = (row_result){.logits = s->logits + (size_t)row * (size_t)s->timeline->vocab};
        kakeya_status status = take_next(s, result, &token, error);
        if (status != KAKEYA_OK || s->verdict == OUTPUT_REFUSED) return status;
        s->taken++;
        if (s->options->mode == KAKEYA_MODE_AUTO) draft_control_token(&s->workspace->control, token);
        bool accepted = row < s->block.drafted && token == s->tokens[row + 1];
        s->block.accepted += accepted;
        if (!accepted || s->verdict == OUTPUT_TAKEN_LAST) break;
    }
    return KAKEYA_OK;
}

static void add_to_stats(kakeya_stats *stats, const draft_block *block, double shadow_seconds) {
    stats->verifier_forwards++;
    stats->drafted_tokens += (uint64_t)block->drafted;
    stats->accepted_tokens += (uint64_t)block->accepted;
    for (int i = 0; i < block->drafted; i++) stats->drafted_at[i]++;
    for (int i = 0; i < block->accepted; i++) stats->accepted_at[i]++;
    stats->draft_seconds += block->draft_seconds + shadow_seconds;
    stats->verify_seconds += block->verify_seconds;
}

/* Keeps the block's first `taken` rows: exactly the tokens before the timeline's last one. */
static kakeya_status commit_rows(decode_stream *s, kakeya_error *error) {
    decode_timeline *t = s->timeline;
    double start = seconds_now(s->options);
    kakeya_status status = t->ops->cache_commit(t->cache, s->taken, error);
    s->block.verify_seconds += seconds_now(s->options) - start;
    if (status != KAKEYA_OK) (void)t->ops->cache_commit(t->cache, 0, NULL);
    size_t length = (size_t)t->ops->cache_length(t->cache);
    if (status == KAKEYA_OK)
        memset(t->row_kind + length - (size_t)s->taken, ROW_DECODE, (size_t)s->taken);
    else if (t->n > length + 1)
        t->n = length + 1;
    return status;
}

kakeya_status decode_commit(decode_stream *s, kakeya_status status, double verify_seconds, double read_seconds,
                            kakeya_error *error) {
    s->block.verify_seconds = verify_seconds;
    s->block.read_seconds = read_seconds;
    kakeya_status committed = commit_rows(s, status == KAKEYA_OK ? error : NULL);
    if (status == KAKEYA_OK) status = committed;
    if (status != KAKEYA_OK) return status;
    const decode_options *o = s->options;
    add_to_stats(s->stats, &s->block, s->shadow.seconds);
    if (s->predicted && s->block.source == DRAFT_NGRAM) {
        s->stats->prediction_drafted += (uint64_t)s->block.drafted;
        s->stats->prediction_accepted += (uint64_t)s->block.accepted;
    }
    if (s->forced) draft_control_record_forced(&s->workspace->control, s->forced, s->block.accepted);
    if (o->mode == KAKEYA_MODE_AUTO && s->batched)
        draft_control_record_accepted(&s->workspace->control, &s->block);
    else if (o->mode == KAKEYA_MODE_AUTO)
        draft_control_record(&s->workspace->control, &s->block, &s->shadow);
    if (o->trace) o->trace(o->trace_user, &(decode_trace_block){.block = s->block, .taken = s->taken});
    return KAKEYA_OK;
}

/* --------------------------------------------------------------------------------------------------- the stream */

decode_choice decode_choice_of(const backend_ops *ops, const sampler *s, const decode_options *o) {
    const bool argmax = sampler_is_argmax(s), grammar = s->constraints.grammar != NULL;
    if (ops->finds_argmax && argmax && (!grammar || ops->masks_argmax) && !o->log_probabilities)
        return DECODE_BY_BACKEND;
    if (ops->finds_leaders && sampler_takes_leaders(s) && (!argmax || grammar || o->log_probabilities))
        return DECODE_FROM_LEADERS;
    return DECODE_FROM_LOGITS;
}

void decode_first_ask(decode_first *f, const sampler *s, backend_segment *segment) {
    segment->argmax = f->choice == DECODE_BY_BACKEND ? &f->token : NULL;
    segment->leaders = f->choice == DECODE_FROM_LEADERS ? &f->leaders : NULL;
    segment->temperature = leading_temperature(s);
    segment->excluded = s->constraints.excluded;
}

kakeya_status decode_first_read(decode_first *f, decode_timeline *t, sampler *choice, const decode_options *o,
                                int segment, size_t position, kakeya_error *error) {
    bool decided;
    f->known = f->choice == DECODE_BY_BACKEND ||
               choose_from_leaders(choice, o, &f->leaders, position, &f->token, &f->log_probabilities, &decided);
    if (f->known) return KAKEYA_OK;
    kakeya_status status = decode_timeline_keep_logits(t, error);
    return status == KAKEYA_OK ? t->ops->read_logits(t->model, segment, 0, t->logits, error) : status;
}

kakeya_status decode_begin(decode_stream *s, decode_timeline *t, decode_workspace *w, decode_buffers *b,
                           const decode_options *o, decode_output *output, kakeya_stats *stats,
                           const decode_first *first, kakeya_error *error) {
    *s = (decode_stream){.timeline = t,
                         .workspace = w,
                         .buffers = b,
                         .options = o,
                         .output = output,
                         .stats = stats,
                         .start = t->n,
                         .verdict = OUTPUT_TAKEN};
    s->choice = decode_choice_of(t->ops, &w->sampler, o);
    bool known = first && first->known;
    if (!(known || t->has_logits) || is_cancelled(o)) return KAKEYA_OK;
    row_result row = {.logits = t->logits};
    if (known)
        row = (row_result){.token = &first->token,
                           .log_probabilities = o->log_probabilities ? &first->log_probabilities : NULL};
    int32_t token;
    kakeya_status status = decode_timeline_reserve(t, t->n + 1, error);
    if (status == KAKEYA_OK) status = take_next(s, row, &token, error);
    decode_timeline_drop_logits(t); /* used up; after a failure the row is computed again */
    return status;
}

bool decode_goes_on(const decode_stream *s) { return s->verdict == OUTPUT_TAKEN && !is_cancelled(s->options); }

kakeya_status decode_end(decode_stream *s, kakeya_status status, kakeya_error *error) {
    if (status == KAKEYA_OK && s->verdict == OUTPUT_TAKEN)
        status = output_cut(s->output, KAKEYA_FINISH_CANCELLED, error);
    size_t n = s->timeline->n;
    s->stats->completion_tokens += n > s->start ? n - s->start : 0;
    s->stats->finish = s->output->finish;
    return status;
}

static kakeya_status run_block(decode_stream *s, kakeya_error *error) {
    decode_timeline *t = s->timeline;
    const decode_options *o = s->options;
    backend_draft_request request;
    kakeya_status status = decode_plan(s, BACKEND_MAX_DECODE_ROWS, NULL, error);
    while (status == KAKEYA_OK && decode_asks(s, &request)) {
        double start = seconds_now(o);
        status = t->ops->draft(t->model, &request, 1, error);
        if (status == KAKEYA_OK) decode_answered(s, seconds_now(o) - start);
    }
    if (status == KAKEYA_OK) status = decode_buffers_reserve(s->buffers, decode_needs(s), error);
    if (status != KAKEYA_OK) return status;
    backend_segment segment = decode_segment(s, (decode_room){0});
    double start = seconds_now(o), reading = backend_read_seconds(t->ops, t->model);
    status = t->ops->forward(t->model, &segment, 1, error);
    if (status != KAKEYA_OK) return status;
    status = decode_read(s, 0, error);
    double seconds = seconds_now(o) - start;
    if (status == KAKEYA_OK) status = decode_take(s, error);
    reading = backend_read_seconds(t->ops, t->model) - reading;
    return decode_commit(s, status, seconds, reading, error);
}

kakeya_status decode_run(decode_timeline *t, decode_workspace *w, decode_buffers *b, const decode_options *o,
                         decode_output *output, kakeya_stats *stats, kakeya_error *error) {
    decode_stream s;
    kakeya_status status = decode_begin(&s, t, w, b, o, output, stats, NULL, error);
    while (status == KAKEYA_OK && decode_goes_on(&s)) status = run_block(&s, error);
    return decode_end(&s, status, error);
}
