#include "serve/store_told.h"

#include <cJSON.h>

#include "base/json_text.h"
#include "serve/store_rules.h"

kv_path *store_told_ids(kv_blocks *blocks, const store_file_info *info, const char *salt, const int32_t *ids) {
    return kv_blocks_add(blocks, KV_MEDIUM_DISK, salt, ids, (size_t)info->blocks * STORE_BLOCK_TOKENS);
}

/* A file whose salt cannot be told is not told of. */
kv_path *store_told_file(kv_blocks *blocks, store_file *file) {
    const store_file_info *info = store_file_about(file);
    if (store_file_read_metadata(file, NULL) != KAKEYA_OK) return NULL;
    if (!info->salt) return store_told_ids(blocks, info, NULL, store_file_ids(file));
    cJSON *metadata = json_text_read(store_file_metadata(file), (size_t)info->metadata_bytes);
    const char *salt = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, STORE_SALT_MEMBER));
    kv_path *path = store_salt(salt) == info->salt ? store_told_ids(blocks, info, salt, store_file_ids(file)) : NULL;
    cJSON_Delete(metadata);
    return path;
}
