#include "serve/kv_messages.h"

#include <stdlib.h>
#include <string.h>

#include "base/nul.h"

/* ---------------------------------------------------------------------------------- msgpack, as far as it is needed */

enum {
    MSGPACK_FIXED_MAP = 0x80,
    MSGPACK_FIXED_LIST = 0x90,
    MSGPACK_FIXED_TEXT = 0xa0,
    MSGPACK_NIL = 0xc0,
    MSGPACK_DOUBLE = 0xcb,
    MSGPACK_UINT8 = 0xcc, /* then those of 16, 32 and 64 bits */
    MSGPACK_INT64 = 0xd3,
    MSGPACK_TEXT8 = 0xd9,
    MSGPACK_TEXT32 = 0xdb,
    MSGPACK_LIST32 = 0xdd,
};

/* A byte, then a number of 1, 2, 4 or 8 bytes, big-endian. */
static void put(text_buffer *out, int type, uint64_t number, int bytes) {
    char data[9] = {(char)type};
    for (int i = 0; i < bytes; i++) data[1 + i] = (char)(number >> 8 * (bytes - 1 - i));
    text_bytes(out, data, (size_t)bytes + 1);
}

static void put_nil(text_buffer *out) { put(out, MSGPACK_NIL, 0, 0); }

static void put_unsigned(text_buffer *out, uint64_t value) {
    if (value < 0x80)
        put(out, (int)value, 0, 0);
    else if (value <= UINT8_MAX)
        put(out, MSGPACK_UINT8, value, 1);
    else if (value <= UINT16_MAX)
        put(out, MSGPACK_UINT8 + 1, value, 2);
    else if (value <= UINT32_MAX)
        put(out, MSGPACK_UINT8 + 2, value, 4);
    else
        put(out, MSGPACK_UINT8 + 3, value, 8);
}

static void put_double(text_buffer *out, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(out, MSGPACK_DOUBLE, bits, 8);
}

static void put_list(text_buffer *out, size_t n) {
    if (n < 16)
        put(out, MSGPACK_FIXED_LIST + (int)n, 0, 0);
    else
        put(out, MSGPACK_LIST32, n, 4);
}

static void put_bytes(text_buffer *out, const char *text, size_t n) {
    if (n < 32)
        put(out, MSGPACK_FIXED_TEXT + (int)n, 0, 0);
    else if (n <= UINT8_MAX)
        put(out, MSGPACK_TEXT8, n, 1);
    else
        put(out, MSGPACK_TEXT32, n, 4);
    text_bytes(out, text, n);
}

static void put_text(text_buffer *out, const char *text) { put_bytes(out, text, strlen(text)); }

/* A text of a client's, which may hold U+0000. */
static void put_clients_text(text_buffer *out, const char *text) {
    size_t n = strlen(text);
    char *meant = nul_is_spelled(text, n) ? malloc(n) : NULL;
    if (meant)
        put_bytes(out, meant, nul_read(meant, text, n));
    else if (nul_is_spelled(text, n))
        out->failed = true;
    else
        put_bytes(out, text, n);
    free(meant);
}

/* ---------------------------------------------------------------------------------------------------------- events */

static void put_hashes(text_buffer *out, const kv_block_event *event) {
    put_text(out, "block_hashes");
    put_list(out, event->n);
    for (size_t i = 0; i < event->n; i++) put_unsigned(out, event->hashes[i]);
}

static void put_signed(text_buffer *out, int64_t value) {
    if (value >= 0)
        put_unsigned(out, (uint64_t)value);
    else
        put(out, MSGPACK_INT64, (uint64_t)value, 8);
}

/* Of the pictures from `from` on, how many have rows in [begin, end); those that end before it are passed over. */
static size_t pictures_in(const kv_block_event *event, size_t begin, size_t end, size_t *from) {
    const kv_picture *p = event->pictures;
    while (*from < event->n_pictures && p[*from].begin + p[*from].n <= begin) ++*from;
    size_t to = *from;
    while (to < event->n_pictures && p[to].begin < end) to++;
    return to - *from;
}

/* What else makes the blocks what they are: of each picture with rows in a block its digest, and where it begins,
 * counted from the beginning of the block; and the salt of a text is a key of its first block. */
static void put_extra_keys(text_buffer *out, const kv_block_event *event) {
    put_text(out, "extra_keys");
    const bool salted = event->salt && !event->parent;
    size_t from = 0;
    if (!salted && !pictures_in(event, event->first, event->first + event->n * KV_BLOCK_TOKENS, &from)) {
        put_nil(out);
        return;
    }
    put_list(out, event->n);
    for (size_t i = 0; i < event->n; i++) {
        const size_t begin = event->first + i * KV_BLOCK_TOKENS;
        const size_t pictures = pictures_in(event, begin, begin + KV_BLOCK_TOKENS, &from), salts = salted && i == 0;
        if (pictures + salts == 0) {
            put_nil(out);
            continue;
        }
        put_list(out, pictures + salts);
        for (size_t k = from; k < from + pictures; k++) {
            put_list(out, 2);
            put_text(out, event->pictures[k].digest);
            put_signed(out, (int64_t)event->pictures[k].begin - (int64_t)begin);
        }
        if (salts) put_clients_text(out, event->salt);
    }
}

static void put_stored(text_buffer *out, const kv_block_event *event) {
    put_text(out, "parent_block_hash");
    if (event->parent)
        put_unsigned(out, *event->parent);
    else
        put_nil(out);
    put_text(out, "token_ids");
    put_list(out, event->n * KV_BLOCK_TOKENS);
    for (size_t i = 0; i < event->n * KV_BLOCK_TOKENS; i++)
        put_unsigned(out, (uint64_t)(event->ids[i] < 0 ? event->media_token : event->ids[i]));
    put_text(out, "block_size");
    put_unsigned(out, KV_BLOCK_TOKENS);
    put_text(out, "lora_id");
    put_nil(out);
    put_text(out, "lora_name");
    put_nil(out);
    put_extra_keys(out, event);
}

void kv_message_write(text_buffer *out, const kv_block_event *event, double seconds) {
    static const char *const names[] = {"BlockStored", "BlockRemoved", "AllBlocksCleared"};
    static const char *const media[] = {"GPU", "CPU", "DISK"};
    static const int members[] = {9, 3, 1};
    put_list(out, 3);
    put_double(out, seconds);
    put_list(out, 1);
    put(out, MSGPACK_FIXED_MAP + members[event->type], 0, 0);
    put_text(out, "type");
    put_text(out, names[event->type]);
    if (event->type != KV_BLOCKS_CLEARED) {
        put_hashes(out, event);
        put_text(out, "medium");
        put_text(out, media[event->medium]);
    }
    if (event->type == KV_BLOCKS_STORED) put_stored(out, event);
    put_unsigned(out, 0);
}
