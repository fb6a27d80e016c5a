#include "measure/verify_comparison.h"

#include <string.h>

static const struct {
    const char *name, *text;
} comparisons[VERIFY_COMPARISONS] = {
    [VERIFY_REFERENCE] = {"reference", "the reference: alone, the prompt in one piece, one row at a time"},
    [VERIFY_ROWS] = {"rows", "k + 1 rows at a time, drafts from the reference"},
    [VERIFY_NGRAM] = {"ngram", "drafts from the text (n-grams)"},
    [VERIFY_DRAFTER] = {"drafter", "drafts from the drafter"},
    [VERIFY_AUTO] = {"auto", "drafts of any source and length (auto)"},
    [VERIFY_CHUNKS] = {"chunks", "the prompt in pieces"},
    [VERIFY_FORKED] = {"forked", "forked in the middle of the answer"},
    [VERIFY_TRUNCATED] = {"truncated", "truncated, and the end computed again"},
    [VERIFY_PARKED] = {"parked", "parked in the middle of the answer"},
    [VERIFY_BATCH] = {"batch", "among other sessions, one row at a time"},
    [VERIFY_MIXED] = {"mixed", "among other sessions, with drafts"},
    [VERIFY_THREADS] = {"threads", "in another process, with other threads"},
    [VERIFY_SAVED] = {"saved", "saved, and gone on with in another process"},
};

const char *verify_comparison_name(verify_comparison comparison) { return comparisons[comparison].name; }
const char *verify_comparison_text(verify_comparison comparison) { return comparisons[comparison].text; }

bool verify_comparison_find(const char *name, verify_comparison *out) {
    for (int c = 0; c < VERIFY_COMPARISONS; c++) {
        if (strcmp(comparisons[c].name, name) != 0) continue;
        *out = (verify_comparison)c;
        return true;
    }
    return false;
}

bool verify_is_elsewhere(verify_comparison comparison) {
    return comparison == VERIFY_THREADS || comparison == VERIFY_SAVED;
}
