#include "convert/importance.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "formats/gguf.h"

struct importances {
    gguf *file;
};

kakeya_status importances_open(const char *path, importances **out, kakeya_error *error) {
    *out = calloc(1, sizeof **out);
    if (!*out) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory to open it", path);
    kakeya_status status = KAKEYA_OK;
    if (file_exists(path) && !gguf_is_file(path))
        status = error_set(error, KAKEYA_FORMAT,
                           "%s: importances are read from GGUF files, as llama-imatrix writes them today (it converts "
                           "an older .dat: llama-imatrix --in-file OLD.dat -o NEW.gguf)",
                           path);
    if (status == KAKEYA_OK) status = gguf_open(path, &(*out)->file, error);
    if (status == KAKEYA_OK && !gguf_find((*out)->file, "imatrix.chunk_count"))
        status =
            error_set(error, KAKEYA_FORMAT, "%s holds no importances (key imatrix.chunk_count is not there)", path);
    if (status == KAKEYA_OK) return KAKEYA_OK;
    importances_close(*out);
    *out = NULL;
    return status;
}

void importances_close(importances *file) {
    if (!file) return;
    gguf_close(file->file);
    free(file);
}

/* NAME.what, or NULL. */
static const gguf_tensor *part_of(const importances *file, const char *name, const char *what) {
    char key[192];
    snprintf(key, sizeof key, "%s.%s", name, what);
    ptrdiff_t at = gguf_find_tensor(file->file, key);
    return at < 0 ? NULL : file->file->tensors[at];
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

kakeya_status importances_find(const importances *file, const char *name, int experts, int in, float **out,
                               kakeya_error *error) {
    *out = NULL;
    char other[160];
    const gguf_tensor *sums = part_of(file, name, "in_sum2");
    const char *fused = strstr(name, "ffn_gate_up_exps");
    if (!sums && fused) { /* both halves meet the same inputs */
        snprintf(other, sizeof other, "%.*sffn_gate_exps%s", (int)(fused - name), name,
                 fused + strlen("ffn_gate_up_exps"));
        name = other;
        sums = part_of(file, name, "in_sum2");
    }
    if (!sums) return KAKEYA_OK;
    const gguf_tensor *counts = part_of(file, name, "counts");
    if (!has_shape(sums, in, experts) || !has_shape(counts, 1, experts))
        return error_set(error, KAKEYA_FORMAT, "%s: the importances of %s are not of this model: %d x %d are expected",
                         gguf_path(file->file), name, experts, in);
    float *values = malloc((size_t)experts * (size_t)in * sizeof *values);
    if (!values) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for the importances of %s", name);
    for (int e = 0; e < experts; e++) {
        float count = number(counts, (size_t)e);
        bool good = isfinite(count) && count >= 0;
        for (int i = 0; good && i < in; i++) {
            size_t at = (size_t)e * (size_t)in + (size_t)i;
            float sum = number(sums, at);
            good = isfinite(sum) && sum >= 0;
            values[at] = count > 0 ? sum / count : 1;
        }
        if (good) continue;
        free(values);
        return error_set(error, KAKEYA_FORMAT, "%s: the importances of %s hold a value that is no mean square",
                         gguf_path(file->file), name);
    }
    *out = values;
    return KAKEYA_OK;
}
