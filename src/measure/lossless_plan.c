#include "measure/lossless_plan.h"

#include <string.h>

#include "backend/backend.h"

const char *const lossless_kind_names[LOSSLESS_KINDS] = {"needle", "code", "random"};
const int lossless_threads[LOSSLESS_ENGINES] = {2, 1};
static const double temperatures[LOSSLESS_TEMPERATURES] = {0, 0.7, 1};
static const int chunks[LOSSLESS_CHUNKS] = {0, 13, 64, 129};

int lossless_kind(int prompt) { return prompt % LOSSLESS_KINDS; }

double lossless_temperature(int prompt) {
    return temperatures[(prompt + prompt / LOSSLESS_KINDS) % LOSSLESS_TEMPERATURES];
}

size_t lossless_variants(int prompt, const char *policy, bool drafter, int reference_prompts,
                         lossless_variant out[LOSSLESS_MAX_VARIANTS]) {
    bool brief = strcmp(policy, "sink-window") == 0 || strcmp(policy, "restored-all") == 0;
    bool slow = prompt < reference_prompts && !brief;
    int length = prompt % BACKEND_MAX_DRAFT + 1, other_length = (prompt * 5 + 3) % BACKEND_MAX_DRAFT + 1;
    int chunk = chunks[1 + prompt % (LOSSLESS_CHUNKS - 1)];
    const struct {
        lossless_variant variant;
        bool wanted;
    } plan[LOSSLESS_MAX_VARIANTS] = {
        {{"ar", 0, 0, 0, false}, true},
        {{"speculative", length, 0, 0, false}, drafter},
        {{"speculative", other_length, chunk, 1, false}, drafter && !brief},
        {{"ngram", other_length, 0, 0, false}, !brief},
        {{"auto", 0, 0, 0, false}, !brief},
        {{"ar", 0, chunk, 1, false}, !brief},
        {{"auto", 0, chunk, 1, true}, true},
        {{"reforward", 0, 0, 0, false}, slow},
        {{"unfused", length, 0, 0, false}, slow && drafter},
    };
    size_t n = 0;
    for (size_t i = 0; i < LOSSLESS_MAX_VARIANTS; i++)
        if (plan[i].wanted) out[n++] = plan[i].variant;
    return n;
}

size_t lossless_dropped(size_t n) { return n / 2 < LOSSLESS_MOST_DROPPED ? n / 2 : LOSSLESS_MOST_DROPPED; }

static int smaller(int a, int b) { return a < b ? a : b; }

bool lossless_add_promises(cJSON *options, int prompts, bool drafter, int reference_prompts) {
    static const char *const modes[] = {"ar", "ngram", "auto", "speculative"};
    static const char *const slow_modes[] = {"reforward", "unfused"};
    cJSON *names = cJSON_CreateStringArray(modes, drafter ? 4 : 3);
    for (int i = 0; names && reference_prompts > 0 && i < 1 + drafter; i++)
        cJSON_AddItemToArray(names, cJSON_CreateString(slow_modes[i]));
    const struct {
        const char *key;
        cJSON *list;
    } lists[] = {
        {"modes", names},
        {"prompt_kinds", cJSON_CreateStringArray(lossless_kind_names, smaller(prompts, LOSSLESS_KINDS))},
        {"temperatures", cJSON_CreateDoubleArray(temperatures, smaller(prompts, LOSSLESS_TEMPERATURES))},
        {"threads", cJSON_CreateIntArray(lossless_threads, LOSSLESS_ENGINES)},
        {"prompt_chunks", cJSON_CreateIntArray(chunks, smaller(prompts + 1, LOSSLESS_CHUNKS))},
    };
    bool added = true;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        added &= lists[i].list && cJSON_AddItemToObject(options, lists[i].key, lists[i].list);
    return added;
}
