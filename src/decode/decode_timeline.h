/* Tokens and their K/V memory: what a session keeps between answers. Arrays grow with the text. */
#ifndef KAKEYA_DECODE_DECODE_TIMELINE_H
#define KAKEYA_DECODE_DECODE_TIMELINE_H

#include "backend/backend.h"
#include "media/digest.h"

/* What a committed position was computed as. The numbers are those of saved sessions. */
typedef enum timeline_row {
    ROW_PROMPT = SEGMENT_PROMPT,
    ROW_DECODE = SEGMENT_DECODE,
    ROW_BEHIND_ANSWER, /* the newest token of an answer, as the first row of the prompt that came behind it */
} timeline_row;

/* A picture's rows among the tokens. */
typedef struct timeline_image {
    size_t begin, n;
    unsigned char digest[IMAGE_DIGEST_BYTES];
} timeline_image;

/* The cache's length is n, and then `logits` predict the next token, or n - 1. */
typedef struct decode_timeline {
    const backend_ops *ops;
    backend_model *model;
    backend_cache *cache;
    mem_account *account;
    int32_t *tokens;         /* [allocated] */
    unsigned char *row_kind; /* [allocated], of committed positions */
    size_t n, allocated;
    size_t capacity; /* tokens of the context */
    int vocab;
    float *logits; /* [vocab]; NULL while there are none */
    bool has_logits;
    timeline_image *images; /* [n_images] of the first n tokens, ascending; malloc'ed */
    size_t n_images;
} decode_timeline;

/* Room for n tokens, n <= capacity. KAKEYA_OUT_OF_MEMORY leaves the timeline as it was. */
kakeya_status decode_timeline_reserve(decode_timeline *t, size_t n, kakeya_error *error);
/* Room for a row of logits. */
kakeya_status decode_timeline_keep_logits(decode_timeline *t, kakeya_error *error);
/* The row is used up, or no longer true: its memory is given back. */
void decode_timeline_drop_logits(decode_timeline *t);
/* One more picture, behind all others. */
kakeya_status decode_timeline_add_image(decode_timeline *t, const timeline_image *added, kakeya_error *error);
/* Forgets pictures of which a token is not among the first n. */
void decode_timeline_cut_images(decode_timeline *t, size_t n);
/* Where the picture begins that holds tokens on both sides of `at`; `at` where there is none. */
size_t decode_timeline_outside_images(const decode_timeline *t, size_t at);
/* Gives back the arrays; the cache is the caller's. */
void decode_timeline_free(decode_timeline *t);

#endif
