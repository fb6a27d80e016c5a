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

/* `name` begins messages. Sides above 32,768 pixels and pictures above 64 million are refused by their header
 * (KAKEYA_INVALID_ARGUMENT), other formats with KAKEYA_UNSUPPORTED, files that are damaged or cut off with
 * KAKEYA_FORMAT. *out is owned by the caller. */
KAKEYA_API kakeya_status kakeya_image_open(const char *name, const void *data, size_t bytes, kakeya_image **out,
                                           kakeya_error *error);
KAKEYA_API void kakeya_image_close(kakeya_image *image);

typedef struct kakeya_image_facts {
    size_t size;
    const char *format; /* "PNG", "JPEG", "WebP", "GIF" */
    int width, height;  /* pixels, upright: as EXIF's orientation says */
    int orientation;    /* of EXIF, 1 to 8; 1: the file stores it upright */
} kakeya_image_facts;

KAKEYA_API void kakeya_image_facts_sized(const kakeya_image *image, kakeya_image_facts *out);
static inline kakeya_image_facts kakeya_image_describe(const kakeya_image *image) {
    kakeya_image_facts facts;
    facts.size = sizeof facts;
    kakeya_image_facts_sized(image, &facts);
    return facts;
}

/* Budgets: the most tokens that a picture may take. The i-th one that models know, in ascending order; 0 after the
 * last. */
KAKEYA_API int kakeya_image_budget(size_t i);

enum { KAKEYA_DEFAULT_IMAGE_BUDGET = 280 };

/* A picture as a Gemma 4 of a published size reads it: resized so that it fills the budget, one token for 48 x 48
 * pixels. */
typedef struct kakeya_image_fit {
    size_t size;
    int width, height; /* pixels */
    int patches;       /* of 16 x 16 pixels */
    int tokens;
    char digest[65]; /* SHA-256 of size and pixels, hexadecimal: what the picture is known by */
} kakeya_image_fit;

static inline void kakeya_image_fit_init(kakeya_image_fit *fit) { fit->size = sizeof *fit; }

/* budget: one of kakeya_image_budget's. */
KAKEYA_API kakeya_status kakeya_image_fit_budget(const kakeya_image *image, int budget, kakeya_image_fit *out,
                                                 kakeya_error *error);

typedef struct kakeya_engine kakeya_engine;

/* A picture in a prompt. */
typedef struct kakeya_media {
    const kakeya_image *image;
    int budget; /* tokens at most, one of kakeya_image_budget's; 0: what the model's configuration says */
} kakeya_media;

/* The token whose runs stand for pictures in a prompt, one run for each; -1: the model, or its backend, reads none. */
KAKEYA_API int32_t kakeya_engine_image_token(const kakeya_engine *engine);
/* The length of a picture's run. */
KAKEYA_API kakeya_status kakeya_engine_image_tokens(const kakeya_engine *engine, const kakeya_media *media, int *tokens,
                                                    kakeya_error *error);

/* The pixels of a patch's side, and the patches of a token's side. False: the model, or its backend, reads no pictures.
 */
KAKEYA_API bool kakeya_engine_image_grid(const kakeya_engine *engine, int *patch, int *pooling);

/* A picture that was fitted elsewhere, such as in a process of its own, for this engine or one of the same grid: facts
 * of the file, the budget, and width x height pixels, [height][width][3] in RGB, which are copied. In a prompt it has
 * this budget alone. KAKEYA_INVALID_ARGUMENT where a picture of these facts is fitted to another size. */
KAKEYA_API kakeya_status kakeya_image_of_fit(const kakeya_engine *engine, const kakeya_image_facts *facts, int budget,
                                             int width, int height, const unsigned char *rgb, kakeya_image **out,
                                             kakeya_error *error);
/* What it was fitted to. False, and all zeros: it was not. */
KAKEYA_API bool kakeya_image_fitted(const kakeya_image *image, kakeya_image_fit *out);

/* What became of the pictures of prompts, since the engine was opened. */
typedef struct kakeya_image_counts {
    size_t size;
    uint64_t computed, computed_rows; /* by the tower */
    uint64_t found;                   /* whose rows were kept (image_rows_bytes) */
    size_t kept, kept_bytes;          /* now */
} kakeya_image_counts;
KAKEYA_API void kakeya_engine_image_counts_sized(const kakeya_engine *engine, kakeya_image_counts *out);
static inline kakeya_image_counts kakeya_engine_image_counts(const kakeya_engine *engine) {
    kakeya_image_counts counts;
    counts.size = sizeof counts;
    kakeya_engine_image_counts_sized(engine, &counts);
    return counts;
}

/* Keys of a prompt's tokens: the tokens themselves, but in a picture's run numbers below 0 that hold its digest.
 * Prompts that begin with the same keys have the same rows there, which tokens alone do not say. media: as in
 * kakeya_session_sync_media. keys: [n], of the caller. */
KAKEYA_API kakeya_status kakeya_prompt_keys(const kakeya_engine *engine, const int32_t *tokens, size_t n,
                                            const kakeya_media *media, size_t n_media, int32_t *keys,
                                            kakeya_error *error);

#ifdef __cplusplus
}
#endif

#endif
