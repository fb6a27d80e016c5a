/* Automata of patterns and formats that a document asks for again and again. */
#include <string.h>

#include "base/hash.h"
#include "grammar/formats.h"
#include "grammar/regex.h"
#include "grammar/schema_private.h"

enum { MAX_KEPT_STATES = 40000 };

static struct schema_pattern *slot_of(schema_compiler *c, const char *text, bool format) {
    uint32_t at = (uint32_t)(hash_fnv1a(HASH_FNV1A_START, text, strlen(text)) >> 20) % SCHEMA_MAX_PATTERNS;
    for (; c->patterns[at].text; at = (at + 1) % SCHEMA_MAX_PATTERNS)
        if (c->patterns[at].format == format && strcmp(c->patterns[at].text, text) == 0) break;
    return &c->patterns[at];
}

static kakeya_status make(struct schema_pattern *p, kakeya_error *error) {
    if (p->format) return format_dfa(p->text, &p->dfa, &p->most, error);
    return regex_compile(p->text, strlen(p->text), REGEX_SEARCH, &p->dfa, error);
}

const struct schema_pattern *schema_pattern(schema_compiler *c, const cJSON *at, const char *text, bool format) {
    kakeya_error error = {0};
    struct schema_pattern *own = slot_of(c, text, format);
    if (own->text) return own;
    dfa_free(&c->spare.dfa);
    c->spare = (struct schema_pattern){.text = text, .format = format};
    kakeya_status status = make(&c->spare, &error);
    bool made = status == KAKEYA_OK || status == KAKEYA_INVALID_ARGUMENT;
    if (!made) schema_cannot(c, at, status, "%s", error.message);
    schema_spend_on(c, at, &c->spare.dfa);
    if (!made) return NULL;
    c->n_pattern_states += c->spare.dfa.n_states;
    if (c->n_patterns > SCHEMA_MAX_PATTERNS / 2 || c->n_pattern_states > MAX_KEPT_STATES) return &c->spare;
    *own = c->spare;
    c->spare.dfa = (dfa){0};
    c->n_patterns++;
    return own;
}

void schema_forget_patterns(schema_compiler *c) {
    for (uint32_t i = 0; i < SCHEMA_MAX_PATTERNS; i++) dfa_free(&c->patterns[i].dfa);
    dfa_free(&c->spare.dfa);
    memset(c->patterns, 0, sizeof c->patterns);
    c->n_patterns = c->n_pattern_states = 0;
}
