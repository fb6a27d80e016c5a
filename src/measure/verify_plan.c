#include "measure/verify_plan.h"

#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/hash.h"

static const int chunks[] = {7, 13, 1, 64, 5, 32};
enum { CHUNKS = sizeof chunks / sizeof chunks[0], LONG_PERIOD = 8, LONG_ROUND = 3 };

bool verify_is_long(int round) { return round % LONG_PERIOD == LONG_ROUND; }

/* Draft lengths go round with streams and rounds; 5 has no divisor in common with their number. */
static verify_stream stream_of(const verify_plan *plan, int round, int unit, verify_comparison comparison) {
    int index = round + unit + (int)comparison, length = index * 5 % BACKEND_MAX_DRAFT + 1;
    verify_stream s = {.comparison = comparison, .mode = "ar"};
    s.temperature = unit % VERIFY_TEMPERATURES;
    s.format = unit / VERIFY_TEMPERATURES % plan->formats;
    s.policy = unit / VERIFY_TEMPERATURES / plan->formats;
    switch (comparison) {
    case VERIFY_ROWS:
    case VERIFY_NGRAM:
        s.mode = "ngram";
        s.draft_length = length;
        break;
    case VERIFY_DRAFTER:
        s.mode = "speculative";
        s.draft_length = length;
        break;
    case VERIFY_AUTO:
        s.mode = "auto";
        break;
    case VERIFY_CHUNKS:
        s.prompt_chunk = chunks[round % CHUNKS];
        break;
    case VERIFY_MIXED:
        s.mode = index % 3 == 0 ? "auto" : index % 3 == 1 || !plan->drafter ? "ngram" : "speculative";
        s.draft_length = index % 3 == 0 ? 0 : length;
        break;
    default:
        break;
    }
    if (comparison == VERIFY_BATCH || comparison == VERIFY_MIXED)
        s.together = 2 * plan->policies * plan->formats * VERIFY_TEMPERATURES;
    return s;
}

int verify_round(const verify_plan *plan, int round, bool elsewhere, verify_stream out[VERIFY_STREAMS]) {
    int n = 0, prompts = plan->policies * plan->formats;
    for (int prompt = 0; prompt < prompts; prompt++) {
        for (int c = elsewhere ? VERIFY_THREADS : VERIFY_REFERENCE; c < (elsewhere ? VERIFY_COMPARISONS : VERIFY_BATCH);
             c++) {
            if (c == VERIFY_DRAFTER && !plan->drafter) continue;
            for (int t = 0; t < VERIFY_TEMPERATURES; t++)
                out[n++] = stream_of(plan, round, prompt * VERIFY_TEMPERATURES + t, (verify_comparison)c);
            for (int t = 0; t < VERIFY_TEMPERATURES && c == VERIFY_DRAFTER && plan->assistant; t++) {
                out[n] = stream_of(plan, round, prompt * VERIFY_TEMPERATURES + t, VERIFY_DRAFTER);
                out[n++].assistant = true;
            }
        }
    }
    for (int c = VERIFY_BATCH; c <= VERIFY_MIXED && !elsewhere; c++)
        for (int unit = 0; unit < prompts * VERIFY_TEMPERATURES; unit++)
            out[n++] = stream_of(plan, round, unit, (verify_comparison)c);
    return n;
}

const char *verify_prompt_kind(int round) { return round % 2 ? "random" : "text"; }

void verify_sample(const verify_plan *plan, int round, int policy, int format, char *out, size_t bytes) {
    snprintf(out, bytes, "%03d.%d/%s", round, policy * plan->formats + format, verify_prompt_kind(round));
}

uint64_t verify_seed(const verify_plan *plan, int round, int policy, int format) {
    const uint64_t place[] = {plan->seed, (uint64_t)round, (uint64_t)(policy * plan->formats + format)};
    return hash_fnv1a(HASH_FNV1A_START, place, sizeof place);
}

void verify_plan_row(const verify_plan *plan, int round, const verify_stream *stream, const char *policy,
                     const char *format, eval_row *row) {
    eval_arm *arm = &row->arm;
    verify_sample(plan, round, stream->policy, stream->format, row->sample, sizeof row->sample);
    snprintf(row->prompt_kind, sizeof row->prompt_kind, "%s", verify_prompt_kind(round));
    snprintf(arm->comparison, sizeof arm->comparison, "%s", verify_comparison_name(stream->comparison));
    snprintf(arm->policy, sizeof arm->policy, "%s", policy);
    snprintf(arm->mode, sizeof arm->mode, "%s", stream->mode);
    snprintf(arm->kv_format, sizeof arm->kv_format, "%s", format);
    if (stream->assistant) eval_arm_source(arm, "assistant");
    arm->as_stored = true;
    arm->draft_length = stream->draft_length;
    arm->prompt_chunk = stream->prompt_chunk;
    arm->together = stream->together;
    arm->temperature = stream->temperature;
    row->truncated = stream->comparison == VERIFY_TRUNCATED;
    row->has_log_probabilities = true;
}
