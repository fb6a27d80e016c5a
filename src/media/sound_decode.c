#include "media/sound_decode.h"

#include <math.h>
#include <samplerate.h>
#include <stdlib.h>
#include <string.h>

#include "media/sound_decoders.h"

/* ------------------------------------------------------------------------------------------------------ formats */

static bool begins(const sound_source *s, size_t at, const char *with, size_t bytes) {
    return s->bytes >= at + bytes && memcmp(s->data + at, with, bytes) == 0;
}

/* A frame of MPEG audio: eleven bits that are set, a layer, a bit rate and a sampling rate that exist. */
static bool is_mpeg(const sound_source *s) {
    if (s->bytes < 4 || s->data[0] != 0xff || (s->data[1] & 0xe0) != 0xe0) return false;
    return (s->data[1] & 0x18) != 0x08 && (s->data[1] & 0x06) != 0 && (s->data[2] & 0xf0) != 0xf0 &&
           (s->data[2] & 0x0c) != 0x0c;
}

static sound_format format_of(const sound_source *s) {
    const bool riff = begins(s, 0, "RIFF", 4) || begins(s, 0, "RIFX", 4) || begins(s, 0, "RF64", 4);
    if (riff && begins(s, 8, "WAVE", 4)) return SOUND_WAV;
    if (begins(s, 0, "fLaC", 4)) return SOUND_FLAC;
    if (begins(s, 0, "ID3", 3) || is_mpeg(s)) return SOUND_MP3;
    return SOUND_FORMATS;
}

/* ---------------------------------------------------------------------------------------------------- resampling */

static kakeya_status resample(const sound_source *source, const sound_frames *from, sound_samples *out,
                              kakeya_error *error) {
    const double ratio = (double)SOUND_RATE / from->rate;
    const long room = (long)ceil((double)from->n * ratio) + 1;
    float *made = malloc((size_t)room * sizeof *made);
    if (!made) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
    SRC_DATA data = {.data_in = from->sample,
                     .data_out = made,
                     .input_frames = (long)from->n,
                     .output_frames = room,
                     .src_ratio = ratio};
    const int failed = src_simple(&data, SRC_SINC_MEDIUM_QUALITY, 1);
    if (failed) {
        free(made);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: resampling: %s", source->name, src_strerror(failed));
    }
    const size_t most = (size_t)source->seconds * SOUND_RATE;
    *out = (sound_samples){made, (size_t)data.output_frames_gen};
    if (out->n > most) out->n = most;                                                         /* rounded up */
    for (size_t i = 0; i < out->n; i++) out->sample[i] = fmaxf(-1, fminf(1, out->sample[i])); /* it overshoots steps */
    return KAKEYA_OK;
}

kakeya_status sound_decode(const char *name, const void *data, size_t bytes, int seconds, sound_info *info,
                           sound_samples *out, kakeya_error *error) {
    static sound_decoder *const decoders[SOUND_FORMATS] = {
        [SOUND_WAV] = sound_decode_sndfile, [SOUND_FLAC] = sound_decode_sndfile, [SOUND_MP3] = sound_decode_mp3};
    const sound_source source = {name, data, bytes, seconds};
    const sound_format format = format_of(&source);
    sound_frames frames = {0};
    *out = (sound_samples){0};
    if (format == SOUND_FORMATS) return error_set(error, KAKEYA_UNSUPPORTED, "%s: neither WAV, FLAC nor MP3", name);
    kakeya_status status = decoders[format](&source, &frames, error);
    if (status == KAKEYA_OK && !frames.n) status = error_set(error, KAKEYA_FORMAT, "%s: there is no sound in it", name);
    if (status == KAKEYA_OK) *info = (sound_info){format, frames.rate, frames.channels};
    if (status == KAKEYA_OK && frames.rate != SOUND_RATE) {
        status = resample(&source, &frames, out, error);
        if (status == KAKEYA_OK && !out->n) {
            sound_free(out);
            status = error_set(error, KAKEYA_FORMAT, "%s: there is no sound in it", name);
        }
    } else if (status == KAKEYA_OK) {
        *out = (sound_samples){frames.sample, frames.n};
        frames.sample = NULL;
    }
    free(frames.sample);
    return status;
}
