#include "formats/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/json.h"
#include "formats/foreign.h"

static const size_t max_config_bytes = (size_t)16 << 20;
static const size_t max_index_bytes = (size_t)256 << 20;

static kakeya_status no_memory(const char *what, kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its tensor list", what);
}

/* A text file beside the weights. */
static kakeya_status read_text(const char *path, size_t max_bytes, char **text, size_t *bytes, kakeya_error *error) {
    kakeya_status status = file_read_regular(path, max_bytes, text, bytes, error);
    if (status != KAKEYA_OK) return status;
    status = foreign_refuse(path, *text, *bytes, error);
    if (status != KAKEYA_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}

/* What a directory holds in the place of a model. */
static kakeya_status refuse_adapter(const char *directory, kakeya_error *error) {
    static const char *const adapters[] = {"adapter_config.json", "adapter_model.safetensors"};
    for (size_t i = 0; i < sizeof adapters / sizeof adapters[0]; i++) {
        char *path = path_join(directory, adapters[i]);
        bool found = path && file_exists(path);
        free(path);
        if (found)
            return error_set(error, KAKEYA_UNSUPPORTED,
                             "%s: a LoRA adapter (%s), not a model: merge it into its base model (merge_and_unload "
                             "of peft) and use the result",
                             directory, adapters[i]);
    }
    return KAKEYA_OK;
}

kakeya_status checkpoint_text(const char *directory, const char *name, bool optional, char **path, char **text,
                              size_t *bytes, kakeya_error *error) {
    bool there;
    *text = NULL;
    *bytes = 0;
    *path = path_join(directory, name);
    if (!*path) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", directory);
    kakeya_status status = file_find(*path, &there, error);
    if (status == KAKEYA_OK && !there) status = optional ? KAKEYA_OK : refuse_adapter(directory, error);
    if (status != KAKEYA_OK || (!there && optional)) return status;
    return read_text(*path, max_config_bytes, text, bytes, error);
}

/* ------------------------------------------------------------------------------------------------ shards */

static kakeya_status add_shard(checkpoint *ck, const char *path, kakeya_error *error) {
    safetensors **shards = realloc(ck->shards, (ck->n_shards + 1) * sizeof *shards);
    if (!shards) return no_memory(path, error);
    ck->shards = shards;
    kakeya_status status = safetensors_open(path, &shards[ck->n_shards], error);
    if (status == KAKEYA_OK) ck->n_shards++;
    return status;
}

/* One line of an index's weight_map. */
typedef struct placement {
    const char *tensor, *shard;
} placement;

static int compare_placements(const void *a, const void *b) {
    const placement *x = a, *y = b;
    int order = strcmp(x->shard, y->shard);
    return order ? order : strcmp(x->tensor, y->tensor);
}

/* A shard is a file beside its index, nothing else. */
static bool plain_file_name(const char *name) {
    return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static kakeya_status open_placed_shards(checkpoint *ck, const char *index_path, placement *placed, size_t n,
                                        kakeya_error *error) {
    for (size_t i = 0; i < n; i++) {
        const char *shard = placed[i].shard;
        if (i == 0 || strcmp(shard, placed[i - 1].shard) != 0) {
            if (!plain_file_name(shard))
                return error_set(error, KAKEYA_FORMAT, "%s: shard \"%s\" of tensor %s is not a file name", index_path,
                                 shard, placed[i].tensor);
            char *path = path_join(ck->directory, shard);
            if (!path) return no_memory(index_path, error);
            bool there;
            kakeya_status status = file_find(path, &there, error);
            if (status == KAKEYA_OK && !there)
                status =
                    error_set(error, KAKEYA_IO, "%s: names shard %s, which is not in the directory", index_path, shard);
            if (status == KAKEYA_OK) status = add_shard(ck, path, error);
            free(path);
            if (status != KAKEYA_OK) return status;
        }
        if (!safetensors_find(ck->shards[ck->n_shards - 1], placed[i].tensor))
            return error_set(error, KAKEYA_FORMAT, "%s: tensor %s is not in its shard %s", index_path, placed[i].tensor,
                             shard);
    }
    return KAKEYA_OK;
}

static kakeya_status open_index(checkpoint *ck, const char *index_path, kakeya_error *error) {
    char *text = NULL;
    size_t bytes = 0;
    cJSON *index = NULL;
    placement *placed = NULL;
    kakeya_status status = read_text(index_path, max_index_bytes, &text, &bytes, error);
    if (status == KAKEYA_OK) status = json_parse_object(index_path, text, bytes, &index, error);
    if (status == KAKEYA_OK) status = json_refuse_repeated_keys(index_path, index, error);
    if (status != KAKEYA_OK) goto done;

    const cJSON *map = json_get(index, "weight_map");
    if (!cJSON_IsObject(map)) {
        status = error_set(error, KAKEYA_FORMAT, "%s: weight_map is missing or not an object", index_path);
        goto done;
    }
    placed = malloc(((size_t)cJSON_GetArraySize(map) + 1) * sizeof *placed);
    if (!placed) {
        status = no_memory(index_path, error);
        goto done;
    }
    size_t n = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, map) {
        if (!cJSON_IsString(item)) {
            status =
                error_set(error, KAKEYA_FORMAT, "%s: weight_map entry %s is not a file name", index_path, item->string);
            goto done;
        }
        placed[n++] = (placement){.tensor = item->string, .shard = item->valuestring};
    }
    qsort(placed, n, sizeof *placed, compare_placements);
    status = open_placed_shards(ck, index_path, placed, n, error);
done:
    free(placed);
    cJSON_Delete(index);
    free(text);
    return status;
}

static int compare_tensors(const void *a, const void *b) {
    return strcmp((*(const tensor *const *)a)->name, (*(const tensor *const *)b)->name);
}

/* Path of the shard that holds a tensor, for messages. */
static const char *shard_path(const checkpoint *ck, const tensor *t) {
    for (size_t i = 0; i < ck->n_shards; i++) {
        if (t >= ck->shards[i]->tensors && t < ck->shards[i]->tensors + ck->shards[i]->count)
            return ck->shards[i]->path;
    }
    return ck->directory;
}

static kakeya_status merge_tensors(checkpoint *ck, kakeya_error *error) {
    size_t total = 0;
    for (size_t i = 0; i < ck->n_shards; i++) total += ck->shards[i]->count;
    ck->tensors = malloc((total + 1) * sizeof *ck->tensors);
    if (!ck->tensors) return no_memory(ck->directory, error);
    for (size_t i = 0; i < ck->n_shards; i++) {
        for (size_t k = 0; k < ck->shards[i]->count; k++) ck->tensors[ck->n_tensors++] = &ck->shards[i]->tensors[k];
    }
    qsort(ck->tensors, total, sizeof *ck->tensors, compare_tensors);
    for (size_t i = 1; i < total; i++) {
        if (compare_tensors(&ck->tensors[i - 1], &ck->tensors[i]) == 0)
            return error_set(error, KAKEYA_FORMAT, "%s: tensor %s is also in %s", shard_path(ck, ck->tensors[i]),
                             ck->tensors[i]->name, shard_path(ck, ck->tensors[i - 1]));
    }
    return KAKEYA_OK;
}

/* Says of a directory without safetensors what it holds instead. */
static kakeya_status refuse_directory(const char *directory, const char *weights_name, const char *index_name,
                                      kakeya_error *error) {
    static const char *const pickled[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    for (size_t i = 0; i < sizeof pickled / sizeof pickled[0]; i++) {
        char *path = path_join(directory, pickled[i]);
        bool found = path && file_exists(path);
        free(path);
        if (found)
            return error_set(error, KAKEYA_UNSUPPORTED, "%s: neither %s nor %s found, only %s: " FOREIGN_PYTORCH_ADVICE,
                             directory, weights_name, index_name, pickled[i]);
    }
    kakeya_status status = refuse_adapter(directory, error);
    if (status != KAKEYA_OK) return status;
    return error_set(error, KAKEYA_IO, "%s: neither %s nor %s found", directory, weights_name, index_name);
}

/* A single file wins over an index, as in Hugging Face transformers: shards of an earlier save may lie beside it. */
static kakeya_status open_tensors(checkpoint *ck, const char *weights_name, kakeya_error *error) {
    char index_name[256];
    snprintf(index_name, sizeof index_name, "%s.index.json", weights_name);
    char *single = path_join(ck->directory, weights_name);
    char *index = path_join(ck->directory, index_name);
    bool found = false;
    kakeya_status status = single && index ? file_find(single, &found, error) : no_memory(ck->directory, error);
    if (status == KAKEYA_OK && found) {
        status = add_shard(ck, single, error);
    } else if (status == KAKEYA_OK) {
        status = file_find(index, &found, error);
        if (status == KAKEYA_OK)
            status =
                found ? open_index(ck, index, error) : refuse_directory(ck->directory, weights_name, index_name, error);
    }
    free(single);
    free(index);
    return status == KAKEYA_OK ? merge_tensors(ck, error) : status;
}

/* --------------------------------------------------------------------------------------------- checkpoint */

kakeya_status checkpoint_open(const char *directory, const char *config_name, const char *weights_name,
                              checkpoint **out, kakeya_error *error) {
    *out = NULL;
    if (!directory_exists(directory)) return error_set(error, KAKEYA_IO, "%s: no such directory", directory);
    checkpoint *ck = calloc(1, sizeof *ck);
    if (ck) ck->directory = strdup(directory);
    if (!ck || !ck->directory) {
        free(ck);
        return no_memory(directory, error);
    }
    char *generation_path = NULL;
    kakeya_status status =
        checkpoint_text(directory, config_name, false, &ck->config_path, &ck->config, &ck->config_bytes, error);
    if (status == KAKEYA_OK)
        status = checkpoint_text(directory, "generation_config.json", true, &generation_path, &ck->generation_config,
                                 &ck->generation_config_bytes, error);
    free(generation_path);
    if (status == KAKEYA_OK) status = open_tensors(ck, weights_name, error);
    if (status != KAKEYA_OK) {
        checkpoint_close(ck);
        return status;
    }
    *out = ck;
    return KAKEYA_OK;
}

void checkpoint_close(checkpoint *ck) {
    if (!ck) return;
    for (size_t i = 0; i < ck->n_copies; i++) mem_free(ck->copies[i]);
    for (size_t i = 0; i < ck->n_shards; i++) safetensors_close(ck->shards[i]);
    free(ck->copies);
    free(ck->shards);
    free(ck->tensors);
    free(ck->config_path);
    free(ck->config);
    free(ck->generation_config);
    free(ck->directory);
    free(ck);
}

ptrdiff_t checkpoint_find(const checkpoint *ck, const char *name) {
    tensor wanted = {.name = name};
    const tensor *key = &wanted;
    const tensor **found = bsearch(&key, ck->tensors, ck->n_tensors, sizeof *ck->tensors, compare_tensors);
    return found ? found - ck->tensors : -1;
}

kakeya_status checkpoint_aligned(checkpoint *ck, const tensor *t, mem_account *account, const void **out,
                                 kakeya_error *error) {
    if ((uintptr_t)t->data % tensor_type_bytes(t->type) == 0) {
        *out = t->data;
        return KAKEYA_OK;
    }
    void **copies = realloc(ck->copies, (ck->n_copies + 1) * sizeof *copies);
    if (!copies) return no_memory(ck->directory, error);
    ck->copies = copies;
    void *copy = mem_alloc(account, MEM_WEIGHTS, t->bytes);
    if (!copy)
        return error_set(error, KAKEYA_OUT_OF_MEMORY,
                         "%s: no memory for %zu bytes of tensor %s, which is not aligned in the file", ck->directory,
                         t->bytes, t->name);
    memcpy(copy, t->data, t->bytes);
    copies[ck->n_copies++] = copy;
    *out = copy;
    return KAKEYA_OK;
}

void checkpoint_prefetch(const checkpoint *ck) {
    for (size_t i = 0; i < ck->n_shards; i++) {
        const file_map *map = &ck->shards[i]->map;
        if (map->data) (void)madvise((void *)(uintptr_t)map->data, map->bytes, MADV_WILLNEED);
    }
}
