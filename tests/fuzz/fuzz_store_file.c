/* Saved sessions as anybody might have left them in a directory. Checksums would stop nearly every input at the door,
 * so they are made right first, where the first byte says so. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "serve/store_file.h"

enum { HEADER = 160, CHUNK_AT = 72, FILE_AT = 80, SUM_AT = 144, KEY_AT = 32, TOKENS_AT = 48 };

static uint64_t number(const uint8_t *data, size_t at) {
    uint64_t value;
    memcpy(&value, data + at, sizeof value);
    return value;
}

/* Header, chunks, list and key, as far as the stated sizes lie inside. */
static void mend(uint8_t *data, size_t n) {
    if (n < HEADER + 16) return;
    memcpy(data, "KAKEYACK", 8);
    uint64_t chunk = number(data, CHUNK_AT), tokens = number(data, TOKENS_AT), bytes = n;
    memcpy(data + FILE_AT, &bytes, sizeof bytes);
    uint64_t body = tokens * 5 + number(data, 56) + number(data, 64);
    if (tokens < n && HEADER + tokens * 4 <= n) {
        store_key key = store_key_of(store_file_seed(number(data, 16), number(data, 24), number(data, 104)),
                                     (const int32_t *)(const void *)(data + HEADER), (size_t)tokens);
        memcpy(data + KEY_AT, &key, sizeof key);
    }
    XXH128_hash_t sum = XXH3_128bits(data, SUM_AT);
    memcpy(data + SUM_AT, &sum.low64, 8);
    memcpy(data + SUM_AT + 8, &sum.high64, 8);
    if (body > n - HEADER || chunk == 0) return;
    size_t chunks = (size_t)((body + chunk - 1) / chunk), list = HEADER + (size_t)body;
    if (chunks > n || list + 8 * chunks + 8 > n) return;
    for (size_t i = 0; i < chunks; i++) {
        size_t from = i * (size_t)chunk, left = (size_t)body - from;
        uint64_t hash = XXH3_64bits(data + HEADER + from, left < chunk ? left : (size_t)chunk);
        memcpy(data + list + 8 * i, &hash, 8);
    }
    uint64_t hash = XXH3_64bits(data + list, 8 * chunks);
    memcpy(data + list + 8 * chunks, &hash, 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    size_t n = size - 1;
    uint8_t *copy = malloc(n + 1);
    if (!copy) return 0;
    memcpy(copy, data + 1, n);
    if (data[0] & 1) mend(copy, n);
    int fd = memfd_create("session", MFD_CLOEXEC);
    if (fd >= 0 && write(fd, copy, n) == (ssize_t)n) {
        store_file *file = NULL;
        kakeya_error error;
        if (store_file_open_descriptor(fd, "session", &file, &error) == KAKEYA_OK) {
            if (store_file_verify(file, &error) == KAKEYA_OK) {
                const store_file_info *info = store_file_about(file);
                int64_t sum = (int64_t)store_file_prompt_tokens(file) + (int64_t)strlen(store_file_metadata(file));
                for (uint64_t i = 0; i < info->tokens; i++) sum += store_file_ids(file)[i];
                if (sum == INT64_MIN) abort();
            }
            store_file_close(file);
        }
    } else if (fd >= 0) {
        close(fd);
    }
    free(copy);
    return 0;
}
