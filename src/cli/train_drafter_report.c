#include "cli/train_drafter_report.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "cli/terminal.h"

const char *const drafter_kind_names[DRAFTER_KINDS] = {"text", "needles"};

enum { TOGETHER = 16 /* answers that are made at a time: their number shows in no count */ };

static bool on_event(void *user, const kakeya_event *event) {
    (void)user, (void)event;
    return !terminal_interrupted();
}

static kakeya_status ask(kakeya_session *session, const int32_t *tokens, int n, int most, int drafts,
                         kakeya_request **out, kakeya_error *error) {
    kakeya_generate_options generate;
    kakeya_request_options request;
    KAKEYA_INIT(&generate);
    generate.mode = KAKEYA_MODE_SPECULATIVE;
    generate.max_tokens = most;
    generate.draft_length = drafts;
    generate.on_event = on_event;
    KAKEYA_INIT(&request);
    request.tokens = tokens;
    request.n_tokens = (size_t)n;
    request.generate = &generate;
    return kakeya_session_submit(session, &request, out, error);
}

static void add_answer(drafter_score *score, const kakeya_stats *stats) {
    score->each[score->answers++] =
        (drafter_answer){(uint32_t)stats->completion_tokens, (uint32_t)stats->verifier_forwards};
    score->tokens += stats->completion_tokens;
    score->forwards += stats->verifier_forwards;
    for (int i = 0; i < DRAFTER_PLACES; i++) {
        score->drafted[i] += stats->drafted_at[i];
        score->accepted[i] += stats->accepted_at[i];
    }
}

/* Answers to prompts [first, first + n). */
static kakeya_status answer(kakeya_session *const *sessions, const corpus *prompts, size_t first, int n, int most,
                            drafter_row *row, drafter_score *score, kakeya_error *error) {
    kakeya_request *request[TOGETHER] = {0};
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < n && !status; i++) {
        const corpus_sequence *s = &prompts->sequence[first + (size_t)i];
        status = ask(sessions[i], prompts->tokens + s->begin, s->length, most, row->drafts, &request[i], error);
    }
    for (int i = 0; i < n; i++) {
        kakeya_stats stats;
        kakeya_error own = {0};
        KAKEYA_INIT(&stats);
        kakeya_status one = request[i] ? kakeya_request_wait(request[i], &stats, &own) : KAKEYA_OK;
        if (one && !status) {
            status = one;
            if (error) *error = own;
        }
        if (!status && terminal_interrupted()) status = error_set(error, KAKEYA_CANCELLED, "interrupted");
        if (!status) add_answer(score, &stats);
    }
    return status;
}

kakeya_status drafter_measure(const kakeya_engine_options *engine, const kakeya_session_options *session,
                              const drafter_prompts *prompts, drafter_row *row, kakeya_progress_fn progress,
                              kakeya_error *error) {
    kakeya_engine_options options = *engine;
    kakeya_engine *opened = NULL;
    kakeya_session *sessions[TOGETHER] = {0};
    options.drafter = row->directory;
    options.second_drafter = NULL;
    options.progress = NULL;
    kakeya_status status = kakeya_engine_open(&options, &opened, error);
    for (int i = 0; i < TOGETHER && !status; i++) status = kakeya_session_open(opened, session, &sessions[i], error);
    if (!status) row->drafts = kakeya_engine_drafter_block_size(opened) - 1;
    if (row->drafts > 16) row->drafts = 16; /* the most that a block may have */
    size_t all = 0, done = 0;
    for (int kind = 0; kind < DRAFTER_KINDS; kind++) all += prompts->of[kind]->n;
    for (int kind = 0; kind < DRAFTER_KINDS && !status; kind++) {
        const corpus *c = prompts->of[kind];
        row->score[kind].each = calloc(c->n + 1, sizeof *row->score[kind].each);
        if (!row->score[kind].each)
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: answers to held-out prompts");
        for (size_t i = 0, some; i < c->n && !status; i += some) {
            some = c->n - i < TOGETHER ? c->n - i : TOGETHER;
            status = answer(sessions, c, i, (int)some, prompts->tokens[kind], row, &row->score[kind], error);
            done += some;
            if (!status && progress && !progress(NULL, "held-out prompts", done, all))
                status = error_set(error, KAKEYA_CANCELLED, "interrupted");
        }
    }
    for (int i = 0; i < TOGETHER; i++) kakeya_session_close(sessions[i]);
    kakeya_engine_close(opened);
    return status;
}

void drafter_row_free(drafter_row *row) {
    for (int kind = 0; kind < DRAFTER_KINDS; kind++) free(row->score[kind].each);
}

static double share(uint64_t part, uint64_t of) { return of ? (double)part / (double)of : 0; }

/* Tokens per forward is a ratio of two sums over answers. By how much, as a share of it, other answers would have
 * changed it: half of an interval of 95 %, by linearisation. With `other`, the same of the quotient of two such ratios
 * for the same prompts. Of two answers or more. */
static double uncertainty(const drafter_score *s, const drafter_score *other) {
    static const double normal = 1.96;
    double squares = 0, n = (double)s->answers;
    for (uint64_t i = 0; i < s->answers; i++) {
        double part = share(s->each[i].tokens, s->tokens) - share(s->each[i].forwards, s->forwards);
        if (other)
            part -= share(other->each[i].tokens, other->tokens) - share(other->each[i].forwards, other->forwards);
        squares += part * part;
    }
    return normal * sqrt(squares * n / (n - 1));
}

void drafter_print(const drafter_row *rows, size_t n) {
    for (int kind = 0; kind < DRAFTER_KINDS; kind++) {
        if (!n || !rows[0].score[kind].answers) continue;
        printf("\nHeld out, %s: %llu answers; +- is half of a 95 %% interval\n", drafter_kind_names[kind],
               (unsigned long long)rows[0].score[kind].answers);
        printf("%-10s %16s %18s   drafts that hold, by place\n", "drafter", "tokens a forward", n > 1 ? "against" : "");
        printf("%-10s %16s %18s ", "", "", n > 1 ? rows[0].name : "");
        for (int i = 0; i < rows[0].drafts; i++) printf(" %5d", i + 1);
        printf("\n");
        for (size_t r = 0; r < n; r++) {
            const drafter_score *s = &rows[r].score[kind];
            const drafter_score *first = &rows[0].score[kind];
            double tokens = share(s->tokens, s->forwards);
            char more[32] = "", against[32] = "";
            if (s->answers > 1) snprintf(more, sizeof more, "+- %.2f", tokens * uncertainty(s, NULL));
            if (s->answers > 1 && r && first->tokens)
                snprintf(against, sizeof against, "%+.1f +- %.1f %%",
                         100 * (tokens / share(first->tokens, first->forwards) - 1), 100 * uncertainty(s, first));
            printf("%-10s %7.2f %-8s %18s ", rows[r].name, tokens, more, against);
            for (int i = 0; i < rows[r].drafts; i++) printf(" %5.3f", share(s->accepted[i], s->drafted[i]));
            printf("\n");
        }
    }
}

cJSON *drafter_json(const drafter_row *rows, size_t n) {
    cJSON *array = cJSON_CreateArray();
    for (size_t r = 0; r < n && array; r++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddItemToArray(array, row);
        cJSON_AddStringToObject(row, "name", rows[r].name);
        cJSON_AddStringToObject(row, "directory", rows[r].directory);
        cJSON_AddNumberToObject(row, "drafts", rows[r].drafts);
        for (int kind = 0; kind < DRAFTER_KINDS; kind++) {
            const drafter_score *s = &rows[r].score[kind];
            if (!s->answers) continue;
            cJSON *json = cJSON_AddObjectToObject(row, drafter_kind_names[kind]);
            cJSON_AddNumberToObject(json, "answers", (double)s->answers);
            cJSON_AddNumberToObject(json, "tokens", (double)s->tokens);
            cJSON_AddNumberToObject(json, "forwards", (double)s->forwards);
            cJSON_AddNumberToObject(json, "tokens_per_forward", share(s->tokens, s->forwards));
            cJSON *held = cJSON_AddArrayToObject(json, "held_by_place"),
                  *tokens = cJSON_AddArrayToObject(json, "answer_tokens"),
                  *forwards = cJSON_AddArrayToObject(json, "answer_forwards");
            for (int i = 0; i < rows[r].drafts; i++)
                cJSON_AddItemToArray(held, cJSON_CreateNumber(share(s->accepted[i], s->drafted[i])));
            for (uint64_t i = 0; i < s->answers; i++) {
                cJSON_AddItemToArray(tokens, cJSON_CreateNumber(s->each[i].tokens));
                cJSON_AddItemToArray(forwards, cJSON_CreateNumber(s->each[i].forwards));
            }
        }
    }
    return array;
}
