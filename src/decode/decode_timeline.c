#include "decode/decode_timeline.h"

#include <stdlib.h>
#include <string.h>

kakeya_status decode_timeline_reserve(decode_timeline *t, size_t n, kakeya_error *error) {
    enum { LEAST = 256 };
    if (n <= t->allocated) return KAKEYA_OK;
    size_t room = t->allocated ? t->allocated : LEAST;
    while (room < n) room *= 2;
    if (room > t->capacity) room = t->capacity > n ? t->capacity : n;
    int32_t *tokens = mem_alloc(t->account, MEM_WORKSPACE, room * sizeof *tokens);
    unsigned char *row_kind = mem_alloc(t->account, MEM_WORKSPACE, room);
    if (!tokens || !row_kind) {
        mem_free(tokens);
        mem_free(row_kind);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%zu token ids: out of memory", room);
    }
    if (t->allocated) {
        memcpy(tokens, t->tokens, t->allocated * sizeof *tokens);
        memcpy(row_kind, t->row_kind, t->allocated);
    }
    mem_free(t->tokens);
    mem_free(t->row_kind);
    t->tokens = tokens;
    t->row_kind = row_kind;
    t->allocated = room;
    return KAKEYA_OK;
}

kakeya_status decode_timeline_keep_logits(decode_timeline *t, kakeya_error *error) {
    if (!t->logits) t->logits = mem_alloc(t->account, MEM_WORKSPACE, (size_t)t->vocab * sizeof *t->logits);
    if (t->logits) return KAKEYA_OK;
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "a row of %d logits: out of memory", t->vocab);
}

void decode_timeline_drop_logits(decode_timeline *t) {
    mem_free(t->logits);
    t->logits = NULL;
    t->has_logits = false;
}

kakeya_status decode_timeline_add_image(decode_timeline *t, const timeline_image *added, kakeya_error *error) {
    timeline_image *images = realloc(t->images, (t->n_images + 1) * sizeof *images);
    if (!images) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%zu images: out of memory", t->n_images + 1);
    t->images = images;
    t->images[t->n_images++] = *added;
    return KAKEYA_OK;
}

void decode_timeline_cut_images(decode_timeline *t, size_t n) {
    while (t->n_images && t->images[t->n_images - 1].begin + t->images[t->n_images - 1].n > n) t->n_images--;
}

size_t decode_timeline_outside_images(const decode_timeline *t, size_t at) {
    for (size_t i = 0; i < t->n_images; i++)
        if (t->images[i].begin < at && at < t->images[i].begin + t->images[i].n) return t->images[i].begin;
    return at;
}

void decode_timeline_free(decode_timeline *t) {
    free(t->images);
    t->images = NULL;
    t->n_images = 0;
    decode_timeline_drop_logits(t);
    mem_free(t->tokens);
    mem_free(t->row_kind);
    t->tokens = NULL;
    t->row_kind = NULL;
    t->n = t->allocated = 0;
}
