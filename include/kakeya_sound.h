/* Sound, decoded to what models read. A part of kakeya.h, which programs include. */
#ifndef KAKEYA_SOUND_H
#define KAKEYA_SOUND_H

#ifndef KAKEYA_H
#error "include kakeya.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kakeya_engine kakeya_engine;

/* A decoded sound: WAV, FLAC or MP3, told apart by the first bytes; its channels averaged, and resampled to 16 kHz.
 * Immutable; may be used by several threads. */
typedef struct kakeya_sound kakeya_sound;

/* Error messages begin with `name`. Sounds of more than 30 seconds are refused (KAKEYA_INVALID_ARGUMENT), other formats
 * with KAKEYA_UNSUPPORTED, damaged or truncated files with KAKEYA_FORMAT. The caller owns *out. */
KAKEYA_API kakeya_status kakeya_sound_open(const char *name, const void *data, size_t bytes, kakeya_sound **out,
                                           kakeya_error *error);
KAKEYA_API void kakeya_sound_close(kakeya_sound *sound);

typedef struct kakeya_sound_facts {
    size_t size;
    const char *format; /* "WAV", "FLAC", "MP3" */
    int rate, channels; /* of the file */
    size_t samples;     /* of 16 kHz */
    char digest[65];    /* SHA-256 of these, hexadecimal: identifies the sound */
} kakeya_sound_facts;

KAKEYA_API void kakeya_sound_facts_sized(const kakeya_sound *sound, kakeya_sound_facts *out);
static inline kakeya_sound_facts kakeya_sound_describe(const kakeya_sound *sound) {
    kakeya_sound_facts facts;
    facts.size = sizeof facts;
    kakeya_sound_facts_sized(sound, &facts);
    return facts;
}

/* Makes a sound from samples [n] of 16 kHz that were decoded elsewhere, for instance in a separate process; they are
 * copied. facts: of the file; its samples and its digest are not read. Returns KAKEYA_INVALID_ARGUMENT if there are no
 * samples or more than 30 seconds of them, or if one is outside [-1, 1]. */
KAKEYA_API kakeya_status kakeya_sound_of_samples(const kakeya_sound_facts *facts, const float *samples, size_t n,
                                                 kakeya_sound **out, kakeya_error *error);

/* The token whose runs stand for sounds in a prompt, one run for each; -1 if the model or its backend reads none. */
KAKEYA_API int32_t kakeya_engine_sound_token(const kakeya_engine *engine);
/* The length of a sound's run: 25 tokens a second in published models. Returns KAKEYA_INVALID_ARGUMENT if it is too
 * short for one. */
KAKEYA_API kakeya_status kakeya_engine_sound_tokens(const kakeya_engine *engine, const kakeya_sound *sound, int *tokens,
                                                    kakeya_error *error);

/* Counts of sounds in prompts since the engine was opened. */
typedef struct kakeya_sound_counts {
    size_t size;
    uint64_t computed, computed_rows; /* by the audio encoder */
} kakeya_sound_counts;
KAKEYA_API void kakeya_engine_sound_counts_sized(const kakeya_engine *engine, kakeya_sound_counts *out);
static inline kakeya_sound_counts kakeya_engine_sound_counts(const kakeya_engine *engine) {
    kakeya_sound_counts counts;
    counts.size = sizeof counts;
    kakeya_engine_sound_counts_sized(engine, &counts);
    return counts;
}

#ifdef __cplusplus
}
#endif

#endif
