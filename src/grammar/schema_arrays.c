/* Arrays that follow the claims of a branch. */
#include <string.h>

#include "grammar/schema.h"
#include "grammar/schema_private.h"

/* What one schema says about items: those at the beginning, and the others. */
typedef struct item_rule {
    const cJSON *first, *rest; /* NULL: nothing */
} item_rule;

static bool is_keyword(const schema_claim *claim, const char *name) {
    return claim->kind == CLAIM_KEYWORD && !claim->negated && strcmp(claim->item->string, name) == 0;
}

/* items and prefixItems of one schema are one rule. */
static bool rule_of(const schema_claim *claim, item_rule *out) {
    const cJSON *owner = claim->owner;
    if (is_keyword(claim, "prefixItems") && cJSON_IsArray(claim->item)) {
        *out = (item_rule){claim->item, schema_get(owner, "items")};
        return true;
    }
    if (!is_keyword(claim, "items")) return false;
    if (cJSON_IsArray(claim->item))
        *out = (item_rule){claim->item, schema_get(owner, "additionalItems")};
    else
        *out = (item_rule){NULL, claim->item};
    return cJSON_IsArray(claim->item) || !schema_get(owner, "prefixItems");
}

/* unevaluatedItems: items that the schemas it came to say nothing about. */
static item_rule unevaluated(const schema_branch *b, const schema_claim *claim, uint32_t *first) {
    item_rule own, none = {0};
    *first = 0;
    for (uint32_t i = 0; i < b->n_claims; i++) {
        if (!schema_comes_from(b, b->claims[i].origin, claim->origin)) continue;
        if (is_keyword(&b->claims[i], "unevaluatedItems") && &b->claims[i] != claim) return none;
        if (!rule_of(&b->claims[i], &own)) continue;
        if (own.rest) return none;
        uint32_t n = (uint32_t)cJSON_GetArraySize(own.first);
        if (n > *first) *first = n;
    }
    return (item_rule){NULL, claim->item};
}

/* The schema of the item number i; GRAMMAR_NOTHING: of those behind the ones that are listed. */
static uint32_t compile_item(schema_branch *b, uint32_t i) {
    schema_compiler *c = b->c;
    schema_set set = {0};
    for (uint32_t k = 0; k < b->n_claims && !c->status; k++) {
        const schema_claim *claim = &b->claims[k];
        item_rule rule;
        uint32_t first = 0;
        if (claim->kind == CLAIM_ITEMS) schema_set_add(c, &set, claim->term.schema, claim->term.negated);
        if (is_keyword(claim, "unevaluatedItems")) {
            rule = unevaluated(b, claim, &first);
            if (rule.rest && i >= first) schema_set_add(c, &set, rule.rest, false);
        }
        if (!rule_of(claim, &rule)) continue;
        const cJSON *own = i == GRAMMAR_NOTHING ? NULL : cJSON_GetArrayItem(rule.first, (int)i);
        if (!own) own = rule.rest;
        if (own) schema_set_add(c, &set, own, false);
    }
    uint32_t node = c->status ? 0 : c->compile_set(c, &set);
    schema_set_free(&set);
    return node;
}

static void take_count(schema_branch *b, const schema_claim *claim, uint32_t *minimum, uint32_t *maximum) {
    uint32_t n;
    bool is_minimum = claim->item->string[1] == 'i';
    if (!schema_count(b->c, claim->item, SCHEMA_MAX_ITEMS, &n)) return;
    if (claim->negated) {
        if (is_minimum && n == 0) *minimum = GRAMMAR_NO_LIMIT; /* there are none */
        is_minimum = !is_minimum;
        n = is_minimum ? n + 1 : n - (n > 0);
    }
    if (is_minimum && n > *minimum) *minimum = n;
    if (!is_minimum && n < *maximum) *maximum = n;
}

static void refuse_rest(schema_branch *b, const schema_claim *claim, uint32_t maximum) {
    const cJSON *item = claim->item;
    if (is_keyword(claim, "uniqueItems") && cJSON_IsTrue(item) && maximum > 1)
        schema_cannot(b->c, item, KAKEYA_UNSUPPORTED, "not supported");
    if (!is_keyword(claim, "contains")) return;
    const cJSON *least = schema_get(claim->owner, "minContains"), *most = schema_get(claim->owner, "maxContains");
    uint32_t n = 1;
    if (least && !schema_count(b->c, least, 4e9, &n)) return;
    if (n > 0 || most) schema_cannot(b->c, item, KAKEYA_UNSUPPORTED, "not supported");
}

uint32_t schema_array(schema_branch *b) {
    schema_compiler *c = b->c;
    uint32_t minimum = 0, maximum = GRAMMAR_NO_LIMIT, listed = 0;
    for (uint32_t i = 0; i < b->n_claims && !c->status; i++) {
        const schema_claim *claim = &b->claims[i];
        item_rule rule;
        if (claim->kind != CLAIM_KEYWORD) continue;
        if (is_keyword(claim, "prefixItems") && !cJSON_IsArray(claim->item))
            schema_cannot(c, claim->item, KAKEYA_FORMAT, "not a list of schemas");
        if (strcmp(claim->item->string, "minItems") == 0 || strcmp(claim->item->string, "maxItems") == 0)
            take_count(b, claim, &minimum, &maximum);
        if (rule_of(claim, &rule) && (uint32_t)cJSON_GetArraySize(rule.first) > listed)
            listed = (uint32_t)cJSON_GetArraySize(rule.first);
    }
    for (uint32_t i = 0; i < b->n_claims && !c->status; i++) refuse_rest(b, &b->claims[i], maximum);
    if (c->status) return 0;
    if (minimum > maximum) return schema_add_node(c, NODE_NEVER);
    uint32_t node = schema_add_node(c, NODE_ARRAY);
    for (uint32_t i = 0; i < listed && i < maximum && !c->status; i++) {
        uint32_t child = compile_item(b, i);
        schema_add_child(c, node, child);
    }
    uint32_t rest = c->status || listed >= maximum ? GRAMMAR_NOTHING : compile_item(b, GRAMMAR_NOTHING);
    if (c->status) return 0;
    grammar_node *array = &c->program->nodes[node];
    array->minimum = minimum;
    array->maximum = maximum;
    array->rest = rest;
    return node;
}
