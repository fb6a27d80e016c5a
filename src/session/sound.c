#include "session/sound.h"

#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "kakeya.h"
#include "media/sound_decode.h"

/* The sound takes the samples, also on failure. */
static kakeya_status finish(kakeya_sound *made, kakeya_sound **out, kakeya_error *error) {
    kakeya_status status = sound_digest(&made->samples, made->digest, error);
    if (status == KAKEYA_OK)
        *out = made;
    else
        kakeya_sound_close(made);
    return status;
}

kakeya_status kakeya_sound_open(const char *name, const void *data, size_t bytes, kakeya_sound **out,
                                kakeya_error *error) {
    *out = NULL;
    kakeya_sound *made = calloc(1, sizeof *made);
    if (!made) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", name);
    kakeya_status status = sound_decode(name, data, bytes, SOUND_MAX_SECONDS, &made->info, &made->samples, error);
    if (status == KAKEYA_OK) return finish(made, out, error);
    free(made);
    return status;
}

void kakeya_sound_close(kakeya_sound *s) {
    if (!s) return;
    sound_free(&s->samples);
    free(s);
}

void kakeya_sound_facts_sized(const kakeya_sound *s, kakeya_sound_facts *out) {
    kakeya_sound_facts facts = {.format = sound_format_name(s->info.format),
                                .rate = s->info.rate,
                                .channels = s->info.channels,
                                .samples = s->samples.n};
    image_digest_text(s->digest, facts.digest);
    sized_write(out, &facts, sizeof facts);
}

static bool find_format(const char *name, sound_format *out) {
    for (int i = 0; name && i < SOUND_FORMATS; i++) {
        *out = (sound_format)i;
        if (strcmp(sound_format_name(*out), name) == 0) return true;
    }
    return false;
}

kakeya_status kakeya_sound_of_samples(const kakeya_sound_facts *facts, const float *samples, size_t n,
                                      kakeya_sound **out, kakeya_error *error) {
    *out = NULL;
    sound_format format;
    if (!find_format(facts->format, &format) || n < 1 || n > (size_t)SOUND_MAX_SECONDS * SOUND_RATE)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "a sound of %zu samples", n);
    for (size_t i = 0; i < n; i++)
        if (!(samples[i] >= -1 && samples[i] <= 1))
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "a sound with a sample that is not in [-1, 1]");
    kakeya_sound *made = calloc(1, sizeof *made);
    float *copy = made ? malloc(n * sizeof *copy) : NULL;
    if (!copy) {
        free(made);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "a sound of %zu samples: out of memory", n);
    }
    memcpy(copy, samples, n * sizeof *copy);
    *made = (kakeya_sound){.info = {format, facts->rate, facts->channels}, .samples = {copy, n}};
    return finish(made, out, error);
}
