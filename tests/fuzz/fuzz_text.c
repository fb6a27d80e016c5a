/* Any bytes as text, and as ids: invalid UTF-8 is refused, valid text comes back, and the stream equals the batch. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/detokenizer.h"
#include "text/utf8.h"
#include "unit/tokenizer_form.h"

static tokenizer *shared_tokenizer(void) {
    static tokenizer *t;
    tokenizer_form form = default_form;
    form.added_tokens =
        "[{\"id\":256,\"content\":\"<s>\",\"special\":true},{\"id\":257,\"content\":\"<s>>\",\"special\":true},"
        "{\"id\":258,\"content\":\"ab!\"},{\"id\":268,\"content\":\"b c\",\"normalized\":true}]";
    if (!t && open_form(&form, &t, NULL)) abort();
    return t;
}

static void check_stream(const tokenizer *t, const int32_t *ids, size_t n, bool keep_special) {
    char *text;
    size_t bytes, at = 0;
    detokenizer *d;
    if (detokenize(t, ids, n, keep_special, &text, &bytes, NULL)) abort();
    if (utf8_valid_bytes(text, bytes) != bytes) abort();
    if (detokenizer_create(t, keep_special, &d, NULL)) abort();
    for (size_t i = 0; i <= n; i++) {
        const char *more;
        size_t more_bytes;
        if (i == n) {
            detokenizer_finish(d, &more, &more_bytes);
        } else if (detokenizer_push(d, ids[i], &more, &more_bytes, NULL)) {
            abort();
        }
        if (utf8_valid_bytes(more, more_bytes) != more_bytes || at + more_bytes > bytes) abort();
        if (memcmp(text + at, more, more_bytes) != 0) abort();
        at += more_bytes;
    }
    if (at != bytes) abort();
    detokenizer_destroy(d);
    free(text);
}

static void check_text(const tokenizer *t, const char *text, size_t bytes) {
    int32_t *ids;
    size_t n, decoded_bytes;
    char *decoded;
    bool valid = utf8_valid_bytes(text, bytes) == bytes;
    kakeya_status status =
        tokenizer_encode(t, text, bytes, (tokenizer_encode_options){.parse_special = true}, &ids, &n, NULL);
    if ((status == KAKEYA_OK) != valid) abort();
    if (!valid) return;
    if (detokenize(t, ids, n, true, &decoded, &decoded_bytes, NULL)) abort();
    /* U+2581 decodes to a space; nothing else changes. */
    size_t at = 0;
    for (size_t i = 0; i < decoded_bytes; i++) {
        bool space = decoded[i] == ' ' && at + 3 <= bytes && memcmp(text + at, "\xE2\x96\x81", 3) == 0;
        if (!space && (at >= bytes || text[at] != decoded[i])) abort();
        at += space ? 3 : 1;
    }
    if (at != bytes) abort();
    free(decoded);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const tokenizer *t = shared_tokenizer();
    check_text(t, (const char *)data, size);
    int32_t *ids = malloc((size + 1) * sizeof *ids);
    if (!ids) abort();
    for (size_t i = 0; i < size; i++) {
        /* Bytes as they are, but a few that never occur in UTF-8 stand for the pieces behind the byte pieces. */
        ids[i] = data[i] >= 0xF5 ? 256 + (data[i] - 0xF5) : data[i];
    }
    check_stream(t, ids, size, true);
    check_stream(t, ids, size, false);
    free(ids);
    return 0;
}
