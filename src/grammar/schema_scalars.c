/* Numbers and strings that follow the claims of a branch. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "grammar/formats.h"
#include "grammar/numbers.h"
#include "grammar/regex.h"
#include "grammar/schema.h"
#include "grammar/schema_private.h"

enum { MAX_LENGTH = 1000000000, MULTIPLIED_LENGTH = 256, MAX_LARGE = 8, MAX_EXCLUDED = 200 };

void schema_count_states(schema_compiler *c, const cJSON *at, const dfa *made) {
    if (!program_count_states(c->program, made))
        schema_fail(c, at, KAKEYA_UNSUPPORTED,
                    "too large: the automata of all strings and numbers have too many states");
}

/* An automaton that may come to accept nothing. Without states: everything. */
typedef struct language {
    schema_compiler *c;
    const cJSON *at; /* the keyword that is being followed */
    dfa dfa;
    bool empty;
} language;

static void take(language *l, dfa_result result, dfa *made) {
    kakeya_error error = {0};
    schema_spend_on(l->c, l->at, made);
    if (result == DFA_EMPTY) {
        l->empty = true;
    } else if (result != DFA_OK) {
        kakeya_status status = regex_error(result, "the value", &error);
        schema_cannot(l->c, l->at, status, "%s", error.message);
        return; /* what it was before: wider */
    }
    dfa_free(&l->dfa);
    l->dfa = *made;
    *made = (dfa){0};
}

/* An automaton that the value shall follow, however it went. */
static void spend(language *l, const dfa *made) { schema_spend_on(l->c, l->at, made); }

/* Only what `other` accepts, or only what it does not; frees it. */
static void restrict_to(language *l, dfa *other, bool negated) {
    dfa made = {0};
    if (l->empty || l->c->status) {
    } else if (l->dfa.n_states == 0 && !negated) {
        l->dfa = *other;
        return;
    } else {
        take(l, dfa_combine(&l->dfa, other, negated ? DFA_WITHOUT : DFA_AND, &made), &made);
    }
    dfa_free(other);
}

/* -------------------------------------------------------------------------------------------------- nodes that are
 * there */

static uint64_t hash_text(uint64_t hash, const char *text) {
    return text ? hash_fnv1a(hash, text, strlen(text) + 1) : hash_fnv1a(hash, "", 1);
}

/* What the claims say about the types, as a hash: the same patterns and limits stand in many places. */
static uint64_t key_of(schema_branch *b, uint8_t types) {
    uint64_t hash = hash_fnv1a(HASH_FNV1A_START, &types, sizeof types);
    hash = hash_fnv1a(hash, &b->c->form, sizeof b->c->form);
    for (uint32_t i = 0; i < b->n_claims; i++) {
        const schema_claim *claim = &b->claims[i];
        const cJSON *item = claim->item;
        bool values = claim->kind == CLAIM_VALUES && claim->negated;
        if (!values && (claim->kind != CLAIM_KEYWORD || !(schema_keyword_of(item->string)->types & types))) continue;
        hash = hash_text(hash, item->string);
        hash = hash_fnv1a(hash, &claim->negated, sizeof claim->negated);
        hash = hash_fnv1a(hash, &item->type, sizeof item->type);
        hash = hash_text(hash, item->valuestring);
        bool old = cJSON_IsBool(schema_get(claim->owner, "exclusiveMinimum")) ||
                   cJSON_IsBool(schema_get(claim->owner, "exclusiveMaximum"));
        bool noted =
            strcmp(item->string, "format") == 0 && !(cJSON_IsString(item) && format_is_known(item->valuestring));
        if (values || old || noted) hash = hash_fnv1a(hash, &item, sizeof item); /* alike in this place alone */
    }
    return hash;
}

static uint32_t known_scalar(const schema_compiler *c, uint64_t key) {
    for (uint32_t i = 0; i < c->n_scalars && !c->loosen; i++)
        if (c->scalars[i].key == key) return c->scalars[i].node;
    return GRAMMAR_NOTHING;
}

static void know_scalar(schema_compiler *c, uint64_t key, uint32_t node) {
    if (c->status) return;
    if (c->n_scalars == c->scalar_capacity) {
        uint32_t capacity = c->scalar_capacity ? 2 * c->scalar_capacity : 64;
        struct schema_scalar *scalars = realloc(c->scalars, capacity * sizeof *scalars);
        if (!scalars) {
            schema_out_of_memory(c);
            return;
        }
        c->scalars = scalars;
        c->scalar_capacity = capacity;
    }
    c->scalars[c->n_scalars++] = (struct schema_scalar){key, node};
}

/* ---------------------------------------------------------------------------------------------------------- numbers */

typedef struct bound {
    const char *text;
    bool exclusive;
} bound;

static void tighten(bound *b, const char *text, bool exclusive, bool is_minimum) {
    int order = b->text ? number_compare(text, b->text) : 0;
    if (!b->text || (is_minimum ? order > 0 : order < 0)) *b = (bound){text, exclusive};
    if (b->text && order == 0) b->exclusive = b->exclusive || exclusive;
}

/* minimum and the like. exclusiveMinimum: true is an older way to write it. */
static void take_bound(schema_branch *b, const schema_claim *claim, bound *low, bound *high) {
    const char *key = claim->item->string;
    bool exclusive = key[0] == 'e', is_minimum = strstr(key, "inimum") != NULL;
    if (exclusive && cJSON_IsBool(claim->item)) return;
    if (!cJSON_IsRaw(claim->item)) {
        schema_cannot(b->c, claim->item, KAKEYA_FORMAT, "not a number");
        return;
    }
    if (!exclusive)
        exclusive = cJSON_IsTrue(schema_get(claim->owner, is_minimum ? "exclusiveMinimum" : "exclusiveMaximum"));
    if (claim->negated) {
        is_minimum = !is_minimum;
        exclusive = !exclusive;
    }
    tighten(is_minimum ? low : high, claim->item->valuestring, exclusive, is_minimum);
}

static void take_multiple(schema_branch *b, language *l, const cJSON *item) {
    kakeya_error error = {0};
    dfa made = {0};
    kakeya_status status = KAKEYA_FORMAT;
    l->at = item;
    if (!cJSON_IsRaw(item) || number_compare(item->valuestring, "0") <= 0)
        error_set(&error, KAKEYA_FORMAT, "not a number above 0");
    else
        status = number_multiples(item->valuestring, &made, &error);
    spend(l, &made);
    if (status != KAKEYA_OK) {
        schema_cannot(b->c, item, status, "%s", error.message);
        return;
    }
    restrict_to(l, &made, false);
    number_limits few = {.exact = true};
    status = number_dfa(&few, &made, &error);
    if (status != KAKEYA_OK) schema_fail(b->c, item, status, "%s", error.message);
    restrict_to(l, &made, false);
}

static void exclude_numbers(schema_branch *b, language *l, const cJSON *item) {
    static const char minus_zero[] = "-0(\\.0{1,20})?";
    const cJSON *value;
    kakeya_error error = {0};
    bool list = strcmp(item->string, "enum") == 0;
    uint32_t n = 0;
    l->at = item;
    for (value = list ? item->child : item; value; value = list ? value->next : NULL) {
        dfa made = {0};
        if (!cJSON_IsRaw(value) || b->c->status) continue;
        if (++n > MAX_EXCLUDED) {
            schema_cannot(b->c, item, KAKEYA_UNSUPPORTED, "more than %d numbers that it must not be",
                          (int)MAX_EXCLUDED);
            return;
        }
        number_limits one = {.minimum = value->valuestring, .maximum = value->valuestring};
        kakeya_status status = number_dfa(&one, &made, &error);
        spend(l, &made);
        if (status == KAKEYA_INVALID_ARGUMENT) continue; /* it is none of those that are given anyway */
        if (status != KAKEYA_OK)
            schema_cannot(b->c, item, status, "%s", error.message);
        else
            restrict_to(l, &made, true);
        if (number_compare(value->valuestring, "0") != 0 || b->c->status) continue;
        status = regex_compile(minus_zero, sizeof minus_zero - 1, REGEX_WHOLE, &made, &error);
        if (status != KAKEYA_OK) schema_fail(b->c, item, status, "%s", error.message);
        restrict_to(l, &made, true);
    }
}

static bool is_about_number(const schema_claim *claim) {
    if (claim->kind == CLAIM_VALUES) return claim->negated;
    return claim->kind == CLAIM_KEYWORD && (schema_keyword_of(claim->item->string)->types & TYPE_NUMBER);
}

static bool is_multiple(const cJSON *item) {
    return strcmp(item->string, "multipleOf") == 0 || strcmp(item->string, "divisibleBy") == 0;
}

static uint32_t add_number(schema_branch *b, uint8_t types) {
    schema_compiler *c = b->c;
    language l = {.c = c};
    bound low = {0}, high = {0};
    number_limits limits = {.integer = !(types & TYPE_FRACTION), .plain = !(types & TYPE_INTEGER)};
    for (uint32_t i = 0; i < b->n_claims; i++) {
        const schema_claim *claim = &b->claims[i];
        if (!is_about_number(claim)) continue;
        l.at = claim->item;
        limits.plain = limits.plain || claim->kind == CLAIM_VALUES || is_multiple(claim->item);
        if (claim->kind == CLAIM_KEYWORD && !is_multiple(claim->item)) take_bound(b, claim, &low, &high);
    }
    limits.minimum = low.text;
    limits.above_minimum = low.exclusive;
    limits.maximum = high.text;
    limits.below_maximum = high.exclusive;
    kakeya_error error = {0};
    kakeya_status status = c->status ? c->status : number_dfa(&limits, &l.dfa, &error);
    spend(&l, &l.dfa);
    l.empty = status == KAKEYA_INVALID_ARGUMENT;
    if (status != KAKEYA_OK && !l.empty) schema_fail(c, l.at, status, "%s", error.message);
    for (uint32_t i = 0; i < b->n_claims && !l.empty && !c->status; i++) {
        const schema_claim *claim = &b->claims[i];
        if (!is_about_number(claim)) continue;
        if (claim->kind == CLAIM_VALUES) exclude_numbers(b, &l, claim->item);
        if (claim->kind == CLAIM_KEYWORD && is_multiple(claim->item)) take_multiple(b, &l, claim->item);
    }
    for (int i = 0; i < 2 && !l.empty && !c->status && !(types & TYPE_INTEGER); i++) {
        dfa other = {0};
        number_limits fractions = {.fraction = i == 0, .whole = i == 1};
        status = number_dfa(&fractions, &other, &error);
        if (status != KAKEYA_OK) schema_fail(c, l.at, status, "%s", error.message);
        restrict_to(&l, &other, i == 1);
    }
    uint32_t node = schema_add_node(c, l.empty ? NODE_NEVER : NODE_DFA);
    schema_count_states(c, l.at, &l.dfa);
    if (c->status)
        dfa_free(&l.dfa);
    else
        c->program->nodes[node].dfa = l.dfa;
    return node;
}

uint32_t schema_number(schema_branch *b, uint8_t types) {
    uint64_t key = key_of(b, types & TYPE_NUMBER);
    uint32_t node = known_scalar(b->c, key);
    if (node != GRAMMAR_NOTHING) return node;
    node = add_number(b, types);
    know_scalar(b->c, key, node);
    return node;
}

/* ---------------------------------------------------------------------------------------------------------- strings */

typedef struct text {
    language l;
    uint32_t minimum, maximum;
} text;

static bool everything(language *l) {
    kakeya_error error = {0};
    if (l->dfa.n_states || l->empty) return true;
    kakeya_status status = regex_compile("[^]*", 4, REGEX_WHOLE, &l->dfa, &error);
    if (status != KAKEYA_OK) schema_fail(l->c, l->at, status, "%s", error.message);
    return status == KAKEYA_OK;
}

static void at_least(text *t, uint32_t n) { t->minimum = n > t->minimum ? n : t->minimum; }
static void at_most(text *t, uint32_t n) { t->maximum = n < t->maximum ? n : t->maximum; }

static void take_length(text *t, const cJSON *item, bool negated) {
    uint32_t n;
    bool is_minimum = item->string[1] == 'i';
    if (!schema_count(t->l.c, item, MAX_LENGTH, &n)) return;
    if (is_minimum && !negated) at_least(t, n);
    if (!is_minimum && !negated) at_most(t, n);
    if (is_minimum && negated && n == 0) t->l.empty = true;
    if (is_minimum && negated && n > 0) at_most(t, n - 1);
    if (!is_minimum && negated) at_least(t, n + 1);
}

static void take_pattern(text *t, const cJSON *item, const char *pattern, bool negated) {
    kakeya_error error = {0};
    dfa made = {0};
    uint32_t minimum = 0, maximum = GRAMMAR_NO_LIMIT;
    t->l.at = item;
    kakeya_status status = negated ? regex_compile(pattern, strlen(pattern), REGEX_SEARCH, &made, &error)
                                   : regex_compile_counted(pattern, strlen(pattern), &made, &minimum, &maximum, &error);
    if (status == KAKEYA_INVALID_ARGUMENT) {
        t->l.empty = t->l.empty || !negated; /* nothing matches */
    } else if (status != KAKEYA_OK) {
        t->l.c->n_large += status == KAKEYA_UNSUPPORTED;
        schema_cannot(t->l.c, item, status, "%s", error.message);
    }
    schema_spend_on(t->l.c, item, &made);
    if (status != KAKEYA_OK) return;
    at_least(t, minimum);
    at_most(t, maximum);
    if (negated && !everything(&t->l))
        dfa_free(&made);
    else
        restrict_to(&t->l, &made, negated);
}

static void take_format(text *t, const cJSON *item) {
    kakeya_error error = {0};
    dfa made = {0};
    uint32_t most;
    t->l.at = item;
    if (!cJSON_IsString(item) || !format_is_known(item->valuestring)) {
        schema_note(t->l.c, item); /* an annotation */
        return;
    }
    kakeya_status status = format_dfa(item->valuestring, &made, &most, &error);
    if (status != KAKEYA_OK) schema_cannot(t->l.c, item, status, "%s", error.message);
    schema_spend_on(t->l.c, item, &made);
    if (status != KAKEYA_OK) return;
    at_most(t, most);
    restrict_to(&t->l, &made, false);
}

void schema_add_word(schema_compiler *c, trie *words, const cJSON *value) {
    size_t bytes = cJSON_IsString(value) ? strlen(value->valuestring) : 0;
    uint16_t *letters = cJSON_IsString(value) ? malloc((bytes + 1) * sizeof *letters) : NULL;
    uint32_t word = 0;
    if (!cJSON_IsString(value)) return;
    for (size_t i = 0; i < bytes && letters; i++) letters[i] = (unsigned char)value->valuestring[i];
    if (!letters || !trie_add(words, letters, bytes, &word)) schema_out_of_memory(c);
    free(letters);
}

static void exclude_texts(text *t, const cJSON *item) {
    const cJSON *value;
    bool list = strcmp(item->string, "enum") == 0;
    t->l.at = item;
    trie words = {0};
    dfa made = {0};
    for (value = list ? item->child : item; value; value = list ? value->next : NULL)
        schema_add_word(t->l.c, &words, value);
    dfa_result result =
        words.n && !t->l.c->status && everything(&t->l) && !t->l.empty ? dfa_of_trie(&words, &made) : DFA_EMPTY;
    trie_free(&words);
    kakeya_error error = {0};
    if (result == DFA_OK)
        restrict_to(&t->l, &made, true);
    else if (result != DFA_EMPTY)
        schema_cannot(t->l.c, item, regex_error(result, "the values", &error), "%s", error.message);
}

static void take_string_claim(text *t, const schema_claim *claim) {
    const cJSON *item = claim->item;
    if (claim->kind == CLAIM_VALUES && claim->negated) exclude_texts(t, item);
    if (claim->kind != CLAIM_KEYWORD || schema_keyword_of(item->string)->types != TYPE_STRING) return;
    if (strcmp(item->string, "format") == 0)
        take_format(t, item);
    else if (strcmp(item->string, "pattern") != 0)
        take_length(t, item, claim->negated);
    else if (cJSON_IsString(item))
        take_pattern(t, item, item->valuestring, claim->negated);
    else
        schema_cannot(t->l.c, item, KAKEYA_FORMAT, "not a text");
}

static text text_of_branch(schema_branch *b) {
    text t = {.l.c = b->c, .maximum = GRAMMAR_NO_LIMIT};
    for (uint32_t i = 0; i < b->n_claims && !b->c->status && !t.l.empty; i++) take_string_claim(&t, &b->claims[i]);
    t.l.empty = t.l.empty || t.minimum > t.maximum;
    return t;
}

static bool is_limited(const text *t) { return t->minimum || t->maximum != GRAMMAR_NO_LIMIT; }

/* The string that says the text, quotes included. False: it is left out, being too large. */
static bool spell_text(text *t, dfa *made) {
    schema_compiler *c = t->l.c;
    kakeya_error error = {0};
    dfa_result result = c->form == GRAMMAR_JSON ? dfa_in_json_string(&t->l.dfa, made) : dfa_in_quotes(&t->l.dfa, made);
    spend(&t->l, made);
    if (result == DFA_EMPTY) t->l.empty = true;
    if (result == DFA_OK || result == DFA_EMPTY) return true;
    schema_cannot(c, t->l.at, regex_error(result, "the string", &error), "%s", error.message);
    return false;
}

static dfa_result find_lengths(text *t, const dfa *made, uint32_t **shortest, uint32_t **longest) {
    uint32_t cost;
    dfa_result result = dfa_lengths(made, t->minimum, t->maximum, shortest, longest, &cost);
    spend(&t->l, &(dfa){.cost = cost});
    return result;
}

/* Lengths are counted while a text is read. A minimum of which that cannot be told becomes a part of the automaton. */
static bool count_lengths(text *t, dfa *made, uint32_t **shortest, uint32_t **longest) {
    schema_compiler *c = t->l.c;
    dfa limited = {0};
    if (!is_limited(t) || t->l.empty || c->status) return true;
    dfa_result result = find_lengths(t, made, shortest, longest);
    if (result == DFA_TOO_LARGE && t->minimum <= MULTIPLIED_LENGTH) {
        bool multiplied = dfa_limit_characters(&t->l.dfa, t->minimum, UINT32_MAX, &limited) == DFA_OK;
        spend(&t->l, &limited);
        if (multiplied) {
            dfa_free(made);
            dfa_free(&t->l.dfa);
            t->l.dfa = limited;
            t->minimum = 0;
            if (!spell_text(t, made)) return false;
            result = find_lengths(t, made, shortest, longest);
        }
    }
    if (result == DFA_OUT_OF_MEMORY) schema_out_of_memory(c);
    if (result == DFA_EMPTY) t->l.empty = true;
    if (result != DFA_TOO_LARGE) return true;
    schema_cannot(c, t->l.at, KAKEYA_UNSUPPORTED, "not supported together with minLength %u: its lengths have gaps",
                  t->minimum);
    return true;
}

static uint32_t add_string(text *t) {
    schema_compiler *c = t->l.c;
    uint32_t *shortest = NULL, *longest = NULL;
    dfa made = {0};
    bool plain = t->l.dfa.n_states == 0;
    if (!t->l.empty && !c->status && !plain)
        plain = !spell_text(t, &made) || !count_lengths(t, &made, &shortest, &longest);
    dfa_free(&t->l.dfa);
    schema_count_states(c, t->l.at, &made);
    uint32_t node = schema_add_node(c, t->l.empty ? NODE_NEVER : plain ? NODE_STRING : NODE_DFA);
    if (c->status) {
        dfa_free(&made);
        free(shortest);
        free(longest);
        return 0;
    }
    grammar_node *own = &c->program->nodes[node];
    own->minimum = t->minimum;
    own->maximum = t->maximum;
    own->dfa = made;
    own->shortest = shortest;
    own->longest = longest;
    return node;
}

uint32_t schema_string(schema_branch *b) {
    uint64_t key = key_of(b, TYPE_STRING);
    uint32_t node = known_scalar(b->c, key);
    if (node != GRAMMAR_NOTHING) return node;
    text t = text_of_branch(b);
    node = add_string(&t);
    know_scalar(b->c, key, node);
    return node;
}

/* --------------------------------------------------------------------------------------------------- names of members
 */

/* What a string of the branch may say, as one more alternative of b->names. */
void schema_name_branch(schema_branch *b) {
    schema_compiler *c = b->c;
    dfa made = {0};
    text t = text_of_branch(b);
    if (!c->status && !t.l.empty && is_limited(&t) && everything(&t.l))
        take(&t.l, dfa_limit_characters(&t.l.dfa, t.minimum, t.maximum, &made), &made);
    if (!c->status && !t.l.empty) {
        b->any_name = b->any_name || t.l.dfa.n_states == 0;
        b->no_name = false;
        if (b->names.n_states && t.l.dfa.n_states) {
            dfa_result result = dfa_combine(&b->names, &t.l.dfa, DFA_OR, &made);
            spend(&t.l, &made);
            if (result != DFA_OK)
                schema_cannot(c, t.l.at, KAKEYA_UNSUPPORTED, "too large");
            else
                dfa_free(&b->names);
        } else {
            made = b->names.n_states ? b->names : t.l.dfa;
            t.l.dfa = (dfa){0};
        }
        if (made.n_states) b->names = made;
    }
    dfa_free(&t.l.dfa);
}
