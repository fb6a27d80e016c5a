/* Pictures, decoded and fitted into a budget of tokens. A part of kakeya.h, which programs include. */
#ifndef KAKEYA_IMAGE_H
#define KAKEYA_IMAGE_H

#ifndef KAKEYA_H
#error "include kakeya.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A decoded picture: PNG, JPEG, WebP or GIF, told apart by the first bytes. Immutable; may be used by several threads.
 */
typedef struct kakeya_image kakeya_image;

/* Error messages begin with `name`. Pictures with a side above 32,768 pixels or more than 64 million pixels are refused
 * by their header (KAKEYA_INVALID_ARGUMENT), other formats with KAKEYA_UNSUPPORTED, damaged or truncated files with
 * KAKEYA_FORMAT. The caller owns *out. */
KAKEYA_API kakeya_status kakeya_image_open(const char *name, const void *data, size_t bytes, kakeya_image **out,
                                           kakeya_error *error);
KAKEYA_API void kakeya_image_close(kakeya_image *image);

typedef struct kakeya_image_facts {
    size_t size;
    const char *format; /* "PNG", "JPEG", "WebP", "GIF" */
    int width, height;  /* pixels, after EXIF's orientation is applied */
    int orientation;    /* of EXIF, 1 to 8; 1: stored upright */
} kakeya_image_facts;

KAKEYA_API void kakeya_image_facts_sized(const kakeya_image *image, kakeya_image_facts *out);
static inline kakeya_image_facts kakeya_image_describe(const kakeya_image *image) {
    kakeya_image_facts facts;
    facts.size = sizeof facts;
    kakeya_image_facts_sized(image, &facts);
    return facts;
}

/* The i-th budget that models support, in ascending order; 0 after the last. A budget is the maximum number of tokens
 * of a picture. */
KAKEYA_API int kakeya_image_budget(size_t i);

enum { KAKEYA_DEFAULT_IMAGE_BUDGET = 280 };

/* A picture as Gemma 4 models of the published sizes read it: resized to fill the budget, with one token for 48 x 48
 * pixels. */
typedef struct kakeya_image_fit {
    size_t size;
    int width, height; /* pixels */
    int patches;       /* of 16 x 16 pixels */
    int tokens;
    char digest[65]; /* SHA-256 of size and pixels, hexadecimal: identifies the picture */
} kakeya_image_fit;

/* budget: one of kakeya_image_budget's. */
KAKEYA_API kakeya_status kakeya_image_fit_budget(const kakeya_image *image, int budget, kakeya_image_fit *out,
                                                 kakeya_error *error);

typedef struct kakeya_engine kakeya_engine;
typedef struct kakeya_sound kakeya_sound;

/* A picture, or a sound, in a prompt. */
typedef struct kakeya_media {
    const kakeya_image *image; /* NULL: a sound */
    int budget; /* tokens at most, one of kakeya_image_budget's; 0: what the model's configuration says */
    const kakeya_sound *sound;
} kakeya_media;

/* The token whose runs stand for pictures in a prompt, one run for each; -1 if the model or its backend reads none. */
KAKEYA_API int32_t kakeya_engine_image_token(const kakeya_engine *engine);
/* The length of a picture's run. */
KAKEYA_API kakeya_status kakeya_engine_image_tokens(const kakeya_engine *engine, const kakeya_media *media, int *tokens,
                                                    kakeya_error *error);

/* The side of a patch in pixels, and the side of a token in patches. False if the model or its backend reads no
 * pictures. */
KAKEYA_API bool kakeya_engine_image_grid(const kakeya_engine *engine, int *patch, int *pooling);

/* Makes a picture from one that was fitted elsewhere, for instance in a separate process, for this engine or one with
 * the same grid: the file's facts, the budget, and width x height RGB pixels, [height][width][3], which are copied. In
 * a prompt it can have only this budget. Returns KAKEYA_INVALID_ARGUMENT if a picture with these facts is fitted to
 * another size. */
KAKEYA_API kakeya_status kakeya_image_of_fit(const kakeya_engine *engine, const kakeya_image_facts *facts, int budget,
                                             int width, int height, const unsigned char *rgb, kakeya_image **out,
                                             kakeya_error *error);
/* The size that it was fitted to. False, and all zeros, if it was not. */
KAKEYA_API bool kakeya_image_fitted(const kakeya_image *image, kakeya_image_fit *out);

/* Counts of pictures in prompts since the engine was opened. */
typedef struct kakeya_image_counts {
    size_t size;
    uint64_t computed, computed_rows; /* by the vision tower */
    uint64_t found;                   /* in the cache (image_rows_bytes) */
    size_t kept, kept_bytes;          /* now */
} kakeya_image_counts;
KAKEYA_API void kakeya_engine_image_counts_sized(const kakeya_engine *engine, kakeya_image_counts *out);
static inline kakeya_image_counts kakeya_engine_image_counts(const kakeya_engine *engine) {
    kakeya_image_counts counts;
    counts.size = sizeof counts;
    kakeya_engine_image_counts_sized(engine, &counts);
    return counts;
}

/* Keys of a prompt's tokens: the tokens themselves, except that a picture's or a sound's run becomes negative numbers
 * that hold its digest. Prompts that begin with the same keys have the same rows there, which equal tokens alone do not
 * guarantee. media: as in kakeya_session_sync_media. keys: [n], the caller's. */
KAKEYA_API kakeya_status kakeya_prompt_keys(const kakeya_engine *engine, const int32_t *tokens, size_t n,
                                            const kakeya_media *media, size_t n_media, int32_t *keys,
                                            kakeya_error *error);

#ifdef __cplusplus
}
#endif

#endif
