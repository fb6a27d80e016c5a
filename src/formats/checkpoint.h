/* A checkpoint directory: a configuration text, an optional generation_config.json, and named tensors of one
 * safetensors file or of the shards that an index file names. Opening is mapping; nothing is copied. */
#ifndef KAKEYA_FORMATS_CHECKPOINT_H
#define KAKEYA_FORMATS_CHECKPOINT_H

#include "base/alloc.h"
#include "formats/safetensors.h"

typedef struct checkpoint {
    char *directory;
    char *config_path; /* for messages */
    char *config;      /* NUL-terminated */
    size_t config_bytes;
    char *generation_config; /* NULL where the directory has none */
    size_t generation_config_bytes;
    safetensors **shards;
    size_t n_shards;
    const tensor **tensors; /* of all shards, sorted by name */
    size_t n_tensors;
    void **copies; /* tensors that the file holds unaligned, see checkpoint_aligned */
    size_t n_copies;
} checkpoint;

/* Opens `directory`/`config_name` and `directory`/`weights_name`; where there is no such file, the shards of
 * `directory`/`weights_name`.index.json. */
kakeya_status checkpoint_open(const char *directory, const char *config_name, const char *weights_name,
                              checkpoint **out, kakeya_error *error);
void checkpoint_close(checkpoint *ck); /* NULL is fine */

/* A small text file of a model's directory. *text is malloc'ed with a NUL behind it, and NULL where the file is
 * optional and absent; what is there and is no readable file is an error. *path is for messages and freed by the
 * caller, also on failure. */
kakeya_status checkpoint_text(const char *directory, const char *name, bool optional, char **path, char **text,
                              size_t *bytes, kakeya_error *error);

/* Index into tensors, or -1 where absent. */
ptrdiff_t checkpoint_find(const checkpoint *ck, const char *name);
/* The tensor's data at an address that is a multiple of its element size: in the file where it is aligned there,
 * otherwise a copy (MEM_WEIGHTS in `account`) that the checkpoint owns. */
kakeya_status checkpoint_aligned(checkpoint *ck, const tensor *t, mem_account *account, const void **out,
                                 kakeya_error *error);
/* Asks the system to read the mapped files ahead. Advice only. */
void checkpoint_prefetch(const checkpoint *ck);

/* The directory or GGUF file that a user means by `name_or_path`: an existing one as it is, otherwise a model name
 * ("org/name") in the local Hugging Face cache ($HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub), without any
 * network. Of a directory without safetensors the GGUF file in it, which "DIRECTORY:TAG" or "org/name:TAG" chooses
 * where there are several (formats/gguf_choice.h). *directory is freed with free. */
kakeya_status checkpoint_resolve(const char *name_or_path, char **directory, kakeya_error *error);

#endif
