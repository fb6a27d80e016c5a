/* What clients send to the server: heads, chunked bodies, JSON bodies with the fields that requests read. The first
 * byte chooses. Pieces of a body must give what the whole gives. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/body.h"
#include "serve/http_parse.h"

static void head(const char *bytes, size_t n) {
    http_head h;
    const char *why;
    if (http_head_parse(bytes, n, &h, &why) == 0) {
        if (strlen(h.path) == 0 || h.n_headers > HTTP_MAX_HEADERS || (h.has_length && h.chunked)) abort();
        http_head_free(&h);
    }
}

/* The body in pieces of `step` bytes. Returns whether it was one; *out holds n bytes. */
static bool chunks(const char *bytes, size_t n, size_t step, char *out, size_t *length) {
    http_chunks c = {0};
    *length = 0;
    for (size_t at = 0; at < n && !c.done;) {
        size_t have = n - at < step ? n - at : step, consumed, got;
        const char *data;
        if (!http_chunks_feed(&c, bytes + at, have, &consumed, &data, &got)) return false;
        if (got) memcpy(out + *length, data, got);
        *length += got;
        at += consumed;
    }
    return c.done;
}

static void body(const char *bytes, size_t n) {
    static const char *const refused[] = {"functions", NULL};
    api_error error = {0};
    cJSON *json;
    if (!body_parse(bytes, n, &json, &error)) {
        if (error.status != 400 || !error.code || json) abort();
        return;
    }
    fields f;
    uint64_t seed;
    text_buffer ignored = {0};
    fields_begin(&f, json, "", &error);
    fields_string(&f, "model", NULL);
    fields_number(&f, "temperature", 0, 2, 1);
    fields_integer(&f, "n", 1, 16, 1);
    fields_bool(&f, "stream", false);
    fields_array(&f, "messages");
    fields_object(&f, "logit_bias");
    fields_seed(&f, "seed", &seed);
    fields_refuse(&f, refused);
    fields_end(&f, false, &ignored);
    if (ignored.n && strpbrk(ignored.data, "\r\n")) abort();
    text_free(&ignored);
    cJSON_Delete(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    const char *bytes = (const char *)data + 1;
    size_t n = size - 1;
    if (data[0] % 3 == 0) {
        head(bytes, n);
    } else if (data[0] % 3 == 1) {
        char *whole = malloc(n), *pieces = malloc(n);
        size_t a, b;
        if (whole && pieces) {
            bool one = chunks(bytes, n, n, whole, &a), other = chunks(bytes, n, 1 + data[0] / 3 % 7, pieces, &b);
            if (one != other || (one && (a != b || memcmp(whole, pieces, a) != 0))) abort();
        }
        free(whole);
        free(pieces);
    } else {
        char *text = malloc(n + 1); /* as the network layer hands it over: with a NUL behind it */
        if (!text) return 0;
        memcpy(text, bytes, n);
        text[n] = '\0';
        body(text, n);
        free(text);
    }
    return 0;
}
