#include "decode/stop_text.h"

#include <string.h>

#include "base/nul.h"
#include "text/utf8.h"

/* Longer pieces than any vocabulary's usual ones make the buffer grow once. */
static const size_t usual_piece_bytes = 1024;

static kakeya_status reserve(stop_text *s, size_t bytes, kakeya_error *error) {
    if (bytes <= s->capacity) return KAKEYA_OK;
    char *grown = mem_alloc(s->account, MEM_WORKSPACE, 2 * bytes);
    if (!grown) return error_set(error, KAKEYA_OUT_OF_MEMORY, "text buffer of %zu bytes: out of memory", 2 * bytes);
    if (s->text) memcpy(grown, s->text, s->released + s->held);
    mem_free(s->text);
    s->text = grown;
    s->capacity = 2 * bytes;
    return KAKEYA_OK;
}

kakeya_status stop_text_create(stop_text *s, const char *const *strings, size_t n, mem_account *account,
                               kakeya_error *error) {
    *s = (stop_text){.n = n, .account = account};
    size_t longest = 0, bytes = 0;
    for (size_t i = 0; i < n; i++) bytes += strings[i] ? strlen(strings[i]) : 0;
    if (n) {
        s->lengths = mem_alloc(account, MEM_WORKSPACE, n * sizeof *s->lengths);
        s->strings = mem_alloc(account, MEM_WORKSPACE, n * sizeof *s->strings + bytes);
        if (!s->lengths || !s->strings) {
            stop_text_free(s);
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "%zu stop strings: out of memory", n);
        }
    }
    char *to = n ? (char *)(s->strings + n) : NULL;
    for (size_t i = 0; i < n; i++) {
        if (!strings[i] || !strings[i][0]) {
            stop_text_free(s);
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "stop string %zu is empty", i);
        }
        s->strings[i] = to;
        s->lengths[i] = nul_read(to, strings[i], strlen(strings[i]));
        size_t valid = utf8_valid_bytes(to, s->lengths[i]);
        to += s->lengths[i];
        if (valid != s->lengths[i]) {
            stop_text_free(s);
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "stop string %zu is not valid UTF-8 at byte %zu", i,
                             valid);
        }
        if (s->lengths[i] > longest) longest = s->lengths[i];
    }
    kakeya_status status = reserve(s, longest + usual_piece_bytes, error);
    if (status != KAKEYA_OK) stop_text_free(s);
    return status;
}

void stop_text_free(stop_text *s) {
    mem_free(s->lengths);
    mem_free(s->strings);
    mem_free(s->text);
    *s = (stop_text){0};
}

/* Offset of the longest end of the text that begins a stop string; `total` if none does. */
static size_t possible_beginning(const stop_text *s, size_t total) {
    for (size_t at = 0; at < total; at++) {
        for (size_t i = 0; i < s->n; i++) {
            size_t rest = total - at;
            if (rest < s->lengths[i] && memcmp(s->text + at, s->strings[i], rest) == 0) return at;
        }
    }
    return total;
}

/* Adds text behind what is released and held, and looks for stop strings that it completes: *start is where the one
 * that is completed first begins, the end of the text where there is none. */
static kakeya_status add(stop_text *s, const char *text, size_t bytes, size_t *start, bool *stopped,
                         kakeya_error *error) {
    const size_t known = s->released + s->held, total = known + bytes;
    *stopped = false;
    kakeya_status status = reserve(s, total, error);
    if (status != KAKEYA_OK) return status;
    if (bytes) memcpy(s->text + known, text, bytes);
    *start = total;
    for (size_t end = known + 1; end <= total && !*stopped; end++) {
        for (size_t i = 0; i < s->n; i++) {
            size_t length = s->lengths[i];
            if (length > end - s->released || memcmp(s->text + end - length, s->strings[i], length) != 0) continue;
            *stopped = true;
            if (end - length >= *start) continue;
            *start = end - length;
            s->completed = i;
        }
    }
    return KAKEYA_OK;
}

kakeya_status stop_text_push(stop_text *s, const char *text, size_t bytes, bool *stopped, kakeya_error *error) {
    size_t start;
    memmove(s->text, s->text + s->released, s->held);
    s->released = 0;
    kakeya_status status = add(s, text, bytes, &start, stopped, error);
    if (status != KAKEYA_OK) return status;
    if (!*stopped) start = possible_beginning(s, s->held + bytes);
    s->held = *stopped ? 0 : s->held + bytes - start;
    s->released = start;
    return KAKEYA_OK;
}

kakeya_status stop_text_flush(stop_text *s, const char *text, size_t bytes, bool *stopped, kakeya_error *error) {
    size_t end;
    kakeya_status status = add(s, text, bytes, &end, stopped, error);
    if (status != KAKEYA_OK) return status;
    s->released = end;
    s->held = 0;
    return KAKEYA_OK;
}
