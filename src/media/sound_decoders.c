#include "media/sound_decoders.h"

#include <math.h>
#include <stdlib.h>

kakeya_status sound_begin(const sound_source *source, int rate, int channels, sound_frames *out, kakeya_error *error) {
    if (rate < SOUND_MIN_RATE || rate > SOUND_MAX_RATE || channels < 1 || channels > SOUND_MAX_CHANNELS)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "%s: %d channels of %d Hz are not supported (at most %d channels of %d to %d Hz)",
                         source->name, channels, rate, SOUND_MAX_CHANNELS, SOUND_MIN_RATE, SOUND_MAX_RATE);
    out->rate = rate;
    out->channels = channels;
    return KAKEYA_OK;
}

kakeya_status sound_check_length(const sound_source *source, const sound_frames *frames, double n,
                                 kakeya_error *error) {
    if (n <= (double)source->seconds * frames->rate) return KAKEYA_OK;
    const bool trained = source->seconds == SOUND_MAX_SECONDS;
    return error_set(error, KAKEYA_INVALID_ARGUMENT,
                     "%s: the sound is longer than %d seconds, which is the most that %s: cut it into shorter ones",
                     source->name, source->seconds, trained ? "models read" : "is read here");
}

kakeya_status sound_add(const sound_source *source, sound_frames *out, const float *from, size_t n,
                        kakeya_error *error) {
    kakeya_status status = sound_check_length(source, out, (double)(out->n + n), error);
    if (status != KAKEYA_OK) return status;
    if (out->n + n > out->room) {
        const size_t room = 2 * out->room > out->n + n ? 2 * out->room : out->n + n;
        float *more = realloc(out->sample, room * sizeof *more);
        if (!more) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
        out->sample = more;
        out->room = room;
    }
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int c = 0; c < out->channels; c++) sum += *from++;
        const float mean = sum / (float)out->channels;
        if (!isfinite(mean)) return error_set(error, KAKEYA_FORMAT, "%s: a sample is not a number", source->name);
        out->sample[out->n++] = mean < -1 ? -1 : mean > 1 ? 1 : mean;
    }
    return KAKEYA_OK;
}
