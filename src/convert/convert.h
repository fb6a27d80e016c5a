/* Weights in floating point to quantised files: GGUF, or a directory in MLX's affine form; any weights to a directory
 * in floating point; and quantised ones to a file of what the CPU backend otherwise arranges while a model is loaded.
 * Tensor by tensor: the memory that it takes does not grow with the model. The same bytes for any number of threads.
 * What is written appears under its name when it is complete, and never over anything that is there. */
#ifndef KAKEYA_CONVERT_CONVERT_H
#define KAKEYA_CONVERT_CONVERT_H

#include <stdbool.h>

#include "kakeya.h"

typedef enum convert_target {
    CONVERT_Q4_0 = 0,
    CONVERT_Q8_0,
    CONVERT_Q4_K,
    CONVERT_Q5_K,
    CONVERT_Q6_K,
    CONVERT_Q4_K_M, /* llama.cpp's recipe: attention's values and down projections of some layers in Q6_K */
    CONVERT_AFFINE4,
    CONVERT_AFFINE8,
    CONVERT_F32, /* a directory of the values, also of quantised models: exactly in F32, rounded in the others */
    CONVERT_F16,
    CONVERT_BF16,
    CONVERT_TILES, /* of a quantised model: FILE.gguf.tiles or DIRECTORY/model.tiles, which the CPU backend maps */
    CONVERT_TARGETS
} convert_target;

static inline bool convert_is_plain(convert_target to) { return to >= CONVERT_F32 && to <= CONVERT_BF16; }
static inline bool convert_is_directory(convert_target to) { return to >= CONVERT_AFFINE4 && to <= CONVERT_BF16; }

/* "q4_0", ...; NULL at the end. */
extern const char *const convert_target_names[CONVERT_TARGETS + 1];

typedef struct convert_options {
    convert_target to;
    bool grid;   /* with CONVERT_Q4_0: weights of quantisation-aware training are put on the grid that it saw */
    int threads; /* 0: one per core */

    /* Of GGUF files. */
    const char *const *importance; /* GGUF files of llama-imatrix: errors count by the inputs that a weight meets */
    size_t n_importance;
    const char *head;        /* the format of embedding and head ("q8_0"), NULL: the target's choice */
    const char *attention;   /* the same of attention's matrices */
    const char *const *keep; /* "REGEX=FORMAT" for tensors whose name in the file matches; the last one counts */
    size_t n_keep;

    kakeya_progress_fn progress;
    void *user; /* of progress */
} convert_options;

typedef struct convert_report {
    uint64_t bytes;      /* of tensors that were written */
    uint64_t parameters; /* in them */
    size_t tensors;
    size_t important;      /* matrices that had importances */
    uint64_t vision_bytes; /* of what reads pictures, where the model has it: in directories among the others, of GGUF
                              files in a file beside (vision_path). Not part of the numbers above */
    uint64_t audio_bytes;  /* of what reads sound, likewise */
    bool in_place;         /* of CONVERT_TILES: `out` is where they are looked for */
    uint64_t blocks, on_grid,
        on_plain_grid; /* of Q4_0, with `grid`; on_plain_grid: those that the plain rule finds too */
} convert_report;

/* `model`: a directory or a GGUF file, or a name in the local Hugging Face cache, with weights in F32, F16 or BF16; for
 * CONVERT_TILES a quantised model, for CONVERT_F32, F16 and BF16 any. `out` must not exist, nor, where the model reads
 * pictures or sound and a GGUF file is made, vision_path of it. KAKEYA_UNSUPPORTED for weights that are quantised
 * already, KAKEYA_CANCELLED where progress said so; nothing is left behind then. */
kakeya_status convert_model(const char *model, const char *out, const convert_options *options, convert_report *report,
                            kakeya_error *error);

#endif
