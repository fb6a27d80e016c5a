#include "serve/store_header.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"

typedef struct header {
    char magic[8];
    uint32_t version, header_bytes;
    uint64_t fingerprint, policy;
    store_key key;
    uint64_t tokens, metadata_bytes, payload_bytes, chunk_bytes, file_bytes, created_ms;
    uint32_t reason, flags;
    uint64_t salt;
    store_key block_key;
    uint64_t blocks;
    unsigned char zero[8];
    store_key checksum;
} header;

_Static_assert(sizeof(header) == STORE_HEADER_BYTES, "the header has no gaps");
_Static_assert(offsetof(header, key) == 32 && offsetof(header, tokens) == 48 && offsetof(header, reason) == 96 &&
                   offsetof(header, checksum) == 144,
               "the header lies as its table says");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "headers are written in the machine's order");

static const char magic[8] = {'K', 'A', 'K', 'E', 'Y', 'A', 'C', 'K'};
static const uint64_t most_tokens = INT32_MAX, most_payload_bytes = UINT64_C(1) << 50;

store_key store_file_seed(uint64_t fingerprint, uint64_t policy, uint64_t salt) {
    const uint64_t both[2] = {fingerprint, policy};
    return store_key_salted(store_key_seed(both, sizeof both), salt);
}

static store_key checksum_of(const header *h) {
    XXH128_hash_t hash = XXH3_128bits(h, offsetof(header, checksum));
    return (store_key){.low = hash.low64, .high = hash.high64};
}

uint64_t store_header_body_bytes(const store_file_info *info) {
    return info->tokens * (sizeof(int32_t) + 1) + info->metadata_bytes + info->payload_bytes;
}

uint64_t store_header_chunks(const store_file_info *info) {
    return (store_header_body_bytes(info) + info->chunk_bytes - 1) / info->chunk_bytes;
}

static bool sizes_possible(const store_file_info *info) {
    return info->tokens >= 1 && info->tokens <= most_tokens && info->blocks <= info->tokens / STORE_BLOCK_TOKENS &&
           info->metadata_bytes <= STORE_FILE_MOST_METADATA_BYTES && info->payload_bytes <= most_payload_bytes &&
           info->chunk_bytes >= STORE_FILE_LEAST_CHUNK_BYTES && info->chunk_bytes <= STORE_FILE_MOST_CHUNK_BYTES;
}

static uint64_t file_bytes_of(const store_file_info *info) {
    return STORE_HEADER_BYTES + store_header_body_bytes(info) + (store_header_chunks(info) + 1) * sizeof(uint64_t);
}

kakeya_status store_header_write(store_file_info *info, unsigned char out[STORE_HEADER_BYTES], kakeya_error *error) {
    if (!sizes_possible(info))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "a file of %" PRIu64 " tokens, %" PRIu64 " bytes of metadata, %" PRIu64
                         " of payload in chunks of %" PRIu64,
                         info->tokens, info->metadata_bytes, info->payload_bytes, info->chunk_bytes);
    info->file_bytes = file_bytes_of(info);
    header h = {
        .version = STORE_FILE_VERSION,
        .header_bytes = STORE_HEADER_BYTES,
        .fingerprint = info->fingerprint,
        .policy = info->policy,
        .key = info->key,
        .tokens = info->tokens,
        .metadata_bytes = info->metadata_bytes,
        .payload_bytes = info->payload_bytes,
        .chunk_bytes = info->chunk_bytes,
        .file_bytes = info->file_bytes,
        .created_ms = info->created_ms,
        .reason = info->reason,
        .flags = info->flags,
        .salt = info->salt,
        .block_key = info->block_key,
        .blocks = info->blocks,
    };
    memcpy(h.magic, magic, sizeof magic);
    h.checksum = checksum_of(&h);
    memcpy(out, &h, sizeof h);
    return KAKEYA_OK;
}

kakeya_status store_header_read(const unsigned char bytes[STORE_HEADER_BYTES], const char *name, store_file_info *out,
                                kakeya_error *error) {
    header h;
    memcpy(&h, bytes, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) != 0)
        return error_set(error, KAKEYA_FORMAT, "%s: not a saved session", name);
    if (!store_key_equal(checksum_of(&h), h.checksum))
        return error_set(error, KAKEYA_FORMAT, "%s: damaged: the header has another checksum", name);
    if (h.version != STORE_FILE_VERSION || h.header_bytes != STORE_HEADER_BYTES)
        return error_set(error, KAKEYA_UNSUPPORTED, "%s: version %" PRIu32 ", this build reads version %d", name,
                         h.version, (int)STORE_FILE_VERSION);
    store_file_info info = {
        .fingerprint = h.fingerprint,
        .policy = h.policy,
        .key = h.key,
        .tokens = h.tokens,
        .metadata_bytes = h.metadata_bytes,
        .payload_bytes = h.payload_bytes,
        .chunk_bytes = h.chunk_bytes,
        .file_bytes = h.file_bytes,
        .created_ms = h.created_ms,
        .reason = h.reason,
        .flags = h.flags,
        .salt = h.salt,
        .block_key = h.block_key,
        .blocks = h.blocks,
    };
    if (!sizes_possible(&info) || info.file_bytes != file_bytes_of(&info))
        return error_set(error, KAKEYA_FORMAT, "%s: damaged: its sizes do not add up to %" PRIu64 " bytes", name,
                         info.file_bytes);
    if (info.reason < STORE_PROMPT_END || info.reason > STORE_SHUTDOWN)
        return error_set(error, KAKEYA_FORMAT, "%s: damaged: reason %" PRIu32, name, info.reason);
    *out = info;
    return KAKEYA_OK;
}
