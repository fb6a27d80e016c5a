#include "base/json_text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/nul.h"

enum { ESCAPE_BYTES = 6 }; /* \u0000 */

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

static int hex4(const char *text, size_t bytes) {
    int value = 0;
    if (bytes < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

typedef enum escape { ESCAPE_OTHER, ESCAPE_PAIR, ESCAPE_NUL, ESCAPE_HALF } escape;

/* What the escape at `text` is; malformed ones are the parser's. */
static escape kind_of(const char *text, size_t bytes) {
    int code = bytes >= ESCAPE_BYTES && text[1] == 'u' ? hex4(text + 2, bytes - 2) : -1;
    if (code == 0) return ESCAPE_NUL;
    if (code < 0xD800 || code >= 0xE000) return ESCAPE_OTHER;
    if (code >= 0xDC00) return ESCAPE_HALF;
    bool more = bytes >= 2 * ESCAPE_BYTES && text[ESCAPE_BYTES] == '\\' && text[ESCAPE_BYTES + 1] == 'u';
    int second = more ? hex4(text + ESCAPE_BYTES + 2, 4) : -1;
    return second >= 0xDC00 && second < 0xE000 ? ESCAPE_PAIR : ESCAPE_HALF;
}

static bool is_key(const char *text, size_t bytes, size_t behind) {
    while (behind < bytes && text[behind] && strchr(" \t\r\n", text[behind])) behind++;
    return behind < bytes && text[behind] == ':';
}

/* Copies when there is something to copy to: writer.to is NULL while the text is only looked at. */
typedef struct writer {
    char *to;
    size_t n;
} writer;

static void put(writer *w, const char *text, size_t bytes) {
    if (w->to) memcpy(w->to + w->n, text, bytes);
    w->n += bytes;
}

/* Walks the text; *odd: how many escapes are to be replaced. */
static kakeya_status walk(const char *name, const char *text, size_t bytes, bool spell_nul, writer *w, size_t *odd,
                          kakeya_error *error) {
    bool in_string = false;
    size_t at = SIZE_MAX; /* of the last odd escape in this string */
    *odd = 0;
    for (size_t i = 0; i < bytes;) {
        if (text[i] == '\0') return error_set(error, KAKEYA_FORMAT, "%s: byte %zu is NUL", name, i);
        if (text[i] == '"' && in_string && at != SIZE_MAX && is_key(text, bytes, i + 1))
            return error_set(error, KAKEYA_FORMAT, "%s: byte %zu: a key holds %.6s", name, at, text + at);
        if (text[i] == '"') {
            in_string = !in_string;
            at = SIZE_MAX;
        }
        if (!in_string || text[i] != '\\' || i + 1 == bytes) {
            put(w, text + i++, 1);
            continue;
        }
        escape kind = kind_of(text + i, bytes - i);
        size_t length = kind == ESCAPE_PAIR ? 2 * ESCAPE_BYTES : kind == ESCAPE_OTHER ? 2 : ESCAPE_BYTES;
        if (kind == ESCAPE_NUL || kind == ESCAPE_HALF) at = i;
        if (kind == ESCAPE_HALF) {
            put(w, replacement, sizeof replacement - 1);
            ++*odd;
        } else if (kind == ESCAPE_NUL && spell_nul) {
            put(w, NUL_SPELLING, sizeof NUL_SPELLING - 1);
            ++*odd;
        } else {
            put(w, text + i, length);
        }
        i += length;
    }
    return KAKEYA_OK;
}

kakeya_status json_text_mend(const char *name, const char *text, size_t bytes, bool spell_nul, char **mended,
                             size_t *mended_bytes, kakeya_error *error) {
    *mended = NULL;
    *mended_bytes = 0;
    writer w = {0};
    size_t odd = 0;
    kakeya_status status = walk(name, text, bytes, spell_nul, &w, &odd, error);
    if (status != KAKEYA_OK || odd == 0) return status;
    w = (writer){.to = malloc(w.n + 1)};
    if (!w.to) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", name);
    (void)walk(name, text, bytes, spell_nul, &w, &odd, error);
    w.to[w.n] = '\0';
    *mended = w.to;
    *mended_bytes = w.n;
    return KAKEYA_OK;
}

kakeya_status json_text_parse(const char *name, const char *text, size_t bytes, cJSON **out, kakeya_error *error) {
    char *mended;
    size_t mended_bytes;
    *out = NULL;
    kakeya_status status = json_text_mend(name, text, bytes, true, &mended, &mended_bytes, error);
    if (status != KAKEYA_OK) return status;
    status = json_parse(name, mended ? mended : text, mended ? mended_bytes : bytes, out, error);
    free(mended);
    return status;
}

cJSON *json_text_read(const char *text, size_t bytes) {
    cJSON *tree = NULL;
    return text && json_text_parse("text", text, bytes, &tree, NULL) == KAKEYA_OK ? tree : NULL;
}

char *json_text_print(const cJSON *item) {
    char *json = cJSON_PrintUnformatted(item);
    size_t bytes = json ? strlen(json) : 0, n = 0, spelled = 0;
    if (!json || !nul_is_spelled(json, bytes)) return json;
    for (size_t i = 0; i + 1 < bytes; i++) spelled += memcmp(json + i, NUL_SPELLING, sizeof NUL_SPELLING - 1) == 0;
    char *escaped = cJSON_malloc(bytes + spelled * (ESCAPE_BYTES - (sizeof NUL_SPELLING - 1)) + 1);
    for (size_t i = 0; escaped && i < bytes;) {
        if (memcmp(json + i, NUL_SPELLING, sizeof NUL_SPELLING - 1) == 0) {
            memcpy(escaped + n, "\\u0000", ESCAPE_BYTES);
            n += ESCAPE_BYTES;
            i += sizeof NUL_SPELLING - 1;
        } else {
            escaped[n++] = json[i++];
        }
    }
    if (escaped) escaped[n] = '\0';
    cJSON_free(json);
    return escaped;
}
