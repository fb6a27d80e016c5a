/* What routers are told of files (kv_blocks.h). */
#ifndef KAKEYA_SERVE_STORE_TOLD_H
#define KAKEYA_SERVE_STORE_TOLD_H

#include "serve/kv_blocks.h"
#include "serve/store_file.h"

/* The member of a file's metadata that holds the text of its salt. */
#define STORE_SALT_MEMBER "salt"

/* The blocks from whose end a prompt can go on, as the file's header says. blocks may be NULL: so is the result. */
kv_path *store_told_ids(kv_blocks *blocks, const store_file_info *info, const char *salt, const int32_t *ids);
/* The same for a file that has just been opened: reads and verifies ids and metadata. */
kv_path *store_told_file(kv_blocks *blocks, store_file *file);

#endif
