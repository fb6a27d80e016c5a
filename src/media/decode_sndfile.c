/* WAV and FLAC, by libsndfile. */
#include <sndfile.h>
#include <stdlib.h>
#include <string.h>

#include "media/sound_decoders.h"

enum { BLOCK_VALUES = 1 << 14 };

typedef struct memory_file {
    const sound_source *source;
    sf_count_t at;
} memory_file;

static sf_count_t file_bytes(void *user) { return (sf_count_t)((memory_file *)user)->source->bytes; }

static sf_count_t file_seek(sf_count_t offset, int whence, void *user) {
    memory_file *f = user;
    const sf_count_t bytes = file_bytes(user);
    const sf_count_t base = whence == SEEK_CUR ? f->at : whence == SEEK_END ? bytes : 0;
    if (offset < -base || offset > bytes - base) return -1;
    f->at = base + offset;
    return f->at;
}

static sf_count_t file_read(void *to, sf_count_t n, void *user) {
    memory_file *f = user;
    const sf_count_t left = file_bytes(user) - f->at;
    if (n > left) n = left;
    if (n <= 0) return 0;
    memcpy(to, f->source->data + f->at, (size_t)n);
    f->at += n;
    return n;
}

static sf_count_t file_write(const void *from, sf_count_t n, void *user) {
    (void)from;
    (void)n;
    (void)user;
    return 0; /* it is open for reading */
}

static sf_count_t file_tell(void *user) { return ((memory_file *)user)->at; }

static kakeya_status read_frames(const sound_source *source, SNDFILE *file, sf_count_t frames, sound_frames *out,
                                 kakeya_error *error) {
    float *block = malloc(BLOCK_VALUES * sizeof *block);
    if (!block) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
    const sf_count_t most = BLOCK_VALUES / out->channels;
    kakeya_status status = KAKEYA_OK;
    for (sf_count_t n = most; n == most && status == KAKEYA_OK;) {
        n = sf_readf_float(file, block, most);
        status = sound_add(source, out, block, n > 0 ? (size_t)n : 0, error);
    }
    free(block);
    if (status == KAKEYA_OK && sf_error(file) != SF_ERR_NO_ERROR)
        return error_set(error, KAKEYA_FORMAT, "%s: %s", source->name, sf_strerror(file));
    if (status == KAKEYA_OK && (sf_count_t)out->n < frames)
        return error_set(error, KAKEYA_FORMAT, "%s: the file ends early", source->name);
    return status;
}

/* The bytes of samples that the header promises, as far as it is a plain one: libsndfile takes a file that was cut off
 * for a shorter one. */
static bool ends_early(const sound_source *source) {
    size_t at = 12;
    if (memcmp(source->data, "RIFF", 4) != 0) return false;
    while (at + 8 <= source->bytes) {
        const unsigned char *chunk = source->data + at;
        const size_t bytes = chunk[4] | (size_t)chunk[5] << 8 | (size_t)chunk[6] << 16 | (size_t)chunk[7] << 24;
        const bool unknown = bytes == 0 || bytes >= 0x7fffff00; /* what programs write that do not know it yet */
        if (memcmp(chunk, "data", 4) == 0) return !unknown && bytes > source->bytes - at - 8;
        if (bytes > source->bytes - at - 8) return true;
        at += 8 + bytes + bytes % 2;
    }
    return false;
}

kakeya_status sound_decode_sndfile(const sound_source *source, sound_frames *out, kakeya_error *error) {
    SF_VIRTUAL_IO io = {file_bytes, file_seek, file_read, file_write, file_tell};
    memory_file user = {source, 0};
    SF_INFO info = {0};
    if (ends_early(source)) return error_set(error, KAKEYA_FORMAT, "%s: the file ends early", source->name);
    SNDFILE *file = sf_open_virtual(&io, SFM_READ, &info, &user);
    if (!file) return error_set(error, KAKEYA_FORMAT, "%s: %s", source->name, sf_strerror(NULL));
    const int container = info.format & SF_FORMAT_TYPEMASK;
    kakeya_status status = KAKEYA_OK;
    if (container != SF_FORMAT_WAV && container != SF_FORMAT_WAVEX && container != SF_FORMAT_RF64 &&
        container != SF_FORMAT_FLAC)
        status = error_set(error, KAKEYA_UNSUPPORTED, "%s: neither WAV, FLAC nor MP3", source->name);
    if (status == KAKEYA_OK) status = sound_begin(source, info.samplerate, info.channels, out, error);
    const bool known = info.frames > 0 && info.frames < SF_COUNT_MAX;
    if (status == KAKEYA_OK && known) status = sound_check_length(source, out, (double)info.frames, error);
    if (status == KAKEYA_OK) status = read_frames(source, file, known ? info.frames : 0, out, error);
    sf_close(file);
    return status;
}
