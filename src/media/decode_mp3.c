/* MP3, by libmpg123. */
#include <mpg123.h>
#include <pthread.h>

#include "media/sound_decoders.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void begin_library(void) { (void)mpg123_init(); } /* which newer versions need no more */

/* Another rate or number of channels in the middle is no recording that anybody makes. */
static kakeya_status take_format(const sound_source *source, mpg123_handle *mp3, sound_frames *out,
                                 kakeya_error *error) {
    long rate = 0;
    int channels = 0, encoding = 0;
    if (mpg123_getformat(mp3, &rate, &channels, &encoding) != MPG123_OK || encoding != MPG123_ENC_FLOAT_32)
        return error_set(error, KAKEYA_FORMAT, "%s: broken MP3: %s", source->name, mpg123_strerror(mp3));
    if (out->rate && (rate != out->rate || channels != out->channels))
        return error_set(error, KAKEYA_FORMAT, "%s: broken MP3: the format changes after %zu samples", source->name,
                         out->n);
    return sound_begin(source, (int)rate, channels, out, error);
}

static kakeya_status set_up(const sound_source *source, mpg123_handle *mp3, kakeya_error *error) {
    const long *rates;
    size_t n;
    bool good = mpg123_param(mp3, MPG123_ADD_FLAGS, MPG123_QUIET | MPG123_SKIP_ID3V2, 0) == MPG123_OK &&
                mpg123_param(mp3, MPG123_RESYNC_LIMIT, 0, 0) == MPG123_OK && mpg123_format_none(mp3) == MPG123_OK;
    mpg123_rates(&rates, &n);
    for (size_t i = 0; i < n && good; i++)
        good = mpg123_format(mp3, rates[i], MPG123_MONO | MPG123_STEREO, MPG123_ENC_FLOAT_32) == MPG123_OK;
    good = good && mpg123_open_feed(mp3) == MPG123_OK && mpg123_feed(mp3, source->data, source->bytes) == MPG123_OK;
    return good ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: MP3: %s", source->name, mpg123_strerror(mp3));
}

static kakeya_status read_frames(const sound_source *source, mpg123_handle *mp3, sound_frames *out,
                                 kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (;;) {
        unsigned char *audio = NULL;
        size_t bytes = 0;
        off_t frame;
        const int result = mpg123_decode_frame(mp3, &frame, &audio, &bytes);
        if (result == MPG123_NEED_MORE || result == MPG123_DONE) break;
        if (result == MPG123_NEW_FORMAT)
            status = take_format(source, mp3, out, error);
        else if (result != MPG123_OK)
            status = error_set(error, KAKEYA_FORMAT, "%s: broken MP3: %s", source->name, mpg123_strerror(mp3));
        if (status != KAKEYA_OK) return status;
        if (!bytes) continue;
        if (!out->channels) return error_set(error, KAKEYA_FORMAT, "%s: broken MP3", source->name);
        status = sound_add(source, out, (const float *)(const void *)audio,
                           bytes / sizeof(float) / (size_t)out->channels, error);
        if (status != KAKEYA_OK) return status;
    }
    return KAKEYA_OK;
}

kakeya_status sound_decode_mp3(const sound_source *source, sound_frames *out, kakeya_error *error) {
    pthread_once(&once, begin_library);
    mpg123_handle *mp3 = mpg123_new(NULL, NULL);
    if (!mp3) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
    kakeya_status status = set_up(source, mp3, error);
    if (status == KAKEYA_OK) status = read_frames(source, mp3, out, error);
    mpg123_delete(mp3);
    return status;
}
