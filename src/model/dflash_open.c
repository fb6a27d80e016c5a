/* A drafter from where it is stored: a directory of safetensors, or a GGUF file. */
#include <stdlib.h>

#include "formats/gguf.h"
#include "model/dflash_gguf.h"
#include "model/tensors.h"

static kakeya_status open_checkpoint(const char *directory, const model_config *verifier, mem_account *account,
                                     block_drafter_model *model, kakeya_error *error) {
    kakeya_status status = checkpoint_open(directory, "config.json", "model.safetensors", &model->checkpoint, error);
    checkpoint *ck = model->checkpoint;
    if (status == KAKEYA_OK)
        status = block_drafter_config_parse(ck->config_path, ck->config, ck->config_bytes, &model->config, error);
    if (status == KAKEYA_OK) status = block_drafter_config_fits(ck->config_path, &model->config, verifier, error);
    if (status != KAKEYA_OK) return status;
    tensor_memory memory = {0};
    status = tensors_bind(ck, "", dflash_walk, &model->config, model, NULL, NULL, account, &memory, error);
    model->owned = memory.owned;
    model->n_owned = memory.n_owned;
    model->mapped_bytes = memory.mapped_bytes;
    return status;
}

kakeya_status block_drafter_model_open(const char *path, const model_config *verifier, mem_account *account,
                                       block_drafter_model **out, kakeya_error *error) {
    *out = NULL;
    block_drafter_model *model = calloc(1, sizeof *model);
    if (!model) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for the drafter", path);
    kakeya_status status =
        (gguf_is_file(path) ? dflash_gguf_open : open_checkpoint)(path, verifier, account, model, error);
    if (status != KAKEYA_OK) {
        block_drafter_model_close(model);
        return status;
    }
    *out = model;
    return KAKEYA_OK;
}
