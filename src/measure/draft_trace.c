#include "measure/draft_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { TRACE_VERSION = 1, MAX_TRACE_BYTES = 1 << 30, MAX_TOKENS = 1 << 20 };

static kakeya_status out_of_memory(kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for recorded texts");
}

draft_trace *draft_traces_add(draft_traces *traces) {
    if (traces->n == traces->capacity) {
        int grown = traces->capacity ? 2 * traces->capacity : 16;
        draft_trace *trace = realloc(traces->trace, (size_t)grown * sizeof *trace);
        if (!trace) return NULL;
        traces->trace = trace;
        traces->capacity = grown;
    }
    draft_trace *added = &traces->trace[traces->n++];
    memset(added, 0, sizeof *added);
    return added;
}

void draft_traces_free(draft_traces *traces) {
    for (int i = 0; i < traces->n; i++) {
        free(traces->trace[i].tokens);
        free(traces->trace[i].drafts);
    }
    free(traces->trace);
    *traces = (draft_traces){0};
}

kakeya_status draft_trace_allocate(draft_trace *trace, int tokens, int prompt_tokens, int max_drafts,
                                   kakeya_error *error) {
    size_t generated = (size_t)(tokens - prompt_tokens), block = (size_t)max_drafts * (size_t)max_drafts;
    trace->tokens = calloc((size_t)tokens + 1, sizeof *trace->tokens);
    trace->drafts = calloc(generated * block + 1, sizeof *trace->drafts);
    trace->prompt_tokens = prompt_tokens;
    trace->max_drafts = max_drafts;
    trace->n = tokens;
    return trace->tokens && trace->drafts ? KAKEYA_OK : out_of_memory(error);
}

int32_t *draft_trace_drafts(const draft_trace *trace, int n, int k) {
    size_t block = (size_t)trace->max_drafts * (size_t)trace->max_drafts;
    return trace->drafts + (size_t)(n - 1 - trace->prompt_tokens) * block + (size_t)(k - 1) * (size_t)trace->max_drafts;
}

/* ----------------------------------------------------------------------------------------------------- as JSON */

static cJSON *costs_json(const trace_cost *costs, int n) {
    cJSON *array = cJSON_CreateArray();
    for (int i = 0; array && i < n; i++)
        cJSON_AddItemToArray(array, cJSON_CreateFloatArray(costs[i].seconds, costs[i].n));
    return array;
}

static cJSON *trace_json(const draft_trace *t) {
    cJSON *object = cJSON_CreateObject();
    if (!object) return NULL;
    cJSON_AddStringToObject(object, "name", t->name);
    cJSON_AddStringToObject(object, "workload", t->workload);
    cJSON_AddStringToObject(object, "policy", t->policy);
    cJSON_AddStringToObject(object, "backend", t->backend);
    cJSON_AddNumberToObject(object, "prompt_tokens", t->prompt_tokens);
    cJSON_AddNumberToObject(object, "max_drafts", t->max_drafts);
    cJSON_AddItemToObject(object, "tokens", cJSON_CreateIntArray(t->tokens, t->n));
    int drafts = (t->n - t->prompt_tokens) * t->max_drafts * t->max_drafts;
    cJSON_AddItemToObject(object, "drafts", cJSON_CreateIntArray(t->drafts, drafts));
    cJSON_AddItemToObject(object, "verify_seconds", costs_json(t->verify, BACKEND_MAX_DECODE_ROWS + 1));
    cJSON_AddItemToObject(object, "draft_seconds", costs_json(t->draft, BACKEND_MAX_DRAFT + 1));
    return object;
}

kakeya_status draft_traces_write(const draft_traces *traces, file_writer *writer, kakeya_error *error) {
    cJSON *root = cJSON_CreateObject(), *list = cJSON_CreateArray();
    cJSON_AddStringToObject(root, "kind", "draft-traces");
    cJSON_AddNumberToObject(root, "version", TRACE_VERSION);
    for (int i = 0; i < traces->n; i++) cJSON_AddItemToArray(list, trace_json(&traces->trace[i]));
    cJSON_AddItemToObject(root, "traces", list);
    char *text = root ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    if (!text) return out_of_memory(error);
    kakeya_status status = file_writer_write(writer, text, strlen(text), error);
    cJSON_free(text);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ reading */

/* All items of an array of exactly n integers within [0, INT32_MAX]. */
static void read_ids(json_reader *r, const cJSON *object, const char *key, int n, int32_t *out) {
    const cJSON *array = json_array(r, object, key), *item;
    if (cJSON_GetArraySize(array) != n) {
        json_fail(r, KAKEYA_FORMAT, "'%s' has %d entries, not %d", key, cJSON_GetArraySize(array), n);
        return;
    }
    int i = 0;
    cJSON_ArrayForEach(item, array) {
        if (!json_is_integer(item, 0, INT32_MAX))
            json_fail(r, KAKEYA_FORMAT,
                      "'%s' entry %d is not a token "
                      "id",
                      key, i);
        out[i++] = (int32_t)item->valuedouble;
    }
}

static void read_costs(json_reader *r, const cJSON *object, const char *key, int n, trace_cost *out) {
    const cJSON *array = json_array(r, object, key), *list, *item;
    if (cJSON_GetArraySize(array) != n) {
        json_fail(r, KAKEYA_FORMAT, "'%s' has %d entries, not %d", key, cJSON_GetArraySize(array), n);
        return;
    }
    int i = 0;
    cJSON_ArrayForEach(list, array) {
        cJSON_ArrayForEach(item, list) {
            if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || out[i].n == TRACE_COST_SAMPLES) {
                json_fail(r, KAKEYA_FORMAT,
                          "'%s' entry %d is not a list of at most %d "
                          "times",
                          key, i, TRACE_COST_SAMPLES);
                return;
            }
            out[i].seconds[out[i].n++] = (float)item->valuedouble;
        }
        i++;
    }
}

static void read_text(json_reader *r, const cJSON *object, const char *key, size_t size, char *out) {
    snprintf(out, size, "%s", json_string(r, object, key, ""));
}

static kakeya_status read_trace(json_reader *r, const cJSON *object, draft_trace *t) {
    read_text(r, object, "name", sizeof t->name, t->name);
    read_text(r, object, "workload", sizeof t->workload, t->workload);
    read_text(r, object, "policy", sizeof t->policy, t->policy);
    read_text(r, object, "backend", sizeof t->backend, t->backend);
    int tokens = cJSON_GetArraySize(json_array(r, object, "tokens"));
    int drafts = json_required_int(r, object, "max_drafts", 0, BACKEND_MAX_DRAFT);
    int prompt = json_required_int(r, object, "prompt_tokens", 1, MAX_TOKENS);
    if (!r->status && (tokens > MAX_TOKENS || tokens <= prompt)) {
        json_fail(r, KAKEYA_FORMAT, "'tokens' has %d entries after a prompt of %d", tokens, prompt);
    }
    if (r->status) return r->status;
    r->status = draft_trace_allocate(t, tokens, prompt, drafts, r->error);
    if (r->status) return r->status;
    read_ids(r, object, "tokens", tokens, t->tokens);
    read_ids(r, object, "drafts", (tokens - prompt) * drafts * drafts, t->drafts);
    read_costs(r, object, "verify_seconds", BACKEND_MAX_DECODE_ROWS + 1, t->verify);
    read_costs(r, object, "draft_seconds", BACKEND_MAX_DRAFT + 1, t->draft);
    for (int rows = 1; rows <= BACKEND_MAX_DECODE_ROWS; rows++) {
        if (t->verify[rows].n == 0) json_fail(r, KAKEYA_FORMAT, "'verify_seconds' has nothing for %d rows", rows);
    }
    for (int k = 1; k <= drafts; k++) {
        if (t->draft[k].n == 0) json_fail(r, KAKEYA_FORMAT, "'draft_seconds' has nothing for %d drafts", k);
    }
    return r->status;
}

kakeya_status draft_traces_load(const char *path, draft_traces *out, kakeya_error *error) {
    *out = (draft_traces){0};
    char *text;
    size_t bytes;
    cJSON *root = NULL;
    kakeya_status status = file_read(path, MAX_TRACE_BYTES, &text, &bytes, error);
    if (status) return status;
    status = json_parse_object(path, text, bytes, &root, error);
    free(text);
    if (status) return status;
    json_reader r = {.name = path, .error = error};
    const char *kind = json_string(&r, root, "kind", "");
    if (strcmp(kind, "draft-traces") != 0) json_fail(&r, KAKEYA_FORMAT, "this is not a file of recorded texts");
    (void)json_required_int(&r, root, "version", TRACE_VERSION, TRACE_VERSION);
    const cJSON *item;
    cJSON_ArrayForEach(item, json_array(&r, root, "traces")) {
        if (r.status) break;
        draft_trace *t = draft_traces_add(out);
        if (!t)
            r.status = out_of_memory(error);
        else
            (void)read_trace(&r, item, t);
    }
    if (!r.status && out->n == 0) json_fail(&r, KAKEYA_FORMAT, "it holds no text");
    cJSON_Delete(root);
    if (r.status) draft_traces_free(out);
    return r.status;
}
