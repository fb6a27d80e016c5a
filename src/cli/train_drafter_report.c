#include "cli/train_drafter_report.h"

#include <cjson/cJSON.h>
#include <stdio.h>

#include "base/error.h"

const char *const drafter_kind_names[DRAFTER_KINDS] = {"text", "needles"};

static kakeya_status answer(kakeya_session *session, const int32_t *tokens, int n, int most, int drafts,
                            drafter_score *score, kakeya_error *error) {
    kakeya_generate_options generate;
    kakeya_stats stats = {0};
    kakeya_stats_init(&stats);
    kakeya_generate_options_init(&generate);
    generate.mode = KAKEYA_MODE_SPECULATIVE;
    generate.max_tokens = most;
    generate.draft_length = drafts;
    kakeya_status status = kakeya_session_sync(session, tokens, (size_t)n, NULL, NULL, NULL, error);
    if (!status) status = kakeya_session_generate(session, &generate, &stats, error);
    if (status) return status;
    score->answers++;
    score->tokens += stats.completion_tokens;
    score->forwards += stats.verifier_forwards;
    for (int i = 0; i < DRAFTER_PLACES; i++) {
        score->drafted[i] += stats.drafted_at[i];
        score->accepted[i] += stats.accepted_at[i];
    }
    return KAKEYA_OK;
}

kakeya_status drafter_measure(const kakeya_engine_options *engine, const kakeya_session_options *session,
                              const drafter_prompts *prompts, drafter_row *row, kakeya_progress_fn progress,
                              kakeya_error *error) {
    kakeya_engine_options options = *engine;
    kakeya_engine *opened = NULL;
    kakeya_session *answers = NULL;
    options.drafter = row->directory;
    options.progress = NULL;
    kakeya_status status = kakeya_engine_open(&options, &opened, error);
    if (!status) status = kakeya_session_open(opened, session, &answers, error);
    if (!status) row->drafts = kakeya_engine_drafter_block_size(opened) - 1;
    if (row->drafts > 16) row->drafts = 16; /* the most that a block may have */
    size_t all = 0, done = 0;
    for (int kind = 0; kind < DRAFTER_KINDS; kind++) all += prompts->of[kind]->n;
    for (int kind = 0; kind < DRAFTER_KINDS; kind++) {
        const corpus *c = prompts->of[kind];
        for (size_t i = 0; i < c->n && !status; i++) {
            status = answer(answers, c->tokens + c->sequence[i].begin, c->sequence[i].length, prompts->tokens[kind],
                            row->drafts, &row->score[kind], error);
            if (!status && progress && !progress(NULL, "held-out prompts", ++done, all))
                status = error_set(error, KAKEYA_CANCELLED, "interrupted");
        }
    }
    kakeya_session_close(answers);
    kakeya_engine_close(opened);
    return status;
}

static double share(uint64_t part, uint64_t of) { return of ? (double)part / (double)of : 0; }

void drafter_print(const drafter_row *rows, size_t n) {
    for (int kind = 0; kind < DRAFTER_KINDS; kind++) {
        if (!n || !rows[0].score[kind].answers) continue;
        printf("\nHeld out, %s: %llu answers\n", drafter_kind_names[kind],
               (unsigned long long)rows[0].score[kind].answers);
        printf("%-10s %12s   drafts that hold, by place\n", "drafter", "tokens a");
        printf("%-10s %12s ", "", "forward");
        for (int i = 0; i < rows[0].drafts; i++) printf(" %5d", i + 1);
        printf("\n");
        for (size_t r = 0; r < n; r++) {
            const drafter_score *s = &rows[r].score[kind];
            printf("%-10s %12.2f ", rows[r].name, share(s->tokens, s->forwards));
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
            cJSON *held = cJSON_AddArrayToObject(json, "held_by_place");
            for (int i = 0; i < rows[r].drafts; i++)
                cJSON_AddItemToArray(held, cJSON_CreateNumber(share(s->accepted[i], s->drafted[i])));
        }
    }
    return array;
}
