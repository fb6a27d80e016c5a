#include "decode/speculate.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"

static double seconds_now(const decode_options *o) {
    return o->seconds ? o->seconds(o->seconds_user) : clock_seconds();
}

static bool uses_ngrams(const decode_options *o) { return o->mode == KAKEYA_MODE_NGRAM || o->mode == KAKEYA_MODE_AUTO; }

kakeya_status decode_prepare(decode_workspace *w, const decode_timeline *t, const decode_options *o,
                             kakeya_error *error) {
    w->rows = o->draft_length + 1 < o->max_rows ? o->draft_length + 1 : o->max_rows;
    bool argmax = sampler_is_argmax(&w->sampler);
    w->greedy = t->ops->finds_argmax && argmax && !o->log_probabilities;
    w->leading =
        t->ops->finds_leaders && !w->greedy && sampler_takes_leaders(&w->sampler) && (!argmax || o->log_probabilities);
    w->leader_temperature = argmax ? 1 : w->sampler.parameters.temperature;
    int logit_rows = w->greedy ? 0 : w->leading ? 1 : w->rows;
    if (w->logit_rows < logit_rows) {
        size_t bytes = (size_t)logit_rows * (size_t)t->vocab * sizeof *w->logits;
        mem_free(w->logits);
        w->logit_rows = 0;
        w->logits = mem_alloc(w->account, MEM_WORKSPACE, bytes);
        if (!w->logits)
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "logits of %d rows, %zu bytes: out of memory", logit_rows,
                             bytes);
        w->logit_rows = logit_rows;
    }
    if (w->leading && !w->leaders) {
        w->leaders = mem_alloc(w->account, MEM_WORKSPACE, BACKEND_MAX_DECODE_ROWS * sizeof *w->leaders);
        if (!w->leaders) return error_set(error, KAKEYA_OUT_OF_MEMORY, "leading logits of a block: out of memory");
    }
    if (w->leading && !w->log_probabilities) {
        w->log_probabilities =
            mem_alloc(w->account, MEM_WORKSPACE, BACKEND_MAX_DECODE_ROWS * sizeof *w->log_probabilities);
        if (!w->log_probabilities)
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "log-probabilities of a block: out of memory");
    }
    if (uses_ngrams(o) && !w->ngram.last) return ngram_create(&w->ngram, t->vocab, t->capacity, w->account, error);
    return KAKEYA_OK;
}

void decode_workspace_free(decode_workspace *w) {
    mem_free(w->logits);
    mem_free(w->leaders);
    mem_free(w->log_probabilities);
    w->logits = NULL;
    w->log_probabilities = NULL;
    w->leaders = NULL;
    w->logit_rows = 0;
    sampler_free(&w->sampler);
    ngram_free(&w->ngram);
}

/* One block being decoded. */
typedef struct block_state {
    draft_block block;
    int32_t tokens[BACKEND_MAX_DECODE_ROWS]; /* bonus, drafts */
    int taken;
    double watch_seconds;
    int watch_drafts;
} block_state;

static kakeya_status ask_drafter(decode_timeline *t, const decode_options *o, int n, int32_t *drafts, double *seconds,
                                 kakeya_error *error) {
    int32_t bonus = t->tokens[t->n - 1];
    if (o->draft) {
        double start = seconds_now(o);
        kakeya_status status = o->draft(o->draft_user, bonus, n, drafts, error);
        *seconds = seconds_now(o) - start;
        return status;
    }
    pthread_mutex_lock(t->turn);
    double start = seconds_now(o);
    kakeya_status status = backend_draft_one(t->ops, t->model, t->cache, bonus, n, drafts, error);
    *seconds = seconds_now(o) - start;
    pthread_mutex_unlock(t->turn);
    return status;
}

/* Cuts drafts at the first one that can never be sampled. */
static int usable_drafts(const decode_workspace *w, const int32_t *drafts, int n) {
    for (int i = 0; i < n; i++)
        if (drafts[i] < 0 || drafts[i] >= w->sampler.vocab || sampler_suppresses(&w->sampler, drafts[i])) return i;
    return n;
}

/* Lets the text continue the drafts of DFlash, or their beginning where it seems to know better: the n-gram index takes
 * them for written, one by one, and is asked behind each. */
static void extend_drafts(decode_timeline *t, decode_workspace *w, int limit, block_state *b) {
    int32_t *drafts = b->tokens + 1, more[BACKEND_MAX_DRAFT], best_more[BACKEND_MAX_DRAFT];
    int n = b->block.drafted, best_found = 0, best_match = 0;
    draft_extension best = draft_control_extend(&w->control, n, 0, 0);
    memcpy(t->tokens + t->n, drafts, (size_t)n * sizeof *drafts);
    for (int kept = 1; kept <= n && kept < limit; kept++) {
        int match;
        ngram_extend(&w->ngram, t->tokens, t->n + (size_t)kept);
        int found = usable_drafts(w, more, ngram_draft(&w->ngram, t->tokens, limit - kept, more, &match));
        draft_extension extension = draft_control_extend(&w->control, kept, found, match);
        if (found == 0 || extension.more == 0 || extension.value <= best.value) continue;
        best = extension;
        best_found = found;
        best_match = match;
        memcpy(best_more, more, (size_t)found * sizeof *more);
    }
    ngram_truncate(&w->ngram, t->tokens, t->n);
    draft_control_watch(&w->control, DRAFT_DFLASH, 0, drafts, best.kept, n);
    memcpy(drafts + best.kept, best_more, (size_t)best_found * sizeof *drafts);
    b->block.looked_up = best.more;
    b->block.ngram_match = best_match;
    b->block.drafted = best.kept + best.more;
    if (best_found)
        draft_control_watch_extension(&w->control, best_match, drafts, best.kept, b->block.drafted,
                                      best.kept + best_found);
}

/* Fills b->tokens behind the bonus according to the mode; limit: drafts that the block may hold. */
static kakeya_status choose_drafts(decode_timeline *t, decode_workspace *w, const decode_options *o, int limit,
                                   block_state *b, kakeya_error *error) {
    int32_t *drafts = b->tokens + 1;
    int32_t found[BACKEND_MAX_DRAFT];
    int n_found = 0, match = 0;
    if (uses_ngrams(o)) {
        ngram_extend(&w->ngram, t->tokens, t->n);
        n_found = ngram_draft(&w->ngram, t->tokens, o->draft_length, found, &match);
        n_found = usable_drafts(w, found, n_found);
    }

    draft_plan plan = {.source = DRAFT_NONE};
    switch (o->mode) {
    case KAKEYA_MODE_AUTO:
        plan = draft_control_plan(&w->control, limit, n_found, match);
        break;
    case KAKEYA_MODE_SPECULATIVE:
        plan = (draft_plan){.source = DRAFT_DFLASH, .length = limit};
        break;
    case KAKEYA_MODE_NGRAM:
        plan = (draft_plan){.source = DRAFT_NGRAM, .length = n_found < limit ? n_found : limit};
        break;
    case KAKEYA_MODE_AR:
        break;
    }
    if (plan.length <= 0) plan.source = DRAFT_NONE;

    b->block.source = plan.source;
    if (plan.source == DRAFT_DFLASH) {
        kakeya_status status = ask_drafter(t, o, plan.length, drafts, &b->block.draft_seconds, error);
        if (status != KAKEYA_OK) return status;
        b->block.asked = plan.length;
        b->block.drafted = usable_drafts(w, drafts, plan.length);
        if (o->mode == KAKEYA_MODE_AUTO && b->block.drafted == plan.length) extend_drafts(t, w, limit, b);
    } else if (plan.source == DRAFT_NGRAM) {
        memcpy(drafts, found, (size_t)plan.length * sizeof *drafts);
        b->block.drafted = plan.length;
        b->block.ngram_match = match;
    }
    if (o->mode != KAKEYA_MODE_AUTO) return KAKEYA_OK;

    if (plan.source != DRAFT_NGRAM && n_found) draft_control_watch(&w->control, DRAFT_NGRAM, match, found, 0, n_found);
    if (plan.watch_length) {
        int32_t watched[BACKEND_MAX_DRAFT];
        kakeya_status status = ask_drafter(t, o, plan.watch_length, watched, &b->watch_seconds, error);
        if (status != KAKEYA_OK) return status;
        b->watch_drafts = plan.watch_length;
        draft_control_watch(&w->control, DRAFT_DFLASH, 0, watched, 0, plan.watch_length);
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

static kakeya_status choose_token(decode_timeline *t, decode_workspace *w, const decode_options *o, row_result row,
                                  output_token *out, kakeya_error *error) {
    *out = (output_token){.position = t->n, .log_probabilities.chosen = (double)NAN};
    if (row.token) {
        out->token = *row.token;
        if (out->token < 0)
            return error_set(error, KAKEYA_BACKEND, "sampling at position %zu: the logits are not finite numbers",
                             t->n);
        if (row.log_probabilities) out->log_probabilities = *row.log_probabilities;
        return KAKEYA_OK;
    }
    kakeya_status status = sampler_sample(&w->sampler, row.logits, t->tokens, t->n, &out->token, error);
    if (status == KAKEYA_OK && o->log_probabilities)
        log_probabilities_of_row(row.logits, t->vocab, out->token, o->top_log_probabilities, &out->log_probabilities);
    return status;
}

/* Chooses the token behind tokens[0..n) and lets the output decide about it. */
static kakeya_status take_next(decode_timeline *t, decode_workspace *w, const decode_options *o, row_result row,
                               bool last, decode_output *output, int32_t *token, output_verdict *verdict,
                               kakeya_error *error) {
    output_token chosen;
    kakeya_status status = choose_token(t, w, o, row, &chosen, error);
    if (status != KAKEYA_OK) return status;
    status = output_take(output, &chosen, last, verdict, error);
    if (status != KAKEYA_OK || *verdict == OUTPUT_REFUSED) return status;
    *token = chosen.token;
    t->tokens[t->n++] = chosen.token;
    if (*verdict != OUTPUT_TAKEN || !is_cancelled(o)) return KAKEYA_OK;
    *verdict = OUTPUT_TAKEN_LAST;
    return output_cut(output, KAKEYA_FINISH_CANCELLED, error);
}

/* Keeps the block's first `taken` rows: exactly the tokens before the timeline's last one. */
static kakeya_status commit_rows(decode_timeline *t, const decode_options *o, block_state *b, kakeya_error *error) {
    pthread_mutex_lock(t->turn);
    double start = seconds_now(o);
    kakeya_status status = t->ops->cache_commit(t->cache, b->taken, error);
    b->block.verify_seconds += seconds_now(o) - start;
    if (status != KAKEYA_OK) (void)t->ops->cache_commit(t->cache, 0, NULL);
    pthread_mutex_unlock(t->turn);
    size_t length = (size_t)t->ops->cache_length(t->cache);
    if (status == KAKEYA_OK)
        memset(t->row_kind + length - (size_t)b->taken, SEGMENT_DECODE, (size_t)b->taken);
    else if (t->n > length + 1)
        t->n = length + 1;
    return status;
}

static void add_to_stats(kakeya_stats *stats, const draft_block *block, double watch_seconds) {
    stats->verifier_forwards++;
    stats->drafted_tokens += (uint64_t)block->drafted;
    stats->accepted_tokens += (uint64_t)block->accepted;
    for (int i = 0; i < block->drafted; i++) stats->drafted_at[i]++;
    for (int i = 0; i < block->accepted; i++) stats->accepted_at[i]++;
    stats->draft_seconds += block->draft_seconds + watch_seconds;
    stats->verify_seconds += block->verify_seconds;
}

/* Chooses the token of one row from its leading logits, or from the whole row where those do not decide; -1 for logits
 * that are not numbers. */
static kakeya_status choose_from_leaders(const decode_timeline *t, decode_workspace *w, const decode_options *o,
                                         int row, size_t position, int32_t *token, kakeya_error *error) {
    const backend_leaders *leaders = &w->leaders[row];
    token_log_probabilities *known = &w->log_probabilities[row];
    bool decided = sampler_draw_leaders(&w->sampler, leaders, position, token);
    if (decided && (*token < 0 || !o->log_probabilities)) return KAKEYA_OK;
    /* leaders know nothing of suppressed tokens, which have their part in the model's own softmax */
    if (decided && w->sampler.n_suppress == 0 &&
        log_probabilities_of_leaders(leaders, t->vocab, *token, o->top_log_probabilities, known))
        return KAKEYA_OK;
    kakeya_status status = t->ops->read_logits(t->model, 0, row, w->logits, error);
    if (status == KAKEYA_OK && !decided) status = sampler_sample(&w->sampler, w->logits, NULL, position, token, error);
    if (status == KAKEYA_OK && o->log_probabilities)
        log_probabilities_of_row(w->logits, t->vocab, *token, o->top_log_probabilities, known);
    return status;
}

/* Chooses the tokens of all rows up to the first draft that is not the chosen token. Needs the turn: whole rows are
 * still with the backend. */
static kakeya_status choose_rows(const decode_timeline *t, decode_workspace *w, const decode_options *o,
                                 const block_state *b, int32_t *chosen, kakeya_error *error) {
    for (int row = 0; row <= b->block.drafted; row++) {
        kakeya_status status = choose_from_leaders(t, w, o, row, t->n + (size_t)row, &chosen[row], error);
        if (status != KAKEYA_OK) return status;
        if (row < b->block.drafted && chosen[row] != b->tokens[row + 1]) break;
    }
    return KAKEYA_OK;
}

static kakeya_status decode_block(decode_timeline *t, decode_workspace *w, const decode_options *o, size_t remaining,
                                  decode_output *output, kakeya_stats *stats, output_verdict *verdict,
                                  kakeya_error *error) {
    block_state b = {.tokens = {t->tokens[t->n - 1]}};
    int limit = o->draft_length < w->rows - 1 ? o->draft_length : w->rows - 1;
    if ((size_t)limit > remaining - 1) limit = (int)(remaining - 1);
    kakeya_status status = choose_drafts(t, w, o, limit, &b, error);
    if (status != KAKEYA_OK) return status;

    int32_t known[BACKEND_MAX_DECODE_ROWS];
    backend_segment segment = {.cache = t->cache,
                               .tokens = b.tokens,
                               .n = b.block.drafted + 1,
                               .kind = SEGMENT_DECODE,
                               .logits = w->greedy || w->leading ? NULL : w->logits,
                               .leaders = w->leading ? w->leaders : NULL,
                               .temperature = w->leader_temperature,
                               .argmax = w->greedy ? known : NULL};
    pthread_mutex_lock(t->turn);
    double start = seconds_now(o);
    status = t->ops->forward(t->model, &segment, 1, error);
    kakeya_status drawn = !status && w->leading ? choose_rows(t, w, o, &b, known, error) : KAKEYA_OK;
    b.block.verify_seconds = seconds_now(o) - start;
    pthread_mutex_unlock(t->turn);
    if (status != KAKEYA_OK) return status;

    status = drawn; /* the rows are pending now: a failure commits none of them */
    for (int row = 0; row < segment.n && !status; row++) {
        int32_t token;
        row_result result = {.token = &known[row],
                             .log_probabilities =
                                 w->leading && o->log_probabilities ? &w->log_probabilities[row] : NULL};
        if (!w->greedy && !w->leading) result = (row_result){.logits = w->logits + (size_t)row * (size_t)t->vocab};
        bool last = remaining == (size_t)b.taken + 1;
        status = take_next(t, w, o, result, last, output, &token, verdict, error);
        if (status != KAKEYA_OK || *verdict == OUTPUT_REFUSED) break;
        b.taken++;
        if (o->mode == KAKEYA_MODE_AUTO) draft_control_token(&w->control, token);
        bool accepted = row < b.block.drafted && token == b.tokens[row + 1];
        b.block.accepted += accepted;
        if (!accepted || *verdict == OUTPUT_TAKEN_LAST) break;
    }
    kakeya_status committed = commit_rows(t, o, &b, status == KAKEYA_OK ? error : NULL);
    if (status == KAKEYA_OK) status = committed;
    if (status != KAKEYA_OK) return status;

    add_to_stats(stats, &b.block, b.watch_seconds);
    if (o->mode == KAKEYA_MODE_AUTO) draft_control_record(&w->control, &b.block, b.watch_seconds, b.watch_drafts);
    if (o->trace) o->trace(o->trace_user, &(decode_trace_block){.block = b.block, .taken = b.taken});
    return KAKEYA_OK;
}

kakeya_status decode_run(decode_timeline *t, decode_workspace *w, const decode_options *o, decode_output *output,
                         kakeya_stats *stats, kakeya_error *error) {
    size_t start = t->n;
    output_verdict verdict = OUTPUT_TAKEN;
    kakeya_status status = KAKEYA_OK;
    bool cancelled = is_cancelled(o);
    if (t->has_logits && !cancelled) {
        int32_t token;
        status =
            take_next(t, w, o, (row_result){.logits = t->logits}, o->max_tokens == 1, output, &token, &verdict, error);
        t->has_logits = false; /* used up; after a failure the row is computed again */
    }
    while (status == KAKEYA_OK && verdict == OUTPUT_TAKEN && !(cancelled = cancelled || is_cancelled(o)))
        status = decode_block(t, w, o, o->max_tokens - (t->n - start), output, stats, &verdict, error);
    if (status == KAKEYA_OK && verdict == OUTPUT_TAKEN) status = output_cut(output, KAKEYA_FINISH_CANCELLED, error);
    stats->completion_tokens += t->n > start ? t->n - start : 0;
    stats->finish = output->finish;
    return status;
}
