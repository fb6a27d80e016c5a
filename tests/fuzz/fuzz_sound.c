/* Any bytes as a sound: what is refused says why in one line and gives nothing; what is decoded has samples in [-1, 1],
 * no more than 30 seconds of them, and a logarithm for each band. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "media/digest.h"
#include "media/log_mel.h"
#include "media/sound_decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_SAMPLES = SOUND_RATE / 2 }; /* of which log-mel is computed */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kakeya_error error = {0};
    sound_info info;
    sound_samples heard;
    unsigned char digest[IMAGE_DIGEST_BYTES];
    kakeya_status status = sound_decode("fuzz", data, size, SOUND_MAX_SECONDS, &info, &heard, &error);
    if ((status == KAKEYA_OK) != (heard.sample != NULL)) abort();
    if (status != KAKEYA_OK) {
        if (error.status != status || !*error.message) abort();
        return 0;
    }
    if (!heard.n || heard.n > (size_t)SOUND_MAX_SECONDS * SOUND_RATE || info.rate < 1 || info.channels < 1) abort();
    for (size_t i = 0; i < heard.n; i++)
        if (!(heard.sample[i] >= -1 && heard.sample[i] <= 1)) abort();
    if (sound_digest(&heard, digest, &error)) abort();
    const size_t n = heard.n < MOST_SAMPLES ? heard.n : MOST_SAMPLES, values = log_mel_frames(n) * LOG_MEL_BANDS;
    float *mel = malloc((values + 1) * sizeof *mel);
    if (!mel) abort();
    log_mel(heard.sample, n, mel);
    for (size_t i = 0; i < values; i++)
        if (!isfinite(mel[i])) abort();
    free(mel);
    sound_free(&heard);
    return 0;
}
