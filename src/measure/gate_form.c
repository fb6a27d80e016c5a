/* The form of a report: every object holds the keys it should hold, once, and every value is in its range before any
 * rule uses it. What is spelt differently would otherwise be read as absent, and a rule that reads nothing refuses
 * nothing. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "measure/gate_private.h"

static const cJSON *member(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* ------------------------------------------------------------------------------------- keys and numbers, everywhere */

static int compare_keys(const void *a, const void *b) {
    return strcasecmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

/* Keys that differ in case alone count as equal: nobody writes both by mistake. */
static void check_keys(gate_context *context, const cJSON *object) {
    size_t n = 0;
    for (const cJSON *item = object->child; item; item = item->next) n++;
    const cJSON **sorted = malloc((n + 1) * sizeof *sorted);
    if (!sorted) {
        context->out_of_memory = true;
        return;
    }
    n = 0;
    for (const cJSON *item = object->child; item; item = item->next) sorted[n++] = item;
    qsort(sorted, n, sizeof *sorted, compare_keys);
    for (size_t i = 1; i < n; i++)
        if (strcasecmp(sorted[i - 1]->string, sorted[i]->string) == 0)
            gate_violate(context, "DUPLICATE_KEY", "\"%.60s\" and \"%.60s\" stand in one object", sorted[i - 1]->string,
                         sorted[i]->string);
    free(sorted);
}

/* No figure of a report comes near; what is larger would not survive a conversion to an integer. */
static const double largest_number = 18446744073709551616.0;

static void check_values(gate_context *context, const cJSON *item) {
    if (cJSON_IsNumber(item) && !(fabs(item->valuedouble) <= largest_number))
        gate_violate(context, "NUMBER_RANGE", "%.60s is %g", item->string ? item->string : "an item of an array",
                     item->valuedouble);
    if (cJSON_IsObject(item)) check_keys(context, item);
    for (const cJSON *child = item->child; child; child = child->next) check_values(context, child);
}

void gate_check_values(gate_context *context) { check_values(context, context->report); }

/* ----------------------------------------------------------------------------------------------- which keys where */

static bool is_row_key(eval_kind kind, const char *key) {
    unsigned kinds;
    const char *known;
    for (size_t i = 0; (known = eval_row_key(i, &kinds, NULL)) != NULL; i++) {
        size_t outer = strcspn(known, ".");
        if ((kinds & 1u << kind) && (strcmp(known, key) == 0 || (strncmp(known, key, outer) == 0 && !key[outer])))
            return true;
    }
    return false;
}

static void check_row_keys(gate_context *context, const cJSON *row, size_t index) {
    char key[80];
    for (const cJSON *item = cJSON_IsObject(row) ? row->child : NULL; item; item = item->next) {
        const cJSON *inner = cJSON_IsObject(item) ? item->child : NULL;
        if (!is_row_key(context->kind, item->string) || strchr(item->string, '.'))
            gate_violate(context, "UNKNOWN_KEY", "rows[%zu] holds \"%.60s\", which kakeya eval does not write", index,
                         item->string);
        for (; inner; inner = inner->next) {
            snprintf(key, sizeof key, "%.30s.%.40s", item->string, inner->string);
            if (!is_row_key(context->kind, key))
                gate_violate(context, "UNKNOWN_KEY", "rows[%zu] holds \"%.70s\", which kakeya eval does not write",
                             index, key);
        }
    }
}

/* ------------------------------------------------------------------------------------------------- the environment */

static const char *text_of(const cJSON *item) { return cJSON_IsString(item) ? item->valuestring : ""; }

static bool is_text(const cJSON *item) { return *text_of(item) != '\0'; }
static bool is_size(const cJSON *item) { return json_is_integer(item, 0, 9e15); }
static bool is_count(const cJSON *item) { return json_is_integer(item, 1, 9e15); }
static bool is_flag(const cJSON *item) { return cJSON_IsBool(item); }
static bool is_list(const cJSON *item) { return cJSON_IsArray(item); }
static bool is_precision(const cJSON *item) { return eval_is_listed("f32 bf16 int8 fp8", text_of(item)); }
static bool is_hash(const cJSON *item) {
    return strlen(text_of(item)) == 16 && strspn(text_of(item), "0123456789abcdef") == 16;
}
static bool is_date(const cJSON *item) {
    static const char form[] = "0000-00-00T00:00:00Z"; /* 0 stands for a digit */
    const char *date = text_of(item), *at = form;
    while (*at && (*at == '0' ? isdigit((unsigned char)*date) != 0 : *date == *at)) at++, date++;
    return !*at && !*date;
}

static const struct {
    const char *keys; /* with blanks between them */
    bool (*fits)(const cJSON *item);
} facts[] = {
    {"kakeya_version cpu_model os backend model", is_text},
    {"date", is_date},
    {"fingerprint", is_hash},
    {"precision", is_precision},
    {"cores threads memory_bytes layers vocabulary sliding_window", is_count},
    {"drafter_block_size", is_size},
    {"drafter f_theta drafter_scaled_embedding", is_flag},
    {"stop_tokens", is_list},
};

static void check_geometry(gate_context *context) {
    kakeya_error problem = {0};
    const cJSON *json = member(context->environment, "kv_geometry"), *layer;
    gate_allow_keys(context, "environment.kv_geometry", json,
                    "kv_format sliding_window f_theta_rank layers drafter fingerprint",
                    "page_granule_bytes devices f_theta_latents assistant_state_values");
    gate_allow_keys(context, "environment.kv_geometry.f_theta_latents", member(json, "f_theta_latents"),
                    "input format shared rank_k rank_v", "");
    gate_allow_keys(context, "environment.kv_geometry.drafter", member(json, "drafter"),
                    "kv_heads head_dim sliding_windows", "");
    cJSON_ArrayForEach(layer, member(json, "layers")) gate_allow_keys(context, "environment.kv_geometry.layers", layer,
                                                                      "type kv_heads head_dim k_eq_v kv_source", "");
    kakeya_status status = kv_geometry_from_json(json, &context->geometry, &problem);
    context->has_geometry = status == KAKEYA_OK;
    if (status == KAKEYA_OUT_OF_MEMORY) context->out_of_memory = true;
    if (status != KAKEYA_OK) gate_violate(context, "KV_GEOMETRY", "environment.%.200s", problem.message);
}

void gate_check_environment(gate_context *context) {
    const cJSON *e = context->environment;
    if (!cJSON_IsObject(e)) {
        gate_violate(context, "MISSING_ENVIRONMENT", "no \"environment\" object");
        return;
    }
    char list[400] = "kv_geometry", key[40];
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        strcat(strcat(list, " "), facts[i].keys);
        for (const char *at = facts[i].keys; *at; at += strspn(at, " ")) {
            snprintf(key, sizeof key, "%.*s", (int)strcspn(at, " "), at);
            at += strcspn(at, " ");
            if (!facts[i].fits(member(e, key)))
                gate_violate(context, is_text(member(e, key)) ? "ENVIRONMENT" : "MISSING_ENVIRONMENT",
                             "environment.%s is missing, or not of its form", key);
        }
    }
    gate_allow_keys(context, "environment", e, list, "");
    check_geometry(context);
}

/* ---------------------------------------------------------------------------------------------- options and command */

static void check_options(gate_context *context) {
    char list[400] = "";
    const eval_option *option;
    if (!cJSON_IsObject(context->options)) {
        gate_violate(context, "MISSING_OPTIONS", "no \"options\" object");
        return;
    }
    context->options_sound = true;
    for (size_t i = 0; (option = eval_option_at(i)) != NULL; i++) {
        if (!option->key || !(option->kinds & 1u << context->kind) || eval_is_listed(list, option->key)) continue;
        const cJSON *item = member(context->options, option->key);
        strcat(strcat(list, " "), option->key);
        if (item ? eval_option_fits(option, item) : option->optional) continue;
        context->options_sound = false;
        if (item) {
            gate_violate(context, "OPTIONS_FORM", "options.%s is not of the form that kakeya eval writes", option->key);
        } else {
            gate_violate(context, "MISSING_OPTIONS", "options.%s is missing", option->key);
        }
    }
    gate_allow_keys(context, "options", context->options, list, "");
}

int gate_option(const gate_context *context, const char *key) {
    const cJSON *item = member(context->options, key);
    return json_is_integer(item, INT32_MIN, INT32_MAX) ? (int)item->valuedouble : 0;
}

/* Which evaluation the command names. Whether it gives this report, a replay says. */
static void check_command(gate_context *context) {
    const cJSON *command = member(context->report, "command"), *word;
    const int at = context->kind == EVAL_VERIFY ? 1 : 2; /* "kakeya verify", "kakeya eval NAME" */
    const char *name = context->kind == EVAL_BATCH ? "lossless" : strrchr(eval_kind_name(context->kind), '.') + 1;
    bool named = cJSON_IsArray(command) && cJSON_GetArraySize(command) > at, batch = false;
    cJSON_ArrayForEach(word, command) {
        named &= cJSON_IsString(word);
        batch |= named && strncmp(word->valuestring, "--bat", 5) == 0; /* earlier versions took a beginning of it */
    }
    if (!named) {
        gate_violate(context, "MISSING_COMMAND", "the command line that made the report is not recorded");
        return;
    }
    word = cJSON_GetArrayItem(command, at);
    if (strcmp(word->valuestring, name) != 0 || batch != (context->kind == EVAL_BATCH))
        gate_violate(context, "COMMAND", "the command ran \"%.40s\"%s, but the report is of kind %s", word->valuestring,
                     batch ? " --batch" : "", eval_kind_name(context->kind));
}

/* -------------------------------------------------------------------------------------------------------- the whole */

void gate_check_form(gate_context *context) {
    gate_check_values(context);
    gate_allow_keys(context, "the report", context->report,
                    "kind schema_version complete command environment options rows summary",
                    context->kind == EVAL_VERIFY ? "logits" : "");
    if (!cJSON_IsTrue(member(context->report, "complete")))
        gate_violate(context, "INCOMPLETE", "the evaluation did not come to its end (\"complete\" is not true)");
    gate_check_environment(context);
    check_options(context);
    check_command(context);
    const cJSON *row;
    size_t index = 0;
    cJSON_ArrayForEach(row, member(context->report, "rows")) check_row_keys(context, row, index++);
}
