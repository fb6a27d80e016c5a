#include <stdlib.h>
#include <sys/stat.h>

#include "backend/backend.h"
#include "convert/source.h"
#include "formats/checkpoint.h"

static bool lies_beside(const language_model *model, const char *out) {
    char *name = language_model_beside(model, BACKEND_ARRANGED);
    bool same = name && file_same(name, out);
    free(name);
    return same;
}

kakeya_status convert_to_tiles(const char *name, const char *out, const convert_options *o, convert_report *report,
                               kakeya_error *error) {
    mem_account account;
    mem_account_init(&account, NULL, 0);
    language_model *model = NULL;
    char *path = NULL;
    kakeya_status status = checkpoint_resolve(name, &path, error);
    if (status == KAKEYA_OK) status = language_model_open(path, &account, &model, error);
    const backend_ops *cpu = backend_find("cpu", error);
    if (status == KAKEYA_OK && !cpu) status = KAKEYA_UNSUPPORTED;
    const backend_model_options options = {.verifier = model,
                                           .precision = KAKEYA_PRECISION_INT8,
                                           .threads = o->threads,
                                           .account = &account,
                                           .progress = o->progress,
                                           .user = o->user};
    if (status == KAKEYA_OK) status = cpu->weights_arrange(&options, out, error);
    struct stat about;
    if (status == KAKEYA_OK && stat(out, &about) == 0) report->bytes = (uint64_t)about.st_size;
    if (status == KAKEYA_OK) report->in_place = lies_beside(model, out);
    language_model_close(model);
    free(path);
    return status;
}
