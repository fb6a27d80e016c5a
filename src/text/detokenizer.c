#include "text/detokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_tables.h"
#include "text/utf8.h"

enum { INITIAL_RUN_BYTES = 256 };

struct detokenizer {
    const tokenizer *t;
    bool keep_special;

    char *run; /* bytes of the current run that may still turn out valid */
    size_t run_bytes, run_capacity;
    bool run_invalid;        /* the current run's bytes are returned as U+FFFD at once */
    size_t missing;          /* bytes that the run's last character still lacks */
    unsigned char low, high; /* bounds of the next of them */

    char *text; /* holds a whole run, replaced or not, and the longest piece */
    size_t text_bytes;
};

static bool reserve_run(detokenizer *d, size_t capacity) {
    char *run = realloc(d->run, capacity);
    if (!run) return false;
    d->run = run;
    char *text = realloc(d->text, capacity * UTF8_REPLACEMENT_BYTES + tokenizer_longest_piece(d->t));
    if (!text) return false;
    d->text = text;
    d->run_capacity = capacity;
    return true;
}

kakeya_status detokenizer_create(const tokenizer *t, bool keep_special, detokenizer **out, kakeya_error *error) {
    *out = NULL;
    detokenizer *d = calloc(1, sizeof *d);
    if (d) {
        d->t = t;
        d->keep_special = keep_special;
    }
    if (!d || !reserve_run(d, INITIAL_RUN_BYTES)) {
        detokenizer_destroy(d);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a detokenizer");
    }
    *out = d;
    return KAKEYA_OK;
}

void detokenizer_destroy(detokenizer *d) {
    if (!d) return;
    free(d->run);
    free(d->text);
    free(d);
}

static void return_replacements(detokenizer *d, size_t n) {
    for (size_t i = 0; i < n; i++) {
        memcpy(d->text + d->text_bytes, UTF8_REPLACEMENT, UTF8_REPLACEMENT_BYTES);
        d->text_bytes += UTF8_REPLACEMENT_BYTES;
    }
}

static void end_run(detokenizer *d) {
    if (d->missing) {
        return_replacements(d, d->run_bytes);
    } else {
        memcpy(d->text + d->text_bytes, d->run, d->run_bytes);
        d->text_bytes += d->run_bytes;
    }
    d->run_bytes = 0;
    d->missing = 0;
    d->run_invalid = false;
}

/* Whether the run with this byte behind it may still be valid. */
static bool continues_run(detokenizer *d, unsigned char byte) {
    if (d->missing == 0) {
        size_t length = utf8_lead(byte, &d->low, &d->high);
        if (length == 0) return false;
        d->missing = length - 1;
        return true;
    }
    if (byte < d->low || byte > d->high) return false;
    d->low = 0x80;
    d->high = 0xBF;
    d->missing--;
    return true;
}

static bool push_byte(detokenizer *d, unsigned char byte) {
    if (d->run_invalid) {
        return_replacements(d, 1);
        return true;
    }
    if (d->run_bytes == d->run_capacity && !reserve_run(d, 2 * d->run_capacity)) return false;
    d->run[d->run_bytes++] = (char)byte;
    if (!continues_run(d, byte)) {
        return_replacements(d, d->run_bytes);
        d->run_bytes = 0;
        d->missing = 0;
        d->run_invalid = true;
    }
    return true;
}

static void push_piece(detokenizer *d, const char *spelled, size_t bytes) {
    end_run(d);
    for (size_t at = 0; at < bytes;) {
        if (bytes - at >= TOKENIZER_SPACE_BYTES && memcmp(spelled + at, TOKENIZER_SPACE, TOKENIZER_SPACE_BYTES) == 0) {
            d->text[d->text_bytes++] = ' ';
            at += TOKENIZER_SPACE_BYTES;
        } else {
            d->text[d->text_bytes++] = spelled[at++];
        }
    }
}

kakeya_status detokenizer_push(detokenizer *d, int32_t id, const char **text, size_t *text_bytes, kakeya_error *error) {
    d->text_bytes = 0;
    size_t bytes;
    const char *spelled = tokenizer_piece(d->t, id, &bytes);
    if (spelled && (d->keep_special || !tokenizer_is_special(d->t, id))) {
        int byte = tokenizer_byte(d->t, id);
        if (byte < 0) {
            push_piece(d, spelled, bytes);
        } else if (!push_byte(d, (unsigned char)byte)) {
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory after %zu byte tokens", d->run_bytes);
        }
    }
    *text = d->text;
    *text_bytes = d->text_bytes;
    return KAKEYA_OK;
}

void detokenizer_finish(detokenizer *d, const char **text, size_t *text_bytes) {
    d->text_bytes = 0;
    end_run(d);
    *text = d->text;
    *text_bytes = d->text_bytes;
}

static bool append(char **text, size_t *bytes, size_t *capacity, const char *more, size_t more_bytes) {
    if (*bytes + more_bytes + 1 > *capacity) {
        size_t larger = 2 * (*bytes + more_bytes + 1);
        char *moved = realloc(*text, larger);
        if (!moved) return false;
        *text = moved;
        *capacity = larger;
    }
    memcpy(*text + *bytes, more, more_bytes);
    *bytes += more_bytes;
    (*text)[*bytes] = 0;
    return true;
}

kakeya_status detokenize(const tokenizer *t, const int32_t *ids, size_t n_ids, bool keep_special, char **text,
                         size_t *text_bytes, kakeya_error *error) {
    *text = NULL;
    *text_bytes = 0;
    for (size_t i = 0; i < n_ids; i++) {
        if (!tokenizer_piece(t, ids[i], NULL)) {
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "token id %d at index %zu is outside the vocabulary of %d",
                             ids[i], i, tokenizer_vocab_size(t));
        }
    }
    detokenizer *d;
    kakeya_status status = detokenizer_create(t, keep_special, &d, error);
    if (status) return status;

    char *all = NULL;
    const char *more;
    size_t bytes = 0, capacity = 0, more_bytes;
    for (size_t i = 0; i <= n_ids && !status; i++) {
        if (i < n_ids) {
            status = detokenizer_push(d, ids[i], &more, &more_bytes, error);
        } else {
            detokenizer_finish(d, &more, &more_bytes);
        }
        if (!status && !append(&all, &bytes, &capacity, more, more_bytes)) {
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory while decoding %zu tokens", n_ids);
        }
    }
    detokenizer_destroy(d);
    if (status) {
        free(all);
        return status;
    }
    *text = all;
    *text_bytes = bytes;
    return KAKEYA_OK;
}
