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
#include "measure/lossless_plan.h"

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

static bool is_text(const cJSON *item) { return cJSON_IsString(item) && item->valuestring[0]; }

static int days_of(int year, int month) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month - 1] + (leap && month == 2);
}

static void check_date(gate_context *context, const char *date) {
    static const char form[] = "0000-00-00T00:00:00Z"; /* 0 stands for a digit */
    bool good = strlen(date) == strlen(form);
    for (size_t i = 0; good && form[i]; i++)
        good = form[i] == '0' ? isdigit((unsigned char)date[i]) != 0 : date[i] == form[i];
    int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
    if (good) sscanf(date, "%d-%d-%dT%d:%d:%d", &year, &month, &day, &hour, &minute, &second);
    if (good) good = month >= 1 && month <= 12 && day >= 1 && day <= days_of(year, month);
    if (good) good = hour < 24 && minute < 60 && second <= 60; /* 60: a leap second */
    if (!good) gate_violate(context, "ENVIRONMENT", "environment.date \"%.40s\" is no date in UTC", date);
}

static void check_stop_tokens(gate_context *context) {
    const cJSON *stop, *vocabulary = member(context->environment, "vocabulary");
    double size = cJSON_IsNumber(vocabulary) ? vocabulary->valuedouble : 0;
    cJSON_ArrayForEach(stop, member(context->environment, "stop_tokens")) {
        if (!json_is_integer(stop, 0, size - 1))
            gate_violate(context, "ENVIRONMENT", "environment.stop_tokens holds something that is no token id below %g",
                         size);
    }
}

static void check_geometry(gate_context *context) {
    kakeya_error problem = {0};
    const cJSON *json = member(context->environment, "kv_geometry"), *layer, *stated;
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
    if (status != KAKEYA_OK) {
        gate_violate(context, "KV_GEOMETRY", "environment.%.200s", problem.message);
        return;
    }
    const kv_geometry *g = &context->geometry;
    const struct {
        const char *name;
        double derived;
    } same[] = {
        {"sliding_window", g->verifier.sliding_window},
        {"layers", g->verifier.layers},
        {"drafter", g->has_drafter || g->state_values},
        {"f_theta", g->f_theta.rank > 0},
    };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        stated = member(context->environment, same[i].name);
        double value = cJSON_IsBool(stated) ? cJSON_IsTrue(stated) : cJSON_IsNumber(stated) ? stated->valuedouble : -1;
        if (fabs(value - same[i].derived) > 0)
            gate_violate(context, "KV_GEOMETRY", "environment.%s is %g, but kv_geometry says %g", same[i].name, value,
                         same[i].derived);
    }
}

void gate_check_environment(gate_context *context) {
    static const char *const texts[] = {"kakeya_version", "date",  "cpu_model",   "os",
                                        "backend",        "model", "fingerprint", "precision"};
    static const char *const counts[] = {"cores", "memory_bytes", "threads", "layers", "vocabulary", "sliding_window"};
    static const char *const flags[] = {"drafter", "f_theta", "drafter_scaled_embedding"};
    const cJSON *e = context->environment;
    if (!cJSON_IsObject(e)) {
        gate_violate(context, "MISSING_ENVIRONMENT", "no \"environment\" object");
        return;
    }
    gate_allow_keys(context, "environment", e,
                    "kakeya_version date cpu_model cores memory_bytes os backend precision threads model fingerprint",
                    "drafter f_theta drafter_block_size layers vocabulary sliding_window stop_tokens "
                    "drafter_scaled_embedding kv_geometry");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (!is_text(member(e, texts[i])))
            gate_violate(context, "MISSING_ENVIRONMENT", "environment.%s is missing", texts[i]);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (!json_is_integer(member(e, counts[i]), 1, 9e15))
            gate_violate(context, "MISSING_ENVIRONMENT", "environment.%s is missing, or no count", counts[i]);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (!cJSON_IsBool(member(e, flags[i])))
            gate_violate(context, "MISSING_ENVIRONMENT", "environment.%s is missing", flags[i]);
    if (!json_is_integer(member(e, "drafter_block_size"), 0, 1 << 16))
        gate_violate(context, "MISSING_ENVIRONMENT", "environment.drafter_block_size is missing, or no count");
    if (!cJSON_IsArray(member(e, "stop_tokens")))
        gate_violate(context, "MISSING_ENVIRONMENT", "environment.stop_tokens is missing");
    check_stop_tokens(context);
    check_geometry(context);
    if (is_text(member(e, "date"))) check_date(context, member(e, "date")->valuestring);
    const cJSON *fingerprint = member(e, "fingerprint"), *precision = member(e, "precision");
    if (is_text(fingerprint) &&
        (strlen(fingerprint->valuestring) != 16 || strspn(fingerprint->valuestring, "0123456789abcdef") != 16))
        gate_violate(context, "ENVIRONMENT", "environment.fingerprint \"%.40s\" is not 16 hexadecimal digits",
                     fingerprint->valuestring);
    if (is_text(precision) && !eval_is_listed("f32 bf16 int8 fp8", precision->valuestring))
        gate_violate(context, "ENVIRONMENT", "environment.precision \"%.40s\" is none of f32, bf16, int8, fp8",
                     precision->valuestring);
}

/* ---------------------------------------------------------------------------------------------- options and command */

static void check_promises(gate_context *context) {
    const cJSON *prompts = member(context->options, "prompts"), *slow = member(context->options, "reference_prompts");
    cJSON *derived = cJSON_CreateObject();
    if (!derived ||
        !lossless_add_promises(derived, (int)prompts->valuedouble,
                               cJSON_IsTrue(member(context->environment, "drafter")), (int)slow->valuedouble)) {
        context->out_of_memory = true;
    } else {
        for (const cJSON *list = derived->child; list; list = list->next)
            if (!cJSON_Compare(list, member(context->options, list->string), true))
                gate_violate(context, "LOSSLESS_COVERAGE", "options.%s is not what eval lossless runs on %d prompts",
                             list->string, (int)prompts->valuedouble);
    }
    cJSON_Delete(derived);
}

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
    if (context->options_sound && context->kind == EVAL_LOSSLESS) check_promises(context);
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
