/* Any bytes as a tokenizer.json: refused with a message, or a tokenizer whose ids stay inside its vocabulary. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/detokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "ab abc<s>\n\n \xC3\xA9 aa!";
    kakeya_error error = {0};
    tokenizer *t;
    if (tokenizer_open_memory("fuzz.json", (const char *)data, size, &t, &error)) {
        if (error.message[0] == 0) abort();
        return 0;
    }
    tokenizer_encode_options options = {.add_special = true, .parse_special = true};
    int32_t *ids;
    size_t n, bytes;
    char *decoded;
    if (tokenizer_encode(t, text, sizeof text - 1, options, &ids, &n, &error)) abort();
    if (detokenize(t, ids, n, true, &decoded, &bytes, &error)) abort(); /* ids outside the vocabulary are refused */
    free(decoded);
    free(ids);
    tokenizer_close(t);
    return 0;
}
