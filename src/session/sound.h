/* Inside of a kakeya_sound. */
#ifndef KAKEYA_SESSION_SOUND_H
#define KAKEYA_SESSION_SOUND_H

#include "media/digest.h"
#include "media/sound.h"

struct kakeya_sound {
    sound_info info;
    sound_samples samples;
    unsigned char digest[IMAGE_DIGEST_BYTES]; /* of the samples */
};

#endif
