/* Arrays that follow the claims of a branch. */
#include <stdlib.h>
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
    for (uint32_t i = 0; i < b->n_claims && !b->c->status; i++) {
        if (!schema_comes_from(b, b->claims[i].origin, claim->origin)) continue;
        if (is_keyword(&b->claims[i], "unevaluatedItems") && &b->claims[i] != claim) return none;
        if (!rule_of(&b->claims[i], &own)) continue;
        if (own.rest) return none;
        uint32_t n = (uint32_t)cJSON_GetArraySize(own.first);
        if (n > *first) *first = n;
    }
    return (item_rule){NULL, claim->item};
}

/* The schema of the item number i; GRAMMAR_NOTHING: of those behind the ones that are listed. more, also: what it
 * follows beside that, or NULL. */
static uint32_t compile_item(schema_branch *b, uint32_t i, const schema_term *more, const schema_term *also) {
    schema_compiler *c = b->c;
    schema_set set = {0};
    if (more) schema_set_add(c, &set, more->schema, more->negated);
    if (also) schema_set_add(c, &set, also->schema, also->negated);
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

/* uniqueItems: true, of one of the claims. */
static const cJSON *different_items(const schema_branch *b) {
    for (uint32_t i = 0; i < b->n_claims; i++)
        if (is_keyword(&b->claims[i], "uniqueItems") && cJSON_IsTrue(b->claims[i].item)) return b->claims[i].item;
    return NULL;
}

/* How many items, and how many of them are listed one by one; how many of them the contained ones are. */
typedef struct array_shape {
    uint32_t minimum, maximum, listed, least, most;
    const schema_term *leading[SCHEMA_MAX_CONTAINED]; /* what the first items follow, so that some item does */
    uint32_t n_leading;
} array_shape;

static bool counts_exactly(const schema_claim *claim) {
    return claim->term.negated || (claim->owner && schema_get(claim->owner, "maxContains"));
}

/* Some items follow the claim: the first ones that follow none yet. */
static void lead(schema_branch *b, const schema_claim *claim, array_shape *shape) {
    const cJSON *least = schema_get(claim->owner, "minContains");
    uint32_t n = 1;
    if (least && !schema_count(b->c, least, 4e9, &n)) return;
    if (n > SCHEMA_MAX_CONTAINED - shape->n_leading) {
        schema_cannot(b->c, claim->item, KAKEYA_UNSUPPORTED, "more than %d items are not supported",
                      (int)SCHEMA_MAX_CONTAINED);
        return;
    }
    while (n-- > 0) shape->leading[shape->n_leading++] = &claim->term;
}

/* What one item must follow; NULL: nothing. Of several claims, the others lead. *never: more than can be followed, of
 * which a part comes from a keyword that is negated: the branch is left out. */
static const schema_claim *contained(schema_branch *b, array_shape *shape, bool *never) {
    const schema_claim *found = NULL;
    bool negated = false;
    for (uint32_t i = 0; i < b->n_claims && !b->c->status; i++) {
        const schema_claim *claim = &b->claims[i];
        if (claim->kind != CLAIM_CONTAINS) continue;
        negated = negated || claim->term.negated;
        if (found && (shape->listed || (counts_exactly(found) && counts_exactly(claim)) ||
                      shape->n_leading + 2 > shape->maximum)) {
            if (negated)
                *never = true;
            else
                schema_cannot(b->c, claim->item, KAKEYA_UNSUPPORTED, "not supported beside another one");
            if (*never && !b->c->narrowed) b->c->narrowed = claim->item;
        } else if (found && counts_exactly(found)) {
            lead(b, claim, shape);
        } else {
            if (found) lead(b, found, shape);
            found = claim;
        }
    }
    if (shape->n_leading) shape->listed = shape->n_leading;
    if (shape->n_leading > shape->minimum) shape->minimum = shape->n_leading;
    return found;
}

static array_shape shape_of(schema_branch *b) {
    schema_compiler *c = b->c;
    array_shape shape = {.maximum = GRAMMAR_NO_LIMIT, .most = GRAMMAR_NO_LIMIT};
    for (uint32_t i = 0; i < b->n_claims && !c->status; i++) {
        const schema_claim *claim = &b->claims[i];
        item_rule rule;
        if (claim->kind != CLAIM_KEYWORD) continue;
        if (is_keyword(claim, "prefixItems") && !cJSON_IsArray(claim->item))
            schema_cannot(c, claim->item, KAKEYA_FORMAT, "not a list of schemas");
        if (strcmp(claim->item->string, "minItems") == 0 || strcmp(claim->item->string, "maxItems") == 0)
            take_count(b, claim, &shape.minimum, &shape.maximum);
        if (rule_of(claim, &rule) && (uint32_t)cJSON_GetArraySize(rule.first) > shape.listed)
            shape.listed = (uint32_t)cJSON_GetArraySize(rule.first);
    }
    return shape;
}

static const schema_term *leading(const array_shape *shape, uint32_t i) {
    return i < shape->n_leading ? shape->leading[i] : NULL;
}

static uint32_t add_array(schema_branch *b, array_shape shape, const schema_term *not_contained) {
    schema_compiler *c = b->c;
    uint32_t node = schema_add_node(c, NODE_ARRAY);
    for (uint32_t i = 0; i < shape.listed && i < shape.maximum && !c->status; i++) {
        uint32_t child = compile_item(b, i, not_contained, leading(&shape, i));
        schema_add_child(c, node, child);
    }
    uint32_t rest = c->status || shape.listed >= shape.maximum ? GRAMMAR_NOTHING
                                                               : compile_item(b, GRAMMAR_NOTHING, not_contained, NULL);
    if (c->status) return 0;
    grammar_node *array = &c->program->nodes[node];
    array->minimum = shape.minimum;
    array->maximum = shape.maximum;
    array->rest = rest;
    return node;
}

/* The arrays of which least..most items follow the claim. Where there is a most, all others must not. */
static uint32_t add_containing(schema_branch *b, array_shape shape, const schema_claim *claim) {
    schema_compiler *c = b->c;
    const schema_term other = {claim->term.schema, !claim->term.negated};
    uint32_t node = add_array(b, shape, shape.most == GRAMMAR_NO_LIMIT ? NULL : &other);
    uint32_t n = c->status ? 0 : c->program->nodes[node].n_children + 1;
    uint32_t *contained = calloc(n + 1, sizeof *contained);
    for (uint32_t i = 0; i < n && contained && !c->status; i++)
        contained[i] = compile_item(b, i + 1 < n ? i : GRAMMAR_NOTHING, &claim->term, leading(&shape, i));
    if (!contained && !c->status) schema_out_of_memory(c);
    if (c->status) {
        free(contained);
        return 0;
    }
    grammar_node *array = &c->program->nodes[node];
    array->rests = contained;
    array->n_rests = n;
    array->least = shape.least;
    array->most = shape.most;
    return node;
}

/* How many items must, and may, follow the claim. */
static void count_contained(schema_branch *b, const schema_claim *claim, array_shape *shape) {
    const cJSON *least = claim->owner ? schema_get(claim->owner, "minContains") : NULL;
    const cJSON *most = claim->owner ? schema_get(claim->owner, "maxContains") : NULL;
    shape->least = 1;
    if (least && !schema_count(b->c, least, 4e9, &shape->least)) return;
    if (most && !schema_count(b->c, most, 4e9, &shape->most)) return;
    if (shape->least > SCHEMA_MAX_CONTAINED)
        schema_cannot(b->c, least, KAKEYA_UNSUPPORTED, "more than %d is not supported", (int)SCHEMA_MAX_CONTAINED);
    if (shape->n_leading && shape->n_leading + shape->least > shape->maximum)
        schema_cannot(b->c, claim->item, KAKEYA_UNSUPPORTED, "not supported beside another one");
    if (most && shape->listed)
        schema_cannot(b->c, most, KAKEYA_UNSUPPORTED, "not supported where items are listed one by one");
}

uint32_t schema_array(schema_branch *b) {
    schema_compiler *c = b->c;
    array_shape shape = shape_of(b);
    bool never = false;
    const schema_claim *contains = c->status ? NULL : contained(b, &shape, &never);
    const cJSON *different = shape.maximum > 1 ? different_items(b) : NULL;
    if (c->status) return 0;
    if (different && contains && contains->term.negated && !c->narrowed) c->narrowed = contains->item;
    if (different && contains && contains->term.negated) never = true;
    if (never || shape.minimum > shape.maximum) return schema_add_node(c, NODE_NEVER);
    if (different && contains) {
        schema_cannot(c, different, KAKEYA_UNSUPPORTED, "not supported beside contains");
    } else if (different && shape.listed) {
        schema_cannot(c, different, KAKEYA_UNSUPPORTED, "not supported where items are listed one by one");
    } else if (different) {
        uint32_t item = compile_item(b, GRAMMAR_NOTHING, NULL, NULL);
        uint32_t set = c->status ? 0 : schema_different_items(c, different, item, shape.minimum, shape.maximum);
        if (c->status || set != GRAMMAR_NOTHING) return c->status ? 0 : set;
    }
    if (c->status) return 0;
    if (contains) count_contained(b, contains, &shape);
    if (c->status) return 0;
    if (shape.least > shape.most || shape.least > shape.maximum) return schema_add_node(c, NODE_NEVER);
    return contains && (shape.least || shape.most != GRAMMAR_NO_LIMIT) ? add_containing(b, shape, contains)
                                                                       : add_array(b, shape, NULL);
}
