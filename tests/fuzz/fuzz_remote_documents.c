/* Any bytes as a claim, a result or a cancellation: refused with a message, or read into texts that end and can be
 * shown. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "remote/documents.h"

static void check_text(const char *text, size_t size) {
    size_t length = strnlen(text, size);
    if (length == size) abort();
    char *copy = strdup(text);
    if (!copy || remote_printable(copy, length) != length || memcmp(copy, text, length) != 0) abort();
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    const char *text = (const char *)data + 1;
    kakeya_error error = {0};
    kakeya_status status;
    if (data[0] % 3 == 0) {
        claim c;
        status = claim_read(text, size - 1, &c, &error);
        if (status == KAKEYA_OK) check_text(c.host, sizeof c.host);
    } else if (data[0] % 3 == 1) {
        result r;
        status = result_read(text, size - 1, &r, &error);
        if (status == KAKEYA_OK) {
            check_text(r.reason, sizeof r.reason);
            check_text(r.preset, sizeof r.preset);
            for (size_t i = 0; i < r.n_codes; i++) check_text(r.code[i], sizeof r.code[i]);
            for (size_t i = 0; i < r.n_words; i++) check_text(r.word[i], sizeof r.word[i]);
            for (size_t i = 0; i < r.n_files; i++)
                if (!*r.file[i].name || strchr(r.file[i].name, '/') || !remote_is_sha256(r.file[i].sha256)) abort();
        }
    } else {
        cancel c;
        status = cancel_read(text, size - 1, &c, &error);
        if (status == KAKEYA_OK && !remote_is_nonce(c.nonce)) abort();
    }
    if (status != KAKEYA_OK && error.message[0] == 0) abort();
    return 0;
}
