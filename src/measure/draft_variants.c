#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "measure/draft_study.h"

typedef enum constant_kind { CONSTANT_DOUBLE, CONSTANT_FLOAT, CONSTANT_INT } constant_kind;

typedef struct constant {
    const char *name;
    size_t offset;
    constant_kind kind;
    double most; /* shares and rates end at 1 */
} constant;

#define CONSTANT(field, kind, most)                                                                                    \
    { #field, offsetof(draft_policy, field), kind, most }
static const constant constants[] = {
    CONSTANT(probe_share, CONSTANT_DOUBLE, 1),        CONSTANT(shadow_share, CONSTANT_DOUBLE, 1),
    CONSTANT(acceptance_memory, CONSTANT_FLOAT, 1e6), CONSTANT(advantage, CONSTANT_DOUBLE, 4),
    CONSTANT(passage_share, CONSTANT_DOUBLE, 1),      CONSTANT(recent_blocks, CONSTANT_DOUBLE, 1e6),
    CONSTANT(surprises, CONSTANT_INT, 1e6),           CONSTANT(memory_after_surprise, CONSTANT_FLOAT, 1e6),
    CONSTANT(assumed_row_share, CONSTANT_DOUBLE, 1),  CONSTANT(assumed_draft_share, CONSTANT_DOUBLE, 1),
    CONSTANT(assumed_dflash_rate, CONSTANT_FLOAT, 1), CONSTANT(assumed_ngram_next_rate, CONSTANT_FLOAT, 1),
    CONSTANT(assumed_weight, CONSTANT_FLOAT, 1e6),    CONSTANT(expected_weight, CONSTANT_FLOAT, 1e6),
};

static double value_of(const draft_policy *p, const constant *c) {
    const char *at = (const char *)p + c->offset;
    double d;
    float f;
    int i;
    switch (c->kind) {
    case CONSTANT_DOUBLE:
        return memcpy(&d, at, sizeof d), d;
    case CONSTANT_FLOAT:
        return memcpy(&f, at, sizeof f), (double)f;
    default:
        return memcpy(&i, at, sizeof i), (double)i;
    }
}

static double set_value(draft_policy *p, const constant *c, double value) {
    if (value > c->most) value = c->most;
    char *at = (char *)p + c->offset;
    float f = (float)value;
    int i = (int)(value + 0.5);
    switch (c->kind) {
    case CONSTANT_DOUBLE:
        memcpy(at, &value, sizeof value);
        break;
    case CONSTANT_FLOAT:
        memcpy(at, &f, sizeof f);
        break;
    default:
        memcpy(at, &i, sizeof i);
        break;
    }
    return value_of(p, c);
}

static draft_variant *add(draft_variant *out, int *n, const char *name) {
    draft_variant *v = &out[(*n)++];
    v->policy = draft_policy_default;
    snprintf(v->name, sizeof v->name, "%s", name);
    return v;
}

int draft_variants(draft_variant out[DRAFT_MAX_VARIANTS]) {
    int n = 0;
    for (size_t c = 0; c < sizeof constants / sizeof constants[0]; c++) {
        double usual = value_of(&draft_policy_default, &constants[c]);
        for (int twice = 0; twice < 2; twice++) {
            draft_variant *v = add(out, &n, constants[c].name);
            double value = set_value(&v->policy, &constants[c], twice ? 2 * usual : usual / 2);
            snprintf(v->name, sizeof v->name, "%s %g", constants[c].name, value);
            if (value == usual) n--;
        }
    }
    draft_variant *v = add(out, &n, "without probes");
    v->policy.probe_share = -1;
    v = add(out, &n, "without shadow drafts");
    v->policy.shadow_share = 0;
    v = add(out, &n, "without advantage");
    v->policy.advantage = 1;
    v = add(out, &n, "without surprises");
    v->policy.surprises = 1 << 30;
    v = add(out, &n, "all matches alike");
    for (int m = 1; m <= NGRAM_MAX_MATCH; m++) v->policy.assumed_ngram_rate[m] = 0.5f;
    return n;
}
