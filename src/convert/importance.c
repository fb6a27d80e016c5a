#include "convert/importance.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "formats/gguf.h"

struct importances {
    gguf **files;
    size_t n;
};

static kakeya_status open_one(const char *path, gguf **out, kakeya_error *error) {
    if (file_exists(path) && !gguf_is_file(path))
        return error_set(error, KAKEYA_FORMAT,
                         "%s: importances are read from GGUF files, as llama-imatrix writes them now (to convert an "
                         "older .dat: llama-imatrix --in-file OLD.dat -o NEW.gguf)",
                         path);
    kakeya_status status = gguf_open(path, out, error);
    if (status == KAKEYA_OK && !gguf_find(*out, "imatrix.chunk_count"))
        return error_set(error, KAKEYA_FORMAT, "%s holds no importances (key imatrix.chunk_count is not there)", path);
    return status;
}

kakeya_status importances_open(const char *const *paths, size_t n, importances **out, kakeya_error *error) {
    importances *set = *out = calloc(1, sizeof *set);
    if (set) set->files = calloc(n + 1, sizeof(gguf *));
    kakeya_status status = KAKEYA_OK;
    if (!set || !set->files) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for files of importances");
    while (status == KAKEYA_OK && set->n < n) {
        status = open_one(paths[set->n], &set->files[set->n], error);
        set->n++;
    }
    if (status == KAKEYA_OK) return KAKEYA_OK;
    importances_close(set);
    *out = NULL;
    return status;
}

void importances_close(importances *set) {
    if (!set) return;
    for (size_t i = 0; i < set->n; i++) gguf_close(set->files[i]);
    free((void *)set->files);
    free(set);
}

/* NAME.what, or NULL. */
static const gguf_tensor *part_of(const gguf *file, const char *name, const char *what) {
    char key[192];
    snprintf(key, sizeof key, "%s.%s", name, what);
    ptrdiff_t at = gguf_find_tensor(file, key);
    return at < 0 ? NULL : file->tensors[at];
}

static bool has_shape(const gguf_tensor *t, int64_t first, int64_t second) {
    return t && t->type->id == GGUF_TENSOR_F32 && t->dims <= 2 && t->ne[0] == first &&
           (t->dims == 2 ? t->ne[1] == second : second == 1);
}

static float number(const gguf_tensor *t, size_t i) {
    float value;
    memcpy(&value, t->data + i * sizeof value, sizeof value);
    return value;
}

/* Adds what a file has; *found says whether it has any. */
static kakeya_status add_file(const gguf *file, const char *name, size_t experts, size_t in, double *sums,
                              double *counts, bool *found, kakeya_error *error) {
    char other[160];
    const gguf_tensor *squares = part_of(file, name, "in_sum2");
    const char *fused = strstr(name, "ffn_gate_up_exps");
    if (!squares && fused) { /* both halves meet the same inputs */
        snprintf(other, sizeof other, "%.*sffn_gate_exps%s", (int)(fused - name), name,
                 fused + strlen("ffn_gate_up_exps"));
        name = other;
        squares = part_of(file, name, "in_sum2");
    }
    if (!squares) return KAKEYA_OK;
    *found = true;
    const gguf_tensor *rows = part_of(file, name, "counts");
    if (!has_shape(squares, (int64_t)in, (int64_t)experts) || !has_shape(rows, 1, (int64_t)experts))
        return error_set(error, KAKEYA_FORMAT, "%s: the importances of %s are not for this model: expected %zu x %zu",
                         gguf_path(file), name, experts, in);
    for (size_t e = 0; e < experts; e++) {
        float count = number(rows, e);
        bool good = isfinite(count) && count >= 0;
        counts[e] += (double)count;
        for (size_t i = e * in; good && i < (e + 1) * in; i++) {
            float sum = number(squares, i);
            good = isfinite(sum) && sum >= 0;
            sums[i] += (double)sum;
        }
        if (!good)
            return error_set(error, KAKEYA_FORMAT,
                             "%s: the importances of %s contain a value that is not a mean "
                             "square",
                             gguf_path(file), name);
    }
    return KAKEYA_OK;
}

kakeya_status importances_find(const importances *set, const char *name, int experts, int in, float **out,
                               kakeya_error *error) {
    const size_t n = (size_t)experts, wide = (size_t)in;
    double *sums = calloc(n * wide, sizeof *sums), *counts = calloc(n, sizeof *counts);
    float *values = malloc(n * wide * sizeof *values);
    bool found = false;
    kakeya_status status = KAKEYA_OK;
    *out = NULL;
    if (!sums || !counts || !values)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for the importances of %s", name);
    for (size_t f = 0; status == KAKEYA_OK && f < set->n; f++)
        status = add_file(set->files[f], name, n, wide, sums, counts, &found, error);
    for (size_t i = 0; status == KAKEYA_OK && i < n * wide; i++)
        values[i] = counts[i / wide] > 0 ? (float)(sums[i] / counts[i / wide]) : 1;
    if (status == KAKEYA_OK && found) {
        *out = values;
        values = NULL;
    }
    free(values);
    free(counts);
    free(sums);
    return status;
}
