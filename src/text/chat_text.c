#include "text/chat_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/nul.h"

/* ------------------------------------------------------------------------------------------- the writer */

void chat_fail(chat_writer *w, kakeya_status status, const char *format, ...) {
    if (w->status) return;
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    w->status = error_set(w->error, status, "%s", message);
}

void chat_fail_at(chat_writer *w, kakeya_status status, size_t index, const char *member, const char *format, ...) {
    char place[64], reason[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    if (w->status) return;
    w->place_bytes = (size_t)snprintf(place, sizeof place, "messages[%zu]%.32s", index, member);
    w->status = error_set(w->error, status, "%s%s", place, reason);
}

static bool put_bytes(chat_writer *w, const char *text, size_t bytes) {
    if (w->status) return false;
    if (w->out.bytes + bytes + 1 > w->text_capacity) {
        size_t larger = 2 * (w->out.bytes + bytes + 1);
        char *moved = realloc(w->out.text, larger);
        if (!moved) {
            chat_fail(w, KAKEYA_OUT_OF_MEMORY, "out of memory while rendering %zu bytes of chat", w->out.bytes);
            return false;
        }
        w->out.text = moved;
        w->text_capacity = larger;
    }
    if (bytes) w->out.bytes += nul_read(w->out.text + w->out.bytes, text, bytes);
    w->out.text[w->out.bytes] = 0;
    return true;
}

static void put_segment(chat_writer *w, const char *text, size_t bytes, bool control) {
    size_t offset = w->out.bytes;
    if (!put_bytes(w, text, bytes)) return;
    bytes = w->out.bytes - offset;
    chat_segment *last = w->out.n_segments ? &w->out.segments[w->out.n_segments - 1] : NULL;
    if (last && !control && !last->control && !last->ids && bytes) {
        last->bytes += bytes;
        return;
    }
    if (w->out.n_segments == w->segment_capacity) {
        size_t larger = w->segment_capacity ? 2 * w->segment_capacity : 32;
        chat_segment *moved = realloc(w->out.segments, larger * sizeof *moved);
        if (!moved) {
            chat_fail(w, KAKEYA_OUT_OF_MEMORY, "out of memory while rendering %zu bytes of chat", w->out.bytes);
            return;
        }
        w->out.segments = moved;
        w->segment_capacity = larger;
    }
    w->out.segments[w->out.n_segments++] =
        (chat_segment){.offset = offset, .bytes = bytes, .control = control, .times = 1};
}

kakeya_status chat_writer_end(chat_writer *w, chat_text *out) {
    if (w->status)
        chat_text_free(&w->out);
    else
        *out = w->out;
    return w->status;
}

void chat_put_control(chat_writer *w, const char *token) { put_segment(w, token, strlen(token), true); }

void chat_put_repeated(chat_writer *w, const char *token, size_t times) {
    chat_put_control(w, token);
    if (!w->status) w->out.segments[w->out.n_segments - 1].times = times;
}

void chat_put(chat_writer *w, const char *text, size_t bytes) {
    if (bytes) put_segment(w, text, bytes, false);
}

void chat_puts(chat_writer *w, const char *text) { chat_put(w, text, strlen(text)); }

void chat_put_ids(chat_writer *w, const int32_t *ids, size_t n) {
    if (n == 0) return;
    put_segment(w, "", 0, false);
    if (w->status) return;
    chat_segment *segment = &w->out.segments[w->out.n_segments - 1];
    segment->ids = ids;
    segment->n_ids = n;
}

void chat_text_free(chat_text *text) {
    free(text->text);
    free(text->segments);
    *text = (chat_text){0};
}

/* ------------------------------------------------------------------------------------------- ids */

typedef struct id_list {
    int32_t *ids;
    size_t n, capacity;
} id_list;

static kakeya_status append_ids(id_list *list, const int32_t *ids, size_t n, kakeya_error *error) {
    if (list->n + n > list->capacity) {
        size_t larger = 2 * (list->n + n);
        int32_t *moved = realloc(list->ids, larger * sizeof *moved);
        if (!moved) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory after %zu tokens of chat", list->n);
        list->ids = moved;
        list->capacity = larger;
    }
    memcpy(list->ids + list->n, ids, n * sizeof *ids);
    list->n += n;
    return KAKEYA_OK;
}

static kakeya_status append_segment(id_list *list, const tokenizer *t, const char *text, const chat_segment *segment,
                                    size_t most, kakeya_error *error) {
    int32_t *ids;
    size_t n;
    if (segment->ids) return append_ids(list, segment->ids, segment->n_ids, error);
    /* One more than are wanted is found out by the list. */
    const size_t left = most > list->n ? most - list->n : 0;
    const tokenizer_encode_options options = {.parse_special = segment->control, .most = most ? left + 1 : 0};
    kakeya_status status = tokenizer_encode(t, text + segment->offset, segment->bytes, options, &ids, &n, error);
    if (status == KAKEYA_CONTEXT_FULL) list->n += n;
    if (status) return error_prefix(error, status, "chat text from byte %zu", segment->offset);
    if (segment->control && (n != 1 || !tokenizer_is_special(t, ids[0]))) {
        status = error_set(error, KAKEYA_UNSUPPORTED,
                           "the vocabulary has no special token %.*s, which the chat format needs", (int)segment->bytes,
                           text + segment->offset);
    }
    for (size_t i = 0; i < segment->times && status == KAKEYA_OK && n; i++) status = append_ids(list, ids, n, error);
    free(ids);
    return status;
}

kakeya_status chat_tokenize(const tokenizer *t, const chat_text *text, size_t most, int32_t **ids, size_t *n_ids,
                            size_t *n_stable, kakeya_error *error) {
    *ids = NULL;
    *n_ids = 0;
    if (n_stable) *n_stable = 0;
    id_list list = {0};
    for (size_t i = 0; i < text->n_segments; i++) {
        kakeya_status status = append_segment(&list, t, text->text, &text->segments[i], most, error);
        if (status == KAKEYA_OK && most && list.n > most)
            status = error_set(error, KAKEYA_CONTEXT_FULL, "the chat has more than %zu tokens", most);
        if (status) {
            if (status == KAKEYA_CONTEXT_FULL) *n_ids = list.n;
            free(list.ids);
            return status;
        }
        if (n_stable && i + 1 == text->stable_segments) *n_stable = list.n;
    }
    *ids = list.ids;
    *n_ids = list.n;
    return KAKEYA_OK;
}
