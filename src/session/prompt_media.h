/* Pictures and sounds of a prompt: which of its tokens stand for which rows, and the rows, which are
 * made when they are needed. */
#ifndef KAKEYA_SESSION_PROMPT_MEDIA_H
#define KAKEYA_SESSION_PROMPT_MEDIA_H

#include "decode/decode_timeline.h"
#include "session/engine.h"

typedef struct prompt_medium {
    timeline_image place;
    image pixels;  /* as the model reads them */
    bool is_sound; /* and then has no pixels, but */
    sound_samples samples;
    bool borrowed;            /* pixels, or samples, are the caller's */
    float *rows;              /* [place.n][hidden], MEM_WORKSPACE; NULL: not begun yet */
    backend_reading *reading; /* of rows in the making; of a sound */
    backend_hearing *hearing;
    bool whole; /* in one go: there is no memory for what it holds between two steps */
} prompt_medium;

/* What a step has for making rows. */
typedef struct media_time {
    double seconds; /* that are left; 0: none are made in it */
    double spent;
    size_t rows; /* made with that */
    bool apart;  /* rows come into a later forward than that of the step that has made them */
} media_time;

typedef struct prompt_media {
    const backend_ops *ops;
    prompt_medium *medium; /* [n] ascending */
    backend_given *given;  /* [n] those of a chunk */
    size_t n;
} prompt_media;

/* Fits the pictures into their budgets and finds their places: runs of the model's image token in tokens[0..n), in this
 * order; so of sounds, with their own token. KAKEYA_INVALID_ARGUMENT where their numbers or lengths disagree;
 * KAKEYA_UNSUPPORTED where the model, or the backend, reads no such thing. borrow: sounds, and pictures that have been
 * fitted already, stay until *out is freed, and are not copied. *out is freed by prompt_media_free, also on failure.
 */
kakeya_status prompt_media_create(const kakeya_engine *engine, const int32_t *tokens, size_t n,
                                  const kakeya_media *media, size_t n_media, bool borrow, prompt_media *out,
                                  kakeya_error *error);
/* Those of a timeline, whose rows must be kept (image_rows_bytes): KAKEYA_UNSUPPORTED where they are not. */
kakeya_status prompt_media_of_timeline(const kakeya_engine *engine, mem_account *account, const decode_timeline *t,
                                       prompt_media *out, kakeya_error *error);
void prompt_media_free(prompt_media *media); /* a zeroed one too */

/* For kakeya_vision's ON: refused where the model, or the backend, reads no pictures. */
kakeya_status prompt_media_load(const kakeya_engine *engine, kakeya_error *error);

/* Where a chunk that begins at `from`, which is inside of none, and would end at `end` ends, so that it cuts
 * none: before `end`, or behind it where it begins with one that is longer. */
size_t prompt_media_end(const prompt_media *media, size_t from, size_t end);

/* The rows of all that lie in [from, end), as a segment of these tokens wants them. time: NULL is as much as it takes;
 * else, where that is not enough, *ready is false, and another step is to ask. Needs the turn. */
kakeya_status prompt_media_give(prompt_media *media, kakeya_engine *engine, mem_account *account, size_t from,
                                size_t end, media_time *time, bool *ready, const backend_given **given, int *n_given,
                                kakeya_error *error);

/* Gives up rows in the making, and the memory that they take: they are made in one go then. Whether there were any. */
bool prompt_media_give_up(prompt_media *media);

/* How many of `common` tokens that two prompts begin with have the same pictures and sounds, none of them cut. */
size_t prompt_media_common(const prompt_media *media, const decode_timeline *t, size_t common);

#endif
