/* Pictures and sounds of a prompt, called images here: which of its tokens stand for which rows, and the rows, which
 * are made when they are needed. */
#ifndef KAKEYA_SESSION_PROMPT_IMAGES_H
#define KAKEYA_SESSION_PROMPT_IMAGES_H

#include "decode/decode_timeline.h"
#include "session/engine.h"

typedef struct prompt_image {
    timeline_image place;
    image pixels;  /* as the model reads them */
    bool is_sound; /* and then has no pixels, but */
    sound_samples samples;
    bool borrowed;            /* pixels, or samples, are the caller's */
    float *rows;              /* [place.n][hidden], MEM_WORKSPACE; NULL: not begun yet */
    backend_reading *reading; /* of rows in the making; of a sound */
    backend_hearing *hearing;
    bool whole; /* in one go: there is no memory for what it holds between two steps */
} prompt_image;

/* What a step has for making rows. */
typedef struct image_time {
    double seconds; /* that are left; 0: none are made in it */
    double spent;
    size_t rows; /* made with that */
    bool apart;  /* rows come into a later forward than that of the step that has made them */
} image_time;

typedef struct prompt_images {
    const backend_ops *ops;
    prompt_image *image;  /* [n] ascending */
    backend_given *given; /* [n] those of a chunk */
    size_t n;
} prompt_images;

/* Fits the pictures into their budgets and finds their places: runs of the model's image token in tokens[0..n), in this
 * order; so of sounds, with their own token. KAKEYA_INVALID_ARGUMENT where their numbers or lengths disagree;
 * KAKEYA_UNSUPPORTED where the model, or the backend, reads no such thing. borrow: sounds, and pictures that have been
 * fitted already, stay until *out is freed, and are not copied. *out is freed by prompt_images_free, also on failure.
 */
kakeya_status prompt_images_create(const kakeya_engine *engine, const int32_t *tokens, size_t n,
                                   const kakeya_media *media, size_t n_media, bool borrow, prompt_images *out,
                                   kakeya_error *error);
/* Those of a timeline, whose rows must be kept (image_rows_bytes): KAKEYA_UNSUPPORTED where they are not. */
kakeya_status prompt_images_of_timeline(const kakeya_engine *engine, mem_account *account, const decode_timeline *t,
                                        prompt_images *out, kakeya_error *error);
void prompt_images_free(prompt_images *images); /* a zeroed one too */

/* For kakeya_vision's ON: refused where the model, or the backend, reads no pictures. */
kakeya_status prompt_images_load(const kakeya_engine *engine, kakeya_error *error);

/* Where a chunk that begins at `from`, which is inside of no picture, and would end at `end` ends, so that it cuts
 * none: before `end`, or behind it where it begins with a picture that is longer. */
size_t prompt_images_end(const prompt_images *images, size_t from, size_t end);

/* The rows of all pictures in [from, end), as a segment of these tokens wants them. time: NULL is as much as it takes;
 * else, where that is not enough, *ready is false, and another step is to ask. Needs the turn. */
kakeya_status prompt_images_give(prompt_images *images, kakeya_engine *engine, mem_account *account, size_t from,
                                 size_t end, image_time *time, bool *ready, const backend_given **given, int *n_given,
                                 kakeya_error *error);

/* Gives up rows in the making, and the memory that they take: they are made in one go then. Whether there were any. */
bool prompt_images_give_up(prompt_images *images);

/* How many of `common` tokens that two prompts begin with have the same pictures, none of them cut. */
size_t prompt_images_common(const prompt_images *images, const decode_timeline *t, size_t common);

#endif
