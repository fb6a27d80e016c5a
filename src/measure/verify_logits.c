#include "measure/verify_logits.h"

#include <stdlib.h>
#include <string.h>

#include "formats/safetensors.h"
#include "kakeya_study.h"

const double verify_logits_divergence = 0.02, verify_logits_agreement = 0.9, verify_logits_rounding = 1e-3;

bool verify_logits_hold(const cJSON *logits) {
    const cJSON *kl = cJSON_GetObjectItemCaseSensitive(logits, "kl"),
                *same = cJSON_GetObjectItemCaseSensitive(logits, "same_choice");
    return cJSON_IsNumber(kl) && kl->valuedouble <= verify_logits_divergence && cJSON_IsNumber(same) &&
           same->valuedouble >= verify_logits_agreement;
}

typedef struct logits_work {
    int32_t *ids;
    size_t n;
    float *nll, *reference_nll, *kl; /* [n] */
    uint8_t *same;                   /* [n] */
} logits_work;

static kakeya_status read_ids(const char *path, int vocab, logits_work *w, kakeya_error *error) {
    safetensors *file;
    kakeya_status status = safetensors_open(path, &file, error);
    if (status != KAKEYA_OK) return status;
    const tensor *ids = safetensors_find(file, "ids");
    bool wide = ids && ids->type == TENSOR_I64;
    if (!ids || ids->dims != 1 || (!wide && ids->type != TENSOR_I32) || ids->shape[0] < 2 || ids->shape[0] > 1 << 20)
        status = error_set(error, KAKEYA_FORMAT, "%s: no tensor \"ids\" of at least two integers", path);
    if (status == KAKEYA_OK) {
        w->n = (size_t)ids->shape[0];
        w->ids = malloc(w->n * sizeof *w->ids);
        if (!w->ids) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for %zu ids", path, w->n);
    }
    for (size_t i = 0; status == KAKEYA_OK && i < w->n; i++) {
        int64_t id = 0;
        int32_t narrow = 0;
        if (wide)
            memcpy(&id, ids->data + i * sizeof id, sizeof id);
        else
            memcpy(&narrow, ids->data + i * sizeof narrow, sizeof narrow);
        if (!wide) id = narrow;
        if (id < 0 || id >= vocab)
            status = error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: id %lld in a vocabulary of %d", path, (long long)id,
                               vocab);
        w->ids[i] = (int32_t)id;
    }
    safetensors_close(file);
    return status;
}

static kakeya_status score(eval_harness *harness, const char *path, logits_work *w, kakeya_error *error) {
    eval_arm arm;
    kakeya_session *session = NULL;
    harness_arm(harness, "native", KAKEYA_MODE_AR, &arm);
    kakeya_session_options options = harness_session_options(harness, &arm, w->n);
    kakeya_score_options how;
    KAKEYA_INIT(&how);
    how.nll = w->nll = malloc(w->n * sizeof(float));
    how.against_nll = w->reference_nll = malloc(w->n * sizeof(float));
    how.against_kl = w->kl = malloc(w->n * sizeof(float));
    how.against_top_same = w->same = malloc(w->n);
    how.against = path;
    if (!w->nll || !w->reference_nll || !w->kl || !w->same)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for %zu rows", path, w->n);
    kakeya_status status = kakeya_session_open(harness->engine, &options, &session, error);
    if (status == KAKEYA_OK) status = kakeya_session_score(session, w->ids, w->n, &how, error);
    kakeya_session_close(session);
    return status;
}

static cJSON *describe(const char *path, const logits_work *w) {
    const char *slash = strrchr(path, '/');
    cJSON *object = cJSON_CreateObject(), *rows = cJSON_CreateArray();
    size_t n = w->n - 1;
    double kl = 0, same = 0;
    for (size_t t = 0; t < n; t++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddNumberToObject(row, "token", w->ids[t + 1]);
        cJSON_AddNumberToObject(row, "kl", (double)w->kl[t]);
        cJSON_AddNumberToObject(row, "nll", (double)w->nll[t]);
        cJSON_AddNumberToObject(row, "reference_nll", (double)w->reference_nll[t]);
        cJSON_AddBoolToObject(row, "same_choice", w->same[t]);
        cJSON_AddItemToArray(rows, row);
        kl += (double)w->kl[t];
        same += w->same[t];
    }
    cJSON_AddStringToObject(object, "file", slash ? slash + 1 : path);
    cJSON_AddNumberToObject(object, "tokens", (double)n);
    cJSON_AddNumberToObject(object, "kl", kl / (double)n);
    cJSON_AddNumberToObject(object, "same_choice", same / (double)n);
    if (cJSON_AddItemToObject(object, "rows", rows)) return object;
    cJSON_Delete(rows);
    cJSON_Delete(object);
    return NULL;
}

kakeya_status verify_logits(eval_harness *harness, const char *path, cJSON **out, kakeya_error *error) {
    logits_work w = {0};
    kakeya_status status = read_ids(path, kakeya_engine_vocab_size(harness->engine), &w, error);
    if (status == KAKEYA_OK) status = score(harness, path, &w, error);
    if (status == KAKEYA_OK) {
        *out = describe(path, &w);
        if (!*out) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for %zu rows", path, w.n);
    }
    free(w.ids);
    free(w.nll);
    free(w.reference_nll);
    free(w.kl);
    free(w.same);
    return status;
}
