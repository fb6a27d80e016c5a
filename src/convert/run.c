#include "convert/convert.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/error.h"
#include "convert/source.h"
#include "convert/vision.h"

const char *const convert_target_names[CONVERT_TARGETS + 1] = {
    "q4_0", "q8_0", "q4_k", "q5_k", "q6_k", "q4_k_m", "affine4", "affine8", "f32", "f16", "bf16", "tiles", NULL,
};

static kakeya_status check_free(const char *out, kakeya_error *error) {
    struct stat status;
    if (lstat(out, &status) != 0 && errno == ENOENT) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT,
                     "%s already exists and is not overwritten: choose another name, or remove it", out);
}

static kakeya_status check_vision_free(const char *out, kakeya_error *error) {
    char *path = vision_path(out);
    kakeya_status status = path ? check_free(path, error)
                                : error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for a path beside it", out);
    free(path);
    return status;
}

static kakeya_status check_options(const convert_options *o, kakeya_error *error) {
    if (o->grid && o->to != CONVERT_Q4_0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "--grid needs --to q4_0, not %s", convert_target_names[o->to]);
    if (o->grid && o->n_importance)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "--grid keeps weights exactly, so --importance has no effect: omit one of them");
    if (o->to == CONVERT_TILES && (o->grid || o->n_importance || o->head || o->attention || o->n_keep))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "tiles are the model's own weights in another order: no option changes their formats");
    if (o->to >= CONVERT_AFFINE4 && (o->n_importance || o->head || o->attention || o->n_keep))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "importances and formats of single tensors are for GGUF files, not for %s",
                         convert_target_names[o->to]);
    return KAKEYA_OK;
}

kakeya_status convert_model(const char *model, const char *out, const convert_options *options, convert_report *report,
                            kakeya_error *error) {
    source from = {0};
    conversion c = {.from = &from, .options = options, .report = report};
    *report = (convert_report){0};
    kakeya_status status = check_free(out, error);
    if (status == KAKEYA_OK) status = check_options(options, error);
    if (status == KAKEYA_OK && options->to == CONVERT_TILES)
        return convert_to_tiles(model, out, options, report, error);
    if (status == KAKEYA_OK) status = source_open(model, options->to, &from, error);
    if (status == KAKEYA_OK && (from.model->vision || from.model->sound) && !convert_is_directory(options->to))
        status = check_vision_free(out, error);
    if (status == KAKEYA_OK) status = thread_pool_create(options->threads, &c.pool, error);
    for (size_t i = 0; i < from.n; i++) {
        c.values_total += from.tensors[i].w ? (uint64_t)from.tensors[i].rows * (uint64_t)from.tensors[i].in : 0;
        report->parameters += (uint64_t)from.tensors[i].rows * (uint64_t)from.tensors[i].in;
    }
    if (status == KAKEYA_OK)
        status =
            convert_is_directory(options->to) ? convert_to_directory(&c, out, error) : convert_to_gguf(&c, out, error);
    thread_pool_destroy(c.pool);
    source_close(&from);
    return status;
}
