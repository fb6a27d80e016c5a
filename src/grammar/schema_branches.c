/* A set of terms to branches: what each way to follow the set claims of a value. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"
#include "grammar/schema_private.h"

enum {
    MAX_FOLLOWED = 200, /* schemas in one another that hold for the same value */
};

/* ------------------------------------------------------------------------------------------------ growing a branch */

static bool reserve(schema_compiler *c, void **list, uint32_t n, uint32_t *capacity, size_t size) {
    if (c->status || n < *capacity) return !c->status;
    uint32_t larger = *capacity ? 2 * *capacity : 16;
    void *moved = realloc(*list, larger * size);
    if (!moved) return schema_out_of_memory(c), false;
    *list = moved;
    *capacity = larger;
    return true;
}

static void claim(schema_branch *b, schema_claim made) {
    void *list = b->claims;
    if (!reserve(b->c, &list, b->n_claims, &b->claim_capacity, sizeof made)) return;
    b->claims = list;
    b->claims[b->n_claims++] = made;
}

static void choose(schema_branch *b, branch_choice choice) {
    void *list = b->choices;
    if (!reserve(b->c, &list, b->n_choices, &b->choice_capacity, sizeof choice)) return;
    b->choices = list;
    b->choices[b->n_choices++] = choice;
}

/* The branch has no value, since the keyword cannot be negated: what is given stays valid. */
static void narrow(schema_branch *b, const cJSON *item) {
    if (!b->c->narrowed) b->c->narrowed = item;
    b->types = 0;
}

static void forbid(schema_branch *b, const char *name, uint32_t origin) {
    claim(b, (schema_claim){.kind = CLAIM_FORBID, .name = name, .origin = origin});
}

static void require(schema_branch *b, const char *name, uint32_t origin) {
    claim(b, (schema_claim){.kind = CLAIM_REQUIRE, .name = name, .origin = origin});
}

static void follow(schema_branch *b, const cJSON *schema, bool negated, uint32_t parent);

/* ---------------------------------------------------------------------------------------------- keywords that hold */

static bool is_list(schema_branch *b, const cJSON *item, const char *what) {
    if (cJSON_IsArray(item)) return true;
    schema_cannot(b->c, item, KAKEYA_FORMAT, "not a list of %s", what);
    return false;
}

static bool is_map(schema_branch *b, const cJSON *item) {
    if (cJSON_IsObject(item)) return true;
    schema_cannot(b->c, item, KAKEYA_FORMAT, "not an object");
    return false;
}

static void hold_required(schema_branch *b, const cJSON *list, uint32_t step) {
    const cJSON *name;
    if (cJSON_IsBool(list)) return; /* of a member, as draft 3 has it */
    if (!is_list(b, list, "texts")) return;
    cJSON_ArrayForEach(name, list) {
        if (cJSON_IsString(name))
            require(b, name->valuestring, step);
        else
            schema_cannot(b->c, list, KAKEYA_FORMAT, "not a list of texts");
    }
}

static void hold_contains(schema_branch *b, const cJSON *schema, const cJSON *item, uint32_t step) {
    const cJSON *most = schema_get(schema, "maxContains");
    uint32_t least = 1;
    if (schema_get(schema, "minContains") && !schema_count(b->c, schema_get(schema, "minContains"), 4e9, &least))
        return;
    if (least > 0 || most)
        claim(b, (schema_claim){
                     .kind = CLAIM_CONTAINS, .item = item, .owner = schema, .term = {item, false}, .origin = step});
}

static void hold_keyword(schema_branch *b, const cJSON *schema, const cJSON *item, uint32_t step) {
    schema_compiler *c = b->c;
    const schema_keyword *keyword = schema_keyword_of(item->string);
    const cJSON *branch;
    if (cJSON_IsNull(item) && strcmp(item->string, "const") != 0) return;
    switch (keyword->kind) {
    case KEYWORD_ANNOTATION:
    case KEYWORD_BESIDE:
    case KEYWORD_REFERENCE: /* followed first */
    case KEYWORD_ALL:       /* followed last */
        break;
    case KEYWORD_TYPE:
        b->types &= schema_types(c, schema);
        break;
    case KEYWORD_VALUES:
        if (strcmp(item->string, "const") == 0 || is_list(b, item, "values"))
            claim(b, (schema_claim){.kind = CLAIM_VALUES, .item = item, .owner = schema, .origin = step});
        break;
    case KEYWORD_ANY:
    case KEYWORD_ONE:
        if (is_list(b, item, "schemas")) choose(b, (branch_choice){.item = item, .owner = schema, .origin = step});
        break;
    case KEYWORD_NOT:
        follow(b, item, true, step);
        break;
    case KEYWORD_IF:
        if (schema_get(schema, "then") || schema_get(schema, "else"))
            choose(b, (branch_choice){.item = item, .owner = schema, .origin = step});
        break;
    case KEYWORD_DEPENDENT:
        if (is_map(b, item))
            cJSON_ArrayForEach(branch, item)
                choose(b, (branch_choice){.item = branch, .owner = schema, .name = branch->string, .origin = step});
        break;
    case KEYWORD_CLAIM:
        if (!(b->types & keyword->types)) break;
        if (strcmp(item->string, "required") == 0) {
            hold_required(b, item, step);
        } else if (strcmp(item->string, "contains") == 0) {
            hold_contains(b, schema, item, step);
        } else if (strcmp(item->string, "properties") == 0 && b->c->draft3 && cJSON_IsObject(item)) {
            cJSON_ArrayForEach(branch, item) if (cJSON_IsTrue(schema_get(branch, "required")))
                require(b, branch->string, step);
            claim(b, (schema_claim){.kind = CLAIM_KEYWORD, .item = item, .owner = schema, .origin = step});
        } else if ((strcmp(item->string, "properties") != 0 && strcmp(item->string, "patternProperties") != 0) ||
                   is_map(b, item)) {
            claim(b, (schema_claim){.kind = CLAIM_KEYWORD, .item = item, .owner = schema, .origin = step});
        }
        break;
    case KEYWORD_REFUSED:
        schema_cannot(c, item, KAKEYA_UNSUPPORTED, "not supported");
        break;
    }
}

static void hold_keywords(schema_branch *b, const cJSON *schema, uint32_t step) {
    const cJSON *item, *branch;
    cJSON_ArrayForEach(item, schema) {
        if (!schema_spend(b->c, schema, 1)) return;
        if (schema_keyword_of(item->string)->kind != KEYWORD_REFERENCE || cJSON_IsNull(item)) continue;
        const cJSON *target = schema_resolve(b->c, item);
        if (target) follow(b, target, false, step);
    }
    cJSON_ArrayForEach(item, schema) {
        if (b->c->status || !b->types) return;
        hold_keyword(b, schema, item, step);
    }
    const cJSON *all = schema_get(schema, "allOf");
    if (all && is_list(b, all, "schemas")) cJSON_ArrayForEach(branch, all) follow(b, branch, false, step);
}

/* ------------------------------------------------------------------------------------------- keywords that do not */

static bool says_something(const cJSON *item) {
    keyword_kind kind = schema_keyword_of(item->string)->kind;
    if (cJSON_IsNull(item) && strcmp(item->string, "const") != 0) return false;
    if (strcmp(item->string, "uniqueItems") == 0 && !cJSON_IsTrue(item)) return false;
    return kind != KEYWORD_ANNOTATION && kind != KEYWORD_BESIDE;
}

static bool is_any_of(const char *name, const char *const *names) {
    for (; *names; names++)
        if (strcmp(*names, name) == 0) return true;
    return false;
}

static void refuse_claim(schema_branch *b, const cJSON *schema, const cJSON *item, uint32_t step) {
    static const char *const plain[] = {"minimum",       "maximum",       "exclusiveMinimum", "exclusiveMaximum",
                                        "minItems",      "maxItems",      "minLength",        "maxLength",
                                        "minProperties", "maxProperties", "pattern",          NULL};
    static const char *const several[] = {"required",          "properties",    "additionalProperties",
                                          "patternProperties", "propertyNames", NULL};
    b->types &= schema_keyword_of(item->string)->types;
    if (is_any_of(item->string, plain)) {
        claim(b, (schema_claim){.kind = CLAIM_KEYWORD, .negated = true, .item = item, .owner = schema, .origin = step});
    } else if (is_any_of(item->string, several)) {
        bool known = strcmp(item->string, "required") == 0 || strcmp(item->string, "properties") == 0;
        if (!known && !b->c->narrowed) b->c->narrowed = item; /* of members that nothing names */
        choose(b, (branch_choice){.item = item, .owner = schema, .negated = true, .origin = step});
    } else if (strcmp(item->string, "contains") == 0 && !schema_get(schema, "minContains") &&
               !schema_get(schema, "maxContains")) {
        claim(b, (schema_claim){.kind = CLAIM_ITEMS, .term = {item, true}, .origin = step});
    } else if (strcmp(item->string, "items") == 0 && !cJSON_IsArray(item) && !schema_get(schema, "prefixItems")) {
        claim(b, (schema_claim){.kind = CLAIM_CONTAINS, .item = item, .term = {item, true}, .origin = step});
    } else { /* of formats, a part alone is known */
        narrow(b, item);
    }
}

static void exclude_values(schema_branch *b, const cJSON *item, uint32_t step) {
    const cJSON *value = item;
    bool list = strcmp(item->string, "enum") == 0;
    if (list && !is_list(b, item, "values")) return;
    for (value = list ? item->child : item; value; value = list ? value->next : NULL) {
        uint8_t type = schema_type_of(value);
        if (type & (TYPE_NULL | TYPE_BOOLEAN)) b->types &= (uint8_t)~type;
        if (!(type & (TYPE_ARRAY | TYPE_OBJECT)) || !(b->types & type)) continue;
        b->types &= (uint8_t)~type; /* one list or object cannot be left out alone */
        if (!b->c->narrowed) b->c->narrowed = item;
    }
    claim(b, (schema_claim){.kind = CLAIM_VALUES, .negated = true, .item = item, .origin = step});
}

/* The keyword does not hold. */
static void refuse_keyword(schema_branch *b, const cJSON *schema, const cJSON *item, uint32_t step) {
    const cJSON *branch;
    const cJSON *target;
    switch (schema_keyword_of(item->string)->kind) {
    case KEYWORD_TYPE:
        b->types &= (uint8_t)~schema_types(b->c, schema);
        break;
    case KEYWORD_VALUES:
        exclude_values(b, item, step);
        break;
    case KEYWORD_REFERENCE:
        target = schema_resolve(b->c, item);
        if (target) follow(b, target, true, step);
        break;
    case KEYWORD_ANY:
        if (is_list(b, item, "schemas")) cJSON_ArrayForEach(branch, item) follow(b, branch, true, step);
        break;
    case KEYWORD_ONE:
        if (is_list(b, item, "schemas"))
            choose(b, (branch_choice){.item = item, .owner = schema, .negated = true, .origin = step});
        break;
    case KEYWORD_ALL:
    case KEYWORD_IF:
        choose(b, (branch_choice){.item = item, .owner = schema, .negated = true, .origin = step});
        break;
    case KEYWORD_NOT:
        follow(b, item, false, step);
        break;
    case KEYWORD_CLAIM:
        refuse_claim(b, schema, item, step);
        break;
    default:
        narrow(b, item);
    }
}

static void refuse_schema(schema_branch *b, const cJSON *schema, uint32_t step) {
    const cJSON *item, *only = NULL;
    uint32_t n = 0;
    if (cJSON_IsTrue(schema_get(schema, "nullable"))) b->types &= (uint8_t)~TYPE_NULL;
    cJSON_ArrayForEach(item, schema) {
        if (!schema_spend(b->c, schema, 1)) return;
        if (!says_something(item)) continue;
        only = item;
        n++;
    }
    if (n == 0)
        b->types = 0;
    else if (n == 1)
        refuse_keyword(b, schema, only, step);
    else
        choose(b, (branch_choice){.owner = schema, .negated = true, .origin = step});
}

/* --------------------------------------------------------------------------------------------------------- following
 */

static void follow(schema_branch *b, const cJSON *schema, bool negated, uint32_t parent) {
    schema_compiler *c = b->c;
    if (c->status || !b->types) return;
    if (cJSON_IsObject(schema)) schema = schema_target(c, schema);
    if (!schema) {
        if (!c->loosen) b->types = 0; /* a reference that leads to itself */
        return;
    }
    if (cJSON_IsBool(schema)) {
        if ((bool)cJSON_IsTrue(schema) == negated) b->types = 0;
        return;
    }
    if (!cJSON_IsObject(schema)) {
        schema_cannot(c, schema, KAKEYA_FORMAT, "not a schema");
        return;
    }
    if (!schema_spend(c, schema, 1 + b->n_steps / 16)) return;
    for (uint32_t at = parent; at != GRAMMAR_NOTHING; at = b->steps[at].parent) {
        if (b->steps[at].term.schema != schema || b->steps[at].term.negated != negated) continue;
        b->types = 0; /* it leads to itself: no value comes of that */
        return;
    }
    for (uint32_t i = 0; i < b->n_steps; i++)
        if (b->steps[i].term.schema == schema && b->steps[i].term.negated == negated) return;
    void *list = b->steps;
    if (!reserve(c, &list, b->n_steps, &b->step_capacity, sizeof *b->steps)) return;
    b->steps = list;
    uint32_t step = b->n_steps++;
    b->steps[step] = (branch_step){{schema, negated}, parent};
    if (++b->depth > MAX_FOLLOWED)
        schema_fail(c, schema, KAKEYA_UNSUPPORTED, "more than %d nested schemas apply to one value", (int)MAX_FOLLOWED);
    else if (negated)
        refuse_schema(b, schema, step);
    else if (cJSON_IsTrue(schema_get(schema, "nullable")))
        choose(b, (branch_choice){.item = schema_get(schema, "nullable"), .owner = schema, .origin = step});
    else
        hold_keywords(b, schema, step);
    b->depth--;
}

/* ----------------------------------------------------------------------------------------------------------- choices
 */

/* Another alternative of oneOf holds as well, if it can hold at all beside this one. */
static void follow_one_of(schema_branch *b, const branch_choice *choice, const cJSON *own) {
    const cJSON *other;
    follow(b, own, false, choice->origin);
    if (schema_told_apart(b->c, choice->item)) return;
    cJSON_ArrayForEach(other, choice->item) {
        if (other == own || b->c->status || !b->types) continue;
        if (!schema_disjoint(b->c, own, other, 0)) follow(b, other, true, choice->origin);
    }
}

/* None of them holds, or, where they are few, two of them do. */
static bool refuse_one_of(schema_branch *b, const branch_choice *choice, uint32_t i) {
    enum { FEW = 4 };
    const cJSON *branch, *other;
    uint32_t n = 0;
    if (i == 0) {
        cJSON_ArrayForEach(branch, choice->item) follow(b, branch, true, choice->origin);
        return true;
    }
    if (cJSON_GetArraySize(choice->item) > FEW || schema_told_apart(b->c, choice->item)) return false;
    cJSON_ArrayForEach(branch, choice->item) {
        for (other = branch->next; other; other = other->next) {
            if (schema_disjoint(b->c, branch, other, 0) || ++n != i) continue;
            follow(b, branch, false, choice->origin);
            follow(b, other, false, choice->origin);
            return true;
        }
    }
    return false;
}

static bool follow_if(schema_branch *b, const branch_choice *choice, uint32_t i) {
    const cJSON *then = schema_get(choice->owner, i == 0 ? "then" : "else");
    if (choice->negated && !then) return false;
    follow(b, choice->item, i == 1, choice->origin);
    if (then) follow(b, then, choice->negated, choice->origin);
    return true;
}

static void follow_dependent(schema_branch *b, const branch_choice *choice, uint32_t i) {
    if (i == 0) {
        forbid(b, choice->name, choice->origin);
        return;
    }
    b->types &= TYPE_OBJECT;
    require(b, choice->name, choice->origin);
    if (cJSON_IsArray(choice->item))
        hold_required(b, choice->item, choice->origin);
    else if (cJSON_IsString(choice->item))
        require(b, choice->item->valuestring, choice->origin);
    else
        follow(b, choice->item, false, choice->origin);
}

static bool refuse_member(schema_branch *b, const branch_choice *choice, uint32_t i) {
    const cJSON *item = cJSON_GetArrayItem(choice->item, (int)i);
    if (!item || !item->string) return false;
    require(b, item->string, choice->origin);
    claim(b,
          (schema_claim){.kind = CLAIM_MEMBER, .name = item->string, .term = {item, true}, .origin = choice->origin});
    return true;
}

/* The members that the claims name, each once. */
static uint32_t named_members(const schema_branch *b, const char **names, uint32_t most) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_claims; i++) {
        const schema_claim *own = &b->claims[i];
        bool list = own->kind == CLAIM_KEYWORD && !own->negated && strcmp(own->item->string, "properties") == 0;
        if (!list && own->kind != CLAIM_REQUIRE && own->kind != CLAIM_MEMBER) continue;
        const cJSON *item = list ? own->item->child : NULL;
        for (const char *name = list ? item ? item->string : NULL : own->name; name && n < most;) {
            uint32_t before = 0;
            while (before < n && strcmp(names[before], name) != 0) before++;
            if (before == n) names[n++] = name;
            item = item ? item->next : NULL;
            name = item ? item->string : NULL;
        }
    }
    return n;
}

/* Whether the member may be what breaks the keyword; *broken: the schema that it must not follow then, or NULL. */
static bool may_break(schema_branch *b, const branch_choice *choice, const char *name, const cJSON **broken) {
    schema_compiler *c = b->c;
    const cJSON *pattern, *patterns = schema_get(choice->owner, "patternProperties");
    bool matches = false;
    *broken = NULL;
    if (strcmp(choice->item->string, "propertyNames") == 0) {
        const cJSON text = {.type = cJSON_String, .valuestring = (char *)(uintptr_t)name};
        c->uncertain = false;
        return !schema_holds(c, choice->item, &text, 0) && !c->uncertain;
    }
    cJSON_ArrayForEach(pattern, patterns) {
        if (!schema_matches(c, pattern, pattern->string, name)) continue;
        matches = true;
        *broken = *broken ? *broken : pattern;
    }
    if (strcmp(choice->item->string, "patternProperties") == 0) return matches;
    *broken = choice->item;
    return !matches && !schema_member(c, schema_get(choice->owner, "properties"), name);
}

/* additionalProperties, patternProperties or propertyNames do not hold of a member that something names. */
static bool refuse_named_member(schema_branch *b, const branch_choice *choice, uint32_t i) {
    enum { MOST_NAMES = 64 };
    const char *names[MOST_NAMES];
    const cJSON *broken;
    uint32_t n = named_members(b, names, MOST_NAMES);
    if (!schema_spend(b->c, choice->item, n * (1 + b->n_claims / 16))) return false;
    for (uint32_t k = 0; k < n; k++) {
        if (!may_break(b, choice, names[k], &broken) || i-- > 0) continue;
        require(b, names[k], choice->origin);
        if (broken)
            claim(b, (schema_claim){
                         .kind = CLAIM_MEMBER, .name = names[k], .term = {broken, true}, .origin = choice->origin});
        return true;
    }
    return false;
}

static bool refuse_required(schema_branch *b, const branch_choice *choice, uint32_t i) {
    const cJSON *name = cJSON_GetArrayItem(choice->item, (int)i);
    if (!cJSON_IsString(name)) return false;
    forbid(b, name->valuestring, choice->origin);
    return true;
}

static bool refuse_one_keyword(schema_branch *b, const branch_choice *choice, uint32_t i) {
    const cJSON *item;
    cJSON_ArrayForEach(item, choice->owner) {
        if (!says_something(item) || i-- > 0) continue;
        refuse_keyword(b, choice->owner, item, choice->origin);
        return true;
    }
    return false;
}

/* The alternative number i of a choice. False: there are no more. */
static bool follow_alternative(schema_branch *b, const branch_choice *choice, uint32_t i) {
    const char *key = choice->item ? choice->item->string : NULL;
    if (!choice->item) return refuse_one_keyword(b, choice, i);
    if (choice->name) {
        if (i < 2) follow_dependent(b, choice, i);
        return i < 2;
    }
    if (strcmp(key, "nullable") == 0) {
        if (i == 0) b->types &= TYPE_NULL;
        if (i == 1) hold_keywords(b, choice->owner, choice->origin);
        return i < 2;
    }
    if (strcmp(key, "if") == 0) return i < 2 && (follow_if(b, choice, i) || (b->types = 0, true));
    if (strcmp(key, "required") == 0) return refuse_required(b, choice, i);
    if (strcmp(key, "properties") == 0) return refuse_member(b, choice, i);
    if (schema_keyword_of(key)->kind == KEYWORD_CLAIM) return refuse_named_member(b, choice, i);
    if (strcmp(key, "oneOf") == 0 && choice->negated) return refuse_one_of(b, choice, i);
    const cJSON *own = cJSON_GetArrayItem(choice->item, (int)i);
    if (!own) return false;
    if (strcmp(key, "oneOf") == 0)
        follow_one_of(b, choice, own);
    else
        follow(b, own, choice->negated, choice->origin);
    return true;
}

/* ---------------------------------------------------------------------------------------------------- contradictions
 */

static bool is_required(const schema_branch *b, const char *name) {
    for (uint32_t i = 0; i < b->n_claims; i++)
        if (b->claims[i].kind == CLAIM_REQUIRE && strcmp(b->claims[i].name, name) == 0) return true;
    return false;
}

static const cJSON *values_of(const cJSON *schema) {
    const cJSON *list = schema_get(schema, "enum");
    return cJSON_IsArray(list) ? list : schema_get(schema, "const");
}

/* The terms that the claims say about a member, one after the other. */
static bool next_term(const schema_branch *b, const char *name, uint32_t *at, schema_term *term) {
    for (; *at < b->n_claims; ++*at) {
        const schema_claim *own = &b->claims[*at];
        *term = own->term;
        if (own->kind == CLAIM_MEMBER && strcmp(own->name, name) == 0) return ++*at, true;
        if (own->kind != CLAIM_KEYWORD || strcmp(own->item->string, "properties") != 0) continue;
        *term = (schema_term){schema_member(b->c, own->item, name), false};
        if (term->schema) return ++*at, true;
    }
    return false;
}

static bool follows_all(schema_branch *b, const char *name, const cJSON *value) {
    schema_term term;
    for (uint32_t at = 0; next_term(b, name, &at, &term);)
        if (values_of(term.schema) && schema_holds(b->c, term.schema, value, 0) == term.negated) return false;
    return true;
}

/* A member that must be there has no value: of those that one schema lists, the others allow none. */
static bool is_impossible(schema_branch *b, const char *name) {
    schema_term term;
    for (uint32_t at = 0; next_term(b, name, &at, &term);) {
        const cJSON *values = term.negated ? NULL : values_of(term.schema), *value;
        if (!values) continue;
        if (strcmp(values->string, "enum") != 0) return !follows_all(b, name, values);
        bool some = false;
        cJSON_ArrayForEach(value, values) some = some || follows_all(b, name, value);
        return !some;
    }
    return false;
}

/* Looks at what the claims from the first on say about members that are required. */
static bool is_contradictory(schema_branch *b, uint32_t first) {
    if (!(b->types & TYPE_OBJECT)) return false;
    for (uint32_t i = first; i < b->n_claims; i++) {
        if (!schema_spend(b->c, b->claims[i].owner, 1 + b->n_claims / 16)) return false;
        const schema_claim *own = &b->claims[i];
        const cJSON *member;
        if (own->kind == CLAIM_REQUIRE || own->kind == CLAIM_FORBID)
            for (uint32_t k = 0; k < b->n_claims; k++)
                if (b->claims[k].kind == (own->kind == CLAIM_REQUIRE ? CLAIM_FORBID : CLAIM_REQUIRE) &&
                    strcmp(own->name, b->claims[k].name) == 0)
                    return true;
        if ((own->kind == CLAIM_MEMBER && is_required(b, own->name) && is_impossible(b, own->name)) ||
            (own->kind == CLAIM_REQUIRE && is_impossible(b, own->name)))
            return true;
        if (own->kind == CLAIM_KEYWORD && strcmp(own->item->string, "properties") == 0)
            cJSON_ArrayForEach(member, own->item) if (schema_spend(b->c, member, 1 + b->n_claims / 16) &&
                                                      values_of(member) && is_required(b, member->string) &&
                                                      is_impossible(b, member->string)) return true;
    }
    return false;
}

bool schema_comes_from(const schema_branch *b, uint32_t step, uint32_t origin) {
    uint32_t hops = 0;
    for (; step != GRAMMAR_NOTHING && step != origin && !b->steps[step].term.negated; step = b->steps[step].parent)
        hops++;
    (void)schema_spend(b->c, b->set->terms[0].schema, hops / 8);
    return step == origin;
}

/* ------------------------------------------------------------------------------------------------------- all of them
 */

static bool lists_values(const schema_branch *b) {
    for (uint32_t i = 0; i < b->n_claims; i++)
        if (b->claims[i].kind == CLAIM_VALUES && !b->claims[i].negated) return true;
    return false;
}

static void explore(schema_branch *b);

static void explore_choice(schema_branch *b, branch_choice choice) {
    schema_compiler *c = b->c;
    const schema_branch before = *b;
    for (uint32_t i = 0; !c->status; i++) {
        bool some = follow_alternative(b, &choice, i);
        if (some && ++b->tried > SCHEMA_MAX_TRIED) {
            b->tried = SCHEMA_MAX_TRIED;
            schema_fail(c, choice.item ? choice.item : choice.owner, KAKEYA_UNSUPPORTED,
                        "too large: more than %d combinations of alternatives", (int)SCHEMA_MAX_TRIED);
        }
        if (some && ++c->n_tried > SCHEMA_MAX_TRIED_ALL)
            schema_fail(c, choice.item ? choice.item : choice.owner, KAKEYA_UNSUPPORTED,
                        "too large: more than %d combinations of alternatives in all", (int)SCHEMA_MAX_TRIED_ALL);
        if (some && !c->status && is_contradictory(b, before.n_claims)) b->types &= (uint8_t)~TYPE_OBJECT;
        if (some && b->types) explore(b);
        b->types = before.types;
        b->n_steps = before.n_steps;
        b->n_claims = before.n_claims;
        b->n_choices = before.n_choices;
        b->made = before.made;
        if (!some) break;
    }
}

static void explore(schema_branch *b) {
    if (b->c->status || !b->types) return;
    if (b->made == b->n_choices || lists_values(b)) {
        if (schema_spend(b->c, b->set->n ? b->set->terms[0].schema : NULL, b->n_claims / 8)) b->emit(b);
        return;
    }
    branch_choice choice = b->choices[b->made++];
    explore_choice(b, choice);
}

void schema_each_branch(schema_branch *b) {
    b->types = TYPE_ANY;
    for (uint32_t i = 0; i < b->set->n; i++)
        follow(b, b->set->terms[i].schema, b->set->terms[i].negated, GRAMMAR_NOTHING);
    explore(b);
    free(b->steps);
    free(b->claims);
    free(b->choices);
    b->steps = NULL;
    b->claims = NULL;
    b->choices = NULL;
    b->n_steps = b->n_claims = b->n_choices = 0;
}
